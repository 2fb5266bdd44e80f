"""Why two ways of computing one output differ: which layers, by which cause, and where their bits first part.

``ways``: what a way is. ``hybrids``: a model whose layers each run in one of two ways. ``parting``: the operations of a
run, the first that differs, its element and its products. ``report``: the table and words. ``session``: the call.
"""

from __future__ import annotations

from .report import Explanation
from .session import explain
from .ways import Way

__all__ = ["Explanation", "Way", "explain"]
