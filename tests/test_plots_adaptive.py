"""A figure that is light on a light page and dark on a dark one."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from fplab.draw import adaptive, style
from fplab.draw.themes import DARK, LIGHT

COLOUR = re.compile(r"#[0-9a-f]{6}\b")
RULE = re.compile(
    r'\[(?:style\*="(?:fill|stroke): |(?:fill|stroke)=")(#[0-9a-f]{6})"\]\{(fill|stroke):(#[0-9a-f]{6})!important\}'
)


def drawn(theme: str, path) -> str:
    """A figure with every kind of colour: series, muted text, grid, fields of a code, a hatching, a mixture."""
    with style.themed(theme) as colours:
        figure = style.new_figure(6, 4)
        lines = figure.subplots()
        lines.bar([0, 1], [1, 2], color=[colours.sign, colours.exponent])
        for i in range(8):
            lines.plot([0, 1], [i, i + 1], **style.look(i).marked, label=f"series {i}")
        lines.bar([0.5], [3], color=colours.fraction, hatch="//", edgecolor=colours.ink)
        mixed = style.mpl.colors.LinearSegmentedColormap.from_list("m", [colours.background, colours.series[1]])
        lines.fill_between([0, 1], [0, 0], [1, 1], color=mixed(64))
        lines.legend()
        style.save(figure, path, theme)
    return path.read_text(encoding="utf-8")


def test_a_light_figure_recoloured_is_the_dark_one(tmp_path):
    light, dark = drawn("light", tmp_path / "a.svg"), drawn("dark", tmp_path / "b.svg")
    before, after = COLOUR.findall(light), COLOUR.findall(dark)
    assert len(set(before)) >= 14
    off = [
        np.subtract(*(list(bytes.fromhex(c[1:])) for c in (adaptive.twin(x), y)))
        for x, y in zip(before, after, strict=True)
    ]
    assert np.abs(off).max() <= 1  # a mixture is rounded twice
    known = [x == y for x, y in zip(map(adaptive.twin, before), after, strict=True)]
    assert sum(known) >= len(known) - 2  # all but the mixture


def test_the_sheet_names_every_colour_that_is_drawn(tmp_path):
    light = drawn("light", tmp_path / "a.svg")
    page = adaptive.adaptive(light)
    assert ET.fromstring(page) is not None
    sheet = re.search(r"<style>@media\(prefers-color-scheme:dark\)\{(.*?)\}</style>", page)
    assert page.replace(sheet[0], "") == light
    assert page.index(sheet[0]) < page.index("<metadata>") or "<metadata>" not in page
    rules = {(found[0], found[1]): found[2] for found in RULE.findall(sheet[1])}
    used = {(colour, kind) for kind, _, colour in adaptive.USED.findall(light)}
    assert set(rules) == used
    assert rules["#ffffff", "fill"] == DARK.background
    assert rules[LIGHT.grid, "stroke"] == DARK.grid


def test_twins():
    assert [adaptive.twin(c) for c in adaptive.colours(LIGHT)] == list(adaptive.colours(DARK))
    assert adaptive.twin("#000000") == DARK.ink  # text that nobody gave a colour
    assert adaptive.twin("#123456") is None
    assert adaptive.twin("#8e9298") is not None  # half-way between ink and ground
    assert adaptive.adaptive('<svg><g style="fill: #123456"/></svg>').count("#123456") == 1
