"""Sums and dot products that round after every operation, in a stated order.

Two versions of every order. The general one works on codes with :mod:`fplab.kernels.arith`: any format of at most 31
significand bits, any rounding, overflow policy and flush mode, with flags. The fast one works in float64 for nearest
even: it adds in float64 and rounds to the accumulator, once more, which changes nothing (:func:`nearest`).

A row's terms are ``x[row, k]``, or the products ``x[row, k] * y[row, k]``; ``y`` without elements means ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from . import arith, jit
from .rounding import (
    FINITE,
    QUIET,
    U0,
    U1,
    ZERO,
    check,
    check_choice,
    draws,
    element_word,
    is_subnormal,
    pack,
    unpack,
)

ORDERS = 5
SEQUENTIAL, PAIRWISE, BLOCKED, KAHAN, NEUMAIER = range(ORDERS)
# Typed constants: numba compiles a function anew for every Python literal it is called with.
PLUS, MINUS, EXACT, FIRST = np.bool_(False), np.bool_(True), np.bool_(False), np.int64(0)
WORDS_PER_TERM = 8  # the random words that one term of a row may use; no order rounds more often


class Plan(NamedTuple):
    """What a row does with its terms; every field an int."""

    order: int
    block: int  # terms in a block of the blocked order
    fused: int  # 1: a product enters the addition exact, 0: rounded to the accumulator first
    running: int  # 1: every partial sum is written, 0: the last one


# --- the general version: codes -------------------------------------------------------------------------------------


@jit
def _operand(code, fmt, daz):
    """A code unpacked, a subnormal one as zero if ``daz``."""
    kind, negative, m, e, _ = unpack(code, fmt)
    if daz and kind == FINITE and is_subnormal(m, fmt):
        kind = ZERO
    return kind, negative, m, e


@jit
def _deliver(kind, negative, m, e, sticky, raised, acc, options, seed, state):
    """Round a result to the accumulator; ``state`` is (next random word, flags so far)."""
    word = U0
    if draws(options.mode):
        word = element_word(state[0], seed)
        state[0] += 1
    code, more = pack(kind, negative, m, e, sticky, QUIET, acc, options, True, word)
    state[1] |= raised | more
    return code


@jit
def _plus(a, b, minus, acc, options, seed, state):
    """a + b or a - b on accumulator codes, rounded."""
    ka, na, ma, ea = _operand(a, acc, options.daz)
    kb, nb, mb, eb = _operand(b, acc, options.daz)
    kind, negative, m, e, sticky, raised = arith.add(ka, na, ma, ea, kb, nb != minus, mb, eb, options.mode)
    return _deliver(kind, negative, m, e, sticky, raised, acc, options, seed, state)


@jit
def _factors(x, y, row, k, src, daz):
    """The two unpacked factors of a term."""
    ka, na, ma, ea = _operand(np.uint64(x[row, k]), src, daz)
    if y.size == 0:
        return ka, na, ma, ea, FINITE, False, U1, np.int64(0)
    kb, nb, mb, eb = _operand(np.uint64(y[row, k]), src, daz)
    return ka, na, ma, ea, kb, nb, mb, eb


@jit
def _term(x, y, row, k, src, acc, options, seed, state):
    """A term rounded to the accumulator."""
    kind, negative, m, e, _, raised = arith.mul(*_factors(x, y, row, k, src, options.daz))
    return _deliver(kind, negative, m, e, EXACT, raised, acc, options, seed, state)


@jit
def _plus_term(c, minus, x, y, row, k, fused, src, acc, options, seed, state):
    """A term plus (or minus) the accumulator code c: rounded once if fused, else first the term and then the sum."""
    if not fused:
        return _plus(_term(x, y, row, k, src, acc, options, seed, state), c, minus, acc, options, seed, state)
    kc, nc, mc, ec = _operand(c, acc, options.daz)
    ka, na, ma, ea, kb, nb, mb, eb = _factors(x, y, row, k, src, options.daz)
    kind, negative, m, e, sticky, raised = arith.fma(
        ka, na, ma, ea, kb, nb, mb, eb, kc, nc != minus, mc, ec, options.mode
    )
    return _deliver(kind, negative, m, e, sticky, raised, acc, options, seed, state)


@jit
def _chain(x, y, row, start, stop, out, plan, src, acc, options, seed, state):
    """Terms ``start`` to ``stop`` added one after the other."""
    s = _term(x, y, row, start, src, acc, options, seed, state)
    if plan.running:
        out[row, start] = s
    for k in range(start + 1, stop):
        s = _plus_term(s, PLUS, x, y, row, k, plan.fused, src, acc, options, seed, state)
        if plan.running:
            out[row, k] = s
    return s


@jit
def _pairwise(x, y, row, src, acc, options, seed, state):
    """The pairwise tree as a binary counter: entry j of the stack holds a sum of 2**j terms."""
    stack = np.empty(64, np.uint64)
    depth = 0
    for k in range(x.shape[1]):
        stack[depth] = _term(x, y, row, k, src, acc, options, seed, state)
        depth += 1
        carries = k + 1
        while carries & 1 == 0:
            depth -= 1
            stack[depth - 1] = _plus(stack[depth - 1], stack[depth], PLUS, acc, options, seed, state)
            carries >>= 1
    while depth > 1:
        depth -= 1
        stack[depth - 1] = _plus(stack[depth - 1], stack[depth], PLUS, acc, options, seed, state)
    return stack[0]


@jit
def _blocked(x, y, row, out, plan, src, acc, options, seed, state):
    """Chains of ``block`` terms, their sums added one after the other."""
    n = x.shape[1]
    s = _chain(x, y, row, FIRST, min(plan.block, n), out, plan, src, acc, options, seed, state)
    for start in range(plan.block, n, plan.block):
        part = _chain(x, y, row, start, min(start + plan.block, n), out, plan, src, acc, options, seed, state)
        s = _plus(s, part, PLUS, acc, options, seed, state)
    return s


@jit
def _kahan(x, y, row, out, plan, src, acc, options, seed, state):
    """Kahan's compensated sum: c is what the last addition put in too much."""
    s = _term(x, y, row, FIRST, src, acc, options, seed, state)
    c = U0
    if plan.running:
        out[row, 0] = s
    for k in range(1, x.shape[1]):
        t = _plus_term(c, MINUS, x, y, row, k, plan.fused, src, acc, options, seed, state)
        total = _plus(s, t, PLUS, acc, options, seed, state)
        gained = _plus(total, s, MINUS, acc, options, seed, state)
        c = _plus(gained, t, MINUS, acc, options, seed, state)
        s = total
        if plan.running:
            out[row, k] = s
    return s


@jit
def _neumaier(x, y, row, out, plan, src, acc, options, seed, state):
    """Neumaier's sum: the error of each addition, taken from the larger operand, is summed beside and added last."""
    magnitude = (U1 << np.uint64(acc.sign_shift)) - U1
    s = _term(x, y, row, FIRST, src, acc, options, seed, state)
    c = U0
    if plan.running:
        out[row, 0] = s
    for k in range(1, x.shape[1]):
        t = _term(x, y, row, k, src, acc, options, seed, state)
        total = _plus(s, t, PLUS, acc, options, seed, state)
        large, small = (s, t) if (s & magnitude) >= (t & magnitude) else (t, s)
        lost = _plus(large, total, MINUS, acc, options, seed, state)
        lost = _plus(lost, small, PLUS, acc, options, seed, state)
        c = _plus(c, lost, PLUS, acc, options, seed, state)
        s = total
        if plan.running:
            out[row, k] = _plus(s, c, PLUS, acc, options, seed, state)
    if plan.running:
        return out[row, x.shape[1] - 1]
    return _plus(s, c, PLUS, acc, options, seed, state) if x.shape[1] > 1 else s


@jit
def general_rows(x, y, out, flags, plan, src, acc, options, seed, first, last):
    """Rows ``first`` to ``last`` on codes: ``x``, ``y`` (N, K) uint32 of ``src``, K >= 1.

    ``out``: (N, K) uint64 codes of ``acc`` when running, else (N, 1). ``flags``: (N,), the flags that were raised on
    the way; 64 says that a NaN met a format without one.
    """
    check(options)
    check_choice(plan.order, ORDERS)
    n = x.shape[1]
    state = np.zeros(2, np.int64)
    for row in range(first, last):
        state[0] = row * n * WORDS_PER_TERM
        state[1] = 0
        if plan.order == SEQUENTIAL:
            s = _chain(x, y, row, FIRST, n, out, plan, src, acc, options, seed, state)
        elif plan.order == PAIRWISE:
            s = _pairwise(x, y, row, src, acc, options, seed, state)
        elif plan.order == BLOCKED:
            s = _blocked(x, y, row, out, plan, src, acc, options, seed, state)
        elif plan.order == KAHAN:
            s = _kahan(x, y, row, out, plan, src, acc, options, seed, state)
        else:
            s = _neumaier(x, y, row, out, plan, src, acc, options, seed, state)
        out[row, out.shape[1] - 1] = s
        flags[row] = state[1]


# --- the fast version: float64, round to nearest even ---------------------------------------------------------------


class Target(NamedTuple):
    """An accumulator of p <= 24 bits as the fast version sees it."""

    emin_bits: int  # the float64 bits of 2**emin
    lift: int  # added to an exponent's bits: makes 1.5 * 2**(e + 53 - p) of 2**e
    largest: float
    over: float  # what infinity and an overflow become


@jit
def nearest(v, t):
    """``v`` rounded to the accumulator, to nearest even.

    1.5 * 2**(e + 53 - p), e the exponent of v or emin if that is larger, has the grid of the accumulator as its own,
    so adding it rounds, and subtracting it is exact.

    That v is itself a rounded sum a + x does no harm. Let a and x have at most p <= 24 bits, and a lie on the
    accumulator's grid. If the float64 sum is inexact, the smaller operand is below 2**-28 of the larger one. The
    larger one is on the grid (only a term can be off it, then it is below 2**emin, and a sum so far below that would be
    zero), hence the exact sum and v both lie strictly between it and the same midpoint, whose
    distance is at least 2**-25 of it.
    """
    bits = max(np.float64(v).view(np.int64) & np.int64(0x7FF0000000000000), np.int64(t.emin_bits))
    magic = np.int64(bits + np.int64(t.lift)).view(np.float64)
    y = math.copysign((v + magic) - magic, v)
    if abs(y) <= t.largest:
        return y
    return math.nan if math.isnan(v) else math.copysign(t.over, v)


@jit
def _value(x, y, row, k):
    """A term, exact."""
    return np.float64(x[row, k]) * np.float64(y[row, k]) if y.size > 0 else np.float64(x[row, k])


@jit
def _fast_term(x, y, row, k, fused, t):
    """A term as it enters an addition."""
    v = _value(x, y, row, k)
    return v if fused else nearest(v, t)


@jit
def _fast_chain(x, y, row, start, stop, out, plan, t):
    s = nearest(_value(x, y, row, start), t)
    if plan.running:
        out[row, start] = s
    for k in range(start + 1, stop):
        s = nearest(_fast_term(x, y, row, k, plan.fused, t) + s, t)
        if plan.running:
            out[row, k] = s
    return s


@jit
def _fast_pairwise(x, y, row, t):
    stack = np.empty(64, np.float64)
    depth = 0
    for k in range(x.shape[1]):
        top = nearest(_value(x, y, row, k), t)
        carries = k + 1
        while carries & 1 == 0:
            depth -= 1
            top = nearest(stack[depth] + top, t)
            carries >>= 1
        stack[depth] = top
        depth += 1
    while depth > 1:
        depth -= 1
        stack[depth - 1] = nearest(stack[depth - 1] + stack[depth], t)
    return stack[0]


@jit
def _fast_blocked(x, y, row, out, plan, t):
    n = x.shape[1]
    s = _fast_chain(x, y, row, FIRST, min(plan.block, n), out, plan, t)
    for start in range(plan.block, n, plan.block):
        s = nearest(s + _fast_chain(x, y, row, start, min(start + plan.block, n), out, plan, t), t)
    return s


@jit
def _fast_kahan(x, y, row, out, plan, t):
    s = nearest(_value(x, y, row, 0), t)
    c = 0.0
    if plan.running:
        out[row, 0] = s
    for k in range(1, x.shape[1]):
        z = nearest(_fast_term(x, y, row, k, plan.fused, t) - c, t)
        total = nearest(s + z, t)
        c = nearest(nearest(total - s, t) - z, t)
        s = total
        if plan.running:
            out[row, k] = s
    return s


@jit
def _fast_neumaier(x, y, row, out, plan, t):
    s = nearest(_value(x, y, row, 0), t)
    c = 0.0
    result = s
    if plan.running:
        out[row, 0] = s
    for k in range(1, x.shape[1]):
        z = nearest(_value(x, y, row, k), t)
        total = nearest(s + z, t)
        large, small = (s, z) if abs(s) >= abs(z) else (z, s)
        lost = nearest(nearest(large - total, t) + small, t)
        c = nearest(c + lost, t)
        s = total
        result = nearest(s + c, t)
        if plan.running:
            out[row, k] = result
    return result


@jit
def fast_rows(x, y, out, plan, t, first, last):
    """:func:`general_rows` for float32 values and nearest even; ``out`` float32."""
    check_choice(plan.order, ORDERS)
    n = x.shape[1]
    for row in range(first, last):
        if plan.order == SEQUENTIAL:
            s = _fast_chain(x, y, row, FIRST, n, out, plan, t)
        elif plan.order == PAIRWISE:
            s = _fast_pairwise(x, y, row, t)
        elif plan.order == BLOCKED:
            s = _fast_blocked(x, y, row, out, plan, t)
        elif plan.order == KAHAN:
            s = _fast_kahan(x, y, row, out, plan, t)
        else:
            s = _fast_neumaier(x, y, row, out, plan, t)
        out[row, out.shape[1] - 1] = s
