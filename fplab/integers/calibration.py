"""Choosing the range of a tensor from data: a histogram of magnitudes, and four rules that read an amax off it.

The algorithm is that of NVIDIA's pytorch-quantization toolkit (``calib/histogram.py``), with which H. Wu, P. Judd,
X. Zhang, M. Isaev and P. Micikevicius, Integer Quantization for Deep Learning Inference (arXiv 2004.09602), was made:

* the first batch fixes the width of a bin, max / bins; a later batch with a larger maximum adds bins of that width;
* ``max``: the largest magnitude; ``percentile``: the left edge of the bin at which the cumulative share reaches it;
* ``entropy``: the cut after at least 128 bins at which the clipped distribution and its quantised image are closest in
  the Kullback-Leibler divergence, the last if several are; ``mse``: the bin centre that, as the end of the grid, gives
  the least mean squared error of the bin centres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import LabError, door, integer, quotes_call, unknown
from .affine import Array, floats
from .grids import Grid, GridLike, get

BINS = 2048
START = 128  # the least number of bins that entropy and mse keep
MOST_COMPARED = 1 << 16  # bins that entropy and mse take: their work is the square of it
CHUNK = 32  # candidates of the mse rule evaluated at a time


@door
class Histogram:
    """Counts of magnitudes over batches. ``counts`` int64 and ``width``: bin i is ``[i, i + 1) * width``.

    The last bin holds its upper edge too. Batches of zeros alone, before any other value, fix no width.

    >>> seen = Histogram(bins=4)
    >>> seen.collect([0.0, 1.0, -4.0]).collect([8.0]).counts.tolist()
    [1, 1, 0, 1, 0, 0, 0, 1]
    """

    def __init__(self, bins: int = BINS) -> None:
        self.first_bins = integer("bins", bins, 1, 2**24)
        self.counts: Array = np.zeros(0, np.int64)
        self.width = 0.0
        self.zeros = 0  # seen before the width was known
        self.least = self.most = 0.0  # the extremes of the values themselves, zero included
        self.amax = 0.0
        self._chosen: dict[tuple[str, Grid, int], float] = {}  # what the slow rules gave, until more is collected

    def __repr__(self) -> str:
        return f"Histogram({len(self.counts)} bins, {self.total} values)"

    @property
    def total(self) -> int:
        return int(self.counts.sum()) + self.zeros

    @property
    def edges(self) -> Array:
        """The edges of the bins, float64 (bins + 1,)."""
        return np.arange(len(self.counts) + 1) * self.width

    @quotes_call
    def collect(self, x: Any) -> Histogram:
        """Count the magnitudes of a batch of any shape; NaN and infinity are errors. Returns itself.

        A batch that is refused changes nothing.
        """
        given = floats(x).ravel()
        if not given.size:
            return self
        magnitudes = np.abs(given).astype(np.float64)
        top = float(magnitudes.max())
        if width := self.width or top / self.first_bins:
            bins = self._bins(top, width)
            counts = self.counts if self.width else np.array([self.zeros])
            counts = np.concatenate([counts, np.zeros(bins - len(counts), np.int64)])
            self.counts = counts + binned(magnitudes, np.arange(bins + 1) * width)
            self.width, self.zeros = width, 0
        else:
            self.zeros += magnitudes.size
        self._chosen.clear()
        self.least, self.most = min(self.least, float(given.min())), max(self.most, float(given.max()))
        self.amax = max(self.amax, top)
        return self

    def _bins(self, top: float, width: float) -> int:
        """How many bins of a width it takes for the last edge to be at ``top`` or beyond."""
        bins = max(len(self.counts), self.first_bins, int(np.ceil(top / width)))
        if bins > 2**24:
            raise LabError(
                f"a batch reaches {top!r}, {bins:,} bins of the width {width!r} that the first batch fixed; "
                "collect a typical batch first."
            )
        while bins * width < top:  # the quotient or the product was rounded
            bins += 1
        return bins

    def _some(self) -> None:
        if not self.total:
            raise LabError("the calibrator saw no data; call collect(batch) with activations first.")

    @quotes_call
    def max(self) -> float:
        """The largest magnitude seen."""
        self._some()
        return self.amax

    @quotes_call
    def percentile(self, percentile: float = 99.99) -> float:
        """The left edge of the bin in which the cumulative share reaches ``percentile`` per cent."""
        self._some()
        if not isinstance(percentile, int | float | np.number) or not 0 <= percentile <= 100:
            raise LabError(f"percentile={percentile!r} is not possible; allowed: 0 to 100.")
        if not self.amax:
            return 0.0
        shares = np.cumsum(self.counts / self.counts.sum())
        return float(self.edges[np.searchsorted(shares, percentile / 100)])

    @quotes_call
    def entropy(self, grid: GridLike = "int8", start: int = START) -> float:
        """The cut with the least divergence: the bins before it against their image in the levels of ``grid``."""
        key = ("entropy", get(grid), start)
        if key not in self._chosen:
            cuts, divergences = self.divergences(grid, start)
            last = len(divergences) - 1 - int(np.argmin(divergences[::-1])) if cuts.size else 0
            self._chosen[key] = float(self.edges[cuts[last]]) if cuts.size else 0.0
        return self._chosen[key]

    def divergences(self, grid: GridLike = "int8", start: int = START) -> tuple[Array, Array]:
        """The cuts (numbers of bins kept) and the divergence at each, infinite where an empty bin takes the rest."""
        self._candidates(start)
        if not self.amax:
            return np.zeros(0, np.int64), np.zeros(0)
        levels = positive_levels(get(grid))
        bins = self.counts.copy()
        bins[:1] = bins[1:2] if len(bins) > 1 else bins[:1]  # the toolkit's rule: zeros do not count as mass at zero
        cuts = np.arange(start, len(bins) + 1)
        return cuts, all_divergences(bins, start, levels)

    @quotes_call
    def mse(self, grid: GridLike = "int8", start: int = START) -> float:
        """The bin centre that gives the least squared error as the largest value of ``grid``."""
        key = ("mse", get(grid), start)
        if key not in self._chosen:
            candidates, errors = self.squared_errors(grid, start)
            self._chosen[key] = float(candidates[int(np.argmin(errors))]) if candidates.size else 0.0
        return self._chosen[key]

    def squared_errors(self, grid: GridLike = "int8", start: int = START) -> tuple[Array, Array]:
        """The candidates of the mse rule (bin centres) and the mean squared error with each."""
        self._candidates(start, 1)
        if not self.amax:
            return np.zeros(0), np.zeros(0)
        high = positive_high(get(grid))
        edges = self.edges
        centres = (edges[1:] + edges[:-1]) / 2
        used = np.flatnonzero(self.counts)
        used_centres, counts = centres[used], self.counts[used]
        errors = []
        for at in range(start, len(centres), CHUNK):
            scale = high / centres[at : at + CHUNK, None]
            again = np.minimum(np.rint(used_centres * scale), high) / scale
            errors.append(((again - used_centres) ** 2 * counts).sum(axis=1) / len(centres))
        return centres[start:], np.concatenate(errors)

    def _candidates(self, start: int, more: int = 0) -> None:
        self._some()
        first = integer("start", start, 1, 2**24) + more
        if self.amax and len(self.counts) < first:
            raise LabError(f"{len(self.counts)} bins leave no candidate from bin {first} on; use more bins.")
        if len(self.counts) > MOST_COMPARED:
            raise LabError(
                f"{len(self.counts):,} bins, and entropy and mse compare every cut of at most {MOST_COMPARED:,}: the "
                "first batch, which fixed the width of a bin, was small beside later ones; collect a typical batch "
                "first, or use max or a percentile."
            )


def binned(magnitudes: Array, edges: Array) -> Array:
    """How many magnitudes (none below the first edge or above the last) lie in each bin; int64.

    The quotient gives a bin that is right or next to the right one; comparing with the edges settles it.
    """
    bins = len(edges) - 1
    guess = np.minimum((magnitudes * (1 / edges[1])).astype(np.int64), bins - 1)
    guess -= magnitudes < edges[guess]
    guess += (magnitudes >= edges[guess + 1]) & (guess < bins - 1)
    return np.bincount(guess, minlength=bins)


def positive_high(grid: Grid) -> int:
    """The largest code for magnitudes: of an unsigned grid all its codes serve, of a signed one half."""
    return (1 << grid.bits - int(grid.signed)) - 1


def positive_levels(grid: Grid) -> int:
    """How many levels magnitudes have: 128 for INT8."""
    return positive_high(grid) + 1


def all_divergences(bins: Array, start: int, levels: int) -> Array:
    """KL(reference || quantised) at every cut from ``start`` bins to all, compiled; float64.

    Reference: the bins before the cut, what lies beyond being put into the last of them. Quantised: those bins in
    ``levels`` groups of (almost) equal length, the count of each spread evenly over its non-empty bins.
    """
    from ..kernels.calibration import divergences

    result = np.empty(len(bins) + 1 - start)
    divergences(bins, start, levels, result)
    return result


@dataclass(frozen=True)
class Calibrator:
    """A rule that reads the range off a histogram: ``amax(histogram, grid) -> float``."""

    name: str
    title: str
    rule: str
    percentile: float = 0.0

    def amax(self, seen: Histogram, grid: GridLike = "int8") -> float:
        """The largest magnitude to represent."""
        if not isinstance(seen, Histogram):
            raise LabError(f"a calibrator reads a Histogram, and this is a {type(seen).__name__}; collect it into one.")
        match self.rule:
            case "max":
                return seen.max()
            case "percentile":
                return seen.percentile(self.percentile)
            case "entropy":
                return seen.entropy(grid)
            case "mse":
                return seen.mse(grid)
        raise unknown("calibration rule", self.rule, ["max", "percentile", "entropy", "mse"])


# Wu et al. compare these: the maximum, the entropy rule and four percentiles; the toolkit has mse too.
CALIBRATORS: tuple[Calibrator, ...] = (
    Calibrator("max", "max", "max"),
    *(Calibrator(f"p{p}", f"{p}%", "percentile", p) for p in (99.9, 99.99, 99.999, 99.9999)),
    Calibrator("entropy", "entropy", "entropy"),
    Calibrator("mse", "MSE", "mse"),
)
"""The rules that choose a range from what was seen."""
