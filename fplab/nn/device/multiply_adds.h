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

// acc += a @ b: a (m, count) and b (count, n), as in chains.h. Of the scales there are none.
KERNEL(matmul)(const Real *a, const Real *b, Real *acc, const int *, const int *, int m, int n, int count, int batch, int many_a, int many_b) {
    for (u32 at = first(); at < (u32)m * (u32)n * (u32)batch; at += stride()) {
        const Place place = place_of(at, m, n, many_a, many_b);
        const Real *x = a + place.row * count, *y = b + place.matrix * count * n + place.column;
        Real c = acc[at];
        for (int i = 0; i < count; i++, y += n) c = fused(x[i], *y, c);
        acc[at] = lost(c) ? no_number() : c;
    }
}
HOST(matmul)
