"""Sums and dots: oracle, general and fast version of every order held together, and third parties beside them."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fplab import exact, exact_sums, floats, sums, threads
from fplab.errors import LabError
from fplab.formats import Format, Rounding, Specials, get, overflow
from fplab.kernels.rounding import element_word

MODES = [r.value for r in Rounding]
SEED = 7
ODD_FORMAT = Format("s1e6m12", 6, 12, specials=Specials.LAST)


def _rows(fmt: Format, n: int, k: int, seed: int) -> np.ndarray:
    """Rows of values of a format, by regime: any code; one neighbourhood; cancelling pairs; the bottom of the range."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << fmt.bits, (n, k), dtype=np.uint64)
    sign = np.uint64(fmt.sign_mask) & rng.integers(0, 2**63, (n, k), dtype=np.uint64)
    window = min(6 << fmt.fraction_bits, fmt.max_code)
    centre = rng.integers(0, fmt.max_code - window + 1, (n, 1), dtype=np.uint64)
    near = sign | (centre + rng.integers(0, window + 1, (n, k), dtype=np.uint64))
    low = sign | rng.integers(0, min(fmt.max_code, 2 << fmt.fraction_bits) + 1, (n, k), dtype=np.uint64)
    cancelling = near.copy()
    cancelling[:, 1::2] = near[:, : k - k % 2 : 2] ^ np.uint64(fmt.sign_mask) ^ (sign[:, 1::2] > 0)
    regime = np.arange(n)[:, None] % 4
    chosen = np.choose(regime, [codes, near, cancelling & np.uint64((1 << fmt.bits) - 1), low])
    return floats.decode(chosen, fmt, np.float64)


def _exact(row: np.ndarray) -> list[exact.Exact]:
    return [exact.from_float(float(v)) for v in row]


def _oracle(x: np.ndarray, y: np.ndarray | None, fmt: Format, acc: Format, **how: Any) -> tuple[np.ndarray, list[int]]:
    """Every row through the oracle: (N, K) partial or (N, 1) last sums as float64, and the flags."""
    order, mode, flush = how["order"], Rounding(how["mode"]), how.get("flush", False)
    running = how.get("running", False)
    results, flags = [], []
    for i, row in enumerate(x):
        first = i * x.shape[1] * 8
        machine = exact_sums.Machine(
            acc, mode, how.get("policy"), flush, lambda n, first=first: int(element_word(first + n, np.uint64(SEED)))
        )
        t = exact_sums.terms(_exact(row), None if y is None else _exact(y[i]), fmt, flush)
        fused = how.get("fused", True)
        found = exact_sums.run(order, t, machine, block=how.get("block", 128), fused=fused, running=running)
        results.append([_float(v) for v in (found if running else found[-1:])])
        flags.append(machine.flags)
    return np.array(results), flags


def _float(v: exact.Exact) -> float:
    if v.kind != "finite":
        return math.nan if v.is_nan else -math.inf if v.negative else math.inf
    return -float(v.magnitude) if v.negative else float(v.magnitude)


def _same(got: Any, want: np.ndarray) -> None:
    """Equal in every bit, NaNs counted as one."""
    got = np.asarray(got, np.float64).reshape(want.shape)
    differ = (got.view(np.uint64) != want.view(np.uint64)) & ~(np.isnan(got) & np.isnan(want))
    at = tuple(np.argwhere(differ)[0]) if differ.any() else ()
    assert not differ.any(), f"{differ.sum()} differ, first at {at}: {got[at]!r} against {want[at]!r}"


FORMATS = ["fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3", "e4m3fnuz", "e2m1", ODD_FORMAT]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", sums.ORDERS)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_oracle_general_and_fast_agree(fmt: str | Format, order: str, mode: str) -> None:
    form = get(fmt)
    for k in (1, 5, 8):
        x = _rows(form, 4 if k < 8 else 8, k, seed=k)
        running = order in sums.RUNNING and k != 5
        want, flags = _oracle(x, None, form, form, order=order, mode=mode, block=3, running=running)
        how: dict[str, Any] = {"rounding": mode, "block": 3, "running": running, "seed": SEED}
        general, raised = sums.sum(x, form, order, flags=True, **how)
        _same(general, want)
        assert raised.tolist() == flags
        _same(sums.sum(x, form, order, **how), want)  # fast where there is a fast way


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("order", sums.ORDERS)
@pytest.mark.parametrize(
    ("fmt", "acc"),
    [("fp16", "fp32"), ("bf16", "fp32"), ("e4m3", "fp16"), ("e5m2", "e5m2"), ("fp32", "fp32"), ("fp32", "bf16")],
)
def test_dots_agree_with_the_oracle(fmt: str, acc: str, order: str, fused: bool) -> None:
    if fused and order not in sums.FUSED:
        return
    for mode, k in (("rne", 9), ("rne", 2), ("rtz", 6), ("stochastic", 5)):
        x, y = _rows(get(fmt), 12, k, seed=k), _rows(get(fmt), 12, k, seed=k + 100)
        y[1::4] = 1 / np.where(np.isfinite(x[1::4]) & (x[1::4] != 0), x[1::4], 1)  # products near one
        with np.errstate(over="ignore", invalid="ignore"):
            y = floats.quantize(y, fmt)
        want, flags = _oracle(x, y, get(fmt), get(acc), order=order, mode=mode, block=4, fused=fused)
        how: dict[str, Any] = {"rounding": mode, "block": 4, "seed": SEED, "products": "exact" if fused else "rounded"}
        general, raised = sums.dot(x, y, fmt, acc, order, flags=True, **how)
        _same(general, want)
        assert raised.tolist() == flags
        _same(sums.dot(x, y, fmt, acc, order, **how), want)


@pytest.mark.parametrize("policy", ["inf", "saturate", "nan"])
@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("fmt", ["fp16", "e5m2"])
def test_overflow_and_flush_agree_with_the_oracle(fmt: str, policy: str, flush: bool) -> None:
    form = get(fmt)
    x = _rows(form, 40, 6, seed=3)
    x[::4] = form.max
    for order in sums.ORDERS:
        rule = overflow(policy, form)
        want, flags = _oracle(x, None, form, form, order=order, mode="rne", policy=rule, flush=flush, block=2)
        how: dict[str, Any] = {"overflow": policy, "subnormals": not flush, "block": 2}
        general, raised = sums.sum(x, form, order, flags=True, **how)
        _same(general, want)
        assert raised.tolist() == flags
        _same(sums.sum(x, form, order, **how), want)


@pytest.mark.parametrize("order", sums.ORDERS)
@pytest.mark.parametrize("fmt", ["fp32", "tf32", "bf16", "fp16", "e4m3"])
def test_fast_equals_general_on_long_rows(fmt: str, order: str) -> None:
    """Long chains over all exponents, with halves of a unit in the last place thrown in: the hard cases of rounding."""
    form = get(fmt)
    rng = np.random.default_rng(11)
    p = form.significand_bits
    scale = np.cumsum(rng.integers(-1, 2, (4, 5000)), axis=1) / 4
    x = rng.standard_normal((4, 5000)) * 2.0**scale
    x[:, ::3] = 2.0 ** rng.integers(-p - 2, -p + 2, x[:, ::3].shape) * rng.choice([-1, 1, 3, -3], x[:, ::3].shape)
    x[2] *= form.smallest_normal
    x[3] *= form.max / 64
    running = order in sums.RUNNING
    fast = sums.sum(x, form, order, running=running, block=17)
    general, _ = sums.sum(x, form, order, running=running, block=17, flags=True)
    _same(fast, general.astype(np.float64))
    y = rng.standard_normal(x.shape) * 2.0 ** rng.integers(-20, 20, x.shape)
    acc = "fp16" if fmt == "e4m3" else "fp32"
    fast = sums.dot(x, y, form, acc, order, block=17)
    general, _ = sums.dot(x, y, form, acc, order, block=17, flags=True)
    _same(fast, general.astype(np.float64))


@pytest.mark.parametrize("acc", ["fp32", "bf16", "fp16", "e4m3", "e2m3"])
def test_second_rounding_is_innocuous_at_every_midpoint(acc: str) -> None:
    """a + x with x half a unit of a, and a hair (down to the smallest term there is) above or below it."""
    form = get(acc)
    p = form.significand_bits
    rng = np.random.default_rng(5)
    a = floats.decode(rng.integers(1, form.max_code // 2, 4000), form, np.float64)
    ulp = 2.0 ** (np.maximum(np.frexp(a)[1] - 1, form.emin) - p + 1)
    hair = ulp * 2.0 ** -rng.integers(1, 60, a.size)
    x = np.stack([a, rng.choice([-0.5, 0.5, 1.5], a.size) * ulp, rng.choice([-1, 0, 1], a.size) * hair], axis=1)
    for columns in ([0, 1], [0, 2], [1, 0, 2], [2, 1, 0], [0, 2, 1]):
        terms = x[:, columns]
        fast = sums.sum(terms, acc)
        general, _ = sums.sum(terms, acc, flags=True)
        _same(fast, general.astype(np.float64))


def test_second_rounding_is_innocuous_for_terms_off_the_grid() -> None:
    """BF16 terms reach far below FP16's smallest subnormal: midpoints of the subnormals, and a hair beside them."""
    rng = np.random.default_rng(6)
    midpoint = rng.integers(-128, 128, 6000) * 2.0**-25
    hair = rng.choice([-1, 0, 1], 6000) * 2.0 ** -rng.integers(26, 134, 6000)
    huge = rng.choice([0.0, 1e30, -1e30, 65504.0, 65520.0, 3e38], 6000)
    for columns in ([midpoint, hair], [hair, midpoint], [hair, midpoint, hair], [hair, huge], [midpoint, huge, -huge]):
        terms = np.stack(columns, axis=1)
        fast = sums.sum(terms, "bf16", accumulate="fp16")
        general, _ = sums.sum(terms, "bf16", accumulate="fp16", flags=True)
        _same(fast, general.astype(np.float64))


def test_wide_terms_are_not_rounded_twice() -> None:
    """A term of more bits than the accumulator may itself be a midpoint, and float64 loses the small sum beside it."""
    for tiny in (2.0**-100, -(2.0**-100)):
        x = [tiny, 1 + 2.0**-8]
        assert float(sums.sum(x, "fp32", accumulate="bf16")) == (1 + 2.0**-7 if tiny > 0 else 1.0)
        y = [tiny, 1 + 2.0**-12]  # its square is 1 + 2**-11 + 2**-24: a midpoint of FP32
        exact_up = 1 + 2.0**-11 + (2.0**-23 if tiny > 0 else 0)
        assert float(sums.dot(y, [1.0, y[1]], "fp32")) == exact_up
        assert float(sums.dot(y, [1.0, y[1]], "fp32", products="rounded")) == 1 + 2.0**-11
        assert float(sums.dot(y, [1.0, y[1]], "fp32", accumulate="exact")) == exact_up


finite16 = st.integers(0, 0xFFFF).map(lambda c: float(np.uint16(c).view(np.float16)))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(finite16, finite16), min_size=1, max_size=9), st.sampled_from(MODES), st.booleans())
def test_fp16_dot_in_fp32_by_hypothesis(pairs: list[tuple[float, float]], mode: str, running: bool) -> None:
    x, y = np.array(pairs).T[:, None, :]
    want, flags = _oracle(x, y, get("fp16"), get("fp32"), order="sequential", mode=mode, running=running)
    got, raised = sums.dot(x, y, "fp16", rounding=mode, running=running, seed=SEED, flags=True)
    _same(got, want)
    assert raised.tolist() == flags
    _same(sums.dot(x, y, "fp16", rounding=mode, running=running, seed=SEED), want)


# --- third parties ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_sequential_is_numpys_accumulate(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((5, 3000)) * 2.0 ** rng.integers(-20, 9, (5, 3000))).astype(dtype)
    name = {2: "fp16", 4: "fp32"}[np.dtype(dtype).itemsize]
    with np.errstate(over="ignore", invalid="ignore"):
        want = np.add.accumulate(x, axis=1, dtype=dtype).astype(np.float64)
    _same(sums.sum(x, name, running=True), want)
    _same(sums.sum(x.astype(np.float64), name), want[:, -1])


@pytest.mark.parametrize(("name", "dtype"),
                         [("bf16", ml_dtypes.bfloat16), ("e4m3", ml_dtypes.float8_e4m3fn),
                          ("e5m2", ml_dtypes.float8_e5m2), ("e2m1", ml_dtypes.float4_e2m1fn)])  # fmt: skip
def test_sequential_is_ml_dtypes_addition(name: str, dtype: Any) -> None:
    """Lanes of additions in ml_dtypes, which adds in float32 and rounds: right for these formats."""
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((500, 40)) * 2.0 ** rng.integers(-6, 4, (500, 40))).astype(np.float32).astype(dtype)
    acc, want = x[:, 0], []
    for k in range(x.shape[1]):
        acc = acc + x[:, k] if k else acc
        want.append(acc.astype(np.float64))
    _same(sums.sum(x, name, running=True), np.stack(want, axis=1))


def test_kahan_and_neumaier_are_the_textbook_loops_in_float32() -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((64, 200)) * 2.0 ** rng.integers(-30, 30, (64, 200))).astype(np.float32)
    s, c = x[:, 0], np.zeros(64, np.float32)
    t, d = x[:, 0], np.zeros(64, np.float32)
    for k in range(1, 200):
        z = x[:, k] - c
        new = s + z
        c, s = (new - s) - z, new
        total = t + x[:, k]
        large = np.where(np.abs(t) >= np.abs(x[:, k]), t, x[:, k])
        small = np.where(np.abs(t) >= np.abs(x[:, k]), x[:, k], t)
        d, t = d + ((large - total) + small), total
    _same(sums.sum(x, "fp32", "kahan"), s.astype(np.float64))
    _same(sums.sum(x, "fp32", "neumaier"), (t + d).astype(np.float64))


# --- behaviour -------------------------------------------------------------------------------------------------------
def test_results_do_not_depend_on_the_thread_count() -> None:
    x = np.random.default_rng(3).standard_normal((300, 1000))
    results = []
    try:
        for count in (1, 2, 5):
            threads.set_num_threads(count)
            results.append([sums.sum(x, "bf16", rounding="stochastic", seed=9),
                            sums.sum(x, "fp16", "kahan", running=True),
                            sums.sum(x, "e4m3", "pairwise", flags=True)[1],
                            sums.dot(x, x, "fp16", accumulate="exact", rounding="stochastic", seed=1)])  # fmt: skip
    finally:
        threads.set_num_threads(None)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert np.array_equal(a, b, equal_nan=True)


def test_axes_shapes_and_dtypes() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert sums.sum(x, "fp32").shape == (2, 3)
    assert np.array_equal(sums.sum(x, "fp32", axis=1), x.sum(axis=1))
    assert np.array_equal(sums.sum(x, "fp32", axis=0, running=True), x.cumsum(axis=0))
    assert float(sums.sum(x, "fp32", axis=None)) == 276.0
    assert np.array_equal(sums.dot(x, x[0, 0], "fp16"), x @ x[0, 0])
    assert float(sums.sum(3.5, "fp16")) == 3.5
    assert str(sums.sum([], "fp16")) == "0.0"
    assert sums.sum(np.empty((0, 4)), "fp16").shape == (0,)
    assert sums.sum(np.empty((4, 0)), "fp16", "kahan", running=True).shape == (4, 0)
    assert str(sums.sum([-0.0, -0.0], "fp16")) == "-0.0"
    assert str(sums.sum([-0.0, 0.0], "fp16")) == "0.0"
    assert sums.sum(x, "fp16").dtype == np.float32
    assert sums.sum(x.astype(np.float64), "fp16").dtype == np.float64
    assert sums.sum(x, Format("wide", 11, 8)).dtype == np.float64
    assert np.array_equal(sums.sum(x[:, ::-1, ::2], "fp32"), x[:, ::-1, ::2].sum(-1))


def test_the_accumulator_and_the_store_are_separate_formats() -> None:
    x = np.full(4096, 0.1)
    tenth = float(floats.quantize(0.1, "fp16"))
    assert float(sums.sum(x, "fp16")) == 256.0
    assert float(sums.sum(x, "fp16", accumulate="fp32")) == np.add.accumulate(np.full(4096, tenth, np.float32))[-1]
    assert float(sums.sum(x, "fp16", accumulate="fp32", store="fp16")) == 409.5
    value, flags = sums.sum(np.ones(3), "fp16", accumulate="fp32", store="e2m1", flags=True)
    assert (float(value), int(flags)) == (3.0, 0)
    value, flags = sums.sum(np.full(2, 6e4), "fp16", accumulate="fp32", store="fp16", flags=True)
    assert (float(value), int(flags)) == (math.inf, 5)
    # A term wider than the accumulator is not rounded before it is added.
    assert float(sums.sum([1.0, 2.0**-8 + 2.0**-20], "fp32", accumulate="bf16")) == 1 + 2.0**-7
    assert float(sums.sum([1.0, 2.0**-8], "fp32", accumulate="bf16")) == 1.0


def test_nan_needs_a_place() -> None:
    with pytest.raises(LabError, match=r'row 1 gives NaN, and e2m1 has none; pass nan="zero" or nan="max"'):
        sums.sum([[1.0, 2.0], [np.nan, 1.0]], "fp16", accumulate="e2m1")
    assert sums.sum([[1.0, 2.0], [np.nan, 1.0]], "fp16", accumulate="e2m1", nan="zero").tolist() == [3.0, 1.0]
    with pytest.raises(LabError, match="row 0 gives NaN, and e2m3 has none"):  # terms that the fast version could take
        sums.sum([np.nan, 1.0], "e5m2", accumulate="e2m3")
    assert math.isnan(sums.sum([np.inf, -np.inf], "fp16"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"order": "pairwse"}, "unknown order 'pairwse'. Allowed: sequential, pairwise, .* Did you mean 'pairwise'"),
     ({"fmt": "fp61"}, "unknown format 'fp61'"),
     ({"fmt": "fp64"}, "fmt='fp64' has 64 bits; allowed: formats of at most 32 bits"),
     ({"accumulate": "fp64"}, 'accumulate="exact" with store="fp64" gives the exact sum'),
     ({"order": "pairwise", "running": True}, "running=True is impossible with order='pairwise'. Allowed: sequ"),
     ({"accumulate": "exact", "running": True}, "rounds once"),
     ({"rounding": "stochastic"}, "needs seed="),
     ({"rounding": "up"}, "unknown rounding 'up'"),
     ({"block": 0}, "block=0 is not possible; allowed: 1"),
     ({"axis": 2}, r"axis=2 is not possible; allowed: -2 to 1 for shape \(3, 4\)"),
     ({"axis": 0.5}, "axis=0.5 is not an integer"),
     ({"fmt": "e8m0", "order": "kahan"}, "e8m0 has no negative numbers"),
     ({"fmt": "e4m3", "overflow": "inf"}, "e4m3 has no infinity"),
     ({"x": np.array(["a"])}, "x holds an element of type str")],
)  # fmt: skip
def test_bad_requests_say_what_is_allowed(arguments: dict[str, Any], text: str) -> None:
    given_arguments = {"x": np.ones((3, 4)), "fmt": "fp16", **arguments}
    with pytest.raises(LabError, match=text) as error:
        sums.sum(**given_arguments)
    assert str(error.value).startswith("fplab.sum(")


def test_bad_dots_say_what_is_allowed() -> None:
    with pytest.raises(LabError, match=r"unknown products 'exakt'\. Allowed: exact, rounded\. Did you mean 'exact'"):
        sums.dot([1.0], [1.0], "fp16", products="exakt")
    with pytest.raises(LabError, match="products=\"exact\" is impossible with order='pairwise'"):
        sums.dot([1.0], [1.0], "fp16", order="pairwise", products="exact")
    with pytest.raises(LabError, match=r"^fplab\.dot\(.*shapes \(2,\) and \(3,\) do not broadcast"):
        sums.dot([1.0, 2.0], [1.0, 2.0, 3.0], "fp16")
