"""What a GPU must give: gradients without and with recomputation, whose bits do not differ."""

from __future__ import annotations

import numpy as np

from ...hardware.cases import Arrays, Case, Meta
from .steps import PRECISIONS, Params, gradients, network_of, tokens_of


def inputs_of(params: Params) -> Arrays:
    """Tokens as bits."""
    tokens, targets = tokens_of(params)
    return {"tokens": tokens.numpy().view(np.uint64), "targets": targets.numpy().view(np.uint64)}


def device_differ(inputs: Arrays, device: str, params: Params) -> Arrays:
    """Bytes of the gradients that differ from those without recomputation: (precision, way)."""
    import torch

    batch = tuple(torch.from_numpy(inputs[name].view(np.int64)).to(device) for name in ("tokens", "targets"))
    out = np.zeros((len(PRECISIONS), len(params.ways)), np.uint64)
    for p, precision in enumerate(PRECISIONS):
        plain = gradients(network_of(params, "none", precision, device), (batch[0], batch[1]))
        for w, way in enumerate(params.ways):
            again = gradients(network_of(params, way, precision, device), (batch[0], batch[1]))
            out[p, w] = np.count_nonzero(again != plain)
    return {"differ": out}


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """One case: no byte differs."""

    def emulate(inputs: Arrays, meta: Meta) -> Arrays:
        return {"differ": np.zeros((len(PRECISIONS), len(params.ways)), np.uint64)}

    return (
        Case(
            "recomputed_gradients",
            lambda: inputs_of(params),
            lambda inputs, device: device_differ(inputs, device, params),
            emulate,
            {"differ": "bits64"},
        ),
    )
