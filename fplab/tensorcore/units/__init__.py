"""The algorithms of matrix units, one file each: fast product, oracle, trace, and rows on which records part.

A record names its algorithm by the file: ``kind="block"`` is computed by ``UNIT`` of units/block.py. A new algorithm is
a new file with a subclass of :class:`Unit` that has at least :meth:`Unit.step` and :meth:`Unit.rows`; which values its
records' fields may take, :func:`~fplab.tensorcore.limits.allowed` says.
"""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...errors import LabError
from ...exact import Exact
from ...formats import Format
from .. import engine
from ..blocks import Block, in_format
from ..models import Model
from ..operands import Scales

Array = np.ndarray[Any, Any]
Pairs = Sequence[tuple[Exact, Exact]]
ScalePair = tuple[Scales, Scales]
Factors = list[tuple[int, float, float]]  # k of a term and its two factors
OF_SUM = (-2, 0.0, 1.0)  # in the place of a term's: it is the sum of a step before
Rows = dict[str, Array]  # rows for a black box: a, b (N, K), c (N,), and scale_a, scale_b where there are any


class Known(NamedTuple):
    """What is known of a step's terms beforehand, float64 (N,): from it follows how far the step can err.

    ``top``: 2**e, e the largest exponent by which a product is aligned; ``terms``: how many are cut; ``products``: the
    sum of their magnitudes, ``lost``: of those that do not even enter; ``entering``: the most that |c| is, which
    those of a step do not say.
    """

    top: Array
    terms: Array
    products: Array
    entering: Array
    lost: Array | float = 0.0


class Rounded(NamedTuple):
    """``times`` roundings, none of which errs by more than ``most``; ``directed``: all to a side that is known, so that
    half of it is expected; else to nearest."""

    most: Array
    times: Array | int
    directed: bool


class OnDevice(NamedTuple):
    """An algorithm in C++ for GPUs: files of :mod:`fplab.nn.device`, the last of which has the kernel ``matmul``.

    ``constants``: of a model, beside those that all have. ``columns``: how many of C a thread computes.
    """

    files: tuple[str, ...]
    constants: Mapping[str, int]
    columns: int = 4

    @classmethod
    def of_ieee(cls, files: tuple[str, ...], model: Model, **constants: int) -> "OnDevice":
        """With the formats of a model, and results rounded as IEEE 754 does."""
        a, b, d = model.format_a, model.format_b, model.format_d
        ends = {"EMIN_A": a.emin, "EMIN_B": b.emin, "EMIN_D": d.emin, "EMAX_D": d.emax}
        nearest = {"KEPT": d.fraction_bits, "NEAREST": 1, "OVERFLOW_MAX": 0, "PLUS_FROM_BELOW": 0}
        return cls(files, {**ends, **nearest, **constants})


class Unit:
    """One algorithm. Products go k ascending, step after step; the result of a step is the c of the next.

    ``promotes``: whether partial sums can be added to FP32 registers (:attr:`.Plan.promote`). ``traced``: whether its
    steps have terms to show.
    """

    promotes = False
    traced = True

    # --- the oracle -------------------------------------------------------------------------------------------------

    def width(self, model: Model) -> int:
        """How many products a step of the oracle takes."""
        return model.length

    def entering(self, c: Exact, model: Model) -> Exact:
        """C as the accumulator holds it."""
        return in_format(c, model)

    def received(self, c: Exact, model: Model) -> Exact:
        """C, or the result of the instruction before, as an instruction receives it."""
        return c

    def step(self, a: Sequence[Exact], b: Sequence[Exact], c: Exact, model: Model, scales: Pairs) -> list[Block]:
        """One step of :meth:`width` products onto c; the last block's result is the step's.

        ``scales``: a pair for each group of elements that the step takes, none where the inputs have none.
        """
        raise NotImplementedError

    # --- the trace --------------------------------------------------------------------------------------------------

    def factors(
        self, model: Model, a: Sequence[float], b: Sequence[float], scales: Sequence[tuple[float, float]]
    ) -> Iterator[tuple[Factors, bool]]:
        """For each block of the chain its terms' factors, and whether the last result enters it as c.

        Operands end where they end; up to whole instructions there are zeros.
        """
        for start in range(0, -(-len(a) // model.k) * model.k, model.length):
            yield factors_at(range(start, start + model.length), a, b), True

    # --- the fast product -------------------------------------------------------------------------------------------

    def order_free(self, model: Model) -> bool:
        """Whether no plan changes a bit."""
        return False

    def rows(self, model: Model, a: Array, b: Array, c: Array, scales: ScalePair | None) -> None:
        """One chain for each row, in place: a, b (N, K), c (N,) as the accumulator has it, scales (N, K / length)."""
        raise NotImplementedError

    def chain(
        self, model: Model, a: Array, b: Array, c: Array, instructions: Array, period: int, scales: ScalePair | None
    ) -> None:
        """``c += a @ b`` in place: one chain of the given instructions. a (M, K), b (K, N), c (M, N) contiguous.

        ``period``: instructions after which to promote, 0 for never. Scales: (M, K / length) and (N, K / length).
        """
        a, b, scales = engine.chosen(model, a, b, instructions, scales)
        columns = np.ascontiguousarray(b.T)
        for i in range(a.shape[0]):
            own = scales and (Scales(*(np.tile(part[i], (b.shape[1], 1)) for part in scales[0])), scales[1])
            self.rows(model, np.tile(a[i], (b.shape[1], 1)), columns, c[i], own)

    def rounds(self, model: Model) -> bool:
        """Whether a chain and a batch round operands of float32 themselves."""
        return False

    def begin(self, model: Model, a: Array, b: Array, c: Array) -> None:
        """``c = a @ b`` of all k in one chain, whatever is in c."""
        c[...] = 0
        self.chain(model, a, b, c, np.arange(-(-a.shape[1] // model.k)), 0, None)

    def batch(
        self, model: Model, a: Array, b: Array, c: Array, first: int, last: int, fresh: bool = False,
        below: bool = False,
    ) -> None:  # fmt: skip
        """``c += a @ b`` for some products of a batch, of all k: a (..., M, K), b (..., K, N), c (B, M, N) contiguous.

        ``fresh``: ``c = a @ b``. ``below``: then what lies above a matrix's diagonal may be +0 where it is finite.
        """
        for index, entering in zip(list(np.ndindex(a.shape[:-2]))[first:last], c[first:last], strict=True):
            if fresh:
                entering[...] = 0
            self.chain(model, a[index], b[index], entering, np.arange(-(-a.shape[-1] // model.k)), 0, None)

    def alone(self, model: Model, a: Array, b: Array) -> Array | None:
        """``a @ b``, (M, K) by (K, N), from zero in one call of compiled code; None where that is no gain."""
        return None

    def in_panels(self, model: Model) -> bool:
        """Whether both operands of a product are packed for the fast kernels, so that a packed one can be kept."""
        return False

    def product_by(self, model: Model, b: Array) -> Callable[[Array, Array], None]:
        """Of products by one b (K, N): what does ``c += a @ b`` in place, a (M, K), c (M, N) contiguous."""
        return lambda a, c: self.batch(model, a[None], b[None], c[None], 0, 1)

    # --- on a device ------------------------------------------------------------------------------------------------

    def on_device(self, model: Model) -> OnDevice | None:
        """What computes it where tensors are; None where nobody has written that."""
        return None

    def arranged(self, x: Array, model: Model) -> Array:
        """Operands (rows, K) in the order in which steps take them."""
        return x

    # --- bounds -----------------------------------------------------------------------------------------------------

    def known(self, model: Model, a: Array, b: Array, scales: tuple[Array, Array] | None) -> Known:
        """What is known of one step of magnitudes a, b (N, width), float64, with each element's scales where any."""
        products = a * b
        top = power(a, self.emins(model)[0], model.zero_exponent) * power(b, self.emins(model)[1], model.zero_exponent)
        if scales:
            products, top = products * scales[0] * scales[1], top * scales[0] * scales[1]
        return Known(
            top.max(axis=1), (products > 0).sum(axis=1).astype(np.float64), products.sum(axis=1), np.zeros(len(a))
        )

    def roundings(self, model: Model, of: Known) -> Iterator[Rounded]:
        """The roundings of one step, what they err by being proved from the step's definition; overflow aside."""
        raise NotImplementedError

    def emins(self, model: Model) -> tuple[int, int]:
        """The least exponents of A and B as the multiplier sees them."""
        return model.format_a.emin, model.format_b.emin

    # --- inference --------------------------------------------------------------------------------------------------

    def together(self, model: Model) -> int:
        """How many products are summed at once."""
        return model.length

    def variants(self, model: Model) -> Iterator[Model]:
        """Records like one of the table, for elimination to choose from."""
        return iter(())

    def draw(self, model: Model, k: int, count: int, rng: np.random.Generator) -> Rows:
        """Rows on which the variants part: a, b (count, k), c (count,), and scales where there are any."""
        raise NotImplementedError


def power(x: Array, emin: int, of_zero: int | None) -> Array:
    """2**e of magnitudes, e their exponents, ``emin`` at least; of zeros as asked for, and else 0."""
    power_of_two = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 1, emin))
    return np.where(x > 0, power_of_two, 0.0 if of_zero is None else 2.0**of_zero)


def nearest(most: Array, fmt: Format) -> Rounded:
    """One rounding to nearest of a number of at most such a magnitude, to a format.

    Half of FP64's smallest number is none: there it is a whole one.
    """
    p = fmt.significand_bits
    return Rounded(np.maximum(2.0**-p * most, 2.0 ** (fmt.emin - p) or math.ulp(0.0)), 1, False)


def factors_at(indices: Sequence[int], a: Sequence[float], b: Sequence[float]) -> Factors:
    """The factors of some k; beyond the operands' end zeros."""
    return [(k, a[k] if k < len(a) else 0.0, b[k] if k < len(b) else 0.0) for k in indices]


@cache
def named(kind: str) -> Unit:
    """The algorithm of a file."""
    unit = getattr(importlib.import_module(f".{kind}", __name__), "UNIT", None)
    if not isinstance(unit, Unit):
        raise LabError(f"fplab/tensorcore/units/{kind}.py has no UNIT, an object of a subclass of units.Unit.")
    return unit


def of(model: Model) -> Unit:
    """The algorithm of a record."""
    return named(model.kind)
