"""Codebooks, and block-wise quantisation with them: the storage of 8-bit optimizers and 4-bit weights.

A :class:`Codebook` is a record of up to 256 values in [-1, 1]; :data:`BOOKS` is their table, and one algorithm takes
all. After T. Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022 (arXiv 2110.02861).

>>> from fplab import codebooks
>>> q = codebooks.quantize_blockwise([0.5, -1.0, 3.0], codebooks.dynamic())
>>> codebooks.dequantize_blockwise(q)
array([ 0.48984373, -0.99609375,  3.        ], dtype=float32)

``books``: the records; ``tree``: the dynamic tree bit by bit; ``rules``: ties, midpoints, libraries; ``thresholds``:
a quantiser as numbers; ``blockwise``: the fast way; ``oracle``: the slow one.
"""

from ..lazily import index
from .blockwise import Quantized, dequantize_blockwise, quantize_blockwise
from .books import BOOKS, Codebook, dynamic, dynamic_tree, linear, nf4, quantile
from .rules import RULES, Rule

__all__ = [
    "BOOKS", "RULES", "Codebook", "Quantized", "Rule", "dequantize_blockwise", "dynamic", "dynamic_tree", "linear",
    "nf4", "quantile", "quantize_blockwise",
]  # fmt: skip

index(__name__)
