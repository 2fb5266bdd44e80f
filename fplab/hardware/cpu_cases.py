"""What the lab says of the CPU's own units, as cases: the same bits in, and out the bits and flags of the unit.

What x86-64 adds to the arithmetic of the lab, all of it visible in the bits: a NaN result is the first NaN among the
operands, made quiet, and without one the negative quiet NaN; a fused multiply-add of a quiet NaN raises no flag, not
even beside infinity times zero; BF16 instructions flush subnormals whatever MXCSR says.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from .. import exact, numeric, seeds
from ..formats import get
from ..formats import rounding as rounding_of
from . import cpu_units
from .cases import Arrays, Case, NotHereError, philox_bits

Array = np.ndarray[Any, Any]
Compute = Callable[[Arrays], Arrays]

KEY = 7100
WIDTHS = {"fp16": 16, "fp32": 32, "fp64": 64}
OPERANDS = {"sqrt": 1, "fma": 3}  # of every other operation: 2
FLUSHES = {(False, False): True, (True, False): "flush_inputs", (False, True): "flush_outputs", (True, True): False}
MODES = tuple((rounding, daz, ftz) for rounding in cpu_units.ROUNDINGS for daz, ftz in FLUSHES)


def numbers(n: int, fmt: str, key: int) -> Array:
    """Codes of a format, unsigned integers (n,): uniform bits, like exponents, subnormals, few digits, specials."""
    form, wide = get(fmt), np.uint64
    raw, kind, pick = (seeds.bits(n, key, stream, dtype=np.uint64) for stream in range(3))
    fraction, sign = wide((1 << form.fraction_bits) - 1), wide(form.sign_mask)
    field = wide((form.emax - form.emin + 3) // 2 - 12) + pick % wide(24)  # within a dozen binades of 1
    near = raw & (sign | fraction) | field << wide(form.fraction_bits)
    few_digits = raw & ~(fraction >> wide(3))
    special = np.array(specials(fmt), np.uint64)[pick % wide(len(specials(fmt)))]
    low = wide(64 - form.bits)
    codes = np.choose(
        (kind >> wide(61)).astype(np.int64),
        [raw >> low, near, near, raw & (sign | fraction), few_digits >> low, special, near, near],
    )
    return (codes & wide((1 << form.bits) - 1)).astype(f"u{form.bits // 8}")


def specials(fmt: str) -> list[int]:
    """Zeros, one, the ends of subnormal and normal numbers, infinities, quiet and signalling NaNs, of both signs."""
    form = get(fmt)
    inf, least = int(form.inf_code or 0), 1 << form.fraction_bits
    unit = (1 - form.emin) << form.fraction_bits
    magnitudes = (0, 1, least - 1, least, unit, unit + 1, inf - 1, inf, inf + 1, inf + (least >> 1), inf + least - 1)
    return [magnitude | sign for sign in (0, form.sign_mask) for magnitude in magnitudes]


def given_to(operation: str, fmt: str, n: int) -> Arrays:
    """Operands of an operation."""
    key = KEY + 10 * list(cpu_units.ARITHMETIC).index(operation) + WIDTHS[fmt]
    return {name: numbers(n, fmt, key + i) for i, name in enumerate("abc"[: OPERANDS.get(operation, 2)])}


def mode_name(rounding: str, daz: bool, ftz: bool) -> str:
    """A setting of MXCSR, in a word."""
    return " ".join([rounding, *["daz"] * daz, *["ftz"] * ftz])


def cpu_case(name: str, inputs: Callable[[], Arrays], unit: Compute, lab: Compute, formats: Mapping[str, str]) -> Case:
    """What units of the CPU and the lab make of the same operands."""

    def compute(given: Arrays, device: str) -> Arrays:
        if device != "cpu":
            raise NotHereError("units of a CPU are asked on the CPU.")
        return unit(given)

    return Case(name, inputs, compute, lambda given, meta: lab(given), formats)


def with_flags(results: Iterable[tuple[str, tuple[Array, Array]]]) -> Arrays:
    """Results and their flags by name."""
    return {f"{name}{end}": x for name, pair in results for end, x in zip(("", ", flags"), pair, strict=True)}


def formats_with_flags(names: Iterable[str], bits: str) -> dict[str, str]:
    """Their formats."""
    return {f"{name}{end}": kind for name in names for end, kind in (("", bits), (", flags", "bits8"))}


# --- +, -, x, /, square root and fused multiply-add under MXCSR -----------------------------------------------------
def arithmetic(operation: str, fmt: str, n: int) -> Case:
    """One operation in four roundings, with subnormal operands and results kept and flushed: bits and flags."""
    modes = {mode_name(*mode): mode for mode in MODES}

    def unit(given: Arrays) -> Arrays:
        run = partial(cpu_units.run, cpu_units.SCALARS[operation, fmt], *given.values())
        return with_flags((name, run(rounding=mode, daz=daz, ftz=ftz)) for name, (mode, daz, ftz) in modes.items())

    def lab(given: Arrays) -> Arrays:
        return with_flags((name, operate(operation, fmt, [*given.values()], *mode)) for name, mode in modes.items())

    formats = formats_with_flags(modes, f"bits{WIDTHS[fmt]}")
    return cpu_case(f"{operation} in {fmt}", partial(given_to, operation, fmt, n), unit, lab, formats)


def operate(
    operation: str, fmt: str, operands: list[Array], rounding: str, daz: bool, ftz: bool
) -> tuple[Array, Array]:
    """What the lab says: FP32 by its kernels, FP64 by its oracle, one number after the other."""
    if fmt == "fp32":
        with np.errstate(all="ignore"):
            values, flags = getattr(numeric, operation)(
                *(x.view(np.float32) for x in operands), fmt, rounding=rounding, subnormals=FLUSHES[daz, ftz],
                flags=True,
            )  # fmt: skip
        codes, flags = np.asarray(values, np.float32).view(np.uint32).copy(), np.array(flags)
    else:
        codes, flags = by_oracle(operation, fmt, operands, rounding, daz, ftz)
    return with_x86_nans(fmt, operands, codes, flags)


def by_oracle(
    operation: str, fmt: str, operands: list[Array], rounding: str, daz: bool, ftz: bool
) -> tuple[Array, Array]:
    """The same through fractions."""
    form, mode = get(fmt), rounding_of(rounding)
    codes, flags = np.zeros_like(operands[0]), np.zeros(operands[0].size, np.uint8)
    for i, row in enumerate(zip(*(x.tolist() for x in operands), strict=True)):
        read = [exact.decode(code, form) for code in row]
        read = [exact.flush(x, form) for x in read] if daz else read
        if operation == "sqrt":
            result, raised = exact.sqrt_to(read[0], form, mode)
        else:
            result, raised = getattr(exact, operation)(*read, mode)
        codes[i], rounded = exact.round_to(result, form, mode, ftz=ftz)
        flags[i] = raised | rounded
    return codes, flags


def with_x86_nans(fmt: str, operands: list[Array], codes: Array, flags: Array) -> tuple[Array, Array]:
    """NaNs as x86-64 gives them, and the flag that it leaves down."""
    form = get(fmt)
    word = codes.dtype.type
    inf, quiet, sign = word(form.inf_code or 0), word(1 << (form.fraction_bits - 1)), word(form.sign_mask)

    def is_nan(x: Array) -> Array:
        return np.asarray((x & ~sign) > inf)

    nans = [is_nan(x) for x in operands]
    nan = np.where(is_nan(codes), inf | quiet | sign, codes)
    for x, here in reversed(list(zip(operands, nans, strict=True))):
        nan = np.where(here, x | quiet, nan)
    signals = np.any([here & (x & quiet == 0) for x, here in zip(operands, nans, strict=True)], axis=0)
    silent = np.any(nans, axis=0) & ~signals
    return nan.astype(codes.dtype), np.where(silent, 0, flags).astype(np.uint8)


# --- FP16 arithmetic ------------------------------------------------------------------------------------------------
def halves_on_x86(n: int) -> Case:
    """Every operation of AVX512-FP16 in four roundings: bits and flags."""
    names = {
        f"{name} {rounding}": (name, rounding) for name in cpu_units.ARITHMETIC for rounding in cpu_units.ROUNDINGS
    }

    def on_unit(given: Arrays, name: str, rounding: str) -> tuple[Array, Array]:
        return cpu_units.run(cpu_units.SCALARS[name, "fp16"], *operands_of(name, given), rounding=rounding)

    def by_lab(given: Arrays, name: str, rounding: str) -> tuple[Array, Array]:
        operands = operands_of(name, given)
        return with_x86_nans("fp16", operands, *of_halves(name, operands, rounding))

    def all_of(how: Callable[..., tuple[Array, Array]], given: Arrays) -> Arrays:
        return with_flags((name, how(given, *operation)) for name, operation in names.items())

    unit, lab, formats = partial(all_of, on_unit), partial(all_of, by_lab), formats_with_flags(names, "bits16")
    return cpu_case("FP16 arithmetic of AVX512-FP16", lambda: three(n, "fp16"), unit, lab, formats)


def halves_on_arm(n: int) -> Case:
    """Every operation of AArch64 on FP16 numbers, and its conversion from FP32, to nearest."""

    def unit(given: Arrays) -> Arrays:
        sums = {name: cpu_units.run(unit, *operands_of(name, given))[0] for name, unit in cpu_units.ARM_HALVES.items()}
        return sums | {"fcvt": cpu_units.run(cpu_units.ARM_TO_HALF, given["x"])[0]}

    inputs, formats = partial(three, n, "fp16", x=numbers(n, "fp32", KEY + 9)), (*cpu_units.ARITHMETIC, "fcvt")
    return cpu_case("FP16 arithmetic of AArch64", inputs, unit, arm_halves, dict.fromkeys(formats, "bits16"))


def arm_halves(given: Arrays) -> Arrays:
    """What AArch64 gives, by operation."""
    results = {}
    for name in cpu_units.ARITHMETIC:
        operands = operands_of(name, given)
        results[name] = with_arm_nans(operands, of_halves(name, operands, "rne")[0], fused=name == "fma")
    x = given["x"]
    quiet = (x >> np.uint32(16) & np.uint32(0x8000) | np.uint32(0x7E00) | x >> np.uint32(13) & np.uint32(0x1FF)).astype(
        np.uint16
    )
    nan = (x & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return results | {"fcvt": np.where(nan, quiet, halves(x, "rne"))}


def three(n: int, fmt: str, **more: Array) -> Arrays:
    """Operands a, b and c of a format."""
    return {name: numbers(n, fmt, KEY + 11 + i) for i, name in enumerate("abc")} | more


def operands_of(name: str, given: Arrays) -> list[Array]:
    """As many of a, b and c as an operation takes."""
    return [given[letter] for letter in "abc"[: OPERANDS.get(name, 2)]]


def of_halves(name: str, operands: list[Array], rounding: str) -> tuple[Array, Array]:
    """Codes of FP16 and flags by the lab."""
    with np.errstate(all="ignore"):
        values = [numeric.decode(x, "fp16", np.float32) for x in operands]
        result, flags = getattr(numeric, name)(*values, "fp16", rounding=rounding, flags=True)
        return np.asarray(numeric.encode(result, "fp16")), np.array(flags)


def with_arm_nans(operands: list[Array], codes: Array, fused: bool) -> Array:
    """NaNs of FP16 as AArch64 gives them: the first signalling one, else the first, made quiet; an addend comes first.

    Infinity times zero beside a quiet NaN, and what has no NaN among its operands, gives the default NaN.
    """
    magnitudes = [x & np.uint16(0x7FFF) for x in operands]
    results = np.where((codes & 0x7FFF) > 0x7C00, np.uint16(0x7E00), codes)
    order = [2, 0, 1] if fused else range(len(operands))
    for signalling in (False, True):  # what comes last wins
        for i in reversed(order):
            nan = magnitudes[i] > 0x7C00
            here = nan & (operands[i] & 0x0200 == 0) if signalling else nan
            results = np.where(here, operands[i] | np.uint16(0x0200), results)
    if fused:
        (a, b, c), quiet = magnitudes, operands[2] & 0x0200 != 0
        invalid = (a == 0x7C00) & (b == 0) | (a == 0) & (b == 0x7C00)
        results = np.where(invalid & (c > 0x7C00) & quiet, np.uint16(0x7E00), results)
    return results.astype(np.uint16)


# --- conversions ----------------------------------------------------------------------------------------------------
def of_units(
    name: str, inputs: Callable[[], Arrays], units: Mapping[str, cpu_units.Unit], lab: Callable[..., Arrays], fmt: str
) -> Case:
    """Units on the same operands, by output. ``lab``: what they give, from the operands by name, in ``fmt``."""

    def on_units(given: Arrays) -> Arrays:
        return {output: cpu_units.run(unit, *given.values())[0] for output, unit in units.items()}

    return cpu_case(name, inputs, on_units, lambda given: lab(**given), dict.fromkeys(units, fmt))


def to_half(n: int) -> Case:
    """FP32 to FP16 in four roundings."""

    def lab(x: Array) -> Arrays:
        return {rounding: halves(x, rounding) for rounding in cpu_units.ROUNDINGS}

    return of_units("FP32 to FP16", lambda: {"x": numbers(n, "fp32", KEY)}, cpu_units.TO_HALF, lab, "bits16")


def halves(x: Array, rounding: str) -> Array:
    """FP32 codes as FP16 codes."""
    return np.asarray(numeric.encode(x.view(np.float32), "fp16", rounding=rounding))


def from_half() -> Case:
    """Every FP16 code to FP32."""
    every, units = np.arange(1 << 16, dtype=np.uint16), {"y": cpu_units.FROM_HALF}
    return of_units("FP16 to FP32", lambda: {"x": every.copy()}, units, lambda x: {"y": singles(x)}, "bits32")


def singles(x: Array) -> Array:
    """FP16 codes as FP32 codes, NaNs made quiet."""
    with np.errstate(all="ignore"):
        wide = np.asarray(numeric.decode(x, "fp16", np.float32)).view(np.uint32)
    return np.where((x & 0x7FFF) > 0x7C00, wide | np.uint32(1 << 22), wide)


def to_bf16(n: int) -> Case:
    """FP32 to BF16, nearest, with subnormal operands flushed."""
    inputs, units = lambda: {"x": numbers(n, "fp32", KEY + 1)}, {"y": cpu_units.TO_BF16}
    return of_units("FP32 to BF16", inputs, units, lambda x: {"y": shortened(x)}, "bits16")


def shortened(x: Array) -> Array:
    """FP32 codes as BF16 codes, subnormals as zeros."""
    return np.asarray(numeric.encode(flushed(x).view(np.float32), "bf16"))


def flushed(x: Array) -> Array:
    """FP32 codes with subnormal numbers as zeros of their sign."""
    return np.where(x & np.uint32(0x7F800000), x, x & np.uint32(0x80000000))


# --- dot products ---------------------------------------------------------------------------------------------------
def pairs_of_bf16(n: int) -> Case:
    """c + a1 b1, then + a0 b0: two fused multiply-adds of FP32, the odd element first."""

    def inputs() -> Arrays:
        a, b = (pairs(numbers(2 * n, "bf16", KEY + 2 + i)) for i in range(2))
        return {"a": a, "b": b, "c": numbers(n, "fp32", KEY + 4)}

    units = {"d": cpu_units.BF16_PAIRS}
    return of_units("pairs of BF16 into FP32", inputs, units, lambda a, b, c: {"d": chain(a, b, c)}, "fp32")


def pairs(x: Array) -> Array:
    """16-bit codes (2 n,) as words (n,), the first in the low half."""
    low, high = x.reshape(-1, 2).T.astype(np.uint32)
    return np.asarray(low | high << np.uint32(16))


def chain(a: Array, b: Array, c: Array, order: Iterable[int] = (1, 0)) -> Array:
    """Fused multiply-adds of the halves of words into FP32, subnormals flushed in and out; codes."""
    total = c.view(np.float32)
    with np.errstate(all="ignore"):
        for half in order:
            x, y = ((word >> np.uint32(16 * half) << np.uint32(16)).view(np.float32) for word in (a, b))
            total = np.asarray(numeric.fma(x, y, total, "fp32", subnormals=False), np.float32)
    return total.view(np.uint32)


def on_tiles(given: Arrays, unit: cpu_units.Unit) -> Array:
    """What AMX makes of a row of a tile: codes (n, 16)."""
    blocks = [np.ascontiguousarray(x).reshape(len(x), -1).view(f"V{width}").ravel()
              for x, width in zip(given.values(), unit.widths, strict=False)]  # fmt: skip
    return cpu_units.run(unit, *blocks)[0].view(np.uint32).reshape(-1, 16)


def tiles(n: int, fmt: str = "bf16") -> Case:
    """AMX: 32 products into each of 16 sums; even and odd ones apart, both added, then to c, subnormals flushed."""

    def inputs() -> Arrays:
        a, b = (numbers(count, fmt, KEY + 14 + i) for i, count in enumerate((32 * n, 512 * n)))
        c = numbers(16 * n, "fp32", KEY + 16).reshape(n, 16)
        return {"a": a.reshape(n, 32), "b": b.reshape(n, 16, 16, 2), "c": c}

    def unit(given: Arrays) -> Arrays:
        return {"d": on_tiles(given, cpu_units.TILES[f"tdp{fmt}ps"])}

    name = f"tiles of {fmt.upper()} into FP32"
    return cpu_case(name, inputs, unit, lambda given: {"d": of_tiles(**given, fmt=fmt)}, {"d": "fp32"})


def of_tiles(a: Array, b: Array, c: Array, fmt: str = "bf16") -> Array:
    """Sums of one row of a tile, codes: ``a`` (n, 32), ``b`` (n, 16, 16, 2), ``c`` (n, 16).

    Subnormal numbers of FP16 count, those of BF16 and FP32 are zeros.
    """
    halves = np.zeros((2, *c.shape), np.float32)
    with np.errstate(all="ignore"):
        wide_a, wide_b = (np.asarray(numeric.decode(x, fmt, np.float32)) for x in (a, b))
        for k in range(16):
            for odd in range(2):
                x = np.broadcast_to(wide_a[:, 2 * k + odd, None], c.shape)
                halves[odd] = numeric.fma(x, wide_b[:, k, :, odd], halves[odd], "fp32", subnormals=False)
        both = numeric.add(halves[0], halves[1], "fp32", subnormals=False)
        return np.asarray(numeric.add(c.view(np.float32), both, "fp32", subnormals=False), np.float32).view(np.uint32)


SIGNS = {"tdpbssd": "ii", "tdpbsud": "iu", "tdpbusd": "ui", "tdpbuud": "uu"}  # of a and b: int8 or uint8


def tiles_of_integers(n: int) -> Case:
    """AMX: 64 products of INT8 or UINT8 into each of 16 sums of INT32, exact but for what wraps around."""

    def inputs() -> Arrays:
        a, b, c = (philox_bits(KEY + 40 + i, size) for i, size in enumerate((16 * n, 256 * n, 16 * n)))
        return {"a": a.reshape(n, 16), "b": b.reshape(n, 16, 16), "c": c.reshape(n, 16)}

    def unit(given: Arrays) -> Arrays:
        return {name: on_tiles(given, cpu_units.TILES[name]) for name in SIGNS}

    def lab(given: Arrays) -> Arrays:
        return {name: of_integer_tiles(**given, signs=signs) for name, signs in SIGNS.items()}

    return cpu_case("tiles of INT8 into INT32", inputs, unit, lab, dict.fromkeys(SIGNS, "bits32"))


def of_integer_tiles(a: Array, b: Array, c: Array, signs: str) -> Array:
    """Sums of one row of a tile, codes: words of four ``a`` (n, 16), ``b`` (n, 16, 16), and ``c`` (n, 16)."""
    left = a.view(f"{signs[0]}1").reshape(-1, 16, 4).astype(np.int64)
    right = b.view(f"{signs[1]}1").reshape(-1, 16, 16, 4)
    return into_int32(c.view(np.int32) + np.einsum("nkp,nkjp->nj", left, right), wraps=True).view(np.uint32)


def pairs_on_arm(n: int) -> Case:
    """AArch64's BFDOT and BFMMLA: pairs of BF16 into FP32 sums, as FPCR.EBF = 0 has them."""

    def inputs() -> Arrays:
        a, b = (numbers(8 * n, "bf16", KEY + 17 + i).reshape(n, 8) for i in range(2))
        return {"a": a, "b": b, "c": numbers(4 * n, "fp32", KEY + 19).reshape(n, 4)}

    def unit(given: Arrays) -> Arrays:
        words = [np.ascontiguousarray(x).view("V16").ravel() for x in given.values()]
        results = {name: cpu_units.run(unit, *words)[0] for name, unit in cpu_units.ARM_PAIRS.items()}
        return {name: d.view(np.uint32).reshape(n, 4) for name, d in results.items()}

    return cpu_case(
        "pairs of BF16 of AArch64", inputs, unit, of_pairs_on_arm, dict.fromkeys(cpu_units.ARM_PAIRS, "fp32")
    )


def of_pairs_on_arm(given: Arrays, pair: Callable[..., Array] | None = None) -> Arrays:
    """What AArch64 gives, codes (n, 4). ``a``, ``b``: (n, 8), of BFMMLA two rows of four; ``c``: (n, 4).

    Each pair: both products, then their sum, then its sum with c, each rounded to odd, subnormals flushed, overflow to
    infinity, every NaN the default one (Arm Architecture Reference Manual, BFDotAdd). ``pair``: in the place of that.
    """
    pair = pair or pair_to_odd
    a, b = ((given[name].astype(np.uint32) << np.uint32(16)).view(np.float32) for name in "ab")
    c = given["c"].view(np.float32)
    lanes = pair(a[:, ::2], a[:, 1::2], b[:, ::2], b[:, 1::2], c)
    rows, columns = (x.reshape(-1, 2, 4) for x in (a, b))
    x, y = (np.broadcast_to(part, (len(c), 2, 2, 4)) for part in (rows[:, :, None], columns[:, None]))
    total = c.reshape(-1, 2, 2)
    for k in (0, 2):
        total = pair(x[..., k], x[..., k + 1], y[..., k], y[..., k + 1], total)
    return {"bfdot": lanes.view(np.uint32), "bfmmla": total.reshape(-1, 4).view(np.uint32)}


def pair_to_odd(a0: Array, a1: Array, b0: Array, b1: Array, c: Array) -> Array:
    """c + (a0 b0 + a1 b1) of FP32, each operation by :func:`to_odd`."""
    return to_odd("add", c, to_odd("add", to_odd("mul", a0, b0), to_odd("mul", a1, b1)))


def products_on_arm(n: int) -> Case:
    """AArch64's FMMLA of SVE, and BFMOPA and FMOPA of SME with pairs of BF16, as FPCR.EBF = 0 has them, and of FP16."""

    def inputs() -> Arrays:
        halves = {f"{side} {fmt}": numbers(8 * n, fmt, KEY + 20 + 2 * i + k).reshape(n, 8)
                  for i, fmt in enumerate(cpu_units.ARM_OUTER) for k, side in enumerate("ab")}  # fmt: skip
        singles = {name: numbers(4 * n, "fp32", KEY + 24 + i).reshape(n, 4) for i, name in enumerate("ab")}
        return halves | singles | {"c": numbers(16 * n, "fp32", KEY + 26).reshape(n, 16)}

    def unit(given: Arrays) -> Arrays:
        calls = {unit: (given[f"a {fmt}"], given[f"b {fmt}"], given["c"]) for fmt, unit in cpu_units.ARM_OUTER.items()}
        calls |= {cpu_units.ARM_PRODUCTS: (given["a"], given["b"], given["c"][:, :4])}
        return {unit.name: cpu_units.run(unit, *map(as_rows, operands))[0].view(np.uint32).reshape(n, -1)
                for unit, operands in calls.items()}  # fmt: skip

    formats = dict.fromkeys(("bfmopa", "fmopa", "fmmla"), "fp32")
    return cpu_case("products of AArch64's SVE and SME", inputs, unit, of_products_on_arm, formats)


def as_rows(x: Array) -> Array:
    """The bytes of each row as one element."""
    return np.ascontiguousarray(x).view(f"V{x.itemsize * x.shape[1]}").ravel()


def of_products_on_arm(given: Arrays) -> Arrays:
    """What AArch64 gives, codes: outer products (n, 16) of four pairs and four, and (n, 4) of two 2 x 2 matrices.

    BFMOPA adds pairs as BFDOT does. FMOPA rounds the sum of two products of FP16 once, then its sum with c; FMMLA each
    product, their sum and that with c, all to nearest, with subnormals (Arm Architecture Reference Manual).
    """
    c, results = given["c"].view(np.float32).reshape(-1, 4, 4), {}
    with np.errstate(all="ignore"):
        for fmt, name in (("bf16", "bfmopa"), ("fp16", "fmopa")):
            a, b = (np.asarray(numeric.decode(given[f"{side} {fmt}"], fmt, np.float32)) for side in "ab")
            results[name] = outer(pair_to_odd if fmt == "bf16" else pair_once, a, b, c)
        x, y = (given[name].view(np.float32).reshape(-1, 2, 2) for name in "ab")
        x, y, start = x[:, :, None], y[:, None], c.reshape(-1, 16)[:, :4].reshape(-1, 2, 2)
        products = [plain("mul", *np.broadcast_arrays(x[..., k], y[..., k])) for k in (0, 1)]
        results["fmmla"] = plain("add", start, plain("add", *products)).view(np.uint32).reshape(-1, 4)
    return results


def outer(pair: Callable[..., Array], a: Array, b: Array, c: Array) -> Array:
    """Codes (n, 16) of c (n, 4, 4) and the products of every pair of a's row (n, 8) with every one of b's."""
    four = [*(a[:, k::2, None] for k in (0, 1)), *(b[:, None, k::2] for k in (0, 1))]
    return pair(*(np.broadcast_to(x, c.shape) for x in four), c).view(np.uint32).reshape(-1, 16)


def pair_once(a0: Array, a1: Array, b0: Array, b1: Array, c: Array) -> Array:
    """c + (a0 b0 + a1 b1) of FP32, the sum of two products of 16-bit formats rounded once, subnormals kept."""
    with np.errstate(all="ignore"):
        p, q = a0.astype(np.float64) * b0, a1.astype(np.float64) * b1  # exact
        total = p + q
        back = total - p
        rest = (p - (total - back)) + (q - back)  # what that rounding lost
        bits = total.view(np.int64)
        lost = np.isfinite(rest) & (rest != 0) & (bits & 1 == 0)  # then to odd, which a rounding to FP32 may follow
        to_odd_ = np.where(lost, bits + np.where((rest > 0) == (total > 0), 1, -1), bits)
        return plain("add", c, to_odd_.view(np.float64).astype(np.float32))


def extended_on_arm(n: int) -> Case:
    """AArch64's BFDOT, BFMMLA and BFMOPA with FPCR.EBF: pairs are summed as FMOPA sums those of FP16."""

    def inputs() -> Arrays:
        a, b = (numbers(8 * n, "bf16", KEY + 32 + i).reshape(n, 8) for i in range(2))
        return {"a": a, "b": b, "c": numbers(16 * n, "fp32", KEY + 34).reshape(n, 16)}

    def unit(given: Arrays) -> Arrays:
        operands = {name: (given["a"], given["b"], given["c"][:, : unit.widths[2] // 4])
                    for name, unit in cpu_units.ARM_EXTENDED.items()}  # fmt: skip
        return {name: cpu_units.run(unit, *map(as_rows, operands[name]))[0].view(np.uint32).reshape(n, -1)
                for name, unit in cpu_units.ARM_EXTENDED.items()}  # fmt: skip

    formats = dict.fromkeys(cpu_units.ARM_EXTENDED, "fp32")
    return cpu_case("pairs of BF16 of AArch64 with FPCR.EBF", inputs, unit, of_extended_on_arm, formats)


def of_extended_on_arm(given: Arrays) -> Arrays:
    """What AArch64 gives, codes (n, 4) and, of BFMOPA, (n, 16)."""
    a, b = (np.asarray(numeric.decode(given[name], "bf16", np.float32)) for name in "ab")
    lanes = of_pairs_on_arm({**given, "c": given["c"][:, :4]}, pair_once)
    return lanes | {"bfmopa": outer(pair_once, a, b, given["c"].view(np.float32).reshape(-1, 4, 4))}


def plain(operation: str, x: Array, y: Array) -> Array:
    """An operation of FP32 to nearest, NaNs as the default one."""
    d = np.asarray(getattr(numeric, operation)(x, y, "fp32"), np.float32)
    return np.where(np.isnan(d), np.uint32(0x7FC00000).view(np.float32), d)


def widened_on_riscv(n: int) -> Case:
    """RISC-V's widening multiply-add of FP16 into FP32, in five roundings: one rounding, every NaN the default one."""

    def inputs() -> Arrays:
        return three(n, "fp16") | {"c": numbers(n, "fp32", KEY + 30)}

    def lab(a: Array, b: Array, c: Array) -> Arrays:
        with np.errstate(all="ignore"):
            x, y = (np.asarray(numeric.decode(codes, "fp16", np.float32)) for codes in (a, b))
            sums = {mode: np.asarray(numeric.fma(x, y, c.view(np.float32), "fp32", rounding=mode), np.float32)
                    for mode in cpu_units.RISCV_WIDENED}  # fmt: skip
        return {mode: np.where(np.isnan(d), np.uint32(0x7FC00000), d.view(np.uint32)) for mode, d in sums.items()}

    return of_units("widening multiply-adds of RISC-V", inputs, cpu_units.RISCV_WIDENED, lab, "bits32")


def to_odd(operation: str, x: Array, y: Array) -> Array:
    """An operation of FP32 rounded to odd, subnormals flushed, overflow to infinity, NaNs as the default one."""
    with np.errstate(all="ignore"):
        d = np.asarray(getattr(numeric, operation)(x, y, "fp32", rounding="odd", subnormals=False), np.float32)
        exact_size = np.abs({"add": np.add, "mul": np.multiply}[operation](x.astype(float), y.astype(float)))
    d = np.where(np.isfinite(d) & (exact_size >= 2.0**128), np.copysign(np.float32(np.inf), d), d)
    return np.where(np.isnan(d), np.uint32(0x7FC00000).view(np.float32), d)


def lanes_of_integers(n: int, bits: int) -> Case:
    """Fours of unsigned by signed INT8, or pairs of INT16, into INT32: wrapping, and saturating once at the end."""
    units = cpu_units.INT8_FOURS if bits == 8 else cpu_units.INT16_PAIRS

    def inputs() -> Arrays:
        words = {name: philox_bits(KEY + 5 + bits + i, n) for i, name in enumerate("abc")}
        near = np.uint32(0x7FFFFFFF) - (words["c"] & np.uint32(0x3FFFF))  # from where sums overflow
        edge = np.where(words["c"] & np.uint32(1 << 30), near, ~near)
        return {**words, "c": np.where(words["c"] >> np.uint32(31), edge, words["c"])}

    def lab(a: Array, b: Array, c: Array) -> Arrays:
        signed, left = np.dtype(f"i{bits // 8}"), np.dtype(f"{'u' if bits == 8 else 'i'}{bits // 8}")
        products = a.view(left).reshape(n, -1).astype(np.int64) * b.view(signed).reshape(n, -1)
        total = c.view(np.int32) + products.sum(axis=1)
        return {unit.name: into_int32(total, wraps).view(np.uint32) for wraps, unit in units.items()}

    named = {unit.name: unit for unit in units.values()}
    return of_units(f"INT{bits} into INT32", inputs, named, lab, "bits32")


def into_int32(total: Array, wraps: bool) -> Array:
    """Exact sums in 32 bits: what is above cut off, or the nearest end."""
    return (total if wraps else np.clip(total, -(2**31), 2**31 - 1)).astype(np.int32)


# --- all of them ----------------------------------------------------------------------------------------------------
def cases(n: int, wide: int) -> dict[str, tuple[Case, ...]]:
    """The cases by what they are about. ``n``: operands of each; ``wide``: of FP64, which the oracle computes."""
    single, double = (
        tuple(arithmetic(operation, fmt, count) for operation in cpu_units.ARITHMETIC)
        for fmt, count in (("fp32", n), ("fp64", wide))
    )
    return {
        "conversions": (to_half(16 * n), from_half()),
        "arithmetic": single[:-1],
        "fused": single[-1:],
        "double": double,
        "bfloat16": (to_bf16(16 * n), pairs_of_bf16(16 * n)),
        "halves": (halves_on_x86(n), halves_on_arm(n)),
        "tiles": (tiles(max(n // 16, 1)), tiles(max(n // 16, 1), "fp16")),
        "odd_pairs": (pairs_on_arm(n),),
        "arm_products": (products_on_arm(n), extended_on_arm(n)),
        "widened": (widened_on_riscv(n),),
        "integers": (lanes_of_integers(n, 8), lanes_of_integers(n, 16), tiles_of_integers(max(n // 16, 1))),
    }
