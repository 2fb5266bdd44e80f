"""Chapter 11: memory and parallel training."""

from __future__ import annotations

from fractions import Fraction

from ...language import Text
from ..base import Chapter, Exercise, Implement, Mutant, Predict, register
from ..kinds import Integers, Lists, Options, Ratios, Several

CHAPTER = Chapter(11, "memory", Text("Memory and parallel training", "内存与并行训练"))


def shard(n, ranks, rank):  # type: ignore[no-untyped-def]
    """Equal pieces of the padded buffer; the padding is nobody's."""
    size = -(-n // ranks)
    return min(n, rank * size), min(n, (rank + 1) * size)


def _rest_to_last(n: int, ranks: int, rank: int) -> tuple[int, int]:
    size = n // ranks
    return rank * size, n if rank == ranks - 1 else (rank + 1) * size


def _balanced(n: int, ranks: int, rank: int) -> tuple[int, int]:
    size, more = divmod(n, ranks)
    start = rank * size + min(rank, more)
    return start, start + size + (rank < more)


def zero_bytes(parameters, ranks, stage):  # type: ignore[no-untyped-def]
    """2 bytes of weights, 2 of gradients, 12 of FP32 states; each stage shards one more of them."""
    weights, gradients, states = 2 * parameters, 2 * parameters, 12 * parameters
    if stage >= 1:
        states //= ranks
    if stage >= 2:
        gradients //= ranks
    if stage >= 3:
        weights //= ranks
    return weights + gradients + states


def bubble(stages, micro_batches, chunks):  # type: ignore[no-untyped-def]
    """Time waited over time worked."""
    from fractions import Fraction

    return Fraction(stages - 1, chunks * micro_batches)


def activation_bytes(s, b, h, a, recompute):  # type: ignore[no-untyped-def]
    """A transformer layer in 16 bits: everything, without the attention's core, or its input alone."""
    if recompute == "full":
        return 2 * s * b * h
    core = 5 * a * s * s * b if recompute == "none" else 0
    return 34 * s * b * h + core


def ring_order(ranks, chunk):  # type: ignore[no-untyped-def]
    """A chunk starts at the rank after its owner's number, goes once round, and ends complete."""
    return [(chunk + i) % ranks for i in range(ranks)]


def _bytes(attention: int = 5, linear: int = 34, full: int = 2, square: bool = True):  # type: ignore[no-untyped-def]
    """Activation bytes with one thing wrong."""

    def count(s, b, h, a, recompute):  # type: ignore[no-untyped-def]
        if recompute == "full":
            return full * s * b * h
        return linear * s * b * h + (attention * a * s * b * (s if square else 1) if recompute == "none" else 0)

    return count


SMALL = Integers(1, 64, origin=1)
register(
    Exercise(
        "bloom_cards",
        CHAPTER,
        1,
        Text("Cards for BLOOM", "BLOOM 需要几张卡"),
        Text(
            "BLOOM has 176 billion parameters. How many cards of 80 GB (80 · 10^9 bytes) are "
            "needed to hold its weights alone, in BF16?",
            "BLOOM 有 1760 亿个参数。仅以 BF16 存放权重，需要几张 80 GB（80 · 10^9 字节）的卡？",
        ),
        Text("Two bytes a parameter; cards are whole.", "每个参数两字节；卡只能是整数张。"),
        Text("352 GB / 80 GB = 4.4, so five.", "352 GB / 80 GB = 4.4，故为五张。"),
        Predict(5, Integers(0, 1000), Text("176e9 * 2 / 80e9 = 4.4", "176e9 * 2 / 80e9 = 4.4")),
        (
            Mutant(4, Text("Four hold 320 of 352 GB.", "四张只装得下 352 GB 中的 320 GB。"), "4"),
            Mutant(
                8,
                Text("Eight are used to run it; the weights alone need fewer.", "运行时用八张；只放权重用不了这么多。"),
                "8",
            ),
            Mutant(9, Text("That is FP32, four bytes a parameter.", "那是 FP32，每个参数四字节。"), "9"),
            Mutant(
                36,
                Text("36 hold 16 bytes a parameter: training with Adam.", "36 张装得下每参数 16 字节：用 Adam 训练。"),
                "36",
            ),
        ),
    ),
    Exercise(
        "shard",
        CHAPTER,
        2,
        Text("Place ZeRO's shards", "放置 ZeRO 的分片"),
        Text(
            "A flat buffer of n parameters is padded to a multiple of ranks and cut into equal "
            "pieces. Write shard(n, ranks, rank): "
            "(start, stop) of the real parameters in the piece of a rank; stop = start = n "
            "where it holds padding alone.",
            "n 个参数的平坦缓冲区补齐到 ranks 的倍数并等分。编写 shard(n, ranks, rank)：返回该 "
            "rank 的片中真实参数的 (start, stop)；若只有填充，则 start = stop = n。",
        ),
        Text("A piece has ⌈n / ranks⌉ elements; cut both ends at n.", "每片有 ⌈n / ranks⌉ 个元素；两端都不超过 n。"),
        Text(
            "All pieces are equal, padding included: the last ranks hold less of what is real.",
            "含填充在内所有片相等：靠后的 rank 持有的真实参数较少。",
        ),
        Implement(
            shard,
            {"n": Integers(0, 200), "ranks": Integers(1, 12, origin=1), "rank": Integers(0, 11)},
            Several((Integers(0, 200), Integers(0, 200)), ("start", "stop")),
            valid=lambda n, ranks, rank: rank < ranks,
        ),
        (
            Mutant(
                _rest_to_last,
                Text(
                    "The rest does not go to the last rank: pieces are equal, padded.",
                    "余数不归最后一个 rank：各片补齐后相等。",
                ),
                "ranks",
            ),
            Mutant(
                _balanced,
                Text(
                    "The first ranks get no extra element each: the buffer is padded at its end.",
                    "前面的 rank 并不各多一个元素：缓冲区在末尾补齐。",
                ),
                "ranks",
            ),
            Mutant(
                lambda n, ranks, rank: (rank * -(-n // ranks), (rank + 1) * -(-n // ranks)),
                Text("Padding is counted as parameters.", "填充被算作参数。"),
                "ranks",
            ),
        ),
        "Rajbhandari et al. 2020, arXiv 1910.02054",
    ),
    Exercise(
        "zero_bytes",
        CHAPTER,
        2,
        Text("Bytes under ZeRO", "ZeRO 下的字节数"),
        Text(
            "Mixed-precision Adam: 2 bytes of weights, 2 of gradients and 12 of FP32 states "
            "a parameter. Write zero_bytes(parameters, ranks, "
            "stage): bytes on one rank, where stage 1 shards the states, 2 also the gradients, "
            "3 also the weights. ranks divides parameters.",
            "混合精度 Adam：每参数 2 字节权重、2 字节梯度和 12 字节 FP32 状态。编写 zero_bytes(parameters, "
            "ranks, stage)：一个 rank 上的字节数，阶段 1 切分状态，2 加上梯度，3 再加上权重。"
            "ranks 整除 parameters。",
        ),
        Text("Divide only what is sharded.", "只除被切分的部分。"),
        Text("16Ψ; 4Ψ + 12Ψ/N; 2Ψ + 14Ψ/N; 16Ψ/N.", "16Ψ；4Ψ + 12Ψ/N；2Ψ + 14Ψ/N；16Ψ/N。"),
        Implement(
            zero_bytes,
            {"parameters": Integers(0, 960), "ranks": Integers(1, 16, origin=1), "stage": Integers(0, 3)},
            Integers(0, 10**6),
            cases=((12, 4, 0), (12, 4, 1), (12, 4, 2), (12, 4, 3)),
            random=400,
            valid=lambda parameters, ranks, stage: parameters % ranks == 0,
        ),
        (
            Mutant(
                lambda p, n, s: 16 * p // n if s else 16 * p,
                Text("Stage 1 shards the states alone.", "阶段 1 只切分状态。"),
                "stage",
            ),
            Mutant(
                lambda p, n, s: zero_bytes(p, n, s) - 4 * p // (n if s else 1),
                Text(
                    "The FP32 master weights are states, too: 12 bytes, not 8.",
                    "FP32 主权重也是状态：12 字节而不是 8。",
                ),
                "stage",
            ),
            Mutant(
                lambda p, n, s: zero_bytes(p, n, min(s, 2)),
                Text("Stage 3 shards the weights as well.", "阶段 3 连权重也切分。"),
                "stage",
            ),
        ),
        "Rajbhandari et al. 2020, arXiv 1910.02054, figure 1",
    ),
    Exercise(
        "bubble",
        CHAPTER,
        2,
        Text("The bubble of a pipeline", "流水线的气泡"),
        Text(
            "Write bubble(stages, micro_batches, chunks): time waited over time worked, as "
            "a Fraction, for 1F1B with chunks model chunks a stage "
            "(1: not interleaved).",
            "编写 bubble(stages, micro_batches, chunks)：1F1B 流水线等待时间与工作时间之比，"
            "返回 Fraction；chunks 是每个阶段的模型块数（1 表示不交错）。",
        ),
        Text(
            "The first micro-batch reaches the last stage after stages − 1 steps.",
            "第一个微批经过 stages − 1 步到达最后阶段。",
        ),
        Text(
            "(p − 1) / (v m): over the work, not over the whole time.",
            "(p − 1) / (v m)：相对于工作时间，而不是总时间。",
        ),
        Implement(
            bubble,
            {"stages": Integers(1, 16, origin=1), "micro_batches": SMALL, "chunks": Integers(1, 4, origin=1)},
            Ratios(),
        ),
        (
            Mutant(
                lambda p, m, v: Fraction(p - 1, v * m + p - 1),
                Text("This is the share of the whole time.", "这是占总时间的比例。"),
                "got",
            ),
            Mutant(
                lambda p, m, v: Fraction(p, v * m),
                Text("One stage alone never waits: p − 1.", "只有一个阶段时从不等待：是 p − 1。"),
                "got",
            ),
            Mutant(
                lambda p, m, v: Fraction(p - 1, m),
                Text("v chunks divide the bubble by v.", "v 个块使气泡缩小为 v 分之一。"),
                "chunks",
            ),
        ),
        "Narayanan et al. 2021, arXiv 2104.04473, 2.2",
    ),
    Exercise(
        "activation_bytes",
        CHAPTER,
        3,
        Text("Activations and recomputation", "激活与重计算"),
        Text(
            "Write activation_bytes(s, b, h, a, recompute): bytes that one transformer layer "
            "saves in 16 bits (sequence s, batch b, width h, a heads). "
            "none: 34 s b h + 5 a s² b. selective: without the attention's core, the term in "
            "s². full: the layer's input alone.",
            "编写 activation_bytes(s, b, h, a, recompute)：一个 Transformer 层以 16 位保存的字节数（序列 "
            "s，批 b，宽度 h，a 个头）。"
            "none：34 s b h + 5 a s² b。selective：去掉注意力核心，即 s² 项。full：只有该层的输入。",
        ),
        Text("An input is s · b · h numbers of two bytes.", "输入是 s · b · h 个两字节的数。"),
        Text("34 s b h + 5 a s² b; 34 s b h; 2 s b h.", "34 s b h + 5 a s² b；34 s b h；2 s b h。"),
        Implement(
            activation_bytes,
            {"s": SMALL, "b": SMALL, "h": SMALL, "a": SMALL, "recompute": Options(("none", "selective", "full"))},
            Integers(0, 10**9),
        ),
        (
            Mutant(_bytes(square=False), Text("Attention's matrices are s by s.", "注意力矩阵是 s 乘 s。"), "s "),
            Mutant(
                _bytes(attention=4),
                Text(
                    "Per score: two softmax tensors of 2 bytes and a mask of 1.",
                    "每个分数：两个 2 字节的 softmax 张量和一个 1 字节的掩码。",
                ),
                "none",
            ),
            Mutant(
                _bytes(linear=32),
                Text("The two dropout masks, s b h bytes each, are missing.", "缺少两个 dropout 掩码，各 s b h 字节。"),
                "none",
            ),
            Mutant(_bytes(full=1), Text("A number in 16 bits takes two bytes.", "一个 16 位数占两个字节。"), "full"),
        ),
        "Korthikanti et al. 2022, arXiv 2205.05198, section 4",
    ),
    Exercise(
        "ring_order",
        CHAPTER,
        3,
        Text("The order of a ring", "环的次序"),
        Text(
            "Ring reduce-scatter: in step t, rank r sends chunk (r − t) mod N to rank r + 1, "
            "which adds it to its own. Write ring_order(ranks, chunk): "
            "the ranks in the order in which their parts enter the sum of a chunk.",
            "环形 reduce-scatter：第 t 步，rank r 把块 (r − t) mod N 发给 rank r + 1，后者加到自己的块上。"
            "编写 ring_order(ranks, chunk)：各 rank 的部分进入某块之和的先后次序。",
        ),
        Text("Who sends chunk c in step 0?", "第 0 步由谁发送块 c？"),
        Text(
            "Chunk c starts at rank c and goes up, once round: every chunk is summed in an order of its own.",
            "块 c 从 rank c 出发向上绕一圈：每个块的求和次序各不相同。",
        ),
        Implement(
            ring_order,
            {"ranks": Integers(1, 9, origin=1), "chunk": Integers(0, 8)},
            Lists(Integers(0, 8), 0, 9),
            valid=lambda ranks, chunk: chunk < ranks,
        ),
        (
            Mutant(
                lambda n, c: list(range(n)),
                Text("Not every chunk starts at rank 0.", "并非每个块都从 rank 0 出发。"),
                "chunk",
            ),
            Mutant(
                lambda n, c: [(c - i) % n for i in range(n)],
                Text("The ring goes up: rank r sends to r + 1.", "环是向上的：rank r 发给 r + 1。"),
                "chunk",
            ),
            Mutant(
                lambda n, c: [(c + 1 + i) % n for i in range(n)],
                Text(
                    "In step 0 rank c itself sends chunk c: it comes first.", "第 0 步正是 rank c 发送块 c：它排第一。"
                ),
                "chunk",
            ),
        ),
        "Patarasuk and Yuan 2009; Baidu's ring all-reduce",
    ),
)
