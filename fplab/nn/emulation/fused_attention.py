"""torch's fused attention of CUDA tensors, flash, memory-efficient and cuDNN's: :mod:`.attention` in their signatures.

What they return besides serves their own dropout, which is not emulated; it is empty here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import LabError
from . import attention
from .attention import Marked
from .multiply import Products

NAMES = {"query": "q", "key": "k", "value": "v", "grad_out": "gradient", "grad_out_": "gradient",
         "attn_bias": "attn_mask"}  # fmt: skip
NOT_TAKEN = ("max_q", "cum_seq", "max_k", "philox", "return_debug", "compute_log")


def _handler(name: str) -> Callable[..., tuple[Any, ...]]:
    """An operation's arguments by name, as :mod:`.attention` takes them, and what it gives in the operation's order."""
    order = [argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments]
    efficient, back = "efficient" in name, name.endswith("backward")

    def handler(products: Products, marked: Marked, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given: dict[str, Any] = {"dropout_p": 0.0, "is_causal": False} | dict(zip(order, args, strict=False)) | kwargs
        named = {NAMES.get(key, key): x for key, x in given.items() if not key.startswith(NOT_TAKEN)}
        if named.pop("grad_input_mask", [False] * 4)[3]:
            raise LabError(
                "the gradient of a mask inside one kernel is not emulated; sdpa_kernel(SDPBackend.MATH) takes the "
                "attention apart, or let the mask need no gradient."
            )
        mask = named.get("attn_mask")
        if mask is not None and not mask.numel():  # what was saved of one that was not given
            named["attn_mask"] = None
        result = (attention.backward if back else attention.forward)(products, marked, **named)
        if back:
            return (*result, None) if efficient else result
        q, k = named["q"], named["k"]
        none = q.new_empty(0, dtype=torch.int64)
        if efficient:
            return *result, none, none
        return *result, none, none, q.shape[-2], k.shape[-2], none, none, q.new_empty(0)

    return handler


HANDLERS: dict[str, Callable[..., Any]] = {
    name: _handler(name)
    for kind in ("flash", "efficient", "cudnn")
    for name in (f"_scaled_dot_product_{kind}_attention", f"_scaled_dot_product_{kind}_attention_backward")
}
OPERANDS = {name: 4 if name.endswith("backward") else 3 for name in HANDLERS}
"""How many of the first arguments must be of dtypes that units take; with the gradient, q, k and v."""
