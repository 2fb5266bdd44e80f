"""What modules of the transformers library hold beyond the papers' terms, kind by kind.

GPT-2's and Llama's, with the loss that they compute. The terms of :mod:`fplab.memory.activations` are Megatron's, which
the papers count; the library's modules compose each operation of smaller ones, and autograd keeps their inputs.
"""

from .models import Model, Transformer, tensors_of
from .options import Options
from .recipes import PRECISIONS, precision

NORMS, SOFTMAX, MASK = "norms and the residual stream", "softmax in FP32 and its copy", "attention masks"
HEADS, ROTARY, GELU = "repeated keys and values", "rotary angles", "steps of GELU's tanh"
INPUTS, LABELS, LOGITS = "casts of shared inputs", "labels and positions", "logits of the output"
UNCAST = "casts of weights that no product takes"


def beyond(c: Transformer, o: Options, mask: bool = False) -> dict[str, int] | None:
    """Bytes by kind at the peak of a step, in the loss's backward pass.

    None where the library has no such module or does not run it so, or where weights' gradients or attention might
    have the peak: of fewer tokens than the width, or more scores than logits.

    ``mask``: whether the module is given an attention mask of pairs of positions; else its fused attention is causal by
    itself. What is counted and the module does not hold, casts under autocast of weights that no product takes, is less
    than 0. Autocast is CUDA's.
    """
    p = precision(o.precision)
    gpt2 = c.positions == "learned" and not (c.rms or c.gated or c.embedding_norm) and c.keys == c.heads and c.bias
    llama = c.positions == "rotary" and c.rms and c.gated and not (c.bias or c.dropout or c.embedding_norm)
    split = o.gpus != o.data or o.zero == 3 or o.offload != "none" or o.recompute != "none"
    unknown = PRECISIONS.get(p.name) != p or p.operands or o.quantised or o.inference is not None
    length = o.sequence or c.sequence
    tokens, width, stream, cast = o.micro_batch * length, p.activations, p.weights, p.compute < p.weights
    scores = 0 if c.flash else o.micro_batch * c.heads * length**2
    elsewhere = tokens < c.hidden or scores > tokens * c.vocabulary
    if not (gpt2 or llama) or split or unknown or elsewhere:
        return None
    values, layers, norms = tokens * c.hidden, c.layers, 2 * c.layers + 1
    softmax = 4 if cast or llama else width
    repeated = (not c.flash or mask) * 2 * tokens * (c.hidden - c.kv_width)
    out = {
        NORMS: norms * (values * (4 + stream) + 4 * tokens if llama else values * stream + 8 * tokens)
        - norms * values * width,
        SOFTMAX: layers * scores * (softmax - width + width * (softmax > width and not c.dropout)),
        MASK: layers * o.micro_batch * length**2 * width * (c.flash and mask and cast),
        HEADS: layers * repeated * width,
        ROTARY: 2 * length * c.head_size * stream * llama,
        GELU: layers * 3 * tokens * c.width * stream * gpt2,
        INPUTS: layers * 3 * values * width * (cast and llama),
        LABELS: 8 + 8 * length * gpt2,
        LOGITS: tokens * c.vocabulary * width,
        UNCAST: -p.compute * cast * (c.parameters - _multiplying(tensors_of(c))),
    }
    return {name: size for name, size in out.items() if size}


def _multiplying(model: Model) -> int:
    """Elements of the weights of matrix products, of which autocast keeps a cast for the backward pass."""
    tied = model.embedding[0].elements if model.tied else 0
    return tied + sum(t.elements for t in model.tensors if t.linear)
