"""A survey's numbers are those of plain runs beside it, its recommendation is the one as run, and its files say so."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from torch import nn
from torch.nn import functional

import fplab
from fplab.errors import LabError
from fplab.nn import Recipe, emulate, survey
from fplab.nn.recipes import fp8_current, nvfp4
from fplab.nn.surveying import assigning
from fplab.nn.surveying.measuring import width


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
    assert str(told[-1]).startswith("An assignment of 1 choices to 3 layers: loss ")


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
    assert str(tight).startswith("No assignment that was tried keeps to the budget of 0;")


def test_a_budget_for_gradients_enters_the_choice(found):
    assert "Gradients do not enter the choice" in str(found.text)
    plain = survey(model(), batches(), loss, ["bf16", "e4m3"], budget=1.0, progress=said.append)
    assert set(plain.recommended.assignment.values()) == {"e4m3"}
    assert plain.wholes["e4m3"][0].cosine < 0.998
    kept = survey(model(), batches(), loss, ["bf16", "e4m3"], budget=1.0, cosine=0.998, progress=said.append)
    best = kept.recommended
    assert best.within
    assert best.cosine >= 0.998
    assert "bf16" in best.assignment.values()
    assert f"Its gradients' cosine is {best.cosine:.4f} as run; 0.998 was asked for." in str(kept.text)
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


def test_greedy_takes_what_saves_most_for_its_effect():
    effects = {"a": {"wide": 0.0, "narrow": 3.0}, "b": {"wide": 0.0, "narrow": 1.0}, "c": {"wide": 1.0, "narrow": 0.5}}
    costs = {layer: {"wide": 16.0 * n, "narrow": 8.0 * n} for layer, n in zip("abc", (2, 1, 1), strict=True)}
    for budget in (0.0, 0.5, 1.0, 1.5, 2.0, 3.5, 4.5):
        mine = assigning.greedy(effects, costs, budget)
        every = [dict(zip("abc", p, strict=True)) for p in itertools.product(("wide", "narrow"), repeat=3)]
        fitting = [of for of in every if sum(effects[k][c] for k, c in of.items()) <= budget]
        allowed = [sum(costs[k][c] for k, c in of.items()) for of in fitting]
        spent = sum(effects[k][c] for k, c in mine.items())
        assert spent <= max(budget, 1.0)
        if budget in (0.5, 1.5, 4.5):  # where nothing has to be taken back, greedy is the best there is
            assert sum(costs[k][c] for k, c in mine.items()) == min(allowed)


def test_tries_again_with_less_until_it_keeps():
    effects = {"a": {"wide": 0.0, "narrow": 1.0}, "b": {"wide": 0.0, "narrow": 2.0}}
    costs = {"a": {"wide": 16.0, "narrow": 8.0}, "b": {"wide": 16.0, "narrow": 8.0}}
    real = {("narrow", "narrow"): 9.0, ("narrow", "wide"): 5.0, ("wide", "wide"): 0.5}
    trials = assigning.tried(effects, costs, 4.0, 2.0, lambda a: (real[a["a"], a["b"]], math.nan))
    assert [(t.loss, t.cost, t.within) for t in trials] == [(9.0, 8.0, False), (5.0, 12.0, False), (0.5, 16.0, True)]


def test_where_the_loss_is_least_its_change_is_above_the_first_order():
    torch.manual_seed(0)
    net, batch = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(32, 16)
    least = net(batch).detach()
    one = survey(net, batch, lambda net, x: (net(x) - least).square().mean(), ["e4m3"], progress=str)
    assert one.recommended.loss > one.recommended.predicted
    said = f"{one.recommended.loss:.2e} as run, by {one.recommended.predicted:.2e} to first order"
    assert said in " ".join(str(one).split())


def test_what_a_choice_costs():
    assert [width(Recipe("x", high=f)) for f in ("bf16", "e4m3")] == [16, 8]
    assert width(fp8_current()) == 8
    assert width(nvfp4()) == 4  # with the scales of blocks it would be 4.5


def test_files_hold_the_numbers_in_full(found, tmp_path):
    found.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"survey.{end}" for end in ("csv", "json", "png", "txt")]
    table = list(csv.DictReader(io.StringIO((tmp_path / "survey.csv").read_text())))
    assert len(table) == len(found.rows) == 3 * 2 * 3
    assert [float(line["local"]) for line in table] == [row.local for row in found.rows]
    held = json.loads((tmp_path / "survey.json").read_text())
    assert held["wholes"]["e4m3"]["mean"]["loss"] == found.wholes["e4m3"][0].loss
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


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: survey(3, batches(1), loss), r"model is a int; pass a torch\.nn\.Module"),
        (lambda: survey(model(), batches(1), "loss"), r"loss is a str; pass a function loss\(model, batch\)"),
        (lambda: survey(model(), [], loss), "nothing to survey"),
        (lambda: survey(model(), batches(1), loss, []), "nothing to survey"),
        (lambda: survey(model(), batches(1), loss, budget=-1), r"budget=-1 is not possible; allowed: 0 and more"),
        (lambda: survey(model(), batches(1), loss, cosine=1.0), "cosine=1.0 is not possible; allowed: 0 and"),
        (lambda: survey(model(), batches(1), loss, ["fp31"]), "unknown format 'fp31'"),
        (lambda: survey(model(), batches(1), loss, [], ["nvfp4"]), "has no unit"),
        (lambda: survey(model(), batches(1), loss, "fp31"), "unknown format 'fp31'"),
        (lambda: survey(model().requires_grad_(False), batches(1), loss, ["bf16"], progress=said.append),
         "loss gave a tensor without a gradient; a survey runs backward, too: some parameter must need one"),
        (lambda: survey(model(), batches(1), lambda m, b: m(b[0]), ["bf16"], progress=said.append),
         r"loss gave a tensor of shape \(16, 5\); it must give a tensor of one number"),
    ],
)  # fmt: skip
def test_errors_say_what_is_allowed(call, words):
    with pytest.raises(LabError, match=words):
        call()
