"""Which changes of a stored value a format would not notice.

A weight w held in a format and changed by u stays what it is exactly when w + u rounds back to w: when \\|u\\| is less
than half the spacing on u's side, or equal to it and w's significand even. u is the FP32 difference that the run made;
w is what the format makes of the weight before the step.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...formats import Format, Overflow, overflow
from .tensors import Array


class Lost(NamedTuple):
    """Changes of the values of one layer over the steps counted.

    ``moved``: how many were not zero. ``still``: values with a gradient that did not change at all, in the format they
    are held in. ``absorbed``: of the moved ones, how many each format would lose, by its name.
    """

    moved: int
    still: int
    absorbed: dict[str, int]

    @property
    def pushed(self) -> int:
        """All changes: those that moved a value, and those that did not show."""
        return self.moved + self.still

    def share(self, fmt: str) -> float:
        """The part of the changes that a format loses, 0 to 1."""
        return self.absorbed[fmt] / max(self.moved, 1)


class Losses:
    """Counts by kind and layer of the changes that each format would lose."""

    def __init__(self, candidates: Sequence[Format]) -> None:
        from ...kernels import histogram
        from ...kernels.rounding import stream_keys
        from ...plans import fast, options

        self._kernels = histogram
        self._keys = stream_keys(np.uint64(0), np.uint64(0))
        self._formats = []
        for form in candidates:
            opt = options(form, nan="max" if not form.has_nan else None)
            self._formats.append((form, opt, fast(form, opt), _spec(form)))
        self._counts: dict[tuple[str, str], Array] = {}
        self._rounded = np.empty(0, np.float32)

    def add(
        self, kind: str, layers: tuple[str, ...], before: Array, moves: Array, offsets: Array,
        pushes: Array | None = None,
    ) -> None:  # fmt: skip
        """Count the changes ``moves`` of values ``before``, float32 (n,), layer by layer.

        ``pushes``: float32 (n,), the gradients; where one is not zero and nothing moved, the value stood still.
        """
        if self._rounded.size != before.size:
            self._rounded = np.empty(before.size, np.float32)
        bits = moves.view(np.uint32)
        found = np.zeros((len(layers), 2 + len(self._formats)), np.int64)
        self._kernels.still_parts(bits if pushes is None else pushes.view(np.uint32), bits, offsets, found[:, :2])
        for i, (form, opt, kernel, spec) in enumerate(self._formats):
            self._round(before, form, opt, kernel)
            self._kernels.absorbed_parts(self._rounded.view(np.uint32), bits, offsets, spec, found[:, 2 + i])
        for layer, row in zip(layers, found, strict=True):
            self._counts[kind, layer] = self._counts.get((kind, layer), 0) + row

    def _round(self, x: Array, form: Format, opt: Any, kernel: Any) -> None:
        """The values rounded by the lab's kernels, on this thread: handing over a few thousand of them costs more."""
        if kernel is None or (not form.has_nan and np.isnan(x).any()):
            from ...floats import round_into

            round_into(x, self._rounded, form, opt, np.uint64(0))
            return
        rounder, plan = kernel
        rounder(x.view(np.uint32), self._rounded.view(np.uint32), plan, 0, *self._keys, 0, False)

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._counts

    def get(self, kind: str, layer: str) -> Lost:
        """The counts of a layer, none if nothing was counted."""
        row = self._counts.get((kind, layer), np.zeros(2 + len(self._formats), np.int64))
        absorbed = {form.name: int(n) for (form, *_), n in zip(self._formats, row[2:], strict=True)}
        return Lost(int(row[0]), int(row[1]), absorbed)


def merged(found: Sequence[Lost]) -> Lost:
    """The counts of several layers together."""
    names = found[0].absorbed
    absorbed = {name: sum(one.absorbed[name] for one in found) for name in names}
    return Lost(sum(one.moved for one in found), sum(one.still for one in found), absorbed)


def _spec(form: Format) -> Any:
    """What the kernel needs to know of a format."""
    from ...kernels.histogram import Sum

    largest = int(np.float32(form.max).view(np.uint32))
    return Sum(form.emin + 127, form.fraction_bits, largest, int(overflow(None, form) is Overflow.SATURATE))
