"""Chapter 4: sums."""

from __future__ import annotations

import math

import numpy as np

from ...language import Text
from ..base import Chapter, Exercise, Find, Implement, Judgement, Mutant, Predict, register
from ..kinds import Floats, Integers, Lists
from ..shown import Shown, number, of_float

CHAPTER = Chapter(4, "sums", Text("Sums", "求和"))
TERMS = Floats("fp16", finite=True, low=2.0**-10, high=1024.0)


def sequential(xs):  # type: ignore[no-untyped-def]
    """One after the other, each addition rounded to FP16."""
    total = np.float16(0)
    for x in xs:
        total += np.float16(x)
    return float(total)


def stalls(xs: tuple[float, ...]) -> Judgement:
    """Whether a sequential FP16 sum of positive numbers ends below half of the exact one."""
    if len(xs) > 100_000 or not xs:
        return Judgement(False, says=Text("Give 1 to 100,000 numbers.", "请给出 1 到 100,000 个数。"))
    if any(not (0 < x <= 65504) or float(np.float16(x)) != x for x in xs):
        return Judgement(
            False, says=Text("Every number must be a positive FP16 number.", "每个数都必须是正的 FP16 数。")
        )
    exactly = math.fsum(xs)
    with np.errstate(over="ignore"):
        total = sequential(xs)
    lines = (("exact", Shown(number(exactly))), ("FP16", of_float(total, "fp16")))
    if math.isinf(total):
        return Judgement(
            False, lines, Text("This one overflows; a stalled sum is finite.", "这个和溢出了；停滞的和是有限的。")
        )
    return Judgement(
        total < exactly / 2, lines, Text("The sum is still above half of the exact one.", "这个和仍超过精确值的一半。")
    )


def kahan_sum(xs):  # type: ignore[no-untyped-def]
    """What an addition lost is subtracted from the next term; every operation rounds to FP16."""
    import numpy as np

    total = lost = np.float16(0)
    for x in xs:
        term = np.float16(x) - lost
        grown = total + term
        lost = (grown - total) - term
        total = grown
    return float(total)


def _kahan(sign: int, carried: bool = True):  # type: ignore[no-untyped-def]
    """A compensated sum with one thing wrong."""

    def add_up(xs):  # type: ignore[no-untyped-def]
        total = lost = np.float16(0)
        for x in xs:
            term = np.float16(x) - lost
            grown = total + term
            lost = sign * ((grown - total) - term) if carried else np.float16(0)
            total = grown
        return float(total)

    return add_up


def pairwise_sum(xs):  # type: ignore[no-untyped-def]
    """Halves first, the first half the shorter one; a single number is itself."""
    import numpy as np

    if len(xs) == 1:
        return xs[0]
    middle = len(xs) // 2
    return float(np.float16(pairwise_sum(xs[:middle])) + np.float16(pairwise_sum(xs[middle:])))


def _long_half_first(xs: list[float]) -> float:
    if len(xs) == 1:
        return xs[0]
    middle = (len(xs) + 1) // 2
    return float(np.float16(_long_half_first(xs[:middle])) + np.float16(_long_half_first(xs[middle:])))


register(
    Exercise(
        "harmonic_stop",
        CHAPTER,
        2,
        Text("Where the harmonic series ends", "调和级数停在哪里"),
        Text(
            "1 + 1/2 + 1/3 + …, each term and each sum rounded to FP16. Which is the first "
            "term, 1/k, that changes nothing? Give k. "
            "(The sum has reached 7.0859375 by then.)",
            "1 + 1/2 + 1/3 + …，每一项与每个部分和都舍入到 FP16。第一个不起作用的项 1/k 的 "
            "k 是多少？（此时和已达 7.0859375。）",
        ),
        Text("What is half the spacing of FP16 at 7?", "FP16 在 7 附近间距的一半是多少？"),
        Text(
            "Between 4 and 8 numbers lie 2^-8 apart: a term below 2^-9 is lost, and 1/512 is a tie that went to even.",
            "4 与 8 之间的间距是 2^-8：小于 2^-9 的项会丢失，而 1/512 是平局，取偶后仍起了作用。",
        ),
        Predict(
            513,
            Integers(1, 10**7),
            Text(
                "1/512 is still a tie that rounds up; 1/513 is below half a spacing",
                "1/512 还是向上的平局；1/513 已小于半个间距",
            ),
        ),
        (
            Mutant(512, Text("1/512 is a tie, and the tie goes up here.", "1/512 是平局，而这里平局向上。"), "512"),
            Mutant(65, Text("That is BF16, which stops at 5.0625.", "那是 BF16，它停在 5.0625。"), "65"),
            Mutant(2049, Text("2049 is where a sum of ones stops.", "2049 是一串 1 的和停住的地方。"), "2049"),
            Mutant(
                2097152, Text("That is FP32, which stops at 15.4036827.", "那是 FP32，它停在 15.4036827。"), "2097152"
            ),
        ),
    ),
    Exercise(
        "stalling_sum",
        CHAPTER,
        1,
        Text("A sum that stalls", "停滞的和"),
        Text(
            "Find a list of positive FP16 numbers whose sum, taken in order and rounded to "
            "FP16 at every addition, ends below half of the "
            "exact sum, without overflow.",
            "找一列正的 FP16 数：依次相加且每次舍入到 FP16，得到的和小于精确和的一半，且不溢出。",
        ),
        Text("Add 1 until nothing changes, and then go on.", "不断加 1，直到不再变化，然后继续加。"),
        Text(
            "A running sum stalls when a term is at most half of its spacing: at 2048 for ones.",
            "当项不超过部分和间距的一半时，累加停滞：全为 1 时停在 2048。",
        ),
        Find(
            Lists(Floats("fp16"), 0, 10**5),
            stalls,
            (1.0,) * 5000,
            Text("FP16 sum < exact sum / 2", "FP16 和 < 精确和 / 2"),
            Text("[1.0] * 5000 sums to 2048", "[1.0] * 5000 的和是 2048"),
        ),
        (
            Mutant((1.0,) * 2048, Text("", ""), "still above half"),
            Mutant((60000.0,) * 5, Text("", ""), "overflows"),
            Mutant((0.1,) * 5000, Text("", ""), "positive FP16 number"),
            Mutant((), Text("", ""), "Give 1 to 100,000"),
        ),
    ),
    Exercise(
        "pairwise_sum",
        CHAPTER,
        2,
        Text("Pairwise sum", "两两求和"),
        Text(
            "Write pairwise_sum(xs), FP16 numbers, at least one: the sum of the first len(xs) "
            "// 2 numbers plus the sum of the others, each "
            "by the same rule, each addition rounded to FP16 (np.float16).",
            "编写 pairwise_sum(xs)（FP16 数，至少一个）：前 len(xs) // 2 个数的和加上其余数的和，"
            "各自按同一规则计算，每次加法舍入到 FP16（np.float16）。",
        ),
        Text("The function calls itself on both halves.", "函数对两半分别调用自己。"),
        Text(
            "The tree of brackets decides the bits: of three numbers the last two are added first.",
            "括号的树决定结果的位：三个数时，后两个先相加。",
        ),
        Implement(
            pairwise_sum,
            {"xs": Lists(TERMS, 1, 9)},
            Floats("fp16"),
            cases=(((1024.0, 0.5, 0.5),), ((0.5, 0.5, 1024.0),), ((1024.0, 0.25, 0.25, 0.25, 0.25),)),
        ),
        (
            Mutant(sequential, Text("This adds one after the other.", "这是逐个相加。"), "xs "),
            Mutant(
                lambda xs: float(np.float16(math.fsum(xs))),
                Text("This is the exact sum, rounded once.", "这是精确的和，只舍入了一次。"),
                "xs ",
            ),
            Mutant(
                _long_half_first,
                Text("For an odd count the first part is the shorter one.", "个数为奇数时，前一部分是较短的。"),
                "xs ",
            ),
        ),
        "N. J. Higham 1993, The accuracy of floating point summation",
    ),
    Exercise(
        "kahan_sum",
        CHAPTER,
        3,
        Text("Kahan's sum", "Kahan 求和"),
        Text(
            "Write kahan_sum(xs) in FP16 (np.float16), by Kahan's four operations a term: y "
            "= x − lost; t = total + y; lost = (t − total) − y; "
            "total = t. Begin at 0.",
            "用 FP16（np.float16）编写 kahan_sum(xs)，每项四次运算：y = x − lost；t = total "
            "+ y；lost = (t − total) − y；total = t。从 0 开始。",
        ),
        Text("Keep lost from one term to the next.", "把 lost 从一项带到下一项。"),
        Text(
            "What an addition lost is subtracted from the next term; each operation rounds.",
            "一次加法丢失的部分要从下一项中减去；每次运算都舍入。",
        ),
        Implement(
            kahan_sum,
            {"xs": Lists(TERMS, 0, 12)},
            Floats("fp16"),
            cases=(((1024.0, *(0.25,) * 8),), ((1024.0, 0.5, 0.5),)),
        ),
        (
            Mutant(
                sequential, Text("Nothing is compensated: this is the plain sum.", "没有补偿：这是普通的和。"), "xs "
            ),
            Mutant(
                _kahan(-1),
                Text("The sign of what was lost is turned: errors add up.", "丢失部分的符号反了：误差反而累加。"),
                "xs ",
            ),
            Mutant(
                lambda xs: float(np.float16(math.fsum(xs))),
                Text(
                    "This is the exact sum, rounded once; Kahan's is not always that.",
                    "这是精确的和舍入一次；Kahan 的结果并不总是它。",
                ),
                "xs ",
            ),
        ),
        "W. Kahan 1965, Further remarks on reducing truncation errors",
    ),
)
