"""What a shadowed run is told of every operation, and how much of the last value's error each layer brought about."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from ... import formats
from ...kernels import discrepancy as kernel
from ...threads import split
from ..emulation.modes import Mode
from ..emulation.operations import EMULATED, base_name
from ..layers import Layers
from . import tracing
from .companions import Companions, Held, key
from .double_double import Pair, difference, halves
from .tensors import COMPLEX, FLOATS, among, floating, wide
from .tracing import Element

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]
_LAYER = "fplab shadow"  # key of a node's metadata
KEPT = 8  # worst elements
# Of the root of the mean square: elements below it are zero to their tensor, and not judged by themselves.
FLOOR = 2.0**-30
GREW = 4.0  # an element's error is an operation's own if it is that many times the worst of the operands
_ADDITIONS = frozenset({"add", "sub", "rsub", "clamp", "clamp_min", "maximum"})


class Where(NamedTuple):
    """Whose a tally is. ``phase``: "forward", "backward" or "update" (outside of layers, without gradients).

    ``operation``: torch's name, or "rounding"; ``format``: the dtype of the result, or what it was rounded to.
    """

    layer: str
    phase: str
    operation: str
    format: str


@dataclass
class Tally:
    """Sums over all results of one kind. ``sums``: as in :mod:`fplab.kernels.discrepancy`, the first eight.

    ``given``: the largest relative error of an operand. ``effect``: of the errors born here on what ``backward()``
    started from, by exact gradients and by the mean of exact and computed ones; ``weight``: the squares of its terms.
    ``made_broken``: results that are infinite or NaN although all operands are finite.
    """

    calls: int = 0
    values: int = 0
    sums: Array = field(default_factory=lambda: np.zeros(8))
    given: float = 0.0
    effect: list[float] = field(default_factory=lambda: [0.0, 0.0])
    weight: float = 0.0
    made_broken: int = 0
    order: int = 0

    def _root(self, square: float) -> float:
        return math.sqrt(max(square, 0.0) / self.sums[kernel.EXACT]) if self.sums[kernel.EXACT] else 0.0

    @property
    def born(self) -> float:
        """The error that the operation itself adds, relative to its exact results (root of the squares)."""
        return self._root(self.sums[kernel.BORN])

    @property
    def total(self) -> float:
        """The whole error of its results."""
        return self._root(self.sums[kernel.TOTAL])

    @property
    def carried(self) -> float:
        """The error that its operands' errors cause in its results."""
        return self._root(self.sums[kernel.TOTAL] - 2 * self.sums[kernel.TOGETHER] + self.sums[kernel.BORN])

    @property
    def share(self) -> float:
        """Born's part of the whole error, by projection on it: the carried part's is the rest to 1."""
        return float(self.sums[kernel.TOGETHER] / self.sums[kernel.TOTAL]) if self.sums[kernel.TOTAL] else 0.0

    @property
    def growth(self) -> float:
        """The amplification: the operands' error carried on over their own, both relative; NaN where none came."""
        return self.carried / self.given if self.given else math.nan

    def count(self, column: int) -> int:
        """A count of values: broken, gone to zero, subnormal or at the largest."""
        return int(self.sums[column])


class Constant(NamedTuple):
    """A constant that its operation's dtype takes for zero."""

    where: Where
    value: float
    smallest: float


class Run(Layers):
    """Companions, tallies, and which layer is running."""

    def __init__(self, doubled: bool = False) -> None:
        super().__init__()
        self.companions = Companions(doubled)
        self._seen = 1e-28 if doubled else 1e-12  # relative error from which an element is traced
        self.narrow: Counter[str] = Counter()  # operations without a double-double form
        self.tallies: dict[Where, Tally] = {}
        self.anew: Counter[str] = Counter()
        self.constants: dict[Where, Constant] = {}
        self.splits: dict[str, tuple[int, ...]] = {}  # of a layer's product: the k of its parts
        self.elements: list[Element] = []
        self.real = self.exact = self.whole = 0.0  # of what backward() started from
        self.roots = 0
        self.recording = True  # of gradients, where the operation is that is followed
        self._new: list[tuple[Tensor, Tensor | None, Tally | None, str]] = []
        self._left: dict[int, str] = {}  # layers by the storage of what they just gave
        self.leaves: dict[int, tuple[Tensor, str]] = {}  # inexact parameters, their first layer

    # --- where ------------------------------------------------------------------------------------------------------

    def leaving(self, name: str, output: Any) -> None:
        """What a layer gave is its own until the next operation: hooks may round it."""
        for x in tree_leaves(output):
            if floating(x):
                self._left.setdefault(key(x), name)

    def _where(self, operation: str, fmt: str, layer: str | None = None) -> Where:
        node = torch._C._current_autograd_node()
        here = self.here if layer is None else layer
        if node is not None and not (here and self.recording):  # else a checkpoint recomputes its forward pass
            own = node.metadata.get(_LAYER, here)  # type: ignore[attr-defined]
            return Where(own, "backward", operation, fmt)
        phase = "forward" if here or self.recording else "update"
        return Where(here, phase, operation, fmt)

    def _tally(self, where: Where) -> Tally:
        if where not in self.tallies:
            self.tallies[where] = Tally(order=len(self.tallies))
        return self.tallies[where]

    # --- results ----------------------------------------------------------------------------------------------------

    def judge(
        self, func: Any, args: Any, kwargs: Any, real: Tensor, local: Tensor, exact: Tensor, held: Sequence[Held],
        before: dict[int, Tensor],
    ) -> None:  # fmt: skip
        """Take down one result, and keep its companion if it is not exact."""
        self._left.clear()
        name = base_name(func)
        emulation = _get_current_dispatch_mode()
        unit = emulation.run.log.latest if isinstance(emulation, Mode) and name in EMULATED else ""
        where = self._where(name, unit or spelt(real.dtype))
        tally, worst, place = self._compare(where, real, local, exact, held, spelt(real.dtype))
        self._constants(name, args, real.dtype)
        self._lengths(name, args, real)
        if tally.made_broken == 0 and tally.count(kernel.BROKEN):
            operands = among((args, *kwargs.values()))
            if all(bool(before.get(id(x), x).isfinite().all()) for x in operands):
                tally.made_broken = tally.count(kernel.BROKEN)
        known = max((h.worst for h in held), default=0.0)
        least = self.elements[-1].relative if len(self.elements) == KEPT else 0.0
        if place >= 0 and real.dtype in FLOATS and worst > max(GREW * known, least, self._seen):
            self._trace(name, args, kwargs, real, halves(exact)[0], worst, place, before)

    def rounded(self, x: Tensor, result: Tensor, fmt: str) -> None:
        """A rounding by the lab's own kernels."""
        if not (floating(x) and floating(result)):
            return
        with torch._C._DisableTorchDispatch(), torch.no_grad(), torch._C.DisableTorchFunction():
            x = x.detach()
            layer = self._left.get(key(x))
            self.recording = True
            held = self.companions.held(x)
            local = self.companions.widened(wide(x))
            known = self.companions.value(x)
            exact, low = halves(local if known is None else known)
            exact = exact.clone() if low is None else Pair(exact.clone(), low.clone())
            where = self._where("rounding", fmt, layer)
            self._compare(where, result, local, exact, [held] if held else [], fmt)
            if layer is not None:
                self._left[key(result)] = layer

    def _compare(
        self, where: Where, real: Tensor, local: Tensor, exact: Tensor, held: Sequence[Held], limits: str
    ) -> tuple[Tally, float, int]:
        """Count one result; its tally, its worst relative error and where that is."""
        tally = self._tally(where)
        born = _like(real) if where.phase == "forward" else None
        sums, worst, place = compare(real, local, exact, limits, born)
        tally.calls += 1
        tally.values += real.numel()
        tally.sums += sums
        tally.given = max(tally.given, max((h.relative for h in held), default=0.0))
        relative = math.sqrt(sums[kernel.TOTAL] / sums[kernel.EXACT]) if sums[kernel.EXACT] else 0.0
        if sums[kernel.TOTAL] or sums[kernel.BROKEN] or self.companions.held(real) is not None:
            own = not held or 2 * sums[kernel.TOGETHER] > sums[kernel.TOTAL]
            self.companions.put(real, exact, relative, worst, tally if own else held[0].origin)
        if born is not None and sums[kernel.BORN]:
            if not (real.is_contiguous() and real.is_cpu):
                born = torch.empty_like(real, dtype=born.dtype).copy_(born)
            self._new.append((real, born, tally, where.layer))
        return tally, worst, place

    def follow_data(self, result: Tensor, difference: Tensor, origin: Tally) -> None:
        """Weigh what operands without gradients did to a result, for the operation where their error was born."""
        self._new.append((result, difference.nan_to_num_(0.0, 0.0, 0.0), origin, self._where("", "").layer))

    def begin_anew(self, func: Any, writes: Sequence[Tensor], told: bool, error: Exception | None = None) -> None:
        """What an operation wrote is taken as exact: random numbers, or what has no float64 form."""
        for x in writes:
            if self.companions.held(x) is not None:
                self.companions.put(x, wide(x))
        if told:
            self.anew[base_name(func)] += 1

    def _lengths(self, name: str, args: Any, real: Tensor) -> None:
        """Remember of what products a result is the sum: several of one layer are a product in parts of k."""
        held = self.companions.held(real)
        if held is None:
            return
        if name in tracing.PRODUCTS:
            held.lengths = (args[-1].shape[-2 if args[-1].dim() > 1 else 0],)
        elif name == "add" and len(args) > 1 and all(isinstance(x, Tensor) for x in args[:2]):
            summands = [self.companions.held(x) for x in args[:2]]
            lengths = [h.lengths if h is not None else () for h in summands]
            if all(lengths) and args[0].shape == args[1].shape:
                held.lengths = lengths[0] + lengths[1]
                here = self._where(name, "").layer
                self.splits[here] = max(self.splits.get(here, ()), held.lengths, key=len)

    def _constants(self, name: str, args: Any, dtype: torch.dtype) -> None:
        if name in _ADDITIONS and dtype in FLOATS:
            info = torch.finfo(dtype)
            smallest = info.smallest_normal * info.eps
            for value in args[1:2]:
                if isinstance(value, float) and 0 < abs(value) <= smallest / 2:
                    where = self._where(name, spelt(dtype))
                    self.constants[where] = Constant(where, value, smallest)

    def _trace(
        self, name: str, args: Any, kwargs: Any, real: Tensor, exact: Tensor, worst: float, place: int,
        before: dict[int, Tensor],
    ) -> None:  # fmt: skip
        where = self._where(name, "")
        given = tuple(before.get(id(x), x) if isinstance(x, Tensor) else x for x in args)
        exactly = self.companions.exact if not before else lambda x: x.double()
        index = tuple(int(i) for i in np.unravel_index(place, real.shape)) if real.dim() else ()
        pairs, bits = tracing.operands(name, given, kwargs, real.shape, place, exactly, float(exact[index]))
        found = Element(
            where.layer, where.phase, name, index, float(real[index]), float(exact[index]), worst, pairs, bits
        )
        same = [e for e in self.elements if e[:3] == found[:3]]
        if same and same[0].relative >= worst:
            return
        self.elements = sorted([*(e for e in self.elements if e not in same), found], key=lambda e: -e.relative)[:KEPT]

    # --- what errors do to the last value ---------------------------------------------------------------------------

    def link(self) -> None:
        """Tell the nodes of the last results whose they are, and weigh what was born there once a gradient comes."""
        for tensor, born, tally, layer in self._new:
            node: Any = tensor.grad_fn
            if node is None:
                continue
            node.metadata[_LAYER] = layer
            again = type(node).__name__ == "CheckpointFunctionBackward"  # computes all of it anew, and that counts
            if born is not None and tally is not None and not again:
                node.register_prehook(partial(self._weigh, born, tally, tensor.output_nr))
        self._new = []

    def mark(self, results: Sequence[Tensor]) -> None:
        """The nodes of an operation's results are the running layer's."""
        if self.recording:
            node = torch._C._current_autograd_node()
            layer = self.here if node is None else node.metadata.get(_LAYER, self.here)  # type: ignore[attr-defined]
            self._new += [(x, None, None, layer) for x in results]

    def follow_leaves(self) -> None:
        """Weigh the errors of parameters, from their updates or their rounding, when their gradients come."""
        for x, layer in self.leaves.values():
            node: Any = torch.autograd.graph.get_gradient_edge(x).node
            if _LAYER not in node.metadata:
                node.metadata[_LAYER] = layer
                tally = self._tally(Where(layer, "forward", "weights", spelt(x.dtype)))
                node.register_prehook(partial(self._weigh_leaf, x, tally))
        self.leaves.clear()

    def _weigh_leaf(self, x: Tensor, tally: Tally, gradients: Sequence[Any]) -> None:
        with torch._C._DisableTorchDispatch(), torch.no_grad(), torch._C.DisableTorchFunction():
            born = wide(x.detach()) - self.companions.exact(x.detach())
        self._weigh(born, tally, 0, gradients)

    def _weigh(self, born: Tensor, tally: Tally, place: int, gradients: Sequence[Any]) -> None:
        gradient = gradients[place]
        if gradient is None:
            return
        with torch._C._DisableTorchDispatch(), torch.no_grad(), torch._C.DisableTorchFunction():
            exact = self.companions.exact(gradient).conj() * born
            terms = exact.real if exact.is_complex() else exact
            one = float(terms.sum())
            computed = gradient.conj() * born
            other = float((computed.real if computed.is_complex() else computed).sum(dtype=torch.float64))
            tally.effect[0] += one
            tally.effect[1] += (one + other) / 2
            tally.weight += float(torch.linalg.vector_norm(terms)) ** 2

    def root(self, x: Tensor, gradient: Tensor | None) -> None:
        """What a backward pass starts from."""
        with torch._C._DisableTorchDispatch(), torch.no_grad(), torch._C.DisableTorchFunction():
            x = x.detach()
            real, exact = wide(x), self.companions.exact(x)
            by = torch.ones_like(real) if gradient is None else wide(gradient.detach())
            self.roots += 1
            self.real += float((real * by).sum().real)
            self.exact += float((exact * by).sum().real)
            true = self.companions.value(x)
            apart = real - exact if true is None else difference(self.companions.widened(real), true)
            self.whole += float((apart * by).sum().real)


def _like(real: Tensor) -> Tensor:
    """A new contiguous tensor for the errors of a result, float32 or complex64."""
    dtype = torch.complex64 if real.dtype in COMPLEX else torch.float32
    return torch.empty(real.shape, dtype=dtype)


def compare(
    real: Tensor, local: Tensor, exact: Tensor, fmt: str, born: Tensor | None = None
) -> tuple[Array, float, int]:
    """The sums (8,) of one result against its exact ones, the worst relative error, and its place (-1: none).

    ``fmt``: a dtype or a format, by name, whose smallest normal and largest value count. ``born``: gets the error that
    the operation itself made, 0 where it is not finite.
    """
    info = torch.finfo(getattr(torch, fmt)) if hasattr(torch, fmt) else None
    tiny, largest = (info.smallest_normal, info.max) if info else (2.0 ** formats.get(fmt).emin, formats.get(fmt).max)
    (local, *low), (exact, *rest) = halves(local), halves(exact)
    lows = [None if x is None else reals(x) for x in (*low, *rest)]
    flat = [reals(x) for x in (real, local, exact)]
    floor = FLOOR * float(torch.linalg.vector_norm(exact)) / max(1.0, math.sqrt(exact.numel()))
    blocks = -(-len(flat[0]) // kernel.BLOCK)
    out = np.empty((blocks, kernel.COLUMNS))
    errors = None if born is None else reals(born)

    def work(start: int, stop: int) -> None:
        low, high = start // kernel.BLOCK, -(-stop // kernel.BLOCK)
        kernel.discrepancies(*flat, *lows, tiny, float(largest), floor, errors, out, low, high)

    split(work, len(flat[0]), unit=kernel.BLOCK)
    at = int(out[:, kernel.WORST].argmax())
    return out[:, :8].sum(0), float(out[at, kernel.WORST]), int(out[at, kernel.WHERE])


def reals(x: Tensor) -> Array:
    """Real numbers in a row, float32 or float64, without a copy where they lie so."""
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    x = torch.view_as_real(x) if x.dtype in COMPLEX else x
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    found: Array = x.reshape(-1).cpu().numpy()
    return found


def spelt(dtype: torch.dtype) -> str:
    """A dtype as torch names it."""
    return str(dtype).removeprefix("torch.")
