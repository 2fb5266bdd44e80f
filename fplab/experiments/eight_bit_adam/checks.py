"""The experiment's claims."""

from __future__ import annotations

import math

import numpy as np

from ...hardware.cases import Arrays
from ..base import Check, Evidence, Outcome, absent, failed, passed, verdict
from . import peer
from .data import HOLD, NAMES, VARIANTS, Params, finals, make_stable, unstable

EXACT, LIBRARY = Evidence.EXACT, Evidence.LIBRARY


def check_bytes(arrays: Arrays, params: Params) -> Outcome:
    """State bytes are 2n + 8 ceil(n / B) summed over the tensors, 8n in 32 bits."""
    from ...training import characters

    texts = []
    for variant, measured in zip(VARIANTS, arrays["state_bytes"], strict=True):
        model = characters(width=params.width, layers=params.layers, context=params.context).model(0)
        if variant.stable:
            make_stable(model, 0)
        options = dict(variant.options)
        want = 0
        for name, p in model.named_parameters():
            n, block = p.numel(), options.get("block") or p.numel()
            whole = options.get("state_bits") == 32 or (variant.stable and name == "token.weight")
            want += 8 * n if whole else 2 * n + 8 * -(-n // block)
        if want != measured:
            return failed(f"{variant.name}: {measured} bytes, by the formula {want}")
        texts.append(f"{variant.name} {want:,}")
    return passed("; ".join(texts[:5]))


def check_oracle(arrays: Arrays, params: Params) -> Outcome:
    """Six steps on 150 elements in blocks of 64, every bit against the definition."""
    import torch

    from ...codebooks import rules
    from ...training import Adam8bit
    from ...training.eight_bit import oracle

    f32 = np.float32
    rng = np.random.default_rng(3)
    weights = rng.standard_normal(150).astype(f32)
    p = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    optimizer = Adam8bit([p], lr=1e-2, block=64, min_8bit_size=0)
    held = [(np.zeros(150, np.uint8), np.zeros(3, f32)) for _ in range(2)]
    for t in range(1, 7):
        g = (rng.standard_normal(150) * 10.0 ** rng.integers(-6, 1, 150)).astype(f32)
        p.grad = torch.from_numpy(g)
        optimizer.step()
        root = math.sqrt(1 - 0.999**t)
        h = {"lr": 1e-2, "share": 0.0, "decay": "gradient", "beta1": f32(0.9), "beta2": f32(0.999),
             "size": f32(-1e-2 * root / (1 - 0.9**t)), "eps": f32(root * 1e-8)}  # fmt: skip
        states = [oracle.load(*one, book, 64) for one, book in zip(held, optimizer.codes, strict=True)]
        weights, *new = oracle.step("adam", weights, g, states[0], states[1], h)
        kept = zip(new, optimizer.codes, (rules.SIGN, rules.EVEN), strict=True)
        held = [oracle.save(state, book, 64, rule) for state, book, rule in kept]
        state = optimizer.state[p]
        same = all(
            np.array_equal(state[f"state{i + 1}"].numpy(), held[i][0])
            and np.array_equal(state[f"absmax{i + 1}"].numpy(), held[i][1])
            for i in range(2)
        )
        if not same or not np.array_equal(p.detach().numpy(), weights):
            return failed(f"step {t}: weights or states differ from the definition")
    return passed("6 steps of 150 weights, codes and scales: every bit")


def check_torch(arrays: Arrays, params: Params) -> Outcome:
    """With 32-bit states it is torch's Adam up to the rounding of single operations."""
    import torch

    from ...training import Adam8bit

    draw = torch.Generator().manual_seed(0)
    a, b = (torch.nn.Parameter(torch.zeros(1000)) for _ in range(2))
    mine, theirs = Adam8bit([a], lr=1e-2, state_bits=32), torch.optim.Adam([b], lr=1e-2)
    for _ in range(20):
        a.grad = torch.randn(1000, generator=draw)
        b.grad = a.grad.clone()
        mine.step()
        theirs.step()
    worst = ((a - b).abs().max() / b.abs().max()).item()
    return verdict(worst < 1e-5, f"largest difference after 20 steps: {worst:.1e} of the largest weight")


def check_held(arrays: Arrays, params: Params) -> Outcome:
    """With no gradient left a second moment decays by 0.1% a step; the code that holds it is rounded back each time.

    So nearest rounding keeps the code, and the value grows with the block's scale. Stochastic rounding follows.
    """
    exact, nearest, stochastic = arrays["traces"][:, -1]
    text = (
        f"after {params.trace - HOLD} steps without gradient: exact {exact:.4f}, nearest {nearest:.4f}, "
        f"stochastic {stochastic:.4f}"
    )
    return verdict(bool(nearest > 1.5 * exact and abs(stochastic / exact - 1) < 0.1), text)


def at(name: str, end: np.ndarray) -> np.ndarray:
    """The final losses (rate, seed) of one variant."""
    found: np.ndarray = end[NAMES.index(name)]
    return found


def check_as_good(arrays: Arrays, params: Params) -> Outcome:
    """Dynamic with blocks ends where 32 bits do, at every rate where 32 bits are stable."""
    end, bad = finals(arrays["losses"]), unstable(arrays["losses"])
    rates = ~bad[0].any(1)
    gaps = (at("dynamic + blocks", end) - at("32-bit", end))[rates]
    if not gaps.size:
        return absent("no learning rate at which 32-bit Adam is stable")
    return verdict(bool(np.abs(gaps).max() < 0.25), f"differences {gaps.min():+.3f} to {gaps.max():+.3f} nats")


def check_linear(arrays: Arrays, params: Params) -> Outcome:
    """Linear states with one scale a tensor are worse than dynamic ones with blocks at every rate and seed."""
    end, bad = finals(arrays["losses"]), unstable(arrays["losses"])
    gaps = at("linear", end) - at("dynamic + blocks", end)
    count = int(bad[NAMES.index("linear")].sum())
    ended = gaps[np.isfinite(gaps)]
    range_ = f"; the others end {ended.min():+.2f} to {ended.max():+.2f} nats higher" if ended.size else ""
    text = f"{gaps.size - ended.size} of {gaps.size} runs diverge{range_}; {count} count as unstable"
    return verdict(not (gaps <= 0).any(), text)


CHECKS = (
    Check("Every bit of an 8-bit Adam step is the definition's", EXACT, check_oracle),
    Check("States take 2n + 8⌈n/B⌉ bytes", EXACT, check_bytes),
    Check("With 32-bit states it is torch.optim.Adam, up to roundings", LIBRARY, check_torch),
    Check("bitsandbytes' CPU codes are those of the rule named after it", LIBRARY, peer.check_quantiser),
    Check(
        "bitsandbytes' 8-bit Adam on the CPU is this one with four differences, to the bit", LIBRARY, peer.check_adam
    ),
    Check("Nearest rounding keeps a code whose state should decay; stochastic lets it", EXACT, check_held),
    Check("Dynamic states in blocks train like 32-bit ones", EXACT, check_as_good),
    Check("Linear states with one scale train worse, at every rate and seed", EXACT, check_linear),
)
