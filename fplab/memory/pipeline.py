"""Pipeline parallelism in numbers: which layers a stage holds, how many micro-batches are in flight, the bubble."""

from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

from ..errors import LabError, integer, one_of
from .models import LARGEST

SCHEDULES = ("gpipe", "1f1b", "interleaved")


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """How many layers each stage holds: as even as can be, the first stages one more where it does not divide.

    >>> stage_layers(126, 8)
    (16, 16, 16, 16, 16, 16, 15, 15)
    """
    layers = integer("layers", layers, 0, LARGEST)
    stages = integer("pipeline", stages, 1, max(1, layers), f": a stage needs a layer, and there are {layers}")
    each, more = divmod(layers, stages)
    return tuple(each + (stage < more) for stage in range(stages))


def layers_of(layers: int, stages: int, chunks: int = 1) -> tuple[tuple[int, ...], ...]:
    """Which layers each stage holds: neighbours, or ``chunks`` runs of neighbours that go round the stages.

    >>> layers_of(8, 2), layers_of(8, 2, 2)
    (((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 1, 4, 5), (2, 3, 6, 7)))
    """
    return _layers_of(layers, integer("pipeline", stages, 1, LARGEST), integer("chunks", chunks, 1, LARGEST))


@lru_cache(maxsize=64)  # every stage asks for all of them
def _layers_of(layers: int, stages: int, chunks: int) -> tuple[tuple[int, ...], ...]:
    sizes = [many // chunks for many in stage_layers(layers, stages)] * chunks
    ends = list(accumulate(sizes, initial=0))
    runs = [range(ends[part], ends[part + 1]) for part in range(stages * chunks)]
    return tuple(tuple(layer for run in runs[stage::stages] for layer in run) for stage in range(stages))


def check_schedule(schedule: str, layers: int, stages: int, micro_batches: int, chunks: int) -> None:
    """The rules of a schedule; ``chunks``: model chunks on each stage (1 unless interleaved)."""
    one_of("schedule", schedule, SCHEDULES)
    if schedule != "interleaved":
        if chunks != 1:
            raise LabError(f"chunks={chunks} needs schedule='interleaved'; {schedule} has one chunk on each stage.")
        return
    if chunks < 2 or stages < 2:
        raise LabError(f"an interleaved schedule needs chunks >= 2 and pipeline >= 2, not {chunks} and {stages}.")
    if layers % (stages * chunks):
        raise LabError(f"{layers} layers do not divide into pipeline*chunks = {stages}*{chunks} equal chunks.")
    demand_groups(micro_batches, stages)


def demand_groups(micro_batches: int, stages: int) -> None:
    """An error unless an interleaved schedule can take so many micro-batches."""
    if more := micro_batches % stages:
        below = micro_batches - more
        raise LabError(
            f"interleaved takes micro-batches in groups of {stages}; micro_batches={micro_batches} is no multiple of "
            f"it; the nearest: {f'{below}, ' if below else ''}{below + stages}."
        )


def chunks_in_flight(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> tuple[int, ...]:
    """For how many micro-batches a stage holds the activations of each of its model chunks when it holds the most.

    GPipe: all of them. 1F1B: stage i holds ``stages - i`` (Narayanan et al., arXiv 2104.04473, section 2.2).
    Interleaved: a stage has run ``2 (stages - i - 1) + (chunks - 1) stages + 1`` chunks forward when its first backward
    pass begins, ``stages`` micro-batches through one chunk, then through the next.

    >>> chunks_in_flight("1f1b", 0, 8, 32), chunks_in_flight("interleaved", 0, 8, 32, 2)
    ((8,), (15, 8))
    """
    stage, stages = integer("stage", stage, 0, LARGEST), integer("stages", stages, 1, LARGEST)
    micro_batches, chunks = integer("micro_batches", micro_batches, 1, LARGEST), integer("chunks", chunks, 1, LARGEST)
    if schedule == "gpipe":
        return (micro_batches,)
    if schedule == "1f1b":
        return (min(micro_batches, stages - stage),)
    done = min(micro_batches * chunks, 2 * (stages - stage - 1) + (chunks - 1) * stages + 1)
    rounds, rest = divmod(done, stages * chunks)
    return tuple(rounds * stages + max(0, min(stages, rest - chunk * stages)) for chunk in range(chunks))


def in_flight(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> Fraction:
    """The same in micro-batches through all layers of the stage.

    The first stage's ``stages (1 + (stages - 1) / (stages chunks))`` under an interleaved schedule is the factor of
    Korthikanti et al. (arXiv 2205.05198, section 4.2.3).

    >>> in_flight("interleaved", 0, 8, 32, 2)
    Fraction(23, 2)
    """
    return Fraction(sum(chunks_in_flight(schedule, stage, stages, micro_batches, chunks)), chunks)


def bubble(stages: int, micro_batches: int, chunks: int = 1) -> Fraction:
    """Idle time over ideal time: ``(p - 1) / m`` for GPipe and 1F1B, ``(p - 1) / (v m)`` with v interleaved chunks.

    Narayanan et al., arXiv 2104.04473, sections 2.2.1 and 2.2.2.

    >>> bubble(8, 32)
    Fraction(7, 32)
    """
    stages = integer("stages", stages, 1, LARGEST)
    micro_batches = integer("micro_batches", micro_batches, 1, LARGEST)
    chunks = integer("chunks", chunks, 1, LARGEST)
    return Fraction(stages - 1, micro_batches * chunks)


def idle(stages: int, micro_batches: int, chunks: int = 1) -> Fraction:
    """Idle time over all time, ``(p - 1) / (v m + p - 1)``: the share that Huang et al. (GPipe, 1811.06965) give.

    >>> idle(4, 16)
    Fraction(3, 19)
    """
    ratio = bubble(stages, micro_batches, chunks)
    return ratio / (1 + ratio)
