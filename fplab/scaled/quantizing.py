"""The fast way: an array as a matrix whose rows lie along the axis, and the kernels over its blocks."""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ..arrays import as_array, values
from ..errors import LabError, integer, quotes_call
from ..formats import FormatName, Rounding, get, rounding, spelt
from ..kernels import scaled as kernels
from ..kernels.rounding import MODES, stream_keys
from ..plans import seed_bits
from ..roundings import without_kernel
from ..threads import split
from .result import Scaled, axis_moved, bits_of, grid_of
from .schemes import Block, Scheme, get_scheme

Array = np.ndarray[Any, Any]
f32 = np.float32
NOTHING = np.empty(0, np.uint32)
ONE = np.ones(1, f32)
SHARE = 1 << 15  # elements of the tensor worked on at a time where they share a scale
LARGEST = float(np.finfo(f32).max)


@quotes_call
def quantize(
    x: Any,
    scheme: str | Scheme = "mxfp8",
    axis: int = -1,
    *,
    rule: str | None = None,
    variant: str | None = None,
    block: Block | None = None,
    rounding: str | Rounding = "rne",
    seed: int | None = None,
    random_bits: int = 32,
    amax: Any = None,
    dtype: FormatName | None = None,
) -> Scaled:
    """Quantise an array of any shape with a scale for each block: codes, scales, and what they stand for.

    ``x``: float32; other dtypes are rounded to it first. ``scheme``: a name of :data:`fplab.scaled.SCHEMES` or a
    :class:`Scheme`; ``rule``, ``variant`` and ``block`` replace its own. ``axis``: the dimension that blocks lie
    along, which a product will sum over; the last block of it may be short, as if zeros followed.

    ``rounding``: any, of the scaled elements, which saturate; "stochastic" needs a ``seed`` and draws ``random_bits``,
    32 or 8, for each: element i of the array with ``axis`` moved last draws word i of the seed, or byte i of all words.
    ``amax``: float32, the largest magnitude to scale by in place of the tensor's own (delayed scaling, calibration),
    or of each row, for schemes with one scale for those. ``dtype``: the tensor's format, where ``x`` has its values in
    another dtype.

    >>> from fplab import scaled
    >>> scaled.quantize([1.0, -2.0, 500.0], "mxfp8", rule="ceil").dequantize()
    array([  1.,  -2., 512.], dtype=float32)
    """
    record, mode = get_scheme(scheme, rule=rule, variant=variant, block=block), mode_of(rounding)
    most_factor = largest_factor(record, getattr(x, "dtype", None) if dtype is None else dtype)
    given = as_array(x, "x")
    axis = integer("axis", axis, -max(given.ndim, 1), max(given.ndim, 1) - 1)
    v = values(axis_moved(given.reshape(given.shape or (1,)), axis, -1))
    with np.errstate(over="ignore", invalid="ignore"):  # a signalling NaN becomes quiet
        moved = v.flat.astype(f32, copy=False).reshape(v.shape)
    k, lead = moved.shape[-1], moved.shape[:-1]
    high, wide = (1, max(k, 1)) if isinstance(record.block, str) else record.block
    if high > 1 and not lead:
        raise LabError(f"block={record.block!r} needs two dimensions; x has one.")
    most = _most(amax, moved, record)
    random = integer("random_bits", random_bits, 8, 32) if mode == MODES["stochastic"] else 32
    if random not in kernels.STOCHASTIC:
        raise LabError(f"random_bits={random} is not possible; allowed: 32, 8.")
    word = seed_bits(mode, seed)
    if mode == MODES["stochastic"] and moved.size > 1 << 32:
        raise LabError(f"x has {moved.size:,} elements, and a seed has words for 2**32 of them; quantise it in parts.")
    codes = np.empty(moved.shape, np.uint8)
    if record.block == "tensor":
        flat, into = (moved, codes) if moved.size else (np.zeros(1, f32), np.zeros(1, np.uint8))
        stack, count, rows, k, wide = flat.reshape(1, 1, -1), 1, 1, flat.size, SHARE
        known, most = most, NOTHING
    else:  # blocks of several rows do not reach from one matrix of a stack into the next
        rows = lead[-1] if high > 1 and math.prod(lead[:-1]) > 1 and lead[-1] % high else math.prod(lead)
        count, into, known = moved.size // max(rows * k, 1), codes, NOTHING
        stack = moved.reshape(count, rows, k)
    scales = np.empty((count, -(-rows // high), -(-k // wide)), np.uint32 if record.kind == "fp32" else np.uint8)
    for n, (matrix, target) in enumerate(zip(stack, into.reshape(stack.shape), strict=True)):
        where = matrix, target, scales[n], high, wide, n * rows * k
        _fill(*where, record, most_factor, mode, random, stream_keys(word, np.uint64(0)), known, most)
    if record.block == "tensor":
        scales = scales[0, 0, :1].reshape((1,) * moved.ndim)
    else:
        above = lead if high == 1 else (*lead[:-1], -(-lead[-1] // high))
        scales = scales.reshape(*above, scales.shape[-1])
    scales = scales.view(f32) if record.kind == "fp32" else scales
    second = most.view(f32).reshape((1,) * moved.ndim if most.size == 1 else (*lead, 1)) if record.tensor else None
    back = [None if part is None else axis_moved(part, -1, axis) for part in (codes, scales, second)]
    return Scaled(np.asarray(back[0]).reshape(given.shape), np.asarray(back[1]), back[2], record, axis)


def mode_of(mode: str | Rounding) -> int:
    """The number of a rounding that kernels have."""
    mode_record = rounding(mode)
    if mode_record.value not in MODES:
        raise without_kernel(mode_record)
    return MODES[mode_record.value]


def _most(amax: Any, x: Array, scheme: Scheme) -> Array:
    """The largest magnitude of the tensor or of each row, as float32 bits, where the scheme asks for it; else none."""
    if not scheme.tensor and scheme.block != "tensor":
        return NOTHING if amax is None else given_amax(amax, 0, scheme)
    if amax is not None:
        return given_amax(amax, x.size // max(x.shape[-1], 1), scheme)
    bits, skips = x.reshape(-1).view(np.uint32), rule_of(scheme).skips
    if scheme.tensor == "row":
        return np.array([kernels.maximum(row, skips) for row in bits.reshape(-1, x.shape[-1])], np.uint32)
    return np.array([max(split(lambda a, b: kernels.maximum(bits[a:b], skips), bits.size))], np.uint32)


def given_amax(amax: Any, rows: int, scheme: Scheme) -> Array:
    """Largest magnitudes that were given for a tensor of so many rows, as float32 bits."""
    if not scheme.tensor and scheme.block != "tensor":
        raise LabError(f"amax is given, and {scheme.name} has a scale for each {scheme.block}; leave it out.")
    given, each = values(amax, "amax"), scheme.tensor == "row"
    if given.flat.size not in ({1, rows} if each else {1}) or (given.flat < 0).any():
        wanted = "a number that is not negative" + (" for each row" if each else "")
        raise LabError(f"amax has shape {given.shape}; it must be {wanted}.")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(given.flat.astype(f32)).view(np.uint32)


def _fill(
    x: Array, codes: Array, scales: Array, high: int, wide: int, start: int, scheme: Scheme, most_factor: float,
    mode: int, random: int, keys: tuple[np.uint32, np.uint32], known: Array, most: Array,
) -> None:  # fmt: skip
    """Fill the codes and the scales of a matrix, by the kernel of a rounding on shares of rows or of columns."""
    rows, k = x.shape
    if high == 1 and k % wide == 0 and most.size <= 1:  # blocks that end with the row: one long row
        rows, k = 1, x.size
    kernel = kernels.STOCHASTIC[random] if mode == MODES["stochastic"] else kernels.DIRECTED
    kernel = kernels.NEAREST if mode == MODES["rne"] else kernel
    signed_zero = scheme.kind != "narrow" or scheme.variant != "te"
    element, scale = grid_of(scheme.element, random, mode, signed_zero), grid_of(scheme.scale, 32, mode, True)
    numbers = element, rule_of(scheme, most_factor), scale
    up, down = second_scale(scheme, most.view(f32)) if scheme.kind == "narrow" else (ONE, ONE)
    flat = x.reshape(-1).view(np.uint32), codes.reshape(-1), scales.reshape(-1)
    fours = np.zeros(scales.size if scheme.four_over_six else 0, np.uint8)

    def run(a: int, b: int) -> None:
        where = (0, rows, a // rows, b // rows) if rows <= high else (a // k, b // k, 0, k)
        if fours.size:
            top, squared = f32(scheme.top), scheme.rule.endswith("mse")
            amax = most.view(f32) if most.size else top * ONE
            kernels.choose_fours(flat[0], fours, k, high, wide, *where, *numbers, up, down, amax, top, squared)
        kernel(*flat, fours, k, high, wide, *where, *numbers, known, up, down, start, *keys)

    split(run, x.size, unit=rows * wide if rows <= high else high * k)


def second_scale(scheme: Scheme, amax: Array) -> tuple[Array, Array]:
    """What block maxima are multiplied (te) or divided by (torchao), and what else enters the factor of elements."""
    top = f32(scheme.top)
    with np.errstate(all="ignore"):
        if scheme.variant == "torchao":
            s = amax / top if amax.size else ONE
            return s, f32(1) / s
        g = np.minimum(top / amax, LARGEST) if amax.size else ONE
        g = np.where((amax == 0) | (g == 0), f32(1), g) if amax.size else g
        return g if scheme.four_over_six else g * (f32(1) / f32(scheme.element.max)), f32(1) / g


def largest_factor(scheme: Scheme, dtype: Any) -> float:
    """What an infinite factor of elements becomes where scales are FP32, for a tensor of a dtype."""
    narrower = scheme.variant == "te" and not isinstance(scheme.block, str) and spelt(dtype) in ("bf16", "fp16")
    return get(dtype).max if narrower else LARGEST


@lru_cache
def rule_of(scheme: Scheme, most_factor: float = LARGEST) -> kernels.Rule:
    """A rule and a variant as numbers."""
    e, te = scheme.element, scheme.variant == "te"
    up = scheme.rule in ("ceil", "rceil")
    plain = kernels.Rule(kernels.QUOTIENT, e.max, 0, 0, 0, 0, 0, 0, 0.0, 0xFFFFFFFF, most_factor, te, False)
    if scheme.kind == "power":
        return plain._replace(
            kind=kernels.POWER, multiplier=float(f32(1) / f32(e.max)) if scheme.rule == "rceil" else 1.0,
            addend=0x7FFFFF if up else 1 << (22 - e.fraction_bits) if scheme.rule == "even" else 0,
            emax=0 if scheme.rule == "rceil" else e.emax, limit=254 if scheme.rule == "even" and not te else 999,
            infinite=254 if te else 255, first=bits_of(1.0 if te else 2.0**127), last=0 if te else bits_of(2.0**-127),
            skips=te,
        )  # fmt: skip
    if scheme.kind == "narrow":
        kind = kernels.TWO_LEVEL if te else kernels.TWO_LEVEL_DIVIDED
        kind = kernels.FOUR_OVER_SIX if scheme.four_over_six else kind
        return plain._replace(kind=kind, least=scheme.scale.smallest_normal)
    return plain._replace(
        kind=kernels.QUOTIENT_DOWN if scheme.variant == "deepgemm" else kernels.QUOTIENT,
        least={"torchao": 1e-12, "deepgemm": 1e-4}.get(scheme.variant, 0.0),
        down=0xFF800000 if scheme.rule == "pow2" else 0xFFFFFFFF,
    )
