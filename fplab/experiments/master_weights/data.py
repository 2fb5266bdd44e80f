"""The runs: one network, nine ways of holding its weights, and what became of every update."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import formats, numeric
from ...hardware.cases import Arrays, philox_bits
from ..base import Digested, Tick, one_threaded

if TYPE_CHECKING:
    import torch

HALVES = ("fp16", "bf16")
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

    @property
    def place(self) -> int:
        """Where it stands in the results."""
        return VARIANTS.index(self)


WORDS = {"nearest": "nearest", "stochastic": "stochastic", "kahan": "Kahan", "master": "FP32 copy"}
VARIANTS = (Variant("fp32", "nearest"), *(Variant(f, u) for f in HALVES for u in WORDS))
PAIRED = tuple(v for v in VARIANTS[1:] if v.update in ("nearest", "stochastic"))  # whose updates are kept


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


QUICK = Params(rates=(2.0**-3, 2.0**-5), distance=4.0, width=32, every=16, seeds=4)


@dataclass(frozen=True)
class Result:
    """By (variant, rate, seed): ``final``, ``along``: training loss of the last steps and of all; ``top1``: accuracy;
    ``lost``: share of updates lost; ``drift``: in ulps, from where updates, added exactly, lead (..., median and most).

    Of the first seed at the last rate, by variant: ``losses``: float32 (variant, step); ``by_layer``: share of updates
    lost (variant, counted step, layer); ``steps``: float32 (variant, kept step, STEP, n). ``pairs``: of PAIRED, float32
    (3, n), weights, updates and new weights. ``survival``: (format, ratio), see there.
    """

    params: Params
    final: np.ndarray
    along: np.ndarray
    top1: np.ndarray
    lost: np.ndarray
    drift: np.ndarray
    losses: np.ndarray
    by_layer: np.ndarray
    steps: np.ndarray
    pairs: Mapping[Variant, np.ndarray]
    survival: Digested

    def nearest(self, fmt: str) -> np.ndarray:
        """Weights, updates and new weights of the run that rounds to nearest: float64 (3, n)."""
        return np.asarray(self.pairs[Variant(fmt, "nearest")].astype(np.float64))


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
    """What happens to every update of a run; the observer of an optimizer of ``parameters``.

    ``total``: what each parameter's updates add up to, in float64, whether or not they reached the weight. ``peak``:
    the largest magnitude each weight has had. ``pairs``: float32 (3, n) of each parameter at every counted step.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], every: int) -> None:
        self.places = {id(p): i for i, p in enumerate(parameters)}
        self.total = [np.zeros(tuple(p.shape)) for p in parameters]
        self.peak = [np.abs(p.detach().numpy()) for p in parameters]
        self.pairs: list[np.ndarray] = []
        self.every, self.calls = every, 0

    def __call__(self, parameter: Any, before: np.ndarray, update: np.ndarray, after: np.ndarray) -> None:
        """Note one parameter's step."""
        place = self.places[id(parameter)]
        self.total[place] += update
        np.maximum(self.peak[place], np.abs(after), out=self.peak[place])
        if self.calls // len(self.places) % self.every == 0:
            self.pairs.append(np.stack([before.ravel(), update.ravel(), after.ravel()]))
        self.calls += 1


def counted(pairs: np.ndarray, layers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Lost and moving updates, int64 (counted steps, layers), of layers of so many weights and biases."""
    before, update, after = pairs.reshape(3, -1, sum(layers))
    moving = update != 0
    first = np.cumsum([0, *layers[:-1]])
    lost, moved = (np.add.reduceat(x, first, axis=1, dtype=np.int64) for x in (moving & (before == after), moving))
    return lost, moved


def in_one(parameters: list[Any]) -> Any:
    """A parameter whose parts the others become: of arrays this small an optimizer's step costs as much for each."""
    import torch

    whole = torch.nn.Parameter(torch.cat([p.detach().ravel() for p in parameters]))
    for p, part in zip(parameters, whole.detach().split([p.numel() for p in parameters]), strict=True):
        p.data = part.view(p.shape)
    return whole


def whole() -> tuple[Any, Any]:
    """All training images, flat, and their labels."""
    from ...training import digits, tensors

    images, labels = tensors(digits("train"))
    return images.flatten(1), labels


@one_threaded
def one_run(params: Params, variant: Variant, rate: float, seed: int) -> Trained:
    """Train the network once, on one thread."""
    import torch

    from ...training.optimizers import SGD
    from ...training.tasks import DIGITS_MLP, Batch, digits_mlp, epochs

    model = digits_mlp(seed, params.width)
    parts = list(model.parameters())
    all_parts = in_one(parts)
    parameters = parts if variant.update == "stochastic" else [all_parts]  # a word goes by its parameter's place
    optimizer = SGD(parameters, rate, params.momentum, weights=variant.weights, update=variant.update, seed=seed)
    begun = [optimizer.state[p]["master"] if variant.update == "master" else p.detach() for p in parameters]
    start = [x.numpy().astype(np.float64) for x in begun]
    optimizer.observer = ledger = Ledger(parameters, params.every)
    steps, keep = params.steps(rate), params.kept(rate)
    losses = np.zeros(steps, np.float32)
    images, labels = whole()
    kept = []
    for step, index in enumerate(epochs(len(labels), params.batch, seed, steps)):
        model.zero_grad()
        loss = DIGITS_MLP.loss(model, Batch(images[index], labels[index]))
        loss.backward()
        all_parts.grad = torch.cat([p.grad.ravel() for p in parts if p.grad is not None])
        before = held(optimizer, parameters) if step in keep else []
        optimizer.step()
        if step in keep:
            kept.append(np.stack([*before, all_parts.grad.numpy(), *held(optimizer, parameters)]))
        losses[step] = loss.item()
    drift = drifts(variant, parameters, start, ledger, optimizer)
    pairs = np.hstack(ledger.pairs)
    layers = [w.numel() + b.numel() for w, b in zip(parts[::2], parts[1::2], strict=True)]
    return Trained(losses, DIGITS_MLP.evaluate(model), *counted(pairs, layers), drift, pairs, np.stack(kept))


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
        found.append((np.abs(last - (first + total)) / numeric.ulp(peak, variant.weights)).ravel())
    every = np.concatenate(found)
    return np.array([np.median(every), every.max()])


def run(params: Params, tick: Tick) -> Result:
    shape = (len(VARIANTS), len(params.rates), params.seeds)
    final, along, top1, lost = (np.zeros(shape) for _ in range(4))
    drift, first = np.zeros((*shape, 2)), []
    done, cost = 0.0, params.seeds * len(VARIANTS) * sum(params.steps(r) for r in params.rates)
    for where in itertools.product(*map(range, shape)):
        v, i, seed = where
        rate = params.rates[i]
        one = one_run(params, VARIANTS[v], rate, seed)
        final[where], along[where] = last_losses(one.losses), one.losses.mean()
        top1[where], drift[where] = one.top1, one.drift
        lost[where] = one.lost.sum() / one.moving.sum()
        if seed == 0 and i == len(params.rates) - 1:
            first.append(one)
        done += params.steps(rate)
        tick(0.95 * done / cost, f"{VARIANTS[v].label}, learning rate {rate:.3g}")
    return Result(
        params, final, along, top1, lost, drift,
        losses=np.stack([one.losses for one in first]),
        by_layer=np.stack([one.lost / np.maximum(one.moving, 1) for one in first]),
        steps=np.stack([one.steps for one in first]),
        pairs={v: sampled(first[v.place].pairs, 64 * params.sample) for v in PAIRED},
        survival=np.stack([survival(fmt) for fmt in HALVES]),
    )  # fmt: skip


def last_losses(losses: np.ndarray) -> float:
    """The mean of the last tenth, of eight steps at least."""
    return float(losses[-max(len(losses) // 10, 8) :].mean())


def sampled(pairs: np.ndarray, most: int) -> np.ndarray:
    """About so many of the pairs whose update is not zero, evenly spaced."""
    moving = np.flatnonzero(pairs[1])
    return np.asarray(pairs[:, moving[:: max(1, len(moving) // most)]])


def survival(fmt: str) -> np.ndarray:
    """Of weights of every significand, the share that an update |w|/ratio leaves as they are, by ratio: float64 (n,).

    The ratios are 2**(p - 1 + i / RATIO_STEPS), a binade below the rule of 2**p to three above; updates point away
    from zero and are rounded to nearest. Counted over all significands of one binade, by integers alone.
    """
    form = formats.get(fmt)
    units = np.arange(2**form.fraction_bits, 2**form.significand_bits, dtype=np.float64)  # weights in ulps
    lost = [(units / r < 0.5) | ((units / r == 0.5) & (units % 2 == 0)) for r in ratio_edges(fmt)]
    return np.array([x.mean() for x in lost])


def ratio_edges(fmt: str) -> np.ndarray:
    """The ratios at which :func:`survival` counts."""
    p = formats.get(fmt).significand_bits
    return np.asarray(2.0 ** (p - 1 + np.arange(RATIO_BINADES * RATIO_STEPS + 1) / RATIO_STEPS))


# --- the same steps, by the rule ----------------------------------------------------------------------------------
def gradients(parameters: np.ndarray, shapes: list[tuple[int, ...]], x: Any, labels: Any) -> np.ndarray:
    """Of the mean cross-entropy of a batch, float32 (n,), by autograd on functions."""
    import torch
    from torch.nn import functional

    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    leaves = [torch.from_numpy(part.reshape(shape).copy()).requires_grad_()
              for part, shape in zip(np.split(parameters, ends[:-1]), shapes, strict=True)]  # fmt: skip
    for i in range(0, len(leaves), 2):
        x = functional.linear(x.relu() if i else x, leaves[i], leaves[i + 1])
    found = torch.autograd.grad(functional.cross_entropy(x, labels), leaves)
    return np.concatenate([g.numpy().ravel() for g in found])


def after(variant: Variant, given: dict[str, np.ndarray], params: Params, rate: float) -> dict[str, np.ndarray]:
    """What a step ends with: numpy's float32 for velocity and update, the rule's sums each rounded once.

    Of stochastic rounding not the weight, which another claim is about.
    """
    velocity = given["velocity"] * np.float32(params.momentum) + given["gradient"]
    update, w, lost = velocity * np.float32(-rate), given["weight"], given["compensation"]
    found = {"new velocity": velocity}
    fmt = "fp32" if variant.update == "master" else variant.weights

    def rounded(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray(a + b if fmt == "fp32" else numeric.quantize(a.astype(np.float64) + b, fmt), np.float32)

    if variant.update == "kahan":
        corrected = rounded(update, lost)
        summed = rounded(w, corrected)
        left = rounded(corrected, -rounded(summed, -w))
        return found | {"new weight": summed, "new parameter": summed, "new compensation": left}
    if variant.update == "stochastic":
        return found
    summed = rounded(w, update)
    copy = np.asarray(numeric.quantize(summed, variant.weights), np.float32)
    return found | {"new weight": summed, "new parameter": copy}


def by_layer(given: dict[str, np.ndarray], shapes: list[tuple[int, ...]], rate: float) -> np.ndarray:
    """Of the updates of each layer, its weights and biases, the share that left the weight as it was."""
    sizes = np.array([int(np.prod(shape)) for shape in shapes]).reshape(-1, 2).sum(axis=1)
    layer = np.repeat(np.arange(len(sizes)), sizes)
    moving = given["new velocity"] * np.float32(-rate) != 0
    gone = moving & (given["new weight"] == given["weight"])
    return np.asarray(np.bincount(layer, gone) / np.maximum(np.bincount(layer, moving), 1))


# --- operands of GPU cases ---------------------------------------------------------------------------------------
GIVEN = {f"{fmt}_{name}": fmt for fmt in HALVES for name in ("weight", "update")}


def operands(fmt: str, n: int, lift: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Codes (uint16) of weights, and of updates around half an ulp of them: the criterion, ties included.

    ``lift``: by how many binades the updates are larger.
    """
    fraction = formats.get(fmt).fraction_bits
    raw = philox_bits(401 + fraction, 2 * n, np.uint32)
    w, r = raw[:n], raw[n:]
    field = (15 if fmt == "fp16" else 127) + (w >> 16) % 4  # weights between 1 and 16
    weights = (w & 1) << 15 | field << fraction | (w >> 1) & ((1 << fraction) - 1)
    below = fraction - lift + (r >> 16) % 4  # the update's exponent lies that far below the weight's
    tie = (r >> 20) % 4 == 0  # every fourth is a power of two
    significand = np.where(tie, 0, (r >> 1) & ((1 << fraction) - 1))
    updates = (r & 1) << 15 | (field - below) << fraction | significand
    return weights.astype(np.uint16), updates.astype(np.uint16)


def pairs(n: int, lift: int = 0) -> Arrays:
    """Weights and updates of both formats. Lifted by 4 binades updates are gradients, which times LR are updates."""
    return dict(zip(GIVEN, [codes for fmt in HALVES for codes in operands(fmt, n, lift)], strict=True))


def masters(n: int) -> Arrays:
    """FP32 weights: signs, exponents of 2**-10 to 2, any significand, and midpoints of both formats."""
    raw = philox_bits(409, n)
    values = raw & np.uint32(0x807FFFFF) | ((raw >> 9) % 11 + 117) << np.uint32(23)
    for share, fraction in ((3, 10), (5, 7)):
        half = np.uint32(1 << (22 - fraction))
        values[::share] = values[::share] & ~np.uint32(2 * half - 1) | half
    return {"master": values.astype(np.uint32)}
