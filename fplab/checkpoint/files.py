"""Files of weights: which tensors they hold, known by what a file begins with, and never trusted.

What a file claims is checked against its size before anything is read by it: a shape has its bytes, and every tensor
lies inside the file and on no other. Nothing in it is run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..errors import LabError
from ..storage import contents, opened
from .joined import joined
from .readers import READERS, safetensors
from .tensor import FileError, Tensor, distinct, reading

MOST_INDEX = 1 << 24  # bytes of an index of shards
SUFFIXES = (".safetensors", ".gguf", ".pt", ".pth", ".bin", ".npy", ".npz")


Paths = str | Path | Sequence[str | Path]


def listed(paths: Paths) -> list[Tensor]:
    """The tensors of one path or of several."""
    return tensors(*([paths] if isinstance(paths, str | Path) else paths))


def tensors(*paths: str | Path) -> list[Tensor]:
    """The tensors of files, of folders of such, and of what indexes of shards name; no weight is read.

    A weight that a quantised release keeps in several tensors is one, stored in a layout of
    :data:`fplab.stored.PACKED`.
    """
    named: dict[str, Tensor] = {}
    for file in dict.fromkeys(shard for path in paths for shard in _files(Path(path))):
        for tensor in _tensors(file):
            if tensor.name in named:
                raise FileError(
                    f"{str(file)!r} holds {tensor.name!r} again, which {str(named[tensor.name].path)!r} has."
                )
            named[tensor.name] = tensor
    return joined(list(named.values()))


def _files(path: Path) -> list[Path]:
    """The files of a path: itself, the shards of an index, or those of a folder."""
    with reading(path):
        if path.is_dir():
            found = sorted(one for one in path.iterdir() if one.suffix.lower() in SUFFIXES and one.is_file())
            index = sorted(path.glob("*.index.json"))
            if not found:
                raise LabError(f"it is a folder without such files; known: {', '.join(SUFFIXES)}")
            return _files(index[0]) if index else found
        if path.suffix != ".json":
            return [path]
        data = contents(path, MOST_INDEX + 1)
        if len(data) > MOST_INDEX:
            raise LabError(f"an index of more than {MOST_INDEX:,} bytes")
        index = json.loads(data, object_pairs_hook=distinct)
        shards = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise LabError("it is no index of shards: weight_map does not say which file each tensor lies in")
        names = list(dict.fromkeys(shards.values()))
        if outside := [name for name in names if Path(name).name != name or name in ("", "..")]:
            raise LabError(f"shard {outside[0]!r} lies elsewhere; allowed: names of files beside the index")
        return [path.parent / name for name in names]


def _tensors(path: Path) -> list[Tensor]:
    """The tensors of one file, by what it begins with; each was checked against the file's size."""
    with reading(path), open(path, "rb", opener=opened) as file:
        size = file.seek(0, 2)
        file.seek(0)
        begins = file.read(9)
        reader = next((read for mark, read in READERS.items() if begins.startswith(mark)), None)
        if reader is None and begins[8:9] == b"{":
            reader = safetensors
        if reader is None:
            raise LabError("it begins as none of the files that are known: safetensors, GGUF, torch, NumPy")
        file.seek(0)
        found = reader(path, file, size)
        _demand_apart(found, size)
        return found


def _demand_apart(found: Sequence[Tensor], size: int) -> None:
    """An error where a tensor reaches beyond the file, or lies on another one."""
    ends, before = 0, ""
    for tensor in sorted((one for one in found if one.held is None and one.count), key=lambda one: one.offset):
        if tensor.offset + tensor.nbytes > size:
            raise LabError(f"tensor {tensor.name!r} would end at byte {tensor.offset + tensor.nbytes:,} of {size:,}")
        if tensor.offset < ends and not tensor.shared:
            raise LabError(f"tensor {tensor.name!r} lies on {before!r}")
        ends, before = max(ends, tensor.offset + tensor.nbytes), tensor.name
