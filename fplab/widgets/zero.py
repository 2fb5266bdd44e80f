"""ZeRO's three stages, act by act: which rank holds, sends, computes and frees what in one training step.

The acts were recorded of :mod:`fplab.parallel.zero` at work on three processes (``data/zero.json``), and a test runs it
again.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..draw.page import after_colon, facts, note, panel, title
from ..draw.zero import course_scene, pieces_scene
from ..errors import integer
from ..words import Text, say
from .shell import Control, shown, steps

WIDTH = 4  # bytes of a number
MOST = 40  # acts of the longest step
PASSES = {"forward": say("forward pass"), "backward": say("backward pass"), "update": say("update")}
ACTS = {
    "compute": ("parameters", say("each rank computes layer {n} on its own share of the batch")),
    "gradient": ("gradients", say("layer {n}'s whole gradient, of its own share, is there on each rank")),
    "reduce-scatter": (
        "gradients",
        say("reduce-scatter of layer {n}'s gradients: each rank gets its piece of the sum"),
    ),
    "free gradients": ("gradients", say("each rank lets go of what it no longer needs of layer {n}'s gradient")),
    "all-gather": ("parameters", say("all-gather of layer {n}'s parameters: each rank sends its piece to all")),
    "free parameters": ("parameters", say("each rank lets go of layer {n}'s parameters but for its own piece")),
    "update": ("states", say("each rank updates its piece of layer {n}, with the states of that piece")),
}


@dataclass(frozen=True)
class State:
    """``stage``: 1, 2 or 3. ``moment``: which act of the step is drawn, from 1 on; beyond the last one, the last."""

    stage: int = 1
    moment: int = 1


class Act(NamedTuple):
    """``held``: elements of parameters, gradients and states after it, by layer."""

    during: str
    what: str
    layer: int
    held: list[list[int]]


@functools.cache
def trace(stage: int) -> tuple[int, list[Act]]:
    """How many ranks there were, and the acts of rank 0; those of the others are the same."""
    stage = integer("stage", stage, 1, 3)
    record = json.loads((Path(__file__).parent / "data" / "zero.json").read_text(encoding="utf-8"))
    return record["ranks"], [Act(*row) for row in record["stages"][str(stage)]]


def render(state: State) -> str:
    """What each rank holds after the act, and the bytes of the whole step."""
    ranks, acts = trace(state.stage)
    now = min(integer("moment", state.moment, 1, MOST), len(acts)) - 1
    act = acts[now]
    sizes = [max(each.held[i][0] for each in acts) for i in range(len(act.held))]
    pieces = [[ranks * count // (whole * (1 + (kind == 2))) for kind, count in enumerate(row)]
              for row, whole in zip(act.held, sizes, strict=True)]  # fmt: skip
    touched, text = ACTS[act.what]
    sentence = text.fill(n=act.layer + 1)
    head = title(after_colon(say("ZeRO-{stage}, act {n} of {acts}", stage=state.stage, n=now + 1, acts=len(acts)),
                             PASSES[act.during]))  # fmt: skip
    bytes_held = [WIDTH * sum(map(sum, each.held)) for each in acts]
    sums = [WIDTH * sum(row[kind] for row in act.held) for kind in range(3)]
    lines: list[tuple[Text, str | Text]] = [
        (say("act"), sentence),
        (say("each rank sends"), _sent(act, ranks, sizes)),
        (say("each rank holds"), say("{all:,} bytes: parameters {p:,}, gradients {g:,}, states {s:,}",
                                     all=bytes_held[now], p=sums[0], g=sums[1], s=sums[2])),
        (say("most in the step"), say("{n:,} bytes", n=max(bytes_held))),
    ]  # fmt: skip
    phases = [PASSES[each.during] for each in acts]
    course = course_scene(bytes_held, now, phases, after_colon(say("bytes held"), f"{bytes_held[now]:,}"))
    drawing = pieces_scene(ranks, pieces, act.layer, touched)
    legend = note(say("A box is one rank's piece of a layer, full where it is held; framed: what the act is about."))
    return panel(head, drawing.svg(str(sentence)), facts(lines), course.svg(), legend)


def _sent(act: Act, ranks: int, sizes: list[int]) -> Text:
    """Both collectives go round a ring: a rank sends all pieces but one."""
    if act.what not in ("all-gather", "reduce-scatter"):
        return say("nothing")
    return say("{n:,} bytes", n=WIDTH * sizes[act.layer] * (ranks - 1) // ranks)


def moved(state: State, by: int) -> State:
    """Another act, the first and the last being ends."""
    last = len(trace(state.stage)[1])
    return State(state.stage, min(max(min(state.moment, last) + by, 1), last))


CONTROLS = (Control("stage", say("stage"), options=(1, 2, 3)), Control("moment", say("act"), low=1, high=MOST))
ACTIONS = steps(moved)


@shown(State, render, CONTROLS, ACTIONS)
def widget(state: State) -> None:
    """ZeRO's stage 1, 2 or 3, act by act. Raises LabError for another."""
    trace(state.stage)
