"""What a GPU must hold: bytes by kind of a training step, as torch's allocator and autograd report them there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...hardware.cases import Arrays, Case, Meta
from ...memory import estimate
from .measure import Params, tokens_of

if TYPE_CHECKING:
    import torch

PRECISIONS = ("fp32", "mixed", "bf16")


def inputs_of(params: Params) -> Arrays:
    """Tokens as bits."""
    tokens, targets = tokens_of(params.model, params.batch)
    return {"tokens": tokens.numpy().view(np.uint64), "targets": targets.numpy().view(np.uint64)}


def requested(device: str) -> int:
    """Bytes that are requested from the GPU's allocator now, without its rounding."""
    import torch

    torch.cuda.synchronize(device)
    return int(torch.cuda.memory_stats(device)["requested_bytes.all.current"])


def held_states(params: Params, precision: str, inputs: tuple[torch.Tensor, ...], device: str) -> list[int]:
    """Parameters, gradients, master weights and moments in bytes: the allocator's on a GPU, tracked on a CPU."""
    import torch

    from ...memory.measuring import Trainer, measured_step
    from ...memory.networks import build

    dtype = torch.float32 if precision == "fp32" else torch.bfloat16

    def trainer(module: torch.nn.Module) -> Trainer:
        return Trainer(module, precision, lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))

    if not device.startswith("cuda"):
        one = trainer(build(params.model, dtype=dtype))
        kinds = measured_step(one, *inputs).kinds
        counts = sum(state.nbytes for state in one.states() if state.ndim == 0)  # a GPU's stay in CPU memory
        return [kinds["parameters"], kinds["gradients"], kinds["master"], kinds["states"] - counts]
    warm = trainer(build(params.model, device, dtype))  # libraries take their workspaces once
    warm.module(*inputs).backward()
    warm.update()
    del warm
    marks = [requested(device)]
    module = build(params.model, device, dtype)
    marks.append(requested(device))
    made = trainer(module)
    marks.append(requested(device))
    made.module(*inputs).backward()
    marks.append(requested(device))
    made.update()  # which also frees the gradients
    marks.append(requested(device))
    parameters, master, gradients, after = np.diff(marks).tolist()
    return [parameters, gradients, master, after + gradients]


def device_states(inputs: Arrays, device: str, params: Params) -> Arrays:
    """Model states of each precision: (precision, kind)."""
    batch = _batch(inputs, device)
    return {"bytes": np.array([held_states(params, p, batch, device) for p in PRECISIONS], np.uint64)}


def lab_states(inputs: Arrays, meta: Meta, params: Params) -> Arrays:
    """The calculator's."""
    ranks = [estimate(params.model, precision=p).fullest.device for p in PRECISIONS]
    kinds = ("parameters", "gradients", "master", "states")
    return {"bytes": np.array([[rank[kind] for kind in kinds] for rank in ranks], np.uint64)}


def device_saved(inputs: Arrays, device: str, params: Params) -> Arrays:
    """Bytes that autograd saves on the device in FP32, without and with recomputation of every layer."""
    from ...memory.networks import build
    from ...memory.tracing import saved_by

    batch = _batch(inputs, device)
    networks = [build(params.model, device, recompute=how) for how in ("none", "selective", "full")]
    return {"bytes": np.array([sum(s.bytes for s in saved_by(n, *batch)) for n in networks], np.uint64)}


def lab_saved(inputs: Arrays, meta: Meta, params: Params) -> Arrays:
    """The same, traced on the meta device."""
    from ...memory.networks import build
    from ...memory.tracing import trace

    batch = _batch(inputs, "cpu")
    networks = [build(params.model, "meta", recompute=how) for how in ("none", "selective", "full")]
    return {"bytes": np.array([sum(s.bytes for s in trace(n, *batch)) for n in networks], np.uint64)}


def _batch(inputs: Arrays, device: str) -> tuple[Any, ...]:
    import torch

    return tuple(torch.from_numpy(inputs[name].view(np.int64)).to(device) for name in ("tokens", "targets"))


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """Model states, which are settled, and saved activations, of which hardware is asked."""
    return (
        Case(
            "model_states",
            lambda: inputs_of(params),
            lambda inputs, device: device_states(inputs, device, params),
            lambda inputs, meta: lab_states(inputs, meta, params),
            {"bytes": "bits64"},
        ),
        Case(
            "saved_activations",
            lambda: inputs_of(params),
            lambda inputs, device: device_saved(inputs, device, params),
            lambda inputs, meta: lab_saved(inputs, meta, params),
            {"bytes": "bits64"},
            open="does autograd on this GPU save, in FP32, exactly what the meta device traces?",
            hypotheses={"as on shapes alone": lambda inputs, meta: lab_saved(inputs, meta, params)},
        ),
    )
