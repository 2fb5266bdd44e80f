"""The experiment ``tf32``: conversions, bounds, the published example, checks that can fail, GPU cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_frame import Mutant, computed_on_cpu, drawn, forged, frame, kills, repeats

from fplab import exact_products as whole
from fplab import tensorcore
from fplab.experiments import tf32
from fplab.experiments.partial_products import bounds
from fplab.experiments.tf32 import cases, operands, products
from fplab.hardware.cases import Arrays, Case, philox_bits
from fplab.tensorcore.models import GPUS, get

UNIT = Fraction(2) ** whole.UNIT
Change = Callable[[np.ndarray], Any]

SMALL = tf32.Params(rows=4, log2_last=12, sample=32)
arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(tf32, SMALL)


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


def off(array: str, change: Change) -> Callable[[Arrays], Arrays]:
    """One array changed."""

    def apply(arrays: Arrays) -> Arrays:
        change(arrays[array])
        return {array: arrays[array]}

    return apply


def sixteen_times(bound: Any) -> Any:
    return lambda self, conversion: 16 * bound(self, conversion)


BOUND, PARTS, DECIDES = "No error is above", "Conversion and chain", "Up to K = 4,096"
SHRINKS, PUBLISHED = "Truncation shrinks", "PyTorch's published"
MUTANTS = (
    Mutant("an error of truncation", ("Over all low bits",), change=off("low bits", _add((0, 0, 5), 1))),
    Mutant("an error of rne", ("Over all low bits",), change=off("low bits", _add((2, 1, 5), 1))),
    Mutant("another tie", ("rna and rne differ",), change=off("low bits", _add((1, 1, 4096), 1))),
    Mutant("rne rounds up", ("TF32 is FP16's",), "checks.converted",
           lambda converted: lambda x, conversion: converted(np.nextafter(x, np.float32(np.inf)), conversion)),
    Mutant("H100 a hundredth too large", (BOUND,), change=off("positive: results", _scale("H100", "rne", 1.01))),
    Mutant("FP32 a hundredth too large", (BOUND,), change=off("positive: results", _scale("", "", 1.01))),
    Mutant("conversion's bound 16 times too large", (BOUND, PARTS), "products.Measured.conversion_bound",
           sixteen_times, params=tf32.Params(rows=4, log2_last=8, sample=8)),
    Mutant("A100's chain errs", (PARTS,), change=off("positive: results", _scale("A100", "truncate", 1.004))),
    Mutant("a converted sum", (PARTS,), change=off("random: converted", _add((1, 0, 0, 2, 8), 1 << 30))),
    Mutant("A100 with the chain of FP16", (DECIDES,), change=off("random: results", _scale("A100", "rne", 1.01))),
    Mutant("FP32 as bad as TF32", (DECIDES,), change=off("random: results", _scale("", "", 1.01))),
    Mutant("truncation does not shrink", (SHRINKS,), change=off("positive: converted", _add((0, 0, 0, 0, 9), 1 << 30))),
    Mutant("rna truncates", (SHRINKS,), change=lambda arrays: {"positive: converted": _truncated(arrays)}),
    Mutant("errors half as large", (PUBLISHED,), change=off("published: errors", _scale_all(0.5))),
    Mutant("other products", (PUBLISHED,), change=off("published: exact", _scale_all(1.5))),
)  # fmt: skip
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(tf32, SMALL, MUTANTS)


def _truncated(arrays: Arrays) -> np.ndarray:
    found = arrays["positive: converted"]
    found[1] = found[0]
    return found


def test_converting_first_and_truncating_then_is_converting(arrays: Arrays) -> None:
    for gpu, conversion in itertools.product(products.CORES, operands.CONVERSIONS):
        a, b = (products.converted(arrays[f"random: {part}"].view(np.float32), conversion) for part in "ab")
        got = products.results(a, b, products.Variant(gpu, "truncate"), np.array([16, 32, 64]))
        assert np.array_equal(got, arrays["random: results"][products.index(gpu, conversion)][..., :3])


def test_conversions_are_their_bit_formulas() -> None:
    codes = np.concatenate([philox_bits(2200, 1 << 18), np.arange(0x7F7FE000, 0x7F810000, dtype=np.uint32)])
    codes = codes[(codes & np.uint32(0x7FFFFFFF)) <= np.uint32(0x7F800000)]  # NaNs have no one answer
    u, keep = codes.astype(np.uint64), np.uint64(0xFFFFE000)
    up = np.uint64(0xFFF) + ((u >> np.uint64(13)) & np.uint64(1))
    for conversion, want in (("truncate", u), ("rna", u + np.uint64(0x1000)), ("rne", u + up)):
        got = products.converted(codes.view(np.float32), conversion).view(np.uint32)
        assert np.array_equal(got, (want & keep).astype(np.uint32)), conversion


def test_the_gpus_with_tf32_have_the_blocks_of_the_two_that_are_shown() -> None:
    models = [get(gpu, "tf32") for gpu in GPUS if gpu not in ("V100", "T4")]
    blocks = {(one.length, one.alignment_bits) for one in models}
    assert blocks == {(one.length, one.alignment_bits) for one in (get(gpu, "tf32") for gpu in products.CORES)}


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
    repeats(tf32, arrays, SMALL)


def test_the_table_has_every_variant(arrays: Arrays) -> None:
    rows = list(zip(*tf32.table(arrays, SMALL).values(), strict=True))
    lengths = [arrays[f"{kind}: exact"].shape[2] for kind in products.KINDS]
    assert len(rows) == len(products.VARIANTS) * sum(lengths)
    assert all(0 <= mean <= most <= bound for *_, mean, most, bound in rows)


def test_figures_are_drawn_in_both_themes(arrays: Arrays, tmp_path: Path) -> None:
    for theme in ("light", "dark"):
        figure, _ = drawn(tf32, arrays, SMALL, theme, tmp_path)
        assert len(figure.axes) == 9


def test_the_stand_in_gives_the_emulated_bits_of_every_case() -> None:
    for case in tf32.gpu_cases(SMALL):
        computed_on_cpu(case)
        assert sum(x.nbytes for x in case.inputs().values()) <= 1 << 20


def test_the_product_with_the_identity_tells_the_conversions_apart() -> None:
    case = tf32.gpu_cases(SMALL)[0]
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


@pytest.mark.parametrize("case", tf32.gpu_cases(SMALL)[:4], ids=lambda case: case.name)
def test_a_forged_record_fails(case: Case) -> None:
    forged(case)
