"""The experiment ``tf32``: conversions, bounds, the published example, checks that can fail, GPU cases."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_frame import computed_on_cpu, drawn, failing, frame, repeats

from fplab import exact_products as whole
from fplab import tensorcore
from fplab.experiments import tf32
from fplab.experiments.base import Status
from fplab.experiments.partial_products import bounds
from fplab.experiments.tf32 import cases, checks, operands, products
from fplab.hardware.cases import Arrays
from fplab.tensorcore.models import get

UNIT = Fraction(2) ** whole.UNIT
Change = Callable[[np.ndarray], Any]

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(tf32, tf32.QUICK)


# --- every check can fail --------------------------------------------------------------------------------------------


def _scale(gpu: str, conversion: str, factor: float) -> Change:
    """Multiply the results of one variant."""

    def apply(array: np.ndarray) -> None:
        array[products.index(gpu, conversion)] *= np.float32(factor)

    return apply


def _add(place: Any, value: int) -> Change:
    def apply(array: np.ndarray) -> None:
        array[place] += np.asarray(value).astype(array.dtype)

    return apply


def _scale_all(factor: float) -> Change:
    def apply(array: np.ndarray) -> None:
        array *= factor

    return apply


MUTANTS: list[tuple[Any, str, Change]] = [
    (checks.means, "low bits", _add((0, 0, 5), 1)),
    (checks.means, "low bits", _add((2, 1, 5), 1)),
    (checks.ties, "low bits", _add((1, 1, 4096), 1)),
    (checks.converted_first, "random: results", _scale("A100", "rna", -1)),
    (checks.bounds_hold, "positive: results", _scale("H100", "rne", 1.01)),
    (checks.bounds_hold, "positive: results", _scale("", "", 1.01)),
    (checks.parts_hold, "positive: results", _scale("A100", "truncate", 1.004)),
    (checks.parts_hold, "random: converted", _add((1, 0, 0, 2, 8), 1 << 30)),
    (checks.conversion_decides, "random: results", _scale("A100", "rne", 1.01)),
    (checks.conversion_decides, "random: results", _scale("", "", 1.001)),
    (checks.shrinks, "positive: converted", _add((0, 0, 0, 0, 9), 1 << 30)),
    (checks.shrinks, "positive: converted", _add((2, 0, 0, -1, 8), 1 << 25)),
    (checks.published_error, "published: errors", _scale_all(0.5)),
    (checks.published_error, "published: exact", _scale_all(1.5)),
]


@pytest.mark.parametrize(("check", "name", "change"), MUTANTS, ids=lambda v: getattr(v, "__name__", None))
def test_a_wrong_number_fails(arrays: Arrays, check: Any, name: str, change: Change) -> None:
    wrong = {**arrays, name: arrays[name].copy()}
    change(wrong[name])
    failing(check, wrong, tf32.QUICK)


@pytest.mark.parametrize("check", [checks.formulas, checks.half_precision])
@pytest.mark.parametrize("mode", ["odd", "rtp"])
def test_another_rounding_fails(arrays: Arrays, check: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in operands.ROUNDINGS:
        monkeypatch.setitem(operands.ROUNDINGS, name, mode)
    assert check(arrays, tf32.QUICK).status is Status.FAIL


def test_a_gpu_with_another_block_fails(arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CORES", ("A100",))
    assert checks.gpus(arrays, tf32.QUICK).status is Status.FAIL


def test_every_check_has_a_mutant() -> None:
    others = {checks.formulas, checks.half_precision, checks.gpus}
    assert {check.check for check in tf32.CHECKS} == {mutant[0] for mutant in MUTANTS} | others


# --- parts -----------------------------------------------------------------------------------------------------------


def test_made_up_operands_are_multiples_that_fp32_holds() -> None:
    for kind, low in (("random", -1.0), ("positive", 0.0)):
        for x in operands.make(kind, 3, 10):
            assert x.dtype == np.float32
            assert x.min() >= low
            assert x.max() < 1
            assert (np.ldexp(x.astype(np.float64), 25) % 1 == 0).all()
            assert (x.view(np.uint32) & np.uint32(0x1FFF)).any()


def test_nearly_normal_numbers_have_mean_zero_and_variance_one() -> None:
    x = operands.nearly_normal(7, 16).astype(np.float64)
    count = x.size
    assert abs(x.mean()) < 5 / count**0.5
    assert abs(x.var() - 1) < 8 / count**0.5


def test_low_bits_are_the_errors_of_the_conversions() -> None:
    low = operands.low_bits()
    assert low[0, 0].tolist() == [-i for i in range(8192)]
    assert low[1, 0, [0, 4095, 4096, 8191]].tolist() == [0, -4095, 4096, 1]
    assert low[2, 0, 4096] == -4096
    assert low[2, 1, 4096] == 4096


def test_exact_sums_and_bounds_are_those_of_fractions() -> None:
    a, b = operands.make("random", 2, 4)
    one = products.of_kind({f"x: {k}": v for k, v in products.measured(a, b).items()}, "x")
    for m, n in np.ndindex(2, 2):
        pairs = [(Fraction(float(x)), Fraction(float(y))) for x, y in zip(a[m], b[n], strict=True)]
        total = sum(abs(x * y) for x, y in pairs)
        assert one.exact[m, n, 0] * UNIT == sum(x * y for x, y in pairs)
        for conversion, d in (("truncate", Fraction(1, 2**10)), ("rne", Fraction(1, 2**11))):
            bound = one.conversion_bound(conversion)[m, n, 0]
            assert bound == ((2 * d + d * d) * total / UNIT) // 1
    i = products.index("H100", "rne")
    kept = one.kept[2]
    assert one.chain_bound(i)[0, 0, 0] == 16 * (7 * Fraction(1, 2**25) + Fraction(1, 2**23)) / 8 * kept[0, 0, 0] // 1


@pytest.mark.parametrize("gpu", products.CORES)
def test_the_chains_rate_is_that_of_fp16_products(gpu: str) -> None:
    model = get(gpu, "tf32")
    positive = np.full((1, 1024), 1.0, np.float32)
    positive[0, 1:] = 2.0**-12 * (2 - 2.0**-10)
    b = np.full((1024, 1), 1.0, np.float32)
    b[1:] = 2.0**-13
    got = tensorcore.matmul(positive, b, gpu=gpu, inputs="tf32")
    exact = whole.products(positive, b.T, np.array([1024]))[..., 0]
    error = (exact - whole.of_values(got))[0, 0]
    bound = 1024 * bounds.rate(model) * exact[0, 0]
    assert bound / 4 < error <= bound


def test_a_product_is_the_same_in_pieces() -> None:
    a, b = operands.make("random", 3, 8)
    one = products.Variant("A100", "rna")
    got = products.results(a, b, one, np.array([16, 64, 256]))
    want = tensorcore.matmul(a, b.T, gpu="A100", inputs="tf32", conversion="rna")
    assert np.array_equal(got[..., -1], want)


# --- outputs and devices ---------------------------------------------------------------------------------------------


def test_made_up_arrays_are_the_same_every_time(arrays: Arrays) -> None:
    repeats(tf32, arrays, tf32.QUICK)


def test_the_table_has_every_variant(arrays: Arrays) -> None:
    rows = list(zip(*tf32.table(arrays, tf32.QUICK).values(), strict=True))
    lengths = [arrays[f"{kind}: exact"].shape[2] for kind in products.KINDS]
    assert len(rows) == len(products.VARIANTS) * sum(lengths)
    assert all(0 <= mean <= most <= bound for *_, mean, most, bound in rows)


def test_figures_are_drawn_in_both_themes(arrays: Arrays, tmp_path: Path) -> None:
    for theme in ("light", "dark"):
        figure, _ = drawn(tf32, arrays, tf32.QUICK, theme, tmp_path)
        assert len(figure.axes) == 9


def test_the_stand_in_gives_the_emulated_bits_of_every_case() -> None:
    for case in tf32.gpu_cases(tf32.QUICK):
        computed_on_cpu(case)
        assert sum(x.nbytes for x in case.inputs().values()) <= 1 << 20


def test_the_product_with_the_identity_tells_the_conversions_apart() -> None:
    case = tf32.gpu_cases(tf32.QUICK)[0]
    given = case.inputs()
    answers = {
        "truncate": case.emulate(given, {"kind": "cpu"})["d"],
        **{c: case.hypotheses[f"one chain, {c}"](given, {"kind": "cpu"})["d"] for c in ("rna", "rne")},
    }
    a = given["a"].view(np.float32)
    for conversion, d in answers.items():
        assert np.array_equal(d.view(np.float32), products.converted(a, conversion))
    assert (answers["rna"] != answers["rne"]).any()
    assert (answers["truncate"] != answers["rna"]).mean() > 0.4
    magnitude = np.abs(cases.every_exponent()[0].view(np.float32))
    assert magnitude.max() > 1e29
    assert magnitude.min() < 1e-29
