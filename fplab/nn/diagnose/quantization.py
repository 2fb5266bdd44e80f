"""Which roundings quantise: those that a later operation undoes, whose exact companion is then what was rounded.

``round``, ``floor``, ``ceil``, ``trunc``, ``clamp`` and casts to integers are functions that a model may mean: a
position in a grid, an index, a fraction. FP64 repeats them, and they are no error. They quantise where the run shows
that their result stands for their operand:

* it is scaled back: what was rounded had been divided by a scale, and what came of it is multiplied by that scale
  (or a product of two such by both scales), so that without the rounding the chain gives back its input;
* it is a straight-through estimator, ``x + (q - x).detach()``: without the rounding this adds nothing;
* it is cast to 8 or 16 bits of integers, which stand for no place.

Until then a second value goes along beside the companion, made by the same operations without the roundings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ..tracer import Event
from . import exact_operations
from .companions import Companion, Companions, key
from .double_double import copied, difference, evaluating, halves
from .exact_operations import CLAMPS, NARROW, ROUNDS
from .tensors import INTEGERS, dense, floating, wide

Tensor = torch.Tensor
Value = Callable[[Tensor], Tensor]
Scale = tuple[Any, int]  # a tensor or a number, and its power: 1 for what was divided by it, -1 for a factor
_SCALES = frozenset({"mul", "div"})
_BESIDE = frozenset({"add", "sub", "rsub", "where", "cat", "stack"})
_CARRIES = exact_operations.INTEGRAL | exact_operations.MOVES
_CUTS = frozenset({"floor", "ceil", "trunc", "fix", "_to_copy"})  # with half a step beside them they round
_TOLERANCE = 2.0**-7  # of a scale and its reciprocal, each rounded to bfloat16
_SWEEP = 64  # new notes after which those of freed storages are dropped


@dataclass
class Record:
    """A rounding taken for a function. ``sums`` to ``given``: what its tally gets if it quantises."""

    tally: Any
    sums: Any
    calls: int
    values: int
    given: float
    counted: bool = False

    def count(self) -> None:
        """It quantises."""
        if not self.counted:
            self.counted = True
            self.tally.add(self.sums, self.calls, self.values, self.given)


class Perhaps(NamedTuple):
    """A tally of errors that count once a rounding is known to quantise."""

    record: Record
    tally: Any


@dataclass(frozen=True, eq=False)
class Note:
    """What is known of a tensor. ``scales``: by which it was divided, the last one last.

    ``last``: the operation that rounded it; ``open``: the scales before each rounding of its operands, of which the
    last, or the last few together, are not multiplied again yet. ``of``: the values without roundings that it is made
    of, with a ``product`` of matrices or not. ``records``: all that it has been through. ``given``: what it was before
    less than a step was added, on each side and as computed. ``source``: of the difference of a rounded tensor and x,
    or with a ``sign`` of -1 of x and that, the exact x.
    """

    scales: tuple[Scale, ...] = ()
    last: str = ""
    open: tuple[tuple[Scale, ...], ...] = ()
    of: tuple[tuple[int, Companion], ...] = ()
    records: tuple[Record, ...] = ()
    product: bool = False
    given: tuple[tuple[Tensor, ...], Tensor] | None = None
    source: Tensor | None = None
    sign: int = 0


class Side(NamedTuple):
    """Companions, the same without roundings, and what operands are among the former."""

    exact: Companions
    without: Companions
    value: Value


class Step:
    """One operation of a shadowed run on other values of its operands.

    ``before``: of operands that it overwrites, what they were, float64; ``learned``: the operands through which
    gradients come, by identity.
    """

    __slots__ = ("_companions", "_region", "_run", "_widened", "before", "event", "learned")

    def __init__(self, event: Event, run: Any, before: dict[int, Tensor], learned: set[int]) -> None:
        self.event, self.before, self.learned = event, before, learned
        self._run, self._companions, self._region = run, run.companions, run.region
        widened: dict[int, Tensor] = {i: run.companions.widened(x) for i, x in before.items()}
        self._widened = widened  # each operand once, for all values

    @property
    def sides(self) -> list[Side]:  # not kept: a cycle of references would keep the tensors
        """Where exact values are, and in a function of its own those of what it was given."""
        quantising = self._run.quantising
        result = [Side(self._companions, quantising.without, self.exactly)]
        return result if self._region is None else [*result, Side(self._region, quantising.inside, self.inside)]

    def computed(self, x: Tensor) -> Tensor:
        """An operand as the run computed it."""
        if id(x) not in self._widened:
            if not floating(x) and self._companions.of(x) is None:
                return x
            plain = x if x.dtype in (torch.float64, torch.complex128) else wide(x)
            self._widened[id(x)] = self._companions.widened(plain)
        return self._widened[id(x)]

    def exactly(self, x: Tensor) -> Tensor:
        """An operand's exact values."""
        result = self._companions.value(x)
        return self.computed(x) if result is None else result

    def inside(self, x: Tensor) -> Tensor:
        """What is exact of an operand where it is data, without a gradient; in a function, of what that was given."""
        result = None if self._region is None else self._region.value(x)
        return result if result is not None else self.computed(x) if id(x) in self.learned else self.exactly(x)

    def on(self, value: Value, pre: dict[int, Tensor]) -> Any:
        """The operation on other values, see :func:`exact_operations.on`."""
        if not self._companions.doubled:
            return exact_operations.on(self.event, value, pre)
        with evaluating(self._run.narrow):
            return exact_operations.on(self.event, value, pre)

    def result_on(self, value: Value) -> Tensor:
        """Its one result on other values, or what it writes to."""
        pre = {id(x): copied(value(x)) for x in self.event.written if isinstance(x, Tensor)}
        result: Tensor = next(iter(pre.values()), self.on(value, pre))
        return result.double() if result.dtype in INTEGERS else result


class Made(NamedTuple):
    """A result. ``values``: of each side without roundings; ``inexact``: companions of operands without them.

    ``target``: what was rounded. ``own``: the exact result of the operands as computed. ``apart``: what roundings of
    operands do to it that no gradient tells of.
    """

    result: Tensor
    note: Note
    values: tuple[Tensor, ...] = ()
    inexact: tuple[Companion, ...] = ()
    target: Tensor | None = None
    own: Tensor | None = None
    apart: Tensor | None = None


class Quantising:
    """The notes of a run, and its values without roundings; ``inside``: those in a function of its own."""

    def __init__(self, doubled: bool) -> None:
        self.without, self.inside = Companions(doubled), Companions(doubled)
        self._notes: dict[int, tuple[StorageWeakRef, Note]] = {}
        self._left: tuple[tuple[Scale, ...], ...] | None = None  # open of an operand, where the operation undoes some
        self._new = 0

    def note(self, x: Any) -> Note | None:
        """What is known of a tensor."""
        result = self._notes.get(key(x)) if self._notes and isinstance(x, Tensor) and dense(x) else None
        return None if result is None or result[0].expired() else result[1]

    def concerns(self, event: Event) -> bool:
        """Whether an operation scales, rounds, or has an operand that is noted."""
        if event.name in _SCALES or event.name in ROUNDS:
            return True
        return bool(self._notes) and any(map(self.note, tree_leaves((event.args, event.kwargs))))

    def forget(self, x: Tensor) -> None:
        """A tensor is written to by what is not followed here."""
        if not (self._notes and dense(x)):
            return
        self._notes.pop(key(x), None)
        for companions in (self.without, self.inside):
            companions.drop(x)

    # --- what an operation shows of its operands ----------------------------------------------------------------------

    def confirm(self, step: Step) -> None:
        """Give an operand of which an operation shows that it was quantised its value without roundings."""
        self._left = None
        name, args, sides = step.event.name, step.event.args, step.sides
        if exact_operations.narrows(step.event):
            self._quantises(args[1 if name == "copy" else 0], sides)
        if name not in ("mul", "div", "add", "sub") or len(args) < 2 or step.event.kwargs:
            return
        for place, other in ((0, args[1]), (1, args[0])):
            x, note = args[place], self.note(args[place])
            if note is None or self.without.of(x) is None:
                continue
            if name in _SCALES and note.last and (name == "mul" or place == 0) and _is_number(other):
                self._left = _undone(note.open, (other, 1 if name == "mul" else -1))
                if self._left == ():
                    self._quantises(x, sides)
            if name not in _SCALES and note.source is not None and isinstance(other, Tensor):
                value = self.without.value(other)
                value = sides[0].value(other) if value is None else value
                adds = note.sign == 1 if name == "add" else note.sign == -1 and place == 1
                if adds and value.shape == note.source.shape and not difference(value, note.source).any():
                    self._quantises(x, sides)

    def _quantises(self, x: Any, sides: Sequence[Side]) -> None:
        note = self.note(x)
        if note is not None and self.without.of(x) is not None:
            for record in note.records:
                record.count()
            for place, held in note.of:
                if self.without.gives(place, held, sides[0].exact):
                    for side in sides[1:]:
                        side.without.gives(place, None, side.exact)

    # --- what it makes of them ----------------------------------------------------------------------------------------

    def made(self, step: Step) -> Made | None:
        """What an operation makes of its operands without their roundings, before companions know of its result."""
        event = step.event
        leaves, results = ([x for x in tree_leaves(of) if isinstance(x, Tensor) and dense(x)]
                           for of in ((event.args, event.kwargs), event.result))  # fmt: skip
        if not leaves or len(results) != 1 or exact_operations.random(event.func):
            return None
        name, result = event.name, results[0]
        target = leaves[-1 if name == "copy" else 0]
        alike = name not in exact_operations.PRODUCTS | exact_operations.MOVES  # a smaller operand is a zero point
        noted = [x for x in leaves if self.note(x) is not None and not (alike and x.numel() < result.numel())]
        carried = [x for x in noted if self.without.of(x) is not None]
        if result.numel() * result.element_size() != result.untyped_storage().nbytes():
            return None  # a part of another tensor
        before = self.note(target) if any(x is target for x in noted) else None
        cuts = exact_operations.casts(event.func) and result.dtype in INTEGERS and result.dtype not in NARROW
        rounds = floating(target) and (name in ROUNDS or (cuts and before is not None))

        def value(side: Side, x: Tensor) -> Tensor:
            result = side.without.value(x) if any(x is y for y in carried) else None
            return side.value(x) if result is None else result

        def identical() -> tuple[Tensor, ...]:
            return tuple(copied(value(side, target)) for side in step.sides)

        half = before is not None and before.last in _CUTS and name in ("add", "sub") and _is_small(*event.args[1:2])
        if rounds or half or (name in CLAMPS and before is not None and result.shape == target.shape):
            given = before.given if before is not None and rounds else None
            note = replace(before or Note(), given=None)
            note = _rounded(note, name) if rounds else note
            plain = step.computed(target) if given is None else given[1]
            plain = plain.double() if plain.dtype in INTEGERS else plain
            values = given[0] if given is not None and len(given[0]) == len(step.sides) else identical()
            return Made(result, note, values, (), target, plain)
        after = self._noted(event, noted, bool(carried))
        if after is None:
            return None
        other = event.args[1] if len(event.args) > 1 else None
        values = ()
        own: Tensor | None = None
        apart: Tensor | None = None
        if carried:
            values = tuple(step.result_on(partial(value, side)) for side in step.sides)
            own = None if exact_operations.moves(event.func) else step.result_on(step.computed)
        data = [x for x in carried if id(x) not in step.learned]
        if data and step.learned:  # no gradient tells of these, but for that of the result
            mixed = step.result_on(lambda x: value(step.sides[0], x) if any(x is y for y in data) else step.computed(x))
            apart = difference(step.result_on(step.computed) if own is None else own, mixed)
        if name == "sub" and values and not event.kwargs and isinstance(other, Tensor):
            first = bool((self.note(target) or Note()).last)
            nothing = not any(half is not None and half.any() for half in halves(values[0]))
            if nothing and (first or (self.note(other) or Note()).last):
                source = copied(value(step.sides[0], other if first else target))
                after = replace(after, source=source, sign=1 if first else -1)
        if name in ("add", "sub") and not after.last and after.scales and _is_small(other, result):
            after = replace(after, given=(identical(), copied(step.computed(target))))
        inexact = tuple(h for x in carried if (h := self.without.of(x)) is not None)
        return Made(result, after, values, inexact, None, own, apart)

    def _noted(self, event: Event, noted: Sequence[Tensor], carried: bool) -> Note | None:
        """What is known of the result of an operation that rounds nothing but to a format."""
        name = event.name
        notes = [note for x in noted if (note := self.note(x)) is not None]
        last = next((note.last for note in notes if note.last), "")
        if last and not carried:
            return None
        scales: tuple[Scale, ...] = notes[0].scales if notes else ()
        opened: tuple[tuple[Scale, ...], ...] = ()
        for note in notes:
            beside = name in _BESIDE and any(_are(item, other) for item in note.open for other in opened)
            opened += () if beside else note.open
        records = tuple({id(r): r for note in notes for r in note.records}.values())
        of = tuple({id(companion): (place, companion) for note in notes for place, companion in note.of}.values())
        product = any(note.product for note in notes)
        if name in _SCALES:
            if last or event.kwargs or len(event.args) < 2:
                left = opened if self._left is None else self._left
                return Note((), last, left, of, records, product) if last and self._left != () else None
            x, other = event.args
            if name == "mul" and isinstance(x, Tensor) and isinstance(other, Tensor) and x.numel() < other.numel():
                x, other = other, x
            if not (isinstance(x, Tensor) and _is_number(other)):
                return None
            other = other.detach() if isinstance(other, Tensor) else other
            return Note((*scales[-2:], (other, 1 if name == "div" else -1)), "", (), of, records)
        multiplies = name in exact_operations.PRODUCTS
        if not notes or name not in _CARRIES or (multiplies and (product or not carried)):
            return None
        note = Note(scales, last, opened, of, records, product or multiplies)
        narrow = exact_operations.casts(event.func) and tree_leaves(event.result)[0].dtype.itemsize == 1
        return _rounded(note, name) if narrow else note

    def keep(self, made: Made, record: Record | None, *errors: Any) -> None:
        """Take a result down; ``errors``: what :meth:`Companions.put` takes of it."""
        x, note = made.result, made.note
        if record is not None:
            note = replace(note, records=(*note.records, record))
        for companions, value in itertools.zip_longest((self.without, self.inside), made.values):
            if value is None:
                companions.drop(x)
            else:
                companions.put(x, value, *errors)
        companion = self.without.of(x) if made.values else None
        note = note if companion is None else replace(note, of=(*note.of, (key(x), companion)))
        self._notes[key(x)] = StorageWeakRef(x.untyped_storage()), note
        self._new += 1
        if self._new >= _SWEEP:
            self._new = 0
            self._notes = {k: kept for k, kept in self._notes.items() if not kept[0].expired()}


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) or (floating(x) and not x.is_complex())


def _is_small(x: Any = None, like: Tensor | None = None) -> bool:
    """Whether something is less than a step and no whole number; a tensor: all of it, and of the size of another."""
    if isinstance(x, float):
        return abs(x) < 1 and x != int(x)
    if not (_is_number(x) and isinstance(x, Tensor) and like is not None and x.numel() == like.numel() and x.numel()):
        return False
    return bool((x.abs() < 1).all()) and bool((x != x.trunc()).any())


def _wide(scale: Scale) -> Tensor:
    x, power = scale
    x = x.detach().double() if isinstance(x, Tensor) else torch.tensor(float(x), dtype=torch.float64)
    return x if power == 1 else 1 / x


def _rounded(note: Note, name: str) -> Note:
    """What is known of a tensor once it is rounded."""
    opened = note.open if note.last or not note.scales else (note.scales,)
    return replace(note, last=name, open=opened, scales=())


def _undone(opened: tuple[tuple[Scale, ...], ...], by: Scale) -> tuple[tuple[Scale, ...], ...] | None:
    """What stays open where a factor multiplies by the scales of some roundings; None where it does not."""
    for n in range(1, len(opened) + 1):
        for places in itertools.combinations(range(len(opened)), n):
            for some in itertools.product(*([opened[i][k:] for k in range(len(opened[i]))] for i in places)):
                if _close([scale for scales in some for scale in scales], by):
                    return tuple(scales for i, scales in enumerate(opened) if i not in places)
    return None


def _are(one: tuple[Scale, ...], other: tuple[Scale, ...]) -> bool:
    return len(one) == len(other) and all(_close([x], y) for x, y in zip(one, other, strict=True))


def _close(some: Sequence[Scale], other: Scale, reshaped: bool = False) -> bool:
    """Whether a product of scales is another, but for the rounding of a reciprocal; where they are finite and not 0."""
    try:
        product, wanted = math.prod(map(_wide, some), start=torch.ones((), dtype=torch.float64)), _wide(other)
        ratio = product / wanted if product.numel() != wanted.numel() else product.reshape(-1) / wanted.reshape(-1)
    except RuntimeError:  # they do not broadcast
        if len(some) != 2 or reshaped:
            return False
        one, two = (_wide(s).reshape(-1) for s in some)  # of the rows and the columns of a product
        return any(_close([((x[:, None] * y).reshape(-1), 1)], (_wide(other).reshape(-1), 1), True)
                   for x, y in ((one, two), (two, one)) if x.numel() * y.numel() == _wide(other).numel())  # fmt: skip
    ratio = ratio[ratio.isfinite() & (ratio != 0)]
    return bool(ratio.numel()) and bool(((ratio - 1).abs() <= _TOLERANCE).all())
