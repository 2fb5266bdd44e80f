"""What users pass as arrays, made into what kernels take, or refused with the reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import LabError, reason, summary

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
EXACT_INTEGERS = 2**53
EXTENSION_FLOATS = ("bfloat16", "float8_", "float6_", "float4_")  # ml_dtypes: every value fits float32


@dataclass(frozen=True)
class Values:
    """A user's argument as a native, contiguous, flat float32 or float64 array, and how to give a result back."""

    flat: Floats
    shape: tuple[int, ...]
    narrow: bool  # results come back as float32 where the format fits
    weak: bool = False  # a Python number, which does not decide the dtype of a result, as in numpy


def values(x: Any, name: str = "x") -> Values:
    """Read an argument: arrays, numbers, lists, torch CPU tensors; float16 and integers become float32 results.

    Raises LabError for booleans, complex, extended precision, masked arrays, and objects other than Python's integers,
    for tensors on another device or that require gradients, and for integers that float64 does not hold exactly.
    """
    array = as_array(x, name)
    kind, itemsize = array.dtype.kind, array.dtype.itemsize
    narrow = True
    if kind == "f" and itemsize in (4, 8):
        narrow = itemsize == 4
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    elif kind in "iu" or _are_integers(array):
        array = _integers(array, name)
    elif array.dtype.name.startswith(EXTENSION_FLOATS) or (kind == "f" and itemsize == 2):
        with np.errstate(invalid="ignore"):  # a signalling float16 NaN becomes quiet
            array = array.astype(np.float32)
    else:
        raise _refusal(array, name)
    return Values(np.ascontiguousarray(array).reshape(-1), array.shape, narrow, type(x) in (int, float))


def _refusal(array: np.ndarray[Any, Any], name: str) -> LabError:
    """The error for an array that holds no numbers of a dtype that is taken: its elements tell more than "object"."""
    odd = [type(item) for item in array.reshape(-1).tolist() if type(item) not in (int, float)]
    if array.dtype.kind not in "OSU" or not odd:
        hint = "; a float64 holds 53 of its bits: convert it yourself" if array.dtype.kind == "f" else ""
        return LabError(f"{name} has dtype {array.dtype}; allowed: float32, float64, float16, integers{hint}.")
    hint = "; float() rounds it to float64" if hasattr(odd[0], "__float__") else ""
    kind = odd[0].__name__
    if array.ndim:
        return LabError(f"{name} holds an element of type {kind}; allowed: float32, float64, float16, integers{hint}.")
    return LabError(f"{name} is of type {kind}; allowed: float32, float64, float16, integers{hint}.")


def as_array(x: Any, name: str) -> np.ndarray[Any, Any]:
    """An argument as an array of any dtype; LabError for what is none."""
    if isinstance(x, np.ma.MaskedArray):
        raise LabError(f"{name} is a masked array, whose mask would be lost; pass {name}.filled(value) or {name}.data.")
    try:
        return np.asarray(_from_torch(x, name) if hasattr(x, "requires_grad") and hasattr(x, "layout") else x)
    except LabError:
        raise
    except Exception as error:  # whatever a list of tensors, or an object with a conversion of its own, raises
        raise LabError(f"{name} is not an array of numbers ({reason(error)}).") from None


def _from_torch(x: Any, name: str) -> Any:
    if x.device.type != "cpu":
        raise LabError(
            f"{name} is on device {str(x.device)!r}; the lab computes on the CPU: pass {name}.cpu(). fplab.nn.device "
            "rounds and multiplies tensors where they are."
        )
    if x.requires_grad:
        raise LabError(f"{name} requires gradients, which rounding does not carry; pass {name}.detach().")
    if x.is_quantized:
        raise LabError(f"{name} is a quantized tensor; pass {name}.dequantize().")
    if x.is_sparse:
        raise LabError(f"{name} is a {x.layout} tensor; pass a dense one, {name}.to_dense().")
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype.startswith(EXTENSION_FLOATS):
        x = x.float()
    return x.resolve_neg().resolve_conj().numpy()


def _are_integers(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array of objects is one of Python's integers: numpy makes it of those that its dtypes do not hold."""
    return array.dtype == object and array.size > 0 and all(type(item) is int for item in array.reshape(-1).tolist())


def _integers(array: np.ndarray[Any, Any], name: str) -> Floats:
    if array.size and max(int(array.max()), -int(array.min())) > EXACT_INTEGERS:
        inexact = [value for value in array.reshape(-1).tolist() if not _fits_float64(value)]
        if inexact:
            example = summary(inexact[0])
            raise LabError(f"{name} holds {example}, an integer that float64 does not hold exactly; pass floats.")
    return array.astype(np.float64)


def _fits_float64(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def widened(x: Floats) -> Floats:
    """A float array as float64, a signalling NaN still signalling (a cast makes it quiet, and warns)."""
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64, copy=False)
    if x.dtype == np.float32 and (nan := np.isnan(x)).any():
        quiet = x.view(np.uint32)[nan] & np.uint32(1 << 22)
        wide.view(np.uint64)[nan] &= ~np.where(quiet, np.uint64(0), np.uint64(1 << 51))
    return wide


def narrow_result(operands: Sequence[Values]) -> bool:
    """Whether an operation's result comes back as float32: what its arrays say, or its numbers where all are."""
    return all(v.narrow for v in ([v for v in operands if not v.weak] or operands))


def _as_float32(v: Values) -> bool:
    """Whether an operand is float32, or a number that float32 holds."""
    with np.errstate(over="ignore", invalid="ignore"):
        return v.flat.dtype == np.float32 or (v.weak and float(v.flat[0]) == float(np.float32(v.flat[0])))


def broadcast(*operands: Values) -> tuple[list[Floats], tuple[int, ...]]:
    """The operands at one shape and one dtype (float32 if it holds all of them, else float64), flat."""
    dtype = np.float32 if narrow_result(operands) and all(map(_as_float32, operands)) else np.float64
    try:
        shape = np.broadcast_shapes(*(v.shape for v in operands))
    except ValueError:
        shapes = " and ".join(str(v.shape) for v in operands)
        raise LabError(f"operands of shapes {shapes} do not broadcast together.") from None
    flats: list[Floats] = []
    for v in operands:
        flat: Floats = widened(v.flat) if dtype == np.float64 else v.flat.astype(np.float32, copy=False)
        if v.shape != shape:
            flat = np.ascontiguousarray(np.broadcast_to(flat.reshape(v.shape), shape)).reshape(-1)
        flats.append(flat)
    return flats, shape


def codes(x: Any, bits: int, name: str = "codes") -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
    """An array of integer codes, flat and unsigned; each must lie in 0 .. 2**bits - 1."""
    array = as_array(x, name)
    if array.dtype.kind not in "iu":
        raise LabError(f"{name} has dtype {array.dtype}; codes are integers.")
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= 1 << bits:
            raise LabError(f"{name} holds {low if low < 0 else high}; a {bits}-bit code is 0 to {(1 << bits) - 1}.")
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.astype(code_dtype(bits), copy=False), array.shape


def code_dtype(bits: int) -> type[np.unsignedinteger[Any]]:
    """The smallest unsigned dtype for codes of a width."""
    return np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.uint64


def check_out(out: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """An ``out`` argument that can take a result, or an error that says what it must be."""
    wanted = f"a writable {np.dtype(dtype)} array of shape {shape}"
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise LabError(f"out is a {type(out).__name__}; it must be {wanted}.")
    if out.dtype != np.dtype(dtype) or out.shape != shape:
        raise LabError(f"out is {out.dtype} of shape {out.shape}; it must be {wanted}.")
    if not out.flags.writeable:
        raise LabError(f"out is read-only; it must be {wanted}.")
    return out
