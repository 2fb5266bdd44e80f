"""The one rule by which seeds become random numbers: Philox4x64-10 (Salmon et al. 2011), a cipher of a counter.

A seed and up to four keys (a step, a parameter's place, ...) name a stream. Streams of other keys are independent, and
any of them can be drawn from at any time, on any thread, without those before it: what a run that is resumed needs. The
raw stream is the same for all versions of numpy, which those of its distributions are not.

Two things draw otherwise. Rounding draws a word an element, from the stream that the 64-bit seed of
:func:`fplab.quantize` names: a keyed permutation of the element's index
(:func:`fplab.kernels.rounding.random_word`), which was measured six times as fast in a loop as Philox4x32-10, and which
tests turn around to draw any word they want. And torch's layers initialise themselves from torch's own generator.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def stream(seed: int, *keys: int) -> np.random.Philox:
    """The stream of a seed and up to four keys, each from 0 to 2**64 - 1; keys of 0 at the end may be left out.

    Seed and first key are Philox's key, the others the upper words of its counter, whose lowest word counts the draws.

    >>> int(stream(3, 1).random_raw()) == int(np.random.Philox(key=[3, 1]).random_raw())
    True
    """
    first, *others = keys or (0,)
    counter = np.zeros(4, np.uint64)
    counter[1 : 1 + len(others)] = others
    return np.random.Philox(key=np.array([seed, first], np.uint64), counter=counter)


def word(seed: int, *keys: int) -> int:
    """The first 64 bits of a stream: a seed for something else."""
    return int(stream(seed, *keys).random_raw())


def bits(n: int, seed: int, *keys: int, dtype: type[np.unsignedinteger[Any]] = np.uint64) -> Array:
    """``n`` random bit patterns of an unsigned dtype: of each draw the highest bits."""
    raw = stream(seed, *keys).random_raw(n)
    return (raw >> np.uint64(64 - np.dtype(dtype).itemsize * 8)).astype(dtype)


def permutation(n: int, seed: int, *keys: int) -> Array:
    """0 to n - 1 in random order, int64 (n,)."""
    return np.argsort(stream(seed, *keys).random_raw(n), kind="stable")
