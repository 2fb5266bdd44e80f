"""Claims about the memory of a run: bytes of states, shares of a total, cards for a large model, recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..language import Text
from ..memory import activations, estimate, preset
from ..memory.units import GIB
from .base import Part, beside, equal, part, tries

BILLION = 10**9
BLOOM = 176 * BILLION
CARD = 80 * BILLION  # bytes of an A100 or H100
STATES = ("parameters", "gradients", "master", "states")


def device(model: Any, **options: Any) -> dict[str, int]:
    """Bytes by kind on the fullest GPU."""
    return dict(estimate(model, **options).fullest.device)


def gb(bytes_: float) -> str:
    """Bytes as GB."""
    return f"{bytes_ / BILLION:,.1f} GB"


@tries("per-billion")
def per_billion() -> tuple[Part, ...]:
    """Weights and Adam's states of a billion parameters."""
    weights = {f: estimate("bloom-176b", inference=f) for f in ("fp32", "fp16", "int8")}
    each = {f: e.fullest.device["parameters"] / e.parameters for f, e in weights.items()}
    states = device(BILLION, precision="fp32")["states"] / BILLION
    wanted = {"fp32": 4, "fp16": 2, "int8": 1}
    parts = [
        part(
            f"{f.upper()}: GB a billion parameters",
            f"{f.upper()}：每十亿参数的 GB 数",
            str(w),
            f"{each[f]:.2f}",
            abs(each[f] / w - 1) < 0.03,
        )
        for f, w in wanted.items()
    ]
    return (
        *parts,
        equal("AdamW's two FP32 states: bytes a parameter", "AdamW 两个 FP32 状态：每参数字节数", 8.0, states),
    )


@tries("one-one-two")
def one_one_two() -> tuple[Part, ...]:
    """Model, gradients and states in units of the model, in FP32 and in mixed precision."""
    parts = []
    for name, said in (("fp32", "FP32"), ("mixed", "mixed")):
        found = device(BILLION, precision=name)
        ratio = [
            sum(found[k] for k in kinds) / found["parameters"]
            for kinds in (("parameters",), ("gradients",), ("master", "states"))
        ]
        parts.append(
            part(
                f"model : gradients : Adam, {said}",
                f"模型 : 梯度 : Adam，{'FP32' if name == 'fp32' else '混合精度'}",
                "1 : 1 : 2",
                " : ".join(f"{r:g}" for r in ratio),
                ratio == [1, 1, 2],
                ratio[:2] == [1, 1],
            )
        )
    return tuple(parts)


@tries("six-billion")
def six_billion() -> tuple[Part, ...]:
    """Six billion parameters in FP32, in both units."""
    bytes_ = device(6 * BILLION, precision="fp32")["parameters"]
    found = f"{bytes_ / GIB:.2f} GiB = {bytes_ / BILLION:g} GB"
    return (
        part(
            "6e9 parameters of 4 bytes",
            "6e9 个参数，每个 4 字节",
            "22 GB",
            found,
            f"{bytes_ / BILLION:.0f}" == "22",
            f"{bytes_ / GIB:.0f}" == "22",
        ),
    )


@tries("bloom-bytes")
def bloom_bytes() -> tuple[Part, ...]:
    """BLOOM's weights in 16 bits."""
    e = estimate("bloom-176b", inference="bf16")
    return (
        part(
            "176 billion parameters of 2 bytes, by its layers",
            "1760 亿参数，每个 2 字节，按各层结构计算",
            "352 GB",
            gb(2 * e.parameters),
            f"{2 * e.parameters / BILLION:.0f}" == "352",
        ),
    )


@tries("bloom-cards")
def bloom_cards() -> tuple[Part, ...]:
    """How many cards weights alone take, and model states."""
    weights, states = cards(2 * BLOOM), cards(sum(device(BLOOM, precision="mixed").values()))
    left = 8 * CARD - 2 * BLOOM
    return (
        part(
            "cards for inference",
            "推理所需卡数",
            "8",
            Text(
                f"{weights} hold the weights; 8 leave {gb(left)} for keys and values",
                f"{weights} 张放得下权重；8 张剩余 {gb(left)} 给键与值",
            ),
            weights == 8,
            weights < 8,
        ),
        part(
            "cards to fine-tune with Adam",
            "用 Adam 微调所需卡数",
            "72",
            Text(
                f"{states} hold the states; 72 leave {gb(72 * CARD - 16 * BLOOM)}",
                f"{states} 张放得下模型状态；72 张剩余 {gb(72 * CARD - 16 * BLOOM)}",
            ),
            states == 72,
            states < 72,
        ),
    )


def cards(bytes_: int) -> int:
    """Cards that hold so many bytes, evenly divided."""
    return -(-bytes_ // CARD)


def settings() -> Iterator[dict[str, int]]:
    """Bytes by kind of many training settings."""
    for model in ("gpt2", "gpt2-xl", "gpt3", "llama3-8b"):
        for precision in ("fp32", "mixed", "amp"):
            for optimizer in ("sgd", "adamw"):
                for batch in (1, 2, 4, 8, 16, 32, 64):
                    yield device(model, precision=precision, optimizer=optimizer, micro_batch=batch)


def shares(found: dict[str, int], *kinds: str) -> float:
    """What kinds take of parameters, gradients, states and activations."""
    whole = sum(found.get(k, 0) for k in (*STATES, "activations"))
    return sum(found.get(k, 0) for k in kinds) / whole


@tries("training-shares")
def training_shares() -> tuple[Part, ...]:
    """Shares of the total, over many settings, wherever weights take 5 to 10 per cent."""
    thin = [s for s in settings() if 0.05 <= shares(s, "parameters") <= 0.10]
    with_states = ("gradients", "master", "states")
    kept, more = ([shares(s, *kinds) for s in thin] for kinds in (("activations",), with_states))
    ratio = [s["gradients"] / s["parameters"] for s in thin]
    return (
        between("where weights take 5–10%: activations", "权重占 5–10% 时：激活值", "60–80%", kept, 0.6, 0.8),
        part(
            "the same: gradients, in units of the weights",
            "同上：梯度，以权重为单位",
            Text("2 and more: 20–30% beside 5–10%", "不小于 2：20–30% 对 5–10%"),
            f"{min(ratio):g} … {max(ratio):g}",
            min(ratio) >= 2,
            max(ratio) >= 2,
        ),
        beside("the same: gradients and optimizer states", "同上：梯度与优化器状态", spread(more)),
    )


def spread(found: list[float]) -> str:
    """The least and the largest share."""
    return f"{min(found):.0%} … {max(found):.0%}"


def between(en: str, zh: str, claimed: str, found: list[float], low: float, high: float) -> Part:
    """A share that should lie between two: TRUE where all do, LOOSE where some do."""
    inside = [low <= one <= high for one in found]
    return part(en, zh, claimed, spread(found), all(inside), any(inside))


@tries("memory-halved")
def memory_halved() -> tuple[Part, ...]:
    """GPT-2 XL, FP32 against mixed precision: states, activations, all."""
    found = {p: device("gpt2-xl", precision=p, micro_batch=8) for p in ("fp32", "mixed")}
    states = [sum(f.get(k, 0) for k in STATES) for f in found.values()]
    kept = [f["activations"] for f in found.values()]
    whole = [sum(f.values()) for f in found.values()]
    said = Text("about half", "约一半")
    return (
        part(
            "model states",
            "模型状态",
            said,
            f"{states[1] / states[0]:.0%}",
            states[1] / states[0] <= 0.55,
            states[1] <= states[0],
        ),
        part(
            "activations, 8 sequences", "激活值，8 个序列", said, f"{kept[1] / kept[0]:.0%}", kept[1] / kept[0] <= 0.55
        ),
        part(
            "all, 8 sequences",
            "合计，8 个序列",
            said,
            f"{whole[1] / whole[0]:.0%}",
            whole[1] / whole[0] <= 0.55,
            whole[1] / whole[0] <= 0.75,
        ),
    )


@tries("intermediates")
def intermediates() -> tuple[Part, ...]:
    """The saved tensors of a GPT-2 layer, in units of batch × sequence × dim."""
    c = preset("gpt2")
    unit = c.sequence * c.hidden
    sizes = {t.name: t.elements / unit for t in activations.layer_terms(c, 1, c.sequence)}
    other = {name: size for name, size in sizes.items() if size != 1}
    found = Text(f"{len(sizes) - len(other)} of {len(sizes)}", f"{len(sizes)} 个中的 {len(sizes) - len(other)} 个")
    return (
        part(
            "saved tensors of that size, a GPT-2 layer",
            "GPT-2 一层中该大小的保存张量",
            Text("all", "全部"),
            found,
            not other,
            len(other) < len(sizes) / 2,
        ),
        beside(
            "the others, in units of it",
            "其余的，以它为单位",
            Text(
                ", ".join(f"{n} {s:g}" for n, s in other.items()),
                "、".join(f"{in_chinese(n)} {s:g}" for n, s in other.items()),
            ),
        ),
    )


def in_chinese(tensor: str) -> str:
    """The name of a saved tensor."""
    for english, chinese in (("down input", "下投影的输入"), ("input", "输入"), ("output", "输出"), ("mask", "掩码")):
        tensor = tensor.replace(english, chinese)
    return tensor


@tries("recomputation")
def recomputation() -> tuple[Part, ...]:
    """Gradients with checkpoints and without, and the bytes saved."""
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)))
    gradients = []
    for how in ("kept", "recomputed"):
        layers.zero_grad()
        x = torch.linspace(-1, 1, 8 * 64).reshape(8, 64)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False) if how == "recomputed" else layer(x)
        x.square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in layers.parameters() if p.grad is not None]))
    saved = [device("llama3-8b", recompute=r)["activations"] for r in ("none", "full")]
    return (
        part(
            "gradients, recomputed against kept",
            "梯度，重计算与保存",
            Text("the same", "相同"),
            Text(f"{gradients[0].numel():,}, every bit", f"{gradients[0].numel():,} 个，逐位相同"),
            bool((gradients[0] == gradients[1]).all()),
        ),
        part(
            "activations of llama3-8b: all, only layers' inputs",
            "llama3-8b 的激活值：全部、仅各层输入",
            Text("less", "更少"),
            f"{gb(saved[0])}, {gb(saved[1])}",
            saved[1] < saved[0] / 5,
        ),
    )
