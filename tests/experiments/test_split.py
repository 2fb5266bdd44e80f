"""The experiment ``split``: mutants, parts and their bounds by hand, products as the papers say."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.frame import CELLS, Mutant, frame, record
from fplab import exact_products as whole
from fplab import tensorcore
from fplab.experiments import split
from fplab.hardware.tensors import tensor

UNIT = Fraction(2) ** whole.UNIT
SMALL = replace(split.E.quick, log2_last=12, values=256)
TINY = replace(SMALL, rows=2, log2_last=4)
SHORT = replace(TINY, rows=4, log2_last=9)


def method(name: str, **fields: Any) -> Any:
    """The fault of a method that multiplies otherwise."""
    return lambda good: {**good, name: replace(good[name], **fields)}


MUTANTS = (
    Mutant("truncated parts", ("lost_bits", "numpy_parts", "how_many", "ranges"), "split",
           lambda good: lambda x, scheme: good(x, replace(scheme, rounding="rtz")), params=TINY),
    Mutant("TF32 parts with BF16's bits", ("ranges",), "SCHEMES", method(split.WIDER.name, fmt="bf16"),
           params=TINY),
    Mutant("bounds eight times too large", ("bounds_hold",), "fplab.experiments.long_products.Sums.bound",
           lambda bound: lambda *of: 8 * bound(*of), params=SHORT),
    Mutant("A100 aligns to 18 bits", ("bounds_hold", "single_precision"), CELLS,
           record("A100", "fp16", alignment_bits=18)),
    Mutant("FP32 multiplies parts", ("bounds_hold",), "fplab.experiments.tf32.multiply_adds",
           lambda good: lambda a, b, at: good(*(split.split(x, split.PLAIN)[0] for x in (a, b)), at),
           params=SHORT),
    Mutant("outside adds inside on A100", ("inside_drifts", "single_precision"), "METHODS",
           method(split.OUTSIDE["A100"], outside=False)),
    Mutant("outside without the scale", ("scale_saves",), "METHODS", method(split.OUTSIDE["A100"], scheme=split.PLAIN)),
    Mutant("TF32 parts are FP16's", ("gradients",), "METHODS", method(split.WIDE_PARTS, scheme=split.SCALED)),
)  # fmt: skip

globals().update(frame(split, SMALL, MUTANTS))


def params_of(a: np.ndarray, b: np.ndarray) -> Any:
    """Parameters whose operands of the kind "other" are these."""
    p = replace(SMALL, rows=len(a), log2_last=a.shape[1].bit_length() - 1)
    p._kept["given", "other"] = a, b
    return p


def test_outside_is_c_0_for_each_instruction_and_numpys_additions(result: Any) -> None:
    for gpu in split.GPUS:
        (ah, al), (bh, bl) = (split.split(x[:, :1024], split.SCALED) for x in split.given(result.p, "random"))
        sums = np.zeros((2, len(ah), len(bh)), np.float32)
        for which, a, b in ((0, ah, bh), (1, ah, bl), (1, al, bh)):
            for start in range(0, 1024, 16):
                s = slice(start, start + 16)
                sums[which] += tensorcore.matmul(a[:, s], b[:, s].T, gpu=gpu)
        got = result.results.sel(kind="random", way=split.OUTSIDE[gpu])[..., 6]
        assert np.array_equal(got, sums[0] + sums[1] / np.float32(2048))


@given(st.floats(2.0**-13, 60000, width=32), st.booleans())
def test_parts_miss_at_most_a_unit_and_low_has_half_a_unit_of_high(value: float, negative: bool) -> None:
    x = np.array([-value if negative else value], np.float32)
    high, low = (Fraction(float(v[0])) for v in split.split(x, split.SCALED))
    left = Fraction(float(x[0])) - high - low / 2048
    unit = Fraction(2) ** (int(np.frexp(value)[1]) - 24)
    assert left in (0, unit, -unit)
    assert abs(low) / 2048 <= abs(Fraction(float(x[0]))) / 2048
    assert left == Fraction(float(split.missing(x, split.SCALED)[0]))


def test_three_products_miss_more_where_a_scaled_part_is_subnormal() -> None:
    """Below 2**-13: the largest low whose rounding, to even, loses two units of FP32."""
    a = np.full((1, 16), 2.0**-14 + 4090 * 2.0**-37, np.float32)
    p = params_of(a, a)
    missed = np.abs(split.part_off(p, "other", split.THREE))
    assert (4 * missed > 5 * (split.sums(p, "other").magnitude >> 21)).all()
    assert (missed <= split.split_bound(p, "other")).all()


def test_the_lost_bits_are_those_of_a_count_by_hand(result: Any) -> None:
    """13 bits are left; to nearest they are an integer from -4096 to 4096, of which low keeps 11 bits."""
    left = np.arange(8192)
    nearest = np.where(left > 4096, left - 8192, left)  # the share of ties is even
    odd = (np.abs(nearest) > 2048) & (nearest % 2 == 1)
    assert odd.mean() == 0.25
    assert (result.lost.values / 2.0**23).tolist() == [[0.75, 0.25, 0, 0], [0.5, 0.25, 0.125, 0.125]]


def test_schemes_keep_what_they_should() -> None:
    x = np.array([1 + 2.0**-23, 3.0, 70000.0, 2.0**-40], np.float32)
    assert (split.missing(x, split.WIDER) == 0).all()
    assert (split.split(x, split.ALONE)[1] == 0).all()
    high, low = split.split(x, split.PLAIN)
    assert high.tolist() == [1, 3, np.inf, 0]
    assert low[0] == 2.0**-23


def test_products_are_taken_as_the_papers_say() -> None:
    a, b = split.operands("random", 3, 6)
    (ah, al), (bh, bl) = (split.split(x, split.PLAIN) for x in (a, b))
    c = None
    for x, y in ((al, bl), (ah, bl), (al, bh), (ah, bh)):
        c = tensorcore.matmul(x, y.T, c, gpu="A100")
    assert np.array_equal(split.multiply(a, b, split.METHODS["4 products"]), c)
    assert np.array_equal(split.multiply(a, b, split.METHODS["FP16"]), tensorcore.matmul(ah, bh.T, gpu="A100"))
    (ah, al), (bh, bl) = (split.split(x, split.SCALED) for x in (a, b))
    mixed = tensorcore.matmul(al, bh.T, tensorcore.matmul(ah, bl.T, gpu="H100"), gpu="H100")
    want = tensorcore.matmul(ah, bh.T, gpu="H100") + mixed / np.float32(2048)
    assert np.array_equal(split.multiply(a, b, split.METHODS[split.INSIDE["H100"]]), want)


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(-8, 12), st.booleans())
def test_bounds_hold_on_other_operands(seed: int, exponent: int, positive: bool) -> None:
    rng = np.random.default_rng(seed)
    a, b = (np.ldexp(rng.random((2, 64)) - (0 if positive else 0.5), exponent).astype(np.float32) for _ in range(2))
    p = params_of(a, np.ldexp(b, -exponent))
    sums = split.sums(p, "other")
    assert sums.lengths.tolist() == [16, 32, 64]
    assert (np.abs(split.part_off(p, "other", split.THREE)) <= split.split_bound(p, "other")).all()
    for method in split.METHODS:
        bound = split.bound(p, "other", method)
        if bound is not None:
            assert (np.abs(sums.off(split.product(p, "other", method))) <= bound).all(), method
            assert (bound < sums.magnitude // 1000).all()


def test_partial_sums_are_exact() -> None:
    a, b = (x[:1, :16] for x in split.operands("random", 1, 4))
    got = split.partial_sums(params_of(a, b), "other")[:, 0, 0, 0]
    (ah, al), (bh, bl) = ([[Fraction(float(v)) for v in p[0]] for p in split.split(x, split.SCALED)] for x in (a, b))
    total = Fraction(0)
    for i, (x, y, scale) in enumerate(((ah, bh, 1), (al, bh, 2048), (ah, bl, 2048), (al, bl, 2048**2))):
        total += sum(p * q for p, q in zip(x, y, strict=True)) / scale
        assert got[i] * UNIT == total


def test_the_bound_outside_grows_sixteen_times_slower(result: Any) -> None:
    inside, outside = (split.sums(result.p, "positive").shares(split.sum_bound(result.p, "positive", "A100", w))[0, 0]
                       for w in (False, True))  # fmt: skip
    assert inside[0] <= outside[0]
    assert 16 < (inside[-1] - inside[-2]) / (outside[-1] - outside[-2]) < 19


def test_what_runs_on_a_gpu_adds_as_the_lab_does() -> None:
    """The device's own path, with a product of the lab's in the place of torch's."""
    torch = pytest.importorskip("torch")
    case = next(c for c in split.cases(SMALL) if c.name.startswith("positive, K = 256"))
    inputs = case.inputs()
    x, y = (tensor(inputs[name], "fp32", "cpu") for name in "ab")

    def multiply(a: Any, b: Any) -> Any:
        return torch.from_numpy(tensorcore.matmul(a.float().numpy(), b.float().numpy().T, gpu="A100"))

    got = split.outside(split.device_parts(x), split.device_parts(y), multiply)
    want = case.emulate(inputs, {"kind": "cuda", "device": "NVIDIA A100-SXM4-80GB"})
    assert all(np.array_equal(got[name].numpy().view(np.uint32), want[name]) for name in want)
    other = case.hypotheses["instructions of k = 8"](inputs, {"kind": "cpu"})
    assert not np.array_equal(other["d"], case.emulate(inputs, {"kind": "cpu"})["d"])


def test_the_experiment_multiplies_as_the_cases_do(result: Any) -> None:
    got = split.outside_emulate(split.inputs_of("positive", 256, SMALL), {"kind": "cpu"})["d"].view(np.float32)
    assert np.array_equal(got, result.results.sel(kind="positive", way=split.OUTSIDE["H100"])[..., 4])
    assert split.high_parts("positive", SMALL)[0].shape == (SMALL.rows, split.LONG_K)
