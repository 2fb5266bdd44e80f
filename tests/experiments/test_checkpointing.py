"""The experiment on checkpointing."""

from dataclasses import replace
from typing import Any

import torch

from experiments.frame import Mutant, frame
from fplab.experiments import checkpointing
from fplab.experiments.checkpointing import E, ways

SMALL = replace(E.full, layers=4, hidden=32, vocabulary=64, sequence=32)
TINY = replace(SMALL, layers=2)


MUTANTS = (
    Mutant("segments draw dropout anew", ("same_gradients",), "segmented",
           lambda good: lambda inner, size, keep_random=True: good(inner, size, keep_random=False), params=TINY),
    Mutant("segments keep their random numbers", ("new_random",), "segmented",
           lambda good: lambda inner, size, keep_random=True: good(inner, size), params=TINY),
    Mutant("nothing runs again", ("saved", "peak", "work"), "segmented",
           lambda good: lambda inner, size, keep_random=True: inner, params=TINY),
    Mutant("long segments for short ones", ("saved", "peak", "best"), "segmented",
           lambda good: lambda inner, size, keep_random=True: good(inner, TINY.layers // size, keep_random),
           params=TINY),
)  # fmt: skip

globals().update(frame(checkpointing, SMALL, MUTANTS))


def test_a_step_in_segments_computes_what_a_plain_one_does() -> None:
    inputs = checkpointing.tokens_of(SMALL)
    with torch.random.fork_rng(devices=[]):
        losses = []
        for way in ways(SMALL):
            torch.manual_seed(1)
            losses.append(checkpointing.network_of(SMALL, way)(*inputs).item())
    assert len(set(losses)) == 1


def test_segments_cover_every_layer_once() -> None:
    module = checkpointing.network_of(SMALL, "segments of 2")
    seen: list[int] = []
    for i, layer in enumerate(module.layers[0].inner):  # type: ignore[index, union-attr]
        layer.register_forward_pre_hook(lambda *_, i=i: seen.append(i))
    loss = module(*checkpointing.tokens_of(SMALL))
    assert seen == [0, 1, 2, 3]
    loss.backward()
    assert seen[4:] == [2, 3, 0, 1]


def test_the_formula_finds_the_depth_from_which_longer_segments_pay() -> None:
    """Every layer by itself up to about two layers for each input's worth of activations; later longer segments."""
    best = {depth: checkpointing.best_segment(replace(E.full, layers=depth)) for depth in (8, 16, 32, 64, 256, 1024)}
    assert best == {8: 1, 16: 1, 32: 1, 64: 2, 256: 4, 1024: 8}
    for depth in (64, 256, 1024):
        assert checkpointing.rule(replace(E.full, layers=depth)) * 2 >= best[depth] ** 2 / 4
    assert [checkpointing.sqrt_segment(replace(E.full, layers=depth)) for depth in (16, 64, 256)] == [4, 8, 16]


def test_the_history_is_what_the_peak_says(result: Any) -> None:
    assert result.history.recomputed.values.tolist() == ["none", "segments of 1", "segments of 4"]
    for way in result.history.recomputed.values:
        assert result.history.sel(recomputed=way).max() == result.peak.sel(precision="fp32", recomputed=way)
