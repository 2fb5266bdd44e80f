"""Ranks of gloo, forked by one process that has imported what they run: torchrun imports it anew in each of them.

``python ranks.py MODULE:FUNCTION JOBS``; :func:`on_ranks` starts it. What torchrun itself does, others test.
"""

import json
import os
import pkgutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import fplab
from fplab.parallel.launching import environment

LIMIT = 300  # seconds for the ranks of a job
Job = tuple[Any, ...]


def on_ranks(function: str, folder: Path, *jobs: Job) -> list[Any]:
    """What rank 0 of a function, MODULE:NAME, gives in each job: a number of ranks and the function's arguments.

    What it gives is read as torch.load does by itself: tensors, strings, numbers, and lists, tuples and dicts of them.
    """
    files = [folder / f"job {number}.pt" for number in range(len(jobs))]
    given = json.dumps([[str(file), *job] for file, job in zip(files, jobs, strict=True)])
    start = [sys.executable, "-W", "ignore", __file__, function, given]
    done = subprocess.run(start, env=environment(), capture_output=True, text=True, check=False,
                          timeout=LIMIT * len(jobs))  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [torch.load(file) for file in files]


def rank_of(function: Callable[..., Any], out: str, rank: int, ranks: int, *arguments: Any) -> None:
    """One rank; it never returns. The ranks meet in a file: a port that was free may be another's by then."""
    status = 1
    try:
        dist.init_process_group("gloo", f"file://{out}.meeting", world_size=ranks, rank=rank)
        end = dist.new_group()  # its barrier does not wait for what the others may still have under way, or refused
        found = function(*arguments)
        if dist.get_rank() == 0:
            torch.save(found, out)
        dist.barrier(end)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # torch's threads of gloo may outlive what they wait for


def main(name: str, jobs: str) -> int:
    function = pkgutil.resolve_name(name)
    fplab.quantize(1.0, "bf16")  # at a first kernel numba imports the rest of itself
    # The kernels that all ranks will call, which each would else load by itself.
    getattr(sys.modules[function.__module__], "beforehand", lambda: None)()
    for out, ranks, *arguments in json.loads(jobs):
        children = set()
        for rank in range(ranks):
            if not (child := os.fork()):
                rank_of(function, out, rank, ranks, *arguments)
            children.add(child)
        while children:
            child, status = os.wait()
            children.remove(child)
            if status:
                for other in children:
                    os.kill(other, signal.SIGKILL)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
