"""Single precision from half: FP32 products recovered from two, three or four FP16 products on Tensor Cores.

An FP32 number is the sum of two FP16 numbers, nearly: what rounding to FP16 leaves is rounded to FP16 again. Markidis
et al. 2018 (arXiv 1803.04014) multiply the parts and add everything inside the Tensor Core. Ootomo and Yokota 2022
(arXiv 2203.03341) scale the second part by 2**11, so that it does not underflow; leave out the product of the two
small parts; and feed every instruction with c = 0, adding its result outside in FP32 to nearest, since the Tensor
Core's own additions truncate. Errors are exact integers (:mod:`fplab.exact_products`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from .. import draw, numeric
from .. import exact_products as whole
from ..hardware.cases import Arrays, Case, Meta, philox_bits
from ..hardware.core_cases import SIDE, core_case
from ..hardware.environment import torch_for
from ..hardware.products import REDUCED, Product
from ..hardware.programs import cast, program
from ..hardware.software import gpu_of
from ..hardware.tensors import bits, flags_set, tensor
from ..tensorcore.models import get as model_of
from ..tensorcore.plan import Plan
from ..words import CLAUSE, COMMA, Text, joined, say, verbatim
from . import long_products, tf32
from .base import Claims, Columns, Digested, Experiment, Tick
from .long_products import DOTS, REAL, Array, Compared, along_k, powers, sizes
from .outcomes import Outcome, Sample, failed, measured, passed, same_bits, verdict
from .partial_products.accumulators import Accumulator
from .partial_products.bounds import clamped, rate
from .statistics import superior

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


@dataclass(frozen=True)
class Params:
    """``rows``: of A and of B, for each kind. ``log2_last``: the longest K. ``values``: sampled in every binade."""

    rows: int = 8
    log2_last: int = 15
    values: int = 4096


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
SCHEMES = (ALONE, PLAIN, SCALED, WIDER)
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


def lost_units() -> Array:
    """All 2**23 significands: how many miss 0, 1, 2, 3 units of FP32's last place, to nearest and truncated (2, 4)."""
    x = (np.arange(1 << 23, dtype=np.uint32) + np.uint32(0x3F800000)).view(np.float32)
    found = []
    for rounding in ("rne", "rtz"):
        units = np.ldexp(np.abs(missing(x, Scheme("", "fp16", 11, rounding))), 23)
        assert (units == np.rint(units)).all()
        found.append(np.bincount(units.astype(np.int64), minlength=4))
    return np.stack(found)


def worst_by_binade(values: int) -> Array:
    """The largest relative error of the parts of values of each binade from 2**-60 to 2**19, by scheme; float64."""
    fraction = philox_bits(3000, values) >> np.uint32(9)
    fraction[0] = 0x7FFFFF  # the largest of the binade
    x = (((EXPONENTS + 127).astype(np.uint32)[:, None] << np.uint32(23)) | fraction).view(np.float32)
    with np.errstate(invalid="ignore"):
        shares = [np.abs(missing(x, scheme)) / x for scheme in SCHEMES]
    return np.stack([np.where(np.isfinite(s), s, 1.0).max(axis=1) for s in shares])


# --- ways to multiply -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Method:
    """``products``: how many of the parts; 0 is a chain of FP32 fused multiply-adds. ``outside``: c = 0 always."""

    name: Text
    scheme: Scheme = ALONE
    products: int = 1
    outside: bool = False
    gpu: str = "A100"


METHODS = {
    "plain": Method(say("FP32 multiply-adds"), products=0),
    "half": Method(verbatim("FP16")),
    "two": Method(say("2 products"), PLAIN, 2),
    "three": Method(say("3 products"), PLAIN, 3),
    "four": Method(say("4 products"), PLAIN, 4),
    **{f"inside {gpu}": Method(say("3 scaled, inside, {gpu}", gpu=gpu), SCALED, 3, False, gpu) for gpu in GPUS},
    **{f"outside {gpu}": Method(say("3 scaled, outside, {gpu}", gpu=gpu), SCALED, 3, True, gpu) for gpu in GPUS},
    "wider": Method(say("3 TF32 scaled, outside"), WIDER, 3, True),
}
NAMES = [method.name for method in METHODS.values()]


def index(method: str) -> int:
    return list(METHODS).index(method)


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


# --- the run ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Products(Compared):
    """``results`` by method. Exact sums: ``partial`` (n, M, N, S), of the first n products of scaled parts, n = 1 to 4;
    (M, N, S): ``clamped``, of the magnitudes of operands, those below 2**-13 taken as that; ``main`` and
    ``correction``, of their parts clamped to 2**-14, what three products sum.
    """

    clamped: Digested
    partial: Digested
    main: Digested
    correction: Digested

    def split_bound(self) -> Array:
        """What three exact products of scaled parts may miss: (2**-21 + 2**-45) sum|a b|, rounded down.

        To nearest, |low| <= 2**-11 |a|, and the two parts miss r with |r| <= 2**-23 |a|. The sum misses
        low*low, r*b and (high + low)*r: 2**-22, 2**-23 and 2**-23 (1 + 2**-23) of |a b|. Below 2**-13 low times
        2**11 is subnormal in FP16 and r up to 2**-36, so that all holds for 2**-13 in the place of |a|.
        """
        return self.rounded_down(lambda k, s: Fraction((1 << 24) + 1, 1 << 45) * s, self.clamped)

    def sum_bound(self, gpu: str, outside: bool) -> Array:
        """What summing three products of scaled parts may cost, rounded down.

        ``rate`` is that of FP32 sums of FP16 products (:mod:`.partial_products.bounds`), u = 2**-24. Inside, a chain
        of n products costs n * rate. Outside, every instruction costs 16 * rate and m additions of them cost
        g = m u / (1 - m u), also on the instructions' errors. Then the two sums are added, with one rounding.
        """
        model = Accumulator("fp32", gpu).model
        u, one = Fraction(1, 1 << 24), rate(model)

        def chain(n: int) -> Fraction:
            if not outside:
                return n * one
            m = n // model.k
            return (1 + model.k * one) * (1 + m * u / (1 - m * u)) - 1

        def cost(k: int, main: int, mixed: int) -> Fraction:
            first, second = chain(k), chain(2 * k)
            added = first * main + second * mixed / 2048
            return added + u * ((1 + first) * main + (1 + second) * mixed / 2048)

        return self.rounded_down(cost, self.main, self.correction)

    def bound_of(self, i: int) -> Array | None:
        """The bound of a method at every length, rounded down, or None where none is proved here."""
        method = list(METHODS.values())[i]
        if not method.products:
            return self.rounded_down(lambda k, s: Fraction(k, (1 << 24) - k) * s, self.magnitude)
        if method.scheme != SCALED:
            return None
        return np.asarray(self.split_bound() + self.sum_bound(method.gpu, method.outside))

    def largest_partial(self) -> Array:
        """Of 1 to 4 products, the largest error as a share of sum|a b| (4,)."""
        shares = whole.ratio(np.abs(self.partial - self.exact), self.magnitude)
        return np.asarray(shares.max(axis=(1, 2, 3)))

    def rms(self, method: str) -> Array:
        """log2 of a method's r.m.s. error over all K from 256 on, of each independent draw."""
        long = int((self.lengths >= LONG).sum())
        return np.asarray(
            np.log2(long_products.rms_by_draw(whole.ratio(self.errors[index(method)], self.magnitude), long))
        )


@dataclass(frozen=True)
class Result:
    """``kinds``: the products of each kind of operands. ``lost``: see :func:`lost_units`. ``binades``: see
    :func:`worst_by_binade`.
    """

    params: Params
    kinds: Mapping[str, Products]
    lost: Digested
    binades: Digested


def run(params: Params, tick: Tick) -> Result:
    kinds = {}
    for i, kind in enumerate(KINDS):
        tick(0.1 + 0.9 * i / len(KINDS), kind)
        kinds[kind] = products(*operands(kind, params.rows, params.log2_last))
    tick(1.0, "done")
    return Result(params, kinds, lost_units(), worst_by_binade(params.values))


def products(a: Array, b: Array) -> Products:
    """Operands, exact sums and results of one kind."""
    at = sizes(a.shape[1].bit_length() - 1)

    def sums(x: Array, y: Array, narrowed: Any = lambda v: v) -> Array:
        return whole.products(narrowed(x), narrowed(y), at)

    def multiplied(method: Method) -> Array:
        if not method.products:
            return tf32.multiply_adds(a, b, at)
        return np.stack([multiply(a[:, :k], b[:, :k], method) for k in at.tolist()], axis=-1)

    (ah, al), (bh, bl) = split(a, SCALED), split(b, SCALED)
    (a_low, b_low) = (np.ldexp(x, -SCALED.log2_scale) for x in (al, bl))
    terms = [sums(x, y) for x, y in ((ah, bh), (a_low, bh), (ah, b_low), (a_low, b_low))]
    results = np.stack([multiplied(method) for method in METHODS.values()])
    return Products(
        a.view(np.uint32), b.view(np.uint32), sums(a, b), sums(a, b, np.abs), results,
        sums(a, b, partial(clamped, least=LEAST)),
        np.cumsum(np.stack(terms), axis=0), sums(ah, bh, clamped), sums(al, bh, clamped) + sums(ah, bl, clamped),
    )  # fmt: skip


def rows(result: Result) -> Columns:
    return long_products.compared_columns(result.kinds, "method", NAMES)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.proved("Two FP16 parts hold 22.75 of FP32's 23 bits to nearest, 22.5 truncated")
def lost_bits(result: Result) -> Outcome:
    total = 1 << 23
    kept = 23 - (total - result.lost[:, 0]) / total
    said = say("all {n:,} significands: {nearest:g} bits to nearest, {cut:g} truncated", n=total)
    right = np.array_equal(8 * result.lost, np.array([[6, 2, 0, 0], [4, 2, 1, 1]]) * total)
    return verdict(right, said.fill(nearest=kept[0], cut=kept[1]))


@CLAIMS.library("The parts are those of numpy's own casts")
def numpy_parts(result: Result) -> Outcome:
    compared = 0
    for (kind, one), part, scheme in itertools.product(result.kinds.items(), "ab", (PLAIN, SCALED)):
        x = getattr(one, part).view(np.float32)
        with np.errstate(under="ignore"):
            high = x.astype(np.float16)
            low = ((x - high.astype(np.float32)) * np.float32(2.0**scheme.log2_scale)).astype(np.float16)
        for got, want in zip(split(x, scheme), (high, low), strict=True):
            outcome = same_bits(got.view(np.uint32), want.astype(np.float32).view(np.uint32), "fp32")
            if not outcome.holds:
                return failed(say("{kind}, {scheme}: {detail}", kind=kind, scheme=scheme.name, detail=outcome.detail))
            compared += x.size
    return passed(say("{n:,} parts, every bit", n=compared))


@CLAIMS.measured(
    "The scale 2^11 moves the lower end of the range from 2^-2 to 2^-13; TF32 parts have 2^-60 to 2^19 at least"
)
def ranges(result: Result) -> Outcome:
    """The lowest and the highest binade from which a scheme keeps 2**-23 of all that is sampled, and all in between."""
    first, last = int(EXPONENTS[0]), int(EXPONENTS[-1])
    found: dict[str, tuple[int, int] | None] = {}
    for scheme, worst in zip(SCHEMES, result.binades, strict=True):
        good = EXPONENTS[worst <= KEPT]
        found[scheme.name] = (int(good[0]), int(good[-1])) if good.size else None
        if good.size and good.size != good[-1] - good[0] + 1:
            return failed(say("{scheme}: keeps 2^-23 in binades with gaps between", scheme=scheme.name))
    want = {ALONE.name: None, PLAIN.name: (-2, 14), SCALED.name: (-13, 14), WIDER.name: (first, last)}
    texts = [say("{scheme} 2^{low} to 2^{high}", scheme=name, low=ends[0], high=ends[1]) if ends else
             say("{scheme} never", scheme=name) for name, ends in found.items()]  # fmt: skip
    said = say("2^-23 kept: {ranges} (sampled: 2^{low} to 2^{high})", ranges=joined(texts, COMMA), low=first, high=last)
    kept = result.binades[SCHEMES.index(SCALED)][(EXPONENTS >= -13) & (EXPONENTS <= 14)]
    return measured(found == want, said, Sample(result.params.values, float(np.ptp(kept)), KEPT))


@CLAIMS.proved(
    "Added exactly, three products miss 2^-21 of the magnitudes at most, the fourth is 2^-22 (below 2^-13 is as 2^-13)"
)
def how_many(result: Result) -> Outcome:
    texts = []
    for kind, one in result.kinds.items():
        most = one.largest_partial()
        third, fourth = np.abs(one.partial[2] - one.exact), np.abs(one.partial[3] - one.partial[2])
        if (third > one.split_bound()).any() or (fourth > one.clamped >> 22).any():
            said = say("{kind}: three products miss more than 2^-21, or the fourth adds more than 2^-22", kind=kind)
            return failed(said)
        if kind not in MADE_UP:  # of values far below 2^-13 little of a bound is used
            continue
        used = [float(whole.ratio(e, one.clamped >> shift).max()) for e, shift in ((third, 21), (fourth, 22))]
        if min(used) < PART_USED or 1000 * most[2] > most[1]:
            said = say("{kind}: of these bounds {used} are used; largest errors {errors}", kind=kind, used=used)
            return failed(said.fill(errors=most.tolist()))
        texts.append(joined([NAMED[kind], *(f"{share:.0e}" for share in most)], " "))
    return passed(say("largest errors of 1 to 4 products, added exactly: {errors}", errors=joined(texts, CLAUSE)))


NAMED = {"random": say("random"), "positive": say("positive"), "small": say("small")}


@CLAIMS.proved("No error is above its bound, and each way uses a sixteenth of it")
def bounds_hold(result: Result) -> Outcome:
    return long_products.within_bounds(result.kinds, NAMES)


@CLAIMS.measured("Three products, added outside, err less than FP32 multiply-adds from K = 256 on, on average")
def single_precision(result: Result) -> Outcome:
    gain, texts = [], []
    for kind in MADE_UP:
        plain = result.kinds[kind].rms("plain")
        ours = [result.kinds[kind].rms(f"outside {gpu}") for gpu in GPUS]
        gain += [plain - one for one in ours]
        a100, h100, fp32 = (np.exp2(one).mean() for one in (*ours, plain))
        said = say("{kind} A100 {a100:.1e}, H100 {h100:.1e}, FP32 {fp32:.1e}", kind=NAMED[kind], a100=a100)
        texts.append(said.fill(h100=h100, fp32=fp32))
    mean = np.mean(gain, axis=0)
    said = say("r.m.s. errors: {errors}; in powers of 2", errors=joined(texts, CLAUSE))
    return failed(said) if (np.mean(gain, axis=1) <= 0).any() else superior(mean, 0.0, 0.0, said)


@CLAIMS.measured("Added inside, positive sums fall short, 16 times further off than added outside")
def inside_drifts(result: Result) -> Outcome:
    one, least, texts = result.kinds["positive"], [], []
    for gpu in GPUS:
        if (one.summed[index(f"inside {gpu}")] > one.exact)[..., one.lengths >= LONG].any():
            return failed(say("{gpu}: a sum inside is above the exact one", gpu=gpu))
        inside, outside = one.rms(f"inside {gpu}"), one.rms(f"outside {gpu}")
        least.append(inside - outside)
        said = say("{gpu} {inside:.1e} inside, {outside:.1e} outside", gpu=gpu)
        texts.append(said.fill(inside=np.exp2(inside).mean(), outside=np.exp2(outside).mean()))
    said = say("r.m.s. errors: {errors}; in powers of 2", errors=joined(texts, COMMA))
    return superior(np.min(least, axis=0), 0.0, MANY, said)


@CLAIMS.measured("Without the scale, small operands lose their second part: errors 16 times larger")
def scale_saves(result: Result) -> Outcome:
    plain, scaled = (result.kinds["small"].rms(method) for method in ("three", "outside A100"))
    said = say("r.m.s. errors: {plain:.1e} without the scale, {scaled:.1e} with it; in powers of 2")
    return superior(plain, scaled, MANY, said.fill(plain=np.exp2(plain).mean(), scaled=np.exp2(scaled).mean()))


@CLAIMS.measured("Real gradients leave FP16's range even so, and TF32 parts hold them to 2^-20")
def gradients(result: Result) -> Outcome:
    """Real operands: gradients below FP16's range, which parts in TF32 hold; the largest error of each row of A."""
    one = result.kinds[REAL[2]]
    half, wider, plain = (
        whole.ratio(one.errors[index(method)], one.magnitude).max(axis=(1, 2))
        for method in ("outside A100", "wider", "plain")
    )
    said = say("largest error at any K: FP16 parts {half:.1e}, TF32 parts {wider:.1e}, FP32 {plain:.1e}")
    holds = bool(half.max() > 5 * wider.max() and wider.max() < WIDE)
    said = said.fill(half=half.max(), wider=wider.max(), plain=plain.max())
    return measured(holds, said, Sample(wider.size, float(wider.std(ddof=1)), WIDE))


# --- what a GPU must do -----------------------------------------------------------------------------------------
LENGTH, INSIDE, INSTRUCTION = 256, 4096, 16
UNREDUCED = {REDUCED.format("fp16"): False}


def given(kind: str, k: int, params: Params) -> Arrays:
    """FP32 codes of the leading K of a kind's operands."""
    pair = operands(kind, params.rows, params.log2_last)
    return {name: np.ascontiguousarray(x[:, :k]).view(np.uint32) for name, x in zip("ab", pair, strict=True)}


def device_parts(x: Any) -> tuple[Any, Any]:
    """High and scaled low part of an FP32 tensor, or of the lab's values, in FP16."""
    high = cast(x, "fp16")
    return high, cast((x - cast(high, "fp32")) * 2048, "fp16")


def parts_of_both(a: Any, b: Any) -> dict[str, Any]:
    """The parts of both operands."""
    pairs = zip("ab", map(device_parts, (a, b)), strict=True)
    return {f"{name} {which}": part for name, pair in pairs for which, part in zip(("high", "low"), pair, strict=True)}


def outside_compute(inputs: Arrays, device: str) -> Arrays:
    """A batch of products of K = 16, each one instruction with c = 0, added on the device in FP32, one by one."""
    if device == "cpu":
        return outside_emulate(inputs, {"kind": "cpu"})
    torch = torch_for(device)
    a, b = (device_parts(tensor(inputs[name], "fp32", device)) for name in "ab")
    with flags_set(UNREDUCED):
        return added(a, b, partial(torch.bmm, out_dtype=torch.float32))


def added(a: tuple[Any, Any], b: tuple[Any, Any], multiply: Any) -> Arrays:
    """The three products of parts (rows, K), by slices of 16; ``multiply`` takes batches (K / 16, rows, 16)."""
    import torch

    def slices(x: Any) -> Any:
        return x.reshape(len(x), -1, INSTRUCTION).transpose(0, 1).contiguous()

    (ah, al), (bh, bl) = map(slices, a), map(slices, b)
    main, mixed = (torch.zeros(len(a[0]), len(b[0]), dtype=torch.float32, device=a[0].device) for _ in range(2))
    for total, x, y in ((main, ah, bh), (mixed, ah, bl), (mixed, al, bh)):
        for part in multiply(x, y.transpose(1, 2)):
            total += part
    return {"main": bits(main), "mixed": bits(mixed), "d": bits(main + mixed / 2048)}


def outside_emulate(inputs: Arrays, meta: Meta, instruction: str | None = None) -> Arrays:
    """The same by the lab: promotion to FP32 after every instruction."""
    from ..tensorcore import matmul

    (ah, al), (bh, bl) = (split(inputs[name].view(np.float32), SCALED) for name in "ab")
    options: Any = {"gpu": gpu_of(meta), "instruction": instruction, "plan": Plan(promote=INSTRUCTION)}
    main = matmul(ah, bh.T, **options)
    mixed = matmul(al, bh.T, matmul(ah, bl.T, **options), **options)
    d = main + mixed / np.float32(2048)
    return {name: x.view(np.uint32) for name, x in (("main", main), ("mixed", mixed), ("d", d))}


def high_parts(kind: str, params: Params) -> tuple[Array, Array]:
    """FP16 codes of the high parts of a long product."""
    a, b = (codes.view(np.float32).astype(np.float16) for codes in given(kind, INSIDE, params).values())
    return a.view(np.uint16), b.view(np.uint16)


def cases(params: Params) -> Iterator[Case]:
    """The parts of every kind; products added outside; the main product of the positive kind, added inside."""
    parts = dict.fromkeys(("a high", "a low", "b high", "b low"), "fp16")
    for kind in KINDS:
        name, inputs = f"{kind}: FP32 as two FP16 parts", partial(given, kind, LENGTH, params)
        yield program(name, inputs, dict.fromkeys("ab", "fp32"), parts_of_both, parts)
    for kind in ("random", "positive"):
        yield Case(
            f"{kind}, K = {LENGTH}: three products of instructions with c = 0, added outside",
            partial(given, kind, LENGTH, params), outside_compute, outside_emulate,
            dict.fromkeys(("main", "mixed", "d"), "fp32"),
            open="Is a product of K = 16 one block?",
            hypotheses={"instructions of k = 8": partial(outside_emulate, instruction="mma.k8")},
        )  # fmt: skip
    inside = Product("matmul", ("fp16", "fp16"), "fp32", (SIDE, SIDE, INSIDE), UNREDUCED)
    name = f"positive, K = {INSIDE}: high parts, added inside"
    yield core_case(name, inside, partial(high_parts, "positive", params))


# --- figures ----------------------------------------------------------------------------------------------------
SHOWN = {  # how the legend and the line's end name a method, and its look
    "half": ("FP16 (one product)", "FP16", 6),
    "two": ("2 products", "2 products", 7),
    "three": ("3 products, no scale, inside", "3 products", 5),
    "inside A100": ("3 products, scaled, inside", "3, inside", 1),
    "outside A100": ("3 products, scaled, outside", "3, outside", 0),
    "wider": ("3 TF32 products, scaled, outside", "3 TF32", 2),
    "plain": ("FP32 multiply-adds", "FP32", 4),
}
TITLES = {"random": "Random signs", "positive": "All positive", "small": f"Random signs times $2^{{{SMALL}}}$"}


def parts(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 6.4)
    panels = figure.subplot_mosaic([["strips", "strips"], ["binades", "many"]], width_ratios=[1.5, 1])
    draw_strips(panels["strips"], result)
    draw_binades(panels["binades"], result)
    draw_many(panels["many"], result.kinds["random"])
    return figure


def errors(result: Result) -> draw.Figure:
    from matplotlib.lines import Line2D

    figure, panels = draw.panels(8, 8, 2, 2)
    for ax, (kind, one) in zip(panels.flat, result.kinds.items(), strict=True):
        along_k(ax, one.lengths, 2e-9, 1e-3 if kind in TITLES else 0.3)
        ends = []
        for method, (_, end, i) in SHOWN.items():
            _, most, bound = one.shares(index(method))
            ax.plot(one.lengths, most, **draw.look(i).marked)
            if method in ("inside A100", "outside A100"):
                ax.plot(one.lengths, bound, color=draw.look(i).color, linewidth=1, linestyle=DOTS)
            ends.append((float(most[-1]), end, draw.look(i).color))
        ax.set(ylabel="largest |error| / Σ|a b|", title=TITLES.get(kind, kind.capitalize()))
        draw.label_ends(ax, ends)
    found = [Line2D([], [], label=text, **draw.look(i).marked) for text, _, i in SHOWN.values()]
    found.append(Line2D([], [], color=draw.current().ink, linewidth=1, linestyle=DOTS, label="proved bound"))
    figure.legend(handles=found, loc="outside lower center", ncols=3, title="Tensor Core products as on A100, emulated")
    return figure


def draw_strips(ax: draw.Axes, result: Result) -> None:
    """The 24 bits of an FP32 significand and what the parts take of them."""
    from matplotlib.patches import Rectangle

    theme = draw.current()
    strips = (
        (3.0, 24, 0, theme.fraction, "FP32: 24 bits"),
        (2.0, 11, 0, theme.exponent, "high: rounded to 11"),
        (1.0, 11, 12, theme.sign, r"low, times $2^{11}$: 11, and a sign"),
    )
    for y, count, start, color, text in strips:
        for k in range(start, start + count):
            ax.add_patch(Rectangle((k, y), 1, 0.42, facecolor=color, edgecolor=theme.background, linewidth=1.2))
        ax.text(start, y + 0.5, text, fontsize=9.5)
    ax.add_patch(Rectangle((23, 1.0), 1, 0.42, facecolor="none", edgecolor=theme.ink, linewidth=1.2, linestyle=DOTS))
    ax.annotate("missing in 1 of 4", (23.5, 1.0), (23.9, 0.45), ha="right", fontsize=9,
                arrowprops={"arrowstyle": "-", "color": theme.ink, "lw": 0.8})  # fmt: skip
    nearest, cut = result.lost[:, 0] / result.lost.sum(axis=1)
    ax.text(0, -0.15, f"numbers held exactly: {nearest:.0%} to nearest, {cut:.0%} by truncation", fontsize=9.5)
    ax.set(xlim=(-0.3, 24.3), ylim=(-0.4, 4.0))
    ax.set_axis_off()
    ax.set_title("A number as two parts")


def draw_binades(ax: draw.Axes, result: Result) -> None:
    places = ((-11, 1.5e-3, "FP16", "half"), (-3, 1e-5, "no scale", "three"), (-41, 3e-6, "scaled", "outside A100"),
              (-59, 2.2e-7, "TF32, scaled", "wider"))  # fmt: skip
    powers(ax, 2e-8, 2)
    for worst, (x, y, text, method) in zip(result.binades, places, strict=True):
        own = draw.look(SHOWN[method][2])
        ax.plot(EXPONENTS, worst, **own.line)
        ax.text(x, y, text, color=own.color, fontsize=9.5)
    ax.set_xlim(EXPONENTS[0], EXPONENTS[-1])
    ax.set_xticks(range(-60, 21, 20), [f"$2^{{{e}}}$" for e in range(-60, 21, 20)])
    ax.set(xlabel="magnitude of the number", ylabel="largest relative error of its parts",
           title="The range of the parts")  # fmt: skip


def draw_many(ax: draw.Axes, one: Products) -> None:
    powers(ax, 1e-9, 1e-2)
    bars = ax.bar(range(1, 5), one.largest_partial(), color=draw.look(SHOWN["outside A100"][2]).color, width=0.62)
    ax.bar_label(bars, fmt="%.0e", fontsize=9, padding=3)
    ax.set_xticks(range(1, 5))
    ax.grid(False, axis="x")
    ax.set(xlabel="products, added exactly", ylabel="largest |error| / Σ|a b|", title="The fourth adds nothing")


EXPERIMENT = Experiment(
    title=say("Single precision from half"),
    question=say("Can FP16 Tensor Cores multiply FP32 matrices, and why must their results be added outside?"),
    budget=4.0, full=Params(), quick=Params(rows=4, log2_last=13, values=512), result=Result, run=run, rows=rows,
    claims=CLAIMS, figures=(parts, errors), cases=cases, kinds=dict.fromkeys(MADE_UP, Products),
)  # fmt: skip
