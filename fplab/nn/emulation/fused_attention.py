"""torch's fused attention of CUDA tensors, flash, memory-efficient and cuDNN's: :mod:`.attention` in their signatures.

What they return besides serves their own dropout, which is not emulated; it is empty here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import LabError
from . import attention
from .attention import Marked
from .multiply import Products

Tensor = torch.Tensor


def _nothing(q: Tensor) -> Tensor:
    return q.new_empty(0, dtype=torch.int64)


def flash(
    products: Products, marked: Marked, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0,
    is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Output and log of the row sums, as :func:`.attention.forward`."""
    found = attention.forward(products, marked, q, k, v, dropout_p, is_causal, scale=scale)
    none = _nothing(q)
    return *found, none, none, q.shape[-2], k.shape[-2], none, none, q.new_empty(0)


def flash_backward(
    products: Products, marked: Marked, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
    logsumexp: Tensor, cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    *_: Any, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return attention.backward(products, marked, gradient, q, k, v, out, logsumexp, dropout_p, is_causal, scale=scale)


def efficient(
    products: Products, marked: Marked, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    found = attention.forward(products, marked, q, k, v, dropout_p, is_causal, attn_mask=bias, scale=scale)
    return *found, _nothing(q), _nothing(q)


def efficient_backward(
    products: Products, marked: Marked, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None,
    out: Tensor, logsumexp: Tensor, seed: Any, offset: Any, dropout_p: float, wanted: Sequence[bool],
    is_causal: bool = False, *, scale: float | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    if wanted[3]:
        raise LabError(
            "the gradient of a mask inside one kernel is not emulated; sdpa_kernel(SDPBackend.MATH) takes the "
            "attention apart, or let the mask need no gradient."
        )
    grads = attention.backward(
        products, marked, gradient, q, k, v, out, logsumexp, dropout_p, is_causal, attn_mask=_given(bias), scale=scale
    )
    return *grads, None


def cudnn(
    products: Products, marked: Marked, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    found = attention.forward(products, marked, q, k, v, dropout_p, is_causal, attn_mask=bias, scale=scale)
    none = _nothing(q)
    return *found, none, none, q.shape[-2], k.shape[-2], none, none, q.new_empty(0)


def cudnn_backward(
    products: Products, marked: Marked, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
    logsumexp: Tensor, seed: Any, offset: Any, bias: Tensor | None, cum_seq_q: Any, cum_seq_k: Any, max_q: int,
    max_k: int, dropout_p: float, is_causal: bool, *, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return attention.backward(
        products, marked, gradient, q, k, v, out, logsumexp, dropout_p, is_causal, attn_mask=_given(bias), scale=scale
    )


def _given(bias: Tensor | None) -> Tensor | None:
    """What was saved of a mask that was not given is empty."""
    return bias if bias is not None and bias.numel() else None


HANDLERS: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention": flash,
    "_scaled_dot_product_flash_attention_backward": flash_backward,
    "_scaled_dot_product_efficient_attention": efficient,
    "_scaled_dot_product_efficient_attention_backward": efficient_backward,
    "_scaled_dot_product_cudnn_attention": cudnn,
    "_scaled_dot_product_cudnn_attention_backward": cudnn_backward,
}
OPERANDS = {name: 4 if name.endswith("backward") else 3 for name in HANDLERS}
"""How many of the first arguments must be of dtypes that units take; with the gradient, q, k and v."""
