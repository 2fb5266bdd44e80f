"""What a GPU must compute: a trajectory of 8-bit Adam in single torch operations, and the square root it rests on.

Each operation is a kernel of its own and rounds by itself; ``addcmul``, ``lerp`` and ``add`` with ``alpha`` would
contract. FP32 ``sqrt`` is correctly rounded on a GPU by default and not on torch's CPU, so the trajectory takes the
root in FP64 and rounds it, which is right everywhere, and a case of its own asks about FP32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ... import codebooks
from ...codebooks import Codebook, rules
from ...codebooks.thresholds import thresholds
from ...hardware.cases import Arrays, Case, Meta, philox_bits
from ...hardware.tensors import bits, tensor
from .data import Params

if TYPE_CHECKING:
    import torch

BLOCK, SIZE, STEPS = 256, 2048, 12
LR, BETA1, BETA2, EPS = 1e-2, 0.9, 0.999, 1e-8
OUTPUTS = {"weights": "fp32", "codes1": "bits8", "codes2": "bits8", "absmax1": "fp32", "absmax2": "fp32"}


def case_inputs() -> Arrays:
    """Weights, and gradients of every step over many binades: float32 bits."""
    sign_and_fraction = philox_bits(7, SIZE * (STEPS + 1)) & np.uint32(0x807FFFFF)
    exponent = np.uint32(127) - philox_bits(8, SIZE * (STEPS + 1)) % np.uint32(24)
    words = (sign_and_fraction | exponent << np.uint32(23)).reshape(STEPS + 1, SIZE)
    return {"weights": words[0], "gradients": words[1:]}


def step_numbers(t: int) -> tuple[np.float32, np.float32]:
    """The signed step size and epsilon of step ``t``, in float64 and rounded once."""
    root = math.sqrt(1 - BETA2**t)
    return np.float32(-LR * root / (1 - BETA1**t)), np.float32(root * EPS)


class OnDevice:
    """One state on a device: blocks of codes, their scales, and the codebook."""

    def __init__(self, book: Codebook, device: str) -> None:
        import torch

        self.values = torch.from_numpy(book.values.copy()).to(device)
        self.edges = torch.from_numpy(thresholds(book, rules.EVEN).copy()).to(device)
        self.codes = torch.zeros((SIZE // BLOCK, BLOCK), dtype=torch.int64, device=device)
        self.absmax = torch.zeros((SIZE // BLOCK, 1), device=device)
        self.signed = book.signed

    def load(self) -> torch.Tensor:
        """The state in float32."""
        return self.values[self.codes] * self.absmax

    def save(self, state: torch.Tensor) -> None:
        """Quantise; a negative element that would be 0 goes one down."""
        import torch

        self.absmax = state.abs().amax(1, keepdim=True)
        scale = torch.where(self.absmax == 0, torch.ones_like(self.absmax), self.absmax)
        self.codes = torch.bucketize(state / scale, self.edges)
        if self.signed:
            self.codes = self.codes - (torch.signbit(state) & (self.values[self.codes] == 0)).to(torch.int64)


def device_adam(inputs: Arrays, device: str) -> Arrays:
    """Twelve steps; the weights after each, and the states at the end."""
    import torch

    def number(x: float | np.floating) -> torch.Tensor:
        return torch.full((1,), float(np.float32(x)), device=device)

    p = tensor(inputs["weights"], "fp32", device).reshape(-1, BLOCK)
    gradients = tensor(inputs["gradients"], "fp32", device)
    first, second = OnDevice(codebooks.dynamic(), device), OnDevice(codebooks.dynamic(signed=False), device)
    beta1, beta2 = number(BETA1), number(BETA2)
    rest1, rest2 = (number(np.float32(1) - np.float32(beta)) for beta in (BETA1, BETA2))
    path = []
    for t in range(1, STEPS + 1):
        size, eps = map(number, step_numbers(t))
        g = gradients[t - 1].reshape(-1, BLOCK)
        m = torch.add(torch.mul(first.load(), beta1), torch.mul(rest1, g))
        v = torch.add(torch.mul(second.load(), beta2), torch.mul(torch.mul(rest2, g), g))
        root = torch.sqrt(v.double()).float()
        p = torch.add(p, torch.mul(size, torch.div(m, torch.add(root, eps))))
        first.save(m)
        second.save(v)
        path.append(bits(p.flatten()))
    found = {"weights": np.stack(path)}
    for i, state in enumerate((first, second), 1):
        found[f"codes{i}"] = state.codes.to(torch.uint8).flatten().cpu().numpy()
        found[f"absmax{i}"] = bits(state.absmax.flatten())
    return found


def lab_adam(inputs: Arrays, meta: Meta) -> Arrays:
    """The same by the 8-bit optimizer."""
    import torch

    from ...training import Adam8bit

    p = torch.nn.Parameter(tensor(inputs["weights"], "fp32", "cpu").clone())
    optimizer = Adam8bit([p], lr=LR, betas=(BETA1, BETA2), eps=EPS, block=BLOCK, min_8bit_size=0)
    path = []
    for gradient in inputs["gradients"]:
        p.grad = torch.from_numpy(gradient.view(np.float32).copy())
        optimizer.step()
        path.append(p.detach().numpy().copy().view(np.uint32))
    state = optimizer.state[p]
    found = {"weights": np.stack(path)}
    for i in (1, 2):
        found[f"codes{i}"] = state[f"state{i}"].numpy()
        found[f"absmax{i}"] = state[f"absmax{i}"].numpy().view(np.uint32)
    return found


def device_sqrt(inputs: Arrays, device: str) -> Arrays:
    """torch's own square root of float32."""
    import torch

    return {"root": bits(torch.sqrt(tensor(inputs["x"], "fp32", device)))}


def lab_sqrt(inputs: Arrays, meta: Meta) -> Arrays:
    """The correctly rounded square root."""
    import fplab

    return {"root": fplab.sqrt(inputs["x"].view(np.float32), "fp32").view(np.uint32)}


def lab_reciprocal(inputs: Arrays, meta: Meta) -> Arrays:
    """The root as x times its reciprocal, each rounded: what a device without a rounded root may do."""
    x = inputs["x"].view(np.float32)
    return {"root": (x * (1 / np.sqrt(x.astype(np.float64))).astype(np.float32)).view(np.uint32)}


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """The trajectory, and the square root."""
    return (
        Case("adam_trajectory", case_inputs, device_adam, lab_adam, OUTPUTS),
        Case(
            "sqrt",
            lambda: {"x": philox_bits(9, 1 << 14) & np.uint32(0x3FFFFFFF) | np.uint32(0x20000000)},
            device_sqrt,
            lab_sqrt,
            {"root": "fp32"},
            open="Is torch's FP32 square root on this device correctly rounded?",
            hypotheses={"correctly rounded": lab_sqrt, "x times the reciprocal root": lab_reciprocal},
        ),
    )
