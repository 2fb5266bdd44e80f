"""The claims: two implementations of one run agree on every bit, fractions with both; the GPU families part."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ...hardware.cases import Arrays
from ..base import Check, Evidence, Outcome, absent, failed, passed, verdict
from .by_fractions import PassByFractions, updates
from .loop import GROWTH_INTERVAL, INIT_SCALE, Trace, batches, examples, first_weights
from .ops import LabOps
from .step import MOMENTUM, SKIP, Pass, forward_and_backward

if TYPE_CHECKING:
    from .loop import Params

FAMILY = ("V100", "A100", "H100")


def torch_agrees(arrays: Arrays, params: Params) -> Outcome:
    """torch's casts, sums, products with numbers and comparisons, around the same products."""
    try:
        from .cases import torch_trace

        theirs = torch_trace(params, None, "cpu", FAMILY[-1])
    except ImportError as error:
        return absent(f"{error.name} is not installed")
    return same_run(arrays, theirs, params)


def same_run(arrays: Arrays, theirs: Trace, params: Params) -> Outcome:
    """Whether another implementation's run has the same scales, and after every step the same weights."""
    mine = {name: arrays[name][-1] for name in ("digests", "scales", "skipped")}
    for name, got in (("scales", theirs.scales), ("skipped", theirs.skipped), ("digests", theirs.digests)):
        differ = np.flatnonzero(mine[name] != got)
        if differ.size:
            at = int(differ[0])
            return failed(f"{name} differ from step {at} on: {mine[name][at]} against {got[at]}")
    last = np.concatenate([w.ravel() for w in theirs.kept[params.steps - 1]])
    if (last != arrays["final"][-1]).any():
        return failed(f"{int((last != arrays['final'][-1]).sum())} of the last weights differ")
    return passed(f"{last.size:,} weights after each of {params.steps} steps, every bit")


def fractions_agree(arrays: Arrays, params: Params) -> Outcome:
    """Tensors of the first step that does not overflow and the weights after it, element by element on fractions."""
    ops = LabOps(FAMILY[-1])
    x, targets = examples("train")
    step = int(np.flatnonzero(~arrays["skipped"][-1])[0])
    index = [chosen for chosen, _ in zip(batches(params, len(x)), range(step + 1), strict=False)][step]
    x, targets = x[index], targets[index]
    weights, scale = first_weights(params), float(arrays["scales"][-1, step])
    p = forward_and_backward(ops, weights, x, targets, scale)
    tensors = PassByFractions(p, x, targets, weights, scale, ops, params.batch).elements()
    compared = 0
    for where, got, right in chain(tensors, updates(weights, p.gradients, scale, step, ops, params)):
        if got != right:
            return failed(f"{where} is {float(got)!r}, by fractions {float(right)!r}")
        compared += 1
    return passed(f"{compared:,} elements of {len(Pass._fields)} tensors and 3 weights in step {step}, every bit")


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
    """The backward pass written out, in FP64 without roundings to speak of, against autograd's."""
    try:
        import torch
    except ImportError as error:
        return absent(f"{error.name} is not installed")
    from .wide import WideOps

    x, targets = (torch.from_numpy(a[: params.batch]).double() for a in examples("train"))
    weights = [torch.from_numpy(w).double().requires_grad_() for w in first_weights(params)]
    z1 = x @ weights[0]
    a1 = z1.relu()
    a2 = (a1 @ weights[1]).relu() + SKIP * a1
    ((a2 @ weights[2] - targets) ** 2).sum().div(2 * params.batch).backward()
    with torch.no_grad():
        mine = forward_and_backward(WideOps(), tuple(weights), x, targets, 1.0).gradients  # type: ignore[arg-type]
    pairs = [(m, w.grad) for m, w in zip(mine, weights, strict=True)]
    worst = max(float((m - g).abs().max() / g.abs().max()) for m, g in pairs if g is not None)
    return verdict(worst < 1e-13, f"the largest difference is {worst:.1e} of the largest gradient")


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
    """The weights of different families differ after the first update already, and never agree again."""
    first = int(np.flatnonzero(~arrays["skipped"][-1])[0])
    for pair, apart in zip(("V100-A100", "A100-H100", "V100-H100"), arrays["apart"], strict=True):
        if apart[:first].any() or (apart[first:] == 0).any():
            return failed(f"{pair}: {int((apart[first:] == 0).sum())} updates leave no difference")
    shares = arrays["apart"][:, [first, -1]] / arrays["final"].shape[1]
    return passed(
        f"differ after the first update: {shares[:, 0].max():.1%} at most; at the end {shares[:, 1].min():.1%}"
    )


def it_learns_alike(arrays: Arrays, params: Params) -> Outcome:
    """All three learn, and label nearly the same number of test digits right."""
    right, tested = arrays["right"].T
    text = ", ".join(f"{gpu} {n}" for gpu, n in zip(FAMILY, right, strict=True))
    alike = int(right.max() - right.min()) <= 0.02 * tested[0]
    return verdict(bool(right.min() > 0.85 * tested[0]) and alike, f"of {tested[0]} test digits right: {text}")


def constants_are_held(arrays: Arrays, params: Params) -> Outcome:
    """The constants of the update are numbers of FP32, and the skip's of FP16: no library rounds them on its own."""
    held = {
        "momentum": (MOMENTUM, float(np.float32(MOMENTUM))),
        "learning rate": (params.lr, float(np.float32(params.lr))),
        "skip": (SKIP, float(np.float16(SKIP))),
    }
    return verdict(all(a == b for a, b in held.values()), ", ".join(f"{name} {a!r}" for name, (a, _) in held.items()))


CHECKS: tuple[Check, ...] = (
    Check("torch's own elementwise operations, around the same products, give every bit of every weight at every step",
          Evidence.LIBRARY, torch_agrees),
    Check("integers and fractions give the same bits: products, casts, sums, update", Evidence.EXACT, fractions_agree),
    Check("the loss scale is torch's state machine's, step for step", Evidence.LIBRARY, scale_is_torch_s),
    Check("the backward pass written out is autograd's", Evidence.LIBRARY, backward_is_autograd_s),
    Check("a skipped step changes no weight, every other step does", Evidence.EXACT, skipped_steps_change_nothing),
    Check("GPUs of different families part with the first update and stay apart", Evidence.EXACT, families_part),
    Check("they all learn, and alike: within 2% of the test digits", Evidence.EXACT, it_learns_alike),
    Check("the constants are numbers of their formats", Evidence.EXACT, constants_are_held),
)  # fmt: skip
