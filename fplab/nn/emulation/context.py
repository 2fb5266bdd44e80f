"""The block: ``with emulate("H100"): ...``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch

from ... import formats
from ...errors import LabError, quotes_call
from ...formats import FormatName
from ...tensorcore.models import Model
from ...tensorcore.plan import ONE_CHAIN, AnyPlan
from ..recipes import Recipe, get_recipe
from . import operations
from .following import followed
from .modes import NO_COMPILER, Mode, demand_eager
from .run import Run
from .settings import Scaling, Settings


class Emulation(Run):
    """What :func:`emulate` returns: a context manager, and :meth:`report` in and after the block."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._blocks: list[tuple[Mode, ExitStack]] = []
        self._thread = 0

    def __enter__(self) -> Emulation:
        demand_eager()
        if self._blocks and self._thread != threading.get_ident():
            raise LabError("this emulation is open in another thread; open one of its own, emulate(...), in each.")
        self._thread = threading.get_ident()
        mode, undo = Mode(self), ExitStack()
        try:
            _refuse_compiled(undo)
            undo.enter_context(self.places.watched())
            undo.enter_context(followed(mode))
        except BaseException:
            undo.close()
            raise
        if not self._blocks:
            self.new_step()
        self._blocks.append((mode, undo))
        self.open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        mode, undo = self._blocks.pop()
        self.open = bool(self._blocks)
        undo.close()
        mode.link()
        if kind is None and not self._blocks:
            self.choices.demand_matched()


@quotes_call
def emulate(
    gpu: str | Model = "H100",
    inputs: FormatName | None = None,
    accumulate: FormatName = "fp32",
    *,
    gradients: FormatName | None = None,
    store: FormatName | None = None,
    scaling: Scaling | None = None,
    allow: Iterable[str] = (),
    instruction: str | None = None,
    conversion: str = "truncate",
    recipe: str | Recipe | None = None,
    layers: Mapping[str, str | Recipe | AnyPlan] | None = None,
    plan: AnyPlan | None = None,
    fallback: str | None = None,
) -> Emulation:
    """Compute every matrix product of torch in a GPU's bits, forward and backward, within a ``with`` block.

    Of tensors on the CPU; of CUDA tensors on their device, by :mod:`fplab.nn.device`, whose kernels no GPU has run yet.
    There a NaN that torch casts to a narrower dtype, or adds a bias to, has torch's bits.

    A ``backward()`` after the block still computes what the block recorded in those bits: a plain backward pass, one
    through ``torch.utils.checkpoint``, and second derivatives. Everything that is not a product stays torch's own.

    ``gpu``: a name or a :class:`~fplab.tensorcore.Model`. ``inputs``: what FP32 operands are rounded to: "fp16" (None),
    "bf16", "tf32", "e4m3", "e5m2" (Blackwell also "e3m2", "e2m3", "e2m1"). FP16, BF16 and FP64 tensors take the unit of
    their own dtype, as on a GPU, unless ``inputs`` has 8 bits or fewer; what torch scales itself (``torch._scaled_mm``
    and its grouped form, as torchao trains) is of its own formats and scales, where the GPU has the unit.
    ``gradients``: the format of the incoming gradient in backward products; None is ``inputs``.
    ``accumulate``: "fp32" or "fp16", the unit's output. A result has the operands' dtype and is rounded to it once, at
    the end; ``store`` names a format to which it is rounded before. A bias is added in FP32 in between, as in
    cuBLASLt's epilogue (an open question, see :meth:`Emulation.report`). ``instruction``, ``conversion``: as in
    :func:`fplab.tensorcore.matmul`.

    ``recipe``: a name of :data:`fplab.nn.recipes.RECIPES` or a :class:`~fplab.nn.recipes.Recipe`, which says how each
    operand of each product of a layer is quantised; ``inputs`` is then the format of what stays high. Weights are told
    by being parameters, or made of them alone. The state of delayed scaling, and the step that stochastic rounding
    draws by, are in :meth:`Emulation.state_dict`; ``torch.distributed.checkpoint`` takes an emulation as it is, under a
    name of each rank's own. In a pipeline, whose ranks have layers of their own, a recipe needs ``reduce_amax=False``,
    and ``keep_last`` counts the stage's; there and in tensor parallel stochastic rounding draws by the number of a
    product in its own process.
    ``layers``: a recipe or a plan for layers by their path in the model, or by a pattern of it,
    ``{"*.mlp.*": "nvfp4", "lm_head": "bf16"}``; the first that fits wins, and a recipe given so keeps nothing high.
    ``plan``: the order of k (:class:`fplab.tensorcore.Plan`, or a rule for it by the rows of each product,
    :class:`fplab.tensorcore.PlanByRows`) of all others. ``fallback``: "bf16" for a GPU that has no unit for the recipe:
    operands are dequantised to BF16 and multiplied as such.

    ``scaling``: for FP8; ``scale(role, tensor)`` gives the number by which an operand is multiplied, in FP32, before it
    saturates into its format, and the product is divided by both: times the product of their rounded reciprocals. A
    role is such as "blocks.1.proj forward 0 a": layer (its path in the model; a model itself by its class, "Linear 1"),
    pass, number of the product in it, operand, and " gradient" after one that is. With it, and with ``gradients``, a
    checkpoint asks for the same roles when it recomputes, or is given again what it had.

    Without it operands saturate as they are, which warns once.

    ``allow``: products that may run unemulated ("linalg_qr", "mylib::op", or of tensors that no unit takes, "mm of
    int64"); any other raises LabError where it is met.
    torch.compile is refused.

    Threads that are started inside the block, a pool's among them, compute in it until it ends, one product at a time;
    with ``gradients``, ``scaling`` or a recipe their products are refused, since threads have no order. A module that
    is called in a thread of before the block is refused (bare functions there are not seen), unless the thread is in
    a block of its own. A backward pass may run in any thread.

    >>> import torch
    >>> layer = torch.nn.Linear(4, 2)
    >>> with emulate("H100") as run:
    ...     loss = layer(torch.ones(3, 4)).sum()
    >>> loss.backward()
    >>> [(row.layer, row.phase, row.operation) for row in run.report().rows]
    [('Linear 1', 'forward', 'addmm'), ('Linear 1', 'backward', 'mm')]
    """
    chosen = None if recipe is None else get_recipe(recipe)
    if chosen is not None and inputs is not None:
        chosen = replace(chosen, high=formats.spelt(inputs))
    inputs = inputs or (chosen.high if chosen else "fp16")
    given = {pattern: one if isinstance(one, AnyPlan) else get_recipe(one) for pattern, one in (layers or {}).items()}
    forward, sums, backward, stored = map(formats.spelt, (inputs, accumulate, gradients or inputs, store))
    allowed = operations.allowed_names(allow)
    settings = Settings(
        gpu, forward, sums, backward, stored, scaling, allowed, instruction, conversion, chosen, given,
        plan or ONE_CHAIN, fallback,
    )  # fmt: skip
    return Emulation(settings)


class _Refusing:
    """A compiler backend that is asked for its name at every call of a compiled function, and refuses."""

    @property
    def compiler_name(self) -> str:
        raise LabError(NO_COMPILER)

    def __call__(self, *args: Any) -> Any:
        raise LabError(NO_COMPILER)


def _refuse_compiled(undo: ExitStack) -> None:
    """Calls of compiled functions raise; torch itself would run them uncompiled or, if a cache says so, as they are."""
    if "torch._dynamo" in sys.modules:  # else nothing is compiled yet, and what the block compiles meets demand_eager
        undo.enter_context(torch.compiler.set_stance("default", force_backend=_Refusing()))
