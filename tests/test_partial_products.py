"""The experiment ``partial_products``: exact integers, bounds by definition, checks that can fail, GPU cases."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_frame import Mutant, claim_of, computed_on_cpu, drawn, forged, frame, holds, kills, repeats
from hypothesis import given, settings
from hypothesis import strategies as st

from fplab import exact, floats
from fplab import exact_products as whole
from fplab.experiments import partial_products as pp
from fplab.experiments.partial_products import accumulators, bounds, exactly, network, operands
from fplab.hardware.cases import Arrays, Case
from fplab.tensorcore import oracle
from fplab.tensorcore.models import GPUS, get

UNIT = Fraction(2) ** whole.UNIT

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(pp, pp.QUICK)


# --- every check can fail --------------------------------------------------------------------------------------------

Change = Callable[[np.ndarray], Any]


def _results(fmt: str, gpu: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Change the results of one accumulator."""

    def apply(array: np.ndarray) -> None:
        i = pp.index(fmt, gpu)
        array[i] = change(array[i])

    return apply


def _set(place: Any, value: Any) -> Change:
    def apply(array: np.ndarray) -> None:
        array[place] = value

    return apply


def _copy(source: tuple[str, str], target: tuple[str, str]) -> Change:
    """Give one accumulator the results of another."""

    def apply(array: np.ndarray) -> None:
        array[pp.index(*target)] = array[pp.index(*source)]

    return apply


def off(array: str, change: Change) -> Callable[[Arrays], Arrays]:
    """One array changed."""

    def apply(arrays: Arrays) -> Arrays:
        change(arrays[array])
        return {array: arrays[array]}

    return apply


def times(bound: Any, factor: Fraction) -> Any:
    return lambda *of: bound(*of) * factor


TINY = pp.Params(rows=2, log2_last=8, points=16)  # of a mutant that runs again
SUMS, BOUNDS, DRIFT = "numpy's float16 and", "No error is above", "All-positive sums drift"
MUTANTS = (
    Mutant("sums in descending order", (SUMS,), "accumulators.running",
           lambda running: lambda a, b, fmt: running(a[::-1], b[:, ::-1], fmt), params=TINY),
    Mutant("an ulp of FP32", (SUMS,), change=off(
        "swamped: results", _results("fp32", "", lambda x: np.nextafter(x, np.float32(9))))),
    Mutant("another running sum is drawn", (SUMS,), change=off("positive: trace", _set((2, -1), 3.0))),
    Mutant("an error of 1", (BOUNDS,), change=off("random: results", _results("fp32", "", lambda x: x + 1))),
    Mutant("a thousandth too large", (BOUNDS, "These bounds"), change=off(
        "swamped: results", _results("fp32", "A100", lambda x: x * np.float32(1.001)))),
    Mutant("bounds one by one eight times too large", (BOUNDS,), "bounds.one_by_one",
           lambda bound: lambda *of: times(bound, Fraction(8))(*of), params=TINY),
    Mutant("bounds by block eight times too large", ("These bounds",), "fplab.exact_products.of_counts",
           lambda limbs: lambda counts, lowest: limbs(counts, lowest + 3), params=TINY),
    Mutant("the rate eight times too large", ("These bounds",), "bounds.rate",
           lambda rate: lambda model: 8 * rate(model), params=TINY),
    Mutant("half the rate", ("FP32 sums: K",), "bounds.rate", lambda rate: lambda model: rate(model) / 2, params=TINY),
    Mutant("V100 as exact as one by one", ("The bound K",),
           change=off("swamped: results", _copy(("fp32", ""), ("fp32", "V100")))),
    Mutant("H100 a tenth too small", ("The bound K",),
           change=off("positive: results", _results("fp32", "H100", lambda x: x * np.float32(0.9)))),
    Mutant("H100 does not truncate", (DRIFT,), change=off("positive: results", _copy(("fp32", ""), ("fp32", "H100")))),
    Mutant("A100 drifts half as far", (DRIFT,), change=lambda arrays: {"positive: results": _halfway(arrays)}),
    Mutant("A100 adds as V100", ("Random signs",),
           change=off("random: results", _copy(("fp32", "V100"), ("fp32", "A100")))),
    Mutant("the cast truncates", ("An FP32 sum stored",), "fplab.floats.quantize",
           lambda quantize: lambda x, fmt, *of, **named: quantize(x, fmt, *(of or ("rtz",)), **named), params=TINY),
    Mutant("fates by place reversed", ("What FP16 stores",), "accumulators.fates",
           lambda fates: lambda *of: fates(*of)[::-1], params=TINY),
    Mutant("zero from 2^-24 on", ("What FP16 stores",), change=off("weights × gradients: fates", _set((0, 0, 1), 99))),
    Mutant("FP16 sums in FP32", ("Ill-conditioned",),
           change=off("ill-conditioned: results", _copy(("fp32", ""), ("fp16", "")))),
    Mutant("FP32 sums in FP16", ("Ill-conditioned",),
           change=off("ill-conditioned: results", _copy(("fp16", ""), ("fp32", "")))),
)  # fmt: skip
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(pp, pp.QUICK, MUTANTS)


def _halfway(arrays: Arrays) -> np.ndarray:
    """A100's sums, as far again from what FP32 gives one by one as they are from the exact ones."""
    results = arrays["positive: results"]
    i = pp.index("fp32", "A100")
    results[i] = (results[i] + results[pp.index("fp32")]) / 2
    return results


@pytest.mark.parametrize("claim", [SUMS, BOUNDS, "FP32 sums: K", "These bounds", "An FP32 sum stored", "What FP16"])
def test_where_the_mutants_run_again_the_claims_hold(claim: str) -> None:
    check = claim_of(pp, claim)
    holds(check, tiny(), TINY)


@cache
def tiny() -> Arrays:
    return pp.run(TINY, lambda share, text: None)


def test_the_kernels_give_the_chains_that_the_bounds_walk(arrays: Arrays) -> None:
    for kind in pp.KINDS:
        got = arrays[f"{kind}: results"][list(pp.BLOCKED)]
        assert np.array_equal(got.view(np.uint32), arrays[f"{kind}: walked"].view(np.uint32)), kind


def test_the_records_know_four_ways_to_add_fp16_products() -> None:
    """Three that torch's products take, and the short instruction of Hopper and later."""
    ways = {
        (one.length, one.alignment_bits)
        for gpu in GPUS
        for instruction in (None, "mma.k8")
        for one in [get(gpu, "fp16", "fp32", instruction=instruction if gpu in ("H100", "H200", "B200") else None)]
    }
    assert ways == {(4, 23), (8, 24), (16, 25), (8, 25)}
    cores = {(one.length, one.alignment_bits) for one in (get(gpu, "fp16") for gpu in accumulators.CORES)}
    assert cores == ways - {(8, 25)}
    assert {gpu for group in accumulators.alike().values() for gpu in group} == set(GPUS)


def half_codes(shape: tuple[int, ...], seed: int, subnormal: bool = False) -> np.ndarray:
    """Random finite FP16 codes of moderate size; also subnormal ones where asked for."""
    rng = np.random.default_rng(seed)
    exponent = rng.integers(0 if subnormal else 8, 18, shape).astype(np.uint16)
    fraction, sign = (rng.integers(0, n, shape).astype(np.uint16) for n in (1024, 2))
    return (sign << np.uint16(15)) | (exponent << np.uint16(10)) | fraction


# --- chains and bounds -----------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(accumulators.CORES), st.booleans())
def test_walked_chains_and_their_bounds_are_the_oracles(seed: int, gpu: str, subnormal: bool) -> None:
    """Alignment, last place and result of every block, and the bound from them, on Fractions."""
    a, b = (operands.values(half_codes((1, 32), seed + i, subnormal)) for i in range(2))
    models = [accumulators.Accumulator(fmt, gpu).model for fmt in ("fp16", "fp32")]
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
    params = pp.Params(rows=2, log2_last=7)
    pair = tuple(half_codes((2, 128), seed + i, True) for i in range(2))
    arrays = {f"other: {part}": v for part, v in (pp.measured(*pair) | {"bound": _bound(pair)}).items()}
    one = exactly.of_kind(arrays, "other")
    assert one.lengths.tolist() == operands.sizes(params.log2_last).tolist()
    for i, accumulator in enumerate(pp.ACCUMULATORS):
        assert (one.errors[i] <= one.bound(i)).all(), accumulator.name
        if accumulator.gpu and accumulator.fmt == "fp32":
            assert (one.bound(i) <= one.beforehand(i)).all(), accumulator.name


def _bound(pair: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return pp.bounded({"other": pair}, 4)["other: bound"]


def test_a_subnormal_operand_needs_the_clamped_sum() -> None:
    """2**-24 * 2**10 aligns at 2**-4, ten binades above its value: more of the others is cut than |a b| allows."""
    a = np.full((1, 16), 2.0**-14 * (2 - 2.0**-10))
    b = np.full((1, 16), 2.0**-14 * (2 - 2.0**-10))
    a[0, 0], b[0, 0] = 2.0**-24, 2.0**10
    pair = (operands.half(a), operands.half(b))
    arrays = {f"other: {part}": v for part, v in (pp.measured(*pair) | {"bound": _bound(pair)}).items()}
    one = exactly.of_kind(arrays, "other")
    i = pp.index("fp32", "H100")
    unclamped = 16 * bounds.rate(pp.ACCUMULATORS[i].model) * one.magnitude[0, 0, 0]
    assert unclamped < one.errors[i][0, 0, 0] <= one.bound(i)[0, 0, 0] <= one.beforehand(i)[0, 0, 0]


def test_rates_are_the_documented_constants() -> None:
    got = [bounds.rate(accumulators.Accumulator("fp32", gpu).model) * 2**24 for gpu in accumulators.CORES]
    assert got == [2, Fraction(9, 8), Fraction(19, 32)]


def test_the_bound_one_by_one() -> None:
    u = Fraction(1, 2**24)
    assert bounds.one_by_one(10, 24, 1000) == 9 * u * 1000
    stored = Fraction(1000, 2**11) + 10 * Fraction(2) ** (-25 - whole.UNIT)
    assert bounds.one_by_one(10, 11, 1000) == stored + Fraction(9, 2**11) * (1000 + stored)


# --- operands --------------------------------------------------------------------------------------------------------


def test_every_stretch_of_the_climbing_operands_comes_back() -> None:
    a, b = (operands.values(x) for x in operands.make("ill-conditioned", 3, 8))
    for start, end in ((0, 16), (16, 32), (128, 256)):
        middle = (start + end) // 2
        first, second = (a[0, s] * b[1, s] for s in (slice(start, middle), slice(middle, end)))
        left = np.sort(first) - np.sort(-second)
        assert (left != 0).sum() <= 2  # the one that was changed may take another place in the order
        assert abs(first.sum() + second.sum()) < 0.02


def test_products_of_the_worst_case_lie_just_below_what_is_kept() -> None:
    a, b = (operands.values(x) for x in operands.make("swamped", 2, 8))
    assert a.shape == (3, 256)
    for row, (gpu, exponents) in enumerate(operands.TARGETS.items()):
        model = accumulators.Accumulator("fp32", gpu).model
        assert len(exponents) == model.length
        cut = np.trunc(np.ldexp(a[row] * b[0], model.alignment_bits))[1:]
        blocks = cut[model.length - 1 :].reshape(-1, model.length).sum(axis=1)
        assert (blocks < 2.0 ** (model.alignment_bits - 23)).all()
    assert (b[0] == -b[1]).all()


def test_real_operands_are_the_networks_own_products() -> None:
    """The matrix products give what the convolution and its two gradients give, in float64 from the same tensors."""
    torch = pytest.importorskip("torch")
    t = network.tensors()
    few = {name: torch.from_numpy(v[:8] if name[0] != "w" else v).double() for name, v in t.items()}
    x3 = network.patches(t["x3"][:8]).reshape(-1, t["w3"][0].size).astype(np.float64)
    forward = x3 @ t["w3"].reshape(len(t["w3"]), -1).T.astype(np.float64)
    want = torch.nn.functional.conv2d(few["x3"], few["w3"], padding=1).permute(0, 2, 3, 1).reshape(forward.shape)
    assert np.allclose(forward, want.numpy(), rtol=1e-12, atol=1e-14)
    g3 = network.patches(t["g3"][:8])[..., ::-1, ::-1].reshape(-1, t["w3"].transpose(1, 0, 2, 3)[0].size)
    backward = g3.astype(np.float64) @ t["w3"].transpose(1, 0, 2, 3).reshape(32, -1).T.astype(np.float64)
    want = torch.nn.grad.conv2d_input(few["x3"].shape, few["w3"], few["g3"], padding=1)
    assert np.allclose(backward, want.permute(0, 2, 3, 1).reshape(backward.shape).numpy(), rtol=1e-9, atol=1e-18)
    x2 = network.patches(t["x2"][:8]).reshape(-1, t["x2"].shape[1] * 9).astype(np.float64)
    g2 = t["g2"][:8].transpose(1, 0, 2, 3).reshape(t["g2"].shape[1], -1).astype(np.float64)
    want = torch.nn.grad.conv2d_weight(few["x2"], (32, 16, 3, 3), few["g2"], padding=1).reshape(32, -1)
    assert np.allclose(g2 @ x2, want.numpy(), rtol=1e-9, atol=1e-15)


def test_the_loss_scale_brings_the_largest_gradient_below_one() -> None:
    g = np.array([0.75e-3, -3e-7], np.float32)
    assert 0.5 <= np.abs(g).max() * 2.0 ** network.loss_scale(g) < 1


def test_drawn_rows_are_alive_and_as_many_as_asked_for() -> None:
    x = np.zeros((6, 40), np.float32)
    x[1:5, 3] = 1
    x[0, 20] = 1  # beyond the shortest product
    x[5, 3] = 2.0**-26  # zero in FP16
    assert network.drawn(x, 2, 1).size == 2
    assert network.drawn(x, 9, 1).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(("kind", "k"), list(zip(network.REAL, (256, 512, 1024), strict=True)))
def test_chosen_rows_are_rows_of_the_matrices(kind: str, k: int) -> None:
    pair, whole_pair = network.chosen(kind, 3, 10), network.matrices(kind)
    for x, everything in zip(pair, whole_pair, strict=True):
        assert x.shape == (3, k)
        assert all((everything[:, :k] == row).all(axis=1).any() for row in x)
    codes = network.make(kind, 3, 10)
    assert all((operands.values(c) == v.astype(np.float16)).all() for c, v in zip(codes, pair, strict=True))


def test_fates_are_counted_by_place() -> None:
    a = np.array([2.0**-10] + [1.0] * 31, np.float32)[None]
    b = np.array([2.0**-16, 0, 2048] + [1.0] * 29, np.float32)[None]
    halves, singles = (np.stack([accumulators.running(row, b, fmt) for row in a]) for fmt in ("fp16", "fp32"))
    got = accumulators.fates(a, b, "fp16", np.array([16, 32]), halves)
    assert got.tolist() == [[1, 1, 13, 1], [0, 0, 16, 0]]  # a zero, 2^-26, ones beside 2048 without effect, 2048
    assert accumulators.fates(a, b, "fp32", np.array([16, 32]), singles).tolist() == [[1, 0, 0, 15], [0, 0, 0, 16]]


# --- outputs and devices ---------------------------------------------------------------------------------------------


def test_made_up_arrays_are_the_same_every_time(arrays: Arrays) -> None:
    repeats(pp, arrays, pp.QUICK)


def test_the_table_has_every_error_with_its_bound(arrays: Arrays) -> None:
    rows = list(zip(*pp.table(arrays, pp.QUICK).values(), strict=True))
    lengths = [arrays[f"{kind}: exact"].shape[2] for kind in pp.KINDS]
    assert len(rows) == len(pp.ACCUMULATORS) * sum(lengths)
    assert all(error <= bound and used <= 1 for *_, error, bound, used in rows)
    last = [row for row in rows if row[:3] == ("swamped", 1 << pp.QUICK.log2_last, "V100 FP32")]
    assert last[0][5] > 0.99


def test_running_sums_end_where_the_results_do(arrays: Arrays) -> None:
    for kind in pp.TRACED:
        trace = arrays[f"{kind}: trace"]
        assert trace[0, -1] == 1 << pp.QUICK.log2_last
        assert np.array_equal(trace[2:, -1], arrays[f"{kind}: results"][:, 0, 0, -1])


def test_figures_are_drawn_in_both_themes(arrays: Arrays, tmp_path: Path) -> None:
    for theme in ("light", "dark"):
        figure, _ = drawn(pp, arrays, pp.QUICK, theme, tmp_path)
        assert len(figure.axes) == 12


def test_the_stand_in_gives_the_emulated_bits_of_every_case() -> None:
    for case in pp.gpu_cases(pp.QUICK):
        computed_on_cpu(case)
        assert sum(x.nbytes for x in case.inputs().values()) <= 1 << 20


def test_a_case_multiplies_what_the_experiment_multiplied(arrays: Arrays) -> None:
    last = f"positive, K = {1 << pp.QUICK.log2_last}"
    case = next(c for c in pp.gpu_cases(pp.QUICK) if c.name.startswith(last))
    got = case.emulate(case.inputs(), {"kind": "cuda", "device": "NVIDIA A100-SXM4-80GB"})["d"]
    assert np.array_equal(got.view(np.float32), arrays["positive: results"][pp.index("fp32", "A100"), ..., -1])
    stored = next(c for c in pp.gpu_cases(pp.QUICK) if "stored as FP16" in c.name)
    got = stored.emulate(stored.inputs(), {"kind": "cpu"})["d"]
    sums = arrays["positive: results"][pp.index("fp32", "H100"), ..., 8]
    assert np.array_equal(got, floats.encode(sums, "fp16"))


@pytest.mark.parametrize("case", pp.gpu_cases(pp.QUICK)[:2], ids=lambda case: case.name)
def test_a_forged_record_fails(case: Case) -> None:
    forged(case)
