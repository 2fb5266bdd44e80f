"""The bit editor: two encodings side by side; toggle a bit, type a value or a code, step to the neighbours."""

import itertools
import re
from dataclasses import dataclass, replace
from typing import Any

from .. import numerals
from ..draw.page import Said, after_colon, beside, bracketed, facts, note, panel, refusal, title
from ..draw.strip import BIT, bit_strip, field_name
from ..errors import LabError
from ..exact import Exact
from ..inspection import encodings
from ..inspection.given import parse
from ..inspection.rows import Encoding
from ..lazily import index
from ..words import say

__all__ = ["State", "render", "widget"]

index(__name__)

_CODE = re.compile(r"0x[0-9a-f]+|0b[01]+", re.IGNORECASE)


@dataclass(frozen=True)
class State:
    """Two encodings and the code that each holds. ``source``: the side that was edited last; the other one follows.

    ``scale``: what one unit of an integer is worth, and the largest magnitude of a codebook's block. A code is None
    where the encoding cannot hold the value; ``problem`` says why, or what is wrong with what was typed.
    """

    left: str = "fp16"
    right: str = "bf16"
    codes: tuple[int | None, int | None] = (0x2E66, 0x3DCD)
    source: int = 0
    scale: float = 1.0
    problem: str = ""

    @property
    def names(self) -> tuple[str, str]:
        return self.left, self.right

    def encoding(self, side: int) -> Encoding:
        return encodings.get(self.names[side])

    def value(self, side: int) -> Exact | None:
        code = self.codes[side]
        return None if code is None else self.encoding(side).value(code, self.scale)


def edited(state: State, side: int, code: int) -> State:
    """The state after a side got a code: the other side takes the value that is nearest to it."""
    value = state.encoding(side).value(code, state.scale)
    other, problem = None, ""
    try:
        other = state.encoding(1 - side).nearest(value, state.scale)
    except LabError as error:
        problem = str(error)
    codes = (code, other) if side == 0 else (other, code)
    return replace(state, codes=codes, source=side, problem=problem)


def toggled(state: State, side: int, bit: int) -> State:
    return edited(state, side, (state.codes[side] or 0) ^ 1 << bit)


def stepped(state: State, side: int, up: bool) -> State:
    """On to the next value of a side; at an end it stays."""
    code = state.codes[side]
    after = None if code is None else state.encoding(side).neighbour(code, up)
    if after is None:
        end = say("there is no further value in this direction.")
        return replace(state, problem=after_colon(state.names[side], end))
    return edited(state, side, after)


def typed(state: State, side: int, text: str) -> State:
    """A value ("0.1", "1/3", "0x1.8p3", "inf", "fp16:0x3c00") or a code of this side ("0x2e66", "0b101")."""
    encoding = state.encoding(side)
    try:
        if _CODE.fullmatch(text.strip()):
            code = int(text.strip(), 0)
            if code >= 1 << encoding.bits:
                rule = say("{text} is not a code of {format}; allowed: 0x0 to {last}.", text=text.strip())
                raise LabError(rule.fill(format=encoding.name, last=f"{(1 << encoding.bits) - 1:#x}"))
        else:
            code = encoding.nearest(parse(text).value, state.scale)
        return edited(state, side, code)
    except LabError as error:
        return replace(state, problem=str(error))


def chosen(state: State, side: int, name: str) -> State:
    """Another encoding on a side, which takes the value of the other side."""
    encodings.get(name)
    named = replace(state, left=name) if side == 0 else replace(state, right=name)
    keep = named.codes[1 - side]
    return edited(named, 1 - side, keep) if keep is not None else edited(named, side, 0)


def scaled(state: State, text: str) -> State:
    """Another scale; the source keeps its code."""
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 1e-30 <= scale <= 1e30:
        problem = say("scale {text} is not possible; allowed: 1e-30 to 1e30, such as 1 or 0.05.", text=repr(text))
        return replace(state, problem=str(problem))
    return edited(replace(state, scale=scale), state.source, state.codes[state.source] or 0)


def render(state: State, strips: bool = True) -> str:
    """Both sides, and how far they are apart. ``strips``: with the bits, which else are buttons."""
    sides = beside(*(_side(state, side, strips) for side in (0, 1)))
    return panel(sides, note(_distance(state)), refusal(state.problem) if state.problem else "")


def _side(state: State, side: int, strips: bool) -> str:
    encoding, code, value = state.encoding(side), state.codes[side], state.value(side)
    mark = say("edited") if side == state.source else say("follows, rounded to nearest")
    head = title(encoding.name) + f' <span style="opacity:.8">{bracketed("", mark).strip()}</span>'
    if code is None or value is None:
        return head + note(say("cannot hold this value"))
    strip = bit_strip(encoding.fields(code), encoding.name).svg() if strips else ""
    near = [encoding.neighbour(code, up) for up in (False, True)]
    shown = [numerals.near_text(None if n is None else encoding.value(n, state.scale)) for n in near]
    lines = [
        (say("code"), f"0x{code:0{-(-encoding.bits // 4)}x} = {code}"),
        (say("class"), encoding.kind(code)),
        (say("made of"), encoding.formula(code)),
        (say("value"), exact_text(value)),
        (say("below"), shown[0]),
        (say("above"), shown[1]),
    ]
    return head + strip + facts(lines)


def exact_text(x: Exact) -> str:
    text = numerals.shown(x)
    if x.kind == "finite" and x.value.denominator > 1:
        text += f" = {numerals.binary_text(x.value)}"
    return text


def _distance(state: State) -> Said:
    a, b = state.value(0), state.value(1)
    if a is None or b is None or a.kind != "finite" or b.kind != "finite":
        return ""
    difference = b.value - a.value
    if not difference:
        return say("Both hold the same value.")
    ratio = f", {numerals.signed(difference / abs(a.value), 3)} × {state.left}" if a.value else ""
    return f"{state.right} − {state.left} = {numerals.signed(difference)}{ratio}"


class Editor:
    """The bit editor at work: ``state``; ``names``, ``texts`` and ``toggles`` of both sides; ``view``."""

    def __init__(self, state: State) -> None:
        from .shell import library, reachable, redraw_with

        self._widgets, self._quiet, self.state = library(), False, state
        w = self._widgets
        self.view = w.HTML()
        self.scale = w.Text(str(state.scale), continuous_update=False)
        self.scale.observe(lambda event: self.attempt(scaled(self.state, event["new"])), "value")
        self.names: list[Any] = []
        self.texts: list[Any] = []
        self.steps: list[tuple[Any, Any]] = []
        self.toggles: list[list[Any]] = [[], []]
        self._shapes: list[list[tuple[str, int]]] = [[], []]
        self.rows = [w.HBox(layout=w.Layout(flex_flow="row wrap")) for _ in (0, 1)]
        lines = [part for side in (0, 1) for part in (self._tools(side), self.rows[side])]
        self.box = w.VBox([reachable(), *lines, self.scale, self.view])
        self.move(state)
        redraw_with(self)

    def _tools(self, side: int) -> Any:
        w = self._widgets
        name = w.Dropdown(options=tuple(encodings.encodings()), value=self.state.names[side])
        text = w.Text(continuous_update=False)
        down, up = (w.Button(description=sign, layout=w.Layout(width="auto")) for sign in "▼▲")
        name.observe(lambda event: self.attempt(chosen(self.state, side, event["new"])), "value")
        text.observe(lambda event: self.attempt(typed(self.state, side, event["new"])), "value")
        down.on_click(lambda _: self.attempt(stepped(self.state, side, False)))
        up.on_click(lambda _: self.attempt(stepped(self.state, side, True)))
        self.names.append(name)
        self.texts.append(text)
        self.steps.append((down, up))
        return w.HBox([name, text, down, up], layout=w.Layout(flex_flow="row wrap"))

    def _label(self) -> None:
        for side, name in enumerate((str(say("left")), str(say("right")))):
            self.names[side].description, self.texts[side].description = name, str(say("value"))
            self.texts[side].placeholder = str(say("value or code: 0.1, 1/3, 0x2e66"))
            below, above = self.steps[side]
            below.tooltip, above.tooltip = (str(say("next value below")), str(say("next value above")))
        self.scale.description = str(say("scale"))

    def attempt(self, state: State) -> None:
        """Show a state that an input led to, unless the input is only following."""
        if not self._quiet:
            self.move(state)

    def move(self, state: State) -> None:
        """Show a state: inputs and bits follow, the picture is drawn."""
        self.state, self._quiet = state, True
        self._label()
        try:
            for side in (0, 1):
                self.names[side].value = state.names[side]
                value = state.value(side)
                self.texts[side].value = "" if value is None else numerals.near_text(value).removeprefix("≈ ")
                self._bits(side)
            self.scale.value = f"{state.scale:g}" if float(f"{state.scale:g}") == state.scale else repr(state.scale)
            self.scale.layout.display = None if any(state.encoding(s).scaled for s in (0, 1)) else "none"
        finally:
            self._quiet = False
        self.view.value = render(state, strips=False)

    def _bits(self, side: int) -> None:
        """A button for each bit of a side, pressed where it is 1, in the colour of its field."""
        w, encoding, code = self._widgets, self.state.encoding(side), self.state.codes[side]
        if len(self.toggles[side]) != encoding.bits:
            layout = w.Layout(width="26px", padding="0", margin="1px")
            self.toggles[side] = [w.ToggleButton(description="0", layout=layout) for _ in range(encoding.bits)]
            for place, button in enumerate(self.toggles[side]):
                bit = encoding.bits - 1 - place
                button.observe(lambda _, bit=bit: self.attempt(toggled(self.state, side, bit)), "value")
        fields = encoding.fields(code or 0)
        buttons = iter(zip(range(encoding.bits - 1, -1, -1), self.toggles[side], strict=True))
        for name, digits in fields:
            for bit, button in itertools.islice(buttons, len(digits)):
                button.value = bool((code or 0) >> bit & 1)
                button.description, button.tooltip = str(int(button.value)), f"{field_name(name)}, bit {bit}"
                button._dom_classes = (BIT, f"{BIT}-{name}")
        shape = [(field_name(name), len(digits)) for name, digits in fields]
        if shape != self._shapes[side]:  # a tree's fields depend on its bits
            self._shapes[side], groups, place = shape, [], 0
            for name, size in shape:
                row = w.HBox(self.toggles[side][place : place + size], layout=w.Layout(flex_flow="row wrap"))
                groups.append(w.VBox([row, w.HTML(note(name))], layout=w.Layout(margin="0 8px 0 0")))
                place += size
            self.rows[side].children = groups

    def _ipython_display_(self) -> None:
        from .shell import show

        show(self.box, lambda: render(self.state), self.state)


def widget(value: str = "0.1", left: str = "fp16", right: str = "bf16", scale: float = 1.0) -> Editor:
    """The bit editor of a value in two encodings: any format, int8, int4, uint8, dynamic_tree, dynamic, nf4.

    Raises LabError for an encoding that does not exist, or a value that cannot be read.
    """
    start = State(left, right, (0, 0), 0, scale)
    state = typed(start, 0, value)
    if state.problem and state.codes == (0, 0):
        raise LabError(state.problem)
    return Editor(state)
