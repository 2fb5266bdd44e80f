"""Starting real runs: processes on this machine, with a limit, none of which outlives the call."""

import contextlib
import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import LabError, demand, integer, quotes_call, unknown
from ..words import part
from .settings import KILL, LAUNCHED, Result, Setting, read

SETTINGS = tuple(field.name for field in dataclasses.fields(Setting))[2:]
LIMIT = 120.0  # seconds
FORKS = sys.platform == "linux"  # on macOS a process that has loaded its frameworks may not fork; Windows has none
GRACE = 3.0  # seconds that processes have to end before they are killed


@quotes_call
def launch(
    strategies: Sequence[str] | str, ranks: int = 2, *, port: int | None = None, limit: float = LIMIT, **settings: Any
) -> dict[str, Result]:
    """Train with each strategy on ``ranks`` processes of this machine; results by strategy.

    On several nodes the same script runs under torchrun; :mod:`fplab.parallel.run` says how.

    ``port``: where the processes meet on 127.0.0.1 (None: one that is free). ``limit``: seconds until all are killed.
    ``settings``: other fields of :class:`fplab.parallel.Setting`. Raises LabError for a setting that cannot be run, a
    port in use, a process that died (with its rank) or failed (with its error), and for a run beyond the limit; in
    each case no process is left.
    """
    demand("torch")
    if wrong := [name for name in settings if name not in SETTINGS]:
        raise unknown("setting", wrong[0], SETTINGS)
    if not (isinstance(limit, int | float) and limit > 0):
        raise LabError(f"limit={limit!r} is not possible; allowed: a positive number of seconds.")
    names = (strategies,) if isinstance(strategies, str) else tuple(strategies or ())
    asked = Setting(names, ranks, **settings)
    if port is not None:
        check_port(port)
    with tempfile.TemporaryDirectory(prefix="fplab-") as name:
        folder = Path(name)
        finish(command(asked, folder, port=port), folder, limit)
        return {s: Result(s, asked, tuple(read(folder, s, rank) for rank in range(ranks))) for s in names}


def command(asked: Setting, folder: Path, processes: int | None = None, port: int | None = None) -> list[str]:
    """What starts the ranks and waits for them: :mod:`.forked` where a fork is safe, torchrun elsewhere."""
    count = asked.ranks if processes is None else processes
    given = ["--setting", asked.as_json(), "--folder", str(folder)]
    if FORKS:
        return [sys.executable, "-W", "ignore", "-m", "fplab.parallel.forked", str(count), str(port or 0), *given]
    meet = ["--standalone"] if port is None else ["--master-addr=127.0.0.1", f"--master-port={port}"]
    start = [sys.executable, "-m", "torch.distributed.run", *meet, "--local-addr=127.0.0.1"]
    return [*start, f"--nproc-per-node={count}", "--max-restarts=0", "--monitor-interval=0.1",
            "-m", "fplab.parallel.run", *given]  # fmt: skip


def check_port(port: int) -> None:
    """Whether nothing listens on a port of 127.0.0.1 yet."""
    port = integer("port", port, 1, 65535)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise LabError(
                f"port={port} cannot be taken ({error.strerror}); another run may use it. "
                "Give another, or none, and a free one is found."
            ) from None


def environment() -> dict[str, str]:
    """One thread a process, this package on the path, gloo on the loopback interface."""
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    if Path("/sys/class/net/lo").exists():
        variables.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return variables


def finish(arguments: Sequence[str], folder: Path, limit: float) -> None:
    """Run what starts the ranks to its end; a failure, or a run beyond ``limit`` seconds, is an error, and ends all."""
    with open(folder / "log", "w+", encoding="utf-8") as output, started(arguments, folder, output) as process:
        if not ended(process, folder, limit):
            raise LabError(f"the run did not end within limit={limit:g} seconds; all of its processes were killed.")
        if process.returncode != 0:
            output.seek(0)
            raise LabError(reason(folder, output.read(), process.returncode or 1))


def ended(process: subprocess.Popen[bytes], folder: Path, limit: float) -> bool:
    """Wait for what starts the ranks; False where it takes longer than ``limit`` seconds.

    Once a process has written down its error, it gets a few seconds: torchrun would wait half a minute for another that
    is stopped and does not end.
    """
    end, failed = time.monotonic() + limit, False
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
        if not failed and any(folder.glob("error.*")):
            end, failed = min(end, time.monotonic() + GRACE), True
    return failed or process.poll() is not None


@contextlib.contextmanager
def started(arguments: Sequence[str], folder: Path, output: Any) -> Iterator[subprocess.Popen[bytes]]:
    """What starts the ranks as a process group of its own; whatever happens, it and the processes it started end here.

    They hold the other end of a pipe as their standard input, and end when this one is closed: also where this process
    is killed, or where their parent is and can end nobody.
    """
    process = subprocess.Popen(
        arguments, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.PIPE,
        env={**environment(), LAUNCHED: "1"}, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    with process.stdin:
        try:
            yield process
        finally:
            if process.poll() is None:
                _end(process)
            _end_workers(folder)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask what starts the ranks to end, as torchrun does once its processes have; then insist."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, KILL)
    process.kill()
    process.wait()


def _end_workers(folder: Path) -> None:
    """Kill the processes that wrote down their numbers and still run this folder's work, and see them gone."""
    written = [path.read_text(encoding="utf-8") for path in folder.glob("pid.*")]
    numbers = [int(text) for text in written if text]  # empty where a rank died as it wrote
    for number in filter(lambda number: runs_here(number, folder), numbers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, KILL)
    patience = time.monotonic() + GRACE
    while any(runs_here(number, folder) for number in numbers) and time.monotonic() < patience:
        time.sleep(0.01)


def runs_here(number: int, folder: Path) -> bool:
    """Whether a process is alive and has this folder in its command line (numbers are used again)."""
    try:
        return str(folder).encode() in Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False


def reason(folder: Path, log: str, status: int) -> str:
    """Why a run failed, in one sentence: a process's own error, or how it ended, or their parent did."""
    for path in sorted(folder.glob("error.*")):
        return path.read_text(encoding="utf-8")
    if "EADDRINUSE" in log or "address already in use" in log.lower():
        return "the port is in use; give another, or none, and a free one is found."
    ends = re.findall(r"rank\s*: (\d+)[^\n]*\s+exitcode\s*: (-?\d+)", log)[::-1]  # the root cause comes first
    # Of those that ended between two of its looks torchrun takes any for it; the others it ends by SIGTERM.
    died = [end for end in ends if end[1].startswith("-") and (end is ends[0] or int(end[1]) != -signal.SIGTERM)]
    if died:
        rank, code = died[0]
        name = signal.Signals(-int(code)).name
        return f"rank {rank} died ({name}); the other processes were ended. Nothing of this run is kept."
    if status < 0:
        return f"the process that starts the ranks died ({signal.Signals(-status).name}); its processes were ended."
    lines = [line for line in log.splitlines() if re.search(r"^(\[rank\d+\]: )?\w*(Error|Exception)\b", line)]
    rank = f"rank {ends[0][0]}" if ends else part("a process")
    return f"{rank} failed: {lines[-1] if lines else 'no message'}"
