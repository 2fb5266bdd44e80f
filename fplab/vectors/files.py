"""Test vectors as a record, and as files: text, ``.npz``, raw little-endian with a described header."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..columns import harmless
from ..errors import LabError, door, one_of, reason
from ..hardware.records import EXPANDED, META
from ..storage import contents, described, little_endian, read_arrays, write_bytes

Array = np.ndarray[Any, Any]
VERSION = 1
KINDS = ("txt", "npz", "bin")
MANIFEST = "MANIFEST.json"


@door
@dataclass(frozen=True, eq=False)
class Vectors:
    """Test vectors of one operation.

    ``name``: of its files. ``about``: the operation, plain JSON. ``columns``: by name arrays (N,) or (N, width) of
    codes, unsigned integers, results last; ``formats``: of each. ``results``: the names of the last ones.
    ``reasons``: why each row is there. A column ``k`` says how many of each row's products are its own.
    """

    name: str
    about: Mapping[str, Any]
    columns: Mapping[str, Array]
    formats: Mapping[str, str]
    results: tuple[str, ...]
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.reasons)

    def widths(self, row: int) -> Iterator[tuple[str, Array]]:
        """The columns of a row, without what fills it up to the longest."""
        k = int(self.columns["k"][row]) if "k" in self.columns else 0
        for name, array in self.columns.items():
            cells = np.atleast_1d(array[row])
            if k and name in ("a", "b"):
                cells = cells[:k]
            elif k and name in ("scale_a", "scale_b"):
                cells = cells[: -(-k // self.about["group"])]
            yield name, cells

    def line(self, row: int, results: bool = True) -> str:
        """A row as numbers: k in decimal, then codes in hexadecimal, as wide as their columns."""
        return " ".join(
            f"{cell:d}" if name == "k" else f"{cell:0{2 * array.itemsize}X}"
            for name, array in self.widths(row) if results or name not in self.results for cell in array.tolist()
        )  # fmt: skip

    @cached_property
    def lines(self) -> list[str]:
        """Every row with its results and its reason."""
        return [f"{self.line(row)} # {why}" for row, why in enumerate(self.reasons)]

    @property
    def header(self) -> dict[str, Any]:
        """What describes the rows: the operation, the columns, the reasons."""
        columns = [
            {"name": name, "format": self.formats[name], **described(array)} for name, array in self.columns.items()
        ]
        words = sorted(set(self.reasons))
        return {
            "version": VERSION, "name": self.name, "about": dict(self.about), "rows": len(self), "columns": columns,
            "results": list(self.results), "reasons": words,
        }  # fmt: skip

    @property
    def codes_of_reasons(self) -> Array:
        """By row the place of its reason among the header's."""
        words = sorted(set(self.reasons))
        return np.array([words.index(word) for word in self.reasons], np.uint8)

    def packed(self, kind: str) -> dict[str, bytes]:
        """The files of a kind by their names: "txt", "npz", or "bin" with its header."""
        head = json.dumps(self.header, sort_keys=True)
        arrays = {**{name: little_endian(x) for name, x in self.columns.items()}, "reason": self.codes_of_reasons}
        match one_of("kind of file", kind, KINDS):
            case "txt":
                return {f"{self.name}.txt": "\n".join([f"# {head}", *self.lines, ""]).encode()}
            case "npz":
                buffer = io.BytesIO()
                head_bits = np.frombuffer(head.encode(), np.uint8)
                np.savez(buffer, **{META: head_bits}, **arrays)  # type: ignore[arg-type]  # libraries deflate differently
                return {f"{self.name}.npz": buffer.getvalue()}
        rows = np.zeros(len(self), _layout(self.header))
        for name, x in arrays.items():
            rows[name] = x
        return {f"{self.name}.json": f"{head}\n".encode(), f"{self.name}.bin": rows.tobytes()}

    def save(self, folder: Path | str, kinds: tuple[str, ...] = KINDS) -> list[Path]:
        """Write the files of some kinds into a folder; their paths."""
        found = []
        for kind in kinds:
            for name, data in self.packed(kind).items():
                found.append(Path(folder) / name)
                write_bytes(found[-1], data)
        return found


def _layout(header: Mapping[str, Any]) -> np.dtype[Any]:
    """A row of a raw file: its columns one after the other without gaps, and the reason's place as a byte."""
    fields = [(c["name"], c["dtype"], tuple(c["shape"][1:])) for c in header["columns"]]
    return np.dtype([*fields, ("reason", "u1", ())])


@door
def read(path: Path | str) -> Vectors:
    """The vectors of a file, of any kind; the header of a raw one is named. LabError where it is damaged or foreign."""
    path = Path(path)
    try:
        data = contents(path, EXPANDED)
        if path.suffix == ".npz":
            arrays = read_arrays(data, EXPANDED)
            header = _header(arrays.pop(META, np.zeros(0, np.uint8)).tobytes())
        else:
            header = _header(data.partition(b"\n")[0].removeprefix(b"# "))
            arrays = _from_text(data, header) if path.suffix == ".txt" else _from_raw(path, header)
        columns = {c["name"]: arrays[c["name"]] for c in header["columns"]}
        for c in header["columns"]:
            if described(columns[c["name"]]) != {k: c[k] for k in ("dtype", "shape", "sha256")}:
                raise LabError(f"column {c['name']!r} is not what its digest says.")
        words = [header["reasons"][i] for i in arrays["reason"].tolist()]
        formats = {c["name"]: str(c["format"]) for c in header["columns"]}
        return Vectors(header["name"], header["about"], columns, formats, tuple(header["results"]), tuple(words))
    except OSError as error:
        raise LabError(f"cannot read vectors {str(path)!r}: {error.strerror or error}.") from None
    except (LabError, KeyError, IndexError, TypeError, ValueError) as error:
        raise LabError(f"vectors {str(path)!r} are refused: {reason(error)}.") from None


def _header(text: bytes) -> dict[str, Any]:
    """A header; LabError for another's, or a newer one."""
    try:
        header = harmless(json.loads(text), " ")
    except (ValueError, RecursionError):
        raise LabError("there is no header of fplab's in it") from None
    if not isinstance(header, dict) or header.get("version") != VERSION:
        raise LabError(f"its header is not of version {VERSION}")
    return header


def _from_raw(path: Path, header: Mapping[str, Any]) -> dict[str, Array]:
    """The columns of the raw file beside a header."""
    layout = _layout(header)
    if layout.hasobject or not 0 <= header["rows"] * layout.itemsize <= EXPANDED:
        raise LabError(f"rows={header['rows']!r} of {layout.itemsize} bytes are too much")
    data = contents(path.with_suffix(".bin"), EXPANDED)
    rows = np.frombuffer(data, layout)
    return {name: np.ascontiguousarray(rows[name]) for name in layout.names or ()}


def _from_text(data: bytes, header: Mapping[str, Any]) -> dict[str, Array]:
    """The columns of a text file."""
    lines = data.decode().splitlines()[1:]
    layout, about = _layout(header), header["about"]
    if layout.hasobject or len(lines) != header["rows"] or len(lines) * layout.itemsize > EXPANDED:
        raise LabError(f"{len(lines)} rows, and the header says {header['rows']}")
    rows = np.zeros(len(lines), layout)
    for row, line in zip(rows, lines, strict=True):
        numbers, _, word = line.partition(" # ")
        cells = iter(numbers.split())
        k = 0
        for c in header["columns"]:
            name, wide = c["name"], int(np.prod(c["shape"][1:]))
            if name == "k":
                row[name] = k = int(next(cells))
                continue
            if k and name in ("a", "b"):
                wide = k
            elif k and name in ("scale_a", "scale_b"):
                wide = -(-k // about["group"])
            own = [int(next(cells), 16) for _ in range(wide)]
            row[name] = own[0] if len(c["shape"]) == 1 else own + [0] * (int(np.prod(c["shape"][1:])) - wide)
        row["reason"] = header["reasons"].index(word)
    return {name: np.ascontiguousarray(rows[name]) for name in layout.names or ()}
