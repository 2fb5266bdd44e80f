"""The experiment on collectives."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from experiments.frame import Mutant, changed, frame, silent
from fplab.experiments import collectives
from fplab.experiments.collectives import AT, Params, reduced, shown
from fplab.experiments.figures import write_figures

TINY = Params(ranks=(2, 16), elements=16, shares=4, images=2, steps=40, scales=-16, every=False, networks=1)


def in_place_of(curve: str, other: str) -> Any:
    """One curve's sums, by group of elements, under the name of another."""

    def change(result: Any) -> Any:
        groups, errors = result.by_group.copy(), result.errors.copy()
        groups[:, AT[other]], errors[AT[other]] = groups[:, AT[curve]], errors[AT[curve]]
        return {"by_group": groups, "errors": errors}

    return change


MUTANTS = (
    Mutant("gloo's order reversed", ("gloo_order",), "fplab.parallel.gloo._taken",
           lambda good: lambda chunk, hop, ranks: good(chunk, ranks - 1 - hop, ranks), params=TINY),
    Mutant("a tree under the name of a ring", ("volumes",), "fplab.parallel.collectives.all_reduce",
           lambda good: lambda n, algorithm="ring": good(n, "tree"), params=TINY),
    Mutant("every rank decides for itself", ("skipping",), "reduced",
           lambda good: lambda halves, scales, policy: good(halves, scales, "alone"), params=TINY),
    Mutant("replicas' policies swapped", ("skipping",), change=changed("apart", lambda x: x[:, ::-1])),
    Mutant("FP32 errors 32 times as large", ("bounds",), change=changed("errors", lambda x: x * 32)),
    Mutant("FP32 errors a thousandth", ("bounds",), change=changed("errors", lambda x: x * 1e-3)),
    Mutant("a tree under the name of a BF16 ring", ("depth",), change=in_place_of("BF16, tree", "BF16, ring")),
    Mutant("errors drawn of other sums", ("depth",), change=changed("errors", lambda x: x * 1.5)),
    Mutant("nearest under the name of stochastic", ("stagnation",),
           change=in_place_of("BF16, ring", "BF16, ring, stochastic")),
    Mutant("formats in another order", ("formats",),
           change=lambda r: {"gradient_errors": r.gradient_errors[:, [0, 2, 1, 3, 4, 5, 6]]}),
    Mutant("averaged before and after swapped", ("averaging",), change=changed("fates", lambda x: x[:, ::-1])),
)  # fmt: skip

globals().update(frame(collectives, collectives.QUICK, MUTANTS))


def test_the_full_size_adds_in_every_way() -> None:
    """Three algorithms by ten wires, and one that sums directly; the quick size computes those that are drawn."""
    assert len({(one.algorithm, one.wire) for one in Params().curves}) == len(Params().curves) == 31
    small = Params(ranks=(2, 8), elements=16, shares=2, images=2, steps=2, scales=-18)
    result = collectives.run(small, silent)
    assert result.errors.shape == (31, 2)
    assert len(collectives.rows(result)["wire"]) == 62
    assert collectives.QUICK.curves == small.curves[:10]


def test_the_steps_move(result: Any, tmp_path: Path) -> None:
    """Every message of six collectives flies from its source's row to its target's; the end stays where none moves."""
    files = write_figures(tmp_path, "collectives", collectives.EXPERIMENT, result, silent, ("zh.svg", "svg"))
    assert files[-2:] == [tmp_path / "collectives.steps.zh.svg", tmp_path / "collectives.steps.svg"]
    chinese = ElementTree.parse(files[-2]).getroot()
    words = {text.text for text in chinese.iter("{http://www.w3.org/2000/svg}text")}
    assert words >= {"广播", "第 1 步，共 2 步", "rank 0"}
    drawing = ElementTree.parse(files[-1]).getroot()
    parts = {name: list(drawing.iter(f"{{http://www.w3.org/2000/svg}}{name}")) for name in ("g", "rect", "animate")}
    every = [one.collective for line in shown() for one in line]
    ways = [(m.source, m.target) for one in every for step in one.steps for m in step]
    flights = [[one.get("values", "").split(";") for one in rect if one.get("attributeName") == "y"]
               for rect in parts["rect"] if rect.get("class") == "message"]  # fmt: skip
    assert [(int(a) // 32 - 1, int(d) // 32 - 1) for ((a, _, _, d),) in flights] == ways
    frames = [group for group in parts["g"] if group.get("visibility") is not None]
    assert [group.get("visibility") for group in frames].count("visible") == 6
    assert len(frames) == sum(len(one.steps) + 1 for one in every)
    for animate in parts["animate"]:
        keys = [float(key) for key in animate.get("keyTimes", "").split(";")]
        assert keys == sorted(set(keys))
        assert keys[0] == 0
        assert keys[-1] <= 1
        assert len(keys) == len(animate.get("values", "").split(";"))


def test_one_overflow_stops_all_or_one() -> None:
    """Rank 1's FP16 gradient is infinite; the others' are 8, 16 and 24 at scales of 8."""
    halves = np.array([[8.0], [np.inf], [16.0], [24.0]], np.float32)
    scales = np.full(4, 8, np.float32)
    assert reduced(halves, scales, "together")[0].tolist() == [True] * 4
    over, mean = reduced(halves, scales, "alone")
    assert over.tolist() == [False, True, False, False]
    assert mean.tolist() == [1.5]
