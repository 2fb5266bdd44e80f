"""Scaled quantisation: kernels against the oracle on fractions, shapes, bytes, errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import raw, specials

from fplab import LabError, decode, encode, scaled
from fplab.formats import Format, Rounding
from fplab.kernels.convert import random_words
from fplab.scaled import SCHEMES, Scheme, oracle
from fplab.scaled.schemes import TABLE

f32 = np.float32
E5M3 = Format("ue5m3", 5, 3, signed=False)
MINE = Scheme("mine", "e3m2", E5M3, (1, 64))  # a scheme nobody ships
MXINT8 = Scheme("mxint8", Format("i8", 1, 6, 1, specials=SCHEMES["mxfp4"].element.specials), "e8m0")
EVERY = (*TABLE, MINE, MXINT8)
VARIED = [
    replace(scheme, rule=rule, variant=variant)
    for scheme in EVERY
    for rule in scaled.RULES[scheme.kind]
    for variant in scaled.VARIANTS[scheme.kind]
]
SQUARE = [replace(SCHEMES[name], block=block, variant=variant) for name, block, variant in (
    ("nvfp4", (16, 16), "te"), ("nvfp4", (16, 16), "torchao"), ("mxfp8", (32, 32), "torchao"), ("fp8_block", (128, 128), "te"),
    ("fp8_block", (3, 5), "te"), ("mxfp4", (2, 7), "te"), ("fp8_tensor", "row", "torchao"),
)] + [replace(SCHEMES["nvfp4"], tensor="row", variant=variant) for variant in ("te", "torchao")]  # fmt: skip


def hard(shape: tuple[int, int], key: int, special: bool = True) -> np.ndarray:
    """A matrix whose rows differ in regime: ordinary, near powers of two, subnormal, huge, zero, with NaN and infinity."""
    rng = np.random.default_rng(key)
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-4, 4, shape))).astype(f32)
    near = (np.exp2(rng.integers(-12, 12, shape)) * rng.choice([1, 7, 1.75, 3, 1.5, 0.75, 448], shape)).astype(f32)
    near = (near.view(np.uint32) + rng.integers(-1, 2, shape).astype(np.uint32)).view(f32)
    scales = (1e-40, 1e-38, 2e-38, 1e37, 3e38, 0)
    with np.errstate(over="ignore"):
        for row in range(shape[0]):
            x[row] = (x, near, np.clip(x / 60, -1, 1) * f32(scales[row % 6]), raw(key + row, x.size).view(f32).reshape(shape))[row % 4][row]
    x = np.where(np.isfinite(x), x, f32(1))
    if special:
        x[1::5, 3::40], x[2::7, 20::50], x[3::5, 5::33] = np.nan, -np.inf, -0.0
    return np.ascontiguousarray(x)


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Bit equality, NaNs alike."""
    assert got.dtype == want.dtype
    alike = (got == want) & (np.signbit(got) == np.signbit(want)) if got.dtype == f32 else got == want
    np.testing.assert_array_equal(alike | ((got != got) & (want != want)), True)


@pytest.mark.parametrize("scheme", VARIED + SQUARE, ids=lambda s: f"{s.name}-{s.block}-{s.tensor}-{s.rule}-{s.variant}")
def test_every_rule_and_variant_is_its_definition(scheme: Scheme) -> None:
    for special in (False, True):
        x = hard((9, 75), 7, special)
        q = scaled.quantize(x, scheme)
        codes, scales, values = oracle.quantize(x, scheme)
        np.testing.assert_array_equal(q.codes, codes)
        same(q.scales, scales)
        same(q.dequantize(), values)
