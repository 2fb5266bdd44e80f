// D = A B + C by mma.m8n8k4, Volta's instruction: a warp does four such products, one in each quad pair (lanes 0-3 and
// 16-19, 4-7 and 20-23, ...). All four are given the same tile here, so all write the same D.
//
// Shapes of each tile: A (8, steps*4), B (8, steps*4) (its columns are the rows stored), C and D (8, 8).
// With q = lane % 4 and h = 4 in the upper half of the warp: A holds row q + h and B column q + h, k = 0..3 in two words;
// 16-bit D holds row q + h, columns 2r and 2r+1 in register r; 32-bit D holds in register r the
// row (lane & 1) + (r & 2) + h and the column (r & 4) + (lane & 2) + (r & 1).

extern "C" __global__ void tiles(const unsigned *a, const unsigned *b, const WORD *c, WORD *d, int steps)
{
    const int lane = threadIdx.x, q = lane % 4, h = lane < 16 ? 0 : 4, row = steps * WORDS;
    const long long tile = blockIdx.x;
    a += tile * 8 * row + (q + h) * row;
    b += tile * 8 * row + (q + h) * row;
    c += tile * 8 * D_WORDS;
    d += tile * 8 * D_WORDS;
    WORD sum[D_REGS];
    int at[D_REGS];
#pragma unroll
    for (int r = 0; r < D_REGS; ++r) {
        at[r] = D_REGS == 8 ? ((lane & 1) + (r & 2) + h) * D_WORDS + (r & 4) + (lane & 2) + (r & 1)
                            : (q + h) * D_WORDS + r;
        sum[r] = c[at[r]];
    }
    for (int s = 0; s < steps; ++s) {
        unsigned x[2] = {a[s * WORDS], a[s * WORDS + 1]}, y[2] = {b[s * WORDS], b[s * WORDS + 1]};
        INSTRUCTION(sum, x, y);
    }
#pragma unroll
    for (int r = 0; r < D_REGS; ++r) d[at[r]] = sum[r];
}
