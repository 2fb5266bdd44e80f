"""torch's CUDA autocast on the CPU: its lists, its rules of eligibility, its cache of weights.

torch's own CPU autocast has other lists: in FP16 it runs ``exp``, ``log``, ``pow``, ``sum``, ``norm``, softmax and
layer norm in FP16, where CUDA's runs them in FP32. So the lab puts kernels of its own into the slots that torch's
dispatcher has for autocast on the CPU. They lie above autograd: the casts are recorded, a gradient goes back through
them, and the operations inside torch's composite operations meet them too. Outside the lab's blocks these kernels call
the ones that were there before, so ``torch.autocast("cpu")`` stays what it is.
"""

import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from .. import formats
from ..errors import LabError, fits, quotes_call, summary, unknown, warn
from . import autocast_lists
from .autocast_lists import SINGLE, WITH_DTYPE, Rule
from .recomputation import Carried, carry

CPU, CUDA = "cpu", "cuda"
SLOT = "AutocastCPU"
EMULATION = f"{__package__}.emulation."
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
ALIASES = {alias: dtype for name, dtype in DTYPES.items() for alias in (name, *formats.get(name).aliases)}
PRODUCTS = ("float32", "torch")
KEY = torch._C.DispatchKey.AutocastCPU
NO_AUTOCAST = torch._C.DispatchKeySet(KEY)
STALE = (
    "a weight has changed since autocast cast it, and the product uses the old values: the cast is kept until the "
    "outermost block ends. Put autocast around the forward pass and the loss alone, a block a step; or cache=False."
)
BELOW = torch._C._dispatch_keyset_full_after(KEY)
_NEWER = [name for name in autocast_lists.FP32_FROM_2_15.split() if hasattr(torch.ops.aten, name)]
RULES = autocast_lists.RULES | dict.fromkeys(_NEWER, Rule.FP32)


class Settings(NamedTuple):
    """What one block was asked for."""

    dtype: torch.dtype
    enabled: bool
    cache: bool
    product: str


class _Local(threading.local):
    """The state of a thread. ``composite``: within an operation of the LOWER list that is made of others."""

    settings: Settings | None = None
    composite: bool = False

    def __init__(self) -> None:
        self.weights: dict[tuple[int, bool], tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}


_local = _Local()
_install_lock = threading.Lock()
_library: torch.library.Library | None = None


@quotes_call
def autocast(
    dtype: formats.FormatName = "fp16", *, enabled: bool = True, cache: bool = True, product: str = "float32"
) -> AbstractContextManager[None]:
    """Run a block, or a decorated function, under the rules of CUDA's autocast, on CPU tensors.

    ``dtype``: "fp16" or "bf16", or torch's dtype. ``enabled=False`` makes a region without casts, as do
    ``torch.autocast("cpu", enabled=False)`` and ``torch.autocast("cuda", enabled=False)`` inside the block.
    ``cache``: whether a weight is cast once in the outermost block; its uses then add their gradients in ``dtype``. As
    in torch the cast stays what it was when the weight changes, so a block around a whole training loop does not train;
    where torch is silent, a cast that is used after its weight has changed warns here.
    ``product``: what computes the products of operands that were cast. A product of FP16 tensors takes torch about
    220 times as long as one of FP32 on a CPU without FP16 units, so "float32" multiplies the rounded operands in FP32
    and rounds the result once; the order of those sums is the CPU's, not any GPU's. "torch" leaves it to torch, in
    ``dtype``. Within :func:`fplab.nn.emulate` the products are the emulated GPU's.

    Operands that are eligible: floating-point, and not FP64. Not touched: in-place and ``out=`` forms, calls that name
    a ``dtype``, and operations that are in none of the lists (:mod:`fplab.nn.autocast_lists`). On a GPU a CPU scalar
    tensor among CUDA tensors is not eligible; here all tensors are on the CPU, and it is.
    ``torch.is_autocast_enabled("cuda")`` and ``("cpu")`` say True inside, so ``custom_fwd`` and ``custom_bwd`` of
    either kind do what they do on a GPU, except that ``cast_inputs`` goes by the device named there, and that the
    backward pass of the kind "cuda" warns where there is no GPU, and runs without autocast. What
    ``torch.utils.checkpoint`` computes again is computed under the same rules. Not for ``torch.compile``.

    >>> with autocast("fp16"):
    ...     x = torch.ones(2, 2) @ torch.ones(2, 2)
    ...     x.dtype, x.exp().dtype
    (torch.float16, torch.float32)
    """
    if not isinstance(dtype, torch.dtype):
        name = str(formats.spelt(dtype)).lower()
        if name not in ALIASES:
            raise unknown("autocast dtype", dtype, DTYPES, ALIASES)
        dtype = ALIASES[name]
    if dtype not in DTYPES.values():
        raise LabError(
            f"dtype={dtype!r} is not one that CUDA's autocast takes; allowed: torch.float16, torch.bfloat16."
        )
    if not (fits(enabled, bool) and fits(cache, bool)):
        raise LabError(f"enabled={summary(enabled)}, cache={summary(cache)}; both are True or False.")
    if product not in PRODUCTS:
        raise unknown("product", product, PRODUCTS)
    return _region(Settings(dtype, bool(enabled), bool(cache), product))


def active() -> torch.dtype | None:
    """The dtype that the lab's autocast casts to in this thread; None outside its blocks and in disabled regions."""
    on = _local.settings is not None and torch.is_autocast_enabled(CPU) and torch.is_autocast_enabled(CUDA)
    return torch.get_autocast_dtype(CPU) if on else None


@contextmanager
def _region(settings: Settings) -> Iterator[None]:
    """Enter a block: torch's own state for both devices, and the lab's."""
    _install()
    outer, outer_weights = _local.settings, _local.weights
    cuda = torch.is_autocast_enabled(CUDA), torch.get_autocast_dtype(CUDA)
    if outer is None:
        _local.weights = {}
    with torch.autocast(CPU, settings.dtype, settings.enabled, settings.cache):
        torch.set_autocast_enabled(CUDA, settings.enabled)
        torch.set_autocast_dtype(CUDA, settings.dtype)
        _local.settings = settings
        try:
            yield
        finally:
            _local.settings, _local.weights = outer, outer_weights
            torch.set_autocast_enabled(CUDA, cuda[0])
            torch.set_autocast_dtype(CUDA, cuda[1])


# --- casting operands ---------------------------------------------------------------------------------------------
def eligible(x: Any) -> bool:
    """Whether autocast may cast an operand: a floating-point tensor of the CPU, but not FP64."""
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64 and x.is_cpu


def cast(x: Any, dtype: torch.dtype) -> Any:
    """An operand at a dtype where it is eligible; lists and mappings of operands too; anything else as it is."""
    if isinstance(x, list | tuple):
        return type(x)(cast(y, dtype) for y in x)
    if isinstance(x, dict):
        return {name: cast(y, dtype) for name, y in x.items()}
    if not eligible(x) or x.dtype == dtype:
        return x
    if dtype == torch.get_autocast_dtype(CPU) and _is_weight(x) and torch.is_autocast_cache_enabled():
        return _cast_weight(x, dtype)
    return x.to(dtype)


def _is_weight(x: torch.Tensor) -> bool:
    """Whether torch would keep the cast of a tensor until the outermost block ends."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(x)
    return not wrapped and x.dtype == torch.float32 and x.requires_grad and x.is_leaf and not x._is_view()


def _cast_weight(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The cast of a weight, made once; a cast without a gradient (under ``no_grad``) is kept apart."""
    key = id(x), torch.is_grad_enabled()
    known = _local.weights.get(key)
    if known is None or known[0]() is not x or known[1].dtype != dtype:
        known = _local.weights[key] = weakref.ref(x), x.to(dtype)
    elif _stale(x, known[1]):
        warn(STALE)
    return known[1]


def _stale(x: torch.Tensor, kept: torch.Tensor) -> bool:
    """Whether a weight's cast would have other bits now. ``x.data`` changes no version, so the bits are compared."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.layout is not torch.strided:
        return False
    with _disable_current_modes(), torch.no_grad():
        return not torch.equal(x.detach().to(kept.dtype).view(torch.int16), kept.detach().view(torch.int16))


def widest(args: Any, current: torch.dtype, lower: torch.dtype) -> torch.dtype:
    """FP32 if any operand is FP32, else the lower precision; another 16-bit format among them is an error, as torch's.

    FP64 operands are ignored.
    """
    for x in args:
        if isinstance(x, list | tuple):
            current = widest(x, current, lower)
        elif eligible(x):
            if torch.float32 in (current, x.dtype):
                current = torch.float32
            elif x.dtype != lower:
                raise LabError(f"an operand is {x.dtype} in a region of autocast to {lower}; allowed: that and FP32.")
    return current


# --- the kernels ----------------------------------------------------------------------------------------------------
Operation = Any  # an overload of torch.ops.aten
Call = tuple[Operation, Any, Any]  # an operation with its arguments
Kernel = Callable[..., Any]


def _lower(op: Operation, name: str, dtype: torch.dtype, args: Any, kwargs: Any) -> Call:
    return op, cast(args, dtype), kwargs and cast(kwargs, dtype)


def _fp32(op: Operation, name: str, dtype: torch.dtype, args: Any, kwargs: Any) -> Call:
    return op, cast(args, torch.float32), kwargs and cast(kwargs, torch.float32)


@functools.cache
def _place_of_dtype(op: Operation) -> int:
    return [argument.name for argument in op._schema.arguments].index("dtype")


def _fp32_dtype(op: Operation, name: str, dtype: torch.dtype, args: Any, kwargs: Any) -> Call:
    position = _place_of_dtype(op)
    named = args[position] if len(args) > position else kwargs.get("dtype")
    if not eligible(args[0]) or named is not None:
        return op, args, kwargs
    return op, args[:position], kwargs | {"dtype": torch.float32}


def _fp32_overload(op: Operation, name: str, dtype: torch.dtype, args: Any, kwargs: Any) -> Call:
    defaults = [a.default_value for a in op._schema.arguments]  # the other overload has none
    result = torch.float32 if eligible(args[0]) else args[0].dtype
    return _overload(WITH_DTYPE[name]), (*args, *defaults[len(args) :]), {"dtype": result}


def _widest(op: Operation, name: str, dtype: torch.dtype, args: Any, kwargs: Any) -> Call:
    to = widest([*args, *kwargs.values()], dtype, dtype)
    return op, cast(args, to), kwargs and cast(kwargs, to)


def _refused(op: Operation, name: str, dtype: torch.dtype, args: Any, kwargs: Any) -> Call:
    raise LabError(
        f"{name} is unsafe under autocast: its log and its gradient leave the range of {dtype}. "
        f"Drop the sigmoid before it and call {name}_with_logits, or compute it in a disabled region in FP32."
    )


CASTS: dict[Rule, Callable[..., Call]] = {
    Rule.LOWER: _lower, Rule.FP32: _fp32, Rule.FP32_DTYPE: _fp32_dtype, Rule.FP32_OVERLOAD: _fp32_overload,
    Rule.WIDEST: _widest, Rule.REFUSED: _refused,
}  # fmt: skip


def _emulated() -> bool:
    """Whether :func:`fplab.nn.emulate` computes the products here; it goes by the dtype of the operands."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    return any(type(mode).__module__.startswith(EMULATION) for mode in _get_current_dispatch_mode_stack())


def _rounded_once(op: Operation, dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    """An operation on operands in ``dtype``, computed in FP32 and rounded once; with FP64 among them torch's own."""
    dtypes = {x.dtype for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)}
    plain = dtype not in dtypes or torch.float64 in dtypes

    def wide(x: Any) -> Any:
        return x.float() if isinstance(x, torch.Tensor) and x.dtype == dtype and not plain else x

    with torch._C._ExcludeDispatchKeyGuard(NO_AUTOCAST):
        result = op(*map(wide, args), **{k: wide(v) for k, v in kwargs.items()})
    return result if plain else result.to(dtype)


def _kernel(name: str, before: Any | None) -> Kernel:
    """What stands in the slot of one operation; ``before``: torch's own kernel there, or None.

    What is cast to the lower precision and made of other operations runs them one by one, each product rounded.
    """
    op, rule = _overload(name), RULES.get(name)
    change = None if rule is None else CASTS[rule]
    single = name in SINGLE or name in ("dot", "vdot")

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        settings = _local.settings
        dtype = None if settings is None else active()
        if settings is None and before:
            return before.call_boxed(keyset, *args, **kwargs)
        if settings is None or dtype is None or change is None or (_local.composite and not single):
            return op.redispatch(keyset & BELOW, *args, **kwargs)
        if _local.composite:
            return _rounded_once(op, dtype, args, kwargs)
        called, args, kwargs = change(op, name, dtype, args, kwargs)
        if rule is Rule.LOWER and settings.product != "torch" and not _emulated():
            if name in SINGLE:
                return _rounded_once(op, dtype, args, kwargs)
            _local.composite = True
            try:
                return op.redispatch(keyset & BELOW, *args, **kwargs)
            finally:
                _local.composite = False
        with torch._C._ExcludeDispatchKeyGuard(NO_AUTOCAST):
            return called(*args, **kwargs)

    return kernel


# --- installing -------------------------------------------------------------------------------------------------------
def _overload(name: str) -> Operation:
    operator, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, operator), overload or "default")


def registered(slot: str) -> frozenset[str]:
    """The names that torch's dispatcher has kernels for under a key: "AutocastCUDA", "AutocastCPU"."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(slot)
    return frozenset(n.removeprefix("aten::") for n in names if n.startswith("aten::"))


def _install() -> None:
    """Fill the slots, once in a process."""
    global _library
    with _install_lock:
        if _library is not None:
            return
        if not hasattr(torch.library, "get_kernel"):
            raise LabError(f"torch {torch.__version__} cannot give back the kernels it had; autocast needs torch 2.9.")
        torch_has = registered(SLOT)
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            for name in sorted(torch_has | set(RULES)):
                before = torch.library.get_kernel(f"aten::{name}", SLOT) if name in torch_has else None
                library.impl(name, _kernel(name, before), SLOT, with_keyset=True)
        carry(_carried)
        _library = library


def _carried() -> Carried | None:
    """For a checkpoint: the block to enter again, whose dtype may be that of a ``torch.autocast`` inside it."""
    settings, dtype = _local.settings, active()
    if settings is None:
        return None
    now = Settings(dtype or settings.dtype, dtype is not None, torch.is_autocast_cache_enabled(), settings.product)
    return Carried(functools.partial(_region, now), _without)


@contextmanager
def _without() -> Iterator[None]:
    """Autocast off for both devices, as torch sees it."""
    cuda, cpu = torch.is_autocast_enabled(CUDA), torch.is_autocast_enabled(CPU)
    torch.set_autocast_enabled(CUDA, False)
    torch.set_autocast_enabled(CPU, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(CUDA, cuda)
        torch.set_autocast_enabled(CPU, cpu)
