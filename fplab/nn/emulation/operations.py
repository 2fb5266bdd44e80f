"""Which of torch's operations multiply matrices: those emulated, those refused, and how the rest is told apart.

An operation reaches us below autograd and autocast, so what torch composes of others ("linear", "einsum", "lstm") has
already been taken apart, or is taken apart here where torch has not (in inference mode). What is left is named below.
An operation that is in no table is refused, except those that :mod:`.product_free` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch

from ...errors import LabError, unknown
from ...words import part
from ...words.patterns import refused
from . import attention, convolution, dense, low_precision
from .product_free import is_free

Handler = Callable[..., Any]

EMULATED: dict[str, Handler] = {
    "mm": dense.mm, "bmm": dense.mm, "mv": dense.mv, "dot": dense.dot, "vdot": dense.dot,
    "addmm": dense.addmm, "addmv": dense.addmv, "baddbmm": dense.addmm, "addbmm": dense.addbmm,
    "_addmm_activation": dense.addmm_activation,
    "affine_grid_generator": dense.affine_grid,
    "convolution": convolution.forward, "convolution_backward": convolution.backward,
    "_scaled_dot_product_flash_attention_for_cpu": attention.forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention.backward,
    **low_precision.HANDLERS,
}  # fmt: skip

UNITS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})  # dtypes of operands
NO_UNIT = part("a matrix unit takes dense tensors of float16, bfloat16, float32 and float64 here")
_OTHER_LINEAR = part("its products are not taken apart")
_FACTORS = part("a factorisation or solver multiplies matrices inside a library")
_SPARSE = part("a sparse product")
_QUANTIZED = part("a product of integers or packed weights")
_LIBRARY = part("a kernel of one library or device")
_FUSED = part("a fused kernel, with its products inside")


def _all(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


REFUSED: dict[str, str] = {
    **_all(
        _OTHER_LINEAR,
        "_trilinear _euclidean_dist _cdist_forward _cdist_backward conv_tbc conv_tbc_backward "
        "_compute_linear_combination linalg_matrix_exp _foreach_mm linear_backward matmul_backward "
        "_convolution_double_backward linear matmul",
    ),
    **_all(
        _FACTORS,
        "_cholesky_solve_helper _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd "
        "_lu_with_info linalg_matrix_sqrth linalg_polar "
        "_spsolve cholesky cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_eig "
        "linalg_eigvals linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq "
        "linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_pinv linalg_qr linalg_solve_triangular lu_unpack ormqr "
        "triangular_solve",
    ),
    **_all(
        _SPARSE,
        "_cslt_sparse_mm _cslt_sparse_mm_search _sparse_addmm _sparse_mm_reduce_impl _sparse_mm_reduce_impl_backward "
        "_sparse_semi_structured_addmm _sparse_semi_structured_apply _sparse_semi_structured_apply_dense "
        "_sparse_semi_structured_linear _sparse_semi_structured_mm _sparse_semi_structured_tile _sparse_sparse_matmul "
        "hspmm sparse_sampled_addmm sspaddmm",
    ),
    **_all(
        _QUANTIZED,
        "_dyn_quant_matmul_4bit _int_mm _scaled_addmm _mixed_dtypes_linear _weight_int4pack_mm "
        "_weight_int4pack_mm_for_cpu "
        "_weight_int4pack_mm_with_scales_and_zeros _weight_int8pack_mm _wrapped_quantized_linear_prepacked "
        "fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation fbgemm_linear_int8_weight "
        "fbgemm_linear_int8_weight_fp32_activation quantized_gru quantized_gru_cell quantized_lstm "
        "quantized_lstm_cell quantized_rnn_relu_cell quantized_rnn_tanh_cell",
    ),
    **_all(
        _LIBRARY,
        "mkldnn_rnn_layer mkldnn_rnn_layer_backward _conv_depthwise2d conv_depthwise3d _convolution "
        "convolution_overrideable convolution_backward_overrideable "
        "_cudnn_rnn _cudnn_rnn_backward _lstm_mps lstm_mps_backward _mps_convolution _mps_convolution_transpose "
        "mps_convolution_backward mps_convolution_transpose_backward _nnpack_spatial_convolution _slow_conv2d_backward "
        "_slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d "
        "slow_conv_transpose3d cudnn_convolution cudnn_convolution_add_relu cudnn_convolution_relu "
        "cudnn_convolution_transpose miopen_convolution miopen_convolution_add_relu miopen_convolution_relu "
        "miopen_convolution_transpose miopen_depthwise_convolution miopen_rnn miopen_rnn_backward mkldnn_convolution "
        "mkldnn_linear mkldnn_linear_backward mkldnn_linear_backward_input mkldnn_linear_backward_weights",
    ),
    **_all(
        _FUSED,
        "_native_multi_head_attention _transformer_encoder_layer_fwd _triton_multi_head_attention "
        "_triton_scaled_dot_attention _cudnn_attention_forward _cudnn_attention_forward_no_dropout_inplace "
        "_cudnn_attention_backward _efficient_attention_forward "
        "_efficient_attention_backward _flash_attention_forward _flash_attention_forward_no_dropout_inplace "
        "_flash_attention_backward _scaled_dot_product_attention_math_for_mps _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention "
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_fused_attention_overrideable "
        "_scaled_dot_product_fused_attention_overrideable_backward",
    ),
}  # fmt: skip
_STRANGER = part("an operation that is not torch's own may multiply matrices")
_UNKNOWN = part("it is not among the operations that are known to multiply no matrices")


_DISTANCE = part("(x.unsqueeze(-2) - y.unsqueeze(-3)).norm(dim=-1) has no products.")
_DENSE = part("to_dense() makes a tensor whose products are emulated.")
_SOLVE = part("Solve before the block, or multiply by an inverse that was computed before it.")
INSTEAD = {  # what to write, by operation or by the beginning of a kind of tensors
    "_trilinear": part("torch.einsum('bi,oij,bj->bo', x, weight, y) is taken apart into products that are emulated."),
    "_cdist_forward": _DISTANCE, "_euclidean_dist": _DISTANCE, "linalg_solve_triangular": _SOLVE,
    "triangular_solve": _SOLVE,
    "complex": part("Multiply real and imaginary parts apart, as torch.view_as_real gives them."),
    **dict.fromkeys(["sparse", *(name for name, why in REFUSED.items() if why == _SPARSE)], _DENSE),
}  # fmt: skip


def instead(name: str) -> str:
    """What to write instead of an operation that is refused, " ..."; "" where nothing is known."""
    operation, _, kind = name.partition(" of ")
    found = (text for key, text in INSTEAD.items() if (kind.startswith(key) if kind else operation == key))
    return "".join(f" {refused(text)}" for text in found)


def allowed_names(names: Iterable[str]) -> frozenset[str]:
    """The names of ``allow``, checked: an operation of torch that is refused here, or "library::operation".

    An emulated operation is refused for tensors that no unit takes, and named with their kind: "mm of int64".
    """
    if isinstance(names, str):
        raise LabError(f"allow={names!r} is a string; a list of names is needed: allow=[{names!r}].")
    found = set()
    for name in names:
        short = name.removeprefix("aten::").removeprefix("aten.") if isinstance(name, str) else name
        if short in EMULATED:
            raise LabError(
                f"allow: {short!r} is emulated, there is nothing to allow. For tensors that no matrix unit takes, name "
                f"their kind: '{short} of int64'."
            )
        if not isinstance(name, str) or not (short in REFUSED or "::" in short or _with_kind(short) or _is_new(short)):
            raise unknown("operation in allow", name, [*REFUSED], [*REFUSED])
        found.add(short)
    return frozenset(found)


def _is_new(name: str) -> bool:
    """Whether an operation of this torch is in none of the tables."""
    return not is_free(name) and hasattr(torch.ops.aten, name)


def _with_kind(name: str) -> bool:
    """Whether a name is an emulated operation's with a kind of tensors that no unit takes, as "mm of int64"."""
    operation, _, kind = name.partition(" of ")
    found = getattr(torch, kind, None)
    return operation in EMULATED and (
        kind == "nested" or (isinstance(found, (torch.dtype, torch.layout)) and found not in (*UNITS, torch.strided))
    )


def operands(operation: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Those arguments of an operation that units take as they are."""
    return args[: low_precision.OPERANDS.get(base_name(operation), len(args))]


def kind_without_unit(args: Iterable[Any]) -> str | None:
    """The dtype or layout of the first operand that no unit takes: "int64", "sparse_csr", "nested"; None: all fit."""
    for x in args:
        if isinstance(x, torch.Tensor):
            if x.is_nested:
                return "nested"
            if x.layout != torch.strided:
                return str(x.layout).removeprefix("torch.")
            if x.dtype not in UNITS:
                return str(x.dtype).removeprefix("torch.")
    return None


@lru_cache(maxsize=4096)
def name_of(operation: Any) -> str:
    """An operation's name as ``allow`` takes it: "linalg_qr", or "torchvision::nms" where it is not torch's own."""
    space, _, name = operation.name().partition("::")
    name = name.partition(".")[0]
    return name if space == "aten" else f"{space}::{name}"


@lru_cache(maxsize=4096)
def base_name(operation: Any) -> str:
    """The name without the underscore that says "in place"."""
    name = name_of(operation)
    return name.removesuffix("_") if name.endswith("_") and not name.endswith("__") else name


@lru_cache(maxsize=4096)
def refusal(operation: Any) -> str | None:
    """Why an operation must not run unemulated, or None."""
    name = base_name(operation)
    if name in REFUSED:
        return REFUSED[name]
    if name in EMULATED or is_free(name):
        return None
    return _STRANGER if "::" in name else _UNKNOWN


@lru_cache(maxsize=4096)
def composed(operation: Any) -> bool:
    """Whether torch composes the operation of others."""
    return bool(operation._can_decompose())


@lru_cache(maxsize=4096)
def handler(operation: Any) -> Handler | None:
    """What emulates an operation, or None."""
    return EMULATED.get(base_name(operation))
