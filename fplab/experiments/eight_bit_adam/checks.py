"""The experiment's claims."""

from __future__ import annotations

import numpy as np

from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, Sample, Status, absent, failed, measured, passed
from ..legacy import Check
from ..statistics import equivalent, superior
from . import peer
from .data import BETA2, FAR, FOLLOWING, HOLD, NAMES, UNSTABLE, VARIANTS, Params, finals, make_stable, unstable

FEW = 0.01  # of the weights
PAIRS = (
    ("dynamic + blocks", "32-bit"),
    ("dynamic + blocks, stochastic", "32-bit"),
    ("dynamic + blocks + stable embedding", "32-bit + stable embedding"),
)


def check_bytes(arrays: Arrays, params: Params) -> Outcome:
    """State bytes are 2n + 8 ceil(n / B) summed over the tensors, 8n in 32 bits."""
    from ...training import characters

    texts = []
    for variant, held in zip(VARIANTS, arrays["state_bytes"], strict=True):
        model = characters(width=params.width, layers=params.layers, context=params.context).model(0)
        if variant.stable:
            make_stable(model, 0)
        options = dict(variant.options)
        want = 0
        for name, p in model.named_parameters():
            n, block = p.numel(), options.get("block") or p.numel()
            whole = options.get("state_bits") == 32 or (variant.stable and name == "token.weight")
            want += 8 * n if whole else 2 * n + 8 * -(-n // block)
        if want != held:
            return failed(f"{variant.name}: {held} bytes, by the formula {want}")
        texts.append(f"{variant.name} {want:,}")
    return passed("; ".join(texts[:5]))


def check_held(arrays: Arrays, params: Params) -> Outcome:
    """With no gradient left a second moment decays by 0.1% a step; the code that holds it is rounded back each time.

    So nearest rounding keeps the code, and the value grows with the block's scale. Stochastic rounding follows, within
    a tenth; what there is to follow is known in closed form.
    """
    exact, nearest, *stochastic = arrays["traces"][:, -1]
    want = (1 - BETA2**HOLD) * BETA2 ** (params.trace - HOLD)
    text = (
        f"after {params.trace - HOLD} steps without gradient: exact {exact:.4f}, nearest {nearest:.4f}, "
        f"stochastic {np.mean(stochastic):.4f}"
    )
    if abs(exact / want - 1) > 1e-3 or nearest < 1.5 * want:
        return failed(f"{text}; in closed form {want:.4f}")
    return equivalent(np.array(stochastic) / want, np.ones(len(stochastic)), 0.1, text)


def at(name: str, of: np.ndarray) -> np.ndarray:
    """What one variant has, of an array that begins with the variants."""
    found: np.ndarray = of[NAMES.index(name)]
    return found


def check_follows(arrays: Arrays, params: Params) -> Outcome:
    """The steps that states in 8 bits take on the gradients of the 32-bit run: how many weights end far off, by seed.

    The margin is the claim's; codes of 7 bits miss it.
    """
    off = arrays["misled"].mean(axis=2)
    if off.shape[1] < 2:
        return absent("one seed says nothing about others")
    text = ", ".join(f"{name} {share.mean():.2%}" for name, share in zip(FOLLOWING, off, strict=True))
    detail = f"{arrays['misled'].shape[2]} steps, weights off by more than {FAR:g} of the rate: {text}"
    return superior(np.zeros(off.shape[1]), off.max(axis=0), -FEW, detail)


def check_as_good(arrays: Arrays, params: Params) -> Outcome:
    """With dynamic states in blocks runs end where 32 bits do, and are there on the way, on average over the steps.

    Over the rates where 32 bits are stable, seed by seed. The margin is a fifth of what counts as unstable.
    """
    end, way, bad = finals(arrays["losses"]), arrays["losses"].mean(-1), unstable(arrays["losses"])
    if end.shape[2] < 2:
        return absent("one seed says nothing about others")
    outcomes = []
    for name, wide in PAIRS:
        rates = ~at(wide, bad).any(1)
        if not rates.any():
            return absent("no learning rate at which 32-bit Adam is stable")
        for part, text in ((end, name), (way, f"{name}, on the way")):
            narrow, full = (at(one, part)[rates].mean(0) for one in (name, wide))
            outcomes.append(equivalent(narrow, full, UNSTABLE / 5, text))
    return next((one for one in outcomes if one.status is Status.FAIL), outcomes[0])


def check_linear(arrays: Arrays, params: Params) -> Outcome:
    """Linear states with one scale break off or end half a nat above dynamic ones with one scale, run by run."""
    end = finals(arrays["losses"])
    gaps = np.stack([at(name, end) - at("dynamic", end) for name in ("linear", "linear, stochastic")])
    ended = gaps[np.isfinite(gaps)]
    text = f"{gaps.size - ended.size} of {gaps.size} runs diverge"
    text += f"; the others end {ended.min():+.2f} nats higher or more" if ended.size else ""
    holds = bool(np.isfinite(at("dynamic", end)).all() and not (gaps <= UNSTABLE).any())
    return measured(holds, text, Sample(gaps.shape[2], float(np.ptp(ended)) if ended.size else 0.0, UNSTABLE))


PROVED, LIBRARY, MEASURED = Evidence.PROVED, Evidence.LIBRARY, Evidence.MEASURED
CHECKS = (
    Check("States take 2n + 8⌈n/B⌉ bytes", PROVED, check_bytes),
    Check("bitsandbytes' CPU codes are those of the rule named after it", LIBRARY, peer.check_quantiser),
    Check(
        "bitsandbytes' 8-bit Adam on the CPU is this one with four differences, to the bit", LIBRARY, peer.check_adam
    ),
    Check("Nearest rounding keeps a code whose state should decay; stochastic lets it", MEASURED, check_held),
    Check(
        "On the same gradients dynamic states in blocks move 99% of the weights as 32-bit ones, to a tenth of the rate",
        MEASURED,
        check_follows,
    ),
    Check("Dynamic states in blocks train to the loss of 32-bit ones", MEASURED, check_as_good),
    Check("Linear states with one scale diverge or end worse, where dynamic ones do not", MEASURED, check_linear),
)
