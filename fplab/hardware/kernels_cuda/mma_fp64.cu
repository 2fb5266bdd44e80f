// D = A B + C in FP64, tile by tile, by one warp a tile; shapes as in mma.cu, with ROWS (8 or 16) rows of A.
//
// With g = lane / 4 and t = lane % 4: register r of A holds row g + 8*(r % (ROWS/8)), column t + 4*(r / (ROWS/8));
// register r of B holds column g, row t + 4*r; register r of C and D holds row g + 8*(r/2), column 2t + r%2.

extern "C" __global__ void tiles(const double *a, const double *b, const double *c, double *d, int steps)
{
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4, row = steps * WORDS, halves = ROWS / 8;
    const long long tile = blockIdx.x;
    a += tile * ROWS * row;
    b += tile * 8 * row;
    c += tile * ROWS * 8;
    d += tile * ROWS * 8;
    double sum[D_REGS];
#pragma unroll
    for (int r = 0; r < D_REGS; ++r) sum[r] = c[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2];
    for (int s = 0; s < steps; ++s) {
        double x[A_REGS], y[B_REGS];
#pragma unroll
        for (int r = 0; r < A_REGS; ++r) x[r] = a[(g + 8 * (r % halves)) * row + s * WORDS + t + 4 * (r / halves)];
#pragma unroll
        for (int r = 0; r < B_REGS; ++r) y[r] = b[g * row + s * WORDS + t + 4 * r];
        INSTRUCTION(sum, x, y);
    }
#pragma unroll
    for (int r = 0; r < D_REGS; ++r) d[(g + 8 * (r / 2)) * 8 + 2 * t + r % 2] = sum[r];
}
