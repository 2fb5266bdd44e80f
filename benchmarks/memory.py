"""The memory calculator: 405 billion parameters in a fifth of the time that importing numpy and numba takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .timing import LIBRARIES, import_seconds, judged, seconds, sized, table

GOAL = 0.2


def main() -> None:
    """Each line: one request, answered for the first time and again (the model's tensors are then known)."""
    from fplab.memory import estimate
    from fplab.memory.models import tensors_of
    from fplab.memory.sharding import handed_out
    from fplab.memory.stages import chunks_of, stages

    large = {"gpus": 4096, "tensor": 8, "pipeline": 8, "micro_batches": 32, "recompute": "full"}
    requests = {
        "405B, one GPU": lambda: estimate("llama3-405b"),
        "405B, 4,096 GPUs, ZeRO-1, TP 8, PP 8": lambda: estimate("llama3-405b", zero=1, **large),
        "405B, the same as a table with the smallest GPUs": lambda: estimate("llama3-405b", zero=1, **large).table(),
        "405B, 512 GPUs, ZeRO-1 by whole tensors": lambda: estimate(
            "llama3-405b", gpus=512, zero=1, partition="tensors"
        ),
        "405B, INT8 inference as JSON": lambda: estimate("llama3-405b", inference="int8").to_json(),
    }
    (libraries,) = import_seconds(LIBRARIES)
    rows = []
    for name, work in requests.items():
        first = min(_anew(work, (tensors_of, handed_out, stages, chunks_of)) for _ in range(sized(3, 1)))
        again = min(seconds(work) for _ in range(20))
        told = judged(f"memory, {name}, times {LIBRARIES}", first / libraries, GOAL)
        rows.append((name, f"{first * 1e3:.1f}", told, f"{again * 1e3:.1f}"))
    head = "request", "first, ms", f"times {LIBRARIES} (goal {GOAL:g})", "again, ms"
    print(table(f"memory calculator ({LIBRARIES}: {libraries:.2f} s)", head, rows))


def _anew(work: Callable[[], object], caches: Iterable[Any]) -> float:
    for cache in caches:
        cache.cache_clear()
    return seconds(work)
