// Counts by binade and by place inside it, and the scan that tells arrays apart, as fplab/kernels/histogram.py: CUTS.

const int BINADES = 277, ROWS = BINADES + 2, PLACES = CUTS + 1, CELLS = ROWS * PLACES;
const u32 FRACTION = 0x7FFFFF, SMALLEST_NORMAL = 0x800000;

DEVICE int cell_of(u32 b, const u32 *cuts) {
    const u32 a = b & ABS;
    const bool tiny = a < SMALLEST_NORMAL;
    const u32 bits = tiny ? as_bits((float)(int)a) : a;  // a subnormal is an integer times 2**-149
    int place = 0;
    for (int i = 0; i < CUTS; i++) place += (bits & FRACTION) >= cuts[i];
    return (a == 0 ? BINADES + 1 : (int)(bits >> 23) + (tiny ? -127 : 22)) * PLACES + place;
}

// A block counts into cells of its own, of zeros at first, which it adds to the table at last.
DEVICE void counted(int phase, const u32 *x, const u32 *cuts, u32 *table, int n) {
    SHARED u32 cells[CELLS];
    if (phase == 1) {
        u32 own[CUTS];
        for (int i = 0; i < CUTS; i++) own[i] = cuts[i];
        for (u32 i = first(); i < (u32)n; i += stride()) add(cells + cell_of(x[i], own), 1);
        return;
    }
    for (u32 i = threadIdx.x; i < CELLS; i += blockDim.x)
        if (phase == 0) cells[i] = 0;
        else if (cells[i]) add(table + i, cells[i]);
}

KERNEL(count)(const u32 *x, const u32 *cuts, u32 *table, int n) { PHASES(3) counted(phase, x, cuts, table, n); }
HOST_PHASES(count, 3)

// The largest magnitude's bits, and two sums modulo 2**32 in which each element has an odd factor of its own.
KERNEL(scan)(const u32 *x, u32 *out, int n) {
    u32 largest = 0, one = 0, two = 0;
    for (u32 i = first(); i < (u32)n; i += stride()) {
        const u32 b = x[i], odd = i << 1 | 1;
        if ((b & ABS) > largest) largest = b & ABS;
        one += b * (odd * 0x9E3779B1u), two += (b ^ (b >> 15)) * (odd * odd ^ 0x85EBCA6Au);
    }
    raise(out, largest), add(out + 1, one), add(out + 2, two);
}
HOST(scan)
