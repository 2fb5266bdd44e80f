"""The rules of the house: layers, optional imports, no fastmath, a cache that notices every edit."""

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fresh import python

from fplab import errors

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fplab"
LAYERS = (
    ("columns", "errors", "float_environment", "formats", "interrupts", "language", "lazily", "machine_code",
     "processes", "roundings", "seeds", "settings", "starting", "storage", "threads", "version", "words"),
    ("arrays", "exact", "exact_products", "exact_sums", "kernels", "numerals"),
    ("arithmetic", "bounds", "codebooks", "floats", "integers", "numeric", "plans", "reveal", "scaled",
     "spacing", "stored", "sums", "tapered", "tensorcore", "uncompiled"),
    ("draw", "hardware", "inspection", "nn"),
    ("checkpoint", "memory", "parallel", "training", "vectors"),
    ("experiments",),
    ("claims", "copying", "course", "exercises", "lab", "pages", "widgets"),
    ("cli", "__main__"),
)  # fmt: skip
LAYER = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(PACKAGE.rglob("*.py"))


def test_the_tree_in_contributing_is_the_tree() -> None:
    """A row a layer, with every module and package of it in backticks."""
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("| layer | in `fplab/` |", 1)[1]
    rows = [line for line in table.split("\n\n", 1)[0].splitlines() if line.startswith("| ")]
    assert [sorted(set(re.findall(r"`(\w+)`", row)) & {*LAYER}) for row in rows] == [sorted(row) for row in LAYERS]
    assert {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()} \
        == {*LAYER, "__init__"}  # fmt: skip


def part(path: Path) -> str:
    """The first name below the package: the module or subpackage that has a layer."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """Every import of a file as (absolute dotted name, whether it runs when the module is imported)."""
    return tuple(_imports(path))


def _statements(node: ast.AST, now: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """The statements within a node, each with whether it runs when the module is imported."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield inner, now
            lazy = isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            lazy |= isinstance(inner, ast.If) and "TYPE_CHECKING" in ast.unparse(inner.test)
            yield from _statements(inner, now and not lazy)


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    package = path.relative_to(ROOT).with_suffix("").parts
    for node, now in _statements(parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, now
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            if node.level:  # an __init__ is its package, any other file lies in it
                base = [*package[: len(package) - node.level], *base]
            for alias in node.names:
                yield ".".join([*base, alias.name]), now


def test_a_module_imports_only_its_own_layer_and_those_below():
    for path in FILES:
        for name, _ in imports(path):
            home, _, rest = name.partition(".")
            level = LAYER.get(rest.partition(".")[0], 0) if home == "fplab" else 0
            own = LAYER.get(part(path), len(LAYERS))  # the public index imports lazily
            assert level <= own, f"{path.relative_to(ROOT)} imports {name}, which is a layer above its own"


HIDING = """
import importlib, sys
from fplab import errors

class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if (library := name.partition(".")[0]) in errors.EXTRAS:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)

sys.meta_path.insert(0, Hidden)
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except errors.MissingPartError as error:
        assert isinstance(error, ImportError)
        library, extra = error.name, errors.EXTRAS[error.name]
        assert str(error).endswith(f'this needs: pip install "fplab[{extra}]", or pip install {library} alone.')
        print(library)
    except BaseException as error:
        print(name, type(error).__name__, error)
"""


def test_a_module_that_lacks_a_library_of_an_extra_says_how_to_install_it():
    paths = (path.relative_to(ROOT).with_suffix("") for path in FILES if path.stem != "__main__")
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    said = python(HIDING, *names).split()
    assert {*said} == {"hypothesis", "matplotlib", "sphinx", "torch"}
    assert len(said) > 60


def test_every_library_of_an_extra_is_known_by_its_name():
    """Else what lacks it ends in a traceback, at worst after minutes of work."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra in ("torch", "lab"):
        asked = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in extras[extra]} - {"fplab"}
        assert asked <= {name for name, its in errors.EXTRAS.items() if its == extra}


def test_every_module_has_a_layer():
    assert {part(p) for p in FILES} - {"__init__"} == set(LAYER)


@pytest.mark.parametrize(
    ("library", "homes"),
    [("torch", {"hardware", "memory", "nn", "parallel", "training"}), ("matplotlib", {"draw"}), ("sklearn", set())],
)
def test_heavy_libraries_are_imported_at_home_only(library, homes):
    found = {str(path.relative_to(PACKAGE)) for path in FILES for name, now in imports(path)
             if now and name.split(".")[0] == library and part(path) not in homes}  # fmt: skip
    assert not found


def test_there_are_no_circles():
    """Of whatever kind an import is: run at once, when a function is called, or for a type checker alone."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in FILES}
    modules = set(names.values())
    edges = {}
    for path, module in names.items():
        found = {name if name in modules else name.rpartition(".")[0] for name, _ in imports(path)} & modules
        edges[module] = found - {module, "fplab"} if module != "fplab" else set()
    # A package's __init__ is read before its modules, so importing a sibling through the package is no circle.
    state: dict[str, str] = {}

    def visit(module: str, path: list[str]) -> None:
        assert state.get(module) != "open", f"a circle of imports: {' -> '.join([*path, module])}"
        if module not in state:
            state[module] = "open"
            for name in sorted(edges[module]):
                visit(name, [*path, module])
            state[module] = "done"

    for module in sorted(modules):
        visit(module, [])


def test_nothing_inside_imports_the_package_itself():
    for path, (name, _) in ((p, found) for p in FILES if part(p) != "__init__" for found in imports(p)):
        home, _, rest = name.partition(".")
        own = home != "fplab" or rest.partition(".")[0] in LAYER
        assert own, f"{path.relative_to(ROOT)} imports {name}: what the package itself offers has a module of its own"


def test_text_is_utf8_whatever_the_system_prefers_and_no_line_is_run_by_a_shell():
    for path in FILES:
        if not any(name in path.read_text("utf-8") for name in ("shell", "read_text", "write_text", "system")):
            continue
        for call in (node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)):
            given, where = {keyword.arg for keyword in call.keywords}, (path, call.lineno)
            assert "shell" not in given, where
            if isinstance(call.func, ast.Attribute):
                name, most = call.func.attr, int(call.func.attr == "write_text")  # of an encoding by place
                assert name not in ("read_text", "write_text") or "encoding" in given or len(call.args) > most, where
                assert ast.unparse(call.func) != "os.system", where


def test_no_kernel_asks_for_fast_math():
    for path in (PACKAGE / "kernels").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        words = {k.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for k in node.keywords}
        assert "fastmath" not in words, path.name
    compiled_elsewhere = [p for p in FILES if part(p) != "kernels" and re.search(r"\bnjit\b", p.read_text("utf-8"))]
    assert not compiled_elsewhere


def test_the_index_names_what_there_is():
    import fplab

    assert sorted(set(fplab.__all__)) == sorted(fplab.__all__)
    for name in fplab.__all__:
        assert getattr(fplab, name) is not None
        assert name in dir(fplab)
    with pytest.raises(AttributeError, match="module 'fplab' has no attribute 'quantise'"):
        fplab.quantise  # noqa: B018


def test_a_misspelt_name_is_answered_with_the_nearest():
    code = "import sys, fplab\nsys.stderr = sys.stdout\ntry: {}\nexcept AttributeError: sys.excepthook(*sys.exc_info())"
    assert "Did you mean: 'quantize'?" in python(code.format("fplab.quantise"))
    assert "Did you mean: 'matmul'?" in python(code.format("fplab.tensorcore.matmull"))


def test_a_long_compilation_says_how_far_it_is_and_is_cached(tmp_path):
    def told(patience: object, folder: Path) -> list[str]:
        code = "import sys; sys.stderr = sys.stdout; import fplab; assert fplab.encode(1.0, 'fp16') == 15360"
        return python(code, FPLAB_PATIENCE=str(patience), FPLAB_CACHE_DIR=str(folder)).splitlines()

    first = told(0, tmp_path)
    words = re.escape(f"fplab: compiling kernels, kept for later runs in {tmp_path}: convert.convert, ")
    far = [tuple(map(int, re.fullmatch(words + r"(\d+) of (\d+) functions", line).groups())) for line in first]
    assert far == sorted(far)
    assert far[0] == (0, far[0][1])
    assert {total for _, total in far} == {far[-1][0] + 1}  # the last word comes before the kernel's last callee
    kept = {p.name for p in tmp_path.rglob("*.nbc")}
    assert kept
    assert told(0, tmp_path) == []
    assert {p.name for p in tmp_path.rglob("*.nbc")} == kept
    blocked = tmp_path / "file"
    blocked.touch()  # where the cache folder should be
    assert told(0, blocked)[1] == f"fplab: compiling kernels: convert.convert, 0 of {far[0][1]} functions"
    with pytest.raises(AssertionError, match="FPLAB_PATIENCE='soon' is not a number of seconds"):
        told("soon", tmp_path)


def test_an_edit_of_a_callee_in_another_file_is_noticed(tmp_path):
    """numba's own cache would go on with the old machine code here."""
    shutil.copytree(PACKAGE, tmp_path / "fplab")
    code = "import fplab, sys; print(fplab.__file__, fplab.encode(4.0, 'fp16'))"
    environment = {"PYTHONPATH": str(tmp_path), "FPLAB_CACHE_DIR": str(tmp_path / "cache")}

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment, cwd=tmp_path,
            check=True,
        )  # fmt: skip
        assert str(tmp_path) in done.stdout
        assert not done.stderr  # conftest's patience is long
        return done.stdout.split()[-1]

    assert run() == "17408"
    callee = tmp_path / "fplab" / "kernels" / "rounding.py"
    text = callee.read_text(encoding="utf-8")
    right, wrong = "return with_sign(code, negative, fmt), flags", "return with_sign(code + U1, negative, fmt), flags"
    changed = text.replace(right, wrong, 1)
    assert changed != text
    callee.write_text(changed, encoding="utf-8")
    assert run() == "17409"


@pytest.mark.parametrize("path", sorted((PACKAGE / "kernels").glob("[a-z]*.py")), ids=lambda p: p.stem)
def test_a_cache_folder_is_named_by_every_kernel_file_it_rests_on(path):
    from fplab import kernels

    wanted, waiting = {PACKAGE / "kernels" / "__init__.py"}, [path]
    while waiting:
        file = waiting.pop()
        wanted.add(file)
        modules = {name.split(".")[2] for name, _ in imports(file) if name.startswith("fplab.kernels.")}
        files = {file.with_name(f"{module}.py") for module in modules}
        waiting += [f for f in files - wanted if f.exists()]
    assert set(kernels.sources(path.stem)) == wanted
