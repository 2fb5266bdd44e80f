// D = A B + C, tile by tile, by one warp a tile and one instruction a step; step s takes columns s*k ... of A and B.
//
// Shapes of each tile, all rows contiguous: A (16, steps*k), B (8, steps*k): its columns are the rows stored here,
// C and D (16, 8). A step's row is WORDS 32-bit words: 8 for the long form of an instruction, 4 for the short one.
// In words the fragments of PTX ISA 9.7.14 are the same for every format: with g = lane / 4 and t = lane % 4,
// register r of A holds row g + 8*(r%2), word t + 4*(r/2); register r of B holds column g, word t + 4*r;
// register r of C and D holds row g + 8*(r/2), element 2t + r%2 (32-bit) or row g + 8*r, elements 2t and 2t+1 (16-bit).

extern "C" __global__ void tiles(const unsigned *a, const unsigned *b, const WORD *c, WORD *d, int steps)
{
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4, row = steps * WORDS;
    const long long tile = blockIdx.x;
    a += tile * 16 * row;
    b += tile * 8 * row;
    c += tile * 16 * D_WORDS;
    d += tile * 16 * D_WORDS;
    WORD sum[D_REGS];
    int at[D_REGS];
#pragma unroll
    for (int r = 0; r < D_REGS; ++r) {
        at[r] = D_REGS == 4 ? (g + 8 * (r / 2)) * D_WORDS + 2 * t + r % 2 : (g + 8 * r) * D_WORDS + t;
        sum[r] = c[at[r]];
    }
    for (int s = 0; s < steps; ++s) {
        unsigned x[A_REGS], y[B_REGS];
#pragma unroll
        for (int r = 0; r < A_REGS; ++r) x[r] = a[(g + 8 * (r % 2)) * row + s * WORDS + t + 4 * (r / 2)];
#pragma unroll
        for (int r = 0; r < B_REGS; ++r) y[r] = b[g * row + s * WORDS + t + 4 * r];
        INSTRUCTION(sum, x, y);
    }
#pragma unroll
    for (int r = 0; r < D_REGS; ++r) d[at[r]] = sum[r];
}
