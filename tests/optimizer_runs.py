"""What the tests of the optimizers share: weights, gradients, a run, and rounding by the oracle."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from torch import nn

import fplab
from fplab import exact

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
N = 700


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit, NaNs as NaNs."""
    nan = np.isnan(a)
    return bool((nan == np.isnan(b)).all() and (a[~nan].view(np.uint32) == b[~nan].view(np.uint32)).all())


def oracle_round(x: Fraction, fmt: str) -> float:
    """A Fraction rounded to nearest, ties to even, by the exact oracle."""
    code, _ = exact.round_to(exact.Exact(x < 0, abs(x)), fmt)
    return float(fplab.decode(np.array([code], np.uint64), fmt, dtype=np.float64)[0])


def start(seed: int = 0, n: int = N) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * 0.1).astype(np.float32)


def slopes(steps: int, n: int = N, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(n) * np.exp2(rng.integers(-12, 1, n))).astype(np.float32) for _ in range(steps)]


def run(make: Make, weight: np.ndarray, gradients: list[np.ndarray]) -> tuple[np.ndarray, torch.optim.Optimizer]:
    """The weights after steps with these gradients."""
    parameter = nn.Parameter(torch.from_numpy(weight.copy()))
    optimizer = make([parameter])
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    return parameter.detach().numpy(), optimizer
