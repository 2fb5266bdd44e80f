"""Records of precision and of optimizers: how many bytes each kind of model state takes; and what recipes keep.

A precision is a row of numbers. The ZeRO paper's 16 bytes a parameter (arXiv 1910.02054, section 3.1) are ``mixed``
with ``adamw``: 2 of weights, 2 of gradients, 4 of FP32 master weights, 8 of moments.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from ..errors import LabError, chosen
from ..training.optimizers import programs
from ..training.optimizers.programs import states
from .units import divided_up

if TYPE_CHECKING:
    from ..nn.recipes import Recipe
    from ..scaled import Scheme

SMALL = 4096  # elements below which an 8-bit optimizer keeps a tensor's states in FP32 (bitsandbytes: min_8bit_size)


@dataclass(frozen=True)
class Precision:
    """Bytes of one element of each kind.

    ``weights``, ``gradients``: as the module holds them. ``master``: an FP32 copy of the weights that the optimizer
    updates. ``accumulated``: an FP32 copy of the gradients beside those of the backward pass. ``state``: one optimizer
    state. ``compute``: the weights while they multiply; where that is narrower than ``weights``, casts of them exist
    for a while. ``activations``: one saved value. ``operands``: one operand of the layers' products, a saved input or a
    cast of a weight, where those are narrower still (0: they are not).
    """

    name: str
    does: str
    weights: int
    gradients: int
    master: int
    accumulated: int
    state: int
    compute: int
    activations: int
    operands: int = 0


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp32", "everything in FP32", 4, 4, 0, 0, 4, 4, 4),
        Precision("mixed", "16-bit weights and gradients, FP32 master weights and states", 2, 2, 4, 0, 4, 2, 2),
        Precision("mixed+fp32grads", "mixed, and gradients accumulated in FP32", 2, 2, 4, 4, 4, 2, 2),
        Precision("amp", "FP32 weights and gradients, cast to 16 bits where they multiply", 4, 4, 0, 0, 4, 2, 2),
        Precision("bf16", "everything in BF16, no master weights", 2, 2, 0, 0, 2, 2, 2),
        Precision("fp8", "amp, with the operands of the layers' products in 8 bits", 4, 4, 0, 0, 4, 2, 2, 1),
    )
}
"""How weights, gradients and master weights are held, by name."""


@dataclass(frozen=True)
class QuantisedOperands:
    """What a recipe keeps of the operands of the layers' products, in bytes of an element.

    ``input``: what a layer saves for the gradient of its weights, codes and scales, quantised along the tokens in the
    forward pass. ``weights``: quantised copies of its weights, one along the K of each of their two products.
    ``casts``: whether one of these products takes the weights in 16 bits. ``first``, ``last``: the shares of the layers
    at either end that stay in 16 bits, rounded to whole layers of the transformer. ``multiple``: of which both
    dimensions of every weight must be. Scales of whole tensors and rows and their histories, some kB a layer, are left
    out.
    """

    input: Fraction
    weights: Fraction
    casts: bool
    first: Fraction
    last: Fraction | float
    multiple: int

    def layers(self, count: int) -> range:
        """The places of the quantised ones among so many layers."""
        return range(round(self.first * count), count - round(self.last * count))


def quantised_operands(name: str | Recipe | None, how: str | Precision = "mixed") -> QuantisedOperands | None:
    """What a recipe of :mod:`fplab.nn.recipes`, or the recipe of a name, keeps; None where all stays in 16 bits.

    Raises LabError for an unknown name, for a precision whose layers do not multiply in 16 bits, and for a recipe that
    quantises other products than those of a transformer's layers with their weights.
    """
    if name is None:
        return None
    from ..nn.recipes import get_recipe  # which brings numba
    from ..nn.scopes import OUTPUT_HEAD

    recipe, p = get_recipe(name), precision(how)
    if p.compute != 2 or p.operands:
        fits = ", ".join(p.name for p in PRECISIONS.values() if p.compute == 2 and not p.operands)
        raise LabError(f"recipe={recipe.name!r} quantises what else is 16 bits; precision={p.name!r}, allowed: {fits}.")
    scope, forward, backward = recipe.scope_record, recipe.forward, recipe.data_gradient
    takes = not scope.modules or any(fnmatch.fnmatchcase("Linear", pattern) for pattern in scope.modules)
    if recipe.requantize or not recipe.products() or not takes:
        return None
    for field, absent in (("activations", None), ("keep", ()), ("keep_types", ())):
        if getattr(recipe, field) != absent:
            raise LabError(
                f"recipe={recipe.name!r} with {field}= is not counted, only the products of whole layers with their "
                f"weights; allowed: {field}={absent!r}."
            )
    if OUTPUT_HEAD not in scope.out:
        raise LabError(
            f"recipe={recipe.name!r} with scope={scope.name!r} quantises the output head, which is counted in 16 bits; "
            f"allowed: a scope whose out= has {OUTPUT_HEAD!r}."
        )
    saved, last = recipe.weight_gradient, scope.last if scope.last > recipe.keep_last else recipe.keep_last
    return QuantisedOperands(
        Fraction(2) if saved is None else element_bytes(saved.right.record),
        sum((element_bytes(product.right.record) for product in (forward, backward) if product), Fraction(0)),
        forward is None or backward is None, scope.first, last,
        math.lcm(scope.multiple, recipe.block) if scope.multiple else 1,
    )  # fmt: skip


def element_bytes(scheme: Scheme) -> Fraction:
    """Bytes of one element with its part of the scales of blocks, as :meth:`fplab.scaled.Scaled.packed` lays them out.

    A unit takes the scale of a square for each row of it, unless it is FP32, which is applied outside of the unit.
    """
    size = Fraction(scheme.element.bits, 8)
    if isinstance(scheme.block, str):
        return size
    rows, block = scheme.block
    return size + Fraction(scheme.scale.bits, 8 * block * (rows if scheme.kind == "fp32" else 1))


@dataclass(frozen=True)
class Optimizer:
    """``states``: how many state tensors of a weight's shape. ``bits``: 32 (as the precision says) or 8 (block-wise).

    ``counts``: whether torch's implementation also keeps a float32 step count of 4 bytes for every tensor.
    """

    name: str
    states: int
    bits: int = 32
    counts: bool = False


OPTIMIZERS: dict[str, Optimizer] = {
    o.name: o
    for o in (Optimizer("sgd", len(states(programs.SGD))), Optimizer("momentum", len(states(programs.MOMENTUM))),
              Optimizer("adam", len(states(programs.ADAM)), counts=True),
              Optimizer("adamw", len(states(programs.ADAM)), counts=True),
              Optimizer("momentum8bit", len(states(programs.MOMENTUM_8BIT.program)), 8),
              Optimizer("adamw8bit", len(states(programs.ADAM_8BIT.program)), 8))
}  # fmt: skip
"""The states of each optimizer, by name."""


def precision(name: str | Precision) -> Precision:
    """The precision of a name.

    >>> precision("mixed").master
    4
    """
    return chosen("precision", name, PRECISIONS, Precision)


def optimizer(name: str | Optimizer) -> Optimizer:
    return chosen("optimizer", name, OPTIMIZERS, Optimizer)


def state_bytes(sizes: Iterable[tuple[int, int]], rule: Optimizer, width: int = 4, block: int = 256) -> int:
    """Bytes of the optimizer states of tensors. ``sizes``: (elements, how many such tensors).

    An 8-bit state (Dettmers et al., arXiv 2110.02861, section 2; blocks as bitsandbytes lays them out) is a code of
    one byte for each element and a float32 maximum for each block: for Adam ``2 n + 8 ceil(n / block)``. Tensors of
    fewer than 4,096 elements keep FP32 states, for Adam ``8 n``.

    >>> state_bytes([(2048, 1), (4096, 1)], OPTIMIZERS["adamw8bit"], block=2048)
    24592
    """
    total, wide = 0, 4 if rule.bits == 8 else width
    for n, many in sizes:
        total += many * rule.states * (n + 4 * divided_up(n, block) if rule.bits == 8 and n >= SMALL else n * wide)
    return total


def bytes_per_parameter(how: str | Precision, rule: str | Optimizer) -> int:
    """Model states per parameter where every state is as wide as the precision says (32-bit optimizers).

    >>> bytes_per_parameter("mixed", "adamw")
    16
    """
    p, o = precision(how), optimizer(rule)
    return p.weights + p.gradients + p.master + p.accumulated + o.states * p.state
