"""A small sweep, and kills of its ranks: ``python -m tests.sweep_ranks FOLDER KILLS SEED`` prints JSON for each kill.

The ranks are forked by a process that has imported everything, so that a kill takes a moment. :data:`SMALL` is a model
for ``--models sweep_ranks:SMALL``; :data:`DEADLY` is the same, but kills the first process that is amid its seed 1.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fplab.training.sweeps import Cell, work
from fplab.training.tasks import Batch, perceptron

SMALL = perceptron(width=16, batch=16, name="small")  # 16 divides what recipes quantise


def deadly(seed: int, steps: int, start: int = 0) -> Iterator[Batch]:
    mark = Path(os.environ["KILLED"])
    for step, batch in enumerate(SMALL.batches(seed, steps, start), start):
        if seed == 1 and step == 3:
            with contextlib.suppress(FileExistsError):
                mark.touch(exist_ok=False)  # one of two processes that come here at once
                os.kill(os.getpid(), signal.SIGKILL)
        yield batch


DEADLY = replace(SMALL, batches=deadly)
RECIPES = ("fp16", "fp8_delayed", "nvfp4")


def cells() -> list[Cell]:
    return [Cell("tests.sweep_ranks:SMALL", recipe, seed, 6, "B200") for seed in range(2) for recipe in RECIPES]


def rank(folder: Path, number: int, ranks: int) -> int:
    """Fork a rank; its process."""
    if child := os.fork():
        return child
    status = 1
    try:
        work(cells(), folder, 1, number, ranks, lambda line: None)
        status = 0
    finally:
        os._exit(status)


def results(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Of each cell that is done its file's bytes, and when it was written."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.glob("[!.]*.json")}


def killed(folder: Path, moment: float, victims: tuple[int, ...]) -> tuple[int, str]:
    """Kill ranks of two at a moment, and let the other, or a new one, end the sweep: cells done then, what is wrong."""
    folder.mkdir()
    children = [rank(folder, number, 2) for number in range(2)]
    time.sleep(moment)
    for number in victims:
        os.kill(children[number], signal.SIGKILL)
        os.waitpid(children[number], 0)
    done = results(folder)
    ended = [os.waitpid(child, 0)[1] for number, child in enumerate(children) if number not in victims]
    if not ended:
        ended = [os.waitpid(rank(folder, 0, 1), 0)[1]]
    after = results(folder)
    if any(after.get(name) != one for name, one in done.items()):
        return len(done), "a cell that was done was computed again"
    if any(ended):
        return len(done), f"a rank ended with {ended}"
    whole = results(folder.parent / "whole")
    wrong = [name for name in whole if name not in after or after[name][0] != whole[name][0]]
    extra = sorted(path.name for path in folder.iterdir() if path.name not in {*whole, ".claims"})
    return len(done), f"{wrong} differ, {extra} are left over" if wrong or extra else ""


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    rng = np.random.Generator(np.random.Philox(seed))
    (folder / "whole").mkdir()
    work(cells(), folder / "whole", 1, 0, 1, lambda line: None)  # undisturbed; everything is imported and compiled
    start = time.perf_counter()
    killed(folder / "timed", 0.0, ())
    lasts = time.perf_counter() - start
    for number in range(kills):
        victims = (0, 1) if number % 4 == 3 else (int(rng.integers(2)),)
        print(json.dumps(killed(folder / str(number), float(rng.random()) * lasts, victims)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
