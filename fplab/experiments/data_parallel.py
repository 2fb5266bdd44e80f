"""Real training on several processes: the bytes each holds, what it sends, and the bits it ends with.

Processes of one machine train a perceptron with plain data parallelism, a parameter server, ZeRO's stages, torch's
own sharding, tensor parallelism and pipelines; the quick size starts three processes and fewer strategies, the full
size four.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import draw
from ..hardware.cases import Arrays, Case, philox_bits
from ..hardware.programs import program
from ..words import COMMA, joined, say
from .base import Claims, Columns, Digested, Experiment, Tick
from .outcomes import Outcome, Sample, absent, failed, measured, passed, verdict

KINDS = ("parameters", "gradients", "states")
STAGES = {"ddp": 0, "parameter-server": 0, "zero1": 1, "zero2": 2, "zero3": 3, "zero-redundancy": 1, "fully-shard": 3}
PARTITIONS = {"zero-redundancy": "tensors", "fully-shard": "rows"}
MODEL_PARALLEL = ("tensor", "gpipe", "1f1b")  # beside the data-parallel ones: every rank has a part of the network
FAR = 1e-6  # about 32 units of the last place of a weight near 1/2
FEW = 1e-3  # of the weights may be farther


@dataclass(frozen=True)
class Params:
    """``strategies``, one after the other, on ``ranks`` processes, for ``steps`` steps of ``batch`` images."""

    strategies: tuple[str, ...] = (*STAGES, *MODEL_PARALLEL)
    ranks: int = 4
    steps: int = 5
    batch: int = 32


QUICK = Params(strategies=("ddp", "parameter-server", "zero1", "zero2", "zero3"), ranks=3, steps=2, batch=33)


@dataclass(frozen=True)
class Result:
    """``held``, ``estimated``: int64 (strategy, rank, kind), bytes, ``padding`` apart; ``sent``, ``said``: the messages
    of a step in bytes, as sent by rank 0 and as calculated; ``reduced``: those of all-reduces, which send as much
    again; ``same_order``, ``whole``: how many of the ``weights`` differ from one process's; ``far``: the share
    of them that is more than ``FAR`` from the whole batch's; ``losses`` (strategy, step), ``plain_losses``: of one
    process on the whole batch.
    """

    params: Params
    held: Digested
    estimated: Digested
    padding: np.ndarray
    sent: Digested
    said: np.ndarray
    reduced: np.ndarray
    same_order: np.ndarray
    whole: np.ndarray
    far: np.ndarray
    losses: np.ndarray
    plain_losses: np.ndarray
    weights: np.ndarray


def run(params: Params, tick: Tick) -> Result:
    """Run the processes, then the references."""
    from .. import parallel
    from ..parallel import reference

    tick(0.02, f"{params.ranks} processes")
    backend = "gloo"  # whose order of additions is known
    how: dict[str, Any] = {"steps": params.steps, "batch": params.batch, "backend": backend}
    with ThreadPoolExecutor(1) as waiting:  # while the processes start, this one trains on the whole batch
        started = waiting.submit(parallel.launch, params.strategies, params.ranks, **how)
        plain, losses = reference.whole(parallel.Setting(params.strategies, params.ranks, **how))
        ended = started.result()
    tick(0.8, "one process")
    return gathered(params, [ended[name] for name in params.strategies], plain, losses)


def gathered(params: Params, results: list[Any], plain: np.ndarray, losses: np.ndarray) -> Result:
    """All strategies' runs, beside the ``plain`` weights and losses of training on the whole batch."""
    columns = zip(*(of_strategy(one, plain) for one in results), strict=True)
    arrays = [*map(np.array, columns), np.stack([one.losses for one in results]), losses, np.array(plain.size)]
    return Result(params, *arrays)


def of_strategy(one: Any, plain: np.ndarray) -> tuple[Any, ...]:
    """The fields of a result from ``held`` to ``far`` for one strategy's run."""
    from ..parallel import reference

    wanted, steps = expected(one.setting, one.strategy), one.setting.steps
    padding = np.array([[rank.notes.get("padding", {}).get(kind, 0) for kind in KINDS] for rank in one.ranks])
    held = np.array([[rank.held[kind] for kind in KINDS] for rank in one.ranks]) - padding
    estimated = [[wanted.rank(r).device[kind] for kind in KINDS] for r in range(len(one.ranks))]
    sent = [(m.collective, m.elements * m.width * m.times) for m in one.ranks[0].messages]
    said = sum(t.message * t.times for t in wanted.fullest.traffic)
    ordered, _ = reference.same_sums(one)
    others = (ordered, plain)
    return (
        held, estimated, padding, sum(size for _, size in sent) // steps, said,
        sum(size for name, size in sent if name == "all-reduce") // steps,
        *(int((other.view(np.uint32) != one.flat.view(np.uint32)).sum()) for other in others),
        float(np.mean(np.abs(plain - one.flat) > FAR)),
    )  # fmt: skip


def expected(setting: Any, strategy: str) -> Any:
    """The calculator's estimate of a run, an ``Estimate``."""
    from .. import memory
    from ..parallel.model_parallel import COLUMN, ROW
    from ..parallel.task import Network

    model, n = Network(setting).model(), setting.ranks
    if strategy == "tensor":  # a layer divided by outputs has a part of its bias, one divided by inputs all of it
        split = {f"{name}.{what}": 0 for name in COLUMN for what in ("weight", "bias")}
        split |= {f"{name}.weight": 1 for name in ROW}
        tensors = [memory.Tensor(name, tuple(p.shape), split.get(name)) for name, p in model.named_parameters()]
        divided = memory.Model("perceptron", (), (tuple(tensors),), ())
        return memory.estimate(divided, gpus=n, tensor=n, precision="fp32")
    how: dict[str, Any] = {"zero": STAGES.get(strategy, 0), "partition": PARTITIONS.get(strategy, "flat")}
    if strategy in MODEL_PARALLEL:
        how |= {"pipeline": n, "schedule": strategy, "micro_batches": setting.micro_batches}
    return memory.estimate(model, gpus=n, precision="fp32", **how)


def rows(result: Result) -> Columns:
    """A row for each strategy and rank: bytes held by kind, and by the calculator; what it sent; bits against one."""
    strategies = result.params.strategies
    places = [(s, r) for s in range(len(strategies)) for r in range(result.params.ranks)]
    columns: dict[str, list[object]] = {"strategy": [strategies[s] for s, _ in places], "rank": [r for _, r in places]}
    for k, kind in enumerate(KINDS):
        columns[f"{kind}, held"] = [int(result.held[s, r, k]) for s, r in places]
        columns[f"{kind}, estimated"] = [int(result.estimated[s, r, k]) for s, r in places]
    columns["message bytes a step"] = [int(result.sent[s]) for s, _ in places]
    columns["weights that differ from one process in the same order"] = [int(result.same_order[s]) for s, _ in places]
    columns["weights that differ from the whole batch"] = [int(result.whole[s]) for s, _ in places]
    return columns


# --- claims -----------------------------------------------------------------------------------------------------

CLAIMS = Claims()


@CLAIMS.library("every rank holds the bytes that the calculator says")
def held_bytes(result: Result) -> Outcome:
    """Every rank, every kind; the workers of a parameter server have no states."""
    strategies, wanted = result.params.strategies, result.estimated.copy()
    if "parameter-server" in strategies:
        wanted[strategies.index("parameter-server"), 1:, KINDS.index("states")] = 0
    for s, r, k in np.argwhere(result.held != wanted):
        other = say("{strategy}, rank {rank}: {kind} {held}, not {wanted}", strategy=strategies[s], rank=r)
        return failed(other.fill(kind=KINDS[k], held=result.held[s, r, k], wanted=wanted[s, r, k]))
    said = say("{strategies} strategies, {ranks} ranks, {numbers} numbers; padding {padding} bytes")
    return passed(said.fill(strategies=len(strategies), ranks=result.params.ranks, numbers=wanted.size,
                            padding=int(result.padding.sum())))  # fmt: skip


@CLAIMS.library("ZeRO's messages are the calculator's: stage 3 sends half as much again")
def messages(result: Result) -> Outcome:
    """Stages 1 and 2 send two messages of the model's size where DDP all-reduces one, stage 3 sends three."""
    sent = dict(zip(result.params.strategies, result.sent.tolist(), strict=True))
    for name, said in zip(sent, result.said.tolist(), strict=True):
        if name in ("zero1", "zero2", "zero3") and sent[name] != said:
            other = say("{name}: {sent:,} bytes in a step, calculated {said:,}", name=name, sent=sent[name], said=said)
            return failed(other)
    if {"zero2", "zero3"} <= sent.keys() and abs(sent["zero3"] / sent["zero2"] - 1.5) > 0.01:
        return failed(say("zero3 sends {ratio:.3f} times what zero2 sends", ratio=sent["zero3"] / sent["zero2"]))
    listed = joined([f"{name} {size:,}" for name, size in sent.items()], COMMA)
    return passed(say("bytes of messages in a step: {sizes}", sizes=listed))


@CLAIMS.library("every strategy ends with the bits of one process that adds in its order")
def same_bits(result: Result) -> Outcome:
    """In the order in which the processes add, one process ends with the same weights."""
    if result.params.ranks < 3:
        return absent(say("two addends have one sum, whatever the order"))
    wrong = dict(zip(result.params.strategies, result.same_order.tolist(), strict=True))
    said = say("{n:,} weights after {steps} steps: {wrong}", n=int(result.weights), steps=result.params.steps)
    return verdict(not any(wrong.values()), said.fill(wrong=wrong))


@CLAIMS.measured("training on the whole batch at once is the same but for rounding")
def whole_batch(result: Result) -> Outcome:
    """The whole batch at once is another order of additions: other bits, magnified by Adam where a gradient is near 0.

    The margins: one weight in a thousand farther than 1e-6, losses within 1e-6.
    """
    counts, far = result.whole, result.far
    near = np.allclose(result.losses, result.plain_losses, rtol=1e-6, atol=0)
    said = say("{low} to {high} weights differ, {far:.2%} of all by more than {room:g}; losses within 1e-6",
               low=counts.min(), high=counts.max(), far=far.max(), room=FAR)  # fmt: skip
    holds = bool(near and counts.min() > 0 and far.max() < FEW)
    return measured(holds, said, Sample(len(far), float(far.std()), FEW))


# --- what a GPU must compute ------------------------------------------------------------------------------------

RANKS, ELEMENTS = 4, 4096


def case_inputs() -> Arrays:
    """FP32 between 2^-8 and 2^8, of both signs."""
    raw = philox_bits(11, RANKS * ELEMENTS)
    codes = (raw & np.uint32(0x807FFFFF)) | ((np.uint32(119) + (raw >> np.uint32(23)) % np.uint32(16)) << np.uint32(23))
    return {"rows": codes.reshape(RANKS, ELEMENTS)}


def mean(rows: Any) -> dict[str, Any]:
    """Each rank's share divided, then added chunk by chunk in gloo's order."""
    from ..parallel import gloo

    rows, chunk_of = rows / RANKS, gloo.chunks(ELEMENTS, RANKS)
    sums = {}
    for chunk in range(RANKS):
        first, *others = gloo.order(chunk, RANKS)
        place = np.flatnonzero(chunk_of == chunk)
        here = slice(int(place[0]), int(place[-1]) + 1)
        total = rows[first][here]
        for rank in others:
            total = total + rows[rank][here]
        sums[f"chunk {chunk}"] = total
    return sums


def cases(params: Params) -> Iterator[Case]:
    """The mean of four ranks' gradients in gloo's order, in FP32."""
    gives = {f"chunk {chunk}": "fp32" for chunk in range(RANKS)}
    yield program("mean of four ranks", case_inputs, {"rows": "fp32"}, mean, gives)


# --- figures ----------------------------------------------------------------------------------------------------


def held(result: Result) -> draw.Figure:
    """Bytes of every rank by strategy."""
    from ..draw.memory import kind_patches, stacked_bytes

    strategies, ranks = result.params.strategies, range(result.params.ranks)
    figure = draw.new_figure(8, 2 + 0.3 * len(strategies) * len(ranks))
    ax = figure.subplots()
    bars = {
        f"{name}, rank {r}": dict(zip(KINDS, result.held[s, r].tolist(), strict=True))
        for s, name in enumerate(strategies)
        for r in ranks
    }
    stacked_bytes(ax, bars)
    ax.set_title("What every process holds")
    figure.legend(handles=kind_patches(KINDS), loc="outside lower left", ncols=3)
    return figure


def sent_and_ended(result: Result) -> draw.Figure:
    """Messages, and how far the weights are from those of one process."""
    figure = draw.new_figure(8, 3 + 0.7 * len(result.params.strategies))
    messages, bits = figure.subplots(2, 1)
    y, once, again = np.arange(len(result.params.strategies)), result.sent / 1e3, result.reduced / 1e3
    color = draw.look(0).color
    messages.barh(y, once, height=0.6, color=color, alpha=0.8, label="as rank 0 calls them")
    # An all-reduce is a reduce-scatter and an all-gather of its message.
    label = "again: the second half of an all-reduce"
    bars = messages.barh(y, again, height=0.6, left=once, color=color, alpha=0.35, label=label)
    messages.bar_label(bars, [f"{total:.1f}" for total in once + again], padding=4, fontsize=9)
    messages.set(xlim=(0, 1.2 * (once + again).max()), xlabel="kB a step", title="Messages")
    total = int(result.weights)
    series = ((result.whole, "whole batch at once"), (result.same_order, "same order of additions"))
    for i, (counts, label) in enumerate(series):
        bars = bits.barh(
            y + 0.3 * i - 0.15, 100 * counts / total, height=0.28, color=draw.look(1 - i).color, label=label
        )
        bits.bar_label(bars, [f"{n:,}" if n else "0: every bit" for n in counts], padding=4, fontsize=9)
    bits.set(xlim=(0, 1.6 * max(1.0, 100 * result.whole.max() / total)),
             xlabel=f"weights that differ, of {total:,} (%)", title="Bits against one process")  # fmt: skip
    for ax in (messages, bits):
        ax.set_yticks(y, result.params.strategies)
        ax.set_ylim(len(y) + 0.8, -0.6)
        ax.grid(axis="y", visible=False)
        ax.legend(loc="lower right", facecolor=draw.current().background, fontsize=9)
    return figure


EXPERIMENT = Experiment(
    title=say("Parallel training for real"),
    question=say(
        "Do real processes hold and send the bytes the calculator says, and end with the bits of one process?"
    ),
    budget=5.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(held, sent_and_ended), cases=cases,
)  # fmt: skip
