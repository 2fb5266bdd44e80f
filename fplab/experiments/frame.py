"""An experiment in one file: what it measures along named axes, what it claims of that, and how it is drawn.

::

    E = Experiment("Sums", "When does a sum of ones stop growing?", budget=1, full={"most": 4096}, quick={"most": 600})

    @E.measure("total", axes={"fmt": ("fp16", "bf16"), "terms": lambda p: [2**i for i in range(p.most.bit_length())]})
    def total(p, fmt, terms):
        "What a sequential sum of so many ones gives."
        return numeric.sum(np.ones(terms), fmt)

    fp16, bf16 = of("total", fmt="fp16"), of("total", fmt="bf16")
    E.claim(within("fp16_goes_on", "FP16 goes on where BF16 stalls", fp16 - bf16, 0, 344))
    E.figure("stall", line("total", x="terms", hue="fmt", log="xy"))

A measure is computed for each point of its axes, when something first asks for it: a run asks for all, a mutant in the
tests for what its claims read. ``result.total`` is an :class:`xarray.DataArray`; a measure without axes is kept as it
is. The table, digests and progress are derived. Where the science needs more, claims, the table and figures are
functions of the result: ``@E.proved("a sentence")``, ``@E.table``, ``@E.picture``; ``@E.hardware`` gives the cases.
Claims as rows stand in :mod:`.quantities`, panels of figures in :mod:`.panels`.

It imports where only numpy is installed: xarray, torch, matplotlib and the kernels load when a result needs them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np

from ..hardware.cases import Case
from ..words import Text, say
from .outcomes import Claim, Claims
from .progress import Tick, part_of, silent
from .quantities import Columns, Quantity, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from xarray import DataArray

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")
Axis: TypeAlias = str | EllipsisType | Sequence[Any] | Mapping[Any, Any] | Callable[["Params"], Iterable[Any]]
Panel: TypeAlias = Callable[["Axes", "Result"], None]


class Params:
    """The parameters of one size: a frozen dataclass of its own for each experiment, made from names and defaults.

    What :meth:`Experiment.cache` keeps lives and ends with them.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "_kept", {})

    def __reduce__(self) -> Any:
        return parameters, (dataclasses.asdict(cast(Any, self)),)


def parameters(values: dict[str, Any], others: Mapping[str, Any] | None = None) -> Params:
    """Parameters of these names, with these values as defaults. ``others``: values whose types may stand there, too."""
    fields = [(name, type(value) | type((others or {}).get(name, value)), dataclasses.field(default=value))
              for name, value in values.items()]  # fmt: skip
    made: Params = dataclasses.make_dataclass("Params", fields, bases=(Params,), frozen=True)()
    return made


@dataclass(frozen=True)
class Measure:
    """A function of the experiment's module and what it gives. ``dims``: of an array that it returns, beside its axes,
    with coordinates where there are some.

    ``digested``: whether its bits are the same on every machine, or the names of what has such bits.
    """

    names: tuple[str, ...]
    function: Callable[..., Any]
    axes: Mapping[str, Axis]
    dims: Mapping[str, Axis | None]
    unit: str
    digested: bool | Sequence[str]

    def compute(self, p: Params, tick: Tick) -> dict[str, Any]:
        """Its values at parameters, by name, by the function that its module has now: tests put faults in its place."""
        function = getattr(sys.modules[self.function.__module__], self.function.__name__, self.function)
        points = {axis: _points(p, values) for axis, values in self.axes.items() if values is not ...}
        grid = list(itertools.product(*points.values()))
        cells: list[tuple[Any, ...] | None] = []
        for i, point in enumerate(grid):
            tick(i / len(grid), self.names[0])
            value = function(p, **dict(zip(points, point, strict=True)))
            cells.append(value if value is None or len(self.names) > 1 else (value,))
        if not self.axes and not self.dims:
            return dict(zip(self.names, cells[0] or (), strict=True))
        along = [axis for axis, values in self.axes.items() if values is ...]
        inner = {dim: _points(p, values) for dim, values in self.dims.items() if values is not None}
        return {
            name: self._array(points, inner, along, [None if cell is None else cell[i] for cell in cells])
            for i, name in enumerate(self.names)
        }

    def _array(
        self, points: dict[str, list[Any]], inner: dict[str, list[Any]], along: list[str], cells: list[Any]
    ) -> DataArray:
        """The cells of one name with their axes; NaN where nothing was measured."""
        from xarray import DataArray

        coordinates: dict[str, Any] = dict(points)
        if along:  # a cell is {coordinate: value}
            keys = list(dict.fromkeys(itertools.chain.from_iterable(cell or () for cell in cells)))
            coordinates[along[0]] = keys
            cells = [None if cell is None else _in_order(cell, keys) for cell in cells]
        given = [np.asarray(cell) for cell in cells if cell is not None]
        shape = tuple(max(sizes) for sizes in zip(*(cell.shape for cell in given), strict=True))
        ragged = len(given) < len(cells) or any(cell.shape != shape for cell in given)
        whole = np.full((len(cells), *shape), np.nan if ragged else 0, float if ragged else np.result_type(*given))
        for i, cell in enumerate(cells):
            if cell is not None:
                values = np.asarray(cell)
                place: Any = (i, *map(slice, values.shape))
                whole[place] = values
        whole = whole.reshape(*map(len, points.values()), *shape)
        own = [*self.dims][: len(shape) - len(along)]  # a number beside arrays has fewer
        coordinates |= {dim: inner[dim] for dim in own if dim in inner}
        return DataArray(whole, coordinates, (*points, *along, *own), attrs={"unit": self.unit})


def _in_order(cell: Mapping[Any, Any], keys: Sequence[Any]) -> list[Any]:
    """The values of a cell at all coordinates, NaN where it has none; each may be an array."""
    blank = np.full(np.shape(next(iter(cell.values()), 0)), np.nan)
    return [cell.get(key, blank) for key in keys]


def _points(p: Params, values: Any) -> list[Any]:
    """The coordinates of an axis: a parameter's (a number counts), a sequence's, a mapping's keys, or a function's."""
    if isinstance(values, str):
        values = getattr(p, values)
    elif callable(values):
        values = values(p)
    return list(range(values) if isinstance(values, int) else values)


class Result:
    """What an experiment measured at ``params``, by the measures' names; what nobody asked for yet is measured then."""

    def __init__(self, experiment: Experiment, params: Params, values: dict[str, Any] | None = None) -> None:
        self.params, self._experiment, self._values = params, experiment, values or {}

    @property
    def p(self) -> Params:
        """The parameters."""
        return self.params

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._values:
            self._values.update(self._experiment.compute(name, self.params))
        return self._values[name]

    def replace(self, **values: Any) -> Result:
        """The same with other values of some measures; DataArrays keep their axes where arrays are given."""
        for name, value in values.items():
            old = getattr(self, name)
            if hasattr(old, "copy") and hasattr(old, "dims") and not hasattr(value, "dims"):
                values[name] = old.copy(data=value)
        return Result(self._experiment, self.params, {**self._values, **values})

    def __getstate__(self) -> dict[str, Any]:
        return {"params": self.params, "_values": self._values, "_experiment": None}


@dataclass
class Experiment:
    """An experiment; see the top of this file.

    ``title``, ``question``: English, kept as :class:`Text`. ``budget``: seconds of its quick run, at most 8. ``full``:
    the parameters, ``quick``: those that are smaller in the quick run. ``gpu``: why a GPU has nothing to say, where
    there are no cases. ``on``: the device whose bits the cases are about, "cuda" or this machine's "cpu".
    ``one_thread``: whether measures and claims run with torch on one, so that its bits do not depend on the machine's.
    """

    title: Any
    question: Any
    budget: float
    full: Any
    quick: Any
    gpu: str = ""
    on: str = "cuda"
    one_thread: bool = False
    animation: Callable[[], str] | None = None
    measures: list[Measure] = field(default_factory=list)
    claims: Claims = field(default_factory=Claims)
    figures: list[Callable[[Any], Figure]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.title, self.question = _text(self.title), _text(self.question)
        self.full = parameters(self.full, self.quick)
        self.quick = dataclasses.replace(self.full, **self.quick)
        if self.one_thread:
            self.claims.around = one_threaded
        self.proved, self.library = self.claims.proved, self.claims.library
        self.measured, self.live = self.claims.measured, self.claims.live
        self._rows: Callable[[Any], Columns] | None = None
        self.cases: Callable[[Any], Iterable[Case]] | str = self.gpu
        self._answer: tuple[Text, dict[str, Any]] | None = None

    # --- parts, as a file names them ---
    def measure(
        self, *names: str, axes: Mapping[str, Axis] | None = None, dims: Sequence[str] | Mapping[str, Axis | None] = (),
        unit: str = "", digested: bool | Sequence[str] = False,
    ) -> Callable[[F], F]:  # fmt: skip
        """Register ``function(p, **a point of the axes)``; see :class:`Measure`. None: nothing to measure there.

        An axis is ``{name: a parameter's name | coordinates | a function of p}``; with ``...`` the function returns
        ``{coordinate: value}``. ``dims``: of an array that it returns; ``{name: coordinates or None}`` gives them
        coordinates, of which shorter arrays have the first. With several ``names`` it returns as many values. The first
        line of its docstring says what a figure or a table calls it.
        """

        def register(function: F) -> F:
            given = names or (function.__name__,)
            inner = dims if isinstance(dims, Mapping) else dict.fromkeys(dims)
            self.measures.append(Measure(given, function, axes or {}, inner, unit, digested))
            return function

        return register

    def cache(self, function: F) -> F:
        """Compute a function of ``p`` and hashable arguments once a run."""

        def kept(p: Params, *args: Any, **named: Any) -> Any:
            key = (function.__name__, *args, *named.values())
            if key not in p._kept:
                p._kept[key] = function(p, *args, **named)
            return p._kept[key]

        kept.__name__, kept.__doc__, kept.__module__ = function.__name__, function.__doc__, function.__module__
        return kept  # type: ignore[return-value]

    def claim(self, *claims: Claim) -> None:
        """Add rows of the table of claims, such as :func:`.quantities.superior` makes."""
        self.claims.extend(claims)

    def answer(self, sentence: str, **numbers: Quantity | Callable[[Any], Any]) -> None:
        """Say in one plain sentence how the question is answered, as in ``E.answer("{x:.0%} vanish", x=of("lost"))``.

        ``numbers``: what fills it, the mean of a quantity or what a function makes of the result.
        """
        self._answer = say(sentence), numbers

    def table(self, function: Callable[[Any], Columns]) -> Callable[[Any], Columns]:
        """Register what makes the columns of the CSV, where :func:`.quantities.summary` is not what a reader wants."""
        self._rows = function
        return function

    def hardware(self, function: Callable[[Any], Iterable[Case]]) -> Callable[[Any], Iterable[Case]]:
        """Register what a GPU must compute, a function of the parameters."""
        self.cases = function
        return function

    def picture(self, function: Callable[[Any], Figure]) -> Callable[[Any], Figure]:
        """Register a function that draws a whole figure; the first is NAME.svg, any other NAME.FUNCTION.svg."""
        self.figures.append(function)
        return function

    def figure(
        self, name: str, *panels: Panel, size: tuple[float, float] | Callable[[Any], tuple[float, float]] | None = None,
        grid: tuple[int, int] | None = None, **how: Any,
    ) -> None:  # fmt: skip
        """Register a figure of at most two panels, each ``panel(ax, result)``, such as the verbs of :mod:`.panels`.

        ``size``: inches, or a function of the result.
        """
        rows, columns = grid or (len(panels), 1)

        def drawn(result: Any) -> Figure:
            from ..draw import panels as axes_of

            inches = size(result) if callable(size) else size or (8.0, 4.4 * rows)
            figure, axes = axes_of(*inches, rows, columns, **how)
            for ax, panel in zip(np.asarray(axes).flat, panels, strict=True):
                panel(ax, result)
            return figure

        drawn.__name__ = name
        self.figures.append(drawn)

    # --- what the runner asks for ---
    def run(self, params: Params, tick: Tick) -> Result:
        """Measure everything."""
        result = self.result(params)
        for i, measure in enumerate(self.measures):
            if measure.names[0] not in result._values:
                part = part_of(tick, i / len(self.measures), (i + 1) / len(self.measures))
                result._values.update(self._computed(measure, result.params, part))
        return result

    def result(self, params: Params) -> Result:
        """A result that measures what it is asked for."""
        return Result(self, dataclasses.replace(cast(Any, params)))

    def compute(self, name: str, p: Params) -> dict[str, Any]:
        """The measure that gives a name, computed."""
        for measure in self.measures:
            if name in measure.names:
                return self._computed(measure, p, silent)
        raise AttributeError(f"{self.title} measures no {name!r}; it measures {', '.join(self.names())}")

    def _computed(self, measure: Measure, p: Params, tick: Tick) -> dict[str, Any]:
        return (one_threaded(measure.compute) if self.one_thread else measure.compute)(p, tick)

    def names(self) -> list[str]:
        """All that is measured."""
        return [name for measure in self.measures for name in measure.names]

    def rows(self, result: Any) -> Columns:
        """The columns of the CSV."""
        return summary(result, self.names()) if self._rows is None else self._rows(result)

    def answered(self, result: Any) -> Text | None:
        """The answer with a result's numbers; None where the experiment gives none."""
        if self._answer is None:
            return None
        sentence, numbers = self._answer
        read = {name: x.mean_of(result) if isinstance(x, Quantity) else x(result) for name, x in numbers.items()}
        return sentence.fill(**read)

    def digested(self) -> tuple[str, ...]:
        """The names of arrays whose bits are the same on every machine."""
        of = ((m.names if m.digested is True else m.digested or ()) for m in self.measures)
        return tuple(itertools.chain.from_iterable(of))

    def asks(self, params: Any) -> tuple[Case, ...]:
        """What a GPU must compute, at a size; nothing where a GPU has nothing to say."""
        return () if isinstance(self.cases, str) else tuple(self.cases(params))


def one_threaded(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function with torch on one thread, so that its bits do not depend on the machine's."""

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        from ..training.loop import one_thread

        with one_thread():
            return function(*args, **kwargs)

    return alone


def _text(words: Text | str) -> Text:
    return words if isinstance(words, Text) else say(words)
