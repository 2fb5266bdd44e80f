"""What a GPU must compute: the mean of four ranks' gradients in gloo's order, in FP32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.tensors import bits, tensor

if TYPE_CHECKING:
    from .data import Params

RANKS, ELEMENTS = 4, 4096


def inputs() -> Arrays:
    """FP32 between 2^-8 and 2^8, of both signs."""
    raw = philox_bits(11, RANKS * ELEMENTS)
    codes = (raw & np.uint32(0x807FFFFF)) | ((np.uint32(119) + (raw >> np.uint32(23)) % np.uint32(16)) << np.uint32(23))
    return {"rows": codes.reshape(RANKS, ELEMENTS)}


def compute(given: Arrays, device: str) -> Arrays:
    """Each rank's share divided, then added chunk by chunk."""
    import torch

    from ...parallel import gloo

    rows = tensor(given["rows"], "fp32", device) / RANKS
    at, out = torch.from_numpy(gloo.chunks(ELEMENTS, RANKS)).to(device), torch.empty_like(rows[0])
    for chunk in range(RANKS):
        first, *others = gloo.order(chunk, RANKS)
        total = rows[first]
        for rank in others:
            total = total + rows[rank]
        out[at == chunk] = total[at == chunk]
    return {"mean": bits(out)}


def emulate(given: Arrays, meta: Meta) -> Arrays:
    """The same by the lab."""
    from ...parallel import gloo

    return {"mean": gloo.all_reduce(given["rows"].view(np.float32) / np.float32(RANKS)).view(np.uint32)}


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """One case."""
    return (Case("mean of four ranks", inputs, compute, emulate, {"mean": "fp32"}),)
