"""bitsandbytes on the CPU, where it is installed: its quantiser and its 8-bit Adam, and what they do differently.

The quantiser looks an element up in 65,536 even steps and so has no zero (``ties="bitsandbytes cpu"``). Its Adam
differs from the definition in four ways, and with these four is rebuilt here to its very bits:

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

from ... import codebooks
from ...codebooks import Quantized
from ...hardware.cases import Arrays
from ..base import Outcome, absent, failed, passed
from .data import Params

if TYPE_CHECKING:
    import torch

MISSING = "bitsandbytes is not installed"
RULE = "bitsandbytes cpu"
BLOCKS = (64, 256, 2048, 4096)
BLOCK, SIZE, STEPS = 256, 5000, 12
LR, BETA1, BETA2, EPS = 1e-3, 0.9, 0.999, 1e-8


def peer(name: str) -> Any:
    """A module of bitsandbytes, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def check_quantiser(arrays: Arrays, params: Params) -> Outcome:
    """Maps of 2 to 8 bits; codes, scales and values in blocks of four sizes, with zeros and a partial last block."""
    functional = peer("bitsandbytes.functional")
    if functional is None:
        return absent(MISSING)
    import torch

    done = 0
    for signed in (True, False):
        book = codebooks.dynamic(signed)
        for bits in range(2, 9):
            made = functional.create_dynamic_map(signed, bits - 1, bits).numpy()
            if not np.array_equal(made, padded(codebooks.dynamic(signed, bits).values)):
                return failed(f"create_dynamic_map({signed}, {bits - 1}, {bits}) has other values")
        x = np.random.default_rng(5).standard_t(2, 40_000).astype(np.float32)
        x[4096 : 2 * 4096 + 1000] = 0
        x = x if signed else np.abs(x)
        for block in BLOCKS:
            q = codebooks.quantize_blockwise(x, book, block, RULE)
            theirs, state = functional.quantize_blockwise(
                torch.from_numpy(x), code=torch.from_numpy(book.values.copy()), blocksize=block
            )
            back = functional.dequantize_blockwise(theirs, state).numpy()
            wrong = int((q.codes != theirs.numpy()).sum())
            same = np.array_equal(q.absmax, state.absmax.numpy())
            if wrong or not same or not np.array_equal(codebooks.dequantize_blockwise(q), back):
                return failed(
                    f"{book.name}, blocks of {block}: {wrong} of {x.size:,} codes, or scales or values, differ"
                )
            done += x.size
    return passed(f"{done:,} codes, their scales and their values, and 14 maps")


def padded(values: np.ndarray) -> np.ndarray:
    """256 values as their maps have them: short ones filled up with zeros."""
    full: np.ndarray = np.sort(np.concatenate([values, np.zeros(256 - values.size, np.float32)]))
    return full


def gradients() -> np.ndarray:
    """Gradients of every step, float32 (steps, n), over three decades."""
    rng = np.random.default_rng(6)
    wide: np.ndarray = rng.standard_normal((STEPS, SIZE)) * 10.0 ** rng.integers(-3, 1, SIZE)
    return wide.astype(np.float32)


def rebuilt(p: torch.Tensor, slope: torch.Tensor, held: list[Quantized], t: int) -> list[Quantized]:
    """One step as their CPU library does it: ``p`` is changed, the new states are returned."""
    import torch

    m, v = (torch.from_numpy(codebooks.dequantize_blockwise(state)) for state in held)
    m.mul_(BETA1).add_(slope, alpha=1 - BETA1)
    v.mul_(BETA2).addcmul_(slope, slope, value=1 - BETA2)
    below = v.sqrt().div_(math.sqrt(1 - BETA2**t)).add_(EPS)
    p.addcdiv_(m, below, value=-LR / (1 - BETA1**t))
    pairs = zip((m, v), held, strict=True)
    return [codebooks.quantize_blockwise(new.numpy(), old.code, BLOCK, RULE) for new, old in pairs]


def zeros(signed: bool) -> Quantized:
    """A state before the first step: codes and scales of 0."""
    scales = np.zeros(-(-SIZE // BLOCK), np.float32)
    return Quantized(np.zeros(SIZE, np.uint8), scales, codebooks.dynamic(signed), BLOCK)


def check_adam(arrays: Arrays, params: Params) -> Outcome:
    """Twelve steps of bitsandbytes' Adam8bit on the CPU, rebuilt with its four differences, bit for bit."""
    optim = peer("bitsandbytes.optim")
    if optim is None:
        return absent(MISSING)
    import torch

    from ...training import Adam8bit

    start = torch.linspace(-1, 1, SIZE)
    theirs, ours = (torch.nn.Parameter(start.clone()) for _ in range(2))
    again, held = start.clone(), [zeros(True), zeros(False)]
    other = optim.Adam8bit([theirs], lr=LR, betas=(BETA1, BETA2), eps=EPS)
    mine = Adam8bit([ours], lr=LR, betas=(BETA1, BETA2), eps=EPS, block=BLOCK)
    for t, g in enumerate(map(torch.from_numpy, gradients()), 1):
        theirs.grad, ours.grad = g.clone(), g.clone()
        try:
            other.step()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            return absent(f"this bitsandbytes has no 8-bit Adam on the CPU ({type(error).__name__})")
        mine.step()
        held = rebuilt(again, g, held, t)
        codes = (other.state[theirs][f"state{i}"].numpy() for i in (1, 2))
        if not torch.equal(theirs.detach(), again) or not all(map(np.array_equal, codes, (q.codes for q in held))):
            return failed(f"step {t}: weights or codes differ from those rebuilt")
    moved = (theirs.detach() - start).abs().mean()
    apart = (theirs.detach() - ours.detach()).abs() / moved
    lost = int((mine.state[ours]["state2"] == 0).sum()), int((other.state[theirs]["state2"] == 0).sum())
    text = (
        f"{STEPS} steps of {SIZE:,} weights, every bit. Half of the definition's weights lie within "
        f"{apart.median():.2%} of the mean move, {int((apart > 1).sum())} farther than the move itself: of the second "
        f"moments {lost[0]} are stored as 0 by the definition, {lost[1]} there"
    )
    return passed(text)
