"""Block-wise quantisation: each block of a flattened array in units of its own largest magnitude."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import check_out, values
from ..errors import LabError, integer, quotes_call
from ..threads import split
from . import books, rules
from .books import Codebook
from .rules import Rule
from .thresholds import ladder, plan, rank_of, thresholds

Array = np.ndarray[Any, Any]
MOST = 1 << 62
SMALLEST = np.float32(1e-38)  # what a maximum counts at least before its reciprocal, in kernels too
PAST_CACHE = 1 << 20  # elements from which results are written past the cache


@dataclass(frozen=True, eq=False)
class Quantized:
    """An array as codes, and the scale of each block.

    ``codes``: uint8, the array's shape. ``absmax``: float32 (blocks,), the largest magnitude of each block, NaN for
    one that is not finite. ``code``: the codebook. ``block``: elements of the flattened array in a block; the last
    block may have fewer.
    """

    codes: Array
    absmax: Array
    code: Codebook
    block: int

    @property
    def nbytes(self) -> int:
        """Bytes of codes, as they would be packed, and scales."""
        return -(-self.codes.size * self.code.bits // 8) + 4 * self.absmax.size


def block_count(n: int, block: int) -> int:
    """How many blocks ``n`` elements make."""
    return -(-n // block)


def block_size(block: int | None, n: int) -> int:
    """The elements of a block; None is the whole array."""
    return max(n, 1) if block is None else integer("block", block, 1, MOST, " (None: the whole array)")


@quotes_call
def quantize_blockwise(
    x: Any, code: str | Codebook, block: int | None = 2048, ties: str | Rule = "even", *, stochastic: bool = False,
    seed: int | None = None, nan: str | None = None, out: Array | None = None,
) -> Quantized:  # fmt: skip
    """Quantise an array block by block: ``argmin_j |Q_j - x_i / N|`` with N the block's largest magnitude.

    ``x``: float32; other dtypes are rounded to it first. ``code``: a :class:`Codebook`, or the name of one of
    :data:`fplab.codebooks.BOOKS`; one without negative values refuses negative elements. ``block``: elements to a
    block, 2048 by default, None for all. The scaled element is the float32 quotient, rounded once.

    ``ties``: "even" (rank) or "lower"; or "bitsandbytes cuda", "bitsandbytes torch", "bitsandbytes cpu", which also
    round midpoints and reciprocals as those do; or a :class:`~fplab.codebooks.rules.Rule`.
    ``stochastic=True`` with a ``seed``: up with the probability of the distance from the value below, instead.
    ``nan``: None refuses NaN and infinity; "propagate" makes a block that has one all NaN. A block of zeros gets the
    code nearest to 0 and scale 0. ``out``: uint8 of x's shape, for the codes.

    Source: arXiv 2110.02861, section 2.1.

    >>> from fplab import codebooks
    >>> q = quantize_blockwise([1.0, -2.0, 0.5, 0.001], codebooks.dynamic(), block=2)
    >>> q.codes, q.absmax
    (array([219,   0, 255, 144], dtype=uint8), array([2. , 0.5], dtype=float32))
    """
    code = books.get(code)
    if nan not in (None, "propagate"):
        raise LabError(f'nan={nan!r} is not possible; allowed: None (an error), "propagate" (the block becomes NaN).')
    rule = rules.get(ties)
    if stochastic and seed is None:
        raise LabError("stochastic=True needs a seed, such as seed=0.")
    if stochastic and rule is not rules.EVEN:
        raise LabError(f"ties={rule.name!r} with stochastic=True: there are no ties; leave it out.")
    given = values(x)
    with np.errstate(over="ignore", invalid="ignore"):  # a signalling NaN becomes quiet
        flat = given.flat.astype(np.float32, copy=False)
    size = block_size(block, flat.size)
    direct = out is not None and check_out(out, given.shape, np.uint8).flags.c_contiguous
    codes = out.reshape(-1) if direct and out is not None else np.empty(flat.size, np.uint8)
    if np.may_share_memory(codes, flat):
        codes = np.empty(flat.size, np.uint8)
    absmax = np.empty(block_count(flat.size, size), np.float32)
    if stochastic:
        negative = _stochastic(flat, codes, absmax, size, code, seed)
    else:
        negative = _nearest(flat, codes, absmax, size, code, rule)
    _special_blocks(flat, codes, absmax, size, code, rule, nan, given.flat)
    if negative and not code.signed and (flat < 0).any():
        at = int(np.argmax(flat < 0))
        raise LabError(f"element {at} is {float(flat[at])!r}, and {code.name} has no negative values.")
    if code.codes is not None:
        np.take(code.codes, codes, out=codes, mode="clip")
    if out is not None and codes.ctypes.data != out.ctypes.data:
        out[...] = codes.reshape(given.shape)
    return Quantized(codes.reshape(given.shape) if out is None else out, absmax, code, size)


def _nearest(flat: Array, codes: Array, absmax: Array, size: int, code: Codebook, rule: Rule) -> bool:
    """Ranks and maxima by a rule; whether an element may be negative, where the codebook has no negative values."""
    from ..kernels.codebooks import QUANTIZE

    how = plan(code, rule)
    kernel = QUANTIZE[code.signed, rule.divides, how.keyed]

    def run(a: int, b: int) -> bool:
        scales = absmax[a // size : block_count(b, size)]
        finite: bool = kernel(flat[a:b], codes[a:b], scales, size, how.table, how.low, how.shift, how.offset)
        return finite

    return any(split(run, flat.size, unit=size))


def _stochastic(flat: Array, codes: Array, absmax: Array, size: int, code: Codebook, seed: Any) -> bool:
    from ..kernels.codebooks import QUANTIZE_STOCHASTIC

    word, how = np.uint64(integer("seed", seed, 0, 2**64 - 1)), plan(code, None)
    kernel = QUANTIZE_STOCHASTIC[how.keyed]

    def run(a: int, b: int) -> bool:
        scales = absmax[a // size : block_count(b, size)]
        finite: bool = kernel(flat[a:b], codes[a:b], scales, size, how, *ladder(code), a, word)
        return finite

    return any(split(run, flat.size, unit=size))


def _special_blocks(
    flat: Array, codes: Array, absmax: Array, size: int, code: Codebook, rule: Rule, nan: str | None, given: Array
) -> None:
    """Blocks that are not finite are refused or get the code of 0; blocks of zeros get what the rule says.

    ``given``: the elements before they were rounded to float32.
    """
    lost = np.isnan(absmax)
    if lost.any() and nan is None:
        first = int(np.argmax(lost)) * size
        at = first + int(np.argmax(~np.isfinite(flat[first : first + size])))
        raise LabError(
            f"element {at} is {float(given[at])!r}{', beyond float32' if np.isfinite(given[at]) else ''}; pass "
            f'nan="propagate" and its block of {size} becomes NaN, or replace it.'
        )
    if not rule.divides and not rule.clamps:
        _tiny_blocks(flat, codes, absmax, size, code, rule)
    zero = int(rank_of(np.zeros(1, np.float32), thresholds(code, rule))[0])
    _fill(codes, lost, size, zero)
    if not rule.zeros_as_zero:
        _fill(codes, absmax == 0, size, 0)


def _tiny_blocks(flat: Array, codes: Array, absmax: Array, size: int, code: Codebook, rule: Rule) -> None:
    """Blocks whose maximum the kernel clamped and the rule does not: times the reciprocal as it is, infinite or not."""
    blocks = np.flatnonzero((absmax > 0) & (absmax < SMALLEST))
    at = (blocks[:, None] * size + np.arange(size)).reshape(-1) if blocks.size else blocks
    at = at[at < flat.size]
    if at.size:
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = flat[at] * (np.float32(1) / absmax[at // size])
        scaled = np.where(np.isnan(scaled), np.float32(-1), np.clip(scaled, np.float32(-1), np.float32(1)))
        codes[at] = rank_of(scaled, thresholds(code, rule))


def _fill(codes: Array, chosen: Array, size: int, rank: int) -> None:
    """Give every element of the chosen blocks one rank."""
    if chosen.any():
        whole = codes.size // size
        codes[: whole * size].reshape(whole, size)[chosen[:whole]] = rank
        codes[whole * size :][chosen[whole:].repeat(codes.size - whole * size)] = rank


@quotes_call
def dequantize_blockwise(quantized: Quantized, *, out: Array | None = None) -> Array:
    """The array that codes and scales stand for: ``Q[code] * N``, float32, rounded once.

    ``out``: float32 of the codes' shape.

    >>> from fplab import codebooks
    >>> dequantize_blockwise(quantize_blockwise([1.0, -2.0, 0.5, 0.001], codebooks.dynamic(), block=2))
    array([ 1.0015625e+00, -1.9859375e+00,  5.0000000e-01,  9.2187501e-04],
          dtype=float32)
    """
    from ..kernels.codebooks import dequantize

    if not isinstance(quantized, Quantized) or not isinstance(quantized.code, Codebook):
        raise LabError(f"quantized is a {type(quantized).__name__}; pass what quantize_blockwise returned.")
    size = integer("block", quantized.block, 1, MOST)
    codes, absmax = np.asarray(quantized.codes), np.ascontiguousarray(quantized.absmax, np.float32)
    if codes.dtype != np.uint8 or absmax.shape != (block_count(codes.size, size),):
        raise LabError(
            f"codes are {codes.dtype}[{codes.size}] in blocks of {size}, which need uint8 and "
            f"{block_count(codes.size, size)} scales; absmax has {absmax.size}."
        )
    table = quantized.code.table
    if codes.size and table.size < 256 and int(codes.max()) >= table.size:
        raise LabError(f"codes go up to {int(codes.max())}; {quantized.code.name} has codes 0 to {table.size - 1}.")
    flat = np.ascontiguousarray(codes).reshape(-1)
    direct = out is not None and check_out(out, codes.shape, np.float32).flags.c_contiguous and out.flags.aligned
    result = out.reshape(-1) if direct and out is not None else np.empty(flat.size, np.float32)
    if np.may_share_memory(result, flat):
        result = np.empty(flat.size, np.float32)
    bits, past_cache = result.view(np.uint32), flat.size >= PAST_CACHE

    def run(a: int, b: int) -> None:
        first = (-bits[a:].ctypes.data % 64) // 4
        dequantize(flat[a:b], absmax[a // size :], bits[a:b], size, table, first, past_cache)

    split(run, flat.size, unit=size)
    if out is None:
        return result.reshape(codes.shape)
    if result.ctypes.data != out.ctypes.data:
        out[...] = result.reshape(codes.shape)
    return out
