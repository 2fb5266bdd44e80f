"""torch's low-precision products under ``fplab.nn.emulate``: scaled, in groups, and as torchao trains with them."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from emulated import cancelling, check, product, random, same
from refusals import refuses
from torch import nn
from torch.nn import functional
from torch.nn.functional import ScalingType, SwizzleType

import fplab
from fplab import scaled
from fplab.errors import LabError
from fplab.nn import emulate
from fplab.nn.recipes import mxfp8
from fplab.tensorcore import Plan, matmul

M, N, K = 136, 48, 320
A, B = random(M, K), random(N, K, seed=1)  # B is transposed
BIAS = random(N, seed=2, dtype=torch.bfloat16)
E4M3, E5M2, FP4 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2
TILES, PLAIN = SwizzleType.SWIZZLE_32_4_4, SwizzleType.NO_SWIZZLE
f32 = np.float32


def fp8(codes: np.ndarray, dtype: torch.dtype = E4M3) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(codes)).view(dtype)


def pairs(codes: np.ndarray) -> torch.Tensor:
    return fp8(codes[:, 0::2] | codes[:, 1::2] << 4, FP4)


def bf16(result: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(fplab.quantize(result, "bf16"))).bfloat16()


def quantized(name: str, **options: Any) -> tuple[scaled.Scaled, scaled.Scaled]:
    return scaled.quantize(A.numpy(), name, **options), scaled.quantize(B.numpy(), name, **options)


@pytest.mark.parametrize(
    ("gpu", "fast", "promote"), [("H100", True, None), ("L40S", False, 128), ("B200", False, None)]
)
def test_scales_of_tensors(gpu: str, fast: bool, promote: int | None) -> None:
    a, b = quantized("fp8_tensor")[0], scaled.quantize(B.numpy(), "fp8_tensor_e5m2")
    x, y = fp8(a.codes), fp8(b.codes, E5M2)
    sa, sb = (torch.tensor(q.scales.item()) for q in (a, b))
    with emulate(gpu, "fp16") as run:
        got = torch._scaled_mm(x, y.t(), sa, sb, bias=BIAS, out_dtype=torch.bfloat16, use_fast_accum=fast)
        alike = functional.scaled_mm(
            x, y.t(), sa, ScalingType.TensorWise, sb, ScalingType.TensorWise, bias=BIAS, use_fast_accum=fast
        )
        wide = torch._scaled_mm(x, y.t(), sa, sb, out_dtype=torch.float32, use_fast_accum=fast)
        narrow = torch._scaled_mm(x, y.t(), sa, sb, scale_result=torch.tensor(8.0), use_fast_accum=fast)
    sums = matmul(a.elements(), b.elements().T, gpu=gpu, inputs=("e4m3", "e5m2"), plan=Plan(promote=promote))
    alpha = f32(a.scales.item()) * f32(b.scales.item())
    want = bf16(fplab.fma(alpha, sums, BIAS.float().numpy(), "fp32"))
    assert same(got, want)
    assert same(alike, want)
    check(wide, torch.from_numpy(sums * alpha), torch._scaled_mm(x, y.t(), sa, sb, out_dtype=torch.float32))
    eight = np.asarray(fplab.quantize(sums * alpha * f32(8), "e4m3", overflow="saturate"))
    np.testing.assert_array_equal(narrow.float().numpy(), eight)
    assert sum(row.macs for row in run.report().rows) == 4 * M * N * K
    assert "scales" in run.report().questions


def test_scales_of_rows() -> None:
    a, b = quantized("fp8_row")
    sa, sb = torch.from_numpy(a.scales), torch.from_numpy(b.scales.T)
    with emulate("H200", "fp16"):
        got = torch._scaled_mm(fp8(a.codes), fp8(b.codes).t(), sa, sb, BIAS, None, torch.bfloat16)
    sums = matmul(a.elements(), b.elements().T, gpu="H200", inputs="e4m3", plan=Plan(promote=128))
    assert same(got, bf16(sums * a.scales * b.scales.T + BIAS.float().numpy()))


@pytest.mark.parametrize("square", ["", "a", "b"])
def test_scales_of_128(square: str) -> None:
    """In both layouts: ``_scaled_mm``'s, and ``functional.scaled_mm``'s, whose squares stand k first, in fours."""
    a, b = (
        scaled.quantize(x.numpy(), "fp8_block", block=(128 if name == square else 1, 128), rule="divide")
        for name, x in (("a", A), ("b", B))
    )
    sa, sb = torch.from_numpy(a.scales), torch.from_numpy(b.scales)
    kinds = [ScalingType.BlockWise128x128 if name == square else ScalingType.BlockWise1x128 for name in "ab"]
    listed = [nn.functional.pad(s.t(), (0, 0, 0, 1)) if name == square else s for name, s in (("a", sa), ("b", sb))]
    with emulate("H100", "fp16"):
        got = torch._scaled_mm(fp8(a.codes), fp8(b.codes).t(), sa, sb.t(), out_dtype=torch.float32)
        alike = functional.scaled_mm(
            fp8(a.codes), fp8(b.codes).t(), listed[0], kinds[0], listed[1], kinds[1], output_dtype=torch.float32
        )
    each_a, each_b, total = a.scale_values(each_row=True), b.scale_values(each_row=True), np.zeros((M, N), f32)
    for i, start in enumerate(range(0, K, 128)):
        cut = slice(start, start + 128)
        part = matmul(a.elements()[:, cut], b.elements()[:, cut].T, gpu="H100", inputs="e4m3")
        total = np.asarray(fplab.fma(each_a[:, i : i + 1] * each_b[:, i], part, total, "fp32"))
    np.testing.assert_array_equal(got.numpy(), total)
    assert same(got, alike)


MX = [("mxfp8_e4m3", "mxfp8_e4m3"), ("mxfp8_e4m3", "mxfp8_e5m2"), ("mxfp4", "mxfp4"), ("nvfp4", "nvfp4")]


@pytest.mark.parametrize("names", MX, ids="-".join)
def test_scales_of_blocks_go_into_the_unit(names: tuple[str, str]) -> None:
    a, b = (scaled.quantize(x.numpy(), name) for x, name in zip((A, B), names, strict=True))
    dtype = torch.float8_e4m3fn if names[0] == "nvfp4" else torch.float8_e8m0fnu
    x, y = (pairs(q.codes) if q.scheme.element.bits == 4 else fp8(q.codes, getattr(torch, _dtype(q))) for q in (a, b))
    sa, sb = (fp8(q.packed().scales, dtype) for q in (a, b))
    kind = ScalingType.BlockWise1x16 if names[0] == "nvfp4" else ScalingType.BlockWise1x32
    with emulate("B200", "fp16"):
        got = torch._scaled_mm(x, y.t(), sa, sb, bias=BIAS, out_dtype=torch.bfloat16)
        alike = functional.scaled_mm(x, y.t(), sa, kind, sb, kind, TILES, TILES, bias=BIAS)
    sums = matmul(
        a.elements(), b.elements().T, gpu="B200", inputs=names, scale_a=a.scale_values(), scale_b=b.scale_values().T
    )
    assert same(got, bf16(sums + BIAS.float().numpy()))
    assert same(alike, got)
    if names[0] == "nvfp4":
        wholes = [torch.from_numpy(q.global_scale.reshape(1)) for q in (a, b)]
        kinds = [kind, ScalingType.TensorWise]
        tiles = [TILES, PLAIN]
        with emulate("B200", "fp16"):
            got = functional.scaled_mm(
                x, y.t(), [sa, wholes[0]], kinds, [sb, wholes[1]], kinds, tiles, tiles, output_dtype=torch.float32
            )
        np.testing.assert_array_equal(got.numpy(), sums * (a.global_scale * b.global_scale))
    with (
        emulate("H100", "fp16"),
        pytest.raises(LabError, match=r"H100 \(Hopper, sm_90\) has no (mxfp|nvfp).* that have it: B200"),
    ):
        torch._scaled_mm(x, y.t(), sa, sb, out_dtype=torch.bfloat16)


def _dtype(q: scaled.Scaled) -> str:
    return {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}[q.scheme.element.name]


def test_special_values_go_through() -> None:
    a, b = fp8(np.tile(np.arange(256, dtype=np.uint8), (4, 2))), fp8(np.full((16, 512), 0x38, np.uint8))
    with emulate("H100", "fp16"):
        got = torch._scaled_mm(a, b.t(), torch.rand(4, 1), torch.rand(1, 16), out_dtype=torch.float32)
    np.testing.assert_array_equal(got.numpy().view(np.uint32), 0x7FFFFFFF)


# --- groups -------------------------------------------------------------------------------------------------------
ENDS = [20, 20, 65]
OFFS = torch.tensor(ENDS, dtype=torch.int32)
X, W = random(70, 72), random(3, 72, 24, seed=3)
PARTS = [slice(0, 20), slice(20, 20), slice(20, 65)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_products_of_groups_forward_and_backward(dtype: torch.dtype) -> None:
    x, w = cancelling(X[:, :70], -1).to(dtype), cancelling(W[:, :70], -2).to(dtype)
    g = random(70, 24, seed=4).to(dtype)
    leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
    with emulate("H100", "bf16") as run:
        y = functional.grouped_mm(*leaves, offs=OFFS)
    y.backward(g)
    want, grad_x, grad_w = torch.zeros(70, 24, dtype=dtype), torch.zeros_like(x), torch.zeros_like(w)
    for i, cut in enumerate(PARTS):
        if cut.start < cut.stop:
            want[cut] = product(x[cut], w[i], inputs="bf16")
            grad_x[cut] = product(g[cut], w[i].t(), inputs="bf16")
            grad_w[i] = product(x[cut].t(), g[cut], inputs="bf16")
    check(y[:65], want[:65], functional.grouped_mm(x, w, offs=OFFS)[:65])
    assert same(y, want)
    assert same(leaves[0].grad, grad_x)
    assert same(leaves[1].grad, grad_w)
    assert {(row.phase, row.operation) for row in run.report().rows} == {
        ("forward", "_grouped_mm"),
        ("backward", "_grouped_mm"),
    }


def test_every_layout_of_groups() -> None:
    x, w = random(3, 40, 72).bfloat16(), random(72, 70, seed=5).bfloat16()
    with emulate("A100", "fp16"):
        columns = functional.grouped_mm(x, w, offs=OFFS)
        batch = functional.grouped_mm(x, W.bfloat16())
        by_k = functional.grouped_mm(x[0, :, :65], w[:65], offs=OFFS)
    for i, cut in enumerate(PARTS):
        assert same(columns[:, cut], product(x[i], w[:, cut], gpu="A100"))
        assert same(batch[i], product(x[i], W[i].bfloat16(), gpu="A100"))
        if cut.start < cut.stop:
            assert same(by_k[i], product(x[0, :, cut], w[cut], gpu="A100"))
    assert not by_k[1].any()
    assert not columns[:, 65:].any()


def test_an_expert_keeps_its_role_whoever_else_has_rows() -> None:
    """Delayed scaling of a mixture of experts, whose groups change from step to step."""
    seen: list[str] = []

    class Scaling:
        def scale(self, role: str, tensor: torch.Tensor) -> float:
            seen.append(role)
            return 1.0

    for ends in (ENDS, [0, 3, 70]):
        with emulate("H100", "e4m3", scaling=Scaling()):
            functional.grouped_mm(X, W, offs=torch.tensor(ends, dtype=torch.int32))
    numbers = [role.removeprefix(" forward ") for role in seen]
    assert numbers == ["0 a", "0 b", "0.2 a", "0.2 b", "0.1 a", "0.1 b", "0.2 a", "0.2 b"]


class Experts(nn.Module):
    """A mixture of experts' weights in one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(W.mT.contiguous())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.grouped_mm(x, self.weight.mT, offs=OFFS)


def test_experts_train_by_a_recipe() -> None:
    """Each expert's three products in MXFP8, every operand quantised along the K of its product."""
    experts, x, g = Experts(), X.clone().requires_grad_(), random(70, 24, seed=4)
    with emulate("B200", recipe=mxfp8(scope="all")):
        y = experts(x)
    y.backward(g)
    want, grad_x, grad_w = torch.zeros(70, 24), torch.zeros(70, 72), torch.zeros(3, 24, 72)
    scheme = scaled.get_scheme("mxfp8_e4m3", rule="rceil", variant="te")

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        p, q = scaled.quantize(a.numpy(), scheme), scaled.quantize(b.numpy(), scheme, 0)
        sides = {"scale_a": p.scale_values(), "scale_b": q.scale_values()}
        return torch.from_numpy(matmul(p.elements(), q.elements(), gpu="B200", inputs="mxfp8_e4m3", **sides))

    for i, cut in enumerate(PARTS):
        if cut.start < cut.stop:
            want[cut] = multiply(X[cut], W[i])
            grad_x[cut] = multiply(g[cut], W[i].mT)
            grad_w[i] = multiply(g[cut].mT, X[cut])
    assert same(y, want)
    assert same(x.grad, grad_x)
    assert same(experts.weight.grad, grad_w)


@pytest.mark.parametrize("name", ["fp8_row", "mxfp8_e4m3", "nvfp4"])
@pytest.mark.parametrize("by_k", [False, True])
@pytest.mark.parametrize("listed", [False, True])
def test_scaled_products_of_groups(name: str, by_k: bool, listed: bool) -> None:
    """Groups of rows or of k; block scales of each group in tiles of its own, one after the other."""
    gpu, inputs = ("H100", "e4m3") if name == "fp8_row" else ("B200", name)
    cuts = [slice(0, 64), slice(64, 64), slice(64, 192)]
    left = [A[:, cut] if by_k else A[cut, :192] for cut in cuts]
    right = [B[:, cut] if by_k else B[:, 64 * i : 64 * i + 192] for i, cut in enumerate(cuts)]
    if not by_k:
        left[2] = A[64:, :192]
    a, b = ([scaled.quantize(x.numpy(), name) for x in side] for side in (left, right))
    pack = pairs if name == "nvfp4" else fp8
    along = 1 if by_k else 0
    x = pack(np.concatenate([q.codes for q in a], along))
    y = pack(np.concatenate([q.codes for q in b], 1)).t() if by_k else torch.stack([pack(q.codes).t() for q in b])
    dtype = {"mxfp8_e4m3": torch.float8_e8m0fnu, "nvfp4": E4M3}.get(name)
    if dtype is None:
        scales = [
            torch.from_numpy(np.concatenate([np.resize(q.scales, len(q.codes)) for q in side])) for side in (a, b)
        ]
        scales[1] = scales[1] if by_k else scales[1].reshape(3, N)
    else:
        scales = [fp8(np.concatenate([q.packed().scales for q in side]), dtype) for side in (a, b)]
        scales = [scales[0].reshape(-1, 4), scales[1].reshape(-1, 4) if by_k else scales[1].reshape(3, -1)]
    ends = torch.tensor([cut.stop for cut in cuts[:2]] + [192 if by_k else M], dtype=torch.int32)
    kinds = {
        "fp8_row": ScalingType.RowWise,
        "mxfp8_e4m3": ScalingType.BlockWise1x32,
        "nvfp4": ScalingType.BlockWise1x16,
    }

    def run() -> torch.Tensor:
        if not listed:
            return torch._scaled_grouped_mm(x, y, *scales, offs=ends, use_fast_accum=True)
        return functional.scaled_grouped_mm(
            x, y, scales[0], kinds[name], scales[1], kinds[name], TILES, TILES, offs=ends, use_fast_accum=True
        )

    with emulate(gpu, "fp16"):
        if name == "nvfp4" and by_k:
            refuses(lambda: run(), "float4_e2m1fn_x2 in groups of k is not emulated")
            return
        got = run()
    for i, (p, q) in enumerate(zip(a, b, strict=True)):
        if p.codes.size == 0:
            assert not by_k or not got[i].any()
            continue
        into = got[i] if by_k else got[:64] if i == 0 else got[64:]
        if name == "fp8_row":
            want = matmul(p.elements(), q.elements().T, gpu=gpu, inputs=inputs) * p.scales * q.scales.T
        else:
            sides = {"scale_a": p.scale_values(), "scale_b": q.scale_values().T}
            want = matmul(p.elements(), q.elements().T, gpu=gpu, inputs=inputs, **sides)
        assert same(into, bf16(want))


def test_the_fallback_of_transformers_is_a_product_of_groups() -> None:
    """Where it takes no ``_grouped_mm``, transformers has an operation of its own with products inside."""
    with ExitStack() as undo:  # the library, imported later, defines it itself
        if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
            library = undo.enter_context(torch.library._scoped_library("transformers", "FRAGMENT"))
            library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
            library.impl("grouped_mm_fallback", lambda x, w, offs: torch.zeros(70, 24), "CPU")
        with emulate("H100", "fp16"):
            got = torch.ops.transformers.grouped_mm_fallback(X, W, OFFS)
            assert same(got, functional.grouped_mm(X, W, offs=OFFS))


# --- torchao, unmodified ------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_torchao_trains_in_the_units_bits(recipe: str) -> None:
    """Three products of its Float8Linear, by its own casts and this test's route over tensorcore."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(96, 48, bias=False)).bfloat16()
    weight = net[0].weight.detach().clone()
    net = convert_to_float8_training(net, config=Float8LinearConfig.from_recipe_name(recipe))
    x, g = random(32, 96).bfloat16(), random(32, 48, seed=7).bfloat16()
    given = x.clone().requires_grad_()
    with emulate("H100", "fp16") as run:
        y = net(given)
    y.backward(g)
    assert [row.operation for row in run.report().rows] == ["_scaled_mm"] * 3

    def quantize(t: torch.Tensor, element: str = "") -> scaled.Scaled:
        name = "fp8_row" if recipe == "rowwise" else f"fp8_tensor{element}"
        return scaled.quantize(t.float().numpy(), name, variant="torchao", rule="pow2" if recipe == "rowwise" else None)

    def multiply(a: scaled.Scaled, b: scaled.Scaled, fast: bool) -> torch.Tensor:
        names = a.scheme.element.name, b.scheme.element.name
        plan = None if fast else Plan(promote=128)
        sums = matmul(a.elements(), b.elements().T, gpu="H100", inputs=names, plan=plan)
        if recipe == "rowwise":
            return bf16(sums * a.scales * b.scales.T)
        return bf16(sums * (a.scales.reshape(()) * b.scales.reshape(())))

    element = "" if recipe == "rowwise" else "_e5m2"
    assert same(y, multiply(quantize(x), quantize(weight), True))
    assert same(given.grad, multiply(quantize(g, element), quantize(weight.t()), False))
    assert same(net[0].weight.grad, multiply(quantize(g.t(), element), quantize(x.t()), False))


@pytest.mark.filterwarnings("ignore")
def test_torchaos_mx_training_in_the_units_bits() -> None:
    """Its cast and its swizzled scales, forward and backward, each operand quantised along the K of its product."""
    from torchao.prototype.moe_training.mxfp8_linear import mx_mm
    from torchao.prototype.mx_formats import config
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    x, w, g = (random(*shape, seed=i).bfloat16() for i, shape in enumerate([(64, 96), (160, 96), (64, 160)]))
    given, weight = x.clone().requires_grad_(), w.clone().requires_grad_()
    casts = config.MXFP8Dim0CastKernelChoice.TORCH, config.MXFP8Dim1CastKernelChoice.TORCH
    rule = config.ScaleCalculationMode.FLOOR
    with emulate("B200", "fp16") as run:
        y = mx_mm.apply(given, weight, E4M3, E4M3, E4M3, 32, KernelPreference.AUTO, *casts, rule, False)
    y.backward(g)
    assert [row.operation for row in run.report().rows] == ["_scaled_mm"] * 3

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        p, q = (scaled.quantize(t.float().numpy(), "mxfp8_e4m3") for t in (a, b))
        sides = {"scale_a": p.scale_values(), "scale_b": q.scale_values().T}
        return bf16(matmul(p.elements(), q.elements().T, gpu="B200", inputs="mxfp8_e4m3", **sides))

    assert same(y, multiply(x, w))
    assert same(given.grad, multiply(g, w.t()))
    assert same(weight.grad, multiply(g.t(), x.t()))


@pytest.mark.filterwarnings("ignore")
def test_torchaos_nvfp4_linear_in_the_units_bits() -> None:
    """Weights with the scale of their tensor, which torchao multiplies by itself, after the result is stored."""
    from torchao.prototype.mx_formats import nvfp4_tensor as theirs

    x, w = random(32, 96).bfloat16(), random(64, 96, seed=1).bfloat16()
    whole = theirs.per_tensor_amax_to_scale(w.abs().max())
    how = theirs.QuantizeTensorToNVFP4Kwargs(is_swizzled_scales=True)
    weight = theirs.NVFP4Tensor.to_nvfp4(w, 16, whole, is_swizzled_scales=True, act_quant_kwargs=how)
    with emulate("B200", "fp16") as run:
        y = functional.linear(x, weight, BIAS.repeat(2)[:64])
    assert [row.operation for row in run.report().rows] == ["_scaled_mm"]
    a = scaled.quantize(x.float().numpy(), scaled.get_scheme("nvfp4", variant="torchao", tensor=""))
    b = scaled.quantize(w.float().numpy(), "nvfp4", variant="torchao")
    sides = {"scale_a": a.scale_values(), "scale_b": b.scale_values().T}
    sums = bf16(matmul(a.elements(), b.elements().T, gpu="B200", inputs="nvfp4", **sides))
    assert same(y, sums * whole.bfloat16() + BIAS.repeat(2)[:64])


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: torch._scaled_mm(A, B.t(), torch.ones(()), torch.ones(())), "_scaled_mm of torch.float32 does not exist"),
    (
        lambda: torch._scaled_mm(A.to(E4M3), B.to(E4M3).t(), torch.ones(3, 1), torch.ones(1, N)),
        r"with scales \(3, 1\) of torch.float32 and \(1, 48\) .*: torch takes one each, \(136, 1\) and \(1, 48\)",
    ),
    (
        lambda: torch._scaled_mm(A.to(E4M3), B.to(E4M3).t(), *[torch.ones(8, dtype=torch.float8_e8m0fnu)] * 2),
        r"scales of 136 rows of 320 in blocks of 32 are 256 x 12 of torch.float8_e8m0fnu, in tiles .*given: 8",
    ),
    (
        lambda: functional.scaled_mm(
            A.to(E4M3), B.to(E4M3).t(), torch.ones(M, 1), ScalingType.RowWise, torch.ones(()), ScalingType.TensorWise
        ),
        "scales of different kinds does not exist; A and B share theirs",
    ),
    (
        lambda: functional.scaled_mm(
            A.to(E4M3), B.to(E4M3).t(), *[torch.ones(8).to(E4M3), ScalingType.BlockWise1x32] * 2, PLAIN, PLAIN
        ),
        "block scales lie in tiles, SwizzleType.SWIZZLE_32_4_4",
    ),
    (lambda: functional.grouped_mm(X, W), "offs= says where groups end in an operand of two dimensions"),
    (
        lambda: functional.grouped_mm(X, W, offs=torch.tensor([3, 2, 1], dtype=torch.int32)),
        r"_grouped_mm of \(70, 72\) and \(3, 72, 24\) with groups that end at \[3, 2, 1\] does not exist",
    ),
    (lambda: functional.grouped_mm(X, W.bfloat16(), offs=OFFS), "tensors of one dtype; cast one of them"),
    (lambda: functional.grouped_mm(X.long(), W.long(), offs=OFFS), r"_grouped_mm of int64 is not emulated"),
]


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_what_does_not_exist_says_so(call: Callable[[], object], text: str) -> None:
    with emulate("B200", "fp16"), pytest.raises(LabError, match=text):
        call()
