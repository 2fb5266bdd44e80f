"""Units that nobody has built: what a product loses by its accumulator's width, guard bits, block and order of k.

An accumulator of p **bits** keeps p significant bits of every sum; its **guard bits** are those by which terms may lie
below them when they are cut. The adder is as wide as both, which is what silicon pays for::

    >>> import numpy as np
    >>> a, b = np.random.default_rng(0).normal(size=(2, 64, 1024))
    >>> e = explore((a, b.T), accumulator_bits=(10, 14, 24), guard_bits=(0, 2), block=32)
    >>> [(p.accumulator_bits, p.guard_bits, p.gpus) for p in e.pareto()][-1]
    (24, 2, ('B200', 'RTXPRO6000'))
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import LabError, door, integer, one_of, summary
from ..formats import several
from . import models
from .models import Model
from .plan import ONE_CHAIN, Plan

Measure = Callable[[Model, Plan], float]
MOST_BITS = 24  # FP32's significand, in which results leave
ROUNDINGS = ("rtz", "rne")
OPEN = models.Status.OPEN


@dataclass(frozen=True)
class Point:
    """One unit: its fields, the GPUs whose units it is, and its error as :func:`explore` measured it."""

    accumulator_bits: int
    guard_bits: int
    block: int
    rounding: str
    order: Plan
    error: float
    gpus: tuple[str, ...] = ()

    @property
    def adder_bits(self) -> int:
        """How wide its adder is: accumulator and guard bits."""
        return self.accumulator_bits + self.guard_bits


@dataclass(frozen=True)
class Exploration:
    """What :func:`explore` measured: ``points``, GPUs' own among them, and the format of their ``inputs``."""

    inputs: str
    points: tuple[Point, ...]

    def pareto(self) -> tuple[Point, ...]:
        """The points with less error than any whose adder is as wide or narrower, by rising width."""
        best: list[Point] = []
        for point in sorted(self.points, key=lambda p: (p.adder_bits, p.error, not p.gpus)):
            if not best or point.error < best[-1].error:
                best.append(point)
        return tuple(best)

    def of_gpus(self) -> dict[str, tuple[Point, ...]]:
        """The points of each GPU, one an order."""
        names = dict.fromkeys(name for point in self.points for name in point.gpus)
        return {name: tuple(point for point in self.points if name in point.gpus) for name in names}

    def columns(self) -> dict[str, list[Any]]:
        """The points as columns of a table."""
        names = [field.name for field in dataclasses.fields(Point)]
        return {name: [getattr(point, name) for point in self.points] for name in names}


@door
def explore(
    given: tuple[Any, Any] | Measure, *, inputs: str = "e4m3", accumulator_bits: int | Iterable[int] = range(8, 25, 2),
    guard_bits: int | Iterable[int] = (0, 2), block: int | Iterable[int] = (16, 32),
    rounding: str | Iterable[str] = "rtz", order: Plan | Iterable[Plan] = ONE_CHAIN,
) -> Exploration:  # fmt: skip
    """The error of every unit with these fields, and of each GPU's own for these inputs.

    ``given``: matrices (M, K) and (K, N), whose error is the norm of that of their product over the product's, against
    float64; or a function of a :class:`Model` and a :class:`Plan`, such as a network's loss under
    ``nn.emulate(model, plan=plan)``. ``inputs``: a format of A and B. ``accumulator_bits``: 2 to 24. ``guard_bits``: 0
    or more. ``block``: products that are added at once, 1 to 64. ``rounding``: of each sum, "rtz" or "rne"; terms
    are cut toward zero. ``order``: plans of k.

    A GPU's points are measured by its own records, so they have its bits, floors included.
    """
    built = {gpu: model for gpu in models.GPUS if (model := _of_gpu(gpu, inputs)) is not None}
    if not built:
        known = sorted({m.a for m in models.TABLE if _blocks(m)})
        raise LabError(f"inputs={inputs!r} is not possible; allowed: {', '.join(known)}.")
    measure = given if callable(given) else _error_of(*_two(given), inputs)
    bits = [integer("accumulator_bits", n, 2, MOST_BITS) for n in several(accumulator_bits)]
    guards = [integer("guard_bits", n, 0, 30) for n in several(guard_bits)]
    roundings = [one_of("rounding", name, ROUNDINGS) for name in several(rounding)]
    blocks = [integer("block", n, 1, 64) for n in several(block)]
    orders = (order,) if isinstance(order, Plan) else tuple(order)
    own: dict[Model, list[str]] = {}  # GPUs whose records differ in names and k alone are one
    for gpu, model in built.items():
        own.setdefault(dataclasses.replace(model, gpu="", instruction="", k=model.length, status=OPEN), []).append(gpu)
    units = [(_fields(built[gpus[0]]), built[gpus[0]], tuple(gpus)) for gpus in own.values()]
    there, like = {fields for fields, _, _ in units}, units[0][1]
    asked = itertools.product(bits, guards, blocks, roundings)
    units += [(fields, unit(like, *fields), ()) for fields in asked if fields not in there]
    points = [
        Point(*fields, plan, float(measure(model, plan)), gpus)
        for fields, model, gpus in sorted(units, key=lambda known: known[0])
        for plan in orders
    ]
    return Exploration(inputs, tuple(points))


def _two(given: Any) -> tuple[Any, Any]:
    """The two matrices that were given."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise LabError(
            f"given={summary(given)} is not possible; allowed: two matrices, or a function of unit and plan."
        )
    return given[0], given[1]


def _blocks(model: Model) -> bool:
    """Whether a record is of blocks that are summed to FP32, without scales."""
    return model.kind == "block" and model.a == model.b and model.output == "fp32" and not model.scale


def _of_gpu(gpu: str, inputs: str) -> Model | None:
    """A GPU's record for these inputs, if it sums blocks of them to FP32."""
    return next((m for m in models.TABLE if m.gpu == gpu and m.a == inputs and _blocks(m)), None)


def _fields(model: Model) -> tuple[int, int, int, str]:
    return model.kept_bits + 1, model.alignment_bits - model.kept_bits, model.length, model.rounding


def unit(like: Model, bits: int, guards: int, block: int, rounding: str = "rtz") -> Model:
    """A record with these fields, without a floor, under the name of a GPU by which it can be emulated."""
    return dataclasses.replace(
        like, length=block, k=block, kept_bits=bits - 1, alignment_bits=bits - 1 + guards, floor=None,
        rounding=rounding, status=OPEN,
    )  # fmt: skip


def _error_of(a: Any, b: Any, inputs: str) -> Measure:
    """The norm of a product's error over the product's own, both of operands in their format."""
    from .operands import read  # records import where numba is missing
    from .products import matmul

    x, y = (read(value, name, inputs, None, False) for value, name in ((a, "a"), (b, "b")))
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0]:
        raise LabError(f"given has shapes {x.shape} and {y.shape}; allowed: (M, K) and (K, N).")
    exact = x.astype(np.float64) @ y.astype(np.float64)
    whole = np.linalg.norm(exact)

    def error(model: Model, plan: Plan) -> float:
        return float(np.linalg.norm(matmul(x, y, gpu=model, plan=plan) - exact) / whole)

    return error
