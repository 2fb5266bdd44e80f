"""Widgets on pages without a kernel: what a browser shows is what Python draws, offline, by keyboard."""

import base64
import dataclasses
import functools
import html
import itertools
import json
import random
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import browser
import pytest

from fplab import sums
from fplab.inspection import encodings
from fplab.language import LANGUAGES, lang, speaking
from fplab.pages import live, offline
from fplab.widgets import accumulation, bits, designer, gradients, lossscale, mixed, rounding, stepper
from fplab.widgets.shell import picture

ALL = encodings.encodings()
NARROW = ("fp16", "bf16", "e5m2", "e4m3")
TYPED = ("0.1", "-0.1", "1/3", "-7/2", "0x1.8p3", ".5e-3", "1e400", "1e-400", "-0", "inf", "-inf", "nan", "snan",
         "65520", "1_000", "fp16:0x3c00", "HALF: 0b11", "e4m3:999", "fp16:x", "0x2e", "0b1", "0xfffffffffffffffff",
         "1/0", "1e9999", "2^-14", "-1.5·2**3", ".5 * 2 ^ +7", "0×2^9", "2^-3001", "3^2", "2*2", "what?", "it's",
         "", "9" * 251, "fp17:1", "fp8:1", "x:1", "bf-16:0", "e4m3:-5", "fp16:1__0",
         "fp16:0x_3c_00", "floaty:0", "1 / 3", "-5.e3", "e5m2:0x7d", "9" * 250, "1e-3000")  # fmt: skip
FRAME = (  # the scripts as a function of calls, without the page's own widgets
    "(told) => {{ {scripts} const calls = JSON.parse(told); language = calls.language; "
    "return JSON.stringify(calls.all.map(([name, ...given]) => ({{ bits(state, edit, side, what) {{"
    " state = {{ ...state, codes: state.codes.map((c) => (c === null ? null : BigInt(c))) }};"
    " const more = edit === 'scaled' ? [what] : [side, edit === 'edited' ? BigInt(what) : what];"
    " return bitsPicture(edit === '' ? state : EDITS[edit](state, ...more)); }},"
    " lossscale: lossPicture, rounding: (state) => pictureOf(roundingPicture, state),"
    " designer: (state) => pictureOf(designerPicture, state),"
    " accumulation: (state) => pictureOf(accumulationPicture, state) }})[name](...given))); }}"
)


def computed(chromium: Any, language: str, calls: list[Any]) -> list[str]:
    """What the scripts draw for each call."""
    page = chromium.new_page()
    scripts = live.scripts({*live.WRITTEN})
    found = page.evaluate(FRAME.format(scripts=scripts), json.dumps({"language": language, "all": calls}))
    page.close()
    return list(json.loads(found))


def plain(state: bits.State) -> dict[str, Any]:
    codes = [None if code is None else str(code) for code in state.codes]
    return {"names": state.names, "codes": codes, "source": state.source, "scale": state.scale, "problem": None}


def moves(seed: int) -> list[tuple[bits.State, str, int, Any]]:
    """States of every pair of encodings, each with something that is done to it; and each code of the narrow ones."""
    draw, found = random.Random(seed), []
    for left, right in itertools.product(ALL, repeat=2):
        state = bits.edited(
            bits.State(left, right, scale=draw.choice((1.0, 0.05, 3.0))), 0, draw.getrandbits(ALL[left].bits)
        )
        side = draw.randrange(2)
        found += [
            (state, "edited", side, draw.getrandbits(ALL[state.names[side]].bits)),
            (state, "toggled", side, draw.randrange(ALL[state.names[side]].bits)),
            (state, "stepped", side, draw.random() < 0.5),
            (state, "typed", side, draw.choice(TYPED)),
            (state, "chosen", side, draw.choice(list(ALL))),
            (state, "scaled", 0, draw.choice(("0.5", "1e-30", "0", "x", "1e31"))),
        ]
    for name, one in ALL.items():
        if one.bits <= 8:
            found += [(bits.State(name, "fp16"), "edited", 0, code) for code in range(1 << one.bits)]
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_bit_editor_of_a_page_is_that_of_a_notebook(chromium, language):
    done = moves(seed=20)
    calls = [
        ["bits", plain(state), edit, side, str(what) if edit == "edited" else what] for state, edit, side, what in done
    ]
    for (state, edit, side, what), shown in zip(done, computed(chromium, language, calls), strict=True):
        with speaking(language):
            after = bits.scaled(state, what) if edit == "scaled" else getattr(bits, edit)(state, side, what)
            assert shown == bits.render(after, strips=False), (state, edit, side, what)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_loss_scale_of_a_page_is_that_of_a_notebook(chromium, language):
    draw = random.Random(7)
    states = [lossscale.State(library, interval, "".join(draw.choices("go", (weight, 1), k=length)))
              for library, interval, weight, length in itertools.product(
                  lossscale.MACHINES, (1, 4, 20), (0, 1, 9, 200), (0, 1, 9, 60, 300))]  # fmt: skip
    shown = computed(chromium, language, [["lossscale", dataclasses.asdict(state)] for state in states])
    with speaking(language):
        for state, picture in zip(states, shown, strict=True):
            assert picture == lossscale.render(state), state


def lines(seed: int) -> list[rounding.State]:
    """The number line in several formats at each place of x, and where it is typed to begin."""
    draw, names = random.Random(seed), rounding.CONTROLS[0].options
    every = itertools.product((*NARROW, "e2m1", "fp32"), ("0", "1"), range(65))
    typed = [*TYPED, *(f"{draw.choice('-+')}{draw.random():.3g}e{draw.randint(-9, 9)}" for _ in TYPED)]
    return [rounding.State(*one) for one in every] + [
        rounding.State(draw.choice(names), text, draw.randint(0, 64)) for text in typed for _ in range(6)
    ]


def designs(seed: int) -> list[designer.State]:
    """Formats that a designer begins with, beside FP16, and many others beside any, also such as cannot be."""
    draw, (exponents, fractions, specials, other) = random.Random(seed), designer.CONTROLS
    every = itertools.product((2, 3, 4, 5, 8), (1, 2, 3, 4, 7, 10), specials.options, ("fp16",))
    some = [*itertools.product(range(1, 12), range(24), specials.options)]
    assert (exponents.low, exponents.high, fractions.low, fractions.high) == (1, 11, 0, 23)
    return [designer.State(*one) for one in every] + [
        designer.State(*one, draw.choice(other.options)) for one in draw.sample(some, 300)
    ]


def curves(seed: int) -> list[accumulation.State]:
    """Sums of a few terms in narrow formats, and of any that is typed in any format and order."""
    draw, names = random.Random(seed), accumulation.FORMATS
    every = itertools.product(("0.1", "1", "1/3"), (64, 256, 1024, 4096), NARROW, ("fp16", "bf16", "fp32"),
                              ("sequential", "pairwise", "kahan"))  # fmt: skip
    typed = [*TYPED, *(f"{draw.choice('-+')}{draw.random()}e{draw.randint(-9, 9)}" for _ in range(200))]
    far = (f"{draw.getrandbits(24)}/{1 << draw.randint(0, 160)}" for _ in range(100))
    return [accumulation.State(*one) for one in every] + [
        accumulation.State(
            text, draw.choice((1, 2, 3, draw.randint(4, 4096))), draw.choice(names), draw.choice(names), order
        )
        for text in (*typed, *far)
        for order in draw.sample([*sums.ORDERS], 2)
    ]


BOARDS = {rounding: lines, designer: designs, accumulation: curves}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("widget", BOARDS)
def test_a_widget_that_a_page_computes_is_that_of_a_notebook(chromium, widget, language):
    name, given = widget.__name__.rpartition(".")[2], BOARDS[widget](seed=20)
    shown = computed(chromium, language, [[name, dataclasses.asdict(state)] for state in given])
    with speaking(language):
        for state, found in zip(given, shown, strict=True):
            assert found == picture(widget.render, state), state


def page_of(folder: Path, *states: Any) -> Path:
    """A page with a widget at each state, as the course's pages have it."""
    marks = [
        f'<div class="fplab-live" data-widget="{type(one).__module__.rpartition(".")[2]}" '
        f'data-state="{html.escape(json.dumps(dataclasses.asdict(one)))}">still</div>'
        for one in states
    ]
    style = (Path(live.__file__).parent / "static" / "fplab.css").read_text(encoding="utf-8")
    body = live.moving("".join(marks))
    text = (f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<style>{style}</style><body>{body}{live.scripts_of(body)}</body></html>")  # fmt: skip
    assert not offline.fetched(text)
    path = folder / "live.html"
    path.write_text(text, encoding="utf-8")
    return path


COUNTED = """window.unpacked = 0;
window.DecompressionStream = class extends DecompressionStream {
    constructor(...given) { super(...given); window.unpacked += 1; }
};"""
EACH = """async ([host, told]) => {
    const expected = JSON.parse(told), inputs = [...host.querySelectorAll("input, select")], wrong = [];
    const template = document.createElement("template"), same = () => host.lastChild.innerHTML === template.innerHTML;
    for (const [places, picture] of expected) {
        places.forEach((place, i) => {
            if (inputs[i].type === "range") inputs[i].max = 1000; // the last state's steps may have been fewer
            inputs[i].value = place;
            inputs[i].dispatchEvent(new Event("input"));
        });
        const end = performance.now() + 300000;
        template.innerHTML = picture;
        while (!same() && performance.now() < end) await new Promise((on) => setTimeout(on, 0));
        if (!same()) wrong.push(places);
    }
    return wrong;
}"""


@functools.cache
def drawn(name: str) -> tuple[Any, dict[tuple[int, ...], Any], dict[str, Any], dict[tuple[str, Any], str]]:
    """A widget's module, its state at each place of its inputs on a page, what the page has, and the widget's pictures.

    Each picture is drawn once, for the page and for the tests.
    """
    module = import_module(f"fplab.widgets.{name}")
    own = dataclasses.asdict(module.State())
    inputs = live.choices(name, own)
    places = list(itertools.product(*(range(len(one.values)) for one in inputs)))
    values = ([one.values[i] for one, i in zip(inputs, place, strict=True)] for place in places)
    states = dict(zip(places, (live.chosen(module, own, inputs, one) for one in values), strict=True))
    known: dict[tuple[str, Any], str] = {}

    def once(render: Any, state: Any) -> str:
        if (lang(), state) not in known:
            known[lang(), state] = picture(render, state)
        return known[lang(), state]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "picture", once)
        return module, states, live.drawn(name, own), known


@pytest.mark.parametrize("name", sorted(live.DRAWN))
def test_every_picture_that_was_drawn_beforehand_is_the_widgets_own(name):
    module, states, found, known = drawn(name)
    assert states[tuple(control["at"] for control in found["controls"])] == module.State()
    packs = [json.loads(zlib.decompress(base64.b64decode(pack))) for pack in found["pictures"]]
    for language in LANGUAGES:
        drawings = ("".join(pack["parts"][part] for part in pack["drawings"][one])
                    for pack in packs for one in pack[language])  # fmt: skip
        for state, shown in zip(states.values(), drawings, strict=True):
            assert shown == known[language, state], state


@pytest.mark.parametrize("name", sorted(live.DRAWN))
def test_pictures_that_were_drawn_beforehand_are_shown(chromium, tmp_path, name, monkeypatch):
    module, states, found, known = drawn(name)
    monkeypatch.setattr(live, "drawn", lambda *_: found)
    person = browser.Person(chromium, 800)
    person.page.add_init_script(COUNTED)
    person.page.goto(page_of(tmp_path, module.State()).as_uri())
    host = person.page.locator(".fplab-live").element_handle()
    some = list(states) if name == "gradients" else random.Random(2).sample(list(states), 40)
    for language in LANGUAGES:
        person.page.evaluate("(language) => { document.documentElement.lang = language; }", language)
        expected = [(places, known[language, states[places]]) for places in some]
        assert person.page.evaluate(EACH, [host, json.dumps(expected)]) == []
    assert 0 < person.page.evaluate("unpacked") <= len(found["pictures"])  # each once, whatever is moved
    assert person.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert person.complaints == []


MOVE = """([host, place, value]) => {
    const input = host.querySelectorAll("input, select, button")[place];
    if (input.tagName === "BUTTON") input.click();
    else if (input.tagName === "SELECT") input.selectedIndex = value; else input.value = value;
    input.dispatchEvent(new Event(input.type === "text" ? "change" : "input"));
    return host.lastChild.innerHTML; // at once
}"""


@pytest.mark.parametrize("widget", BOARDS)
def test_inputs_of_a_page_do_what_those_of_a_notebook_do(chromium, tmp_path, widget):
    person, draw = browser.Person(chromium, 800), random.Random(5)
    address = page_of(tmp_path, widget.State()).as_uri()
    parsed = "(text) => Object.assign(document.createElement('template'), {innerHTML: text}).innerHTML"
    for language in LANGUAGES:
        person.page.goto(address)
        host = person.page.locator(".fplab-live").element_handle()
        person.page.evaluate("(language) => { document.documentElement.lang = language; }", language)
        with speaking(language):
            board = widget.widget()
            for _ in range(60):
                place = draw.randrange(len(board.controls) + len(board.buttons))
                given: Any = None
                if place >= len(board.controls):
                    board.buttons[place - len(board.controls)].click()
                else:
                    control = board.controls[place]
                    ends = range(int(control.low or 0), int(control.high or 0) + 1)
                    value = draw.choice(control.options or (TYPED if control.low is None else ends))
                    board.inputs[control.field].value = value
                    given = control.options.index(value) if control.options else value
                shown = person.page.evaluate(MOVE, [host, place, given])
                assert shown == person.page.evaluate(parsed, board.view.value), (board.state, place, given)
    assert person.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert person.complaints == []


def test_buttons_go_through_the_steps_and_a_box_of_a_diagram_is_clicked(chromium, tmp_path, monkeypatch):
    made = {name: drawn(name)[2] for name in ("stepper", "mixed")}
    monkeypatch.setattr(live, "drawn", lambda name, _: made[name])
    page = browser.Person(chromium, 800).page
    page.goto(page_of(tmp_path, stepper.State(), mixed.State()).as_uri())
    unit, diagram = (page.locator(".fplab-live").nth(i) for i in range(2))
    unit.get_by_text("step 1 / 1").wait_for()
    assert unit.get_by_role("button", name="step ▶").is_disabled()
    unit.locator("select").first.select_option(label="16 × 2^-24 + 1")
    for n in (2, 3, 4):
        unit.get_by_role("button", name="step ▶").click()
        unit.get_by_text(f"step {n} / 4").wait_for()
    assert unit.get_by_role("button", name="step ▶").is_disabled()
    unit.locator("select").nth(1).select_option(label="A100")
    unit.get_by_text("step 2 / 2").wait_for()
    diagram.locator("rect.edge").nth(8).click()
    diagram.get_by_text("9. new master weight, FP32").wait_for()
    assert diagram.locator("input[type=range]").last.input_value() == "8"


def test_widgets_of_a_page_move_by_keyboard_and_fit(chromium, tmp_path):
    person = browser.Person(chromium, 800)
    page = person.page
    page.goto(page_of(tmp_path, bits.State(), gradients.State(), lossscale.State()).as_uri())
    editor, histogram, machine = (page.locator(".fplab-live").nth(i) for i in range(3))
    sign = editor.locator(".fplab-bits button").first
    sign.focus()
    page.keyboard.press("Space")
    assert sign.get_attribute("aria-pressed") == "1" or sign.get_attribute("aria-pressed") == "true"
    assert "0xae66" in editor.inner_text()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.title") == "exponent, bit 14"
    handle = histogram.locator("input[type=range]")
    histogram.get_by_text("loss scale 2⁰").first.wait_for()
    handle.focus()
    page.keyboard.press("ArrowRight")
    histogram.get_by_text("loss scale 2¹").first.wait_for()
    machine.get_by_role("button", name="✕ overflow").press("Enter")
    assert "32,768 = 2¹⁵" in machine.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("document.documentElement.lang = 'zh'")  # a page of the site is in one language
    histogram.get_by_text("损失缩放").first.wait_for()
    assert "正规数" in editor.inner_text()
    assert person.complaints == []
