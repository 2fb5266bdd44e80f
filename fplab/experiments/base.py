"""What an experiment is: a record of one file's parts, which runs, claims, draws, and asks GPUs.

A file ``fplab/experiments/NAME.py`` (or a package, where the science needs two files) has, from top to bottom:

* a frozen dataclass ``Params``, whose defaults are the full size;
* a frozen dataclass ``Result`` of arrays, which begins with ``params: Params``; an array whose bits are the same on
  every machine (from integers and kernels) is annotated :data:`Digested` instead of ``np.ndarray``;
* ``run(params, tick) -> Result``: pure; calls ``tick(fraction, text)`` as it goes;
* ``rows(result)``: the columns of the CSV, from which the figure and the claims take their numbers, too;
* ``CLAIMS = Claims()`` and a function a claim, ``@CLAIMS.proved("a sentence")``, that takes the result and returns an
  :class:`Outcome`; its name is the claim's id, and a fault in the tests fails it;
* functions that draw a figure of the result, of at most four panels each; ``figures`` of the record names them;
* ``cases(params)``: what a GPU must compute, through torch, for these claims; or a sentence why it has nothing to say;
* ``EXPERIMENT = Experiment(...)``.

It imports where only numpy is installed: the lab's kernels through :mod:`fplab.numeric` and its looks through
:mod:`fplab.draw`, which load them when they are used, torch and matplotlib inside functions.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .. import exact_products
from ..formats import get
from ..hardware.cases import Case
from ..words import CLAUSE, Text, joined, mark, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tick = Callable[[float, str], None]
Columns = Mapping[str, Sequence[Any]]
Digested: TypeAlias = np.ndarray  # an array whose bits are the same on every machine


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

    def said(self) -> Text:
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
        """Whether it passed."""
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
    return Outcome(Status.PASS if holds else Status.FAIL, joined((detail, sample.said()), CLAUSE), sample)


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
    """

    def proved(self, text: str, id: str = "") -> Callable[[Test], Test]:
        """Register a claim that was tried in every case, or whose bound was derived and holds."""
        return self._register(Evidence.PROVED, text, id)

    def library(self, text: str, id: str = "") -> Callable[[Test], Test]:
        """Register a claim that rests on another implementation's bits."""
        return self._register(Evidence.LIBRARY, text, id)

    def measured(self, text: str, id: str = "") -> Callable[[Test], Test]:
        """Register a claim about runs, whose outcome has a :class:`Sample`."""
        return self._register(Evidence.MEASURED, text, id)

    def live(self, text: str, id: str = "") -> Callable[[Test], Test]:
        """Register a claim about the bits of the hardware that is here."""
        return self._register(Evidence.LIVE, text, id)

    def _register(self, evidence: Evidence, text: str, id: str) -> Callable[[Test], Test]:
        def register(test: Test) -> Test:
            self.append(Claim(id or test.__name__, evidence, say(text), test))
            return test

        return register


Test: TypeAlias = Callable[[Any], Outcome]


@dataclass(frozen=True)
class Experiment:
    """The parts of an experiment; see the top of this file.

    ``budget``: seconds of its quick run, at most 8. ``full``, ``quick``: parameters of the two sizes. ``result``: the
    type that ``run`` returns. ``figures``: the first is written as NAME.svg, every other as NAME.FUNCTION.svg.
    ``cases``: a function, or the reason why a GPU has nothing to say. ``animation``: an SVG that moves.
    ``kinds``: where arrays come by the kind of operands, the types of those ``result.kinds[kind]`` that have
    :data:`Digested` arrays, too. ``on``: the device whose bits the cases are about, "cuda" or this machine's "cpu".
    """

    title: Text
    question: Text
    budget: float
    full: Any
    quick: Any
    result: type[Any]
    run: Callable[[Any, Tick], Any]
    rows: Callable[[Any], Columns]
    claims: Sequence[Claim]
    figures: Sequence[Callable[[Any], Figure]]
    cases: Callable[[Any], Iterable[Case]] | str
    animation: Callable[[], str] | None = None
    kinds: Mapping[str, type[Any]] = dataclasses.field(default_factory=dict)
    on: str = "cuda"

    def digested(self) -> tuple[str, ...]:
        """The names of the result's arrays whose bits are the same on every machine; of a kind, "KIND: NAME"."""
        of_kinds = (f"{kind}: {name}" for kind, of in self.kinds.items() for name in digested_fields(of))
        return (*digested_fields(self.result), *of_kinds)

    def asks(self, params: Any) -> tuple[Case, ...]:
        """What a GPU must compute, at a size; nothing where a GPU has nothing to say."""
        return () if isinstance(self.cases, str) else tuple(self.cases(params))


def digested_fields(of: type[Any]) -> tuple[str, ...]:
    """The fields of a dataclass that are annotated :data:`Digested`."""
    return tuple(f.name for f in dataclasses.fields(of) if f.type == "Digested")


def array_of(result: Any, name: str) -> Any:
    """A digested array of a result by its name; integers of any size as limbs. None where there is none."""
    kind, _, part = name.rpartition(": ")
    found = getattr(result.kinds.get(kind) if kind else result, part, None)
    return exact_products.pack(found) if found is not None and found.dtype == object else found


def in_columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Columns:
    """A table that is given by its rows, each as long as ``names``."""
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def same_bits(got: np.ndarray, want: np.ndarray, fmt: str, nan_equal: bool = True) -> Outcome:
    """Compare two arrays of codes of one format; a failure shows the first difference as bits and as numbers.

    ``fmt`` may also be "bits8" to "bits64": raw bits without a meaning, of which every one counts.
    """
    if got.shape != want.shape:
        return failed(say("shapes differ: {one} and {other}", one=got.shape, other=want.shape))
    form = None if fmt.startswith("bits") else get(fmt)
    got, want = got.astype(np.uint64), want.astype(np.uint64)
    differ = got != want
    if form and form.has_nan and nan_equal and differ.any():
        differ &= ~(is_nan_code(got, fmt) & is_nan_code(want, fmt))
    where = np.flatnonzero(differ)
    if not where.size:
        return passed(say("{n:,} results, every bit", n=got.size))
    pair = (int(codes.ravel()[where[0]]) for codes in (got, want))
    texts = (f"{code:0{form.bits}b} ({number(code, fmt)})" if form else f"{code:#x}" for code in pair)
    first, other = texts
    message = say("{n:,} of {all:,} differ; first at {place}: {first} against {other}")
    return failed(message.fill(n=where.size, all=got.size, place=int(where[0]), first=first, other=other))


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
