"""What papers leave open and only hardware can settle: each is a switch of the models, or a case that a GPU records."""

from __future__ import annotations

from dataclasses import dataclass

from ..language import Text


@dataclass(frozen=True)
class Question:
    """Something only hardware can settle. ``options``: fields of a :class:`.Model` that choose between the answers."""

    name: str
    text: Text
    options: tuple[str, ...] = ()


QUESTIONS: tuple[Question, ...] = (
    Question(
        "floor",
        Text(
            "Is emax never less than a floor (Khattak & Mikaitis), or does every zero factor and a zero c count with "
            "exponent -126 (MMA-Sim)? The answers differ where all terms of a block are tiny, or where a zero meets a "
            "large factor.",
            "emax 是有一个下限（Khattak 与 Mikaitis），还是每个为零的因子和为零的 c 都以指数 -126 计入（MMA-Sim）？"
            "只有一个块的各项全都极小，或零与很大的因子相乘时，两种答案才不同。",
        ),
        ("floor_rule",),
    ),
    Question(
        "subnormal c",
        Text(
            "Does a subnormal FP16 c align at exponent -14 or at its true exponent?",
            "FP16 的 c 为次正规数时，按指数 -14 对齐，还是按它真正的指数对齐？",
        ),
        ("c_exponent",),
    ),
    Question(
        "zero signs",
        Text(
            "Which sign have (-0) + (-0), and a negative sum that rounds to zero?",
            "(-0) + (-0) 是什么符号？负的和舍入为零时又是什么符号？",
        ),
        ("negative_zeros", "zero_from_below"),
    ),
    Question(
        "specials",
        Text(
            "Which payload and sign has each NaN result, and does an FP32 overflow give infinity or the largest value?",
            "每种 NaN 结果的载荷和符号是什么？FP32 上溢得到无穷大，还是最大的数？",
        ),
        ("overflow",),
    ),
    Question(
        "order of k",
        Text(
            "Which plan do library products follow: one chain, several accumulators, split-K? Where do alpha, beta and "
            "the output cast round, and are TF32 operands truncated or rounded first? (Plan and `conversion` choose.)",
            "程序库的乘积采用哪种方案：一条链、几个累加器，还是 split-K？alpha、beta 和输出转换各在哪里舍入？"
            "TF32 操作数是先截断还是先舍入？（由 Plan 和 `conversion` 选择。）",
        ),
    ),
    Question(
        "wgmma FP8",
        Text(
            "FP8 by wgmma with c not zero and chained over a long k; its FP16 output; its floor there.",
            "wgmma 的 FP8：c 不为零且沿很长的 k 串接时如何；FP16 输出如何；那里的指数下限是多少。",
        ),
    ),
    Question(
        "mma FP8",
        Text(
            "FP8 to FP32 by mma.sync on Hopper; the floor inside the widened path, for E5M2 products below 2**-21.",
            "Hopper 上 mma.sync 从 FP8 到 FP32 的计算；展宽路径内部的指数下限，涉及小于 2**-21 的 E5M2 乘积。",
        ),
    ),
    Question(
        "FP8 floor",
        Text(
            "The floor of emax for FP8 inputs with FP16 output on Ada and Hopper; taken as none.",
            "Ada 和 Hopper 上 FP8 输入、FP16 输出时 emax 的下限；此处按没有下限处理。",
        ),
    ),
    Question(
        "zero group",
        Text(
            "Does a group of 16 scaled products that sums to zero count toward emax with the exponents of its scales "
            "(MMA-Sim), or not at all? Taken as counting.",
            "一组 16 个带缩放因子的乘积之和为零时，是以其缩放因子的指数计入 emax（MMA-Sim），还是完全不计入？"
            "此处按计入处理。",
        ),
        ("zero_group",),
    ),
    Question(
        "convolutions",
        Text(
            "Which product a convolution becomes, and its order of k.",
            "卷积化为怎样的矩阵乘积，其中 k 的次序如何。",
        ),
    ),
)
