"""A unit under test: a program, a C function of a shared library, or a Python callable, asked for rows of codes."""

from __future__ import annotations

import ctypes
import importlib
import os
import runpy
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LabError, reason
from ..hardware import software
from ..storage import contents
from .files import Vectors

Array = np.ndarray[Any, Any]
Ask = Callable[[Vectors], dict[str, Array]]  # the results, columns of codes, to rows whose own are not looked at
SECONDS = 300.0  # that a program may take for all rows of a question
LONG = 1 << 12  # characters of a line, of which no result has as many


def program(command: Sequence[str], seconds: float = SECONDS) -> Ask:
    """A program that reads a row a line on standard input and writes its results, in hexadecimal, a line a row.

    It is started anew for each question and reads to the end of its input. It runs with the rights of whoever asks.
    """

    def ask(rows: Vectors) -> dict[str, Array]:
        text = "".join(f"{rows.line(row, results=False)}\n" for row in range(len(rows)))
        try:
            ran = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", errors="replace",
                                 timeout=seconds)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise LabError(f"{command[0]!r} took more than {seconds:g} s for {len(rows):,} rows.") from None
        except (OSError, ValueError) as error:
            raise LabError(f"{command[0]!r} cannot be run: {getattr(error, 'strerror', None) or error}.") from None
        if ran.returncode:
            said = " ".join(ran.stderr.split())[-200:]
            raise LabError(f"{command[0]!r} ended with status {ran.returncode}: {said or 'it said nothing'}.")
        return _read(command[0], ran.stdout.splitlines(), rows)

    return ask


def _read(name: str, lines: list[str], rows: Vectors) -> dict[str, Array]:
    """The columns of results that a program wrote; LabError with the first line that is none."""
    found = {column: np.zeros_like(rows.columns[column]) for column in rows.results}
    if len(lines) != len(rows):
        raise LabError(f"{name!r} wrote {len(lines):,} lines for {len(rows):,} rows; a row gives one line.")
    for row, line in enumerate(lines):
        cells = line[:LONG].split()
        wanted = [(column, int(np.prod(x.shape[1:]))) for column, x in found.items()]
        try:
            numbers = [int(cell, 16) for cell in cells]
            if len(numbers) != sum(wide for _, wide in wanted):
                raise ValueError
            for column, wide in wanted:
                own, numbers = numbers[:wide], numbers[wide:]
                found[column][row] = own if found[column].ndim > 1 else own[0]
        except (ValueError, OverflowError):
            shapes = ", ".join(f"{wide} x {8 * found[column].itemsize} bits" for column, wide in wanted)
            raise LabError(
                f"{name!r} wrote {line[:60]!r} as line {row + 1}; allowed: {shapes} in hexadecimal."
            ) from None
    return found


def library(path: Path | str, function: str = "unit") -> Ask:
    """A function of a shared library, of one row of codes; scales are null where the unit has none.

    In C: ``uint64_t f(uint32_t k, const uint64_t *a, const uint64_t *b, const uint64_t *scale_a, const uint64_t
    *scale_b, uint64_t c)``.
    """
    try:
        f = getattr(ctypes.CDLL(os.path.abspath(path)), function)
    except (OSError, AttributeError, ValueError) as error:
        raise LabError(f"there is no function {function!r} to be had in {str(path)!r}: {reason(error)}.") from None
    f.restype = ctypes.c_uint64
    f.argtypes = [ctypes.c_uint32, *[ctypes.c_void_p] * 4, ctypes.c_uint64]

    def ask(rows: Vectors) -> dict[str, Array]:
        _demand_product(rows)
        found = np.zeros_like(rows.columns["c"])
        wide = {n: np.ascontiguousarray(x, np.uint64) for n, x in rows.columns.items()}
        for row, k in enumerate(rows.columns["k"].tolist()):
            at = [wide[n][row].ctypes.data if n in wide else None for n in ("a", "b", "scale_a", "scale_b")]
            found[row] = f(k, *at, int(wide["c"][row])) & ((1 << 8 * found.itemsize) - 1)
        return {"d": found}

    return ask


def function(f: Callable[..., Any], model: Any) -> Ask:
    """A callable of values: ``f(a, b, c)`` of rows (N, K), (N, K), (N,), and block scales, gives (N,)."""

    def ask(rows: Vectors) -> dict[str, Array]:
        from .mutants import results

        _demand_product(rows)
        drawn = {n: x for n, x in rows.columns.items() if n not in ("k", "d")}

        def answer(**given: Any) -> Array:
            try:
                d = np.asarray(f(*(x.copy() for x in given.values())))
            except Exception as error:  # whatever it raises
                raise LabError(f"f raised {reason(error)}.") from None
            if d.shape != given["c"].shape:
                raise LabError(f"f returned shape {d.shape}; it must return {given['c'].shape}.")
            dtype = software.values(rows.columns["c"][:0], model.output).dtype
            with np.errstate(all="ignore"):
                return d.astype(dtype)

        return {"d": results(model, drawn, rows.columns["k"], answer)}

    return ask


def _demand_product(rows: Vectors) -> None:
    if "k" not in rows.columns:
        raise LabError(f"{rows.name} are no vectors of a product; a program can be asked for them, by --.")


def named(name: str) -> Callable[..., Any]:
    """What MODULE:NAME or FILE.py:NAME is: a function."""
    module, colon, inside = name.rpartition(":")
    try:
        if not colon:
            raise LabError("there is no colon in it")
        if module.endswith(".py"):
            contents(Path(module))  # what is no file is refused: who reads a pipe waits
            found: Any = runpy.run_path(module)[inside]
        else:
            found = getattr(importlib.import_module(module), inside)
        if not callable(found):
            raise LabError("it is not callable")
    except Exception as error:  # whatever a module raises as it is imported
        raise LabError(
            f"the unit {name!r} cannot be had ({reason(error)}); allowed: MODULE:NAME, FILE.py:NAME."
        ) from None
    return found  # type: ignore[no-any-return]


def by_instruction(ask: Ask, k: int) -> Ask:
    """A unit that takes instructions of k products alone, asked for chains: each takes the result before as its c."""

    def asked(rows: Vectors) -> dict[str, Array]:
        columns = dict(rows.columns)
        lengths, c, size = columns["k"].astype(np.int64), columns["c"], int(rows.about["group"] or 1)
        for start in range(0, int(lengths.max(initial=0)), k):
            live = lengths > start
            part: dict[str, Array] = {"k": np.full(int(live.sum()), k, np.uint16)}
            for name in ("a", "b", "scale_a", "scale_b"):
                if name in columns:
                    at, wide = (start // size, -(-k // size)) if name.startswith("scale") else (start, k)
                    own = columns[name][live][:, at : at + wide]
                    part[name] = np.pad(own, ((0, 0), (0, wide - own.shape[1])))
            part |= {"c": c[live], "d": c[live]}
            c = c.copy()
            c[live] = ask(rows_of(rows, part))["d"]
        return {"d": c}

    return asked


def rows_of(rows: Vectors, columns: Mapping[str, Array]) -> Vectors:
    """Other rows of the same operation."""
    ordered = {name: columns[name] for name in rows.columns}
    return Vectors(
        rows.name, rows.about, ordered, rows.formats, rows.results, ("",) * len(next(iter(ordered.values())))
    )
