"""TF32: three ways from FP32 to TF32, what each does to a product, and which one a published error gives away.

A TF32 multiplier reads 10 of FP32's 23 fraction bits. It can ignore the other 13 (``truncate``, what the instruction
does by itself), or software rounds first: to nearest with ties away (``rna``, the instruction ``cvt.rna.tf32``) or to
even (``rne``, from Hopper on). Truncation errs twice as far at most; but it always errs toward zero, and that is what
counts in a long sum. Errors are exact integers (:mod:`fplab.exact_products`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from .. import draw, numeric
from .. import exact_products as whole
from ..hardware.cases import Case, philox_bits
from ..hardware.core_cases import SIDE, core_case
from ..hardware.products import TF32, Product
from ..tensorcore.models import get as model_of
from ..words import COMMA, Text, joined, say, verbatim
from . import long_products
from .base import Claims, Columns, Digested, Experiment, Tick, sheet
from .long_products import DOTS, REAL, Array, Compared, along_k, listed, sizes
from .outcomes import Outcome, Sample, failed, measured, passed, same_bits, verdict
from .partial_products.bounds import rate, terms, walk
from .statistics import superior

MADE_UP = ("random", "positive")
KINDS = (*MADE_UP, REAL[2])
CORES = {"A100": (4, 24), "H100": (8, 25)}  # products of a block, and the bits to which they are aligned
LOW = 13  # fraction bits of FP32 beyond TF32's 10
ROUNDINGS = {"truncate": "rtz", "rna": "rna", "rne": "rne"}
CONVERSIONS = tuple(ROUNDINGS)
PART_USED = 1 / 8  # of its bound, at the least, by the largest error of each part
STEADY = 0.1  # how far a share may change from K = 256 on: sums of so many terms are known to a percent
WALKED = 1024  # the longest chains that are walked by definition
DECIDED = 4096  # up to this length the conversion decides
DRAWS = 4  # squares of the sample
# PyTorch's documentation (notes/cuda.html): normal matrices of 10240 x 10240 on an A100, product in TF32 against FP64.
EXAMPLE, EXAMPLE_GPU, PUBLISHED_ERROR, PUBLISHED_MEAN = 10240, "A100", 0.1747, 80.7277
SIGMAS = (5.2, 6.6)  # the largest of 10240**2 normal numbers lies between these with a probability above 99%


@dataclass(frozen=True)
class Params:
    """``rows``: of A and of B. ``log2_last``: the longest K. ``sample``: rows of the published example."""

    rows: int = 8
    log2_last: int = 16
    sample: int = 64


# --- operands and ways to multiply ------------------------------------------------------------------------------
def operands(kind: str, rows: int, log2_last: int) -> tuple[Array, Array]:
    """Float32 A and B (rows, K). Made up: multiples of 2**-24 between -1 or 0 and 1."""
    if kind not in MADE_UP:
        return long_products.chosen(kind, rows, log2_last)
    key, k = 2000 + 10 * MADE_UP.index(kind), 1 << log2_last
    a, b = ((philox_bits(key + i, rows * k) >> np.uint32(7)).astype(np.int64).reshape(rows, k) for i in range(2))
    signed, unit = (1 << 24, -24) if kind == "random" else (0, -25)
    return np.ldexp(a - signed, unit).astype(np.float32), np.ldexp(b - signed, unit).astype(np.float32)


def nearly_normal(key: int, rows: int) -> Array:
    """Float32 (rows, 10240) of mean 0 and variance 1: sums of twelve uniform numbers, from integers alone."""
    raw = philox_bits(key, 12 * rows * EXAMPLE).reshape(12, rows, EXAMPLE).astype(np.int64).sum(axis=0)
    return np.asarray(np.ldexp((raw - (6 << 32)).astype(np.float64), -32).astype(np.float32))


def converted(x: Array, conversion: str) -> Array:
    """FP32 values in TF32, float32."""
    return np.asarray(numeric.quantize(x, "tf32", ROUNDINGS[conversion]))


def low_bits() -> Array:
    """What every conversion does to all patterns of the low bits, after an even and an odd last place: int64.

    Shape (conversion, parity, 2**13); in units of FP32's last place, 2**-13 of TF32's.
    """
    x = (np.uint32(0x3F800000) + np.arange(2 << LOW, dtype=np.uint32)).view(np.float32)
    errors = [converted(x, c).astype(np.float64) - x for c in CONVERSIONS]
    return np.asarray(np.ldexp(np.stack(errors), 23).astype(np.int64).reshape(len(CONVERSIONS), 2, 1 << LOW))


@dataclass(frozen=True)
class Variant:
    """``gpu``: whose TF32 Tensor Core; "" for a chain of FP32 fused multiply-adds, which converts nothing."""

    gpu: str = ""
    conversion: str = ""

    @property
    def name(self) -> Text:
        if not self.gpu:
            return say("FP32 multiply-adds")
        return say("{gpu} TF32, {conversion}", gpu=self.gpu, conversion=NAMED[self.conversion])


NAMED: dict[str, Text] = {"truncate": say("truncate"), "rna": verbatim("rna"), "rne": verbatim("rne")}
VARIANTS = (Variant(), *(Variant(gpu, conversion) for gpu in CORES for conversion in CONVERSIONS))
NAMES = [variant.name for variant in VARIANTS]


def index(gpu: str = "", conversion: str = "") -> int:
    return VARIANTS.index(Variant(gpu, conversion))


def multiplied(a: Array, b: Array, variant: Variant, at: Array) -> Array:
    """The product of a (M, K) and b (N, K) at every length, one chain: float32 (M, N, S)."""
    if variant.gpu:
        return long_products.on_gpu(a, b, variant.gpu, "fp32", at, inputs="tf32", conversion=variant.conversion)
    return multiply_adds(a, b, at)


def multiply_adds(a: Array, b: Array, at: Array) -> Array:
    """Chains of FP32 fused multiply-adds over a (M, K), b (N, K), at every length: float32 (M, N, S)."""
    return np.stack([np.asarray(numeric.dot(row[None], b, "fp32", running=True))[:, at - 1] for row in a])


# --- the run ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Products(Compared):
    """``results`` by variant; of converted operands, by conversion, ``converted`` sums and ``kept``, of magnitudes."""

    converted: Digested
    kept: Digested

    def conversion_bound(self, conversion: str) -> Array:
        """(2 d + d**2) sum|a b|, rounded down; d is 2**-10 for truncation, 2**-11 for rounding to nearest."""
        d = Fraction(1, 1 << (10 if conversion == "truncate" else 11))
        return self.rounded_down(lambda k, s: (2 * d + d * d) * s, self.magnitude)

    def chain_bound(self, i: int) -> Array:
        """What adding may cost, rounded down.

        A chain of blocks of L products: ``K ((L - 1) 2**-F + 2**-23) / L`` times the sum of the converted magnitudes,
        since truncated partial sums never exceed it (:mod:`.partial_products.bounds`). Multiply-adds:
        ``K u / (1 - K u)`` sum|a b| with u = 2**-24.
        """
        variant = VARIANTS[i]
        if not variant.gpu:
            return self.rounded_down(lambda k, s: Fraction(k, (1 << 24) - k) * s, self.magnitude)
        one = rate(model_of(variant.gpu, "tf32"))
        return self.rounded_down(lambda k, s: k * one * s, self.kept[CONVERSIONS.index(variant.conversion)])

    def bound_of(self, i: int) -> Array:
        """Conversion and chain together."""
        chain = self.chain_bound(i)
        return np.asarray(chain + self.conversion_bound(VARIANTS[i].conversion)) if VARIANTS[i].gpu else chain


@dataclass(frozen=True)
class Result:
    """``kinds``: the products of each kind of operands. ``low_bits``: see :func:`low_bits`.

    ``published_exact`` (n, n) and ``published_errors`` (conversion, n, n): the published example on some rows; float64.
    """

    params: Params
    kinds: Mapping[str, Products]
    low_bits: Digested
    published_exact: Digested
    published_errors: Digested


def run(params: Params, tick: Tick) -> Result:
    """Every kind, and the published example: K = 10,240, normal operands, A100."""
    from .. import tensorcore

    kinds = {}
    for i, kind in enumerate(KINDS):
        tick(0.7 * i / len(KINDS), kind)
        kinds[kind] = products(*operands(kind, params.rows, params.log2_last))
    tick(0.7, "the published example")
    a, b = (nearly_normal(key, params.sample) for key in (2100, 2101))
    exact = whole.floats(whole.products(a, b, np.array([a.shape[1]]))[..., 0])
    found = [tensorcore.matmul(a, b.T, gpu=EXAMPLE_GPU, inputs="tf32", conversion=c) for c in CONVERSIONS]
    tick(1.0, "done")
    return Result(params, kinds, low_bits(), exact, np.stack(found).astype(np.float64) - exact)


def products(a: Array, b: Array) -> Products:
    """Operands, exact sums and results of one kind."""
    at = sizes(a.shape[1].bit_length() - 1)
    narrow = [[converted(x, c) for x in (a, b)] for c in CONVERSIONS]
    return Products(
        a.view(np.uint32), b.view(np.uint32), whole.products(a, b, at), whole.products(np.abs(a), np.abs(b), at),
        np.stack([multiplied(a, b, variant, at) for variant in VARIANTS]),
        np.stack([whole.products(x, y, at) for x, y in narrow]),
        np.stack([whole.products(np.abs(x), np.abs(y), at) for x, y in narrow]),
    )  # fmt: skip


def rows(result: Result) -> Columns:
    """Errors and bounds of every variant."""
    return long_products.compared_columns(result.kinds, "variant", NAMES)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.proved("Over all low bits truncation loses half a unit on average, rna gains 2^-14, rne nothing")
def means(result: Result) -> Outcome:
    n = 1 << LOW
    got = [Fraction(int(low.sum()), low.size * n) for low in result.low_bits]
    most = [Fraction(int(np.abs(low).max()), n) for low in result.low_bits]
    right = got == [Fraction(1 - n, 2 * n), Fraction(1, 2 * n), 0] and most == [1 - Fraction(1, n), 0.5, 0.5]
    columns = zip(NAMED.values(), got, most, strict=True)
    said = [say("{conversion}: mean {mean}, at most {most}", conversion=c, mean=m, most=x) for c, m, x in columns]
    return verdict(right, joined(said, COMMA))


@CLAIMS.proved("rna and rne differ in one operand of 16,384")
def ties(result: Result) -> Outcome:
    at = np.argwhere(result.low_bits[1] != result.low_bits[2]).tolist()
    said = say("a tie after an even last place: {share:.1e} of all operands", share=1 / (2 << LOW))
    return verdict(at == [[0, 1 << (LOW - 1)]], said)


@CLAIMS.library("TF32 is FP16's precision with FP32's range: numpy's float16 where that reaches")
def half_precision(result: Result) -> Outcome:
    compared = 0
    for (kind, one), part in itertools.product(result.kinds.items(), "ab"):
        x = getattr(one, part).view(np.float32)
        x = x[(np.abs(x) >= 2.0**-14) & (np.abs(x) < 65504)]
        got, want = converted(x, "rne"), x.astype(np.float16).astype(np.float32)
        outcome = same_bits(got.view(np.uint32), want.view(np.uint32), "fp32")
        if not outcome.holds:
            return failed(say("{kind}: {detail}", kind=kind, detail=outcome.detail))
        compared += x.size
    far = converted(np.array([1e-30, 3e38], np.float32), "rne")
    said = say("{n:,} operands, every bit; 1e-30 and 3e38, which FP16 loses, stay", n=compared)
    return verdict(bool((far != 0).all() and np.isfinite(far).all()), said)


@CLAIMS.proved("No error is above its bound, and each way uses a sixteenth of it")
def bounds_hold(result: Result) -> Outcome:
    return long_products.within_bounds(result.kinds, NAMES)


@CLAIMS.proved("Conversion and chain each keep their own bound, and use an eighth of it")
def parts_hold(result: Result) -> Outcome:
    """The two parts of an error one by one, conversion and the chain on converted operands; each uses its bound."""
    compared, used = 0, dict[Text, float]()
    for (kind, one), (c, conversion) in itertools.product(result.kinds.items(), enumerate(CONVERSIONS)):
        parts = [(NAMED[conversion], one.converted[c] - one.exact, one.conversion_bound(conversion))]
        for gpu in CORES:
            i = index(gpu, conversion)
            parts.append((say("chain on {gpu}", gpu=gpu), one.summed[i] - one.converted[c], one.chain_bound(i)))
        for name, error, bound in parts:
            if (np.abs(error) > bound).any():
                said = say("{kind}, {conversion}, {part}: an error is above its bound", kind=kind, part=name)
                return failed(said.fill(conversion=conversion))
            used[name] = max(used.get(name, 0.0), float(whole.ratio(np.abs(error), bound).max()))
        compared += one.exact.size
    said = say("{n:,} products; used at most: {shares}", n=compared, shares=listed(used, ".2f"))
    return verdict(min(used.values()) >= PART_USED, said)


@CLAIMS.proved("Blocks of 4 TF32 products aligned to 24 bits on A100, of 8 to 25 on H100: every bit of the sums")
def blocks(result: Result) -> Outcome:
    """The chains walked block by block on numbers, with the lengths and bits of the claim; no record is asked."""
    compared = 0
    for (kind, one), (gpu, (length, bits)) in itertools.product(result.kinds.items(), CORES.items()):
        lengths = one.lengths[one.lengths <= WALKED]
        unit = replace(model_of(gpu, "tf32"), length=length, alignment_bits=bits, kept_bits=23, rounding="rtz")
        for conversion in CONVERSIONS:
            a, b = (converted(x.view(np.float32)[:, : lengths[-1]], conversion) for x in (one.a, one.b))
            chains = walk(*terms(a.astype(np.float64), b.astype(np.float64), -126), [unit])
            want = chains.totals[lengths // length, 0].T.astype(np.float32)
            got = one.results[index(gpu, conversion), ..., : lengths.size].reshape(want.shape)
            outcome = same_bits(got.view(np.uint32), want.view(np.uint32), "fp32")
            if not outcome.holds:
                chain = joined((kind, Variant(gpu, conversion).name), COMMA)
                return failed(say("{kind}: {detail}", kind=chain, detail=outcome.detail))
            compared += got.size
    return passed(say("{n:,} sums, every bit", n=compared))


@CLAIMS.measured("Up to K = 4,096 the conversion costs four times what the chain after it does, or FP32's")
def conversion_decides(result: Result) -> Outcome:
    """Random signs: r.m.s. errors of the conversion against A100's chain after it, and FP32 multiply-adds.

    Of each row of B, a draw, over all lengths up to 4,096; of the three conversions the least factor counts.
    """
    one = result.kinds["random"]
    short = int((one.lengths <= DECIDED).sum())

    def rms(error: Array) -> Array:
        return long_products.rms_by_draw(whole.ratio(error, one.magnitude)[..., :short], short)

    plain, texts, least = rms(one.errors[index()]), [], []
    for c, conversion in enumerate(CONVERSIONS):
        chain = rms(one.summed[index(EXAMPLE_GPU, conversion)] - one.converted[c])
        share = rms(one.converted[c] - one.exact)
        least.append(np.log2(share / np.maximum(chain, plain)))
        text = say("{conversion} {share:.1e} and {chain:.1e}", conversion=NAMED[conversion])
        texts.append(text.fill(share=share.mean(), chain=chain.mean()))
    said = say("conversion and chain: {parts}; FP32 {plain:.1e}; in powers of 2", parts=joined(texts, COMMA))
    return superior(np.min(least, axis=0), 0.0, 2.0, said.fill(plain=plain.mean()))


@CLAIMS.measured("Truncation shrinks positive sums by a share that stays at every K; rounding errs ten times less")
def shrinks(result: Result) -> Outcome:
    """Positive operands: truncation falls short by the same share at every length, and rounding errs far less.

    Of each product on the diagonal, which are independent draws.
    """
    one = result.kinds["positive"]
    if (one.converted[0] >= one.exact).any():
        return failed(say("a product of truncated positive operands is not below the exact one"))
    share = np.abs(whole.ratio(one.converted - one.exact, one.exact))
    cut, *rounded = (np.diagonal(part) for part in share)  # (length, draw)
    steady, least = cut[-1] / cut[4], cut[-1] / np.maximum(*(part[-1] for part in rounded))
    texts = [say("{conversion} {first:.1e} to {last:.1e}", conversion=c, first=s[..., 0].mean(), last=s[..., -1].mean())
             for c, s in zip(NAMED.values(), share, strict=True)]  # fmt: skip
    said = say("mean relative error of the conversion, K = 16 to {last:,}: {shares}", last=one.lengths[-1])
    holds = bool((np.abs(steady - 1) < STEADY).all() and (least > 10).all())
    sample = Sample(steady.size, float(steady.std(ddof=1)), STEADY)
    return measured(holds, said.fill(shares=joined(texts, COMMA)), sample)


@CLAIMS.measured("PyTorch's published A100 error fits rounded operands, not truncated ones")
def published(result: Result) -> Outcome:
    """The published largest error of 10240 x 10240 products against our sample of the same distribution.

    Independent draws are squares on the diagonal of the sample.
    """
    exact, errors = result.published_exact, result.published_errors
    squares = [slice(k, k + len(exact) // DRAWS) for k in range(0, len(exact), len(exact) // DRAWS)]
    _, rna, rne = (np.array([PUBLISHED_ERROR / float(part[at, at].std()) for at in squares]) for part in errors)
    most, typical = float(np.abs(errors[0]).max()), float(np.abs(exact).mean())
    slope = float((errors[0] * exact).sum() / (exact**2).sum())
    holds = abs(typical / PUBLISHED_MEAN - 1) < 0.1 and most > PUBLISHED_ERROR
    holds &= all(SIGMAS[0] < float(sigmas.mean()) < SIGMAS[1] for sigmas in (rna, rne))
    said = say("0.1747 is {rna:.2f} (rna), {rne:.2f} (rne) standard deviations; truncation shrinks products by "
               "{slope:.2e}: among {n:,} it errs by {most:.3f}; mean |product| {mean:.1f} (80.7)")  # fmt: skip
    said = said.fill(rna=rna.mean(), rne=rne.mean(), slope=-slope, n=exact.size, most=most, mean=typical)
    return measured(holds, said, Sample(DRAWS, float(rne.std(ddof=1)), (SIGMAS[1] - SIGMAS[0]) / 2))


# --- what a GPU must multiply -----------------------------------------------------------------------------------
IDENTITY = 64  # K of the product with the identity


def every_exponent() -> tuple[Array, Array]:
    """FP32 codes (8, 64) of all signs and of exponents from -100 to 100, half of them ties, and the identity.

    A product with the identity is the conversion itself: every element of the result is one converted operand,
    whatever the order of k. So it answers by itself whether a library truncates or rounds.
    """
    raw = philox_bits(2300, 8 * IDENTITY).reshape(8, IDENTITY)
    exponent = np.uint32(27) + (raw >> np.uint32(8)) % np.uint32(201)
    code = (raw & np.uint32(0x807FFFFF)) | (exponent << np.uint32(23))
    tie = (code & np.uint32(0xFFFFE000)) | np.uint32(0x1000)
    a = np.where(np.arange(IDENTITY) % 2, tie, code).astype(np.uint32)
    return a, np.eye(IDENTITY, dtype=np.float32).view(np.uint32)


def factors(kind: str, k: int, params: Params) -> tuple[Array, Array]:
    """The leading K of a kind's operands, as FP32 codes."""
    a, b = (np.ascontiguousarray(x[:, :k]) for x in operands(kind, params.rows, params.log2_last))
    return a.view(np.uint32), b.view(np.uint32)


def example(rows: int) -> tuple[Array, Array]:
    """Rows of the published example, as FP32 codes."""
    return nearly_normal(2100, rows).view(np.uint32), nearly_normal(2101, rows).view(np.uint32)


def cases(params: Params) -> Iterator[Case]:
    """The conversion, products of every kind at two lengths, and the published example."""

    def case(name: str, k: int, given: Any) -> Case:
        return core_case(name, Product("matmul", ("fp32", "fp32"), "fp32", (SIDE, SIDE, k), TF32), given)

    yield case("FP32 times the identity: the conversion", IDENTITY, every_exponent)
    for kind, k in itertools.product(KINDS, (64, 1024)):
        yield case(f"{kind}, K = {k}", k, partial(factors, kind, k, params))
    yield case(f"normal, K = {EXAMPLE}", EXAMPLE, partial(example, 4))


# --- figures ----------------------------------------------------------------------------------------------------
FP32 = len(CONVERSIONS) + 1  # its look, after those of the conversions
TITLES = {"random": "Random signs", "positive": "All positive", REAL[2]: "Activations × gradients"}
STAIRS = (  # title, its mean and where that is written
    ("Truncate", "mean $-\\frac{1}{2}$", (1.02, -15)),
    ("Nearest, ties away (rna)", "mean $+2^{-14}$", (0.05, 5)),
    ("Nearest, ties to even (rne)", "mean 0", (0.05, 5)),
)


def errors(result: Result) -> draw.Figure:
    """Errors against K with their bounds."""
    from matplotlib.lines import Line2D

    figure, panels = draw.panels(8, 7.2, 2, 2)
    for ax, (kind, one) in zip(panels.flat, result.kinds.items(), strict=False):
        along_k(ax, one.lengths, 1e-9, 1e-2)
        for i, conversion in ((FP32, ""), *enumerate(CONVERSIONS)):
            _, most, bound = one.shares(index(EXAMPLE_GPU if conversion else "", conversion))
            ax.plot(one.lengths, most, **draw.look(i).marked)
            if conversion != "rna":  # its bound is rne's
                ax.plot(one.lengths, bound, color=draw.look(i).color, linewidth=1, linestyle=DOTS)
        ax.set(title=TITLES[kind], ylabel="largest |error| / Σ|a b|")
    found = [
        Line2D([], [], label=f"A100 TF32 (emulated), {c}", **draw.look(i).marked) for i, c in enumerate(CONVERSIONS)
    ]
    found.append(Line2D([], [], label="FP32 multiply-adds", **draw.look(FP32).marked))
    found.append(Line2D([], [], color=draw.current().ink, linewidth=1, linestyle=DOTS, label="proved bound"))
    panels[1, 1].set_axis_off()
    panels[1, 1].legend(handles=found, loc="center")
    return figure


def draw_stairs(ax: draw.Axes, result: Result, i: int) -> None:
    """The error of a conversion over two steps of TF32, an even and an odd one, and its mean."""
    own, theme, n = draw.look(i), draw.current(), 1 << LOW
    error = np.ldexp(result.low_bits[i].astype(np.float64), -LOW)
    for parity in range(2):
        x = parity + np.arange(n) / n
        jump = int(np.argmax(np.diff(error[parity]) > 0.5)) + 1 if i else n
        for part in (slice(0, jump), slice(jump, n)):
            ax.plot(x[part][::16], error[parity][part][::16], color=own.color, linewidth=2)
        if i:
            tie = error[parity][n // 2]
            for y, face in ((tie, own.color), (-tie, theme.background)):
                ax.plot([parity + 0.5], [y], marker="o", markerfacecolor=face, color=own.color, markersize=6)
    mean, (title, text, (at, above)) = float(error.mean()), STAIRS[i]
    ax.axhline(mean, color=theme.ink, linewidth=1, linestyle=DOTS)
    ax.axhline(0, color=theme.muted, linewidth=0.8)
    draw.note(ax, text, (at, mean), (0, above), fontsize=10)
    ax.set(xlim=(0, 2), ylim=(-1.1, 0.7))
    ax.set_xticks([0, 1, 2], ["even", "odd", "even"])
    ax.set(xlabel="operand between neighbours of TF32", ylabel="error (units in TF32's last place)", title=title)


def draw_averaging(ax: draw.Axes, result: Result) -> None:
    one = result.kinds["positive"]
    """The mean error that the conversion alone makes, on positive operands."""
    along_k(ax, one.lengths, 1e-7, 1e-2)
    ends = []
    for i, conversion in enumerate(CONVERSIONS):
        mean = np.abs(whole.ratio(one.converted[i] - one.exact, one.exact)).mean(axis=(0, 1))
        ax.plot(one.lengths, mean, **draw.look(i).marked)
        ends.append((float(mean[-1]), conversion, draw.look(i).color))
    falling = 2.0**-11 / np.sqrt(one.lengths)
    ax.plot(one.lengths, falling, color=draw.current().muted, linewidth=1)
    ends.append((float(falling[-1]), r"$2^{-11}/\sqrt{K}$", draw.current().muted))
    ax.set(ylabel="mean relative error", title="All positive: the conversion alone")
    draw.label_ends(ax, ends)


def draw_example(ax: draw.Axes, result: Result) -> None:
    """Error against result in the published example: truncation shrinks, rounding does not."""
    for i in range(2):
        ax.plot(result.published_exact.ravel(), result.published_errors[i].ravel(), linestyle="none", alpha=0.6,
                marker=draw.look(i).marker, markersize=2.2, color=draw.look(i).color, markeredgewidth=0)  # fmt: skip
    for sign in (-1, 1):
        ax.axhline(sign * PUBLISHED_ERROR, color=draw.current().ink, linewidth=1, linestyle=DOTS)
    draw.note(ax, "largest error published", (0.99, PUBLISHED_ERROR), (0, 4), ha="right",
              xycoords=("axes fraction", "data"))  # fmt: skip
    ax.set(xlabel="product of normal operands, K = 10,240", ylabel="error", ylim=(-0.36, 0.36),
           title="Truncated products shrink")  # fmt: skip


def draw_spread(ax: draw.Axes, result: Result) -> None:
    """The distribution of these errors."""
    edges, highest = np.linspace(-0.36, 0.36, 73), 0.0
    for i in range(2):
        share = 100 * np.histogram(result.published_errors[i], edges)[0] / result.published_exact.size
        highest = max(highest, float(share.max()))
        ax.stairs(share, edges, color=draw.look(i).color, fill=True, alpha=0.25)
        ax.stairs(share, edges, color=draw.look(i).color, linewidth=1.6, label=CONVERSIONS[i])
    ax.set_ylim(0, 1.45 * highest)
    for sign in (-1, 1):
        ax.axvline(sign * PUBLISHED_ERROR, color=draw.current().ink, linewidth=1, linestyle=DOTS)
    sigma = float(result.published_errors[1].std())
    text = f"rna: $\\sigma$ = {sigma:.4f}\n0.1747 = {PUBLISHED_ERROR / sigma:.1f} $\\sigma$"
    ax.annotate(text, (0.5, 0.97), xycoords="axes fraction", ha="center", va="top", color=draw.look(1).color)
    ax.set(xlim=(-0.36, 0.36), xlabel="error on A100, emulated", ylabel="of the products (%)",
           title="Which conversion was it?")  # fmt: skip
    ax.legend(loc="upper left")


EXPERIMENT = Experiment(
    title=say("TF32 and its conversions"),
    question=say("What does a product lose when its FP32 operands are truncated or rounded to TF32, and why?"),
    budget=2.0, full=Params(), quick=Params(rows=4, log2_last=14, sample=32), result=Result, run=run, rows=rows,
    claims=CLAIMS, cases=cases, kinds=dict.fromkeys(MADE_UP, Products),
    figures=(sheet("conversions", (8, 6.6), (2, 2), *(partial(draw_stairs, i=i) for i in range(3)), draw_averaging),
             errors, sheet("example_errors", (8, 4), (1, 2), draw_example, draw_spread)),
)  # fmt: skip
