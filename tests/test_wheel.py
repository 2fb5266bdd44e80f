"""The wheel in an environment of its own, without torch: what it carries, what works, and what a missing part says.

The environment lies in a folder whose name has a space, an accent and Chinese, and sees only what the wheel requires.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="hatchling is not installed (it is in the test extra)")
SOURCE = Path(__file__).resolve().parent.parent
FPLAB = SOURCE / "fplab"
REQUIRED = ("numpy", "numba", "llvmlite", "tqdm")  # llvmlite: numba's own


def done(words: list[str | Path], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder from which the source tree cannot be imported."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FPLAB_LANG")}
    command = list(map(str, words))
    return subprocess.run(command, capture_output=True, encoding="utf-8", cwd=FPLAB, env=own | environment, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = ["-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, SOURCE]
    built = done([sys.executable, *words])
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment that has the wheel, and what it requires, installed."""
    home = tmp_path_factory.mktemp("clean") / "my lab é 数"
    venv.create(home, symlinks=os.name != "nt")
    folder = home / ("Scripts" if os.name == "nt" else "bin")
    python = folder / "python"
    site = Path(done([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip())
    for name in REQUIRED:
        for part in {Path(file).parts[0] for file in importlib.metadata.files(name) or ()} - {".."}:
            (site / part).symlink_to(importlib.metadata.distribution(name).locate_file(part))
    words = ["-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--disable-pip-version-check", wheel]
    installed = done([sys.executable, *words])  # with what it requires: were more required, this would fail
    assert installed.returncode == 0, installed.stderr
    return folder


def test_the_wheel_is_pure_python_with_the_course_its_figures_and_the_compiled_catalogue(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        for path in (SOURCE / "notebooks").glob("*.ipynb"):
            assert archive.read(f"fplab/notebooks/{path.name}") == path.read_bytes()
        names = set(archive.namelist())
    assert {f"fplab/figures/{path.name}" for path in (SOURCE / "figures").glob("*[!k].svg")} <= names
    assert {"fplab/words/zh.mo", "fplab/py.typed"} <= names
    tracked = ["git", "-C", SOURCE, "ls-files", "fplab"]
    if (listed := done(tracked)).returncode == 0:
        assert set(listed.stdout.splitlines()) <= names


WORKS = """
import sys, fplab
assert "my lab" in fplab.__file__, fplab.__file__
row = [2**-12] * 16
values = [
    fplab.quantize(0.1, "bf16"), fplab.add(2048, 1, "fp16"), fplab.sum([0.1] * 4096, "fp16"),
    fplab.codebooks.nf4().table[0], fplab.tensorcore.dot(row, row, 1, gpu="H100"), fplab.memory.estimate("gpt2").total,
]
print([float(x) for x in values], fplab.inspect("0.1", "fp16").rows[0].hex, fplab.course.figure("underflow").path.name)
print([m for m in ("torch", "matplotlib", "ml_dtypes") if m in sys.modules])
"""


def test_what_needs_no_extra_works(clean: Path) -> None:
    ran = done([clean / "python", "-W", "error", "-c", WORKS])
    assert ran.returncode == 0, ran.stderr
    values, heavy = ran.stdout.splitlines()
    assert values == "[0.10009765625, 2048.0, 256.0, -1.0, 1.0000009536743164, 3688366080.0] 0x2e66 underflow.svg"
    assert heavy == "[]"


def test_commands_work_in_either_language(clean: Path) -> None:
    for words in (["memory", "--preset", "gpt2"], ["exercise", "list"], ["list"]):
        ran = done([clean / "fplab", *words])
        assert (ran.returncode, ran.stderr) == (0, ""), words
    assert "就近舍入" in done([clean / "fplab", "inspect", "0.1"], FPLAB_LANG="zh").stdout


LACKS = '{0} is not installed, which this needs: pip install "fplab[{1}]", or pip install {0} alone.'


@pytest.mark.parametrize(
    ("code", "library", "extra"),
    [("fplab.nn.emulate", "torch", "torch"),
     ("from fplab.training import Adam", "torch", "torch"),
     ("fplab.memory.trace", "torch", "torch"),
     ("fplab.parallel.launch('ddp')", "torch", "torch"),
     ("fplab.experiments.show('schedules')", "matplotlib", "torch"),
     ("from fplab.draw import style", "matplotlib", "torch"),
     ("fplab.widgets.bits.widget()", "ipywidgets", "lab"),
     ("fplab.exercises.check('rne', lambda x, n: x)", "cloudpickle", "lab"),
     ("fplab.pages.write([], out='x')", "nbformat", "lab")],
)  # fmt: skip
def test_a_missing_part_says_which_extra_to_install(clean: Path, code: str, library: str, extra: str) -> None:
    ran = done([clean / "python", "-c", f"import fplab; {code}"])
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == f"fplab.errors.MissingPartError: {LACKS.format(library, extra)}"


@pytest.mark.parametrize(
    ("words", "library", "extra"),
    [(["run"], "torch", "torch"),
     (["figures", "formats"], "torch", "torch"),
     (["record", "--out", "x"], "torch", "torch"),
     (["memory", "--preset", "gpt2", "--out", "x.svg"], "matplotlib", "torch"),
     (["exercise", "check", "FILE"], "hypothesis", "lab"),
     (["lab", "FOLDER"], "jupyterlab", "lab"),
     (["pages", "00"], "nbformat", "lab")],
)  # fmt: skip
def test_a_command_says_it_too(clean: Path, words: list[str], library: str, extra: str, tmp_path: Path) -> None:
    answers = tmp_path / "answers.py"
    answers.write_text("rne = lambda x, n: round(x / 2**n)\n")
    given = [{"FILE": str(answers), "FOLDER": str(tmp_path / "course")}.get(word, word) for word in words]
    ran = done([clean / "fplab", *given])
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"fplab: {LACKS.format(library, extra)}\n")
    assert not (tmp_path / "course").exists()


EVERY = """
import importlib, json, pkgutil, fplab
lacks = {}
for found in pkgutil.walk_packages(fplab.__path__, "fplab.", lambda name: None):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except fplab.errors.MissingPartError as error:
            lacks.setdefault(error.name, set()).add(found.name.split(".")[1])
print(json.dumps({name: sorted(parts) for name, parts in lacks.items()}))
"""


def test_every_module_loads_or_lacks_what_an_extra_installs(clean: Path) -> None:
    """Which are those at home with torch and matplotlib, and no other."""
    ran = done([clean / "python", "-W", "error::SyntaxWarning", "-c", EVERY])
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert set(found) == {"torch", "matplotlib", "hypothesis", "sphinx"}
    assert (found["hypothesis"], found["sphinx"]) == (["exercises"], ["pages"])
    assert set(found["torch"]) <= {"memory", "nn", "parallel", "training"}
    assert set(found["matplotlib"]) <= {"draw", "experiments"}
