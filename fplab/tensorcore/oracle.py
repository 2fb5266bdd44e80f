"""The oracle of matrix units: chains on Python integers and Fractions, step by step as their definitions read.

It shares nothing with the kernels. What a step is, is its unit's (:mod:`.units`); each is returned as data.
"""

import functools
from collections.abc import Sequence
from fractions import Fraction

from .. import exact
from ..exact import Exact
from . import units
from .blocks import Block, in_format
from .models import Model
from .plan import Plan
from .units.integer import HIGH, LOW

NOTHING = Exact(False)


def instruction(
    a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, scales: Sequence[tuple[Exact, Exact]] = ()
) -> list[Block]:
    """The blocks of one chain over all of k; operands are filled with +0 to whole instructions of the model's k.

    ``scales``: one pair for each group of ``model.scale[1]`` elements.
    """
    unit = units.of(model)
    c, width = unit.entering(c, model), unit.width(model)
    fill = [NOTHING] * (-len(a) % model.k)
    a, b = [*a, *fill], [*b, *fill]
    steps: list[Block] = []
    for start in range(0, len(a), width):
        c = unit.received(c, model) if start % model.k == 0 else c
        steps += unit.step(a[start : start + width], b[start : start + width], c, model, _own(scales, start, model))
        c = steps[-1].result
    return steps


def _own(scales: Sequence[tuple[Exact, Exact]], start: int, model: Model) -> list[tuple[Exact, Exact]]:
    """The pairs of scales of one step; zeros fill it up to whole groups."""
    if model.scale is None:
        return []
    first, count = start // model.scale[1], max(1, model.length // model.scale[1])
    pairs = list(scales[first : first + count])
    return pairs + [(NOTHING, NOTHING)] * (count - len(pairs))


def dot(
    a: Sequence[float], b: Sequence[float], c: float, model: Model, scales: Sequence[tuple[float, float]] = ()
) -> Exact:
    """The result of one chain on Python floats that the formats represent."""
    pairs = [(exact.from_float(float(x)), exact.from_float(float(y))) for x, y in scales]
    x, y = ([exact.from_float(float(v)) for v in row] for row in (a, b))
    steps = instruction(x, y, exact.from_float(float(c)), model, pairs)
    return steps[-1].result if steps else units.of(model).entering(exact.from_float(float(c)), model)


def planned(
    a: Sequence[float], b: Sequence[float], c: float, model: Model, plan: Plan, tile: int = 0, tiles: int = 1,
    scales: Sequence[tuple[float, float]] = (),
) -> Exact:  # fmt: skip
    """One element of a product by a plan, of the given tile of the result: every chain, and then what adds them up."""

    if units.of(model).order_free(model):
        return dot(a, b, c, model, scales)

    def add(x: Exact, y: Exact) -> Exact:
        if model.output == "int32":
            return exact.of(min(max(x.value + y.value, Fraction(LOW)), Fraction(HIGH)))
        return in_format(_fp32(exact.add(x, y)[0]) if model.output == "fp16" else exact.add(x, y)[0], model)

    def chain(instructions: Sequence[int], entering: float) -> Exact:
        """Without promotion one chain; else stretches from zero, each added to an FP32 register."""
        period = plan.period(model.k) or len(instructions)
        register: Exact | None = None if plan.promote is None else exact.from_float(entering)
        for start in range(0, len(instructions), max(1, period)):
            indices = [i * model.k + n for i in instructions[start : start + period] for n in range(model.k)]
            x, y = ([row[k] if k < len(row) else 0.0 for k in indices] for row in (a, b))
            groups = [k // model.scale[1] for k in indices[:: model.scale[1]]] if model.scale else []
            own = [scales[g] for g in groups if g < len(scales)]
            part = dot(x, y, entering if register is None else 0.0, model, own)
            register = part if register is None else _fp32(exact.add(register, part)[0])
        return units.of(model).entering(exact.from_float(entering), model) if register is None else register

    sums: list[Exact] = []
    for chains in plan.steps(-(-len(a) // model.k), model.k, tile, tiles):
        parts = [chain(ks.tolist(), 0.0 if sums or turn else float(c)) for turn, ks in enumerate(chains)]
        sums.append(functools.reduce(add, parts))
    return plan.reduced(sums, add)


def _fp32(x: Exact) -> Exact:
    return exact.decode(exact.round_to(x, "fp32")[0], "fp32")


def bits(result: Exact) -> int:
    """A result as FP32 bits; a NaN is the hardware's, all ones in the fraction (an FP16 one: its ten bits)."""
    code, _ = exact.round_to(result, "fp32")
    return code


def result_bits(result: Exact, model: Model) -> int:
    """A result as the FP32 bits in which it travels: NaN is 0x7FFFFFFF, and for FP16 output 0x7FFF widened.

    An FP64 result's are its own.
    """
    if model.output == "fp64":
        return exact.round_to(exact.NAN if result.is_nan else result, "fp64")[0]
    if result.is_nan:
        return 0x7FFFFFFF if model.output == "fp32" else 0x7FFFE000
    return bits(result)
