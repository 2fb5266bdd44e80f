"""Vectors of layouts in which a weight lies in several tensors: a row is a small weight, its columns the tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from .. import numeric
from ..codebooks import dynamic
from ..hardware.operands import Draw
from ..stored import Packed
from ..stored.packed import BNB

Array = np.ndarray[Any, Any]
SHAPE, GROUP = (8, 32), 16  # outputs and inputs of a row's weight, and inputs that share a scale where that is open
SCALES: dict[str, tuple[str, str, str]] = {
    **dict.fromkeys(("gptq", "gptq_v2", "awq"), ("fp16", "fp16", "fp16")),
    **dict.fromkeys(("pack_quantized", "int8_row", "e4m3_row"), ("fp32", "bf16", "bf16")),
    **dict.fromkeys(("nvfp4_pack", "e4m3_block"), ("fp32", "fp32", "bf16")), "llm_int8": ("fp32", "fp32", "fp16"),
}  # fmt: skip
"""Formats: of a layout's scales where it is written, where it is read, and to which values are rounded; else FP32."""
E4M3 = ("e4m3_row weight", "e4m3_block weight", "torchao _weight_qdata", "nvfp4_pack weight_scale")
OFFSET = "nested_offset"  # of bitsandbytes' state, a column; what else it says stands in the header
BYTES, FLOATS = np.zeros(SHAPE, np.int8), np.zeros(SHAPE, np.float32)
UNWRITTEN: dict[str, dict[str, Array]] = {
    "nvfp4_pack": {"weight_packed": BYTES[:, ::2].view(np.uint8), "weight_scale": FLOATS[:, ::16],
                   "weight_global_scale": FLOATS[0, :1]},
    "e4m3_block": {"weight": FLOATS, "weight_scale_inv": FLOATS[::4, ::16]},
    "torchao": {"_weight_qdata": FLOATS, "_weight_scale": FLOATS[:, :1]},
    "torchao_int4": {"_weight_qdata": BYTES[:, ::2], "_weight_scale": FLOATS[:2, :8],
                     "_weight_zero_point": FLOATS[:2, :8]},
}  # fmt: skip
"""Tensors of the layouts that are read alone, and torchao's Float8Tensor, which stands for 8 bits without zeros."""
SIZE = SHAPE[0] * SHAPE[1]
BITS = (2, 3, 4, 8)  # of a code, where that is open


def ways(record: Packed) -> list[dict[str, Any]]:
    """The choices of a layout of which there are vectors."""
    if record.name == "awq":
        return [{"bits": 4, "zero_point": True}]
    return [{"bits": bits, "zero_point": zero} for bits in BITS for zero in (False, True)] if record.chooses else [{}]


def written(record: Packed, w: Array, how: Mapping[str, Any]) -> dict[str, Array]:
    """The tensors of a weight, an offset in a state as one of its own."""
    choices: dict[str, Any] = {**how, "group": GROUP} if record.chooses else {}
    parts = record.encode(w, **choices)
    for name in [name for name in parts if BNB in name]:
        state = json.loads(parts[name].tobytes())
        parts[OFFSET] = np.array([state.pop(OFFSET)], np.float32)
        parts[name] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return parts


def read_back(record: Packed, parts: Mapping[str, Array], dtype: str) -> Array:
    """The weight of tensors as :func:`written` gives them."""
    parts = dict(parts)
    if OFFSET in parts:
        name, offset = next(name for name in parts if BNB in name), float(parts.pop(OFFSET)[0])
        state = {**json.loads(parts[name].tobytes()), OFFSET: offset}
        parts[name] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return np.asarray(record.decode(parts, dtype))


def _format(record: Packed, name: str, part: Array, scales: str) -> str:
    if part.dtype.kind != "f":
        return f"bits{8 * part.itemsize}" if part.itemsize > 1 else "bytes"
    return "e4m3" if f"{record.name} {name}" in E4M3 else scales


def _codes(x: Array, fmt: str) -> Array:
    """A tensor as codes; NaNs are the format's own, whose payloads are those of whichever came first."""
    if fmt.startswith(("bits", "bytes")):
        return x.view(f"u{x.itemsize}")
    overflow = "nan" if fmt == "e4m3" else "inf"
    return np.asarray(numeric.encode(np.where(np.isnan(x), np.float32(np.nan), x), fmt, overflow=overflow))


def again(record: Packed, how: Mapping[str, Any], flat: Array) -> Array:
    """What values become that are stored and read, as the rows of one weight."""
    return read_back(record, written(record, flat.reshape(-1, SHAPE[1]), how), "fp32")


def ties_of_scales(record: Packed, x: Array, draw: Draw) -> Array:
    """Of bitsandbytes, which rows got scales that less their mean are next to midpoints of their own quantisation."""
    rows: Array = np.arange(len(x)) % 4 == 3
    if BNB not in record.needs[-1]:
        return np.zeros_like(rows)
    middle = np.convolve(dynamic().table.astype(np.float64), [0.5, 0.5], "valid")
    middle = middle[(middle > -0.5) & (middle < 0)]
    one, two = (middle[draw.between(0, len(middle) - 1, len(x))] for _ in range(2))
    scales = 2 + np.stack([one, two, -1 - one - two, np.ones(len(x))], 1) + draw.between(-40, 40, len(x), 4) * 2.0**-20
    blocks = x.reshape(len(x), 4, -1)
    most = np.abs(blocks).max(axis=2)
    rows &= (most > 0).all(axis=1)
    blocks[rows] = blocks[rows] / most[rows, :, None] * scales[rows, :, None].astype(np.float32)
    return rows


Columns = tuple[dict[str, Array], dict[str, str], dict[str, Any]]


def store(record: Packed, x: Array, how: Mapping[str, Any]) -> Columns:
    """Columns, their formats, and what every row shares, of weights (N, 256) and the tensors that they become."""
    rows = [written(record, row.reshape(SHAPE), how) for row in x]
    columns, formats, about = {"x": x.view(np.uint32)}, {"x": "fp32"}, _shared(record, rows[0], how)
    for name, first in rows[0].items():
        if name not in about["shared"]:
            formats[name] = _format(record, name, first, SCALES.get(record.name, ("fp32",) * 3)[0])
            columns[name] = np.stack([_codes(parts[name].ravel(), formats[name]) for parts in rows])
    return columns, formats, about


def _shared(record: Packed, first: Mapping[str, Array], how: Mapping[str, Any]) -> dict[str, Any]:
    """What the header says: the choices, shapes, and the tensors that are the same whatever the weights."""
    fixed = [name for name in first if name.endswith(("g_idx", "_shape", "quant_map")) or BNB in name]
    shared = {name: first[name].tobytes().decode() if BNB in name else first[name].tolist() for name in fixed}
    shapes = {name: list(part.shape) for name, part in first.items() if name not in shared}
    group = {"group": GROUP} if record.chooses else {}
    return {**how, **group, "outputs": SHAPE[0], "inputs": SHAPE[1], "shapes": shapes, "shared": shared}


def load(record: Packed, count: int, draw: Draw, how: Mapping[str, Any]) -> tuple[Columns, list[str]]:
    """As :func:`store`, of drawn tensors and the values ``y`` that they stand for, and why each row is there.

    Codes are any; scales lie around 1, at the ends of their format, or are no number.
    """
    only = how in ({}, {"bits": 8, "zero_point": False})
    first = (UNWRITTEN.get(record.name) if only else None) or written(record, np.ones(SHAPE, np.float32), how)
    _, scales, rounded = SCALES.get(record.name, ("fp32",) * 3)
    about = _shared(record, first, how)
    columns: dict[str, Array] = {}
    formats: dict[str, str] = {}
    why = np.array(["random", "random", "range", "special"])[np.arange(count) % 4]
    for name in about["shapes"]:
        part = first[name]
        fmt, shape = _format(record, name, part, scales), (count, part.size)
        formats[name] = fmt
        if part.dtype.kind != "f" or f"{record.name} {name}" in E4M3[:3]:
            columns[name] = draw.words(*shape).astype(np.uint8 if fmt == "e4m3" else f"u{part.itemsize}")
            continue
        spread = np.where(why == "range", 10, 3)[:, None]
        scale = np.ldexp(1 + (draw.words(*shape) >> np.uint64(40)) * 2.0**-24, draw.between(-spread, spread, *shape))
        odd = (why == "special")[:, None] & draw.coins(*shape)
        scale[odd] = np.array([np.inf, np.nan, -1.0, 0.0, 2.0**-140, 3e38])[draw.between(0, 5, *shape)][odd]
        with np.errstate(over="ignore"):
            columns[name] = _codes(scale.astype(np.float32), fmt)
    back = partial(_parts, first, formats, columns)
    y = np.stack([read_back(record, back(i), rounded).ravel() for i in range(count)])
    columns["y"], formats["y"] = _codes(y, rounded), rounded
    about["rounded"] = rounded
    return (columns, formats, about), why.tolist()


def _parts(
    first: Mapping[str, Array], formats: Mapping[str, str], columns: Mapping[str, Array], row: int
) -> dict[str, Array]:
    """The tensors of a row; those without a column are the same in all."""
    parts = dict(first)
    for name, x in columns.items():
        part = first[name]
        given = numeric.decode(x[row], formats[name], np.float32) if part.dtype.kind == "f" else x[row].view(part.dtype)
        parts[name] = np.reshape(given, part.shape)
    return parts
