// INT8 products summed exactly in INT32: modulo 2**32, or where SATURATE is 1 clamped after every LENGTH of them.

const i64 LEAST = -(1ll << 31), MOST = (1ll << 31) - 1;

// acc += a @ b: a (m, count * LENGTH) and b (count * LENGTH, n), as in chains.h. Of the scales there are none.
KERNEL(matmul)(const signed char *a, const signed char *b, int *acc, const int *, const int *, int m, int n, int count, int batch, int many_a, int many_b) {
    const u64 k = (u64)count * LENGTH;
    for (u32 at = first(); at < (u32)m * (u32)n * (u32)batch; at += stride()) {
        const Place place = place_of(at, m, n, many_a, many_b);
        const signed char *x = a + place.row * k, *y = b + place.matrix * k * n + place.column;
        u32 c = acc[at];
        for (int t = 0; t < count; t++, x += LENGTH, y += (u64)LENGTH * n) {
            int part = 0;
            for (int i = 0; i < LENGTH; i++) part += x[i] * y[(u64)i * n];
            const i64 total = (i64)(int)c + part;
            c = (u32)(!SATURATE ? total : total < LEAST ? LEAST : total > MOST ? MOST : total);
        }
        acc[at] = (int)c;
    }
}
HOST(matmul)
