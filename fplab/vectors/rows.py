"""Rows of operands for a unit's test vectors, each with the reason why it is there.

The regimes of :mod:`fplab.hardware.operands`, and those that ask about one decision of a unit: a tie of the last
rounding with a crumb or without one, a bit at each place below the largest term, the order of a chain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import formats
from ..hardware import operands
from ..hardware.instructions import Instruction
from ..hardware.operands import Draw, Triple, build, fields
from ..hardware.tiles import CODES
from ..tensorcore.models import Model

Array = np.ndarray[Any, Any]
Drawn = dict[str, Array]  # codes a, b (N, K), c (N,), and scale_a, scale_b (N, groups) of block-scaled inputs
CHAIN = 4  # instructions of a row that asks about a chain

REASONS: dict[str, str] = {
    "random": "exponents close together or far apart",
    "bits": "uniform bit patterns",
    "tie": "a tie of the last rounding, alone or with a crumb that decides it",
    "guard": "bits at each place below the largest term: what alignment keeps",
    "cancel": "products that cancel and leave small ones",
    "floor": "terms near the least exponent that alignment knows",
    "subnormal": "subnormal operands, c and results",
    "overflow": "sums next to the largest number and beyond",
    "far_c": "c far above or below the products",
    "special": "infinities and NaNs with payloads",
    "zeros": "zeros of both signs, and negative sums too small for the output",
    "order": "two large terms that cancel among ones: what is added together, and when",
    "probe": "the probes that the literature publishes",
    "chain": "several instructions, each of which takes the result before as its c",
    "scale": "block scales far apart, at the ends of their range, zero or NaN",
    "ends": "integers at the ends of INT8 and INT32",
}
"""Why a row of a product is there, by the word in its file."""


def instruction(model: Model) -> Instruction:
    """A unit's formats and length, as the regimes of recorded instructions take them."""
    return Instruction("", "", 1, 1, model.k, model.a, model.b, model.output, (0, 0))


def _tie(draw: Draw, mma: Instruction, rows: int, model: Model) -> Triple:
    """c of a random binade, and a product of half of its last place; in two of three rows a crumb of either sign."""
    form, k = fields(mma.output), mma.k
    low, high = (sum(getattr(fields(f), name) for f in (mma.a, mma.b)) for name in ("emin", "emax"))
    kept = model.kept_bits
    top = draw.between(max(form.emin, low + kept + 2), max(min(form.emax - 1, high + kept), form.emin), rows)
    c = build(draw, mma.output, top) & _mask(mma.output, kept)
    a, b = (np.zeros((rows, k), CODES[f]) for f in (mma.a, mma.b))
    half = top - kept - 1
    crumb = half - draw.between(1, model.alignment_bits + 6, rows)
    for at, exponent in ((draw.between(0, k - 1, rows), half), (draw.between(0, k - 1, rows), crumb)):
        x, y = operands._products(draw, mma, exponent)
        x, y = operands._power(x, mma.a), operands._power(y, mma.b)
        some = np.arange(rows) % 3 > 0 if exponent is crumb else np.ones(rows, bool)
        a[np.arange(rows)[some], at[some]], b[np.arange(rows)[some], at[some]] = x[some], y[some]
    return a, b, c


def _mask(fmt: str, kept: int) -> Any:
    """What clears the fraction bits of a format below those that a result keeps."""
    form = fields(fmt)
    dropped = form.fraction_bits - kept
    return np.array(((1 << form.bits) - 1) & ~((1 << dropped) - 1), CODES[fmt])


def _guard(draw: Draw, mma: Instruction, rows: int, model: Model) -> Triple:
    """One term of an exponent, and up to three whose bits lie g places below it, g from -2 to 6 beyond alignment."""
    k, place = mma.k, np.arange(rows)
    a, b = (np.zeros((rows, k), CODES[f]) for f in (mma.a, mma.b))
    form = fields(mma.output)
    low, high = (sum(getattr(fields(f), name) for f in (mma.a, mma.b)) for name in ("emin", "emax"))
    top = draw.between(max(low, form.emin) // 2, min(high, form.emax - 6) // 2, rows)
    gap = (place // 2) % (model.alignment_bits + 8) - 2
    with_c = draw.coins(rows)
    for n in range(4):
        exponent = top if n == 0 else top - gap - draw.between(0, 1, rows)
        x, y = operands._products(draw, mma, exponent)
        if n == 0:
            x, y = operands._power(x, mma.a), operands._power(y, mma.b)
        at = (place + n * draw.between(1, max(1, k // 4), rows)) % k
        some = ~with_c if n == 0 else (place % 4 >= n - 1)
        a[place[some], at[some]], b[place[some], at[some]] = x[some], y[some]
    c = build(draw, mma.output, top)
    c = np.where(with_c, operands._power(c, mma.output), c & np.array(form.sign_mask, c.dtype))
    return a, b, c.astype(CODES[mma.output])


def _floor(draw: Draw, mma: Instruction, rows: int, model: Model) -> Triple:
    """All terms next to the floor, or to the least exponent of the output; half of the rows have one crumb below."""
    form, k, place = fields(mma.output), mma.k, np.arange(rows)
    last = form.emin - form.fraction_bits
    a, b = (np.zeros((rows, k), CODES[f]) for f in (mma.a, mma.b))
    main = np.where(place % 2 == 0, last - (place // 2) % 3, (model.floor or last) + draw.between(-3, 3, rows))
    below = main - draw.between(0, 3 if model.floor is None else model.alignment_bits + 3, rows)
    for n, exponent in enumerate((main, below, below - draw.between(0, 4, rows))):
        x, y = operands._products(draw, mma, exponent)
        if n < 2:
            x, y = operands._power(x, mma.a), operands._power(y, mma.b)
        some = (place // 3) % 3 >= n
        at = draw.between(0, k - 1, rows)
        a[place[some], at[some]], b[place[some], at[some]] = x[some], y[some]
    c = build(draw, mma.output, main + draw.between(-2, 2, rows))
    c[place % 3 > 0] &= np.array(form.sign_mask, c.dtype)
    alone = place % 7 == 6  # c beside zeros, of any exponent
    a[alone] &= np.array(fields(mma.a).sign_mask, a.dtype)
    c[alone] = build(draw, mma.output, draw.between(form.emin - form.fraction_bits, form.emax, rows))[alone]
    return a, b, c


def _listed(sums: Callable[[int], list[operands.Sum]]) -> Callable[..., Triple]:
    """Published sums, as far as the formats have the operands, over and over."""

    def listed(draw: Draw, mma: Instruction, rows: int, model: Model) -> Triple:
        found = [row for row in (operands._row(mma, *one) for one in sums(mma.k)) if row is not None]
        if not found:
            return operands.random(draw, mma, rows)
        parts = (np.array(x) for x in zip(*found, strict=True))
        first = draw.between(0, len(found) - 1, 1)
        at = (np.arange(rows) * 7 + first) % len(found)  # some of each kind
        a, b, c = (x[at].astype(CODES[f]) for x, f in zip(parts, (mma.a, mma.b, mma.output), strict=True))
        return a, b, c

    return listed


def _from_below(draw: Draw, mma: Instruction, rows: int, model: Model) -> Triple:
    """Negative products below the smallest result, of one instruction, and c = -0 or as small."""
    form, place = fields(mma.output), np.arange(rows)
    target = form.emin - draw.between(0, form.fraction_bits + 6, rows)
    a, b = operands._products(draw, mma, np.repeat(target[:, None], mma.k, 1))
    a |= np.array(fields(mma.a).sign_mask, a.dtype)
    b &= np.array(fields(mma.b).sign_mask - 1, b.dtype)
    a[place % 3 == 2, 1:] &= np.array(fields(mma.a).sign_mask, a.dtype)
    c = np.where(place % 4 < 3, form.sign_mask, form.sign_mask | 1).astype(CODES[mma.output])
    return a, b, c


def _order(draw: Draw, mma: Instruction, rows: int, model: Model) -> Triple:
    """M and -M at two places, of which one may be c's, and terms between 1 and M elsewhere."""
    k, place = mma.k, np.arange(rows)
    top = min(sum(fields(f).emax for f in (mma.a, mma.b)), fields(mma.output).emax - 3)
    low = max(sum(fields(f).emin for f in (mma.a, mma.b)), top - model.alignment_bits - 12)
    small = draw.between(low, np.maximum(low, top - 1 - (place // 2) % (top - low)), rows)
    a, b = operands._products(draw, mma, np.repeat(small[:, None], k, 1))
    one, other = draw.between(0, k - 1, rows), draw.between(0, k - 1, rows)
    x, y = operands._products(draw, mma, np.full(rows, top))
    sign = np.array(fields(mma.a).sign_mask, a.dtype)
    a[place, one], b[place, one] = x, y
    a[place, other], b[place, other] = np.where(one == other, x, x ^ sign), y
    c = build(draw, mma.output, small + draw.between(-2, 2, rows))
    c[::2] = 0
    return a, b, c


def _chained(regime: Callable[..., Triple]) -> Callable[..., Triple]:
    """A regime over the products of a chain."""

    def chained(draw: Draw, mma: Instruction, rows: int, model: Model) -> Triple:
        long = Instruction("", "", 1, 1, CHAIN * mma.k, mma.a, mma.b, mma.output, (0, 0))
        return regime(draw, long, rows, model)

    return chained


def _as_is(regime: Callable[..., Triple]) -> Callable[..., Triple]:
    """A regime of recorded instructions, which asks nothing of the model."""
    return lambda draw, mma, rows, model: regime(draw, mma, rows)


Regime = tuple[str, Callable[..., Triple]]
FLOATS: tuple[Regime, ...] = (
    ("random", _as_is(operands.random)), ("tie", _tie), ("guard", _guard), ("cancel", _as_is(operands.cancel)),
    ("floor", _floor), ("subnormal", _as_is(operands.subnormal)), ("overflow", _as_is(operands.large)),
    ("far_c", _as_is(operands.far_c)), ("special", _as_is(operands.special)), ("zeros", _as_is(operands.zeros)),
    ("order", _order), ("bits", _as_is(operands.bits)), ("order", _chained(_order)), ("chain", _as_is(operands.chain)),
    ("chain", _chained(_guard)), ("floor", _as_is(operands.tiny)), ("zeros", _chained(_as_is(operands.zeros))),
    ("probe", _listed(operands.probe_sums)), ("floor", _listed(operands.floor_sums)), ("zeros", _from_below),
)  # fmt: skip
DOUBLES = tuple(one for one in FLOATS if one[0] in ("random", "cancel", "far_c", "special", "zeros", "bits", "chain"))
INTEGERS: tuple[Regime, ...] = (
    ("random", _as_is(operands.integers)), ("ends", _as_is(operands.integer_ends)),
    ("chain", _as_is(operands.integer_chain)), ("ends", _chained(_as_is(operands.integer_ends))),
)  # fmt: skip


def draw_rows(model: Model, count: int, seed: int) -> tuple[Drawn, Array, list[str]]:
    """At least ``count`` rows of a unit's operands, of every regime as many: codes, lengths, reasons.

    Rows are as long as the longest; of a shorter one the first products are its own, the others +0.
    """
    mma, widest = instruction(model), CHAIN * model.k
    regimes = INTEGERS if model.a == "int8" else DOUBLES if model.alignment_bits == 0 and model.a == "fp64" else FLOATS
    each, parts, lengths, reasons = -(-count // len(regimes)), [], [], []
    with np.errstate(all="ignore"):
        for number, (reason, make) in enumerate(regimes):
            a, b, c = make(Draw(seed * 1000 + number), mma, each, model)
            lengths += [a.shape[1]] * each
            reasons += [reason] * each
            wide = [np.pad(x, ((0, 0), (0, widest - x.shape[1]))) for x in (a, b)]
            parts.append((*wide, c))
    together = [np.concatenate(x) for x in zip(*parts, strict=True)]
    turn = np.argsort(
        np.tile(np.arange(each), len(regimes)), kind="stable"
    )  # of each regime one, then the next of each
    a, b, c = (x[turn] for x in together)
    if "tf32" in (model.a, model.b):
        a, b = (x & np.array(~np.uint32(0x1FFF), x.dtype) for x in (a, b))
    found = {"a": _cut(a, model.a), "b": _cut(b, model.b), "c": c}
    if model.kind == "tensix":  # where NaNs are numbers, those that values have when they come here
        for name, fmt, code in (*((n, f, fields(f).nan_code) for n, f in zip("ab", (model.a, model.b), strict=True)),
                                ("c", model.output, fields(model.output).sign_mask - 1)):  # fmt: skip
            found[name][(found[name] & np.array(fields(fmt).sign_mask - 1)) > (fields(fmt).inf_code or 0)] = code
    said = [reasons[i] for i in turn]
    if model.scale:
        found |= _scaled(found, np.array([reason == "floor" for reason in said]), model, Draw(seed * 1000 + 999))
    own = np.array(lengths)[turn]
    for name in found.keys() - {"c"}:
        size = model.scale[1] if model.scale and name.startswith("scale") else 1
        found[name][np.arange(found[name].shape[1]) >= -(-own[:, None] // size)] = 0
    return found, own, said


def _cut(codes: Array, fmt: str) -> Array:
    """Codes of a format narrower than its integers."""
    return codes if fmt in ("int8", "tf32") else codes & np.array((1 << formats.get(fmt).bits) - 1, codes.dtype)


def _scaled(given: Drawn, floor: Array, model: Model, draw: Draw) -> Drawn:
    """Scales for every group of a row, near 1 in one third of the rows, and c moved along with them.

    ``floor``: rows that ask about the least exponent. Their products are brought down to it, or are one, and a negative
    one below it in another group.
    """
    assert model.scale
    form, (rows, k), size = formats.get(model.scale[0]), given["a"].shape, model.scale[1]
    groups, place, bits = -(-k // size), np.arange(rows), form.fraction_bits
    bias, turn = 127 if form.name == "e8m0" else 7, place // len(FLOATS)
    span = np.array([0, 1, 4, 16, 40])[turn % 5][:, None]
    least = sum(fields(f).emin - fields(f).fraction_bits for f in (model.a, model.b))
    down = (model.floor or -133) - model.alignment_bits - least + draw.between(-12, 4, rows)
    exponent = np.where(turn % 3 < 2, 0, draw.between(-70, 60, rows))[:, None] + draw.between(-span, span, rows, groups)
    other = np.where(turn % 3 < 2, 0, draw.between(-70, 60, rows))[:, None] + draw.between(-span, span, rows, groups)
    exponent[floor], other[floor] = (down // 2)[floor, None], (down - down // 2)[floor, None]
    a, b, c = given["a"].copy(), given["b"].copy(), given["c"].copy()
    filled, _, _ = operands.random(draw, instruction(model), rows)
    a[floor, : model.k], a[floor, model.k :] = filled[floor] & ((1 << fields(model.a).bits) - 1), 0
    b[floor & (turn % 2 == 0)] = np.roll(a, 1, 1)[floor & (turn % 2 == 0)] if model.a == model.b else b[0]
    c[floor] &= np.array(fields(model.output).sign_mask, c.dtype)
    beside = floor & (turn % 5 == 3)  # of a subnormal c
    c[beside] |= draw.between(1, 9, rows)[beside].astype(c.dtype)
    alone = floor & (turn % 4 == 1)
    if model.k > size:
        one_a, one_b = (operands.encoded(f, 1.0) for f in (model.a, model.b))
        a[alone], b[alone] = 0, one_b
        a[alone, 0] = one_a
        a[alone, size] = (one_a or 0) | fields(model.a).sign_mask
        last = fields(model.output).emin - fields(model.output).fraction_bits
        exponent[alone], other[alone] = (last // 2), last - last // 2
        other[alone, 1] -= draw.between(8, model.alignment_bits + 4, rows)[alone]
    found = {"a": a, "b": b}
    for side, e in (("a", exponent), ("b", other)):
        code = np.clip((e + bias) << bits, int(form.zero) << bits, form.max_code)
        fraction = draw.between(0, (1 << bits) - 1, rows, groups) * draw.coins(rows, groups) * ~floor[:, None]
        code = np.minimum(code + fraction, form.max_code)
        special = (draw.between(0, 15, rows, groups) == 0) & ((place % 8 == 7) & ~floor)[:, None]
        ends = np.array([0, form.max_code, form.nan_code or 0, 1])
        code = np.where(special, ends[draw.between(0, 3, rows, groups)], code)
        found[f"scale_{side}"] = code.astype(np.uint8)
    moved = exponent[:, 0] + other[:, 0]
    d = fields(model.output)
    magnitude = c.astype(np.int64) & (d.sign_mask - 1)
    there = (magnitude > 0) & (magnitude <= d.max_code) & (moved != 0)
    shifted = build(draw, model.output, operands.exponent_of(c, model.output) + moved, (c & d.sign_mask) != 0)
    found["c"] = np.where(there, shifted, c)
    return found
