"""Writing results past the cache.

A loop over arrays far larger than the cache is limited by memory traffic, and an ordinary store first reads the line
that it overwrites. Results are therefore collected in a block that fits the first-level cache and written with
non-temporal stores, which do not read: a third less traffic for one operand.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import inlined
from .tensorcore_rows import FLOATS, LANES, place, splat

BLOCK = 128  # elements collected before they are written; measured best of 32 .. 8192
LINE = 16  # float32 elements in a 64-byte line, the unit of a non-temporal store


@intrinsic
def stream(_context, target, offset, source, count):
    """``target[offset:offset+count] = source[:count]`` past the cache; 32-bit elements, the target 64-byte aligned.

    ``count`` is a multiple of ``LINE``. Nothing is checked.
    """

    def generate(context, builder, signature, args):
        to = context.make_array(signature.args[0])(context, builder, args[0]).data
        frm = context.make_array(signature.args[2])(context, builder, args[2]).data
        vector = ir.VectorType(ir.IntType(32), LINE)
        hint = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        lines = builder.udiv(args[3], ir.Constant(args[3].type, LINE))
        with cgutils.for_range(builder, lines) as loop:
            i = builder.mul(loop.index, ir.Constant(loop.index.type, LINE))
            load = builder.load(builder.bitcast(builder.gep(frm, [i]), vector.as_pointer()))
            load.align = 4
            place = builder.gep(to, [builder.add(args[1], i)])
            store = builder.store(load, builder.bitcast(place, vector.as_pointer()))
            store.align = 64
            store.set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return types.void(target, offset, source, count), generate


@intrinsic
def fence(_context):
    """Make non-temporal stores visible to other threads before going on."""

    def generate(context, builder, _signature, _args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _fill_line(_context, out, at, value):
    """``out[at : at + LANES] = value``, float32: of loops so short LLVM makes scatters."""

    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        builder.store(splat(builder, args[2], LANES), place(builder, data, args[1], 0, FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(out, types.intp, types.float32), generate


@inlined
def fill(out, start, stop, value):
    """``out[start:stop] = value``, float32."""
    while start + LANES <= stop:
        _fill_line(out, start, value)
        start += LANES
    for i in range(start, stop):
        out[np.uintp(i)] = value
