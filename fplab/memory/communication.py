"""What one rank sends in one training step: collectives by name, with message sizes as exact integers."""

from dataclasses import dataclass

from ..errors import integer, unknown
from .models import LARGEST
from .units import divided_up

# Bytes that one rank sends for each byte of the message, as (pieces of 1/N of the message): rings over N ranks.
RINGS = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1}


@dataclass(frozen=True)
class Traffic:
    """A collective that a step runs ``times`` times among ``ranks`` ranks.

    ``elements`` of ``width`` bytes are the whole message: what an all-reduce adds, what a reduce-scatter starts from,
    what an all-gather ends with, what is sent to a neighbour ("send") or over the link to CPU memory ("host").
    """

    what: str
    collective: str
    ranks: int
    elements: int
    width: int
    times: int = 1

    @property
    def message(self) -> int:
        return self.elements * self.width

    @property
    def sent(self) -> int:
        """Bytes that one rank sends in a step, by a ring over a buffer padded to a multiple of the ranks."""
        return self.times * sent(self.collective, self.elements, self.ranks) * self.width


def sent(collective: str, elements: int, ranks: int) -> int:
    """Elements that each rank of a ring sends: ``ceil(elements / ranks)`` in every one of N - 1 steps, or 2 (N - 1).

    >>> sent("all-reduce", 1000, 4)
    1500
    """
    elements, ranks = integer("elements", elements, 0, LARGEST * LARGEST), integer("ranks", ranks, 1, LARGEST)
    if collective in ("send", "host"):
        return elements
    if collective not in RINGS:
        raise unknown("collective", collective, (*RINGS, "send", "host"))
    return RINGS[collective] * (ranks - 1) * divided_up(elements, ranks)


def zero_volume(parameters: int, zero: int) -> int:
    """Elements a rank sends in a step as the ZeRO paper counts them (arXiv 1910.02054, section 7): without (N-1)/N.

    >>> [zero_volume(10, stage) for stage in range(4)]
    [20, 20, 20, 30]
    """
    return (3 if zero == 3 else 2) * integer("parameters", parameters, 0, LARGEST * LARGEST)
