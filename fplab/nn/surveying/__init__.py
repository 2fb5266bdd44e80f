"""A survey of a model: what each layer loses in each format or recipe, what that does to the whole, and what to choose.

``measuring``: one choice for all layers, under emulation and shadow. ``assigning``: the cheapest assignment within a
budget, tried. ``report``: the tables and words. ``session``: the call.
"""

from __future__ import annotations

from .report import Survey
from .session import survey

__all__ = ["Survey", "survey"]
