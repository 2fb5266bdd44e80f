"""Text in the columns of a terminal, where a Chinese character takes two.

>>> width_of("sum"), width_of("求和")
(3, 4)
"""

from __future__ import annotations

import re
import textwrap
import unicodedata

WIDE = "[\u2e80-\u9fff\uff00-\uffef]"  # Chinese characters and marks, in a regular expression
OPENING, CLOSING = "（《“", "，。；：！？、）》”"  # marks that no line ends with, and none begins with


def width_of(text: str) -> int:
    """How many columns a text takes."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def padded(text: str, width: int) -> str:
    """A text filled with spaces to so many columns.

    >>> padded("求和", 6) + "|"
    '求和  |'
    """
    return text + " " * max(0, width - width_of(text))


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """A text as lines of at most so many columns, broken at spaces, and between Chinese characters.

    ``indent``: what every line but the first begins with.

    >>> wrapped("a running sum", 9), wrapped("和在这里停滞。", 12)
    (['a running', 'sum'], ['和在这里停', '滞。'])
    """
    if width_of(text) == len(text):
        return textwrap.wrap(text, width, subsequent_indent=indent)
    lines, line = [], ""
    for piece in re.findall(rf"\s+|[{OPENING}]*(?:{WIDE}|[^\s{WIDE[1:]}+)[{CLOSING}]*", text):
        if width_of(line + piece.rstrip()) > width and line:
            lines.append(line.rstrip())
            line = indent
        line += piece if line != indent * bool(lines) else piece.lstrip()
    return [*lines, line.rstrip()] if line.strip() else lines
