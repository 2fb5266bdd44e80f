"""The block ``with shadow() as s: ...``, and how every operation in it is followed.

The run's own result, the same on its own operands exactly, and on exact ones: the difference of the first two was born
in the operation; that of the last two came with the operands. Both together are the error of the result, element by
element. So an operation costs two more in float64, and one where its operands are exact.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from ...errors import LabError, quotes_call, unknown
from ...words import part, say
from ..emulation import modes
from ..emulation.cached import PASSED, cached
from ..ranks import is_spread, refused_as_spread
from ..straight_through import WITNESSES
from ..tracer import Event, Operations, backward_passes, functions, name_of
from . import exact_operations
from .companions import Companion, key
from .double_double import copied, halves
from .error_sums import CACHE, Run
from .quantization import Quantising, Step
from .shadow_report import Report, make
from .tensors import among, floating, wide

Tensor = torch.Tensor
NO_COMPILER = part(
    "torch.compile compiles inside fplab.nn.shadow, and its kernels' results have no companions. Call torch.compile "
    "before the block: in it a compiled model runs what it was compiled from."
)
UNFOLLOWED = (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError)  # what has no float64 form
ORDER = (
    "the emulation was entered inside the shadow, which then sees nothing of its products. Enter the shadow last: "
    "with emulate(...), shadow() as s:"
)


class Mixed(NamedTuple):
    """An operation on operands that are in part exact: its result, what it wrote to, whence most of their error is."""

    result: Any
    written: dict[int, Tensor]
    origin: Any


class Following(Operations):
    """Takes the exact values of every operation along."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def admit(self, func: Any, types: Any) -> None:
        """See :meth:`Operations.admit`."""
        if modes.working():
            raise LabError(ORDER)
        if any(map(is_spread, types)):
            raise refused_as_spread("shadow", name_of(func))
        modes.demand_eager(NO_COMPILER)

    def operation(self, event: Event) -> Any:
        """One operation."""
        event = run_cached(self.run, event)
        run, func = self.run, event.func
        run.link()
        run.recording = torch.is_grad_enabled()
        companions, quantising = run.companions, run.quantising
        noted = quantising.concerns(event)
        if noted:
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                quantising.confirm(Step(event, run, {}, set()))
        inputs = among((event.args, *event.kwargs.values()), lambda x: companions.of(x) is not None)
        integers = not all(map(floating, inputs))
        if integers and not (func.is_view or event.name in exact_operations.INTEGRAL | exact_operations.MOVES):
            inputs, integers = [x for x in inputs if floating(x)], False
            run.begin_anew(func, (), True)
        if left := exact_operations.leaves(event):
            run.anew[left] += 1
        if not (inputs or noted) or exact_operations.makes(func):
            return event.run()  # integers and masks, and new data: exact by what they are
        inexact = [h for x in inputs if (h := companions.of(x)) is not None]
        learned = {id(x) for x in inputs if x.requires_grad}
        for x in inputs if inexact and run.recording else ():
            leaf = x.requires_grad and x.is_leaf and not x._is_view()
            if leaf and companions.of(x) is not None:
                run.leaves.setdefault(id(x), (x, run.here))
        whole = (lambda x: True) if integers or exact_operations.narrows(event) else None
        if inexact and whole is None:
            with torch._C._DisableTorchDispatch():
                whole = (lambda x: True) if exact_operations.keeps_all(event) else None
        written = event.written
        writes = among(written, whole)
        changed = {key(x) for x in writes}
        # What is read before it is overwritten, also through another window on the same storage.
        before = {}
        if changed:
            with torch._C._DisableTorchDispatch():
                before = {id(x): wide(x.detach()) for x in (*inputs, *writes) if key(x) in changed}
        result = event.run()
        results = among(result, whole)
        run.mark(results)
        known = {key(x) for x in inputs}
        fresh = [x for x in results if key(x) not in known]
        one_dtype = len({x.dtype for x in (*inputs, *fresh)}) == 1
        moves = exact_operations.moves(func) or (one_dtype and exact_operations.casts(func))
        if not (writes or fresh or noted) or (moves and not inexact and not noted):
            return result
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            step = Step(event, run, before, learned)
            made = None
            if noted := noted and (bool(written) or not func.is_view):  # else another window, as well known
                with suppress(*UNFOLLOWED):
                    made = quantising.made(step)
            if exact_operations.random(func) and name_of(func) != "native_dropout":
                run.begin_anew(func, writes, bool(inexact))
            elif (writes or fresh) and not (moves and not inexact):
                self._follow(step, inexact, writes, fresh, moves)
            if noted:
                run.keep(event, made)
        return result

    def _follow(
        self, step: Step, inexact: list[Companion], writes: list[Tensor], fresh: list[Tensor], moves: bool
    ) -> None:
        """The companions of one operation's results."""
        run, companions, before, learned = self.run, self.run.companions, step.before, step.learned
        own = {id(x): copied(companions.widened(before[id(x)])) for x in writes}
        try:
            if any(own[id(x)].shape != x.shape for x in writes):
                raise RuntimeError("an out= that was resized")
            for x in [x for x in writes if inexact and companions.of(x) is None]:
                companions.put(x, copied(companions.widened(before[id(x)])))
            local = None if moves else step.on(step.computed, own)
            mixed = self._on_exact_data(step, writes) if inexact else None
            true, exact = own, local
            if inexact:
                true = {id(x): companions.open(x) for x in writes}
                exact = step.on(step.exactly, true)
        except UNFOLLOWED:
            run.begin_anew(step.event.func, writes, True)
            return
        result = [(x, own[id(x)], true[id(x)], mixed and mixed.written.get(id(x))) for x in writes]
        if fresh:
            new = {id(x) for x in fresh}
            given = (step.event.result, local, exact, mixed and mixed.result)
            sides = [tree_leaves(side if side is not None else exact) for side in given]
            if len({len(side) for side in sides}) == 1:
                result += [four for four in zip(*sides, strict=True) if id(four[0]) in new]
        for real, within, value, other in result:
            if isinstance(within, Tensor) and within.shape == real.shape and real.numel():
                if moves:
                    relative = max((h.relative for h in inexact), default=0.0)
                    most = max(inexact, key=lambda h: h.error)
                    companions.put(real, value, relative, max(h.worst for h in inexact), most.origin, most.error)
                    within, tally = companions.widened(wide(real)), None
                else:
                    tally = run.judge(step, real, within, value, inexact)
                if mixed is not None and other is not None:
                    run.follow_data(real, within, other, mixed.origin, tally)
        for x in writes if inexact and learned and run.recording else ():
            if id(x) not in learned:
                run.follow_rest(x)

    def _on_exact_data(self, step: Step, writes: list[Tensor]) -> Mixed | None:
        """An operation on operands that are exact where they have no gradient, and where most of their error was born.

        No gradient tells what the errors of such operands do: the first operation that has one tells it for them. In
        a function of its own (:class:`torch.autograd.Function`) nothing has a gradient but what it was given, and only
        its results' gradients tell.
        """
        companions, region, learned = self.run.companions, self.run.region, step.learned
        operands = among((step.event.args, *step.event.kwargs.values()), lambda x: companions.of(x) is not None)
        data = [h for x in operands if id(x) not in learned and (h := companions.of(x)) is not None]
        if region is None and not (self.run.recording and learned):
            return None
        origins = [h for h in data if h.origin is not None]
        if region is not None:
            inside = [h for x in operands if (h := region.of(x)) is not None]
            if not inside and not any(companions.of(x) is not None for x in operands if id(x) in learned):
                return None  # the exact values are those of what the function was given
            origins = [h for h in inside if h.origin is not None] or origins
        elif not origins:
            return None
        written = {id(x): copied(step.inside(x)) for x in writes}
        result = step.on(step.inside, written)
        return Mixed(result, written, max(origins, key=lambda h: h.relative).origin if origins else None)


def run_cached(run: Run, event: Event) -> Event:
    """Attention on what an emulation's cache gives back of keys and values, whose loss counts as the cache's own."""
    below = _get_current_dispatch_mode()
    cache = below.run.settings.kv_cache if isinstance(below, modes.Mode) else None
    if cache is None or "scaled_dot_product" not in event.name or event.name.endswith("backward"):
        return event
    query, *given = event.args
    for i, x in enumerate(given[:2]):
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            given[i] = cached(x, cache)
            given[i].__dict__[PASSED] = True
        run.rounded(x, given[i], cache, CACHE)
    return Event(event.func, (query, *given), event.kwargs)


PRECISIONS = ("fp64", "double-double")


class Shadow:
    """What :func:`shadow` returns: a context manager; its questions may be asked in the block and after it."""

    def __init__(self, run: Run | None = None) -> None:
        self._run = Run() if run is None else run
        self._undo: ExitStack | None = None

    def __enter__(self) -> Shadow:
        if self._undo is not None:
            raise LabError("this shadow is already entered; a second block needs a shadow of its own.")
        with ExitStack() as undo:
            modes.demand_eager(NO_COMPILER, undo)
            self._run.follow()
            undo.callback(self._run.unfollow)
            undo.enter_context(backward_passes(self._run.backward_begins))
            undo.enter_context(functions(self._run.inside))
            WITNESSES.append(self._run.rounded)
            undo.callback(WITNESSES.remove, self._run.rounded)
            undo.enter_context(Following(self._run))
            self._undo = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._undo is not None
        undo, self._undo = self._undo, None
        undo.close()
        self._run.link()
        self._run.quantising = Quantising(self._run.companions.doubled)

    def exact(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor's exact companion: float64 (complex128) in its shape, its own values where nothing was rounded."""
        if not floating(tensor):
            raise LabError(f"exact: {_named(tensor)} has no companion; pass a dense floating-point tensor of the run.")
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            x = tensor.detach()
            result = self._run.companions.window(x)
            return wide(x) if result is None else result.clone()

    def rest(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is to be added to :meth:`exact`, float64: zeros but where ``precision`` is "double-double"."""
        exact = self.exact(tensor)
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            result = self._run.companions.value(tensor.detach())
            low = None if result is None else halves(result)[1]
            return torch.zeros_like(exact) if low is None else low.clone()

    @property
    def bytes(self) -> int:
        """Bytes that companions take now."""
        stores = self._run.companions, self._run.quantising.without
        for companions in stores:
            companions.sweep()
        return sum(companions.bytes for companions in stores)

    def report(self) -> Report:
        """Where error was born and where it grew, so far; ``str`` of it is the waterfall over the layers."""
        return make(self._run)


@quotes_call
def shadow(precision: str = "fp64") -> Shadow:
    """Take every tensor's exact companion along beside a run, forward and backward, within a ``with`` block.

    The run itself keeps its bits. Each operation that torch records below autograd is done twice more in ``precision``:
    on the companions of its operands, and on the operands as they were computed; so what it adds itself is told from
    what it was given. ``precision``: "fp64", or where that does not suffice "double-double", about 106 bits of FP64's
    range and many times slower; what has no such form (erf, convolutions) is done in FP64, and the report names it.
    Weights and data are exact as they are. Integers, masks, indices, random numbers and Python's numbers are the run's
    own; views, operations in place and optimizers' steps are followed. What a cache of keys and values loses, under
    ``emulate(kv_cache=...)``, is an error of its own, the operation "kv_cache". What leaves torch (numpy) begins anew,
    exact, except :func:`fplab.nn.quantize` and :func:`fplab.nn.formats`; so do operations that float64 lacks, which the
    report names.

    A rounding that the run itself undoes quantises, and what is exact of it is its operand: ``round``, ``floor``,
    ``ceil``, ``trunc`` and ``clamp`` between a division by a scale and the multiplication by that scale (what snaps to
    a grid is one of these), also after a product of such numbers by the scales of both, and in ``x + (q -
    x).detach()``; ``torch.fake_quantize_*``; and every cast to 8 or 16 bits of integers. The error is born there, what
    is cut off included. All other roundings, of positions, indices, fractions, are functions that the model means: they
    are repeated exactly. ``backward()`` belongs inside the block. Beside an emulation the shadow is entered last:
    ``with emulate("H100"), shadow() as s:``.

    >>> import torch
    >>> with shadow() as s:
    ...     x = torch.tensor([1e8, 1.0]) + 1 - 1e8
    >>> s.exact(x).tolist(), x.tolist()
    ([1.0, -99999998.0], [0.0, -100000000.0])
    >>> with shadow("double-double") as s:
    ...     x = torch.tensor(1e16, dtype=torch.float64) + 1 - 1e16
    >>> s.exact(x).item(), x.item()
    (1.0, 0.0)
    """
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    return Shadow(Run(precision == "double-double"))


def _named(x: Any) -> str:
    named = say("a {kind} of {dtype}", dtype=x.dtype) if isinstance(x, torch.Tensor) else say("a {kind}")
    return str(named.fill(kind=type(x).__name__))
