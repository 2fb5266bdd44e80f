"""The experiment's data: a trained net, histograms of its layers' inputs, ranges, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...hardware.cases import Arrays
from ...integers import CALIBRATORS, Histogram
from ...integers.calibration import positive_levels
from ...integers.grids import get
from ..base import Tick

if TYPE_CHECKING:
    from torch import nn

LAYERS = ("conv1", "conv2", "conv3", "linear")
RULES = tuple(rule.name for rule in CALIBRATORS)
BITS = (8, 4, 3)


class Scheme(NamedTuple):
    """``along``: what of the weights shares a scale. ``zero_point``: inputs with a zero point, on all codes."""

    along: str
    zero_point: bool


SCHEMES = (Scheme("tensor", False), Scheme("tensor", True), Scheme("channel", False), Scheme("channel", True))


class Through(NamedTuple):
    """Training through quantisers: from which bits and rule, weights and inputs one symmetric scale each; learned?"""

    bits: int
    rule: str
    learned: bool


THROUGH = (
    Through(4, "entropy", False),
    Through(4, "entropy", True),
)
FEWER, MORE = (1024, 1500, 2000), (2048, 4096)  # bins from which entropy keeps the images' range in INT4, and does not


@dataclass(frozen=True)
class Params:
    """``epochs``, ``batch``, ``lr``, ``momentum``: the FP32 training; ``seeds``: how many such runs.

    ``bins``: of a histogram at first. ``collect``: images of a calibration batch. ``schemes``: how many are tried with
    the networks after the first. ``qat_lr``: the learning rate of the epoch through the quantisers; ``every``: steps of
    it between two evaluations.
    """

    epochs: int = 16
    batch: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    seeds: int = 5
    bins: int = 2048
    collect: int = 256
    schemes: int = len(SCHEMES)
    qat_lr: float = 0.01
    every: int = 1


QUICK = Params(epochs=3, seeds=4, schemes=1, every=11)


def grid_names(bits: int, zero_point: bool) -> tuple[str, str]:
    """The grids of weights and of inputs: symmetric ones, for inputs with a zero point all codes, unsigned."""
    return f"int{bits}", f"uint{bits}" if zero_point else f"int{bits}"


def run(params: Params, tick: Tick) -> Arrays:
    """Train, calibrate, quantise and train through it, a seed after another; the arrays begin with the seed."""
    from ...training.loop import one_thread

    with one_thread():
        runs = [one_run(params, seed, tick) for seed in range(params.seeds)]
    found = {name: np.stack([run_[name] for run_ in runs]) for name in runs[0] if name not in FIRST_ONLY}
    return {**found, **{name: runs[0][name] for name in FIRST_ONLY}, "levels": levels()}


FIRST_ONLY = (
    "amax", "kept", "counts", "widths", "divergences", "weights", "biases", "images", "hidden", "steps", "tested",
)  # fmt: skip


def levels() -> np.ndarray:
    """How many levels magnitudes have, by bits and by whether inputs have a zero point: int64 (bits, 2)."""
    return np.array([[positive_levels(get(grid_names(b, z)[1])) for z in (False, True)] for b in BITS])


def one_run(params: Params, seed: int, tick: Tick) -> Arrays:
    """One network and everything about it."""
    import torch

    from ... import training
    from ...nn import observe

    def part(fraction: float, text: str) -> None:
        tick((seed + fraction) / params.seeds, text)

    train, test = training.digits("train"), training.digits("test")
    model = training.digits_net(seed)
    recipe = training.Recipe(params.epochs, params.batch, params.lr, params.momentum, seed)
    training.train(model, train, recipe, progress=lambda done, of: part(0.3 * done / of, f"training, step {done}"))
    images, _ = training.tensors(train)
    seen = observe(model, torch.split(images, params.collect), params.bins)
    part(0.35, "calibration")
    logits, right, loss = evaluate(model)
    found: Arrays = {
        "fp32_right": np.array(right),
        "fp32_loss": np.array(loss),
        **quantised(
            model,
            seen,
            logits,
            params.schemes if seed else len(SCHEMES),
            lambda done: part(0.5 + 0.2 * done, "post-training quantisation"),
        ),
        **trained_through(model, seen, params, seed, lambda done: part(0.7 + 0.3 * done, "training through integers")),
    }
    if seed:
        return found
    size = max(len(h.counts) for h in seen.values())
    tested, _ = training.tensors(test)
    layer: Any = model[-1]
    return found | {
        "amax": ranges(seen)[None],
        "kept": np.array([kept(images.numpy(), bins) for bins in FEWER + MORE]),
        "counts": np.stack([np.pad(h.counts, (0, size - len(h.counts))) for h in seen.values()]),
        "widths": np.array([h.width for h in seen.values()]),
        "divergences": np.stack([padded(seen[name].divergences("int4")[1], size) for name in LAYERS]),
        "weights": layer.weight.detach().numpy().copy(),
        "biases": layer.bias.detach().numpy().copy(),
        "images": tested.numpy(),
        "hidden": hidden(model, tested),
        "tested": np.array([len(test.labels)]),
    }


def kept(images: np.ndarray, bins: int) -> float:
    """The share of the range of images that the entropy rule keeps in INT4, by the bins of the histogram."""
    seen = Histogram(bins).collect(images)
    return seen.entropy("int4") / seen.max()


def padded(values: np.ndarray, size: int) -> np.ndarray:
    """Values with NaN behind them, up to a length."""
    return np.pad(values, (0, size - len(values)), constant_values=np.nan)


def hidden(model: nn.Module, images: Any) -> np.ndarray:
    """The inputs of the last layer, float32 (images, features)."""
    import torch

    with torch.no_grad():
        features: np.ndarray = torch.nn.Sequential(*list(model.children())[:-1])(images).numpy()
    return features


def ranges(seen: dict[str, Histogram]) -> np.ndarray:
    """The largest magnitude by bits, signed or not, rule and layer: float64 (bits, 2, rules, layers)."""
    return np.array(
        [
            [[[rule.amax(seen[x], grid_names(b, z)[1]) for x in LAYERS] for rule in CALIBRATORS] for z in (False, True)]
            for b in BITS
        ]
    )


def evaluate(model: nn.Module) -> tuple[np.ndarray, int, float]:
    """On the test digits: logits, how many are right, and the mean cross-entropy in nats."""
    import torch

    from ... import training

    images, labels = training.tensors(training.digits("test"))
    with torch.no_grad():
        logits = model(images)
        loss = torch.nn.functional.cross_entropy(logits.double(), labels)
    return logits.numpy(), int((logits.argmax(1) == labels).sum()), float(loss)


def quantised(model: nn.Module, seen: dict[str, Histogram], logits: np.ndarray, schemes: int, tick: Any) -> Arrays:
    """Post-training quantisation by bits, scheme and rule: right answers, loss, relative error of the logits.

    NaN in the schemes after the first so many.
    """
    from ...nn import Quantization, fake_quantized

    shape = (len(BITS), len(SCHEMES), len(RULES))
    right, losses, errors = np.full((3, *shape), np.nan)
    for b, bits in enumerate(BITS if schemes == len(SCHEMES) else BITS[:2]):
        tick(b / len(BITS))
        for s, (along, zero_point) in enumerate(SCHEMES[:schemes]):
            weights, inputs = grid_names(bits, zero_point)
            for r, rule in enumerate(RULES):
                how = Quantization(weights, inputs, along, rule, zero_point=zero_point)
                found, right[b, s, r], losses[b, s, r] = evaluate(fake_quantized(model, seen, how))
                errors[b, s, r] = np.linalg.norm(found - logits) / np.linalg.norm(logits)
    return {"right": right, "losses": losses, "errors": errors}


def trained_through(model: nn.Module, seen: dict[str, Histogram], params: Params, seed: int, tick: Any) -> Arrays:
    """One epoch through the quantisers for each of :data:`THROUGH`: right answers, loss by step."""
    from ... import training
    from ...nn import Quantization, fake_quantized

    data = training.digits("train")
    recipe = training.Recipe(1, params.batch, params.qat_lr, params.momentum, seed + 100)
    total = recipe.steps(len(data.labels))
    steps = sorted({*range(0, total, params.every), total})
    right, losses = np.zeros((len(THROUGH), len(steps)), np.int64), np.zeros((len(THROUGH), len(steps)))
    for i, (bits, rule, learned) in enumerate(THROUGH):
        tick(i / len(THROUGH))
        how = Quantization(f"int{bits}", f"int{bits}", "tensor", rule, learned=learned)
        through = fake_quantized(model, seen, how)
        reached = {0: evaluate(through)[1:]}

        def look(done: int, of: int, reached: dict[int, Any] = reached, through: nn.Module = through) -> None:
            if done in steps:
                reached[done] = evaluate(through)[1:]

        training.train(through, data, recipe, progress=look)
        right[i], losses[i] = zip(*(reached[step] for step in steps), strict=True)
    return {"qat_right": right, "qat_losses": losses, "steps": np.array(steps)}
