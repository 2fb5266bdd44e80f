"""8-bit Adam elsewhere: bitsandbytes on the CPU where it is installed, and single torch operations on a device.

bitsandbytes' quantiser looks an element up in 65,536 even steps and so has no zero (``ties="bitsandbytes cpu"``). Its
Adam differs from the definition in four ways, and with these four is rebuilt here to its very bits:

* states go through that quantiser; in the second one, what the definition stores as 0 comes back as 1.6e-5 of the
  block's maximum, a floor under the root that the update divides by;
* a negative first state may become the value of 0 (the CUDA kernel keeps its sign);
* ``1 - beta`` is taken in float64, and products are contracted into sums, as torch's operations do;
* the step is ``-lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)``: the same number, rounded elsewhere.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import codebooks, numeric
from ...codebooks import Codebook, Quantized, rules
from ...codebooks.thresholds import thresholds
from ...hardware.cases import Arrays, philox_bits
from ...words import say
from ..outcomes import Outcome, absent, failed, passed

if TYPE_CHECKING:
    import torch

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
RULE = "bitsandbytes cpu"
MISSING = say("bitsandbytes is not installed")
BLOCK, STEPS = 256, 12
PEER_SIZE, PEER_RATE = 5000, 1e-3


def peer(name: str) -> Any:
    """A module of bitsandbytes, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def same_codes() -> Outcome:
    """Maps of 2 to 8 bits; codes, scales and values in blocks of four sizes, with zeros and a partial last block."""
    functional = peer("bitsandbytes.functional")
    if functional is None:
        return absent(MISSING)
    import torch

    done = 0
    for signed in (True, False):
        book = codebooks.dynamic(signed)
        for width in range(2, 9):
            made = functional.create_dynamic_map(signed, width - 1, width).numpy()
            if not np.array_equal(made, padded(codebooks.dynamic(signed, width).values)):
                return failed(f"create_dynamic_map({signed}, {width - 1}, {width}) has other values")
        x = np.random.default_rng(5).standard_t(2, 40_000).astype(np.float32)
        x[4096 : 2 * 4096 + 1000] = 0
        x = x if signed else np.abs(x)
        for block in (64, 256, 2048, 4096):
            q, code = codebooks.quantize_blockwise(x, book, block, RULE), torch.from_numpy(book.values.copy())
            theirs, state = functional.quantize_blockwise(torch.from_numpy(x), code=code, blocksize=block)
            back = functional.dequantize_blockwise(theirs, state).numpy()
            wrong = int((q.codes != theirs.numpy()).sum())
            same = np.array_equal(q.absmax, state.absmax.numpy())
            if wrong or not same or not np.array_equal(codebooks.dequantize_blockwise(q), back):
                detail = say("{book}, blocks of {block}: {wrong} of {n:,} codes, or scales or values, differ")
                return failed(detail.fill(book=book.name, block=block, wrong=wrong, n=x.size))
            done += x.size
    return passed(say("{n:,} codes, their scales and their values, and 14 maps", n=done))


def padded(values: np.ndarray) -> np.ndarray:
    """256 values as their maps have them: short ones filled up with zeros."""
    return np.sort(np.concatenate([values, np.zeros(256 - values.size, np.float32)]))


def zeros(signed: bool) -> Quantized:
    """A state before the first step: codes and scales of 0."""
    scales = np.zeros(-(-PEER_SIZE // BLOCK), np.float32)
    return Quantized(np.zeros(PEER_SIZE, np.uint8), scales, codebooks.dynamic(signed), BLOCK)


def rebuilt(p: torch.Tensor, slope: torch.Tensor, states: list[Quantized], t: int) -> list[Quantized]:
    """One step as their CPU library does it: ``p`` is changed, the new states are returned."""
    import torch

    m, v = (torch.from_numpy(codebooks.dequantize_blockwise(state)) for state in states)
    m.mul_(BETA1).add_(slope, alpha=1 - BETA1)
    v.mul_(BETA2).addcmul_(slope, slope, value=1 - BETA2)
    below = v.sqrt().div_(math.sqrt(1 - BETA2**t)).add_(EPS)
    p.addcdiv_(m, below, value=-PEER_RATE / (1 - BETA1**t))
    pairs = zip((m, v), states, strict=True)
    return [codebooks.quantize_blockwise(new.numpy(), old.code, BLOCK, RULE) for new, old in pairs]


def same_adam() -> Outcome:
    """Twelve steps of bitsandbytes' Adam8bit on the CPU, rebuilt with its four differences, bit for bit."""
    optim = peer("bitsandbytes.optim")
    if optim is None:
        return absent(MISSING)
    import torch

    from ...training import Adam8bit

    rng = np.random.default_rng(6)  # gradients over three decades
    slopes = rng.standard_normal((STEPS, PEER_SIZE)) * 10.0 ** rng.integers(-3, 1, PEER_SIZE)
    start, how = torch.linspace(-1, 1, PEER_SIZE), {"lr": PEER_RATE, "betas": (BETA1, BETA2), "eps": EPS}
    theirs, ours = (torch.nn.Parameter(start.clone()) for _ in range(2))
    again, states = start.clone(), [zeros(True), zeros(False)]
    other, mine = optim.Adam8bit([theirs], **how), Adam8bit([ours], block=BLOCK, **how)  # type: ignore[arg-type]
    for t, g in enumerate(map(torch.from_numpy, slopes.astype(np.float32)), 1):
        theirs.grad, ours.grad = g.clone(), g.clone()
        try:
            other.step()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            why = type(error).__name__
            return absent(say("this bitsandbytes has no 8-bit Adam on the CPU ({why})", why=why))
        mine.step()
        states = rebuilt(again, g, states, t)
        codes = (other.state[theirs][f"state{i}"].numpy() for i in (1, 2))
        if not torch.equal(theirs.detach(), again) or not all(map(np.array_equal, codes, (q.codes for q in states))):
            return failed(say("step {t}: weights or codes differ from those rebuilt", t=t))
    moved = (theirs.detach() - start).abs().mean()
    apart = (theirs.detach() - ours.detach()).abs() / moved
    detail = say(
        "{steps} steps of {n:,} weights, every bit. Half of the definition's weights lie within {median:.2%} of the "
        "mean move, {far} farther than the move itself: of the second moments {lost} are stored as 0 by the "
        "definition, {theirs} there"
    ).fill(steps=STEPS, n=PEER_SIZE, median=apart.median().item(), far=int((apart > 1).sum()))
    lost = (int((optimizer.state[p]["state2"] == 0).sum()) for optimizer, p in ((mine, ours), (other, theirs)))
    return passed(detail.fill(**dict(zip(("lost", "theirs"), lost, strict=True))))


# --- on a device ------------------------------------------------------------------------------------------------
# Each torch operation is a kernel of its own and rounds by itself; ``addcmul``, ``lerp`` and ``add`` with ``alpha``
# would contract. FP32 ``sqrt`` is correctly rounded on a GPU by default and not on torch's CPU, so the trajectory takes
# the root in FP64 and rounds it, which is right everywhere, and a case of its own asks about FP32.

CASE_SIZE, CASE_RATE = 2048, 1e-2


def case_inputs() -> Arrays:
    """Weights, and gradients of every step over many binades: float32 bits."""
    sign_and_fraction = philox_bits(7, CASE_SIZE * (STEPS + 1)) & np.uint32(0x807FFFFF)
    exponent = np.uint32(127) - philox_bits(8, CASE_SIZE * (STEPS + 1)) % np.uint32(24)
    words = (sign_and_fraction | exponent << np.uint32(23)).reshape(STEPS + 1, CASE_SIZE)
    return {"weights": words[0], "gradients": words[1:]}


class OnDevice:
    """One state on a device: blocks of codes, their scales, and the codebook."""

    def __init__(self, book: Codebook, device: torch.device) -> None:
        import torch

        self.values = torch.from_numpy(book.values.copy()).to(device)
        self.edges = torch.from_numpy(thresholds(book, rules.EVEN).copy()).to(device)
        self.codes = torch.zeros((CASE_SIZE // BLOCK, BLOCK), dtype=torch.int64, device=device)
        self.absmax = torch.zeros((CASE_SIZE // BLOCK, 1), device=device)
        self.signed = book.signed

    def load(self) -> torch.Tensor:
        return self.values[self.codes] * self.absmax

    def save(self, state: torch.Tensor) -> None:
        """Quantise; a negative element that would be 0 goes one down."""
        import torch

        self.absmax = state.abs().amax(1, keepdim=True)
        scale = torch.where(self.absmax == 0, torch.ones_like(self.absmax), self.absmax)
        self.codes = torch.bucketize(state / scale, self.edges)
        if self.signed:
            self.codes = self.codes - (torch.signbit(state) & (self.values[self.codes] == 0)).to(torch.int64)


def adam_of_operations(weights: torch.Tensor, gradients: torch.Tensor) -> dict[str, torch.Tensor]:
    """Twelve steps; the weights after each, and the states at the end."""
    import torch

    device = weights.device

    def number(x: float | np.floating) -> torch.Tensor:
        return torch.full((1,), float(np.float32(x)), device=device)

    p = weights.reshape(-1, BLOCK)
    first, second = OnDevice(codebooks.dynamic(), device), OnDevice(codebooks.dynamic(signed=False), device)
    beta1, beta2 = number(BETA1), number(BETA2)
    rest1, rest2 = (number(np.float32(1) - np.float32(beta)) for beta in (BETA1, BETA2))
    path = []
    for t in range(1, STEPS + 1):
        root = math.sqrt(1 - BETA2**t)  # the signed step size and epsilon are rounded once
        size, eps = number(-CASE_RATE * root / (1 - BETA1**t)), number(root * EPS)
        g = gradients[t - 1].reshape(-1, BLOCK)
        m = first.load() * beta1 + rest1 * g
        v = second.load() * beta2 + rest2 * g * g
        p = p + size * (m / (torch.sqrt(v.double()).float() + eps))
        first.save(m)
        second.save(v)
        path.append(p.flatten())
    states = {"codes1": first.codes.byte(), "codes2": second.codes.byte(), "absmax1": first.absmax}
    states |= {"absmax2": second.absmax}
    return {"weights": torch.stack(path)} | {name: x.flatten() for name, x in states.items()}


def adam_of_lab(weights: np.ndarray, gradients: np.ndarray) -> dict[str, np.ndarray]:
    import torch

    from ...training import Adam8bit

    p = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    optimizer = Adam8bit([p], lr=CASE_RATE, betas=(BETA1, BETA2), eps=EPS, block=BLOCK, min_8bit_size=0)
    path = []
    for gradient in gradients:
        p.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        path.append(p.detach().numpy().copy())
    states = {f"{name}{i}": optimizer.state[p][f"{key}{i}"].numpy()
              for name, key in (("codes", "state"), ("absmax", "absmax")) for i in (1, 2)}  # fmt: skip
    return {"weights": np.stack(path), **states}


def torch_root(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """torch's own square root of float32; a CPU, whose is not rounded right, stands in with a root in float64."""
    return {"root": x.double().sqrt().float() if x.device.type == "cpu" else x.sqrt()}


def rounded_root(x: np.ndarray) -> dict[str, np.ndarray]:
    """The correctly rounded square root."""
    return {"root": np.asarray(numeric.sqrt(x, "fp32"))}


def reciprocal_root(x: np.ndarray) -> dict[str, np.ndarray]:
    """The root as x times its reciprocal, each rounded: what a device without a rounded root may do."""
    return {"root": x * (1 / np.sqrt(x.astype(np.float64))).astype(np.float32)}


def roots() -> Arrays:
    """Positive numbers around 1."""
    return {"x": philox_bits(9, 1 << 14) & np.uint32(0x3FFFFFFF) | np.uint32(0x20000000)}
