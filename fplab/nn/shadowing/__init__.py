"""Shadow execution: every tensor's exact companion beside any run, and where its error is born, carried and grown.

``session``: the block. ``mode``: how operations are followed. ``companions``: exact values by storage. ``operations``:
one operation on exact operands. ``double_double``: numbers of twice the precision. ``tallies``: what is counted.
``quantising``: which roundings are errors. ``tracing``: the operands of a worst element. ``report``: what follows.
"""

from __future__ import annotations

from .report import Report, Row
from .session import Shadow, shadow

__all__ = ["Report", "Row", "Shadow", "shadow"]
