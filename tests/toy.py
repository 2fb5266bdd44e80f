"""A small experiment with every part that the frame asks for: the squares of the first integers, modulo 2**8.

``install`` puts it in the place of the real experiments; the parts can be replaced to make it fail in any way.
"""

from __future__ import annotations

import copy
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from fplab import experiments
from fplab.experiments.frame import Experiment, Params, Result
from fplab.experiments.outcomes import Claim, Evidence, Outcome, same_bits
from fplab.hardware.cases import Arrays, Case
from fplab.words import say

E = Experiment("Squares", "What are the squares of small integers?", budget=2.0,
               full={"count": 256, "labels": ("n", "square")}, quick={"count": 16})  # fmt: skip


def squares(codes: np.ndarray) -> np.ndarray:
    """n*n modulo 256, as codes of E5M2."""
    return codes * codes


@E.measure("n", "square", digested=True)
def numbers(p: Params) -> tuple[np.ndarray, np.ndarray]:
    """The numbers and their squares."""
    n = np.arange(p.count, dtype=np.uint8)
    return n, squares(n)


@E.measure()
def noise(p: Params) -> float:
    """What differs from run to run."""
    return time.time()


@E.table
def rows(result: Result) -> dict[str, Any]:
    """Two columns."""
    return {"n": result.n, "square": result.square}


@E.picture
def line(result: Result) -> Any:
    """A line."""
    from fplab.draw.style import new_figure

    figure = new_figure(3, 2)
    figure.subplots().plot(result.n, result.square)
    return figure


def count_holds(result: Result) -> Outcome:
    """As many as asked."""
    return same_bits(result.square, np.array([n * n % 256 for n in range(result.params.count)], np.uint8), "e5m2")


def claim(text: str, evidence: Evidence, test: Callable[[Any], Outcome]) -> Claim:
    """A claim whose id is its text."""
    return Claim(text, evidence, say(text), test)


def compute(inputs: Arrays, device: str) -> Arrays:
    """Square with torch."""
    import torch

    x = torch.from_numpy(inputs["x"]).to(device)
    return {"y": (x * x).cpu().numpy()}


def case(name: str, **parts: Any) -> Case:
    """One GPU case: the squares of all bytes."""
    every = {
        "inputs": lambda: {"x": np.arange(256, dtype=np.uint8)},
        "compute": compute,
        "emulate": lambda inputs, meta: {"y": squares(inputs["x"])},
        "formats": {"y": "e5m2"},
    }
    return Case(name, **{**every, **parts})


def boom(*_: Any) -> Any:
    """What a broken case or check does."""
    raise RuntimeError("boom:\n  a message of two lines")


E.claim(claim("every square is there", Evidence.PROVED, count_holds),
        claim("numpy squares the same", Evidence.LIBRARY, count_holds))  # fmt: skip
E.cases = lambda params: (case("squares"), case("squares again"))


def install(name: str = "toy", **parts: Any) -> types.ModuleType:
    """Make a toy experiment the only one, for good: tests restore with the fixture ``only_toy``."""
    module: Any = types.ModuleType(f"fplab.experiments.{name}")
    module.E = copy.copy(E)
    vars(module.E).update(parts)
    sys.modules[module.__name__] = module
    experiments.NAMES = (name,)
    return module


def asking(*cases: Case) -> Callable[[Any], tuple[Case, ...]]:
    """GPU cases for :func:`install`."""
    return lambda params: cases


def hang(*_: Any) -> Any:
    """A part that says that it began and never ends."""
    print("hanging", flush=True)
    time.sleep(60)
