"""Processes that write files of their own, put entries into one manifest and count attempts in one file of progress.

They do so at the same time in one folder, every other one with process numbers of its own, as in a container.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fplab.experiments.figures import MANIFEST

from . import Counts, apart

TITLE = "processes, some with numbers of their own, that write into one folder"
QUICK, FULL = 2, 20
EACH, AT_ONCE = 25, 4
WRITE = """
import sys
from pathlib import Path
from fplab.exercises import progress
from fplab.experiments.figures import merge_manifest
from fplab.storage import write_text

print(flush=True)
sys.stdin.readline()
for k in range(int(sys.argv[2])):
    merge_manifest(Path(sys.argv[1]), f"{sys.argv[3]}-{k}", {"seed": k})
    progress.remember("rne", True)
    write_text(Path(sys.argv[1]) / sys.argv[3], f"{k}" * 100_000)
"""


def run(size: int, seed: int) -> Counts:
    """``size`` processes, a few at a time, which begin together; every entry and every attempt is kept."""
    counts = Counts()
    for first in range(0, size, AT_ONCE):
        with tempfile.TemporaryDirectory() as made:
            numbers = range(seed + first, seed + min(first + AT_ONCE, size))
            running = [
                subprocess.Popen(
                    [*(apart() if number % 2 else ()), sys.executable, "-c", WRITE, made, str(EACH), str(number)],
                    env=os.environ | {"FPLAB_PROGRESS_DIR": made}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, text=True,
                )
                for number in numbers
            ]  # fmt: skip
            for one in running:
                assert one.stdout is not None
                one.stdout.readline()  # it is ready
            for one in running:
                assert one.stdin is not None
                one.stdin.write("go\n")
                one.stdin.flush()
            said = [one.communicate()[1] for one in running]
            kept = json.loads((Path(made) / MANIFEST).read_text())
            attempts = json.loads((Path(made) / "progress.json").read_text())["exercises"]["rne"]["attempts"]
            for number, error in zip(numbers, said, strict=True):
                kind = "processes with numbers of their own" if number % 2 and apart() else "processes"
                lost = [k for k in range(EACH) if f"{number}-{k}" not in kept]
                counts.add(kind, error[-300:] or (f"lost entries {lost} of process {number}" if lost else ""))
                own = Path(made) / str(number)
                whole = own.exists() and own.read_text() == f"{EACH - 1}" * 100_000
                counts.add("files of one process", "" if whole else f"that of process {number} is another")
            wanted = EACH * len(numbers)
            counts.add("files of progress", f"{attempts} attempts of {wanted}" if attempts != wanted else "")
            left = [path.name for path in Path(made).glob(".part-*")]
            counts.add("folders", f"{left} left" if left else "")
    return counts
