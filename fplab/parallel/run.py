"""One process of a real run, on one node or on several, as ``torchrun`` starts it.

On one node :func:`fplab.parallel.launch` starts it, forked. By hand, on four processes of one node::

    torchrun --standalone --nproc-per-node 4 -m fplab.parallel.run --strategy zero3 --ranks 4 --folder runs

On two nodes the same command runs on each, with the address of the first and a folder that both can write::

    torchrun --nnodes 2 --nproc-per-node 2 --max-restarts 0 --rdzv-backend c10d --rdzv-endpoint node0:29500 \\
        --rdzv-conf join_timeout=30 -m fplab.parallel.run --strategy zero3 --ranks 4 --folder /shared/runs

A node that does not come is then an error after 30 seconds. GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME) names the network
interface that joins the nodes. Processes talk through NCCL where every process of a node has a GPU of its own,
otherwise through gloo, on the CPU; ``--backend`` chooses.
"""

import argparse
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import LabError
from ..settings import integer_set
from ..words import part
from .settings import BACKENDS, HANG, KILL, LAUNCHED, STRATEGIES, RankResult, Setting, setting

PATIENCE = 20  # seconds that a process waits for the others


def main(arguments: list[str] | None = None) -> int:
    """Run; an error goes to a file beside the results, for the one who started this, and to the terminal."""
    given = parse(arguments)
    if LAUNCHED in os.environ:
        threading.Thread(target=end_with_launcher, daemon=True).start()
    rank = int(os.environ.get("RANK", "0"))
    folder = Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"pid.{rank}").write_text(str(os.getpid()), encoding="utf-8")
    try:
        asked = setting(given.setting) if given.setting else by_hand(given)
        check_world(asked.ranks)
        work(asked, folder)
    except (LabError, RuntimeError) as error:
        text = str(error) if isinstance(error, LabError) else in_vain(rank, error)
        if text is None:
            raise
        (folder / f"error.{rank}").write_text(text, encoding="utf-8")
        print(f"fplab: {text}", file=sys.stderr)
        return 1
    return 0


def in_vain(rank: int, error: RuntimeError) -> str | None:
    """What to say of an error of gloo's or NCCL's after :data:`PATIENCE`; None for any other."""
    if not re.search(r"time(d )?out", str(error), re.IGNORECASE):
        return None
    return part(
        f"rank {rank} waited {PATIENCE} seconds for another rank in vain: one is stopped, cut off or far slower."
    )


def end_with_launcher() -> None:
    """End this process when the launcher closes its end of standard input, or dies."""
    os.read(0, 1)
    os._exit(1)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line: ``--setting`` takes everything as JSON, the others are for hands."""
    parser = argparse.ArgumentParser(
        "fplab.parallel.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategy", nargs="+", default=["ddp"], metavar="NAME", help=", ".join(STRATEGIES))
    parser.add_argument("--ranks", type=int, default=2, help="how many processes there are")
    parser.add_argument("--backend", choices=BACKENDS, help="what they talk through (default: nccl if there are GPUs)")
    parser.add_argument("--setting", help="a whole setting as JSON, instead of the three above")
    parser.add_argument("--folder", required=True, help="where results go")
    return parser.parse_args(arguments)


def by_hand(given: argparse.Namespace) -> Setting:
    return Setting(tuple(given.strategy), given.ranks, backend=given.backend)


def check_world(ranks: int) -> None:
    """Whether torchrun started as many processes as the setting says."""
    world = os.environ.get("WORLD_SIZE")
    if world is None:
        raise LabError(f"no WORLD_SIZE: start this with torchrun --nproc-per-node {ranks} -m fplab.parallel.run ...")
    if integer_set("WORLD_SIZE", 1, 1 << 20) != ranks:
        raise LabError(
            f"the world has {world} processes and the setting says ranks={ranks}; "
            f"start it with torchrun --nproc-per-node {ranks}, or on several nodes with {ranks} processes in all."
        )


def backend(asked: str | None, gpus: int, processes: int) -> str:
    """What the ``processes`` of a node talk through, of which each needs one of its ``gpus`` for NCCL.

    >>> backend(None, 8, 4), backend(None, 1, 4)
    ('nccl', 'gloo')
    """
    if asked == "nccl" and gpus < processes:
        raise LabError(f"backend='nccl' needs a GPU for each of {processes} processes; this node has {gpus}.")
    return asked or ("nccl" if gpus >= processes else "gloo")


def strategies() -> dict[str, Callable[..., RankResult]]:
    """What trains, by name."""
    from . import data_parallel, model_parallel, zero

    return {
        "ddp": data_parallel.ddp,
        "parameter-server": data_parallel.parameter_server,
        "zero-redundancy": data_parallel.zero_redundancy,
        "fully-shard": data_parallel.fully_shard,
        "tensor": model_parallel.tensor,
        **{f"zero{stage}": partial(zero.zero, stage=stage) for stage in (1, 2, 3)},
        **{name: partial(model_parallel.pipeline, schedule=name) for name in ("gpipe", "1f1b", "interleaved")},
    }


def work(asked: Setting, folder: Path) -> None:
    """Join the others and train, one strategy after the other."""
    import torch
    import torch.distributed as dist

    from .message_log import MessageLog
    from .task import Network

    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.")  # torch's own, of its own names
    torch.set_num_threads(1)
    chosen = backend(asked.backend, torch.cuda.device_count(), int(os.environ["LOCAL_WORLD_SIZE"]))
    if chosen == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(chosen, timeout=timedelta(seconds=PATIENCE))
    try:
        if asked.dies == dist.get_rank():
            os.kill(os.getpid(), KILL)
        if asked.dies is not None:
            dist.barrier()
        known: dict[str, Any] = strategies()
        for name in asked.strategies:
            if name == HANG:
                time.sleep(3600)
            log = MessageLog(asked)
            known[name](log, Network(asked, log.device)).write(folder, name)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is written. An ordinary exit now and then aborts ("terminate called without an active exception"), when
    # a thread of torch's is still running as C++ objects are destroyed: about one run in six on a loaded machine.
    os._exit(status)
