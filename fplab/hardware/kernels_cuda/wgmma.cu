// D = A B + C by Hopper's wgmma, tile by tile, by one warp group (four warps) a tile and one instruction a step.
//
// Shapes of each tile, all rows contiguous: A (64, steps*k), B (8, steps*k) (its columns are the rows stored), C and D
// (64, 8). A step's row is 32 bytes, 8 words, in every format. A comes from registers, B from shared memory. Warp w
// holds rows 16w ... 16w+15 of A, C and D, in the fragments of mma.cu.
//
// B in shared memory, without swizzling: core matrices of 8 rows by 16 bytes, each 128 contiguous bytes; a step has
// two of them, side by side in k and 128 bytes apart. The other direction has only one, so that both offsets of the
// descriptor can be 128 bytes.

__device__ unsigned long long descriptor(const unsigned *shared)
{
    const unsigned long long address = (unsigned long long)__cvta_generic_to_shared(shared);
    const unsigned long long offset = 128 / 16;
    return ((address & 0x3FFFF) >> 4) | (offset << 16) | (offset << 32);
}

extern "C" __global__ void __launch_bounds__(128, 1)
tiles(const unsigned *a, const unsigned *b, const WORD *c, WORD *d, int steps)
{
    __shared__ __align__(128) unsigned shared_b[64];
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, row = steps * WORDS;
    const int first = 16 * (threadIdx.x / 32);
    const long long tile = blockIdx.x;
    a += (tile * 64 + first) * row;
    b += tile * 8 * row;
    c += (tile * 64 + first) * D_WORDS;
    d += (tile * 64 + first) * D_WORDS;
    WORD sum[D_REGS];
    int at[D_REGS];
#pragma unroll
    for (int r = 0; r < D_REGS; ++r) {
        at[r] = D_REGS == 4 ? (g + 8 * (r / 2)) * D_WORDS + 2 * t + r % 2 : (g + 8 * r) * D_WORDS + t;
        sum[r] = c[at[r]];
    }
    const unsigned long long where = descriptor(shared_b);
    for (int s = 0; s < steps; ++s) {
        if (threadIdx.x < 64) {  // word w of B's row n goes to core matrix w/4, row n, word w%4
            const int n = threadIdx.x / 8, w = threadIdx.x % 8;
            shared_b[(w / 4) * 32 + n * 4 + w % 4] = b[n * row + s * WORDS + w];
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        unsigned x[A_REGS];
#pragma unroll
        for (int r = 0; r < A_REGS; ++r) x[r] = a[(g + 8 * (r % 2)) * row + s * WORDS + t + 4 * (r / 2)];
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        INSTRUCTION(sum, x, where);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < D_REGS; ++r) d[at[r]] = sum[r];
}
