"""The experiment's claims, each against an exact criterion or a library's own casts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

import fplab

from ... import exact, formats
from ...hardware.cases import Arrays
from ...hardware.tensors import overflow_of
from ..base import Check, Evidence, Outcome, Status, absent, failed, passed, same_bits, verdict
from .cases import torch_cast, torch_version
from .data import (
    FORMATS,
    HALVES,
    KINDS,
    LOST_IN_SUM,
    NO_UPDATE,
    UNDERFLOWS,
    Params,
    gradients,
    scaled,
    spread,
)


def same_as(cast: Callable[[np.ndarray, str], np.ndarray], *names: str) -> Callable[[Arrays, Params], Outcome]:
    """A check that a library's ``cast(values, fmt) -> codes`` gives every bit and every count that the kernels give."""

    def check(arrays: Arrays, params: Params) -> Outcome:
        compared = 0
        for fmt, (k, kind), s in itertools.product(names, enumerate(KINDS), range(params.scales + 1)):
            values = scaled(arrays[kind], s)
            try:
                theirs = cast(values, fmt)
            except ImportError as error:
                return absent(f"{error.name} is not installed")
            policy = overflow_of(fmt, torch_version()) if cast is torch_cast else None
            ours = fplab.encode(values, fmt, overflow=policy)
            if not np.array_equal(ours, theirs) and (outcome := same_bits(ours, theirs, fmt)).status is not Status.PASS:
                return failed(f"{kind} gradients * 2^{s} to {fmt}: {outcome.detail}")
            counted = fates_of_codes(theirs, fmt)
            if policy is None and not np.array_equal(counted, arrays["counts"][k, FORMATS.index(fmt), s]):
                return failed(f"{kind} gradients * 2^{s} to {fmt}: the library's values count {counted}")
            compared += values.size
        return passed(f"{compared:,} casts, every bit and every count")

    return check


def fates_of_codes(codes: np.ndarray, fmt: str) -> np.ndarray:
    """The four fates counted on codes, by integer comparison alone."""
    form = formats.get(fmt)
    magnitude = codes & codes.dtype.type(form.sign_mask - 1)
    zero = int((magnitude == 0).sum())
    small = int((magnitude < 1 << form.fraction_bits).sum())
    finite = int((magnitude <= form.max_code).sum())
    return np.array([zero, small - zero, finite - small, codes.size - finite])


def numpy_cast(values: np.ndarray, fmt: str) -> np.ndarray:
    """numpy's own cast to float16, as codes."""
    assert fmt == "fp16"
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(np.float16).view(np.uint16)


def ml_dtypes_cast(values: np.ndarray, fmt: str) -> np.ndarray:
    """The cast of ml_dtypes, as codes; it raises ImportError where that is not installed."""
    import ml_dtypes

    kind = {"bf16": ml_dtypes.bfloat16, "e5m2": ml_dtypes.float8_e5m2, "e4m3": ml_dtypes.float8_e4m3fn}[fmt]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return values.astype(kind).view(np.uint16 if fmt == "bf16" else np.uint8)


def check_oracle(arrays: Arrays, params: Params) -> Outcome:
    """Casts, products and sums of a sample against the Fraction oracle."""
    done = 0
    g = gradients(arrays)
    g = g[spread(g, params.sample // 32)]
    for fmt, s in itertools.product(FORMATS, (0, 8, params.scales)):
        values = scaled(g, s)
        want = [exact.round_to(exact.from_float(float(x)), fmt)[0] for x in values]
        outcome = same_bits(fplab.encode(values, fmt), np.array(want, np.uint64), fmt)
        if outcome.status is not Status.PASS:
            return failed(f"gradients * 2^{s} to {fmt}: {outcome.detail}")
        done += len(want)
    chosen = spread(arrays["updates"], params.sample // 32)
    operands = {"mul": (g, np.full_like(g, params.lr)), "add": (arrays["weights"][chosen], arrays["updates"][chosen])}
    for fmt, (name, pair) in itertools.product(HALVES, operands.items()):
        a, b = (fplab.encode(x, fmt) for x in pair)
        operation = getattr(exact, name)
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        want = [exact.round_to(operation(exact.decode(x, fmt), exact.decode(y, fmt))[0], fmt)[0] for x, y in pairs]
        got = fplab.encode(getattr(fplab, name)(fplab.decode(a, fmt), fplab.decode(b, fmt), fmt), fmt)
        outcome = same_bits(got, np.array(want, np.uint64), fmt)
        if outcome.status is not Status.PASS:
            return failed(f"{name} in {fmt}: {outcome.detail}")
        done += len(want)
    return passed(f"{done:,} results against Fractions, every bit")


def edges(fmt: str) -> tuple[float, float, float, bool]:
    """Where RNE changes a magnitude's fate, exact: zero up to, subnormal below, overflow above, and at it or not."""
    form = formats.get(fmt)
    half = form.smallest_subnormal / 2  # a tie between code 0 and code 1: zero
    half_top = math.ldexp(0.5, form.emax - form.fraction_bits)
    return half, form.smallest_normal - half, form.max + half_top, form.max_code % 2 == 1


def counts_from_edges(magnitudes: np.ndarray, fmt: str, exponent: int) -> np.ndarray:
    """The four fates of sorted float64 magnitudes times 2**exponent by comparison alone, without rounding any."""
    zero, normal, overflow, tie_overflows = (x * 2.0**-exponent if isinstance(x, float) else x for x in edges(fmt))
    a = int(np.searchsorted(magnitudes, zero, "right"))
    b = int(np.searchsorted(magnitudes, normal, "left"))
    c = int(np.searchsorted(magnitudes, overflow, "left" if tie_overflows else "right"))
    return np.array([a, b - a, c - b, magnitudes.size - c])


def check_edges(arrays: Arrays, params: Params) -> Outcome:
    """Every count follows from three edges of the format."""
    for k, kind in enumerate(KINDS):
        magnitudes = np.sort(np.abs(arrays[kind]).astype(np.float64))
        for (f, fmt), s in itertools.product(enumerate(FORMATS), range(params.scales + 1)):
            want = counts_from_edges(magnitudes, fmt, s)
            if not np.array_equal(arrays["counts"][k, f, s], want):
                return failed(f"{kind} gradients * 2^{s} to {fmt}: {arrays['counts'][k, f, s]} against {want}")
    return passed(f"{arrays['counts'].size} counts of {gradients(arrays).size:,} gradients")


def check_shift(arrays: Arrays, params: Params) -> Outcome:
    """Scaling moves every binade by the exponent, and commutes with rounding within the normal range.

    The gradient must be normal before it is rounded: one just below the smallest normal can round up to it, on the
    coarser grid of the subnormals, and to a finer value when it is scaled.
    """
    g, compared = gradients(arrays), 0
    for s in range(params.scales + 1):
        if not np.array_equal(np.frexp(scaled(g, s))[1], np.frexp(g)[1] + s):
            return failed(f"scaling by 2^{s} does not move every binade by {s}")
    for fmt, s in itertools.product(FORMATS, (1, 3, 15)):
        least, most = formats.get(fmt).smallest_normal, formats.get(fmt).max
        before, after = fplab.quantize(g, fmt), fplab.quantize(scaled(g, s), fmt)
        both = (np.abs(g) >= least) & (np.abs(after) <= most)
        if not np.array_equal(scaled(before[both], s), after[both]):
            return failed(f"{fmt}: rounding before and after scaling by 2^{s} differ in the normal range")
        compared += int(both.sum())
    return passed(f"{g.size:,} gradients at {params.scales + 1} scales; {compared:,} pairs of roundings")


def check_edge_of_zero(arrays: Arrays, params: Params) -> Outcome:
    """FP16 loses what is at most 2^-25, not all below 2^-24."""
    g = np.abs(gradients(arrays))
    between = g[(g > 2.0**-25) & (g < 2.0**-24)]
    kept = int((fplab.quantize(between, "fp16") == np.float32(2.0**-24)).sum())
    lower = int((g <= 2.0**-25).sum())
    lost = int((fplab.quantize(g, "fp16") == 0).sum())
    detail = (
        f"{kept:,} of {between.size:,} between 2^-25 and 2^-24 become 2^-24; "
        f"{lost:,} become zero, {lower:,} are at most 2^-25"
    )
    return verdict(kept == between.size > 0 and lost == lower, detail)


def clean_scales(arrays: Arrays, fmt: str) -> np.ndarray:
    """The exponents of the loss scales at which no collected gradient becomes zero or overflows."""
    by_fate = arrays["counts"][:, FORMATS.index(fmt)].sum(axis=0)
    return np.flatnonzero((by_fate[:, 0] == 0) & (by_fate[:, 3] == 0))


def check_window(arrays: Arrays, params: Params) -> Outcome:
    """The smallest and the largest gradient decide which loss scales lose nothing; there may be none."""
    extremes = np.sort(np.abs(gradients(arrays)).astype(np.float64))[[0, -1]]
    texts = []
    for fmt in FORMATS:
        want = [s for s in range(params.scales + 1) if not counts_from_edges(extremes, fmt, s)[[0, 3]].any()]
        got = clean_scales(arrays, fmt)
        if got.tolist() != want:
            return failed(f"{fmt}: {got.tolist()} from all gradients, {want} from the two extremes")
        by_fate = arrays["counts"][:, FORMATS.index(fmt)].sum(axis=0)
        bad = by_fate[:, 0] + by_fate[:, 3]
        best = int(np.argmin(bad))
        some = f"2^{min(want)} to 2^{max(want)}" if want else f"none up to 2^{params.scales}, least bad 2^{best} "
        texts.append(f"{fmt}: {some}" + ("" if want else f"({bad[best] / by_fate[0].sum():.2%} lost)"))
    return passed("; ".join(texts))


def check_product(arrays: Arrays, params: Params) -> Outcome:
    """gradient * lr underflows where the gradient did not, exactly where the exact product is at most 2^-25."""
    narrow = fplab.quantize(arrays["weight"], "fp16")
    narrow = narrow[narrow != 0].astype(np.float64)
    lr = float(fplab.quantize(np.float32(params.lr), "fp16"))
    gone = int((np.abs(narrow * lr) <= 2.0**-25).sum())  # at most 22 significant bits: float64 is exact
    counted, cast = int(arrays["product_fates"][0, 1]), int(arrays["product_fates"][0, 0])
    total = arrays["weight"].size
    detail = (
        f"FP16 rounds {cast / total:.2%} of the non-zero weight gradients to zero, "
        f"the product with lr={params.lr} {counted / total:.2%} more"
    )
    return verdict(counted == gone > 0, detail)


def lost_by_criterion(w: np.ndarray, u: np.ndarray, fmt: str) -> np.ndarray:
    """Whether RNE gives w + u = w for u != 0, by comparison with half the gap beside w; w, u float64 in ``fmt``, exact.

    The gap is ulp(w), but half of that below a power of two, towards zero; a tie goes to w if its significand is even.
    """
    form = formats.get(fmt)
    exponent = np.maximum(np.frexp(w)[1] - 1, form.emin)
    ulp = np.ldexp(1.0, exponent - form.fraction_bits)
    units = np.abs(w) / ulp
    inward = (units == 2.0**form.fraction_bits) & (np.sign(u) != np.sign(w)) & (exponent > form.emin)
    half_gap = np.where(inward, ulp / 4, ulp / 2)
    lost = (np.abs(u) < half_gap) | ((np.abs(u) == half_gap) & (units % 2 == 0))
    return np.asarray(lost & (u != 0) & (w != 0))


def held(arrays: Arrays, fmt: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights and updates as a format holds them, float64."""
    w, u = (fplab.quantize(arrays[x], fmt).astype(np.float64) for x in ("weights", "updates"))
    return w, u


def check_lost(arrays: Arrays, params: Params) -> Outcome:
    """The sums that return the weight are those that the criterion names."""
    texts = []
    for fmt, by_sum in zip(HALVES, arrays["update_fates"], strict=True):
        wrong = int((lost_by_criterion(*held(arrays, fmt), fmt) != (by_sum == LOST_IN_SUM)).sum())
        if wrong:
            return failed(f"{fmt}: {wrong:,} of {by_sum.size:,} differ")
        moving = int((by_sum != NO_UPDATE).sum())
        texts.append(f"{fmt}: {(by_sum == LOST_IN_SUM).sum() / moving:.1%} of {moving:,} updates lost in the sum, "
                     f"{(by_sum == UNDERFLOWS).sum() / moving:.1%} underflow before it")  # fmt: skip
    return passed("; ".join(texts))


def check_rule(arrays: Arrays, params: Params) -> Outcome:
    """2^p is necessary, twice that sufficient; between them the significand decides."""
    texts = []
    for fmt, by_sum in zip(HALVES, arrays["update_fates"], strict=True):
        w, u = (np.abs(x) for x in held(arrays, fmt))
        limit = 2.0 ** formats.get(fmt).significand_bits
        lost, added = by_sum == LOST_IN_SUM, u > 0
        doomed = added & (w >= limit * u)  # products by powers of two: exact
        if (lost & ~doomed).any() or (added & (w >= 2 * limit * u) & ~lost).any():
            return failed(f"{fmt}: a ratio below {limit:.0f} is lost, or one of {2 * limit:.0f} and more is not")
        alive = int((doomed & ~lost).sum())
        if alive == 0:
            return failed(f"{fmt}: no ratio between {limit:.0f} and {2 * limit:.0f} survives")
        texts.append(f"{fmt}: of {int(doomed.sum()):,} ratios of {limit:.0f} and more {alive:,} survive")
    return passed("; ".join(texts))


def check_scaling_helps(arrays: Arrays, params: Params) -> Outcome:
    """What FP16 loses of the activation gradients without and with a loss scale, beside the paper's numbers for SSD."""
    counts, zeros = arrays["counts"][0, 0], int(arrays["zeros"][0])
    total = zeros + counts[0].sum()
    lost = {s: counts[s, 0] / total for s in (0, 3, 15)}
    detail = (
        f"zero already {zeros / total:.1%} (SSD 66.8%); FP16 makes zero {lost[0]:.1%} of all values (SSD 31%), "
        f"with scale 8 {lost[3]:.1%}, with 2^15 {lost[15]:.1%} (SSD 0.1%), {counts[15, 3]} overflow"
    )
    return verdict(lost[15] < lost[3] < lost[0] and counts[15, 3] == 0, detail)


def check_trained(arrays: Arrays, params: Params) -> Outcome:
    """The gradients are those of a network that learns."""
    right, tested = (int(x) for x in arrays["right"])
    return verdict(
        right > 0.95 * tested, f"{right} of {tested} ({right / tested:.1%}) after {len(arrays['losses'])} steps"
    )


EXACT, LIBRARY = Evidence.EXACT, Evidence.LIBRARY
CHECKS = (
    Check("The network is a trained one: it reads more than 95% of the test digits", EXACT, check_trained),
    Check("FP16 counts and bits are numpy's own casts', at every loss scale", LIBRARY, same_as(numpy_cast, "fp16")),
    Check("FP16, BF16, E5M2, E4M3 counts and bits are torch's own casts'", LIBRARY, same_as(torch_cast, *FORMATS)),
    Check("BF16, E5M2, E4M3 counts and bits are ml_dtypes' casts'", LIBRARY, same_as(ml_dtypes_cast, *FORMATS[1:])),
    Check("Casts, gradient * lr and weight + update are correctly rounded", EXACT, check_oracle),
    Check("Three edges of a format decide every count", EXACT, check_edges),
    Check("A loss scale shifts the histogram by its exponent and changes no significand", EXACT, check_shift),
    Check("FP16 loses what is at most 2^-25: not all below 2^-24, as is often said", EXACT, check_edge_of_zero),
    Check("FP16 loses activation gradients, and a loss scale wins back most", EXACT, check_scaling_helps),
    Check("Smallest and largest gradient alone decide which loss scales lose nothing", EXACT, check_window),
    Check("gradient * lr underflows in FP16 where the gradient does not", EXACT, check_product),
    Check("An update is lost exactly where |u| is below half the gap beside w (tie: even)", EXACT, check_lost),
    Check("A ratio of 2048 (FP16), 256 (BF16) is needed to lose an update, but not enough", EXACT, check_rule),
)
