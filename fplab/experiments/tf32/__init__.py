"""TF32: three ways from FP32 to TF32, what each does to a product, and which one a published error gives away.

A TF32 multiplier reads 10 of FP32's 23 fraction bits. It can ignore the other 13 (``truncate``, what the instruction
does by itself), or software rounds first: to nearest with ties away (``rna``, the instruction ``cvt.rna.tf32``) or to
even (``rne``, from Hopper on). Truncation errs twice as far at most; but it always errs toward zero, and that is what
counts in a long sum. Errors are exact integers (:mod:`fplab.exact_products`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...hardware.cases import Arrays, Case
from ..base import Columns, in_columns
from ..partial_products import compared
from . import operands, products
from .checks import CHECKS as CHECKS
from .products import KINDS, VARIANTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "TF32 and its conversions"
QUESTION = "What does a product lose when its FP32 operands are truncated or rounded to TF32, and why?"
BUDGET = 8.0


@dataclass(frozen=True)
class Params:
    """``rows``: of A and of B. ``log2_last``: the longest K. ``sample``: rows of the published example."""

    rows: int = 8
    log2_last: int = 16
    sample: int = 64


QUICK = Params(rows=4, log2_last=14, sample=32)
PARTS = ("a", "b", "exact", "magnitude", "converted", "kept", "results")
DIGESTED = (
    *(f"{kind}: {part}" for kind in operands.MADE_UP for part in PARTS),
    "low bits", "published: exact", "published: errors",
)  # fmt: skip


def run(params: Params, tick: Callable[[float, str], None]) -> Arrays:
    """For each kind, arrays named ``kind: part``; limbs are exact integers.

    ``a`` and ``b``: FP32 codes (rows, K). ``exact`` and ``magnitude`` (M, N, S, limb): the sums of the products and of
    their magnitudes; ``converted`` and ``kept`` (conversion, M, N, S, limb): the same of converted operands.
    ``results`` (variant, M, N, S): FP32. ``low bits`` (conversion, parity, 2**13): the error of a conversion in 2**-13
    of a unit in the last place. ``published: exact`` (n, n) and ``published: errors`` (conversion, n, n), float64.
    """
    arrays: Arrays = {"low bits": operands.low_bits()}
    for i, kind in enumerate(KINDS):
        tick(0.7 * i / len(KINDS), kind)
        a, b = operands.make(kind, params.rows, params.log2_last)
        arrays |= {f"{kind}: {part}": array for part, array in products.measured(a, b).items()}
    tick(0.7, "the published example")
    arrays |= {f"published: {part}": array for part, array in products.published(params.sample).items()}
    tick(1.0, "done")
    return arrays


def plot(arrays: Arrays, params: Params) -> Figure:
    """The conversions as staircases, errors against K with bounds, and the published example."""
    from .figure import draw

    return draw(arrays, params)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each kind, length and variant: errors as shares of sum|a b|, and the bound."""
    names = ("operands", "K", "variant", "mean error", "largest error", "largest bound")
    kinds = ((kind, products.of_kind(arrays, kind)) for kind in KINDS)
    return in_columns(names, compared.rows(kinds, [variant.name for variant in VARIANTS]))


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """The conversion itself, as a product with the identity, and products of two kinds."""
    from .cases import cases

    return cases(params)
