"""An interrupt is never lost, neither while LLVM works nor while a process is started, and shows no traceback."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from fresh import python

from fplab import interrupts, processes


def interrupt(*processes: int) -> None:
    for process in processes or (os.getpid(),):
        os.kill(process, signal.SIGINT)


@pytest.mark.parametrize("block", [interrupts.deferred, processes._quiet_children])
def test_an_interrupt_is_heard_after_its_block(block: Callable[[], AbstractContextManager[None]]) -> None:
    before, done = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with block():
            interrupt()
            done.append("the rest of the block")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_process_hears_no_interrupt_but_its_parent_does() -> None:
    """Ctrl-C at a terminal goes to both."""
    running = processes.in_processes(both, [os.getpid()], 1)
    with pytest.raises(KeyboardInterrupt):
        next(running)


def both(parent: int) -> None:
    interrupt(os.getpid(), parent)
    time.sleep(10)


def second_dies(item: int) -> int:
    time.sleep(0 if item else 4)
    os._exit(9) if item else None
    return item


def test_the_death_of_a_process_that_starts_late_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool looks at its processes before the second one is there."""
    start = ProcessPoolExecutor._adjust_process_count  # type: ignore[attr-defined]
    monkeypatch.setattr(ProcessPoolExecutor, "_adjust_process_count", lambda pool: (time.sleep(0.3), start(pool)))
    ended = list(processes.in_processes(second_dies, [0, 1], 2))
    assert [type(future.exception()) for _, future in ended] == [BrokenProcessPool] * 2


# Read by Python as it starts: an interrupt where a module is imported, or an error that is made of it there.
CUSTOM = """
import os, signal, sys

def hook(event, given):
    if event == "import" and given[0] == os.environ.get("INTERRUPTED"):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            if given[0] != "numpy":
                raise
            raise ImportError("the C extensions of it failed") from None

sys.addaudithook(hook)
"""


@pytest.mark.parametrize("module", ["fplab.numeric", "fplab.version", "fplab.errors", "argparse", "fplab.language",
                                    "fplab.experiments", "numpy"])  # fmt: skip
@pytest.mark.parametrize("how", ["-m", "script"])
def test_an_interrupt_of_the_command_that_starts_is_one_line(module: str, how: str, tmp_path: Path) -> None:
    """``argparse`` and numpy are imported in the midst of others."""
    (tmp_path / "sitecustomize.py").write_text(CUSTOM)
    (script := tmp_path / "fplab").write_text("import sys\nfrom fplab.cli import main\nsys.exit(main())\n")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parent.parent)])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "INTERRUPTED": module}
    command = [sys.executable, *(("-m", "fplab") if how == "-m" else (str(script),)), "list"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "fplab: interrupted; files already written are whole.\n")
    assert not done.stdout


def test_importing_the_package_leaves_interrupts_alone() -> None:
    code = (
        "import signal, sys; sys.argv = ['/bin/fplab']; import fplab; print(signal.getsignal(signal.SIGINT).__name__)"
    )
    assert python(code) == "default_int_handler\n"
