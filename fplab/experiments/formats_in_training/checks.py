"""The claims: that each run computes what its policy says, and what becomes of the accuracy."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, Sample, Status, absent, failed, measured, passed, same_bits, verdict
from ..legacy import Check
from ..statistics import Compared, compared, superior
from .by_hand import RECIPES, train
from .data import ADAMS_EPS, LARGER_EPS, MIXED, NAMES, POLICIES, Params, sizes, task_of, tasks_of


def comparison(task: str, policy: str, arrays: Arrays) -> Compared:
    """A policy's top-1 against FP32's on a task."""
    top1 = arrays[f"{task}_top1"]
    return compared(top1[POLICIES.index(policy)], top1[0], arrays[f"{task}_baseline"])


# --- what was computed ------------------------------------------------------------------------------------------


def check_by_hand(arrays: Arrays, params: Params) -> Outcome:
    """The digits' run of the first seed under every policy but FP32: each loss, the last weights, and their top-1."""
    from ...training.loop import one_thread

    steps = 0
    for policy in RECIPES:
        p = POLICIES.index(policy)
        with one_thread():
            found = train(policy, params)
        for what, got, want in (
            ("losses", arrays["digits_losses"][p, 0], found.losses),
            ("weights", arrays["digits_last"][p], found.weights),
        ):
            outcome = same_bits(got.view(np.uint32), want.view(np.uint32), "fp32")
            if outcome.status is not Status.PASS:
                return failed(f"{NAMES[policy]}, {what}: {outcome.detail}")
        if arrays["digits_top1"][p, 0] != found.top1:
            return failed(f"{NAMES[policy]}, top-1: {arrays['digits_top1'][p, 0]} against {found.top1}")
        steps += len(found.losses)
    return passed(f"{steps:,} steps of {len(RECIPES)} policies, every loss and every weight at the end, every bit")


def check_units(arrays: Arrays, params: Params) -> Outcome:
    """Of every run the units that the emulation reports, step by step; a run that stopped counts until then."""
    steps = 0
    for task in tasks_of(params):
        own = arrays[f"{task}_own"]
        if not own.all():
            policy, seed, step = np.argwhere(~own)[0]
            return failed(f"{task}, {NAMES[POLICIES[policy]]}, seed {seed}, step {step}: another unit")
        steps += own.size
    return passed(f"{steps:,} steps of {len(POLICIES)} policies")


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


# --- what became of it ------------------------------------------------------------------------------------------


def check_within(task: str) -> Callable[[Arrays, Params], Outcome]:
    """Whether the mixed policies are inside the band, by the equivalence test."""

    def check(arrays: Arrays, params: Params) -> Outcome:
        if task not in tasks_of(params):
            return absent(FULL.format(task))
        found = {policy: comparison(task, policy, arrays) for policy in MIXED}
        told = "; ".join(f"{NAMES[p]} {said(c)}" for p, c in found.items())
        band = f"2 sigma = {100 * found['tf32'].band:.2f} points over {len(arrays[f'{task}_baseline'])} FP32 seeds"
        sample = Sample(sizes(task, params)[1], max(c.spread for c in found.values()), found["tf32"].band)
        return measured(all(c.verdict == "within" for c in found.values()), f"{told}; {band}", sample)

    return check


def check_pure_fp16(arrays: Arrays, params: Params) -> Outcome:
    """The transformer in pure FP16 with an eps that FP16 holds, by the same test: outside the band, and worse."""
    if "characters" not in tasks_of(params):
        return absent(FULL.format("characters"))
    found = comparison("characters", "pure_fp16", arrays)
    sample = Sample(sizes("characters", params)[1], found.spread, found.band)
    holds = found.verdict == "outside" and not found.mean > 0
    return measured(holds, f"{said(found)}; band ±{100 * found.band:.2f}", sample)


def said(c: Compared) -> str:
    """A comparison in a few characters, in percentage points."""
    if np.isnan(c.mean):
        return "stopped"
    return f"{100 * c.mean:+.2f} [{100 * c.low:+.2f}, {100 * c.high:+.2f}] {c.verdict}"


def check_learned(arrays: Arrays, params: Params) -> Outcome:
    """FP32 has learned, so that there is something to lose: by more than half a nat, on the task that fell least."""
    found = []
    for task in tasks_of(params):
        steps, _ = sizes(task, params)
        losses = arrays[f"{task}_losses"][0].astype(np.float64)
        tail = losses[:, -max(1, steps // 10) :].mean(axis=1)
        right = arrays[f"{task}_baseline"].mean()
        detail = f"{task}: {right:.1%} right, loss {losses[:, 0].mean():.2f} to {tail.mean():.2f}"
        found.append(superior(losses[:, 0], tail, 0.5, detail))
    return min(found, key=lambda outcome: outcome.status is Status.PASS)


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
_DIGITS = "digits: top-1 of TF32, FP16, BF16 and FP8 is within FP32's normal variation"
_CHARACTERS = "characters: top-1 of TF32, FP16, BF16 and FP8 is within FP32's normal variation"

CHECKS: tuple[Check, ...] = (
    Check("digits, first seed: all steps of each policy, forward, backward, unscaling and update, are single casts, "
          "products and sums", Evidence.PROVED, check_by_hand),
    Check("no product of any step, forward or backward, leaves the policy's unit", Evidence.PROVED, check_units),
    Check("FP32 is plain torch: an independent loop gives the bits of every loss", Evidence.LIBRARY, check_plain_torch),
    Check("FP32 learns", Evidence.MEASURED, check_learned),
    Check(_DIGITS, Evidence.MEASURED, check_within("digits")),
    Check(_CHARACTERS, Evidence.MEASURED, check_within("characters")),
    Check("characters: pure FP16 is outside, even with an eps that FP16 holds", Evidence.MEASURED, check_pure_fp16),
    Check("with Adam's own eps pure FP16 divides by zero in its first step", Evidence.PROVED, check_eps),
)  # fmt: skip
