"""The words of the course's code cells: what they print and their comments, in the catalogue under the context "cell".

A cell is written in English. What it prints is looked up as it is printed, by the pattern that its ``print`` makes; its
comments are exchanged where a page or a reader's copy of the course is made.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from . import CELL, SOURCE, messages, patterns

WORD = re.compile(r"(?<![\w.'\"(=/-])[a-z]{3,}(?![\w.(=])")  # of English, and no part of a name
NAMES = frozenset(("torch", "numpy", "fplab"))


def comments(source: str) -> Iterator[tuple[int, int, str]]:
    """The comments of a cell: line and column, from 0, and text."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0] - 1, token.start[1], token.string


def commented(source: str, language: str) -> str:
    """A cell with its comments in a language.

    >>> commented("size = n // ranks  # who takes the rest?", "en")
    'size = n // ranks  # who takes the rest?'
    """
    known = messages(CELL, language) if language != SOURCE else {}
    if not known or "#" not in source:
        return source
    lines = source.splitlines(keepends=True)
    for line, column, text in comments(source):
        if said := known.get(text.removeprefix("# ")):
            lines[line] = f"{lines[line][:column]}# {said}{lines[line][column + len(text) :]}"
    return "".join(lines)


def printed(text: str, language: str) -> str:
    """What a cell prints, in a language: as a whole, or line by line."""
    if language == SOURCE:
        return text
    whole = patterns.translated(text, CELL, language)
    if whole != text or "\n" not in text:
        return whole
    return "\n".join(patterns.translated(line, CELL, language) for line in text.split("\n"))


def messages_of(source: str) -> Iterator[str]:
    """The messages of a cell: comments, patterns of what it prints, and texts of several words that may fill these."""
    yield from (text.removeprefix("# ") for _, _, text in comments(source))
    tree = ast.parse(source)
    prints = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"]
    texts = [ast.Tuple(call.args) for call in prints]
    inside = {id(part) for call in prints for one in call.args for part in (one, *_parts(one))}
    for node in ast.walk(tree) if prints else ():
        if isinstance(node, ast.IfExp):
            texts += [ast.Tuple([way]) for way in (node.body, node.orelse)]
        elif isinstance(node, ast.JoinedStr) and id(node) not in inside:
            texts.append(ast.Tuple([node]))
            inside |= {id(part) for part in ast.walk(node)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            texts += [ast.Tuple([node])] if " " in node.value.strip() else []
    for text in texts:
        names: dict[str, str] = {}
        message = " ".join(template(one, names) for one in text.elts)
        if set(WORD.findall(patterns.FIELD.sub("", message))) - NAMES:
            yield message


def _parts(text: ast.expr) -> Iterator[ast.AST]:
    """The constants of an f-string."""
    return ast.walk(text) if isinstance(text, ast.JoinedStr) else iter(())


def is_text(node: ast.AST) -> bool:
    """Whether a node is a text as it stands."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def template(node: ast.expr, names: dict[str, str]) -> str:
    """A text as a message; ``names``: what is filled in so far, by its source."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(one, names) for one in node.values)
    if isinstance(node, ast.BinOp) and any(isinstance(one, ast.JoinedStr) or is_text(one) for one in ast.walk(node)):
        return template(node.left, names) + template(node.right, names)
    source = ast.unparse(node)
    if source not in names:
        called = {id(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
        last = [
            (one.end_lineno, one.end_col_offset, getattr(one, "attr", getattr(one, "id", "")))
            for one in ast.walk(node)
            if isinstance(one, ast.Name | ast.Attribute) and id(one) not in called
        ]
        found = [name for _, _, name in sorted(last) if not name.startswith("__")]
        name = found[-1].lower().strip("_") if found else "what"
        same = sum(re.sub(r"_\d+$", "", one) == name for one in names.values())
        names[source] = f"{name}_{same + 1}" if same else name
    return f"{{{names[source]}}}"
