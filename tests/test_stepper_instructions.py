"""The stepper's choice of an instruction: recorded rows are often not of the one that torch's products use."""

from dataclasses import replace

import numpy as np
import pytest

from fplab.errors import LabError
from fplab.tensorcore import models
from fplab.widgets import evidence, stepper
from fplab.widgets.evidence import Rows


def bits(*values: float) -> np.ndarray:
    return np.array(values, np.float32).view(np.uint32)


ROWS = Rows(bits(1.0, 2.0).reshape(1, 2), bits(3.0, 4.0).reshape(1, 2), bits(5.0), bits(16.0), "a test")


@pytest.fixture
def only_mma(monkeypatch):
    """Evidence that holds one row of H100's mma.k16 and nothing else."""
    held = models.get("H100", instruction="mma.k16")
    monkeypatch.setattr(evidence, "rows_of", lambda model, folder=None: (ROWS,) if model == held else ())


def test_a_recorded_row_comes_with_its_instruction(only_mma):
    state = stepper.recorded(stepper.State(gpu="H100"))
    assert (state.a, state.b, state.c, state.row) == ("1.0 2.0", "3.0 4.0", "5.0", 0)
    assert state.instruction == "mma.k16"
    assert stepper.traced(state).model == models.get("H100", instruction="mma.k16")
    assert "0x41800000  ✓ the same bits" in stepper.hardware(state, stepper.traced(state))
    assert stepper.hardware(replace(state, instruction=""), stepper.traced(replace(state, instruction=""))) == (
        "no record of this row"
    )


def test_no_other_gpu_inputs_or_output_stand_in(only_mma):
    for other in ({"gpu": "H200"}, {"gpu": "H100", "inputs": "bf16"}, {"gpu": "H100", "output": "fp16"}):
        with pytest.raises(LabError, match="there is no record of"):
            stepper.recorded(stepper.State(**other))


def test_another_gpu_or_format_takes_its_own_instruction():
    state = stepper.State(gpu="H100", instruction="mma.k16")
    assert stepper.changed(state, "gpu", "B200").instruction == ""
    assert stepper.changed(state, "inputs", "tf32").instruction == ""
    assert stepper.changed(state, "c", "2").instruction == "mma.k16"
    assert stepper.changed(state, "instruction", "wgmma").instruction == "wgmma"


def test_every_instruction_of_the_table_can_be_chosen():
    for model in models.TABLE:
        if model.a in stepper.INPUTS and model.scale is None:
            assert stepper.named(model) in stepper.CHOICES
            assert models.get(model.gpu, (model.a, model.b), model.output, stepper.named(model)) == model


def test_an_instruction_that_a_gpu_lacks_is_said():
    with pytest.raises(LabError, match=r"V100 \(Volta, sm_70\) has no wgmma"):
        stepper.render(stepper.State(instruction="wgmma"))
