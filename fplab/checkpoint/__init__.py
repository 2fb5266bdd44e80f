"""Checkpoints: what a file of weights loses in every format, from the file alone.

Files of safetensors, GGUF, torch and NumPy are read in pieces; nothing in them is run. ``fplab checkpoint FILE`` does
the same in a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazily import index

__all__ = ["Comparison", "FileError", "Survey", "Tensor", "compare", "survey", "tensors"]

if TYPE_CHECKING:
    from .comparison import Comparison, compare
    from .files import tensors
    from .report import Survey
    from .surveying import survey
    from .tensor import FileError, Tensor

index(__name__)
