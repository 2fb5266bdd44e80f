"""Tame blocks of one row of A and a panel of B rounded to FP32, in vectors of columns.

These are loops over the columns, written in vectors: of loops as long as these LLVM's choice of vectors takes a
quarter longer, and changes with every change. LLVM makes of a vector what a CPU has. Exponents have the bias of
float32, and in ``int32`` they lie where those of a float32 do.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WIDTH = 64  # columns of a panel: one row of a block stays in registers and first-level cache
LEAST = -100  # of an exponent of products in range: the sum of the least exponents of two such operands
ABSENT = LEAST - 1 + 127  # stands for the exponent of products that are all zero
HIGH = 248  # the largest exponent whose sums stay inside float32
LANES = 16
TOGETHER = 2  # vectors whose instructions alternate

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


class _Vectors:
    """The instructions for some vectors of columns of one block of ``length`` products, with ``scaled`` exponents."""

    def __init__(self, builder: ir.IRBuilder, align: Value, kept: Value) -> None:
        self.builder = builder
        self.up = splat(builder, builder.shl(builder.add(align, INT(254)), INT(23)), LANES)
        self.down = splat(builder, builder.shl(align, INT(23)), LANES)
        self.kept = splat(builder, kept, LANES)

    def power(self, x: Value, e: Value) -> Value:
        """Floats times powers of two, given as the bits of those."""
        return self.builder.fmul(x, self.builder.bitcast(e, FLOATS))

    def whole(self, x: Value) -> Value:
        return self.builder.fptosi(x, INTS)

    def absolute(self, x: Value) -> Value:
        return self.builder.select(self.builder.icmp_signed("<", x, _all(0)), self.builder.neg(x), x)

    def truncated(self, total: Value, unit: Value) -> Value:
        """As ``_truncated`` of :mod:`.tensorcore_fast` has it."""
        builder = self.builder
        magnitude = self.absolute(total)
        cut = builder.and_(magnitude, builder.not_(builder.lshr(magnitude, _all(24))))
        bits = builder.bitcast(self.power(builder.sitofp(cut, FLOATS), unit), INTS)
        return builder.or_(builder.and_(bits, self.kept), builder.and_(total, _all(-(2**31))))

    def held(self, c: Value) -> Value:
        """As ``_kept`` has it."""
        cut = self.builder.and_(c, self.kept)
        none = self.builder.icmp_signed("==", self.builder.shl(cut, _all(1)), _all(0))
        return self.builder.select(none, _all(0), cut)


def to_float_of(length: int, scaled: bool) -> Any:
    """A block rounded to FP32, as ``f(a, at, b, bt, acc, ct, top, before, shift, shifts, st, align, kept)``; whether
    ``acc`` may be wrong, since an exponent or a sum is out of range. What it was is in ``before``."""

    @intrinsic
    def rounded(_context, a, at, b, bt, acc, ct, top, before, shift, shifts, st, align, kept):
        def generate(context, builder, signature, args):
            arrays = (0, 2, 4, 6, 7, 9)
            a, b, acc, top, before, shifts = (
                context.make_array(signature.args[n])(context, builder, args[n]).data for n in arrays
            )
            at, bt, ct, shift, st = (args[n] for n in (1, 3, 5, 8, 10))
            code = _Vectors(builder, *(builder.trunc(args[n], INT) for n in (11, 12)))
            numbers = [
                splat(builder, builder.load(builder.gep(a, [builder.add(at, at.type(m))])), LANES)
                for m in range(length)
            ]
            wrong = _all(0)
            for start in range(0, WIDTH, LANES * TOGETHER):
                columns = range(start, start + LANES * TOGETHER, LANES)
                cs = [builder.load(place(builder, acc, ct, j, INTS), align=4) for j in columns]
                tops = [
                    builder.load(place(builder, top, ct, j, ir.VectorType(ir.IntType(8), LANES)), align=1)
                    for j in columns
                ]
                emaxes = [builder.shl(builder.zext(t, INTS), _all(23)) for t in tops]
                if scaled:
                    moved = [builder.load(place(builder, shifts, st, j, INTS), align=4) for j in columns]
                    moved = [builder.add(x, splat(builder, shift, LANES)) for x in moved]
                    moved = [builder.shl(x, _all(23)) for x in moved]
                    emaxes = [builder.add(e, x) for e, x in zip(emaxes, moved, strict=True)]
                fields = [builder.and_(c, _all(0x7F800000)) for c in cs]
                emaxes = [_larger(builder, *pair) for pair in zip(emaxes, fields, strict=True)]
                scales = [builder.sub(code.up, e) for e in emaxes]
                totals = [
                    code.whole(code.power(builder.bitcast(c, FLOATS), e)) for c, e in zip(cs, scales, strict=True)
                ]
                if scaled:
                    scales = [builder.add(e, x) for e, x in zip(scales, moved, strict=True)]
                    scales = [_larger(builder, e, _all(1 << 23)) for e in scales]
                for first in range(0, length, 16):
                    sums: list[Value] = [None] * TOGETHER
                    for m in range(first, min(first + 16, length)):
                        for v, j in enumerate(columns):
                            x = builder.load(place(builder, b, bt, m * WIDTH + j, FLOATS), align=4)
                            x = code.whole(code.power(builder.fmul(numbers[m], x), scales[v]))
                            sums[v] = x if m == first else builder.add(sums[v], x)
                    for v in range(TOGETHER):
                        x, y = sums[v], totals[v]
                        totals[v] = builder.add(x, y)
                        if length > 8:  # whose sums may not fit int32
                            other = builder.and_(builder.xor(x, totals[v]), builder.xor(y, totals[v]))
                            wrong = builder.or_(wrong, other)
                for v, j in enumerate(columns):
                    result = code.truncated(totals[v], builder.sub(emaxes[v], code.down))
                    if scaled:
                        zero = builder.icmp_signed("==", tops[v], tops[v].type([ABSENT] * LANES))
                        result = builder.select(zero, code.held(cs[v]), result)
                    wrong = builder.or_(wrong, builder.sub(_all(HIGH << 23), emaxes[v]))
                    builder.store(cs[v], place(builder, before, st.type(0), j, INTS), align=4)
                    builder.store(result, place(builder, acc, ct, j, INTS), align=4)
            return any_of(builder, builder.icmp_signed("<", wrong, _all(0)))

        return types.boolean(a, at, b, bt, acc, ct, top, before, shift, shifts, st, align, kept), generate

    return named(rounded, length, scaled)
