"""What an emulation computed, and what of it no source settles."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from ...tensorcore.models import Model

QUESTIONS: dict[str, str] = {
    "k order of products": "in which order a library's kernel takes a long k (split-K, several accumulators); here "
    "one chain of ascending k",
    "bias": "whether a bias is added in the kernel's epilogue or by a kernel of its own; here in FP32 in the epilogue, "
    "before the result is stored",
    "k order of convolutions": "cuDNN's is not documented; here the forward product and the gradient of the input take "
    "channels, then the kernel's places in ascending order of the input's, and the gradient of the weights takes "
    "images, then output places",
    "attention": "FlashAttention's tiles and their running maximum; here FlashAttention-2's formulas with whole rows, "
    "the exponentials unnormalised and in the operand's format, exp by torch in FP32",
    "vectors": "matrix-vector and dot products run outside the Tensor Cores, in an order that is not documented; here "
    "they take the unit's",
}
_ASKED_BY = {
    "bias": ("addmm", "baddbmm", "addmv", "addbmm", "convolution"),
    "k order of convolutions": ("convolution", "convolution_backward"),
    "attention": (
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"
    ),
    "vectors": ("mv", "dot", "vdot", "addmv"),
}  # fmt: skip


class Shape(NamedTuple):
    """``batch`` products of (m, k) by (k, n)."""

    batch: int
    m: int
    k: int
    n: int


@dataclass(frozen=True)
class Row:
    """Products of one kind. ``layer``: the innermost module's class and its number in order of first call.

    ``phase``: "forward" or "backward". ``operation``: torch's name. ``unit``: the Tensor Core model's, with formats
    and accumulator; "" for an operation that ``allow`` let run in torch's own arithmetic.
    """

    layer: str
    phase: str
    operation: str
    unit: str
    shape: Shape | None
    count: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all of them."""
        return self.count * self.shape.batch * self.shape.m * self.shape.k * self.shape.n if self.shape else 0


@dataclass(frozen=True)
class Report:
    """What ran where; ``str`` of it is a table. ``questions``: what hardware alone could settle, by name."""

    rows: tuple[Row, ...]
    questions: dict[str, str]

    @property
    def unemulated(self) -> tuple[str, ...]:
        """Products that ``allow`` let run in torch's own arithmetic."""
        return tuple(sorted({row.operation for row in self.rows if not row.unit}))

    def __str__(self) -> str:
        head = ("layer", "pass", "operation", "batch x m x k x n", "times", "unit")
        cells = [head, *(_cells(row) for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        total = sum(row.macs for row in self.rows)
        lines.append(f"{total:,} multiply-accumulates emulated.")
        if self.questions:
            lines.append("Open questions:")
            lines += [f"* {name}: {text}." for name, text in self.questions.items()]
        return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    shape = " x ".join(map(str, row.shape)) if row.shape else ""
    return row.layer, row.phase, row.operation, shape, str(row.count), row.unit or "torch's own (allowed)"


class Log:
    """Counts what runs, in order of first appearance."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str, str, str, Shape | None]] = Counter()

    def product(self, layer: str, phase: str, operation: str, model: Model, shape: Shape) -> None:
        """One emulated product."""
        self._seen[layer, phase, operation, model.name, shape] += 1

    def allowed(self, layer: str, phase: str, operation: str) -> None:
        """One product that was let through."""
        self._seen[layer, phase, operation, "", None] += 1

    def report(self) -> Report:
        """All so far."""
        rows = tuple(Row(*key, count) for key, count in self._seen.items())
        names = {row.operation for row in rows if row.unit}
        asked = {q: text for q, text in QUESTIONS.items() if q not in _ASKED_BY or names & set(_ASKED_BY[q])}
        return Report(rows, asked if names else {})
