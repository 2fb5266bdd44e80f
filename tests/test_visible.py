"""What there is can be seen before anything is loaded: by ``dir``, Tab, ``help``, type checkers and editors."""

import inspect
import json
import pydoc
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import jedi
import pytest
from fresh import python

import fplab

ROOT = Path(__file__).parent.parent
PACKAGES = ["fplab", *(f"fplab.{name}" for name in fplab.__all__ if isinstance(getattr(fplab, name), ModuleType))]
PARTS = [f"fplab.widgets.{name}" for name in fplab.widgets.NAMES]
# A new IPython, as JupyterLab's kernel has it, completes with and without jedi.
COMPLETING = """
import json, sys
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
shell, packages = InteractiveShell.instance(), json.loads(sys.argv[1])
shell.run_cell("import fplab")
found = {}
for shell.Completer.use_jedi in (True, False):
    for text in (f"{name}." for name in packages):
        with provisionalcompleter():
            names = [c.text.removeprefix(".") for c in shell.Completer.completions(text, len(text))]
            found.setdefault(text[:-1], []).append(sorted(names))
print(json.dumps(found))
"""


def module(name: str) -> ModuleType:
    return pydoc.locate(name)


def public(name: str) -> list[str]:
    return sorted(n for n in dir(module(name)) if not n.startswith("_"))


@cache
def completed() -> dict[str, list[list[str]]]:
    return json.loads(python(COMPLETING, json.dumps([*PACKAGES, *PARTS])).splitlines()[-1])


def table(name: str) -> dict[str, str]:
    """The table that a docstring opens with."""
    summary, _, text = module(name).__doc__.partition("\n\nIn it:\n\n")
    assert "\n" not in summary
    rows = (re.fullmatch(r"    (\w+) +(.+)", row) for row in text.partition("\n\n")[0].rstrip().splitlines())
    return {row[1]: row[2] for row in rows}


@pytest.mark.parametrize("name", [*PACKAGES, *PARTS])
def test_dir_and_tab_show_the_public_names_and_no_others(name):
    listed = public(name)
    assert listed == sorted(getattr(module(name), "__all__", listed))
    assert not {"annotations", "Any", "importlib", "TYPE_CHECKING", "Path", "index", "door"} & set(listed)
    assert completed()[name] == [listed, listed]


@pytest.mark.parametrize("name", [*PACKAGES, *PARTS])
def test_the_docstring_opens_with_every_name_and_its_first_line(name):
    shown = table(name)
    assert sorted(shown) == public(name)
    for each, line in shown.items():
        value = getattr(module(name), each)
        if getattr(value, "__name__", "").rpartition(".")[2] == each:
            first = (inspect.getdoc(value) or "").partition("\n")[0]
            assert line == re.sub(r":[a-z]+:`[~.]?\.?|`", "", first), each
        else:
            assert line.endswith("."), each  # data has a docstring below it in the source


@pytest.mark.parametrize("name", ["fplab", "fplab.nn", "fplab.memory"])
def test_help_shows_the_table(name):
    text = pydoc.plain(pydoc.render_doc(module(name)))
    for each, line in table(name).items():
        assert re.search(rf"^ +{each} +{re.escape(line)}$", text, re.MULTILINE), each


@pytest.mark.parametrize("name", PACKAGES)
def test_editors_complete_without_running_anything(name):
    code = f"import {name}\n{name}."
    listed = {one.name for one in jedi.Script(code, project=jedi.Project(ROOT)).complete()}
    lacking = set(getattr(module(name), "__all__", ())) - listed
    assert not lacking


def test_type_checkers_know_every_name_and_its_type(tmp_path):
    assert (ROOT / "fplab" / "py.typed").is_file()
    named = [f"{name}.{each}" for name in PACKAGES for each in getattr(module(name), "__all__", ())]
    lines = ["import fplab", "import torch", *(f"_ = ({', '.join(named)})",)]
    lines += ['reveal_type(fplab.nn.emulate("H100", torch.bfloat16))', "reveal_type(fplab.training.Adam)"]
    lines += ["fplab.nn.emulat", "fplab.quantise(1)"]
    file = tmp_path / "snippet.py"
    file.write_text("\n".join(lines) + "\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", file],
                          cwd=ROOT, capture_output=True, text=True, check=False)  # fmt: skip
    said = [re.sub(r"^.*?snippet\.py:", "", line) for line in done.stdout.splitlines() if "snippet.py" in line]
    assert len(said) == 4, done.stdout
    assert 'Revealed type is "fplab.nn.emulation.context.Emulation"' in said[0]
    assert "fplab.training.optimizers" in said[1]
    assert 'Module has no attribute "emulat"; maybe "emulate"' in said[2]
    assert 'Module has no attribute "quantise"' in said[3]


def test_a_name_that_there_is_not():
    for each in (fplab, fplab.nn, fplab.formats):
        with pytest.raises(AttributeError, match=rf"^module '{each.__name__}' has no attribute 'emulat'$"):
            each.emulat  # noqa: B018
        assert not hasattr(each, "_repr_html_")
