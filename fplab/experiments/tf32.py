"""TF32: three ways from FP32 to TF32, what each does to a product, and which one a published error gives away.

A TF32 multiplier reads 10 of FP32's 23 fraction bits. It can ignore the other 13 (``truncate``, what the instruction
does by itself), or software rounds first: to nearest with ties away (``rna``, the instruction ``cvt.rna.tf32``) or to
even (``rne``, from Hopper on). Truncation errs twice as far at most; but it always errs toward zero, and that is what
counts in a long sum. Errors are exact integers (:mod:`fplab.exact_products`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
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
from ..words import COMMA, joined, say
from . import long_products
from .chain_bounds import rate, terms, walk
from .frame import Experiment, Params, Result
from .long_products import DOTS, EACH, LENGTH, REAL, Array, Sums, against_k, along_k, rms, sizes, within_bounds
from .outcomes import Outcome, Part, Sample, failed, measured, verdict
from .panels import line, with_
from .quantities import Quantity, of, superior

MADE_UP = ("random", "positive")
KINDS = (*MADE_UP, REAL[2])
CORES = {"A100": (4, 24), "H100": (8, 25)}  # products of a block, and the bits to which they are aligned
LOW = 13  # fraction bits of FP32 beyond TF32's 10
ROUNDINGS = {"truncate": "rtz", "rna": "rna", "rne": "rne"}
CONVERSIONS = tuple(ROUNDINGS)
PLAIN = "FP32 multiply-adds"  # a chain of fused multiply-adds, which converts nothing
WAYS = {f"{gpu} TF32, {conversion}": (gpu, conversion) for gpu in CORES for conversion in CONVERSIONS}
PART_USED = 1 / 8  # of its bound, at the least, by the largest error of each part
STEADY = 0.1  # how far a share may change from K = 256 on: sums of so many terms are known to a percent
WALKED = 1024  # the longest chains that are walked by definition
DECIDED = 4096  # up to this length the conversion decides
DRAWS = 4  # squares of the sample
# PyTorch's documentation (notes/cuda.html): normal matrices of 10240 x 10240 on an A100, product in TF32 against FP64.
EXAMPLE, EXAMPLE_GPU, PUBLISHED_ERROR, PUBLISHED_MEAN = 10240, "A100", 0.1747, 80.7277
SIGMAS = (5.2, 6.6)  # the largest of 10240**2 normal numbers lies between these with a probability above 99%

# ``rows``: of A and of B. ``log2_last``: the longest K. ``sample``: rows of the published example.
E = Experiment(
    "TF32 and its conversions",
    "What does a product lose when its FP32 operands are truncated or rounded to TF32, and why?",
    budget=2.0, full={"rows": 8, "log2_last": 16, "sample": 64}, quick={"rows": 4, "log2_last": 14, "sample": 32},
)  # fmt: skip


# --- operands and ways to multiply ------------------------------------------------------------------------------
def operands(kind: str, rows: int, log2_last: int) -> tuple[Array, Array]:
    """Float32 A and B (rows, K). Made up: multiples of 2**-24 between -1 or 0 and 1."""
    if kind not in MADE_UP:
        return long_products.chosen(kind, rows, log2_last)
    key, k = 2000 + 10 * MADE_UP.index(kind), 1 << log2_last
    a, b = ((philox_bits(key + i, rows, k) >> np.uint32(7)).astype(np.int64) for i in range(2))
    signed, unit = (1 << 24, -24) if kind == "random" else (0, -25)
    return np.ldexp(a - signed, unit).astype(np.float32), np.ldexp(b - signed, unit).astype(np.float32)


def nearly_normal(key: int, rows: int) -> Array:
    """Float32 (rows, 10240) of mean 0 and variance 1: sums of twelve uniform numbers, from integers alone."""
    raw = philox_bits(key, 12, rows, EXAMPLE).astype(np.int64).sum(axis=0)
    return np.asarray(np.ldexp((raw - (6 << 32)).astype(np.float64), -32).astype(np.float32))


def converted(x: Array, conversion: str) -> Array:
    """FP32 values in TF32, float32."""
    return np.asarray(numeric.quantize(x, "tf32", ROUNDINGS[conversion]))


def multiply_adds(a: Array, b: Array, at: Array) -> Array:
    """Chains of FP32 fused multiply-adds over a (M, K), b (N, K), at every length: float32 (M, N, S)."""
    return np.stack([np.asarray(numeric.dot(row[None], b, "fp32", running=True))[:, at - 1] for row in a])


@E.cache
def sums(p: Params, kind: str, conversion: str = "") -> Sums:
    """The exact sums of the operands, or of what a conversion makes of them."""
    a, b = operands(kind, p.rows, p.log2_last)
    return Sums.of(*(converted(x, conversion) for x in (a, b))) if conversion else Sums.of(a, b)


@E.cache
def product(p: Params, kind: str, way: str) -> Array:
    """The product at every length, one chain: float32 (M, N, S)."""
    a, b = operands(kind, p.rows, p.log2_last)
    if way == PLAIN:
        return multiply_adds(a, b, sizes(p.log2_last))
    gpu, conversion = WAYS[way]
    return long_products.on_gpu(a, b, gpu, "fp32", sizes(p.log2_last), inputs="tf32", conversion=conversion)


# --- bounds -----------------------------------------------------------------------------------------------------
def conversion_bound(exact: Sums, conversion: str) -> Array:
    """(2 d + d**2) sum|a b|; d is 2**-10 for truncation, 2**-11 for rounding to nearest."""
    d = Fraction(1, 1 << (10 if conversion == "truncate" else 11))
    return exact.bound(lambda k, s: (2 * d + d * d) * s, exact.magnitude)


def chain_bound(of_converted: Sums, gpu: str) -> Array:
    """Of a chain of blocks of L products: ``K ((L - 1) 2**-F + 2**-23) / L`` times the sum of the converted magnitudes,
    since truncated partial sums never exceed it (:mod:`.chain_bounds`)."""
    per_product = rate(model_of(gpu, "tf32"))
    return of_converted.bound(lambda k, s: k * per_product * s, of_converted.magnitude)


def bound(p: Params, kind: str, way: str) -> Array:
    """Of multiply-adds, or of conversion and chain together."""
    exact = sums(p, kind)
    if way == PLAIN:
        return exact.fma_bound()
    gpu, conversion = WAYS[way]
    return np.asarray(chain_bound(sums(p, kind, conversion), gpu) + conversion_bound(exact, conversion))


# --- what is measured -------------------------------------------------------------------------------------------
def part_off(p: Params, kind: str, part: str) -> Array:
    """The error of a conversion alone, or of a chain on converted operands."""
    gpu, conversion = WAYS.get(part, ("", part))
    narrow = sums(p, kind, conversion)
    return narrow.off(product(p, kind, part)) if gpu else np.asarray(narrow.exact - sums(p, kind).exact)


def part_bound(p: Params, kind: str, part: str) -> Array:
    """Its own bound."""
    gpu, conversion = WAYS.get(part, ("", part))
    return chain_bound(sums(p, kind, conversion), gpu) if gpu else conversion_bound(sums(p, kind), conversion)


long_products.measured_products(E, KINDS, MADE_UP, (PLAIN, *WAYS), sums, product, bound)
long_products.compared(E, KINDS, (*CONVERSIONS, *WAYS), sums, part_off, part_bound, "part_")


@E.measure(axes={"conversion": CONVERSIONS}, dims=("parity", "pattern"), digested=True)
def low_bits(p: Params, conversion: str) -> Array:
    """Errors for all patterns of the low bits, after an even and an odd last place, in units of FP32's last place."""
    x = (np.uint32(0x3F800000) + np.arange(2 << LOW, dtype=np.uint32)).view(np.float32)
    error = converted(x, conversion).astype(np.float64) - x
    return np.asarray(np.ldexp(error, 23).astype(np.int64).reshape(2, 1 << LOW))


@E.cache
def example_exact(p: Params) -> tuple[Array, Array, Array]:
    """Operands of the published example, K = 10,240, and their exact products, float64."""
    a, b = (nearly_normal(key, p.sample) for key in (2100, 2101))
    return a, b, whole.floats(whole.products(a, b, np.array([a.shape[1]]))[..., 0])


@E.measure("published_error", axes={"conversion": CONVERSIONS}, dims=("row", "column"), digested=True)
def published_errors(p: Params, conversion: str) -> Array:
    """The errors of the published example on some rows."""
    from .. import tensorcore

    a, b, exact = example_exact(p)
    product = tensorcore.matmul(a, b.T, gpu=EXAMPLE_GPU, inputs="tf32", conversion=conversion)
    return np.asarray(product.astype(np.float64) - exact)


# --- claims -----------------------------------------------------------------------------------------------------
@E.proved("Over all low bits truncation loses half a unit on average, rna gains 2^-14, rne nothing")
def means(r: Result) -> Outcome:
    n = 1 << LOW
    mean = [Fraction(int(low.sum()), low.size * n) for low in r.low_bits.values]
    most = [Fraction(int(np.abs(low).max()), n) for low in r.low_bits.values]
    right = mean == [Fraction(1 - n, 2 * n), Fraction(1, 2 * n), 0] and most == [1 - Fraction(1, n), 0.5, 0.5]
    detail = [say("{conversion}: mean {mean}, at most {most}", conversion=c, mean=m, most=x)
            for c, m, x in zip(CONVERSIONS, mean, most, strict=True)]  # fmt: skip
    return verdict(right, joined(detail, COMMA))


@E.proved("rna and rne differ in one operand of 16,384")
def ties(r: Result) -> Outcome:
    at = np.argwhere((r.low_bits.sel(conversion="rna") != r.low_bits.sel(conversion="rne")).values).tolist()
    detail = say("a tie after an even last place: {share:.1e} of all operands", share=1 / (2 << LOW))
    return verdict(at == [[0, 1 << (LOW - 1)]], detail)


@E.library("TF32 is FP16's precision with FP32's range: numpy's float16 where that reaches")
def half_precision(r: Result) -> Iterator[Part]:
    x = np.concatenate([part.ravel() for kind in KINDS for part in operands(kind, r.p.rows, r.p.log2_last)])
    x = x[(np.abs(x) >= 2.0**-14) & (np.abs(x) < 65504)]
    yield "FP16", converted(x, "rne"), x.astype(np.float16).astype(np.float32)
    far = converted(np.array([1e-30, 3e38], np.float32), "rne")
    yield verdict(bool((far != 0).all() and np.isfinite(far).all()), say("1e-30 and 3e38, which FP16 loses, stay"))


E.claim(
    within_bounds("bounds_hold", "No error is above its bound, and each way uses a sixteenth of it"),
    within_bounds("parts_hold", "Conversion and chain each keep their own bound, and use an eighth of it",
                  "part_", PART_USED),
)  # fmt: skip


@E.proved("Blocks of 4 TF32 products aligned to 24 bits on A100, of 8 to 25 on H100: every bit of the sums")
def blocks(r: Result) -> Iterator[Part]:
    """The chains walked block by block on numbers, with the lengths and bits of the claim; no record is asked."""
    lengths = sizes(r.p.log2_last)
    lengths = lengths[lengths <= WALKED]
    for kind, (way, (gpu, conversion)) in itertools.product(KINDS, WAYS.items()):
        length, bits = CORES[gpu]
        unit = replace(model_of(gpu, "tf32"), length=length, alignment_bits=bits, kept_bits=23, rounding="rtz")
        a, b = (converted(x[:, : lengths[-1]], conversion) for x in operands(kind, r.p.rows, r.p.log2_last))
        chains = walk(*terms(a.astype(np.float64), b.astype(np.float64), -126), [unit])
        want = chains.totals[lengths // length, 0].T.astype(np.float32)
        got = product(r.p, kind, way)[..., : lengths.size].reshape(want.shape)
        yield f"{kind}, {way}", got.view(np.uint32), want.view(np.uint32), "fp32"


def short(lengths: Array) -> Array:
    """The lengths up to which the conversion decides."""
    return lengths[lengths <= DECIDED]


def factors_of_conversions(r: Result) -> Any:
    """Random signs: r.m.s. errors of each conversion over the larger of A100's chain after it and FP32's."""
    parts = [*CONVERSIONS], [f"{EXAMPLE_GPU} TF32, {conversion}" for conversion in CONVERSIONS]
    alone, chain = (rms(short, "part_error", kind="random", way=ways).read(r) for ways in parts)
    return alone / np.maximum(chain.values, rms(short, kind="random", way=PLAIN).values(r))


E.claim(
    superior("conversion_decides",
             "Up to K = 4,096 the conversion costs four times what the chain after it does, or FP32's",
             Quantity("error of the conversion over the chain's", factors_of_conversions, factors_of_conversions)
             .min("way").log2, by=2.0),
)  # fmt: skip


@E.measured("Truncation shrinks positive sums by a share that stays at every K; rounding errs ten times less")
def shrinks(r: Result) -> Outcome:
    """Of each product on the diagonal, which are independent draws: the share stays from K = 256 on."""
    error = r.part_error.sel(kind="positive", way=[*CONVERSIONS])
    if (error.sel(way="truncate") >= 0).any():
        return failed(say("a product of truncated positive operands is not below the exact one"))
    cut, *rounded = np.diagonal(np.abs(error.values), axis1=1, axis2=2)  # (length, draw)
    steady, least = cut[-1] / cut[4], cut[-1] / np.maximum(*(part[-1] for part in rounded))
    texts = [say("{conversion} {first:.1e} to {last:.1e}", conversion=c, first=x[0], last=x[-1])
             for c, x in zip(CONVERSIONS, np.abs(error).mean(EACH).values, strict=True)]  # fmt: skip
    detail = say("mean relative error of the conversion, K = 16 to {last:,}: {shares}", last=1 << r.p.log2_last)
    holds = bool((np.abs(steady - 1) < STEADY).all() and (least > 10).all())
    sample = Sample(steady.size, float(steady.std(ddof=1)), STEADY)
    return measured(holds, detail.fill(shares=joined(texts, COMMA)), sample)


@E.measured("PyTorch's published A100 error fits rounded operands, not truncated ones")
def published(r: Result) -> Outcome:
    """The published largest error of 10240 x 10240 products against our sample of the same distribution.

    Independent draws are squares on the diagonal of the sample.
    """
    exact, errors = example_exact(r.p)[2], r.published_error.values
    step = len(exact) // DRAWS
    squares = [slice(k, k + step) for k in range(0, len(exact), step)]
    _, rna, rne = (np.array([PUBLISHED_ERROR / float(part[at, at].std()) for at in squares]) for part in errors)
    most, typical = float(np.abs(errors[0]).max()), float(np.abs(exact).mean())
    slope = float((errors[0] * exact).sum() / (exact**2).sum())
    holds = abs(typical / PUBLISHED_MEAN - 1) < 0.1 and most > PUBLISHED_ERROR
    holds &= all(SIGMAS[0] < float(sigmas.mean()) < SIGMAS[1] for sigmas in (rna, rne))
    detail = say("0.1747 is {rna:.2f} (rna), {rne:.2f} (rne) standard deviations; truncation shrinks products by "
                 "{slope:.2e}: among {n:,} it errs by {most:.3f}; mean |product| {mean:.1f} (80.7)")  # fmt: skip
    detail = detail.fill(rna=rna.mean(), rne=rne.mean(), slope=-slope, n=exact.size, most=most, mean=typical)
    return measured(holds, detail, Sample(DRAWS, float(rne.std(ddof=1)), (SIGMAS[1] - SIGMAS[0]) / 2))


def shrinking(**where: Any) -> Any:
    """The mean relative error that a conversion alone makes of positive sums."""
    return of("part_error", kind="positive", **where).then("error", lambda x: np.abs(x).mean(EACH))


E.answer("truncated operands shrink every sum of positive products by {cut:.1e}; rounded ones err by {nearest:.0e} at "
         "K = {k:,}", k=lambda r: 1 << r.p.log2_last, cut=shrinking(way="truncate", K=-1),
         nearest=shrinking(way="rne", K=-1))  # fmt: skip


# --- what a GPU must multiply -----------------------------------------------------------------------------------
IDENTITY = 64  # K of the product with the identity


def every_exponent() -> tuple[Array, Array]:
    """FP32 codes (8, 64) of all signs and of exponents from -100 to 100, half of them ties, and the identity.

    A product with the identity is the conversion itself: every element of the result is one converted operand,
    whatever the order of k. So it answers by itself whether a library truncates or rounds.
    """
    raw = philox_bits(2300, 8, IDENTITY)
    exponent = np.uint32(27) + (raw >> np.uint32(8)) % np.uint32(201)
    code = (raw & np.uint32(0x807FFFFF)) | (exponent << np.uint32(23))
    tie = (code & np.uint32(0xFFFFE000)) | np.uint32(0x1000)
    a = np.where(np.arange(IDENTITY) % 2, tie, code).astype(np.uint32)
    return a, np.eye(IDENTITY, dtype=np.float32).view(np.uint32)


def factors(kind: str, k: int, p: Params) -> tuple[Array, Array]:
    """The leading K of a kind's operands, as FP32 codes."""
    a, b = (np.ascontiguousarray(x[:, :k]) for x in operands(kind, p.rows, p.log2_last))
    return a.view(np.uint32), b.view(np.uint32)


def example(rows: int) -> tuple[Array, Array]:
    """Rows of the published example, as FP32 codes."""
    return nearly_normal(2100, rows).view(np.uint32), nearly_normal(2101, rows).view(np.uint32)


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """The conversion, products of every kind at two lengths, and the published example."""

    def case(name: str, k: int, given: Any) -> Case:
        return core_case(name, Product("matmul", ("fp32", "fp32"), "fp32", (SIDE, SIDE, k), TF32), given)

    yield case("FP32 times the identity: the conversion", IDENTITY, every_exponent)
    for kind, k in itertools.product(KINDS, (64, 1024)):
        yield case(f"{kind}, K = {k}", k, partial(factors, kind, k, p))
    yield case(f"normal, K = {EXAMPLE}", EXAMPLE, partial(example, 4))


# --- figures ----------------------------------------------------------------------------------------------------
def falling(ax: draw.Axes, r: Result) -> None:
    """How the mean of errors without direction falls."""
    k = sizes(r.p.log2_last)
    ax.plot(k, 2.0**-11 / np.sqrt(k), color=draw.current().muted, linewidth=1, label=r"$2^{-11}/\sqrt{K}$")
    ax.legend()


def histogram(ax: draw.Axes, r: Result) -> None:
    """The distribution of the example's errors, and the largest one that is published."""
    edges = np.linspace(-0.36, 0.36, 73)
    for i, conversion in enumerate(("truncate", "rna")):
        error = r.published_error.sel(conversion=conversion).values
        share = 100 * np.histogram(error, edges)[0] / error.size
        ax.stairs(share, edges, color=draw.look(i).color, fill=True, alpha=0.25)
        ax.stairs(share, edges, color=draw.look(i).color, linewidth=1.6, label=f"{conversion}: σ = {error.std():.3f}")
    for sign in (-1, 1):
        ax.axvline(sign * PUBLISHED_ERROR, color=draw.current().ink, linewidth=1, linestyle=DOTS)
    draw.note(ax, "largest error published", (PUBLISHED_ERROR, 0.95), (4, 0), xycoords=("data", "axes fraction"))
    ax.set(xlim=(-0.36, 0.36), xlabel="error of a product of normal operands, K = 10,240, on A100, emulated",
           ylabel="of the products (%)", title="The published error is one of rounded operands")  # fmt: skip
    ax.legend(loc="upper left")


SHOWN = {PLAIN: PLAIN} | {way: f"A100 TF32 (emulated), {c}" for way, (gpu, c) in WAYS.items() if gpu == EXAMPLE_GPU}
E.figure(
    "conversions",
    line(of("low_bits").then("error", lambda low: low.stack(at=["parity", "pattern"], create_index=False).assign_coords(
            at=np.arange(2 << LOW) / (1 << LOW)) / 2.0**LOW), x="at", hue="conversion", xticks=[0, 1, 2],
         xticklabels=["even", "odd", "even"], xlabel="operand between neighbours of TF32",
         ylabel="error (units in TF32's last place)", title="Truncation errs in one direction"),
    with_(line(shrinking(way=[*CONVERSIONS]), x=LENGTH, hue="way",
               log="y", marked=True, xlabel="K", ylabel="mean relative error",
               title="All positive: its errors do not average out"), falling, along_k),
    size=(8, 7.2),
)  # fmt: skip
E.figure(
    "errors",
    against_k("random", SHOWN, "Random signs: the conversion decides"),
    against_k("positive", SHOWN, "All positive: truncation's error stays"),
    size=(8, 8),
)
E.figure("example_errors", histogram)
