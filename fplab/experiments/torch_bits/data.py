"""The experiment's data: the catalogue of this CPU, the smallest examples, the ways of the optimizers, the orders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...hardware import elementwise
from ...hardware.cases import Arrays
from ..base import Tick
from . import orders
from .catalogue import FORMULAS, PLACES, answers, cases, rows
from .examples import DISTINCTIONS, smallest

OPTIMIZERS, WAYS = tuple(elementwise.OPTIMIZERS), tuple(elementwise.WAYS)
OPERANDS = ("x", "y", "z")


@dataclass(frozen=True)
class Params:
    """``terms``: how many random sums are folded in a revealed order."""

    terms: int = 512


QUICK = Params(terms=32)


def run(params: Params, tick: Tick) -> Arrays:
    """Everything, by torch on this machine's CPU.

    "wrong": how many results a formula gets wrong, int64 (places, rows, FORMULAS), -1 where it says nothing; "codes":
    the smallest examples, uint64 (DISTINCTIONS, operands), all ones where torch shows no difference; "ways": in how
    many of 512 parameters an optimizer's way differs from its loop; "paths": for every pair of terms the size of the
    smallest part of the sum that holds both, int64 (sums, N, N).
    """
    import torch

    meta = {"torch": str(torch.__version__), "kind": "cpu"}
    index = {row: i for i, row in enumerate(rows())}
    wrong = np.full((len(PLACES), len(index), len(FORMULAS)), -1, np.int64)
    known = cases()
    for i, case in enumerate(known):
        tick(0.6 * i / len(known), case.name)
        for p, place in enumerate(PLACES):
            for answer in answers(case, place, meta):
                for name, count in answer.wrong.items():
                    wrong[p, index[answer.row], FORMULAS.index(name)] = count
    by_name = {case.name: case for case in known}
    codes = np.full((len(DISTINCTIONS), len(OPERANDS)), np.uint64(2**64 - 1))
    for i, one in enumerate(DISTINCTIONS):
        tick(0.6 + 0.2 * i / len(DISTINCTIONS), f"smallest example of {one.output}")
        found = smallest(by_name[one.case], one, meta)
        for name, code in (found or {}).items():
            codes[i, OPERANDS.index(name)] = code
    tick(0.8, "optimizers")
    ways = np.array([optimizer(name) for name in OPTIMIZERS])
    paths = []
    for name in orders.SUMS:
        tick(0.9, name)
        paths.append(orders.tree(name).sizes)
    return {"wrong": wrong, "codes": codes, "ways": ways, "paths": np.stack(paths), "formats": shape_of_rows()}


def optimizer(name: str) -> list[int]:
    """In how many parameters each way differs from the loop, after three steps."""
    case = elementwise.optimizer_case(name)
    found = case.compute(case.inputs(), "cpu")
    return [int((found[way] != found[WAYS[0]]).sum()) for way in WAYS]


def shape_of_rows() -> np.ndarray:
    """How many rows each group of the catalogue has, and how many outputs: the one thing that no machine changes."""
    names = [row.case for row in rows()]
    return np.array([names.count(name) for name in dict.fromkeys(names)], np.int64)
