"""The claims about generations, each against the definition on fractions or a library."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from ...errors import LabError
from ...hardware.cases import Arrays
from ...reveal import SumTree
from ..base import Evidence, Outcome, Sample, failed, measured, passed, verdict
from ..legacy import Check
from . import product, sweep
from .probes import (
    BF16_GPUS,
    BF16_PROBES,
    FP8_GPUS,
    FP8_PROBES,
    FP16_PROBES,
    GENERATIONS,
    GPUS,
    LENGTHS,
    REPORTED,
    TINY,
    Probe,
    by_blocks,
    generation,
)  # fmt: skip

if TYPE_CHECKING:
    from . import Params

ELEMENTS = ((9, 2), (20, 45), (61, 61))  # of the real product, one after the other by fractions
DRAWS = 3  # parts of the images
FEW = 0.05  # of the elements: what FP16, 13 bits shorter than FP32, may leave of the differences
FSUM_STEP = 13  # every so many elements of the real product are summed by math.fsum


def probe_cells(i: int, kind: str, probe: Probe, gpus: tuple[str, ...]) -> Check:
    """One row of the table of probes: every GPU's cell by the definition on fractions, and the exact sum's."""

    def check(arrays: Arrays, params: Params) -> Outcome:
        got = dict(zip(gpus, arrays[f"{kind}_probes"][i].tolist(), strict=True)) | {
            "exact": int(arrays[f"{kind}_exact"][i])
        }
        a, b = (side.tolist() for side in probe.factors)
        want = {gpu: by_blocks(a, b, probe.c, REPORTED[gpu, probe.inputs]) for gpu in gpus} | {"exact": probe.exact}
        wrong = [f"{gpu} {got[gpu]:08x}, not {bits:08x}" for gpu, bits in want.items() if got[gpu] != bits]
        if wrong:
            return failed("; ".join(wrong))
        same = {bits: [gpu for gpu in want if want[gpu] == bits] for bits in dict.fromkeys(want.values())}
        return passed("; ".join(f"{bits:08x} {' '.join(names)}" for bits, names in same.items()))

    return Check(f"{probe.name}: each cell follows from the reported blocks and alignments", Evidence.PROVED, check)


def follows(arrays: Arrays, params: Params) -> Outcome:
    """Of every GPU a third of the sweeps and an element of the real product, by the definition on fractions."""
    compared = 0
    for (i, (count, exponent)), (j, gpu) in itertools.product(enumerate(sweep.PRODUCTS), enumerate(GPUS)):
        a, b = ([factor] * count for factor in TINY[exponent])
        for at, c in list(enumerate(arrays["sweep_c"].view(np.float32).tolist()))[j % 3 :: 3]:
            want = by_blocks(a, b, c, REPORTED[gpu, "fp16"])
            if (got := int(arrays["sweep"][i, j, at])) != want:
                return failed(f"c = {c!r}, {count} products of 2^{exponent} on {gpu}: {got:08x}, not {want:08x}")
            compared += 1
    x = arrays["operands"].view(np.float16).astype(np.float64).tolist()
    for j, gpu in enumerate(GPUS):
        row, column = ELEMENTS[j % 3]
        want = by_blocks(x[row], x[column], 0.0, REPORTED[gpu, "fp16"])
        if (got := int(arrays["real"][j, row, column])) != want:
            return failed(f"pixels {row} and {column} on {gpu}: {got:08x}, not {want:08x}")
        compared += 1
    return passed(f"{compared:,} sums, every bit")


def volta_falls(arrays: Arrays, params: Params) -> Outcome:
    """Four products of 2^-24 on V100: c = 1 gives 1, and the number before it gives more."""
    row = arrays["sweep"][sweep.PRODUCTS.index((4, -24)), GPUS.index("V100")]
    before, at = (int(v) for v in row[sweep.BELOW - 1 : sweep.BELOW + 1])
    same = arrays["sweep_c"][sweep.BELOW - 1 : sweep.BELOW + 1].tolist() == [0x3F7FFFFF, 0x3F800000]
    return verdict(same and (before, at) == (0x3F800001, 0x3F800000), f"1 - 2^-24 gives {before:08x}, 1 gives {at:08x}")


def each_falls_once(arrays: Arrays, params: Params) -> Outcome:
    """Each family falls, once, with products of its own size, and never with those of the other two."""
    found = sweep.falls(arrays["sweep"])
    for i, (count, exponent) in enumerate(sweep.PRODUCTS):
        want = [int(LENGTHS[generation(gpu)] == count) for gpu in GPUS]
        if found[i].tolist() != want:
            falls = dict(zip(GPUS, found[i].tolist(), strict=True))
            return failed(f"{count} products of 2^{exponent}: falls {falls}")
    return passed(f"{arrays['sweep'].shape[-1]} values of c around 1, 3 sizes of products, {len(GPUS)} GPUs")


def trees_are_chains(arrays: Arrays, params: Params) -> Outcome:
    """What masked ones reveal, against chains of nodes of 5, 9 and 17."""
    texts = []
    for gpu, sizes in zip(GPUS, arrays["tree_sizes"], strict=True):
        length = LENGTHS[generation(gpu)]
        try:
            tree = SumTree.from_sizes(sizes)
        except LabError as error:
            return failed(f"{gpu}: {error}")
        if tree != sweep.chain(len(sizes), length):
            return failed(f"{gpu}: {tree}")
        texts.append(f"{gpu} {length}+1")
    return passed(f"{params.terms} terms: {', '.join(texts)}")


def half_hides_most(arrays: Arrays, params: Params) -> Outcome:
    """Rounded to FP16, as torch stores it, a product still tells the families apart, by a few elements.

    The product is that of a third of the images each time: other digits, so independent draws.
    """
    firsts = [family[0] for family in GENERATIONS.values()]
    shares, counts = [], []
    for part in np.array_split(arrays["operands"], DRAWS, axis=1):
        bits = np.stack([product.on_gpu(np.ascontiguousarray(part), gpu) for gpu in firsts])
        half = product.stored(bits)
        pairs = list(itertools.combinations(range(len(firsts)), 2))
        shares.append([float((half[i] != half[j]).mean()) for i, j in pairs])
        counts.append([int((bits[i] != bits[j]).sum()) for i, j in pairs])
    found = np.array(shares)
    sample = Sample(DRAWS, float(found.max(axis=1).std(ddof=1)), FEW)
    detail = f"{found.min():.2%} to {found.max():.2%}; in FP32 {np.min(counts):,} to {np.max(counts):,} of {64 * 64:,}"
    return measured(bool(((found > 0) & (found < FEW)).all()), detail, sample)


def exact_is_fsum(arrays: Arrays, params: Params) -> Outcome:
    """Python's own exact sum of the products, which float64 holds, rounded to float64 and then to float32."""
    x = arrays["operands"].view(np.float16).astype(np.float64)
    places = list(itertools.product(range(64), range(64)))[::FSUM_STEP]
    got = np.array([math.fsum((x[i] * x[j]).tolist()) for i, j in places]).astype(np.float32).view(np.uint32)
    want = np.array([arrays["real_exact"][i, j] for i, j in places])
    differ = np.flatnonzero(got != want)
    if differ.size:
        i, j = places[int(differ[0])]
        return failed(f"pixels {i} and {j}: {int(want[differ[0]]):08x}, math.fsum {int(got[differ[0]]):08x}")
    return passed(f"{len(places)} elements")


PROVED = Evidence.PROVED
CHECKS: tuple[Check, ...] = (
    *(probe_cells(i, "fp16", probe, GPUS) for i, probe in enumerate(FP16_PROBES)),
    *(probe_cells(i, "fp8", probe, FP8_GPUS) for i, probe in enumerate(FP8_PROBES)),
    *(probe_cells(i, "bf16", probe, BF16_GPUS) for i, probe in enumerate(BF16_PROBES)),
    Check("the sums around c = 1 and elements of a real product follow from them, too", PROVED, follows),
    Check("on V100 the sum of c and four products of 2^-24 falls as c rises to 1", PROVED, volta_falls),
    Check("every family falls: at products of 2^-24 (Volta), 2^-25 (Turing to Ada), 2^-26 (Hopper, Blackwell)",
          PROVED, each_falls_once),
    Check("their summation trees are chains of nodes of 5, 9 and 17", PROVED, trees_are_chains),
    Check("stored as FP16 a real product still differs between families, in fewer than 5% of elements",
          Evidence.MEASURED, half_hides_most),
    Check("the exact product is what math.fsum gives", Evidence.LIBRARY, exact_is_fsum),
)  # fmt: skip
