"""IEEE 754 operations on unpacked numbers in integer arithmetic, for every format of at most 31 significand bits.

Each operation returns ``(kind, negative, m, e, sticky, flags)``; a sticky bit under at least 63 exact bits is enough
to round to 31 bits in every mode, the 32 bits below them for a stochastic one. NaN results are the canonical quiet NaN.
"""

import math

import numpy as np
from numba.cpython.unsafe.numbers import leading_zeros

from . import jit
from .rounding import (
    DIVZERO,
    FINITE,
    IEEE,
    INF,
    INVALID,
    NO_NAN,
    NONE,
    QNAN,
    QUIET,
    RTN,
    SINGLE,
    SNAN,
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
    widen,
)

OPERATIONS, RELATIONS = 6, 3
ADD, SUB, MUL, DIV, SQRT, FMA = range(OPERATIONS)
EQ, LT, LE = range(RELATIONS)
U31, U64_BITS = np.uint64(31), np.uint64(64)


@jit
def _nan(flags):
    return QNAN, False, U0, np.int64(0), False, flags


@jit
def _zero(negative):
    return ZERO, negative, U0, np.int64(0), False, 0


@jit
def _inf(negative, flags):
    return INF, negative, U0, np.int64(0), False, flags


@jit
def _normal(m, e):
    """(m, e) with m shifted up to bit 30 as its highest."""
    shift = np.int64(leading_zeros(m)) - 33
    return m << np.uint64(shift), e - shift


@jit
def add(ka, na, ma, ea, kb, nb, mb, eb, mode):
    """a + b."""
    if ka == SNAN or kb == SNAN:
        return _nan(INVALID)
    if ka == QNAN or kb == QNAN:
        return _nan(0)
    if ka == INF or kb == INF:
        if ka == INF and kb == INF and na != nb:
            return _nan(INVALID)
        return _inf(na if ka == INF else nb, 0)
    if ka == ZERO and kb == ZERO:
        return _zero(na if na == nb else mode == RTN)
    if ka == ZERO:
        return FINITE, nb, mb, eb, False, 0
    if kb == ZERO:
        return FINITE, na, ma, ea, False, 0
    ma, ea = _normal(ma, ea)
    mb, eb = _normal(mb, eb)
    if eb > ea or (eb == ea and mb > ma):
        na, ma, ea, nb, mb, eb = nb, mb, eb, na, ma, ea
    large = ma << np.uint64(32)
    small = mb << np.uint64(32)
    d = ea - eb
    sticky = False
    if d > 63:
        small, sticky = U0, True
    elif d > 0:
        s = np.uint64(d)
        sticky = (small & ((U1 << s) - U1)) != U0
        small = small >> s
    if na == nb:
        return FINITE, na, large + small, ea - 32, sticky, 0
    m = large - small - (U1 if sticky else U0)
    if m == U0:
        return _zero(mode == RTN)
    return FINITE, na, m, ea - 32, sticky, 0


@jit
def mul(ka, na, ma, ea, kb, nb, mb, eb):
    """a * b."""
    negative = na != nb
    if ka == SNAN or kb == SNAN:
        return _nan(INVALID)
    if ka == QNAN or kb == QNAN:
        return _nan(0)
    if (ka == INF and kb == ZERO) or (ka == ZERO and kb == INF):
        return _nan(INVALID)
    if ka == INF or kb == INF:
        return _inf(negative, 0)
    if ka == ZERO or kb == ZERO:
        return _zero(negative)
    return FINITE, negative, ma * mb, ea + eb, False, 0


@jit
def div(ka, na, ma, ea, kb, nb, mb, eb):
    """a / b."""
    negative = na != nb
    if ka == SNAN or kb == SNAN:
        return _nan(INVALID)
    if ka == QNAN or kb == QNAN:
        return _nan(0)
    if (ka == INF and kb == INF) or (ka == ZERO and kb == ZERO):
        return _nan(INVALID)
    if ka == INF:
        return _inf(negative, 0)
    if kb == INF or ka == ZERO:
        return _zero(negative)
    if kb == ZERO:
        return _inf(negative, DIVZERO)
    ma, ea = _normal(ma, ea)
    mb, eb = _normal(mb, eb)
    # Two steps of long division: 63 bits of quotient, since a stochastic rounding looks at 32 beyond the last.
    dividend = ma << np.uint64(32)
    high = dividend // mb
    rest = (dividend - high * mb) << U31
    low = rest // mb
    return FINITE, negative, (high << U31) | low, ea - 63 - eb, low * mb != rest, 0


@jit
def sqrt(ka, na, ma, ea):
    """The square root of a."""
    if ka == SNAN:
        return _nan(INVALID)
    if ka == QNAN:
        return _nan(0)
    if ka == ZERO:
        return _zero(na)
    if na:
        return _nan(INVALID)
    if ka == INF:
        return _inf(False, 0)
    ma, ea = _normal(ma, ea)
    shift = 33 if (ea - 33) % 2 == 0 else 32
    radicand = ma << np.uint64(shift)
    root = np.uint64(math.sqrt(np.float64(radicand)))
    # The float64 root is off by one at most; the true one lies in [2**31, 2**32).
    root = min(root, np.uint64(0xFFFFFFFF))
    if root * root > radicand:
        root -= U1
    elif root < np.uint64(0xFFFFFFFF) and (root + U1) * (root + U1) <= radicand:
        root += U1
    # 31 bits more (a stochastic rounding looks at 32 beyond the last): the largest x with
    # (root * 2**31 + x)**2 <= radicand * 2**62, that is x * x <= rest * 2**31 for what 2 root x leaves of the rest.
    double = root << U1
    rest = (radicand - root * root) << U31
    low = rest // double
    rest -= low * double
    exact = low * low == rest << U31
    if low * low > rest << U31:
        low -= U1
    return FINITE, False, (root << U31) | low, (ea - shift) // 2 - 31, not exact, 0


@jit
def _shift_right_128(hi, lo, d):
    """(hi, lo) >> d for d >= 0, and whether a bit that was set fell off."""
    if d == 0:
        return hi, lo, False
    if d >= 128:
        return U0, U0, (hi | lo) != U0
    if d >= 64:
        s = np.uint64(d - 64)
        lost = lo != U0 or (hi & ((U1 << s) - U1)) != U0
        return U0, hi >> s, lost
    s = np.uint64(d)
    return hi >> s, (lo >> s) | (hi << (U64_BITS - s)), (lo & ((U1 << s) - U1)) != U0


@jit
def fma(ka, na, ma, ea, kb, nb, mb, eb, kc, nc, mc, ec, mode):
    """a * b + c, rounded once: both addends in 128 bits, the smaller aligned to the larger with a sticky bit."""
    if kc == SNAN or ka == SNAN or kb == SNAN:
        return _nan(INVALID)
    kind, np_, m, e, _, flags = mul(ka, na, ma, ea, kb, nb, mb, eb)
    if flags & INVALID:
        return _nan(INVALID)
    if kc == QNAN:
        return _nan(0)
    if kind != FINITE or kc != FINITE:
        if kind == ZERO and kc == FINITE:
            return FINITE, nc, mc, ec, False, 0
        if kind == FINITE and kc == ZERO:
            return FINITE, np_, m, e, False, 0
        return add(kind, np_, m, e, kc, nc, mc, ec, mode)
    # The highest bit of both at position 125 of 128.
    up = np.int64(leading_zeros(m)) - 2
    phi, plo, ep = m << np.uint64(up), U0, e - up - 64
    up = np.int64(leading_zeros(mc)) - 2
    chi, clo, ecc = mc << np.uint64(up), U0, ec - up - 64
    sticky = False
    if ep >= ecc:
        chi, clo, sticky = _shift_right_128(chi, clo, ep - ecc)
        e = ep
    else:
        phi, plo, sticky = _shift_right_128(phi, plo, ecc - ep)
        e = ecc
    negative = np_
    if np_ == nc:
        lo = plo + clo
        hi = phi + chi + (U1 if lo < plo else U0)
    else:
        if chi > phi or (chi == phi and clo > plo):
            negative = nc
            phi, plo, chi, clo = chi, clo, phi, plo
        lo = plo - clo
        hi = phi - chi - (U1 if plo < clo else U0)
        if sticky:  # only the smaller one lost bits: one unit less, and something above it
            hi -= U1 if lo == U0 else U0
            lo -= U1
        if hi == U0 and lo == U0:
            return _zero(mode == RTN)
    if hi == U0:
        return FINITE, negative, lo, e, sticky, 0
    free = np.uint64(leading_zeros(hi))
    if free > U0:
        hi = (hi << free) | (lo >> (U64_BITS - free))
        lo = lo << free
    return FINITE, negative, hi, e + 64 - np.int64(free), sticky or lo != U0, 0


@jit
def _operand(code, src, fmt, to_fmt, daz):
    """A carrier's code rounded to an operand of ``fmt`` (a no-op where it is one), unpacked; whether NaN was lost."""
    kind, negative, m, e, payload = unpack(code, src)
    lost = 0
    # An infinity is an operand like others, to which no overflow policy applies.
    infinity = kind == INF and (fmt.specials == IEEE or fmt.specials == SINGLE)
    if not infinity and (kind != SNAN or fmt.specials == NONE):
        narrow, flags = pack(kind, negative, m, e, False, payload, fmt, to_fmt, False, U0)
        lost = flags & NO_NAN  # the flags of an operation are its own, not those of rounding its operands
        kind, negative, m, e, payload = unpack(narrow, fmt)
    if daz and kind == FINITE and is_subnormal(m, fmt):
        kind = ZERO
    return kind, negative, m, e, lost


@jit
def operate(op, a, b, c, out, flags, src, fmt, carrier, to_fmt, options, start, seed):
    """One operation on arrays of carrier codes (``b`` and ``c`` may be of length 0 where unused).

    Returns the index of the first NaN that ``fmt`` cannot hold, else -1.
    """
    check_choice(op, OPERATIONS)
    check(options)
    check(to_fmt)
    offender = -1
    want = flags.size > 0
    for i in range(a.size):
        word = element_word(start + i, seed) if draws(options.mode) else U0
        ka, na, ma, ea, lost = _operand(np.uint64(a[i]), src, fmt, to_fmt, options.daz)
        kb, nb, mb, eb, lost_b = ZERO, False, U0, np.int64(0), 0
        if op != SQRT:
            kb, nb, mb, eb, lost_b = _operand(np.uint64(b[i]), src, fmt, to_fmt, options.daz)
        lost |= lost_b
        if op == ADD:
            kind, negative, m, e, sticky, raised = add(ka, na, ma, ea, kb, nb, mb, eb, options.mode)
        elif op == SUB:
            kind, negative, m, e, sticky, raised = add(ka, na, ma, ea, kb, not nb, mb, eb, options.mode)
        elif op == MUL:
            kind, negative, m, e, sticky, raised = mul(ka, na, ma, ea, kb, nb, mb, eb)
        elif op == DIV:
            kind, negative, m, e, sticky, raised = div(ka, na, ma, ea, kb, nb, mb, eb)
        elif op == SQRT:
            kind, negative, m, e, sticky, raised = sqrt(ka, na, ma, ea)
        else:
            kc, nc, mc, ec, lost_c = _operand(np.uint64(c[i]), src, fmt, to_fmt, options.daz)
            lost |= lost_c
            kind, negative, m, e, sticky, raised = fma(ka, na, ma, ea, kb, nb, mb, eb, kc, nc, mc, ec, options.mode)
        code, more = pack(kind, negative, m, e, sticky, QUIET, fmt, options, want, word)
        raised |= more | lost
        if raised & NO_NAN and offender < 0:
            offender = i
        out[i] = widen(code, fmt, carrier)
        if want:
            flags[i] = raised & 31
    return offender


@jit
def compare(op, a, b, out, flags, src, fmt, to_fmt, daz):
    """a == b, a < b or a <= b on carrier codes; lt and le raise invalid on every NaN, eq on signalling ones."""
    check_choice(op, RELATIONS)
    check(to_fmt)
    want = flags.size > 0
    offender = -1
    for i in range(a.size):
        ka, na, ma, ea, lost = _operand(np.uint64(a[i]), src, fmt, to_fmt, daz)
        kb, nb, mb, eb, lost_b = _operand(np.uint64(b[i]), src, fmt, to_fmt, daz)
        if (lost | lost_b) and offender < 0:
            offender = i
        raised = 0
        if ka >= QNAN or kb >= QNAN:
            answer = False
            if op != EQ or ka == SNAN or kb == SNAN:
                raised = INVALID
        else:
            kind, negative, _, _, _, _ = add(ka, na, ma, ea, kb, not nb, mb, eb, 0)
            equal = kind == ZERO or (ka == INF and kb == INF and na == nb)
            less = not equal and negative
            if ka == INF and kb == INF:
                less = na and not nb
            answer = equal if op == EQ else less if op == LT else (less or equal)
        out[i] = answer
        if want:
            flags[i] = raised
    return offender
