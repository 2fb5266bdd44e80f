"""One operation of torch on exact operands: which numbers come from the run itself, and what cannot be followed."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..emulation.low_precision import HANDLERS, grouped, grouped_mm, groups
from ..emulation.operations import base_name, name_of
from .tensors import COMPLEX, FLOATS, floating

Tensor = torch.Tensor
# What only moves values: exact in every dtype, so nothing is born there.
MOVES = frozenset({
    "abs", "as_strided_scatter", "cat", "clone", "constant_pad_nd", "detach_copy", "diagonal_scatter", "embedding",
    "expand_copy", "flip", "gather", "index", "index_select", "lift_fresh", "masked_select", "max",
    "max_pool2d_with_indices", "neg", "permute", "pixel_shuffle", "relu", "repeat", "roll", "select_backward",
    "select_scatter", "slice_backward", "slice_scatter", "sort", "stack", "take", "threshold_backward", "topk", "tril",
    "triu", "unsqueeze", "where", "zero",
})  # fmt: skip
_WINDOWS = frozenset({
    "transpose", "t", "squeeze", "unsqueeze", "swapaxes", "swapdims", "as_strided", "detach", "set", "resize",
})  # fmt: skip
_CASTS = frozenset({"_to_copy", "copy"})
_SEEDED_ONLY_IF_DROPPING = frozenset(
    {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"}
)
_ALONG = frozenset({"max", "min", "median", "nanmedian", "mode", "kthvalue", "topk", "sort", "cummax", "cummin"})
_POOLS = frozenset({
    "max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "fractional_max_pool2d", "fractional_max_pool3d",
})  # fmt: skip
_GROUPED = frozenset(name for name, handler in HANDLERS.items() if handler is grouped_mm)
_MUTATES = {"native_batch_norm": (3, 4)}  # running statistics, which the schema does not say are written to


@lru_cache(maxsize=4096)
def random(func: Any) -> bool:
    """Whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags and base_name(func) not in _SEEDED_ONLY_IF_DROPPING


@lru_cache(maxsize=4096)
def makes(func: Any) -> bool:
    """Whether an operation makes a tensor of its own values, like another in shape alone, or only another window."""
    name = base_name(func)
    window = name != name_of(func) and name in _WINDOWS
    return window or name.startswith(("new_", "empty")) or name.endswith("_like")


@lru_cache(maxsize=4096)
def moves(func: Any) -> bool:
    """Whether an operation only moves values of one dtype."""
    return base_name(func) in MOVES


@lru_cache(maxsize=4096)
def casts(func: Any) -> bool:
    """Whether an operation only rounds values to another dtype."""
    return base_name(func) in _CASTS


@lru_cache(maxsize=4096)
def written(func: Any) -> tuple[tuple[int, str], ...]:
    """The arguments that an operation writes to, by place and name."""
    places = [
        (i, a.name) for i, a in enumerate(func._schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    ]  # fmt: skip
    places += [(i, func._schema.arguments[i].name) for i in _MUTATES.get(name_of(func), ())]
    return tuple(places)


def on(
    func: Any, args: Any, kwargs: Any, value: Callable[[Tensor], Tensor], result: Any, pre: dict[int, Tensor]
) -> Any:
    """``func`` of operands as ``value`` gives them; ``result``: the run's own, for its indices and masks.

    ``pre``: by the identity of an argument that is written to, the tensor to write to in its stead.
    """

    def widened(x: Any) -> Any:
        if isinstance(x, Tensor):
            return pre[id(x)] if id(x) in pre else value(x) if floating(x) else x
        if isinstance(x, torch.dtype):
            return torch.float64 if x in FLOATS else torch.complex128 if x in COMPLEX else x
        return x

    name = name_of(func)
    if name == "native_dropout":
        x, p, train = args[:3]
        exact = value(x)
        return (exact * result[1] / (1 - p) if train is not False and p < 1 else exact * result[1], result[1])
    indices = result[1] if isinstance(result, (tuple, list)) and len(result) == 2 else None
    if name in _ALONG and isinstance(indices, Tensor) and indices.dtype == torch.int64 and "out" not in kwargs:
        return _chosen(name, func, value(args[0]), args, kwargs, indices), indices
    if name in _POOLS and isinstance(indices, Tensor):
        exact = value(args[0])
        places = 3 if "3d" in name else 2
        flat = exact.flatten(-places)
        return flat.gather(-1, indices.flatten(-places)).reshape(indices.shape), indices
    if name in _GROUPED:
        return _in_groups(name, value(args[0]), value(args[1]), args[2] if len(args) > 2 else kwargs.get("offs"))
    given = [widened(x) if not isinstance(x, (list, tuple)) else tree_map(widened, x) for x in args]
    if name in ("_softmax", "_log_softmax"):
        given[2] = False  # half_to_float: it is float64 already
    return func(*given, **{k: tree_map(widened, v) for k, v in kwargs.items()})


def _in_groups(name: str, a: Tensor, b: Tensor, offs: Tensor | None) -> Tensor:
    """Products of groups of rows by matrices, which torch has not in float64."""
    out = a.new_zeros(grouped(a, b, offs, a.dtype).shape)
    for group in groups(name, a, b, offs):
        if not group.empty:
            out[group.place] = group.a @ group.b
    return out


def _chosen(name: str, func: Any, exact: Tensor, args: Any, kwargs: Any, indices: Tensor) -> Tensor:
    """The values at the places that the run itself chose."""
    named = {a.name: i for i, a in enumerate(func._schema.arguments)}

    def given(key: str, default: Any) -> Any:
        return kwargs.get(key, args[named[key]] if key in named and named[key] < len(args) else default)

    dim = given("dim", -1)
    if exact.dim() == 0:
        return exact.clone()
    keeps = name in ("topk", "sort", "cummax", "cummin") or given("keepdim", False)
    found = exact.gather(dim, indices if keeps else indices.unsqueeze(dim))
    return found if keeps else found.squeeze(dim)
