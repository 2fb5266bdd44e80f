"""The experiment's claims."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ...hardware.cases import Arrays
from ...memory import activations
from ..base import Evidence, Outcome, failed, passed, verdict
from ..legacy import Check
from ..statistics import superior
from .steps import PRECISIONS, Params, best_segment, formulas, peak_bytes


def check_gradients(arrays: Arrays, params: Params) -> Outcome:
    """No byte of any gradient differs."""
    for p, precision in enumerate(PRECISIONS):
        for way, differ in zip(params.ways, arrays["differ"][p].tolist(), strict=True):
            if differ:
                return failed(f"{precision}, {way}: {differ:,} bytes of the gradients differ")
    size = sum(int(arrays[f"without_random: {precision}"][0, 1]) for precision in PRECISIONS)
    return passed(f"{len(params.ways)} ways in FP32 and BF16, {size:,} bytes of gradients each")


def check_random(arrays: Arrays, params: Params) -> Outcome:
    """Without the old random numbers, dropout drops others and nearly every gradient changes.

    The margin: half of the bytes, in the precision in which fewer change.
    """
    shares = np.array([arrays[f"without_random: {p}"][:, 0] / arrays[f"without_random: {p}"][:, 1] for p in PRECISIONS])
    wide, narrow = shares.mean(axis=1)
    text = f"{wide:.0%} of the bytes differ in FP32, {narrow:.0%} in BF16"
    least = shares.min(axis=0)
    return superior(least, np.zeros(len(least)), 0.5, text)


def check_work(arrays: Arrays, params: Params) -> Outcome:
    """Segments of any size add the products of one forward pass of the layers, which is all but the head's."""
    c = params.model
    head = 2 * params.batch * params.sequence * c.hidden * c.vocabulary
    more, want = arrays["work"][2:] - arrays["work"][0], int(arrays["forward"][0]) - head
    if (more != want).any():
        return failed(f"{more.tolist()} operations more, not {want:,}")
    return passed(f"{want:,} operations more, {1 + want / arrays['work'][0]:.2f} times those of the plain step")


def same(name: str) -> Check:
    """A check that measured bytes are the formula's."""

    def check(arrays: Arrays, params: Params) -> Outcome:
        wanted = formulas(params)[f"formula_{name}"]
        found = arrays[name]
        if (found == wanted).all():
            return passed(f"{found.size} ways and precisions, {found.min():,} to {found.max():,} bytes")
        p, w = (int(i) for i in np.argwhere(found != wanted)[0])
        return failed(f"{PRECISIONS[p]}, {params.ways[w]}: {found[p, w]:,} bytes, by the formula {wanted[p, w]:,}")

    text = {
        "saved": "what the forward pass leaves is the formula's, to the byte: segments' inputs instead of their layers",
        "peak": "the peak of the backward pass is the formula's, to the byte: inputs kept, and one segment run again",
    }
    return Check(text[name], Evidence.LIBRARY, check)


def rule(params: Params) -> Fraction:
    """The square of the best segment size when sizes are continuous: inputs of L/k segments against k layers.

    sqrt(L), which is often quoted, where a layer saves as much as its input; a transformer's layer saves far more.
    """
    c = params.model
    terms = activations.layer_terms(c, params.batch, params.sequence, 4)
    return Fraction(params.layers * terms[0].bytes(), activations.total(terms))


def check_best(arrays: Arrays, params: Params) -> Outcome:
    """The measured minimum lies at the formula's."""
    peaks = arrays["peak"][0, 2:]
    best = params.segments[int(peaks.argmin())]
    square = rule(params)
    nearest = min(params.segments, key=lambda k: params.layers * 1.0 / k * float(square) / params.layers + k)
    detail = f"{best} layers, {peaks.min():,} bytes; sqrt(L input / layer) = {float(square) ** 0.5:.2f}, sqrt(L) = "
    detail += f"{params.layers**0.5:.1f} takes {peak_bytes(params, f'segments of {sqrt_segment(params)}', 4):,} bytes"
    return verdict(best == best_segment(params) == nearest, detail)


def sqrt_segment(params: Params) -> int:
    """The segment size nearest to sqrt(L)."""
    return min(params.segments, key=lambda k: abs(k - params.layers**0.5))


CHECKS: tuple[Check, ...] = (
    Check("recomputation gives the very bits of the gradients, dropout included", Evidence.LIBRARY, check_gradients),
    Check("a segment that runs again with new random numbers gives other gradients", Evidence.MEASURED, check_random),
    same("saved"),
    same("peak"),
    Check(
        "segments of any size cost the products of one more forward pass of the layers", Evidence.LIBRARY, check_work
    ),
    Check(
        "the best segment has sqrt(L input / layer) layers, one for these; sqrt(L) layers take more",
        Evidence.PROVED,
        check_best,
    ),
)
