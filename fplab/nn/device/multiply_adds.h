// A chain of fused multiply-adds in the result's format, DOUBLE or FP32; NAN_BITS, LENGTH and COLUMNS of 1.

#if DOUBLE
typedef double Real;
DEVICE bool lost(double x) { return x != x; }
DEVICE double no_number() { return as_double(0x7FF8000000000000ull); }
#else
typedef float Real;
DEVICE bool lost(float x) { return is_nan(as_bits(x)); }
DEVICE float no_number() { return as_float(NAN_BITS); }
#endif

// acc += a @ b: a (m, count) and b (count, n). Of the scales there are none.
KERNEL(matmul)(const Real *a, const Real *b, Real *acc, const int *, const int *, int m, int n, int count) {
    for (u32 at = first(); at < (u32)m * (u32)n; at += stride()) {
        Real c = acc[at];
        for (int i = 0; i < count; i++) c = fused(a[(u64)(at / n) * count + i], b[(u64)i * n + at % n], c);
        acc[at] = lost(c) ? no_number() : c;
    }
}
HOST(matmul)
