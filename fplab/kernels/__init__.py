"""Every compiled loop of the lab: arrays and integers in, arrays out, one file a domain.

Compiled code is cached on disk. numba's own cache notices a change only in the file of the function itself, not in a
function of another file that it calls, and would then run stale machine code. Here each file has a cache folder of its
own, named by a digest of that file, of all kernel files that it imports, directly or not, and of numba's version: an
edit starts a fresh folder for whatever it can change, and leaves the others.
"""

from __future__ import annotations

import hashlib
import os
import re
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


def sources(*names: str) -> list[Path]:
    """The files of kernel modules and of every kernel module that they import, directly or not, and this one."""
    here = Path(__file__).parent
    found, waiting = {Path(__file__)}, [here / f"{name}.py" for name in names]
    while waiting:
        path = waiting.pop()
        if path in found or not path.exists():
            continue
        found.add(path)
        text = path.read_text(encoding="utf-8")
        for module, names in re.findall(r"^from \.(\w*) import ([^(\n]*)", text, re.MULTILINE):
            waiting += [here / f"{word}.py" for word in ([module] if module else names.split(", "))]
    return sorted(found)


@lru_cache
def digest(*names: str) -> str:
    """A digest of the :func:`sources` of kernel modules and of numba's version, which names a cache folder."""
    sha = hashlib.sha256(numba.__version__.encode())
    for path in sources(*names):
        sha.update(path.name.encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:16]


_announced = False


@lru_cache
def _cache_dir(names: tuple[str, ...]) -> str | None:
    """The cache folder of what is made in these modules, made if need be; None where nothing can be written."""
    global _announced
    folder = cache_root() / f"{'+'.join(names)}-{digest(*names)}"
    fresh = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return None
    if fresh and not _announced:
        _announced = True
        kept = f"kept for later runs in {folder.parent}"
        print(f"fplab: compiling kernels as they are first used; {kept}", file=sys.stderr)
    return str(folder)


def _name(function: Kernel) -> str:
    """A name that tells a function from every other: where it is, and what it captures."""
    captured = [cell.cell_contents for cell in function.__closure__ or ()]
    parts = [getattr(value, "_uuid", None) or repr(value) for value in captured]
    return "|".join([function.__module__, function.__qualname__, *parts])


def _distinct(function: Kernel, name: str) -> None:
    """Give a closure a name that no other closure has, in this process or in another.

    numba names machine code by the function's name, its types and a counter of the process. A closure that comes from
    the cache and one that is compiled now, of the same maker, can have all three in common: linked together, one of
    them calls itself instead of the other.
    """
    if function.__closure__:
        function.__qualname__ += "_" + hashlib.sha256(name.encode()).hexdigest()[:8]


def _home(function: Kernel) -> tuple[str, ...]:
    """The kernel modules that a function is made in: its own, and those of the functions it captures."""
    captured = [getattr(cell.cell_contents, "py_func", None) for cell in function.__closure__ or ()]
    modules = {f.__module__.rpartition(".")[2] for f in [function, *captured] if f is not None}
    return tuple(sorted(modules))


def jit(function: Kernel, *, inline: bool = False) -> Kernel:
    """numba's ``njit`` as every kernel here wants it: cached, without the GIL, IEEE division, never ``fastmath``.

    ``inline=True`` has LLVM inline the function wherever it is called, which a loop needs in order to vectorise.
    """
    folder, name = _cache_dir(_home(function)), _name(function)
    _distinct(function, name)
    before, numba_config.CACHE_DIR = numba_config.CACHE_DIR, folder or ""
    try:
        compiled: Kernel = numba.njit(cache=folder is not None, nogil=True, error_model="numpy", forceinline=inline)(
            function
        )
    finally:
        numba_config.CACHE_DIR = before
    # A cached closure is looked up by what it captures, and numba names a captured function by a random number: the
    # closure would be compiled again in every process. With a name of its own the function is found again.
    compiled._set_uuid(name)  # type: ignore[attr-defined]
    return compiled


def inlined(function: Kernel) -> Kernel:
    """:func:`jit` for the small functions inside a loop that must vectorise."""
    return jit(function, inline=True)
