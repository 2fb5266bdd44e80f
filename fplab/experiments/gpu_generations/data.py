"""The runs: one network, one seed, one order of batches, and the products of six machines, step by step side by side.

A classifier of digits (64-256-256-10, batch 128) learns by momentum in FP32. Operands of every product, forward and
backward, are rounded to FP16 and multiplied in a GPU's bits (:func:`fplab.nn.emulate`); everything else is torch's
FP32, the same for all. The loss is scaled by 2^10, so that small gradients survive as FP16 operands, and the weights'
gradients are scaled back exactly. The lab's model of B200 adds FP16 products as that of H100 does, so it has no run.
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

    from ...training.tasks import Batch, Task

GPUS = ("V100", "A100", "H100")
NUDGED = {"one weight": 1, "all weights": 2**30}  # runs on H100: how many weights of a layer are one ulp of FP32 larger
PLAIN = "FP32"  # torch's own products of the unrounded operands
RUNS = (*GPUS, *NUDGED, PLAIN)
REFERENCE = RUNS.index("H100")
LOSS_SCALE = 2.0**10
PARAMETERS = ("0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias")
# What a step computes, in its order; gradients come from the last layer to the first.
TENSORS = ("layer 1", "layer 2", "layer 3", "loss", *(f"gradient of {name}" for name in reversed(PARAMETERS)))
FORWARD, BACKWARD = 3, 5  # products of a step; the images need no gradient


@dataclass(frozen=True)
class Params:
    """``steps``: of training, 11 an epoch. ``seeds``: runs of each machine. ``lr``, ``momentum``: of the updates.

    ``width``: of both hidden layers.
    """

    steps: int = 220
    seeds: int = 5
    lr: float = 0.05
    momentum: float = 0.9
    width: int = 256

    @property
    def kept(self) -> tuple[int, int, int]:
        """The steps of the first seed of which everything is kept: the first, a middle one and the last."""
        return 0, self.steps // 2, self.steps - 1

    @property
    def task(self) -> Task:
        """What is learned."""
        from ...training.tasks import perceptron

        return perceptron(width=self.width)


QUICK = Params(steps=27, seeds=4, lr=0.1, width=128)


def gpu_of(run: str) -> str | None:
    """The GPU whose products a run has, None for torch's own."""
    return "H100" if run in NUDGED else None if run == PLAIN else run


class Machine:
    """One run: a model, its optimizer, and the arithmetic of its products."""

    def __init__(self, name: str, seed: int, params: Params) -> None:
        from ...nn import emulate
        from ...training import Momentum

        self.name, self.task = name, params.task
        self.model = self.task.model(seed)
        if name in NUDGED:
            _nudge(self.model, NUDGED[name])
        self.optimizer = Momentum(self.model, params.lr, params.momentum)
        gpu = gpu_of(name)
        self.emulation = None if gpu is None else emulate(gpu)

    def forward(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        """The outputs of the three layers and the loss, its products recorded for the backward pass."""
        from torch.nn.functional import cross_entropy

        block: Any = self.emulation or contextlib.nullcontext()
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

    def step(self, batch: Batch) -> list[np.ndarray]:
        """One update; the step's TENSORS, float32."""
        outputs, loss = self.forward(batch)
        self.backward(loss)
        grads = [p.grad for p in reversed(list(self.model.parameters()))]
        tensors = [np.array(t.detach().numpy()) for t in (*outputs, loss, *grads) if t is not None]
        self.optimizer.step()
        return tensors

    def weights(self) -> np.ndarray:
        """All weights and biases as one float32 array, 85,002 at the full size."""
        return np.concatenate([p.detach().numpy().ravel() for p in self.model.parameters()])

    def velocities(self) -> np.ndarray:
        """The optimizer's, as :meth:`weights`."""
        return np.concatenate([v.numpy().ravel() for v in self.optimizer.velocity.values()])

    def answers(self) -> np.ndarray:
        """What the model reads on each test digit, evaluated in torch's FP32, uint8."""
        return np.concatenate([self.model(x).argmax(1).numpy() for x, _ in self.task.held_out()]).astype(np.uint8)

    def units(self) -> tuple[Any, ...]:
        """In which units the products of each step ran."""
        return () if self.emulation is None else self.emulation.report().steps


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


def run(params: Params, tick: Tick) -> Arrays:
    """Train every machine on every seed.

    ``losses`` (seed, run, step) float32; ``differ`` (seed, run, step), the share of weights whose bits differ from the
    H100's after the step, and ``distance``, their difference's norm over the norm of the H100's weights; ``answers``
    (seed, run, digit) uint8, to be compared with ``labels``; ``first`` (seed, run, tensor), shares of the first step;
    ``own`` (seed, run, step), whether all products of the step ran in the run's own unit. Of the kept steps of the
    first seed, float32: ``before`` (run, step, 2, weight), weights and velocities, ``after`` (run, step, weight) and
    ``tensors`` (run, step, element).
    """
    from ...tensorcore import get
    from ...training.loop import one_thread

    shape = (params.seeds, len(RUNS), params.steps)
    losses, differ, distance = np.zeros(shape, np.float32), np.zeros(shape), np.zeros(shape)
    first, own = np.zeros((*shape[:2], len(TENSORS))), np.zeros(shape, np.bool_)
    answers, before, after, tensors = [], [], [], []
    with one_thread():
        for seed in range(params.seeds):
            machines = [Machine(name, seed, params) for name in RUNS]
            for step, batch in enumerate(params.task.batches(seed, params.steps)):
                tick((seed + step / params.steps) / params.seeds, f"seed {seed}, step {step}")
                kept = seed == 0 and step in params.kept
                if kept:
                    before.append([np.stack([machine.weights(), machine.velocities()]) for machine in machines])
                found = [machine.step(batch) for machine in machines]
                losses[seed, :, step] = [one[TENSORS.index("loss")] for one in found]
                weights = [machine.weights() for machine in machines]
                reference, size = weights[REFERENCE], norm(weights[REFERENCE])
                differ[seed, :, step] = [differing(x, reference) for x in weights]
                distance[seed, :, step] = [norm(x - reference) / size for x in weights]
                if step == 0:
                    first[seed] = [
                        [differing(x, y) for x, y in zip(one, found[REFERENCE], strict=True)] for one in found
                    ]
                if kept:
                    after.append(weights)
                    tensors.append([np.concatenate([t.ravel() for t in one]) for one in found])
            for i, machine in enumerate(machines):
                if (gpu := gpu_of(machine.name)) is None:
                    own[seed, i] = machine.emulation is None
                    continue
                unit = get(gpu, "fp16").name
                wanted = (("forward", unit, FORWARD), ("backward", unit, BACKWARD))
                own[seed, i, : len(machine.units())] = [used == wanted for used in machine.units()][: params.steps]
            answers.append([machine.answers() for machine in machines])
    tick(1.0, "done")
    labels = np.concatenate([batch.targets.numpy() for batch in params.task.held_out()]).astype(np.uint8)
    return {
        "losses": losses, "differ": differ, "distance": distance, "first": first, "own": own,
        "answers": np.array(answers), "labels": labels,
        "before": np.array(before).swapaxes(0, 1), "after": np.array(after).swapaxes(0, 1),
        "tensors": np.array(tensors).swapaxes(0, 1),
    }  # fmt: skip


def right(arrays: Arrays) -> np.ndarray:
    """How many of the test digits each run reads, int64 (seed, run)."""
    return np.asarray((arrays["answers"] == arrays["labels"]).sum(axis=-1))
