"""The claims: that each run computes what its policy says, and what becomes of the accuracy."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ...hardware.cases import Arrays
from ...hardware.tensors import TORCH, tensor
from ..base import Check, Evidence, Outcome, absent, failed, passed, same_bits, verdict
from ..statistics import Compared, compared
from .by_hand import OPERANDS, logits
from .cases import logits_case, losses_case
from .data import ADAMS_EPS, LARGER_EPS, MIXED, NAMES, POLICIES, Params, optimizer, sizes, task_of, tasks_of


def comparison(task: str, policy: str, arrays: Arrays) -> Compared:
    """A policy's top-1 against FP32's on a task."""
    top1 = arrays[f"{task}_top1"]
    return compared(top1[POLICIES.index(policy)], top1[0], arrays[f"{task}_baseline"])


# --- what was computed ------------------------------------------------------------------------------------------


def check_by_hand(arrays: Arrays, params: Params) -> Outcome:
    """The first logits of every policy but FP32."""
    compared_ = 0
    for policy in OPERANDS:
        got = arrays["first_logits"][POLICIES.index(policy)].view(np.uint32)
        want = np.ascontiguousarray(logits(policy, arrays), np.float32).view(np.uint32)
        outcome = same_bits(got, want, "fp32")
        if outcome.status.name != "PASS":
            return failed(f"{NAMES[policy]}: {outcome.detail}")
        compared_ += got.size
    return passed(f"{compared_:,} logits of {len(OPERANDS)} policies, every bit")


ALLOWED = {"fp16": 2.0**-10, "bf16": 2.0**-7, "pure_fp16": 2.0**-9, "pure_bf16": 2.0**-6}
"""One ulp of a log-probability where those are rounded to a half format, and one more where their mean is, too."""


def check_losses(arrays: Arrays, params: Params) -> Outcome:
    """The recorded first loss against the cross-entropy in float64 of those logits."""
    worst, labels = 0.0, arrays["first_labels"]
    for p, policy in enumerate(POLICIES):
        z = arrays["first_logits"][p].astype(np.float64)
        loss = (np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), labels]).mean()
        error, allowed = abs(float(arrays["digits_losses"][p, 0, 0]) / loss - 1), ALLOWED.get(policy, 2.0**-20)
        if not error <= allowed:
            return failed(f"{NAMES[policy]}: relative error {error:.2g} of the first loss, allowed {allowed:.2g}")
        worst = max(worst, error / allowed)
    return passed(f"{len(POLICIES)} policies; at most {worst:.0%} of what rounding allows")


def check_half_losses(arrays: Arrays, params: Params) -> Outcome:
    """``cross_entropy`` asks ``log_softmax`` for the dtype of its logits, and autocast overrides no dtype asked for.

    So under autocast an example's loss is a half value in FP32, though the lists put both parts in FP32; a loss of
    logits that were cast first is not.
    """
    import torch

    told = []
    for fmt in ("fp16", "bf16"):
        given = logits_case(fmt)
        half = losses_case(fmt, given, "cpu")["is_half"].mean()
        z, labels = tensor(given["logits"], fmt, "cpu").float(), torch.from_numpy(given["labels"].astype(np.int64))
        loss = torch.nn.functional.cross_entropy(z, labels, reduction="none")
        plain = float((loss == loss.to(getattr(torch, TORCH[fmt])).float()).double().mean())
        told.append(f"{fmt.upper()}: {half:.0%} of the losses are half values, {plain:.0%} with logits cast to FP32")
        if half != 1 or plain > 0.1:
            return failed(told[-1])
    return passed("; ".join(told))


def check_plain_torch(arrays: Arrays, params: Params) -> Outcome:
    """The FP32 baseline of seed 0 against a loop in plain torch: its autograd, each operation of the update alone."""
    import torch

    from ...training.loop import Momentum, one_thread

    task = task_of("digits", params)
    losses = []
    with one_thread():
        model = task.model(0)
        step = Momentum(model, params.digits_lr, params.digits_momentum).step
        for inputs, labels in task.batches(0, params.digits_steps):
            model.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            losses.append(loss.item())
            step()
    want = np.array(losses, np.float32)
    return same_bits(arrays["digits_losses"][0, 0].view(np.uint32), want.view(np.uint32), "fp32")


def check_repeats(arrays: Arrays, params: Params) -> Outcome:
    """A second run of the policy with most moving parts, FP8 with its history of scales, for a few steps."""
    from ...training import fit

    task, steps = task_of("digits", params), min(5, params.digits_steps)
    again = fit(task, "fp8_hybrid", seed=0, steps=steps, optimizer=optimizer("digits", "fp8_hybrid", params),
                progress=lambda _step, _steps: None).losses  # fmt: skip
    first = arrays["digits_losses"][POLICIES.index("fp8_hybrid"), 0, :steps]
    return same_bits(again.view(np.uint32), first.view(np.uint32), "fp32")


# --- what became of it ------------------------------------------------------------------------------------------


def check_within(task: str) -> Callable[[Arrays, Params], Outcome]:
    """Whether the mixed policies are inside the band, by the equivalence test."""

    def check(arrays: Arrays, params: Params) -> Outcome:
        if task not in tasks_of(params):
            return absent(FULL.format(task))
        found = {policy: comparison(task, policy, arrays) for policy in MIXED}
        told = "; ".join(f"{NAMES[p]} {said(c)}" for p, c in found.items())
        band = f"2 sigma = {100 * found['tf32'].band:.2f} points over {len(arrays[f'{task}_baseline'])} FP32 seeds"
        return verdict(all(c.verdict != "outside" for c in found.values()), f"{told}; {band}")

    return check


def check_pure_fp16(arrays: Arrays, params: Params) -> Outcome:
    """The transformer in pure FP16 with an eps that FP16 holds, by the same test: outside the band, and worse."""
    if "characters" not in tasks_of(params):
        return absent(FULL.format("characters"))
    found = comparison("characters", "pure_fp16", arrays)
    return verdict(found.verdict == "outside" and not found.mean > 0, f"{said(found)}; band ±{100 * found.band:.2f}")


def said(c: Compared) -> str:
    """A comparison in a few characters, in percentage points."""
    if np.isnan(c.mean):
        return "stopped"
    return f"{100 * c.mean:+.2f} [{100 * c.low:+.2f}, {100 * c.high:+.2f}] {c.verdict}"


def check_learned(arrays: Arrays, params: Params) -> Outcome:
    """FP32 has learned, so that there is something to lose."""
    told = []
    for task in tasks_of(params):
        steps, _ = sizes(task, params)
        losses = arrays[f"{task}_losses"][0]
        tail = losses[:, -max(1, steps // 10) :].mean()
        if not tail < 0.75 * losses[:, 0].mean():
            return failed(f"{task}: the loss went from {losses[:, 0].mean():.3f} to {tail:.3f}")
        told.append(
            f"{task}: {arrays[f'{task}_baseline'].mean():.1%} right, loss {losses[:, 0].mean():.2f} to {tail:.2f}"
        )
    return passed("; ".join(told))


def check_eps(arrays: Arrays, params: Params) -> Outcome:
    """1e-8 rounds to 0 in FP16 and 1e-4 does not, by exact arithmetic; the runs stop accordingly."""
    from ... import exact

    zero = [exact.round_to(exact.of(Fraction(eps)), "fp16")[0] == 0 for eps in (ADAMS_EPS, LARGER_EPS)]
    stops = arrays["eps_stops"].tolist()
    detail = f"eps = 1e-8 is {'0' if zero[0] else 'not 0'} in FP16: stopped at step {stops[0]}; eps = 1e-4: " + (
        "went on" if stops[1] < 0 else f"stopped at step {stops[1]}"
    )
    return verdict(zero == [True, False] and stops == [0, -1], detail)


FULL = "{}: trained at the full size (fplab run formats_in_training --full)"
_DIGITS = "digits: top-1 of TF32, FP16, BF16 and FP8 is not outside FP32's normal variation"
_CHARACTERS = "characters: top-1 of TF32, FP16, BF16 and FP8 is not outside FP32's normal variation"

CHECKS: tuple[Check, ...] = (
    Check("each policy's first logits are the lab's casts, products and sums", Evidence.EXACT, check_by_hand),
    Check("each policy's first loss is the cross-entropy of its logits", Evidence.EXACT, check_losses),
    Check("autocast rounds the log-probabilities of a cross-entropy", Evidence.EXACT, check_half_losses),
    Check("FP32 is plain torch: an independent loop gives the bits of every loss", Evidence.LIBRARY, check_plain_torch),
    Check("a seed decides a run: FP8 with its scales repeats bit for bit", Evidence.EXACT, check_repeats),
    Check("FP32 learns", Evidence.EXACT, check_learned),
    Check(_DIGITS, Evidence.EXACT, check_within("digits")),
    Check(_CHARACTERS, Evidence.EXACT, check_within("characters")),
    Check("characters: pure FP16 is outside, even with an eps that FP16 holds", Evidence.EXACT, check_pure_fp16),
    Check("with Adam's own eps pure FP16 divides by zero in its first step", Evidence.EXACT, check_eps),
)
