"""The experiment on codebooks and blocks: its numbers, its claims, its GPU cases, and that its checks can fail."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from experiment_frame import Mutant, compute_with_little_installed, computed_on_cpu, drawn, frame, kills

from fplab import codebooks
from fplab.experiments import quantisation_error as experiment
from fplab.experiments.quantisation_error import data
from fplab.hardware.cases import Arrays, Case

SMALL = data.Params(steps=8, seeds=(0, 1, 2), heavy=1 << 14)
TINY = data.Params(steps=2, seeds=(0, 1, 2), normal=1 << 14, heavy=1 << 12)  # where the published table has no place

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(experiment, SMALL)


def test_errors_against_fractions() -> None:
    x = np.array([1.0, -0.3, 0.0, 0.02, 0.5, 4e-8, -0.011], np.float32)
    book = codebooks.dynamic()
    got = data.errors(x, book, 4, [5, 2])
    total, relative, lost = Fraction(0), Fraction(0), 0
    for block in (x[:4], x[4:5], x[5:]):
        most = Fraction(float(np.abs(block).max()))
        for v in map(Fraction, block.tolist()):
            q = min((Fraction(float(c)) for c in book.values), key=lambda c: abs(c - v / most))
            total += abs(q * most - v)
            relative += abs(q * most - v) / abs(v) if v else 0
            lost += bool(v and not q)
    assert got.absolute == pytest.approx(float(total / 7), rel=1e-5)
    assert got.relative == pytest.approx(float(relative / 6), rel=1e-5)
    assert got.lost == lost / 6
    assert data.errors(np.float32([1, 1e-8]), book, None).lost == 0.5


def test_scaled_blocks_reach_one_and_stop_at_tensors() -> None:
    x = np.array([1, -2, 4, 8, 0, 0, 3], np.float32)
    assert data.scaled(x, 2, [3, 4]).tolist() == [0.5, -1, 1, 1, 0, 0, 1]
    assert data.scaled(x, None, [3, 4]).tolist() == [0.25, -0.5, 1, 1, 0, 0, 0.375]


def test_heavy_tails_are_students_t() -> None:
    """The distribution function of t with two degrees of freedom is 1/2 + t / (2 sqrt(2 + t^2))."""
    t = np.sort(data.heavy_tails(20_000).astype(np.float64))
    places = 0.5 + t / (2 * np.sqrt(2 + t * t))
    assert np.abs(places - (np.arange(t.size) + 0.5) / t.size).max() < 0.015


def test_real_tensors_are_all_there(arrays: Arrays) -> None:
    total = int(arrays["sizes"].sum())
    assert all(arrays[kind].size == total for kind in data.KINDS[2:])
    assert (arrays["sizes"] >= data.SMALLEST).all()
    assert (arrays["v"] >= 0).all()
    assert (arrays["m"] < 0).any()


def quantising(change):  # type: ignore[no-untyped-def]
    """A fault of block-wise quantisation: ``change`` takes the good function and its arguments."""

    def fault(good):  # type: ignore[no-untyped-def]
        return lambda x, code, block=2048, *args, **options: change(good, x, code, block, *args, **options)

    return fault


def next_code(good, *args, **options):  # type: ignore[no-untyped-def]
    q = good(*args, **options)
    q.codes.reshape(-1)[0] ^= 1
    return q


def larger_scale(good, *args, **options):  # type: ignore[no-untyped-def]
    q = good(*args, **options)
    q.absmax[:] = np.nextafter(q.absmax, np.float32(np.inf))
    return q


def swapped_books(good):  # type: ignore[no-untyped-def]
    return {**good, "linear": good["dynamic"], "dynamic": good["linear"], "tree": good["dynamic"]}


def shifted_digit(arrays: Arrays) -> Arrays:
    arrays["errors"][0, 0, 3, 0] += 1e-6
    return arrays


QUANTISE = "fplab.codebooks.quantize_blockwise"
MUTANTS = (
    Mutant("the first code is its neighbour", ("No element", "torch.bucketize"), QUANTISE, quantising(next_code),
           params=TINY),
    Mutant("a scale one ulp too large", ("A block's maximum",), QUANTISE, quantising(larger_scale), params=TINY),
    Mutant("one scale whatever the block", ("A block confines", "The errors drawn"), QUANTISE,
           quantising(lambda good, x, code, block, *args, **options: good(x, code, None, *args, **options)),
           params=TINY),
    Mutant("a printed digit", ("Errors on 2^20",), change=shifted_digit),
    Mutant("kinds of data in another order", ("The errors drawn",),
           change=lambda a: {**a, "errors": a["errors"][[0, 1, 3, 2, 4, 5]]}),
    Mutant("updates by another pair of states", ("The errors drawn",),
           change=lambda a: {**a, "update_errors": a["update_errors"][[1, 0, 2, 3]]}),
    Mutant("the linear codebook in the dynamic one's place", ("On normal data linear", "On normal data the literal"),
           "checks.BOOKS", swapped_books, params=TINY),
    Mutant("every second moment by the dynamic map", ("Linear makes zeros",), "data.LOSING",
           lambda good: ("dynamic unsigned",) * 2, params=TINY),
    Mutant("the tree's indicator a place lower", ("The literal tree",), "fplab.codebooks.tree.fields",
           lambda good: lambda code: good(min(code + 1, 127)), params=TINY),
)  # fmt: skip

test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(experiment, SMALL, MUTANTS)


CASES = experiment.gpu_cases(SMALL)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_gpu_cases_on_the_cpu_equal_the_lab_bit_for_bit(case: Case) -> None:
    results = computed_on_cpu(case)
    assert len(np.unique(results["codes"])) > 100


def test_cases_need_numpy_and_torch_alone() -> None:
    compute_with_little_installed(experiment)


def test_the_table_has_a_row_for_every_number(arrays: Arrays) -> None:
    table = experiment.table(arrays, SMALL)
    assert {len(column) for column in table.values()} == {6 * 4 * 6}
    at = table["codebook"].index("dynamic unsigned")
    assert (table["data"][at], table["block"][at]) == ("v", 64)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_draws_in_both_themes(theme: str, arrays: Arrays, tmp_path: Path) -> None:
    figure, size = drawn(experiment, arrays, SMALL, theme, tmp_path)
    assert size > 50_000
    titles = [ax.get_title(loc="left") for ax in figure.get_axes()]
    assert {"Codebooks: up to 256 values in [-1, 1]", "Heavy tails: relative error"} <= set(titles)


def test_number_lines_show_every_value() -> None:
    from matplotlib.figure import Figure

    from fplab import formats
    from fplab.draw.codebooks import number_lines, values_of

    assert values_of(formats.get("e2m1")).tolist() == [-1, -2 / 3, -0.5, -1 / 3, -0.25, -1 / 6, -1 / 12, 0,
                                                       1 / 12, 1 / 6, 0.25, 1 / 3, 0.5, 2 / 3, 1]  # fmt: skip
    ax = Figure().subplots()
    number_lines(ax, {"NF4": codebooks.nf4()}, [0], logarithmic=True)
    strokes = ax.get_lines()[0].get_xdata()
    assert sorted(set(np.asarray(strokes).tolist())) == codebooks.nf4().values[8:].astype(float).tolist()
