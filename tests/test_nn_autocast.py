"""CUDA's autocast on the CPU: the lists against torch's dispatcher, the rules against torch's own CUDA kernels.

torch registers its CUDA autocast in CPU builds too, and runs it on fake CUDA tensors, which have a dtype, a shape and
no data. So the dtype that every listed operation gives on a GPU can be asked for here.
"""

import copy
import itertools
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from autocast_calls import CALLS, CUDA_ONLY, overload
from fresh import python
from refusals import refuses
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F  # noqa: N812

from fplab.errors import LabError
from fplab.hardware.tensors import release
from fplab.nn import autocast
from fplab.nn.autocast_lists import RECURRENT, SINGLE, Rule
from fplab.nn.cuda_autocast import DTYPES, RULES, active, registered

HALF, FULL, DOUBLE, BRAIN = torch.float16, torch.float32, torch.float64, torch.bfloat16
HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
NOT_ON_FAKE = {"gru_cell", "grid_sampler"}  # they ask for a CUDA runtime
OF_2_13 = pytest.mark.skipif(
    release(torch.__version__) < (2, 13), reason=f"the lists are those of torch 2.13, and this is {torch.__version__}"
)
DEPRECATED = ("at::nuclear_norm", "at::frobenius_norm", "torch.chain_matmul", "Mismatch dtype")


def operands(device: str, dtypes: tuple[torch.dtype, ...]) -> Callable[..., torch.Tensor]:
    """A maker of operands between 1/4 and 3/4, whose dtypes go round."""
    turn, generator = itertools.cycle(dtypes), torch.Generator().manual_seed(1)

    def make(*shape: int) -> torch.Tensor:
        if device == "cuda":
            return torch.empty(shape, dtype=next(turn), device=device)
        return (torch.rand(shape, generator=generator) / 2 + 0.25).to(next(turn))

    return make


@contextmanager
def quiet() -> Iterator[None]:
    """torch warns of what is deprecated, and its fake tensors log every refusal."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        with warnings.catch_warnings():
            for text in DEPRECATED:
                warnings.filterwarnings("ignore", message=text)
            yield
    finally:
        log.disabled = before


@contextmanager
def torch_cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """torch's own autocast for CUDA; ``torch.autocast`` would turn itself off without a GPU."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", HALF)


def dtypes_of(call: Callable[[], Any]) -> Any:
    """The dtypes of a result, or that the call is refused."""
    try:
        result = call()
    except (RuntimeError, LabError):
        return "refused"
    return tuple(x.dtype for x in result) if isinstance(result, tuple | list) else result.dtype


# --- the lists ------------------------------------------------------------------------------------------------------
@OF_2_13
def test_the_members_are_those_of_the_dispatcher() -> None:
    assert set(RULES) - set(RECURRENT.split()) == registered("AutocastCUDA") - {"_cudnn_rnn"}  # in builds for CUDA


@OF_2_13
def test_every_member_has_the_rule_that_the_header_gives_it() -> None:
    """The macros of ATen/autocast_mode.h, which are what the registrations are made of."""
    text = HEADER.read_text(encoding="utf-8")
    macros = {
        "AT_FORALL_LOWER_PRECISION_FP": Rule.LOWER,
        "AT_FORALL_FP32": Rule.FP32,
        "AT_FORALL_FP32_SET_OPT_DTYPE": Rule.FP32_DTYPE,
        "AT_FORALL_PROMOTE": Rule.WIDEST,
    }
    found: dict[str, Rule] = {}
    for macro, rule in macros.items():
        body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", text, re.S)
        assert body is not None
        for name, kind in re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1]):
            found[f"{name}.{kind}" if kind else name] = rule
    body = re.search(r"#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE\(_\)(.*?)\n\n", text, re.S)
    assert body is not None
    found |= dict.fromkeys(re.findall(r'"(norm\.\w+)"', body[1]), Rule.FP32_OVERLOAD)
    ours = {name: rule for name, rule in RULES.items() if name not in RECURRENT.split()}
    # cuDNN's convolutions are registered beside the macros, and the refusal is written out
    beside = {"cudnn_convolution", "cudnn_convolution_transpose", "binary_cross_entropy", "linalg_matrix_sqrth"}
    assert {n: r for n, r in ours.items() if n not in beside} == found
    assert len(found) > 100


def test_every_member_is_called_here() -> None:
    assert set(CALLS) | CUDA_ONLY == set(RULES) - set(RECURRENT.split())
    assert set(RULES) >= SINGLE


PATTERNS = {
    "all FP32": (FULL,), "all FP16": (HALF,), "FP32 first": (FULL, HALF), "FP16 first": (HALF, FULL),
    "all FP64": (DOUBLE,), "all BF16": (BRAIN,), "BF16 and FP16": (BRAIN, HALF),
}  # fmt: skip


@OF_2_13
@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=["to FP16", "to BF16"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_operation_gives_the_dtype_that_torchs_cuda_kernels_give(pattern: str, dtype: torch.dtype) -> None:
    differ = {}
    for name, args in CALLS.items():
        if name in NOT_ON_FAKE:
            continue
        with quiet():
            with FakeTensorMode(), torch_cuda_autocast(dtype):
                make = operands("cuda", PATTERNS[pattern])
                theirs = dtypes_of(lambda: overload(name)(*args(make, "cuda")))  # noqa: B023
            with autocast(dtype):
                make = operands("cpu", PATTERNS[pattern])
                ours = dtypes_of(lambda: overload(name)(*args(make, "cpu")))  # noqa: B023
        if ours != theirs:
            differ[name] = ours, theirs
    assert not differ


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_bits_are_those_of_the_operation_on_operands_cast_by_hand(name: str) -> None:
    """Without autocast, on operands cast beforehand; products in FP32 and rounded once."""
    rule, args = RULES[name], CALLS[name]
    to = {Rule.LOWER: HALF, Rule.FP32: FULL, Rule.WIDEST: FULL}.get(rule)

    def by_hand(x: Any) -> Any:
        if isinstance(x, list):
            return [by_hand(y) for y in x]
        return x.to(to) if to and isinstance(x, torch.Tensor) and x.is_floating_point() else x

    with quiet():
        given = args(operands("cpu", (FULL, HALF)), "cpu")
        if rule is Rule.REFUSED:
            with autocast("fp16"), pytest.raises(LabError, match="binary_cross_entropy_with_logits"):
                overload(name)(*given)
            return
        with autocast("fp16", product="torch"):
            got = overload(name)(*given)
        named = rule in (Rule.FP32_DTYPE, Rule.FP32_OVERLOAD)
        wanted = overload(name)(*[x.float() if named and i == 0 else by_hand(x) for i, x in enumerate(given)])
    for a, b in zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (got, wanted)), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", sorted(SINGLE))
@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=["FP16", "BF16"])
def test_a_product_is_computed_in_fp32_and_rounded_once(name: str, dtype: torch.dtype) -> None:
    given = CALLS[name](operands("cpu", (FULL,)), "cpu")
    rounded = [x.to(dtype).float() if isinstance(x, torch.Tensor) else x for x in given]
    with autocast(dtype):
        got = overload(name)(*given)
    assert torch.equal(got, overload(name)(*rounded).to(dtype))
    assert got.dtype == dtype


def test_an_operation_made_of_products_rounds_each_of_them() -> None:
    a, b, c = (torch.randn(6, 6, generator=torch.Generator().manual_seed(i)) for i in range(3))
    with autocast("fp16"):
        got = torch.linalg.multi_dot([a, b, c])
    x, y, z = (m.half().float() for m in (a, b, c))
    in_steps = ((x @ y).half().float() @ z).half(), (x @ (y @ z).half().float()).half()
    assert any(torch.equal(got, want) for want in in_steps)
    assert not torch.equal(got, (x @ y @ z).half())


# --- what it is not: torch's own CPU autocast -----------------------------------------------------------------------
def test_torchs_cpu_autocast_runs_in_fp16_what_cuda_runs_in_fp32() -> None:
    """If this fails, torch has changed its CPU lists, and the lab's reason for lists of its own with them."""
    x = (torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) + 0.5).half()
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "softmax": lambda: x.softmax(-1),
        "layer_norm": lambda: F.layer_norm(x, [4]),
        "exp": x.exp,
        "log": x.log,
        "pow": lambda: x**1.5,
        "sum": x.sum,
        "norm": x.norm,
    }
    for name, call in calls.items():
        with torch.autocast("cpu", HALF):
            assert call().dtype == HALF, name
        with autocast("fp16"):
            assert call().dtype == FULL, name


def test_torchs_cpu_autocast_goes_on_as_it_was() -> None:
    """Its kernels were in the slots before ours; outside our blocks they are called."""
    script = """
import torch, torch.nn.functional as F
from autocast_calls import CALLS, overload
from test_nn_autocast import operands, quiet, dtypes_of, HALF, FULL
x = torch.linspace(-2, 2, 16).view(4, 4)
def results():
    found = []
    with torch.autocast("cpu", torch.float16), quiet():
        for name, args in CALLS.items():
            for pattern in ((HALF,), (FULL, HALF)):
                found.append(dtypes_of(lambda: overload(name)(*args(operands("cpu", pattern), "cpu"))))
        for call in (torch.fft.fft, torch.trace, torch.linalg.qr):
            found.append(dtypes_of(lambda: call(x.half())))
        for call in (torch.cat, torch.stack):
            found.append(dtypes_of(lambda: call([x, x.half()])))
        found.append((x @ x).tolist())
    return found
before = results()
from fplab.nn import autocast
with autocast("bf16"): x @ x
assert results() == before
print(len(before))
"""
    assert int(python(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}){script}")) == 2 * len(CALLS) + 6


# --- eligibility ----------------------------------------------------------------------------------------------------
def test_what_is_not_eligible_stays() -> None:
    x = torch.rand(4, 4) + 0.5
    half, double = x.half(), x.double()
    with autocast("fp16"):
        assert (double @ double).dtype == DOUBLE
        assert double.exp().dtype == DOUBLE
        assert (torch.ones(2, 2, dtype=torch.int64) @ torch.ones(2, 2, dtype=torch.int64)).dtype == torch.int64
        assert half.clone().exp_().dtype == HALF  # in place
        assert x.clone().addmm_(x, x).dtype == FULL
        assert torch.mm(x, x, out=torch.empty(4, 4)).dtype == FULL  # out=
        assert half.softmax(-1, dtype=HALF).dtype == HALF  # the call names a dtype
        assert half.sum(dtype=DOUBLE).dtype == DOUBLE
        assert half.cumsum(0, dtype=HALF).dtype == HALF
        assert torch.norm(half, dtype=HALF).dtype == HALF
        for y in (half + half, half * 2, half.relu(), half.mean(), half.max(), torch.cat([half, half])):
            assert y.dtype == HALF  # in no list
        assert (half + x).dtype == FULL  # torch's own promotion


def test_promotion_refuses_another_16_bit_format() -> None:
    x = torch.rand(4)
    with autocast("fp16"), pytest.raises(LabError, match=r"an operand is torch.bfloat16 in a region of autocast to"):
        torch.addcmul(x.half(), x.half(), x.bfloat16())


# --- regions --------------------------------------------------------------------------------------------------------
def test_regions_nest_and_can_be_switched_off_in_every_way() -> None:
    x = torch.rand(4, 4)

    def dtype() -> torch.dtype:
        return (x @ x).dtype

    assert active() is None
    with autocast("fp16"):
        assert (dtype(), active()) == (HALF, HALF)
        with autocast("bf16"):
            assert (dtype(), active()) == (BRAIN, BRAIN)
            with autocast(enabled=False):
                assert (dtype(), active()) == (FULL, None)
            assert dtype() == BRAIN
        for device in ("cpu", "cuda"):  # what a model does that was written for one of them
            with torch.autocast(device, enabled=False):
                assert (dtype(), active()) == (FULL, None)
                assert x.half().exp().dtype == HALF
                with autocast("bf16"):
                    assert dtype() == BRAIN
            assert dtype() == HALF
        with torch.autocast("cpu", BRAIN):
            assert dtype() == BRAIN
            assert x.bfloat16().exp().dtype == FULL  # still CUDA's lists
        assert torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cuda") == torch.get_autocast_dtype("cpu") == HALF
    assert dtype() == FULL
    assert not torch.is_autocast_enabled("cuda")
    assert not torch.is_autocast_enabled("cpu")


def test_a_region_ends_with_an_error_and_decorates_a_function() -> None:
    x = torch.rand(4, 4)
    with pytest.raises(ZeroDivisionError), autocast("fp16"):
        raise ZeroDivisionError
    assert (x @ x).dtype == FULL

    @autocast("bf16")
    def product() -> torch.Tensor:
        return x @ x

    assert product().dtype == product().dtype == BRAIN
    assert (x @ x).dtype == FULL


def test_regions_belong_to_a_thread() -> None:
    from concurrent.futures import ThreadPoolExecutor

    x = torch.rand(4, 4)
    with autocast("fp16"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: (x @ x).dtype).result() == FULL


@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")  # torch before 2.13
@pytest.mark.filterwarnings("ignore:CUDA is not available or torch_xla is imported:UserWarning")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_custom_forward_and_backward_see_the_block(device: str) -> None:
    """torch's decorators ask whether autocast is on for their device. Without a GPU, the one of the backward pass for
    "cuda" warns and leaves autocast off, as ``torch.autocast("cuda")`` does."""
    seen = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            seen.append((x @ x).dtype)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type=device)
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            seen.append((gradients[0].float() @ x.float()).dtype)
            return gradients[0].to(x.dtype)

    x = torch.rand(4, 4, requires_grad=True)
    with autocast("fp16"):
        y = Product.apply(x)
    y.float().sum().backward()
    assert seen == [HALF, HALF if device == "cpu" else FULL]


def test_custom_forward_with_cast_inputs_switches_autocast_off() -> None:
    class Exact(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=FULL)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x @ x

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0]

    with autocast("fp16"):
        assert Exact.apply(torch.rand(4, 4).half()).dtype == FULL


# --- modules ------
def test_modules_give_the_dtypes_they_give_on_a_gpu() -> None:
    torch.manual_seed(0)
    modules: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "linear": (nn.Linear(8, 8), (2, 8)),
        "convolution": (nn.Conv2d(1, 2, 3, padding="same"), (1, 1, 8, 8)),
        "batch norm": (nn.BatchNorm1d(8).eval(), (4, 8)),
        "layer norm": (nn.LayerNorm(8), (4, 8)),
        "softmax": (nn.Softmax(-1), (4, 8)),
        "gelu": (nn.GELU(), (4, 8)),
        "upsample": (nn.Upsample(scale_factor=2), (1, 1, 4, 4)),
        "two layers": (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), (2, 8)),
    }
    for (name, (module, shape)), given in itertools.product(modules.items(), (FULL, HALF)):
        if (name, given) == ("batch norm", HALF):
            continue  # on a GPU it takes FP16 with FP32 statistics, which fake tensors do not know
        with autocast("fp16"):
            ours = module(torch.rand(shape).to(given)).dtype
        there = copy.deepcopy(module)
        with FakeTensorMode(), torch_cuda_autocast(HALF):
            theirs = on_fake_cuda(there)(torch.empty(shape, dtype=given, device="cuda")).dtype
        assert ours == theirs, (name, given)


def on_fake_cuda(module: nn.Module) -> nn.Module:
    """A module with its parameters and buffers replaced by fake CUDA tensors, without gradients."""
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, x in tensors.items():
                if x is not None:
                    fake = torch.empty(x.shape, dtype=x.dtype, device="cuda")
                    tensors[name] = nn.Parameter(fake, False) if tensors is part._parameters else fake
    return module


# --- bad input ------------------------------------------------------------------------------------------------------
def test_what_it_refuses() -> None:
    refuses(lambda: autocast("fp61"), r"autocast\('fp61'\): unknown autocast dtype 'fp61'.*Did you mean 'fp16'")
    refuses(lambda: autocast(FULL), r"dtype=torch.float32 is not one that CUDA's autocast takes; allowed: torch.")
    refuses(lambda: autocast("fp16", product="fp32"), r"unknown product 'fp32'. Allowed: float32, torch.")
    assert set(DTYPES) == {"fp16", "bf16"}
    x = torch.rand(2, 2)
    for given, dtype in (("float16", HALF), ("BFloat16", BRAIN), ("half", HALF), (BRAIN, BRAIN)):
        with autocast(given):
            assert (x @ x).dtype == dtype
