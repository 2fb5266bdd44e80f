"""The smallest operands on which torch's result and another formula's differ.

Found by shrinking: from an operand triple on which they differ, bits of the significands are cleared and exponents
drawn towards zero for as long as they still differ. What is left has no bit that could be cleared.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ... import formats
from ...formats import Format
from ...hardware.cases import Arrays, Case, Meta
from .catalogue import EACH, FIRST, LAST, ONCE, RIGHT, TWICE, by_formula, differing


class Distinction(NamedTuple):
    """A row of the catalogue, the formula that is torch's (None: no formula's), and the one it is told from."""

    case: str
    output: str
    fmt: str
    torchs: str | None
    other: str


DISTINCTIONS = (
    Distinction("contraction in fp32", "add alpha", "fp32", LAST, EACH),
    Distinction("contraction in fp32", "addcmul", "fp32", FIRST, EACH),
    Distinction("contraction in fp32", "lerp", "fp32", LAST, EACH),
    Distinction("contraction in fp32", "addcdiv", "fp32", FIRST, LAST),
    Distinction("contraction in fp16", "add alpha", "fp16", f"{EACH}, alpha narrow", EACH),
    Distinction("square root in fp32", "sqrt", "fp32", None, ONCE),
    Distinction("functions in fp32", "exp", "fp32", None, RIGHT),
    Distinction("functions in fp16", "exp", "fp16", TWICE, RIGHT),
    Distinction("casts from fp64", "fp16", "fp16", TWICE, ONCE),
)
SAMPLE = 4096  # of three operands, among which the first difference is looked for
USED = {"add alpha": "xy", "lerp": "xy", "sqrt": "x", "exp": "x", "fp16": "x", "addcmul": "xyz", "addcdiv": "xyz"}


def told_apart(case: Case, one: Distinction, given: Arrays, meta: Meta) -> np.ndarray:
    """On which operands torch gives its formula's result, and not the other's."""
    n = next(iter(given.values())).size
    longer = {name: np.concatenate([x, np.resize(x, 128)]) for name, x in given.items()}  # all in the vector code
    got = case.compute(longer, "cpu")[one.output][:n]
    guesses = by_formula(case, given, meta)
    apart = differing(got, guesses[one.other][one.output], one.fmt)
    if one.torchs is not None:
        apart &= ~differing(got, guesses[one.torchs][one.output], one.fmt)
    return apart


def weight(codes: np.ndarray, form: Format) -> np.ndarray:
    """How large an operand is: its significand's bits down to the last one that is set, far exponents, the sign."""
    wide = codes.astype(np.uint64)
    fraction = wide & np.uint64((1 << form.fraction_bits) - 1)
    lowest = np.where(fraction == 0, form.fraction_bits, _trailing_zeros(fraction))
    exponent = ((wide & np.uint64((1 << (form.bits - 1)) - 1)) >> np.uint64(form.fraction_bits)).astype(np.int64)
    far = np.abs(exponent - (form.bias or 0))
    return np.asarray(64 * (form.fraction_bits - lowest) + far + (wide >> np.uint64(form.bits - 1)).astype(np.int64))


def total_weight(given: Arrays, used: str, form: Format) -> np.ndarray:
    """The weights of all operands that the operation uses."""
    return np.asarray(np.sum([weight(given[name], form) for name in used], axis=0))


def _trailing_zeros(x: np.ndarray) -> np.ndarray:
    lowest = x & (~x + np.uint64(1))
    return np.asarray(np.log2(np.maximum(lowest, 1).astype(np.float64)).astype(np.int64))


def variants(code: int, form: Format) -> list[int]:
    """Simpler operands near one: the last bit that is set cleared, or the exponent nearer to zero, or no sign."""
    fraction, bias = code & ((1 << form.fraction_bits) - 1), form.bias or 0
    found = [code & ~(fraction & -fraction)] if fraction else []
    exponent = (code >> form.fraction_bits) & ((1 << form.exponent_bits) - 1)
    step = (exponent < bias) - (exponent > bias)
    for nearer in {bias, (exponent + bias) // 2, exponent + step} - {exponent}:
        found.append(code ^ ((exponent ^ nearer) << form.fraction_bits))
    if code >> (form.bits - 1):
        found.append(code & ((1 << (form.bits - 1)) - 1))
    return found


def ordinary(given: Arrays, form: Format) -> np.ndarray:
    """Which operands all lie between 2^-12 and 2^13, where nothing overflows or is subnormal."""
    ok = np.ones(next(iter(given.values())).size, bool)
    for codes in given.values():
        magnitude = codes.astype(np.uint64) & np.uint64((1 << (form.bits - 1)) - 1)
        exponent = (magnitude >> np.uint64(form.fraction_bits)).astype(np.int64) - (form.bias or 0)
        ok &= (exponent >= -12) & (exponent <= 12)
    return ok


def smallest(case: Case, one: Distinction, meta: Meta, start: Arrays | None = None) -> dict[str, int] | None:
    """The codes of the smallest operands found, or None where torch never differs from the other formula.

    ``start``: operands to shrink, the case's own unless given.
    """
    many = SAMPLE if case.name.startswith("contraction") else 1 << 16  # there the random operands come last
    given = start or {name: x[-many:] for name, x in case.inputs().items()}
    form = formats.get("fp64" if case.name.startswith("casts") else one.fmt)
    used = USED[one.output]
    given = {name: x if name in used else np.full_like(x, one_of(form)) for name, x in given.items()}
    there = np.flatnonzero(told_apart(case, one, given, meta) & ordinary(given, form))
    if not there.size:
        return None
    heavy = total_weight({name: x[there] for name, x in given.items()}, used, form)
    best = {name: int(x[there[int(np.argmin(heavy))]]) for name, x in given.items()}
    while True:
        tried = [{**best, name: code} for name in used for code in variants(best[name], form)]
        batch = {name: np.array([t[name] for t in tried], given[name].dtype) for name in best}
        good = np.flatnonzero(told_apart(case, one, batch, meta) & ordinary(batch, form))
        now = total_weight({name: np.array([code], given[name].dtype) for name, code in best.items()}, used, form)[0]
        weights = total_weight(batch, used, form)
        good = good[weights[good] < now]
        if not good.size:
            return best
        best = tried[int(good[np.argmin(weights[good])])]


def one_of(form: Format) -> int:
    """The code of 1.0."""
    return (form.bias or 0) << form.fraction_bits
