"""How every operation is followed: the run's own result, the same on its own operands exactly, and on exact ones.

The difference of the first two was born in the operation; that of the last two came with the operands. Both together
are the error of the result, element by element. So an operation costs two more in float64, and one where its operands
are exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...errors import LabError
from ..emulation import modes
from ..emulation.operations import name_of
from . import operations
from .companions import key
from .double_double import difference, evaluating
from .tallies import Run
from .tensors import among, wide

Tensor = torch.Tensor
_PLAIN_TENSOR = torch.Tensor.__torch_dispatch__
ORDER = (
    "the emulation was entered inside the shadow, which then sees nothing of its products. Enter the shadow last: "
    "with emulate(...), shadow() as s:"
)


class Following(TorchDispatchMode):
    """Sees every operation below autograd and takes the exact values along."""

    watches = True  # what an emulation puts around the nodes of a backward pass goes beneath

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see Mode in emulation.modes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if modes.working():
            raise LabError(ORDER)
        if any(t.__torch_dispatch__ is not _PLAIN_TENSOR for t in types):
            return NotImplemented  # a tensor of another kind takes itself apart first
        with torch._C.DisableTorchFunction():
            self.run.link()
            self.run.recording = torch.is_grad_enabled()
            return self._operation(func, args, kwargs or {})

    def _operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        inputs = among((args, *kwargs.values()))
        if not inputs or operations.makes(func):
            return func(*args, **kwargs)  # integers and masks, and new data: exact by what they are
        held = [h for x in inputs if (h := self.run.companions.held(x)) is not None]
        for x in inputs if held and self.run.recording else ():
            leaf = x.requires_grad and x.is_leaf and not x._is_view()
            if leaf and self.run.companions.held(x) is not None:
                self.run.leaves.setdefault(id(x), (x, self.run.here))
        places = operations.written(func)
        given = [kwargs.get(name, args[i] if i < len(args) else None) for i, name in places]
        writes = among(given)
        changed = {key(x) for x in writes}
        # What is read before it is overwritten, also through another window on the same storage.
        before = {}
        if changed:
            with torch._C._DisableTorchDispatch():
                before = {id(x): wide(x.detach()) for x in inputs if key(x) in changed}
        result = func(*args, **kwargs)
        results = among(result)
        self.run.mark(results)
        known = {key(x) for x in inputs}
        fresh = [x for x in results if key(x) not in known]
        one_dtype = len({x.dtype for x in (*inputs, *fresh)}) == 1
        moves = operations.moves(func) or (one_dtype and operations.casts(func))
        if not (writes or fresh) or (moves and not held):
            return result
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            dropout = name_of(func) == "native_dropout"
            if operations.random(func) and not dropout:
                self.run.begin_anew(func, writes, bool(held))
            else:
                self._follow(func, args, kwargs, result, held, writes, fresh, before, moves)
        return result

    def _follow(
        self, func: Any, args: Any, kwargs: Any, result: Any, held: Any, writes: list[Tensor], fresh: list[Tensor],
        before: dict[int, Tensor], moves: bool,
    ) -> None:  # fmt: skip
        """The companions of one operation's results."""
        companions = self.run.companions
        own = {id(x): companions.widened(before[id(x)]) for x in writes}
        widened = {**{i: companions.widened(x) for i, x in before.items()}, **own}  # each operand once, for both

        def as_computed(x: Tensor) -> Tensor:
            if id(x) not in widened:
                plain = x if x.dtype in (torch.float64, torch.complex128) else wide(x)
                widened[id(x)] = companions.widened(plain)
            return widened[id(x)]

        def exactly(x: Tensor) -> Tensor:
            found = companions.value(x)
            return as_computed(x) if found is None else found

        try:
            if any(own[id(x)].shape != x.shape for x in writes):
                raise RuntimeError("an out= that was resized")
            for x in [x for x in writes if held and companions.held(x) is None]:
                companions.put(x, companions.widened(before[id(x)].clone()))
            local = exact = None
            if not moves:
                local = self._on(func, args, kwargs, as_computed, result, own)
            mixed = None
            if held and not moves and not writes and self.run.recording:
                mixed = self._on_exact_data(func, args, kwargs, result, as_computed, exactly)
            true = own
            if held:
                true = {id(x): companions.open(x) for x in writes}
                exact = self._on(func, args, kwargs, exactly, result, true)
            else:
                exact = local
        except (RuntimeError, NotImplementedError, TypeError, IndexError) as error:
            self.run.begin_anew(func, writes, True, error)
            return
        triples = [(x, own[id(x)], true[id(x)]) for x in writes]
        if fresh:
            new = {id(x) for x in fresh}
            sides = [tree_leaves(side if side is not None else exact) for side in (result, local, exact)]
            if len({len(side) for side in sides}) == 1:
                triples += [three for three in zip(*sides, strict=True) if id(three[0]) in new]
        for real, within, value in triples:
            if isinstance(within, Tensor) and within.shape == real.shape and real.numel():
                if moves:
                    relative = max((h.relative for h in held), default=0.0)
                    companions.put(real, value, relative, max((h.worst for h in held), default=0.0), held[0].origin)
                else:
                    self.run.judge(func, args, kwargs, real, within, value, held, before)
                    if mixed is not None and real is fresh[0]:
                        self.run.follow_data(real, difference(within, mixed[0]), mixed[1])

    def _on(self, *operation: Any) -> Any:
        """An operation on companions, as :func:`operations.on`."""
        if not self.run.companions.doubled:
            return operations.on(*operation)
        with evaluating(self.run.narrow):
            return operations.on(*operation)

    def _on_exact_data(
        self, func: Any, args: Any, kwargs: Any, result: Any, computed: Any, exactly: Any
    ) -> tuple[Tensor, Any] | None:
        """A result of operands that are exact where they have no gradient, and where most of their error was born.

        No gradient tells what the errors of such operands do: the first operation that has one tells it for them.
        """
        operands = among((args, *kwargs.values()))
        data = [h for x in operands if not x.requires_grad and (h := self.run.companions.held(x)) is not None]
        if not data or data[0].origin is None or not any(x.requires_grad for x in operands):
            return None
        mixed = self._on(func, args, kwargs, lambda x: computed(x) if x.requires_grad else exactly(x), result, {})
        return tree_leaves(mixed)[0], data[0].origin
