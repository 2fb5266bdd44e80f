"""The claims about sums, each against the Fraction oracle, exact integers, or a library."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from ...formats import get
from ...hardware.cases import Arrays
from ..base import Check, Evidence, Outcome, absent, failed, passed, verdict
from . import bounds, series

if TYPE_CHECKING:
    from . import Params

# Where sequential sums stop, as a table anyone can recompute: (value, last term that changes it).
KNOWN: dict[tuple[str, str], tuple[float, int]] = {
    ("harmonic", "fp16"): (7.0859375, 512),
    ("harmonic", "bf16"): (5.0625, 64),
    ("harmonic", "fp32"): (15.403682708740234, 2097151),
    ("harmonic", "e4m3"): (3.0, 8),
    ("harmonic", "e5m2"): (2.0, 4),
    ("ones", "fp16"): (2048.0, 2048),
    ("ones", "bf16"): (256.0, 256),
    ("ones", "fp32"): (2.0**24, 2**24),
    ("ones", "e4m3"): (16.0, 16),
    ("ones", "e5m2"): (8.0, 8),
    ("0.1", "fp16"): (256.0, 2207),
    ("0.1", "bf16"): (32.0, 276),
    ("1e-4", "fp16"): (0.25, 2181),
    ("1e-4", "bf16"): (0.03125, 273),
}
ORACLE_TERMS = 4096  # the oracle adds this many terms itself
LAW = 4  # root mean squares within which every stochastic sum is expected


def _places() -> tuple[tuple[str, str, int, int], ...]:
    from . import FORMATS

    return tuple((s, f, i, j) for i, s in enumerate(series.SERIES) for j, f in enumerate(FORMATS))


def known_stalls(arrays: Arrays, params: Params) -> Outcome:
    """Every cell of the published table."""
    wrong = []
    for name, fmt, i, j in _places():
        got = (float(arrays["stall_value"][i, j]), int(arrays["stall_last"][i, j]))
        if (name, fmt) in KNOWN and got != KNOWN[name, fmt]:
            wrong.append(f"{name} in {fmt}: {got}, not {KNOWN[name, fmt]}")
    return failed("; ".join(wrong)) if wrong else passed(f"{len(KNOWN)} cells, value and term")


def oracle_stalls(arrays: Arrays, params: Params) -> Outcome:
    """The oracle adds the terms itself; where they are too many, only the last that counts and the one after."""
    for name, fmt, i, j in _places():
        value, last = float(arrays["stall_value"][i, j]), int(arrays["stall_last"][i, j])
        far = last >= ORACLE_TERMS
        found = _oracle_stall(name, fmt, float(arrays["stall_before"][i, j]) if far else 0.0, last if far else 1)
        if found != (Fraction(value), last):
            return failed(f"{name} in {fmt}: {float(found[0])!r} after term {found[1]}, not {value!r} after {last}")
    return passed(f"{len(_places())} stalls")


def _oracle_stall(name: str, fmt: str, start: float, k: int) -> tuple[Fraction, int]:
    """Value and last effective term of a sum that is ``start`` before term k."""
    from ... import exact, exact_sums

    machine = exact_sums.Machine(get(fmt))
    s = exact.from_float(start)
    while True:
        term = series.terms(name, k, 1)[0]
        code, _ = exact.round_to(exact.from_float(float(term)), fmt)
        new = machine.add(s, exact.decode(code, fmt))
        if new == s:
            return s.value, k - 1
        s, k = new, k + 1


def libraries_stall(arrays: Arrays, params: Params) -> Outcome:
    """numpy's own float16 and float32 additions, and ml_dtypes', one after the other."""
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
        last = int(arrays["stall_last"][i, j])
        want = tuple(float(arrays[key][i, j]) for key in ("stall_before", "stall_value", "stall_value"))
        got = _library_sums(name, types[fmt], last + 1)[-3:]
        if got != want[-len(got) :]:
            return failed(f"{name} in {fmt}: the sums of {last - 1} to {last + 1} terms are {got}, not {want}")
        compared += last + 1
    return passed(f"{compared:,} additions")


def _library_sums(name: str, dtype: Any, count: int) -> tuple[float, ...]:
    """The last partial sums (three, if there are) of ``count`` terms in a library's own arithmetic."""
    tail = np.zeros(1, dtype)
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
    return tuple(tail[-3:].astype(np.float64).tolist())


def bounds_hold(arrays: Arrays, params: Params) -> Outcome:
    """Every error is at most its bound, in integers."""
    from . import FORMATS, MEASURED, ORDERS, sums_of

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
    return verdict(points > 0, f"{points:,} errors, none above its bound")


def kulisch_agrees(arrays: Arrays, params: Params) -> Outcome:
    """The exact integer sums, rounded once, are what the exact accumulator gives."""
    from ... import exact, floats, sums
    from . import FORMATS, MEASURED

    compared = 0
    for i, name in enumerate(MEASURED):
        for j, fmt in enumerate(FORMATS):
            form = get(fmt)
            there = np.flatnonzero(arrays["exact"][i, j] >= 0)
            x = series.rounded(name, form, 1, int(arrays["sizes"][there[-1]]))
            for place in there[-5:].tolist():
                n, units = int(arrays["sizes"][place]), int(arrays["exact"][i, j, place])
                want, _ = exact.round_to(exact.of(units * Fraction(2) ** int(arrays["unit"][i, j])), form)
                got = int(floats.encode(sums.sum(x[:n], form, accumulate="exact"), form))
                if got != want:
                    return failed(f"{name} in {fmt}, {n} terms: code {got:#x} against {want:#x}")
                compared += 1
    return passed(f"{compared} sums of up to {int(arrays['sizes'][-1]):,} terms")


def stochastic_law(arrays: Arrays, params: Params) -> Outcome:
    """Every stochastic error against 4 u sqrt(n) times the sum, squared, in integers."""
    from . import FORMATS, MEASURED

    worst, points = Fraction(0), 0
    for i, _ in enumerate(MEASURED):
        for j, fmt in enumerate(FORMATS):
            p = get(fmt).significand_bits
            for place, n in enumerate(arrays["sizes"].tolist()):
                want, got = int(arrays["exact"][i, j, place]), arrays["stochastic"][i, j, :, place]
                if want < 0 or got[0] < 0:
                    continue
                error = max(abs(int(s) - want) for s in got.tolist())
                worst = max(worst, Fraction(error * error << 2 * p, want * want * n))
                points += got.size
    return verdict(0 < worst <= LAW * LAW, f"the largest of {points:,} errors is {float(worst) ** 0.5:.2f} u sqrt(n)")


def threads_do_not_matter(arrays: Arrays, params: Params) -> Outcome:
    """The same sums, stochastic ones too, with one thread and with three."""
    from ... import sums, threads

    rows = np.stack([series.terms("harmonic", first, 4096) for first in range(1, 49)])
    before, results = threads._count, []
    try:
        for count in (1, 3):
            threads.set_num_threads(count)
            results.append(
                [sums.sum(rows, "bf16", rounding="stochastic", seed=1, running=True)]
                + [sums.sum(rows, "fp16", order) for order in sums.ORDERS]
                + [sums.sum(rows, "fp16", accumulate="exact")]
            )
    finally:
        threads.set_num_threads(before)
    same = all(np.array_equal(a, b) for a, b in zip(*results, strict=True))
    return verdict(same, f"{len(results[0])} sums of {rows.size:,} terms, 1 thread against 3")


def folklore(arrays: Arrays, params: Params) -> Outcome:
    """ "FP16 needs 513 terms, BF16 65": the first term that does nothing, one more than do something."""
    from . import FORMATS

    i = series.SERIES.index("harmonic")
    first = {f: int(arrays["stall_last"][i, FORMATS.index(f)]) + 1 for f in ("fp16", "bf16")}
    return verdict(first == {"fp16": 513, "bf16": 65}, f"first harmonic term without effect: {first}")


CHECKS = (
    Check("every sum stalls where the table says: value and last effective term", Evidence.EXACT, known_stalls),
    Check("the Fraction oracle stalls at the same values and terms", Evidence.EXACT, oracle_stalls),
    Check("numpy's and ml_dtypes' additions stall there too", Evidence.LIBRARY, libraries_stall),
    Check("the first harmonic term without effect is number 513 in FP16 and 65 in BF16", Evidence.EXACT, folklore),
    Check("no error crosses its bound: sequential, pairwise, blocked, Kahan, stochastic", Evidence.EXACT, bounds_hold),
    Check("the exact accumulator gives the exact integer sum, rounded once", Evidence.EXACT, kulisch_agrees),
    Check("every stochastic sum stays within 4 u sqrt(n) of the exact one", Evidence.EXACT, stochastic_law),
    Check("results do not depend on the thread count", Evidence.EXACT, threads_do_not_matter),
)
