// Products of a unit of fused blocks: LENGTH, ALIGN, KEPT, NEAREST, FLOOR, ZERO_EXPONENT, EMIN_A, EMIN_B, EMIN_C, EMIN_D,
// EMAX_D, NAN_BITS, MINUS_ZEROS, PLUS_FROM_BELOW, OVERFLOW_MAX, WIDENED, PERIOD (blocks; 0: no promotion), NARROW (both
// formats have at most 5 bits of exponent), COLUMNS (of a thread, which share its row of A).

const int ABSENT = -(1 << 20), NO_TERM = -(1 << 19);  // as in kernels/tensorcore.py

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

// The block as it is defined, on 64-bit integers: y[i * n]. It reads memory again, so that the usual path has registers.
SELDOM u32 general(const u32 *x, const u32 *y, int n, u32 c) {
    int emax = ABSENT, seen = 0;
    bool minus = true;
    for (int i = 0; i < LENGTH; i++) {
        seen |= special_product(x[i], y[(u64)i * n]);
        Number a = parts(x[i], EMIN_A), b = parts(y[(u64)i * n], EMIN_B);
        emax = larger(emax, (a.m ? a.e : ZERO_EXPONENT) + (b.m ? b.e : ZERO_EXPONENT));
        minus = minus && (a.m == 0 || b.m == 0) && ((x[i] ^ y[(u64)i * n]) & SIGN);
    }
    if (is_nan(c)) seen |= 4;
    if (is_infinite(c)) seen |= c & SIGN ? 2 : 1;
    if (seen) return seen == 1 ? INFINITE : seen == 2 ? INFINITE | SIGN : NAN_BITS;
    Number held = parts(c, EMIN_C);
    emax = larger(emax, held.m ? held.e : ZERO_EXPONENT);
    minus = minus && held.m == 0 && held.negative;
    if (emax < NO_TERM) return minus && MINUS_ZEROS ? SIGN : 0;
    emax = larger(emax, FLOOR);
    i64 total = cut(held.m, held.negative, 23 - ALIGN + emax - held.e);
    for (int i = 0; i < LENGTH; i++) {
        Number a = parts(x[i], EMIN_A), b = parts(y[(u64)i * n], EMIN_B);
        total += cut(a.m * b.m, a.negative != b.negative, 46 - ALIGN + emax - (a.e + b.e));
    }
    if (total == 0) return minus && MINUS_ZEROS ? SIGN : 0;
    return deliver(total, emax - ALIGN);
}

const int LOW = -50, HIGH = 60, NEVER = -10000;  // operands between these have products that scale inside float32

DEVICE int exponent_of(u32 bits, int emin) {
    int e = larger((int)((bits & ABS) >> 23), emin + 127) - 127;
    return is_zero(bits) ? NEVER : e;
}

// Whether an exponent lies between LOW and HIGH, or is a zero's; without a branch. Narrow formats have but specials.
DEVICE int is_tame(int e) { return NARROW ? e <= 15 : (e == NEVER) | ((u32)(e - LOW) <= (u32)(HIGH - LOW)); }

// c[j] onto the block of x and column j of y, y[i * n + j]. Where no product leaves float32, a * b and its scaling are
// exact there, and the conversion truncates as the unit does.
DEVICE void blocks(const u32 *x, const u32 *y, int n, u32 *c) {
    int top[COLUMNS], tame[COLUMNS], at_most = 1;
    for (int j = 0; j < COLUMNS; j++) top[j] = NEVER, tame[j] = ZERO_EXPONENT == ABSENT && !MINUS_ZEROS && ALIGN <= 25;
    for (int i = 0; i < LENGTH; i++) {
        const int ea = exponent_of(x[i], EMIN_A);
        at_most &= is_tame(ea);
        for (int j = 0; j < COLUMNS; j++) {
            const int eb = exponent_of(y[(u64)i * n + j], EMIN_B);
            tame[j] &= is_tame(eb);
            top[j] = larger(top[j], ea + eb);
        }
    }
    float factor[COLUMNS];
    int scale[COLUMNS], part[COLUMNS];
    i64 total[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) {
        const Number held = parts(c[j], EMIN_C);
        const int emax = larger(top[j], held.m ? held.e : NEVER);
        scale[j] = ALIGN - larger(emax, FLOOR);
        tame[j] &= at_most & ((c[j] & INFINITE) != INFINITE) & (emax >= -400) & (scale[j] <= 127) & (scale[j] >= -126);
        factor[j] = as_float((u32)(scale[j] + 127) << 23);
        total[j] = tame[j] ? cut(held.m, held.negative, 23 - scale[j] - held.e) : 0;
    }
    for (int i = 0; i < LENGTH; i += 16) {
        for (int j = 0; j < COLUMNS; j++) part[j] = 0;  // of 16 terms of 27 bits
        for (int h = i; h < i + 16 && h < LENGTH; h++)
            for (int j = 0; j < COLUMNS; j++)
                part[j] += truncated(times(times(as_float(x[h]), as_float(y[(u64)h * n + j])), factor[j]));
        for (int j = 0; j < COLUMNS; j++) total[j] += part[j];
    }
    for (int j = 0; j < COLUMNS; j++)
        c[j] = !tame[j] ? general(x, y + j, n, c[j]) : total[j] ? deliver(total[j], -scale[j]) : 0;
}

DEVICE u32 sum_in_fp32(u32 x, u32 y) {
    u32 bits = as_bits(plus(as_float(x), as_float(y)));
    return is_nan(bits) ? NAN_BITS : bits;
}

// The IEEE sum of two values of the output format, to nearest.
DEVICE u32 sum_of(u32 x, u32 y) {
    u32 bits = sum_in_fp32(x, y);
    if (KEPT == 23 || is_nan(bits) || is_infinite(bits) || is_zero(bits)) return bits;
    Number n = parts(bits, -126);
    return deliver(n.negative ? -n.m : n.m, n.e - 23);
}

// acc += a @ b: a (m, count * LENGTH) and b (count * LENGTH, n), float32 bits. n is a multiple of COLUMNS.
KERNEL(matmul)(const u32 *a, const u32 *b, u32 *acc, int m, int n, int count) {
    const u64 k = (u64)count * LENGTH;
    for (u32 at = first() * COLUMNS; at < (u32)m * (u32)n; at += stride() * COLUMNS) {
        const u32 row = at / n, column = at % n;
        u32 c[COLUMNS], lower[COLUMNS];
        for (int j = 0; j < COLUMNS; j++) c[j] = is_nan(acc[at + j]) ? NAN_BITS : acc[at + j], lower[j] = 0;
        for (int t = 0; t < count; t++) {
            const u32 *x = a + row * k + t * LENGTH, *y = b + (u64)t * LENGTH * n + column;
            blocks(x, y, n, WIDENED || PERIOD ? lower : c);
            const bool ends = WIDENED ? t % 2 : PERIOD && ((t + 1) % (PERIOD ? PERIOD : 1) == 0 || t + 1 == count);
            for (int j = 0; j < COLUMNS && ends; j++) {
                c[j] = WIDENED ? sum_of(lower[j], c[j]) : sum_in_fp32(c[j], lower[j]);
                lower[j] = 0;
            }
        }
        for (int j = 0; j < COLUMNS; j++) acc[at + j] = c[j];
    }
}
HOST(matmul)
