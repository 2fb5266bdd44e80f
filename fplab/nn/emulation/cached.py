"""Keys and values as a cache of few bits gives them back: quantised where they are stored, dequantised where read.

"fp8" is vLLM's ``kv_cache_dtype="fp8"`` with its default scales of 1: E4M3, saturated. "int8": a scale for each token
and head, amax / 127 in FP32, to nearest even. "nvfp4": blocks of 16 along the head's dimension, one FP32 scale for the
tensor, as :func:`fplab.scaled.quantize` makes them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...scaled import quantize

Tensor = torch.Tensor
E4M3_MAX = 448.0


def by_e4m3(x: Tensor) -> Tensor:
    """Float32 saturated to E4M3 (torch's cast, to nearest even)."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()


def by_int8(x: Tensor) -> Tensor:
    """Float32 (..., tokens, head dimension) by a scale for each token of a head; one NaN makes all of it NaN."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    codes = torch.round(x / torch.where(scale == 0, 1, scale))
    return codes * scale


def by_nvfp4(x: Tensor) -> Tensor:
    """Float32 by NVFP4, blocks along the last dimension."""
    return torch.from_numpy(quantize(x.contiguous().cpu().numpy(), "nvfp4").dequantize()).to(x.device)


CACHES: dict[str, Callable[[Tensor], Tensor]] = {"fp8": by_e4m3, "int8": by_int8, "nvfp4": by_nvfp4}
"""What a cache gives back for float32 keys or values."""


PASSED = "_fplab_cached"  # marks what has passed through a cache above the emulation


def cached(x: Tensor, cache: str | None) -> Tensor:
    """Keys or values (B, H, S, E) as a cache gives them back, in their own dtype and layout; None is no cache."""
    if cache is None or PASSED in x.__dict__:
        return x
    return torch.empty_like(x).copy_(CACHES[cache](x.detach().float()))
