"""Part ``pairs``: +, -, * and / of every pair of FP16 numbers, 2**32 each."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch

import fplab

from . import half
from .shares import Part, Share, cut, demand_same

Array = np.ndarray[Any, Any]
CODES = 1 << 16
ROWS = 16  # left operands at a time, each with all right ones: 2**20 pairs, which take the loops past the cache
TORCH = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}


@lru_cache(maxsize=1)
def values() -> Array:
    """The float32 value of every code."""
    return half.decode_all().view(np.float32)


def pairs(first: int) -> tuple[Array, Array]:
    """The operands of the block of pairs whose left codes begin at ``first``."""
    return np.repeat(values()[first : first + ROWS], CODES), np.tile(values(), ROWS)


def fast_route(op: str, numbers: range) -> int:
    """The public function without flags (float32 arithmetic and one more rounding) against integers."""
    codes, want = np.arange(CODES, dtype=np.int64), np.empty(ROWS * CODES, np.uint16)
    out, count, function = np.empty(ROWS * CODES, np.float32), 0, getattr(fplab, op)
    for number in numbers:
        for row in range(ROWS):
            half.operate(half.OPERATIONS.index(op), number * ROWS + row, codes, want[row * CODES : (row + 1) * CODES])
        a, b = pairs(number * ROWS)
        got = function(a, b, "fp16", out=out)
        count += demand_same(got, values()[want], f"fp16 {op}", a, b)
    return count


def with_torch(op: str, numbers: range) -> int:
    """The public function against torch's half tensors on the CPU; every NaN counts as the canonical one."""
    every = torch.from_numpy(np.arange(CODES, dtype=np.uint16).view(np.float16))
    out, count, function = np.empty(ROWS * CODES, np.float32), 0, getattr(fplab, op)
    for number in numbers:
        left = every[number * ROWS : (number + 1) * ROWS]
        theirs = TORCH[op](left[:, None], every[None, :]).reshape(-1).numpy().view(np.uint16)
        a, b = pairs(number * ROWS)
        got = function(a, b, "fp16", out=out)
        count += demand_same(got, values()[theirs], f"fp16 {op} and torch", a, b)
    return count


def integer_route(op: str, numbers: range) -> int:
    """The general kernel, which ``flags=True`` takes, against the fast one, proven by the other shares."""
    count, function = 0, getattr(fplab, op)
    for number in numbers:
        a, b = pairs(number * ROWS)
        got, _ = function(a, b, "fp16", flags=True)
        count += demand_same(got, function(a, b, "fp16"), f"fp16 {op} with flags", a, b)
    return count


def decoding() -> int:
    """Every code's value, on which the other shares rest, against the lab's decode and numpy's."""
    codes = np.arange(CODES, dtype=np.uint16)
    ours, theirs = fplab.decode(codes, "fp16"), codes.view(np.float16).astype(np.float32)
    numeric = ~np.isnan(values())
    assert np.array_equal(np.isnan(ours), ~numeric)
    demand_same(theirs[numeric], values()[numeric], "numpy's decode", codes[numeric])
    return demand_same(ours[numeric], values()[numeric], "decode of fp16", codes[numeric])


def shares(quick: bool) -> list[Share]:
    """Everything about pairs of FP16."""
    blocks = CODES // ROWS
    found = [Share("decode fp16, every number", "fields; numpy", decoding, ())]
    for op in half.OPERATIONS:
        parts = cut(blocks, 16, quick, 4)
        found += [Share(f"fp16 {op}, every pair", "integers (half.py)", fast_route, (op, part)) for part in parts]
        parts = cut(blocks, 4, quick, 4)
        found += [Share(f"fp16 {op}, every pair", "torch half, CPU", with_torch, (op, part)) for part in parts]
        parts = cut(blocks, 0, quick) if quick else [range(17 * first, blocks, 17 * 8) for first in range(8)]
        claim = f"fp16 {op}, with flags, 1 pair in 17"
        found += [Share(claim, "the public route above", integer_route, (op, part)) for part in parts]
    return found


PART = Part("pairs", "every pair of FP16 numbers", shares)
