"""A GPU case: one computation that a device does through torch and the lab does in software, from the same inputs.

This module, and every experiment's ``gpu_cases``, must import where only numpy and torch are installed: the recorder
runs from a bare source tree.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import seeds
from ..errors import LabError

Arrays = dict[str, np.ndarray]
Meta = Mapping[str, Any]
Emulate = Callable[[Arrays, Meta], Arrays]


class NotHereError(LabError):
    """What a ``compute`` raises on a device that lacks what the case needs: the case is passed over, not failed."""


@dataclass(frozen=True)
class Case:
    """One computation with raw bits in and raw bits out.

    ``name``: unique within its experiment. ``inputs()``: arrays of unsigned integers, the bits of the operands.
    ``compute(inputs, device)``: does it with torch on ``device`` (a string such as "cuda") and returns the bits of
    the results as unsigned integers. ``emulate(inputs, meta)``: what the lab says those bits are; ``meta`` is the
    record's (``meta["torch"]`` is the torch version, on which some results depend). ``formats``: the format of each
    output, so that a difference can be shown as numbers and two NaNs count as equal; "bits8" to "bits64" are raw bits
    of which every one counts.

    ``open``: the question that hardware is asked here, where the lab has no settled answer. An output that differs
    then, or that ``emulate`` does not give, is an open question and no failure. ``hypotheses``: possible answers by
    name, each giving some of the outputs; comparing says which of them the device agrees with.
    """

    name: str
    inputs: Callable[[], Arrays]
    compute: Callable[[Arrays, str], Arrays]
    emulate: Emulate
    formats: Mapping[str, str]
    open: str = ""
    hypotheses: Mapping[str, Emulate] = field(default_factory=dict)


def unmodelled(inputs: Arrays, meta: Meta) -> Arrays:
    """The ``emulate`` of a case of which the lab has no model: no outputs."""
    return {}


def philox_bits(key: int, *shape: int, dtype: type[np.unsignedinteger[Any]] = np.uint32) -> np.ndarray:
    """Random bit patterns of a case's key."""
    return seeds.bits(math.prod(shape), key, dtype=dtype).reshape(shape)
