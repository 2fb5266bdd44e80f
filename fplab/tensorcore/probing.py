"""Inferring a matrix unit's arithmetic from its outputs alone.

A probe row holds a few powers of two. With X and -X in one block, a third term s survives their cancellation only if it
is no more than F places below X; if it sits in another block it survives anyway. From such rows come the alignment, the
partition of k into blocks, and whether c is inside the first of them; sums next to a rounding boundary show the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .. import seeds
from ..errors import LabError, integer, quotes_call
from ..formats import Format, get
from . import elimination, models, units
from .models import Model, Status

MEASURED = {"fp16", "bf16", "tf32", "e4m3", "e5m2"}
UNSEEN = ("overflow", "negative_zeros", "zero_from_below", "c_exponent")

CHECKED = 512  # random rows on which a record that was measured must give the black box's bits

Array = np.ndarray[Any, Any]
BlackBox = Callable[..., Any]


class NoBlockError(LabError):
    """A black box that is no fused block."""


@dataclass(frozen=True)
class Finding:
    """What the outputs of a black box say.

    ``model``: its arithmetic as a record. ``blocks``: the k of each block, in the order in which they are summed.
    ``c_inside``: whether c is a term of the first block. ``undecided``: fields of the record that no output of these
    formats can show; they hold the table's default. ``equals``: models of the table with the same arithmetic.
    """

    model: Model
    blocks: tuple[tuple[int, ...], ...]
    c_inside: bool
    undecided: tuple[str, ...]
    equals: tuple[str, ...]


class Bench:
    """The black box with its formats, and rows made of powers of two."""

    def __init__(self, black_box: BlackBox, a: Format, b: Format, d: Format, k: int) -> None:
        self.black_box, self.a, self.b, self.d, self.k = black_box, a, b, d, k
        self.least = a.emin - a.fraction_bits + b.emin - b.fraction_bits  # of a product's exponent
        self.normal = a.emin + b.emin  # the same with normal factors
        self.most = a.emax + b.emax
        self.smallest = d.emin - d.fraction_bits  # exponent of the least result

    def run(self, rows: list[tuple[dict[int, tuple[float, int]], float]], k: int | None = None) -> Array:
        """The results of rows {k: (significand, exponent)} with a c."""
        a, b = np.zeros((2, len(rows), k or self.k))
        c = np.array([c for _, c in rows])
        factors = cache(self.factors)  # thousands of rows have the same few products
        for n, (terms, _) in enumerate(rows):
            for k, (significand, exponent) in terms.items():
                a[n, k], b[n, k] = factors(significand, exponent)
        f = np.float32
        return np.asarray(self.black_box(a.astype(f), b.astype(f), c.astype(f)), f).astype(np.float64)

    def factors(self, significand: float, exponent: int) -> tuple[float, float]:
        """A product as two factors, the significand in the first or, if it is a square, in both."""
        root = abs(significand) ** 0.5 if abs(significand) >= 2 else 1.0
        first = min(max(exponent // 2, self.a.emin), self.a.emax)
        first = min(max(first, exponent - self.b.emax), exponent - (self.b.emin - self.b.fraction_bits))
        return float(np.ldexp(significand / root, first)), float(np.ldexp(root, exponent - first))


@quotes_call
def probe(black_box: BlackBox, inputs: models.Inputs = "fp16", output: str = "fp32", k: int = 64) -> Finding:
    """Infer the model behind ``black_box(a, b, c) -> d`` on rows: a, b (N, K), c and d (N,) of float32 values.

    ``inputs``, ``output``: the formats that it takes and gives. ``k``: the length of most rows, longer than a block;
    some rows have 32 or 64 products, whatever ``k``.

    FP16, BF16, TF32 and FP8 are measured: every field comes from rows made to show it. The products of FP6 and FP4
    span too few exponents for that, INT8, FP32 and FP64 have no alignment, and AMD's units are no fused blocks: there
    :mod:`.elimination` compares the black box with a family of records, and ``undecided`` names what those that are
    left differ in. Block-scaled inputs are called as ``black_box(a, b, c, scale_a, scale_b)``; INT8 with int8 and int32
    arrays, FP64 with float64.

    Raises LabError for a black box that is no arithmetic known here, and for a ``k`` that one block may hold.

    >>> from fplab.tensorcore import dot
    >>> found = probe(lambda a, b, c: dot(a, b, c, gpu="A100"))
    >>> found.model.length, found.model.alignment_bits, found.model.rounding
    (8, 24, 'rtz')
    """
    a, b, scale, _ = models.input_key(inputs)
    k = integer("k", k, 3, 1 << 20)
    if scale or not {a, b} <= MEASURED:
        return _eliminated(black_box, inputs, output, k)
    try:
        return _measured(Bench(black_box, get(a), get(b), get(output), k))
    except NoBlockError:  # the table may have an algorithm for these inputs that is none of fused blocks
        if all(units.of(m).measured for m in models.TABLE if models.key(m) == models.input_key(inputs)):
            raise
        return _eliminated(black_box, inputs, output, k)


def _measured(bench: Bench) -> Finding:
    """Every field of a record of fused blocks, from rows made to show it."""
    a, b, k = bench.a.name, bench.b.name, bench.k
    first, alignment = _alignment(bench)
    if len(first) == k:
        raise LabError(f"k={k}: all products share one block, which may be longer; pass more, such as k=64.")
    blocks = _partition(bench, alignment, first)
    inside = _c_inside(bench, alignment)
    kept = _kept(bench)
    rounding = _rounding(bench, kept, first)
    kind, length, of_kind = _shape(blocks, inside)
    fields, undecided = options(bench, alignment, rounding, of_kind or 64)
    model = Model(
        gpu="probed", instruction="mma", a=a, b=b, output=bench.d.name, kind=kind, length=length,
        alignment_bits=alignment, kept_bits=kept, rounding=rounding,
        k=of_kind or _instruction(bench, length),
        status=Status.OPEN, **fields,
    )  # fmt: skip
    rows = units.of(model).draw(model, k, CHECKED, np.random.Generator(seeds.stream(0)))
    if not elimination.agrees(model, rows, bench.black_box(*rows.values())):
        raise NoBlockError("these outputs are not those of the fused block that its alignment and roundings suggest.")
    equals = tuple(m.name for m in models.TABLE if _same(m, model, undecided))
    return Finding(model, blocks, inside, tuple(undecided), equals)


def options(bench: Bench, alignment: int, rounding: str, k: int) -> tuple[dict[str, Any], list[str]]:
    """A fused block's floor and answers to open questions, and which of them its outputs cannot show; k: of zeros."""
    undecided: list[str] = []
    fields: dict[str, Any] = {
        "floor": _floor(bench, alignment, rounding, undecided),
        "overflow": _overflow(bench, undecided),
        "negative_zeros": "minus" if np.signbit(_zeros(bench)) else "plus",
        "zero_from_below": _from_below(bench, k, undecided),
        "c_exponent": _c_exponent(bench, alignment, rounding, undecided),
    }
    return fields, undecided


def _eliminated(black_box: BlackBox, inputs: models.Inputs, output: str, k: int) -> Finding:
    """What is left of a family of records, as a finding."""
    left = elimination.eliminate(black_box, inputs, output, k)
    model = left[0]
    undecided = tuple(n for n in elimination.SEEN if any(getattr(m, n) != getattr(model, n) for m in left))
    one = (*elimination.SEEN, "a", "b", "output", "scale")
    equals = tuple(m.name for m in models.TABLE if any(all(getattr(m, n) == getattr(x, n) for n in one) for x in left))
    unit = units.of(model)
    per = unit.together(model)
    blocks = tuple(tuple(range(start, min(start + per, k))) for start in range(0, k, per))
    return Finding(model, blocks, True, (*undecided, *unit.unseen), equals)


def _same(m: Model, found: Model, undecided: list[str]) -> bool:
    """Whether a record of the table has the arithmetic found, as far as outputs show it."""
    names = ["a", "b", "output", "kind", "length", "alignment_bits", "kept_bits", "rounding"]
    names += [n for n in ("floor", *UNSEEN) if n not in undecided]
    return m.scale is None and all(getattr(m, n) == getattr(found, n) for n in names)


def _alignment(bench: Bench) -> tuple[tuple[int, ...], int]:
    """The first block, and F: how far below X a term survives X - X there."""
    s = max(bench.least, bench.smallest)
    if not bench.run([({2: (1.0, s)}, 0.0)])[0]:
        raise NoBlockError(f"a product of 2**{s} is lost even alone, as no fused block loses it.")
    top = min(bench.most, 100)
    spans = range(0, min(top - s, 60) + 1)
    places = range(2, bench.k)
    used = [d for d in spans if s + d >= bench.normal]
    rows = [({0: (1.0, s + d), 1: (-1.0, s + d), j: (1.0, s)}, 0.0) for j in places for d in used]
    alive = (bench.run(rows) != 0).reshape(len(places), len(used))
    inside = [j for j, row in zip(places, alive, strict=True) if not row[-1]]
    if not inside:
        raise NoBlockError(
            f"no term of {bench.a.name} * {bench.b.name} is lost beside one that is 2**{used[-1]} times larger: either "
            "there is no fused block, or these formats span too few exponents to see its alignment."
        )
    survived = {max((d for d, ok in zip(used, alive[j - 2], strict=True) if ok), default=-1) for j in inside}
    if len(survived) != 1:
        several = sorted(survived)
        raise NoBlockError(f"terms of one block are cut at different places ({several}); this is no fused block.")
    return (0, 1, *inside), survived.pop()


def _partition(bench: Bench, alignment: int, first: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """All blocks. Two neighbours among the k not yet placed share one; what is lost beside them does, too."""
    s = max(bench.least, bench.smallest, bench.normal - alignment - 1)
    blocks, left = [first], [j for j in range(bench.k) if j not in first]
    while len(left) > 1:
        p, q, rest = left[0], left[1], left[2:]
        x = s + alignment + 1
        alive = bench.run([({p: (1.0, x), q: (-1.0, x), j: (1.0, s)}, 0.0) for j in rest]) != 0 if rest else []
        blocks.append((p, q, *(j for j, ok in zip(rest, alive, strict=True) if not ok)))
        left = [j for j in left if j not in blocks[-1]]
    return (*blocks, *((j,) for j in left))


def _c_inside(bench: Bench, alignment: int) -> bool:
    """Whether c, too, is lost beside X - X."""
    s = max(bench.smallest, bench.normal - alignment - 1, bench.d.emin if bench.d.name == "fp32" else bench.smallest)
    x = s + alignment + 1
    return bool(bench.run([({0: (1.0, x), 1: (-1.0, x)}, float(np.ldexp(1.0, s)))])[0] == 0)


def _shape(blocks: units.Blocks, inside: bool) -> tuple[str, int, int | None]:
    """The algorithm that sums in these blocks, the length of one, and the k of an instruction where it says so."""
    for kind in models.KINDS:
        unit = units.named(kind)
        if unit.measured and (found := unit.recognise(blocks, inside)):
            return kind, *found
    c = "inside" if inside else "outside"
    raise NoBlockError(f"blocks {blocks} with c {c} are no arithmetic that is known here.")


def _kept(bench: Bench) -> int:
    """Fraction bits of a result: the least term that 1 + 2**-d still shows."""
    unit = max(0, bench.least + 30) if bench.least > -40 else 0
    places = [d for d in range(1, 30) if unit - d >= bench.least]
    results = bench.run([({0: (1.0, unit), 1: (1.0, unit - d)}, 0.0) for d in places])
    return max(d for d, r in zip(places, results, strict=True) if r != np.ldexp(1.0, unit))


def _rounding(bench: Bench, kept: int, block: tuple[int, ...]) -> Any:
    """How 3/4 and 1/2 of the last place above 6.125 are rounded, on both sides of zero."""
    unit = max(0, bench.least + kept + 2)
    third = block[2]
    ulp = np.ldexp(1.0, unit + 2 - kept)
    base = 6.125 * np.ldexp(1.0, unit)
    rows: list[tuple[dict[int, tuple[float, int]], float]] = []
    for sign in (1.0, -1.0):
        for crumb in ((1.5, unit + 1 - kept), (1.0, unit + 1 - kept)):
            square = {0: (sign * 3.0625, unit), 1: (sign * 3.0625, unit)}
            rows.append(({**square, third: (sign * crumb[0], crumb[1])}, 0.0))
    steps = tuple((np.abs(bench.run(rows)) - base) / ulp)
    if steps == (0, 0, 0, 0):
        return "rtz"
    if steps == (1, 0, 1, 0):
        return "rne"
    raise NoBlockError(f"results above 6.125 are rounded by {steps} units: neither toward zero nor to nearest even.")


def _floor(bench: Bench, alignment: int, rounding: str, undecided: list[str]) -> int | None:
    """The least emax: how far below a tiny sum, alone in its block, a crumb still counts."""
    nearest = rounding == "rne"
    main = bench.smallest - 1 if nearest else max(bench.smallest, bench.normal)
    if main < bench.normal or main - 1 < bench.least:
        undecided.append("floor")
        return None
    crumbs = range(main - 1, max(bench.least, main - 60) - 1, -1)
    # To nearest: a tie that a crumb lifts. Toward zero: a value that a negative crumb takes below itself.
    results = bench.run([({0: (1.0, main), 1: (1.0 if nearest else -1.0, e)}, 0.0) for e in crumbs])
    kept = [e for e, r in zip(crumbs, results, strict=True) if (r != 0 if nearest else r != np.ldexp(1.0, main))]
    lowest = min(kept, default=main)
    if lowest == crumbs[-1]:
        undecided.append("floor")
        return None
    return None if lowest + alignment <= main else lowest + alignment


def _overflow(bench: Bench, undecided: list[str]) -> Any:
    """What twice the largest power of two becomes."""
    if bench.most < bench.d.emax + 1:
        undecided.append("overflow")
        return "inf"
    return "inf" if np.isinf(bench.run([({0: (1.0, bench.d.emax + 1)}, 0.0)])[0]) else "max"


def _zeros(bench: Bench) -> float:
    """(-0) + (-0) + ... + (-0)."""
    shape = (1, 64)  # whole instructions, to which a row would be filled up with +0
    zero, one = np.full(shape, -0.0, np.float32), np.ones(shape, np.float32)
    return float(np.asarray(bench.black_box(zero, one, np.full(1, -0.0, np.float32)))[0])


def _instruction(bench: Bench, length: int) -> int:
    """The products of an instruction, to which a row is filled up with +0: only a row of whole ones can end in -0.

    That of a block, ``length``, where the black box never gives -0.
    """
    crumb = bench.factors(-1.0, bench.smallest - 2) if bench.least <= bench.smallest - 2 else (-0.0, 1.0)
    for k in range(length, 65, length):
        a, b = np.full((2, k), -0.0, np.float32), np.ones((2, k), np.float32)
        a[1, -1], b[1, -1] = crumb
        if np.signbit(np.asarray(bench.black_box(a, b, np.full(2, -0.0, np.float32)))).any():
            return k
    return length


def _from_below(bench: Bench, k: int, undecided: list[str]) -> Any:
    """The sign of -(a quarter of the smallest result) at the end of ``k`` products: later ones would add +0 to it."""
    if bench.least > bench.smallest - 2:
        undecided.append("zero_from_below")
        return "minus"
    return "minus" if np.signbit(bench.run([({k - 1: (-1.0, bench.smallest - 2)}, -0.0)], k)[0]) else "plus"


def _c_exponent(bench: Bench, alignment: int, rounding: str, undecided: list[str]) -> Any:
    """Whether a crumb beside a subnormal c and a tie is cut at c's clamped exponent."""
    crumb = bench.d.emin - alignment - 1
    if rounding != "rne" or bench.least > crumb:
        undecided.append("c_exponent")
        return "clamped"
    c = float(np.ldexp(1.0, bench.smallest))
    result = bench.run([({0: (1.0, bench.smallest - 1), 1: (-1.0, crumb)}, c)])[0]
    return "clamped" if result == 2 * c else "true"
