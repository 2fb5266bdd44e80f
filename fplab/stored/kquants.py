"""ggml's blocks of 256 weights: scales of scales, found by llama.cpp's searches.

A search gives a scale, and of some kinds a minimum, for each 16 or 32 weights. These become integers in units of an
FP16 number for the block, and the weights codes in units of what is left of their scale.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..kernels import ggml as kernels
from .ggml import LINEAR, folded, halves, inverse, of_halves, record, unfolded
from .record import Stored

Array = np.ndarray[Any, Any]
f32 = np.float32
# By the bits of a code: the weights of a scale, the largest code, the search's start, its steps, the largest scale.
ASYMMETRIC = {2: (16, 3, -0.5, 15, 15), 4: (32, 15, -1.0, 20, 63), 5: (32, 31, -0.5, 15, 63)}


def _nearest(x: Array) -> Array:
    """``nearest_int``: to nearest, ties to even, by the low bits of a sum, int32."""
    shifted: Array = x.astype(f32) + kernels.MAGIC
    return (shifted.view(np.int32) & 0x7FFFFF) - 0x400000


def _half(x: Array) -> Array:
    """Float32 numbers (n,) rounded to FP16, (n, 1)."""
    return of_halves(halves(x))


def _codes(x: Array, addend: Array, scale: Array, kept: Array, low: int, high: int) -> Array:
    """Codes (n, 256) in units of scales (n, scales), from 0 on; those of the search where a scale is 0."""
    codes = np.empty(kept.shape, np.uint8)
    rows = np.ascontiguousarray(x).reshape(kept.shape)
    kernels.divided(rows, addend.reshape(-1), scale.reshape(-1), kept, f32(low), f32(high), codes)
    return codes.reshape(-1, 256)


def asymmetric(x: Array, bits: int) -> Array:
    """Q2_K, Q4_K and Q5_K: codes from a minimum on."""
    size, top, start, steps, most = ASYMMETRIC[bits]
    parts = np.ascontiguousarray(x.reshape(-1, size))
    weights = np.abs(parts)
    if bits > 2:
        squares = np.zeros(len(parts), f32)
        for column in parts.T:  # in order
            squares += column * column
        weights = np.sqrt(squares / f32(size))[:, None] + weights
    scales, minima, kept = np.empty(len(parts), f32), np.empty(len(parts), f32), np.empty(parts.shape, f32)
    kernels.with_minimum(parts, weights, f32(top), f32(start), f32(0.1), steps, bits == 2, scales, minima, kept)
    integers, units = [], []
    for of in (scales.reshape(len(x), -1), minima.reshape(len(x), -1)):
        largest = np.maximum(of.max(axis=1, keepdims=True), f32(0))
        integers.append(np.minimum(_nearest(_over(most, largest) * of).astype(np.uint8), np.uint8(most)))
        units.append(largest / f32(most))
    (s, m), (d, low) = integers, units
    codes = _codes(x, _half(low) * m.astype(f32), _half(d) * s.astype(f32), kept, 0, top)
    if bits == 2:
        return np.hstack([s & np.uint8(15) | m << np.uint8(4), folded(codes, 4), halves(d), halves(low)])
    high, low_m = (of >> np.uint8(4) << np.uint8(6) for of in (s[:, 4:], m[:, 4:]))
    packed = np.hstack([s[:, :4] | high, m[:, :4] | low_m, s[:, 4:] & np.uint8(15) | m[:, 4:] << np.uint8(4)])
    fifth = [folded(codes >> np.uint8(4), 8)] if bits == 5 else []
    return np.hstack([halves(d), halves(low), packed, *fifth, folded(codes, 2)])


def _over(most: float, x: Array) -> Array:
    """``most / x``, and 0 of 0."""
    return np.where(x == 0, f32(0), f32(most) / x)


def _decode_asymmetric(data: Array, bits: int) -> Array:
    if bits == 2:
        s, m = data[:, :16] & np.uint8(15), data[:, :16] >> np.uint8(4)
        codes, d, low = unfolded(data[:, 16:80], 4), of_halves(data[:, 80:82]), of_halves(data[:, 82:84])
    else:
        first, second, third = data[:, 4:8], data[:, 8:12], data[:, 12:16]
        s = np.hstack([first & np.uint8(63), third & np.uint8(15) | first >> np.uint8(6) << np.uint8(4)])
        m = np.hstack([second & np.uint8(63), third >> np.uint8(4) | second >> np.uint8(6) << np.uint8(4)])
        codes, d, low = unfolded(data[:, -128:], 2), of_halves(data[:, :2]), of_halves(data[:, 2:4])
        codes = codes | unfolded(data[:, 16:48], 8) << np.uint8(4) if bits == 5 else codes
    scale, minimum = (d * s.astype(f32))[:, :, None], (low * m.astype(f32))[:, :, None]
    return np.asarray(scale * codes.reshape(*s.shape, -1).astype(f32) - minimum)


def _search(x: Array, search: Any, top: int) -> tuple[Array, Array, Array]:
    """The scales of 16 weights each, (n, 16), the codes of the search, and the scale of largest magnitude, (n, 1)."""
    parts = np.ascontiguousarray(x.reshape(-1, 16))
    scales, kept = np.empty(len(parts), f32), np.empty(parts.shape, f32)
    search(parts, f32(top), scales, kept)
    by_block = scales.reshape(len(x), 16)
    most = np.take_along_axis(by_block, np.abs(by_block).argmax(axis=1)[:, None], axis=1)
    return by_block, kept, most


def q3_k(x: Array) -> Array:
    """Q3_K: signed codes, and scales of six bits."""
    scales, kept, most = _search(x, kernels.refined, 4)
    iscale = _over(-32, most)
    s = np.where(most == 0, 0, np.clip(_nearest(iscale * scales), -32, 31) + 32).astype(np.uint8)
    d = inverse(iscale)
    codes = _codes(x, np.zeros_like(scales), _half(d) * (s.astype(f32) - f32(32)), kept, -4, 3)
    high = (s >> np.uint8(4)).reshape(-1, 4, 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    packed = np.hstack([s[:, :8] & np.uint8(15) | s[:, 8:] << np.uint8(4), high.sum(axis=1, dtype=np.uint8)])
    return np.hstack([folded(codes >> np.uint8(2), 8), folded(codes, 4), packed, halves(d)])


def _decode_q3_k(data: Array) -> Array:
    low, high = data[:, 96:104], data[:, 104:108]
    s = np.hstack([low & np.uint8(15), low >> np.uint8(4)])
    s = s | (np.tile(high, 4) >> np.repeat(np.array([0, 2, 4, 6], np.uint8), 4) & np.uint8(3)) << np.uint8(4)
    codes = unfolded(data[:, 32:96], 4) | unfolded(data[:, :32], 8) << np.uint8(2)
    scale = of_halves(data[:, 108:]) * (s.astype(f32) - f32(32))
    return np.asarray(scale[:, :, None] * (codes.astype(f32) - f32(4)).reshape(-1, 16, 16))


def q6_k(x: Array) -> Array:
    """Q6_K: signed codes, and scales of eight bits."""
    scales, kept, most = _search(x, kernels.signed, 32)
    nothing = np.abs(most) < kernels.LEAST
    iscale = np.where(nothing, f32(0), _over(-128, most))
    s = np.minimum(_nearest(iscale * scales), 127).astype(np.int8)
    d = inverse(iscale)
    codes = _codes(x, np.zeros_like(scales), _half(d) * s.astype(f32), kept, -32, 31)
    codes = np.where(nothing, np.uint8(0), codes)
    return np.hstack([folded(codes, 2, 64), folded(codes >> np.uint8(4), 4),
                      s.view(np.uint8), halves(d)])  # fmt: skip


def _decode_q6_k(data: Array) -> Array:
    codes = unfolded(data[:, :128], 2, 64) | unfolded(data[:, 128:192], 4) << np.uint8(4)
    scale = of_halves(data[:, 208:]) * data[:, 192:208].view(np.int8).astype(f32)
    return np.asarray(scale[:, :, None] * (codes.astype(f32) - f32(32)).reshape(-1, 16, 16))


def iq4(x: Array, super_block: bool) -> Array:
    """IQ4_NL and IQ4_XS: codes of 16 values, with seven other scales tried on both sides, as ``quantize_iq4_nl``."""
    parts = np.ascontiguousarray(x.reshape(-1, 32))
    scales, codes = np.empty(len(parts), f32), np.empty(parts.shape, f32)
    kernels.table_scales(parts, LINEAR, 7, scales)
    if not super_block:
        kernels.table_codes(parts, inverse(scales), LINEAR, codes)
        return np.hstack([halves(scales), folded(codes, 2, 16)])
    eight = scales.reshape(-1, 8)
    d = -np.take_along_axis(eight, np.abs(eight).argmax(axis=1)[:, None], axis=1) / f32(32)
    s = np.clip(_nearest(inverse(d) * eight), -32, 31)
    kernels.table_codes(parts, inverse((d * s).astype(f32)).reshape(-1), LINEAR, codes)
    s = (s + 32).astype(np.uint8)
    high = (s >> np.uint8(4)).astype(np.uint16) << np.arange(0, 16, 2, dtype=np.uint16)
    high = high.sum(axis=1, dtype=np.uint16).astype("<u2").view(np.uint8).reshape(-1, 2)
    low = s[:, 0::2] & np.uint8(15) | s[:, 1::2] << np.uint8(4)
    return np.hstack([halves(d), high, low, folded(codes.reshape(len(x), 256), 2, 16)])


def _decode_iq4(data: Array, super_block: bool) -> Array:
    values = LINEAR[unfolded(data[:, -128 if super_block else -16 :], 2, 16)].reshape(len(data), -1, 32)
    if not super_block:
        return np.asarray(values * of_halves(data[:, :2])[:, :, None])
    high = np.ascontiguousarray(data[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    low = np.stack([data[:, 4:8] & np.uint8(15), data[:, 4:8] >> np.uint8(4)], axis=2).reshape(-1, 8)
    scale = of_halves(data[:, :2]) * (low.astype(f32) + f32(16) * high.astype(f32) - f32(32))
    return np.asarray(scale[:, :, None] * values)


RECORDS: tuple[Stored, ...] = (
    *(
        record(f"q{bits}_k", partial(asymmetric, bits=bits), partial(_decode_asymmetric, bits=bits))
        for bits in (2, 4, 5)
    ),
    record("q3_k", q3_k, _decode_q3_k),
    record("q6_k", q6_k, _decode_q6_k),
    record("iq4_nl", partial(iq4, super_block=False), partial(_decode_iq4, super_block=False)),
    record("iq4_xs", partial(iq4, super_block=True), partial(_decode_iq4, super_block=True)),
)
"""Their records."""
