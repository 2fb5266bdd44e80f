"""The ranks of one node, forked by a process that has imported what they run: torchrun imports it anew in each.

``python -m fplab.parallel.forked RANKS PORT`` and the arguments of :mod:`fplab.parallel.run`, which each rank is; in
its environment is what torchrun writes there. PORT 0: one that is free.
"""

import os
import socket
import sys
import traceback

import torch.distributed as dist

from ..hardware.environment import warm_up
from . import run
from .settings import KILL

HOST = "127.0.0.1"


def main(count: str, port: str, *arguments: str) -> int:
    """Fork the ranks and wait for them; what went wrong is said as torchrun says it."""
    warm_up()
    run.strategies()  # imported once, for every rank
    with socket.socket() as meeting:  # listens before there are ranks; the store takes it once they are forked
        meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        meeting.bind((HOST, int(port)))
        meeting.listen(int(count))
        where = meeting.getsockname()[1]
        os.environ |= {
            "MASTER_ADDR": HOST, "MASTER_PORT": str(where), "WORLD_SIZE": count,
            "LOCAL_WORLD_SIZE": count, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
        }  # fmt: skip
        ranks = {}
        for rank in range(int(count)):
            if not (number := os.fork()):
                meeting.close()
                one(rank, arguments)
            ranks[number] = rank
        taken = meeting.detach()
        _store = dist.TCPStore(  # type: ignore[attr-defined]
            HOST, where, is_master=True, wait_for_workers=False, master_listen_fd=taken
        )
    return ended(ranks)


def one(rank: int, arguments: tuple[str, ...]) -> None:
    """One rank; it never returns."""
    status = 1
    try:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        status = run.main(list(arguments))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # as run does, and this process's caller is the parent's


def ended(ranks: dict[int, int]) -> int:
    """Wait for processes by their number; where one fails, the others are killed and its rank is said."""
    failed: dict[int, int] = {}
    while ranks:
        number, status = os.waitpid(-1, os.WNOHANG if failed else 0)
        if number == 0:
            break
        if code := os.waitstatus_to_exitcode(status):
            failed[ranks[number]] = code
        del ranks[number]
    for number in ranks:
        os.kill(number, KILL)
    if failed:
        rank = min(failed, key=failed.__getitem__)  # one that a signal ended comes before those that miss it
        print(f"Root Cause: rank: {rank} exitcode: {failed[rank]}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
