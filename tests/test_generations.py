"""The experiment ``generations``: published cells, checks that can fail, figures, and its GPU cases on the CPU."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_frame import computed_on_cpu, drawn, failing, frame, repeats

from fplab.experiments import generations
from fplab.experiments.generations import cases, checks, probes, product, sweep
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
    failing(checks.oracle_agrees, wrong, PARAMS)


@pytest.mark.parametrize("i", range(8))
def test_every_other_cell_is_checked(arrays: Arrays, i: int) -> None:
    kind, row = ("fp16", i) if i < 6 else ("fp8", i - 6)
    assert "exact" in failing(generations.CHECKS[i], changed(arrays, f"{kind}_exact", row), PARAMS)
    for j, gpu in enumerate(probes.FP8_GPUS if i >= 6 else ()):
        assert gpu in failing(generations.CHECKS[i], changed(arrays, "fp8_probes", (row, j)), PARAMS)


@pytest.mark.parametrize(
    ("name", "place", "value", "check"),
    [
        ("sweep", (1, 3, 3), None, checks.oracle_agrees),
        ("real", (4, 20, 45), None, checks.oracle_agrees),
        ("sweep", (0, 0, sweep.BELOW), 0x3F800002, checks.volta_falls),
        ("sweep_c", sweep.BELOW, 0x3F800001, checks.volta_falls),
        ("sweep", (2, 0, 5), 0x3F900000, checks.each_falls_once),
        ("sweep", (1, 2, sweep.BELOW), 0x3F800001, checks.each_falls_once),
        ("tree_sizes", (6, 3, 2), 33, checks.trees_are_chains),
        ("real", (4, 9, 9), None, checks.families_agree),
        ("real", (1, slice(None), slice(None)), 0x3F800000, checks.half_hides_most),
        ("real_exact", (0, 26), 0x3F000000, checks.exact_is_fsum),
        ("real", (5, 1, 1), None, checks.one_thread_or_three),
    ],
)
def test_a_wrong_number_fails(arrays: Arrays, name: str, place: Any, value: Any, check: Any) -> None:
    assert failing(check, changed(arrays, name, place, value), PARAMS)


def test_families_that_agree_too_much_fail(arrays: Arrays) -> None:
    wrong = {**arrays, "real": np.broadcast_to(arrays["real"][0], arrays["real"].shape)}
    assert "V100 and T4 differ in 0 elements" in failing(checks.families_agree, wrong, PARAMS)
    failing(checks.half_hides_most, wrong, PARAMS)


def test_another_tree_fails(arrays: Arrays) -> None:
    wrong = changed(arrays, "tree_sizes", 0, sweep.chain(PARAMS.terms, 8).sizes)
    assert failing(checks.trees_are_chains, wrong, PARAMS).startswith("V100: (")


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
    for probe in probes.FP16_PROBES + probes.FP8_PROBES:
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
    assert len(rows) == 6 * 8 + 2 * 3 + 9 * 8 // 2
    assert ("c = 1, 16 products of 2^-24", "V100", "exact", "3f800000", "3f800008", 1, 8) in rows
    count, ulps = product.difference(arrays["real"][0], arrays["real"][1])
    assert (f"pixel correlations 64x64x{PARAMS.images}", "V100", "T4", "", "", count, ulps) in rows


def test_runs_are_the_same_every_time(arrays: Arrays) -> None:
    assert arrays.keys() == set(generations.DIGESTED)
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
