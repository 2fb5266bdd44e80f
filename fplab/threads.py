"""Splitting elementwise kernels over threads. Kernels release the GIL; results never depend on the thread count."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from .errors import integer, quotes_call
from .float_environment import begin_thread
from .settings import MOST_THREADS, threads

SMALLEST_SHARE = 1 << 15  # elements below which a second thread costs more than it saves
_count: int | None = None
_here = threading.local()


def num_threads() -> int:
    """How many threads kernels use: as set, else ``FPLAB_NUM_THREADS``, else the cores this process may use."""
    if _count is not None:
        return _count
    return threads() or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@quotes_call
def set_num_threads(n: int | None) -> None:
    """Use ``n`` threads (1 to 1024) from now on; None goes back to the default."""
    global _count
    _count = None if n is None else integer("n", n, 1, MOST_THREADS)


@lru_cache(maxsize=4)
def _pool(n: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n, thread_name_prefix="fplab")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of the threads that a pool believes in


def in_share() -> bool:
    """Whether this thread does a share of something, which :func:`split` does not divide again."""
    return getattr(_here, "is_share", False)


def split(work: Callable[[int, int], Any], n: int, unit: int = 1) -> list[Any]:
    """Call ``work(start, stop)`` on shares of ``range(n)``, cut at multiples of ``unit``; the results in order.

    Work that itself comes here does its own in its own thread: shares of shares would wait for threads that wait.
    """
    shares = 1 if n < 2 * SMALLEST_SHARE else min(num_threads(), n // SMALLEST_SHARE)
    if shares == 1 or in_share():
        return [work(0, n)]
    step = -(-n // shares)
    step = -(-step // unit) * unit
    bounds = [(start, min(start + step, n)) for start in range(0, n, step)]

    def share(start: int, stop: int) -> Any:
        _here.is_share = True
        begin_thread()  # with IEEE's default environment, which it may not have inherited
        try:
            return work(start, stop)
        finally:
            _here.is_share = False

    others = [_pool(shares).submit(share, *b) for b in bounds[1:]]
    try:
        first = share(*bounds[0])  # here: a thread less to wake
    finally:
        for future in others:
            future.exception()  # waits, since what it works on may be whoever's after this
    return [first, *(future.result() for future in others)]
