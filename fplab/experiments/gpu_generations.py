"""One training run in the bits of three GPUs: where the runs part, how far they go, and what it changes.

A classifier of digits (64-256-256-10, batch 128) learns by momentum in FP32. Operands of every product, forward and
backward, are rounded to FP16 and multiplied in a GPU's bits (:func:`fplab.nn.emulate`); everything else is torch's
FP32, the same for all. The loss is scaled by 2^10, so that small gradients survive as FP16 operands, and the weights'
gradients are scaled back exactly. The lab's model of B200 adds FP16 products as that of H100 does, so it has no run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import numeric
from ..hardware.cases import Arrays, Case
from ..words import CLAUSE, joined, say
from .frame import Experiment, Params, Result, one_threaded
from .generations import product_case
from .outcomes import Outcome, Part, failed, passed
from .panels import bars, dots, line
from .quantities import Columns, Quantity, above, of, superior, table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..training.tasks import Batch, Task

GPUS = ("V100", "A100", "H100")
NUDGED = {"one weight": 1, "all weights": 2**30}  # runs on H100: how many weights of a layer are one ulp of FP32 larger
PLAIN = "FP32"  # torch's own products of the unrounded operands
RUNS = (*GPUS, *NUDGED, PLAIN)
REFERENCE, OTHERS = "H100", ["V100", "A100"]
LOSS_SCALE = 2.0**10
PARAMETERS = ("0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias")
# What a step computes, in its order; gradients come from the last layer to the first.
TENSORS = ("layer 1", "layer 2", "layer 3", "loss", *(f"gradient of {name}" for name in reversed(PARAMETERS)))
FORWARD, BACKWARD = 3, 5  # products of a step; the images need no gradient
FEW, MANY = 0.05, 0.25  # what a claim's words mean, as shares

# ``steps``: of training, 11 an epoch. ``seeds``: runs of each machine. ``lr``, ``momentum``: of the updates. ``width``:
# of both hidden layers.
E = Experiment(
    "One training run on three GPUs",
    "Where do the curves of one training run part on different GPUs, and what does it change?",
    budget=6.0, one_thread=True,
    full={"steps": 220, "seeds": 5, "lr": 0.05, "momentum": 0.9, "width": 256},
    quick={"steps": 27, "seeds": 3, "lr": 0.1, "width": 128},
)  # fmt: skip


def task_of(p: Params) -> Task:
    """The digits, by a perceptron."""
    from ..training.tasks import perceptron

    return perceptron(width=p.width)


def kept_steps(p: Params) -> tuple[int, int, int]:
    """The steps of the first seed of which everything is kept: the first, a middle one and the last."""
    return 0, p.steps // 2, p.steps - 1


# --- one run ----------------------------------------------------------------------------------------------------
def gpu_of(run: str) -> str | None:
    """The GPU whose products a run has, None for torch's own."""
    return "H100" if run in NUDGED else None if run == PLAIN else run


class Machine:
    """One run: a model, its optimizer, and the arithmetic of its products."""

    def __init__(self, name: str, seed: int, p: Params) -> None:
        from ..nn import emulate
        from ..training import Momentum

        self.name, self.task = name, task_of(p)
        self.model = self.task.model(seed)
        if name in NUDGED:
            _nudge(self.model, NUDGED[name])
        self.optimizer = Momentum(self.model, p.lr, p.momentum)
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


@E.cache
def trained(p: Params, seed: int) -> dict[str, Any]:
    """All runs of a seed, step by step side by side.

    ``curves`` (run, step): the losses; the share of weights whose bits differ from the H100's after the step; their
    difference's norm over the norm of the H100's weights; whether all products of the step ran in the run's own unit.
    ``first`` (run, tensor): the shares of elements that differ in the first step. ``answers`` (run, digit). By kept
    step of the first seed ``before``, ``after`` and ``tensors``, by run: weights and velocities, weights, TENSORS.
    """
    from ..tensorcore import get

    machines = {name: Machine(name, seed, p) for name in RUNS}
    curves: list[list[Any]] = []
    kept: dict[str, Any] = {"before": {}, "after": {}, "tensors": {}}
    for step, batch in enumerate(task_of(p).batches(seed, p.steps)):
        keeping = seed == 0 and step in kept_steps(p)
        if keeping:
            kept["before"][step] = {
                name: (machine.weights(), machine.velocities()) for name, machine in machines.items()
            }
        tensors = {name: machine.step(batch) for name, machine in machines.items()}
        weights = {name: machine.weights() for name, machine in machines.items()}
        h100, size = weights[REFERENCE], norm(weights[REFERENCE])
        curves.append([(float(tensors[name][TENSORS.index("loss")]), differing(w, h100), norm(w - h100) / size)
                       for name, w in weights.items()])  # fmt: skip
        if step == 0:
            first = [
                [differing(x, y) for x, y in zip(own, tensors[REFERENCE], strict=True)] for own in tensors.values()
            ]
        if keeping:
            kept["after"][step], kept["tensors"][step] = weights, tensors
    own = np.zeros((len(RUNS), p.steps), np.bool_)
    for row, (name, machine) in zip(own, machines.items(), strict=True):
        if (gpu := gpu_of(name)) is None:
            row[:] = machine.emulation is None
            continue
        unit = get(gpu, "fp16").name
        wanted = ("forward", unit, FORWARD), ("backward", unit, BACKWARD)
        row[: len(machine.units())] = [used == wanted for used in machine.units()][: p.steps]
    answers = np.stack([machine.answers() for machine in machines.values()])
    return {"curves": (*np.array(curves).transpose(2, 1, 0), own), "first": first, "answers": answers, **kept}


# --- what is measured -------------------------------------------------------------------------------------------
@E.measure("losses", "differ", "distance", "own", axes={"seed": "seeds"}, dims={"run": RUNS, "step": "steps"})
def curves(p: Params, seed: int) -> Any:
    """Loss, weights with other bits than the H100's, their distance from them, products in the run's own unit."""
    return trained(p, seed)["curves"]


@E.measure(axes={"seed": "seeds"}, dims={"run": RUNS, "tensor": TENSORS})
def first(p: Params, seed: int) -> Any:
    """Elements with other bits than on H100 in the first step, by tensor in the order of computation."""
    return trained(p, seed)["first"]


@E.measure(axes={"seed": "seeds"}, dims={"run": RUNS, "digit": None})
def answers(p: Params, seed: int) -> Any:
    """What each run reads on the test digits."""
    return trained(p, seed)["answers"]


@E.measure(dims=("digit",))
def labels(p: Params) -> Any:
    """What they are."""
    return np.concatenate([batch.targets.numpy() for batch in task_of(p).held_out()]).astype(np.uint8)


@E.table
def rows(r: Result) -> Columns:
    """A row for each seed and run: the last loss, the distance from the H100's run, the right answers."""
    last = {name: getattr(r, name)[..., -1].drop_vars("step") for name in ("losses", "differ", "distance")}
    return table(**last, right=right(r))


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
    gpu: str | None, weights: list[np.ndarray], velocities: list[np.ndarray], batch: Any, p: Params
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
        velocity = v * np.float32(p.momentum) + g
        after.append(w + velocity * np.float32(-p.lr))
    return [*outputs, loss.detach().numpy(), *gradients], after


def parts(flat: np.ndarray, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """A flat array as arrays of these shapes."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True)]


def answers_by_hand(weights: list[np.ndarray], p: Params) -> np.ndarray:
    """What weights read on the test digits, in float64."""
    x = np.concatenate([batch.inputs.numpy() for batch in task_of(p).held_out()]).astype(np.float64)
    for i in range(0, len(weights), 2):
        x = (np.maximum(x, 0) if i else x) @ weights[i].T.astype(np.float64) + weights[i + 1]
    return np.asarray(x.argmax(axis=1))


# --- claims -----------------------------------------------------------------------------------------------------
@E.proved(
    "In the first, a middle and the last step every product, the unscaling and the update follow each GPU's rules"
)
def steps(r: Result) -> Iterator[Part]:
    """Every tensor of the kept steps and every weight after them; and of what is drawn, the numbers of these steps."""
    shapes = [tuple(x.shape) for x in task_of(r.p).model(0).parameters()]
    batches, kept = list(task_of(r.p).batches(0, r.p.steps)), trained(r.p, 0)
    by_hand: dict[str, list[np.ndarray]] = {}
    for name in RUNS:
        at = {"seed": 0, "run": name}
        for step in kept_steps(r.p):
            weights, velocities = (parts(row, shapes) for row in kept["before"][step][name])
            tensors, after = step_by_hand(gpu_of(name), weights, velocities, batches[step], r.p)
            h100, own = kept["after"][step][REFERENCE], kept["after"][step][name]
            got, want = (np.concatenate([x.ravel() for x in both]).view(np.uint32)
                         for both in ([*kept["tensors"][step][name], own], [*tensors, *after]))  # fmt: skip
            there = say("{run}, step {step}", run=name, step=step)
            yield there, got, want, "fp32"
            by_hand.setdefault(name, tensors)
            share = float((own.view(np.uint32) != h100.view(np.uint32)).mean())
            far, size = (float(np.sqrt((x.astype(np.float64) ** 2).sum())) for x in (own - h100, h100))
            drawn = float(tensors[TENSORS.index("loss")]), share, far / size
            yield there, [float(x.sel({**at, "step": step})) for x in (r.losses, r.differ, r.distance)], drawn
        yield name, r.answers.sel(at).values, answers_by_hand(parts(own, shapes), r.p)
    shares = [[(x.view(np.uint32) != y.view(np.uint32)).mean() for x, y in zip(own, by_hand[REFERENCE], strict=True)]
              for own in by_hand.values()]  # fmt: skip
    yield say("the shares of the first step"), r.first[0].values, shares


@E.proved("No product of any step, forward or backward, leaves the unit of its GPU")
def units(r: Result) -> Outcome:
    if not r.own.all():
        seed, run, step = np.argwhere(~r.own.values)[0]
        detail = say("{run}, seed {seed}, step {step} and {n} more: another unit", run=RUNS[run], seed=seed, step=step)
        return failed(detail.fill(n=int((~r.own).sum()) - 1))
    return passed(say("{n:,} steps of {runs} runs", n=r.own.size, runs=len(RUNS)))


@E.measured("The first product parts V100, A100 and H100 in few elements, the second layer in many")
def parting(r: Result) -> Outcome:
    layer1, layer2 = (of("first", run=OTHERS, tensor=f"layer {i}") for i in (1, 2))
    share = layer1.values(r)
    if not ((share > 0) & (share < FEW)).all():
        outside = say("the share of layer 1 is not between 0 and {few:.0%} in every seed", few=FEW)
        return failed(joined((layer1.described(r), outside), CLAUSE))
    return above(layer2.min("run"), MANY)(r)


def times_of_growth(result: Result) -> Any:
    """How many times the distance of V100 and A100 from H100 grows, of each seed the smaller."""
    distance = result.distance.sel(run=OTHERS)
    return (distance[..., -1] / distance[..., 0]).min("run")


def ratio_to_noise(result: Result) -> Any:
    """The distance between GPUs over that of two runs on one GPU which begin an ulp apart, of each seed the larger."""
    last = result.distance[..., -1]
    return (last.sel(run=OTHERS) / last.sel(run="all weights", drop=True)).max("run")


def right_share(result: Result) -> Any:
    """The share of right answers, of each seed the machine that reads least."""
    return (result.answers == result.labels).mean("digit").min("run")


def right(result: Result) -> Any:
    """How many answers are right."""
    return (result.answers == result.labels).sum("digit")


def changed_by_gpu(result: Result) -> Any:
    """Answers that another GPU changes, of both the larger number."""
    answers = result.answers
    return (answers.sel(run=OTHERS) != answers.sel(run=REFERENCE, drop=True)).sum("digit").max("run")


def changed_by_seed(result: Result) -> Any:
    """Answers that the next seed changes."""
    answers = result.answers.sel(run=REFERENCE)
    return (answers != answers.roll(seed=1)).sum("digit")


def decades(name: str, function: Any) -> Quantity:
    """The decimal logarithm of what a function makes of a result."""
    return Quantity(f"decades of {name}", lambda r: np.log10(function(r)), lambda r: np.log10(function(r)))


E.claim(
    superior("growth", "From then on the runs part: their distance grows more than 100-fold",
             decades("growth", times_of_growth), by=2.0),  # the claim's hundredfold is two decades
    superior("noise", "They end less than 10 times as far apart, on average, as runs on one GPU whose weights begin "
             "one ulp apart", 0.0, decades("the distance over that of one GPU's runs", ratio_to_noise), by=-1.0),
)  # fmt: skip


@E.library("One ulp of the first weight alone is lost where operands are rounded to FP16")
def swallowed(r: Result) -> Iterator[Part]:
    """The first weight an ulp larger in FP32 is the same FP16 operand, by numpy's cast, so no output notices."""
    for seed, shares in enumerate(r.first.sel(run="one weight").values):
        nudged, plain = (Machine(name, seed, r.p).weights()[0] for name in ("one weight", "H100"))
        yield say("seed {seed}: {nudged} for {plain}", seed=seed, nudged=nudged, plain=plain), nudged != plain
        yield say("seed {seed}", seed=seed), nudged.astype(np.float16), plain.astype(np.float16)
        yield say("seed {seed}", seed=seed), shares, np.zeros(len(TENSORS))


E.claim(
    superior("changed_answers", "Another seed changes more answers than another GPU",
             Quantity("changed by another seed", changed_by_seed, changed_by_seed),
             Quantity("by another GPU", changed_by_gpu, changed_by_gpu)),
    superior("learning", "The networks learn on every machine",
             Quantity("share of right answers", right_share, right_share), 0.1, 0.4),
)  # fmt: skip
E.answer("another GPU changes at most {gpu:.0f} of {n:,} answers, another seed {seed:.0f}; {share:.0%} of the weights "
         "end with other bits", gpu=lambda r: int(changed_by_gpu(r).max()), n=lambda r: r.answers.sizes["digit"],
         seed=lambda r: float(changed_by_seed(r).mean()),
         share=of("differ", run=OTHERS, step=-1))  # fmt: skip


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
def operands(p: Params) -> dict[str, Arrays]:
    """A and B of products A B^T, FP16 codes: both layers forward, and the second one's gradients."""
    import torch
    from torch.nn.functional import cross_entropy

    from ..training import Momentum
    from ..training.tasks import DIGITS_MLP

    model = DIGITS_MLP.model(0)
    optimizer = Momentum(model, p.lr, p.momentum)
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


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    for name in NAMES:
        for out in ("fp16", "fp32"):
            yield product_case(name, out, partial(given, p, name), is_long=not name.endswith(" 64"))


def given(p: Params, name: str) -> Arrays:
    """The operands of one product."""
    return dict(operands(p)[name])


# --- figures ----------------------------------------------------------------------------------------------------
LABELS = {"one weight": "H100, 1 weight + ulp", "all weights": "H100, all + ulp", "FP32": "plain FP32"}
E.figure(
    "drift",
    line(of("losses", run=[*GPUS, PLAIN]), x="step", hue="run", names=LABELS, xlabel="step", ylabel="loss", ylim=0,
         title="To the eye there is one curve (GPUs emulated)"),
    line(of("distance", run=[*OTHERS, "all weights", PLAIN]), x="step", hue="run", log="y", names=LABELS, xlabel="step",
         ylabel=r"$\|w - w_{H100}\| \; / \; \|w_{H100}\|$",
         title="The weights drift, as they do from one ulp's noise"),
    size=(8, 7.5),
)  # fmt: skip
E.figure(
    "parted",
    bars((of("first", run=OTHERS) * 100).mean("seed"), y="tensor", hue="run", numbers="{:.1f}", xlim=(0, 115),
         xlabel="elements with other bits than on H100 in the first step (%)",
         title="The first product starts it (GPUs emulated)"),
    dots(Quantity("right", right, right), y="run", names=LABELS, xlabel="right answers, a point a seed",
         title="Another seed changes more than another GPU"),
    size=(8, 8.5), height_ratios=[1.5, 1],
)  # fmt: skip
