"""Claims about mixed-precision training: sums, underflow, loss scaling, autocast, accuracy."""

from __future__ import annotations

import csv
import warnings
from typing import Any

import numpy as np

from ..arithmetic import add, mul
from ..experiments.statistics import compared
from ..floats import quantize
from ..formats import get
from ..language import Text
from ..nn.autocast_lists import RULES, Rule
from ..sums import dot
from ..tensorcore import models
from ..widgets.gradients import sample
from .base import Part, beside, equal, part, tries, untried

INEXACT, UNDERFLOW = 1, 2  # flags
RATE = np.float32(1e-3)  # Adam's usual learning rate


def fp16(x: Any) -> np.ndarray:
    """Values rounded once to FP16."""
    return np.asarray(quantize(x, "fp16"))


def share(mask: Any) -> str:
    """A share as text."""
    return f"{float(np.mean(mask)):.1%}"


# --- sums -------------------------------------------------------------------------------------------------------


@tries("fp32-partials")
def fp32_partials() -> tuple[Part, ...]:
    """A long sum of FP16 products with each accumulator, stored as FP16; and what Tensor Cores keep between blocks."""
    x, y = np.ones(8192), fp16(np.full(8192, 0.1))
    exact = float(np.sum(y))
    got = {a: float(dot(x, y, "fp16", accumulate=a)) for a in ("fp16", "fp32")}
    kept = models.get("V100", "fp16", "fp32").kept_bits
    return (
        part(
            "8192 products of 1 and 0.1, added in FP32, stored in FP16",
            "8192 个 1 × 0.1 的积，以 FP32 累加，存为 FP16",
            str(float(quantize(exact, "fp16"))),
            str(got["fp32"]),
            got["fp32"] == float(quantize(exact, "fp16")),
        ),
        part(
            "the same, added in FP16",
            "同上，但以 FP16 累加",
            Text("fails", "失败"),
            str(got["fp16"]),
            abs(got["fp16"] / exact - 1) > 0.5,
        ),
        equal(
            "fraction bits of a Tensor Core's FP32 sum",
            "Tensor Core 的 FP32 和保留的尾数位",
            get("fp32").fraction_bits,
            kept,
        ),
    )


@tries("all-underflow")
def all_underflow() -> tuple[Part, ...]:
    """Which flags each technique's losses raise: of products, and of sums.

    Micikevicius et al. 2018, section 3.1, name both reasons for a master copy: an update that is below FP16's range,
    and one that is lost when it is added.
    """
    said = Text("underflow", "下溢")
    names = {1: Text("inexact only", "仅不精确"), 3: Text("underflow, inexact", "下溢、不精确")}
    cases = (
        ("loss scaling: gradient 2^-20 times 2^-10", "损失缩放：梯度 2^-20 乘以 2^-10", mul, 2**-20, 2**-10),
        (
            "master copy: gradient 2^-16 times rate 2^-10",
            "主权重副本：梯度 2^-16 乘以学习率 2^-10",
            mul,
            2**-16,
            2**-10,
        ),
        ("master copy: weight 1 plus update 2^-12", "主权重副本：权重 1 加更新 2^-12", add, 1, 2**-12),
        ("FP32 sums: a product of 2^-13 and 2^-13", "FP32 累加：2^-13 与 2^-13 的积", mul, 2**-13, 2**-13),
        ("FP32 sums: 2048 plus 1", "FP32 累加：2048 加 1", add, 2048, 1),
    )
    parts = []
    for en, zh, operation, a, b in cases:
        flags = int(operation(a, b, "fp16", flags=True)[1])
        found = names.get(flags, Text(f"flags {flags}", f"标志 {flags}"))
        parts.append(part(en, zh, said, found, bool(flags & UNDERFLOW), bool(flags & INEXACT)))
    return tuple(parts)


# --- underflow and loss scaling ---------------------------------------------------------------------------------


@tries("small-gradients")
def small_gradients() -> tuple[Part, ...]:
    """Recorded gradients in FP16 and in BF16."""
    lost = {kind: fp16(sample(kind)) == 0 for kind in ("activation", "weight")}
    return (
        part(
            "non-zero activation gradients that FP16 makes zero",
            "FP16 化为零的非零激活梯度",
            "> 0",
            share(lost["activation"]),
            bool(lost["activation"].any()),
        ),
        part(
            "non-zero weight gradients that FP16 makes zero",
            "FP16 化为零的非零权重梯度",
            "> 0",
            share(lost["weight"]),
            bool(lost["weight"].any()),
        ),
    )


@tries("histogram-shift")
def histogram_shift() -> tuple[Part, ...]:
    """A scale of 2^12 before the cast to FP16, its inverse after it, in FP32."""
    g = sample("activation")
    scaled = g * np.float32(4096)
    back = fp16(scaled).astype(np.float32) / np.float32(4096)
    kept = bool((np.frexp(scaled)[0] == np.frexp(g)[0]).all() and (np.frexp(scaled)[1] - np.frexp(g)[1] == 12).all())
    normal = np.abs(scaled) >= get("fp16").smallest_normal
    near = np.abs(back[normal] / g[normal] - 1).max()
    return (
        part(
            "a factor of 2^12 changes significands",
            "乘以 2^12 会改变有效数",
            Text("no: a shift", "不会：只是平移"),
            Text("none of 16,384", "16,384 个中无一改变") if kept else Text("some", "有"),
            kept,
        ),
        part(
            "zeros in FP16: without the scale, with it",
            "FP16 中的零：不缩放、缩放",
            Text("fewer", "更少"),
            f"{share(fp16(g) == 0)}, {share(back == 0)}",
            np.mean(back == 0) < np.mean(fp16(g) == 0) / 10,
        ),
        part(
            "largest relative error after the way back, of normal numbers",
            "缩放回去后正规数的最大相对误差",
            "≤ 2^-11",
            f"{near:.2g}",
            near <= 2**-11,
        ),
    )


@tries("gradient-times-lr")
def gradient_times_lr() -> tuple[Part, ...]:
    """Gradients of weights that FP16 holds, times a learning rate."""
    g = fp16(sample("weight"))
    lost = (g != 0) & (fp16(g * RATE) == 0)
    return (
        part(
            "weight gradients that FP16 holds, but not times 0.001",
            "FP16 能存下、乘以 0.001 后却存不下的权重梯度",
            "> 0",
            share(lost),
            bool(lost.any()),
        ),
    )


# --- training ---------------------------------------------------------------------------------------------------


@tries("compute-and-storage")
def compute_and_storage() -> tuple[Part, ...]:
    """What CUDA's autocast casts to FP16, and what it does in FP32."""
    low = ("matmul", "linear", "conv2d", "bmm")
    high = ("softmax.int", "layer_norm", "group_norm", "log_softmax.int", "sum")
    lower = [name for name in low if RULES.get(name) is Rule.LOWER]
    wide = [name for name in high if RULES.get(name) in (Rule.FP32, Rule.FP32_DTYPE)]
    return (
        part("in the lower precision", "以低精度计算", ", ".join(low), ", ".join(lower), lower == list(low)),
        part("in FP32", "以 FP32 计算", ", ".join(high), ", ".join(wide), wide == list(high)),
        part(
            "batch norm",
            "批归一化",
            "FP32",
            Text("in no list", "不在任何列表中") if "batch_norm" not in RULES else str(RULES["batch_norm"]),
            RULES.get("batch_norm") in (Rule.FP32, Rule.FP32_DTYPE),
            "batch_norm" not in RULES,
        ),
    )


@tries("half-is-faster")
def half_is_faster() -> tuple[Part, ...]:
    """A question for GPUs; what the paper measured on Volta (DeepBench's operations) stands beside it."""
    return (
        untried("matrix products on a GPU of yours", "在自己的 GPU 上的矩阵乘", Text("a multiple", "数倍")),
        beside(
            "operations of DeepBench on Volta, half against FP32, as published",
            "Volta 上 DeepBench 的运算，半精度与 FP32（论文数据）",
            Text("2 to 6 times", "2 到 6 倍"),
        ),
    )


@tries("pytorch-names")
def pytorch_names() -> tuple[Part, ...]:
    """The order of a GradScaler's step, and what torch says to the old names."""
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.amp.GradScaler(enabled=False)
    old = [w.category.__name__ for w in said if "deprecated" in str(w.message)]
    scaler, p = torch.amp.GradScaler("cpu", init_scale=1024.0), torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([p], lr=0.5)
    scaler.scale(p.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    once = float(p.detach()[0])
    p.grad = torch.full((1,), float("inf"))
    scaler.step(optimizer)
    scaler.update()
    return (
        part(
            "scale, backward, step, update: 1 − 0.5 · 1",
            "依次 scale、backward、step、update：1 − 0.5 · 1",
            "0.5",
            f"{once:g}",
            once == 0.5,
        ),
        part(
            "infinite gradients: weight, scale",
            "梯度为无穷：权重、缩放因子",
            Text("skipped, halved", "跳过，减半"),
            f"{float(p.detach()[0]):g}, {scaler.get_scale():g}",
            (float(p.detach()[0]), scaler.get_scale()) == (once, 512),
        ),
        part(
            "torch.cuda.amp.GradScaler",
            "torch.cuda.amp.GradScaler",
            Text("the name to use", "应使用的名字"),
            old[0] if old else "-",
            not old,
            hasattr(torch.cuda.amp, "GradScaler"),
        ),
        untried(
            "TensorFlow's policy mixed_float16",
            "TensorFlow 的 mixed_float16 策略",
            Text("its name", "名称"),
            Text("TensorFlow is not part of the lab", "实验室不含 TensorFlow"),
        ),
    )


# Micikevicius et al. 2018 (arXiv 1710.03740), Table 1: ILSVRC12 top-1 in per cent, FP32 and mixed.
TOP_1 = {
    "AlexNet": (56.77, 56.93),
    "VGG-D": (65.40, 65.43),
    "GoogLeNet": (68.33, 68.43),
    "Inception v2": (70.03, 70.02),
    "Inception v3": (73.85, 74.13),
    "ResNet50": (75.92, 76.04),
}


@tries("same-accuracy")
def same_accuracy() -> tuple[Part, ...]:
    """The paper's table, and the lab's own runs as the experiment formats_in_training left them."""
    differences = [mixed - full for full, mixed in TOP_1.values()]
    worst = f"{min(differences):+.2f} … {max(differences):+.2f}"
    parts = [
        part(
            "the paper's six networks, mixed − FP32, points",
            "论文的六个网络，混合 − FP32，百分点",
            Text("none worse", "没有变差"),
            worst,
            min(differences) > -0.1,
        )
    ]
    runs = rows_of("formats_in_training")
    digits = [row for row in runs if row["task"] == "digits"]
    top = {name: np.array([float(row["top1"]) for row in digits if row["policy"] == name])
           for name in ("fp32", "fp16", "pure_fp16")}  # fmt: skip
    about = (
        "digits, here: FP16 with master weights − FP32, points",
        "本实验室的数字识别：带主权重的 FP16 − FP32，百分点",
    )
    if any(len(scores) < 2 for scores in top.values()):
        return (*parts, untried(*about, "-", Text("fewer than 2 runs drawn here", "此处画出的不到 2 次")))
    against = {name: compared(top[name], top["fp32"], top["fp32"]) for name in ("fp16", "pure_fp16")}

    def shown_range(name: str) -> str:
        one = against[name]
        return f"{100 * one.low:+.2f} … {100 * one.high:+.2f} (±{100 * one.band:.1f})"

    said = Text("within FP32's variation", "在 FP32 的波动之内")
    if against["fp16"].verdict == "undecided":
        return (*parts, untried(*about, said, shown_range("fp16")))
    return (
        *parts,
        part(*about, said, shown_range("fp16"), against["fp16"].verdict == "within"),
        beside("the same of pure FP16", "同上，纯 FP16", shown_range("pure_fp16")),
    )


def rows_of(experiment: str) -> list[dict[str, str]]:
    """The data of an experiment's figure, as ``fplab run`` left it; empty where there is none."""
    from ..course import folders

    for folder in folders():
        if (path := folder / f"{experiment}.csv").is_file():
            with path.open(encoding="utf-8", newline="") as file:
                return list(csv.DictReader(file))
    return []


@tries("fp16-or-bf16")
def fp16_or_bf16() -> tuple[Part, ...]:
    """What each format loses: at the ends of the range, and between two neighbours."""
    g = sample("activation")
    lost = {name: np.mean(np.asarray(quantize(g, name)) == 0) for name in ("fp16", "bf16")}
    big = {name: float(quantize(1e5, name)) for name in ("fp16", "bf16")}
    error = {
        name: float(np.abs(np.asarray(quantize(np.linspace(1, 2, 4097), name)) - np.linspace(1, 2, 4097)).max())
        for name in ("fp16", "bf16")
    }
    return (
        part(
            "gradients lost without a scale: FP16, BF16",
            "不缩放时丢失的梯度：FP16、BF16",
            Text("BF16 none", "BF16 无"),
            f"{lost['fp16']:.1%}, {lost['bf16']:.1%}",
            lost["bf16"] == 0 < lost["fp16"],
        ),
        part(
            "an activation of 1e5: FP16, BF16",
            "激活值 1e5：FP16、BF16",
            Text("BF16 holds it", "BF16 能存"),
            f"{big['fp16']:g}, {big['bf16']:g}",
            np.isinf(big["fp16"]) and np.isfinite(big["bf16"]),
        ),
        part(
            "within the range, largest error: FP16, BF16",
            "范围之内的最大误差：FP16、BF16",
            Text("FP16 smaller", "FP16 更小"),
            f"{error['fp16']:.2g}, {error['bf16']:.2g}",
            error["fp16"] < error["bf16"],
        ),
    )
