"""The experiment on generations: published cells, every one of which is checked, and what its cases hold."""

import dataclasses
import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.frame import CELLS, Mutant, claim_of, failing, frame, put, record, repeats
from fplab.experiments import generations
from fplab.experiments.generations import amd, probes
from fplab.hardware.core_cases import lab_product
from fplab.hardware.products import ONE_CHAIN
from fplab.reveal import SumTree

QUICK = generations.EXPERIMENT.quick
SPECIFICATION = Path(__file__).resolve().parents[3] / "shared" / "spec" / "tensor-cores.md"


def off(name: str, place: Any, value: Any = None) -> Any:
    """One number replaced, or its lowest bit flipped."""
    return put(name, place, (lambda bits: bits ^ 1) if value is None else value)


HALF = ("fp16", "bf16")
MUTANTS = (
    Mutant("A100 in blocks of four", ("follows", "each_falls_once", "trees_are_chains"), CELLS,
           record("A100", *HALF, length=4)),
    Mutant("A100's floor at -126", ("bf16_smallest",), CELLS, record("A100", *HALF, floor=-126)),
    Mutant("zeros of exponent -120", ("bf16_smallest",), CELLS, record("H100", *HALF, floor=-120)),
    Mutant("V100 keeps a bit more", ("tiny_24", "below_one", "cancelled", "volta_falls"), CELLS,
           record("V100", *HALF, alignment_bits=24)),
    Mutant("A100 keeps a bit more", ("tiny_25",), CELLS, record("A100", *HALF, alignment_bits=25)),
    Mutant("H100 keeps a bit more", ("tiny_26", "each_falls_once"), CELLS, record("H100", *HALF, alignment_bits=26)),
    Mutant("H100 keeps five bits more", ("amd_up", "amd_down"), CELLS,
           record("H100", *HALF, alignment_bits=30)),
    Mutant("B200 keeps 46 bits", ("cancelled_large",), CELLS, record("B200", *HALF, alignment_bits=46),
           part=lambda result: {"fp16_probes": probes.results(probes.FP16_PROBES, probes.GPUS)}),
    Mutant("Ada's FP8 aligned to 25 bits", ("fp8_small", "fp8_large"), CELLS, record("Ada", "e4m3", alignment_bits=25)),
    Mutant("MI210 keeps subnormals", ("amd_operand", "amd_c", "flushes"), CELLS,
           record("MI210", *HALF, subnormals="kept")),
    Mutant("MI100 flushes", ("flushes",), CELLS, record("MI100", *HALF, subnormals="flushed")),
    Mutant("MI300X adds as MI100", ("amd_follows", "asymmetric", "amd_down", "amd_tiny"), CELLS,
           record("MI300X", *HALF, kind="pairwise", length=4, alignment_bits=0)),
    Mutant("H100 multiplies as V100", ("half_hides_most",), "on_gpu",
           lambda on_gpu: lambda x, gpu, *sign: on_gpu(x, "V100" if gpu == "H100" else gpu, *sign)),
    Mutant("not stored as FP16", ("half_hides_most",), "stored", lambda stored: lambda bits: bits),
    Mutant("an exact product by H100", ("exact_is_fsum",), "exactly",
           lambda good: lambda x: generations.on_gpu(x, "H100")),
    Mutant("one bit of a sweep", ("follows",), change=off("sweep", (1, 3, 3))),
    Mutant("one bit of a real product", ("follows",), change=off("real", (4, 20, 45))),
)  # fmt: skip

globals().update(frame(generations, QUICK, MUTANTS))


@pytest.mark.parametrize("kind", generations.KINDS, ids=lambda kind: kind[0])
def test_every_cell_is_checked(result: Any, kind: Any) -> None:
    name, some, gpus = kind
    for i, probe in enumerate(some):
        claim = claim_of(generations.EXPERIMENT, probe.id)
        places = [(f"{name}_exact", i, "exact")] + [(f"{name}_probes", (i, j), gpu) for j, gpu in enumerate(gpus)]
        for array, place, gpu in places:
            wrong = dataclasses.replace(result, **off(array, place)(result))
            known = probe.exact if gpu == "exact" else probe.known[gpu]
            assert str(failing(claim, wrong).detail) == f"{gpu} {known ^ 1:08x} ≠ {known:08x}"


def test_a_family_has_one_arithmetic(result: Any) -> None:
    for i, j in itertools.combinations(range(8), 2):
        same = probes.generation(probes.GPUS[i]) == probes.generation(probes.GPUS[j])
        assert np.array_equal(result.real[i], result.real[j]) == same


# --- what is known ---------------------------------------------------------------------------------------------------
def test_the_probes_are_the_published_table() -> None:
    if not SPECIFICATION.exists():
        pytest.skip("the published table is not here")
    text = SPECIFICATION.read_text(encoding="utf-8").split("## 6.", 1)[1]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| c =")]
    assert len(rows) == len(probes.FP16_PROBES)
    for cells, probe in zip(rows, probes.FP16_PROBES, strict=True):
        v100, ampere, hopper, exact = (int(cell, 16) for cell in cells[1:])
        assert probe.known["V100"] == v100
        assert {probe.known[g] for g in ("T4", "A100", "Ada", "L40S")} == {ampere}
        assert {probe.known[g] for g in ("H100", "H200", "B200")} == {hopper}
        assert probe.exact == exact


def test_the_probes_are_the_sums_that_their_names_say() -> None:
    tiny = Fraction(1, 2**24)
    sums = [1 + 16 * tiny, 1 + 8 * tiny, 1 + 4 * tiny, 1 + 15 * tiny, 15 * tiny, Fraction(1, 2**20)]
    assert [probe.sum for probe in probes.FP16_PROBES] == sums
    assert [probe.sum for probe in probes.FP8_PROBES] == [1026, 448**2 + 31]
    for probe in probes.FP16_PROBES + probes.FP8_PROBES + probes.BF16_PROBES + amd.PROBES:
        a, b = probe.factors
        assert a.size == b.size == probe.k
        assert (
            Fraction(probe.c) + sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))
            == probe.sum
        )


def test_the_real_operands() -> None:
    x = generations.operands(1792).view(np.float16).astype(np.float64)
    assert x.shape == (64, 1792)
    still = np.flatnonzero(~x.any(axis=1))
    assert still.tolist() == [0, 32, 39]  # pixels that never change
    moving = np.delete(x, still, axis=0)
    assert np.abs(moving.mean(axis=1)).max() < 1e-3
    assert np.abs(moving.std(axis=1) - 1).max() < 1e-3


def test_the_product_is_symmetric(result: Any) -> None:
    """Sums inside a block are exact, so exchanging the factors changes nothing."""
    assert np.array_equal(result.real, result.real.transpose(0, 2, 1))


def test_differences_in_ulp() -> None:
    x = np.array([1.0, -1.0, 0.0, -0.0, 2.0], np.float32).view(np.uint32)
    y = np.array([1 + 2.0**-23, -1 - 2.0**-22, 2.0**-149, 0.0, 2.0], np.float32).view(np.uint32)
    assert (generations.ordered(y) - generations.ordered(x)).tolist() == [1, -2, 1, 0, 0]
    assert generations.difference(x[:3], y[:3]) == (3, 2)


def test_falls_are_counted() -> None:
    assert probes.falls(np.array([[1, 2, 2, 1, 3, 0], [1, 1, 2, 3, 4, 5]], np.uint32)).tolist() == [2, 0]
    c = probes.accumulators().view(np.float32)
    assert c[probes.BELOW] == 1
    assert (np.diff(c) > 0).all()


def test_trees() -> None:
    assert probes.tree("A100", 20) == probes.chain(20, 8) == SumTree.of(
        (((*range(9),), *range(9, 17)), 17, 18, 19)
    )  # fmt: skip


# --- outputs and devices ---------------------------------------------------------------------------------------------
def test_the_table_has_every_cell_and_every_pair(result: Any) -> None:
    rows = list(zip(*generations.rows(result).values(), strict=True))
    assert len(rows) == 6 * 8 + 2 * 3 + 6 + 5 * 4 + 9 * 8 // 2 + 4 * 3 // 2
    assert ("c = 1, 16 products of 2^-24", "V100", "exact", "3f800000", "3f800008", 1, 8) in rows
    count, ulps = generations.difference(result.real[0], result.real[1])
    assert (f"pixel correlations 64x64x{QUICK.images}", "V100", "T4", "", "", count, ulps) in rows


def test_runs_are_the_same_every_time(result: Any) -> None:
    repeats(generations, result)


def test_each_family_is_said_to_fall_once(result: Any) -> None:
    titles = [(ax.get_title(loc="left") or ax.get_title()) for ax in generations.falls(result).axes]
    assert [t.split(": ")[1] for t in titles] == [f"{g} not monotonic" for g in ("V100", "A100", "H100")]


@pytest.mark.parametrize("gpu", ["V100", "A100", "H100"])
def test_the_cases_show_the_published_bits_through_torch(gpu: str) -> None:
    """c as products, and a 1 taken away again, leave every probe what it is."""
    meta = {"kind": "cuda", "device": f"NVIDIA {gpu}", "capability": ""}
    known = np.array([probe.known[gpu] for probe in probes.FP16_PROBES], np.uint32)
    wide = lab_product(generations.product_to("fp32"), ONE_CHAIN, generations.probe_operands(False), meta)["d"]
    assert np.array_equal(np.diag(wide)[:6], known)
    stored = lab_product(generations.product_to("fp16"), ONE_CHAIN, generations.probe_operands(True), meta)["d"]
    half = np.diag(stored).view(np.float16)[:6].astype(float)
    taken = np.array([1.0 if probe.c > 0.5 else 0.0 for probe in probes.FP16_PROBES])
    assert np.array_equal(half, known.view(np.float32) - taken)


@pytest.mark.parametrize("gpu", ["V100", "A100", "H100"])
def test_the_masked_case_holds_the_tree(gpu: str) -> None:
    meta = {"kind": "cuda", "device": f"NVIDIA {gpu}", "capability": ""}
    stored = lab_product(generations.product_to("fp16"), ONE_CHAIN, generations.mask_operands(), meta)["d"]
    counts = stored[:, 0].view(np.float16).astype(float) * 2.0**24
    sizes = np.ones((generations.TERMS, generations.TERMS), np.int64)
    sizes[np.triu_indices(generations.TERMS, 1)] = generations.TERMS - counts
    length = probes.LENGTHS[probes.generation(gpu)]
    nested: Any = tuple(range(length))
    for start in range(length, generations.TERMS, length):
        nested = (nested, *range(start, start + length))
    assert SumTree.from_sizes(np.maximum(sizes, sizes.T)) == SumTree.of(nested)
