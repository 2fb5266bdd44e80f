"""A small experiment with every part that the frame asks for: the squares of the first integers, modulo 2**8.

``install`` puts it in the place of the real experiments; the parts can be replaced to make it fail in any way.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fplab import experiments
from fplab.experiments.base import Evidence, Outcome, same_bits
from fplab.experiments.legacy import Check
from fplab.hardware.cases import Arrays, Case


@dataclass(frozen=True)
class Params:
    """How many squares, and of what names."""

    count: int = 256
    labels: tuple[str, ...] = ("n", "square")


QUICK = Params(16)


def squares(codes: np.ndarray) -> np.ndarray:
    """n*n modulo 256, as codes of E5M2."""
    return codes * codes


def run(params: Params, tick: Callable[[float, str], None]) -> Arrays:
    """The squares."""
    tick(0.5, "squaring")
    n = np.arange(params.count, dtype=np.uint8)
    return {"n": n, "square": squares(n), "noise": np.float64(time.time())}


def plot(arrays: Arrays, params: Params) -> Any:
    """A line."""
    from fplab.draw.style import new_figure

    figure = new_figure(3, 2)
    figure.subplots().plot(arrays["n"], arrays["square"])
    return figure


def table(arrays: Arrays, params: Params) -> dict[str, Any]:
    """Two columns."""
    return {"n": arrays["n"], "square": arrays["square"]}


def count_holds(arrays: Arrays, params: Params) -> Outcome:
    """As many as asked."""
    return same_bits(arrays["square"], squares(np.arange(params.count, dtype=np.uint8)), "e5m2")


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


@dataclass
class Toy:
    """The module's parts as attributes, so that a test can replace one."""

    TITLE: str = "Squares"
    QUESTION: str = "What are the squares of small integers?"
    BUDGET: float = 2.0
    QUICK: Params = QUICK
    Params: type = Params
    CHECKS: tuple[Check, ...] = (
        Check("every square is there", Evidence.PROVED, count_holds),
        Check("numpy squares the same", Evidence.LIBRARY, count_holds),
    )
    DIGESTED: tuple[str, ...] = ("n", "square")
    run: Any = run
    plot: Any = plot
    table: Any = table
    cases: tuple[Case, ...] = field(default_factory=lambda: (case("squares"), case("squares again")))

    def gpu_cases(self, params: Any) -> tuple[Case, ...]:
        """The cases."""
        return self.cases


def install(name: str = "toy", **parts: Any) -> Toy:
    """Make a toy experiment the only one, for good: tests restore with the fixture ``only_toy``."""
    toy = Toy(**parts)
    module = types.ModuleType(f"fplab.experiments.{name}")
    for part in (*Toy.__dataclass_fields__, "gpu_cases"):
        setattr(module, part, getattr(toy, part))
    sys.modules[module.__name__] = module
    experiments.NAMES = (name,)
    return toy


def hang(*_: Any) -> Any:
    """A part that says that it began and never ends."""
    print("hanging", flush=True)
    time.sleep(60)
