"""Work that is killed at any moment: what it left is whole, and the same work goes on from there to the same bits.

The victims are forked by a process that has imported everything, so that a kill takes milliseconds.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from . import Counts, loaded

TITLE = "runs, recordings, manifests, progress, proofs and compilations that are killed"
QUICK, FULL = 12, 500
ROOT = Path(__file__).parent.parent.parent


def run(size: int, seed: int) -> Counts:
    """``size`` kills, of each kind of work in turn, at moments drawn from ``seed``."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.withstand.kills", str(size), str(seed)], cwd=ROOT, capture_output=True, text=True
    )
    counts = Counts()
    for line in done.stdout.splitlines():
        counts.add(*json.loads(line))
    if sum(counts.tried.values()) != size:
        counts.faults.append(f"exit status {done.returncode}: {done.stderr[-500:]}")
    return counts


# --- the kinds of work: what the victim does, and what must be so afterwards (a sentence where it is not) ---------
Work = Callable[[Path], object]
Judge = Callable[[Path, int], str]


def fit(folder: Path) -> Any:
    from fplab.training import fit
    from fplab.training.tasks import perceptron

    task = perceptron(width=8, hidden=2, batch=16)
    return fit(task, "fp16", steps=8, every=1, checkpoint=folder / "run.npz", progress=lambda step, steps: None)


def fit_goes_on(folder: Path, acknowledged: int) -> str:
    one, whole = fit(folder), fit(folder / "another")
    same = one.losses.tobytes() == whole.losses.tobytes() and all(
        a.detach().numpy().tobytes() == b.detach().numpy().tobytes()
        for a, b in zip(one.model.parameters(), whole.model.parameters(), strict=True)
    )
    return "" if same else f"losses {one.losses.tolist()} after the kill, {whole.losses.tolist()} without"


def record_of(step: int) -> Any:
    from fplab.hardware import records

    words = np.random.Generator(np.random.Philox(step)).integers(0, 1 << 16, 20_000, np.uint16)
    case = records.RecordedCase("c", {}, {"y": words}, {"y": "fp16"})
    meta = {"kind": "cpu", "device": "a", "torch": "2", "experiment": "e", "size": "quick"}
    return records.Record(meta, (case,))


def record(folder: Path) -> None:
    from fplab.hardware import records

    for step in range(12):
        records.save(folder, record_of(step))
        acknowledge()


def record_is_whole(folder: Path, acknowledged: int) -> str:
    from fplab.hardware import records

    found = [records.pack(records.read(path)) for path in records.records_in(folder)]
    if not found and not acknowledged:
        return ""
    may = [records.pack(record_of(step)) for step in (acknowledged - 1, acknowledged) if step >= 0]
    return "" if len(found) == 1 and found[0] in may else f"{len(found)} records after {acknowledged} writes"


def manifest(folder: Path) -> None:
    from fplab.experiments.figures import merge_manifest

    for step in range(30):
        merge_manifest(folder, str(step), {"seed": step})
        acknowledge()


def manifest_has_all(folder: Path, acknowledged: int) -> str:
    from fplab.experiments.figures import merge_manifest, read_manifest

    found = sorted(map(int, read_manifest(folder)))
    merge_manifest(folder, "1000", {})  # nobody holds the lock for ever
    return "" if found in (list(range(acknowledged)), list(range(acknowledged + 1))) else f"{found}, {acknowledged}"


def progress(folder: Path) -> None:
    from fplab.exercises import progress

    for _ in range(30):
        progress.remember("rne", True)
        acknowledge()


def progress_counts_all(folder: Path, acknowledged: int) -> str:
    from fplab.exercises import progress

    found = progress.load().get("rne", {"attempts": 0})["attempts"]
    progress.remember("rne", True)
    after = progress.load()["rne"]["attempts"]
    return "" if found - acknowledged in (0, 1) and after == found + 1 else f"{found} of {acknowledged}, then {after}"


def shares() -> list[Any]:
    from tests.prove import casts

    return casts.PART.shares(True)[:1]


def proof(folder: Path) -> None:
    from tests.prove.runner import Done, State

    for step in range(30):
        state = State.load(folder / "state.json", fresh=False)
        state.add(Done(shares()[0], step + 1, 0.0))
        acknowledge()


def proof_is_remembered(folder: Path, acknowledged: int) -> str:
    from tests.prove.runner import State

    state = State.load(folder / "state.json", fresh=False)
    found = next(iter(state.finished.values()), (0, 0.0))[0]
    return "" if found - acknowledged in (0, 1) else f"{found} of {acknowledged} shares"


KERNEL = "from fplab.kernels import jit\n\n@jit\ndef made(x):\n    return x * {step} + 1\n"


def compiled(folder: Path, step: int) -> int:
    from fplab import kernels

    os.environ["FPLAB_CACHE_DIR"] = str(folder / "cache")
    kernels._cache_dir.cache_clear()
    (file := folder / f"killed{step}.py").write_text(KERNEL.format(step=step))
    return int(loaded(file).made(5))


def compilation(folder: Path) -> None:
    for step in range(4):
        compiled(folder, step)
        acknowledge()


def compilation_is_kept_or_not(folder: Path, acknowledged: int) -> str:
    found = [compiled(folder, step) for step in range(4)]
    return "" if found == [1, 6, 11, 16] else f"{found}"


KINDS: dict[str, tuple[Work, Judge]] = {
    "runs": (fit, fit_goes_on),
    "recordings": (record, record_is_whole),
    "manifests": (manifest, manifest_has_all),
    "attempts": (progress, progress_counts_all),
    "proofs": (proof, proof_is_remembered),
    "compilations": (compilation, compilation_is_kept_or_not),
}


# --- killing ----------------------------------------------------------------------------------------------------
channel = -1  # where a victim says that a step is behind it


def acknowledge() -> None:
    """One step is done, and what it wrote is there for good."""
    os.write(channel, b".")


@contextmanager
def folder_of_a_victim() -> Iterator[Path]:
    """A folder for what one victim writes, its progress too."""
    with tempfile.TemporaryDirectory() as made:
        os.environ["FPLAB_PROGRESS_DIR"] = made
        yield Path(made)


def victim(work: Work, folder: Path, delay: float | None) -> tuple[int, float]:
    """Fork a process that works, and kill it after ``delay`` seconds; its acknowledged steps, and the seconds."""
    global channel
    reading, channel = os.pipe()
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        try:
            work(folder)
        finally:
            os._exit(0)
    os.close(channel)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    seconds = time.perf_counter() - start
    with os.fdopen(reading, "rb") as file:
        return len(file.read()), seconds


def main(size: int, seed: int) -> None:
    """Kill, judge, and print a line of JSON for each kill: the kind, and what was wrong."""
    import torch

    torch.set_num_threads(1)
    rng, lasts = np.random.Generator(np.random.Philox(seed)), {}
    for name, (work, judge) in KINDS.items():  # everything is imported, and how long a whole run takes is known
        for _ in range(2):
            with folder_of_a_victim() as folder:
                acknowledged, lasts[name] = victim(work, folder, None)
                assert judge(folder, acknowledged) == "", name
    for number in range(size):
        name = list(KINDS)[number % len(KINDS)]
        work, judge = KINDS[name]
        with folder_of_a_victim() as folder:
            acknowledged, _ = victim(work, folder, float(rng.random()) * lasts[name])
            try:
                fault = judge(folder, acknowledged)
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"
        print(json.dumps([name, fault]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
