"""The experiment's claims: integers against integers, and the published measurements beside the estimates."""

from __future__ import annotations

import numpy as np

from ...hardware.cases import Arrays
from ...memory.gap import EXTRAS, predicted, terms_of
from ...memory.published import TORCHTITAN
from ...memory.units import GIB
from ..base import Evidence, Outcome, Sample, failed, measured, passed
from ..legacy import Check
from .measure import HELD, MODELS, RECIPES, TERMS, Params

WEIGHTS, ACTIVATIONS = (0.05, 0.10), (0.60, 0.80)  # the shares that the sources quote


def check_states(arrays: Arrays, params: Params) -> Outcome:
    """Model states of every recipe."""
    for recipe, held, ours in zip(RECIPES, arrays["held"].tolist(), arrays["estimated"].tolist(), strict=True):
        for kind, a, b in zip(HELD, held, ours, strict=True):
            if a != b:
                return failed(f"{recipe.name}: {kind} hold {a:,} bytes, the estimate is {b:,}")
    return passed(f"{len(RECIPES)} recipes, 4 kinds, {int(arrays['held'].sum()):,} bytes, every one")


def check_activations(arrays: Arrays, params: Params) -> Outcome:
    """What is alive after the forward pass, against the trace on shapes alone."""
    for recipe, held, traced in zip(RECIPES, arrays["activations"], arrays["traced"], strict=True):
        if held != traced:
            return failed(f"{recipe.name}: {held:,} bytes are alive after the forward pass, {traced:,} were traced")
    return passed(f"{len(RECIPES)} recipes, {int(arrays['traced'].sum()):,} bytes, every one")


def check_terms(arrays: Arrays, params: Params) -> Outcome:
    """The formula, and every extra in closed form, add up to the trace."""
    c = params.model
    for i, recipe in enumerate(RECIPES):
        found = dict(zip(TERMS, arrays["terms"][i].tolist(), strict=True))
        width = 4 if recipe.precision == "fp32" else 2
        formula = sum(t.bytes() for t in terms_of(c, params.batch, c.sequence, width, recipe.recompute))
        extras = predicted(c, params.batch, c.sequence, recipe.precision, recipe.recompute)
        for name, want in {"formula": formula, **extras}.items():
            if found[name] != want:
                return failed(f"{recipe.name}: {name} {found[name]:,} bytes, in closed form {want:,}")
        if arrays["missing"][i] or sum(found.values()) != arrays["traced"][i]:
            return failed(f"{recipe.name}: the terms add up to {sum(found.values()):,}, traced {arrays['traced'][i]:,}")
    above = [sum(row[1:]) / row[0] for row in arrays["terms"].tolist()]
    most = int(np.argmax(above))
    least = min(above)
    return passed(
        f"{len(RECIPES)} recipes, {len(EXTRAS)} extras: {least:.1%} of the formula to {above[most]:.0%} "
        f"({RECIPES[most].name})"
    )


def rest(arrays: Arrays) -> np.ndarray:
    """The estimated peak of every recipe over the measured one: states, traced activations and temporaries."""
    whole = arrays["held"].sum(axis=1) + arrays["traced"] + arrays["temporary"]
    return np.asarray(whole / arrays["peak"])


def check_peak(arrays: Arrays, params: Params) -> Outcome:
    """The peak of every recipe; the margin is the claim's 5%."""
    ratio = rest(arrays)
    worst = int(np.argmax(abs(ratio - 1)))
    return measured(
        bool((abs(ratio - 1) <= 0.05).all()),
        f"estimate over measured peak: {ratio.min():.3f} to {ratio.max():.3f}; worst {RECIPES[worst].name}",
        Sample(len(ratio), float(ratio.std()), 0.05),
    )


def check_mixed(arrays: Arrays, params: Params) -> Outcome:
    """Mixed precision against FP32 where layers are kept: model states alike, of the activations half to 60%.

    Their masks and statistics are no narrower; autocast, which keeps casts of the weights too, lies between.
    """
    at = {recipe.name: i for i, recipe in enumerate(RECIPES)}
    ways = [[at[f"{p}{how}"] for p in ("fp32", "mixed", "amp")] for how in ("", ", selective")]
    states, saved = arrays["held"].sum(axis=1)[ways], arrays["activations"][ways]
    half = saved[:, 1] / saved[:, 0]
    holds = (states == states[0, 0]).all() and (abs(half - 0.55) < 0.06).all()
    holds &= bool((saved[0, 1] < saved[0, 2]) & (saved[0, 2] < saved[0, 0]))
    text = (
        f"model states {int(states[0, 0]):,} bytes in each; "
        f"activations {half.min():.0%} to {half.max():.0%} of FP32's, "
        f"under autocast {saved[0, 2] / saved[0, 0]:.0%}"
    )
    return measured(bool(holds), text, Sample(len(half), float(np.ptp(half)), 0.06))


def check_shares(arrays: Arrays, params: Params) -> Outcome:
    """Where FP32 weights take 5 to 10%, activations take 60 to 80%; gradients take what the weights take.

    The margin: half a per cent, to which the sources round.
    """
    shares, inside = arrays["shares"] / arrays["shares"].sum(axis=2, keepdims=True), []
    for model in (0, 1):
        for batch, (weights, gradients, _, states, activations) in zip(
            arrays["batches"][model], shares[model], strict=True
        ):
            if weights != gradients:
                return failed(f"{MODELS[model]}, batch {batch}: weights {weights:.3f}, gradients {gradients:.3f}")
            if WEIGHTS[0] <= weights <= WEIGHTS[1]:
                inside.append((model, int(batch), activations, gradients + states))
    ok = {model for model, *_ in inside} == {0, 1}
    ok &= all(ACTIVATIONS[0] - 0.005 <= a <= ACTIVATIONS[1] + 0.005 for _, _, a, _ in inside)
    ok &= all(0.15 - 0.005 <= g <= 0.3 + 0.005 for *_, g in inside)
    texts = [f"{('net', 'transformer')[m]} at batch {b}: {a:.0%} and {g:.0%}" for m, b, a, g in inside]
    spread = float(np.ptp([a for _, _, a, _ in inside])) if inside else 0.0
    detail = f"activations, and gradients with Adam's states: {'; '.join(texts)}"
    return measured(ok, detail, Sample(len(inside), spread, 0.005))


def check_published(arrays: Arrays, params: Params) -> Outcome:
    """Every published peak is above the estimate; the gap by run. The margin: the estimate is two thirds of it."""
    ours = arrays["published"].sum(axis=1) / GIB
    share = ours / arrays["published_gib"]
    texts = [f"{run.name} {s:.0%}" for run, s in zip(TORCHTITAN, share, strict=True)]
    return measured(
        bool((share < 1).all() and (share > 2 / 3).all()),
        f"estimate over reserved memory: {', '.join(texts)}",
        Sample(len(share), float(share.std()), 1 / 3),
    )


CHECKS: tuple[Check, ...] = (
    Check(
        "a training step holds the parameters, gradients, master weights and optimizer states that are calculated, to "
        "the byte, in FP32, mixed precision, autocast, pure BF16 and with 8-bit states",
        Evidence.LIBRARY,
        check_states,
    ),
    Check(
        "the activations alive between forward and backward pass are those traced on shapes alone, to the byte",
        Evidence.LIBRARY,
        check_activations,
    ),
    Check(
        "the trace is Korthikanti's formula and six extras, each known in closed form",
        Evidence.PROVED,
        check_terms,
    ),
    Check("the peak of forward and backward pass is within 5% of the estimate", Evidence.MEASURED, check_peak),
    Check(
        "mixed precision saves about half of the activations and nothing of the model states",
        Evidence.MEASURED,
        check_mixed,
    ),
    Check(
        "with AdamW in FP32, where weights take 5 to 10%, activations take 60 to 80%, and gradients with Adam's states "
        "15 to 30%",
        Evidence.MEASURED,
        check_shares,
    ),
    Check(
        "the published peaks of torchtitan's runs, memory reserved by the allocator, lie above the bytes estimated",
        Evidence.MEASURED,
        check_published,
    ),
)
