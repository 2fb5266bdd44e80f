"""The figure of a trace: the bits that are drawn are the numbers of the steps."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from fplab.draw.stepper import trace_figure
from fplab.draw.style import current
from fplab.errors import LabError
from fplab.tensorcore import trace


def drawn(ax: Axes) -> list[tuple[Fraction, Fraction]]:
    """For every row from above: the magnitude of its full boxes, and that of the crossed-out ones among them."""
    rows: dict[float, list[tuple[int, bool]]] = defaultdict(list)
    gone = current().series[1]
    for box in ax.patches:
        assert isinstance(box, Rectangle)
        full = rows[round(box.get_y(), 6)]
        if box.get_alpha() == 1.0:
            lost = np.allclose(box.get_facecolor()[:3], [int(gone[i : i + 2], 16) / 255 for i in (1, 3, 5)])
            full.append((round(-box.get_x() - 0.45), bool(lost)))
    power = Fraction(2)
    sums = [(sum((power**p for p, _ in row), Fraction(0)), sum((power**p for p, lost in row if lost), Fraction(0)))
            for _, row in sorted(rows.items(), reverse=True)]  # fmt: skip
    return sums


@pytest.mark.parametrize(("gpu", "inputs", "n"), [("V100", "fp16", 8), ("A100", "bf16", 8), ("H100", "fp16", 16)])
def test_the_bits_drawn_are_those_of_the_terms(gpu: str, inputs: str, n: int) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.choice([0.75, -1.25, 3.0], n), rng.choice([1.5, 0.625, -0.875], n) * np.exp2(-rng.integers(0, 26, n))
    found = trace(a, b, 1.0 + 2.0**-20, gpu=gpu, inputs=inputs)
    figure = trace_figure(found, steps=len(found.steps))
    assert len(figure.axes) == len(found.steps)
    for ax, step in zip(figure.axes, found.steps, strict=True):
        terms = [t for t in step.terms if t.value]
        *rows, total, result = drawn(ax)
        assert rows == [(abs(t.value), abs(t.lost)) for t in terms]
        assert total[0] == abs(step.total)
        assert total[1] == abs(step.lost_to_rounding)  # FP32 results are truncated
        assert result == (abs(Fraction(step.result)), 0)
        words = [text.get_text() for text in ax.texts]
        assert f"= {step.result:.9g}" in " ".join(words)
        assert sum("lost" in w for w in words) >= sum(bool(t.lost) for t in terms)


def test_an_instruction_with_fp16_output_loses_bits_to_rounding() -> None:
    found = trace([1.0] * 4, [2.0**-11, 2.0**-12, 0, 0], 1.0, gpu="V100", output="fp16")
    _, _, _, total, result = drawn(trace_figure(found).axes[0])
    assert total == (1 + Fraction(3, 2**12), Fraction(3, 2**12))
    assert result == (1 + Fraction(1, 2**10), 0)


def test_what_lies_far_below_is_told_in_words() -> None:
    figure = trace_figure(trace([1.0, 2.0**-14], [1.0, 2.0**-14 * 1.5], 0.0, gpu="A100"))
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert "shift 28: lost, $2^{-28}$ is below $2^{-24}$" in words


def test_special_operands_and_empty_rows() -> None:
    figure = trace_figure(trace([np.inf], [1.0], 0.0, gpu="A100"))
    assert "special operands decide, result inf" in figure.axes[0].get_title(loc="left")
    assert "nothing is aligned, result 0" in trace_figure(trace([0.0], [1.0])).axes[0].get_title(loc="left")
    with pytest.raises(LabError, match="the trace has no steps: its row is empty"):
        trace_figure(trace([], []))
    with pytest.raises(LabError, match="steps=5 is not possible; allowed: 1 to 4"):
        trace_figure(trace([1.0], [1.0]), steps=5)
    with pytest.raises(LabError, match="first=1 is not possible; allowed: 0 to 0"):
        trace_figure(trace([1.0], [1.0]), first=1)
