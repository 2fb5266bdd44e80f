"""Real training on several processes: the bytes each holds, what it sends, and the bits it ends with.

Processes of one machine train a perceptron with plain data parallelism, a parameter server, ZeRO's stages, torch's
own sharding, tensor parallelism and pipelines; the quick size starts three processes and fewer strategies, the full
size four.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..draw.memory import NAMES
from ..hardware.cases import Arrays, Case, philox_bits
from ..hardware.programs import program
from ..words import COMMA, joined, say
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Sample, absent, measured, verdict
from .panels import bars
from .quantities import Columns, beside, equal, of, table

KINDS = ("parameters", "gradients", "states")
STAGES = {"ddp": 0, "parameter-server": 0, "zero1": 1, "zero2": 2, "zero3": 3, "zero-redundancy": 1, "fully-shard": 3}
PARTITIONS = {"zero-redundancy": "tensors", "fully-shard": "rows"}
MODEL_PARALLEL = ("tensor", "gpipe", "1f1b")  # beside the data-parallel ones: every rank has a part of the network
FAR = 1e-6  # about 32 units of the last place of a weight near 1/2
FEW = 1e-3  # of the weights may be farther

# ``strategies``, one after the other, on ``ranks`` processes, for ``steps`` steps of ``batch`` images.
E = Experiment(
    "Parallel training for real",
    "Do real processes hold and send the bytes the calculator says, and end with the bits of one process?",
    budget=5.0,
    full={"strategies": (*STAGES, *MODEL_PARALLEL), "ranks": 4, "steps": 5, "batch": 32},
    quick={"strategies": ("ddp", "parameter-server", "zero1", "zero2", "zero3"), "ranks": 3, "steps": 2, "batch": 33},
)  # fmt: skip


@E.cache
def runs(p: Params) -> dict[str, Any]:
    """What the processes ended with, by strategy; while they start, one process trains on the whole batch."""
    from .. import parallel

    with ThreadPoolExecutor(1) as waiting:
        started = waiting.submit(parallel.launch, p.strategies, p.ranks, **setting(p))
        plain(p)
        return dict(started.result())


@E.cache
def plain(p: Params) -> tuple[np.ndarray, np.ndarray]:
    """Weights and losses of one process on the whole batch."""
    from .. import parallel
    from ..parallel import reference

    return reference.whole(parallel.Setting(p.strategies, p.ranks, **setting(p)))


def setting(p: Params) -> dict[str, Any]:
    """How all train; gloo's order of additions is known."""
    return {"steps": p.steps, "batch": p.batch, "backend": "gloo"}


@E.measure("held", "padding", "estimated", axes={"strategy": "strategies", "rank": "ranks", "kind": KINDS},
           unit="bytes", digested=("held", "estimated"))  # fmt: skip
def held(p: Params, strategy: str, rank: int, kind: str) -> tuple[int, int, int]:
    """What a rank holds beside its padding, its padding, and what it holds by the calculator."""
    of_rank = runs(p)[strategy].ranks[rank]
    padding = of_rank.notes.get("padding", {}).get(kind, 0)
    return of_rank.held[kind] - padding, padding, expected(p, strategy).rank(rank).device[kind]


@E.measure("sent", "reduced", "calculated", axes={"strategy": "strategies"}, unit="bytes", digested=("sent",))
def sent(p: Params, strategy: str) -> tuple[int, int, int]:
    """The messages of a step as rank 0 sends them; those of all-reduces, which send as much again; by the calculator.

    An all-reduce is a reduce-scatter and an all-gather of its message.
    """
    messages = [(m.collective, m.elements * m.width * m.times) for m in runs(p)[strategy].ranks[0].messages]
    reduced = sum(size for name, size in messages if name == "all-reduce") // p.steps
    traffic = expected(p, strategy).fullest.traffic
    return sum(size for _, size in messages) // p.steps, reduced, sum(t.message * t.times for t in traffic)


@E.measure("same_order", "whole", "far", axes={"strategy": "strategies"})
def differing(p: Params, strategy: str) -> tuple[int, int, float]:
    """How many weights differ from one process's in the same order and on the whole batch; the share far from these."""
    from ..parallel import reference

    run, (whole, _) = runs(p)[strategy], plain(p)
    others = (reference.same_sums(run)[0], whole)
    same_order, whole_order = (int((x.view(np.uint32) != run.flat.view(np.uint32)).sum()) for x in others)
    return same_order, whole_order, float(np.mean(np.abs(whole - run.flat) > FAR))


@E.measure("losses", axes={"strategy": "strategies"}, dims=("step",), unit="nats")
def losses(p: Params, strategy: str) -> np.ndarray:
    """The loss of every step."""
    return np.asarray(runs(p)[strategy].losses)


@E.cache
def expected(p: Params, strategy: str) -> Any:
    """The calculator's estimate of a run, an ``Estimate``."""
    from .. import memory
    from ..parallel.model_parallel import COLUMN, ROW
    from ..parallel.task import Network

    run = runs(p)[strategy].setting
    model, n = Network(run).model(), run.ranks
    if strategy == "tensor":  # a layer divided by outputs has a part of its bias, one divided by inputs all of it
        split = {f"{name}.{what}": 0 for name in COLUMN for what in ("weight", "bias")}
        split |= {f"{name}.weight": 1 for name in ROW}
        tensors = [memory.Tensor(name, tuple(p.shape), split.get(name)) for name, p in model.named_parameters()]
        divided = memory.Model("perceptron", (), (tuple(tensors),), ())
        return memory.estimate(divided, gpus=n, tensor=n, precision="fp32")
    how: dict[str, Any] = {"zero": STAGES.get(strategy, 0), "partition": PARTITIONS.get(strategy, "flat")}
    if strategy in MODEL_PARALLEL:
        how |= {"pipeline": n, "schedule": strategy, "micro_batches": run.micro_batches}
    return memory.estimate(model, gpus=n, precision="fp32", **how)


@E.table
def rows(r: Result) -> Columns:
    """A row for each strategy and rank: bytes held by kind, and by the calculator; what it sent; bits against one."""
    kinds = {f"{kind}, {name}": x.sel(kind=kind, drop=True)
             for kind in KINDS for name, x in (("held", r.held), ("estimated", r.estimated))}  # fmt: skip
    of_strategy = {
        "message bytes a step": r.sent,
        "weights that differ from one process in the same order": r.same_order,
        "weights that differ from the whole batch": r.whole,
    }
    return table(**kinds, **of_strategy)


# --- claims -----------------------------------------------------------------------------------------------------
E.claim(
    equal("held_bytes", "every rank holds the bytes that the calculator says", of("held"),
          of("estimated").then("estimated", lambda x: x.where(  # the workers of a parameter server have no states
              (x.strategy != "parameter-server") | (x["rank"] == 0) | (x.kind != "states"), 0))),
)  # fmt: skip


@E.library("ZeRO's messages are the calculator's: stage 3 sends half as much again")
def messages(r: Result) -> Outcome:
    """Stages 1 and 2 send two messages of the model's size where DDP all-reduces one, stage 3 sends three."""
    stages, sizes = ["zero1", "zero2", "zero3"], zip(r.p.strategies, r.sent.values.tolist(), strict=True)
    calculated = (r.sent == r.calculated).sel(strategy=stages).all()
    ratio = float(r.sent.sel(strategy="zero3") / r.sent.sel(strategy="zero2"))
    listed = joined([f"{name} {size:,}" for name, size in sizes], COMMA)
    return verdict(
        bool(calculated) and abs(ratio - 1.5) < 0.01, say("bytes of messages in a step: {sizes}", sizes=listed)
    )


@E.library("every strategy ends with the bits of one process that adds in its order")
def same_bits(r: Result) -> Outcome:
    """In the order in which the processes add, one process ends with the same weights."""
    if r.p.ranks < 3:
        return absent(say("two addends have one sum, whatever the order"))
    wrong = dict(zip(r.p.strategies, r.same_order.values.tolist(), strict=True))
    detail = say("{n:,} weights after {steps} steps: {wrong}", n=plain(r.p)[0].size, steps=r.p.steps)
    return verdict(not any(wrong.values()), detail.fill(wrong=wrong))


@E.measured("training on the whole batch at once is the same but for rounding")
def whole_batch(r: Result) -> Outcome:
    """The whole batch at once is another order of additions: other bits, magnified by Adam where a gradient is near 0.

    The margins: one weight in a thousand farther than 1e-6, losses within 1e-6.
    """
    counts, far = r.whole.values, r.far.values
    near = np.allclose(r.losses.values, plain(r.p)[1], rtol=1e-6, atol=0)
    detail = say("{low} to {high} weights differ, {far:.2%} of all by more than {room:g}; losses within 1e-6",
                 low=counts.min(), high=counts.max(), far=far.max(), room=FAR)  # fmt: skip
    holds = bool(near and counts.min() > 0 and far.max() < FEW)
    return measured(holds, detail, Sample(len(far), float(far.std()), FEW))


E.answer("ranks hold the bytes calculated, with ZeRO-3 {held:.0%} of DDP's; {n:.0f} of {all:,} weights have other "
         "bits", held=lambda r: float(r.held.sel(strategy="zero3").sum() / r.held.sel(strategy="ddp").sum()),
         n=of("same_order").max(), all=lambda r: plain(r.p)[0].size)  # fmt: skip


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


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """The mean of four ranks' gradients in gloo's order, in FP32."""
    gives = {f"chunk {chunk}": "fp32" for chunk in range(RANKS)}
    yield program("mean of four ranks", case_inputs, {"rows": "fp32"}, mean, gives)


# --- figures ----------------------------------------------------------------------------------------------------
def by_process(held: Any) -> Any:
    """A row for each rank of a strategy, kB."""
    names = [f"{strategy}, rank {rank}" for strategy in held.strategy.values for rank in held["rank"].values]
    rows = held.stack(process=("strategy", "rank")).drop_vars(["process", "strategy", "rank"])
    return rows.assign_coords(process=names) / 1e3


E.figure(
    "every_process",
    bars(of("held").then("held", by_process), y="process", hue="kind", stacked=True, names=NAMES, numbers="{:.1f}",
         xlabel="kB", title="What every process holds"),
    size=lambda r: (8, 2 + 0.3 * len(r.p.strategies) * r.p.ranks),
)  # fmt: skip
E.figure(
    "sent_and_ended",
    bars((of("sent") + of("reduced")) / 1e3, y="strategy", numbers="{:.1f}", xlabel="kB a step",
         title="Messages of rank 0, an all-reduce twice: ZeRO-3 sends half as much again"),
    bars(beside("order", {"whole batch at once": of("whole"), "same order of additions": of("same_order")}),
         y="strategy", hue="order", numbers="{:.0f}", xmargin=0.45,
         legend={"loc": "lower right"}, xlabel="weights whose bits differ",
         title="Against one process: the same bits in the same order of additions"),
    size=lambda r: (8, 4 + 0.8 * len(r.p.strategies)),
)  # fmt: skip
