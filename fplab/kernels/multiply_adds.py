"""Products of matrices as chains of fused multiply-adds, FP32 or FP64: for each element k ascends, from what is there.

B is packed in panels of as many columns as a line of the cache holds. A tile of rows by one panel stays in registers
while k passes: one load of B's line serves all of its rows.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import jit
from .tensorcore_rows import named, place, splat

LINE = 64  # bytes of a panel's row
ROWS = 6  # of a tile: with half as many vectors for B and A they fit the registers of AVX2
TALL, DEEP = 16 * ROWS, 512  # rows and k for which A stays in the second-level cache, and a panel in the first


def _tile_of(rows: int) -> Any:
    """``rows`` chains a column: ``f(a, at, across, k, b, bt, c, ct, step)``.

    ``across``, ``step``: from a row of a, and of c, to the next.
    """

    @intrinsic
    def tile(_context, a, at, across, k, b, bt, c, ct, step):
        element = a.dtype

        def generate(context, builder, signature, args):
            ours, theirs, sums = (
                context.make_array(signature.args[n])(context, builder, args[n]).data for n in (0, 4, 6)
            )
            at, across, k, bt, ct, step = (args[n] for n in (1, 2, 3, 5, 7, 8))
            lanes = 8 * LINE // element.bitwidth
            vector = ir.VectorType(context.get_value_type(element), lanes)
            fma = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes}f{element.bitwidth}"
            )
            stored = []
            for row in range(rows):
                address = place(builder, sums, builder.add(ct, builder.mul(step, step.type(row))), 0, vector)
                total = cgutils.alloca_once(builder, vector)  # a register
                builder.store(builder.load(address, align=4), total)
                stored.append((address, total))
            with cgutils.for_range(builder, k) as loop:
                y = builder.load(place(builder, theirs, builder.add(bt, builder.mul(loop.index, k.type(lanes))), 0,
                                       vector), align=4)  # fmt: skip
                for row, (_, total) in enumerate(stored):
                    index = builder.add(builder.add(at, builder.mul(across, k.type(row))), loop.index)
                    x = splat(builder, builder.load(builder.gep(ours, [index])), lanes)
                    builder.store(builder.call(fma, [x, y, builder.load(total)]), total)
            for address, total in stored:
                builder.store(builder.load(total), address, align=4)

        size = types.int64
        return types.void(a, size, size, size, b, size, c, size, size), generate

    return named(tile, rows)


_tile, _row = _tile_of(ROWS), _tile_of(1)


@jit
def pack(x, k_step, column_step, k, columns, panel0, panel1, out):
    """Some panels of a matrix (k, columns) in flat memory ``x``: [panel][k][column], zeros beyond the last column."""
    width = LINE // out.itemsize
    for panel in range(panel0, panel1):
        left, to = panel * width, panel * k * width
        whole = min(width, columns - left)
        for i in range(k):
            at = i * k_step + left * column_step
            for j in range(whole):
                out[np.uintp(to + i * width + j)] = x[np.uintp(at + j * column_step)]
            for j in range(whole, width):
                out[to + i * width + j] = 0


@jit
def multiply(a, rows, k, b, c, columns, row0, row1, panel0, panel1):
    """``c[i] = fma(a[i, k], b[k], c[i])`` for ascending k: a (rows, k) and c (rows, columns) flat, b packed.

    For rows ``row0`` to ``row1`` and panels ``panel0`` to ``panel1``.
    """
    width = LINE // c.itemsize
    edge = np.zeros(ROWS * width, c.dtype)
    for top in range(row0, row1, TALL):
        for start in range(0, k, DEEP):
            deep = min(DEEP, k - start)
            for panel in range(panel0, panel1):
                left, bt = panel * width, (panel * k + start) * width
                whole = min(width, columns - left)
                for i in range(top, min(top + TALL, row1), ROWS):
                    height = min(ROWS, row1 - i)
                    at, out, ct, step = i * k + start, c, i * columns + left, columns
                    if whole < width:  # what is beyond the last column has no place in c
                        for row in range(height):
                            for j in range(whole):
                                edge[row * width + j] = c[ct + row * columns + j]
                        out, ct, step = edge, 0, width
                    if height == ROWS:
                        _tile(a, at, k, deep, b, bt, out, ct, step)
                    else:
                        for row in range(height):
                            _row(a, at + row * k, k, deep, b, bt, out, ct + row * step, step)
                    if whole < width:
                        for row in range(height):
                            for j in range(whole):
                                c[i * columns + left + row * columns + j] = edge[row * width + j]
