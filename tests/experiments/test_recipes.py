"""The experiment on recipes."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.frame import Mutant, frame
from fplab.experiments import recipes
from fplab.experiments.outcomes import Status

QUICK = recipes.E.quick
TINY = replace(QUICK, seeds=(2, 2), begun=(1, 1), batches=(1, 2), context=16, draws=1, tested=65)


def without_recipe(good: Any) -> Any:
    """Every way in BF16."""
    return lambda recipe, **options: good(recipe and recipes.recipe_of("bf16", {}), **options)


def without_descent(good: Any) -> Any:
    """Steps after which the weights are as before."""

    def faulty(task: Any, model: Any, *of: Any, **how: Any) -> Any:
        before = copy.deepcopy(model.state_dict())
        losses = good(task, model, *of, **how)
        model.load_state_dict(before)
        return losses

    return faulty


def without_rate(good: Any) -> Any:
    """Steps of a recipe whose update is not times the rate."""

    def faulty(task: Any, model: Any, optim: Any, *of: Any, **how: Any) -> Any:
        for group in getattr(optim, "param_groups", ()):
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


RECIPES, BEGUN = "fplab.nn.recipes.RECIPES", ("begun",)
MUTANTS = (
    Mutant("networks that do not descend", ("learnt",), "descend", without_descent,
           params=replace(QUICK, seeds=(3, 3))),
    Mutant("recipes that are not followed", ("units", "fewer_bits"), "emulation", without_recipe, params=TINY),
    Mutant("updates without the rate", ("loss_alike",), "descend", without_rate, reuse=BEGUN),
    Mutant("no stochastic rounding", ("unbiased",), RECIPES, nvfp4(disable_stochastic_rounding=True), reuse=BEGUN),
    Mutant("a Hadamard transform that is not orthogonal", ("hadamard",),
           "fplab.scaled.hadamard", lambda good: lambda *of, **how: 2 * good(*of, **how),
           reuse=BEGUN),
    Mutant("square blocks that round toward zero", ("two_dimensions",), RECIPES, squares_toward_zero, reuse=BEGUN),
    Mutant("a head that is not kept", ("head",), RECIPES, nvfp4(keep_last=0.0), reuse=BEGUN),
    Mutant("one copy of the weights", ("kept_bytes",), "fplab.memory.options.quantised_operands",
           lambda good: lambda *of: (kept := good(*of)) and replace(kept, weights=kept.input), reuse=BEGUN),
)  # fmt: skip

globals().update(frame(recipes, QUICK, MUTANTS, spared=("head_alone",), absent="^tried at the full size"))


def test_a_head_that_costs_no_more_than_others_is_no_claim(result: Any) -> None:
    """The claim of the full size, on losses that are given."""
    for more, status in ((1e-2, Status.PASS), (1e-3, Status.FAIL)):
        given = np.full_like(result.added_alone.values, 1e-3)
        given[..., [*result.added_alone.layer.values].index("head")] = more
        outcome = recipes.head_alone(result.replace(added_alone=given))
        assert outcome.status is status


def test_the_reference_of_the_backward_pass_quantises_forward_products_alone() -> None:
    task = recipes.task_of(TINY, recipes.NETS[0])
    run = recipes.emulation(recipes.recipe_of("nvfp4", recipes.FORWARD_ONLY))
    (batch,) = task.batches(0, 1)
    with run:
        loss = task.loss(task.model(0), batch)
    loss.backward()  # type: ignore[no-untyped-call]
    units = {(row.phase, row.unit.split()[-1]) for row in run.report().rows if row.layer == "head"}
    assert units == {("forward", "e2m1/e4m3x16->fp32"), ("backward", "bf16->fp32")}


def test_the_convolutional_net_reads_the_batches_of_its_size() -> None:
    (batch,) = recipes.task_of(TINY, recipes.NETS[1]).batches(0, 1)
    assert batch.inputs.shape == (2, 1, 8, 8)
    assert len(batch.targets) == 2
