"""The recorded Tensor Core results of "MATLAB Tensor & Matrix Core models", read where they lie.

A folder of that data set is ``GPU/FORMAT/`` with text files of one row each: ``a_*`` and ``b_*`` hold K hexadecimal
FP32 words, ``c_*`` and ``d_*`` one word of 32 binary digits. ``d_*_fp16`` is an FP16 result written as FP32.
Each row is D = sum of a*b, plus c. The FP8 to FP32 files of H100 and H200 were made by ``wgmma`` with c = 0, whatever
their c file says; all others by ``mma.sync``. (Khattak and Mikaitis, north-numerical-computing/MATLAB-tensor-core.)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import LabError
from ..storage import contents
from ..tensorcore import models
from ..tensorcore.models import Model

Bits = np.ndarray[tuple[int, ...], np.dtype[np.uint32]]


@dataclass(frozen=True)
class Cell:
    """One file of results with its operands. Shapes: a, b (rows, K); c, d (rows,); all FP32 bits as uint32."""

    gpu: str
    inputs: str
    output: str
    a: Bits
    b: Bits
    c: Bits
    d: Bits
    path: Path

    @property
    def model(self) -> Model:
        """The record that describes the instruction which made these results."""
        short = ".k4" if self.inputs == "tf32" and self.a.shape[1] == 4 else ""
        return models.get(self.gpu, self.inputs, self.output, _made_by(self.gpu, self.inputs, self.output) + short)

    @property
    def name(self) -> str:
        return f"{self.gpu} {self.inputs}->{self.output}"


@dataclass(frozen=True)
class Outcome:
    """How a model did on one cell: rows, rows that differ, and the first of those with both bit patterns."""

    cell: Cell
    rows: int
    wrong: int
    first: tuple[int, int, int] | None

    def __str__(self) -> str:
        text = f"{self.cell.name} ({self.cell.model.instruction}): {self.rows - self.wrong} of {self.rows} rows"
        if self.first is None:
            return text
        row, ours, theirs = self.first
        return f"{text}; first at row {row}: model {ours:08x}, recorded {theirs:08x}"


def cells(folder: Path) -> Iterator[Cell]:
    """Every file of results below a folder, in the order of GPU, inputs and output.

    Raises LabError where there is no such folder, no results in it, or a file that cannot be read as described.
    """
    if not folder.is_dir():
        raise LabError(f"there is no folder {str(folder)!r} with recorded results.")
    paths = sorted(folder.glob("*/*/d_*_fp*.txt"))
    if not paths:
        raise LabError(f"{str(folder)!r} holds no GPU/FORMAT/d_*.txt; it is not the recorded data set.")
    for path in paths:
        yield read_cell(path)


def read_cell(path: Path) -> Cell:
    """The cell whose results are in one file."""
    parts = path.stem.split("_")  # d, GPU, output
    gpu, inputs, output = models.gpu_name(parts[1]), path.parent.name.lower(), parts[2]
    a, b = (_words(path.with_name(f"{side}_{parts[1]}_{path.parent.name}.txt"), 16) for side in "ab")
    c = _words(path.with_name(f"c_{parts[1]}_fp32.txt"), 2)[:, 0]
    d = _words(path, 2)[:, 0]
    if not (a.shape == b.shape and a.shape[0] == c.size == d.size):
        raise LabError(f"the files of {str(path)!r} have different numbers of rows or columns.")
    if _made_by(gpu, inputs, output) == "wgmma":
        c = np.zeros_like(c)
    return Cell(gpu, inputs, output, a, b, c, d, path)


def _made_by(gpu: str, inputs: str, output: str) -> str:
    """The instruction that made a file, by what the table of GPUs says was recorded."""
    made = [text.split()[0] for text in models.row_of(gpu).recorded if text.endswith(f" {inputs}->{output}")]
    return made[0].partition(".")[0] if made else "mma"


def _words(path: Path, base: int) -> Bits:
    """A file of FP32 words as uint32, one row a line."""
    try:
        lines = contents(path).decode("ascii").split("\n")
        rows = [[int(word, base) for word in re.split(r"[,\s]+", line.strip())] for line in lines if line.strip()]
        return np.array(rows, dtype=np.uint32)
    except OSError as error:
        raise LabError(f"cannot read {str(path)!r}: {error.strerror}.") from None
    except (ValueError, OverflowError):
        raise LabError(f"{str(path)!r} is damaged: not every row has the same number of base-{base} words.") from None


def verify(folder: Path) -> list[Outcome]:
    """Every cell of a folder computed by the lab's models and compared bit for bit."""
    return [compare(cell) for cell in cells(folder)]


def compare(cell: Cell) -> Outcome:
    from ..tensorcore import dot

    a, b, c = (x.view(np.float32) for x in (cell.a, cell.b, cell.c))
    got = np.asarray(dot(a, b, c, gpu=cell.model)).view(np.uint32)
    differ = np.flatnonzero(got != cell.d)
    first = (int(differ[0]), int(got[differ[0]]), int(cell.d[differ[0]])) if differ.size else None
    return Outcome(cell, cell.d.size, differ.size, first)
