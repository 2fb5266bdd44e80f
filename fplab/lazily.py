"""Modules that show what is in them: ``dir``, Tab and ``help`` give the public names before anything is loaded."""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = __name__.partition(".")[0]
ROLE = re.compile(r":\w+:`~?\.?([^`]+)`|``([^`]+)``")  # reStructuredText's, of which a table shows the name alone


def index(path: str) -> None:
    """Make a module list its public names, and load a name of a package when it is first used.

    What a package imports ``if TYPE_CHECKING`` is its index: type checkers and editors read it as it stands, and what
    it names, torch and numba with it, is imported when somebody asks (PEP 562). First lines are read from the sources.
    """
    module = sys.modules[path]
    file = _file_of(module)

    def load(name: str) -> Any:
        home, original = _imported(file).get(name, ("", ""))
        if not home and not name.startswith("_") and file.name == "__init__.py" and _source(file.parent / name):
            home = f".{name}"  # a module that the index leaves out
        if not home:
            text = f"module {module.__name__!r} has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=module)  # by these Python says which name is near
        imported = import_module(home, module.__package__)
        value = vars(module)[name] = getattr(imported, original) if original else imported
        return value

    def listed() -> list[str]:
        return sorted({*_public(module), *(name for name in vars(module) if name.startswith("__"))})

    vars(module).update(__getattr__=load, __dir__=listed)
    module.__class__ = Documented


def modules(package: str) -> list[str]:
    """The names of the modules in a package, by their files: what is put into its folder is in it, without a list."""
    folder = _file_of(sys.modules[package]).parent
    return sorted({path.stem for path in folder.glob("[a-z]*") if _source(path.with_suffix(""))})


class Loader(SourceFileLoader):
    """Reads a module of this package; where it lacks a library of an extra, the error says how to install it."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, which imports the libraries that it uses."""
        try:
            super().exec_module(module)
        except ModuleNotFoundError as error:
            from .errors import missing  # not at the top: most modules lack nothing, and are to load fast

            raise missing(error.name) or error from None


class Finder(PathFinder):
    """Finds the modules of this package as Python does, and has :class:`Loader` read them."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        """The specification of a module of this package; None for any other."""
        if fullname.partition(".")[0] != PACKAGE:
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


sys.meta_path.insert(0, Finder)


class Documented(ModuleType):
    """A module whose docstring opens with a table of its names. (IPython trusts no class with a ``__getattr__``.)"""

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        names = {
            name: ROLE.sub(r"\1\2", first_line(_file_of(self), name))
            for name in sorted(_public(self), key=str.casefold)
        }
        width = max(map(len, names), default=0)
        rows = (f"    {name:{width}}  {line}" for name, line in names.items())
        summary, _, more = (vars(self)["__doc__"] or "").partition("\n")  # none where python -OO runs
        return "\n".join([summary, "", "In it:", "", *map(str.rstrip, rows), more])


def _file_of(module: ModuleType) -> Path:
    return Path(str(module.__file__))


def _public(module: ModuleType) -> list[str]:
    """Its ``__all__``, else the modules below a package and what any other module defines."""
    file, named = _file_of(module), vars(module).get("__all__")
    if named is None and file.name == "__init__.py":
        return modules(module.__name__)
    return named or [name for node in _nodes(file) for name in _defined(node) if name.isidentifier() and name[0] != "_"]


def _source(path: Path) -> Path | None:
    """The file of a module, by its path without suffix."""
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


@functools.cache
def _nodes(file: Path) -> list[ast.stmt]:
    """The statements of a module, those for type checkers among them."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return [inner for node in body for inner in (node.body if isinstance(node, ast.If) else [node])]


@functools.cache
def _imported(file: Path) -> dict[str, tuple[str, str]]:
    """By name what a file imports from its own package: the module, relative, and the name there ("": the module)."""
    imports: dict[str, tuple[str, str]] = {}
    for node in _nodes(file):
        if isinstance(node, ast.ImportFrom) and node.level:
            home = "." * node.level + (node.module or "")
            for alias in node.names:
                if alias.name == "*":
                    imports |= dict.fromkeys(_imported(_at(file, home)), (home, "*"))
                else:
                    name = alias.asname or alias.name
                    imports[name] = (home, alias.name) if node.module else (f"{home}{alias.name}", "")
    return {name: (home, name if original == "*" else original) for name, (home, original) in imports.items()}


def _at(file: Path, home: str) -> Path:
    """The file of a module named as a file imports it, such as "..formats"."""
    inside = home.lstrip(".")
    source = _source(file.parents[len(home) - len(inside) - 1].joinpath(*inside.split(".")))
    assert source is not None, (file, home)
    return source


def first_line(file: Path, name: str) -> str:
    """The first line of what is written about a name in a file, or where the file has it from; nothing is imported."""
    if name in (imported := _imported(file)):
        home, original = imported[name]
        return first_line(_at(file, home), original) if original else _first(_nodes(_at(file, home)))
    nodes = _nodes(file)
    for node, after in zip(nodes, [*nodes[1:], ast.Pass()], strict=True):
        if name in _defined(node) and (  # an overload has no text
            line := _first(node.body if isinstance(node, ast.FunctionDef | ast.ClassDef) else [after])
        ):
            return line
    path = _source(file.parent / name)
    return _first(_nodes(path)) if path else ""


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    for target in [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", []):
        yield ast.unparse(target)


def _first(nodes: list[ast.stmt]) -> str:
    """The first line of the text that statements begin with."""
    match nodes[:1]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return inspect.cleandoc(text).partition("\n")[0]
    return ""
