"""What files of weights say of their tensors: safetensors, GGUF, torch's and NumPy's.

A reader takes (path, file, size), the file open at its start, and gives its tensors. It raises LabError, or whatever a
parser raises, for what it cannot read.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import LabError, need, reason, summary
from ..formats import spelt
from ..storage import read_arrays
from ..stored import GGML
from .tensor import Tensor, distinct, shaped

MOST_HEADER = 1 << 24  # bytes of a header, of which Python's objects take up to twenty times as many
MOST_EXPANDED = 1 << 30  # bytes of compressed arrays, which are held in memory
MOST_ITEMS = 1 << 24  # of a list in a header of GGUF
MOST_HELD = 1 << 30  # bytes of a file of torch's that cannot be read in place
Reader = Callable[[Path, IO[bytes], int], list[Tensor]]
SAFETENSORS = {
    "F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16", "F8_E4M3": "e4m3", "F8_E5M2": "e5m2",
    "F8_E4M3FNUZ": "e4m3fnuz", "F8_E5M2FNUZ": "e5m2fnuz", "F8_E8M0": "e8m0", "F4": "e2m1", "BOOL": "bool",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16",
    "U8": "uint8", "C64": "complex64",
}  # fmt: skip
BYTES = {
    "fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "int64": 8, "uint64": 8, "int32": 4, "uint32": 4, "int16": 2,
    "uint16": 2, "complex64": 8, "complex128": 16,
}  # fmt: skip  # of an element; one where it is not named, and of E2M1 one of two


def _placed(name: str, shape: Any, stored: str, path: Path, **where: Any) -> Tensor:
    """A tensor of a number format or of integers; one of E2M1 has two elements a byte."""
    block, size = (2, 1) if stored == "e2m1" else (1, BYTES.get(stored, 1))
    tensor = Tensor(name, shaped(name, shape), stored, path, block=block, size=size, **where)
    if tensor.count % block:
        raise LabError(f"tensor {summary(name)} has {tensor.count:,} elements of which two take a byte")
    return tensor


def safetensors(path: Path, file: IO[bytes], size: int) -> list[Tensor]:
    """A length in 8 bytes, JSON with a dtype, a shape and offsets for each name, and the tensors."""
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, MOST_HEADER):
        raise LabError(f"its header would have {length:,} bytes; allowed: what the file has, at most {MOST_HEADER:,}")
    header = json.loads(file.read(length), object_pairs_hook=distinct)
    found = []
    for name, about in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(about, dict) or about.get("dtype") not in SAFETENSORS:
            raise LabError(f"tensor {summary(name)} has no dtype that is known: {summary(about)}")
        offsets = shaped(name, about.get("data_offsets"))
        tensor = _placed(name, about.get("shape"), SAFETENSORS[about["dtype"]], path, offset=8 + length + offsets[0])
        if len(offsets) != 2 or offsets[1] - offsets[0] != tensor.nbytes:
            raise LabError(
                f"tensor {summary(name)} of shape {tensor.shape} takes {tensor.nbytes:,} bytes, not from "
                f"{' to '.join(map(str, offsets))}"
            )
        found.append(tensor)
    return found


# --- GGUF ---------------------------------------------------------------------------------------------------------
SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}  # by the number of a kind of value
TEXT, LIST = 8, 9


class _Gguf:
    """A file of GGUF, read from its start."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.size = file, size

    def number(self, code: str) -> Any:
        """The next number, of a code of :mod:`struct`."""
        return struct.unpack(f"<{code}", self.taken(struct.calcsize(code)))[0]

    def taken(self, n: int) -> bytes:
        """The next bytes."""
        data = self.file.read(n)
        if len(data) < n:
            raise LabError("it ends within its header")
        return data

    def skip(self, n: int) -> None:
        """Go on behind the next bytes."""
        if n > self.size - self.file.tell():
            raise LabError(f"its header has {n:,} bytes that the file does not have")
        self.file.seek(n, 1)

    def text(self) -> str:
        """The next text, a name."""
        n = self.number("Q")
        if n > 1 << 16:
            raise LabError(f"a name of {n:,} bytes")
        return self.taken(n).decode()

    def value(self, kind: int, depth: int = 0) -> Any:
        """The next value if it is a number; texts and lists are skipped."""
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == TEXT:
            return self.skip(self.number("Q"))
        if kind != LIST or depth > 4:
            raise LabError(f"a value of kind {kind}" if kind != LIST else "its lists are nested too deep")
        inner, n = self.number("I"), self.number("Q")
        if inner in SCALARS:
            return self.skip(n * struct.calcsize(SCALARS[inner]))
        if n > MOST_ITEMS:
            raise LabError(f"a list of {n:,} items; allowed: {MOST_ITEMS:,}")
        for _ in range(n):
            self.value(inner, depth + 1)
        return None


def gguf(path: Path, file: IO[bytes], size: int) -> list[Tensor]:
    """llama.cpp's files, versions 2 and 3: a list of values, a list of tensors, and these at multiples of 32 bytes."""
    read = _Gguf(file, size)
    read.skip(4)
    if (version := read.number("I")) not in (2, 3):
        raise LabError(f"version {version} of GGUF; known: 2 and 3, little-endian")
    count, values = read.number("Q"), read.number("Q")
    if max(count, values) * 12 > size:
        raise LabError(f"{count:,} tensors and {values:,} values in {size:,} bytes")
    about = {}
    for _ in range(values):
        name = read.text()
        value = read.value(read.number("I"))
        if name == "general.alignment":
            about[name] = value
    found, names = [], set[str]()
    for _ in range(count):
        name, dimensions = read.text(), read.number("I")
        if dimensions > 8 or name in names:
            raise LabError(f"tensor {summary(name)} is there twice, or has {dimensions} dimensions")
        shape = shaped(name, [read.number("Q") for _ in range(dimensions)][::-1])
        kind, offset = read.number("I"), read.number("Q")
        if kind not in GGML:
            raise LabError(f"tensor {summary(name)} is of kind {kind} of ggml's, which is not known")
        stored, block, size_of = GGML[kind]
        if (shape[-1] if shape else 1) % block:
            raise LabError(f"tensor {summary(name)} has rows of {shape[-1]}, and blocks of {block}")
        names.add(name)
        found.append(Tensor(name, shape, stored, path, offset, block=block, size=size_of))
    alignment = about.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 16:
        raise LabError(f"an alignment of {summary(alignment)}")
    start = -(-file.tell() // alignment) * alignment
    return [replace(tensor, offset=start + tensor.offset) for tensor in found]


# --- NumPy --------------------------------------------------------------------------------------------------------
def npy(path: Path, file: IO[bytes], size: int, name: str = "") -> list[Tensor]:
    """One array, from where the file stands."""
    major = np.lib.format.read_magic(file)[0]
    header = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    if major not in header:
        raise LabError(f"version {major} of the format; known: 1 and 2")
    shape, fortran, dtype = header[major](file)
    return [_array(name or path.stem, shape, dtype, path, fortran, offset=file.tell())]


def _array(name: str, shape: Any, dtype: np.dtype[Any], path: Path, fortran: bool = False, **where: Any) -> Tensor:
    """An array as a tensor."""
    if dtype.hasobject:
        raise LabError("it holds Python objects, which are never loaded: they could run code")
    if dtype.kind not in "fiubc" or dtype.byteorder == ">" or dtype.itemsize > 8 + 8 * (dtype.kind == "c"):
        raise LabError(f"its elements are {dtype}; known: little-endian numbers")
    tensor = _placed(name, shape, str(spelt(dtype)), path, **where)
    if fortran and len(tensor.shape) > 1:
        steps = [math.prod(tensor.shape[:i]) * tensor.size for i in range(len(tensor.shape))]
        tensor = replace(tensor, strides=tuple(steps))
    return tensor


def archive(path: Path, file: IO[bytes], size: int) -> list[Tensor]:
    """A zip archive: NumPy's, where all members are arrays, else torch's."""
    with zipfile.ZipFile(file) as whole:
        members = whole.infolist()
        if not members or not all(one.filename.endswith(".npy") for one in members):
            return torch_zip(path, members)
        if any(one.compress_type != zipfile.ZIP_STORED for one in members):
            if size > MOST_EXPANDED:
                raise LabError(f"compressed arrays in {size:,} bytes; allowed: {MOST_EXPANDED:,}")
            file.seek(0)
            arrays = read_arrays(file.read(), MOST_EXPANDED)
            flat = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
            return [_array(name, x.shape, x.dtype, path, held=x.reshape(-1).view(np.uint8)) for name, x in flat.items()]
        found = []
        for one in members:
            with whole.open(one) as inside:  # which checks what the archive says of it
                [tensor] = npy(path, inside, size, one.filename.removesuffix(".npy"))
            file.seek(one.header_offset + 26)
            before = sum(struct.unpack("<HH", file.read(4))) + one.header_offset + 30
            if tensor.nbytes != one.file_size - tensor.offset:
                raise LabError(f"member {one.filename!r} has {one.file_size:,} bytes, and claims {tensor.nbytes:,}")
            found.append(replace(tensor, offset=before + tensor.offset))
        return found


# --- torch --------------------------------------------------------------------------------------------------------
def torch_zip(path: Path, members: list[zipfile.ZipInfo]) -> list[Tensor]:
    """What torch.save writes; its tensors are read where they lie."""
    if any(one.compress_type != zipfile.ZIP_STORED for one in members):
        raise LabError("its members are compressed, and those of torch's files are not")
    pickles = [one for one in members if one.filename.endswith("/data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > MOST_HEADER:
        raise LabError(f"it is neither torch's nor NumPy's, or its list of tensors is beyond {MOST_HEADER:,} bytes")
    return _of_torch(path, True)


def torch_legacy(path: Path, file: IO[bytes], size: int) -> list[Tensor]:
    """What torch.save wrote before version 1.6, which is held in memory."""
    if size > MOST_HELD:
        raise LabError(f"torch's format before 1.6, and {size:,} bytes; save it again with torch.save")
    found = _of_torch(path, False)  # without memory for them
    if (claimed := sum(one.nbytes for one in found)) > MOST_HELD:
        raise LabError(f"torch's format before 1.6, and tensors of {claimed:,} bytes; save it again with torch.save")
    whole = dict(_walk("", _load(path, "cpu", False)))
    return [
        replace(one, held=whole[one.name].detach().contiguous().reshape(-1).view(need("torch").uint8).numpy())
        for one in found
    ]


def _of_torch(path: Path, in_place: bool) -> list[Tensor]:
    """The tensors of a file of torch's, on its device without memory."""
    found, storages = [], dict[int, int]()
    for name, x in _walk("", _load(path, "meta", in_place)):
        if str(x.layout) != "torch.strided" or x.is_quantized:
            raise LabError(f"tensor {summary(name)} is neither dense nor plain")
        storage = x.untyped_storage()
        offset, step = getattr(storage, "_checkpoint_offset", None), x.element_size()
        if in_place and offset is None:
            raise LabError("this torch does not say where its tensors lie; torch 2.10 does")
        strides = None if x.is_contiguous() else tuple(step * n for n in x.stride())
        tensor = _placed(name, list(x.shape), str(spelt(x.dtype)), path, strides=strides if in_place else None)
        last = x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
        if tensor.nbytes > storage.nbytes() or (tensor.count and (last + 1) * step > storage.nbytes()):
            raise LabError(f"tensor {summary(name)} of shape {tensor.shape} is larger than its storage")
        start = (offset or 0) + x.storage_offset() * step
        found.append(replace(tensor, offset=start, shared=True))
        storages[offset or 0] = max(storages.get(offset or 0, 0), (last + 1) * step)
    ends = 0
    for place, size in sorted(storages.items()):
        if place < ends:
            raise LabError("its storages lie on each other")
        ends = place + size
    if ends > path.stat().st_size:
        raise LabError(f"its tensors would end at byte {ends:,}")
    return found


def _load(path: Path, device: str, in_place: bool) -> Any:
    """What torch makes of a file with ``weights_only=True``; nothing else is ever tried."""
    torch = need("torch")
    try:
        return torch.load(path, map_location=device, weights_only=True, mmap=in_place or None)
    except Exception as error:
        raise LabError(f"torch.load with weights_only=True, alone, refuses it ({reason(error)[:200]})") from None


def _walk(name: str, x: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The tensors inside dictionaries and lists, each named by its place."""
    if depth > 16:
        raise LabError("its dictionaries are nested too deep")
    if isinstance(x, need("torch").Tensor):
        yield name or "tensor", x
    elif isinstance(x, dict | list | tuple):
        for key, inner in x.items() if isinstance(x, dict) else enumerate(x):
            yield from _walk(f"{name}.{key}" if name else str(key), inner, depth + 1)


READERS: dict[bytes, Reader] = {
    b"GGUF": gguf, b"\x93NUMPY": npy, b"PK\x03\x04": archive, b"\x80\x02": torch_legacy,
}  # fmt: skip
