"""The runs: one network, one seed, one order of batches, and the products of six machines, step by step side by side.

The classifier of digits (64-256-256-10, batch 128) learns by momentum in FP32. Operands of every product, forward and
backward, are rounded to FP16 and multiplied in a GPU's bits (:func:`fplab.nn.emulate`); everything else is torch's
FP32, the same for all. The loss is scaled by 2^10, so that small gradients survive as FP16 operands, and the weights'
gradients are scaled back exactly.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hardware.cases import Arrays
from ..base import Tick

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...training.tasks import Batch

GPUS = ("V100", "A100", "H100", "B200")
NUDGED = {"one weight": 1, "all weights": 2**30}  # runs on H100: how many weights of a layer are one ulp of FP32 larger
PLAIN = "FP32"  # torch's own products of the unrounded operands
RUNS = (*GPUS, *NUDGED, PLAIN)
REFERENCE = RUNS.index("H100")
LOSS_SCALE = 2.0**10
PARAMETERS = ("0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias")
# What a first step computes, in its order; gradients come from the last layer to the first.
TENSORS = ("layer 1", "layer 2", "layer 3", "loss", *(f"gradient of {name}" for name in reversed(PARAMETERS)))


@dataclass(frozen=True)
class Params:
    """``steps``: of training, 11 an epoch. ``seeds``: runs of each machine. ``lr``, ``momentum``: of the updates."""

    steps: int = 220
    seeds: int = 5
    lr: float = 0.05
    momentum: float = 0.9


QUICK = Params(steps=33, seeds=2)


class Machine:
    """One run: a model, its optimizer, and the arithmetic of its products."""

    def __init__(self, name: str, seed: int, params: Params) -> None:
        from ...training import Momentum
        from ...training.tasks import DIGITS_MLP

        self.name, self.model = name, DIGITS_MLP.model(seed)
        if name in NUDGED:
            _nudge(self.model, NUDGED[name])
        self.optimizer = Momentum(self.model, params.lr, params.momentum)

    def forward(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        """The outputs of the three layers and the loss, its products recorded for the backward pass."""
        from torch.nn.functional import cross_entropy

        from ...nn import emulate

        gpu = "H100" if self.name in NUDGED else self.name
        block: Any = contextlib.nullcontext() if self.name == PLAIN else emulate(gpu)
        x, outputs = batch.inputs, []
        with block:
            for layer in self.model.children():
                x = layer(x)
                outputs.append(x)
            return outputs[::2], cross_entropy(x, batch.targets)

    def backward(self, loss: Tensor) -> None:
        """The gradients, of the unscaled loss, in ``.grad``."""
        self.model.zero_grad()
        (loss * LOSS_SCALE).backward()
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad /= LOSS_SCALE

    def weights(self) -> np.ndarray:
        """All weights and biases as one float32 array (85,002,)."""
        return np.concatenate([p.detach().numpy().ravel() for p in self.model.parameters()])

    def right(self) -> int:
        """How many of the test digits the model reads, evaluated in torch's FP32."""
        from ...training.tasks import DIGITS_MLP

        answers = sum(len(batch.targets) for batch in DIGITS_MLP.held_out())
        return round(DIGITS_MLP.evaluate(self.model) * answers)


def _nudge(model: nn.Module, count: int) -> None:
    """Make the first ``count`` elements of each parameter larger in magnitude by one ulp of FP32; 1: of one alone."""
    parameters = list(model.parameters())
    for parameter in parameters[:1] if count == 1 else parameters:
        parameter.detach().numpy().ravel()[:count].view(np.uint32)[:] += 1


def differing(x: np.ndarray, y: np.ndarray) -> float:
    """The share of elements whose float32 bits differ."""
    return float((x.view(np.uint32) != y.view(np.uint32)).mean())


def norm(x: np.ndarray) -> float:
    """The Euclidean norm, summed in float64 by numpy and not by a BLAS, which would wake threads of its own."""
    return float(np.sqrt(np.square(x, dtype=np.float64).sum()))


def first_step(machines: list[Machine], batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Of each tensor of a step without update, the share of elements whose bits differ from the reference's.

    And the bits of the first layer's outputs on each GPU.
    """
    found = []
    for machine in machines:
        outputs, loss = machine.forward(batch)
        machine.backward(loss)
        grads = [p.grad for p in reversed(list(machine.model.parameters()))]
        found.append([np.array(t.detach().numpy()).ravel() for t in (*outputs, loss, *grads) if t is not None])
    shares = np.array([[differing(x, y) for x, y in zip(one, found[REFERENCE], strict=True)] for one in found])
    return shares, np.stack([one[0].view(np.uint32).reshape(len(batch.targets), -1) for one in found[: len(GPUS)]])


def run(params: Params, tick: Tick) -> Arrays:
    """Train every machine on every seed.

    ``losses`` (seed, run, step) float32; ``differ`` (seed, run, step), the share of weights whose bits differ from the
    H100's after the step, and ``distance``, their difference's norm over the norm of the H100's weights; ``right``
    (seed, run) of ``tested`` digits; ``first`` (run, tensor), shares in the first step of the first seed; ``layer1``
    (GPU, image, unit), the FP32 bits of the first layer's outputs in it.
    """
    from ...training.loop import one_thread
    from ...training.tasks import DIGITS_MLP

    shape = (params.seeds, len(RUNS), params.steps)
    losses, differ, distance = np.zeros(shape, np.float32), np.zeros(shape), np.zeros(shape)
    right = np.zeros(shape[:2], np.int64)
    with one_thread():
        for seed in range(params.seeds):
            machines = [Machine(name, seed, params) for name in RUNS]
            batches = DIGITS_MLP.batches(seed, params.steps)
            if seed == 0:
                first, layer1 = first_step(machines, next(DIGITS_MLP.batches(0, 1)))
            for step, batch in enumerate(batches):
                tick((seed + step / params.steps) / params.seeds, f"seed {seed}, step {step}")
                for i, machine in enumerate(machines):
                    _, loss = machine.forward(batch)
                    machine.backward(loss)
                    machine.optimizer.step()
                    losses[seed, i, step] = loss.item()
                weights = [machine.weights() for machine in machines]
                reference, size = weights[REFERENCE], norm(weights[REFERENCE])
                for i, x in enumerate(weights):
                    differ[seed, i, step] = differing(x, reference)
                    distance[seed, i, step] = norm(x - reference) / size
            right[seed] = [machine.right() for machine in machines]
    tick(1.0, "done")
    tested = sum(len(batch.targets) for batch in DIGITS_MLP.held_out())
    return {
        "losses": losses, "differ": differ, "distance": distance, "right": right, "tested": np.array(tested),
        "first": first, "layer1": layer1,
    }  # fmt: skip
