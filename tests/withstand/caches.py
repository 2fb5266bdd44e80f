"""Processes that begin together with one empty cache of kernels, and others that find what they have left."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from . import Counts

TITLE = "processes with one empty kernel cache"
QUICK, FULL = 3, 24
AT_ONCE = 4
WANT = "[10, 13, 10.0, 7.5] 13"
# One kernel with several signatures, so that the processes meet in one index, and one that another calls.
KERNEL = """
import sys

from fplab.kernels import jit


@jit
def below(x):
    return x + x


@jit
def above(x, y):
    return below(x) + y


kinds = [(5, 0), (5, 3), (5.0, 0), (3.0, 1.5)]
turn = int(sys.argv[1]) % len(kinds)
for pair in kinds[turn:] + kinds[:turn]:
    above(*pair)
print([above(*pair) for pair in kinds], above(5, 3))
"""


def run(size: int, seed: int) -> Counts:
    """``size`` processes, a few at a time on a cache that begins empty; every answer is the one answer."""
    counts = Counts()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "raced.py").write_text(KERNEL)
        for first in range(0, size, AT_ONCE):
            cache = folder / f"cache-{first}"
            environment = os.environ | {"FPLAB_CACHE_DIR": str(cache)}
            for what in ("processes on an empty cache", "processes on what those left"):
                running = [_start(folder, environment, seed + k) for k in range(first, min(first + AT_ONCE, size))]
                for one in running:
                    out, error = one.communicate(timeout=600)
                    right = one.returncode == 0 and out.strip() == WANT
                    counts.add(what, "" if right else f"exit {one.returncode}, {out.strip()!r}, {error[-300:]!r}")
    return counts


def _start(folder: Path, environment: dict[str, str], turn: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "raced.py", str(turn)], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
