"""The unit of a proof: a share of some seconds that compares bits and can be finished once and for all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fplab.formats import Format, Overflow
from fplab.kernels.convert import random_words

Array = np.ndarray[Any, Any]


class Difference(Exception):  # noqa: N818  (an outcome, no error)
    """Two routes disagree; the text holds the first input on which they do and both answers, in bits."""


@dataclass(frozen=True)
class Share:
    """``run(*args)`` compares so many cases, returns their number, or raises :class:`Difference`.

    Shares with the same ``claim`` and ``against`` are one row of the table. ``run`` is a function of a module, so
    that another process can find it.
    """

    claim: str
    against: str
    run: Callable[..., int]
    args: tuple[Any, ...]

    @property
    def key(self) -> str:
        """What the share is known by in a state file."""
        return f"{self.run.__name__}{self.args!r}"


@dataclass(frozen=True)
class Part:
    """A named group of shares; ``shares(quick)`` lists all of them, or a slice that takes seconds."""

    name: str
    title: str
    shares: Callable[[bool], list[Share]]


def bits(x: Array) -> Array:
    """An array as unsigned integers: floats by their bits, integers and booleans by their value."""
    if x.dtype.kind == "f":
        return x.view(f"u{x.dtype.itemsize}")
    return x.view(np.uint8) if x.dtype.kind == "b" else x


def shown(x: Array, at: int) -> str:
    """One element in bits, floats with their value."""
    digits = f"0x{int(bits(x)[at]):0{2 * x.dtype.itemsize}x}"
    return f"{digits} ({float(x[at])!r})" if x.dtype.kind == "f" else digits


def demand_same(got: Array, want: Array, what: str, *inputs: Array) -> int:
    """The number of elements compared, or a Difference that names the first."""
    a, b = bits(got), bits(want)
    if a.shape == b.shape and np.array_equal(a, b):
        return a.size
    differ = np.flatnonzero(a != b)
    at = int(differ[0])
    given = ", ".join(shown(x, at) for x in inputs)
    raise Difference(
        f"{what}: input {given} gives {shown(got, at)}, expected {shown(want, at)}; "
        f"{differ.size:,} of {a.size:,} compared there differ"
    )


def nan_alike(got: Array, want: Array) -> Array:
    """``want`` with the NaNs of ``got`` wherever both are NaN: third parties choose their own NaNs."""
    both = np.isnan(got) & np.isnan(want)
    return np.where(both, got, want) if both.any() else want


def cut(blocks: int, shares: int, quick: bool = False, few: int = 1) -> list[range]:
    """Block numbers dealt out over shares in turn, so that all cost alike; ``quick``: ``few`` blocks, spread."""
    if quick:
        return [range(7 % (blocks // few), blocks, blocks // few)]
    return [range(first, blocks, shares) for first in range(shares)]


def words_of(n: int, seed: int) -> Array:
    """The 32-bit words that the first ``n`` elements of a stochastic call draw, as uint64."""
    words = np.empty(n, np.uint64)
    random_words(words, 0, np.uint64(seed))
    return words


def policies(fmt: Format) -> list[Overflow]:
    """The overflow policies that a format can express."""
    impossible = {Overflow.INF: not fmt.has_infinity, Overflow.NAN: not fmt.has_nan}
    return [policy for policy in Overflow if not impossible.get(policy, False)]
