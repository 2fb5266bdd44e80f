"""Cases of products on given operands: the stand-in, the path through torch, and which plans are asked about."""

import numpy as np
import pytest

from fplab.hardware import products
from fplab.hardware.cases import NotHereError, philox_bits
from fplab.hardware.core_cases import core_case
from fplab.hardware.products import FP16_SUMS, TF32, Product, product_compute

torch = pytest.importorskip("torch")
HALF = Product("matmul", ("fp16", "fp16"), "fp32", (64, 64, 32))


def operands() -> tuple[np.ndarray, np.ndarray]:
    """Small integers, so that every order gives the same bits."""
    bits = (philox_bits(3, 8 * 32, dtype=np.uint16) % 9).astype(np.float16) - np.float16(4)
    codes = bits.view(np.uint16).reshape(8, 32)
    return codes[:4].copy(), codes[4:].copy()


def exact() -> np.ndarray:
    a, b = (x.view(np.float16).astype(np.float64) for x in operands())
    return a @ b.T


def test_the_stand_in_gives_what_the_lab_says() -> None:
    case = core_case("one", HALF, operands)
    given = case.inputs()
    got, want = case.compute(given, "cpu"), case.emulate(given, {"kind": "cpu", "device": "a CPU"})
    assert got.keys() == want.keys() == case.formats.keys()
    assert np.array_equal(got["d"].view(np.float32), exact())
    assert all(np.array_equal(got[name], want[name]) for name in got)


@pytest.mark.parametrize("gpu", ["NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB"])
def test_the_model_is_that_of_the_recorded_gpu(gpu: str) -> None:
    from fplab import tensorcore

    a, b = (philox_bits(key, 4, 32, dtype=np.uint16) & np.uint16(0xBFFF) for key in (1, 2))
    case = core_case("one", HALF, lambda: (a, b))
    got = case.emulate(case.inputs(), {"kind": "cuda", "device": gpu, "capability": "9.0"})
    name = "H100" if "H100" in gpu else "V100"
    x, y = (v.view(np.float16).astype(np.float32) for v in (a, b))
    assert np.array_equal(got["d"], tensorcore.matmul(x, y.T, gpu=name).view(np.uint32))


@pytest.mark.parametrize("shape", [(64, 64, 32), (63, 50, 32)])
def test_through_torch_repeats_the_operands_and_says_that_nothing_moved(shape: tuple[int, int, int]) -> None:
    one = Product("matmul", ("fp16", "fp16"), "fp16", shape)
    got = product_compute(one, dict(zip("ab", operands(), strict=True)), "cpu")
    assert np.array_equal(got["d"].view(np.float16), exact())
    assert got["d"].dtype == np.uint16
    assert got["moved"].dtype == np.uint32
    assert not got["moved"].any()


def test_an_element_that_differs_elsewhere_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(one: Product, x: object, y: object, c: object) -> object:
        found = x @ y.t()  # type: ignore[operator,attr-defined]
        found[9, 6] += 1
        found[13, 10] += 1
        return found

    monkeypatch.setitem(products.CALLS, "matmul", product)
    one = Product("matmul", ("fp32", "fp32"), "fp32", (16, 16, 32), TF32)
    a, b = (x.view(np.float16).astype(np.float32).view(np.uint32) for x in operands())
    got = product_compute(one, {"a": a, "b": b}, "cpu")
    assert np.array_equal(got["d"].view(np.float32), exact())
    want = np.zeros((4, 4))
    want[1, 2] = 2
    assert np.array_equal(got["moved"], want)


def test_fp16_sums_are_another_plan() -> None:
    one = Product("matmul", ("fp16", "fp16"), "fp16", (64, 64, 32), FP16_SUMS)
    case = core_case("one", one, operands, {"accumulate": "fp16"})
    got = case.emulate(case.inputs(), {"kind": "cpu"})["d"]
    assert np.array_equal(got.view(np.float16), exact())
    assert case.open
    assert "split-K 2" in case.hypotheses


def test_a_gpu_without_tf32_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    one = Product("matmul", ("fp32", "fp32"), "fp32", (64, 64, 32), TF32)
    case = core_case("one", one, lambda: (np.zeros((4, 32), np.uint32), np.zeros((4, 32), np.uint32)))
    with pytest.raises(NotHereError, match="no TF32"):
        case.compute(case.inputs(), "cuda")
