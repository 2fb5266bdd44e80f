"""The shell around a picture: native inputs and buttons that change a state, and the picture drawn anew.

A widget is a frozen state, ``render(state) -> str`` and lists of :class:`Control` and :class:`Action`, all pure; this
is the only module that touches ipywidgets. Every input is reached with Tab and moved with the arrow keys.
"""

import dataclasses
import functools
import html
import inspect
import json
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ..draw.page import note, refusal
from ..draw.strip import BUTTONS
from ..draw.themes import STATIC
from ..errors import LabError, need, quotes_call, summary
from ..language import follow, in_each
from ..lazily import index
from ..words import Text, say, say_of

P = ParamSpec("P")
S = TypeVar("S")
State = Any
# The arrow of a list is black in ipywidgets, on a dark page too.
ARROW = (
    "[data-jp-theme-light=false]{--jp-widgets-dropdown-arrow:"
    "url(\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18'%3E"
    "%3Cpath d='m5 7 4 4 4-4' fill='none' stroke='%23ccc' stroke-width='2'/%3E%3C/svg%3E\")}"
)
LAST = say("Below is still the last possible choice.")
LIVE = say("Live in JupyterLab: there, this can be moved.")
# Options that are words; all others, such as names of formats, are the same in every language.
OPTIONS = {text.en: text for text in (
    say_of("option", "activation"), say_of("option", "weight"), say_of("option", "sequential"),
    say_of("option", "pairwise"), say_of("option", "blocked"), say_of("option", "last"),
    say_of("option", "negative_zero"), say_of("option", "none"), say_of("option", "linear"),
    say_of("option", "dynamic"), say_of("option", "dynamic_tree"), say_of("option", "selective"),
    say_of("option", "full"), say_of("option", "wire"), say_of("option", "interleaved"),
    say_of("option", "all-reduce"), say_of("option", "all-gather"), say_of("option", "reduce-scatter"),
    say_of("option", "reduce"), say_of("option", "broadcast"), say_of("option", "direct"), say_of("option", "ring"),
    say_of("option", "doubling"), say_of("option", "tree"), say_of("option", "cancellation"),
    say_of("option", "far apart"), say_of("option", "three generations"), say_of("option", "mixed"),
    say_of("option", "gradients"), say_of("option", "normal"), say_of("option", "one chain"),
    say_of("option", "promoted every 128"), say_of("option", "split in four"),
    say_of("option", "toward zero"), say_of("option", "to nearest"),
)}  # fmt: skip


@dataclass(frozen=True)
class Control:
    """An input for one field of a state.

    ``options``: names to choose from. ``low``, ``high``, ``step``: a slider. Neither: a line of text, taken on Enter.
    ``flag``: a tick.
    """

    field: str
    label: Text
    options: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    step: float = 1
    flag: bool = False
    wide: bool = False

    def shown(self, option: Any) -> Text | str:
        """What a list says for an option: a word in the reader's language, a name as it is."""
        return OPTIONS.get(option, str(option) or "—")


def _listed(control: Control) -> tuple[tuple[str, Any], ...]:
    return tuple((str(control.shown(option)), option) for option in control.options)


@dataclass(frozen=True)
class Action:
    """A button: ``after(state)`` is the state that it leads to."""

    label: Text
    after: Callable[[State], State]
    hint: Text | None = None


def steps(moved: Callable[[State, int], State]) -> tuple[Action, Action]:
    """The buttons to the step before and to the next one, which ``moved(state, by)`` gives."""
    return Action(say("◀ step"), lambda s: moved(s, -1)), Action(say("step ▶"), lambda s: moved(s, 1))


def change(state: State, field: str, value: Any) -> State:
    return dataclasses.replace(state, **{field: value})


def picture(render: Callable[[State], str], state: State) -> str:
    try:
        return render(state)
    except LabError as error:
        return refusal(error)


_SHOWN: weakref.WeakSet[Any] = weakref.WeakSet()  # every widget there is, to be drawn anew in another language


def redraw_with(widget: Any) -> None:
    """Have a widget, as long as there is one, move to its own state again when the language changes."""
    _SHOWN.add(widget)


class Board:
    """A widget at work: ``state``, the ipywidgets ``inputs`` by field, ``buttons``, and the ``view`` of the picture.

    Shown by a notebook where it is a cell's last line. ``move(state)`` goes to a state from code.
    """

    def __init__(
        self,
        state: State,
        render: Callable[[State], str],
        controls: Sequence[Control] = (),
        actions: Sequence[Action] = (),
        changed: Callable[[State, str, Any], State] = change,
    ) -> None:
        widgets = library()
        self.state, self.render, self.changed = state, render, changed
        self.controls, self.actions = tuple(controls), tuple(actions)
        self._quiet = False
        self._possible: State = None  # the last state that could be drawn
        self.view = widgets.HTML()
        self.inputs = {c.field: self._input(c) for c in self.controls}
        self.buttons = [self._button(a) for a in self.actions]
        wrap = widgets.Layout(flex_flow="row wrap")
        rows = [widgets.HBox(list(row), layout=wrap) for row in (self.inputs.values(), self.buttons) if row]
        self.box = widgets.VBox([reachable(), *rows, self.view])
        self.move(state)
        redraw_with(self)

    def _input(self, c: Control) -> Any:
        widgets = library()
        value = getattr(self.state, c.field)
        if c.options and value not in c.options:
            allowed = ", ".join(str(option) for option in c.options if option not in ("", None))
            raise LabError(f"{c.field}={summary(value)} is not possible; allowed: {allowed}.")
        width = (
            "min(46em, 100% - 16px)" if c.wide else "auto" if c.low is None else "min(32em, 100% - 16px)"
        )  # a slider has none itself
        shared = {
            "description": str(c.label),
            "value": value,
            "style": {"description_width": "initial"},
            "layout": widgets.Layout(width=width, margin="2px 14px 2px 2px"),
        }
        if c.options:
            widget = widgets.Dropdown(options=_listed(c), **shared)
        elif c.flag:
            widget = widgets.Checkbox(indent=False, **shared)
        elif c.low is not None:
            whole = isinstance(value, int) and c.step == int(c.step)
            kind = widgets.IntSlider if whole else widgets.FloatSlider
            widget = kind(min=c.low, max=c.high, step=c.step, **shared)
        else:
            widget = widgets.Text(continuous_update=False, **shared)
        widget.observe(lambda event, field=c.field: self._moved(field, event["new"]), "value")
        return widget

    def _button(self, action: Action) -> Any:
        widgets = library()
        button = widgets.Button(
            description=str(action.label), tooltip=str(action.hint or action.label), layout=widgets.Layout(width="auto")
        )
        button.on_click(lambda _: self.attempt(action.after))
        return button

    def _moved(self, field: str, value: Any) -> None:
        if not self._quiet:
            self.attempt(lambda state: self.changed(state, field, value))

    def attempt(self, step: Callable[[State], State]) -> None:
        """Go to the state that a step leads to; a step that is refused leaves the state, and says why."""
        try:
            after = step(self.state)
        except LabError as error:
            self._follow()
            self.view.value = refusal(error) + self._picture()
            return
        self.move(after)

    def move(self, state: State) -> None:
        """Show a state: the inputs follow, the picture is drawn."""
        self.state = state
        self._follow()
        self.view.value = self._picture()

    def _picture(self) -> str:
        """The picture of the state; where that is not possible, why, and the picture of the last one that was."""
        try:
            drawn = self.render(self.state)
        except LabError as error:
            return refusal(error) + ("" if self._possible is None else note(LAST) + self.render(self._possible))
        self._possible = self.state
        return drawn

    def _follow(self) -> None:
        """Bring inputs and labels in line with the state and the language, without calling back."""
        self._quiet = True
        try:
            for c in self.controls:
                widget, value = self.inputs[c.field], getattr(self.state, c.field)
                widget.description = str(c.label)
                if c.options and widget.options != (labels := _listed(c)):
                    widget.options = labels
                if widget.value != value:
                    widget.value = value
            for action, button in zip(self.actions, self.buttons, strict=True):
                button.description, button.tooltip = str(action.label), str(action.hint or action.label)
        finally:
            self._quiet = False

    def _ipython_display_(self) -> None:
        show(self.box, lambda: picture(self.render, self.state), self.state)


def shown(
    make: Callable[P, S], render: Callable[[S], str], controls: Sequence[Control], actions: Sequence[Action] = (),
    changed: Callable[[S, str, Any], S] = change,
) -> Callable[[Callable[[S], S | None]], Callable[P, Board]]:  # fmt: skip
    """Decorate what refuses a first state, or gives another in its place: it becomes the widget, a function of the
    state's fields, and its module shows the state, the picture and it."""

    def decorate(first: Callable[[S], S | None]) -> Callable[P, Board]:
        def widget(*args: P.args, **named: P.kwargs) -> Board:
            state = make(*args, **named)
            return Board(first(state) or state, render, controls, actions, changed)

        functools.update_wrapper(widget, first)
        widget.__signature__ = inspect.signature(make).replace(return_annotation=Board)  # type: ignore[attr-defined]
        vars(sys.modules[first.__module__])["__all__"] = ["State", "render", first.__name__]
        index(first.__module__)
        return quotes_call(widget)

    return decorate


def show(box: Any, draw: Callable[[], str], state: State) -> None:
    """Show a box of inputs; where a page is made, what ``draw`` gives, in every language, with the state beside it."""
    from IPython.display import HTML, display

    if not os.environ.get(STATIC):
        display(box)
        return
    still = in_each(lambda: draw() + note(f"▶ {LIVE}"))
    name, known = type(state).__module__.rpartition(".")[2], json.dumps(dataclasses.asdict(state), default=str)
    display(HTML(f'<div class="fplab-live" data-widget="{name}" data-state="{html.escape(known)}">{still}</div>'))


def reachable() -> Any:
    """A part of a box that is not seen: it gives sliders their names and lists their keys, on the whole page."""
    widgets = library()
    return widgets.HTML(_script(), layout=widgets.Layout(display="none"))


@functools.cache
def _script() -> str:
    """The script as a style sheet's event: a script element would not run where markup is set as text."""
    script = (Path(__file__).parent / "inputs.js").read_text(encoding="utf-8")
    return f'<style onload="{html.escape(script)}">{ARROW}{BUTTONS}</style>'


def library() -> Any:
    return need("ipywidgets")


def _redraw() -> None:
    for widget in list(_SHOWN):
        widget.move(widget.state)


follow(_redraw)
