"""Single precision from half: FP32 products recovered from two, three or four FP16 products on Tensor Cores.

An FP32 number is the sum of two FP16 numbers, nearly: what rounding to FP16 leaves is rounded to FP16 again. Markidis
et al. 2018 (arXiv 1803.04014) multiply the parts and add everything inside the Tensor Core. Ootomo and Yokota 2022
(arXiv 2203.03341) scale the second part by 2**11, so that it does not underflow; leave out the product of the two
small parts; and feed every instruction with c = 0, adding its result outside in FP32 to nearest, since the Tensor
Core's own additions truncate. Errors are exact integers (:mod:`fplab.exact_products`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from .. import exact_products as whole
from .. import numeric
from ..hardware.cases import Arrays, Case, Meta, philox_bits
from ..hardware.core_cases import SIDE, core_case, where_there_is
from ..hardware.environment import torch_for
from ..hardware.products import REDUCED, Product
from ..hardware.programs import cast, program
from ..hardware.software import gpu_of
from ..hardware.tensors import bits, flags_set, tensor
from ..tensorcore.models import get as model_of
from ..tensorcore.plan import Plan
from ..words import COMMA, joined, say
from . import long_products, tf32
from .chain_bounds import clamped, rate, unit
from .frame import Experiment, Params, Result
from .long_products import EACH, LENGTH, REAL, Array, Sums, against_k, rms, within_bounds
from .outcomes import Outcome, Part, Sample, failed, measured, verdict
from .panels import bars, line
from .quantities import Quantity, of, superior
from .statistics import superior as larger

MADE_UP = ("random", "positive", "small")
KINDS = (*MADE_UP, REAL[2])
SMALL = -9  # the exponent by which the operands of ``small`` are scaled
GPUS = ("A100", "H100")
LONG = 256  # from this length on there is something to sum
KEPT = 2.0**-23  # of a value, that its parts may miss
LEAST = 2.0**-13  # of values: below it the scaled second part is subnormal
PART_USED = 1 / 64  # of what three products may miss, and the fourth may add, by the largest of many random signs
WIDE = 2.0**-20  # of the magnitudes, that parts in TF32 may miss: eight units of FP32's last place
MANY = 4.0  # a factor of 16, in powers of 2: the products that an accumulator inside takes at a time
COUNTS = {f"{n} products, added exactly": n for n in (1, 2, 3, 4)}
THREE, FOURTH = "3 products, added exactly", "the fourth product"

# ``rows``: of A and of B, for each kind. ``log2_last``: the longest K. ``values``: sampled in every binade.
E = Experiment(
    "Single precision from half",
    "Can FP16 Tensor Cores multiply FP32 matrices, and why must their results be added outside?",
    budget=4.0, full={"rows": 8, "log2_last": 15, "values": 4096}, quick={"rows": 4, "log2_last": 13, "values": 512},
)  # fmt: skip


# --- a number as two parts --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Scheme:
    """FP32 numbers as sums of two narrow ones.

    ``high`` is the number rounded; ``low`` is what is left, times a scale, rounded again. What is left of an FP32
    number is an FP32 number, so nothing else is lost on the way. High has 11 bits of the 24; 13 remain, and since low
    has a sign, to nearest they are at most 12; low holds 11. So it misses the last bit of a quarter of all numbers; by
    truncation the 13 stay 13, and it misses something of a half. Ootomo and Yokota count that as 22.75 and 22.5 bits
    of 23.

    ``fmt``: of both parts. ``log2_scale``: of the second. ``rounding``: of both. ``pair``: whether there is one.
    """

    name: str
    fmt: str
    log2_scale: int = 0
    rounding: str = "rne"
    pair: bool = True


ALONE = Scheme("FP16 alone", "fp16", pair=False)
PLAIN = Scheme("FP16 + FP16", "fp16")
SCALED = Scheme("FP16 + FP16 / 2^11", "fp16", 11)
WIDER = Scheme("TF32 + TF32 / 2^11", "tf32", 11, "rna")
SCHEMES = {scheme.name: scheme for scheme in (ALONE, PLAIN, SCALED, WIDER)}
EXPONENTS = np.arange(-60, 20)  # of the binades that are sampled


def split(x: Array, scheme: Scheme) -> tuple[Array, Array]:
    """High and low (scaled) of FP32 values, float32; low is 0 where the scheme has one part."""
    with np.errstate(invalid="ignore", over="ignore"):
        high = np.asarray(numeric.quantize(x, scheme.fmt, scheme.rounding))
        if not scheme.pair:
            return high, np.zeros_like(high)
        left = (x - high) * np.float32(2.0**scheme.log2_scale)
        return high, np.asarray(numeric.quantize(left, scheme.fmt, scheme.rounding))


def missing(x: Array, scheme: Scheme) -> Array:
    """What the parts miss of the values, float64, exact."""
    high, low = split(x, scheme)
    with np.errstate(invalid="ignore"):
        return np.asarray(x.astype(np.float64) - high - np.ldexp(low.astype(np.float64), -scheme.log2_scale))


@E.measure("lost", axes={"rounding": ("rne", "rtz")}, dims=("units",), digested=True)
def lost_units(p: Params, rounding: str) -> Array:
    """How many of all 2**23 significands miss 0, 1, 2, 3 units of FP32's last place."""
    x = (np.arange(1 << 23, dtype=np.uint32) + np.uint32(0x3F800000)).view(np.float32)
    units = np.ldexp(np.abs(missing(x, Scheme("", "fp16", 11, rounding))), 23)
    assert (units == np.rint(units)).all()
    return np.bincount(units.astype(np.int64), minlength=4)


@E.measure("binades", axes={"scheme": SCHEMES, "exponent": ...}, digested=True)
def worst_by_binade(p: Params, scheme: str) -> dict[int, float]:
    """The largest relative error of the parts of values of each binade."""
    fraction = philox_bits(3000, p.values) >> np.uint32(9)
    fraction[0] = 0x7FFFFF  # the largest of the binade
    x = (((EXPONENTS + 127).astype(np.uint32)[:, None] << np.uint32(23)) | fraction).view(np.float32)
    with np.errstate(invalid="ignore"):
        share = np.abs(missing(x, SCHEMES[scheme])) / x
    worst = np.where(np.isfinite(share), share, 1.0).max(axis=1)
    return dict(zip(EXPONENTS.tolist(), worst.tolist(), strict=True))


# --- ways to multiply -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Method:
    """``products``: how many of the parts; 0 is a chain of FP32 fused multiply-adds. ``outside``: c = 0 always."""

    scheme: Scheme = ALONE
    products: int = 1
    outside: bool = False
    gpu: str = "A100"


PLAIN_FP32, WIDE_PARTS = tf32.PLAIN, "3 TF32 scaled, outside"
INSIDE, OUTSIDE = ({gpu: f"3 scaled, {where}, {gpu}" for gpu in GPUS} for where in ("inside", "outside"))
METHODS = {
    PLAIN_FP32: Method(products=0),
    "FP16": Method(),
    **{f"{n} products": Method(PLAIN, n) for n in (2, 3, 4)},
    **{INSIDE[gpu]: Method(SCALED, 3, False, gpu) for gpu in GPUS},
    **{OUTSIDE[gpu]: Method(SCALED, 3, True, gpu) for gpu in GPUS},
    WIDE_PARTS: Method(WIDER, 3, True),
}


def operands(kind: str, rows: int, log2_last: int) -> tuple[Array, Array]:
    """Float32 A and B (rows, K): as in ``tf32``; ``small`` are random ones times 2**-9."""
    if kind == "small":
        a, b = tf32.operands("random", rows, log2_last)
        return np.ldexp(a, SMALL), np.ldexp(b, SMALL)
    return tf32.operands(kind, rows, log2_last)


def multiply(a: Array, b: Array, method: Method) -> Array:
    """a (M, K) times b (N, K), float32 (M, N), as the method does it.

    Unscaled parts go through one accumulator, the smallest products first. Scaled ones have an accumulator for the
    high parts and one for the two mixed products; at the end the second, times 2**-11, is added to the first.
    """
    from .. import tensorcore

    (ah, al), (bh, bl) = split(a, method.scheme), split(b, method.scheme)
    model = model_of(method.gpu, method.scheme.fmt)
    plan = Plan(promote=model.k if method.outside else None)

    def product(x: Array, y: Array, c: Array | None) -> Array:
        return tensorcore.matmul(x, y.T, c, gpu=model, plan=plan)

    mixed = None
    for x, y in ((al, bh), (ah, bl), (al, bl))[: method.products - 1][::-1]:
        mixed = product(x, y, mixed)
    if mixed is None or not method.scheme.log2_scale:
        return product(ah, bh, mixed)
    return np.asarray(product(ah, bh, None) + np.ldexp(mixed, -method.scheme.log2_scale))


@E.cache
def given(p: Params, kind: str) -> tuple[Array, Array]:
    """The operands of a kind."""
    return operands(kind, p.rows, p.log2_last)


@E.cache
def sums(p: Params, kind: str) -> Sums:
    """Their exact sums."""
    return Sums.of(*given(p, kind))


@E.cache
def product(p: Params, kind: str, way: str) -> Array:
    """The product at every length: float32 (M, N, S)."""
    (a, b), at = given(p, kind), sums(p, kind).lengths
    if not METHODS[way].products:
        return tf32.multiply_adds(a, b, at)
    return np.stack([multiply(a[:, :k], b[:, :k], METHODS[way]) for k in at.tolist()], axis=-1)


# --- bounds -----------------------------------------------------------------------------------------------------
@E.cache
def clamped_sum(p: Params, kind: str) -> Array:
    """The exact sum of magnitudes of operands, those below 2**-13 taken as that."""
    a, b = (clamped(x, LEAST) for x in given(p, kind))
    return whole.products(a, b, sums(p, kind).lengths)


def split_bound(p: Params, kind: str) -> Array:
    """What three exact products of scaled parts may miss: (2**-21 + 2**-45) sum|a b|.

    To nearest, |low| <= 2**-11 |a|, and the two parts miss r with |r| <= 2**-23 |a|. The sum misses low*low, r*b and
    (high + low)*r: 2**-22, 2**-23 and 2**-23 (1 + 2**-23) of |a b|. Below 2**-13 low times 2**11 is subnormal in FP16
    and r up to 2**-36, so that all holds for 2**-13 in the place of |a|.
    """
    return np.asarray(clamped_sum(p, kind) * ((1 << 24) + 1) >> 45)


def sum_bound(p: Params, kind: str, gpu: str, outside: bool) -> Array:
    """What summing three products of scaled parts may cost.

    ``rate`` is that of FP32 sums of FP16 products (:mod:`.chain_bounds`), u = 2**-24. Inside, a chain of n products
    costs n * rate. Outside, every instruction costs 16 * rate and m additions of them cost g = m u / (1 - m u), also on
    the instructions' errors. Then the two sums are added, with one rounding. All times the sums of the magnitudes of
    parts, clamped to 2**-14.
    """
    model = unit(gpu, "fp32")
    u, per_product = Fraction(1, 1 << 24), rate(model)

    def chain(n: int) -> Fraction:
        if not outside:
            return n * per_product
        m = n // model.k
        return (1 + model.k * per_product) * (1 + m * u / (1 - m * u)) - 1

    def cost(k: int, main: int, mixed: int) -> Fraction:
        first, second = chain(k), chain(2 * k)
        added = first * main + second * mixed / 2048
        return added + u * ((1 + first) * main + (1 + second) * mixed / 2048)

    return sums(p, kind).bound(cost, *part_sums(p, kind))


@E.cache
def part_sums(p: Params, kind: str) -> tuple[Array, Array]:
    """The sums of magnitudes, clamped to 2**-14, of products of high parts and of the two mixed ones."""
    (ah, al), (bh, bl) = ([clamped(part) for part in split(x, SCALED)] for x in given(p, kind))
    high, *mixed = (whole.products(x, y, sums(p, kind).lengths) for x, y in ((ah, bh), (al, bh), (ah, bl)))
    return high, mixed[0] + mixed[1]


def bound(p: Params, kind: str, way: str) -> Array | None:
    """The bound of a method, or None where none is proved here."""
    method = METHODS[way]
    if not method.products:
        return sums(p, kind).fma_bound()
    if method.scheme != SCALED:
        return None
    return np.asarray(split_bound(p, kind) + sum_bound(p, kind, method.gpu, method.outside))


# --- what is measured -------------------------------------------------------------------------------------------
@E.cache
def partial_sums(p: Params, kind: str) -> Array:
    """The exact sums of the first n products of scaled parts, n = 1 to 4: integers (n, M, N, S)."""
    (ah, al), (bh, bl) = ((high, np.ldexp(low, -SCALED.log2_scale))
                          for high, low in (split(x, SCALED) for x in given(p, kind)))  # fmt: skip
    pairs = (ah, bh), (al, bh), (ah, bl), (al, bl)
    return np.cumsum(np.stack([whole.products(x, y, sums(p, kind).lengths) for x, y in pairs]), axis=0)


def part_off(p: Params, kind: str, part: str) -> Array:
    """What the first exact products miss, and what the fourth adds."""
    first = partial_sums(p, kind)
    return np.asarray(first[3] - first[2] if part == FOURTH else first[COUNTS[part] - 1] - sums(p, kind).exact)


def part_bound(p: Params, kind: str, part: str) -> Array | None:
    """Of three products, and of the fourth: 2**-22 of the magnitudes."""
    return split_bound(p, kind) if part == THREE else clamped_sum(p, kind) >> 22 if part == FOURTH else None


long_products.measured_products(E, KINDS, MADE_UP, METHODS, sums, product, bound)
long_products.compared(E, KINDS, (*COUNTS, FOURTH), sums, part_off, part_bound, "part_")


# --- claims -----------------------------------------------------------------------------------------------------
@E.proved("Two FP16 parts hold 22.75 of FP32's 23 bits to nearest, 22.5 truncated")
def lost_bits(r: Result) -> Outcome:
    total = 1 << 23
    nearest, cut = 23 - (total - r.lost.values[:, 0]) / total
    detail = say("all {n:,} significands: {nearest:g} bits to nearest, {cut:g} truncated", n=total)
    right = np.array_equal(8 * r.lost.values, np.array([[6, 2, 0, 0], [4, 2, 1, 1]]) * total)
    return verdict(right, detail.fill(nearest=nearest, cut=cut))


@E.library("The parts are those of numpy's own casts")
def numpy_parts(r: Result) -> Iterator[Part]:
    for kind, scheme in itertools.product(KINDS, (PLAIN, SCALED)):
        x = np.concatenate([part.ravel() for part in given(r.p, kind)])
        with np.errstate(under="ignore"):
            high = x.astype(np.float16)
            low = ((x - high.astype(np.float32)) * np.float32(2.0**scheme.log2_scale)).astype(np.float16)
        got, want = np.stack(split(x, scheme)), np.stack([high, low]).astype(np.float32)
        yield f"{kind}, {scheme.name}", got.view(np.uint32), want.view(np.uint32), "fp32"


@E.measured(
    "The scale 2^11 moves the lower end of the range from 2^-2 to 2^-13; TF32 parts have 2^-60 to 2^19 at least"
)
def ranges(r: Result) -> Outcome:
    """The lowest and the highest binade from which a scheme keeps 2**-23 of all that is sampled, and all in between."""
    first, last = int(EXPONENTS[0]), int(EXPONENTS[-1])
    want = {ALONE.name: (), PLAIN.name: (-2, 14), SCALED.name: (-13, 14), WIDER.name: (first, last)}
    good = {name: EXPONENTS[r.binades.sel(scheme=name).values <= KEPT] for name in SCHEMES}
    right = all(
        np.array_equal(good[name], np.arange(ends[0], ends[1] + 1) if ends else []) for name, ends in want.items()
    )
    texts = [say("{scheme} 2^{low} to 2^{high}", scheme=name, low=kept[0], high=kept[-1]) if kept.size else
             say("{scheme} never", scheme=name) for name, kept in good.items()]  # fmt: skip
    detail = say(
        "2^-23 kept: {ranges} (sampled: 2^{low} to 2^{high})", ranges=joined(texts, COMMA), low=first, high=last
    )
    spread = float(np.ptp(r.binades.sel(scheme=SCALED.name, exponent=slice(-13, 14)).values))
    return measured(right, detail, Sample(r.p.values, spread, KEPT))


@E.proved(
    "Added exactly, three products miss 2^-21 of the magnitudes at most, the fourth is 2^-22 (below 2^-13 is as 2^-13)"
)
def how_many(r: Result) -> Outcome:
    """Of made-up operands some of either bound is used, and the third product takes the error a thousand times down."""
    used = r.part_used.sel(kind=[*MADE_UP], way=[THREE, FOURTH]).max([*EACH, LENGTH])
    most = np.abs(r.part_error.sel(kind=[*MADE_UP], way=[*COUNTS])).max([*EACH, LENGTH])
    holds = not (r.part_above > 0).any() and (used >= PART_USED).all() and (1000 * most[:, 2] <= most[:, 1]).all()
    texts = [joined([kind, *(f"{x:.0e}" for x in row)], " ") for kind, row in zip(MADE_UP, most.values, strict=True)]
    detail = say("largest errors of 1 to 4 products, added exactly: {errors}", errors=joined(texts, COMMA))
    return verdict(bool(holds), detail)


E.claim(within_bounds("bounds_hold", "No error is above its bound, and each way uses a sixteenth of it"))


def long(lengths: Array) -> Array:
    """The lengths at which there is something to sum."""
    return lengths[lengths >= LONG]


def log2_rms(**where: Any) -> Quantity:
    """The logarithm of r.m.s. errors over these lengths, by draw."""
    return rms(long, **where).log2


@E.measured("Three products, added outside, err less than FP32 multiply-adds from K = 256 on, on average")
def single_precision(r: Result) -> Outcome:
    """The gain of each draw, mean over kinds and GPUs; every one of these gains on average."""
    ways = PLAIN_FP32, [*OUTSIDE.values()]
    plain, ours = (log2_rms(kind=[*MADE_UP], way=way).read(r).drop_vars("way") for way in ways)
    gain = plain - ours
    mean = gain.mean("column")
    detail = say("gains {low:.2g} to {high:.2g}; in powers of 2", low=float(mean.min()), high=float(mean.max()))
    return larger(gain.mean(["kind", "way"]).values, 0.0, 0.0, detail) if (mean > 0).all() else failed(detail)


@E.measured("Added inside, positive sums fall short, 16 times further off than added outside")
def inside_drifts(r: Result) -> Outcome:
    """No sum inside is above the exact one; of each draw the GPU that drifts less."""
    error = r.error.sel(kind="positive", way=[*INSIDE.values()], K=slice(LONG, None))
    inside, outside = (log2_rms(kind="positive", way=[*ways.values()]) for ways in (INSIDE, OUTSIDE))
    detail = joined((inside.described(r), outside.described(r), say("in powers of 2")), COMMA)
    if (error > 0).any():
        return failed(say("a sum inside is above the exact one"))
    return larger((inside.read(r).values - outside.read(r).values).min(axis=0), 0.0, MANY, detail)


E.claim(
    superior("scale_saves", "Without the scale, small operands lose their second part: errors 16 times larger",
             log2_rms(kind="small", way="3 products"), log2_rms(kind="small", way=OUTSIDE["A100"]), by=MANY),
)  # fmt: skip


@E.measured("Real gradients leave FP16's range even so, and TF32 parts hold them to 2^-20")
def gradients(r: Result) -> Outcome:
    """Real operands: gradients below FP16's range, which parts in TF32 hold; the largest error of each row of A."""
    error = np.abs(r.error.sel(kind=REAL[2], way=[OUTSIDE["A100"], WIDE_PARTS, PLAIN_FP32])).max(["column", LENGTH])
    half, wider, plain = error.max("row").values
    detail = say("largest error at any K: FP16 parts {half:.1e}, TF32 parts {wider:.1e}, FP32 {plain:.1e}", half=half)
    holds = bool(half > 5 * wider and wider < WIDE)
    sample = Sample(error.row.size, float(error[1].values.std(ddof=1)), WIDE)
    return measured(holds, detail.fill(wider=wider, plain=plain), sample)


E.answer("positive sums by three FP16 products err by {outside:.0e} if added outside the unit, {inside:.0e} inside; "
         "FP32 errs by {fp32:.0e}", outside=rms(long, kind="positive", way=OUTSIDE["A100"]),
         fp32=rms(long, kind="positive", way=PLAIN_FP32), inside=rms(long, kind="positive", way=INSIDE["A100"]),
)  # fmt: skip


# --- what a GPU must do -----------------------------------------------------------------------------------------
SHORT_K, LONG_K, INSTRUCTION = 256, 4096, 16
UNREDUCED = {REDUCED.format("fp16"): False}


def inputs_of(kind: str, k: int, p: Params) -> Arrays:
    """FP32 codes of the leading K of a kind's operands."""
    return {name: np.ascontiguousarray(x[:, :k]).view(np.uint32) for name, x in zip("ab", given(p, kind), strict=True)}


def device_parts(x: Any) -> tuple[Any, Any]:
    """High and scaled low part of an FP32 tensor, or of the lab's values, in FP16."""
    high = cast(x, "fp16")
    return high, cast((x - cast(high, "fp32")) * 2048, "fp16")


def parts_of_both(a: Any, b: Any) -> dict[str, Any]:
    """The parts of both operands."""
    pairs = zip("ab", map(device_parts, (a, b)), strict=True)
    return {f"{name} {which}": part for name, pair in pairs for which, part in zip(("high", "low"), pair, strict=True)}


def outside(a: tuple[Any, Any], b: tuple[Any, Any], multiply: Any) -> dict[str, Any]:
    """The three products of high and low parts (rows, K), each instruction with c = 0, added in FP32 one by one."""
    main, mixed = 0, 0
    for k in range(0, SHORT_K, INSTRUCTION):
        main = main + multiply(a[0][:, k : k + INSTRUCTION], b[0][:, k : k + INSTRUCTION])
    for (high, low), k in itertools.product(((0, 1), (1, 0)), range(0, SHORT_K, INSTRUCTION)):
        mixed = mixed + multiply(a[high][:, k : k + INSTRUCTION], b[low][:, k : k + INSTRUCTION])
    return {"main": main, "mixed": mixed, "d": main + mixed / 2048}


def outside_compute(inputs: Arrays, device: str) -> Arrays:
    """On a GPU."""
    torch = torch_for(device)
    a, b = (device_parts(tensor(inputs[name], "fp32", device)) for name in "ab")
    with flags_set(UNREDUCED):
        outputs = outside(a, b, lambda x, y: torch.bmm(x[None], y.T[None], out_dtype=torch.float32)[0])
    return {name: bits(x) for name, x in outputs.items()}


def outside_emulate(inputs: Arrays, meta: Meta, instruction: str | None = None) -> Arrays:
    """By the lab."""
    from ..tensorcore import matmul

    a, b = (split(inputs[name].view(np.float32), SCALED) for name in "ab")
    outputs = outside(a, b, lambda x, y: matmul(x, y.T, gpu=gpu_of(meta), instruction=instruction))
    return {name: x.view(np.uint32) for name, x in outputs.items()}


def high_parts(kind: str, p: Params) -> tuple[Array, Array]:
    """FP16 codes of the high parts of a long product."""
    a, b = (codes.view(np.float32).astype(np.float16) for codes in inputs_of(kind, LONG_K, p).values())
    return a.view(np.uint16), b.view(np.uint16)


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """The parts of every kind; products added outside; the main product of the positive kind, added inside."""
    parts = dict.fromkeys(("a high", "a low", "b high", "b low"), "fp16")
    for kind in KINDS:
        name, inputs = f"{kind}: FP32 as two FP16 parts", partial(inputs_of, kind, SHORT_K, p)
        yield program(name, inputs, dict.fromkeys("ab", "fp32"), parts_of_both, parts)
    for kind in ("random", "positive"):
        yield Case(
            f"{kind}, K = {SHORT_K}: three products of instructions with c = 0, added outside",
            partial(inputs_of, kind, SHORT_K, p),
            partial(where_there_is, "", (0, 0), outside_compute, outside_emulate), outside_emulate,
            dict.fromkeys(("main", "mixed", "d"), "fp32"),
            open="Is a product of K = 16 one block?",
            hypotheses={"instructions of k = 8": partial(outside_emulate, instruction="mma.k8")},
        )  # fmt: skip
    inside = Product("matmul", ("fp16", "fp16"), "fp32", (SIDE, SIDE, LONG_K), UNREDUCED)
    name = f"positive, K = {LONG_K}: high parts, added inside"
    yield core_case(name, inside, partial(high_parts, "positive", p))


# --- figures ----------------------------------------------------------------------------------------------------
SHOWN = {"3 products": "3 products, no scale, inside", INSIDE["A100"]: "3 products, scaled, inside",
         OUTSIDE["A100"]: "3 products, scaled, outside", PLAIN_FP32: PLAIN_FP32}  # fmt: skip
E.figure(
    "parts",
    line("binades", x="exponent", hue="scheme", log="y", ylim=(2e-8, 2), legend={"fontsize": 9},
         xlabel="magnitude of the number, as a power of 2", ylabel="largest relative error of its parts",
         title="Two FP16 parts need the scale, two TF32 parts hold FP32's range"),
    bars(of("part_error", kind="random", way=[*COUNTS]).then("missed", lambda x: np.abs(x).max([*EACH, LENGTH])),
         x="way", names={name: str(n) for name, n in COUNTS.items()}, log="y", numbers="{:.0e}", ylim=(1e-9, 1e-2),
         xlabel="products, added exactly", ylabel="largest |error| / Σ|a b|", title="The fourth product adds nothing"),
    size=(8, 7.4),
)  # fmt: skip
E.figure("errors", against_k("positive", SHOWN, "All positive: sums inside A100's units drift (emulated)"),
         against_k("small", SHOWN, f"Random signs times $2^{{{SMALL}}}$: the scale saves the second part"),
         size=(8, 8))  # fmt: skip
