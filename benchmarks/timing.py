"""Timing two things side by side, so that a machine that drifts drifts for both."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import numpy as np

LINE = 64
LIBRARIES = "import numpy, numba"  # the yardstick of what Python itself takes on this machine
T = TypeVar("T")


class Goal(NamedTuple):
    """What was measured, and the most that it may be."""

    what: str
    value: float
    most: float

    @property
    def missed(self) -> bool:
        return not self.value <= self.most

    def __str__(self) -> str:
        return f"{self.what}: {self.value:.3g}, goal {self.most:g}"


GOALS: list[Goal] = []  # all that were measured in this process


class Compared(NamedTuple):
    """How many times the time of a yardstick, which the benchmark names, a piece of work takes, and in whose hands."""

    benchmark: str
    work: str
    who: str
    times: float


COMPARED: list[Compared] = []  # what the site shows, peers beside the lab


def compared(benchmark: str, work: str, times: dict[str, float]) -> None:
    """Note the ratios of a piece of work, by who does it."""
    COMPARED.extend(Compared(benchmark, work, who, ratio) for who, ratio in times.items())


def judged(what: str, value: float, most: float, form: str = ".2f") -> str:
    """A value for a table, with its verdict where it misses its goal; the goals make the exit status."""
    GOALS.append(goal := Goal(what, value, most))
    return f"{value:{form}}" + (f" > {most:g}" if goal.missed else "")


def sized(full: T, toy: T) -> T:
    """A size, or that of a run that only shows that everything runs (``--toy``)."""
    return toy if os.environ.get("FPLAB_BENCHMARKS") == "toy" else full


def aligned(n: int, dtype: type = np.float32) -> np.ndarray:
    """An array whose data begins at a cache line, touched so that its pages exist."""
    size = np.dtype(dtype).itemsize
    raw = np.zeros(n + LINE // size, dtype)
    start = (-raw.ctypes.data % LINE) // size
    return raw[start : start + n]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def import_seconds(*statements: str, rounds: int = sized(5, 1)) -> list[float]:
    """The least that each statement takes in a fresh interpreter, the interpreter's own start apart, in turns."""
    code = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"

    def once(statement: str) -> float:
        return float(subprocess.check_output([sys.executable, "-c", code.format(statement)]))

    return [min(times) for times in zip(*([once(s) for s in statements] for _ in range(rounds)), strict=True)]


def ratios(
    base: Callable[[], object], others: dict[str, Callable[[], object]], rounds: int = sized(15, 1)
) -> dict[str, float]:
    """The median over rounds of each one's time divided by the base's time in the same round."""
    found: dict[str, list[float]] = {name: [] for name in others}
    for work in (base, *others.values()):
        work()  # warm: compilation, page faults
    for _ in range(rounds):
        reference = seconds(base)
        for name, work in others.items():
            found[name].append(seconds(work) / reference)
    return {name: statistics.median(times) for name, times in found.items()}


def table(title: str, head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A plain aligned table."""
    cells = [[str(c) for c in row] for row in (list(head), *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    return "\n".join([title, *lines])
