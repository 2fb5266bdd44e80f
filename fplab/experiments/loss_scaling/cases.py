"""What a GPU must compute for the claims: the two kernels of torch's GradScaler; with numpy and torch alone."""

from __future__ import annotations

import numpy as np

from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.tensors import bits, tensor
from .data import Params

STATES, GRADIENTS = 512, 256
SCALES = (1.0, 3.7, 2.0**16, 2.0**-149, 1e-39, 3e38, 2.0**127, 0.1)
FACTORS = ((2.0, 0.5, 3), (1.5, 0.3, 2), (1000.0, 0.001, 1))  # growth, backoff, interval


def machine_inputs() -> Arrays:
    """Scales of any size, how many good steps, and whether the gradients were finite."""
    raw = philox_bits(421, 3 * STATES, np.uint32).reshape(3, STATES)
    scale = raw[0] & np.uint32(0x7FFFFFFF)
    scale = np.where(scale >= 0x7F800000, scale & np.uint32(0x7F7FFFFF), scale)
    return {"scale": scale.astype(np.uint32), "good": raw[1] >> np.uint32(31), "found": raw[2] >> np.uint32(31)}


def unscale_inputs() -> Arrays:
    """For every scale gradients of any bits; in one half of the rows all are finite."""
    raw = philox_bits(431, len(SCALES) * 2 * GRADIENTS, np.uint32).reshape(-1, GRADIENTS)
    tame = (raw & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
    raw[::2] = np.where(tame[::2], raw[::2] & np.uint32(0xBFFFFFFF), raw[::2])
    return {"gradients": raw}


def device_machine(inputs: Arrays, device: str) -> Arrays:
    """``torch._amp_update_scale_`` on every state, with each set of factors."""
    import torch

    scales, goods = [], []
    for growth, backoff, interval in FACTORS:
        for s, g, f in zip(inputs["scale"], inputs["good"], inputs["found"], strict=True):
            scale = torch.tensor(np.uint32(s).view(np.float32).item(), device=device)
            good = torch.tensor(int(g) % interval, dtype=torch.int32, device=device)
            found = torch.tensor(float(f), device=device)
            torch._amp_update_scale_(scale, good, found, growth, backoff, interval)
            scales.append(scale)
            goods.append(good)
    shape = (len(FACTORS), STATES)
    return {
        "scale": bits(torch.stack(scales)).reshape(shape),
        "good": bits(torch.stack(goods)).reshape(shape),
    }


def lab_machine(inputs: Arrays, meta: Meta) -> Arrays:
    """The same by the lab's state machine."""
    from ...training.scalers import Machine, Tracked

    found = []
    for growth, backoff, interval in FACTORS:
        machine = Machine(1.0, growth, backoff, interval)
        for s, g, f in zip(inputs["scale"].view(np.float32), inputs["good"], inputs["found"], strict=True):
            found.append(machine.after(Tracked(float(s), int(g) % interval), bool(f)))
    shape = (len(FACTORS), STATES)
    return {
        "scale": np.array([t.scale for t in found], np.float32).view(np.uint32).reshape(shape),
        "good": np.array([t.good_steps for t in found], np.uint32).reshape(shape),
    }


def device_unscale(inputs: Arrays, device: str) -> Arrays:
    """GradScaler's reciprocal and ``torch._amp_foreach_non_finite_check_and_unscale_``, a row at a time."""
    import torch

    gradients, founds = [], []
    for i, row in enumerate(inputs["gradients"]):
        gradient = tensor(row, "fp32", device).clone()
        found = torch.zeros((), device=device)
        inverse = torch.tensor(SCALES[i // 2], device=device).double().reciprocal().float()
        torch._amp_foreach_non_finite_check_and_unscale_([gradient], found, inverse)
        gradients.append(gradient)
        founds.append(found)
    return {
        "gradients": bits(torch.stack(gradients)),
        "found": torch.stack(founds).cpu().numpy().astype(np.uint8),
    }


def lab_unscale(inputs: Arrays, meta: Meta) -> Arrays:
    """The same by the lab's arithmetic."""
    from ...training.scalers import unscaled

    rows = inputs["gradients"].view(np.float32)
    results = np.stack([unscaled(row, SCALES[i // 2]) for i, row in enumerate(rows)])
    return {
        "gradients": np.asarray(results, np.float32).view(np.uint32),
        "found": np.array([not np.isfinite(row).all() for row in rows], np.uint8),
    }


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """How the scale moves, and how gradients are unscaled and looked at."""
    return (
        Case("update_scale", machine_inputs, device_machine, lab_machine, {"scale": "fp32", "good": "bits32"}),
        Case("unscale", unscale_inputs, device_unscale, lab_unscale, {"gradients": "fp32", "found": "bits8"}),
    )
