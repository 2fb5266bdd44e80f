"""Sums and dot products that round after every operation, in a stated order.

Every order is written once, over two arithmetics. The general one works on codes with :mod:`fplab.kernels.arith`: any
format of at most 31 significand bits, any rounding, overflow policy and flush mode, with flags. The fast one works in
float64 for nearest even: it adds in float64 and rounds to the accumulator, once more, which changes nothing
(:func:`nearest`).

A row's terms are ``x[row, k]``, or the products ``x[row, k] * y[row, k]``; ``y`` without elements means ones.
"""

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
    Layout,
    Options,
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


# --- the orders, over any arithmetic ----------------------------------------------------------------------------------
def _orders(term, plus, plus_term, larger, zero):
    """The sum of a row in every order, for one arithmetic whose numbers are of the type of ``zero``.

    ``term(x, y, row, k, env)`` is a rounded term, ``plus(a, b, minus, env)`` a rounded sum or difference,
    ``plus_term(c, minus, x, y, row, k, fused, env)`` a term plus or minus c, and ``larger(a, b, env)`` compares sizes.
    """
    dtype = type(zero)

    @jit
    def chain(x, y, row, start, stop, out, plan, env):
        """Terms ``start`` to ``stop`` added one after the other."""
        s = term(x, y, row, start, env)
        if plan.running:
            out[row, start] = s
        for k in range(start + 1, stop):
            s = plus_term(s, PLUS, x, y, row, k, plan.fused, env)
            if plan.running:
                out[row, k] = s
        return s

    @jit
    def pairwise(x, y, row, env):
        """The pairwise tree as a binary counter: entry j of the stack holds a sum of 2**j terms."""
        stack = np.empty(64, dtype)
        depth = 0
        for k in range(x.shape[1]):
            top = term(x, y, row, k, env)
            carries = k + 1
            while carries & 1 == 0:
                depth -= 1
                top = plus(stack[depth], top, PLUS, env)
                carries >>= 1
            stack[depth] = top
            depth += 1
        while depth > 1:
            depth -= 1
            stack[depth - 1] = plus(stack[depth - 1], stack[depth], PLUS, env)
        return stack[0]

    @jit
    def blocked(x, y, row, out, plan, env):
        """Chains of ``block`` terms, their sums added one after the other."""
        n = x.shape[1]
        s = chain(x, y, row, FIRST, min(plan.block, n), out, plan, env)
        for start in range(plan.block, n, plan.block):
            s = plus(s, chain(x, y, row, start, min(start + plan.block, n), out, plan, env), PLUS, env)
        return s

    @jit
    def kahan(x, y, row, out, plan, env):
        """Kahan's compensated sum: c is what the last addition put in too much."""
        s = term(x, y, row, FIRST, env)
        c = zero
        if plan.running:
            out[row, 0] = s
        for k in range(1, x.shape[1]):
            t = plus_term(c, MINUS, x, y, row, k, plan.fused, env)
            total = plus(s, t, PLUS, env)
            c = plus(plus(total, s, MINUS, env), t, MINUS, env)
            s = total
            if plan.running:
                out[row, k] = s
        return s

    @jit
    def neumaier(x, y, row, out, plan, env):
        """Neumaier's sum: the error of each addition, from the larger operand, is summed beside and added last."""
        s = term(x, y, row, FIRST, env)
        c = zero
        if plan.running:
            out[row, 0] = s
        for k in range(1, x.shape[1]):
            t = term(x, y, row, k, env)
            total = plus(s, t, PLUS, env)
            large, small = (s, t) if larger(s, t, env) else (t, s)
            c = plus(c, plus(plus(large, total, MINUS, env), small, PLUS, env), PLUS, env)
            s = total
            if plan.running:
                out[row, k] = plus(s, c, PLUS, env)
        if plan.running:
            return dtype(out[row, x.shape[1] - 1])
        return plus(s, c, PLUS, env) if x.shape[1] > 1 else s

    @jit
    def row_sum(x, y, row, out, plan, env):
        """The sum of one row; partial sums go to ``out`` if running."""
        if plan.order == SEQUENTIAL:
            return chain(x, y, row, FIRST, x.shape[1], out, plan, env)
        if plan.order == PAIRWISE:
            return pairwise(x, y, row, env)
        if plan.order == BLOCKED:
            return blocked(x, y, row, out, plan, env)
        if plan.order == KAHAN:
            return kahan(x, y, row, out, plan, env)
        return neumaier(x, y, row, out, plan, env)

    return row_sum


# --- the general version: codes -------------------------------------------------------------------------------------
class Exactly(NamedTuple):
    """What the general version needs to know; ``state`` is (next random word, flags so far)."""

    src: Layout
    acc: Layout
    options: Options
    seed: np.uint64
    state: np.ndarray


@jit
def _operand(code, fmt, daz):
    """A code unpacked, a subnormal one as zero if ``daz``."""
    kind, negative, m, e, _ = unpack(code, fmt)
    if daz and kind == FINITE and is_subnormal(m, fmt):
        kind = ZERO
    return kind, negative, m, e


@jit
def _rounded_code(kind, negative, m, e, sticky, raised, env):
    """Round a result to the accumulator."""
    word = U0
    if draws(env.options.mode):
        word = element_word(env.state[0], env.seed)
        env.state[0] += 1
    code, more = pack(kind, negative, m, e, sticky, QUIET, env.acc, env.options, True, word)
    env.state[1] |= raised | more
    return code


@jit
def _plus(a, b, minus, env):
    """a + b or a - b on accumulator codes, rounded."""
    ka, na, ma, ea = _operand(a, env.acc, env.options.daz)
    kb, nb, mb, eb = _operand(b, env.acc, env.options.daz)
    kind, negative, m, e, sticky, raised = arith.add(ka, na, ma, ea, kb, nb != minus, mb, eb, env.options.mode)
    return _rounded_code(kind, negative, m, e, sticky, raised, env)


@jit
def _factors(x, y, row, k, env):
    """The two unpacked factors of a term."""
    ka, na, ma, ea = _operand(np.uint64(x[row, k]), env.src, env.options.daz)
    if y.size == 0:
        return ka, na, ma, ea, FINITE, False, U1, np.int64(0)
    kb, nb, mb, eb = _operand(np.uint64(y[row, k]), env.src, env.options.daz)
    return ka, na, ma, ea, kb, nb, mb, eb


@jit
def _term(x, y, row, k, env):
    """A term rounded to the accumulator."""
    kind, negative, m, e, _, raised = arith.mul(*_factors(x, y, row, k, env))
    return _rounded_code(kind, negative, m, e, EXACT, raised, env)


@jit
def _plus_term(c, minus, x, y, row, k, fused, env):
    """A term plus (or minus) the accumulator code c: rounded once if fused, else first the term and then the sum."""
    if not fused:
        return _plus(_term(x, y, row, k, env), c, minus, env)
    kc, nc, mc, ec = _operand(c, env.acc, env.options.daz)
    ka, na, ma, ea, kb, nb, mb, eb = _factors(x, y, row, k, env)
    kind, negative, m, e, sticky, raised = arith.fma(
        ka, na, ma, ea, kb, nb, mb, eb, kc, nc != minus, mc, ec, env.options.mode
    )
    return _rounded_code(kind, negative, m, e, sticky, raised, env)


@jit
def _larger(a, b, env):
    """Whether a is no smaller than b, sign apart; NaN is above all."""
    magnitude = (U1 << np.uint64(env.acc.sign_shift)) - U1
    return (a & magnitude) >= (b & magnitude)


_general = _orders(_term, _plus, _plus_term, _larger, U0)


@jit
def general_rows(x, y, out, flags, plan, src, acc, options, seed, first, last):
    """Rows ``first`` to ``last`` on codes: ``x``, ``y`` (N, K) uint32 of ``src``, K >= 1.

    ``out``: (N, K) uint64 codes of ``acc`` when running, else (N, 1). ``flags``: (N,), the flags that were raised on
    the way; 64 says that a NaN met a format without one.
    """
    check(options)
    check_choice(plan.order, ORDERS)
    state = np.zeros(2, np.int64)
    env = Exactly(src, acc, options, seed, state)
    for row in range(first, last):
        state[0] = row * x.shape[1] * WORDS_PER_TERM
        state[1] = 0
        out[row, out.shape[1] - 1] = _general(x, y, row, out, plan, env)
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
def _fast_term(x, y, row, k, t):
    return nearest(_value(x, y, row, k), t)


@jit
def _fast_plus(a, b, minus, t):
    return nearest(a - b if minus else a + b, t)


@jit
def _fast_plus_term(c, minus, x, y, row, k, fused, t):
    v = _value(x, y, row, k)
    return _fast_plus(v if fused else nearest(v, t), c, minus, t)


@jit
def _fast_larger(a, b, t):
    return abs(a) >= abs(b)


_fast = _orders(_fast_term, _fast_plus, _fast_plus_term, _fast_larger, np.float64(0))


@jit
def fast_rows(x, y, out, plan, t, first, last):
    """:func:`general_rows` for float32 values and nearest even; ``out`` float32."""
    check_choice(plan.order, ORDERS)
    for row in range(first, last):
        out[row, out.shape[1] - 1] = _fast(x, y, row, out, plan, t)
