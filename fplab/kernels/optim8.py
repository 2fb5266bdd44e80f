"""Optimizer steps on states of 8 bits: each block is dequantised, updated and quantised while it is in the cache.

Every operation is float32, rounded by itself, in the order written. A kernel is made from an update rule and from a
way to quantise; the update's loop has no choice in it and vectorises.
"""

from typing import NamedTuple

import numpy as np

from . import inlined, jit
from .codebooks import NOT_FINITE, PIECE, between, divided, divisor, keyed_quotients, largest, searched_quotients
from .fast32 import as_bits, as_float
from .rounding import random_word, stream_keys

ABS = np.uint32(0x7FFFFFFF)


class Numbers(NamedTuple):
    """What a step multiplies with, each a float32; which of them count is in the update's formula."""

    beta1: np.float32
    rest1: np.float32  # 1 - beta1
    beta2: np.float32
    rest2: np.float32
    step: np.float32  # the signed factor of the update
    eps: np.float32
    before: np.float32  # what the parameter is multiplied with before the update: 1 without weight decay
    after: np.float32
    coupled: np.float32  # the share of the parameter that is added to its gradient


class Coding(NamedTuple):
    """A codebook and how a state is quantised to it; see :class:`fplab.codebooks.thresholds.Plan`."""

    values: np.ndarray  # float32 (256,), by rank
    table: np.ndarray
    low: np.int32
    shift: np.uint32
    offset: np.int32
    lower: np.ndarray  # the thresholds of stochastic rounding
    last: np.uint32
    seed: np.uint64


# --- updates: (parameter, gradient, state 1, state 2, numbers) -> (parameter, state 1, state 2) -------------------
@inlined
def adam(p, g, m, v, n):
    """Adam and AdamW. ``step`` is -lr sqrt(1 - beta2^t) / (1 - beta1^t), ``eps`` that square root times eps."""
    m = np.float32(np.float32(m * n.beta1) + np.float32(n.rest1 * g))
    v = np.float32(np.float32(v * n.beta2) + np.float32(np.float32(n.rest2 * g) * g))
    ratio = np.float32(m / np.float32(np.sqrt(v) + n.eps))
    p = np.float32(np.float32(p * n.before) + np.float32(n.step * ratio))
    return np.float32(p * n.after), m, v


@inlined
def momentum(p, g, m, v, n):
    """SGD with momentum. ``step`` is -lr."""
    m = np.float32(np.float32(m * n.beta1) + g)
    p = np.float32(np.float32(p * n.before) + np.float32(n.step * m))
    return np.float32(p * n.after), m, v


@inlined
def lion(p, g, m, v, n):
    """Lion: the sign of an average. ``step`` is -lr."""
    c = np.float32(np.float32(m * n.beta1) + np.float32(n.rest1 * g))
    p = np.float32(p * n.before)
    moved = np.float32(p + (n.step if c > np.float32(0) else np.float32(-n.step)))
    p = moved if c != np.float32(0) else p
    m = np.float32(np.float32(m * n.beta2) + np.float32(n.rest2 * g))
    return np.float32(p * n.after), m, v


@inlined
def adagrad(p, g, m, v, n):
    """Adagrad. ``step`` is -lr; the one state is the second, which is never negative."""
    v = np.float32(v + np.float32(g * g))
    ratio = np.float32(g / np.float32(np.sqrt(v) + n.eps))
    p = np.float32(np.float32(p * n.before) + np.float32(n.step * ratio))
    return np.float32(p * n.after), m, v


def _guarded(update, couples):
    """The update of one element: weight decay into the gradient where asked, and nothing moved by a bad gradient."""

    @inlined
    def guarded(p, g, m, v, n):
        fine = np.uint32(as_bits(g) & ABS) < NOT_FINITE
        slope = np.float32(g + np.float32(n.coupled * p)) if couples else g
        q, a, b = update(p, slope, m, v, n)
        zero = np.float32(0)
        return (q if fine else p), (a if fine else zero), (b if fine else zero)

    return guarded


# --- storing a block's new state ----------------------------------------------------------------------------------
def _nearest(ranks):
    """The way to quantise a block to nearest, keyed or by search."""

    @inlined
    def store(state, codes, scale, keys, buffer, coding, start):
        for at in range(0, state.size, PIECE):
            count = min(state.size - at, PIECE)
            ranks(state[at : at + count], scale, buffer, keys, coding.table, coding.low, coding.shift, coding.offset)
            target = codes[at : at + count]
            for i in range(target.size):
                target[i] = buffer[i]

    return store


@inlined
def _stochastic(state, codes, scale, keys, buffer, coding, start):
    for i in range(state.size):
        index = np.uint64(start + i)
        key0, key1 = stream_keys(coding.seed, index >> np.uint64(32))
        word = random_word(np.uint32(index & np.uint64(0xFFFFFFFF)), key0, key1)
        codes[i] = np.uint8(between(divided(state[i], scale), coding.values, coding.lower, coding.last, word))


@inlined
def _load(codes, scale, coding, state):
    for i in range(state.size):
        state[i] = np.float32(coding.values[codes[i]] * scale)


@inlined
def _save(state, codes, scales, k, keys, buffer, coding, start, store):
    """Quantise the block ``k``, which begins at element ``start``."""
    most = largest(state.view(np.uint32))
    scales[k] = as_float(most) if most < NOT_FINITE else np.float32(np.nan)
    store(state, codes, divisor(most), keys, buffer, coding, start)


# --- kernels ------------------------------------------------------------------------------------------------------
def _blockwise(update, store, first, second):
    """The kernel of one update with the states that it has.

    ``p``, ``g`` float32, ``m``, ``v`` uint8, all contiguous and of one size; ``a``, ``b`` the states' float32 scales,
    one for each block; ``start`` the place of the first element in its tensor. Arrays of a state that an update lacks
    are not touched.
    """

    @jit
    def kernel(p, g, m, v, a, b, block, coding1, coding2, numbers, start):
        keys, buffer = np.empty(PIECE, np.uint32), np.empty(PIECE, np.uint8)
        held = min(block, p.size)
        state1, state2 = np.zeros(held, np.float32), np.zeros(held, np.float32)
        for k in range((p.size + block - 1) // block):
            at, end = k * block, min(p.size, (k + 1) * block)
            one, two, weight, slope = state1[: end - at], state2[: end - at], p[at:end], g[at:end]
            if first:
                _load(m[at:end], a[k], coding1, one)
            if second:
                _load(v[at:end], b[k], coding2, two)
            for i in range(weight.size):
                weight[i], one[i], two[i] = update(weight[i], slope[i], one[i], two[i], numbers)
            if first:
                _save(one, m[at:end], a, k, keys, buffer, coding1, start + at, store)
            if second:
                _save(two, v[at:end], b, k, keys, buffer, coding2, start + at, store)

    return kernel


def _whole(update):
    """The kernel of one update with float32 states, for tensors that keep them."""

    @jit
    def kernel(p, g, m, v, numbers):
        for i in range(p.size):
            p[i], m[i], v[i] = update(p[i], g[i], m[i], v[i], numbers)

    return kernel


UPDATES = {"adam": (adam, True, True), "momentum": (momentum, True, False), "lion": (lion, True, False),
           "adagrad": (adagrad, False, True)}  # fmt: skip
STORES = {"keyed": _nearest(keyed_quotients), "searched": _nearest(searched_quotients), "stochastic": _stochastic}
GUARDED = {(name, couples): _guarded(UPDATES[name][0], couples) for name in UPDATES for couples in (False, True)}
# By (update, whether weight decay goes into the gradient, how states are stored).
BLOCKWISE = {(name, couples, how): _blockwise(update, store, *UPDATES[name][1:])
             for (name, couples), update in GUARDED.items() for how, store in STORES.items()}  # fmt: skip
WHOLE = {key: _whole(update) for key, update in GUARDED.items()}


@jit
def first_bad(g):
    """The place of the first gradient that is NaN or infinite, or -1: one pass that vectorises where there is none."""
    if largest(g.view(np.uint32)) < NOT_FINITE:
        return -1
    for i in range(g.size):
        if np.uint32(as_bits(g[i]) & ABS) >= NOT_FINITE:
            return i
    return -1
