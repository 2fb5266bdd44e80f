"""The experiment on collectives."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from experiments.frame import Mutant, frame
from fplab.experiments import collectives
from fplab.experiments.collectives import CURVES, WAYS, E, curves, reduced, shown
from fplab.experiments.figures import write_figures
from fplab.experiments.progress import silent

TINY = replace(E.quick, ranks=(2, 16), elements=16, shares=4, images=2, scales=-16)


def coarser(good: Any) -> Any:
    """Sums of which FP32's travel in BF16, and stochastic ones are rounded to nearest."""

    def sums(given: Any, elements: int, ranks: int, algorithm: str, wire: Any) -> Any:
        fmt = "bf16" if wire.format == "fp32" else wire.format
        return good(given, elements, ranks, algorithm, replace(wire, format=fmt, rounding="rne", seed=None))

    return sums


def by_a_tree(good: Any) -> Any:
    """Every ring is a tree."""
    return lambda given, elements, ranks, algorithm, wire: good(
        given, elements, ranks, "tree" if algorithm == "ring" else algorithm, wire
    )


MUTANTS = (
    Mutant("gloo's order reversed", ("gloo_order",), "fplab.parallel.gloo._taken",
           lambda good: lambda chunk, hop, ranks: good(chunk, ranks - 1 - hop, ranks), params=TINY),
    Mutant("a tree under the name of a ring", ("volumes",), "fplab.parallel.collectives.all_reduce",
           lambda good: lambda n, algorithm="ring": good(n, "tree"), params=TINY),
    Mutant("every rank decides for itself", ("skipping",), "reduced",
           lambda good: lambda halves, scales, policy: good(halves, scales, "alone"), params=TINY),
    Mutant("coarser wires", ("bounds", "formats", "stagnation"), "reduce_fast", coarser),
    Mutant("sums that FP64 adds", ("bounds",), "added",
           lambda good: lambda given, curve: given.sum(axis=0, dtype=np.float64), params=TINY),
    Mutant("a tree in the place of a ring", ("depth", "formats", "stagnation"), "reduce_fast", by_a_tree),
    Mutant("averages in BF16", ("averaging",), "Wire", lambda good: lambda fmt: good("bf16"), reuse=("slopes",)),
)  # fmt: skip

globals().update(frame(collectives, E.quick, MUTANTS))


def test_the_full_size_adds_in_every_way() -> None:
    """Three algorithms by ten wires, and one that sums directly; the quick size computes those that are drawn."""
    assert len({WAYS[curve] for curve in curves(E.full)}) == len(curves(E.full)) == 31
    small = replace(E.full, ranks=(2, 8), elements=16, shares=2, images=2, steps=2, scales=-18)
    result = E.run(small, silent)
    assert result.errors.shape == (31, 2)
    assert len(E.rows(result)["wire"]) == 62
    assert curves(E.quick) == curves(small)[:10] == list(CURVES)


def test_the_steps_move(result: Any, tmp_path: Path) -> None:
    """Every message of six collectives flies from its source's row to its target's; the end stays where none moves."""
    files = write_figures(tmp_path, "collectives", E, result, silent, ("zh.svg", "svg"))
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
