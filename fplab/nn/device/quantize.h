// One rounding into one format: FRACTION, EMIN, ZERO, MAX_CODE, SIGNED, SPECIALS, BY_CODE, MODE, TO, DAZ, FTZ, NAN_TO.

enum { TO_INF, TO_MAX, TO_NAN };                            // what overflow gives
enum { NAN_ERROR, NAN_ZERO, NAN_MAX };                      // a NaN in a format without one
enum { IEEE, LAST, NONE, NEGATIVE_ZERO, SINGLE };           // Layout.specials; the last two have no -0

DEVICE bool rounds_up(bool negative, bool odd, u64 above, u64 half, bool sticky, u64 share, u32 word) {
    if (above == 0 && !sticky) return false;
    if (MODE == RNE) return above > half || (above == half && (sticky || odd));
    if (MODE == RNA) return above >= half;
    if (MODE == RTP) return !negative;
    if (MODE == RTN) return negative;
    if (MODE == ODD) return !odd;
    if (MODE == STOCHASTIC) return share + word >= (1ull << 32);
    return false;
}

struct Parts { u64 kept, above, half, share; bool sticky; };

// m without its low `shift` bits, and what they were.
DEVICE Parts split(u64 m, int shift) {
    if (shift <= 0) return {m << -shift, 0, 1, 0, false};
    if (shift <= 63) {
        u64 above = m & ((1ull << shift) - 1);
        return {m >> shift, above, 1ull << (shift - 1), shift <= 32 ? above << (32 - shift) : above >> (shift - 32), false};
    }
    u64 share = shift < 96 ? m >> (shift - 32) : 0;
    if (shift == 64) return {0, m, 1ull << 63, share, false};
    return {0, 1, 2, share, true};  // below the midpoint, and not zero
}

DEVICE u32 with_sign(u32 bits, bool negative) {
    return negative && SIGNED && !(SPECIALS >= NEGATIVE_ZERO && bits == 0) ? bits | SIGN : bits;
}

// The float32 bits of a finite magnitude code.
DEVICE u32 value_of(u32 code) {
    u32 field = code >> FRACTION, m = code & ((1u << FRACTION) - 1);
    int e = EMIN - FRACTION;
    if (!ZERO || field) m |= 1u << FRACTION, e += (int)field - ZERO;
    if (m == 0) return 0;
    int zeros = leading_zeros(m) - 32, exponent = e + 31 - zeros;
    if (exponent >= -126) return ((u32)(exponent + 127) << 23) | ((zeros > 8 ? m << (zeros - 8) : m >> (8 - zeros)) & 0x7FFFFF);
    return e + 149 >= 0 ? m << (e + 149) : m >> -(e + 149);
}

DEVICE u32 nan_of(bool negative, u32 fraction) {
    if (SPECIALS == IEEE) {
        u32 kept = (fraction | QUIET) & ~((1u << (23 - FRACTION)) - 1);
        return with_sign(INFINITE | kept, negative);
    }
    if (SPECIALS == LAST) return with_sign(INFINITE | QUIET, negative);
    if (SPECIALS >= NEGATIVE_ZERO) return (SIGNED ? SIGN : 0) | INFINITE | QUIET;
    return NAN_TO == NAN_MAX ? with_sign(value_of(MAX_CODE), negative) : 0;
}

DEVICE u32 rounded(u32 bits, u32 word) {
    bool negative = bits & SIGN;
    u32 magnitude = bits & ABS;
    if (magnitude > INFINITE) return nan_of(negative, magnitude & 0x7FFFFF);
    if (DAZ && magnitude < 0x800000) magnitude = 0;
    if ((!SIGNED && negative && magnitude) || (magnitude == 0 && !ZERO)) return nan_of(false, QUIET);
    if (magnitude == 0) return with_sign(0, negative);
    if (magnitude < INFINITE) {
        u32 field = magnitude >> 23;
        u64 m = field ? (magnitude & 0x7FFFFF) | 0x800000 : magnitude;
        int e = larger((int)field, 1) - 150, exponent = e + 63 - leading_zeros(m), base = larger(exponent, EMIN);
        u32 code = 0;
        if (ZERO || exponent >= EMIN) {
            Parts p = split(m, base - FRACTION - e);
            code = ((u32)(base - EMIN) << FRACTION) + (u32)p.kept - (ZERO ? 0 : 1u << FRACTION);
            bool odd = (FRACTION > 0 || !BY_CODE ? (u32)p.kept : code) & 1;
            code += rounds_up(negative, odd, p.above, p.half, p.sticky, p.share, word);
            if (FTZ && exponent < EMIN) {  // tiny after rounding: below the smallest normal with an unbounded exponent
                Parts q = split(m, exponent - FRACTION - e);
                bool over = rounds_up(negative, q.kept & 1, q.above, q.half, q.sticky, q.share, word);
                bool reaches = exponent == EMIN - 1 && over && q.kept + 1 == 1ull << (FRACTION + 1);
                if (!reaches) return with_sign(0, negative);
            }
        }
        if (code <= MAX_CODE) return with_sign(value_of(code), negative);
    }
    if (TO == TO_INF) {
        bool stops = !rounds_up(negative, true, 3, 2, true, 0xFFFFFFFFu, 0xFFFFFFFFu);
        if (magnitude == INFINITE || !stops) return with_sign(INFINITE, negative);
    }
    if (TO == TO_NAN) return nan_of(negative, QUIET);
    return with_sign(value_of(MAX_CODE), negative);
}

KERNEL(quantize)(const u32 *x, u32 *out, int n, int key0, int key1) {
    for (u32 i = first(); i < (u32)n; i += stride())
        out[i] = rounded(x[i], MODE == STOCHASTIC ? random_word(i, (u32)key0, (u32)key1) : 0);
}
HOST(quantize)
