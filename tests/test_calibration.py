"""Calibrators: against transcriptions of the definitions on Fractions, and scipy's entropy where it is installed."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import refusals
import torch

from fplab.errors import LabError
from fplab.hardware.cases import philox_bits
from fplab.integers import CALIBRATORS, Histogram, grids, oracle
from fplab.integers.calibration import binned, positive_high, positive_levels


def heavy(key: int, n: int, power: int = 3) -> np.ndarray:
    """Values of both signs with a tail: a uniform number to a power."""
    unit = (philox_bits(key, n).astype(np.float64) - 2**31) / 2**31
    return (unit**power * 5).astype(np.float32)


def filled(bins: int = 300, batches: int = 3) -> Histogram:
    seen = Histogram(bins)
    for i in range(batches):
        seen.collect(heavy(40 + i, 5000) * np.float32(1 + i))
    return seen


# --- collecting -------------------------------------------------------------------------------------------------
def test_the_first_batch_fixes_the_width_and_later_ones_add_bins() -> None:
    first, second = heavy(1, 4096), heavy(2, 4096) * np.float32(1.3)
    seen = Histogram(64).collect(first)
    assert len(seen.counts) == 64
    assert seen.width == float(np.abs(first).max()) / 64
    width, before = seen.width, seen.counts.copy()
    seen.collect(second)
    top = float(np.abs(second).max())
    assert seen.width == width
    assert len(seen.counts) == math.ceil(top / width)
    assert (seen.counts[:64] >= before).all()
    assert seen.total == 8192
    both = np.concatenate([first, second])
    assert (seen.max(), seen.least, seen.most) == (float(np.abs(both).max()), float(both.min()), float(both.max()))


def test_counts_are_numpys_batch_by_batch() -> None:
    """A batch's largest value closes the last bin, also where a later batch adds bins beyond it."""
    seen, want = Histogram(100), np.zeros(0, np.int64)
    for i in range(4):
        batch = heavy(10 + i, 3001, 1 + i) * np.float32(0.7 + i)
        seen.collect(batch.reshape(1, -1))
        counts, _ = np.histogram(np.abs(batch).astype(np.float64), bins=seen.edges)
        counts[: len(want)] += want
        want = counts
        assert np.array_equal(seen.counts, want)


def test_counts_are_torchs_within_rounding_of_an_edge() -> None:
    """torch.histc, with which the toolkit counts, finds the bin in FP32: at an edge a value may go to the neighbour."""
    x = heavy(3, 1 << 16)
    theirs = torch.histc(torch.from_numpy(np.abs(x)), bins=2048, min=0, max=float(np.abs(x).max())).numpy()
    ours = Histogram().collect(x).counts
    assert np.abs(np.cumsum(ours) - np.cumsum(theirs)).max() <= 2


@pytest.mark.parametrize("width", [0.1, 1 / 3, 1e-30, 7.0])
def test_values_at_and_beside_every_edge_are_counted_right(width: float) -> None:
    edges = np.arange(401) * width
    beside = [np.nextafter(edges, 0), edges, np.nextafter(edges, np.inf)]
    x = np.concatenate(beside)
    x = x[x <= edges[-1]]
    want = [min(sum(1 for e in edges[1:] if e <= v), 399) for v in x.tolist()]
    assert np.array_equal(binned(x, edges), np.bincount(want, minlength=400))


def test_batches_of_zeros_fix_nothing_and_are_counted() -> None:
    seen = Histogram(8).collect(np.zeros(5)).collect([])
    assert (seen.total, len(seen.counts), seen.max()) == (5, 0, 0.0)
    assert [rule.amax(seen) for rule in CALIBRATORS] == [0.0] * len(CALIBRATORS)
    seen.collect([0.0, 8.0])
    assert seen.counts.tolist() == [6, 0, 0, 0, 0, 0, 0, 1]


def test_a_magnitude_that_rounding_puts_beyond_the_last_edge_gets_a_bin() -> None:
    for bins, first, top in ((606, 0.36833334, 0.92083335), (358, 0.39206615, 0.7841323)):
        seen = Histogram(bins).collect([first])
        least = math.ceil(float(np.float32(top)) / seen.width)
        assert least * seen.width < float(np.float32(top))
        seen.collect([top])
        assert len(seen.counts) == least + 1
        assert seen.edges[-1] >= float(np.float32(top))
        assert seen.total == 2


# --- the rules --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("percentile", [0.0, 50.0, 99.0, 99.9, 99.99, 99.999, 99.9999, 100.0])
def test_percentile_is_the_left_edge_of_the_bin_that_reaches_it(percentile: float) -> None:
    """The toolkit sums shares in floating point; away from a tie that is the exact answer."""
    for key in range(5):
        seen = Histogram(512).collect(heavy(60 + key, 100003))
        want = oracle.percentile(seen.counts.tolist(), Fraction(percentile))
        found = seen.percentile(percentile)
        ends = (want,) if percentile < 100 else (want, want + 1, len(seen.counts))
        assert found in [seen.edges[i] for i in ends]
        if 0 < percentile < 100:
            beyond = (np.abs(heavy(60 + key, 100003)) > seen.edges[want + 1]).mean()
            assert beyond <= 1 - percentile / 100 + 1e-12


def test_a_share_that_is_reached_exactly_belongs_to_its_bin() -> None:
    seen = Histogram(4).collect([0.5, 1.5, 2.5, 4.0])
    assert seen.counts.tolist() == [1, 1, 1, 1]
    assert [seen.percentile(p) for p in (0, 25, 25.1, 50, 75, 100)] == [0.0, 0.0, 1.0, 1.0, 2.0, 3.0]


def transcription(counts: np.ndarray, levels: int, start: int, entropy) -> tuple[int, list[float]]:  # type: ignore[no-untyped-def]
    """The rule in the words of the toolkit's description: groups by ``digitize``, spread evenly, scipy's entropy."""
    bins = counts.astype(np.int64).copy()
    bins[0] = bins[1]
    found = []
    for i in range(start, len(bins) + 1):
        group = np.digitize(np.arange(i), np.linspace(0, i, levels + 1)) - 1
        group[bins[:i] == 0] = -1
        sums: Counter[int] = Counter()
        for j, g in enumerate(group):
            sums[g] += int(bins[j])
        sizes = Counter(group.tolist())
        image = np.array([0.0 if g == -1 else sums[g] / sizes[g] for g in group.tolist()])
        reference = bins[:i].astype(np.float64)
        reference[-1] += bins[i:].sum()
        assert round(image.sum() + bins[i:].sum()) == round(reference.sum()) == bins.sum()
        found.append(float(entropy(reference, image)))
    best = len(found) - 1 - int(np.argmin(found[::-1]))
    return best + start, found


def plain_entropy(p: np.ndarray, q: np.ndarray) -> float:
    p, q = p / p.sum(), q / q.sum()
    terms = [0.0 if a == 0 else math.inf if b == 0 else a * math.log(a / b) for a, b in zip(p, q, strict=True)]
    return math.fsum(terms)


@pytest.mark.parametrize("grid", ["int8", "int4", "uint4"])
def test_entropy_four_ways(grid: str) -> None:
    levels = positive_levels(grids.get(grid))
    seen = filled()
    cuts, divergences = seen.divergences(grid)
    assert cuts.tolist() == list(range(128, len(seen.counts) + 1))
    entropies = [plain_entropy]
    try:
        from scipy.stats import entropy

        entropies.append(entropy)
    except ImportError:
        pass
    for one in entropies:
        cut, theirs = transcription(seen.counts, levels, 128, one)
        np.testing.assert_allclose(divergences, theirs, rtol=1e-9, atol=1e-13)
        assert seen.entropy(grid) == seen.edges[cut]
    for cut in (128, 129, 200, len(seen.counts) - 1, len(seen.counts)):
        assert divergences[cut - 128] == pytest.approx(
            oracle.divergence(seen.counts.tolist(), cut, levels), rel=1e-9, abs=1e-13
        )


def test_entropy_takes_the_last_of_equal_cuts_and_leaves_the_counts() -> None:
    """Inputs of 17 values. Cut behind the first, all mass is in one bin and so is its image: a divergence of 0.

    INT8 has a level for each value, so the whole range gives 0 too and is the last; INT4 keeps a sixteenth.
    """
    seen = Histogram().collect(np.repeat(np.arange(17) / 16, 100 + np.arange(17) ** 2))
    before = seen.counts.copy()
    for grid, kept in (("int8", 2048), ("int4", 129)):
        cuts, divergences = seen.divergences(grid)
        zero = cuts[divergences == 0]
        assert (zero[0], zero[-1]) == (129, kept)
        assert np.isinf(divergences[cuts == 128])  # nothing is left but zeros, which the rule does not count
        assert seen.entropy(grid) == kept / 2048
    assert np.array_equal(seen.counts, before)


def test_more_data_changes_what_was_chosen() -> None:
    seen = Histogram().collect(heavy(1, 5000))
    first = [seen.entropy(), seen.mse()]
    assert [seen.entropy(), seen.mse()] == first
    seen.collect(heavy(2, 5000, 1))
    again = Histogram().collect(heavy(1, 5000)).collect(heavy(2, 5000, 1))
    assert [seen.entropy(), seen.mse()] == [again.entropy(), again.mse()]
    assert [seen.entropy(), seen.mse()] != first


@pytest.mark.parametrize("grid", ["int8", "int4", "uint8"])
def test_mse_is_the_definition(grid: str) -> None:
    seen = filled(150, 2)
    high = positive_high(grids.get(grid))
    candidates, errors = seen.squared_errors(grid)
    exact = [
        oracle.squared_error(seen.counts.tolist(), Fraction(seen.width), i, high)
        for i in range(128, len(seen.counts), 7)
    ]
    np.testing.assert_allclose(errors[::7], [float(e) for e in exact], rtol=1e-9)
    assert seen.mse(grid) == candidates[np.argmin(errors)]
    assert candidates[0] == pytest.approx(128.5 * seen.width)


def test_mse_against_torchs_fake_quantisation() -> None:
    seen = filled(200, 1)
    candidates, errors = seen.squared_errors("int8")
    centres = torch.from_numpy((seen.edges[1:] + seen.edges[:-1]) / 2).float()
    counts = torch.from_numpy(seen.counts)
    for i in range(0, len(candidates), 11):
        theirs = torch.fake_quantize_per_tensor_affine(centres, float(candidates[i]) / 127, 0, -127, 127)
        assert float((((theirs - centres) ** 2) * counts).mean()) == pytest.approx(errors[i], rel=2e-3)


def test_levels_of_grids() -> None:
    table = {"int8": 128, "int8_full": 128, "uint8": 256, "int4": 8, "int4_full": 8, "uint4": 16}
    assert {name: positive_levels(grids.get(name)) for name in table} == table


def test_every_calibrator_and_its_order() -> None:
    seen = filled(2048)
    amax = {rule.name: rule.amax(seen) for rule in CALIBRATORS}
    assert list(amax) == ["max", "p99.9", "p99.99", "p99.999", "p99.9999", "entropy", "mse"]
    assert amax["p99.9"] < amax["p99.99"] < amax["p99.999"] <= amax["p99.9999"] <= amax["max"]
    assert all(0 < value <= seen.edges[-1] for value in amax.values())
    four = {rule.name: rule.amax(seen, "int4") for rule in CALIBRATORS}
    assert four["mse"] < amax["mse"]
    assert four["max"] == amax["max"]


# --- refusals ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rule", CALIBRATORS, ids=lambda r: r.name)
def test_no_data_is_an_error(rule) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(LabError, match=r"the calibrator saw no data; call collect\(batch\) with activations first\."):
        rule.amax(Histogram())
    with pytest.raises(LabError, match="the calibrator saw no data"):
        rule.amax(Histogram().collect(np.zeros((0, 4))))


test_refusals = refusals.matching(
    (lambda: Histogram(0), "bins=0 is not possible; allowed: 1 to"),
    (lambda: Histogram().collect([1.0, np.nan]), "element 1 is nan"),
    (lambda: Histogram(64).collect([1.0]).entropy(), "64 bins leave no candidate from bin 128 on; use more bins"),
    (lambda: Histogram(128).collect([1.0]).mse(), "128 bins leave no candidate from bin 129 on"),
    (lambda: Histogram().collect([1.0]).percentile(101), "percentile=101 is not possible"),
    (lambda: Histogram().collect([1e-30]).collect([1.0]), "a batch reaches 1.0, .* collect a typical batch first"),
    (lambda: Histogram().collect([0.01]).collect([1.0]).entropy(), r"204,80\d bins, and .* at most 65,536: the first"),
    (lambda: Histogram(65537).collect([1.0]).mse(), "65,537 bins, and entropy and mse compare .* or use max or a"),
    (lambda: Histogram().collect([1.0]).entropy("int9"), "unknown integer grid 'int9'"),
)  # fmt: skip


def test_a_batch_that_is_refused_changes_nothing() -> None:
    """Its extremes were taken over before it was refused, and every rule went by them afterwards."""
    seen, untouched = (Histogram(bins=64).collect([0.0, 0.5, -1.0]) for _ in range(2))
    found = [seen.entropy("int4", start=16), seen.max()]
    for refused in ([1e38], [float("nan")], [-1e30, 2.0]):
        with pytest.raises(LabError):
            seen.collect(refused)
    state = [vars(one) | {"counts": one.counts.tolist()} for one in (seen, untouched)]
    assert state[0] | {"_chosen": {}} == state[1]
    assert [seen.entropy("int4", start=16), seen.max()] == found
    assert seen.collect([2.0]).counts.tolist() == untouched.collect([2.0]).counts.tolist()
