"""What an open block does to every thread: Functions are seen, and threads that it starts compute in it, too.

torch's modes are each thread's own, so a thread that is started inside a block is given its own. One that was there
before has none, and its products would have torch's bits: a module that is called there is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.autograd import Function
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ...errors import LabError
from .modes import Calls, Mode

_LOCAL = threading.local()
_LOCK = threading.Lock()
_REPLACED: list[Any] = []  # Function.apply and Thread.start as they were, and the hook on modules
_blocks = 0  # that are open, in all threads


@contextmanager
def followed(mode: Mode) -> Iterator[None]:
    """While a block is open: this thread is in it, and what other threads do is seen."""
    global _blocks
    with _LOCK:
        if not _blocks:
            _REPLACED[:] = Function.__dict__["apply"], threading.Thread.start
            Function.apply = classmethod(_apply)  # type: ignore[assignment, method-assign]
            threading.Thread.start = _start  # type: ignore[assignment, method-assign]
            _REPLACED.append(modules.register_module_forward_pre_hook(_demand_inside))
        _blocks += 1
    try:
        with _inside(mode):
            yield
    finally:
        with _LOCK:
            _blocks -= 1
            if not _blocks:
                Function.apply, threading.Thread.start, hook = _REPLACED  # type: ignore[method-assign]
                hook.remove()


@contextmanager
def _inside(mode: Mode) -> Iterator[None]:
    """While this thread computes in a block."""
    _modes().append(mode)
    try:
        with Calls(mode), mode:
            yield
    finally:
        _modes().pop()


def _modes() -> list[Mode]:
    """Of the blocks that this thread is in, innermost last."""
    found: list[Mode] = _LOCAL.__dict__.setdefault("modes", [])
    return found


def _start(thread: threading.Thread) -> None:
    """``Thread.start``: what is started inside a block runs in it."""
    if _modes():
        run, work = _modes()[-1].run, thread.run

        def inside() -> None:
            with _inside(Mode(run, worker=True)):
                work()

        thread.run = inside  # type: ignore[method-assign]
    _REPLACED[1](thread)


def _demand_inside(layer: nn.Module, args: Any) -> None:
    """An error for a module that is called in a thread that is in no block, while one is open in another."""
    if _modes() or any(isinstance(mode, Mode) for mode in _get_current_dispatch_mode_stack()):
        return
    raise LabError(
        f"{type(layer).__name__} is called in thread {threading.current_thread().name!r}, which was there before the "
        "block of fplab.nn.emulate: its products would have torch's bits. Start the thread inside the block, as by "
        "making its pool there, or open a block of its own in it."
    )


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """``Function.apply``, of whose result the innermost block of this thread is told."""
    apply, mode = _REPLACED[0].__get__(None, cls), _modes()[-1] if _modes() else None
    if mode is None or mode.over or getattr(_LOCAL, "applying", False):
        return apply(*args, **kwargs)  # written in Python before torch 2.15, in C since
    mode.link()  # the operation before has its node; what the Function computes may be no operation of torch's
    began = mode.run.places.here()
    _LOCAL.applying = True
    try:
        result = apply(*args, **kwargs)
    finally:
        _LOCAL.applying = False
    mode.link_function(result, began)
    return result
