"""Who is told when the lab itself takes a tensor out of torch and back: a rounding done by its own kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch

Told = Callable[[torch.Tensor, torch.Tensor, str], None]
WITNESSES: list[Told] = []  # each is given the tensor, the same rounded, and the name of the format


def rounded(x: torch.Tensor, result: torch.Tensor, fmt: str) -> torch.Tensor:
    """``result``, which is ``x`` rounded to a format, once all witnesses know."""
    for told in WITNESSES:
        told(x, result, fmt)
    return result
