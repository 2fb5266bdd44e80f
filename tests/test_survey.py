"""A survey's numbers are those of plain runs beside it, its recommendation is the one as run, and its files say so."""

from __future__ import annotations

import csv
import ctypes
import io
import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.text import Text
from refusals import refuses
from torch import nn
from torch.nn import functional

import fplab
from fplab.nn import Recipe, emulate, survey
from fplab.nn.diagnose import format_assignment
from fplab.nn.diagnose.layer_errors import width
from fplab.nn.diagnose.survey_report import Survey
from fplab.nn.recipes import fp8_current, nvfp4
from fplab.processes import printed


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.Linear(48, 5))


def batches(n=2):
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 32, generator=draw) * 0.01, torch.randint(5, (16,), generator=draw)) for _ in range(n)]


def loss(net, batch):
    logits = net(batch[0])
    return functional.cross_entropy(logits, batch[1]), logits


@pytest.fixture(scope="module")
def found():
    return survey(model(), batches(), loss, ["bf16", "e4m3"], ["fp8_current"], budget=2e-2, progress=said.append)


said: list[object] = []


def test_the_whole_is_what_two_plain_runs_differ_by(found):
    changes, kls, flips, cosines, errors = [], [], [], [], []
    for batch in batches():
        wide = model().double()
        exact, true = loss(wide, (batch[0].double(), batch[1]))
        exact.backward()
        net = model()
        with emulate("H100", "bf16"):
            value, logits = loss(net, batch)
            value.backward()
        changes.append(float(value.detach()) - float(exact.detach()))
        p, q = true.detach().log_softmax(-1), logits.detach().double().log_softmax(-1)
        kls.append(float((p.exp() * (p - q)).sum(-1).mean()))
        flips.append(float((p.argmax(-1) != q.argmax(-1)).double().mean()))
        mine = torch.cat([x.grad.double().flatten() for x in net.parameters()])
        theirs = torch.cat([x.grad.flatten() for x in wide.parameters()])
        cosines.append(float(functional.cosine_similarity(mine, theirs, 0)))
        errors.append(float((mine - theirs).norm() / theirs.norm()))
    mean, spread = found.wholes["bf16"]
    assert mean.loss == np.mean(changes)
    assert spread.loss == pytest.approx(abs(changes[0] - changes[1]) / math.sqrt(2), rel=1e-12)
    assert mean[1:5] == pytest.approx([np.mean(x) for x in (kls, flips, cosines, errors)], rel=1e-9)
    assert abs(mean.rest) < 0.1 * abs(mean.loss)


def test_a_layer_s_own_error_is_that_of_its_product_alone():
    net, (batch,) = model(), batches(1)
    rows = survey(net, [batch], loss, ["bf16", "e4m3"], progress=said.append).rows
    first = {row.choice: row for row in rows if (row.layer, row.phase) == ("0", "forward")}
    with torch.no_grad():
        exact = functional.linear(batch[0].double(), net[0].weight.double(), net[0].bias.double())
    for choice in ("bf16", "e4m3"):
        with emulate("H100", choice), torch.no_grad():
            mine = net[0](batch[0])
        assert first[choice].local == pytest.approx(float((mine - exact).norm() / exact.norm()), rel=1e-12)
        assert first[choice].bits == pytest.approx(-math.log2(first[choice].local), rel=1e-12)
        assert (first[choice].inherited, math.isnan(first[choice].amplification)) == (0, True)
    operands = np.concatenate([batch[0].numpy().ravel(), net[0].weight.detach().numpy().ravel()])
    rounded = fplab.quantize(operands, "e4m3", overflow="saturate")
    low = (rounded != 0) & (np.abs(operands) < 2.0**-6)
    assert first["e4m3"].zero == np.mean((rounded == 0) & (operands != 0))
    assert first["e4m3"].subnormal == np.mean(low)
    assert first["e4m3"].overflow == 0
    assert first["bf16"].zero == 0
    assert all(row.inherited > 0 for row in rows if row.layer in ("2", "4"))


def test_a_later_layer_s_own_error_is_that_on_exact_operands():
    net, (batch,) = model(), batches(1)
    rows = survey(net, [batch], loss, ["e4m3"], progress=said.append).rows
    with torch.no_grad():
        x = net[1](functional.linear(batch[0].double(), net[0].weight.double(), net[0].bias.double()).float())
        exact = functional.linear(x.double(), net[2].weight.double(), net[2].bias.double())
        with emulate("H100", "e4m3"):
            mine, came = net[2](x), net[2](net[1](net[0](batch[0])))
    own = next(row.local for row in rows if (row.layer, row.phase) == ("2", "forward"))
    assert own == pytest.approx(float((mine - exact).norm() / exact.norm()), rel=1e-8)  # of an FP32 run's operands
    assert own != pytest.approx(float((came - exact).norm() / exact.norm()), rel=1e-3)


def test_shares_under_a_recipe_are_those_of_scaled_values():
    net, (batch,) = model(), batches(1)
    batch = batch[0] * torch.logspace(0, -8, 32), batch[1]
    rows = survey(net, [batch], loss, [], ["fp8_current"], progress=said.append).rows
    row = next(row for row in rows if (row.layer, row.phase) == ("0", "forward"))
    counts = np.zeros(4)
    for x in (batch[0].numpy(), net[0].weight.detach().numpy()):
        q = fplab.scaled.quantize(x, fp8_current().forward.left.record)
        element = np.abs(q.elements())
        beyond = (element == 448) & (np.abs(x) > np.abs(q.dequantize()))
        counts += [np.sum((x != 0) & (element == 0)), np.sum((element > 0) & (element < 2.0**-6)), beyond.sum(),
                   np.sum(x != 0)]  # fmt: skip
    assert min(counts[:2]) > 0
    assert [row.zero, row.subnormal, row.overflow] == [n / counts[3] for n in counts[:3]]
    assert all(math.isfinite(row.zero) for row in rows)


def test_it_leaves_the_model_as_it_was_and_says_how_long_it_takes():
    net = model()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    before = {name: x.clone() for name, x in net.state_dict().items()}
    state = torch.get_rng_state()
    told: list[object] = []
    survey(net, batches(1), loss, ["bf16"], progress=told.append)
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())
    assert bool((net[0].weight.grad == 1).all())
    assert net[0].bias.grad is None
    assert torch.equal(torch.get_rng_state(), state)
    assert str(told[0]).startswith("1 measurements of 1.71e+05 multiply-accumulates each: about ")
    assert str(told[1]).startswith("bf16, batch 1 of 1: loss ")
    survey(net, batches(2), loss, ["bf16", "e4m3"], budget=2e-2, cosine=None, progress=told.append)
    assert str(told[-1]).startswith("An assignment of 2 choices to 3 layers: loss ")


def test_the_recommendation_keeps_to_the_budget_as_run(found):
    best = found.recommended
    assert best.within
    assert best.loss <= found.budget
    assert set(best.assignment) == {"0", "2", "4"}
    worst = 0.0
    for i, batch in enumerate(batches()):
        exact = loss(model().double(), (batch[0].double(), batch[1]))[0]
        records = {"bf16": Recipe("bf16"), "e4m3": Recipe("e4m3", high="e4m3"), "fp8_current": fp8_current()}
        layers = {layer: records[choice] for layer, choice in best.assignment.items()}
        with emulate("H100", "bf16", layers=layers), torch.no_grad():
            worst = max(worst, abs(float(loss(model(), batch)[0]) - float(exact.detach())))
        assert i < 2
    assert best.loss == worst
    tight = survey(model(), batches(), loss, ["bf16", "e4m3"], budget=0.0, progress=said.append)
    assert not tight.recommended.within
    assert set(tight.recommended.assignment.values()) == {"bf16"}
    nearest = f"the nearest, bf16 for 3 layers, changes the loss by {tight.recommended.loss:.2e} (budget 0)."
    assert str(tight.text).startswith(f"No assignment that was tried keeps to the budgets; {nearest}")


def test_a_budget_for_gradients_enters_the_choice(found):
    assert found.cosine == 0.99
    assert found.recommended.cosine >= 0.99
    plain = survey(model(), batches(), loss, ["bf16", "e4m3"], budget=1.0, cosine=None, progress=said.append)
    assert "Gradients do not enter the choice" in str(plain.text)
    assert set(plain.recommended.assignment.values()) == {"e4m3"}
    assert plain.wholes["e4m3"][0].cosine < 0.998
    kept = survey(model(), batches(), loss, ["bf16", "e4m3"], budget=1.0, cosine=0.998, progress=said.append)
    best = kept.recommended
    assert best.within
    assert best.cosine >= 0.998
    assert "bf16" in best.assignment.values()
    assert f"gradients with the exact ones is {best.cosine:.4f} as run; 0.998 was asked for." in str(kept.text)
    worst = 1.0
    for batch in batches():
        net, wide = model(), model().double()
        records = {"bf16": Recipe("bf16"), "e4m3": Recipe("e4m3", high="e4m3")}
        with emulate("H100", "bf16", layers={layer: records[c] for layer, c in best.assignment.items()}):
            loss(net, batch)[0].backward()
        loss(wide, (batch[0].double(), batch[1]))[0].backward()
        mine, exact = (torch.cat([p.grad.double().flatten() for p in m.parameters()]) for m in (net, wide))
        worst = min(worst, float(functional.cosine_similarity(mine, exact, 0)))
    assert best.cosine == pytest.approx(worst, abs=1e-9)


CHOICES = ("wide", "middle", "narrow", "odd")


@st.composite
def problems(draw):
    """Of up to five layers and four choices, with budgets that some assignments keep to."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    layers = [f"layer {i}" for i in range(rng.integers(1, 6))]
    macs = dict(zip(layers, rng.integers(1, 100, len(layers)).tolist(), strict=True))
    bits = dict(zip(CHOICES, (16.0, 8.0, 4.0, rng.choice([6.0, 8.0, 25 / 6])), strict=True))
    effects, lacking = (
        {layer: dict(zip(CHOICES, (10.0 ** rng.uniform(-4, 0, 4)).tolist(), strict=True)) for layer in layers}
        for _ in range(2)
    )
    if rng.random() < 0.3:
        effects[layers[0]]["narrow"] = math.inf
    costs = {layer: {choice: n * bits[choice] for choice in CHOICES} for layer, n in macs.items()}
    cosine = None if rng.random() < 0.3 else 1 - 10.0 ** rng.uniform(-2.5, 0)
    return format_assignment.Problem(
        effects, lacking, costs, sum(macs.values()), 10.0 ** rng.uniform(-2.5, 0.5), cosine
    )


def assignments(problem, choices):
    layers = list(problem.costs)
    return [dict(zip(layers, p, strict=True)) for p in itertools.product(choices, repeat=len(layers))]


def test_what_a_library_prints_from_c_is_caught_by_how_it_begins(capfd: pytest.CaptureFixture[str]) -> None:
    """scipy 1.17's solver says ``HighsMipSolverData::...`` on the standard output where its time ends."""
    libc = ctypes.CDLL(None)
    with printed(b"Highs") as log:
        libc.puts(b"HighsMipSolverData::run")
        libc.puts(b"a result")
    assert (log, capfd.readouterr().out) == (["HighsMipSolverData::run\n"], "a result\n")


@given(problems(), st.sampled_from(format_assignment.SHARES))
@settings(max_examples=100)
def test_the_cheapest_is_that_of_all_assignments(problem, share):
    def keeps(one):
        lost = format_assignment.total(problem.effects, one) / problem.loss
        if problem.cosine is not None:
            lost = max(lost, format_assignment.total(problem.lacking, one) / (1 - problem.cosine))
        return lost <= share

    kept = [one for one in assignments(problem, CHOICES) if keeps(one)]
    found = format_assignment.cheapest(problem, CHOICES, share)
    if not kept:
        assert found is None
    else:
        best = min(kept, key=lambda one: (round(6 * problem.cost(one) * problem.macs),
                                          format_assignment.total(problem.effects, one)))  # fmt: skip
        assert found == best


def survey_of(problem, choices, seed):
    """A search whose runs give what no sum of effects predicts: each assignment has losses of its own."""
    asked = []

    def tried(one):
        asked.append(one)
        rng = np.random.default_rng([seed, *"".join(f"{layer}{one[layer]}" for layer in sorted(one)).encode()])
        loss, cosine = (format_assignment.total(of, one) for of in (problem.effects, problem.lacking))
        return problem.tried(one, [loss * 8 ** rng.normal()], [1 - cosine * 8 ** rng.normal()])

    uniform = [tried(dict.fromkeys(problem.costs, choice)) for choice in choices]
    asked.clear()
    trials, untried = format_assignment.search(problem, uniform, tried)
    assert set(map(str, asked)) == {str(one.assignment) for one in trials} - {str(one.assignment) for one in uniform}
    return Survey("H100", problem.loss, problem.cosine, (), {}, trials, untried, 0.0), uniform


@given(problems(), st.integers(0, 2**32))
@settings(max_examples=100)
def test_more_choices_never_make_the_answer_worse(problem, seed):
    answers = {}
    for n in range(1, len(CHOICES) + 1):
        for choices in itertools.combinations(CHOICES, n):
            found, uniform = survey_of(problem, choices, seed)
            answers[frozenset(choices)] = best = found.recommended
            assert found.untried == 0
            within = [one.cost for one in uniform if one.within]
            assert all(one in uniform or one.cost < min(within, default=math.inf) for one in found.trials)
            for one in uniform:
                assert best.within or not one.within
                assert best.cost <= one.cost or not one.within
    for fewer, more in itertools.permutations(answers, 2):
        if fewer < more and answers[fewer].within:
            assert answers[more].within
            assert answers[more].cost <= answers[fewer].cost


def test_what_was_not_run_is_said(monkeypatch):
    layers = [str(i) for i in range(8)]
    effects = {layer: {"wide": 0.0, "narrow": 1.0 + i / 16, "odd": 1.5 + i / 16} for i, layer in enumerate(layers)}
    costs = {layer: {"wide": 16.0, "narrow": 8.0, "odd": 6.0} for layer in layers}
    problem = format_assignment.Problem(effects, {}, costs, 8, 4.0)

    def run(one):
        return problem.tried(one, [9.0 if len(set(one.values())) > 1 else effects["0"][one["0"]] * 8], [math.nan])

    uniform = [run(dict.fromkeys(layers, choice)) for choice in ("wide", "narrow", "odd")]
    monkeypatch.setattr(format_assignment, "MOST_RUNS", 2)
    trials, untried = format_assignment.search(problem, uniform, run)
    found = Survey("H100", 4.0, None, (), {}, trials, untried, 0.0)
    assert len(trials) == 5
    assert untried > 0
    assert str(found.text).endswith(f"{untried} assignments that might be cheaper were not run.")


class Attention(nn.Module):
    """Two products of its own, between those of its parts."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out((q @ k.mT).softmax(-1) @ v)


def drawn(seed):
    """A net of one to four parts, some of them nested, and a batch."""
    torch.manual_seed(seed)
    draw = np.random.default_rng(seed)
    parts = [draw.choice([lambda: nn.Linear(32, 32), lambda: nn.GELU(), Attention,
                          lambda: nn.ModuleDict({"a[0]": nn.Linear(32, 32)})["a[0]"]])()
             for _ in range(draw.integers(1, 5))]  # fmt: skip
    named = nn.Sequential(*parts, nn.Linear(32, 5))
    return named, (torch.randn(16, 32) * 10.0 ** draw.uniform(-3, 1), torch.randint(5, (16,)))


@pytest.mark.parametrize("seed", range(6))
def test_on_drawn_models_more_choices_never_make_the_answer_worse(seed):
    net, batch = drawn(seed)
    budget = 10.0 ** np.random.default_rng(seed + 100).uniform(-4, -2)
    answers = {}
    for names in ((), ("mxfp8",), ("nvfp4",), ("mxfp8", "nvfp4")):
        for formats in (("bf16",), ("bf16", "e4m3")):
            found = survey(net, batch, loss, formats, names, gpu="B200", budget=budget, progress=str)
            answers[*formats, *names] = best = found.recommended
            for choice in (*formats, *names):
                whole = next(t for t in found.trials if set(t.assignment.values()) == {choice})
                assert whole.loss == abs(found.wholes[choice][0].loss)
                assert best.within or not whole.within
                assert best.cost <= whole.cost or not whole.within
    for fewer, more in itertools.permutations(answers, 2):
        if set(fewer) < set(more) and answers[fewer].within:
            assert answers[more].within
            assert answers[more].cost <= answers[fewer].cost


def test_a_layer_has_its_own_choice_beside_that_of_the_module_around_it(monkeypatch):
    torch.manual_seed(0)
    net = nn.Sequential(Attention(), nn.Linear(32, 5))
    batch = torch.randn(4, 32), torch.randint(5, (4,))
    mixed = {"0.qkv": "bf16", "0": "e4m3", "0.out": "bf16", "1": "e4m3"}
    monkeypatch.setattr(format_assignment, "cheapest", lambda *_: mixed)
    found = survey(net, batch, loss, ["bf16", "e4m3"], gpu="B200", budget=0.0, cosine=None, progress=str)
    as_run = next(t for t in found.trials if t.assignment == mixed)
    exact = float(loss(net.double(), (batch[0].double(), batch[1]))[0].detach())
    net.float()
    e4m3, bf16 = Recipe("e4m3", high="e4m3"), Recipe("bf16")
    with torch.no_grad():
        with emulate("B200", "bf16", layers={"0.out": bf16, "0.qkv": bf16, "0": e4m3, "1": e4m3}) as run:
            right = abs(float(loss(net, batch)[0]) - exact)
        with emulate("B200", "bf16", layers={"0.qkv": bf16, "0": e4m3, "1": e4m3}):
            wrong = abs(float(loss(net, batch)[0]) - exact)
    assert {row.layer for row in run.report().rows} == set(mixed)
    assert as_run.loss == right != wrong


def test_where_the_loss_is_least_its_change_is_above_the_first_order():
    torch.manual_seed(0)
    net, batch = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(32, 16)
    least = net(batch).detach()
    one = survey(net, batch, lambda net, x: (net(x) - least).square().mean(), ["e4m3"], cosine=None, progress=str)
    assert one.recommended.loss > one.recommended.predicted
    said = f"{one.recommended.loss:.2e} as run, by {one.recommended.predicted:.2e} to first order"
    assert said in " ".join(str(one).split())


def test_what_a_choice_costs():
    assert [width(Recipe("x", high=f)) for f in ("bf16", "e4m3")] == [16, 8]
    assert width(fp8_current()) == 8
    assert width(nvfp4()) == 4  # with the scales of blocks it would be 4.5


def test_files_hold_the_numbers_in_full(found, tmp_path):
    found.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"survey.{end}" for end in ("csv", "html", "json", "png", "txt")
    ]
    table = list(csv.DictReader(io.StringIO((tmp_path / "survey.csv").read_text())))
    assert len(table) == len(found.rows) == 3 * 2 * 3
    assert [float(line["local"]) for line in table] == [row.local for row in found.rows]
    held = json.loads((tmp_path / "survey.json").read_text())
    assert held["wholes"]["e4m3"]["mean"]["loss"] == found.wholes["e4m3"][0].loss
    assert held["untried"] == 0
    assert held["trials"][-1]["assignment"] == found.trials[-1].assignment
    assert held["rows"][2]["zero"] is None or isinstance(held["rows"][2]["zero"], float)
    text = (tmp_path / "survey.txt").read_text()
    assert text.startswith("Recommended: ")
    assert "fp8_current" in text
    forward, backward, effects, *_ = found.figure("dark").axes
    assert [x.get_text() for x in forward.get_xticklabels()] == ["bf16", "e4m3", "fp8_current"]
    assert [y.get_text() for y in forward.get_yticklabels()] == ["0", "2", "4"]
    assert forward.images[0].get_array()[0, 0] == next(r.bits for r in found.rows)
    assert effects.get_xscale() == "log"
    assert backward.get_title(loc="left") == "right bits,\nbackward"
    figure = found.figure()
    assert figure.get_size_inches()[0] == 8
    assert all(text.get_fontsize() >= 9 for text in figure.findobj(Text) if text.get_text())


def test_what_is_no_folder_is_refused_in_a_sentence(found, tmp_path):
    (tmp_path / "taken").touch()
    refuses(lambda: found.save(tmp_path / "taken"), r"cannot write '.*survey\.csv': ")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: survey(3, batches(1), loss), r"model is a int; pass a torch\.nn\.Module"),
        (lambda: survey(model(), batches(1), "loss"), r"loss is a str; pass a function loss\(model, batch\)"),
        (lambda: survey(model(), [], loss), "nothing to survey"),
        (lambda: survey(model(), batches(1), loss, []), "nothing to survey"),
        (lambda: survey(model(), batches(1), loss, budget=-1), r"budget=-1 is not possible; allowed: 0 and more"),
        (lambda: survey(model(), batches(1), loss, cosine=1.0), "cosine=1.0 is not possible; allowed: 0 and"),
        (lambda: survey(model(), batches(1), loss, ["fp31"]), "unknown format or recipe 'fp31'"),
        (lambda: survey(model(), batches(1), loss, [], ["nvfp4"]), "has no unit"),
        (lambda: survey(model(), batches(1), loss, "fp31"), "unknown format or recipe 'fp31'"),
        (lambda: survey(model().requires_grad_(False), batches(1), loss, ["bf16"], progress=said.append),
         "loss gave a tensor without a gradient; a survey runs backward, too: some parameter must need one"),
        (lambda: survey(model(), batches(1), lambda m, b: m(b[0]), ["bf16"], progress=said.append),
         r"loss gave a tensor of shape \(16, 5\); it must give a tensor of one number"),
    ],
)  # fmt: skip
def test_errors_say_what_is_allowed(call, words):
    refuses(lambda: call(), words)
