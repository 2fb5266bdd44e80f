"""Tensor Core products at speed: the blocks of :mod:`.tensorcore`, many columns of the result at a time.

Operands are packed once, A as ``[block][row][L]`` and B as ``[panel][block][L][WIDTH]``, with the exponent of every
element beside it. For one row of A and one block, three loops run over the columns of a panel, and each vectorises:

1. the largest exponent of the products, on 8- or 16-bit integers;
2. the truncated terms: a * b is exact in float32; times 2**(F - emax), again exact, the conversion to int32 truncates
   it toward zero just where the hardware does;
3. the sum and its rounding, in float64, which holds it exactly.

That is right as long as no product of float32 overflows or underflows ("tame" operands: always, for FP16 and FP8).
A block whose exponents span more takes significands and exponents apart; one with infinities or NaNs also sums
indicators of them. Whether a block is tame is known from packing. Loops are made per variant, since a choice inside
would keep them from vectorising.
"""

from typing import NamedTuple

import numpy as np

from . import inlined, jit

WIDTH = 64  # columns of a panel: one row of a block stays in registers and first-level cache
TILE = 64  # rows that share a block of B while it is in the cache
TAME_LOW, TAME_HIGH = -50, 60  # exponents of operands whose products, scaled, stay inside float32
LEAST = -100  # of an exponent of tame products: the sum of two TAME_LOW
MOST_SHIFT = 90  # of scales beside tame blocks: their sums' exponents stay inside float32
NEVER = -10000  # the exponent of a zero
TAME, WIDE, SPECIAL = range(3)
INFINITY = np.uint32(0x7F800000)
ABS = np.uint32(0x7FFFFFFF)


class Rule(NamedTuple):
    """A block as the fast kernels see it; every field an int."""

    align: int  # F
    kept: int  # fraction bits of a result
    floor: int  # least emax, or NEVER
    emin_a: int
    emin_b: int
    emin_c: int
    none: int  # largest exponents below this mean that all products are zero
    nan: int
    period: int  # blocks after which the accumulator is added to a second one and starts again; 0: never
    half: int  # 1: that addition rounds to FP16


@inlined
def _bits(x):
    return np.float32(x).view(np.uint32)


@inlined
def _float(bits):
    return np.uint32(bits).view(np.float32)


@inlined
def _power(e):
    """2**e as a float32, for a normal exponent."""
    return _float(np.uint32(np.uint32(np.int32(e) + np.int32(127)) << np.uint32(23)))


@inlined
def _power64(e):
    """2**e as a float64, for a normal exponent."""
    return np.int64(np.int64(np.int64(e) + np.int64(1023)) << np.int64(52)).view(np.float64)


@inlined
def _field(bits):
    """The exponent's field of float32 bits."""
    return np.int32(np.uint32(bits >> np.uint32(23)) & np.uint32(255))


@inlined
def _c_exponent(bits, emin):
    """The exponent of an accumulator, clamped; NEVER for a zero."""
    e = max(np.int32(_field(bits) - np.int32(127)), np.int32(emin))
    return np.int32(NEVER) if np.uint32(bits << np.uint32(1)) == np.uint32(0) else e


@inlined
def _at(i):
    """An index that is not negative: numba would otherwise look, for each element, whether to count from the end."""
    return np.uintp(i)


# --- loops over the terms of one block, of constant length, so that LLVM unrolls them ---------------------------
def _largest(n):
    """The largest of ``n`` sums of exponents, as a function of (ea, at, eb, bt)."""

    @inlined
    def largest(ea, at, eb, bt):
        found = eb.dtype.type(ea[_at(at)] + eb[_at(bt)])
        for m in range(1, n):
            found = max(found, eb.dtype.type(ea[_at(at + m)] + eb[_at(bt + m * WIDTH)]))
        return found

    return largest


def _tame_sum(n):
    """The sum of ``n`` truncated products, as a function of (a, at, b, bt, scale)."""

    @inlined
    def total(a, at, b, bt, scale):
        found = np.int32(0)
        for m in range(n):
            found += np.int32(np.float32(np.float32(a[_at(at + m)] * b[_at(bt + m * WIDTH)]) * scale))
        return np.int32(found)

    return total


def _wide_sum(n):
    """The same from significands and exponents, as a function of (a, ea, at, b, eb, bt, base).

    Of more terms than four it is made of halves: LLVM leaves a longer loop of so much work a loop.
    """
    if n > 4:
        half, h = _wide_sum(n // 2), n // 2

        @inlined
        def both(a, ea, at, b, eb, bt, base):
            return np.int32(half(a, ea, at, b, eb, bt, base) + half(a, ea, at + h, b, eb, bt + h * WIDTH, base))

        return both

    @inlined
    def total(a, ea, at, b, eb, bt, base):
        found = np.int32(0)
        for m in range(n):
            k, j = _at(at + m), _at(bt + m * WIDTH)
            e = max(np.int32(base + np.int32(ea[k]) + np.int32(eb[j])), np.int32(-126))
            found += np.int32(np.float32(np.float32(a[k] * b[j]) * _power(e)))
        return np.int32(found)

    return total


# --- roundings of a sum ---------------------------------------------------------------------------------------
@inlined
def _truncate_normal(v, r):
    """A float64 that is no FP32 subnormal, truncated to ``r.kept`` fraction bits; float32 bits."""
    mask = np.int64(np.int64(-1) << np.int64(52 - r.kept))
    return _bits(np.int64(np.float64(v).view(np.int64) & mask).view(np.float64))


@inlined
def _truncated(total, emax, r):
    """An int32 times 2**(emax - align), no FP32 subnormal, truncated to ``r.kept`` fraction bits; float32 bits."""
    near = np.float32(total)  # to nearest; where that is away from zero, one step back
    back = np.uint32(1) if abs(np.int32(near)) > abs(total) else np.uint32(0)
    cut = np.uint32(np.uint32(_bits(near) - back) & np.uint32(np.uint32(0xFFFFFFFF) << np.uint32(23 - r.kept)))
    return _bits(np.float32(_float(cut) * _power(np.int32(emax - np.int32(r.align)))))


@inlined
def _kept(c, r):
    """An accumulator's bits truncated to ``r.kept`` fraction bits; a zero is +0."""
    cut = np.uint32(c & np.uint32(np.uint32(0xFFFFFFFF) << np.uint32(23 - r.kept)))
    return np.uint32(0) if np.uint32(cut << np.uint32(1)) == np.uint32(0) else cut


@inlined
def _truncate(v, r):
    """A float64 truncated to ``r.kept`` fraction bits or to the subnormals of FP32."""
    bits = np.float64(v).view(np.int64)
    e = np.int64((bits >> np.int64(52)) & np.int64(0x7FF)) - np.int64(1023)
    drop = np.int64(np.int64(52 - r.kept) + max(np.int64(-126) - e, np.int64(0)))
    mask = np.int64(np.int64(-1) << min(drop, np.int64(62)))
    mask = np.int64(-(2**63)) if drop > np.int64(52) else mask
    return _bits(np.int64(bits & mask).view(np.float64))


@inlined
def _to_half(v, r):
    """A float64 rounded to FP16, to nearest; float32 bits. The addition of 1.5 * 2**(e + 42) itself rounds."""
    sign = np.int64(np.float64(v).view(np.int64) & np.int64(-(2**63)))
    e = np.int64((np.float64(v).view(np.int64) >> np.int64(52)) & np.int64(0x7FF)) - np.int64(1023)
    magic = np.float64(1.5) * _power64(max(e, np.int64(-14)) + np.int64(42))
    y = np.float64(np.float64(v + magic) - magic)
    y = np.float64(np.inf) if np.abs(y) >= np.float64(65536.0) else np.abs(y)
    return _bits(np.int64(np.float64(y).view(np.int64) | sign).view(np.float64))


# --- packing --------------------------------------------------------------------------------------------------
@inlined
def _pack_line(line, start, count, zero, emin, values, exponents, at):
    """Pack ``count`` elements; the worst of their classes. Exponents are clamped, and written as ``zero`` for zeros,
    infinities and NaNs. Without branches, so that it vectorises."""
    worst = np.int32(TAME)
    for j in range(count):
        v = line[_at(start + j)]
        magnitude = np.int32(_bits(v) & ABS)
        exponent = max(np.int32(np.int32(magnitude >> np.int32(23)) - np.int32(127)), np.int32(emin))
        absent = magnitude == np.int32(0)
        special = magnitude >= np.int32(INFINITY)
        tame = absent | ((exponent >= np.int32(TAME_LOW)) & (exponent <= np.int32(TAME_HIGH)))
        one = np.int32(TAME) if tame else np.int32(WIDE)
        worst = max(worst, np.int32(SPECIAL) if special else one)
        values[_at(at + j)] = v
        exponents[_at(at + j)] = np.int32(zero) if absent | special else exponent
    return worst


@jit
def pack_rows(x, blocks, length, zero, emin, first, last, values, exponents, classes):
    """Pack ``x[row, blocks[n] * length + l]`` as ``[n][row][l]`` for rows ``first`` to ``last``, beyond the end +0.

    ``x``: float32. ``blocks``: which blocks of k, in order. ``zero``: the exponent written for a zero. The classes are
    ``[n][row]``.
    """
    rows, k = x.shape
    line = np.zeros(length, np.float32)
    for row in range(first, last):
        whole = x[row]
        for n in range(blocks.size):
            i, to = blocks[n] * length, n * rows + row
            if i + length <= k:
                classes[to] = _pack_line(whole, i, length, zero, emin, values, exponents, to * length)
                continue
            for m in range(length):
                line[m] = whole[i + m] if i + m < k else np.float32(0)
            classes[to] = _pack_line(line, 0, length, zero, emin, values, exponents, to * length)


@jit
def pack_panels(x, blocks, length, zero, emin, first, last, values, exponents, classes):
    """Pack ``x[k, column]`` as ``[panel][n][l][column]`` for panels ``first`` to ``last``; classes ``[panel][n]``."""
    k, columns = x.shape
    line = np.zeros(WIDTH, np.float32)
    for panel in range(first, last):
        left = panel * WIDTH
        wide = min(WIDTH, columns - left)
        for n in range(blocks.size):
            worst = np.int32(TAME)
            for m in range(length):
                i = blocks[n] * length + m
                at = ((panel * blocks.size + n) * length + m) * WIDTH
                if i < k and wide == WIDTH:
                    worst = max(worst, _pack_line(x[i], left, WIDTH, zero, emin, values, exponents, at))
                    continue
                for j in range(WIDTH):
                    line[j] = x[i, left + j] if i < k and j < wide else np.float32(0)
                worst = max(worst, _pack_line(line, 0, WIDTH, zero, emin, values, exponents, at))
            classes[panel * blocks.size + n] = worst


@inlined
def _take_apart(values, at, count, emin, significands, exponents, marks):
    """Significands, exponents and indicators: an infinity or NaN is itself, other numbers -1, 0 or 1."""
    for i in range(count):
        v = values[_at(at + i)]
        bits = _bits(v)
        magnitude = np.int32(bits & ABS)
        finite = magnitude < np.int32(INFINITY)
        e = max(np.int32((magnitude >> np.int32(23)) - np.int32(127)), np.int32(emin))
        m = np.float32(np.float64(v) * _power64(-np.int64(e)))
        significands[i] = m if finite else np.float32(0)
        exponents[i] = e if finite and magnitude != np.int32(0) else np.int32(NEVER)
        one = np.float32(1) if magnitude != np.int32(0) else np.float32(0)
        one = _float(np.uint32(_bits(one) | np.uint32(bits & ~ABS)))
        marks[i] = one if finite else v


# --- the kernel -----------------------------------------------------------------------------------------------
@inlined
def _add_up(upper, at, lower, r):
    """``upper += lower; lower = 0`` on one row of a panel, by IEEE addition, to FP16 if the rule says so."""
    for j in range(WIDTH):
        total = np.float32(_float(upper[_at(at + j)]) + _float(lower[_at(at + j)]))
        bits = _bits(total)
        rounded = _to_half(np.float64(total), r) if r.half else bits
        rounded = bits if np.uint32(bits & ABS) >= INFINITY else rounded
        upper[_at(at + j)] = np.uint32(r.nan) if np.uint32(bits & ABS) > INFINITY else rounded
        lower[_at(at + j)] = np.uint32(0)


def _kernel(length, finish_tame, finish, keeps, scaled):
    """The kernel of one block length and rounding.

    ``keeps``: where all products are zero c passes through, truncated: for FP32, whose exponents go far below those
    of tame products. ``scaled``: whether blocks have scales, whose exponents move those of a row's products with a
    column all alike: what is tame without them is so with them, unless they go far.
    """
    largest = _largest(length)
    halves = 2 if length == 32 else 1  # 32 terms of 27 bits overflow int32, 16 do not
    tame_sum, wide_sum = _tame_sum(length // halves), _wide_sum(length // halves)
    second = (length // 2) if halves == 2 else 0
    most = np.int32((2**31 - 2**28) // halves)  # of sums that fit int32 together with c's part

    @inlined
    def scale(moved, emax, r):
        """What takes a product, or with ``moved`` 0 the accumulator, to units of 2**(emax - align)."""
        e = np.int32(np.int32(r.align) - emax)
        return _power(max(np.int32(e + moved), np.int32(-126))) if scaled else _power(e)

    @inlined
    def tame(a, ea, at, b, eb, bt, shift, shifts, st, acc, ct, top, part, part2, part_c, emaxes, r):
        for j in range(WIDTH):
            top[j] = largest(ea, at, eb, bt + j)
        least = np.int32(max(r.floor, LEAST))
        for j in range(WIDTH):
            c = acc[_at(ct + j)]
            moved = np.int32(shift + shifts[_at(st + j)]) if scaled else np.int32(0)
            emax = max(max(np.int32(top[j] + moved), _c_exponent(c, r.emin_c)), least)
            factor = scale(moved, emax, r)
            part[j] = tame_sum(a, at, b, bt + j, factor)
            if halves == 2:
                part2[j] = tame_sum(a, at + second, b, bt + second * WIDTH + j, factor)
            part_c[j] = np.int32(np.float32(_float(c) * _power(np.int32(np.int32(r.align) - emax))))
            emaxes[j] = emax
        if keeps:
            far = False
            for j in range(WIDTH):
                far |= abs(part[j]) > most
                if halves == 2:
                    far |= abs(part2[j]) > most
            if not far:
                for j in range(WIDTH):
                    c = acc[_at(ct + j)]
                    total = np.int32(part[j] + part_c[j])
                    if halves == 2:
                        total = np.int32(total + part2[j])
                    result = _truncated(total, emaxes[j], r)
                    result = _kept(c, r) if np.int32(top[j]) < np.int32(r.none) else result
                    acc[_at(ct + j)] = c if np.uint32(c & INFINITY) == INFINITY else result
                return
        for j in range(WIDTH):
            c = acc[_at(ct + j)]
            total = np.float64(part[j]) + np.float64(part_c[j])
            if halves == 2:
                total += np.float64(part2[j])
            result = finish_tame(total * _power64(np.int64(emaxes[j]) - np.int64(r.align)), r)
            if keeps:
                result = _kept(c, r) if np.int32(top[j]) < np.int32(r.none) else result
            acc[_at(ct + j)] = c if np.uint32(c & INFINITY) == INFINITY else result

    @inlined
    def wide(a, ea, ma, b, eb, mb, shift, shifts, st, acc, ct, top, part, part2, emaxes, marks, special, r):
        for j in range(WIDTH):
            top[j] = largest(ea, 0, eb, j)
        for j in range(WIDTH):
            moved = np.int32(shift + shifts[_at(st + j)])
            highest = np.int32(top[j]) + moved if top[j] > np.int32(NEVER // 2) else np.int32(NEVER)
            emax = max(max(highest, _c_exponent(acc[_at(ct + j)], r.emin_c)), np.int32(max(r.floor, -400)))
            base = np.int32(np.int32(r.align) - emax + moved)
            part[j] = wide_sum(a, ea, 0, b, eb, j, base)
            if halves == 2:
                part2[j] = wide_sum(a, ea, second, b, eb, second * WIDTH + j, base)
            emaxes[j] = emax
        for j in range(WIDTH):
            marks[j] = np.float32(0)
        if special:
            for m in range(length):
                for j in range(WIDTH):
                    marks[j] += ma[_at(m)] * mb[_at(m * WIDTH + j)]
        for j in range(WIDTH):
            c = acc[_at(ct + j)]
            exponent = np.int64(emaxes[j]) - np.int64(r.align)
            total = np.float64(part[j]) + np.float64(np.int32(np.float64(_float(c)) * _power64(-exponent)))
            if halves == 2:
                total += np.float64(part2[j])
            result = finish(total * _power64(exponent), r)
            mark = marks[j] if np.uint32(_bits(marks[j]) & INFINITY) == INFINITY else np.float32(0)
            mark += _float(c) if np.uint32(c & INFINITY) == INFINITY else np.float32(0)
            result = _bits(mark) if mark != np.float32(0) else result
            acc[_at(ct + j)] = np.uint32(r.nan) if np.uint32(_bits(mark) & ABS) > INFINITY else result

    @jit
    def kernel(a, ea, ka, rows, b, eb, kb, shifts_a, shifts_b, out, columns, row0, row1, panel0, panel1, n0, n1, r):
        blocks = ka.size // rows
        acc = np.empty(TILE * WIDTH, np.uint32)
        upper = np.zeros(TILE * WIDTH, np.uint32)
        top, part, part2 = np.empty(WIDTH, eb.dtype), np.empty(WIDTH, np.int32), np.empty(WIDTH, np.int32)
        part_c, emaxes = np.empty(WIDTH, np.int32), np.empty(WIDTH, np.int32)
        marks, top16 = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.int32)
        sa, xa, qa = np.empty(length, np.float32), np.empty(length, np.int32), np.empty(length, np.float32)
        count = length * WIDTH
        sb, xb, qb = np.empty(count, np.float32), np.empty(count, np.int32), np.empty(count, np.float32)
        none = np.zeros(WIDTH, np.int32)
        least = np.int32(LEAST - r.emin_a - r.emin_b)  # of a shift that leaves all products at exponents from LEAST on
        for panel in range(panel0, panel1):
            left = panel * WIDTH
            for tile in range(row0, row1, TILE):
                height, wide_cols = min(TILE, row1 - tile), min(WIDTH, columns - left)
                for i in range(height):
                    for j in range(WIDTH):
                        c = out[(tile + i) * columns + left + j] if j < wide_cols else np.uint32(0)
                        upper[i * WIDTH + j] = c
                        acc[i * WIDTH + j] = np.uint32(0) if r.period else c
                for n in range(n0, n1):
                    apart = False
                    bt, st = (panel * blocks + n) * count, (panel * blocks + n) * WIDTH
                    low = high = np.int32(0)  # between them a row's shift leaves sums of tame blocks inside float32
                    if scaled:
                        low = high = shifts_b[_at(st)]
                        for j in range(WIDTH):
                            low, high = min(low, shifts_b[_at(st + j)]), max(high, shifts_b[_at(st + j)])
                        low, high = least - low, np.int32(MOST_SHIFT - high)
                    for i in range(height):
                        at = n * rows + tile + i
                        kind = max(ka[at], kb[panel * blocks + n])
                        shift = shifts_a[_at(at)] if scaled else np.int32(0)
                        if kind == TAME and low <= shift <= high:
                            tame(a, ea, at * length, b, eb, bt, shift, shifts_b, st, acc, i * WIDTH,
                                 top, part, part2, part_c, emaxes, r)  # fmt: skip
                            continue
                        if not apart:
                            _take_apart(b, bt, count, r.emin_b, sb, xb, qb)
                            apart = True
                        _take_apart(a, at * length, length, r.emin_a, sa, xa, qa)
                        wide(sa, xa, qa, sb, xb, qb, shift, shifts_b if scaled else none, st if scaled else 0,
                             acc, i * WIDTH, top16, part, part2, emaxes, marks, kind == SPECIAL, r)  # fmt: skip
                    if r.period and ((n - n0) % r.period == r.period - 1 or n == n1 - 1):
                        for i in range(height):
                            _add_up(upper, i * WIDTH, acc, r)
                source = upper if r.period else acc
                for i in range(height):
                    for j in range(wide_cols):
                        out[(tile + i) * columns + left + j] = source[i * WIDTH + j]

    return kernel


TO_FLOAT = {n: _kernel(n, _truncate_normal, _truncate, True, False) for n in (4, 8, 16, 32)}
TO_HALF = {n: _kernel(n, _to_half, _to_half, False, False) for n in (4, 8, 16, 32)}
SCALED = {n: _kernel(n, _truncate_normal, _truncate, True, True) for n in (4, 8, 16, 32)}  # FP32, blocks with scales
