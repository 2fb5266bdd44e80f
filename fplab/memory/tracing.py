"""Saved activations of any module, by watching what autograd keeps: exact, and free on the meta device."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import LabError, door, summary

T = TypeVar("T")
ATTENTION, DROPOUT = nn.functional.scaled_dot_product_attention, nn.functional.dropout
NORMS = {getattr(torch.ops.aten, f"native_{kind}_norm").default for kind in ("batch", "group", "layer")}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Saved:
    """One storage that the backward pass needs. ``where``: the innermost module that ran when it was first saved."""

    where: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def storage_key(tensor: torch.Tensor) -> int:
    """What two tensors share exactly when they share memory; valid while one of them lives."""
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def naming(module: nn.Module) -> Iterator[list[str]]:
    """A stack of the names of the modules whose forward pass runs."""
    running = [""]

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: running.append(name)

    def leave(*_: Any) -> None:
        running.pop()

    with ExitStack() as hooks:
        for name, part in module.named_modules():
            hooks.enter_context(part.register_forward_pre_hook(enter(name)))
            hooks.enter_context(part.register_forward_hook(leave, always_call=True))
        yield running


@door
def saved_by(module: nn.Module, *inputs: Any, **named: Any) -> tuple[Saved, ...]:
    """What one forward pass saves for the backward pass, a storage once however often it is saved.

    ``inputs`` and ``named``: what the module is called with.
    Parameters, buffers and the inputs are held by others and do not count. A view counts as the whole storage that it
    keeps alive.
    """
    known = (*module.parameters(), *module.buffers(), *pytree.tree_leaves((inputs, named)))
    with naming(module) as running, saving(known, running) as saved:
        module(*inputs, **named)
    return saved()


@contextmanager
def saving(known: Collection[Any], running: list[str]) -> Iterator[Callable[[], tuple[Saved, ...]]]:
    """What autograd saves within the block, but of the ``known`` tensors; ``running``: of :func:`naming`."""
    by_storage: dict[int, Saved] = {}
    alive: list[torch.Tensor] = []  # so that no storage dies and hands its key to another

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        key, storage = storage_key(tensor), tensor.untyped_storage()
        if key not in by_storage and key not in {storage_key(t) for t in known if isinstance(t, torch.Tensor)}:
            alive.append(tensor)
            kind = str(tensor.dtype).removeprefix("torch.")
            by_storage[key] = Saved(running[-1], tuple(tensor.shape), kind, storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield lambda: tuple(record for record in by_storage.values() if record.bytes)
    alive.clear()  # the graph, which keeps ``pack``, frees what it saved as the backward pass goes


class ShapesAlone(TorchFunctionMode):
    """Takes tensors that functions bring along, such as labels, by their shape too, attention and dropout as kernels.

    ``known``: gets those tensors. ``fused``: ``scaled_dot_product_attention`` is the kernel of one piece that GPUs have
    for it. That saves its operands, its result and a number for each row; the meta device would take it apart, as a CPU
    does where weights are dropped at random, and save matrices. Dropout keeps a mask of one byte an element, as GPUs'.
    """

    def __init__(
        self, shape_of: Callable[[torch.Tensor], torch.Tensor], device: str, known: list[Any], fused: bool
    ) -> None:
        super().__init__()
        self._shape_of, self._meta, self._known = shape_of, device == "meta", known
        self._kernels: dict[Any, Callable[..., Any]] = {ATTENTION: self._attend, DROPOUT: self._drop} if fused else {}
        self._brought: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # the first, so that its id stays its own

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = pytree.tree_map_only(torch.Tensor, self._of, (args, kwargs or {}))
        kernel = self._kernels.get(func, func)
        return kernel(*given[0], **given[1])

    def __enter__(self) -> "ShapesAlone":
        # no mode sees what nn.MultiheadAttention calls, nor what a reentrant checkpoint recomputes
        self._before = {function.__name__: getattr(nn.functional, function.__name__) for function in self._kernels}
        for function in self._kernels:
            setattr(nn.functional, function.__name__, partial(self._where_shapes, function))
        return cast("ShapesAlone", super().__enter__())

    def __exit__(self, *error: Any) -> None:
        for name, function in self._before.items():
            setattr(nn.functional, name, function)
        super().__exit__(*error)

    def _where_shapes(self, function: Callable[..., Any], tensor: torch.Tensor, *rest: Any, **named: Any) -> Any:
        if not self._has_shape_alone(tensor):  # of another thread
            return function(tensor, *rest, **named)
        given = pytree.tree_map_only(torch.Tensor, self._of, (rest, named))
        return self._kernels[function](tensor, *given[0], **given[1])

    def _has_shape_alone(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "meta" if self._meta else isinstance(tensor, FakeTensor)

    def _of(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._has_shape_alone(tensor):
            return tensor
        if id(tensor) not in self._brought:
            self._brought[id(tensor)] = tensor, self._shape_of(tensor)
            self._known.append(self._brought[id(tensor)][1])
        return self._brought[id(tensor)][1]

    @staticmethod
    def _drop(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        """A mask of bytes, as CUDA's; in place CUDA keeps floating-point numbers, as a CPU always does."""
        whole = inplace or not training or not 0 < p < 1
        out: torch.Tensor = DROPOUT(x, p, training, inplace) if whole else torch.native_dropout(x, p, True)[0]
        return out

    @staticmethod
    def _attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        one_size = query.shape[-1] == value.shape[-1] and query.dim() == 4
        if not one_size or (attn_mask is not None and attn_mask.requires_grad):
            return ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = (x.to(dtype) for x in (query, key, value))
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
            attn_mask = attn_mask.to(query.dtype)
        attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        result: torch.Tensor = attention(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]
        return result


class WideStatistics(TorchDispatchMode):
    """Norms keep mean and reciprocal deviation in FP32, as GPUs' do; a CPU's shape alone has them in its input's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return (out[0], *(x.float() for x in out[1:])) if func in NORMS else out


@door
def trace(module: nn.Module, *inputs: Any, device: str = "meta", **named: Any) -> tuple[Saved, ...]:
    """The same without computing: shapes alone run, so a model of any size takes no memory and no time to speak of.

    The module may lie on any device and is not changed. Inputs are tensors of any device, or other values. ``device``:
    whose habits to follow. "cpu" gives what the CPU saves ("cuda" needs a GPU); "meta" a GPU where they differ: a
    LayerNorm in 16 bits keeps its statistics in FP32, on the CPU in 16 bits, and torch's attention is one kernel, which
    the CPU takes apart where it drops weights at random.
    """

    def forward(call: Callable[[], Any], known: list[torch.Tensor], running: list[str]) -> tuple[Saved, ...]:
        with saving(known, running) as saved:
            call()
        return saved()

    return on_shapes(module, inputs, named, device, None, forward)


def on_shapes(
    module: nn.Module, inputs: Any, named: Any, device: str, dtype: torch.dtype | None,
    run: Callable[[Callable[[], Any], list[torch.Tensor], list[str]], T], fused: bool = False,
) -> T:  # fmt: skip
    """What ``run(call, known, running)`` gives, where ``call()`` is a forward pass of tensors that have only a shape.

    ``known``: parameters, buffers and inputs; ``running``: of :func:`naming`. ``dtype``: of all tensors that hold
    16-bit or wider floating-point numbers (None: as they are). ``fused``: on any device attention is one kernel.
    """
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise LabError(f"device={summary(device)} is none of torch's; allowed: cpu, cuda or meta.") from None
    if kind not in ("meta", "cpu") and not torch.cuda.is_available():
        raise LabError(f"device={device!r} cannot be traced without a GPU; allowed: 'meta', 'cpu'.")

    class Whole(nn.Module):
        """Holds the module, so that its tensors are replaced for all of ``run``: checkpoints use them backward, too."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self) -> T:
            return run(lambda: self.module(*a, **k), known, running)

    def shape_of(tensor: torch.Tensor) -> torch.Tensor:
        kind = dtype if dtype is not None and tensor.dtype in FLOATS else tensor.dtype
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=device)

    mode = nullcontext() if device == "meta" else FakeTensorMode()
    statistics = WideStatistics() if fused else nullcontext()
    known: list[Any] = []
    shapes = ShapesAlone(shape_of, device, known, fused or device == "meta")
    with naming(module) as running, mode, statistics:
        tensors = {name: shape_of(p).requires_grad_(p.requires_grad) for name, p in module.named_parameters()}
        tensors |= {name: shape_of(b) for name, b in module.named_buffers()}
        try:
            a, k = pytree.tree_map_only(torch.Tensor, shape_of, (inputs, named))
        except (AttributeError, RuntimeError):  # RecursionError among them
            rule = "inputs hold themselves or a tensor that is not dense; allowed: tensors, or tuples, lists and dicts."
            raise LabError(rule) from None
        known += [*tensors.values(), *pytree.tree_leaves((a, k))]
        try:
            with shapes:
                return cast("T", functional_call(Whole(), {f"module.{n}": t for n, t in tensors.items()}, ()))
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            first = (str(error) or type(error).__name__).splitlines()[0]
            target = device if dtype is None else f"{device}, {str(dtype).removeprefix('torch.')}"
            raise LabError(f"{type(module).__name__} does not run on shapes alone ({target}): {first}") from None
