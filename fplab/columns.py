"""Text in the columns of a terminal, where a Chinese character takes two, and tables as text.

>>> width_of("sum"), width_of("求和")
(3, 4)
"""

import csv
import io
import itertools
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, TextIO, TypeVar

T = TypeVar("T")
SPACES = "\n\u00a0\u3000"  # what Python counts as not printable, and a terminal merely shows
WIDE = "[\u2e80-\u9fff\uff00-\uffef]"  # Chinese characters and marks, in a regular expression
BREAKS = re.compile(r"(?<= )|(?<=/)|(?<=\.\.)|(?<=[a-z]\.)|(?<=\.)(?=[a-z])")  # where a cell may go on below
WIDEST = 120  # columns of a terminal that are filled: longer lines are hard to read
OPENING, CLOSING = "（《“", "，。；：！？、）》”"  # marks that no line ends with, and none begins with


def harmless(value: T, line: str = "\n") -> T:
    r"""What comes from somebody's file or program, as a terminal shows it and does not obey it.

    In every text of it, those in lists and dictionaries too, control characters and marks that reverse the direction of
    writing become U+FFFD, a tab a space, and the end of a line ``line``.

    >>> harmless("\x1b[2J\tpass"), harmless({"device": ["H100\npass"]}, " ")
    ('�[2J pass', {'device': ['H100 pass']})
    """
    if isinstance(value, str):
        kept = (c if c.isprintable() or c in SPACES else "\N{REPLACEMENT CHARACTER}" for c in value.expandtabs(1))
        return "".join(kept).replace("\n", line)  # type: ignore[return-value]
    if isinstance(value, list):
        return [harmless(part, line) for part in value]  # type: ignore[return-value]
    if isinstance(value, dict):
        return {harmless(k, line): harmless(v, line) for k, v in value.items()}  # type: ignore[return-value]
    return value


def terminal_width(stream: TextIO | None = None, most: int = WIDEST) -> int:
    """Columns to fill, 60 to ``most``: the terminal's, ``COLUMNS``, or 100 where there is no terminal."""
    fallback = 80 if (stream or sys.stdout).isatty() else 100
    return max(60, min(most, shutil.get_terminal_size((fallback, 24)).columns))


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

    >>> wrapped("a running sum", 9), wrapped("和在这里停滞。", 12), wrapped("in experts.fp8-up", 15)
    (['a running', 'sum'], ['和在这里停', '滞。'], ['in', 'experts.fp8-up'])
    """
    if width_of(text) == len(text):
        return textwrap.wrap(
            text,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,  # names of layers
        )
    lines, line = [], ""
    for piece in re.findall(rf"\s+|[{OPENING}]*(?:{WIDE}|[^\s{WIDE[1:]}+)[{CLOSING}]*", text):
        if width_of(line + piece.rstrip()) > width and line:
            lines.append(line.rstrip())
            line = indent
        line += piece if line != indent * bool(lines) else piece.lstrip()
    return [*lines, line.rstrip()] if line.strip() else lines


CLAUSES = re.compile("[;,:](?= )|[；，：]")  # what a clause ends with


def shortened(text: str, width: int) -> str:
    """A text in one line of at most so many columns: what does not fit is left out from the end of a clause, or a word.

    >>> shortened("INT8 is 3.1% off; LLM.int8() stays at 0.3%", 30), shortened("a running sum", 11)
    ('INT8 is 3.1% off …', 'a running …')
    """
    if width_of(text) <= width:
        return text
    line = wrapped(text, width - 2)[0]
    ends = [mark.start() for mark in CLAUSES.finditer(f"{line} ") if 2 * width_of(line[: mark.start()]) >= width]
    return f"{line[: ends[-1]] if ends else line} …"


REPORT = 100  # columns of a report that nobody gave a width


def folded(lines: Iterable[str], width: int = REPORT, indent: str = "  ") -> list[str]:
    """Lines of a report, those of prose that are longer than ``width`` columns broken between words."""
    folded_lines = []
    for line in lines:
        lead = len(line) - len(line.lstrip())
        parts = wrapped(line.lstrip(), width - lead, indent[lead:]) if width_of(line) > width else [line[lead:]]
        folded_lines += [" " * lead + part for part in parts]
    return folded_lines


def grid(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Rows of cells under each other, the first the heads of the columns.

    Where they take more than ``width`` columns, the widest cells go on below: broken between words, after ``/`` and
    ``..``, and at the dots of a name. The first column, a layer's name say, stays whole.

    >>> print(*grid([["layer", "in"], ["blocks.0.proj", "e4m3 x2^6"]], 16), sep="\\n")
    layer          in
    -------------  ----
    blocks.0.proj  e4m3
                   x2^6
    """
    pieces = [[[p for p in BREAKS.split(cell) if p] or [""] for cell in row] for row in rows]
    wide = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    least = [max(width_of(p.rstrip()) for cell in column for p in cell) for column in zip(*pieces, strict=True)]
    least[0] = wide[0]
    while width is not None and sum(wide) + 2 * (len(wide) - 1) > width and wide != least:
        wide[max((w, i) for i, w in enumerate(wide) if w > least[i])[1]] -= 1
    lines = []
    for row in pieces:
        cells = [_filled(cell, w) for cell, w in zip(row, wide, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            lines.append("  ".join(map(padded, parts, wide)).rstrip())
        if row is pieces[0]:
            lines.append("  ".join("-" * w for w in wide))
    return lines


def as_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as comma-separated values, the names of the columns first, each line ended by one newline character.

    >>> as_csv([["layer", "error"], ["0, 1", 2**-10]])
    'layer,error\\n"0, 1",0.0009765625\\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _filled(pieces: Sequence[str], width: int) -> list[str]:
    """As many pieces a line as there is room for."""
    lines = [""]
    for piece in pieces:
        if width_of((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return lines
