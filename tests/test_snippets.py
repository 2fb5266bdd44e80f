"""The code to copy runs as it stands, with every library of it that is installed."""

import os
import subprocess
import sys

import pytest

import fplab
from fplab import LabError, course
from fplab.parallel.launching import environment


@pytest.mark.parametrize("name", course.snippets())
def test_it_runs(name, tmp_path):
    one = course.snippet(name)
    if one.missing:
        pytest.skip(f"{one.missing[0]} is not installed")
    file = tmp_path / "snippet.py"
    file.write_text(one.code, encoding="utf-8")
    start = [sys.executable, "-W", "error::UserWarning:__main__"]
    if one.torchrun:
        start += ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
    done = subprocess.run([*start, str(file)], capture_output=True, text=True, timeout=600,
                          env=environment() | {"MASTER_ADDR": "127.0.0.1"} | dict(os.environ))  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


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
