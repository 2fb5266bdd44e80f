"""The products of one training step through torch on a GPU, with operands that training reached.

Everything but the ``lab`` side runs with numpy and torch alone: the operands are those of a short FP32 training.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ...hardware.cases import Arrays, Case
from ..generations import product_case
from .data import LOSS_SCALE, Params

TRAINED = 11  # steps before the one whose operands are taken: an epoch
NAMES = (
    "layer 1, k = 64",
    "layer 2, k = 256",
    "gradient of layer 2's input, k = 256",
    "gradient of layer 2's weights, k = 128",
)


def halves(values: np.ndarray) -> np.ndarray:
    """FP16 codes of float32 values, rounded to nearest."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values).astype(np.float16).view(np.uint16)


@lru_cache(maxsize=2)
def operands(params: Params) -> dict[str, Arrays]:
    """A and B of products A B^T, FP16 codes: both layers forward, and the second one's gradients."""
    import torch
    from torch.nn.functional import cross_entropy

    from ...training import Momentum
    from ...training.loop import one_thread
    from ...training.tasks import DIGITS_MLP

    model = DIGITS_MLP.model(0)
    optimizer = Momentum(model, params.lr, params.momentum)
    with one_thread():
        for batch in DIGITS_MLP.batches(0, TRAINED + 1):
            x, seen = batch.inputs, []
            for layer in model.children():
                x = layer(x)
                if x.requires_grad:
                    x.retain_grad()
                seen.append(x)
            model.zero_grad()
            cross_entropy(x, batch.targets).backward()
            weights = [p.detach().numpy().copy() for p in model.parameters()]
            optimizer.step()
    slope = seen[2].grad
    assert isinstance(slope, torch.Tensor)
    gradient = slope.numpy() * np.float32(LOSS_SCALE)
    pixels, hidden = batch.inputs.numpy(), seen[1].detach().numpy()
    pairs = (pixels, weights[0]), (hidden, weights[2]), (gradient, weights[2].T), (gradient.T, hidden.T)
    return {name: {"a": halves(a), "b": halves(b)} for name, (a, b) in zip(NAMES, pairs, strict=True)}


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """The four products, stored as FP16 and as FP32; in which order a library takes a longer k is asked."""

    def inputs(name: str) -> Callable[[], Arrays]:
        return lambda: dict(operands(params)[name])

    return tuple(
        product_case(name, out, inputs(name), is_long=not name.endswith(" 64"))
        for name in NAMES
        for out in ("fp16", "fp32")
    )
