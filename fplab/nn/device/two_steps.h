// AMD's sums on CDNA3, as fplab/kernels/matrix_cores.py: of LENGTH products, dealt to PARTS sums, each truncated at its
// own largest exponent to ALIGN places; then that sum and c, both rounded down. EMIN_A, EMIN_B, NAN_BITS, COLUMNS, and
// those of terms.h.

const int SUM = 31, ZERO = -126;  // a zero's exponent counts

DEVICE i64 floored(i64 m, int shift) { return shift >= 0 ? m << shift : m >> smaller(-shift, 63); }

DEVICE Number operand(u32 bits, int emin) {
    const Number found = parts(bits, emin);
    return {found.negative, found.m, found.m ? found.e : ZERO};
}

DEVICE u32 second(i64 s, int e, u32 c) {
    const Number held = parts(c, ZERO);
    const int m = larger(e, held.e);
    i64 low = floored(held.negative ? -held.m : held.m, held.e - m + ALIGN - 23) << (SUM - ALIGN);
    if (PARTS == 2 && held.e < m - 25) low = 0;
    const i64 total = floored(s, e - m + SUM - ALIGN) + low;
    return total ? deliver(total, m - SUM) : 0;
}

DEVICE u32 infinity_of(int seen) { return seen == 1 ? INFINITE : seen == 2 ? INFINITE | SIGN : NAN_BITS; }

// A group as it is defined, on 64-bit integers. It reads memory again, so that the usual path has registers.
SELDOM u32 group(const u32 *x, const u32 *y, int n, u32 c) {
    int seen = is_nan(c) ? 4 : is_infinite(c) ? c & SIGN ? 2 : 1 : 0, beyond = 0, top = 0;
    i64 total = 0;
    for (int part = 0; part < PARTS; part++) {
        const int from = part * (LENGTH / PARTS), to = from + LENGTH / PARTS;
        int e = -1000;
        i64 s = 0;
        for (int i = from; i < to; i++) {
            seen |= special_product(x[i], y[(u64)i * n]);
            const Number a = operand(x[i], EMIN_A), b = operand(y[(u64)i * n], EMIN_B);
            e = larger(e, a.e + b.e);
            if (a.m && b.m && a.e + b.e + (a.m * b.m >> 47) > 127) beyond |= a.negative != b.negative ? 2 : 1;
        }
        for (int i = from; i < to; i++) {
            const Number a = operand(x[i], EMIN_A), b = operand(y[(u64)i * n], EMIN_B);
            s += cut(a.m * b.m, a.negative != b.negative, 46 - ALIGN + e - a.e - b.e);
        }
        if (part) {
            const int both = larger(e, top);
            s = floored(s, e - both) + floored(total, top - both), e = both;
        }
        total = s, top = e;
    }
    return seen ? infinity_of(seen) : beyond ? infinity_of(beyond) : second(total, top, c);
}

DEVICE int exponent_of(u32 b, int emin) { return is_zero(b) ? ZERO : larger((int)((b & ABS) >> 23) - 127, emin); }

// Whether a number's products with others like it, and what they are scaled to, are normal in float32.
DEVICE int is_tame(u32 b, int e) { return is_zero(b) | ((u32)(e + 50) <= 110u); }

// c[j] onto the group of x and column j of y. Of tame operands a * b and its scaling are exact in float32, and the
// conversion truncates as the unit does.
DEVICE void step(const u32 *x, const u32 *y, int n, const int *, const int *, u32 *c) {
    int tame[COLUMNS], top[COLUMNS];
    i64 total[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) tame[j] = (c[j] & INFINITE) != INFINITE, total[j] = top[j] = 0;
    for (int part = 0; part < PARTS; part++) {
        const int from = part * (LENGTH / PARTS), to = from + LENGTH / PARTS;
        int e[COLUMNS], s[COLUMNS];
        float factor[COLUMNS];
        for (int j = 0; j < COLUMNS; j++) e[j] = -1000, s[j] = 0;
        for (int i = from; i < to; i++) {
            const int ea = exponent_of(x[i], EMIN_A), fits = is_tame(x[i], ea);
            for (int j = 0; j < COLUMNS; j++) {
                const u32 b = y[(u64)i * n + j];
                const int eb = exponent_of(b, EMIN_B);
                tame[j] &= fits & is_tame(b, eb);
                e[j] = larger(e[j], ea + eb);
            }
        }
        for (int j = 0; j < COLUMNS; j++)  // below -100 there are products of zeros alone
            factor[j] = as_float((u32)(ALIGN - smaller(larger(e[j], -100), 120) + 127) << 23);
        for (int i = from; i < to; i++)
            for (int j = 0; j < COLUMNS; j++)
                s[j] += truncated(times(times(as_float(x[i]), as_float(y[(u64)i * n + j])), factor[j]));
        for (int j = 0; j < COLUMNS; j++) {
            const int both = part ? larger(e[j], top[j]) : e[j];
            total[j] = part ? floored(s[j], e[j] - both) + floored(total[j], top[j] - both) : s[j];
            top[j] = both;
        }
    }
    for (int j = 0; j < COLUMNS; j++) c[j] = tame[j] ? second(total[j], top[j], c[j]) : group(x, y + j, n, c[j]);
}
