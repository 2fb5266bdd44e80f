"""Any matrix unit inferred from its outputs: its order, alignment, widths, roundings and flushing, with the questions.

The order of additions is revealed first, with masked ones (:mod:`fplab.reveal`). Then every other parameter of a
:class:`~.parametric.ParametricUnit` is held against its alternatives: rows are drawn until one tells each of them from
what was found, and the unit answers those rows alone. An alternative that no row tells apart is reported, as a second
unit that agrees on everything asked. What is no such scheme is looked for in the table (:mod:`.elimination`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import seeds
from ..errors import LabError, integer, quotes_call
from ..floats import quantize
from ..formats import Format, get
from ..reveal import SumTree, revealed
from ..words import Text, joined, say, verbatim
from . import elimination, limits, models, units
from .box import BlackBox, Box, shown
from .models import Model
from .open_fields import Bench, instruction_length, options
from .parametric import ORDERS, ROUNDERS, ParametricUnit
from .products import dot

Array = np.ndarray[Any, Any]
Rows = tuple[Array, Array, Array]
TABLE_ONLY = {"e3m2", "e2m3", "e2m1", "int8", "fp64"}  # no alignment, or too few exponents to show one
APART = 33  # places from M to the ones that are counted together
FAR = 45  # places from where no sum of ones comes near M
DRAWN = 256  # rows of the first question
SEARCHED = 400  # rows drawn at a time to tell two units apart
PATIENCE = 4  # such draws without a row, after which two are called the same
EXPANDED = 80  # schemes whose neighbours are tried
ROUNDS = 8  # of rows of every term
PLACED = 8  # rows of every term that are put to each place of a matrix, of two lengths
CHECKED = {"rows": 512, "matrices": 48, "vectors": 48}  # rows of many terms, of two lengths, for the record, by form
KEPT = 48  # of those that it has wrong, for the next search
FLUSHES = ("flush_inputs", "flush_products", "flush_results")
ALIGNMENTS = (None, *range(4, 46))
PLAIN = {"alignment_bits": None, "normalised": False, "alignment": "rtz", "products": "exact"} | dict.fromkeys(
    FLUSHES, False
)
ALIGNING = ("rtz", "rtn", "rne")
PRODUCTS = ("exact", "rounded")
FLAGS = (False, True)
COUPLED = (
    ("alignment_bits", "alignment"),
    ("products", "normalised"),
    ("accumulator", "store", "flush_products"),
    FLUSHES,
)
SCHEMES = {"block", "widened", "fma", "pairwise"}  # the table's algorithms that are schemes
WIDTHS = {"groups": 1, "halves": 16}  # of the orders that have but one


class UnknownArithmeticError(LabError):
    """A product that no scheme and no record of the table explains."""


@dataclass(frozen=True)
class Evidence:
    """A question whose answer proves a field: ``a``, ``b`` (K,) and ``c`` gave ``d``, and ``refuted`` would not."""

    field: str
    refuted: tuple[Any, ...]
    a: Array
    b: Array
    c: float
    d: float

    def __str__(self) -> str:
        return f"{shown(self.a, self.b, self.c)} = {self.d!r}"


@dataclass(frozen=True)
class Undecided:
    """A field that the outputs leave open: ``others``, with ``values`` there, agree on everything asked."""

    field: str
    values: tuple[Any, ...]
    others: tuple[ParametricUnit | Model, ...]


@dataclass(frozen=True)
class Inference:
    """What a unit computes, so far as its outputs tell.

    ``unit``: the record, of the table's kind (:class:`Model`) where it is one, else a :class:`ParametricUnit`.
    ``scheme``: the parameters, None where a record of the table has another algorithm. ``equals``: the table's models
    that agree. ``evidence``, ``open``: what proves each field, and what nothing does. ``calls``, ``rows``: what was
    asked of f. ``places``: of an f that takes matrices, (16, 16) bool, which elements of a result of that size this is
    the arithmetic of: the first, and those that gave the same wherever a row was put to all; None of other forms.
    """

    unit: ParametricUnit | Model
    scheme: ParametricUnit | None
    equals: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    open: tuple[Undecided, ...]
    calls: int
    rows: int
    places: Array | None = None

    def dot(self, a: Any, b: Any, c: Any = None) -> Any:
        """What the unit gives for rows ``a``, ``b`` (N, K) and ``c`` (N,)."""
        return self.unit.dot(a, b, c) if isinstance(self.unit, ParametricUnit) else dot(a, b, c, gpu=self.unit)

    @property
    def report(self) -> Text:
        """What was found in words, with the question that proves each field."""
        lines: list[Text] = [say("{calls:,} calls of f, {rows:,} sums.", calls=self.calls, rows=self.rows)]
        if self.places is not None and not self.places.all():
            lines.append(
                say("The place in a matrix decides: this is the arithmetic of {n} of the {all} elements of a result, "
                    "the first among them; the others are computed otherwise.",
                    n=int(self.places.sum()), all=self.places.size)
            )  # fmt: skip
        if self.equals:
            lines.append(say("It computes as {models} of the table.", models=", ".join(self.equals)))
        if isinstance(self.unit, Model):
            length = units.of(self.unit).together(self.unit)
            lines.append(say("Algorithm: {kind}, {length} products at once.", kind=self.unit.kind, length=length))
        for name in MEANING if self.scheme else ():
            proofs = [e for e in self.evidence if e.field == name]
            if not proofs and name != "order":
                continue
            lines.append(joined([MEANING[name], verbatim(": "), verbatim(_value(self.scheme, name))]))
            lines += [say("  {question}; with {values} it would differ", question=str(e),
                          values=_several(e.refuted)) for e in proofs[:2]]  # fmt: skip
        for left in self.open:
            lines.append(say("Open: {field}; {values} would give the same for everything asked.",
                             field=MEANING.get(left.field, left.field), values=_several(left.values)))  # fmt: skip
        return joined(lines, verbatim("\n"))

    def __str__(self) -> str:
        return str(self.report)


MEANING: dict[str, Text] = {
    "order": say("order of the additions"),
    "alignment_bits": say("bits after alignment to the largest term"),
    "alignment": say("rounding of terms in alignment"),
    "normalised": say("products normalised before alignment"),
    "products": say("products"),
    "accumulator": say("format whose range the sums have"),
    "kept_bits": say("fraction bits of a sum"),
    "rounding": say("rounding of a step's sum"),
    "joins": say("rounding where two sums meet"),
    "store": say("rounding of the result"),
    "flush_inputs": say("subnormal operands taken for zeros"),
    "flush_products": say("subnormal products taken for zeros"),
    "flush_results": say("subnormal sums taken for zeros"),
}


def _several(values: Sequence[Any]) -> str:
    """Values in a line, numbers that follow one another as a range."""
    numbers = sorted(v for v in values if isinstance(v, int) and not isinstance(v, bool))
    runs = [list(run) for _, run in itertools.groupby(numbers, key=lambda v: v - numbers.index(v))]
    texts = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join([*texts, *(str(v) for v in values if v not in numbers)])


def _value(scheme: ParametricUnit | None, name: str) -> str:
    assert scheme is not None
    if name != "order":
        return str(getattr(scheme, name))
    if isinstance(scheme.order, SumTree):
        return str(scheme.order)
    parts = f" {scheme.parts}" if scheme.parts else ""
    backwards = ", k descending" if scheme.reverse else ""
    return f"{scheme.order}{parts}, {scheme.length} products a step{backwards}, c {scheme.c}"


@quotes_call
def infer(f: BlackBox, inputs: models.Inputs = "fp16", output: str = "fp32", k: int = 64) -> Inference:
    """What any product computes, from its outputs: ``f(a, b, c) -> d`` or ``f(a, b) -> d``.

    ``f`` takes rows a, b (N, K) and c (N,), or matrices (M, K), (K, N) and (M, N), or vectors and a number: float32
    arrays whose values are of the formats ``inputs`` and, for c and d, ``output``. ``k``: products of most questions;
    others have half as many again. The answer computes, too (:meth:`Inference.dot`), and prints what was found, with
    questions that prove it; what no question shows is in ``open``. Order and widths are those of the sizes asked:
    libraries may take others elsewhere, and some do within one matrix (:attr:`Inference.places`).

    Measured here (``make prove``): each of the table's 133 classes is named. Of 200 units drawn by their seeds 28 come
    back with nothing open; 172 have fields open, each with a second unit that agrees on everything asked, and differ
    from what is found in no other field. All 200 compute the same as what is found on 600 further rows.

    Raises LabError for what is no product, gives NaN, changes from call to call, or computes as nothing known here.

    >>> from fplab.tensorcore import dot
    >>> found = infer(lambda a, b, c: dot(a, b, c, gpu="V100"))
    >>> found.scheme.length, found.scheme.alignment_bits, found.scheme.rounding, found.equals
    (4, 23, 'rtz', ('V100 mma.k4 fp16->fp32',))
    """
    k = integer("k", k, 8, 4096)
    a, b, scale, _ = models.input_key(inputs)
    if scale or {a, b} & TABLE_ONLY:
        return of_table(f, inputs, output, k)
    search = Search(f, a, b, output, k)
    try:
        scheme = search.found()
    except UnknownArithmeticError as error:
        if search.blocks(None):
            return search.answer(None)
        try:
            return of_table(search.box.f, inputs, output, k, search)
        except LabError:
            raise error from None
    return search.answer(scheme)


class Search:
    """Finding the scheme of a black box."""

    def __init__(
        self, f: BlackBox, a: str, b: str, output: str, k: int, roundings: Sequence[str] = tuple(ROUNDERS)
    ) -> None:
        self.a, self.b, self.d, self.k, self.roundings = get(a), get(b), get(output), k, tuple(roundings)
        self.box = Box(f, k)
        self.rng = np.random.Generator(seeds.stream(0))
        self.low = self.a.emin + self.b.emin  # exponents of products of normal factors
        self.least = self.low - self.a.fraction_bits - self.b.fraction_bits
        self.high = min(self.a.emax + self.b.emax, self.d.emax - 3, 60)
        self.data: Rows = (np.zeros((0, k)), np.zeros((0, k)), np.zeros(0))
        self.answers = np.zeros(0)
        if self.box.form == "matrices":
            drawing = np.random.Generator(seeds.stream(1))
            for length in (k, k + k // 2):
                self.box.place(*self.fill(PLACED, length, drawing))

    def found(self) -> ParametricUnit:
        """The scheme whose results are those of everything asked; LabError where there is none."""
        self.ask(self.factored([0.0]))  # a first question, twice
        self.trees = [self.tree(k) for k in (self.k, self.k + self.k // 2)]
        self.live = _live(self.trees[0], self.k)
        self.ask(self.draw(DRAWN))
        self.box.ask_again()
        for m in self.table():
            if m.kind not in SCHEMES and self.agrees(m):
                raise UnknownArithmeticError(f"its outputs are those of {m.name}, which is no sum of such steps.")
        try:
            scheme = self.separated(self.fit(*self.starts()))
        except UnknownArithmeticError:
            self.ask(self.draw(DRAWN))  # other rows lead elsewhere
            scheme = self.separated(self.fit(*self.starts()))
        for _ in range(ROUNDS):
            if not self.surprising(scheme):
                return scheme
            scheme = self.separated(self.fit(scheme, *self.starts()))
        raise UnknownArithmeticError(f"rows of few terms are those of {scheme}, and rows of many are not.")

    # --- the order --------------------------------------------------------------------------------------------------

    def tree(self, k: int) -> SumTree:
        """The order of k products and c, its last term where f takes one."""
        n = k + self.box.with_c

        def sums(x: Array, y: Array) -> Array:
            return self.box.ask(x[:, :k], y[:, :k], (x * y)[:, k] if self.box.with_c else np.zeros(len(x)))

        refused = None
        top = min(self.a.emax + self.b.emax, self.d.emax if self.d.emax < 100 else 100)
        for single, low, sign in itertools.product((False, True), self.units(top), (1, -1)):
            if top - low < APART and not single:
                continue  # sums of ones would not be lost beside M, though each one is
            big, unit = (_halved(e, self.a, self.b) for e in (top, low))
            try:
                factors = [(big[0], sign * unit[0]), (big[1], unit[1])]
                far = top - low >= FAR
                return revealed(sums, n, factors, np.float32, single=single, near=not far, among=self.listed(k))
            except LabError as error:
                refused = refused or error
        raise UnknownArithmeticError(f"no order of its additions can be seen: {refused}")

    def units(self, top: int) -> Iterator[int]:
        """Exponents for what is lost beside 2**top: as small as can be, and the least that needs no subnormal."""
        least = max(self.least, self.d.emin - self.d.fraction_bits, top - 100)
        yield from dict.fromkeys((least, max(self.low, self.d.emin, top - 100)))

    def orders(self) -> Iterator[dict[str, Any]]:
        """The orders of the list that have these trees; if none has, the tree of the first k alone."""
        nodes = self.trees[0].nodes
        wide = max((sum(i < self.k for i in node) for node in nodes), default=1)
        seen = set()
        for unit in self.candidates(sorted({1, wide})):
            same = unit.order in ("pairwise", "groups") and unit.length, unit.reverse
            if same not in seen and all(unit.tree(k) == tree for k, tree in self._sizes()):
                seen.add(same)
                yield {name: getattr(unit, name) for name in ("order", "length", "parts", "reverse", "c")}
        if not seen:
            yield {"order": self.trees[0], "length": wide, "c": "first" if self.box.with_c else "none"}

    def candidates(self, lengths: Sequence[int]) -> Iterator[ParametricUnit]:
        """Every order of the list with so many products at once."""
        c_places = ("first", "last") if self.box.with_c else ("none",)
        counts: dict[str, Sequence[int]] = dict.fromkeys(("split", "interleaved"), range(2, 17))
        counts |= {"promoted": range(2, self.k + self.k // 2), "groups": (2, 4, 8, 16, 32)}
        for name, length, reverse, c in itertools.product(ORDERS, lengths, (False, True), c_places):
            for parts in counts.get(name, (0,)):
                if (name == "promoted" and parts % length) or length != min(WIDTHS.get(name, length), max(lengths)):
                    continue
                order: dict[str, Any] = {"order": name, "length": length, "parts": parts, "reverse": reverse, "c": c}
                yield ParametricUnit(self.a.name, self.b.name, self.d.name, **order)

    def listed(self, k: int) -> Iterator[SumTree]:
        """The trees of all orders of the list that sum several products at once."""
        return (unit.tree(k) for unit in self.candidates(range(2, 17)))

    def _sizes(self) -> Iterator[tuple[int, SumTree]]:
        yield from zip((self.k, self.k + self.k // 2), self.trees, strict=True)

    # --- questions --------------------------------------------------------------------------------------------------

    def factored(self, exponents: Sequence[float]) -> Rows:
        """Rows with one product each, the first, of these exponents."""
        a, b = np.zeros((2, len(exponents), self.k))
        for n, e in enumerate(exponents):
            a[n, 0], b[n, 0] = _halved(int(e), self.a, self.b)
        return a, b, np.zeros(len(exponents))

    def draw(self, count: int) -> Rows:
        """Rows with few terms, of the kinds on which units differ: cancelling, next to a last place, tiny."""
        rng, m = self.rng, len(self.live)
        kind = rng.integers(0, 4, (count, 1))
        small = np.where(rng.random((count, 1)) < 0.5, self.low, max(self.least, self.d.emin))
        top = np.where(kind == 3, small + rng.integers(-12, 26, (count, 1)),
                       rng.integers(max(self.low, -60), self.high + 1, (count, 1)))  # fmt: skip
        wide = rng.integers(0, 52, (count, 1))
        near = rng.integers(-1, 2, (count, m))
        gaps = np.stack([np.zeros((count, m), int), wide + near, rng.integers(0, 4, (count, m)),
                         rng.integers(8, 30, (count, m))])  # fmt: skip
        gap = np.take_along_axis(gaps, rng.integers(0, 4, (1, count, m)), 0)[0]
        pair = np.argsort(rng.random((count, m)), axis=1)[:, :2]
        gap = np.where(kind == 0, gaps[1], gap)
        np.put_along_axis(gap, pair, np.where(kind == 0, 0, np.take_along_axis(gap, pair, 1)), 1)
        e = np.clip(top - gap, self.least, self.high)
        tiny = rng.integers(self.a.emin - self.a.fraction_bits, self.a.emin + 2, (count, m))
        tiny = np.where(rng.random((count, m)) < 0.5, tiny, e - tiny)  # a subnormal factor, in A or in B
        first = np.where((kind == 3) & (rng.random((count, 1)) < 0.5), tiny, e // 2 + rng.integers(-3, 4, (count, m)))
        x, first = self._factors(self.a, first)
        y, _ = self._factors(self.b, e - first)
        x *= rng.choice([-1, 1], (count, m)) * (rng.random((count, m)) < rng.choice([0.15, 0.3, 0.6, 1.0], (count, 1)))
        rows = np.flatnonzero(kind[:, 0] < 2)
        source, target = pair[rows].T
        x[rows, target], y[rows, target] = -x[rows, source], y[rows, source]
        x, y = (np.asarray(quantize(v, f), np.float64) for v, f in ((x, self.a), (y, self.b)))
        a, b = np.zeros((2, count, self.k))
        columns = np.array([i for i in self.live if i < self.k])
        a[:, columns], b[:, columns] = x[:, : len(columns)], y[:, : len(columns)]
        c = np.zeros(count)
        if self.box.with_c:
            with np.errstate(all="ignore"):
                c = np.asarray(quantize(x[:, -1] * y[:, -1], self.d), np.float64)
            c[~np.isfinite(c)] = 0
        return a, b, c

    def fill(self, count: int, k: int, rng: np.random.Generator | None = None) -> Rows:
        """Rows of nothing but terms, or with zeros among them, whose exponents lie together or apart."""
        rng, shape = rng or self.rng, (count, k)
        spread = rng.choice([0, 0, 4, 12], (count, 1)) * (rng.random((count, 1)) < 0.8)
        apart = [np.floor(rng.random(shape) * (spread + 1)) for _ in "ab"]
        a, b = (np.asarray(quantize(rng.standard_normal(shape) * np.exp2(-e), f), np.float64)
                for e, f in zip(apart, (self.a, self.b), strict=True))  # fmt: skip
        a[(rng.random(shape) < 0.3) & (rng.random((count, 1)) < 0.5)] = 0
        c = np.asarray(quantize(rng.standard_normal(count) * rng.choice([0, 1, 1, 30], count), self.d), np.float64)
        return a, b, c * self.box.with_c

    def _factors(self, form: Format, exponents: Array) -> tuple[Array, Array]:
        """Numbers of a format of about these exponents, and theirs: mostly short ones, some with a last place."""
        rng, last, shape = self.rng, 2.0**-form.fraction_bits, exponents.shape
        short = rng.choice([1, 1, 1, 1.5, 1.25, 1.75, 1 + last, 2 - last], shape)
        long = 1 + rng.integers(0, 1 << form.fraction_bits, shape) * last
        digits = np.where(rng.random(shape) < rng.choice([0.3, 1.0], (shape[0], 1)), short, long)
        exponents = np.clip(exponents, form.emin - form.fraction_bits, form.emax - 1)
        return np.ldexp(digits, exponents), exponents

    def ask(self, rows: Rows) -> None:
        """Put rows to the box and keep the answers."""
        self.keep(rows, self.box.ask(*rows))

    def keep(self, rows: Rows, answers: Array) -> None:
        """Rows that were asked, and their answers, are what schemes must explain."""
        a, b, c = (np.concatenate([x, y]) for x, y in zip(self.data, rows, strict=True))
        self.data = a, b, c
        self.answers = np.concatenate([self.answers, answers])

    # --- the parameters ---------------------------------------------------------------------------------------------

    def score(self, scheme: ParametricUnit) -> float:
        """How far a scheme's results are from the answers; 0 where none is wrong."""
        return float(_distance(scheme.compute(*self.data), self.answers))

    def wrong(self, scheme: ParametricUnit) -> Array:
        """Which of the rows asked a scheme computes otherwise."""
        return np.asarray(scheme.compute(*self.data) != self.answers)

    def scores(self, scheme: ParametricUnit, name: str, values: Sequence[Any]) -> dict[ParametricUnit, float]:
        """How far the rows are from the answers with each of some values of a field."""
        changed = {value: self.changed(scheme, name, value) for value in values}
        numbers = [value for value in values if value is not None and name in ("alignment_bits", "kept_bits")]
        scores = {other: _distance(other.compute(*self.data), self.answers).item()
                 for value, other in changed.items() if value not in numbers}  # fmt: skip
        if numbers:
            results = changed[numbers[0]].compute(*self.data, **{name: np.array(numbers)[:, None]})
            distances = _distance(results, self.answers).tolist()
            scores |= {changed[value]: far for value, far in zip(numbers, distances, strict=True)}
        return scores

    def changed(self, scheme: ParametricUnit, name: str, value: Any) -> ParametricUnit:
        """A scheme with another value of a field; a narrower accumulator keeps fewer bits."""
        more = {"kept_bits": min(scheme.kept_bits, get(value).fraction_bits)} if name == "accumulator" else {}
        return scheme.changed(**{name: value, **more})

    def starts(self) -> list[ParametricUnit]:
        """Schemes to begin with: for each order and range the best alignments and roundings."""
        ranges = [("fp16", 10), ("fp32", 23)] if self.d.name == "fp16" else [("fp32", 23)]
        schemes = []
        scores: dict[ParametricUnit, float]
        for order, (accumulator, kept) in itertools.product(self.orders(), ranges):
            stores = ("rne", "rtz") if self.d.name not in ("fp32", accumulator) else ("rne",)
            for products, normalised in (("exact", False), ("exact", True), ("rounded", False)):
                scores = {}
                for rounding, store in itertools.product(self.roundings, stores):
                    scheme = ParametricUnit(
                        self.a.name, self.b.name, self.d.name, accumulator=accumulator, kept_bits=kept,
                        rounding=rounding, alignment_bits=24, products=products, normalised=normalised,
                        store=store, **order,
                    )  # fmt: skip
                    scores |= self.scores(scheme, "alignment_bits", ALIGNMENTS)
                schemes.append(min(scores, key=scores.__getitem__))
        return schemes

    def domain(self, scheme: ParametricUnit) -> dict[str, Sequence[Any]]:
        """The values that the fields of a scheme may take, of those that mean anything in it."""
        tree = self.trees[0]
        steps = [any(i < self.k for i in node) for node in tree.nodes]
        names = self.roundings
        domain: dict[str, Sequence[Any]] = {"alignment_bits": ALIGNMENTS}
        if scheme.alignment_bits is not None:
            domain["alignment"] = ALIGNING
            if scheme.products == "exact":
                domain["normalised"] = FLAGS
        domain |= {"kept_bits": range(2, get(scheme.accumulator).fraction_bits + 1), "rounding": names}
        if not all(steps):
            domain["joins"] = names
        if self.d.name not in ("fp32", scheme.accumulator):
            domain["store"] = names
        if self.d.name == "fp16":
            domain["accumulator"] = ("fp16", "fp32")
        return domain | {"products": PRODUCTS} | dict.fromkeys(FLUSHES, FLAGS)

    def near(self, scheme: ParametricUnit, names: Sequence[str] = ()) -> Iterator[tuple[str, Any, ParametricUnit]]:
        """Schemes with another value of one field."""
        for name, values in self.domain(scheme).items():
            for value in values:
                if value != getattr(scheme, name) and (not names or name in names):
                    yield name, value, self.changed(scheme, name, value)

    def fit(self, *starts: ParametricUnit) -> list[ParametricUnit]:
        """Schemes that explain every row asked; at least one."""
        groups: dict[Any, list[ParametricUnit]] = {}
        for start in starts:
            kind = start.order, start.length, start.reverse, start.accumulator, start.products, start.normalised
            groups.setdefault(kind, []).append(start)
        scored: dict[ParametricUnit, float] = {}
        for group in groups.values():
            scored |= self.searched(group, EXPANDED if not scored or min(scored.values()) else EXPANDED // 8)
        if right := [scheme for scheme, score in scored.items() if not score]:
            return right
        scheme = min(scored, key=lambda s: scored[s])
        at = int(np.flatnonzero(self.wrong(scheme))[0])
        a, b, c = (x[at] for x in self.data)
        raise UnknownArithmeticError(
            f"no arithmetic that is known here gives these outputs: the nearest, {scheme}, is wrong in "
            f"{int(self.wrong(scheme).sum())} of {len(self.answers)} rows; f gives {shown(a, b, c)} = "
            f"{float(self.answers[at])!r}."
        )

    def searched(self, starts: Sequence[ParametricUnit], most: int) -> dict[ParametricUnit, float]:
        """Best-first search over the values of one field at a time: what was tried, and how far off it is."""
        scored = {start: self.score(start) for start in starts}
        waiting = [(score, n, start) for n, (start, score) in enumerate(scored.items())]
        heapq.heapify(waiting)
        for _ in range(most):
            if not waiting or not min(scored.values()):
                break
            scheme = heapq.heappop(waiting)[2]
            for base, name, values in self.moves(scheme):
                for other, score in self.scores(base, name, values).items():
                    if other not in scored:
                        scored[other] = score
                        heapq.heappush(waiting, (score, len(scored), other))
        return scored

    def moves(self, scheme: ParametricUnit) -> Iterator[tuple[ParametricUnit, str, Sequence[Any]]]:
        """Fields to vary, of a scheme and of some that have another value of a field that goes along with it."""
        domain = self.domain(scheme)
        for name, values in domain.items():
            if name != "accumulator":
                yield scheme, name, [v for v in values if v != getattr(scheme, name)]
        for joins in domain.get("joins", ()):
            if joins != scheme.joins:
                yield scheme.changed(joins=joins), "rounding", domain["rounding"]
        if scheme.products == "rounded" and scheme.alignment_bits is not None:
            yield scheme.changed(products="exact", normalised=True), "rounding", domain["rounding"]

    def right_near(self, scheme: ParametricUnit) -> list[ParametricUnit]:
        """Schemes with another value of one field, or of some that stand in for one another, that are right, too."""
        domain = self.domain(scheme)
        scored: dict[ParametricUnit, float] = {}
        for name, values in domain.items():
            scored |= self.scores(scheme, name, [v for v in values if v != getattr(scheme, name)])
        uncut = [scheme.changed(alignment_bits=None, rounding=rounding) for rounding in domain["rounding"]]
        scored |= {other: self.score(other) for other in uncut}
        for names in COUPLED:
            if scheme.alignment_bits is None or not set(names) <= {*domain, "normalised"}:
                continue
            first, *rest = names
            for values in itertools.product(*(domain.get(name, FLAGS) for name in rest)):
                other = scheme.changed(**dict(zip(rest, values, strict=True)))
                scored |= self.scores(other, first, domain[first])
        return [other for other, score in scored.items() if not score and other != scheme]

    def alike_to(self, scheme: ParametricUnit) -> list[ParametricUnit]:
        """Schemes that explain every row asked, too: with another value of a field, and from there of one more."""

        def kind(other: ParametricUnit) -> tuple[str, ...]:
            return tuple(name for name in vars(scheme) if getattr(other, name) != getattr(scheme, name))

        near = self.right_near(scheme)
        by_kind = {kind(other): other for other in near}
        for other in [*by_kind.values()]:
            for third in self.right_near(other):
                by_kind.setdefault(kind(third), third)
        by_kind.pop((), None)
        return [*dict.fromkeys([*near, *by_kind.values()])]

    def separated(self, starts: Sequence[ParametricUnit]) -> ParametricUnit:
        """The scheme after every question that tells it from another one, or from one with another value of a field."""
        (scheme, *rivals), misses = starts, 0
        others = [*rivals, *self.alike_to(scheme)]
        while misses < PATIENCE:
            rows = self.fill(SEARCHED // 2, self.k) if misses % 2 else self.draw(SEARCHED)
            want = scheme.compute(*rows)
            terms = (rows[0] != 0).sum(axis=1) + (rows[2] != 0)
            telling = []
            for other in others:
                differ = np.flatnonzero(other.compute(*rows) != want)
                telling += [differ[np.argmin(terms[differ])]] if differ.size else []
            misses += not telling
            if not telling:
                continue
            chosen = np.unique(telling)
            self.ask((rows[0][chosen], rows[1][chosen], rows[2][chosen]))
            if self.wrong(scheme).any():
                (scheme, *rivals), misses = self.fit(*others, scheme), 0
                others = [*rivals, *self.alike_to(scheme)]
            else:
                others = [other for other in others if not self.wrong(other).any()]
        self.alike = others
        for name, value in PLAIN.items():
            if (plain := self.changed(scheme, name, value)) in others:
                return self.separated([plain])
        return scheme

    def surprising(self, scheme: ParametricUnit) -> bool:
        """Whether rows of the order or of many terms have other results than the record's; such rows join the rest."""
        for a, b, c, d in self.box.asked:
            if a.shape[1] == self.k and (wrong := np.flatnonzero(scheme.dot(a, b, c) != d)[:KEPT]).size:
                self.keep((a[wrong], b[wrong], c[wrong]), d[wrong])
                return True
        for k in [self.k] if isinstance(scheme.order, SumTree) else [self.k, self.k + self.k // 2]:
            a, b, c = self.fill(CHECKED[self.box.form], k)
            d = self.box.ask(a, b, c)
            wrong = np.flatnonzero(scheme.dot(a, b, c) != d)[:KEPT]
            if wrong.size:
                if k == self.k:
                    self.keep((a[wrong], b[wrong], c[wrong]), d[wrong])
                return True
        return False

    # --- the answer -------------------------------------------------------------------------------------------------

    def evidence(self, scheme: ParametricUnit) -> Iterator[Evidence]:
        """For every field the row of the fewest terms that refutes its nearest values."""
        a, b, c = self.data
        terms = (a != 0).sum(axis=1) + (c != 0)
        for name, values in self.domain(scheme).items():
            value = getattr(scheme, name)
            rows_by_field: dict[int, list[Any]] = {}
            listed = list(values)
            near = listed if len(listed) < 6 else listed[max(0, listed.index(value) - 1) : listed.index(value) + 2]
            for _, other, changed in self.near(scheme, [name]):
                if other in near and (wrong := np.flatnonzero(self.wrong(changed))).size:
                    at = int(wrong[np.argmin(terms[wrong])])
                    rows_by_field.setdefault(at, []).append(other)
            for at, refuted in rows_by_field.items():
                yield Evidence(name, tuple(refuted), a[at], b[at], float(c[at]), float(self.answers[at]))

    def table(self) -> list[Model]:
        """The table's models of these formats."""
        return [
            m for m in models.TABLE if (m.a, m.b, m.output, m.scale) == (self.a.name, self.b.name, self.d.name, None)
        ]

    def blocks(self, scheme: ParametricUnit | None) -> list[Model]:
        """Records of fused blocks that agree on everything asked: the table's, or one like them, as the scheme says."""
        known = [m for m in self.table() if m.kind in ("block", "widened")]
        if not self.box.with_c or (agreeing := [m for m in known if self.agrees(m)]):
            return agreeing if self.box.with_c else []
        if scheme is not None:
            return [m for m in self.as_block(scheme) if self.agrees(m)]
        others = [m.with_options(c_exponent="true") for m in known]  # a floor, too, is seen in no scheme
        family = elimination.family((self.a.name, self.b.name, None, ""), self.d.name)
        return [m for m in (*others, *family) if m.kind in ("block", "widened") and self.agrees(m)]

    def as_block(self, scheme: ParametricUnit) -> Iterator[Model]:
        """A scheme as a record of fused blocks, where it is one."""
        kind = {"chain": "block", "halves": "widened"}.get(str(scheme.order))
        if kind is None or scheme.alignment_bits is None or scheme.reverse or scheme.c != "first":
            return
        with contextlib.suppress(LabError):  # a field with which no fused block computes
            yield Model(
                "inferred", "mma", scheme.a, scheme.b, scheme.output, kind, scheme.length, scheme.alignment_bits,
                scheme.kept_bits, scheme.rounding, None, scheme.length * (1 + (kind == "widened")), models.Status.OPEN,
            )  # fmt: skip

    def answer(self, scheme: ParametricUnit | None) -> Inference:
        """The record, with a model of the table where one agrees on everything asked."""
        opened = [*self.open_in(scheme)] if scheme else []
        unit: ParametricUnit | Model | None = scheme
        named: list[Model] = []
        if blocks := self.blocks(scheme):
            bench = Bench(self.box.ask_any, self.a, self.b, self.d, self.k)
            m = blocks[0]
            fields, undecided = options(bench, m.alignment_bits, m.rounding, m.k if m.kind == "widened" else 64)
            if m.gpu == "inferred" and m.kind == "block":
                fields["k"] = instruction_length(bench, m.length)
            unit = dataclasses.replace(m, gpu="inferred", status=models.Status.OPEN, **fields)
            opened += _open_options(unit, undecided, self.agrees)
            table = self.table()
            named = [m for m in blocks if m in table and all(getattr(m, n) == v for n, v in fields.items()
                                                             if n not in undecided)]  # fmt: skip
        elif same := [m for m in self.table() if self.agrees(m)]:
            left = self.zeros(same)
            unit = (
                left[0] if left[0] in same else dataclasses.replace(left[0], gpu="inferred", status=models.Status.OPEN)
            )
            named = [m for m in same if m in left]
            others = [m for m in left if m.flushed_zero != left[0].flushed_zero]
            opened += [Undecided("flushed_zero", (m.flushed_zero,), (m,)) for m in others[:1]]
        assert unit is not None
        return Inference(
            unit=named[0] if named else unit, scheme=scheme, equals=tuple(m.name for m in named),
            evidence=tuple(self.evidence(scheme)) if scheme else (), open=tuple(opened), calls=self.box.calls,
            rows=self.box.rows, places=self.box.places if self.box.form == "matrices" else None,
        )  # fmt: skip

    def zeros(self, same: list[Model]) -> list[Model]:
        """Of records that flush, those that leave a c of -0, or not, as the black box does; others as they are."""
        both = [m.with_options(flushed_zero=v) for m in same for v in limits.allowed(m).get("flushed_zero", ())]
        if not (both and self.box.with_c):
            return both or same
        rows = units.of(same[0]).draw(same[0], self.k, elimination.COUNT, np.random.Generator(seeds.stream(0)))
        d = self.box.ask_any(*rows.values()).astype(np.float32)
        return [m for m in both if elimination.agrees(m, rows, d)] or same

    def open_in(self, scheme: ParametricUnit) -> Iterator[Undecided]:
        """The fields of a scheme in which others that agree on everything asked differ."""
        agrees = functools.cache(self.agrees)
        for name in [f.name for f in dataclasses.fields(ParametricUnit)]:
            others: dict[Any, ParametricUnit] = {}
            for other in self.alike:
                value = getattr(other, name)
                if value != getattr(scheme, name) and value not in others and agrees(other):
                    others[value] = other
            if others:
                yield Undecided(name, tuple(others), tuple(others.values()))

    def agrees(self, unit: ParametricUnit | Model) -> bool:
        """Whether a unit gives the answers to everything asked."""
        for a, b, c, d in self.box.asked:
            z = c if self.box.with_c else None
            if isinstance(unit, ParametricUnit) and isinstance(unit.order, SumTree) and a.shape[1] != self.k:
                continue  # an order of one k alone
            with np.errstate(all="ignore"):
                result = unit.dot(a, b, z) if isinstance(unit, ParametricUnit) else dot(a, b, z, gpu=unit)
            if not np.array_equal(result, d, equal_nan=True):
                return False
        return True


def _distance(results: Array, answers: Array) -> Array:
    """The sum over rows of the bits that an error is above the last places."""
    with np.errstate(all="ignore"):
        far = np.abs(results - answers) / (np.abs(answers) * 2.0**-30 + 2.0**-170)
        far = np.where(results == answers, 0, np.minimum(np.log2(1 + far), 64))
    return np.asarray(np.where(np.isnan(far), 64, far).sum(axis=-1))


def _live(tree: SumTree, k: int) -> list[int]:
    """Terms through which every kind of node is seen: some of the first step, of the next, and of the end; c."""
    steps = [[i for i in node if i < k] for node in tree.nodes]
    steps = [step for step in steps if step]
    widest = max(steps, key=len)
    chosen = dict.fromkeys([*steps[0][:4], *widest[:4], *steps[1 % len(steps)][:2], *steps[-1][-1:]])
    return [*sorted(chosen), *([k] if tree.size > k else [])]


def _halved(e: int, a: Any, b: Any) -> tuple[float, float]:
    """2**e as two factors, normal numbers where there are such."""
    first = min(max(e // 2, a.emin, e - b.emax), a.emax)
    first = max(min(first, e - b.emin), a.emin - a.fraction_bits)
    return 2.0**first, 2.0 ** (e - first)


def _with(model: Model, name: str, value: Any) -> Model:
    return dataclasses.replace(model, **{name: value})


def _open_options(model: Model, names: Sequence[str], agrees: Callable[[Model], bool]) -> Iterator[Undecided]:
    """Of these fields of a record those that may be otherwise, with records that agree on everything asked."""
    allowed = limits.allowed(model)
    for name in names:
        values: Sequence[Any] = allowed.get(name, ())  # a new algorithm has what its record needs
        values = (-200, -190) if name == "floor" and len(values) > 1 else values
        others = [_with(model, name, v) for v in values if v != getattr(model, name)]
        if alike := tuple(other for other in others if agrees(other)):
            yield Undecided(name, tuple(getattr(other, name) for other in alike), alike)


def of_table(f: BlackBox, inputs: models.Inputs, output: str, k: int, search: Search | None = None) -> Inference:
    """What is left of the table's records and those like them; ``search``: what was asked before."""
    asked: list[tuple[units.Rows, Any]] = []

    def black_box(*rows: Array) -> Any:
        d = search.box.ask_any(*rows).astype(np.float32) if search else f(*rows)
        asked.append((dict(zip(("a", "b", "c", "scale_a", "scale_b"), rows, strict=False)), d))
        return d

    def agrees(m: Model) -> bool:
        return all(elimination.agrees(m, rows, d) for rows, d in asked)

    left = [m for m in elimination.eliminate(black_box, inputs, output, k) if search is None or search.agrees(m)]
    if not left:
        raise UnknownArithmeticError("no record of the table computes all that was asked before.")
    model = left[0]
    opened = []
    for name in elimination.SEEN:
        others = tuple(m for m in left if getattr(m, name) != getattr(model, name))
        if others:
            opened.append(Undecided(name, tuple(dict.fromkeys(getattr(m, name) for m in others)), others))
    opened += _open_options(model, ["floor", *(n for n in models.OPTIONS if n not in elimination.SEEN)], agrees)
    fields = (*elimination.SEEN, "a", "b", "output", "scale")
    equals = tuple(
        m.name for m in models.TABLE if any(all(getattr(m, n) == getattr(x, n) for n in fields) for x in left)
    )
    calls, rows = (search.box.calls, search.box.rows) if search else (len(asked), sum(len(d) for _, d in asked))
    return Inference(model, None, equals, (), tuple(opened), calls, rows)
