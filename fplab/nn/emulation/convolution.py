"""Convolutions of any number of dimensions as products over patches (im2col), and both their gradients.

Which product cuDNN makes of a convolution, and its order of k, is not documented. Here every one of the three is one
product with k in a named order (:data:`fplab.nn.emulation.product_log.QUESTIONS`):

* forward: patches (image and place, channel and kernel place) by weights; k is channel, then kernel place;
* gradient of the input, and a transposed convolution: the same over the gradient, with zeros between its elements
  where the stride is more than 1, by the flipped kernel; k is output channel, then place;
* gradient of the weights: patches by the gradient; k is image, then output place.

The bias is added in the epilogue, as for matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._prims_common import suggest_memory_format

from ...errors import LabError
from ...tensorcore import direct
from .multiply import GRADIENT, INPUT, WEIGHT, Products
from .product_log import Shape

Tensor = torch.Tensor
Ints = Sequence[int]
Marked = Callable[[Tensor], str]


class Geometry(NamedTuple):
    """How a kernel walks over its input; each sequence has one entry a dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, dims: int, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Geometry:
        """With a single number spread over all dimensions, as torch allows."""
        a, b, c = (tuple(x) * dims if len(x) == 1 else tuple(x) for x in (stride, padding, dilation))
        return cls(a, b, c, groups)


def forward(
    products: Products, marked: Marked, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int,
) -> Tensor:  # fmt: skip
    """torch's convolution: x (N, C, ...), weight (C_out, C / groups, ...), transposed (C, C_out / groups, ...)."""
    _checked(x, weight, transposed, groups)
    dims = weight.dim() - 2
    geometry = Geometry.of(dims, stride, padding, dilation, groups)
    flags = marked(x), marked(weight) or WEIGHT
    if transposed:
        extra = tuple(output_padding) * (dims if len(output_padding) == 1 else 1)
        sizes = _transposed_sizes(x, weight, geometry, extra)
        result = _spread_product(products, x, weight, geometry, sizes, flags, bias)
    else:
        result = _patch_product(products, x, weight, geometry, flags, bias=bias)
    return _laid_out(products.stored(result, x.dtype), x, weight)


def backward(
    products: Products, marked: Marked, gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Ints | None,
    stride: Ints, padding: Ints, dilation: Ints, transposed: bool, output_padding: Ints, groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients of input, weight and bias, those that ``output_mask`` asks for."""
    geometry = Geometry.of(weight.dim() - 2, stride, padding, dilation, groups)
    grads: list[Tensor | None] = [None, None, None]
    if output_mask[0]:
        sizes, flags = tuple(x.shape[2:]), (GRADIENT, WEIGHT)
        if transposed:
            result = _patch_product(products, gradient, weight, geometry, flags, sizes)
        else:
            result = _spread_product(products, gradient, weight, geometry, sizes, flags)
        grads[0] = _laid_out(products.stored(result, x.dtype), x, weight)
    if output_mask[1]:
        over, by, flags = (gradient, x, (GRADIENT, INPUT)) if transposed else (x, gradient, (INPUT, GRADIENT))
        grad_w = products.stored(_weight_product(products, over, by, weight, geometry, flags), weight.dtype)
        grads[1] = _laid_out(grad_w, x, weight)
    if output_mask[2]:
        grads[2] = gradient.sum(dim=[0, *range(2, gradient.dim())])
    return grads[0], grads[1], grads[2]


def _checked(x: Tensor, weight: Tensor, transposed: bool, groups: int) -> None:
    """What torch itself would refuse."""
    if x.dtype != weight.dtype:
        raise LabError(f"a convolution of {x.dtype} by {weight.dtype}: torch takes tensors of one dtype; cast one.")
    taken = weight.shape[0] if transposed else weight.shape[1] * groups
    if x.dim() != weight.dim() or x.shape[1] != taken:
        raise LabError(
            f"a convolution with weights of {tuple(weight.shape)} in {groups} group(s) takes {taken} channels and "
            f"{weight.dim() - 2} dimensions; the input has the shape {tuple(x.shape)}."
        )


def _laid_out(result: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """In memory as torch lays its own: channels last if an operand is. A view, or a sum, would be another otherwise."""
    given = (suggest_memory_format(x), suggest_memory_format(weight))
    last = [form for form in given if form != torch.contiguous_format]
    return result.contiguous(memory_format=last[0] if last else torch.contiguous_format)


def _places(sizes: Ints, kernel: Ints, g: Geometry) -> tuple[int, ...]:
    """How many places a kernel has in each dimension."""
    spans = zip(sizes, kernel, g.stride, g.padding, g.dilation, strict=True)
    result = tuple((size + 2 * pad - step * (k - 1) - 1) // stride + 1 for size, k, stride, pad, step in spans)
    if any(n < 1 for n in result):
        raise LabError(f"a kernel of {tuple(kernel)} with dilation {g.dilation} does not fit into {tuple(sizes)}.")
    return result


def _transposed_sizes(x: Tensor, weight: Tensor, g: Geometry, extra: Ints) -> tuple[int, ...]:
    """The size of a transposed convolution's result in each dimension."""
    spans = zip(x.shape[2:], weight.shape[2:], g.stride, g.padding, g.dilation, extra, strict=True)
    return tuple((n - 1) * stride - 2 * pad + step * (k - 1) + 1 + more for n, k, stride, pad, step, more in spans)


def _patches(x: Tensor, kernel: Ints, places: Ints, g: Geometry) -> Tensor:
    """(groups, N * places, C / groups * kernel) of a padded input (N, C, ...).

    In memory k comes first: copying then goes along the input's rows, and few columns are packed from there.
    """
    n, channels, dims = x.shape[0], x.shape[1], len(kernel)
    x = x.contiguous()
    lead, inner = x.stride()[:2], x.stride()[2:]
    windows = x.as_strided(
        (n, channels, *places, *kernel),
        (*lead, *(s * t for s, t in zip(inner, g.stride, strict=True)),
         *(s * t for s, t in zip(inner, g.dilation, strict=True))),
    )  # fmt: skip
    grouped = windows.view(n, g.groups, channels // g.groups, *places, *kernel)
    order = (1, 2, *range(3 + dims, 3 + 2 * dims), 0, *range(3, 3 + dims))
    taken = channels // g.groups * math.prod(kernel)
    return grouped.permute(order).reshape(g.groups, taken, n * math.prod(places)).transpose(1, 2)


def _padded(x: Tensor, before: Ints, after: Ints) -> Tensor:
    """Zeros added around the spatial dimensions; a negative number cuts."""
    amounts = [pad for pair in zip(reversed(before), reversed(after), strict=True) for pad in pair]
    return torch.nn.functional.pad(x, amounts) if any(amounts) else x


def _patch_product(
    products: Products, x: Tensor, weight: Tensor, g: Geometry, flags: tuple[str, str], places: Ints | None = None,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(N, C_out, ...): a convolution as a product; ``places``: the first so many, None is all."""
    kernel = tuple(weight.shape[2:])
    places = places or _places(x.shape[2:], kernel, g)
    outs, taken = weight.shape[0] // g.groups, math.prod(weight.shape[1:])
    columns = weight.reshape(g.groups, outs, taken).transpose(1, 2)
    return _images(products, x, columns, kernel, g, (g.padding, g.padding), places, flags, bias)


def _spread_product(
    products: Products, x: Tensor, weight: Tensor, g: Geometry, sizes: Ints, flags: tuple[str, str],
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(N, C_out, ...) of a transposed convolution whose result has ``sizes``."""
    kernel, dims = tuple(weight.shape[2:]), weight.dim() - 2
    spread = _with_gaps(x, g.stride)
    before = [step * (k - 1) - pad for step, k, pad in zip(g.dilation, kernel, g.padding, strict=True)]
    ends = zip(sizes, spread.shape[2:], before, g.dilation, kernel, strict=True)
    after = [size + step * (k - 1) - n - left for size, n, left, step, k in ends]
    plain = Geometry((1,) * dims, (0,) * dims, g.dilation, g.groups)
    flipped = weight.flip(list(range(2, 2 + dims)))
    inner = weight.shape[0] // g.groups
    outs, area = weight.shape[1], math.prod(kernel)
    columns = flipped.reshape(g.groups, inner, outs, area).transpose(2, 3)  # group, in, place, out
    columns = columns.reshape(g.groups, inner * area, outs)
    return _images(products, spread, columns, kernel, plain, (before, after), sizes, flags, bias)


def _images(
    products: Products, x: Tensor, columns: Tensor, kernel: Ints, g: Geometry, pads: tuple[Ints, Ints], places: Ints,
    flags: tuple[str, str], bias: Tensor | None,
) -> Tensor:  # fmt: skip
    """(N, C_out, *places) of patches of x, padded by ``pads``, by columns (groups, K, C_out / groups), and the bias."""
    n, (_, taken, outs) = x.shape[0], columns.shape
    sizes = [size + sum(pad) for size, *pad in zip(x.shape[2:], *pads, strict=True)]
    if outs <= direct.FEW and min(map(min, pads)) >= 0 and direct.fills(sizes, places):
        work = partial(direct.convolution, kernel=kernel, before=pads[0], sizes=sizes, stride=g.stride,
                       dilation=g.dilation, places=places)  # fmt: skip
        shape = Shape(g.groups, n * math.prod(places), taken, outs)
        result = products.direct(x.contiguous(), columns.transpose(1, 2).contiguous(), x.dtype, shape, work)
        if result is not None:
            shaped = None if bias is None else bias.reshape(-1, *(1 for _ in places))
            return products.with_addend(result, shaped, 1.0, 1.0)
    patches = _patches(_padded(x, *pads), kernel, places, g)
    flat = products(patches, columns, x.dtype, flags)
    if bias is not None:
        flat = products.with_addend(flat, bias.reshape(g.groups, 1, -1), 1.0, 1.0)
    return _as_images(flat, n, places)


def _with_gaps(x: Tensor, stride: Ints) -> Tensor:
    """``stride - 1`` zeros between the elements of each spatial dimension."""
    if all(s == 1 for s in stride):
        return x
    sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True)]
    spread = x.new_zeros((*x.shape[:2], *sizes))
    places: Any = (..., *(slice(None, None, s) for s in stride))
    spread[places] = x
    return spread


def _weight_product(
    products: Products, x: Tensor, by: Tensor, weight: Tensor, g: Geometry, flags: tuple[str, str]
) -> Tensor:
    """The gradient of the weights: k is image and place. ``x``: what the kernel walks over, ``by``: where it stands."""
    kernel, places = tuple(weight.shape[2:]), tuple(by.shape[2:])
    outs, area = by.shape[1] // g.groups, math.prod(places)
    if g.groups >= direct.MANY and outs <= direct.FEW:
        sizes = [size + 2 * pad for size, pad in zip(x.shape[2:], g.padding, strict=True)]
        shape = Shape(g.groups, outs, len(x) * area, math.prod(weight.shape[1:]))
        work = partial(direct.gradient_of_weights, kernel=kernel, before=g.padding, sizes=sizes, stride=g.stride,
                       dilation=g.dilation)  # fmt: skip
        result = products.direct(_groups_last(x, g), _groups_last(by, g), x.dtype, shape, work)
        if result is not None:
            return result.reshape(weight.shape)
    patches = _patches(_padded(x, g.padding, g.padding), kernel, places, g)
    rows = by.transpose(0, 1).reshape(g.groups, outs, by.shape[0] * area)
    return products(rows, patches, x.dtype, (flags[1], flags[0])).reshape(weight.shape)


def _groups_last(x: Tensor, g: Geometry) -> Tensor:
    """Images (N, C, ...) as (N, ..., C / groups, groups), in memory, too."""
    n, channels, *sizes = x.shape
    apart = x.reshape(n, g.groups, channels // g.groups, -1).transpose(1, 2).reshape(n, channels, -1)
    last = x.new_empty(n, math.prod(sizes), channels)
    for image, to in zip(apart, last, strict=True):
        to.copy_(image.t())  # four times as fast as all of them at once
    return last.reshape(n, *sizes, channels // g.groups, g.groups)


def _as_images(flat: Tensor, n: int, places: Ints) -> Tensor:
    """(groups, N * places, C) as (N, groups * C, ...)."""
    groups, _, channels = flat.shape
    images = flat.reshape(groups, n, math.prod(places), channels).permute(1, 0, 3, 2)
    return images.reshape(n, groups * channels, *places)
