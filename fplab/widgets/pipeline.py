"""The pipeline timeline: which stage works on which micro-batch when, where it waits, and what it holds."""

from dataclasses import dataclass, replace

from ..draw.page import after_colon, bracketed, facts, note, panel, title
from ..draw.timeline import timeline_scene
from ..errors import LabError, integer
from ..memory.pipeline import SCHEDULES
from ..parallel import schedules
from ..parallel.schedules import Timeline
from ..words import say, say_of
from .shell import Control, shown

MOST_STAGES, MOST_BATCHES = 8, 32


@dataclass(frozen=True)
class State:
    """A schedule. ``backward``: its time in units of a forward pass."""

    schedule: str = "1f1b"
    stages: int = 4
    micro_batches: int = 8
    chunks: int = 1
    backward: int = 2


def timeline(state: State) -> Timeline:
    """The timeline that is drawn, of the nearest state that can be; LabError for what is too long to draw."""
    state = nearest(state)
    if state.schedule == "interleaved" and state.chunks == 1:
        raise LabError("interleaved needs chunks of 2 or more; with one it is 1f1b.")
    return schedules.timeline(state.schedule, state.stages, state.micro_batches, state.chunks, 1, state.backward)


def nearest(state: State) -> State:
    """The state that can be scheduled: interleaved micro-batches are whole groups of the stages, the nearest of them.

    A slider passes through every number on its way, so it is left where it is, and the picture says what it shows.
    """
    p = integer("stages", state.stages, 1, MOST_STAGES, " in a drawing")
    m = integer("micro_batches", state.micro_batches, 1, MOST_BATCHES, " in a drawing")
    if state.schedule != "interleaved":
        return state
    groups = min(max(1, (2 * m + p) // (2 * p)), MOST_BATCHES // p)
    return replace(state, micro_batches=groups * p)


def render(state: State) -> str:
    """A row a stage: forward passes, backward passes (hatched), and the gaps; the bubble counted."""
    asked, state = state.micro_batches, nearest(state)
    schedule = timeline(state)
    in_flight = schedule.in_flight()
    unit = say("model chunks") if state.chunks > 1 else say_of("pipeline", "micro-batches")
    ideal = say("without waiting {ideal:g}", ideal=float(schedule.ideal))
    lines = [
        (say("time"), bracketed(f"{float(schedule.span):g}", ideal)),
        (say("bubble / ideal"), f"{schedule.bubble} = {float(schedule.bubble):.1%}"),
        (say("waiting / whole"), f"{schedule.idle()} = {float(schedule.idle()):.1%}"),
        (say("held at once"), f"{', '.join(map(str, in_flight))} {unit}"),
    ]
    legend = note(say("Plain: forward. Hatched: backward. The number is the micro-batch; empty is waiting."))
    head = f"{state.schedule}, {state.stages} × {state.micro_batches}" + (f" × {state.chunks}" * (state.chunks > 1))
    return panel(title(head), instead(asked, state), draw(schedule), facts(lines), legend)


def instead(asked: int, state: State) -> str:
    """What is shown in the place of a number of micro-batches that an interleaved schedule cannot take."""
    p, m = state.stages, state.micro_batches
    if asked == m:
        return ""
    allowed = ", ".join(str(n) for n in range(p, MOST_BATCHES + 1, p))
    return note(
        say("Interleaved takes micro-batches in groups of {p}, the number of stages: {asked} is none of "
"{allowed}. Shown: the nearest, {m}.", p=p, asked=asked, allowed=allowed, m=m)
    )  # fmt: skip


def draw(line: Timeline) -> str:
    passes = [(s.stage, s.kind, s.chunk, s.micro_batch, s.start, s.end) for s in line.slots]
    spoken = say("{stages} stages, {micro_batches} micro-batches, bubble {bubble}", stages=line.stages,
                 micro_batches=line.micro_batches, bubble=line.bubble)  # fmt: skip
    return timeline_scene(passes, line.stages, after_colon(line.name, str(spoken))).svg()


def changed(state: State, field: str, value: object) -> State:
    """Another value of a field; chunks follow the schedule, which has them or has not, and the schedule the chunks."""
    values = {name: getattr(state, name) for name in ("schedule", "stages", "micro_batches", "chunks", "backward")}
    values[field] = value
    if field == "schedule":
        values["chunks"] = max(values["chunks"], 2) if value == "interleaved" else 1
    if field == "chunks" and (value == 1) == (state.schedule == "interleaved"):
        values["schedule"] = "1f1b" if value == 1 else "interleaved"
    return State(**values)


CONTROLS = (
    Control("schedule", say("schedule"), options=SCHEDULES),
    Control("stages", say("stages"), low=1, high=MOST_STAGES),
    Control("micro_batches", say("micro-batches"), low=1, high=MOST_BATCHES),
    Control("chunks", say("chunks a stage"), low=1, high=3),
    Control("backward", say("backward / forward"), low=1, high=4),
)


@shown(State, render, CONTROLS, changed=changed)
def widget(state: State) -> None:
    """The pipeline timeline; micro-batches of an interleaved one are drawn as the nearest whole groups of the stages.

    Raises LabError for a schedule that cannot be.
    """
    timeline(state)
