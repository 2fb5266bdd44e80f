"""Processes that put their entries into one manifest and count attempts in one file of progress at the same time."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fplab.experiments.figures import MANIFEST

from . import Counts

TITLE = "processes that write one manifest and one file of progress"
QUICK, FULL = 2, 20
EACH, AT_ONCE = 25, 4
WRITE = """
import sys
from pathlib import Path
from fplab.exercises import progress
from fplab.experiments.figures import merge_manifest

print(flush=True)
sys.stdin.readline()
for k in range(int(sys.argv[2])):
    merge_manifest(Path(sys.argv[1]), f"{sys.argv[3]}-{k}", {"seed": k})
    progress.remember("rne", True)
"""


def run(size: int, seed: int) -> Counts:
    """``size`` processes, a few at a time, which begin together; every entry and every attempt is kept."""
    counts = Counts()
    for first in range(0, size, AT_ONCE):
        with tempfile.TemporaryDirectory() as made:
            numbers = range(seed + first, seed + min(first + AT_ONCE, size))
            running = [
                subprocess.Popen(
                    [sys.executable, "-c", WRITE, made, str(EACH), str(number)], text=True,
                    env=os.environ | {"FPLAB_PROGRESS_DIR": made}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
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
            for one in running:
                one.communicate()
            kept = json.loads((Path(made) / MANIFEST).read_text())
            attempts = json.loads((Path(made) / "progress.json").read_text())["exercises"]["rne"]["attempts"]
            for number in numbers:
                lost = [k for k in range(EACH) if f"{number}-{k}" not in kept]
                counts.add("processes", f"lost entries {lost} of process {number}" if lost else "")
            wanted = EACH * len(numbers)
            counts.add("files of progress", f"{attempts} attempts of {wanted}" if attempts != wanted else "")
            left = [path.name for path in Path(made).glob(".part-*")]
            counts.add("folders", f"{left} left" if left else "")
    return counts
