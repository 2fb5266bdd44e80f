"""Claims about several devices: collectives, replicas, split matrices, stages, shards."""

from __future__ import annotations

import numpy as np

from ..language import Text
from ..memory import estimate
from ..parallel import collectives, schedules
from ..tensorcore import matmul
from .base import Part, beside, equal, part, tries, untried

RANKS = 4
ZERO = ((2, 2, 4, 8), (2, 2, 1, 2), (2, 0.5, 1, 2), (0.5, 0.5, 1, 2))  # bytes a parameter on 4 ranks, by stage


def buffers() -> np.ndarray:
    """A row of small whole numbers for each rank, so that sums are exact."""
    return np.arange(RANKS * 8, dtype=np.float32).reshape(RANKS, 8)


@tries("collectives")
def the_collectives() -> tuple[Part, ...]:
    """Every message of each collective, executed on four ranks."""
    x, total, own = buffers(), buffers().sum(0), collectives.bounds(8, RANKS)
    after = {
        c.__name__: collectives.execute(c(RANKS), x)
        for c in (collectives.broadcast, collectives.reduce, collectives.reduce_scatter, collectives.all_reduce)
    }
    gathered = collectives.execute(collectives.all_gather(RANKS), after["reduce_scatter"])
    scattered = all((after["reduce_scatter"][(c - 1) % RANKS, a:b] == total[a:b]).all() for c, (a, b) in enumerate(own))
    return (
        held(
            "broadcast: rank 0's data everywhere", "广播：处处是 0 号的数据", bool((after["broadcast"] == x[0]).all())
        ),
        held("reduce: the sum on one rank", "归约：和在一个进程上", bool((after["reduce"][0] == total).all())),
        held("reduce-scatter: a part of the sum on each", "归约散射：每个进程持有和的一部分", bool(scattered)),
        held("all-gather: every part on each", "全收集：每个进程持有全部部分", bool((gathered == total).all())),
        held("all-reduce: the sum on each", "全归约：每个进程持有总和", bool((after["all_reduce"] == total).all())),
    )


def held(en: str, zh: str, right: bool) -> Part:
    """A part of which one can only say that it is so."""
    return part(
        en, zh, Text("as defined", "如定义"), Text("as defined", "如定义") if right else Text("not so", "不符"), right
    )


@tries("replicas")
def replicas() -> tuple[Part, ...]:
    """Model states of a rank, alone and among eight."""
    alone, eight = (estimate(10**9, gpus=n).fullest.states for n in (1, 8))
    there = tuple(collectives.Message(r, 0, 0, True, 0) for r in range(1, 8))
    back = tuple(collectives.Message(0, r, 0, False, 0) for r in range(1, 8))
    server = collectives.Collective("parameter server", 8, 1, (there, back))
    busiest = [max(c.sent(8000)) / 8000 for c in (server, collectives.all_reduce(8))]
    return (
        part(
            "bytes a parameter on each rank: 1 GPU, 8 GPUs",
            "每个进程每参数字节数：1 块、8 块 GPU",
            Text("the same", "相同"),
            f"{alone / 1e9:g}, {eight / 1e9:g}",
            alone == eight,
        ),
        part(
            "the busiest of 8 ranks sends, in units of the gradients: server, ring",
            "8 个进程中最忙者的发送量（以梯度为单位）：参数服务器、环",
            Text("the ring less", "环更少"),
            f"{busiest[0]:g} : {busiest[1]:g}",
            busiest[1] < busiest[0],
        ),
        untried("all-reduce behind the backward pass saves time", "全归约与反向传播重叠可节省时间", Text("yes", "是")),
    )


@tries("tensor-parallel")
def tensor_parallel() -> tuple[Part, ...]:
    """A product of H100, split over output features: forward, and the gradients of both operands; and over k."""
    draw = np.random.Philox(key=11).random_raw(16 * 64 + 64 * 32)
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
    return (
        part(
            "split by output features, concatenated: the same bits",
            "按输出特征切分再拼接：逐位相同",
            Text("all", "全部"),
            f"{same} / {whole.size}",
            same == whole.size,
        ),
        part(
            "gradient of the weights, concatenated: the same bits",
            "权重的梯度，拼接：逐位相同",
            Text("all", "全部"),
            f"{kept} / {by_weight.size}",
            kept == by_weight.size,
        ),
        part(
            "gradient of the inputs: one device's; the devices' added: the same bits",
            "输入的梯度：单个设备的；各设备相加：逐位相同",
            Text("all without adding", "无需相加，全部"),
            f"{alone}; {added} / {whole_x.size}",
            alone == whole_x.size,
            bool(np.allclose(one_x[0] + one_x[1], whole_x, rtol=0.05, atol=0.05)),
        ),
        beside(
            "split over k, added: other bits",
            "沿 k 切分再相加：位不同",
            f"{other} / {whole.size}",
        ),
    )


@tries("pipeline")
def pipeline() -> tuple[Part, ...]:
    """Four stages: when each begins, what waiting costs, and what each holds."""
    line = schedules.timeline("gpipe", 4, 8)
    begins = [min(int(s.start) for s in line.slots if s.stage == stage) for stage in range(4)]
    one = schedules.timeline("gpipe", 4, 1)
    stages = [rank.states for rank in estimate("gpt2-xl", gpus=4, pipeline=4, micro_batches=8).stages]
    whole = estimate("gpt2-xl").fullest.states
    return (
        equal("stages begin at", "各阶段开始于", "0/1/2/3", "/".join(map(str, begins))),
        part(
            "idle share: one micro-batch, eight",
            "空闲比例：1 个、8 个微批",
            Text("each waits", "逐级等待"),
            f"{float(one.idle()):.0%}, {float(line.idle()):.0%}",
            one.idle() > line.idle() > 0,
        ),
        part(
            "largest stage's model states, of the whole",
            "最大阶段的模型状态占整体",
            "≈ 25%",
            f"{max(stages) / whole:.0%}",
            0.2 < max(stages) / whole < 0.35,
        ),
    )


@tries("zero")
def zero() -> tuple[Part, ...]:
    """Bytes a parameter on each of four ranks, by stage, and what is sent."""
    parts = []
    for stage, wanted in enumerate(ZERO):
        found = estimate(10**9, gpus=RANKS, zero=stage).fullest
        kinds = tuple(found.device[k] / 1e9 for k in ("parameters", "gradients", "master", "states"))
        parts.append(
            equal(
                f"ZeRO-{stage}: weights/gradients/master/states", f"ZeRO-{stage}：权重/梯度/主权重/状态", wanted, kinds
            )
        )
    sent = [estimate("gpt2-xl", gpus=RANKS, zero=stage).fullest.sent for stage in (0, 2, 3)]
    return (
        *parts,
        beside(
            "sent in a step: ZeRO-2 and 3, in units of plain",
            "每步发送量：ZeRO-2、3，以普通数据并行为单位",
            f"{sent[1] / sent[0]:.2f}, {sent[2] / sent[0]:.2f}",
        ),
    )
