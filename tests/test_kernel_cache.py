"""Compiled closures kept on disk: what one process compiles and another loads is never mistaken for its sibling."""

from __future__ import annotations

import os
import subprocess
import sys

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


def climb(folder, rung: int) -> str:
    """A rung of the ladder in a process of its own, which finds the lower ones compiled by earlier processes."""
    environment = os.environ | {"PYTHONPATH": str(folder), "FPLAB_CACHE_DIR": str(folder / "cache")}
    code = f"import ladder; print(ladder.LADDER[{rung}](5))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=600, check=True
    )
    return done.stdout.strip()


def test_a_closure_from_the_cache_is_not_taken_for_the_one_that_calls_it(tmp_path):
    """By numba's names alone, the second rung that is compiled in a later process would call itself for ever."""
    (tmp_path / "ladder.py").write_text(LADDER)
    assert [climb(tmp_path, rung) for rung in (1, 2, 3, 5)] == ["6", "7", "8", "10"]
    assert list((tmp_path / "cache").rglob("*.nbc"))  # they were kept, so the later processes did load them


def test_every_closure_of_the_kernels_has_a_name_of_its_own():
    from fplab.kernels import tensorcore_fast

    for family in (tensorcore_fast.TO_FLOAT, tensorcore_fast.TO_HALF):
        names = [kernel.py_func.__qualname__ for kernel in family.values()]
        assert len(set(names)) == len(names) == 4
    assert not {k.py_func.__qualname__ for k in tensorcore_fast.TO_FLOAT.values()} & {
        k.py_func.__qualname__ for k in tensorcore_fast.TO_HALF.values()
    }
