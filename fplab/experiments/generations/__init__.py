"""The same product in the bits of eight GPUs: probes, sums that fall while c rises, summation trees, a real product.

The real one: the correlations of the 64 pixels of handwritten digits, X X^T. X holds the first K images, every pixel
brought to mean 0 and variance 1 and rounded to FP16. Mean and variance come from integers, so that the same bits enter
everywhere. AMD's units stand apart, beside H100 (:mod:`.amd`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ... import draw, numeric
from ...errors import LabError
from ...hardware.cases import Arrays, Case
from ...hardware.core_cases import direct_case
from ...hardware.products import ONE_CHAIN, REDUCED, Plan, Product
from ...hardware.software import codes
from ...reveal import SumTree, masks
from ...words import CLAUSE, COMMA, joined, say
from ..base import Claim, Claims, Columns, Digested, Experiment, Tick, in_columns
from ..outcomes import Evidence, Outcome, Sample, failed, measured, passed, verdict
from . import amd, probes
from .probes import BF16_GPUS, BF16_PROBES, FP8_GPUS, FP8_PROBES, FP16_PROBES, GENERATIONS, GPUS, REPORTED, TINY, Probe

KINDS = (("fp16", FP16_PROBES, GPUS), ("fp8", FP8_PROBES, FP8_GPUS), ("bf16", BF16_PROBES, BF16_GPUS),
         ("amd", amd.PROBES, amd.GPUS))  # fmt: skip


@dataclass(frozen=True)
class Params:
    """``images``: digits in the real product, its K. ``terms``: c and the products of a summation tree."""

    images: int = 1792
    terms: int = 65


@dataclass(frozen=True)
class Result:
    """FP32 bits of every part, uint32.

    ``fp16_probes`` (probe, GPU), ``fp8_probes`` and ``bf16_probes`` with their exact sums; ``sweep`` (product, GPU, c);
    ``tree_sizes`` (GPU, term, term), int64; ``operands`` (pixel, image), FP16 codes, and the product of these with
    their transpose, ``real`` (GPU, pixel, pixel) and ``real_exact``. The same product on AMD's units, of ``amd.GPUS``,
    ``amd_real``, and with X negated on the left ``amd_negated``.
    """

    params: Params
    fp16_probes: Digested
    fp16_exact: Digested
    fp8_probes: Digested
    fp8_exact: Digested
    bf16_probes: np.ndarray
    bf16_exact: np.ndarray
    amd_probes: Digested
    amd_exact: Digested
    sweep_c: Digested
    sweep: Digested
    tree_sizes: Digested
    operands: Digested
    real: Digested
    real_exact: Digested
    amd_real: Digested
    amd_negated: Digested

    def cells(self, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """The probes' bits by GPU, and those of the exact sums."""
        return getattr(self, f"{kind}_probes"), getattr(self, f"{kind}_exact")

    def products(self) -> dict[str, np.ndarray]:
        return dict(zip((*GPUS, "exact"), (*self.real, self.real_exact), strict=True))

    def of_amd(self) -> dict[str, np.ndarray]:
        return dict(zip(amd.GPUS, self.amd_real, strict=True))


def run(params: Params, tick: Tick) -> Result:
    tick(0.0, "probes")
    probed = {}
    for kind, some, gpus in KINDS:
        probed[f"{kind}_probes"] = probes.results(some, gpus)
        probed[f"{kind}_exact"] = np.array([probes.rounded(p.sum) for p in some], np.uint32)
    sweep = probes.sweeps()
    tick(0.2, "summation trees")
    sizes = np.stack([probes.tree(gpu, params.terms).sizes for gpu in GPUS])
    tick(0.4, "a real product on eight GPUs")
    x = operands(params.images)
    real = np.stack([on_gpu(x, gpu) for gpu in GPUS])
    of_amd = np.stack([on_gpu(x, gpu) for gpu in amd.GPUS])
    negated = np.stack([on_gpu(x, gpu, -1.0) for gpu in amd.GPUS])
    tick(0.8, "the same product exactly")
    return Result(
        params, **probed, sweep_c=probes.accumulators(), sweep=sweep, tree_sizes=sizes, operands=x, real=real,
        real_exact=exactly(x), amd_real=of_amd, amd_negated=negated,
    )  # fmt: skip


def operands(images: int) -> np.ndarray:
    """X as FP16 codes (64, images): pixels by images. A pixel that never changes is zero."""
    from ...training.data import digits

    x = digits("all").images[:images].reshape(-1, 64).astype(np.int64)
    total = x.sum(axis=0)
    spread = len(x) * (x * x).sum(axis=0) - total**2
    scale = np.sqrt(np.maximum(spread, 1).astype(np.float64))
    standard = np.where(spread > 0, (len(x) * x - total) / scale, 0.0).astype(np.float16)
    return np.ascontiguousarray(standard.T).view(np.uint16)


def on_gpu(x: np.ndarray, gpu: str, sign: float = 1.0) -> np.ndarray:
    """X X^T on a GPU, X times ``sign`` on the left, from FP16 to FP32, one chain of ascending k: FP32 bits (64, 64)."""
    from ... import tensorcore

    found = x.view(np.float16).astype(np.float32)
    return tensorcore.matmul(sign * found, found.T, gpu=gpu).view(np.uint32)


def exactly(x: np.ndarray) -> np.ndarray:
    """X X^T with one rounding: FP32 bits (64, 64)."""
    found = x.view(np.float16).astype(np.float32)
    return np.asarray(numeric.dot(found[:, None], found[None], "fp16", accumulate="exact", store="fp32")).view(
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


def rows(result: Result) -> Columns:
    """A row per probe and GPU, then one per pair of GPUs (and exact) of the real product."""
    names = ("case", "GPU", "against", "bits", "bits against", "elements that differ", "largest difference in ulp")
    rows: list[tuple[Any, ...]] = []
    for kind, some, gpus in KINDS:
        for probe, cells, want in zip(some, *result.cells(kind), strict=True):
            for gpu, got in zip(gpus, cells, strict=True):
                differing, ulps = difference(got, want)
                rows.append((probe.name, gpu, "exact", f"{got:08x}", f"{want:08x}", differing, ulps))
    shape = f"64x64x{result.params.images}"
    for products in (result.products(), result.of_amd()):
        for (one, x), (other, y) in itertools.combinations(products.items(), 2):
            rows.append((f"pixel correlations {shape}", one, other, "", "", *difference(x, y)))
    return in_columns(names, rows)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()
ELEMENTS = ((9, 2), (20, 45), (61, 61))  # of the real product, one after the other by fractions
DRAWS = 3  # parts of the images
FEW = 0.05  # of the elements: what FP16, 13 bits shorter than FP32, may leave of the differences
FSUM_STEP = 13  # every so many elements of the real product are summed by math.fsum


def published(gpu: str, inputs: str, a: Sequence[float], b: Sequence[float], c: float) -> int:
    """The FP32 bits of a sum as papers describe a GPU."""
    if (gpu, inputs) in REPORTED:
        return probes.by_blocks(a, b, c, REPORTED[gpu, inputs])
    return amd.defined(gpu, a, b, c)


def cells_follow(kind: str, i: int, result: Result) -> Outcome:
    """One row of the table of probes: every GPU's cell by the definition on fractions, and the exact sum's."""
    _, some, gpus = next(one for one in KINDS if one[0] == kind)
    probe, (cells, exact) = some[i], result.cells(kind)
    got = dict(zip((*gpus, "exact"), (*cells[i].tolist(), int(exact[i])), strict=True))
    a, b = (side.tolist() for side in probe.factors)
    want = {gpu: published(gpu, probe.inputs, a, b, probe.c) for gpu in gpus} | {"exact": probe.exact}
    wrong = [f"{gpu} {got[gpu]:08x} ≠ {bits:08x}" for gpu, bits in want.items() if got[gpu] != bits]
    if wrong:
        return failed(joined(wrong, CLAUSE))
    same = {bits: " ".join(gpu for gpu in gpus if want[gpu] == bits) for bits in dict.fromkeys(want.values())}
    cell = "{:08x} {}".format
    texts = [say("{cell} exact", cell=cell(bits, names).rstrip()) if bits == probe.exact else cell(bits, names)
             for bits, names in same.items()]  # fmt: skip
    return passed(joined(texts, CLAUSE))


for _kind, _some, _ in KINDS:
    for _i, _probe in enumerate(_some):
        _text = say("{probe}: each cell follows from the reported blocks and alignments", probe=say(_probe.name))
        if _kind == "amd":
            _text = say("{probe}: each cell, AMD's too, follows from what is published", probe=say(_probe.name))
        CLAIMS.append(Claim(_probe.id, Evidence.PROVED, _text, partial(cells_follow, _kind, _i)))


@CLAIMS.proved("the sums around c = 1 and elements of a real product follow from them, too")
def follows(result: Result) -> Outcome:
    """Of every GPU a third of the sweeps and an element of the real product, by the definition on fractions."""
    compared = 0
    for (i, (count, exponent)), (j, gpu) in itertools.product(enumerate(probes.PRODUCTS), enumerate(GPUS)):
        a, b = ([factor] * count for factor in TINY[exponent])
        for at, c in list(enumerate(result.sweep_c.view(np.float32).tolist()))[j % 3 :: 3]:
            want = probes.by_blocks(a, b, c, REPORTED[gpu, "fp16"])
            if (got := int(result.sweep[i, j, at])) != want:
                said = say(
                    "c = {c}, {count} products of 2^{exponent} on {gpu}: {got:08x}, not {want:08x}", c=c, gpu=gpu
                )
                return failed(said.fill(count=count, exponent=exponent, got=got, want=want))
            compared += 1
    x = result.operands.view(np.float16).astype(np.float64).tolist()
    for j, gpu in enumerate(GPUS):
        row, column = ELEMENTS[j % 3]
        want = probes.by_blocks(x[row], x[column], 0.0, REPORTED[gpu, "fp16"])
        if (got := int(result.real[j, row, column])) != want:
            said = say("pixels {i} and {j} on {gpu}: {got:08x}, not {want:08x}", i=row, j=column, gpu=gpu)
            return failed(said.fill(got=got, want=want))
        compared += 1
    return passed(say("{n:,} sums, every bit", n=compared))


@CLAIMS.proved("elements of a real product on MI100, MI210 and MI300X follow from what is published of them")
def amd_follows(result: Result) -> Outcome:
    x = result.operands.view(np.float16).astype(np.float64)
    for j, gpu in enumerate(amd.GPUS[1:], 1):
        row, column = ELEMENTS[j % 3]
        for sign, real in ((1, result.amd_real), (-1, result.amd_negated)):
            want = amd.defined(gpu, (sign * x[row]).tolist(), x[column].tolist(), 0.0)
            if (got := int(real[j, row, column])) != want:
                said = say("pixels {i} and {j} on {gpu}: {got:08x}, not {want:08x}", i=row, j=column, gpu=gpu)
                return failed(said.fill(got=got, want=want))
    return passed(say("{n:,} sums, every bit", n=2 * (len(amd.GPUS) - 1)))


@CLAIMS.proved("MI300X rounds down: negating A and C does not negate D, as it does on H100, MI100 and MI210")
def asymmetric(result: Result) -> Outcome:
    zero, sign = np.uint32(0), np.uint32(0x80000000)
    one, other = (result.amd_probes[i] for i in (amd.DOWN, amd.UP))
    back = np.where(result.amd_negated << np.uint32(1) == zero, zero, result.amd_negated ^ sign)
    counts = {gpu: int((x != y).sum()) for gpu, x, y in zip(amd.GPUS, result.amd_real, back, strict=True)}
    holds = [int(x) != int(y ^ sign) for x, y in zip(one, other, strict=True)] == [gpu == "MI300X" for gpu in amd.GPUS]
    holds = holds and [count > 0 for count in counts.values()] == [gpu == "MI300X" for gpu in amd.GPUS]
    texts = [f"{gpu} {count:,}" for gpu, count in counts.items()]
    return verdict(holds, say("elements that are no negatives: {counts}", counts=joined(texts, COMMA)))


@CLAIMS.proved("MI210 takes subnormal operands and a subnormal C for zeros; H100, MI100 and MI300X keep them")
def flushes(result: Result) -> Outcome:
    found = {gpu: [int(result.amd_probes[i, j]) for i in (amd.OPERAND, amd.C)] for j, gpu in enumerate(amd.GPUS)}
    kept = [amd.PROBES[i].exact for i in (amd.OPERAND, amd.C)]
    holds = all(bits == ([0, 0] if gpu == "MI210" else kept) for gpu, bits in found.items())
    texts = [f"{gpu} {' '.join(f'{x:08x}' for x in bits)}" for gpu, bits in found.items()]
    return verdict(holds, joined(texts, COMMA))


@CLAIMS.proved("on V100 the sum of c and four products of 2^-24 falls as c rises to 1")
def volta_falls(result: Result) -> Outcome:
    last = slice(probes.BELOW - 1, probes.BELOW + 1)
    before, at = result.sweep[probes.PRODUCTS.index((4, -24)), GPUS.index("V100"), last].tolist()
    holds = result.sweep_c[last].tolist() == [0x3F7FFFFF, 0x3F800000] and (before, at) == (0x3F800001, 0x3F800000)
    return verdict(holds, say("1 - 2^-24 gives {before:08x}, 1 gives {at:08x}", before=before, at=at))


@CLAIMS.proved("every family falls: at products of 2^-24 (Volta), 2^-25 (Turing to Ada), 2^-26 (Hopper, Blackwell)")
def each_falls_once(result: Result) -> Outcome:
    for (count, exponent), found in zip(probes.PRODUCTS, probes.falls(result.sweep).tolist(), strict=True):
        if found != [int(probes.LENGTHS[probes.generation(gpu)] == count) for gpu in GPUS]:
            said = say("{count} products of 2^{exponent}: falls {falls}", count=count, exponent=exponent)
            return failed(said.fill(falls=dict(zip(GPUS, found, strict=True))))
    said = say("{n} values of c around 1, 3 sizes of products, {gpus} GPUs", n=result.sweep.shape[-1], gpus=len(GPUS))
    return passed(said)


@CLAIMS.proved("their summation trees are chains of nodes of 5, 9 and 17")
def trees_are_chains(result: Result) -> Outcome:
    texts = []
    for gpu, sizes in zip(GPUS, result.tree_sizes, strict=True):
        length = probes.LENGTHS[probes.generation(gpu)]
        try:
            tree = SumTree.from_sizes(sizes)
        except LabError as error:
            return failed(f"{gpu}: {error}")
        if tree != probes.chain(len(sizes), length):
            return failed(f"{gpu}: {tree}")
        texts.append(f"{gpu} {length}+1")
    return passed(say("{n} terms: {trees}", n=result.params.terms, trees=joined(texts, COMMA)))


@CLAIMS.measured("stored as FP16 a real product still differs between families, in fewer than 5% of elements")
def half_hides_most(result: Result) -> Outcome:
    """Rounded to FP16, as torch stores it, a product still tells the families apart, by a few elements.

    The product is that of a third of the images each time: other digits, so independent draws.
    """
    shares, counts = [], []
    for part in np.array_split(result.operands, DRAWS, axis=1):
        found = [on_gpu(np.ascontiguousarray(part), family[0]) for family in GENERATIONS.values()]
        pairs = list(itertools.combinations(found, 2))
        shares.append([float((stored(x) != stored(y)).mean()) for x, y in pairs])
        counts.append([int((x != y).sum()) for x, y in pairs])
    share = np.array(shares)
    said = say("{low:.2%} to {high:.2%}; in FP32 {few:,} to {many:,} of {all:,}", low=share.min(), high=share.max())
    said = said.fill(few=np.min(counts), many=np.max(counts), all=64 * 64)
    sample = Sample(DRAWS, float(share.max(axis=1).std(ddof=1)), FEW)
    return measured(bool(((share > 0) & (share < FEW)).all()), said, sample)


@CLAIMS.library("the exact product is what math.fsum gives")
def exact_is_fsum(result: Result) -> Outcome:
    x = result.operands.view(np.float16).astype(np.float64)
    places = list(itertools.product(range(64), range(64)))[::FSUM_STEP]
    got = np.array([math.fsum((x[i] * x[j]).tolist()) for i, j in places]).astype(np.float32).view(np.uint32)
    want = np.array([result.real_exact[i, j] for i, j in places])
    for at in np.flatnonzero(got != want):
        said = say("pixels {i} and {j}: {want:08x}, math.fsum {got:08x}", want=int(want[at]), got=int(got[at]))
        return failed(said.fill(i=places[at][0], j=places[at][1]))
    return passed(say("{n} elements", n=len(places)))


# --- what a GPU must compute ------------------------------------------------------------------------------------
# torch adds no FP32 accumulator to a product of half tensors, so c is a block of products of its own, before the
# probe's; and it stores half tensors, so a third block takes the 1 away again, which leaves the bits that matter. Where
# torch can return FP32 the same is done without the third block.

BLOCK = 16  # the longest block of a GPU: c, products and the end each fill whole blocks everywhere
TERMS = 64  # whose tree is revealed
# 1 - 2**-24 as four products of FP16 that one block of any GPU adds exactly.
JUST_BELOW_ONE = ((0.5, 1.0), (0.5, 1 - 2.0**-11), (2.0**-12, 1 - 2.0**-11), TINY[-24])
ACCUMULATORS = {
    1.0: ((1.0, 1.0),),
    -1.0: ((-1.0, 1.0),),
    1 - 2.0**-24: JUST_BELOW_ONE,
    2.0**-20: ((2.0**-10, 2.0**-10),),
}
# In which a library may take a long k.
ORDERS: dict[str, Plan] = {f"split-K {n}": {"split_k": n} for n in (2, 3, 4, 6, 7, 8, 12, 14, 16)}
ORDERS |= {f"{n} accumulators": {"accumulators": n} for n in (2, 4, 8)}


def cases(params: Params) -> Iterator[Case]:
    correlations = partial(correlation_operands, params.images)
    inputs: tuple[tuple[str, Callable[[], Arrays], Callable[[], Arrays]], ...] = (
        ("probes", partial(probe_operands, True), partial(probe_operands, False)),
        (f"masked ones of {TERMS} terms", mask_operands, mask_operands),
        ("similarities of 256 digits, k = 64", similarity_operands, similarity_operands),
        (f"correlations of 64 pixels, k = {params.images}", correlations, correlations),
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
    c = np.array(ACCUMULATORS[probe.c], np.float32).T
    pieces = [c, np.stack(probe.factors), np.array(end, np.float32).reshape(-1, 2).T]
    padded = [np.pad(piece, ((0, 0), (0, BLOCK - piece.shape[1]))) for piece in pieces]
    return np.concatenate(padded[: 3 if take_away else 2], axis=1)


def probe_operands(take_away: bool) -> Arrays:
    """All probes as rows of A and of B, 64 of each: the results on the diagonal are the probes."""
    both = np.stack([probe_rows(probe, take_away) for probe in FP16_PROBES], axis=1)
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
SHOWN = {"V100": 1, "A100": 2, "H100": 0}  # a GPU of each family, and its look
WHY = (
    "GPUs are emulated. Filled: not the exact sum, rounded once. Before they are added,\n"
    "all terms of a block are cut to multiples of $2^{e-F}$, with $e$ the largest exponent.\n"
    "FP16: $F$ = 23 on V100, 24 from T4 to L40S, 25 from H100.\n"
    "FP8: $F$ = 13 on Ada and Hopper, 25 on Blackwell."
)
ULPS = (0, 1, 2, 4, 16, 64)  # edges of the classes of differences in the maps


def probed(result: Result) -> draw.Figure:
    figure, (above, below) = draw.panels(8, 8, 2, 1, height_ratios=[7.3, 3.3])
    families = list(GENERATIONS.values())
    firsts = [GPUS.index(family[0]) for family in families]
    heads = ["\n".join((" ".join(family[:2]), " ".join(family[2:]))).strip() for family in families]
    draw_probes(above, FP16_PROBES, heads, result.fp16_probes[:, firsts], result.fp16_exact, as_value=False)
    above.set_title("FP16 products: bits of the FP32 result")
    heads = ["Ada", "H100\nwgmma", "B200\ntcgen05"]
    draw_probes(below, FP8_PROBES, heads, result.fp8_probes, result.fp8_exact, as_value=True)
    below.set_title("FP8 (E4M3) products")
    figure.supxlabel(WHY, x=0.02, ha="left", fontsize=9, color=draw.current().muted)
    return figure


def draw_probes(
    ax: draw.Axes, some: tuple[Probe, ...], heads: list[str], cells: np.ndarray, exact: np.ndarray, as_value: bool
) -> None:
    """Bits by probe and GPU; a cell is filled and says how far off it is where it is not the exact sum, rounded."""
    from matplotlib.patches import Rectangle

    theme = draw.current()
    ax.set(xlim=(-1.75, len(heads) + 1), ylim=(len(some), -0.9))
    ax.axis("off")
    for j, head in enumerate([*heads, "exact, to\nnearest"]):
        ax.text(j + 0.5, -0.12, head, ha="center", va="bottom", fontsize=9, fontweight="bold", linespacing=1.1)
    for i, (probe, row, want) in enumerate(zip(some, cells.tolist(), exact.tolist(), strict=True)):
        ax.text(-1.75, i + 0.5, probe.label, va="center", fontsize=10)
        for j, got in enumerate([*row, want]):
            off, last = int(ordered(np.uint32(got)) - ordered(np.uint32(want))), j == len(heads)
            if not last:
                fill = {"facecolor": theme.sign} if off else {"facecolor": theme.grid, "alpha": 0.55}
                ax.add_patch(Rectangle((j + 0.03, i + 0.06), 0.94, 0.88, linewidth=0, **fill))
            ax.text(j + 0.5, i + 0.33, f"{got:08x}", ha="center", va="center", fontsize=9.5, family="monospace")
            ax.text(j + 0.5, i + 0.7, beneath(got, off, last or as_value), ha="center", va="center", fontsize=9,
                    color=theme.ink if off else theme.muted)  # fmt: skip


def beneath(bits: int, off: int, as_value: bool) -> str:
    """What stands below a cell's bits: its value, or how far off it is."""
    value = float(np.uint32(bits).view(np.float32))
    if as_value:
        return f"{value:.10g}" if 1e-3 < abs(value) < 1e6 else f"{value:.4g}"
    if not off:
        return "as exact"
    return "nothing left" if bits == 0 else f"{-off:,} ulp lost" if off < 0 else f"{off:,} ulp too much"


def falls(result: Result) -> draw.Figure:
    """The sum against c, at three sizes of products: the family that falls is the one whose line steps down at 1."""
    figure = draw.new_figure(8, 9)
    for i, ax in enumerate(figure.subplots(3, 1, sharex=True)):
        draw_fall(ax, result, i)
    ax.set_xlabel("$(c - 1) / 2^{-24}$; GPUs emulated, one of each family")
    return figure


def draw_fall(ax: draw.Axes, result: Result, i: int) -> None:
    (count, exponent), theme, unit = probes.PRODUCTS[i], draw.current(), 2.0**-24
    x = (result.sweep_c.view(np.float32).astype(np.float64) - 1) / unit
    ax.plot(x, x + 4, color=theme.muted, linewidth=1, linestyle=(0, (1, 1.5)))
    ends = [(float(x[-1] + 4), "exact", theme.muted)]
    fallen = []
    for gpu, at in SHOWN.items():
        style, row = draw.look(at), result.sweep[i, GPUS.index(gpu)]
        y = (row.view(np.float32).astype(np.float64) - 1) / unit
        bold = bool(probes.falls(row))
        width, size, order = (2.4, 5, 3) if bold else (1.2, 3, 2)
        ax.plot(x, y, **style.marked, linewidth=width, markersize=size, zorder=order)
        ends.append((float(y[-1]), gpu, style.color))
        if bold:
            fallen.append(gpu)
            ax.annotate("falls", (x[probes.BELOW], y[probes.BELOW]), (14, -20), textcoords="offset points",
                        color=style.color, fontsize=9, fontweight="bold",
                        arrowprops={"arrowstyle": "-|>", "color": style.color})  # fmt: skip
    ax.axvline(0, color=theme.muted, linewidth=0.8, linestyle=(0, (3, 2)))
    ax.set(xlim=(x[0], x[-1]), ylabel="(sum $-$ 1) / $2^{-24}$",
           title=rf"$c + {count} \times 2^{{{exponent}}}$: {' '.join(fallen) or 'none'} not monotonic")  # fmt: skip
    draw.label_ends(ax, ends)


def trees(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 8, 3, 1)
    for ax, (gpu, at), family in zip(panels, SHOWN.items(), GENERATIONS.values(), strict=True):
        tree = SumTree.from_sizes(result.tree_sizes[GPUS.index(gpu)])
        draw.sum_tree(ax, tree, style=draw.look(at), labels=18)
        ax.set_title(f"{' '.join(family)} (emulated): {max(tree.widths) - 1} + 1 terms at once")
    panels[-1].set_xlabel("term 0 is $c$, the others are products")
    return figure


def products(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 9.5)
    panels = figure.subplot_mosaic([["pairs", "pairs"], ["one", "other"]], height_ratios=[1.4, 1])
    draw_pairs(panels["pairs"], result)
    draw_map(panels["one"], result.products(), "V100", "A100")
    draw_map(panels["other"], result.products(), "A100", "H100")
    figure.legend(handles=legend(), loc="outside lower center", ncols=6, title="ulp of FP32")
    return figure


def draw_pairs(ax: draw.Axes, result: Result) -> None:
    from matplotlib.patches import Rectangle

    theme, every = draw.current(), result.products()
    wide, half = list(every.values()), [stored(x) for x in every.values()]
    n = len(every)
    for i, j in itertools.product(range(n), range(n)):
        above = j > i
        differing = int(((wide if above else half)[i] != (wide if above else half)[j]).sum())
        if i == j or differing:
            color = theme.grid if i == j else theme.sign if above else theme.fraction
            ax.add_patch(Rectangle((j, i), 1, 1, facecolor=color, linewidth=0))
        if i != j:
            ax.text(j + 0.5, i + 0.5, f"{differing:,}", ha="center", va="center", fontsize=9,
                    color=theme.ink if differing else theme.muted)  # fmt: skip
    ax.set(xlim=(0, n), ylim=(n, 0))
    ax.set_xticks(np.arange(n) + 0.5, list(every))
    ax.set_yticks(np.arange(n) + 0.5, list(every))
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set(title=f"{wide[0].size:,} correlations of digits, K = {result.params.images:,}, GPUs emulated",
           xlabel="elements that differ: above in FP32, below stored as FP16")  # fmt: skip


def beside_amd(result: Result) -> draw.Figure:
    from ...draw.style import new_figure

    figure = new_figure(8, 10)
    panels = figure.subplot_mosaic([["cells", "cells"], ["one", "other"]], height_ratios=[1.6, 1])
    heads = ["H100\nTensor Core", "MI100\nCDNA1", "MI210\nCDNA2", "MI300X\nCDNA3"]
    draw_probes(panels["cells"], amd.PROBES, heads, result.amd_probes, result.amd_exact, as_value=False)
    panels["cells"].set_title("AMD's Matrix Cores (mfma) beside H100, emulated: FP16 products")
    draw_map(panels["one"], result.of_amd(), "H100", "MI300X")
    negated = result.amd_negated[amd.GPUS.index("MI300X")] ^ np.uint32(0x80000000)
    draw_map(panels["other"], {**result.of_amd(), "its negated negative": negated}, "MI300X", "its negated negative")
    figure.legend(handles=legend(), loc="outside lower center", ncols=6, title="ulp of FP32")
    return figure


def draw_map(ax: draw.Axes, products: dict[str, np.ndarray], one: str, other: str) -> None:
    from matplotlib.colors import ListedColormap

    x, y = products[one], products[other]
    classes = np.searchsorted(ULPS, np.abs(ordered(x) - ordered(y)), side="right") - 1
    ax.imshow(classes, cmap=ListedColormap(shades()), vmin=0, vmax=len(ULPS) - 1, interpolation="nearest")
    ax.set_xticks([0, 16, 32, 48, 63])
    ax.set_yticks([0, 16, 32, 48, 63])
    ax.grid(visible=False)
    ax.set(xlabel="pixel  (empty lines: they never change)", ylabel="pixel", title=f"{one} against {other}")


def shades() -> list[Any]:
    """From nothing, for no difference, through the theme's second colour to its ink."""
    from matplotlib.colors import to_rgb

    return [*((*to_rgb(draw.current().series[1]), share) for share in (0, 0.25, 0.5, 0.75, 1)), draw.current().ink]


def legend() -> list[Any]:
    from matplotlib.patches import Patch

    edges = [str(u) if v == u + 1 else f"{u} to {v - 1}" for u, v in itertools.pairwise(ULPS)]
    texts = ["same bits", *edges[1:], f"{ULPS[-1]} and more"]
    how: dict[str, Any] = {"edgecolor": draw.current().muted, "linewidth": 0.5}
    return [Patch(facecolor=shade, label=text, **how) for shade, text in zip(shades(), texts, strict=True)]


EXPERIMENT = Experiment(
    title=say("One product, eight GPUs"),
    question=say("Which bits of a product depend on the GPU that computed it, and why?"),
    budget=2.0, full=Params(), quick=Params(images=768, terms=33), result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(probed, falls, trees, products, beside_amd), cases=cases,
)  # fmt: skip
