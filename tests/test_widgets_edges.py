"""What a widget writes stays inside its picture, at the ends of what can be moved."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from pictures import parse

from fplab.errors import LabError
from fplab.widgets import accumulation, blockwise, pipeline

LETTER = 8.0  # the width of a letter of size 12, or more


def texts(picture: str):
    """The texts of a drawing with where each begins and ends."""
    for e in parse(picture).iter():
        if e.tag.endswith("text"):
            x, wide = float(e.get("x")), LETTER * len(e.text or "")
            start = {"start": x, "middle": x - wide / 2, "end": x - wide}[e.get("text-anchor") or "start"]
            yield e.text, start, start + wide


@pytest.mark.parametrize("place", [0, 1, 40, 58, 60, 63])
@pytest.mark.parametrize("outlier", [-64.0, -4.5, 0.0, 64.0])
def test_the_outlier_is_told_inside_the_picture(place, outlier):
    picture = blockwise.render(blockwise.State(place=place, outlier=outlier))
    told = [(start, end) for text, start, end in texts(picture) if text and text.startswith(f"{outlier:g}")]
    assert told
    assert all(start >= 0 and end <= blockwise.WIDTH for start, end in told)


def test_a_long_backward_pass_is_hatched_throughout():
    found = list(parse(pipeline.render(pipeline.State("gpipe", 1, 1))).iter())
    (slot,) = [e for e in found if "B" in (e.get("class") or "").split()]
    (hatching,) = [e for e in found if e.tag.endswith("path")]
    assert hatching.get("d").count("M") >= float(slot.get("width")) / 24


def calls(work):
    """How many functions some work calls, which is the same on a machine of any speed."""
    found = Counter()
    sys.setprofile(lambda frame, event, arg: found.update((event,)))
    try:
        work()
    finally:
        sys.setprofile(None)
    return found["call"] + found["c_call"]


def test_a_drawing_of_the_most_passes_is_quick():
    state = pipeline.State("interleaved", 8, 32, 3)
    pipeline.render(state)
    assert calls(lambda: pipeline.render(state)) < 250_000  # 190,000, a tenth of a second


@pytest.mark.parametrize("term", ["1e999", "-1e999", "1e309"])
def test_a_term_beyond_every_float_is_refused_in_words(term):
    with pytest.raises(LabError, match=r"is beyond fp16, whose largest value is 65504\."):
        accumulation.render(accumulation.State(term=term))


def test_the_tree_beside_a_format_needs_no_kernel():
    code = "import sys; from fplab.widgets import bits; bits.render(bits.chosen(bits.State(), 0, 'dynamic_tree'))"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'numba' not in sys.modules"], check=True)
