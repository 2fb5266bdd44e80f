"""A figure that is light on a light page and dark on a dark one."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

pytest.importorskip("matplotlib")

from fplab.draw import style
from fplab.draw.themes import DARK, LIGHT, adaptive, colours, sheet

COLOUR = re.compile(r"#[0-9a-f]{6}\b")


def drawn(theme: str, path) -> str:
    """A figure with every kind of colour: series, muted text, grid, fields of a code, a hatching, a translucent one."""
    with style.themed(theme) as colours:
        figure = style.new_figure(6, 4)
        lines = figure.subplots()
        lines.bar([0, 1], [1, 2], color=[colours.sign, colours.exponent])
        for i in range(8):
            lines.plot([0, 1], [i, i + 1], **style.look(i).marked, label=f"series {i}")
        lines.bar([0.5], [3], color=colours.fraction, hatch="//", edgecolor=colours.ink)
        lines.fill_between([0, 1], [0, 0], [1, 1], color=colours.series[1], alpha=0.25)
        lines.legend()
        style.save(figure, path, theme)
    return path.read_text(encoding="utf-8")


def test_a_light_figure_under_the_sheet_is_the_dark_one(tmp_path):
    light, dark = drawn("light", tmp_path / "a.svg"), drawn("dark", tmp_path / "b.svg")
    twins = dict(zip(colours(LIGHT), colours(DARK), strict=True))
    before, after = COLOUR.findall(light), COLOUR.findall(dark)
    assert len(set(before)) >= 14
    assert [twins[colour] for colour in before] == after
    for kind, start, colour in re.findall(r'\b(fill|stroke)(: |=")(#[0-9a-f]{6})', light):
        selector = f'[{kind}="{colour}"]' if start == '="' else f'[style*="{kind}: {colour}"]'
        rule = next(rule for rule in sheet().split("}") if selector in rule)
        assert rule.endswith(f"{{{kind}:{twins[colour]}!important")


def test_the_sheet_is_all_that_is_added(tmp_path):
    light = drawn("light", tmp_path / "a.svg")
    page = adaptive(light)
    assert ET.fromstring(page) is not None
    assert page.replace(sheet(), "") == light
    assert page.index(sheet()) < page.index("<metadata>") or "<metadata>" not in page
    assert f"svg{{fill:{DARK.ink}}}" in sheet()  # text that nobody gave a colour
