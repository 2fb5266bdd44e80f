"""Many independent dot rows through one matrix instruction: d = sum of a*b, plus c, for codes a, b (N, K) and c (N,).

A tile's B takes 8 rows as its columns, its A the same 8 rows again and again, and row r's result stands at (i, j) with
i % 8 = j = r. It stands there m/8 times, and all copies must agree.
"""

from typing import Any

import numpy as np

from .. import numeric, seeds
from ..errors import LabError
from .cases import Arrays
from .environment import torch_for
from .instructions import Instruction, Launcher

CODES = {
    "fp16": np.uint16, "bf16": np.uint16, "tf32": np.uint32, "fp32": np.uint32, "fp64": np.uint64,
    "e4m3": np.uint8, "e5m2": np.uint8, "e4m3fnuz": np.uint8, "e5m2fnuz": np.uint8, "e8m0": np.uint8,
    "e3m2": np.uint8, "e2m3": np.uint8, "e2m1": np.uint8,
    "int8": np.uint8, "int32": np.uint32,
}  # fmt: skip
SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}  # torch takes these from numpy
Codes = np.ndarray[Any, Any]


def to_device(codes: Codes, device: str) -> Any:
    """Codes as a tensor of signed integers of the same bits."""
    torch = torch_for(device)
    return torch.from_numpy(np.ascontiguousarray(codes).view(SIGNED[codes.itemsize])).to(device)


def to_host(tensor: Any, dtype: Any) -> Codes:
    codes: Codes = tensor.cpu().contiguous().numpy().view(dtype)
    return codes


def product(mma: Instruction, a: Codes, b: Codes, c: Codes, device: str, launcher: Launcher) -> Codes:
    """Whole tiles: a (T, m, K), b (T, n, K) (columns of B), c (T, m, n) give d (T, m, n), all codes."""
    tiles, rows, k = a.shape
    if a.dtype != CODES[mma.a] or b.dtype != CODES[mma.b] or c.dtype != CODES[mma.output]:
        raise LabError(f"{mma.name} takes {mma.a}, {mma.b} and {mma.output}; given {a.dtype}, {b.dtype}, {c.dtype}.")
    if rows != mma.m or b.shape != (tiles, mma.n, k) or c.shape != (tiles, mma.m, mma.n) or k % mma.k or k == 0:
        raise LabError(f"{mma.name} cannot take tiles of shapes {a.shape}, {b.shape} and {c.shape}.")
    if k // mma.k > mma.max_steps:
        raise LabError(f"{mma.name} takes at most {mma.max_steps * mma.k} products here; given {k}.")
    x, y, z = (to_device(v, device) for v in (a, b, c))
    out = torch_for(device).full_like(z, -1)  # a pattern that no finite result has, should a lane not write
    launcher.launch(mma.kernel, tiles, mma.threads, [x, y, z, out, k // mma.k])
    return to_host(out, c.dtype)


def dot_rows(mma: Instruction, a: Codes, b: Codes, c: Codes, device: str, launcher: Launcher) -> Codes:
    """Rows: a, b (N, K) and c (N,) give d (N,), all codes; an error where copies of a row disagree."""
    count, k = a.shape
    groups = -(-count // mma.n)
    pad = groups * mma.n - count
    a, b, c = (np.concatenate([x, np.zeros((pad, *x.shape[1:]), x.dtype)]) for x in (a, b, c))
    copies = mma.m // mma.n
    x = np.tile(a.reshape(groups, mma.n, k), (1, copies, 1))
    z = np.zeros((groups, mma.m, mma.n), c.dtype)
    row, column = np.arange(mma.m), np.arange(mma.m) % mma.n
    z[:, row, column] = np.tile(c.reshape(groups, mma.n), (1, copies))
    d = product(mma, x, b.reshape(groups, mma.n, k), z, device, launcher)
    results = d[:, row, column].reshape(groups, copies, mma.n)
    if (results != results[:, :1]).any():
        at = int(np.flatnonzero((results != results[:, :1]).any(axis=1).ravel())[0])
        raise LabError(f"{mma.name}: row {at} gives different bits in different rows of its tile.")
    return np.ascontiguousarray(results[:, 0].reshape(-1)[:count])


# --- the layout of fragments ------------------------------------------------------------------------------------
def layout_operands(mma: Instruction, key: int) -> Arrays:
    """Tiles that show whether every element is where the kernel believes: small integers, exact in every format.

    The first 8 tiles are random integers from -4 to 4 with such a C. Tile 8 + k has only column k of A and row k of B,
    so that an element of A that meets the wrong element of B cannot hide in a sum.
    """
    raw = seeds.bits(8 * (mma.m * mma.k + mma.n * mma.k + mma.m * mma.n), key) >> np.uint64(33)
    values = (raw % np.uint64(9)).astype(np.int64) - 4
    sizes = np.cumsum([8 * mma.m * mma.k, 8 * mma.n * mma.k])
    a, b, c = (v.reshape(8, *s) for v, s in zip(np.split(values, sizes), _shapes(mma), strict=True))
    hot = np.eye(mma.k, dtype=np.int64)[:, None, :]
    rows, columns = np.arange(mma.m)[None, :, None] % 4 + 1, np.arange(mma.n)[None, :, None] % 3 + 1
    a = np.concatenate([a, hot * rows])
    b = np.concatenate([b, hot * columns])
    c = np.concatenate([c, np.zeros((mma.k, mma.m, mma.n), np.int64)])
    return {"a": small_codes(a, mma.a), "b": small_codes(b, mma.b), "c": small_codes(c, mma.output)}


def _shapes(mma: Instruction) -> tuple[tuple[int, int], ...]:
    return (mma.m, mma.k), (mma.n, mma.k), (mma.m, mma.n)


def layout_results(mma: Instruction, given: Arrays) -> Codes:
    """What those tiles give, in integers: no rounding can happen."""
    a, b, c = (small_integers(given[n], f) for n, f in (("a", mma.a), ("b", mma.b), ("c", mma.output)))
    return small_codes(np.einsum("tmk,tnk->tmn", a, b) + c, mma.output)


def small_codes(integers: np.ndarray, fmt: str) -> Codes:
    """Integers of at most 11 bits as codes of a format that has them."""
    if fmt in ("int8", "int32"):
        return integers.astype(np.int32).view(np.uint32).astype(CODES[fmt])
    if fmt in ("fp64", "fp32", "tf32"):
        return integers.astype(np.float64 if fmt == "fp64" else np.float32).view(CODES[fmt])
    return np.asarray(numeric.encode(integers.astype(np.float32), fmt))


def small_integers(codes: Codes, fmt: str) -> np.ndarray:
    """Codes of small integers as int64: the reverse of :func:`small_codes`."""
    if fmt in ("int8", "int32"):
        return codes.view(np.int8 if fmt == "int8" else np.int32).astype(np.int64)
    if fmt in ("fp64", "fp32", "tf32"):
        return codes.view(np.float64 if fmt == "fp64" else np.float32).astype(np.int64)
    return np.asarray(numeric.decode(codes, fmt)).astype(np.int64)
