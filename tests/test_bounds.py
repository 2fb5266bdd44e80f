"""Bounds: no error is above the worst case, which adversaries all but reach, and few are above the probable one."""

import dataclasses
import itertools
import math
import pkgutil
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import refusals

import fplab
from fplab import bounds, exact
from fplab.formats import get
from fplab.tensorcore import Model, Plan, classes, units
from fplab.tensorcore import get as cell

MODELS = [group[0] for group in classes()]
FLOATS = [model for model in MODELS if model.output != "int32"]
ROWS = 500  # random rows of a unit, of each of two kinds
REACHED = 0.4  # of the worst case, by some adversary of every unit
RATE = 0.05
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


# --- rows --------------------------------------------------------------------------------------------------------
def adversaries(model: Model) -> Rows:
    """A large c, and equal products that are all but one quantum, or half a place, of it: c and products of one sign.

    Of whatever ratio: from products as large as c to those far below it.
    """
    fa, fb, limit = model.format_a, model.format_b, model.result.max
    found = []
    for ea, ratio in itertools.product((fa.emin, min(fa.emin + 9, fa.emax), min(0, fa.emax)), range(-2, 60)):
        a, b = ((2 - 2.0**-f.fraction_bits) * 2.0**e for f, e in ((fa, ea), (fb, max(fb.emin, -6))))
        for one, other, digits in itertools.product((a, 2.0**ea), (b,), (1.0, 2 - 2.0**-10)):
            c = digits * 2.0 ** (ratio + math.floor(math.log2(a * b)))
            if 2 * c < limit and c >= 2.0**model.format_d.emin:
                found.append((one, other, c))
    k = 4 * max(model.k, model.length)
    a, b, c = np.array(found).T
    return np.repeat(a[:, None], k, 1), np.repeat(b[:, None], k, 1), c


def random_rows(model: Model, k: int, count: int, seed: int) -> dict[str, np.ndarray]:
    """Rows on which variants of a unit part: any exponents, zeros, cancelling and tiny terms; and normal numbers."""
    rng = np.random.default_rng(seed)
    drawn = units.of(model).draw(model, k, count, rng)
    drawn["c"] = np.clip(drawn["c"], -model.result.max, model.result.max) if model.output != "int32" else drawn["c"]
    return drawn


def usual_rows(model: Model, k: int, count: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, count, k))
    return {"a": a, "b": b, "c": rng.standard_normal(count)}


def of_rows(model: Model, rows: dict[str, np.ndarray], **how: Any) -> bounds.Bounds:
    return bounds.dot(gpu=model, **rows, **how)


# --- the worst case ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", FLOATS, ids=lambda m: m.name)
def test_no_error_is_above_the_worst_case_which_adversaries_reach(model: Model) -> None:
    k = 3 * max(model.k, model.length) + 1
    drawn = of_rows(model, random_rows(model, k, ROWS, 1))
    usual = of_rows(model, usual_rows(model, k, ROWS, 2))
    hard = bounds.dot(*adversaries(model), model)
    for found in (drawn, usual, hard):
        assert (found.measured <= found.worst).all(), str(found)
    # From the shape alone: in the normal range, beyond which all operands of these rows lie well.
    for found in (usual, hard):
        fine = np.isfinite(found.worst) & (found.magnitude > 2.0 ** (model.format_d.emin / 2))
        assert (found.measured <= found.gamma * found.magnitude)[fine].all()
    assert np.isfinite(usual.worst).all()
    assert np.isfinite(drawn.worst).mean() > 0.2
    assert hard.used > REACHED, str(hard)


def halved(good: Callable[..., Iterator[units.Rounded]]) -> Callable[..., Iterator[units.Rounded]]:
    def roundings(*args: Any) -> Iterator[units.Rounded]:
        for one in good(*args):
            yield one._replace(most=one.most / 2) if one.directed else one

    return roundings


def finer(good: Callable[..., Iterator[units.Rounded]]) -> Callable[..., Iterator[units.Rounded]]:
    def roundings(self: Any, model: Model, of: units.Known) -> Iterator[units.Rounded]:
        yield from good(self, dataclasses.replace(model, alignment_bits=model.alignment_bits + 1), of)

    return roundings


def one_step_less(good: Callable[..., Any]) -> Callable[..., Any]:
    def chain(model: Model, x: Any, partial: Any) -> Any:
        return good(model, x.of(np.arange(x.a.shape[1] - units.of(model).width(model))), partial)

    return chain


def without_c(good: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, model, of: good(self, model, of._replace(entering=0 * of.entering))


MUTANTS = {
    "one epsilon less": ("fplab.tensorcore.units.block.FusedBlocks.roundings", finer, "A100"),
    "truncation taken for rounding": ("fplab.tensorcore.units.block.FusedBlocks.roundings", halved, "A100"),
    "one step less": ("fplab.bounds._chain", one_step_less, "MI210"),
    "the accumulator aligns nothing": ("fplab.tensorcore.units.block.FusedBlocks.roundings", without_c, "H100"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_worst_case_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, fault, gpu = MUTANTS[name]
    owner, _, attribute = target.rpartition(".")
    home = pkgutil.resolve_name(owner)
    monkeypatch.setattr(home, attribute, fault(getattr(home, attribute)))
    found = bounds.dot(*adversaries(cell(gpu)), cell(gpu))
    bounds._of_shape.cache_clear()
    assert (found.measured > found.worst).any()


PLANS = (
    Plan(split_k=3), Plan(split_k=4, reduction="pairwise"), Plan(accumulators=3), Plan(stream_k=3, tile=(4, 4, 64)),
    Plan(promote=64), Plan(split_k=2, accumulators=2, promote=64, reduction="descending"),
)  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize(("gpu", "inputs", "output"), [
    ("A100", "fp16", "fp32"), ("H100", "fp16", "fp16"), ("H100", "e4m3", "fp32"), ("MI300X", "fp16", "fp32"),
])  # fmt: skip
def test_a_plan_is_followed(gpu: str, inputs: str, output: str, plan: Plan) -> None:
    rng = np.random.default_rng(3)
    a, b, c = rng.random((9, 400)), rng.random((400, 7)), rng.random((9, 7))
    found = bounds.matmul(a, b, c, gpu, inputs, output, plan=plan)
    assert (found.measured <= found.worst).all()
    assert (found.worst <= found.gamma * found.magnitude).all()
    assert found.used > 0.05
    chain = bounds.matmul(a, b, c, gpu, inputs, output)
    if output == "fp16" and plan.promote is None and plan.stream_k is None:  # shorter chains round less often
        assert (found.worst < chain.worst).all()
    x, y, z = (v.astype(np.float64) for v in (fplab.quantize(a, inputs), fplab.quantize(b, inputs), c))
    z = fplab.quantize(z, output).astype(np.float64)
    product = fplab.tensorcore.matmul(a, b, c, gpu, inputs, output, plan=plan)
    want = [
        abs(
            Fraction(float(product[0, j]))
            - Fraction(float(z[0, j]))
            - sum(Fraction(p) * Fraction(q) for p, q in zip(x[0], y[:, j], strict=True))
        )
        for j in range(7)
    ]
    assert found.measured[0].tolist() == [float(w) for w in want]  # the exact error, rounded once


def test_bounds_by_hand() -> None:
    u = 2.0**-53
    one = bounds.gamma(1000, "A100", "fp64").worst
    assert math.isclose(one, 1001 * u, rel_tol=1e-11)  # a chain of 1,000 and one rounding more; u squared is far below
    assert math.isclose(
        bounds.gamma(8, "A100", instruction="mma.k8").worst, (8 + 9) * 2.0**-24 + 2 * 2.0**-23, rel_tol=1e-5
    )
    assert bounds.gamma(512, "A100", "int8") == (0, 0)
    one_block = cell("A100", instruction="mma.k8")  # nine terms are cut below 2**-24, then a sum
    row = bounds.dot([[1.0] * 8], [[2.0**-12] * 8], [1.0], one_block)
    assert math.isclose(row.worst[0], 9 * 2.0**-24 + (1 + 2.0**-9 + 9 * 2.0**-24) * 2.0**-23, rel_tol=1e-9)
    half = bounds.gamma(4096, "H100", plan=Plan(split_k=2)).worst
    assert half < 0.52 * bounds.gamma(4096, "H100").worst
    assert np.isinf(bounds.dot([1e4] * 16, [1.0] * 16, gpu="A100", output="fp16").worst)  # overflows
    wraps = bounds.dot(np.full((1, 2**18), -128), np.full((1, 2**18), -128), gpu="A100", inputs="int8")
    assert np.isinf(wraps.worst[0])
    assert wraps.measured[0] == 2.0**32
    assert bounds.dot([[7] * 64], [[9] * 64], gpu="A100", inputs="int8").worst[0] == 0


def test_zeros_are_no_normal_numbers() -> None:
    """A zero's partner on CDNA3, and the scales of a group of zeros, align other terms: gamma does not see them."""
    zeros = {"a": [0.5] + [0.0] * 32, "b": [0.5] + [1.0] * 32}
    large = {"scale_a": [1.0, 2.0**30], "scale_b": [1.0, 2.0**30]}
    for found in (bounds.dot([0.0, 2.0**-30], [2.0**100, 2.0**-30], gpu="MI300X", inputs="bf16"),
                  bounds.dot(**zeros, **large, gpu="B200", inputs="mxfp4")):  # fmt: skip
        assert found.gamma * found.magnitude < found.measured == found.magnitude <= found.worst


@pytest.mark.parametrize("inputs", ["mxfp8_e4m3", "mxfp4", "nvfp4"])
def test_block_scales(inputs: str) -> None:
    rng = np.random.default_rng(4)
    group = 16 if inputs == "nvfp4" else 32
    a, b = rng.standard_normal((6, 128)), rng.standard_normal((128, 5))
    sa, sb = (2.0 ** rng.integers(-3, 4, shape) for shape in ((6, 128 // group), (128 // group, 5)))
    found = bounds.matmul(a, b, gpu="B200", inputs=inputs, scale_a=sa, scale_b=sb)
    assert (found.measured <= found.worst).all()
    row = bounds.dot(a[0], b[:, 0], gpu="B200", inputs=inputs, scale_a=sa[0], scale_b=sb[:, 0])
    assert (row.worst, row.measured) == (found.worst[0, 0], found.measured[0, 0])


def test_exact_errors_of_fp64_are_exact() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2, 40, 9)) * 2.0 ** rng.integers(-30, 30, (2, 40, 9))
    a[0, 0], b[0, 0], c = 2.0**-600, 2.0**-450, rng.standard_normal(40)  # a product that no float64 holds in two parts
    computed = rng.standard_normal(40)
    error, total = bounds.off(a, b, c, computed)
    for i in range(40):
        terms = [exact.from_float(float(x)) for x in (*a[i], c[i])], [exact.from_float(float(x)) for x in (*b[i], 1.0)]
        want = exact.dot(*terms)[0].value
        assert (error[i], total[i]) == (float(abs(want - Fraction(computed[i]))), float(want))


# --- formats and high probability ----------------------------------------------------------------------------------
@pytest.mark.parametrize("order", bounds.ORDERS)
@pytest.mark.parametrize(("acc", "rounding"), [
    ("fp16", "rne"), ("bf16", "rna"), ("fp16", "rtz"), ("bf16", "rtp"), ("fp16", "odd"), ("bf16", "stochastic"),
    ("fp32", "rne"),
])  # fmt: skip
def test_sums_in_formats(acc: str, rounding: str, order: str) -> None:
    rng = np.random.default_rng(6)
    seed = 7 if rounding == "stochastic" else None
    how = {"accumulate": acc, "order": order, "rounding": rounding, "block": 16, "seed": seed}
    spread = rng.standard_normal((300, 96)) * 2.0 ** rng.integers(-8, 5, (300, 96))
    step = 2.0 ** -get(acc).fraction_bits
    hard = np.full((32, 96), step / 2) * np.linspace(0.9, 2, 32)[:, None]
    hard[:, 0] = 1
    for x in (spread, np.abs(spread), hard, spread * 2.0**-20):
        for y in (None, spread[: len(x)]) if order != "pairwise" else (None,):
            found = bounds.sums(x, y, "fp32", **how)
            assert (found.measured <= found.worst).all()
            assert (found.worst <= found.gamma * found.magnitude * 1.001 + 400 * get(acc).smallest_subnormal).all()
    if order == "sequential" and rounding not in ("stochastic", "rtp"):  # which go up, too
        assert bounds.sums(hard, fmt="fp32", **how).used > REACHED


SEEDS = 20


def exceeded(k: int = 1024, **how: Any) -> np.ndarray:
    """The share of sums above the probable bound, by seed: positive terms, whose errors do not cancel by sign."""
    x = np.concatenate([np.random.default_rng(seed).random((50, k)) for seed in range(SEEDS)])
    own = {"seed": 1} if how.get("rounding") == "stochastic" else {}
    found = bounds.sums(x, fmt="fp32", rate=RATE, **how, **own)
    return (found.measured > found.probable).reshape(SEEDS, -1).mean(axis=1)


RANDOM = (
    {"accumulate": "bf16", "rounding": "stochastic"},
    {"accumulate": "bf16", "rounding": "stochastic", "random_bits": 3},
    {"accumulate": "fp32", "rounding": "rne"},
)  # fmt: skip


@pytest.mark.parametrize("how", RANDOM, ids=str)
def test_the_probable_bound_fails_no_more_often_than_it_says(how: dict[str, Any]) -> None:
    assert exceeded(**how).max() <= RATE


def forgets_the_root(good: Any) -> Any:
    """One rounding's reach for all n of them."""
    return property(lambda self: good.fget(dataclasses.replace(self, square=self.square / 1024)))


def forgets_the_drift(good: Any) -> Any:
    return property(lambda self: good.fget(dataclasses.replace(self, drift=0 * self.drift)))


@pytest.mark.parametrize(("fault", "how"), [
    (forgets_the_root, RANDOM[0]), (forgets_the_drift, {"accumulate": "bf16", "rounding": "rtz"}),
    (forgets_the_drift, {"accumulate": "fp16", "rounding": "stochastic", "random_bits": 1, "k": 3072}),
], ids=["root", "drift", "drift of few bits"])  # fmt: skip
def test_a_mutant_of_the_probable_bound_is_killed(
    fault: Any, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exceeded(**how).max() <= RATE
    monkeypatch.setattr(bounds.Partial, "likely", fault(bounds.Partial.likely))
    assert exceeded(**how).max() > RATE


def test_data_can_break_the_assumption_but_not_the_worst_case() -> None:
    """Terms that are each just under half a place of the sum are all lost: errors to nearest of one sign."""
    row = np.full(201, 0.999 * 2.0**-12)
    row[0] = 1
    found = bounds.sums(row, fmt="fp32", accumulate="fp16")
    assert found.probable < found.measured <= found.worst
    assert found.exceeded == 1
    rows = np.stack([row, np.ones_like(row)])  # of which the second has no error
    assert bounds.sums(rows, fmt="fp32", accumulate="fp16").exceeded == 0.5
    assert "above the probable bound: 50.00%" in str(bounds.sums(rows, fmt="fp32", accumulate="fp16"))


def test_few_random_bits_are_those_of_the_definition() -> None:
    """Half a place up with two random bits: 3/8 of a place is cut to 1/4, so one sum in four goes up."""
    row = np.array([1.0, 0.375 * 2.0**-7])
    ups = {}
    for few in (1, 2, 3, 32):
        found = bounds.sums(np.tile(row, (4000, 1)), fmt="fp32", accumulate="bf16", rounding="stochastic", seed=1,
                            random_bits=few)  # fmt: skip
        ups[few] = float((found.measured > 0.5 * 2.0**-7).mean())
    assert ups[1] == 0
    assert ups == pytest.approx({1: 0, 2: 0.25, 3: 0.375, 32: 0.375}, abs=0.03)


def test_few_random_bits_see_the_exact_sum() -> None:
    """Neither are operands rounded on the way in, nor does a format without infinities end one binade early."""
    how: dict[str, Any] = {"rounding": "stochastic", "random_bits": 2, "seed": 1}
    within = bounds.sums(np.tile([416.0, 9.0], (200, 1)), fmt="e4m3", accumulate="e4m3", **how)
    assert set(within.measured) == {425.0 - 416.0, 448.0 - 425.0}
    product = 44 * 2.0**-10  # 44 is beyond E3M2
    wider = bounds.sums(np.full((200, 1), 2.0**-10), np.full((200, 1), 44.0), "fp32", "e3m2", **how)
    assert set(wider.measured) == {product, 2.0**-4 - product}
    below_one = bounds.sums(np.full((200, 1), 1 + 2.0**-40), np.full((200, 1), 1 - 2.0**-40), "fp64", "bf16", **how)
    assert set(below_one.measured) == {2.0**-80, 2.0**-8 - 2.0**-80}  # 1 - 2**-80, of which FP64 makes 1
    beyond = bounds.sums([65504.0, 65504.0, -65504.0], accumulate="fp16", **how)
    assert beyond.measured == beyond.worst == np.inf


# --- at the ends of the formats ---------------------------------------------------------------------------------
def test_the_cast_of_the_result_is_in_every_bound() -> None:
    cast = bounds.dot([1.0], [1.0], [2.0**-11], store="fp16")
    assert cast.measured == 2.0**-11
    assert cast.measured <= cast.gamma * cast.magnitude
    assert bounds.dot([1.0], [1.0], [1e6], store="fp16").worst == np.inf


def test_an_overflow_has_an_infinite_bound_and_no_warning() -> None:
    most = np.finfo(np.float64).max
    for found in (bounds.dot([65504.0], [65504.0], output="fp16"), bounds.sums([65504.0] * 2, accumulate="fp16"),
                  bounds.sums([most], None, "fp64", rounding="stochastic", random_bits=3, seed=1),
                  bounds.dot([most], [2.0], gpu="A100", inputs="fp64", output="fp64"),
                  bounds.dot([most, most], [2.0, -2.0], gpu="A100", inputs="fp64", output="fp64")):  # fmt: skip
        assert found.measured == found.worst == np.inf
        assert found.used == 0
        assert "inf" in str(found)


def test_fp64_underflows_within_its_bound() -> None:
    tiny = bounds.dot([5e-324] * 3, [0.7] * 3, gpu="A100", inputs="fp64", output="fp64")
    assert 0 < tiny.measured <= tiny.worst


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0), (2, 0, 3), (0, 0, 0)])
def test_empty_products_have_bounds(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    found = bounds.matmul(np.zeros((m, k)), np.zeros((k, n)))
    assert found.worst.shape == found.measured.shape == (m, n)
    assert found.k == k
    assert not found.worst.any()


# --- the report ------------------------------------------------------------------------------------------------------
REPORT = """\
H100 wgmma.k16 fp16->fp32 (emulated): 1 results, K = 64
relative to |c| + sum |a b|               median    largest
measured error                          0.00e+00   0.00e+00
probable bound (all but 1.00%)          9.19e-07   9.19e-07
worst case, these magnitudes (proved)   1.07e-06   1.07e-06
worst case, this shape (proved)         3.10e-06   3.10e-06
condition number                        1.00e+00   1.00e+00
of the worst case 0.0% is used; above the probable bound: 0.00%; assumed: errors to nearest have
  mean zero whatever came before; truncation takes half of its most"""


def test_the_report() -> None:
    found = bounds.dot(np.ones(64), np.ones(64))
    assert str(found) == REPORT
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.k = 1  # type: ignore[misc]


test_errors = refusals.saying(
    (lambda: bounds.dot([1.0], [np.nan]), "fplab.bounds.dot([1.0], [nan]): b holds nan; a bound needs finite"),
    (lambda: bounds.dot([1.0], [1.0], store="e8m0"), "store='e8m0' has no bounds; allowed: formats with negative"),
    (lambda: bounds.sums([-1.0], accumulate="e8m0"), "accumulate='e8m0' has no bounds; allowed: formats with neg"),
    (lambda: bounds.dot([1.0], [1.0], rate=0), "rate=0 is not possible; allowed: above 0 and below 1."),
    (lambda: bounds.matmul([1.0], [[1.0]]), "a has shape (1,) and b (1, 1); matrices (M, K) and (K, N) are needed."),
    (lambda: bounds.matmul([[1.0]], [[1.0]], plan=Plan(c="epilogue")), "plan.c='epilogue' is not followed here"),
    (lambda: bounds.matmul([[1.0]], [[1.0]], plan=Plan(activation="relu")), "plan.activation='relu' is not followed"),
    (lambda: bounds.gamma(8, "A100", "fp64", plan=Plan(promote=8)), "promote=8 is for FP16, BF16, TF32 and FP8; fp64"),
    (lambda: bounds.gamma(8, plan=Plan(stream_k=2)), "stream_k=2 cuts k by the shape of the result, too; ask bounds."),
    (lambda: bounds.sums([1.0], order="kahan"), "unknown order 'kahan'. Allowed: sequential, pairwise, blocked."),
    (lambda: bounds.sums([1.0], [1.0], order="pairwise"), "order='pairwise' rounds each product first"),
    (lambda: bounds.sums([1.0], random_bits=4), "random_bits=4 is for rounding='stochastic' and order='sequential'."),
    (lambda: bounds.sums([1.0], rounding="stochastic", random_bits=30),
     "random_bits=30 is not possible with accumulate='fp32'; allowed: 1 to 29, 32."),
    (lambda: bounds.sums([1.0], [1.0, 2.0]), "x has shape (1, 1) and y (1, 2); both must be (N, K), or (K,) for one"),
)  # fmt: skip
