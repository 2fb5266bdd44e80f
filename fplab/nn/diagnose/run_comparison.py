"""Where two runs part: the first tensor whose bits differ, and the first that stays apart.

Of every tensor of some steps a run keeps a digest and a few values. At most ``keep`` steps stay: when there are more,
every second is dropped and from then on only every second comes in, so that those kept are always evenly spaced over
the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import formats
from ...errors import LabError
from ...formats import Format, FormatLike
from ...words import NOTHING, Text, joined
from . import watch_words as words
from .tensors import Array

if TYPE_CHECKING:
    from ..device.counting import DeviceBits

SAMPLE = 16  # values kept of a tensor, evenly spread over it


class TensorName(NamedTuple):
    """Which tensor of a step. ``call``: its number among those of this name in the step, from 0."""

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


class Fingerprint(NamedTuple):
    """What is kept of a tensor: its size and two digests, its ``largest`` magnitude, a ``sample`` float32 (<= 16,)."""

    digest: tuple[int, int, int]
    largest: float
    sample: Array


Steps = dict[int, dict[TensorName, Fingerprint]]


class Fingerprints:
    """The prints of the tensors of evenly spaced steps, in the order in which they came."""

    def __init__(self, keep: int) -> None:
        self.keep, self.stride = keep, 1
        self._step = 0
        self.steps: Steps = {}
        self._places: dict[int, Array] = {}
        self._now: dict[TensorName, Fingerprint] | None = None
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
        self._now[TensorName(kind, tensor, call)] = Fingerprint(digest, largest, bits[places].view(np.float32))

    def drop(self, step: int) -> None:
        """Forget a step that did not come to its end."""
        self.steps.pop(step, None)

    def largest(self, kind: str) -> Iterator[tuple[int, float]]:
        """Of every step kept: the largest magnitude among the tensors of a kind."""
        for step, prints in self.steps.items():
            sizes = [p.largest for name, p in prints.items() if name.kind == kind]
            if sizes:
                yield step, max(sizes)


@dataclass(frozen=True)
class Divergence:
    """Where two runs part. ``after``: the last step compared before it (None: none was).

    ``values``: the first of the kept values that differs, in the one run and in the other; None where the difference
    is in values that were not kept.
    """

    step: int
    after: int | None
    name: TensorName
    distance: float
    values: tuple[float, float] | None

    @property
    def layer(self) -> str:
        """The layer, or the parameter."""
        return self.name.tensor

    def __str__(self) -> str:
        return str(self.text)

    @property
    def text(self) -> Text:
        """Where they part, in both languages."""
        kept = self.after in (None, self.step - 1)
        return words.PARTING.fill(
            step=self.step,
            gap=NOTHING if kept else words.GAP.fill(after=self.after),
            name=self.name.text,
            values=words.AGAINST.fill(one=self.values[0], other=self.values[1]) if self.values else NOTHING,
        )


@dataclass(frozen=True)
class Comparison:
    """Two runs against each other.

    ``bits``: the first tensor that differs in any bit. ``good``: the first that from some step on never comes back to
    within ``ulps`` units in the last place of ``format`` (the median of the values kept of it). ``distances``: of each
    tensor the steps compared and that median distance, in these units. ``alone``: tensors that one run has and the
    other has not, in a step that both kept.
    """

    bits: Divergence | None
    good: Divergence | None
    ulps: float
    format: str
    steps: tuple[int, ...]
    distances: dict[TensorName, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
    alone: tuple[TensorName, ...] = ()

    def __str__(self) -> str:
        compared = words.COMPARED.fill(
            n=len(self.steps), first=self.steps[0], last=self.steps[-1], tensors=len(self.distances),
            left=words.LEFT.fill(only=len(self.alone), name=self.alone[0].text) if self.alone else NOTHING,
        )  # fmt: skip
        if self.bits is None:
            return str(words.SAME.fill(compared=compared))
        far = words.FAR.fill(ulps=self.ulps, format=self.format)
        lines = [words.WAS_COMPARED.fill(compared=compared), words.FIRST_BIT.fill(parting=self.bits.text)]
        if self.good is None:
            lines.append(words.NEVER.fill(far=far))
        else:
            lines.append(words.FOR_GOOD.fill(parting=self.good.text, far=far, distance=self.good.distance))
        return "\n".join(map(str, lines))


def compare(fp32: Any, emulated: Any, *, ulps: float = 8, fmt: FormatLike = "fp16") -> Comparison:
    """The first layer and step where two watched runs part, in bits and for good.

    ``fp32``, ``emulated``: two watches whose blocks have ended, of the same model trained on the same batches.
    ``ulps``: how far apart, in units in the last place of ``fmt`` (of its significand; its range does not matter), the
    median of a tensor's kept values must be to count as parted. Bits are compared over whole tensors, by two digests of
    32 bits. Steps are those that both runs kept: all while there are fewer than ``keep``, then evenly spaced ones.
    """
    runs = []
    for name, run in (("fp32", fp32), ("emulated", emulated)):
        fingerprints = getattr(run, "_fingerprints", None)
        if fingerprints is None:
            raise LabError(f"{name} is a {type(run).__name__}; it must be a watch: with watch(...) as {name}.")
        if not fingerprints.steps:
            why = "was given keep=0" if run.steps else "saw no step"
            raise LabError(f"{name} {why}, so there is nothing to compare.")
        runs.append(fingerprints.steps)
    if not ulps >= 0:
        raise LabError(f"ulps={ulps!r} is not possible; allowed: 0 and more.")
    form = formats.get(fmt)
    steps = sorted(set(runs[0]) & set(runs[1]))
    result: dict[TensorName, tuple[list[int], list[float]]] = {}
    first: Divergence | None = None
    before: int | None = None
    for step in steps:
        one, other = runs[0][step], runs[1][step]
        for name in one:
            if name in other:
                differs = one[name].digest != other[name].digest
                far = _distance(one[name], other[name], form) if differs else 0.0
                at, distances = result.setdefault(name, ([], []))
                at.append(step)
                distances.append(far)
                if differs and first is None:
                    first = Divergence(step, before, name, far, _differing(one[name], other[name]))
        before = step
    if not steps:
        raise LabError("no step is in both runs, so there is nothing to compare.")
    alone = {name: None for step in steps for name in (*runs[0][step], *runs[1][step]) if name not in result}
    if all(name.kind == "input" for name in result):
        raise LabError("the two runs have no tensor in common but the input: they are of different models.")
    good = _lasting_divergence(result, ulps, runs, steps)
    arrays = {name: (np.array(at), np.array(far)) for name, (at, far) in result.items()}
    return Comparison(first, good, ulps, form.name, tuple(steps), arrays, tuple(alone))


def _lasting_divergence(
    found: dict[TensorName, tuple[list[int], list[float]]], ulps: float, runs: list[Steps], steps: list[int]
) -> Divergence | None:  # fmt: skip
    """The earliest tensor, in the order of the run, from which on it stays further than ``ulps`` apart."""
    best: tuple[int, int, TensorName, float] | None = None
    for order, (name, (at, far)) in enumerate(found.items()):
        near = [i for i, distance in enumerate(far) if distance <= ulps]
        start = near[-1] + 1 if near else 0
        if start < len(at) and (best is None or (at[start], order) < best[:2]):
            best = at[start], order, name, far[start]
    if best is None:
        return None
    step, _, name, distance = best
    earlier = [s for s in steps if s < step]
    values = _differing(runs[0][step][name], runs[1][step][name])
    return Divergence(step, earlier[-1] if earlier else None, name, distance, values)


def _distance(one: Fingerprint, other: Fingerprint, fmt: Format) -> float:
    """The median distance of the kept values, in units in the last place of the format; infinite for unlike shapes."""
    if one.digest[0] != other.digest[0]:
        return math.inf
    x, y = one.sample.astype(np.float64), other.sample.astype(np.float64)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.maximum(np.abs(x), np.abs(y)))
        far = np.abs(x - y) / np.ldexp(1.0, exponent - 1 - fmt.fraction_bits)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    far = np.where(same, 0.0, np.where(np.isfinite(x) & np.isfinite(y), far, np.inf))
    return float(np.median(far))


def _differing(one: Fingerprint, other: Fingerprint) -> tuple[float, float] | None:
    """The first kept value that differs."""
    if one.digest[0] != other.digest[0]:
        return None
    differ = np.flatnonzero(one.sample.view(np.uint32) != other.sample.view(np.uint32))
    return (float(one.sample[differ[0]]), float(other.sample[differ[0]])) if differ.size else None
