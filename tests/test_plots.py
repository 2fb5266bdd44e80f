"""The style and the recurring drawings: contrast, colour-blind safety, stable bytes, and what is drawn."""

import base64
import itertools
import re
import xml.etree.ElementTree as ET
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import refusals

pytest.importorskip("matplotlib")

import matplotlib as mpl
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from fplab.draw import layouts, style
from fplab.draw.histogram import binade_histogram, format_thresholds, percent, shares
from fplab.draw.numberline import number_line, values_between
from fplab.draw.strip import bit_strip
from fplab.draw.themes import DARK, LIGHT, Theme, adaptive, colours, sheet
from fplab.formats import get
from fplab.inspection import bit_fields

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                            [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip


def linear(color: str) -> np.ndarray:
    """A #rrggbb colour as linear RGB."""
    c = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast of two colours."""
    dark, light = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB (D65) of linear RGB."""
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    )
    t = to_xyz @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def ciede2000(one: np.ndarray, two: np.ndarray) -> float:
    """The CIEDE2000 difference of two CIELAB colours."""
    (l1, a1, b1), (l2, a2, b2) = one, two
    chroma7 = ((np.hypot(a1, b1) + np.hypot(a2, b2)) / 2) ** 7
    g = 1.5 - 0.5 * np.sqrt(chroma7 / (chroma7 + 25.0**7))
    a1, a2 = a1 * g, a2 * g
    c1, c2 = np.hypot(a1, b1), np.hypot(a2, b2)
    h1, h2 = np.degrees(np.arctan2(b1, a1)), np.degrees(np.arctan2(b2, a2))
    dh = (h2 - h1 + 180) % 360 - 180
    light, chroma, hue = (l1 + l2) / 2, (c1 + c2) / 2, h1 + dh / 2
    cos = lambda degrees: np.cos(np.radians(degrees))  # noqa: E731
    t = 1 - 0.17 * cos(hue - 30) + 0.24 * cos(2 * hue) + 0.32 * cos(3 * hue + 6) - 0.2 * cos(4 * hue - 63)
    sl = 1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2)
    dl, dc = (l2 - l1) / sl, (c2 - c1) / (1 + 0.045 * chroma)
    dhue = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(dh / 2)) / (1 + 0.015 * chroma * t)
    turn = np.exp(-(((hue % 360 - 275) / 25) ** 2))
    rt = -2 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7)) * np.sin(np.radians(60 * turn))
    return float(np.sqrt(dl**2 + dc**2 + dhue**2 + rt * dc * dhue))


def test_ciede2000_matches_published_pairs() -> None:
    # Sharma, Wu and Dalal 2005, table 1, pairs 1, 8, 14 and 25.
    assert ciede2000(np.array([50, 2.6772, -79.7751]), np.array([50, 0, -82.7485])) == pytest.approx(2.0425, abs=1e-4)
    assert ciede2000(np.array([50, -1, 2]), np.array([50, 0, 0])) == pytest.approx(2.3669, abs=1e-4)
    assert ciede2000(np.array([50, 2.5, 0]), np.array([50, 0, -2.5])) == pytest.approx(4.3065, abs=1e-4)
    assert ciede2000(np.array([60.2574, -34.0099, 36.2677]), np.array([60.4626, -34.1751, 39.4387])) == pytest.approx(
        1.2644, abs=1e-4
    )


@pytest.mark.parametrize("theme", style.THEMES.values(), ids=lambda t: t.name)
def test_every_colour_stands_out_from_the_background(theme: Theme) -> None:
    assert min(contrast(c, theme.background) for c in (*theme.series, theme.muted)) >= 4.5
    assert contrast(theme.ink, theme.background) >= 7
    assert min(contrast(theme.ink, fill) for fill in (theme.sign, theme.exponent, theme.fraction)) >= 4.5


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", style.THEMES.values(), ids=lambda t: t.name)
def test_series_differ_for_every_kind_of_sight(theme: Theme, sight: str) -> None:
    seen = [lab(SIGHT[sight] @ linear(c)) for c in theme.series]
    assert min(ciede2000(a, b) for a, b in itertools.combinations(seen, 2)) >= 9
    assert min(ciede2000(a, b) for a, b in itertools.combinations(seen[:5], 2)) >= 11.5


def test_colour_is_never_the_only_cue() -> None:
    looks = [style.look(i) for i in range(8)]
    assert len({look.marker for look in looks}) == len({look.color for look in looks}) == 8
    assert style.look(9) == style.look(1)
    assert style.look_of_format("fp16") == style.look(0)
    assert style.look_of_format("e3m2") == style.look_of_format("a record of mine")


def test_theme_and_parameters_are_restored() -> None:
    before = mpl.rcParams["axes.facecolor"]
    with style.themed("dark") as theme:
        assert style.current() is theme is DARK
        assert mpl.rcParams["axes.facecolor"] == theme.background
    assert style.current() is LIGHT
    assert mpl.rcParams["axes.facecolor"] == before


def example(theme: str):
    with style.themed(theme):
        figure = style.new_figure(5, 3)
        ax = figure.subplots()
        binade_histogram(ax, np.array([3, 5, 2]), np.array([-26, -25, -10]), "fp16")
        ax.patches[-1].set_label("gradients")
        ax.legend()
    return figure


@pytest.mark.parametrize("suffix", ["svg", "png"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_saved_files_are_the_same_bytes_every_time(tmp_path, theme: str, suffix: str) -> None:
    paths = [tmp_path / f"{i}.{suffix}" for i in range(2)]
    for path in paths:
        style.save(example(theme), path, theme)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert len(first) < 200_000
    assert b"Matplotlib" not in first
    assert b"<dc:date>" not in first
    if suffix == "svg":
        assert style.THEMES[theme].background.encode() in first
        assert b"<text" not in first  # outlines: no font is needed to read it


# --- drawings -----------------------------------------------------------------------------------------------------
def texts(ax) -> list[str]:
    return [t.get_text() for t in ax.texts]


def test_histogram_thresholds_and_shares() -> None:
    assert [t for t, _ in format_thresholds("fp16")] == [-24, -14, 16]
    assert [t for t, _ in format_thresholds("e8m0")] == [-127, 128]
    counts, exponents = np.array([10, 20, 30, 40]), np.array([-25, -24, -14, 16])
    assert shares(counts, exponents, format_thresholds("fp16")) == (0.1, 0.2, 0.3, 0.4)
    assert [percent(p) for p in (0, 1e-9, 0.25, 1)] == ["0%", "<0.1%", "25.0%", "100.0%"]


def test_histogram_draws_bars_and_shares() -> None:
    with style.themed("light"):
        ax = style.new_figure().subplots()
        binade_histogram(ax, np.array([1, 3]), np.array([-3, 25]), "fp16")
    bars = sorted((p.get_x(), p.get_height()) for p in ax.patches if isinstance(p, Rectangle))
    assert bars[-2:] == [(-3.0, 25.0), (25.0, 75.0)]
    assert texts(ax) == ["0%", "0%", "25.0%", "75.0%"]


def test_histogram_of_nothing() -> None:
    ax = style.new_figure().subplots()
    binade_histogram(ax, np.zeros(2, int), np.array([0, 1]), "fp16")


def test_bit_strip_draws_every_bit() -> None:
    with style.themed("dark"):
        ax = style.new_figure().subplots()
        bit_strip(bit_fields(0x3C00, get("fp16")), "fp16").onto(ax)
    drawn = texts(ax)
    assert "".join(t for t in drawn if t in ("0", "1")) == "0011110000000000"
    assert {"exponent", "fraction", "s"} <= set(drawn)
    assert len(ax.patches) == 16


def test_number_line_values() -> None:
    line = [float(v) for v in values_between(get("e2m1"), Fraction(-6), Fraction(100))]
    assert line == [-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert [float(v) for v in values_between(get("e2m1"), Fraction(-4), Fraction(-2))] == [-4, -3, -2]
    assert [float(v) for v in values_between(get("e8m0"), Fraction(-1), Fraction(1, 2**126))] == [2.0**-127, 2.0**-126]


def test_number_line_names_roundings() -> None:
    ax = style.new_figure().subplots()
    number_line(ax, "e4m3", 1, 2, x=Fraction("1.17"), roundings=("rtz", "rne", "rtp"))
    assert {"RTZ RNE", "RTP", "$x$ = 1.17", "e4m3"} <= set(texts(ax))


def test_a_figure_shows_itself_in_a_notebook():
    with style.themed("light"):
        figure = style.new_figure(2, 1)
        figure.add_subplot().plot([0, 1])
    assert figure._repr_png_().startswith(b"\x89PNG")


def axes():
    return style.new_figure().subplots()


test_what_cannot_be_drawn_is_refused = refusals.saying(
    (lambda: style.theme_of("dusk"), "unknown theme 'dusk'. Allowed: light, dark."),
    (lambda: style.save(style.new_figure(), "a.gif", "light"), "cannot be saved as '.gif'; allowed: .svg, .png"),
    (lambda: binade_histogram(axes(), np.zeros(2, int), np.arange(3), "fp16"), "counts (2,) and exponents (3,)"),
    (lambda: number_line(axes(), "fp16", 0, 1), "fp16 has 15,360 values between 0 and 1; at most 400"),
    (lambda: number_line(axes(), "fp16", 1, 1), "must be less than"),
    (lambda: number_line(axes(), "e4m3", 400, 448, x=1e6), "rounds to NaN in e4m3"),
)


# --- on light and on dark pages -----------------------------------------------------------------------------------
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_notebook_gets_a_figure_that_fits_and_is_dark_on_a_dark_page(theme, monkeypatch):
    with style.themed(theme):
        figure = style.new_figure(9, 2)
        figure.text(0.5, 0.5, "x")
    page = figure._repr_html_()
    (data,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    svg = base64.b64decode(data).decode()
    assert sheet() in svg
    assert f"fill: {(DARK if theme == 'dark' else LIGHT).background}" in svg
    assert "[data-jp-theme-light=false] .fplab-figure{color-scheme:dark}" in page
    assert 'style="width:100%;max-width:900px;' in page
    monkeypatch.setenv("FPLAB_STATIC", "1")
    assert figure._repr_html_() is None


def test_the_sheet_is_all_that_is_added(tmp_path):
    light = drawn("light", tmp_path / "a.svg")
    page = adaptive(light)
    assert ET.fromstring(page) is not None
    assert page.replace(sheet(), "") == light
    assert page.index(sheet()) < page.index("<metadata>") or "<metadata>" not in page
    assert f"svg{{fill:{DARK.ink}}}" in sheet()  # text that nobody gave a colour


@pytest.mark.parametrize("left_out", ["remembered", "twins"])
def test_a_figure_whose_texts_and_ticks_are_made_once_has_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    """Texts that are alike but for one thing each, which says how they are laid out; ticks that differ from usual."""
    looks: list[dict[str, Any]] = [
        {}, {"rotation": 30}, {"rotation": 30, "rotation_mode": "anchor"}, {"ha": "right"}, {"va": "top"},
        {"multialignment": "right"}, {"linespacing": 2.0}, {"fontsize": 7}, {"fontweight": "bold"},
        {"parse_math": False}, {"wrap": True},
    ]  # fmt: skip

    def drawn() -> str:
        with style.themed("light"):
            figure = style.new_figure()
            upper, lower = figure.subplots(2)
            upper.set(yscale="log", ylim=(1e-6, 1e6), title="a title", ylabel="$2^{-24}$")
            upper.set_xticks([0.1, 0.5, 0.9], labels=["one", "$2^1$", "one"])
            upper.xaxis.get_major_ticks()[0].label1.set(color="red", rotation=20)
            lower.tick_params("y", colors="blue", labelsize=7)
            lower.minorticks_on()
            for i, look in enumerate(looks):
                lower.text(0.3, i / len(looks), "one, $x^2$\nand another", **look)
        return style.svg_of(figure)

    once = drawn()
    monkeypatch.setattr(style, left_out, nullcontext)
    assert once == drawn()


def test_a_text_is_measured_once_however_often_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with style.themed("light"):
        figure = style.new_figure()
        texts = [figure.text(x, 0.5, "the same") for x in (0.0, 0.5)]
    renderer = RendererAgg(800, 450, 100)
    wanted = [text.get_window_extent(renderer) for text in texts]
    with layouts.remembered():
        texts[0].get_window_extent(renderer)
        with monkeypatch.context() as patch:
            patch.setattr(layouts, "MEASURE", None)
            assert [text.get_window_extent(renderer).bounds for text in texts] == [one.bounds for one in wanted]
    assert Text._get_layout is layouts.MEASURE  # type: ignore[attr-defined]
