"""One training step, written once: products, casts, additions, multiplications and comparisons, nothing else.

Each of these has one right result, or on a Tensor Core one that the lab's model gives, so that all bits of a whole
training run are knowable. The network is three products with a scaled skip around the second:

    z1 = x W1,  a1 = relu(z1),  z2 = a1 W2,  a2 = relu(z2) + 0.75 a1,  y = a2 W3,  loss = sum (y - t)^2 / (2 batch)

in FP16 with FP32 master weights, a dynamic loss scale and momentum. Left out is what would make a bit unknowable: a
bias (its gradient is a sum whose order a library chooses), a mean or a softmax, ``torch.optim`` (fused multiply-adds),
square roots, and ``torch.relu`` (the sign of its zero). Every operation is a call of its own, so that nothing
contracts.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

SKIP = 0.75  # the factor of the skip: one that FP16 holds, so that no library rounds it
MOMENTUM = float(np.float32(0.9))
CLASSES = 16  # outputs: ten digits and six that stay zero, so that every product has whole tiles


class Ops(Protocol):
    """The operations of a step, on arrays that are FP16 or FP32; each rounds once, to nearest with ties to even."""

    def product(self, a: Any, b: Any) -> Any: ...  # noqa: D102  (FP16 times FP16, summed in FP32, stored as FP16)
    def turned(self, x: Any) -> Any: ...  # noqa: D102  (the transpose)
    def half(self, x: Any) -> Any: ...  # noqa: D102  (FP32 to FP16)
    def single(self, x: Any) -> Any: ...  # noqa: D102  (FP16 to FP32)
    def add(self, a: Any, b: Any) -> Any: ...  # noqa: D102  (two of one format)
    def subtract(self, a: Any, b: Any) -> Any: ...  # noqa: D102  (two of one format)
    def times(self, x: Any, factor: float) -> Any: ...  # noqa: D102  (a number that x's format holds)
    def where_positive(self, z: Any, x: Any) -> Any: ...  # noqa: D102  (x where z > 0, else +0)
    def finite(self, x: Any) -> bool: ...  # noqa: D102  (whether every element is)


class State(NamedTuple):
    """What a run carries from step to step, FP32: three weights and their velocities."""

    weights: tuple[Any, Any, Any]
    velocities: tuple[Any, Any, Any]


class Pass(NamedTuple):
    """All tensors of a forward and backward pass, in the order in which they are computed; FP16 but for ``error``."""

    z1: Any
    a1: Any
    z2: Any
    a2: Any
    y: Any
    error: Any
    dy: Any
    g3: Any
    da2: Any
    dz2: Any
    g2: Any
    da1: Any
    dz1: Any
    g1: Any

    @property
    def gradients(self) -> tuple[Any, Any, Any]:
        """Of the three weights, FP16, times the loss scale."""
        return self.g1, self.g2, self.g3


def forward_and_backward(ops: Ops, weights: tuple[Any, Any, Any], x: Any, target: Any, scale: float) -> Pass:
    """The pass of one batch: ``x`` FP16 (batch, inputs), ``target`` FP32 (batch, 16), ``scale`` a power of two."""
    h1, h2, h3 = (ops.half(w) for w in weights)
    z1 = ops.product(x, h1)
    a1 = ops.where_positive(z1, z1)
    z2 = ops.product(a1, h2)
    a2 = ops.add(ops.where_positive(z2, z2), ops.times(a1, SKIP))
    y = ops.product(a2, h3)
    error = ops.subtract(ops.single(y), target)
    dy = ops.half(ops.times(error, scale / len(x)))
    g3 = ops.product(ops.turned(a2), dy)
    da2 = ops.product(dy, ops.turned(h3))
    dz2 = ops.where_positive(z2, da2)
    g2 = ops.product(ops.turned(a1), dz2)
    da1 = ops.add(ops.product(dz2, ops.turned(h2)), ops.times(da2, SKIP))
    dz1 = ops.where_positive(z1, da1)
    g1 = ops.product(ops.turned(x), dz1)
    return Pass(z1, a1, z2, a2, y, error, dy, g3, da2, dz2, g2, da1, dz1, g1)


def logits(ops: Ops, weights: tuple[Any, Any, Any], x: Any) -> Any:
    """The network's outputs alone, FP16."""
    h1, h2, h3 = (ops.half(w) for w in weights)
    z1 = ops.product(x, h1)
    a1 = ops.where_positive(z1, z1)
    z2 = ops.product(a1, h2)
    return ops.product(ops.add(ops.where_positive(z2, z2), ops.times(a1, SKIP)), h3)


def update(ops: Ops, state: State, gradients: tuple[Any, Any, Any], scale: float, lr: float) -> State:
    """The state after a step: unscale, then v = momentum v + g and w = w - lr v, in FP32, an operation at a time."""
    weights, velocities = [], []
    for w, v, g in zip(*state, gradients, strict=True):
        v = ops.add(ops.times(v, MOMENTUM), ops.times(ops.single(g), 1 / scale))
        weights.append(ops.subtract(w, ops.times(v, lr)))
        velocities.append(v)
    return State((weights[0], weights[1], weights[2]), (velocities[0], velocities[1], velocities[2]))
