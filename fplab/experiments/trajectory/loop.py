"""The training run: the digits, the first weights, the loss scale, and what is kept of every step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import LabError, own_integer
from ...hardware.cases import Arrays
from .step import CLASSES, Ops, Pass, State, forward_and_backward, logits, update

Array = np.ndarray[Any, Any]
Bits = tuple[Array, ...]  # of the three weights, uint32
PIXELS = 64
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


QUICK = Params(steps=120, batch=64, hidden=64)


class Trace(NamedTuple):
    """What is kept of a run. ``digests``: of all weights after each step, uint64 (steps,). ``scales``: of each step,
    float32 (steps,). ``skipped``: bool (steps,). ``losses``: float64 (steps,). ``kept``: step -> the weights after it.
    ``passes``: step -> all its tensors, as bits, of the first step and of the first that was not skipped.
    """

    digests: Array
    scales: Array
    skipped: Array
    losses: Array
    kept: dict[int, Bits]
    passes: dict[int, Arrays]
    final: State


def shapes(params: Params) -> tuple[tuple[int, int], ...]:
    """The three weights' shapes."""
    return (PIXELS, params.hidden), (params.hidden, params.hidden), (params.hidden, CLASSES)


def first_weights(params: Params) -> tuple[Array, Array, Array]:
    """Uniform within +-sqrt(3/K) rounded down to a power of two, from Philox's raw stream: FP32, every bit fixed."""
    found = []
    for i, (rows, columns) in enumerate(shapes(params)):
        raw = np.random.Philox(key=np.array([params.seed, i], np.uint64)).random_raw(rows * columns)
        unit = (raw >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1
        bound = 2.0 ** np.floor(np.log2(3 / rows) / 2)
        found.append((unit * bound).astype(np.float32).reshape(rows, columns))
    return found[0], found[1], found[2]


def examples(split: str) -> tuple[Array, Array]:
    """Pixels in sixteenths, float16 (n, 64), and targets, float32 (n, 16): 1 at the digit, else 0."""
    from ...training.data import digits

    data = digits(split)
    x = (data.images.reshape(-1, PIXELS).astype(np.float32) / 16).astype(np.float16)
    return x, np.eye(CLASSES, dtype=np.float32)[data.labels]


def batches(params: Params, count: int) -> Iterator[Array]:
    """The indices of each step's batch: permutations of the examples, one after the other, incomplete ends left out."""
    done, epoch = 0, 0
    while True:
        key = np.array([params.seed, 1000 + epoch], np.uint64)
        order = np.argsort(np.random.Philox(key=key).random_raw(count), kind="stable")
        for start in range(0, count - params.batch + 1, params.batch):
            yield order[start : start + params.batch]
            done += 1
            if done == params.steps:
                return
        epoch += 1


def kept_steps(params: Params) -> tuple[int, ...]:
    """The steps after which whole weights are kept: a few, the last among them."""
    return tuple(sorted({params.steps // 4 - 1, params.steps // 2 - 1, params.steps - 1} - {-1}))


def train(
    params: Params, ops: Ops, load: Callable[[Array], Any], bits: Callable[[Any], Array], weights: Any = None,
    each: Callable[[int, Bits], None] = lambda _step, _weights: None,
) -> Trace:  # fmt: skip
    """The whole run. ``load``: a numpy array onto the device; ``bits``: a tensor's bits as unsigned integers, back.

    ``weights``: others than :func:`first_weights`. ``each`` is given every step and the bits of the weights after it.
    """
    from ...training.scalers.machine import Machine

    machine = Machine(INIT_SCALE, growth_interval=GROWTH_INTERVAL)
    tracked = machine.start()
    x, targets = examples("train")
    start = [load(w) for w in (first_weights(params) if weights is None else weights)]
    rest = [load(np.zeros(shape, np.float32)) for shape in shapes(params)]
    state = State((start[0], start[1], start[2]), (rest[0], rest[1], rest[2]))
    digests, scales, skipped, losses = [], [], [], []
    kept: dict[int, Bits] = {}
    passes: dict[int, Arrays] = {}
    for step, index in enumerate(batches(params, len(x))):
        found = forward_and_backward(ops, state.weights, load(x[index]), load(targets[index]), tracked.scale)
        overflow = not all(ops.finite(g) for g in found.gradients)
        if not overflow:
            state = update(ops, state, found.gradients, tracked.scale, params.lr)
        as_bits = tuple(bits(w) for w in state.weights)
        digests.append(digest(as_bits))
        scales.append(tracked.scale)
        skipped.append(overflow)
        losses.append(loss_of(bits(found.error).view(np.float32), params.batch))
        if step in kept_steps(params):
            kept[step] = as_bits
        if step == 0 or (not overflow and len(passes) < 2):
            passes[step] = pass_bits(found, bits)
        tracked = machine.after(tracked, overflow)
        each(step, as_bits)
    arrays = (np.array(digests, np.uint64), np.array(scales, np.float32), np.array(skipped), np.array(losses))
    return Trace(*arrays, kept, passes, state)


def pass_bits(found: Pass, bits: Callable[[Any], Array]) -> Arrays:
    """All tensors of a pass as bits."""
    return {name: bits(x) for name, x in found._asdict().items()}


def digest(weights: tuple[Array, ...]) -> int:
    """The first 64 bits of the SHA-256 of all weights' bits, little-endian."""
    sha = hashlib.sha256()
    for w in weights:
        sha.update(np.ascontiguousarray(w).astype("<u4").tobytes())
    return int.from_bytes(sha.digest()[:8], "little")


def loss_of(error: Array, batch: int) -> float:
    """Half the mean over the batch of the summed squared errors; for the eye, no part of the run."""
    return float((error.astype(np.float64) ** 2).sum() / (2 * batch))


def lab_bits(x: Array) -> Array:
    """A float array's bits."""
    return np.ascontiguousarray(x).view(np.uint16 if x.dtype == np.float16 else np.uint32)


def right(ops: Ops, state: State, load: Callable[[Array], Any], bits: Callable[[Any], Array]) -> tuple[int, int]:
    """How many of the test digits the network labels right, and how many there are."""
    x, targets = examples("test")
    y = bits(logits(ops, state.weights, load(x))).view(np.float16)
    return int((y[:, :10].argmax(1) == targets.argmax(1)).sum()), len(x)
