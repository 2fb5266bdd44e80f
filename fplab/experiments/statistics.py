"""How runs of training are compared: by paired differences over seeds, against a margin that was fixed beforehand.

:func:`equivalent` passes where the 90% confidence interval (Student's t) of the mean difference lies inside the margin
on both sides: two one-sided tests at 5% each. :func:`superior` passes where its lower end lies above the margin. Few or
scattered seeds fail either: little data can never show equality, nor a gain. One seed alone is no test at all.

What "within the normal variation" means: the same with a margin that the data give.

Normal variation is how much FP32 differs from itself: ``sigma``, the standard deviation of FP32's top-1 over seeds.
A policy is compared with FP32 seed by seed, the same initial weights and batches in both, so that most of that
variation cancels; of the differences d the mean and its 95% confidence interval (Student's t) are taken. The policy is

* ``within``, if the whole interval lies inside ±2 sigma, the band that holds 95% of FP32's own runs;
* ``outside``, if the whole interval lies outside the band, or a run did not come to its end;
* ``undecided`` otherwise: there are too few seeds to tell.

So little data can never show equality (as it would, were the question whether a difference is significant).
"""

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..words import CLAUSE, Text, joined, say
from .outcomes import Outcome, Sample, Status, absent, measured

BAND = 2.0
CONFIDENCE = 0.95
ALONE = say("one seed says nothing about others")


Scores: TypeAlias = np.ndarray | float  # by seed (n,), or a number that they are compared with


def equivalent(ours: Scores, other: Scores, margin: float, detail: str | Text) -> Outcome:
    """Whether two ways of training end alike, by their scores; absent of one seed."""
    if (apart := np.subtract(ours, other, dtype=np.float64)).size < 2:
        return absent(ALONE)
    mean, reach, sample = _paired(apart, margin)
    return measured(abs(mean) + reach <= margin, _differing(detail, mean, reach), sample)


def superior(ours: Scores, other: Scores, margin: float, detail: str | Text) -> Outcome:
    """Whether ``one`` is above ``other`` by more than ``margin``; absent of one seed."""
    if (apart := np.subtract(ours, other, dtype=np.float64)).size < 2:
        return absent(ALONE)
    mean, reach, sample = _paired(apart, margin)
    return measured(mean - reach > margin, _differing(detail, mean, reach), sample)


def both(first: Outcome, *others: Outcome) -> Outcome:
    """Of measured outcomes the first that fails, or the last, with what all say; nothing where one is absent."""
    for other in others:
        if first.status is Status.ABSENT:
            return first
        worse = first if first.status is Status.FAIL else other
        first = Outcome(worse.status, joined((first.detail, other.detail), CLAUSE), worse.sample)
    return first


def _differing(detail: str | Text, mean: float, reach: float) -> Text:
    """What was compared, and how far it is apart."""
    return joined((detail, say("mean difference {mean:.2g} ± {reach:.2g}", mean=mean, reach=reach)), CLAUSE)


def _paired(apart: np.ndarray, margin: float, p: float = 0.95) -> tuple[float, float, Sample]:
    """The mean difference, how far its limit on one side lies from it, and what they rest on; NaN fails any test."""
    n, spread = len(apart), float(np.std(apart, ddof=1)) if np.isfinite(apart).all() else math.nan
    reach = quantile(p, n - 1) * spread / math.sqrt(n)
    return float(apart.mean()), reach, Sample(n, spread, margin)


@dataclass(frozen=True)
class Compared:
    """A policy against FP32: mean paired difference of top-1, its interval, the band, and what follows.

    ``spread``: the differences' standard deviation over seeds.
    """

    mean: float
    low: float
    high: float
    band: float
    verdict: str
    spread: float = math.nan


def compared(policy: np.ndarray, fp32: np.ndarray, baseline: np.ndarray) -> Compared:
    """``policy``, ``fp32``: top-1 by seed (n,), n at least 2; ``baseline``: of FP32 over all its seeds (m,)."""
    band = BAND * float(np.std(baseline, ddof=1))
    if not np.isfinite(policy).all():
        return Compared(math.nan, math.nan, math.nan, band, "outside")
    mean, reach, sample = _paired(policy - fp32, band, (1 + CONFIDENCE) / 2)
    low, high = mean - reach, mean + reach
    return Compared(mean, low, high, band, _verdict(low, high, band), sample.spread)


def _verdict(low: float, high: float, band: float) -> str:
    """What an interval says of a band around 0."""
    if -band <= low and high <= band:
        return "within"
    return "outside" if low > band or high < -band else "undecided"


def quantile(p: float, df: int) -> float:
    """The t of which Student's distribution function with this many degrees of freedom is p."""
    from scipy.special import stdtrit

    return float(stdtrit(df, p))
