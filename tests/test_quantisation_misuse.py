"""Codebooks and integers given what they cannot take: said in words, the value quoted, and nothing lost in silence."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import refusals
import torch

from fplab import codebooks, integers
from fplab.codebooks import Codebook, Quantized, Rule, tree
from fplab.errors import LabError
from fplab.integers import CALIBRATORS, GRIDS, Affine, Histogram

f32 = np.float32
BOOK = codebooks.dynamic()
HOW = integers.symmetric(1.0)
SEEN = Histogram().collect(np.sin(np.arange(500)))


test_what_is_refused_is_said = refusals.matching(
    (lambda: codebooks.quantize_blockwise([1.0, 1e300], BOOK), r"element 1 is 1e\+300, beyond float32; pass nan="),
    (lambda: codebooks.quantize_blockwise([1.0], BOOK, ties=["even"]), r"unknown ties \['even'\]\. Allowed: even,"),
    (lambda: codebooks.quantize_blockwise([1.0], np.zeros(256)), r"code=float64\[256\] is no Codebook"),
    (lambda: codebooks.quantize_blockwise([1.0], BOOK, 0),
     r"block=0 is not possible; allowed: 1 to \d+ \(None: the whole array\)"),
    (lambda: codebooks.dequantize_blockwise(Quantized(np.zeros(2, np.uint8), np.ones(1, f32), None, 4)),
     r"pass what quantize_blockwise returned"),
    (lambda: Codebook("mine", [0, 1e300]), r"value 1 is 1e\+300; blocks are scaled to"),
    (lambda: codebooks.quantile("abc"), r"data is of type str"),
    (lambda: codebooks.quantile(torch.ones(3, requires_grad=True)), r"pass data\.detach\(\)"),
    (lambda: codebooks.quantile([1.0, 1 + 1e-12]), r"data is 1\.0 throughout, in float32; a codebook has at least"),
    (lambda: Rule("mine", "nowhere", look_up=1), r"look_up=1 is not possible; allowed: 2 to"),
    (lambda: tree.encode("half"), r"x='half' is no finite number"),
    (lambda: integers.scheme([-1.0, 2.0], "uint8"), r"values reach -1\.0, and grid uint8 has no sign; use a sig"),
    (lambda: integers.quantize_groups([[-1.0, 2.0]], 2, "uint4"), r"values reach -1\.0, and grid uint4 has no"),
    (lambda: integers.quantize([1.0], "int8"), r"how is a str; pass what symmetric, affine or scheme returned"),
    (lambda: integers.dequantize([1], None), r"how is a NoneType; pass what"),
    (lambda: integers.dequantize([[1], [2, 3]], HOW), r"codes is no array of integers; its rows differ in length"),
    (lambda: integers.quantize([1.0], Affine(1.0, np.zeros((2, 1), int), GRIDS[0])),
     r"a zero point of shape \(2, 1\) does not broadcast to a tensor of shape \(1,\)"),
    (lambda: Affine("wide", 0, GRIDS[0]), r"scale is of type str"),
    (lambda: Affine(1e300, 0, GRIDS[0]), r"scale inf is not possible"),
    (lambda: Affine(1.0, 0, "int9"), r"unknown integer grid 'int9'"),
    (lambda: integers.int_matmul([[1, 2], [3]], [[1]]), r"a is no array of integers; its rows differ in length"),
    (lambda: integers.int_matmul([[65536]], [[65536]]), r"INT32 ends at 2147483647; use smaller codes\."),
    (lambda: integers.outliers([[1.0]], "6"), r"threshold='6' is not possible; allowed: 0 \(all dimensions\)"),
    (lambda: integers.outliers([[1.0]], None), r"threshold=None is not possible"),
    (lambda: SEEN.percentile("99"), r"Histogram\.percentile\('99'\): percentile='99' is not possible"),
    (lambda: SEEN.percentile(float("nan")), r"percentile=nan is not possible; allowed: 0 to 100"),
    (lambda: SEEN.entropy("int8", 0), r"start=0 is not possible; allowed: 1 to"),
    (lambda: SEEN.mse("int8", -5), r"start=-5 is not possible"),
    (lambda: SEEN.mse("int8", 2048), r"2048 bins leave no candidate from bin 2049 on; use more bins"),
    (lambda: CALIBRATORS[0].amax(np.ones(3)), r"a calibrator reads a Histogram, and this is a ndarray; collect it"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: integers.scheme([]), "fplab.integers.scheme([]): x has shape (0,) and no element"),
        (lambda: integers.scheme([-3e38, 3e38], zero_point=True),
         "fplab.integers.scheme([-3e+38, 3e+38], zero_point=True): high - low overflows FP32"),
        (lambda: integers.matmul([[1.0]], [[1.0]], threshold="6"),
         "fplab.integers.matmul([[1.0]], [[1.0]], threshold='6'): threshold='6' is not possible"),
    ],
)  # fmt: skip
def test_the_call_that_is_quoted_is_the_users(call: Any, text: str) -> None:
    """Not that of a public function which it called on the way."""
    with pytest.raises(LabError) as caught:
        call()
    assert str(caught.value).startswith(text)
    assert caught.value.call == text[: text.index("): ") + 1]


def test_any_number_can_be_encoded_as_a_tree() -> None:
    assert {tree.encode(x) for x in (0.5, f32(0.5), np.float64(0.5), Fraction(1, 2))} == {tree.encode(0.5)}
    assert tree.encode(f32(0.006)) == 0b0_001_1001


def test_quantiles_of_16_bit_tensors() -> None:
    x = torch.arange(1, 100).bfloat16()
    assert codebooks.quantile(x) == codebooks.quantile(x.float().numpy())


def test_a_grid_goes_by_its_name() -> None:
    assert Affine(1.0, 0, "INT4").grid == integers.symmetric(7.0, "int4").grid


def test_values_beyond_float32_are_infinite_in_silence() -> None:
    """As on the devices: no warning, which pytest would make an error."""
    assert np.isinf(integers.matmul([[3e38]], [[3e38]], "absmax")).all()
    assert not integers.outliers([[1.0]], 1e300).any()
