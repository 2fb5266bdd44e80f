"""Saved activations of any module, by watching what autograd keeps: exact, and free on the meta device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils import _pytree as pytree

from ..errors import LabError, door, summary
from .recipes import Precision

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
    running, handles = [""], []

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: running.append(name)

    def leave(*_: Any) -> None:
        running.pop()

    for name, part in module.named_modules():
        handles += [part.register_forward_pre_hook(enter(name)), part.register_forward_hook(leave, always_call=True)]
    try:
        yield running
    finally:
        for handle in handles:
            handle.remove()


@door
def saved_by(module: nn.Module, *inputs: Any, **named: Any) -> tuple[Saved, ...]:
    """What one forward pass saves for the backward pass, a storage once however often it is saved.

    ``inputs`` and ``named``: what the module is called with.
    Parameters, buffers and the inputs are held by others and do not count. A view counts as the whole storage that it
    keeps alive.
    """
    with naming(module) as running:
        return _saved(module, inputs, named, (*module.parameters(), *module.buffers()), running)


def _saved(
    module: nn.Module, inputs: Any, named: Any, known: tuple[torch.Tensor, ...], running: list[str]
) -> tuple[Saved, ...]:
    others = (*known, *pytree.tree_leaves((inputs, named)))
    held = {storage_key(t) for t in others if isinstance(t, torch.Tensor)}
    found: dict[int, Saved] = {}
    alive: list[torch.Tensor] = []  # so that no storage dies and hands its key to another

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        key, storage = storage_key(tensor), tensor.untyped_storage()
        if key not in held and key not in found:
            alive.append(tensor)
            kind = str(tensor.dtype).removeprefix("torch.")
            found[key] = Saved(running[-1], tuple(tensor.shape), kind, storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*inputs, **named)
    return tuple(one for one in found.values() if one.bytes)


@door
def trace(module: nn.Module, *inputs: Any, device: str = "meta", **named: Any) -> tuple[Saved, ...]:
    """The same without computing: shapes alone run, so a model of any size takes no memory and no time to speak of.

    The module may lie on any device and is not changed. Inputs are tensors of any device, or other values. ``device``:
    whose habits to follow. "cpu" gives what the CPU saves ("cuda" needs a GPU); "meta" runs on the meta device, which
    is a GPU's habit where they differ: a LayerNorm in 16 bits keeps its statistics in FP32, on the CPU in 16 bits.
    """
    return _traced(module, inputs, named, device)


def _traced(
    module: nn.Module, inputs: Any, named: Any, device: str, dtype: torch.dtype | None = None
) -> tuple[Saved, ...]:
    """``dtype``: of all tensors that hold 16-bit or wider floating-point numbers (None: as they are)."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise LabError(f"device={summary(device)} is none of torch's; allowed: cpu, cuda or meta.") from None
    if kind not in ("meta", "cpu") and not torch.cuda.is_available():
        raise LabError(f"device={device!r} cannot be traced without a GPU; allowed: 'meta', 'cpu'.")

    class Elsewhere(nn.Module):
        """The module with its tensors replaced by others that have only a shape."""

        def forward(self, *a: Any, **k: Any) -> Any:
            return functional_call(module, tensors, a, k)

    def shape_of(tensor: torch.Tensor) -> torch.Tensor:
        kind = dtype if dtype is not None and tensor.dtype in FLOATS else tensor.dtype
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=device)

    with naming(module) as running, nullcontext() if device == "meta" else FakeTensorMode():
        tensors = {name: shape_of(p).requires_grad_(p.requires_grad) for name, p in module.named_parameters()}
        tensors |= {name: shape_of(b) for name, b in module.named_buffers()}
        a, k = pytree.tree_map_only(torch.Tensor, shape_of, (inputs, named))
        try:
            return _saved(Elsewhere(), a, k, tuple(tensors.values()), running)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            first = (str(error) or type(error).__name__).splitlines()[0]
            where = device if dtype is None else f"{device}, {str(dtype).removeprefix('torch.')}"
            raise LabError(f"{type(module).__name__} does not run on shapes alone ({where}): {first}") from None


def traced_bytes(module: nn.Module, inputs: Any, how: Precision) -> int:
    """Bytes of the activations that a forward pass saves. ``inputs``: a tensor, or a tuple or dict of arguments.

    Weights and inputs are taken in the precision's format, BF16 where that is narrower than FP32. Where products have
    fewer bits than the weights, the pass runs under torch's autocast, as the CPU knows it.
    """
    named = inputs if isinstance(inputs, dict) else {}
    plain = () if isinstance(inputs, dict) else inputs if isinstance(inputs, tuple | list) else (inputs,)
    dtype = torch.float32 if how.weights >= 4 else torch.bfloat16
    if how.compute < how.weights:
        with torch.autocast("cpu", torch.bfloat16):
            found = _traced(module, plain, named, "cpu", dtype)
    else:
        found = _traced(module, plain, named, "meta", dtype)
    return sum(one.bytes for one in found)
