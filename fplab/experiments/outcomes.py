"""What is claimed and how a check of it ends: claims, their evidence, outcomes, and the comparison of bits.

It imports where only numpy is installed, as all of an experiment does.
"""

from __future__ import annotations

import enum
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ..formats import get
from ..words import CLAUSE, Text, joined, mark, say


class Evidence(enum.Enum):
    """What a claim rests on, in four words.

    Proved: every case there is was tried, or a bound was derived and holds. Library: another implementation gives the
    same bits. Measured here: so it came out in n runs, whose spread and margin the row says (:class:`Sample`).
    Hardware: the bits of a device, recorded or just now.
    """

    PROVED = mark("proved")
    LIBRARY = mark("library")
    MEASURED = mark("measured here")
    RECORDED = mark("hardware, recorded")
    LIVE = mark("hardware, live")


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

    def described(self) -> Text:
        """The three in words."""
        rests = say("n = {seeds}, spread {spread:.2g}, margin {margin:.2g}")
        return rests.fill(seeds=self.seeds, spread=self.spread, margin=self.margin)


@dataclass(frozen=True)
class Outcome:
    """How a check ended. ``detail``: what was compared, the first differing bits, or what is absent.

    ``sample``: of a measured claim that was decided.
    """

    status: Status
    detail: str | Text = ""
    sample: Sample | None = None

    @property
    def holds(self) -> bool:
        return self.status is Status.PASS


def passed(detail: str | Text = "") -> Outcome:
    """The claim holds; say how much was compared."""
    return Outcome(Status.PASS, detail)


def failed(detail: str | Text) -> Outcome:
    """The claim does not hold; say where first."""
    return Outcome(Status.FAIL, detail)


def absent(detail: str | Text) -> Outcome:
    """There was nothing to compare with; say what is missing."""
    return Outcome(Status.ABSENT, detail)


def differs(detail: str | Text) -> Outcome:
    """A device computed something else than the lab, and nothing known explains it; say where first."""
    return Outcome(Status.DIFFERS, detail)


def verdict(holds: bool, detail: str | Text) -> Outcome:
    """Pass or fail, with the same detail."""
    return passed(detail) if holds else failed(detail)


def measured(holds: bool, detail: str | Text, sample: Sample) -> Outcome:
    """Pass or fail of a measured claim, with the same detail, which ends in what it rests on."""
    return Outcome(Status.PASS if holds else Status.FAIL, joined((detail, sample.described()), CLAUSE), sample)


def same_bits(got: Any, want: Any, fmt: str = "", nan_equal: bool = True) -> Outcome:
    """Compare two arrays of codes of one format; a failure shows the first difference as bits and as numbers.

    ``fmt`` may also be "bits8" to "bits64": raw bits without a meaning, of which every one counts. Without it numbers
    are compared, or whatever else there is; one NaN is as good as another.
    """
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return failed(say("shapes differ: {one} and {other}", one=got.shape, other=want.shape))
    form = None if not fmt or fmt.startswith("bits") else get(fmt)
    if fmt:
        got, want = got.astype(np.uint64), want.astype(np.uint64)
    differ = np.asarray(got != want)
    if not fmt:
        differ &= (got == got) | (want == want)
    elif form and form.has_nan and nan_equal and differ.any():
        differ &= ~(is_nan_code(got, fmt) & is_nan_code(want, fmt))
    differing = np.flatnonzero(differ)
    if not differing.size:
        return passed(say("{n:,} results, every bit", n=got.size))
    pair = (array.ravel()[differing[:1]].tolist()[0] for array in (got, want))
    first, other = (f"{x:0{form.bits}b} ({number(x, fmt)})" if form else f"{x:#x}" if fmt else str(x) for x in pair)
    message = say("{n:,} of {all:,} differ; first at {place}: {first} against {other}")
    return failed(message.fill(n=differing.size, all=got.size, place=int(differing[0]), first=first, other=other))


Part: TypeAlias = Outcome | tuple[str | Text, Any] | tuple[str | Text, Any, Any] | tuple[str | Text, Any, Any, str]


def each_of(parts: Iterable[Part]) -> Outcome:
    """The first outcome that is no pass; else a pass with what all say. For an outcome may stand (name, results, what
    they must be), with a format where these are codes; and (what is wrong, whether it is not)."""
    details, n, checks = list[str | Text](), 0, 0
    for part in parts:
        if isinstance(part, Outcome):
            outcome = part
            details.append(outcome.detail)
        elif len(part) == 2:
            outcome, checks = verdict(bool(part[1]), part[0]), checks + 1
        else:
            name, got, want = part[:3]
            outcome, n = same_bits(got, want, part[3] if len(part) == 4 else ""), n + np.size(got)
            outcome = replace(outcome, detail=joined((name, outcome.detail), ": "))
        if not outcome.holds:
            return outcome
    if not n and not details:
        return passed(say("{n:,} checks", n=checks))
    return passed(joined([*[say("{n:,} results, every bit", n=n)] * (n > 0), *details], CLAUSE))


@dataclass(frozen=True)
class Claim:
    """A sentence with its evidence and its test. ``id``: what tests and records call it, which no rewording changes."""

    id: str
    evidence: Evidence
    text: Text
    test: Callable[[Any], Outcome]


class Claims(list[Claim]):
    """The claims of an experiment, in the order of the table; each is a function that takes the result::

    @CLAIMS.proved("a BF16 number takes 16 bits")
    def width(result: Result) -> Outcome: ...

    One that yields outcomes, or codes that must be the same, holds where all do: see :func:`each_of`. ``around``:
    decorates each test, and what it yields is computed inside.
    """

    around: Callable[[Callable[[Any], Outcome]], Callable[[Any], Outcome]] = staticmethod(lambda test: test)

    def proved(self, text: str, id: str = "") -> Callable[[Test], Test]:
        """Register a claim that was tried in every case, or whose bound was derived and holds."""
        return self._register(Evidence.PROVED, text, id)

    def library(self, text: str, id: str = "", needs: Sequence[str] = ()) -> Callable[[Test], Test]:
        """Register a claim that rests on another implementation's bits; absent where a module that it needs is."""
        return self._register(Evidence.LIBRARY, text, id, needs)

    def measured(self, text: str, id: str = "") -> Callable[[Test], Test]:
        """Register a claim about runs, whose outcome has a :class:`Sample`."""
        return self._register(Evidence.MEASURED, text, id)

    def live(self, text: str, id: str = "") -> Callable[[Test], Test]:
        """Register a claim about the bits of the hardware that is here."""
        return self._register(Evidence.LIVE, text, id)

    def _register(self, evidence: Evidence, text: str, id: str, needs: Sequence[str] = ()) -> Callable[[Test], Test]:
        def register(test: Test) -> Test:
            def tried(result: Any) -> Outcome:
                lacking = [name for name in needs if importlib.util.find_spec(name) is None]
                if lacking:
                    return absent(say("{library} is not installed", library=lacking[0]))
                outcome = test(result)
                return outcome if isinstance(outcome, Outcome) else each_of(outcome)

            self.append(Claim(id or test.__name__, evidence, say(text), self.around(tried)))
            return test

        return register


Test: TypeAlias = Callable[[Any], Outcome | Iterable[Part]]


def is_nan_code(codes: np.ndarray, fmt: str) -> np.ndarray:
    """Which codes (uint64) are NaN."""
    form = get(fmt)
    if form.nan_codes == 1:
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
