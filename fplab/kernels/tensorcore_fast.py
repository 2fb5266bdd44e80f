"""Tensor Core products at speed: the blocks of :mod:`.tensorcore`, many columns of the result at a time.

Operands are packed once, A as ``[block][row][L]`` and B as ``[panel][block][L][WIDTH]``, with the exponent of every
element beside it. For one row of A and one block, three steps are taken for the columns of a panel, in vectors:

1. the largest exponent of the products, on 8- or 16-bit integers;
2. the truncated terms: a * b is exact in float32; times 2**(F - emax), again exact, the conversion to int32 truncates
   it toward zero just where the hardware does;
3. the sum and its rounding, to FP32 in int32 and float32 where it fits (:mod:`.tensorcore_rows`), else in float64,
   which holds it exactly.

That is right as long as no product of float32 overflows or underflows ("in range": always, for FP16 and FP8).
A block whose exponents span more takes significands and exponents apart; one with infinities or NaNs also sums
indicators of them. Whether a block is in range is known from packing. Loops are made per variant, since a choice inside
would keep them from vectorising.
"""

from typing import NamedTuple

import numpy as np

from . import inlined, jit
from .tensorcore_pack import ABS, IN_RANGE, INFINITY, SPECIAL, _at, pack_panels, pack_rows
from .tensorcore_rows import LEAST, Block, HalfBlock, block_of, highest_of
from .tensorcore_rows import WIDTH as WIDTH

LINE = 64  # bytes of a line of the cache
TILE = 64  # rows that share a block of B while it is in the cache
ALL, ROWS, COLUMNS = range(3)  # of a result: all of it, or what its rows or columns have at or below the diagonal
MOST_SHIFT = 90  # of scales beside blocks in range: their sums' exponents stay inside float32
MODEST = 64  # of two exponents' sum: below it sums of products, and what FP32 is taken from them, are finite
NEVER = -10000  # the exponent of a zero


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
    fresh: int  # 1: the result is yet to be written, and begins with +0; not with a period


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


# --- loops over the terms of one block, of constant length, so that LLVM unrolls them ---------------------------
def _largest(n):
    """The largest of ``n`` sums of exponents, as a function of (ea, at, eb, bt)."""

    @inlined
    def largest(ea, at, eb, bt):
        top = eb.dtype.type(ea[_at(at)] + eb[_at(bt)])
        for m in range(1, n):
            top = max(top, eb.dtype.type(ea[_at(at + m)] + eb[_at(bt + m * WIDTH)]))
        return top

    return largest


def _wide_sum(n):
    """The sum of ``n`` truncated products of significands, with their exponents, as a function of (a, ea, at, b, eb,
    bt, base).

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
        sum_of_products = np.int32(0)
        for m in range(n):
            k, j = _at(at + m), _at(bt + m * WIDTH)
            e = max(np.int32(base + np.int32(ea[k]) + np.int32(eb[j])), np.int32(-126))
            sum_of_products += np.int32(np.float32(np.float32(a[k] * b[j]) * _power(e)))
        return np.int32(sum_of_products)

    return total


# --- roundings of a sum ---------------------------------------------------------------------------------------
@inlined
def _truncate_normal(v, r):
    """A float64 that is no FP32 subnormal, truncated to ``r.kept`` fraction bits; float32 bits."""
    mask = np.int64(np.int64(-1) << np.int64(52 - r.kept))
    return _bits(np.int64(np.float64(v).view(np.int64) & mask).view(np.float64))


@inlined
def _truncated(total, unit, r):
    """An int32 times a power of two whose multiples are no FP32 subnormals, truncated to ``r.kept`` fraction bits."""
    magnitude = np.uint32(abs(total))
    cut = np.int32(magnitude & ~np.uint32(magnitude >> np.uint32(24)))  # no bit of half a last place: none rounds up
    kept = np.uint32(np.uint32(0xFFFFFFFF) << np.uint32(23 - r.kept))
    return np.uint32(np.uint32(_bits(np.float32(cut) * unit) & kept) | np.uint32(np.uint32(total) & ~ABS))


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
    bits = np.float64(v).view(np.int64)
    field = max(np.int64(bits & np.int64(0x7FF << 52)), np.int64((1023 - 14) << 52))
    magic = np.int64(field + np.int64((42 << 52) + (1 << 51))).view(np.float64)
    y = np.abs(np.float64(np.float64(v + magic) - magic))
    y = np.float64(np.inf) if y >= np.float64(65536.0) else y
    return _bits(np.int64(np.float64(y).view(np.int64) | np.int64(bits & np.int64(-(2**63)))).view(np.float64))


# --- operands ---------------------------------------------------------------------------------------------------
@inlined
def _take_apart(values, at, count, emin, significands, exponents):
    """Significands and exponents; infinities and NaNs count as zeros."""
    for i in range(count):
        v = values[_at(at + i)]
        magnitude = np.int32(_bits(v) & ABS)
        finite = magnitude < np.int32(INFINITY)
        e = max(np.int32((magnitude >> np.int32(23)) - np.int32(127)), np.int32(emin))
        m = np.float32(np.float64(v) * _power64(-np.int64(e)))
        significands[i] = m if finite else np.float32(0)
        exponents[i] = e if finite and magnitude != np.int32(0) else np.int32(NEVER)


@inlined
def _mark(values, at, count, marks):
    """Indicators: an infinity or NaN is itself, other numbers -1, 0 or 1."""
    for i in range(count):
        v = values[_at(at + i)]
        bits = _bits(v)
        magnitude = np.uint32(bits & ABS)
        mark = np.float32(1) if magnitude != np.uint32(0) else np.float32(0)
        mark = _float(np.uint32(_bits(mark) | np.uint32(bits & ~ABS)))
        marks[i] = mark if magnitude < INFINITY else v


@inlined
def lined(x):
    """``x`` from the first element that begins a line of the cache: a vector across two lines takes two loads."""
    return x[(-x.ctypes.data % LINE) // x.itemsize :]


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


@inlined
def take(out, at, row_step, column_step, height, width, tile):
    """A tile's accumulators, from a result that is laid out by rows or by columns; beyond its width +0."""
    if column_step == 1:
        for i in range(height):
            for j in range(width):
                tile[_at(i * WIDTH + j)] = out[_at(at + i * row_step + j)]
    else:
        for j in range(width):
            for i in range(height):
                tile[_at(i * WIDTH + j)] = out[_at(at + i * row_step + j * column_step)]
    if width < WIDTH:
        for i in range(height):
            for j in range(width, WIDTH):
                tile[i * WIDTH + j] = np.uint32(0)


@inlined
def give(tile, height, width, out, at, row_step, column_step):
    """What :func:`take` took, back in its place."""
    if column_step == 1:
        for i in range(height):
            for j in range(width):
                out[_at(at + i * row_step + j)] = tile[_at(i * WIDTH + j)]
    else:
        for j in range(width):
            for i in range(height):
                out[_at(at + i * row_step + j * column_step)] = tile[_at(i * WIDTH + j)]


@inlined
def lost(acc, ct):
    """Whether an accumulator is too small to pass a block of products that are all zero."""
    flushes = False
    for j in range(WIDTH):
        c = np.int32(acc[_at(ct + j)] & ABS)
        flushes |= (c < np.int32((LEAST + 127) << 23)) & (c != np.int32(0))
    return flushes


def in_range_of(length, kind, scaled=False):
    """Blocks of a ``kind`` in range: see the function."""
    block, keeps, parts = block_of(length, kind, scaled), kind is not HalfBlock, kind.parts

    @jit
    def in_range(start, end, a, at, b, bt, shifts_a, shifts_b, st, acc, zeros, top, before, r):
        """Blocks of rows ``start`` to ``end`` of a tile; the first row that is left, as beyond what this can do."""
        left = end
        for i in range(start, end):
            ct, shift = i * WIDTH, shifts_a[_at(at + i)] if scaled else np.int32(0)
            if keeps and zeros[i] and lost(acc, ct):
                left = i
                break
            if block(a, (at + i) * length, b, bt, acc, ct, top, ct * parts, before, shift, shifts_b, st, r):
                for j in range(WIDTH):
                    acc[_at(ct + j)] = before[j]
                left = i
                break
        return left

    return in_range


def _kernel(length, finish, scaled):
    """The kernel of one block length and rounding.

    ``scaled``: whether blocks have scales, whose exponents move those of a row's products with a column all alike:
    what is in range without them is so with them, unless they go far.
    """
    keeps = finish is _truncate
    largest, highest = _largest(length), highest_of(length)
    in_range = in_range_of(length, Block if keeps else HalfBlock, scaled)
    halves = 2 if length == 32 else 1  # 32 terms of 27 bits overflow int32, 16 do not
    wide_sum = _wide_sum(length // halves)
    second = (length // 2) if halves == 2 else 0

    @inlined
    def settled(ma, mb, special, both, acc, ct, marks, r):
        """Whether infinities and NaNs decide a block in all columns, as one of a row of A does; it is then done.

        ``special``: whether an operand has any; ``both``: whether B has. Where none decides, ``marks`` is zero.
        """
        for j in range(WIDTH):
            marks[j] = np.float32(0)
        if special:
            for m in range(length):
                if both or np.uint32(_bits(ma[_at(m)]) & ABS) >= INFINITY:
                    for j in range(WIDTH):
                        marks[j] += ma[_at(m)] * mb[_at(m * WIDTH + j)]
        done = True
        for j in range(WIDTH):
            c = acc[_at(ct + j)]
            mark = marks[j] if np.uint32(_bits(marks[j]) & INFINITY) == INFINITY else np.float32(0)
            mark += _float(c) if np.uint32(c & INFINITY) == INFINITY else np.float32(0)
            done &= mark != np.float32(0)
            marks[j] = _float(r.nan) if np.uint32(_bits(mark) & ABS) > INFINITY else mark
        if done:
            for j in range(WIDTH):
                acc[_at(ct + j)] = _bits(marks[j])
        return done

    @inlined
    def wide(a, ea, b, eb, shift, shifts, st, acc, ct, top, part, part2, emaxes, marks, r):
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
            c = acc[_at(ct + j)]
            exponent = np.int64(emaxes[j]) - np.int64(r.align)
            total = np.float64(part[j]) + np.float64(np.int32(np.float64(_float(c)) * _power64(-exponent)))
            if halves == 2:
                total += np.float64(part2[j])
            result = finish(total * _power64(exponent), r)
            acc[_at(ct + j)] = _bits(marks[j]) if marks[j] != np.float32(0) else result

    @jit
    def kernel(
        a, ea, ka, rows, b, eb, kb, shifts_a, shifts_b, out, columns, row_step, column_step, row0, row1, panel0, panel1,
        n0, n1, r
    ):  # fmt: skip
        # the result of row i and column j is out[i * row_step + j * column_step]
        blocks = ka.size // rows
        zeros = np.empty(TILE, np.bool_)
        acc = lined(np.empty(TILE * WIDTH + LINE, np.uint32))
        upper = np.zeros(TILE * WIDTH, np.uint32)
        top = lined(np.empty(TILE * WIDTH + LINE, np.uint8))
        part, part2, emaxes = np.empty(WIDTH, np.int32), np.empty(WIDTH, np.int32), np.empty(WIDTH, np.int32)
        before = np.empty(WIDTH, np.uint32)
        marks, top16 = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.int32)
        sa, xa, qa = np.empty(length, np.float32), np.empty(length, np.int32), np.empty(length, np.float32)
        count = length * WIDTH
        sb, xb, qb = np.empty(count, np.float32), np.empty(count, np.int32), np.empty(count, np.float32)
        none = np.zeros(WIDTH, np.int32)
        usual = not keeps or r.floor <= LEAST
        least = np.int32(LEAST - r.emin_a - r.emin_b)  # of a shift that leaves all products at exponents from LEAST on
        for panel in range(panel0, panel1):
            left = panel * WIDTH
            for tile in range(row0, row1, TILE):
                height, wide_cols = min(TILE, row1 - tile), min(WIDTH, columns - left)
                corner, sums = tile * row_step + left * column_step, upper if r.period else acc
                if r.fresh or r.period:
                    acc[:] = np.uint32(0)
                if not r.fresh:
                    take(out, corner, row_step, column_step, height, wide_cols, sums)
                for n in range(n0, n1):
                    apart = marked = False
                    bt, st = (panel * blocks + n) * count, (panel * blocks + n) * WIDTH
                    low = high = np.int32(0)  # between them a row's shift leaves sums of blocks in range inside float32
                    if scaled:
                        low = high = shifts_b[_at(st)]
                        for j in range(WIDTH):
                            low, high = min(low, shifts_b[_at(st + j)]), max(high, shifts_b[_at(st + j)])
                        low, high = least - low, np.int32(MOST_SHIFT - high)
                    i = end = 0
                    while i < height:
                        first = n * rows + tile
                        if i >= end:  # of the rows whose blocks are in range, from row i on
                            end = i
                            while end < height and usual and max(ka[first + end], kb[panel * blocks + n]) == IN_RANGE:
                                if scaled and not low <= shifts_a[_at(first + end)] <= high:
                                    break
                                zeros[end] = highest(ea, (first + end) * length, eb, bt, r.none, top, end * WIDTH)
                                end += 1
                        if i < end:
                            i = in_range(i, end, a, first, b, bt, shifts_a, shifts_b, st, acc, zeros, top, before, r)
                        if i < height:
                            at, theirs = first + i, kb[panel * blocks + n] == SPECIAL
                            special = theirs or ka[first + i] == SPECIAL
                            if special:
                                if not marked:
                                    _mark(b, bt, count, qb)
                                    marked = True
                                _mark(a, at * length, length, qa)
                            if not settled(qa, qb, special, theirs, acc, i * WIDTH, marks, r):
                                if not apart:
                                    _take_apart(b, bt, count, r.emin_b, sb, xb)
                                    apart = True
                                _take_apart(a, at * length, length, r.emin_a, sa, xa)
                                shift = shifts_a[_at(at)] if scaled else np.int32(0)
                                wide(sa, xa, sb, xb, shift, shifts_b if scaled else none, st if scaled else 0,
                                     acc, i * WIDTH, top16, part, part2, emaxes, marks, r)  # fmt: skip
                            i += 1
                    if r.period and ((n - n0) % r.period == r.period - 1 or n == n1 - 1):
                        for i in range(height):
                            _add_up(upper, i * WIDTH, acc, r)
                give(sums, height, wide_cols, out, corner, row_step, column_step)

    return kernel


TO_FLOAT = {n: _kernel(n, _truncate, False) for n in (4, 8, 16, 32)}
TO_HALF = {n: _kernel(n, _to_half, False) for n in (4, 8, 16, 32)}
SCALED = {n: _kernel(n, _truncate, True) for n in (4, 8, 16, 32)}  # FP32, blocks with scales


@inlined
def _largest_of(x, start, size):
    most = x[start]
    for i in range(size):
        most = max(most, x[_at(start + i)])
    return most


@jit
def _occupied(exponents, classes, panel, blocks, size, emin, fresh):
    """The first and the end of a panel's blocks to multiply: beyond are zeros, as under a causal mask.

    All are in range. By operands in range they leave an FP32 accumulator as a block in range left it, and ``fresh``
    ones, all +0.
    """
    first, end, start = 0, blocks, panel * blocks * size
    if _largest_of(classes, panel * blocks, blocks) != IN_RANGE:
        return first, end
    while end > 1 and _largest_of(exponents, start + (end - 1) * size, size) < emin:
        end -= 1
    while fresh and first < end - 1 and _largest_of(exponents, start + first * size, size) < emin:
        first += 1
    return first, end


@inlined
def _seen(below, panel, rows):
    """Of a panel the first and the end of the rows that reach to or below the diagonal: ALL, of rows or of columns."""
    left = panel * WIDTH
    if below == ROWS:
        return min(left, rows), rows
    return 0, min(left + WIDTH, rows) if below == COLUMNS else rows


def _batch(kernel, skips):
    """A whole product for each of a batch, from operands as they lie, as a function.

    Of ``x`` (rows, k) and ``y`` (k, columns) both are packed; the steps are from a row to the next, from one k to the
    next, and from a column to the next. ``x_at``, ``y_at``: where the matrices of a product begin. ``skips``: whether
    blocks of zeros at both ends of k are left out: an FP16 accumulator's -0 they would make +0. ``below``: ALL, or
    what of a fresh result lies above the diagonal is +0 where no sum goes far, which ROWS or COLUMNS go down.
    """

    @jit
    def products(
        x, x_at, x_row, x_k, x_cut, y, y_at, y_k, y_column, y_cut, blocks, length, zero, a, ea, ka, rows, k, b, eb, kb,
        out, columns, row_step, column_step, first, last, below, r
    ):  # fmt: skip
        panels, size, none = -(-columns // WIDTH), rows * columns, np.zeros(0, np.int32)
        for at in range(first, last):
            pack_rows(x, x_at[at], x_row, x_k, rows, k, blocks, length, zero, r.emin_a, x_cut, 0, rows, a, ea, ka)
            pack_panels(y, y_at[at], y_k, y_column, k, columns, blocks, length, zero, r.emin_b, y_cut, 0, panels,
                        b, eb, kb)  # fmt: skip
            result = out[at * size : (at + 1) * size]
            clean = skips and _largest_of(ka, 0, rows * blocks.size) == IN_RANGE
            within = ALL
            if below != ALL and clean and _largest_of(kb, 0, panels * blocks.size) == IN_RANGE:
                most = np.int32(_largest_of(ea, 0, ea.size)) + np.int32(_largest_of(eb, 0, eb.size))
                within = below if most < MODEST else ALL
            if within != ALL:
                result[:] = np.uint32(0)
            for panel in range(panels):
                (n0, n1), (row0, row1) = (0, blocks.size), _seen(within, panel, rows)
                if clean:
                    n0, n1 = _occupied(eb, kb, panel, blocks.size, length * WIDTH, r.emin_b, r.fresh)
                kernel(a, ea, ka, rows, b, eb, kb, none, none, result, columns, row_step, column_step,
                       row0, row1, panel, panel + 1, n0, n1, r)  # fmt: skip

    return products


BATCH_TO_FLOAT = {n: _batch(kernel, True) for n, kernel in TO_FLOAT.items()}
BATCH_TO_HALF = {n: _batch(kernel, False) for n, kernel in TO_HALF.items()}
