"""Files that are whole or not there, and digests of arrays that are the same on every machine."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .errors import LabError

PART = re.compile(r"\.part-(\d+)-.+")


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A path to write to, beside ``path`` and with its suffix; it becomes ``path`` when the block ends without error.

    A reader, and an interrupted writer, see the old file or the new one and nothing between.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".part-{os.getpid()}-{path.name}")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())  # else a power cut after the rename could leave an empty file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def demand_writable(folder: Path) -> None:
    """Make a folder, or raise a LabError before hours of work end at a folder that cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise LabError(f"cannot write to {str(folder)!r}: {error.strerror}. Name another folder.") from None


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with ``\\n`` line ends, whole or not at all."""
    with atomically(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes, whole or not at all."""
    with atomically(path) as part:
        part.write_bytes(data)


def sweep(folder: Path) -> list[Path]:
    """Remove the parts that killed processes left in a folder; call it before writing. Returns what was removed."""
    if not folder.is_dir():
        return []
    left = [p for p in sorted(folder.iterdir()) if (found := PART.fullmatch(p.name)) and _ended(int(found[1]))]
    for part in left:
        part.unlink(missing_ok=True)
    return left


def _ended(pid: int) -> bool:
    """Whether the writer of a part is gone. Our own number counts: containers hand out the same few again."""
    if pid == os.getpid() or os.name == "nt":  # on Windows os.kill(pid, 0) would not ask but act
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def little_endian(array: np.ndarray) -> np.ndarray:
    """The array in C order with little-endian elements."""
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)


def digest(array: np.ndarray) -> str:
    """SHA-256 over dtype, shape and little-endian bytes, so that equal data has one digest everywhere."""
    array = little_endian(array)
    sha = hashlib.sha256(f"{array.dtype.str}{list(array.shape)}".encode())
    sha.update(array.tobytes())
    return sha.hexdigest()


def described(array: np.ndarray) -> dict[str, Any]:
    """What a manifest says of an array: ``dtype``, ``shape`` and ``sha256``."""
    array = little_endian(array)
    return {"dtype": array.dtype.str, "shape": list(array.shape), "sha256": digest(array)}
