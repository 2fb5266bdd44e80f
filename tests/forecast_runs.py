"""Runs that a forecast is tried on: small tasks in variants that strain a recipe, trained to their end in each recipe.

``python -m tests.forecast_runs`` prints the cookbook's table of them, and fails where that has another.
"""

import dataclasses
import math
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from fplab import training
from fplab.nn import Recipe, emulate, recipes, watch
from fplab.pages import cookbook
from fplab.training import loop, tasks
from fplab.training.nonfinite import StoppedError
from fplab.training.policies import Made

WATCHED, STEPS, SEED = 24, 100, 1
HIT, ALARM, MISS = "✓", "!", "✗"
NOISE = 0.08  # by which a run's excess moves with the last bits of what the CPU computes, where outliers are; see FP16
NOTICEABLE = 0.05  # of what the BF16 run has learned, by which the median loss of the last quarter is higher

MLP = tasks.perceptron(width=48, hidden=2, batch=48)
CHARACTERS = tasks.characters(width=32, layers=1, heads=2, context=16, batch=8, tested=64)


def sgd(lr: float) -> Made:
    return Made("optimizers", "SGD", (("lr", lr), ("momentum", 0.9)))


def adamw(lr: float) -> Made:
    return Made("optimizers", "AdamW", (("lr", lr), ("weight_decay", 0.01)))


def changed(
    task: tasks.Task, init: float = 1.0, outlier: float | None = None, spike: tuple[int, float] | None = None,
    loss: float = 1.0,
) -> tasks.Task:  # fmt: skip
    """A task with weights ``init`` times as large, four inputs that are outliers, spikes, or a loss times a factor."""

    def model(seed: int) -> nn.Module:
        made = task.model(seed)
        with torch.no_grad():
            for p in made.parameters():
                if p.dim() > 1:
                    p.mul_(init)
        return made

    def batches(seed: int, steps: int, start: int = 0) -> Iterator[tasks.Batch]:
        for step, (given, targets) in enumerate(task.batches(seed, steps, start), start):
            x = given.clone()
            if outlier is not None:
                x[:, ::16] = outlier
            if spike is not None and step % spike[0] == spike[0] - 1:
                x *= spike[1]
            yield tasks.Batch(x, targets)

    class Scaled(tasks.Task):
        def loss(self, model: nn.Module, batch: tasks.Batch) -> torch.Tensor:
            return task.loss(model, batch) * loss

    fields = {f.name: getattr(task, f.name) for f in dataclasses.fields(task)}
    return Scaled(**fields | {"model": model, "batches": batches, "name": "changed"})


def unscaled(fmt: str) -> Recipe:
    return Recipe(fmt, high=fmt, scope="all")


SETUPS: dict[str, tuple[tasks.Task, Made]] = {
    "MLP, SGD": (MLP, sgd(0.05)),
    "MLP, AdamW": (MLP, adamw(2e-3)),
    "MLP, SGD, lr × 4": (MLP, sgd(0.2)),
    "MLP, W / 8": (changed(MLP, init=1 / 8), adamw(2e-3)),
    "MLP, W × 4": (changed(MLP, init=4.0), sgd(0.02)),
    "MLP, x = 32": (changed(MLP, outlier=32.0), adamw(2e-3)),
    "MLP, x × 8": (changed(MLP, spike=(15, 8.0)), adamw(2e-3)),
    "MLP, loss / 2^16": (changed(MLP, loss=2.0**-16), adamw(2e-3)),
    "MLP, loss × 2^16": (changed(MLP, loss=2.0**16), adamw(2e-3)),
    "GPT": (CHARACTERS, adamw(4e-3)),
    "GPT, W × 4": (changed(CHARACTERS, init=4.0), adamw(4e-3)),
}
RECIPES = (
    unscaled("e4m3"), unscaled("e5m2"), unscaled("fp16"), recipes.fp8_delayed(scope="all"),
    recipes.fp8_delayed(scope="all", amax_history_len=1, amax_compute_algo="most_recent", margin=-2, name="short -2"),
    recipes.fp8_delayed(scope="all", fp8_format="e4m3", margin=12, name="margin 12"),
    recipes.mxfp8(scope="all"), recipes.nvfp4(scope="all"),
)  # fmt: skip


class Tried(NamedTuple):
    """``excess``: by how much the loss ends above BF16's, as a share of what that learned; infinite if it stopped."""

    setup: str
    recipe: str
    verdict: str
    excess: float

    @property
    def lost(self) -> bool:
        return not self.excess <= NOTICEABLE

    @property
    def foretold(self) -> bool:
        return self.verdict != "stands"

    @property
    def mark(self) -> str:
        """A hit, a false alarm or a miss; nothing where nothing was foretold and nothing came."""
        return (HIT if self.lost else ALARM) if self.foretold else MISS * self.lost

    @property
    def cell(self) -> str:
        """As the cookbook shows it, in per cent."""
        return f"{100 * self.excess:.1f} {self.mark}".strip()

    def agrees(self, cell: str) -> bool:
        """Whether the cookbook has it so: the forecast exactly, and the outcome, on CPUs that sum otherwise, as it is.

        An outcome within ``NOISE`` of what is noticeable may be either.
        """
        shown = float(cell.split()[0]) / 100
        alike = (shown > NOTICEABLE) == self.lost or max(abs(x - NOTICEABLE) for x in (shown, self.excess)) < NOISE
        return cell.endswith((HIT, ALARM)) == self.foretold and alike


def ended(task: tasks.Task, optimizer: Made, recipe: Recipe) -> tuple[float, float]:
    """The first loss of a run, and the median of its last quarter."""
    gpu = "B200" if recipe.name in ("mxfp8", "nvfp4") else "H100"
    try:
        found = training.fit(task, recipe, seed=SEED, steps=STEPS, optimizer=optimizer, gpu=gpu, progress=print_nothing)
    except StoppedError:
        return math.inf, math.inf
    return float(found.losses[0]), float(np.median(found.losses[-STEPS // 4 :]))


def print_nothing(step: int, steps: int) -> None:
    """No bar."""


def tried(setup: str, among: Sequence[str] = ()) -> Iterator[Tried]:
    """What a short run in BF16 foretells, and what comes of the runs in the recipes, or in some of them by their names.

    The BF16 run learns at least a quarter of its loss away: else there is nothing to lose.
    """
    task, optimizer = SETUPS[setup]
    model = task.model(SEED)
    updates = optimizer(model.parameters())
    with loop.one_thread(), emulate("H100", "bf16"), watch(model, updates, recipes=RECIPES) as seen:
        for batch in task.batches(SEED, WATCHED):
            updates.zero_grad()
            task.loss(model, batch).backward()
            updates.step()
    verdicts = seen.forecast(STEPS).verdicts
    first, end = ended(task, optimizer, recipes.bf16())
    assert first - end > 0.25 * first, (setup, first, end)
    for recipe in RECIPES:
        if recipe.name in (among or verdicts):
            _, loss = ended(task, optimizer, recipe)
            yield Tried(setup, recipe.name, verdicts[recipe.name], (loss - end) / (first - end))


def written(language: str = "en") -> dict[tuple[str, str], str]:
    """The cells of the cookbook's table by setup and recipe."""
    (page,) = (recipe for recipe in cookbook.recipes() if recipe.name == "will_it_diverge")
    rows = [line.strip("| ").split(" | ") for line in page.source(language).splitlines() if line.startswith("| ")]
    names = [recipe.name for recipe in RECIPES]
    cells = [row for row in rows if row[0] in SETUPS]
    return {(setup, name): cell for setup, *row in cells for name, cell in zip(names, row, strict=True)}


if __name__ == "__main__":
    differ = []
    for name in SETUPS:
        found = list(tried(name))
        print(f"| {name} | {' | '.join(row.cell for row in found)} |", flush=True)
        differ += [row for row in found if not row.agrees(written()[row.setup, row.recipe])]
    sys.exit("\n".join(["other than in the cookbook:", *map(str, differ)]) if differ else None)
