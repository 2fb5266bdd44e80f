"""Chapter 8: master weights and optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...language import Text
from ..base import Chapter, Exercise, Find, Implement, Judgement, Mutant, Predict, register
from ..kinds import Floats, Lists, Several
from ..shown import of_float

CHAPTER = Chapter(8, "optimizers", Text("Master weights and optimizers", "主权重与优化器"))


def saved_by_rounding(value: tuple[Any, ...]) -> Judgement:
    """Whether a weight is at least 2048 times its update, and the update counts all the same."""
    w, u = value
    half = Floats("fp16", finite=True)
    if not (half.has(w) and half.has(u)) or w <= 0 or u <= 0:
        return Judgement(False, says=Text("w and u must be positive FP16 numbers.", "w 与 u 必须是正的 FP16 数。"))
    if w < 2048 * u:
        return Judgement(False, says=Text("w / u is below 2048.", "w / u 小于 2048。"))
    total = float(np.float16(w) + np.float16(u))
    lines = (("w", of_float(w, "fp16")), ("w + u", of_float(total, "fp16")))
    return Judgement(total != w, lines, Text("The update is lost: w + u is w.", "更新丢失了：w + u 仍是 w。"))


def with_master(w, updates):  # type: ignore[no-untyped-def]
    """The sum is kept in FP32; FP16 sees only a copy of it."""
    import numpy as np

    master = np.float32(w)
    for u in updates:
        master = master - np.float32(u)
    return float(np.float16(master))


def _in_half(w: float, updates: list[float]) -> float:
    weight = np.float16(w)
    for u in updates:
        weight = weight - np.float16(u)
    return float(weight)


def _copied_back(w: float, updates: list[float]) -> float:
    weight = np.float16(w)
    for u in updates:
        weight = np.float16(np.float32(weight) - np.float32(u))
    return float(weight)


def _in_double(w: float, updates: list[float]) -> float:
    for u in updates:
        w = w - u
    return float(np.float16(w))


def _update_in_half(w: float, updates: list[float]) -> float:
    return float(with_master(w, [float(np.float16(u)) for u in updates]))


register(
    Exercise(
        "stalled_weight",
        CHAPTER,
        1,
        Text("A weight that stands still", "停滞的权重"),
        Text(
            "A BF16 weight is 1. Each of 100 steps adds 0.003 to it, and BF16 rounds the sum to nearest, ties to even. "
            "What is the weight after the last step?",
            "一个 BF16 权重为 1。100 步中每一步加上 0.003，和向最近舍入到 BF16，平局取偶。最后一步之后权重是多少？",
        ),
        Text(
            "How far is the next BF16 number above 1, and is 0.003 more than half of that?",
            "1 上方的下一个 BF16 数有多远？0.003 超过这个距离的一半吗？",
        ),
        Text(
            "Above 1, BF16 numbers lie 2^-7 apart. An update below half of that, 2^-8 = 0.0039, leaves no trace.",
            "在 1 之上，BF16 的间距为 2^-7。小于间距一半（2^-8 = 0.0039）的更新不留痕迹。",
        ),
        Predict(
            1.0,
            Floats("bf16"),
            Text("1: every step rounds 1.003 back to 1", "1：每一步都把 1.003 舍入回 1"),
        ),
        (
            Mutant(
                1.296875,
                Text(
                    "That is the whole sum rounded once: what an FP32 master copy would give.",
                    "那是把总和只舍入一次的结果，也就是 FP32 主副本会给出的值。",
                ),
                "1.296875",
            ),
            Mutant(
                1.3,
                Text("1.3 is the exact sum, and no BF16 number.", "1.3 是精确的和，它不是 BF16 的数。"),
                "no value of bf16",
            ),
            Mutant(
                1.78125,
                Text(
                    "There every update is rounded up to a whole spacing; it rounds to the nearer end.",
                    "那是每次更新都向上凑成一个间距；实际上舍入取较近的一端。",
                ),
                "1.78125",
            ),
        ),
        "Micikevicius et al. 2018, arXiv 1710.03740, 3.1",
    ),
    Exercise(
        "vanishing_variance",
        CHAPTER,
        2,
        Text("Adam's variance in FP16", "FP16 中的 Adam 方差"),
        Text(
            "Adam's first step sets v = 0.001 · g² (beta2 = 0.999). v is rounded to FP16, to "
            "nearest. What is the largest power of two g for "
            "which v becomes 0?",
            "Adam 的第一步使 v = 0.001 · g²（beta2 = 0.999）。v 向最近舍入到 FP16。使 v 变成 "
            "0 的最大的 2 的幂 g 是多少？",
        ),
        Text(
            "0.001 is about 2^-9.97; what is at most 2^-25 becomes 0.", "0.001 约为 2^-9.97；不超过 2^-25 的数变成 0。"
        ),
        Text(
            "v = 2^-9.97 · g²: 2^-25.97 for g = 2^-8, 2^-23.97 for g = 2^-7.",
            "v = 2^-9.97 · g²：g = 2^-8 时为 2^-25.97，g = 2^-7 时为 2^-23.97。",
        ),
        Predict(2.0**-8, Floats("fp32"), Text("0.001 * 2**-16 < 2**-25", "0.001 * 2**-16 < 2**-25")),
        (
            Mutant(2.0**-7, Text("There v is just above 2^-24.", "此时 v 略大于 2^-24。"), "0.0078125"),
            Mutant(
                2.0**-13,
                Text(
                    "That is where g² itself becomes 0; 0.001 · g² does so much earlier.",
                    "那是 g² 本身变成 0 之处；0.001 · g² 早得多就变成 0。",
                ),
                "2^-13",
            ),
            Mutant(2.0**-9, Text("A larger gradient is lost, too.", "更大的梯度也会丢失。"), "2^-9"),
        ),
    ),
    Exercise(
        "beyond_2048",
        CHAPTER,
        2,
        Text("Is 2048 the limit?", "2048 是界限吗？"),
        Text(
            "One reads that an FP16 update is lost where the weight is at least 2048 times "
            "as large. Find FP16 numbers (w, u), w ≥ 2048 · u > 0, "
            "for which w + u ≠ w in FP16.",
            "常说当权重至少是更新的 2048 倍时，FP16 的更新会丢失。找 FP16 数 (w, u)，w ≥ 2048 "
            "· u > 0，使 FP16 中 w + u ≠ w。",
        ),
        Text(
            "What matters is half the spacing at w, which is the same in a whole binade.",
            "要看的是 w 处间距的一半，它在整个二进区间内不变。",
        ),
        Text(
            "An update counts above half a spacing of w: the critical ratio runs from 2048 to nearly 4096.",
            "更新超过 w 处间距的一半就算数：临界比值从 2048 到接近 4096。",
        ),
        Find(
            Several((Floats("fp16"), Floats("fp16")), ("w", "u")),
            saved_by_rounding,
            (1.5, 1.5 / 2048),
            Text("w + u ≠ w with w ≥ 2048 u", "w ≥ 2048 u 且 w + u ≠ w"),
            Text(
                "at 1.5 half a spacing is 2^-11, and u = 1.5 · 2^-11 is above it",
                "在 1.5 处间距的一半是 2^-11，而 u = 1.5 · 2^-11 超过它",
            ),
        ),
        (
            Mutant((1.0, 2.0**-11), Text("", ""), "The update is lost"),
            Mutant((1.0, 0.25), Text("", ""), "below 2048"),
            Mutant((1.0, 0.1), Text("", ""), "positive FP16 numbers"),
        ),
        "Micikevicius et al. 2018, arXiv 1710.03740, 3.1",
    ),
    Exercise(
        "with_master",
        CHAPTER,
        2,
        Text("A master copy", "主权重副本"),
        Text(
            "Write with_master(w, updates): an FP32 master copy begins at w and has every FP32 "
            "update subtracted, in order, in FP32. "
            "Return it rounded to FP16: the weight of the next forward pass.",
            "编写 with_master(w, updates)：FP32 主副本从 w 开始，依次在 FP32 中减去每个 FP32 "
            "更新。返回它舍入到 FP16 的值，即下一次前向传播的权重。",
        ),
        Text("np.float32 for the copy, np.float16 once at the end.", "副本用 np.float32，最后用一次 np.float16。"),
        Text(
            "The FP16 weight is a copy of the master; nothing flows back from it.",
            "FP16 权重是主副本的拷贝；它不会再写回主副本。",
        ),
        Implement(
            with_master,
            {
                "w": Floats("fp16", finite=True, low=2.0**-6, high=16.0),
                "updates": Lists(Floats("fp32", finite=True, low=2.0**-20, high=1.0), 0, 10),
            },
            Floats("fp16"),
            cases=(
                (1.0, (-(2.0**-12),) * 6),
                (1.0, (-(2.0**-11) - 2.0**-23,)),
                (1.0, (2.0**-12, 2.0**-14, 2.0**-14)),
                (16.0, (-(2.0**-7), -(2.0**-20))),
            ),
        ),
        (
            Mutant(
                _in_half,
                Text(
                    "The weight is kept in FP16: small updates are lost one by one.",
                    "权重保存在 FP16 中：小的更新一个个丢失。",
                ),
                "updates",
            ),
            Mutant(
                _copied_back,
                Text(
                    "The rounded copy is written back into the master after each update.",
                    "每次更新后都把舍入的拷贝写回了主副本。",
                ),
                "updates",
            ),
            Mutant(
                _update_in_half,
                Text("The updates are rounded to FP16 before they are applied.", "更新在应用之前被舍入到 FP16。"),
                "updates",
            ),
            Mutant(
                _in_double,
                Text(
                    "Python's floats keep 53 bits: the master copy has FP32's 24, and rounds at every update.",
                    "Python 的 float 有 53 位；主副本只有 FP32 的 24 位，每次更新都要舍入。",
                ),
                "updates",
            ),
        ),
        "Micikevicius et al. 2018, arXiv 1710.03740, 3.1",
    ),
)
