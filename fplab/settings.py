"""What a user sets in the environment: one that means nothing is refused in words, by a command before it begins."""

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from .errors import LabError, integer

MOST_THREADS = 1024


def integer_set(name: str, low: int, high: int, default: int | None = None) -> int:
    """The integer in an environment variable; ``default`` where it is not set, or refused where there is none.

    >>> integer_set("FPLAB_NO_SUCH_SETTING", 0, 9, 5)
    5
    """
    return _integer(name, os.environ.get(name) or default, low, high)


@functools.lru_cache(maxsize=64)  # threads are asked for each time that work is divided
def _integer(name: str, text: str | int | None, low: int, high: int) -> int:
    is_whole = isinstance(text, str) and re.fullmatch(r"-?\d{1,30}", text, re.ASCII)
    return integer(name, int(str(text)) if is_whole else text, low, high)


def threads() -> int | None:
    """How many threads kernels use, ``FPLAB_NUM_THREADS``; None where it is not set."""
    return integer_set("FPLAB_NUM_THREADS", 1, MOST_THREADS) if os.environ.get("FPLAB_NUM_THREADS") else None


def uncompiled_elements() -> int:
    """How many elements a process answers by the oracle, ``FPLAB_FEW``, else 1000: :mod:`fplab.uncompiled`."""
    return integer_set("FPLAB_FEW", 0, 1 << 62, 1000)


def patience() -> float:
    """Seconds of compiling until a word is said of it, ``FPLAB_PATIENCE``, else one."""
    text = os.environ.get("FPLAB_PATIENCE") or "1"
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) >= 0:
            return seconds
    raise LabError(f"FPLAB_PATIENCE={text!r} is not a number of seconds.")


@contextlib.contextmanager
def silent_compiler() -> Iterator[None]:
    """Say nothing of compiling in this block, here and in processes that start in it, unless that was asked for."""
    before = os.environ.get("FPLAB_PATIENCE")
    os.environ["FPLAB_PATIENCE"] = before or "1e9"
    try:
        yield
    finally:
        if before is None:
            del os.environ["FPLAB_PATIENCE"]


def home() -> Path:
    """The user's home folder; the root where the system knows of none, as containers have it for such a user."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def demand_compiler() -> None:
    """Raise :class:`LabError` where numba is told not to compile, which nothing here could do without."""
    if (text := os.environ.get("NUMBA_DISABLE_JIT", "0")).strip() not in ("", "0"):
        raise LabError(f"NUMBA_DISABLE_JIT={text} has numba compile nothing, which fplab's kernels need; unset it.")


def demand_all() -> None:
    """Raise :class:`LabError` for the first setting that means nothing."""
    for ask in (threads, uncompiled_elements, patience, demand_compiler):
        ask()
