"""What a run leaves behind to be compared with another: of every tensor of some steps a digest and a few values.

At most ``keep`` steps stay: when there are more, every second is dropped and from then on only every second comes in,
so that those kept are always evenly spaced over the whole run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...words import NOTHING, Text, joined
from . import words

if TYPE_CHECKING:
    from ..device.counting import DeviceBits

Array = np.ndarray[Any, Any]
SAMPLE = 16  # values kept of a tensor, evenly spread over it


class Name(NamedTuple):
    """Which tensor of a step. ``call``: the how manieth of this name in the step, from 0."""

    kind: str
    tensor: str
    call: int

    def __str__(self) -> str:
        return str(self.text)

    @property
    def text(self) -> Text:
        """The tensor in both languages."""
        again = words.CALL.fill(n=self.call + 1) if self.call else NOTHING
        named = words.WHOSE.fill(kind=words.kind(self.kind), tensor=words.tensor(self.tensor))
        return joined((named, again), words.NEXT)


class Print(NamedTuple):
    """What is kept of a tensor: its size and two digests, its ``largest`` magnitude, a ``sample`` float32 (<= 16,)."""

    digest: tuple[int, int, int]
    largest: float
    sample: Array


class Trail:
    """The prints of the tensors of evenly spaced steps, in the order in which they came."""

    def __init__(self, keep: int) -> None:
        self.keep, self.stride = keep, 1
        self._step = 0
        self.steps: dict[int, dict[Name, Print]] = {}
        self._places: dict[int, Array] = {}
        self._now: dict[Name, Print] | None = None
        self._calls: dict[tuple[str, str], int] = {}

    def begin(self, step: int) -> None:
        """From here on tensors belong to this step."""
        self._step, self._calls = step, {}
        self._now = {} if self.keep and step % self.stride == 0 else None

    def _enter(self) -> bool:
        """Make room for the step whose first tensor comes; whether it is kept."""
        assert self._now is not None
        self.steps[self._step] = self._now
        if len(self.steps) > self.keep:
            self.stride *= 2
            self.steps = {step: prints for step, prints in self.steps.items() if step % self.stride == 0}
            self._now = self.steps.get(self._step)
        return self._now is not None

    @property
    def open(self) -> bool:
        """Whether this step is kept."""
        return self._now is not None

    def add(self, kind: str, tensor: str, scanned: tuple[int, int, int], bits: Array | DeviceBits) -> None:
        """Keep a print of a tensor: what ``scan`` found (largest, digests), and float32 bits (n,), n at least 1."""
        if self._now is None:
            return
        if not self._now and not self._enter():
            return
        call = self._calls.get((kind, tensor), 0)
        self._calls[kind, tensor] = call + 1
        places = self._places.get(bits.size)
        if places is None:
            places = self._places[bits.size] = np.linspace(0, bits.size - 1, min(SAMPLE, bits.size)).astype(np.int64)
        largest = float(np.uint32(scanned[0]).view(np.float32))
        digest = (bits.size, int(scanned[1]), int(scanned[2]))
        self._now[Name(kind, tensor, call)] = Print(digest, largest, bits[places].view(np.float32))

    def drop(self, step: int) -> None:
        """Forget a step that did not come to its end."""
        self.steps.pop(step, None)

    def largest(self, kind: str) -> Iterator[tuple[int, float]]:
        """Of every step kept: the largest magnitude among the tensors of a kind."""
        for step, prints in self.steps.items():
            sizes = [p.largest for name, p in prints.items() if name.kind == kind]
            if sizes:
                yield step, max(sizes)
