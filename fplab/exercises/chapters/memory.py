"""Chapter 11: memory and parallel training."""

from fractions import Fraction

from ...words import say
from ..base import Exercise
from ..kinds import Integers, Lists, Options, Ratios, Several
from ..tasks import Chapter, Implement, Mutant, Predict

CHAPTER = Chapter(11, "memory", say("Memory and parallel training"))


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
EXERCISES = (
    Exercise("bloom_cards", CHAPTER, 1, say("Cards for BLOOM"),
             say("BLOOM has 176 billion parameters. How many cards of 80 GB (80 · 10^9 bytes) are needed to hold its "
                 "weights alone, in BF16?"),
             say("Two bytes a parameter; cards are whole."), say("352 GB / 80 GB = 4.4, so five."),
             Predict(5, Integers(0, 1000), say("176e9 * 2 / 80e9 = 4.4")),
             (Mutant(4, say("Four hold 320 of 352 GB."), "4"),
              Mutant(8, say("Eight are used to run it; the weights alone need fewer."), "8"),
              Mutant(9, say("That is FP32, four bytes a parameter."), "9"),
              Mutant(36, say("36 hold 16 bytes a parameter: training with Adam."), "36"))),
    Exercise("shard", CHAPTER, 2, say("Place ZeRO's shards"),
             say("A flat buffer of n parameters is padded to a multiple of ranks and cut into equal pieces. Write "
                 "shard(n, ranks, rank): (start, stop) of the real parameters in the piece of a rank; stop = start = n "
                 "where it holds padding alone."),
             say("A piece has ⌈n / ranks⌉ elements; cut both ends at n."),
             say("All pieces are equal, padding included: the last ranks hold less of what is real."),
             Implement(shard, {"n": Integers(0, 200), "ranks": Integers(1, 12, origin=1), "rank": Integers(0, 11)},
                       Several((Integers(0, 200), Integers(0, 200)), ("start", "stop")),
                       valid=lambda n, ranks, rank: rank < ranks),
             (Mutant(_rest_to_last, say("The rest does not go to the last rank: pieces are equal, padded."), "ranks"),
              Mutant(_balanced, say("The first ranks get no extra element each: the buffer is padded at its end."),
                     "ranks"),
              Mutant(lambda n, ranks, rank: (rank * -(-n // ranks), (rank + 1) * -(-n // ranks)),
                     say("Padding is counted as parameters."), "ranks")),
             "Rajbhandari et al. 2020, arXiv 1910.02054"),
    Exercise("zero_bytes", CHAPTER, 2, say("Bytes under ZeRO"),
             say("Mixed-precision Adam: 2 bytes of weights, 2 of gradients and 12 of FP32 states a parameter. Write "
                 "zero_bytes(parameters, ranks, stage): bytes on one rank, where stage 1 shards the states, 2 also the "
                 "gradients, 3 also the weights. ranks divides parameters."),
             say("Divide only what is sharded."), say("16Ψ; 4Ψ + 12Ψ/N; 2Ψ + 14Ψ/N; 16Ψ/N."),
             Implement(zero_bytes,
                       {"parameters": Integers(0, 960), "ranks": Integers(1, 16, origin=1), "stage": Integers(0, 3)},
                       Integers(0, 10**6), cases=((12, 4, 0), (12, 4, 1), (12, 4, 2), (12, 4, 3)), random=400,
                       valid=lambda parameters, ranks, stage: parameters % ranks == 0),
             (Mutant(lambda p, n, s: 16 * p // n if s else 16 * p, say("Stage 1 shards the states alone."), "stage"),
              Mutant(lambda p, n, s: zero_bytes(p, n, s) - 4 * p // (n if s else 1),
                     say("The FP32 master weights are states, too: 12 bytes, not 8."), "stage"),
              Mutant(lambda p, n, s: zero_bytes(p, n, min(s, 2)), say("Stage 3 shards the weights as well."), "stage")),
             "Rajbhandari et al. 2020, arXiv 1910.02054, figure 1"),
    Exercise("bubble", CHAPTER, 2, say("The bubble of a pipeline"),
             say("Write bubble(stages, micro_batches, chunks): time waited over time worked, as a Fraction, for 1F1B "
                 "with chunks model chunks a stage (1: not interleaved)."),
             say("The first micro-batch reaches the last stage after stages − 1 steps."),
             say("(p − 1) / (v m): over the work, not over the whole time."),
             Implement(bubble,
                       {"stages": Integers(1, 16, origin=1),
                        "micro_batches": SMALL,
                        "chunks": Integers(1, 4, origin=1)},
                       Ratios()),
             (Mutant(lambda p, m, v: Fraction(p - 1, v * m + p - 1), say("This is the share of the whole time."),
                     "got"),
              Mutant(lambda p, m, v: Fraction(p, v * m), say("One stage alone never waits: p − 1."), "got"),
              Mutant(lambda p, m, v: Fraction(p - 1, m), say("v chunks divide the bubble by v."), "chunks")),
             "Narayanan et al. 2021, arXiv 2104.04473, 2.2"),
    Exercise("activation_bytes", CHAPTER, 3, say("Activations and recomputation"),
             say("Write activation_bytes(s, b, h, a, recompute): bytes that one transformer layer saves in 16 bits "
                 "(sequence s, batch b, width h, a heads). none: 34 s b h + 5 a s² b. selective: without the "
                 "attention's core, the term in s². full: the layer's input alone."),
             say("An input is s · b · h numbers of two bytes."), say("34 s b h + 5 a s² b; 34 s b h; 2 s b h."),
             Implement(activation_bytes,
                       {"s": SMALL,
                        "b": SMALL,
                        "h": SMALL,
                        "a": SMALL,
                        "recompute": Options(("none", "selective", "full"))},
                       Integers(0, 10**9)),
             (Mutant(_bytes(square=False), say("Attention's matrices are s by s."), "s "),
              Mutant(_bytes(attention=4), say("Per score: two softmax tensors of 2 bytes and a mask of 1."), "none"),
              Mutant(_bytes(linear=32), say("The two dropout masks, s b h bytes each, are missing."), "none"),
              Mutant(_bytes(full=1), say("A number in 16 bits takes two bytes."), "full")),
             "Korthikanti et al. 2022, arXiv 2205.05198, section 4"),
    Exercise("ring_order", CHAPTER, 3, say("The order of a ring"),
             say("Ring reduce-scatter: in step t, rank r sends chunk (r − t) mod N to rank r + 1, which adds it to its "
                 "own. Write ring_order(ranks, chunk): the ranks in the order in which their parts enter the sum of a "
                 "chunk."),
             say("Who sends chunk c in step 0?"),
             say("Chunk c starts at rank c and goes up, once round: every chunk is summed in an order of its own."),
             Implement(ring_order, {"ranks": Integers(1, 9, origin=1), "chunk": Integers(0, 8)},
                       Lists(Integers(0, 8), 0, 9), valid=lambda ranks, chunk: chunk < ranks),
             (Mutant(lambda n, c: list(range(n)), say("Not every chunk starts at rank 0."), "chunk"),
              Mutant(lambda n, c: [(c - i) % n for i in range(n)], say("The ring goes up: rank r sends to r + 1."),
                     "chunk"),
              Mutant(lambda n, c: [(c + 1 + i) % n for i in range(n)],
                     say("In step 0 rank c itself sends chunk c: it comes first."), "chunk")),
             "Patarasuk and Yuan 2009; Baidu's ring all-reduce"),
)  # fmt: skip
