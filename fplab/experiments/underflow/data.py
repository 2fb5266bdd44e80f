"""The experiment's data: a training run's true gradients, weights and updates, and what formats make of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

import fplab

from ... import formats
from ...hardware.cases import Arrays
from ..base import Tick

FORMATS = ("fp16", "bf16", "e5m2", "e4m3")
HALVES = ("fp16", "bf16")
KINDS = ("activation", "weight")
LAYERS = ("conv1", "conv2", "conv3", "linear")
FATES = ("zero", "subnormal", "normal", "overflow")
NO_UPDATE, UNDERFLOWS, LOST_IN_SUM, CHANGES = range(4)  # fates of an update
LOWEST, HIGHEST = -149, 127  # the binades of FP32
SCALES = (0, 3, 15)  # none, the one that saved SSD in the paper, and its largest


@dataclass(frozen=True)
class Params:
    """``epochs``, ``batch``, ``lr``, ``momentum``, ``seed``: the training. ``every``: steps between two snapshots.

    ``scales``: loss scales 2^0 to 2^scales. ``sample``: how many values a GPU case takes. ``seeds``: networks over
    which the share of lost gradients is measured; all other numbers are of the first.
    """

    epochs: int = 16
    batch: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    seed: int = 0
    every: int = 11
    scales: int = 24
    sample: int = 4096
    seeds: int = 3


QUICK = Params(epochs=8, every=35)


def scaled(values: np.ndarray, exponent: int) -> np.ndarray:
    """``values * 2**exponent`` in FP32, exact as long as it stays finite."""
    return values * np.float32(2.0**exponent)


def trained(params: Params, seed: int, tick: Tick) -> tuple[Any, Any, list[int]]:
    """The model of a seed, its run, and the steps of its snapshots."""
    from ... import training

    data = training.digits("train")
    recipe = training.Recipe(params.epochs, params.batch, params.lr, params.momentum, seed)
    steps = recipe.steps(len(data.labels))
    at = sorted({*range(0, steps, params.every), steps - 1})
    model = training.digits_net(seed)
    return model, training.train(model, data, recipe, at, lambda done, of: tick(done / of, f"step {done}")), at


def gather(params: Params, tick: Tick) -> Arrays:
    """Train, and collect every snapshot's FP32 values; of gradients the non-zero ones, and how many were zero."""
    from ... import training

    model, run_, at = trained(params, params.seed, lambda f, text: tick(0.3 * f, f"training, {text}"))
    test = training.digits("test")
    by_layer = [[s.activation_gradients[name].ravel() for name in LAYERS] for s in run_.snapshots]
    slopes = [np.concatenate([g.ravel() for g in s.weight_gradients.values()]) for s in run_.snapshots]
    weights = [np.concatenate([w.ravel() for w in s.weights.values()]) for s in run_.snapshots]
    updates = [np.concatenate([u.ravel() for u in s.updates.values()]) for s in run_.snapshots]
    return {
        "losses": run_.losses,
        "right": np.array([round(training.accuracy(model, test) * len(test.labels)), len(test.labels)]),
        "steps": np.array(at),
        "activation": np.concatenate([g[g != 0] for row in by_layer for g in row]),
        "activation_sizes": np.array([[np.count_nonzero(g) for g in row] for row in by_layer]),
        "weight": np.concatenate([g[g != 0] for g in slopes]),
        "zeros": np.array([zeros(g for row in by_layer for g in row), zeros(slopes)]),
        "weights": np.concatenate(weights),
        "updates": np.concatenate(updates),
    }


def lost_shares(params: Params, first: np.ndarray, tick: Tick) -> np.ndarray:
    """Of all activation gradients of each seed's network, what FP16 makes zero at each of SCALES: float64 (seed, 3)."""
    rows: list[list[float]] = [first.tolist()]
    for seed in range(params.seed + 1, params.seed + params.seeds):
        tick(0.7 + 0.2 * (len(rows) - 1) / params.seeds, f"training, seed {seed}")
        _, run_, _ = trained(params, seed, lambda _share, _text: None)
        values = np.concatenate([g.ravel() for s in run_.snapshots for g in s.activation_gradients.values()])
        there = values[values != 0]
        rows.append([(fplab.quantize(scaled(there, s), "fp16") == 0).sum() / values.size for s in SCALES])
    return np.array(rows, np.float64)


def zeros(parts: Iterable[np.ndarray]) -> int:
    """How many values are zero."""
    return sum(int((part == 0).sum()) for part in parts)


def run(params: Params, tick: Tick) -> Arrays:
    """Collect true gradients, then round them with the lab's kernels: counts (kind, format, scale, fate) and fates."""
    arrays = gather(params, tick)
    counts = np.zeros((len(KINDS), len(FORMATS), params.scales + 1, len(FATES)), np.int64)
    for k, kind in enumerate(KINDS):
        for f, fmt in enumerate(FORMATS):
            tick(0.3 + 0.4 * (k * len(FORMATS) + f) / 8, f"{kind} gradients to {fmt}")
            for s in range(params.scales + 1):
                counts[k, f, s] = fates(fplab.quantize(scaled(arrays[kind], s), fmt), fmt)
    total = counts[0, 0, 0].sum() + arrays["zeros"][0]
    first = counts[0, FORMATS.index("fp16"), list(SCALES), 0] / total
    lost = lost_shares(params, first, tick)
    tick(0.9, "updates")
    underflows = fplab.quantize(arrays["activation"], "fp16") == 0
    return {
        **arrays,
        "counts": counts,
        "lost": lost,
        "binades": np.stack([histogram(arrays[kind]) for kind in KINDS]),
        "product_binades": histogram(arrays["weight"] * np.float32(params.lr)),
        "layer_underflows": split_sums(underflows, arrays["activation_sizes"]),
        "product_fates": np.stack([product_fates(arrays["weight"], params.lr, fmt) for fmt in HALVES]),
        "update_fates": np.stack([update_fates(arrays["weights"], arrays["updates"], fmt) for fmt in HALVES]),
        "thresholds": thresholds(),
    }


def fates(rounded: np.ndarray, fmt: str) -> np.ndarray:
    """How many rounded values of a format are zero, subnormal, normal, and infinite or NaN: int64 (4,)."""
    form, magnitude = formats.get(fmt), np.abs(rounded)
    zero = int((magnitude == 0).sum())
    finite = int((magnitude <= form.max).sum())
    normal = finite - int((magnitude < form.smallest_normal).sum())
    return np.array([zero, finite - zero - normal, normal, rounded.size - finite])


def histogram(values: np.ndarray) -> np.ndarray:
    """How many of the non-zero values lie in each binade of FP32, 2^-149 to 2^127."""
    exponents = np.frexp(values[values != 0])[1] - 1
    counts: np.ndarray = np.bincount(exponents - LOWEST, minlength=HIGHEST - LOWEST + 1)
    return counts


def split_sums(flags: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The sum of flags over consecutive stretches of ``sizes`` (any shape) elements."""
    running = np.concatenate([[0], np.cumsum(flags)])
    ends = np.cumsum(sizes.ravel())
    sums: np.ndarray = (running[ends] - running[ends - sizes.ravel()]).reshape(sizes.shape)
    return sums


def product_fates(gradients: np.ndarray, lr: float, fmt: str) -> np.ndarray:
    """Of the non-zero FP32 gradients: how many are zero in ``fmt``; of the rest, the fates of gradient * lr: (5,)."""
    narrow = fplab.quantize(gradients, fmt)
    narrow = narrow[narrow != 0]
    product = fplab.mul(narrow, fplab.quantize(np.full_like(narrow, lr), fmt), fmt)
    return np.array([gradients.size - narrow.size, *fates(product, fmt)])


def update_fates(weights: np.ndarray, updates: np.ndarray, fmt: str) -> np.ndarray:
    """What becomes of each update when weight and update are held and added in ``fmt``: uint8, the codes above."""
    w, u = fplab.quantize(weights, fmt), fplab.quantize(updates, fmt)
    lost = fplab.add(w, u, fmt) == w
    fate = np.select([updates == 0, u == 0, lost], [NO_UPDATE, UNDERFLOWS, LOST_IN_SUM], CHANGES)
    return fate.astype(np.uint8)


def thresholds() -> np.ndarray:
    """The exponents of the lowest powers of two that are not rounded to zero, are normal, overflow: int64 (4, 3)."""
    exponents = np.arange(-200, 200)
    rows = []
    for fmt in FORMATS:
        form, rounded = formats.get(fmt), np.abs(fplab.quantize(np.ldexp(1.0, exponents), fmt))
        edges = (rounded > 0, rounded >= form.smallest_normal, ~(rounded <= form.max))
        rows.append([int(exponents[np.argmax(edge)]) for edge in edges])
    return np.array(rows)


def gradients(arrays: Arrays) -> np.ndarray:
    """All collected non-zero gradients, float32."""
    return np.concatenate([arrays[kind] for kind in KINDS])


def spread(values: np.ndarray, n: int) -> np.ndarray:
    """The places of ``n`` values, evenly spaced in the order of magnitude, the smallest and the largest included."""
    order = np.argsort(np.abs(values), kind="stable")
    return order[np.linspace(0, len(values) - 1, n).round().astype(np.int64)]
