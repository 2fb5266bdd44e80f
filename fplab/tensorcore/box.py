"""A black box that multiplies: how it is called, what it was asked, and why one cannot be measured."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import LabError
from ..words import part, say
from ..words.patterns import refused

Array = np.ndarray[Any, Any]
BlackBox = Callable[..., Any]
TILE = 16  # rows and columns of the matrices handed to a product of matrices: one size, for one order of additions
FORMS = {
    "rows": part("a and b (N, K), c and d (N,)"),
    "matrices": part("a (M, K), b (K, N), c and d (M, N)"),
    "vectors": part("a and b (K,), c and d numbers"),
}


class Box:
    """A callable product, asked for rows whatever it takes: rows, matrices or vectors, with c or without.

    ``with_c``: whether c changes anything. ``asked``: every question and its answers, (a, b, c, d) with a, b (R, K)
    and c, d (R,). ``calls``, ``rows``: how often ``f`` was called, and for how many sums. ``places``: which elements of
    a (TILE, TILE) product compute as its first does, so far as :meth:`place` was asked; those on the diagonal answer.

    Raises LabError for what is no product, gives NaN for small numbers, or does not give the same twice.
    """

    def __init__(self, f: BlackBox, k: int) -> None:
        if not callable(f):
            raise LabError(f"f={f!r} is not callable; it must take a, b and c, or a and b, and return their product.")
        self.f = f
        self.calls = self.rows = 0
        self.asked: list[tuple[Array, Array, Array, Array]] = []
        self.places: Array = np.ones((TILE, TILE), bool)
        self.form, self.arguments = self._shape(k)
        ones, some = np.ones((2, k), np.float32), np.array([0, 1], np.float32)
        without, with_one = self.ask(0 * ones, ones, some)
        self.with_c = bool(without != with_one)
        (got, *_) = self.ask(ones, ones, 0 * some)
        if got != k:
            raise LabError(f"f gives {got:.9g} for {k} products of 1 and 1 and c = 0; a product gives {k}.")

    def ask(self, a: Array, b: Array, c: Array) -> Array:
        """The results for rows: a, b (R, K) and c (R,) give (R,) float64; c counts only where f takes one."""
        d = self.ask_any(a, b, c)
        for at in np.flatnonzero(np.isnan(d))[:1].tolist():
            raise LabError(f"f gives NaN for finite operands: {shown(a[at], b[at], c[at])}.")
        return d

    def ask_any(self, a: Array, b: Array, c: Array) -> Array:
        """The same of operands for which NaN may be an answer."""
        a, b, c = (np.asarray(x, np.float32) for x in (a, b, c))
        d = self._call(self.form, self.arguments, a, b, c)
        self.asked.append((a, b, c, d))
        return d

    def place(self, a: Array, b: Array, c: Array) -> None:
        """Put each row to every place of a result: libraries have one loop for most of it and others for edges."""
        for x, y, z in zip(*(np.asarray(v, np.float32) for v in (a, b, c)), strict=True):
            tiled = np.tile(x, (TILE, 1)), np.repeat(y[:, None], TILE, axis=1), np.full((TILE, TILE), z)
            d = self._result(tiled[: self.arguments], (TILE, TILE))
            self.places &= (d == d[0, 0]) | (np.isnan(d) & np.isnan(d[0, 0]))

    def ask_again(self) -> None:
        """Ask the latest question once more: the answers must be the same."""
        a, b, c, d = self.asked[-1]
        again = self.ask(a, b, c)
        self.asked.pop()
        for at in np.flatnonzero(again != d)[:1].tolist():
            raise LabError(
                f"f gives {d[at]:.9g}, and asked again {again[at]:.9g}, for {shown(a[at], b[at], c[at])}: what changes "
                "from call to call has no one arithmetic."
            )

    def _shape(self, k: int) -> tuple[str, int]:
        """Which form f takes, and how many arguments: the first that gives a result of the right shape."""
        a, b, c = np.ones((3, k), np.float32), np.ones((3, k), np.float32), np.zeros(3, np.float32)
        refusals = []
        for arguments in _arguments(self.f):
            for form in FORMS:
                try:
                    self._call(form, arguments, a, b, c)
                except Exception as error:  # whatever f raises for arguments that are not its own
                    what = f"{type(error).__name__}: {str(error).partition('. ')[0]}"
                    each = say("{form}, {arguments} arguments: {what}", form=form, arguments=arguments, what=what)
                    refusals.append(str(each))
                else:
                    return form, arguments
        allowed = "; ".join(f"{name}: {refused(shapes)}" for name, shapes in FORMS.items())
        raise LabError(
            f"f takes no form of a product. Allowed, with c or without: {allowed}. It said: {' | '.join(refusals)}"
        )

    def _call(self, form: str, arguments: int, a: Array, b: Array, c: Array) -> Array:
        """One question in a form, as float64."""
        if form == "rows":
            return self._result((a, b, c)[:arguments], (len(a),))
        if form == "vectors":
            rows = zip(a, b, c, strict=True)
            return np.array([float(self._result((x, y, float(z))[:arguments], ())) for x, y, z in rows])
        answers = np.empty(len(a))
        row_numbers = np.flatnonzero(np.diagonal(self.places))
        for start in range(0, len(a), len(row_numbers)):
            some = slice(start, start + len(row_numbers))
            x, y, z = (np.zeros((TILE, *v.shape[1:]), np.float32) for v in (a, b, c))
            at = row_numbers[: len(a[some])]
            x[at], y[at], z[at] = a[some], b[some], c[some]
            operands = (x, np.ascontiguousarray(y.T), np.repeat(z[:, None], TILE, axis=1))[:arguments]
            answers[some] = np.diagonal(self._result(operands, (TILE, TILE)))[at]
        return answers

    def _result(self, operands: tuple[Any, ...], shape: tuple[int, ...]) -> Array:
        self.calls += 1
        self.rows += shape[0] if shape else 1
        with np.errstate(all="ignore"):
            result = self.f(*(x.copy() if isinstance(x, np.ndarray) else x for x in operands))
        if hasattr(result, "detach"):  # a torch tensor
            result = result.detach().double().cpu()
        if result is None:
            raise LabError("f returned None; it must return its result.")
        values = np.asarray(result).astype(np.float64)
        if values.shape != shape:
            raise LabError(f"f returned shape {values.shape}; it must return {shape}.")
        return values


def _arguments(f: BlackBox) -> list[int]:
    """With how many arguments f may be called, three before two."""
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # of C functions
        return [3, 2]
    arrays = []
    for count in (3, 2):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        arrays.append(count)
    return arrays or [3, 2]


def shown(a: Array, b: Array, c: float) -> str:
    """A row in a line: c and the products that are not zero."""
    live = np.flatnonzero((a != 0) & (b != 0))
    terms = [f"{float(a[k])!r} * {float(b[k])!r} [k={k}]" for k in live[:6].tolist()]
    more = [f"{len(live) - 6} products more"] if len(live) > 6 else []
    return " + ".join([repr(float(c)), *terms, *more])
