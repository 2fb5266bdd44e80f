"""The bit editor, the shell and the rules that every widget keeps: pure pictures, kind refusals, both languages."""

from __future__ import annotations

import html
import importlib
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import refusals
from english_words import english_left
from pictures import all_states, bits_shown, parse, text_of
from refusals import refuses

import fplab
from fplab import codebooks, exact, integers, language, words
from fplab.codebooks import tree
from fplab.draw import scene, strip
from fplab.formats import TABLE
from fplab.inspection import encodings
from fplab.widgets import NAMES, bits, shell

ALL = tuple(encodings.encodings())


pytestmark = pytest.mark.usefixtures("english")


# --- every widget -----------------------------------------------------------------------------------------------
def untranslated(name):
    """Whether nothing of a widget has Chinese: whoever adds one needs no other language."""
    controls = getattr(getattr(fplab.widgets, name), "CONTROLS", ())
    return bool(controls) and all(control.label.zh == control.label.en for control in controls)


def test_the_index_names_the_widgets():
    modules = Path(fplab.widgets.__file__).parent.glob("[!_]*.py")
    there = {path.stem for path in modules if "\ndef widget(" in path.read_text(encoding="utf-8")}
    assert there == set(NAMES), f"both lists of fplab/widgets/__init__.py have to name {there ^ set(NAMES)}"
    for name in NAMES:
        assert getattr(fplab.widgets, name) is importlib.import_module(f"fplab.widgets.{name}")
    with pytest.raises(AttributeError, match="has no attribute 'slider'"):
        fplab.widgets.slider  # noqa: B018


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tongue", ["en", "zh"])
def test_a_picture_is_well_formed_spoken_and_repeatable(name, tongue):
    language.lang(tongue)
    for state in all_states(name):
        picture = shell.picture(getattr(fplab.widgets, name).render, state)
        assert picture == shell.picture(getattr(fplab.widgets, name).render, state)
        for svg in parse(picture).iter("svg"):
            assert svg.get("role") == "img"
            assert svg.get("aria-label")
        if tongue == "zh" and untranslated(name):
            continue
        has_chinese = any("\u4e00" <= c <= "\u9fff" for c in picture)
        assert has_chinese == (tongue == "zh")


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_in_chinese_is_spoken_and_punctuated_in_chinese(name):
    han = "[\u4e00-\u9fff]"
    if untranslated(name):
        pytest.skip("It waits for its Chinese.")
    half_width = re.compile(rf"{han} ?[,;:!?]|[,;:] ?{han}|\([^()]*{han}[^()]*\)|{han}[A-Za-z0-9(]|[A-Za-z0-9%)]{han}")
    for state in all_states(name):
        roots = []
        for tongue in ("en", "zh"):
            language.lang(tongue)
            roots.append(parse(shell.picture(getattr(fplab.widgets, name).render, state)))
        labels = [[svg.get("aria-label") for svg in root.iter("svg")] for root in roots]
        for english, chinese in zip(*labels, strict=True):
            assert english != chinese or not re.search("[a-z]{4}", english), english
        for text in [*labels[1], *(text for text in roots[1].itertext())]:
            assert not half_width.search(text), text
            assert english_left(text) == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_black_or_white(name):
    """Text and lines take the page's colour, so that a picture is legible on any page."""
    for state in all_states(name):
        for element in parse(shell.picture(getattr(fplab.widgets, name).render, state)).iter():
            for attribute in ("fill", "stroke"):
                colour = element.get(attribute, "none")
                fixed = {getattr(scene, c) for c in ("BLUE", "ORANGE", "GREEN", "PURPLE", "RED", "GREY")}
                assert colour in {"none", "currentColor", *fixed, *strip.FILLS.values()}
            if element.tag == "text":
                assert element.get("fill") in (None, "currentColor") or element.text in "✕▲○"


@pytest.mark.parametrize("name", NAMES)
def test_a_widget_opens_and_shows_its_state(name):
    module = getattr(fplab.widgets, name)
    board = module.widget()
    assert board.view.value == module.render(board.state, **({"strips": False} if module is bits else {}))
    assert board.box.children[-1] is board.view


@pytest.mark.parametrize("name", [n for n in NAMES if n != "bits"])
def test_every_input_moves_the_state(name):
    module = getattr(fplab.widgets, name)
    for control in module.CONTROLS:
        board = module.widget()
        board_input = board.inputs[control.field]
        before = board.view.value
        if control.options:
            board_input.value = next(o for o in reversed(control.options) if o != board_input.value)
        elif control.low is not None:
            board_input.value = control.low if board_input.value != control.low else control.high
        else:
            board_input.value = "2 2 2 2" if control.field in "ab" else "2"
        assert getattr(board.state, control.field) == board_input.value
        assert board.view.value != before
        assert "Traceback" not in board.view.value


@pytest.mark.parametrize("name", NAMES)
def test_a_widget_brings_what_its_inputs_lack(name):
    board = getattr(fplab.widgets, name).widget()
    found = re.fullmatch(r'<style onload="([^"]*)">[^<]*</style>', board.box.children[0].value)
    assert html.unescape(found[1]) == (Path(shell.__file__).parent / "inputs.js").read_text(encoding="utf-8")
    assert board.box.children[0].layout.display == "none"


def test_labels_follow_the_language():
    board = fplab.widgets.lossscale.widget()
    assert board.buttons[0].description == "○ good step"
    language.lang("zh")
    board.buttons[0].click()
    assert board.buttons[0].description == "○ 正常步"
    assert board.state.events == "g"


def test_a_choice_that_is_not_possible_keeps_the_last_picture_and_says_why():
    board = fplab.widgets.memory.widget()
    last = board.state
    board.inputs["pipeline"].value = 16
    for tongue in ("zh", "en"):
        language.lang(tongue)
        refused = shell.picture(fplab.widgets.memory.render, board.state)
        assert 'role="alert"' in refused
        assert board.view.value == refused + shell.note(shell.LAST) + fplab.widgets.memory.render(last)
    assert "Below is still the last possible choice." in board.view.value
    board.inputs["gpus"].value = 16
    assert board.view.value == fplab.widgets.memory.render(board.state)


def test_what_was_never_possible_has_no_picture_to_keep():
    board = shell.Board(fplab.widgets.memory.State(pipeline=16), fplab.widgets.memory.render)
    assert board.view.value == shell.picture(board.render, board.state)
    assert "<svg" not in board.view.value


@pytest.mark.parametrize("name", ALL)
def test_the_coloured_bits_are_those_that_are_clicked(name):
    """Grouped and named by field, in the colours of the strip, which the live widget has no need of."""
    board = bits.widget("0.1", name)
    sheet = board.box.children[0].value
    for text in ("0.1", "0.002", "0"):
        board.texts[0].value = text
        fields = encodings.get(name).fields(board.state.codes[0])
        groups = [group.children for group in board.rows[0].children]
        assert ["".join(b.description for b in row.children) for row, _ in groups] == [bits_ for _, bits_ in fields]
        assert [text_of(label.value) for _, label in groups] == [strip.field_name(field) for field, _ in fields]
        for (row, _), (field, _) in zip(groups, fields, strict=True):
            assert {b._dom_classes for b in row.children} == {(strip.BIT, f"{strip.BIT}-{field}")}
            colour = strip.FILLS.get(field, strip.BLUE)
            assert f".{strip.BIT}-{field}.mod-active{{background:{colour}80" in sheet
        assert 'class="bit"' not in board.view.value
    assert 'class="bit"' in bits.render(board.state), "where nothing can be clicked, they are drawn"


test_a_wrong_name_is_an_error_that_says_what_is_allowed = refusals.matching(
    (lambda: bits.widget("0.1", "fp17"), "unknown encoding 'fp17'.*Did you mean 'fp16'"),
    (lambda: bits.widget("one"), "cannot read 'one' as a value"),
    (lambda: fplab.widgets.lossscale.widget("tensorflow"), "unknown library 'tensorflow'"),
    (lambda: fplab.widgets.adders.widget("int8"), "inputs='int8' is not possible; allowed: bf16, "),
    (lambda: fplab.widgets.adders.widget(order="tree"), "unknown order 'tree'. Allowed: one chain, promoted every 128"),
    (lambda: fplab.widgets.adders.widget(accumulator_bits=25), "accumulator_bits=25 is not possible; allowed: 4 to 24"),
    (lambda: fplab.widgets.stepper.widget("H10"), "unknown GPU 'H10'.*Did you mean 'H100'"),
    (lambda: fplab.widgets.blockwise.widget("nf5"), "unknown codebook 'nf5'"),
    (lambda: fplab.widgets.blockwise.widget(place=64), "place=64 is not possible"),
    (lambda: fplab.widgets.block_scales.widget("mxfp5"), "unknown way 'mxfp5'. Allowed: mxfp8, mxfp8 rceil, "),
    (lambda: fplab.widgets.block_scales.widget(hadamard=8), "hadamard=8 is not possible; allowed: 0, 16, 32"),
    (lambda: fplab.widgets.block_scales.widget(draws=65), "draws=65 is not possible"),
    (lambda: fplab.widgets.rounding.widget(place=65), "place=65 is not possible"),
    (lambda: fplab.widgets.gradients.sample("bias"), "kind='bias' is not possible; allowed: activation, weight"),
)


def test_what_a_user_typed_is_escaped():
    state = bits.typed(bits.State(), 0, "<script>")
    assert "<script>" not in bits.render(state)
    assert "cannot read '<script>' as a value" in text_of(bits.render(state))


def test_the_shell_shows_and_follows():
    board = shell.Board(fplab.widgets.pipeline.State(), fplab.widgets.pipeline.render,
                        [shell.Control("stages", words.verbatim("a"), low=1, high=9)])  # fmt: skip
    board.move(fplab.widgets.pipeline.State(stages=6))
    assert board.inputs["stages"].value == 6


# --- the encodings ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [n for n in ALL if encodings.get(n).bits <= 8])
def test_every_code_reads_as_fplab_reads_it(name):
    one = encodings.get(name)
    for code in range(1 << one.bits):
        value = one.value(code, 1.0)
        assert "".join(digits for _, digits in one.fields(code)) == f"{code:0{one.bits}b}"
        if name in {f.name for f in TABLE}:
            assert value == exact.decode(code, name)
        elif name in ("int8", "int4"):
            assert value.value == (code + (1 << one.bits - 1)) % (1 << one.bits) - (1 << one.bits - 1)
        elif name == "uint8":
            assert value.value == code
        elif name == "dynamic_tree":
            assert float(value.value) == np.float32(float(tree.decode(code)))
        else:
            assert float(value.value) == {"nf4": codebooks.nf4, "dynamic": codebooks.dynamic}[name]().table[code]


@pytest.mark.parametrize("name", ALL)
def test_a_code_is_nearest_to_its_own_value(name):
    one = encodings.get(name)
    step = max(1, (1 << one.bits) // 997)
    for code in range(0, 1 << one.bits, step):
        value = one.value(code, 0.5)
        if value.kind == "finite":
            assert one.value(one.nearest(value, 0.5), 0.5).value == value.value
        assert one.kind(code)
        assert one.formula(code)


@pytest.mark.parametrize("name", [n for n in ALL if encodings.get(n).bits <= 8])
def test_steps_visit_every_value_once_in_order(name):
    one = encodings.get(name)
    finite = {v.value for c in range(1 << one.bits) if (v := one.value(c, 1.0)).kind == "finite"}
    code = next(c for c in range(1 << one.bits) if (v := one.value(c, 1.0)).kind == "finite" and v.value == min(finite))
    seen = []
    while code is not None and one.value(code, 1.0).kind == "finite":
        seen.append(one.value(code, 1.0).value)
        if len(seen) > 1:
            down = one.neighbour(code, False)
            assert down is not None
            assert one.value(down, 1.0).value == seen[-2]
        code = one.neighbour(code, True)
    assert seen == sorted(finite)


def test_integers_and_codebooks_count_in_their_scale():
    how = integers.Affine(np.float32(0.05), np.int32(0), integers.grids.get("int8_full"))
    for x in (0.1, -0.33, 99.0, -99.0, 0.125):
        code = encodings.get("int8").nearest(exact.from_float(x), 0.05)
        assert code == int(integers.quantize(x, how)) % 256
    nf4 = encodings.get("nf4")
    assert nf4.nearest(exact.from_float(7.0), 2.0) == 15  # clipped to the block's largest
    assert nf4.value(15, 2.0).value == 2
    refuses(lambda: nf4.nearest(exact.NAN, 1.0), "nf4 has neither NaN nor infinity")


# --- the editor -------------------------------------------------------------------------------------------------
def test_toggle_type_step():
    state = bits.typed(bits.State(), 0, "0.1")
    assert state.codes == (0x2E66, 0x3DCD)
    state = bits.toggled(state, 0, 15)
    assert state.codes == (0xAE66, 0xBDCD)
    state = bits.stepped(state, 0, True)
    assert state.codes[0] == 0xAE65
    state = bits.toggled(state, 1, 0)
    assert (state.source, state.codes[1]) == (1, 0xBDCC)
    assert state.codes[0] == exact.round_to(exact.decode(0xBDCC, "bf16"), "fp16")[0]


@pytest.mark.parametrize(
    ("text", "code"),
    [("0x3c00", 0x3C00), ("0b11", 3), ("1/3", 0x3555), ("0x1.8p3", 0x4A00), ("inf", 0x7C00), ("bf16:0x3f80", 0x3C00),
     ("65520", 0x7C00), ("-0", 0x8000)],
)  # fmt: skip
def test_what_can_be_typed(text, code):
    assert bits.typed(bits.State(), 0, text).codes[0] == code


@pytest.mark.parametrize(
    ("text", "message"),
    [("0x12345", "0x12345 is not a code of fp16; allowed: 0x0 to 0xffff"), ("abc", "cannot read 'abc' as a value"),
     ("1/0", "divides by zero"), ("", "cannot read")],
)  # fmt: skip
def test_what_cannot_be_typed_is_told_and_changes_nothing(text, message):
    before = bits.State()
    state = bits.typed(before, 0, text)
    assert state.codes == before.codes
    assert message in text_of(bits.render(state))


def test_an_end_is_told():
    top = bits.typed(bits.State("e2m1", "int4", (0, 0)), 0, "6")
    assert "there is no further value" in bits.stepped(top, 0, True).problem
    assert bits.stepped(top, 0, True).codes == top.codes
    assert bits.stepped(bits.stepped(top, 0, False), 0, True).problem == ""


def test_a_value_that_the_other_side_cannot_hold():
    state = bits.typed(bits.State("fp16", "e2m1", (0, 0)), 0, "nan")
    assert state.codes[1] is None
    assert "cannot hold this value" in text_of(bits.render(state))
    assert bits.chosen(state, 1, "bf16").codes[1] == exact.round_to(exact.NAN, "bf16")[0]
    assert bits.toggled(state, 1, 0).codes == (exact.round_to(exact.of(Fraction(1, 2)), "fp16")[0], 1)


def test_scale():
    state = bits.scaled(bits.typed(bits.State("int8", "fp32", (0, 0)), 0, "5"), "0.5")
    assert state.codes[0] == 5
    assert state.value(1).value == Fraction(5, 2)
    for bad in ("0", "-1", "x", "inf", "nan"):
        assert "is not possible; allowed: 1e-30 to 1e30" in bits.scaled(state, bad).problem


@pytest.mark.parametrize("left", ["fp16", "int8", "dynamic_tree", "nf4", "fp64", "e8m0"])
def test_what_is_drawn_is_what_is_held(left):
    state = bits.typed(bits.State(left, "fp32", (0, 0)), 0, "0.3")
    shown = bits_shown(bits.render(state))
    digits = "".join(f"{c:0{state.encoding(i).bits}b}" for i, c in enumerate(state.codes))
    assert shown == digits
    assert bits.exact_text(state.value(0)) in text_of(bits.render(state))


def test_the_editor_follows_buttons_and_texts():
    editor = bits.widget("1", "e4m3", "int8")
    assert [b.description for b in editor.toggles[0]] == list("00111000")
    editor.toggles[0][-1].value = True
    assert editor.state.codes[0] == 0x39
    assert editor.texts[0].value == "1.125"
    editor.texts[1].value = "3"
    assert (editor.state.codes[1], editor.state.source) == (3, 1)
    assert [b.value for b in editor.toggles[1]] == [False] * 6 + [True, True]
    editor.steps[1][1].click()
    assert editor.state.codes[1] == 4
    editor.names[0].value = "fp16"
    assert len(editor.toggles[0]) == 16
    assert editor.state.codes[0] == 0x4400
    editor.scale.value = "0.25"
    assert editor.state.value(1).value == 1
    editor.texts[0].value = "what"
    assert "cannot read 'what'" in text_of(editor.view.value)


def test_options_are_words_of_the_readers_language_but_for_names():
    names = re.findall(r"\S+", "kahan neumaier ieee apex keras torch amp adam adamw momentum sgd gpipe wgmma")
    language.lang("zh")
    for name in NAMES:
        for control in getattr(getattr(fplab.widgets, name), "CONTROLS", ()):
            for option in control.options:
                shown = str(control.shown(option))
                plain = re.fullmatch(r"[a-z]+(-[a-z]+)*|[a-z]+( [a-z]+)+", shown)
                assert not plain or shown in names, (name, control.field, shown)
    board = fplab.widgets.gradients.widget()
    assert [label for label, _ in board.inputs["kind"].options] == ["激活值", "权重"]
    language.lang("en")
    assert [label for label, _ in board.inputs["kind"].options] == ["activation", "weight"]
    assert board.state.kind == board.inputs["kind"].value == "activation"
