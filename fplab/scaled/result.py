"""What quantising gives: codes and scales, the values they stand for, and their bytes as the hardware lays them out."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..arrays import check_out
from ..errors import quotes_call
from ..floats import PAST_CACHE
from ..formats import Format
from ..integers import pack_int4
from ..kernels import scaled as kernels
from ..threads import split
from .schemes import Scheme

Array = np.ndarray[Any, Any]
f32 = np.float32


def axis_moved(x: Array, source: int, destination: int) -> Array:
    """``np.moveaxis``, which for the last two dimensions takes longer than a small array's kernel."""
    if -2 <= source < 0 and -2 <= destination < 0:
        return x.swapaxes(source, destination)
    return np.moveaxis(x, source, destination)


class Packed(NamedTuple):
    """Bytes, uint8 (n,), of codes and of scales."""

    codes: Array
    scales: Array


@dataclass(frozen=True, eq=False)
class Scaled:
    """An array as codes, and the scale of each block.

    ``codes``: uint8, the array's shape, one a byte. ``scales``: codes of the scheme's scale format, uint8, or float32
    that dequantise; the array's shape with one for each block along ``axis`` (and the axis before it, for blocks of
    several rows; all ones for the tensor). ``amax``: float32, the largest magnitude that the second scale was made
    from, broadcasting to the array; None without one.
    """

    codes: Array
    scales: Array
    amax: Array | None
    scheme: Scheme
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return tuple(self.codes.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of codes, as they are packed, and of all scales, without what fills layouts up."""
        second = 0 if self.amax is None else self.amax.nbytes
        return -(-self.codes.size * self.scheme.element.bits // 8) + self.scales.nbytes + second

    @property
    def global_scale(self) -> Array | None:
        """The second scale, float32: amax / :attr:`Scheme.top`; None without one."""
        if self.amax is None:
            return None
        return np.asarray(self.amax / f32(self.scheme.top))

    def elements(self) -> Array:
        """The values of the codes, float32, what a Tensor Core multiplies."""
        return values_of(self.codes, self.scheme.element)

    def scale_values(self, each_row: bool = False) -> Array:
        """The values of the scales of blocks, float32, what a Tensor Core takes beside the elements.

        ``each_row``: of blocks of several rows once for each of these, as if they had one.
        """
        if each_row and not isinstance(self.scheme.block, str):
            codes, scales = (axis_moved(part, self.axis, -1) for part in (self.codes, self.scale_values()))
            return axis_moved(over_rows(scales, self.scheme.block[0], codes.shape), -1, self.axis)
        return self.scales if self.scheme.kind == "fp32" else values_of(self.scales, self.scheme.scale)

    def factors(self) -> Array:
        """What the elements of each block are multiplied by to dequantise, float32, of the scales' shape."""
        if self.amax is None:
            return self.scale_values()
        top = f32(self.scheme.top)
        one_amax = self.amax.size == 1  # then a code has one factor everywhere
        values = table_of(self.scheme.scale) if one_amax else self.scale_values()
        amax = self.amax.reshape(()) if one_amax else self.amax
        with np.errstate(all="ignore"):
            torchao = self.scheme.variant == "torchao"
            factors = np.asarray((amax / top) * values if torchao else (values * amax) * (f32(1) / top))
        return looked_up(factors, self.scales) if one_amax else factors

    @quotes_call
    def dequantize(self, *, out: Array | None = None) -> Array:
        """The array that codes and scales stand for, float32: an element times :meth:`factors`, rounded once.

        ``out``: float32 of the array's shape.

        >>> from fplab import scaled
        >>> scaled.quantize([[1.0, 2.0], [3.3, 7.0]], "fp8_row").dequantize()
        array([[1.  , 2.  ],
               [3.25, 7.  ]], dtype=float32)
        """
        codes, factors, k, block = self._rows()
        result = np.empty(codes.shape, f32)
        if out is not None and self._is_last(check_out(out, self.shape, f32)) and codes.shape[-1] == k:
            result = out
        grid = grid_of(self.scheme.element)
        flat, bits, scales = codes.reshape(-1), result.reshape(-1).view(np.uint32), factors.reshape(-1)

        def run(a: int, b: int) -> None:
            first = (-bits[a:].ctypes.data % 64) // 4
            kernels.dequantize(flat[a:b], scales[a // block :], bits[a:b], block, grid, first, flat.size >= PAST_CACHE)

        split(run, flat.size, unit=block)
        if result is out:
            return out
        back = axis_moved(result[..., :k], -1, self.axis).reshape(self.shape)
        if out is None:
            return back
        out[...] = back
        return out

    def _is_last(self, out: Array) -> bool:
        """Whether a result can be computed in place."""
        return out.ndim > 0 and self.axis in (-1, out.ndim - 1) and out.flags.c_contiguous and out.flags.aligned

    def _rows(self) -> tuple[Array, Array, int, int]:
        """Codes with the axis last and whole blocks of zeros at its end, a factor each, its length, and the block's."""
        codes = axis_moved(self.codes.reshape(self.codes.shape or (1,)), self.axis, -1)
        factors, k = axis_moved(self.factors(), self.axis, -1), codes.shape[-1]
        if isinstance(self.scheme.block, str):
            block = max(codes.size if self.scheme.block == "tensor" else k, 1)
        else:
            high, block = self.scheme.block
            factors = over_rows(factors, high, codes.shape)
            if k % block:
                codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -k % block)])
        return np.ascontiguousarray(codes), np.ascontiguousarray(factors), k, block

    def packed(self) -> Packed:
        """The bytes as the hardware's units take them: rows along the axis, filled up with zeros to whole blocks.

        Codes lie densely from the low bits up: two of 4 bits a byte, four of 6 bits in three. Scales of blocks that are
        codes lie in tiles of 128 rows and 4 blocks, 512 bytes each, filled up with zeros: row 32 i + j of a tile is at
        bytes 16 j + 4 i. FP32 scales are little-endian, as they are. Source: cuBLAS, "Block Scaling Factors Layout".
        """
        codes, _, _, _ = self._rows()
        bits = self.scheme.element.bits
        if bits == 4:
            codes = pack_int4(codes)
        elif bits < 8:
            single = np.unpackbits(codes[..., None], axis=-1, count=bits, bitorder="little")
            codes = np.packbits(single.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")
        scales = axis_moved(self.scales, self.axis, -1)
        if self.scheme.kind == "fp32":
            return Packed(codes.reshape(-1), np.ascontiguousarray(scales, "<f4").reshape(-1).view(np.uint8))
        if not isinstance(self.scheme.block, str):
            scales = over_rows(scales, self.scheme.block[0], codes.shape)
        return Packed(codes.reshape(-1), swizzled(scales.reshape(math.prod(scales.shape[:-1]), scales.shape[-1])))


@lru_cache
def table_of(fmt: Format) -> Array:
    """The values of all codes of a format of at most 8 bits, float32 (256,); without a kernel's compilation."""
    top = fmt.max_code
    above = [math.inf if code == fmt.inf_code else math.nan for code in range(top + 1, fmt.sign_mask or 1 << fmt.bits)]
    magnitudes = np.array([*map(fmt.magnitude, range(top + 1)), *above], f32)
    return np.resize(np.concatenate([magnitudes, -magnitudes]) if fmt.signed else magnitudes, 256)


def values_of(codes: Array, fmt: Format) -> Array:
    """The values of codes, float32."""
    return looked_up(table_of(fmt), codes)


def looked_up(table: Array, codes: Array) -> Array:
    """What a table of 256 float32 has for each of codes, uint8."""
    result, flat = np.empty(codes.shape, f32), codes.reshape(-1)
    split(lambda a, b: table.take(flat[a:b], out=result.reshape(-1)[a:b], mode="clip"), flat.size)
    return result


def over_rows(scales: Array, high: int, shape: tuple[int, ...]) -> Array:
    """Scales of blocks of ``high`` rows, one for each row of an array of that shape."""
    if high == 1:
        return scales
    rows: Array = np.repeat(scales, high, axis=-2)
    return rows[..., : shape[-2], :]


def swizzled(scales: Array) -> Array:
    """Scales (rows, blocks), uint8, in the layout of 128 rows and 4 blocks a tile, flat."""
    rows, blocks = scales.shape
    padded = np.pad(scales, [(0, -rows % 128), (0, -blocks % 4)])
    tiles = padded.reshape(-(-rows // 128), 4, 32, -(-blocks // 4), 4)  # tile row, i, j, tile column, block
    return np.ascontiguousarray(tiles.transpose(0, 3, 2, 1, 4)).reshape(-1)


def unswizzled(scales: Any, rows: int, blocks: int) -> Any:
    """Scales (rows, blocks) out of the layout of tiles, flat, that :func:`swizzled` gives: an array or a tensor."""
    down, across = -(-rows // 128), -(-blocks // 4)
    tiles = scales.reshape(down, across, 32, 4, 4).swapaxes(1, 3)
    return tiles.reshape(128 * down, 4 * across)[:rows, :blocks]


def bits_of(x: float) -> int:
    """The bits of a number as float32."""
    return int(f32(x).view(np.uint32))


@lru_cache
def grid_of(fmt: Format, random: int = 32, mode: int = 0, signed_zero: bool = True) -> kernels.Grid:
    """A format as kernels want it."""
    if fmt.bits > 8 or not fmt.zero:
        return grid_of(Format("unused", 2, 1), random, mode, signed_zero)
    f = fmt.fraction_bits
    return kernels.Grid(
        emin=bits_of(fmt.smallest_normal), magic=((23 - f) << 23) + 0x400000, ulp=f << 23,
        units=(2 * 127 + (8 if random == 8 else 32) + f) << 23, largest=bits_of(fmt.max), fold=23 - f,
        sign=fmt.sign_mask, shift=32 - fmt.bits, nan=fmt.nan_code or 0, zero=fmt.sign_mask if signed_zero else 0,
        mode=mode, finite=fmt.max_code, infinite=fmt.inf_code or 0,
    )  # fmt: skip
