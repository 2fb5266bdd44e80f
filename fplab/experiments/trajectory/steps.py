"""A training run of products, casts, additions, multiplications and comparisons, and of nothing else.

Each of these has one right result, or on a Tensor Core one that the lab's model gives, so that all bits of the whole
run are knowable. The network is three products with a scaled skip around the second:

    z1 = x W1,  a1 = relu(z1),  z2 = a1 W2,  a2 = relu(z2) + 0.75 a1,  y = a2 W3,  loss = sum (y - t)^2 / (2 batch)

in FP16 with FP32 master weights, a dynamic loss scale and momentum. Left out is what would make a bit unknowable: a
bias (its gradient is a sum whose order a library chooses), a mean or a softmax, ``torch.optim`` (fused multiply-adds),
square roots, and ``torch.relu`` (the sign of its zero). Every operation is a call of its own, so that nothing
contracts. Each is written once, for tensors and for :class:`~fplab.hardware.programs.Rounded` values; the two differ
in a :class:`Backend`.
"""

from __future__ import annotations

import hashlib
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ... import numeric, seeds, tensorcore
from ...errors import LabError, own_integer
from ...hardware import programs, tensors
from ...hardware.cases import Arrays
from ...hardware.programs import Rounded
from ...training.data import digits
from ...training.scalers.machine import Machine

Array = np.ndarray[Any, Any]
PIXELS = 64
CLASSES = 16  # outputs: ten digits and six that stay zero, so that every product has whole tiles
SKIP = 0.75  # the factor of the skip: one that FP16 holds, so that no library rounds it
MOMENTUM = float(np.float32(0.9))
INIT_SCALE = 2.0**24  # too large, so that the run begins with skipped steps
GROWTH_INTERVAL = 20


@dataclass(frozen=True)
class Params:
    """``steps`` of ``batch`` digits; ``hidden``: the width of both hidden layers; ``rate``: the learning rate.

    Every k of the run's products is ``batch``, ``hidden``, 64 or 16: at most 256, so that a library has no reason to
    split it. All are multiples of 16.
    """

    steps: int = 400
    batch: int = 128
    hidden: int = 128
    rate: float = 0.03
    seed: int = 0

    def __post_init__(self) -> None:
        for name, most in (("batch", 256), ("hidden", 256)):
            own_integer(self, name, 0, 1 << 30)
            value = getattr(self, name)
            if not 16 <= value <= most or value % 16 or (name == "batch" and value & (value - 1)):
                what = "a power of two" if name == "batch" else "a multiple of 16"
                raise LabError(f"{name}={value} is not possible; allowed: {what} from 16 to {most}.")
        own_integer(self, "steps", 1, 1 << 30)

    @property
    def lr(self) -> float:
        """The learning rate as FP32 holds it."""
        return float(np.float32(self.rate))

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        return (PIXELS, self.hidden), (self.hidden, self.hidden), (self.hidden, CLASSES)

    def parts(self, weights: Array) -> list[Array]:
        ends = np.cumsum([rows * columns for rows, columns in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(weights, ends), self.shapes, strict=True)]


# --- the two ways to compute ------------------------------------------------------------------------------------
class Backend(NamedTuple):
    """What is not written once. ``load``: a float16 or float32 array as a tensor, or as values that round like one.

    ``product``: FP16 times FP16, summed in FP32, stored as FP16. ``cast``: to "fp16" or "fp32".
    """

    load: Callable[[Array], Any]
    product: Callable[[Any, Any], Any]
    cast: Callable[[Any, str], Any] = programs.cast


def by_lab(gpu: str, plan: tensorcore.Plan | None = None) -> Backend:
    """The lab's kernels, products with the bits of a GPU. ``plan``: another order of k than one chain."""

    def load(x: Array) -> Rounded:
        return Rounded(x.astype(np.float32), "fp16" if x.dtype == np.float16 else "fp32")

    def product(a: Rounded, b: Rounded) -> Rounded:
        found = tensorcore.matmul(a.values, b.values, gpu=gpu, inputs="fp16", store="fp16", plan=plan)
        return Rounded(found, "fp16")

    return Backend(load, product)


def by_torch(device: str, gpu: str = "H100") -> Backend:
    """torch's own operations on a device. A CPU has no Tensor Core: there the lab's model of ``gpu`` multiplies."""
    import torch

    def load(x: Array) -> Any:
        return torch.from_numpy(np.array(x)).to(device)

    def stand_in(a: Any, b: Any) -> Any:
        lab = by_lab(gpu)
        return load(lab.product(lab.load(a.numpy()), lab.load(b.numpy())).values.astype(np.float16))

    return Backend(load, stand_in if device == "cpu" else torch.matmul)


def bits(x: Any) -> Array:
    return np.asarray(numeric.encode(x.values, x.fmt)) if isinstance(x, Rounded) else tensors.bits(x)


def where_positive(z: Any, x: Any) -> Any:
    """``x`` where ``z`` > 0, else +0."""
    if isinstance(x, Rounded):
        return Rounded(np.where(z.values > 0, x.values, np.float32(0)), x.fmt)
    return x.where(z > 0, x.new_zeros(()))


def finite(x: Any) -> bool:
    return bool(np.isfinite(x.values).all() if isinstance(x, Rounded) else x.isfinite().all())


# --- a step -----------------------------------------------------------------------------------------------------


# All tensors of a forward and backward pass, in the order in which they are computed; FP16 but for ``error``. The last
# of each weight, g1 to g3, is its gradient, times the loss scale.
Pass = namedtuple("Pass", "z1 a1 z2 a2 y error dy g3 da2 dz2 g2 da1 dz1 g1")


def forward(backend: Backend, halves: Sequence[Any], x: Any) -> tuple[Any, ...]:
    """z1, a1, z2, a2 and the outputs y, of FP16 weights and ``x`` (batch, inputs)."""
    z1 = backend.product(x, halves[0])
    a1 = where_positive(z1, z1)
    z2 = backend.product(a1, halves[1])
    a2 = where_positive(z2, z2) + a1 * SKIP
    return z1, a1, z2, a2, backend.product(a2, halves[2])


def forward_and_backward(backend: Backend, weights: Sequence[Any], x: Any, target: Any, scale: float) -> Pass:
    """The pass of one batch: ``x`` FP16 (batch, inputs), ``target`` FP32 (batch, 16), ``scale`` a power of two."""
    product, cast = backend.product, backend.cast
    halves = [cast(w, "fp16") for w in weights]
    z1, a1, z2, a2, y = forward(backend, halves, x)
    error = cast(y, "fp32") - target
    dy = cast(error * (scale / len(x)), "fp16")
    g3 = product(a2.T, dy)
    da2 = product(dy, halves[2].T)
    dz2 = where_positive(z2, da2)
    g2 = product(a1.T, dz2)
    da1 = product(dz2, halves[1].T) + da2 * SKIP
    dz1 = where_positive(z1, da1)
    g1 = product(x.T, dz1)
    return Pass(z1, a1, z2, a2, y, error, dy, g3, da2, dz2, g2, da1, dz1, g1)


# --- the run ----------------------------------------------------------------------------------------------------
class Trace(NamedTuple):
    """What is kept of a run. ``weights``: all of them after each step, as FP32 bits, uint32 (steps, weights).
    ``scales``: of each step, float32 (steps,); ``skipped``: bool (steps,); ``losses``: float64 (steps,).
    ``passes``: step -> all its tensors, as bits, of the first step and of the first that was not skipped.
    """

    weights: Array
    scales: Array
    skipped: Array
    losses: Array
    passes: dict[int, Arrays]

    @property
    def digests(self) -> Array:
        """Of all weights after each step, uint64 (steps,)."""
        return np.array([digest(w) for w in self.weights], np.uint64)


def first_weights(params: Params) -> list[Array]:
    """Uniform within +-sqrt(3/K) rounded down to a power of two, from Philox's raw stream: FP32, every bit fixed."""
    weights = []
    for i, (rows, columns) in enumerate(params.shapes):
        raw = seeds.bits(rows * columns, params.seed, i)
        unit = (raw >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1
        bound = 2.0 ** np.floor(np.log2(3 / rows) / 2)
        weights.append((unit * bound).astype(np.float32).reshape(rows, columns))
    return weights


def examples(split: str) -> tuple[Array, Array]:
    """Pixels in sixteenths, float16 (n, 64), and targets, float32 (n, 16): 1 at the digit, else 0."""
    data = digits(split)
    x = (data.images.reshape(-1, PIXELS).astype(np.float32) / 16).astype(np.float16)
    return x, np.eye(CLASSES, dtype=np.float32)[data.labels]


def batches(params: Params, count: int) -> Iterator[Array]:
    """The indices of each step's batch: permutations of the examples, one after the other, incomplete ends left out."""
    each = count // params.batch
    for step in range(params.steps):
        epoch, i = divmod(step, each)
        if i == 0:
            order = seeds.permutation(count, params.seed, 1000 + epoch)
        yield order[i * params.batch : (i + 1) * params.batch]


def train(params: Params, backend: Backend, first: Sequence[Array] | None = None) -> Trace:
    """The whole run; ``first``: other weights than :func:`first_weights`.

    After every step that is not skipped v = momentum v + g and w = w - lr v, in FP32, an operation at a time.
    """
    machine = Machine(INIT_SCALE, growth_interval=GROWTH_INTERVAL)
    tracked = machine.start()
    x, targets = examples("train")
    weights = [backend.load(w) for w in (first_weights(params) if first is None else first)]
    velocities = [backend.load(np.zeros(shape, np.float32)) for shape in params.shapes]
    kept, scales, skipped, losses = [], [], [], []
    passes: dict[int, Arrays] = {}
    for step, index in enumerate(batches(params, len(x))):
        scale = tracked.scale
        tensors = forward_and_backward(backend, weights, backend.load(x[index]), backend.load(targets[index]), scale)
        gradients = (tensors.g1, tensors.g2, tensors.g3)
        overflow = not all(map(finite, gradients))
        if not overflow:
            unscaled = [backend.cast(g, "fp32") * (1 / scale) for g in gradients]
            velocities = [v * MOMENTUM + g for v, g in zip(velocities, unscaled, strict=True)]
            weights = [w - v * params.lr for w, v in zip(weights, velocities, strict=True)]
        kept.append(np.concatenate([bits(w).ravel() for w in weights]))
        scales.append(scale)
        skipped.append(overflow)
        losses.append(loss_of(bits(tensors.error).view(np.float32), params.batch))
        if step == 0 or (not overflow and len(passes) < 2):
            passes[step] = {name: bits(x) for name, x in tensors._asdict().items()}
        tracked = machine.after(tracked, overflow)
    return Trace(np.stack(kept), np.array(scales, np.float32), np.array(skipped), np.array(losses), passes)


def digest(weights: Array) -> int:
    """The first 64 bits of the SHA-256 of all weights' bits, little-endian."""
    return int.from_bytes(hashlib.sha256(weights.astype("<u4").tobytes()).digest()[:8], "little")


def loss_of(error: Array, batch: int) -> float:
    """Half the mean over the batch of the summed squared errors; for the eye, no part of the run."""
    return float((error.astype(np.float64) ** 2).sum() / (2 * batch))


def right(params: Params, backend: Backend, weights: Array) -> tuple[int, int]:
    """How many of the test digits the network labels right, and how many there are. ``weights``: bits, in one row."""
    x, targets = examples("test")
    halves = [backend.cast(backend.load(w.view(np.float32)), "fp16") for w in params.parts(weights)]
    y = bits(forward(backend, halves, backend.load(x))[-1]).view(np.float16)
    return int((y[:, :10].argmax(1) == targets.argmax(1)).sum()), len(x)
