"""The experiment ``split``: the parts, the bounds, checks that can fail, GPU cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_frame import Mutant, computed_on_cpu, drawn, forged, frame, kills, repeats
from hypothesis import given, settings
from hypothesis import strategies as st

from fplab import exact_products as whole
from fplab import tensorcore
from fplab.experiments import split
from fplab.experiments.partial_products.operands import sizes
from fplab.experiments.split import cases, checks, methods, parts
from fplab.hardware.cases import Arrays, Case

UNIT = Fraction(2) ** whole.UNIT
Change = Callable[[np.ndarray], Any]

SMALL = split.Params(rows=4, log2_last=12, values=256)
arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(split, SMALL)


# --- every check can fail --------------------------------------------------------------------------------------------


def _scale(name: str, factor: float) -> Change:
    """Multiply the results of one method."""

    def apply(array: np.ndarray) -> None:
        array[methods.index(name)] *= np.float32(factor)

    return apply


def _copy(source: str, target: str) -> Change:
    """Give one method the results of another."""

    def apply(array: np.ndarray) -> None:
        array[methods.index(target)] = array[methods.index(source)]

    return apply


def _add(place: Any, value: float) -> Change:
    def apply(array: np.ndarray) -> None:
        array[place] += np.asarray(value).astype(array.dtype)

    return apply


def off(array: str, change: Change) -> Callable[[Arrays], Arrays]:
    """One array changed."""

    def apply(arrays: Arrays) -> Arrays:
        change(arrays[array])
        return {array: arrays[array]}

    return apply


REAL = checks.REAL
BOUND, RANGE, PARTS = "No error is above", "The scale 2^11", "Added exactly"
OUTSIDE, INSIDE, GRADIENTS = "Three products, added", "Added inside", "Real gradients"
MUTANTS = (
    Mutant("a bit less to nearest", ("Two FP16 parts",), change=off("lost", _add((0, 1), 1))),
    Mutant("a bit more truncated", ("Two FP16 parts",), change=off("lost", _add((1, 3), -1))),
    Mutant("truncated parts", ("The parts are",), "checks.SCALED",
           lambda scheme: dataclasses.replace(scheme, rounding="rtz"),
           params=split.Params(rows=2, log2_last=4, values=4)),
    Mutant("a binade that is lost", (RANGE,), change=off("binades", _add((2, 50), 1e-3))),
    Mutant("TF32 with an end", (RANGE,), change=off("binades", _add((3, 0), 1e-3))),
    Mutant("a third product that misses", (PARTS,), change=off("positive: partial", _add((2, 0, 0, 0, 8), 1 << 20))),
    Mutant("a large fourth", (PARTS,), change=off("random: partial", _add((3, 0, 0, 0, 8), 1 << 19))),
    Mutant("no fourth", (PARTS,), change=lambda arrays: {"random: partial": _without_fourth(arrays)}),
    Mutant("outside too large", (BOUND,), change=off("positive: results", _scale("3 scaled, outside, H100", 1.0001))),
    Mutant("FP32 too large", (BOUND,), change=off("positive: results", _scale("FP32 multiply-adds", 1.001))),
    Mutant("bounds eight times too large", (BOUND,), "methods.Measured.bound",
           lambda bound: lambda self, i: None if bound(self, i) is None else 8 * bound(self, i),
           params=split.Params(rows=4, log2_last=9, values=4)),
    *(Mutant(f"outside is inside, {gpu}", (INSIDE,), change=off(
        "positive: results", _copy(f"3 scaled, inside, {gpu}", f"3 scaled, outside, {gpu}"))) for gpu in methods.GPUS),
    Mutant("added inside after all", (OUTSIDE,), change=off(
        "positive: results", _copy("3 scaled, inside, A100", "3 scaled, outside, A100"))),
    Mutant("inside is above", (INSIDE,), change=off("positive: results", _scale("3 scaled, inside, H100", 1.01))),
    Mutant("scaled after all", ("Without the scale",), change=off(
        "small: results", _copy("3 scaled, outside, A100", "3 products"))),
    Mutant("TF32 parts as narrow as FP16's", (GRADIENTS,), change=off(
        f"{REAL}: results", _copy("3 scaled, outside, A100", "3 TF32 scaled, outside"))),
    Mutant("FP16 parts as wide as FP32", (GRADIENTS,), change=off(
        f"{REAL}: results", _copy("FP32 multiply-adds", "3 scaled, outside, A100"))),
)  # fmt: skip
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(split, SMALL, MUTANTS)


def _without_fourth(arrays: Arrays) -> np.ndarray:
    found = arrays["random: partial"]
    found[3] = found[2]
    return found


def test_outside_is_c_0_for_each_instruction_and_numpys_additions(arrays: Arrays) -> None:
    for gpu in methods.GPUS:
        (ah, al), (bh, bl) = (
            parts.split(arrays[f"random: {part}"].view(np.float32)[:, :1024], parts.SCALED) for part in "ab"
        )
        sums = np.zeros((2, len(ah), len(bh)), np.float32)
        for which, a, b in ((0, ah, bh), (1, ah, bl), (1, al, bh)):
            for start in range(0, 1024, 16):
                s = slice(start, start + 16)
                sums[which] += tensorcore.matmul(a[:, s], b[:, s].T, gpu=gpu)
        got = arrays["random: results"][methods.index(f"3 scaled, outside, {gpu}"), ..., 6]
        assert np.array_equal(got, sums[0] + sums[1] / np.float32(2048))


# --- parts -----------------------------------------------------------------------------------------------------------


@given(st.floats(2.0**-13, 60000, width=32), st.booleans())
def test_parts_miss_at_most_a_unit_and_low_has_half_a_unit_of_high(value: float, negative: bool) -> None:
    x = np.array([-value if negative else value], np.float32)
    high, low = (Fraction(float(v[0])) for v in parts.split(x, parts.SCALED))
    left = Fraction(float(x[0])) - high - low / 2048
    unit = Fraction(2) ** (int(np.frexp(value)[1]) - 24)
    assert left in (0, unit, -unit)
    assert abs(low) / 2048 <= abs(Fraction(float(x[0]))) / 2048
    assert left == Fraction(float(parts.missing(x, parts.SCALED)[0]))


def test_the_lost_bits_are_those_of_a_count_by_hand() -> None:
    """13 bits are left; to nearest they are an integer from -4096 to 4096, of which low keeps 11 bits."""
    left = np.arange(8192)
    nearest = np.where(left > 4096, left - 8192, left)  # the share of ties is even
    odd = (np.abs(nearest) > 2048) & (nearest % 2 == 1)
    assert odd.mean() == 0.25
    assert (parts.lost() / 2.0**23).tolist() == [[0.75, 0.25, 0, 0], [0.5, 0.25, 0.125, 0.125]]


def test_schemes_keep_what_they_should() -> None:
    x = np.array([1 + 2.0**-23, 3.0, 70000.0, 2.0**-40], np.float32)
    assert (parts.missing(x, parts.TF32) == [2.0**-23 * 0, 0, 0, 0]).all()
    assert (parts.split(x, parts.ALONE)[1] == 0).all()
    high, low = parts.split(x, parts.PLAIN)
    assert high.tolist() == [1, 3, np.inf, 0]
    assert low[0] == 2.0**-23


# --- methods ---------------------------------------------------------------------------------------------------------


def test_products_are_taken_as_the_papers_say() -> None:
    a, b = methods.operands("random", 3, 6)
    (ah, al), (bh, bl) = (parts.split(x, parts.PLAIN) for x in (a, b))
    c = None
    for x, y in ((al, bl), (ah, bl), (al, bh), (ah, bh)):
        c = tensorcore.matmul(x, y.T, c, gpu="A100")
    four = methods.Method("", parts.PLAIN, 4)
    assert np.array_equal(methods.multiply(a, b, four), c)
    assert np.array_equal(methods.multiply(a, b, methods.Method("")), tensorcore.matmul(ah, bh.T, gpu="A100"))
    (ah, al), (bh, bl) = (parts.split(x, parts.SCALED) for x in (a, b))
    mixed = tensorcore.matmul(al, bh.T, tensorcore.matmul(ah, bl.T, gpu="H100"), gpu="H100")
    want = tensorcore.matmul(ah, bh.T, gpu="H100") + mixed / np.float32(2048)
    assert np.array_equal(methods.multiply(a, b, methods.Method("", parts.SCALED, 3, gpu="H100")), want)


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(-8, 12), st.booleans())
def test_bounds_hold_on_other_operands(seed: int, exponent: int, positive: bool) -> None:
    rng = np.random.default_rng(seed)
    a, b = (np.ldexp(rng.random((2, 64)) - (0 if positive else 0.5), exponent).astype(np.float32) for _ in range(2))
    b = np.ldexp(b, -exponent)
    one = methods.of_kind({f"x: {k}": v for k, v in methods.measured(a, b).items()}, "x")
    assert one.lengths.tolist() == sizes(6).tolist()
    assert (np.abs(one.partial[2] - one.exact) <= one.split_bound()).all()
    for i, method in enumerate(methods.METHODS):
        bound = one.bound(i)
        if bound is not None:
            assert (one.errors[i] <= bound).all(), method.name
            assert (bound < one.magnitude // 1000).all()


def test_partial_sums_are_exact() -> None:
    a, b = (x[:1, :16] for x in methods.operands("random", 1, 4))
    got = methods.partial_sums(a, b, np.array([16]))[:, 0, 0, 0]
    (ah, al), (bh, bl) = ([[Fraction(float(v)) for v in p[0]] for p in parts.split(x, parts.SCALED)] for x in (a, b))
    total = Fraction(0)
    for i, (x, y, scale) in enumerate(((ah, bh, 1), (al, bh, 2048), (ah, bl, 2048), (al, bl, 2048**2))):
        total += sum(p * q for p, q in zip(x, y, strict=True)) / scale
        assert got[i] * UNIT == total


def test_the_bound_outside_grows_sixteen_times_slower() -> None:
    one = methods.of_kind(
        {f"x: {k}": v for k, v in methods.measured(*methods.operands("positive", 1, 12)).items()}, "x"
    )
    inside, outside = (whole.ratio(one.sum_bound("A100", w), one.magnitude).ravel() for w in (False, True))
    assert inside[0] <= outside[0]
    growth = (inside[-1] - inside[-2]) / (outside[-1] - outside[-2])
    assert 16 < growth < 19


# --- outputs and devices ---------------------------------------------------------------------------------------------


def test_made_up_arrays_are_the_same_every_time(arrays: Arrays) -> None:
    repeats(split, arrays, SMALL)


def test_the_table_has_every_method(arrays: Arrays) -> None:
    rows = list(zip(*split.table(arrays, SMALL).values(), strict=True))
    lengths = [arrays[f"{kind}: exact"].shape[2] for kind in methods.KINDS]
    assert len(rows) == len(methods.METHODS) * sum(lengths)
    assert all(0 <= mean <= most and not most > bound for *_, mean, most, bound in rows)


def test_figures_are_drawn_in_both_themes(arrays: Arrays, tmp_path: Path) -> None:
    for theme in ("light", "dark"):
        figure, _ = drawn(split, arrays, SMALL, theme, tmp_path)
        assert len(figure.axes) == 7


def test_the_cpu_gives_the_emulated_bits_of_every_case() -> None:
    pytest.importorskip("torch")
    for case in split.gpu_cases(SMALL):
        computed_on_cpu(case)
        assert sum(x.nbytes for x in case.inputs().values()) <= 1 << 20


def test_what_runs_on_a_gpu_adds_as_the_lab_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's own path, with a product of the lab's in the place of torch's."""
    torch = pytest.importorskip("torch")
    case = next(c for c in split.gpu_cases(SMALL) if c.name.startswith("positive, K = 256"))
    inputs = case.inputs()
    x, y = (cases.tensor(inputs[name], "fp32", "cpu") for name in "ab")

    def multiply(a: Any, b: Any) -> Any:
        return torch.from_numpy(tensorcore.matmul(a.float().numpy(), b.float().numpy(), gpu="A100"))

    got = cases.added(cases.torch_parts(x), cases.torch_parts(y), multiply)
    want = case.emulate(inputs, {"kind": "cuda", "device": "NVIDIA A100-SXM4-80GB"})
    assert all(np.array_equal(got[name], want[name]) for name in want)
    other = case.hypotheses["instructions of k = 8"](inputs, {"kind": "cpu"})
    assert not np.array_equal(other["d"], case.emulate(inputs, {"kind": "cpu"})["d"])


def test_the_experiment_multiplies_as_the_cases_do(arrays: Arrays) -> None:
    inputs = cases.given("positive", 256, SMALL)
    got = cases.outside_emulate(inputs, {"kind": "cpu"})["d"].view(np.float32)
    at = sizes(8).size - 1
    assert np.array_equal(got, arrays["positive: results"][methods.index("3 scaled, outside, H100"), ..., at])
    assert cases.high_parts("positive", SMALL)[0].shape == (SMALL.rows, cases.LONG)


@pytest.mark.parametrize("case", split.gpu_cases(SMALL)[3:6], ids=lambda case: case.name)
def test_a_forged_record_fails(case: Case) -> None:
    forged(case)
