"""The experiment's data: real runs, and the same sums in one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...hardware.cases import Arrays
from ..base import Tick

KINDS = ("parameters", "gradients", "states")
STAGES = {"ddp": 0, "parameter-server": 0, "zero1": 1, "zero2": 2, "zero3": 3, "zero-redundancy": 1, "fully-shard": 3}
PARTITIONS = {"zero-redundancy": "tensors", "fully-shard": "rows"}
MODEL_PARALLEL = ("tensor", "gpipe", "1f1b")  # beside the data-parallel ones: every rank has a part of the network


@dataclass(frozen=True)
class Params:
    """``strategies``, one after the other, on ``ranks`` processes, for ``steps`` steps of ``batch`` images."""

    strategies: tuple[str, ...] = (*STAGES, *MODEL_PARALLEL)
    ranks: int = 4
    steps: int = 5
    batch: int = 32


QUICK = Params(strategies=("ddp", "parameter-server", "zero1", "zero2", "zero3"), ranks=3, steps=2, batch=33)


def run(params: Params, tick: Tick) -> Arrays:
    """Run the processes, then the references.

    ``held``, ``estimated``: int64 (strategy, rank, kind), bytes, padding apart (``padding``, bytes a rank);
    ``sent``, ``said``: the messages of a step in bytes, as sent by rank 0 and as calculated; ``reduced``: those of
    all-reduces, which send as much again; ``same_order``, ``whole``: how many weights differ from one process's;
    ``distance``: the largest such difference, of both.
    """
    from ... import parallel
    from ...parallel import reference

    tick(0.02, f"{params.ranks} processes")
    backend = "gloo"  # whose order of additions is known
    how: dict[str, Any] = {"steps": params.steps, "batch": params.batch, "backend": backend}
    with ThreadPoolExecutor(1) as waiting:  # while the processes start, this one trains on the whole batch
        started = waiting.submit(parallel.launch, params.strategies, params.ranks, **how)
        plain = reference.whole(parallel.Setting(params.strategies, params.ranks, **how))
        results = started.result()
    tick(0.8, "one process")
    return gathered([results[name] for name in params.strategies], *plain)


def gathered(results: list[Any], plain: np.ndarray, losses: np.ndarray) -> Arrays:
    """The arrays of all results, beside the ``plain`` weights and losses of training on the whole batch."""
    from ...parallel import reference

    rows: dict[str, list[Any]] = {
        name: []
        for name in ("held", "estimated", "padding", "sent", "said", "reduced", "same_order", "whole", "distance")
    }
    for one in results:
        wanted = expected(one.setting, one.strategy)
        padding = [[rank.notes.get("padding", {}).get(kind, 0) for kind in KINDS] for rank in one.ranks]
        held = [[rank.held[kind] for kind in KINDS] for rank in one.ranks]
        rows["held"].append(np.array(held) - np.array(padding))
        rows["padding"].append(padding)
        rows["estimated"].append([[wanted.rank(r).device[kind] for kind in KINDS] for r in range(len(one.ranks))])
        sent = [(m.collective, m.elements * m.width * m.times) for m in one.ranks[0].messages]
        rows["sent"].append(sum(size for _, size in sent) // one.setting.steps)
        rows["reduced"].append(sum(size for name, size in sent if name == "all-reduce") // one.setting.steps)
        rows["said"].append(sum(t.message * t.times for t in wanted.fullest.traffic))
        ordered, _ = reference.same_sums(one)
        rows["same_order"].append(int((ordered.view(np.uint32) != one.flat.view(np.uint32)).sum()))
        rows["whole"].append(int((plain.view(np.uint32) != one.flat.view(np.uint32)).sum()))
        rows["distance"].append([np.abs(ordered - one.flat).max(), np.abs(plain - one.flat).max()])
    arrays = {name: np.array(values) for name, values in rows.items()}
    return {**arrays, "losses": np.stack([one.losses for one in results]), "plain_losses": losses,
            "weights": np.array(plain.size)}  # fmt: skip


def expected(setting: Any, strategy: str) -> Any:
    """The calculator's estimate of a run, an ``Estimate``."""
    from ... import memory
    from ...parallel.model_parallel import COLUMN, ROW
    from ...parallel.task import Network

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
