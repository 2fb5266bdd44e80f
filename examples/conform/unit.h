/* D = A B + C of a unit that adds blocks of FP16 or BF16 products to FP32, as an H100's does: a simulator to be tested.

   Every term of a block is cut toward zero to a multiple of 2**(emax - ALIGNMENT), emax the largest exponent of a term,
   FLOOR at least; the terms are added exactly, and the sum is rounded once. The macros are for planting faults. */
#include <stdint.h>
#include <stdlib.h>

#ifndef EXPONENT_BITS
#define EXPONENT_BITS 5 /* of A and B; 8 for BF16 */
#endif
#ifndef FRACTION_BITS
#define FRACTION_BITS 10 /* 7 for BF16 */
#endif
#ifndef FLOOR
#define FLOOR -133
#endif
#ifndef LENGTH
#define LENGTH 16 /* products of a block */
#endif
#ifndef ALIGNMENT
#define ALIGNMENT 25 /* bits kept below the largest term */
#endif
#ifndef NEAREST
#define NEAREST 0 /* 1: the sum is rounded to nearest even, not toward zero */
#endif
#ifndef STICKY
#define STICKY 1 /* 0: what lies below the guard bit does not decide a tie */
#endif
#ifndef FLUSH
#define FLUSH 0 /* 1: subnormal operands of A and B are zeros */
#endif
#ifndef SATURATE
#define SATURATE 0 /* 1: the largest number in the place of infinity */
#endif
#ifndef NAN_CODE
#define NAN_CODE 0x7FFFFFFF
#endif
#ifndef REVERSED
#define REVERSED 0 /* 1: blocks of descending k */
#endif

typedef struct {
    int64_t significand; /* with sign, of `fraction` bits after the point */
    int exponent, fraction, is_nan, is_inf;
} number;

static number decoded(uint32_t code, int exponent_bits, int fraction_bits) {
    int field = (code >> fraction_bits) & ((1 << exponent_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
    int64_t fraction = code & ((1u << fraction_bits) - 1);
    int negative = (code >> (exponent_bits + fraction_bits)) & 1, top = field == (1 << exponent_bits) - 1;
    number x = {field ? fraction | (int64_t)1 << fraction_bits : fraction, (field ? field : 1) - bias,
                fraction_bits, top && fraction, top && !fraction};
    if (negative) x.significand = -x.significand;
    return x;
}

static number operand(uint32_t code) {
    number x = decoded(code, EXPONENT_BITS, FRACTION_BITS);
    if (FLUSH && llabs(x.significand) < 1 << FRACTION_BITS) x.significand = 0;
    return x;
}

static int64_t cut(int64_t x, int left) { /* x * 2**left, toward zero */
    if (left >= 0) return x * ((int64_t)1 << left);
    return left <= -63 ? 0 : x / ((int64_t)1 << -left);
}

static uint32_t rounded(int64_t sum, int exponent) { /* sum * 2**exponent as FP32 */
    uint32_t sign = sum < 0 ? 0x80000000u : 0;
    uint64_t m = sum < 0 ? -(uint64_t)sum : (uint64_t)sum;
    int top = 63, last, drop;
    if (!m) return 0;
    while (!(m >> top)) top--;
    last = top + exponent - 23 < -149 ? -149 : top + exponent - 23; /* exponent of the last place */
    drop = last - exponent;
    uint64_t kept = drop > 0 ? (drop > 63 ? 0 : m >> drop) : m << -drop;
    if (NEAREST && drop > 0 && drop < 64) {
        uint64_t half = (uint64_t)1 << (drop - 1), rest = m & (2 * half - 1);
        if (!STICKY) rest &= half;
        kept += rest > half || (rest == half && (kept & 1));
    }
    while (kept >> 24) kept >>= 1, last++;
    if (kept >> 23 && last > 104) return sign | (SATURATE ? 0x7F7FFFFF : 0x7F800000);
    return sign | (uint32_t)(kept >> 23 ? (uint64_t)(last + 150) << 23 | (kept & 0x7FFFFF) : kept);
}

static uint32_t block(const uint32_t *a, const uint32_t *b, int n, uint32_t c) {
    number z = decoded(c, 8, 23);
    int emax = -100000, nan = z.is_nan, plus = z.is_inf && !(c >> 31), minus = z.is_inf && c >> 31, negative;
    int64_t sum = 0;
    if (z.significand) emax = z.exponent;
    for (int i = 0; i < n; i++) {
        number x = operand(a[i]), y = operand(b[i]);
        negative = (a[i] ^ b[i]) >> (EXPONENT_BITS + FRACTION_BITS) & 1;
        if (x.is_nan || y.is_nan || (x.is_inf && !y.significand) || (y.is_inf && !x.significand)) nan = 1;
        else if (x.is_inf || y.is_inf) negative ? (minus = 1) : (plus = 1);
        else if (x.significand && y.significand && x.exponent + y.exponent > emax) emax = x.exponent + y.exponent;
    }
    if (nan || (plus && minus)) return NAN_CODE;
    if (plus || minus) return minus ? 0xFF800000 : 0x7F800000;
    if (emax == -100000) return 0;
    if (emax < FLOOR) emax = FLOOR;
    if (z.significand) sum = cut(z.significand, ALIGNMENT - z.fraction + z.exponent - emax);
    for (int i = 0; i < n; i++) {
        number x = operand(a[i]), y = operand(b[i]);
        sum += cut(x.significand * y.significand, ALIGNMENT - 2 * FRACTION_BITS + x.exponent + y.exponent - emax);
    }
    return rounded(sum, emax - ALIGNMENT);
}

static uint32_t chain(int k, const uint32_t *a, const uint32_t *b, uint32_t c) {
    for (int n = 0; n < k; n += LENGTH) {
        int first = REVERSED ? (k - LENGTH - n > 0 ? k - LENGTH - n : 0) : n;
        c = block(a + first, b + first, k - first < LENGTH ? k - first : LENGTH, c);
    }
    return c;
}
