"""The experiment on generations: published cells, every one of which is checked, and what its cases hold."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from xarray import DataArray

from experiments.frame import CELLS, Mutant, claim_of, failing, frame, record, repeats
from fplab.experiments import generations
from fplab.hardware.core_cases import lab_product
from fplab.hardware.products import ONE_CHAIN
from fplab.reveal import SumTree

QUICK = generations.E.quick


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
    Mutant("B200 keeps 46 bits", ("cancelled_large",), CELLS, record("B200", *HALF, alignment_bits=46)),
    Mutant("Ada's FP8 aligned to 25 bits", ("fp8_small", "fp8_large"), CELLS, record("Ada", "e4m3", alignment_bits=25)),
    Mutant("MI210 keeps subnormals", ("amd_operand", "amd_c", "flushes"), CELLS,
           record("MI210", *HALF, subnormals="kept")),
    Mutant("MI100 flushes", ("flushes",), CELLS, record("MI100", *HALF, subnormals="flushed")),
    Mutant("MI300X adds as MI100", ("amd_follows", "asymmetric", "amd_down", "amd_tiny"), CELLS,
           record("MI300X", *HALF, kind="pairwise", length=4, alignment_bits=0)),
    Mutant("H100 multiplies as V100", ("half_hides_most", "follows"), "on_gpu",
           lambda on_gpu: lambda x, gpu, *sign: on_gpu(x, "V100" if gpu == "H100" else gpu, *sign)),
    Mutant("A100's sums around c = 1 by H100", ("follows",), "sums_around_one",
           lambda good: lambda p, exponent, gpu: good(p, exponent, "H100" if gpu == "A100" else gpu)),
    Mutant("not stored as FP16", ("half_hides_most",), "stored", lambda stored: lambda bits: bits),
    Mutant("an exact product by H100", ("exact_is_fsum",), "exactly",
           lambda good: lambda x: generations.on_gpu(x, "H100")),
)  # fmt: skip

globals().update(frame(generations, QUICK, MUTANTS))


@pytest.mark.parametrize("probe", generations.PROBES.values(), ids=lambda probe: probe.id)
def test_every_cell_is_checked(result: Any, probe: Any) -> None:
    claim = claim_of(generations.E, probe.id)
    for gpu, known in probe.bits.items():
        wrong = result.probed.copy()
        wrong.loc[{"probe": probe.id, "gpu": gpu}] = known ^ 1
        assert str(failing(claim, result.replace(probed=wrong)).detail) == f"{gpu} {known ^ 1:08x} ≠ {known:08x}"


def test_a_family_has_one_arithmetic(result: Any) -> None:
    for one, other in itertools.combinations(generations.GPUS, 2):
        same = generations.FAMILY[one] == generations.FAMILY[other]
        assert np.array_equal(result.real.sel(gpu=one), result.real.sel(gpu=other)) == same


# --- what is known ---------------------------------------------------------------------------------------------------
def test_the_probes_are_the_sums_that_their_names_say() -> None:
    tiny = Fraction(1, 2**24)
    sums = [1 + 16 * tiny, 1 + 8 * tiny, 1 + 4 * tiny, 1 + 15 * tiny, 15 * tiny, Fraction(1, 2**20)]
    assert [probe.sum for probe in generations.probes_of("fp16")] == sums
    assert [probe.sum for probe in generations.probes_of("e4m3")] == [1026, 448**2 + 31]
    for probe in generations.PROBES.values():
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
    assert np.array_equal(result.real, result.real.values.transpose(0, 2, 1))


def test_differences_in_ulp() -> None:
    x = np.array([1.0, -1.0, 0.0, -0.0, 2.0], np.float32).view(np.uint32)
    y = np.array([1 + 2.0**-23, -1 - 2.0**-22, 2.0**-149, 0.0, 2.0], np.float32).view(np.uint32)
    assert (generations.ordered(y) - generations.ordered(x)).tolist() == [1, -2, 1, 0, 0]
    assert generations.difference(x[:3], y[:3]) == (3, 2)


def test_falls_are_counted() -> None:
    rows = DataArray(np.array([[1, 2, 2, 1, 3, 0], [1, 1, 2, 3, 4, 5]], np.uint32), dims=("gpu", "c"))
    assert generations.falls(rows).values.tolist() == [2, 0]
    c = generations.accumulators(QUICK)
    assert c[generations.BELOW] == 1
    assert (np.diff(c) > 0).all()


def test_trees() -> None:
    assert generations.tree("A100", 20) == generations.chain(20, 8) == SumTree.of(
        (((*range(9),), *range(9, 17)), 17, 18, 19)
    )  # fmt: skip


# --- outputs and devices ---------------------------------------------------------------------------------------------
def test_the_table_has_every_cell_and_every_pair(result: Any) -> None:
    rows = list(zip(*generations.E.rows(result).values(), strict=True))
    assert len(rows) == 6 * 8 + 2 * 3 + 6 + 5 * 4 + 9 * 8 // 2 + 4 * 3 // 2
    assert ("c = 1, 16 products of 2^-24", "V100", "exact", "3f800000", "3f800008", 1, 8) in rows
    count, ulps = generations.difference(*result.real.sel(gpu=["V100", "T4"]).values)
    assert (f"pixel correlations 64x64x{QUICK.images}", "V100", "T4", "", "", count, ulps) in rows


def test_runs_are_the_same_every_time(result: Any) -> None:
    repeats(generations, result)


@pytest.mark.parametrize("gpu", ["V100", "A100", "H100"])
def test_the_cases_show_the_published_bits_through_torch(gpu: str) -> None:
    """c as products, and a 1 taken away again, leave every probe what it is."""
    meta = {"kind": "cuda", "device": f"NVIDIA {gpu}", "capability": ""}
    known = np.array([probe.bits[gpu] for probe in generations.probes_of("fp16")], np.uint32)
    wide = lab_product(generations.product_to("fp32"), ONE_CHAIN, generations.probe_operands(False), meta)["d"]
    assert np.array_equal(np.diag(wide)[:6], known)
    stored = lab_product(generations.product_to("fp16"), ONE_CHAIN, generations.probe_operands(True), meta)["d"]
    half = np.diag(stored).view(np.float16)[:6].astype(float)
    taken = np.array([1.0 if probe.c > 0.5 else 0.0 for probe in generations.probes_of("fp16")])
    assert np.array_equal(half, known.view(np.float32) - taken)


@pytest.mark.parametrize("gpu", ["V100", "A100", "H100"])
def test_the_masked_case_holds_the_tree(gpu: str) -> None:
    meta = {"kind": "cuda", "device": f"NVIDIA {gpu}", "capability": ""}
    stored = lab_product(generations.product_to("fp16"), ONE_CHAIN, generations.mask_operands(), meta)["d"]
    counts = stored[:, 0].view(np.float16).astype(float) * 2.0**24
    sizes = np.ones((generations.TERMS, generations.TERMS), np.int64)
    sizes[np.triu_indices(generations.TERMS, 1)] = generations.TERMS - counts
    length = generations.LENGTHS[generations.FAMILY[gpu]]
    nested: Any = tuple(range(length))
    for start in range(length, generations.TERMS, length):
        nested = (nested, *range(start, start + length))
    assert SumTree.from_sizes(np.maximum(sizes, sizes.T)) == SumTree.of(nested)
