"""The colours of the lab's figures, light and dark; without matplotlib, for pages that show what was drawn before.

On a page a figure that was drawn light is dark where the page is: by one style sheet, the same in every figure, which
gives each colour of the light theme its twin of the dark one. A page says which it wants by ``color-scheme``, of itself
or of the image; without a word the reader's system decides. The figure draws its own ground, so it is legible where
neither is understood.
"""

import base64
import dataclasses
import functools
import html
from collections.abc import Iterator
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


LIGHT = Theme(name="light", background="#ffffff", ink="#1c2128", muted="#59636e", grid="#dde1e6",
              series=("#1f66e0", "#c94a08", "#045c47", "#6a1fa0", "#15181d", "#a84e8b", "#5d6369", "#654111"),
              sign="#f6c6c0", exponent="#f7dda0", fraction="#bfdcf5")  # fmt: skip
DARK = Theme(name="dark", background="#14181f", ink="#e8ebef", muted="#a3adb9", grid="#303844",
             series=("#85b7f5", "#f5872a", "#4befb1", "#a268e8", "#f1f4f8", "#ff378c", "#7f8ba0", "#ecec50"),
             sign="#8a3b34", exponent="#7a5a10", fraction="#1f5a8c")  # fmt: skip
THEMES = {"light": LIGHT, "dark": DARK}
STATIC = "FPLAB_STATIC"  # set where a page is made that no kernel stands behind


def colours(theme: Theme) -> Iterator[str]:
    """The colours of a theme, in the order of its fields."""
    for field in dataclasses.fields(theme)[1:]:
        given = getattr(theme, field.name)
        yield from (given,) if isinstance(given, str) else given


@functools.cache
def sheet() -> str:
    """The style sheet of every figure on a page.

    What has no colour of its own is black text. Points that were drawn as pixels have no style: they are turned over.
    """
    rules = [f"svg{{fill:{DARK.ink}}}image{{filter:invert(1) hue-rotate(180deg)}}"]
    for light, dark in zip(colours(LIGHT), colours(DARK), strict=True):
        for kind in ("fill", "stroke"):  # matplotlib writes them into styles, and the ground of a hatching by itself
            rules.append(f'[style*="{kind}: {light}"],[{kind}="{light}"]{{{kind}:{dark}!important}}')
    return f"<style>@media(prefers-color-scheme:dark){{{''.join(rules)}}}</style>"


def adaptive(svg: str) -> str:
    """A figure that was drawn in the light theme, with the style sheet that makes it dark where dark is preferred."""
    start = svg.index(">", svg.index("<svg")) + 1
    return svg[:start] + sheet() + svg[start:]


# A figure is light or dark as JupyterLab's theme is; elsewhere as the page says.
THEMED = (
    "<style>[data-jp-theme-light=true] .fplab-figure{color-scheme:light}"
    "[data-jp-theme-light=false] .fplab-figure{color-scheme:dark}</style>"
)


def embedded(svg: str, spoken: str, width: str = "68em") -> str:
    """A figure as HTML for a notebook, dark where the page is, and never wider than there is room.

    ``spoken``: what it shows, for those who hear it. ``width``: with room enough.
    """
    data = base64.b64encode(adaptive(svg).encode()).decode("ascii")
    style = f"width:100%;max-width:{width};border-radius:4px"
    source = f"data:image/svg+xml;base64,{data}"
    return f'{THEMED}<img class="fplab-figure" alt="{html.escape(spoken)}" src="{source}" style="{style}"/>'
