"""Work side by side in processes, each of one thread, none of which outlives the one that started it."""

import contextlib
import ctypes
import itertools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from . import interrupts

Item = TypeVar("Item")
Result = TypeVar("Result")

# What libraries ask when they are loaded: as many processes as cores leave one thread to each.
THREADS = ("FPLAB_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
# glibc's: memory that is let go is kept for the next tensor. Otherwise each of some 100 kB is fetched from the system
# anew, page by page. Elsewhere nobody reads them.
KEPT = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
GRACE = 3.0  # seconds that a process has to leave its files whole
LOOK = 1.0  # seconds after which whoever shows what runs is asked again


def in_processes(
    work: Callable[[Item], Result], items: Iterable[Item], jobs: int, settle: Callable[[], object] | None = None,
    running: Callable[[Sequence[Item]], object] | None = None,
) -> Generator[tuple[Item, Future[Result]], None, None]:  # fmt: skip
    """Every item with the future of ``work(item)``, as ``jobs`` processes finish them; at most ``jobs`` at a time.

    Whoever stops asking stops the processes. One that dies (killed, out of memory) takes those with it that run beside
    it: their futures raise :class:`BrokenProcessPool`, and new processes go on with the others. ``work``, items and
    results are pickled. ``settle`` is called once in each process; ``running`` here, each second, with the items that
    are at work.

    Processes, because much here holds Python's lock; spawned, because torch and numba have threads that a fork would
    lose, and where there is no fork.
    """
    waiting, now = iter(items), dict[Future[Result], Item]()
    others, context = set(active_children()), get_context("spawn")

    def fresh() -> ProcessPoolExecutor:
        return ProcessPoolExecutor(jobs, context, _begin, (settle,))

    pool, finished = fresh(), False
    try:
        while True:
            for item in (begun := list(itertools.islice(waiting, jobs - len(now)))):
                with _quiet_children():
                    now[pool.submit(_stoppable, work, item)] = item
            if (
                len(begun) > 1
            ):  # the pool may begin to watch before the last process is there, whose death it then misses
                with _quiet_children():
                    pool.submit(_nothing)
            if not now:
                break
            if running:
                running(list(now.values()))
            ended, _ = wait(now, timeout=LOOK if running else None, return_when=FIRST_COMPLETED)
            if any(isinstance(future.exception(), BrokenProcessPool) for future in ended):
                ended, _ = wait(now)
                pool = fresh()
            for future in [future for future in now if future in ended]:
                yield now.pop(future), future
        finished = True
    finally:
        pool.shutdown(wait=finished, cancel_futures=True)
        if not finished:
            _stop(set(active_children()) - others)


@contextlib.contextmanager
def printed(begins: bytes) -> Iterator[list[str]]:
    """Lines that begin so and that a library prints within the block, once it has ended; others go their way then.

    It prints from C, on the process's standard output, which nothing in Python stands before.
    """
    log: list[str] = []
    with tempfile.TemporaryFile() as file:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield log
        finally:
            ctypes.CDLL(None).fflush(None)  # C keeps what it prints until there is much of it
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        for line in file:
            if line.startswith(begins):
                log.append(line.decode())
            else:
                os.write(1, line)


@contextlib.contextmanager
def _quiet_children() -> Iterator[None]:
    """Processes that start in this block have one thread for each library, and only their parent hears a Ctrl-C."""
    settings = {**dict.fromkeys(THREADS, "1"), **KEPT}
    before = {name: os.environ.get(name) for name in settings}
    mask = getattr(signal, "pthread_sigmask", None)  # a process has the mask of whoever starts it
    os.environ.update(settings)
    with interrupts.deferred():  # another thread of this process may take it up meanwhile
        blocked = mask(signal.SIG_BLOCK, {signal.SIGINT}) if mask else None
        try:
            yield
        finally:
            if mask:
                mask(signal.SIG_SETMASK, blocked)
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def _nothing() -> None:
    """Work that only makes a pool look at its processes once more."""


def _begin(settle: Callable[[], object] | None) -> None:
    """The first thing that a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where there is no mask, and for what this process starts
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if settle:
        settle()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: one that is killed stops nobody."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _stoppable(work: Callable[[Item], Result], item: Item) -> Result:
    """Do the work so that being asked to stop ends it as Ctrl-C would, and no half of a file stays."""

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whatever tidies up is not disturbed
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        return work(item)
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(processes: set[BaseProcess]) -> None:
    """Ask processes to end; then insist."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + GRACE
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        process.kill()
