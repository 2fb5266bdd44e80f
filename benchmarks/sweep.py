"""How a sweep scales: the same cells on 1, 2 and 4 processes, in turn, beside a model that more can be read from.

The model: a process takes ``s`` seconds to start and ``c`` for a cell, which two sweeps of one process say, one of them
of a single cell; so ``n`` cells on ``p`` processes take ``s + ceil(n / p) * c``, where each process has a core, or like
the others a share of one. Run it with ``python -m benchmarks sweep``.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .timing import seconds, sized, table

CELLS, STEPS, PROCESSES = sized((8, 100, (1, 2, 4)), (2, 2, (1, 2)))


def sweep(processes: int, cells: int) -> float:
    """Seconds that a sweep takes, its processes' start with it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fplab", "sweep", "--out", str(Path(folder)), "--jobs", str(processes),
                   "--recipes", "fp16", "--seeds", f"0-{cells - 1}", "--steps", str(STEPS)]  # fmt: skip
        quiet = subprocess.DEVNULL
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "FPLAB_NUM_THREADS": "1"}
        return seconds(lambda: subprocess.run(command, check=True, env=one_thread, stdout=quiet, stderr=quiet))


def main(rounds: int = sized(3, 1)) -> None:
    """Print the table."""
    cores = len(os.sched_getaffinity(0))
    tries = [(1, 1), *((p, CELLS) for p in PROCESSES)]
    every = [[sweep(*one) for one in tries] for _ in range(rounds)]
    single, *measured = (min(each) for each in zip(*every, strict=True))
    cell = (measured[0] - single) / (CELLS - 1)
    start = single - cell
    rows = []
    for p, took in zip(PROCESSES, measured, strict=True):
        model = start + math.ceil(CELLS / p) * cell
        rows.append((p, f"{took:.1f}", f"{measured[0] / took:.2f}", f"{model:.1f}", f"{model / took - 1:+.0%}"))
    title = f"{CELLS} cells of {cell:.1f} s, {start:.1f} s to start, {cores} cores"
    print(table(title, ("processes", "seconds", "speedup", "model", "its error"), rows))
