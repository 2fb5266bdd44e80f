// A block of a unit of fused blocks: LENGTH, ALIGN, FLOOR, ZERO_EXPONENT, EMIN_A, EMIN_B, EMIN_C, NAN_BITS, MINUS_ZEROS,
// WIDENED, NARROW (both formats have at most 5 bits of exponent), SCALE (elements of a scale, 0 without), COLUMNS (of a
// thread, which share its row of A), and those of terms.h.

// The block as it is defined, on 64-bit integers: y[i * n]. It reads memory again, so that the usual path has registers.
SELDOM u32 general(const u32 *x, const u32 *y, int n, u32 c, int shift, bool bad) {
    int emax = ABSENT, seen = bad ? 4 : 0;
    bool minus = true;
    for (int i = 0; i < LENGTH; i++) {
        seen |= special_product(x[i], y[(u64)i * n]);
        Number a = parts(x[i], EMIN_A), b = parts(y[(u64)i * n], EMIN_B);
        emax = larger(emax, (a.m ? a.e : ZERO_EXPONENT) + (b.m ? b.e : ZERO_EXPONENT) + shift);
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
        total += cut(a.m * b.m, a.negative != b.negative, 46 - ALIGN + emax - (a.e + b.e + shift));
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
DEVICE void step(const u32 *x, const u32 *y, int n, const int *left, const int *right, u32 *c) {
    int shift[COLUMNS], top[COLUMNS], tame[COLUMNS], at_most = 1;
    bool bad[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) {
        bad[j] = SCALE && (is_bad(left[0]) || is_bad(right[j]));
        shift[j] = SCALE ? exponent_of_scale(left[0]) + exponent_of_scale(right[j]) : 0;
        top[j] = NEVER, tame[j] = ZERO_EXPONENT == ABSENT && !MINUS_ZEROS && ALIGN <= 25 && !bad[j];
    }
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
        const int emax = larger(top[j] + shift[j], held.m ? held.e : NEVER);
        scale[j] = ALIGN - larger(emax, FLOOR);
        const int power = scale[j] + shift[j];
        tame[j] &= at_most & ((c[j] & INFINITE) != INFINITE) & (emax >= -400) & (power <= 127) & (power >= -126);
        factor[j] = as_float((u32)(power + 127) << 23);
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
        c[j] = !tame[j] ? general(x, y + j, n, c[j], shift[j], bad[j]) : total[j] ? deliver(total[j], -scale[j]) : 0;
}
