"""Scaled dot-product attention in products, forward and backward, by the formulas of FlashAttention-2.

Dao 2023 (arXiv 2307.08691), with whole rows instead of tiles: S = scale * Q K^T in FP32, P = exp(S - max) rounded to
the operand's format, O = P V divided by the row sums of P at the end. Backward: P = exp(S - L) with the log of the sums
L, dV = P^T dO, dP = dO V^T, dS = P * (dP - sum(dO * O)), dQ = scale * dS K, dK = scale * dS^T Q. S, P and dS change in
place, one in the memory of the other: fresh memory takes longer than what is computed in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ...errors import LabError
from .cached import cached
from .multiply import GRADIENT, INPUT, Products

Tensor = torch.Tensor
Marked = Callable[[Tensor], str]


def forward(
    products: Products, marked: Marked, q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0,
    is_causal: bool = False, *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output (B, H, L, E) in q's dtype and the log of the row sums (B, H, L), from q, k, v (B, H, L or S, E)."""
    if dropout_p:
        raise LabError(f"attention with dropout_p={dropout_p} inside one kernel is not emulated; allowed: 0.")
    past = _past(q, k) if is_causal else None
    k, v = (cached(x, products.settings.kv_cache) for x in (k, v))
    scores = _scores(products, q, _heads(k, q), past, attn_mask, scale)
    top = scores.amax(-1, keepdim=True)
    top = torch.where(top.isneginf(), 0, top)  # a row with nothing to attend to gives zeros, as torch's kernel does
    weights = _exp(scores.sub_(top), past)
    sums = weights.sum(-1, keepdim=True)
    mixed = products(weights, _heads(v, q), q.dtype).div_(torch.where(sums == 0, 1, sums))
    out = torch.empty_like(q).copy_(products.stored(mixed, q.dtype))  # laid out in memory as torch's
    return out, (top + sums.log()).squeeze(-1)


def backward(
    products: Products, marked: Marked, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
    logsumexp: Tensor, dropout_p: float, is_causal: bool, *, attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v."""
    if products.settings.kv_cache is not None:
        raise LabError("kv_cache is of inference and has no backward pass; leave it out, or compute without gradients.")
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    keys, held = _heads(k, q), _heads(v, q)
    past = _past(q, k) if is_causal else None
    scores = _scores(products, q, keys, past, attn_mask, scale)
    weights = _exp(scores.sub_(logsumexp.unsqueeze(-1)), past).nan_to_num_(0.0)
    grad_v = products(weights.transpose(-1, -2), gradient, q.dtype, (INPUT, GRADIENT))
    hidden = past is not None  # times weights of 0
    by_weight = products(gradient, held.transpose(-1, -2), q.dtype, (GRADIENT, INPUT), hidden)
    wide = scores.dtype
    mean = (gradient.to(wide) * out.to(wide)).sum(-1, keepdim=True)
    by_score = by_weight.sub_(mean).mul_(weights)
    grad_q = products(by_score, keys, q.dtype, (GRADIENT, INPUT)).mul_(factor)
    grad_k = products(by_score.transpose(-1, -2), q, q.dtype, (GRADIENT, INPUT)).mul_(factor)
    grads = grad_q, _summed(grad_k, k), _summed(grad_v, v)
    stored = (products.stored(g, q.dtype) for g in grads)
    return tuple(g.transpose(1, 2).contiguous().transpose(1, 2) for g in stored)  # type: ignore[return-value]


def _past(q: Tensor, k: Tensor) -> Tensor:
    """The bits to keep of the scores (L, S) under a causal mask: all of what a query may see, none of the rest."""
    wide = torch.int64 if q.dtype == torch.float64 else torch.int32
    return torch.ones(q.shape[-2], k.shape[-2], dtype=wide, device=q.device).tril().neg_()


def _scores(
    products: Products, q: Tensor, k: Tensor, past: Tensor | None, mask: Tensor | None, scale: float | None
) -> Tensor:
    """``scale * q k^T`` with the masks, FP32, in memory of its own."""
    scores = products(q, k.transpose(-1, -2), q.dtype, below=past is not None)
    scores.mul_(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if past is not None:
        bits = scores.view(past.dtype)
        bits &= past  # five times as fast as filling by a mask
        bits |= torch.where(past == 0, scores.new_full((), -math.inf), 0.0).view(past.dtype)
    if mask is None:
        return scores
    return scores.masked_fill_(~mask, -math.inf) if mask.dtype == torch.bool else scores.add_(mask.to(scores.dtype))


def _exp(scores: Tensor, past: Tensor | None) -> Tensor:
    """``exp`` in place. Of -infinity it takes twice as long, so what is masked is computed of 0 and made 0 again."""
    if past is None:
        return scores.exp_()
    bits = scores.view(past.dtype)
    bits &= past
    scores.exp_()
    bits &= past
    return scores


def _heads(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values with each head repeated for the queries that share it (grouped-query attention)."""
    repeats = q.shape[1] // x.shape[1]
    return x if repeats == 1 else x.repeat_interleave(repeats, dim=1)


def _summed(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of keys or values summed over the queries that share a head."""
    repeats = gradient.shape[1] // x.shape[1]
    return gradient if repeats == 1 else gradient.unflatten(1, (x.shape[1], repeats)).sum(2)
