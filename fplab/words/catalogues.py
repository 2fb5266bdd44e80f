"""Catalogues as files: collecting messages from the source, compiling, and what is wrong with them; needs Babel."""

import ast
import functools
import hashlib
import io
import re
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from . import FIGURE

FOLDER = Path(__file__).parent
KEYWORDS = {
    "say": None, "mark": None, "say_of": ((1, "c"), 2), "proved": None, "library": None, "live": None, "measured": None,
    "unknown": None, "chosen": None, "name_of": None,
}  # fmt: skip
COMMAND_LINE = FOLDER.parent / "cli.py"  # argparse is given its texts as they are: each of several words is a message
DIGEST = "X-Source-SHA-256"


def languages() -> list[str]:
    """The languages that have a catalogue."""
    return sorted(path.stem for path in FOLDER.glob("*.po"))


def compile_all() -> list[Path]:
    """Write every ``.mo`` anew; returns the files."""
    return [compile_one(path) for path in sorted(FOLDER.glob("*.po"))]


def compile_one(source: Path) -> Path:
    """Compile a catalogue into the ``.mo`` beside it, which names the digest of its source."""
    from babel.messages.mofile import write_mo

    catalog = read(source)
    catalog.header_comment = ""
    catalog.fuzzy = False
    out = io.BytesIO()
    write_mo(out, catalog)
    path = source.with_suffix(".mo")
    path.write_bytes(out.getvalue() + f"\n{DIGEST}: {digest(source)}\n".encode())  # what lies behind the tables is free
    return path


def read(source: Path):  # type: ignore[no-untyped-def]  # Babel's Catalog
    """A catalogue's messages and their translations."""
    from babel.messages.pofile import read_po

    with source.open("rb") as file:
        return read_po(file, locale=source.stem, abort_invalid=True)


def digest(source: Path) -> str:
    """SHA-256 of a catalogue's source."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


def stale(language: str) -> bool:
    """Whether a language's ``.mo`` is missing, or was not compiled from its ``.po`` as it is now."""
    compiled = FOLDER / f"{language}.mo"
    ending = f"\n{DIGEST}: {digest(FOLDER / f'{language}.po')}\n".encode()
    return not (compiled.exists() and compiled.read_bytes().endswith(ending))


@functools.cache
def collected() -> dict[tuple[str, str], str]:
    """Every message that the source says: (context, id), and the first place that says it."""
    from babel.messages.extract import extract_from_dir

    found: dict[tuple[str, str], str] = {}
    for file, line, message, _, context in extract_from_dir(FOLDER.parent, [("**.py", "python")], keywords=KEYWORDS):
        found.setdefault((context or "", str(message)), f"{file}:{line}")
    tree = ast.parse(COMMAND_LINE.read_text(encoding="utf-8"))
    # What a function says of itself is help where the function is a command.
    about = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and isinstance(node.body[0], ast.Expr)
        and ast.unparse(getattr(node, "args", node)) != "args: Arguments"
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)) or id(node) in about:
            continue
        if " " in node.value.strip():
            found.setdefault(("", node.value), f"{COMMAND_LINE.name}:{node.lineno}")
    return found


def missing(language: str) -> Iterator[tuple[str, str]]:
    """The messages without a translation: where they are said, and their ids."""
    there = {(m.context or "", m.id) for m in read(FOLDER / f"{language}.po") if m.id and m.string}
    yield from ((place, key[1]) for key, place in collected().items() if key not in there and key[1].strip())


def problems(language: str) -> list[str]:
    """Translations that nobody asks for, and those whose ``{names}`` are not their message's.

    What figures say is looked up as they are drawn: a test that draws them all knows which of it nobody asks for.
    """
    source = (FOLDER / f"{language}.po").read_text(encoding="utf-8")
    twice = [id for id, n in Counter(re.findall(r"^(?:msgctxt .*\n)?msgid .+$", source, re.M)).items() if n > 1]
    said, wrong = collected(), [f"{language}: twice: {id!r}" for id in twice]
    for one in read(FOLDER / f"{language}.po"):
        if not one.id:
            continue
        if one.context != FIGURE and (one.context or "", one.id) not in said:
            wrong.append(f"{language}: nothing says {one.id!r}")
        elif strays := fields(str(one.string)) - fields(str(one.id)):
            wrong.append(f"{language}: {one.id!r} has no {sorted(strays)}")
    return wrong


def fields(message: str) -> set[str]:
    """The names in a message's braces; none where its braces are not for filling.

    >>> sorted(fields("{n:,} of {all}"))
    ['all', 'n']
    """
    try:
        return {name for _, name, _, _ in string.Formatter().parse(message) if name}
    except ValueError:
        return set()
