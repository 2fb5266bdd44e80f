"""The state of a training run in one file: whole or not there, without pickle, and only for the run it belongs to.

A file is an ``.npz`` archive. Its entry ``state`` is JSON: the configuration, and the run's state with every tensor
replaced by the name of the archive's array that holds its raw bytes; so FP16 NaNs, signed zeros and formats that
NumPy lacks come back bit for bit.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..columns import harmless
from ..errors import LabError, reason
from ..storage import contents, read_arrays, write_bytes
from ..words import part, say

VERSION = 1
Configuration = Mapping[str, Any]


def save(path: Path, configuration: Configuration, state: Any) -> None:
    """Write a checkpoint, atomically: a process killed at any moment leaves the old file or the new one.

    Raises :class:`LabError` where it cannot be written, or the state holds something else than is listed here.

    ``configuration``: what the run is, as JSON values. ``state``: dictionaries (keys: strings, integers), lists,
    tuples, tensors of any dtype, NumPy arrays, numbers, strings, booleans and None, nested as one likes.
    """
    arrays: dict[str, np.ndarray] = {}
    try:
        text = json.dumps({"version": VERSION, "configuration": configuration, "state": _taken(state, arrays)})
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, LabError):
            raise
        raise LabError(
            f"a checkpoint cannot hold what is no plain JSON or dense tensor, or holds itself: {reason(error)}."
        ) from None
    buffer = io.BytesIO()
    np.savez(buffer, **{"state": np.frombuffer(text.encode(), np.uint8), **arrays})  # type: ignore[arg-type]
    write_bytes(path, buffer.getvalue())


def load(path: Path, configuration: Configuration) -> Any:
    """The state in a checkpoint of exactly this configuration.

    Raises :class:`LabError` for a file that is damaged, that is no checkpoint, or that another run wrote; the text
    names every setting in which they differ.
    """
    if path.is_dir():
        raise LabError(f"{str(path)!r} is a directory; a checkpoint is a file, such as {str(path / 'run.npz')!r}.")
    try:
        data = contents(path)
        arrays = read_arrays(data, len(data))  # save compresses nothing
        document = json.loads(arrays.pop("state").tobytes())
        version, theirs = document["version"], dict(document["configuration"])
        state = _given(document["state"], arrays)
    except Exception as error:  # JSON of something else can be of any shape, and nested without end
        raise LabError(
            f"{str(path)!r} is no checkpoint of a training run, or a damaged one ({reason(error)}); "
            "delete it, and the run begins at step 0."
        ) from None
    if version != VERSION:
        raise LabError(f"{str(path)!r} has layout {version!r}; this release reads {VERSION}. Delete it to begin again.")
    demand_same(path, theirs, configuration, part("a checkpoint"))
    return state


def demand_same(path: Path, theirs: Configuration, ours: Configuration, what: str) -> None:
    """Refuse what another run left: going on from it would give a mixture of two."""
    theirs, ours = harmless(dict(theirs), " "), harmless(json.loads(json.dumps(ours)), " ")
    names = sorted({*theirs, *ours})
    absent = object()
    differ = [n for n in names if theirs.get(n, absent) != ours.get(n, absent)]
    if differ:
        each = say("{name} is {theirs!r} in the file and {ours!r} here")
        differences = "; ".join(str(each.fill(name=n, theirs=theirs.get(n), ours=ours.get(n))) for n in differ)
        raise LabError(f"{str(path)!r} is {what} of another run: {differences}. Name another file, or delete it.")


# --- state as JSON and arrays -----------------------------------------------------------------------------------
def _taken(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON; what it holds of tensors and arrays goes into ``arrays``, as bytes."""
    if isinstance(value, Tensor):
        name = f"array{len(arrays)}"
        data = value.detach().cpu().contiguous()
        arrays[name] = data.reshape(-1).view(torch.uint8).numpy().copy()
        return {"tensor": name, "dtype": str(data.dtype).removeprefix("torch."), "shape": list(data.shape)}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:  # NumPy would pickle it, and refuse to read it
            raise LabError("a checkpoint cannot hold an array of objects; allowed: arrays of numbers or strings.")
        name = f"array{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, Mapping):
        return {"items": [[_key(k), _taken(v, arrays)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_taken(v, arrays) for v in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise LabError(
        f"a checkpoint cannot hold a {type(value).__name__}; allowed: tensors, arrays, dict, list, tuple, numbers, "
        "strings, booleans and None."
    )


def _key(key: Any) -> str | int:
    """A dictionary's key; JSON's own objects would turn integers into text."""
    if isinstance(key, str | int):
        return key
    raise LabError(f"a checkpoint cannot hold a dictionary with the key {key!r}; allowed: strings and integers.")


def _given(packed: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The value that :func:`_taken` took apart."""
    ((kind, value), *rest) = packed.items()
    if kind == "tensor":
        described = dict(rest)
        raw, dtype = torch.from_numpy(arrays[value]), getattr(torch, described["dtype"])
        return (raw.view(dtype) if raw.numel() else torch.empty(0, dtype=dtype)).reshape(described["shape"])
    if kind == "array":
        return arrays[value]
    if kind == "items":
        return {key: _given(v, arrays) for key, v in value}
    if kind in ("list", "tuple"):
        items = [_given(v, arrays) for v in value]
        return items if kind == "list" else tuple(items)
    return value
