"""The oracle of matrix units: chains on Python integers and Fractions, step by step as their definitions read.

It shares nothing with the kernels. What a step is, is its unit's (:mod:`.units`); each is returned as data.
"""

from collections.abc import Sequence

from .. import exact
from ..exact import Exact
from . import units
from .blocks import Block
from .models import Model

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
        steps += unit.step(a[start : start + width], b[start : start + width], c, model, _own(scales, start, model))
        c = steps[-1].result
    return steps


def _own(scales: Sequence[tuple[Exact, Exact]], start: int, model: Model) -> list[tuple[Exact, Exact]]:
    """The pairs of scales of one step; zeros fill it up to whole groups."""
    if model.scale is None:
        return []
    first, count = start // model.scale[1], max(1, model.length // model.scale[1])
    found = list(scales[first : first + count])
    return found + [(NOTHING, NOTHING)] * (count - len(found))


def dot(
    a: Sequence[float], b: Sequence[float], c: float, model: Model, scales: Sequence[tuple[float, float]] = ()
) -> Exact:
    """The result of one chain on Python floats that the formats represent."""
    pairs = [(exact.from_float(float(x)), exact.from_float(float(y))) for x, y in scales]
    x, y = ([exact.from_float(float(v)) for v in row] for row in (a, b))
    steps = instruction(x, y, exact.from_float(float(c)), model, pairs)
    return steps[-1].result if steps else units.of(model).entering(exact.from_float(float(c)), model)


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
