"""Where two runs part: their operations side by side, the first that differs, its element, and its products' chains."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from ...scaled import Scaled
from ...tensorcore.models import Model
from ...tensorcore.plan import Plan
from ...tensorcore.tracing import Trace, trace
from ..bits import codes
from ..reporting import UNLISTED
from ..tracer import Event, Operations
from . import compiled, exact_operations
from .hybrids import OUTSIDE, Hybrid, Hybrids
from .tensors import Array, differing, floating, spelt, wide

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tensor = torch.Tensor
ONE_CHAIN = "one chain"  # a plan that is as usual
NAMED = 6  # operations that one run alone has, by name


class Product(NamedTuple):
    """One emulated product: operands in the unit's formats, the order of k, and the sum before any factor or store."""

    model: Model
    a: Array | Scaled
    b: Array | Scaled
    plan: Plan
    result: Array


@dataclass
class Operation:
    """One operation of a run. ``call``: the number of its layer's call. ``facts``: how it was computed, by name.

    ``digests``, ``shapes``: of each result, see :meth:`Recording._note`. ``results``, ``products``: if kept, by part.
    """

    number: int
    layer: str
    call: int
    facts: dict[str, str]
    digests: list[dict[int, list[bytes]]] = field(default_factory=list)
    shapes: list[list[torch.Size]] = field(default_factory=list)
    results: list[list[Tensor]] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Torch's name."""
        return self.facts["operation"]


class Recording(Operations):
    """Notes every operation that makes floating-point values; of operation number ``keep`` also what it makes."""

    def __init__(self, hybrid: Hybrid, keep: int = -1) -> None:
        super().__init__()
        self.hybrid, self.keep = hybrid, keep
        self.operations: list[Operation] = []
        self._first, self._next, self._stop = 0, 0, 0  # a layer's first part; what its next part repeats, up to where
        self._part = -1
        hybrid.again = self._again

    def _again(self, part: int) -> None:
        """A further part of a call repeats its operations; -1: the parts are over."""
        if part == 0:
            self._first = self._next = self._stop = len(self.operations)
        elif part > 0:
            self._next, self._stop = self._first, self._stop if part > 1 else len(self.operations)
        self._part = part

    def operation(self, event: Event) -> Any:
        """One operation, which is noted once it is computed."""
        emulation = self.hybrid.emulation
        if emulation is not None:
            emulation.log.latest = ""
            emulation.seen = []
        result = event.run()
        with torch._C._DisableTorchDispatch():
            made = [x for x in tree_leaves(result) if floating(x)]
            if made and not exact_operations.makes(event.func) and not _only_moves(event, made):
                self._note(event, made)
        return result

    def _note(self, event: Event, made: list[Tensor]) -> None:
        """Take down an operation, or one more part of it.

        Where the ways have other numbers of rows, the results of one are several of the other's along one dimension,
        which shapes show once both are known: so each result has digests of its pieces along every dimension, pieces of
        as many rows as parts of both ways consist of; -1: of each part as a whole.
        """
        emulation = self.hybrid.emulation
        one = self.operations[self._next] if self._part > 0 and self._next < self._stop else None
        if one is not None and one.name == event.name:
            self._next += 1
        else:
            facts = _facts(event, emulation)
            facts |= {"rows": f"{self.hybrid.way.rows}"} if self._part >= 0 else {}
            facts |= {"fused": "fp32"} if self.hybrid.way.compiled and compiled.fuses(event.func) else {}
            one = Operation(len(self.operations), self.hybrid.layer, self.hybrid.call, facts)
            one.digests, one.shapes = [{} for _ in made], [[] for _ in made]
            self.operations.append(one)
        pieces = self.hybrid.pieces(self._part >= 0)
        for x, digests, shapes in zip(made, one.digests, one.shapes, strict=False):
            shapes.append(x.shape)
            for dim in range(-1, x.dim() if pieces else 0):
                if dim < 0 or x.shape[dim] % pieces == 0:
                    cut = [x] if dim < 0 else x.split(max(x.shape[dim] // pieces, 1), dim)
                    digests.setdefault(dim, []).extend(map(_digest, cut))
        if one.number == self.keep:
            one.results.append([x.detach().clone() for x in made])
            one.products += [Product(*each) for each in (emulation.seen if emulation else ())]


def _digest(x: Tensor) -> bytes:
    """Of a tensor's shape and values in float64, its zeros' signs among them; a NaN is as any other."""
    x = wide(x.detach()).resolve_conj().resolve_neg()
    x = (torch.view_as_real(x) if x.is_complex() else x).contiguous()
    x.masked_fill_(x != x, torch.nan)
    return hashlib.blake2b(x.numpy().data, digest_size=16, key=f"{tuple(x.shape)}".encode()).digest()


def _only_moves(event: Event, made: list[Tensor]) -> bool:
    """Whether an operation gives another window on its operand, or a copy or cast of the same values."""
    window = any(r.alias_info is not None and not r.alias_info.is_write for r in event.func._schema.returns)
    if window or event.name == "_unsafe_view":
        return True
    if not (exact_operations.casts(event.func) or event.name == "clone"):
        return False
    source: Any = event.args[-1 if event.name == "copy" else 0]
    return floating(source) and source.shape == made[0].shape and not bool(differing(source, made[0]).any())


def _facts(event: Event, emulation: Any) -> dict[str, str]:
    """How an operation is computed: formats, numbers among its arguments, the unit, the recipe and the order of k."""
    tensors = [x for x in tree_leaves((event.args, event.kwargs)) if floating(x)]
    result = {"operation": event.name, "formats": " x ".join(dict.fromkeys(spelt(x.dtype) for x in tensors))}
    for name, value in event.named.items():
        numbers = isinstance(value, (list, tuple)) and all(isinstance(x, (bool, int, float)) for x in value)
        if numbers or isinstance(value, (bool, int, float, str, torch.dtype)):
            result[name] = spelt(value) if isinstance(value, torch.dtype) else f"{value!r}"
    if emulation is not None and emulation.log.latest:
        choice = emulation.choices.of(emulation.sites.here)
        stored = emulation.settings.store or (choice.recipe.output if choice.recipe else None)
        result |= {"unit": emulation.log.latest, "plan": plan_in_words(choice.plan.of(emulation.log.rows))}
        result |= {"recipe": emulation.log.recipe} if emulation.log.recipe else {}
        result |= {"store": stored} if stored else {}
    return result


def plan_in_words(plan: Plan) -> str:
    """A plan by what is not as in one chain."""
    usual = Plan()
    parts = [f"{name}={value!r}" for name, value in vars(plan).items() if value != getattr(usual, name)]
    return f"Plan({', '.join(parts)})" if parts else ONE_CHAIN


def recorded(whole: Hybrids, side: int, keep: int = -1, *, learns: bool = False) -> tuple[Tensor, list[Operation]]:
    """The output of one way, and its operations."""
    recordings: list[Recording] = []

    @contextmanager
    def watching(hybrid: Hybrid) -> Iterator[None]:
        recordings.append(Recording(hybrid, keep))
        with recordings[0]:
            yield

    output = whole.run(lambda _: side, watching, learns=learns)
    return output, recordings[0].operations


Step = tuple[Operation | None, Operation | None]


def side_by_side(a: list[Operation], b: list[Operation]) -> list[Step]:
    """The operations of both runs in order, each beside that of the other run at its place in the graph, or None.

    A pair is one operation in one call of one layer, with results of the same shapes once parts are put together.
    """
    mine, theirs = ([(item.layer, item.call, item.name) for item in run] for run in (a, b))
    result: list[Step] = []
    for tag, i, k, j, n in SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
        for x, y in zip(a[i:k], b[j:n], strict=True) if tag == "equal" else ():
            result += [(x, y)] if _along(x, y) is not None else [(x, None), (None, y)]
        if tag != "equal":
            result += [*((x, None) for x in a[i:k]), *((None, y) for y in b[j:n])]
    return result


def _along(x: Operation, y: Operation) -> list[int] | None:
    """Of each result the dimension along which its parts make the same in both runs; None where shapes are others.

    -1: its parts are each the whole, what does not depend on the batch.
    """
    result = []
    for mine, theirs in zip(x.shapes, y.shapes, strict=False):
        dims = [d for d in range(max(len(mine[0]), 1)) if _joined(mine, d) == _joined(theirs, d) is not None]
        if not dims and any(item != mine[0] for item in (*mine, *theirs)):
            return None
        result.append(dims[0] if dims else -1)
    return result if len(x.shapes) == len(y.shapes) else None


def _joined(parts: list[torch.Size], dim: int) -> torch.Size | None:
    """The shape of tensors one after the other along a dimension; None where they do not fit."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if not first or any(len(part) != len(first) or (*part[:dim], *part[dim + 1 :]) != (*first[:dim], *first[dim + 1 :])
                        for part in parts):  # fmt: skip
        return None
    return torch.Size([*first[:dim], sum(part[dim] for part in parts), *first[dim + 1 :]])


def same(x: Operation, y: Operation) -> bool:
    """Whether a pair gives the same values."""
    return all(
        any(mine[dim] == theirs[dim] for dim in mine.keys() & theirs.keys()) or len({*mine[-1], *theirs[-1]}) == 1
        for mine, theirs in zip(x.digests, y.digests, strict=True)
    )


def causes(steps: list[Step]) -> dict[str, dict[str, tuple[str, str]]]:
    """By layer, what is computed otherwise in both runs: name of the fact -> how in a, how in b."""
    result: dict[str, dict[str, tuple[str, str]]] = {}
    alone: dict[str, list[Step]] = {}
    for x, y in steps:
        if x is not None and y is not None:
            for name, pair in unlike(x, y).items():
                result.setdefault(x.layer, {}).setdefault(name, pair)
        else:
            alone.setdefault((x or y).layer, []).append((x, y))  # type: ignore[union-attr]
    return result | {layer: result.get(layer, {}) | _graph(those, layer) for layer, those in alone.items()}


def _graph(steps: list[Step], layer: str) -> dict[str, tuple[str, str]]:
    """The operations that one run alone has, as a fact: those of other layers by their layer's name."""

    def names(side: int) -> str:
        result = [step[side] for step in steps if step[1 - side] is None]
        each = dict.fromkeys(
            f"{x.layer}.{x.name}" if x.layer not in (layer, OUTSIDE) else x.name for x in result if x is not None
        )
        return ", ".join([*list(each)[:NAMED], *(["..."] if len(each) > NAMED else [])]) or "-"

    pair = names(0), names(1)
    return {"operation": pair} if pair != ("-", "-") else {}


def unlike(x: Operation, y: Operation) -> dict[str, tuple[str, str]]:
    """The facts in which two operations differ."""
    pairs = {name: (x.facts.get(name, "-"), y.facts.get(name, "-")) for name in dict.fromkeys((*x.facts, *y.facts))}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


@dataclass(frozen=True)
class FirstDifference:
    """The first operation of both runs whose result is another, though all before it that both have give the same.

    ``number``: of the operation in run a. ``facts``: how it was computed in each; ``unlike``: in what they differ,
    "operation" being those before it that one run alone has. ``result``: which of its results, of which
    ``differing`` of ``elements`` differ (a complex number is two of these); ``place``: the first of them, ``values``
    and ``bits`` of it. ``traces``: of each run the chains of the matrix unit that made the element's sum, () for what
    is no such product. Where all operations that both runs have give the same, the layer and number are those of the
    first that one run alone has, and ``differing`` is 0.
    """

    layer: str
    number: int
    facts: tuple[dict[str, str], dict[str, str]]
    unlike: dict[str, tuple[str, str]]
    result: int = 0
    place: tuple[int, ...] = ()
    values: tuple[float, float] = (math.nan, math.nan)
    bits: tuple[str, str] = ("", "")
    differing: int = 0
    elements: int = 0
    traces: tuple[tuple[Trace, ...], tuple[Trace, ...]] = field(default=((), ()), metadata=UNLISTED)

    @property
    def operation(self) -> str:
        """Torch's name; with its place among the operation's results if it is not the first: "native_layer_norm[1]"."""
        name = (self.facts[0] or self.facts[1])["operation"]
        return f"{name}[{self.result}]" if self.result else name

    def figure(self, theme: str = "light") -> Figure:
        """The stepper of the element's sum in both runs, at the first step after which they are apart."""
        from ...draw.explain import stepper
        from ...draw.style import themed

        with themed(theme):
            return stepper(self.traces)


def first_difference(whole: Hybrids, steps: list[Step]) -> FirstDifference | None:
    """Find it, and run both ways again to see its element; None where the runs have the same operations and values."""
    alone: list[Step] = []
    for x, y in steps:
        if x is None or y is None:
            alone.append((x, y))
        elif not same(x, y) and (result := _with_values(whole, x, y, alone)) is not None:
            return result
    for x, y in alone[:1]:
        one: Any = x or y
        facts = ({} if x is None else x.facts, {} if y is None else y.facts)
        return FirstDifference(one.layer, one.number, facts, _graph(alone, one.layer))
    return None


def _with_values(whole: Hybrids, x: Operation, y: Operation, alone: list[Step]) -> FirstDifference | None:
    """A pair whose digests differ, with what it makes; None where that is the same once parts are put together."""
    dims = _along(x, y) or []
    x, y = (recorded(whole, side, one.number)[1][one.number] for side, one in enumerate((x, y)))
    for number, dim in enumerate(dims):
        mine, theirs = ([_reals(part[number]) for part in item.results] for item in (x, y))
        if dim >= 0:
            mine, theirs = ([torch.cat(side, dim)] if len(side) > 1 else side for side in (mine, theirs))
        for one, other in ((p, q) for p in mine for q in theirs):  # -1: each part is the whole
            where = differing(one, other).reshape(-1)
            if not where.any():
                continue
            flat = int(where.to(torch.uint8).argmax())
            place = tuple(int(i) for i in np.unravel_index(flat, one.shape)) if one.dim() else ()
            values = float(wide(one).reshape(-1)[flat]), float(wide(other).reshape(-1)[flat])
            tiles = where.numel() if number == 0 and dim <= 0 else -1
            return FirstDifference(
                x.layer, x.number, (x.facts, y.facts), unlike(x, y) | _graph(alone, x.layer), number, place, values,
                (_bits(one, flat), _bits(other, flat)), int(where.sum()), where.numel(),
                _traces(x.products, y.products, flat, tiles),
            )  # fmt: skip
    return None


def _reals(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _bits(x: Tensor, flat: int) -> str:
    """The bits of one element in its own format."""
    return f"0x{int(codes(x.reshape(-1)[flat : flat + 1])[0]):0{2 * x.element_size()}x}"


def _traces(
    a: list[Product], b: list[Product], flat: int, elements: int
) -> tuple[tuple[Trace, ...], tuple[Trace, ...]]:
    """The chains of the same element in both runs: that of the result where products made it, else the first."""
    if all(sum(p.result.size for p in side) == elements for side in (a, b)):
        (x, i), (y, j) = (_holding(side, flat) for side in (a, b))
        if x.result[i].tobytes() != y.result[j].tobytes():
            return chains(x, i), chains(y, j)
    for x, y in zip(a, b, strict=False):
        if x.result.shape != y.result.shape:
            break
        differ = np.flatnonzero(x.result.reshape(-1).view(np.uint8) != y.result.reshape(-1).view(np.uint8))
        if differ.size:
            index = tuple(int(i) for i in np.unravel_index(differ[0] // x.result.itemsize, x.result.shape))
            return chains(x, index), chains(y, index)
    return (), ()


def _holding(products: list[Product], flat: int) -> tuple[Product, tuple[int, ...]]:
    """Of products that are one result together, the one that has an element, and its index there."""
    for product in products:
        if flat < product.result.size:
            break
        flat -= product.result.size
    return product, tuple(int(i) for i in np.unravel_index(flat, product.result.shape))


def chains(product: Product, index: tuple[int, ...]) -> tuple[Trace, ...]:
    """Every chain of one element of a product: one for each slice, accumulator, and stretch up to a promotion."""
    model, lead = product.model, product.result.shape[:-2]
    *batch, i, j = index

    def line(x: Array, at: tuple[Any, ...]) -> Array:
        return np.ascontiguousarray(np.broadcast_to(x, (*lead, *x.shape[-2:]))[(*batch, *at)])

    rows: list[Array] = []
    scales: list[Array] = []
    for one, at in ((product.a, (i, slice(None))), (product.b, (slice(None), j))):
        rows.append(line(one.elements() if isinstance(one, Scaled) else one, at))
        if isinstance(one, Scaled) and model.scale:
            scales.append(line(one.scale_values(True), at))
    result = []
    for instructions in _stretches(product, i, j, -(-rows[0].size // model.k)):
        k = (instructions[:, None] * model.k + np.arange(model.k)).reshape(-1)
        k = k[k < rows[0].size]
        given: dict[str, Any] = {}
        if model.scale:
            groups = np.unique(k // model.scale[1])
            given = {"scale_a": scales[0][groups], "scale_b": scales[1][groups]}
        result.append(trace(rows[0][k], rows[1][k], gpu=model, **given))
    return tuple(result)


def _stretches(product: Product, row: int, column: int, count: int) -> Iterator[Array]:
    """The instructions of each chain, of ``count`` in all."""
    plan, model = product.plan, product.model
    period = plan.period(model.k) or count
    if (
        isinstance(product.a, Scaled)
        and product.a.scheme.kind == "fp32"
        and not isinstance(block := product.a.scheme.block, str)
    ):
        period = block[1] // model.k  # scaled outside of the unit, each block on its own
    region = next(
        r for r in plan.regions(*product.result.shape[-2:])
        if row in range(*r.rows.indices(row + 1)) and column in range(*r.columns.indices(column + 1))
    )  # fmt: skip
    for part in plan.steps(count, model.k, region.tile, region.tiles):
        for chain in part:
            for start in range(0, chain.size, period):
                yield chain[start : start + period]
