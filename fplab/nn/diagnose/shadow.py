"""The block: ``with shadow() as s: ...``."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch

from ...errors import LabError, quotes_call, unknown
from ...words import say
from ..emulation.context import refuse_compiled
from ..emulation.modes import demand_eager
from ..witness import WITNESSES
from .double_double import halves
from .error_sums import Run
from .exact_dispatch import NO_COMPILER, Following
from .quantization import Quantising
from .shadow_report import Report, make
from .tensors import floating, wide
from .tracer import backward_passes, functions

PRECISIONS = ("fp64", "double-double")


class Shadow:
    """What :func:`shadow` returns: a context manager; its questions may be asked in the block and after it."""

    def __init__(self, run: Run | None = None) -> None:
        self._run = Run() if run is None else run
        self._undo: ExitStack | None = None

    def __enter__(self) -> Shadow:
        if self._undo is not None:
            raise LabError("this shadow is already entered; a second block needs a shadow of its own.")
        demand_eager(NO_COMPILER)
        with ExitStack() as undo:
            undo.enter_context(self._run.followed())
            refuse_compiled(undo, NO_COMPILER)
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
            found = self._run.companions.window(x)
            return wide(x) if found is None else found.clone()

    def rest(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is to be added to :meth:`exact`, float64: zeros but where ``precision`` is "double-double"."""
        exact = self.exact(tensor)
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            found = self._run.companions.value(tensor.detach())
            low = None if found is None else halves(found)[1]
            return torch.zeros_like(exact) if low is None else low.clone()

    @property
    def bytes(self) -> int:
        """Bytes that companions take now."""
        held = self._run.companions, self._run.quantising.without
        for companions in held:
            companions.sweep()
        return sum(companions.bytes for companions in held)

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
    own; views, operations in place and optimizers' steps are followed. What leaves torch (numpy) begins anew, exact,
    except :func:`fplab.nn.quantize` and :func:`fplab.nn.formats`; so do operations that float64 lacks, which the report
    names.

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
