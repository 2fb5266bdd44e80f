"""Operands for single instructions, by regime, each made to answer a question about the hardware.

Every regime is a function of (draw, mma, rows) that gives codes a, b (rows, k) and c (rows,). What each is for:

* ``random``: rows of narrow to wide exponent spread, c near the products: block length, alignment bits, rounding.
* ``bits``: uniform bit patterns, subnormals, infinities and NaNs among them.
* ``cancel``: products that cancel in pairs and leave small ones: what alignment cut away.
* ``tiny``: all terms near or below the exponent floor: is it a floor of emax, or of each zero term?
* ``subnormal``: a subnormal c beside products of its size: is its exponent clamped? Are results flushed?
* ``large``: sums near and beyond the largest finite value, exceeding it inside a block too: infinity or the largest?
* ``c``: c far above or below the products, up to 40 binades.
* ``special``: zeros, infinities and NaNs with payloads among random operands: payload and sign of every NaN result.
* ``zeros``: all signs of zero, and negative sums too small for the output: the sign of a zero result.
* ``order``: every pair of positions holds M and -M, the others ones: which k are summed together, and after what.
* ``probes``: sums that tell published models apart (Fasi et al. 2021; Khattak and Mikaitis 2025; Xie et al. 2025).
* ``chain``: four instructions in a row, ``long``: many: is the accumulator between instructions what the output is?
"""

from collections.abc import Callable
from functools import cache
from itertools import combinations

import numpy as np

from .. import exact, formats, seeds
from ..formats import Format
from .instructions import Instruction
from .tiles import CODES, Codes

Triple = tuple[Codes, Codes, Codes]


class Draw:
    """Random numbers of a case's key."""

    def __init__(self, key: int) -> None:
        self._stream = seeds.stream(key)

    def words(self, *shape: int) -> np.ndarray:
        raw: np.ndarray = self._stream.random_raw(int(np.prod(shape))).reshape(shape)
        return raw

    def between(self, low: int | np.ndarray, high: int | np.ndarray, *shape: int) -> np.ndarray:
        """Integers from ``low`` to ``high``, both included; they broadcast to ``shape``."""
        span = (np.asarray(high, np.int64) - low + 1).astype(np.uint64)
        return ((self.words(*shape) >> np.uint64(20)) % span).astype(np.int64) + low

    def coins(self, *shape: int) -> np.ndarray:
        """Booleans, true half of the time."""
        return (self.words(*shape) >> np.uint64(63)).astype(bool)

    def order(self, rows: int, k: int) -> np.ndarray:
        """A random permutation of 0 ... k-1 for each row."""
        return np.argsort(self.words(rows, k), axis=1, kind="stable")


def fields(fmt: str) -> Format:
    """The format whose fields the codes have: TF32 operands are FP32 words, of which the low 13 bits are ignored."""
    return formats.get("fp32" if fmt == "tf32" else fmt)


def build(draw: Draw, fmt: str, exponent: np.ndarray, negative: np.ndarray | None = None) -> Codes:
    """Codes with these exponents, random fractions, and random signs unless given.

    Below the format's least exponent they are subnormal, down to its smallest value; above its largest they stay there.
    """
    form, shape = fields(fmt), exponent.shape
    fraction_bits, emin = form.fraction_bits, form.emin
    e = np.clip(exponent, emin - fraction_bits, form.emax)
    fraction = (draw.words(*shape) >> np.uint64(64 - fraction_bits)).astype(np.int64)
    normal = ((np.maximum(e, emin) - emin + 1) << fraction_bits) + fraction
    subnormal = ((1 << fraction_bits) + fraction) >> np.maximum(emin - e, 0)
    magnitude = np.minimum(np.where(e < emin, subnormal, normal), form.max_code)
    sign = draw.coins(*shape) if negative is None else negative
    codes: Codes = (magnitude.astype(np.uint64) + sign.astype(np.uint64) * np.uint64(form.sign_mask)).astype(CODES[fmt])
    return codes


def encoded(fmt: str, value: float) -> int | None:
    """The code of a value, or None where the format does not have it exactly."""
    form = fields(fmt)
    code, flags = exact.round_to(exact.from_float(value), form)
    return code if not flags else None


@cache
def special_codes(fmt: str) -> Codes:
    """Zeros, infinities, NaNs quiet and signalling with payloads, the largest and the smallest values; both signs."""
    form = fields(fmt)
    codes = [0, 1, form.max_code]
    if form.inf_code is not None:
        quiet = 1 << (form.fraction_bits - 1)
        codes += [form.inf_code, form.inf_code + quiet, form.inf_code + 1, form.inf_code + 2 * quiet - 1]
        codes += [form.inf_code + quiet + 1]
    elif form.nan_code is not None:
        codes += [form.nan_code]
    return np.array(sorted({*codes, *(f | form.sign_mask for f in codes)}), CODES[fmt])


def exponent_of(codes: Codes, fmt: str) -> np.ndarray:
    form = fields(fmt)
    field = (codes.astype(np.int64) & (form.sign_mask - 1)) >> form.fraction_bits
    return np.asarray(np.maximum(field, 1) - 1 + form.emin)


# --- regimes ----------------------------------------------------------------------------------------------------
def random(draw: Draw, mma: Instruction, rows: int, k: int | None = None) -> Triple:
    """Exponents within 0, 1, 3, 6, 12 or all binades of each other, c within 28 below and 8 above the products."""
    k = k or mma.k
    width = np.array([0, 1, 3, 6, 12, 300])[np.arange(rows) % 6][:, None]
    a = build(draw, mma.a, _within(draw, mma.a, width, rows, k))
    b = build(draw, mma.b, _within(draw, mma.b, width, rows, k))
    top = (exponent_of(a, mma.a) + exponent_of(b, mma.b)).max(axis=1)
    c = build(draw, mma.output, top + draw.between(-28, 8, rows))
    c[::7] = 0
    return a, b, c


def _within(draw: Draw, fmt: str, width: np.ndarray, rows: int, k: int) -> np.ndarray:
    """Exponents around 0 by at most ``width``, as far as the format goes."""
    form = fields(fmt)
    low, high = np.maximum(-width, form.emin - form.fraction_bits), np.minimum(width, form.emax)
    return draw.between(low, high, rows, k)


def bits(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """Uniform bit patterns."""
    a, b, c = (
        (draw.words(*shape) >> np.uint64(64 - 8 * np.dtype(CODES[fmt]).itemsize)).astype(CODES[fmt])
        for fmt, shape in ((mma.a, (rows, mma.k)), (mma.b, (rows, mma.k)), (mma.output, (rows,)))
    )
    return a, b, c


def cancel(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """Pairs of opposite products, among which one to three products, 10 to 30 binades smaller, and c survive."""
    a, b, c = random(draw, mma, rows)
    k = mma.k
    pairs = (k - 1) // 2
    a[:, 1 : 2 * pairs : 2] = a[:, 0 : 2 * pairs : 2] ^ np.array(fields(mma.a).sign_mask, a.dtype)
    b[:, 1 : 2 * pairs : 2] = b[:, 0 : 2 * pairs : 2]
    small = k - 2 * pairs
    below = draw.between(10, 30, rows, small)
    half = below // 2
    a[:, 2 * pairs :] = build(draw, mma.a, -half)
    b[:, 2 * pairs :] = build(draw, mma.b, half - below)
    c = build(draw, mma.output, draw.between(-30, 2, rows))
    c[::3] = 0
    place = draw.order(rows, k)
    return np.take_along_axis(a, place, 1), np.take_along_axis(b, place, 1), c


def tiny(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """Products from 40 binades below the floor to 8 above; c is nothing, as small, or the smallest of its format."""
    floor = -21 if mma.output == "fp16" else -133
    lowest = sum(fields(f).emin - fields(f).fraction_bits for f in (mma.a, mma.b))
    high = np.maximum(floor + draw.between(-24, 8, rows), lowest)[:, None]
    target = draw.between(np.maximum(high - 16, lowest), high, rows, mma.k)
    a, b = _products(draw, mma, target)
    blank = draw.between(0, 3, rows, mma.k) == 0
    a[blank] &= np.array(fields(mma.a).sign_mask, a.dtype)
    form = fields(mma.output)
    c = build(draw, mma.output, high[:, 0] + draw.between(-6, 2, rows))
    c[::3] = 0
    least = draw.between(0, 3, rows) + draw.coins(rows) * np.int64(form.sign_mask)
    c[1::3] = least[1::3].astype(c.dtype)
    return a, b, c


def _products(draw: Draw, mma: Instruction, target: np.ndarray) -> tuple[Codes, Codes]:
    """Codes of A and B whose exponents add up to ``target`` as nearly as the formats allow."""
    lows = [fields(f).emin - fields(f).fraction_bits for f in (mma.a, mma.b)]
    highs = [fields(f).emax for f in (mma.a, mma.b)]
    first = np.maximum(lows[0], target - highs[1])
    last = np.minimum(highs[0], target - lows[1])
    e = draw.between(np.minimum(first, last), np.maximum(first, last), *target.shape)
    return build(draw, mma.a, e), build(draw, mma.b, target - e)


def subnormal(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """A subnormal c, and products from 14 binades below to 6 above the least normal number of the output."""
    form = fields(mma.output)
    target = form.emin + draw.between(-form.fraction_bits - 4, 6, rows, mma.k)
    target -= draw.between(0, 12, rows)[:, None]
    a, b = _products(draw, mma, target)
    blank = draw.between(0, 1, rows, mma.k) == 0
    a[blank] &= np.array(fields(mma.a).sign_mask, a.dtype)
    c = build(draw, mma.output, form.emin - draw.between(1, form.fraction_bits, rows))
    tie = (
        np.arange(rows) % 2 == 1
    )  # half of the smallest value, and a bit far below that decides, if it is not cut away
    a[tie], b[tie] = 0, 0
    last = form.emin - form.fraction_bits - 1
    for column, exponent in ((0, np.full(rows, last)), (mma.k // 2, last - draw.between(1, 24, rows))):
        x, y = _products(draw, mma, exponent)
        a[tie, column], b[tie, column] = (_power(v, f)[tie] for v, f in ((x, mma.a), (y, mma.b)))
    return a, b, c


def _power(codes: Codes, fmt: str) -> Codes:
    """Codes with their fractions cleared: powers of two with the same signs. Subnormals stay as they are."""
    form = fields(fmt)
    fraction = np.array((1 << form.fraction_bits) - 1, codes.dtype)
    normal = (codes & np.array(form.sign_mask - 1, codes.dtype)) > fraction
    powers: Codes = np.where(normal, codes & ~fraction, codes)
    return powers


def large(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """Products from 6 binades below the largest binade of the output to 2 above; c in its top binades or zero."""
    form = fields(mma.output)
    target = form.emax + draw.between(-6, 1, rows, mma.k) - draw.between(0, 3, rows)[:, None]
    a, b = _products(draw, mma, target)
    same = draw.coins(rows)[:, None]  # half of the rows have one sign only
    positive = np.array(fields(mma.a).sign_mask - 1, a.dtype), np.array(fields(mma.b).sign_mask - 1, b.dtype)
    a, b = np.where(same, a & positive[0], a), np.where(same, b & positive[1], b)
    c = build(draw, mma.output, form.emax - draw.between(0, 3, rows))
    c[::4] = 0
    c[1::8] = np.array(form.max_code, c.dtype)
    return a, b, c


def far_c(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """c up to 40 binades above or below the largest product."""
    a, b, _ = random(draw, mma, rows)
    top = (exponent_of(a, mma.a) + exponent_of(b, mma.b)).max(axis=1)
    return a, b, build(draw, mma.output, top + draw.between(-40, 40, rows))


def special(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """Random operands of which one to four are replaced by special codes, or only c, or all."""
    a, b, c = random(draw, mma, rows)
    for operand, fmt in ((a, mma.a), (b, mma.b)):
        codes = special_codes(fmt)
        chosen = codes[draw.between(0, codes.size - 1, rows, mma.k)]
        share = np.array([0, 1, 1, 2, mma.k])[np.arange(rows) % 5][:, None]
        hit = draw.between(0, mma.k - 1, rows, mma.k) < share
        operand[hit] = chosen[hit]
    codes = special_codes(mma.output)
    hit = draw.between(0, 2, rows) == 0
    c[hit] = codes[draw.between(0, codes.size - 1, rows)][hit]
    return a, b, c


def zeros(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """Products that are zeros of all signs; in the second half also negative ones too small for the output."""
    minus = [np.array(fields(f).sign_mask, CODES[f]) for f in (mma.a, mma.b, mma.output)]
    kind = np.arange(rows) % 4  # all products +0, all -0, mixed, mixed
    a = np.where(draw.coins(rows, mma.k), minus[0], np.array(0, minus[0].dtype))
    b = np.where(draw.coins(rows, mma.k), minus[1], np.array(0, minus[1].dtype))
    sign = a.astype(bool) ^ (kind == 1)[:, None]
    b = np.where((kind < 2)[:, None], np.where(sign, minus[1], np.array(0, minus[1].dtype)), b)
    one_code = encoded(mma.b, 1.0)
    b = np.where(draw.coins(rows, mma.k), b | np.array(one_code, b.dtype), b)  # -0 times 1 as well as -0 times 0
    c = np.where(draw.coins(rows), minus[2], np.array(0, minus[2].dtype))
    lowest = [np.array(1, CODES[f]) for f in (mma.a, mma.b)]  # the smallest subnormals: their product is -2^-48 in FP16
    half = slice(rows // 2, rows)
    at = draw.between(0, mma.k - 1, rows)
    a[half][np.arange(rows - rows // 2), at[half]] = lowest[0] | minus[0]
    b[half][np.arange(rows - rows // 2), at[half]] = lowest[1]
    return a, b, c


def order(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """Each pair i < j: M at i, -M at j, and units elsewhere (FPRev's masks); ``rows`` is ignored.

    The result counts the units that meet the accumulator after M and -M are gone. M is 2**15 and a unit 2**-18: far
    enough apart to lose all units beside M, and exact in FP16 too.
    """
    pairs = np.array(list(combinations(range(mma.k), 2)))
    at = np.arange(len(pairs))
    a = np.full((len(pairs), mma.k), encoded(mma.a, 2.0**-9), CODES[mma.a])
    b = np.full((len(pairs), mma.k), encoded(mma.b, 2.0**-9), CODES[mma.b])
    for column, sign in ((pairs[:, 0], 1.0), (pairs[:, 1], -1.0)):
        a[at, column], b[at, column] = encoded(mma.a, sign * 2.0**8), encoded(mma.b, 2.0**7)
    return a, b, np.zeros(len(pairs), CODES[mma.output])


def probes(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """The published probes and their relatives, as far as the formats have the operands; ``rows`` is ignored."""
    sums = [row for row in (_row(mma, p, c) for p, c in probe_sums(mma.k)) if row is not None]
    a, b, c = (np.array(x) for x in zip(*sums, strict=True))
    return a.astype(CODES[mma.a]), b.astype(CODES[mma.b]), c.astype(CODES[mma.output])


Sum = tuple[list[tuple[float, float]], float]  # products as factors, and c


def probe_sums(k: int) -> list[Sum]:
    """Sums with powers of two that tell block lengths, alignment bits, floors and roundings apart."""

    def tiny_product(e: int) -> tuple[float, float]:
        return 2.0 ** (-(e // 2)), 2.0 ** (e // 2 - e)

    sums: list[Sum] = []
    for e in range(8, 32):
        t = tiny_product(e)
        sums.append(([t] * k, 1.0))
        sums.append(([t] * k, 1.0 - 2.0**-24))
        sums.append(([t] * k, -1.0))
        sums.append(([(1.0, 1.0), *[t] * (k - 1)], -1.0))
        sums.append(([*[t] * (k - 1), (1.0, 1.0)], -1.0))
        sums.append(([(1.0, 1.0), *[t] * (k - 2), (-1.0, 1.0)], 0.0))
        sums.append(([(1.0, 1.0), *[(-t[0], t[1])] * (k - 1)], 0.0))
        sums.append(([(1.5, 1.5), (-1.0, 2.25), *[t] * (k - 2)], 0.0))  # 1.5*1.5 aligns one binade below 2.25
    sums.append(([(8192.0, 8192.0), (-8192.0, 8192.0), *[(0.0, 0.0)] * (k - 2)], 2.0**-20))
    sums.append(([(0.25, 0.25)] * k, 1024.0))
    sums.append(([(448.0, 448.0), *[(1.0, 1.0)] * (k - 1)], 0.0))
    for c in (65504.0, 65472.0, -65504.0):  # FP16's largest value, and the tie to infinity 16 above it
        for p in (4.0, 8.0, 15.0, 16.0, 24.0, 32.0):
            sums.append(([(p, 1.0 if c > 0 else -1.0), *[(0.0, 0.0)] * (k - 1)], c))
            sums.append(([(p / 2, 1.0 if c > 0 else -1.0)] * 2 + [(0.0, 0.0)] * (k - 2), c))
    largest = float(np.finfo(np.float32).max)
    for e in range(96, 107):  # around the last bit of FP32's largest value, 2**104
        t = 2.0 ** (e // 2), 2.0 ** (e - e // 2)
        sums += [([t] * k, largest), ([(-t[0], t[1])] * k, -largest)]
    sums.append(([(2.0**64, 2.0**64), (-(2.0**64), 2.0**64), *[(1.0, 1.0)] * (k - 2)], 0.0))
    sums.append(([(2.0**64, 2.0**64), *[(0.0, 0.0)] * (k - 1)], -(2.0**127)))
    return sums + floor_sums(k)


def floor_sums(k: int) -> list[Sum]:
    """Sums that show down to which power of two tiny terms count, where all terms are tiny.

    To FP32: products that add up to just 2**-149, its smallest value, if the last of them, 2**-j, is not cut away. To
    FP16: 2**-25, a tie between zero and the smallest value, plus 2**-j. With c nothing, and with a subnormal c, which
    aligns at the least exponent of its format or at its own.
    """
    zero = (0.0, 0.0)
    sums: list[Sum] = []
    for j in range(151, 166):
        upper = min(j, 157)  # the bits from 2**-150 to 2**-upper in one product, those to 2**-j in another
        products = [((2.0 ** (upper - 149) - 1) * 2.0**-80, 2.0 ** (80 - upper)), (2.0**-80, 2.0 ** (80 - j))]
        if j > upper:
            products.append(((2.0 ** (j - upper) - 1) * 2.0**-80, 2.0 ** (80 - j)))
        for c in (0.0, -0.0, 2.0**-149, 2.0**-140):
            sums.append(([*products, *[zero] * (k - len(products))], c))
        sums.append(([*products, *[(2.0**-84, 2.0**-84)] * (k - len(products))], 0.0))  # no product is zero
    for j in range(27, 49):
        products = [(2.0**-12, 2.0**-13), (2.0 ** -(j // 2), 2.0 ** (j // 2 - j))]
        for c in (0.0, -0.0, 2.0**-23, 2.0**-15):
            sums.append(([*products, *[zero] * (k - 2)], c))
        sums.append(([*products, *[(2.0**-24, 2.0**-24)] * (k - 2)], 0.0))
    return sums


def _row(mma: Instruction, products: list[tuple[float, float]], c: float) -> tuple[list[int], list[int], int] | None:
    """A sum as codes, or None where a format has one of its numbers not."""
    a, b = [_code(mma.a, x) for x, _ in products], [_code(mma.b, y) for _, y in products]
    last = _code(mma.output, c)
    if last is None or None in a or None in b:
        return None
    return [x for x in a if x is not None], [y for y in b if y is not None], last


@cache
def _code(fmt: str, value: float) -> int | None:
    return encoded(fmt, value)


def chain(draw: Draw, mma: Instruction, rows: int) -> Triple:
    return random(draw, mma, rows, 4 * mma.k)


def long(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """A chain of 2,048 products, or of 128 instructions where that is less; positive in half of the rows."""
    a, b, c = random(draw, mma, rows, min(128, mma.max_steps, 2048 // mma.k) * mma.k)
    half = slice(rows // 2, rows)
    a[half] &= np.array(fields(mma.a).sign_mask - 1, a.dtype)
    b[half] &= np.array(fields(mma.b).sign_mask - 1, b.dtype)
    return a, b, c


# --- integers ---------------------------------------------------------------------------------------------------
def integers(draw: Draw, mma: Instruction, rows: int, k: int | None = None) -> Triple:
    """Uniform INT8 operands and INT32 c."""
    k = k or mma.k
    a, b, c = (draw.words(rows, k) >> np.uint64(56), draw.words(rows, k) >> np.uint64(56), draw.words(rows))
    return a.astype(np.uint8), b.astype(np.uint8), (c >> np.uint64(32)).astype(np.uint32)


def integer_ends(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """-128 and 127 with c at the ends of INT32: sums that wrap or saturate."""
    ends = np.array([0x80, 0x7F], np.uint8)
    a, b = (ends[draw.coins(rows, mma.k).astype(np.int64)] for _ in range(2))
    same = (np.arange(rows) % 2 == 0)[:, None]
    b = np.where(same, a, b)
    c = np.where(draw.coins(rows), np.int64(2**31 - 1), np.int64(-(2**31))) + draw.between(-9, 9, rows)
    return a, b, np.clip(c, -(2**31), 2**31 - 1).astype(np.int32).view(np.uint32)


def integer_chain(draw: Draw, mma: Instruction, rows: int) -> Triple:
    """Four instructions in a row."""
    return integers(draw, mma, rows, 4 * mma.k)


Regime = Callable[[Draw, Instruction, int], Triple]
FLOATS: dict[str, tuple[Regime, int]] = {  # what is recorded, and how many rows of it
    "random": (random, 384), "bits": (bits, 128), "cancel": (cancel, 256), "tiny": (tiny, 256),
    "subnormal": (subnormal, 192), "large": (large, 192), "c": (far_c, 192), "special": (special, 256),
    "zeros": (zeros, 96), "order": (order, 0), "probes": (probes, 0), "chain": (chain, 96), "long": (long, 16),
}  # fmt: skip
DOUBLES: dict[str, tuple[Regime, int]] = {
    name: FLOATS[name] for name in ("random", "bits", "cancel", "special", "chain")
}
INTEGERS: dict[str, tuple[Regime, int]] = {
    "random": (integers, 256), "ends": (integer_ends, 128), "chain": (integer_chain, 64),
}  # fmt: skip


def regimes(mma: Instruction) -> dict[str, tuple[Regime, int]]:
    """The regimes of an instruction's formats."""
    if mma.a == "int8":
        return INTEGERS
    return DOUBLES if mma.a == "fp64" else FLOATS


def triples(mma: Instruction, key: int) -> dict[str, Triple]:
    """The operands of every regime of an instruction, by name, from one key."""
    by_regime = {}
    for number, (name, (make, rows)) in enumerate(regimes(mma).items()):
        by_regime[name] = make(Draw(key * 100 + number), mma, rows)
    return by_regime
