"""Every algorithm of a matrix unit: its oracle against its fast rows and products, and the slow product of all."""

import dataclasses

import numpy as np
import pytest
from tensorcore_cases import operand, powers

from fplab.tensorcore import Model, accumulators, dot, get, matmul, oracle, units
from fplab.tensorcore.models import KINDS, SIMULATIONS, TABLE
from fplab.tensorcore.operands import Scales, read_scales

RNG_SEED = 20260


def test_every_algorithm_has_a_cell() -> None:
    assert {m.kind for m in (*TABLE, *SIMULATIONS)} == set(KINDS)


def test_the_oracle_of_fp64_is_a_chain_of_multiply_adds() -> None:
    rng = np.random.default_rng(RNG_SEED)
    a, b = rng.standard_normal((2, 40, 9)) * np.exp2(rng.integers(-520, 520, (2, 40, 9)))
    a[:3], b[1:4] = [[np.inf], [np.nan], [-0.0]], 0.0
    c = rng.standard_normal(40)
    model = get("A100", "fp64")
    with np.errstate(all="ignore"):
        found = dot(a, b, c, model)
    for x, y, start, got in zip(a.tolist(), b.tolist(), c.tolist(), found.tolist(), strict=True):
        want = oracle.dot(x, y, start, model)
        value = {"finite": float(want.magnitude), "inf": np.inf, "nan": np.nan}[want.kind]
        assert np.array_equal(np.copysign(value, -1 if want.negative else 1), got, equal_nan=True)


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("instruction", ["mma.k16", "mma.k32"])
def test_the_oracle_of_int8_wraps_or_saturates(saturate: bool, instruction: str) -> None:
    rng = np.random.default_rng(RNG_SEED)
    model = get("A100", "int8", None, instruction).with_options(saturate=saturate)
    a, b = rng.integers(-128, 128, (2, 30, 70))
    c = np.where(rng.random(30) < 0.5, 2**31 - 1, -(2**31)) - rng.integers(-999, 1000, 30)
    c = np.clip(c, -(2**31), 2**31 - 1)
    want = [int(oracle.dot(*row, model).value) for row in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    assert dot(a, b, c, model).tolist() == want
    assert [matmul(x[None], y[:, None], z, model).item() for x, y, z in zip(a, b, c, strict=True)] == want


SMALL: list[Model] = [get("H100"), get("H100", "e4m3", "fp16", "mma"), get("B200", "mxfp8_e4m3"), get("B200", "nvfp4"),
                      get("H100", "int8"), dataclasses.replace(get("H100", "int8"), saturate=True),
                      get("H100", "fp64")]  # fmt: skip


@pytest.mark.parametrize("model", SMALL, ids=lambda m: f"{m.name} {m.saturate}")
def test_the_given_product_is_the_fast_one(model: Model) -> None:
    """A new algorithm needs rows alone: a chain over matrices is then made of them, bit for bit."""
    rng = np.random.default_rng(RNG_SEED)
    m, k, n = 5, 2 * model.k + 3, 11
    if model.output in ("fp32", "fp16"):
        a, b = operand(model.a, (m, k), "near", rng), operand(model.b, (k, n), "near", rng)
    else:
        a, b = rng.integers(-128, 128, (m, k)).astype(np.int8), rng.integers(-128, 128, (k, n)).astype(np.int8)
        a, b = (a, b) if model.a == "int8" else (a / 3.0, b / 7.0)
    scales: tuple[Scales, Scales] | None = None
    if model.scale:
        size = -(-k // model.scale[1])
        pair = [read_scales(powers((rows, size), rng, 6), "scale", (rows, size), model) for rows in (m, n)]
        scales = pair[0], pair[1]  # type: ignore[assignment]
    instructions = np.array([0, 2])
    start = accumulators.of(model).read(rng.integers(-9, 9, (m, n)), model, (m, n), False)
    fast, given = start.copy(), start.copy()
    units.of(model).chain(model, a, b, fast, instructions, 0, scales)
    units.Unit.chain(units.of(model), model, a, b, given, instructions, 0, scales)
    assert fast.tobytes() == given.tobytes()
    assert (fast != start).any()
