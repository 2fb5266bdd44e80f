"""The experiments, in the order of the ladder, loaded one by one when they are asked for."""

from __future__ import annotations

import importlib
from typing import cast

from ..errors import unknown
from .base import Experiment

NAMES: tuple[str, ...] = ("formats", "underflow", "accumulate")


def load(name: str) -> Experiment:
    """The experiment module of a name.

    >>> load("formats").TITLE
    'The atlas of formats'
    """
    if name not in NAMES:
        raise unknown("experiment", name, NAMES)
    return cast(Experiment, importlib.import_module(f"{__name__}.{name}"))
