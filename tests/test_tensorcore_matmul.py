"""Whole products: shapes, plans, epilogues, storing, threads, memory, and what is refused."""

import itertools
import math
import re
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import refusals
from fresh import python
from tensorcore_cases import bits, exact_bits, operand, representative

import fplab
from fplab import exact, set_num_threads
from fplab.errors import LabError
from fplab.tensorcore import Model, Plan, PlanByRows, accumulators, dot, get, matmul, oracle, products, trace
from fplab.tensorcore.units import block

RNG = np.random.default_rng(11)


def values(fmt: str, *shape: int) -> np.ndarray:
    """Ordinary numbers of a format."""
    return np.asarray(fplab.quantize(RNG.standard_normal(shape).astype(np.float32), fmt))


def by_rows(a: np.ndarray, b: np.ndarray, c: np.ndarray, **how: object) -> np.ndarray:
    """A product by ``dot``, which has a kernel of its own."""
    m, n = a.shape[0], b.shape[1]
    x, y = np.repeat(a, n, axis=0), np.tile(b.T, (m, 1))
    return np.asarray(dot(x, y, c.reshape(-1), **how)).reshape(m, n)  # type: ignore[arg-type]


@pytest.fixture
def threads() -> Iterator[None]:
    """Give the number of threads back."""
    yield
    set_num_threads(None)


SHAPES = [(1, 1, 1), (3, 1, 5), (2, 17, 70), (70, 33, 2), (65, 40, 129), (130, 16, 64), (64, 15, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("model", representative()[::3], ids=lambda m: m.name)
def test_any_shape(model: Model, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b, c = operand(model.a, (m, k), "near", RNG), operand(model.b, (k, n), "near", RNG), values("fp16", m, n)
    assert np.array_equal(bits(matmul(a, b, c, gpu=model)), bits(by_rows(a, b, c, gpu=model)))


def test_empty_products() -> None:
    c = values("fp32", 3, 4)
    assert np.array_equal(matmul(np.zeros((3, 0)), np.zeros((0, 4)), c), c)
    assert matmul(np.zeros((0, 5)), np.zeros((5, 4))).shape == (0, 4)
    assert dot(np.zeros((2, 0)), np.zeros((2, 0))).tolist() == [0, 0]


@pytest.mark.parametrize("gpu", ["A100", "H200"])
def test_an_fp64_sum_stays_under_a_c_of_one_row(gpu: str) -> None:
    rng = np.random.default_rng(12)
    a, b, c = rng.standard_normal((5, 9)), rng.standard_normal((9, 4)), rng.standard_normal((5, 4))
    product = matmul(a, b, gpu=gpu, inputs="fp64")
    for part in (c[0], c[:1], c[:, :1], c[0, 0], c):
        assert np.array_equal(matmul(a, b, part, gpu=gpu, inputs="fp64", alpha=2, beta=4), 2 * product + 4 * part)


def test_batches_broadcast() -> None:
    a, b, c = values("fp16", 3, 1, 5, 20), values("fp16", 4, 20, 7), values("fp32", 7)
    d = matmul(a, b, c)
    assert d.shape == (3, 4, 5, 7)
    for i in range(3):
        for j in range(4):
            assert np.array_equal(d[i, j], matmul(a[i, 0], b[j], c))


@pytest.mark.parametrize("model", representative(), ids=lambda m: m.name)
@pytest.mark.parametrize(("m", "k", "n"), [(70, 9, 1), (1, 70, 9), (9, 40, 66)])
def test_a_batch_is_its_products_one_by_one(model: Model, m: int, k: int, n: int) -> None:
    a, b = operand(model.a, (17, m, k), "uniform", RNG), operand(model.b, (17, k, n), "uniform", RNG)
    c = np.arange(m * n).reshape(m, n) % 7
    alone = [bits(matmul(x, y, c, gpu=model)) for x, y in zip(a, b, strict=True)]
    strided = matmul(np.asfortranarray(a), np.asfortranarray(b), c, gpu=model)
    assert np.array_equal(bits(matmul(a, b, c, gpu=model)), alone)
    assert np.array_equal(bits(strided), alone)


@pytest.mark.parametrize("model", [m for m in representative() if m.scale is None], ids=lambda m: m.name)
@pytest.mark.parametrize(("k", "n"), [(9, 70), (33, 5), (0, 3)])
def test_products_by_an_operand_that_is_held(model: Model, k: int, n: int) -> None:
    kinds = {"fp64": np.float64, "int8": np.int8}
    first, other, y = (operand(model.a, s, "uniform", RNG).astype(kinds.get(model.a, np.float32))
                       for s in ((7, k), (1, k), (k, n)))  # fmt: skip
    multiply = products.product_by(model, y)
    found = multiply(first), multiply(other), multiply(first)
    for x, result in zip((first, other, first), found, strict=True):
        assert np.array_equal(bits(result), bits(matmul(x, y, gpu=model)))


ROUNDING = [("H100", "fp16", "fp32"), ("V100", "fp16", "fp16"), ("A100", "bf16", "fp32"), ("MI300X", "bf16", "fp32")]


@pytest.mark.parametrize("cell", ROUNDING, ids=lambda cell: " ".join(cell))
def test_packing_rounds_as_quantize_however_operands_lie(cell: tuple[str, str, str]) -> None:
    """Any bits of FP32, ties and what rounds to a subnormal or to infinity; a batch that broadcasts, transposed."""
    gpu, inputs, output = cell
    model = get(gpu, inputs, output)
    assert products.rounds(model)
    form, rng = model.format_a, np.random.default_rng(3)
    wide = rng.integers(0, 1 << 32, (2, 3, 40, 70), np.uint32).view(np.float32)
    near = np.ldexp(rng.integers(1 << 12, 1 << 13, (2, 3, 40, 70)), rng.integers(form.emin - 26, form.emin + 4))
    far = np.ldexp(rng.integers(-(1 << 13), 1 << 13, (2, 3, 40, 70)), rng.integers(-14, -10, (2, 3, 40, 70)))
    top = np.full((40, 70), form.max * (1 + 2.0 ** -(form.fraction_bits + 2)))
    for a in (wide, near, far, top):
        a = np.where(rng.random(a.shape) < 0.3, a, 0).astype(np.float32)
        x, y = a.swapaxes(-1, -2), a[..., :1, :, :33] if a.ndim > 2 else a[:, ::2]
        with np.errstate(over="ignore", invalid="ignore"):
            first, second = (np.asarray(fplab.quantize(v, inputs)) for v in (x, y))
        assert (bits(products.multiply(model, x, y)) == bits(products.multiply(model, first, second))).all()
        for index in itertools.product(*map(range, x.shape[:-2])):
            one = first[index], np.broadcast_to(second, (*x.shape[:-2], *second.shape[-2:]))[index]
            found = products.multiply(model, x, y)[index]
            assert (bits(found) == bits(products.multiply(model, *map(np.ascontiguousarray, one)))).all()


ZEROS = [("H100", "fp16", "fp32"), ("H100", "e4m3", "fp32"), ("A100", "bf16", "fp32"), ("V100", "fp16", "fp16")]


@pytest.mark.parametrize("cell", ZEROS, ids=lambda cell: " ".join(cell))
def test_blocks_of_zeros_that_a_batch_leaves_out_change_no_bit(cell: tuple[str, str, str]) -> None:
    """As under a causal mask, at both ends of k; not where infinities, NaNs or tiny numbers meet them, nor with a c."""
    how = dict(zip(("gpu", "inputs", "output"), cell, strict=True))
    past, held = np.tril(values(cell[1], 3, 6, 128, 128)), values(cell[1], 3, 6, 128, 32)
    c = np.float32([-0.0, 1 + 2.0**-23, -(2.0**-24), np.inf] * 8)
    others = [held, np.where(np.arange(128)[:, None] == 100, held * np.float32(2.0**-70), held)]
    for one in (np.nan,) if cell[1] == "e4m3" else (np.inf, np.nan):
        others += [np.where(np.arange(128)[:, None] == row, np.float32(one), held) for row in (2, 125)]
    marked = past.copy()
    marked[..., 2, 120] = np.nan if cell[1] == "e4m3" else np.inf  # alone in its block of zeros
    lefts = (past, past.swapaxes(-1, -2), marked, marked.swapaxes(-1, -2))
    for other, x, entering in itertools.product(others, lefts, (None, c)):
        found = matmul(x, other, entering, **how)  # type: ignore[arg-type]
        for index in np.ndindex(3, 6):
            alone = matmul(x[index], other[index], entering, **how)  # type: ignore[arg-type]
            assert np.array_equal(bits(found[index]), bits(alone))


@pytest.mark.parametrize("cell", ZEROS, ids=lambda cell: " ".join(cell))
def test_infinities_and_nans_decide_what_they_meet_and_no_more(cell: tuple[str, str, str]) -> None:
    """In rows of A, in columns of B, in both, or in C, for some blocks or for all, among numbers and zeros."""
    how = dict(zip(("gpu", "inputs", "output"), cell, strict=True))
    rng, special = np.random.default_rng(5), [np.nan] if cell[1] == "e4m3" else [np.inf, np.inf, -np.inf, np.nan]
    for rate, of_a, of_b, of_c in itertools.product((0.002, 0.1), (0, 0.5), (0, 0.03, 1), (0, 0.4)):
        a, b, c = (operand(cell[1], shape, "near", rng) for shape in ((70, 64), (64, 70), (70, 70)))
        a[rng.random(a.shape) < 0.2], b[rng.random(b.shape) < 0.2] = 0, 0
        for x, hit in (
            (a, rng.random((70, 1)) < of_a),
            (b, rng.random((1, 70)) < of_b),
            (c, rng.random((70, 1)) < of_c),
        ):
            x[...] = np.where((rng.random(x.shape) < rate) & hit, rng.choice(special, x.shape), x)
        assert np.array_equal(bits(matmul(a, b, c, **how)), bits(by_rows(a, b, c, **how)))  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(128, 32, 128), (70, 16, 200), (200, 16, 70), (65, 40, 65)])
def test_what_lies_above_the_diagonal_is_left_out_where_it_is_finite(shape: tuple[int, int, int]) -> None:
    """All else has its bits, and so has all of a matrix that meets an infinity or products that may overflow."""
    m, k, n = shape
    x, y = values("fp16", 20, m, k), values("fp16", 20, k, n)
    x[3, 0, 1], y[4, 2, -1], x[5], y[5] = np.inf, np.nan, x[5] * np.float32(2.0**40), y[5] * np.float32(2.0**40)
    for inputs in ("fp16", "bf16"):
        model, untouched = get("H100", inputs), [3, 4, 5]
        for left, right in ((x, y), (y.swapaxes(-1, -2), x.swapaxes(-1, -2))):
            whole, found = (products.multiply(model, left, right, below=below) for below in (False, True))
            assert np.array_equal(bits(np.tril(found)), bits(np.tril(whole)))
            assert np.array_equal(bits(found[untouched]), bits(whole[untouched]))
            above = bits(found) != bits(whole)
            assert (bits(found)[above] == 0).all()
            assert above.any((1, 2)).sum() == 17


def test_strides_and_dtypes_do_not_matter() -> None:
    a, b = values("fp16", 40, 48), values("fp16", 48, 72)
    wanted = bits(matmul(a, b))
    assert np.array_equal(bits(matmul(np.asfortranarray(a), np.asfortranarray(b))), wanted)
    assert np.array_equal(bits(matmul(a.astype(np.float16), b.astype(np.float64))), wanted)
    assert np.array_equal(bits(matmul(np.repeat(a, 2, axis=1)[:, ::2], b)), wanted)


@pytest.mark.parametrize("model", representative(), ids=lambda m: m.name)
def test_threads_do_not_matter(model: Model, threads: None) -> None:
    a, b = operand(model.a, (150, 96), "uniform", RNG), operand(model.b, (96, 300), "uniform", RNG)
    found = []
    for count in (1, 2, 3, 7):
        set_num_threads(count)
        found.append(bits(matmul(a, b, gpu=model)))
        found.append(bits(matmul(b.T, a.T, gpu=block.swapped(model)).T))
    assert all(np.array_equal(one, found[0]) for one in found)


HANGS = """
import faulthandler, numpy as np
from fplab import set_num_threads
from fplab.tensorcore import get, matmul

for threads in (1, 2):  # with one the kernels are compiled, however long that takes
    set_num_threads(threads)
    for model in (get("H100", "e4m3", "fp16", "mma"), get("A100").with_options(overflow="max")):
        a = np.ones((4, 700, 3), np.float32)
        found = matmul(a, a.swapaxes(1, 2), gpu=model)
        assert (found == 3).all()
    faulthandler.dump_traceback_later(60, exit=True)  # for what never ends
"""


def test_a_batch_in_threads_asks_for_no_further_threads() -> None:
    """K of 3 is filled up to 16 or 32 products: each matrix of the batch was split again, and waited for the batch."""
    python(HANGS)


def ieee_sum(parts: list[np.ndarray], fmt: str = "fp32") -> np.ndarray:
    """Partial results added in order, to nearest."""
    total = parts[0]
    for part in parts[1:]:
        total = np.asarray(fplab.add(total, part, fmt))
    return total


@pytest.mark.parametrize(("output", "fmt"), [("fp32", "fp32"), ("fp16", "fp16")])
def test_split_k(output: str, fmt: str) -> None:
    a, b, c = values("fp16", 9, 160), values("fp16", 160, 70), values("fp16", 9, 70)
    how = {"gpu": "H100", "output": output}
    cuts = [0, 64, 112, 160]  # ten instructions of 16 in three slices: 4, 3, 3
    parts = [matmul(a[:, i:j], b[i:j], None if i else c, **how) for i, j in itertools.pairwise(cuts)]
    assert np.array_equal(matmul(a, b, c, plan=Plan(split_k=3), **how), ieee_sum(parts, fmt))


def test_accumulators() -> None:
    a, b, c = values("fp16", 9, 160), values("fp16", 160, 70), values("fp32", 9, 70)
    k = np.arange(160) // 16 % 4
    parts = [matmul(a[:, k == n], b[k == n], None if n else c) for n in range(4)]
    assert np.array_equal(matmul(a, b, c, plan=Plan(accumulators=4)), ieee_sum(parts))


@pytest.mark.parametrize(("inputs", "instruction"), [("e4m3", "wgmma"), ("e4m3", "mma"), ("bf16", "wgmma")])
def test_promotion(inputs: str, instruction: str) -> None:
    a, b, c = values(inputs, 9, 300), values(inputs, 300, 70), values("fp32", 9, 70)
    how = {"inputs": inputs, "instruction": instruction}
    parts = [matmul(a[:, k : k + 128], b[k : k + 128], **how) for k in range(0, 300, 128)]
    assert np.array_equal(matmul(a, b, c, plan=Plan(promote=128), **how), ieee_sum([c, *parts]))
    slow = matmul(
        a, b, c, gpu=get("H100", inputs, "fp32", instruction).with_options(overflow="max"), plan=Plan(promote=128)
    )
    assert np.array_equal(slow, matmul(a, b, c, plan=Plan(promote=128), **how))


def test_a_plan_changes_bits() -> None:
    a, b = values("fp16", 16, 512), values("fp16", 512, 64)
    results = [matmul(a, b, plan=p) for p in (None, Plan(split_k=2), Plan(accumulators=2), Plan(promote=64))]
    assert len({r.tobytes() for r in results}) == 4


def test_epilogue() -> None:
    a, b, c = values("fp16", 9, 64), values("fp16", 64, 20), values("fp32", 9, 20)
    product = matmul(a, b)
    wanted = fplab.fma(np.float32(0.7), product, fplab.mul(np.float32(1.3), c, "fp32"), "fp32")
    assert np.array_equal(matmul(a, b, c, alpha=0.7, beta=1.3), wanted)
    for part in (c[0], c[:, :1], c[0, 0]):  # broadcasts: a bias
        wanted = fplab.fma(np.float32(0.7), product, np.broadcast_to(part, product.shape), "fp32")
        assert np.array_equal(matmul(a, b, part, alpha=0.7), wanted)
    outside = matmul(a, b, c, plan=Plan(c="epilogue"))
    assert np.array_equal(outside, product + c)
    assert not np.array_equal(outside, matmul(a, b, c))
    assert np.array_equal(matmul(a, b, alpha=0.5), product * np.float32(0.5))


def rounded(x: Fraction, fmt: str) -> float:
    """The nearest value of a format, by the oracle."""
    return float(exact.decode(exact.round_to(exact.of(x), fmt)[0], fmt).value) if x else 0.0


@pytest.mark.parametrize("output", ["fp32", "fp16"])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0.3), (0.7, 1), (0.7, 1.3)])
def test_epilogues_on_fractions(output: str, alpha: float, beta: float) -> None:
    """alpha, beta and beta * c are rounded to the output format, and then alpha * sum + (beta * c) once."""
    a, b, c = values("fp16", 8, 64), values("fp16", 64, 8), values(output, 8, 8)
    product, found = matmul(a, b, output=output), matmul(a, b, c, output=output, alpha=alpha, beta=beta)
    first, second = (Fraction(rounded(Fraction(x), output)) for x in (alpha, beta))
    once, unrounded = np.zeros((2, 8, 8), np.float32)
    for at in np.ndindex(8, 8):
        part = second * Fraction(float(c[at]))
        once[at] = rounded(first * Fraction(float(product[at])) + Fraction(rounded(part, output)), output)
        unrounded[at] = rounded(first * Fraction(float(product[at])) + part, output)
    assert np.array_equal(bits(found), bits(once))
    if beta != 1:
        assert (once != unrounded).any()  # that beta * c is rounded shows


def test_the_epilogue_of_fp64_is_fused() -> None:
    a, b, c = (RNG.standard_normal(shape) for shape in ((50, 3), (3, 40), (50, 40)))
    product, found = matmul(a, b, inputs="fp64"), matmul(a, b, c, inputs="fp64", alpha=0.3, beta=0.7)
    want = [float(Fraction(0.3) * Fraction(x) + Fraction(0.7 * z)) for x, z in zip(product.flat, c.flat, strict=True)]
    assert found.reshape(-1).tolist() == want
    assert np.count_nonzero(found != 0.3 * product + 0.7 * c) > 300  # rounding twice is another result
    assert np.array_equal(matmul(a, b, inputs="fp64", alpha=0.3), 0.3 * product)
    nan = matmul([[1.0]], [[1.0]], [[np.nan]], inputs="fp64", beta=2)
    assert nan.view(np.uint64)[0, 0] == 0x7FF8000000000000


def test_c_in_the_accumulator_is_neither_scaled_nor_dropped() -> None:
    a, b, c, plan = np.ones((1, 8)), np.ones((8, 1)), np.array([[5.0]]), Plan(c="accumulator")
    assert matmul(a, b, c, plan=plan)[0, 0] == 13
    assert matmul(a, b, plan=plan, alpha=2, beta=3)[0, 0] == 16  # no c
    assert matmul(a, b, c, plan=Plan(c="epilogue"), alpha=2, beta=3)[0, 0] == 31
    for factors in ({"alpha": 2, "beta": 3}, {"beta": 3}, {"alpha": 2}):
        with pytest.raises(LabError, match=r"with Plan\(c='accumulator'\), which feeds C to the first chain as it is"):
            matmul(a, b, c, plan=plan, **factors)


@pytest.mark.parametrize(
    ("gpu", "inputs", "output", "tiny"),
    [("A100", "fp16", "fp16", 2.0**-14), ("A100", "bf16", "fp32", 2.0**-76), ("A2", "tf32", "fp32", 2.0**-76),
     ("Ada", "e5m2", "fp16", 2.0**-14), ("A100", "fp64", "fp64", 2.0**-600)],
)  # fmt: skip
def test_one_rule_for_the_sign_of_zero(gpu: str, inputs: str, output: str, tiny: float) -> None:
    """A row is filled up to whole instructions: the -0 of an earlier block meets +0 in a later one, and is +0."""
    model = get(gpu, inputs, output)
    for k, negative in ((1, False), (model.k, True), (model.k + 1, False)):
        a, b = np.zeros((1, k)), np.ones((k, 1))
        a[0, min(k, model.k) - 1], b[min(k, model.k) - 1, 0] = -tiny, tiny
        row = dot(a[0], b[:, 0], 0.0, model)
        assert row == 0
        assert np.signbit(row) == np.signbit(matmul(a, b, gpu=model)[0, 0]) == negative
        if inputs != "fp64":
            assert exact_bits(model, a[0], b[:, 0], 0.0) == bits(row)
            assert trace(a[0], b[:, 0], 0.0, model).bits == bits(row)


def test_output_and_store() -> None:
    a, b = values("fp16", 30, 512), values("fp16", 512, 70)
    wide, half = matmul(a, b, store="fp16"), matmul(a, b, output="fp16")
    assert np.array_equal(wide, fplab.quantize(matmul(a, b), "fp16"))
    assert np.array_equal(half, fplab.quantize(half, "fp16"))
    assert np.count_nonzero(wide != half) > 100  # rounding at every block is not rounding at the end
    assert np.array_equal(matmul(a, b, store="bf16"), fplab.quantize(matmul(a, b), "bf16"))


def gelu(x: float) -> Fraction:
    """x times the normal distribution function at x, by the series of Abramowitz and Stegun 26.2.11, to 60 digits."""
    with localcontext(prec=60 + int(x * x)):
        z, term, total = Decimal(x), Decimal(x), Decimal(x)
        for n in range(3, 700, 2):
            term *= z * z / n
            total += term
        pi = Decimal(
            "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211"
        )
        return Fraction(z * (Decimal("0.5") + total * (-z * z / 2).exp() / (2 * pi).sqrt()))


@pytest.mark.parametrize("output", ["fp32", "fp16"])
def test_gelu_takes_the_sum_unstored_and_is_rounded_once(output: str) -> None:
    rng = np.random.default_rng(18)
    a, b = rng.standard_normal((5, 48)), rng.standard_normal((48, 40))
    sums = matmul(a, b, output=output)
    found = matmul(a, b, output=output, plan=Plan(activation="gelu"))
    for x, y in zip(sums.ravel().tolist(), found.ravel().tolist(), strict=True):
        assert exact.decode(exact.round_to(exact.of(gelu(x)), output)[0], output).value == Fraction(y)
    assert np.array_equal(matmul(a, b, plan=Plan(activation="relu")), np.where(sums > 0, sums, 0)) == (output == "fp32")
    stored = matmul(a, b, output=output, store="bf16", plan=Plan(activation="gelu"))
    assert np.array_equal(stored, fplab.quantize(found, "bf16"))
    early = matmul(matmul(a, b, output=output, store="bf16"), np.eye(40), inputs="tf32", plan=Plan(activation="gelu"))
    assert (fplab.quantize(early, "bf16") != stored).any()  # stored before the activation, rounded twice


def test_activations_of_what_is_not_finite_and_far_from_zero() -> None:
    a = np.array([[np.inf], [-np.inf], [np.nan], [0.0], [60000.0], [-60000.0]])
    for activation in ("relu", "gelu", "gelu_tanh"):
        found = matmul(a, [[1.0]], plan=Plan(activation=activation))[:, 0]
        assert bits(found)[2] == 0x7FFFFFFF
        assert found[[0, 1, 3, 4, 5]].tolist() == [np.inf, 0, 0, 60000, 0]


def test_gelu_by_tanh() -> None:
    x = np.linspace(-4, 4, 33)
    found = matmul(x[:, None], [[1.0]], plan=Plan(activation="gelu_tanh"))[:, 0]
    wanted = [y / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))) for y in x.tolist()]
    np.testing.assert_array_max_ulp(found, np.float32(wanted), maxulp=1)


def test_out() -> None:
    a, b, out = values("fp16", 4, 16), values("fp16", 16, 5), np.empty((4, 5), np.float32)
    assert matmul(a, b, out=out) is out
    assert np.array_equal(out, matmul(a, b))
    with pytest.raises(LabError, match=re.escape("it must be a writable float32 array of shape (4, 5)")):
        matmul(a, b, out=np.empty((5, 4), np.float32))


def test_tf32_conversions() -> None:
    x = np.array([[1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-10 - 2.0**-23]], np.float32)
    eye = np.eye(3, dtype=np.float32)
    down, up, two = 1.0, 1 + 2.0**-10, 1 + 2.0**-9
    assert matmul(x, eye, inputs="tf32").tolist() == [[down, up, down]]
    assert matmul(x, eye, inputs="tf32", conversion="rna").tolist() == [[up, two, up]]
    assert matmul(x, eye, inputs="tf32", conversion="rne").tolist() == [[down, two, up]]


def test_int8() -> None:
    a, b = RNG.integers(-128, 128, (70, 300)), RNG.integers(-128, 128, (300, 90))
    c = RNG.integers(-(2**31), 2**31, (70, 90))
    whole = a.astype(object) @ b.astype(object) + c.astype(object)
    wrapped = matmul(a, b, c, inputs="int8")
    assert wrapped.dtype == np.int32
    assert np.array_equal(wrapped, ((whole + 2**31) % 2**32 - 2**31).astype(np.int64))
    model = get("H100", "int8").with_options(saturate=True)
    ends = (
        matmul([[127] * 64], [[127]] * 64, [[2**31 - 1]], gpu=model),
        matmul([[127] * 64], [[-128]] * 64, [[-(2**31)]], gpu=model),
    )
    assert [int(e[0, 0]) for e in ends] == [2**31 - 1, -(2**31)]
    for record in (get("H100", "int8"), model):
        assert np.array_equal(matmul(a, b, c, gpu=record), by_rows(a, b, c, gpu=record))


def test_fp64_is_a_chain_of_fused_multiply_adds() -> None:
    a, b = RNG.standard_normal((3, 40)), RNG.standard_normal((40, 5))
    d = matmul(a, b, inputs="fp64")
    assert d.dtype == np.float64
    for i in range(3):
        for j in range(5):
            total = Fraction(0)
            for k in range(40):
                total = Fraction(float(Fraction(a[i, k]) * Fraction(b[k, j]) + total))  # float() rounds to nearest
            assert d[i, j] == float(total)
    assert np.array_equal(d, by_rows(a, b, np.zeros((3, 5)), inputs="fp64"))
    nan = matmul([[np.inf, np.inf]], [[1.0], [-1.0]], inputs="fp64")
    assert nan.view(np.uint64)[0, 0] == 0x7FF8000000000000


def test_memory() -> None:
    """Beside operands and result at most twice as much again is held at any time."""
    n = 512
    a, b = values("bf16", n, n), values("bf16", n, n)
    matmul(a, b, inputs="bf16")
    tracemalloc.start()
    try:
        matmul(a, b, inputs="bf16")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak + a.nbytes + b.nbytes <= 3 * (3 * a.nbytes)


test_errors = refusals.saying(
    (lambda: matmul(np.ones((2, 3)), np.ones((4, 5))), "a has shape (2, 3) and b (4, 5): K is 3 in a and 4 in b."),
    (lambda: matmul(np.ones(3), np.ones((3, 5))), "matrices (..., M, K) and (..., K, N) are needed."),
    (lambda: matmul(np.ones((2, 2, 3)), np.ones((3, 3, 5))),
     "leading dimensions of a (2, 2, 3) and b (3, 3, 5) do not"),
    (lambda: matmul(np.ones((2, 3)), np.ones((3, 5)), np.ones((3, 5))), "does not broadcast to the result's (2, 5)"),
    (lambda: dot(np.ones((2, 3)), np.ones((2, 4))), "both must be (N, K), or (K,) for one row"),
    (lambda: matmul([[1.0]], [[1 + 2.0**-20]], strict=True), "b: element 0 is"),
    (lambda: matmul([[1.0]], [[1.0]], [[1e-9]], output="fp16", strict=True), "c: element 0 is"),
    (lambda: matmul([[0.5]], [[1]], inputs="int8"),
     "a: element 0 is 0.5, which is no INT8; allowed: integers from -128"),
    (lambda: matmul([[1.0]], [[1.0]], inputs="tf32", conversion="rtz"),
     "unknown conversion 'rtz'. Allowed: truncate, rna, rne"),
    (lambda: dot([1.0], [1.0], conversion="rna"),
     "conversion='rna' says how FP32 becomes TF32, and a is fp16; leave it out."),
    (lambda: matmul([[1.0]], [[1.0]], scale_a=[[1.0]]), "has no block scales; use inputs such as 'mxfp8_e4m3'"),
    (lambda: matmul([[1.0]], [[1.0]], plan=Plan(promote=24)), "promote=24 is no multiple of 16"),
    (lambda: Plan(split_k=0), "split_k=0 is not possible; allowed: 1 to"),
    (lambda: Plan(split_k=2, stream_k=2), "split_k=2 with stream_k=2: both say how k is cut; choose one."),
    (lambda: PlanByRows(((64, Plan()), (16, Plan(split_k=2)))),
     "plans for [64, 16] rows at most are not possible; allowed: ascending numbers of rows."),
    (lambda: Plan(activation="gelo"), "unknown activation 'gelo'. Allowed: relu, gelu, gelu_tanh. Did you"),
    (lambda: matmul([[1]], [[1]], inputs="int8", plan=Plan(activation="relu")), "activation='relu' is for floating-"),
    (lambda: Plan(reduction="ascend"), "unknown reduction 'ascend'. Allowed: ascending, descending, pairwise. Did you"),
    (lambda: Plan(tile=(128, 128)), "tile=(128, 128) is not possible; allowed: (rows, columns, elements of k)."),
    (lambda: matmul([[1.0]], [[1.0]], plan=Plan(stream_k=1, tile=(1, 1, 24))), "24 is no multiple of 16, the products"),
    (lambda: matmul([[np.nan]], [[1.0]], gpu="B200", inputs="e2m1"), "a: element 0 is NaN, and e2m1 has none."),
    (lambda: matmul([[1.0]], [[1.0]], gpu="A100", inputs="e4m3"),
     "fplab.tensorcore.matmul([[1.0]], [[1.0]], gpu='A100', inputs='e4m3'): A100 (Ampere, sm_80) has no e4m3."),
)  # fmt: skip


def test_strict_takes_what_fits() -> None:
    a = values("fp16", 3, 16)
    assert np.array_equal(matmul(a, a.T, strict=True), matmul(a, a.T))


PLANS = (
    Plan(split_k=3, reduction="descending"), Plan(split_k=5, reduction="pairwise", accumulators=2),
    Plan(stream_k=2, tile=(2, 8, 32)), Plan(stream_k=7, tile=(2, 8, 64), reduction="pairwise"),
    Plan(stream_k=5, tile=(2, 16, 32), accumulators=2, promote=32), Plan(stream_k=64, tile=(2, 8, 32)),
)  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize(("gpu", "inputs", "output"), [
    ("H100", "fp16", "fp32"), ("A100", "fp16", "fp16"), ("H100", "e4m3", "fp32"), ("MI300X", "bf16", "fp32"),
    ("MI210", "fp16", "fp32"),
])  # fmt: skip
def test_a_plan_gives_the_oracles_bits(gpu: str, inputs: str, output: str, plan: Plan) -> None:
    m, k, n = 3, 140, 9
    a, b, c, model = values(inputs, m, k), values(inputs, k, n), values(output, m, n), get(gpu, inputs, output)
    found = matmul(a, b, c, gpu=model, plan=plan)
    for rows, columns, tile, tiles in plan.regions(m, n):
        for i, j in itertools.product(range(m)[rows], range(n)[columns]):
            want = oracle.planned(a[i].tolist(), b[:, j].tolist(), float(c[i, j]), model, plan, tile, tiles)
            assert found[i, j].view(np.uint32) == oracle.result_bits(want, model), (i, j)


def test_a_rule_by_rows_is_the_plan_that_it_chooses() -> None:
    rng = np.random.default_rng(17)
    a, b = rng.standard_normal((3, 9, 128)), rng.standard_normal((3, 128, 5))
    rule = PlanByRows(((4, Plan(split_k=8)), (8, Plan(accumulators=2))), beyond=Plan(split_k=2))
    for rows, plan in ((4, Plan(split_k=8)), (5, Plan(accumulators=2)), (9, Plan(split_k=2))):
        assert np.array_equal(bits(matmul(a[:, :rows], b, plan=rule)), bits(matmul(a[:, :rows], b, plan=plan)))
    assert (matmul(a, b, plan=rule)[:, :4] != matmul(a[:, :4], b, plan=rule)).any()


def test_stream_k_shares_iterations_evenly() -> None:
    """Three tiles of five iterations by four workers, four at most each: 4, 1 + 3, 2 + 2, 3."""
    plan = Plan(stream_k=4, tile=(128, 128, 64))
    sizes = [[chains[0].size // 4 for chains in plan.steps(20, 16, tile, 3)] for tile in range(3)]
    assert sizes == [[4, 1], [3, 2], [2, 3]]
    assert [tuple(region[2:]) for region in plan.regions(256, 129)] == [(n, 4) for n in range(4)]
    a, column = values("fp16", 8, 320), values("fp16", 320, 1)
    row = matmul(a, np.repeat(column, 257, axis=1), gpu="A100", plan=plan)  # all columns alike, but not their tiles
    assert len({row[:, i : i + 128].tobytes() for i in (0, 128)}) == 2


def test_a_bias_is_added_as_an_addend_of_the_whole_shape_is() -> None:
    rng = np.random.default_rng(0)
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-40, 3.4e38, 1.0], np.float32)
    result, bias = rng.choice(odd, (40, 130)), rng.choice(odd, 130)
    model = get("H100", "fp16")
    own, whole = (
        accumulators.of(model).epilogue(result, c, 1.0, 1.0, model) for c in (bias, np.broadcast_to(bias, result.shape))
    )
    assert np.array_equal(own.view(np.uint32), whole.view(np.uint32))
    assert set(own[np.isnan(own)].view(np.uint32)) == {0x7FFFFFFF}


@pytest.mark.parametrize(("inputs", "output"), [*((i, "fp32") for i in ("fp16", "bf16", "e4m3")), ("fp16", "fp16")])
@pytest.mark.parametrize("shape", [(1, 1, 1), (10, 128, 70), (70, 33, 10), (3, 300, 64)])
def test_a_product_in_one_call_is_that_of_the_chain(shape: tuple[int, int, int], inputs: str, output: str) -> None:
    (m, k, n), model, rng = shape, get("H100", inputs, output), np.random.default_rng(0)
    a, b = operand(model.a, (m, k), "infinite", rng), operand(model.b, (k, n), "tiny", rng)
    wide = np.zeros((2 * k, 2 * n), np.float32)
    wide[::2, ::2] = b
    want = matmul(a, b, gpu=model)
    for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b)), (a, wide[::2, ::2])):
        found = block.UNIT.alone(model, x, y)
        assert found is not None
        assert np.array_equal(found.view(np.uint32), want.view(np.uint32))
