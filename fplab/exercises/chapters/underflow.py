"""Chapter 7: underflow and loss scaling."""

from __future__ import annotations

from ...language import Text
from ..base import Chapter, Exercise, Implement, Mutant, Predict, register
from ..kinds import Floats, Integers, Lists, Options, Several

CHAPTER = Chapter(7, "underflow", Text("Underflow and loss scaling", "下溢与损失缩放"))
SCALES = Floats("fp32", finite=True, low=1.0, high=2.0**127, signed=False, edges=(65536.0, 2.0**126, 2.0**127))


def choose_scale(counts):  # type: ignore[no-untyped-def]
    """The highest binade that is not empty decides."""
    filled = [i for i, count in enumerate(counts) if count > 0]
    return 15 + 32 - (filled[-1] + 1) if filled else 0


def _scale_by(pick, offset=46):  # type: ignore[no-untyped-def]
    """A choice with one thing wrong."""

    def choose(counts):  # type: ignore[no-untyped-def]
        filled = [i for i, count in enumerate(counts) if count > 0]
        return offset - pick(filled, counts) if filled else 0

    return choose


def grad_scaler(scale, good, found_inf, interval):  # type: ignore[no-untyped-def]
    """Back off by half at once; grow by two after so many good steps in a row, unless that is infinite."""
    if found_inf:
        return scale * 0.5, 0
    good += 1
    if good == interval:
        return scale * 2.0 if scale < 2.0**127 else scale, 0
    return scale, good


def _late(scale: float, good: int, found: bool, interval: int) -> tuple[float, int]:
    if found:
        return scale * 0.5, 0
    return (scale * 2.0 if scale < 2.0**127 else scale, 0) if good >= interval else (scale, good + 1)


def _keeps_count(scale: float, good: int, found: bool, interval: int) -> tuple[float, int]:
    return (scale * 0.5, good) if found else grad_scaler(scale, good, found, interval)


def _no_reset(scale: float, good: int, found: bool, interval: int) -> tuple[float, int]:
    new, count = grad_scaler(scale, good, found, interval)
    return new, good + 1 if not found else count


def _to_infinity(scale: float, good: int, found: bool, interval: int) -> tuple[float, int]:
    if not found and good + 1 == interval:
        return (float("inf") if scale >= 2.0**127 else scale * 2.0), 0
    new, count = grad_scaler(scale, good, found, interval)
    return new, count


register(
    Exercise(
        "flushed_gradient",
        CHAPTER,
        1,
        Text("The largest lost gradient", "最大的丢失梯度"),
        Text(
            "Which is the largest positive number that a conversion to FP16 (to nearest, ties to even) turns into 0?",
            "转换到 FP16（向最近舍入，平局取偶）时变成 0 的最大正数是多少？",
        ),
        Text(
            "The smallest positive FP16 number is 2^-24. Where is the midpoint?",
            "最小的正 FP16 数是 2^-24。中点在哪里？",
        ),
        Text("2^-25 is a tie between 0 and 2^-24, and 0 is even.", "2^-25 是 0 与 2^-24 的平局，而 0 为偶。"),
        Predict(2.0**-25, Floats("fp32"), Text("2**-25, a tie that goes to the even 0", "2**-25，平局取偶数 0")),
        (
            Mutant(
                2.0**-24, Text("2^-24 is an FP16 number, the smallest.", "2^-24 是 FP16 的数，最小的一个。"), "2^-24"
            ),
            Mutant(
                2.0**-14,
                Text(
                    "2^-14 is the smallest normal number; there are subnormals below it.",
                    "2^-14 是最小的正规数；它下面还有次正规数。",
                ),
                "2^-14",
            ),
            Mutant(2.0**-26, Text("Larger numbers than 2^-26 are lost, too.", "比 2^-26 大的数也会丢失。"), "2^-26"),
        ),
    ),
    Exercise(
        "order_of_a_step",
        CHAPTER,
        1,
        Text("Clip when?", "何时裁剪？"),
        Text(
            "Gradients carry a loss scale S. In which order does a step go?\n"
            "a: clip, unscale, check for infinities, update.\nb: unscale, check for infinities, clip, update.\n"
            "c: unscale, update, check for infinities, clip.",
            "梯度带有损失缩放 S。一步应按什么次序进行？\n"
            "a：裁剪、去缩放、检查无穷大、更新。\nb：去缩放、检查无穷大、裁剪、更新。\nc：去缩放、"
            "更新、检查无穷大、裁剪。",
        ),
        Text("A threshold for clipping is meant for true gradients.", "裁剪的阈值是针对真实梯度的。"),
        Text(
            "Unscale first; skip the step where a gradient is not finite; clip what is left.",
            "先去缩放；有非有限梯度则跳过这一步；再裁剪。",
        ),
        Predict(
            "b",
            Options(("a", "b", "c")),
            Text(
                "scaler.unscale_(optimizer), clip_grad_norm_, scaler.step",
                "scaler.unscale_(optimizer)、clip_grad_norm_、scaler.step",
            ),
        ),
        (
            Mutant("a", Text("The threshold would then be S times too small.", "那样阈值就小了 S 倍。"), "a"),
            Mutant(
                "c",
                Text("An infinite gradient would already be in the weights.", "那样无穷大的梯度已经进入权重。"),
                "c",
            ),
        ),
        "Micikevicius et al. 2018, arXiv 1710.03740, 3.2",
    ),
    Exercise(
        "choose_scale",
        CHAPTER,
        2,
        Text("A loss scale from a histogram", "由直方图选损失缩放"),
        Text(
            "counts[i] is how many gradients have a magnitude in [2^(i−32), 2^(i−31)). Write "
            "choose_scale(counts): the largest s such that "
            "2^s times any gradient that may be counted stays below 2^15, safe from overflow "
            "in FP16; 0 if nothing is counted.",
            "counts[i] 是绝对值在 [2^(i−32), 2^(i−31)) 中的梯度个数。编写 choose_scale(counts)："
            "返回最大的 s，使任何可能被计入的梯度乘以 2^s 后小于 2^15，在 FP16 中不会上溢；"
            "没有计数时返回 0。",
        ),
        Text(
            "The highest binade with a count decides; its upper end is 2^(i−31).",
            "计数非零的最高区间决定结果；其上端是 2^(i−31)。",
        ),
        Text(
            "2^s · 2^(i−31) ≤ 2^15, so s = 46 − i for the largest i with counts[i] > 0.",
            "2^s · 2^(i−31) ≤ 2^15，故 s = 46 − i，i 为 counts[i] > 0 的最大下标。",
        ),
        Implement(choose_scale, {"counts": Lists(Integers(0, 50), 0, 48)}, Integers(-100, 100)),
        (
            Mutant(
                _scale_by(lambda f, c: len(c) - 1),
                Text("An empty binade at the end counts for nothing.", "末尾的空区间不算数。"),
                "counts",
            ),
            Mutant(
                _scale_by(lambda f, c: f[-1], 47),
                Text("One too many: the binade reaches up to 2^(i−31).", "大了 1：该区间的上端是 2^(i−31)。"),
                "47",
            ),
            Mutant(
                _scale_by(lambda f, c: f[0]),
                Text("The largest gradients overflow, not the smallest.", "会上溢的是最大的梯度，不是最小的。"),
                "counts",
            ),
            Mutant(
                _scale_by(lambda f, c: c.index(max(c))),
                Text(
                    "The fullest binade does not decide: a single large gradient overflows.",
                    "最满的区间不起决定作用：一个大梯度就会上溢。",
                ),
                "counts",
            ),
        ),
    ),
    Exercise(
        "grad_scaler",
        CHAPTER,
        2,
        Text("GradScaler's update", "GradScaler 的更新"),
        Text(
            "Write grad_scaler(scale, good, found_inf, interval): the next (scale, good). found_inf: "
            "the scale halves and good becomes 0. "
            "Otherwise one more good step; when there are interval of them the scale doubles, "
            "unless that is infinite in FP32, and good becomes 0.",
            "编写 grad_scaler(scale, good, found_inf, interval)：返回下一个 (scale, good)。"
            "found_inf 时缩放减半，good 归零。否则好步数加一；达到 interval 时缩放加倍（若在 "
            "FP32 中变成无穷大则不变），good 归零。",
        ),
        Text("Count first, then compare.", "先计数，再比较。"),
        Text(
            "good + 1 = interval doubles the scale at that very step; any infinity starts the count again.",
            "good + 1 = interval 时当步就加倍；任何无穷大都使计数重新开始。",
        ),
        Implement(
            grad_scaler,
            {
                "scale": SCALES,
                "good": Integers(0, 5),
                "found_inf": Options((False, True)),
                "interval": Integers(1, 6),
            },
            Several((Floats("fp32"), Integers(0, 6)), ("scale", "good")),
            valid=lambda scale, good, found, interval: scale > 0 and good < interval,
        ),
        (
            Mutant(
                _late,
                Text(
                    "It grows one step late: the step that completes the interval counts.",
                    "晚了一步：凑满 interval 的那一步就该增长。",
                ),
                "good",
            ),
            Mutant(
                _keeps_count, Text("A skipped step must set the count back to 0.", "跳过的一步必须把计数归零。"), "True"
            ),
            Mutant(
                _no_reset,
                Text("After growing, the count begins again at 0.", "增长之后计数要从 0 重新开始。"),
                "good 1",
            ),
            Mutant(
                _to_infinity,
                Text(
                    "2^127 doubled is infinite in FP32: it must stay.", "2^127 加倍在 FP32 中是无穷大：必须保持不变。"
                ),
                "inf",
            ),
        ),
        "PyTorch, torch.amp.GradScaler",
    ),
)
