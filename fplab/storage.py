"""Files that are whole or not there, archives that are read within bounds, digests that are the same everywhere."""

import hashlib
import io
import math
import os
import re
import secrets
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from .errors import LabError, reason

PART = re.compile(r"\.part-(\d+)-.+")
_writing: set[Path] = set()  # the parts of this process that are no leftovers


class WriteError(LabError, OSError):
    """A file that cannot be written: a full disk, a folder that is read-only or another user's."""


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A path to write to, beside ``path`` and with its suffix; it becomes ``path`` when the block ends without error.

    A reader, and an interrupted writer, see the old file or the new one and nothing between; of several writers,
    threads or processes, the last to end has the word. Raises :class:`WriteError` where nothing can be written. The
    part is a new file with a name that nobody can guess, so that no link that was put there leads elsewhere.
    """
    demand_possible(path)
    part = path.with_name(f".part-{os.getpid()}-{secrets.token_hex(8)}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        _writing.add(part)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())  # else a power cut after the rename could leave an empty file
        part.replace(path)
    except WriteError:
        raise
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None
    finally:
        with suppress(OSError):
            part.unlink()
        _writing.discard(part)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other threads and processes waiting that would read, change and write what lies in a folder meanwhile.

    The folder itself is locked, where the system can do that; the lock ends with the process at the latest.
    """
    demand_possible(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network folders know no locks
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _unwritable(path: Path, why: str) -> WriteError:
    failed = WriteError(f"cannot write {str(path)!r}: {why}.")
    failed.strerror = why
    return failed


def demand_possible(path: Path) -> None:
    """Raise :class:`WriteError` for a path that the system cannot even be asked about: Python's own error is bare."""
    try:
        os.lstat(path)
    except OSError:
        pass  # it is not there, or whoever opens it hears why not
    except ValueError:  # a null character, half of a surrogate pair
        raise _unwritable(path, "no file can have that name") from None


def demand_writable(folder: Path) -> None:
    """Make a folder, or raise a LabError before hours of work end at a folder that cannot be written."""
    demand_possible(folder)
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
    """Remove the parts that killed processes left in a folder, as every write there does. Returns what was removed."""
    removed = []
    for part in sorted(folder.glob(".part-*")):
        found = PART.fullmatch(part.name)
        if found and part not in _writing and _ended(int(found[1])):
            with suppress(OSError):  # another writer was first, or it is another user's
                part.unlink()
                removed.append(part)
    return removed


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


def read_arrays(data: bytes, most: int) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` archive that expands to at most ``most`` bytes; a LabError with the reason otherwise.

    ``np.load`` would make an array of whatever size its header claims before it reads a byte of it.
    """
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise LabError("it is no .npz file, or a cut one.")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [one for one in archive.infolist() if one.filename.endswith(".npy")]
            if (size := sum(one.file_size for one in members)) > most:
                raise LabError(f"it would expand to {size:,} bytes; allowed: {most:,}.")
            if any(one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for one in members):
                raise LabError("it is compressed in a way that NumPy does not use.")
            return {one.filename.removesuffix(".npy"): _array(archive.read(one)) for one in members}
    except LabError:
        raise
    except Exception as error:  # the parsers of zip, deflate and headers raise whatever they come upon
        raise LabError(f"it is damaged: {reason(error)}.") from None


def _array(data: bytes) -> np.ndarray:
    """The array in an ``.npy`` file, if it is as large as it claims and holds no Python objects."""
    file = io.BytesIO(data)
    read_header = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    shape, _, dtype = read_header[np.lib.format.read_magic(file)[0]](file)
    if dtype.hasobject:
        raise LabError("it holds Python objects, which are never loaded: they could run code.")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise LabError(f"it is damaged: {len(data) - file.tell():,} bytes claim to be {dtype} of shape {shape}.")
    array: np.ndarray = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array


@contextmanager
def shipped(path: Path) -> Iterator[None]:
    """Read a file that is part of the package: what goes wrong in the block is a LabError that says what to do."""
    try:
        yield
    except Exception as error:
        raise LabError(
            f"{str(path)!r} is part of fplab and cannot be read ({reason(error)}); install fplab again."
        ) from None


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
