"""What an emulation computed, and what of it no source settles."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from ...columns import folded, padded, width_of
from ...tensorcore.models import Model
from ...words import Message, Text, say
from ..reporting import Report as Base

_TABLE = tomllib.loads(Path(__file__).with_name("questions.toml").read_text(encoding="utf-8"))
QUESTIONS: dict[str, Text] = {name: Message(row["text"]) for name, row in _TABLE.items()}
_ASKED_BY = {
    "scales": ("_scaled_mm", "_scaled_mm_v2", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"),
    "bias": ("addmm", "baddbmm", "addmv", "addbmm", "convolution"),
    "k order of convolutions": ("convolution", "convolution_backward"),
    "attention": (
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"
    ),
    "compiled": ("compiled",),
    "vectors": ("mv", "dot", "vdot", "addmv"),
}  # fmt: skip
HEADS = (
    say("layer"), say("pass"), say("operation"), say("batch x m x k x n"),
    say("times"), say("unit"),
)  # fmt: skip
PHASES = {"forward": say("forward"), "backward": say("backward")}
ALLOWED = say("torch's own (allowed)")
EMULATED = say("{n:,} multiply-accumulates emulated.")
STEPS = say("Steps {first} to {last}: {units}.")
HIGH, WHY = say("Left high by a recipe:"), say("* {layer}: {why}; {n:,} products in {unit}")
OPEN, QUESTION = say("Open questions:"), say("* {name}: {text}.")


class Shape(NamedTuple):
    """``batch`` products of (m, k) by (k, n)."""

    batch: int
    m: int
    k: int
    n: int


class Used(NamedTuple):
    """How many products of one pass of a step ran in a unit; ``unit`` as in :class:`Row`."""

    phase: str
    unit: str
    times: int

    def __str__(self) -> str:
        return f"{PHASES.get(self.phase, self.phase)} {self.times} x {self.unit or ALLOWED}"


@dataclass(frozen=True)
class Row:
    """Products of one kind. ``layer``: the innermost module's path in the model, or a model's class and number.

    ``phase``: "forward" or "backward". ``operation``: torch's name. ``unit``: the matrix unit's, with formats
    and accumulator; "" for an operation that ``allow`` let run in torch's own arithmetic. ``why``: what left them high
    under a recipe; None where it quantised them, or where there was none.
    """

    layer: str
    phase: str
    operation: str
    unit: str
    shape: Shape | None
    count: int
    why: Text | None = None

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all of them."""
        return self.count * self.shape.batch * self.shape.m * self.shape.k * self.shape.n if self.shape else 0


@dataclass(frozen=True)
class Report(Base):
    """What ran where; ``str`` of it is a table. ``questions``: what hardware alone could settle, by name.

    ``steps``: of every step that had a product, the units. A step begins where the block is entered, and inside it
    after each ``backward()``.
    """

    FILE = "emulate"
    ROW = Row

    rows: tuple[Row, ...]
    questions: dict[str, Text]
    steps: tuple[tuple[Used, ...], ...]

    @property
    def unemulated(self) -> tuple[str, ...]:
        """Products that ``allow`` let run in torch's own arithmetic."""
        return tuple(sorted({row.operation for row in self.rows if not row.unit}))

    @property
    def high(self) -> tuple[Row, ...]:
        """The products that a recipe left high."""
        return tuple(row for row in self.rows if row.why is not None)

    @property
    def left_high(self) -> dict[str, Text]:
        """The layers of those products, with the first reason of each."""
        result: dict[str, Text] = {}
        for row in self.high:
            result.setdefault(row.layer, row.why)  # type: ignore[arg-type]
        return result

    def paragraphs(self) -> Iterator[list[str]]:
        """The products by layer, the steps, what a recipe left high and why, and the open questions."""
        cells = [tuple(map(str, HEADS)), *(_cells(row) for row in self.rows)]
        widths = [max(width_of(row[i]) for row in cells) for i in range(len(HEADS))]
        lines = ["  ".join(map(padded, row, widths)).rstrip() for row in cells]
        lines.append(str(EMULATED.fill(n=sum(row.macs for row in self.rows))))
        if len(self.steps) > 1:
            first = 1
            for units, alike in groupby(self.steps):
                last = first + len(list(alike)) - 1
                lines.append(str(STEPS.fill(first=first, last=last, units=", ".join(map(str, units)))))
                first = last + 1
        counts: Counter[tuple[str, Text, str]] = Counter()
        for row in self.high:
            counts[row.layer, row.why, row.unit] += row.count  # type: ignore[index]
        lines += [str(HIGH)] * bool(counts)
        lines += [
            str(WHY.fill(layer=layer or "-", why=why, n=n, unit=unit)) for (layer, why, unit), n in counts.items()
        ]
        if self.questions:
            lines.append(str(OPEN))
            lines += [str(QUESTION.fill(name=name, text=text)) for name, text in self.questions.items()]
        yield folded(lines)


def _cells(row: Row) -> tuple[str, ...]:
    shape = " x ".join(map(str, row.shape)) if row.shape else ""
    phase = str(PHASES.get(row.phase, row.phase))
    return row.layer, phase, row.operation, shape, str(row.count), row.unit or str(ALLOWED)


@dataclass(eq=False)
class Log:
    """Counts what runs, in order of first appearance.

    ``warned``: of operands that saturate. ``latest``, ``rows``, ``recipe``: the last product's unit, rows and recipe.
    ``follows``: whether any product was a recipe's.
    """

    warned: bool = False
    latest: str = ""
    rows: int = 1
    recipe: str = ""
    follows: bool = False
    _seen: Counter[tuple[str, str, str, str, Shape | None, Text | None]] = field(default_factory=Counter)
    _step: Counter[tuple[str, str]] = field(default_factory=Counter)
    _steps: list[Counter[tuple[str, str]]] = field(default_factory=list)  # before it

    def new_step(self) -> None:
        """What comes now is another step's."""
        if self._step:
            self._steps.append(self._step)
            self._step = Counter()

    def product(
        self, layer: str, phase: str, operation: str, model: Model, shape: Shape, times: int = 1, *, recipe: str = "",
        why: Text | None = None,
    ) -> None:  # fmt: skip
        """Emulated products that are alike; ``recipe``: what was followed, or ``why`` it left them high."""
        self.latest, self.rows, self.recipe = name, _, _ = model.name, shape.m, recipe
        self.follows |= bool(recipe)
        self._seen[layer, phase, operation, name, shape, why] += times
        self._step[phase, name] += times

    def allowed(self, layer: str, phase: str, operation: str) -> None:
        """One product that was let through."""
        self._seen[layer, phase, operation, "", None, None] += 1
        self._step[phase, ""] += 1

    def report(self, compiled: bool = False) -> Report:
        """All so far; ``compiled``: whether a model was one that ``torch.compile`` gave."""
        rows = tuple(
            Row(layer, phase, operation, unit, shape, count, why)
            for (layer, phase, operation, unit, shape, why), count in self._seen.items()
        )
        names = {row.operation for row in rows if row.unit}
        names |= {"compiled"} if names and compiled else set()
        asked = {q: text for q, text in QUESTIONS.items() if q not in _ASKED_BY or names & set(_ASKED_BY[q])}
        steps = tuple(tuple(Used(*key, n) for key, n in step.items()) for step in (*self._steps, self._step) if step)
        return Report(rows, asked if names else {}, steps)
