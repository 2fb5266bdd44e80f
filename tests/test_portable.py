"""Nothing assumes Linux: what only POSIX has is missing here, paths are awkward, and processes begin with "spawn"."""

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "fplab"
ABSENT = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")  # modules that Windows has none of

# Without them, and without os.fork and the rest: the libraries are loaded before, since they know what system it is.
WINDOWS = f"""
import importlib, multiprocessing, os, pkgutil, signal, subprocess, sys, tempfile, types, urllib.request, webbrowser
sys.modules["rfc3987_syntax"] = None  # as in conftest
import hypothesis, ipywidgets, matplotlib.pyplot, nbclient, numba, psutil, torch, torch.utils.checkpoint, tqdm
numba.njit(lambda x: x)(1)
subprocess.signal = types.SimpleNamespace(**vars(signal))
for name in {ABSENT!r}:
    sys.modules[name] = None
for name in ("fork", "forkpty", "getegid", "geteuid", "getgid", "getpgid", "getuid", "killpg", "register_at_fork",
             "sched_getaffinity", "setsid"):
    delattr(os, name)
for name in ("SIGKILL", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGPIPE", "alarm", "setitimer"):
    delattr(signal, name)
"""
WORK = """
import fplab
from pathlib import Path
for found in pkgutil.walk_packages(fplab.__path__, "fplab."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
from fplab import cli, copying, lab, parallel, storage, threads
here = Path.cwd()
assert float(fplab.add(2048, 1, "fp16")) == 2048.0 and threads.num_threads() >= 1
storage.write_text(here / "whole.txt", "whole")
with storage.alone(here):
    pass
assert copying.copy_course(here / "course") == []
assert lab.command(here, 8888)
assert cli.main(["exercise", "check", "answers.py", "rne"]) == 0
assert cli.main(["memory", "--preset", "gpt2", "--out", "bars.svg"]) == 0
print(parallel.launch("ddp", 2, steps=1)["ddp"].strategy)
"""


@pytest.fixture
def awkward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, with the kernels' cache and the progress in the exercises in it, whose name is awkward."""
    folder = tmp_path / "my lab é 数 'q' [1]"
    folder.mkdir()
    (folder / "answers.py").write_text("rne = lambda x, n: round(x / 2**n)\n", encoding="utf-8")
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(folder / "progress"))
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))
    return folder


def ran(code: str, folder: Path) -> str:
    (folder / "run.py").write_text(code, encoding="utf-8")
    words = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", folder / "run.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_works_without_what_only_posix_has_and_in_an_awkward_folder(awkward: Path, monkeypatch) -> None:
    monkeypatch.setenv("FPLAB_CACHE_DIR", str(awkward / "cache"))
    assert ran(WINDOWS + WORK, awkward).splitlines()[-1] == "ddp"
    assert (awkward / "whole.txt").read_text(encoding="utf-8") == "whole"
    assert (awkward / "bars.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert list((awkward / "cache").rglob("*.nbc")), "kernels are kept there"


SPAWNED = """
import multiprocessing, sys, threading
import fplab

def work(format):
    return float(fplab.sum([0.1] * 4096, format)), fplab.inspect("0.1", format).rows[0].hex

if __name__ == "__main__":
    here = [work(format) for format in ("fp16", "bf16")]
    fplab.set_num_threads(2)
    for how in ("spawn", *{"forkserver"} & set(multiprocessing.get_all_start_methods())):
        with multiprocessing.get_context(how).Pool(2) as pool:
            assert pool.map(work, ("fp16", "bf16")) == here, how
    print(here)
"""


def test_processes_that_are_spawned_give_the_same_bits(awkward: Path) -> None:
    assert ran(SPAWNED, awkward) == "[(256.0, '0x2e66'), (32.0, '0x3dcd')]\n"
