"""Every field of a record reaches every way in which its algorithm is computed, or the record refuses the value."""

import dataclasses
import functools
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from tensorcore_cases import by_numpy, operand

import fplab
from fplab import LabError, uncompiled
from fplab.nn import device
from fplab.nn.device import running
from fplab.tensorcore import Model, Plan, accumulators, dot, get, limits, matmul, oracle, trace, units
from fplab.tensorcore.models import KINDS, Status
from fplab.tensorcore.units.block import FusedBlocks
from fplab.vectors.mutants import changed

pytestmark = pytest.mark.usefixtures("unoptimised")

Array = np.ndarray[Any, Any]
Rows = dict[str, Array]
ROWS = 64
SHOWN = 6  # rows in which a change shows, put to every route
ONE, SPLIT = Plan(), Plan(split_k=3)  # in the second the products of an instruction show
HALF = get("H100", "e5m2", "fp16", "mma")
IS_FAST = FusedBlocks.is_fast  # which a route takes the place of while it computes
BASES: dict[str, list[Model]] = {
    "block": [
        dataclasses.replace(get("H100", "bf16"), alignment_bits=16),
        get("A100", "fp16", "fp16"),
        get("Ada", "e4m3"),
        get("B200", "mxfp8_e5m2"),
    ],
    "widened": [HALF, dataclasses.replace(HALF, alignment_bits=4), get("B200", "e4m3", "fp32", "mma")],
    "grouped": [get("B200", "nvfp4"), dataclasses.replace(get("B200", "mxfp4"), alignment_bits=12)],
    "pairwise": [get("MI100"), get("MI210", "bf16")],
    "two_step": [get("MI300X", "bf16"), get("MI300X", "tf32")],
    "two_step_fp8": [get("MI300X", "e5m2fnuz")],
    "fma": [get("H100", "fp64"), get("MI300X", "fp32")],
    "integer": [get("T4", "int8").with_options(saturate=True)],
    "tensix": [get("Wormhole", "tf32"), get("Blackhole", "fp16")],
}


def others(model: Model) -> Iterator[tuple[str, Model]]:
    """The record with the values next to each field's and one further away; what hangs on a field follows it."""
    for name, allowed in limits.allowed(model).items():
        value, given = getattr(model, name), list(allowed)
        near = given.index(value)
        for other in dict.fromkeys([*given[max(0, near - 1) : near + 2], given[len(given) // 3]]):
            if other == value or (name == "length" and model.kind == "grouped" and other % model.scale[1]):
                continue
            yield name, changed(model, name, other)


def rows(model: Model, k: int, rng: np.random.Generator) -> Rows:
    """Rows (ROWS, k) on which records differ: crumbs beside c, cancelling ones, next to underflow, to overflow and to
    the floor, and zeros of both signs."""
    if model.a == "int8":
        ends = rng.choice([-(2**31), 2**31 - 1], ROWS) + rng.integers(-(2**15), 2**15, ROWS)
        a, b = rng.integers(-128, 128, (2, ROWS, k)).astype(np.int8)
        return {"a": a, "b": b, "c": np.clip(ends, -(2**31), 2**31 - 1).astype(np.int32)}
    x, y, d = model.format_a, model.format_b, model.format_d
    low, high = max(x.emin + y.emin - 4, -1020), min(x.emax + y.emax, 900)
    middle = [d.emin - d.fraction_bits + 4, -2, d.emax, -90 if model.floor is None else model.floor + 6, high]
    top = np.clip(rng.choice(middle, (ROWS, 1)) + rng.integers(-6, 6, (ROWS, 1)), low, high)
    exponents = top - rng.integers(0, 30, (ROWS, k)) * (rng.random((ROWS, k)) < rng.choice([0.0, 0.7], (ROWS, 1)))
    first = exponents // 2 + rng.integers(-1, 2, (ROWS, k))
    digits = 1 + rng.integers(0, 1 << 22, (2, ROWS, k)) * 2.0**-22
    a, b = np.ldexp(digits[0], first), np.ldexp(digits[1], exponents - first)
    a *= rng.choice([-1, 1], a.shape) * rng.choice([1, 1, 0], a.shape)
    half = rng.random(ROWS) < 0.25
    a[half, 1::2], b[half, 1::2] = -a[half, : k - 1 : 2], b[half, ::2][:, : k // 2]
    crumb = max(x.emin - x.fraction_bits + y.emin - y.fraction_bits, d.emin - d.fraction_bits - 2)
    a[:12], b[:12] = -0.0, 1.0
    a[3:6], b[3:6] = -(2.0 ** (crumb // 2)), 2.0 ** (crumb - crumb // 2)
    for some, at in ((slice(6, 9), k - 1), (slice(9, 12), k - model.k)):  # a crumb below zero in the last instruction
        a[some, at], b[some, at] = -(2.0 ** (crumb // 2)), 2.0 ** (crumb - crumb // 2)
    tiny = slice(24, 40)  # whose sum is about the smallest number, and which a floor would cut
    last = max((model.floor or -90) - model.alignment_bits, d.emin - d.fraction_bits - 2) + rng.integers(-1, 2, (16, 1))
    of_product = 0 * last if model.scale else last  # what the scales are not
    a[tiny], b[tiny] = np.ldexp(digits[0, tiny], of_product // 2), np.ldexp(1.0, of_product - of_product // 2)
    a[36:40, 1:] = 0
    a[38:40] *= -1
    if model.kind == "tensix":  # a sum of minus one unit
        a[0], b[0] = -np.eye(1, k)[0], 1.0
    if model.kind == "grouped":
        a[48:, :16] = 0  # of large scales
    size, found = np.ones((2, ROWS)), {"a": quantised(a, model.a), "b": quantised(b, model.b)}
    if model.scale:
        fmt, length = model.scale
        shape = ROWS, -(-k // length)
        far = rng.choice([0, -84, 62], (ROWS, 1)) + rng.integers(-4, 5, (2, *shape))
        for n, side in enumerate("ab"):
            far[n, tiny] = (last + n) // 2
            found[f"scale_{side}"] = np.exp2(far[n]) if fmt == "e8m0" else abs(operand(fmt, shape, "near", rng))
            size[n] = found[f"scale_{side}"].max(axis=1)
            if model.kind == "grouped":
                found[f"scale_{side}"][48:, 0] = quantised(size[n, 48:] * 64, fmt)
    c = np.ldexp(digits[0, :, 0], top[:, 0] + rng.integers(-28, 28, ROWS)) * rng.choice([-1.0, 1.0, 0.0, -0.0], ROWS)
    c = np.where(half, -(found["a"].astype(np.float64) * found["b"]).sum(axis=1), c) * size[0] * size[1]
    small = np.ldexp(c, -np.frexp(c)[1] + d.emin - rng.integers(0, 9, ROWS))
    c = np.where(rng.random(ROWS) < 0.2, small, c)
    c[:12], c[12:18], c[24:40] = -0.0, np.copysign(d.max, c[12:18]), 0.0
    c[0] = 1 - 3 * 2.0**-24 if model.kind == "tensix" else c[0]
    return {**found, "c": quantised(c, model.output)}


def quantised(x: Array, fmt: str) -> Array:
    """Values of a format in the dtype that they travel in, what overflows as the largest."""
    if fmt == "fp64":
        return np.asarray(x, np.float64)
    return np.asarray(fplab.quantize(x, fmt, overflow="saturate"), np.float32)


def fitted(given: Rows, model: Model) -> Rows:
    """Rows as values of a record's formats, with as many scales as it takes."""
    if model.a == "int8":
        return given
    named = zip("abc", (model.a, model.b, model.output), strict=True)
    found = {name: quantised(given[name], fmt) for name, fmt in named}
    for side in "ab" if model.scale else "":
        shape = len(given["a"]), -(-given["a"].shape[1] // model.scale[1])
        drawn = given.get(f"scale_{side}", np.exp2(np.arange(shape[0] * shape[1]) % 7 - 3))
        if drawn.shape != shape:
            drawn = np.resize(drawn, shape)
        powers = np.exp2(np.floor(np.log2(np.maximum(drawn, 2.0**-100))))
        found[f"scale_{side}"] = powers if model.scale[0] == "e8m0" else abs(quantised(drawn, model.scale[0]))
    return found


def exactly(model: Model, given: Rows, plan: Plan) -> list[int]:
    """What the oracle says of rows: bits, or integers."""
    found = []
    for i in range(len(given["a"])):
        scales = list(zip(given["scale_a"][i], given["scale_b"][i], strict=True)) if model.scale else ()
        row = given["a"][i].tolist(), given["b"][i].tolist(), float(given["c"][i])
        value = oracle.planned(*row, model, plan, scales=scales)
        found.append(int(value.value) if model.output == "int32" else oracle.result_bits(value, model))
    return found


def bits(x: Any) -> list[int]:
    x = np.ascontiguousarray(x)
    return (x if x.dtype == np.int32 else x.view(f"u{x.itemsize}")).tolist()


def routes(model: Model, given: Rows, plan: Plan) -> Iterator[tuple[str, Any]]:
    """The results of rows (n, k), one after the other, as the diagonal of a product, and as a batch; by each way."""
    a, b, c = (given[name] for name in "abc")
    scales = {name: x for name, x in given.items() if name not in ("a", "b", "c")}
    across = {name: x.T if name == "scale_b" else x for name, x in scales.items()}
    each = {name: x[:, None] if name == "scale_a" else x[:, :, None] for name, x in scales.items()}
    for way in ("kernels", "NumPy"):
        results = {}
        with ExitStack() as ways:  # in which nothing is yielded: whoever asks may ask two in turn
            if way == "NumPy":
                ways.enter_context(by_numpy()).setattr(uncompiled, "products", lambda *_: True)
            if plan == ONE:
                results["dot"] = dot(a, b, c, gpu=model, **scales)
            results["matmul"] = np.diagonal(matmul(a, b.T, c, gpu=model, plan=plan, **across))
            batch = a[:, None], b[:, :, None], c[:, None, None]
            results["batch"] = matmul(*batch, gpu=model, plan=plan, **each)[:, 0, 0]
        yield from ((f"{route} by {way}", result) for route, result in results.items())
    if plan == ONE and not model.scale:
        acc = np.ascontiguousarray(accumulators.of(model).read(c, model, (len(a), len(a)), False))
        units.of(model).product_by(model, np.ascontiguousarray(b.T))(a, acc)
        yield "held", np.diagonal(accumulators.of(model).values(acc))
    if plan == ONE and units.of(model).traced:
        own = [{name: x[i] for name, x in scales.items()} for i in range(len(a))]
        traces = [trace(*row, gpu=model, **s) for *row, s in zip(a, b, c, own, strict=True)]
        yield "trace", np.array([t.result for t in traces], c.dtype)


def on_device(model: Model, given: Rows, plan: Plan) -> Any:
    """The same by the C++ for GPUs."""
    across = {name: np.ascontiguousarray(x.T if name in ("b", "scale_b") else x) for name, x in given.items()}
    return np.diagonal(device.matmul(gpu=model, plan=plan, **{name: torch.from_numpy(x) for name, x in across.items()}))


@functools.cache
def changes(kind: str) -> list[tuple[Any, ...]]:
    """For each other value of each field: the two records, the field, the plan, rows, the oracle's bits of them, and
    whether the change shows in them."""
    cases: list[tuple[Any, ...]] = []
    for base in BASES[kind]:
        rng = np.random.default_rng(len(base.name))
        drawn = {k: rows(base, k, rng) for k in (base.k, 4 * base.k)}
        before = {(k, plan): exactly(base, given, plan) for k, given in drawn.items() for plan in (ONE, SPLIT)}
        for name, model in others(base):
            k, plan = base.k if re.search("zero|floor", name) else 4 * base.k, SPLIT if name == "k" else ONE
            own = fitted(drawn[k], model)
            after = exactly(model, own, plan)
            differ = [i for i in range(ROWS) if after[i] != before[k, plan][i]]
            at = (differ or list(range(ROWS)))[:: max(1, len(differ) // SHOWN)][:SHOWN]
            shown, wanted = {n: x[at] for n, x in own.items()}, [after[i] for i in at]
            cases.append((base, model, name, plan, shown, wanted, bool(differ)))
    return cases


@pytest.mark.parametrize("kind", [kind for kind in KINDS if units.named(kind).on_device(BASES[kind][0])])
def test_a_changed_field_changes_what_devices_compute(kind: str) -> None:
    if not any(map(shutil.which, running.COMPILERS)):
        pytest.skip("no C++ compiler is installed")
    seen: set[str] = set()
    for base, model, name, plan, shown, wanted, differs in changes(kind):
        if differs and name not in seen:
            assert bits(on_device(model, shown, plan)) == wanted, (base.name, name, getattr(model, name))
            seen.add(name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_field_changes_every_route_alike(kind: str) -> None:
    for base, model, name, plan, shown, wanted, _ in changes(kind):
        for route, found in routes(model, shown, plan):
            assert bits(found) == wanted, (route, base.name, name, getattr(model, name))
    seen = {name for _, _, name, *_, differs in changes(kind) if differs}
    assert seen == {name for base in BASES[kind] for name, values in limits.allowed(base).items() if len(values) > 1}


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_algorithm_does_not_read_its_records_refuse(kind: str) -> None:
    """Whatever the records of any algorithm may say in a field, and this one's may not."""
    base, refused = BASES[kind][0], 0
    everywhere: dict[str, set[Any]] = {}
    for model in (m for models in BASES.values() for m in models):
        for name, values in limits.allowed(model).items():
            everywhere.setdefault(name, set()).update(values[:4] if name == "k" else values)
    everywhere["k"] |= {0, -1}
    for name, values in everywhere.items():
        for value in sorted(values - set(limits.allowed(base)[name]), key=repr)[::5]:
            why = rf"^({name}={re.escape(repr(value))}|[a-z_]+=\S+) is not possible for kind='{kind}'; allowed: "
            with pytest.raises(LabError, match=why):
                dataclasses.replace(base, **{name: value})
            refused += 1
    assert refused > 10


def test_names_and_status_are_no_arithmetic() -> None:
    for bases in BASES.values():
        given = rows(bases[0], bases[0].k, np.random.default_rng(0))
        named = dataclasses.replace(bases[0], gpu="of mine", instruction="other", status=Status.OPEN)
        for (_, one), (_, other) in zip(routes(bases[0], given, ONE), routes(named, given, ONE), strict=True):
            assert bits(one) == bits(other)
    assert FusedBlocks.is_fast is IS_FAST
