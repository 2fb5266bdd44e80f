"""ggml's blocks, in the bytes of llama.cpp's reference functions (``ggml-quants.c``, ``quantize_row_*_ref``).

A block is a structure of C: scales as FP16, then codes, those of its first half in the low bits. All arithmetic is in
FP32, each operation rounded. ``roundf`` rounds ties away from zero; a cast to an integer drops the fraction.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import numpy as np

from ..kernels import ggml as kernels
from .record import Coder, Stored

Array = np.ndarray[Any, Any]
f32 = np.float32
SOURCE = "llama.cpp, ggml-quants.c"
# By ggml's number: the name, the elements of a block, its bytes.
GGML: dict[int, tuple[str, int, int]] = {
    0: ("fp32", 1, 4), 1: ("fp16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 40), 10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144), 13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136),
    24: ("int8", 1, 1), 25: ("int16", 1, 2), 26: ("int32", 1, 4), 27: ("int64", 1, 8), 28: ("fp64", 1, 8),
    29: ("iq1_m", 256, 56), 30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66),
    39: ("mxfp4_ggml", 32, 17), 40: ("nvfp4_ggml", 64, 36), 41: ("q1_0", 128, 18),
}  # fmt: skip
"""The kinds of tensors in GGUF files by ggml's numbers: name, elements of a block, its bytes."""


def halves(x: Array) -> Array:
    """Float32 values (n,) as the two bytes of FP16 each, uint8 (n, 2)."""
    return x.astype("<f2").view(np.uint8).reshape(-1, 2)


def of_halves(data: Array) -> Array:
    """The float32 values of FP16 in the columns of bytes, (n, 1)."""
    return np.ascontiguousarray(data).view("<f2").astype(f32)


def folded(codes: Array, parts: int, width: int = 32) -> Array:
    """Codes of 8 / parts bits in bytes, (n, m): of each parts * width codes the first ``width`` in the lowest bits."""
    bits = (codes.astype(np.uint8) & np.uint8(2 ** (8 // parts) - 1)).reshape(-1, parts, width)
    joined = reduce(np.bitwise_or, (bits[:, i] << np.uint8(i * 8 // parts) for i in range(parts)))
    return np.asarray(joined).reshape(len(codes), -1)


def unfolded(data: Array, parts: int, width: int = 32) -> Array:
    """The codes again, uint8."""
    shifts = np.arange(parts, dtype=np.uint8)[:, None] * np.uint8(8 // parts)
    bits = data.reshape(-1, 1, width) >> shifts & np.uint8(2 ** (8 // parts) - 1)
    return np.asarray(bits.reshape(len(data), -1))


def inverse(d: Array) -> Array:
    """1 / d, and 0 of 0."""
    return np.where(d == 0, f32(0), f32(1) / d)


def largest(x: Array) -> Array:
    """The first element of largest magnitude in each row, (n, 1), with its sign; of zeros +0, as C begins with it."""
    out = np.empty((len(x), 1), f32)
    kernels.largest_of_rows(np.ascontiguousarray(x), out)
    return out + f32(0)


def _steps(x: Array, low: Array, d: Array, addend: float, most: int, away: bool = False) -> Array:
    """Codes, int8: how many ``d`` an element is above ``low``."""
    codes = np.empty(x.shape, np.int8)
    kernels.steps(np.ascontiguousarray(x), low[:, 0], inverse(d)[:, 0], f32(addend), away, np.int8(most), codes)
    return codes


def symmetric(x: Array, bits: int) -> tuple[Array, ...]:
    """Q4_0 and Q5_0: the element of largest magnitude becomes the lowest code."""
    middle = 1 << (bits - 1)
    d = largest(x) / f32(-middle)
    return _steps(x, np.zeros_like(d), d, middle + 0.5, 2 * middle - 1), d


def with_minimum(x: Array, bits: int) -> tuple[Array, ...]:
    """Q4_1 and Q5_1: codes of the distance from the smallest element, of zeros the first."""
    low = np.take_along_axis(x, x.argmin(axis=1)[:, None], axis=1)
    d = (x.max(axis=1, keepdims=True) - low) / f32((1 << bits) - 1)
    return _steps(x, low, d, 0.5, 15 if bits == 4 else 127), d, low


def of_bytes(x: Array, bits: int) -> tuple[Array, ...]:
    """Q8_0: the largest magnitude becomes 127, and ``roundf`` ends a step away from zero from its half on."""
    d = np.abs(largest(x)) / f32(127)
    return _steps(x, np.zeros_like(d), d, float(np.nextafter(f32(0.5), f32(0))), 127, away=True), d


def _linear(codes: Array, bits: int, scales: Array) -> Array:
    """The values of codes, int8, by a scale and perhaps a minimum of each row, in two bytes each."""
    d = of_halves(scales[:, :2])[:, 0]
    low = of_halves(scales[:, 2:])[:, 0] if scales.shape[1] > 2 else np.full_like(d, -0.0)  # which changes no product
    middle = 0 if bits == 8 or scales.shape[1] > 2 else 1 << (bits - 1)
    out = np.empty(codes.shape, f32)
    kernels.linear(codes, f32(middle), d, low, out)
    return out


def _encode(search: Any, bits: int, x: Array) -> Array:
    codes, *scales = search(x, bits)
    return np.hstack([*map(halves, scales), *_parted(codes.view(np.uint8), bits)])


def _round(search: Any, bits: int, x: Array) -> Array:
    codes, *scales = search(x, bits)
    return _linear(codes, bits, np.hstack([*map(halves, scales)]))


def _decode(search: Any, bits: int, data: Array) -> Array:
    size = 2 + 2 * (search is with_minimum)
    if bits == 8:
        return _linear(data[:, size:].view(np.int8), bits, data[:, :size])
    codes = unfolded(data[:, -16:], 2, 16)
    if bits == 5:
        codes |= np.unpackbits(data[:, -20:-16], axis=1, bitorder="little") << 4
    return _linear(codes.view(np.int8), bits, data[:, :size])


def _parted(codes: Array, bits: int) -> list[Array]:
    """The bytes of codes: of five bits the fifth ones first."""
    if bits == 8:
        return [codes]
    return [*([np.packbits(codes >> 4 & 1, axis=1, bitorder="little")] if bits == 5 else []), folded(codes, 2, 16)]


LINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], f32)  # IQ4_NL's values
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12], f32)  # twice E2M1's, so that all are integers


def mxfp4(x: Array) -> Array:
    """MXFP4: a power of two that makes the largest exponent E2M1's, and the nearest value, of two the first."""
    amax = np.abs(largest(x))
    logarithm = np.log2(np.where(amax > 0, amax, 1).astype(np.float64)).astype(f32)  # which may round to the next one
    e = np.where(amax > 0, np.floor(logarithm) + 125, 0).astype(np.int64).astype(np.uint8)
    middles = (E2M1[1:] + E2M1[:-1]) / f32(2)
    size = np.abs(x) / half_power(e)
    codes = reduce(np.add, ((size > middle).view(np.uint8) for middle in middles))
    return np.hstack([e, folded(codes | ((x < 0) & (codes > 0)).astype(np.uint8) << np.uint8(3), 2, 16)])


def half_power(e: Array) -> Array:
    """Half of what an E8M0 code stands for."""
    return np.ldexp(f32(1), e.astype(np.int32) - 128)


def _decode_mxfp4(data: Array) -> Array:
    return np.concatenate([E2M1, -E2M1])[unfolded(data[:, 1:], 2, 16)] * half_power(data[:, :1])


def record(name: str, encoder: Coder, decoder: Coder, rounder: Coder | None = None) -> Stored:
    """The record of one of ggml's kinds."""
    block, size = next((block, size) for known, block, size in GGML.values() if known == name)
    return Stored(name, block, size, encoder, decoder, SOURCE, rounder)


KINDS = {"q4_0": (symmetric, 4), "q4_1": (with_minimum, 4), "q5_0": (symmetric, 5), "q5_1": (with_minimum, 5),
         "q8_0": (of_bytes, 8)}  # fmt: skip
RECORDS = (
    *(record(name, *(partial(way, *kind) for way in (_encode, _decode, _round))) for name, kind in KINDS.items()),
    record("mxfp4_ggml", mxfp4, _decode_mxfp4),
)
"""Their records."""
