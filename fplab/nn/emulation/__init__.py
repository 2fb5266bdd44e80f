"""Any torch model in a GPU's bits: every matrix product that torch runs is computed as its matrix units would.

``settings``: what is asked for. ``modes``: how torch's operations are caught, also after the block. ``operations``:
which of them are products. ``dense``, ``convolution``, ``attention``: each of them as products of two matrices;
``low_precision``: those that torch scales itself, and products of groups. ``multiply``: one such product. ``report``:
what ran.
"""

from __future__ import annotations

from .context import Emulation, emulate
from .product_log import Report, Row

__all__ = ["Emulation", "Report", "Row", "emulate"]
