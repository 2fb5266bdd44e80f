"""Threads that a fork does not carry along."""

import os
import subprocess
import sys
import time

import pytest

from fplab import set_num_threads
from fplab.threads import SMALLEST_SHARE, split

FORKED = """
import os, warnings
import numpy as np
import fplab

warnings.simplefilter("ignore")  # Python's own: of a process with threads that forks
fplab.set_num_threads(2)
x = np.linspace(-1, 1, 1 << 17, dtype=np.float32)
before = fplab.quantize(x, "fp16")
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(fplab.quantize(x, "fp16"), before) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), np.array_equal(fplab.quantize(x, "fp16"), before))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_that_is_forked_after_a_threaded_call_computes() -> None:
    """As a DataLoader's worker is. It waited forever for threads that only its parent has."""
    running = subprocess.Popen(
        [sys.executable, "-c", FORKED], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, _ = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, 9)
    assert out == "0 True\n"


@pytest.mark.parametrize("bad", [0, 1])
def test_a_share_that_fails_is_waited_for_and_raised(bad: int) -> None:
    done: list[int] = []

    def work(start: int, stop: int) -> None:
        number = start // SMALLEST_SHARE
        if number == bad:
            raise ValueError(number)
        time.sleep(0.2)
        done.append(number)

    set_num_threads(2)
    try:
        with pytest.raises(ValueError, match=str(bad)):
            split(work, 2 * SMALLEST_SHARE)
    finally:
        set_num_threads(None)
    assert done == [1 - bad]
