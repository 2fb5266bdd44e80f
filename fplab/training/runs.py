"""Training a task under a policy: seeds decide everything, a killed run goes on to the same bits, trouble stops it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ..errors import LabError, integer, quotes_call, reason
from ..nn.emulation.product_log import Used
from ..nn.recipes import Recipe
from ..storage import demand_possible, demand_writable
from . import checkpoints, policies, tasks
from .loop import one_thread
from .nonfinite import StoppedError, first_bad_parameter, largest, loss_not_finite, weights_not_finite
from .policies import Made, Policy
from .tasks import Batch, Scores, Task

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Fit:
    """A finished run.

    ``losses``: float32 (steps,), each batch's loss without the loss scale. ``scales``: float32 (steps,), the loss
    scale used in that step. ``skipped``: bool (steps,), steps that the scaler left out. ``scores``: on the held-out
    data, computed as the policy computes. ``model``: trained, its parameters FP32 tensors of the policy's values.
    ``units``: of each step that this call made, which matrix unit its products ran in, forward and backward
    (:attr:`fplab.nn.emulation.product_log.Report.steps`); nothing where they are torch's own.
    """

    task: Task
    policy: Policy
    seed: int
    losses: np.ndarray
    scales: np.ndarray
    skipped: np.ndarray
    scores: Scores
    model: nn.Module
    units: tuple[tuple[Used, ...], ...] = ()


@quotes_call
def fit(
    task: Task | str, policy: Policy | Recipe | str = "fp32", *, seed: int = 0, steps: int | None = None,
    optimizer: Made | None = None, gpu: str | None = "H100", checkpoint: Path | str | None = None, every: int = 50,
    progress: Progress | None = None,
) -> Fit:  # fmt: skip
    """Train a task under a precision policy, or a recipe of :mod:`fplab.nn.recipes`, in the bits of a GPU.

    ``steps`` and ``optimizer``: the task's baseline unless given. ``gpu``: whose matrix products are emulated; None
    takes torch's own on this machine. ``checkpoint``: a file that holds the run's state, written every ``every``
    steps and at the end; where it is there, the run goes on from it, to the same bits as without the interruption.
    ``progress(step, steps)`` is called after every step; without it a terminal shows a bar.

    Raises :class:`StoppedError` when a loss or a weight is no longer finite, and :class:`LabError` for names that do
    not exist and for a checkpoint of another run.

    >>> run = fit("digits_mlp", steps=20)
    >>> run.losses.shape, run.scores.top1 > 0.5
    ((20,), True)
    """
    task = tasks.get(task)
    steps = integer("steps", task.baseline.steps if steps is None else steps, 1, 1 << 30)
    every = integer("every", every, 1, 1 << 30)
    seed = integer("seed", seed, 0, 2**64 - 1)  # torch would take negative ones too, and wrap them
    with one_thread(), torch.random.fork_rng(devices=[]), _shown(task, progress, steps) as tick:
        torch.manual_seed(seed)  # for a task with dropout; the state is part of the checkpoint
        run = _Running(task, policies.get(policy), seed, optimizer or baseline(task), gpu)
        path = None if checkpoint is None else Path(checkpoint)
        if path is not None:
            demand_possible(path)
            demand_writable(path.parent)
            if path.exists():
                run.go_on_from(checkpoints.load(path, run.configuration), path, steps)
        for batch in task.batches(seed, steps, run.done):
            try:
                run.step(batch)
            except StoppedError as error:
                error.losses = tuple(run.losses)
                raise
            if path is not None and (run.done % every == 0 or run.done == steps):
                checkpoints.save(path, run.configuration, run.state())
            tick(run.done, steps)
        return run.finished()


def baseline(task: Task) -> Made:
    return Made("optimizers", task.baseline.optimizer, task.baseline.settings)


def configuration(task: Task, policy: Policy, seed: int, optimizer: Made, gpu: str | None) -> dict[str, Any]:
    """What decides a run's bits, its length apart, as JSON values."""
    return {
        "task": task.key,
        **{f"policy {field}": value for field, value in policy.described().items()},
        "optimizer": repr(optimizer),
        "seed": seed,
        "gpu": gpu,
        "torch": str(torch.__version__),
    }


class _Running:
    """A run between two steps: the model and what trains it, and what has happened."""

    def __init__(self, task: Task, policy: Policy, seed: int, optimizer: Made, gpu: str | None) -> None:
        self.task, self.policy, self.seed, self.gpu = task, policy, seed, gpu
        self.model = task.model(seed)
        self.optimizer = policy.optimizer(optimizer, self.model.parameters(), seed)
        self.runs_as = policy.model(self.model)
        self.scaler = policy.scaler()
        self.scaling = policy.scaling(gpu)
        self.losses: list[float] = []
        self.scales: list[float] = []
        self.skipped: list[bool] = []
        self.units: list[tuple[Used, ...]] = []
        self.configuration = configuration(task, policy, seed, optimizer, gpu)

    @property
    def done(self) -> int:
        return len(self.losses)

    def computing(self) -> Any:
        """Where forward and backward passes compute as the policy says."""
        return self.policy.running(self.model, self.gpu, self.scaling)

    def step(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        scale = self.scaler.get_scale()
        with self.computing() as products:
            loss = self.task.loss(self.runs_as, batch)
            if not bool(loss.isfinite()):
                raise loss_not_finite(self.done, loss, self.model, lambda: self.task.loss(self.runs_as, batch))
            self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        skipped = self.scaler.skip and self.scaler.found_inf(self.optimizer)
        before = largest(self.model)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if (bad := first_bad_parameter(self.model)) is not None:
            name, parameter = bad[0], dict(self.model.named_parameters())[bad[0]]
            raise weights_not_finite(self.done, name, parameter, self.optimizer, self.policy, scale, before)
        steps = () if products is None else products.report().steps
        self.units.append(steps[-1] if steps else ())
        self.losses.append(float(loss.detach()))
        self.scales.append(scale)
        self.skipped.append(bool(skipped))

    def finished(self) -> Fit:
        with self.computing():
            scores = self.task.scores(self.runs_as)
        columns = (np.array(self.losses, np.float32), np.array(self.scales, np.float32),
                   np.array(self.skipped, np.bool_))  # fmt: skip
        return Fit(self.task, self.policy, self.seed, *columns, scores, self.model, tuple(self.units))

    def state(self) -> dict[str, Any]:
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "scaling": None if self.scaling is None else self.scaling.state_dict(),
            "generator": torch.get_rng_state(),
            "losses": np.array(self.losses, np.float32),
            "scales": np.array(self.scales, np.float32),
            "skipped": np.array(self.skipped, np.bool_),
        }

    def go_on_from(self, state: dict[str, Any], path: Path, steps: int) -> None:
        try:
            self._take_over(state)
        except Exception as error:  # a state that this release did not write for this run can lack anything
            raise LabError(f"{str(path)!r} holds no state of this run ({reason(error)}).") from None
        if self.done > steps:
            raise LabError(f"{str(path)!r} has {self.done} steps behind it; allowed: steps of at least that.")

    def _take_over(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        if self.scaling is not None:
            self.scaling.load_state_dict(state["scaling"])
        torch.set_rng_state(state["generator"])
        self.losses = [float(x) for x in state["losses"]]
        self.scales = [float(x) for x in state["scales"]]
        self.skipped = [bool(x) for x in state["skipped"]]


@contextmanager
def _shown(task: Task, progress: Progress | None, steps: int) -> Iterator[Progress]:
    """The caller's way to show progress, or a bar that is there on a terminal only."""
    if progress is not None:
        yield progress
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda step, steps: None
        return
    with tqdm(total=steps, desc=task.name, unit="step", disable=None, leave=False) as bar:

        def move(step: int, _steps: int) -> None:
            bar.update(step - bar.n)

        yield move
