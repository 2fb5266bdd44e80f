"""A training run's true gradients, weights and updates, and what formats make of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import formats, numeric
from ..base import Digested, Tick

FORMATS = ("fp16", "bf16", "e5m2", "e4m3")
FP16 = FORMATS.index("fp16")
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

    def recipe(self, seed: int) -> Any:
        from ... import training

        return training.Recipe(self.epochs, self.batch, self.lr, self.momentum, seed)


QUICK = Params(epochs=8, every=35)


@dataclass(frozen=True)
class Gathered:
    """What a training run computed in FP32, of all snapshots one after the other.

    ``losses``: float32, by step; ``right``: how many test digits are read, of how many; ``steps``: of the snapshots.
    ``activation``, ``weight``: the non-zero gradients, float32; ``zeros``: how many others there are of each kind.
    ``activation_sizes``: non-zero gradients by snapshot and layer. ``weights``, ``updates``: float32, as long as each
    other.
    """

    params: Params
    losses: np.ndarray
    right: np.ndarray
    steps: np.ndarray
    activation: np.ndarray
    activation_sizes: np.ndarray
    weight: np.ndarray
    zeros: np.ndarray
    weights: np.ndarray
    updates: np.ndarray

    def of(self, kind: str) -> np.ndarray:
        return np.asarray({"activation": self.activation, "weight": self.weight}[kind])

    @property
    def gradients(self) -> np.ndarray:
        """All collected non-zero gradients, float32."""
        return np.concatenate([self.of(kind) for kind in KINDS])


@dataclass(frozen=True)
class Result(Gathered):
    """``counts``: non-zero gradients by (kind, format, loss scale, fate). ``lost``: of all activation gradients of each
    seed's network, what FP16 makes zero at each of SCALES: float64 (seed, 3). ``binades``, ``product_binades``: how
    many gradients, products of weight gradients and learning rate, lie in each binade. ``layer_underflows``: how many
    FP16 makes zero, by snapshot and layer. ``product_fates``: (format, 5), see ``fates``. ``update_fates``:
    uint8 (format, update). ``thresholds``: see there.
    """

    counts: np.ndarray
    lost: np.ndarray
    binades: np.ndarray
    product_binades: np.ndarray
    layer_underflows: np.ndarray
    product_fates: np.ndarray
    update_fates: np.ndarray
    thresholds: Digested

    @property
    def by_fate(self) -> np.ndarray:
        """The counts of both kinds together: (format, loss scale, fate)."""
        return np.asarray(self.counts.sum(axis=0))

    def clean_scales(self, fmt: str) -> list[int]:
        """The exponents of the loss scales at which no collected gradient becomes zero or overflows."""
        counts = self.by_fate[FORMATS.index(fmt)]
        return [int(s) for s in np.flatnonzero((counts[:, 0] == 0) & (counts[:, 3] == 0))]


def trained(params: Params, seed: int, tick: Tick) -> tuple[Any, Any, list[int]]:
    """The model of a seed, its run, and the steps of its snapshots."""
    from ... import training

    data, recipe = training.digits("train"), params.recipe(seed)
    steps = recipe.steps(len(data.labels))
    at = sorted({*range(0, steps, params.every), steps - 1})
    model = training.digits_net(seed)
    return model, training.train(model, data, recipe, at, lambda done, of: tick(done / of, f"step {done}")), at


def gather(params: Params, tick: Tick) -> Gathered:
    from ... import training

    model, done, at = trained(params, params.seed, lambda f, text: tick(0.3 * f, f"training, {text}"))
    test = training.digits("test")
    by_layer = [[s.activation_gradients[name].ravel() for name in LAYERS] for s in done.snapshots]
    outputs = [g for row in by_layer for g in row]
    slopes = [g.ravel() for s in done.snapshots for g in s.weight_gradients.values()]
    return Gathered(
        params, done.losses,
        right=np.array([round(training.accuracy(model, test) * len(test.labels)), len(test.labels)]),
        steps=np.array(at),
        activation=np.concatenate([g[g != 0] for g in outputs]),
        activation_sizes=np.array([[np.count_nonzero(g) for g in row] for row in by_layer]),
        weight=np.concatenate([g[g != 0] for g in slopes]),
        zeros=np.array([sum(int((g == 0).sum()) for g in parts) for parts in (outputs, slopes)]),
        weights=np.concatenate([w.ravel() for s in done.snapshots for w in s.weights.values()]),
        updates=np.concatenate([u.ravel() for s in done.snapshots for u in s.updates.values()]),
    )  # fmt: skip


def run(params: Params, tick: Tick) -> Result:
    """Collect true gradients, then round them with the lab's kernels."""
    found = gather(params, tick)
    counts = np.zeros((len(KINDS), len(FORMATS), params.scales + 1, len(FATES)), np.int64)
    for (k, kind), (f, fmt) in itertools.product(enumerate(KINDS), enumerate(FORMATS)):
        tick(0.3 + 0.4 * (k * len(FORMATS) + f) / 8, f"{kind} gradients to {fmt}")
        for s in range(params.scales + 1):
            counts[k, f, s] = count(numeric.quantize(scaled(found.of(kind), s), fmt), fmt)
    first = counts[0, FP16, list(SCALES), 0] / (counts[0, 0, 0].sum() + found.zeros[0])
    lost = lost_shares(params, first, tick)
    tick(0.9, "updates")
    return Result(
        **vars(found), counts=counts, lost=lost,
        binades=np.stack([histogram(found.of(kind)) for kind in KINDS]),
        product_binades=histogram(times_rate(found.weight, params.lr)),
        layer_underflows=split_sums(numeric.quantize(found.activation, "fp16") == 0, found.activation_sizes),
        product_fates=np.stack([product_fates(found.weight, params.lr, fmt) for fmt in HALVES]),
        update_fates=np.stack([update_fates(found.weights, found.updates, fmt) for fmt in HALVES]),
        thresholds=thresholds(),
    )  # fmt: skip


def lost_shares(params: Params, first: np.ndarray, tick: Tick) -> np.ndarray:
    """What FP16 makes zero at each of SCALES, by seed; ``first``: of the first seed's network."""
    rows: list[list[float]] = [first.tolist()]
    for seed in range(params.seed + 1, params.seed + params.seeds):
        tick(0.7 + 0.2 * (len(rows) - 1) / params.seeds, f"training, seed {seed}")
        _, done, _ = trained(params, seed, lambda _share, _text: None)
        values = np.concatenate([g.ravel() for s in done.snapshots for g in s.activation_gradients.values()])
        there = values[values != 0]
        rows.append([(numeric.quantize(scaled(there, s), "fp16") == 0).sum() / values.size for s in SCALES])
    return np.array(rows, np.float64)


# --- counting, with the kernels and without rounding any ----------------------------------------------------------
def scaled(values: np.ndarray, exponent: int) -> np.ndarray:
    """``values * 2**exponent`` in FP32, exact as long as it stays finite."""
    return values * np.float32(2.0**exponent)


def times_rate(gradients: np.ndarray, lr: float) -> np.ndarray:
    """``gradients * lr`` in FP32, rounded once."""
    return gradients * np.float32(lr)


def count(rounded: np.ndarray, fmt: str) -> np.ndarray:
    """How many rounded values of a format are zero, subnormal, normal, and infinite or NaN: int64 (4,)."""
    form, magnitude = formats.get(fmt), np.abs(rounded)
    zero = int((magnitude == 0).sum())
    finite = int((magnitude <= form.max).sum())
    normal = finite - int((magnitude < form.smallest_normal).sum())
    return np.array([zero, finite - zero - normal, normal, rounded.size - finite])


def fates_of_codes(codes: np.ndarray, fmt: str) -> np.ndarray:
    """The four fates counted on codes, by integer comparison alone."""
    form = formats.get(fmt)
    magnitude = codes & codes.dtype.type(form.sign_mask - 1)
    zero = int((magnitude == 0).sum())
    small = int((magnitude < 1 << form.fraction_bits).sum())
    finite = int((magnitude <= form.max_code).sum())
    return np.array([zero, small - zero, finite - small, codes.size - finite])


def histogram(values: np.ndarray) -> np.ndarray:
    exponents = np.frexp(values[values != 0])[1] - 1
    return np.asarray(np.bincount(exponents - LOWEST, minlength=HIGHEST - LOWEST + 1))


def binades_of_bits(values: np.ndarray) -> np.ndarray:
    """How many float32 values lie in each binade, by their bits: the exponent field, a subnormal's leading digit."""
    magnitude = values.view(np.uint32) & np.uint32(0x7FFFFFFF)
    magnitude = magnitude[magnitude > 0]
    field = (magnitude >> np.uint32(23)).astype(np.int64)
    digits = np.frexp(np.maximum(magnitude & np.uint32(0x7FFFFF), 1).astype(np.float64))[1]
    places = np.where(field > 0, field - 127, digits - 150) - LOWEST
    return np.asarray(np.bincount(places, minlength=HIGHEST - LOWEST + 1))


def split_sums(flags: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The sum of flags over consecutive stretches of ``sizes`` (any shape) elements."""
    running = np.concatenate([[0], np.cumsum(flags)])
    ends = np.cumsum(sizes.ravel())
    return np.asarray((running[ends] - running[ends - sizes.ravel()]).reshape(sizes.shape))


def product_fates(gradients: np.ndarray, lr: float, fmt: str) -> np.ndarray:
    """Of the non-zero FP32 gradients: how many are zero in ``fmt``; of the rest, the fates of gradient * lr: (5,)."""
    narrow = numeric.quantize(gradients, fmt)
    narrow = narrow[narrow != 0]
    product = numeric.mul(narrow, numeric.quantize(np.full_like(narrow, lr), fmt), fmt)
    return np.array([gradients.size - narrow.size, *count(product, fmt)])


def update_fates(weights: np.ndarray, updates: np.ndarray, fmt: str) -> np.ndarray:
    """What becomes of each update when weight and update are held and added in ``fmt``: uint8, the codes above."""
    w, u = numeric.quantize(weights, fmt), numeric.quantize(updates, fmt)
    lost = numeric.add(w, u, fmt) == w
    fate = np.select([updates == 0, u == 0, lost], [NO_UPDATE, UNDERFLOWS, LOST_IN_SUM], CHANGES)
    return fate.astype(np.uint8)


def thresholds() -> np.ndarray:
    """The exponents of the lowest powers of two that are not rounded to zero, are normal, overflow: int64 (4, 3)."""
    exponents = np.arange(-200, 200)
    rows = []
    for fmt in FORMATS:
        form, rounded = formats.get(fmt), np.abs(numeric.quantize(np.ldexp(1.0, exponents), fmt))
        edges = (rounded > 0, rounded >= form.smallest_normal, ~(rounded <= form.max))
        rows.append([int(exponents[np.argmax(edge)]) for edge in edges])
    return np.array(rows)


def edges(fmt: str) -> tuple[float, float, float, bool]:
    """Where RNE changes a magnitude's fate, exact: zero up to, subnormal below, overflow above, and at it or not."""
    form = formats.get(fmt)
    half = form.smallest_subnormal / 2  # a tie between code 0 and code 1: zero
    half_top = math.ldexp(0.5, form.emax - form.fraction_bits)
    return half, form.smallest_normal - half, form.max + half_top, form.max_code % 2 == 1


def counts_from_edges(magnitudes: np.ndarray, fmt: str, exponent: int) -> np.ndarray:
    """The four fates of sorted float64 magnitudes times 2**exponent by comparison alone, without rounding any."""
    *limits, tie_overflows = edges(fmt)
    sides: Any = ("right", "left", "left" if tie_overflows else "right")
    ends = [int(np.searchsorted(magnitudes, x * 2.0**-exponent, side)) for x, side in zip(limits, sides, strict=True)]
    return np.diff([0, *ends, magnitudes.size])


def network(params: Params, weights: np.ndarray) -> Any:
    """The network with these weights, flat in the order of its parameters."""
    import torch

    from ... import training

    model = training.digits_net(params.seed)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(weights.copy()), model.parameters())
    return model


def layer_gradients(params: Params, weights: np.ndarray, images: Any, labels: Any) -> list[np.ndarray]:
    """The gradient of the loss with respect to the output of each layer that has weights, flat."""
    import torch

    x, outputs = images, []
    for module in network(params, weights).children():
        x = module(x)
        if list(module.parameters()):
            outputs.append(x)
    loss = torch.nn.functional.cross_entropy(x, labels)
    return [np.array(g.numpy()).ravel() for g in torch.autograd.grad(loss, outputs)]
