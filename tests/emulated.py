"""Products of torch tensors by ``fplab.tensorcore.matmul``, for tests of ``fplab.nn.emulate``."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from fplab.nn import bits
from fplab.tensorcore import Plan, matmul

EPILOGUE = Plan(c="epilogue")


def random(*shape: int, seed: int = 0, grad: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normally distributed values that no 16-bit format holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_(grad)


def cancelling(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Two terms more, the first and the last of k, whose products are 2^21 and -2^21 where both operands have them.

    What a unit cuts off beside 2^21 then shows in 16 bits too.
    """
    size = list(x.shape)
    size[dim] = 1
    big = torch.full(size, 2.0**10 if dim == -1 else 2.0**11, dtype=x.dtype)
    return torch.cat([big, x, -big if dim == -1 else big], dim)


def product(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None, gpu: str = "H100", **given: object
) -> torch.Tensor:
    """``a @ b + c`` in a GPU's bits, in the dtype of ``a``; a bias is added in the epilogue."""
    dtype = a.dtype
    store = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype)
    given.setdefault("inputs", store or "fp16")
    given.setdefault("store", store)
    plan = None if c is None else EPILOGUE
    x, y, z = (None if t is None else bits.values(t) for t in (a, b, c))
    return torch.from_numpy(np.array(matmul(x, y, z, gpu=gpu, plan=plan, **given))).to(dtype)  # type: ignore[arg-type]


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Every bit, dtype and shape."""
    return got.dtype == want.dtype and got.shape == want.shape and bool((bits.codes(got) == bits.codes(want)).all())


def check(got: torch.Tensor, want: torch.Tensor, plain: torch.Tensor) -> None:
    """``got`` has the bits of ``want``, and torch's own product does not."""
    assert same(got, want)
    assert not same(plain, want), "torch's own product would pass this test"


def alike(ours: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> bool:
    """As many tensors, with every bit, dtype, shape and stride."""
    return len(ours) == len(want) and all(
        same(x, y) and x.stride() == y.stride() for x, y in zip(ours, want, strict=True)
    )


def both_ways(
    patch: pytest.MonkeyPatch, module: Any, whole: str, compute: Callable[[], Any], pieces: int = 1
) -> tuple[Any, Any]:
    """What a module computes in one piece, by a function of it that is called so many times at least, and apart."""
    calls: list[Any] = []
    good = getattr(module, whole)
    with patch.context() as within:
        within.setattr(module, whole, lambda *given: calls.append(given) or good(*given))
        ours = compute()
        assert len(calls) >= pieces
        within.setattr(module, "takes", lambda *given: False)
        return ours, compute()
