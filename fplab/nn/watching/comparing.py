"""Where two runs part: the first tensor whose bits differ, and the first that stays apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import formats
from ...errors import LabError
from ...formats import Format
from .trail import Name, Print

if TYPE_CHECKING:
    from .session import watch


@dataclass(frozen=True)
class Parting:
    """Where two runs part. ``after``: the last step compared before it (None: none was).

    ``values``: the first of the kept values that differs, in the one run and in the other; None where the difference
    is in values that were not kept.
    """

    step: int
    after: int | None
    name: Name
    distance: float
    values: tuple[float, float] | None

    @property
    def layer(self) -> str:
        """The layer, or the parameter."""
        return self.name.tensor

    def __str__(self) -> str:
        between = "" if self.after in (None, self.step - 1) else f" (the steps after {self.after} were not kept)"
        shown = ", {:.9g} against {:.9g}".format(*self.values) if self.values else ""
        return f"step {self.step}{between}, {self.name}{shown}"


@dataclass(frozen=True)
class Comparison:
    """Two runs against each other.

    ``bits``: the first tensor that differs in any bit. ``good``: the first that from some step on never comes back to
    within ``ulps`` units in the last place of ``format`` (the median of the values kept of it). ``distances``: of each
    tensor the steps compared and that median distance, in these units.
    """

    bits: Parting | None
    good: Parting | None
    ulps: float
    format: str
    steps: tuple[int, ...]
    distances: dict[Name, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]

    def __str__(self) -> str:
        compared = (
            f"{len(self.steps)} steps ({self.steps[0]} to {self.steps[-1]}), {len(self.distances)} tensors in each"
        )
        if self.bits is None:
            return f"every bit is the same in {compared}"
        far = f"{self.ulps:g} ulp of {self.format}"
        lines = [f"compared {compared}", f"first bit: {self.bits}"]
        if self.good is None:
            lines.append(f"for good: never; every tensor comes back to within {far}")
        else:
            lines.append(f"for good: {self.good}; more than {far} apart from then on (there {self.good.distance:.3g})")
        return "\n".join(lines)


def compare(fp32: watch, emulated: watch, *, ulps: float = 8, fmt: str | Format = "fp16") -> Comparison:
    """The first layer and step where two watched runs part, in bits and for good.

    ``fp32``, ``emulated``: two watches whose blocks have ended, of the same model trained on the same batches.
    ``ulps``: how far apart, in units in the last place of ``fmt`` (of its significand; its range does not matter), the
    median of a tensor's kept values must be to count as parted. Bits are compared over whole tensors, by two digests of
    32 bits. Steps are those that both runs kept: all while there are fewer than ``keep``, then evenly spaced ones.
    """
    runs = []
    for name, run in (("fp32", fp32), ("emulated", emulated)):
        trail = getattr(run, "_trail", None)
        if trail is None:
            raise LabError(f"{name} is a {type(run).__name__}; it must be a watch: with watch(...) as {name}.")
        if not trail.steps:
            why = "was given keep=0" if run.steps else "saw no step"
            raise LabError(f"{name} {why}, so there is nothing to compare.")
        runs.append(trail.steps)
    if not ulps >= 0:
        raise LabError(f"ulps={ulps!r} is not possible; allowed: 0 and more.")
    form = formats.get(fmt)
    steps = sorted(set(runs[0]) & set(runs[1]))
    found: dict[Name, tuple[list[int], list[float]]] = {}
    first: Parting | None = None
    before: int | None = None
    for step in steps:
        one, other = runs[0][step], runs[1][step]
        for name in one:
            if name in other:
                differs = one[name].digest != other[name].digest
                far = _distance(one[name], other[name], form) if differs else 0.0
                at, distances = found.setdefault(name, ([], []))
                at.append(step)
                distances.append(far)
                if differs and first is None:
                    first = Parting(step, before, name, far, _differing(one[name], other[name]))
        before = step
    if not found:
        raise LabError("the two runs have no tensor in common: they are of different models, or no step is in both.")
    good = _for_good(found, ulps, runs, steps)
    arrays = {name: (np.array(at), np.array(far)) for name, (at, far) in found.items()}
    return Comparison(first, good, ulps, form.name, tuple(steps), arrays)


def _for_good(
    found: dict[Name, tuple[list[int], list[float]]],
    ulps: float,
    runs: list[dict[int, dict[Name, Print]]],
    steps: list[int],
) -> Parting | None:
    """The earliest tensor, in the order of the run, from which on it stays further than ``ulps`` apart."""
    best: tuple[int, int, Name, float] | None = None
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
    return Parting(step, earlier[-1] if earlier else None, name, distance, values)


def _distance(one: Print, other: Print, fmt: Format) -> float:
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


def _differing(one: Print, other: Print) -> tuple[float, float] | None:
    """The first kept value that differs."""
    if one.digest[0] != other.digest[0]:
        return None
    differ = np.flatnonzero(one.sample.view(np.uint32) != other.sample.view(np.uint32))
    return (float(one.sample[differ[0]]), float(other.sample[differ[0]])) if differ.size else None
