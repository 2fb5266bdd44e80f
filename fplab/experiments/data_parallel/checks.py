"""The experiment's claims."""

from __future__ import annotations

import numpy as np

from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, Sample, absent, failed, measured, passed, verdict
from ..legacy import Check
from .data import KINDS, Params

FAR = 1e-6


def check_bytes(arrays: Arrays, params: Params) -> Outcome:
    """Every rank, every kind; the workers of a parameter server have no states."""
    wanted = arrays["estimated"].copy()
    if "parameter-server" in params.strategies:
        wanted[params.strategies.index("parameter-server"), 1:, KINDS.index("states")] = 0
    for s, r, k in np.argwhere(arrays["held"] != wanted):
        return failed(f"{params.strategies[s]}, rank {r}: {KINDS[k]} {arrays['held'][s, r, k]}, not {wanted[s, r, k]}")
    pad = int(arrays["padding"].sum())
    return passed(
        f"{len(params.strategies)} strategies, {params.ranks} ranks, {wanted.size} numbers; padding {pad} bytes"
    )


def check_messages(arrays: Arrays, params: Params) -> Outcome:
    """Stages 1 and 2 send two messages of the model's size where DDP all-reduces one, stage 3 sends three."""
    told: list[str] = []
    for name, sent, said in zip(params.strategies, arrays["sent"].tolist(), arrays["said"].tolist(), strict=True):
        if name in ("zero1", "zero2", "zero3") and sent != said:
            return failed(f"{name}: {sent:,} bytes in a step, calculated {said:,}")
        told.append(f"{name} {sent:,}")
    by = dict(zip(params.strategies, arrays["sent"].tolist(), strict=True))
    if {"zero2", "zero3"} <= by.keys() and abs(by["zero3"] / by["zero2"] - 1.5) > 0.01:
        return failed(f"zero3 sends {by['zero3'] / by['zero2']:.3f} times what zero2 sends")
    return passed("bytes of messages in a step: " + ", ".join(told))


def check_bits(arrays: Arrays, params: Params) -> Outcome:
    """In the order in which the processes add, one process ends with the same weights."""
    if params.ranks < 3:
        return absent("two addends have one sum, whatever the order")
    wrong = dict(zip(params.strategies, arrays["same_order"].tolist(), strict=True))
    return verdict(not any(wrong.values()), f"{int(arrays['weights']):,} weights after {params.steps} steps: {wrong}")


def check_whole(arrays: Arrays, params: Params) -> Outcome:
    """The whole batch at once is another order of additions: other bits, by strategy, and how far they reach.

    The margin: 1e-6, about 32 units of the last place of a weight near 1/2.
    """
    counts, far = arrays["whole"], arrays["distance"][:, 1]
    near = np.allclose(arrays["losses"], arrays["plain_losses"], rtol=1e-6, atol=0)
    detail = f"{counts.min()} to {counts.max()} weights differ, by {far.max():.1e} at most; losses within 1e-6"
    holds = bool(near and counts.min() > 0 and far.max() < FAR)
    return measured(holds, detail, Sample(len(far), float(far.std()), FAR))


PROVED, LIBRARY, MEASURED = Evidence.PROVED, Evidence.LIBRARY, Evidence.MEASURED
CHECKS = (
    Check("every rank holds the bytes that the calculator says", LIBRARY, check_bytes),
    Check("ZeRO's messages are the calculator's: stage 3 sends half as much again", LIBRARY, check_messages),
    Check("every strategy ends with the bits of one process that adds in its order", LIBRARY, check_bits),
    Check("training on the whole batch at once differs in the last bits only", MEASURED, check_whole),
)
