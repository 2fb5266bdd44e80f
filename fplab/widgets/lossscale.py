"""The loss-scale state machine, step by step: good steps make the scale grow, overflows halve it and skip the step."""

import math
from dataclasses import dataclass, replace
from typing import Any

from ..draw.page import Said, after_colon, facts, listed, note, panel, power, title
from ..draw.scene import BLUE, ORANGE, Scene
from ..errors import LabError, one_of
from ..training.scalers import machine
from ..training.scalers.machine import Machine, Tracked
from ..words import say
from .shell import Action, Control, shown

MACHINES = {"torch": machine.TORCH, "keras": machine.KERAS, "apex": machine.APEX}
MOST = 400
WIDTH, HEIGHT, LEFT = 860, 190, 70


@dataclass(frozen=True)
class State:
    """``library``: whose constants; ``interval``: good steps before growth (theirs is 2000; a few show it sooner).

    ``events``: what each step met, "g" for finite gradients and "o" for an overflow.
    """

    library: str = "torch"
    interval: int = 4
    events: str = ""


def machine_of(state: State) -> Machine:
    one_of("library", state.library, MACHINES)
    return replace(MACHINES[state.library], growth_interval=state.interval)


def history(state: State) -> list[Tracked]:
    """What the scaler remembers before the first step and after each."""
    how = machine_of(state)
    states = [how.start()]
    for event in state.events:
        states.append(how.after(states[-1], event == "o"))
    return states


def stepped(state: State, events: str) -> State:
    if len(state.events) + len(events) > MOST:
        raise LabError(f"{MOST} steps are drawn at most; start again.")
    return replace(state, events=state.events + events)


def undone(state: State) -> State:
    return replace(state, events=state.events[:-1])


def until_growth(state: State) -> State:
    """Good steps until the scale has changed, or as many as growth takes."""
    now = history(state)[-1]
    return stepped(state, "g" * (state.interval - now.good_steps))


def render(state: State) -> str:
    """The machine's two rules, the scale over the steps, and what the last step did."""
    tracked, how = history(state), machine_of(state)
    now = tracked[-1]
    lines = [
        (say("scale"), f"{now.scale:,.6g} = {power(now.scale)}" if now.scale else "0"),
        (say("good steps"), f"{now.good_steps} / {how.growth_interval}"),
        (say("last step"), _last(state, tracked)),
        (say("steps"), listed(len(state.events), say("skipped {n}", n=state.events.count("o")))),
    ]
    return panel(title(f"{state.library}"), _diagram(state, how), _plot(state, tracked), facts(lines),
                 note(say("○ good step, ✕ overflow: the update is skipped, ▲ the scale grew.")))  # fmt: skip


def _last(state: State, tracked: list[Tracked]) -> Said:
    if not state.events:
        return say("none yet")
    before, after = tracked[-2].scale, tracked[-1].scale
    factor = "" if before == after else f"× {after / before:g}"  # a scale can come to 0, and stays there
    if state.events[-1] == "o":
        kept = factor or say("at its lowest")
        return say("gradients not finite: step skipped, scale {kept}", kept=kept)
    if after != before:
        return say("weights updated, scale {factor}", factor=factor)
    return say("weights updated, scale kept")


def _diagram(state: State, how: Machine) -> str:
    """The two states a scaler is in, and what leads from one to the other."""
    drawing, last = Scene(WIDTH, 76), state.events[-1:] or "g"
    for x, name, is_now in ((40, say("count good steps"), last == "g"),
                            (560, say("back off, skip the step"), last == "o")):  # fmt: skip
        drawing.rect(x, 20, 200, 34, BLUE if x == 40 else ORANGE, fill_opacity=0.35 if is_now else 0.08, rx=8,
                     stroke="currentColor", stroke_width=2.5 if is_now else 1)  # fmt: skip
        drawing.text(x + 100, 42, f"{'▶ ' * is_now}{name}", "middle", 13)
    drawing.line(244, 30, 552, 30)
    drawing.text(398, 24, after_colon(say("overflow"), f"× {how.backoff_factor:g} →"), "middle", 12)
    drawing.line(244, 46, 552, 46)
    drawing.text(398, 62, "← " + str(say("finite gradients")), "middle", 12)
    rule = say("after {growth_interval}: × {growth_factor:g}", growth_factor=how.growth_factor)
    grow = str(rule.fill(growth_interval=how.growth_interval))
    drawing.text(140, 72, "↻ " + grow, "middle", 12)
    return drawing.svg(after_colon(state.library, say("overflow") if last == "o" else say("good")))


def _plot(state: State, tracked: list[Tracked]) -> str:
    logs = [math.log2(t.scale) if 0 < t.scale < math.inf else None for t in tracked]
    known = [v for v in logs if v is not None]
    low, high = math.floor(min(known)) - 1, math.ceil(max(known)) + 1
    drawing = Scene(WIDTH, HEIGHT + 36)
    step = (WIDTH - LEFT - 20) / max(len(logs) - 1, 24)

    def at(i: int, value: float) -> tuple[float, float]:
        return LEFT + i * step, 12 + (high - value) / (high - low) * HEIGHT

    for exponent in range(low, high + 1, max(1, (high - low) // 8)):
        y = at(0, exponent)[1]
        drawing.line(LEFT, y, WIDTH - 10, y, stroke_opacity=0.18)
        drawing.text(LEFT - 8, y + 4, power(2.0**exponent), "end", 11)
    points: list[tuple[float, float]] = []
    for i, value in enumerate(logs):
        if value is not None:  # a scale holds until the step's end, then jumps
            points += [(at(i, value)[0], points[-1][1]), at(i, value)] if points else [at(i, value)]
    drawing.path(points, stroke=BLUE, stroke_width=2)
    for i, event in enumerate(state.events, 1):
        value = logs[i]
        if value is None:
            continue
        x, y = at(i, value)
        grew = tracked[i].scale > tracked[i - 1].scale
        mark = "✕" if event == "o" else "▲" if grew else "○"
        drawing.text(x, y + 5, mark, "middle", 14, class_="event", data_scale=repr(tracked[i].scale),
                     fill=ORANGE if event == "o" else "currentColor")  # fmt: skip
    drawing.text(WIDTH - 10, HEIGHT + 30, say("steps →"), "end", 11)
    return drawing.svg(after_colon(say("scales"), ", ".join(f"{t.scale:g}" for t in tracked[-8:])))


def changed(state: State, field: str, value: Any) -> State:
    """Another library or interval; the events stay, and are answered by the new rules."""
    after: State = replace(state, **{field: value})
    machine_of(after)
    return after


CONTROLS = (
    Control("library", say("constants of"), options=tuple(MACHINES)),
    Control("interval", say("growth interval"), low=1, high=20),
)
ACTIONS = (
    Action(say("○ good step"), lambda s: stepped(s, "g")),
    Action(say("✕ overflow"), lambda s: stepped(s, "o")),
    Action(say("▲ until growth"), until_growth),
    Action(say("undo"), undone),
    Action(say("start again"), lambda s: replace(s, events="")),
)


@shown(State, render, CONTROLS, ACTIONS, changed)
def widget(state: State) -> None:
    """The loss-scale machine of "torch", "keras" or "apex". Raises LabError for another library."""
    machine_of(state)
