"""One operation on float32 arrays, rounded once into a format: what every line of an optimizer is."""

from functools import lru_cache
from typing import Any

import numpy as np

from ...errors import LabError
from ...formats import Format, FormatLike, Overflow, get, overflow
from ...kernels import optim
from ...kernels.rounding import stream_keys
from ...threads import SMALLEST_SHARE, split

NO_KEYS = (np.uint32(0), np.uint32(0))
OVER = {Overflow.INF: np.inf, Overflow.NAN: np.nan}


@lru_cache
def grid(fmt: Format) -> optim.Grid:
    """A format as the kernels see it, or an error if it cannot hold an optimizer's numbers."""
    one_bit = fmt.ties_by_code and not fmt.fraction_bits
    if not fmt.signed or not fmt.zero or not fmt.fits_float32 or one_bit:
        why = "rounds ties of one bit by code" if one_bit else "has no sign or no zero"
        why = why if fmt.fits_float32 else "does not fit float32, in which values travel"
        raise LabError(f"{fmt.name} cannot hold weights or states: it {why}.")
    p, policy = fmt.significand_bits, overflow(None, fmt)
    return optim.Grid(emin=_bits(fmt.smallest_normal), top=_bits(2.0 ** (fmt.emax + 1)),
                      magic=((53 - p) << 52) + (1 << 51), ulp=(p - 1) << 52, largest=_bits(fmt.max),
                      over=_bits(OVER.get(policy, fmt.max)),
                      minus_zero=int(fmt.has_negative_zero))  # fmt: skip


def _bits(x: float) -> int:
    return int(np.float64(x).view(np.int64))


def rounded(
    operation: str, left: np.ndarray, right: np.ndarray | float = 0.0, fmt: FormatLike = "fp32", *,
    seed: int | None = None, out: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """``left`` operation ``right`` ("add", "sub", "mul", "div", "sqrt", "hold") as exact numbers, rounded once.

    ``left``: float32 (n,), contiguous; ``right``: the same, or a number, which is rounded to float32 first as torch
    rounds a Python number beside a tensor. Rounds to nearest, ties to even, or with a ``seed`` stochastically: element
    i of a seed draws the random word that :func:`fplab.quantize` gives it. ``out``: where to, an operand or not.

    >>> rounded("add", np.float32([2048.0]), 1.0, "fp16")
    array([2048.], dtype=float32)
    """
    form = get(fmt)
    result = np.empty_like(left) if out is None else out
    array = isinstance(right, np.ndarray)
    loop, to, number = optim.kernel(operation, array, seed is not None), grid(form), float(np.float32(_number(right)))
    keys: Any = NO_KEYS if seed is None else stream_keys(np.uint64(seed), np.uint64(0))

    def run(a: int, b: int) -> None:
        loop(left[a:b], right[a:b] if isinstance(right, np.ndarray) else number, result[a:b], to, a, *keys)

    if left.size < 2 * SMALLEST_SHARE:
        run(0, left.size)  # one share anyway, and an optimizer's many small tensors feel what asking costs
    else:
        split(run, left.size, unit=optim.BLOCK)
    if not form.has_nan and np.isnan(result).any():
        raise LabError(f"the result of {operation} is NaN, and {form.name} has none; look for the first NaN gradient.")
    return result


def _number(right: np.ndarray | float) -> float:
    return 0.0 if isinstance(right, np.ndarray) else right
