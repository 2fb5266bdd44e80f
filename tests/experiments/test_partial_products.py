"""The experiment ``partial_products``: mutants, bounds by definition, operands of a network, fates by hand."""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.frame import CELLS, Mutant, frame, record
from fplab import exact, floats
from fplab import exact_products as whole
from fplab.experiments import chain_bounds as bounds
from fplab.experiments import long_products as shared
from fplab.experiments import partial_products
from fplab.tensorcore import oracle
from fplab.tensorcore.models import GPUS, get

pp = partial_products
UNIT = Fraction(2) ** whole.UNIT
QUICK = pp.E.quick
TINY = replace(QUICK, rows=2, log2_last=8, points=16)


def times(factor: Any) -> Any:
    return lambda good: lambda *of: good(*of) * factor


def running_in(fmt: str, other: str) -> Any:
    """The fault of sums one by one in one format that are sums in another."""
    return lambda good: lambda a, b, wanted: good(a, b, other if wanted == fmt else wanted)


MUTANTS = (
    Mutant("sums in descending order", ("libraries",), "running",
           lambda running: lambda a, b, fmt: running(a[::-1], b[:, ::-1], fmt), params=TINY),
    Mutant("another running sum is drawn", ("libraries",), "trace",
           lambda trace: lambda p, kind, way: trace(p, kind, "exact" if way != "exact" else pp.HALVES[1]), params=TINY),
    Mutant("FP32 sums in FP16", ("libraries", "bounds_hold", "cancellation"), "running", running_in("fp32", "fp16"),
           params=TINY),
    Mutant("FP16 sums in FP32", ("libraries", "cancellation"), "running", running_in("fp16", "fp32"), params=TINY),
    Mutant("bounds one by one eight times too large", ("bounds_hold",), "bounds.one_by_one", times(8), params=TINY),
    Mutant("bounds by block eight times too large", ("sharp",), "fplab.exact_products.of_counts",
           lambda limbs: lambda counts, lowest: limbs(counts, lowest + 3), params=TINY),
    Mutant("the rate eight times too large", ("sharp",), "bounds.rate", times(8), params=TINY),
    Mutant("half the rate", ("beforehand",), "bounds.rate", times(Fraction(1, 2)), params=TINY),
    Mutant("A100 aligns to 23 bits", ("blocks", "bounds_hold"), CELLS,
           record("A100", "fp16", alignment_bits=23), params=TINY),
    Mutant("V100 aligns to 25 bits", ("blocks", "published"), CELLS, record("V100", "fp16", alignment_bits=25)),
    Mutant("H100 keeps 20 bits", ("beforehand", "published"), CELLS, record("H100", "fp16", kept_bits=20)),
    Mutant("H100 rounds to nearest", ("drift", "more_bits"), CELLS, record("H100", "fp16", rounding="rne")),
    Mutant("the cast truncates", ("stored_once",), "fplab.numeric.quantize",
           lambda quantize: lambda x, fmt, *of, **named: quantize(x, fmt, *(of or ("rtz",)), **named), params=TINY),
    Mutant("fates by place reversed", ("lost_products",), "fates",
           lambda fates: lambda *of: fates(*of)[::-1], params=TINY),
)  # fmt: skip

globals().update(frame(partial_products, QUICK, MUTANTS))


def test_the_records_know_four_ways_to_add_fp16_products() -> None:
    """Three that torch's products take, and the short instruction of Hopper and later."""

    def blocks(gpus: Any, instruction: str | None = None) -> set[tuple[int, int]]:
        models = (get(gpu, "fp16", "fp32", instruction=instruction) for gpu in gpus)
        return {(one.length, one.alignment_bits) for one in models}

    fused = [gpu for gpu in GPUS if get(gpu).kind == "block"]
    assert blocks(fused) == blocks(pp.CORES) == {(4, 23), (8, 24), (16, 25)}
    assert blocks(("H100", "H200", "B200"), "mma.k8") == {(8, 25)}


def half_codes(shape: tuple[int, ...], seed: int, subnormal: bool = False) -> np.ndarray:
    """Random finite FP16 codes of moderate size; also subnormal ones where asked for."""
    rng = np.random.default_rng(seed)
    exponent = rng.integers(0 if subnormal else 8, 18, shape).astype(np.uint16)
    fraction, sign = (rng.integers(0, n, shape).astype(np.uint16) for n in (1024, 2))
    return (sign << np.uint16(15)) | (exponent << np.uint16(10)) | fraction


def params_of(a: np.ndarray, b: np.ndarray) -> Any:
    """Parameters whose operands of the kind "other" are these codes."""
    p = replace(QUICK, rows=len(a), log2_last=a.shape[1].bit_length() - 1)
    p._kept["given", "other"] = pp.values(a), pp.values(b)
    return p


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(tuple(pp.CORES)), st.booleans())
def test_walked_chains_and_their_bounds_are_the_oracles(seed: int, gpu: str, subnormal: bool) -> None:
    """Alignment, last place and result of every block, and the bound from them, on Fractions."""
    a, b = (pp.values(half_codes((1, 32), seed + i, subnormal)) for i in range(2))
    models = [pp.unit(gpu, fmt) for fmt in pp.FORMATS]
    products, exponents = bounds.terms(a, b)
    chains = bounds.walk(products, exponents, models)
    sizes = np.array([16, 32])
    got = whole.unpack(bounds.by_block(chains, exponents, models, sizes))
    pairs = [[exact.from_float(v) for v in x[0].tolist()] for x in (a, b)]
    for m, model in enumerate(models):
        total, blocks = Fraction(0), oracle.instruction(*pairs, exact.Exact(False), model)
        for j, block in enumerate(blocks):
            assert block.result.value == Fraction(chains.totals[j + 1, m, 0])
            if block.emax is not None:
                assert block.emax == chains.tops[j, m, 0]
                others = sum(t.counts and t.exponent < block.emax for t in block.terms)
                place = Fraction(2) ** int(chains.places[j, m, 0])
                rounding = place / 2 if model.rounding == "rne" else place - block.quantum
                lost = others * block.quantum + (rounding if block.total and place > block.quantum else 0)
                error = abs(sum((t.value for t in block.terms), Fraction(0)) - block.result.value)
                assert error <= lost
                total += lost
            if (j + 1) * model.length in sizes:
                assert got[m, 0, list(sizes).index((j + 1) * model.length)] * UNIT == total


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_bounds_hold_on_other_operands_with_subnormals(seed: int) -> None:
    p = params_of(*(half_codes((2, 128), seed + i, True) for i in range(2)))
    assert pp.sums(p, "other").lengths.tolist() == [16, 32, 64, 128]
    for way, (fmt, gpu) in pp.WAYS.items():
        bound = pp.bound(p, "other", way)
        assert (np.abs(pp.off(p, "other", way)) <= bound).all(), way
        if gpu and fmt == "fp32":
            assert (bound <= pp.bound_beforehand(p, "other", way)).all(), way


def test_a_subnormal_operand_needs_the_clamped_sum() -> None:
    """2**-24 * 2**10 aligns at 2**-4, ten binades above its value: more of the others is cut than |a b| allows."""
    a, b = (np.full((1, 16), 2.0**-14 * (2 - 2.0**-10)) for _ in range(2))
    a[0, 0], b[0, 0] = 2.0**-24, 2.0**10
    p = params_of(shared.half(a), shared.half(b))
    at = p, "other", "H100 FP32"
    unclamped = 16 * bounds.rate(pp.unit("H100", "fp32")) * pp.sums(p, "other").magnitude[0, 0, 0]
    error, bound, beforehand = (x[0, 0, 0] for x in (np.abs(pp.off(*at)), pp.bound(*at), pp.bound_beforehand(*at)))
    assert unclamped < error <= bound <= beforehand


def test_rates_and_the_bound_one_by_one_are_the_documented_ones() -> None:
    rates = [bounds.rate(pp.unit(gpu, "fp32")) * 2**24 for gpu in pp.CORES]
    assert rates == [2, Fraction(9, 8), Fraction(19, 32)]
    assert bounds.one_by_one(10, 24, 1000) == 9 * Fraction(1, 2**24) * 1000
    stored = Fraction(1000, 2**11) + 10 * Fraction(2) ** (-25 - whole.UNIT)
    assert bounds.one_by_one(10, 11, 1000) == stored + Fraction(9, 2**11) * (1000 + stored)


def test_every_stretch_of_the_climbing_operands_comes_back() -> None:
    a, b = map(pp.values, pp.operands("ill-conditioned", 3, 8))
    for start, end in ((0, 16), (16, 32), (128, 256)):
        middle = (start + end) // 2
        first, second = (a[0, s] * b[1, s] for s in (slice(start, middle), slice(middle, end)))
        left = np.sort(first) - np.sort(-second)
        assert (left != 0).sum() <= 2  # the one that was changed may take another place in the order
        assert abs(first.sum() + second.sum()) < 0.02


def test_products_of_the_worst_case_lie_just_below_what_is_kept() -> None:
    a, b = map(pp.values, pp.operands("swamped", 2, 8))
    assert a.shape == (3, 256)
    for row, (gpu, exponents) in enumerate(pp.TARGETS.items()):
        model = pp.unit(gpu, "fp32")
        assert len(exponents) == model.length
        cut = np.trunc(np.ldexp(a[row] * b[0], model.alignment_bits))[1:]
        blocks = cut[model.length - 1 :].reshape(-1, model.length).sum(axis=1)
        assert (blocks < 2.0 ** (model.alignment_bits - 23)).all()
    assert (b[0] == -b[1]).all()


def test_real_operands_are_the_networks_own_products() -> None:
    """The matrix products give what the convolution and its two gradients give, in float64 from the same tensors."""
    torch = pytest.importorskip("torch")
    t = {name: v[:8] if name[0] != "w" else v for name, v in shared.tensors().items()}
    few = {name: torch.from_numpy(v).double() for name, v in t.items()}

    def rows(x: np.ndarray, width: int) -> np.ndarray:
        return x.reshape(-1, width).astype(np.float64)

    w3 = t["w3"]
    forward = rows(shared.patches(t["x3"]), w3[0].size) @ rows(w3, w3[0].size).T
    want = torch.nn.functional.conv2d(few["x3"], few["w3"], padding=1).permute(0, 2, 3, 1).reshape(forward.shape)
    assert np.allclose(forward, want.numpy(), rtol=1e-12, atol=1e-14)
    back = w3.transpose(1, 0, 2, 3)
    backward = rows(shared.patches(t["g3"])[..., ::-1, ::-1], back[0].size) @ rows(back, back[0].size).T
    want = torch.nn.grad.conv2d_input(few["x3"].shape, few["w3"], few["g3"], padding=1)
    assert np.allclose(backward, want.permute(0, 2, 3, 1).reshape(backward.shape).numpy(), rtol=1e-9, atol=1e-18)
    x2 = rows(shared.patches(t["x2"]), t["x2"].shape[1] * 9)
    g2 = t["g2"].transpose(1, 0, 2, 3).reshape(t["g2"].shape[1], -1).astype(np.float64)
    want = torch.nn.grad.conv2d_weight(few["x2"], (32, 16, 3, 3), few["g2"], padding=1).reshape(32, -1)
    assert np.allclose(g2 @ x2, want.numpy(), rtol=1e-9, atol=1e-15)


def test_the_loss_scale_brings_the_largest_gradient_below_one() -> None:
    g = np.array([0.75e-3, -3e-7], np.float32)
    assert 0.5 <= np.abs(g).max() * 2.0 ** shared.loss_scale(g) < 1


def test_drawn_rows_are_alive_and_as_many_as_asked_for() -> None:
    x = np.zeros((6, 40), np.float32)
    x[1:5, 3] = 1
    x[0, 20] = 1  # beyond the shortest product
    x[5, 3] = 2.0**-26  # zero in FP16
    assert shared.alive(x, 2, 1).size == 2
    assert shared.alive(x, 9, 1).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(("kind", "k"), list(zip(shared.REAL, (256, 512, 1024), strict=True)))
def test_chosen_rows_are_rows_of_the_matrices(kind: str, k: int) -> None:
    pair = shared.chosen(kind, 3, 10)
    for x, everything in zip(pair, shared.matrices(kind), strict=True):
        assert x.shape == (3, k)
        assert all((everything[:, :k] == row).all(axis=1).any() for row in x)
    codes = pp.operands(kind, 3, 10)
    assert all((pp.values(c) == v.astype(np.float16)).all() for c, v in zip(codes, pair, strict=True))


def test_fates_are_counted_by_place() -> None:
    a = np.array([2.0**-10] + [1.0] * 31, np.float32)[None]
    b = np.array([2.0**-16, 0, 2048] + [1.0] * 29, np.float32)[None]
    count = partial(pp.fates, a, b, at=np.array([16, 32]))
    halves, singles = (pp.running(a[0], b, fmt)[None] for fmt in pp.FORMATS)
    # a zero, 2^-26, ones beside 2048 without effect, 2048
    assert count(fmt="fp16", sums=halves).tolist() == [[1, 1, 13, 1], [0, 0, 16, 0]]
    assert count(fmt="fp32", sums=singles).tolist() == [[1, 0, 0, 15], [0, 0, 0, 16]]


def test_the_table_has_every_error_with_its_bound(result: Any) -> None:
    table = list(zip(*pp.E.rows(result).values(), strict=True))
    assert len(table) == len(pp.WAYS) * (5 * 11 + 5 + 6)
    assert all(largest <= bound and used <= 1 for *_, largest, bound, used in table)
    (last,) = [row for row in table if row[:3] == ("swamped", "V100 FP32", 1 << QUICK.log2_last)]
    assert last[-1] > 0.99


def test_a_case_multiplies_what_the_experiment_multiplied(result: Any) -> None:
    cases = list(pp.cases(QUICK))
    case = next(c for c in cases if c.name.startswith(f"positive, K = {1 << QUICK.log2_last}"))
    got = case.emulate(case.inputs(), {"kind": "cuda", "device": "NVIDIA A100-SXM4-80GB"})["d"]
    assert np.array_equal(got.view(np.float32), pp.product(result.p, "positive", "A100 FP32")[..., -1])
    stored = next(c for c in cases if "stored as FP16" in c.name)
    got = stored.emulate(stored.inputs(), {"kind": "cpu"})["d"]
    assert np.array_equal(got, floats.encode(pp.product(result.p, "positive", "H100 FP32")[..., 8], "fp16"))
    assert all(sum(x.nbytes for x in case.inputs().values()) <= 1 << 20 for case in cases)
