"""The claims about sums, each against exact integers or a library."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from ...formats import get
from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, Sample, absent, failed, measured, passed, verdict
from ..legacy import Check
from . import bounds, series

if TYPE_CHECKING:
    from . import Params

USED = 0.25  # of its bound, at the least, by the largest error of every order: a bound far too large proves little
LAW = (0.5, 4.0)  # root mean squares between which the largest of many stochastic errors is expected


def _places() -> tuple[tuple[str, str, int, int], ...]:
    from . import FORMATS

    return tuple((s, f, i, j) for i, s in enumerate(series.SERIES) for j, f in enumerate(FORMATS))


def libraries_stall(arrays: Arrays, params: Params) -> Outcome:
    """numpy's own float16 and float32 additions, and ml_dtypes', one after the other: the stalls and the way there."""
    try:
        import ml_dtypes
    except ImportError:
        return absent("ml_dtypes is not installed")
    types: dict[str, Any] = {
        "fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16,
        "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    }  # fmt: skip
    compared = 0
    for name, fmt, i, j in _places():
        last, reach = int(arrays["stall_last"][i, j]), arrays["reach"]
        want = tuple(float(arrays[key][i, j]) for key in ("stall_before", "stall_value", "stall_value"))
        got, partial = _library_sums(name, types[fmt], last + 1, reach)
        if got != want[-len(got) :]:
            return failed(f"{name} in {fmt}: the sums of {last - 1} to {last + 1} terms are {got}, not {want}")
        drawn = np.concatenate([partial, np.full(reach.size - partial.size, want[-1])])
        if (drawn != arrays["partial"][i, j]).any():
            return failed(f"{name} in {fmt}: sums on the way are {drawn.tolist()}")
        compared += last + 1
    return passed(f"{compared:,} additions")


def _library_sums(name: str, dtype: Any, count: int, at: np.ndarray) -> tuple[tuple[float, ...], np.ndarray]:
    """The last partial sums (three, if there are) of ``count`` terms in a library's own arithmetic; and those ``at``
    numbers of terms.
    """
    tail, found = np.zeros(1, dtype), []
    for first in range(1, count + 1, series.CHUNK):
        x = series.terms(name, first, min(series.CHUNK, count + 1 - first))
        # ml_dtypes rounds float64 twice, through float32; that changes none of these terms, as the oracle's show.
        both = np.concatenate([tail[-1:], x.astype(dtype)])
        if dtype in (np.float16, np.float32):
            partial = np.add.accumulate(both, dtype=dtype)
        else:
            partial = both.copy()
            for k in range(1, both.size):
                partial[k] = partial[k - 1] + both[k]
        tail = np.concatenate([tail[-2:-1], partial])
        found.append(partial[at[(at >= first) & (at < first + x.size)] - first + 1])
    return tuple(tail[-3:].astype(np.float64).tolist()), np.concatenate(found).astype(np.float64)


def bounds_hold(arrays: Arrays, params: Params) -> Outcome:
    """Every error is at most its bound, in integers, and the largest of each order a good part of one below 1."""
    from . import FORMATS, MEASURED, ORDERS, sums_of

    used = dict.fromkeys(ORDERS, 0.0)
    points = 0
    for i, j, order in itertools.product(range(len(MEASURED)), range(len(FORMATS)), ORDERS):
        p = get(FORMATS[j]).significand_bits
        for place, n in enumerate(arrays["sizes"].tolist()):
            want = int(arrays["exact"][i, j, place])
            got = sums_of(arrays, i, j, order)[..., place].reshape(-1).tolist()
            bound = bounds.BOUNDS[order](n, p, params.block) if want >= 0 <= got[0] else None
            if bound is None:
                continue
            worst = max(abs(s - want) for s in got)
            points += len(got)
            if worst * bound.denominator > want * bound.numerator:
                where = f"{MEASURED[i]} in {FORMATS[j]}, {order}, {n} terms"
                return failed(f"{where}: error {worst / want:.3g}, bound {float(bound):.3g}")
            if 0 < bound < 1:
                used[order] = max(used[order], float(Fraction(worst, want) / bound))
    text = ", ".join(f"{order} {share:.2f}" for order, share in used.items())
    return verdict(min(used.values()) >= USED, f"{points:,} errors, none above its bound; used at most: {text}")


def exact_sums(arrays: Arrays, params: Params) -> Outcome:
    """The integer sums that all errors are measured from, against Python's own sum of the same terms."""
    from . import FORMATS, MEASURED

    compared = 0
    for i, name in enumerate(MEASURED):
        for j, fmt in enumerate(FORMATS):
            there = np.flatnonzero(arrays["exact"][i, j] >= 0)
            x = series.rounded(name, get(fmt), 1, int(arrays["sizes"][there[-1]])).astype(np.float64)
            for place in there[-5:].tolist():
                n, units = int(arrays["sizes"][place]), int(arrays["exact"][i, j, place])
                want, got = math.fsum(x[:n]), math.ldexp(units, int(arrays["unit"][i, j]))
                if got != want:
                    return failed(f"{name} in {fmt}, {n} terms: {got!r} against {want!r}")
                compared += 1
    return passed(f"{compared} sums of up to {int(arrays['sizes'][-1]):,} terms")


def stochastic_law(arrays: Arrays, params: Params) -> Outcome:
    """The largest error of each seed's sums, of every series, format and length, over u sqrt(n) times the sum."""
    from . import FORMATS

    p = np.array([get(fmt).significand_bits for fmt in FORMATS])[:, None]
    want, got = arrays["exact"], arrays["stochastic"]
    there = (want >= 0) & (got[:, :, 0] >= 0)
    unit = np.sqrt(arrays["sizes"]) * 2.0**-p * want
    ratio = np.abs(got - want[:, :, None]) / np.where(there, unit, np.inf)[:, :, None]
    worst = ratio.max(axis=(0, 1, 3))
    sample = Sample(params.seeds, float(worst.std(ddof=1)), LAW[1])
    detail = f"the largest of {params.seeds * int(there.sum()):,} errors is {worst.max():.2f} u sqrt(n)"
    return measured(bool(LAW[0] <= worst.max() <= LAW[1]), detail, sample)


def folklore(arrays: Arrays, params: Params) -> Outcome:
    """ "FP16 needs 513 terms, BF16 65": the first term that does nothing, one more than do something."""
    from . import FORMATS

    i = series.SERIES.index("harmonic")
    first = {f: int(arrays["stall_last"][i, FORMATS.index(f)]) + 1 for f in ("fp16", "bf16")}
    return verdict(first == {"fp16": 513, "bf16": 65}, f"first harmonic term without effect: {first}")


CHECKS: tuple[Check, ...] = (
    Check("every sequential sum, and where it stalls, is numpy's and ml_dtypes' own", Evidence.LIBRARY,
          libraries_stall),
    Check("the first harmonic term without effect is number 513 in FP16 and 65 in BF16", Evidence.PROVED, folklore),
    Check("no error crosses its bound, one reaches a quarter: sequential, pairwise, blocked, Kahan, stochastic",
          Evidence.PROVED, bounds_hold),
    Check("the exact sums are those of math.fsum", Evidence.LIBRARY, exact_sums),
    Check("the largest stochastic error is between a half and 4 times u sqrt(n)", Evidence.MEASURED, stochastic_law),
)  # fmt: skip
