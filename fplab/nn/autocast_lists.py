"""torch's CUDA autocast lists as data: what each operation's operands are cast to, name by name of the dispatcher.

torch keeps these rules in its dispatcher under the key AutocastCUDA, and registers them in CPU builds too, but they
look at CUDA tensors only. The names are the dispatcher's, ``operator.overload``; an operation that a user calls and
that is not here (``cross_entropy``, ``F.normalize``, ``softmin``) is made of operations that are, and one that is
neither (``add``, ``relu``, ``batch_norm``, ``cat``) runs in the dtype of its operands. So do the in-place and ``out=``
forms, which are other overloads and in no list.

After ``ATen/autocast_mode.h`` of torch 2.13, and what 2.15 added. The page on autocast in torch's documentation shows a
part of it: it omits ``einsum``, ``scaled_dot_product_attention``, ``logsumexp``, ``rms_norm``, ``huber_loss`` and the
interpolations.
"""

import enum


class Rule(enum.Enum):
    """What autocast does with the floating-point operands, of at most 32 bits, of an operation."""

    LOWER = "cast to the lower precision"
    FP32 = "cast to FP32"
    FP32_DTYPE = "asked for an FP32 result, where the call names no dtype"
    FP32_OVERLOAD = "sent to the overload that takes a dtype, with FP32"
    WIDEST = "cast to the widest among them"
    REFUSED = "refused"


LOWER = """
    _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul
    einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
    _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
    scaled_dot_product_attention
"""
FP32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
    pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm
    nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss
    kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
    upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa
"""
FP32_DTYPE = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
REFUSED = "binary_cross_entropy"
FP32_FROM_2_15 = "linalg_matrix_sqrth"  # beside RULES, as older torches lack it

# norm(x, p) and norm(x, p, dim, keepdim) take no dtype; these overloads of norm do.
WITH_DTYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}

# Whole recurrent layers. On a GPU they are cuDNN's, and builds of torch with cuDNN cast what enters ``_cudnn_rnn``; on
# the CPU the same call takes other ways inside, so here the rule is the layer's.
RECURRENT = "lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input rnn_relu.data"

RULES: dict[str, Rule] = {
    **dict.fromkeys(RECURRENT.split(), Rule.LOWER),
    **dict.fromkeys(LOWER.split(), Rule.LOWER),
    **dict.fromkeys(FP32.split(), Rule.FP32),
    **dict.fromkeys(FP32_DTYPE.split(), Rule.FP32_DTYPE),
    **dict.fromkeys(WITH_DTYPE, Rule.FP32_OVERLOAD),
    **dict.fromkeys(WIDEST.split(), Rule.WIDEST),
    **dict.fromkeys(REFUSED.split(), Rule.REFUSED),
}

# Operations of the first list that are one product (or sum of products), or one formula; the others are made of these.
SINGLE = frozenset(
    {
        "_convolution", "_convolution.deprecated", "convolution", "conv_tbc", "prelu", "addmm", "addmv", "addr", "mm",
        "mv", "addbmm", "baddbmm", "bmm", "scaled_dot_product_attention",
    }
)  # fmt: skip
