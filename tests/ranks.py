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
from fplab.lab import free_port
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


def rank_of(function: Callable[..., Any], out: str, *arguments: Any) -> None:
    """One rank, whose number the environment says: it never returns."""
    status = 1
    try:
        dist.init_process_group("gloo")
        found = function(*arguments)
        if dist.get_rank() == 0:
            torch.save(found, out)
        dist.barrier()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # torch's threads of gloo may outlive what they wait for


def main(name: str, jobs: str) -> int:
    function = pkgutil.resolve_name(name)
    fplab.quantize(1.0, "bf16")  # at a first kernel numba imports the rest of itself
    for out, ranks, *arguments in json.loads(jobs):
        port = free_port(20_000 + os.getpid() % 10_000)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        children = set()
        for rank in range(ranks):
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            if not (child := os.fork()):
                rank_of(function, out, *arguments)
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
