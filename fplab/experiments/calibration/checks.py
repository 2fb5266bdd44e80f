"""The experiment's claims."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ... import integers
from ...hardware.cases import Arrays
from ...integers import CALIBRATORS, Histogram, grids, oracle
from ...integers.calibration import START
from ..base import Check, Evidence, Outcome, Status, absent, failed, passed, same_bits, verdict
from .data import BITS, LAYERS, RULES, SCHEMES, THROUGH, Params

WITHIN = 0.01  # of the FP32 accuracy
FEWEST = 3  # networks whose losses are averaged: of a single one a third may come back, or all, by the CPU's last bits
ONE_SEED = "seeds differ too much: averaged over five at the full size (fplab run calibration --full)"
INT8, INT4 = BITS.index(8), BITS.index(4)


def histogram(arrays: Arrays, layer: int) -> Histogram:
    """The first run's histogram of a layer's inputs again."""
    seen = Histogram(1)
    counts = arrays["counts"][layer]
    seen.counts, seen.width = counts[: np.flatnonzero(counts)[-1] + 1], float(arrays["widths"][layer])
    seen.amax = float(arrays["amax"][0, INT8, 0, RULES.index("max"), layer])
    return seen


def check_percentiles(arrays: Arrays, params: Params) -> Outcome:
    """Every percentile against exact shares of the counts."""
    compared = 0
    for layer, name in enumerate(LAYERS):
        seen = histogram(arrays, layer)
        for r, rule in enumerate(CALIBRATORS):
            if rule.rule != "percentile":
                continue
            want = oracle.percentile(seen.counts.tolist(), Fraction(str(rule.percentile))) * seen.width
            if (found := arrays["amax"][0, INT8, 0, r, layer]) != want:
                return failed(f"{name}, {rule.title}: {found!r} against {want!r}")
            compared += 1
    return passed(f"{compared} ranges of {arrays['counts'].sum():,} values")


def check_entropy(arrays: Arrays, params: Params) -> Outcome:
    """The chosen cut's divergence, and that of cuts all over the range, from Fractions; none is smaller."""
    compared, r = 0, RULES.index("entropy")
    for layer, name in enumerate(LAYERS[:2]):  # the images with their few values, and a layer with many
        seen = histogram(arrays, layer)
        counts = seen.counts.tolist()
        for b in (INT8, INT4):
            chosen = round(float(arrays["amax"][0, b, 0, r, layer]) / seen.width)
            least = oracle.divergence(counts, chosen, int(arrays["levels"][b, 0]))
            for cut in np.linspace(START, len(counts), 3).astype(int).tolist():
                other = oracle.divergence(counts, cut, int(arrays["levels"][b, 0]))
                if other < least * (1 - 1e-9) - 1e-15:
                    return failed(
                        f"{name}, INT{BITS[b]}: {other:.3g} at {cut} bins, {least:.3g} at the chosen {chosen}"
                    )
                compared += 1
    return passed(f"{compared} cuts, of which none has a smaller divergence than the chosen one")


def check_torch(arrays: Arrays, params: Params) -> Outcome:
    """The images and the last layer's inputs and weights through torch's operators and the lab's."""
    import torch

    compared = 0
    for values, axis in ((arrays["images"], None), (arrays["hidden"], None), (arrays["weights"], 0)):
        for bits in BITS:
            grid = grids.get(f"int{bits}")
            how = integers.scheme(values, grid, "tensor" if axis is None else "channel")
            ours = integers.dequantize(integers.quantize(values, how), how)
            x = torch.from_numpy(values)
            if axis is None:
                theirs = torch.fake_quantize_per_tensor_affine(x, float(how.scale), 0, grid.low, grid.high)
            else:
                scale = torch.from_numpy(how.scale.ravel())
                zero = torch.zeros(len(scale), dtype=torch.int32)
                theirs = torch.fake_quantize_per_channel_affine(x, scale, zero, axis, grid.low, grid.high)
            outcome = same_bits(ours.view(np.uint32), theirs.numpy().view(np.uint32), "fp32")
            if outcome.status is not Status.PASS:
                return failed(f"INT{bits}: {outcome.detail}")
            compared += values.size
    return passed(f"{compared:,} values, every bit")


def check_integers(arrays: Arrays, params: Params) -> Outcome:
    """The last layer in INT8 codes against FP32 products of fake-quantised values, within the bound of rounding."""
    x, w = arrays["hidden"], arrays["weights"]
    top = np.float32(arrays["amax"][0, INT8, 0, RULES.index("max"), -1])
    hx, hw = integers.symmetric(top), integers.scheme(w, "int8", "channel")
    total = integers.int_matmul(integers.quantize(x, hx), integers.quantize(w, hw).T)
    exact = total * (float(hx.scale) * hw.scale.astype(np.float64).T)
    fake_x, fake_w = (integers.dequantize(integers.quantize(v, h), h) for v, h in ((x, hx), (w, hw)))
    found = fake_x @ fake_w.T
    magnitudes = np.abs(fake_x).astype(np.float64) @ np.abs(fake_w).astype(np.float64).T
    roundings = (x.shape[1] + 2) * 2.0**-24  # of both operands, their product, and the sums after it
    bound = roundings / (1 - roundings) * magnitudes
    ratio = float((np.abs(found - exact) / np.maximum(bound, 1e-300)).max())
    return verdict(ratio <= 1, f"{found.size:,} sums, at most {ratio:.2g} of the bound")


def accuracies(arrays: Arrays, bits: int) -> np.ndarray:
    """The change of accuracy from FP32's, by seed, scheme and rule."""
    change: np.ndarray = (arrays["right"][:, bits] - arrays["fp32_right"][:, None, None]) / arrays["tested"][0]
    return change


def check_int8(arrays: Arrays, params: Params) -> Outcome:
    """INT8 after training: every rule and scheme, averaged over seeds."""
    change = accuracies(arrays, INT8).mean(axis=0)
    detail = f"{change.size} combinations, {change.min():+.2%} to {change.max():+.2%} of the digits"
    return verdict(bool(change.min() >= -WITHIN), detail)


def check_four_bits(arrays: Arrays, params: Params) -> Outcome:
    """The error of the logits at 4 bits over that at 8 bits, where the whole range is kept."""
    r = RULES.index("max")
    ratio = (arrays["errors"][:, INT4, :, r] / arrays["errors"][:, INT8, :, r]).mean(axis=0)
    detail = ", ".join(
        f"{s.along} {'affine' if s.zero_point else 'symmetric'} {x:.0f}×" for s, x in zip(SCHEMES, ratio, strict=True)
    )
    return verdict(bool(((ratio > 8) & (ratio < 36)).all()), detail)


def check_entropy_fails(arrays: Arrays, params: Params) -> Outcome:
    """The first layer's inputs have 17 values: the divergence is least where it keeps almost none of them."""
    entropy = RULES.index("entropy")
    kept = float(arrays["amax"][0, INT4, 0, entropy, 0] / arrays["amax"][0, INT4, 0, RULES.index("max"), 0])
    change = accuracies(arrays, INT4)[:, 0].mean(axis=0)
    others = np.delete(change, entropy)
    values = len(np.unique(arrays["images"]))
    detail = f"{values} values; it keeps {kept:.1%} of their range and loses {-change[entropy]:.0%} of the digits, the "
    detail += f"other rules lose at most {-others.min():.1%}"
    return verdict(bool(kept < 0.1 and change[entropy] < -0.3 and others.min() > -0.05), detail)


def trained(arrays: Arrays, bits: int, rule: str, learned: bool) -> np.ndarray:
    """The change of accuracy from FP32's during an epoch through quantisers, (seeds, evaluations)."""
    row = THROUGH.index((bits, rule, learned))
    change: np.ndarray = (arrays["qat_right"][:, row] - arrays["fp32_right"][:, None]) / arrays["tested"][0]
    return change


def check_trained(arrays: Arrays, params: Params) -> Outcome:
    """From a sound range of INT4, ranges fixed: every run is within 1% at some step of the epoch."""
    change = trained(arrays, 4, "max", False)
    best = change.max(axis=1)
    detail = f"{change[:, 0].mean():+.2%} before, at best {best.mean():+.2%}, the worst run {best.min():+.2%}"
    return verdict(bool((best >= -WITHIN).all()), detail)


def check_three_bits(arrays: Arrays, params: Params) -> Outcome:
    """INT3, where quantising after training does cost accuracy: the loss, which is less noisy, and who comes back."""
    if len(arrays["qat_losses"]) < FEWEST:
        return absent(ONE_SEED)
    parts, holds = [], True
    for learned in (False, True):
        row = THROUGH.index((3, "mse", learned))
        cost = (arrays["qat_losses"][:, row] - arrays["fp32_loss"][:, None]).mean(axis=0)
        holds &= bool(cost.min() < cost[0] / 2)
        change = trained(arrays, 3, "mse", learned)
        back = int((change.max(axis=1) >= -WITHIN).sum())
        kind = "learned" if learned else "fixed"
        before, best = change[:, 0].mean(), change.max(axis=1).mean()
        parts.append(
            f"{kind} ranges: loss {cost[0]:+.3f}, then {cost.min():+.3f}; accuracy {before:+.2%}, at best {best:+.2%}, "
            f"{back} of {len(change)} within 1%"
        )
    return verdict(holds, "; ".join(parts))


def check_learned(arrays: Arrays, params: Params) -> Outcome:
    """From the range that entropy spoils: fixed it stays spoiled, learned it opens."""
    fixed, learned = (trained(arrays, 4, "entropy", x).mean(axis=0) for x in (False, True))
    detail = f"{fixed[0]:+.0%} before the epoch; after it {fixed[-1]:+.1%} fixed, {learned[-1]:+.1%} learned"
    return verdict(bool(learned[-1] > -0.05 and learned[-1] > fixed[-1] + 0.1), detail)


CHECKS = (
    Check("percentiles are the left edges of the bins that exact shares reach", Evidence.EXACT, check_percentiles),
    Check("entropy's cut has the least divergence, computed in fractions", Evidence.EXACT, check_entropy),
    Check("fake quantisation is torch's, per tensor and per channel", Evidence.LIBRARY, check_torch),
    Check("integer codes and fake-quantised FP32 compute the same layer, within FP32's rounding", Evidence.EXACT,
          check_integers),
    Check("in INT8 every rule and scheme stays within 1% of FP32's accuracy", Evidence.EXACT, check_int8),
    Check("four bits fewer make the error of the logits about 16 times as large", Evidence.EXACT, check_four_bits),
    Check("in INT4 the entropy rule fails on inputs of few values, and no other rule does", Evidence.EXACT,
          check_entropy_fails),
    Check("one epoch of training through INT4 brings the accuracy back within 1% of FP32's", Evidence.EXACT,
          check_trained),
    Check("one epoch of training through INT3 gives back more than half of the loss that it cost", Evidence.EXACT,
          check_three_bits),
    Check("a learned range recovers from a spoiled one, a fixed range does not", Evidence.EXACT, check_learned),
)  # fmt: skip
