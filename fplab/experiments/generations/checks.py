"""The claims about generations, each against published bits, the oracle on fractions, or a library."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import LabError
from ...hardware.cases import Arrays
from ...reveal import SumTree
from ..base import Check, Evidence, Outcome, failed, passed, verdict
from . import product, sweep
from .probes import FP8_GPUS, FP8_PROBES, FP16_PROBES, GENERATIONS, GPUS, LENGTHS, TINY, Probe, generation

if TYPE_CHECKING:
    from . import Params

ORACLE_ELEMENTS = ((9, 2), (20, 45), (61, 61))  # of the real product, one after the other by fractions
FSUM_STEP = 13  # every so many elements of the real product are summed by math.fsum


def probe_cells(i: int, kind: str, probe: Probe, gpus: tuple[str, ...]) -> Check:
    """One row of the table of probes: every GPU's cell, and the exact sum's."""

    def check(arrays: Arrays, params: Params) -> Outcome:
        got = dict(zip(gpus, arrays[f"{kind}_probes"][i].tolist(), strict=True)) | {
            "exact": int(arrays[f"{kind}_exact"][i])
        }
        want = {gpu: probe.known[gpu] for gpu in gpus} | {"exact": probe.exact}
        wrong = [f"{gpu} {got[gpu]:08x}, not {bits:08x}" for gpu, bits in want.items() if got[gpu] != bits]
        if wrong:
            return failed("; ".join(wrong))
        same = {bits: [gpu for gpu in want if want[gpu] == bits] for bits in dict.fromkeys(want.values())}
        return passed("; ".join(f"{bits:08x} {' '.join(names)}" for bits, names in same.items()))

    return Check(f"{probe.name}: every cell of the published table", Evidence.EXACT, check)


def oracle_agrees(arrays: Arrays, params: Params) -> Outcome:
    """Every probe by integers and fractions, and of every GPU a third of the sweeps and a real element."""
    compared = 0
    for kind, probes, gpus in (("fp16", FP16_PROBES, GPUS), ("fp8", FP8_PROBES, FP8_GPUS)):
        for (i, probe), (j, gpu) in itertools.product(enumerate(probes), enumerate(gpus)):
            want = by_fractions(*probe.factors, probe.c, gpu, probe.inputs)
            if (got := int(arrays[f"{kind}_probes"][i, j])) != want:
                return failed(f"{probe.name} on {gpu}: {got:08x}, the oracle {want:08x}")
            compared += 1
    for (i, (count, exponent)), (j, gpu) in itertools.product(enumerate(sweep.PRODUCTS), enumerate(GPUS)):
        a, b = ([factor] * count for factor in TINY[exponent])
        for at, c in list(enumerate(arrays["sweep_c"].view(np.float32).tolist()))[j % 3 :: 3]:
            want = by_fractions(a, b, c, gpu, "fp16")
            if (got := int(arrays["sweep"][i, j, at])) != want:
                return failed(
                    f"c = {c!r} and {count} products of 2^{exponent} on {gpu}: {got:08x}, the oracle {want:08x}"
                )
            compared += 1
    x = arrays["operands"].view(np.float16).astype(np.float32)
    for j, gpu in enumerate(GPUS):
        row, column = ORACLE_ELEMENTS[j % 3]
        want = by_fractions(x[row], x[column], 0.0, gpu, "fp16")
        if (got := int(arrays["real"][j, row, column])) != want:
            return failed(f"pixels {row} and {column} on {gpu}: {got:08x}, the oracle {want:08x}")
        compared += 1
    return passed(f"{compared:,} sums, every bit")


def by_fractions(a: Any, b: Any, c: float, gpu: str, inputs: str) -> int:
    """The FP32 bits that the oracle gives."""
    from ...tensorcore import get, oracle

    model = get(gpu, inputs)
    return oracle.result_bits(oracle.dot([float(v) for v in a], [float(v) for v in b], c, model), model)


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


def families_agree(arrays: Arrays, params: Params) -> Outcome:
    """GPUs of one family give the same bits; those of different families do not."""
    for i, j in itertools.combinations(range(len(GPUS)), 2):
        count, _ = product.difference(arrays["real"][i], arrays["real"][j])
        if (count == 0) != (generation(GPUS[i]) == generation(GPUS[j])):
            return failed(f"{GPUS[i]} and {GPUS[j]} differ in {count:,} elements")
    return passed(_counts(arrays["real"]))


def _counts(results: np.ndarray) -> str:
    """How many elements differ between the first GPUs of the families."""
    firsts = [GPUS.index(family[0]) for family in GENERATIONS.values()]
    parts = [
        f"{GPUS[i]}-{GPUS[j]} {int((results[i] != results[j]).sum()):,}" for i, j in itertools.combinations(firsts, 2)
    ]
    return f"of {results[0].size:,} elements differ: {', '.join(parts)}"


def half_hides_most(arrays: Arrays, params: Params) -> Outcome:
    """Rounded to FP16, as torch stores it, a product still tells the families apart, by a few elements."""
    half = np.stack([product.stored(bits) for bits in arrays["real"]])
    firsts = [GPUS.index(family[0]) for family in GENERATIONS.values()]
    shares = [float((half[i] != half[j]).mean()) for i, j in itertools.combinations(firsts, 2)]
    return verdict(all(0 < share < 0.05 for share in shares), _counts(half))


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


def one_thread_or_three(arrays: Arrays, params: Params) -> Outcome:
    """The real product again, with one thread and with three."""
    from ... import threads

    before = threads._count
    try:
        for count in (1, 3):
            threads.set_num_threads(count)
            for gpu in ("V100", "H100"):
                if (product.on_gpu(arrays["operands"], gpu) != arrays["real"][GPUS.index(gpu)]).any():
                    return failed(f"{gpu} with {count} threads gives other bits")
    finally:
        threads.set_num_threads(before)
    return passed("V100 and H100, 1 thread and 3")


CHECKS: tuple[Check, ...] = (
    *(probe_cells(i, "fp16", probe, GPUS) for i, probe in enumerate(FP16_PROBES)),
    *(probe_cells(i, "fp8", probe, FP8_GPUS) for i, probe in enumerate(FP8_PROBES)),
    Check("integers and fractions give the same bits: probes, sweeps, a real product", Evidence.EXACT,
          oracle_agrees),
    Check("on V100 the sum of c and four products of 2^-24 falls as c rises to 1", Evidence.EXACT, volta_falls),
    Check("every family falls: at products of 2^-24 (Volta), 2^-25 (Turing to Ada), 2^-26 (Hopper, Blackwell)",
          Evidence.EXACT, each_falls_once),
    Check("their summation trees are chains of nodes of 5, 9 and 17", Evidence.EXACT, trees_are_chains),
    Check("a real product has the same bits within a family, and others in the next", Evidence.EXACT, families_agree),
    Check("stored as FP16 it still differs between families, in fewer than 5% of elements", Evidence.EXACT,
          half_hides_most),
    Check("the exact product is what math.fsum gives", Evidence.LIBRARY, exact_is_fsum),
    Check("results do not depend on the thread count", Evidence.EXACT, one_thread_or_three),
)  # fmt: skip
