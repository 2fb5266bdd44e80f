// AMD's sums on CDNA3, as fplab/kernels/matrix_cores.py: of LENGTH products, dealt to PARTS sums, each truncated at its
// own largest exponent; then that sum and c, both rounded down. EMIN_A, EMIN_B, NAN_BITS, COLUMNS, and those of terms.h.

const int ALIGN = 24, SUM = 31, ZERO = -126;  // a zero's exponent counts

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

DEVICE u32 group(const u32 *x, const u32 *y, int n, u32 c) {
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

DEVICE void step(const u32 *x, const u32 *y, int n, const int *, const int *, u32 *c) {
    for (int j = 0; j < COLUMNS; j++) c[j] = group(x, y + j, n, c[j]);
}
