"""What each widget draws is what fplab computes; every transition of a state."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from pictures import bits_shown, of_class, parse, text_of

import fplab
from fplab import codebooks, exact, formats, memory, sums
from fplab.draw.stepper import BELOW
from fplab.errors import LabError
from fplab.formats import Rounding
from fplab.hardware import records
from fplab.memory.pipeline import SCHEDULES
from fplab.parallel import schedules
from fplab.scaled import get_scheme, oracle
from fplab.tensorcore import GPUS, dot, exploration, matmul, models, operands, trace
from fplab.training.scalers import machine
from fplab.widgets import (
    accumulation,
    adders,
    block_scales,
    blockwise,
    designer,
    evidence,
    gpus,
    gradients,
    lossscale,
    pipeline,
    rounding,
    shell,
    stepper,
)
from fplab.widgets import memory as calculator

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "tensor-core-corpus"


pytestmark = pytest.mark.usefixtures("english")


# --- the Tensor Core stepper ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["V100", "A100", "H100"])
@pytest.mark.parametrize("preset", stepper.PRESETS)
def test_stepper_draws_every_bit_of_the_trace(gpu, preset):
    state = stepper.changed(stepper.State(gpu=gpu), "preset", preset)
    whole = trace(*(stepper.numbers(x, "x") for x in (state.a, state.b)), stepper.numbers(state.c, "c")[0], gpu=gpu)
    for number, step in enumerate(whole.steps):
        picture = stepper.render(replace(state, step=number))
        assert f"{step.result!r} (0x{step.bits:08x})" in text_of(picture)
        low, want, struck = _log2(step.quantum), "", 0
        bottom = max(min([low, _last(step.total), *(_last(t.value) for t in step.terms)]), low - BELOW)
        for term in (t for t in step.terms if t.value):
            digits = _digits(term.value, bottom)
            want += digits
            struck += min(len(digits), max(0, low - max(_last(term.value), bottom)))
        result = Fraction(step.result)
        place = _log2(result) - whole.model.kept_bits if result else low
        sums_drawn = _digits(step.total, bottom) + _digits(result, bottom)
        assert bits_shown(picture) == want + sums_drawn
        lost_in_sum = max(0, place - _last(step.total)) if step.total else 0
        assert len(of_class(picture, "strike")) == struck + lost_in_sum
        if step.total:
            assert f"{step.units:,} × " in text_of(picture)


def _log2(x: Fraction) -> int:
    return exact.floor_log2(abs(x))


def _last(x: Fraction) -> int:
    if not x:
        return 10**6
    return next(p for p in range(-400, 400) if (x / Fraction(2) ** p).denominator == 1 and (x / Fraction(2) ** p) % 2)


def _digits(x: Fraction, bottom: int) -> str:
    if not x or _log2(x) < bottom:
        return ""
    return f"{int(abs(x) / Fraction(2) ** max(_last(x), bottom)):b}"


def test_stepper_walks_and_stops_at_the_ends():
    state = stepper.changed(stepper.State(gpu="V100"), "preset", "16 × 2^-24 + 1")
    places = [state.step]
    for by in (1, 1, 1, 1, -1, -5):
        state = stepper.moved(state, by)
        places.append(state.step)
    assert places == [0, 1, 2, 3, 3, 2, 0]
    assert stepper.changed(replace(state, step=3), "c", "2").step == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": "1 two"}, "a holds 'two', which is no number; allowed: 0.1, -3, 1e-4, 2^-12, 0x1.8p3."),
        ({"a": "1 2"}, "a has 2 numbers and b 4; both need the same number of them"),
        ({"a": "", "b": ""}, "a has 0 numbers and b 0"),
        ({"c": "1 2"}, "c has 2 numbers; it is one."),
        ({"a": "1 " * 65}, "a has 65 numbers; allowed: up to 64."),
        ({"inputs": "bf16"}, "V100 (Volta, sm_70) has no bf16. Allowed on V100: fp16, fp32, fp64. GPUs that have it: "),
        ({"a": "2^9999 1 1 1"}, "a holds '2^9999', which is no number"),
    ],
)
def test_stepper_refuses_kindly(change, message):
    picture = shell.picture(stepper.render, replace(stepper.State(), **change))
    assert f"Not possible: {message}" in text_of(picture)


def test_numbers():
    assert stepper.numbers("2^-3, -2**4; 0x1.8p1  1e-2", "a") == [0.125, -16.0, 3.0, 0.01]


def test_special_operands_are_told():
    picture = stepper.render(stepper.State(a="inf", b="0", c="1"))
    assert "Special operands decide this step." in text_of(picture)
    assert "no record of this row" in text_of(picture)


def a_record(bits: int) -> records.Record:
    """One made-up row of A100's FP16 instruction: 1*1 + 2 with a result of our choice."""
    a = np.zeros((1, 16), np.uint16)
    a[0, 0] = 0x3C00
    case = records.RecordedCase("mma.m16n8k16 fp16->fp32",
                                {"random.a": a, "random.b": a, "random.c": np.array([0x40000000], np.uint32)},
                                {"random": np.array([bits], np.uint32)}, {"random": "fp32"})  # fmt: skip
    meta = {"experiment": "mma", "size": "full", "kind": "cuda", "device": "NVIDIA A100-SXM4-80GB", "torch": "2.13.0"}
    return records.Record(meta, (case,))


@pytest.mark.parametrize(("bits", "mark"), [(0x40400000, "✓ the same bits"), (0x40400001, "✗ OTHER BITS")])
def test_recorded_bits_stand_beside(tmp_path, monkeypatch, bits, mark):
    records.save(tmp_path, a_record(bits))
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    state = stepper.State(a="1", b="1", c="2", gpu="A100")
    shown = text_of(stepper.render(state))
    assert f"0x{bits:08x} {mark} (NVIDIA A100-SXM4-80GB, torch 2.13.0, random, row 0)" in shown
    assert "no record of this row" in text_of(stepper.render(replace(state, c="3")))
    assert "no record of this row" in text_of(stepper.render(replace(state, gpu="V100")))
    loaded = stepper.recorded(stepper.State(gpu="A100"))
    assert (stepper.numbers(loaded.a, "a")[:2], loaded.c, loaded.row) == ([1.0, 0.0], "2.0", 0)


def test_without_a_record_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path / "none")
    monkeypatch.delenv(evidence.CORPUS_VARIABLE, raising=False)
    with pytest.raises(LabError, match=re.escape("there is no record of A100 mma.k16 fp16->fp32 here; FPLAB_CORPUS")):
        stepper.recorded(stepper.State(gpu="A100"))


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"recorded Tensor Core results are not at {CORPUS}")
def test_the_public_data_set_stands_beside(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path / "none")
    monkeypatch.setenv(evidence.CORPUS_VARIABLE, str(CORPUS))
    state = stepper.State(gpu="V100")
    for row in range(3):
        state = stepper.recorded(state)
        assert f"✓ the same bits (MATLAB-tensor-core, row {row})" in text_of(stepper.render(state))


# --- the comparison of GPUs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", stepper.PRESETS)
@pytest.mark.parametrize("inputs", ["fp16", "e4m3"])
def test_gpus_give_their_bits(preset, inputs):
    state = gpus.changed(gpus.State(inputs=inputs), "preset", preset)
    found = {e.get("data-gpu"): e.text for e in of_class(gpus.render(state), "bits")}
    has = [g for g in GPUS if any(m.gpu == g and m.a == m.b == inputs and not m.scale for m in models.TABLE)]
    assert list(found) == has
    for gpu, bits in found.items():
        row = [np.array([stepper.numbers(x, "x")], np.float32) for x in (state.a, state.b)]
        value = dot(*row, np.array(stepper.numbers(state.c, "c")), gpu=gpu, inputs=inputs)[0]
        assert f"{np.float32(value).view(np.uint32):08x}" == bits
    letters = [e.text for e in of_class(gpus.render(state), "group")]
    assert len(set(letters)) == len(set(found.values()))


def test_gpus_differ_and_refuse():
    assert "different answers" in text_of(gpus.render(gpus.State()))
    found = {a.gpu: a.value for a in gpus.answers(gpus.State())}
    assert (found["V100"], found["A100"], found["H100"]) == (1.0, 1 + 2.0**-23, 1 + 2.0**-22)
    special = text_of(gpus.render(gpus.State(a="1", b="inf", c="1")))
    assert "V100 Volta A 7f800000 inf" in special
    assert "exact sum none" in special
    picture = shell.picture(gpus.render, gpus.State(a="1", b="1 2"))
    assert "a has 1 numbers, b 2, c 1; a and b need the same, c one." in text_of(picture)


# --- the adder explorer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [adders.State(), adders.State("fp16", 24, 2, 16, "to nearest", "promoted every 128"),
                                   adders.State("tf32", 9, 8, 1, "toward zero", "split in four")])  # fmt: skip
def test_adders_have_the_errors_of_their_products(state):
    x, y = np.random.default_rng(adders.SEED).normal(size=(2, adders.SIDE, adders.K))
    x, y = (np.asarray(operands.read(v, "v", state.inputs, None, False), np.float64) for v in (x, y.T))
    picture, plan = adders.render(state), adders.ORDERS[state.order]

    def error(unit):
        return float(np.linalg.norm(matmul(x, y, gpu=unit, plan=plan) - x @ y) / np.linalg.norm(x @ y))

    like, others = models.get("H100", state.inputs), (state.guard_bits, state.block, adders.ROUNDINGS[state.rounding])
    errors = {p: error(exploration.unit(like, p, *others)) for p in adders.WIDTHS}
    assert {int(e.get("data-bits")): float(e.get("data-error")) for e in of_class(picture, "built")} == errors
    told = [e.text for e in parse(picture).iter("span")]
    (_, mine), *others_told = zip(told[::2], told[1::2], strict=True)
    assert mine == (f"the chosen unit: {state.accumulator_bits} + {state.guard_bits} bits, blocks of {state.block}, "
                    f"{state.rounding}: {errors[state.accumulator_bits]:.2e}")  # fmt: skip
    models_of = {g: m for g in GPUS if (m := exploration._of_gpu(g, state.inputs)) is not None}
    names = [text.split(":")[0].split(", ") for _, text in others_told]
    assert sorted(name for row in names for name in row) == sorted(models_of)
    assert len(of_class(picture, "gpu")) == len(names)
    assert sorted("".join(e.text for e in of_class(picture, "letters"))) == [letter for letter, _ in others_told]
    for gpus_, (_, text) in zip(names, others_told, strict=True):
        for m in (models_of[gpu] for gpu in gpus_):
            assert f": {m.kept_bits + 1} + {m.alignment_bits - m.kept_bits} bits, blocks of {m.length}, " in text
            assert text.endswith(f": {error(m):.2e}")


# --- a block and its scale --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", block_scales.WAYS)
@pytest.mark.parametrize("hadamard", block_scales.SIZES)
@pytest.mark.parametrize(("values", "outlier"), [("normal", 24.0), ("gradients", 0.0)])
def test_a_block_is_drawn_as_the_slow_way_quantises_it(way, hadamard, values, outlier):
    state = block_scales.State(way, values, outlier, hadamard=hadamard)
    picture, x = block_scales.render(state), block_scales.numbers(state)
    if hadamard:
        signs = np.resize(block_scales.SIGNS, hadamard).tolist()
        parts = (oracle.hadamard(part.tolist(), signs, "fp32") for part in np.split(x, 32 // hadamard))
        x = np.float32(np.concatenate([*parts]))
    scheme, rule = block_scales.WAYS[way]
    scheme = get_scheme(scheme, rule=rule)
    codes, scales, back = oracle.quantize(x[None], scheme)
    assert [float(e.get("data-value")) for e in of_class(picture, "value")] == x.tolist()
    assert [float(e.get("data-value")) for e in of_class(picture, "back")] == back[0].tolist()
    assert [int(e.text, 16) for e in of_class(picture, "code")] == codes[0].tolist()
    assert all(f"{code:#04x} = " in text_of(picture) for code in scales[0].tolist())
    marks = Counter(e.text for e in of_class(picture, "lost"))
    assert marks["✕"] == ((back == 0) & (x != 0)).sum()
    assert (marks["▲"] > 0) <= bool((np.abs(back[0]) < np.abs(x)).any())


def test_stochastic_roundings_are_averaged_and_the_transform_is_undone():
    found = block_scales.quantised(block_scales.State("nvfp4", "gradients", 0.0, hadamard=16, draws=64))
    once = block_scales.quantised(block_scales.State("nvfp4", "gradients", 0.0, hadamard=16, draws=1))
    far, near = (np.square(f.ends - f.values).sum() for f in (once, found))
    assert near < far / 16
    exact = block_scales.quantised(block_scales.State("mxfp8", outlier=0.0, hadamard=32))
    assert np.abs(exact.ends - exact.values).max() < 0.1
    assert np.abs(exact.back - exact.values).max() > 1  # still transformed


# --- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e5m2", "e4m3"])
@pytest.mark.parametrize("scale", [0, 8, 24, 40])
@pytest.mark.parametrize("kind", gradients.KINDS)
def test_gradients_meet_their_fates(fmt, scale, kind):
    values, form = gradients.sample(kind), formats.get(fmt)
    some = np.linspace(0, values.size - 1, 60).astype(int)
    found = gradients.fates(values, fmt, scale)
    for i in some.tolist():
        code, _ = exact.round_to(exact.of(Fraction(float(values[i])) * 2**scale), fmt)
        got = exact.decode(code, fmt)
        special = got.kind != "finite"
        want = 3 if special else 0 if not got.magnitude else 1 if got.magnitude < Fraction(2) ** form.emin else 2
        assert found[i] == want
    picture = gradients.render(gradients.State(kind, fmt, scale))
    drawn: Counter[str] = Counter()
    for bar in of_class(picture, "bar"):
        drawn[(bar.get("class") or "").split()[1]] += int(bar.get("data-n") or 0)
    assert [drawn[name] for name in gradients.FATES] == np.bincount(found, minlength=4).tolist()
    for n in np.bincount(found, minlength=4).tolist():
        assert f"{n:,}" in text_of(picture)


def test_a_loss_scale_saves_gradients_until_it_overflows():
    lost = [int((gradients.fates(gradients.sample("activation"), "fp16", s) == 0).sum()) for s in (0, 8, 16)]
    assert lost[0] > lost[1] > lost[2]
    most = gradients.largest_safe("activation", "fp16")
    over = [int((gradients.fates(gradients.sample("activation"), "fp16", s) == 3).sum()) for s in (most, most + 1)]
    assert over[0] == 0 < over[1]
    assert not (gradients.sample("weight") == 0).any()


# --- rounding ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["fp16", "e4m3", "e2m1", "e4m3fnuz"])
@pytest.mark.parametrize("base", ["0", "1", "-1.5", "5.9", "-0.001"])
def test_the_line_shows_what_each_rounding_gives(fmt, base):
    for place in range(0, 65, 5):
        state = rounding.State(fmt, base, place)
        x = rounding.x_of(state)
        shown = of_class(rounding.render(state), "result")
        for mode in Rounding:
            mine = {int(e.get("data-code") or -1): Fraction(e.get("data-share")) for e in shown
                    if e.get("data-mode") == mode.value}  # fmt: skip
            assert sum(mine.values()) == 1
            if mode is not Rounding.STOCHASTIC:
                assert set(mine) == {exact.round_to(exact.of(x), fmt, mode)[0]}
                assert {float(exact.decode(c, fmt).value) for c in mine} == {
                    float(fplab.quantize(np.float64(x), fmt, mode.value))
                }
            else:
                mean = sum(exact.decode(c, fmt).value * share for c, share in mine.items())
                assert mean == x


def test_the_line_keeps_within_the_format():
    values = rounding.window(rounding.State("e2m1", "100", 0))
    assert [float(v.value) for v in values] == [2.0, 3.0, 4.0, 6.0][-5:] or float(values[-1].value) == 6.0
    assert len(values) == 5
    board = rounding.widget()
    board.inputs["base"].value = "inf"
    assert "base='inf' is no finite number" in text_of(board.view.value)
    assert board.inputs["base"].value == "1"


# --- the designer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fp16", "e4m3", "e5m2", "e2m1", "e3m2"])
def test_the_designer_counts_values(name):
    state, form = designer.like(name), formats.get(name)
    assert designer.twins(designer.designed(state))[0] == name
    codes = [form.magnitude(c) for c in range(1, form.max_code + 1)]
    assert designer.per_binade(form) == Counter(math.frexp(v)[1] - 1 for v in codes)
    picture = designer.render(state)
    ticks = [float(e.get("data-value")) for e in parse(picture).iter("line") if e.get("data-value")]
    assert ticks == [form.magnitude(c) for c in range(min(form.max_code + 1, designer.MOST_TICKS))]
    bars = {int(e.get("data-binade")): int(e.get("data-n")) for e in of_class(picture, "density-0")}
    assert bars == designer.per_binade(form)
    for text in (f"{form.max:.9g}", f"{form.smallest_subnormal:.9g}", f"{form.eps:.9g}", f"{form.distinct_values:,}"):
        assert text in text_of(picture)


def test_the_designer_refuses_in_the_picture():
    board = designer.widget()
    board.inputs["fraction_bits"].value = 0
    board.inputs["specials"].value = "ieee"
    assert "fraction_bits=0 leaves no code for NaN beside infinity" in text_of(board.view.value)
    board.buttons[0].click()
    assert designer.designed(board.state).max == 65504


# --- accumulation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(sums.ORDERS))
@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e5m2"])
def test_the_curve_is_the_sum(order, fmt):
    state = accumulation.State("0.1", 300, fmt, fmt, order)
    found = accumulation.curve(state)
    term = float(fplab.quantize(np.float64(0.1), fmt))
    for n, value in list(zip(found.counts.tolist(), found.computed.tolist(), strict=True))[::7]:
        assert value == float(fplab.sum(np.full(n, term), fmt, order))
    assert found.exact[-1] == 300 * Fraction(term)
    marks = {int(e.get("data-n")): float(e.get("data-sum")) for e in of_class(accumulation.render(state), "sum")}
    assert marks
    assert marks.items() <= dict(zip(found.counts.tolist(), found.computed.tolist(), strict=True)).items()


def test_where_a_sum_stalls():
    found = accumulation.curve(accumulation.State())
    n, term = found.stalls, np.float32(found.term)
    assert float(fplab.sum(np.full(n, term), "fp16")) == float(fplab.sum(np.full(n + 1, term), "fp16")) == 256
    assert float(fplab.sum(np.full(n - 1, term), "fp16")) < 256
    assert f"after {n:,} terms at 256, where the spacing is 0.25" in text_of(accumulation.render(accumulation.State()))
    assert accumulation.curve(accumulation.State(accumulate="fp32")).stalls is None


@pytest.mark.parametrize(("term", "form", "after"), [("-30000", "fp16", 3), ("100", "e4m3", 5), ("60000", "e5m2", 2)])
def test_where_a_sum_overflows(term, form, after):
    state = accumulation.State(term=term, format=form, accumulate=form)
    assert accumulation.curve(state).stalls == after
    assert f"after {after} terms the sum overflows" in accumulation.render(state)
    assert accumulation.curve(replace(state, n=after - 1)).stalls is None
    kept = accumulation.State("1", 20, "e2m1", "e2m1")
    assert "after 4 terms at the spacing" not in text_of(accumulation.render(kept))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"term": "x"}, "cannot read 'x' as a value"), ({"n": 0}, "n=0 is not possible; allowed: 1 to 4096"),
     ({"term": "inf"}, "term='inf' is no finite number"), ({"term": "1e9"}, "is beyond fp16, whose largest value"),
     ({"order": "tree"}, "unknown order 'tree'")],
)  # fmt: skip
def test_accumulation_refuses_kindly(change, message):
    assert message in text_of(shell.picture(accumulation.render, replace(accumulation.State(), **change)))


# --- block-wise quantisation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", blockwise.BOOKS)
@pytest.mark.parametrize("outlier", [-64.0, 0.0, 8.0])
def test_blocks_read_back(name, outlier):
    state = blockwise.State(name, 16, outlier, 20)
    picture = blockwise.render(state)
    values = np.array([float(e.get("data-value")) for e in of_class(picture, "value")], np.float32)
    back = np.array([float(e.get("data-value")) for e in of_class(picture, "back")], np.float32)
    assert values[20] == outlier
    assert np.array_equal(np.delete(values, 20), np.delete(blockwise.normals(), 20))
    again = codebooks.dequantize_blockwise(codebooks.quantize_blockwise(values, blockwise.book(name), 16))
    assert np.array_equal(back.view(np.uint32), again.view(np.uint32))


def test_an_outlier_hurts_its_own_block_only():
    quiet, loud = (blockwise.errors(blockwise.State(outlier=x)) for x in (1.0, 64.0))
    assert loud[1] > quiet[1]
    assert [loud[i] for i in (0, 2, 3)] == [quiet[i] for i in (0, 2, 3)]
    whole = blockwise.errors(blockwise.State(outlier=64.0, block=64))
    assert len(whole) == 1


# --- the loss scale ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", lossscale.MACHINES)
def test_the_scale_moves_as_the_machine_says(library):
    state = lossscale.State(library, 3)
    now = lossscale.machine_of(state).start()
    for event in "ggggoggggggoo":
        state = lossscale.stepped(state, event)
        now = replace(lossscale.MACHINES[library], growth_interval=3).after(now, event == "o")
        assert lossscale.history(state)[-1] == now
        picture = lossscale.render(state)
        assert [float(e.get("data-scale")) for e in of_class(picture, "event")][-1] == now.scale
        assert f"{now.good_steps} / 3" in text_of(picture)
    marks = "".join(e.text for e in of_class(lossscale.render(state), "event"))
    assert marks == "○○▲○✕○○▲○○▲✕✕"
    assert "13, skipped 3" in text_of(lossscale.render(state))


def test_buttons_of_the_machine():
    board = lossscale.widget("torch", 4)
    good, overflow, grow, undo, again = board.buttons
    good.click()
    grow.click()
    assert lossscale.history(board.state)[-1] == machine.Tracked(2.0**17, 0)
    overflow.click()
    assert "gradients not finite: step skipped, scale × 0.5" in text_of(board.view.value)
    undo.click()
    assert board.state.events == "gggg"
    again.click()
    assert board.state.events == ""
    board.move(lossscale.stepped(board.state, "g" * lossscale.MOST))
    good.click()
    assert "400 steps are drawn at most; start again." in text_of(board.view.value)
    assert len(board.state.events) == lossscale.MOST


# --- memory and pipeline ----------------------------------------------------------------------------------------


def test_memory_draws_the_estimate():
    state = calculator.State(gpus=64, zero=2, tensor=2, recompute="full")
    picture = calculator.render(state)
    for zero in range(4):
        wanted = memory.estimate("llama3-8b", gpus=64, zero=zero, tensor=2, recompute="full")
        drawn = {e.get("data-kind"): int(e.get("data-bytes")) for e in of_class(picture, "part")
                 if e.get("data-row") == str(zero)}  # fmt: skip
        assert drawn == dict(wanted.fullest.device)
        if zero == 2:
            assert f"{wanted.total:,}" in text_of(picture)
    assert ("✓ fits" in picture) == (memory.estimate("llama3-8b", gpus=64, zero=2, tensor=2, recompute="full").total
                                     <= 80 * 10**9)  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_pipeline_draws_every_pass(schedule):
    state = pipeline.changed(pipeline.State(), "schedule", schedule)
    wanted = schedules.timeline(schedule, 4, 8, state.chunks, 1, 2)
    picture = pipeline.render(state)
    drawn = sorted(
        (int(e.get("data-stage")), Fraction(e.get("data-start")), Fraction(e.get("data-end")),
         (e.get("class") or "").split()[1], int(e.get("data-batch")))
        for e in of_class(picture, "slot")
    )  # fmt: skip
    assert drawn == sorted((s.stage, s.start, s.end, s.kind, s.micro_batch) for s in wanted.slots)
    assert f"{wanted.bubble} = " in text_of(picture)
    assert ", ".join(map(str, wanted.in_flight())) in text_of(picture)


def test_schedules_bring_their_chunks():
    state = pipeline.changed(pipeline.State(), "schedule", "interleaved")
    assert state.chunks == 2
    assert pipeline.changed(state, "schedule", "gpipe").chunks == 1
    assert pipeline.changed(state, "chunks", 1).schedule == "1f1b"
    assert pipeline.changed(pipeline.State("gpipe"), "chunks", 2).schedule == "interleaved"
    assert "chunks=3 is for schedule" in text_of(shell.picture(pipeline.render, pipeline.State(chunks=3)))
