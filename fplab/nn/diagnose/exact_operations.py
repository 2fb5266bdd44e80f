"""One operation of torch on exact operands: which numbers come from the run itself, and what cannot be followed.

And of its worst element the operands, and how many bits their cancellation lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..emulation import low_precision
from ..emulation.low_precision import HANDLERS, grouped, grouped_mm, groups
from ..emulation.operations import TRAITS
from ..tracer import Event, base_name, name_of
from .tensors import COMPLEX, FLOATS, INTEGERS, dense, floating, spelt

Tensor = torch.Tensor

# --- the worst element ------------------------------------------------------------------------------------------------

_SUMS = frozenset({"sum", "mean"})
MATRIX_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "mv", "dot"})
SHOWN = 2  # pairs of operands kept of a product


class Element(NamedTuple):
    """An element whose error is not its operands'.

    ``place``: its index. ``real``, ``exact``: its values. ``relative``: its error. ``operands``: (computed, exact) of
    the largest that made it. ``bits``: how many leading bits cancelled, log2(sum of magnitudes / magnitude of the
    sum); None where the operation is no sum.
    """

    layer: str
    phase: str
    operation: str
    place: tuple[int, ...]
    real: float
    exact: float
    relative: float
    operands: tuple[tuple[float, float], ...]
    bits: float | None


def operands(
    name: str, args: Any, kwargs: Any, shape: torch.Size, place: int, exact: Callable[[Tensor], Tensor], value: float
) -> tuple[tuple[tuple[float, float], ...], float | None]:
    """The largest summands of an element, as computed and exact, and the bits that cancelled; () where not known.

    ``value``: the exact element, which counts where float64 leaves nothing of the summands' sum.
    """
    terms = _terms(name, args, kwargs, shape, place, exact)
    if terms is None:
        return (), None
    real, true = terms
    size, total = float(true.abs().sum()), abs(float(true.sum())) or abs(value)
    bits = math.log2(size / total) if total and math.isfinite(size) else math.inf if size else 0.0
    order = true.abs().argsort(descending=True)[:SHOWN]
    return tuple((float(real[i]), float(true[i])) for i in order), bits


def _terms(
    name: str, args: Any, kwargs: Any, shape: torch.Size, place: int, exact: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor] | None:
    """What an element is the sum of, float64 (n,), as computed and exact; None for what is no sum."""
    index = torch.unravel_index(torch.tensor(place), shape) if shape else ()
    if name in ("add", "sub", "rsub") and len(args) >= 2:
        factor = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
        signs = {"add": (1, factor), "sub": (1, -factor), "rsub": (-factor, 1)}[name]
        real = [_at(x, shape, index) * s for x, s in zip(args[:2], signs, strict=True)]
        exactly = [exact(x) if isinstance(x, Tensor) else x for x in args[:2]]
        true = [_at(x, shape, index) * s for x, s in zip(exactly, signs, strict=True)]
        return torch.tensor(real, dtype=torch.float64), torch.tensor(true, dtype=torch.float64)
    if name in _SUMS and isinstance(args[0], Tensor):
        x = args[0]
        dims = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else kwargs.get("dim")
        over = sorted(d % x.dim() for d in dims) if dims else list(range(x.dim()))
        if len(shape) not in (x.dim(), x.dim() - len(over)):
            return None
        kept = iter(index)
        at: list[Any] = []
        for d in range(x.dim()):
            if d in over:
                at.append(slice(None))
                if len(shape) == x.dim():
                    next(kept)
            else:
                at.append(int(next(kept)))
        return x[tuple(at)].reshape(-1).double(), exact(x)[tuple(at)].reshape(-1)
    if name in MATRIX_PRODUCTS:
        a, b = args[-2:] if name not in ("addmm", "baddbmm") else args[1:3]
        row: tuple[Any, ...] = (*index[:-1], slice(None)) if a.dim() > 1 and b.dim() > 1 else (*index, slice(None))
        column: tuple[Any, ...] = (*index[:-2], slice(None), index[-1]) if b.dim() > 1 else (slice(None),)
        sides = [one[row].double() * two[column].double() for one, two in ((a, b), (exact(a), exact(b)))]
        if name in ("addmm", "baddbmm"):
            addends = [_at(c, shape, index) for c in (args[0], exact(args[0]))]
            sides = [torch.cat([side, torch.tensor([c]).double()]) for side, c in zip(sides, addends, strict=True)]
        return sides[0], sides[1]
    return None


def _at(x: Any, shape: torch.Size, index: tuple[Tensor, ...]) -> float:
    """One element of an operand that was broadcast."""
    return float(x.broadcast_to(shape)[tuple(map(int, index))]) if isinstance(x, Tensor) else float(x)


# --- operations on exact operands -------------------------------------------------------------------------------------

MOVES, ROUNDS, CLAMPS = TRAITS["moves"], TRAITS["rounds"], TRAITS["clamps"]
PRODUCTS = MATRIX_PRODUCTS | {"_int_mm", "convolution"}
INTEGRAL = PRODUCTS | CLAMPS | TRAITS["integral"]
NARROW = frozenset({torch.int8, torch.uint8, torch.int16})  # no index is one of these
_CASTS = frozenset({"_to_copy", "copy"})
_SEEDED_ONLY_IF_DROPPING = frozenset(
    {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"}
)
_GROUPED = frozenset(name for name, handler in HANDLERS.items() if handler is grouped_mm)


@lru_cache(maxsize=4096)
def random(func: Any) -> bool:
    """Whether an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags and base_name(func) not in _SEEDED_ONLY_IF_DROPPING


@lru_cache(maxsize=4096)
def makes(func: Any) -> bool:
    """Whether an operation makes a tensor of its own values, like another in shape alone, or only another window."""
    name = base_name(func)
    window = name != name_of(func) and name in TRAITS["windows"]
    return window or name.startswith(("new_", "empty")) or name.endswith("_like")


@lru_cache(maxsize=4096)
def moves(func: Any) -> bool:
    """Whether an operation only moves values of one dtype."""
    return base_name(func) in MOVES


@lru_cache(maxsize=4096)
def casts(func: Any) -> bool:
    """Whether an operation only rounds values to another dtype."""
    return base_name(func) in _CASTS


def is_fake(name: str) -> bool:
    """Whether an operation quantises and dequantises at once: exactly it is the identity."""
    return "backward" not in name and ("fake_quantize" in name or name == "_fused_moving_avg_obs_fq_helper")


def keeps_all(event: Event) -> bool:
    """Whether an operation casts numbers to integers and finds none between them."""
    if not casts(event.func):
        return False
    args = event.args
    dtype, x = (event.kwargs.get("dtype"), args[0]) if event.name == "_to_copy" else (args[0].dtype, args[1])
    return dtype in INTEGERS and floating(x) and bool((x == x.trunc()).all())


def quantises(name: str, fmt: str) -> bool:
    """Whether an operation by its name, with a result of a format, adds errors by quantising alone."""
    return is_fake(name) or name in ROUNDS | CLAMPS or fmt in map(spelt, NARROW)


def leaves(event: Event) -> str:
    """The name of an operation that makes numbers of bits, or bits of numbers, whose companions are not followed."""
    name, args = name_of(event.func), event.args
    if name == "view" and event.func._overloadname == "dtype" and floating(args[0]) != (args[1] in FLOATS):
        return "view(dtype)"
    return name if name == "dequantize" else ""


def narrows(event: Event) -> bool:
    """Whether an operation casts numbers to integers that stand for no place."""
    if event.name == "_to_copy":
        return event.kwargs.get("dtype") in NARROW
    return event.name == "copy" and event.args[0].dtype in NARROW


def on(event: Event, value: Callable[[Tensor], Tensor], pre: dict[int, Tensor]) -> Any:
    """An operation that has run, of operands as ``value`` gives them; its indices and masks are the run's own.

    ``pre``: by the identity of an argument that is written to, the tensor to write to in its stead.
    """
    func, args, kwargs, result = event.func, event.args, event.kwargs, event.result

    def widened(x: Any) -> Any:
        if isinstance(x, Tensor):
            if x.dtype in INTEGERS and dense(x):
                place = moves(func) and name != "where" and not any(x is y for y in tree_leaves(args[0]))
                result = pre[id(x)] if id(x) in pre else x if place else value(x)
                return result.double() if result.dtype in INTEGERS and name in PRODUCTS else result
            return pre[id(x)] if id(x) in pre else value(x) if floating(x) else x
        if isinstance(x, torch.dtype):
            return torch.float64 if x in FLOATS or x in INTEGERS else torch.complex128 if x in COMPLEX else x
        return x

    name = name_of(func)
    if name == "native_dropout":
        x, p, train = args[:3]
        exact = value(x)
        return (exact * result[1] / (1 - p) if train is not False and p < 1 else exact * result[1], result[1])
    indices = result[1] if isinstance(result, (tuple, list)) and len(result) == 2 else None
    if name in TRAITS["along"] and isinstance(indices, Tensor) and indices.dtype == torch.int64 and "out" not in kwargs:
        return _chosen(event, value(args[0]), indices), indices
    if name in TRAITS["pools"] and isinstance(indices, Tensor):
        exact = value(args[0])
        places = 3 if "3d" in name else 2
        flat = exact.flatten(-places)
        return flat.gather(-1, indices.flatten(-places)).reshape(indices.shape), indices
    if name in _GROUPED:
        return _in_groups(name, value(args[0]), value(args[1]), event.named.get("offs"))
    if name in ("_scaled_mm", "_scaled_mm_v2"):
        return _scaled(name, value, **event.named)
    if is_fake(name) or (name == "round" and kwargs.get("decimals")):
        for x in event.written:
            if id(x) in pre:
                pre[id(x)].copy_(x)  # a range and its grid, which are the run's own
        found = value(args[0]).clone()
        return (found, *result[1:]) if isinstance(result, (tuple, list)) else found
    given = [widened(x) if not isinstance(x, (list, tuple)) else tree_map(widened, x) for x in args]
    if name in ("_softmax", "_log_softmax"):
        given[2] = False  # half_to_float: it is float64 already
    if name == "_int_mm":
        return given[0] @ given[1]
    return func(*given, **{k: tree_map(widened, v) for k, v in kwargs.items()})


def _in_groups(name: str, a: Tensor, b: Tensor, offs: Tensor | None) -> Tensor:
    """Products of groups of rows by matrices, which torch has not in float64."""
    out = a.new_zeros(grouped(a, b, offs, a.dtype).shape)
    for group in groups(name, a, b, offs):
        if not group.empty:
            out[group.place] = group.a @ group.b
    return out


def _scaled(name: str, value: Callable[[Tensor], Tensor], self: Tensor, mat2: Tensor, **given: Any) -> Tensor:
    """The product (M, N) of codes (M, K) and (K, N), each times its scale, which torch has not in float64."""
    if not (floating(self) and floating(mat2)):
        raise NotImplementedError(f"{name} of {self.dtype} and {mat2.dtype}, which are pairs of codes")
    named = {key: x for key, x in given.items() if key.startswith(("scale_a", "scale_b", "recipe_", "swizzle_"))}
    (kind_a, scale_a, _), (kind_b, scale_b, _) = low_precision.sides(name, self, mat2, **named)
    result = value(self) * _factors(name, kind_a, scale_a, self.shape, value)
    result = result @ (value(mat2).mT * _factors(name, kind_b, scale_b, mat2.mT.shape, value)).mT
    result = result if given.get("bias") is None else result + value(given["bias"])
    factor = given.get("scale_result") if (given.get("out_dtype") or self.dtype).itemsize == 1 else None
    return result if factor is None else result * value(factor)


def _factors(name: str, kind: int, scale: Tensor, shape: torch.Size, value: Callable[[Tensor], Tensor]) -> Tensor:
    """Scales of an operand (rows, K), as many as broadcast against it or one an element."""
    rows, k = shape
    if kind in low_precision.SCALES:
        block = low_precision.SCALES[kind][0]
        result = torch.as_tensor(low_precision.blocked(name, scale, rows, k, kind)).double()
        return result.repeat_interleave(block, 1)[:, :k]
    parts = -(-k // 128)
    of_128 = {low_precision.BY_128: (rows, parts), low_precision.SQUARE: (-(-rows // 128), parts)}
    if kind not in of_128:
        return value(scale).reshape((1, 1) if kind == low_precision.TENSOR else (rows, 1))
    result = value(scale).reshape(of_128[kind]).repeat_interleave(128, 1)[:, :k]
    return result.repeat_interleave(128, 0)[:rows] if kind == low_precision.SQUARE else result


def _chosen(event: Event, exact: Tensor, indices: Tensor) -> Tensor:
    """The values at the places that the run itself chose."""
    dim = event.named.get("dim", -1)
    if exact.dim() == 0:
        return exact.clone()
    keeps = name_of(event.func) in ("topk", "sort", "cummax", "cummin") or event.named.get("keepdim", False)
    result = exact.gather(dim, indices if keeps else indices.unsqueeze(dim))
    return result if keeps else result.squeeze(dim)
