"""Chapter 12: parallel training."""

from fractions import Fraction

import numpy as np

from ...words import say
from ..base import Exercise
from ..kinds import Floats, Integers, Lists, Ratios, Several
from ..tasks import Chapter, Implement, Mutant, edited

CHAPTER = Chapter(12, "parallel", say("Parallel training"))


def shard(n, ranks, rank):  # type: ignore[no-untyped-def]
    """Equal pieces of the padded buffer; the padding is nobody's."""
    size = -(-n // ranks)
    return min(n, rank * size), min(n, (rank + 1) * size)


def _balanced(n: int, ranks: int, rank: int) -> tuple[int, int]:
    size, more = divmod(n, ranks)
    start = rank * size + min(rank, more)
    return start, start + size + (rank < more)


def bubble(stages, micro_batches, chunks):  # type: ignore[no-untyped-def]
    """Time waited over time worked."""
    from fractions import Fraction

    return Fraction(stages - 1, chunks * micro_batches)


def ring_order(ranks, chunk):  # type: ignore[no-untyped-def]
    """A chunk starts at the rank after its owner's number, goes once round, and ends complete."""
    return [(chunk + i) % ranks for i in range(ranks)]


def broadcast_step(rank):  # type: ignore[no-untyped-def]
    """In every step all that have the value send it as far as there are of them: ranks below 1, 2, 4, ... have it."""
    return rank.bit_length()


def tree_reduce(xs):  # type: ignore[no-untyped-def]
    """Neighbours first, then those two apart, then four; every addition rounds to FP16."""
    import numpy as np

    sums, reach = [np.float16(x) for x in xs], 1
    while reach < len(sums):
        for rank in range(0, len(sums) - reach, 2 * reach):
            sums[rank] += sums[rank + reach]
        reach *= 2
    return float(sums[0])


def _loop(xs: list[float]) -> float:
    total = np.float16(xs[0])
    for x in xs[1:]:
        total += np.float16(x)
    return float(total)


def _far_first(xs: list[float]) -> float:
    sums = [np.float16(x) for x in xs]
    reach = 1 << (len(sums) - 1).bit_length()
    while reach := reach // 2:
        for rank in range(min(reach, len(sums) - reach)):
            sums[rank] += sums[rank + reach]
        sums = sums[:reach]
    return float(sums[0])


def _whole_pairs(xs: list[float]) -> float:
    sums = [np.float16(x) for x in xs]
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=False)]
    return float(sums[0])


def scatter_owner(ranks, chunk):  # type: ignore[no-untyped-def]
    """The chunk starts at the rank of its number and is complete one hop before it would be there again."""
    return (chunk - 1) % ranks


def gathered_piece(ranks, rank, step):  # type: ignore[no-untyped-def]
    """A piece moves up by a rank a step, so what leaves a rank now began as many ranks below it."""
    return (rank - step) % ranks


def all_reduce_bytes(ranks, numbers, width):  # type: ignore[no-untyped-def]
    """Twice, once to add and once to hand on, every rank sends all chunks but one."""
    return 2 * (ranks - 1) * (numbers // ranks) * width


SMALL = Integers(1, 64, origin=1)
RANKS = Integers(1, 9, origin=1)
TERMS = Floats("fp16", finite=True, low=2.0**-10, high=1024.0)
PATARASUK = "Patarasuk and Yuan 2009; Baidu's ring all-reduce"
EXERCISES = (
    Exercise("shard", CHAPTER, 2,
             Implement(shard, {"n": Integers(0, 200), "ranks": Integers(1, 12, origin=1), "rank": Integers(0, 11)},
                       Several((Integers(0, 200), Integers(0, 200)), ("start", "stop")),
                       valid=lambda n, ranks, rank: rank < ranks),
             (Mutant(edited(shard, "-(-n // ranks)", "n // ranks", "min(n, (rank + 1) * size)",
                            "n if rank == ranks - 1 else (rank + 1) * size"),
                     say("The rest does not go to the last rank: pieces are equal, padded."), "ranks"),
              Mutant(_balanced, say("The first ranks get no extra element each: the buffer is padded at its end."),
                     "ranks"),
              Mutant(lambda n, ranks, rank: (rank * -(-n // ranks), (rank + 1) * -(-n // ranks)),
                     say("Padding is counted as parameters."), "ranks")),
             "Rajbhandari et al. 2020, arXiv 1910.02054"),
    Exercise("bubble", CHAPTER, 2,
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
    Exercise("ring_order", CHAPTER, 3,
             Implement(ring_order, {"ranks": Integers(1, 9, origin=1), "chunk": Integers(0, 8)},
                       Lists(Integers(0, 8), 0, 9), valid=lambda ranks, chunk: chunk < ranks),
             (Mutant(lambda n, c: list(range(n)), say("Not every chunk starts at rank 0."), "chunk"),
              Mutant(lambda n, c: [(c - i) % n for i in range(n)], say("The ring goes up: rank r sends to r + 1."),
                     "chunk"),
              Mutant(lambda n, c: [(c + 1 + i) % n for i in range(n)],
                     say("In step 0 rank c itself sends chunk c: it comes first."), "chunk")),
             PATARASUK),
    Exercise("broadcast_step", CHAPTER, 1, Implement(broadcast_step, {"rank": Integers(0, 64)}, Integers(0, 64)),
             (Mutant(lambda rank: rank, say("Not rank 0 alone sends: all that have the value do."), "rank"),
              Mutant(lambda rank: (rank - 1).bit_length() + 1 if rank else 0,
                     say("2^(s−1) is the first rank of its step, not the last of the one before."), "rank"),
              Mutant(lambda rank: max(rank.bit_length() - 1, 0), say("Steps count from 1: only rank 0 has it before."),
                     "rank"))),
    Exercise("tree_reduce", CHAPTER, 2,
             Implement(tree_reduce, {"xs": Lists(TERMS, 1, 9)}, Floats("fp16"),
                       cases=(((1024.0, 0.5, 0.5),), ((0.5, 0.5, 1024.0),), ((1024.0, 0.25, 0.25, 0.25, 0.25),),
                              ((1024.0, 0.5, 1024.0, 0.5),))),
             (Mutant(_loop, say("This adds one after the other, as a ring does."), "xs "),
              Mutant(_far_first, say("The neighbour comes first, not the rank half of them away."), "xs "),
              Mutant(_whole_pairs, say("A rank without a partner keeps its number for a later step."), "xs "))),
    Exercise("scatter_owner", CHAPTER, 2,
             Implement(scatter_owner, {"ranks": RANKS, "chunk": Integers(0, 8)}, Integers(0, 8),
                       valid=lambda ranks, chunk: chunk < ranks),
             (Mutant(lambda n, c: c, say("That takes N hops; there are N − 1."), "chunk"),
              Mutant(lambda n, c: (c + 1) % n, say("This is the first to add, not the last."), "chunk"),
              Mutant(lambda n, c: c - 1, say("Ranks go round: below 0 comes N − 1."), "chunk")), PATARASUK),
    Exercise("gathered_piece", CHAPTER, 2,
             Implement(gathered_piece, {"ranks": RANKS, "rank": Integers(0, 8), "step": Integers(0, 7)}, Integers(0, 8),
                       valid=lambda ranks, rank, step: rank < ranks and step < max(ranks - 1, 1)),
             (Mutant(lambda n, r, t: r, say("Its own piece goes out once, in step 0."), "step"),
              Mutant(lambda n, r, t: (r + t) % n, say("Pieces come from the rank below."), "step"),
              Mutant(lambda n, r, t: r - t, say("Ranks go round: below 0 comes N − 1."), "step")), PATARASUK),
    Exercise("all_reduce_bytes", CHAPTER, 2,
             Implement(all_reduce_bytes,
                       {"ranks": RANKS, "numbers": Integers(0, 360), "width": Integers(1, 4, origin=1)},
                       Integers(0, 10**6), cases=((2, 2, 1), (3, 6, 2), (4, 4, 4)), random=400,
                       valid=lambda ranks, numbers, width: numbers % ranks == 0),
             (Mutant(lambda n, k, w: (n - 1) * (k // n) * w, say("This is the reduce-scatter alone."), "ranks"),
              Mutant(lambda n, k, w: 2 * k * w, say("One chunk in N needs not travel in each half."), "ranks"),
              Mutant(lambda n, k, w: (n - 1) * k * w, say("Whole buffers travel only where nobody divides them."),
                     "ranks")), PATARASUK),
)  # fmt: skip
