"""The FP32 training loop, and a tap for what a lower precision would have to hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ..errors import LabError, door, integer, own_integers
from ..nn import bits
from .data import Digits
from .network import layers, tensors
from .tasks import epochs

Named = dict[str, np.ndarray]


@door
@dataclass(frozen=True)
class Recipe:
    """How a network is trained: stochastic gradient descent with momentum on the mean cross-entropy of a batch.

    ``batch``: examples of a step. ``lr``: the learning rate. ``seed``: of the order of the examples alone.
    """

    epochs: int = 12
    batch: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        own_integers(self, epochs=(1, 1 << 30), batch=(1, 1 << 30), seed=(0, 2**64 - 1))
        if not self.lr > 0 or not 0 <= self.momentum < 1:
            raise LabError(f"lr={self.lr}, momentum={self.momentum}; allowed: lr > 0 and 0 <= momentum < 1.")

    def steps(self, examples: int) -> int:
        """How many updates that makes on so many examples; an epoch's incomplete last batch is left out."""
        return self.epochs * (examples // self.batch)


@dataclass(frozen=True)
class Snapshot:
    """What one training step computed, in FP32, by name of layer or parameter.

    ``activation_gradients``: of the batch's mean loss with respect to each layer's output (before its ReLU), in that
    output's shape. ``weight_gradients``, ``weights`` (before the step) and ``updates`` (what was added to them): in
    the parameter's shape, weights and biases.
    """

    step: int
    loss: float
    activation_gradients: Named
    weight_gradients: Named
    weights: Named
    updates: Named


@dataclass(frozen=True)
class Run:
    """A training run: the loss of every step, float32 (steps,), and the snapshots asked for."""

    losses: np.ndarray
    snapshots: tuple[Snapshot, ...]


@door
class OutputGradients:
    """Within its ``with`` block, every layer keeps the gradient of its latest output; :meth:`take` copies them.

    ``inputs``: what each layer was given with it, by its name.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = layers(model)
        self.inputs: dict[str, torch.Tensor] = {}
        self._outputs: dict[str, torch.Tensor] = {}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> OutputGradients:
        for name, layer in self._layers.items():
            self._handles.append(layer.register_forward_hook(self._keep(name)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._outputs.clear()

    def _keep(self, name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]:
        def hook(_layer: nn.Module, given: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            output.retain_grad()
            self.inputs[name], self._outputs[name] = given[0].detach(), output

        return hook

    def take(self) -> Named:
        """The gradients since the last backward pass, by layer."""
        return {name: copied(output.grad) for name, output in self._outputs.items() if output.grad is not None}


@door
class Momentum:
    """``v = momentum * v + g``, ``u = -lr * v``, ``w = w + u``, each operation rounded to FP32 by itself.

    ``torch.optim.SGD`` computes ``w - lr * v`` with one fused rounding on some machines and never holds the update;
    here the update is a tensor of its own. ``velocity``: v by the parameter's name.
    """

    def __init__(self, model: nn.Module, lr: float, momentum: float) -> None:
        self.lr, self.momentum = lr, momentum
        self._parameters = dict(model.named_parameters())
        self.velocity = {name: torch.zeros_like(p) for name, p in self._parameters.items()}

    def step(self) -> dict[str, torch.Tensor]:
        """Apply the gradients; the updates that were added, by parameter."""
        updates = {}
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                assert parameter.grad is not None
                velocity = self.velocity[name].mul_(self.momentum).add_(parameter.grad)
                updates[name] = velocity * -self.lr
                parameter.add_(updates[name])
        return updates


@door
def batches(examples: int, recipe: Recipe) -> Iterator[np.ndarray]:
    """The indices of every batch: each epoch a new permutation, the same on every machine."""
    examples = integer("examples", examples, 1, 1 << 28)  # a permutation of them is drawn
    return epochs(examples, recipe.batch, recipe.seed, recipe.steps(examples))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: sums are then split in one way only, and small layers are as fast."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@door
@one_thread()
def train(
    model: nn.Module, data: Digits, recipe: Recipe, snapshots: Collection[int] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Run:  # fmt: skip
    """Train ``model`` in place, in FP32 on the CPU, and take a :class:`Snapshot` at each of the steps asked for.

    ``snapshots``: step numbers from 0. ``progress(step, steps)`` is called after every step. On one machine the same
    arguments give the same bits, however many threads torch may use; another CPU may add in another order.
    """
    images, labels = tensors(data)
    steps = recipe.steps(len(labels))
    if steps == 0:
        raise LabError(f"batch={recipe.batch} is more than the {len(labels)} examples; allowed: 1 to {len(labels)}.")
    if outside := [s for s in snapshots if not 0 <= s < steps]:
        raise LabError(f"snapshots at steps {outside} of a run of {steps} steps; allowed: 0 to {steps - 1}.")
    optimizer = Momentum(model, recipe.lr, recipe.momentum)
    losses, taken = np.zeros(steps, np.float32), []
    for step, index in enumerate(batches(len(labels), recipe)):
        chosen = torch.from_numpy(index)
        wanted = step in snapshots
        with OutputGradients(model) if wanted else nullcontext() as tap:
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            model.zero_grad()
            loss.backward()
            gradients = tap.take() if tap else {}
        losses[step] = loss.item()
        weights = {n: copied(p) for n, p in model.named_parameters()} if wanted else {}
        slopes = {n: copied(p.grad) for n, p in model.named_parameters() if p.grad is not None} if wanted else {}
        updates = optimizer.step()
        if wanted:
            changes = {n: copied(u) for n, u in updates.items()}
            taken.append(Snapshot(step, float(losses[step]), gradients, slopes, weights, changes))
        if progress is not None:
            progress(step + 1, steps)
    return Run(losses, tuple(taken))


def copied(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's values as a numpy array of its own."""
    return np.array(bits.array(tensor))
