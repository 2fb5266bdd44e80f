"""Golden test vectors: operands, results and why each row is there: units, conversions, quantisers, stored formats.

>>> from fplab import vectors
>>> rows = vectors.products("H100", "fp16", rows=2000)
>>> rows.name, rows.lines[0].split()[-1]
('product-h100-wgmma.k16-fp16-fp32', 'guard')

``save`` writes them as text in TestFloat's manner, as ``.npz`` and as raw little-endian with a described header;
``read`` reads any of them back, and :func:`corpus` makes all there are, in the same bytes everywhere.
:func:`conform` puts them to a unit under test (:func:`program`, :func:`library`, :func:`function`) and says what that
does otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazily import index

__all__ = [
    "REASONS", "Conformance", "Fault", "Vectors", "by_instruction", "conform", "conversions", "corpus", "function",
    "library", "packings", "products", "program", "quantisations", "read",
]  # fmt: skip

if TYPE_CHECKING:
    from .conformance import Conformance, Fault, conform
    from .files import Vectors, read
    from .operations import conversions, corpus, packings, products, quantisations
    from .rows import REASONS
    from .under_test import by_instruction, function, library, program

index(__name__)
