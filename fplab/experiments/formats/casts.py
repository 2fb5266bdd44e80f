"""GPU cases of the atlas: casts between all formats that torch has, every code and every boundary.

``emulate`` must give the bits of torch, so what torch does differently from IEEE 754 and the OCP formats is here, by
name: :func:`.tensors.overflow_of` and :func:`torch_e8m0`. This file imports with numpy alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...formats import Format, get
from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.environment import torch_for
from ...hardware.tensors import overflow_of

TORCH = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e8m0": "float8_e8m0fnu",
}
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32}
SIGNED = {8: np.int8, 16: np.int16, 32: np.int32}  # torch reads these from numpy
KEY = 20202
INFINITY_BITS = 0x7F800000
SPECIAL = np.array(
    [0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, INFINITY_BITS, 0x7F800001, 0x7FA00000, 0x7FC00000, 0x7FFFFFFF], np.uint32
)  # zero, subnormals, the smallest normal, the largest, infinity, signalling and quiet NaNs


def cases(random: int, stride: int) -> tuple[Case, ...]:
    """A case a source format, with an output for every other format.

    Sources of at most 16 bits give all their codes; float32 gives :func:`float32_sample`.
    """
    return tuple(
        Case(
            name=f"casts-from-{source}",
            inputs=partial(float32_sample, random, stride) if source == "fp32" else partial(every_code, source),
            compute=partial(cast, source),
            emulate=partial(expected, source),
            formats={target: target for target in TORCH if target != source},
        )
        for source in TORCH
    )


# --- inputs ---------------------------------------------------------------------------------------------------------


def every_code(source: str) -> Arrays:
    """All codes of a format, ascending."""
    bits = get(source).bits
    return {"codes": np.arange(1 << bits, dtype=np.uint32).astype(UNSIGNED[bits])}


def float32_sample(random: int, stride: int) -> Arrays:
    """Boundaries of every narrower format with their neighbours, specials, and ``random`` random patterns.

    Of the boundaries of 16-bit formats every ``stride``-th is taken, of 8-bit formats all.
    """
    near = np.concatenate([boundaries(get(name), stride) for name in TORCH if name != "fp32"])
    near = np.unique(np.concatenate([near, SPECIAL]))
    bits = np.concatenate([near, near | np.uint32(0x80000000), philox_bits(KEY, random)])
    return {"codes": bits.astype(np.uint32)}


def boundaries(fmt: Format, stride: int) -> np.ndarray:
    """float32 bits of a format's values, the midpoints between them (one beyond the largest too), and neighbours."""
    codes = np.arange(0, fmt.max_code + 2, stride if fmt.bits > 8 else 1, dtype=np.int64)
    if fmt.bits > 8:  # the ends, whatever the stride
        ends = [0, 1, 2, (1 << fmt.fraction_bits) - 1, 1 << fmt.fraction_bits, fmt.max_code - 1, fmt.max_code]
        codes = np.union1d(codes, ends)
    low, high = magnitudes(codes, fmt), magnitudes(codes + 1, fmt)
    points = np.concatenate([low, (low + high) / 2])
    points = points[points < 2.0**128].astype(np.float32).view(np.uint32).astype(np.int64)  # exact: at most 12 bits
    around = np.concatenate([points - 1, points, points + 1])
    return np.unique(around[(around >= 0) & (around <= INFINITY_BITS)]).astype(np.uint32)


def magnitudes(codes: np.ndarray, fmt: Format) -> np.ndarray:
    """The values of magnitude codes as float64, as if the exponent field had no upper end."""
    field, fraction = codes >> fmt.fraction_bits, codes & ((1 << fmt.fraction_bits) - 1)
    subnormal = (field == 0) & fmt.zero
    significand = np.where(subnormal, fraction, fraction + (1 << fmt.fraction_bits))
    exponent = np.where(subnormal, 0, field - int(fmt.zero)) + fmt.emin - fmt.fraction_bits
    values: np.ndarray = np.ldexp(significand.astype(np.float64), exponent)
    return values


# --- torch ----------------------------------------------------------------------------------------------------------


def cast(source: str, inputs: Arrays, device: str) -> Arrays:
    """What torch makes of the codes on a device."""
    torch = torch_for(device)
    bits = get(source).bits
    tensor = torch.from_numpy(inputs["codes"].view(SIGNED[bits])).to(device).view(getattr(torch, TORCH[source]))
    return {
        target: codes_of(torch, tensor.to(getattr(torch, name))) for target, name in TORCH.items() if target != source
    }


def codes_of(torch: Any, tensor: Any) -> np.ndarray:
    """The bits of a tensor as unsigned integers."""
    bits = 8 * tensor.element_size()
    signed: np.ndarray = tensor.view(getattr(torch, f"int{bits}")).cpu().numpy()
    codes: np.ndarray = signed.view(UNSIGNED[bits])
    return codes


# --- the lab, with what torch does differently ----------------------------------------------------------------------


def expected(source: str, inputs: Arrays, meta: Meta) -> Arrays:
    """What the lab says that the torch of ``meta`` makes of the codes."""
    from ...floats import decode

    values = decode(inputs["codes"], source, np.float32)
    return {target: torch_cast(values, target, str(meta["torch"])) for target in TORCH if target != source}


def torch_cast(values: np.ndarray, target: str, version: str) -> np.ndarray:
    """float32 values as codes of ``target``, as torch of that version casts them."""
    from ...floats import encode

    if target == "e8m0":
        return torch_e8m0(values.view(np.uint32))
    codes: np.ndarray = encode(values, target, overflow=overflow_of(target, version))
    return codes


def torch_e8m0(bits: np.ndarray) -> np.ndarray:
    """float32 bits as torch's E8M0 codes. Three things differ from a rounding to nearest of the number itself.

    The sign is dropped (-1 gives 127) and zero gives 2^-127, where the lab says NaN for both: E8M0 has neither. And
    what lies strictly between 2^-127 and 1.5 * 2^-127 goes up to 2^-126, not down to the nearer 2^-127 (ml_dtypes
    does that too), because float32 holds it as a subnormal: its highest bit is read as the first bit to be rounded.
    """
    field = (bits >> np.uint32(23)) & np.uint32(0xFF)
    rest = bits & np.uint32(0x007FFFFF)
    half = np.uint32(0x00400000)
    up = (rest > half) | ((rest == half) & (field > 0))
    code = np.where(field == 255, field, field + up)
    return code.astype(np.uint8)
