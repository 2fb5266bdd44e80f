"""The experiment on codebooks and blocks."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from experiments.frame import Mutant, frame
from fplab import codebooks
from fplab.experiments import quantisation_error
from fplab.experiments.quantisation_error import KINDS, SMALLEST, E, data_of, errors, heavy_tails, scaled

SMALL = replace(E.quick, steps=8, heavy=1 << 14)
TINY = replace(E.quick, steps=2, normal=1 << 14, heavy=1 << 12)  # where the published table has no place


def quantising(change: Any) -> Any:
    """A fault of block-wise quantisation: ``change`` takes the good function and its arguments."""

    def fault(good: Any) -> Any:
        return lambda x, code, block=2048, *args, **options: change(good, x, code, block, *args, **options)

    return fault


def next_code(good: Any, *args: Any, **options: Any) -> Any:
    q = good(*args, **options)
    q.codes.reshape(-1)[0] ^= 1
    return q


def larger_scale(good: Any, *args: Any, **options: Any) -> Any:
    q = good(*args, **options)
    q.absmax[:] = np.nextafter(q.absmax, np.float32(np.inf))
    return q


def one_scale(good: Any, x: Any, code: Any, block: Any, *args: Any, **options: Any) -> Any:
    return good(x, code, None, *args, **options)


QUANTISE = "fplab.codebooks.quantize_blockwise"
MUTANTS = (
    Mutant("the first code is its neighbour", ("half_gaps", "bucketize"), QUANTISE, quantising(next_code), params=TINY),
    Mutant("a scale one ulp too large", ("maximum",), QUANTISE, quantising(larger_scale), params=TINY),
    Mutant("one scale whatever the block", ("confined", "nearest"), QUANTISE, quantising(one_scale), params=TINY),
    Mutant("one scale for the published samples", ("published",), QUANTISE, quantising(one_scale),
           reuse=("trained", "data_of")),
    Mutant("updates by other states", ("nearest",), "update_errors",
           lambda good: lambda p, states, block: good(p, "linear", block), params=TINY),
    Mutant("the linear codebook in the dynamic one's place", ("trade", "worse"), "BOOKS",
           lambda good: {**good, "linear": good["dynamic"], "dynamic": good["linear"], "tree": good["dynamic"]},
           params=TINY),
    Mutant("every second moment by the dynamic map", ("zeros",), "BOOKS",
           lambda good: {**good, "linear unsigned": good["dynamic unsigned"]}, params=TINY),
    Mutant("the tree's indicator a place lower", ("literal_tree",), "fplab.codebooks.tree.fields",
           lambda good: lambda code: good(min(code + 1, 127)), params=TINY),
)  # fmt: skip

globals().update(frame(quantisation_error, SMALL, MUTANTS))


def test_errors_against_fractions() -> None:
    x = np.array([1.0, -0.3, 0.0, 0.02, 0.5, 4e-8, -0.011], np.float32)
    book = codebooks.dynamic()
    got = errors(x, book, 4, [5, 2])
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
    assert errors(np.float32([1, 1e-8]), book).lost == 0.5


def test_scaled_blocks_reach_one_and_stop_at_tensors() -> None:
    x = np.array([1, -2, 4, 8, 0, 0, 3], np.float32)
    assert scaled(x, 2, [3, 4]).tolist() == [0.5, -1, 1, 1, 0, 0, 1]
    assert scaled(x, sizes=[3, 4]).tolist() == [0.25, -0.5, 1, 1, 0, 0, 0.375]


def test_heavy_tails_are_students_t() -> None:
    """The distribution function of t with two degrees of freedom is 1/2 + t / (2 sqrt(2 + t^2))."""
    t = np.sort(heavy_tails(20_000).astype(np.float64))
    places = 0.5 + t / (2 * np.sqrt(2 + t * t))
    assert np.abs(places - (np.arange(t.size) + 0.5) / t.size).max() < 0.015


def test_real_tensors_are_all_there_and_in_the_table(result: Any) -> None:
    tensors = [data_of(result.p, kind) for kind in KINDS[2:]]
    assert {x.size for x, _ in tensors} == {sum(tensors[0][1])}
    assert min(tensors[0][1]) >= SMALLEST
    assert (data_of(result.p, "v")[0] >= 0).all()
    assert (data_of(result.p, "m")[0] < 0).any()
    table = E.rows(result)
    at = table["codebook"].index("dynamic unsigned")
    assert (len(table["data"]), table["data"][at], table["block"][at]) == (6 * 4 * 6, "v", 64)


def test_cases_use_many_codes() -> None:
    for case in quantisation_error.cases(E.quick):
        assert len(np.unique(case.compute(case.inputs(), "cpu")["codes"])) > 100


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
