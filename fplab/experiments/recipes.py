"""Training by recipes of eight and four bits: what they cost, which layers suffer, and what NVFP4's ingredients do.

A transformer guesses characters and a convolutional net reads digits. FP32 begins; from the same weights every recipe
goes on with the same batches, all products in a B200's bits. The published ablations are of models of billions of
parameters (NVIDIA 2025, Pretraining Large Language Models with NVFP4, arXiv 2509.25149, section 4): what of them is
seen at this size, and what is not, is said with seeds and spread. Beside it what a recipe keeps in memory
(:mod:`fplab.memory`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import draw
from ..hardware.cases import Arrays, Case, Meta, philox_bits
from ..hardware.tensors import bits, tensor
from ..words import CLAUSE, COMMA, joined, say
from .base import Claims, Columns, Experiment, Tick, in_columns, one_threaded
from .fp8_training import backward, descend, relative
from .outcomes import Outcome, absent, failed, passed
from .statistics import both, equivalent, superior

if TYPE_CHECKING:
    from torch import nn

    from ..nn.recipes import Recipe
    from ..training.tasks import Task

PARTS = ("once", "mean of draws", "to nearest", "without Hadamard")  # NVFP4's backward products
SEQUENCES = 32  # of which memory is calculated
FORWARD_ONLY: dict[str, Any] = {"keep_last": 0.0, "data_gradient": None, "weight_gradient": None}
GPU = "B200"  # which has a unit for every recipe
KEPT = {"nvfp4": {"keep_last": 0.15}}  # these networks have fewer layers than shares of blocks could be taken of
UNITS = {"bf16": "bf16", "mxfp8": "e4m3/e8m0x32", "nvfp4": "e2m1/e4m3x16"}  # of its products; those of others take FP8
NETS = ("transformer", "convolutional net")
# Bytes of an element, by recipe: of a saved input, of both copies of a weight. 2 and 0: quantised for each product.
BYTES = {
    "fp8_delayed": (1.0, 2.0), "fp8_current": (1.0, 2.0), "fp8_rowwise": (2.0, 0.0),
    "fp8_block": (1 + 4 / 128, 2 + 8 / 128**2), "mxfp8": (1 + 1 / 32, 2 + 2 / 32), "nvfp4": (9 / 16, 18 / 16),
}  # fmt: skip
HEADS = 2


class Way(NamedTuple):
    """One way to train: a recipe's constructor, "" for FP32, what it is given, and its name here."""

    title: str
    name: str
    fields: Mapping[str, Any] = MappingProxyType({})

    @property
    def recipe(self) -> Recipe | None:
        """The recipe, of every layer; None is torch's FP32."""
        from ..nn import recipes

        given = {"scope": "all", **KEPT.get(self.name, {}), **self.fields}
        return recipes.RECIPES[self.name](**given) if self.name else None


FP32, BF16, NVFP4 = Way("FP32", ""), Way("BF16", "bf16"), Way("NVFP4", "nvfp4")
EIGHT = (Way("FP8 delayed", "fp8_delayed"), Way("FP8 current", "fp8_current"), Way("FP8 by rows", "fp8_rowwise"),
         Way("FP8 by blocks", "fp8_block"), Way("MXFP8", "mxfp8"))  # fmt: skip
ABLATED: dict[str, dict[str, Any]] = {
    "without Hadamard": {"disable_rht": True}, "without stochastic": {"disable_stochastic_rounding": True},
    "without 2D": {"disable_2d_quantization": True}, "last layer too": {"keep_last": 0.0},
}  # fmt: skip
WITHOUT = tuple(Way(title, "nvfp4", fields) for title, fields in ABLATED.items())
NO_HADAMARD, NEAREST, ONE_DIMENSION, LAST_TOO = WITHOUT
WAYS = (FP32, BF16, *EIGHT, NVFP4, *WITHOUT)
ALONE = (EIGHT[-1], LAST_TOO)  # MXFP8 and NVFP4, of one layer at a time


@dataclass(frozen=True)
class Params:
    """Of the transformer and of the convolutional net: ``begun``, steps in FP32, ``steps`` by each way, ``batches``.

    ``seeds``: of each way, from ``seed`` on: on none of these a margin was chosen. ``layers``, ``width``,
    ``context``: of the transformer. ``draws``: of stochastic rounding, of one gradient. ``fresh``: batches on which
    layers are tried alone, 0 for none. ``tested``: characters that are held out.
    """

    seeds: tuple[int, int] = (5, 5)
    seed: int = 100
    begun: tuple[int, int] = (150, 80)
    steps: tuple[int, int] = (30, 30)
    batches: tuple[int, int] = (2, 16)
    layers: int = 2
    width: int = 64
    context: int = 64
    draws: int = 8
    fresh: int = 4
    tested: int = 4097

    def task(self, net: int) -> Task:
        from ..training import tasks

        if not net:
            sizes: dict[str, Any] = {name: getattr(self, name) for name in ("layers", "width", "context", "tested")}
            return tasks.characters(heads=HEADS, batch=self.batches[0], **sizes)

        def batches(seed: int, steps: int, start: int = 0) -> Iterator[tasks.Batch]:
            for images, labels in tasks.DIGITS.batches(seed, steps, start):
                yield tasks.Batch(images[: self.batches[1]], labels[: self.batches[1]])

        return replace(tasks.DIGITS, batches=batches, batch=self.batches[1])


QUICK = Params(seeds=(4, 3), begun=(40, 100), steps=(1, 1), batches=(1, 8), layers=1, draws=2, fresh=0,
               tested=1025)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Of one network, which tells ``choices`` answers apart by ``layers``, their names.

    ``losses`` (seeds, ways, steps), float32; ``held_out`` (seeds, ways), of the trained weights in FP32. Of the network
    that FP32 began: ``gradients`` (seeds, ways, layers), how far each layer's weight gradient is from FP32's, relative
    to its norm; ``backward`` (seeds, parts): what of that NVFP4's backward products are the cause of, by ``PARTS``;
    ``alone`` (seeds, 2, layers): what MXFP8 or NVFP4 in one layer alone adds to the loss of fresh batches.
    """

    choices: int
    layers: tuple[str, ...]
    losses: np.ndarray
    held_out: np.ndarray
    gradients: np.ndarray
    backward: np.ndarray
    alone: np.ndarray

    def loss(self, way: Way) -> np.ndarray:
        return np.asarray(self.held_out[:, WAYS.index(way)])

    def error(self, way: Way) -> np.ndarray:
        """Of the gradients, the root of the mean square over all layers but the last, of each seed."""
        return np.asarray(np.sqrt((self.gradients[:, WAYS.index(way), :-1] ** 2).mean(-1)))


@dataclass(frozen=True)
class Result:
    """What was found of each network, in the order of ``NETS``. ``kept`` (ways, 3): bytes of the transformer's
    states, saved activations and casts for ``SEQUENCES``, in mixed precision with AdamW.
    """

    params: Params
    nets: tuple[Found, ...]
    kept: np.ndarray


@one_threaded
def run(params: Params, tick: Tick) -> Result:
    nets = []
    for net, name in enumerate(NETS):
        seeds = []
        for n in range(params.seeds[net]):
            tick((net + n / params.seeds[net]) / 2, f"{name} {n + 1}")
            seeds.append(of_seed(params, net, params.seed + n))
        layers = tuple(linear(params.task(net).model(0)))
        nets.append(Found((96, 10)[net], layers, *map(np.array, zip(*seeds, strict=True))))
    return Result(params, tuple(nets), remembered(params))


def linear(model: nn.Module) -> dict[str, nn.Module]:
    """The layers with a matrix to multiply by, in order."""
    from torch import nn

    return {n: layer for n, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}


def of_seed(params: Params, net: int, seed: int) -> tuple[np.ndarray, ...]:
    """Of one network, the fields of what is found from ``losses`` to ``alone``."""
    task, begun = params.task(net), params.begun[net]
    steps = begun + params.steps[net]
    begin = task.model(seed)
    start = begin, optimizer(net, begin)
    descend(task, *start, seed, begun)
    losses, held_out, gradients = [], [], []
    for way in WAYS:
        model, optim = copy.deepcopy(start)
        run = emulation(way.recipe)
        first = descend(task, model, optim, seed, begun + 1, run, start=begun)
        gradients.append(gradients_of(model))
        losses.append(np.append(first, descend(task, model, optim, seed, steps, run, start=begun + 1)))
        held_out.append(task.scores(model).loss)
        if way.name == "fp8_delayed":  # whose first step has no history
            gradients[-1] = weight_gradients(task, begin, seed, begun, way)
    apart = [layerwise(found, gradients[0]) for found in gradients]
    return tuple(map(np.array, (losses, held_out, apart, of_backward(params, task, begin, seed, begun),
                                alone(params, task, begin, seed, begun))))  # fmt: skip


def layerwise(got: list[np.ndarray], want: list[np.ndarray]) -> list[float]:
    """How far each layer's gradient is from what is wanted."""
    return [relative([g], [w]) for g, w in zip(got, want, strict=True)]


def of_backward(params: Params, task: Task, model: nn.Module, seed: int, begun: int) -> np.ndarray:
    """What NVFP4's backward products alone change in gradients, by ``PARTS``: root of the mean square over layers.

    The reference quantises the forward products as well, and none of the backward pass.
    """

    def gradients(**fields: Any) -> list[np.ndarray]:
        return weight_gradients(task, model, seed, begun, Way("", "nvfp4", {"keep_last": 0.0, **fields}))

    want = gradients(**FORWARD_ONLY)
    plain, bare = ([gradients(seed=n, disable_rht=no_rht) for n in range(params.draws)] for no_rht in (False, True))
    mean = [np.mean(layer, axis=0) for layer in zip(*plain, strict=True)]
    found = [[layerwise(one, want) for one in plain], [layerwise(mean, want)],
             [layerwise(gradients(disable_stochastic_rounding=True), want)],
             [layerwise(one, want) for one in bare]]  # fmt: skip
    return np.array([np.sqrt((np.array(errors) ** 2).mean()) for errors in found])


def emulation(recipe: Recipe | None, **options: Any) -> Any:
    """A recipe on the GPU; None is torch's FP32."""
    from ..nn import emulate

    return nullcontext() if recipe is None else emulate(GPU, recipe=recipe, **options)


def optimizer(net: int, model: nn.Module) -> Any:
    """AdamW for the transformer, momentum for the convolutional net, as the tasks' baselines."""
    from torch import optim

    from ..training.loop import Momentum

    return Momentum(model, 0.05, 0.9) if net else optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)


def weight_gradients(task: Task, model: nn.Module, seed: int, steps: int, way: Way) -> list[np.ndarray]:
    """Of the matrices of all layers, on the next batch; delayed scaling has its history from the one before it."""
    run = emulation(way.recipe)
    for batch in task.batches(seed, steps + 1, steps - (way.name == "fp8_delayed")):
        backward(task, model, batch, run)
    return gradients_of(model)


def gradients_of(model: nn.Module) -> list[np.ndarray]:
    """The latest, of the matrices of all layers."""
    weights: list[Any] = [layer.weight for layer in linear(model).values()]
    return [weight.grad.numpy().copy() for weight in weights]


def alone(params: Params, task: Task, model: nn.Module, seed: int, begun: int) -> np.ndarray:
    """What a recipe in one layer alone adds to the loss of fresh batches, the rest in BF16: (recipes, layers)."""
    import torch

    if not params.fresh:
        return np.full((len(ALONE), len(linear(model))), np.nan)
    batches = list(task.batches(seed, begun + params.fresh, begun))

    def loss(**options: Any) -> float:
        with torch.no_grad(), emulation(BF16.recipe, **options):
            return float(np.mean([task.loss(model, batch).item() for batch in batches]))

    plain, names = loss(), list(linear(model))
    return np.array([[loss(layers={name: way.recipe}) - plain for name in names] for way in ALONE])


def remembered(params: Params) -> np.ndarray:
    """Bytes of the transformer's training by way (ways, 3): states, saved activations, casts; by the calculator."""
    from .. import memory

    shape: dict[str, Any] = {"layers": params.layers, "hidden": params.width, "sequence": params.context}
    model = memory.Transformer("characters", heads=HEADS, vocabulary=96, tied=False, dropout=False, flash=True, **shape)
    found = []
    for way in WAYS:
        recipe = way.recipe and replace(way.recipe, scope="deepseek_v3")  # the head is counted in 16 bits
        rank = memory.estimate(
            model, precision="fp32" if way == FP32 else "mixed", recipe=recipe, micro_batch=SEQUENCES
        ).fullest  # fmt: skip
        found.append((rank.states, rank.device["activations"], rank.device["temporary"]))
    return np.array(found)


def rows(result: Result) -> Columns:
    """A row for each network and way: held-out loss and gradient error with their spreads over seeds, bytes."""
    names = ("network", "way", "loss", "loss_spread", "gradient_error", "gradient_error_spread", "bytes")
    table = []
    for n, (name, net) in enumerate(zip(NETS, result.nets, strict=True)):
        for w, way in enumerate(WAYS):
            loss, error = net.loss(way), net.error(way)
            size = int(result.kept[w].sum()) if n == 0 else ""
            table.append((name, way.title, float(loss.mean()), float(loss.std(ddof=1)), float(error.mean()),
                          float(error.std(ddof=1)), size))  # fmt: skip
    return in_columns(names, table)


# --- claims -----------------------------------------------------------------------------------------------------
# Margins, in nats of loss and in logarithms of errors, fixed on the quick size before the full one was run; that one
# turned two expectations, that the Hadamard transform helps and that squares of weights cost, into equality. All hold
# on the seeds of ``Params``, which were new then.
LEARNED, ALIKE = 0.2, 0.02
FEWER_BITS, BIASED, HEAD = 0.05, 0.0, float(np.log(2))
TENTH, FIFTH = 0.1, 0.2
NOTHING = 1e-4  # nats that a layer adds, below which it adds none
CLAIMS = Claims()


def on_both(result: Result, test: Callable[[Found, str], Outcome]) -> Outcome:
    """What holds of both networks, with what each says."""
    return both(*(test(net, name) for net, name in zip(result.nets, NETS, strict=True)))


def errs_more(net: Found, name: str, one: Way, other: Way, margin: float) -> Outcome:
    """Whether the gradients of one way are further from FP32's than another's, by a margin in the logarithm."""
    errors = net.error(one), net.error(other)
    said = say("{net}: {one} {more:.1%}, {other} {less:.1%}", net=name, one=one.title, other=other.title,
               more=errors[0].mean(), less=errors[1].mean())  # fmt: skip
    return superior(np.log(errors[0]), np.log(errors[1]), margin, said)


@CLAIMS.measured("the networks have learnt: they guess better than by chance")
def learnt(result: Result) -> Outcome:
    """The held-out loss after all steps in FP32, against that of equal shares."""

    def test(net: Found, name: str) -> Outcome:
        chance = np.full(len(net.held_out), np.log(net.choices))
        said = say("{net}: {loss:.2f} nats of {chance:.2f}", net=name, loss=net.loss(FP32).mean(), chance=chance[0])
        return superior(chance, net.loss(FP32), LEARNED, said)

    return on_both(result, test)


@CLAIMS.proved("every product of a layer runs in its recipe's unit; what a recipe keeps high, and attention, in BF16")
def units(result: Result) -> Outcome:
    counted = 0
    for net in range(len(NETS)):
        task = result.params.task(net)
        for way in WAYS[1:]:
            model = task.model(0)
            run = emulation(way.recipe)
            (batch,) = task.batches(0, 1)
            with run:
                task.loss(model, batch).backward()
            names = list(linear(model))
            kept = names[len(names) - round(way.recipe.keep_last * len(names)) :]  # type: ignore[union-attr]
            for row in run.report().rows:
                want = UNITS.get(way.name, ("e4m3", "e5m2")) if row.layer in names and row.layer not in kept else "bf16"
                if not row.unit.split()[-1].startswith(want):
                    return failed(say("{way}: {layer} in {unit}", way=way.title, layer=row.layer, unit=row.unit))
                counted += row.count
    return passed(say("{n:,} products of {ways} ways", n=counted, ways=len(WAYS) - 1))


@CLAIMS.measured("gradients err more the fewer bits: BF16, then the recipes in eight bits, then NVFP4")
def fewer_bits(result: Result) -> Outcome:
    """Of all layers but the last, which NVFP4 keeps in BF16, of both networks; geometric means."""

    errors = [np.concatenate(found) for found in zip(*map(by_bits, result.nets), strict=True)]
    shares = [np.exp(np.mean(error)) for error in errors]
    said = say("{bf16:.1%}, {eight:.1%}, {nvfp4:.1%}", **dict(zip(("bf16", "eight", "nvfp4"), shares, strict=True)))
    bf16, eight, nvfp4 = errors
    return both(superior(eight, bf16, FEWER_BITS, said), superior(nvfp4, eight, FEWER_BITS, said))


def by_bits(net: Found) -> tuple[np.ndarray, ...]:
    """Logarithms of the errors of BF16, of the recipes in eight bits, and of NVFP4, of each seed."""
    eight = np.mean([np.log(net.error(way)) for way in EIGHT], axis=0)
    return np.log(net.error(BF16)), eight, np.log(net.error(NVFP4))


@CLAIMS.measured("no recipe, nor NVFP4 without an ingredient, is seen in the transformer's held-out loss at this size")
def loss_alike(result: Result) -> Outcome:
    """Every way against BF16, seed by seed; runs of the convolutional net part, also FP32's from BF16's: no verdict."""
    net, other = result.nets
    found, most = [], 0.0
    for way in WAYS[2:]:
        apart = net.loss(way) - net.loss(BF16)
        most = max(most, abs(float(apart.mean())))
        said = say("{way}: {apart:+.4f} nats beyond BF16's", way=way.title, apart=apart.mean())
        found.append(equivalent(net.loss(way), net.loss(BF16), ALIKE, said))
    outcome = all_of(found)
    spread = max(float((other.loss(way) - other.loss(BF16)).std(ddof=1)) for way in WAYS[2:])
    said = say("{n} ways, {most:.4f} nats apart at most; the convolutional net's spread up to {spread:.3f}")
    said = said.fill(n=len(found), most=most, spread=spread)
    return Outcome(outcome.status, joined((said, outcome.detail), CLAUSE), outcome.sample)


@CLAIMS.measured("rounding gradients to nearest biases them: the mean of stochastic draws errs less")
def unbiased(result: Result) -> Outcome:
    """What backward products alone change, averaged over draws, and to nearest, of both networks."""
    return of_parts(result.nets, "to nearest", "mean of draws", BIASED)


@CLAIMS.measured("the Hadamard transform changes the error of backward products by less than a tenth")
def hadamard(result: Result) -> Outcome:
    return of_parts(result.nets, "without Hadamard", "once", TENTH, equivalent)


def of_parts(
    nets: Sequence[Found], more: str, less: str, margin: float, test: Callable[..., Outcome] = superior
) -> Outcome:
    """Whether one part of the backward pass errs more than another, or alike, by logarithms, over networks."""
    pairs = [net.backward[:, [PARTS.index(more), PARTS.index(less)]] for net in nets]
    ones, others = np.concatenate(pairs).T
    said = say("{more} {one:.2%}, {less} {other:.2%}", more=more, one=ones.mean(), less=less, other=others.mean())
    return test(np.log(ones), np.log(others), margin, said)


@CLAIMS.measured("weights in blocks of 16 x 16 or of 1 x 16: the transformer's gradients err alike, within a fifth")
def two_dimensions(result: Result) -> Outcome:
    """One value for both uses of a weight, which NVFP4's paper wants, costs no accuracy and brings none in one step."""
    errors = [result.nets[0].error(way) for way in (NVFP4, ONE_DIMENSION)]
    conv = [result.nets[1].error(way).mean() for way in (NVFP4, ONE_DIMENSION)]
    said = say("{one:.1%} and {other:.1%}; the convolutional net {two:.1%} and {less:.1%}", one=errors[0].mean(),
               other=errors[1].mean(), two=conv[0], less=conv[1])  # fmt: skip
    return equivalent(np.log(errors[0]), np.log(errors[1]), FIFTH, said)


@CLAIMS.measured("the transformer's head, kept in BF16, lowers the error of the gradients before it")
def head(result: Result) -> Outcome:
    """All layers but the last, with the last in NVFP4, too, and without."""
    return errs_more(result.nets[0], NETS[0], LAST_TOO, NVFP4, FEWER_BITS)


def all_of(found: list[Outcome]) -> Outcome:
    """Of measured outcomes the first that fails, or the last."""
    failing = [outcome for outcome in found if not outcome.holds]
    return failing[0] if failing else found[-1]


UNTRIED = say("tried at the full size (fplab run recipes --full)")


@CLAIMS.measured("alone in NVFP4 the transformer's head costs over twice the loss of the other layers' mean")
def head_alone(result: Result) -> Outcome:
    """In nats of fresh batches, by logarithms."""
    own, others = result.nets[0].alone[:, 1, -1], result.nets[0].alone[:, 1, :-1].mean(-1)
    if np.isnan(own).any():
        return absent(UNTRIED)
    said = say("the head {own:.4f} nats, others {other:.4f}", own=own.mean(), other=others.mean())
    own, others = (np.log(np.maximum(x, NOTHING)) for x in (own, others))
    return superior(own, others, HEAD, said)


@CLAIMS.proved(
    "memory is as by hand: a layer's 7 inputs in the recipe's own bytes, and 2 quantised copies of its weights"
)
def kept_bytes(result: Result) -> Outcome:
    """The calculator's bytes, by hand: seven inputs of each layer, of which FlashAttention keeps one as it was."""
    params = result.params
    values = params.layers * SEQUENCES * params.context * params.width
    weights = params.layers * (12 * params.width**2 + 13 * params.width)
    base = result.kept[WAYS.index(BF16)]
    for w, way in enumerate(WAYS):
        if way.name not in BYTES:
            continue
        each, copies = BYTES[way.name]
        saved = values * (12 - 7 * each) if each < 2 else 0
        want = (base[0], base[1] - saved, base[2] + weights * copies)
        if any(abs(got - by_hand) > 32 for got, by_hand in zip(result.kept[w], want, strict=True)):
            return failed(say("{way}: {got}, by hand {want}", way=way.title, got=result.kept[w].tolist(), want=want))
    sizes = [say("{way} {n:,}", way=way.title, n=int(result.kept[w].sum())) for w, way in enumerate(WAYS) if w < 8]
    return passed(joined(sizes, COMMA))


# --- GPU cases --------------------------------------------------------------------------------------------------
SHAPE = (32, 128)  # rows, k


def drawn_values() -> Arrays:
    """Blocks of many sizes, one of zeros, and what lies half way between two codes."""
    x = (philox_bits(870, SHAPE[0] * SHAPE[1]) & 0x80FFFFFF | 0x3F000000).view(np.float32).reshape(-1, 16)
    x = x * np.exp2((philox_bits(871, len(x)) % 13).astype(np.float32) - 6)[:, None]
    x[3], x[4] = 0, np.resize(np.array([6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25], np.float32), 16)
    return {"x": x.astype(np.float32).reshape(SHAPE).view(np.uint32)}


def quantised_by_torch(square: bool, given: Arrays, device: str) -> Arrays:
    """NVFP4 of torch's operations, as Transformer Engine writes them: each rounds once, so every bit is known."""
    import torch

    def f32(value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.float32, device=device)

    x = tensor(given["x"], "fp32", device)
    blocks = x.unflatten(0, (-1, 16 if square else 1)).unflatten(-1, (-1, 16))  # (row blocks, rows, blocks, 16)
    g = f32(2688.0) / x.abs().max()
    most = blocks.abs().amax((1, 3), keepdim=True)
    scale = (most * (g * f32(1 / 6))).clamp(max=448.0).to(torch.float8_e4m3fn)
    factor = (f32(1.0) / (scale.float() * (f32(1.0) / g))).clamp(max=torch.finfo(torch.float32).max)
    scaled = (blocks * factor).clamp(-6.0, 6.0)
    size = scaled.abs()
    up, even = (0.75, 1.75, 3.5), (0.25, 1.25, 2.5, 5.0)  # a tie goes to the even code
    code = sum((size >= edge).to(torch.uint8) for edge in up) + sum((size > edge).to(torch.uint8) for edge in even)
    code = torch.where(scaled < 0, code + 8, code)  # of zeros, too, but for a -0 that came in
    return {"codes": bits(code.flatten(2).flatten(0, 1)), "scales": bits(scale.view(torch.uint8).flatten(2).squeeze(1))}


def quantised_by_lab(square: bool, given: Arrays, meta: Meta) -> Arrays:
    """The same by the lab."""
    from ..scaled import quantize

    q = quantize(given["x"].view(np.float32), "nvfp4", block=(16 if square else 1, 16))
    return {"codes": q.codes, "scales": q.scales}


def cases(params: Params) -> Iterator[Case]:
    for square in (False, True):
        yield Case(f"nvfp4, blocks of {'16 x 16' if square else '1 x 16'}", drawn_values,
                   partial(quantised_by_torch, square), partial(quantised_by_lab, square),
                   {"codes": "bits8", "scales": "bits8"})  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------


def losses(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 5, 1, 2, sharey=True)
    for ax, net, name in zip(panels, result.nets, NETS, strict=True):
        for w, way in enumerate(WAYS):
            added, style = 1000 * (net.loss(way) - net.loss(BF16)), draw.look(color_of(way))
            ax.plot(added, np.full(len(added), w), linestyle="none", marker="o", markersize=4, color=style.color)
            ax.plot(added.mean(), w, linestyle="none", marker="|", markersize=16, color=style.color)
        ax.axvline(0, color=draw.current().muted, linewidth=1)
        ax.set(title=name.capitalize(), xlabel="held-out loss beyond BF16's (nats / 1000)")
        ax.set_yticks(range(len(WAYS)), [way.title for way in WAYS])
    panels[0].invert_yaxis()
    figure.suptitle("Seeds (dots) and their mean; all products in a B200's bits, emulated", fontsize=10)
    return figure


def color_of(way: Way) -> int:
    """A colour for each width."""
    return 5 if way in (FP32, BF16) else 0 if way in EIGHT else 1


def layers(result: Result) -> draw.Figure:
    ratios = [1.2, 1] if result.params.fresh else [1.2]  # else no layer was tried alone
    figure, panels = draw.panels(8, 7.4 * sum(ratios) / 2.2, len(ratios), 2, height_ratios=ratios, squeeze=False)
    for (top, *below), net, name in zip(panels.T, result.nets, NETS, strict=True):
        at = np.arange(len(net.layers))
        for i, way in enumerate((BF16, EIGHT[1], EIGHT[-1], NVFP4, LAST_TOO)):
            error = 100 * net.gradients[:, WAYS.index(way)].mean(0)
            top.plot(at, error, **draw.look((5, 0, 2, 1, 3)[i]).marked, label=way.title)
        top.set(yscale="log", title=f"{name.capitalize()}: error of gradients (%)")
        for bottom, (r, way) in itertools.product(below, enumerate(ALONE)):
            added = 1000 * net.alone[:, r]
            bottom.bar(at + 0.4 * (r - 0.5), added.mean(0), 0.36, color=draw.look((2, 3)[r]).color,
                       label=way.title.replace("last layer too", "NVFP4"))  # fmt: skip
            bottom.vlines(at + 0.4 * (r - 0.5), added.min(0), added.max(0), color=draw.current().ink, linewidth=1)
            bottom.set_title("One layer alone adds (nats / 1000)")
        for ax in (top, *below):
            ax.set_xticks(at, [short(layer) for layer in net.layers], rotation=45, ha="right")
    panels[0, 0].legend(fontsize=9, loc=(0.05, 0.16))
    for ax in panels[1:, 0]:
        ax.legend(fontsize=9, loc="upper left")
    return figure


def short(layer: str) -> str:
    return layer.replace("blocks.", "").replace("attention.", "")


def ingredients(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 4.4, 1, 2, width_ratios=[1.3, 1])
    ways = (NVFP4, *WITHOUT)
    for n, (net, name) in enumerate(zip(result.nets, NETS, strict=True)):
        at, color = np.arange(len(ways)) + 0.4 * (n - 0.5), draw.look(n).color
        found = 100 * np.array([net.error(way) for way in ways])
        panels[0].barh(at, found.mean(1), 0.36, color=color, label=name)
        panels[0].hlines(at, found.min(1), found.max(1), color=draw.current().ink, linewidth=1.5)
        at, found = np.arange(len(PARTS)) + 0.4 * (n - 0.5), 100 * net.backward
        panels[1].bar(at, found.mean(0), 0.36, color=color)
        panels[1].vlines(at, found.min(0), found.max(0), color=draw.current().ink, linewidth=1.5)
    panels[0].set_yticks(range(len(ways)), [way.title for way in ways])
    panels[0].invert_yaxis()
    widest = 100 * max(net.error(way).max() for net in result.nets for way in ways)
    panels[0].set(xlabel="error of a gradient (%)", title="Without one ingredient", xlim=(0, 1.35 * widest))
    panels[0].legend(loc="center right")
    panels[1].set_xticks(range(len(PARTS)), [part.replace(" ", "\n", 1) for part in PARTS])
    panels[1].set_title("Of that, the backward pass (%)")
    return figure


def bytes_beside_loss(result: Result) -> draw.Figure:
    """What a recipe keeps in memory beside the states, the error of its gradients and the loss that it ends with."""
    figure, panels = draw.panels(8, 4.4, 1, 2)
    net = result.nets[0]
    for w, way in enumerate(way for way in WAYS if way not in WITHOUT):
        size, style = result.kept[WAYS.index(way), 1:].sum() / 1e6, draw.look(w)
        for ax, values in zip(panels, (100 * net.error(way), 1000 * (net.loss(way) - net.loss(BF16))), strict=True):
            ax.plot(size, values.mean(), marker=style.marker, color=style.color, markersize=7, linestyle="none",
                    label=way.title)  # fmt: skip
            ax.plot([size, size], [values.min(), values.max()], color=style.color, linewidth=1)
    for ax, title in zip(panels, ("Error of gradients (%)", "Loss beyond BF16's (nats / 1000)"), strict=True):
        ax.set(title=title, xlabel=f"MB beside the states, {SEQUENCES} sequences (calculated)")
    panels[0].legend(fontsize=9)
    return figure


EXPERIMENT = Experiment(
    title=say("Recipes: training in eight bits and in four"),
    question=say("What do recipes of eight and four bits cost, where, and what does each ingredient of NVFP4 do?"),
    budget=7.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(losses, layers, ingredients, bytes_beside_loss), cases=cases,
)  # fmt: skip
