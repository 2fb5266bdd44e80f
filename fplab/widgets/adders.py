"""The adder explorer: what a product loses by its accumulator's width, guard bits, block, rounding and order of k.

All errors are :func:`fplab.tensorcore.explore`'s; the units of GPUs stand among those that nobody has built.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .. import tensorcore
from ..draw.page import facts, listed, note, panel, title, two_to
from ..draw.scene import BLUE, GREY, ORANGE, Scene
from ..errors import integer, one_of
from ..tensorcore.exploration import Exploration, Point
from ..tensorcore.plan import ONE_CHAIN, Plan
from ..words import say, say_of
from .shell import OPTIONS, Control, shown

SIDE, K, SEED = 16, 1024, 6  # of the product: SIDE x K times K x SIDE, of normal numbers
WIDTHS = range(4, 25)
WIDTH, HEIGHT, LEFT, DECADES = 820, 270, 60, 9
INPUTS = ("e4m3", "e5m2", "fp16", "bf16", "tf32")
ORDERS = {"one chain": ONE_CHAIN, "promoted every 128": Plan(promote=128), "split in four": Plan(split_k=4)}
ROUNDINGS = {"toward zero": "rtz", "to nearest": "rne"}


@dataclass(frozen=True)
class State:
    """The fields of a unit, as :func:`fplab.tensorcore.explore` has them, ``rounding`` and ``order`` by their names."""

    inputs: str = "e4m3"
    accumulator_bits: int = 14
    guard_bits: int = 0
    block: int = 32
    rounding: str = "toward zero"
    order: str = "one chain"


@lru_cache(maxsize=256)
def explored(inputs: str, guard_bits: int, block: int, rounding: str, order: str) -> Exploration:
    """Units of every width with these fields, and the GPUs' own."""
    a, b = np.random.default_rng(SEED).normal(size=(2, SIDE, K))
    return tensorcore.explore(
        (a, b.T), inputs=inputs, accumulator_bits=WIDTHS, guard_bits=guard_bits, block=block,
        rounding=ROUNDINGS[one_of("rounding", rounding, ROUNDINGS)], order=ORDERS[one_of("order", order, ORDERS)],
    )  # fmt: skip


def measured(state: State) -> tuple[list[Point], list[Point]]:
    """The units of every width with a state's other fields, and those of GPUs."""
    points = explored(state.inputs, state.guard_bits, state.block, state.rounding, state.order).points
    others = state.guard_bits, state.block, ROUNDINGS[state.rounding]
    return [p for p in points if (p.guard_bits, p.block, p.rounding) == others], [p for p in points if p.gpus]


def render(state: State) -> str:
    """The error by the accumulator's width, the chosen unit and each GPU's marked; a list of these."""
    width = integer("accumulator_bits", state.accumulator_bits, WIDTHS[0], WIDTHS[-1])
    curve, of_gpus = measured(state)
    chosen = next(p for p in curve if p.accumulator_bits == width)
    usual, _ = measured(State(state.inputs))
    words = {code: OPTIONS[name] for name, code in ROUNDINGS.items()}
    lines = [
        (letter, say("{units}: {bits} + {guards} bits, blocks of {block}, {rounding}: {error:.2e}", units=units,
                     bits=p.accumulator_bits, guards=p.guard_bits, block=p.block, rounding=words[p.rounding],
                     error=p.error))
        for letter, units, p in [("○", say("the chosen unit"), chosen),
                                 *((mark(n), listed(*p.gpus), p) for n, p in enumerate(of_gpus))]
    ]  # fmt: skip
    spoken = say("{bits} bits: a relative error of {error:.2e}; {n} kinds of GPUs' units beside it",
                 bits=width, error=chosen.error, n=len(of_gpus))  # fmt: skip
    return panel(title(say("A product of {inputs}, k = {k}: the error by the accumulator's width",
                           inputs=state.inputs.upper(), k=K)),
                 _plot(curve, usual, chosen, of_gpus).svg(spoken), facts(lines),
                 note(say("Bits of the accumulator + guard bits. Solid: the chosen fields. Dashed: cut, no guard bits, "
                          "blocks of 32, one chain. Letters: units of GPUs, in the chosen order of k.")))  # fmt: skip


def mark(n: int) -> str:
    """The letter of a kind of GPUs' units."""
    return chr(ord("A") + n)


def _at(bits: int, error: float) -> tuple[float, float]:
    """Where a unit stands in the picture."""
    decade = -np.log10(np.clip(error, 10.0**-DECADES, 1))
    return LEFT + (bits - WIDTHS[0]) / (WIDTHS[-1] - WIDTHS[0]) * (WIDTH - LEFT - 60), 14 + decade / DECADES * HEIGHT


def _plot(curve: list[Point], usual: list[Point], chosen: Point, of_gpus: list[Point]) -> Scene:
    drawing = Scene(WIDTH, HEIGHT + 60)
    right = _at(WIDTHS[-1], 1)[0]
    for decade in range(0, DECADES + 1, 3):
        y = _at(WIDTHS[0], 10.0**-decade)[1]
        drawing.line(LEFT, y, right, y, stroke_opacity=0.2)
        drawing.text(LEFT - 8, y + 4, two_to(-decade).replace("2", "10", 1), "end", 12)
    for bits in WIDTHS[::2]:
        drawing.text(_at(bits, 1)[0], HEIGHT + 34, str(bits), "middle", 12)
    drawing.text(right, HEIGHT + 54, say("bits of the accumulator"), "end", 12)
    drawing.text(LEFT + 4, 11, say("relative error"), size=12)
    for points, style in ((usual, {"stroke": GREY, "stroke_dasharray": "6 4"}), (curve, {"stroke": BLUE})):
        drawing.path([_at(p.accumulator_bits, p.error) for p in points], stroke_width=2, **style)
    for p in curve:
        x, y = _at(p.accumulator_bits, p.error)
        drawing.add("circle", cx=x, cy=y, r=7 if p is chosen else 3, fill=BLUE, fill_opacity=0.5, stroke=BLUE,
                    class_="built", data_bits=p.accumulator_bits, data_error=repr(p.error))  # fmt: skip
    beside: dict[tuple[int, int], list[str]] = {}  # letters of marks that lie on one another
    for n, p in enumerate(of_gpus):
        x, y = _at(p.accumulator_bits, p.error)
        drawing.add("polyline", points=" ".join(f"{x + dx:.2f},{y + dy:.2f}" for dx, dy in DIAMOND), fill=ORANGE,
                    fill_opacity=0.6, stroke=ORANGE, class_="gpu", data_error=repr(p.error))  # fmt: skip
        beside.setdefault((int(x), round(y / 14)), []).append(mark(n))
    for (x_, row), letters in beside.items():
        drawing.text(x_ + 12, 14 * row + 1, "".join(letters), size=13, font_weight="bold", class_="letters")
    return drawing


DIAMOND = ((0, -8), (8, 0), (0, 8), (-8, 0), (0, -8))
CONTROLS = (
    Control("inputs", say("inputs"), options=INPUTS),
    Control("accumulator_bits", say("accumulator bits"), low=WIDTHS[0], high=WIDTHS[-1]),
    Control("guard_bits", say("guard bits"), low=0, high=8),
    Control("block", say("block"), options=(1, 4, 8, 16, 32, 64)),
    Control("rounding", say("rounding"), options=tuple(ROUNDINGS)),
    Control("order", say_of("adders", "order of k"), options=tuple(ORDERS)),
)


@shown(State, render, CONTROLS)
def widget(state: State) -> None:
    """The adder explorer. Raises LabError for fields that :func:`fplab.tensorcore.explore` refuses."""
    render(state)
