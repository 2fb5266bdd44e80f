"""The experiments, in the order of the ladder, loaded one by one when they are asked for."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LabError, door, fits, summary, unknown
from ..lazily import index
from .frame import Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LADDER", "NAMES", "Experiment", "load", "show"]

index(__name__)

LADDER: tuple[str, ...] = (
    "formats", "silicon", "underflow", "master_weights", "loss_scaling", "accumulate", "partial_products",
    "generations", "fp8_accumulation", "accumulator_bits", "attention_tiles", "scales", "fp8_training",
    "recipes", "tf32", "split", "double_precision", "formats_in_training", "sensitive_operations",
    "gpu_generations", "batch_invariance", "torch_bits", "trajectory", "memory_measured", "checkpointing",
    "collectives", "schedules", "data_parallel", "quantisation_error", "eight_bit_adam", "llm_int8",
    "calibration",
)  # fmt: skip
"""The names of the experiments in the order in which they build on one another."""


def _further() -> list[str]:
    """The experiments in this folder that have no place on the ladder yet."""
    without_place = []
    for path in sorted(Path(__file__).parent.glob("[!_]*")):
        file = path / "__init__.py" if path.is_dir() else path
        if path.stem in LADDER or file.suffix != ".py" or not file.is_file():
            continue
        if "\nE = Experiment(" in file.read_text(encoding="utf-8"):
            without_place.append(path.stem)
    return without_place


NAMES: tuple[str, ...] = (*LADDER, *_further())
"""All names: the ladder, and what has no place on it yet."""


@door
def load(name: str) -> Experiment:
    """The experiment of a name.

    >>> str(load("formats").title)
    'The atlas of formats'
    """
    if name not in NAMES:
        raise unknown("experiment", name, NAMES)
    experiment: Experiment = importlib.import_module(f"{__name__}.{name}").E
    return experiment


@door
def show(name: str, full: bool = False, theme: str = "light") -> Figure:
    """Run an experiment and give its figure, which a notebook draws.

    ``full``: the full size instead of the quick one. ``theme``: "light" or "dark".
    """
    from ..draw.style import themed
    from .progress import silent

    if not fits(full, bool):  # anything else that is true would begin a run of minutes
        raise LabError(f"full={summary(full)} is not possible; allowed: True or False.")
    experiment = load(name)
    result = experiment.run(experiment.full if full else experiment.quick, silent)
    with themed(theme):
        return experiment.figures[0](result)
