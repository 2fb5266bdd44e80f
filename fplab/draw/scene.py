"""A scene: rectangles, lines and texts in pixels, drawn as SVG on a page and by matplotlib in a figure.

Text and lines wear the page's own colour (``currentColor``); fills are translucent, so that they tint light and dark
grounds alike. What a colour says is said a second time by a word, a mark or a hatching.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#3b82d6", "#d9730d", "#2f9e62", "#9a63d6", "#e0524d", "#808890"
HUES = (BLUE, ORANGE, GREEN, PURPLE, "", RED, GREY)  # of a theme's series, by their places; the fifth is ink
NUMBERS = (int, float)
PLAIN = (int, float, str)
LEGIBLE = (
    0.39  # a drawing shrinks to this share of its width: all of it is seen beside the files of an 800-pixel JupyterLab
)
POINTS = 0.72  # of a pixel, at 100 pixels an inch
MONO = "ui-monospace,'DejaVu Sans Mono',monospace"


def number(x: float) -> str:
    return f"{x:.2f}".rstrip("0").rstrip(".") if x % 1 else f"{x:.0f}"


@functools.lru_cache(maxsize=4096)
def escaped(text: str) -> str:
    """A text as HTML; a drawing has the same few thousands of times."""
    return html.escape(text)


def attribute(name: str, value: object) -> str:
    text = number(value) if isinstance(value, NUMBERS) else escaped(str(value))
    return f' {name.rstrip("_").replace("_", "-")}="{text}"'


often = functools.lru_cache(maxsize=1 << 14)(attribute)  # drawings have the same places and colours, too


def attributes(given: dict[str, object]) -> str:
    """Keyword arguments as attributes: ``stroke_width=2`` is ``stroke-width="2"``."""
    # Equal values are written alike, but for zeros, which have signs, and for messages, which have languages.
    parts = [(often if value and type(value) in PLAIN else attribute)(name, value) for name, value in given.items()]
    return "".join(parts)


class Mark(NamedTuple):
    """One thing drawn, as SVG calls it: a tag, its attributes as keywords, and the words of a text."""

    tag: str
    given: dict[str, Any]
    text: str = ""


class Scene:
    """A drawing of some width and height in pixels, grown mark by mark; ``spoken``: what a screen reader says of it."""

    def __init__(self, width: float, height: float, spoken: str = "") -> None:
        self.width, self.height, self.spoken = width, height, spoken
        self.marks: list[Mark] = []

    def add(self, tag: str, **given: object) -> None:
        self.marks.append(Mark(tag, given))

    def rect(self, x: float, y: float, width: float, height: float, fill: str = "none", **given: object) -> None:
        self.add("rect", x=x, y=y, width=width, height=height, fill=fill, **given)

    def line(self, x: float, y: float, to_x: float, to_y: float, **given: object) -> None:
        """A line, in the page's colour unless told otherwise."""
        self.add("line", **{"x1": x, "y1": y, "x2": to_x, "y2": to_y, "stroke": "currentColor", **given})

    def path(self, points: Iterable[tuple[float, float]], **given: object) -> None:
        places = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self.add("polyline", **{"points": places, "fill": "none", "stroke": "currentColor", **given})

    def hatch(self, x: float, y: float, width: float, height: float, step: float = 6, pattern: str = "/") -> None:
        """Lines over a rectangle, the second cue of a fill. ``pattern``: "/", "\\\\", "x" (both) or "." (dotted)."""
        strokes = []
        at = x - height
        while at < x + width:  # from the lower edge to the upper one, cut off at the sides
            left, right = max(at, x), min(at + height, x + width)
            if right > left:
                rise = y + height - (left - at), y + height - (right - at)
                fall = y + (left - at), y + (right - at)
                for start, end in (rise,) * (pattern != "\\") + (fall,) * (pattern in "\\x"):
                    strokes.append(f"M{number(left)} {number(start)}L{number(right)} {number(end)}")
            at += step
        dots = {"stroke_dasharray": "1 5"} if pattern == "." else {}
        self.add("path", d="".join(strokes), stroke="currentColor", stroke_opacity=0.55, fill="none",
                 data_hatch=pattern, **dots)  # fmt: skip

    def text(self, x: float, y: float, text: object, anchor: str = "start", size: float = 12, **given: object) -> None:
        """A line of text; ``anchor``: start, middle or end."""
        given = {"x": x, "y": y, "text_anchor": anchor, "font_size": size, **given}
        self.marks.append(Mark("text", given, str(text)))

    def elements(self) -> str:
        return "".join(
            f"<{tag}{attributes(given)}" + (f">{escaped(text)}</{tag}>" if text else "/>")
            for tag, given, text in self.marks
        )

    def svg(self, spoken: object = "") -> str:
        """The scene as an SVG element that scrolls where there is no room for it."""
        box = f"0 0 {number(self.width)} {number(self.height)}"
        least = number(LEGIBLE * self.width)
        style = f"display:block;max-width:100%;min-width:{least}px;height:auto;font-family:system-ui,sans-serif"
        return (
            f'<div style="overflow-x:auto"><svg role="img" aria-label="{html.escape(str(spoken) or self.spoken)}" '
            f'width="{number(self.width)}" viewBox="{box}" fill="currentColor" style="{style}">'
            f"{self.elements()}</svg></div>"
        )

    def onto(self, ax: Axes, origin: tuple[float, float] | None = None, unit: tuple[float, float] = (1, 1)) -> None:
        """Draw rectangles, lines and texts on axes, at 100 pixels an inch.

        Without an ``origin`` the axes become the scene, whose size they have. Axes that show data keep their own scale:
        the pixel ``origin`` lies at their (0, 0), and ``unit`` pixels are one of theirs, to the right and downwards.
        """
        from matplotlib.colors import to_rgba
        from matplotlib.lines import Line2D
        from matplotlib.patches import Rectangle

        def colour(given: dict[str, Any], what: str, default: str = "none") -> Any:
            return to_rgba(of_hue(given.get(what, default)), given.get(f"{what}_opacity"))

        def at(x: float, y: float) -> tuple[float, float]:
            left, top = origin or (0, 0)
            return (x - left) / unit[0], (y - top) / unit[1]

        sides = {"start": "left", "middle": "center", "end": "right"}
        hatched = False  # the rectangle that was drawn last
        for tag, given, text in self.marks:
            width, hatched = POINTS * given.get("stroke_width", 1), tag == "path" or (hatched and tag == "text")
            if tag == "rect":
                x, y = at(given["x"], given["y"])
                size = given["width"] / unit[0], given["height"] / abs(unit[1])
                face, edge = colour(given, "fill"), colour(given, "stroke")
                foot = y if unit[1] > 0 else y - size[1]
                ax.add_patch(Rectangle((x, foot), *size, facecolor=face, edgecolor=edge, linewidth=width))
            elif tag == "line":
                ends = zip(at(given["x1"], given["y1"]), at(given["x2"], given["y2"]), strict=True)
                line = ax.add_line(Line2D(*ends, color=colour(given, "stroke"), linewidth=width))
                line.set_linestyle("--" if "stroke_dasharray" in given else "-")
            elif tag == "path":  # the hatching of the rectangle before it
                ax.patches[-1].set_hatch(4 * given["data_hatch"])
            else:
                font = {"size": POINTS * given["font_size"], "weight": given.get("font_weight", "normal")}
                ink = to_rgba(of_hue(given.get("fill", "currentColor")), given.get("opacity"))
                middle = 0 if origin is None else 0.36 * given["font_size"]  # letters are not stretched with the axes
                written = ax.text(*at(given["x"], given["y"] - middle), text, ha=sides[given["text_anchor"]], color=ink,
                                  va="center" if middle else "baseline", **font)  # fmt: skip
                if hatched:  # no line behind it crosses it
                    ground = to_rgba(of_hue("Canvas"), 0.75)
                    written.set_bbox({"boxstyle": "round,pad=0.1", "facecolor": ground, "edgecolor": "none"})
        if origin is None:
            ax.set(xlim=(0, self.width), ylim=(self.height, 0))
            ax.set_axis_off()


def of_hue(name: str) -> str:
    """The theme's colour for one of a scene's hues; ``currentColor`` is that of text, ``Canvas`` the ground."""
    from .style import current

    theme = current()
    own = {"currentColor": theme.ink, "Canvas": theme.background}
    return theme.series[HUES.index(name)] if name in HUES else own.get(name, name)


def patch(label: str, hue: str, opacity: float, hatch: str = "") -> Patch:
    """The legend handle of rectangles of a hue, as :meth:`Scene.onto` draws them."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch

    edge = to_rgba(of_hue("currentColor"), 0.5)
    return Patch(
        label=label, facecolor=to_rgba(of_hue(hue), opacity), edgecolor=edge, hatch=4 * hatch, linewidth=POINTS
    )


def figure_of_scenes(scenes: Sequence[tuple[str, Scene]]) -> Figure:
    """A figure of titles, each with its scene below it, in pixels of which 100 are an inch."""
    from .style import new_figure

    heights = [scene.height + 12 + 18 * len(title.splitlines()) for title, scene in scenes]
    width, height = max(scene.width for _, scene in scenes), sum(heights)
    figure, top = new_figure(width / 100, height / 100), height
    figure.set_layout_engine("none")
    for (title, scene), tall in zip(scenes, heights, strict=True):
        top -= tall
        ax = figure.add_axes((0.0, top / height, scene.width / width, scene.height / height))
        scene.onto(ax)
        ax.set_title(f" {title}", loc="left")
    return figure
