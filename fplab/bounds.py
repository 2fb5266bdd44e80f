"""How far a product or a sum can be off: worst case, with high probability, and what it is, side by side.

For a product of given data and plan on a GPU's matrix unit (:func:`dot`, :func:`matmul`), for a sum in a format with a
rounding (:func:`sums`), and for a shape alone (:func:`gamma`). Three bounds on ``|computed - exact|``, elementwise:

* **worst** is proved. Each step of a unit is followed with the magnitudes of its operands: what truncation below the
  block's largest exponent takes from every term, what the rounding of its sum takes, and how these enter the next step;
  slices of k, accumulators and promotions as the plan says. Signs are not looked at. It is infinite where a partial sum
  might overflow.
* **gamma** is proved from the shape alone, for operands and sums in the normal range, which zero is not in (CDNA3
  aligns by the exponent of a zero's partner, FP4 by the scales of a group of zeros): times ``|c| + sum |a b|``, or by
  Cauchy and Schwarz times ``|c|`` + the product of the 2-norms of a and b. In a chain of n roundings to nearest it is
  that of one more, (1 + u)^(n+1) - 1, or smaller: below Higham's gamma_n+1, where gamma_n = n u / (1 - n u) (Higham
  2002, doi 10.1137/1.9780898718027).
* **probable** rests on an assumption, that each rounding error has mean zero whatever the ones before it were
  (mean-independence); one that truncates is expected to take half of its most. Then n errors add up to lambda sqrt(n) u
  at most, with lambda = sqrt(2 ln(2 n / rate)), in all but a share ``rate`` of the cases, by Azuma and Hoeffding at
  each of n steps (Higham and Mary 2019, doi 10.1137/18M1226312). Stochastic rounding makes the assumption a theorem
  (Connolly, Higham and Mary 2021, doi 10.1137/20M1334796); with r random bits its mean is off by 2**-r of a step, which
  adds up (El Arar et al. 2024, arXiv 2408.03069). Rounding to nearest does not: data can be chosen that break it.

>>> import numpy as np
>>> row = np.full(4096, 0.1)
>>> found = dot(row, row, gpu="H100")
>>> bool(found.measured <= found.worst), f"{found.gamma:.1e}"
(True, '1.6e-04')
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from . import formats, numeric
from .arrays import values
from .columns import folded, padded, width_of
from .errors import LabError, integer, quotes_call, unknown
from .formats import Format, FormatLike, FormatName, Rounding
from .lazily import index
from .roundings import rounding as rounding_named
from .tensorcore import Model, Plan, accumulators, models, products, units
from .tensorcore.operands import read
from .tensorcore.plan import ONE_CHAIN, AnyPlan
from .tensorcore.units import Known, Rounded, nearest
from .words import Text, say

__all__ = ["Bounds", "Gamma", "dot", "gamma", "matmul", "sums"]

index(__name__)

Array = np.ndarray[Any, Any]
ORDERS = ("sequential", "pairwise", "blocked")
SAFE = 1 + 2.0**-40  # for what float64 rounds in computing a bound
WORDS = 32  # random bits of the lab's stochastic rounding


class Gamma(NamedTuple):
    """Bounds of a shape, as factors of ``|c| + sum |a b|``: the worst case, and with the probability asked for."""

    worst: float
    probable: float


@dataclass(frozen=True)
class Bounds:
    """Errors of some results and their bounds, float64 of the results' shape; all but ``gamma`` are absolute.

    ``measured``: |computed - exact|, the exact value being that of the operands as they enter the unit. ``worst``,
    ``probable``, ``gamma``: see :mod:`fplab.bounds`; ``probable`` is exceeded in a share ``rate`` of the cases at most,
    if ``assumption`` holds. ``magnitude``: |c| + sum |a b|. ``condition``: magnitude / |exact|, by how much relative
    errors of the operands grow at most.
    """

    what: Text
    k: int
    worst: Array
    probable: Array
    measured: Array
    magnitude: Array
    condition: Array
    gamma: float
    rate: float
    assumption: Text

    @property
    def used(self) -> float:
        """The largest share of its worst-case bound that a measured error is; an infinite bound has none."""
        bounded = (self.worst > 0) & np.isfinite(self.worst)
        share = np.divide(self.measured, self.worst, out=np.zeros_like(self.worst), where=bounded)
        return float(np.max(share, initial=0.0))

    @property
    def exceeded(self) -> float:
        """The share of the results whose error is above the probable bound."""
        return float(np.mean(self.measured > self.probable)) if self.measured.size else 0.0

    def __str__(self) -> str:
        rows = [
            (say("measured error"), self._relative(self.measured)),
            (say("probable bound (all but {rate:.2%})", rate=self.rate), self._relative(self.probable)),
            (say("worst case, these magnitudes (proved)"), self._relative(self.worst)),
            (say("worst case, this shape (proved)"), np.full(1, self.gamma)),
            (say("condition number"), self.condition.ravel()),
        ]
        head = say("relative to |c| + sum |a b|")
        width = max(width_of(str(text)) for text in (head, *(text for text, _ in rows)))
        lines = [str(say("{what}: {n:,} results, K = {k:,}", what=self.what, n=self.measured.size, k=self.k))]
        lines.append(f"{padded(str(head), width)}  {say('median')!s:>9}  {say('largest')!s:>9}")
        for text, column in rows:
            least, most = (float(f(column)) if column.size else 0.0 for f in (np.median, np.max))
            lines.append(f"{padded(str(text), width)}  {least:9.2e}  {most:9.2e}")
        used = say("of the worst case {share:.1%} is used; above the probable bound: {over:.2%}; {assumption}")
        lines.append(str(used.fill(share=self.used, over=self.exceeded, assumption=self.assumption)))
        return "\n".join(folded(lines))

    def _relative(self, x: Array) -> Array:
        usual = (self.magnitude > 0) & np.isfinite(self.magnitude)
        return np.divide(x, self.magnitude, out=np.where(self.magnitude > 0, x, 0.0), where=usual).ravel()


NEAREST = say("assumed: errors to nearest have mean zero whatever came before; truncation takes half of its most")
STOCHASTIC = say("stochastic rounding: mean zero whatever came before, as a theorem; its mean with {bits} random bits "
                 "is off by 2^-{bits} of a step")  # fmt: skip


# --- what is known of partial sums ---------------------------------------------------------------------------------


Rule = Callable[[Array], Iterable[Rounded]]


@dataclass(frozen=True)
class Partial:
    """A partial sum as its bounds know it, float64 (N,).

    ``most``: the sum of magnitudes so far; ``worst``: how far it is off at most; ``drift``: how far its mean is;
    ``square``: the sum of the squares of what the errors vary by, and ``reach``, lambda, times its root how far they
    go; ``largest``: beyond it sums overflow. ``shape``: whether magnitudes stand for all that there are, 1, in which
    partial sums share in an unknown way.
    """

    most: Array
    worst: Array
    drift: Array
    square: Array
    largest: float
    reach: float
    shape: bool = False

    @property
    def likely(self) -> Array:
        """What the error does not exceed with the probability asked for, never above the worst case."""
        return np.minimum(self.worst, self.drift + self.reach * np.sqrt(self.square))

    def rounded(self, rule: Rule, products: Array | float = 0.0, lost: Array | float = 0.0) -> "Partial":
        """After roundings that depend on how large the sum held can be; the terms that came in, and those that did not.

        What is likely follows the likely sizes: up to the first step that exceeds them nothing has, and of all steps
        none does with the probability asked for.
        """
        worst, drift, square = self.worst + lost, self.drift + lost, self.square
        for step in rule(self.most + self.worst):
            worst = worst + step.times * step.most
        for step in rule(self.most + self.likely):
            half = step.most / 2 if step.directed else step.most
            square = square + step.times * half**2
            drift = drift + (step.times * half if step.directed else 0.0)
        most = self.most + products
        worst = np.where(most + worst <= self.largest, worst, np.inf)
        return replace(self, most=most, worst=worst, drift=drift, square=square)

    def plus(self, other: "Partial", rule: Rule) -> "Partial":
        """The sum of two, rounded."""
        join: Callable[..., Array] = np.maximum if self.shape else np.add
        names = ("most", "worst", "drift", "square")
        both: dict[str, Any] = {name: join(getattr(self, name), getattr(other, name)) for name in names}
        return replace(self, **both).rounded(rule)


def _start(c: Array, largest: float, steps: int, rate: float, shape: bool = False) -> Partial:
    """A first term, which is exact. ``steps``: how many will be taken, at most."""
    zero = np.zeros(c.shape)
    return Partial(c, zero, zero, zero, largest, math.sqrt(2 * math.log(2 * max(1, steps) / rate)), shape)


def _to(*fmts: Format) -> Rule:
    """One rounding to nearest, or one more for each further format."""
    return lambda magnitude: [nearest(magnitude * (1 + 2.0**-8 * n), fmt) for n, fmt in enumerate(fmts)]


# --- matrix units ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operands:
    """Rows of magnitudes a, b (N, K) and c (N,), float64, and each element's scales, or None."""

    a: Array
    b: Array
    c: Array
    scales: tuple[Array, Array] | None = None
    shape: bool = field(default=False)

    def of(self, k: Array) -> "Operands":
        """Those of some places of k, beyond the end zeros."""
        inside = k[k < self.a.shape[1]]  # ascending
        together = inside.size and inside[-1] - inside[0] + 1 == inside.size
        chosen: Any = slice(inside[0], inside[-1] + 1) if together else inside

        def taken(x: Array) -> Array:
            if inside.size == k.size:
                return np.asarray(x[:, chosen])
            padded = np.zeros((len(x), k.size))
            padded[:, : inside.size] = x[:, chosen]
            return padded

        scales = self.scales and (taken(self.scales[0]), taken(self.scales[1]))
        return replace(self, a=taken(self.a), b=taken(self.b), scales=scales)


def _chain(model: Model, x: Operands, partial: Partial) -> Partial:
    """A chain of steps over all of k of ``x``, onto a partial sum."""
    unit = units.of(model)
    width = unit.width(model)
    count = x.a.shape[1] // width
    if x.shape:  # all products together, then at every step the most that a partial sum can be
        unit_sum, none, length = np.ones(1), np.zeros(1), np.full(1, float(width))
        partial = partial.rounded(lambda entering: unit.roundings(model, Known(unit_sum, length, unit_sum, none)))
        for _ in range(count):
            partial = partial.rounded(lambda entering: unit.roundings(model, Known(none, length, none, entering)))
        return partial
    for start in range(0, x.a.shape[1], width):
        s = slice(start, start + width)
        scales = x.scales and (x.scales[0][:, s], x.scales[1][:, s])
        known = unit.known(model, x.a[:, s], x.b[:, s], scales)
        rule = functools.partial(_step, unit, model, known)
        partial = partial.rounded(rule, known.products, known.lost)
    return partial


def _step(unit: units.Unit, model: Model, known: Known, entering: Array) -> Iterable[Rounded]:
    return unit.roundings(model, known._replace(entering=entering))


def _walk(model: Model, x: Operands, plan: Plan, rate: float, tile: int = 0, tiles: int = 1) -> Partial:
    """What a plan does to rows."""
    largest = 2.0**31 - 1 if model.output == "int32" else model.result.max
    fp32, k = formats.get("fp32"), x.a.shape[1]
    count = 2 * -(-k // units.of(model).width(model)) + 1
    empty = _start(np.ones(1) if x.shape else np.zeros(len(x.a)), largest, count, rate, x.shape)
    added = {"fp32": ("fp32",), "fp16": ("fp32", "fp16"), "fp64": ("fp64",)}.get(model.output, ())
    whole = _to(*map(formats.get, added))
    period = plan.period(model.k)
    steps = plan.steps(-(-k // model.k), model.k, tile, tiles)
    longest = max((instructions for chains in steps for instructions in chains), key=len)

    def chain(instructions: Array, entering: Partial) -> Partial:
        if not period:
            return _chain(model, x.of(_places(instructions, model.k)), entering)
        for start in range(0, instructions.size, period):
            places = _places(instructions[start : start + period], model.k)
            entering = entering.plus(_chain(model, x.of(places), empty), _to(fp32))
        return entering

    sums: list[Partial] = []
    for chains in steps:
        parts: list[Partial] = []
        for instructions in chains:
            entering = empty if sums or parts or x.shape else replace(empty, most=x.c)
            parts.append(chain(longest if x.shape else instructions, entering))
        sums.append(functools.reduce(lambda p, q: p.plus(q, whole), parts))
    return plan.reduced(sums, lambda p, q: p.plus(q, whole))


def _places(instructions: Array, k: int) -> Array:
    return (instructions[:, None] * k + np.arange(k)).reshape(-1)


@functools.lru_cache(maxsize=64)
def _of_shape(
    k: int, model: Model, plan: Plan, rate: float, tile: int = 0, tiles: int = 1, store: Format | None = None
) -> Gamma:
    """A product of K terms of which only the sum of magnitudes is known, as 1."""
    if k == 0 or units.of(model).order_free(model):
        partial = _start(np.ones(1), math.inf, 1, rate, True)
    else:
        x = Operands(np.zeros((1, k)), np.zeros((1, k)), np.zeros(1), shape=True)
        partial = _walk(model, x, plan, rate, tile, tiles)
    if store is not None:
        partial = partial.rounded(_to(store))
    return Gamma(float(partial.worst[0] * SAFE), float(partial.likely[0] * SAFE))


@quotes_call
def gamma(
    k: int, gpu: str | Model = "H100", inputs: models.Inputs = "fp16", output: FormatName | None = "fp32",
    instruction: str | None = None, *, plan: Plan | None = None, rate: float = 0.01,
) -> Gamma:  # fmt: skip
    """Bounds of any product of K normal terms on a unit, relative to ``|c| + sum |a b|``, without under- or overflow.

    ``plan``: the order of k; of stream-K, which needs more than K, :func:`matmul` says it. ``rate``: how often the
    probable bound may fail.

    >>> gamma(4096, "H100").worst < gamma(4096, "A100", output="fp16").worst
    True
    """
    model, plan = models.get(gpu, inputs, output, instruction), plan or ONE_CHAIN
    k, rate = integer("k", k, 0, 1 << 24), _share(rate)
    if plan.promote is not None and not units.of(model).promotes:
        raise LabError(f"promote={plan.promote} is for FP16, BF16, TF32 and FP8; {models.input_name(model)} has none.")
    if plan.stream_k is not None:
        raise LabError(f"stream_k={plan.stream_k} cuts k by the shape of the result, too; ask bounds.matmul.")
    return _of_shape(k, model, plan, rate)


@quotes_call
def dot(
    a: Any, b: Any, c: Any = None, gpu: str | Model = "H100", inputs: models.Inputs = "fp16",
    output: FormatName | None = "fp32", store: FormatLike | None = None, instruction: str | None = None, *,
    scale_a: Any = None, scale_b: Any = None, conversion: str | None = None, rate: float = 0.01,
) -> Bounds:  # fmt: skip
    """Errors and bounds of :func:`fplab.tensorcore.dot`, whose arguments it takes: rows a, b (N, K) or (K,), c (N,).

    ``rate``: in which share of the cases the probable bound may fail. Raises LabError for operands that are not finite.
    """
    how: dict[str, Any] = {"scale_a": scale_a, "scale_b": scale_b}
    model = models.get(gpu, inputs, output, instruction)
    x, y = (read(v, n, f, conversion, False) for v, n, f in ((a, "a", model.a), (b, "b", model.b)))
    computed = np.asarray(products.dot(x, y, c, model, store=store, **how))
    rows = [np.atleast_2d(part).astype(np.float64) for part in (x, y)]
    added = _read_c(c, model, rows[0].shape[:1])
    scales = _expanded([None if s is None else np.atleast_2d(s) for s in how.values()], rows, model)
    bounds = _compare(model, rows, added, scales, np.atleast_1d(computed), store, ONE_CHAIN, _share(rate))
    return bounds if computed.ndim else _first(bounds)


@quotes_call
def matmul(
    a: Any, b: Any, c: Any = None, gpu: str | Model = "H100", inputs: models.Inputs = "fp16",
    output: FormatName | None = "fp32", store: FormatLike | None = None, instruction: str | None = None, *,
    plan: AnyPlan | None = None, scale_a: Any = None, scale_b: Any = None, conversion: str | None = None,
    rate: float = 0.01,
) -> Bounds:  # fmt: skip
    """Errors and bounds of :func:`fplab.tensorcore.matmul` by a plan: a (M, K), b (K, N), c in the accumulator.

    It takes time in proportion to M N K. Raises LabError for operands that are not finite.
    """
    model = models.get(gpu, inputs, output, instruction)
    x, y = (read(v, n, f, conversion, False) for v, n, f in ((a, "a", model.a), (b, "b", model.b)))
    if x.ndim != 2 or y.ndim != 2:
        raise LabError(f"a has shape {x.shape} and b {y.shape}; matrices (M, K) and (K, N) are needed.")
    plan = (plan or ONE_CHAIN).of(len(x))
    if plan.c == "epilogue":
        raise LabError("plan.c='epilogue' is not followed here; allowed: 'accumulator', None.")
    if plan.activation is not None:
        raise LabError(f"plan.activation={plan.activation!r} is not followed here; allowed: None.")
    how: dict[str, Any] = {"scale_a": scale_a, "scale_b": scale_b, "plan": plan}
    computed = products.matmul(x, y, c, model, store=store, **how)
    (m, n), added = computed.shape, _read_c(c, model, computed.shape)
    sides = [None if s is None else np.asarray(s) for s in (scale_a, scale_b)]
    sides = [sides[0], None if sides[1] is None else sides[1].T]
    arrays = {name: np.zeros((m, n)) for name in ARRAYS}
    largest = 0.0
    for rows, columns, tile, tiles in plan.regions(m, n):
        for i in range(m)[rows]:
            right = y.T[columns].astype(np.float64)
            left = np.broadcast_to(x[i].astype(np.float64), right.shape)
            some = [None if sides[0] is None else np.broadcast_to(sides[0][i], (len(right), sides[0].shape[1])),
                    None if sides[1] is None else sides[1][columns]]  # fmt: skip
            scales = _expanded(some, [left, right], model)
            bounds = _compare(model, [left, right], added[i, columns], scales, computed[i, columns], store, plan,
                           _share(rate), tile, tiles)  # fmt: skip
            for name in ARRAYS:
                arrays[name][i, columns] = getattr(bounds, name)
            largest = max(largest, bounds.gamma)
    return Bounds(_named(model), x.shape[1], gamma=largest, rate=_share(rate), assumption=NEAREST, **arrays)


ARRAYS = ("worst", "probable", "measured", "magnitude", "condition")


def _first(bounds: Bounds) -> Bounds:
    return replace(bounds, **{name: getattr(bounds, name)[0] for name in ARRAYS})


def _share(rate: float) -> float:
    if not 0 < rate < 1:
        raise LabError(f"rate={rate!r} is not possible; allowed: above 0 and below 1.")
    return float(rate)


def _symmetric(name: str, fmt: FormatLike) -> Format:
    """A format to round to: of one without signs or zero nothing here is true."""
    form = formats.get(fmt)
    if not (form.signed and form.zero):
        raise LabError(f"{name}={form.name!r} has no bounds; allowed: formats with negative numbers and a zero.")
    return form


def _read_c(c: Any, model: Model, shape: tuple[int, ...]) -> Array:
    """C as it enters, float64."""
    accumulator = accumulators.of(model)
    return np.asarray(accumulator.values(accumulator.read(c, model, shape, False)), np.float64)


def _expanded(scales: list[Any], rows: list[Array], model: Model) -> tuple[Array, Array] | None:
    """The scale of every element, magnitudes; None where there are none."""
    if model.scale is None:
        return None
    length, shape = model.scale[1], rows[0].shape
    left, two = (
        np.ones(shape) if s is None else np.repeat(np.abs(np.asarray(s, np.float64)), length, axis=1)[:, : shape[1]]
        for s in scales
    )
    return left, two


def _named(model: Model) -> Text:
    return say("{unit} (emulated)", unit=model.name)


@np.errstate(over="ignore")  # FP64's own: the bound is infinite then
def _compare(
    model: Model, rows: list[Array], c: Array, scales: tuple[Array, Array] | None, computed: Array,
    store: FormatLike | None, plan: Plan, rate: float, tile: int = 0, tiles: int = 1,
) -> Bounds:  # fmt: skip
    """Rows (N, K) with their bounds and errors."""
    parts = {"a": rows[0], "b": rows[1], "c": c} | dict(zip(("scale_a", "scale_b"), scales or (), strict=False))
    for name, part in parts.items():
        if not np.isfinite(part).all():
            raise LabError(f"{name} holds {part[~np.isfinite(part)][0]}; a bound needs finite operands.")
    k = rows[0].shape[1]
    x = Operands(np.abs(rows[0]), np.abs(rows[1]), np.abs(c), scales)
    partial = _walk(model, x, plan, rate, tile, tiles) if k else _start(x.c, math.inf, 1, rate)
    stored = None if store is None else _symmetric("store", store)
    if stored is not None:
        partial = replace(partial, largest=stored.max).rounded(_to(stored))
    worst = partial.worst * SAFE
    a, b = rows if scales is None else (rows[0] * scales[0], rows[1] * scales[1])
    error, exact = off(a, b, c, np.asarray(computed, np.float64))
    shape_alone = _of_shape(k, model, plan, rate, tile, tiles, stored).worst
    return Bounds(_named(model), k, worst, partial.likely * SAFE,
                  error, partial.most, _condition(partial.most, exact), shape_alone, rate, NEAREST)  # fmt: skip


def _condition(magnitude: Array, exact: Array) -> Array:
    """Magnitude over |exact|; 1 where both are 0, NaN where both are beyond FP64."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(magnitude == 0, 1.0, magnitude / np.abs(exact)))


# --- exact errors ----------------------------------------------------------------------------------------------------


def off(a: Array, b: Array, c: Array, computed: Array) -> tuple[Array, Array]:
    """|computed - exact| and the exact sums ``a . b + c`` of rows (N, K), float64: each exact, and then rounded once.

    What was computed is one more term of the exact sum, so that nothing cancels; infinite where it is not finite.
    """
    finite = np.isfinite(computed)
    last = np.where(finite, computed, 0.0)
    column = np.ones((len(a), 1))
    left, right = np.hstack([a, c[:, None], last[:, None]]), np.hstack([b, column, -column])
    narrow = [np.asarray(part, np.float32) for part in (left, right)]
    add = _whole
    if all(np.array_equal(*pair) for pair in zip(narrow, (left, right), strict=True)):
        add, (left, right) = _kulisch, narrow
    error: Array = np.abs(add(left, right))
    return np.where(finite, error, np.inf), add(left[:, :-1], right[:, :-1])


def _kulisch(x: Array, y: Array) -> Array:
    """Rows of float32 numbers."""
    total = numeric.dot(x, y, "fp32", accumulate="exact", store="fp64")
    return np.asarray(total, np.float64)


def _whole(x: Array, y: Array) -> Array:
    """Rows of any float64 numbers, one after the other: products in two parts, summed exactly by fsum."""
    low, high = 2.0**-480, 2.0**500

    def safe(v: Array) -> Array:
        return np.asarray(((np.abs(v) < high) & (np.abs(v) > low)) | (v == 0))

    with np.errstate(over="ignore", invalid="ignore"):
        product, rest = _product(x, y)
    usual = np.all(safe(x) & safe(y), axis=1)
    return np.array([
        math.fsum([*p, *r]) if fine else _fractions(v, w)
        for fine, p, r, v, w in zip(usual, product, rest, x.tolist(), y.tolist(), strict=True)
    ])  # fmt: skip


def _fractions(x: list[float], y: list[float]) -> float:
    total = sum((Fraction(a) * Fraction(b) for a, b in zip(x, y, strict=True)), Fraction(0))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _product(x: Array, y: Array) -> tuple[Array, Array]:
    """Products of float64 numbers and what these leave out, exact where nothing over- or underflows (Dekker)."""
    product = x * y
    (xh, xl), (yh, yl) = _halves(x), _halves(y)
    return product, ((xh * yh - product) + xh * yl + xl * yh) + xl * yl


def _halves(x: Array) -> tuple[Array, Array]:
    """A float64 number as two of 26 bits (Veltkamp)."""
    large = x * (2.0**27 + 1)
    high = large - (large - x)
    return high, x - high


# --- formats ---------------------------------------------------------------------------------------------------------


@quotes_call
@np.errstate(over="ignore", invalid="ignore")  # of FP64 numbers: the bound is infinite then
def sums(
    x: Any, y: Any = None, fmt: FormatLike = "fp16", accumulate: FormatLike = "fp32", order: str = "sequential",
    rounding: str | Rounding = "rne", *, block: int = 128, seed: int | None = None, random_bits: int = WORDS,
    rate: float = 0.01,
) -> Bounds:  # fmt: skip
    """Errors and bounds of sums of rows x (N, K) or (K,) of a format, or of products with y, in an accumulator.

    As :func:`fplab.sum` and :func:`fplab.dot` (products exact) compute them, in the orders "sequential", "pairwise" (of
    sums) and "blocked". ``random_bits``: of stochastic rounding, 1 to 32: an addition is cut so many places below the
    accumulator's last and then rounded by them, in a sequential order.
    """
    source, acc, mode = formats.get(fmt), _symmetric("accumulate", accumulate), rounding_named(rounding)
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    if y is not None and order == "pairwise":
        raise LabError("order='pairwise' rounds each product first; allowed for products: sequential, blocked.")
    bits, rate = integer("random_bits", random_bits, 1, WORDS), _share(rate)
    if bits < WORDS and (not mode.random or order != "sequential"):
        raise LabError(f"random_bits={bits} is for rounding='stochastic' and order='sequential'.")
    if WORDS > bits > 52 - acc.fraction_bits:
        most = 52 - acc.fraction_bits
        raise LabError(f"random_bits={bits} is not possible with accumulate={acc.name!r}; allowed: 1 to {most}, 32.")
    operands = [values(v, name) for v, name in ((x, "x"), (y, "y")) if name == "x" or v is not None]
    rows = [np.atleast_2d(np.asarray(numeric.quantize(v.flat.reshape(v.shape), source), np.float64)) for v in operands]
    left, right = rows[0], rows[1] if len(rows) == 2 else np.ones_like(rows[0])
    if left.shape != right.shape or left.ndim != 2:
        raise LabError(f"x has shape {left.shape} and y {right.shape}; both must be (N, K), or (K,) for one row.")
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise LabError("x or y holds a number that is not finite; a bound needs finite operands.")
    how: dict[str, Any] = {"accumulate": acc, "order": order, "rounding": mode, "block": block, "seed": seed}
    if bits < WORDS:
        computed = _few_bits(left, right, acc, bits, seed)
    elif y is None:
        computed = np.asarray(numeric.sum(left, source, **how), np.float64)
    else:
        computed = np.asarray(numeric.dot(left, right, source, **how), np.float64)
    terms = np.abs(left * right)
    partial = _order(terms, acc, mode, order, block, bits, rate)
    worst = partial.worst * SAFE
    error, exact = off(left, right, np.zeros(len(left)), computed)
    first = np.eye(1, max(1, terms.shape[1]))  # is all there is, and held throughout
    shape = _order(first, acc, mode, order, block, bits, rate)
    named = say(
        "{fmt} into {acc}, {order}, {rounding}", fmt=source.name, acc=acc.name, order=order, rounding=mode.value
    )
    assumption = STOCHASTIC.fill(bits=bits) if mode.random else NEAREST
    result = Bounds(named, terms.shape[1], worst, partial.likely * SAFE, error, partial.most,
                    _condition(partial.most, exact), float(shape.worst[0] * SAFE), rate, assumption)  # fmt: skip
    return result if operands[0].flat.reshape(operands[0].shape).ndim == 2 else _first(result)


def _one(fmt: Format, mode: Rounding, bits: int, most: Array) -> list[Rounded]:
    """One rounding of a number of at most such a magnitude: to nearest within half a step, else within a whole one."""
    half = nearest(most, fmt)
    if mode in (Rounding.RNE, Rounding.RNA):
        return [half]
    step = half._replace(most=2 * half.most)
    if not mode.random:
        return [step._replace(directed=True)]
    off_mean = Rounded(2.0**-bits * step.most, 1, True)  # all of it is drift: counted twice, as the half of its double
    return [step, off_mean._replace(most=2 * off_mean.most)]


def _order(terms: Array, acc: Format, mode: Rounding, order: str, block: int, bits: int, rate: float) -> Partial:
    """The additions of an order; the first term is rounded to the accumulator alone."""
    n = terms.shape[1]
    rule = functools.partial(_one, acc, mode, bits)

    def term(k: int) -> Partial:
        return _start(terms[:, k], acc.max, 2 * n, rate)

    def bound_of(k: int) -> Partial:
        return term(k).rounded(rule)

    def plus(p: Partial, q: Partial) -> Partial:
        return p.plus(q, rule)

    def chain(places: range) -> Partial:
        total = bound_of(places[0])
        for k in places[1:]:
            total = plus(total, term(k))
        return total

    if n == 0:
        return _start(np.zeros(len(terms)), acc.max, 1, rate)
    if order == "pairwise":
        parts = [bound_of(k) for k in range(n)]
        while len(parts) > 1:
            parts = [
                *(plus(p, q) for p, q in zip(parts[::2], parts[1::2], strict=False)),
                *parts[len(parts) - len(parts) % 2 :],
            ]
        return parts[0]
    size = block if order == "blocked" else n
    return functools.reduce(plus, [chain(range(start, min(start + size, n))) for start in range(0, n, size)])


def _few_bits(x: Array, y: Array, acc: Format, bits: int, seed: int | None) -> Array:
    """Sequential sums with so many random bits: cut below them, then rounded up with the probability that is left."""
    wide = replace(acc, name=f"{acc.name}+{bits}", fraction_bits=acc.fraction_bits + bits, aliases=())
    total = np.zeros(len(x))
    for k in range(x.shape[1]):
        product, left_out = _product(x[:, k], y[:, k])
        near = product + total
        back = near - product
        rest = (product - (near - back)) + (total - back) + left_out  # what is missing (Knuth)
        cut = numeric.quantize(np.where(rest * near < 0, np.nextafter(near, 0), near), wide, "rtz")
        cut = np.where(np.abs(near) > wide.max, near, cut)  # what overflows is not cut
        own = None if seed is None else seed * 2**24 + k
        total = np.asarray(numeric.quantize(cut, acc, "stochastic", seed=own), np.float64)
    return total
