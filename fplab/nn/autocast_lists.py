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
import tomllib
from pathlib import Path

from ..words import mark


class Rule(enum.Enum):
    """What autocast does with the floating-point operands, of at most 32 bits, of an operation."""

    LOWER = mark("cast to the lower precision")
    FP32 = mark("cast to FP32")
    FP32_DTYPE = mark("asked for an FP32 result, where the call names no dtype")
    FP32_OVERLOAD = mark("sent to the overload that takes a dtype, with FP32")
    WIDEST = mark("cast to the widest among them")
    REFUSED = mark("refused")


FP32_FROM_2_15 = "linalg_matrix_sqrth"  # beside RULES, as older torches lack it

# norm(x, p) and norm(x, p, dim, keepdim) take no dtype; these overloads of norm do.
WITH_DTYPE = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}

# Whole recurrent layers. On a GPU they are cuDNN's, and builds of torch with cuDNN cast what enters ``_cudnn_rnn``; on
# the CPU the same call takes other ways inside, so here the rule is the layer's.
RECURRENT = "lstm.input lstm.data gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input rnn_relu.data"

_LISTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RULES: dict[str, Rule] = {
    **dict.fromkeys(RECURRENT.split(), Rule.LOWER),
    **{name: Rule[rule] for rule, names in _LISTS.items() for name in names.split()},
    **dict.fromkeys(WITH_DTYPE, Rule.FP32_OVERLOAD),
}

# Those of ``LOWER`` that are one product (or sum of products), or one formula; the others are made of these.
SINGLE = frozenset(
    {
        "_convolution", "_convolution.deprecated", "convolution", "conv_tbc", "prelu", "addmm", "addmv", "addr", "mm",
        "mv", "addbmm", "baddbmm", "bmm", "scaled_dot_product_attention",
    }
)  # fmt: skip
