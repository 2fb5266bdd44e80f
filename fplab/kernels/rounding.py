"""Rounding as integer arithmetic on codes: the one general path behind every format, rounding and operation.

A number is unpacked to ``(kind, negative, m, e, payload)`` meaning ``(-1)**negative * m * 2**e`` with an unsigned
64-bit integer ``m``, worked on exactly (a ``sticky`` bit says that something non-zero lies below ``m``), and packed
into a code of the target. float32 and float64 arrays enter as the codes they are.
"""

from typing import NamedTuple

import numpy as np
from numba.cpython.unsafe.numbers import leading_zeros

from . import inlined, jit

FINITE, ZERO, INF, QNAN, SNAN = 0, 1, 2, 3, 4
INVALID, DIVZERO, OVERFLOW, UNDERFLOW, INEXACT = 16, 8, 4, 2, 1
NO_NAN = 64  # internal: a NaN fell into a format that has none
# Every rounding by the name of its row in fplab/roundings.py; each has an arm in _rounds_up.
MODES = {"rne": 0, "rna": 1, "rtz": 2, "rtp": 3, "rtn": 4, "odd": 5, "stochastic": 6}
RNE, RNA, RTZ, RTP, RTN, ODD, STOCHASTIC = MODES.values()
COUNT = len(MODES)
TO_INF, TO_MAX, TO_NAN = range(3)
NAN_ERROR, NAN_ZERO, NAN_MAX = range(3)
IEEE, LAST, NONE, NEGATIVE_ZERO, SINGLE = range(5)  # the last two have no -0

U0, U1, U63, U64 = np.uint64(0), np.uint64(1), np.uint64(63), np.uint64(64)
QUIET = np.uint64(1 << 63)


class Layout(NamedTuple):
    """A format as kernels see it; every field an int."""

    fraction_bits: int
    emin: int
    zero: int  # 1 when exponent field 0 holds zero and subnormals
    max_code: int
    sign_shift: int  # position of the sign bit, -1 in an unsigned format
    specials: int
    ties_by_code: int  # in a format without a fraction: 1 where ties go to the even code


class Options(NamedTuple):
    """How a result is delivered; every field an int."""

    mode: int
    overflow: int
    daz: int  # subnormal operands count as zero
    ftz: int  # tiny results become zero
    nan: int


@jit
def check(options):
    """Refuse a rounding, overflow or NaN rule that is none: the branches below would take it for another one."""
    known = 0 <= options.mode < COUNT and TO_INF <= options.overflow <= TO_NAN
    if not (known and NAN_ERROR <= options.nan <= NAN_MAX):
        raise ValueError("a kernel was given a rounding, overflow or NaN rule that it does not have")


@jit
def check_choice(given, count):
    """Refuse an operation or order that is none of the ``count`` that a kernel has."""
    if given < 0 or given >= count:
        raise ValueError("a kernel was given an operation or order that it does not have")


@jit
def unpack(code, fmt):
    """``code`` (uint64) of ``fmt`` as (kind, negative, m, e, payload); a NaN's payload is left-aligned in 64 bits."""
    nm = np.uint64(fmt.fraction_bits)
    negative = False
    magnitude = code
    if fmt.sign_shift >= 0:
        negative = ((code >> np.uint64(fmt.sign_shift)) & U1) != U0
        magnitude = code & ((U1 << np.uint64(fmt.sign_shift)) - U1)
    if fmt.specials >= NEGATIVE_ZERO and negative and magnitude == U0:
        return QNAN, True, U0, np.int64(0), QUIET
    if magnitude > np.uint64(fmt.max_code):
        if fmt.specials != LAST and magnitude == np.uint64(fmt.max_code) + U1:
            return INF, negative, U0, np.int64(0), U0
        if fmt.specials != IEEE:
            return QNAN, negative, U0, np.int64(0), QUIET
        payload = magnitude << (U64 - nm)
        return (QNAN if payload & QUIET else SNAN), negative, U0, np.int64(0), payload
    field = magnitude >> nm
    fraction = magnitude & ((U1 << nm) - U1)
    if fmt.zero == 1:
        if field == U0:
            if fraction == U0:
                return ZERO, negative, U0, np.int64(0), U0
            return FINITE, negative, fraction, np.int64(fmt.emin - fmt.fraction_bits), U0
        field -= U1
    return FINITE, negative, fraction | (U1 << nm), np.int64(field) + fmt.emin - fmt.fraction_bits, U0


@jit
def _rounds_up(mode, negative, odd, above, half, sticky, share, word):
    """Whether the magnitude goes to its upper neighbour: ``above`` is the discarded part, ``half`` its midpoint.

    ``share`` is the discarded part as a 32-bit fraction of the gap; a stochastic rounding goes up when
    ``share + word`` carries out of 32 bits, so with probability ``share / 2**32``.
    """
    if above == U0 and not sticky:
        return False
    if mode == RNE:
        return above > half or (above == half and (sticky or odd))
    if mode == RNA:
        return above >= half
    if mode == RTP:
        return not negative
    if mode == RTN:
        return negative
    if mode == ODD:
        return not odd
    if mode == STOCHASTIC:
        return share + word >= np.uint64(1 << 32)
    if mode == RTZ:
        return False
    raise ValueError("a rounding has a number in MODES but no arm in _rounds_up, in fplab/kernels/rounding.py")


@jit
def _split(m, shift, sticky):
    """``m`` without its low ``shift`` bits, and what they were: (kept, above, half, sticky, share)."""
    if shift <= 0:
        return m << np.uint64(-shift), U0, U1, sticky, U0
    s = np.uint64(shift)
    if shift <= 63:
        above = m & ((U1 << s) - U1)
        share = above << np.uint64(32 - shift) if shift <= 32 else above >> np.uint64(shift - 32)
        return m >> s, above, U1 << (s - U1), sticky, share
    share = m >> np.uint64(shift - 32) if shift < 96 else U0
    if shift == 64:
        return U0, m, QUIET, sticky, share
    return U0, U1, np.uint64(2), True, share  # below the midpoint, and not zero


@jit
def _is_tiny(m, e, exponent, sticky, negative, fmt, mode, word):
    """Tiny after rounding (IEEE 754 7.5): with an unbounded exponent the result is still below ``smallest_normal``.

    ``exponent``, that of the magnitude, is below ``emin``.
    """
    if exponent < fmt.emin - 1:
        return True
    kept, above, half, low, share = _split(m, exponent - fmt.fraction_bits - e, sticky)
    up = _rounds_up(mode, negative, (kept & U1) != U0, above, half, low, share, word)
    return not (up and kept + U1 == U1 << np.uint64(fmt.fraction_bits + 1))


@jit
def round_magnitude(m, e, sticky, negative, fmt, mode, ftz, want_flags, word):
    """Round ``(m + sticky) * 2**e``, m > 0, to a magnitude code; (code, flags), the code may exceed ``max_code``."""
    exponent = e + 63 - np.int64(leading_zeros(m))
    base = max(exponent, np.int64(fmt.emin))
    if fmt.zero == 0 and exponent < fmt.emin:  # no zero to round to: the smallest value
        tiny = _is_tiny(m, e, exponent, sticky, negative, fmt, mode, word)
        return U0, INEXACT | (UNDERFLOW if tiny else 0)
    kept, above, half, low, share = _split(m, base - fmt.fraction_bits - e, sticky)
    code = (np.uint64(base - fmt.emin) << np.uint64(fmt.fraction_bits)) + kept
    if fmt.zero == 0:
        code -= U1 << np.uint64(fmt.fraction_bits)
    odd = (kept if fmt.fraction_bits > 0 or fmt.ties_by_code == 0 else code) & U1
    if _rounds_up(mode, negative, odd != U0, above, half, low, share, word):
        code += U1
    flags = INEXACT if (above != U0 or low) else 0
    if exponent < fmt.emin and (want_flags or ftz) and _is_tiny(m, e, exponent, sticky, negative, fmt, mode, word):
        if ftz:
            return U0, UNDERFLOW | INEXACT
        if flags:
            flags |= UNDERFLOW
    return code, flags


@jit
def toward_zero(mode, negative):
    """Whether a rounding stops at the largest finite value, which is odd, even all but at its upper neighbour."""
    most = np.uint64(0xFFFFFFFF)
    return not _rounds_up(mode, negative, True, np.uint64(3), np.uint64(2), True, most, most)


@jit
def draws(mode):
    """Whether a rounding takes a random word."""
    return mode == STOCHASTIC


@jit
def with_sign(code, negative, fmt):
    """The magnitude code with its sign bit; FNUZ and P3109 have no -0."""
    if negative and fmt.sign_shift >= 0 and not (fmt.specials >= NEGATIVE_ZERO and code == U0):
        return code | (U1 << np.uint64(fmt.sign_shift))
    return code


@jit
def pack_nan(negative, payload, fmt, nan):
    """The code of a NaN, its payload truncated to the format's fraction and made quiet; (code, flags)."""
    top = np.uint64(fmt.max_code) + U1
    if fmt.specials == IEEE:
        return with_sign(top + ((payload | QUIET) >> np.uint64(64 - fmt.fraction_bits)), negative, fmt), 0
    if fmt.specials == LAST:
        return with_sign(top, negative, fmt), 0
    if fmt.specials >= NEGATIVE_ZERO:
        return (U1 << np.uint64(fmt.sign_shift) if fmt.sign_shift >= 0 else top + U1), 0
    if nan == NAN_ZERO:
        return U0, 0
    if nan == NAN_MAX:
        return with_sign(np.uint64(fmt.max_code), negative, fmt), 0
    return U0, NO_NAN


@jit
def pack(kind, negative, m, e, sticky, payload, fmt, options, want_flags, word):
    """The code of an exact result in ``fmt``; (code, flags)."""
    if kind == QNAN or kind == SNAN:
        return pack_nan(negative, payload, fmt, options.nan)
    if (fmt.sign_shift < 0 and negative and kind != ZERO) or (kind == ZERO and fmt.zero == 0):
        code, flags = pack_nan(False, QUIET, fmt, options.nan)
        return code, flags | INVALID
    if kind == ZERO:
        return with_sign(U0, negative, fmt), 0
    flags = OVERFLOW | INEXACT
    if kind == FINITE:
        code, flags = round_magnitude(m, e, sticky, negative, fmt, options.mode, options.ftz, want_flags, word)
        if code <= np.uint64(fmt.max_code):
            return with_sign(code, negative, fmt), flags
        flags |= OVERFLOW | INEXACT
    if options.overflow == TO_INF:
        if kind == INF:
            return with_sign(np.uint64(fmt.max_code) + U1, negative, fmt), 0
        if not toward_zero(options.mode, negative):
            return with_sign(np.uint64(fmt.max_code) + U1, negative, fmt), flags
    if options.overflow == TO_NAN:
        code, _ = pack_nan(negative, QUIET, fmt, options.nan)
        return code, flags
    return with_sign(np.uint64(fmt.max_code), negative, fmt), flags


@jit
def is_subnormal(m, fmt):
    """Whether an unpacked finite operand is subnormal in its own format."""
    return fmt.zero == 1 and (m >> np.uint64(fmt.fraction_bits)) == U0


@jit
def widen(code, src, dst):
    """The code in ``dst`` of a value of ``src`` that ``dst`` holds exactly; a signalling NaN stays one."""
    kind, negative, m, e, payload = unpack(code, src)
    if kind == SNAN:
        low = payload >> np.uint64(64 - dst.fraction_bits)
        return with_sign(np.uint64(dst.max_code) + U1 + low, negative, dst)
    wide, _ = pack(kind, negative, m, e, False, payload, dst, Options(RNE, TO_INF, 0, 0, NAN_ERROR), False, U0)
    return wide


@inlined
def random_word(index, key0, key1):
    """32 random bits of an element: a keyed mix (Wellons' triple32 constants) of the low 32 bits of its index.

    For one pair of keys it is a bijection, so its first 2**32 words are equally distributed. Everything is uint32, and
    the high half of the index is in the keys (:func:`stream_keys`), so that a loop over it vectorises.
    """
    x = np.uint32(index) ^ key0
    x = np.uint32(x ^ (x >> np.uint32(17)))
    x = np.uint32(x * np.uint32(0xED5AD4BB))
    x = np.uint32(x ^ (x >> np.uint32(11)))
    x = np.uint32(x + key1)
    x = np.uint32(x * np.uint32(0xAC4C1B51))
    x = np.uint32(x ^ (x >> np.uint32(15)))
    x = np.uint32(x * np.uint32(0x31848BAB))
    return np.uint32(x ^ (x >> np.uint32(14)))


@jit
def stream_keys(seed, high):
    """The two keys of one seed and one high half of the index: two outputs of splitmix64."""
    z = seed + np.uint64(0x9E3779B97F4A7C15) * (high + U1)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.uint32(z & np.uint64(0xFFFFFFFF)), np.uint32(z >> np.uint64(32))


@jit
def element_word(i, seed):
    """32 random bits of element ``i`` of the stream ``seed`` as uint64: what general kernels hand to ``pack``."""
    index = np.uint64(i)
    key0, key1 = stream_keys(seed, index >> np.uint64(32))
    return np.uint64(random_word(np.uint32(index & np.uint64(0xFFFFFFFF)), key0, key1))
