"""Records: what a device computed, kept as raw bits in a plain ``.npz`` that needs no pickle and carries a checksum.

A file holds the cases of one experiment on one device: for each case the bits of its inputs and outputs, as arrays of
unsigned integers named ``CASE/in/NAME`` and ``CASE/out/NAME``; ``fplab_meta``, JSON text as uint8; and
``fplab_sha256``, the 32 bytes of a SHA-256 over names, dtypes, shapes and bytes of all the others: it shows that a
record is whole, and proves nothing about who made it or on what, since whoever writes a record can compute it. It
imports with numpy alone, since the recorder runs on machines that have little more.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..columns import harmless
from ..errors import LabError, reason
from ..storage import contents, digest, little_endian, read_arrays, write_bytes
from .cases import Arrays

VERSION = 1
FOLDER = Path(__file__).parent / "records"  # the records that are part of the package
LIMIT = 12_000_000  # bytes of a file
SILICON = "silicon"  # the experiment whose records of a CPU are about the CPU itself
EXPANDED = 1 << 29  # bytes of a record's arrays
META, CHECKSUM = "fplab_meta", "fplab_sha256"
REQUIRED = {"version": int, "experiment": str, "size": str, "kind": str, "device": str, "torch": str, "cases": list}


@dataclass(frozen=True)
class RecordedCase:
    """The bits that went into one case and the bits that came out. ``formats``: the format of each output."""

    name: str
    inputs: Arrays
    outputs: Arrays
    formats: Mapping[str, str]


@dataclass(frozen=True)
class Record:
    """What one device computed for one experiment.

    ``meta``: the device and its software (``kind`` "cuda", "mps" or "cpu", ``device``, ``driver``, ``torch``, ``cuda``,
    ``numpy``, ``flags``), ``experiment`` and ``size``, and whatever else of plain JSON a recorder adds (seeds, kernel
    names). ``failed``: the message of each step that failed there, by its name.
    """

    meta: Mapping[str, Any]
    cases: tuple[RecordedCase, ...]
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def experiment(self) -> str:
        return str(self.meta["experiment"])

    @property
    def on_gpu(self) -> bool:
        """Whether this is evidence from a GPU; a record of a CPU stands in for one and is none."""
        return self.meta["kind"] in ("cuda", "mps")

    @property
    def is_evidence(self) -> bool:
        """Whether it is about the hardware that made it: any record of a GPU, of a CPU that of its own units."""
        return self.on_gpu or self.experiment == SILICON

    @property
    def where(self) -> str:
        origin = f" ({self.meta['origin']})" if "origin" in self.meta else ""
        return f"{self.meta['device']}, torch {self.meta['torch']}{origin}"


def filename(meta: Mapping[str, Any], part: int = 1) -> str:
    """The name of a record's file: kind, device, torch version, experiment and, from the second on, the part.

    >>> filename({"kind": "cuda", "device": "NVIDIA H100 PCIe", "torch": "2.13.0", "experiment": "formats"})
    'cuda--nvidia-h100-pcie--torch-2.13.0--formats.npz'
    """
    words = [meta["kind"], meta["device"], f"torch-{meta['torch']}", meta["experiment"]]
    words += [str(part)] if part > 1 else []
    return "--".join(re.sub(r"[^a-z0-9.]+", "-", str(word).lower()).strip("-") for word in words) + ".npz"


def pack(record: Record) -> bytes:
    """A record as the bytes of its file; equal records give equal bytes."""
    arrays: Arrays = {}
    index = []
    for case in record.cases:
        for side, members in (("in", case.inputs), ("out", case.outputs)):
            for name, array in members.items():
                key = f"{case.name}/{side}/{name}"
                if array.dtype.kind != "u":
                    raise LabError(f"{key} is {array.dtype}; a record holds raw bits: unsigned integers only.")
                if key in arrays:
                    raise LabError(f"{key} comes twice; the names of cases are unique.")
                arrays[key] = little_endian(array)
        if set(case.outputs) != set(case.formats):
            raise LabError(f"case {case.name!r} has outputs {sorted(case.outputs)}, formats of {sorted(case.formats)}.")
        index.append({"name": case.name, "inputs": list(case.inputs), "formats": dict(case.formats)})
    meta = {**record.meta, "version": VERSION, "cases": index, "failed": dict(record.failed)}
    try:
        text = json.dumps(meta, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise LabError(f"its meta is no plain JSON: {reason(error)}.") from None
    arrays[META] = np.frombuffer(text.encode(), np.uint8)
    arrays[CHECKSUM] = _checksum(arrays)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack(data: bytes) -> Record:
    """A record from the bytes of its file; an error with the reason where they are damaged or something else."""
    arrays = read_arrays(data, EXPANDED)
    meta = _meta(arrays)
    checksum = arrays.pop(CHECKSUM, np.zeros(0, np.uint8))
    if checksum.tobytes() != _checksum(arrays).tobytes():
        raise LabError("the checksum does not match: the contents are not what was recorded.")
    del arrays[META]
    for name, array in arrays.items():
        if array.dtype.kind != "u":
            raise LabError(f"{name} is {array.dtype}; a record holds raw bits: unsigned integers only.")
    index, failed = meta.pop("cases"), meta.pop("failed", {})
    try:
        cases = tuple(RecordedCase(str(entry["name"]),
                                   {name: arrays[f"{entry['name']}/in/{name}"] for name in entry["inputs"]},
                                   {name: arrays[f"{entry['name']}/out/{name}"] for name in entry["formats"]},
                                   {str(name): str(fmt) for name, fmt in entry["formats"].items()})
                      for entry in index)  # fmt: skip
        return Record(meta, cases, {str(step): str(message) for step, message in failed.items()})
    except (KeyError, TypeError, AttributeError) as error:
        raise LabError(f"its index of cases is not one of fplab's: {error}.") from None


def write(path: Path, record: Record) -> int:
    """Write a record, whole or not at all. Returns the size of the file in bytes."""
    data = pack(record)
    write_bytes(path, data)
    return len(data)


def read(path: Path) -> Record:
    """The record in a file; an error that names the file and the reason where it is damaged or foreign.

    What it says of its device is what its writer says: the checksum is no signature.
    """
    try:
        return unpack(contents(path, EXPANDED))
    except LabError as error:
        raise LabError(f"record {str(path)!r} is refused: {error}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise LabError(f"cannot read record {str(path)!r}: {getattr(error, 'strerror', None) or error}.") from None


def added() -> Path:
    """The folder of the records that were added here: what FPLAB_RECORDS names, else one of the user's."""
    named = os.environ.get("FPLAB_RECORDS")
    return Path(named) if named else Path.home() / ".local" / "share" / "fplab" / "records"


def folders() -> tuple[Path, ...]:
    """Where the package finds records: its own, and those that were added."""
    return (FOLDER, added()) if added().is_dir() else (FOLDER,)


def records_in(folder: Path) -> list[Path]:
    """The files of the records in a folder and the folders below it, sorted. The package's own may be missing.

    What a killed recording left half-written, under a name that begins with a dot, is none.
    """
    if folder.is_file():
        return [folder]
    if not folder.is_dir() and folder != FOLDER:
        raise LabError(f"there is no folder {str(folder)!r} with records; fplab record --out DIR makes one.")
    return sorted(path for path in folder.rglob("*.npz") if not path.name.startswith("."))


def save(out: Path, record: Record) -> list[tuple[Path, int]]:
    """Write a record into a folder, in as many files as the limit of 12 MB a file asks for; returns paths and sizes.

    What an earlier recording of the same experiment on the same device left there is replaced.
    """
    written: list[tuple[Path, int]] = []
    for part, data in enumerate(_pieces(record), start=1):
        path = out / filename(record.meta, part)
        write_bytes(path, data)
        written.append((path, len(data)))
    keep = {path.name for path, _ in written}
    stem = filename(record.meta).removesuffix(".npz")
    for old in out.glob("*.npz"):
        if re.fullmatch(re.escape(stem) + r"(--\d+)?\.npz", old.name) and old.name not in keep:
            old.unlink()
    return written


def _pieces(record: Record) -> list[bytes]:
    """The record packed, or halves of halves of it that fit the limit; a case too large alone is a failed step."""
    data = pack(record)
    if len(data) <= LIMIT:
        return [data]
    if len(record.cases) == 1:
        case = record.cases[0]
        message = f"its {len(data):,} bytes are more than the {LIMIT:,} of a file"
        return [pack(Record(record.meta, (), {**record.failed, case.name: message}))]
    half = len(record.cases) // 2
    first = Record(record.meta, record.cases[:half], record.failed)
    return _pieces(first) + _pieces(Record(record.meta, record.cases[half:]))


def _checksum(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """SHA-256 over every name and array except the checksum itself, as 32 uint8."""
    sha = hashlib.sha256()
    for name in sorted(arrays):
        if name != CHECKSUM:
            sha.update(f"{name}\0{digest(arrays[name])}\n".encode())
    return np.frombuffer(sha.digest(), np.uint8)


def _meta(arrays: Arrays) -> dict[str, Any]:
    if META not in arrays:
        raise LabError(f"it is an .npz file, but none of fplab's: there is no {META!r} in it.")
    try:
        meta = harmless(json.loads(arrays[META].tobytes().decode()), " ")
    except (ValueError, RecursionError):
        raise LabError(f"it is damaged: {META!r} is no JSON.") from None
    version = meta.get("version") if isinstance(meta, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise LabError(f"a newer fplab wrote it: it has version {version}, this one reads up to {VERSION}.")
    for name, kind in REQUIRED.items():
        if not isinstance(meta, dict) or not isinstance(meta.get(name), kind):
            raise LabError(f"it is none of fplab's: {name!r} is missing from its meta or of the wrong type.")
    return dict(meta)
