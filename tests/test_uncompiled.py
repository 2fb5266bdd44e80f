"""A few elements, which the oracle answers where a kernel would first have to be compiled: as the kernels do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fresh import python
from helpers import EVERY, assert_same, combinations, fmt_id, random_floats, specials
from tensorcore_cases import REGIMES, operand, powers, representative

import fplab
from fplab import arithmetic, floats, uncompiled
from fplab.errors import LabError
from fplab.formats import Format
from fplab.sums import ORDERS, RUNNING
from fplab.tensorcore import Model, dot, matmul, products, vectors

ARITHMETIC = [f for f in EVERY if f.bits <= 32 and f.significand_bits <= 31]
SUMMED = ("bf16", "fp16", "e4m3", "e5m2", "e3m2", "fp32", "e8m0", "binary8p3sf", "binary8p3se", "binary6p1ue")


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A check that a call gives the same bits, dtypes and errors by the oracle and by kernels."""

    def answer(call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], left: int) -> Any:
        monkeypatch.setattr(uncompiled, "_left", left)
        monkeypatch.setattr(uncompiled, "_most_products", left)
        monkeypatch.setattr(uncompiled, "_made", {})
        try:
            return call(*args, **options)
        except LabError as error:
            return str(error)

    def check(call: Callable[..., Any], *args: Any, **options: Any) -> None:
        mine, kernels = (answer(call, args, options, left) for left in (1 << 40, 0))
        what = (call.__name__, options)
        assert type(mine) is type(kernels), what
        if isinstance(mine, str):
            assert mine == kernels, what
            return
        for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (mine, kernels)), strict=True):
            assert_same(np.asarray(one), np.asarray(other), what)

    monkeypatch.setattr(uncompiled, "AT_ONCE", 1 << 20)
    monkeypatch.setattr(uncompiled, "is_ready", lambda *_: False)
    return check


def drawn(fmt: Format, count: int) -> list[dict[str, Any]]:
    """Some of the combinations of options that a format has, with a rule for NaN or none; none of them draws."""
    found = [c for c in combinations(fmt) if not c[0].random]
    rng = np.random.default_rng(fmt.bits)
    return [
        {"rounding": mode, "overflow": policy, "subnormals": flush, "nan": rng.choice([None, "zero", "max"])}
        for mode, policy, flush in (found[i] for i in rng.permutation(len(found))[:count])
    ]


def some(fmt: Format, dtype: Any, key: int, n: int = 14) -> np.ndarray:
    """Random bits, special values, and numbers about the ends of a format's range."""
    rng = np.random.default_rng(key)
    with np.errstate(over="ignore"):
        near = np.ldexp(rng.standard_normal(n), rng.choice([0, fmt.emin, fmt.emax], n)).astype(dtype)
    return np.concatenate([near, rng.permutation(specials(dtype))[:n], random_floats(key, n, dtype)])


@pytest.mark.parametrize("fmt", EVERY, ids=fmt_id)
def test_rounding_and_codes(fmt: Format, alike: Callable[..., None]) -> None:
    for key, options in enumerate(drawn(fmt, 6)):
        for dtype in (np.float32, np.float64):
            x = some(fmt, dtype, key)
            finite = x[~np.isnan(x)]
            for given in (x, finite):
                alike(floats.quantize, given, fmt, **options)
                alike(floats.encode, given, fmt, **options)
            alike(floats.convert, finite, "fp32", fmt, flags=True, **options)
            alike(floats.convert, x, fmt, "fp16", flags=True)
    codes = np.random.default_rng(0).integers(0, 1 << min(fmt.bits, 63), 40, dtype=np.uint64)
    alike(floats.decode, codes, fmt)
    alike(floats.decode, codes, fmt, np.float64)


@pytest.mark.parametrize("fmt", ARITHMETIC, ids=fmt_id)
def test_arithmetic(fmt: Format, alike: Callable[..., None]) -> None:
    names = (("sqrt", 1), ("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("fma", 3))
    for key, options in enumerate(drawn(fmt, 3)):
        for dtype in (np.float32, np.float64):
            given = [some(fmt, dtype, 10 * key + i) for i in range(3)]
            for name, count in names:
                for flags in (False, True):
                    alike(getattr(arithmetic, name), *given[:count], fmt, flags=flags, **options)
            for relation in (arithmetic.eq, arithmetic.lt, arithmetic.le):
                alike(relation, *given[:2], fmt, options["subnormals"], flags=True)


@pytest.mark.parametrize("name", SUMMED)
def test_sums(name: str, alike: Callable[..., None]) -> None:
    fmt = next(f for f in EVERY if f.name == name)
    for key, options in enumerate(drawn(fmt, 5)):
        x, y = (some(fmt, np.float32, key + i, 7).reshape(3, 7) for i in (0, 50))
        for order in ORDERS:
            shared = {**options, "order": order, "block": 3, "flags": key % 2 == 0}
            alike(fplab.sum, x, fmt, running=order in RUNNING and key % 3 == 0, **shared)
            alike(fplab.dot, x, y, fmt, accumulate=fmt, store="fp16", **shared)
        alike(fplab.dot, x, y, fmt, accumulate="exact", flags=True, **options)
        alike(fplab.sum, x[:, :0], fmt, flags=True, **options)


@pytest.mark.parametrize("model", representative(), ids=lambda m: f"{m.gpu}-{m.a}-{m.output}")
def test_products(model: Model, alike: Callable[..., None]) -> None:
    """Rows and matrices, batches that broadcast, operands however they lie, scales, by a b that is held."""
    rng = np.random.default_rng(0)
    for regime in ("codes", "tiny", "sparse", "infinite"):
        a, b = operand(model.a, (2, 3, 19), regime, rng), operand(model.b, (1, 19, 70), regime, rng)
        c = operand(model.output, (3, 70), str(rng.choice(REGIMES)), rng)
        scales = {"scale_a": powers((2, 3, 1), rng, 60), "scale_b": powers((1, 1, 70), rng, 60)} if model.scale else {}
        rows = {name: x[0, :3] if name == "scale_a" else x[0, :, :3].T for name, x in scales.items()}
        for entering in (None, c):
            alike(dot, a[0], b[0, :, :3].T, None if entering is None else c[:, 0], model, **rows)
            alike(matmul, a, b, entering, model, **scales)
            alike(matmul, a[0], np.asfortranarray(b[0]), entering, model, **{n: x[0] for n, x in scales.items()})
        if not model.scale:
            alike(held, model, b[0], a[0])
    alike(dot, a[0, :, :0], b[0, :0, :3].T, 1.0, model)
    if products.rounds(model):
        wide = rng.integers(0, 1 << 32, (3, 19, 19), np.uint32).view(np.float32)
        alike(products.multiply, model, wide, wide.swapaxes(1, 2))
        alike(held, model, wide[0], wide[1])


def held(model: Model, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    return products.product_by(model, y)(x)


def test_a_kernel_is_compiled_once_products_pay_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    work = (1 << 14) + 16**3
    monkeypatch.setattr(uncompiled, "_most_products", 3 * work)
    monkeypatch.setattr(uncompiled, "_made", {})
    monkeypatch.setattr(uncompiled, "is_ready", lambda *_: False)
    monkeypatch.setattr(vectors, "fill", lambda x, *_: made.append(len(x.values)))
    one, large = np.ones((16, 16)), np.ones((64, 64))
    for gpu in ("H100", "A100"):  # whose blocks of 8 products are two, each with its time besides
        for x in (one, large, one, one, one):
            matmul(x, x, gpu=gpu)
    assert made == [16] * 4
    monkeypatch.setattr(uncompiled, "_made", {})
    monkeypatch.setattr(uncompiled, "is_ready", lambda *_: True)
    matmul(one, one)
    assert made == [16] * 4


CACHED = """
import numpy as np
from fplab import uncompiled
from fplab.tensorcore import dot, matmul
x = np.ones((2, 32, 32), np.float32)
for how in ({}, {"inputs": "bf16"}, {"gpu": "V100", "output": "fp16"}, {"gpu": "B200", "inputs": "mxfp8_e4m3"}):
    matmul(x, x, **how), matmul(x[0], x[0], **how), dot(x[0], x[0], **how)
print(len(uncompiled._made), *set(uncompiled._made.values()))
"""


def test_a_kernel_in_the_cache_makes_all_products() -> None:
    """Three of matrices and three of batches, by few exponents and many; one with scales; that of rows."""
    for allowed, found in (("0", "0"), ("1000", "8 inf")):
        assert python(CACHED, FPLAB_FEW=allowed).strip() == found


def test_what_is_asked_often_gets_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncompiled, "_left", 3)
    said = []
    monkeypatch.setattr(uncompiled, "quantize", lambda codes, *_: said.append(codes.size) or -1)
    for size in (2, 2, 1, 1):
        fplab.quantize(np.ones(size), "bf16")
    assert said == [2, 1]
    monkeypatch.setattr(uncompiled, "_left", 1 << 40)
    fplab.quantize(np.ones(uncompiled.AT_ONCE + 1), "bf16")
    fplab.quantize(1.0, "bf16", "stochastic", seed=1)
    assert said == [2, 1]


def test_a_first_call_compiles_nothing(tmp_path: Any) -> None:
    several = (
        "import fplab; print(fplab.add(1, 2, 'fp16', flags=True), fplab.sum([1, 2], 'bf16'), fplab.uncompiled._left)"
    )
    one = "import fplab; fplab.add(1, 2, 'fp16')"
    for allowed, code, compiled in (("1000", several, False), ("0", one, True)):
        python(code, FPLAB_CACHE_DIR=str(tmp_path), FPLAB_FEW=allowed)
        assert bool(list(tmp_path.rglob("*.nbc"))) is compiled
    with pytest.raises(
        AssertionError, match=r"FPLAB_FEW='many' is not an integer; allowed: 0 to 4611686018427387904\."
    ):
        python(several, FPLAB_FEW="many")
