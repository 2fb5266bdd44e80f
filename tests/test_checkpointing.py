"""The experiment on checkpointing: its claims, its GPU case, and that its checks can fail."""

from __future__ import annotations

from typing import Any

import torch
from experiment_frame import Mutant, computed_on_cpu, drawn, frame, kills

from fplab.experiments import checkpointing
from fplab.experiments.checkpointing import checks, steps
from fplab.hardware.cases import Arrays

SMALL = steps.Params(layers=4, hidden=32, vocabulary=64, sequence=32)

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(checkpointing, SMALL)


def off(name: str, at: tuple[int, ...], by: int) -> Any:
    """One number of the run another."""

    def change(arrays: Arrays) -> Arrays:
        arrays[name][at] += by
        return arrays

    return change


def another_dropout(good: Any) -> Any:
    """Segments that draw new random numbers when they run again."""
    return lambda inner, size, keep_random=True: good(inner, size, keep_random=False)


def one_by_one(good: Any) -> Any:
    """Segments of one layer, whatever their name."""
    return lambda inner, size, keep_random=True: good(inner, 1, keep_random)


TINY = steps.Params(layers=2, hidden=32, vocabulary=64, sequence=16)
MUTANTS = (
    Mutant("segments draw dropout anew", ("recomputation gives",), "steps.segmented", another_dropout, params=TINY),
    Mutant("segments keep their random numbers", ("a segment that runs again",), "steps.segmented",
           lambda good: lambda inner, size, keep_random=True: good(inner, size), params=TINY),
    Mutant("every layer by itself under every name", ("what the forward pass leaves", "the peak of the backward"),
           "steps.segmented", one_by_one, params=TINY),
    Mutant("an operation more", ("segments of any size",), change=off("work", (3,), 1)),
    Mutant("one byte of a gradient", ("recomputation gives",), change=off("differ", (1, 2), 1)),
    Mutant("another best segment", ("the best segment",), change=off("peak", (0, 2), 10**9)),
)  # fmt: skip

test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(checkpointing, SMALL, MUTANTS)


def test_a_step_in_segments_computes_what_a_plain_one_does() -> None:
    inputs = steps.tokens_of(SMALL)
    with torch.random.fork_rng(devices=[]):
        losses = []
        for way in SMALL.ways:
            torch.manual_seed(1)
            losses.append(steps.network_of(SMALL, way)(*inputs).item())
    assert len(set(losses)) == 1


def test_segments_cover_every_layer_once() -> None:
    module = steps.network_of(SMALL, "segments of 2")
    seen: list[int] = []
    for i, layer in enumerate(module.layers[0].inner):  # type: ignore[index, union-attr]
        layer.register_forward_pre_hook(lambda *_, i=i: seen.append(i))
    loss = module(*steps.tokens_of(SMALL))
    assert seen == [0, 1, 2, 3]
    loss.backward()
    assert seen[4:] == [2, 3, 0, 1]


def test_the_formula_finds_the_depth_from_which_longer_segments_pay() -> None:
    """Every layer by itself up to about two layers for each input's worth of activations; later longer segments."""
    best = {depth: steps.best_segment(steps.Params(layers=depth)) for depth in (8, 16, 32, 64, 256, 1024)}
    assert best == {8: 1, 16: 1, 32: 1, 64: 2, 256: 4, 1024: 8}
    for depth in (64, 256, 1024):
        assert checks.rule(steps.Params(layers=depth)) * 2 >= best[depth] ** 2 / 4
    assert [checks.sqrt_segment(steps.Params(layers=depth)) for depth in (16, 64, 256)] == [4, 8, 16]


def test_the_gpu_case_on_the_cpu() -> None:
    (case,) = checkpointing.gpu_cases(SMALL)
    assert computed_on_cpu(case)["differ"].shape == (2, len(SMALL.ways))


def test_the_history_is_what_the_peak_says(arrays: Arrays) -> None:
    for way in steps.shown(SMALL):
        assert arrays[f"history: {way}"].max() == arrays["peak"][0, SMALL.ways.index(way)]


def test_the_table_and_the_figure(arrays: Arrays, tmp_path) -> None:  # type: ignore[no-untyped-def]
    table = checkpointing.table(arrays, SMALL)
    assert {len(column) for column in table.values()} == {2 * len(SMALL.ways)}
    for theme in ("light", "dark"):
        assert drawn(checkpointing, arrays, SMALL, theme, tmp_path)[1] > 50_000
