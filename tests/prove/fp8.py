"""Part ``fp8``: every operation on every pair of every 8-bit format, values and flags, against fractions."""

from typing import Any

import numpy as np

import fplab
from fplab import exact
from fplab.formats import TABLE, Rounding, get

from .grid import grid
from .operations import BINARY, Table
from .shares import Part, Share, demand_same, policies, words_of

Array = np.ndarray[Any, Any]
FORMATS = tuple(f for f in TABLE if f.bits == 8)
CODES = 256
SEED = 12


def codes_of(op: str, rows: range) -> Array:
    """Operand codes, ``(elements, operands)``: the left ones from ``rows``, and for pairs every right one."""
    if op == "sqrt":
        return np.array(rows)[:, None]
    return np.stack([np.repeat(rows, CODES), np.tile(np.arange(CODES), len(rows))], axis=-1)


def arithmetic(name: str, op: str, modes: tuple[str, ...], subnormals: bool, rows: range) -> int:
    """One operation with every overflow policy; flags, and values with and without asking for them."""
    fmt, codes, count = get(name), codes_of(op, rows), 0
    operands = [grid(fmt).decode(column, np.float32) for column in codes.T]
    call, words = getattr(fplab, op), words_of(len(codes), SEED)
    tables: dict[Rounding, Table] = {}
    for mode in map(Rounding, modes):
        # Rounding toward -infinity enters the exact result as the sign of a zero sum, the others not at all.
        way = Rounding.RTN if mode is Rounding.RTN else Rounding.RNE
        table = tables.setdefault(way, tables.get(way) or Table(op, codes, fmt, way, flush_inputs=not subnormals))
        for policy in policies(fmt):
            want, want_flags = table.rounded(mode, policy, not subnormals, words)
            expected = grid(fmt).decode(want, np.float32)
            what = f"{name} {op}, {mode.value}, overflow={policy.value}, subnormals={subnormals}"
            got, flags = call(*operands, fmt, mode, policy, subnormals, seed=SEED, flags=True)
            bare = call(*operands, fmt, mode, policy, subnormals, seed=SEED)  # which may take a fast route
            demand_same(bare, expected, what, *operands)
            count += demand_same(got, expected, f"{what}, with flags", *operands)
            demand_same(flags, want_flags.astype(np.uint8), f"flags of {what}", *operands)
    return count


def comparisons(name: str, rows: range) -> int:
    """eq, lt and le of pairs."""
    fmt, codes, count = get(name), codes_of("pairs", rows), 0
    a, b = (grid(fmt).decode(column, np.float32) for column in codes.T)
    numbers = [exact.decode(code, fmt) for code in range(CODES)]
    for op in ("eq", "lt", "le"):
        each = [exact.compare(op, numbers[i], numbers[j]) for i, j in codes.tolist()]
        answers, flags = np.array(each, np.uint8).T
        got, raised = getattr(fplab, op)(a, b, fmt, flags=True)
        count += demand_same(got, answers.astype(bool), f"{name} {op}", a, b)
        demand_same(raised, flags, f"flags of {name} {op}", a, b)
    return count


def shares(quick: bool) -> list[Share]:
    """Everything about pairs of 8-bit formats: quick takes some rows."""
    oracle, found = "oracle on fractions", []
    every = tuple(mode.value for mode in Rounding)
    some = range(5, CODES, 127) if quick else range(CODES)
    for op in (*BINARY, "sqrt"):
        what = "code" if op == "sqrt" else "pair"
        claim = f"{op}, every {what} of {len(FORMATS)} formats, seven roundings, every overflow; flags"
        for fmt in FORMATS:
            rows = range(CODES) if op == "sqrt" else some
            found.append(Share(claim, oracle, arithmetic, (fmt.name, op, every, True, rows)))
        claim = f"{op}, the same with subnormals flushed"
        found += [
            Share(claim, oracle, arithmetic, (fmt.name, op, every, False, some[-1:] if quick else some))
            for fmt in FORMATS
        ]
    claim = f"eq lt le, every pair of {len(FORMATS)} formats; flags"
    return found + [Share(claim, oracle, comparisons, (fmt.name, some)) for fmt in FORMATS]


PART = Part("fp8", "every operation on every pair of every 8-bit format", shares)
