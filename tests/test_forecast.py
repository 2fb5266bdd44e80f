"""What a short run foretells of a long one: margins against the emulation's own scales, verdicts against runs' ends."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from forecast_runs import ALARM, HIT, MISS, RECIPES, SETUPS, tried, written
from torch import nn

from fplab.errors import LabError
from fplab.nn import Recipe, emulate, recipes, watch
from fplab.nn.diagnose import forecast
from fplab.nn.emulation.delayed import Amaxes
from fplab.pages import cookbook

RUN = ("e4m3", "e5m2", "fp8_delayed", "nvfp4")  # of each variant; the others: python -m tests.forecast_runs


@pytest.mark.filterwarnings("ignore:.*saturate. without scaling= operands are rounded as they are:UserWarning")
@pytest.mark.parametrize("setup", SETUPS)
def test_the_cookbook_has_the_outcome_of_every_run(setup):
    for row in tried(setup, RUN):
        assert row.agrees(written()[setup, row.recipe]), row


def test_the_cookbook_counts_its_table():
    cells = written()
    assert len(cells) == len(SETUPS) * len(RECIPES)
    assert cells == written("zh")
    marks = Counter(cell[-1] if cell[-1] in HIT + MISS + ALARM else "" for cell in cells.values())
    hits, missed, alarms = (marks[mark] for mark in (HIT, MISS, ALARM))
    (page,) = (recipe for recipe in cookbook.recipes() if recipe.name == "will_it_diverge")
    text = " ".join(page.source().split())
    assert f"Of {hits + missed} runs that lose, {hits} were foretold and {missed} were not" in text
    assert f"of {marks['']} that do not, none" in text
    assert alarms == 0
    by_design = sum(cell.endswith(HIT) for (_, recipe), cell in cells.items() if recipe == "short -2")
    assert by_design == len(SETUPS) == 11
    assert f"{hits - by_design} of {hits + missed - by_design} losses were foretold" in text


def grown(
    growth: float = 1.0, steps: int = 16, names=("fp8_delayed",), x: float = 1.0, ahead: int = 16, every: int = 1
):
    """A forecast of one layer whose inputs grow by a factor in every step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 16, bias=False), nn.Linear(16, 8, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, recipes=names, every=every) as seen:
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.randn(24, 32) * x * growth**step).sum().backward()
            optimizer.step()
    return seen.forecast(steps + ahead)


@pytest.mark.parametrize("rule", [(4, "max", 0), (1, "most_recent", -2), (1024, "max", 3)])
def test_headroom_is_what_delayed_scaling_leaves(rule):
    """The scales are those that an emulation's own history gives."""
    length, algorithm, margin = rule
    recipe = recipes.fp8_delayed(amax_history_len=length, amax_compute_algo=algorithm, margin=margin)
    amaxes = 2.0 ** np.random.default_rng(0).normal(size=40)
    history, used = Amaxes([recipe]), []
    site = type("Site", (), {"step": type("Step", (), {})()})()
    for amax in amaxes:
        site.step.amaxes = {}
        used.append(history.of(recipe, site, "role", 448.0, float(amax)))
        history.new_step()
    rooms = forecast.headrooms(recipe, recipe.forward.left.record.element, np.log2(amaxes), range(40))
    assert rooms == pytest.approx(np.log2(used) - np.log2(amaxes), abs=1e-12)


def test_a_power_law_goes_on_and_deviations_repeat():
    t = np.arange(1.0, 101.0)
    assert forecast.extrapolated(3 * t[:32] ** 1.5, 100) == pytest.approx(np.log2(3 * t**1.5))
    spiky = np.where(t % 8 == 0, 4.0, 1.0)
    assert 1.5 < forecast.extrapolated(spiky[:32], 100)[40:].max() < 3
    assert forecast.extrapolated(np.zeros(8), 9).tolist() == [-math.inf] * 9
    assert np.isfinite(forecast.extrapolated(np.array([0, 1, math.nan, 2, math.inf, 1, 0, 1.0]), 20)).all()


def test_a_run_whose_inputs_grow_beyond_fp16_diverges_and_does():
    plain = [Recipe(name, high=name, scope="all") for name in ("fp16", "bf16", "e5m2")]
    assert set(grown(2.0, 10, plain, ahead=0).verdicts.values()) == {"stands"}
    found = grown(2.0, 10, plain, ahead=30)
    assert found.verdicts["fp16"] == "diverges"
    assert found.verdicts["bf16"] == "stands"
    assert "fp16 diverges: input of 0 exceed the largest value of fp16 by" in " ".join(str(found).split())
    torch.manual_seed(0)
    layer = nn.Linear(32, 16)
    with emulate("H100", "fp16"):
        finite = [bool(layer(torch.randn(24, 32) * 2.0**step).isfinite().all()) for step in range(40)]
    assert finite[:10] == [True] * 10
    assert not any(finite[20:])


def test_margins_by_hand():
    names = ["fp8_current", recipes.fp8_delayed(margin=-2, scope="all", name="below"), Recipe("e4m3", high="e4m3")]
    found = grown(names=names, x=8.0)
    by_name = {(row.recipe, row.layer, row.phase): row for row in found.rows}
    assert found.high["fp8_current"] == ("1",)  # the output head, by its scope
    assert by_name["fp8_current", "0", "forward"].headroom == math.inf
    below = by_name["below", "0", "forward"]
    assert below.headroom == pytest.approx(-2.3, abs=0.4)  # the margin, less what a step is above those before
    assert below.signal < 3 < by_name["fp8_current", "0", "forward"].signal
    plain = by_name["e4m3", "0", "forward"]
    assert plain.headroom == pytest.approx(math.log2(448 / (8 * 3.7)), abs=0.5)
    assert not plain.overflows
    assert plain.underflow_end == pytest.approx(math.log2(0.088 * 2**10), abs=0.7)  # the weights' median is the least


def test_a_fault_in_the_rule_of_scales_is_seen(monkeypatch):
    names = [recipes.fp8_delayed(margin=-4, scope="all")]
    assert grown(names=names).verdicts == {"fp8_delayed": "loses"}
    monkeypatch.setattr(forecast, "headrooms", lambda recipe, form, amaxes, at: np.zeros(len(at)))
    assert grown(names=names).verdicts == {"fp8_delayed": "stands"}


def test_the_error_of_a_product_is_that_of_its_columns():
    exact = np.array([[1.0, 1000.0, 0.0], [1.0, -1000.0, 0.0]])
    coded = np.array([[0.0, 1000.0, 1.0], [0.0, -1000.0, 1.0]])
    assert forecast.lost(coded, exact) == 0.5  # of two columns that are not zero one is lost
    assert forecast.lost(np.full((2, 3), math.nan), exact) == 1
    assert forecast.lost(exact, exact) == 0


def test_the_report_speaks_both_languages_and_is_saved(tmp_path):
    found = grown(names=["fp8_delayed", Recipe("e4m3", high="e4m3")], x=1e-4)
    english = " ".join(str(found).split())
    assert found.verdicts == {"fp8_delayed": "stands", "e4m3": "loses"}
    assert "Sequential: 16 steps watched, 32 to come to." in english
    assert "e4m3 loses noticeably: over the layers 0.0 bits of the forward are right, fewer than 1" in english
    assert "By its scope fp8_delayed leaves high: 1." in english
    assert "e4m3 明显变差" in found.text.zh
    found.save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".json", ".txt", ".html"}


def test_what_cannot_be_foretold_is_refused():
    with pytest.raises(LabError, match="this watch has no recipes"):
        grown(names=())
    with pytest.raises(LabError, match="5 steps were watched; allowed: 8 and more"):
        grown(steps=5)
    with pytest.raises(LabError, match="steps=12 is not possible; allowed: 16"):
        grown(ahead=-4)
    assert grown(names=["bf16"], every=100).rows
