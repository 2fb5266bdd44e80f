"""Files of every kind with bytes changed, cut off or put in, or another's whole: refused in words, healed, or read as
what they were.
"""

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fplab import kernels
from fplab.errors import LabError
from fplab.exercises import progress
from fplab.experiments import figures, uptodate
from fplab.hardware import records
from fplab.training import checkpoints, data, sweeps

from . import Counts, loaded

TITLE = "records, checkpoints, caches, progress, manifests, sweeps, notes, data with damaged bytes"
QUICK, FULL = 80, 5000
Look = Callable[[], Any]  # what a reader gets of a file; it may raise LabError


def run(size: int, seed: int) -> Counts:
    """``size`` damaged files, of each kind in turn; what differs from the whole file's reading is a fault."""
    counts, rng = Counts(), np.random.Generator(np.random.Philox(seed))
    with tempfile.TemporaryDirectory() as made, _surroundings(Path(made)), contextlib.redirect_stderr(io.StringIO()):
        kinds = {name: make(Path(made)) for name, make in KINDS.items()}
        for number in range(size):
            name = list(kinds)[number % len(kinds)]
            path, look, exact = kinds[name]
            whole, want = path.read_bytes(), look()
            others = [p.read_bytes() for p in sorted(path.parent.glob(f"*{path.suffix}")) if p != path]
            damaged = damage(whole, others, rng)
            path.write_bytes(damaged)
            try:
                got = look()
                fault = f"{damaged!r:.300} gives {got!r:.200}" if exact and got != want else ""
            except LabError:
                fault = ""
            except Exception as error:
                fault = f"{damaged!r:.300} raises {type(error).__name__}: {error}"
            counts.add(name, fault)
            path.write_bytes(whole)
    return counts


def damage(whole: bytes, others: list[bytes], rng: np.random.Generator) -> bytes:
    """A file with a bit flipped, a stretch overwritten, an end cut off, something put in, or another's bytes."""
    at, length = int(rng.integers(len(whole))), int(rng.integers(1, 64))
    noise = rng.integers(0, 256, length, np.uint8).tobytes()
    return [whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :],
            whole[:at] + noise + whole[at + length :],
            whole[:at], whole[:at] + noise + whole[at:],
            whole[:at] + bytes(length) + whole[at + length :],
            others[int(rng.integers(len(others)))] if others else b""][int(rng.integers(6))]  # fmt: skip


@contextlib.contextmanager
def _surroundings(folder: Path) -> Iterator[None]:
    """Progress, the cache of kernels and the package's data in a folder, and as they were afterwards."""
    before, home = {name: os.environ.get(name) for name in ("FPLAB_PROGRESS_DIR", "FPLAB_CACHE_DIR")}, data.FOLDER
    os.environ |= {"FPLAB_PROGRESS_DIR": str(folder / "progress"), "FPLAB_CACHE_DIR": str(folder / "cache")}
    kernels._cache_dir.cache_clear()
    try:
        yield
    finally:
        data.FOLDER = home
        kernels._cache_dir.cache_clear()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


# --- the kinds: a file, how it is read, and whether every reading must be that of the whole file -----------------
def record(folder: Path) -> tuple[Path, Look, bool]:
    path = folder / "record.npz"
    case = records.RecordedCase("c", {"x": np.arange(200, dtype=np.uint16)}, {"y": np.ones(9, np.uint8)}, {"y": "e4m3"})
    meta = {"kind": "cpu", "device": "a", "torch": "2", "experiment": "e", "size": "quick"}
    records.write(path, records.Record(meta, (case,)))
    return path, lambda: records.pack(records.read(path)), True


def checkpoint(folder: Path) -> tuple[Path, Look, bool]:
    path = folder / "run.npz"
    state = {"w": torch.arange(99.0), "b": np.arange(50), "steps": [1, 2.5, None, "text"], 3: (True, {})}
    checkpoints.save(path, {"seed": 1}, state)

    def look() -> object:
        found = checkpoints.load(path, {"seed": 1})
        return [found["w"].tolist(), found["b"].tolist(), found["steps"], found[3]]

    return path, look, True


def digits(folder: Path) -> tuple[Path, Look, bool]:
    path = folder / "digits.npz"
    path.write_bytes((data.FOLDER / "digits.npz").read_bytes())
    data.FOLDER = folder
    return path, lambda: [array.tobytes() for array in data.digits("all")], True


def manifest(folder: Path) -> tuple[Path, Look, bool]:
    """A text may be damaged into another text: it has to be read or refused, no more."""
    path = figures.merge_manifest(folder, "one", {"seed": 1, "arrays": {"x": "0123456789abcdef"}})
    return path, lambda: figures.read_manifest(folder), False


def tried(folder: Path) -> tuple[Path, Look, bool]:
    """One more attempt is counted, and what was lost of the others lies in a copy."""
    for name in ("rne", "absorbed", "rne"):
        progress.remember(name, True)
    path = progress.path()

    def look() -> object:
        held, kept = path.read_bytes(), progress.load()
        assert progress.remember("sorted", False) is None
        assert set(progress.load()) == {*kept, "sorted"}
        for copy in path.parent.glob("*.damaged*"):
            assert copy.read_bytes() == held
            copy.unlink()
            return None
        assert json.loads(held) == {"exercises": kept}
        return None

    return path, look, False


def result(folder: Path) -> tuple[Path, Look, bool]:
    cell = sweeps.Cell("digits_mlp", "fp32", 0, 1, None)
    cell.compute(folder, 1)
    return cell.file(folder), lambda: cell.result(folder), True


def drawn(folder: Path) -> tuple[Path, Look, bool]:
    """What is damaged is drawn anew; nothing else is taken for a picture of it."""
    (picture := folder / "one.svg").write_text("<svg/>")
    uptodate.note(folder, "one", "this", [picture])

    def look() -> object:
        kept = uptodate.kept(folder, "one", "this")
        assert kept in (None, [], [picture])
        return kept

    return folder / ".one.drawn", look, False


KERNEL = """
from fplab.kernels import jit

@jit
def below(x):
    return x * 3

@jit
def above(x, y):
    return below(x) + y
"""


def kernel(folder: Path) -> tuple[Path, Look, bool]:
    file = folder / "withstood.py"
    file.write_text(KERNEL)

    def look() -> object:
        made = loaded(file)
        return [made.above(5, 2), made.below(7)]

    look()
    made = loaded(file)
    assert (made.above(5, 2), sum(made.above.stats.cache_hits.values())) == (17, 1)  # it is the disk's
    return next((folder / "cache").rglob("above-*.nbc")), look, True


KINDS = {
    "records": record,
    "checkpoints": checkpoint,
    "files of digits": digits,
    "manifests": manifest,
    "files of progress": tried,
    "results of a sweep": result,
    "notes of pictures": drawn,
    "files of the kernel cache": kernel,
}
