"""What a GPU must multiply: products of every kind, summed in FP32 or in FP16; numpy and torch alone are needed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...hardware.cases import Case
from ...hardware.core_cases import SIDE, core_case
from ...hardware.products import FP16_SUMS, ONE_CHAIN, REDUCED, Product
from . import network, operands

if TYPE_CHECKING:
    from . import Params

UNREDUCED = {REDUCED.format("fp16"): False}
LONG = ("positive", "activations × gradients")  # kinds of which the whole length is multiplied
SHORT = (64, 4096)


def factors(kind: str, k: int, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """The leading K of a kind's operands, as codes."""
    source = network if kind in network.REAL else operands
    a, b = source.make(kind, params.rows, params.log2_last)
    return a[:, :k].copy(), b[:, :k].copy()


def cases(params: Params) -> tuple[Case, ...]:
    """FP32 sums of every made up kind at two lengths, of two kinds at the last; the two ways to an FP16 result."""
    last = 1 << params.log2_last
    wanted = [(kind, k, "fp32", "fp32") for kind in operands.SYNTHETIC for k in SHORT if k <= last]
    wanted += [(kind, last, "fp32", "fp32") for kind in LONG]
    wanted += [("positive", min(4096, last), sums, "fp16") for sums in ("fp32", "fp16")]
    return tuple(case(*one, params) for one in wanted)


def case(kind: str, k: int, sums: str, store: str, params: Params) -> Case:
    """One product of FP16 operands; ``sums``: the format of the running sum, ``store``: of the result."""
    flags = FP16_SUMS if sums == "fp16" else UNREDUCED
    one = Product("matmul", ("fp16", "fp16"), store, (SIDE, SIDE, k), flags)
    plan = {"accumulate": "fp16"} if sums == "fp16" else ONE_CHAIN
    name = f"{kind}, K = {k}: {sums.upper()} sums" + (f" stored as {store.upper()}" if store != sums else "")
    return core_case(name, one, partial(factors, kind, k, params), plan)
