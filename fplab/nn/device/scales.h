// Scales of blocks and the codes of their elements, as fplab/kernels/scaled.py: HIGH and WIDE (of a block; 0: the whole
// row), RUN (elements of a thread), a Rule's fields, a Grid's as ELEMENT_ and SCALE_, ELEMENT_MAX and TOP (float32 bits),
// SECOND (whether a scale of the tensor, or of rows, is beside the blocks'), SQUARED, MODE, BITS (random ones).

enum { POWER, TWO_LEVEL, TWO_LEVEL_DIVIDED, FOUR_OVER_SIX, QUOTIENT, QUOTIENT_DOWN };
const u32 MOST = 0x7F7FFFFFu, LEAST_NORMAL = 0x00800000u;

// --- where elements and blocks are -----------------------------------------------------------------------------------

struct Run { u64 at; u32 block; int count; };

DEVICE int width_of(int k) { return WIDE ? WIDE : larger(k, 1); }
DEVICE int parts(int size, int part) { return size / part + (size % part != 0); }

// Element runs of a matrix of rows of k; blocks of several rows do not reach beyond `height` of them.
DEVICE u32 runs(int rows, int k) { return (u32)rows * parts(k, width_of(k)) * parts(width_of(k), RUN); }

DEVICE Run run_at(u32 n, int k, int height) {
    const u32 wide = width_of(k), across = parts(k, wide), each = parts(wide, RUN);
    const u32 row = n / (across * each), within = n % (across * each), j = within / each, left = j * wide + within % each * RUN;
    const u32 down = HIGH == 1 ? row : row / height * parts(height, HIGH) + row % height / HIGH;
    const int end = smaller(smaller(left + RUN, (j + 1) * wide), k);
    return {(u64)row * k + left, down * across + j, end - (int)left};
}

// --- what a block's largest magnitude asks for -----------------------------------------------------------------------

struct Scale { u32 code; float value, factor; };  // value: of a narrow code; factor: of the elements
struct Second { float up, down; };

DEVICE float at_most(float x, u32 limit) { return x > as_float(limit) ? as_float(limit) : x; }

DEVICE Scale power_of_two(u32 a) {
    const u32 t = as_bits(times(as_float(a), as_float(MULTIPLIER)));
    const bool tiny = t < LEAST_NORMAL;
    const u32 bits = tiny ? as_bits(times(as_float(t), 16777216.0f)) : t;
    const int e = (int)((bits + ADDEND) >> 23) - (tiny ? 24 : 0);
    u32 code = smaller(larger(e - EMAX, 0), 254);
    if (e > LIMIT) code = 255;
    if (t >= INFINITE) code = t == INFINITE ? OF_INFINITY : 255;
    const u32 factor = code == 0 ? FIRST : code == 254 ? LAST : code == 255 ? INFINITE | QUIET : (254 - code) << 23;
    return {code, 0, as_float(factor)};
}

DEVICE Scale encoded(float t, float down) {
    const u32 a = as_bits(at_most(t, SCALE_LARGEST)), e = (u32)larger(a & INFINITE, SCALE_EMIN), c = e + SCALE_MAGIC;
    if (is_nan(a)) return {SCALE_NAN, as_float(a), as_float(INFINITE | QUIET)};
    const float shifted = plus(as_float(a), as_float(c)), value = plus(shifted, -as_float(c));
    const u32 code = ((e - SCALE_EMIN) >> SCALE_FOLD) + (as_bits(shifted) - c);
    const float factor = KIND == TWO_LEVEL_DIVIDED ? over(down, value) : at_most(over(1, times(value, down)), MOST);
    return {code, value, factor};
}

DEVICE Second second_of(float amax) {
    if (KIND == TWO_LEVEL_DIVIDED) {
        const float s = SECOND ? over(amax, as_float(TOP)) : 1;
        return {s, over(1, s)};
    }
    float g = SECOND ? at_most(over(as_float(TOP), amax), MOST) : 1;
    if (SECOND && (amax == 0 || g == 0)) g = 1;
    return {KIND == FOUR_OVER_SIX ? g : times(g, over(1, as_float(ELEMENT_MAX))), over(1, g)};
}

DEVICE Scale two_level(u32 a, Second second, bool four) {
    if (KIND == TWO_LEVEL) return encoded(times(as_float(a), second.up), second.down);
    float t = over(as_float(a), as_float(MULTIPLIER));
    t = KIND == FOUR_OVER_SIX ? times(t, second.up) : over(t, second.up);
    if (KIND == FOUR_OVER_SIX) return encoded(four ? times(t, 1.5f) : t, second.down);
    return encoded(t < as_float(LEAST) ? as_float(LEAST) : t, second.down);
}

DEVICE Scale quotient(u32 a) {
    if (a < LEAST) a = LEAST;
    if (GUARDS && (a == 0 || a >= INFINITE)) return {as_bits(1.0f), 0, 1};
    if (is_nan(a)) return {a | QUIET, 0, as_float(a)};
    if (KIND == QUOTIENT_DOWN) {
        u32 scale = as_bits(over(as_float(a), as_float(MULTIPLIER)));
        if (DOWN != 0xFFFFFFFFu && scale < INFINITE) scale = (scale + 0x7FFFFF) & DOWN;
        return {scale, 0, over(1, as_float(scale))};
    }
    u32 factor = as_bits(over(as_float(MULTIPLIER), as_float(a)));
    factor = (factor == INFINITE ? MOST_FACTOR : factor) & DOWN;
    return {as_bits(over(1, as_float(factor))), 0, as_float(factor)};
}

// --- elements --------------------------------------------------------------------------------------------------------

struct Count { u32 a, e, c; float shifted; };

DEVICE Count count_of(u32 b) {
    const u32 a = (b & ABS) > ELEMENT_LARGEST ? ELEMENT_LARGEST : b & ABS, e = larger(a & INFINITE, ELEMENT_EMIN);
    return {a, e, e + ELEMENT_MAGIC, plus(as_float(a), as_float(e + ELEMENT_MAGIC))};
}

DEVICE u32 code_of(u32 b, u32 e, u32 count) {
    const u32 kept = is_zero(b) ? ELEMENT_ZERO : ELEMENT_SIGN;
    return is_nan(b) ? ELEMENT_NAN : (((e - ELEMENT_EMIN) >> ELEMENT_FOLD) + count) | ((b >> ELEMENT_SHIFT) & kept);
}

DEVICE u32 code_in(u32 b, u32 word) {
    const Count n = count_of(b);
    if (MODE == RNE) return code_of(b, n.e, as_bits(n.shifted) - n.c);
    const float y = plus(n.shifted, -as_float(n.c));
    const bool beyond = y > as_float(n.a), negative = b & SIGN;
    const u32 count = as_bits(n.shifted) - n.c - beyond;
    const float rest = times(plus(as_float(n.a), -plus(y, beyond ? -as_float(n.e - ELEMENT_ULP) : 0)),
                             as_float(ELEMENT_UNITS - n.e));  // what lies above, in units of 2**-BITS of a step
    bool up = rest > 0;
    if (MODE == STOCHASTIC) up = (u64)truncated_up(rest) + word >= 1ull << (BITS == 8 ? 8 : 32);
    else if (MODE == RNA) up = rest >= 2147483648.0f;
    else if (MODE == RTP || MODE == RTN) up = up && negative == (MODE == RTN);
    else up = up && MODE == ODD && !(count & 1);
    return code_of(b, n.e, count + up);
}

// What a block's elements lose at a scale, summed in FP32 of a row from the left, and the rows by halves: with rows in
// the order of their numbers' reversed bits, each sum meets the one that it is added to.
DEVICE float lost(const u32 *x, int high, int wide, int k, Scale scale, float amax) {
    float held[32], total = 0;
    int levels = 0;
    while (1 << levels < HIGH) levels++;
    for (u32 n = 0; n < 1u << levels; n++) {
        u32 row = 0;
        for (int bit = 0; bit < levels; bit++) row |= (n >> bit & 1) << (levels - 1 - bit);
        total = 0;
        for (int i = 0; row < (u32)high && i < wide; i++) {
            const float v = as_float(x[(u64)row * k + i]);
            const u32 b = as_bits(times(v, scale.factor));
            const Count c = count_of(b);
            const u32 y = as_bits(plus(c.shifted, -as_float(c.c))) | (b & SIGN);
            const float d = plus(over(times(times(as_float(y), scale.value), amax), as_float(TOP)), -v);
            total = plus(total, SQUARED ? times(d, d) : as_float(as_bits(d) & ABS));
        }
        int bit = 0;
        for (; n >> bit & 1; bit++) total = plus(held[bit], total);
        held[bit] = total;
    }
    return total;
}

// --- kernels ---------------------------------------------------------------------------------------------------------

KERNEL(maxima)(const u32 *x, u32 *most, int rows, int k, int height) {
    for (u32 n = first(); n < runs(rows, k); n += stride()) {
        const Run run = run_at(n, k, height);
        u32 top = 0;
        for (int i = 0; i < run.count; i++) {
            const u32 a = x[run.at + i] & ABS;
            if (a > top && !(SKIPS && a > INFINITE)) top = a;
        }
        if (top) raise(most + run.block, top);
    }
}
HOST(maxima)

// Of each block the scale's code or bits, and what its elements are multiplied by. amax: of the tensor or of every row.
KERNEL(scales)(const u32 *x, const u32 *most, const u32 *amax, int each, u32 *scales, u32 *factors, int blocks, int k, int height) {
    const int wide = width_of(k), across = parts(k, wide), tall = parts(height, HIGH);
    for (u32 n = first(); n < (u32)blocks; n += stride()) {
        if (KIND == POWER || KIND == QUOTIENT || KIND == QUOTIENT_DOWN) {
            const Scale found = KIND == POWER ? power_of_two(most[n]) : quotient(most[n]);
            scales[n] = found.code, factors[n] = as_bits(found.factor);
            continue;
        }
        const u32 down = n / across, row = down / tall * height + down % tall * HIGH, left = n % across * wide;
        const float own = SECOND ? as_float(amax[each ? row : 0]) : as_float(TOP);
        const Second second = second_of(own);
        Scale found = two_level(most[n], second, false);
        if (KIND == FOUR_OVER_SIX) {
            const Scale four = two_level(most[n], second, true);
            const u32 *block = x + (u64)row * k + left;
            const int high = smaller(HIGH, height - down % tall * HIGH), count = smaller(wide, k - left);
            if (lost(block, high, count, k, four, own) < lost(block, high, count, k, found, own)) found = four;
        }
        scales[n] = found.code, factors[n] = as_bits(found.factor);
    }
}
HOST(scales)

KERNEL(codes)(const u32 *x, const u32 *factors, unsigned char *codes, int rows, int k, int height, int key0, int key1) {
    for (u32 n = first(); n < runs(rows, k); n += stride()) {
        const Run run = run_at(n, k, height);
        const float factor = as_float(factors[run.block]);
        for (int i = 0; i < run.count; i++) {
            const u32 at = (u32)(run.at + i);
            u32 word = MODE == STOCHASTIC ? random_word(BITS == 8 ? at >> 2 : at, key0, key1) : 0;
            if (BITS == 8) word = word >> (at & 3) * 8 & 255;
            codes[run.at + i] = code_in(as_bits(times(as_float(x[run.at + i]), factor)), word);
        }
    }
}
HOST(codes)

// --- back ------------------------------------------------------------------------------------------------------------

DEVICE float dequantizer(float scale, float amax) {
    if (!SECOND) return scale;
    if (KIND == TWO_LEVEL_DIVIDED) return times(over(amax, as_float(TOP)), scale);
    return times(times(scale, amax), over(1, as_float(TOP)));
}

// elements, narrow: the values of all codes of the element and of the scale; a NaN is 0x7FC00000.
KERNEL(dequantize)(const unsigned char *codes, const u32 *scales, const u32 *amax, int each, const u32 *elements, const u32 *narrow, u32 *out, int rows, int k, int height) {
    const int across = parts(k, width_of(k)), tall = parts(height, HIGH);
    for (u32 n = first(); n < runs(rows, k); n += stride()) {
        const Run run = run_at(n, k, height);
        const u32 down = run.block / across, row = down / tall * height + down % tall * HIGH, scale = scales[run.block];
        const float value = as_float(KIND == QUOTIENT || KIND == QUOTIENT_DOWN ? scale : narrow[scale]);
        const float factor = dequantizer(value, SECOND ? as_float(amax[each ? row : 0]) : 0);
        for (int i = 0; i < run.count; i++) {
            const u32 b = as_bits(times(as_float(elements[codes[run.at + i]]), factor));
            out[run.at + i] = is_nan(b) ? INFINITE | QUIET : b;
        }
    }
}
HOST(dequantize)
