"""What a widget writes stays inside its picture and apart, at the ends of what can be moved; and is drawn quickly."""

from __future__ import annotations

import itertools
import sys
import unicodedata
from collections import Counter

import pytest
from pictures import of_class, parse

from fplab.draw import histogram
from fplab.errors import LabError
from fplab.language import speaking
from fplab.widgets import accumulation, adders, blockwise, gradients, pipeline, rounding


def width(text: str, letter: float = 8.0, character: float = 12.0) -> float:
    """About how many pixels a text is wide, at 12 pixels; ``character``: of Chinese."""
    return sum(character if unicodedata.east_asian_width(c) in "WF" else letter for c in text)


def spans(picture: str, class_: str = "", letter: float = 8.0):
    """The texts of a drawing with where each begins and ends."""
    for e in of_class(picture, class_) if class_ else parse(picture).iter():
        if e.tag.endswith("text"):
            x, wide = float(e.get("x")), width(e.text or "", letter)
            start = {"start": x, "middle": x - wide / 2, "end": x - wide}[e.get("text-anchor") or "start"]
            yield e.text, start, start + wide


@pytest.mark.parametrize("place", [0, 1, 40, 58, 60, 63])
@pytest.mark.parametrize("outlier", [-64.0, -4.5, 0.0, 64.0])
def test_the_outlier_is_told_inside_the_picture(place, outlier):
    picture = blockwise.render(blockwise.State(place=place, outlier=outlier))
    told = [(start, end) for text, start, end in spans(picture) if text and text.startswith(f"{outlier:g}")]
    assert told
    assert all(start >= 0 and end <= blockwise.WIDTH for start, end in told)


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e5m2", "e4m3"])
@pytest.mark.parametrize("scale", [0, 11, 24, 40])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_limits_under_the_histogram_do_not_cover_each_other(fmt, scale, language):
    with speaking(language):
        found = list(spans(gradients.render(gradients.State("weight", fmt, scale)), "edge", letter=6.6))
    assert len(found) == 3
    assert found[0][1] >= 0
    assert all(left[2] <= right[1] for left, right in itertools.pairwise(found))
    assert found[-1][2] <= histogram.WIDTH


@pytest.mark.parametrize("inputs", adders.INPUTS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_an_adders_words_stay_inside_the_picture(inputs, language):
    with speaking(language):
        found = list(spans(adders.render(adders.State(inputs))))
    assert all(start >= 0 and end <= adders.WIDTH for _, start, end in found), found


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_name_of_a_rounding_is_cut_off_at_the_left(language):
    with speaking(language):
        drawn = rounding.render(rounding.State())
        names = {str(name) for name in rounding.NAMES.values()}
    starts = {text: start for text, start, _ in spans(drawn, letter=6.1) if any(n in (text or "") for n in names)}
    assert len(starts) == len(names)
    assert all(start > 0 for start in starts.values()), starts


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
