"""The experiment on trainers and rollouts."""

from dataclasses import replace
from typing import Any

from experiments.frame import Mutant, frame
from fplab.experiments import rollout_gap

TINY = replace(rollout_gap.E.quick, layers=1, steps=10, rows=4)
ONE = replace(TINY, seeds=1)
EMULATE = "fplab.nn.emulate"


def without_recipe(good: Any) -> Any:
    return lambda gpu, inputs="bf16", recipe=None, **more: good(gpu, inputs=inputs)


def head_kept_high(good: Any) -> Any:
    """An explanation of an FP8 rollout whose head stays in BF16."""
    return lambda model, batch, a, b, *of, **how: good(model, batch, a, {**b, "layers": {"head": "bf16"}}, *of, **how)


MUTANTS = (
    Mutant("BF16 under the name of FP16", ("fp16_remedy",), EMULATE,
           lambda good: lambda gpu, inputs=None, **more: good(gpu, inputs=inputs and "bf16", **more), params=TINY),
    Mutant("recipes that are not followed", ("fp8_is_further", "no_remedy_for_fp8", "head_kept"), EMULATE,
           without_recipe, params=TINY),
    Mutant("the head in FP8 all the same", ("head_kept",), EMULATE,
           lambda good: lambda gpu, layers=None, **more: good(gpu, **more), params=TINY),
    Mutant("an explanation with the head in BF16", ("explained",), "fplab.nn.explain", head_kept_high, params=ONE),
    Mutant("layers that do not change their way", ("explained",), "fplab.nn.explaining.hybrids.Hybrids.run",
           lambda good: lambda self, of, *more, **how: good(self, lambda layer: of(None), *more, **how), params=ONE),
)  # fmt: skip

globals().update(frame(rollout_gap, rollout_gap.E.quick, MUTANTS))
