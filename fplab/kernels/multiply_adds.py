"""Products of matrices as chains of sums, FP32 or FP64, from what is there: k ascends, for each element by itself.

A step is one fused multiply-add, or the tree of a few products and its addition, each rounded. Both operands are packed
in panels, B of as many columns as a line of the cache holds. A tile of rows by one panel stays in registers while k
passes: one load of B's line serves all of its rows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import jit
from .tensorcore_rows import FIELD, SIGN, Value, has_avx512, named, place, splat

LINE = 64  # bytes of a panel's row
ROWS = 8  # of a tile: as many vectors of AVX-512, whose sums hide how long an addition takes
TALL, DEEP = 16, 256  # tiles and k for which A stays in the second-level cache, and a panel in the first


def _tile_of(length: int, flushes: bool) -> Any:
    """Steps of ``length`` products onto a tile: ``f(a, at, steps, b, bt, c, ct, across)``, one of which is fused.

    ``across``: from a row of c to the next. ``flushes``: what is subnormal becomes a zero of its sign.
    """

    @intrinsic
    def tile(_context, a, at, steps, b, bt, c, ct, across):
        element = a.dtype

        def generate(context, builder, signature, args):
            ours, theirs, sums = (
                context.make_array(signature.args[n])(context, builder, args[n]).data for n in (0, 3, 5)
            )
            at, steps, bt, ct, across = (args[n] for n in (1, 2, 4, 6, 7))
            lanes = 8 * LINE // element.bitwidth
            vector = ir.VectorType(context.get_value_type(element), lanes)
            ints = ir.VectorType(ir.IntType(element.bitwidth), lanes)
            fma = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes}f{element.bitwidth}"
            )

            def kept(x: Value) -> Value:
                if not flushes:
                    return x
                bits = builder.bitcast(x, ints)
                tiny = builder.icmp_signed("==", builder.and_(bits, ints([FIELD] * lanes)), ints([0] * lanes))
                return builder.bitcast(builder.select(tiny, builder.and_(bits, ints([SIGN] * lanes)), bits), vector)

            def step(xs: list[Value], ys: list[Value], total: Value) -> Value:
                if length == 1:
                    return builder.call(fma, [xs[0], ys[0], total])
                none = vector([0.0] * lanes)
                terms = [kept(builder.call(fma, [x, y, none])) for x, y in zip(xs, ys, strict=True)]
                while len(terms) > 1:
                    terms = [kept(builder.fadd(x, y)) for x, y in zip(terms[::2], terms[1::2], strict=True)]
                return kept(builder.fadd(total, terms[0]))

            together = ROWS if has_avx512(context) else ROWS // 2  # of which the sums fit the registers
            for first in range(0, ROWS, together):
                rows = range(first, first + together)
                places = [place(builder, sums, builder.add(ct, builder.mul(across, at.type(row))), 0, vector)
                          for row in rows]  # fmt: skip
                totals = [cgutils.alloca_once_value(builder, builder.load(where, align=4)) for where in places]
                with cgutils.for_range(builder, steps) as loop:
                    k = builder.mul(loop.index, at.type(length))
                    begin = builder.add(bt, builder.mul(k, at.type(lanes)))
                    ys = [
                        builder.load(place(builder, theirs, begin, m * lanes, vector), align=4) for m in range(length)
                    ]
                    begin = builder.add(at, builder.mul(k, at.type(ROWS)))
                    for row, total in zip(rows, totals, strict=True):
                        places_a = [builder.add(begin, at.type(m * ROWS + row)) for m in range(length)]
                        xs = [splat(builder, builder.load(builder.gep(ours, [where])), lanes) for where in places_a]
                        builder.store(step(xs, ys, builder.load(total)), total)
                for where, total in zip(places, totals, strict=True):
                    builder.store(builder.load(total), where, align=4)

        size = types.int64
        return types.void(a, size, size, b, size, c, size, size), generate

    return named(tile, length, flushes)


@jit
def pack(x, k_step, column_step, k, columns, width, out, panel0, panel1):
    """Some panels of a matrix (k, columns) in flat memory ``x``: [panel][k][column], zeros beyond the last column."""
    for panel in range(panel0, panel1):
        left, to = panel * width, panel * k * width
        whole = min(width, columns - left)
        for i in range(k):
            at = i * k_step + left * column_step
            for j in range(whole):
                out[np.uintp(to + i * width + j)] = x[np.uintp(at + j * column_step)]
            for j in range(whole, width):
                out[to + i * width + j] = 0


def _multiply(length: int, flushes: bool) -> Callable[..., None]:
    """The kernel of such steps."""
    tile = _tile_of(length, flushes)

    @jit
    def multiply(a, rows, k, b, c, columns, every, tile0, tile1, panel0, panel1):
        """``c += a @ b`` for tiles of rows and panels of columns: a (k, rows) and b (k, columns) packed, c flat.

        ``every``: before each so many products, whole steps, a -0 in c becomes +0; 0 for never.
        """
        width = LINE // c.itemsize
        edge = np.zeros(ROWS * width, c.dtype)
        for top in range(tile0, tile1, TALL):
            for start in range(0, k, every or DEEP):
                steps = min(every or DEEP, k - start) // length
                for panel in range(panel0, panel1):
                    left, bt = panel * width, (panel * k + start) * width
                    whole = min(width, columns - left)
                    for n in range(top, min(top + TALL, tile1)):
                        height, at, ct = min(ROWS, rows - n * ROWS), (n * k + start) * ROWS, n * ROWS * columns + left
                        if whole == width and height == ROWS and not every:
                            tile(a, at, steps, b, bt, c, ct, columns)
                            continue
                        for i in range(height):  # what is beyond the last row or column has no place in c
                            for j in range(whole):
                                entering = c[ct + i * columns + j]
                                edge[i * width + j] = entering + c.dtype.type(0) if every else entering
                        tile(a, at, steps, b, bt, edge, 0, width)
                        for i in range(height):
                            for j in range(whole):
                                c[ct + i * columns + j] = edge[i * width + j]

    return multiply


STEPS = {(1, False): _multiply(1, False)} | {
    (length, flushes): _multiply(length, flushes) for length in (2, 4) for flushes in (False, True)
}
