"""Emulation and threads: those that a block starts compute in it, others are refused or have a block of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from emulated import random, same
from torch import nn

from fplab.errors import LabError
from fplab.nn import emulate
from fplab.nn.emulation import openmp_threads
from fplab.training import AmaxScaling


class Doubled(torch.autograd.Function):
    """A product in a Function, which is seen by what replaces ``Function.apply``."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return gradients[0] @ w.T * 2, x.T @ gradients[0] * 2


torch.manual_seed(0)
NET, W = nn.Sequential(nn.Linear(48, 32), nn.GELU(), nn.Linear(32, 24)), random(24, 24, seed=9).requires_grad_()
PARTS = random(32, 48, seed=3).chunk(8)


def passes(x: torch.Tensor) -> list[torch.Tensor]:
    """What a forward and a backward pass give, through modules, a Function and a bare product."""
    y = Doubled.apply(NET(x), W) @ W
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [*NET.parameters(), W])]


def bits(found: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [t for one in found for t in one]


@pytest.fixture
def before() -> Iterator[ThreadPoolExecutor]:
    """A pool whose thread was there before any block."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        yield pool


def test_threads_that_a_block_starts_compute_in_it() -> None:
    with emulate("H100", "fp16") as run:
        want = bits([passes(x) for x in PARTS])
    with emulate("H100", "fp16") as other, ThreadPoolExecutor(4) as pool:
        got = bits(list(pool.map(passes, PARTS)))
    assert all(map(same, got, want))
    assert not all(map(same, got, bits([passes(x) for x in PARTS])))

    def counts(emulation: Any) -> dict[Any, int]:
        return {(r.layer, r.phase, r.operation, r.shape): r.count for r in emulation.report().rows}

    assert counts(other) == counts(run), "no product is lost or counted twice"


def test_a_thread_that_outlives_its_block_is_torchs_again() -> None:
    replaced = threading.Thread.start, torch.autograd.Function.__dict__["apply"]
    plain = passes(PARTS[0])
    with ThreadPoolExecutor(1) as pool:
        with emulate("H100", "fp16") as run:
            emulated = pool.submit(passes, PARTS[0]).result()
        assert not same(emulated[0], plain[0])
        assert all(map(same, pool.submit(passes, PARTS[0]).result(), plain))
        with run:
            assert all(map(same, pool.submit(passes, PARTS[0]).result(), emulated))
    assert replaced == (threading.Thread.start, torch.autograd.Function.__dict__["apply"])


def test_a_module_in_a_thread_of_before_is_refused(before: ThreadPoolExecutor) -> None:
    with emulate("H100", "fp16"), pytest.raises(LabError, match=r"Sequential is called in thread '.* was there before"):
        before.submit(NET, PARTS[0]).result()
    before.submit(NET, PARTS[0]).result()


def test_each_thread_may_have_a_block_of_its_own(before: ThreadPoolExecutor) -> None:
    """Two are open at once, and the one that was opened first is closed first."""

    def alone(gpu: str) -> list[torch.Tensor]:
        with emulate(gpu, "fp16"):
            return passes(PARTS[0])

    want, entered, left = {gpu: alone(gpu) for gpu in ("H100", "V100")}, threading.Event(), threading.Event()

    def second() -> list[torch.Tensor]:
        with emulate("V100", "fp16"):
            entered.set()
            left.wait(600)
            return passes(PARTS[0])

    with emulate("H100", "fp16"):
        future = before.submit(second)
        assert entered.wait(600)
        got = passes(PARTS[0])
    left.set()
    assert all(map(same, got, want["H100"]))
    assert all(map(same, future.result(), want["V100"]))
    assert not same(want["H100"][0], want["V100"][0])


def test_one_emulation_is_open_in_one_thread(before: ThreadPoolExecutor) -> None:
    run = emulate("H100", "fp16")
    with run, pytest.raises(LabError, match="this emulation is open in another thread"):
        before.submit(run.__enter__).result()


def test_a_backward_pass_may_run_in_any_thread(before: ThreadPoolExecutor) -> None:
    def late(y: torch.Tensor) -> Any:
        return torch.autograd.grad(y.square().sum(), [*NET.parameters(), W])

    with emulate("H100", "fp16"):
        want, y = passes(PARTS[0])[1:], Doubled.apply(NET(PARTS[0]), W) @ W
    assert all(map(same, before.submit(late, y).result(), want))


def test_what_depends_on_the_order_of_products_is_refused_in_threads() -> None:
    with emulate("H100", "e4m3", scaling=AmaxScaling()), ThreadPoolExecutor(1) as pool:
        with pytest.raises(LabError, match=r"addmm in thread 'ThreadPool.*which threads decide anew each time"):
            pool.submit(NET, PARTS[0]).result()
        NET(PARTS[0])


def test_every_product_asks_that_torch_s_idle_threads_leave_it_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(openmp_threads, "hold_team", lambda: asked.append(1))
    with emulate("H100", "fp16") as run:
        passes(PARTS[0])
    assert len(asked) >= sum(row.count for row in run.report().rows) > 0


TEAMS = """
import json, os, time
import torch
from fplab.nn.emulation import openmp_threads

def threads():
    return len(os.listdir("/proc/self/task"))

def until(holds):
    return any(holds() or time.sleep(0.01) for _ in range(3000))

team = torch.get_num_threads()
torch.zeros(team << 16).add_(1)  # torch's own team is there
alone = threads()
there = until(lambda: openmp_threads.hold_team() or threads() == alone + team)
gone = until(lambda: threads() == alone and not openmp_threads.is_held())
print(json.dumps([openmp_threads._spins(), team, there, gone]))
"""


def test_where_there_are_products_is_a_second_team_which_goes_after_them() -> None:
    """GNU OpenMP's idle threads hardly spin where it knows of more threads than cores."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    found = subprocess.run(
        [sys.executable, "-c", TEAMS], env=kept, check=True, capture_output=True, text=True, timeout=600
    )
    spins, team, there, gone = json.loads(found.stdout)
    if not spins or team == 1:
        pytest.skip("torch's threads are not GNU OpenMP's, or one alone")
    assert there
    assert gone
