"""The experiment's claims: integers against integers, and the published measurements beside the estimates."""

from __future__ import annotations

import numpy as np

from ...hardware.cases import Arrays
from ...memory.gap import EXTRAS, predicted, terms_of
from ...memory.published import TORCHTITAN
from ...memory.units import GIB
from ..base import Check, Evidence, Outcome, failed, passed, verdict
from .measure import HELD, MODELS, RECIPES, TERMS, Params

WEIGHTS, ACTIVATIONS, GRADIENTS = (0.05, 0.10), (0.60, 0.80), (0.20, 0.30)  # the shares that the sources quote


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
    """The peak within 5%."""
    ratio = rest(arrays)
    worst = int(np.argmax(abs(ratio - 1)))
    return verdict(
        bool((abs(ratio - 1) <= 0.05).all()),
        f"estimate over measured peak: {ratio.min():.3f} to {ratio.max():.3f}; worst {RECIPES[worst].name}",
    )


def check_mixed(arrays: Arrays, params: Params) -> Outcome:
    """Mixed precision halves activations and leaves the model states as large as they were."""
    at = {recipe.name: i for i, recipe in enumerate(RECIPES)}
    wide, mixed, amp = (at[name] for name in ("fp32", "mixed", "amp"))
    states = [int(arrays["held"][i].sum()) for i in (wide, mixed, amp)]
    saved = [int(arrays["activations"][i]) for i in (wide, mixed, amp)]
    holds = states[0] == states[1] == states[2] and 0.5 < saved[1] / saved[0] < 0.6 and saved[1] < saved[2] < saved[0]
    return verdict(
        holds,
        f"model states {states[0]:,} bytes in each; activations {saved[1] / saved[0]:.0%} of FP32's, "
        f"under autocast {saved[2] / saved[0]:.0%}",
    )


def check_shares(arrays: Arrays, params: Params) -> Outcome:
    """Where FP32 weights take 5 to 10%, activations take 60 to 80%; gradients take what the weights take."""
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
    ok &= all(0.15 <= g <= 0.305 for *_, g in inside)
    texts = [f"{('net', 'transformer')[m]} at batch {b}: {a:.0%} and {g:.0%}" for m, b, a, g in inside]
    return verdict(ok, f"activations, and gradients with Adam's states: {'; '.join(texts)}")


def check_claimed_gradients(arrays: Arrays, params: Params) -> Outcome:
    """No run has gradients of 20 to 30% and weights of 5 to 10% at once."""
    shares = arrays["shares"] / arrays["shares"].sum(axis=2, keepdims=True)
    weights, gradients = shares[..., 0], shares[..., 1]
    both = (weights >= WEIGHTS[0]) & (weights <= WEIGHTS[1]) & (gradients >= GRADIENTS[0])
    return verdict(
        not both.any(), f"{weights.size} runs; gradients are at most {gradients[weights <= 0.1].max():.0%} there"
    )


def check_published(arrays: Arrays, params: Params) -> Outcome:
    """Every published peak is above the estimate; the gap by run."""
    ours = arrays["published"].sum(axis=1) / GIB
    share = ours / arrays["published_gib"]
    texts = [f"{run.name} {s:.0%}" for run, s in zip(TORCHTITAN, share, strict=True)]
    return verdict(
        bool((share < 1).all() and (share > 0.65).all()), f"estimate over reserved memory: {', '.join(texts)}"
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
        Evidence.EXACT,
        check_terms,
    ),
    Check("the peak of forward and backward pass is within 5% of the estimate", Evidence.LIBRARY, check_peak),
    Check(
        "mixed precision saves about half of the activations and nothing of the model states",
        Evidence.EXACT,
        check_mixed,
    ),
    Check(
        "with AdamW in FP32, where weights take 5 to 10%, activations take 60 to 80%, and gradients with Adam's states "
        "15 to 30%",
        Evidence.EXACT,
        check_shares,
    ),
    Check("gradients alone never take 20 to 30% while weights take 5 to 10%", Evidence.EXACT, check_claimed_gradients),
    Check(
        "the published peaks of torchtitan's runs, memory reserved by the allocator, lie above the bytes estimated",
        Evidence.LIBRARY,
        check_published,
    ),
)
