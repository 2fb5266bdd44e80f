"""The experiments, in the order of the ladder, loaded one by one when they are asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from ..errors import unknown
from .base import Experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES: tuple[str, ...] = (
    "formats",
    "underflow",
    "accumulate",
    "partial_products",
    "generations",
    "fp8_accumulation",
    "tf32",
    "split",
)


def load(name: str) -> Experiment:
    """The experiment module of a name.

    >>> load("formats").TITLE
    'The atlas of formats'
    """
    if name not in NAMES:
        raise unknown("experiment", name, NAMES)
    return cast(Experiment, importlib.import_module(f"{__name__}.{name}"))


def show(name: str, full: bool = False, theme: str = "light") -> Figure:
    """Run an experiment and give its figure, which a notebook draws; "light" or "dark"."""
    from ..plots.style import themed

    experiment = load(name)
    params = experiment.Params() if full else experiment.QUICK
    arrays = experiment.run(params, lambda fraction, text: None)
    with themed(theme):
        return experiment.plot(arrays, params)
