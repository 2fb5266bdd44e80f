"""The perceptron's whole training without autograd, emulation, policies or optimizers: casts, products, single sums.

Of torch only the loss is used, with its gradient of the logits, and the sum over a batch that is a bias's gradient.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import numeric

if TYPE_CHECKING:
    from ...training.tasks import Task

GPU = "H100"


class Recipe(NamedTuple):
    """A policy as this module reads it.

    ``forward``, ``gradient``: formats of a product's operands, and of the one that is a gradient in the backward pass.
    ``stored``: of its result, of biases and activations. ``loss``: of the log-probabilities' mean, and ``held``: of
    weights, velocities and all that updates them. ``scale``: the loss scale.
    """

    forward: str
    gradient: str
    stored: str
    loss: str = "fp32"
    held: str = "fp32"
    scale: float = 1.0


RECIPES = {
    "tf32": Recipe("tf32", "tf32", "fp32"),
    "fp16": Recipe("fp16", "fp16", "fp16", scale=2.0**16),
    "bf16": Recipe("bf16", "bf16", "bf16"),
    "fp8_hybrid": Recipe("e4m3", "e5m2", "fp32"),
    "pure_fp16": Recipe("fp16", "fp16", "fp16", "fp16", "fp16"),
    "pure_bf16": Recipe("bf16", "bf16", "bf16", "bf16", "bf16"),
}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
HISTORY = 16  # amaxes from which an FP8 operand's scale comes


class Trained(NamedTuple):
    """``losses``: float32 (steps,); ``weights``: all at the end, float32 (n,); ``top1``: on the held-out data."""

    losses: np.ndarray
    weights: np.ndarray
    top1: float


def narrow(values: np.ndarray, fmt: str) -> np.ndarray:
    """Values rounded to a format; FP8 saturates, and TF32 the Tensor Core truncates itself."""
    if fmt in ("fp32", "tf32"):
        return values
    return np.asarray(numeric.quantize(values, fmt, overflow="saturate" if fmt in LARGEST else None))


class Products:
    """Products of a policy, with the scales of FP8 operands: each from the largest of its last 16 magnitudes."""

    def __init__(self) -> None:
        self.seen: dict[tuple[object, ...], deque[float]] = {}

    def __call__(self, place: tuple[object, ...], a: np.ndarray, b: np.ndarray, formats: tuple[str, str]) -> np.ndarray:
        """A B of float32 matrices, in the FP32 of the accumulator."""
        from ...tensorcore import matmul

        scales = [self.scale((*place, side), v, f) for side, v, f in zip("ab", (a, b), formats, strict=True)]
        x, y = (narrow(v * np.float32(s), f) for v, s, f in zip((a, b), scales, formats, strict=True))
        product = matmul(np.ascontiguousarray(x), np.ascontiguousarray(y), gpu=GPU, inputs=formats)
        return np.asarray(product * np.float32(1 / (scales[0] * scales[1])))

    def scale(self, role: tuple[object, ...], values: np.ndarray, fmt: str) -> float:
        """1 but for FP8; the first time there is nothing to go by."""
        if fmt not in LARGEST:
            return 1.0
        seen = self.seen.setdefault(role, deque(maxlen=HISTORY))
        largest = max(seen, default=0.0)
        seen.append(float(np.abs(values).max()))
        return 2.0 ** math.floor(math.log2(LARGEST[fmt] / largest)) if largest else 1.0


def train(policy: str, task: Task, steps: int, lr: float, momentum: float) -> Trained:
    """The run of seed 0 under a policy other than FP32, with momentum."""
    recipe, products = RECIPES[policy], Products()
    weights = [narrow(p.detach().numpy().copy(), recipe.held) for p in task.model(0).parameters()]
    velocities = [np.zeros_like(w) for w in weights]
    scale, losses = recipe.scale, []
    for batch in task.batches(0, steps):
        layers = list(zip(weights[::2], weights[1::2], strict=True))
        inputs, outputs = forward(layers, batch.inputs.numpy(), recipe, products)
        loss, slope = loss_and_slope(outputs[-1], batch.targets, recipe, scale)
        losses.append(loss)
        gradients: list[np.ndarray] = []
        pair = recipe.gradient, recipe.forward
        for i in reversed(range(len(layers))):
            weight = narrow(products((i, "weight"), slope.T, inputs[i], pair), recipe.stored)
            gradients = [weight, summed(slope, recipe.stored), *gradients]
            if i:
                back = narrow(products((i, "input"), slope, narrow(layers[i][0], recipe.stored), pair), recipe.stored)
                slope = np.where(outputs[i - 1] > 0, back, np.float32(0))
        if recipe.scale == 1:
            pass
        elif all(np.isfinite(g).all() for g in gradients):
            gradients = [g * np.float32(1 / scale) for g in gradients]
        else:
            scale /= 2
            continue
        weights, velocities = updated(weights, velocities, gradients, recipe, lr, momentum)
    answers, right = 0, 0
    for batch in task.held_out():
        layers = list(zip(weights[::2], weights[1::2], strict=True))
        read = forward(layers, batch.inputs.numpy(), recipe, products)[1][-1].argmax(1)
        answers, right = answers + len(read), right + int((read == batch.targets.numpy()).sum())
    return Trained(np.array(losses, np.float32), np.concatenate([w.ravel() for w in weights]), right / answers)


def forward(
    layers: list[tuple[np.ndarray, np.ndarray]], x: np.ndarray, recipe: Recipe, products: Products
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The inputs and the outputs of every layer, as they are stored.

    A product is summed from zero in the GPU's FP32 accumulator, the bias is added there in FP32, and the sum is stored
    once.
    """
    inputs, outputs = [narrow(x, recipe.stored)], []
    for i, (weight, bias) in enumerate(layers):
        given = narrow(weight, recipe.stored).T
        product = products((i, "forward"), inputs[-1], given, (recipe.forward, recipe.forward))
        outputs.append(narrow(product + narrow(bias, recipe.stored), recipe.stored))
        inputs.append(np.maximum(outputs[-1], np.float32(0)))
    return inputs, outputs


def tensor(values: np.ndarray, fmt: str) -> Any:
    """float32 values that a format holds, as torch's tensor of it."""
    import torch

    return torch.from_numpy(values.copy()).to({"fp16": torch.float16, "bf16": torch.bfloat16}.get(fmt, torch.float32))


def loss_and_slope(logits: np.ndarray, targets: Any, recipe: Recipe, scale: float) -> tuple[float, np.ndarray]:
    """The loss, and the gradient of the loss times the scale with respect to the logits, as it is stored.

    Log-probabilities have the logits' format, and autocast takes their mean in FP32.
    """
    import torch

    z = tensor(logits, recipe.stored).requires_grad_()
    likely = torch.log_softmax(z, 1)
    loss = torch.nn.functional.nll_loss(likely if recipe.loss == recipe.stored else likely.float(), targets)
    (loss * torch.tensor(scale)).backward()
    return float(loss.detach()), np.asarray(z.grad.float().numpy())


def summed(slope: np.ndarray, fmt: str) -> np.ndarray:
    """A bias's gradient: torch's sum over the batch in FP32, stored once.

    In FP32, as autograd asks for it: a sum of half tensors adds its FP32 partial sums in another order.
    """
    import torch

    return narrow(np.asarray(tensor(slope, fmt).sum(0, dtype=torch.float32).numpy()), fmt)


def updated(
    held: list[np.ndarray], velocities: list[np.ndarray], gradients: list[np.ndarray], recipe: Recipe, lr: float,
    momentum: float,
) -> tuple[list[np.ndarray], list[np.ndarray]]:  # fmt: skip
    """Weights and velocities after a step of momentum, every product and sum rounded by itself."""
    keep, rate = np.float32(momentum), np.float32(-lr)
    weights, moved = [], []
    for w, v, g in zip(held, velocities, gradients, strict=True):
        velocity = once(np.add, once(np.multiply, v, keep, recipe.held), g, recipe.held)
        weights.append(once(np.add, w, once(np.multiply, velocity, rate, recipe.held), recipe.held))
        moved.append(velocity)
    return weights, moved


def once(operation: Any, a: np.ndarray, b: Any, fmt: str) -> np.ndarray:
    """An operation of float32 numbers rounded once: numpy's own in FP32; through float64 to a half format, whose
    p = 11 is so small that the second rounding is harmless (53 >= 2 p + 2).
    """
    wide = np.float32 if fmt == "fp32" else np.float64
    result = operation(np.asarray(a, wide), np.asarray(b, wide))
    return np.asarray(result if fmt == "fp32" else numeric.quantize(result, fmt), np.float32)
