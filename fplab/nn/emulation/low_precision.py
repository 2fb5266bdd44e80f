"""torch's own low-precision products: ``_scaled_mm``, its newer form of lists, and products of groups.

Operands arrive as codes with their scales, in the layouts that CUDA's kernels demand, so that unmodified libraries run;
on a CPU most of these have no kernel at all. What the hardware's unit scales, block scales of MX and NVFP4, goes into
it. The rest is done around it in FP32, in the order of torch's kernels or, where a library hides it, in one that
:data:`fplab.nn.emulation.product_log.QUESTIONS` names:

* one scale a tensor, and NVFP4's second one: their product times the sum plus the bias, one fused multiply-add;
* one a row: the sum times A's, times B's, plus the bias, each rounded (CUTLASS, in torch's RowwiseScaledMM.cu);
* one for each 128 of k: ``acc = fma(sa * sb, part, acc)`` over parts that start from zero (DeepGEMM's order).

Without fast accumulation a unit that keeps fewer bits than FP32 (FP8 on Ada and Hopper) is promoted every 128 of k.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ...errors import LabError
from ...formats import get
from ...scaled.result import unswizzled
from ...tensorcore import models
from ...tensorcore.models import Model
from ...tensorcore.plan import ONE_CHAIN
from ...words import say
from .. import bits
from ..recipes import PROMOTED
from .backends import GPU, HOST, Host, Numbers, backend_of, detached
from .dense import Marked, by_name, demand_matrices, demand_one_dtype
from .multiply import Products
from .product_log import Shape
from .scaled_products import promoted, scaled_input

Array = np.ndarray[Any, Any]
Tensor = torch.Tensor
f32 = np.float32
ONE = f32(1)

FORMATS = {dtype: name for dtype, name in bits.FORMATS.items() if dtype.itemsize == 1}
FORMATS[torch.float4_e2m1fn_x2] = "e2m1"
TENSOR, ROW, BY_16, BY_32, BY_128, SQUARE = range(6)  # torch.nn.functional.ScalingType
SCALES = {BY_32: (32, torch.float8_e8m0fnu, "e8m0"), BY_16: (16, torch.float8_e4m3fn, "e4m3")}


@dataclass(frozen=True)
class Operand:
    """A, or B transposed: ``values`` (rows, K) of format ``fmt``; ``kind`` of scales, and these as float32.

    ``scales``: (1, 1), (rows, 1), or (rows, blocks of K); ``whole``: NVFP4's second one.
    """

    values: Numbers
    fmt: str
    kind: int
    scales: Numbers
    whole: np.float32 = ONE


# --- what torch is given --------------------------------------------------------------------------------------------


def elements(name: str, tensor: Tensor) -> tuple[Numbers, str]:
    """The values of codes (rows, K), float32, and their format; FP4 comes in pairs along K, the first one low."""
    if tensor.dtype not in FORMATS:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in FORMATS)
        raise LabError(f"{name} of {tensor.dtype} does not exist; allowed: {allowed}.")
    fmt = FORMATS[tensor.dtype]
    codes = detached(tensor).view(torch.uint8).contiguous()
    if fmt == "e2m1":
        codes = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
    return backend_of(tensor).values(codes, get(fmt)), fmt


def blocked(name: str, scale: Tensor, rows: int, k: int, kind: int) -> Numbers:
    """Scales of blocks in their tiles of 128 rows and 4 blocks, as (rows, blocks)."""
    block, dtype, fmt = SCALES[kind]
    tiles = -(-rows // 128) * 128, -(-k // block // 4) * 4
    if scale.dtype != dtype or scale.numel() != tiles[0] * tiles[1]:
        raise LabError(
            f"{name}: scales of {rows} rows of {k} in blocks of {block} are {tiles[0]} x {tiles[1]} of {dtype}, in "
            f"tiles of 128 x 4; given: {scale.numel()} of {scale.dtype}."
        )
    codes = unswizzled(scale.detach().contiguous().view(torch.uint8), rows, -(-k // block))
    return backend_of(scale).values(codes, get(fmt))


def operand(name: str, tensor: Tensor, kind: int, scale: Tensor, whole: Tensor | None = None) -> Operand:
    """An operand (rows, K) with scales of a kind: blocks of 128 as (rows, blocks), squares as (row blocks, blocks)."""
    values, fmt = elements(name, tensor)
    rows, k = values.shape
    if kind in SCALES:
        second = ONE if whole is None else f32(_number(name, whole))
        return Operand(values, fmt, kind, blocked(name, scale, rows, k, kind), second)
    parts = -(-k // 128)
    shapes = {TENSOR: (1, 1), ROW: (rows, 1), BY_128: (rows, parts), SQUARE: (-(-rows // 128), parts)}
    shape = shapes[kind]
    fits = scale.numel() == shape[0] * shape[1] and (kind in (TENSOR, ROW) or tuple(scale.shape) == shape)
    if scale.dtype != torch.float32 or not fits:
        raise LabError(f"{name}: scales of {shape} of torch.float32 are needed; given: {_said(scale)}.")
    scale = scale.detach().reshape(shape)
    if kind == SQUARE:
        kind, scale = BY_128, scale.repeat_interleave(128, 0)[:rows]
    return Operand(values, fmt, kind, backend_of(scale).numbers(scale))


def _number(name: str, scale: Tensor) -> float:
    if scale.dtype != torch.float32 or scale.numel() != 1:
        raise LabError(f"{name}: the scale of the tensor is one torch.float32; given: {_said(scale)}.")
    return float(scale)


def _said(scale: Tensor) -> str:
    return str(say("{shape} of {dtype}", shape=tuple(scale.shape), dtype=scale.dtype))


def kinds_of(name: str, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> tuple[int, int]:
    """Which scales ``_scaled_mm`` is given, from dtypes and shapes, as torch tells them apart."""
    if scale_a.numel() == scale_b.numel() == 1 and scale_a.dtype == torch.float32:
        return TENSOR, TENSOR
    for kind, (_, dtype, _) in SCALES.items():
        if scale_a.dtype == scale_b.dtype == dtype:
            return kind, kind
    m, n, blocks = a.shape[0], b.shape[1], -(-a.shape[1] // 128)
    if scale_a.shape == (m, 1) and scale_b.shape == (1, n):
        return ROW, ROW
    of_a: dict[tuple[int, ...], int] = {(-(-m // 128), blocks): SQUARE, (m, blocks): BY_128}
    of_b: dict[tuple[int, ...], int] = {(blocks, -(-n // 128)): SQUARE, (blocks, n): BY_128}
    along_a, along_b = of_a.get(tuple(scale_a.shape)), of_b.get(tuple(scale_b.shape))
    if along_a is None or along_b is None or along_a == along_b == SQUARE:
        raise LabError(
            f"{name} of {tuple(a.shape)} and {tuple(b.shape)} with scales {_said(scale_a)} and {_said(scale_b)}: torch "
            f"takes one each, ({m}, 1) and (1, {n}), ({m}, {blocks}) or ({-(-m // 128)}, {blocks}) and ({blocks}, {n}) "
            f"or ({blocks}, {-(-n // 128)}), not both of squares, or float8 scales of blocks of 32 or 16."
        )
    return along_a, along_b


# --- what the unit and its epilogue compute -------------------------------------------------------------------------


def product(products: Products, a: Operand, b: Operand, bias: Tensor | None, fast: bool) -> Numbers:
    """The scaled product (M, N), float32, before it is stored."""
    pair = {a.kind, b.kind}
    if len(pair) > 1:
        raise LabError(f"{products.operation} with scales of different kinds does not exist; A and B share theirs.")
    settings = products.settings
    if a.kind in SCALES:
        names = tuple(_input(x, both_four=a.fmt == b.fmt == "e2m1") for x in (a, b))
        gpu = settings.gpu.gpu if isinstance(settings.gpu, Model) else settings.gpu
        model = models.get(gpu, names)
    else:
        model = settings.model(a.fmt, b.fmt)
    shape = Shape(1, len(a.values), a.values.shape[1], len(b.values))
    products.log.product(products.site.layer, products.phase, products.operation, model, shape)
    at = GPU if isinstance(a.values, Tensor) else HOST
    if a.kind == BY_128:
        return with_bias(at, at.by_blocks(model, a.values, b.values.T, a.scales, b.scales.T, 128), bias)
    scales = (a.scales, b.scales.T) if model.scale else None
    plan = promoted(ONE_CHAIN, None if fast else PROMOTED, model)
    result = at.scaled_product(model, a.values, b.values.T, plan, scales)
    if a.kind == ROW:
        return with_bias(at, at.factored(result, [a.scales, b.scales.T], model), bias)
    with np.errstate(all="ignore"):
        alpha = a.whole * b.whole if model.scale else f32(a.scales[0, 0]) * f32(b.scales[0, 0])
    if alpha == 1 and bias is None:
        return result
    return at.epilogue(model, result, bias, float(alpha), 1.0)


def _input(operand: Operand, both_four: bool) -> str:
    """What the unit calls an operand whose scales it takes."""
    block, _, scale = SCALES[operand.kind]
    return scaled_input(operand.fmt, scale, block, both_four) or f"{operand.fmt} with scales of {block}"


def with_bias(at: Host, result: Numbers, bias: Tensor | None) -> Numbers:
    """The sum with a bias, an FP32 addition."""
    with np.errstate(all="ignore"):
        return result if bias is None else result + at.numbers(bias.detach().float())


def stored(products: Products, result: Numbers, dtype: torch.dtype) -> Tensor:
    """Rounded to the dtype of the result; FP8 saturates."""
    at = GPU if isinstance(result, Tensor) else HOST
    if dtype in FORMATS:
        return at.tensor(at.stored(result, FORMATS[dtype], overflow="saturate")).to(dtype)
    return products.stored(at.tensor(result), dtype)


# --- one product ----------------------------------------------------------------------------------------------------


@by_name
def scaled_mm(
    products: Products, marked: Marked, *, self: Tensor, mat2: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
    contraction_dim: Sequence[int] = (), **scales: Any,
) -> Tensor:  # fmt: skip
    """``self`` (M, K) by ``mat2`` (K, N), codes with scales that dequantise, see :func:`sides`; FP4 with K of pairs."""
    name = products.operation
    demand_matrices(name, self, mat2, (2,), alike=False)
    of_a, of_b = sides(name, self, mat2, **scales)
    result = product(products, operand(name, self, *of_a), operand(name, mat2.mT, *of_b), bias, use_fast_accum)
    dtype = out_dtype or self.dtype
    if scale_result is not None and dtype in FORMATS:
        with np.errstate(all="ignore"):
            result = backend_of(self).times(result, _number(name, scale_result))
    return stored(products, result, dtype)


def sides(
    name: str, a: Tensor, b: Tensor, scale_a: Any, scale_b: Any, recipe_a: Sequence[int] | None = None,
    swizzle_a: Sequence[int] = (), recipe_b: Sequence[int] = (), swizzle_b: Sequence[int] = (),
) -> tuple[tuple[int, Tensor, Tensor | None], ...]:  # fmt: skip
    """Of A, and of B transposed: the kind of scales, these as (rows, blocks), and NVFP4's second one.

    In ``torch.nn.functional.scaled_mm`` recipes name the kinds, B's scales are as of its transpose, and squares have k
    first, in fours.
    """
    if recipe_a is None:
        kinds = kinds_of(name, a, b, scale_a, scale_b)
        turned = scale_b.mT if scale_b.dim() == 2 and scale_b.dtype == torch.float32 else scale_b  # not of tiles
        return (kinds[0], scale_a, None), (kinds[1], turned, None)
    named = []
    for scales, recipe, swizzle in ((scale_a, recipe_a, swizzle_a), (scale_b, recipe_b, swizzle_b)):
        kind = kind_of(name, scales, recipe, swizzle)
        own = scales[0][: -(-a.shape[1] // 128)].mT if kind == SQUARE else scales[0]
        named.append((kind, own, scales[1] if len(scales) > 1 else None))
    return tuple(named)


def kind_of(name: str, scales: Sequence[Tensor], recipe: Sequence[int], swizzle: Sequence[int]) -> int:
    """Which scales of an operand a recipe names."""
    kinds = [int(kind) for kind in recipe]
    if len(scales) != len(kinds) or (kinds[1:] and kinds != [BY_16, TENSOR]):
        raise LabError(f"{name} with {len(scales)} scales and recipes {kinds} does not exist.")
    if kinds[0] in SCALES and not (swizzle and int(swizzle[0]) == 1):
        raise LabError(f"{name}: block scales lie in tiles, SwizzleType.SWIZZLE_32_4_4; given: {list(swizzle)}.")
    return kinds[0]


# --- groups ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """One product of a grouped one: A and B, where in the result it goes, and which part of A or B it is."""

    number: int
    a: Tensor
    b: Tensor
    place: Any
    cut: slice

    @property
    def empty(self) -> bool:
        """Whether it has nothing to multiply."""
        return 0 in (*self.a.shape, self.b.shape[1])


def groups(name: str, a: Tensor, b: Tensor, offs: Tensor | None) -> Iterator[Group]:
    """The products of groups: of rows of A, of columns of B, of k where both have two dimensions, or of a batch.

    ``offs``: where each group ends, int32.
    """
    demand_matrices(name, a, b, (2, 3), alike=False)
    flat = a.dim() == 2, b.dim() == 2
    if any(flat) != (offs is not None):
        raise LabError(f"{name}: offs= says where groups end in an operand of two dimensions, and only there.")
    ends = [0] * max(len(a), len(b)) if offs is None else [int(end) for end in offs]
    count = [len(x) for x, is_flat in zip((a, b), flat, strict=True) if not is_flat]
    whole = a.shape[0 if flat == (True, False) else 1] if flat[0] else b.shape[1]
    if any(n != len(ends) for n in count) or sorted(ends) != ends or (offs is not None and ends and ends[-1] > whole):
        shapes = say("{a} and {b}", a=tuple(a.shape), b=tuple(b.shape))
        raise LabError(f"{name} of {shapes} with groups that end at {ends} does not exist.")
    start = 0
    for g, end in enumerate(ends):
        cut = slice(start, end)
        start = end
        if flat == (True, False):
            yield Group(g, a[cut], b[g], cut, cut)
        elif flat == (False, True):
            yield Group(g, a[g], b[:, cut], (slice(None), cut), cut)
        elif all(flat):
            yield Group(g, a[:, cut], b[cut], g, cut)
        else:
            yield Group(g, a[g], b[g], g, cut)


def grouped(a: Tensor, b: Tensor, offs: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The result of a grouped product, zero where no group is."""
    batch: tuple[int, ...] = ()
    if a.dim() == b.dim():
        batch = (len(a) if a.dim() == 3 else 0 if offs is None else len(offs),)
    return torch.zeros(*batch, a.shape[-2], b.shape[-1], dtype=dtype, device=a.device)


def _no_bias(name: str, *given: Any) -> None:
    if any(x is not None for x in given):
        raise LabError(f"{name} with a bias or a scale of the result: torch takes none here.")


def grouped_mm(
    products: Products, marked: Marked, a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Products of groups of rows by matrices, as a mixture of experts has: each is one as ``mm`` is."""
    name = products.operation
    _no_bias(name, bias)
    demand_one_dtype(name, a, b)
    out, gradient = grouped(a, b, offs, out_dtype or a.dtype), (marked(a), marked(b))
    for group in groups(name, a, b, offs):
        products.done = group.number  # an expert without rows keeps its role
        if not group.empty:
            out[group.place] = products.stored(products(group.a, group.b, a.dtype, gradient), out.dtype)
    return out


@by_name
def scaled_grouped_mm(
    products: Products, marked: Marked, *, self: Tensor, mat2: Tensor, scale_a: Any, scale_b: Any,
    recipe_a: Sequence[int] | None = None, swizzle_a: Sequence[int] = (), recipe_b: Sequence[int] = (),
    swizzle_b: Sequence[int] = (), offs: Tensor | None = None, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
    contraction_dim: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    """Groups with a scale of each row (for each group where these cut k), or in blocks, each group's in tiles."""
    name, a, b = products.operation, self, mat2
    _no_bias(name, bias, scale_result)
    if a.dim() == b.dim() == 2 and torch.float4_e2m1fn_x2 in (a.dtype, b.dtype):
        raise LabError(f"{name} of float4_e2m1fn_x2 in groups of k is not emulated; allowed: groups of rows.")
    given = []
    for matrices, scales, recipe, swizzle in ((a, scale_a, recipe_a, swizzle_a), (b, scale_b, recipe_b, swizzle_b)):
        if recipe_a is None:
            kind = next((kind for kind, (_, dtype, _) in SCALES.items() if scales.dtype == dtype), ROW)
            scales = [scales]
        else:
            kind = kind_of(name, scales, recipe or (), swizzle)
        given.append(_Scales(name, matrices.dim() == 3, a.dim() == b.dim() == 2, scales, kind))
    out = grouped(a, b, offs, out_dtype or torch.bfloat16)
    for group in groups(name, a, b, offs):
        x, y = (side.of(group, rows) for side, rows in zip(given, (group.a, group.b.mT), strict=True))
        if not group.empty:
            out[group.place] = stored(products, product(products, x, y, None, use_fast_accum), out.dtype)
    return out


class _Scales:
    """The scales of one side, dealt out to its groups."""

    def __init__(self, name: str, batched: bool, by_k: bool, scales: Sequence[Tensor], kind: int) -> None:
        if kind not in (ROW, BY_16, BY_32):
            raise LabError(f"{name} takes scales of rows, or of blocks of 32 or 16; torch has no others.")
        self.name, self.batched, self.by_k, self.scales, self.kind = name, batched, by_k, scales, kind
        self.used = 0  # of the tiles

    def of(self, group: Group, rows: Tensor) -> Operand:
        """The operand of a group: ``rows`` (rows, K)."""
        scale = self.scales[0]
        if self.batched:
            part = scale[group.number]
        elif self.kind == ROW:
            part = scale[group.number * len(rows) :][: len(rows)] if self.by_k else scale[group.cut]
        else:
            k = rows.shape[1] * (2 if rows.dtype == torch.float4_e2m1fn_x2 else 1)
            count = -(-len(rows) // 128) * 128 * (-(-k // SCALES[self.kind][0] // 4) * 4)
            part = scale.reshape(-1)[self.used : self.used + count]
            self.used += count
        whole = self.scales[1].reshape(-1) if len(self.scales) > 1 else None
        result = operand(self.name, rows, self.kind, part)
        return result if whole is None else replace(result, whole=f32(whole[group.number if len(whole) > 1 else 0]))


HANDLERS: dict[str, Callable[..., Tensor]] = {
    "_scaled_mm": scaled_mm, "_scaled_mm_v2": scaled_mm, "_grouped_mm": grouped_mm,
    "_scaled_grouped_mm": scaled_grouped_mm, "_scaled_grouped_mm_v2": scaled_grouped_mm,
    "transformers::grouped_mm_fallback": grouped_mm,
}  # fmt: skip
OPERANDS = {name: 2 if handler is grouped_mm else 0 for name, handler in HANDLERS.items()}
"""How many of the first arguments must be of dtypes that units take as they are; the rest are checked here."""
