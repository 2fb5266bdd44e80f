"""Compiled code that is kept on disk, whoever compiled it: numba, NVRTC, a C++ compiler.

A file begins with a SHA-256 over its key and the rest: it is whole, and what its reader asks for, not another kernel's,
CPU's or compiler's under this one's name. What lies there is run, and the digest does not say who wrote it: so the
folder has to be the user's own.
"""

import hashlib
import os
import stat
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from .settings import home
from .storage import contents, write_bytes
from .words import Text, say

_said: set[str] = set()
NOT_KEPT = say("fplab: compiled kernels are not kept, and are recompiled in every run: {why}")
FOREIGN = say(
    "{folder} has to belong to you and to be writable by nobody else (chmod go-w), since what lies in it is run"
)
DAMAGED = say("fplab: {path} is damaged; it is recompiled, and so is every other file that is")


def cache_root() -> Path:
    """The folder below which compiled kernels are kept: ``FPLAB_CACHE_DIR``, else the user's cache folder."""
    own = os.environ.get("FPLAB_CACHE_DIR")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or home() / ".cache"
    return Path(base) / "fplab"


def _say_once(text: Text, **values: object) -> None:
    """Tell whoever waits, the first time that there is such a thing to tell."""
    if text.en not in _said:
        _said.add(text.en)
        print(text.fill(**values), file=sys.stderr)


def _others_write(folder: Path) -> bool:
    """Whether a folder is another user's, or others may write to it. Windows' own rights are not looked at."""
    status = folder.stat()
    return hasattr(os, "getuid") and (
        status.st_uid != os.getuid() or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    )


def folder(name: str) -> Path | None:
    """A folder below :func:`cache_root`, made if need be; one that can only be read is read.

    None, after a word on why, where there is none or somebody else could have written there.
    """
    root = cache_root()
    own = root / name
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        own.mkdir(mode=0o755, exist_ok=True)
        for each in (root, own):
            if _others_write(each):
                _say_once(NOT_KEPT, why=FOREIGN.fill(folder=each))
                return None
    except OSError as error:
        _say_once(NOT_KEPT, why=error)
        return None
    return own


Key = tuple[object, ...]  # all that the code depends on, each part with a repr that says it in full


def _digest(key: Key, data: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(repr(key).encode()).digest() + data).digest()


def read(path: Path, key: Key) -> bytes | None:
    """What :func:`write` left in a file for a key; None if nothing did, or it is damaged or another key's."""
    try:
        whole = contents(path)
    except OSError:
        return None
    if _digest(key, whole[32:]) != whole[:32]:
        _say_once(DAMAGED, path=path)
        return None
    return whole[32:]


def write(path: Path, key: Key, data: bytes) -> None:
    """Keep data in a file; where that cannot be it costs time, never the call."""
    try:
        write_bytes(path, _digest(key, data) + data)
    except OSError as error:
        _say_once(NOT_KEPT, why=error)


def kept(compiler: str, key: Key, compile: Callable[[], bytes]) -> bytes:
    """What a compiler makes of what ``key`` says in full: source, options, the compiler's own version. Kept by it."""
    own = folder(compiler)
    if own is None:
        return compile()
    path = own / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:40]}.bin"
    if (code := read(path, key)) is not None:
        return zlib.decompress(code)
    data = compile()
    write(path, key, zlib.compress(data, 1))
    return data
