"""What claims compare: a measure of a result at coordinates, its logarithm or extreme; and the claims as rows.

``of("gap", way="bf16")`` is the measure ``gap`` there, by whatever axes are left, such as seeds. A row says which two
quantities are compared and by how much; the sentence of details is derived from both.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..words import COMMA, Text, joined, say
from . import statistics
from .outcomes import Claim, Evidence, Outcome, Sample, failed, measured, passed, verdict

if TYPE_CHECKING:
    from xarray import DataArray

Columns = Mapping[str, Sequence[Any]]
Result: TypeAlias = Any  # of an experiment: what has measures as attributes


@dataclass(frozen=True)
class Quantity:
    """A number or an array that a result has. ``name``: what details call it; ``shown``: of which they give the mean.

    >>> of("gap", way="bf16").name
    'gap bf16'
    """

    name: str
    read: Callable[[Result], Any]
    shown: Callable[[Result], Any]
    scale: Text | None = None

    def at(self, **where: Any) -> Quantity:
        """The part at coordinates, as :func:`of` takes them."""
        part = self.then(_named(self.name, where), lambda x: _at(x, where))
        return Quantity(part.name, part.read, part.shown, self.scale)

    @property
    def log2(self) -> Quantity:
        """Its logarithm; details show it itself."""
        return Quantity(self.name, lambda r: np.log2(self.read(r)), self.shown, say("in powers of 2"))

    @property
    def log(self) -> Quantity:
        """Its natural logarithm, of which 0.01 is 1%; details show it itself."""
        return Quantity(self.name, lambda r: np.log(self.read(r)), self.shown, say("natural logarithms"))

    def min(self, *axes: str) -> Quantity:
        """The least along axes."""
        return self.then(f"least {self.name}", lambda x: x.min([*axes]))

    def max(self, *axes: str) -> Quantity:
        """The greatest along axes."""
        return self.then(f"greatest {self.name}", lambda x: x.max([*axes]))

    def mean(self, *axes: str) -> Quantity:
        """The mean along axes."""
        return self.then(self.name, lambda x: x.mean([*axes]))

    def then(self, name: str, function: Callable[[Any], Any]) -> Quantity:
        """What a function makes of it, under a name."""
        return Quantity(name, lambda r: function(self.read(r)), lambda r: function(self.shown(r)))

    def named(self, name: str) -> Quantity:
        """The same by another name."""
        return replace(self, name=name)

    def __sub__(self, other: Quantity | float) -> Quantity:
        return self._with(operator.sub, "-", other)

    def __add__(self, other: Quantity | float) -> Quantity:
        return self._with(operator.add, "+", other)

    def __mul__(self, other: Quantity | float) -> Quantity:
        return self._with(operator.mul, "*", other)

    def __truediv__(self, other: Quantity | float) -> Quantity:
        return self._with(operator.truediv, "/", other)

    def _with(self, how: Callable[[Any, Any], Any], sign: str, other: Quantity | float) -> Quantity:
        x = as_quantity(other)
        name = f"{self.name} {sign} {x.name}"
        return Quantity(name, lambda r: how(self.read(r), x.read(r)), lambda r: how(self.shown(r), x.shown(r)))

    def values(self, result: Result) -> np.ndarray:
        """Its numbers, float64, in one dimension."""
        return np.asarray(self.read(result), np.float64).ravel()

    def mean_of(self, result: Result) -> float:
        """The mean of what details show."""
        return float(np.asarray(self.shown(result), np.float64).mean())

    def described(self, result: Result) -> Text:
        """Its name and mean."""
        unit = getattr(self.shown(result), "attrs", {}).get("unit", "")
        return say(
            "{name} {mean:.3g}{unit}", name=self.name, mean=self.mean_of(result), unit=f" {unit}" if unit else ""
        )


Compared: TypeAlias = Quantity | float


def of(measure: str, **where: Any) -> Quantity:
    """A measure at coordinates (``way="bf16"``; a list keeps the axis), or at ends of an axis (``step=-1``: the last,
    where no coordinate is -1)."""

    def read(result: Result) -> Any:
        return _at(getattr(result, measure), where)

    return Quantity(_named(measure, where), read, read)


def derived(name: str, function: Callable[[Result], Any]) -> Quantity:
    """What a function makes of a result, under a name."""
    return Quantity(name, function, function)


def _named(name: str, where: Mapping[str, Any]) -> str:
    named = [f"last {axis}" if value == -1 else str(value) for axis, value in where.items()
             if isinstance(value, str | int | float)]  # fmt: skip
    return " ".join([name, *named])


def _at(array: Any, where: Mapping[str, Any]) -> Any:
    """A part of an array with axes, as floats."""
    for axis, value in where.items():
        last = isinstance(value, int) and value < 0 and value not in array[axis].values
        array = array.isel({axis: value}) if last else array.sel({axis: value})
    return array if getattr(array, "dtype", np.dtype(float)).kind in "fc" else array.astype(float)


def beside(axis: str, parts: Mapping[str, Quantity]) -> Quantity:
    """Quantities of the same axes as one with a further axis, whose coordinates are their names."""

    def read(result: Result) -> DataArray:
        from xarray import IndexVariable, concat

        arrays = [part.read(result).reset_coords(drop=True) for part in parts.values()]  # coordinates may differ
        whole: DataArray = concat(arrays, IndexVariable(axis, list(parts)))
        return whole

    return Quantity(" ".join(parts), read, read)


def as_quantity(x: Compared) -> Quantity:
    """A quantity; a number is one."""
    return x if isinstance(x, Quantity) else Quantity(f"{x:g}", lambda r: x, lambda r: x)


# --- claims -----------------------------------------------------------------------------------------------------
Test: TypeAlias = Callable[[Result], Outcome]


def superior(id: str, text: str, x: Compared, other: Compared = 0.0, by: float = 0.0) -> Claim:
    """A measured claim: ``x`` lies above ``other`` by more than ``by``, paired by seed: see :mod:`.statistics`."""
    return together(id, text, above(x, other, by))


def equivalent(id: str, text: str, x: Quantity, other: Compared = 0.0, within: float = 0.0) -> Claim:
    """A measured claim: both are alike within a margin, paired by seed: see :mod:`.statistics`."""
    return together(id, text, alike(x, other, within))


def together(id: str, text: str, *tests: Test) -> Claim:
    """A measured claim that holds where each test does, such as ``above(...)`` and ``alike(...)``."""
    return Claim(id, Evidence.MEASURED, say(text), lambda r: statistics.both(*(test(r) for test in tests)))


def above(x: Compared, other: Compared = 0.0, by: float = 0.0, each: str = "") -> Test:
    """The test of :func:`superior`; with ``each``, an axis of ``x``, at each of its coordinates."""
    return lambda r: _compared(statistics.superior, x, other, by, r, each)


def alike(x: Compared, other: Compared = 0.0, within: float = 0.0) -> Test:
    """The test of :func:`equivalent`."""
    return lambda r: _compared(statistics.equivalent, x, other, within, r)


def _compared(how: Any, x: Compared, other: Compared, margin: float, result: Result, each: str = "") -> Outcome:
    """Both in words, and how a test of statistics ends."""
    if each:
        places = [{each: place} for place in as_quantity(x).read(result)[each].values.tolist()]
        pairs = ((as_quantity(x).at(**at), other.at(**at) if isinstance(other, Quantity) else other) for at in places)
        return statistics.both(*(_compared(how, a, b, margin, result) for a, b in pairs))
    both = [v for v in (x, other) if isinstance(v, Quantity)]
    detail = joined([*(v.described(result) for v in both), *([both[0].scale] if both[0].scale else [])], COMMA)
    a, b = np.broadcast_arrays(*(as_quantity(v).values(result) for v in (x, other)))
    outcome: Outcome = how(a, b, margin, detail)
    return outcome


def within(id: str, text: str, x: Quantity, low: Compared, high: Compared, evidence: str = "proved") -> Claim:
    """A claim that all numbers lie between two bounds, both included; the margin is half of what lies between."""
    return Claim(id, Evidence[evidence.upper()], say(text), between(x, low, high, evidence))


def between(quantity: Quantity, low: Compared, high: Compared, evidence: str = "proved") -> Test:
    """The test of :func:`within`."""

    def test(result: Result) -> Outcome:
        values, least, most = (as_quantity(x).values(result) for x in (quantity, low, high))
        detail = say("{n:,} numbers from {low:.6g} to {high:.6g}", n=values.size, low=values.min(), high=values.max())
        holds = bool(((values >= least) & (values <= most)).all())
        if evidence != "measured":
            return verdict(holds, detail)
        return measured(holds, detail, Sample(values.size, float(values.std()), float((most - least).max()) / 2))

    return test


def equal(id: str, text: str, x: Quantity, other: Compared | Sequence[Any], evidence: str = "library") -> Claim:
    """A claim that two quantities, or one and a list as long, are the same numbers; a failure says where they first
    differ."""

    def test(result: Result) -> Outcome:
        from xarray import DataArray, broadcast

        got = DataArray(x.read(result))
        want = got.copy(data=other) if isinstance(other, Sequence) else DataArray(as_quantity(other).read(result))
        got, want = broadcast(got, want)
        wrong = np.argwhere((got != want).values)
        if not len(wrong):
            detail = say("{n:,} numbers from {low:,.12g} to {high:,.12g}, every one")
            return passed(detail.fill(n=got.size, low=float(got.min()), high=float(got.max())))
        at = dict(zip(map(str, got.dims), wrong[0].tolist(), strict=True))
        where = joined([f"{axis} {got[axis].values[i]}" for axis, i in at.items()], COMMA)
        detail = say("{n:,} of {all:,} numbers differ; {where}: {got:,.12g}, not {want:,.12g}", n=len(wrong))
        return failed(detail.fill(all=got.size, where=where, got=float(got[at]), want=float(want[at])))

    return Claim(id, Evidence[evidence.upper()], say(text), test)


# --- tables -----------------------------------------------------------------------------------------------------
def table(**arrays: Any) -> Columns:
    """The table of arrays with axes: a row for each point of all their axes, whose coordinates come first.

    There is no row where nothing was measured.
    """
    from xarray import broadcast

    whole = dict(zip(arrays, broadcast(*arrays.values()), strict=True))
    first = next(iter(whole.values()))
    points = np.meshgrid(*(first[axis].values for axis in first.dims), indexing="ij")
    columns = dict(zip(map(str, first.dims), points, strict=True)) | {name: x.values for name, x in whole.items()}
    there = np.any([x.values == x.values for x in whole.values()], axis=0)
    return {name: x[there].tolist() for name, x in columns.items()}


def in_columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Columns:
    """A table that is given by its rows, each as long as ``names``."""
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def summary(result: Any, names: Sequence[str]) -> Columns:
    """The table of all measures that share the first one's axes: a row for each point; over seeds the mean, the least
    and the greatest."""
    over = "seed"
    arrays = {name: x for name in names if hasattr(x := getattr(result, name), "dims")}
    axes = [axis for axis in next(iter(arrays.values())).dims if axis != over]
    columns: dict[str, Any] = {}
    for name, x in arrays.items():
        if [axis for axis in x.dims if axis != over] != axes:
            continue
        if over not in x.dims:
            columns[name] = x
            continue
        for kind in ("mean", "min", "max"):
            columns[name if kind == "mean" else f"{name}_{kind}"] = getattr(x, kind)(over)
    return table(**columns)
