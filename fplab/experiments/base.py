"""What an experiment is: a module with data in, arrays out, a figure, checked claims and GPU cases.

The package ``fplab.experiments.NAME`` has, and the tests demand:

* ``TITLE``, ``QUESTION`` and ``BUDGET`` (seconds of its quick run, at most 8);
* a frozen dataclass ``Params`` whose defaults are the full size, and ``QUICK``, an instance of the quick size;
* ``run(params, tick) -> Arrays``: pure; calls ``tick(fraction, text)`` as it goes;
* ``plot(arrays, params) -> Figure`` and ``table(arrays, params) -> columns`` (what the CSV holds);
* ``CHECKS``: a tuple of :class:`Check`, each a claim with its evidence, and with a fault in the tests that fails it;
* ``gpu_cases(params) -> tuple[Case, ...]``: what a GPU must compute, through torch, for these claims;
* ``DIGESTED``: names of the arrays whose bits are the same on every machine (from integers and kernels);
* if it likes, ``animation() -> str``: an SVG that moves.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..formats import get
from ..hardware.cases import Arrays, Case

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tick = Callable[[float, str], None]
Columns = Mapping[str, Sequence[Any]]


class Evidence(enum.Enum):
    """What a claim rests on, in four words.

    Proved: every case there is was tried, or a bound was derived and holds. Library: another implementation gives the
    same bits. Measured here: so it came out in n runs, whose spread and margin the row says (:class:`Sample`).
    Hardware: the bits of a device, recorded or just now.
    """

    PROVED = "proved"
    LIBRARY = "library"
    MEASURED = "measured here"
    RECORDED = "hardware, recorded"
    LIVE = "hardware, live"


class Status(enum.Enum):
    """The four outcomes of a check; none is hidden."""

    PASS = "pass"
    FAIL = "FAIL"
    DIFFERS = "differs, unexplained"
    ABSENT = "absent"


@dataclass(frozen=True)
class Sample:
    """What a measured claim rests on. ``seeds``: runs, matrices or other independent draws; ``spread``: how far apart
    they lie, the standard deviation over them, or greatest less least of few; ``margin``: what was fixed beforehand.
    Spread and margin are in the unit of what is measured.
    """

    seeds: int
    spread: float
    margin: float

    def __str__(self) -> str:
        return f"n = {self.seeds}, spread {self.spread:.2g}, margin {self.margin:.2g}"


@dataclass(frozen=True)
class Outcome:
    """How a check ended. ``detail``: what was compared, the first differing bits, or what is absent.

    ``sample``: of a measured claim that was decided.
    """

    status: Status
    detail: str = ""
    sample: Sample | None = None


def passed(detail: str = "") -> Outcome:
    """The claim holds; say how much was compared."""
    return Outcome(Status.PASS, detail)


def failed(detail: str) -> Outcome:
    """The claim does not hold; say where first."""
    return Outcome(Status.FAIL, detail)


def absent(detail: str) -> Outcome:
    """There was nothing to compare with; say what is missing."""
    return Outcome(Status.ABSENT, detail)


def differs(detail: str) -> Outcome:
    """A device computed something else than the lab, and nothing known explains it; say where first."""
    return Outcome(Status.DIFFERS, detail)


def verdict(holds: bool, detail: str) -> Outcome:
    """Pass or fail, with the same detail."""
    return passed(detail) if holds else failed(detail)


def measured(holds: bool, detail: str, sample: Sample) -> Outcome:
    """Pass or fail of a measured claim, with the same detail, which ends in what it rests on."""
    return Outcome(Status.PASS if holds else Status.FAIL, f"{detail}; {sample}", sample)


@dataclass(frozen=True)
class Check:
    """A claim and what it is checked against. ``check(arrays, params)`` gives the outcome."""

    claim: str
    evidence: Evidence
    check: Callable[[Arrays, Any], Outcome]


class Experiment(Protocol):
    """The shape of an experiment module."""

    TITLE: str
    QUESTION: str
    BUDGET: float
    QUICK: Any
    Params: type[Any]
    CHECKS: tuple[Check, ...]
    DIGESTED: tuple[str, ...]

    def run(self, params: Any, tick: Tick) -> Arrays: ...  # noqa: D102
    def plot(self, arrays: Arrays, params: Any) -> Figure: ...  # noqa: D102
    def table(self, arrays: Arrays, params: Any) -> Columns: ...  # noqa: D102
    def gpu_cases(self, params: Any) -> tuple[Case, ...]: ...  # noqa: D102


def in_columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Columns:
    """A table that is given by its rows, each as long as ``names``."""
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def same_bits(got: np.ndarray, want: np.ndarray, fmt: str, nan_equal: bool = True) -> Outcome:
    """Compare two arrays of codes of one format; a failure shows the first difference as bits and as numbers.

    ``fmt`` may also be "bits8" to "bits64": raw bits without a meaning, of which every one counts.
    """
    if got.shape != want.shape:
        return failed(f"shapes differ: {got.shape} and {want.shape}")
    form = None if fmt.startswith("bits") else get(fmt)
    got, want = got.astype(np.uint64), want.astype(np.uint64)
    differ = got != want
    if form and form.has_nan and nan_equal and differ.any():
        differ &= ~(is_nan_code(got, fmt) & is_nan_code(want, fmt))
    where = np.flatnonzero(differ)
    if not where.size:
        return passed(f"{got.size:,} results, every bit")
    pair = (int(codes.ravel()[where[0]]) for codes in (got, want))
    texts = (f"{code:0{form.bits}b} ({number(code, fmt)})" if form else f"{code:#x}" for code in pair)
    return failed(f"{where.size:,} of {got.size:,} differ; first at {where[0]}: {' against '.join(texts)}")


def is_nan_code(codes: np.ndarray, fmt: str) -> np.ndarray:
    """Which codes (uint64) are NaN."""
    form = get(fmt)
    if form.specials.name == "NEGATIVE_ZERO":
        return np.asarray(codes == np.uint64(form.nan_code or 0))
    magnitude = codes & np.uint64((1 << form.bits) - 1 - form.sign_mask)
    return np.asarray(magnitude > np.uint64(form.max_code if form.inf_code is None else form.inf_code))


def number(code: int, fmt: str) -> str:
    """A code as a short decimal number for messages."""
    from .. import exact

    x = exact.decode(code, fmt)
    if x.kind != "finite":
        return ("-" if x.negative else "") + x.kind
    return f"{float(x.magnitude) * (-1 if x.negative else 1):.9g}"
