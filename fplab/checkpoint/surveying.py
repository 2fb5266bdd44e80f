"""The call ``survey(path, formats=...)``: every tensor measured once, by whichever rank, and the report of them all.

What was measured stands in ``parts`` below ``out`` from then on, a line a tensor: the same call, killed at any moment,
goes on, with any number of ranks. Each rank writes a file of its own; whoever ends last makes the report.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import LabError, quotes_call
from ..formats import several
from ..nn.reporting import Progress, printed
from ..settings import integer_set
from ..storage import contents, demand_writable, opened_to_append
from ..words import say
from .choices import Choice, choices
from .files import Paths, listed
from .measure import About, Channels, Loss, measure
from .report import Survey
from .tensor import Tensor

FORMATS = ("bf16", "e4m3", "mxfp8", "nvfp4", "mxfp4", "q8_0")
BITS = 6.0  # the budget where none is given
DONE = say("{share:.0%} of {size:.3g} GB, about {left} left: {name}")
PAUSE = 5.0  # seconds from one word of progress to the next
Measured = tuple[About, list[Loss]]


@quotes_call
def survey(
    path: Paths,
    formats: Any = FORMATS,
    *,
    bits: float | None = None,
    error: float | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Survey:
    """What the tensors of a checkpoint are like, what each loses in every format, and the best mixture for a budget.

    ``path``: a file of safetensors, GGUF, torch or NumPy, an index of shards, a folder, or several of those.
    ``formats``: names or records of :mod:`fplab.formats`, :mod:`fplab.scaled` and :mod:`fplab.stored`. ``bits``: the
    budget, of a weight, for which the mixture has the least error; ``error``: or the budget of error for which it has
    the fewest bits. Without both, 6 bits. ``out``: a folder where what was measured is kept at once, so that the same
    call goes on after an interruption, and that ranks of torchrun share. ``progress``: receives how far it is; None
    prints it.

    The file is read in pieces, whatever its size; nothing in it is run. The error of a mixture is the root of the mean
    of its tensors' squared relative errors, each weight counting the same. Tensors of one dimension stay as they are.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/w.npz", a=np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64))
    ...     found = survey(f"{folder}/w.npz", ["e4m3", "nvfp4"], bits=5, progress=str)
    >>> found.mixture.assignment
    {'a': 'nvfp4'}
    """
    if bits is not None and error is not None:
        raise LabError("a budget is one of bits= and error=; leave one out.")
    if not (error is None or error >= 0) or not (bits is None or bits > 0):
        raise LabError(f"bits={bits!r}, error={error!r}: a budget is a number, of bits positive, of error 0 or more.")
    wanted = choices(several(formats))
    if not wanted:
        raise LabError("there is nothing to measure: pass a format.")
    found = listed(path)
    folder = None if out is None else Path(out) / "parts"
    request = _request(found, wanted)
    known: dict[str, Measured] = {}
    if folder is not None:
        demand_writable(folder)
        known = _kept(folder, request)
    ranks = integer_set("WORLD_SIZE", 0, 1 << 20, 0) if folder is not None else 0  # torchrun's
    rank = integer_set("RANK", 0, ranks - 1) if ranks else 0
    mine = shares(found, ranks or 1)[rank]
    known |= _measured([one for one in mine if one.name not in known], wanted, folder, rank, request, progress)
    if ranks > 1 and folder is not None:
        known |= _kept(folder, request)
    rows = [known[one.name] for one in found if one.name in known]
    budget = {"bits": BITS if bits is None and error is None else bits, "error": error}
    return Survey.of([about for about, _ in rows], [loss for _, losses in rows for loss in losses],
                     left=len(found) - len(rows), formats=tuple(wanted), **budget)  # fmt: skip


def shares(listed: Iterable[Tensor], ranks: int) -> list[list[Tensor]]:
    """The tensors of each rank: the largest first, each to the rank that has the least to do."""
    result: list[list[Tensor]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for tensor in sorted(listed, key=lambda one: (-one.count, one.name)):
        least = loads.index(min(loads))
        result[least].append(tensor)
        loads[least] += tensor.count + (1 << 16)
    return result


def _request(listed: Sequence[Tensor], wanted: Mapping[str, Choice]) -> str:
    """A digest of what is asked: the files as they are, their tensors, the formats."""
    files = {path: (path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in {one.path for one in listed}}
    where = [[one.name, one.shape, one.stored, one.offset, *files[one.path]] for one in listed]
    records = [repr(one.record) for one in wanted.values()]
    return hashlib.sha256(json.dumps([where, records]).encode()).hexdigest()[:16]


def _kept(folder: Path, request: str) -> dict[str, Measured]:
    """What was measured of this request before, by name; the cut line of a killed process is none."""
    found = {}
    for file in sorted(folder.glob("part-*.jsonl")):
        for line in contents(file).splitlines():
            try:
                given = json.loads(line)
                if given["request"] == request:
                    sides = {name: Channels(*given["about"][name]) for name in ("input_channels", "output_channels")}
                    about = About(**given["about"] | sides)
                    found[about.tensor] = about, [Loss(**loss) for loss in given["losses"]]
            except (ValueError, KeyError, TypeError):
                continue
    return found


def _measured(
    todo: Sequence[Tensor], wanted: Mapping[str, Choice], folder: Path | None, rank: int, request: str,
    progress: Progress | None,
) -> dict[str, Measured]:  # fmt: skip
    """Measure tensors; each is kept as soon as it is done."""
    report, found = progress or printed, {}
    total = 2 * sum(one.count for one in todo if one.has_values)
    size = sum(one.nbytes for one in todo) / 1e9
    began = said = time.monotonic()
    done = 0
    for tensor in todo:

        def seen(n: int, tensor: Tensor = tensor) -> None:
            nonlocal done, said
            done += n
            now = time.monotonic()
            if now - said >= PAUSE:
                said = now
                left = round((now - began) * (total - done) / done)
                share = done / total
                report(DONE.fill(share=share, size=size, left=f"{left // 60}:{left % 60:02}", name=tensor.name))

        found[tensor.name] = about, losses = measure(tensor, [*wanted.values()], seen)
        if folder is not None:
            line = json.dumps({"request": request, "about": vars(about), "losses": [*map(vars, losses)]})
            with opened_to_append(folder / f"part-{rank}.jsonl") as file:
                file.write(f"\n{line}\n".encode())  # whatever was cut before it
    return found
