"""Running shares over processes, remembering the finished ones, and the table at the end."""

from __future__ import annotations

import hashlib
import json
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from tqdm import tqdm

import fplab
from fplab import kernels, processes
from fplab.storage import write_text

from .shares import Difference, Part, Share

INTERRUPTED = 130
LIBRARIES = ("numpy", "ml_dtypes", "torch", "gmpy2")
KERNELS = ("arith", "convert", "fast32", "fast_arith", "kulisch", "rounding")
SOURCES = ("arithmetic", "arrays", "bounds", "exact", "floats", "formats", "plans", "roundings", "threads")
LINES_EVERY = 15.0  # seconds between lines of progress where there is no terminal


@dataclass(frozen=True)
class Done:
    """What became of a share: ``difference`` is empty where all cases agreed."""

    share: Share
    cases: int
    seconds: float
    difference: str = ""
    remembered: bool = False


def digest() -> str:
    """A digest of all that a proof is about: the kernels, what calls them, the proofs themselves, the third parties."""
    sha = hashlib.sha256(kernels.digest(*KERNELS).encode())
    package = Path(fplab.__file__).parent
    for path in [*(package / f"{name}.py" for name in SOURCES), *sorted(Path(__file__).parent.glob("*.py"))]:
        sha.update(path.name.encode() + b"\0" + path.read_bytes())
    sha.update(" ".join(version(name) for name in LIBRARIES).encode())
    return sha.hexdigest()[:16]


@dataclass
class State:
    """The finished shares of one part and one digest, in a file that is replaced whole after every share."""

    path: Path
    finished: dict[str, tuple[int, float]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, fresh: bool) -> State:
        """What a file knows of a part; nothing if ``fresh``, or if it cannot be read."""
        try:
            known = {} if fresh else json.loads(path.read_text())
            return cls(path, {key: (int(cases), float(seconds)) for key, (cases, seconds) in known.items()})
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return cls(path)

    def add(self, done: Done) -> None:
        """Remember a share whose cases all agreed."""
        self.finished[done.share.key] = (done.cases, round(done.seconds, 3))
        write_text(self.path, json.dumps(self.finished, indent=0))


def settle() -> None:
    """No warnings about infinities and NaNs."""
    np.seterr(all="ignore")


def attempt(share: Share) -> Done:
    """Run a share and time it, in seconds of this process's cores: others may use the machine."""
    start, cases, difference = time.process_time(), 0, ""
    try:
        cases = share.run(*share.args)
    except Difference as found:
        difference = str(found)
    except Exception:  # a route that fails is no proof either; the other shares go on
        difference = f"{share.key}:\n{traceback.format_exc()}"
    return Done(share, cases, time.process_time() - start, difference)


def in_this_process(shares: list[Share]) -> Iterator[Done]:
    """The shares one after the other."""
    fplab.set_num_threads(1)
    try:
        with np.errstate(all="ignore"):
            for share in shares:
                yield attempt(share)
    finally:
        fplab.set_num_threads(None)


def in_processes(shares: list[Share], jobs: int) -> Iterator[Done]:
    """The shares as ``jobs`` processes finish them; whoever stops asking stops the processes."""
    with closing(processes.in_processes(attempt, shares, jobs, settle)) as running:
        for _, future in running:
            yield future.result()


class Progress:
    """A bar on a terminal, else a line now and then."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total, self.count, self.stream = total, 0, stream
        self.start = self.last = time.perf_counter()
        self.bar = tqdm(total=total, unit="share", file=stream) if stream.isatty() else None

    def step(self, done: Done) -> None:
        """Count a share, and say at once where it found a difference."""
        self.count += 1
        if done.difference:
            self.say(f"DIFFERENCE in {done.difference}")
        if self.bar is not None:
            self.bar.set_description_str(done.share.claim[:48], refresh=False)
            self.bar.update()
            return
        now = time.perf_counter()
        if now - self.last > LINES_EVERY or self.count == self.total:
            self.last = now
            self.say(f"{self.count} of {self.total} shares, {clock(now - self.start)}: {done.share.claim}")

    def say(self, text: str) -> None:
        """A line that does not disturb the bar."""
        if self.bar is None:
            print(text, file=self.stream, flush=True)
        else:
            self.bar.write(text, file=self.stream)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            self.bar.close()


def clock(seconds: float) -> str:
    """A duration as people say it."""
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds) // 60} min {int(seconds) % 60} s"


def prove(parts: list[Part], *, quick: bool, fresh: bool, jobs: int, folder: Path) -> int:
    """Run what is not finished yet, print the table, give the exit status: 0, 1 on a difference, 130 interrupted."""
    start, code = time.perf_counter(), digest()
    states = {part.name: State.load(folder / f"{part.name}-{code}.json", fresh) for part in parts}
    home: dict[str, str] = {}
    done: dict[str, list[Done]] = {part.name: [] for part in parts}
    listed: dict[str, list[Share]] = {part.name: part.shares(quick) for part in parts}
    waiting: list[Share] = []
    for name, shares in listed.items():
        for share in shares:
            home[share.key] = name
            if share.key in states[name].finished:
                cases, seconds = states[name].finished[share.key]
                done[name].append(Done(share, cases, seconds, remembered=True))
            else:
                waiting.append(share)
    known = len(home) - len(waiting)
    if known:
        print(f"{known} of {len(home)} shares are proved already in {folder}; --fresh proves them again.")
    progress, interrupted = Progress(len(waiting), sys.stderr), False
    running = in_processes(waiting, jobs) if jobs > 1 and waiting else in_this_process(waiting)
    try:
        for one in running:
            name = home[one.share.key]
            done[name].append(one)
            if not one.difference:
                states[name].add(one)
            progress.step(one)
    except KeyboardInterrupt:
        interrupted = True
        progress.say("interrupted; what is finished is kept, the same command goes on from here")
    finally:
        running.close()  # interrupted, or where nothing can be remembered: no process is left
        progress.close()
    if quick:
        print("A slice of every claim (--quick); without it all cases.")
    print_table(parts, listed, done)
    differing = [one for ones in done.values() for one in ones if one.difference]
    cases = sum(one.cases for ones in done.values() for one in ones)
    print(f"{cases:,} cases, {clock(time.perf_counter() - start)} on {jobs} processes, code {code}")
    for one in differing:
        print(f"DIFFERENCE in {one.difference}")
    return 1 if differing else INTERRUPTED if interrupted else 0


def rows(listed: list[Share], done: list[Done]) -> Iterator[tuple[str, ...]]:
    """A row for each claim: what, against what, cases, seconds of one core, outcome."""
    claims = list(dict.fromkeys((share.claim, share.against) for share in listed))
    for claim, against in claims:
        of = [one for one in done if (one.share.claim, one.share.against) == (claim, against)]
        total = sum((share.claim, share.against) == (claim, against) for share in listed)
        outcome = "DIFFERS" if any(one.difference for one in of) else "proved"
        if outcome == "proved" and len(of) < total:
            outcome = f"{len(of)} of {total} shares"
        cases, seconds = sum(one.cases for one in of), sum(one.seconds for one in of)
        yield claim, against, f"{cases:,}", f"{seconds:.1f}", outcome


def print_table(parts: list[Part], listed: dict[str, list[Share]], done: dict[str, list[Done]]) -> None:
    """What was proved, part by part."""
    header = ("claim", "against", "cases", "core s", "outcome")
    table = {part.name: list(rows(listed[part.name], done[part.name])) for part in parts}
    every: list[Any] = [header, *(row for found in table.values() for row in found)]
    widths = [max(len(row[k]) for row in every) for k in range(5)]

    def line(row: tuple[str, ...]) -> str:
        cells = [row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2].rjust(widths[2]), row[3].rjust(widths[3])]
        return "  ".join([*cells, row[4]])

    print(line(header))
    for part in parts:
        print(f"-- {part.name}: {part.title}")
        for row in table[part.name]:
            print(line(row))
