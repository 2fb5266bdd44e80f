"""Claims about several devices: collectives, replicas, split matrices, stages, shards."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import seeds
from ..floats import quantize
from ..memory import estimate
from ..parallel import collectives, schedules
from ..tensorcore import matmul
from ..words import Text, say
from .base import Part, beside, equal, part, tries, untried

RANKS = 4
ZERO = ((2, 2, 4, 8), (2, 2, 1, 2), (2, 0.5, 1, 2), (0.5, 0.5, 1, 2))  # bytes a parameter on 4 ranks, by stage


def buffers() -> np.ndarray:
    """A row of small whole numbers for each rank, so that sums are exact."""
    return np.arange(RANKS * 8, dtype=np.float32).reshape(RANKS, 8)


@tries("collectives")
def the_collectives() -> Iterator[Part]:
    """Every message of each collective, executed on four ranks."""
    x, total, own = buffers(), buffers().sum(0), collectives.bounds(8, RANKS)
    after = {
        c.__name__: collectives.execute(c(RANKS), x)
        for c in (collectives.broadcast, collectives.reduce, collectives.reduce_scatter, collectives.all_reduce)
    }
    gathered = collectives.execute(collectives.all_gather(RANKS), after["reduce_scatter"])
    scattered = all((after["reduce_scatter"][(c - 1) % RANKS, a:b] == total[a:b]).all() for c, (a, b) in enumerate(own))
    yield holds(say("broadcast: rank 0's data everywhere"), bool((after["broadcast"] == x[0]).all()))
    yield holds(say("reduce: the sum on one rank"), bool((after["reduce"][0] == total).all()))
    yield holds(say("reduce-scatter: a part of the sum on each"), bool(scattered))
    yield holds(say("all-gather: every part on each"), bool((gathered == total).all()))
    yield holds(say("all-reduce: the sum on each"), bool((after["all_reduce"] == total).all()))


@tries("extrema")
def extrema() -> Iterator[Part]:
    """Sum, maximum and minimum of four ranks by each algorithm, in FP16: which of them depend on the way."""
    x = np.array([[0.1, 2048, -1e-3], [0.2, 1, 3], [0.3, 1, -3], [0.4, 1, 1e-3]], np.float32)
    ends = {"max": x.max(0), "min": x.min(0)}
    for name, about in (("max", say("maximum")), ("min", say("minimum")), ("sum", say("sum"))):
        wire = collectives.Wire("fp16", add="wire", reduction=name)
        ways = [collectives.execute(collectives.all_reduce(RANKS, way), x, wire) for way in collectives.ALGORITHMS]
        different = len({way[0].tobytes() for way in ways})
        if name == "sum":
            yield beside(say("sum: different results of four algorithms"), str(different))
        else:
            right = all((way == quantize(ends[name], "fp16")).all() for way in ways)
            yield part(say("{what} on every rank, by four algorithms", what=about), say("as defined"),
                       say("as defined") if right else say("not so"), right and different == 1)  # fmt: skip


def holds(about: Text, right: bool) -> Part:
    """A part of which one can only say that it is so."""
    return part(about, say("as defined"), say("as defined") if right else say("not so"), right)


@tries("replicas")
def replicas() -> Iterator[Part]:
    """Model states of a rank, alone and among eight."""
    alone, eight = (estimate(10**9, gpus=n).fullest.states for n in (1, 8))
    there = tuple(collectives.Message(r, 0, 0, True, 0) for r in range(1, 8))
    back = tuple(collectives.Message(0, r, 0, False, 0) for r in range(1, 8))
    server = collectives.Collective("parameter server", 8, 1, (there, back))
    busiest = [max(c.sent(8000)) / 8000 for c in (server, collectives.all_reduce(8))]
    yield part(say("bytes a parameter on each rank: 1 GPU, 8 GPUs"), say("the same"),
               f"{alone / 1e9:g}, {eight / 1e9:g}", alone == eight)  # fmt: skip
    yield part(say("the busiest of 8 ranks sends, in units of the gradients: server, ring"), say("the ring less"),
               f"{busiest[0]:g} : {busiest[1]:g}", busiest[1] < busiest[0])  # fmt: skip
    yield untried(say("all-reduce behind the backward pass saves time"), say("yes"))


def arrivals() -> tuple[list[int], list[bool]]:
    """In which order the gradients of three layers come, and whether the first layer's is still missing by then."""
    import torch

    layers = [torch.nn.Linear(4, 4) for _ in range(3)]
    came: list[int] = []
    waits: list[bool] = []
    for number, layer in enumerate(layers):

        def note(_: Any, number: int = number) -> None:
            came.append(number)
            waits.append(layers[0].weight.grad is None)

        layer.weight.register_post_accumulate_grad_hook(note)
    torch.nn.Sequential(*layers)(torch.ones(1, 4)).sum().backward()
    return came, waits


@tries("layer-by-layer")
def layer_by_layer() -> Iterator[Part]:
    """When each layer's gradient is there; and the bits of a reduction of all of them at once, and of each alone."""
    came, waits = arrivals()
    x = buffers() / np.float32(7)
    whole = collectives.execute(collectives.all_reduce(RANKS, "tree"), x)
    layers = [collectives.execute(collectives.all_reduce(RANKS, "tree"), part) for part in np.split(x, 2, axis=1)]
    same = bool((np.hstack(layers) == whole).all())
    yield equal(say("layers in the order in which their gradients come"), "2/1/0", "/".join(map(str, came)))
    yield part(say("layers that can be sent while the first is still computed"), "2", str(sum(waits)), sum(waits) == 2)
    yield part(say("sums layer by layer, of all at once: the same bits"), say("all"),
               say("all") if same else say("not so"), same)  # fmt: skip


@tries("tensor-parallel")
def tensor_parallel() -> Iterator[Part]:
    """A product of H100, split over output features: forward, and the gradients of both operands; and over k."""
    draw = seeds.bits(16 * 64 + 64 * 32, 11)
    values = (draw >> np.uint64(40)).astype(np.float32) / 2**24 - np.float32(0.5)
    x, w = values[: 16 * 64].reshape(16, 64), values[16 * 64 :].reshape(64, 32)
    whole = matmul(x, w, gpu="H100")
    features = np.concatenate([matmul(x, half, gpu="H100") for half in np.split(w, 2, axis=1)], axis=1)
    slope = matmul(x, w, gpu="H100") / np.float32(8)  # what comes back is as large as what went forward
    halves = list(zip(np.split(slope, 2, axis=1), np.split(w, 2, axis=1), strict=True))
    by_weight = np.concatenate([matmul(x.T.copy(), g, gpu="H100") for g, _ in halves], axis=1)
    kept = int((by_weight == matmul(x.T.copy(), slope, gpu="H100")).sum())
    whole_x, one_x = matmul(slope, w.T.copy(), gpu="H100"), [matmul(g, h.T.copy(), gpu="H100") for g, h in halves]
    alone, added = (int((got == whole_x).sum()) for got in (one_x[0], one_x[0] + one_x[1]))
    over_k = matmul(x[:, :32], w[:32], gpu="H100") + matmul(x[:, 32:], w[32:], gpu="H100")
    same, other = int((features == whole).sum()), int((over_k != whole).sum())
    yield part(say("split by output features, concatenated: the same bits"), say("all"), f"{same} / {whole.size}",
               same == whole.size)  # fmt: skip
    yield part(say("gradient of the weights, concatenated: the same bits"), say("all"), f"{kept} / {by_weight.size}",
               kept == by_weight.size)  # fmt: skip
    yield part(say("gradient of the inputs: one device's; the devices' added: the same bits"),
               say("all without adding"), f"{alone}; {added} / {whole_x.size}", alone == whole_x.size,
               bool(np.allclose(one_x[0] + one_x[1], whole_x, rtol=0.05, atol=0.05)))  # fmt: skip
    yield beside(say("split over k, added: other bits"), f"{other} / {whole.size}")


@tries("pipeline")
def pipeline() -> Iterator[Part]:
    """Four stages: when each begins, what waiting costs, and what each holds."""
    line = schedules.timeline("gpipe", 4, 8)
    begins = [min(int(s.start) for s in line.slots if s.stage == stage) for stage in range(4)]
    single = schedules.timeline("gpipe", 4, 1)
    stages = [rank.states for rank in estimate("gpt2-xl", gpus=4, pipeline=4, micro_batches=8).stages]
    whole = estimate("gpt2-xl").fullest.states
    yield equal(say("stages begin at"), "0/1/2/3", "/".join(map(str, begins)))
    yield part(say("idle share: one micro-batch, eight"), say("each waits"),
               f"{float(single.idle()):.0%}, {float(line.idle()):.0%}", single.idle() > line.idle() > 0)  # fmt: skip
    yield part(say("largest stage's model states, of the whole"), "≈ 25%", f"{max(stages) / whole:.0%}",
               0.2 < max(stages) / whole < 0.35)  # fmt: skip


@tries("zero")
def zero() -> Iterator[Part]:
    """Bytes a parameter on each of four ranks, by stage, and what is sent."""
    for stage, wanted in enumerate(ZERO):
        rank = estimate(10**9, gpus=RANKS, zero=stage).fullest
        kinds = tuple(rank.device[k] / 1e9 for k in ("parameters", "gradients", "master", "states"))
        yield equal(say("ZeRO-{stage}: weights/gradients/master/states", stage=stage), wanted, kinds)
    sent = [estimate("gpt2-xl", gpus=RANKS, zero=stage).fullest.sent for stage in (0, 2, 3)]
    yield beside(
        say("sent in a step: ZeRO-2 and 3, in units of plain"), f"{sent[1] / sent[0]:.2f}, {sent[2] / sent[0]:.2f}"
    )
