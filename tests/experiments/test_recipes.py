"""The experiment on recipes."""

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.frame import Mutant, frame, plus
from fplab.experiments import recipes
from fplab.experiments.outcomes import Status
from fplab.experiments.recipes import BF16, NVFP4, WAYS, Params

TINY = Params(
    seeds=(2, 2), begun=(1, 1), steps=(1, 1), batches=(1, 2), layers=1, context=16, draws=1, tested=65
)  # fmt: skip


def of_nets(**how: Any) -> Any:
    """The change of a result whose networks have other arrays: by name, what is made of each."""

    def change(result: Any) -> dict[str, Any]:
        nets = (replace(net, **{n: make(getattr(net, n).copy()) for n, make in how.items()}) for net in result.nets)
        return {"nets": tuple(nets)}

    return change


def way_as(way: Any, other: Any) -> Any:
    """What one way gives is another's."""

    def make(array: np.ndarray) -> np.ndarray:
        array[:, WAYS.index(way)] = array[:, WAYS.index(other)]
        return array

    return make


def first_for_all(array: np.ndarray) -> np.ndarray:
    """All parts are the first."""
    return np.repeat(array[..., :1], array.shape[-1], -1)


def without_recipe(good: Any) -> Any:
    """Every way in BF16."""
    return lambda recipe, **options: good(recipe and BF16.recipe, **options)


DOUBLED = np.array([2, 1, 1, 1])  # the first of PARTS


def worse(array: np.ndarray) -> np.ndarray:
    """One ablation that costs a nat."""
    array[:, -1] += 1
    return array


MUTANTS = (
    Mutant("networks that have learnt nothing", ("learnt",), change=of_nets(held_out=lambda a: a * 0 + 4.6)),
    Mutant("recipes that are not followed", ("units", "fewer_bits"), "emulation", without_recipe, params=TINY),
    Mutant("NVFP4 as exact as BF16", ("fewer_bits", "two_dimensions"), change=of_nets(gradients=way_as(NVFP4, BF16))),
    Mutant("an ablation that costs a nat", ("loss_alike",), change=of_nets(held_out=worse)),
    Mutant("rounding to nearest without bias", ("unbiased",), change=of_nets(backward=first_for_all)),
    Mutant("a Hadamard transform that doubles errors", ("hadamard",), change=of_nets(backward=lambda a: a * DOUBLED)),
    Mutant("a head that need not be kept", ("head",), change=of_nets(gradients=way_as(WAYS[-1], NVFP4))),
    Mutant("a copy of the weights forgotten", ("kept_bytes",), change=plus("kept", (WAYS.index(NVFP4), 2), -4096)),
)  # fmt: skip

globals().update(frame(recipes, recipes.QUICK, MUTANTS, spared=("head_alone",), absent="^tried at the full size"))


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
