"""Chapter 12: parallel training."""

from fractions import Fraction

from ...words import say
from ..base import Exercise
from ..kinds import Integers, Lists, Ratios, Several
from ..tasks import Chapter, Implement, Mutant

CHAPTER = Chapter(12, "parallel", say("Parallel training"))


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


def bubble(stages, micro_batches, chunks):  # type: ignore[no-untyped-def]
    """Time waited over time worked."""
    from fractions import Fraction

    return Fraction(stages - 1, chunks * micro_batches)


def ring_order(ranks, chunk):  # type: ignore[no-untyped-def]
    """A chunk starts at the rank after its owner's number, goes once round, and ends complete."""
    return [(chunk + i) % ranks for i in range(ranks)]


SMALL = Integers(1, 64, origin=1)
EXERCISES = (
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
