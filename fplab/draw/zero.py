"""What ranks hold of a network that is sharded: pieces of each layer's parameters, gradients and states; over time."""

from collections.abc import Sequence

from ..words import Text, say
from .collectives import rank_name
from .scene import BLUE, GREEN, GREY, ORANGE, PURPLE, Scene

LEFT, PANEL, LAYER, ROW, TOP = 82, 232, 54, 30, 44  # pixels
KINDS = (
    ("parameters", say("parameters"), BLUE),
    ("gradients", say("gradients"), GREEN),
    ("states", say("states"), PURPLE),
)
Held = Sequence[Sequence[int]]  # by layer: pieces of parameters, gradients and states


def pieces_scene(ranks: int, held: Held, layer: int, touched: str) -> Scene:
    """A panel a rank: a row a kind, a cell a layer, in it a box for each rank's piece, full where held.

    ``held``: of each kind 0, 1 (this rank's own piece) or ``ranks`` pieces (the whole). ``layer``, ``touched``: the
    cell that the act changed, framed.
    """
    drawing = Scene(LEFT + ranks * PANEL, TOP + len(KINDS) * ROW + 6)
    box = (LAYER - 8) / ranks
    for row, (_, name, _) in enumerate(KINDS):
        drawing.text(LEFT - 8, TOP + row * ROW + 19, name, "end", 12)
    for rank in range(ranks):
        x = LEFT + rank * PANEL
        drawing.text(x + len(held) * LAYER / 2, 15, rank_name(rank), "middle", 12, font_weight="bold")
        for i, pieces in enumerate(held):
            left = x + i * LAYER
            drawing.text(left + LAYER / 2 - 2, 35, say("layer {n}", n=i + 1), "middle", 10, opacity=0.8)
            for row, (kind, _, hue) in enumerate(KINDS):
                y = TOP + row * ROW
                for piece in range(ranks):
                    full = pieces[row] == ranks or (pieces[row] == 1 and piece == rank)
                    fate, tint = ("held", 0.6) if full else ("empty", 0.04)
                    drawing.rect(left + 2 + piece * box, y + 4, box - 2, ROW - 10, hue, fill_opacity=tint,
                                 stroke=GREY, stroke_opacity=0.5, class_=fate)  # fmt: skip
                if (i, kind) == (layer, touched):
                    drawing.rect(left - 1, y + 1, LAYER - 4, ROW - 4, stroke=ORANGE, stroke_width=2.5, class_="touched")
    return drawing


def course_scene(sizes: Sequence[int], now: int, phases: Sequence[Text], spoken: str) -> Scene:
    """A bar for the bytes that a rank holds after each act, the present one full; below them which pass it is.

    ``phases``: the name of the pass of each act.
    """
    width, height = 780.0, 86.0
    drawing, step, most = Scene(width, height + 34, spoken), width / len(sizes), max(sizes)
    for i, size in enumerate(sizes):
        tall = height * size / most
        drawing.rect(i * step + 1, 10 + height - tall, step - 2, tall, BLUE, fill_opacity=0.8 if i == now else 0.25,
                     stroke=GREY, stroke_opacity=0.4, class_="moment")  # fmt: skip
    first = 0
    for i in range(1, len(phases) + 1):
        if i == len(phases) or phases[i] != phases[first]:
            drawing.line(first * step + 2, height + 14, i * step - 2, height + 14)
            drawing.text((first + i) * step / 2, height + 29, phases[first], "middle", 11)
            first = i
    return drawing
