"""Scaled quantisation as its definitions read, on exact numbers: slow, and shared with the kernels in nothing.

Every line that a library computes in FP32 is one operation here, rounded once, in that library's order. A matrix is
quantised along its rows: other axes and shapes are the array's affair, not the scheme's.
"""

import math
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from .. import exact
from ..exact import NAN, Exact
from ..formats import Overflow, Rounding, get
from .schemes import Scheme

Array = np.ndarray[Any, Any]
LARGEST = exact.of((2 - Fraction(1, 2**23)) * 2**127)
ONE, ZERO = exact.of(Fraction(1)), exact.of(Fraction(0))


def number(x: float) -> Exact:
    """An exact number of a float."""
    return exact.from_float(x)


def rounded(x: Exact, fmt: str) -> Exact:
    """Rounded to a format, to nearest."""
    return exact.decode(exact.round_to(x, fmt)[0], fmt)


fp32 = partial(rounded, fmt="fp32")


def times(a: Exact, b: Exact) -> Exact:
    """An FP32 product."""
    return fp32(exact.mul(a, b)[0])


def over(a: Exact, b: Exact) -> Exact:
    """An FP32 quotient."""
    return fp32(exact.div(a, b)[0])


def less(a: Exact, b: Exact) -> bool:
    """Whether one magnitude is below another; never for a NaN."""
    if a.is_nan or b.is_nan or a.kind == "inf":
        return False
    return b.kind == "inf" or a.magnitude < b.magnitude


def largest(values: list[Exact], scheme: Scheme) -> Exact:
    """The largest magnitude: NaN where there is one, unless the variant leaves NaNs out."""
    amax = ZERO
    for v in values:
        if v.is_nan and not (scheme.kind == "power" and scheme.variant == "te"):
            return NAN
        if not v.is_nan and less(amax, v):
            amax = Exact(False, v.magnitude, v.kind)
    return amax


def power(a: Exact, scheme: Scheme) -> tuple[int, Exact]:
    """E8M0: a power of two by one of four rules."""
    te, element = scheme.variant == "te", scheme.element
    t = times(a, over(ONE, number(element.max))) if scheme.rule == "rceil" else a
    code = 0
    if t.is_nan or t.kind == "inf":
        code = 255 if t.is_nan or not te else 254
    elif not t.is_zero:
        e = exact.floor_log2(t.magnitude)
        significand = t.magnitude / Fraction(2) ** e
        if scheme.rule == "even":
            steps = math.floor(significand * 2**element.fraction_bits + Fraction(1, 2))
            significand = Fraction(steps, 2**element.fraction_bits)
        if (scheme.rule in ("ceil", "rceil") and significand > 1) or significand == 2:
            e += 1
        code = min(max(e - (0 if scheme.rule == "rceil" else element.emax) + 127, 0), 254)
        if scheme.rule == "even" and e == 128 and not te:
            code = 255
    if code == 255:
        return code, NAN
    if te and code in (0, 254):
        return code, ZERO if code else ONE
    return code, exact.of(Fraction(2) ** (127 - code))


def narrow(a: Exact, scheme: Scheme, amax: Exact | None) -> tuple[int, Exact]:
    """Scales of few bits, in units of one of the tensor."""
    most, element = number(scheme.scale.max), number(scheme.element.max)
    if scheme.variant == "te":
        g = encoder(scheme, amax)
        return encoding(times(a, times(g, over(ONE, element))), g, scheme)
    s, least = ONE if amax is None else over(amax, number(scheme.top)), number(scheme.scale.smallest_normal)
    t = over(over(a, element), s)
    code, value = narrowed(least if less(t, least) else most if less(most, t) else t, scheme)
    return code, over(over(ONE, s), value)


def encoder(scheme: Scheme, amax: Exact | None) -> Exact:
    """Transformer Engine's scale of the tensor: what maps it onto scales of blocks times elements."""
    g = ONE if amax is None else over(number(scheme.top), amax)
    g = LARGEST if less(LARGEST, g) else g
    return ONE if g.is_zero or (amax is not None and amax.is_zero) else g


def encoding(t: Exact, g: Exact, scheme: Scheme) -> tuple[int, Exact]:
    """Transformer Engine's code of a block's scale, and what its elements are multiplied by."""
    most = number(scheme.scale.max)
    code, value = narrowed(most if less(most, t) else t, scheme)
    factor = over(ONE, times(value, over(ONE, g)))
    return code, LARGEST if less(LARGEST, factor) else factor


def four_over_six(a: Exact, rows: list[list[Exact]], scheme: Scheme, amax: Exact | None) -> tuple[int, Exact]:
    """Two scales for the elements of a block: that by which less is lost, and at a tie that of the 6."""
    g, top = encoder(scheme, amax), number(scheme.top)
    base = times(over(a, number(scheme.element.max)), g)
    of_six, of_four = (encoding(times(base, number(stretch)), g, scheme) for stretch in (1.0, 1.5))
    lost = []
    for code, factor in (of_six, of_four):
        sums = []
        for row in rows:
            total = ZERO
            for v in row:
                y = exact.decode(element_code(v, factor, scheme, Rounding.RNE, 0), scheme.element)
                scale = times(times(y, exact.decode(code, scheme.scale)), top if amax is None else amax)
                d = fp32(exact.sub(over(scale, top), v)[0])
                d = times(d, d) if scheme.rule.endswith("mse") else Exact(False, d.magnitude, d.kind)
                total = fp32(exact.add(total, d)[0])
            sums.append(total)
        sums += [ZERO] * ((1 << (len(sums) - 1).bit_length()) - len(sums))
        while len(sums) > 1:  # the rows of a block as a warp adds them: the upper half to the lower one
            half = len(sums) // 2
            sums = [fp32(exact.add(sums[i], sums[i + half])[0]) for i in range(half)]
        lost.append(sums[0])
    return of_four if less(lost[1], lost[0]) else of_six


def narrowed(t: Exact, scheme: Scheme) -> tuple[int, Exact]:
    """The code of a scale and its value; a NaN's is the format's, or 0."""
    if t.is_nan:
        return scheme.scale.nan_code or 0, NAN
    code = exact.round_to(t, scheme.scale)[0]
    return code, exact.decode(code, scheme.scale)


def quotient(a: Exact, scheme: Scheme, dtype: str) -> tuple[Exact, Exact]:
    """FP32 scales: what dequantises, and what quantises."""
    most = number(scheme.element.max)
    least = fp32(exact.of(Fraction({"torchao": 1e-12, "deepgemm": 1e-4}.get(scheme.variant, 0.0))))
    a = least if less(a, least) else a
    if scheme.variant == "te" and (a.is_zero or a.is_nan or a.kind == "inf"):
        return ONE, ONE
    if scheme.variant == "deepgemm":
        scale = over(a, most)
        if scheme.rule == "pow2" and scale.kind == "finite":
            e = exact.floor_log2(scale.magnitude)
            scale = exact.of(Fraction(2) ** (e + (scale.magnitude > Fraction(2) ** e)))
        return scale, over(ONE, scale)
    factor = over(most, a)
    of_blocks = scheme.variant == "te" and not isinstance(scheme.block, str)
    limit = number(get(dtype).max) if of_blocks else LARGEST
    factor = limit if factor.kind == "inf" else factor
    if scheme.rule == "pow2" and factor.kind == "finite" and not factor.is_zero:
        factor = exact.of(Fraction(2) ** exact.floor_log2(factor.magnitude))
    return over(ONE, factor), factor


def element_code(v: Exact, factor: Exact, scheme: Scheme, mode: Rounding, word: int) -> int:
    """The code of one element: an FP32 product, rounded to the element's format, saturating."""
    y = times(v, factor)
    if y.is_nan:
        return scheme.element.nan_code or 0
    if y.is_zero and scheme.kind == "narrow" and scheme.variant == "te":
        return 0
    return exact.round_to(y, scheme.element, mode, Overflow.SATURATE, word=word)[0]


def quantize(
    x: Array, scheme: Scheme, mode: Rounding = Rounding.RNE, words: Array | None = None, amax: float | None = None,
    dtype: str = "fp32",
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Codes, scales and values of a matrix (rows, k): uint8, codes or float32 (rows, blocks), and float32.

    ``words``: 32 random bits for each element; of few bits, in the top of them. ``amax``: instead of the matrix's own.
    ``dtype``: the tensor's format.
    """
    rows, k = x.shape
    high, wide = {"row": (1, k), "tensor": (rows, k)}[scheme.block] if isinstance(scheme.block, str) else scheme.block
    given = [[number(v) for v in row] for row in x.tolist()]
    codes, values = np.zeros(x.shape, np.uint8), np.zeros(x.shape, np.float32)
    scales = np.zeros((-(-rows // high), -(-k // wide)), np.float32 if scheme.kind == "fp32" else np.uint8)
    for (i, j), _ in np.ndenumerate(scales):
        own = given[i] if scheme.tensor == "row" else [v for row in given for v in row]
        second = (number(amax) if amax is not None else largest(own, scheme)) if scheme.tensor else None
        block = [(r, c) for r in range(i * high, min(rows, (i + 1) * high)) for c in range(j * wide, (j + 1) * wide)]
        block = [(r, c) for r, c in block if c < k]
        a = largest([given[r][c] for r, c in block], scheme)
        if scheme.block == "tensor" and amax is not None:
            a = number(amax)
        scale, factor = (
            power(a, scheme)
            if scheme.kind == "power"
            else quotient(a, scheme, dtype)
            if scheme.kind == "fp32"
            else four_over_six(a, [[given[r][c] for q, c in block if q == r] for r, _ in block[::wide]], scheme, second)
            if scheme.four_over_six
            else narrow(a, scheme, second)
        )
        scales[i, j] = as_float(scale) if isinstance(scale, Exact) else scale
        back = scale if isinstance(scale, Exact) else dequantizer(scale, scheme, second)
        for r, c in block:
            code = element_code(given[r][c], factor, scheme, mode, int(words[r, c]) if words is not None else 0)
            codes[r, c], values[r, c] = code, as_float(times(exact.decode(code, scheme.element), back))
    return codes, scales, values


def hadamard(x: list[float], signs: list[int], dtype: str) -> list[float]:
    """The random Hadamard transform of a block, a butterfly an FP64 operation, rounded once to ``dtype`` at the end."""
    block = [number(v if sign > 0 else -v) for v, sign in zip(x, signs, strict=True)]
    fp64 = partial(rounded, fmt="fp64")
    for bit in range(len(x).bit_length() - 1):
        pairs = [(block[i & ~(1 << bit)], block[i | 1 << bit], i >> bit & 1) for i in range(len(x))]
        block = [fp64((exact.sub if odd else exact.add)(a, b)[0]) for a, b, odd in pairs]
    factor = number(1 / math.sqrt(len(x)))
    return [as_float(rounded(fp64(exact.mul(v, factor)[0]), dtype)) for v in block]


def dequantizer(code: int, scheme: Scheme, amax: Exact | None) -> Exact:
    """What the elements of a block are multiplied by to dequantise."""
    scale = exact.decode(code, scheme.scale)
    if amax is None:
        return scale
    top = number(scheme.top)
    if scheme.variant == "torchao":
        return times(over(amax, top), scale)
    return times(times(scale, amax), over(ONE, top))


def as_float(x: Exact) -> float:
    """An FP32 number as a float."""
    if x.is_nan:
        return math.nan
    if x.kind == "inf":
        return -math.inf if x.negative else math.inf
    return math.copysign(float(x.magnitude), -1.0 if x.negative else 1.0)
