"""What a GPU must compute for the claims; everything but the ``lab_`` functions runs with numpy and torch alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import fplab

from ...hardware.cases import Arrays, Case, Meta
from ...hardware.tensors import TORCH, bits, overflow_of, tensor
from .data import FORMATS, HALVES, Params, gather, gradients, scaled, spread

CASE_SCALES = (0, 3, 8, 15, 24)


@functools.lru_cache(maxsize=2)
def case_inputs(params: Params) -> Arrays:
    """A sample of true gradients, and of weights with their updates, as the bits of FP32."""
    arrays = gather(params, lambda _done, _text: None)
    g = gradients(arrays)
    moving = np.flatnonzero(arrays["updates"])
    moving = moving[spread(arrays["updates"][moving], params.sample)]
    values = {
        "gradients": g[spread(g, params.sample)],
        "weight_gradients": arrays["weight"][spread(arrays["weight"], params.sample)],
        "lr": np.array([params.lr], np.float32),
        "weights": arrays["weights"][moving],
        "updates": arrays["updates"][moving],
    }
    return {name: x.view(np.uint32) for name, x in values.items()}


def narrowed(tensor: Any, fmt: str) -> Any:
    """torch's cast of a tensor."""
    import torch

    return tensor.to(getattr(torch, TORCH[fmt]))


def torch_cast(values: np.ndarray, fmt: str) -> np.ndarray:
    """torch's cast of FP32 values on the CPU, as codes; on one thread, as torch's others go on spinning for a while."""
    from ...training.loop import one_thread

    with one_thread():
        return bits(narrowed(tensor(values.view(np.uint32), "fp32", "cpu"), fmt))


def torch_version() -> str:
    """The version of the torch that is installed."""
    import torch

    return str(torch.__version__)


def device_casts(inputs: Arrays, device: str) -> Arrays:
    """Every sampled gradient times every loss scale in FP32, cast to each format: codes (scales, n)."""
    g = tensor(inputs["gradients"], "fp32", device)
    return {f: np.stack([bits(narrowed(g * 2.0 ** int(s), f)) for s in inputs["exponents"]]) for f in FORMATS}


def lab_casts(inputs: Arrays, meta: Meta) -> Arrays:
    """The same casts by the lab's kernels; torch's overflow in E4M3 depends on its version."""
    g = inputs["gradients"].view(np.float32)
    policies = {f: overflow_of(f, str(meta["torch"])) for f in FORMATS}
    return {
        f: np.stack([fplab.encode(scaled(g, int(s)), f, overflow=policy) for s in inputs["exponents"]])
        for f, policy in policies.items()
    }


def device_operation(name: str, left: str, right: str) -> Callable[[Arrays, str], Arrays]:
    """Operands cast to half precision on the device, and one torch operation on them there."""

    def compute(inputs: Arrays, device: str) -> Arrays:
        import torch

        a, b = (tensor(inputs[x], "fp32", device) for x in (left, right))
        return {f: bits(getattr(torch, name)(narrowed(a, f), narrowed(b, f).expand_as(a))) for f in HALVES}

    return compute


def lab_operation(name: str, left: str, right: str) -> Callable[[Arrays, Meta], Arrays]:
    """The same by the lab's kernels."""

    def emulate(inputs: Arrays, meta: Meta) -> Arrays:
        a, b = (inputs[x].view(np.float32) for x in (left, right))
        return {f: fplab.encode(getattr(fplab, name)(a, np.broadcast_to(b, a.shape), f), f) for f in HALVES}

    return emulate


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """The casts, the product with the learning rate and the sum with the weight, on a sample of the true values."""

    def sample(*names: str) -> Arrays:
        return {name: case_inputs(params)[name] for name in names}

    def casts() -> Arrays:
        return sample("gradients") | {"exponents": np.array(CASE_SCALES, np.uint8)}

    def operation(case: str, name: str, left: str, right: str) -> Case:
        device, lab = device_operation(name, left, right), lab_operation(name, left, right)
        return Case(case, lambda: sample(left, right), device, lab, {f: f for f in HALVES})

    return (
        Case("scaled_casts", casts, device_casts, lab_casts, {f: f for f in FORMATS}),
        operation("gradient_times_lr", "mul", "weight_gradients", "lr"),
        operation("weight_plus_update", "add", "weights", "updates"),
    )
