"""Where two runs part: their operations side by side, the first that differs, its element, and its products' chains."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...scaled import Scaled
from ...tensorcore.models import Model
from ...tensorcore.plan import Plan
from ...tensorcore.tracing import Trace, trace
from ..bits import codes
from ..emulation.operations import base_name
from ..shadowing import operations
from ..shadowing.tallies import spelt
from ..shadowing.tensors import floating, wide
from .hybrids import Hybrid, Hybrids

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]


class Product(NamedTuple):
    """One emulated product: operands in the unit's formats, the order of k, and the sum before any factor or store."""

    model: Model
    a: Array | Scaled
    b: Array | Scaled
    plan: Plan
    result: Array


@dataclass
class Operation:
    """One operation of a run. ``facts``: what says how it was computed, by name. ``results``, ``products``: if kept."""

    layer: str
    facts: dict[str, str]
    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    results: list[Tensor] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Torch's name."""
        return self.facts["operation"]


class Recording(TorchDispatchMode):
    """Notes every operation that makes floating-point values; of operation number ``keep`` also what it makes."""

    watches = True  # see modes of an emulation

    def __init__(self, hybrid: Hybrid, keep: int = -1) -> None:
        super().__init__()
        self.hybrid, self.keep = hybrid, keep
        self.operations: list[Operation] = []
        self._first, self._next = 0, -1  # of a layer that is called in parts; where the next part's operation is
        hybrid.again = self._again

    def _again(self, part: int) -> None:
        """A further part of a call repeats its operations; -1: the parts are over."""
        if part == 0:
            self._first = len(self.operations)
        self._next = self._first if part > 0 else -1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(t.__torch_dispatch__ is not Tensor.__torch_dispatch__ for t in types):
            return NotImplemented
        emulation = self.hybrid.emulation
        if emulation is not None:
            emulation.log.latest = ""
            emulation.seen = []
        result = func(*args, **kwargs)
        with torch._C._DisableTorchDispatch():
            made = [x for x in tree_leaves(result) if floating(x)]
            if made and not operations.makes(func) and not _only_moves(func, args, made):
                self._note(func, args, kwargs, made)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, made: list[Tensor]) -> None:
        emulation = self.hybrid.emulation
        if 0 <= self._next < len(self.operations):
            one = self.operations[self._next]
            self._next += 1
        else:
            one = Operation(self.hybrid.layer, _facts(func, args, kwargs, emulation))
            self.operations.append(one)
        for x in made:
            one.digest.update(wide(x.detach()).resolve_conj().contiguous().numpy())
        if self.operations[self.keep % len(self.operations)] is one and self.keep >= 0:
            one.results += [x.detach().clone() for x in made]
            one.products += [Product(*each) for each in (emulation.seen if emulation else ())]


def _only_moves(func: Any, args: Any, made: list[Tensor]) -> bool:
    """Whether an operation gives another window on its operand, or a copy or cast of the same values."""
    if any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
        return True
    if not (operations.casts(func) or base_name(func) == "clone"):
        return False
    source: Any = args[-1 if base_name(func) == "copy" else 0]
    return floating(source) and source.shape == made[0].shape and bool((source == made[0]).all())


def _facts(func: Any, args: Any, kwargs: Any, emulation: Any) -> dict[str, str]:
    """How an operation is computed: formats, numbers among its arguments, the unit, the recipe and the order of k."""
    tensors = [x for x in tree_leaves((args, kwargs)) if floating(x)]
    found = {"operation": base_name(func), "formats": " x ".join(dict.fromkeys(spelt(x.dtype) for x in tensors))}
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
    for name, value in {**named, **kwargs}.items():
        if isinstance(value, (bool, int, float, torch.dtype)):
            found[name] = spelt(value) if isinstance(value, torch.dtype) else f"{value!r}"
    if emulation is not None and emulation.log.latest:
        choice = emulation.choices.of(emulation.places.here().layer)
        stored = emulation.settings.store or (choice.recipe.output if choice.recipe else None)
        found |= {"unit": emulation.log.latest, "plan": told(choice.plan.of(emulation.log.rows))}
        found |= {"recipe": choice.recipe.name} if choice.recipe and not choice.high else {}
        found |= {"store": stored} if stored else {}
    return found


def told(plan: Plan) -> str:
    """A plan by what is not as in one chain."""
    usual = Plan()
    parts = [f"{name}={value!r}" for name, value in vars(plan).items() if value != getattr(usual, name)]
    return f"Plan({', '.join(parts)})" if parts else "one chain"


def recorded(whole: Hybrids, side: int, keep: int = -1, *, learns: bool = False) -> tuple[Tensor, list[Operation]]:
    """The output of one way, and its operations."""
    held: list[Recording] = []

    @contextmanager
    def watching(hybrid: Hybrid) -> Iterator[None]:
        held.append(Recording(hybrid, keep))
        with held[0]:
            yield

    output = whole.run(lambda _: side, watching, learns=learns)
    return output, held[0].operations


def causes(a: list[Operation], b: list[Operation]) -> dict[str, dict[str, tuple[str, str]]]:
    """By layer, what is computed otherwise in both runs: name of the fact -> how in a, how in b."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    by: dict[str, tuple[list[Operation], list[Operation]]] = {}
    for side, run in enumerate((a, b)):
        for one in run:
            by.setdefault(one.layer, ([], []))[side].append(one)
    for layer, (mine, theirs) in by.items():
        for x, y in zip(mine, theirs, strict=False):
            differ = unlike(x, y)
            for name in differ if x.name == y.name else ["operation"]:
                found.setdefault(layer, {}).setdefault(name, differ[name])
            if x.name != y.name:
                break
    return found


def unlike(x: Operation, y: Operation) -> dict[str, tuple[str, str]]:
    """The facts in which two operations differ."""
    pairs = {name: (x.facts.get(name, "-"), y.facts.get(name, "-")) for name in dict.fromkeys((*x.facts, *y.facts))}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


@dataclass(frozen=True)
class Parting:
    """The first operation whose result is another in the two runs, though all before it are the same.

    ``number``: of the operation in its run. ``facts``: how it was computed in each; ``unlike``: in what they differ.
    ``place``: the first element that differs, ``values`` and ``bits`` of it; ``differing`` of ``elements`` differ.
    ``traces``: of each run the chains of the matrix unit that made the element's sum, () for what is no such product.
    """

    layer: str
    number: int
    facts: tuple[dict[str, str], dict[str, str]]
    unlike: dict[str, tuple[str, str]]
    place: tuple[int, ...]
    values: tuple[float, float]
    bits: tuple[str, str]
    differing: int
    elements: int
    traces: tuple[tuple[Trace, ...], tuple[Trace, ...]]

    @property
    def operation(self) -> str:
        """Torch's name, of both where they are two."""
        return " / ".join(dict.fromkeys(one["operation"] for one in self.facts))

    def figure(self, theme: str = "light") -> Figure:
        """The stepper of the element's sum in both runs, at the first step after which they are apart."""
        from ...draw.explain import stepper
        from ...draw.style import themed

        with themed(theme):
            return stepper(self.traces)


def parting(whole: Hybrids, a: list[Operation], b: list[Operation]) -> Parting | None:
    """Find it, and run both ways again to see its element; None where all operations give the same values."""
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if _apart(x, y)), min(len(a), len(b)))
    if at == len(a) == len(b):
        return None
    if at in (len(a), len(b)):
        at -= 1
    x, y = (recorded(whole, side, at)[1][at] for side in (0, 1))
    elements = max(sum(one.numel() for one in x.results), 1)
    real = [torch.cat([wide(r).reshape(-1) for r in one.results]) for one in (x, y)]
    place: tuple[int, ...] = ()
    values, bits, differing, flat = (0.0, 0.0), ("", ""), 0, 0
    if real[0].shape == real[1].shape:
        differ = (real[0] != real[1]) & ~((real[0] != real[0]) & (real[1] != real[1]))
        differing, flat = int(differ.sum()), int(differ.to(torch.uint8).argmax())
        if not real[0].is_complex():
            values = float(real[0][flat]), float(real[1][flat])
            bits = _bits(x.results, flat), _bits(y.results, flat)
        shape = x.results[0].shape
        shape = torch.Size([sum(len(r) for r in x.results), *shape[1:]]) if len(x.results) > 1 and shape else shape
        place = tuple(int(i) for i in np.unravel_index(flat, shape)) if flat < shape.numel() else (flat,)
    traces = _traces(x.products, y.products, flat, elements)
    return Parting(x.layer, at, (x.facts, y.facts), unlike(x, y), place, values, bits, differing, elements, traces)


def _apart(x: Operation, y: Operation) -> bool:
    return x.name != y.name or x.digest.digest() != y.digest.digest()


def _bits(results: list[Tensor], flat: int) -> str:
    """The bits of one element in its own format."""
    for one in results:
        if flat < one.numel():
            return f"0x{int(codes(one.reshape(-1)[flat : flat + 1])[0]):0{2 * one.element_size()}x}"
        flat -= one.numel()
    return ""


def _traces(
    a: list[Product], b: list[Product], flat: int, elements: int
) -> tuple[tuple[Trace, ...], tuple[Trace, ...]]:
    """The chains of the same element in both runs: that of the result where one product made it, else the first."""
    start = 0
    for x, y in zip(a, b, strict=False):
        if x.result.shape != y.result.shape:
            break
        differ = np.flatnonzero(x.result.reshape(-1).view(np.uint8) != y.result.reshape(-1).view(np.uint8))
        differ //= x.result.itemsize
        if differ.size:
            mine = flat - start
            at = mine if sum(p.result.size for p in a) == elements and mine in differ else int(differ[0])
            index = tuple(int(i) for i in np.unravel_index(at, x.result.shape))
            return chains(x, index), chains(y, index)
        start += x.result.size
    return (), ()


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
    found = []
    for instructions in _stretches(product, i, j, -(-rows[0].size // model.k)):
        k = (instructions[:, None] * model.k + np.arange(model.k)).reshape(-1)
        k = k[k < rows[0].size]
        given: dict[str, Any] = {}
        if model.scale:
            groups = np.unique(k // model.scale[1])
            given = {"scale_a": scales[0][groups], "scale_b": scales[1][groups]}
        found.append(trace(rows[0][k], rows[1][k], gpu=model, **given))
    return tuple(found)


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
