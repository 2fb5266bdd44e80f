"""The code to copy runs as it stands, with every library of it that is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fplab
from fplab import LabError, course
from fplab.parallel.launching import environment

# Imported once for all that need no torchrun: torch, and what it imports when an optimizer is made, take longer than
# they do. Each has a process of its own, which is told its file and says how it ended.
ALONE = r"""
import os, runpy, sys, traceback, warnings
import torch._dynamo
warnings.filterwarnings("error", category=UserWarning, module=r"__main__\Z")
for file in sys.argv[1:]:
    if not (child := os.fork()):
        os.dup2(os.open(f"{file}.err", os.O_WRONLY | os.O_CREAT), 2)
        try:
            runpy.run_path(file, run_name="__main__")
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def ran(*words: str | Path) -> str:
    """What Python prints that runs these words; snippets meet on the loopback interface."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=600,
                          env=environment() | {"MASTER_ADDR": "127.0.0.1"} | dict(os.environ), check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What those that need no torchrun ended with, by name: nothing where all is well."""
    some = [one for one in course.snippets().values() if not (one.missing or one.torchrun)]
    folder = tmp_path_factory.mktemp("snippets")
    files = [folder / f"{one.name}.py" for one in some]
    for file, one in zip(files, some, strict=True):
        file.write_text(one.code, encoding="utf-8")
    ends = ran("-c", ALONE, *files).split()
    errors = (Path(f"{file}.err").read_text(encoding="utf-8") for file in files)
    return {one.name: "" if end == "0" else f"{end}: {error}"
            for one, end, error in zip(some, ends, errors, strict=True)}  # fmt: skip


@pytest.mark.parametrize("name", course.snippets())
def test_it_runs(name, tmp_path, alone):
    one = course.snippet(name)
    if one.missing:
        pytest.skip(f"{one.missing[0]} is not installed")
    if not one.torchrun:
        assert not alone[name]
        return
    file = tmp_path / "snippet.py"
    file.write_text(one.code, encoding="utf-8")
    start = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
    ran("-W", "error::UserWarning:__main__", *start, file)


def test_what_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert str(course.snippet("apex")).endswith("apex is not installed here: this code is shown, and was not run here.")
    assert "was not run here" in course.snippet("fsdp")._repr_html_()


def test_what_is_installed_says_that_the_tests_run_it():
    assert str(course.snippet("amp_bf16")).endswith("The tests run this code as it stands.")
    assert "torchrun --nproc-per-node 2 FILE" in course.snippet("fsdp")._repr_html_()
    assert all(len(line) <= 120 for one in course.snippets().values() for line in one.code.splitlines())
    with pytest.raises(LabError, match=r"unknown snippet 'amp_bf'.*Did you mean 'amp_bf16'"):
        fplab.course.snippet("amp_bf")
