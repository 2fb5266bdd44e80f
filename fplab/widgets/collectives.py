"""A collective, step by step: which chunk goes from rank to rank, what is added to it, its bits and its cost.

The steps are :mod:`fplab.parallel.collectives`', run on small buffers; nothing is computed here.
"""

import functools
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from .. import formats
from ..draw.collectives import step_scene
from ..draw.page import Html, after_colon, bracketed, code, facts, note, panel, table, title
from ..errors import integer, one_of
from ..floats import encode
from ..inspection import encodings
from ..parallel import collectives
from ..parallel.collectives import ALGORITHMS, Arrival, Collective, Wire
from ..words import say, say_of
from .shell import Control, shown, steps

MOST_RANKS = 8
WIDTHS = (3, 2.5, 4.5, 4.5, 4.5)  # of the table's columns, in em
FORMATS = ("fp32", "fp16", "bf16", "e5m2", "e4m3")
KINDS = {
    "broadcast": collectives.broadcast,
    "reduce": collectives.reduce,
    "reduce-scatter": collectives.reduce_scatter,
    "all-gather": collectives.all_gather,
}
NAMES = (*KINDS, "all-reduce")
OWN = {"broadcast": "tree", "reduce": "tree", "reduce-scatter": "ring", "all-gather": "ring"}  # the way of each
MEANING = {
    "broadcast": say("what rank 0 has goes to all"),
    "reduce": say("the sum of all goes to rank 0"),
    "reduce-scatter": say("of the sum of all, each rank gets one piece"),
    "all-gather": say("every rank's piece goes to all"),
    "all-reduce": say("the sum of all goes to all"),
}


@dataclass(frozen=True)
class State:
    """``algorithm``: of the all-reduce; the others have one. ``format`` and ``add``: of the :class:`Wire`.

    ``step``: which one is drawn, from 1 on.
    """

    collective: str = "all-reduce"
    algorithm: str = "ring"
    ranks: int = 4
    format: str = "bf16"
    add: str = "wire"
    step: int = 1


@dataclass(frozen=True)
class Run:
    """A collective that was run: ``buffers`` at first and after each step, float32 (ranks, chunks), an element a chunk.

    ``shares``: of the ranks, how many have a part in each. ``arrivals``: of each step.
    """

    collective: Collective
    buffers: list[np.ndarray[Any, Any]]
    shares: list[np.ndarray[Any, Any]]
    arrivals: list[list[Arrival]]


def run(state: State) -> Run:
    """The steps of a state. Raises LabError for names and numbers that cannot be."""
    one_of("collective", state.collective, NAMES)
    ranks = integer("ranks", state.ranks, 2, MOST_RANKS, " in a drawing")
    return _run(state.collective, state.algorithm, ranks, state.format, state.add)


@functools.lru_cache(maxsize=32)
def _run(name: str, algorithm: str, ranks: int, fmt: str, add: str) -> Run:
    """Rank r has (r + 1) tenths everywhere, as the format holds them; nothing, where the collective gives it all."""
    collective = KINDS[name](ranks) if name in KINDS else collectives.all_reduce(ranks, algorithm)
    given = np.ones((ranks, collective.chunks), np.int64) << np.arange(ranks)[:, None]  # bit r: rank r's value
    if name == "broadcast":
        given[1:] = 0
    if name == "all-gather":  # chunk c begins where reduce-scatter leaves it
        given = np.where(np.arange(ranks)[:, None] == (np.arange(ranks) - 1) % ranks, given, 0)
    wire = Wire(fmt, add=add)
    tenths = wire.round((np.arange(1, ranks + 1) / 10).astype(np.float32), 0)
    first = np.where(given > 0, tenths[:, None], 0).astype(np.float32)
    steps = list(collectives.stepwise(collective, first, wire))
    frames = collectives.contributions(collective, given)
    shares = [np.sum([(frame >> rank) & 1 for rank in range(ranks)], axis=0) / ranks for frame in frames]
    return Run(collective, [first, *(after for after, _ in steps)], shares, [arrivals for _, arrivals in steps])


def render(state: State) -> str:
    """Both buffers, a line a message; below them every message with its bits and its sum, and the cost."""
    result = run(state)
    number = min(max(state.step, 1), len(result.arrivals))
    arrivals = result.arrivals[number - 1]
    heads = (str(say("before")), str(say("after step {n} of {steps}", n=number, steps=len(result.arrivals))))
    before, after = (_texts(result, i) for i in (number - 1, number))
    messages = [(a.message.source, a.message.target, a.message.chunk, a.message.adds) for a in arrivals]
    drawing = step_scene(before, after, result.shares[number - 1 : number + 1], messages, heads)
    spoken = after_colon(result.collective.name, heads[1])
    head = title(after_colon(bracketed(state.collective, state.algorithm), MEANING[state.collective]))
    rows = [_row(state, arrival) for arrival in arrivals]
    columns = (say("from → to"), say_of("collectives", "chunk"), say("arrives"), say("is there"),
               say_of("collectives", "sum"))  # fmt: skip
    legend = note(say("Full line: added to what is there. Dashed: takes its place. The tint says how many ranks' "
                      "values are in a chunk."))  # fmt: skip
    return panel(head, drawing.svg(spoken), facts(_costs(state, result, number)), table(columns, rows, WIDTHS), legend)


def _texts(result: Run, moment: int) -> list[list[str]]:
    """What each cell holds, row by row; nothing, where no rank's value has come yet."""
    rows = zip(result.buffers[moment], result.shares[moment], strict=True)
    return [[f"{x:.5g}" if share else "" for x, share in zip(*row, strict=True)] for row in rows]


def _row(state: State, arrival: Arrival) -> list[object]:
    m, arrived = arrival.message, _with_bits(arrival.arrived[0], state.format)
    added = state.format if state.add == "wire" else "fp32"
    rest = [f"{float(arrival.own[0]):.7g}", _with_bits(arrival.result[0], added)] if m.adds else ["", ""]
    return [f"{m.source} → {m.target}", m.chunk, arrived, *rest]


def _with_bits(x: np.floating[Any], fmt: str) -> Html:
    """A number, and its bits by field below it."""
    fields = encodings.get(fmt).fields(int(encode(x, fmt)))
    return Html(f"{float(x):.7g}<br/>" + code(" ".join(digits for _, digits in fields)))


def _costs(state: State, result: Run, number: int) -> list[tuple[Any, Any]]:
    """What the step and the whole cost, for a buffer of n numbers."""
    collective, bits = result.collective, formats.get(state.format).bits
    sent = collective.sent(collective.chunks)
    step = len(result.arrivals[number - 1])
    adds = sum(a.message.adds for a in result.arrivals[number - 1])
    share = Fraction(max(sent), collective.chunks)
    return [
        (say("this step"), say("{n} messages of {bits} bits a number, {adds} additions", n=step, bits=bits, adds=adds)),
        (say("additions"), say("in FP32, rounded when they are sent") if state.add == "fp32" and bits < 32
         else say("in {name}", name=formats.get(state.format).name.upper())),
        (say("the whole"), say("{steps} steps; in all {n} chunks travel, the busiest rank sends {share} × the buffer",
                               steps=len(result.arrivals), n=sum(sent), share=share)),
        (say("full at the end"), _ends(result)),
    ]  # fmt: skip


def _ends(result: Run) -> str:
    """The sums that differ only in their order of additions, or whether all are the same."""
    last, most = result.buffers[-1], result.shares[-1].max()
    values = sorted({float(x) for x in last[result.shares[-1] == most]})
    return ", ".join(f"{x:.7g}" for x in values)


def changed(state: State, field: str, value: Any) -> State:
    """Another value of a field, from the first step on; the algorithm is the all-reduce's, or the collective's own."""
    after: State = replace(state, **{field: value, "step": 1})
    if field == "collective":
        return replace(after, algorithm=OWN.get(value, "ring"))
    return replace(after, collective="all-reduce") if field == "algorithm" else after


def moved(state: State, by: int) -> State:
    """Another step, the first and the last being ends."""
    return replace(state, step=min(max(state.step + by, 1), len(run(state).arrivals)))


CONTROLS = (
    Control("collective", say("collective"), options=NAMES),
    Control("algorithm", say("algorithm"), options=ALGORITHMS),
    Control("ranks", say("ranks"), low=2, high=MOST_RANKS),
    Control("format", say("format"), options=FORMATS),
    Control("add", say("added in"), options=("fp32", "wire")),
)
ACTIONS = steps(moved)


@shown(State, render, CONTROLS, ACTIONS, changed)
def widget(state: State) -> State:
    """A collective, step by step. Raises LabError for one that cannot be."""
    run(state)
    return replace(state, algorithm=OWN.get(state.collective, state.algorithm))
