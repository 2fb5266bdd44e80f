"""General loops over codes: conversion, arithmetic's front and back, and comparison of any two formats."""

import numpy as np

from . import jit
from .rounding import (
    FINITE,
    INVALID,
    NO_NAN,
    SNAN,
    U0,
    ZERO,
    check,
    draws,
    element_word,
    is_subnormal,
    pack,
    unpack,
    widen,
)


@jit
def convert(codes, out, flags, src, dst, options, start, seed):
    """Round every code of ``src`` to a code of ``dst``; element i draws random word ``start + i``.

    ``flags`` is empty or takes IEEE flags. Returns the index of the first NaN that ``dst`` cannot hold, else -1.
    """
    check(options)
    offender = -1
    want = flags.size > 0
    for i in range(codes.size):
        word = element_word(start + i, seed) if draws(options.mode) else U0
        kind, negative, m, e, payload = unpack(np.uint64(codes[i]), src)
        if options.daz and kind == FINITE and is_subnormal(m, src):
            kind = ZERO
        code, raised = pack(kind, negative, m, e, False, payload, dst, options, want, word)
        if raised & NO_NAN and offender < 0:
            offender = i
        out[i] = code
        if want:
            flags[i] = (raised & 31) | (INVALID if kind == SNAN else 0)
    return offender


@jit
def quantize(codes, out, src, dst, carrier, options, start, seed):
    """Round every code of ``src`` to ``dst`` and give the result as a code of ``carrier``, which holds ``dst``."""
    check(options)
    offender = -1
    for i in range(codes.size):
        word = element_word(start + i, seed) if draws(options.mode) else U0
        kind, negative, m, e, payload = unpack(np.uint64(codes[i]), src)
        if options.daz and kind == FINITE and is_subnormal(m, src):
            kind = ZERO
        code, raised = pack(kind, negative, m, e, False, payload, dst, options, False, word)
        if raised & NO_NAN and offender < 0:
            offender = i
        out[i] = widen(code, dst, carrier)
    return offender


@jit
def to_odd(x, out):
    """The bits of float64 as float32; where that does not hold it, of the neighbour whose last bit is 1.

    Rounded after that to 22 bits or fewer, by any rule without chance, it is rounded as if at once: between the two
    neighbours, and on the odd one, lies neither a value of the coarser grid nor a midpoint.
    """
    for i in range(x.size):
        near = np.float32(x[i])
        wide = np.float64(near)
        bits = near.view(np.uint32)
        bits = np.uint32(bits - np.uint32(1)) if abs(wide) > abs(x[i]) else bits
        out[i] = np.uint32(bits | np.uint32(1)) if wide < x[i] or wide > x[i] else bits  # of a NaN neither


@jit
def decode(codes, out, src, carrier):
    """Every code of ``src`` as a code of ``carrier``, exact."""
    for i in range(codes.size):
        out[i] = widen(np.uint64(codes[i]), src, carrier)


@jit
def random_words(out, start, seed):
    """The 32 random bits that elements ``start``, ``start + 1``, ... of a stream draw."""
    for i in range(out.size):
        out[i] = element_word(start + i, seed)
