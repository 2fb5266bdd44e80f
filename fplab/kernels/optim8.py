"""Optimizer steps on states of 8 bits: each block is dequantised, updated and quantised while it is in the cache.

Every operation is float32, rounded by itself, in the order of the optimizer's program, from which the update of one
element is written (:mod:`fplab.training.optimizers.programs`). A kernel is made from an update and from a way to
quantise; the update's loop has no choice in it and vectorises.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from . import inlined, jit
from .codebooks import (
    NOT_FINITE,
    PIECE,
    divisor,
    keyed_draws,
    keyed_quotients,
    largest,
    searched_draws,
    searched_quotients,
)
from .fast32 import as_bits, as_float

ABS = np.uint32(0x7FFFFFFF)
ZERO = np.float32(0)


class Coding(NamedTuple):
    """A codebook and how a state is quantised to it; see :mod:`fplab.codebooks.thresholds`."""

    values: np.ndarray  # float32 (256,), by rank
    plan: Any  # to nearest, or to the value below
    ladder: tuple[np.ndarray, np.ndarray]
    seed: np.uint64


# --- updates: (weight, gradient, state 1, state 2, coefficients) -> (weight, state 1, state 2) ---------------------
OPERATIONS = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "sqrt": "np.sqrt({})",
    "sign": "np.float32({0} > ZERO) - np.float32({0} < ZERO)",
}  # fmt: skip
Program = tuple[tuple[str, str, str, str], ...]  # (target, operation, left, right), rounded once each


def source(program: Program, states: Sequence[str], coefficients: Sequence[str]) -> str:
    """The update of one element in Python, a line an operation; ``states``: two names, "" for one that is not there."""
    first, second = (state or f"absent{i}" for i, state in enumerate(states))
    lines = [f"{target} = np.float32({OPERATIONS[does].format(left, right)})" for target, does, left, right in program]
    head = [f"def update(weight, gradient, {first}, {second}, numbers):", f"{', '.join(coefficients)}, = numbers"]
    return "\n    ".join([*head, *lines, f"return weight, {first}, {second}"])


def _update(program: Program, states: Sequence[str], coefficients: Sequence[str]) -> Any:
    """A program compiled for one element, where a gradient that is not finite moves nothing and zeroes the states."""
    text, names = source(program, states, coefficients), {**globals()}
    exec(text, names)
    names["update"].__qualname__ += "_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    update = inlined(names["update"])

    @inlined
    def guarded(p, g, m, v, n):
        fine = np.uint32(as_bits(g) & ABS) < NOT_FINITE
        q, a, b = update(p, g, m, v, n)
        return (q if fine else p), (a if fine else ZERO), (b if fine else ZERO)

    return guarded


# --- storing a block's new state ----------------------------------------------------------------------------------
def _nearest(ranks):
    """The way to round a piece to nearest."""

    @inlined
    def store(state, scale, buffer, keys, steps, coding, index):
        plan = coding.plan
        ranks(state, scale, buffer, keys, plan.table, plan.low, plan.shift, plan.offset)

    return store


def _stochastic(draw):
    """The way to round a piece by random words, ``index`` that of its first element."""

    @inlined
    def store(state, scale, buffer, keys, steps, coding, index):
        values, gaps = coding.ladder
        draw(state, scale, buffer, keys, steps, coding.plan, values, gaps, np.uint64(index), coding.seed)

    return store


@inlined
def _load(codes, scale, coding, state):
    for i in range(state.size):
        state[i] = np.float32(coding.values[codes[i]] * scale)


@inlined
def _save(state, codes, scales, k, keys, buffer, steps, coding, start, store):
    """Quantise the block ``k``, which begins at element ``start``."""
    most = largest(state.view(np.uint32))
    scales[k] = as_float(most) if most < NOT_FINITE else np.float32(np.nan)
    scale = divisor(most)
    for at in range(0, state.size, PIECE):
        count = min(state.size - at, PIECE)
        store(state[at : at + count], scale, buffer, keys, steps, coding, start + at)
        target = codes[at : at + count]
        for i in range(target.size):
            target[i] = buffer[i]


# --- kernels ------------------------------------------------------------------------------------------------------
STORES = {
    ("nearest", True): _nearest(keyed_quotients), ("nearest", False): _nearest(searched_quotients),
    ("stochastic", True): _stochastic(keyed_draws), ("stochastic", False): _stochastic(searched_draws),
}  # fmt: skip


@lru_cache
def blockwise(program: Program, states: tuple[str, str], coefficients: tuple[str, ...], store: tuple[str, bool]) -> Any:
    """The kernel of a program, whose float32 states are stored by one of :data:`STORES`: (rounding, keyed).

    ``p``, ``g`` float32, ``m``, ``v`` uint8, all contiguous and of one size; ``a``, ``b`` the states' float32 scales,
    one for each block; ``numbers`` the coefficients, float32; ``start`` the place of the first element in its tensor.
    Arrays of a state that a program lacks are not touched.
    """
    update, put, (first, second) = _update(program, states, coefficients), STORES[store], map(bool, states)

    @jit
    def kernel(p, g, m, v, a, b, block, coding1, coding2, numbers, start):
        keys, buffer, steps = np.empty(PIECE, np.uint32), np.empty(PIECE, np.uint8), np.empty((2, PIECE))
        size = min(block, p.size)
        state1, state2 = np.zeros(size, np.float32), np.zeros(size, np.float32)
        for k in range((p.size + block - 1) // block):
            at, end = k * block, min(p.size, (k + 1) * block)
            s, t, weight, slope = state1[: end - at], state2[: end - at], p[at:end], g[at:end]
            if first:
                _load(m[at:end], a[k], coding1, s)
            if second:
                _load(v[at:end], b[k], coding2, t)
            for i in range(weight.size):
                weight[i], s[i], t[i] = update(weight[i], slope[i], s[i], t[i], numbers)
            if first:
                _save(s, m[at:end], a, k, keys, buffer, steps, coding1, start + at, put)
            if second:
                _save(t, v[at:end], b, k, keys, buffer, steps, coding2, start + at, put)

    return kernel


@lru_cache
def float32_states(program: Program, states: tuple[str, str], coefficients: tuple[str, ...]) -> Any:
    """The kernel of a program with float32 states, for tensors that keep them."""
    update = _update(program, states, coefficients)

    @jit
    def kernel(p, g, m, v, numbers):
        for i in range(p.size):
            p[i], m[i], v[i] = update(p[i], g[i], m[i], v[i], numbers)

    return kernel


@jit
def first_bad(g):
    """The place of the first gradient that is NaN or infinite, or -1: one pass that vectorises where there is none."""
    if largest(g.view(np.uint32)) < NOT_FINITE:
        return -1
    for i in range(g.size):
        if np.uint32(as_bits(g[i]) & ABS) >= NOT_FINITE:
            return i
    return -1
