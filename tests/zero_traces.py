"""A rank's trace under ZeRO with whole parameters free right after their last use, whenever gloo's thread lets go."""

from typing import Any


def settled(rows: list[Any]) -> list[Any]:
    """``rows`` of :class:`fplab.parallel.zero.Trace`, each "free parameters" where a buffer is needed no longer."""
    if not any(act == "free parameters" for _, act, _, _ in rows):
        return rows
    counts = [[row[3][layer][0] for row in rows] for layer in range(len(rows[0][3]))]
    whole: set[int] = set()
    found = []

    def add(during: str, act: str, layer: int, after: list[list[int]]) -> None:
        parameters = [(max if i in whole else min)(count) for i, count in enumerate(counts)]
        found.append([during, act, layer, [[p, *rest] for p, (_, *rest) in zip(parameters, after, strict=True)]])

    for during, act, layer, after in rows:
        if act == "free parameters":
            continue
        if act == "all-gather":
            whole.add(layer)
        add(during, act, layer, after)
        if (during, act) in (("forward", "compute"), ("backward", "gradient")):
            whole.remove(layer)
            add(during, "free parameters", layer, after)
    return found
