"""Who holds which part of a tensor when ZeRO divides it among data-parallel ranks: three ways that are in use.

``flat``: all tensors of a stage end to end in one buffer, padded to a multiple of the ranks, cut into equal pieces
(ZeRO's own way, and the only one in which all ranks hold the same). ``rows``: every tensor by itself along its first
axis, as ``torch.chunk`` cuts it (``fully_shard``). ``tensors``: whole tensors, the largest first, each to the rank that
has the least (``ZeroRedundancyOptimizer``).
"""

import functools
import heapq
import math
from collections.abc import Callable, Sequence

from .units import divided_up

Shapes = Sequence[tuple[tuple[int, ...], int]]  # (shape, how many such tensors)
Sizes = list[tuple[int, int]]  # (elements, how many such pieces)


def flat(shapes: Shapes, ranks: int, rank: int) -> Sizes:
    """One piece of the padded flat buffer: ``ceil(n / ranks)`` elements on every rank.

    >>> flat([((3, 5), 2)], 4, 0)
    [(8, 1)]
    """
    if ranks == 1:
        return [(math.prod(shape), many) for shape, many in shapes]
    return [(divided_up(sum(math.prod(shape) * many for shape, many in shapes), ranks), 1)]


def rows(shapes: Shapes, ranks: int, rank: int) -> Sizes:
    """A piece of every tensor: ``ceil(rows / ranks)`` rows for the first ranks, the rest or nothing for the last.

    >>> [rows([((3, 5), 2)], 4, rank) for rank in (0, 3)]
    [[(5, 2)], [(0, 2)]]
    """
    sizes = []
    for shape, many in shapes:
        each = divided_up(shape[0], ranks) if shape else 1
        own_rows = max(0, min(each, (shape[0] if shape else 1) - rank * each))
        sizes.append((own_rows * math.prod(shape[1:]), many))
    return sizes


def tensors(shapes: Shapes, ranks: int, rank: int) -> Sizes:
    """Whole tensors: from the largest down, each goes to the rank that holds the fewest elements so far.

    >>> [tensors([((3, 5), 2), ((7,), 1)], 2, rank) for rank in (0, 1)]
    [[(15, 1), (7, 1)], [(15, 1)]]
    """
    given = handed_out(tuple(shapes), ranks)
    return [(n, 1) for n in given[rank]] if rank < len(given) else []


@functools.lru_cache(maxsize=256)
def handed_out(shapes: Shapes, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The sizes of each rank's tensors, of the first ranks alone where there are fewer tensors than ranks."""
    sizes = sorted((math.prod(shape) for shape, many in shapes for _ in range(many)), reverse=True)
    sizes_of: list[list[int]] = [[] for _ in range(min(ranks, len(sizes)))]
    least = [(0, rank) for rank in range(len(sizes_of))]  # a heap: by what a rank holds, then by its number
    for n in sizes:
        total, rank = least[0]
        sizes_of[rank].append(n)
        heapq.heapreplace(least, (total + n, rank))
    return tuple(tuple(own) for own in sizes_of)


PARTITIONS: dict[str, Callable[[Shapes, int, int], Sizes]] = {"flat": flat, "rows": rows, "tensors": tensors}


def elements(sizes: Sizes) -> int:
    return sum(n * many for n, many in sizes)
