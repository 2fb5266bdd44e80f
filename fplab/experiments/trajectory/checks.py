"""The claims: two implementations of one run agree on every bit; the GPU families part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...hardware.cases import Arrays
from ...hardware.tensors import bits
from ..base import Evidence, Outcome, Status, absent, failed, passed, verdict
from ..legacy import Check
from .loop import GROWTH_INTERVAL, INIT_SCALE, Trace, examples, first_weights, right
from .step import MOMENTUM, SKIP, forward_and_backward

if TYPE_CHECKING:
    from .loop import Params

FAMILY = ("V100", "A100", "H100")


def torch_agrees(arrays: Arrays, params: Params) -> Outcome:
    """torch's casts, sums, products with numbers and comparisons, around the same products, in the bits of each GPU."""
    try:
        import torch

        from .cases import torch_trace
        from .ops import TorchOps, lab_product
    except ImportError as error:
        return absent(f"{error.name} is not installed")
    for i, gpu in enumerate(FAMILY):
        theirs = torch_trace(params, None, "cpu", gpu)
        outcome = same_run({name: arrays[name][i] for name in RUN}, theirs, params)
        read = right(TorchOps(lab_product(gpu)), theirs.final, lambda x: torch.from_numpy(np.array(x)), bits)
        if outcome.status is not Status.PASS or read != tuple(arrays["right"][i]):
            return failed(f"{gpu}: {outcome.detail}; {read[0]} of {read[1]} right")
    size = arrays["final"].shape[1]
    return passed(f"{size:,} weights after each of {params.steps} steps on {len(FAMILY)} GPUs, every bit")


RUN = ("digests", "scales", "skipped", "losses", "final")


def same_run(mine: Arrays, theirs: Trace, params: Params) -> Outcome:
    """Whether another implementation's run has the same scales and losses, and after every step the same weights."""
    for name in RUN[:-1]:
        got = getattr(theirs, name)
        differ = np.flatnonzero(mine[name] != got)
        if differ.size:
            at = int(differ[0])
            return failed(f"{name} differ from step {at} on: {mine[name][at]} against {got[at]}")
    last = np.concatenate([w.ravel() for w in theirs.kept[params.steps - 1]])
    if (last != mine["final"]).any():
        return failed(f"{int((last != mine['final']).sum())} of the last weights differ")
    return passed("every bit")


def scale_is_torch_s(arrays: Arrays, params: Params) -> Outcome:
    """The loss scale of every step, against torch's own update of a scale after the same overflows."""
    try:
        import torch
    except ImportError as error:
        return absent(f"{error.name} is not installed")
    for gpu, scales, skipped in zip(FAMILY, arrays["scales"], arrays["skipped"], strict=True):
        scale, tracker = torch.tensor(INIT_SCALE), torch.tensor(0, dtype=torch.int32)
        for step in range(params.steps):
            if float(scale) != float(scales[step]):
                return failed(f"{gpu}, step {step}: {scales[step]:g}, torch {float(scale):g}")
            found = torch.tensor(float(skipped[step]))
            torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, GROWTH_INTERVAL)
    return passed(f"{params.steps} steps on {len(FAMILY)} GPUs, {int(arrays['skipped'].sum())} of them overflows")


def backward_is_autograd_s(arrays: Arrays, params: Params) -> Outcome:
    """The backward pass written out against autograd's, in FP64 on weights so coarse that no operation rounds.

    Pixels are sixteenths and weights -1, 0 and 1: the longest sums have less than 53 bits, whatever their order.
    """
    try:
        import torch
    except ImportError as error:
        return absent(f"{error.name} is not installed")
    from .wide import WideOps

    x, targets = (torch.from_numpy(a[: params.batch]).double() for a in examples("train"))
    weights = [torch.from_numpy(np.rint(w / np.abs(w).max())).double().requires_grad_() for w in first_weights(params)]
    z1 = x @ weights[0]
    a1 = z1.relu()
    a2 = (a1 @ weights[1]).relu() + SKIP * a1
    ((a2 @ weights[2] - targets) ** 2).sum().div(2 * params.batch).backward()
    with torch.no_grad():
        mine = forward_and_backward(WideOps(), tuple(weights), x, targets, 1.0).gradients  # type: ignore[arg-type]
    for i, (m, w) in enumerate(zip(mine, weights, strict=True)):
        assert w.grad is not None
        if wrong := int((m != w.grad).sum()):
            return failed(f"{wrong:,} of {m.numel():,} gradients of weight {i + 1} differ")
    return passed(f"{sum(m.numel() for m in mine):,} gradients, every bit")


def skipped_steps_change_nothing(arrays: Arrays, params: Params) -> Outcome:
    """A digest stays through every skipped step, and changes in every other; there are both kinds, early and late."""
    for gpu, digests, skipped in zip(FAMILY, arrays["digests"], arrays["skipped"], strict=True):
        stayed = digests[1:] == digests[:-1]
        if (stayed != skipped[1:]).any():
            return failed(f"{gpu}: step {int(np.flatnonzero(stayed != skipped[1:])[0]) + 1} does otherwise")
    first = int(np.flatnonzero(~arrays["skipped"][-1])[0])
    late = int(arrays["skipped"][-1, first:].sum())
    return verdict(first > 0 and late > 0, f"{FAMILY[-1]}: {first} overflows before the first update, {late} after it")


def families_part(arrays: Arrays, params: Params) -> Outcome:
    """The weights differ after the first update already, and after every other; what is drawn of the last ones."""
    from . import PAIRS, classes, distance

    first = int(np.flatnonzero(~arrays["skipped"][-1])[0])
    for p, (i, j) in enumerate(PAIRS):
        apart, name = arrays["apart"][p], f"{FAMILY[i]}-{FAMILY[j]}"
        if apart[:first].any() or (apart[first:] == 0).any():
            return failed(f"{name}: {int((apart[first:] == 0).sum())} updates leave no difference")
        one, other = (arrays["final"][k].view(np.float32).astype(np.float64) for k in (i, j))
        moved = distance(arrays["final"][i], arrays["final"][j])
        spread = [int((classes(moved) == k).sum()) for k in range(32)]
        if (apart[-1], arrays["ulps"][p, -1], [*arrays["spread"][p]]) != (
            int((one != other).sum()), float(np.median(moved)), spread
        ):  # fmt: skip
            return failed(f"{name}: what is drawn of the last weights is not theirs")
    shares = arrays["apart"][:, [first, -1]] / arrays["final"].shape[1]
    return passed(
        f"differ after the first update: {shares[:, 0].max():.1%} at most; at the end {shares[:, 1].min():.1%}"
    )


def they_learn(arrays: Arrays, params: Params) -> Outcome:
    """All three read more than 85% of the test digits, no two more than 2% of them apart."""
    read, tested = arrays["right"].T
    text = ", ".join(f"{gpu} {n}" for gpu, n in zip(FAMILY, read, strict=True))
    alike = int(read.max() - read.min()) <= 0.02 * tested[0]
    return verdict(bool(read.min() > 0.85 * tested[0]) and alike, f"of {tested[0]} test digits right: {text}")


def constants_are_held(arrays: Arrays, params: Params) -> Outcome:
    """The constants of the update are numbers of FP32, and the skip's of FP16: no library rounds them on its own."""
    held = {
        "momentum": (MOMENTUM, float(np.float32(MOMENTUM))),
        "learning rate": (params.lr, float(np.float32(params.lr))),
        "skip": (SKIP, float(np.float16(SKIP))),
    }
    return verdict(all(a == b for a, b in held.values()), ", ".join(f"{name} {a!r}" for name, (a, _) in held.items()))


PROVED, LIBRARY = Evidence.PROVED, Evidence.LIBRARY
CHECKS: tuple[Check, ...] = (
    Check("torch's own elementwise operations, around the same products, give every bit of every weight at every step",
          LIBRARY, torch_agrees),
    Check("the loss scale is torch's state machine's, step for step", LIBRARY, scale_is_torch_s),
    Check("the backward pass written out is autograd's", LIBRARY, backward_is_autograd_s),
    Check("a skipped step changes no weight, every other step does", PROVED, skipped_steps_change_nothing),
    Check("in this run the three families part with the first update and differ after every other", PROVED,
          families_part),
    Check("in this run all three read more than 85% of the test digits, within 2% of each other", PROVED, they_learn),
    Check("the constants are numbers of their formats", PROVED, constants_are_held),
)  # fmt: skip
