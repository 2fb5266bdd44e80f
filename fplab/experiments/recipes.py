"""Training by recipes of eight and four bits: what they cost, which layers suffer, and what NVFP4's ingredients do.

A transformer guesses characters and a convolutional net reads digits. FP32 begins; from the same weights every recipe
goes on with the same batches, all products in a B200's bits. The published ablations are of models of billions of
parameters (NVIDIA 2025, Pretraining Large Language Models with NVFP4, arXiv 2509.25149, section 4): what of them is
seen at this size, and what is not, is said with seeds and spread. Beside it what a recipe keeps in memory
(:mod:`fplab.memory`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import draw
from ..hardware.cases import Arrays, Case, philox_bits
from ..hardware.programs import program
from ..words import COMMA, joined, say
from .fp8_training import backward, descend, relative
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Part, absent, passed
from .panels import bars, dots, line
from .quantities import Columns, Quantity, above, alike, derived, equivalent, in_columns, superior, together

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
CHOICES = dict(zip(NETS, (96, 10), strict=True))  # answers that a network tells apart
# Bytes of an element, by recipe: of a saved input, of both copies of a weight. 2 and 0: quantised for each product.
BYTES = {
    "fp8_delayed": (1.0, 2.0), "fp8_current": (1.0, 2.0), "fp8_rowwise": (2.0, 0.0),
    "fp8_block": (1 + 4 / 128, 2 + 8 / 128**2), "mxfp8": (1 + 1 / 32, 2 + 2 / 32), "nvfp4": (9 / 16, 18 / 16),
}  # fmt: skip
HEADS = 2
EIGHT = {"FP8 delayed": "fp8_delayed", "FP8 current": "fp8_current", "FP8 by rows": "fp8_rowwise",
         "FP8 by blocks": "fp8_block", "MXFP8": "mxfp8"}  # fmt: skip
ABLATED: dict[str, dict[str, Any]] = {
    "without Hadamard": {"disable_rht": True}, "without stochastic": {"disable_stochastic_rounding": True},
    "without 2D": {"disable_2d_quantization": True}, "last layer too": {"keep_last": 0.0},
}  # fmt: skip
WAYS: dict[str, tuple[str, dict[str, Any]]] = {  # a recipe's constructor, "" for torch's FP32, and what it is given
    "FP32": ("", {}), "BF16": ("bf16", {}), **{way: (name, {}) for way, name in EIGHT.items()}, "NVFP4": ("nvfp4", {}),
    **{way: ("nvfp4", fields) for way, fields in ABLATED.items()},
}  # fmt: skip
_, _, ONE_DIMENSION, LAST_TOO = ABLATED
ALONE = {"MXFP8": "MXFP8", "NVFP4": LAST_TOO}  # of one layer at a time

# Of the transformer and of the convolutional net: ``begun``, steps in FP32, ``steps`` by each way, ``batches``.
# ``seeds``: of each way, from ``seed`` on: on none of these a margin was chosen. ``layers``, ``width``, ``context``: of
# the transformer. ``draws``: of stochastic rounding, of one gradient. ``fresh``: batches on which layers are tried
# alone, 0 for none. ``tested``: characters that are held out.
E = Experiment(
    "Recipes: training in eight bits and in four",
    "What do recipes of eight and four bits cost, where, and what does each ingredient of NVFP4 do?",
    budget=7.0, one_thread=True,
    full={"seeds": (5, 5), "seed": 100, "begun": (150, 80), "steps": (30, 30), "batches": (2, 16), "layers": 2,
          "width": 64, "context": 64, "draws": 8, "fresh": 4, "tested": 4097},
    quick={"seeds": (4, 3), "begun": (40, 100), "steps": (1, 1), "batches": (1, 8), "layers": 1, "draws": 2,
           "fresh": 0, "tested": 1025},
)  # fmt: skip
SEEDS: dict[str, Any] = {"net": NETS, "seed": lambda p: range(max(p.seeds))}


# --- the networks -----------------------------------------------------------------------------------------------
def task_of(p: Params, net: str) -> Task:
    """What a network learns."""
    from ..training import tasks

    if net == NETS[0]:
        sizes: dict[str, Any] = {name: getattr(p, name) for name in ("layers", "width", "context", "tested")}
        return tasks.characters(heads=HEADS, batch=p.batches[0], **sizes)

    def batches(seed: int, steps: int, start: int = 0) -> Iterator[tasks.Batch]:
        for images, labels in tasks.DIGITS.batches(seed, steps, start):
            yield tasks.Batch(images[: p.batches[1]], labels[: p.batches[1]])

    return replace(tasks.DIGITS, batches=batches, batch=p.batches[1])


def recipe_of(name: str, fields: dict[str, Any]) -> Recipe | None:
    """A recipe of every layer; None is torch's FP32."""
    from ..nn import recipes

    return recipes.RECIPES[name](**{"scope": "all", **KEPT.get(name, {}), **fields}) if name else None


def emulation(recipe: Recipe | None, **options: Any) -> Any:
    """A recipe on the GPU; None is torch's FP32."""
    from ..nn import emulate

    return nullcontext() if recipe is None else emulate(GPU, recipe=recipe, **options)


def linear(model: nn.Module) -> dict[str, nn.Module]:
    """The layers with a matrix to multiply by, in order."""
    from torch import nn

    return {n: layer for n, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}


def optimizer(net: str, model: nn.Module) -> Any:
    """AdamW for the transformer, momentum for the convolutional net, as the tasks' baselines."""
    from torch import optim

    from ..training.loop import Momentum

    return Momentum(model, 0.05, 0.9) if net == NETS[1] else optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)


@E.cache
def begun(p: Params, net: str, seed: int) -> tuple[nn.Module, Any]:
    """A network and its optimizer after FP32 began."""
    task, steps = task_of(p, net), p.begun[NETS.index(net)]
    model = task.model(p.seed + seed)
    optim = optimizer(net, model)
    descend(task, model, optim, p.seed + seed, steps)
    return model, optim


@E.cache
def continued(p: Params, net: str, seed: int, way: str) -> tuple[float, list[np.ndarray]]:
    """The held-out loss after a way's steps, of the weights in FP32; the gradients of its first step."""
    task, at, (name, fields) = task_of(p, net), NETS.index(net), WAYS[way]
    model, optim = copy.deepcopy(begun(p, net, seed))
    run, start = emulation(recipe_of(name, fields)), p.begun[at]
    descend(task, model, optim, p.seed + seed, start + 1, run, start=start)
    gradients = gradients_of(model)
    descend(task, model, optim, p.seed + seed, start + p.steps[at], run, start=start + 1)
    if name == "fp8_delayed":  # whose first step has no history
        gradients = weight_gradients(p, net, seed, name, fields)
    return task.scores(model).loss, gradients


def weight_gradients(p: Params, net: str, seed: int, name: str, fields: dict[str, Any]) -> list[np.ndarray]:
    """Of the matrices of all layers, on the next batch; delayed scaling has its history from the one before it."""
    task, steps, model = task_of(p, net), p.begun[NETS.index(net)], copy.deepcopy(begun(p, net, seed)[0])
    run = emulation(recipe_of(name, fields))
    for batch in task.batches(p.seed + seed, steps + 1, steps - (name == "fp8_delayed")):
        backward(task, model, batch, run)
    return gradients_of(model)


def gradients_of(model: nn.Module) -> list[np.ndarray]:
    """The latest, of the matrices of all layers."""
    weights: list[Any] = [layer.weight for layer in linear(model).values()]
    return [weight.grad.numpy().copy() for weight in weights]


def layerwise(got: list[np.ndarray], want: list[np.ndarray]) -> list[float]:
    """How far each layer's gradient is from what is wanted."""
    return [relative([g], [w]) for g, w in zip(got, want, strict=True)]


# --- what is measured -------------------------------------------------------------------------------------------
@E.measure("loss", "gradient_error", axes={"way": WAYS, **SEEDS})
def of_a_way(p: Params, way: str, net: str, seed: int) -> tuple[float, float] | None:
    """The held-out loss in the end, in nats; how far the gradients of all layers but the last are from FP32's."""
    if seed >= p.seeds[NETS.index(net)]:
        return None
    errors = np.array(layerwise(continued(p, net, seed, way)[1], continued(p, net, seed, "FP32")[1]))
    return continued(p, net, seed, way)[0], float(np.sqrt((errors[:-1] ** 2).mean()))


@E.measure(axes={"way": WAYS, **SEEDS, "layer": ...})
def by_layer(p: Params, way: str, net: str, seed: int) -> dict[str, float] | None:
    """How far each layer's weight gradient is from FP32's, relative to its norm."""
    if seed >= p.seeds[NETS.index(net)]:
        return None
    errors = layerwise(continued(p, net, seed, way)[1], continued(p, net, seed, "FP32")[1])
    return dict(zip(linear(begun(p, net, seed)[0]), errors, strict=True))


@E.measure(axes={**SEEDS, "part": ...})
def of_backward(p: Params, net: str, seed: int) -> dict[str, float] | None:
    """What NVFP4's backward products alone change in gradients: root of the mean square over layers.

    The reference quantises the forward products as well, and none of the backward pass.
    """
    if seed >= p.seeds[NETS.index(net)]:
        return None

    def gradients(**fields: Any) -> list[np.ndarray]:
        return weight_gradients(p, net, seed, "nvfp4", {"keep_last": 0.0, **fields})

    want = gradients(**FORWARD_ONLY)
    plain, bare = ([gradients(seed=n, disable_rht=no_rht) for n in range(p.draws)] for no_rht in (False, True))
    mean = [np.mean(layer, axis=0) for layer in zip(*plain, strict=True)]
    parts = (plain, [mean], [gradients(disable_stochastic_rounding=True)], bare)
    errors = [np.array([layerwise(layer, want) for layer in part]) for part in parts]
    return {part: float(np.sqrt((x**2).mean())) for part, x in zip(PARTS, errors, strict=True)}


@E.measure(axes={**SEEDS, "alone": ALONE, "layer": ...})
def added_alone(p: Params, net: str, seed: int, alone: str) -> dict[str, float] | None:
    """What a recipe in one layer alone adds to the loss of fresh batches, the rest in BF16."""
    import torch

    at = NETS.index(net)
    if seed >= p.seeds[at]:
        return None
    task, (model, _) = task_of(p, net), begun(p, net, seed)
    if not p.fresh:
        return dict.fromkeys(linear(model), np.nan)
    batches = list(task.batches(p.seed + seed, p.begun[at] + p.fresh, p.begun[at]))

    def loss(**options: Any) -> float:
        with torch.no_grad(), emulation(recipe_of("bf16", {}), **options):
            return float(np.mean([task.loss(model, batch).item() for batch in batches]))

    plain, recipe = loss(), recipe_of(*WAYS[ALONE[alone]])
    return {name: loss(layers={name: recipe}) - plain for name in linear(model)}


@E.measure(axes={"way": WAYS, "kind": ...}, unit="bytes")
def kept(p: Params, way: str) -> dict[str, int]:
    """The transformer's states, saved activations and casts, in mixed precision with AdamW; by the calculator."""
    from .. import memory

    shape: dict[str, Any] = {"layers": p.layers, "hidden": p.width, "sequence": p.context}
    model = memory.Transformer("characters", heads=HEADS, vocabulary=96, tied=False, dropout=False, flash=True, **shape)
    recipe = recipe_of(*WAYS[way])
    rank = memory.estimate(
        model, precision="fp32" if way == "FP32" else "mixed", micro_batch=SEQUENCES,
        recipe=recipe and replace(recipe, scope="deepseek_v3"),  # the head is counted in 16 bits
    ).fullest  # fmt: skip
    return {"states": rank.states, "activations": rank.device["activations"], "casts": rank.device["temporary"]}


def seeds_of(r: Result, x: Any, net: str) -> np.ndarray:
    """What was measured of a network, by its seeds first."""
    return np.asarray(x.sel(net=net).transpose("seed", ...).values[: r.p.seeds[NETS.index(net)]])


@E.table
def rows(r: Result) -> Columns:
    """A row for each network and way: held-out loss and gradient error with their spreads over seeds, bytes."""
    table = []
    for net, way in ((net, way) for net in NETS for way in WAYS):
        columns = [seeds_of(r, x.sel(way=way), net) for x in (r.loss, r.gradient_error)]
        spread = [number for x in columns for number in (float(x.mean()), float(x.std(ddof=1)))]
        table.append((net, way, *spread, int(r.kept.sel(way=way).sum()) if net == NETS[0] else ""))
    names = ("network", "way", "loss", "loss_spread", "gradient_error", "gradient_error_spread", "bytes")
    return in_columns(names, table)


# --- claims -----------------------------------------------------------------------------------------------------
# Margins, in nats of loss and in powers of e of errors, fixed on the quick size before the full one was run; that one
# turned two expectations, that the Hadamard transform helps and that squares of weights cost, into equality. All hold
# on the seeds of ``seed``, which were new then.
LEARNED, ALIKE = 0.2, 0.02
FEWER_BITS, HEAD = 0.05 * np.log2(np.e), 1
TENTH, FIFTH = 0.1 * np.log2(np.e), 0.2 * np.log2(np.e)
NOTHING = 1e-4  # nats that a layer adds, below which it adds none


def loss(way: str, net: str = NETS[0]) -> Quantity:
    """The held-out loss of a network, by seed."""
    return derived(f"{net}, {way}", lambda r: seeds_of(r, r.loss.sel(way=way), net))


def error(way: str, *nets: str) -> Quantity:
    """How far the gradients of networks are from FP32's, by seed."""
    return derived(way, lambda r: np.concatenate([seeds_of(r, r.gradient_error.sel(way=way), n) for n in nets]))


def error_of_part(name: str) -> Quantity:
    """What backward products alone change, of both networks."""
    return derived(name, lambda r: np.concatenate([seeds_of(r, r.of_backward.sel(part=name), n) for n in NETS])).log2


def eight_bits(r: Result) -> Any:
    """The geometric mean of the errors of the recipes in eight bits, of both networks."""
    return np.exp2(np.mean([np.log2(error(way, *NETS).read(r)) for way in EIGHT], axis=0))


eight, (plain, square) = (
    derived("eight bits", eight_bits).log2,
    (error(w, NETS[0]).log2 for w in ("NVFP4", ONE_DIMENSION)),
)
E.claim(
    together("learnt", "the networks have learnt: they guess better than by chance",
             *(above(float(np.log(n)), loss("FP32", net), LEARNED) for net, n in CHOICES.items())),
)  # fmt: skip


@E.proved("every product of a layer runs in its recipe's unit; what a recipe keeps high, and attention, in BF16")
def units(r: Result) -> Iterator[Part]:
    for net, (way, (name, fields)) in ((net, way) for net in NETS for way in [*WAYS.items()][1:]):
        task, recipe = task_of(r.p, net), recipe_of(name, fields)
        model, run = task.model(0), emulation(recipe)
        (batch,) = task.batches(0, 1)
        with run:
            task.loss(model, batch).backward()
        names = list(linear(model))
        high = names[len(names) - round(recipe.keep_last * len(names)) :]  # type: ignore[union-attr]
        for row in run.report().rows:
            want = UNITS.get(name, ("e4m3", "e5m2")) if row.layer in names and row.layer not in high else "bf16"
            wrong = say("{way}: {layer} in {unit}", way=way, layer=row.layer, unit=row.unit)
            yield wrong, row.unit.split()[-1].startswith(want)


E.claim(
    together("fewer_bits", "gradients err more the fewer bits: BF16, then the recipes in eight bits, then NVFP4",
             above(eight, error("BF16", *NETS).log2, FEWER_BITS), above(error("NVFP4", *NETS).log2, eight, FEWER_BITS)),
    # Runs of the convolutional net part, also FP32's from BF16's: no verdict of them.
    together("loss_alike",
             "no recipe, nor NVFP4 without an ingredient, is seen in the transformer's held-out loss at this size",
             *(alike(loss(way), loss("BF16"), ALIKE) for way in [*WAYS][2:])),
    superior("unbiased", "rounding gradients to nearest biases them: the mean of stochastic draws errs less",
             error_of_part("to nearest"), error_of_part("mean of draws")),
    equivalent("hadamard", "the Hadamard transform changes the error of backward products by less than a tenth",
               error_of_part("without Hadamard"), error_of_part("once"), within=TENTH),
    # One value for both uses of a weight, which NVFP4's paper wants, costs no accuracy and brings none in one step.
    equivalent("two_dimensions",
               "weights in blocks of 16 x 16 or of 1 x 16: the transformer's gradients err alike, within a fifth",
               plain, square, within=FIFTH),
    superior("head", "the transformer's head, kept in BF16, lowers the error of the gradients before it",
             error(LAST_TOO, NETS[0]).log2, plain, by=FEWER_BITS),
)  # fmt: skip
UNTRIED = say("tried at the full size (fplab run recipes --full)")


@E.measured("alone in NVFP4 the transformer's head costs over twice the loss of the other layers' mean")
def head_alone(r: Result) -> Outcome:
    """In nats of fresh batches, by logarithms."""
    layers = [*linear(begun(r.p, NETS[0], 0)[0])]
    added = seeds_of(r, r.added_alone.sel(alone="NVFP4", layer=layers), NETS[0])
    if np.isnan(added).any():
        return absent(UNTRIED)
    own, others = (derived(name, lambda r, x=x: np.maximum(x, NOTHING)).log2  # type: ignore[misc]
                   for name, x in (("head", added[:, -1]), ("other layers", added[:, :-1].mean(-1))))  # fmt: skip
    return above(own, others, HEAD)(r)


@E.proved("memory is as by hand: a layer's 7 inputs in the recipe's own bytes, and 2 quantised copies of its weights")
def kept_bytes(r: Result) -> Iterator[Part]:
    """The calculator's bytes, by hand: seven inputs of each layer, of which FlashAttention keeps one as it was."""
    p = r.p
    values, weights = p.layers * SEQUENCES * p.context * p.width, p.layers * (12 * p.width**2 + 13 * p.width)
    states, activations, casts = r.kept.sel(way="BF16").values.tolist()
    for way, (each, copies) in ((way, BYTES[name]) for way, (name, _) in WAYS.items() if name in BYTES):
        want = states, activations - (values * (12 - 7 * each) if each < 2 else 0), casts + weights * copies
        got = r.kept.sel(way=way).values.tolist()
        yield (
            say("{way}: {got}, by hand {want}", way=way, got=got, want=want),
            np.abs(np.subtract(got, want)).max() <= 32,
        )
    sizes = [say("{way} {n:,}", way=way, n=int(r.kept.sel(way=way).sum())) for way in [*WAYS][:8]]
    yield passed(joined(sizes, COMMA))


E.answer("NVFP4's gradients are {nvfp4:.0%} off, MXFP8's {eight:.0%}, BF16's {bf16:.1%}; no held-out loss shows it yet",
         nvfp4=error("NVFP4", NETS[0]), eight=error("MXFP8", NETS[0]), bf16=error("BF16", NETS[0]))  # fmt: skip


# --- GPU cases --------------------------------------------------------------------------------------------------
SHAPE = (32, 128)  # rows, k


def drawn_values() -> Arrays:
    """Blocks of many sizes, one of zeros, and what lies half way between two codes."""
    x = (philox_bits(870, *SHAPE) & 0x80FFFFFF | 0x3F000000).view(np.float32).reshape(-1, 16)
    x = x * np.exp2((philox_bits(871, len(x)) % 13).astype(np.float32) - 6)[:, None]
    x[3], x[4] = 0, np.resize(np.array([6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25], np.float32), 16)
    return {"x": x.astype(np.float32).reshape(SHAPE).view(np.uint32)}


def quantised_by_torch(square: bool, x: Any) -> dict[str, Any]:
    """NVFP4 of torch's operations, as Transformer Engine writes them: each rounds once, so every bit is known."""
    import torch

    def f32(value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.float32, device=x.device)

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
    return {"codes": code.flatten(2).flatten(0, 1), "scales": scale.view(torch.uint8).flatten(2).squeeze(1)}


def quantised_by_lab(square: bool, x: np.ndarray) -> dict[str, np.ndarray]:
    """The same by the lab."""
    from ..scaled import quantize

    q = quantize(x, "nvfp4", block=(16 if square else 1, 16))
    return {"codes": q.codes, "scales": q.scales}


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    for square in (False, True):
        name = f"nvfp4, blocks of {'16 x 16' if square else '1 x 16'}"
        yield program(name, drawn_values, {"x": "fp32"}, partial(quantised_by_torch, square),
                      {"codes": "bits8", "scales": "bits8"}, partial(quantised_by_lab, square))  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------
def beyond(r: Result, net: str) -> Any:
    """Thousandths of a nat that each way ends above BF16."""
    return (1000 * (r.loss - r.loss.sel(way="BF16"))).sel(net=net).dropna("seed").drop_sel(way="BF16")


def layer_errors(r: Result, net: str) -> Any:
    part = r.by_layer.sel(net=net, way=["BF16", "FP8 current", "MXFP8", "NVFP4", LAST_TOO])
    return 100 * part.dropna("layer", how="all").assign_coords(layer=lambda x: [*map(short, x.layer.values)])


def short(layer: str) -> str:
    return layer.replace("blocks.", "").replace("attention.", "")


def second(ax: draw.Axes, r: Result) -> None:
    """What one layer alone adds to the transformer's loss; where none was tried, the other network's errors."""
    if r.p.fresh:
        added = 1000 * r.added_alone.sel(net=NETS[0]).dropna("layer", how="all").mean("seed")
        added = added.assign_coords(layer=[*map(short, added.layer.values)])
        bars(lambda r: added, x="layer", hue="alone", ylabel="nats / 1000", title="One layer alone adds to the loss")(
            ax, r
        )
    else:
        by_layer_panel(NETS[1])(ax, r)


def by_layer_panel(net: str) -> Any:
    """A network's gradients, layer by layer."""
    return line(partial(layer_errors, net=net), x="layer", hue="way", log="y", marked=True, band=False,
                ylabel="error of gradients (%)",
                title=f"{net.capitalize()}: the fewer bits, the larger the error")  # fmt: skip


E.figure(
    "losses",
    *(dots(partial(beyond, net=net), y="way", xlabel="held-out loss beyond BF16's (nats / 1000)",
           title=f"{net.capitalize()}: seeds scatter more than any recipe costs") for net in NETS),
    size=(8, 8),
)  # fmt: skip
E.figure("layers", by_layer_panel(NETS[0]), second)
E.figure(
    "ingredients",
    dots(lambda r: 100 * r.gradient_error.sel(way=["NVFP4", *ABLATED]), y="way", hue="net",
         xlabel="error of a gradient (%)", title="NVFP4 without one ingredient: the head kept high matters"),
    dots(lambda r: 100 * r.of_backward, x="part", hue="net", ylabel="error of a gradient (%)",
         title="Of that, the backward pass: the mean of draws errs least"),
)  # fmt: skip


@E.picture
def bytes_beside_error(r: Result) -> draw.Figure:
    """What a recipe keeps in memory beside the states, and the error of its gradients."""
    figure, ax = draw.panels(8, 4.4)
    for i, way in enumerate(way for way in WAYS if way not in ABLATED):
        size, style = float(r.kept.sel(way=way)[1:].sum()) / 1e6, draw.look(i)
        errors = 100 * seeds_of(r, r.gradient_error.sel(way=way), NETS[0])
        ax.plot(np.full(len(errors), size), errors, marker=style.marker, color=style.color, linestyle="none", label=way)
    ax.set(title="Fewer bytes, larger errors", ylabel="error of gradients (%)",
           xlabel=f"MB beside the states, {SEQUENCES} sequences (calculated)")  # fmt: skip
    ax.legend()
    return figure
