"""The experiment's claims."""

from __future__ import annotations

import numpy as np

from ...hardware.cases import Arrays
from ..base import Check, Evidence, Outcome, failed, passed, verdict
from .data import KINDS, Params


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
    told = []
    for name, sent, said in zip(params.strategies, arrays["sent"].tolist(), arrays["said"].tolist(), strict=True):
        if name in ("zero1", "zero2", "zero3") and sent != said:
            return failed(f"{name}: {sent:,} bytes in a step, calculated {said:,}")
        told.append(f"{name} {sent:,}")
    return passed("bytes of messages in a step: " + ", ".join(told))


def check_bits(arrays: Arrays, params: Params) -> Outcome:
    """In the order in which the processes add, one process ends with the same weights."""
    wrong = dict(zip(params.strategies, arrays["same_order"].tolist(), strict=True))
    return verdict(not any(wrong.values()), f"{int(arrays['weights']):,} weights after {params.steps} steps: {wrong}")


def check_whole(arrays: Arrays, params: Params) -> Outcome:
    """The whole batch at once is another order of additions: other last bits, and no more."""
    counts, far = arrays["whole"], arrays["distance"][:, 1].max()
    near = np.allclose(arrays["losses"], arrays["plain_losses"], rtol=1e-6, atol=0)
    detail = f"{counts.min()} to {counts.max()} weights differ, by {far:.1e} at most; losses within 1e-6"
    return verdict(bool(near and counts.min() > 0 and far < 1e-6), detail)


def check_order(arrays: Arrays, params: Params) -> Outcome:
    """Two addends have one sum, whatever the strategy; gloo's is that of torch itself."""
    import torch

    from ...parallel import gloo

    rows = np.random.Philox(key=3).random_raw(4 * 1000).astype(np.float32).reshape(4, 1000) * np.float32(2.0**-64)
    total = gloo.all_reduce(rows)
    given, at = torch.from_numpy(rows), gloo.chunks(1000, 4)
    for chunk in range(4):
        one, *others = gloo.order(chunk, 4)
        acc = given[one]
        for rank in others:
            acc = acc + given[rank]
        if not np.array_equal(acc.numpy()[at == chunk], total[at == chunk]):
            return failed(f"chunk {chunk} differs")
    return passed("4 ranks, 1,000 elements, every bit")


CHECKS = (
    Check("every rank holds the bytes that the calculator says", Evidence.EXACT, check_bytes),
    Check("ZeRO's messages are the calculator's: stage 3 sends half as much again", Evidence.EXACT, check_messages),
    Check("every strategy ends with the bits of one process that adds in its order", Evidence.LIBRARY, check_bits),
    Check("training on the whole batch at once differs in the last bits only", Evidence.LIBRARY, check_whole),
    Check("gloo's ring, as modelled, is torch's additions", Evidence.LIBRARY, check_order),
)
