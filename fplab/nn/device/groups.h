// A block of block-scaled FP4: its terms are exact sums of 16 products times the significands of their two scales, as
// grouped_block of fplab/kernels/tensorcore_exact.py: LENGTH, ALIGN, FLOOR, ZERO_EXPONENT, EMIN_C, NAN_BITS, ZERO_GROUPS
// (whether a group that sums to zero has an exponent), SCALE, COLUMNS, and those of terms.h.

const int GROUP = 16, GROUPS = LENGTH / GROUP;

DEVICE u32 block(const int *units, const int *exponents, bool bad, u32 c) {
    if (bad || is_nan(c)) return NAN_BITS;
    if (is_infinite(c)) return c;
    const Number held = parts(c, EMIN_C);
    int emax = held.m ? held.e : ZERO_EXPONENT;
    for (int g = 0; g < GROUPS; g++)
        if (units[g] || ZERO_GROUPS) emax = larger(emax, exponents[g]);
    if (emax < NO_TERM) return 0;
    emax = larger(emax, FLOOR);
    i64 total = cut(held.m, held.negative, 23 - ALIGN + emax - held.e);
    for (int g = 0; g < GROUPS; g++)
        total += cut(units[g] < 0 ? -(i64)units[g] : units[g], units[g] < 0, 8 - ALIGN + emax - exponents[g]);
    return total ? deliver(total, emax - ALIGN) : 0;
}

DEVICE void step(const u32 *x, const u32 *y, int n, const int *left, const int *right, u32 *c) {
    int units[COLUMNS][GROUPS], exponents[COLUMNS][GROUPS];  // units of 1/256: E2M1's products are quarters
    bool bad[COLUMNS];
    for (int j = 0; j < COLUMNS; j++) bad[j] = false;
    for (int g = 0; g < GROUPS; g++) {
        float sum[COLUMNS];
        for (int j = 0; j < COLUMNS; j++) sum[j] = 0;
        for (int i = g * GROUP; i < (g + 1) * GROUP; i++)
            for (int j = 0; j < COLUMNS; j++) sum[j] = fused(as_float(x[i]), as_float(y[(u64)i * n + j]), sum[j]);
        const int of_row = left[g * GROUP / SCALE];
        for (int j = 0; j < COLUMNS; j++) {
            const int of_column = right[(u64)(g * GROUP / SCALE) * n + j];
            bad[j] = bad[j] || is_bad(of_row) || is_bad(of_column);
            units[j][g] = truncated(times(sum[j], 4)) * eighths_of_scale(of_row) * eighths_of_scale(of_column);
            exponents[j][g] = exponent_of_scale(of_row) + exponent_of_scale(of_column);
        }
    }
    for (int j = 0; j < COLUMNS; j++) c[j] = block(units[j], exponents[j], bad[j], c[j]);
}
