// The lab's arithmetic in C++: one text, which NVRTC compiles for a GPU and any C++ compiler for this machine.
//
// It follows fplab/kernels/rounding.py and fplab/kernels/tensorcore.py line by line; formats, roundings and units are
// constants that come before it as macros. Values travel as float32 bits, and no floating-point addition is left to the
// compiler to contract.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifdef __CUDACC__
#define DEVICE static __device__ __forceinline__
#define SELDOM static __device__ __noinline__
#define KERNEL(name) extern "C" __global__ void name
DEVICE u32 as_bits(float x) { return __float_as_uint(x); }
DEVICE float as_float(u32 b) { return __uint_as_float(b); }
DEVICE int leading_zeros(u64 m) { return __clzll(m); }
DEVICE float times(float x, float y) { return __fmul_rn(x, y); }
DEVICE float plus(float x, float y) { return __fadd_rn(x, y); }
DEVICE float over(float x, float y) { return __fdiv_rn(x, y); }
DEVICE float fused(float x, float y, float z) { return __fmaf_rn(x, y, z); }
DEVICE double fused(double x, double y, double z) { return __fma_rn(x, y, z); }
DEVICE double as_double(u64 b) { return __longlong_as_double((i64)b); }
DEVICE int truncated(float x) { return __float2int_rz(x); }
DEVICE u32 truncated_up(float x) { return __float2uint_rz(x); }
DEVICE void raise(u32 *at, u32 value) { atomicMax(at, value); }
DEVICE void add(u32 *at, u32 value) { atomicAdd(at, value); }
#define SHARED __shared__
#define PHASES(count) for (int phase = 0; phase < count; phase++, __syncthreads())
#else
#include <cstring>
#include <utility>
#define DEVICE static inline
#define SELDOM static
#define KERNEL(name) static void name
struct Index { u32 x; };
static thread_local Index blockIdx, blockDim, threadIdx, gridDim;
DEVICE u32 as_bits(float x) { u32 b; std::memcpy(&b, &x, 4); return b; }
DEVICE float as_float(u32 b) { float x; std::memcpy(&x, &b, 4); return x; }
DEVICE int leading_zeros(u64 m) { return m ? __builtin_clzll(m) : 64; }
DEVICE float times(float x, float y) { return x * y; }
DEVICE float plus(float x, float y) { return x + y; }
DEVICE float over(float x, float y) { return x / y; }
DEVICE float fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }  // <cmath> is half of a compilation
DEVICE double fused(double x, double y, double z) { return __builtin_fma(x, y, z); }
DEVICE double as_double(u64 b) { double x; std::memcpy(&x, &b, 8); return x; }
DEVICE int truncated(float x) { return (int)x; }
DEVICE u32 truncated_up(float x) { return (u32)x; }
DEVICE void raise(u32 *at, u32 value) { if (*at < value) *at = value; }
DEVICE void add(u32 *at, u32 value) { *at += value; }
#define SHARED static thread_local
#define PHASES(count)
static thread_local int phase;

// Every thread of every block of a grid, one after the other, and again in each phase of a block: what a barrier parts.
// Inside a phase kernels only add to what others add to, or raise it, so the order is free.
template <class... A, std::size_t... I>
static void each(void (*kernel)(A...), int phases, u32 grid, u32 block, void **p, std::index_sequence<I...>) {
    gridDim.x = grid, blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)
        for (phase = 0; phase < phases; phase++)
            for (threadIdx.x = 0; threadIdx.x < block; threadIdx.x++) kernel(*(A *)p[I]...);
}
template <class... A>
static void each(void (*kernel)(A...), int phases, u32 grid, u32 block, void **p) {
    each(kernel, phases, grid, block, p, std::index_sequence_for<A...>{});
}
#define HOST_PHASES(name, count) \
    extern "C" void name##_host(u32 grid, u32 block, void **p) { each(name, count, grid, block, p); }
#define HOST(name) HOST_PHASES(name, 1)
#endif
#ifndef HOST
#define HOST(name)
#define HOST_PHASES(name, count)
#endif

enum { RNE, RNA, RTZ, RTP, RTN, ODD, STOCHASTIC };  // kernels/rounding.py, MODES
const u32 SIGN = 0x80000000u, ABS = 0x7FFFFFFFu, INFINITE = 0x7F800000u, QUIET = 0x00400000u;

DEVICE int larger(int x, int y) { return x > y ? x : y; }
DEVICE int smaller(int x, int y) { return x < y ? x : y; }
DEVICE u32 first() { return blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE u32 stride() { return gridDim.x * blockDim.x; }
DEVICE bool is_nan(u32 b) { return (b & ABS) > INFINITE; }
DEVICE bool is_infinite(u32 b) { return (b & ABS) == INFINITE; }
DEVICE bool is_zero(u32 b) { return (b & ABS) == 0; }

// Where element `at` of a batch of results (m, n) comes from: the row of all A's rows, the matrix of B, and its column.
// An operand without many matrices has one for all.
struct Place { u64 row, matrix; u32 column; };
DEVICE Place place_of(u32 at, int m, int n, int many_a, int many_b) {
    const u32 row = at / n, matrix = row / m;
    return {many_a ? row : row % m, many_b ? matrix : 0, at % n};
}

// kernels/rounding.py, random_word
DEVICE u32 random_word(u32 index, u32 key0, u32 key1) {
    u32 x = index ^ key0;
    x ^= x >> 17, x *= 0xED5AD4BBu, x ^= x >> 11, x += key1;
    x *= 0xAC4C1B51u, x ^= x >> 15, x *= 0x31848BABu;
    return x ^ (x >> 14);
}
