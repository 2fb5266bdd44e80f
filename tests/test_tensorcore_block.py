"""Oracle, the general kernel of rows, NumPy's products and fast kernels give the same bits, whatever the operands."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import examples
from tensorcore_cases import REGIMES, bits, by_numpy, distinct, exact_bits, operand, powers, representative

import fplab
from fplab.formats import get
from fplab.tensorcore import Model, Plan, dot, engine, matmul
from fplab.tensorcore import get as get_model
from fplab.tensorcore.models import OPTIONS

ANSWERS = [
    (name, value)
    for name in OPTIONS
    if name not in ("saturate", "zero_group", "flushed_zero")
    for value in OPTIONS[name][1:]
]


def by_general(model: Model, a: np.ndarray, b: np.ndarray, c: np.ndarray, **more: np.ndarray) -> np.ndarray:
    """A product by NumPy."""
    with by_numpy():
        return bits(matmul(a, b, c, gpu=model, **more))


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("model", representative(), ids=lambda m: m.name)
def test_three_ways(model: Model, regime: str) -> None:
    rng = np.random.default_rng(REGIMES.index(regime))
    m, k, n = (int(rng.integers(1, top)) for top in (30, 100, 90))
    a, b = operand(model.a, (m, k), regime, rng), operand(model.b, (k, n), regime, rng)
    c = operand(model.output, (m, n), str(rng.choice(REGIMES)), rng)
    scales: dict[str, np.ndarray] = {}
    if model.scale:
        groups = -(-k // 32)
        spread = int(rng.choice([3, 60, 126]))
        scales = {"scale_a": powers((m, groups), rng, spread), "scale_b": powers((groups, n), rng, spread)}
    fast, general = bits(matmul(a, b, c, gpu=model, **scales)), by_general(model, a, b, c, **scales)
    assert np.array_equal(fast, general)
    for _ in range(8):
        i, j = int(rng.integers(m)), int(rng.integers(n))
        pairs = list(zip(scales["scale_a"][i], scales["scale_b"][:, j], strict=True)) if scales else []
        assert exact_bits(model, a[i], b[:, j], c[i, j], pairs) == general[i, j], (i, j)


@pytest.mark.parametrize("inputs", ["fp16", "bf16", "e4m3"])
def test_what_the_vectors_of_a_row_leave(inputs: str) -> None:
    """Sums that reach 2**31 units, and accumulators far beside the products, zeros above all: the same bits."""
    model = get_model("B200", inputs, "fp32")
    rng = np.random.default_rng(1)
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((20, 64), (64, 70), (20, 70)))
    most = np.full_like(a, 1.99), np.full_like(b, 1.99), c * 300
    few = np.where(rng.random(a.shape) < 0.1, a, 0).astype(np.float32)
    few[:4] = 0
    far = [(few, b, np.ldexp(c, e)) for e in (-140, -120, -60, 110, 124)]
    for x, y, z in [most, (most[0], -most[1], most[2]), *far]:
        for m in (model, dataclasses.replace(model, floor=-30)):
            assert np.array_equal(bits(matmul(x, y, z, gpu=m)), by_general(m, x, y, z))


@pytest.mark.parametrize("bits_aligned", [44, 45, 50])
def test_sums_of_more_bits_than_float64_has(bits_aligned: int) -> None:
    """Sixteen, half a last place, and a last term that decides the tie from as far below as a unit aligns."""
    model = dataclasses.replace(get_model("H100", "bf16"), length=32, k=32, alignment_bits=bits_aligned, rounding="rne")
    down = bits_aligned // 2
    a = np.array([*[1.0] * 16, 2.0**-10, 2.0**-down, *[0.0] * 14])
    b = np.array([*[1.0] * 16, 2.0**-10, 2.0 ** (down - bits_aligned), *[0.0] * 14])
    wanted = exact_bits(model, a, b, 0.0)
    assert wanted == bits(16 + 2.0**-19)
    for plan in (None, Plan(promote=32)):
        assert bits(matmul(a[None], b[:, None], gpu=model, plan=plan)) == wanted
    assert bits(dot(a, b, gpu=model)) == wanted


@examples(300)
@given(data=st.data())
def test_one_block_against_the_oracle(data: st.DataObject) -> None:
    """Codes drawn one by one, so that a failure shrinks: few exponents, so that terms cancel; specials are common."""
    model = data.draw(st.sampled_from([m for m in distinct() if not m.scale]))
    k = data.draw(st.integers(1, 2 * model.length))

    def values(fmt: str, count: int) -> np.ndarray:
        f = get(fmt)
        edges = {0, 1, f.max_code, f.max_code - 1, 1 << f.fraction_bits, (1 << f.fraction_bits) - 1, f.max_code // 2}
        edges |= {c for c in (f.inf_code, f.nan_code) if c is not None and data.draw(st.integers(0, 9)) == 0}
        base = data.draw(st.integers(0, f.max_code))
        near = st.integers(max(0, base - 2), min(f.max_code, base + (1 << f.fraction_bits)))
        magnitude = st.one_of(st.sampled_from(sorted(edges)), near, near)
        pairs = data.draw(st.lists(st.tuples(magnitude, st.booleans()), min_size=count, max_size=count))
        return np.asarray(fplab.decode([m | (f.sign_mask if s else 0) for m, s in pairs], f))

    a, b, c = values(model.a, k), values(model.b, k), values(model.output, 1)
    wanted = exact_bits(model, a, b, c[0])
    assert bits(dot(a, b, c[0], gpu=model)) == wanted
    assert bits(matmul(a[None], b[:, None], c[None], gpu=model))[0, 0] == wanted


@settings(max_examples=150, deadline=None)
@given(model=st.sampled_from([m for m in distinct() if not m.scale]),
       option=st.sampled_from(ANSWERS),
       regime=st.sampled_from(["tiny", "sparse", "big", "codes"]), seed=st.integers(0, 2**32 - 1))  # fmt: skip
def test_open_options_against_the_oracle(model: Model, option: tuple[str, str], regime: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = model.with_options(**dict([option]))
    k = model.k * int(rng.integers(1, 3))  # whole instructions, to which a matrix product is filled up
    a, b = (operand(f, (k,), regime, rng) for f in (model.a, model.b))
    c = operand(model.output, (1,), "tiny" if rng.random() < 0.5 else "sparse", rng)[0]
    wanted = exact_bits(model, a, b, c)
    assert bits(dot(a, b, c, gpu=model)) == wanted
    assert bits(matmul(a[None], b[:, None], c[None, None], gpu=model))[0, 0] == wanted


@pytest.mark.parametrize(
    "model", [*distinct(), get_model("B200", "nvfp4"), get_model("B200", "mxfp4")], ids=lambda m: m.name
)
def test_the_true_exponent_of_a_subnormal_accumulator(model: Model) -> None:
    """The smallest products a format has, or of 2**-150, beside every subnormal c: its exponent decides the cut."""
    true = model.with_options(c_exponent="true")
    rng = np.random.default_rng(4)
    form = get(model.output)
    a, b = (operand(f, (24, model.k), "tiny", rng) for f in (model.a, model.b))
    if get(model.a).emin == -126:
        a, b = (np.asarray(fplab.quantize(np.ldexp(rng.standard_normal((24, model.k)), -75), model.a)) for _ in "ab")
    codes = rng.integers(1, 1 << rng.integers(1, form.fraction_bits + 1, 24))
    c = np.asarray(fplab.decode(codes, form), np.float32) * rng.choice([1, -1], 24).astype(np.float32)
    factor = 2.0**-60 if model.scale and model.scale[0] == "e8m0" else 1.0
    pairs = [(factor, factor)] * (model.k // model.scale[1] if model.scale else 0)
    scales = {f"scale_{x}": np.full((24, len(pairs)), factor) for x in "ab"} if pairs else {}
    wanted = [exact_bits(true, x, y, z, pairs) for x, y, z in zip(a, b, c, strict=True)]
    assert list(bits(dot(a, b, c, gpu=true, **scales))) == wanted
    for i in range(24):
        one = {"scale_a": scales["scale_a"][i : i + 1], "scale_b": scales["scale_b"][i][:, None]} if pairs else {}
        assert bits(matmul(a[i : i + 1], b[i][:, None], c[i : i + 1, None], gpu=true, **one))[0, 0] == wanted[i]


HALF = [2.0**-12, 2.0**-20, -0.0, -0.0], [2.0**-13, 2.0**-23, 1.0, 1.0]  # a tie of FP16's smallest, and a crumb
LESS = [2.0**-12, -(2.0**-20), -0.0, -0.0], [2.0**-13, 2.0**-20, 1.0, 1.0]


@pytest.mark.parametrize(
    ("option", "cell", "a", "b", "c", "default", "other"),
    [
        # The crumb 2**-43 is cut away at emax -19 and the tie goes to 0; at -20 it is kept and lifts the tie.
        ({"floor_rule": "zero_terms"}, ("V100", "fp16", "fp16"), *HALF, 0.0, 0.0, 2.0**-24),
        # c = 2**-24 and half of it are a tie again; -2**-40 is cut at c's clamped exponent -14, not at the floor -19.
        ({"c_exponent": "true"}, ("V100", "fp16", "fp16"), *LESS, 2.0**-24, 2.0**-23, 2.0**-24),
        ({"negative_zeros": "minus"}, ("V100", "fp16", "fp32"), [-0.0] * 4, [1.0] * 4, -0.0, 0.0, -0.0),
        ({"zero_from_below": "plus"}, ("V100", "fp16", "fp16"), [-(2.0**-13)], [2.0**-13], 0.0, -0.0, 0.0),
        (
            {"overflow": "max"},
            ("A100", "bf16", "fp32"),
            [2.0**127],
            [2.0],
            0.0,
            np.inf,
            float.fromhex("0x1.fffffep127"),
        ),
        ({"overflow": "max"}, ("A100", "fp16", "fp16"), [-256.0], [256.0], 0.0, -np.inf, -65504.0),
        # The option is of blocks; what widened FP8 adds at last is an IEEE sum, and 65520 the first beyond its range.
        ({"overflow": "max"}, ("H100", "e4m3", "fp16", "mma"), [256.0], [128.0], 32752.0, np.inf, np.inf),
        ({"overflow": "max"}, ("H100", "e4m3", "fp16", "mma"), [256.0], [128.0], 32736.0, 65504.0, 65504.0),
    ],
)
def test_each_open_option_by_hand(
    option: dict[str, str], cell: tuple[str, ...], a: list[float], b: list[float], c: float, default: float,
    other: float,
) -> None:  # fmt: skip
    model = get_model(*cell)
    for record, wanted in ((model, default), (model.with_options(**option), other)):
        assert bits(dot(a, b, c, gpu=record)) == bits(wanted)
        assert exact_bits(record, a, b, c) == bits(wanted)


def test_scratch_is_of_one_name_and_thread_and_of_no_end() -> None:
    first = engine.scratch("test", 10, np.float32)
    assert np.shares_memory(first, engine.scratch("test", 20, np.int16))
    assert not np.shares_memory(first, engine.scratch("another", 10, np.float32))
    with ThreadPoolExecutor(1) as pool:
        assert not np.shares_memory(first, pool.submit(engine.scratch, "test", 10, np.float32).result())
    large = engine.MOST_SCRATCH // 4 + 1
    assert not np.shares_memory(*(engine.scratch("test", large, np.float32) for _ in range(2)))


@pytest.mark.parametrize("shape", [(70, 33, 5), (5, 33, 70), (130, 16, 64)])
def test_a_result_is_written_where_it_lies_whether_or_not_operands_are_exchanged(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(m)
    a, b = (rng.standard_normal((3, *s)).astype(np.float16).astype(np.float32) for s in ((m, k), (k, n)))
    c = rng.standard_normal((3, n, m)).astype(np.float32).swapaxes(1, 2)
    model = get_model("H100", "fp16")
    whole = bits(matmul(a, b, c, gpu=model))
    for one, x, y, z in zip(whole, a, b, c, strict=True):
        assert np.array_equal(one, bits(matmul(x, y, z, gpu=model)))
        assert np.array_equal(one, by_general(model, x, y, z))
