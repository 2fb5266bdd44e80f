"""The text of torch's own ``DebugMode`` as a dump: operations, modules, shapes, dtypes and hashes, without values.

Written by ``with DebugMode(record_nn_module=True, record_ids=True) as mode, DebugMode.log_tensor_hashes(hash_inputs=
True): model(x)`` and ``open("a.txt", "w").write(mode.debug_string())``. Nothing of it can be computed again, so that an
answer names the first place where two programs part, and what they do otherwise there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import LabError, reason
from ...storage import contents
from ...words import say
from .dumps import MOST, NO_DUMP, Dump, Instead, Operation, Tensor

NO_HASHES = say(
    "it does not say of every tensor its number and hash, as DebugMode(record_ids=True) does within "
    "DebugMode.log_tensor_hashes(hash_inputs=True)"
)
DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8", "b8": "bool",
    "c64": "complex64", "c128": "complex128",
}  # fmt: skip
MODULE = re.compile(r"\[nn\.Mod\] (\S+)")
CALL = re.compile(r"(\w+)::([\w.]+)\((.*?)\)(?=  ->  |  # |$)(?:  ->  (.*?))?(?:  # (\{.*\}))?$")
TENSOR = re.compile(r"'?t\$(\d+): (\w+)\[([\d, ]*)\]'?")
WORD = re.compile(r"(?<![\w'\"{])(?!True\b|False\b|None\b|t'|inf\b|nan\b)[A-Za-z_][\w.:]*(?![\w'\"])")
NAMED = re.compile(r"(?:^|, )([a-z_]\w*)=")


class Logged(Dump):
    """A dump of which no value was kept."""

    def run(self, instead: Instead | None = None, stop: int | None = None) -> list[Tensor | None]:
        return [None] * len(self.tensors)


def logged(path: Path, text: str) -> Logged:
    """The dump of a text; a LabError for one without tensors' ids or hashes."""
    tensors, operations, numbers = list[dict[str, Any]](), list[Operation](), dict[str, int]()
    places, calls = list[tuple[int, str]](), dict[str, int]()

    def number(of: re.Match[str], digest: Any = None, new: bool = False) -> int:
        """A tensor's number, which it gets where it is new or was changed in place."""
        n = numbers.get(of[1], -1)
        if n < 0 or new:
            shape = [int(side) for side in of[3].split(",") if side.strip()]
            tensors.append({"dtype": DTYPES[of[2]], "shape": shape, "stride": None, "kept": "none"})
            tensors[-1] |= {"same": n, "by": len(operations)} if n >= 0 else {}
            n = numbers[of[1]] = len(tensors) - 1
        if digest is not None:
            tensors[n].setdefault("digest", f"{digest} of {shape_of(tensors[n])}")
        return n

    for line in text.splitlines():
        depth, given = len(line) - len(line.lstrip()), line.strip()
        while places and places[-1][0] >= depth:
            places.pop()
        if module := MODULE.match(given):
            places.append((depth, module[1]))
            calls[module[1]] = calls.get(module[1], -1) + 1
        elif call := CALL.match(given):
            log = ast.literal_eval(call[5]) if call[5] else {}
            hashes = iter(_flat(log.get("input_hash", ())))
            args, kwargs = _arguments(call[3], lambda of, known=hashes: number(of, next(known, None)))
            results = list(TENSOR.finditer(call[4] or ""))
            digests = list(_flat([log.get("hash")]))
            ours = [number(of, h, True) for of, h in zip(results, [*digests, *[None] * len(results)], strict=False)]
            name, path_here = call[2], places[-1][1] if places else ""
            full = f"{call[1]}.{name if '.' in name else f'{name}.default'}"
            operations.append(Operation(full, path_here, calls.get(path_here, 0), args, kwargs, ours, []))
    producers = {n: k for k, op in reversed([*enumerate(operations)]) for n in op.results}
    outside = [n for op in operations for n in op.operands if n not in producers]
    if not outside or not all("digest" in tensors[n] for n in (*outside, *producers)):
        raise LabError(NO_HASHES)
    floats = (n for op in reversed(operations) for n in op.results[:1] if "float" in tensors[n]["dtype"])
    return Logged(path, {}, {}, tensors, operations, {}, next(floats, -1), False, producers)


def read(path: Path) -> Logged:
    """The dump of a file; a LabError with the reason for what is none."""
    try:
        return logged(path, contents(path, MOST).decode())
    except (
        ValueError,
        SyntaxError,
        IndexError,
        KeyError,
        AttributeError,
        TypeError,
        RecursionError,
        MemoryError,
    ) as error:
        raise LabError(NO_DUMP.fill(path=path, why=reason(error))) from None


def shape_of(note: dict[str, Any]) -> str:
    """A tensor's shape, which a hash alone does not tell from another's."""
    return "x".join(map(str, note["shape"]))


def _flat(x: Any) -> Iterator[Any]:
    """Numbers in nested tuples, lists and dictionaries, without what has no hash."""
    for one in x.values() if isinstance(x, dict) else x:
        if isinstance(one, (tuple, list, dict)):
            yield from _flat(one)
        elif one is not None:
            yield one


def _arguments(text: str, number: Any) -> tuple[list[Any], dict[str, Any]]:
    """An operation's arguments as a dump has them; names that are no numbers stay as they are written."""
    plain = TENSOR.sub(lambda of: f"{{'t': {number(of)}}}", text)
    cut = NAMED.search(plain)
    parts = [plain if cut is None else plain[: cut.start()]]
    names = [found[1] for found in NAMED.finditer(plain)]
    values = NAMED.split(plain[cut.start() :])[2::2] if cut else []
    read = [ast.literal_eval(f"[{WORD.sub(lambda word: repr(word[0]), part)}]") for part in (*parts, *values)]
    floats = [[_written(x) for x in part] for part in read]
    return floats[0], {name: part[0] if part else None for name, part in zip(names, floats[1:], strict=True)}


def _written(x: Any) -> Any:
    if isinstance(x, list):
        return [_written(one) for one in x]
    return {"f": x.hex()} if isinstance(x, float) else x
