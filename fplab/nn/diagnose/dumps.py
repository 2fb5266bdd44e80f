"""Dumps of what a torch program computed: written by :func:`capture`, read without trust, and computed again."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ...errors import LabError, integer, one_of, quotes_call, reason
from ...storage import contents, demand_writable
from ...words import say
from . import capturing
from .capturing import OUTSIDE, Capture
from .tensors import laid_out

MOST = 1 << 31  # bytes of a file that is read
DTYPES = {code: getattr(torch, name) for name, code in capturing.SAFE.items()}
FORBIDDEN = re.compile(r"from_file|print|assert|\bset_|resize|_unsafe_(?!view)|storage|sparse|record_stream|pin_memory")
KINDS = {"shape": list, "dtype": str, "kept": str}
NO_DUMP = say("{path} holds no dump that fplab can read: {why}.")

Tensor = torch.Tensor
Instead = Callable[[int, Any, list[Any], dict[str, Any]], Any]  # operation's number, function, args, kwargs -> result


@quotes_call
def capture(
    model: nn.Module | None, out: str | Path, what: str = "rows", *, most: int = 1 << 28, operations: int = 20_000
) -> Capture:
    """Within the block write what torch computes into a folder, for :func:`fplab.nn.explain` to compare with another.

    ``model``: whose parts are named by their path; None names modules by their class. ``out``: the folder, which
    receives ``rank-N.json``, the manifest (described in :mod:`fplab.nn.diagnose.capturing`), and
    ``rank-N.safetensors``. ``what``: of results "digests" alone, some "rows" too, or "all"; weights and inputs are
    kept whole, so that the program can be computed again. ``most``: bytes of tensors; once they are full, digests
    alone are noted. ``operations``: so many at most. A module that ``torch.compile`` gave runs compiled and is one
    operation, and its backward pass another, whose results are kept; other compiled functions are refused. Where fplab
    is not installed, the one file ``fplab/nn/diagnose/capturing.py`` does the same, ``with Capture(model, out): ...``,
    with torch alone.

    >>> import tempfile
    >>> model, x = nn.Linear(4, 2), torch.ones(3, 4)
    >>> with tempfile.TemporaryDirectory() as folder, capture(model, folder) as recording:
    ...     y = model(x)
    >>> recording.summary
    '2 operations, 5 tensors, 112 bytes of them kept'
    """
    if model is not None and not isinstance(model, nn.Module):
        raise LabError(f"model is a {type(model).__name__}; pass a torch.nn.Module.")
    one_of("choice of what to keep", what, capturing.WHAT)
    demand_writable(Path(out))
    most = integer("most", most, 0, 1 << 40)
    return Capture(model, out, what, most=most, operations=integer("operations", operations, 1, 1 << 20))


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a dump; numbers are those of tensors, -1 what is none."""

    name: str
    module: str
    call: int
    args: list[Any]
    kwargs: dict[str, Any]
    results: list[int]
    changed: list[int]

    @property
    def short(self) -> str:
        """The name as torch's users know it: "addmm", "_c10d_functional.all_reduce"."""
        space, _, rest = self.name.partition(".")
        return rest.partition(".")[0] if space == "aten" else self.name.removesuffix(".default")

    @property
    def operands(self) -> list[int]:
        """The numbers of the tensors that it is given."""
        return list(_numbers([self.args, list(self.kwargs.values())]))

    @property
    def from_outside(self) -> bool:
        """Whether its result is no function of its operands alone: drawn, received, uninitialised."""
        return OUTSIDE.search(self.name) is not None


@dataclass(frozen=True, eq=False)
class Dump:
    """What one rank computed. ``kept``: by number of a tensor its values, whole or rows, as the tensor's note says."""

    path: Path
    state: dict[str, Any]
    modules: dict[str, dict[str, Any]]
    tensors: list[dict[str, Any]]
    operations: list[Operation]
    kept: dict[int, Tensor]
    output: int
    cut: bool = False
    producers: dict[int, int] = field(default_factory=dict)

    def whole(self, n: int) -> Tensor | None:
        """A tensor's values as they were noted, if all were."""
        return self.kept[n] if self.tensors[n]["kept"] == "whole" else None

    def has_bits(self, n: int, x: Tensor) -> bool:
        """Whether a tensor of this one's shape and dtype has the bits that were noted."""
        noted = self.tensors[n].get("digest", "")
        return bool(noted) and noted[:16] == f"{capturing.digest(x.detach().contiguous()):016x}"

    def run(self, instead: Instead | None = None, stop: int | None = None) -> list[Tensor | None]:
        """Compute the program again on this machine: the values of all tensors, None for what cannot be computed.

        ``instead``: computes each operation of torch's own; ``stop``: before which operation to end.
        """
        with torch.no_grad():
            return _Run(self, instead).values(stop)


class _Run:
    """``live``: tensors by number, which operations change; ``before``: as they were before they were changed."""

    def __init__(self, dump: Dump, instead: Instead | None) -> None:
        self.dump, self.instead = dump, instead
        self.live: list[Tensor | None] = [None] * len(dump.tensors)
        self.before = dict[int, Tensor]()
        self.sharing = dict[int, list[int]]()  # storage -> the numbers of the tensors in it

    def values(self, stop: int | None) -> list[Tensor | None]:
        for number, op in enumerate(self.dump.operations[:stop]):
            try:
                self._step(number, op)
            except _UnknownError:
                continue
            except LabError as error:
                raise LabError(NO_DUMP.fill(path=self.dump.path, why=reason(error))) from None
            except Exception as error:  # torch's of whatever kind
                raise LabError(NO_DUMP.fill(path=self.dump.path, why=f"{op.name}: {reason(error)}")) from None
        return [self.before.get(n, x) for n, x in enumerate(self.live)]

    def _value(self, n: int) -> Tensor:
        note, found = self.dump.tensors[n], self.live[n]
        if found is None and (same := note.get("same", -1)) >= 0:
            found = self._set(n, self._value(same))
        elif found is None and n not in self.dump.producers and (known := self.dump.whole(n)) is not None:
            found = self._set(n, laid_out(known, note["stride"] or known.stride()))
        if found is None:
            raise _UnknownError
        return found

    def _set(self, n: int, x: Tensor) -> Tensor:
        self.live[n] = x
        self.sharing.setdefault(x.untyped_storage()._cdata, []).append(n)
        return x

    def _step(self, number: int, op: Operation) -> None:
        changed = [(n, self.dump.tensors[n].get("same", -1)) for n in op.changed]
        for _, same in changed:
            for n in self.sharing.get(self._value(same).untyped_storage()._cdata, ()) if same >= 0 else ():
                if n not in self.before and (x := self.live[n]) is not None:
                    self.before[n] = x.clone()
        if op.from_outside or not op.name.startswith("aten."):
            for n in op.changed + op.results:
                if n >= 0 and (known := self.dump.whole(n)) is not None and self.live[n] is None:
                    same = self.dump.tensors[n].get("same", -1)
                    stride = self.dump.tensors[n]["stride"] or known.stride()
                    self._set(n, self._value(same).copy_(known) if same >= 0 else laid_out(known, stride))
            return
        func, args = function(op), _given(op.args, self._value)
        if op.short in ("view", "_unsafe_view") and not _views(*args):  # an operand that has other strides here
            func = torch.ops.aten.reshape.default
        kwargs = {name: _given(x, self._value) for name, x in op.kwargs.items()}
        result = func(*args, **kwargs) if self.instead is None else self.instead(number, func, args, kwargs)
        for n, same in changed:
            self._set(n, self._value(same))
        for n, x in zip(op.results, tree_leaves(result), strict=True):
            if n >= 0 and self.live[n] is None:
                self._set(n, x)


def _views(x: Tensor, shape: Any) -> bool:
    """Whether a tensor's strides allow a view of a shape."""
    try:
        x.view(shape)
    except (RuntimeError, TypeError):
        return False
    return True


class _UnknownError(Exception):
    """An operand that was not kept."""


def function(op: Operation) -> Any:
    """torch's function; a LabError for what a dump may not call."""
    space, _, rest = op.name.partition(".")
    name, _, overload = rest.partition(".")
    packet = None if space != "aten" or FORBIDDEN.search(rest) else getattr(torch.ops.aten, name, None)
    if packet is None or overload not in packet.overloads():
        raise LabError(f"operation {op.name!r} is none that a dump may have computed.")
    return getattr(packet, overload)


def _given(x: Any, value: Callable[[int], Tensor]) -> Any:
    """An argument from what JSON holds."""
    match x:
        case list():
            return [_given(one, value) for one in x]
        case {"t": n}:
            return value(n)
        case {"f": text}:
            return float.fromhex(text)
        case {"device": _}:
            return torch.device("cpu")
        case {"dtype": name} | {"layout": name} | {"memory_format": name}:
            return getattr(torch, name)
        case dict():
            raise _UnknownError
    return x


def _numbers(x: Any) -> Any:
    if isinstance(x, list):
        for one in x:
            yield from _numbers(one)
    elif isinstance(x, dict) and "t" in x:
        yield x["t"]


def read(folder: str | os.PathLike[str], rank: int = 0) -> Dump:
    """A dump of one rank; a LabError with the reason for what is none, is damaged, or claims what it does not hold."""
    path = Path(folder) / f"rank-{rank}.json"
    try:
        manifest = json.loads(contents(path, MOST))
        if not isinstance(manifest, dict) or manifest.get("format") != capturing.FORMAT:
            raise LabError(f"it does not say that it is a {capturing.FORMAT}")
        if manifest.get("version") != capturing.VERSION:
            raise LabError(f"it is of version {manifest.get('version')!r}, and this fplab reads {capturing.VERSION}")
        return _checked(path, manifest, _safetensors(contents(path.with_suffix(".safetensors"), MOST)))
    except OSError as error:
        raise LabError(NO_DUMP.fill(path=path, why=error.strerror or str(error))) from None
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError, RecursionError) as error:
        raise LabError(NO_DUMP.fill(path=path, why=reason(error))) from None


def _checked(path: Path, manifest: dict[str, Any], raw: dict[str, Tensor]) -> Dump:
    """The dump of a manifest, every number of which is one."""
    tensors = manifest["tensors"]
    for n, note in enumerate(tensors):
        fits = all(isinstance(note.get(name), kind) for name, kind in KINDS.items())
        sides = [*note["shape"], *(note.get("stride") or ())] if fits else [-1]
        if not fits or any(type(side) is not int or side < 0 for side in sides):
            raise LabError(f"tensor {n} is damaged")
        if not -1 <= note.get("same", -1) < n or not isinstance(getattr(torch, note["dtype"], None), torch.dtype):
            raise LabError(f"tensor {n} is damaged")
        if note.get("stride") is not None and len(note["stride"]) != len(note["shape"]):
            raise LabError(f"tensor {n} has other numbers of strides and sides")
        want = math.prod(note["shape"]) if note["kept"] == "whole" else None
        if note["kept"] != "none" and (str(n) not in raw or (want is not None and raw[str(n)].numel() != want)):
            raise LabError(f"tensor {n} is not as large as the manifest says")
    operations, producers = [], dict[int, int]()
    for number, item in enumerate(manifest["operations"]):
        op = Operation(*(item[name] for name in Operation.__dataclass_fields__))
        for n in (*op.operands, *op.results, *op.changed):
            if type(n) is not int or not -1 <= n < len(tensors):
                raise LabError(f"operation {number} names tensor {n!r}, and there are {len(tensors)}")
        if not isinstance(op.name, str) or not isinstance(op.module, str):
            raise LabError(f"operation {number} is damaged")
        producers |= {n: number for n in (*op.results, *op.changed) if n >= 0 and n not in producers}
        operations.append(op)
    kept = {n: raw[str(n)] for n, note in enumerate(tensors) if note["kept"] != "none"}
    output = manifest["output"]
    if type(output) is not int or not -1 <= output < len(tensors):
        raise LabError(f"the output is tensor {output!r}, and there are {len(tensors)}")
    if output < 0:
        first = (n for op in reversed(operations) for n in op.results[:1])
        output = next((n for n in first if n >= 0 and tensors[n]["dtype"].startswith(("float", "bfloat"))), -1)
    state = manifest["state"]
    return Dump(path, dict(state), dict(manifest["modules"]), tensors, operations, kept, output,
                bool(manifest["cut"]), producers)  # fmt: skip


def _safetensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a file, each of as many bytes as its shape says."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise LabError("its safetensors file is cut")
    header, body, result = json.loads(data[8 : 8 + size]), memoryview(bytearray(data[8 + size :])), {}
    for name, note in header.items():
        if name == "__metadata__":
            continue
        (start, end), shape, dtype = note["data_offsets"], note["shape"], DTYPES[note["dtype"]]
        whole = all(type(x) is int and x >= 0 for x in (start, end, *shape)) and start <= end <= len(body)
        if not whole or end - start != math.prod(shape) * dtype.itemsize:
            raise LabError(f"tensor {name} of its safetensors file is damaged")
        plain = (
            torch.frombuffer(body, dtype=torch.uint8, count=end - start, offset=start)
            if end > start
            else torch.empty(0)
        )
        result[name] = plain.clone().view(dtype).reshape(shape) if end > start else torch.empty(shape, dtype=dtype)
    return result
