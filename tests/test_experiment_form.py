"""The form of experiments: measures with named axes, quantities, claims as rows, the table, and panels."""

import dataclasses
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from fplab.experiments import frame, panels, quantities
from fplab.experiments.progress import silent


def walks() -> tuple[frame.Experiment, list[str]]:
    """An experiment on random walks, and what it computed, call by call."""
    calls: list[str] = []
    walks = frame.Experiment("Walks", "How far?", 1, full={"seeds": 4, "steps": 64}, quick={"steps": 16})

    def distance(p: frame.Params, seed: int, kind: str) -> dict[int, float] | None:
        calls.append(f"{seed} {kind}")
        if (seed, kind) == (3, "none"):
            return None
        far = ends(p, seed) if kind == "walk" else np.zeros(p.steps)
        return {step: float(abs(far[step])) for step in (0, p.steps - 1)}

    def ends(p: frame.Params, seed: int) -> np.ndarray:
        calls.append("ends")
        return np.arange(p.steps) + seed

    ends = walks.cache(ends)
    walks.measure("distance", axes={"seed": "seeds", "kind": ("walk", "none"), "step": ...}, unit="m")(distance)
    walks.measure("six")(six)
    return walks, calls


def six(p: frame.Params) -> int:
    return 6


def test_a_measure_has_its_axes_and_is_computed_when_it_is_asked_for() -> None:
    experiment, calls = walks()
    result = experiment.result(experiment.quick)
    assert result.six == 6
    assert not calls
    assert result.distance.dims == ("seed", "kind", "step")
    assert result.distance.step.values.tolist() == [0, 15]
    assert result.distance.sel(seed=2, kind="walk", step=15) == 17
    assert np.isnan(result.distance.sel(seed=3, kind="none")).all()
    assert result.distance.attrs == {"unit": "m"}
    assert calls.count("ends") == 4
    before = len(calls)
    experiment.run(experiment.quick, silent)
    assert len(calls) == 2 * before
    with pytest.raises(AttributeError, match="Walks measures no 'gap'; it measures distance, six"):
        _ = result.gap


def test_parameters_are_frozen_pickled_and_replaced() -> None:
    experiment, _ = walks()
    assert dataclasses.asdict(experiment.quick) == {"seeds": 4, "steps": 16}
    again = pickle.loads(pickle.dumps(experiment.quick))
    assert dataclasses.asdict(again) == dataclasses.asdict(experiment.quick)
    with pytest.raises(dataclasses.FrozenInstanceError):
        experiment.quick.steps = 3
    with pytest.raises(TypeError, match="stepps"):
        frame.Experiment("a", "b", 1, full={"steps": 1}, quick={"stepps": 2})


def test_claims_as_rows_compare_quantities_and_say_both() -> None:
    experiment, _ = walks()
    result = experiment.result(experiment.quick)
    last = quantities.of("distance", kind="walk", step=-1)
    three = [0, 1, 2]
    still = quantities.of("distance", step=0, kind="none", seed=three)
    far = quantities.superior("far", "they go far", last.at(seed=three), still, by=10)
    outcome = far.test(result)
    assert outcome.holds
    assert str(outcome.detail).startswith("distance walk last step 16 m, distance 0 none 0 m; mean difference 16")
    assert not quantities.superior("far", "they go far", last.log2, 8).test(result).holds
    both = quantities.of("distance", step=-1, seed=three)
    assert not quantities.above(both, by=10, each="kind")(result).holds
    assert quantities.above(both.at(kind=["walk"]), by=10, each="kind")(result).holds
    assert quantities.equivalent("near", "they are near", last / 16, 1, within=1).test(result).holds
    within = quantities.within("between", "they lie between", last, 15, quantities.of("six") * 3)
    assert within.test(result).holds
    assert str(within.test(result).detail) == "4 numbers from 15 to 18"
    assert not quantities.within("between", "they lie between", last, 15.5, 18).test(result).holds
    assert quantities.equal("ends", "they end there", last, [15, 16, 17, 18]).test(result).holds
    outcome = quantities.equal("ends", "they end there", last, [15, 16, 17, 19]).test(result)
    assert not outcome.holds
    assert str(outcome.detail) == "1 of 4 numbers differ; seed 3: 18, not 19"


def test_an_answer_is_one_sentence_with_the_results_numbers() -> None:
    experiment, _ = walks()
    result = experiment.result(experiment.quick)
    assert experiment.answered(result) is None
    far = quantities.of("distance", kind="walk", step=-1)
    experiment.answer("walks end {far:.1f} m away, in {steps} steps", far=far, steps=lambda r: r.p.steps)
    assert str(experiment.answered(result)) == "walks end 16.5 m away, in 16 steps"


def test_the_table_has_a_row_for_each_point_and_the_mean_over_seeds() -> None:
    experiment, _ = walks()
    result = experiment.result(experiment.quick).replace(distance=np.ones((4, 2, 2)) * np.arange(4)[:, None, None])
    assert experiment.rows(result) == {
        "kind": ["walk", "walk", "none", "none"], "step": [0, 15, 0, 15],
        "distance": [1.5] * 4, "distance_min": [0.0] * 4, "distance_max": [3.0] * 4,
    }  # fmt: skip


def test_verbs_draw_named_axes() -> None:
    from matplotlib.figure import Figure

    experiment, _ = walks()
    result = experiment.result(experiment.quick)
    for panel in (
        panels.dots("distance", y="kind", hue="step", title="t"),
        panels.dots("distance", x="kind", hue="step", marker="seed"),
        panels.line("distance", x="step", hue="kind", log="y", names={"walk": "a walk"}),
        panels.bars(quantities.of("distance").mean("seed"), x="kind", hue="step"),
        panels.heat(quantities.of("distance", step=-1), x="seed", y="kind", label="m"),
    ):
        ax = Figure().subplots()
        panel(ax, result)
        assert ax.lines or ax.patches or ax.images
    ax = Figure().subplots()
    panels.line("distance", x="step", hue="kind", names={"walk": "a walk"})(ax, result)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a walk", "none"]
    assert ax.lines[0].get_ydata().tolist() == [1.5, 16.5]


def test_arrays_of_a_measure_have_coordinates_and_a_table_leaves_out_what_was_not_measured() -> None:
    sums = frame.Experiment("Sums", "How large?", 1, full={"most": 3}, quick={"most": 2})

    def total(p: frame.Params, terms: int) -> np.ndarray:
        return np.arange(terms) + 1.0

    sums.measure("total", axes={"terms": (1, 3)}, dims={"place": lambda p: range(10, 10 + p.most)})(total)
    array = sums.result(sums.full).total
    assert array.sel(terms=3, place=12) == 3
    assert np.isnan(array.sel(terms=1, place=11))
    assert quantities.table(total=array) == {
        "terms": [1, 3, 3, 3], "place": [10, 10, 11, 12], "total": [1.0, 1.0, 2.0, 3.0]
    }  # fmt: skip


GALLERY = sorted((Path(__file__).parent.parent / "figures").glob("*.svg"))
AXES = re.compile(r'<g id="axes_\d+">(?:\s*<g id="patch_\d+">\s*<path d="M (\S+) (\S+)\s+L (\S+) \S+\s+L \S+ (\S+))?')


@pytest.mark.parametrize("path", GALLERY, ids=[path.name for path in GALLERY])
def test_a_figure_of_the_gallery_has_at_most_two_panels(path: Path) -> None:
    """Axes that are narrow hold a scale of colours, those that are low the names of marks above a panel."""
    places = AXES.findall(path.read_text(encoding="utf-8"))
    framed = [tuple(map(float, place)) for place in places if place[0]]
    panels = [place for place in framed if min(abs(place[2] - place[0]), abs(place[3] - place[1])) > 45]
    assert len(panels) + len(places) - len(framed) <= 2
