"""Inferring an arithmetic by elimination: every record of a family computes the same rows, and those that differ go.

For formats whose products span too few exponents to show an alignment directly (FP6, FP4), whose blocks share a scale,
or that have no blocks at all (INT8, FP64).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import seeds
from ..errors import LabError
from ..formats import Format, get
from . import models
from .models import Kind, Model, Status

Array = np.ndarray[Any, Any]
Rows = dict[str, Array]
LENGTHS = (4, 8, 16, 32, 64)
ALIGNMENTS = range(8, 41)
COUNT = 384  # rows of a round
ROUNDS = 4
SEEN = ("kind", "length", "alignment_bits", "kept_bits", "rounding", "k", "saturate", "zero_group")  # what varies


def eliminate(black_box: Callable[..., Any], inputs: models.Inputs, output: str, k: int) -> tuple[Model, ...]:
    """The records of the family with the black box's outputs, those of the table's first; at least one.

    Raises LabError where none has them.
    """
    left = list(family(inputs, output))
    for seed in range(ROUNDS):
        rows = draw(left[0], k, np.random.Generator(seeds.stream(seed)))
        wanted = _bits(black_box(*rows.values()))
        left = [m for m in left if np.array_equal(_bits(_compute(m, rows)), wanted)]
        if not left:
            raise LabError(
                f"no arithmetic that is known here gives these outputs for {inputs!r}; tried: blocks of "
                f"{', '.join(map(str, LENGTHS))} aligned to {ALIGNMENTS[0]} to {ALIGNMENTS[-1]} bits."
            )
    return tuple(left)


def family(inputs: models.Inputs, output: str) -> Iterator[Model]:
    """The records to choose from, the parameters of the table's own before the others."""
    a, b, scale, grouped = models.input_key(inputs)
    known = [m for m in models.TABLE if (m.a, m.b, m.scale, m.kind is Kind.GROUPED) == (a, b, scale, grouped)]
    output = {"int8": "int32", "fp64": "fp64"}.get(a, output)
    found: dict[tuple[Any, ...], Model] = {}
    for m in (m for m in known if m.output == output):
        for other in (m, *_others(m)):
            found.setdefault(tuple(getattr(other, name) for name in SEEN), other)
    if not found:
        raise LabError(f"inputs={inputs!r}, output={output!r} is no cell of the table, nor like one.")
    for m in found.values():
        yield dataclasses.replace(m, gpu="probed", instruction="mma", status=Status.OPEN)


def _others(m: Model) -> Iterator[Model]:
    """Neighbours of a record: other lengths and alignments, or for integers saturation."""
    if m.kind is Kind.INTEGER:
        yield from (dataclasses.replace(m, k=k, saturate=s) for k in (16, 32) for s in (False, True))
    elif m.kind is not Kind.FMA:
        smallest = m.scale[1] if m.scale else 1
        lengths = [n for n in LENGTHS if n >= smallest] if m.kind is not Kind.WIDENED else [m.length]
        for length in lengths:
            k = m.k if m.kind is Kind.WIDENED else length
            groups = models.OPTIONS["zero_group"] if m.kind is Kind.GROUPED else (m.zero_group,)
            for f, group in itertools.product(ALIGNMENTS, groups):
                yield dataclasses.replace(m, length=length, alignment_bits=f, k=k, zero_group=group)


def draw(model: Model, k: int, rng: np.random.Generator) -> Rows:
    """Rows on which the records of a family part: a, b (COUNT, k), c (COUNT,), and scales where there are any."""
    if model.kind is Kind.INTEGER:
        edge = np.where(rng.random(COUNT) < 0.5, 2**31 - 1, -(2**31)) - rng.integers(-(2**15), 2**15, COUNT)
        c = np.clip(edge, -(2**31), 2**31 - 1).astype(np.int32)
        a, b = rng.integers(-128, 128, (2, COUNT, k)).astype(np.int8)
        return {"a": a, "b": b, "c": c}
    if model.kind is Kind.FMA:
        a, b = rng.standard_normal((2, COUNT, k)) * np.exp2(rng.integers(-20, 20, (2, COUNT, k)))
        return {"a": a, "b": b, "c": rng.standard_normal(COUNT)}
    a, b = (_elements(get(f), k, rng) for f in (model.a, model.b))
    most = model.format_a.emax + model.format_b.emax
    rows: Rows = {"a": a, "b": b, "c": _accumulators(model.format_d, most, a, b, rng)}
    if model.scale:
        size, groups = model.scale[1], -(-k // model.scale[1])
        rows["scale_a"], rows["scale_b"] = (_scales(get(model.scale[0]), groups, rng) for _ in "ab")
        s, t = (np.repeat(rows[f"scale_{x}"], size, axis=1)[:, :k] for x in "ab")
        cancels = rng.random(COUNT) < 0.5  # c takes the first group away, so that what lies far below it shows
        first = (a[:, :size] * b[:, :size] * (s * t)[:, :size]).sum(axis=1)
        near = rows["c"] * np.maximum((s * t).max(axis=1), 2.0**-60)
        rows["c"] = np.where(cancels, -first, near).astype(np.float32)
        if model.kind is Kind.GROUPED:
            _zero_groups(rows, model.scale[1], rng)
    return rows


def _zero_groups(rows: Rows, size: int, rng: np.random.Generator) -> None:
    """In some rows a first group of zeros with the largest scales, and a c whose last bits lie below that alignment."""
    chosen = rng.random(COUNT) < 0.25
    rows["a"][chosen, :size] = 0
    top = max(float(rows[name].max()) for name in ("scale_a", "scale_b"))
    for name in ("scale_a", "scale_b"):
        rows[name][chosen, 0] = top
    digits = 1 + rng.integers(0, 1 << 23, COUNT) * 2.0**-23
    c = np.ldexp(digits, rng.integers(-30, -12, COUNT)) * top**2
    rows["c"][chosen] = c[chosen]


def _elements(f: Format, k: int, rng: np.random.Generator) -> Array:
    """Random finite values, in some rows mostly zeros."""
    values = np.ldexp(rng.integers(0, 1 << f.significand_bits, (COUNT, k)) * 2.0**-f.fraction_bits,
                      rng.integers(f.emin, f.emax, (COUNT, k), endpoint=True))  # fmt: skip
    values = np.minimum(values, f.max) * rng.choice([-1, 1], (COUNT, k))
    values *= rng.random((COUNT, k)) < rng.choice([0.05, 0.3, 1.0], (COUNT, 1))
    return np.asarray(values, np.float32)


def _accumulators(d: Format, most: int, a: Array, b: Array, rng: np.random.Generator) -> Array:
    """Accumulators from the size of the products to the place where they disappear below it; some zero."""
    spread = d.significand_bits + 4
    exponents = most + rng.integers(-4, spread, COUNT)
    digits = 1 + rng.integers(0, 1 << d.fraction_bits, COUNT) * 2.0**-d.fraction_bits
    c = np.ldexp(digits, np.minimum(exponents, d.emax - 1)) * rng.choice([-1, 0, 1], COUNT, p=[0.45, 0.1, 0.45])
    return np.asarray(c, np.float32)


def _scales(f: Format, groups: int, rng: np.random.Generator) -> Array:
    """Block scales: powers of two as far apart as the format goes, though of E8M0 only 2**-26 to 2**26."""
    low, high = max(f.emin - f.fraction_bits, -26), min(f.emax, 26)
    scales: Array = np.exp2(rng.integers(low, high, (COUNT, groups), endpoint=True)).astype(np.float32)
    return scales


def _compute(model: Model, rows: Rows) -> Any:
    from .products import dot

    with np.errstate(all="ignore"):
        return dot(rows["a"], rows["b"], rows["c"], model, scale_a=rows.get("scale_a"), scale_b=rows.get("scale_b"))


def _bits(x: Any) -> Array:
    """Results as unsigned bits, every NaN alike."""
    values = np.asarray(x)
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.asarray(np.nan, values.dtype), values)
    return values.view(f"u{values.dtype.itemsize}")
