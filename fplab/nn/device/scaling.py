"""Quantisation of tensors with scales of blocks, on the device where they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from ...errors import LabError, integer, quotes_call
from ...formats import Format, FormatName, Rounding
from ...hardware.instructions import Kernel
from ...kernels.rounding import MODES, stream_keys
from ...plans import seed_bits
from ...scaled import Scaled, Scheme, get_scheme
from ...scaled.quantizing import LARGEST, f32, given_amax, largest_factor, mode_of, rule_of
from ...scaled.result import grid_of, table_of
from ...scaled.schemes import Block
from . import running
from .rounding import quantize

RUN = 8  # elements of a thread, which lie in one block
MOST = (1 << 31) - 1  # elements of a tensor
OTHERS = {"infinite": "OF_INFINITY", "most": "MOST_FACTOR"}  # names that the C++ has for fields of a rule


@dataclass(frozen=True, eq=False)
class ScaledTensor:
    """:class:`fplab.scaled.Scaled` on a device: its fields as tensors, uint8, uint8 or float32, and float32."""

    codes: torch.Tensor
    scales: torch.Tensor
    amax: torch.Tensor | None
    scheme: Scheme
    axis: int

    def elements(self) -> torch.Tensor:
        """The values of the codes, float32."""
        return _values(self.codes, self.scheme.element)

    def scale_values(self, each_row: bool = False) -> torch.Tensor:
        """The values of the scales, float32; ``each_row``: of blocks of several rows once for each of these."""
        result = self.scales if self.scheme.kind == "fp32" else _values(self.scales, self.scheme.scale)
        if not each_row or isinstance(self.scheme.block, str) or self.scheme.block[0] == 1:
            return result
        rows = self.codes.movedim(self.axis, -1).shape[-2]
        moved = result.movedim(self.axis, -1).repeat_interleave(self.scheme.block[0], -2)
        return moved[..., :rows, :].movedim(-1, self.axis)

    def dequantize(self) -> torch.Tensor:
        """:meth:`fplab.scaled.Scaled.dequantize`, float32 on the device; every NaN is 0x7FC00000."""
        moved = _last(self.codes, self.axis)
        where = _Where(moved.shape, self.scheme)
        out = torch.empty(moved.shape, device=moved.device)
        scales = _last(self.scales, self.axis)
        own = scales if self.amax is None else _last(self.amax, self.axis)
        narrow = scales if self.scheme.kind == "fp32" else torch.from_numpy(table_of(self.scheme.scale)).to(out.device)
        elements = torch.from_numpy(table_of(self.scheme.element)).to(out.device)
        scales = scales if self.scheme.kind == "fp32" else scales.int()
        kernel = where.kernel("dequantize", self.scheme)
        where.run(kernel, where.runs, moved, scales, own, int(own.numel() > 1), elements, narrow, out, *where.sizes)
        return out.movedim(-1, self.axis).reshape(self.codes.shape)

    def on_host(self) -> Scaled:
        """The same in arrays."""
        amax = None if self.amax is None else self.amax.cpu().numpy()
        return Scaled(self.codes.cpu().numpy(), self.scales.cpu().numpy(), amax, self.scheme, self.axis)


@quotes_call
def quantize_scaled(
    x: torch.Tensor, scheme: str | Scheme = "mxfp8", axis: int = -1, *, rule: str | None = None,
    variant: str | None = None, block: Block | None = None, rounding: str | Rounding = "rne", seed: int | None = None,
    random_bits: int = 32, amax: Any = None, dtype: FormatName | None = None,
) -> ScaledTensor:  # fmt: skip
    """:func:`fplab.scaled.quantize` of a tensor, whose device it stays on: codes, scales and amax bit for bit the same.

    ``x``: any real dtype, rounded to float32 first. Raises LabError for more than 2**31 - 1 elements.
    """
    record, mode = get_scheme(scheme, rule=rule, variant=variant, block=block), mode_of(rounding)
    if not running.has_values(x) or x.is_complex():
        raise LabError("x must be a dense tensor of real numbers; fplab.scaled.quantize takes arrays.")
    axis = integer("axis", axis, -max(x.dim(), 1), max(x.dim(), 1) - 1)
    if x.numel() > MOST:
        raise LabError(f"x has {x.numel():,} elements; at most {MOST:,} are quantised at once here.")
    random = integer("random_bits", random_bits, 8, 32) if mode == MODES["stochastic"] else 32
    if random not in (8, 32):
        raise LabError(f"random_bits={random} is not possible; allowed: 32, 8.")
    keys = [int(key) for key in stream_keys(seed_bits(mode, seed), np.uint64(0))]
    moved = _last(x.detach().float(), axis)
    if not isinstance(record.block, str) and record.block[0] > 1 and moved.dim() < 2:
        raise LabError(f"block={record.block!r} needs two dimensions; x has one.")
    most_factor = largest_factor(record, x.dtype if dtype is None else dtype)
    where, lead, k = _Where(moved.shape, record), moved.shape[:-1], moved.shape[-1]
    most, second = _amax(moved, record, amax)
    if most is None:
        most = where.maxima(moved, record)
    scales, factors = torch.empty_like(most), torch.empty_like(most)
    of_blocks, of_codes = (where.kernel(entry, record, mode, random, most_factor) for entry in ("scales", "codes"))
    own = most if second is None else second
    where.run(of_blocks, most.numel(), moved, most, own, int(own.numel() > 1), scales, factors, most.numel(), k,
              where.height)  # fmt: skip
    codes = torch.empty(moved.shape, dtype=torch.uint8, device=x.device)
    signed = [key - (key >> 31 << 32) for key in keys]
    where.run(of_codes, where.runs, moved, factors, codes, *where.sizes, *signed)
    scales = scales.view(torch.float32) if record.kind == "fp32" else scales.to(torch.uint8)
    scales = scales.reshape(where.of_scales)
    if second is not None:
        second = second.view(torch.float32).reshape((1,) * moved.dim() if second.numel() == 1 else (*lead, 1))
        second = second.movedim(-1, axis)
    return ScaledTensor(codes.movedim(-1, axis).reshape(x.shape), scales.movedim(-1, axis), second, record, axis)


def hadamard(x: torch.Tensor, axis: int, size: int, signs: Any, dtype: str) -> torch.Tensor:
    """:func:`fplab.scaled.hadamard`: butterflies in FP64, rounded once."""
    moved = x.movedim(axis, -1)
    ones = torch.from_numpy(np.resize(np.asarray(signs), size).astype(np.float64)).to(x.device)
    part = moved.double().unflatten(-1, (-1, size)) * ones
    step = 1
    while step < size:
        a, b = part.unflatten(-1, (-1, 2, step)).unbind(-2)
        part, step = torch.stack([a + b, a - b], -2).flatten(-3), 2 * step
    part = (part * (1 / math.sqrt(size))).flatten(-2)
    result = part.float() if dtype == "fp32" else quantize(_to_odd(part), dtype)
    return result.movedim(-1, axis)


def _to_odd(x: torch.Tensor) -> torch.Tensor:
    """Float64 as float32 that rounds on as it does: what lies between two has the odd one's bits."""
    bits = x.float().view(torch.int32)
    wide = bits.view(torch.float32).double()
    below = torch.where(wide.abs() > x.abs(), bits - 1, bits)
    return torch.where((wide != x) & x.isfinite(), below | 1, bits).view(torch.float32)


def _values(codes: torch.Tensor, fmt: Format) -> torch.Tensor:
    return torch.from_numpy(table_of(fmt)).to(codes.device)[codes.int()]


def _last(x: torch.Tensor, axis: int) -> torch.Tensor:
    """A tensor of at least one dimension with an axis last, contiguous."""
    return (x if x.dim() else x.reshape(1)).movedim(axis, -1).contiguous()


def _amax(x: torch.Tensor, scheme: Scheme, given: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The largest magnitude of all blocks, where it is that of the tensor, and those of a second scale, as bits."""
    if given is not None:
        if isinstance(given, torch.Tensor) and not running.has_values(given):
            raise LabError("amax is sparse, nested or has no values; pass a number, or one of each row.")
        array = given.detach().cpu() if isinstance(given, torch.Tensor) else given
        bits = given_amax(array, math.prod(x.shape[:-1]), scheme)
        result = torch.from_numpy(bits.view(np.int32)).to(x.device)
        return (result, None) if scheme.block == "tensor" else (None, result)
    if not scheme.tensor:
        return None, None
    return None, _Where(x.shape, scheme, "row" if scheme.tensor == "row" else "tensor").maxima(x, scheme)


class _Where:
    """The blocks of a tensor whose last dimension they lie along, as the C++ finds them."""

    def __init__(self, shape: torch.Size, scheme: Scheme, block: Block | None = None) -> None:
        block = block or scheme.block
        *lead, k = shape
        self.height, rows = 1, math.prod(lead)
        if block == "tensor":
            rows, k = 1, math.prod(shape)
        high, wide = (1, 0) if isinstance(block, str) else block
        if high > 1:
            self.height = lead[-1]
        self.high, self.wide = max(min(high, self.height), 1), min(wide, max(k, 1))
        across = -(-k // (self.wide or max(k, 1)))
        self.sizes = rows, k, self.height
        self.runs = rows * across * -(-(self.wide or k) // RUN)
        above = lead if high == 1 else [*lead[:-1], -(-self.height // self.high)]
        self.of_scales = (1,) * len(shape) if block == "tensor" else (*above, across)
        self.blocks = math.prod(self.of_scales)

    def kernel(self, entry: str, scheme: Scheme, mode: int = 0, random: int = 32, most: float = LARGEST) -> Kernel:
        return running.kernel(entry, ("scales.h",), {
            **constants(scheme, mode, random, most), "HIGH": self.high, "WIDE": self.wide, "RUN": RUN,
        })  # fmt: skip

    def run(self, kernel: Kernel, threads: int, *arguments: Any) -> None:
        device = next(str(x.device) for x in arguments if isinstance(x, torch.Tensor))
        running.run(kernel, device, threads, *arguments)

    def maxima(self, x: torch.Tensor, scheme: Scheme) -> torch.Tensor:
        """The largest magnitude of each block, as bits."""
        most = torch.zeros(self.blocks, dtype=torch.int32, device=x.device)
        self.run(self.kernel("maxima", scheme), self.runs, x, most, *self.sizes)
        return most


@lru_cache
def constants(scheme: Scheme, mode: int, random: int, most: float) -> dict[str, int]:
    """A scheme as the C++ sees it: floats as their bits."""
    rule = rule_of(scheme, most)._asdict() | {
        "element_max": scheme.element.max,
        "top": scheme.top if scheme.kind == "narrow" else 1.0,
    }
    signed_zero = scheme.kind != "narrow" or scheme.variant != "te"
    grid = partial(grid_of, mode=mode, random=random, signed_zero=True)
    element = grid_of(scheme.element, random, mode, signed_zero)
    numbers = {**rule, **{f"element_{name}": x for name, x in element._asdict().items()},
               **{f"scale_{name}": x for name, x in grid(scheme.scale)._asdict().items()}}  # fmt: skip
    result = {name: int(f32(x).view(np.uint32)) if isinstance(x, float) else int(x) for name, x in numbers.items()}
    named = {OTHERS.get(name, name.upper()): x for name, x in result.items()}
    return {**named, "SECOND": int(bool(scheme.tensor)), "SQUARED": int(scheme.rule.endswith("mse")), "MODE": mode,
            "BITS": random}  # fmt: skip
