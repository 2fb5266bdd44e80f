"""Files that are whole or not there, archives that are read within bounds, digests that are the same everywhere."""

import errno
import hashlib
import io
import math
import os
import re
import secrets
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from .errors import LabError, reason
from .words import part

PART = re.compile(r"\.part-([0-9a-f]+)-[0-9a-f]{16}-.+", re.DOTALL)  # whose kernel, a random number, whose part
UNKNOWN = "0"  # a kernel without a name
OLD = 86400.0  # seconds after which what another host was writing is a leftover


class WriteError(LabError, OSError):
    """A file that cannot be written: a full disk, a folder that is read-only or another user's."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write bytes, whole or not at all.

    A reader, and an interrupted writer, see the old file or the new one and nothing between; of several writers,
    threads, processes or hosts, the last to end has the word. Raises :class:`WriteError` where nothing can be written.
    """
    demand_possible(path)
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part, opened = _new_part(path)
        with open(opened, "wb") as file:
            sweep(path.parent)
            file.write(data)  # by the descriptor that is locked: on SMB a lock keeps every other from writing
            file.flush()
            os.fsync(opened)  # else a power cut after the rename could leave an empty file
            if os.name != "nt":
                part.replace(path)  # while it is locked, so that no sweep takes it
        if os.name == "nt":  # where an open file keeps its name
            part.replace(path)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None
    finally:
        if part is not None:
            with suppress(OSError):
                part.unlink()


def _new_part(path: Path) -> tuple[Path, int]:
    """A new file beside ``path``, opened and locked: its name nobody can guess, so that no link lies in its place."""
    while True:
        part = path.with_name(f".part-{_kernel()}-{secrets.token_hex(8)}-{path.name}")
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        _lock(opened)
        if part.exists():  # no sweep took it before it was locked
            return part, opened
        os.close(opened)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with ``\\n`` line ends, whole or not at all."""
    write_bytes(path, text.encode())


def write_once(folder: Path, texts: Mapping[str, str]) -> None:
    """Files of a folder by their names, where they do not stand there already: of several processes that have the same
    to write one does it."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    with alone(folder) if folder.is_dir() else nullcontext():  # without it the first file says why there is none
        for name, text in texts.items():
            with suppress(OSError):
                if contents(folder / name) == text.encode():
                    continue
            write_text(folder / name, text)


def sweep(folder: Path) -> list[Path]:
    """Remove the parts that killed processes left in a folder, as every write there does. Returns what was removed.

    A part is its writer's until the lock on it is gone, which ends with the process. Of another kernel's locks nothing
    may be known here, as on some network folders: what another host is writing, or this one was before it was started
    anew, is left for a day.
    """
    return [part for part in sorted(folder.glob(".part-*")) if _swept(part)]


def _swept(part: Path) -> bool:
    """Remove a part if its writer is gone; whether it was removed."""
    if (match := PART.fullmatch(part.name)) is None:
        return False
    opened = None
    try:
        if match[1] == _kernel() != UNKNOWN:
            with suppress(OSError):  # another user's, or no file: O_NONBLOCK, for a pipe would wait for a reader
                opened = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        ended = None if opened is None else _lock(opened, wait=False)
        if ended is None:  # by the clock of whoever keeps the folder
            ended = part.parent.stat().st_mtime - part.lstat().st_mtime > OLD
        if ended:
            part.unlink()  # still locked: its writer may be about to ask for the lock
        return ended
    except OSError:  # another writer was first, or it is another user's
        return False
    finally:
        if opened is not None:
            os.close(opened)


def _lock(opened: int, wait: bool = True) -> bool | None:
    """Lock an open file or folder; False where somebody else has the lock, None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(opened, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows, some network folders
        return None
    return True


@cache
def _kernel() -> str:
    """What tells the kernel that runs here from that of any other host, and from itself started anew."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
    except OSError:
        started = ""
    return hashlib.sha256(started.encode()).hexdigest()[:12] if started.strip() else UNKNOWN


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other threads and processes waiting that would read, change and write what lies in a folder meanwhile.

    The folder itself is locked, where the system can do that; the lock ends with the process at the latest.
    """
    demand_possible(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if os.name == "nt":  # where no folder can be opened
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        _lock(opened)
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


def contents(path: Path, most: int = -1) -> bytes:
    """The bytes of a file, at most so many. OSError for what is none, such as a pipe, whose reader would wait."""
    with open(path, "rb", opener=opened) as file:
        return file.read(most)


def opened_to_append(path: Path) -> IO[bytes]:
    """A file opened to append to it, made if need be; :class:`WriteError` where there can be none."""
    demand_possible(path)
    try:
        return open(path, "ab", opener=opened)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None


def opened(name: str, flags: int) -> int:
    """Open a file, and nothing else, without waiting for the other end of a pipe."""
    opened = os.open(name, flags | getattr(os, "O_NONBLOCK", 0), 0o666)
    if stat.S_ISREG(mode := os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(code, os.strerror(code) if stat.S_ISDIR(mode) else part("it is no regular file"), name)


def read_arrays(data: bytes, most: int) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` archive that expands to at most ``most`` bytes; a LabError with the reason otherwise.

    ``np.load`` would make an array of whatever size its header claims before it reads a byte of it.
    """
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise LabError("it is no .npz file, or a cut one.")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
            if (size := sum(member.file_size for member in members)) > most:
                raise LabError(f"it would expand to {size:,} bytes; allowed: {most:,}.")
            if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
                raise LabError("it is compressed in a way that NumPy does not use.")
            return {member.filename.removesuffix(".npy"): _array(archive.read(member)) for member in members}
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
