"""Corners of real runs and schedules: processes that answer no more, and numbers that no group divides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pictures import of_class, text_of

import fplab
from fplab import parallel
from fplab.errors import LabError
from fplab.parallel import gloo, launching, schedules
from fplab.parallel.run import PATIENCE, in_vain
from fplab.widgets import pipeline

GLOO = "[unbound_buffer.cc:78] Timed out waiting 20000ms for recv operation to complete"
SLEEPER = """
import sys, time
from pathlib import Path
Path(sys.argv[1], "error.2").write_text("rank 2 says why")
time.sleep(600)
"""


def test_a_process_that_does_not_end_does_not_hide_anothers_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank says what went wrong, another is stopped: torchrun would wait 30 seconds for it. Far from the limit."""
    monkeypatch.setattr(launching, "GRACE", 0.1)
    with pytest.raises(LabError, match=r"^rank 2 says why$"):
        launching.finish([sys.executable, "-c", SLEEPER, str(tmp_path)], tmp_path, 500)


def test_a_run_without_an_error_has_until_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "GRACE", 0.1)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        assert not launching.ended(process, tmp_path, 0.1)
        (tmp_path / "error.0").write_text("why", encoding="utf-8")
        assert launching.ended(process, tmp_path, 500)
        process.kill()
    assert launching.ended(process, tmp_path, 0.1)


def test_waiting_in_vain_is_said_in_words() -> None:
    text = f"rank 2 waited {PATIENCE} seconds for another rank in vain: one is stopped, cut off or far slower."
    assert in_vain(2, RuntimeError(GLOO)) == text
    assert in_vain(2, RuntimeError("wait timeout after 20000ms, keys: /default_pg/0//store_based_barrier")) == text
    assert in_vain(2, RuntimeError("Connection closed by peer [127.0.0.1]:4711")) is None


def test_every_name_in_strategies_is_one() -> None:
    assert "hang" not in parallel.STRATEGIES
    assert parallel.Setting(parallel.STRATEGIES, 2).strategies == parallel.STRATEGIES


def test_gloo_adds_numbers() -> None:
    with pytest.raises(LabError, match="buffers are real numbers, a row for each rank and all rows of one length"):
        gloo.all_reduce([["a"], ["b"]])


# --- groups of micro-batches --------------------------------------------------------------------------------------
def test_the_nearest_groups_are_named() -> None:
    with pytest.raises(LabError, match=r"micro_batches=6 is no multiple of it; the nearest: 4, 8\.$"):
        schedules.timeline("interleaved", 4, 6, 2)
    with pytest.raises(LabError, match=r"in groups of 2; micro_batches=1 is .*; the nearest: 2\.$"):
        parallel.launch("interleaved", 2, micro_batches=1)


@pytest.mark.parametrize(("p", "m", "wanted"), [(4, 6, 8), (4, 5, 4), (4, 1, 4), (3, 32, 30), (7, 32, 28), (8, 30, 32)])
def test_the_widget_draws_the_nearest_groups_and_says_so(p: int, m: int, wanted: int) -> None:
    state = pipeline.State("interleaved", p, m, 2)
    picture, as_asked = pipeline.render(state), pipeline.render(pipeline.State("interleaved", p, wanted, 2))
    assert len(of_class(picture, "slot")) == 2 * p * wanted * 2
    said = text_of(picture)
    assert f"{m} is none of {p}, {2 * p}, " in said
    assert f"Shown: the nearest, {wanted}." in said
    assert "nearest" not in text_of(as_asked)
    assert of_class(picture, "slot")[-1].attrib == of_class(as_asked, "slot")[-1].attrib


def test_a_slider_passes_through_what_cannot_be() -> None:
    """Step by step, as with the arrow keys: the slider stays where it was put, and no step is refused."""
    board = fplab.widgets.pipeline.widget("interleaved", 4, 8, 2)
    for m in range(9, 13):
        board.inputs["micro_batches"].value = m
        assert board.state.micro_batches == board.inputs["micro_batches"].value == m
        assert ("Shown: the nearest" in text_of(board.view.value)) == (m != 12)
        assert of_class(board.view.value, "slot")
    assert fplab.widgets.pipeline.widget("interleaved", 4, 6, 2).state.micro_batches == 6
