"""Mutants of the experiments on long products: one array of one kind of operands is changed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.frame import changed

Change = Callable[[np.ndarray], Any]


def off(kind: str, field: str, change: Change) -> Callable[[Any], dict[str, Any]]:
    """The fields of a result in which an array of a kind is changed in place, or for what ``change`` returns."""

    def apply(result: Any) -> dict[str, Any]:
        one = result.kinds[kind]
        return {"kinds": {**result.kinds, kind: replace(one, **changed(field, change)(one))}}

    return apply


def scaled(place: Any, factor: float) -> Change:
    """Multiply what stands at a place."""

    def change(array: np.ndarray) -> None:
        array[place] *= np.asarray(factor, array.dtype)

    return change


def added(place: Any, value: Any) -> Change:
    """Add to what stands at a place."""

    def change(array: np.ndarray) -> None:
        array[place] += np.asarray(value).astype(array.dtype)

    return change


def copied(source: int, target: int) -> Change:
    """Give one way the results of another."""

    def change(array: np.ndarray) -> None:
        array[target] = array[source]

    return change
