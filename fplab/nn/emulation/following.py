"""What an open block does to every thread: Functions are seen, and threads that it starts compute in it, too.

torch's modes are each thread's own, so a thread that is started inside a block is given its own. One that was there
before has none, and its products would have torch's bits: a module that is called there is refused.
"""

from __future__ import annotations

import threading
from typing import Any

from torch import nn
from torch.autograd import Function
from torch.nn.modules import module as modules
from torch.overrides import _pop_mode as _pop_calls
from torch.overrides import _push_mode as _push_calls
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ...errors import LabError
from .modes import Calls, Mode


class _Thread(threading.local):
    """``modes``: of the blocks that a thread is in, innermost last. ``applying``: whether it is in a Function."""

    def __init__(self) -> None:
        self.modes: list[Mode] = []
        self.applying = False


_thread = _Thread()
_LOCK = threading.Lock()
_REPLACED: list[Any] = []  # Function.apply and Thread.start as they were, and the hook on modules
_blocks = 0  # that are open, in all threads


def open_block(mode: Mode) -> None:
    """From here on this thread is in a block, and what other threads do is seen."""
    global _blocks
    with _LOCK:
        if not _blocks:
            _REPLACED[:] = Function.__dict__["apply"], threading.Thread.start
            Function.apply = classmethod(_apply)  # type: ignore[assignment, method-assign]
            threading.Thread.start = _start  # type: ignore[assignment, method-assign]
            _REPLACED.append(modules.register_module_forward_pre_hook(_demand_inside))
        _blocks += 1
    _enter(mode)


def close_block() -> None:
    """The innermost block of this thread is left."""
    global _blocks
    _leave()
    with _LOCK:
        _blocks -= 1
        if not _blocks:
            Function.apply, threading.Thread.start, hook = _REPLACED  # type: ignore[method-assign]
            hook.remove()


def _enter(mode: Mode) -> None:
    """This thread computes in a block from here on."""
    _thread.modes.append(mode)
    _push_calls(Calls(mode))
    mode.__enter__()


def _leave() -> None:
    _thread.modes.pop().__exit__(None, None, None)
    _pop_calls()


def _start(thread: threading.Thread) -> None:
    """``Thread.start``: what is started inside a block runs in it."""
    if _thread.modes:
        run, work = _thread.modes[-1].run, thread.run

        def inside() -> None:
            _enter(Mode(run, worker=True))
            try:
                work()
            finally:
                _leave()

        thread.run = inside  # type: ignore[method-assign]
    _REPLACED[1](thread)


def _demand_inside(layer: nn.Module, args: Any) -> None:
    """An error for a module that is called in a thread that is in no block, while one is open in another."""
    if _thread.modes or any(isinstance(mode, Mode) for mode in _get_current_dispatch_mode_stack()):
        return
    raise LabError(
        f"{type(layer).__name__} is called in thread {threading.current_thread().name!r}, which was there before the "
        "block of fplab.nn.emulate: its products would have torch's bits. Start the thread inside the block, as by "
        "making its pool there, or open a block of its own in it."
    )


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """``Function.apply``, whose result only the innermost block of this thread receives."""
    apply, mode = _REPLACED[0].__get__(None, cls), _thread.modes[-1] if _thread.modes else None
    if mode is None or mode.over or _thread.applying:
        return apply(*args, **kwargs)  # written in Python before torch 2.15, in C since
    mode.link()  # the operation before has its node; what the Function computes may be no operation of torch's
    began = mode.run.sites.next()
    _thread.applying = True
    try:
        result = apply(*args, **kwargs)
    finally:
        _thread.applying = False
    mode.link_function(result, began)
    return result
