"""Compiled code kept on disk: what one process compiles and another loads is never mistaken for its sibling."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fplab import machine_code
from fplab.errors import LabError
from fplab.hardware import nvrtc
from fplab.nn import device
from fplab.nn.device import running

LADDER = """
from fplab.kernels import jit


def rung(below):
    if below is None:

        @jit
        def step(x):
            return x

        return step

    @jit
    def step(x):
        return below(x) + 1

    return step


LADDER = [rung(None)]
for _ in range(5):
    LADDER.append(rung(LADDER[-1]))
"""


def python(folder, code: str) -> tuple[str, str]:
    """What code prints in a process of its own that has the ladder and a cache in ``folder``, and what it complains."""
    (folder / "ladder.py").write_text(LADDER)
    path = os.pathsep.join([str(folder), str(Path(__file__).parent.parent)])
    environment = os.environ | {"PYTHONPATH": path, "FPLAB_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.strip(), done.stderr


def climb(folder, rung: int) -> str:
    """A rung of the ladder in a process of its own, which finds the lower ones compiled by earlier processes."""
    return python(folder, f"import ladder; print(ladder.LADDER[{rung}](5))")[0]


def kept(folder) -> dict[Path, bytes]:
    """The machine code that lies in a cache."""
    return {path: path.read_bytes() for path in (folder / "cache").rglob("*.nbc")}


def test_a_closure_from_the_cache_is_not_taken_for_the_one_that_calls_it(tmp_path):
    """By numba's names alone, the second rung that is compiled in a later process would call itself for ever."""
    assert [climb(tmp_path, rung) for rung in (1, 2, 3, 5)] == ["6", "7", "8", "10"]
    assert kept(tmp_path)  # they were kept, so the later processes did load them


def test_machine_code_is_a_cpus_own(tmp_path, monkeypatch):
    """Named to numba, another CPU compiles anew, and finds its own code again; the first one's stays what it was."""
    assert climb(tmp_path, 1) == "6"
    own = kept(tmp_path)
    for variables in ({"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse4.2"}):
        before = kept(tmp_path)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert climb(tmp_path, 1) == "6"
        both = kept(tmp_path)
        assert len(both) == len(before) + len(own)
        assert {path: both[path] for path in before} == before
        assert climb(tmp_path, 1) == "6"
        assert kept(tmp_path) == both


def test_every_closure_of_the_kernels_has_a_name_of_its_own():
    from fplab.kernels import tensorcore_fast

    for family in (tensorcore_fast.TO_FLOAT, tensorcore_fast.TO_HALF):
        names = [kernel.py_func.__qualname__ for kernel in family.values()]
        assert len(set(names)) == len(names) == 4
    assert not {k.py_func.__qualname__ for k in tensorcore_fast.TO_FLOAT.values()} & {
        k.py_func.__qualname__ for k in tensorcore_fast.TO_HALF.values()
    }


NAMES = """
import pkgutil
from importlib import import_module
from fplab import kernels

modules = [import_module(f"fplab.kernels.{found.name}") for found in pkgutil.iter_modules(kernels.__path__)]
made = [value for module in modules for value in vars(module).values()]
made += [part for value in made if isinstance(value, dict) for part in value.values()]
print(*sorted({part._cache.key[0] for part in made if hasattr(part, "_cache")}), sep="\\n")
"""


def test_every_kernel_has_the_same_name_in_the_next_process(tmp_path):
    """By another one it is not found in the cache, and compiled again in every process."""
    names, again = (python(tmp_path, NAMES)[0].splitlines() for _ in range(2))
    assert names == again
    assert len(names) > 100


def test_damaged_machine_code_is_compiled_again_and_a_word_is_said_once(tmp_path):
    assert climb(tmp_path, 2) == "7"
    whole = kept(tmp_path)
    empty, cut, flipped = whole
    empty.write_bytes(b"")
    cut.write_bytes(whole[cut][:-1])
    flipped.write_bytes(whole[flipped][:-1] + bytes([whole[flipped][-1] ^ 1]))
    out, complaint = python(tmp_path, "import ladder; print(ladder.LADDER[2](5))")
    assert (out, complaint.count("is damaged; it is recompiled")) == ("7", 1)
    assert {path: len(data) for path, data in kept(tmp_path).items()} == {path: len(d) for path, d in whole.items()}
    assert python(tmp_path, "import ladder; print(ladder.LADDER[2](5))") == ("7", "")


def test_a_whole_file_of_another_kernel_is_not_run(tmp_path):
    """Machine code for other types, or that other functions call, would end the process at best."""
    assert climb(tmp_path, 2) == "7"
    whole = kept(tmp_path)
    paths = sorted(whole, key=lambda path: path.name)
    for path, other in zip(paths, paths[1:] + paths[:1], strict=True):
        path.write_bytes(whole[other])
    out, complaint = python(tmp_path, "import ladder; print(ladder.LADDER[2](5))")
    assert (out, complaint.count("is damaged; it is recompiled")) == ("7", 1)
    assert python(tmp_path, "import ladder; print(ladder.LADDER[2](5))") == ("7", "")


def test_what_is_kept_is_kept_for_one_key(tmp_path):
    """Each part of a key matters, and where one ends: neither is another's file under this one's name."""
    path = tmp_path / "kept.bin"
    machine_code.write(path, ("kernel", 1), b"code")
    assert machine_code.read(path, ("kernel", 1)) == b"code"
    for other in (("kernel", 2), ("kernel",), ("kernel", 1, ""), ("kerne", "l", 1), ()):
        assert machine_code.read(path, other) is None


def test_machine_code_is_the_versions_own_that_made_it(tmp_path):
    """Of numba and of what it compiles with: another one compiles anew, and leaves what is there."""
    assert climb(tmp_path, 1) == "6"
    own = kept(tmp_path)
    for library in ("numba", "llvmlite", "numpy"):
        before = kept(tmp_path)
        patched = f"import numba, {library}; {library}.__version__ = '2.99.0'; "
        assert python(tmp_path, patched + "import ladder; print(ladder.LADDER[1](5))") == ("6", "")
        after = kept(tmp_path)
        assert len(after) == len(before) + len(own), library
        assert {path: after[path] for path in before} == before


def test_a_full_disk_costs_the_cache_and_not_the_call(tmp_path):
    pytest.importorskip("resource")
    full = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); sys.dont_write_bytecode = 1; "
    )
    out, complaint = python(tmp_path, full + "import ladder; print(ladder.LADDER[2](5))")
    assert out == "7"
    assert complaint.count("fplab: compiled kernels are not kept") == 1
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has other rights")
def test_a_cache_that_others_can_write_is_not_used(tmp_path):
    """A planted file would run: here the one that is there would end the process."""
    planted = "import fplab.kernels; fplab.kernels.dumps = lambda code: b'cos\\n_exit\\n(I7\\ntR.'; "
    assert python(tmp_path, planted + "import ladder; print(ladder.LADDER[1](5))") == ("6", "")
    with pytest.raises(subprocess.CalledProcessError, match="exit status 7"):
        climb(tmp_path, 1)
    before = kept(tmp_path)
    (folder,) = {path.parent for path in before}
    for writable in (folder, folder.parent):
        writable.chmod(0o775)
        out, complaint = python(tmp_path, "import ladder; print(ladder.LADDER[1](5))")
        assert out == "6"
        said = f"{writable} has to belong to you and to be writable by nobody else (chmod go-w)"
        assert complaint.count(said) == complaint.count("fplab:") == 1
        assert kept(tmp_path) == before
        writable.chmod(0o755)


INTERRUPTED = """
import os, signal
from numba.core.codegen import JITCodeLibrary
from fplab.experiments import runner

compiled, interrupts = JITCodeLibrary._object_compiled_hook, [signal.SIGINT]

def interrupt(library, *given):
    if interrupts and "rung" in given[0].name:
        os.kill(os.getpid(), interrupts.pop())
    compiled(*given)

JITCodeLibrary._object_compiled_hook = classmethod(interrupt)

import ladder

class Experiment:
    budget, quick, claims, title, question = 1.0, None, (), None, None
    run = staticmethod(lambda params, tick: {"x": ladder.LADDER[3](5)})

runner.load, runner.environment.warm_up = lambda name: Experiment, lambda: None
try:
    print(runner.run_one("interrupted", full=False, folder=None, gpu=None))
except KeyboardInterrupt:
    print("interrupted", ladder.LADDER[3](5), ladder.LADDER[4](5))
"""


def test_an_interrupt_while_llvm_works_is_an_interrupt_and_the_next_call_works(tmp_path):
    """It was lost in a callback of LLVM's, and became a RuntimeError: a failing row of the experiment that ran."""
    assert python(tmp_path, INTERRUPTED)[0] == "interrupted 8 9"


SOURCE = 'extern "C" __global__ void double_it(float *x) { x[threadIdx.x] *= %s; }'


def test_what_nvrtc_compiled_is_kept_for_the_same_source_options_and_library(tmp_path, monkeypatch):
    try:
        compiler = nvrtc.load(13)
    except LabError as error:
        pytest.skip(f"nothing is compiled here: {error}")
    monkeypatch.setenv("FPLAB_CACHE_DIR", str(tmp_path))
    plain, sources = nvrtc.NVRTC._compiled, []
    monkeypatch.setattr(nvrtc.NVRTC, "_compiled", lambda *given: sources.append(given[1:]) or plain(*given))
    first = compiler.compile(SOURCE % 2, "sm_90", options=("--ptxas-options=-v",))
    assert (first.cubin[:4], "double_it" in first.ptx, "registers" in first.log) == (b"\x7fELF", True, True)
    assert compiler.compile(SOURCE % 2, "sm_90", options=("--ptxas-options=-v",)) == first
    assert len(sources) == 1
    others = {compiler.compile(SOURCE % 3, "sm_90"), compiler.compile(SOURCE % 2, "sm_80"),
              compiler.compile(SOURCE % 2, "sm_90")}  # fmt: skip
    assert first not in others
    assert len(others) == 3
    library = tmp_path / "libnvrtc.so"
    library.symlink_to(compiler.path)
    other = nvrtc.NVRTC(str(library))
    assert other.compile(SOURCE % 2, "sm_90") in others
    assert len(sources) == 4
    monkeypatch.setattr(nvrtc.NVRTC, "version", (13, 99))
    assert other.compile(SOURCE % 2, "sm_90") in others
    assert len(sources) == 5


@pytest.mark.skipif(not any(map(shutil.which, running.COMPILERS)), reason="there is no C++ compiler here")
def test_a_library_that_is_damaged_or_that_others_can_write_is_compiled_again(tmp_path, monkeypatch, capsys):
    """And a whole one is loaded, with other options or another compiler a library of their own."""
    monkeypatch.setenv("FPLAB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(machine_code, "_said", set())
    plain, compiled = subprocess.run, []

    def run(command, **given):
        if "-o" in command:  # and not what a library asks the system about itself
            compiled.append(command)
        return plain(command, **given)

    monkeypatch.setattr(subprocess, "run", run)

    def rounded() -> int:
        """As at a process's first launch of a kernel; how many compilations it took."""
        before = len(compiled)
        running.launcher.cache_clear()
        assert float(device.quantize(torch.tensor(1 + 2**-9), "bf16")) == 1
        return len(compiled) - before

    assert [rounded(), rounded()] == [1, 0]
    (path,) = (tmp_path / "cache" / "cxx").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert [rounded(), rounded()] == [1, 0]
    assert capsys.readouterr().err.count("is damaged; it is recompiled") == 1
    with monkeypatch.context() as patch:
        patch.setattr(running, "OPTIONS", (*running.OPTIONS, "-O1"))
        assert [rounded(), rounded()] == [1, 0]
        patch.setattr(running, "_version", lambda compiler: "another")
        assert [rounded(), rounded()] == [1, 0]
    if os.name != "nt":
        path.parent.chmod(0o777)
        assert [rounded(), rounded()] == [1, 1]
        assert "has to belong to you" in capsys.readouterr().err
    running.launcher.cache_clear()
