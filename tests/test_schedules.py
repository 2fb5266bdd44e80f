"""Pipeline schedules: bubbles and memory counted on the timeline, against the published formulas."""

from fractions import Fraction
from itertools import pairwise

import pytest
import refusals

from fplab.memory import pipeline
from fplab.memory.pipeline import SCHEDULES
from fplab.parallel.schedules import Timeline, timeline

CASES = [(n, p, m, v) for n in SCHEDULES for p in (1, 2, 3, 4, 8) for m in (1, 4, 8, 24) for v in (1, 2, 3)
         if (v == 1 or n == "interleaved") and (n != "interleaved" or m % p == 0)]  # fmt: skip


@pytest.mark.parametrize("backward", [1, 2, Fraction(5, 3)])
@pytest.mark.parametrize(("name", "p", "m", "v"), CASES)
def test_bubble(name: str, p: int, m: int, v: int, backward: Fraction) -> None:
    """(p - 1) / m, a v-th of it when interleaved (Narayanan et al. 2021, section 2.2), whatever a backward takes."""
    found = timeline(name, p, m, v, backward=backward)
    assert found.bubble == Fraction(p - 1, m * v)
    assert found.idle() == Fraction(p - 1, m * v + p - 1)


def test_a_timeline_is_shown_in_a_line() -> None:
    """Without its passes: 256 stages with 1,024 micro-batches took 52 MB."""
    said = repr(timeline("1f1b", 16, 64))
    assert said.startswith("Timeline(name='1f1b', stages=16, micro_batches=64, ")
    assert len(said) < 200


@pytest.mark.parametrize(("name", "p", "m", "v"), CASES)
def test_it_is_a_possible_run(name: str, p: int, m: int, v: int) -> None:
    """Every pass once; no stage does two things at once; nothing starts before what it needs is done."""
    found = timeline(name, p, m, v)
    done = {(s.kind, s.chunk * p + s.stage, s.micro_batch): s for s in found.slots}
    assert len(done) == len(found.slots) == 2 * p * m * v
    for stage in range(p):
        mine = sorted((s for s in found.slots if s.stage == stage), key=lambda s: s.start)
        assert all(a.end <= b.start for a, b in pairwise(mine))
    for (kind, part, i), slot in done.items():
        before = ("F", part - 1, i) if kind == "F" else ("B", part + 1, i) if part < p * v - 1 else ("F", part, i)
        assert slot.end - slot.start == Fraction(1 if kind == "F" else 2, v)
        if before in done:
            assert done[before].end <= slot.start


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 8), (4, 2), (8, 8)])
def test_memory_of_a_stage(p: int, m: int) -> None:
    assert timeline("gpipe", p, m).in_flight() == [m] * p
    assert timeline("1f1b", p, m).in_flight() == [min(p - stage, m) for stage in range(p)]


@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 2), (4, 3), (8, 4)])
def test_interleaving_holds_more_on_the_first_stage(p: int, v: int) -> None:
    """1 + (p - 1) / (p v) times 1F1B's p micro-batches (Korthikanti et al. 2022, section 4.2.3)."""
    found = timeline("interleaved", p, 4 * p, v)
    assert Fraction(found.in_flight()[0], v) == p * (1 + Fraction(p - 1, p * v))


@pytest.mark.parametrize(
    ("name", "p", "m", "v"), [case for case in CASES if case[1] > 1 and (case[3] > 1) == (case[0] == "interleaved")]
)
def test_the_calculator_holds_what_every_stage_of_the_timeline_holds(name: str, p: int, m: int, v: int) -> None:
    held = [sum(pipeline.chunks_in_flight(name, stage, p, m, v)) for stage in range(p)]
    assert timeline(name, p, m, v).in_flight() == held


def test_one_by_hand() -> None:
    """Two stages, two micro-batches: 1F1B does B0 before F1 on the last stage only."""
    found: Timeline = timeline("1f1b", 2, 2, forward=1, backward=1)
    rows = [[f"{s.kind}{s.micro_batch}@{s.start}" for s in found.slots if s.stage == stage] for stage in (0, 1)]
    assert rows == [["F0@0", "F1@1", "B0@3", "B1@5"], ["F0@1", "B0@2", "F1@3", "B1@4"]]


test_refusals = refusals.saying(
    (lambda: timeline("1f1b1", 2, 2), "unknown schedule '1f1b1'. Allowed: gpipe, 1f1b, interleaved. Did you mean"),
    (lambda: timeline("gpipe", 0, 2), "stages=0 is not possible; allowed: 1 to 1024"),
    (lambda: timeline("gpipe", 2, 0), "micro_batches=0 is not possible"),
    (lambda: timeline("gpipe", 2, 2, 2), 'chunks=2 is for schedule="interleaved"; gpipe has one chunk a stage'),
    (lambda: timeline("interleaved", 4, 6, 2), "interleaved takes micro-batches in groups of 4; micro_batches=6"),
    (lambda: timeline("gpipe", 2, 2, backward=0), "a pass takes a positive time"),
    (lambda: timeline("gpipe", 2, 2, forward=float("nan")), "forward=nan, backward=2: a pass takes a positive time"),
    (lambda: timeline("gpipe", 2, 2, forward="x"), "forward=x, backward=2: a pass takes a positive time"),
)  # fmt: skip
