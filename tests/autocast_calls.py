"""One call of every operation in torch's CUDA autocast lists, for tests: the dispatcher's name and its operands."""

from collections.abc import Callable
from typing import Any

import torch

N = 4
Make = Callable[..., torch.Tensor]  # (*shape) -> the next floating-point operand
ONE_OPERAND = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus prod sum
    linalg_vector_norm linalg_matrix_norm nuclear_norm pdist"""
LOSSES = """kl_div l1_loss smooth_l1_loss huber_loss mse_loss cosine_similarity dist cdist hinge_embedding_loss
    soft_margin_loss binary_cross_entropy_with_logits binary_cross_entropy"""
CONV = [[1, 1], [0, 0], [1, 1], False, [0, 0], 1]


def square(f: Make) -> torch.Tensor:
    return f(N, N)


def upsample(name: str) -> Callable[[Make, str], tuple[Any, ...]]:
    """To twice the size, ``align_corners`` where there is such a thing, no scales."""
    dims = int(next(c for c in name if c.isdigit()))
    rest = (None,) * dims if "nearest" in name else (False, *(None,) * dims)
    return lambda f, device: (f(1, 2, *[N] * dims), [2 * N] * dims, *rest)


def longs(device: str, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=device)


def cell(gates: int, states: int) -> Callable[[Make, str], tuple[Any, ...]]:
    def args(f: Make, device: str) -> tuple[Any, ...]:
        hidden: Any = [square(f) for _ in range(2)] if states == 2 else square(f)
        return square(f), hidden, f(gates * N, N), f(gates * N, N), f(gates * N), f(gates * N)

    return args


CALLS: dict[str, Callable[[Make, str], tuple[Any, ...]]] = {
    **{name: lambda f, d: (square(f),) for name in ONE_OPERAND.split()},
    **{name: lambda f, d: (square(f), square(f)) for name in LOSSES.split()},
    "_convolution": lambda f, d: (f(1, 1, N, N), f(1, 1, 2, 2), f(1), *CONV, False, True, True, True),
    "_convolution.deprecated": lambda f, d: (f(1, 1, N, N), f(1, 1, 2, 2), f(1), *CONV, False, True, True),
    "convolution": lambda f, d: (f(1, 1, N, N), f(1, 1, 2, 2), f(1), *CONV),
    **{f"conv{n}d": lambda f, d, n=n: (f(1, 1, *[N] * n), f(1, 1, *[2] * n), f(1)) for n in (1, 2, 3)},
    "conv_tbc": lambda f, d: (f(N, N, N), f(N, N, N), f(N)),
    "conv_transpose1d": lambda f, d: (f(1, 1, N), f(1, 1, 2)),
    "conv_transpose2d.input": lambda f, d: (f(1, 1, N, N), f(1, 1, 2, 2)),
    "conv_transpose3d.input": lambda f, d: (f(1, 1, N, N, N), f(1, 1, 2, 2, 2)),
    "prelu": lambda f, d: (square(f), f(1)),
    "addmm": lambda f, d: (square(f), square(f), square(f)),
    "addmv": lambda f, d: (f(N), square(f), f(N)),
    "addr": lambda f, d: (square(f), f(N), f(N)),
    "matmul": lambda f, d: (square(f), square(f)),
    "einsum": lambda f, d: ("ij,jk->ik", [square(f), square(f)]),
    "mm": lambda f, d: (square(f), square(f)),
    "mv": lambda f, d: (square(f), f(N)),
    "linalg_vecdot": lambda f, d: (square(f), square(f)),
    "linear": lambda f, d: (square(f), square(f), f(N)),
    "addbmm": lambda f, d: (square(f), f(2, N, N), f(2, N, N)),
    "baddbmm": lambda f, d: (f(2, N, N), f(2, N, N), f(2, N, N)),
    "bmm": lambda f, d: (f(2, N, N), f(2, N, N)),
    "chain_matmul": lambda f, d: ([square(f), square(f), square(f)],),
    "linalg_multi_dot": lambda f, d: ([square(f), square(f), square(f)],),
    "lstm_cell": cell(4, 2), "gru_cell": cell(3, 1), "rnn_tanh_cell": cell(1, 1), "rnn_relu_cell": cell(1, 1),
    "scaled_dot_product_attention": lambda f, d: (f(1, 1, N, 8), f(1, 1, N, 8), f(1, 1, N, 8)),
    "pow.Tensor_Scalar": lambda f, d: (square(f), 2.5),
    "pow.Tensor_Tensor": lambda f, d: (square(f), square(f)),
    "pow.Scalar": lambda f, d: (2.5, square(f)),
    "layer_norm": lambda f, d: (square(f), [N], f(N), f(N)),
    "native_layer_norm": lambda f, d: (square(f), [N], f(N), f(N), 1e-5),
    "rms_norm": lambda f, d: (square(f), [N], f(N)),
    "group_norm": lambda f, d: (square(f), 2, f(N), f(N)),
    "frobenius_norm.dim": lambda f, d: (square(f), [1]),
    "nuclear_norm.dim": lambda f, d: (square(f), [0, 1]),
    "poisson_nll_loss": lambda f, d: (square(f), square(f), True, False, 1e-8, 1),
    "cosine_embedding_loss": lambda f, d: (square(f), square(f), longs(d, N) + 1),
    "nll_loss": lambda f, d: (square(f), longs(d, N)),
    "nll_loss2d": lambda f, d: (f(1, N, N, N), longs(d, 1, N, N)),
    "margin_ranking_loss": lambda f, d: (f(N), f(N), f(N)),
    "multilabel_margin_loss": lambda f, d: (square(f), longs(d, N, N)),
    "triplet_margin_loss": lambda f, d: (square(f), square(f), square(f)),
    "multi_margin_loss": lambda f, d: (square(f), longs(d, N)),
    "renorm": lambda f, d: (square(f), 2, 0, 1.0),
    "logsumexp": lambda f, d: (square(f), [1]),
    **{f"{start}upsample_{kind}": upsample(kind)
       for start, kinds in (("", "nearest1d nearest2d nearest3d linear1d bilinear2d trilinear3d bicubic2d"),
                            ("_", "nearest_exact1d nearest_exact2d nearest_exact3d bilinear2d_aa bicubic2d_aa"))
       for kind in kinds.split()},
    "prod.dim_int": lambda f, d: (square(f), 1),
    "softmax.int": lambda f, d: (square(f), 1),
    "log_softmax.int": lambda f, d: (square(f), 1),
    "cumprod": lambda f, d: (square(f), 1),
    "cumsum": lambda f, d: (square(f), 1),
    "linalg_matrix_norm": lambda f, d: (square(f), 2.0),
    "linalg_matrix_norm.str_ord": lambda f, d: (square(f),),
    "sum.dim_IntList": lambda f, d: (square(f), [1]),
    "norm.Scalar": lambda f, d: (square(f),),
    "norm.ScalarOpt_dim": lambda f, d: (square(f), 2, [1]),
    "addcdiv": lambda f, d: (square(f), square(f), square(f)),
    "addcmul": lambda f, d: (square(f), square(f), square(f)),
    "atan2": lambda f, d: (square(f), square(f)),
    "bilinear": lambda f, d: (f(1, 2), f(1, 2), f(1, 2, 2), f(1)),
    "cross": lambda f, d: (f(3), f(3), 0),
    "dot": lambda f, d: (f(N), f(N)), "vdot": lambda f, d: (f(N), f(N)),
    "grid_sampler": lambda f, d: (f(2, 3, N, N), f(2, N, N, 2), 0, 0, False),
    "index_put": lambda f, d: (f(N), [longs(d, 1)], f(1)),
    "tensordot": lambda f, d: (square(f), square(f), [1], [0]),
    "scatter_add": lambda f, d: (square(f), 0, longs(d, N, N), square(f)),
}  # fmt: skip
if hasattr(torch.ops.aten, "linalg_matrix_sqrth"):  # from torch 2.15 on
    CALLS["linalg_matrix_sqrth"] = lambda f, d: (square(f),)
# Not callable on the CPU, or not on fake CUDA tensors: cuDNN's, the fused cells, and one attention kernel.
CUDA_ONLY = {
    "cudnn_convolution", "cudnn_convolution_transpose", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
    "_scaled_dot_product_flash_attention",
}  # fmt: skip


def overload(name: str) -> Any:
    operator, _, kind = name.partition(".")
    return getattr(getattr(torch.ops.aten, operator), kind or "default")
