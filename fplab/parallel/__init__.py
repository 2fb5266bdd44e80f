"""Parallel training: collectives in low precision, pipeline schedules, and real runs of several processes.

``collectives`` and ``schedules`` are data and what follows from it; ``gloo`` is the order in which torch's CPU backend
adds. ``launch`` starts real runs of several processes: each is ``run``, which trains by ``data_parallel``, ``zero``
or ``model_parallel`` and leaves a :class:`RankResult`; ``reference`` does the same sums in one process.
"""

from ..lazily import index
from . import collectives, gloo, schedules
from .collectives import Collective, Wire, all_reduce, execute, reduce_fast
from .launching import launch
from .schedules import Timeline, timeline
from .settings import STRATEGIES, RankResult, Result, Sent, Setting

__all__ = [
    "STRATEGIES", "Collective", "RankResult", "Result", "Sent", "Setting", "Timeline", "Wire", "all_reduce",
    "collectives", "execute", "gloo", "launch", "reduce_fast", "schedules", "timeline",
]  # fmt: skip

index(__name__)
