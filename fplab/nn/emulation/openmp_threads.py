"""Keeps torch's threads from spinning beside those that compute products.

Between two operations the threads of GNU OpenMP, which torch brings on Linux, spin for about a millisecond, each on a
core that a product's threads want: a step took up to four times as much of the CPU as it needed. They hardly spin where
OpenMP knows of more threads than cores. So while products are computed, a thread of ours holds a team of its own, which
sleeps. How torch divides its work, and so its bits, stays as it is.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
import time
from functools import cache
from pathlib import Path

import torch

GRACE = 0.05  # seconds after a product for which the team stays
SHARE = 1 << 15  # elements for which torch takes another thread
_lock = threading.Lock()
_held = False
_last = 0.0  # when there was a product


def hold_team() -> None:
    """There is a product: hold the team now and for a moment."""
    global _held, _last
    _last = time.monotonic()
    if _held or torch.get_num_threads() == 1 or not _spins():
        return
    with _lock:
        if not _held:
            _held = True
            _thread.start_new_thread(_hold, ())  # threading's would compute inside the block


def is_held() -> bool:
    """Whether the team is there."""
    return _held


@cache
def _spins() -> bool:
    """Whether torch's threads are those of GNU OpenMP."""
    try:
        return "libgomp" in Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        return False


def _hold() -> None:
    try:
        torch.empty(torch.get_num_threads() * SHARE, dtype=torch.uint8, device="cpu").fill_(0)  # makes the team
        while time.monotonic() - _last < GRACE:
            time.sleep(GRACE)
    finally:
        _let_go()


def _let_go() -> None:
    global _held
    _held = False


def _wait() -> None:
    """Until the team is gone: a thread must not end with the interpreter while torch works in it."""
    while _held:
        time.sleep(GRACE / 4)


atexit.register(_wait)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)  # which has none of its parent's threads
