"""What an experiment is: a record of one file's parts, which runs, claims, draws, and asks GPUs.

A file ``fplab/experiments/NAME.py`` (or a package, where the science needs two files) has, from top to bottom:

* a frozen dataclass ``Params``, whose defaults are the full size;
* a frozen dataclass ``Result`` of arrays, which begins with ``params: Params``; an array whose bits are the same on
  every machine (from integers and kernels) is annotated :data:`Digested` instead of ``np.ndarray``;
* ``run(params, tick) -> Result``: pure; calls ``tick(fraction, text)`` as it goes;
* ``rows(result)``: the columns of the CSV, from which the figure and the claims take their numbers, too;
* ``CLAIMS = Claims()`` and a function a claim, ``@CLAIMS.proved("a sentence")``, that takes the result and returns an
  :class:`Outcome`; its name is the claim's id, and a fault in the tests fails it;
* functions that draw a figure of the result, of at most four panels each; ``figures`` of the record names them, and
  :func:`sheet` makes one of functions that draw a panel each;
* ``cases(params)``: what a GPU must compute, through torch, for these claims; or a sentence why it has nothing to say;
* ``EXPERIMENT = Experiment(...)``.

It imports where only numpy is installed: the lab's kernels through :mod:`fplab.numeric` and its looks through
:mod:`fplab.draw`, which load them when they are used, torch and matplotlib inside functions.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import numpy as np

from .. import exact_products
from ..hardware.cases import Case
from ..words import Text, say
from .outcomes import Evidence, Outcome, Part, absent, each_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")
Tick = Callable[[float, str], None]
Columns = Mapping[str, Sequence[Any]]
Digested: TypeAlias = np.ndarray  # an array whose bits are the same on every machine


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

    One that yields outcomes, or codes that must be the same, holds where all do: see :func:`.outcomes.each_of`.
    """

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

            self.append(Claim(id or test.__name__, evidence, say(text), tried))
            return test

        return register


Test: TypeAlias = Callable[[Any], Outcome | Iterable[Part]]


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

    def answered(self, result: Any) -> Text | None:
        """No answer in one sentence."""
        return None


def digested_fields(of: type[Any]) -> tuple[str, ...]:
    """The fields of a dataclass that are annotated :data:`Digested`."""
    return tuple(f.name for f in dataclasses.fields(of) if f.type == "Digested")


def array_of(result: Any, name: str) -> Any:
    """A digested array of a result by its name; integers of any size as limbs. None where there is none."""
    kind, _, part = name.rpartition(": ")
    found = getattr(result.kinds.get(kind) if kind else result, part, None)
    found = getattr(found, "values", found)  # of an array with named axes
    return exact_products.pack(found) if found is not None and found.dtype == object else found


def one_threaded(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function with torch on one thread, so that its bits do not depend on the machine's."""

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        from ..training.loop import one_thread

        with one_thread():
            return function(*args, **kwargs)

    return alone


def sheet(
    name: str, size: tuple[float, float], grid: tuple[int, int], *panels: Callable[[Axes, Any], None], **how: Any
) -> Callable[[Any], Figure]:
    """The figure of a name whose panels, row by row, are drawn by a function each: ``panel(ax, result)``.

    ``size``: width and height in inches; ``grid``: rows and columns of panels; ``how``: of ``Figure.subplots``.
    """

    def drawn(result: Any) -> Figure:
        from ..draw import panels as axes_of

        figure, axes = axes_of(*size, *grid, **how)
        for ax, panel in zip(axes.flat, panels, strict=True):
            panel(ax, result)
        return figure

    drawn.__name__ = name
    return drawn


def in_columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Columns:
    """A table that is given by its rows, each as long as ``names``."""
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
