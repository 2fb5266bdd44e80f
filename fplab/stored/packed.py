"""Layouts in which a weight lies in several tensors of a file: codes in words, scales, zero points.

A group of weights shares a scale and perhaps a zero point: a weight is (code - zero) * scale, the difference exact and
the product rounded once to the format of the scales, as the libraries have it. Codes lie densely in words of 32 bits,
the first in the lowest bits, so that those of 3 bits reach over the edge of a word.

>>> import numpy as np
>>> from fplab import stored
>>> w = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
>>> parts = stored.PACKED["gptq"].encode(w, bits=3, group=32)
>>> {name: (x.dtype.name, x.shape) for name, x in parts.items()}["qweight"]
('int32', (6, 8))
>>> bool(np.abs(stored.PACKED["gptq"].decode(parts) - w).max() < 0.6)
True
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..arrays import values
from ..codebooks import BOOKS, dynamic, quantize_blockwise
from ..errors import LabError, door, quotes_call
from ..floats import decode as of_codes
from ..floats import quantize
from ..integers import unpack_int4
from .nf4 import FP4, RECORDS

Array = np.ndarray[Any, Any]
Parts = Mapping[str, Array]
Shapes = Mapping[str, tuple[int, ...]]
Reading = Callable[[str], Array]
f32 = np.float32
AWQ_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])  # which of eight outputs lies in each nibble of a word
PART_OF_127 = f32(0.007874015718698502)  # bitsandbytes' 1 / 127
NESTED = 256  # scales of a block of bitsandbytes' second quantisation
BNB = "quant_state.bitsandbytes__"


def words(codes: Array, bits: int) -> Array:
    """Codes of the last dimension, uint8, densely in int32, the last word filled with zeros."""
    spread = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
    flat = spread.reshape(*codes.shape[:-1], -1)
    whole = np.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, -flat.shape[-1] % 32)])
    return np.packbits(whole, axis=-1, bitorder="little").view("<i4")


def of_words(packed: Array, bits: int, count: int) -> Array:
    """The codes again, ``count`` of them along the last dimension."""
    flat = np.unpackbits(np.ascontiguousarray(packed, "<i4").view(np.uint8), axis=-1, bitorder="little")
    if flat.shape[-1] < count * bits:
        raise LabError(f"{count:,} codes of {bits} bits need more than words of shape {packed.shape}.")
    spread = flat[..., : count * bits].reshape(*packed.shape[:-1], count, bits)
    return np.packbits(spread, axis=-1, bitorder="little")[..., 0]


def bits_of(packed: int, count: int) -> int:
    """How many bits a code has, of which ``count`` fill so many words; an error where several numbers would do so."""
    able = [bits for bits in range(1, 9) if -(-count * bits // 32) == packed]
    if len(able) != 1:
        raise LabError(f"{count:,} codes in {packed:,} words have no one number of bits, 1 to 8.")
    return able[0]


def groups_of(inputs: int, groups: int) -> Array:
    """The group of each input where all groups are of one size."""
    if not groups or inputs % groups:
        raise LabError(f"{groups:,} groups do not divide {inputs:,} inputs.")
    return np.arange(inputs) * groups // inputs


def demand_scales(scales: Array, fit: bool, codes: Array) -> None:
    """An error for scales that do not fit the codes."""
    if not fit:
        raise LabError(f"scales of shape {scales.shape} do not fit codes of shape {codes.shape}.")


def demand_zeros(zeros: Array, fit: bool, scales: Array) -> None:
    """An error for zero points that do not fit the scales."""
    if not fit:
        raise LabError(f"zero points of shape {zeros.shape} do not fit scales of shape {scales.shape}.")


def grouped(codes: Array, scales: Array, dtype: str, index: Array) -> Array:
    """Differences (outputs, inputs) times the scales (outputs, groups) of their groups, rounded to ``dtype``."""
    product = codes.astype(f32) * np.take(scales, index, axis=1)
    return np.asarray(product if dtype == "fp32" else quantize(product, dtype).astype(f32))


def ranges(w: Array, group: int) -> tuple[Array, Array, Array]:
    """Weights by groups, and the least and the largest of each and of 0, (outputs, groups, 1)."""
    parts = w.reshape(len(w), -1, group)
    return parts, np.minimum(parts.min(-1, keepdims=True), 0), np.maximum(parts.max(-1, keepdims=True), 0)


# --- GPTQ and AWQ ---------------------------------------------------------------------------------------------------
def as_gptq(w: Array, bits: int, group: int, zero_point: bool) -> tuple[Array, Array, Array]:
    """To nearest as GPTQ's quantiser has it: codes (outputs, inputs), scales and zeros (outputs, groups)."""
    most, (parts, low, high) = 2**bits - 1, ranges(w, group)
    if not zero_point:
        high = np.maximum(-low, high)
        low = np.where(low < 0, -high, low)
    empty = (high == 0) & (low == 0)
    low, high = np.where(empty, f32(-1), low), np.where(empty, f32(1), high)
    scale = (high - low) / f32(most)
    zero = np.rint(-low / scale) if zero_point else np.full_like(scale, 2 ** (bits - 1))
    return _clipped(np.rint(parts / scale) + zero, most, w.shape), scale[..., 0], zero[..., 0]


def as_awq(w: Array, bits: int, group: int, zero_point: bool) -> tuple[Array, Array, Array]:
    """To nearest as AutoAWQ's quantiser has it; always with zero points, which its layout has."""
    parts = w.reshape(len(w), -1, group)
    low, high, most = parts.min(-1, keepdims=True), parts.max(-1, keepdims=True), 2**bits - 1
    scale = np.maximum(high - low, f32(1e-5)) / f32(most)
    zero = np.clip(-np.rint(low / scale), 0, most)
    return _clipped(np.rint(parts / scale) + zero, most, w.shape), scale[..., 0], zero[..., 0]


def _clipped(codes: Array, most: int, shape: Any) -> Array:
    return np.clip(codes, 0, most).astype(np.uint8).reshape(shape)


def to_gptq(offset: int, w: Array, bits: int, group: int, zero_point: bool) -> dict[str, Array]:
    """``offset``: what is taken from zero points before they are stored, 1 in the first version."""
    codes, scale, zero = as_gptq(w, bits, group, zero_point)
    stored = (zero - offset).T.astype(np.int64).astype(np.uint8)  # -1 wraps around, as the libraries' does
    return {
        "qweight": np.ascontiguousarray(words(codes, bits).T), "qzeros": words(stored & (2**bits - 1), bits),
        "scales": np.ascontiguousarray(quantize(scale.T, "fp16").astype(f32)),
        "g_idx": (np.arange(w.shape[1]) // group).astype(np.int32),
    }  # fmt: skip


def of_gptq(offset: int, parts: Parts, dtype: str) -> Array:
    scales, outputs = parts["scales"], parts["scales"].shape[1]
    index, long = parts.get("g_idx"), parts["qweight"].shape[0]
    bits = bits_of(parts["qzeros"].shape[1], outputs) if index is None else bits_of(long, index.size)
    demand_zeros(parts["qzeros"], -(-outputs * bits // 32) == parts["qzeros"].shape[1], scales)
    inputs = 32 * long // bits if index is None else index.size
    codes = of_words(parts["qweight"].T, bits, inputs)
    zeros = (of_words(parts["qzeros"], bits, outputs).astype(np.int16) + offset) & (2**bits - 1)
    index = groups_of(inputs, len(scales)) if index is None else index
    if index.size and not 0 <= index.min() <= index.max() < len(scales):
        raise LabError(f"g_idx names groups from {index.min()} to {index.max()}; there are {len(scales)}.")
    return grouped(codes - np.take(zeros.T, index, axis=1), scales.T, dtype, index)


def to_awq(w: Array, bits: int, group: int, zero_point: bool) -> dict[str, Array]:
    if bits != 4 or len(w) % 8 or not zero_point:
        raise LabError("awq stores 4 bits with zero points, outputs a multiple of 8.")
    codes, scale, zero = as_awq(w, bits, group, zero_point)
    mixed = [x.T.reshape(x.shape[1], -1, 8)[..., AWQ_ORDER].reshape(x.shape[::-1]) for x in (codes, zero)]
    scales = np.ascontiguousarray(quantize(scale.T, "fp16").astype(f32))
    return {"qweight": words(mixed[0], 4), "qzeros": words(mixed[1].astype(np.uint8), 4), "scales": scales}


def of_awq(parts: Parts, dtype: str) -> Array:
    outputs = parts["scales"].shape[1]
    codes, zeros = (of_words(parts[name], 4, outputs).astype(np.int16) for name in ("qweight", "qzeros"))
    back = np.argsort(AWQ_ORDER)
    codes, zeros = (x.reshape(len(x), -1, 8)[..., back].reshape(x.shape).T for x in (codes, zeros))
    index = groups_of(codes.shape[1], zeros.shape[1])
    return grouped(codes - np.take(zeros, index, axis=1), parts["scales"].T, dtype, index)


# --- compressed-tensors -------------------------------------------------------------------------------------------
def as_compressed(w: Array, bits: int, group: int, zero_point: bool) -> tuple[Array, Array, Array]:
    """To nearest as compressed-tensors has it: signed codes and zeros."""
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    parts, low, high = ranges(w, group)
    wide = high - low if zero_point else 2 * np.maximum(-low, high)
    scale = wide / f32(most - least)
    zero = np.clip(f32(least) - low / scale, least, most) if zero_point else np.zeros_like(scale)
    scale, zero = np.where(scale == 0, np.finfo(f32).eps, scale), np.rint(np.nan_to_num(zero))
    codes = np.rint(np.clip(parts / scale + zero, least, most)).astype(np.int8)
    return codes.reshape(w.shape), scale[..., 0], zero[..., 0].astype(np.int8)


def to_pack_quantized(w: Array, bits: int, group: int, zero_point: bool) -> dict[str, Array]:
    return pack(*as_compressed(w, bits, group, zero_point), bits, zero_point)


def pack(codes: Array, scale: Array, zero: Array, bits: int, zero_point: bool) -> dict[str, Array]:
    """Signed codes and zeros in compressed-tensors' words."""
    middle = 2 ** (bits - 1)
    parts = {
        "weight_packed": words((codes.astype(np.int16) + middle).astype(np.uint8), bits), "weight_scale": scale,
        "weight_shape": np.array(codes.shape, np.int64),
    }  # fmt: skip
    if zero_point:
        lifted = (zero.T.astype(np.int16) + middle).astype(np.uint8)
        parts["weight_zero_point"] = np.ascontiguousarray(words(lifted, bits).T)
    return parts


def of_pack_quantized(parts: Parts, dtype: str) -> Array:
    outputs, inputs = map(int, parts["weight_shape"][-2:])
    bits = bits_of(parts["weight_packed"].shape[1], inputs)
    codes = of_words(parts["weight_packed"], bits, inputs).astype(np.int16)
    zeros = np.full((outputs, 1), 2 ** (bits - 1), np.int16)
    scales, index = parts["weight_scale"].reshape(outputs, -1), parts.get("weight_g_idx")
    index = groups_of(inputs, scales.shape[1]) if index is None else index
    if (packed := parts.get("weight_zero_point")) is not None:
        zeros = np.take(of_words(packed.T, bits, outputs).T.astype(np.int16), index, axis=1)
    return grouped(codes - zeros, scales, dtype, index)


def to_scaled(fmt: str, w: Array, bits: int, group: int, zero_point: bool) -> dict[str, Array]:
    """Integers of 8 bits, or E4M3, with a scale a row."""
    if fmt == "int8":
        codes, scale, _ = as_compressed(w, 8, w.shape[1], False)
        return {"weight": codes, "weight_scale": scale}
    scale = np.abs(w).max(1, keepdims=True) / f32(448)
    scale = np.where(scale == 0, np.finfo(f32).eps, scale)
    return {"weight": quantize(w / scale, fmt, overflow="saturate").astype(f32), "weight_scale": scale}


def of_scaled(weight: str, scale: str, parts: Parts, dtype: str) -> Array:
    """A scale for the tensor, a row, groups of a row, or square blocks; ``weight``, ``scale``: names of tensors."""
    codes, scales = parts[weight], parts[scale]
    scales = scales.reshape(-1, 1) if scales.ndim < 2 else scales
    demand_scales(scales, scales.ndim == 2, codes)
    rows = _blocks_of(len(codes), len(scales))
    alike = len(scales) == len(codes)  # groups of a row, which divide it
    columns = (groups_of if alike else _blocks_of)(codes.shape[1], scales.shape[1])
    if (zeros := parts.get("_weight_zero_point")) is not None:
        demand_zeros(zeros, zeros.size == scales.size, scales)
        codes = codes.astype(np.int16) - zeros.reshape(scales.shape)[rows][:, columns]
    return grouped(codes, scales[rows], dtype, columns)


def _blocks_of(n: int, blocks: int) -> Array:
    """The block of each of n: of 128, the last one perhaps cut, as releases of FP8 have it, else all of one size."""
    return np.arange(n) // 128 if -(-n // 128) == blocks else groups_of(n, blocks)


def of_nvfp4(parts: Parts, dtype: str) -> Array:
    packed = parts["weight_packed"]
    codes = unpack_int4(packed.reshape(-1), 2 * packed.size, signed=False)
    values_of = of_codes(codes, "e2m1").reshape(len(packed), -1)
    scales = parts["weight_scale"] / parts["weight_global_scale"].reshape(())
    return grouped(values_of, scales, dtype, groups_of(values_of.shape[1], scales.shape[1]))


# --- torchao ------------------------------------------------------------------------------------------------------
def to_torchao(w: Array, bits: int, group: int, zero_point: bool) -> dict[str, Array]:
    """To nearest as ``IntxWeightOnlyConfig`` and ``Int8WeightOnlyConfig`` have it: a code a byte."""
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    parts, low, high = ranges(w, group)
    wide = high - low if zero_point else 2 * np.maximum(-low, high)
    scale = np.maximum(wide / f32(most - least), np.finfo(f32).smallest_normal)
    zero = np.clip(least - np.rint(low / scale), least, most) if zero_point else np.zeros_like(scale)
    codes = np.clip(np.rint(parts * (f32(1) / scale)) + zero, least, most).astype(np.int8)
    return {
        "_weight_qdata": codes.reshape(w.shape), "_weight_scale": scale[..., 0],
        "_weight_zero_point": zero[..., 0].astype(np.int8),
    }  # fmt: skip


def of_torchao_int4(parts: Parts, dtype: str) -> Array:
    """``Int4Tensor``: two codes a byte, scales and zero points (groups, outputs), as ``_int4_row_dequantize_zp``."""
    packed, scales = parts["_weight_qdata"].view(np.uint8), parts["_weight_scale"].T
    codes = unpack_int4(packed, 2 * packed.shape[1]).astype(f32) + f32(8)
    zeros = parts["_weight_zero_point"].T
    demand_scales(scales, scales.ndim == 2 and len(scales) == len(packed), packed)
    demand_zeros(zeros, zeros.shape == scales.shape, scales)
    low = zeros - scales * f32(8)
    low = low if dtype == "fp32" else quantize(low, dtype).astype(f32)
    index = groups_of(codes.shape[1], scales.shape[1])
    return np.asarray(codes * np.take(scales, index, axis=1) + np.take(low, index, axis=1))


# --- bitsandbytes -------------------------------------------------------------------------------------------------
def to_llm_int8(w: Array, bits: int, group: int, zero_point: bool) -> dict[str, Array]:
    """LLM.int8()'s weights: a row by its largest magnitude, times 127 over it."""
    most = np.abs(w).max(axis=1)
    return {"weight": np.rint(w * (f32(127) / most)[:, None]).astype(np.int8), "SCB": most}


def of_llm_int8(parts: Parts, dtype: str) -> Array:
    product = parts["weight"].astype(f32) * parts["SCB"].reshape(-1, 1) * PART_OF_127
    return np.asarray(product if dtype == "fp32" else quantize(product, dtype).astype(f32))


def to_nested(name: str, w: Array, bits: int, group: int, zero_point: bool, offset: float | None = None) -> Any:
    """NF4 or FP4 whose scales, less their mean, are quantised to 8 bits of a dynamic tree in blocks of 256.

    ``offset``: the mean that is taken off, by default the exact one rounded once. bitsandbytes takes torch's, whose
    last bit depends on the order of a sum.
    """
    data = next(one for one in RECORDS if one.name == name).encode(w).reshape(-1, 36)
    absmax = np.ascontiguousarray(data[:, 32:]).view("<f4")[:, 0]
    mean = f32(absmax.mean(dtype=np.float64) if offset is None else offset)
    nested = quantize_blockwise(absmax - mean, dynamic(), NESTED, "bitsandbytes cpu")
    state = {
        "quant_type": name[:3], "blocksize": 64, "dtype": "float32", "shape": list(w.shape), "nested_blocksize": NESTED,
        "nested_dtype": "float32", "nested_offset": float(mean),
    }  # fmt: skip
    table = BOOKS["NF4"].table if name == "nf4" else FP4
    return {
        "weight": data[:, :32].reshape(-1, 1), "weight.absmax": nested.codes, "weight.quant_map": table,
        "weight.nested_absmax": nested.absmax, "weight.nested_quant_map": dynamic().table,
        f"weight.{BNB}{name[:3]}": np.frombuffer(json.dumps(state).encode(), np.uint8),
    }  # fmt: skip


def of_bnb(kind: str, parts: Parts, dtype: str) -> Array:
    """Four bits with plain or nested scales, by the state that was saved with them."""
    state = json.loads(parts[f"weight.{BNB}{kind}"].tobytes())
    scales, block, shape = parts["weight.absmax"], int(state["blocksize"]), tuple(map(int, state["shape"]))
    if (nested := parts.get("weight.nested_absmax")) is not None:
        table, wide = parts["weight.nested_quant_map"], int(state["nested_blocksize"])
        scales = table[scales] * np.repeat(nested, wide)[: scales.size] + f32(state["nested_offset"])
    packed, count = parts["weight"].reshape(-1), int(np.prod(shape))
    codes = np.stack([packed >> np.uint8(4), packed & np.uint8(15)], axis=1).reshape(-1)[:count]
    product = parts["weight.quant_map"][codes] * np.repeat(scales, block)[:count]
    dtype = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[state["dtype"]]
    return np.asarray(product if dtype == "fp32" else quantize(product, dtype).astype(f32)).reshape(shape)


# --- shapes: (outputs, inputs) of those of the tensors, or as a small one of them says ------------------------------
def _shape_gptq(shapes: Shapes, read: Reading) -> Any:
    outputs = shapes["scales"][1]
    if "g_idx" in shapes:
        return outputs, shapes["g_idx"][0]
    return outputs, 32 * shapes["qweight"][0] // bits_of(shapes["qzeros"][1], outputs)


def _shape_bnb(kind: str, shapes: Shapes, read: Reading) -> Any:
    state = json.loads(read(f"weight.{BNB}{kind}").tobytes())
    return state.get("shape") if isinstance(state, dict) else None


def _shape_times(name: str, high: int, wide: int, shapes: Shapes, read: Reading) -> Any:
    return high * shapes[name][0], wide * shapes[name][1]


# --- the records --------------------------------------------------------------------------------------------------
@door
@dataclass(frozen=True, eq=False)
class Packed:
    """A layout of several tensors a weight.

    ``needs``, ``knows``: the names of the tensors that it has, and may have, after the module's; the first one's are
    the codes, of a dtype of ``codes`` and of ``dimensions``; ``zeros``: the dtypes of zero points. ``shape``: of the
    weight, by those of its tensors and a way to read a small one. ``library``: whose layout it is. ``chooses``: whether
    bits and groups are the caller's. ``encoder`` is None where :mod:`fplab.scaled` quantises, or the library only on a
    GPU; ``decoder`` is None where codes lie in the order of a GPU's kernel.
    """

    name: str
    needs: tuple[str, ...]
    knows: tuple[str, ...]
    codes: tuple[str, ...]
    shape: Callable[[Shapes, Reading], Any] = field(repr=False)
    decoder: Callable[[Parts, str], Array] | None = field(repr=False)
    encoder: Callable[..., dict[str, Array]] | None = field(repr=False)
    library: str = ""
    chooses: bool = False
    zeros: tuple[str, ...] = ("int32",)
    dimensions: int = 2

    @quotes_call
    def decode(self, parts: Parts, dtype: str = "fp16") -> Array:
        """The weight, float32 (outputs, inputs).

        ``parts``: by name integers as they are and numbers of a format as float32. ``dtype``: the format of the scales,
        to which the library rounds products; bitsandbytes' state names its own.
        """
        if missing := [name for name in self.needs if name not in parts]:
            raise LabError(f"{self.name} needs {', '.join(self.needs)}; missing: {', '.join(missing)}.")
        if self.decoder is None:
            raise LabError(
                f"{self.name} has codes in the order of a GPU's kernel, and is read by {self.library} alone."
            )
        with np.errstate(all="ignore"):  # a file's scales may be infinite, or NaN
            return self.decoder(parts, dtype)

    @quotes_call
    def encode(self, w: Any, *, bits: int = 4, group: int = 128, zero_point: bool = False) -> dict[str, Array]:
        """Finite weights (outputs, inputs), rounded to nearest as the library does, float32 throughout.

        ``bits``, ``group``, ``zero_point``: for layouts that leave the choice; ``group``: inputs that share a scale.
        """
        x = values(w)
        matrix = x.flat.reshape(x.shape).astype(f32, copy=False)
        if self.encoder is None:
            if self.name.startswith("torchao"):
                raise LabError(f"{self.name} is written by torchao on a GPU alone.")
            raise LabError(f"{self.name} is written by scaled.quantize(...).packed().")
        if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
            raise LabError(f"w has shape {matrix.shape}; allowed: a matrix (outputs, inputs) of finite numbers.")
        if self.chooses and matrix.shape[1] % group:
            raise LabError(f"w has rows of {matrix.shape[1]}, and group={group} does not divide them.")
        with np.errstate(all="ignore"):
            return self.encoder(matrix, bits, group, zero_point)


CT, GPTQ, GROUPED = "compressed-tensors", "GPTQ, as gptqmodel packs it", ("qweight", "qzeros", "scales")
NESTED_PARTS = ("weight.nested_absmax", "weight.nested_quant_map")
STATE = ("weight", "weight.absmax", "weight.quant_map")
INT32, FP8, NUMBERS = ("int32",), ("e4m3", "e5m2"), ("fp32", "fp16", "bf16")  # dtypes
WEIGHT, QDATA = (partial(_shape_times, name, 1, 1) for name in ("weight", "_weight_qdata"))
AO, AO_SCALE, AO_ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"
LAYOUTS = (
    Packed("gptq", GROUPED, ("g_idx",), INT32, _shape_gptq, partial(of_gptq, 1), partial(to_gptq, 1), GPTQ, True),
    Packed("gptq_v2", GROUPED, ("g_idx",), INT32, _shape_gptq, partial(of_gptq, 0), partial(to_gptq, 0), GPTQ, True),
    Packed("awq", GROUPED, (), INT32, lambda shapes, _: (shapes["scales"][1], shapes["qweight"][0]), of_awq, to_awq,
           "AutoAWQ, GEMM", True),
    Packed("pack_quantized", ("weight_packed", "weight_scale", "weight_shape"), ("weight_zero_point", "weight_g_idx"),
           INT32, lambda _, read: read("weight_shape").tolist(), of_pack_quantized, to_pack_quantized, CT, True),
    Packed("nvfp4_pack", ("weight_packed", "weight_scale", "weight_global_scale"), (), ("uint8",),
           partial(_shape_times, "weight_packed", 1, 2), of_nvfp4, None, CT),
    Packed("int8_row", ("weight", "weight_scale"), (), ("int8",), WEIGHT, partial(of_scaled, "weight", "weight_scale"),
           partial(to_scaled, "int8"), CT),
    Packed("e4m3_row", ("weight", "weight_scale"), (), FP8, WEIGHT, partial(of_scaled, "weight", "weight_scale"),
           partial(to_scaled, "e4m3"), CT),
    Packed("e4m3_block", ("weight", "weight_scale_inv"), (), FP8, WEIGHT,
           partial(of_scaled, "weight", "weight_scale_inv"), None, "DeepSeek, transformers"),
    Packed("torchao", (AO, AO_SCALE), (AO_ZERO,), ("int8", *FP8), QDATA, partial(of_scaled, AO, AO_SCALE), to_torchao,
           "torchao, Int8Tensor, IntxUnpackedToInt8Tensor and Float8Tensor", True, ("int8",)),
    Packed("torchao_int4", (AO, AO_SCALE, AO_ZERO), (), ("int8", "uint8"), partial(_shape_times, AO, 1, 2),
           of_torchao_int4, None, "torchao, Int4Tensor", zeros=NUMBERS),
    Packed("torchao_int4_tiles", (AO, "_weight_scale_and_zero"), (), INT32, partial(_shape_times, AO, 8, 128),
           None, None, "torchao, Int4TilePackedTo4dTensor", dimensions=4),
    Packed("torchao_int4_words", (AO, AO_SCALE, AO_ZERO), (), INT32, partial(_shape_times, AO, 1, 8),
           None, None, "torchao, Int4PlainInt32Tensor", zeros=("int8",)),
    Packed("llm_int8", ("weight", "SCB"), (), ("int8",), WEIGHT, of_llm_int8, to_llm_int8,
           "bitsandbytes, int8_vectorwise_quant"),
    *(Packed(f"bnb_{kind[:3]}", (*STATE, f"weight.{BNB}{kind[:3]}"), NESTED_PARTS, ("uint8",),
             partial(_shape_bnb, kind[:3]), partial(of_bnb, kind[:3]), partial(to_nested, kind),
             "bitsandbytes, quantize_4bit")
      for kind in ("nf4", "fp4_bnb")),
)  # fmt: skip
"""Their records."""
