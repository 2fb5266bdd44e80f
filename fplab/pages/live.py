"""Widgets that move on a page behind which there is no kernel: by pictures drawn beforehand, or by a small script.

A notebook's widget leaves its name and state beside its picture. Where the states are few, each picture is drawn here
and the page chooses among them; others have too many, or inputs that are typed, and are written a second time in
``scripts``, which a test holds against these.
"""

import base64
import contextlib
import dataclasses
import functools
import html
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from .. import sums
from ..draw.page import listed
from ..draw.scene import BLUE
from ..draw.strip import FIELD_NAMES, FILLS
from ..errors import LabError
from ..formats import NAMES, TABLE, Format, Rounding
from ..inspection import encodings, given
from ..inspection.encodings import BookCodes, FloatCodes, IntegerCodes
from ..inspection.rows import CLASSES
from ..integers import grids
from ..language import LANGUAGES, speaking
from ..parallel.collectives import ALGORITHMS
from ..widgets import accumulation, designer, lossscale, rounding
from ..widgets.collectives import OWN
from ..widgets.shell import Control, picture
from ..widgets.stepper import PRESETS
from ..widgets.zero import MOST
from ..words import Text, say, translated

SCRIPTS = Path(__file__).parent / "scripts"
MARKED = re.compile(r'<div class="fplab-live" data-widget="(\w+)" data-state="([^"]*)">')
LIVE = re.compile(r'<div class="fplab-live" data-widget="(\w+)" data-state="[^"]*" data-live=')
TAG = re.compile(r"(?=<[a-z])")
SAID = re.compile(r'"((?:[^"\\\n]|\\.)+)"|\'([^\'\n]+)\'')
IN_CONTEXT = re.compile(r'sayOf\("([^"]+)", "([^"]+)"\)')
# The scripts of each widget that is written a second time, before its own; those of "board" have its inputs there.
BOARD = ("exact", "formats", "board")
WRITTEN = {"bits": ("exact", "formats"), "lossscale": ("exact",), "rounding": BOARD, "designer": BOARD,
           "accumulation": BOARD}  # fmt: skip
ROWS = [(name, *row) for name, row in PRESETS.items()]
# What each input of a widget can be on a page, where that is not all that it can be in a notebook. A name of several
# fields: one input chooses them together.
DRAWN: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "adders": {
        "inputs": ("e4m3", "fp16"), "accumulator_bits": (6, 10, 14, 18, 24), "guard_bits": (0, 3), "block": (8, 16, 32),
    },
    "block_scales": {
        "way": ("mxfp8", "mxfp4", "nvfp4", "nvfp4 4over6"), "values": ("normal",), "place": (20,), "hadamard": (0, 16),
        "outlier": (0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), "draws": (0, 1, 16, 64),
    },
    "blockwise": {"outlier": (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, -64.0), "place": (4, 20, 40)},
    "collectives": {
        "collective algorithm": [*(("all-reduce", way) for way in ALGORITHMS), *OWN.items()],
        "ranks": (2, 3, 4, 8), "format": ("fp32", "fp16", "bf16", "e4m3"),
    },
    "gpus": {"preset a b c": ROWS},
    "gradients": {},
    "memory": {
        "model": ("gpt2-xl", "gpt3", "llama3-8b", "llama3-70b"), "gpus": (1, 8, 16, 32, 64, 1024), "tensor": (1,),
        "pipeline": (1,), "micro_batch": (1,), "precision": ("mixed",), "optimizer": ("adamw", "adamw8bit"), "card": (),
    },
    "mixed": {
        "log2_scale": (0, 8, 16, 24, 32), "log2_loss": (-24, -14, 0), "log2_rate": (-16, -8, -2), "digit": (1,),
        "pixel": (1,),
    },
    "pipeline": {"stages": (2, 4, 8), "micro_batches": (4, 8, 16), "chunks": (1, 2), "backward": (1, 2)},
    "stepper": {
        "preset a b c": ROWS, "inputs": ("fp16", "bf16", "e4m3"), "output": ("fp32",), "instruction": ("",)
    },
    "zero": {},
}  # fmt: skip
# What a notebook's buttons go through: the last input of a page, which ends where another step changes nothing.
STEPS = {
    "collectives": Control("step", say("step"), low=1, high=14),
    "mixed": Control("edge", say("edge"), low=1, high=10),
    "stepper": Control("step", say("step"), low=0, high=7),
    "zero": Control("moment", say("act"), low=1, high=MOST),
}
SOME = say("Some of its states; in JupyterLab, every one.")
TOGETHER = 120  # pictures at most that are packed as one, for what they share is there once


class Choice(NamedTuple):
    """An input of a page. ``values``: what its ``fields`` can be; ``at``: the place of the state's own in them."""

    control: Control
    fields: tuple[str, ...]
    values: list[tuple[Any, ...]]
    at: int


def moving(body: str) -> str:
    """What a page shows, each widget with what it needs to move; :func:`scripts_of` gives the scripts."""
    return MARKED.sub(lambda one: _moved(one[1], html.unescape(one[2])), body)


def scripts_of(body: str) -> str:
    """The scripts that move the widgets of a page, as the elements that hold them: none without such a widget."""
    found = set(LIVE.findall(body))
    return f"<script>\n{{\n{scripts(found)}}}\n</script>\n" if found else ""


@functools.lru_cache(maxsize=64)  # the runs of both languages ask
def _moved(name: str, told: str) -> str:
    if name not in (*DRAWN, *WRITTEN):
        return "<div>"
    state = json.loads(told)
    if "codes" in state:  # of up to 64 bits, which a number in a browser does not hold
        state["codes"] = [None if code is None else str(code) for code in state["codes"]]
    live = drawn(name, state) if name in DRAWN else {}
    data = {"widget": name, "state": state, "live": live}
    parts = (f'data-{key}="{html.escape(v if isinstance(v, str) else _json(v))}"' for key, v in data.items())
    return f'<div class="fplab-live" {" ".join(parts)}>'


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- pictures drawn beforehand ----------------------------------------------------------------------------------
def choices(name: str, state: Mapping[str, Any]) -> list[Choice]:
    """The inputs of a widget, and what each can be on a page: the state's own value always."""
    steps = [STEPS[name]] if name in STEPS else []
    told = {fields.split()[0]: (tuple(fields.split()), values) for fields, values in DRAWN[name].items()}
    elsewhere = {field for fields, _ in told.values() for field in fields[1:]} | {one.field for one in steps}
    controls = [one for one in import_module(f"fplab.widgets.{name}").CONTROLS if one.field not in elsewhere]
    found = []
    for control in [*controls, *steps]:
        fields, values = told.get(control.field, ((control.field,), control.options))
        if control.low is not None and control.high is not None and not values:
            values = range(int(control.low), int(control.high) + 1, int(control.step))
        each = [value if len(fields) > 1 else (value,) for value in values]
        mine = tuple(state[field] for field in fields)
        each = each if mine in each else [mine, *each]
        each = sorted(each) if control.low is not None else each
        found.append(Choice(control, fields, each, each.index(mine)))
    return found


def together(inputs: Sequence[Choice]) -> int:
    """How many inputs, the last ones, lead to the pictures that are packed as one."""
    sizes = [math.prod(len(one.values) for one in inputs[i:]) for i in range(len(inputs))]
    return max(1, sum(size <= TOGETHER for size in sizes))


def chosen(module: Any, state: Mapping[str, Any], inputs: Sequence[Choice], values: Sequence[tuple[Any, ...]]) -> Any:
    """The widget's state where its inputs have some values; of steps beyond the last, the last."""
    pairs = (zip(one.fields, value, strict=True) for one, value in zip(inputs, values, strict=True))
    found = module.State(**{**state, **dict(itertools.chain.from_iterable(pairs))})
    with contextlib.suppress(LabError):  # the picture of what cannot be says why
        return module.moved(found, 0) if hasattr(module, "moved") else found
    return found


def drawn(name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs, and for each choice of all but the last ones the pictures that these lead to, deflated."""
    module = import_module(f"fplab.widgets.{name}")
    inputs = choices(name, state)
    count = together(inputs)
    first, last = ([one.values for one in some] for some in (inputs[:-count], inputs[-count:]))
    packs = []
    for before in itertools.product(*first):
        parts: dict[str, int] = {}  # what pictures share is there once
        drawings: dict[tuple[int, ...], int] = {}
        found: dict[str, list[int]] = {}
        for language in LANGUAGES:
            with speaking(language):
                states = [chosen(module, state, inputs, (*before, *after)) for after in itertools.product(*last)]
                pieces = {one: TAG.split(picture(module.render, one)) for one in dict.fromkeys(states)}
            numbers = [tuple(parts.setdefault(piece, len(parts)) for piece in pieces[one]) for one in states]
            found[language] = [drawings.setdefault(one, len(drawings)) for one in numbers]
        data = _json({"parts": [*parts], "drawings": [*drawings], **found}).encode()
        packs.append(base64.b64encode(zlib.compress(data, 9)).decode("ascii"))
    return {"controls": [_control(one, name) for one in inputs], "together": count, "note": _each(SOME),
            "pictures": packs}  # fmt: skip


def _control(one: Choice, name: str) -> dict[str, Any]:
    heads = {value[0] for value in one.values}
    said = 1 if len(heads) == len(one.values) else len(one.fields)  # as much as tells them apart
    options: list[dict[str, str]] = [{} for _ in one.values]
    for language in LANGUAGES:
        with speaking(language):
            for option, value in zip(options, one.values, strict=True):
                option[language] = listed(*map(one.control.shown, value[:said]))
    is_steps = name in STEPS and STEPS[name].field == one.control.field
    return {"label": _each(one.control.label), "range": one.control.low is not None, "steps": is_steps, "at": one.at,
            "options": options}  # fmt: skip


def _each(text: Text) -> dict[str, str]:
    return {language: text.into(language) for language in LANGUAGES}


# --- scripts ----------------------------------------------------------------------------------------------------
def scripts(names: set[str]) -> str:
    """The scripts that some widgets need, with the data and the words that they need."""
    needed = {"shell", "start", *names}.union(*(WRITTEN.get(name, ()) for name in names))
    drawing = {"width": designer.WIDTH, "most": designer.MOST_TICKS}
    boards = [name for name in sorted(names) if WRITTEN.get(name) == BOARD]
    parts: dict[str, Callable[[], Any] | None] = {
        "shell": None, "exact": None, "formats": _formats, "bits": _others, "lossscale": _machines,
        "board": lambda: {name: _board(name) for name in boards}, "rounding": _line, "designer": lambda: drawing,
        "accumulation": _sums, "start": None,
    }  # fmt: skip
    text = "".join(
        (f"const {name.upper()} = {_json(data())};\n" if data else "") + _script(name)
        for name, data in parts.items()
        if name in needed
    )
    return f"const WORDS = {_json(_words(text))};\n{text}".replace("</", "<\\/")


def _script(name: str) -> str:
    return (SCRIPTS / f"{name}.js").read_text(encoding="utf-8")


def _words(script: str) -> dict[str, str]:
    """The Chinese of every message in a script."""
    said = {(double or single).replace('\\"', '"') for double, single in SAID.findall(script)}
    found = {message: translated(message, "", "zh") for message in sorted(said)}
    found |= {
        f"{context}|{message}": translated(message, context, "zh") for context, message in IN_CONTEXT.findall(script)
    }
    return {message: text for message, text in found.items() if text != message}


def _formats() -> dict[str, Any]:
    """The formats, how fields and classes are called and coloured, and what can be typed."""
    names = {**FIELD_NAMES, **CLASSES}
    return {
        "records": [_float(one) for one in TABLE], "formats": NAMES,
        "aliases": {name: f.name for f in TABLE for name in (f.name, *f.aliases)},
        "names": {name: _each(text) for name, text in names.items()},
        "fills": {name: FILLS.get(name, BLUE) for name in FIELD_NAMES},
        "most_bits": given.MOST_BITS, "longest_text": given.LONGEST_TEXT, "largest_exponent": given.LARGEST_EXPONENT,
    }  # fmt: skip


def _float(form: Format) -> dict[str, Any]:
    """A format as data; codes as text, which is of up to 64 bits."""
    codes = {key: None if (code := getattr(form, key)) is None else str(code)
             for key in ("sign_mask", "max_code", "inf_code", "nan_code")}  # fmt: skip
    plain = {key: getattr(form, key) for key in ("name", "bits", "signed", "exponent_bits", "fraction_bits", "emin")}
    return {**plain, **codes, "zero": int(form.zero), "negative_zero": form.has_negative_zero,
            "specials": form.specials.value}  # fmt: skip


def _others() -> list[dict[str, Any]]:
    """The encodings of the bit editor that are no formats."""
    return [_encoding(one) for one in encodings.encodings().values() if not isinstance(one, FloatCodes)]


def _encoding(one: object) -> dict[str, Any]:
    if isinstance(one, IntegerCodes):
        grid = grids.get(one.grid)
        return {"name": one.name, "bits": one.bits, "low": grid.low, "high": grid.high}
    assert isinstance(one, BookCodes)
    return {"name": one.name, "bits": one.bits, "is_tree": one.is_tree, "table": one.book.table.tolist()}


def _machines() -> dict[str, Any]:
    """The constants of each library's loss scaler; None for a scale without an upper end."""
    found = {name: dataclasses.asdict(how) for name, how in lossscale.MACHINES.items()}
    for how in found.values():
        how["highest"] = None if math.isinf(how["highest"]) else how["highest"]
    return {"machines": found, "most": lossscale.MOST}


def _line() -> dict[str, Any]:
    """The roundings, and the sizes of the number line."""
    modes = [{"name": mode.value, "random": mode.random, "said": _each(rounding.NAMES[mode])} for mode in Rounding]
    sizes = {"left": rounding.LEFT, "width": rounding.WIDTH, "row": rounding.ROW}
    return {"modes": modes, "gaps": rounding.GAPS, "parts": rounding.PARTS, **sizes}


def _sums() -> dict[str, Any]:
    """How many points a curve has, by the order of its sums, and the sizes of the picture."""
    sizes = {"left": accumulation.LEFT, "width": accumulation.WIDTH, "height": accumulation.HEIGHT}
    return {"points": accumulation.POINTS, "fewer": accumulation.FEWER, "running": sums.RUNNING, **sizes}


def _board(name: str) -> dict[str, Any]:
    """The inputs and buttons of a widget as a notebook has them; a button as the fields that it sets."""
    module = import_module(f"fplab.widgets.{name}")
    inputs = []
    for one in module.CONTROLS:
        options: list[dict[str, Any]] = [{"value": option} for option in one.options]
        for language in LANGUAGES:
            with speaking(language):
                for option in options:
                    option[language] = str(one.shown(option["value"]))
        inputs.append({"field": one.field, "label": _each(one.label), "low": one.low, "high": one.high,
                       "options": options or None})  # fmt: skip
    nothing = module.State(**{field.name: None for field in dataclasses.fields(module.State)})
    buttons = []
    for one in getattr(module, "ACTIONS", ()):
        after = dataclasses.asdict(one.after(nothing))
        fields = {field: value for field, value in after.items() if value is not None}
        buttons.append({"text": str(one.label), "fields": fields})
    return {"controls": inputs, "actions": buttons}
