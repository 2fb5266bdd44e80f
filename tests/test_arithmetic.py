"""Arithmetic against the oracle on fractions: values and flags, in every format, rounding, policy and flush mode."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers import EVERY, FLOATS, FLUSHES, Array, assert_same, fmt_id, policies, random_floats, raw
from hypothesis import given, settings
from hypothesis import strategies as st
from operations import operand_codes, values_of
from parts import examples, stride
from prove.grid import grid
from prove.operations import BINARY, OPERATIONS, Table, exact_result, rounded
from prove.shares import words_of
from refusals import refuses

import fplab
from fplab import exact
from fplab.errors import LabError
from fplab.formats import TABLE, Format, Overflow, Rounding, get

ARITHMETIC = tuple(f for f in EVERY if f.bits <= 32)
COUNT = {"sqrt": 1, "fma": 3}
SEED = 5


def check(op: str, codes: Array, fmt: Format, mode: Rounding, policy: Overflow, subnormals: Any, table: Table) -> None:
    """Values and flags of the public function, and its values without flags, which may come another way."""
    want, want_flags = table.rounded(mode, policy, subnormals in (False, "flush_outputs"), words_of(len(codes), SEED))
    operands = values_of(codes, fmt)
    call = getattr(fplab, op)
    what = f"{op} {fmt} {mode.value} {policy.value} subnormals={subnormals}"
    got, flags = call(*operands, fmt, mode, policy, subnormals, seed=SEED, nan="max", flags=True)
    assert_same(got, fplab.decode(want.astype(np.uint64), fmt), what, *operands)
    assert_same(flags, want_flags.astype(np.uint8), f"flags of {what}", *operands)
    bare = call(*operands, fmt, mode, policy, subnormals, seed=SEED, nan="max")
    assert_same(bare, got, f"{what} without flags", *operands)


# --- the oracle -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", [*BINARY, "sqrt"])
@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_every_pair_of_fp8(name: str, op: str) -> None:
    """All 65,536 pairs, to nearest, with every overflow policy."""
    fmt = get(name)
    axes = np.meshgrid(*[np.arange(256)] * COUNT.get(op, 2), indexing="ij")
    codes = np.stack(axes, -1).reshape(-1, len(axes))
    table = Table(op, codes, fmt, Rounding.RNE)
    for policy in policies(fmt):
        check(op, codes, fmt, Rounding.RNE, policy, True, table)


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("fmt", ARITHMETIC, ids=fmt_id)
def test_every_choice_on_a_sample(fmt: Format, op: str) -> None:
    """Seven roundings, all policies and flush modes; each on its own share of a stratified sample and the corners."""
    operands = COUNT.get(op, 2)
    pool = operand_codes(fmt, operands, 100 + operands, 4000)
    combos = list(itertools.product(Rounding, policies(fmt), FLUSHES))
    for i, (mode, policy, subnormals) in enumerate(combos):
        codes = pool[(i * 7) % 29 :: stride(131 if fmt.bits > 16 else 67)]
        daz = subnormals in (False, "flush_inputs")
        table = Table(op, codes, fmt, Rounding.RTN if mode is Rounding.RTN else Rounding.RNE, daz)
        check(op, codes, fmt, mode, policy, subnormals, table)


@pytest.mark.parametrize("subnormals", [True, False])
@pytest.mark.parametrize("op", ["eq", "lt", "le"])
@pytest.mark.parametrize("fmt", ARITHMETIC, ids=fmt_id)
def test_comparisons(fmt: Format, op: Any, subnormals: bool) -> None:
    codes = operand_codes(fmt, 2, 9, 400)
    a, b = values_of(codes, fmt)
    want = []
    for x, y in codes.tolist():
        pair = [exact.decode(c, fmt) for c in (x, y)]
        want.append(exact.compare(op, *(pair if subnormals else [exact.flush(v, fmt) for v in pair])))
    got, flags = getattr(fplab, op)(a, b, fmt, subnormals, flags=True)
    assert_same(got, np.array([answer for answer, _ in want]), f"{op} {fmt}", a, b)
    assert_same(flags, np.array([raised for _, raised in want], np.uint8), f"flags of {op} {fmt}", a, b)
    assert_same(getattr(fplab, op)(a, b, fmt, subnormals), got, f"{op} {fmt} without flags", a, b)


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "e4m3fnuz", "e8m0"])
def test_comparisons_of_every_pair(name: str) -> None:
    fmt = get(name)
    codes = np.arange(256)
    values, x = [exact.decode(c, fmt) for c in range(256)], fplab.decode(codes, name)
    for op in ("eq", "lt", "le"):
        want = np.array([[exact.compare(op, a, b) for b in values] for a in values])  # type: ignore[arg-type]
        got, flags = getattr(fplab, op)(x[:, None], x[None, :], name, flags=True)
        assert_same(got, want[:, :, 0].astype(np.bool_), op)
        assert_same(flags, want[:, :, 1].astype(np.uint8), op)


@st.composite
def triples(draw: st.DrawFn, fmt: Format) -> tuple[int, ...]:
    """Three codes: any, or neighbours of one another, or at a distance at which one is the other's sticky bit."""
    top, sign = fmt.max_code, st.sampled_from([0, fmt.sign_mask])
    code = st.one_of(
        st.integers(0, (1 << fmt.bits) - 1), st.integers(0, min(9, top)), st.integers(max(top - 9, 0), top)
    )
    a = draw(code)
    away = st.integers(-fmt.significand_bits - 2, fmt.significand_bits + 2)
    near = st.tuples(away, st.integers(-3, 3), sign).map(
        lambda t: min(max((a & ~fmt.sign_mask) + (t[0] << fmt.fraction_bits) + t[1], 0), top) | t[2]
    )
    return a, draw(st.one_of(near, code)), draw(st.one_of(near, code))


@examples(500)
@given(st.data())
def test_anything_goes(data: st.DataObject) -> None:
    fmt, op = data.draw(st.sampled_from(ARITHMETIC)), data.draw(st.sampled_from(OPERATIONS))
    mode, policy = data.draw(st.sampled_from(Rounding)), data.draw(st.sampled_from(policies(fmt)))
    subnormals = data.draw(st.sampled_from(FLUSHES))
    codes = np.array([data.draw(triples(fmt))[: COUNT.get(op, 2)]], np.uint64)
    operands = [exact.decode(c, fmt) for c in codes[0].tolist()]
    if subnormals in (False, "flush_inputs"):
        operands = [exact.flush(x, fmt) for x in operands]
    ftz = subnormals in (False, "flush_outputs")
    word = int(words_of(1, SEED)[0])
    want = rounded(exact_result(op, operands, fmt, mode), fmt, mode, policy, ftz, word)
    values = values_of(codes, fmt)
    call = getattr(fplab, op)
    got, flags = call(*values, fmt, mode, policy, subnormals, seed=SEED, nan="max", flags=True)
    assert_same(got, fplab.decode([want[0]], fmt), (op, fmt.name, mode, policy, subnormals), *values)
    assert int(flags[0]) == want[1], (op, fmt.name, mode, policy, subnormals, codes)


@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1), st.sampled_from(OPERATIONS), st.data())
def test_stochastic_results_turn_at_the_exact_word(start: int, op: str, data: st.DataObject) -> None:
    """The word of an element decides as on fractions, however the quotient or root goes on: 32 bits beyond the last."""
    fmt = data.draw(st.sampled_from([get("fp32"), get("fp16"), get("e4m3")]))
    codes = np.array([data.draw(triples(fmt))[: COUNT.get(op, 2)]], np.uint64)
    table = Table(op, np.repeat(codes, 64, axis=0), fmt, Rounding.RNE)
    policy = policies(fmt)[0]
    want, flags = table.rounded(Rounding.STOCHASTIC, policy, words=words_of(64, start))
    operands = values_of(np.repeat(codes, 64, axis=0), fmt)
    got, raised = getattr(fplab, op)(*operands, fmt, "stochastic", policy, seed=start, flags=True)
    assert_same(got, fplab.decode(want.astype(np.uint64), fmt), (op, fmt.name), *operands)
    assert_same(raised, flags.astype(np.uint8), (op, fmt.name), *operands)


def test_roots_just_below_a_midpoint() -> None:
    """sqrt(4 - ulp) is 2 - ulp/4 and a little less: with 31 digits only the 63rd digit of the root tells."""
    fmt = next(f for f in ARITHMETIC if f.significand_bits == 31)
    four = int(fplab.encode(4.0, fmt))
    codes = np.array([[c] for c in (*range(four - 40, four), *range((1 << 30) - 40, (1 << 30) + 40))], np.uint64)
    for mode in Rounding:
        table = Table("sqrt", codes, fmt, Rounding.RTN if mode is Rounding.RTN else Rounding.RNE)
        check("sqrt", codes, fmt, mode, Overflow.SATURATE, True, table)


def test_an_fp32_multiply_add_rounds_once() -> None:
    """Without flags it goes through float64: sums near midpoints that 53 bits do not hold, what cancels, ends."""
    k, n = np.arange(1 << 14), 1 << 14
    i, e = k % 61 + 1, k % 97 - 48
    near_one, below = 1 + i * 2.0**-23, np.ldexp(1 - i * 2.0**-23, e - 24)
    midpoints = near_one, below * (-1.0) ** (k % 3), np.ldexp(1 + k % 5 * 2.0**-23, e)
    a, b, c = (raw(key, n, np.uint32) / 2.0**31 - 1 for key in range(3))
    a, b = np.float32(a), np.float32(b)
    cancel = a, b, np.nextafter(-np.float32(a.astype(np.float64) * b), np.float32(c))
    least = np.ldexp(1.0, -149)
    ends = a * least * 2.0**23, b * 2.0 ** (k % 40 - 20), c * least * 2.0**24
    huge = a * 2.0**100, b * 2.0**28, c * 2.0**127
    nothing = [np.array([0.0, -0.0, 1.0, -1.0])[k // 4**place % 4] for place in range(3)]
    for each in (midpoints, cancel, ends, huge, nothing):
        operands = [np.asarray(x, np.float32) for x in each]
        want, _ = fplab.fma(*operands, "fp32", flags=True)
        assert_same(fplab.fma(*operands, "fp32"), want, "fma", *operands)


# --- flags --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", ["fp16", "bf16", "fp32", "e5m2", "e4m3"])
def test_underflow_is_tiny_after_rounding_and_inexact(fmt: str) -> None:
    """Just below the smallest normal number it depends on where an unbounded exponent would round to."""
    f = get(fmt)
    least, step = Fraction(f.smallest_normal), Fraction(f.smallest_normal) * Fraction(f.eps) / 2
    wanted = {  # in units of the spacing that the binade below would have
        Fraction(-1, 4): exact.INEXACT,  # to the smallest normal, there and here
        Fraction(-1, 2): exact.INEXACT,  # a tie, to even: the smallest normal
        Fraction(-5, 8): exact.UNDERFLOW | exact.INEXACT,  # there below it; here, with half the digits, it
        Fraction(-3, 2): exact.UNDERFLOW | exact.INEXACT,
        Fraction(-2): 0,  # the largest subnormal: tiny, but exact
    }
    for units, want in wanted.items():
        x = float(least + units * step)
        for sign in (1, -1):
            value, flags = fplab.convert(sign * x, "fp64", fmt, flags=True)
            assert int(flags) == want, (fmt, units)
            assert abs(value) == (f.smallest_normal if units > -1 else f.smallest_normal - f.smallest_subnormal)
            flushed, raised = fplab.convert(sign * x, "fp64", fmt, subnormals="flush_outputs", flags=True)
            tiny = bool(want & exact.UNDERFLOW) or not want
            assert (flushed == 0) == tiny
            assert int(raised) == (exact.UNDERFLOW | exact.INEXACT if tiny else want)


@pytest.mark.parametrize(
    ("op", "operands", "want", "flags"),
    [("div", (1, 0), np.inf, exact.DIVZERO),
     ("div", (-1, 0), -np.inf, exact.DIVZERO),
     ("div", (0, 0), np.nan, exact.INVALID),
     ("div", (np.inf, np.inf), np.nan, exact.INVALID),
     ("div", (np.inf, 0), np.inf, 0),
     ("mul", (0, np.inf), np.nan, exact.INVALID),
     ("sub", (np.inf, np.inf), np.nan, exact.INVALID),
     ("sqrt", (-1,), np.nan, exact.INVALID),
     ("sqrt", (-0.0,), -0.0, 0),
     ("fma", (0, np.inf, np.nan), np.nan, exact.INVALID),
     ("fma", (np.inf, 1, -np.inf), np.nan, exact.INVALID),
     ("add", (np.nan, 1), np.nan, 0),
     ("add", (65504, 65504), np.inf, exact.OVERFLOW | exact.INEXACT),
     ("mul", (2**-14, 2**-14), 0.0, exact.UNDERFLOW | exact.INEXACT)],
)  # fmt: skip
def test_flags_of_ieee_754(op: str, operands: tuple[float, ...], want: float, flags: int) -> None:
    got, raised = getattr(fplab, op)(*operands, "fp16", flags=True)
    assert_same(np.float32(got), np.float32(want))
    assert int(raised) == flags


def test_zero_sums_take_the_sign_that_the_rounding_says() -> None:
    for mode in Rounding:
        negative = bool(np.signbit(fplab.sub(1.5, 1.5, "fp16", mode, seed=1)))
        assert negative == (mode is Rounding.RTN)
    assert np.signbit(fplab.add(-0.0, -0.0, "fp32"))
    assert not np.signbit(fplab.add(-0.0, 0.0, "fp32"))


def test_flags_are_the_operations_own() -> None:
    """0.1 is no FP16 number: it is rounded first, silently; with ``strict`` it is refused."""
    assert int(fplab.add(0.1, 0, "fp16", flags=True)[1]) == 0
    assert fplab.add(0.1, 0, "fp16") == fplab.quantize(0.1, "fp16")
    refuses(lambda: fplab.add(0.1, 0, "fp16", strict=True), r"operand 0: it is 0\.1, which fp16 cannot represent")


def test_an_infinite_operand_is_no_overflow() -> None:
    """A policy is for results: an infinity that the format has comes in as it is."""
    infinity = np.float32([np.inf])
    assert fplab.sub(infinity, np.float32(1), "e5m2", overflow="saturate") == 57344
    assert fplab.div(np.float32(1), infinity, "e5m2", overflow="saturate") == 0
    assert np.isnan(fplab.mul(np.float32(0), infinity, "fp16", overflow="saturate"))
    assert fplab.lt(1, infinity, "fp16")


# --- how results are delivered --------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e4m3"])
def test_out_and_threads(fmt: str, op: str) -> None:
    """A given array, in place, shifted, strided and off its alignment; one thread or seven; past the cache or not."""
    n = (1 << 20) + 33 if fmt == "fp16" and op not in ("fma", "sqrt") else 70_001
    operands = [random_floats(k, n, np.float32) for k in range(COUNT.get(op, 2))]
    call = getattr(fplab, op)
    try:
        fplab.set_num_threads(1)
        want, flags = call(*operands, fmt, flags=True)
        for threads in (1, 7):
            fplab.set_num_threads(threads)
            assert_same(call(*operands, fmt), want, (op, threads), *operands)
            again, raised = call(*operands, fmt, flags=True)
            assert_same(again, want, (op, threads), *operands)
            assert_same(raised, flags, (op, threads), *operands)
    finally:
        fplab.set_num_threads(None)
    for which in range(len(operands)):
        copies = [x.copy() for x in operands]
        assert call(*copies, fmt, out=copies[which]) is copies[which]
        assert_same(copies[which], want, (op, "in place of", which), *operands)
    room = np.empty(n + 5, np.float32)
    room[5:] = operands[0]
    call(room[5:], *operands[1:], fmt, out=room[:n])
    assert_same(room[:n].copy(), want, (op, "shifted"), *operands)
    strided = np.zeros(2 * n, np.float32)
    call(*operands, fmt, out=strided[1::2])
    assert_same(strided[1::2].copy(), want, (op, "strided"), *operands)
    off = np.empty(4 * n + 2, np.uint8)[2:].view(np.float32)
    off[:] = operands[0]
    assert_same(call(off, *operands[1:], fmt), want, (op, "misaligned operand"), *operands)
    call(*operands, fmt, out=off)
    assert_same(off.copy(), want, (op, "misaligned out"), *operands)


def test_operands_broadcast_and_mix_dtypes() -> None:
    a, b = np.float32([[1], [2]]), np.float32([10, 20, 30])
    assert_same(fplab.add(a, b, "fp16"), a + b)
    assert_same(fplab.add(a.astype(np.float64), b, "fp16"), (a + b).astype(np.float64))
    assert_same(fplab.add(a.astype(np.float16), [10, 20, 30], "fp16"), a + b)
    signalling = np.uint32([0x7F800001]).view(np.float32)
    assert int(fplab.add(signalling, 1.0, "fp16", flags=True)[1][0]) == exact.INVALID  # widened, it still signals
    assert int(fplab.eq(signalling, 1.0, "fp16", flags=True)[1][0]) == exact.INVALID
    with pytest.raises(LabError, match=r"operands of shapes \(2,\) and \(3,\) do not broadcast together"):
        fplab.add([1, 2], [1, 2, 3], "fp16")


@pytest.mark.parametrize("fmt", ["e3m2", "e2m3", "e2m1"])
def test_nan_where_there_is_none(fmt: str) -> None:
    """A NaN operand, quiet or signalling, and a NaN result need a rule."""
    signalling = np.uint32([0x7F800001]).view(np.float32)
    for x in (np.float32([np.nan]), signalling):
        with pytest.raises(LabError, match=f"element 0 gives NaN, and {fmt} has none"):
            fplab.add(x, 1, fmt)
        with pytest.raises(LabError, match=f"element 0 is NaN, and {fmt} has none"):
            fplab.eq(x, 1, fmt)
        assert fplab.add(x, 1, fmt, nan="zero")[0] == 1
        assert fplab.add(x, -1, fmt, nan="max")[0] == fplab.sub(get(fmt).max, 1, fmt)
    refuses(lambda: fplab.div(0, 0, fmt), f"element 0 gives NaN, and {fmt} has none")
    assert fplab.div(0, 0, fmt, nan="zero") == 0


@pytest.mark.parametrize("fmt", [f for f in TABLE if f.bits <= 8 and f.signed], ids=fmt_id)
def test_conversions_between_formats(fmt: Format) -> None:
    """Every value of a small format into every other, with flags."""
    x = grid(fmt).decode(grid(fmt).codes, np.float32)
    for target in TABLE:
        nan = None if target.has_nan else "max"
        got, flags = fplab.convert(x, fmt, target, flags=True, nan=nan)
        read = [exact.decode(c, fmt) for c in range(1 << fmt.bits)]
        rounded_to = [exact.round_to(v, target, nan=nan) for v in read]
        codes = np.array([code for code, _ in rounded_to], np.uint64)
        invalid = [exact.INVALID if v.kind == "snan" else 0 for v in read]
        raised = np.array([more for _, more in rounded_to]) | invalid
        dtype = np.float32 if target.fits_float32 else np.float64
        assert_same(got, fplab.decode(codes, target, dtype), f"{fmt} to {target}", x)
        assert_same(flags, raised.astype(np.uint8), f"flags of {fmt} to {target}", x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_convert_flushes_the_subnormals_of_its_source(dtype: type) -> None:
    x = dtype(2.0**-24)  # subnormal in FP16, normal in BF16
    assert fplab.convert(x, "fp16", "bf16") == x
    assert fplab.convert(x, "fp16", "bf16", subnormals="flush_inputs") == 0
    assert fplab.convert(x, "bf16", "fp16", subnormals="flush_inputs") == x
    assert fplab.convert(x, "bf16", "fp16", subnormals="flush_outputs") == 0
