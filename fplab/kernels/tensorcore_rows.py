"""Blocks in range of one row of A and a panel of B, added to accumulators and rounded, in vectors of columns.

These are loops over the columns, written in vectors: of loops as long as these LLVM's choice of vectors takes a
quarter longer, and changes with every change. LLVM makes of a vector what a CPU has. Exponents have the bias of
float32, and in ``int32`` they lie where those of a float32 do.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WIDTH = 64  # columns of a panel: one row of a block stays in registers and first-level cache
LEAST = -100  # of an exponent of products in range: the sum of the least exponents of two such operands
ABSENT = LEAST - 1 + 127  # stands for the exponent of products that are all zero
HIGH = 248  # the largest exponent whose sums stay inside float32
LANES = 16
FIELD, SIGN = 0x7F800000, -(2**31)  # of the bits of a float32: its exponent's, its sign's

INT = ir.IntType(32)
INTS, FLOATS = ir.VectorType(INT, LANES), ir.VectorType(ir.FloatType(), LANES)
Value = ir.Value


def named(function: Any, *of: object) -> Any:
    """An intrinsic by a name of its own: by numba's, a random number, no kernel that calls it is found in the cache."""
    function._set_uuid(repr((function._name, *of)))
    return function


def _all(x: int) -> ir.Constant:
    return ir.Constant(INTS, [x] * LANES)


def splat(builder: ir.IRBuilder, x: Value, lanes: int) -> Value:
    """A vector of one number."""
    empty = ir.Constant(ir.VectorType(x.type, lanes), ir.Undefined)
    first = builder.insert_element(empty, x, INT(0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(INT, lanes), [0] * lanes))


def _larger(builder: ir.IRBuilder, x: Value, y: Value) -> Value:
    return builder.select(builder.icmp_signed(">", x, y), x, y)


def place(builder: ir.IRBuilder, data: Value, at: Value, offset: int, what: ir.Type) -> Value:
    """Where a vector lies, ``offset`` elements after ``data[at]``."""
    return builder.bitcast(builder.gep(data, [builder.add(at, at.type(offset))]), what.as_pointer())


def has_avx512(context: Any) -> bool:
    """Whether the CPU that is compiled for has 32 registers of 16 floats."""
    return "+avx512f" in context.codegen().magic_tuple()[2]


def any_of(builder: ir.IRBuilder, mask: Value) -> Value:
    """Whether one of a vector's booleans is true."""
    bits = builder.bitcast(mask, ir.IntType(mask.type.count))
    return builder.icmp_unsigned("!=", bits, bits.type(0))


def highest_of(length: int) -> Any:
    """The largest exponents of products: ``f(ea, at, eb, bt, none, top, tt)``; whether one is ABSENT.

    Largest sums of exponents below ``none`` are of products that are all zero.
    """

    @intrinsic
    def largest(_context, ea, at, eb, bt, none, top, tt):
        def generate(context, builder, signature, args):
            ours, theirs, to = (
                context.make_array(signature.args[n])(context, builder, args[n]).data for n in (0, 2, 5)
            )
            lane = ours.type.pointee
            sums, narrow = ir.VectorType(lane, WIDTH), ir.VectorType(ir.IntType(8), WIDTH)
            lanes = []
            for m in range(length):
                e = builder.load(builder.gep(ours, [builder.add(args[1], args[1].type(m))]))
                column = builder.load(place(builder, theirs, args[3], m * WIDTH, sums), align=lane.width // 8)
                lanes.append(builder.add(splat(builder, e, WIDTH), column))
            while len(lanes) > 1:
                lanes = [_larger(builder, *pair) for pair in zip(lanes[::2], lanes[1::2], strict=True)]
            least = splat(builder, builder.trunc(args[4], lane), WIDTH)
            zero = builder.icmp_signed("<", lanes[0], least)
            biased = builder.add(lanes[0], ir.Constant(sums, [127] * WIDTH))
            biased = builder.select(zero, ir.Constant(sums, [ABSENT] * WIDTH), biased)
            if lane.width > 8:
                biased = builder.trunc(biased, narrow)
            builder.store(biased, place(builder, to, args[6], 0, narrow), align=1)
            return any_of(builder, zero)

        return types.boolean(ea, at, eb, bt, none, top, tt), generate

    return named(largest, length)


class Block:
    """What is done to vectors of columns, one block of products and an accumulator: to FP32, truncated.

    ``rule``: fields of a kernel's rule, as int32. ``wrong``: vectors whose signs say that a sum does not fit.
    """

    parts = 1  # sums of a block, each at its own exponent

    def __init__(self, builder: ir.IRBuilder, rule: Callable[[str], Value], length: int, avx512: bool) -> None:
        self.builder, self.avx512, self.length = builder, avx512, length
        self.wrong: list[Value] = []
        align = rule("align")
        self.up = self.all(builder.shl(builder.add(align, INT(254)), INT(23)))
        self.down = self.all(builder.shl(align, INT(23)))
        self.prepare(rule)

    def prepare(self, rule: Callable[[str], Value]) -> None:
        self.kept = self.all(self.builder.shl(INT(-1), self.builder.sub(INT(23), rule("kept"))))

    def all(self, x: Value) -> Value:
        return splat(self.builder, x, LANES)

    def power(self, x: Value, e: Value) -> Value:
        """Floats times powers of two, given as the bits of those."""
        return self.builder.fmul(x, self.builder.bitcast(e, FLOATS))

    def whole(self, x: Value) -> Value:
        return self.builder.fptosi(x, INTS)

    def field(self, x: Value) -> Value:
        return self.builder.and_(x, _all(FIELD))

    def chosen(self, condition: Value, x: Value, y: Value) -> Value:
        return self.builder.select(condition, x, y)

    def rounded_down(self, x: Value, shift: Value) -> Value:
        """x / 2**shift, toward minus infinity, for any shift that is not negative."""
        builder = self.builder
        return builder.ashr(x, self.chosen(builder.icmp_unsigned("<", shift, _all(31)), shift, _all(31)))

    def toward_zero(self, x: Value) -> Value:
        """Integers as floats: what they have beyond 24 bits is cut off."""
        builder = self.builder
        if self.avx512:
            name = f"llvm.x86.avx512.sitofp.round.v{LANES}f32.v{LANES}i32"
            signature = ir.FunctionType(FLOATS, [INTS, INT])
            return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [x, INT(11)])
        magnitude = self.chosen(builder.icmp_signed("<", x, _all(0)), builder.neg(x), x)
        cut = builder.and_(magnitude, builder.not_(builder.lshr(magnitude, _all(24))))  # none rounds up
        bits = builder.bitcast(builder.sitofp(cut, FLOATS), INTS)
        return builder.bitcast(builder.or_(bits, builder.and_(x, _all(SIGN))), FLOATS)

    def together(self, x: Value, y: Value) -> Value:
        """The sum of integers, which may not fit where a block has many products."""
        total = self.builder.add(x, y)
        if self.length > 8:
            self.wrong.append(self.builder.and_(self.builder.xor(x, total), self.builder.xor(y, total)))
        return total

    def begin(self, c: Value, tops: Sequence[Value], moved: Value | None = None) -> list[Value]:
        """The powers of two by which the products of each part are multiplied; ``moved``: by scales."""
        builder = self.builder
        self.c, (self.top,), (self.emax,) = c, tops, tops
        if moved is not None:
            self.emax = builder.add(self.emax, moved)
        self.emax = _larger(builder, self.emax, self.field(c))
        self.scaled, scale = moved is not None, builder.sub(self.up, self.emax)
        self.entering = self.power(builder.bitcast(c, FLOATS), scale)
        return [scale if moved is None else _larger(builder, builder.add(scale, moved), _all(1 << 23))]

    def end(self, sums: Sequence[Value]) -> Value:
        """The accumulator after the block, from the sums of products."""
        builder, total = self.builder, self.whole(self.entering)
        for part in sums:
            total = self.together(total, part)
        result = self.power(self.toward_zero(total), builder.sub(self.emax, self.down))
        result = builder.and_(builder.bitcast(result, INTS), self.kept)
        if self.scaled:
            cut = builder.and_(self.c, self.kept)  # as _kept of :mod:`.tensorcore_fast` has it
            none = builder.icmp_signed("==", builder.shl(cut, _all(1)), _all(0))
            zero = builder.icmp_signed("==", self.top, _all(ABSENT << 23))
            result = self.chosen(zero, self.chosen(none, _all(0), cut), result)
        self.wrong.append(builder.sub(_all(HIGH << 23), self.emax))
        return result


class HalfBlock(Block):
    """To FP16, to nearest."""

    def prepare(self, rule: Callable[[str], Value]) -> None:
        builder = self.builder
        least = _larger(builder, rule("floor"), INT(LEAST))
        self.least = self.all(builder.shl(builder.add(least, INT(127)), INT(23)))
        self.emin = self.all(builder.shl(builder.add(rule("emin_c"), INT(127)), INT(23)))

    def begin(self, c: Value, tops: Sequence[Value], moved: Value | None = None) -> list[Value]:
        builder, field = self.builder, self.field(c)
        self.c, self.beyond = c, builder.icmp_signed("==", field, _all(FIELD))
        none = builder.icmp_signed("==", field, _all(0))
        clamped = self.chosen(none, _all(0), _larger(builder, field, self.emin))
        self.emax = _larger(builder, _larger(builder, *tops, self.least), clamped)
        scale, finite = builder.sub(self.up, self.emax), self.chosen(self.beyond, _all(0), c)
        self.entering = self.power(builder.bitcast(finite, FLOATS), scale)
        return [scale]

    def end(self, sums: Sequence[Value]) -> Value:
        builder, total = self.builder, self.whole(self.entering)
        for part in sums:
            total = self.together(total, part)
        cut = self.toward_zero(total)
        # What was cut off is at most 7 bits; beside the last of 24, none of which is kept, they round 11 bits right.
        below = builder.and_(builder.sub(total, self.whole(cut)), _all(127))
        bits = builder.or_(builder.bitcast(cut, INTS), below)
        v = self.power(builder.bitcast(bits, FLOATS), builder.sub(self.emax, self.down))
        bits = builder.bitcast(v, INTS)
        field = _larger(builder, self.field(bits), _all((127 - 14) << 23))
        steps = builder.bitcast(builder.add(field, _all((13 << 23) + (1 << 22))), FLOATS)  # adding it rounds
        v = builder.fsub(builder.fadd(v, steps), steps)
        for e in (112, -112):  # from 2**16 on an infinity
            v = self.power(v, _all((127 + e) << 23))
        result = builder.or_(builder.bitcast(v, INTS), builder.and_(bits, _all(SIGN)))
        return self.chosen(self.beyond, self.c, result)


class TwoStep(Block):
    """As CDNA3 has it: sums and accumulator rounded down and added, to FP32, to nearest.

    All are multiples of 2**(m - 31), m the largest exponent: ``upper`` of 2**(m - align), and ``lower`` beside it.
    """

    def prepare(self, rule: Callable[[str], Value]) -> None:
        self.finer = self.all(self.builder.sub(INT(31), rule("align")))

    def begin(self, c: Value, tops: Sequence[Value], moved: Value | None = None) -> list[Value]:
        builder = self.builder
        self.tops, self.top = tops, functools.reduce(functools.partial(_larger, builder), tops)
        self.of_c, self.c = self.field(c), c
        self.emax = _larger(builder, self.top, self.of_c)
        return [builder.sub(self.up, top) for top in tops]

    def end(self, sums: Sequence[Value]) -> Value:
        builder = self.builder
        apart = [builder.lshr(builder.sub(self.top, top), _all(23)) for top in self.tops]
        parts = [self.rounded_down(x, gap) for x, gap in zip(sums, apart, strict=True)] if self.parts > 1 else sums
        total = functools.reduce(builder.add, parts)
        gap = builder.lshr(builder.sub(self.emax, self.top), _all(23))
        gap = self.chosen(builder.icmp_unsigned("<", gap, _all(32)), gap, _all(32))  # beyond it c is the sum
        left, far = builder.sub(_all(32), gap), _all(0)
        below = self.chosen(builder.icmp_unsigned("<", left, _all(32)), builder.shl(total, left), _all(0))
        lower = builder.lshr(below, builder.sub(_all(32), self.finer))
        floor = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(FLOATS, [FLOATS]), f"llvm.floor.v{LANES}f32"
        )
        scale = builder.sub(self.up, self.emax)
        c = self.whole(builder.call(floor, [self.power(builder.bitcast(self.c, FLOATS), scale)]))
        if self.parts > 1:
            far = builder.icmp_signed(">", builder.sub(self.emax, self.of_c), _all(25 << 23))
            c = self.chosen(far, _all(0), c)
        upper = builder.add(self.rounded_down(total, gap), c)
        lower = builder.or_(builder.shl(builder.and_(upper, _all(255)), self.finer), lower)
        least = builder.sub(_all(127 << 23), builder.shl(self.finer, _all(23)))
        values = [builder.sitofp(x, FLOATS) for x in (builder.and_(upper, _all(-256)), lower)]
        result = self.power(builder.fadd(values[0], self.power(values[1], least)), builder.sub(self.emax, self.down))
        self.wrong.append(builder.sub(_all(HIGH << 23), self.emax))
        return builder.bitcast(result, INTS)


class TwoStepOfTwo(TwoStep):
    """Of two sums, of the first and of the second half of the products; a c far below them counts for nothing."""

    parts = 2


def block_of(length: int, kind: type[Block], scaled: bool = False) -> Any:
    """A block of products added to accumulators, as ``f(a, at, b, bt, acc, ct, top, tt, before, shift, shifts, st,
    r)``; whether ``acc`` may be wrong, since an exponent or a sum is out of range. What it was is in ``before``.

    ``top``: from ``tt`` on, the exponents of each part's columns. ``shifts``: of ``scaled`` blocks.
    """

    @intrinsic
    def block(_context, a, at, b, bt, acc, ct, top, tt, before, shift, shifts, st, r):
        def generate(context, builder, signature, args):
            arrays = (0, 2, 4, 6, 8, 10)
            a, b, acc, top, before, shifts = (
                context.make_array(signature.args[n])(context, builder, args[n]).data for n in arrays
            )
            at, bt, ct, tt, shift, st, rule = (args[n] for n in (1, 3, 5, 7, 9, 11, 12))

            def of_rule(name: str) -> Value:
                return builder.trunc(builder.extract_value(rule, r.fields.index(name)), INT)

            numbers = [
                splat(builder, builder.load(builder.gep(a, [builder.add(at, at.type(m))])), LANES)
                for m in range(length)
            ]
            bytes_, size, wrong = ir.VectorType(ir.IntType(8), LANES), length // kind.parts, _all(0)
            avx512 = has_avx512(context)
            together = LANES * (4 if avx512 else 2)  # columns whose instructions alternate: they fit the registers
            code = [kind(builder, of_rule, length, avx512) for _ in range(together // LANES)]
            for start in range(0, WIDTH, together):
                columns = range(start, start + together, LANES)
                scales = []
                for one, j in zip(code, columns, strict=True):
                    places = [place(builder, top, tt, part * WIDTH + j, bytes_) for part in range(kind.parts)]
                    tops = [builder.zext(builder.load(where, align=1), INTS) for where in places]
                    moved = None
                    if scaled:
                        moved = builder.load(place(builder, shifts, st, j, INTS), align=4)
                        moved = builder.shl(builder.add(moved, splat(builder, shift, LANES)), _all(23))
                    c = builder.load(place(builder, acc, ct, j, INTS), align=4)
                    scales.append(one.begin(c, [builder.shl(t, _all(23)) for t in tops], moved))
                totals: list[list[Value]] = [[] for _ in columns]
                step = min(size, 16)  # products, whose sum fits int32
                for first in range(0, length, step):
                    sums: list[Value] = [None] * len(code)
                    for m in range(first, first + step):
                        for v, j in enumerate(columns):
                            x = builder.load(place(builder, b, bt, m * WIDTH + j, FLOATS), align=4)
                            x = code[v].power(builder.fmul(numbers[m], x), scales[v][m // size])
                            x = code[v].whole(x)
                            sums[v] = x if m == first else builder.add(sums[v], x)
                    for v in range(len(code)):
                        totals[v].append(sums[v])
                for v, j in enumerate(columns):
                    builder.store(code[v].c, place(builder, before, st.type(0), j, INTS), align=4)
                    builder.store(code[v].end(totals[v]), place(builder, acc, ct, j, INTS), align=4)
            for sign in (sign for one in code for sign in one.wrong):
                wrong = builder.or_(wrong, sign)
            return any_of(builder, builder.icmp_signed("<", wrong, _all(0)))

        return types.boolean(a, at, b, bt, acc, ct, top, tt, before, shift, shifts, st, r), generate

    return named(block, length, kind.__name__, scaled)
