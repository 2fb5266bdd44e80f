"""Part ``inferred``: drawn units and every class of the table, inferred from their outputs alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import fplab
from fplab.formats import get
from fplab.tensorcore import Model, ParametricUnit, classes, dot, infer
from fplab.tensorcore.models import input_name
from fplab.tensorcore.parametric import ROUNDERS

from .shares import Difference, Part, Share

Array = np.ndarray[Any, Any]
UNITS = 200
QUICK = 10  # classes of a slice


def synthetic(seed: int) -> ParametricUnit:
    """A unit whose every parameter is drawn."""
    rng = np.random.default_rng(seed)

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    a = pick("fp16", "bf16", "tf32", "e4m3", "e5m2", "fp32")
    output = pick("fp32", "fp32", "fp32", "fp16") if a not in ("bf16", "fp32") else "fp32"
    length, order = pick(1, 2, 3, 4, 5, 8, 16), pick("chain", "pairwise", "split", "interleaved", "promoted", "groups")
    if order == "groups":
        length = 1
    parts = {"split": pick(2, 3, 4), "interleaved": pick(2, 3, 4), "promoted": length * pick(2, 3, 4),
             "groups": pick(2, 4, 8)}.get(order, 0)  # fmt: skip
    bits = None if length == 1 else pick(10, 13, 20, 23, 24, 25, 26, 30)
    accumulator = output  # a narrower result would hide what its sums are
    kept = get(accumulator).fraction_bits
    if output == accumulator and pick(True, False):  # the bits of a sum are hidden by a result that has fewer
        kept = pick(8, 9, 10) + pick(0, 3, 6, 12) * (accumulator == "fp32")
    return ParametricUnit(
        a, a, output, length, order, parts, pick(False, False, True), pick("first", "last", "none"), bits,
        alignment="rtz" if bits is None else pick("rtz", "rtn", "rne"),
        normalised=bits is not None and pick(False, True),
        products=pick("exact", "rounded"), accumulator=accumulator, kept_bits=kept, rounding=pick(*ROUNDERS),
        joins=pick("rne", "rne", "rtz", "rtn"), store=pick("rne", "rtz"), flush_inputs=pick(False, False, True),
        flush_products=pick(False, False, True), flush_results=pick(False, False, True),
    )  # fmt: skip


def box(scheme: ParametricUnit) -> Any:
    if scheme.c == "none":
        return lambda a, b: scheme.dot(a, b)
    return lambda a, b, c: scheme.dot(a, b, c)


def rows(scheme: ParametricUnit, count: int, k: int, seed: int) -> tuple[Array, Array, Array]:
    """Rows of the formats whose exponents lie together."""
    rng = np.random.default_rng(seed)
    low = max(get(scheme.a).emin, -8) // 2
    a, b = (np.asarray(fplab.quantize(rng.standard_normal((count, k)) * np.exp2(rng.integers(low, 2, (count, k))), f))
            for f in (scheme.a, scheme.b))  # fmt: skip
    a[rng.random((count, k)) < 0.3] = 0
    return a, b, np.asarray(fplab.quantize(rng.standard_normal(count), scheme.output))


def meaningless(scheme: ParametricUnit) -> set[str]:
    """Fields that say nothing in a unit: of an alignment where nothing is cut, of joins where no sums meet."""
    found = {"order", "parts", "length", "reverse", "c"}  # which the tree says
    tree = scheme.tree(64)
    if all(any(i < 64 for i in node) for node in tree.nodes):
        found.add("joins")
    if scheme.output in ("fp32", scheme.accumulator):
        found.add("store")
    if scheme.alignment_bits is None:
        found |= {"alignment", "normalised"}
    if scheme.length == 1 and scheme.order in ("pairwise", "groups"):  # each product is rounded by itself
        found |= {"products", "normalised"}
    if scheme.products == "rounded":
        found.add("normalised")
    return found


def check_recovered(seed: int) -> bool:
    """A drawn unit comes back, or what differs is open, with units that agree on everything asked; whether all came."""
    scheme = synthetic(seed)
    asked: list[tuple[Any, ...]] = []

    def recorded(*operands: Array) -> Array:
        d = box(scheme)(*operands)
        asked.append((*operands, d))
        return np.asarray(d)

    f = (lambda a, b: recorded(a, b)) if scheme.c == "none" else (lambda a, b, c: recorded(a, b, c))
    found = infer(f, scheme.a, scheme.output)
    assert found.calls == len(asked)
    assert found.rows == sum(len(d) for *_, d in asked)
    inferred = found.scheme
    assert inferred is not None
    for k in (64, 96):
        assert inferred.tree(k) == scheme.tree(k)
        a, b, c = rows(scheme, 300, k, seed)
        z = None if scheme.c == "none" else c
        assert np.array_equal(found.dot(a, b, z), scheme.dot(a, b, z))
    opened = {one.field: one for one in found.open}
    names = {f.name for f in dataclasses.fields(ParametricUnit)} - meaningless(scheme)
    assert {n for n in names if getattr(inferred, n) != getattr(scheme, n)} <= set(opened), (seed, scheme)
    for one in found.open:
        for other in one.others:
            assert getattr(other, one.field) != getattr(inferred, one.field, None)
            for *operands, d in asked[:: max(1, len(asked) // 12)] if isinstance(other, ParametricUnit) else ():
                assert np.array_equal(other.dot(*operands), d)
    return not opened


def check_named(model: Model) -> None:
    def f(a: Array, b: Array, c: Array, sa: Array | None = None, sb: Array | None = None) -> Any:
        return dot(a, b, c, gpu=model, scale_a=sa, scale_b=sb)

    found = infer(f, input_name(model), model.output if model.output in ("fp16", "fp32") else "fp32")
    assert model.name in found.equals
    assert found.calls < 120


def drawn(seed: int) -> int:
    """One drawn unit, recovered or open with units that agree on everything asked."""
    try:
        check_recovered(seed)
    except AssertionError as error:
        raise Difference(f"unit {seed} is not recovered: {error}") from None
    return 1


def named(number: int) -> int:
    """One class of the table, by its first member."""
    model = classes()[number][0]
    try:
        check_named(model)
    except AssertionError as error:
        raise Difference(f"{model.name} ({input_name(model)}) is not named: {error}") from None
    return 1


def shares(quick: bool) -> list[Share]:
    """All units and classes; quick, a few."""
    units, numbers = range(UNITS), range(len(classes()))
    if quick:
        units, numbers = units[:1], numbers[:QUICK]
    found = [Share("a drawn unit comes back, or is open", "its record", drawn, (n,)) for n in units]
    return found + [Share("a class of the table is named", "its models", named, (n,)) for n in numbers]


PART = Part("inferred", "units inferred from their outputs", shares)
