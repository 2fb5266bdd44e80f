"""What there is to train: a model, its data in a fixed order, a loss, a score, and the recipe of the FP32 baseline.

A task says nothing about precision: policies do, and the same task runs under each of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .. import seeds
from ..errors import LabError, chosen, door, integer, quotes_call, summary
from .data import digits
from .network import digits_net, tensors
from .text import ALPHABET, HELD_OUT, tokens
from .transformer import transformer


class Batch(NamedTuple):
    """What a model reads, and what it should answer: class numbers, int64."""

    inputs: Tensor
    targets: Tensor


class Scores(NamedTuple):
    """On the held-out data: the share of right answers (top-1), and the mean cross-entropy in nats."""

    top1: float
    loss: float


@dataclass(frozen=True)
class Baseline:
    """How the FP32 baseline of a task is trained: a class of ``training.optimizers``, and its arguments."""

    optimizer: str
    steps: int
    settings: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Task:
    """One thing to learn, all of it decided by seeds.

    ``model(seed)``: a new ``nn.Module``, its weights drawn without touching torch's global generator.
    ``batches(seed, steps, start=0)``: the batches of steps ``start`` to ``steps - 1``; every step's batch is the same
    wherever one starts. ``held_out()``: the test data as batches. ``key``: what tells two tasks apart, in text.
    """

    name: str
    model: Callable[[int], nn.Module]
    batches: Callable[..., Iterator[Batch]]
    held_out: Callable[[], tuple[Batch, ...]]
    baseline: Baseline
    about: str
    batch: int
    sizes: tuple[tuple[str, int], ...] = field(default=())

    @property
    def key(self) -> str:
        """The task in a line, with every size that changes what is computed."""
        return ", ".join([self.name, f"batch {self.batch}", *(f"{name} {value}" for name, value in self.sizes)])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean cross-entropy of a batch, a scalar in the dtype of the model's logits."""
        return cross_entropy(model(batch.inputs).flatten(0, -2), batch.targets.flatten())

    def scores(self, model: nn.Module) -> Scores:
        """What the model makes of the held-out data; the loss is summed in float64 whatever the logits are."""
        right, loss, answers = 0, 0.0, 0
        training = model.training
        model.eval()
        with torch.no_grad():
            for inputs, targets in self.held_out():
                logits = model(inputs).flatten(0, -2).double()
                right += int((logits.argmax(-1) == targets.flatten()).sum())
                loss += float(cross_entropy(logits, targets.flatten(), reduction="sum"))
                answers += targets.numel()
        model.train(training)
        return Scores(right / answers, loss / answers)

    def evaluate(self, model: nn.Module) -> float:
        return self.scores(model).top1


# --- the digits -------------------------------------------------------------------------------------------------
def epochs(examples: int, batch: int, seed: int, steps: int, start: int = 0) -> Iterator[np.ndarray]:
    """The indices of each step's batch: every epoch a permutation, less its incomplete end."""
    each = examples // batch
    order, drawn = np.empty(0, np.intp), -1
    for step in range(start, steps):
        epoch, place = divmod(step, each)
        if epoch != drawn:
            order, drawn = _order(examples, seed, epoch).copy(), epoch
        yield order[place * batch : (place + 1) * batch]


_order = lru_cache(maxsize=64)(seeds.permutation)  # runs of one seed, of which experiments have dozens, draw the same


@lru_cache(maxsize=4)
def _digits(split: str, flat: bool) -> Batch:
    images, labels = tensors(digits(split))
    return Batch(images.flatten(1) if flat else images, labels)


def _digits_task(
    name: str, model: Callable[[int], nn.Module], baseline: Baseline, batch: int, about: str,
    sizes: tuple[tuple[str, int], ...] = (), flat: bool = False,
) -> Task:  # fmt: skip
    """A classifier of the digits; ``flat``: it reads an image as 64 numbers."""

    def batches(seed: int, steps: int, start: int = 0) -> Iterator[Batch]:
        images, labels = _digits("train", flat)
        for index in epochs(len(labels), batch, seed, steps, start):
            chosen = torch.from_numpy(index)
            yield Batch(images[chosen], labels[chosen])

    return Task(name, model, batches, lambda: (_digits("test", flat),), baseline, about, batch, sizes)


def digits_mlp(seed: int = 0, width: int = 256, hidden: int = 2) -> nn.Sequential:
    """A perceptron with ReLU, float32 (n, 64) in, logits (n, 10) out: 64-256-256-10 unless asked, 85,002 parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs in (64, *[width] * (hidden - 1)):
            layers += [nn.Linear(inputs, width), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(width, 10))


def perceptron(*, width: int = 256, hidden: int = 2, batch: int = 128, name: str = "digits_mlp") -> Task:
    """The task of reading handwritten digits with a perceptron of any size."""
    width = integer("width", width, 1, 1 << 16)
    hidden = integer("hidden", hidden, 1, 64)
    batch = integer("batch", batch, 1, 1438)
    return _digits_task(name, lambda seed: digits_mlp(seed, width, hidden),
                        Baseline("SGD", 220, (("lr", 0.05), ("momentum", 0.9))), batch,
                        "a perceptron reads handwritten digits", (("width", width), ("hidden", hidden)),
                        flat=True)  # fmt: skip


DIGITS = _digits_task("digits", digits_net, Baseline("SGD", 264, (("lr", 0.05), ("momentum", 0.9))), 64,
                      "a small convolutional net reads handwritten digits")  # fmt: skip
"""The task of telling handwritten digits apart, with a convolutional net."""
DIGITS_MLP = perceptron()
"""The same with a perceptron."""


# --- characters -------------------------------------------------------------------------------------------------
@door
def characters(
    *, width: int = 64, layers: int = 2, heads: int = 4, context: int = 64, batch: int = 16, tested: int = HELD_OUT,
    name: str = "characters",
) -> Task:  # fmt: skip
    """The task of guessing the next character of Python's documentation, with a transformer of any size.

    A step's windows start at places that Philox draws from (seed, step), so a run can go on from any step. The
    held-out windows lie side by side over the last 20,480 characters, or the first ``tested`` of those.
    """
    if not isinstance(name, str):
        raise LabError(f"name={summary(name)} is not possible; allowed: a string.")
    batch = integer("batch", batch, 1, 1 << 16)
    tested = integer("tested", tested, context + 1, HELD_OUT)
    sizes = {"width": width, "layers": layers, "heads": heads, "context": context}

    def model(seed: int = 0) -> nn.Module:
        return transformer(seed, vocabulary=len(ALPHABET), **sizes)

    def batches(seed: int, steps: int, start: int = 0) -> Iterator[Batch]:
        read = _characters("train")
        positions = len(read) - context
        for step in range(start, steps):
            starts = (seeds.bits(batch, seed, step) % np.uint64(positions)).astype(np.int64)
            yield _windows(read, starts, context)

    def held_out() -> tuple[Batch, ...]:
        read = _characters("test")[:tested]
        starts = np.arange(0, len(read) - context, context)
        return tuple(_windows(read, starts[i : i + 64], context) for i in range(0, len(starts), 64))

    baseline = Baseline("AdamW", 600, (("lr", 2e-3), ("weight_decay", 0.01)))
    about = "a decoder-only transformer guesses the next character of Python's documentation"
    return Task(name, model, batches, held_out, baseline, about, batch, tuple(sizes.items()))


@lru_cache(maxsize=2)
def _characters(split: str) -> Tensor:
    return torch.from_numpy(tokens(split).astype(np.int64))


def _windows(read: Tensor, starts: np.ndarray, context: int) -> Batch:
    """From each start: ``context`` characters, and the one that follows each of them."""
    index = torch.from_numpy(starts)[:, None] + torch.arange(context + 1)
    windows = read[index]
    return Batch(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


CHARACTERS = characters()
"""The task of guessing the next character, at its usual size."""

TASKS: tuple[Task, ...] = (DIGITS, DIGITS_MLP, CHARACTERS)


@quotes_call
def get(name: str | Task) -> Task:
    """The task of a name, in any case; a record is given back.

    >>> get("digits_mlp").baseline.steps
    220
    """
    return chosen("task", name, {task.name: task for task in TASKS}, Task)
