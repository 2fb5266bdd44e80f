"""FP32 on the CUDA cores: chains of fused multiply-adds against MPFR's and the oracle's, in the order of a plan."""

import numpy as np
import pytest
from prove import matrix
from tensorcore_cases import bits

import fplab
from fplab import LabError, bounds, set_num_threads
from fplab.kernels import multiply_adds
from fplab.tensorcore import GPUS, Plan, dot, get, matmul, models, oracle, trace

NVIDIA = [gpu for gpu in GPUS if models.row_of(gpu).vendor == "NVIDIA"]
H100 = get("H100", "fp32")


def drawn(k: int, n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of every kind: cancelling, next to overflow, subnormal, with zeros of both signs, infinities and NaNs."""
    return matrix.rows(H100, k, n, np.random.default_rng(seed))


@pytest.mark.parametrize("k", [1, 2, 7, 33])
def test_rows_are_chains_of_multiply_adds(k: int) -> None:
    a, b, c = drawn(k, 2000, k)
    want = matrix.multiply_adds(a, b, c)
    want.view(np.uint32)[np.isnan(want)] = 0x7FFFFFFF
    found = bits(dot(a, b, c, gpu="H100", inputs="fp32"))
    assert np.array_equal(found, bits(want))
    for i in range(0, 2000, 101):
        assert oracle.result_bits(oracle.dot(a[i].tolist(), b[i].tolist(), float(c[i]), H100), H100) == found[i]
        assert trace(a[i], b[i], c[i], gpu=H100).bits == found[i]


def test_a_multiply_add_in_fp64_rounded_to_fp32_is_another() -> None:
    """1 + 2**-23 and 2**-24 - 2**-70: FP64 keeps a tie, which goes up; what is added lies below it."""
    a, b, c = np.float32([(1 + 2.0**-23) * 2.0**-12]), np.float32([(1 - 2.0**-23) * 2.0**-12]), np.float32(1 + 2.0**-23)
    assert np.float32(a.astype(np.float64) * b + c) == 1 + 2.0**-22
    assert dot(a, b, c, gpu="H100", inputs="fp32") == fplab.fma(a, b, c, "fp32") == 1 + 2.0**-23
    square = np.full((7, 19), c)
    whole = matmul(np.tile(a, (7, 1)), np.tile(b[:, None], (1, 19)), square, gpu="H100", inputs="fp32")
    assert (whole == square).all()


@pytest.mark.parametrize("fmt", ["fp32", "fp64"])
@pytest.mark.parametrize("m", [1, 5, 6, 13])
@pytest.mark.parametrize("n", [1, 8, 16, 37])
def test_tiles_panels_and_their_edges(fmt: str, m: int, n: int) -> None:
    """Any rows, columns and k, also beyond what a tile takes at once, operands lying either way: each row's chain."""
    rng = np.random.default_rng(m * n)
    model, dtype = get("V100", fmt), np.dtype(fmt.replace("fp", "float"))
    for k in (1, 3, multiply_adds.DEEP + 1):
        a, b, c = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (n, k), (m, n)))
        rows = np.repeat(a, n, axis=0), np.tile(b, (m, 1)), c.reshape(-1)
        want = dot(*rows, gpu=model).reshape(m, n)
        for x in (a, np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2]):
            for y in (
                b.T,
                np.ascontiguousarray(b.T),
                np.ascontiguousarray(b.T)[::-1][::-1],
                np.repeat(b, 2, axis=0)[::2].T,
            ):
                assert np.array_equal(matmul(x, y, c, gpu=model), want)
        if k > 3:
            some = slice(None, None, 7)
            assert np.array_equal(want.reshape(-1)[some], matrix.multiply_adds(*(x[some] for x in rows)))


def test_threads_and_tall_matrices_change_nothing() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((2 * multiply_adds.TALL + 5, 700), (700, 90)))
    found = []
    for threads in (1, 3):
        set_num_threads(threads)
        found.append(matmul(a, b, gpu="H100", inputs="fp32"))
    set_num_threads(None)
    assert np.array_equal(*found)
    assert np.array_equal(
        found[0][:9], dot(np.repeat(a[:9], 90, axis=0), np.tile(b.T, (9, 1)), gpu=H100).reshape(9, 90)
    )
    assert (found[0] != matmul(a[:, ::-1], b[::-1], gpu=H100)).any()  # k descending is another chain


@pytest.mark.parametrize("reduction", ["ascending", "descending", "pairwise"])
def test_the_order_of_a_plan(reduction: str) -> None:
    """Slices of k from zero, which meet in FP32 additions; several accumulators take k in turn."""
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((9, 1000), (1000, 21)))
    how = {"gpu": "A100", "inputs": "fp32"}
    parts = [matmul(a[:, i : i + 250], b[i : i + 250], **how) for i in range(0, 1000, 250)]
    want = {"ascending": ((parts[0] + parts[1]) + parts[2]) + parts[3],
            "descending": ((parts[3] + parts[2]) + parts[1]) + parts[0],
            "pairwise": (parts[0] + parts[1]) + (parts[2] + parts[3])}  # fmt: skip
    found = matmul(a, b, plan=Plan(split_k=4, reduction=reduction), **how)
    assert np.array_equal(found, want[reduction])
    assert (found != matmul(a, b, **how)).any()
    turns = matmul(a[:, ::2], b[::2], **how) + matmul(a[:, 1::2], b[1::2], **how)
    assert np.array_equal(matmul(a, b, plan=Plan(accumulators=2), **how), turns)
    for i, j in ((0, 0), (8, 20)):
        plan = Plan(split_k=4, reduction=reduction)
        exact = oracle.planned(a[i].tolist(), b[:, j].tolist(), 0.0, H100, plan)
        assert oracle.result_bits(exact, H100) == bits(found)[i, j]


@pytest.mark.parametrize("gpu", NVIDIA)
def test_every_nvidia_gpu_multiplies_fp32_alike(gpu: str) -> None:
    a, b, c = drawn(9, 300, 4)
    model = get(gpu, "fp32")
    assert (model.instruction, model.kind, model.k, model.status) == ("fma", "fma", 1, models.Status.OPEN)
    assert np.array_equal(bits(dot(a, b, c, gpu=model)), bits(dot(a, b, c, gpu=H100)))
    with pytest.raises(LabError, match="promote=64 is for FP16, BF16, TF32 and FP8; fp32 has none"):
        matmul(a, a.T, gpu=gpu, inputs="fp32", plan=Plan(promote=64))


def test_errors_stay_within_their_bounds() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((8, 500), (500, 8)))
    found = bounds.matmul(a, b, gpu="H100", inputs="fp32")
    assert (found.measured <= found.worst).all()
    assert (found.measured > 0).any()
