// D = A B + C by Hopper's wgmma as libraries use it: A and B both from shared memory, all steps in one group, without
// waiting between them. Shapes as in wgmma.cu, with at most MAX_STEPS steps.
//
// Core matrices of 8 rows by 16 bytes, each 128 contiguous bytes. Of A, a step has 8 in the direction of rows, 128
// bytes apart, and 2 in the direction of k, 1024 bytes apart; of B, 1 and 2, as in wgmma.cu.

#define MAX_STEPS 16

__device__ unsigned long long descriptor(const unsigned *shared, unsigned leading, unsigned stride)
{
    const unsigned long long address = (unsigned long long)__cvta_generic_to_shared(shared);
    return ((address & 0x3FFFF) >> 4) | ((unsigned long long)(leading / 16) << 16)
         | ((unsigned long long)(stride / 16) << 32);
}

extern "C" __global__ void __launch_bounds__(128, 1)
tiles(const unsigned *a, const unsigned *b, const WORD *c, WORD *d, int steps)
{
    __shared__ __align__(128) unsigned shared_a[MAX_STEPS * 512], shared_b[MAX_STEPS * 64];
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, row = steps * WORDS;
    const int first = 16 * (threadIdx.x / 32);
    const long long tile = blockIdx.x;
    a += tile * 64 * row;
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
    for (int i = threadIdx.x; i < 64 * row; i += 128) {
        const int m = i / row, s = i % row / WORDS, w = i % WORDS;
        shared_a[s * 512 + (w / 4) * 256 + m * 4 + w % 4] = a[i];
    }
    for (int i = threadIdx.x; i < 8 * row; i += 128) {
        const int n = i / row, s = i % row / WORDS, w = i % WORDS;
        shared_b[s * 64 + (w / 4) * 32 + n * 4 + w % 4] = b[i];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int s = 0; s < steps; ++s) {
        INSTRUCTION(sum, descriptor(shared_a + s * 512, 1024, 128), descriptor(shared_b + s * 64, 128, 128));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int r = 0; r < D_REGS; ++r) d[at[r]] = sum[r];
}
