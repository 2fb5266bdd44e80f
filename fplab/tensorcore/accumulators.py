"""What C and D travel in, by their format: the bits of float32, float64 numbers, or int32.

Each accumulator reads C, adds partial results, and finishes with alpha and beta.
"""

import functools
from typing import Any

import numpy as np

from ..arithmetic import fma, mul
from ..arrays import Values, values, widened
from ..errors import LabError
from ..floats import quantize
from ..formats import Rounding
from ..kernels import tensorcore_exact
from . import engine
from .models import Model
from .operands import Array, demand, nan_bits, rounded, spread, whole_numbers

FP32_NAN = 0x7FFFFFFF  # as nan_bits has it


def _given(c: Any) -> Values:
    """C as an argument: after A and B it stands before the GPU."""
    if isinstance(c, str):
        raise LabError(f"c is the text {c!r}; a GPU is named by gpu={c!r}.")
    return values(c, "c")


class Floats:
    """FP32 and FP16 results: uint32, the bits of float32."""

    def read(self, c: Any, model: Model, shape: tuple[int, ...], strict: bool) -> Array:
        """C at the shape of the result (it broadcasts); None is zero."""
        if c is None:
            return np.zeros(shape, np.uint32)
        v = _given(c)
        if strict:
            demand(v.flat, "c", model.format_d)
        return np.array(spread(self._bits(v, model), shape, "c"))

    def _bits(self, v: Values, model: Model) -> Array:
        """C at its own shape."""
        bits = np.array(rounded(v.flat, model.format_d, Rounding.RNE)).view(np.uint32).reshape(v.shape)
        bits[(bits & 0x7FFFFFFF) > 0x7F800000] = nan_bits(model)
        return bits

    def add(self, x: Array, y: Array, model: Model) -> Array:
        """The sum of two partial results, to nearest, in the output format (FP32 where they were promoted)."""
        bits = engine.add_up(x, y, model)
        if model.output == "fp16":
            nan = np.isnan(bits.view(np.float32))
            bits = np.asarray(quantize(bits.view(np.float32), "fp16")).view(np.uint32)
            bits[nan] = nan_bits(model)
        return bits

    def values(self, acc: Array) -> Array:
        """Results as numbers."""
        return acc.view(np.float32)

    def epilogue(self, result: Array, c: Any, alpha: float, beta: float, model: Model) -> Array:
        """``alpha * result + beta * c`` in the output format: beta * c rounded, then one fused multiply-add."""
        own = type(c) is np.ndarray and c.dtype == np.float32 and model.output == "fp32"  # a NaN becomes the model's
        if alpha == beta == 1 and own and result.ndim == 2 and c.shape == result.shape[1:]:  # the bias of a layer
            sums, part, row = np.empty(result.shape, np.uint32), *map(np.ascontiguousarray, (result, c))
            add = functools.partial(tensorcore_exact.add_row, part, row, FP32_NAN, sums)
            engine.share(add, len(sums), sums.size)
            return sums.view(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            first, second = np.float32(alpha), np.float32(beta)
        addend: Any = np.float32(0)
        if c is not None:
            addend = spread(c if own else self.values(self._bits(_given(c), model)), result.shape, "c")
            addend = addend if beta == 1 else mul(second, addend, model.output)
        if alpha == 1 and model.output == "fp32":
            with np.errstate(invalid="ignore", over="ignore"):
                total = np.asarray(result + addend)  # what the fused operation gives for a factor of 1, much faster
        elif model.output == "fp32":
            total = np.array(np.broadcast_to(addend, result.shape), np.float32, order="C")
            wide = (-1, result.shape[-1])
            c, part = total.reshape(wide), np.ascontiguousarray(result).reshape(wide)
            factors = np.full(len(c), first), np.ones(wide[1], np.float32)
            engine.share(functools.partial(tensorcore_exact.fma_outer, part, *factors, c), len(c), c.size)
        else:
            total = np.array(fma(first, result, addend, model.output))
        if (bad := np.isnan(total)).any():
            total.view(np.uint32)[bad] = nan_bits(model)
        return total


class Doubles(Floats):
    """FP64 results: float64."""

    def read(self, c: Any, model: Model, shape: tuple[int, ...], strict: bool) -> Array:
        if c is None:
            return np.zeros(shape, np.float64)
        v = _given(c)
        if strict:
            demand(v.flat, "c", model.format_d)
        return np.array(spread(widened(v.flat).reshape(v.shape), shape, "c"))

    def add(self, x: Array, y: Array, model: Model) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            total = np.asarray(x + y)
        total[np.isnan(total)] = np.nan  # whose sign and payload else depend on the CPU
        return total

    def values(self, acc: Array) -> Array:
        return acc

    def epilogue(self, result: Array, c: Any, alpha: float, beta: float, model: Model) -> Array:
        with np.errstate(invalid="ignore", over="ignore"):
            total = np.ascontiguousarray(np.float64(beta) * self.read(c, model, result.shape, False))  # filled in place
        engine.scaled(result, float(alpha), total)
        return total


class Integers(Floats):
    """INT32 results: int32; partial ones are added without wrapping."""

    def read(self, c: Any, model: Model, shape: tuple[int, ...], strict: bool) -> Array:
        if c is None:
            return np.zeros(shape, np.int32)
        v = _given(c)
        if not whole_numbers(v.flat, -(2**31), 2**31 - 1).all():
            raise LabError("c of an INT8 product must hold integers from -2147483648 to 2147483647.")
        return np.array(spread(v.flat.reshape(v.shape), shape, "c"), dtype=np.int32)

    def add(self, x: Array, y: Array, model: Model) -> Array:
        return np.clip(x.astype(np.int64) + y, -(2**31), 2**31 - 1).astype(np.int32)

    def values(self, acc: Array) -> Array:
        return acc

    def epilogue(self, result: Array, c: Any, alpha: float, beta: float, model: Model) -> Array:
        raise LabError("alpha and beta must be 1 for INT8; scale the int32 result yourself.")


FLOATS = Floats()
OTHERS: dict[str, Floats] = {"fp64": Doubles(), "int32": Integers()}


def of(model: Model) -> Floats:
    """The accumulator of a record."""
    return OTHERS.get(model.output, FLOATS)
