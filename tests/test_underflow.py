"""The experiment on gradient underflow: its counts, its claims, mutants that they kill, its GPU cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_frame import Mutant, compute_with_little_installed, computed_on_cpu, drawn, frame, kills

import fplab
from fplab import exact, formats
from fplab.errors import LabError
from fplab.experiments import underflow
from fplab.experiments.base import Status
from fplab.experiments.underflow import checks, data
from fplab.hardware.cases import Arrays, Case

SMALL = data.Params(epochs=8, every=88, sample=512)

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(underflow, SMALL)


def test_the_quick_run_reports_progress() -> None:
    ticks: list[float] = []
    underflow.run(replace(TINY, seeds=2), lambda done, _text: ticks.append(done))
    assert ticks == sorted(ticks)
    assert 0 < ticks[0] < 0.1 < 0.8 < ticks[-1] <= 1


def test_no_value_is_lost_or_counted_twice(arrays: Arrays) -> None:
    network = 16 * 64 + 32 * 64 + 64 * 16 + 10  # outputs of the four layers for one image
    snapshots = len(arrays["steps"])
    assert arrays["activation"].size + arrays["zeros"][0] == snapshots * 64 * network
    assert arrays["weight"].size + arrays["zeros"][1] == snapshots * 25866 == arrays["weights"].size
    for k, kind in enumerate(data.KINDS):
        assert (arrays["counts"][k].sum(axis=-1) == arrays[kind].size).all()
        assert arrays["binades"][k].sum() == arrays[kind].size
    assert arrays["activation_sizes"].sum() == arrays["activation"].size
    assert arrays["layer_underflows"].sum() == arrays["counts"][0, 0, 0, 0]


def test_thresholds_are_the_published_ones(arrays: Arrays) -> None:
    """E5M2's and E4M3's subnormals start at 2^-16 and 2^-9; 2^-25 is a tie that goes to zero in FP16."""
    assert dict(zip(data.FORMATS, arrays["thresholds"].tolist(), strict=True)) == {
        "fp16": [-24, -14, 16],
        "bf16": [-133, -126, 128],
        "e5m2": [-16, -14, 16],
        "e4m3": [-9, -6, 9],
    }


def test_digested_arrays_do_not_depend_on_the_training(arrays: Arrays) -> None:
    for name in underflow.DIGESTED:
        np.testing.assert_array_equal(arrays[name], getattr(data, name)())


@pytest.mark.parametrize("fmt", data.FORMATS)
def test_edges_are_where_the_oracle_changes_its_answer(fmt: str) -> None:
    form = formats.get(fmt)
    zero, normal, overflow, tie = checks.edges(fmt)

    def code(x: Fraction) -> int:
        return exact.round_to(exact.of(x), fmt)[0]

    for edge, below, above in ((zero, 0, 1), (normal, (1 << form.fraction_bits) - 1, 1 << form.fraction_bits)):
        nudge = Fraction(edge) / 2**60
        assert (code(Fraction(edge) - nudge), code(Fraction(edge) + nudge)) == (below, above)
    nudge = Fraction(overflow) / 2**60
    assert code(Fraction(overflow) - nudge) == form.max_code < code(Fraction(overflow) + nudge)
    assert (code(Fraction(overflow)) > form.max_code) is tie
    assert code(Fraction(zero)) == 0
    assert code(Fraction(normal)) == 1 << form.fraction_bits


@pytest.mark.parametrize("fmt", data.FORMATS)
def test_both_ways_to_count_fates_agree_on_every_kind_of_value(fmt: str) -> None:
    form = formats.get(fmt)
    codes = np.arange(1 << form.bits).astype(np.uint16 if form.bits == 16 else np.uint8)
    counted = checks.fates_of_codes(codes, fmt)
    np.testing.assert_array_equal(counted, data.fates(fplab.decode(codes, fmt), fmt))
    top = 1 << (form.bits - 1)
    assert counted.tolist() == [2, 2 * (2**form.fraction_bits - 1), 2 * (form.max_code - 2**form.fraction_bits + 1),
                                2 * (top - form.max_code - 1)]  # fmt: skip


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
        gaps = exact.magnitude_of(code + 1, form) - w, w - exact.magnitude_of(code - 1, form)
        for gap in gaps:
            for size in (gap / 4, gap / 2, gap / 2 + gap / 64, gap):
                for u in (size, -size):
                    total = exact.round_to(exact.of(w + u), form)[0]
                    got = bool(checks.lost_by_criterion(np.array([float(w)]), np.array([float(u)]), fmt)[0])
                    assert got == (total == code), (w, u)
                    seen.add((got, size == gap / 2))
    assert seen == {(True, True), (True, False), (False, True), (False, False)}


def test_the_spot_values_of_the_two_thousand_rule() -> None:
    """1 + 2^-11 is a tie and lost, 1.5 + 1.5/2048 is not: the flat ratio of the paper is not the criterion."""
    w = np.array([1.0, 1.0, 1.5, 1 + 2**-10, 1.0])
    u = np.array([2.0**-11, 2.0**-11 * (1 + 2**-10), 1.5 / 2048, 2.0**-11, -(2.0**-12)])
    assert checks.lost_by_criterion(w, u, "fp16").tolist() == [True, False, False, False, True]
    total = fplab.add(w, u, "fp16")
    assert total.tolist() == [1.0, 1 + 2**-10, 1.5009765625, 1.001953125, 1.0]
    with np.errstate(all="raise"):
        np.testing.assert_array_equal((w.astype(np.float16) + u.astype(np.float16)).astype(np.float64), total)


def test_spread_keeps_the_extremes() -> None:
    values = np.array([3.0, -1.0, 2.0, -8.0, 5.0], np.float32)
    assert values[data.spread(values, 3)].tolist() == [-1.0, 3.0, -8.0]


# --- mutants ----------------------------------------------------------------------------------------------------------


def changed(name: str, change: Callable[[np.ndarray], Any]) -> Callable[[Arrays], Arrays]:
    """A change of one array, in place or by a new one."""

    def fault(arrays: Arrays) -> Arrays:
        new = change(arrays[name])
        return {name: arrays[name] if new is None else new}

    return fault


def one_more_zero(counts: np.ndarray) -> None:
    """One gradient counted as zero that is subnormal, in every format and at every scale."""
    counts[..., 0] += 1
    counts[..., 1] -= 1


def flushed(arrays: Arrays) -> Arrays:
    """FP16 counts as of a cast that makes everything below 2^-24 zero."""
    for k, kind in enumerate(data.KINDS):
        less = int((np.abs(arrays[kind]) < 2.0**-24).sum()) - arrays["counts"][k, 0, 0, 0]
        arrays["counts"][k, 0, 0, :2] += (less, -less)
    return arrays


def a_lost_one_that_changes(fates: np.ndarray) -> None:
    fates[0, np.flatnonzero(fates[0] == data.CHANGES)[0]] = data.LOST_IN_SUM


def without_rate(arrays: Arrays) -> Arrays:
    return {"product_binades": data.histogram(arrays["weight"])}


TINY = replace(SMALL, epochs=1, every=10, seeds=1)
HISTOGRAMS, LAYERS, HELPS = "The histograms count", "In the first, a middle", "FP16 loses activation gradients"
MUTANTS = (
    Mutant("the histogram one binade too high", (HISTOGRAMS,), "data.histogram",
           lambda histogram: lambda values: np.roll(histogram(values), 1), params=TINY),
    Mutant("the histogram of gradient times rate without the rate", (HISTOGRAMS,), change=without_rate),
    Mutant("the shares by layer cut in the wrong places", (LAYERS,), "data.split_sums",
           lambda sums: lambda flags, sizes: sums(np.roll(flags, 1000), sizes), params=TINY),
    Mutant("the layers reversed", (LAYERS,), change=changed("layer_underflows", lambda x: x[:, ::-1])),
    Mutant("the names of the layers reversed", (LAYERS,), "data.LAYERS", lambda names: names[::-1], params=TINY),
    Mutant("one zero too many", ("FP16 counts", "FP16, BF16", "BF16, E5M2", "Three edges", "Smallest and largest"),
           change=changed("counts", one_more_zero)),
    Mutant("scales that are no powers of two", ("A loss scale adds",), "checks.scaled",
           lambda scaled: lambda values, s: scaled(values, s) * np.float32(1 + 2**-10), params=TINY),
    Mutant("all below 2^-24 flushed", ("FP16 loses what", "Three edges", HELPS), change=flushed),
    Mutant("scales that win back little", (HELPS,), change=changed("lost", lambda x: x[:, [0, 1, 0]])),
    Mutant("an update times the rate twice", ("gradient * lr",), "data.product_fates",
           lambda fates: lambda g, lr, fmt: fates(g, lr * lr, fmt), params=TINY),
    Mutant("an update that is lost and is not", ("An update is lost", "A ratio of 2048"),
           change=changed("update_fates", a_lost_one_that_changes)),
    Mutant("a network that reads worse", ("The network is a trained",),
           change=changed("right", lambda x: x - np.array([20, 0]))),
)  # fmt: skip
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(underflow, SMALL, MUTANTS)


def test_a_wrong_cast_is_found_and_shown_as_bits(arrays: Arrays) -> None:
    def toward_zero(values: np.ndarray, fmt: str) -> np.ndarray:
        return fplab.encode(values, fmt, rounding="rtz")

    outcome = checks.same_as(toward_zero, "bf16")(arrays, SMALL)
    assert outcome.status is Status.FAIL
    assert "differ; first at" in outcome.detail


def test_a_library_that_is_not_installed_is_absent(arrays: Arrays) -> None:
    def missing(values: np.ndarray, fmt: str) -> np.ndarray:
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")

    outcome = checks.same_as(missing, "bf16")(arrays, SMALL)
    assert (outcome.status, outcome.detail) == (Status.ABSENT, "nowhere is not installed")


CASES = underflow.gpu_cases(SMALL)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_gpu_cases_on_the_cpu_equal_the_lab_bit_for_bit(case: Case) -> None:
    computed_on_cpu(case)


def test_gpu_cases_see_every_fate() -> None:
    """The sample reaches what the claims are about: zeros, subnormals, normals and overflow, and lost updates."""
    casts, product, total = CASES
    results = casts.compute(casts.inputs(), "cpu")
    # FP16: 2^24 times the largest gradient overflows only where that exceeds 2^-8.
    zero, subnormal, normal, _ = checks.fates_of_codes(results["fp16"], "fp16")
    assert min(zero, subnormal, normal) > 0
    assert (results["e4m3"] & 0x7F >= 0x7E).any()  # 448, or NaN before torch 2.13
    assert checks.fates_of_codes(product.compute(product.inputs(), "cpu")["fp16"], "fp16")[0] > 0
    inputs = total.inputs()
    held = fplab.encode(inputs["weights"].view(np.float32), "bf16")
    assert 0 < (total.compute(inputs, "cpu")["bf16"] == held).mean() < 1


def test_e4m3_overflow_depends_on_torchs_version() -> None:
    inputs = {"gradients": np.array([1000.0], np.float32).view(np.uint32), "exponents": np.array([0], np.uint8)}
    case = CASES[0]
    assert case.emulate(inputs, {"torch": "2.13.0+cpu"})["e4m3"].tolist() == [[0x7E]]
    assert case.emulate(inputs, {"torch": "2.12.1"})["e4m3"].tolist() == [[0x7F]]


def test_cases_need_numpy_and_torch_alone() -> None:
    compute_with_little_installed(underflow, "Params(epochs=1, sample=16)")


def test_the_table_has_a_row_for_every_format_and_scale(arrays: Arrays) -> None:
    table = underflow.table(arrays, SMALL)
    assert {len(column) for column in table.values()} == {2 * 4 * 25}
    row = {name: column[25] for name, column in table.items()}  # the first of BF16
    assert (row["gradients"], row["format"], row["log2_loss_scale"]) == ("activation", "bf16", 0)
    assert row["zero"] + row["subnormal"] + row["normal"] + row["overflow"] == arrays["activation"].size


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_draws_in_both_themes(theme: str, arrays: Arrays, tmp_path: Path) -> None:
    figure, size = drawn(underflow, arrays, SMALL, theme, tmp_path)
    assert size > 50_000
    titles = [ax.get_title(loc="left") for ax in figure.get_axes()]
    assert {"FP16", "BF16", "E5M2", "E4M3", "weight + update in FP16"} <= set(titles)


def test_shares_that_are_no_whole_are_refused() -> None:
    from matplotlib.figure import Figure

    from fplab.draw.shares import stacked_shares

    with pytest.raises(LabError, match=r"shares add up to 0\.5 to 0\.9; they must add up to 1\."):
        stacked_shares(
            Figure().subplots(), np.arange(2), {"zero": np.array([0.2, 0.4]), "normal": np.array([0.3, 0.5])}
        )


def test_a_scale_that_loses_nothing_exists_for_bf16_and_is_found(arrays: Arrays) -> None:
    assert checks.clean_scales(arrays, "bf16").tolist() == list(range(25))
    least = float(np.abs(checks.gradients(arrays)).min())
    assert math.log2(least) < -25  # so FP16 needs a scale, and 2^-25 / least is what it would take
