"""Two tasks with their natural losses, how a network is trained on one, and a step of that by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..frame import Params

if TYPE_CHECKING:
    from torch import Tensor

KEPT = ("weights", "exp_avg", "exp_avg_sq", "new weights")  # of a kept step


def kept_steps(params: Params, which: int) -> tuple[int, int, int]:
    """The steps of which everything is kept: the first, a middle and the last that are counted."""
    last = (params.steps[which] - 1) // params.count
    return 0, last // 2 * params.count, last * params.count


class Job(NamedTuple):
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


JOBS = {"autoencoder": autoencoder, "classifier": classifier}


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
    from ...training.optimizers import Adam
    from ...training.tasks import epochs

    steps, depth = params.steps[which], len(job.sizes) - 1
    losses, scales, skipped = np.zeros(steps, np.float32), np.zeros(steps), np.zeros(steps, bool)
    zeros, first, rows = [], np.empty(0), []
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
        before = state_vectors(model, optimizer) if step in kept_steps(params, which) else []
        scaler.step(optimizer)
        scaler.update()
        if before:
            rows.append(np.stack([*before, state_vectors(model, optimizer)[0]]))
        if model.kept:
            kept = [model.kept[f"layer {i + 1}"] for i in range(depth)]
            zeros.append([float((g == 0).double().mean()) for g in kept])
            first = first if first.size else kept[-1].numpy().copy()
    model.kept = None
    score = job.score(model)
    shares = np.array(zeros).reshape(-1, depth)
    return Trained(losses, score, shares, scales, skipped, first, np.stack(rows))


def state_vectors(model: Any, optimizer: Any) -> list[np.ndarray]:
    """The master weights and Adam's two states, float32 (n,), zeros before its first step."""
    state = optimizer.state[model.flat]
    vectors = [model.flat.detach(), *(state.get(name, 0 * model.flat.detach().abs()) for name in KEPT[1:3])]
    return [np.array(x.numpy()) for x in vectors]


def first_gradient(job: Job, params: Params, which: int) -> np.ndarray:
    """The gradient of the first batch's natural loss with respect to the outputs, before it is stored: float32."""
    from ... import nn as lab
    from ...training.chain import Chain
    from ...training.tasks import epochs

    index = next(epochs(len(job.inputs), params.batch[which], 0, 1))
    products = lab.emulate(params.gpu, "fp16") if params.gpu else nullcontext()
    with products:
        outputs = Chain(job.sizes)(job.inputs[index]).detach().requires_grad_()
        job.loss(outputs, job.targets[index]).backward()
    assert outputs.grad is not None
    return np.array(outputs.grad.numpy())


# --- the same steps, by hand -----------------------------------------------------------------------------------
def product(gpu: str | None, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A B of float32 matrices by torch, or of operands rounded to FP16 in a GPU's bits."""
    import torch

    if gpu is None:
        return np.asarray(torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy())
    from ...tensorcore import matmul

    return np.asarray(matmul(half(a), half(b), gpu=gpu, inputs="fp16"))


def half(x: np.ndarray) -> np.ndarray:
    """float32 values as FP16 holds them, by numpy's cast."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def step_by_hand(
    job: Job, kept: dict[str, np.ndarray], index: np.ndarray, step: int, scale: float, gpu: str | None, lr: float
) -> tuple[np.ndarray, list[float]]:
    """The weights after a step (Adam's ``step`` from 1), and the shares of zeros by layer; ``scale`` 0: all in FP32.

    Without autograd: of torch are tanh, the loss with its gradient, sums over a batch and, without a GPU, products.
    """
    import torch

    store = half if scale else np.asarray
    flat, parts, done = store(kept["weights"]), [], 0
    for n, m in itertools.pairwise(job.sizes):
        parts.append((flat[done : done + n * m].reshape(m, n), flat[done + n * m : done + n * m + m]))
        done += n * m + m
    inputs, curves, x = [], [], np.asarray(job.inputs[index].numpy())
    for i, (weight, bias) in enumerate(parts):
        inputs.append(x)
        if gpu is None:
            x = torch.addmm(*(torch.from_numpy(v) for v in (bias, x, weight.T))).numpy()
        else:
            x = product(gpu, x, weight.T) + bias
        x = store(x)
        if i < len(parts) - 1:
            curves.append(torch.tanh(torch.from_numpy(x)))
            x = store(curves[-1].numpy())
    outputs = torch.from_numpy(x.copy()).requires_grad_()
    (job.loss(outputs, job.targets[index]) * torch.tensor(scale or 1.0)).backward()
    assert outputs.grad is not None
    slope, gradients, shares = outputs.grad.numpy(), [], []
    with np.errstate(all="ignore"):
        for i in reversed(range(len(parts))):
            slope = store(slope)
            shares.append(float((slope == 0).mean()))
            gradients += [torch.from_numpy(slope).sum(0).numpy(), product(gpu, slope.T, inputs[i]).ravel()]
            if i:
                back = torch.from_numpy(store(product(gpu, slope, parts[i][0])))
                slope = torch.ops.aten.tanh_backward(back, curves[i - 1]).numpy()
        gradient = store(np.concatenate(gradients[::-1]))
        if not np.isfinite(gradient).all():
            return kept["weights"], shares[::-1]
        return adam(kept, gradient * np.float32(1 / (scale or 1.0)), step, lr), shares[::-1]


def adam(kept: dict[str, np.ndarray], g: np.ndarray, step: int, lr: float) -> np.ndarray:
    """The weights after Adam's step, in numpy's float32, each operation rounded by itself."""
    single = np.float32
    m = kept["exp_avg"] + (g - kept["exp_avg"]) * single(1 - 0.9)
    v = kept["exp_avg_sq"] * single(0.999) + g * single(1 - 0.999) * g
    root = np.sqrt(v) / single((1 - 0.999**step) ** 0.5) + single(1e-8)
    return np.asarray(kept["weights"] + m * single(-lr / (1 - 0.9**step)) / root)
