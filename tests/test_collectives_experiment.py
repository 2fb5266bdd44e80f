"""The experiment on collectives: claims, a mutant for each, GPU cases, drawings."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from experiment_frame import Mutant, computed_on_cpu, drawn, frame, kills

from fplab.experiments import collectives
from fplab.experiments.collectives.checks import AT
from fplab.experiments.collectives.skipping import _reduced
from fplab.hardware.cases import Arrays

QUICK = collectives.QUICK
TINY = collectives.Params(ranks=(2, 16), elements=16, shares=4, images=2, steps=40, scales=-16, every=False, networks=1)

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(collectives, QUICK)


def scaled(name: str, factor: float) -> Any:
    return lambda arrays: {name: arrays[name] * factor}


def swapped(name: str) -> Any:
    """Two policies, or two ways to average, in each other's place."""
    return lambda arrays: {name: arrays[name][:, ::-1]}


def in_place_of(curve: str, other: str) -> Any:
    """One curve's sums, by group of elements, under the name of another."""

    def change(arrays: Arrays) -> Arrays:
        arrays["by_group"][:, AT[other]] = arrays["by_group"][:, AT[curve]]
        arrays["errors"][AT[other]] = arrays["errors"][AT[curve]]
        return arrays

    return change


MUTANTS = (
    Mutant("gloo's order reversed", ("gloo's own",), "fplab.parallel.gloo._taken",
           lambda good: lambda chunk, hop, ranks: good(chunk, ranks - 1 - hop, ranks), params=TINY),
    Mutant("a tree under the name of a ring", ("a ring sends",), "fplab.parallel.collectives.all_reduce",
           lambda good: lambda n, algorithm="ring": good(n, "tree"), params=TINY),
    Mutant("every rank decides for itself", ("replicas stay",), "skipping._reduced",
           lambda good: lambda halves, scales, policy: good(halves, scales, "alone"), params=TINY),
    Mutant("replicas' policies swapped", ("replicas stay",), change=swapped("apart")),
    Mutant("FP32 errors 32 times as large", ("FP32 rings",), change=scaled("errors", 32)),
    Mutant("FP32 errors a thousandth", ("FP32 rings",), change=scaled("errors", 1e-3)),
    Mutant("a tree under the name of a BF16 ring", ("in BF16",), change=in_place_of("BF16, tree", "BF16, ring")),
    Mutant("errors drawn of other sums", ("in BF16",), change=scaled("errors", 1.5)),
    Mutant("nearest under the name of stochastic", ("stochastic rounding",),
           change=in_place_of("BF16, ring", "BF16, ring, stochastic")),
    Mutant("formats in another order", ("on real gradients",),
           change=lambda a: {"gradient_errors": a["gradient_errors"][:, [0, 2, 1, 3, 4, 5, 6]]}),
    Mutant("averaged before and after swapped", ("averaging",), change=swapped("fates")),
)  # fmt: skip

test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(collectives, QUICK, MUTANTS)


def test_its_gpu_cases_hold_on_the_cpu() -> None:
    for case in collectives.gpu_cases(QUICK):
        computed_on_cpu(case)


def test_table_and_figure(arrays: Arrays, tmp_path: Path) -> None:
    assert len({len(column) for column in collectives.table(arrays, QUICK).values()}) == 1
    assert drawn(collectives, arrays, QUICK, "dark", tmp_path)[1] > 30_000


def test_the_full_size_adds_in_every_way() -> None:
    """Three algorithms by ten wires, and one that sums directly; the quick size computes those that are drawn."""
    every = {(one.algorithm, one.wire) for one in collectives.Params().curves}
    assert len(every) == len(collectives.Params().curves) == 31
    small = collectives.Params(ranks=(2, 8), elements=16, shares=2, images=2, steps=2, scales=-18)
    arrays = collectives.run(small, lambda _done, _text: None)
    assert arrays["errors"].shape == (31, 2)
    assert len(collectives.table(arrays, small)["wire"]) == 62
    assert collectives.QUICK.curves == small.curves[:10]


def test_the_steps_move(arrays: Arrays, tmp_path: Path) -> None:
    """Every message of six collectives flies from its source's row to its target's; the end stays where none moves."""
    from fplab.experiments.collectives.figure import shown
    from fplab.experiments.figures import write_figures

    files = write_figures(tmp_path, "collectives", collectives, arrays, collectives.QUICK, lambda *_: None)
    assert files[-1] == tmp_path / "collectives.steps.svg"
    drawing = ElementTree.parse(files[-1]).getroot()
    parts = {name: list(drawing.iter(f"{{http://www.w3.org/2000/svg}}{name}")) for name in ("g", "rect", "animate")}
    ways = [(m.source, m.target) for line in shown() for one in line for step in one[0].steps for m in step]
    flights = [[one.get("values", "").split(";") for one in rect if one.get("attributeName") == "y"]
               for rect in parts["rect"] if rect.get("class") == "message"]  # fmt: skip
    assert [(int(a) // 32 - 1, int(d) // 32 - 1) for ((a, _, _, d),) in flights] == ways
    frames = [group for group in parts["g"] if group.get("visibility") is not None]
    assert [group.get("visibility") for group in frames].count("visible") == 6
    assert len(frames) == sum(len(one[0].steps) + 1 for line in shown() for one in line)
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
    over, mean = _reduced(halves, scales, "together")
    assert over.tolist() == [True] * 4
    over, mean = _reduced(halves, scales, "alone")
    assert over.tolist() == [False, True, False, False]
    assert mean.tolist() == [1.5]
