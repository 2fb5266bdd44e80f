"""Each operation of an optimizer is rounded once; in FP32 the bits are numpy's, and torch's but for two things."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_runs import Make, oracle_round, run, same, slopes, start

import fplab
from fplab.experiments.torch_bits import WITH_FMA
from fplab.training.optimizers import SGD, Adam, AdamW
from fplab.training.optimizers.arithmetic import rounded

HELD = [f.name for f in fplab.formats.TABLE if f.signed and f.fits_float32]


def random_values(n: int, seed: int) -> np.ndarray:
    """float32 of every kind: any bits, and numbers of ordinary size."""
    rng = np.random.default_rng(seed)
    wild = rng.integers(0, 2**32, n, dtype=np.uint64).astype(np.uint32).view(np.float32)
    tame = (rng.standard_normal(n) * np.exp2(rng.integers(-30, 20, n))).astype(np.float32)
    return np.where(rng.random(n) < 0.5, wild, tame)


def as_float32(values: np.ndarray) -> np.ndarray:
    """Values that float32 holds, signalling NaNs made quiet without a warning."""
    with np.errstate(invalid="ignore"):
        return np.asarray(values, np.float32)


# --- one operation, rounded once -----------------------------------------------------------------------------------
@pytest.mark.parametrize("fmt", HELD)
def test_an_operation_of_any_operands_is_rounded_once(fmt: str) -> None:
    """Against the rounding of the float64 result: exact for products, safe for quotients and roots (2p + 2 <= 53)."""
    a, b = random_values(6_000, 0), random_values(6_000, 1)
    a, b = (np.where(np.isnan(x), np.float32(np.nan), x) for x in (a, b))
    if not fplab.formats.get(fmt).has_nan:
        a, b = np.abs(np.where(np.isfinite(a), a, 1)), np.where(np.isfinite(b) & (b != 0), b, 1).astype(np.float32)
    wide = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        exactly = {"mul": wide[0] * wide[1], "div": wide[0] / wide[1], "sqrt": np.sqrt(wide[0]), "hold": wide[0]}
    for operation, value in exactly.items():
        assert same(rounded(operation, a, b, fmt), as_float32(fplab.quantize(value, fmt))), operation
        noisy = as_float32(fplab.quantize(value, fmt, "stochastic", seed=9))
        assert same(rounded(operation, a, b, fmt, seed=9), noisy), operation


def around_ties(fmt: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Operands whose sum lies at a midpoint of the format, or so little beside it that float64 does not see it."""
    form, rng = fplab.formats.get(fmt), np.random.default_rng(seed)
    codes = rng.integers(1 << form.fraction_bits, form.max_code - 1, 120)
    low, high = (np.array([form.magnitude(int(c) + k) for c in codes]) for k in (0, 1))
    middle = ((low + high) / 2).astype(np.float32)  # one bit more than the format: exact
    tiny = np.ldexp(rng.choice([-1.0, 0.0, 1.0], 120), rng.integers(-140, -100, 120)).astype(np.float32)
    return middle, tiny


@pytest.mark.parametrize("fmt", ["tf32", "bf16", "fp16", "e5m2", "e4m3", "e4m3fnuz", "e2m1"])
def test_a_sum_is_rounded_once_even_where_float64_would_round_it_onto_a_tie(fmt: str) -> None:
    middle, tiny = around_ties(fmt, 2)
    for a, b, operation in (
        (middle, tiny, "add"),
        (tiny, middle, "add"),
        (-middle, tiny, "add"),
        (middle, tiny, "sub"),
    ):
        sign = -1 if operation == "sub" else 1
        want = [oracle_round(Fraction(float(x)) + sign * Fraction(float(y)), fmt) for x, y in zip(a, b, strict=True)]
        assert same(rounded(operation, a, b, fmt), np.array(want, np.float32))
    naive = fplab.quantize(middle.astype(np.float64) + tiny.astype(np.float64), fmt).astype(np.float32)
    assert (rounded("add", middle, tiny, fmt) != naive).any()  # so rounding to odd first is needed


def test_sums_of_any_float32_are_correctly_rounded() -> None:
    a, b = random_values(3_000, 3), random_values(3_000, 4)
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        assert same(rounded("add", a, b), a + b)  # numpy's own float32 sum
        assert same(rounded("sub", a, b), a - b)
    a, b = a[finite][:300], b[finite][:300]
    for fmt in ("bf16", "fp16"):
        want = [oracle_round(Fraction(float(x)) + Fraction(float(y)), fmt) for x, y in zip(a, b, strict=True)]
        assert np.array_equal(rounded("add", a, b, fmt), np.array(want, np.float32))


def test_a_result_may_overwrite_an_operand_and_threads_change_nothing() -> None:
    a, b = random_values(200_001, 5), random_values(200_001, 6)
    want = {seed: rounded("add", a, b, "bf16", seed=seed) for seed in (None, 4)}
    before = fplab.num_threads()
    try:
        for threads in (1, 3):
            fplab.set_num_threads(threads)
            for seed, expected in want.items():
                left, right = a.copy(), b.copy()
                assert same(rounded("add", left, b, "bf16", seed=seed, out=left), expected)
                assert same(rounded("add", a, right, "bf16", seed=seed, out=right), expected)
    finally:
        fplab.set_num_threads(before)


# --- FP32: a numpy oracle, and torch -------------------------------------------------------------------------------
def numpy_fma(a: np.ndarray, b: Any, c: np.ndarray) -> np.ndarray:
    return np.asarray(fplab.fma(a, np.broadcast_to(np.float32(b), np.shape(a)), c, "fp32"))


class Oracle:
    """SGD and Adam in numpy's float32, written from the formulas; ``contract`` fuses what torch's CPU kernels fuse."""

    def __init__(self, weight: np.ndarray, contract: bool, sqrt: Callable[[np.ndarray], np.ndarray]) -> None:
        self.w, self.contract, self.sqrt = weight.copy(), contract, sqrt
        self.velocity, self.m, self.v = (np.zeros_like(weight) for _ in range(3))
        self.step = 0

    def plus(self, c: np.ndarray, a: np.ndarray, b: Any) -> np.ndarray:
        """c + a * b in float32, with one rounding or with two."""
        return numpy_fma(a, b, c) if self.contract else c + a * np.asarray(b, np.float32)

    def sgd(self, g: np.ndarray, lr: float, momentum: float, decay: float, nesterov: bool) -> None:
        f = np.float32
        g = self.plus(g, self.w, f(decay)) if decay else g
        if momentum:
            self.velocity = self.velocity * f(momentum) + g
            g = self.plus(g, self.velocity, f(momentum)) if nesterov else self.velocity
        self.w = self.plus(self.w, g, f(-lr))

    def adam(
        self, g: np.ndarray, lr: float, betas: tuple[float, float], eps: float, decay: float, decoupled: bool
    ) -> None:
        f, (beta1, beta2) = np.float32, betas
        self.step += 1
        if decay and decoupled:
            self.w = self.w * f(1 - lr * decay)
        elif decay:
            g = self.plus(g, self.w, f(decay))
        self.m = self.plus(self.m, g - self.m, f(1 - beta1))
        self.v = self.plus(self.v * f(beta2), g * f(1 - beta2), g)
        root = self.sqrt(self.v) / f((1 - beta2**self.step) ** 0.5) + f(eps)
        self.w = self.w + self.m * f(-(lr / (1 - beta1**self.step))) / root


KINDS: dict[str, tuple[Make, Make, Callable[[Oracle, np.ndarray], None]]] = {
    "sgd": (
        lambda p: SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1, foreach=False),
        lambda o, g: o.sgd(g, 0.1, 0, 0, False),
    ),
    "sgd_l2": (
        lambda p: SGD(p, 0.1, weight_decay=0.03),
        lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.03, foreach=False),
        lambda o, g: o.sgd(g, 0.1, 0, 0.03, False),
    ),
    "momentum": (
        lambda p: SGD(p, 0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, 0.9, foreach=False),
        lambda o, g: o.sgd(g, 0.1, 0.9, 0, False),
    ),
    "nesterov": (
        lambda p: SGD(p, 0.1, 0.9, 0.01, True),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01, nesterov=True, foreach=False),
        lambda o, g: o.sgd(g, 0.1, 0.9, 0.01, True),
    ),
    "adam": (
        lambda p: Adam(p, 2e-3, (0.8, 0.95), 1e-6),
        lambda p: torch.optim.Adam(p, 2e-3, (0.8, 0.95), 1e-6, foreach=False),
        lambda o, g: o.adam(g, 2e-3, (0.8, 0.95), 1e-6, 0, False),
    ),
    "adam_l2": (
        lambda p: Adam(p, weight_decay=0.1), lambda p: torch.optim.Adam(p, weight_decay=0.1, foreach=False),
        lambda o, g: o.adam(g, 1e-3, (0.9, 0.999), 1e-8, 0.1, False),
    ),
    "adamw": (
        lambda p: AdamW(p, weight_decay=0.1), lambda p: torch.optim.AdamW(p, weight_decay=0.1, foreach=False),
        lambda o, g: o.adam(g, 1e-3, (0.9, 0.999), 1e-8, 0.1, True),
    ),
}  # fmt: skip


def torch_sqrt(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).sqrt().numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_in_fp32_every_bit_is_the_numpy_oracles(kind: str) -> None:
    ours, _, formula = KINDS[kind]
    oracle = Oracle(start(), contract=False, sqrt=np.sqrt)
    gradients = slopes(30)
    for gradient in gradients:
        formula(oracle, gradient)
    assert same(run(ours, start(), gradients)[0], oracle.w)


@pytest.mark.parametrize("kind", KINDS)
def test_torchs_bits_differ_by_contraction_and_its_square_root_alone(kind: str) -> None:
    """The oracle with both put in is torch bit for bit, so nothing else differs; without them it is not."""
    ours, theirs, formula = KINDS[kind]
    contract = torch.backends.cpu.get_cpu_capability() in WITH_FMA
    oracle = Oracle(start(), contract=contract, sqrt=torch_sqrt)
    gradients = slopes(30)
    for gradient in gradients:
        formula(oracle, gradient)
    torchs, _ = run(theirs, start(), gradients)
    assert same(torchs, oracle.w)
    assert (torchs != run(ours, start(), gradients)[0]).any() or not contract


def test_torchs_square_root_is_one_bit_off_at_most_and_this_one_never() -> None:
    """Named apart: torch's FP32 root may be one bit off (which are, is the CPU's choice); numpy's never is."""
    states = np.random.default_rng(0).random(100_000).astype(np.float32)
    assert same(np.sqrt(states), rounded("sqrt", states))
    off = torch_sqrt(states).view(np.int32) - np.sqrt(states).view(np.int32)
    assert np.abs(off).max() <= 1
