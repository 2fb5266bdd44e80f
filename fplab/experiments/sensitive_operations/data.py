"""The experiment's data: a trained network's activations and logits, scaled, and what three ways make of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import formats, numeric
from ..base import Digested, Tick
from .operations import OPERATIONS, Listed, rounded

FORMATS = ("fp16", "bf16")
WAYS = ("every step", "FP32 inside", "FP32 result")
EVERY, INSIDE, RESULT = range(3)
NEAR = 6  # binades around the values as they are: another layer, another network


@dataclass(frozen=True)
class Params:
    """``epochs``, ``seed``: the training. ``rows``: how many images. ``low`` to ``high``: the values times 2^k.

    ``seeds``: networks over which verdicts are compared, on ``few`` images near their own scale; what is drawn is of
    the first.
    """

    epochs: int = 12
    seed: int = 0
    rows: int = 359
    low: int = -20
    high: int = 12
    step: int = 1
    seeds: int = 3
    few: int = 64

    @property
    def scales(self) -> np.ndarray:
        """The exponents k by which the real values are scaled."""
        return np.arange(self.low, self.high + 1, self.step)


QUICK = Params(epochs=4, rows=64, low=-18, step=3)


@dataclass(frozen=True)
class Gathered:
    """What a trained network computes on test images, float32.

    ``activations`` (rows, 256): of an image, before the last ReLU, so of both signs. ``positive``: their largest, all
    positive, of equal number a row. ``channels`` (16, rows * 64): of a channel of the first layer after its ReLU, over
    images and places, which is what batch norm's statistics sum. ``logits`` (rows, 10), the true class's first.
    ``right``: how many test digits the network reads, of how many.
    """

    params: Params
    activations: np.ndarray
    positive: np.ndarray
    channels: np.ndarray
    logits: np.ndarray
    right: np.ndarray

    def of(self, data: str) -> np.ndarray:
        return np.asarray(getattr(self, data))


@dataclass(frozen=True)
class Result(Gathered):
    """Fates of the first network's values by (operation, format, way, scale), see :class:`Fate`; beside them, as
    ``near_``, with the seed first, of all networks' near 2^0. ``limits``: (format, LIMITS).
    """

    scales: np.ndarray
    median: np.ndarray
    worst: np.ndarray
    overflow: np.ndarray
    zero: np.ndarray
    near_median: np.ndarray
    near_worst: np.ndarray
    near_overflow: np.ndarray
    near_zero: np.ndarray
    limits: Digested

    @property
    def near(self) -> np.ndarray:
        """Which scales are near 2^0."""
        return np.asarray(np.abs(self.scales) <= NEAR)

    @property
    def near_medians(self) -> np.ndarray:
        """Of all networks, the median errors at scale 2^0: (seed, operation, format, way)."""
        return np.asarray(self.near_median[..., self.scales[self.near] == 0][..., 0])

    def verdicts(self, seed: int = 0) -> list[Verdict]:
        """What FP16 needs for each operation on one network's values; the first's are of what is drawn."""
        if not seed:
            return verdicts(self.scales, self.median, self.overflow, self.zero)
        found = (x[seed] for x in (self.near_median, self.near_overflow, self.near_zero))
        return verdicts(self.scales[self.near], *found)


def gather(params: Params, tick: Tick) -> Gathered:
    """Train the digits network in FP32, and collect what it computes on test images."""
    import torch

    from ... import training

    data, test = training.digits("train"), training.digits("test")
    recipe = training.Recipe(epochs=params.epochs, seed=params.seed)
    model = training.digits_net(params.seed)
    training.train(model, data, recipe, (), lambda done, of: tick(0.3 * done / of, f"training, step {done}"))
    images, labels = (x[: params.rows] for x in training.tensors(test))
    with torch.no_grad():
        channels = torch.nn.functional.relu(model.get_submodule("conv1")(images))
        logits = model(images)
        before_relu = model[:-4](images)
    activations = torch.nn.functional.max_pool2d(before_relu, 2).flatten(1)
    order = torch.argsort(torch.nn.functional.one_hot(labels, 10), dim=1, descending=True, stable=True)
    values = activations.numpy()
    positive = np.sort(values, axis=1)[:, -int((values > 0).sum(axis=1).min()) :]
    right = np.array([round(training.accuracy(model, test) * len(test.labels)), len(test.labels)])
    sums = channels.transpose(0, 1).flatten(1).numpy()
    return Gathered(params, np.array(values), positive, sums, logits.gather(1, order).numpy(), right)


def ways(op: Listed, x: np.ndarray, fmt: str) -> list[np.ndarray]:
    """Values of ``fmt`` through the operation in each of WAYS."""
    in_fp32 = op.run(x, "fp32")
    return [op.run(x, fmt), rounded(in_fp32, fmt), in_fp32]


@dataclass(frozen=True)
class Fate:
    """How far results are from the exact ones.

    ``median`` and ``worst``: over rows, the largest error beside the largest exact result. ``overflow``: the share of
    results that are infinite or NaN; ``zero``: of those that are zero and should not be.
    """

    median: float
    worst: float
    overflow: float
    zero: float


def fate(got: np.ndarray, exact: np.ndarray) -> Fate:
    """Compare results (rows, m) with exact ones; rows with an infinite result count as overflow and in no error."""
    bad = ~np.isfinite(got) & np.isfinite(exact)
    lost = (got == 0) & (exact != 0)
    whole = (np.isfinite(got) & np.isfinite(exact)).all(axis=1)
    if not whole.any():
        return Fate(float("nan"), float("nan"), float(bad.mean()), float(lost.mean()))
    largest = np.abs(exact[whole]).max(axis=1)
    error = np.abs(got[whole].astype(np.float64) - exact[whole]).max(axis=1)
    relative = np.divide(error, largest, out=np.zeros_like(error), where=largest > 0)
    return Fate(float(np.median(relative)), float(relative.max()), float(bad.mean()), float(lost.mean()))


def entering(values: Gathered, op: Listed, fmt: str, k: int) -> np.ndarray:
    """The real values times 2^k, as the format holds them; what would overflow becomes the largest value."""
    scaled = values.of(op.data) * np.float32(2.0**k)
    return np.asarray(numeric.quantize(scaled, fmt, overflow="saturate"), np.float32)


def fates(values: Gathered, ks: np.ndarray, tick: Tick) -> dict[str, np.ndarray]:
    """Fates (operation, format, way, scale) of a network's values."""
    shape = (len(OPERATIONS), len(FORMATS), len(WAYS), len(ks))
    found = {name: np.zeros(shape) for name in ("median", "worst", "overflow", "zero")}
    for i, op in enumerate(OPERATIONS):
        tick(i / len(OPERATIONS), op.name)
        for f, fmt in enumerate(FORMATS):
            for s, k in enumerate(ks):
                x = entering(values, op, fmt, int(k))
                with np.errstate(all="ignore"):
                    exact = np.asarray(op.exact(x.astype(np.float64)))
                    for w, got in enumerate(ways(op, x, fmt)):
                        one = fate(got, exact)
                        for name, by_place in found.items():
                            by_place[i, f, w, s] = getattr(one, name)
    return found


def run(params: Params, tick: Tick) -> Result:
    first, ks = gather(params, tick), params.scales
    found = fates(first, ks, lambda f, text: tick(0.3 + 0.4 * f, text))
    near = np.abs(ks) <= NEAR
    every = [{name: x[..., near] for name, x in found.items()}]
    for seed in range(1, params.seeds):
        tick(0.7 + 0.2 * seed / params.seeds, f"seed {seed}")
        one = gather(replace(params, seed=params.seed + seed, rows=params.few), lambda _share, _text: None)
        every.append(fates(one, ks[near], lambda _share, _text: None))
    tick(0.9, "every code")
    beside = {f"near_{name}": np.stack([one[name] for one in every]) for name in found}
    arrays: dict[str, Any] = {**vars(first), **found, **beside}
    return Result(**arrays, scales=ks, limits=limits())


# --- where the range of a format ends -------------------------------------------------------------------------------
def codes(fmt: str) -> np.ndarray:
    """Every finite value of a 16-bit format, in increasing order, float32."""
    values = numeric.decode(np.arange(1 << 16, dtype=np.uint32).astype(np.uint16), fmt)
    return np.unique(values[np.isfinite(values)])


LIMITS = (
    "smallest x with exp(x) > 0", "largest x with exp(x) finite", "largest x with x^3 finite",
    "smallest x with x^3 > 0", "ones that a sum counts, every step rounded",
    "ones that a sum in FP32 holds as a result", "largest distance from the mean with a finite square",
)  # fmt: skip


def limits() -> np.ndarray:
    """Where each format's range ends for the operations, found by trying every code: float64 (formats, LIMITS)."""
    by_name = {op.name: op for op in OPERATIONS}
    rows = []
    for fmt in FORMATS:
        x = codes(fmt)
        with np.errstate(all="ignore"):
            powers, cubes = (by_name[name].run(x, fmt) for name in ("exp", "pow"))
            square = np.asarray(numeric.mul(x, x, fmt))
        ones = np.ones((1, 1 << 12), np.float32)
        largest = formats.get(fmt).max
        rows.append([
            x[powers > 0].min(), x[np.isfinite(powers)].max(), x[np.isfinite(cubes)].max(), x[cubes > 0].min(),
            float(numeric.sum(ones, fmt, "sequential")[0]), largest, x[np.isfinite(square)].max(),
        ])  # fmt: skip
    return np.array(rows, np.float64)


# --- the verdict ----------------------------------------------------------------------------------------------------
RANGE, INSIDE_ONLY, NEITHER = "a wider result", "FP32 inside", "neither"
LARGE = 8.0  # half-ulps: more than this is more than a few roundings


@dataclass(frozen=True)
class Verdict:
    """What FP16 needs for an operation, on real values as they are and within 2^±6 of them.

    ``every_step`` and ``inside``: median errors in units of FP16's half an ulp at scale 2^0. ``lost_every``,
    ``lost_inside``: the largest share of results that overflow or become zero. ``listed``: whether CUDA's autocast
    computes it in FP32.
    """

    name: str
    every_step: float
    inside: float
    lost_every: float
    lost_inside: float
    listed: bool

    @property
    def needs(self) -> str:
        """The least that mends it."""
        if self.lost_inside > 0:
            return RANGE
        return INSIDE_ONLY if self.every_step > LARGE or self.lost_every > 0 else NEITHER


def listed(op: Listed) -> bool:
    """Whether CUDA's autocast lists it, by the lab's copy of the lists."""
    from ...nn.autocast_lists import RULES, Rule

    return any(RULES.get(m) in (Rule.FP32, Rule.FP32_DTYPE, Rule.FP32_OVERLOAD) for m in op.members)


def verdicts(ks: np.ndarray, median: np.ndarray, overflow: np.ndarray, zero: np.ndarray) -> list[Verdict]:
    """One for each operation, of FP16, from fates by (operation, format, way, scale)."""
    f, unit = FORMATS.index("fp16"), 2.0 ** -formats.get("fp16").significand_bits
    here = int(np.flatnonzero(ks == 0)[0])
    near = np.abs(ks) <= NEAR
    gone = np.maximum(overflow, zero)[:, f][..., near].max(axis=-1)
    gone = np.where(gone > gone[:, [RESULT]], gone, 0.0)  # what FP32 loses as well says nothing of the half format
    errors = median[:, f, :, here] / unit
    return [
        Verdict(
            op.name, float(errors[i, EVERY]), float(errors[i, INSIDE]), float(gone[i, EVERY]), float(gone[i, INSIDE]),
            listed(op),
        )
        for i, op in enumerate(OPERATIONS)
    ]  # fmt: skip
