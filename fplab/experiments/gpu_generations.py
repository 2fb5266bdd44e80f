"""One training run in the bits of three GPUs: where the runs part, how far they go, and what it changes.

A classifier of digits (64-256-256-10, batch 128) learns by momentum in FP32. Operands of every product, forward and
backward, are rounded to FP16 and multiplied in a GPU's bits (:func:`fplab.nn.emulate`); everything else is torch's
FP32, the same for all. The loss is scaled by 2^10, so that small gradients survive as FP16 operands, and the weights'
gradients are scaled back exactly. The lab's model of B200 adds FP16 products as that of H100 does, so it has no run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import draw, numeric
from ..hardware.cases import Arrays, Case
from ..words import CLAUSE, joined, say
from .base import Claims, Columns, Experiment, Tick, in_columns, one_threaded, sheet
from .generations import product_case
from .outcomes import Outcome, Status, failed, passed, same_bits
from .statistics import superior

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..draw.style import Look
    from ..training.tasks import Batch, Task

GPUS = ("V100", "A100", "H100")
NUDGED = {"one weight": 1, "all weights": 2**30}  # runs on H100: how many weights of a layer are one ulp of FP32 larger
PLAIN = "FP32"  # torch's own products of the unrounded operands
RUNS = (*GPUS, *NUDGED, PLAIN)
V100, A100, REFERENCE, ONE, ALL, _ = range(len(RUNS))
OTHERS = [V100, A100]
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
        from ..training.tasks import perceptron

        return perceptron(width=self.width)


@dataclass(frozen=True)
class Result:
    """``losses`` (seed, run, step) float32; ``differ`` (seed, run, step), the share of weights whose bits differ from
    the H100's after the step, and ``distance``, their difference's norm over the norm of the H100's weights;
    ``answers`` (seed, run, digit) uint8, to be compared with ``labels``; ``first`` (seed, run, tensor), shares of the
    first step; ``own`` (seed, run, step), whether all products of the step ran in the run's own unit. Of the kept steps
    of the first seed, float32: ``before`` (run, step, 2, weight), weights and velocities, ``after`` (run, step, weight)
    and ``tensors`` (run, step, element). Softmax and its logarithm are torch's, whose bits depend on the CPU.
    """

    params: Params
    losses: np.ndarray
    differ: np.ndarray
    distance: np.ndarray
    first: np.ndarray
    own: np.ndarray
    answers: np.ndarray
    labels: np.ndarray
    before: np.ndarray
    after: np.ndarray
    tensors: np.ndarray

    @property
    def right(self) -> np.ndarray:
        """How many of the test digits each run reads, int64 (seed, run)."""
        return np.asarray((self.answers == self.labels).sum(axis=-1))


def gpu_of(run: str) -> str | None:
    """The GPU whose products a run has, None for torch's own."""
    return "H100" if run in NUDGED else None if run == PLAIN else run


class Machine:
    """One run: a model, its optimizer, and the arithmetic of its products."""

    def __init__(self, name: str, seed: int, params: Params) -> None:
        from ..nn import emulate
        from ..training import Momentum

        self.name, self.task = name, params.task
        self.model = self.task.model(seed)
        if name in NUDGED:
            _nudge(self.model, NUDGED[name])
        self.optimizer = Momentum(self.model, params.lr, params.momentum)
        gpu = gpu_of(name)
        self.emulation = None if gpu is None else emulate(gpu, "fp16")

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


@one_threaded
def run(params: Params, tick: Tick) -> Result:
    from ..tensorcore import get

    shape = (params.seeds, len(RUNS), params.steps)
    losses, differ, distance = np.zeros(shape, np.float32), np.zeros(shape), np.zeros(shape)
    first, own = np.zeros((*shape[:2], len(TENSORS))), np.zeros(shape, np.bool_)
    answers, before, after, tensors = [], [], [], []
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
                first[seed] = [[differing(x, y) for x, y in zip(one, found[REFERENCE], strict=True)] for one in found]
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
    labels = np.concatenate([batch.targets.numpy() for batch in params.task.held_out()]).astype(np.uint8)
    return Result(
        params, losses, differ, distance, first, own, np.array(answers), labels,
        *(np.array(kept).swapaxes(0, 1) for kept in (before, after, tensors)),
    )  # fmt: skip


def rows(result: Result) -> Columns:
    """A row for each seed and run: the last loss, the distance from the H100's run, the right answers."""
    found = []
    for seed, i in np.ndindex(result.right.shape):
        loss, differ, distance = (float(a[seed, i, -1]) for a in (result.losses, result.differ, result.distance))
        texts = f"{loss:.6f}", f"{differ:.4f}", f"{distance:.3e}"
        found.append((seed, RUNS[i], *texts, int(result.right[seed, i])))
    names = ("seed", "run", "last loss", "weights that differ from H100", "distance from H100", "right")
    return in_columns(names, found)


# --- a step by hand, without autograd and without the emulation -------------------------------------------------
def product(gpu: str | None, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A B of float32 matrices, on a GPU of operands rounded to FP16; without one, torch's."""
    import torch

    from ..tensorcore import matmul

    if gpu is None:
        return np.asarray(torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy())
    x, y = (np.asarray(numeric.quantize(v, "fp16")) for v in (a, b))
    return np.asarray(matmul(x, y, gpu=gpu, inputs="fp16"))


def step_by_hand(
    gpu: str | None, weights: list[np.ndarray], velocities: list[np.ndarray], batch: Any, params: Params
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """TENSORS of a step and the weights after it; the loss is torch's."""
    import torch

    x, layers = batch.inputs.numpy(), list(zip(weights[::2], weights[1::2], strict=True))
    inputs, outputs = [x], []
    for weight, bias in layers:
        if gpu is None:
            given = (torch.from_numpy(v) for v in (bias, inputs[-1], weight.T))
            outputs.append(torch.addmm(*given).numpy())
        else:
            outputs.append(product(gpu, inputs[-1], weight.T) + bias)
        inputs.append(np.maximum(outputs[-1], np.float32(0)))
    logits = torch.from_numpy(outputs[-1].copy()).requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits, batch.targets)
    (loss * LOSS_SCALE).backward()
    assert logits.grad is not None
    slope, gradients = logits.grad.numpy(), []
    for i in reversed(range(len(layers))):
        gradients += [torch.from_numpy(slope).sum(0).numpy(), product(gpu, slope.T, inputs[i])]
        if i:
            slope = np.where(outputs[i - 1] > 0, product(gpu, slope, layers[i][0]), np.float32(0))
    gradients = [g * np.float32(1 / LOSS_SCALE) for g in gradients]
    after = []
    for w, v, g in zip(weights, velocities, reversed(gradients), strict=True):
        velocity = v * np.float32(params.momentum) + g
        after.append(w + velocity * np.float32(-params.lr))
    return [*outputs, loss.detach().numpy(), *gradients], after


def parts(flat: np.ndarray, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """A flat array as arrays of these shapes."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True)]


def answers_by_hand(weights: list[np.ndarray], params: Params) -> np.ndarray:
    """What weights read on the test digits, in float64."""
    x = np.concatenate([batch.inputs.numpy() for batch in params.task.held_out()]).astype(np.float64)
    for i in range(0, len(weights), 2):
        x = (np.maximum(x, 0) if i else x) @ weights[i].T.astype(np.float64) + weights[i + 1]
    return np.asarray(x.argmax(axis=1))


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()
FEW, MANY = 0.05, 0.25  # what the claim's words mean, as shares


@CLAIMS.proved(
    "In the first, a middle and the last step every product, the unscaling and the update follow each GPU's rules"
)
@one_threaded
def steps(result: Result) -> Outcome:
    """Every tensor of the kept steps and every weight after them; and of what is drawn, the numbers of these steps."""

    params = result.params
    shapes = [tuple(p.shape) for p in params.task.model(0).parameters()]
    batches, values, first = list(params.task.batches(0, params.steps)), 0, []
    for r, name in enumerate(RUNS):
        for k, step in enumerate(params.kept):
            weights, velocities = (parts(row, shapes) for row in result.before[r, k])
            tensors, after = step_by_hand(gpu_of(name), weights, velocities, batches[step], params)
            for want, got in ((tensors, result.tensors), (after, result.after)):
                flat = np.concatenate([w.ravel() for w in want])
                outcome = same_bits(got[r, k].view(np.uint32), flat.view(np.uint32), "fp32")
                if outcome.status is not Status.PASS:
                    return failed(say("{run}, step {step}: {how}", run=name, step=step, how=outcome.detail))
                values += flat.size
            if step == 0:
                first.append(tensors)
            h100, own = result.after[REFERENCE, k], result.after[r, k]
            drawn = (float(tensors[TENSORS.index("loss")]), differing(own, h100), norm(own - h100) / norm(h100))
            told = tuple(float(a[0, r, step]) for a in (result.losses, result.differ, result.distance))
            if told != drawn:
                said = say("{run}, step {step}: loss, share and distance {told} are not the weights' {drawn}")
                return failed(said.fill(run=name, step=step, told=told, drawn=drawn))
        if not np.array_equal(result.answers[0, r], answers_by_hand(parts(result.after[r, -1], shapes), params)):
            return failed(say("{run}: the answers are not those of the last weights", run=name))
    shares = [[differing(x, y) for x, y in zip(one, first[REFERENCE], strict=True)] for one in first]
    if not np.array_equal(result.first[0], shares):
        return failed(say("the shares of the first step are not those of its tensors"))
    said = say("{n:,} numbers of steps {steps} of {runs} runs, every bit", n=values, runs=len(RUNS))
    return passed(said.fill(steps=", ".join(map(str, params.kept))))


@CLAIMS.proved("No product of any step, forward or backward, leaves the unit of its GPU")
def units(result: Result) -> Outcome:
    if not result.own.all():
        seed, run, step = np.argwhere(~result.own)[0]
        said = say("{run}, seed {seed}, step {step} and {n} more: another unit", run=RUNS[run], seed=seed, step=step)
        return failed(said.fill(n=int((~result.own).sum()) - 1))
    return passed(say("{n:,} steps of {runs} runs", n=result.own.size, runs=len(RUNS)))


@CLAIMS.measured("The first product parts V100, A100 and H100 in few elements, the second layer in many")
def parting(result: Result) -> Outcome:
    first = result.first[:, OTHERS]
    v100, a100 = first[:, :, :2].mean(axis=0)
    said = say("V100: {v1:.2%} of layer 1, {v2:.0%} of layer 2; A100: {a1:.2%} of layer 1, {a2:.0%} of layer 2")
    said = said.fill(v1=v100[0], v2=v100[1], a1=a100[0], a2=a100[1])
    if not ((first[:, :, 0] > 0) & (first[:, :, 0] < FEW)).all():
        few = say("the share of layer 1 is not between 0 and {few:.0%} in every seed", few=FEW)
        return failed(joined((said, few), CLAUSE))
    return superior(first[:, :, 1].min(axis=1), MANY, 0.0, said)


@CLAIMS.measured("From then on the runs part: their distance grows more than 100-fold")
def growth(result: Result) -> Outcome:
    """The distance of V100 and A100 from H100, after the first step and at the end; of each seed the smaller growth."""
    times = result.distance[:, OTHERS, -1] / result.distance[:, OTHERS, 0]
    share = result.differ[:, OTHERS, -1]
    said = say("by {low:,.0f} to {high:,.0f} times; {least:.0%} to {most:.0%} at last", low=times.min())
    decades = np.log10(times.min(axis=1))
    said = said.fill(high=times.max(), least=share.min(), most=share.max())
    return superior(decades, 0.0, 2.0, said)  # the claim's hundredfold is two decades


@CLAIMS.measured(
    "They end less than 10 times as far apart, on average, as runs on one GPU whose weights begin one ulp apart"
)
def noise(result: Result) -> Outcome:
    """The distance between GPUs beside that of two runs on one GPU which begin one ulp apart, in decades.

    The margin is the claim's factor of ten; of both GPUs of a seed the one that is farther off counts.
    """
    last = result.distance[:, :, -1]
    ratio = last[:, OTHERS] / last[:, [ALL]]
    said = say("{low:.2g} to {high:.2g} times that distance", low=ratio.min(), high=ratio.max())
    return superior(0.0, np.log10(ratio.max(axis=1)), -1.0, said)


@CLAIMS.library("One ulp of the first weight alone is lost where operands are rounded to FP16")
def swallowed(result: Result) -> Outcome:
    """The first weight an ulp larger in FP32 is the same FP16 operand, by numpy's cast, so no output notices."""
    params = result.params
    for seed, first in enumerate(result.first[:, ONE]):
        nudged, plain = (Machine(name, seed, params).weights()[0] for name in ("one weight", "H100"))
        if nudged == plain or nudged.astype(np.float16) != plain.astype(np.float16) or first.any():
            said = say("seed {seed}: {nudged} for {plain}, {share:.2%} differ", seed=seed, share=first.max())
            return failed(said.fill(nudged=nudged, plain=plain))
    return passed(say("{n} seeds, all {tensors} tensors of the first step", n=params.seeds, tensors=len(TENSORS)))


@CLAIMS.measured("Another seed changes more answers than another GPU")
def changed_answers(result: Result) -> Outcome:
    """Changed answers: on another GPU with the same seed, the larger number of both, and with the next seed."""
    answers, reference = result.answers, result.answers[:, REFERENCE]
    by_gpu = (answers[:, OTHERS] != reference[:, None]).sum(axis=2).max(axis=1)
    by_seed = (reference != np.roll(reference, 1, axis=0)).sum(axis=1)
    said = say("of {n} digits {gpu} at most by another GPU, {seed} at least by another seed", n=len(result.labels))
    return superior(by_seed, by_gpu, 0.0, said.fill(gpu=by_gpu.max(), seed=by_seed.min()))


@CLAIMS.measured("The networks learn on every machine")
def learning(result: Result) -> Outcome:
    """Every run reads well above chance, by 40% of all digits: of each seed the machine that reads least."""
    share = result.right.min(axis=1) / len(result.labels)
    fell = float((result.losses[..., -1] / result.losses[..., 0]).max())
    said = say("at least {share:.1%} right, losses at most {fell:.2f} of the first", share=share.min(), fell=fell)
    return superior(share, 0.1, 0.4, said)


# --- what a GPU must compute: the products of one training step, of operands that a short FP32 training reached -----
TRAINED = 11  # steps before the one whose operands are taken: an epoch
NAMES = (
    "layer 1, k = 64",
    "layer 2, k = 256",
    "gradient of layer 2's input, k = 256",
    "gradient of layer 2's weights, k = 128",
)


def halves(values: np.ndarray) -> np.ndarray:
    """FP16 codes of float32 values, rounded to nearest."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values).astype(np.float16).view(np.uint16)


@lru_cache(maxsize=2)
@one_threaded
def operands(params: Params) -> dict[str, Arrays]:
    """A and B of products A B^T, FP16 codes: both layers forward, and the second one's gradients."""
    import torch
    from torch.nn.functional import cross_entropy

    from ..training import Momentum
    from ..training.tasks import DIGITS_MLP

    model = DIGITS_MLP.model(0)
    optimizer = Momentum(model, params.lr, params.momentum)
    for batch in DIGITS_MLP.batches(0, TRAINED + 1):
        x, seen = batch.inputs, []
        for layer in model.children():
            x = layer(x)
            if x.requires_grad:
                x.retain_grad()
            seen.append(x)
        model.zero_grad()
        cross_entropy(x, batch.targets).backward()
        weights = [p.detach().numpy().copy() for p in model.parameters()]
        optimizer.step()
    slope = seen[2].grad
    assert isinstance(slope, torch.Tensor)
    gradient = slope.numpy() * np.float32(LOSS_SCALE)
    pixels, hidden = batch.inputs.numpy(), seen[1].detach().numpy()
    pairs = (pixels, weights[0]), (hidden, weights[2]), (gradient, weights[2].T), (gradient.T, hidden.T)
    return {name: {"a": halves(a), "b": halves(b)} for name, (a, b) in zip(NAMES, pairs, strict=True)}


def cases(params: Params) -> Iterator[Case]:
    for name in NAMES:
        for out in ("fp16", "fp32"):
            yield product_case(name, out, partial(given, params, name), is_long=not name.endswith(" 64"))


def given(params: Params, name: str) -> Arrays:
    """The operands of one product."""
    return dict(operands(params)[name])


# --- figures ----------------------------------------------------------------------------------------------------
LOOKS = {"V100": 1, "A100": 2, "H100": 0, "one weight": 6, "all weights": 4, "FP32": 5}
LABELS = {"one weight": "H100, 1 weight + ulp", "all weights": "H100, all + ulp", "FP32": "plain FP32"}
PARTING = ("V100", "A100", "all weights", "FP32")


def style(name: str) -> Look:
    return draw.look(LOOKS[name])


def drift(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 7.5, 2, 2)
    draw_losses(panels[0, 0], result)
    apart = np.abs(result.losses.astype(np.float64) - result.losses[:, [REFERENCE]])
    draw_curves(panels[0, 1], apart, "difference from the loss on H100")
    panels[0, 1].set_title("They part from the first step on")
    draw_curves(panels[1, 0], result.distance, r"$\|w - w_{H100}\| \; / \; \|w_{H100}\|$", ("one weight", *PARTING))
    panels[1, 0].set_title("The weights drift")
    draw_shares(panels[1, 1], result)
    figure.supxlabel("GPUs emulated; + ulp: on H100, weights that begin one ulp of FP32 larger", fontsize=9)
    return figure


def draw_losses(ax: draw.Axes, result: Result) -> None:
    steps = np.arange(result.losses.shape[-1])
    for name in ("V100", "A100", "H100", "FP32"):
        for seed, curve in enumerate(result.losses[:, RUNS.index(name)]):
            ax.plot(steps, curve, **style(name).line, linewidth=1.2, alpha=0.9, label=name if seed == 0 else None)
    ax.set(xlabel="step", ylabel="loss", ylim=0, xlim=(0, steps[-1]))
    ax.legend(loc="lower left")
    ax.set_title(f"{len(result.losses)} seeds: one curve each")


def draw_curves(ax: draw.Axes, found: np.ndarray, label: str, names: tuple[str, ...] = PARTING) -> None:
    """Each seed thin and the median of the seeds thick, logarithmic; zeros are left out."""
    steps = np.arange(1, found.shape[-1] + 1)
    ends = []
    for name in names:
        every = found[:, RUNS.index(name)]
        middle = np.median(every, axis=0)
        middle = np.where(middle > 0, middle, np.nan)
        for curve in every:
            ax.plot(steps, np.where(curve > 0, curve, np.nan), color=style(name).color, linewidth=0.6, alpha=0.4)
        ax.plot(steps, middle, **style(name).line)
        ends.append((float(middle[np.isfinite(middle)][-1]), LABELS.get(name, name), style(name).color))
    ax.set(yscale="log", xlim=(1, steps[-1]), xlabel="step", ylabel=label)
    draw.label_ends(ax, ends)


def draw_shares(ax: draw.Axes, result: Result) -> None:
    from matplotlib.ticker import PercentFormatter

    steps, ends = np.arange(1, result.differ.shape[-1] + 1), []
    for name in ("V100", "A100", "FP32"):
        middle = np.median(result.differ[:, RUNS.index(name)], axis=0)
        ax.plot(steps, middle, **style(name).line, clip_on=False)
        ends.append((float(middle[-1]), LABELS.get(name, name), style(name).color))
    ax.set(ylim=(0, 1), xlim=(1, steps[-1]))
    ax.yaxis.set_major_formatter(PercentFormatter(1, 0))
    ax.set(xlabel="step", ylabel="weights with other bits")
    draw.label_ends(ax, ends)
    ax.set_title("Soon few have the H100's bits")


def draw_first_step(ax: draw.Axes, result: Result) -> None:
    """Where the first step parts: the share of each tensor's elements, in the order of computation."""
    from matplotlib.ticker import PercentFormatter

    rows = np.arange(len(TENSORS))
    for offset, name in ((-0.2, "V100"), (0.2, "A100")):
        found = result.first[0, RUNS.index(name)]
        hatch = "" if name == "V100" else "///"
        ax.barh(rows + offset, found, 0.36, color=style(name).color, hatch=hatch, edgecolor=draw.current().background,
                linewidth=0, label=name)  # fmt: skip
        for y, share in zip(rows + offset, found, strict=True):
            inside = share > 0.85
            ax.text(share + (-0.01 if inside else 0.01), y, f"{share:.1%}" if share < 0.1 else f"{share:.0%}",
                    va="center", ha="right" if inside else "left", fontsize=9,
                    color=draw.current().background if inside else draw.current().ink)  # fmt: skip
    ax.set_yticks(rows, TENSORS)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1, 0))
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("elements with other bits than on H100, in the first step of the first seed")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.set_title("The first product starts it (GPUs emulated)")


def draw_answers(ax: draw.Axes, result: Result) -> None:
    from matplotlib.ticker import MaxNLocator

    count = result.right
    seeds = len(count)
    for i, name in enumerate(RUNS):
        x = np.arange(seeds) + (i - (len(RUNS) - 1) / 2) * 0.09
        ax.plot(x, count[:, i], linestyle="none", marker=style(name).marker, color=style(name).color,
                label=LABELS.get(name, name), markersize=6)  # fmt: skip
    middle, room = (count.max() + count.min()) / 2, max(6, np.ptp(count))
    ax.set_ylim(middle - 1.1 * room, middle + 1.1 * room)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xticks(range(seeds), [f"seed {s}" for s in range(seeds)])
    ax.set_xlim(-0.5, seeds - 0.5)
    ax.grid(visible=False, axis="x")
    ax.set_ylabel(f"right of {len(result.labels)} test digits")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    ax.set_title("How many digits each run reads")


EXPERIMENT = Experiment(
    title=say("One training run on three GPUs"),
    question=say("Where do the curves of one training run part on different GPUs, and what does it change?"),
    budget=6.0, full=Params(), quick=Params(steps=27, seeds=3, lr=0.1, width=128), result=Result, run=run, rows=rows,
    claims=CLAIMS, figures=(drift, sheet("parted", (8, 8), (2, 1), draw_first_step, draw_answers)), cases=cases,
)  # fmt: skip
