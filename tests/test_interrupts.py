"""An interrupt is never lost: neither while LLVM works nor while a process is started."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from fplab import interrupts, processes


def interrupt(*processes: int) -> None:
    for process in processes or (os.getpid(),):
        os.kill(process, signal.SIGINT)


@pytest.mark.parametrize("block", [interrupts.held, processes._quiet_children])
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
