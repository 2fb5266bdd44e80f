"""The runs: one network, nine ways of holding its weights, and what became of every update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import fplab

from ... import formats
from ...hardware.cases import Arrays
from ..base import Tick

if TYPE_CHECKING:
    import torch

HALVES = ("fp16", "bf16")
LAYERS = ("first", "second", "third")
# What is kept of a step, of all weights: the parameters, what is updated (FP32 with a copy), velocities and Kahan's
# compensations before it, the gradients, and all but these after it.
STEP = ("parameter", "weight", "velocity", "compensation", "gradient", "new parameter", "new weight", "new velocity",
        "new compensation")  # fmt: skip
RATIO_STEPS = 8  # bins of |w|/|u| to a binade
RATIO_BINADES = 4  # binades of |w|/|u| shown, from 2**(p-1)


class Variant(NamedTuple):
    """A way of holding weights: their format, and how an update reaches them."""

    weights: str
    update: str

    @property
    def label(self) -> str:
        """How it is called in a figure or a message."""
        return "FP32" if self.weights == "fp32" else f"{self.weights.upper()}, {WORDS[self.update]}"


WORDS = {"nearest": "nearest", "stochastic": "stochastic", "kahan": "Kahan", "master": "FP32 copy"}
VARIANTS = (Variant("fp32", "nearest"), *(Variant(f, u) for f in HALVES for u in WORDS))


@dataclass(frozen=True)
class Params:
    """``rates``: learning rates, falling; ``distance``: lr * steps. ``width``: of the network's hidden layers.

    ``momentum``, ``batch``, ``seeds``: of the training. ``every``: steps between two counts of lost updates.
    ``sample``: how many pairs of weight and update the oracle and the figure take.
    """

    rates: tuple[float, ...] = (2.0**-4, 2.0**-6, 2.0**-8, 2.0**-10)
    distance: float = 6.0
    width: int = 128
    momentum: float = 0.9
    batch: int = 128
    seeds: int = 3
    every: int = 8
    sample: int = 2048

    def steps(self, rate: float) -> int:
        """How many steps a learning rate takes."""
        return round(self.distance / rate)

    def kept(self, rate: float) -> tuple[int, ...]:
        """The steps of which everything is kept: the first, a middle and the last that are counted, and the last."""
        last = self.steps(rate) - 1
        counted = last // self.every
        return tuple(sorted({0, counted // 2 * self.every, counted * self.every, last}))


QUICK = Params(rates=(2.0**-3, 2.0**-5), distance=4.0, width=32, every=16)


class Trained(NamedTuple):
    """One run. ``lost``: by counted step and layer, updates that left the weight as it was; ``moving``: all of them
    that were not zero. ``pairs``: float32 (3, n), weights, updates and new weights at the counted steps. ``steps``:
    float32 (kept steps, STEP, n), what the kept steps began and ended with.
    """

    losses: np.ndarray
    top1: float
    lost: np.ndarray
    moving: np.ndarray
    drift: np.ndarray
    pairs: np.ndarray
    steps: np.ndarray


class Ledger:
    """What happens to every update of a run; the observer of an optimizer.

    ``total``: what each parameter's updates add up to, in float64, whether or not they reached the weight. ``peak``:
    the largest magnitude each weight has had.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], every: int) -> None:
        self.places = {id(p): i for i, p in enumerate(parameters)}
        self.total = [np.zeros(tuple(p.shape)) for p in parameters]
        self.peak = [np.abs(p.detach().numpy()) for p in parameters]
        self.counts: list[np.ndarray] = []
        self.pairs: list[np.ndarray] = []
        self.every, self.calls = every, 0

    def __call__(self, parameter: Any, before: np.ndarray, update: np.ndarray, after: np.ndarray) -> None:
        """Note one parameter's step."""
        place = self.places[id(parameter)]
        self.total[place] += update
        np.maximum(self.peak[place], np.abs(after), out=self.peak[place])
        if self.calls // len(self.places) % self.every == 0:
            moving = update != 0
            self.counts.append(np.array([place, (moving & (before == after)).sum(), moving.sum()]))
            self.pairs.append(np.stack([before.ravel(), update.ravel(), after.ravel()]))
        self.calls += 1

    def by_layer(self) -> np.ndarray:
        """Lost and moving updates: int64 (counted steps, layers, 2); a layer is a weight and a bias."""
        rows = np.stack(self.counts)[:, 1:].reshape(-1, len(self.places) // 2, 2, 2)
        return np.asarray(rows.sum(axis=2))


def one_run(params: Params, variant: Variant, rate: float, seed: int) -> Trained:
    """Train the network once, on one thread."""
    from ...training.loop import one_thread
    from ...training.optimizers import SGD
    from ...training.tasks import DIGITS_MLP, Batch, digits_mlp, epochs

    with one_thread():
        model = digits_mlp(seed, params.width)
        parameters = list(model.parameters())
        optimizer = SGD(parameters, rate, params.momentum, weights=variant.weights, update=variant.update, seed=seed)
        start = [p.detach().numpy().astype(np.float64) for p in parameters]
        if variant.update == "master":
            start = [optimizer.state[p]["master"].numpy().astype(np.float64) for p in parameters]
        optimizer.observer = ledger = Ledger(parameters, params.every)
        steps = params.steps(rate)
        losses = np.zeros(steps, np.float32)
        images, labels = whole()
        kept = []
        for step, index in enumerate(epochs(len(labels), params.batch, seed, steps)):
            optimizer.zero_grad()
            loss = DIGITS_MLP.loss(model, Batch(images[index], labels[index]))
            loss.backward()
            before = held(optimizer, parameters)
            optimizer.step()
            if step in params.kept(rate):
                gradients = np.concatenate([p.grad.numpy().ravel() for p in parameters if p.grad is not None])
                kept.append(np.stack([*before, gradients, *held(optimizer, parameters)]))
            losses[step] = loss.item()
        drift = drifts(variant, parameters, start, ledger, optimizer)
        counted = ledger.by_layer()
        return Trained(
            losses, DIGITS_MLP.evaluate(model), counted[..., 0], counted[..., 1], drift, np.hstack(ledger.pairs),
            np.stack(kept),
        )  # fmt: skip


def held(optimizer: Any, parameters: list[Any]) -> list[np.ndarray]:
    """Parameters, what is updated, velocities and compensations, each as one float32 array, 0 before there is any."""
    rows: list[list[np.ndarray]] = [[], [], [], []]
    for p in parameters:
        state, value = optimizer.state[p], p.detach().numpy()
        nothing = np.zeros_like(value)
        others = (("master", value), ("velocity", nothing), ("compensation", nothing))
        found = (value, *(state.get(key, other) for key, other in others))
        for row, x in zip(rows, found, strict=True):
            row.append((x if isinstance(x, np.ndarray) else x.numpy()).ravel().copy())
    return [np.concatenate(row) for row in rows]


def whole() -> tuple[Any, Any]:
    """All training images, flat, and their labels."""
    from ...training import digits, tensors

    images, labels = tensors(digits("train"))
    return images.flatten(1), labels


def drifts(
    variant: Variant, parameters: list[Any], start: list[np.ndarray], ledger: Ledger, optimizer: Any
) -> np.ndarray:
    """How far weights are from where their own updates, added exactly, would have led: median and largest, in ulps.

    In ulps of the largest magnitude a weight has had. A Kahan weight counts with its compensation.
    """
    found = []
    for parameter, first, total, peak in zip(parameters, start, ledger.total, ledger.peak, strict=True):
        last = parameter.detach().numpy().astype(np.float64)
        if variant.update == "kahan":
            last = last + optimizer.state[parameter]["compensation"].numpy()
        found.append((np.abs(last - (first + total)) / fplab.ulp(peak, variant.weights)).ravel())
    every = np.concatenate(found)
    return np.array([np.median(every), every.max()])


def run(params: Params, tick: Tick) -> Arrays:
    """Every variant at every learning rate and seed; arrays by (variant, rate, seed)."""
    shape = (len(VARIANTS), len(params.rates), params.seeds)
    final, along, top1, lost = (np.zeros(shape) for _ in range(4))
    drift = np.zeros((*shape, 2))
    arrays: Arrays = {}
    done, cost = 0.0, params.seeds * len(VARIANTS) * sum(params.steps(r) for r in params.rates)
    for v, variant in enumerate(VARIANTS):
        for i, rate in enumerate(params.rates):
            for seed in range(params.seeds):
                trained = one_run(params, variant, rate, seed)
                where = (v, i, seed)
                last = max(len(trained.losses) // 10, 8)
                final[where], along[where] = trained.losses[-last:].mean(), trained.losses.mean()
                top1[where] = trained.top1
                lost[where], drift[where] = trained.lost.sum() / trained.moving.sum(), trained.drift
                if seed == 0:
                    arrays |= kept(params, variant, i, trained)
                done += params.steps(rate)
                tick(0.95 * done / cost, f"{variant.label}, learning rate {rate:.3g}")
    return {
        **arrays,
        "final": final,
        "along": along,
        "top1": top1,
        "lost": lost,
        "drift": drift,
        "survival": np.stack([survival(fmt) for fmt in HALVES]),
    }


def kept(params: Params, variant: Variant, rate: int, trained: Trained) -> Arrays:
    """What of a first seed's run the checks and the figure look at: that of the last learning rate."""
    if rate != len(params.rates) - 1:
        return {}
    name = f"{variant.weights}_{variant.update}"
    found = {f"losses_{name}": trained.losses, f"by_layer_{name}": trained.lost / np.maximum(trained.moving, 1)}
    found[f"steps_{name}"] = trained.steps
    if variant.update in ("nearest", "stochastic") and variant.weights != "fp32":
        w, u, after = trained.pairs
        moving = np.flatnonzero(u)
        chosen = moving[:: max(1, len(moving) // (64 * params.sample))]
        found |= {f"pairs_{name}": np.stack([w[chosen], u[chosen], after[chosen]])}
    return found


def survival(fmt: str) -> np.ndarray:
    """Of weights of every significand, the share that an update |w|/ratio leaves as they are, by ratio: float64 (n,).

    The ratios are 2**(p - 1 + i / RATIO_STEPS), a binade below the rule of 2**p to three above; updates point away
    from zero and are rounded to nearest. Counted over all significands of one binade, by integers alone.
    """
    form = formats.get(fmt)
    p = form.significand_bits
    units = np.arange(2**form.fraction_bits, 2**p, dtype=np.float64)  # weights in ulps
    ratios = ratio_edges(fmt)
    lost = [(units / r < 0.5) | ((units / r == 0.5) & (units % 2 == 0)) for r in ratios]
    return np.array([x.mean() for x in lost])


def ratio_edges(fmt: str) -> np.ndarray:
    """The ratios at which :func:`survival` counts."""
    p = formats.get(fmt).significand_bits
    return np.asarray(2.0 ** (p - 1 + np.arange(RATIO_BINADES * RATIO_STEPS + 1) / RATIO_STEPS))
