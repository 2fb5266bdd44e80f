"""Text in the columns of a terminal, where a Chinese character takes two.

>>> width_of("sum"), width_of("求和")
(3, 4)
"""

from __future__ import annotations

import unicodedata


def width_of(text: str) -> int:
    """How many columns a text takes."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def padded(text: str, width: int) -> str:
    """A text filled with spaces to so many columns.

    >>> padded("求和", 6) + "|"
    '求和  |'
    """
    return text + " " * max(0, width - width_of(text))
