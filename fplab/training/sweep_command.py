"""The command ``fplab sweep``: which cells, which processes, and what they found: a table and CSV."""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..columns import as_csv, grid
from ..errors import LabError, integer
from ..parallel.run import end_with_launcher
from ..parallel.settings import LAUNCHED
from ..processes import THREADS
from ..settings import integer_set
from ..storage import demand_writable, write_once
from ..threads import num_threads
from ..words import say
from .sweeps import Cell, work

LOST = say("rank {rank} ended with status {status}; its cell went to another rank, or is left.")
LEFT = say("{n} of {all} cells are left; the same command goes on with them.")
WRITTEN = say("In {folder}: a file a cell, cells.csv, summary.csv")
Row = Mapping[str, object]


def run(args: argparse.Namespace) -> int:
    """Compute what is not done yet, and show what there is."""
    seeds = dict.fromkeys(seed for text in args.seeds for seed in seeds_in(text))
    every = integer("--every", args.every, 1, 1 << 30)
    jobs = integer("--jobs", num_threads() if args.jobs is None else args.jobs, 1, 1024)
    order = [(model, recipe, seed) for seed in seeds for model in args.models for recipe in args.recipes]
    gpu = None if args.gpu == "none" else args.gpu
    cells = list(dict.fromkeys(Cell(*cell, args.steps, gpu) for cell in order))
    demand_writable(args.out)
    left = [cell for cell in cells if cell.result(args.out) is None or not cell.ended(args.out)]
    ranks = integer_set("WORLD_SIZE", 0, 1 << 20, 0)  # torchrun's
    rank = integer_set("RANK", 0, ranks - 1) if ranks else 0
    if left and not ranks and min(jobs, len(left)) > 1:
        launch(args, min(jobs, len(left)))
    elif left:
        if LAUNCHED in os.environ:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher hears Ctrl-C, and ends this process
            threading.Thread(target=end_with_launcher, daemon=True).start()
        if ranks:
            os.environ.setdefault("FPLAB_NUM_THREADS", "1")
        work(cells, args.out, every, rank, ranks or 1, lambda line: print(line, file=sys.stderr, flush=True))
    return 0 if rank or LAUNCHED in os.environ else show(cells, args.out)


def seeds_in(text: str) -> range:
    """The seeds of a number, or of a range with both its ends.

    >>> list(seeds_in("2-4"))
    [2, 3, 4]
    """
    match = re.fullmatch(r"(\d{1,20})(?:-(\d{1,20}))?", text, re.ASCII)
    seeds = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    if not seeds or seeds[-1] - seeds[0] >= 1 << 20:
        raise LabError(f"--seeds {text!r} is not possible; allowed: numbers, and ranges such as 0-4.")
    return seeds


# --- processes of this machine ------------------------------------------------------------------------------------
def launch(args: argparse.Namespace, jobs: int) -> None:
    """This command as so many ranks, each of one thread; one that dies stops no other, and none outlives this one."""
    several = (word for name in ("models", "recipes", "seeds") for word in (f"--{name}", *getattr(args, name)))
    steps = () if args.steps is None else ("--steps", str(args.steps))
    command = [sys.executable, "-m", "fplab", "sweep", "--out", str(args.out), "--gpu", args.gpu,
               "--every", str(args.every), *several, *steps]  # fmt: skip
    own = {"WORLD_SIZE": str(jobs), LAUNCHED: "1", **dict.fromkeys(THREADS, "1")}
    with _ended() as started:
        for rank in range(jobs):
            environment = {**os.environ, **own, "RANK": str(rank)}
            pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
            started.append(subprocess.Popen(command, env=environment, stdin=pipe, stdout=nowhere))
        for rank, process in enumerate(started):
            if process.wait():
                print(LOST.fill(rank=rank, status=process.returncode), file=sys.stderr)


@contextmanager
def _ended() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are gone when the block ends."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


# --- what was found -----------------------------------------------------------------------------------------------
def show(cells: Sequence[Cell], folder: Path) -> int:
    """Print the summary, write it and the cells as CSV; 1 where cells are left."""
    rows = [_row(cell, result) for cell in cells if (result := cell.result(folder)) is not None]
    means = summary(rows)
    tables: dict[str, Sequence[Row]] = {"cells.csv": rows, "summary.csv": means} if rows else {}
    texts = {name: as_csv([table[0].keys(), *(row.values() for row in table)]) for name, table in tables.items()}
    write_once(folder, texts)
    shown = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()] for row in means]
    print(*(grid([[*means[0]], *shown]) if means else []), WRITTEN.fill(folder=folder), sep="\n")
    if len(rows) < len(cells):
        print(LEFT.fill(n=len(cells) - len(rows), all=len(cells)))
    return int(len(rows) < len(cells))


def _row(cell: Cell, result: Mapping[str, Any]) -> Row:
    """A cell's line in cells.csv: decimal numbers where its file has hexadecimal ones."""
    hexes = {
        "last loss": "".join(result["losses"][-1:]),
        "top1": result["top1"],
        "held-out loss": result["held-out loss"],
    }
    numbers = {key: float.fromhex(x) if x else "" for key, x in hexes.items()}
    rest = {key: result[key] for key in ("skipped", "weights", "stopped")}
    return {"model": cell.model, "recipe": cell.policy.name, "seed": cell.seed, "steps": cell.steps, **numbers, **rest}


def summary(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Of each model and recipe: how many seeds, how many of them stopped; of the others mean and spread.

    The spread is the sample's standard deviation, which one seed has not.
    """
    groups: dict[tuple[object, object], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["recipe"]), []).append(row)
    means = []
    for (model, recipe), group in groups.items():
        ended = [row for row in group if not row["stopped"]]
        mean: dict[str, object] = {"model": model, "recipe": recipe, "seeds": len(group),
                                   "stopped": len(group) - len(ended)}  # fmt: skip
        for name in ("top1", "held-out loss"):
            values: list[Any] = [row[name] for row in ended]
            mean[name] = statistics.mean(values) if values else ""
            mean[f"{name} spread"] = statistics.stdev(values) if len(values) > 1 else ""
        means.append(mean)
    return means
