"""INT4: two codes a byte, and weights in groups along the input dimension, each group with its own scale."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import as_array
from ..errors import LabError, integer, quotes_call
from .affine import Affine, Array, affine, demand_sign, dequantize, floats, quantize, symmetric
from .grids import Grid, GridLike, get


@quotes_call
def pack_int4(codes: Any) -> Array:
    """Codes from -8 to 7 (or 0 to 15) packed along the last axis, two a byte: uint8 (..., ceil(n / 2)).

    The first of two is the low half of the byte; negative codes are two's complement. A last odd one is alone.

    >>> [hex(b) for b in pack_int4([1, -2, 7])]
    ['0xe1', '0x7']
    """
    x = as_array(codes, "codes")
    if x.dtype.kind not in "iu" or x.ndim < 1:
        raise LabError(f"codes are {x.dtype} of shape {x.shape}; they must be an array of integers.")
    if x.size and not ((x.min() >= -8 and x.max() <= 7) or (x.min() >= 0 and x.max() <= 15)):
        raise LabError(f"codes range from {x.min()} to {x.max()}; four bits hold -8 to 7 or 0 to 15.")
    nibbles = x.astype(np.int16).astype(np.uint8) & np.uint8(15)
    if x.shape[-1] % 2:
        nibbles = np.concatenate([nibbles, np.zeros((*x.shape[:-1], 1), np.uint8)], axis=-1)
    return np.asarray(nibbles[..., 0::2] | nibbles[..., 1::2] << np.uint8(4))


@quotes_call
def unpack_int4(packed: Any, n: int, signed: bool = True) -> Array:
    """The ``n`` codes of the last axis again: int8 (..., n), or uint8 if not ``signed``.

    >>> unpack_int4(pack_int4([1, -2, 7]), 3).tolist()
    [1, -2, 7]
    """
    x = as_array(packed, "packed")
    if x.dtype != np.uint8 or x.ndim < 1:
        raise LabError(f"packed is {x.dtype} of shape {x.shape}; it must be uint8, two codes a byte.")
    n = integer("n", n, 2 * x.shape[-1] - 1 if x.shape[-1] else 0, 2 * x.shape[-1], " (two codes a byte)")
    both = np.stack([x & np.uint8(15), x >> np.uint8(4)], axis=-1).reshape(*x.shape[:-1], -1)[..., :n]
    return (both ^ np.uint8(8)).astype(np.int8) - np.int8(8) if signed else np.ascontiguousarray(both)


@dataclass(frozen=True, eq=False)
class Groups:
    """A weight matrix (N, K) in INT4: ``packed`` uint8 (N, ceil(K / 2)), a scale and a zero point for each group of k.

    ``scale`` float32 and ``zero_point`` int32 are (N, ceil(K / group)).
    """

    packed: Array
    scale: Array
    zero_point: Array
    k: int
    group: int
    grid: Grid

    def codes(self) -> Array:
        """The codes one a byte, (N, K)."""
        return np.asarray(unpack_int4(self.packed, self.k, self.grid.signed))

    def values(self) -> Array:
        """The weights as float32 (N, K)."""
        scale, zero = (np.repeat(v, self.group, axis=1)[:, : self.k] for v in (self.scale, self.zero_point))
        return dequantize(self.codes(), Affine(scale, zero, self.grid))

    @property
    def bytes(self) -> int:
        """In a file: half a byte a weight and 2 bytes (FP16) a scale; with zero points half a byte more a group."""
        zero_points = 0 if not self.zero_point.any() else -(-self.zero_point.size // 2)
        return int(self.packed.size + 2 * self.scale.size + zero_points)


@quotes_call
def quantize_groups(w: Any, group: int = 128, grid: GridLike = "int4", zero_point: bool = False) -> Groups:
    """Quantise weights (N, K) in groups of ``group`` along K; the last group of a row may be shorter.

    ``grid``: one of at most 4 bits. ``zero_point``: groups with a zero point ("int4_full" or "uint4" then use all
    their codes). Scales are kept in FP32 here.
    """
    v, form = floats(w, "w"), get(grid)
    if v.ndim != 2 or not v.size:
        raise LabError(f"w has shape {v.shape}; weights are (N, K) with at least one element.")
    if form.bits > 4:
        raise LabError(f"grid {form.name} has {form.bits} bits; two codes a byte need at most 4.")
    size = min(integer("group", group, 1, 2**31), v.shape[1])
    parts = -(-v.shape[1] // size)
    padded = np.zeros((v.shape[0], parts * size), np.float32)  # a zero widens no range: zero is always a code
    padded[:, : v.shape[1]] = v
    blocks = padded.reshape(v.shape[0], parts, size)
    if zero_point:
        how = affine(blocks.min(axis=2, keepdims=True), blocks.max(axis=2, keepdims=True), form)
    else:
        demand_sign(v, form)
        how = symmetric(np.abs(blocks).max(axis=2, keepdims=True), form)
    codes = quantize(blocks, how).reshape(padded.shape)[:, : v.shape[1]]
    return Groups(pack_int4(codes), how.scale[..., 0], how.zero_point[..., 0], v.shape[1], size, form)
