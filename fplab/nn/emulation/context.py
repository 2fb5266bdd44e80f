"""The block: ``with emulate("H100"): ...``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType, TracebackType
from typing import Any

from ... import formats
from ...errors import LabError, quotes_call, warn
from ...formats import FormatName
from ...tensorcore.models import Model
from ...tensorcore.plan import ONE_CHAIN, AnyPlan
from ..recipes import Recipe, get_recipe
from . import operations
from .following import close_block, open_block
from .modes import Mode, demand_eager
from .run import Run
from .settings import Scaling, Settings


class Emulation(Run):
    """What :func:`emulate` returns: a context manager, and :meth:`report` in and after the block."""

    warned = False  # of a recipe that quantised no operand
    _thread = 0

    def __enter__(self) -> Emulation:
        mode, undo = Mode(self), ExitStack()
        demand_eager(undo=undo)
        if self.blocks and self._thread != threading.get_ident():
            raise LabError("this emulation is open in another thread; open one of its own, emulate(...), in each.")
        self._thread = threading.get_ident()
        try:
            if self.sites.follow():
                undo.callback(self.sites.unfollow)
            open_block(mode)
        except BaseException:
            undo.close()
            raise
        if not self.blocks and not self.fresh:
            self.new_step()
        self.fresh = False
        self.blocks.append((mode, undo))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        mode, undo = self.blocks.pop()
        close_block()
        undo.close()
        if mode.new:
            mode.link()
        settings = self.settings
        if kind is None and not self.blocks and (settings.layers or settings.recipe is not None):
            self.choices.demand_matched()
            self._demand_quantised()

    def _demand_quantised(self) -> None:
        """Warns, once, of a recipe whose scope left every product high."""
        recipe = self.settings.recipe
        if self.warned or recipe is None or not recipe.scope_record.modules or self.log.follows:
            return
        high = self.report().high
        if not high:
            return
        n = sum(row.count for row in high)
        self.warned = True
        warn(
            f"recipe={recipe.name!r} with scope {recipe.scope} has quantised no operand of "
            f"{n:,} product{'s' * (n != 1)}: {high[0].layer or '-'}: {high[0].why}. report() says why of "
            "each; with scope='all' a recipe takes every product, and layers= gives one to layers by name."
        )


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
    kv_cache: str | None = None,
    state: Emulation | Mapping[str, Any] | None = None,
) -> Emulation:
    """Compute every matrix product of torch in a GPU's bits, forward and backward, within a ``with`` block.

    Of tensors on the CPU; of CUDA tensors on their device, by :mod:`fplab.nn.device`, whose kernels no GPU has run yet.
    There a NaN that torch casts to a narrower dtype, or adds a bias to, has torch's bits.

    A ``backward()`` after the block still computes what the block recorded in those bits: a plain backward pass, one
    through ``torch.utils.checkpoint``, and second derivatives. Everything that is not a product stays torch's own.

    ``gpu``: a name or a :class:`~fplab.tensorcore.Model`. Each product takes the unit of its tensors' dtype, as on the
    GPU, under ``torch.autocast`` of the cast's. FP32 tensors follow torch's flags as they are when a product runs: by
    default matrices are multiplied in FP32 on the CUDA cores, and cuDNN's convolutions, LSTMs, GRUs and RNNs in TF32.
    The flags are ``torch.backends.cuda.matmul.fp32_precision`` (``allow_tf32``, ``torch.set_float32_matmul_precision``)
    and ``torch.backends.cudnn.conv`` and ``.rnn.fp32_precision`` (``torch.backends.cudnn.allow_tf32``); a GPU without
    TF32 stays with FP32.

    ``inputs``: another format, to which FP32 operands are rounded whatever the flags say: "fp16", so that an FP32 model
    runs as if it were cast, "bf16", "tf32", "fp32", "e4m3", "e5m2" (Blackwell also "e3m2", "e2m3", "e2m1"); of a Model
    given as ``gpu`` its own. FP16, BF16 and FP64 tensors keep the unit of their own dtype, unless ``inputs`` has 8 bits
    or fewer; what torch scales itself (``torch._scaled_mm`` and its grouped form, as torchao trains) is of its own
    formats and scales, where the GPU has the unit.
    ``gradients``: the format of the incoming gradient in backward products; None is ``inputs``.
    ``accumulate``: "fp32" or "fp16", the output of FP16 and FP8 units. A result has the operands' dtype and is rounded
    to it once, at the end; ``store`` names a format to which it is rounded before. A bias is added in FP32 in between,
    as in cuBLASLt's epilogue (an open question, see :meth:`Emulation.report`). ``instruction``, ``conversion``: as in
    :func:`fplab.tensorcore.matmul`.

    ``recipe``: a name of :data:`fplab.nn.recipes.RECIPES` or a :class:`~fplab.nn.recipes.Recipe`, which says how each
    operand of each product of a layer is quantised; ``inputs`` is then the format of what stays high. Weights are told
    by being parameters, or made of them alone. Which layers take part is the recipe's ``scope``, by default that of its
    source: not output heads, routers, convolutions and recurrent layers; how these are told is said in
    :mod:`fplab.nn.emulation.model_parts`, and :meth:`Emulation.report` says of every product that stays high why. The
    state of delayed scaling, and the step that stochastic rounding draws by, are in :meth:`Emulation.state_dict`;
    ``torch.distributed.checkpoint`` takes an emulation as it is, under a name of each rank's own. ``state``: what to go
    on from, an earlier emulation as it is now, or what its ``state_dict()`` gave: so steps in a block each have the
    bits of steps in one block. Without it delayed scaling begins with scales of 1, which warns where an earlier
    emulation has trained the model. In a pipeline, whose ranks have layers of their own, a recipe needs
    ``reduce_amax=False``, and ``keep_last`` and a scope's first and last blocks count the stage's; there and in tensor
    parallel stochastic rounding draws by the number of a product in its own process.
    ``layers``: a recipe or a plan for layers by their path in the model, or by a pattern of it,
    ``{"*.mlp.*": "nvfp4", "lm_head": "bf16"}``; the first that fits wins, and a recipe given so keeps nothing high and
    has no scope.
    ``plan``: the order of k (:class:`fplab.tensorcore.Plan`, or a rule for it by the rows of each product,
    :class:`fplab.tensorcore.PlanByRows`) of all others. ``fallback``: "bf16" for a GPU that has no unit for the recipe:
    operands are dequantised to BF16 and multiplied as such.

    ``kv_cache``: "fp8", "int8" or "nvfp4": keys and values pass through a cache of this format before they are
    multiplied (:mod:`fplab.nn.emulation.cached` says by which scales). Of ``scaled_dot_product_attention`` as one
    operation, without a backward pass; a product of two tensors that are no weights outside of it is refused.

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
    >>> for row in run.report().rows:
    ...     print(row.layer, row.phase, row.operation, row.unit)
    Linear 1 forward addmm H100 fma.k1 fp32->fp32
    Linear 1 backward mm H100 fma.k1 fp32->fp32
    """
    chosen = None if recipe is None else get_recipe(recipe)
    given: tuple[Any, ...] = (
        gpu, inputs, accumulate, gradients, store, instruction, conversion, chosen, plan or ONE_CHAIN, fallback,
        kv_cache,
    )  # fmt: skip
    settings = None
    if scaling is None and not layers and isinstance(allow, tuple) and not allow:
        with suppress(TypeError):  # of an argument that cannot be hashed
            settings = _settings(*given)
    settings = settings or _settings.__wrapped__(*given, scaling, operations.allowed_names(allow), layers or {})
    run = Emulation(settings)
    if state is not None:
        run.load_state_dict(state.state_dict() if isinstance(state, Emulation) else state)
    return run


@lru_cache(maxsize=64, typed=True)
def _settings(
    gpu: str | Model, inputs: FormatName | None, accumulate: FormatName, gradients: FormatName | None,
    store: FormatName | None, instruction: str | None, conversion: str, recipe: Recipe | None, plan: AnyPlan,
    fallback: str | None, kv_cache: str | None = None, scaling: Scaling | None = None,
    allow: frozenset[str] = frozenset(),
    layers: Mapping[str, str | Recipe | AnyPlan] = MappingProxyType({}),
) -> Settings:  # fmt: skip
    """The settings that :func:`emulate` is called for, checked once."""
    if recipe is not None and inputs is not None:
        recipe = replace(recipe, high=formats.spelt(inputs))
    if inputs is None and recipe is not None:
        inputs = recipe.high
    elif inputs is None and isinstance(gpu, Model) and gpu.scale is None and gpu.a == gpu.b:
        inputs = gpu.a
    own = {pattern: one if isinstance(one, AnyPlan) else get_recipe(one) for pattern, one in layers.items()}
    forward, sums, backward, stored = map(formats.spelt, (inputs, accumulate, gradients or inputs, store))
    return Settings(
        gpu, forward, sums, backward, stored, scaling, allow, instruction, conversion, recipe, own, plan, fallback,
        kv_cache,
    )  # fmt: skip
