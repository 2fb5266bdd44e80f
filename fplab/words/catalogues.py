"""Catalogues as files: collecting messages from the source, compiling, and what is wrong with them; needs Babel."""

import ast
import datetime
import functools
import hashlib
import io
import json
import re
import string
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from . import CELL, FIGURE, REFUSAL
from .cells import messages_of, template
from .patterns import FIELD

FOLDER = Path(__file__).parent
KEYWORDS = {
    "say": None, "mark": None, "say_of": ((1, "c"), 2), "proved": None, "library": None, "live": None, "measured": None,
    "answer": None, "unknown": None, "one_of": None, "chosen": None, "name_of": None, "Experiment": (1, 2),
    **dict.fromkeys(("superior", "equivalent", "together", "equal", "within", "same_bits", "within_bounds"), (2,)),
}  # fmt: skip
REFUSING = {  # what says a text to whoever asked for too much, and which argument is the text
    **dict.fromkeys(("LabError", "NoBlockError", "NotHereError", "UnknownArithmeticError", "WriteError", "warn"), 0),
    "FileError": 0, "part": 0, "_unwritable": 1, "integer": 4, "own_integer": 4,
}  # fmt: skip
COMMAND_LINE = FOLDER.parent / "cli.py"  # argparse is given its texts as they are: each of several words is a message
TABLES = ("exercises/exercises.toml", "nn/emulation/questions.toml", "tensorcore/questions.toml")  # of messages
SNIPPETS = FOLDER.parent / "snippets.toml"
DIGEST = "X-Source-SHA-256"


def languages() -> list[str]:
    """The languages that have a catalogue."""
    return sorted(path.stem for path in FOLDER.glob("*.po"))


EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def compile_all() -> list[Path]:
    """Write every ``.mo`` that is not as its source says; returns the files."""
    return [compile_one(path) for path in sorted(FOLDER.glob("*.po"))]


def compile_one(source: Path) -> Path:
    """Compile a catalogue into the ``.mo`` beside it, which names the digest of its source."""
    from babel.messages.mofile import write_mo

    catalog = read(source)
    catalog.header_comment = ""
    catalog.fuzzy = False
    catalog.creation_date = EPOCH  # Babel's is the minute of compiling: two builds of one source would differ
    out = io.BytesIO()
    write_mo(out, catalog)
    path = source.with_suffix(".mo")
    content = out.getvalue() + f"\n{DIGEST}: {digest(source)}\n".encode()  # what lies behind the tables is free
    if not path.exists() or path.read_bytes() != content:  # another build may be reading it
        path.write_bytes(content)
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
        for one in message if isinstance(message, tuple) else [message]:
            found.setdefault((context or "", str(one)), f"{file}:{line}")
    for path in sorted(FOLDER.parent.rglob("*.py")):
        for line, message in refusals(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault((REFUSAL, message), f"{path.relative_to(FOLDER.parent)}:{line}")
    for table in TABLES:
        for name, row in tomllib.loads((FOLDER.parent / table).read_text(encoding="utf-8")).items():
            found.update({("", message): f"{table}:{name}" for message in row.values() if isinstance(message, str)})
    for one in tomllib.loads(SNIPPETS.read_text(encoding="utf-8"))["snippet"]:
        found.update({(CELL, text): f"snippets.toml:{one['name']}" for text in messages_of(one["code"])})
    for path in notebooks():
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"]) if cell["cell_type"] == "code" else ""
            for message in messages_of(source) if source else ():
                found.setdefault((CELL, message), f"{path.name}:{cell['id']}")
    tree = ast.parse(COMMAND_LINE.read_text(encoding="utf-8"))
    # What a function says of itself is help where the function is a command.
    about = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
        and isinstance(node.body[0], ast.Expr)
        and ast.unparse(getattr(node, "args", node)) != "args: Arguments"
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)) or id(node) in about:
            continue
        if " " in node.value.strip():
            found.setdefault(("", node.value), f"{COMMAND_LINE.name}:{node.lineno}")
    return found


def notebooks() -> list[Path]:
    """The course's, in the package or beside it in the source tree."""
    return sorted(path for place in FOLDER.parents[:2] for path in place.glob("notebooks/*.ipynb"))


def refusals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What errors and warnings of a module say, ``raise LabError(f"...")``: lines and messages.

    What an f-string fills in has the last name of its expression; what the module assigns to such a name or returns
    under it, and the two ways of ``x if y else z``, are messages too.

    >>> [*refusals(ast.parse("LabError(f'{self.name!r} has {len(rows)} rows' + (f' and {n} more' if n else '.'))"))]
    [(1, '{name} has {rows} rows{n}'), (1, ' and {n} more')]
    """
    known: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.FunctionDef):
            found = [one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value]
            known.setdefault(node.name, []).extend(found)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) <= (place := REFUSING.get(ast.unparse(node.func), 99)):
            continue
        if ast.unparse(node.args[place]).startswith("say("):
            continue
        names = {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(node.args[place])}
        texts = [node.args[place], *(text for name in sorted(names) for text in known.get(name, ()))]
        ways = (one for text in texts for one in ast.walk(text) if isinstance(one, ast.IfExp))
        for text in [*texts, *(way for one in ways for way in (one.body, one.orelse))]:
            message = template(text, {})
            if len(re.findall("[a-z]", words := FIELD.sub("", message))) > 3 and " " in words:
                yield text.lineno, message


def missing(language: str) -> Iterator[tuple[str, str]]:
    """The messages without a translation: where they are said, and their ids."""
    there = {_wording(m.context or "", m.id) for m in read(FOLDER / f"{language}.po") if m.id and m.string}
    said = collected().items()
    yield from ((place, key[1]) for key, place in said if _wording(*key) not in there and key[1].strip())


def _wording(context: str, message: str) -> tuple[str, str]:
    """A message as it is compared: in a refusal, the names of what is filled in are those of variables, and go."""
    return context, FIELD.sub("{}", message) if context == REFUSAL else message


def problems(language: str) -> list[str]:
    """Translations that nobody asks for, and those whose ``{names}`` are not their message's.

    What figures say is looked up as they are drawn: a test that draws them all knows which of it nobody asks for. What
    the course's cells say is known where its notebooks are.
    """
    source = (FOLDER / f"{language}.po").read_text(encoding="utf-8")
    twice = [id for id, n in Counter(re.findall(r"^(?:msgctxt .*\n)?msgid .+$", source, re.M)).items() if n > 1]
    said, wrong = {_wording(*key) for key in collected()}, [f"{language}: twice: {id!r}" for id in twice]
    for one in read(FOLDER / f"{language}.po"):
        if not one.id:
            continue
        known = one.context == FIGURE or (one.context == CELL and not notebooks())
        if not known and _wording(one.context or "", one.id) not in said:
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
