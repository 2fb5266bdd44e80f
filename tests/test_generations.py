"""The experiment ``generations``: published cells, checks that can fail, figures, and its GPU cases on the CPU."""

from __future__ import annotations

import dataclasses
import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_frame import Mutant, computed_on_cpu, drawn, failing, forged, frame, kills, repeats

from fplab.experiments import generations
from fplab.experiments.generations import cases, probes, product, sweep
from fplab.hardware.cases import Arrays, Case
from fplab.reveal import SumTree

PARAMS = generations.QUICK
SPECIFICATION = Path(__file__).resolve().parents[2] / "shared" / "spec" / "tensor-cores.md"
CELLS = [(i, gpu) for i in range(len(probes.FP16_PROBES)) for gpu in probes.GPUS]

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(generations, PARAMS)


def changed(arrays: Arrays, name: str, place: Any, value: Any = None) -> Arrays:
    """A copy with one number replaced, or its lowest bit flipped."""
    wrong = {**arrays, name: arrays[name].copy()}
    wrong[name][place] = wrong[name][place] ^ 1 if value is None else value
    return wrong


@pytest.mark.parametrize(("i", "gpu"), CELLS)
def test_every_cell_of_the_fp16_probes_is_checked(arrays: Arrays, i: int, gpu: str) -> None:
    wrong = changed(arrays, "fp16_probes", (i, probes.GPUS.index(gpu)))
    assert f"{gpu} {probes.FP16_PROBES[i].known[gpu] ^ 1:08x}, not" in failing(generations.CHECKS[i], wrong, PARAMS)


@pytest.mark.parametrize("i", range(9))
def test_every_other_cell_is_checked(arrays: Arrays, i: int) -> None:
    kind, row = ("fp16", i) if i < 6 else ("fp8", i - 6) if i < 8 else ("bf16", 0)
    assert "exact" in failing(generations.CHECKS[i], changed(arrays, f"{kind}_exact", row), PARAMS)
    for j, gpu in enumerate({"fp16": (), "fp8": probes.FP8_GPUS, "bf16": probes.BF16_GPUS}[kind]):
        assert gpu in failing(generations.CHECKS[i], changed(arrays, f"{kind}_probes", (row, j)), PARAMS)


def record(gpu: str, **other: Any) -> Any:
    """A GPU of whose arithmetic the lab says something else: with a floor, wherever there is one."""

    def fault(cells: Any) -> Any:
        return lambda name: tuple(
            dataclasses.replace(one, **{k: v for k, v in other.items() if k != "floor" or one.floor is not None})
            if name == gpu and one.output == "fp32" and one.a in ("fp16", "bf16")
            else one
            for one in cells(name)
        )

    return fault


def one_bit(name: str, place: Any, value: Any = None) -> Any:
    return lambda arrays: {name: changed(arrays, name, place, value)[name]}


CELLS_OF = tuple(probe.name for probe in probes.FP16_PROBES + probes.FP8_PROBES + probes.BF16_PROBES)
FOLLOWS, FALLS, TREES, HALF = "the sums around", "every family falls", "their summation trees", "stored as FP16"
MUTANTS = (
    Mutant("A100 in blocks of four", (FOLLOWS, FALLS, TREES), "fplab.tensorcore.models._cells",
           record("A100", length=4)),
    Mutant("A100's floor at -126", (CELLS_OF[8],), "fplab.tensorcore.models._cells", record("A100", floor=-126)),
    Mutant("zeros of exponent -120", (CELLS_OF[8],), "fplab.tensorcore.models._cells", record("H100", floor=-120)),
    Mutant("V100 keeps a bit more", (CELLS_OF[0], CELLS_OF[3], "on V100 the sum"), "fplab.tensorcore.models._cells",
           record("V100", alignment_bits=24)),
    Mutant("A100 keeps a bit more", (CELLS_OF[1],), "fplab.tensorcore.models._cells",
           record("A100", alignment_bits=25)),
    Mutant("H100 keeps a bit more", (CELLS_OF[2], FALLS), "fplab.tensorcore.models._cells",
           record("H100", alignment_bits=26)),
    *(Mutant(f"one bit in row {i}", (CELLS_OF[i],), change=one_bit("fp16_probes", (i, 4))) for i in (4, 5)),
    *(Mutant(f"one bit in FP8, row {i}", (CELLS_OF[6 + i],), change=one_bit("fp8_probes", (i, 1))) for i in (0, 1)),
    Mutant("one bit of a sweep", (FOLLOWS,), change=one_bit("sweep", (1, 3, 3))),
    Mutant("one bit of a real product", (FOLLOWS,), change=one_bit("real", (4, 20, 45))),
    Mutant("one node more", (TREES,), change=one_bit("tree_sizes", (6, 3, 2), 33)),
    Mutant("H100 multiplies as V100", (HALF,), "product.on_gpu",
           lambda on_gpu: lambda codes, gpu: on_gpu(codes, "V100" if gpu == "H100" else gpu)),
    Mutant("not stored as FP16", (HALF,), "product.stored", lambda stored: lambda bits: bits),
    Mutant("another exact product", ("the exact product",), change=one_bit("real_exact", (0, 26), 0x3F000000)),
)  # fmt: skip
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(generations, PARAMS, MUTANTS)


def test_a_family_has_one_arithmetic(arrays: Arrays) -> None:
    for i, j in itertools.combinations(range(8), 2):
        same = probes.generation(probes.GPUS[i]) == probes.generation(probes.GPUS[j])
        assert np.array_equal(arrays["real"][i], arrays["real"][j]) == same


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
    for probe in probes.FP16_PROBES + probes.FP8_PROBES + probes.BF16_PROBES:
        a, b = probe.factors
        assert a.size == b.size == probe.k
        assert (
            Fraction(probe.c) + sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))
            == probe.sum
        )


def test_the_real_operands() -> None:
    x = product.operands(1792).view(np.float16).astype(np.float64)
    assert x.shape == (64, 1792)
    still = np.flatnonzero(~x.any(axis=1))
    assert still.tolist() == [0, 32, 39]  # pixels that never change
    moving = np.delete(x, still, axis=0)
    assert np.abs(moving.mean(axis=1)).max() < 1e-3
    assert np.abs(moving.std(axis=1) - 1).max() < 1e-3


def test_the_product_is_symmetric(arrays: Arrays) -> None:
    """Sums inside a block are exact, so exchanging the factors changes nothing."""
    assert np.array_equal(arrays["real"], arrays["real"].transpose(0, 2, 1))


def test_differences_in_ulp() -> None:
    x = np.array([1.0, -1.0, 0.0, -0.0, 2.0], np.float32).view(np.uint32)
    y = np.array([1 + 2.0**-23, -1 - 2.0**-22, 2.0**-149, 0.0, 2.0], np.float32).view(np.uint32)
    assert (product.ordered(y) - product.ordered(x)).tolist() == [1, -2, 1, 0, 0]
    assert product.difference(x[:3], y[:3]) == (3, 2)


def test_falls_are_counted() -> None:
    assert sweep.falls(np.array([[1, 2, 2, 1, 3, 0], [1, 1, 2, 3, 4, 5]], np.uint32)).tolist() == [2, 0]
    c = sweep.accumulators().view(np.float32)
    assert c[sweep.BELOW] == 1
    assert (np.diff(c) > 0).all()


def test_trees() -> None:
    assert sweep.tree("A100", 20) == sweep.chain(20, 8) == SumTree.of(
        (((*range(9),), *range(9, 17)), 17, 18, 19)
    )  # fmt: skip


# --- outputs and devices ---------------------------------------------------------------------------------------------


def test_the_table_has_every_cell_and_every_pair(arrays: Arrays) -> None:
    table = generations.table(arrays, PARAMS)
    rows = list(zip(*table.values(), strict=True))
    assert len(rows) == 6 * 8 + 2 * 3 + 6 + 9 * 8 // 2
    assert ("c = 1, 16 products of 2^-24", "V100", "exact", "3f800000", "3f800008", 1, 8) in rows
    count, ulps = product.difference(arrays["real"][0], arrays["real"][1])
    assert (f"pixel correlations 64x64x{PARAMS.images}", "V100", "T4", "", "", count, ulps) in rows


def test_runs_are_the_same_every_time(arrays: Arrays) -> None:
    assert arrays.keys() == {*generations.DIGESTED, "bf16_probes", "bf16_exact"}
    repeats(generations, arrays, PARAMS)


def test_figures_are_drawn_in_both_themes(arrays: Arrays, tmp_path: Path) -> None:
    for theme in ("light", "dark"):
        figure, size = drawn(generations, arrays, PARAMS, theme, tmp_path)
        titles = [ax.get_title(loc="left") for ax in figure.axes]
        assert size > 10_000
        assert [t.split(": ")[1] for t in titles[2:8:2]] == [f"{g} not monotonic" for g in ("V100", "A100", "H100")]


@pytest.mark.parametrize("case", generations.gpu_cases(PARAMS), ids=lambda case: case.name)
def test_the_cpu_stands_in(case: Case) -> None:
    computed_on_cpu(case)


@pytest.mark.parametrize("gpu", ["V100", "A100", "H100"])
def test_the_cases_show_the_published_bits_through_torch(gpu: str) -> None:
    """c as products, and a 1 taken away again, leave every probe what it is."""
    meta = {"kind": "cuda", "device": f"NVIDIA {gpu}", "capability": ""}
    known = np.array([probe.known[gpu] for probe in probes.FP16_PROBES], np.uint32)
    wide = cases.in_lab("fp32", {}, cases.probe_operands(False), meta)["d"]
    assert np.array_equal(np.diag(wide)[:6], known)
    half = np.diag(cases.in_lab("fp16", {}, cases.probe_operands(True), meta)["d"]).view(np.float16)[:6].astype(float)
    taken = np.array([1.0 if probe.c > 0.5 else 0.0 for probe in probes.FP16_PROBES])
    assert np.array_equal(half, known.view(np.float32) - taken)


@pytest.mark.parametrize("gpu", ["V100", "A100", "H100"])
def test_the_masked_case_holds_the_tree(gpu: str) -> None:
    meta = {"kind": "cuda", "device": f"NVIDIA {gpu}", "capability": ""}
    counts = cases.in_lab("fp16", {}, cases.mask_operands(), meta)["d"][:, 0].view(np.float16).astype(float) * 2.0**24
    sizes = np.ones((cases.TERMS, cases.TERMS), np.int64)
    sizes[np.triu_indices(cases.TERMS, 1)] = cases.TERMS - counts
    length = probes.LENGTHS[probes.generation(gpu)]
    nested: Any = tuple(range(length))
    for start in range(length, cases.TERMS, length):
        nested = (nested, *range(start, start + length))
    assert SumTree.from_sizes(np.maximum(sizes, sizes.T)) == SumTree.of(nested)


@pytest.mark.parametrize("case", generations.gpu_cases(PARAMS), ids=lambda case: case.name)
def test_a_forged_record_fails(case: Case) -> None:
    forged(case)
