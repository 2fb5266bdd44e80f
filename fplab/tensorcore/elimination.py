"""Inferring an arithmetic by elimination: every record of a family computes the same rows, and those that differ go.

For formats whose products span too few exponents to show an alignment directly (FP6, FP4), whose blocks share a scale,
or that have no blocks at all (INT8, FP32, FP64), and for units that are no fused blocks (AMD's).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import seeds
from ..errors import LabError
from . import models, units
from .models import Model, Status
from .products import dot
from .units import Array, Rows
from .units.block import ALIGNMENTS, LENGTHS

COUNT = 384  # rows of a round
FEW = 8  # of them, asked about first
ROUNDS = 4
SEEN = (  # what varies
    "kind", "length", "alignment_bits", "kept_bits", "rounding", "k", "saturate", "zero_group", "subnormals",
    "flushed_zero",
)  # fmt: skip


def eliminate(black_box: Callable[..., Any], inputs: models.Inputs, output: str, k: int) -> tuple[Model, ...]:
    """The records of the family with the black box's outputs, those of the table's first; at least one.

    Raises LabError where none has them.
    """
    left = family(models.input_key(inputs), output)
    if not left:
        raise LabError(f"inputs={inputs!r}, output={output!r} is no cell of the table, nor like one.")
    for seed in range(ROUNDS):
        rows = units.of(left[0]).draw(left[0], k, COUNT, np.random.Generator(seeds.stream(seed)))
        wanted = np.atleast_1d(black_box(*rows.values()))
        first_rows = {name: part[:FEW] for name, part in rows.items()}  # on which most of the records differ
        left = tuple(m for m in left if agrees(m, first_rows, wanted[:FEW]) and agrees(m, rows, wanted))
        if not left:
            raise LabError(
                f"no arithmetic that is known here gives these outputs for {inputs!r}; tried: blocks of "
                f"{', '.join(map(str, LENGTHS))} aligned to {ALIGNMENTS[0]} to {ALIGNMENTS[-1]} bits, and "
                "the table's other algorithms."
            )
    return left


@functools.lru_cache(maxsize=64)
def family(key: tuple[Any, ...], output: str) -> tuple[Model, ...]:
    """The records to choose from, the parameters of the table's own before the others."""
    known = [m for m in models.TABLE if models.key(m) == key]
    if known and all(m.output != "fp32" for m in known):
        output = known[0].output
    by_key: dict[tuple[Any, ...], Model] = {}
    for m in (m for m in known if m.output == output):
        for other in (m, *units.of(m).variants(m)):
            by_key.setdefault(tuple(getattr(other, name) for name in SEEN), other)
    return tuple(dataclasses.replace(m, gpu="inferred", instruction="mma", status=Status.OPEN) for m in by_key.values())


def agrees(model: Model, rows: Rows, wanted: Any) -> bool:
    """Whether a record gives the bits of these results."""
    return np.array_equal(_bits(_compute(model, rows)), _bits(wanted))


def _compute(model: Model, rows: Rows) -> Any:
    with np.errstate(all="ignore"):
        return dot(rows["a"], rows["b"], rows["c"], model, scale_a=rows.get("scale_a"), scale_b=rows.get("scale_b"))


def _bits(x: Any) -> Array:
    """Results as unsigned bits, every NaN alike."""
    values = np.asarray(x)
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.asarray(np.nan, values.dtype), values)
    return values.view(f"u{values.dtype.itemsize}")
