"""How every operation is followed: the run's own result, the same on its own operands exactly, and on exact ones.

The difference of the first two was born in the operation; that of the last two came with the operands. Both together
are the error of the result, element by element. So an operation costs two more in float64, and one where its operands
are exact.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from ...errors import LabError
from ...words import part
from ..emulation import modes
from ..emulation.operations import base_name, name_of
from ..ranks import is_spread, refused_as_spread
from . import exact_operations
from .companions import key
from .double_double import copied, evaluating
from .error_sums import Run
from .quantization import Side, Step, Value
from .tensors import among, floating, wide
from .tracer import Operations

Tensor = torch.Tensor
NO_COMPILER = part(
    "torch.compile inside fplab.nn.shadow: a compiled model runs kernels of its own, whose results have no companions. "
    "Call the model that is not compiled, or torch.compiler.set_stance('force_eager') inside the block."
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


class Values(NamedTuple):
    """How an operation's operands are asked for, see :meth:`Following._values`."""

    computed: Value
    exactly: Value
    inside: Value


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

    def operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One operation."""
        with torch._C.DisableTorchFunction():
            self.run.link()
            self.run.recording = torch.is_grad_enabled()
            return self._operation(func, args, kwargs)

    def _operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        companions, quantising = self.run.companions, self.run.quantising
        noted = quantising.concerns(func, (args, kwargs))
        if noted:
            with torch._C._DisableTorchDispatch(), torch.no_grad():
                quantising.confirm(func, args, kwargs, self._sides(self._values({}, set())))
        inputs = among((args, *kwargs.values()), lambda x: companions.held(x) is not None)
        integers = not all(map(floating, inputs))
        if integers and not (func.is_view or base_name(func) in exact_operations.INTEGRAL | exact_operations.MOVES):
            inputs, integers = [x for x in inputs if floating(x)], False
            self.run.begin_anew(func, (), True)
        if exact_operations.leaves(func, args):
            self.run.anew[exact_operations.leaves(func, args)] += 1
        if not (inputs or noted) or exact_operations.makes(func):
            return func(*args, **kwargs)  # integers and masks, and new data: exact by what they are
        held = [h for x in inputs if (h := companions.held(x)) is not None]
        learned = {id(x) for x in inputs if x.requires_grad}
        for x in inputs if held and self.run.recording else ():
            leaf = x.requires_grad and x.is_leaf and not x._is_view()
            if leaf and companions.held(x) is not None:
                self.run.leaves.setdefault(id(x), (x, self.run.here))
        whole = (lambda x: True) if integers or exact_operations.narrows(func, args, kwargs) else None
        if held and whole is None:
            with torch._C._DisableTorchDispatch():
                whole = (lambda x: True) if exact_operations.keeps_all(func, args, kwargs) else None
        given = [kwargs.get(name, args[i] if i < len(args) else None) for i, name in exact_operations.written(func)]
        writes = among(given, whole)
        changed = {key(x) for x in writes}
        # What is read before it is overwritten, also through another window on the same storage.
        before = {}
        if changed:
            with torch._C._DisableTorchDispatch():
                before = {id(x): wide(x.detach()) for x in (*inputs, *writes) if key(x) in changed}
        result = func(*args, **kwargs)
        results = among(result, whole)
        self.run.mark(results)
        known = {key(x) for x in inputs}
        fresh = [x for x in results if key(x) not in known]
        one_dtype = len({x.dtype for x in (*inputs, *fresh)}) == 1
        moves = exact_operations.moves(func) or (one_dtype and exact_operations.casts(func))
        if not (writes or fresh or noted) or (moves and not held and not noted):
            return result
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            values = self._values(before, learned)
            made = None
            if noted := noted and (bool(given) or not func.is_view):  # else another window, of which the same is known
                with suppress(*UNFOLLOWED):
                    sides, through = self._sides(values), learned if self.run.recording else set()
                    step = Step(func, args, kwargs, result, sides, self._on, values.computed, through)
                    made = quantising.made(step)
            if exact_operations.random(func) and name_of(func) != "native_dropout":
                self.run.begin_anew(func, writes, bool(held))
            elif (writes or fresh) and not (moves and not held):
                self._follow(func, args, kwargs, result, held, writes, fresh, before, moves, learned, values)
            if noted:
                self.run.keep(func, made, [x for x in tree_leaves(given) if isinstance(x, Tensor)])
        return result

    def _values(self, before: dict[int, Tensor], learned: set[int]) -> Values:
        """Of an operation's operands the values as computed, exact, and of what a function of its own was given.

        ``before``: those that it overwrites.
        """
        companions, region = self.run.companions, self.run.region
        widened = {i: companions.widened(x) for i, x in before.items()}  # each operand once, for both

        def computed(x: Tensor) -> Tensor:
            if id(x) not in widened:
                if not floating(x) and companions.held(x) is None:
                    return x
                plain = x if x.dtype in (torch.float64, torch.complex128) else wide(x)
                widened[id(x)] = companions.widened(plain)
            return widened[id(x)]

        def exactly(x: Tensor) -> Tensor:
            found = companions.value(x)
            return computed(x) if found is None else found

        def inside(x: Tensor) -> Tensor:
            found = None if region is None else region.value(x)
            return found if found is not None else computed(x) if id(x) in learned else exactly(x)

        return Values(computed, exactly, inside)

    def _sides(self, values: Values) -> list[Side]:
        sides = [Side(self.run.companions, self.run.quantising.without, values.exactly)]
        if self.run.region is not None:
            sides.append(Side(self.run.region, self.run.quantising.inside, values.inside))
        return sides

    def _follow(
        self, func: Any, args: Any, kwargs: Any, result: Any, held: Any, writes: list[Tensor], fresh: list[Tensor],
        before: dict[int, Tensor], moves: bool, learned: set[int], values: Values,
    ) -> None:  # fmt: skip
        """The companions of one operation's results. ``learned``: the operands that have gradients."""
        companions = self.run.companions
        own = {id(x): copied(companions.widened(before[id(x)])) for x in writes}
        try:
            if any(own[id(x)].shape != x.shape for x in writes):
                raise RuntimeError("an out= that was resized")
            for x in [x for x in writes if held and companions.held(x) is None]:
                companions.put(x, copied(companions.widened(before[id(x)])))
            local = exact = None
            if not moves:
                local = self._on(func, args, kwargs, values.computed, result, own)
            mixed = self._on_exact_data(func, args, kwargs, result, values, learned, writes) if held else None
            true = own
            if held:
                true = {id(x): companions.open(x) for x in writes}
                exact = self._on(func, args, kwargs, values.exactly, result, true)
            else:
                exact = local
        except UNFOLLOWED as error:
            self.run.begin_anew(func, writes, True, error)
            return
        found = [(x, own[id(x)], true[id(x)], mixed and mixed.written.get(id(x))) for x in writes]
        if fresh:
            new = {id(x) for x in fresh}
            given = (result, local, exact, mixed and mixed.result)
            sides = [tree_leaves(side if side is not None else exact) for side in given]
            if len({len(side) for side in sides}) == 1:
                found += [four for four in zip(*sides, strict=True) if id(four[0]) in new]
        for real, within, value, other in found:
            if isinstance(within, Tensor) and within.shape == real.shape and real.numel():
                if moves:
                    relative = max((h.relative for h in held), default=0.0)
                    most = max(held, key=lambda h: h.error)
                    companions.put(real, value, relative, max(h.worst for h in held), most.origin, most.error)
                    within, tally = companions.widened(wide(real)), None
                else:
                    tally = self.run.judge(func, args, kwargs, real, within, value, held, before)
                if mixed is not None and other is not None:
                    self.run.follow_data(real, within, other, mixed.origin, tally)
        for x in writes if held and learned and self.run.recording else ():
            if id(x) not in learned:
                self.run.follow_rest(x)

    def _on(self, *operation: Any) -> Any:
        """An operation on companions, as :func:`exact_operations.on`."""
        if not self.run.companions.doubled:
            return exact_operations.on(*operation)
        with evaluating(self.run.narrow):
            return exact_operations.on(*operation)

    def _on_exact_data(
        self, func: Any, args: Any, kwargs: Any, result: Any, values: Values, learned: set[int], writes: list[Tensor]
    ) -> Mixed | None:
        """An operation on operands that are exact where they have no gradient, and where most of their error was born.

        No gradient tells what the errors of such operands do: the first operation that has one tells it for them. In
        a function of its own (:class:`torch.autograd.Function`) nothing has a gradient but what it was given, and only
        its results' gradients tell.
        """
        companions, region = self.run.companions, self.run.region
        operands = among((args, *kwargs.values()), lambda x: companions.held(x) is not None)
        data = [h for x in operands if id(x) not in learned and (h := companions.held(x)) is not None]
        if region is None and not (self.run.recording and learned):
            return None
        origins = [h for h in data if h.origin is not None]
        if region is not None:
            inside = [h for x in operands if (h := region.held(x)) is not None]
            if not inside and not any(companions.held(x) is not None for x in operands if id(x) in learned):
                return None  # the exact values are those of what the function was given
            origins = [h for h in inside if h.origin is not None] or origins
        elif not origins:
            return None
        written = {id(x): copied(values.inside(x)) for x in writes}
        found = self._on(func, args, kwargs, values.inside, result, written)
        return Mixed(found, written, max(origins, key=lambda h: h.relative).origin if origins else None)
