"""The same product in the bits of GPUs: probes, sums that fall while c rises, summation trees, a real product.

Every probe is one accumulator c and a few products, so small or so large that alignment or truncation decides. The FP16
probes and the effect on V100 are those of Fasi, Higham, Mikaitis and Pranesh (PeerJ CS 7:e330, 2021), extended to later
GPUs by the models of Khattak and Mikaitis (arXiv 2512.07004). AMD's units stand beside H100 (Xie et al. 2025, arXiv
2511.10909): MI100 adds products pairwise in FP32, MI210 too but without subnormals, MI300X truncates products, adds
them, and rounds that sum and c down.

Sums fall while c rises: at c = 1 the grid of a block, 2**(emax - F), becomes twice as coarse as below 1. Products of
half that grid are then lost, which below 1 were kept: the sum drops. So no Tensor Core that truncates aligned terms is
monotonic, and each generation shows it at its own size of products.

The real product: the correlations of the 64 pixels of handwritten digits, X X^T. X holds the first K images, every
pixel brought to mean 0 and variance 1 and rounded to FP16. Mean and variance come from integers, so that the same bits
enter everywhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from .. import draw, exact, numeric
from ..hardware.cases import Arrays, Case
from ..hardware.core_cases import direct_case
from ..hardware.products import ONE_CHAIN, REDUCED, Plan, Product
from ..hardware.software import codes
from ..reveal import SumTree, masks, reveal_order
from ..tensorcore.models import Model
from ..tensorcore.models import get as model_of
from ..words import CLAUSE, COMMA, joined, mark, say
from .chain_bounds import terms, walk
from .frame import Experiment, Params, Result
from .outcomes import Claim, Evidence, Outcome, Part, Sample, failed, measured, passed, verdict
from .panels import bars, heat, line
from .quantities import Columns, Quantity, in_columns, of

GENERATIONS: dict[str, tuple[str, ...]] = {
    "Volta": ("V100",),
    "Turing, Ampere, Ada": ("T4", "A100", "Ada", "L40S"),
    "Hopper, Blackwell": ("H100", "H200", "B200"),
}
FAMILY = {gpu: family for family, gpus in GENERATIONS.items() for gpu in gpus}
GPUS = tuple(FAMILY)
AMD = ("H100", "MI100", "MI210", "MI300X")
EVERY = (*GPUS, *AMD[1:])
SETS = {"fp16": GPUS, "e4m3": ("Ada", "H100", "B200"), "bf16": GPUS[2:], "amd": AMD}  # whom probes of a kind tell apart
LENGTHS = dict(zip(GENERATIONS, (4, 8, 16), strict=True))  # products of one block
# What papers report: products of one block, fraction bits beside the largest term, and of a result; AMD's steps.
BLOCKS = {**{(gpu, "fp16"): rule for rule, gpus in zip(((4, 23, 23), (8, 24, 23), (16, 25, 23)), GENERATIONS.values(),
                                                       strict=True) for gpu in gpus},
          **{(gpu, "bf16"): (16, 25, 23) if FAMILY[gpu].startswith("Hopper") else (8, 24, 23) for gpu in SETS["bf16"]},
          ("Ada", "e4m3"): (16, 13, 13), ("H100", "e4m3"): (32, 13, 13), ("B200", "e4m3"): (32, 25, 23)}  # fmt: skip
STEPS: dict[str, dict[str, Any]] = {
    "MI100": {"kind": "pairwise", "length": 4, "alignment_bits": 0, "subnormals": "kept"},
    "MI210": {"kind": "pairwise", "length": 4, "alignment_bits": 0, "subnormals": "flushed"},
    "MI300X": {"kind": "two_step", "length": 8, "alignment_bits": 24, "subnormals": "kept"},
}
TINY: dict[int, tuple[float, float]] = {  # FP16 factors of 2**-24, 2**-25 and 2**-26
    -24: (2.0**-12, 2.0**-12),
    -25: (2.0**-13, 2.0**-12),
    -26: (2.0**-13, 2.0**-13),
}
PRODUCTS = {-24: 4, -25: 8, -26: 16}  # of the sums around c = 1: the exponent of a product, and how many make 2**-22
BELOW, ABOVE = 12, 8  # values of c below and above 1

# ``images``: digits in the real product, its K. ``terms``: c and the products of a summation tree.
E = Experiment(
    "One product, eight GPUs", "Which bits of a product depend on the GPU that computed it, and why?", budget=2.0,
    full={"images": 1792, "terms": 65}, quick={"images": 768, "terms": 33},
)  # fmt: skip


# --- probes -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Probe:
    """One sum: c and ``products`` (factor, factor, how many), filled with zeros to ``k``.

    ``known``: the FP32 bits that is published of each GPU, and last of the exact sum, rounded once to nearest even.
    """

    id: str
    name: str
    c: float
    products: tuple[tuple[float, float, int], ...]
    known: tuple[int, ...]
    kind: str = "fp16"
    k: int = 16

    @property
    def bits(self) -> dict[str, int]:
        """The bits of each GPU and of the exact sum; of FP16 they are known by family."""
        if self.kind != "fp16":
            return dict(zip((*SETS[self.kind], "exact"), self.known, strict=True))
        by_family = dict(zip((*GENERATIONS, "exact"), self.known, strict=True))
        return {gpu: by_family[FAMILY.get(gpu, gpu)] for gpu in (*GPUS, "exact")}

    @property
    def inputs(self) -> str:
        """The format of the factors."""
        return "fp16" if self.kind == "amd" else self.kind

    @property
    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows of A and B: float32 (k,) each."""
        pairs = [(a, b) for a, b, count in self.products for _ in range(count)]
        a, b = np.array([*pairs, *[(0.0, 0.0)] * (self.k - len(pairs))], np.float32).T
        return np.ascontiguousarray(a), np.ascontiguousarray(b)

    @property
    def sum(self) -> Fraction:
        """The exact sum."""
        return Fraction(self.c) + sum(count * Fraction(a) * Fraction(b) for a, b, count in self.products)


def fp32(*numbers: float) -> tuple[int, ...]:
    """The bits of numbers in FP32."""
    return tuple(int(np.float32(v).view(np.uint32)) for v in numbers)


PROBES = {probe.id: probe for probe in (
    Probe("tiny_24", mark("c = 1, 16 products of 2^-24"), 1.0, ((*TINY[-24], 16),),
          (0x3F800000, 0x3F800008, 0x3F800008, 0x3F800008)),
    Probe("tiny_25", mark("c = 1, 16 products of 2^-25"), 1.0, ((*TINY[-25], 16),),
          (0x3F800000, 0x3F800000, 0x3F800004, 0x3F800004)),
    Probe("tiny_26", mark("c = 1, 16 products of 2^-26"), 1.0, ((*TINY[-26], 16),),
          (0x3F800000, 0x3F800000, 0x3F800000, 0x3F800002)),
    Probe("below_one", mark("c = 1 - 2^-24, 16 products of 2^-24"), 1.0 - 2.0**-24, ((*TINY[-24], 16),),
          (0x3F800001, 0x3F800007, 0x3F800007, 0x3F800008)),
    Probe("cancelled", mark("c = -1, one product 1 and 15 of 2^-24"), -1.0, ((1.0, 1.0, 1), (*TINY[-24], 15)),
          (0x35400000, 0x35700000, 0x35700000, 0x35700000)),
    Probe("cancelled_large", mark("c = 2^-20, 8192^2 - 8192^2"), 2.0**-20,
          ((8192.0, 8192.0, 1), (8192.0, -8192.0, 1)), (0, 0, 0, 0x35800000)),
    Probe("fp8_small", mark("c = 1024, 32 products of 2^-4 (E4M3)"), 1024.0, ((0.25, 0.25, 32),),
          fp32(1024, 1024, 1026, 1026), "e4m3", 32),
    Probe("fp8_large", mark("448^2 and 31 products of 1 (E4M3)"), 0.0, ((448.0, 448.0, 1), (1.0, 1.0, 31)),
          fp32(200704, 200704, 200735, 200735), "e4m3", 32),
    # Eight products of which the first is enough to tell a floor of the exponents of -127 or above, or a zero that has
    # one.
    Probe("bf16_smallest", mark("c = 0, 8 products of 2^-152 (BF16)"), 0.0, ((2.0**-76, 2.0**-76, 8),),
          (1,) * 7, "bf16"),
    Probe("amd_tiny", mark("c = 1, 16 products of 2^-26"), 1.0, ((*TINY[-26], 16),),
          (0x3F800000, 0x3F800000, 0x3F800000, 0x3F800002, 0x3F800002), "amd"),
    Probe("amd_down", mark("c = -2^-30, one product 1"), -(2.0**-30), ((1.0, 1.0, 1),),
          (0x3F800000, 0x3F800000, 0x3F800000, 0x3F7FFFFF, 0x3F800000), "amd"),
    Probe("amd_up", mark("c = 2^-30, one product -1"), 2.0**-30, ((-1.0, 1.0, 1),),
          (0xBF800000, 0xBF800000, 0xBF800000, 0xBF800000, 0xBF800000), "amd"),
    Probe("amd_operand", mark("c = 0, 16 products of 2^-15, a subnormal, and 1"), 0.0, ((2.0**-15, 1.0, 16),),
          (0x3A000000, 0x3A000000, 0, 0x3A000000, 0x3A000000), "amd"),
    Probe("amd_c", mark("c = 2^-130, a subnormal, and no product"), 2.0**-130, ((0.0, 1.0, 1),),
          (0x00080000, 0x00080000, 0, 0x00080000, 0x00080000), "amd"),
)}  # fmt: skip


def probes_of(kind: str) -> list[Probe]:
    """The probes of a kind."""
    return [probe for probe in PROBES.values() if probe.kind == kind]


def reported(gpu: str, inputs: str) -> Model:
    """The unit as papers describe it: the record, but for what stands here. No floor that is reported matters here."""
    record = replace(model_of(gpu, inputs, "fp32"), floor=None)
    if gpu in STEPS:
        return replace(record, **STEPS[gpu], rounding="rne")
    length, align, kept = BLOCKS[gpu, inputs]
    return replace(record, kind="block", length=length, alignment_bits=align, kept_bits=kept, rounding="rtz",
                   subnormals="kept")  # fmt: skip


def published(gpu: str, inputs: str, a: Any, b: Any, c: float) -> int:
    """The FP32 bits of c and a chain as papers describe a GPU, on fractions."""
    from ..tensorcore import oracle

    return exact.round_to(oracle.dot(a.tolist(), b.tolist(), c, reported(gpu, inputs)), "fp32")[0]


# --- what is measured -------------------------------------------------------------------------------------------
@E.measure("probed", axes={"probe": PROBES, "gpu": (*EVERY, "exact")}, digested=True)
def bits_of_probe(p: Params, probe: str, gpu: str) -> int | None:
    """The FP32 bits of a probe, or of its exact sum."""
    from .. import tensorcore

    record = PROBES[probe]
    if gpu == "exact":
        return exact.round_to(exact.of(record.sum), "fp32")[0]
    if gpu not in SETS[record.kind]:
        return None
    a, b = record.factors
    return int(np.asarray(tensorcore.dot(a, b, np.float32(record.c), gpu=gpu, inputs=record.inputs)).view(np.uint32))


def accumulators(p: Params) -> list[float]:
    """The values of c around 1, all of them, ascending; number ``BELOW`` is 1."""
    return (0x3F800000 + np.arange(-BELOW, ABOVE + 1)).astype(np.uint32).view(np.float32).tolist()


@E.measure("sweep", axes={"exponent": PRODUCTS, "gpu": GPUS}, dims={"c": accumulators}, digested=True)
def sums_around_one(p: Params, exponent: int, gpu: str) -> np.ndarray:
    """FP32 bits of c plus products of a power of two."""
    from .. import tensorcore

    c = np.array(accumulators(p), np.float32)
    a, b = (np.full((c.size, PRODUCTS[exponent]), factor, np.float32) for factor in TINY[exponent])
    return np.asarray(tensorcore.dot(a, b, c, gpu=gpu)).view(np.uint32)


def falls(bits: Any) -> Any:
    """How often positive FP32 bits fall as c rises."""
    return (bits.astype(np.int64).diff("c") < 0).sum("c")


@E.measure(axes={"gpu": GPUS}, dims=("term", "other"), digested=True)
def tree_sizes(p: Params, gpu: str) -> np.ndarray:
    """The tree of c (term 0) and products, as a black box shows it: the size of the smallest part with two terms."""
    return tree(gpu, p.terms).sizes


def tree(gpu: str, terms: int) -> SumTree:
    """The tree of c and ``terms - 1`` FP16 products on a GPU."""
    from .. import tensorcore

    def box(x: np.ndarray) -> Any:
        return tensorcore.dot(x[:, 1:], np.ones((len(x), terms - 1), np.float16), x[:, 0], gpu=gpu)

    return reveal_order(box, terms, "fp16", rows=True)


def chain(terms: int, length: int) -> SumTree:
    """A chain of fused sums of ``length`` products and the sum so far, which begins with term 0."""
    nested: Any = 0
    for start in range(1, terms, length):
        nested = (nested, *range(start, min(start + length, terms)))
    return SumTree.of(nested)


def operands(images: int) -> np.ndarray:
    """X as FP16 codes (64, images): pixels by images. A pixel that never changes is zero."""
    from ..training.data import digits

    x = digits("all").images[:images].reshape(-1, 64).astype(np.int64)
    total = x.sum(axis=0)
    spread = len(x) * (x * x).sum(axis=0) - total**2
    scale = np.sqrt(np.maximum(spread, 1).astype(np.float64))
    standard = np.where(spread > 0, (len(x) * x - total) / scale, 0.0).astype(np.float16)
    return np.ascontiguousarray(standard.T).view(np.uint16)


def on_gpu(x: np.ndarray, gpu: str, sign: float = 1.0) -> np.ndarray:
    """X X^T on a GPU, X times ``sign`` on the left, from FP16 to FP32, one chain of ascending k: FP32 bits (64, 64)."""
    from .. import tensorcore

    values = x.view(np.float16).astype(np.float32)
    return tensorcore.matmul(sign * values, values.T, gpu=gpu).view(np.uint32)


def exactly(x: np.ndarray) -> np.ndarray:
    """X X^T with one rounding: FP32 bits (64, 64)."""
    values = x.view(np.float16).astype(np.float32)
    return np.asarray(numeric.dot(values[:, None], values[None], "fp16", accumulate="exact", store="fp32")).view(
        np.uint32
    )


def ordered(bits: Any) -> Any:
    """FP32 bits as integers in the order of the numbers, neighbours 1 apart."""
    magnitude = np.asarray(bits).astype(np.int64) & 0x7FFFFFFF
    return np.where(np.asarray(bits) >> 31, -magnitude, magnitude)


def difference(x: np.ndarray, y: np.ndarray) -> tuple[int, int]:
    """How many elements differ between two results in FP32 bits, and the largest difference in ulp."""
    return int((x != y).sum()), int(np.abs(ordered(x) - ordered(y)).max())


def stored(bits: np.ndarray) -> np.ndarray:
    """FP32 bits rounded to FP16, as torch stores the product of half tensors: FP16 codes."""
    return bits.view(np.float32).astype(np.float16).view(np.uint16)


@E.measure("real", axes={"gpu": (*EVERY, "exact")}, dims=("pixel", "other"), digested=True)
def real_product(p: Params, gpu: str) -> np.ndarray:
    """FP32 bits of the real product."""
    return product_of(p, gpu)


@E.cache
def product_of(p: Params, gpu: str) -> np.ndarray:
    """The real product on a GPU, or with one rounding."""
    x = operands(p.images)
    return exactly(x) if gpu == "exact" else on_gpu(x, gpu)


@E.measure(axes={"form": ("FP32", "FP16"), "one": (*GPUS, "exact"), "other": (*GPUS, "exact")})
def differing(p: Params, form: str, one: str, other: str) -> int:
    """In how many elements the real products of two GPUs differ, as FP32 or once stored as FP16."""
    x, y = product_of(p, one), product_of(p, other)
    return int(((stored(x) != stored(y)) if form == "FP16" else (x != y)).sum())


@E.measure(axes={"gpu": AMD}, dims=("pixel", "other"), digested=True)
def negated(p: Params, gpu: str) -> np.ndarray:
    """FP32 bits of the real product with X negated on the left."""
    return on_gpu(operands(p.images), gpu, -1.0)


@E.table
def rows(r: Result) -> Columns:
    """A row per probe and GPU, then one per pair of GPUs (and exact) of the real product."""
    rows: list[tuple[Any, ...]] = []
    for probe in PROBES.values():
        got = r.probed.sel(probe=probe.id, gpu=[*SETS[probe.kind], "exact"]).astype(np.uint32)
        for gpu in SETS[probe.kind]:
            ends = got.sel(gpu=gpu).values, got.sel(gpu="exact").values
            rows.append((probe.name, gpu, "exact", *(f"{int(x):08x}" for x in ends), *difference(*ends)))
    for gpus in ((*GPUS, "exact"), AMD):
        for one, other in itertools.combinations(gpus, 2):
            ends = r.real.sel(gpu=one).values, r.real.sel(gpu=other).values
            rows.append((f"pixel correlations 64x64x{r.p.images}", one, other, "", "", *difference(*ends)))
    names = ("case", "GPU", "against", "bits", "bits against", "elements that differ", "largest difference in ulp")
    return in_columns(names, rows)


# --- claims -----------------------------------------------------------------------------------------------------
ELEMENTS = ((9, 2), (20, 45), (61, 61))  # of the real product, one after the other by fractions
DRAWS = 3  # parts of the images
FEW = 0.05  # of the elements: what FP16, 13 bits shorter than FP32, may leave of the differences
FSUM_STEP = 13  # every so many elements of the real product are summed by math.fsum


def cells_follow(probe: Probe, r: Result) -> Outcome:
    """One row of the table of probes: every cell is the published one, and what the definition gives on fractions."""
    got = {gpu: int(r.probed.sel(probe=probe.id, gpu=gpu)) for gpu in probe.bits}
    want = {gpu: published(gpu, probe.inputs, *probe.factors, probe.c) for gpu in SETS[probe.kind]}
    want["exact"] = probe.known[-1]
    wrong = [
        f"{gpu} {got[gpu]:08x} ≠ {bits:08x}" for gpu, bits in want.items() if {got[gpu], probe.bits[gpu]} != {bits}
    ]
    if wrong:
        return failed(joined(wrong, CLAUSE))
    same = {bits: " ".join(gpu for gpu in want if want[gpu] == bits) for bits in dict.fromkeys(want.values())}
    return passed(joined([f"{bits:08x} {gpus}" for bits, gpus in same.items()], CLAUSE))


for _probe in PROBES.values():
    _text = say("{probe}: each cell follows from the reported blocks and alignments", probe=say(_probe.name))
    if _probe.kind == "amd":
        _text = say("{probe}: each cell, AMD's too, follows from what is published", probe=say(_probe.name))
    E.claim(Claim(_probe.id, Evidence.PROVED, _text, partial(cells_follow, _probe)))


def elements_follow(r: Result, gpu: str, j: int, sign: float, real: Any) -> Part:
    """An element of the real product: where it is, its bits, and those that are published."""
    row, column = ELEMENTS[j % 3]
    x = operands(r.p.images).view(np.float16).astype(np.float64)
    if gpu in STEPS:
        want = published(gpu, "fp16", sign * x[row], x[column], 0.0)
    else:
        (want,) = fp32(walk(*terms(sign * x[row, None], x[column, None]), [reported(gpu, "fp16")]).totals[-1, 0, 0])
    return f"{gpu}, pixels {row} and {column}", real.sel(gpu=gpu)[row, column].values, want, "fp32"


@E.proved("the sums around c = 1 and elements of a real product follow from them, too")
def follows(r: Result) -> Iterator[Part]:
    """Of every GPU a third of the sweeps and an element of the real product, by the definition on fractions."""
    for (exponent, count), (j, gpu) in itertools.product(PRODUCTS.items(), enumerate(GPUS)):
        a, b = (np.full(count, factor) for factor in TINY[exponent])
        third = accumulators(r.p)[j % 3 :: 3]
        want = [published(gpu, "fp16", a, b, c) for c in third]
        yield f"{gpu}, 2^{exponent}", r.sweep.sel(exponent=exponent, gpu=gpu).values[j % 3 :: 3], want, "fp32"
    yield from (elements_follow(r, gpu, j, 1, r.real) for j, gpu in enumerate(GPUS))


@E.proved("elements of a real product on MI100, MI210 and MI300X follow from what is published of them")
def amd_follows(r: Result) -> Iterator[Part]:
    return (elements_follow(r, gpu, j, sign, real) for j, gpu in enumerate(AMD) if gpu in STEPS
            for sign, real in ((1, r.real), (-1, r.negated)))  # fmt: skip


def no_negatives(r: Result) -> Any:
    """How many elements of the negated product are not the negatives of the product's."""
    back = r.negated.values ^ np.uint32(0x80000000)
    back = np.where(back << np.uint32(1) == 0, np.uint32(0), back)  # of zeros either sign will do
    return (r.real.sel(gpu=[*AMD]) != back).sum(["pixel", "other"])


@E.proved("MI300X rounds down: negating A and C does not negate D, as it does on H100, MI100 and MI210")
def asymmetric(r: Result) -> Outcome:
    down, up = (r.probed.sel(probe=name, gpu=[*AMD]).values.astype(np.uint32) for name in ("amd_down", "amd_up"))
    counts = dict(zip(AMD, no_negatives(r).values.tolist(), strict=True))
    only = [gpu == "MI300X" for gpu in AMD]
    holds = (down != up ^ np.uint32(0x80000000)).tolist() == [count > 0 for count in counts.values()] == only
    texts = [f"{gpu} {count:,}" for gpu, count in counts.items()]
    return verdict(holds, say("elements that are no negatives: {counts}", counts=joined(texts, COMMA)))


@E.proved("MI210 takes subnormal operands and a subnormal C for zeros; H100, MI100 and MI300X keep them")
def flushes(r: Result) -> Outcome:
    got = r.probed.sel(probe=["amd_operand", "amd_c"])
    kept = {gpu: got.sel(gpu=gpu).values.tolist() for gpu in AMD}
    exact_bits = got.sel(gpu="exact").values.tolist()
    texts = [f"{gpu} {' '.join(f'{int(x):08x}' for x in bits)}" for gpu, bits in kept.items()]
    return verdict(all(bits == ([0, 0] if gpu == "MI210" else exact_bits) for gpu, bits in kept.items()),
                   joined(texts, COMMA))  # fmt: skip


@E.proved("on V100 the sum of c and four products of 2^-24 falls as c rises to 1")
def volta_falls(r: Result) -> Outcome:
    last = r.sweep.sel(exponent=-24, gpu="V100")[BELOW - 1 : BELOW + 1]
    before, at = last.values.tolist()
    detail = say("1 - 2^-24 gives {before:08x}, 1 gives {at:08x}", before=before, at=at)
    return verdict(last.c.values.tolist() == [1 - 2.0**-24, 1.0] and (before, at) == (0x3F800001, 0x3F800000), detail)


@E.proved("every family falls: at products of 2^-24 (Volta), 2^-25 (Turing to Ada), 2^-26 (Hopper, Blackwell)")
def each_falls_once(r: Result) -> Outcome:
    own = [[int(LENGTHS[FAMILY[gpu]] == count) for gpu in GPUS] for count in PRODUCTS.values()]
    detail = say("{n} values of c around 1, 3 sizes of products, {gpus} GPUs", n=r.sweep.sizes["c"], gpus=len(GPUS))
    return verdict(falls(r.sweep).values.tolist() == own, detail)


@E.proved("their summation trees are chains of nodes of 5, 9 and 17")
def trees_are_chains(r: Result) -> Iterator[Part]:
    lengths = {gpu: LENGTHS[FAMILY[gpu]] for gpu in GPUS}
    for gpu, length in lengths.items():
        yield gpu, r.tree_sizes.sel(gpu=gpu).values, chain(r.p.terms, length).sizes
    trees = joined([f"{gpu} {length}+1" for gpu, length in lengths.items()], COMMA)
    yield passed(say("{n} terms: {trees}", n=r.p.terms, trees=trees))


@E.measured("stored as FP16 a real product still differs between families, in fewer than 5% of elements")
def half_hides_most(r: Result) -> Outcome:
    """Rounded to FP16, as torch stores it, a product still tells the families apart, by a few elements.

    The product is that of a third of the images each time: other digits, so independent draws.
    """
    shares, counts = [], []
    for part in np.array_split(operands(r.p.images), DRAWS, axis=1):
        products = [on_gpu(np.ascontiguousarray(part), family[0]) for family in GENERATIONS.values()]
        pairs = list(itertools.combinations(products, 2))
        shares.append([float((stored(x) != stored(y)).mean()) for x, y in pairs])
        counts.append([int((x != y).sum()) for x, y in pairs])
    share = np.array(shares)
    detail = say("{low:.2%} to {high:.2%}; in FP32 {few:,} to {many:,} of {all:,}", low=share.min(), high=share.max())
    detail = detail.fill(few=np.min(counts), many=np.max(counts), all=64 * 64)
    sample = Sample(DRAWS, float(share.max(axis=1).std(ddof=1)), FEW)
    return measured(bool(((share > 0) & (share < FEW)).all()), detail, sample)


@E.library("the exact product is what math.fsum gives")
def exact_is_fsum(r: Result) -> Iterator[Part]:
    x, real = operands(r.p.images).view(np.float16).astype(np.float64), r.real.sel(gpu="exact").values
    for i, j in list(itertools.product(range(64), range(64)))[::FSUM_STEP]:
        yield f"pixels {i} and {j}", real[i, j], fp32(math.fsum((x[i] * x[j]).tolist()))[0], "fp32"


E.answer("V100 and A100 differ in {wide:.0%} of a product's elements in FP32, in {half:.1%} once they are stored as "
         "FP16",
         wide=of("differing", form="FP32", one="V100", other="A100") / 4096,
         half=of("differing", form="FP16", one="V100", other="A100") / 4096)  # fmt: skip


# --- what a GPU must compute ------------------------------------------------------------------------------------
# torch adds no FP32 accumulator to a product of half tensors, so c is a block of products of its own, before the
# probe's; and it stores half tensors, so a third block takes the 1 away again, which leaves the bits that matter. Where
# torch can return FP32 the same is done without the third block.

BLOCK = 16  # the longest block of a GPU: c, products and the end each fill whole blocks everywhere
TERMS = 64  # whose tree is revealed
# 1 - 2**-24 as four products of FP16 that one block of any GPU adds exactly.
JUST_BELOW_ONE = ((0.5, 1.0), (0.5, 1 - 2.0**-11), (2.0**-12, 1 - 2.0**-11), TINY[-24])
ENTERING = {1.0: ((1.0, 1.0),), -1.0: ((-1.0, 1.0),), 1 - 2.0**-24: JUST_BELOW_ONE, 2.0**-20: ((2.0**-10, 2.0**-10),)}
# In which a library may take a long k.
ORDERS: dict[str, Plan] = {f"split-K {n}": {"split_k": n} for n in (2, 3, 4, 6, 7, 8, 12, 14, 16)}
ORDERS |= {f"{n} accumulators": {"accumulators": n} for n in (2, 4, 8)}


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    correlations = partial(correlation_operands, p.images)
    inputs: tuple[tuple[str, Callable[[], Arrays], Callable[[], Arrays]], ...] = (
        ("probes", partial(probe_operands, True), partial(probe_operands, False)),
        (f"masked ones of {TERMS} terms", mask_operands, mask_operands),
        ("similarities of 256 digits, k = 64", similarity_operands, similarity_operands),
        (f"correlations of 64 pixels, k = {p.images}", correlations, correlations),
    )
    for name, *both in inputs:
        for out, made in zip(("fp16", "fp32"), both, strict=True):
            yield product_case(name, out, made, is_long=made is correlations)


def product_case(name: str, out: str, inputs: Callable[[], Arrays], is_long: bool) -> Case:
    """A B^T as "fp16" or "fp32"; in which order a library takes a long k is asked."""
    asked = ("In which order of k?", ORDERS) if is_long else ("", {})
    return direct_case(f"{name}, to {out}", product_to(out), inputs, ONE_CHAIN, *asked)


def product_to(out: str) -> Product:
    """A B^T of half tensors, to "fp16" or "fp32"."""
    return Product("matmul", ("fp16", "fp16"), out, flags={REDUCED.format("fp16"): False})


def probe_rows(probe: Probe, take_away: bool) -> np.ndarray:
    """A probe as two rows of float32: c, its products, and where ``take_away`` a 1 to subtract."""
    end = [(-1.0, 1.0)] if probe.c > 0.5 else []
    c = np.array(ENTERING[probe.c], np.float32).T
    pieces = [c, np.stack(probe.factors), np.array(end, np.float32).reshape(-1, 2).T]
    padded = [np.pad(piece, ((0, 0), (0, BLOCK - piece.shape[1]))) for piece in pieces]
    return np.concatenate(padded[: 3 if take_away else 2], axis=1)


def probe_operands(take_away: bool) -> Arrays:
    """All probes as rows of A and of B, 64 of each: the results on the diagonal are the probes."""
    both = np.stack([probe_rows(probe, take_away) for probe in probes_of("fp16")], axis=1)
    sides = (np.resize(side, (64, side.shape[1])) for side in both)
    return {name: codes(np.ascontiguousarray(side), "fp16") for name, side in zip("ab", sides, strict=True)}


def mask_operands() -> Arrays:
    """Masked ones of every pair of positions, and ones."""
    pairs = np.array(list(itertools.combinations(range(TERMS), 2)))
    return {"a": masks(TERMS, pairs, "fp16")[0].view(np.uint16), "b": np.full((16, TERMS), 0x3C00, np.uint16)}


def correlation_operands(images: int) -> Arrays:
    """The pixels' values over many images: a long k."""
    x = operands(images)
    return {"a": x, "b": x.copy()}


def similarity_operands() -> Arrays:
    """256 images by their 64 pixels: a short k."""
    x = np.ascontiguousarray(operands(256).T)
    return {"a": x, "b": x.copy()}


# --- figures ----------------------------------------------------------------------------------------------------
SHOWN = ("V100", "A100", "H100")  # a GPU of each family


def lost(kind: str, *gpus: str) -> Quantity:
    """How many ulp a probe is below its exact sum, rounded."""

    def read(r: Result) -> Any:
        bits = r.probed.sel(probe=[probe.id for probe in probes_of(kind)], gpu=[*gpus, "exact"]).astype(np.uint32)
        above = ordered(bits.values)
        return bits.copy(data=np.abs(above - above[:, -1:])).sel(gpu=[*gpus])

    return Quantity("ulp lost", read, read)


def formula(probe: Probe) -> str:
    """The sum as a figure writes it."""

    def number(x: float) -> str:
        significand, exponent = math.frexp(x)
        power = abs(significand) == 0.5 and abs(exponent) > 4
        return f"{'-' * (x < 0)}2^{{{exponent - 1}}}" if power else f"{x:.10g}"

    parts = [f"{count} \\times {number(a * b)}" if count > 1 else number(a * b) for a, b, count in probe.products]
    return f"${' + '.join([number(probe.c)] * bool(probe.c) + parts)}$".replace("+ -", "- ")


NAMES = {probe.id: formula(probe) for probe in PROBES.values()}
CELLS: dict[str, Any] = {"x": "gpu", "y": "probe", "names": NAMES, "numbers": "{:,.0f}", "most": 16,
                         "label": "ulp of FP32"}  # fmt: skip
E.figure(
    "probed",
    heat(lost("fp16", *SHOWN), title="FP16 products: ulp off the exact sum (emulated)", **CELLS),
    heat(lost("e4m3", *SETS["e4m3"]), title="FP8 (E4M3) products", **CELLS),
    size=(8, 7.2), height_ratios=[3, 1],
)  # fmt: skip


def above_one(x: Any) -> Any:
    """FP32 bits along c as numbers, both in units of 2**-24 above 1."""
    sums = x.copy(data=(x.values.astype(np.uint32).view(np.float32).astype(np.float64) - 1) * 2.0**24)
    return sums.assign_coords(c=(x.c.values - 1) * 2.0**24)


E.figure(
    "falls",
    line(of("sweep", exponent=-25, gpu=[*SHOWN]).then("sum", above_one), x="c", hue="gpu", marked=True,
         xlabel="$(c - 1) / 2^{-24}$; GPUs emulated, one of each family", ylabel="(sum $-$ 1) / $2^{-24}$",
         title="c and 8 products of $2^{-25}$: A100's sum falls as c reaches 1"),
    size=(8, 5),
)  # fmt: skip


@E.picture
def trees(r: Result) -> draw.Figure:
    """The summation trees of the first and the last family."""
    figure, panels = draw.panels(8, 6, 2, 1)
    for i, (ax, gpu) in enumerate(zip(panels, SHOWN[::2], strict=True)):
        tree = SumTree.from_sizes(r.tree_sizes.sel(gpu=gpu).values)
        draw.sum_tree(ax, tree, style=draw.look(i), labels=18)
        ax.set_title(f"{' '.join(GENERATIONS[FAMILY[gpu]])} (emulated): {max(tree.widths) - 1} + 1 terms at once")
    panels[-1].set_xlabel("term 0 is $c$, the others are products")
    return figure


E.figure(
    "products",
    *(heat(of("differing", form=form), x="one", y="other", numbers="{:,.0f}", label="elements",
           title=title) for form, title in (("FP32", "Elements of a real product that differ, of 4,096 (emulated)"),
                                            ("FP16", "Once stored as FP16"))),
    size=(8, 9),
)  # fmt: skip
E.figure(
    "beside_amd",
    heat(lost("amd", *AMD), title="FP16 products on AMD (mfma) and H100: ulp off the exact sum", **CELLS),
    bars(Quantity("elements", no_negatives, no_negatives), y="gpu", numbers="{:.0f}",
         xlabel="elements whose negated product is not the negative, of 4,096", title="MI300X rounds down"),
    size=(8, 6.6),
)  # fmt: skip
