"""The rounding number line is legible: every label lies inside the picture."""

from __future__ import annotations

import re
import unicodedata

import pytest

from fplab.language import speaking
from fplab.widgets import rounding

LETTER, CHARACTER = 6.1, 12.0  # width in pixels of a letter and of a Chinese character at 12 pixels


def width(text):
    return sum(CHARACTER if unicodedata.east_asian_width(c) in "WF" else LETTER for c in text)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_label_is_cut_off_at_the_left(language):
    with speaking(language):
        drawn = rounding.render(rounding.State())
    labels = re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="end"[^>]*>([^<]+)</text>', drawn)
    assert len(labels) == len(rounding.NAMES)
    for x, text in labels:
        assert width(text) < float(x), f"{text!r} begins left of the picture"
