"""The memory calculator: 405 billion parameters in less than 50 ms."""

from __future__ import annotations

from .timing import judged, seconds, table

GOAL = 50.0


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
    rows = []
    for name, work in requests.items():
        for cache in (tensors_of, handed_out, stages, chunks_of):
            cache.cache_clear()
        first, again = seconds(work), min(seconds(work) for _ in range(20))
        rows.append((name, judged(f"memory, {name}, ms", first * 1e3, GOAL, ".1f"), f"{again * 1e3:.1f}"))
    print(table("memory calculator", ("request", f"first, ms (goal {GOAL:g})", "again"), rows))
