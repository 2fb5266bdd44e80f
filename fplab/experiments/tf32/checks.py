"""The claims about TF32, each against exact integers, a library, or published numbers."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from ... import exact_products as whole
from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, Sample, Status, failed, measured, same_bits, verdict
from ..legacy import Check
from ..partial_products.compared import drawn, within_bounds
from ..statistics import superior
from .operands import CONVERSIONS, LOW
from .products import CORES, EXAMPLE_GPU, KINDS, VARIANTS, converted, index, of_kind

if TYPE_CHECKING:
    from . import Params

PART_USED = 1 / 8  # of its bound, at the least, by the largest error of each part
STEADY = 0.1  # how far a share may change from K = 256 on: sums of so many terms are known to a percent
DECIDED = 4096  # up to this length the conversion decides
DRAWS = 4  # squares of the sample
# PyTorch's documentation (notes/cuda.html): normal matrices of 10240 x 10240 on an A100, product in TF32 against FP64.
PUBLISHED_ERROR, PUBLISHED_MEAN, PUBLISHED_COUNT = 0.1747, 80.7277, 10240**2
SIGMAS = (5.2, 6.6)  # the largest of so many normal numbers lies between these with a probability above 99%


def means(arrays: Arrays, params: Params) -> Outcome:
    """All patterns of the low bits: the mean error of each conversion, exact, in units of TF32's last place."""
    low = arrays["low bits"]
    got = {c: Fraction(int(low[i].sum()), low[i].size << LOW) for i, c in enumerate(CONVERSIONS)}
    most = {c: int(np.abs(low[i]).max()) for i, c in enumerate(CONVERSIONS)}
    n = 1 << LOW
    right = got == {"truncate": Fraction(1 - n, 2 * n), "rna": Fraction(1, 2 * n), "rne": Fraction(0)}
    right &= most == {"truncate": n - 1, "rna": n // 2, "rne": n // 2}
    return verdict(right, ", ".join(f"{c}: mean {v}, at most {Fraction(most[c], n)}" for c, v in got.items()))


def ties(arrays: Arrays, params: Params) -> Outcome:
    """rna and rne on all patterns: where they differ."""
    rna, rne = (arrays["low bits"][CONVERSIONS.index(c)] for c in ("rna", "rne"))
    at = [(int(p), int(bits)) for p, bits in np.argwhere(rna != rne)]
    share = 1 / (2 << LOW)
    return verdict(at == [(0, 1 << (LOW - 1))], f"a tie after an even last place: {share:.1e} of all operands")


def half_precision(arrays: Arrays, params: Params) -> Outcome:
    """TF32 and numpy's float16 of the same FP32 values, to nearest even, within the normal range of FP16."""
    compared = 0
    for kind, part in itertools.product(KINDS, "ab"):
        x = arrays[f"{kind}: {part}"].view(np.float32)
        x = x[(np.abs(x) >= 2.0**-14) & (np.abs(x) < 65504)]
        got, want = converted(x, "rne"), x.astype(np.float16).astype(np.float32)
        outcome = same_bits(got.view(np.uint32), want.view(np.uint32), "fp32")
        if outcome.status is not Status.PASS:
            return failed(f"{kind}: {outcome.detail}")
        compared += x.size
    far = np.array([1e-30, 3e38], np.float32)
    kept = bool((converted(far, "rne") != 0).all() and np.isfinite(converted(far, "rne")).all())
    return verdict(kept, f"{compared:,} operands, every bit; 1e-30 and 3e38, which FP16 loses, stay")


def bounds_hold(arrays: Arrays, params: Params) -> Outcome:
    """Every error, in integers, and how much of its bound is used at most."""
    return within_bounds(((kind, of_kind(arrays, kind)) for kind in KINDS), [v.name for v in VARIANTS])


def parts_hold(arrays: Arrays, params: Params) -> Outcome:
    """The two parts of an error one by one, conversion and the chain on converted operands; each uses its bound."""
    compared = 0
    used: dict[str, float] = {}
    for kind, (c, conversion) in itertools.product(KINDS, enumerate(CONVERSIONS)):
        one = of_kind(arrays, kind)
        parts = {f"{conversion}": (one.converted[c] - one.exact, one.conversion_bound(conversion))}
        for gpu in CORES:
            i = index(gpu, conversion)
            parts[f"chain on {gpu}"] = (one.results[i] - one.converted[c], one.chain_bound(i))
        for name, (error, bound) in parts.items():
            if (np.abs(error) > bound).any():
                return failed(f"{kind}, {conversion}, {name}: an error is above its bound")
            used[name] = max(used.get(name, 0.0), float(whole.ratio(np.abs(error), bound).max()))
        compared += one.exact.size
    detail = f"{compared:,} products; used at most: {', '.join(f'{name} {share:.2f}' for name, share in used.items())}"
    return verdict(min(used.values()) >= PART_USED, detail)


def shrinks(arrays: Arrays, params: Params) -> Outcome:
    """Positive operands: truncation falls short by the same share at every length, and rounding errs far less.

    Of each product on the diagonal, which are independent draws.
    """
    one = of_kind(arrays, "positive")
    signed = {c: one.converted[i] - one.exact for i, c in enumerate(CONVERSIONS)}
    if (signed["truncate"] >= 0).any():
        return failed("a product of truncated positive operands is not below the exact one")
    share = {c: np.abs(whole.ratio(v, one.exact)) for c, v in signed.items()}
    cut = np.diagonal(share["truncate"])  # (length, draw)
    steady = cut[-1] / cut[4]
    least = cut[-1] / np.maximum(*(np.diagonal(share[c])[-1] for c in ("rna", "rne")))
    detail = ", ".join(f"{c} {v[..., 0].mean():.1e} to {v[..., -1].mean():.1e}" for c, v in share.items())
    detail = f"mean relative error of the conversion, K = 16 to {one.lengths[-1]:,}: {detail}"
    holds = bool((np.abs(steady - 1) < STEADY).all() and (least > 10).all())
    return measured(holds, detail, Sample(steady.size, float(steady.std(ddof=1)), STEADY))


def conversion_decides(arrays: Arrays, params: Params) -> Outcome:
    """Random signs: r.m.s. errors of the conversion against A100's chain after it, and FP32 multiply-adds.

    Of each row of B, a draw, over all lengths up to 4,096; of the three conversions the least factor counts.
    """
    one = of_kind(arrays, "random")
    short = int((one.lengths <= DECIDED).sum())

    def rms(error: np.ndarray) -> np.ndarray:
        return drawn(whole.ratio(error, one.magnitude)[..., :short], short)

    plain = rms(one.errors[index()])
    texts, factors = [], []
    for c, conversion in enumerate(CONVERSIONS):
        results = one.results[index(EXAMPLE_GPU, conversion)]
        share, chain = rms(one.converted[c] - one.exact), rms(results - one.converted[c])
        factors.append(np.log2(share / np.maximum(chain, plain)))
        texts.append(f"{conversion} {share.mean():.1e} and {chain.mean():.1e}")
    detail = f"conversion and chain: {', '.join(texts)}; FP32 {plain.mean():.1e}; in powers of 2"
    least = np.min(factors, axis=0)
    return superior(least, np.zeros_like(least), 2.0, detail)


def published_error(arrays: Arrays, params: Params) -> Outcome:
    """The published largest error of 10240 x 10240 products against our sample of the same distribution.

    Independent draws are squares on the diagonal of the sample.
    """
    exact, errors = arrays["published: exact"], arrays["published: errors"]
    squares = [slice(k, k + len(exact) // DRAWS) for k in range(0, len(exact), len(exact) // DRAWS)]
    sigmas = {
        c: np.array([PUBLISHED_ERROR / float(errors[i][at, at].std()) for at in squares])
        for i, c in enumerate(CONVERSIONS)
    }
    most = float(np.abs(errors[0]).max())
    slope = float((errors[0] * exact).sum() / (exact**2).sum())
    typical = float(np.abs(exact).mean())
    holds = abs(typical / PUBLISHED_MEAN - 1) < 0.1 and most > PUBLISHED_ERROR
    holds &= all(SIGMAS[0] < float(sigmas[c].mean()) < SIGMAS[1] for c in ("rna", "rne"))
    detail = (
        f"0.1747 is {sigmas['rna'].mean():.2f} (rna), {sigmas['rne'].mean():.2f} (rne) standard deviations; "
        f"truncation shrinks products by {-slope:.2e}: among {exact.size:,} it errs by {most:.3f}; "
        f"mean |product| {typical:.1f} (80.7)"
    )
    return measured(holds, detail, Sample(DRAWS, float(sigmas["rne"].std(ddof=1)), (SIGMAS[1] - SIGMAS[0]) / 2))


PROVED, MEASURED = Evidence.PROVED, Evidence.MEASURED
CHECKS = (
    Check("Over all low bits truncation loses half a unit on average, rna gains 2^-14, rne nothing", PROVED, means),
    Check("rna and rne differ in one operand of 16,384", PROVED, ties),
    Check("TF32 is FP16's precision with FP32's range: numpy's float16 where that reaches", Evidence.LIBRARY,
          half_precision),
    Check("No error is above its bound, and each way uses a sixteenth of it", PROVED, bounds_hold),
    Check("Conversion and chain each keep their own bound, and use an eighth of it", PROVED, parts_hold),
    Check("Up to K = 4,096 the conversion costs four times what the chain after it does, or FP32's", MEASURED,
          conversion_decides),
    Check("Truncation shrinks positive sums by a share that stays at every K; rounding errs ten times less", MEASURED,
          shrinks),
    Check("PyTorch's published A100 error fits rounded operands, not truncated ones", MEASURED, published_error),
)  # fmt: skip
