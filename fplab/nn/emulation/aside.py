"""Taking modes of torch's dispatch off the top of their stack for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode, _push_mode


@contextmanager
def aside(which: Callable[[Any], bool]) -> Iterator[None]:
    """Within the block the modes on top see nothing, down to the first for which ``which`` is false."""
    taken: list[Any] = []
    while (mode := _get_current_dispatch_mode()) is not None and which(mode):
        taken.append(_pop_mode())
    try:
        yield
    finally:
        for mode in reversed(taken):
            _push_mode(mode)


@contextmanager
def bare() -> Iterator[None]:
    """While no mode sees what is computed."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield
