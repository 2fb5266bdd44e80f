"""Single precision from half: FP32 products recovered from two, three or four FP16 products on Tensor Cores.

An FP32 number is the sum of two FP16 numbers, nearly: what rounding to FP16 leaves is rounded to FP16 again. Markidis
et al. 2018 (arXiv 1803.04014) multiply the parts and add everything inside the Tensor Core. Ootomo and Yokota 2022
(arXiv 2203.03341) scale the second part by 2**11, so that it does not underflow; leave out the product of the two
small parts; and feed every instruction with c = 0, adding its result outside in FP32 to nearest, since the Tensor
Core's own additions truncate. Errors are exact integers (:mod:`fplab.exact_products`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...hardware.cases import Arrays, Case
from ..base import Columns, in_columns
from ..partial_products import compared
from . import methods, parts
from .checks import CHECKS as CHECKS
from .methods import KINDS, METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Single precision from half"
QUESTION = "Can FP16 Tensor Cores multiply FP32 matrices, and why must their results be added outside?"
BUDGET = 8.0


@dataclass(frozen=True)
class Params:
    """``rows``: of A and of B, for each kind. ``log2_last``: the longest K. ``values``: sampled in every binade."""

    rows: int = 8
    log2_last: int = 15
    values: int = 4096


QUICK = Params(rows=4, log2_last=13, values=512)
PARTS = ("a", "b", "exact", "magnitude", "clamped", "partial", "main", "correction", "results")
DIGESTED = (*(f"{kind}: {part}" for kind in methods.MADE_UP for part in PARTS), "lost", "binades")


def run(params: Params, tick: Callable[[float, str], None]) -> Arrays:
    """For each kind, arrays named ``kind: part``; limbs are exact integers.

    ``a`` and ``b``: FP32 codes (rows, K). ``exact`` and ``magnitude`` (M, N, S, limb): the sums of the products and of
    their magnitudes. ``partial`` (n, M, N, S, limb): the exact sums of the first n products of parts, n = 1 to 4.
    ``main`` and ``correction``: the magnitudes of what three products sum. ``results`` (method, M, N, S): FP32.
    ``lost`` (rounding, 4): of all significands, how many miss 0 to 3 units of FP32's last place. ``binades``
    (scheme, exponent): the largest relative error of a sampled value's parts.
    """
    arrays: Arrays = {"lost": parts.lost(), "binades": parts.by_binade(params.values)}
    for i, kind in enumerate(KINDS):
        tick(0.1 + 0.9 * i / len(KINDS), kind)
        a, b = methods.operands(kind, params.rows, params.log2_last)
        arrays |= {f"{kind}: {part}": array for part, array in methods.measured(a, b).items()}
    tick(1.0, "done")
    return arrays


def plot(arrays: Arrays, params: Params) -> Figure:
    """How the parts hold a number, what each product adds, and errors against K."""
    from .figure import draw

    return draw(arrays, params)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row for each kind, length and method: errors as shares of sum|a b|, and the bound where there is one."""
    names = ("operands", "K", "method", "mean error", "largest error", "largest bound")
    kinds = ((kind, methods.of_kind(arrays, kind)) for kind in KINDS)
    return in_columns(names, compared.rows(kinds, [method.name for method in METHODS]))


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """The parts, the products of single instructions added outside, and those added inside."""
    from .cases import cases

    return cases(params)
