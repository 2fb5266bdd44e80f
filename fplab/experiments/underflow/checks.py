"""The experiment's claims, each against an exact criterion, a recount, or a library's own casts and gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import fplab

from ... import formats
from ...hardware.cases import Arrays
from ...hardware.tensors import overflow_of
from ..base import Evidence, Outcome, Status, absent, failed, passed, same_bits, verdict
from ..legacy import Check
from ..statistics import superior
from .cases import torch_cast, torch_version
from .data import (
    FORMATS,
    HALVES,
    HIGHEST,
    KINDS,
    LAYERS,
    LOST_IN_SUM,
    LOWEST,
    NO_UPDATE,
    SCALES,
    UNDERFLOWS,
    Params,
    gradients,
    scaled,
)


def same_as(
    cast: Callable[[np.ndarray, str], np.ndarray], *names: str, every: int = 1
) -> Callable[[Arrays, Params], Outcome]:
    """A check that a library's ``cast(values, fmt) -> codes`` gives every bit and every count that the kernels give.

    ``every``: binades between two loss scales.
    """

    def check(arrays: Arrays, params: Params) -> Outcome:
        compared = 0
        for fmt, (k, kind), s in itertools.product(names, enumerate(KINDS), range(0, params.scales + 1, every)):
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
    """Scaling adds its exponent to every gradient's and leaves the significand, by numpy's frexp."""
    g = gradients(arrays)
    significands, exponents = np.frexp(g)
    for s in range(params.scales + 1):
        found = np.frexp(scaled(g, s))
        if not (np.array_equal(found[0], significands) and np.array_equal(found[1], exponents + s)):
            return failed(f"scaling by 2^{s} does not move every binade by {s} and nothing else")
    return passed(f"{g.size:,} gradients at {params.scales + 1} scales")


def binades_of_bits(values: np.ndarray) -> np.ndarray:
    """How many float32 values lie in each binade, by their bits: the exponent field, a subnormal's leading digit."""
    magnitude = values.view(np.uint32) & np.uint32(0x7FFFFFFF)
    magnitude = magnitude[magnitude > 0]
    field = (magnitude >> np.uint32(23)).astype(np.int64)
    digits = np.frexp(np.maximum(magnitude & np.uint32(0x7FFFFF), 1).astype(np.float64))[1]
    places = np.where(field > 0, field - 127, digits - 150) - LOWEST
    return np.asarray(np.bincount(places, minlength=HIGHEST - LOWEST + 1))


def check_histograms(arrays: Arrays, params: Params) -> Outcome:
    """The drawn histograms against a recount on bits; the product with the rate is rounded from float64's exact one."""
    products = (arrays["weight"].astype(np.float64) * np.float64(np.float32(params.lr))).astype(np.float32)
    drawn = (*zip(KINDS, arrays["binades"], strict=True), ("product", arrays["product_binades"]))
    for (name, got), values in zip(drawn, (arrays["activation"], arrays["weight"], products), strict=True):
        want = binades_of_bits(values)
        if not np.array_equal(got, want):
            at = int(np.flatnonzero(got != want)[0])
            return failed(f"{name}: {got[at]} in binade 2^{at + LOWEST}, by bits {want[at]}")
    return passed(f"{arrays['activation'].size + 2 * arrays['weight'].size:,} values in three histograms")


def check_layers(arrays: Arrays, params: Params) -> Outcome:
    """The gradients of the first, a middle and the last snapshot again, by autograd on functions of the layers.

    Values and sizes, and the shares by layer that are drawn: how many are at most 2^-25.
    """
    from ... import training
    from ...training.loop import batches, one_thread

    data = training.digits("train")
    images, labels = training.tensors(data)
    order = list(batches(len(labels), training.Recipe(params.epochs, params.batch, params.lr, params.momentum,
                                                      params.seed)))  # fmt: skip
    sizes, count = arrays["activation_sizes"], len(arrays["steps"])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    weights = arrays["weights"].reshape(count, -1)
    for n in sorted({0, count // 2, count - 1}):
        chosen = order[int(arrays["steps"][n])]
        with one_thread():
            found = layer_gradients(params, weights[n], images[chosen], labels[chosen])
        for i, (name, g) in enumerate(zip(LAYERS, found, strict=True)):
            there = g[g != 0]
            start = int(starts[n * len(LAYERS) + i])
            if sizes[n, i] != there.size or not np.array_equal(arrays["activation"][start : start + there.size], there):
                return failed(f"step {arrays['steps'][n]}: the gradients of {name} are others")
            lost = int((np.abs(there) <= 2.0**-25).sum())
            if arrays["layer_underflows"][n, i] != lost:
                return failed(f"step {arrays['steps'][n]}, {name}: {arrays['layer_underflows'][n, i]} lost, not {lost}")
    if not np.array_equal(arrays["layer_underflows"].sum(), arrays["counts"][0, 0, 0, 0]):
        return failed("the layers' losses do not add up to the count of all")
    return passed(f"{len(LAYERS)} layers of 3 snapshots; the losses of all {count} add up")


def network(params: Params, weights: np.ndarray) -> Any:
    """The network with these weights, flat in the order of its parameters."""
    import torch

    from ... import training

    model = training.digits_net(params.seed)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(weights.copy()), model.parameters())
    return model


def layer_gradients(params: Params, weights: np.ndarray, images: Any, labels: Any) -> list[np.ndarray]:
    """The gradient of the loss with respect to the output of each layer that has weights, flat."""
    import torch

    x, outputs = images, []
    for module in network(params, weights).children():
        x = module(x)
        if list(module.parameters()):
            outputs.append(x)
    loss = torch.nn.functional.cross_entropy(x, labels)
    return [np.array(g.numpy()).ravel() for g in torch.autograd.grad(loss, outputs)]


def check_edge_of_zero(arrays: Arrays, params: Params) -> Outcome:
    """FP16 loses what is at most 2^-25, not all below 2^-24."""
    g = np.abs(gradients(arrays))
    lower, below = int((g <= 2.0**-25).sum()), int((g < 2.0**-24).sum())
    lost = int(arrays["counts"][:, FORMATS.index("fp16"), 0, 0].sum())
    return verdict(
        lost == lower < below, f"{lost:,} become zero, {lower:,} are at most 2^-25, {below:,} are below 2^-24"
    )


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
    small = int((np.abs(arrays["weight"]) <= 2.0**-25).sum())
    total = arrays["weight"].size
    detail = (
        f"FP16 rounds {cast / total:.2%} of the non-zero weight gradients to zero, "
        f"the product with lr={params.lr} {counted / total:.2%} more"
    )
    return verdict(counted == gone > 0 and cast == small, detail)


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
    """What FP16 loses of the activation gradients without and with a loss scale, beside the paper's numbers for SSD.

    "Most" is more than half of what is lost without a scale, in the mean over networks; nothing overflows.
    """
    zeros, counts = int(arrays["zeros"][0]), arrays["counts"][0, 0]
    share, (none, eight, large) = zeros / (zeros + counts[0].sum()), arrays["lost"].T
    detail = (
        f"zero already {share:.1%} (SSD 66.8%); FP16 makes zero {none.mean():.1%} of all values (SSD 31%), "
        f"with scale 8 {eight.mean():.1%}, with 2^15 {large.mean():.2%} (SSD 0.1%), {counts[15, 3]} overflow"
    )
    if counts[15, 3] or not np.array_equal(arrays["lost"][0], counts[list(SCALES), 0] / (zeros + counts[0].sum())):
        return failed(detail)
    return superior(none / 2, large, 0.0, detail)


def check_trained(arrays: Arrays, params: Params) -> Outcome:
    """The gradients are those of a network that learns: its last weights, read again."""
    from ... import training
    from ...training.loop import one_thread

    test = training.digits("test")
    last = (arrays["weights"] + arrays["updates"]).reshape(len(arrays["steps"]), -1)[-1]
    with one_thread():
        answers = network(params, last)(training.tensors(test)[0]).argmax(1).numpy()
    right, tested = (int(x) for x in arrays["right"])
    told = f"{right} of {tested} ({right / tested:.1%}) after {len(arrays['losses'])} steps"
    return verdict(right == int((answers == test.labels).sum()) and right > 0.95 * tested, told)


PROVED, LIBRARY = Evidence.PROVED, Evidence.LIBRARY
SEEN = 6  # binades between the loss scales at which the slower libraries cast
CHECKS = (
    Check("The network is a trained one: it reads more than 95% of the test digits", PROVED, check_trained),
    Check("FP16 counts and bits are numpy's own casts', at every loss scale", LIBRARY, same_as(numpy_cast, "fp16")),
    Check("FP16, BF16, E5M2, E4M3 counts and bits are torch's own casts'", LIBRARY,
          same_as(torch_cast, *FORMATS, every=SEEN)),
    Check("BF16, E5M2, E4M3 counts and bits are ml_dtypes' casts'", LIBRARY,
          same_as(ml_dtypes_cast, *FORMATS[1:], every=SEEN)),
    Check("Three edges of a format decide every count", PROVED, check_edges),
    Check("The histograms count each gradient, and its product with the rate, in the binade of its bits", PROVED,
          check_histograms),
    Check("In the first, a middle and the last snapshot each layer's gradients are autograd's, and so are its losses",
          LIBRARY, check_layers),
    Check("A loss scale adds its exponent to every gradient's and changes no significand", PROVED, check_shift),
    Check("FP16 loses what is at most 2^-25: not all below 2^-24, as is often said", PROVED, check_edge_of_zero),
    Check("FP16 loses activation gradients, and a loss scale wins back most", Evidence.MEASURED, check_scaling_helps),
    Check("Smallest and largest gradient alone decide which loss scales lose nothing", PROVED, check_window),
    Check("gradient * lr underflows in FP16 where the gradient does not", PROVED, check_product),
    Check("An update is lost exactly where |u| is below half the gap beside w (tie: even)", PROVED, check_lost),
    Check("A ratio of 2048 (FP16), 256 (BF16) is needed to lose an update, but not enough", PROVED, check_rule),
)  # fmt: skip
