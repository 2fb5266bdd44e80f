"""How a sweep and a survey of a checkpoint scale: the same work on 1, 2, 4 and 8 processes of a core each, in turn.

The model: a process takes ``s`` seconds of a core to start and the work ``w``, which two runs of one process say, one
of them of a part of the work; so ``p`` processes take ``(p * s + w) / cores``, and where each has a core ``s`` and its
share of the work. A process's share is whole cells, or whole tensors: no more processes than ``w`` over the largest of
them are of use. Run it with ``python -m benchmarks sweep``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .timing import judged, seconds, sized, table

CELLS, STEPS, PROCESSES = sized((8, 100, (1, 2, 4, 8)), (2, 2, (1, 2)))
TENSORS, ROWS = sized((16, 2048), (2, 32))  # of the checkpoint, each of rows of 4,096
LEAST = 0.9  # of what the model says, as far as there are cores
RANKS = 1000
Run = Callable[[Path, int, int], float]  # seconds of some of the work by so many processes, in a folder


def command(folder: Path, *words: str, **environment: str) -> subprocess.Popen[bytes]:
    """The command, its results below ``folder``, in a process of one thread."""
    quiet, one_thread = subprocess.DEVNULL, {"OMP_NUM_THREADS": "1", "FPLAB_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "fplab", *words, "--out", str(folder)], stdout=quiet, stderr=quiet,
                            env=os.environ | one_thread | environment)  # fmt: skip


def ended(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for all; an error where one failed."""
    for process in processes:
        process.wait()
    if any(process.returncode for process in processes):
        raise RuntimeError("a process failed")


def sweep(folder: Path, processes: int, cells: int) -> float:
    words = ("sweep", "--jobs", str(processes), "--recipes", "fp16", "--seeds", f"0-{cells - 1}", "--steps", str(STEPS))
    return seconds(lambda: ended([command(folder / "out", *words)]))


def checkpoint(folder: Path, processes: int, tensors: int) -> float:
    files = []
    for i in range(tensors):
        files.append(folder / f"w{i}.npy")
        np.save(files[-1], np.random.default_rng(i).standard_normal((ROWS, 4096), np.float32))
    words = ("checkpoint", *map(str, files))
    ranks = [{"WORLD_SIZE": str(processes), "RANK": str(rank)} for rank in range(processes)]
    return seconds(lambda: ended([command(folder / "out", *words, **rank) for rank in ranks]))


def measured(what: str, run: Run, parts: int, rounds: int) -> str:
    """A table of some work of so many equal parts."""
    tries = [(1, 1), *((p, parts) for p in PROCESSES)]
    cores, times = len(os.sched_getaffinity(0)), []
    for _ in range(rounds):
        for given in tries:
            with tempfile.TemporaryDirectory() as folder:
                times.append(run(Path(folder), *given))
    single, *took = (min(times[n :: len(tries)]) for n in range(len(tries)))
    part = (took[0] - single) / (parts - 1)
    start, rows = single - part, []
    for p, t in zip(PROCESSES, took, strict=True):
        model = (p * start + parts * part) / min(p, cores)
        name = f"{what} on {p} processes, of its model"
        rows.append((p, f"{t:.1f}", f"{took[0] / t:.2f}", f"{model:.1f}", judged(name, t / model, 1 / LEAST)))
    head = ("processes", "seconds", "speedup", "model", f"of the model (goal {1 / LEAST:.2f})")
    worth = LEAST / (1 - LEAST) * start
    title = (f"{what}: {parts} parts of {part:.2f} s, {start:.1f} s to start, {cores} cores; {RANKS:,} ranks reach "
             f"{LEAST:.0%} from {worth:.0f} s of work each on, {RANKS * worth / part:,.0f} such parts")  # fmt: skip
    return table(title, head, rows)


def main(rounds: int = sized(3, 1)) -> None:
    """Print the tables."""
    print(measured("sweep, cells", sweep, CELLS, rounds), measured("checkpoint, tensors", checkpoint, TENSORS, rounds),
          sep="\n\n")  # fmt: skip
    size = TENSORS * ROWS * 4096 * 4 / 1e9
    print(f"the checkpoint: {size:.2f} GB, read twice, in tensors of {size / TENSORS * 1e3:.0f} MB; a rank writes a "
          "file of its own, and reads those of all once")  # fmt: skip
