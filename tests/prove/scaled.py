"""Part ``scaled``: scaled quantisation as other libraries compute it, on values of every regime.

torchao is the installed one. microxcaling, Transformer Engine, DeepGEMM and torchao's development version are not to be
had as packages for a CPU: what they compute is written down here a second time, from their sources, and on ml_dtypes'
casts. Each difference that :func:`excused` names has a test in tests/test_divergences.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from fplab import scaled
from fplab.scaled import SCHEMES, Scheme

from .shares import Part, Share, demand_same, nan_alike

Array = np.ndarray[Any, Any]
f32 = np.float32
Route = Callable[[Array, Scheme], tuple[Array, Array]]
REGIMES = ("normal", "near powers of two", "every exponent", "every pattern", "specials")
TYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn, "e2m1": ml_dtypes.float4_e2m1fn,
}  # fmt: skip
MX = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4")
LARGEST = np.finfo(f32).max


def given(regime: str, n: int) -> Array:
    """A matrix of 512 columns."""
    rng = np.random.default_rng([n, REGIMES.index(regime)])
    x = rng.standard_normal(n, f32)
    if regime == "near powers of two":
        x = (np.exp2(rng.integers(-15, 16, n)) * rng.choice([1, 7, 1.75, 3, 1.5, 0.75, -1.25], n)).astype(f32)
        x = (x.view(np.uint32) + rng.integers(-1, 2, n).astype(np.uint32)).view(f32)
    if regime == "every exponent":  # in a block alike
        x = (x.reshape(-1, 64) * np.exp2(rng.integers(-150, 126, (n // 64, 1)))).astype(f32).reshape(-1)
    if regime == "every pattern":
        x = (np.random.Philox(n).random_raw(n) >> np.uint64(32)).astype(np.uint32).view(f32)
        x = np.where(np.isfinite(x), x, f32(0))
    if regime == "specials":
        x[::401], x[7::997], x[3::31], x[64:96], x[1024:1536] = np.nan, np.inf, -0.0, 0, 0
    return x.reshape(-1, 512)


def blocks(x: Array, high: int, wide: int) -> Array:
    """(block rows, high, block columns, wide)."""
    return x.reshape(x.shape[0] // high, high, x.shape[1] // wide, wide)


def cast(y: Array, scheme: Scheme) -> Array:
    """Codes by ml_dtypes, saturating; of a NaN the format's, or 0."""
    most = f32(scheme.element.max)
    codes = np.clip(np.nan_to_num(y, nan=0.0, posinf=most, neginf=-most), -most, most).astype(
        TYPES[scheme.element.name]
    )
    return np.where(np.isnan(y), scheme.element.nan_code or 0, codes.view(np.uint8)).astype(np.uint8)


def bits(x: Array) -> Array:
    return x.view(np.uint32).astype(np.int64)


# --- what libraries compute: codes and scales of a matrix ---------------------------------------------------------
def torchao_main(x: Array, scheme: Scheme) -> tuple[Array, Array]:
    """torchao's MX cast of late 2026, as its source reads."""
    parts = blocks(x, 1, scheme.block[1])
    a, e = np.abs(parts).max(-1, keepdims=True), scheme.element
    t = a
    if scheme.rule == "rceil":
        t = a * (f32(1) / f32(e.max))
        field = bits(t) >> 23
        fraction = bits(t) & 0x7FFFFF
        code = field + np.where(field == 0, fraction > 0x400000, fraction != 0)
    else:
        if scheme.rule == "even":
            t = ((bits(a) + (1 << (22 - e.fraction_bits))) & 0x1FF800000).astype(np.uint32).view(f32)
            t = np.where(np.isnan(a), a, t)
        up = (bits(t) & 0x7FFFFF > 0) if scheme.rule == "ceil" else 0
        code = np.clip((bits(t) >> 23) + up - e.emax, 0, 255)
    code = np.where(np.isfinite(t), code, 255)
    inverse = np.where(code == 255, f32(np.nan), np.exp2(127.0 - code)).astype(f32)
    return cast(parts * inverse, scheme).reshape(x.shape), code.reshape(x.shape[0], -1).astype(np.uint8)


def te_mx(x: Array, scheme: Scheme) -> tuple[Array, Array]:
    """Transformer Engine's MX cast: maxima by fmaxf, exponents by float_to_e8m0, factors by exp2f_rcp."""
    parts = blocks(x, 1, scheme.block[1])
    t = np.fmax.reduce(np.abs(parts), -1, keepdims=True, initial=0) * (f32(1) / f32(scheme.element.max))
    field, fraction = bits(t) >> 23, bits(t) & 0x7FFFFF
    code = field + ((fraction > 0) & (field != 254) & ~((field == 0) & (fraction <= 0x400000)))
    code = np.where(np.isinf(t), 254, code)
    inverse = np.where(code == 0, f32(1), ((254 - code) << 23).astype(np.uint32).view(f32))
    return cast(parts * inverse, scheme).reshape(x.shape), code.reshape(x.shape[0], -1).astype(np.uint8)


def te_nvfp4(x: Array, scheme: Scheme) -> tuple[Array, Array]:
    """Transformer Engine's reference quantiser for NVFP4: of the tensor or of rows, in rows or squares of 16."""
    high, wide = scheme.block
    parts = blocks(x, high, wide)
    a = np.abs(parts).max((1, 3), keepdims=True)
    amax = np.abs(x).max(1).reshape(-1, 1, 1, 1) if scheme.tensor == "row" else np.abs(x).max()
    g = np.minimum(f32(2688) / amax, LARGEST)
    g = np.where(g == 0, f32(1), g)
    d = np.clip(np.minimum(a * (g * (f32(1) / f32(6))), LARGEST), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    encode = np.minimum(f32(1) / (d.astype(f32) * (f32(1) / g)), LARGEST)
    y = parts * encode
    codes = cast(np.where(y == 0, f32(0), y), scheme).reshape(x.shape)
    return codes, d.view(np.uint8).reshape(d.shape[0], -1)


def te_4over6(x: Array, scheme: Scheme, fast: bool = False) -> tuple[Array, Array]:
    """Its reference for 4 over 6; ``fast``: with errors in units of the second scale (err_use_fast_math)."""
    high, wide = scheme.block
    parts = blocks(x, high, wide)
    amax = np.abs(x).max(1).reshape(-1, 1, 1, 1) if scheme.tensor == "row" else np.abs(x).max()
    g = np.minimum(f32(256 * 6) / amax, LARGEST)
    g = np.where(g == 0, f32(1), g)
    base = np.abs(parts).max((1, 3), keepdims=True) / f32(6) * g
    found = []
    for t in (base, base * f32(1.5)):
        d = np.clip(t, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        y = parts * np.minimum(f32(1) / (d.astype(f32) * (f32(1) / g)), LARGEST)
        codes = cast(np.where(y == 0, f32(0), y), scheme)
        y = codes.view(ml_dtypes.float4_e2m1fn).astype(f32) * d.astype(f32)
        differences = y - parts * g if fast else y * amax / f32(256 * 6) - parts
        differences = differences**2 if scheme.rule == "4over6_mse" else np.abs(differences)
        lost = np.zeros(parts.shape[:3], f32)
        for i in range(wide):
            lost += differences[..., i]
        while lost.shape[1] > 1:
            lost = lost[:, : lost.shape[1] // 2] + lost[:, lost.shape[1] // 2 :]
        found.append((codes, d.view(np.uint8), lost[..., None]))
    (six, of_six, lost_by_six), (four, of_four, lost_by_four) = found
    less = lost_by_four < lost_by_six
    return np.where(less, four, six).reshape(x.shape), np.where(less, of_four, of_six).reshape(len(parts), -1)


def te_fp8(x: Array, scheme: Scheme) -> tuple[Array, Array]:
    """Transformer Engine's compute_scale_from_amax, for a tensor, in rows of 128 or squares."""
    high, wide = scheme.block if scheme.block != "tensor" else x.shape
    parts = blocks(x, high, wide)
    a = np.abs(parts).max((1, 3), keepdims=True)
    scale = np.minimum(f32(scheme.element.max) / a, LARGEST)
    if scheme.rule == "pow2":
        scale = (scale.view(np.uint32) & np.uint32(0xFF800000)).view(f32)
    scale = np.where((a == 0) | ~np.isfinite(a), f32(1), scale)
    return cast(parts * scale, scheme).reshape(x.shape), (f32(1) / scale).reshape(scale.shape[0], -1)


def deepgemm(x: Array, scheme: Scheme) -> tuple[Array, Array]:
    """DeepGEMM's per_token_cast_to_fp8 and per_block_cast_to_fp8."""
    parts = blocks(x, *scheme.block)
    scale = np.maximum(np.abs(parts).max((1, 3), keepdims=True), f32(1e-4)) / f32(448)
    if scheme.rule == "pow2":
        up = (bits(scale) >> 23) + (bits(scale) & 0x7FFFFF != 0)
        scale = np.where(np.isfinite(scale), (np.clip(up, 1, 254) << 23).astype(np.uint32).view(f32), scale)
    return cast(parts * (f32(1) / scale), scheme).reshape(x.shape), scale.reshape(scale.shape[0], -1)


def torchao_mx(x: Array, scheme: Scheme) -> tuple[Array, Array]:
    """The installed torchao's to_mx."""
    import torch
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx

    names = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.float4_e2m1fn_x2}
    kind = names.get(scheme.element.name, f"fp6_{scheme.element.name}")
    scales, codes = to_mx(torch.from_numpy(x), kind, 32, ScaleCalculationMode[scheme.rule.upper()])
    return halves(codes.view(torch.uint8).numpy(), x.shape), scales.view(torch.uint8).numpy()


def torchao_nvfp4(x: Array, scheme: Scheme) -> tuple[Array, Array]:
    """The installed torchao's nvfp4_quantize, with the scale of the tensor or without."""
    import torch
    from torchao.prototype.mx_formats import nvfp4_tensor as theirs

    t = torch.from_numpy(x)
    second = theirs.per_tensor_amax_to_scale(t.abs().max()) if scheme.tensor else None
    scales, codes = theirs.nvfp4_quantize(t, 16, second)
    return halves(codes.numpy(), x.shape), scales.view(torch.uint8).numpy()


def torchao_fp8(x: Array, scheme: Scheme) -> tuple[Array, Array]:
    """The installed torchao's tensor_to_scale and to_fp8_saturated, for the tensor or rows."""
    import torch
    from torchao.float8 import float8_utils as theirs
    from torchao.float8.config import ScalingGranularity as Along

    t, kind = torch.from_numpy(x), {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[scheme.element.name]
    along = Along.AXISWISE if scheme.block == "row" else Along.TENSORWISE
    scale = theirs.tensor_to_scale(
        t, kind, scaling_granularity=along, axiswise_dim=-1 if scheme.block == "row" else None,
        round_scales_to_power_of_2=scheme.rule == "pow2",
    )  # fmt: skip
    codes = theirs.to_fp8_saturated(t * scale, kind).view(torch.uint8).numpy()
    return codes, scale.reciprocal().numpy().reshape(-1, 1)


def halves(codes: Array, shape: tuple[int, ...]) -> Array:
    """Codes of four bits one a byte; others as they are."""
    both = np.stack([codes & 15, codes >> 4], -1) if codes.size < np.prod(shape) else codes
    return both.reshape(shape)


def microxcaling(x: Array, scheme: Scheme) -> Array:
    """Values by microxcaling's _quantize_mx with round="even": its shared exponent, private exponents and rounding."""
    import torch

    parts, e = torch.from_numpy(blocks(x, 1, 32)), scheme.element
    a = parts.abs().amax(-1, keepdim=True)
    shared = torch.floor(torch.log2(a + 2.0**-126 * (a == 0))) - e.emax
    shared[shared > 127] = torch.nan
    shared = shared.clamp(min=-127)
    y = parts / 2**shared
    private = torch.floor(torch.log2(y.abs() + (y == 0))).clamp(min=e.emin)
    steps = (y / 2**private * 2**e.fraction_bits).abs()
    whole = torch.floor(steps + 0.5) - ((steps - 0.5) % 2 == 0).float()
    y = (torch.sign(y) * whole / 2**e.fraction_bits * 2**private).clamp(-e.max, e.max)
    return (y * 2**shared).numpy().reshape(x.shape)


# --- the differences that have names ------------------------------------------------------------------------------
def excused(route: Route, x: Array, scheme: Scheme, q: scaled.Scaled, theirs: Array) -> tuple[Array, Array]:
    """Which scales may differ, their codes with them, and which blocks have codes that mean nothing.

    The installed torchao: a block with an infinity; a scale of code 0; EVEN just below 2^128; and wherever its
    floor(log2) or ceil(log2) in FP32 is taken next to a power of two. Codes mean nothing in a block of NaNs.
    """
    high, wide = (x.shape[0] // q.scales.shape[0], x.shape[1] // q.scales.shape[1])
    parts = blocks(x, high, wide)
    a = np.abs(parts).max((1, 3))
    other = np.zeros(a.shape, bool)
    if route is torchao_mx:
        other = np.isinf(a) | (q.scales == 0) | ((scheme.rule == "even") & (q.scales == 255))
        if scheme.rule == "rceil":
            other |= next_to_power(a / f32(scheme.element.max))
    elif route is torchao_fp8 and scheme.rule == "pow2":
        other = next_to_power(f32(scheme.element.max) / a)
    lost = np.isnan(q.factors()) | np.isnan(theirs if scheme.kind == "fp32" else a)
    return other, other | lost | (~np.isfinite(a) & (scheme.kind == "power") & (not scheme.element.has_nan))


def next_to_power(x: Array) -> Array:
    """Where FP32's log2 may round to the next integer."""
    fraction = bits(x) & 0x7FFFFF
    return (fraction < 64) | (fraction > 0x7FFFC0)


def compare_codes(route: Route, scheme: Scheme, n: int, regimes: tuple[str, ...]) -> int:
    """Codes and scales of one route; a NaN among the elements has a code of its own in each library."""
    count = 0
    for regime in regimes:
        x = given(regime, n)
        q = scaled.quantize(x, scheme)
        with np.errstate(all="ignore"):
            codes, scales = route(x, scheme)
            scales_differ, codes_differ = excused(route, x, scheme, q, scales)
        what = f"{scheme.name}, {scheme.rule}, {scheme.variant}, {route.__name__}, {regime}"
        want = np.where(scales_differ, q.scales, nan_alike(q.scales, scales))
        demand_same(q.scales.reshape(-1), want.reshape(-1), f"scales of {what}")
        high, wide = (x.shape[0] // q.scales.shape[0], x.shape[1] // q.scales.shape[1])
        differ = np.repeat(np.repeat(codes_differ, high, 0), wide, 1) | (np.isnan(x) & scheme.element.has_nan)
        same = np.where(differ, q.codes, codes)
        count += demand_same(q.codes.reshape(-1), same.reshape(-1), f"codes of {what}", x.reshape(-1))
    return count


def compare_values(scheme: Scheme, n: int, regimes: tuple[str, ...]) -> int:
    """Values of microxcaling, but where its faults are."""
    count = 0
    for regime in regimes:
        x = given(regime, n)
        with np.errstate(all="ignore"):
            theirs, q = microxcaling(x, scheme), scaled.quantize(x, scheme)
            got = q.dequantize()
            parts = blocks(x, 1, 32)
            a = np.abs(parts).max(-1, keepdims=True)
            below = (bits(a) & 0x7FFFFF) > 0x7FFFFF - 16  # log2 in FP32 of the largest rounds up to an integer
            step = q.factors().reshape(a.shape) * f32(scheme.element.smallest_subnormal)
            half = np.abs(parts) == np.nextafter(step / f32(2), f32(0))  # + 0.5 rounds up to 1
        excused = (np.broadcast_to(below, parts.shape) | half).reshape(x.shape)
        theirs = np.where(excused, got, nan_alike(got, theirs)) + f32(0)  # and it has no -0
        count += demand_same((got + f32(0)).reshape(-1), theirs.reshape(-1), f"{scheme.name}, {regime}", x.reshape(-1))
    return count


def shares(quick: bool) -> list[Share]:
    """Each library with each of its rules; quick: few values of every regime."""
    n = 1 << (16 if quick else 20)
    found: list[Share] = []

    def add(library: str, route: Route, schemes: list[Scheme]) -> None:
        for scheme in schemes:
            finite = scheme.kind != "power" and scheme.variant == "torchao"
            regimes = REGIMES[:-1] if finite else REGIMES
            what = f"{scheme.name} {scheme.block if scheme.kind != 'power' else scheme.rule}"
            found.append(Share(f"{what}: codes and scales", library, compare_codes, (route, scheme, n, regimes)))

    base = [SCHEMES[name] for name in MX]
    every = [replace(scheme, rule=rule) for scheme in base for rule in scaled.RULES["power"]]
    nvfp4, block, row, tensor, e5m2 = (
        SCHEMES[name] for name in ("nvfp4", "fp8_block", "fp8_row", "fp8_tensor", "fp8_tensor_e5m2")
    )
    square = (128, 128)
    add("torchao 0.18", torchao_mx, every)
    add("torchao 0.18", torchao_nvfp4, [replace(nvfp4, variant="torchao", tensor=t) for t in ("tensor", "")])
    fp8 = [replace(s, variant="torchao", rule=r) for s in (row, tensor, e5m2) for r in ("divide", "pow2")]
    add("torchao 0.18", torchao_fp8, fp8)
    add("torchao as its source reads", torchao_main, every)
    te = [replace(scheme, rule="rceil", variant="te") for scheme in base]
    add("Transformer Engine as its source reads", te_mx, te)
    add("Transformer Engine as its source reads", te_nvfp4,
        [nvfp4, replace(nvfp4, block=(16, 16)), replace(nvfp4, tensor="row")])  # fmt: skip
    chosen = [replace(nvfp4, rule=r, **c) for r in ("4over6", "4over6_mse") for c in ({}, {"block": (16, 16)})]
    add("Transformer Engine as its source reads", te_4over6, [*chosen, replace(nvfp4, rule="4over6", tensor="row")])
    both = [replace(s, rule=r) for s in (block, replace(block, block=square), tensor) for r in ("divide", "pow2")]
    add("Transformer Engine as its source reads", te_fp8, [*both, e5m2])
    deep = [replace(block, variant="deepgemm", block=b, rule=r) for b in ((1, 128), square) for r in ("divide", "pow2")]
    add("DeepGEMM as its source reads", deepgemm, deep)
    library = "microxcaling as its source reads, round=even"
    found += [Share(f"{s.name} floor: values", library, compare_values, (s, n, REGIMES)) for s in base]
    return found


PART = Part("scaled", "block scales as the libraries compute them", shares)
