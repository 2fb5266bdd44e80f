"""Block-scaled FP4 in groups of 16: oracle, row kernel and matrix kernel."""

import numpy as np
import pytest
from tensorcore_cases import bits, exact_bits, operand

import fplab
from fplab.errors import LabError
from fplab.tensorcore import Model, dot, get, matmul

MODELS = [get("B200", "mxfp4"), get("B200", "nvfp4"), get("RTXPRO6000", "nvfp4")]


def scales(model: Model, shape: tuple[int, ...], spread: int, rng: np.random.Generator) -> np.ndarray:
    """Scales of a model's format, now and then a NaN; E4M3 with subnormals, zeros and signs."""
    if model.scale[0] == "e8m0":
        code = np.clip(127 + rng.integers(-spread, spread, shape, endpoint=True), 0, 254)
        code = np.where(rng.random(shape) < 0.004, 255, code)
        return np.asarray(fplab.decode(code, "e8m0"))
    code = rng.integers(0, 127, shape) if spread > 60 else rng.integers(0, 20, shape)
    code = np.where(rng.random(shape) < 0.004, 127, code) + 128 * rng.integers(0, 2, shape)
    return np.asarray(fplab.decode(code, "e4m3"))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_three_ways(model: Model, seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, k, n = (int(rng.integers(1, top)) for top in (12, 200, 300))
    a, b = operand("e2m1", (m, k), "codes", rng), operand("e2m1", (k, n), "sparse" if seed % 2 else "codes", rng)
    c = operand("fp32", (m, n), ("codes", "tiny", "near", "big", "infinite", "nan")[seed], rng)
    groups = -(-k // model.scale[1])
    spread = (2, 40, 70, 127, 100, 3)[seed]
    sa, sb = scales(model, (m, groups), spread, rng), scales(model, (groups, n), spread, rng)
    fast = bits(matmul(a, b, c, gpu=model, scale_a=sa, scale_b=sb))
    for i in range(m):
        row = dot(np.tile(a[i], (n, 1)), b.T, c[i], gpu=model, scale_a=np.tile(sa[i], (n, 1)), scale_b=sb.T)
        assert np.array_equal(bits(row), fast[i])
    for _ in range(25):
        i, j = int(rng.integers(m)), int(rng.integers(n))
        assert exact_bits(model, a[i], b[:, j], c[i, j], list(zip(sa[i], sb[:, j], strict=True))) == fast[i, j]


def test_scales_of_one_are_the_default() -> None:
    rng = np.random.default_rng(3)
    a, b = operand("e2m1", (5, 70), "codes", rng), operand("e2m1", (70, 9), "codes", rng)
    plain = matmul(a, b, gpu="B200", inputs="nvfp4")
    assert np.array_equal(plain, a.astype(np.float64) @ b)
    ones = {"scale_a": np.ones((5, 5)), "scale_b": np.ones((5, 9))}
    assert np.array_equal(plain, matmul(a, b, gpu="B200", inputs="nvfp4", **ones))


def test_mxfp8_scales_move_exponents() -> None:
    a, b = np.full((1, 32), 448.0), np.full((32, 1), 448.0)
    d = matmul(a, b, gpu="B200", inputs="mxfp8_e4m3", scale_a=[[2.0**100]], scale_b=[[2.0**-110]])
    assert d[0, 0] == 448 * 448 * 32 / 1024
    assert matmul(a, b, gpu="B200", inputs="mxfp8_e4m3", scale_a=[[2.0**127]], scale_b=[[1.0]])[0, 0] == np.inf
    nan = matmul(a, b, gpu="B200", inputs="mxfp8_e4m3", scale_a=[[np.nan]])
    assert bits(nan)[0, 0] == 0x7FFFFFFF


def test_errors() -> None:
    with pytest.raises(LabError, match=r"scale_a has shape \(1, 2\); it must be \(1, 1\): one scale for 32"):
        matmul(np.ones((1, 32)), np.ones((32, 1)), gpu="B200", inputs="mxfp8_e4m3", scale_a=[[1.0, 1.0]])
    with pytest.raises(LabError, match=r"scale_a: element 0 is 3\.0, which e8m0 cannot represent"):
        matmul(np.ones((1, 32)), np.ones((32, 1)), gpu="B200", inputs="mxfp8_e4m3", scale_a=[[3.0]])
