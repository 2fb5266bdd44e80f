"""ggml's blocks, in the bytes of llama.cpp's reference functions (``ggml-quants.c``, ``quantize_row_*_ref``).

A block is a structure of C: scales as FP16, then codes, those of its first half in the low bits. All arithmetic is in
FP32, each operation rounded. ``roundf`` rounds ties away from zero; a cast to an integer drops the fraction.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import numpy as np

from ..kernels import ggml as kernels
from .record import Stored

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


def truncated(x: Array) -> Array:
    """``(int8_t) x``: the fraction dropped; what is beyond an integer is 0, as on x86."""
    return x.astype(np.int32).astype(np.int8)


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


def symmetric(x: Array, bits: int) -> Array:
    """Q4_0 and Q5_0: the element of largest magnitude becomes the lowest code."""
    middle = 1 << (bits - 1)
    d = largest(x) / f32(-middle)
    codes = np.minimum(truncated(x * inverse(d) + f32(middle + 0.5)), np.int8(2 * middle - 1))
    return np.hstack([halves(d), *_parted(codes, bits)])


def with_minimum(x: Array, bits: int) -> Array:
    """Q4_1 and Q5_1: codes of the distance from the smallest element, of zeros the first."""
    low = np.take_along_axis(x, x.argmin(axis=1)[:, None], axis=1)
    d = (x.max(axis=1, keepdims=True) - low) / f32((1 << bits) - 1)
    codes = truncated((x - low) * inverse(d) + f32(0.5))
    codes = np.minimum(codes, np.int8(15)) if bits == 4 else codes
    return np.hstack([halves(d), halves(low), *_parted(codes, bits)])


def _parted(codes: Array, bits: int) -> list[Array]:
    """The bytes of codes: of five bits the fifth ones first."""
    codes = codes.view(np.uint8)
    return [*([np.packbits(codes >> 4 & 1, axis=1, bitorder="little")] if bits == 5 else []), folded(codes, 2, 16)]


def _codes(data: Array, bits: int) -> Array:
    """The codes of those bytes, float32."""
    codes = unfolded(data[:, -16:], 2, 16)
    if bits == 5:
        codes |= np.unpackbits(data[:, -20:-16], axis=1, bitorder="little") << 4
    return codes.astype(f32)


def q8_0(x: Array) -> Array:
    """Q8_0: the largest magnitude becomes 127."""
    d = np.abs(largest(x)) / f32(127)
    steps = x * inverse(d)
    steps += np.copysign(np.nextafter(f32(0.5), f32(0)), steps)  # so that dropping the fraction is ``roundf``
    return np.hstack([halves(d), truncated(steps).view(np.uint8)])


LINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], f32)  # IQ4_NL's values
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12], f32)  # twice E2M1's, so that all are integers


def mxfp4(x: Array) -> Array:
    """MXFP4: a power of two that makes the largest exponent E2M1's, and the nearest value, of two the first."""
    amax = np.abs(largest(x))
    logarithm = np.log2(np.where(amax > 0, amax, 1).astype(np.float64)).astype(f32)  # which may round to the next one
    e = np.where(amax > 0, np.floor(logarithm) + 125, 0).astype(np.int64).astype(np.uint8)
    middles = (E2M1[1:] + E2M1[:-1]) / f32(2)
    codes = np.searchsorted(middles, np.abs(x) / half_power(e)).astype(np.uint8)
    return np.hstack([e, folded(codes | ((x < 0) & (codes > 0)).astype(np.uint8) << np.uint8(3), 2, 16)])


def half_power(e: Array) -> Array:
    """Half of what an E8M0 code stands for."""
    return np.ldexp(f32(1), e.astype(np.int32) - 128)


def _decode_symmetric(data: Array, bits: int) -> Array:
    return (_codes(data, bits) - f32(1 << (bits - 1))) * of_halves(data[:, :2])


def _decode_minimum(data: Array, bits: int) -> Array:
    return _codes(data, bits) * of_halves(data[:, :2]) + of_halves(data[:, 2:4])


def _decode_q8_0(data: Array) -> Array:
    return data[:, 2:].view(np.int8).astype(f32) * of_halves(data[:, :2])


def _decode_mxfp4(data: Array) -> Array:
    return np.concatenate([E2M1, -E2M1])[unfolded(data[:, 1:], 2, 16)] * half_power(data[:, :1])


def record(name: str, encoder: Any, decoder: Any, bits: int | None = None) -> Stored:
    """The record of one of ggml's kinds; ``bits``: an argument of both functions."""
    block, size = next((block, size) for known, block, size in GGML.values() if known == name)
    if bits is not None:
        encoder, decoder = partial(encoder, bits=bits), partial(decoder, bits=bits)
    return Stored(name, block, size, encoder, decoder, SOURCE)


RECORDS = (
    record("q4_0", symmetric, _decode_symmetric, 4),
    record("q4_1", with_minimum, _decode_minimum, 4),
    record("q5_0", symmetric, _decode_symmetric, 5),
    record("q5_1", with_minimum, _decode_minimum, 5),
    record("q8_0", q8_0, _decode_q8_0),
    record("mxfp4_ggml", mxfp4, _decode_mxfp4),
)
"""Their records."""
