/* Tenstorrent's MVMUL onto FP32 on integers, as ttsim's source and the ISA's manual describe it: for conformance tests.
 * Rows as fplab conform writes them: k, then codes of a, b and c. -DFP16=1: operands of 5 bits of exponent; -DSHIFT: by
 * which place of a code the fraction of 10 bits ends (-3 where it has 7); -DPHASES; -DWORMHOLE=1: a sum of -1 goes wrong. */
#include <stdint.h>
#include <stdio.h>

#ifndef FP16
#define FP16 0
#endif
#ifndef WORMHOLE
#define WORMHOLE 0
#endif
enum { TILE = 32, LANES = 16, GROUP = 8, BIAS = FP16 ? 15 : 127 };

struct operand { int negative, exponent, significand; };
struct sum { int64_t units; int exponent; };

static struct operand take_apart(uint32_t code) {
    uint32_t x = SHIFT < 0 ? code << 3 : code >> (SHIFT < 0 ? 0 : SHIFT);
    struct operand o = {x >> (FP16 ? 15 : 18) & 1, x >> 10 & (FP16 ? 31 : 255), 1024 | (x & 1023)};
    if (o.exponent == 0)
        o.significand = 0;
    return o;
}

/* To the nearest multiple of 2^places, as multiples of it; ties upward. */
static int64_t nearest(int64_t x, int places) {
    if (places == 0)
        return x;
    if (places > 40)
        places = 40;
    int64_t half = (int64_t)1 << (places - 1);
    return (x + half) >> places;
}

static struct sum add_group(const uint32_t *a, const uint32_t *b, int phase) {
    int lower = (phase & 1 ? 5 : 0) + (phase & 2 ? 7 : 0), rebias = FP16 ? 127 - 2 * BIAS : -BIAS, top = -1000;
    int64_t product[GROUP];
    int exponent[GROUP], minus[GROUP];
    for (int i = 0; i < GROUP; i++) {
        struct operand x = take_apart(a[i]), y = take_apart(b[i]);
        int wide = phase & 2 ? (x.significand & 15) * 8 : x.significand / 16;
        int narrow = phase & 1 ? y.significand / 2 % 32 : y.significand / 64;
        int zero = !x.significand || !y.significand;
        product[i] = zero ? 0 : wide * narrow;
        minus[i] = x.negative != y.negative;
        exponent[i] = (zero ? 0 : x.exponent + y.exponent) + rebias - lower;
        if (zero && exponent[i] < 0)
            exponent[i] = 0;
        if (exponent[i] > top)
            top = exponent[i];
    }
    struct sum s = {0, top > 0 ? top : 0};
    for (int i = 0; top > 0 && i < GROUP; i++) {
        int64_t units = nearest(product[i], top - exponent[i]);
        s.units += minus[i] ? -units : units;
    }
    s.units *= 1 << 13;
    return s;
}

static uint32_t onto(uint32_t c, struct sum p, struct sum q) {
    int minus = c >> 31, exponent = c >> 23 & 255, top = exponent;
    int64_t own = exponent ? 0x800000 | (c & 0x7FFFFF) : 0;
    if (p.exponent > top)
        top = p.exponent;
    if (q.exponent > top)
        top = q.exponent;
    if (top == 0)
        return 0;
    own = nearest(own, top - exponent);
    int64_t total = (minus ? -own : own) + nearest(p.units, top - p.exponent) + nearest(q.units, top - q.exponent);
    int64_t size = total < 0 ? -total : total;
    if (size == 0)
        return 0;
    int places = 0; /* by which it is longer than 24 bits */
    while (size >> 24 >> (places > 0 ? places : 0))
        places++;
    while (places <= 0 && !(size << -places >> 23))
        places--;
    if (WORMHOLE && total == -1)
        places = 4;
    size = places > 0 ? nearest(size, places) : size << -places;
    top += places + (int)(size >> 24);
    if (top <= 0)
        return 0;
    return (uint32_t)(total < 0) << 31 | (top >= 255 ? 255u << 23 : (uint32_t)top << 23 | (size & 0x7FFFFF));
}

int main(void) {
    int k;
    static uint32_t a[1 << 16], b[1 << 16];
    while (scanf("%d", &k) == 1) {
        uint32_t c;
        for (int i = 0; i < k; i++)
            scanf("%x", &a[i]);
        for (int i = 0; i < k; i++)
            scanf("%x", &b[i]);
        scanf("%x", &c);
        for (int tile = 0; tile < k; tile += TILE)
            for (int phase = 0; phase < PHASES; phase++)
                for (int at = tile; at < tile + TILE; at += LANES)
                    c = onto(c, add_group(a + at, b + at, phase), add_group(a + at + GROUP, b + at + GROUP, phase));
        printf("%08X\n", c);
    }
    return 0;
}
