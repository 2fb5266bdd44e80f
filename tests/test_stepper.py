"""The figure of a trace: the bits that are drawn are the numbers of the steps."""

from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from refusals import refuses

pytest.importorskip("matplotlib")

from figure_words import words_left

from fplab.draw import explain, lettering
from fplab.draw.scene import Scene
from fplab.draw.stepper import EMPTY, step_scene, trace_figure
from fplab.language import speaking
from fplab.tensorcore import trace


def drawn(scene: Scene) -> list[tuple[Fraction, Fraction]]:
    """For every row from above: the magnitude of its full boxes, and that of the crossed-out ones among them."""
    rows: dict[float, list[Fraction]] = defaultdict(lambda: [Fraction(0), Fraction(0)])
    for tag, given, _ in scene.marks:
        if tag == "rect" and given["fill_opacity"] > EMPTY:
            rows[given["y"]][0] += Fraction(2) ** given["data_place"]
            rows[given["y"]][1] += Fraction(2) ** given["data_place"] * (given["class_"] == "lost")
    return [(whole, lost) for _, (whole, lost) in sorted(rows.items())]


@pytest.mark.parametrize(("gpu", "inputs", "n"), [("V100", "fp16", 8), ("A100", "bf16", 8), ("H100", "fp16", 16)])
def test_the_bits_drawn_are_those_of_the_terms(gpu: str, inputs: str, n: int) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.choice([0.75, -1.25, 3.0], n), rng.choice([1.5, 0.625, -0.875], n) * np.exp2(-rng.integers(0, 26, n))
    found = trace(a, b, 1.0 + 2.0**-20, gpu=gpu, inputs=inputs)
    figure = trace_figure(found, steps=len(found.steps))
    for ax, step in zip(figure.axes, found.steps, strict=True):
        scene = step_scene(step, found)
        terms = [t for t in step.terms if t.value]
        *rows, total, result = drawn(scene)
        assert rows == [(abs(t.value), abs(t.lost)) for t in terms]
        assert total[0] == abs(step.total)
        assert total[1] == abs(step.lost_to_rounding)  # FP32 results are truncated
        assert result == (abs(Fraction(step.result)), 0)
        words = [text.get_text() for text in ax.texts]
        assert words == [mark.text for mark in scene.marks if mark.tag == "text"]
        assert len(ax.patches) == sum(mark.tag == "rect" for mark in scene.marks)
        assert len(ax.lines) == sum(mark.tag == "line" for mark in scene.marks)
        assert f"{step.result:.9g}" in " ".join(words)
        assert sum("lost" in w for w in words) >= sum(bool(t.lost) for t in terms)


def test_an_instruction_with_fp16_output_loses_bits_to_rounding() -> None:
    found = trace([1.0] * 4, [2.0**-11, 2.0**-12, 0, 0], 1.0, gpu="V100", output="fp16")
    _, _, _, total, result = drawn(step_scene(found.steps[0], found))
    assert total == (1 + Fraction(3, 2**12), Fraction(3, 2**12))
    assert result == (1 + Fraction(1, 2**10), 0)


def test_what_lies_far_below_is_told_in_words() -> None:
    figure = trace_figure(trace([1.0, 2.0**-14], [1.0, 2.0**-14 * 1.5], 0.0, gpu="A100"))
    words = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert "shift 28: lost (2⁻²⁸ < 2⁻²⁴)" in words


def test_special_operands_and_empty_rows() -> None:
    figure = trace_figure(trace([np.inf], [1.0], 0.0, gpu="A100"))
    assert "special operands decide, result inf" in figure.axes[0].get_title(loc="left")
    assert "nothing is aligned, result 0" in trace_figure(trace([0.0], [1.0])).axes[0].get_title(loc="left")
    refuses(lambda: trace_figure(trace([], [])), "the trace has no steps: its row is empty")
    refuses(lambda: trace_figure(trace([1.0], [1.0]), steps=5), "steps=5 is not possible; allowed: 1 to 4")
    refuses(lambda: trace_figure(trace([1.0], [1.0]), first=1), "first=1 is not possible; allowed: 0 to 0")


@pytest.mark.skipif(lettering.chinese() is None, reason="no font here has Chinese: a figure stays English")
def test_figures_of_steps_and_of_differences_are_in_the_language_that_is_chosen() -> None:
    a, b = [-0.0625, 1.5, 3.125], [-0.00390625, 2.75, -0.0009765625]
    for gpu in ("V100", "H100", "MI250X"):
        with speaking("zh"):
            figure = trace_figure(trace(a, b, gpu=gpu))
        assert words_left(figure) == []
        assert "第 0 步" in figure.axes[0].get_title(loc="left")
    with speaking("zh"):
        assert words_left(explain.draw([("conv1", 1.0, 2.0)], 3.0, (0.1, 0.2))) == []
