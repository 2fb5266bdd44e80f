// AMD's sums before CDNA3, as fplab/kernels/matrix_cores.py: of LENGTH products pairwise, then their sum onto c, all in
// FP32. FLUSHES: a subnormal operand or c is +0, a subnormal result a zero of its sign; EMIN_A, EMIN_B; COLUMNS.

DEVICE u32 without(u32 b, int emin) { return FLUSHES && (b & ABS) < (u32)(emin + 127) << 23 && !is_zero(b) ? 0 : b; }

DEVICE float flushed(float x) {
    const u32 b = as_bits(x);
    return FLUSHES && !(b & INFINITE) ? as_float(b & SIGN) : x;
}

DEVICE void step(const u32 *x, const u32 *y, int n, const int *, const int *, u32 *c) {
    float a[LENGTH];
    for (int i = 0; i < LENGTH; i++) a[i] = as_float(without(x[i], EMIN_A));
    for (int j = 0; j < COLUMNS; j++) {
        float sums[LENGTH];
        for (int i = 0; i < LENGTH; i++)
            sums[i] = flushed(fused(a[i], as_float(without(y[(u64)i * n + j], EMIN_B)), 0));
        for (int half = LENGTH / 2; half; half /= 2)
            for (int i = 0; i < half; i++) sums[i] = flushed(plus(sums[2 * i], sums[2 * i + 1]));
        c[j] = as_bits(flushed(plus(as_float(without(c[j], -126)), sums[0])));
    }
}
