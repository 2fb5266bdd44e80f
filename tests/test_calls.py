"""How many Python calls of the package a public function makes on its way to the kernel."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import fplab
from fplab.nn import emulate

PACKAGE = str(Path(fplab.__file__).parent)
X = np.linspace(-1, 1, 1000, dtype=np.float32)


def calls(function: Callable[[], Any]) -> list[str]:
    """The package's functions that a call enters once all that is kept between calls is there, by name."""
    entered: list[str] = []

    def enter(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            entered.append(frame.f_code.co_name)

    for _ in range(3):
        function()
    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        function()
    finally:
        sys.setprofile(before)
    return entered


@pytest.mark.parametrize("fmt", ["bf16", "fp16", "e4m3"])
def test_quantize_makes_few_calls(fmt: str) -> None:
    entered = calls(lambda: fplab.quantize(X, fmt))
    assert "quantize" in entered
    assert len(entered) <= 15, entered


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [None, "fp16"])
def test_emulate_and_one_linear_layer_make_few_calls(inputs: str | None, dtype: torch.dtype) -> None:
    layer, x = torch.nn.Linear(16, 8).to(dtype), torch.ones(4, 16, dtype=dtype)

    def forward() -> None:
        with emulate("H100", inputs):
            layer(x)

    entered = calls(forward)
    assert "emulate" in entered
    assert len(entered) <= 60, " ".join(entered)
