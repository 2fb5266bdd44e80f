"""The runs: two tasks with their natural losses, static scales from 2^0 up, a dynamic scale, and FP32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...hardware.cases import Arrays
from ..base import Tick

if TYPE_CHECKING:
    from torch import Tensor

TASKS = ("autoencoder", "classifier")
SCALE = 16  # the exponent of a scale between underflow and overflow
KEPT = ("weights", "exp_avg", "exp_avg_sq", "new weights")  # of a kept step


@dataclass(frozen=True)
class Params:
    """``steps``, ``batch``, ``lr``: of the autoencoder and of the classifier. ``every``: binades between two scales.

    ``encoder``: the widths from 64 pixels to the code, which the decoder takes backwards; ``hidden``: the classifier's.
    ``growth_interval``: of the dynamic scale (torch's default is 2,000, longer than these runs). ``gpu``: whose matrix
    products; None: this machine's FP32 products. ``count``: steps between two counts of zeros. ``seeds``: runs over
    which scores are compared, of the scales 1 and SCALE and of FP32; all others are of the first seed alone.
    """

    steps: tuple[int, int] = (400, 300)
    batch: tuple[int, int] = (512, 128)
    lr: tuple[float, float] = (3e-3, 3e-3)
    every: int = 2
    encoder: tuple[int, ...] = (64, 48, 40, 32, 24, 16, 8)
    hidden: tuple[int, ...] = (48, 48)
    growth_interval: int = 20
    gpu: str | None = "H100"
    count: int = 10
    seeds: int = 3

    def kept(self, which: int) -> tuple[int, int, int]:
        """The steps of which everything is kept: the first, a middle and the last that are counted."""
        last = (self.steps[which] - 1) // self.count
        return 0, last // 2 * self.count, last * self.count

    @property
    def exponents(self) -> tuple[int, ...]:
        """The static scales' base-2 logarithms."""
        return tuple(range(0, 25, self.every))

    @property
    def layers(self) -> int:
        """How many layers the autoencoder has."""
        return 2 * len(self.encoder) - 2


QUICK = Params(steps=(90, 50), lr=(5e-3, 3e-3), every=8, growth_interval=6, gpu=None)


class Job(NamedTuple):
    """A task: the network's sizes, its batches' inputs and targets, the natural loss, and the score of a network."""

    sizes: tuple[int, ...]
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Any, Any], Any]
    score: Callable[[Any], float]


def densities(split: str) -> Tensor:
    """Digits as densities: where the ink is, each image's 64 values adding up to 1; float32 (n, 64)."""
    from ... import training

    images = training.tensors(training.digits(split))[0].flatten(1)
    return images / images.sum(1, keepdim=True)


def autoencoder(params: Params) -> Job:
    """Squeeze the density of a digit's ink through a few numbers and restore it; the loss is ``nn.MSELoss()``'s mean.

    The score is the explained variance of the test images: 0 is what the mean image explains, 1 all.
    """
    from torch.nn.functional import mse_loss

    inputs, tests = densities("train"), densities("test")
    spread = float(tests.var(0, unbiased=False).mean())
    sizes = (*params.encoder, *params.encoder[-2::-1])

    def score(model: Any) -> float:
        return 1 - float(mse_loss(model(tests), tests).detach()) / spread

    return Job(sizes, inputs, inputs, mse_loss, score)


def classifier(params: Params) -> Job:
    """Read the digits; the loss is ``nn.CrossEntropyLoss()``'s mean, the score the accuracy on the test images."""
    from torch.nn.functional import cross_entropy

    from ... import training

    images, labels = training.tensors(training.digits("train"))
    tests, answers = training.tensors(training.digits("test"))

    def score(model: Any) -> float:
        return float((model(tests.flatten(1)).argmax(1) == answers).double().mean())

    return Job((64, *params.hidden, 10), images.flatten(1), labels, cross_entropy, score)


class Trained(NamedTuple):
    """One run. ``zeros``: float64 (counts, layers), shares of exact zeros in the gradients of the layers' outputs;
    ``scales``, ``skipped``: by step; ``first``: the gradient of the outputs as stored in the first step; ``kept``:
    float32 (kept steps, KEPT, n).
    """

    losses: np.ndarray
    score: float
    zeros: np.ndarray
    scales: np.ndarray
    skipped: np.ndarray
    first: np.ndarray
    kept: np.ndarray


def train(job: Job, params: Params, which: int, scaler: Any, half: bool, seed: int = 0) -> Trained:
    """Train one network with a loss scaler, on one thread; Adam on the FP32 master weights."""
    from ... import nn as lab
    from ...training.chain import Chain
    from ...training.loop import one_thread
    from ...training.optimizers import Adam
    from ...training.tasks import epochs

    steps, depth = params.steps[which], len(job.sizes) - 1
    losses, scales, skipped = np.zeros(steps, np.float32), np.zeros(steps), np.zeros(steps, bool)
    zeros, first, rows = [], np.empty(0), []
    with one_thread():
        model = Chain(job.sizes, seed, half)
        optimizer = Adam(model.parameters(), params.lr[which])
        for step, index in enumerate(epochs(len(job.inputs), params.batch[which], seed, steps)):
            model.kept = {} if half and step % params.count == 0 else None
            products = lab.emulate(params.gpu, "fp16") if half and params.gpu else nullcontext()
            optimizer.zero_grad()
            with products:
                loss = job.loss(model(job.inputs[index]), job.targets[index])
                scaler.scale(loss).backward()
            losses[step], scales[step] = loss.item(), scaler.get_scale()
            scaler.unscale_(optimizer)
            skipped[step] = scaler.found_inf(optimizer)
            before = held(model, optimizer) if step in params.kept(which) else []
            scaler.step(optimizer)
            scaler.update()
            if before:
                rows.append(np.stack([*before, held(model, optimizer)[0]]))
            if model.kept:
                kept = [model.kept[f"layer {i + 1}"] for i in range(depth)]
                zeros.append([float((g == 0).double().mean()) for g in kept])
                first = first if first.size else kept[-1].numpy().copy()
        model.kept = None
        score = job.score(model)
    shares = np.array(zeros).reshape(-1, depth)
    return Trained(losses, score, shares, scales, skipped, first, np.stack(rows))


def held(model: Any, optimizer: Any) -> list[np.ndarray]:
    """The master weights and Adam's two states, float32 (n,), zeros before its first step."""
    state = optimizer.state[model.flat]
    found = [model.flat.detach(), *(state.get(name, 0 * model.flat.detach().abs()) for name in KEPT[1:3])]
    return [np.array(x.numpy()) for x in found]


def run(params: Params, tick: Tick) -> Arrays:
    """Every static scale, the dynamic one, and FP32, for both tasks.

    ``TASK_by_seed``: scores, float64 (seeds, 3), of the scales 1 and 2^SCALE and of FP32; ``TASK_unscaled``: float64
    (seeds, layers), shares of zeros with the scale 1; ``TASK_kept``: float32 (runs, kept steps, KEPT, n).
    """
    from ...training.scalers import DynamicScaler, StaticScaler

    arrays: Arrays = {}
    runs = len(params.exponents) + 2
    for which, name in enumerate(TASKS):
        job = (autoencoder, classifier)[which](params)
        static = []
        for i, exponent in enumerate(params.exponents):
            tick(0.95 * (which + 0.9 * i / runs) / 2, f"{name}, scale 2^{exponent}")
            static.append(train(job, params, which, StaticScaler(2.0**exponent), half=True))
        dynamic = train(job, params, which, DynamicScaler(growth_interval=params.growth_interval), half=True)
        fp32 = train(job, params, which, StaticScaler(1.0), half=False)
        found = {
            "score": np.array([*(t.score for t in static), dynamic.score, fp32.score]),
            "skipped": np.array([t.skipped.mean() for t in static]),
            "skipped_steps": np.stack([t.skipped for t in (*static, dynamic, fp32)]),
            "zeros": np.stack([t.zeros.mean(axis=0) for t in static]),
            "counted": np.stack([t.zeros for t in static]),
            "kept": np.stack([t.kept for t in (*static, dynamic, fp32)]),
            "first": np.stack([t.first for t in static]).astype(np.float32),
            "losses": np.stack([t.losses for t in static if t.losses.size]),
            "losses_dynamic": dynamic.losses,
            "losses_fp32": fp32.losses,
            "trace": dynamic.scales,
            "overflows": dynamic.skipped,
        }
        middle = static[params.exponents.index(SCALE)].score
        scores, zeros = [[static[0].score, middle, fp32.score]], [static[0].zeros.mean(axis=0)]
        for seed in range(1, params.seeds):
            tick(0.95 * (which + 0.9 + 0.03 * seed) / 2, f"{name}, seed {seed}")
            some = [train(job, params, which, StaticScaler(2.0**e), half=True, seed=seed) for e in (0, SCALE)]
            plain = train(job, params, which, StaticScaler(1.0), half=False, seed=seed)
            scores.append([*(t.score for t in some), plain.score])
            zeros.append(some[0].zeros.mean(axis=0))
        found |= {"by_seed": np.array(scores), "unscaled": np.stack(zeros)}
        arrays |= {f"{name}_{key}": value for key, value in found.items()}
        arrays[f"{name}_first_fp32"] = first_gradient(job, params, which)
    return arrays


def first_gradient(job: Job, params: Params, which: int) -> np.ndarray:
    """The gradient of the first batch's natural loss with respect to the outputs, before it is stored: float32."""
    from ... import nn as lab
    from ...training.chain import Chain
    from ...training.loop import one_thread
    from ...training.tasks import epochs

    index = next(epochs(len(job.inputs), params.batch[which], 0, 1))
    products = lab.emulate(params.gpu, "fp16") if params.gpu else nullcontext()
    with one_thread(), products:
        outputs = Chain(job.sizes)(job.inputs[index]).detach().requires_grad_()
        job.loss(outputs, job.targets[index]).backward()
    assert outputs.grad is not None
    return np.array(outputs.grad.numpy())
