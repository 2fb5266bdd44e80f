"""Operands that occurred: weights, activations and gradients of the network of ``underflow``, after its training.

Its three kinds of products, each as the matrix product that a convolution becomes, K in the order of memory:

* forward, ``weights × activations``: conv3's outputs, K = 32 channels * 9 places of the filter;
* backward, ``weights × gradients``: the gradients of conv3's inputs, K = 64 channels * 9;
* ``activations × gradients``: the gradients of conv2's weights, K = images * 64 places: 65,536 with 1,024 images.

The gradients are those of the mean cross-entropy, times a loss scale: the power of two that brings the largest of them
between 1/2 and 1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ...hardware.cases import philox_bits
from .operands import FIRST, half

Array = np.ndarray[Any, Any]
REAL = ("weights × activations", "weights × gradients", "activations × gradients")
IMAGES = 1024
FEW = 128  # images whose places are rows of B, where K is not over the images
EPOCHS = 8


@lru_cache(maxsize=1)
def tensors(seed: int = 0) -> dict[str, Array]:
    """Train, and take one forward and backward pass of 1,024 images: float32 arrays (NCHW), gradients not yet scaled.

    ``x2``, ``g2``: conv2's inputs and the gradients of its outputs; ``x3``, ``g3``, ``w3``: conv3's, and its weights.
    """
    import torch

    from ... import training
    from ...training.loop import one_thread

    data = training.digits("train")
    model = training.digits_net(seed)
    training.train(model, data, training.Recipe(epochs=EPOCHS, seed=seed))
    images, labels = (t[:IMAGES] for t in training.tensors(data))
    kept: dict[str, Any] = {}

    def keep(name: str) -> Any:
        def hook(_layer: Any, inputs: Any, output: Any) -> None:
            output.retain_grad()
            kept["x" + name], kept["g" + name] = inputs[0], output

        return hook

    layers = training.layers(model)
    handles = [layers["conv" + name].register_forward_hook(keep(name)) for name in "23"]
    with one_thread():  # so that the gradients' bits do not depend on the machine's threads
        torch.nn.functional.cross_entropy(model(images), labels).backward()
    for handle in handles:
        handle.remove()
    found = {name: np.array((t if name[0] == "x" else t.grad).detach().numpy()) for name, t in kept.items()}
    return {**found, "w3": np.array(layers["conv3"].weight.detach().numpy())}  # type: ignore[operator]


def loss_scale(gradients: Array) -> int:
    """The exponent of the power of two that brings the largest gradient between 1/2 and 1."""
    return -int(np.frexp(np.abs(gradients).max())[1])


def patches(x: Array) -> Array:
    """The 3x3 neighbourhoods of every place, zeros around: (n, c, h, w) gives (n, h, w, c, 3, 3)."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3)).transpose(0, 2, 3, 1, 4, 5)


def matrices(kind: str, seed: int = 0) -> tuple[Array, Array]:
    """A and B of a kind with K as their last dimension, float32, all rows; the gradients with their loss scale."""
    t = tensors(seed)
    if kind == "activations × gradients":
        g = np.ldexp(t["g2"], loss_scale(t["g2"])).transpose(1, 0, 2, 3).reshape(t["g2"].shape[1], -1)
        return patches(t["x2"]).reshape(g.shape[1], -1).T, g
    if kind == "weights × activations":
        return t["w3"].reshape(len(t["w3"]), -1), patches(t["x3"][:FEW]).reshape(-1, t["w3"][0].size)
    g = patches(np.ldexp(t["g3"][:FEW], loss_scale(t["g3"])))[..., ::-1, ::-1]  # the filter goes backward
    w = t["w3"].transpose(1, 0, 2, 3)
    return w.reshape(len(w), -1), g.reshape(-1, w[0].size)


def chosen(kind: str, rows: int, log2_last: int, seed: int = 0) -> tuple[Array, Array]:
    """Some rows of A and B (rows, K), float32; K is the largest power of two that the layer and ``log2_last`` allow."""
    a, b = matrices(kind, seed)
    k = min(1 << log2_last, 1 << (a.shape[1].bit_length() - 1))
    picked = [x[drawn(x, rows, REAL.index(kind)), :k] for x in (a, b)]
    return picked[0], picked[1]


def drawn(x: Array, rows: int, key: int) -> Array:
    """The places of some rows, drawn among those that are not zero in FP16 throughout their shortest product."""
    alive = np.flatnonzero((half(x[:, :FIRST]) & np.uint16(0x7FFF)).any(axis=1))
    order = np.argsort(philox_bits(key, alive.size), kind="stable")
    return np.sort(alive[order[:rows]])


def make(kind: str, rows: int, log2_last: int, seed: int = 0) -> tuple[Array, Array]:
    """The same as FP16 codes, to nearest even, as mixed precision training casts before it multiplies."""
    a, b = chosen(kind, rows, log2_last, seed)
    return half(a), half(b)
