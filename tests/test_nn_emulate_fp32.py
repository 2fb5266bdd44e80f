"""FP32 tensors: on the CUDA cores or in TF32, as torch's flags choose; routers and heads beside layers in BF16."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from emulated import random, same
from family_steps import library
from torch import nn
from torch.nn import functional

from fplab.errors import LabError
from fplab.nn import autocast, emulate
from fplab.nn.emulation import modes
from fplab.tensorcore import GPUS, Plan, get, matmul, models

X, W, BIAS = random(9, 70), random(13, 70, seed=1), random(13, seed=2)
GRADIENT = random(9, 13, seed=3)
BACKENDS = {"matmul": torch.backends.cuda.matmul, "conv": torch.backends.cudnn.conv, "rnn": torch.backends.cudnn.rnn}


@pytest.fixture(autouse=True)
def _flags() -> Iterator[None]:
    """Torch's flags as they were."""
    before = {name: backend.fp32_precision for name, backend in BACKENDS.items()}
    yield
    torch.set_float32_matmul_precision("highest")  # the older flags agree with the newer again
    for name, backend in BACKENDS.items():
        backend.fp32_precision = before[name]


def product(a: torch.Tensor, b: torch.Tensor, inputs: str = "fp32", gpu: str = "H100", **given: Any) -> torch.Tensor:
    """``a @ b`` of a unit, FP32 throughout."""
    return torch.from_numpy(matmul(a.detach().numpy(), b.detach().numpy(), gpu=gpu, inputs=inputs, **given))


def units(run: Any) -> set[str]:
    """The operands' formats of everything that ran."""
    return {row.unit.split()[-1].partition("->")[0] for row in run.report().rows}


def test_matrices_are_multiplied_on_the_cuda_cores() -> None:
    x, layer = X.clone().requires_grad_(), nn.Linear(70, 13)
    with emulate("H100") as run:
        y = layer(x)
        y.backward(GRADIENT)
        assert same(X @ W.t(), product(X, W.t()))
        assert same(torch.addmm(BIAS, X, W.t()), product(X, W.t()) + BIAS)
    assert same(y.detach(), product(x, layer.weight.t()) + layer.bias.detach())
    assert layer.weight.grad is not None
    assert same(x.grad, product(GRADIENT, layer.weight))
    assert same(layer.weight.grad, product(GRADIENT.t(), X))
    assert {row.unit for row in run.report().rows} == {"H100 fma.k1 fp32->fp32"}
    assert not same(product(X, W.t()), product(X, W.t(), "tf32"))


FLAGS: dict[str, Callable[[], None]] = {
    "fp32_precision": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
}


@pytest.mark.parametrize("name", FLAGS)
def test_what_allows_tf32(name: str) -> None:
    FLAGS[name]()
    with emulate("H100", conversion="rna"):
        assert same(X @ W.t(), product(X, W.t(), "tf32", conversion="rna"))
    with emulate("H100", "fp32"):
        assert same(X @ W.t(), product(X, W.t()))
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    with emulate("H100", conversion="rna"):
        assert same(X @ W.t(), product(X, W.t()))


LSTM = {"input_size": 7, "hidden_size": 5}


def attention() -> torch.Tensor:
    return functional.scaled_dot_product_attention(*(random(1, 2, 6, 8, seed=n).requires_grad_() for n in range(3)))


KINDS: dict[str, tuple[str, Callable[[], Any]]] = {
    "a convolution": ("conv", lambda: nn.Conv2d(3, 4, 3)(random(2, 3, 8, 8).requires_grad_())),
    "a transposed convolution": ("conv", lambda: nn.ConvTranspose1d(3, 4, 3)(random(2, 3, 8).requires_grad_())),
    "an LSTM": ("rnn", lambda: nn.LSTM(**LSTM)(random(6, 2, 7).requires_grad_())[0]),
    "a bidirectional LSTM": ("rnn", lambda: nn.LSTM(**LSTM, bidirectional=True)(random(6, 2, 7).requires_grad_())[0]),
    "a GRU": ("rnn", lambda: nn.GRU(**LSTM)(random(6, 2, 7).requires_grad_())[0]),
    "a cell": ("matmul", lambda: nn.LSTMCell(**LSTM)(random(2, 7).requires_grad_())[0]),
    "attention": ("matmul", attention),
    "an einsum": ("matmul", lambda: torch.einsum("bij,bjk->ik", random(2, 3, 4).requires_grad_(), random(2, 4, 5))),
}  # fmt: skip


@pytest.mark.parametrize("chosen", ["ieee", "tf32"])
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_product_has_its_flag(name: str, chosen: str) -> None:
    """Forward and backward; the flags of the other kinds say the opposite."""
    flag, run_one = KINDS[name]
    for other, backend in BACKENDS.items():
        backend.fp32_precision = chosen if other == flag else {"ieee": "tf32", "tf32": "ieee"}[chosen]
    results = []
    for given in (None, {"ieee": "fp32", "tf32": "tf32"}[chosen]):
        torch.manual_seed(0)
        with emulate("H100", given) as run:
            y = run_one()
        y.square().sum().backward()
        results.append((y.detach(), units(run)))
    assert same(results[0][0], results[1][0])
    assert results[0][1] == results[1][1] == {{"ieee": "fp32", "tf32": "tf32"}[chosen]}


def test_by_default_cudnn_computes_in_tf32() -> None:
    """As torch does after its import; matrices do not."""
    with emulate("A100") as run:
        nn.Conv1d(3, 4, 3)(random(2, 3, 8))
        nn.GRU(**LSTM)(random(6, 2, 7))
        nn.Linear(70, 13)(X)
    found = {row.layer.split()[0]: row.unit for row in run.report().rows}
    assert found == {"Conv1d": "A100 mma.k8 tf32->fp32", "GRU": "A100 mma.k8 tf32->fp32",
                     "Linear": "A100 fma.k1 fp32->fp32"}  # fmt: skip


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("before", "after"), [("ieee", "tf32"), ("tf32", "ieee")])
def test_a_flag_counts_when_a_product_runs(
    before: str, after: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward pass reads it anew, as a GPU's does, whether layers are one node of the graph or several."""
    if apart:
        monkeypatch.setattr(modes.Calls, "_unwatched", lambda self: False)
    names = {"ieee": "fp32", "tf32": "tf32"}
    for kind, layer, x in (("matmul", nn.Linear(70, 13), X), ("rnn", nn.LSTM(70, 13), X[:, None])):
        BACKENDS[kind].fp32_precision = before
        x = x.clone().requires_grad_()
        with emulate("H100") as run:
            y = layer(x)
            y = y[0] if isinstance(y, tuple) else y
        BACKENDS[kind].fp32_precision = after
        y.sum().backward()
        rows = {row.phase: set() for row in run.report().rows}
        for row in run.report().rows:
            rows[row.phase].add(row.unit.split()[-1].partition("->")[0])
        assert rows == {"forward": {names[before]}, "backward": {names[after]}}
        if kind == "matmul":
            assert same(x.grad, product(torch.ones(9, 13), layer.weight, names[after]))


@pytest.mark.parametrize("gpu", GPUS)
def test_a_gpu_without_tf32_stays_with_fp32(gpu: str) -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    has = any(m.gpu == gpu and m.a == "tf32" for m in models.TABLE)
    assert has == (gpu not in ("V100", "T4", "MI100", "MI210", "MI250X"))
    with emulate(gpu):
        assert same(X @ W.t(), product(X, W.t(), "tf32" if has else "fp32", gpu))


def test_other_settings_keep_their_meaning() -> None:
    """Another accumulator and another instruction are FP16's; a plan is for all; half tensors have their own unit."""
    half = X.half(), W.t().half()
    with emulate("H100", accumulate="fp16", instruction="mma") as run:
        assert same(X @ W.t(), product(X, W.t()))
        want = matmul(*(t.float().numpy() for t in half), output="fp16", instruction="mma")
        assert np.array_equal((half[0] @ half[1]).float().numpy(), want)
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert same(X @ W.t(), product(X, W.t(), "tf32", instruction="mma"))
    assert {row.unit for row in run.report().rows} == {
        "H100 fma.k1 fp32->fp32", "H100 mma.k16 fp16->fp16", "H100 mma.k8 tf32->fp32"}  # fmt: skip
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    plan = Plan(split_k=3, reduction="pairwise")
    with emulate("H100", plan=plan), torch.no_grad():
        assert same(X @ W.t(), product(X, W.t(), plan=plan))
        assert same(nn.Linear(70, 13)(X)[:0], torch.zeros(0, 13))
    assert not same(product(X, W.t(), plan=plan), product(X, W.t()))
    with emulate("H100", store="bf16"):
        assert same(X @ W.t(), product(X, W.t(), store="bf16"))
    with emulate(get("V100")):  # a record's own formats
        assert same(X @ W.t(), product(X, W.t(), "fp16", "V100"))
    with pytest.raises(
        LabError, match=r"H100 \(Hopper, sm_90\) has no fp32 \* fp32 with output='fp16'\. Allowed: fp32"
    ):
        emulate("H100", "fp32", "fp16")


class Routed(nn.Module):
    """Layers in BF16, with a router and a head that compute in FP32 whatever the rest does."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.experts = nn.Linear(24, 48), nn.ModuleList(nn.Linear(48, 24) for _ in range(3))
        self.router, self.head = nn.Linear(48, 3, bias=False), nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.gelu(self.up(x))
        with torch.autocast("cpu", enabled=False):
            gates = (x.float() @ self.router.weight.float().t()).softmax(-1)
        x = sum(gate[:, None].to(x.dtype) * expert(x) for gate, expert in zip(gates.t(), self.experts, strict=True))
        with torch.autocast("cpu", enabled=False):
            return functional.linear(x.float(), self.head.weight.float(), self.head.bias.float())


@pytest.mark.parametrize("cast", ["model", "autocast"])
def test_a_router_and_a_head_in_fp32_beside_layers_in_bf16(cast: str) -> None:
    torch.manual_seed(0)
    model, x, seen = Routed(), random(7, 24), {}
    if cast == "model":
        model, x = model.bfloat16(), x.bfloat16()
    for name in ("up", "head"):
        getattr(model, name).register_forward_hook(lambda layer, given, out, name=name: seen.update({name: out}))
    with emulate("H100") as run:
        if cast == "autocast":
            with autocast(torch.bfloat16):
                y = model(x)
        else:
            y = model(x)
        y.sum().backward()
    assert y.dtype == torch.float32
    rows = run.report().rows
    fp32 = [row for row in rows if row.unit == "H100 fma.k1 fp32->fp32"]
    assert sorted((row.phase, row.shape.k, row.shape.n) for row in fp32 if row.phase == "forward") == [
        ("forward", 24, 10), ("forward", 48, 3)]  # fmt: skip
    assert len([row for row in fp32 if row.phase == "backward"]) == 4  # of both operands of each
    assert {row.unit for row in rows} == {"H100 fma.k1 fp32->fp32", "H100 wgmma.k16 bf16->fp32"}
    hidden = functional.gelu(seen["up"]).float()
    assert seen["up"].dtype == torch.bfloat16
    with emulate("H100"):
        gates = hidden @ model.router.weight.float().t()
    assert same(gates.detach(), product(hidden, model.router.weight.float().t()))
    assert not same(gates.detach(), product(hidden, model.router.weight.float().t(), "bf16"))


def test_the_router_of_a_library_s_mixture_of_experts() -> None:
    """DeepSeek-V3's gate as transformers has it, in a model of BF16."""
    transformers = library("transformers")
    config = transformers.DeepseekV3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4, num_experts_per_tok=2, n_group=2,
        topk_group=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, v_head_dim=16,
        qk_nope_head_dim=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.DeepseekV3ForCausalLM(config).bfloat16().eval()
    tokens = torch.arange(10)[None]
    with torch.no_grad(), emulate("H100") as run:
        model(tokens)
    gates = [row for row in run.report().rows if row.layer.endswith("mlp.gate")]
    assert [(row.unit, row.shape.k, row.shape.n) for row in gates] == [("H100 fma.k1 fp32->fp32", 32, 4)]
    layers = {row.unit for row in run.report().rows if row not in gates and row.operation == "mm"}
    assert layers == {"H100 wgmma.k16 bf16->fp32"}
