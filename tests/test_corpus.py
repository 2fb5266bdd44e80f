"""Every recorded Tensor Core result, bit for bit: by the general kernel, by the fast one, and by the oracle."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses
from tensorcore_cases import exact_bits

from fplab.hardware import corpus
from fplab.tensorcore import dot, matmul
from fplab.tensorcore.models import Status

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "tensor-core-corpus"
PRESENT = FOLDER.is_dir()
CELLS = sorted(FOLDER.glob("*/*/d_*_fp*.txt")) if PRESENT else []
BATCH = 50

pytestmark = pytest.mark.skipif(not PRESENT, reason=f"recorded Tensor Core results are not at {FOLDER}")


@pytest.fixture(params=CELLS, ids=lambda p: f"{p.stem}-{p.parent.name}")
def cell(request: pytest.FixtureRequest) -> corpus.Cell:
    """One file of results."""
    return corpus.read_cell(request.param)


def test_all_files_are_there() -> None:
    assert len(CELLS) == 48
    assert sum(1 for _ in corpus.cells(FOLDER)) == 48


def test_general_kernel(cell: corpus.Cell) -> None:
    outcome = corpus.compare(cell)
    assert (outcome.rows, outcome.wrong) == (1000, 0), str(outcome)


def test_fast_kernel(cell: corpus.Cell) -> None:
    """The rows lie on the diagonals of small products."""
    a, b, c = (x.view(np.float32) for x in (cell.a, cell.b, cell.c))
    a, b = (x.reshape(-1, BATCH, x.shape[1]) for x in (a, b))
    c = np.broadcast_to(c.reshape(-1, BATCH, 1), (len(a), BATCH, BATCH))
    d = matmul(a, b.swapaxes(1, 2), c, gpu=cell.model)
    diagonal = np.ascontiguousarray(np.diagonal(d, axis1=1, axis2=2)).reshape(-1)
    assert np.array_equal(diagonal.view(np.uint32), cell.d)


def test_oracle(cell: corpus.Cell) -> None:
    a, b, c = (x.view(np.float32).tolist() for x in (cell.a, cell.b, cell.c))
    wrong = [i for i, d in enumerate(cell.d.tolist()) if exact_bits(cell.model, a[i], b[i], c[i]) != d]
    assert wrong == []


def test_status_says_data(cell: corpus.Cell) -> None:
    assert cell.model.status.value == "data"


def test_no_row_shows_a_floor(cell: corpus.Cell) -> None:
    """Without its floor, and with one eight binades higher, a model gives the same rows: data says nothing of it."""
    a, b, c = (x.view(np.float32) for x in (cell.a, cell.b, cell.c))
    floor = -19 if cell.model.floor is None else cell.model.floor
    for other in (None, floor + 8):
        found = np.asarray(dot(a, b, c, dataclasses.replace(cell.model, floor=other)))
        assert np.array_equal(found.view(np.uint32), cell.d)
    found = np.asarray(dot(a, b, c, dataclasses.replace(cell.model, floor=10)))
    assert not np.array_equal(found.view(np.uint32), cell.d)  # one that lies among the terms does show
    assert cell.model.floor_status is not Status.DATA


def test_a_wrong_model_is_caught() -> None:
    """The data tells generations apart: A100's results are not Hopper's."""
    cell = corpus.read_cell(FOLDER / "A100" / "fp16" / "d_A100_fp32.txt")
    from fplab.tensorcore import dot, get

    a, b, c = (x.view(np.float32) for x in (cell.a, cell.b, cell.c))
    other = dot(a, b, c, gpu=get("H100", "fp16", "fp32", "mma"))
    assert np.count_nonzero(other.view(np.uint32) != cell.d) > 100


def test_errors(tmp_path: Path) -> None:
    refuses(lambda: list(corpus.cells(tmp_path / "nowhere")), "there is no folder")
    refuses(lambda: list(corpus.cells(tmp_path)), "is not the recorded data set")
    folder = tmp_path / "H100" / "fp16"
    folder.mkdir(parents=True)
    (folder / "d_H100_fp32.txt").write_text("0" * 32 + "\n")
    refuses(lambda: list(corpus.cells(tmp_path)), "cannot read")
    for name in ("a_H100_fp16", "b_H100_fp16"):
        (folder / f"{name}.txt").write_text("3f800000 3f800000\n3f800000\n")
    refuses(lambda: list(corpus.cells(tmp_path)), "is damaged")
