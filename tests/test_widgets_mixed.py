"""The mixed-precision step as a diagram: its values are those of the whole matrices' step, edge by edge."""

import math
from dataclasses import replace

import numpy as np
import pytest
from pictures import bits_shown, of_class, text_of
from refusals import refuses

import fplab
from fplab.widgets import mixed


def whole_step(scale: int, loss: int, rate: int) -> dict[str, np.ndarray]:
    """The same step for all weights at once, by matrix products and the lab's arithmetic."""
    x, labels, weights = mixed.inputs()
    copies = fplab.quantize(weights, "fp16")
    outputs = fplab.quantize(fplab.tensorcore.matmul(x, copies.T, gpu="H100"), "fp16")
    errors = fplab.sub(outputs, np.float32(labels[:, None] == np.arange(10)), "fp32")
    mean = fplab.mul(errors, np.float32(2 / 160), "fp32")
    gradients = fplab.mul(mean, 2.0**loss, "fp32")
    scaled = fplab.quantize(np.float64(gradients) * 2.0**scale, "fp16")
    weight = fplab.quantize(fplab.tensorcore.matmul(scaled.T, x, gpu="H100"), "fp16")
    unscaled = fplab.div(weight, 2.0**scale, "fp32")
    update = fplab.mul(unscaled, 2.0**rate, "fp32")
    return {"outputs": outputs, "scaled": scaled, "weight": weight, "update": update,
            "new": fplab.sub(weights, update, "fp32")}  # fmt: skip


@pytest.mark.parametrize(("scale", "loss", "rate"), [(16, -14, -2), (0, -14, -2), (8, -20, 0), (3, 0, -8)])
def test_a_weight_is_stepped_as_the_whole_network_is(scale, loss, rate):
    whole = whole_step(scale, loss, rate)
    for digit, pixel in ((3, 1), (3, 20), (8, 51), (0, 0), (9, 63)):
        one = mixed.step(digit, pixel, scale, loss, rate)
        assert one.values[2] == whole["outputs"][one.image, digit]
        assert one.values[4] == whole["scaled"][one.image, digit]
        assert one.values[5] == whole["weight"][digit, pixel]
        assert one.values[7] == whole["update"][digit, pixel]
        assert one.values[8] == whole["new"][digit, pixel]
        assert one.values[9] == fplab.quantize(one.values[8], "fp16")


def test_each_edge_shows_its_bits():
    for edge, (fmt, value) in enumerate(zip(mixed.FORMATS, mixed.step_of(mixed.State()).values, strict=True), 1):
        picture = mixed.render(mixed.State(edge=edge))
        shown = bits_shown(picture)
        assert int(shown, 2) == fplab.encode(value, fmt)
        boxes = of_class(picture, "edge")
        assert [i for i, box in enumerate(boxes, 1) if box.get("stroke-width") == "3"] == [edge]
        assert f"{edge}. {mixed.NAMES[edge - 1].en}, {fmt.upper()}" in text_of(picture)


def test_the_scale_saves_the_gradient_and_the_master_the_update():
    def says(**values):
        return text_of(mixed.render(mixed.State(**values)))

    assert "all of it: underflow" in says(edge=6, log2_scale=0)
    assert "all of it" not in says(edge=6)
    assert "an FP16 weight alone would lose it" in says()
    assert "the FP16 copy moves" in says(log2_loss=0)
    assert "all of it: overflow" in says(edge=5, log2_scale=40)
    assert "left out, and the scale is halved" in says(log2_scale=40)
    assert "the update is lost, in FP32 as well" in says(log2_scale=0)
    left_out = mixed.step_of(mixed.State(log2_scale=40)).values
    assert left_out[8] == left_out[0]
    assert math.isnan(left_out[7]) or math.isinf(left_out[7])


def test_a_button_for_each_edge_and_none_beyond():
    board = mixed.widget()
    board.buttons[2 + 8].click()
    assert board.state.edge == 9
    board.buttons[1].click()
    board.buttons[1].click()
    assert board.state.edge == 1
    board.buttons[0].click()
    assert board.state.edge == 10
    assert mixed.chosen(replace(board.state, edge=10), 11).edge == 1
    refuses(lambda: mixed.widget(pixel=64), "pixel=64 is not possible; allowed: 0 to 63")
