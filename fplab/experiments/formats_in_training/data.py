"""The runs: every policy on every task from the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...hardware.cases import Arrays
from ..base import Tick

if TYPE_CHECKING:
    from torch import nn

    from ...nn.emulation.report import Used
    from ...training.policies import Made
    from ...training.tasks import Task

POLICIES = ("fp32", "tf32", "fp16", "bf16", "fp8_hybrid", "pure_fp16", "pure_bf16")
MIXED = ("tf32", "fp16", "bf16", "fp8_hybrid")
"""Those that keep FP32 weights and FP32 updates."""

NAMES = {
    "fp32": "FP32",
    "tf32": "TF32",
    "fp16": "FP16, loss scale",
    "bf16": "BF16",
    "fp8_hybrid": "FP8 hybrid",
    "pure_fp16": "pure FP16",
    "pure_bf16": "pure BF16",
}
GPU = "H100"
UNITS = {  # of the products, forward and backward; FP32 has none
    "fp32": ((), ()),
    "tf32": (("wgmma.k8 tf32->fp32",),) * 2,
    "fp16": (("wgmma.k16 fp16->fp32",),) * 2,
    "bf16": (("wgmma.k16 bf16->fp32",),) * 2,
    "fp8_hybrid": (
        ("wgmma.k32 e4m3->fp32",),
        # the last where attention computes its scores again
        ("wgmma.k32 e5m2*e4m3->fp32", "wgmma.k32 e4m3*e5m2->fp32", "wgmma.k32 e4m3->fp32"),
    ),
    "pure_fp16": (("wgmma.k16 fp16->fp32",),) * 2,
    "pure_bf16": (("wgmma.k16 bf16->fp32",),) * 2,
}
ADAMS_EPS = 1e-8
LARGER_EPS = 1e-4  # FP16 holds it; with Adam's own, pure FP16 stops in its first step


@dataclass(frozen=True)
class Params:
    """The sizes of both tasks; ``characters_seeds=0`` leaves the transformer out.

    ``digits_seeds``: trained under every policy. ``baseline_seeds``: in FP32, to measure how much seeds differ.
    """

    digits_width: int = 256
    digits_hidden: int = 2
    digits_lr: float = 0.1
    digits_momentum: float = 0.9
    digits_steps: int = 150
    digits_seeds: int = 8
    characters_steps: int = 200
    characters_seeds: int = 4
    characters_width: int = 64
    characters_context: int = 32
    characters_tested: int = 20_480
    baseline_seeds: int = 16


QUICK = Params(
    digits_width=64, digits_hidden=1, digits_lr=0.5, digits_momentum=0.8, digits_steps=30, digits_seeds=3,
    characters_steps=0, characters_seeds=0, baseline_seeds=12,
)  # fmt: skip


def tasks_of(params: Params) -> tuple[str, ...]:
    """The names of the tasks that are trained."""
    return ("digits", "characters") if params.characters_seeds else ("digits",)


def task_of(name: str, params: Params) -> Task:
    """The task of a name, at its size."""
    from ...training import tasks

    if name == "digits":
        return tasks.perceptron(width=params.digits_width, hidden=params.digits_hidden)
    return tasks.characters(
        width=params.characters_width, context=params.characters_context, tested=params.characters_tested
    )


def sizes(name: str, params: Params) -> tuple[int, int]:
    """Steps of a run, and seeds."""
    if name == "digits":
        return params.digits_steps, params.digits_seeds
    return params.characters_steps, params.characters_seeds


def run(params: Params, tick: Tick) -> Arrays:
    """Train everything; the work is counted in steps, of which one of FP32 counts a tenth."""
    names = tasks_of(params)
    arrays = first_batch()
    for i, name in enumerate(names):
        arrays |= task_runs(name, params, lambda f, text, i=i: tick((i + f) / len(names), text))  # type: ignore[misc]
    return arrays | adams_eps(params)


def task_runs(name: str, params: Params, tick: Tick) -> Arrays:
    """All policies and seeds of one task.

    ``NAME_losses``: float32 (policies, seeds, steps), NaN from the step on at which a run stopped; ``NAME_top1`` and
    ``NAME_held_out``: float64 (policies, seeds), NaN for a run that stopped; ``NAME_stops``: that step, or -1;
    ``NAME_skipped``: steps that the loss scaler left out. ``NAME_baseline``: top-1 of FP32, float64 (baseline seeds,).
    ``NAME_own`` (policies, seeds, steps): whether all products of a step ran in the policy's own units, forward and
    backward. ``NAME_last`` (policies, weights): what the first seed's run ends with, float32, NaN if it stopped.
    """
    from ...training import StoppedError, fit

    task = task_of(name, params)
    steps, seeds = sizes(name, params)
    shape = (len(POLICIES), seeds)
    losses = np.full((*shape, steps), np.nan, np.float32)
    top1, held_out = np.full(shape, np.nan), np.full(shape, np.nan)
    stops, skipped = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
    own, last = np.ones((*shape, steps), np.bool_), np.full((len(POLICIES), _size(task.model(0))), np.nan, np.float32)
    runs = [(p, s) for s in range(seeds) for p in range(len(POLICIES))]
    for done, (p, s) in enumerate(runs):
        tick(0.9 * done / len(runs), f"{name}: {NAMES[POLICIES[p]]}, seed {s}")
        try:
            found = fit(task, POLICIES[p], seed=s, steps=steps, optimizer=optimizer(name, POLICIES[p], params), gpu=GPU,
                        progress=_silent)  # fmt: skip
        except StoppedError as error:
            stops[p, s], losses[p, s, : error.step] = error.step, error.losses
            continue
        losses[p, s], skipped[p, s] = found.losses, found.skipped.sum()
        top1[p, s], held_out[p, s] = found.scores
        own[p, s] = [own_units(POLICIES[p], step) for step in found.units]
        if s == 0:
            last[p] = np.concatenate([w.detach().numpy().ravel() for w in found.model.parameters()])
    tick(0.9, f"{name}: more seeds in FP32")
    more = [fit(task, seed=s, steps=steps, optimizer=optimizer(name, "fp32", params), progress=_silent).scores.top1
            for s in range(seeds, params.baseline_seeds)]  # fmt: skip
    arrays = {"losses": losses, "top1": top1, "held_out": held_out, "stops": stops, "skipped": skipped}
    arrays |= {"own": own, "last": last}
    arrays["baseline"] = np.concatenate([top1[0], more])
    return {f"{name}_{key}": value for key, value in arrays.items()}


def own_units(policy: str, step: Sequence[Used]) -> bool:
    """Whether the products of a step, forward and backward, ran in the policy's units and in no other."""
    for phase, allowed in zip(("forward", "backward"), UNITS[policy], strict=True):
        ran = {used.unit for used in step if used.phase == phase}
        if bool(ran) != bool(allowed) or not ran <= {f"{GPU} {unit}" for unit in allowed}:
            return False
    return True


def _size(model: nn.Module) -> int:
    """How many weights a model has."""
    return sum(p.numel() for p in model.parameters())


def optimizer(name: str, policy: str, params: Params, eps: float | None = None) -> Made:
    """How a task is trained; for pure FP16 with an eps that FP16 holds."""
    from ...training.policies import Made

    if name == "digits":
        return Made("optimizers", "SGD", (("lr", params.digits_lr), ("momentum", params.digits_momentum)))
    chosen = eps or (LARGER_EPS if policy == "pure_fp16" else ADAMS_EPS)
    return Made("optimizers", "AdamW", (("lr", 2e-3), ("weight_decay", 0.01), ("eps", chosen)))


def _silent(_step: int, _steps: int) -> None:
    """Progress is shown by the run's own tick."""


# --- the first step, for the checks -----------------------------------------------------------------------------


def first_batch() -> Arrays:
    """The first batch of seed 0 on the digits, from integers alone: images uint8 (128, 64) in sixteenths, labels."""
    from ...training.data import digits

    images, labels = digits("train")
    raw = np.random.Philox(key=np.array([0, 0], np.uint64)).random_raw(len(labels))
    chosen = np.argsort(raw, kind="stable")[:128]
    return {"first_images": images[chosen].reshape(128, 64), "first_labels": labels[chosen]}


def adams_eps(params: Params) -> Arrays:
    """One step of AdamW with its own eps in pure FP16 on the digits: the step at which it stops, or -1."""
    from ...training import StoppedError, fit

    task = task_of("digits", params)
    stops = []
    for eps in (ADAMS_EPS, LARGER_EPS):
        try:
            fit(task, "pure_fp16", steps=1, optimizer=optimizer("characters", "pure_fp16", params, eps), gpu=GPU,
                progress=_silent)  # fmt: skip
            stops.append(-1)
        except StoppedError as error:
            stops.append(error.step)
    return {"eps_stops": np.array(stops, np.int32)}
