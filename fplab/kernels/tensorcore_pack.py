"""Operands rounded, taken apart and laid out as :mod:`.tensorcore_fast` reads them, in vectors.

Beside each element lies its exponent, and for each block its class: whether it is in range, wide or special. An operand
that lies the other way round in memory is turned in squares that stay in registers.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from . import inlined, jit
from .tensorcore_rows import INT, LANES, WIDTH, Value, any_of, named, place, splat

GROUP = 16  # rows that are packed together where k is strided
TAME_LOW, TAME_HIGH = -50, 60  # exponents of operands whose products, scaled, stay inside float32
IN_RANGE, WIDE, SPECIAL = range(3)
INFINITY, ABS = np.uint32(0x7F800000), np.uint32(0x7FFFFFFF)


@inlined
def _at(i):
    """An index that is not negative: numba would otherwise look, for each element, whether to count from the end."""
    return np.uintp(i)


def _rounded(builder: ir.IRBuilder, magnitude: Value, emin: Value, cut: Value) -> Value:
    """Magnitudes of float32, as bits, rounded to nearest, ties to even, to a format of ``cut`` fraction bits less and
    the least exponent ``emin``; with ``cut`` 0, and of infinities and NaNs, themselves."""
    what, lanes = magnitude.type, magnitude.type.count

    def all_(x: Value) -> Value:
        return splat(builder, x, lanes)

    def field(x: Value) -> Value:
        """The bits of 2**x."""
        return builder.shl(builder.add(x, INT(127)), INT(23))

    floats = ir.VectorType(ir.FloatType(), lanes)
    half = builder.lshr(builder.shl(INT(1), cut), INT(1))
    last = builder.and_(builder.lshr(magnitude, all_(cut)), what([1] * lanes))
    near = builder.add(magnitude, builder.add(last, all_(builder.sub(half, INT(1)))))
    near = builder.and_(near, all_(builder.shl(INT(-1), cut)))
    beyond = builder.icmp_signed(">=", near, all_(field(builder.sub(INT(2), emin))))
    near = builder.select(beyond, what([int(INFINITY)] * lanes), near)
    steps = builder.or_(field(builder.add(emin, cut)), INT(1 << 22))  # 1.5 times a power: adding it rounds a subnormal
    steps = builder.bitcast(all_(steps), floats)
    below = builder.fsub(builder.fadd(builder.bitcast(magnitude, floats), steps), steps)
    subnormal = builder.icmp_signed("<", magnitude, all_(field(emin)))
    near = builder.select(subnormal, builder.bitcast(below, what), near)
    special = builder.icmp_signed(">=", magnitude, what([int(INFINITY)] * lanes))
    kept = builder.or_(special, all_(builder.icmp_signed("==", cut, INT(0))))
    return builder.select(kept, magnitude, near)


def _packed_of(lanes: int) -> Any:
    """Pack a vector: ``f(line, start, zero, emin, cut, values, exponents, at)``; the worst class of its elements."""

    @intrinsic
    def packed(_context, line, start, zero, emin, cut, values, exponents, at):
        def generate(context, builder, signature, args):
            line, values, exponents = (
                context.make_array(signature.args[n])(context, builder, args[n]).data for n in (0, 5, 6)
            )
            zero, emin, cut = (builder.trunc(args[n], INT) for n in (2, 3, 4))
            ints = ir.VectorType(INT, lanes)

            def all_(x: int) -> Value:
                return ints([int(x)] * lanes)

            bits = builder.load(place(builder, line, args[1], 0, ints), align=4)
            magnitude = _rounded(builder, builder.and_(bits, all_(ABS)), emin, cut)
            value = builder.or_(magnitude, builder.and_(bits, all_(-(2**31))))
            builder.store(value, place(builder, values, args[7], 0, ints), align=4)
            least = splat(builder, emin, lanes)
            exponent = builder.sub(builder.lshr(magnitude, all_(23)), all_(127))
            exponent = builder.select(builder.icmp_signed(">", exponent, least), exponent, least)
            absent = builder.icmp_signed("==", magnitude, all_(0))
            special = builder.icmp_signed(">=", magnitude, all_(INFINITY))
            outside = builder.icmp_unsigned(">", builder.sub(exponent, all_(TAME_LOW)), all_(TAME_HIGH - TAME_LOW))
            wide = builder.and_(outside, builder.not_(absent))
            exponent = builder.select(builder.or_(absent, special), splat(builder, zero, lanes), exponent)
            narrow = ir.VectorType(exponents.type.pointee, lanes)
            exponent = builder.trunc(exponent, narrow) if narrow != ints else exponent
            size = exponents.type.pointee.width // 8
            builder.store(exponent, place(builder, exponents, args[7], 0, narrow), align=size)
            kind = builder.select(any_of(builder, wide), INT(WIDE), INT(IN_RANGE))
            return builder.select(any_of(builder, special), INT(SPECIAL), kind)

        return types.int32(line, start, types.int64, types.int64, types.int64, values, exponents, at), generate

    return named(packed, lanes)


def _turned_of(n: int) -> Any:
    """A square of ``n`` rows and columns turned: ``f(x, at, step, lines, to, width)``, steps from a row to the next."""

    @intrinsic
    def turned(_context, x, at, step, lines, to, width):
        def generate(context, builder, signature, args):
            x, lines = (context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 3))
            floats = ir.VectorType(ir.FloatType(), n)

            def row(data: Value, begin: Value, step: Value, i: int) -> Value:
                return place(builder, data, builder.add(begin, builder.mul(step, step.type(i))), 0, floats)

            rows = [builder.load(row(x, args[1], args[2], i), align=4) for i in range(n)]
            for d in (1 << i for i in range(n.bit_length() - 1)):  # exchanges squares of d in squares of 2 d
                first = [j if not j & d else n + j - d for j in range(n)]
                second = [j + d if not j & d else n + j for j in range(n)]
                for i in (i for i in range(n) if not i & d):
                    rows[i], rows[i + d] = (
                        builder.shuffle_vector(rows[i], rows[i + d], ir.Constant(ir.VectorType(INT, n), mask))
                        for mask in (first, second)
                    )
            for i in range(n):
                builder.store(rows[i], row(lines, args[4], args[5], i), align=4)

        return types.void(x, types.int64, types.int64, lines, types.int64, types.int64), generate

    return named(turned, n)


_packed16, _packed4, _packed1 = _packed_of(LANES), _packed_of(4), _packed_of(1)
_turned16, _turned4 = _turned_of(16), _turned_of(4)


@inlined
def pack_line(line, start, count, zero, emin, cut, values, exponents, at):
    """Pack ``count`` elements, rounded; the worst of their classes. Exponents are clamped, and written as ``zero`` for
    zeros, infinities and NaNs."""
    worst, j = np.int32(IN_RANGE), 0
    while j + 16 <= count:
        worst = max(worst, _packed16(line, _at(start + j), zero, emin, cut, values, exponents, _at(at + j)))
        j += 16
    while j + 4 <= count:
        worst = max(worst, _packed4(line, _at(start + j), zero, emin, cut, values, exponents, _at(at + j)))
        j += 4
    while j < count:
        worst = max(worst, _packed1(line, _at(start + j), zero, emin, cut, values, exponents, _at(at + j)))
        j += 1
    return worst


@inlined
def _turn(x, at, step, other, count, many, lines, width):
    """``lines[j * width + i] = x[at + i * step + j * other]`` for i < ``count`` and j < ``many``."""
    if other == 1 and count % 16 == 0 and many % 16 == 0:
        for i in range(0, count, 16):
            for j in range(0, many, 16):
                _turned16(x, at + i * step + j, step, lines, j * width + i, width)
    elif other == 1 and count % 4 == 0 and many % 4 == 0:
        for i in range(0, count, 4):
            for j in range(0, many, 4):
                _turned4(x, at + i * step + j, step, lines, j * width + i, width)
    else:
        for i in range(count):
            for j in range(many):
                lines[_at(j * width + i)] = x[_at(at + i * step + j * other)]


@jit
def pack_rows(
    x, start, row_step, k_step, rows, k, blocks, length, zero, emin, cut, first, last, values, exponents, classes
):
    """Pack a matrix as ``[n][row][l]`` for rows ``first`` to ``last``, k being ``blocks[n] * length + l``, beyond the
    end +0.

    Element (row, k) is ``x[start + row * row_step + k * k_step]``, float32, rounded as ``cut`` says. ``blocks``: which
    of k, in order. ``zero``: the exponent written for a zero. The classes are ``[n][row]``.
    """
    lines = np.zeros(GROUP * length, np.float32)
    tile = GROUP if k_step == 1 else last - first  # what is next in memory is next
    for start_row in range(first, last, tile):
        for n in range(blocks.size):
            i = blocks[n] * length
            count = min(max(k - i, 0), length)
            if count < length:
                lines[:] = np.float32(0)
            for group in range(start_row, min(start_row + tile, last), GROUP):
                height = min(GROUP, last - group)
                at, to = start + group * row_step + i * k_step, n * rows + group
                direct = k_step == 1 and count == length
                if not direct:
                    _turn(x, at, k_step, row_step, count, height, lines, length)
                for row in range(height):
                    source, into = at + row * row_step, (to + row) * length
                    classes[to + row] = (
                        pack_line(x, source, length, zero, emin, cut, values, exponents, into) if direct
                        else pack_line(lines, row * length, length, zero, emin, cut, values, exponents, into)
                    )  # fmt: skip


@jit
def pack_panels(
    x, start, k_step, column_step, k, columns, blocks, length, zero, emin, cut, first, last, values, exponents, classes
):
    """Pack a matrix (K, columns) as ``[panel][n][l][column]`` for panels ``first`` to ``last``, classes as
    ``[panel][n]``.
    """
    lines = np.zeros(length * WIDTH, np.float32)
    for panel in range(first, last):
        left = panel * WIDTH
        wide = min(WIDTH, columns - left)
        for n in range(blocks.size):
            i = blocks[n] * length
            count = min(max(k - i, 0), length)
            source, to = start + i * k_step + left * column_step, (panel * blocks.size + n) * length * WIDTH
            direct = column_step == 1 and count == length and wide == WIDTH
            if not direct:
                if count < length or wide < WIDTH:
                    lines[:] = np.float32(0)
                _turn(x, source, column_step, k_step, wide, count, lines, WIDTH)
            worst = np.int32(IN_RANGE)
            for m in range(length):
                at, into = source + m * k_step, to + m * WIDTH
                one = (
                    pack_line(x, at, WIDTH, zero, emin, cut, values, exponents, into) if direct
                    else pack_line(lines, m * WIDTH, WIDTH, zero, emin, cut, values, exponents, into)
                )  # fmt: skip
                worst = max(worst, one)
            classes[panel * blocks.size + n] = worst
