"""The labels of a format's limits under the histogram can be read at every scale."""

from __future__ import annotations

import itertools

import pytest
from pictures import of_class

import fplab
from fplab.draw import histogram
from fplab.widgets import gradients

LETTER = 6.6  # the width of a letter of 11 pixels, generously


def spans(state):
    """Where each label begins and ends."""
    found = []
    for label in of_class(gradients.render(state), "edge"):
        x, wide = float(label.get("x")), LETTER * len(label.text)
        start = x - {"start": 0, "end": wide}[label.get("text-anchor")]
        found.append((start, start + wide))
    return found


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e5m2", "e4m3"])
@pytest.mark.parametrize("scale", [0, 11, 24, 40])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_limits_do_not_cover_each_other(fmt, scale, language):
    before = fplab.lang()
    fplab.lang(language)
    try:
        found = spans(gradients.State("weight", fmt, scale))
    finally:
        fplab.lang(before)
    assert len(found) == 3
    assert found[0][0] >= 0
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(found))
    assert found[-1][1] <= histogram.WIDTH
