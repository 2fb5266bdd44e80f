"""A block with one scale: what an outlier does to the others, a Hadamard transform before, stochastic rounding.

Thirty-two numbers, one block of MXFP8 or MXFP4 and two of NVFP4. All that is drawn and told comes from
:mod:`fplab.scaled`.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from .. import scaled
from ..draw.page import Facts, facts, listed, note, panel, table, title
from ..draw.scene import BLUE, GREY, MONO, ORANGE, RED, Scene
from ..errors import LabError, integer, name_of
from ..scaled import SIGNS, Scaled
from ..words import say, say_of
from .blockwise import normals
from .gradients import sample
from .shell import Control, shown

N, MOST_DRAWS, SEED = 32, 64, 14
WIDTH, HEIGHT, LEFT = 800, 210, 40
WAYS = {
    "mxfp8": ("mxfp8", "floor"), "mxfp8 rceil": ("mxfp8", "rceil"), "mxfp4": ("mxfp4", "floor"),
    "mxfp4 even": ("mxfp4", "even"), "nvfp4": ("nvfp4", "nearest"), "nvfp4 4over6": ("nvfp4", "4over6"),
}  # fmt: skip
KINDS, SIZES = ("normal", "gradients"), (0, 16, 32)
Array = np.ndarray


@dataclass(frozen=True)
class State:
    """Thirty-two numbers, element ``place`` of them ``outlier`` if that is not 0. ``way``: of :data:`WAYS`.

    ``hadamard``: of how many numbers blocks are transformed before, 0: none. ``draws``: 0 rounds to nearest; else so
    many stochastic roundings, of which the mean is shown.
    """

    way: str = "mxfp4"
    values: str = "normal"
    outlier: float = 8.0
    place: int = 20
    hadamard: int = 0
    draws: int = 0


class Found(NamedTuple):
    """What a state gives, each (32,): the ``values``, what is ``quantised`` of them, and what comes ``back`` of that.

    ``codes``: of one rounding to nearest. ``ends``: the values, transformed back where they were transformed.
    """

    values: Array
    quantised: Array
    codes: Scaled
    back: Array
    ends: Array


def numbers(state: State) -> Array:
    """The values, float32 (32,): normal ones, or real gradients times a power of two that makes their largest 1 to 2.

    No rounding: a power of two moves scales, and codes not at all.
    """
    x = normals()[:N].copy()
    if name_of("values", state.values, KINDS) == "gradients":
        x = sample("weight")[:N]
        x = np.ldexp(x, 1 - np.frexp(np.abs(x).max())[1])
    place = integer("place", state.place, 0, N - 1)
    if state.outlier:
        x[place] = state.outlier
    return np.asarray(x, np.float32)


def quantised(state: State) -> Found:
    """Everything that is drawn, by :func:`fplab.scaled.quantize` and :func:`fplab.scaled.hadamard`."""
    x = numbers(state)
    scheme, rule = WAYS[name_of("way", state.way, WAYS)]
    draws = integer("draws", state.draws, 0, MOST_DRAWS)
    if state.hadamard not in SIZES:
        raise LabError(f"hadamard={state.hadamard!r} is not possible; allowed: {', '.join(map(str, SIZES))}.")
    y = scaled.hadamard(x, size=state.hadamard) if state.hadamard else x
    codes = scaled.quantize(y, scheme, rule=rule)
    back = codes.dequantize()
    if draws:
        many = np.tile(y, (draws, 1))
        back = scaled.quantize(many, scheme, rule=rule, rounding="stochastic", seed=SEED).dequantize().mean(0)
    ends = back
    if state.hadamard:
        ends = scaled.hadamard(back, size=state.hadamard, signs=(1,)) * np.resize(np.array(SIGNS, np.float32), N)
    return Found(x, y, codes, back, ends)


def lost(state: State, result: Found) -> tuple[Array, Array]:
    """Which values that are not 0 come back as 0, and which are beyond the largest element at their block's scale."""
    factors = np.repeat(result.codes.factors(), N // result.codes.scales.size)
    clipped = np.abs(result.quantised) > np.float64(result.codes.scheme.element.max) * factors
    return (result.back == 0) & (result.quantised != 0), clipped


def render(state: State) -> str:
    """Values as bars, what came back as marks, codes below them; a table of blocks, and the error of all."""
    result = quantised(state)
    zero, clipped = lost(state, result)
    codes, size = result.codes, N // result.codes.scales.size
    rows = []
    for b, (code, factor) in enumerate(zip(codes.scales.tolist(), codes.factors().tolist(), strict=True)):
        part = slice(b * size, (b + 1) * size)
        rows.append((str(say_of("blockwise", "block {n}", n=b)), f"{np.abs(result.quantised[part]).max():.4g}",
                     f"{code:#04x} = {factor:.4g}", f"{zero[part].sum()}", f"{clipped[part].sum()}"))  # fmt: skip
    head = [say_of("blockwise", "block"), say("largest magnitude"), say("scale"), say("to 0"), say("saturated")]
    apart = np.square(result.ends - result.values, dtype=np.float64)
    others = np.delete(apart, state.place) if state.outlier else apart
    bits = 8 * (codes.nbytes - (0 if codes.amax is None else codes.amax.nbytes)) / N
    error = say("RMS error of the others") if state.outlier else say("RMS error")
    lines: Facts = [
        (error, f"{math.sqrt(others.mean()):.4g}"),
        (say("storage"), say("{bits:.3g} bits an element, scales included", bits=bits)),
    ]
    how = say("to nearest") if not state.draws else say("mean of {n} stochastic roundings", n=state.draws)
    before = [say("after a Hadamard transform of {n}", n=state.hadamard)] if state.hadamard else []
    legend = say("Bar: what is quantised. Mark: what comes back. Below: codes, to nearest. ✕ becomes 0, ▲ saturates.")
    return panel(title(listed(state.way.upper(), how, *before)), _plot(state, result, zero, clipped),
                 table(head, rows), facts(lines), note(legend))  # fmt: skip


def _plot(state: State, result: Found, zero: Array, clipped: Array) -> str:
    drawing, size = Scene(WIDTH, HEIGHT + 62), N // result.codes.scales.size
    step = (WIDTH - LEFT - 8) / N
    second = float(np.sort(np.abs(result.quantised))[-2])  # one bar may be taller than the picture
    most = 2.0 ** max(math.ceil(math.log2(second)), 2 if state.values == "normal" else 0)
    element = result.codes.scheme.element

    def y_of(value: float) -> float:
        return 20 + (most - max(-most, min(most, value))) / (2 * most) * HEIGHT

    for b, factor in enumerate(result.codes.factors().tolist()):
        x = LEFT + b * size * step
        drawing.line(x, 4, x, HEIGHT + 36, stroke=GREY, stroke_dasharray="4 3")
        drawing.text(x + 4, HEIGHT + 58, say_of("blockwise", "block {n}", n=b), size=12)
        for level in map(element.magnitude, range(element.max_code + 1) if element.bits == 4 else ()):
            for value in (level * factor, -level * factor):
                if abs(value) <= most:
                    drawing.line(x, y_of(value), x + size * step, y_of(value), stroke_opacity=0.16, class_="level")
    parts = zip(result.quantised.tolist(), result.back.tolist(), result.codes.codes.tolist(), strict=True)
    for i, (value, again, code) in enumerate(parts):
        x, own = LEFT + i * step, bool(state.outlier) and i == state.place and not state.hadamard
        top, bottom = sorted((y_of(value), y_of(0)))
        drawing.rect(x + 3, top, step - 6, bottom - top, ORANGE if own else BLUE, fill_opacity=0.5, class_="value",
                     data_value=repr(value))  # fmt: skip
        drawing.line(x + 1, y_of(again), x + step - 1, y_of(again), stroke_width=2.2, class_="back",
                     data_value=repr(again))  # fmt: skip
        drawing.text(x + step / 2, HEIGHT + 38, f"{code:0{element.bits // 4}x}", "middle", 12, font_family=MONO,
                     class_="code")  # fmt: skip
        mark = "✕" if zero[i] else "▲" if clipped[i] else ""
        if mark:
            drawing.text(x + step / 2, 14, mark, "middle", 13, fill=RED, class_="lost")
        if abs(value) > most:
            beside, anchor = (x + step + 2, "start") if x < WIDTH - 80 else (x - 2, "end")
            drawing.text(beside, y_of(value) + (10 if value > 0 else 0), f"{value:g}", anchor, 12)
    drawing.line(LEFT, y_of(0), WIDTH - 8, y_of(0), stroke_opacity=0.6)
    for value in (-most, -most / 2, 0, most / 2, most):
        drawing.text(LEFT - 6, y_of(value) + 4, f"{value:g}", "end", 12)
    return drawing.svg(say("{n} values, {zero} of them read back as 0, {clipped} saturated",
                           n=N, zero=int(zero.sum()), clipped=int(clipped.sum())))  # fmt: skip


CONTROLS = (
    Control("way", say("format"), options=tuple(WAYS)),
    Control("values", say_of("block scales", "values"), options=KINDS),
    Control("outlier", say("outlier (0: none)"), low=-64.0, high=64.0, step=0.5),
    Control("place", say("place"), low=0, high=N - 1),
    Control("hadamard", say("Hadamard transform of"), options=SIZES),
    Control("draws", say("stochastic roundings (0: to nearest)"), low=0, high=MOST_DRAWS),
)


@shown(State, render, CONTROLS)
def widget(state: State) -> State:
    """The block with its scale. Raises LabError for a way, values, place or number of draws that do not exist."""
    quantised(state)
    return replace(state, outlier=float(state.outlier))
