"""Pipeline schedules as timelines: which stage works on which micro-batch when, what waits, and what is held.

A schedule fixes only the order in which each stage takes its work; the times follow, because a forward pass needs the
stage before it and a backward pass the stage after it. Bubbles and memory are then counted, not assumed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from ..errors import LabError, door, integer, one_of
from ..memory.pipeline import SCHEDULES, demand_groups

Work = tuple[str, int, int]  # "F" or "B", the model chunk on this stage, the micro-batch


@dataclass(frozen=True)
class Slot:
    """One pass on one stage: ``kind`` "F" or "B", ``start`` and ``end`` in units of time."""

    stage: int
    kind: str
    chunk: int
    micro_batch: int
    start: Fraction
    end: Fraction


@dataclass(frozen=True)
class Timeline:
    """All passes of one step. ``forward``, ``backward``: the time of one micro-batch on a whole stage."""

    name: str
    stages: int
    micro_batches: int
    chunks: int
    forward: Fraction
    backward: Fraction
    slots: tuple[Slot, ...] = field(repr=False)

    @property
    def span(self) -> Fraction:
        return max({slot.stage: slot.end for slot in self.slots}.values())  # a stage's last pass ends it

    @property
    def ideal(self) -> Fraction:
        """The time of a stage that never waits."""
        return self.micro_batches * (self.forward + self.backward)

    @property
    def bubble(self) -> Fraction:
        """Time waited over ideal time: (p - 1) / m for GPipe and 1F1B, a v-th of it with v interleaved chunks."""
        return (self.span - self.ideal) / self.ideal

    def idle(self) -> Fraction:
        """Time waited over the whole: (p - 1) / (m + p - 1) for GPipe and 1F1B."""
        return (self.span - self.ideal) / self.span

    def in_flight(self) -> list[int]:
        """For each stage, the most forward passes whose activations are held at once, counted in model chunks."""
        counts, peaks = [0] * self.stages, [0] * self.stages
        for slot in self.slots:  # a stage's passes in order: a backward pass ends before the next pass begins
            counts[slot.stage] += 1 if slot.kind == "F" else -1
            peaks[slot.stage] = max(peaks[slot.stage], counts[slot.stage])
        return peaks


@door
def timeline(
    name: str,
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    forward: int | Fraction = 1,
    backward: int | Fraction = 2,
) -> Timeline:
    """The timeline of a schedule, exact.

    ``name``: "gpipe" (all forward passes, then all backward passes), "1f1b" (one forward, one backward, once stage i
    has p - i micro-batches in flight), "interleaved" (1F1B over ``chunks`` model chunks a stage, with micro-batches in
    groups of p). ``forward``, ``backward``: the time of a micro-batch on a stage; each of v chunks takes a v-th.

    Source: Huang et al. 2019 (GPipe), Narayanan et al. 2021 (1F1B with flush, and interleaved).

    >>> timeline("1f1b", 4, 8).bubble
    Fraction(3, 8)
    """
    one_of("schedule", name, SCHEDULES)
    p = integer("stages", stages, 1, 1024)
    m = integer("micro_batches", micro_batches, 1, 65536)
    v = integer("chunks", chunks, 1, 64)
    if name == "interleaved":
        demand_groups(m, p)
    elif v != 1:
        raise LabError(f'chunks={v} is for schedule="interleaved"; {name} has one chunk a stage.')
    try:
        times = {"F": Fraction(forward) / v, "B": Fraction(backward) / v}
    except (TypeError, ValueError, OverflowError):
        times = {"": Fraction(0)}
    if min(times.values()) <= 0:
        raise LabError(f"forward={forward}, backward={backward}: a pass takes a positive time.")
    order: Callable[[int], list[Work]] = {
        "gpipe": lambda s: _gpipe(m),
        "1f1b": lambda s: _one_each(p, m, s),
        "interleaved": lambda s: _interleaved(p, m, v, s),
    }[name]
    slots = _place([order(stage) for stage in range(p)], v, times)
    return Timeline(name, p, m, v, Fraction(forward), Fraction(backward), slots)


def _gpipe(m: int) -> list[Work]:
    return [("F", 0, i) for i in range(m)] + [("B", 0, i) for i in range(m)]


def _one_each(p: int, m: int, stage: int) -> list[Work]:
    """p - 1 - stage forward passes, then one forward and one backward in turn."""
    ahead = min(p - 1 - stage, m)
    forwards, backwards = ([(kind, 0, i) for i in range(m)] for kind in "FB")
    return _alternate(forwards, backwards, ahead)


def _interleaved(p: int, m: int, v: int, stage: int) -> list[Work]:
    """Groups of p micro-batches go through chunk 0, then chunk 1 and so on; the backward passes from the last chunk."""
    forwards, backwards = [], []
    for first in range(0, m, p):
        group = range(first, first + p)
        forwards += [("F", c, i) for c in range(v) for i in group]
        backwards += [("B", c, i) for c in reversed(range(v)) for i in group]
    ahead = min(2 * (p - 1 - stage) + (v - 1) * p, len(forwards))
    return _alternate(forwards, backwards, ahead)


def _alternate(forwards: list[Work], backwards: list[Work], ahead: int) -> list[Work]:
    """``ahead`` forward passes, then pairs of one forward and one backward, then the backward passes that are left."""
    works = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        works += [forward, backward]
    return works + backwards[len(forwards) - ahead :]


def _place(orders: list[list[Work]], chunks: int, times: dict[str, Fraction]) -> tuple[Slot, ...]:
    """Every pass as early as its stage is free and what it needs is there."""
    p, last = len(orders), chunks * len(orders) - 1
    unit = math.lcm(*(time.denominator for time in times.values()))
    ticks = {kind: int(time * unit) for kind, time in times.items()}  # whole units: the times stay exact, and are fast
    ends: dict[tuple[str, int, int], int] = {}  # (kind, model part, micro-batch): when it is done
    free, at = [0] * p, [0] * p
    slots: list[tuple[int, int, str, int, int]] = []

    def needed(kind: str, part: int, i: int) -> tuple[str, int, int] | None:
        if kind == "F":
            return ("F", part - 1, i) if part else None
        return ("B", part + 1, i) if part < last else ("F", last, i)

    while len(slots) < sum(map(len, orders)):
        before = len(slots)
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                kind, chunk, i = order[at[stage]]
                part = chunk * p + stage  # parts of the model go round the stages
                need = needed(kind, part, i)
                if need is not None and need not in ends:
                    break
                start = max(free[stage], ends[need] if need else 0)
                free[stage] = ends[kind, part, i] = start + ticks[kind]
                slots.append((stage, start, kind, chunk, i))
                at[stage] += 1
        assert len(slots) > before, "a schedule in which every stage waits for another"
    return tuple(
        Slot(stage, kind, chunk, i, Fraction(start, unit), Fraction(start + ticks[kind], unit))
        for stage, start, kind, chunk, i in sorted(slots)
    )
