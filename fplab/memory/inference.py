"""Memory of inference: weights in a format, the keys and values of the tokens so far, one layer's activations."""

from collections import Counter
from collections.abc import Iterable

from ..errors import integer
from .models import LARGEST, Tensor, Transformer
from .options import INFERENCE, Options
from .stages import Stage
from .units import divided_up

BLOCK4 = 64  # elements that share a scale in 4-bit weights (QLoRA's NF4, arXiv 2305.14314, section 3)


def weight_bytes(tensors: Iterable[Tensor], fmt: str) -> int:
    """Bytes of weights for inference.

    INT8 and INT4 hold the weights of linear layers and their scales, everything else stays in 16 bits. INT8 (LLM.int8,
    arXiv 2208.07339): one byte and a float32 scale for each row; INT4: half a byte and a float32 scale for each block
    of 64: what the lab's Int8Linear with ``outlier_weights="int8"`` and Int4Linear with ``group=64`` hold. The output
    projection stays in 16 bits, as the libraries leave it.

    >>> weight_bytes([Tensor("a.weight", (10, 64), 0, linear=True), Tensor("norm.weight", (64,))], "int8")
    808
    """
    total = 0
    for t in tensors:
        if fmt in ("int8", "int4") and t.linear and t.name != "output.weight":
            scales = t.shape[0] if fmt == "int8" else divided_up(t.elements, BLOCK4)
            total += (t.elements if fmt == "int8" else divided_up(t.elements, 2)) + 4 * scales
        else:
            total += t.elements * (4 if fmt == "fp32" else 2)
    return total


def kv_cache(c: Transformer, layers: int, batch: int, tokens: int, width: int = 2, tensor: int = 1) -> int:
    """Bytes of the keys and values of ``tokens`` tokens of ``batch`` sequences in ``layers`` layers.

    >>> from .models import preset
    >>> kv_cache(preset("llama3-8b"), 32, 1, 8192) / 2**30
    1.0
    """
    given = {"layers": layers, "batch": batch, "tokens": tokens, "width": width, "tensor": tensor}
    layers, batch, tokens, width, tensor = (integer(n, v, int(n == "tensor"), LARGEST) for n, v in given.items())
    return 2 * layers * batch * tokens * divided_up(c.kv_width, tensor) * width


def inference(
    c: Transformer, groups: Iterable[tuple[Tensor, ...]], stage: Stage, o: Options
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes by kind of one rank, and the temporaries by name: the prompt of all tokens runs in one pass."""
    fmt = str(o.inference)
    width = 4 if INFERENCE[fmt] == 4 else 2
    tokens = o.sequence or c.sequence
    weights = sum(many * weight_bytes([t.share(o.tensor) for t in group], fmt)
                  for group, many in Counter(groups).items())  # fmt: skip
    widest = max(divided_up(max(c.width * (1 + c.gated), c.hidden + 2 * c.kv_width), o.tensor), c.hidden)
    temporaries = {"activations of a layer": o.micro_batch * tokens * (2 * c.hidden + widest) * width}
    if not c.flash:
        scores = o.micro_batch * divided_up(c.heads, o.tensor) * tokens * tokens * width
        temporaries["attention scores and their softmax"] = 2 * scores
    if stage.index == o.pipeline - 1:  # of the last token alone, in FP32
        temporaries["logits"] = o.micro_batch * divided_up(c.vocabulary, o.tensor) * 4
    kinds = {"parameters": weights, "kv cache": kv_cache(c, stage.layers, o.micro_batch, tokens, width, o.tensor)}
    return kinds, temporaries
