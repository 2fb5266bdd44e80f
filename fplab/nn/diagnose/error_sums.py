"""The errors of every operation of a shadowed run, and what each layer's do to the last value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from ..emulation.operations import EMULATED
from ..tracer import Event, Layers, base_name
from . import exact_operations
from .companions import Companion, Companions, key
from .double_double import Pair, difference, halves
from .exact_operations import CLAMPS, ROUNDS, Element
from .quantization import Made, Perhaps, Quantising, Record, Step
from .tensors import COMPLEX, FLOATS, INTEGERS, Array, among, dense, floating, reals, spelt, wide

Tensor = torch.Tensor
_LAYER = "fplab shadow"  # key of a node's metadata
KEPT = 8  # worst elements
CACHE = "kv_cache"  # the operation of a cache of keys and values
# Of the root of the mean square: elements below it are zero to their tensor, and not judged by themselves.
FLOOR = 2.0**-30
GREW = 4.0  # an element's error is an operation's own if it is that many times the worst of the operands
_ADDITIONS = frozenset({"add", "sub", "rsub", "clamp", "clamp_min", "maximum"})


class Where(NamedTuple):
    """Whose a tally is. ``phase``: "forward", "backward" or "update" (outside of layers, without gradients).

    ``operation``: torch's name, "rounding" or "kv_cache"; ``format``: the result's dtype, or what it was rounded to.
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

    def add(self, sums: Array, calls: int, values: int, given: float) -> None:
        """Add results."""
        self.sums += sums
        self.calls += calls
        self.values += values
        self.given = max(self.given, given)

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
        self.quantising = Quantising(doubled)
        self._judged: tuple[int, Any, Any] = 0, None, None  # the last result, what was counted of it, and where
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
        self.region: Companions | None = None  # in a function of its own: what is exact of what it was given
        self._new: list[tuple[Tensor, Tensor | None, Tally | Perhaps | None, str]] = []
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
        if node is not None:
            own = node.metadata.get(_LAYER, here)  # type: ignore[attr-defined]
            if not ((self.recording or self.region is not None) and (here or _recomputes(node))):
                return Where(own, "backward", operation, fmt)
            here = here or own
        forward = self.region is not None or bool(here) or self.recording
        phase = "forward" if forward else "update"
        return Where(here, phase, operation, fmt)

    def _tally(self, where: Where) -> Tally:
        if where not in self.tallies:
            self.tallies[where] = Tally(order=len(self.tallies))
        return self.tallies[where]

    # --- results ----------------------------------------------------------------------------------------------------

    def judge(self, step: Step, real: Tensor, local: Tensor, exact: Tensor, inexact: Sequence[Companion]) -> Tally:
        """Take down one result, and keep its companion if it is not exact; where it was counted."""
        self._left.clear()
        name, args = step.event.name, step.event.args
        emulation = _get_current_dispatch_mode()
        unit = emulation.run.log.latest if isinstance(emulation, Mode) and name in EMULATED else ""
        where = self._where(name, unit or spelt(real.dtype))
        tally, worst, place = self._compare(where, real, local, exact, inexact, spelt(real.dtype))
        self._constants(name, args, real.dtype)
        self._lengths(name, args, real)
        if tally.made_broken == 0 and tally.count(kernel.BROKEN):
            operands = among((args, *step.event.kwargs.values()))
            if all(bool(step.before.get(id(x), x).isfinite().all()) for x in operands):
                tally.made_broken = tally.count(kernel.BROKEN)
        known = max((h.worst for h in inexact), default=0.0)
        least = self.elements[-1].relative if len(self.elements) == KEPT else 0.0
        if place >= 0 and real.dtype in FLOATS and worst > max(GREW * known, least, self._seen):
            self._trace(step, real, halves(exact)[0], worst, place)
        return tally

    def keep(self, event: Event, made: Made | None) -> None:
        """Take down what a result is without roundings, and what its tally gets if they quantise."""
        for x in tree_leaves(event.written):
            if isinstance(x, Tensor) and (made is None or x is not made.result):
                self.quantising.forget(x)
        if made is None:
            return
        real, target, name = made.result, made.target, event.name
        operands = list(made.inexact)
        if target is not None:
            operands = [h for h in (self.quantising.without.of(target) or self.companions.of(target),) if h is not None]
        before = _most(name, operands) if operands else None
        origin, given = (before.origin, before.relative) if before is not None else (None, 0.0)
        where = self._where(name, spelt(real.dtype))
        if made.apart is not None and made.note.records:
            most = max(made.note.records, key=lambda r: float(r.sums[kernel.BORN]))
            self._new.append((real, made.apart.nan_to_num_(0.0, 0.0, 0.0), Perhaps(most, most.tally), where.layer))
        if made.own is None:
            errors = (given, before.worst, origin, before.error) if before is not None else ()
            self.quantising.keep(made, None, *errors)
            return
        born = _like(real) if target is not None and where.phase == "forward" and floating(real) else None
        sums, worst, _ = compare(real, made.own, made.values[0], spelt(real.dtype), born)
        known = self._judged[0] == id(real)
        tally = self._judged[2] if known else self._tally(where)
        more = sums - self._judged[1] if known else sums
        if target is not None and name in ("add", "sub"):  # half a step: of the rounding that it belongs to
            tally, more = self._tally(self._where(made.note.last, spelt(real.dtype))), np.zeros(8)
        record = Record(tally, more, 0 if known else 1, 0 if known else real.numel(), given)
        own = before is None or 2 * sums[kernel.TOGETHER] > sums[kernel.TOTAL]
        relative = math.sqrt(sums[kernel.TOTAL] / sums[kernel.EXACT]) if sums[kernel.EXACT] else 0.0
        self.quantising.keep(made, record, relative, worst, tally if own else origin, math.sqrt(sums[kernel.TOTAL]))
        if born is not None and sums[kernel.BORN]:
            self._new.append((real, born, Perhaps(record, tally), where.layer))
        if target is not None and origin is not None and self.recording and self.region is None:
            # No gradient of the operand's tells of the error that it came with where it was rounded or cut off.
            carried = _apart(made.own, made.values[0])
            carried *= name in ROUNDS if name not in CLAMPS else halves(made.own)[0] != real
            self._new.append((real, carried, Perhaps(record, origin), where.layer))

    def rounded(self, x: Tensor, result: Tensor, fmt: str, operation: str = "rounding") -> None:
        """A rounding by the lab's own kernels, or by a cache of keys and values."""
        if not (floating(x) and floating(result)):
            return
        with torch._C._DisableTorchDispatch(), torch.no_grad(), torch._C.DisableTorchFunction():
            learned, x = x.requires_grad, x.detach()
            layer = self._left.get(key(x)) if operation != CACHE else None
            self.recording = True
            companion = self.companions.of(x)
            local = self.companions.widened(wide(x))
            known = self.companions.value(x)
            exact, low = halves(local if known is None else known)
            exact = exact.clone() if low is None else Pair(exact.clone(), low.clone())
            limits = fmt if operation != CACHE else "e4m3" if fmt == "fp8" else spelt(result.dtype)
            where = self._where(operation, fmt, layer)
            tally, *_ = self._compare(where, result, local, exact, [companion] if companion else [], limits)
            inside = None if self.region is None else self.region.of(x)
            if self.region is not None and (inside or (learned and companion)):
                other = self.region.value(x) if inside else local
                self.follow_data(result, local, other, inside.origin if inside else None, tally)  # type: ignore[arg-type]
            if layer is not None:
                self._left[key(result)] = layer

    def _compare(
        self, where: Where, real: Tensor, local: Tensor, exact: Tensor, inexact: Sequence[Companion], limits: str
    ) -> tuple[Tally, float, int]:
        """Count one result; its tally, its worst relative error and where that is."""
        tally = self._tally(where)
        born = _like(real) if where.phase == "forward" else None
        sums, worst, place = compare(real, local, exact, limits, born)
        tally.add(sums, 1, real.numel(), max((h.relative for h in inexact), default=0.0))
        self._judged = id(real), sums, tally
        relative = math.sqrt(sums[kernel.TOTAL] / sums[kernel.EXACT]) if sums[kernel.EXACT] else 0.0
        if sums[kernel.TOTAL] or sums[kernel.BROKEN] or self.companions.of(real) is not None:
            own = not inexact or 2 * sums[kernel.TOGETHER] > sums[kernel.TOTAL]
            origin = tally if own else _most(where.operation, inexact).origin
            self.companions.put(real, exact, relative, worst, origin, math.sqrt(sums[kernel.TOTAL]))
        if born is not None and sums[kernel.BORN]:
            if not (real.is_contiguous() and real.is_cpu):
                born = torch.empty_like(real, dtype=born.dtype).copy_(born)
            self._new.append((real, born, tally, where.layer))
        return tally, worst, place

    def _await(self, x: Tensor, error: Tensor, whose: Tally | Perhaps | None) -> None:
        """Weigh an error of a result of the running layer's once its gradient comes."""
        self._new.append((x, error, whose, self._where("", "").layer))

    def follow_data(
        self, result: Tensor, local: Tensor, other: Tensor, origin: Tally | None, own: Tally | None
    ) -> None:  # fmt: skip
        """Weigh what operands without gradients did to a result, for the operation where their error was born.

        ``local``, ``other``: the operation on its own operands, and on those with exact ones where they are data. In a
        function of its own ``other`` is kept: what is exact of what the function was given. ``own``: see :meth:`judge`.
        """
        apart = _apart(local, other)
        if self.region is None:
            self._await(result, apart, origin)
            return
        carried, born = (float(torch.linalg.vector_norm(x)) for x in (apart, wide(result) - halves(local)[0]))
        size = float(torch.linalg.vector_norm(halves(other)[0]))
        relative = math.hypot(carried, born) / size if size else 0.0
        self.region.put(result, other, relative, origin=own if born > carried else origin)

    def follow_rest(self, view: Tensor) -> None:
        """Weigh what is inexact in the rest of a tensor of which a part was written to, whence all has a gradient."""
        base = view._base
        companion = None if base is None else self.companions.of(base)
        if base is None or companion is None or companion.origin is None or base.dtype != view.dtype:
            return
        plain = base.detach()
        apart = _apart(wide(plain), self.companions.exact(plain))
        rest = torch.empty_strided(base.shape, base.stride(), dtype=apart.dtype).copy_(apart)
        rest.as_strided(*_geometry(view, base)[0]).zero_()
        self._await(base, rest, companion.origin)

    @contextmanager
    def inside(self, given: Any) -> Iterator[list[Any]]:
        """While a function of its own computes; its results are appended, and their errors weighed as one."""
        results: list[Any] = []
        if self.region is not None:  # inside another
            yield results
            return
        self.link()
        self.region, self.quantising.inside = Companions(self.companions.doubled), Companions(self.companions.doubled)
        try:
            yield results
            with torch._C._DisableTorchDispatch(), torch.no_grad(), torch._C.DisableTorchFunction():
                learned = {key(x) for x in tree_leaves(given) if floating(x) and x.requires_grad}
                for x in tree_leaves(results):
                    if floating(x) and x.grad_fn is not None and (key(x) not in learned or self.region.of(x)):
                        self._function(x)
        finally:
            self.region = None

    def _function(self, x: Tensor) -> None:
        """Weigh what was born in a function of its own, but for what its last operation adds, which is weighed."""
        assert self.region is not None
        plain = x.detach()
        whose = self.companions if self.region.of(plain) is None else self.region
        held, exact = whose.of(plain), whose.value(plain)
        self._function_quantises(x)
        if held is not None and held.origin is not None and exact is not None:
            apart = _apart(self.companions.widened(wide(plain)), exact)
            for other, born, tally, _ in self._new:
                if other is x and born is not None and isinstance(tally, Tally):
                    apart -= born
            self._await(x, apart, held.origin)

    def _function_quantises(self, x: Tensor) -> None:
        """Weigh what roundings in a function of its own did to a result, once they are known to quantise."""
        note, value = self.quantising.note(x), self.quantising.inside.value(x.detach())
        if note is not None and note.records and value is not None:
            self._new = [new for new in self._new if new[0] is not x or not isinstance(new[2], Perhaps)]
            apart = _apart(self.companions.widened(wide(x.detach())), value)
            record = max(note.records, key=lambda r: float(r.sums[kernel.BORN]))
            self._await(x, apart, Perhaps(record, record.tally))

    def begin_anew(self, func: Any, writes: Sequence[Tensor], counted: bool) -> None:
        """What an operation wrote is taken as exact: random numbers, or what has no float64 form."""
        for x in writes:
            if self.companions.of(x) is not None:
                self.companions.put(x, wide(x))
        if counted:
            self.anew[base_name(func)] += 1

    def _lengths(self, name: str, args: Any, real: Tensor) -> None:
        """Remember of what products a result is the sum: several of one layer are a product in parts of k."""
        companion = self.companions.of(real)
        if companion is None:
            return
        if name in exact_operations.MATRIX_PRODUCTS:
            companion.lengths = (args[-1].shape[-2 if args[-1].dim() > 1 else 0],)
        elif name == "add" and len(args) > 1 and all(isinstance(x, Tensor) for x in args[:2]):
            summands = [self.companions.of(x) for x in args[:2]]
            lengths = [h.lengths if h is not None else () for h in summands]
            if all(lengths) and args[0].shape == args[1].shape:
                companion.lengths = lengths[0] + lengths[1]
                here = self._where(name, "").layer
                self.splits[here] = max(self.splits.get(here, ()), companion.lengths, key=len)

    def _constants(self, name: str, args: Any, dtype: torch.dtype) -> None:
        if name in _ADDITIONS and dtype in FLOATS:
            info = torch.finfo(dtype)
            smallest = info.smallest_normal * info.eps
            for value in args[1:2]:
                if isinstance(value, float) and 0 < abs(value) <= smallest / 2:
                    where = self._where(name, spelt(dtype))
                    self.constants[where] = Constant(where, value, smallest)

    def _trace(self, step: Step, real: Tensor, exact: Tensor, worst: float, place: int) -> None:
        name, kwargs = step.event.name, step.event.kwargs
        where = self._where(name, "")
        given = tuple(step.before.get(id(x), x) if isinstance(x, Tensor) else x for x in step.event.args)
        exactly = self.companions.exact if not step.before else lambda x: x.double()
        index = tuple(int(i) for i in np.unravel_index(place, real.shape)) if real.dim() else ()
        pairs, bits = exact_operations.operands(name, given, kwargs, real.shape, place, exactly, float(exact[index]))
        result = Element(
            where.layer, where.phase, name, index, float(real[index]), float(exact[index]), worst, pairs, bits
        )
        same = [e for e in self.elements if e[:3] == result[:3]]
        if same and same[0].relative >= worst:
            return
        self.elements = sorted([*(e for e in self.elements if e not in same), result], key=lambda e: -e.relative)[:KEPT]

    # --- what errors do to the last value ---------------------------------------------------------------------------

    def link(self) -> None:
        """Tell the nodes of the last results whose they are, and weigh what was born there once a gradient comes."""
        self._judged = 0, None, None
        for tensor, born, tally, layer in self._new:
            node: Any = tensor.grad_fn
            if node is None:
                continue
            node.metadata[_LAYER] = layer
            if born is not None and tally is not None and not _recomputes(node):  # else that counts
                base = tensor._base
                if base is not None and base.grad_fn is not None and base.dtype == tensor.dtype:  # written to in place
                    window = partial(_window, *_geometry(tensor, base))
                    base.grad_fn.register_prehook(partial(self._weigh, born, tally, base.output_nr, window))
                else:
                    node.register_prehook(partial(self._weigh, born, tally, tensor.output_nr, None))
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
        self._weigh(born, tally, 0, None, gradients)

    def _weigh(
        self,
        born: Tensor,
        tally: Tally | Perhaps,
        place: int,
        window: Callable[[Tensor], Tensor] | None,
        gradients: Sequence[Any],
    ) -> None:
        gradient = gradients[place]
        if gradient is None or not dense(gradient) or (isinstance(tally, Perhaps) and not tally.record.counted):
            return
        tally = tally.tally if isinstance(tally, Perhaps) else tally
        with torch._C._DisableTorchDispatch(), torch.no_grad(), torch._C.DisableTorchFunction():
            exact = self.companions.exact(gradient)
            computed = gradient.float() if gradient.itemsize == 1 else gradient  # FP8 is not promoted
            if window is not None:
                exact, computed = (window(x) for x in (exact, computed))
            exact, computed = exact.conj() * born, computed.conj() * born
            terms = exact.real if exact.is_complex() else exact
            one = float(terms.sum())
            other = float((computed.real if computed.is_complex() else computed).sum(dtype=torch.float64))
            tally.effect[0] += one
            tally.effect[1] += (one + other) / 2
            tally.weight += float(torch.linalg.vector_norm(terms)) ** 2

    def backward_begins(self, outputs: Any, gradients: Any) -> None:
        """What a backward pass starts from."""
        self.link()
        if torch._C._current_autograd_node() is None:  # a checkpoint's own pass is part of the one around it
            given = gradients if isinstance(gradients, (tuple, list)) else (gradients,) * len(outputs)
            for x, gradient in zip(outputs, given, strict=True):
                if floating(x):
                    self._root(x, gradient)
            self.follow_leaves()

    def _root(self, x: Tensor, gradient: Tensor | None) -> None:
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


Geometry = tuple[torch.Size, tuple[int, ...], int]


def _apart(x: Tensor, y: Tensor) -> Tensor:
    """``x - y`` in float64, 0 where it is not finite."""
    return difference(x, y).nan_to_num_(0.0, 0.0, 0.0)


def _geometry(view: Tensor, base: Tensor) -> tuple[Geometry, Geometry]:
    """Where a view lies in its base, and how that lies."""
    offset = int(view.storage_offset() - base.storage_offset())
    return (view.shape, view.stride(), offset), (base.shape, base.stride(), 0)


def _window(view: Geometry, base: Geometry, x: Tensor) -> Tensor:
    """The part of ``x``, of the shape of a base, that a view of it is."""
    return torch.empty_strided(*base[:2], dtype=x.dtype, device=x.device).copy_(x).as_strided(*view)


def _most(operation: str, inexact: Sequence[Companion]) -> Companion:
    """The operand that most of a result's error comes from: in a sum the largest error, else the largest relative."""
    return max(inexact, key=lambda h: h.error if operation in ("add", "sub", "rsub") else h.relative)


def _recomputes(node: Any) -> bool:
    """Whether a node of the backward pass is a checkpoint that computes its part of the forward pass anew."""
    return type(node).__name__ == "CheckpointFunctionBackward"


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
    dtype = getattr(torch, fmt, None)
    if dtype in INTEGERS:
        tiny, largest = 0.0, float(torch.iinfo(dtype).max)
    elif dtype is not None:
        tiny, largest = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    else:
        tiny, largest = 2.0 ** formats.get(fmt).emin, formats.get(fmt).max
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
