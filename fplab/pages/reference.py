"""The reference: a page for every public module, which Sphinx makes from the docstrings, parameters as tables."""

import functools
import inspect
import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from ..lazily import ROLE, first_line
from ..words import say

# "``fmt``: a format's name. ``a``, ``b``: operands." in a docstring
SAID = re.compile(r"((?:``\*{0,2}\w+``(?:, | and )?)+): (.*?)(?=\s``\*{0,2}\w+``(?:(?:, | and )``\w+``)*: |\Z)", re.S)
BAR = re.compile(r"(``.*?``|`[^`]+`)|\|")
NAME = re.compile(r"``\*{0,2}(\w+)``")
DOCUMENTED = (type, ModuleType, FunctionType, BuiltinFunctionType)  # what says itself what it is
TWICE = {("fplab.formats", "Rounding")}  # classes that another page describes
HEADS = (say("parameter"), say("type"), say("default"), say("meaning"))


def modules() -> tuple[str, ...]:
    """The names of the public modules: the package, what it lists, and the widgets."""
    top = import_module(__package__.partition(".")[0])
    below = [f"{top.__name__}.{name}" for name in sorted(top.__all__) if isinstance(getattr(top, name), ModuleType)]
    widgets = [f"{top.__name__}.widgets.{name}" for name in top.widgets.NAMES]
    return (top.__name__, *sorted([*below, *widgets]))


def page(module: str, language: str) -> str:
    """The Markdown of a module's page: what it is, the list of its names with a line each, and each in full."""
    found = import_module(module)
    for name in getattr(found, "__all__", ()):  # Sphinx reads what has been loaded
        getattr(found, name)
    elsewhere = [name for home, name in TWICE if home == module]
    data = [name for name in getattr(found, "__all__", ()) if not isinstance(getattr(found, name), DOCUMENTED)]
    overview = "" if language == "en" else _overview(module)
    directive = f".. automodule:: {module}\n   :members:\n   :exclude-members: {', '.join([*elsewhere, *data])}\n"
    for name in data:
        about = ROLE.sub(r"``\1\2``", first_line(Path(str(found.__file__)), name))
        directive += f"\n.. py:data:: {name}\n   :module: {module}\n\n   {about}\n"
    return f"# {module}\n\n{overview}```{{eval-rst}}\n{directive}\n```\n"


def _overview(module: str) -> str:
    """What a module is, in Chinese."""
    said = overviews().get(module, "")
    return f"{said}\n\n" if said else ""


@functools.cache
def overviews() -> dict[str, str]:
    """The modules' first lines in Chinese, from ``reference.zh.toml``."""
    return tomllib.loads(Path(__file__).with_name("reference.zh.toml").read_text(encoding="utf-8"))


def for_sphinx(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """A docstring as Sphinx takes it: bars are bars, the names of a module and the parameters of a call are tables."""
    lines[:] = [
        line if line.lstrip().startswith(">>>") else BAR.sub(lambda bar: bar[1] or r"\|", line) for line in lines
    ]
    if what == "module":
        lines[:] = _with_names(name, lines)
    elif what in ("function", "method", "class"):
        lines[:] = _with_parameters(thing, lines)


def _with_names(module: str, lines: list[str]) -> list[str]:
    """The table of names that a docstring opens with (:mod:`fplab.lazily`), each a link."""
    if "In it:" not in lines:
        return lines
    start = lines.index("In it:")
    end = next((i for i in range(start + 2, len(lines)) if not lines[i].startswith("    ")), len(lines))
    rows = [line.split(None, 1) for line in lines[start + 2 : end]]
    table = _table(
        [[f":py:obj:`{name} <{module}.{name}>`", *(x.replace("*", r"\*") for x in about)] for name, *about in rows]
    )
    return [*lines[:start], *table, *lines[end:]]


def _with_parameters(thing: Any, lines: list[str]) -> list[str]:
    """What a docstring says of parameters in a table with their types and defaults."""
    try:
        parameters = [p for p in inspect.signature(thing).parameters.values() if p.name not in ("self", "cls")]
    except (TypeError, ValueError):
        return lines
    if not parameters:
        return lines
    names = {p.name for p in parameters}
    meaning: dict[str, str] = {}
    kept = []
    for paragraph in "\n".join(lines).split("\n\n"):
        head, found = paragraph, SAID.search(paragraph)
        if found and not paragraph.startswith((" ", ">>>", ".. ")) and set(NAME.findall(found[1])) <= names:
            head = paragraph[: found.start()].strip()
            for one in SAID.finditer(paragraph[found.start() :]):
                meaning |= dict.fromkeys(NAME.findall(one[1]), " ".join(one[2].split()))
        kept += [head, ""] if head else []
    rows = [[f"``{p.name}``", _type(p), _default(p), meaning.get(p.name, "")] for p in parameters]
    return [*"\n".join(kept).split("\n"), "", *_table(rows, [*map(str, HEADS)])]


def _table(rows: list[list[str]], heads: list[str] | None = None) -> list[str]:
    table = [".. list-table::", f"   :header-rows: {int(heads is not None)}", ""]
    wide = max(map(len, rows))
    for row in [heads, *rows] if heads else rows:
        table += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate([*row, *[""] * (wide - len(row))])]
    return [*table, ""]


def _type(parameter: inspect.Parameter) -> str:
    found = parameter.annotation
    if found is inspect.Parameter.empty:
        return ""
    text = found if isinstance(found, str) else getattr(found, "__name__", str(found))
    return f"``{text}``"


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return ""
    text = repr(parameter.default)
    return f"``{text}``" if len(text) <= 40 and " at 0x" not in text else "..."
