"""Calls of torch's functions, seen from Python, for what cannot be seen below autograd.

* An LSTM: torch would hand it to oneDNN whole, unless oneDNN is switched off while the call lasts.
* ``torch.func``: its graph hangs on wrapped tensors, which do not get below. A function that ``torch.func.vjp``
  returned may be called after the block, so the nodes get their hooks here.
* A ``torch.autograd.Function``: its forward runs without gradients, and its node is there when it returns.
* Attention modules: the fused kernels of their inference step aside while anyone watches calls.
* ``backward()`` inside the block: the last operation's node gets its hooks before it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from .modes import Mode

_LOCAL = threading.local()
_LSTM = frozenset({torch._VF.lstm, torch.lstm})


class Calls(TorchFunctionMode):
    """Around every call of torch's functions inside the block, or inside the backward of one of its nodes."""

    def __init__(self, mode: Mode) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(_LOCAL, "calling", False):
            return func(*args, **kwargs)
        if func in _LSTM:
            with _without_onednn():
                return func(*args, **kwargs)
        if func in (torch.Tensor.backward, torch.autograd.grad):
            self.mode.link()
        with _innermost("calling"):
            result = func(*args, **kwargs)
        if func is torch.Tensor.backward:
            self.mode.run.new_step()
        if torch._C._functorch.get_dynamic_layer_stack_depth():
            self.mode.link_graph(result)
        return result


@contextmanager
def functions_seen(mode: Mode) -> Iterator[None]:
    """While the block is open, ``Function.apply`` tells the mode of its result."""
    original: Any = Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_LOCAL, "applying", False):
            return original.__func__(cls, *args, **kwargs)
        with _innermost("applying"):
            result = original.__func__(cls, *args, **kwargs)
        mode.link_function(result)
        return result

    Function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Function.apply = original  # type: ignore[method-assign]


@contextmanager
def _innermost(what: str) -> Iterator[None]:
    """While the innermost block watches a call, those around it do not."""
    setattr(_LOCAL, what, True)
    try:
        yield
    finally:
        setattr(_LOCAL, what, False)


@contextmanager
def _without_onednn() -> Iterator[None]:
    """For one call only: elementwise functions use oneDNN too, and have other bits without it."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
