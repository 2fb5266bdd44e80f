"""Formats in which weights lie in files, to and from their bytes: a record each, held to the library that writes it.

``oracle``: the searches for scales the slow way.

>>> from fplab import stored
>>> import numpy as np
>>> q = stored.STORED["q8_0"]
>>> q.bits, q.decode(q.encode(np.arange(32, dtype=np.float32)))[:3]
(8.5, array([0.       , 0.9765625, 1.953125 ], dtype=float32))
"""

from __future__ import annotations

from ..lazily import index
from . import ggml, kquants, nf4, packed
from .calibrated import awq, gptq
from .packed import Packed
from .record import Stored

GGML = ggml.GGML
"""The kinds of tensors in GGUF files by ggml's numbers: name, elements of a block, its bytes."""
STORED: dict[str, Stored] = {one.name: one for one in (*ggml.RECORDS, *kquants.RECORDS, *nf4.RECORDS)}
"""Every stored format by its name."""
PACKED: dict[str, Packed] = {one.name: one for one in packed.LAYOUTS}
"""Every layout of several tensors by its name."""

__all__ = ["GGML", "PACKED", "STORED", "Packed", "Stored", "awq", "gptq"]

index(__name__)
