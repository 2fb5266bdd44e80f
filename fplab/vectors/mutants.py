"""Units that are almost another one: each field of its record changed, each rounding, each order.

A corpus tests a decision where a unit that decides otherwise gives other bits in it. What no row can tell from the
unit itself is no other unit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from .. import formats
from ..hardware import software
from ..tensorcore import accumulators, limits
from ..tensorcore.models import Model
from ..tensorcore.parametric import FAULTY, ROUNDERS, ParametricUnit
from ..tensorcore.plan import Plan
from ..tensorcore.products import dot, matmul
from .rows import Drawn

Array = np.ndarray[Any, Any]
FIELDS_AROUND = 3  # values to each side of a field's own that are tried, of fields of many values
FIELDS_ACROSS = 6  # and values across its whole range


def changed(model: Model, name: str, value: Any) -> Model:
    """A record with another value of a field; what hangs on the field follows it. LabError for what cannot be."""
    more: dict[str, Any] = {}
    if name == "k":
        value = min(value, 2 * model.length)
    elif name == "length":
        scaled = model.scale and model.kind == "block"
        more = {"k": value, "scale": (model.scale[0], value)} if scaled and model.scale else {"k": 2 * value}
    elif name == "scale" and model.kind == "block":
        more = {"k": model.length}
    elif name == "output":
        more = {"a": value, "b": value} if model.kind == "fma" else {"rounding": "rne"}
        more["kept_bits"] = formats.get(value).fraction_bits
    return dataclasses.replace(model, **{name: value}, **more)


def neighbours(model: Model) -> Iterator[tuple[str, Model]]:
    """Records of the same formats and lengths of operands with another value of one field."""
    for name, allowed in limits.allowed(model).items():
        if name in ("a", "b", "output", "scale", "k"):  # what the rows have; k changes no whole instruction
            continue
        values = list(allowed)
        near = values.index(getattr(model, name))
        around = values[max(0, near - FIELDS_AROUND) : near + FIELDS_AROUND + 1]
        for value in dict.fromkeys([*around, *values[:: max(1, len(values) // FIELDS_ACROSS)]]):
            if value == getattr(model, name) or (name == "length" and model.scale):
                continue
            other = changed(model, name, value)
            yield f"{name}={value!r}", dataclasses.replace(other, k=model.k) if _fits(other, model.k) else other


def _fits(model: Model, k: int) -> bool:
    return k in limits.allowed(model)["k"]


def results(model: Model, rows: Drawn, lengths: Array, answer: Callable[..., Array] | None = None) -> Array:
    """The codes of a unit's results for rows of these lengths; ``answer``: of values, in the place of the unit's."""
    answer = answer or partial(_dot, model)
    found = np.zeros_like(rows["c"])
    for length in np.unique(lengths).tolist():
        at = lengths == length
        groups = -(-length // model.scale[1]) if model.scale else 0
        given = {
            n: software.values(np.ascontiguousarray(rows[n][at][:, :length]), f)
            for n, f in (("a", model.a), ("b", model.b))
        }
        given["c"] = software.values(rows["c"][at], model.output)
        if model.scale:
            given |= {name: software.values(np.ascontiguousarray(rows[name][at][:, :groups]), model.scale[0])
                      for name in ("scale_a", "scale_b")}  # fmt: skip
        with np.errstate(all="ignore"):
            d = np.ascontiguousarray(answer(**given))
        found[at] = software.codes(d, model.output)
    return found


def _dot(model: Model, a: Array, b: Array, c: Array, **scales: Any) -> Array:
    return np.asarray(dot(a, b, c, gpu=model, **scales))


def _split(model: Model, a: Array, b: Array, c: Array, **scales: Any) -> Array:
    """Of each instruction's chain the second half as a chain of its own, added at last."""
    across: dict[str, Any] = (
        {"scale_a": scales["scale_a"][:, None], "scale_b": scales["scale_b"][:, :, None]} if scales else {}
    )
    plan = Plan(split_k=2)
    return np.asarray(matmul(a[:, None], b[:, :, None], c[:, None, None], gpu=model, plan=plan, **across))[:, 0, 0]


def _permuted(model: Model, order: Callable[[int], Array], a: Array, b: Array, c: Array, **scales: Any) -> Array:
    """The products in another order of k; whole groups where they share scales."""
    size = model.scale[1] if model.scale else 1
    groups = order(a.shape[1] // size)
    k = (groups[:, None] * size + np.arange(size)).reshape(-1)
    return _dot(model, a[:, k], b[:, k], c, **{name: x[:, groups] for name, x in scales.items()})


def _c_last(model: Model, a: Array, b: Array, c: Array, **scales: Any) -> Array:
    """The products from zero, and c added to their sum."""
    accumulator = accumulators.of(model)
    sums = accumulator.read(_dot(model, a, b, 0 * np.zeros_like(c), **scales), model, c.shape, False)
    return np.asarray(accumulator.values(accumulator.add(sums, accumulator.read(c, model, c.shape, False), model)))


ORDERS: dict[str, Callable[..., Array]] = {
    "order: k descending": partial(_permuted, order=lambda n: np.arange(n)[::-1]),
    "order: even k first": partial(_permuted, order=lambda n: np.argsort(np.arange(n) % 2, kind="stable")),
    "order: two chains": _split,
    "order: c last": _c_last,
}


def scheme(model: Model) -> ParametricUnit | None:
    """A unit's arithmetic of finite numbers by its parameters, where it adds terms in steps; None where not."""
    if model.kind not in ("block", "fma") or model.scale or model.a in ("fp64", "fp32"):
        return None
    return ParametricUnit(
        model.a, model.b, model.output, model.length, alignment_bits=model.alignment_bits, kept_bits=model.kept_bits,
        accumulator=model.output, rounding=model.rounding,
    )  # fmt: skip


def _parametric(model: Model, rounding: str, a: Array, b: Array, c: Array) -> Array:
    """By the parameters with another rounding; what is not finite or zero as the unit has it."""
    unit, own = scheme(model), _dot(model, a, b, c)
    assert unit
    found = np.asarray(unit.changed(rounding=rounding).dot(a, b, c), own.dtype)
    return np.where(np.isfinite(own) & (own != 0) & (found != 0), found, own)


def mutants(model: Model) -> Iterator[tuple[str, Callable[..., Array]]]:
    """Every mutant of a unit by name, each a function of values a, b (N, K), c (N,) and scales."""
    for name, other in neighbours(model):
        yield name, partial(_dot, other)
    if scheme(model):
        for rounding in (*ROUNDERS, *FAULTY):
            if rounding != model.rounding and rounding not in limits.allowed(model)["rounding"]:
                yield f"rounding={rounding!r}", partial(_parametric, model, rounding)
    for name, order in ORDERS.items():
        yield name, partial(order, model)
