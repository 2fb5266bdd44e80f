"""What hardware was recorded to give for a row of a Tensor Core product: looked up by its bits."""

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import floats
from ..errors import LabError
from ..hardware import corpus, instructions, records, software
from ..hardware.cases import Meta
from ..tensorcore.models import Model

CORPUS_VARIABLE = "FPLAB_CORPUS"  # the folder of a copy of the public data set


@dataclass(frozen=True)
class Found:
    """A recorded result. ``bits``: as FP32; ``source``: device or data set, with the row."""

    bits: int
    source: str


@dataclass(frozen=True, eq=False)
class Rows:
    """Recorded rows of one cell, all FP32 bits as uint32: a, b (N, K), c, d (N,)."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    d: np.ndarray
    source: str


def corpus_folder() -> Path | None:
    """The folder that FPLAB_CORPUS names, if it is there."""
    named = os.environ.get(CORPUS_VARIABLE)
    return Path(named) if named and Path(named).is_dir() else None


def rows_of(model: Model, folder: Path | None = None) -> tuple[Rows, ...]:
    """Every recorded row of a GPU's instruction: from the package's records, then from the data set."""
    return _rows(model, folder or corpus_folder(), records.FOLDER)


@functools.lru_cache(maxsize=8)
def _rows(model: Model, folder: Path | None, own: Path) -> tuple[Rows, ...]:
    recorded = list(_from_records(model, own))
    if folder is not None and model.a == model.b and model.scale is None:
        for path in folder.glob(f"*/*/d_{model.gpu}_{model.output}.txt"):
            if path.parent.name.lower() == model.a and (cell := corpus.read_cell(path)).model == model:
                recorded.append(Rows(cell.a, cell.b, cell.c, cell.d, "MATLAB-tensor-core"))
    return tuple(recorded)


def _from_records(model: Model, own: Path) -> Iterator[Rows]:
    """The rows of every record of this GPU that hold this instruction."""
    named = {mma.name: mma for mma in instructions.TABLE}
    for record in _on_gpus(own):
        if _gpu(record.meta) != model.gpu:
            continue
        for case in record.cases:
            mma = named.get(case.name)
            if mma is None or (mma.family, mma.k, mma.a, mma.b, mma.output) != _key(model):
                continue
            for regime in case.outputs:
                if regime != "layout" and f"{regime}.a" in case.inputs:
                    a, b = (_wide(case.inputs[f"{regime}.{x}"], f) for x, f in (("a", mma.a), ("b", mma.b)))
                    c, d = (_wide(x, mma.output) for x in (case.inputs[f"{regime}.c"], case.outputs[regime]))
                    yield Rows(a, b, c.reshape(-1), d.reshape(-1), f"{record.where}, {regime}")


@functools.lru_cache(maxsize=2)
def _on_gpus(own: Path) -> tuple[records.Record, ...]:
    """The records of GPUs: read once, for each choice of a widget asks for them."""
    results = map(records.read, records.records_in(own)) if own.is_dir() else ()
    return tuple(record for record in results if record.on_gpu)


def _key(model: Model) -> tuple[str, int, str, str, str]:
    return model.instruction, model.k, model.a, model.b, model.output


def _gpu(meta: Meta) -> str | None:
    """The table's name of the GPU that made a record, None where it has none."""
    with contextlib.suppress(LabError):
        return software.gpu_of(meta)
    return None


def _wide(codes: np.ndarray, fmt: str) -> np.ndarray:
    return np.asarray(floats.decode(codes, fmt), np.float32).view(np.uint32)


def look_up(model: Model, a: np.ndarray, b: np.ndarray, c: float, folder: Path | None = None) -> Found | None:
    """The recorded result of exactly this row (float32 (K,), a number); None where there is no record of it."""
    a32, b32 = (np.asarray(x, np.float32).view(np.uint32) for x in (a, b))
    c32 = int(np.float32(c).view(np.uint32))
    for rows in rows_of(model, folder):
        if rows.a.ndim != 2 or rows.a.shape[1] < a32.size:
            continue
        x, y = (np.pad(v, (0, rows.a.shape[1] - v.size)) for v in (a32, b32))
        same = np.flatnonzero((rows.a == x).all(1) & (rows.b == y).all(1) & (rows.c == c32))
        if same.size:
            return Found(int(rows.d[same[0]]), f"{rows.source}, row {int(same[0])}")
    return None
