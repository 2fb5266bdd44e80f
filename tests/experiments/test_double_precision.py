"""The experiment on FP64 answers from INT8 and FP16 units."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from experiments.frame import CELLS, Mutant, frame, record
from fplab.experiments import double_precision
from fplab.experiments.double_precision import SLICES, sliced

TINY = replace(double_precision.E.quick, rows=4, k=64, matrices=1, systems=2, size=32)


def a_bit_more(good: Any) -> Any:
    """FP16 slices a bit longer than FP32's 24 allow."""
    return lambda k: good(k) + 2


def a_slice_less(good: Any) -> Any:
    """Sums of fewer products of slices than is said, and never of all."""
    return lambda parts, scales, bits, count: good(parts, scales, bits, min(count - 1, len(parts)))


def in_fp32(good: Any) -> Any:
    """Residuals as far off as FP32's are."""
    return lambda a, x, b: good(a, x, b) + 1e-7


def whole_factors(good: Any) -> Any:
    """Factors in FP64, with which plain refinement never fails."""

    def factors(a: np.ndarray) -> Any:
        order = good(a)[2]
        exact = a[order].copy()
        for j in range(len(a)):
            exact[j + 1 :, j] /= exact[j, j]
            exact[j + 1 :, j + 1 :] -= np.outer(exact[j + 1 :, j], exact[j, j + 1 :])
        return np.tril(exact, -1) + np.eye(len(a)), np.triu(exact), order

    return factors


def always_fp64(good: Any) -> Any:
    """Residuals are FP64's also where FP32's are asked for."""
    return lambda a, x, b: 1e-6 * good(a, x, b)


MUTANTS = (
    Mutant("FP16 slices too long", ("exact_slices",), "half_bits", a_bit_more, params=TINY),
    Mutant("products of slices on a shorter unit", ("exact_slices",), CELLS,
           record("H100", "fp16", alignment_bits=13, kept_bits=13), params=TINY),
    Mutant("a slice less than is said", ("correctly_rounded", "dropping"), "added", a_slice_less, params=TINY),
    Mutant("rows that do not fall", ("spread_costs",), "operands",
           lambda good: lambda seed, spread, p: good(seed, 0, p), params=TINY),
    Mutant("residuals in FP32", ("refined", "rescued"), "residual", in_fp32, params=TINY),
    Mutant("residuals of another system", ("residuals_in_fp64",), "residual", always_fp64, params=TINY),
    Mutant("factors in FP64", ("refined", "rescued"), "factors", whole_factors, params=TINY),
)  # fmt: skip

globals().update(frame(double_precision, double_precision.E.quick, MUTANTS))


def test_slices_are_the_rows_exactly() -> None:
    x = np.array([[1.0, -3.3, 2.0**-60], [0.1, 0.0, 1e-30]])
    found, exponents = sliced(x, 7)
    assert np.abs(found).max() <= 127
    for i in range(2):
        for k in range(3):
            parts = [
                Fraction(int(q)) * Fraction(2) ** int(exponents[i] - 7 * (s + 1)) for s, q in enumerate(found[:, i, k])
            ]
            assert sum(parts, Fraction(0)) == Fraction(float(x[i, k]))


def test_gmres_solves() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((9, 9)) + 4 * np.eye(9)
    x, taken = double_precision.gmres(lambda v: a @ v, np.ones(9), 1e-12)
    np.testing.assert_allclose(a @ x, np.ones(9), rtol=1e-10)
    assert taken == 9
    assert len(SLICES) == 13
