"""Exercises whose numbers are drawn: for each pupil others, and equally hard.

A set is known by its seed and the pupil's name, so that a file of answers needs to name neither.
"""

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import seeds
from ..arithmetic import add
from ..floats import encode, quantize
from ..formats import get
from ..memory import estimate
from ..parallel.collectives import all_reduce
from ..parallel.schedules import timeline
from ..sums import sum as summed
from ..words import say
from .base import Exercise
from .chapters import registry
from .kinds import Integers, Kind, Ratios
from .tasks import Chapter, Predict
from .tasks import words as spoken

WHOLE = Integers(-(10**12), 10**12)
ROWS: dict[str, tuple[str, int, Kind, dict[str, tuple[int, ...]], Callable[..., Any]]] = {
    # name: (chapter, level, kind of the answer, what each number is drawn from, the answer)
    "drawn_count": ("bits", 1, WHOLE, {"low": tuple(range(-8, 5)), "binades": (3, 4, 5, 6)},
                    lambda low, binades: int(np.diff(encode([2.0**low, 2.0 ** (low + binades)], "fp16"))[0])),
    "drawn_tie": ("rounding", 1, WHOLE, {"x": tuple(range(2051, 4095, 2))}, lambda x: int(quantize(x, "fp16"))),
    "drawn_stop": ("sums", 2, Ratios(), {"k": tuple(range(2, 11))},
                   lambda k: float(summed([2.0**-k] * 5000, "fp16"))),
    "drawn_scale": ("underflow", 1, WHOLE, {"k": tuple(range(17, 26))},
                    lambda k: next(n for n in range(40) if 2.0 ** (n - k) >= get("fp16").smallest_normal)),
    "drawn_update": ("optimizers", 2, WHOLE, {"e": tuple(range(-7, 4))},
                     lambda e: max(n for n in range(-24, 9) if add(1.5 * 2.0**e, 2.0**n, "fp16") == 1.5 * 2.0**e)),
    "drawn_bytes": ("memory", 2, WHOLE,
                    {"ranks": (4, 8, 16), "share": (2, 3, 5, 7), "stage": (1, 2, 3)},
                    lambda ranks, share, stage: estimate(ranks * share * 10**9, gpus=ranks,
                                                         zero=stage).fullest.states // 10**9),
    "drawn_ring": ("parallel", 1, WHOLE, {"ranks": (4, 5, 8, 10, 16), "share": tuple(range(100, 1000, 50)),
                                          "width": (2, 4)},
                   lambda ranks, share, width: max(all_reduce(ranks).sent(ranks * share)) * width),
    "drawn_idle": ("parallel", 2, Ratios(), {"stages": (3, 4, 5, 6), "micro_batches": (7, 9, 11, 13)},
                   lambda stages, micro_batches: timeline("gpipe", stages, micro_batches).idle()),
}  # fmt: skip


def drawn(seed: int, pupil: str) -> dict[str, Exercise]:
    """The exercises of a seed for a pupil, by name."""
    chapters: dict[str, Chapter] = {exercise.chapter.name: exercise.chapter for exercise in registry().values()}
    return {name: _drawn(name, chapters[row[0]], seed, pupil) for name, row in ROWS.items()}


def _drawn(name: str, chapter: Chapter, seed: int, pupil: str) -> Exercise:
    _, level, kind, choices, answer = ROWS[name]
    words = seeds.bits(len(choices), seed, zlib.crc32(pupil.encode()), zlib.crc32(name.encode()), dtype=np.uint32)
    numbers = {
        field: values[int(word) % len(values)] for (field, values), word in zip(choices.items(), words, strict=True)
    }
    shown = {**numbers, "parameters": numbers.get("ranks", 1) * numbers.get("share", 1)}
    rule = spoken()[name]["rule"]
    task = Predict(kind.read(answer(**numbers)), kind, say(rule, **shown))
    return Exercise(name, chapter, level, task, (), numbers=tuple(shown.items()))
