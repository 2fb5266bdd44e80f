"""The experiment on recipes."""

import copy
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from experiments.frame import Mutant, frame
from fplab.experiments import recipes
from fplab.experiments.outcomes import Status
from fplab.experiments.recipes import BF16, FP32, LAST_TOO, NVFP4, ONE_DIMENSION, WAYS, Params

TINY = Params(
    seeds=(2, 2), begun=(1, 1), steps=(1, 1), batches=(1, 2), layers=1, context=16, draws=1, tested=65
)  # fmt: skip


QUICK = recipes.QUICK


DESCEND = recipes.descend  # without a fault


def begin(net: int, seed: int, descend: Any) -> tuple[Any, Any]:
    """A network and its optimizer after FP32 began."""
    model = QUICK.task(net).model(seed)
    optim = recipes.optimizer(net, model)
    descend(QUICK.task(net), model, optim, seed, QUICK.begun[net])
    return model, optim


@cache
def begun(net: int, seed: int) -> tuple[Any, Any]:
    return begin(net, seed, DESCEND)


def seeds(net: int) -> range:
    return range(QUICK.seed, QUICK.seed + QUICK.seeds[net])


def of_nets(result: Any, name: str, *arrays: Any) -> dict[str, Any]:
    """The networks of a result, the first of them with other arrays of a name."""
    nets = [replace(net, **{name: np.array(array)}) for net, array in zip(result.nets, arrays, strict=False)]
    return {"nets": (*nets, *result.nets[len(nets) :])}


def backward_again(result: Any) -> dict[str, Any]:
    found = []
    for net in range(2):
        of = partial(recipes.of_backward, QUICK, QUICK.task(net), begun=QUICK.begun[net])
        found.append([of(begun(net, seed)[0], seed) for seed in seeds(net)])
    return of_nets(result, "backward", *found)


def gradients_again(result: Any) -> dict[str, Any]:
    """Of the transformer, of NVFP4 with and without what is ablated."""
    task, gradients = QUICK.task(0), result.nets[0].gradients.copy()
    for n, seed in enumerate(seeds(0)):
        model = begun(0, seed)[0]
        of = partial(recipes.weight_gradients, task, model, seed, QUICK.begun[0])
        for way in (NVFP4, ONE_DIMENSION, LAST_TOO):
            gradients[n, WAYS.index(way)] = recipes.layerwise(of(way), of(FP32))
    return of_nets(result, "gradients", gradients)


def losses_again(result: Any) -> dict[str, Any]:
    """Of the transformer after a step of NVFP4."""
    task, held_out = QUICK.task(0), result.nets[0].held_out.copy()
    for n, seed in enumerate(seeds(0)):
        model, optim = copy.deepcopy(begun(0, seed))
        run = recipes.emulation(NVFP4.recipe)
        recipes.descend(task, model, optim, seed, QUICK.begun[0] + 1, run, start=QUICK.begun[0])
        held_out[n, WAYS.index(NVFP4)] = task.scores(model).loss
    return of_nets(result, "held_out", held_out)


def trained_again(result: Any) -> dict[str, Any]:
    """Three networks of each kind, in FP32."""
    losses = [
        [QUICK.task(net).scores(begin(net, seed, recipes.descend)[0]).loss for seed in seeds(net)[:3]]
        for net in range(2)
    ]
    return of_nets(result, "held_out", *(np.repeat(np.array(loss)[:, None], len(WAYS), 1) for loss in losses))


def kept_again(result: Any) -> dict[str, Any]:
    return {"kept": recipes.remembered(QUICK)}


def without_recipe(good: Any) -> Any:
    """Every way in BF16."""
    return lambda recipe, **options: good(recipe and BF16.recipe, **options)


def without_rate(good: Any) -> Any:
    """Steps whose update is not times the rate."""

    def faulty(task: Any, model: Any, optim: Any, *of: Any, **how: Any) -> Any:
        for group in optim.param_groups:
            group["lr"] = 1.0
        return good(task, model, optim, *of, **how)

    return faulty


def squares_toward_zero(known: Any) -> Any:
    """NVFP4 that rounds weights in square blocks toward zero."""

    def faulty(**given: Any) -> Any:
        recipe = known["nvfp4"](**given)
        if given.get("disable_2d_quantization"):
            return recipe
        cut = {
            name: replace(product, right=replace(product.right, rounding="rtz"))
            for name in ("forward", "data_gradient")
            if (product := getattr(recipe, name)) is not None
        }
        return replace(recipe, **cut)

    return {**known, "nvfp4": faulty}


def nvfp4(**fields: Any) -> Any:
    """The fault of NVFP4 with other fields, whatever it is given."""
    return lambda known: {**known, "nvfp4": lambda **given: known["nvfp4"](**given | fields)}


RECIPES = "fplab.nn.recipes.RECIPES"
MUTANTS = (
    Mutant("networks that do not descend", ("learnt",), "descend", lambda good: lambda *of, **how: None,
           part=trained_again),
    Mutant("recipes that are not followed", ("units", "fewer_bits"), "emulation", without_recipe, params=TINY),
    Mutant("updates without the rate", ("loss_alike",), "descend", without_rate, part=losses_again),
    Mutant("no stochastic rounding", ("unbiased",), RECIPES, nvfp4(disable_stochastic_rounding=True),
           part=backward_again),
    Mutant("a Hadamard transform that is not orthogonal", ("hadamard",),
           "fplab.nn.emulation.scaled_products.hadamard", lambda good: lambda *of, **how: 2 * good(*of, **how),
           part=backward_again),
    Mutant("square blocks that round toward zero", ("two_dimensions",), RECIPES, squares_toward_zero,
           part=gradients_again),
    Mutant("a head that is not kept", ("head",), RECIPES, nvfp4(keep_last=0.0), part=gradients_again),
    Mutant("one copy of the weights", ("kept_bytes",), "fplab.memory.options.quantised_operands",
           lambda good: lambda *of: (kept := good(*of)) and replace(kept, weights=kept.input), part=kept_again),
)  # fmt: skip

globals().update(frame(recipes, QUICK, MUTANTS, spared=("head_alone",), absent="^tried at the full size"))


def test_a_head_that_costs_no_more_than_others_is_no_claim(result: Any) -> None:
    """The claim of the full size, on losses that are given."""
    net = result.nets[0]
    for more, status in ((1e-2, Status.PASS), (1e-3, Status.FAIL)):
        given = np.full_like(net.alone, 1e-3)
        given[:, 1, -1] = more
        outcome = recipes.head_alone(replace(result, nets=(replace(net, alone=given), *result.nets[1:])))
        assert outcome.status is status


def test_the_reference_of_the_backward_pass_quantises_forward_products_alone() -> None:
    task = TINY.task(0)
    run = recipes.emulation(recipes.Way("", "nvfp4", recipes.FORWARD_ONLY).recipe)
    (batch,) = task.batches(0, 1)
    with run:
        loss = task.loss(task.model(0), batch)
    loss.backward()  # type: ignore[no-untyped-call]
    units = {(row.phase, row.unit.split()[-1]) for row in run.report().rows if row.layer == "head"}
    assert units == {("forward", "e2m1/e4m3x16->fp32"), ("backward", "bf16->fp32")}


def test_the_convolutional_net_reads_the_batches_of_its_size() -> None:
    (batch,) = TINY.task(1).batches(0, 1)
    assert batch.inputs.shape == (2, 1, 8, 8)
    assert len(batch.targets) == 2
