"""The experiments, in the order of the ladder, loaded one by one when they are asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from ..errors import door, unknown
from .base import Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES: tuple[str, ...] = (
    "formats",
    "underflow",
    "master_weights",
    "loss_scaling",
    "accumulate",
    "partial_products",
    "generations",
    "fp8_accumulation",
    "tf32",
    "split",
    "formats_in_training",
    "sensitive_operations",
    "gpu_generations",
    "torch_bits",
    "trajectory",
    "memory_measured",
    "checkpointing",
    "collectives",
    "schedules",
    "data_parallel",
    "quantisation_error",
    "eight_bit_adam",
    "llm_int8",
    "calibration",
)


@door
def load(name: str) -> Experiment:
    """The experiment module of a name.

    >>> load("formats").TITLE
    'The atlas of formats'
    """
    if name not in NAMES:
        raise unknown("experiment", name, NAMES)
    return cast(Experiment, importlib.import_module(f"{__name__}.{name}"))


def show(name: str, full: bool = False, theme: str = "light") -> Figure:
    """Run an experiment and give its figure, which a notebook draws.

    ``full``: the full size instead of the quick one. ``theme``: "light" or "dark".
    """
    from ..draw.style import themed

    experiment = load(name)
    params = experiment.Params() if full else experiment.QUICK
    arrays = experiment.run(params, lambda fraction, text: None)
    with themed(theme):
        return experiment.plot(arrays, params)
