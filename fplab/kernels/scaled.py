"""Block scales: the largest magnitude of each block, the scale it asks for, and the codes of the scaled elements.

A tile of whole blocks is worked on in the cache: the maxima, the scale of each block and what its elements are
multiplied by, that factor beside every element, and the codes, by a loop that vectorises. A code is counted, not looked
up: adding 1.5 * 2**(e + 23 - f) to a magnitude rounds it to the element's grid (as in :mod:`.fast32`), and the low bits
of the sum count the steps of that grid.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from . import inlined, jit
from .codebooks import dequantize_by, largest
from .fast32 import as_bits, as_float, shift_right, to_uint32
from .memory import fill
from .rounding import ODD, RNA, RTN, RTP, random_word
from .tensorcore_pack import _at, _turn
from .tensorcore_rows import INTS, LANES, _larger, place, splat

DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
TILE = 1024  # elements worked on between two looks at memory
SIGN, ABS, INFINITY = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
MOST, NAN = np.uint32(0x7F7FFFFF), np.uint32(0x7FC00000)
LEAST_NORMAL = np.uint32(0x00800000)
POWER, TWO_LEVEL, TWO_LEVEL_DIVIDED, FOUR_OVER_SIX, QUOTIENT, QUOTIENT_DOWN = range(6)


class Grid(NamedTuple):
    """A format of at most 8 bits inside float32's range; float32 bit patterns and codes as ints."""

    emin: int  # of 2**emin
    magic: int  # added to an exponent's bits: 1.5 * 2**(e + 23 - f)
    ulp: int  # subtracted from an exponent's bits: 2**(e - f)
    units: int  # an exponent's bits are subtracted from it: 2**32 / ulp, or 2**8 / ulp
    largest: int
    fold: int  # 23 - f: from the bits of an exponent to its field in a code
    sign: int  # the sign bit of a code, and how far float32's is from it
    shift: int
    nan: int  # the code of a NaN
    zero: int  # the sign bit where -0 keeps its sign, else 0
    mode: int  # the rounding, for :func:`directed`
    finite: int  # the largest number's code
    infinite: int  # an infinity's, or 0


class Rule(NamedTuple):
    """How a block's maximum becomes a scale; see the functions that take it."""

    kind: int
    multiplier: float  # POWER: of the maximum; QUOTIENT: the largest element
    addend: int  # POWER: to its bits, before the fraction goes
    emax: int  # POWER: taken from the exponent
    limit: int  # POWER: a larger exponent is a NaN
    infinite: int  # POWER: the code of a block with an infinity
    first: int  # POWER: the factor's bits at code 0
    last: int  # POWER: and at code 254
    least: float  # QUOTIENT: what a maximum counts at least; TWO_LEVEL_DIVIDED: what a scale does
    down: int  # QUOTIENT: the mask of the bits of a scale that stay
    most: float  # QUOTIENT: what an infinite factor becomes
    guards: int  # QUOTIENT: a maximum of 0, infinity or NaN gives 1
    skips: int  # NaNs do not count for the maximum


@inlined
def power_of_two(a, p):
    """E8M0: the exponent of the maximum (bits ``a``) after ``addend``; the code, and the factor of the elements."""
    t = as_bits(np.float32(as_float(a) * np.float32(p.multiplier)))
    tiny = t < LEAST_NORMAL
    bits = as_bits(np.float32(as_float(t) * np.float32(16777216))) if tiny else t
    e = np.int32(shift_right(np.uint32(bits + np.uint32(p.addend)), np.uint32(23))) - np.int32(24 if tiny else 0)
    code = min(max(e - np.int32(p.emax), np.int32(0)), np.int32(254))
    code = np.int32(255) if e > np.int32(p.limit) else code
    code = np.int32(p.infinite) if t == INFINITY else np.int32(255) if t > INFINITY else code
    factor = np.uint32(np.uint32(254 - code) << np.uint32(23))
    factor = np.uint32(p.first) if code == 0 else np.uint32(p.last) if code == 254 else factor
    return np.uint32(code), as_float(NAN if code == 255 else factor)


@inlined
def on_grid(t, p):
    """A float32 of 0 to the grid's largest (or NaN) rounded to nearest: its code and its value."""
    a = as_bits(t)
    e = max(np.uint32(a & INFINITY), np.uint32(p.emin))
    c = np.uint32(e + np.uint32(p.magic))
    shifted = np.float32(as_float(a) + as_float(c))
    code = np.uint32(shift_right(np.uint32(e - np.uint32(p.emin)), np.uint32(p.fold)) + np.uint32(as_bits(shifted) - c))
    lost = a > INFINITY
    return np.uint32(p.nan) if lost else code, as_float(NAN) if lost else np.float32(shifted - as_float(c))


@inlined
def at_most(t, limit):
    """The smaller one; a NaN stays."""
    return limit if t > limit else t


@inlined
def encoded(t, scale, down):
    """Transformer Engine's narrow scale: its code, its value, and the factor of the elements."""
    code, value = on_grid(at_most(t, as_float(np.uint32(scale.largest))), scale)
    return code, value, at_most(np.float32(np.float32(1) / np.float32(value * down)), as_float(MOST))


@inlined
def two_level(a, p, scale, up, down, four):
    """Narrow scales beside one of the tensor: ``up`` is that to the scale's units, ``down`` its reciprocal."""
    most = as_float(np.uint32(scale.largest))
    if p.kind == TWO_LEVEL:
        code, _, factor = encoded(np.float32(as_float(a) * up), scale, down)
        return code, factor
    if p.kind == FOUR_OVER_SIX:
        code, _, factor = encoded(stretched(a, p, up, four), scale, down)
        return code, factor
    t = np.float32(np.float32(as_float(a) / np.float32(p.multiplier)) / up)
    t = np.float32(p.least) if t < np.float32(p.least) else at_most(t, most)
    code, value = on_grid(t, scale)
    return code, np.float32(down / value)


@inlined
def stretched(a, p, up, four):
    """The scale at which the largest of a block is a 6, or 1.5 times that, at which it is a 4."""
    t = np.float32(np.float32(as_float(a) / np.float32(p.multiplier)) * up)
    return np.float32(t * np.float32(1.5)) if four else t


@inlined
def quotient(a, p):
    """FP32 scales: the bits of what dequantises, and the factor of the elements."""
    least = as_bits(np.float32(p.least))
    a = least if a < least else a
    if p.guards and (a == np.uint32(0) or a >= INFINITY):
        return as_bits(np.float32(1)), np.float32(1)
    if p.kind == QUOTIENT_DOWN:
        scale = as_bits(np.float32(as_float(a) / np.float32(p.multiplier)))
        if p.down != 0xFFFFFFFF and scale < INFINITY:
            scale = np.uint32(np.uint32(scale + np.uint32(0x7FFFFF)) & np.uint32(p.down))
        return scale, np.float32(np.float32(1) / as_float(scale))
    factor = as_bits(np.float32(np.float32(p.multiplier) / as_float(a)))
    factor = as_bits(np.float32(p.most)) if factor == INFINITY else factor
    factor = np.uint32(factor & np.uint32(p.down)) if factor < INFINITY else factor
    return as_bits(np.float32(np.float32(1) / as_float(factor))), as_float(factor)


@inlined
def scale_of(a, p, scale, up, down, four):
    """The scale of a block whose largest magnitude has bits ``a``, as a code or bits, and its elements' factor."""
    if p.kind == POWER:
        return power_of_two(a, p)
    if p.kind == TWO_LEVEL or p.kind == TWO_LEVEL_DIVIDED or p.kind == FOUR_OVER_SIX:
        return two_level(a, p, scale, up, down, four)
    return quotient(a, p)


@jit
def fill_scales(most, fours, scales, factor, rule, scale, up, down):
    """The scales of blocks and their elements' factors; compiled alone, so it vectorises."""
    for j in range(scales.size):
        scales[j], factor[j] = scale_of(most[j], rule, scale, up, down, fours[j])


@inlined
def _count(b, p):
    """Float32 bits ``b``: the magnitude, at most the largest, its exponent, the shift, and the magnitude shifted."""
    a = np.uint32(b & ABS)
    a = np.uint32(p.largest) if a > np.uint32(p.largest) else a
    e = max(np.uint32(a & INFINITY), np.uint32(p.emin))
    c = np.uint32(e + np.uint32(p.magic))
    return a, e, c, np.float32(as_float(a) + as_float(c))


@inlined
def _code(b, e, count, p):
    """The code: the exponent's field and the steps, a NaN's, and the sign."""
    code = np.uint32(shift_right(np.uint32(e - np.uint32(p.emin)), np.uint32(p.fold)) + count)
    kept = np.uint32(p.sign) if np.uint32(b & ABS) != np.uint32(0) else np.uint32(p.zero)
    code = np.uint32(code | np.uint32(shift_right(b, np.uint32(p.shift)) & kept))
    return np.uint8(np.uint32(p.nan) if np.uint32(b & ABS) > INFINITY else code)


@inlined
def nearest(b, p, word):
    """The code of float32 bits ``b`` rounded to nearest, ties to even, saturating."""
    _, e, c, shifted = _count(b, p)
    return _code(b, e, np.uint32(as_bits(shifted) - c), p)


@inlined
def _below(b, p):
    """The exponent, the steps below a magnitude, and what lies above those as a float32 in ``p.units``."""
    a, e, c, shifted = _count(b, p)
    y = np.float32(shifted - as_float(c))
    over = y > as_float(a)
    count = np.uint32(np.uint32(as_bits(shifted) - c) - (np.uint32(1) if over else np.uint32(0)))
    ulp = as_float(np.uint32(e - np.uint32(p.ulp)))
    rest = np.float32(as_float(a) - np.float32(y - (ulp if over else np.float32(0))))
    return e, count, np.float32(rest * as_float(np.uint32(np.uint32(p.units) - e)))


@inlined
def stochastic(b, p, word):
    """Up with the probability of the share above the code below, to 32 bits: where ``share + word`` carries."""
    e, count, rest = _below(b, p)
    up = np.int32(np.uint32(word ^ SIGN)) > np.int32(np.uint32(to_uint32(rest) ^ ABS))  # the same, and vectorises
    return _code(b, e, np.uint32(count + (np.uint32(1) if up else np.uint32(0))), p)


@inlined
def stochastic_8(b, p, word):
    """The same to 8 bits."""
    e, count, rest = _below(b, p)
    return _code(b, e, np.uint32(count + (np.uint32(np.uint32(rest) + word) >> np.uint32(8))), p)


@inlined
def directed(b, p, word):
    """The roundings that are neither to nearest even nor stochastic, by their number."""
    e, count, rest = _below(b, p)
    up = rest > np.float32(0)
    if p.mode == RNA:
        up = rest >= np.float32(2147483648)
    elif p.mode == RTP or p.mode == RTN:
        up = up and (b > ABS) == (p.mode == RTN)
    else:
        up = up and p.mode == ODD and np.uint32(count & np.uint32(1)) == np.uint32(0)
    return _code(b, e, np.uint32(count + (np.uint32(1) if up else np.uint32(0))), p)


@intrinsic
def line_maxima(_context, bits, at, limit, out, to):
    """The largest magnitude of each of 16 lines of float32 bits from ``at`` on, of those that are at most ``limit``."""

    def generate(context, builder, signature, args):
        bits, out = (context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 3))
        limit, halves = splat(builder, args[2], LANES), [INTS(list(range(i, 2 * LANES, 2))) for i in range(2)]
        rows = [builder.load(place(builder, bits, args[1], i * LANES, INTS), align=4) for i in range(LANES)]
        rows = [builder.and_(row, INTS([int(ABS)] * LANES)) for row in rows]
        rows = [builder.select(builder.icmp_signed("<=", row, limit), row, INTS([0] * LANES)) for row in rows]
        while len(rows) > 1:  # neighbours of both rows: so the order stays
            pairs = zip(rows[::2], rows[1::2], strict=True)
            rows = [_larger(builder, *(builder.shuffle_vector(*pair, half) for half in halves)) for pair in pairs]
        builder.store(rows[0], place(builder, out, args[4], 0, INTS), align=4)
        return context.get_dummy_value()

    return types.void(bits, types.uintp, types.uint32, out, types.uintp), generate


@inlined
def largest_number(bits):
    """The largest magnitude that is no NaN."""
    most = np.uint32(0)
    for i in range(bits.size):
        magnitude = np.uint32(bits[i] & ABS)
        most = magnitude if most < magnitude <= INFINITY else most
    return most


@jit
def maximum(x, skips):
    """The largest magnitude of float32 bits, as bits; with ``skips`` of those that are no NaN."""
    most = largest(x)
    return largest_number(x) if skips and most > INFINITY else most


@jit
def fours_scales(most, four, value, factor, rule, scale, up, down):
    """The values of the scales of blocks and their elements' factors, as :func:`fill_scales` chooses them."""
    for j in range(most.size):
        _, value[j], factor[j] = encoded(stretched(most[j], rule, up, four), scale, down)


@jit
def add_losses(x, at, step, block, value, factor, sums, grid, whole, top, squared):
    """Add to ``sums`` what the elements of blocks lose, of which ``x[at + i * step + j]`` is the i-th of block j."""
    for i in range(block):
        for j in range(sums.size):
            v = as_float(x[_at(at + i * step + j)])
            b = as_bits(np.float32(v * factor[j]))
            _, _, c, shifted = _count(b, grid)
            y = as_float(np.uint32(as_bits(np.float32(shifted - as_float(c))) | np.uint32(b & SIGN)))
            d = np.float32(np.float32(np.float32(np.float32(y * value[j]) * whole) / top) - v)
            sums[j] += np.float32(d * d) if squared else as_float(np.uint32(as_bits(d) & ABS))


@jit
def choose_fours(x, fours, k, high, block, r0, r1, c0, c1, grid, rule, scale, up, down, amax, top, squared):
    """Fill ``fours``, uint8 as the scales of :func:`_quantize`: which blocks lose less where their largest is a 4.

    What is lost is summed in FP32, of a row from the left, and the rows by halves. ``amax``, ``top``: an element times
    its block's scale is dequantised as their product with ``amax``, divided by ``top``; ``squared``: each difference.
    Blocks are turned, so that those side by side are worked on together.
    """
    across, step, height = -(-k // block), max(TILE // (high * block), 1), 1
    while height < high:
        height *= 2
    turned, most = np.zeros(high * block * step, np.uint32), np.empty(step, np.uint32)
    sums, by_six = np.empty((height, step), np.float32), np.empty(step, np.float32)
    value, factor = np.empty(step, np.float32), np.empty(step, np.float32)
    for first in range(r0, r1, high):
        last = min(first + high, r1)
        own = first if up.size > 1 else 0
        above, below, whole = up[own], down[own], amax[own]
        for left in range(c0, c1, step * block):
            count = min(step * block, c1 - left)
            blocks, rest = -(-count // block), count % block
            most[:] = 0
            for row in range(first, last):
                at, to = row * k + left, (row - first) * block * step
                _turn(x, at, block, 1, count // block, block, turned[to:], step)
                for i in range(block if rest else 0):
                    turned[to + i * step + blocks - 1] = x[at + count - rest + i] if i < rest else np.uint32(0)
                for i in range(block):
                    for j in range(blocks):
                        most[_at(j)] = max(most[_at(j)], np.uint32(turned[_at(to + i * step + j)] & ABS))
            place = first // high * across + left // block
            for four in range(2):
                fours_scales(most[:blocks], four, value, factor, rule, scale, above, below)
                sums[:] = 0
                for row in range(last - first):
                    to = row * block * step
                    add_losses(turned, to, step, block, value, factor, sums[row][:blocks], grid, whole, top, squared)
                rows = height
                while rows > 1:
                    rows //= 2
                    sums[:rows] += sums[rows : 2 * rows]
                for j in range(blocks):
                    if four:
                        fours[place + j] = sums[0, j] < by_six[j]
                    by_six[j] = sums[0, j]


def _quantize(rounder, bits):
    """The kernel of one rounding, which draws ``bits`` random bits an element.

    ``x``: float32 bits of a matrix with rows of ``k``, flat; ``codes``: uint8, as ``x``; ``scales``: uint32, a row for
    each ``high`` rows and one for each ``block`` elements of a row, flat; ``fours``: as scales, or none. Works on rows
    ``r0`` to ``r1`` and columns ``c0`` to ``c1``, which begin with a block. ``known``: a maximum that holds for all
    blocks, or none. ``up``, ``down``: of each row, or one. Element i draws word ``start + i``; of few bits, byte
    ``start + i`` of all words.
    """

    @jit
    def kernel(
        x, codes, scales, fours, k, high, block, r0, r1, c0, c1, grid, rule, scale, known, up, down, start, key0, key1
    ):  # fmt: skip
        across, width = -(-k // block), min(max(block, TILE // high // block * block), c1 - c0)
        factors, selected = np.empty(width + block, np.float32), np.empty(width, np.uint8)
        most, factor = np.empty(-(-width // block), np.uint32), np.empty(-(-width // block), np.float32)
        none = np.zeros(most.size, np.uint8)
        lines = np.empty(width // LANES, np.uint32)
        limit = INFINITY if rule.skips else ABS
        words = np.empty(width if bits == 32 else width // 4 + 2 if bits else 0, np.uint32)
        for top in range(r0, r1, high):
            bottom = min(top + high, r1)
            for left in range(c0, c1, width):
                count = min(width, c1 - left)
                blocks = -(-count // block)
                most[:blocks] = known[0] if known.size else np.uint32(0)
                for row in range(top, top if known.size else bottom):
                    at = row * k + left
                    if block % LANES or block > LANES**2 or count % block or count % LANES**2:
                        for j in range(blocks):
                            source = x[at + j * block : at + min((j + 1) * block, count)]
                            most[j] = max(most[j], maximum(source, rule.skips))
                        continue
                    for i in range(0, count, LANES**2):
                        line_maxima(x, _at(at + i), limit, lines, _at(i // LANES))
                    per_block = block // LANES
                    for i in range(per_block):
                        for j in range(blocks):
                            most[_at(j)] = max(most[_at(j)], lines[_at(j * per_block + i)])
                own = top if up.size > 1 else 0
                above, below = up[own], down[own]
                place = top // high * across + left // block
                four = fours[place : place + blocks] if fours.size else none[:blocks]
                fill_scales(most, four, scales[place : place + blocks], factor, rule, scale, above, below)
                for j in range(blocks):
                    fill(factors, j * block, (j + 1) * block, factor[_at(j)])
                for row in range(top, bottom):
                    at = row * k + left
                    index, source, target = np.uint32(start + at), x[at : at + count], selected[:count]
                    if bits == 8:
                        for i in range(count // 4 + 2):
                            words[i] = random_word(np.uint32((index >> np.uint32(2)) + np.uint32(i)), key0, key1)
                        noise = words.view(np.uint8)[index & np.uint32(3) :]
                        for i in range(count):
                            b = as_bits(np.float32(as_float(source[i]) * factors[i]))
                            target[i] = rounder(b, grid, np.uint32(noise[i]))
                    else:
                        for i in range(words[:count].size):
                            words[i] = random_word(np.uint32(index + np.uint32(i)), key0, key1)
                        for i in range(count):
                            b = as_bits(np.float32(as_float(source[i]) * factors[i]))
                            target[i] = rounder(b, grid, words[i] if bits else np.uint32(0))
                    final = codes[at : at + count]  # a byte at a time stalls on memory that is not in the cache
                    for i in range(count):
                        final[i] = target[i]

    return kernel


NEAREST, DIRECTED = _quantize(nearest, 0), _quantize(directed, 0)
STOCHASTIC = {32: _quantize(stochastic, 32), 8: _quantize(stochastic_8, 8)}  # by random bits an element


@inlined
def value_of(code, p):
    """The value of a code: one more in the exponent's field, a number is doubled and a subnormal is 2**emin above."""
    magnitude = np.uint32(code & np.uint32(np.uint32(p.sign) - np.uint32(1)))
    more = np.uint32(np.uint32(magnitude << np.uint32(p.fold)) + np.uint32(p.emin))
    subnormal = np.float32(as_float(more) - as_float(np.uint32(p.emin)))
    value = subnormal if more < np.uint32(p.emin) + LEAST_NORMAL else as_float(np.uint32(more - LEAST_NORMAL))
    special = as_float(INFINITY) if magnitude == np.uint32(p.infinite) else as_float(NAN)
    bits = as_bits(special if magnitude > np.uint32(p.finite) else value)
    return as_float(np.uint32(bits | np.uint32(np.uint32(code & np.uint32(p.sign)) << np.uint32(p.shift))))


dequantize = dequantize_by(value_of)


@inlined
def odd32(x):
    """A float64 rounded to odd in float32, so that a later rounding to 22 bits or less is that of ``x`` itself."""
    near = np.float32(x)
    back, bits = np.float64(near), as_bits(near)
    bits = np.uint32(bits - (np.uint32(1) if abs(back) > abs(x) else np.uint32(0)))
    return as_float(np.uint32(bits | (np.uint32(1) if back < x or back > x else np.uint32(0))))


@intrinsic
def transform_line(_context, x, at, signs, sign, size, out, to):
    """A line of ``x`` times signs, then sums and differences at the distances below ``size`` and 16, in FP64."""

    def generate(context, builder, signature, args):
        x, signs, out = (context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 2, 5))
        line = builder.load(place(builder, x, args[1], 0, ir.VectorType(x.type.pointee, LANES)), align=4)
        line = builder.fpext(line, DOUBLES) if line.type != DOUBLES else line
        line = builder.fmul(line, builder.load(place(builder, signs, args[3], 0, DOUBLES), align=8))
        for distance in (1 << i for i in range(LANES.bit_length() - 1)):
            other = builder.shuffle_vector(line, line, INTS([i ^ distance for i in range(LANES)]))
            both = builder.fadd(line, other), builder.fsub(other, line)
            both = builder.shuffle_vector(*both, INTS([i + LANES * bool(i & distance) for i in range(LANES)]))
            line = builder.select(builder.icmp_signed("<", args[4].type(distance), args[4]), both, line)
        builder.store(line, place(builder, out, args[6], 0, DOUBLES), align=8)
        return context.get_dummy_value()

    return types.void(x, types.uintp, signs, types.uintp, types.intp, out, types.uintp), generate


@jit
def butterfly(x, out, step):
    """Sums and differences of values ``step`` apart; compiled alone, so it vectorises."""
    for start in range(0, x.size, 2 * step):
        for i in range(start, start + step):
            a, b = x[_at(i)], x[_at(i + step)]
            out[_at(i)], out[_at(i + step)] = a + b, a - b


@jit
def butterflies(x, out, signs, size, factor, odd):
    """Sylvester's Hadamard transform of each ``size`` values of ``x``, in FP64; ``x`` and ``out`` float32 or float64.

    ``signs``: those of a block, or of as many as a line has. ``odd``: results are rounded to float32 by :func:`odd32`.
    """
    width = max(size, TILE)
    one, other, last = np.zeros(width), np.empty(width), np.zeros(LANES, x.dtype)
    for start in range(0, x.size, width):
        target = out[start : start + width]
        whole = target.size // LANES * LANES
        for i in range(0, whole, LANES):
            transform_line(x, _at(start + i), signs, _at(i % signs.size), size, one, _at(i))
        if whole < target.size:
            last[: target.size - whole] = x[start + whole :]
            transform_line(last, _at(0), signs, _at(0), size, one, _at(whole))
        step = LANES
        while step < size:
            butterfly(one, other, step)
            one, other, step = other, one, 2 * step
        for i in range(target.size):
            target[i] = odd32(one[i] * factor) if odd else one[i] * factor
