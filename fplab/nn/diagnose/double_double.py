"""Tensors of double-double numbers: each a float64 and the rest of it, together about 106 bits from 2**-960 to 2**960.

Sums, products, quotients, roots, exponentials, logarithms and products of matrices are written here from their
definitions; torch takes its other operations apart into these (softmax, norms, attention, losses and their gradients).
What has no such form is computed in float64 on the sum of both, and its name is taken down.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import partial
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from ...kernels import double_double as kernel
from ...threads import split
from ..tracer import Event, base_name, name_of
from . import exact_operations

Tensor = torch.Tensor
_SPLITTER = 2.0**27 + 1
_TERMS, _HALVINGS = 14, 4  # of the series of exp, for arguments of up to log(2) / 32: the next is below 2**-113
_LEAST = -745.0  # exp is 0 below it
_FLAT = 40.0  # tanh is 1 from here on
_MOST_POWER = 64
_LINEAR = (exact_operations.MOVES | {
    "broadcast_in_dim", "conj_physical", "convert_element_type", "copy", "reshape", "squeeze", "to", "_to_copy",
    "_unsafe_view",
}) - {
    "abs", "constant_pad_nd", "max", "max_pool2d_with_indices", "relu", "sort", "threshold_backward", "topk",
}  # fmt: skip
_COMPARED = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})
_seen: ContextVar[Counter[str]] = ContextVar("operations in float64")


class Pair(torch.Tensor):
    """``high`` + ``low``, float64 of one shape; ``low`` is at most half a unit of ``high``'s last place."""

    high: Tensor
    low: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, high: Tensor, low: Tensor) -> Pair:
        result: Pair = torch.Tensor._make_wrapper_subclass(
            cls, high.shape, strides=high.stride(), storage_offset=high.storage_offset(), dtype=high.dtype,
            device=high.device,
        )  # fmt: skip
        result.high, result.low = high, low
        return result

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """One operation on pairs."""
        return _evaluate(func, args, kwargs or {})


@contextmanager
def evaluating(seen: Counter[str]) -> Iterator[None]:
    """While pairs are computed with, inside of a mode: operations without a form of theirs are counted in ``seen``."""
    key = torch._C.DispatchKey.Python
    excluded, token = torch._C._dispatch_tls_is_dispatch_key_excluded(key), _seen.set(seen)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        with _disable_current_modes():
            yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, excluded)
        _seen.reset(token)


def halves(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """A tensor in float64, and the rest of it where it is a pair."""
    return (x.high, x.low) if isinstance(x, Pair) else (x, None)


def copied(x: Tensor) -> Tensor:
    """A copy of a tensor or a pair."""
    return Pair(x.high.clone(), x.low.clone()) if isinstance(x, Pair) else x.clone()


def difference(x: Tensor, y: Tensor) -> Tensor:
    """``x - y`` in float64, of tensors or pairs."""
    (high, low), (other, rest) = halves(x), halves(y)
    return high - other if low is None or rest is None else (high - other) + (low - rest)


def of(x: Any) -> Pair:
    """A tensor or a number of Python as a pair."""
    if isinstance(x, Pair):
        return x
    high = x.to(torch.float64) if isinstance(x, Tensor) else torch.tensor(float(x), dtype=torch.float64)
    return Pair(high, torch.zeros_like(high))


def _evaluate(func: Any, args: Any, kwargs: Any) -> Any:
    space, _, name = base_name(func).rpartition("::")
    if space not in ("", "prims"):
        return _in_float64(func, name, args, kwargs)
    places = name == "scatter" and not kwargs and isinstance(args[3], (float, Tensor))
    if func.is_view or name in _LINEAR or places:
        return _on_both(func, name, args, kwargs)
    if name in _COMPARED:
        return func(_add(of(args[0]), _negative(of(args[1]))).high, 0)
    if name in _OPERATIONS and "out" not in kwargs:
        result = _OPERATIONS[name](*args, **kwargs)
        if result is not NotImplemented:
            return _into(args[0], result) if base_name(func) != name_of(func) else result
    elif not exact_operations.makes(func):
        for form in (decomposition_table.get(func), func.decompose if func._can_decompose() else None):
            if form is not None and (result := form(*args, **kwargs)) is not NotImplemented:
                return result
    return _in_float64(func, name, args, kwargs)


def _into(x: Pair, value: Pair) -> Pair:
    x.high.copy_(value.high)
    x.low.copy_(value.low)
    return x


def _on_both(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What only moves values, moved in both halves; numbers in the place of values are in the first."""
    if Event(func, args, kwargs).written and not isinstance(args[0], Pair):
        raise NotImplementedError(f"{name} of pairs into a plain tensor")
    numbers = (int, float) if name in ("where", "fill") else float

    def low(x: Any) -> Any:
        if isinstance(x, Pair):
            return x.low
        if isinstance(x, Tensor) and x.is_floating_point():
            return torch.zeros_like(x)
        return 0.0 if isinstance(x, numbers) and not isinstance(x, bool) else x

    highs = func(*tree_map(_high, args), **tree_map(_high, kwargs))
    lows = func(*tree_map(low, args), **tree_map(low, kwargs))
    if any(isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64 for x in tree_leaves(highs)):
        _seen.get()[name] += 1  # to a narrower type
    return tree_map(lambda x, y: Pair(x, y) if isinstance(x, Tensor) and x.dtype == torch.float64 else x, highs, lows)


def _in_float64(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """An operation on the first halves, which are the nearest of float64."""
    if not exact_operations.makes(func):
        _seen.get()[name] += 1
    result = func(*tree_map(_high, args), **tree_map(_high, kwargs))
    for x in tree_leaves(Event(func, args, kwargs).written):
        if isinstance(x, Pair):
            x.low.zero_()
    return tree_map(lambda x: of(x) if isinstance(x, Tensor) and x.dtype == torch.float64 else x, result)


def _high(x: Any) -> Any:
    return x.high if isinstance(x, Pair) else x


# --- arithmetic -----------------------------------------------------------------------------------------------------


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A sum and its rounding error."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A product and its rounding error, by halves of 26 bits."""
    (x, rest), (y, left) = ((c - (c - v), v - (c - (c - v))) for v, c in ((a, _SPLITTER * a), (b, _SPLITTER * b)))
    product = a * b
    return product, ((x * y - product) + x * left + rest * y) + rest * left


def _pair(high: Tensor, low: Tensor) -> Pair:
    """The pair of a number and a smaller one; what is not finite has no rest."""
    low = low.nan_to_num(0.0, 0.0, 0.0)
    total = high + low
    return Pair(total, (low - (total - high)).nan_to_num(0.0, 0.0, 0.0))


def _negative(a: Pair) -> Pair:
    return Pair(-a.high, -a.low)


def _scaled(a: Pair, by: float) -> Pair:
    """Times a power of two."""
    return Pair(a.high * by, a.low * by)


def _add(a: Pair, b: Pair) -> Pair:
    high, error = _two_sum(a.high, b.high)
    low, rest = _two_sum(a.low, b.low)
    first = _pair(high, error + low)
    return _pair(first.high, first.low + rest)


def _multiply(a: Pair, b: Pair) -> Pair:
    high, error = _two_product(a.high, b.high)
    return _pair(high, error + (a.high * b.low + a.low * b.high))


def _divide(a: Pair, b: Pair) -> Pair:
    result, rest = of(a.high / b.high), a
    quotient = result
    for _ in range(2):  # each gives the next 53 bits
        rest = _add(rest, _negative(_multiply(quotient, b)))
        quotient = of(rest.high / b.high)
        low = result.low + quotient.high
        result = _pair(result.high, low)
    return result


def _root(a: Pair) -> Pair:
    high = a.high.sqrt()
    rest = _add(a, _negative(_multiply(of(high), of(high)))).high
    return _pair(high, rest / (2 * high))


def _added(a: Any, b: Any, alpha: Any = 1) -> Pair:
    return _add(of(a), of(b) if alpha == 1 else _multiply(of(b), of(alpha)))


def _summed(x: Pair, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Pair:
    """Over some dimensions or all, in pairs of numbers."""
    dims = sorted({d % x.dim() for d in ([dim] if isinstance(dim, int) else dim or range(x.dim()))}) if x.dim() else []
    kept = [1 if d in dims else n for d, n in enumerate(x.shape)]
    order = [*(d for d in range(x.dim()) if d not in dims), *dims]
    count = math.prod(x.shape[d] for d in dims)
    halves = (h.permute(order).reshape(*(x.shape[d] for d in order[: len(order) - len(dims)]), count)
              for h in (x.high, x.low))  # fmt: skip
    result = Pair(*halves)
    while (n := result.shape[-1]) > 1:
        first, second = (
            (Pair(result.high[..., s], result.low[..., s])) for s in (slice(n // 2), slice(n // 2, n & -2))
        )
        rest = [result.high[..., n & -2 :], result.low[..., n & -2 :]]
        total = _add(first, second)
        result = Pair(*(torch.cat([h, r], -1) for h, r in zip((total.high, total.low), rest, strict=True)))
    shape = kept if keepdim else [n for d, n in enumerate(x.shape) if d not in dims]
    if not count:
        return of(torch.zeros(shape, dtype=torch.float64))
    return Pair(result.high.reshape(shape), result.low.reshape(shape))


def _largest(x: Pair, dim: Any = (), keepdim: bool = False) -> Pair:
    """Over some dimensions or all; of equal first halves the larger second."""
    dims = [dim] if isinstance(dim, int) else list(dim) or list(range(x.dim()))
    high = x.high.amax(dims, keepdim=True)
    low = torch.where(x.high == high, x.low, -math.inf).amax(dims, keepdim=True).nan_to_num(0.0, 0.0, 0.0)
    return Pair(high, low) if keepdim else Pair(high.squeeze(dims), low.squeeze(dims))


def _variance(x: Pair, dims: Sequence[int] | None, correction: float = 1) -> Pair:
    dims = list(range(x.dim())) if dims is None else list(dims)
    count = math.prod(x.shape[d] for d in dims)
    apart = _add(x, _negative(_divide(_summed(x, dims, True), of(count))))
    return _divide(_summed(_multiply(apart, apart), dims), of(max(count - correction, 0)))


def _product(a: Any, b: Any) -> Pair:
    """Of matrices (..., M, K) and (..., K, N)."""
    shape, count = (*a.shape[:-1], b.shape[-1]), math.prod(a.shape[:-2])
    given = [h.contiguous().reshape(count, *x.shape[-2:]).numpy() for x in map(of, (a, b)) for h in (x.high, x.low)]
    high, low = torch.zeros(2, *shape, dtype=torch.float64)
    out = [x.view(count, *shape[-2:]).numpy() for x in (high, low)]
    row = a.shape[-1] * shape[-1]  # products in one

    def work(one: Sequence[Any], start: int, stop: int) -> None:
        kernel.matmul(*one, start // row, stop // row)

    for i in range(count if row else 0):
        split(partial(work, [x[i] for x in (*given, *out)]), shape[-2] * row, unit=row)
    return Pair(high, low)


# --- functions ------------------------------------------------------------------------------------------------------


def _constant(x: Fraction) -> Pair:
    high = float(x)
    return Pair(*(torch.tensor(v, dtype=torch.float64) for v in (high, float(x - Fraction(high)))))


_LOG_2 = _constant(sum((Fraction(1, n << n) for n in range(1, 130)), Fraction(0)))
_SERIES = [_constant(Fraction(1, math.factorial(n))) for n in range(_TERMS, 0, -1)]


def _exponential(x: Pair, less: bool = False) -> Pair:
    """exp(x), or exp(x) - 1: of the rest from a multiple of log(2), by its series at a 16th and four squarings."""
    steps = (x.high / math.log(2)).round().nan_to_num(0.0, 0.0, 0.0).clamp(-1100, 1100)
    rest = _scaled(_add(x, _negative(_multiply(of(steps), _LOG_2))), 2.0**-_HALVINGS)
    result = _SERIES[0]
    for term in _SERIES[1:]:
        result = _add(_multiply(result, rest), term)
    result = _multiply(result, rest)
    for _ in range(_HALVINGS):
        result = _multiply(result, _add(result, of(2)))
    whole = _add(result, of(1))
    whole = Pair(torch.ldexp(whole.high, steps), torch.ldexp(whole.low, steps))
    if less:
        whole = _chosen(steps == 0, result, _add(whole, of(-1)))
    plain = torch.expm1(x.high) if less else torch.exp(x.high)
    return _chosen(plain.isfinite() & (x.high > _LEAST), whole, of(plain))


def _logarithm(x: Pair) -> Pair:
    """A step from the nearest of float64, whose error is small: y + e - e**2 / 2 with e = x exp(-y) - 1."""
    near = of(x.high.log())
    error = _add(_multiply(x, _exponential(_negative(near))), of(-1))
    result = _add(near, _add(error, _scaled(_multiply(error, error), -0.5)))
    return _chosen(near.high.isfinite(), result, near)


def _tangent(x: Pair) -> Pair:
    less = _exponential(_scaled(x, 2.0), less=True)
    return _chosen(x.high.abs() < _FLAT, _divide(less, _add(less, of(2))), of(x.high.tanh()))


def _power(x: Any, exponent: Any) -> Any:
    """By squaring; only whole numbers and a half."""
    if not (isinstance(x, Pair) and isinstance(exponent, (int, float)) and abs(exponent) <= _MOST_POWER):
        return NotImplemented
    if exponent == 0.5:
        return _root(x)
    if exponent != int(exponent):
        return NotImplemented
    result, square, n = of(torch.ones_like(x.high)), x, abs(int(exponent))
    while n:
        result = _multiply(result, square) if n & 1 else result
        square, n = _multiply(square, square), n >> 1
    return result if exponent >= 0 else _divide(of(1), result)


def _chosen(where: Tensor, a: Pair, b: Pair) -> Pair:
    return Pair(torch.where(where, a.high, b.high), torch.where(where, a.low, b.low))


def _sign(x: Pair) -> Pair:
    return _chosen(x.high < 0, _negative(x), x)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": _added, "sub": lambda a, b, alpha=1: _added(a, b, -alpha),
    "rsub": lambda a, b, alpha=1: _added(b, a, -alpha), "mul": lambda a, b: _multiply(of(a), of(b)),
    "div": lambda a, b, rounding_mode=None: NotImplemented if rounding_mode else _divide(of(a), of(b)),
    "reciprocal": lambda a: _divide(of(1), a), "sqrt": _root, "rsqrt": lambda a: _divide(of(1), _root(a)),
    "abs": _sign, "exp": _exponential, "expm1": lambda a: _exponential(a, less=True), "log": _logarithm,
    "tanh": _tangent, "pow": _power, "sum": _summed, "amax": _largest, "var": _variance, "mm": _product,
    "bmm": _product,
}  # fmt: skip
