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
from .dense import by_name
from .multiply import Products

NAMES = {"query": "q", "key": "k", "value": "v", "grad_out": "gradient", "grad_out_": "gradient",
         "attn_bias": "attn_mask"}  # fmt: skip
NOT_TAKEN = ("max_q", "cum_seq", "max_k", "philox", "return_debug", "compute_log")


@by_name
def attend(products: Products, marked: Marked, **given: Any) -> tuple[Any, ...]:
    """What :mod:`.attention` gives, in the operation's order."""
    efficient, back = "efficient" in products.operation, products.operation.endswith("backward")
    named = {NAMES.get(name, name): x for name, x in given.items() if not name.startswith(NOT_TAKEN)}
    if named.pop("grad_input_mask", [False] * 4)[3]:
        raise LabError(
            "the gradient of a mask inside one kernel is not emulated; sdpa_kernel(SDPBackend.MATH) takes the "
            "attention apart, or let the mask need no gradient."
        )
    mask = named.get("attn_mask")
    if mask is not None and not mask.numel():  # what was saved of one that was not given
        named["attn_mask"] = None
    named = {"dropout_p": 0.0, "is_causal": False} | named
    result = (attention.backward if back else attention.forward)(products, marked, **named)
    if back:
        return (*result, None) if efficient else result
    q, k = named["q"], named["k"]
    none = q.new_empty(0, dtype=torch.int64)
    if efficient:
        return *result, none, none
    return *result, none, none, q.shape[-2], k.shape[-2], none, none, q.new_empty(0)


HANDLERS: dict[str, Callable[..., Any]] = {
    f"_scaled_dot_product_{kind}_attention{end}": attend
    for kind in ("flash", "efficient", "cudnn")
    for end in ("", "_backward")
}
OPERANDS = {name: 4 if name.endswith("backward") else 3 for name in HANDLERS}
"""How many of the first arguments must be of dtypes that units take; with the gradient, q, k and v."""
