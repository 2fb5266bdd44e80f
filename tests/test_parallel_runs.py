"""Real runs of 2 and 4 processes: bytes against the calculator, bits against one process, and what can go wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import refusals
import torch
from pictures import of_class, text_of
from refusals import refuses
from zero_traces import settled

from fplab import memory, parallel
from fplab.errors import LabError
from fplab.experiments import data_parallel
from fplab.experiments.outcomes import Status
from fplab.lab import free_port
from fplab.memory.models import Model, Tensor
from fplab.parallel import launching, reference, schedules
from fplab.parallel.launching import command, environment, finish, runs_here
from fplab.parallel.run import backend
from fplab.parallel.settings import Result, Setting, read
from fplab.parallel.task import Network
from fplab.widgets import zero

NAMES = ("ddp", "parameter-server", "zero1", "zero2", "zero3", "zero-redundancy", "fully-shard", "tensor", "gpipe",
         "1f1b")  # fmt: skip
EVERY = [(n, 2) for n in (*NAMES, "interleaved")] + [(n, 4) for n in NAMES]
ZERO = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "zero-redundancy": 1, "fully-shard": 3}


class Ended(dict[tuple[str, int], Result]):
    """Every strategy once, on as many processes as are asked for."""

    def __missing__(self, key: tuple[str, int]) -> Result:
        names = [name for name, ranks in EVERY if ranks == key[1]]
        self.update({(name, key[1]): one for name, one in parallel.launch(names, key[1], backend="gloo").items()})
        return self[key]


@pytest.fixture(scope="module")
def runs() -> Ended:
    return Ended()


@pytest.mark.parametrize(("name", "ranks"), EVERY)
def test_weights_and_losses_are_those_of_one_process_to_the_bit(runs, name: str, ranks: int) -> None:
    one = runs[name, ranks]
    weights, losses = reference.same_sums(one)
    assert np.array_equal(one.flat.view(np.uint32), weights.view(np.uint32))
    assert list(one.losses) == list(losses)


@pytest.mark.parametrize(("name", "ranks"), EVERY)
def test_the_whole_batch_in_one_process_differs_in_the_last_bits_only(runs, name: str, ranks: int) -> None:
    one = runs[name, ranks]
    weights, losses = reference.whole(one.setting)
    far = np.abs(one.flat - weights)
    assert 0 < far.max() < 1e-6
    assert np.allclose(one.losses, losses, rtol=1e-6, atol=0)


@pytest.mark.parametrize("ranks", [2, 4])
def test_where_tensor_parallel_adds_a_bias_is_part_of_the_order(runs, ranks: int) -> None:
    """torch's ranks each add bias / ranks before the all-reduce; once after it, as Megatron does, gives other bits."""
    one = runs["tensor", ranks]
    after, _ = reference.split_products(one.setting, bias_after=True)
    differ = one.flat.view(np.uint32) != after.view(np.uint32)
    assert 0 < np.abs(one.flat - after).max() < 1e-6
    assert differ.mean() > 0.02


@pytest.fixture(scope="module")
def three() -> dict[str, Result]:
    return parallel.launch(("ddp", "zero1", "zero2", "zero3", "fully-shard"), 3, batch=33, steps=2, backend="gloo")


def test_on_three_ranks_it_matters_where_gradients_are_divided(three) -> None:
    """DDP divides before the sum and fully_shard after it: a third is not exact, as a half and a quarter are."""
    for name, one in three.items():
        assert np.array_equal(one.flat.view(np.uint32), reference.same_sums(one)[0].view(np.uint32)), name
    rows = reference.by_gloo(reference.row_layers(three["fully-shard"].setting))
    before, after = (reference.shares(three["ddp"].setting, rows, divide_after=after)[0] for after in (False, True))
    assert np.array_equal(after, three["fully-shard"].flat)
    assert 0 < np.abs(after - before).max() < 1e-6


def test_order_matters_from_four_ranks_on(runs) -> None:
    """Two addends have one sum; four are added by a parameter server and by gloo in different orders."""
    two, four = ([runs[name, n].flat for name in ("ddp", "parameter-server", "zero3")] for n in (2, 4))
    assert all(np.array_equal(two[0], other) for other in two)
    assert not np.array_equal(four[0], four[1])
    assert not np.array_equal(four[0], four[2])  # other messages, so other chunks


# --- bytes ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ZERO)
def test_bytes_of_every_rank_are_the_calculators(runs, name: str, ranks: int) -> None:
    partition = {"zero-redundancy": "tensors", "fully-shard": "rows"}.get(name, "flat")
    model = Network(runs[name, ranks].setting).model()
    wanted = memory.estimate(model, gpus=ranks, zero=ZERO[name], partition=partition, precision="fp32")
    for rank in runs[name, ranks].ranks:
        padding = rank.notes.get("padding", {})
        device = wanted.rank(rank.rank).device
        for kind, held in rank.held.items():
            assert held - padding.get(kind, 0) == device[kind], (rank.rank, kind)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_parameter_server_has_the_states_alone(runs, ranks: int) -> None:
    assert [r.held["states"] for r in runs["parameter-server", ranks].ranks] == [36176] + [0] * (ranks - 1)


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_of_tensor_parallel_ranks(runs, ranks: int) -> None:
    """Columns divide weight and bias, rows the weight alone."""
    split = {"0.weight": 0, "0.bias": 0, "2.weight": 1, "4.weight": 0, "4.bias": 0, "6.weight": 1}
    named = Network(runs["tensor", ranks].setting).model().named_parameters()
    tensors = tuple(Tensor(name, tuple(p.shape), split.get(name)) for name, p in named)
    wanted = memory.estimate(Model("perceptron", (), (tensors,), ()), gpus=ranks, tensor=ranks, precision="fp32")
    for rank in runs["tensor", ranks].ranks:
        assert all(held == wanted.fullest.device[kind] for kind, held in rank.held.items())


@pytest.mark.parametrize(("name", "ranks"), [("gpipe", 2), ("1f1b", 2), ("interleaved", 2), ("gpipe", 4), ("1f1b", 4)])
def test_a_stage_holds_its_layers_and_the_micro_batches_of_the_timeline(runs, name: str, ranks: int) -> None:
    one = runs[name, ranks]
    how: dict[str, Any] = {"micro_batches": 4, "chunks": 2 if name == "interleaved" else 1}
    model = Network(one.setting).model()
    wanted = memory.estimate(model, gpus=ranks, pipeline=ranks, precision="fp32", schedule=name, **how)
    flights = schedules.timeline(name, ranks, **how).in_flight()
    for rank in one.ranks:
        assert all(held == wanted.stages[rank.rank].device[kind] for kind, held in rank.held.items())
        assert rank.notes["in_flight"] == flights[rank.rank]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["ddp", "zero1", "zero2", "zero3"])
def test_messages_are_the_calculators(runs, name: str, ranks: int) -> None:
    """Each collective's bytes in a step, padding included: two messages of the model's size, three for stage 3."""
    one = runs[name, ranks]
    wanted = memory.estimate(Network(one.setting).model(), gpus=ranks, zero=ZERO[name], precision="fp32")
    for rank in one.ranks:
        sent: dict[str, int] = {}
        for m in rank.messages:
            sent[m.collective] = sent.get(m.collective, 0) + m.elements * m.width * m.times
        if name == "ddp":  # a bucket has no padding, and the ring's pieces are then uneven
            sent["all-reduce"] += -one.flat.size % ranks * 4 * one.setting.steps
        traffic = {t.collective: t.message * t.times for t in wanted.fullest.traffic}
        assert sent == {kind: size * one.setting.steps for kind, size in traffic.items()}


def test_fully_shard_sends_what_stage_3_sends_and_pads_rows(runs) -> None:
    ours, torchs = ([(m.collective, m.times) for m in runs[n, 4].ranks[0].messages] for n in ("zero3", "fully-shard"))
    assert ours == torchs
    assert {m.elements for m in runs["fully-shard", 4].ranks[0].messages} == {2080, 1056, 396}
    assert {m.elements for m in runs["zero3", 4].ranks[0].messages} == {2080, 1056, 332}


# --- several nodes, GPUs ----------------------------------------------------------------------------------------------
def test_two_nodes_are_one_run(runs, tmp_path: Path) -> None:
    """The command that the script's help gives for several nodes, with both nodes on this machine."""
    port = free_port(20_000 + os.getpid() % 10_000)  # below those that the system hands out to others meanwhile
    start = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=0",
             "--local-addr=127.0.0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
             "--rdzv-conf=join_timeout=60", "-m", "fplab.parallel.run"]  # fmt: skip
    script = ["--strategy", "zero3", "--ranks", "2", "--backend", "gloo", "--folder", str(tmp_path)]
    nodes = [subprocess.Popen([*start, *script], env=environment(), stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [node.wait() for node in nodes] == [0, 0]
    for rank in range(2):
        weights, other = (one.weights for one in (read(tmp_path, "zero3", rank), runs["zero3", 2].ranks[rank]))
        assert {name: w.tobytes() for name, w in weights.items()} == {name: w.tobytes() for name, w in other.items()}


def test_nccl_is_taken_where_every_process_has_a_gpu(tmp_path: Path) -> None:
    assert [backend(None, gpus, 4) for gpus in (0, 3, 4, 8)] == ["gloo", "gloo", "nccl", "nccl"]
    assert backend("gloo", 8, 4) == "gloo"
    assert backend("nccl", 4, 4) == "nccl"
    refuses(lambda: backend("nccl", 3, 4), r"backend='nccl' needs a GPU for each of 4 processes; this node has 3.")


@pytest.mark.skipif(torch.cuda.device_count() >= 2, reason="two GPUs are present")
def test_nccl_without_gpus_is_refused(tmp_path: Path) -> None:
    text = fails(command(Setting(("ddp",), 2, backend="nccl"), tmp_path), tmp_path)
    assert text.startswith("backend='nccl' needs a GPU for each of 2 processes; this node has ")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs two GPUs")
def test_nccl_holds_the_same_bytes_and_learns_the_same(runs) -> None:
    found = parallel.launch((*NAMES, "interleaved"), 2, backend="nccl")
    for name, one in found.items():
        assert [rank.held for rank in one.ranks] == [rank.held for rank in runs[name, 2].ranks], name
        assert np.allclose(one.losses, runs[name, 2].losses, rtol=1e-4), name
    with pytest.raises(LabError, match="the order of additions of 'nccl' is not known; run with backend='gloo'"):
        reference.same_sums(found["ddp"])


# --- the experiment ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_claim_of_the_full_experiment_holds_for_these_runs(runs, ranks: int) -> None:
    result = data_parallel.E.result(replace(data_parallel.E.full, ranks=ranks, steps=3))
    assert set(result.p.strategies) == set(NAMES)
    ended = {name: runs[name, ranks] for name in result.p.strategies}
    whole = reference.whole(ended["ddp"].setting)
    result.p._kept.update({("runs",): ended, ("plain",): whole})
    for claim in data_parallel.E.claims:
        outcome = claim.test(result)
        unseen = ranks == 2 and str(outcome.detail) == "two addends have one sum, whatever the order"
        assert outcome.status is (Status.ABSENT if unseen else Status.PASS), outcome.detail
    sent = result.sent.to_series()
    reduced = result.reduced.to_series()
    assert sent["ddp"] == reduced["ddp"] == 4 * 4522  # once as called, and once more: an all-reduce has two halves
    assert 0 < reduced["tensor"] <= sent["tensor"]
    assert not reduced[["parameter-server", "zero1", "zero2", "zero3", "fully-shard", "1f1b"]].any()
    held = result.held.copy()
    held[-1, 1, 0] += 4
    detail = str(data_parallel.E.claims[0].test(result.replace(held=held)).detail)
    assert "strategy 1f1b, rank 1, kind parameters" in detail


# --- what can go wrong ------------------------------------------------------------------------------------------------
def left_over(folder: Path) -> list[int]:
    """Processes of a run that are still alive."""
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and runs_here(int(p.name), folder)]


PATIENCE = 60.0  # seconds for what takes ten on a machine that has nothing else to do


def fails(
    arguments: list[str], folder: Path, limit: float = PATIENCE, meanwhile: Callable[[Path], None] | None = None
) -> str:
    """The error of a run that fails; nothing is left running."""
    if meanwhile is not None:
        threading.Thread(target=meanwhile, args=(folder,), daemon=True).start()
    with pytest.raises(LabError) as failed:
        finish(arguments, folder, limit)
    assert left_over(folder) == []
    return str(failed.value)


@pytest.mark.parametrize("forks", [True, False])
def test_a_rank_that_dies_is_named(forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the other wait in vain for it: that would be said instead."""
    monkeypatch.setattr(launching, "FORKS", forks and launching.FORKS)  # torchrun where not
    text = fails(command(Setting(("ddp",), 2, dies=1), tmp_path), tmp_path)
    assert text == "rank 1 died (SIGKILL); the other processes were ended. Nothing of this run is kept."


def test_a_rank_that_dies_as_it_writes_its_number_hides_no_error(tmp_path: Path) -> None:
    (tmp_path / "pid.1").touch()
    died = [sys.executable, "-c", "print('ValueError: why'); raise SystemExit(1)"]
    assert "why" in fails(died, tmp_path)


FAILED = """  rank      : {0} (local_rank: {0})
  exitcode  : {1} (pid: 4711)
"""


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ([(1, -9), (0, 1)], "rank 1 died (SIGKILL)"),  # torchrun found both ended, and takes the first it looks at
        ([(1, -15), (0, 1)], "rank 0 failed: ValueError: why"),  # which torchrun ended
        ([(0, 1), (1, -15)], "rank 1 died (SIGTERM)"),
    ],
)
def test_who_began_is_told_from_who_missed_it(ends: list[tuple[int, int]], text: str, tmp_path: Path) -> None:
    others, cause = (FAILED.format(*end) for end in ends)
    log = f"ValueError: why\nOther Failures:\n[1]:\n{others}Root Cause (first observed failure):\n[0]:\n{cause}"
    assert launching.reason(tmp_path, log, 1).startswith(text)


def numbers(folder: Path) -> list[int]:
    """The processes of a run that have written down their numbers."""
    return [int(text) for path in folder.glob("pid.*") if (text := path.read_text(encoding="utf-8"))]


def working(folder: Path) -> list[int]:
    """The two processes of a run, once they are there."""
    until = time.monotonic() + PATIENCE
    while len(found := numbers(folder)) < 2:
        assert time.monotonic() < until, f"{len(found)} of 2 processes began"
        time.sleep(0.1)
    return found


def parent(number: int) -> int:
    """The process that started one."""
    return int(Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def test_ranks_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    text = fails(
        command(Setting(("hang",), 2), tmp_path), tmp_path,
        meanwhile=lambda folder: os.kill(parent(working(folder)[0]), signal.SIGKILL),
    )  # fmt: skip
    assert text == "the process that starts the ranks died (SIGKILL); its processes were ended."


def test_a_launcher_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(tmp_path)], env=environment())
    ranks = working(tmp_path)
    starter = parent(ranks[0])
    launcher.kill()
    launcher.wait()
    patience = time.monotonic() + PATIENCE
    while (alive := [n for n in (*ranks, starter) if runs_here(n, tmp_path)]) and time.monotonic() < patience:
        time.sleep(0.1)
    assert alive == []


LAUNCHER = """
import sys
from pathlib import Path
from fplab.parallel.launching import command, finish
from fplab.parallel.settings import Setting
folder = Path(sys.argv[1])
finish(command(Setting(("hang",), 2), folder), folder, 600)
"""


def test_a_world_of_another_size_is_refused(tmp_path: Path) -> None:
    text = fails(command(Setting(("ddp",), 4), tmp_path, processes=2), tmp_path)
    assert text.startswith("the world has 2 processes and the setting says ranks=4; start it with torchrun")


def test_a_run_that_hangs_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 100.0 if len(numbers(tmp_path)) == 2 else 0.0, sleep=time.sleep)
    monkeypatch.setattr(launching, "time", clock)  # the limit is over once both processes hang
    text = fails(command(Setting(("hang",), 2), tmp_path), tmp_path, limit=6)
    assert text == "the run did not end within limit=6 seconds; all of its processes were killed."


def test_a_port_in_use_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(launching, "finish", None)  # no process is started
        with pytest.raises(LabError, match=rf"port={port} cannot be taken \(Address already in use\)") as refused:
            parallel.launch("ddp", 2, port=port)
    assert str(refused.value).startswith("fplab.parallel.launch('ddp', 2, port=")


def test_a_port_that_is_taken_in_the_meantime_is_named_too(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        text = fails(command(Setting(("ddp",), 2), tmp_path, port=other.getsockname()[1]), tmp_path)
    assert text == "the port is in use; give another, or none, and a free one is found."


def test_without_torchrun_it_says_how_to_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fplab.parallel.run", "--strategy", "zero3", "--ranks", "4", "--folder", str(tmp_path)],
        capture_output=True, text=True, env={k: v for k, v in environment().items() if k != "WORLD_SIZE"}, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "fplab: no WORLD_SIZE: start this with torchrun --nproc-per-node 4 -m fplab.parallel.run ..."
    )


test_refusals = refusals.saying(
    (lambda: parallel.launch("zero4"), "unknown strategy 'zero4'. Allowed: ddp,"),
    (lambda: parallel.launch([]), "no strategy to run; allowed: ddp, parameter-server, "),
    (lambda: parallel.launch("ddp", rank=2), "unknown setting 'rank'. Allowed: steps, batch, micro_batches, seed, "),
    (lambda: parallel.launch("ddp", limit=float("nan")), "limit=nan is not possible; allowed: a positive number"),
    (lambda: parallel.launch("ddp", lr="a"), "lr='a' is no learning rate; allowed: a positive number."),
    (lambda: parallel.launch("ddp", seed=-1), "seed=-1 is not possible; allowed: 0 to "),
    (lambda: parallel.launch("ddp", 0), "ranks=0 is not possible; allowed: 1 to 64."),
    (lambda: parallel.launch("ddp", 3), "batch=32 does not divide into 3 equal parts, as ddp needs."),
    (lambda: parallel.launch("tensor", 3), "ranks=3 does not divide the layers' width of 32"),
    (lambda: parallel.launch("gpipe", 8), "gpipe on ranks=8 makes 8 stages of 4 layers; allowed: 1, 2, 4."),
    (lambda: parallel.launch("interleaved", 2, micro_batches=1), "interleaved takes micro-batches in groups of 2"),
    (lambda: parallel.launch("ddp", 2, backend="mpi"), "unknown backend 'mpi'. Allowed: gloo, nccl."),
    (lambda: parallel.launch("ddp", 2, port=0), "port=0 is not possible; allowed: 1 to 65535."),
)  # fmt: skip


# --- ZeRO, act by act -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_widget_shows_what_three_processes_did(three, stage: int) -> None:
    """Its recorded acts are those of the code as it is, on every rank; what is held at the update was counted."""
    ranks, acts = zero.trace(stage)
    run = three[f"zero{stage}"]
    assert ranks == len(run.ranks)
    for one in run.ranks:
        rows = settled(one.notes["trace"])
        assert rows == [list(act) for act in acts]
        at_update = next(held for _, act, _, held in rows if act == "update")
        sums = [4 * sum(row[kind] for row in at_update) for kind in range(3)]
        assert dict(one.held) == dict(zip(("parameters", "gradients", "states"), sums, strict=True))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_messages_of_the_acts_are_those_that_were_sent(three, stage: int) -> None:
    _, acts = zero.trace(stage)
    sizes = [max(act.held[i][0] for act in acts) for i in range(4)]
    for kind in ("all-gather", "reduce-scatter"):
        sent = 4 * sum(sizes[act.layer] for act in acts if act.what == kind)
        assert three[f"zero{stage}"].ranks[0].sent[kind] == 2 * sent  # of two steps


def test_a_moment_of_zero_is_drawn_for_every_rank() -> None:
    """Stage 3 at the third layer's gradient: all have that layer whole, and one piece of every other."""
    drawn = zero.render(zero.State(3, 19))
    assert len(of_class(drawn, "touched")) == 3
    assert len(of_class(drawn, "held")) == 3 * (3 + 3 * 1) + 3 * (3 + 1)  # parameters; gradients of two layers
    assert "each rank holds 13,512 bytes: parameters 8,848, gradients 4,664, states 0" in text_of(drawn)
    assert len(of_class(drawn, "moment")) == len(zero.trace(3)[1])
    assert zero.render(zero.State(1, 40)) == zero.render(zero.State(1, 20))
    assert zero.moved(zero.State(1, 40), -1).moment == 19
    refuses(lambda: zero.widget(4), "stage=4 is not possible; allowed: 1 to 3")
