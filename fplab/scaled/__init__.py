"""Scaled quantisation: elements of few bits, and a scale for each block, row or tensor of them.

MXFP8, MXFP6, MXFP4, NVFP4, and FP8 with a scale for blocks, rows or the tensor, in the bits of the libraries that train
with them. A :class:`Scheme` is a record; :data:`SCHEMES` is their table, and one algorithm takes all.

>>> from fplab import scaled
>>> q = scaled.quantize([0.3, -1.0, 3.0, 100.0], "mxfp4")
>>> q.codes, q.scales
(array([0, 8, 0, 7], dtype=uint8), array([131], dtype=uint8))
>>> q.dequantize()
array([ 0., -0.,  0., 96.], dtype=float32)

``schemes``: the records, the rules for scales and the variants; ``quantizing``: the fast way; ``result``: what comes
back, and its bytes; ``hadamard``: the transform that spreads outliers; ``oracle``: the slow way, in fractions.
"""

from ..lazily import index
from .hadamard import SIGNS, hadamard
from .quantizing import quantize
from .result import Packed, Scaled
from .schemes import RULES, SCHEMES, VARIANTS, Scheme, get_scheme

__all__ = ["RULES", "SCHEMES", "SIGNS", "VARIANTS", "Packed", "Scaled", "Scheme", "get_scheme", "hadamard", "quantize"]

index(__name__)
