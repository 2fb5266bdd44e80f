// Numbers of float32 bits as integers and exponents, truncated, and sums of them rounded once, as in
// fplab/kernels/tensorcore.py: KEPT, NEAREST, EMIN_D, EMAX_D, OVERFLOW_MAX, PLUS_FROM_BELOW.

const int ABSENT = -(1 << 20), NO_TERM = -(1 << 19);

struct Number { bool negative; i64 m; int e; };  // m * 2**(e - 23)

DEVICE Number parts(u32 bits, int emin) {
    int field = (bits >> 23) & 255, e = larger(field, 1) - 127;
    i64 m = bits & 0x7FFFFF;
    if (field) m |= 1 << 23;
    else if (emin < -126 && m) {
        int normal = leading_zeros(m) - 40;
        m <<= normal, e -= normal;
    }
    if (e < emin) m >>= smaller(emin - e, 63), e = emin;
    return {(bits & SIGN) != 0, m, e};
}

DEVICE int special_product(u32 x, u32 y) {
    if (is_nan(x) || is_nan(y)) return 4;
    if (is_infinite(x) || is_infinite(y)) return is_zero(x) || is_zero(y) ? 4 : (x ^ y) & SIGN ? 2 : 1;
    return 0;
}

DEVICE i64 cut(i64 m, bool negative, int shift) {
    m = shift < 0 ? m << smaller(-shift, 63) : shift < 63 ? m >> shift : 0;
    return negative ? -m : m;
}

// The float32 bits of total * 2**exponent, total != 0, rounded as the block rounds its sum.
DEVICE u32 deliver(i64 total, int exponent) {
    u64 m = total < 0 ? -total : total, kept;
    u32 sign = total < 0 ? SIGN : 0;
    int e = larger(exponent + 63 - leading_zeros(m), EMIN_D), drop = e - KEPT - exponent;
    if (drop <= 0) kept = m << -drop;
    else if (drop >= 64) kept = 0;
    else {
        kept = m >> drop;
        u64 rest = m & ((1ull << drop) - 1), half = 1ull << (drop - 1);
        if (NEAREST && (rest > half || (rest == half && (kept & 1)))) kept++;
    }
    if (kept == 0) return PLUS_FROM_BELOW ? 0 : sign;
    const u64 top = 1ull << (KEPT + 1);
    if (kept == top) kept >>= 1, e++;
    if (e > EMAX_D) {
        u32 largest = ((u32)(EMAX_D + 127) << 23) | (((1u << KEPT) - 1) << (23 - KEPT));
        return sign | (OVERFLOW_MAX ? largest : INFINITE);
    }
    while (kept < top >> 1 && e > -126) kept <<= 1, e--;  // an FP16 subnormal is a normal float32
    u32 field = kept >= top >> 1 ? e + 127 : 0;
    return sign | (field << 23) | ((u32)(kept << (23 - KEPT)) & 0x7FFFFF);
}

// A scale in one word: the exponent times 256, and eight times the significand, or 255 for a NaN.
DEVICE bool is_bad(int scale) { return (scale & 255) == 255; }
DEVICE int exponent_of_scale(int scale) { return scale >> 8; }
DEVICE int eighths_of_scale(int scale) { return scale & 255; }
