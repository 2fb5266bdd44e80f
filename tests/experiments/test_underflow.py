"""The experiment on gradient underflow: its counts, its claims, mutants that they kill, its GPU cases."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import fplab
from experiments.frame import Mutant, frame
from fplab import exact, formats
from fplab.experiments import lost_updates, underflow
from fplab.experiments.outcomes import Status, each_of

SMALL = replace(underflow.E.quick, every=88, sample=512)
TINY = replace(SMALL, epochs=1, every=10, seeds=1)


def toward_zero(good: Any) -> Any:
    """An operation that rounds toward zero."""
    return lambda *of: good(*of, rounding="rtz")


CASTS = ("numpy_casts", "torch_casts", "ml_dtypes_casts", "three_edges", "window", "edge_of_zero")
MUTANTS = (
    Mutant("the histogram one binade too high", ("histograms",), "histogram",
           lambda histogram: lambda values: np.roll(histogram(values), 1), params=TINY),
    Mutant("the histogram of gradient times rate without the rate", ("histograms",), "times_rate",
           lambda good: lambda gradients, lr: gradients, params=TINY),
    Mutant("the shares by layer cut in the wrong places", ("layers",), "split_sums",
           lambda sums: lambda flags, sizes: sums(np.roll(flags, flags.size // 8), sizes), params=TINY),
    Mutant("the layers in the opposite order", ("layers",), "LAYERS", lambda names: names[::-1], params=TINY),
    Mutant("casts that round toward zero", CASTS, "fplab.numeric.quantize", toward_zero, params=TINY),
    Mutant("scales that are no powers of two", ("shift",), "scaled",
           lambda scaled: lambda values, s: scaled(values, s) * np.float32(1 + 2**-10), params=TINY),
    Mutant("scales that win back little", ("scaling_helps",), "scaled",
           lambda good: lambda values, s: good(values, s // 8), params=replace(TINY, seeds=2)),
    Mutant("products rounded toward zero", ("product",), "fplab.numeric.mul", toward_zero, params=TINY),
    Mutant("sums rounded toward zero", ("half_gap", "ratio_rule"), "fplab.numeric.add", toward_zero, params=TINY),
    Mutant("a hundredth of the rate", ("trained_network",), "recipe",
           lambda good: lambda p, seed: good(replace(p, lr=p.lr / 100), seed), params=replace(SMALL, seeds=1)),
)  # fmt: skip

globals().update(frame(underflow, SMALL, MUTANTS))


def test_no_value_is_lost_or_counted_twice(result: Any) -> None:
    of_an_image = 16 * 64 + 32 * 64 + 64 * 16 + 10  # outputs of the four layers
    run = underflow.gathered(result.p, 0)
    size = {kind: x.size for kind, x in run.gradients.items()}
    assert size["activation"] + run.zeros["activation"] == len(run.steps) * 64 * of_an_image
    assert size["weight"] + run.zeros["weight"] == len(run.steps) * 25866 == run.weights.size
    for kind in underflow.KINDS:
        total = result.zero + result.subnormal + result.normal + result.overflow
        assert (total.sel(gradients=kind) == size[kind]).all()
        assert result.binades.sel(values=kind).sum() == size[kind]
    assert run.sizes.sum() == size["activation"]
    at = {"gradients": "activation", "format": "fp16", "log2_loss_scale": 0}
    assert result.lost_by_layer.sum() == result.zero.sel(at)
    assert not (result.zero + result.overflow).sel(format="bf16").any()
    assert math.log2(np.abs(underflow.all_gradients(result)).min()) < -25  # so FP16 needs a scale


def test_thresholds_are_the_published_ones(result: Any) -> None:
    """E5M2's and E4M3's subnormals start at 2^-16 and 2^-9; 2^-25 is a tie that goes to zero in FP16."""
    published = [[-24, -14, 16], [-133, -126, 128], [-16, -14, 16], [-9, -6, 9]]
    assert result.thresholds.format.values.tolist() == ["fp16", "bf16", "e5m2", "e4m3"]
    assert result.thresholds.values.tolist() == published


@pytest.mark.parametrize("fmt", underflow.FORMATS)
def test_edges_are_where_the_oracle_changes_its_answer(fmt: str) -> None:
    form = formats.get(fmt)
    zero, normal, overflow, tie = underflow.edges(fmt)

    def code(x: Fraction) -> int:
        return exact.round_to(exact.of(x), fmt)[0]

    first_normal = 1 << form.fraction_bits
    for edge, below, at, above in ((zero, 0, 0, 1), (normal, first_normal - 1, first_normal, first_normal)):
        nudge = Fraction(edge) / 2**60
        assert [code(Fraction(edge) + move) for move in (-nudge, 0, nudge)] == [below, at, above]
    nudge = Fraction(overflow) / 2**60
    assert code(Fraction(overflow) - nudge) == form.max_code < code(Fraction(overflow) + nudge)
    assert (code(Fraction(overflow)) > form.max_code) is tie


@pytest.mark.parametrize("fmt", underflow.FORMATS)
def test_every_code_has_its_fate(fmt: str) -> None:
    form = formats.get(fmt)
    codes = np.arange(1 << form.bits).astype(np.uint16 if form.bits == 16 else np.uint8)
    top, ones = 1 << (form.bits - 1), 2**form.fraction_bits
    below = [1, ones - 1, form.max_code - ones + 1, top - form.max_code - 1]
    assert underflow.count(fplab.decode(codes, fmt), fmt) == [2 * n for n in below]


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e4m3", "e2m3"])
def test_the_criterion_for_lost_updates_against_fractions(fmt: str) -> None:
    """Every binade's edges, powers of two and their neighbours, and updates at and beside half of both gaps."""
    form = formats.get(fmt)
    rng = np.random.default_rng(1)
    top = form.max_code - 1
    powers = np.arange(1, top >> form.fraction_bits)[:40] << form.fraction_bits
    codes = np.unique(np.concatenate([rng.integers(1, top, 60), [1, 2], powers]))
    seen = set()
    for code in codes.tolist():
        w = exact.magnitude_of(code, form)
        for gap in (exact.magnitude_of(code + 1, form) - w, w - exact.magnitude_of(code - 1, form)):
            for size in (gap / 4, gap / 2, gap / 2 + gap / 64, gap):
                for u in (size, -size):
                    total = exact.round_to(exact.of(w + u), form)[0]
                    got = bool(lost_updates.lost_by_criterion(np.array([float(w)]), np.array([float(u)]), fmt)[0])
                    assert got == (total == code), (w, u)
                    seen.add((got, size == gap / 2))
    assert seen == {(True, True), (True, False), (False, True), (False, False)}


def test_the_spot_values_of_the_two_thousand_rule() -> None:
    """1 + 2^-11 is a tie and lost, 1.5 + 1.5/2048 is not: the flat ratio of the paper is not the criterion."""
    w = np.array([1.0, 1.0, 1.5, 1 + 2**-10, 1.0])
    u = np.array([2.0**-11, 2.0**-11 * (1 + 2**-10), 1.5 / 2048, 2.0**-11, -(2.0**-12)])
    assert lost_updates.lost_by_criterion(w, u, "fp16").tolist() == [True, False, False, False, True]
    total = fplab.add(w, u, "fp16")
    assert total.tolist() == [1.0, 1 + 2**-10, 1.5009765625, 1.001953125, 1.0]
    np.testing.assert_array_equal((w.astype(np.float16) + u.astype(np.float16)).astype(np.float64), total)


def test_spread_keeps_the_extremes() -> None:
    values = np.array([3.0, -1.0, 2.0, -8.0, 5.0], np.float32)
    assert values[underflow.spread(values, 3)].tolist() == [-1.0, 3.0, -8.0]


def test_a_wrong_cast_is_shown_as_bits(result: Any) -> None:
    def toward_zero(values: np.ndarray, fmt: str) -> np.ndarray:
        return fplab.encode(values, fmt, rounding="rtz")

    outcome = each_of(underflow.casts_alike(result, toward_zero, ["bf16"]))
    assert outcome.status is Status.FAIL
    assert "differ; first at" in str(outcome.detail)


def test_gpu_cases_see_every_fate() -> None:
    """The sample reaches what the claims are about: zeros, subnormals, normals and overflow, and lost updates."""
    casts, product, total = (case.compute(case.inputs(), "cpu") for case in underflow.cases(SMALL))
    # FP16: 2^24 times the largest gradient overflows only where that exceeds 2^-8.
    zero, subnormal, normal, _ = underflow.count(fplab.decode(casts["fp16"], "fp16"), "fp16")
    assert min(zero, subnormal, normal) > 0
    assert (casts["e4m3"] & 0x7F >= 0x7E).any()  # 448, or NaN before torch 2.13
    assert (fplab.decode(product["fp16"], "fp16") == 0).any()
    held = fplab.encode(underflow.samples(SMALL)["weights"].view(np.float32), "bf16")
    assert 0 < (total["bf16"] == held).mean() < 1


def test_e4m3_overflow_depends_on_torchs_version() -> None:
    case = next(underflow.cases(SMALL))
    inputs = {"gradients": np.float32([1000]).view(np.uint32), "scales": np.float32([[1]]).view(np.uint32)}
    for version, code in (("2.13.0+cpu", 0x7E), ("2.12.1", 0x7F)):
        assert case.emulate(inputs, {"torch": version})["e4m3"].tolist() == [[code]]
