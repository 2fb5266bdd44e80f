"""Products of matrices and vectors: mm, bmm, mv, dot, and those with an addend.

Each takes the pass's products, which operands are gradients (``marked``), and torch's own arguments. A bias or addend
is added as a GPU's library does in its epilogue: in the accumulator's format (FP32), to the finished sum and before it
is stored, so that an FP16 result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from ...errors import LabError
from ...tensorcore.activations import activated
from .backends import on_cpu
from .multiply import Products

Marked = Callable[[torch.Tensor], str]
Tensor = torch.Tensor


@lru_cache
def _argument_names(operation: str) -> tuple[str, ...]:
    return tuple(argument.name for argument in getattr(torch.ops.aten, operation).default._schema.arguments)


def by_name(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A handler whose arguments have torch's own names, of operations that have unlike orders of them."""

    def called(products: Products, marked: Marked, *args: Any, **kwargs: Any) -> Any:
        return handler(products, marked, **dict(zip(_argument_names(products.operation), args, strict=False)), **kwargs)

    return called


def demand_matrices(name: str, a: Tensor, b: Tensor, dims: Sequence[int], alike: bool = True) -> None:
    """What torch itself would refuse: matrices, or batches that are ``alike``, whose k is not one."""
    apart = alike and (a.dim() != b.dim() or a.shape[:-2] != b.shape[:-2])
    if apart or a.dim() not in dims or b.dim() not in dims:
        raise LabError(f"{name} of tensors of shapes {tuple(a.shape)} and {tuple(b.shape)} does not exist.")
    if a.shape[-1] != b.shape[-2]:
        raise LabError(
            f"{name} of tensors of shapes {tuple(a.shape)} and {tuple(b.shape)}: {a.shape[-1]} columns by "
            f"{b.shape[-2]} rows."
        )


def demand_one_dtype(name: str, a: Tensor, b: Tensor) -> None:
    """An error for a product of two dtypes."""
    if a.dtype != b.dtype:
        raise LabError(f"{name} of {a.dtype} and {b.dtype}: torch multiplies tensors of one dtype; cast one of them.")


def _checked(name: str, a: Tensor, b: Tensor, dims: tuple[int, ...]) -> None:
    demand_matrices(name, a, b, dims)
    demand_one_dtype(name, a, b)


def _product(products: Products, marked: Marked, a: Tensor, b: Tensor) -> Tensor:
    return products(a, b, a.dtype, (marked(a), marked(b)))


def mm(products: Products, marked: Marked, a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    """``a @ b`` for mm (M, K) (K, N) and bmm (B, M, K) (B, K, N)."""
    _checked(products.operation, a, b, (2, 3))
    return products.stored(_product(products, marked, a, b), out_dtype or a.dtype)


def mv(products: Products, marked: Marked, a: Tensor, x: Tensor) -> Tensor:
    """A matrix (M, K) by a vector (K,)."""
    return mm(products, marked, a, x.unsqueeze(-1)).squeeze(-1)


def dot(products: Products, marked: Marked, x: Tensor, y: Tensor) -> Tensor:
    """Two vectors (K,): a number."""
    if x.dim() != 1 or y.dim() != 1:
        raise LabError(f"dot of tensors of shapes {tuple(x.shape)} and {tuple(y.shape)} does not exist.")
    return mm(products, marked, x.unsqueeze(0), y.unsqueeze(-1)).reshape(())


def addmm(
    products: Products, marked: Marked, c: Tensor, a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None, *,
    beta: float = 1, alpha: float = 1,
) -> Tensor:  # fmt: skip
    """``beta * c + alpha * (a @ b)`` for addmm and baddbmm; ``c`` broadcasts."""
    _checked(products.operation, a, b, (2, 3))
    if c.dtype not in (a.dtype, out_dtype):
        raise LabError(f"{products.operation} of {a.dtype} with an addend of {c.dtype}: cast the addend.")
    total = products.with_addend(_product(products, marked, a, b), c, float(alpha), float(beta))
    return products.stored(total, out_dtype or a.dtype)


def addmm_activation(
    products: Products, marked: Marked, c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1,
    use_gelu: bool = False,
) -> Tensor:  # fmt: skip
    """An addmm with ReLU or GELU in the same epilogue, before the result is stored."""
    _checked(products.operation, a, b, (2,))
    total = products.with_addend(_product(products, marked, a, b), c, float(alpha), float(beta))
    assert products.model is not None
    array = on_cpu(total, "activations in an epilogue").numpy()
    result = activated(array, "gelu_tanh" if use_gelu else "relu", products.model)
    return products.stored(torch.from_numpy(result), a.dtype)


def addmv(
    products: Products, marked: Marked, c: Tensor, a: Tensor, x: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """``beta * c + alpha * (a @ x)`` for a vector x."""
    column = c.unsqueeze(-1) if c.dim() else c
    return addmm(products, marked, column, a, x.unsqueeze(-1), beta=beta, alpha=alpha).squeeze(-1)


def addbmm(
    products: Products, marked: Marked, c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """``beta * c`` plus the sum of a batch of products, one addmm after another as on a GPU, each stored."""
    _checked("addbmm", a, b, (3,))
    total = c.expand(a.shape[1], b.shape[2])
    for i in range(a.shape[0]):
        one, other = a[i], b[i]
        total = addmm(products, marked, total, one, other, beta=beta if i == 0 else 1, alpha=alpha)
    return total if a.shape[0] else total * beta


def affine_grid(products: Products, marked: Marked, theta: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    """The places (N, ..., dims) to which affine maps ``theta`` (N, dims, dims + 1) take the grid of ``size``."""
    dims = theta.shape[1]
    still = torch.eye(dims, dims + 1, dtype=theta.dtype, device=theta.device).expand(1, -1, -1)
    grid = torch.affine_grid_generator(still, [1, *size[1:]], align_corners)  # products by 1 and 0: exact
    ones = torch.ones(1, grid[0, ..., 0].numel(), 1, dtype=theta.dtype, device=theta.device)
    places = torch.cat([grid.reshape(1, -1, dims), ones], -1)
    return mm(products, marked, places.expand(len(theta), -1, -1), theta.mT).reshape(len(theta), *grid.shape[1:])
