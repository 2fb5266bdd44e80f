"""The colours of the lab's figures, light and dark; without matplotlib, for pages that show what was drawn before."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """The colours of one theme.

    ``series`` are at least 4.5 : 1 against ``background`` (so labels may wear them), and differ pairwise by at least
    9 in CIEDE2000 to normal, protanopic, deuteranopic and tritanopic eyes, the first five by 11.5; a test measures it.
    """

    name: str
    background: str
    ink: str  # text and axes
    muted: str  # secondary text
    grid: str
    series: tuple[str, ...]
    sign: str  # fills of the three fields of a code
    exponent: str
    fraction: str


LIGHT = Theme(
    name="light",
    background="#ffffff",
    ink="#1c2128",
    muted="#59636e",
    grid="#dde1e6",
    series=("#1f66e0", "#c94a08", "#045c47", "#6a1fa0", "#15181d", "#a84e8b", "#5d6369", "#654111"),
    sign="#f6c6c0",
    exponent="#f7dda0",
    fraction="#bfdcf5",
)
DARK = Theme(
    name="dark",
    background="#14181f",
    ink="#e8ebef",
    muted="#a3adb9",
    grid="#303844",
    series=("#85b7f5", "#f5872a", "#4befb1", "#a268e8", "#f1f4f8", "#ff378c", "#7f8ba0", "#ecec50"),
    sign="#8a3b34",
    exponent="#7a5a10",
    fraction="#1f5a8c",
)
THEMES = {"light": LIGHT, "dark": DARK}
