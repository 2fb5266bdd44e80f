"""Collectives that move: one SVG file whose chunks travel from rank to rank, in any browser and without a script.

The file follows the reader's light or dark setting. Viewers that do not animate show the end of every collective.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from ..words import say, say_of
from .collectives import ROW, WIDTH, add_frame
from .scene import Scene
from .themes import DARK, LIGHT, Theme

BEAT = 1.6  # seconds of a step
FLIGHT = 0.6  # of a beat: how long a message is on its way
LEFT, TOP = 58, 52  # pixels: of the cells in a panel
COLUMNS = 3


@dataclass(frozen=True)
class Moving:
    """One collective, of as many steps as it has lists of ``messages``: each a (source, target, chunk).

    ``frames``: int64 (ranks, chunks), bit r where rank r's value is in a chunk, at first and after every step.
    """

    title: str
    frames: Sequence[np.ndarray]
    messages: Sequence[Sequence[tuple[int, int, int]]]


def animation(panels: Sequence[Moving]) -> str:
    """The text of the SVG file: all panels, over and over, each with its steps from the common start on."""
    note = say("a chunk's number: how many ranks' values are in it (or which); orange: on its way, or just come")
    beats = max(len(panel.messages) for panel in panels) + 2
    ranks = max(len(panel.frames[0]) for panel in panels)
    width, height = LEFT + WIDTH + 20, TOP + ranks * ROW + 14
    parts = []
    for i, panel in enumerate(panels):
        x, y = i % COLUMNS * width, i // COLUMNS * height
        parts.append(f'<g transform="translate({x} {y})">\n{_panel(panel, beats)}\n</g>')
    bottom = -(-len(panels) // COLUMNS) * height + 16
    parts.append(f'<text class="quiet" x="8" y="{bottom - 8}">{note}</text>')
    size = f"{min(len(panels), COLUMNS) * width} {bottom}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="11">'
    names = "; ".join(panel.title for panel in panels)
    paper = '<rect class="paper" width="100%" height="100%"/>'
    return "\n".join([head, f"<title>{escape(names)}</title>", _style(), paper, *parts, "</svg>\n"])


def _style() -> str:
    def rules(theme: Theme) -> str:
        first, second = theme.series[:2]
        return (
            f".paper{{fill:{theme.background}}}text{{fill:{theme.ink}}}.quiet{{fill:{theme.muted}}}"
            f".cell{{fill:{first}}}.on{{fill:{theme.background}}}.new{{fill:none;stroke:{second}}}"
            f".message{{fill:{second}}}"
        )

    return f"<style>{rules(LIGHT)}@media(prefers-color-scheme:dark){{{rules(DARK)}}}</style>"


def _panel(panel: Moving, beats: int) -> str:
    """Title, ranks, a group for each frame, and the messages above them."""
    ranks, chunks = panel.frames[0].shape
    parts = [f'<text x="8" y="20" font-size="13" font-weight="bold">{escape(panel.title)}</text>']
    parts += [f'<text class="quiet" x="8" y="{TOP + r * ROW + 19}">rank {r}</text>' for r in range(ranks)]
    last = len(panel.frames) - 1
    for k, frame in enumerate(panel.frames):
        written = {(target, chunk) for _, target, chunk in panel.messages[k - 1]} if k else set()
        shown = _between("visibility", "visible", "hidden", k, k + 1 if k < last else beats, beats)
        label = say("step {k} of {last}", k=k, last=last) if k else say_of("a frame", "before")
        state = "visible" if k == last else "hidden"
        scene = Scene(LEFT + WIDTH, TOP + ranks * ROW)
        add_frame(scene, frame, written, LEFT, TOP)
        caption = f'<text class="quiet" x="{LEFT}" y="40">{label}</text>'
        parts.append(f'<g visibility="{state}">{shown}{caption}{scene.elements()}</g>')
    for k, step in enumerate(panel.messages, start=1):
        parts += [_message(m, WIDTH / chunks, k - FLIGHT, k, beats) for m in step]
    return "\n".join(parts)


def _message(message: tuple[int, int, int], width: float, start: float, end: float, beats: int) -> str:
    source, target, chunk = message
    x, here, there = LEFT + (chunk + 0.64) * width, TOP + source * ROW + 8, TOP + target * ROW + 8
    a, b = start / beats, end / beats
    move = (
        f'<animate attributeName="y" dur="{beats * BEAT:g}s" repeatCount="indefinite" '
        f'values="{here};{here};{there};{there}" keyTimes="0;{a:.4f};{b:.4f};1"/>'
    )
    seen = _between("opacity", "0.9", "0", start, end, beats)
    box = f'x="{x:g}" y="{here}" width="{0.28 * width:g}" height="{ROW - 16}" rx="4"'
    return f'<rect class="message" {box} opacity="0">{seen}{move}</rect>'


def _between(attribute: str, inside: str, outside: str, start: float, end: float, beats: int) -> str:
    """An attribute that has one value from a beat to another, and a second one else."""
    times = [(0.0, outside)] * (start > 0) + [(start, inside)] + [(end, outside)] * (end < beats)
    values, keys = ";".join(v for _, v in times), ";".join(f"{t / beats:.4g}" for t, _ in times)
    return (
        f'<animate attributeName="{attribute}" dur="{beats * BEAT:g}s" repeatCount="indefinite" calcMode="discrete" '
        f'values="{values}" keyTimes="{keys}"/>'
    )
