"""What a forge and the package indexes read: each file by its own schema or linter, and one version everywhere."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fplab import __version__

SOURCE = Path(__file__).resolve().parent.parent
FORGE = SOURCE / ".github"
SCHEMAS = {
    "github-workflows": sorted(FORGE.glob("workflows/*.yml")),
    "github-issue-forms": sorted(FORGE.glob("ISSUE_TEMPLATE/[!c]*.yml")),
    "github-issue-config": [FORGE / "ISSUE_TEMPLATE/config.yml"],
    "dependabot": [FORGE / "dependabot.yml"],
    "citation-file-format": [SOURCE / "CITATION.cff"],
}
pytestmark = pytest.mark.skipif(not FORGE.is_dir(), reason="the forge's files are not beside these tests")


def run(*words: str | Path, **environment: str) -> str:
    """What a module of this environment prints; it must end well."""
    command = [sys.executable, "-m", *map(str, words)]
    ended = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, env={**os.environ, **environment})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_forges_files_have_their_schemas(schema: str) -> None:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed (it is in the test extra)")
    assert SCHEMAS[schema]
    run("check_jsonschema", "--builtin-schema", f"vendor.{schema}", *SCHEMAS[schema])


def test_workflows_give_away_no_rights() -> None:
    zizmor = Path(sys.executable).with_name("zizmor")
    if not zizmor.exists():
        pytest.skip("zizmor is not installed (it is in the test extra)")
    words = [zizmor, "--offline", "--quiet", "--config", FORGE / "zizmor.yml", FORGE]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def loaded(path: Path) -> Any:
    """A file of YAML."""
    return pytest.importorskip("yaml", reason="PyYAML is not installed").safe_load(path.read_text(encoding="utf-8"))


def test_workflows_run_what_there_is() -> None:
    """Every make target, every option of the suite, and the Pythons and torches that the project names."""
    makefile, project = (SOURCE / "Makefile").read_text(), (SOURCE / "pyproject.toml").read_text()
    text = "".join(path.read_text() for path in SCHEMAS["github-workflows"])
    for target in re.findall(r"\bmake ([a-z-]+)", text):
        assert target == "nightly-" or re.search(rf"^{target}:", makefile, re.MULTILINE), target
    jobs = loaded(FORGE / "workflows/ci.yml")["jobs"]
    pythons = {*jobs["short"]["strategy"]["matrix"]["python"]}
    assert pythons == set(re.findall(r"Python :: (3\.\d+)", project))
    *torches, recorder = jobs["torch"]["strategy"]["matrix"]["torch"]
    assert f"TORCHES ?= {' '.join(torches)}\n" in makefile
    assert f"\nnightly-{recorder}:" in makefile


def test_hooks_before_a_commit_are_what_lint_runs() -> None:
    hooks = [hook["entry"] for repo in loaded(SOURCE / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    lint = (SOURCE / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    told = re.findall(r"\$\(BIN\)/(.*)", lint)
    assert [entry.removeprefix(".venv/bin/") for entry in hooks[:3]] == [line.removesuffix(" .") for line in told]


def test_one_version_and_one_list_of_requirements() -> None:
    import tomllib

    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    recipe = loaded(FORGE / "conda/recipe.yaml")
    assert loaded(SOURCE / "CITATION.cff")["version"] == recipe["context"]["version"] == __version__
    assert f"## {__version__}" in (SOURCE / "CHANGELOG.md").read_text(encoding="utf-8")
    needed = [
        f"python {project['requires-python']}",
        *(re.sub("(?=[<>])", " ", x, count=1) for x in project["dependencies"]),
    ]
    assert recipe["requirements"]["run"] == needed
    assert recipe["build"]["python"]["entry_points"] == [f"fplab = {project['scripts']['fplab']}"]


def test_builds_are_the_same_to_the_byte_and_fit_for_an_index(tmp_path: Path) -> None:
    for module in ("hatchling", "twine"):
        pytest.importorskip(module, reason=f"{module} is not installed (it is in the test extra)")
    digests = []
    for name in ("first", "second"):
        run("hatchling", "build", "-d", tmp_path / name, SOURCE_DATE_EPOCH="1700000000")
        files = sorted((tmp_path / name).iterdir())
        digests.append([(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files])
    assert digests[0] == digests[1]
    assert [name for name, _ in digests[0]] == [f"fplab-{__version__}-py3-none-any.whl", f"fplab-{__version__}.tar.gz"]
    run("twine", "check", "--strict", *(tmp_path / "first").iterdir())
