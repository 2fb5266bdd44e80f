"""Every compiled loop of the lab: arrays and integers in, arrays out, one file a domain.

Compiled code is cached on disk. numba's own cache notices a change only in the file of the function itself, not in a
function of another file that it calls, and would then run stale machine code. Here the cache folder is therefore
named by a digest of *all* kernel files and of numba's version: any edit starts a fresh folder.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config as numba_config

Kernel = Callable[..., Any]


def cache_root() -> Path:
    """The folder below which compiled kernels are kept: ``FPLAB_CACHE_DIR``, else the user's cache folder."""
    own = os.environ.get("FPLAB_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fplab"


def digest() -> str:
    """A digest of every kernel file's bytes and numba's version, which names the cache folder."""
    sha = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sha.update(path.name.encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:16]


@lru_cache(maxsize=1)
def _cache_dir() -> str | None:
    """The cache folder, made if need be; None where nothing can be written (kernels then compile in memory)."""
    folder = cache_root() / f"kernels-{digest()}"
    fresh = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return None
    if fresh:
        print(f"fplab: compiling kernels as they are first used; kept for later runs in {folder}", file=sys.stderr)
    return str(folder)


def _name(function: Kernel) -> str:
    """A name that tells a function from every other: where it is, and what it captures."""
    captured = [cell.cell_contents for cell in function.__closure__ or ()]
    parts = [getattr(value, "_uuid", None) or repr(value) for value in captured]
    return "|".join([function.__module__, function.__qualname__, *parts])


def jit(function: Kernel, *, inline: bool = False) -> Kernel:
    """numba's ``njit`` as every kernel here wants it: cached, without the GIL, IEEE division, never ``fastmath``.

    ``inline=True`` has LLVM inline the function wherever it is called, which a loop needs in order to vectorise.
    """
    folder = _cache_dir()
    before, numba_config.CACHE_DIR = numba_config.CACHE_DIR, folder or ""
    try:
        compiled: Kernel = numba.njit(cache=folder is not None, nogil=True, error_model="numpy", forceinline=inline)(
            function
        )
    finally:
        numba_config.CACHE_DIR = before
    # A cached closure is looked up by what it captures, and numba names a captured function by a random number: the
    # closure would be compiled again in every process. With a name of its own the function is found again.
    compiled._set_uuid(_name(function))  # type: ignore[attr-defined]
    return compiled


def inlined(function: Kernel) -> Kernel:
    """:func:`jit` for the small functions inside a loop that must vectorise."""
    return jit(function, inline=True)
