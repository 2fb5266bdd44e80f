// Chains of steps: NAN_BITS, PERIOD (steps after which the sum starts again and is added to FP32 registers; 0: never),
// PLUS_C (steps of an instruction, before each of which a c of -0 becomes +0; 0: never), WIDENED (a step ends with every
// second block, to whose sum c is added), LENGTH (products of a step), SCALE, COLUMNS.
//
// A unit's file has step(x, y, n, left, right, c): onto c[j] the products of x[i] and y[i * n + j], with scales of this
// row and of these columns, which are packed: the exponent times 256, and eight times the significand, or 255 for a NaN.

DEVICE u32 sum_in_fp32(u32 x, u32 y) {
    u32 bits = as_bits(plus(as_float(x), as_float(y)));
    return is_nan(bits) ? NAN_BITS : bits;
}

// The IEEE sum of two values of the output format, to nearest.
DEVICE u32 sum_of(u32 x, u32 y) {
    u32 bits = sum_in_fp32(x, y);
    if (KEPT == 23 || is_nan(bits) || is_infinite(bits) || is_zero(bits)) return bits;
    Number n = parts(bits, -126);
    const i64 tie = (1 << 24) - (1 << (22 - smaller(KEPT, 22)));  // whatever blocks make of overflow
    if (n.e > EMAX_D || (n.e == EMAX_D && n.m >= tie)) return INFINITE | (bits & SIGN);
    return deliver(n.negative ? -n.m : n.m, n.e - 23);
}

// acc += a @ b for each of a batch: a (m, count * LENGTH) and b (count * LENGTH, n), float32 bits, scales (m, k / SCALE)
// and (k / SCALE, n); the first row and matrix of a, and the matrix of b, are those of place_of. COLUMNS divides n.
KERNEL(matmul)(const u32 *a, const u32 *b, u32 *acc, const int *left, const int *right, int m, int n, int count, int batch, int many_a, int many_b) {
    const int each = SCALE ? LENGTH / (SCALE ? SCALE : 1) : 0;  // scales of a step
    static_assert(each * SCALE == LENGTH || !SCALE, "steps of whole scales");
    const u64 k = (u64)count * LENGTH, groups = (u64)count * each;
    for (u32 at = first() * COLUMNS; at < (u32)m * (u32)n * (u32)batch; at += stride() * COLUMNS) {
        const Place place = place_of(at, m, n, many_a, many_b);
        const u32 *x = a + place.row * k, *y = b + place.matrix * k * n + place.column;
        const int *of_row = left + place.row * groups, *of_column = right + place.matrix * groups * n + place.column;
        u32 c[COLUMNS], lower[COLUMNS];
        for (int j = 0; j < COLUMNS; j++) c[j] = is_nan(acc[at + j]) ? NAN_BITS : acc[at + j], lower[j] = 0;
        for (int t = 0; t < count; t++, x += LENGTH, y += (u64)LENGTH * n) {
            u32 *held = WIDENED || PERIOD ? lower : c;
            for (int j = 0; j < COLUMNS && PLUS_C && t % (PLUS_C ? PLUS_C : 1) == 0; j++)
                if (is_zero(held[j])) held[j] = 0;
            step(x, y, n, of_row, of_column, held);
            of_row += each, of_column += (u64)each * n;
            const bool ends = WIDENED ? t % 2 : PERIOD && ((t + 1) % (PERIOD ? PERIOD : 1) == 0 || t + 1 == count);
            for (int j = 0; j < COLUMNS && ends; j++) {
                c[j] = WIDENED ? sum_of(lower[j], c[j]) : sum_in_fp32(c[j], lower[j]);
                lower[j] = 0;
            }
        }
        for (int j = 0; j < COLUMNS; j++) acc[at + j] = is_nan(c[j]) ? NAN_BITS : c[j];
    }
}
HOST(matmul)
