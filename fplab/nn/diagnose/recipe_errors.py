"""What recipes would lose in the products of linear layers, from the operands that a run multiplies.

Both operands are quantised as the recipe has it, and the product of what they then stand for is compared with that of
the operands as they were, both in FP64. The errors of two tensors do not tell it: a product weighs them by the other
tensor, and a sum of many terms may cancel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import nn

from ...errors import LabError
from ...formats import several
from ...seeds import bits as random_bits
from ...words import Text
from ..bits import local
from ..emulation.backends import HOST
from ..emulation.model_parts import multiplies
from ..emulation.scaled_products import quantized
from ..recipes import Recipe, get_recipe
from . import watch_words as words
from .nonfinite import ROOT
from .tensors import Array, bits

PASSES = ("forward", "data_gradient", "weight_gradient")
ROWS = 256  # of x and dy that are measured in a step, evenly spaced
TWICE = 2.0  # times what normal numbers lose: a layer that loses more stays high
KEY = 1606


@dataclass(frozen=True)
class ProductRow:
    """What a recipe would lose in a layer: by pass the error of its product, relative, as a root of mean squares.

    ``usual``: the same of normal numbers, which have no outliers.
    """

    layer: str
    recipe: str
    errors: dict[str, float]
    usual: dict[str, float]

    @property
    def stands(self) -> bool:
        """Whether no product of the layer loses more than twice what normal numbers do."""
        return all(error <= TWICE * self.usual[name] for name, error in self.errors.items())


def squares(recipe: Recipe, x: Array, w: Array, dy: Array, seed: int) -> dict[str, Array]:
    """By pass that a recipe quantises, the sums of squares of its error and of the product, float64 (2,).

    ``x`` (m, k), ``w`` (n, k) and ``dy`` (m, n), float32; scales of whole tensors are those of this step.
    """
    result = {}
    for name, sides in operands(x, w, dy).items():
        product = getattr(recipe, name)
        if product is None:
            continue
        exact = np.matmul(*(side.astype(np.float64) for side in sides))
        coded = [
            quantized(HOST, np.ascontiguousarray(side), how, axis, seed + i).dequantize().astype(np.float64)
            for i, (side, how, axis) in enumerate(zip(sides, (product.left, product.right), (-1, -2), strict=True))
        ]
        result[name] = np.array([np.square(np.matmul(*coded) - exact).sum(), np.square(exact).sum()])
    return result


def operands(x: Array, w: Array, dy: Array) -> dict[str, tuple[Array, Array]]:
    """Both operands of a linear layer's products, by pass."""
    return {"forward": (x, w.T), "data_gradient": (dy, w), "weight_gradient": (dy.T, x)}


@functools.lru_cache
def usual(recipe: Recipe) -> dict[str, float]:
    """What a recipe loses by pass where all operands are normal numbers, (128, 128)."""
    draw = NormalDist().inv_cdf
    words = random_bits(3 * 128 * 128, KEY, dtype=np.uint32).tolist()
    x, w, dy = np.array([draw((word + 0.5) / 2**32) for word in words], np.float32).reshape(3, 128, 128)
    return _relative(squares(recipe, x, w, dy, KEY))


def _relative(sums: dict[str, Array]) -> dict[str, float]:
    return {name: math.sqrt(error / whole) if whole else 0.0 for name, (error, whole) in sums.items()}


class Products:
    """Sums over the steps counted, of every layer in every recipe; ``last``: its x, w and dy of the last of them.

    ``amaxes``: by layer the largest magnitudes of x, w and dy in every step.
    """

    def __init__(self, recipes: Iterable[str | Recipe]) -> None:
        self.recipes = tuple(map(get_recipe, several(recipes)))
        names = [recipe.name for recipe in self.recipes]
        if len(set(names)) < len(names):
            raise LabError(
                f"recipes={', '.join(names)} has two of one name; give one another: replace(recipe, name=...)."
            )
        self._sums: dict[tuple[str, str], dict[str, Array]] = {}
        self._met: set[str] = set()  # layers that were called
        self._calls = 0
        self.amaxes: dict[str, dict[int, Array]] = {}
        self.last: dict[str, tuple[int, tuple[Array, Array, Array]]] = {}

    def note(self, layer: str, step: int, *three: torch.Tensor) -> None:
        """The largest magnitudes of a layer's x, w and dy, over all its calls of a step."""
        if all(t.numel() for t in map(local, three)):
            own = np.array([float(local(t).detach().abs().max()) for t in three])
            self.amaxes.setdefault(layer, {}).setdefault(step, own)
            np.maximum(self.amaxes[layer][step], own, out=self.amaxes[layer][step])

    def add(self, layer: str, step: int, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> None:
        """The operands of a layer's three products, (..., k), (n, k), (..., n); what is not finite says nothing."""
        result = [(t, bits(t)) for t in map(local, (x, w, dy))]
        flat = [v.view(np.float32).reshape(-1, t.shape[-1]) for t, v in result if v is not None and v.size]
        if len(flat) < 3 or not all(np.isfinite(v).all() for v in flat):
            return
        if flat[1].shape != (flat[2].shape[1], flat[0].shape[1]):  # a weight of which this process holds a part
            return
        every = -(-len(flat[0]) // ROWS)
        self._calls += 1
        self.last[layer] = step, (flat[0][::every].copy(), flat[1].copy(), flat[2][::every].copy())
        for recipe in self.recipes:
            sums = self._sums.setdefault((recipe.name, layer), {})
            for name, two in squares(recipe, flat[0][::every], flat[1], flat[2][::every], 2 * self._calls).items():
                sums[name] = sums.get(name, np.zeros(2)) + two

    def rows(self) -> tuple[ProductRow, ...]:
        """Recipe by recipe, every layer that was measured, in the order of the backward pass turned round."""
        by_name = {recipe.name: recipe for recipe in self.recipes}
        return tuple(
            ProductRow(layer, name, _relative(sums), usual(by_name[name]))
            for name in by_name
            for (recipe, layer), sums in reversed(self._sums.items())
            if recipe == name and sums
        )

    def called(self, step: int, counted: bool, layer: str, module: nn.Module, args: Any, output: Any) -> None:
        """A layer has run whose operands are measured, once the gradient of its output comes."""
        if not (self.recipes and isinstance(module, nn.Linear)):
            return
        self._met.add(layer)
        if args and output.requires_grad:
            x, linear = args[0].detach(), module

            def measure(dy: torch.Tensor) -> None:
                self.note(layer, step, x, linear.weight, dy)
                if counted:
                    self.add(layer, step, x, linear.weight, dy)

            output.register_hook(measure)

    def unmeasured(self, model: nn.Module) -> dict[str, Text]:
        """The layers that multiply by weights of their own and have no row, and why."""
        result: dict[str, Text] = {}
        measured = {layer for _, layer in self._sums}
        for name, module in model.named_modules() if self.recipes else ():
            layer = name or ROOT
            if layer not in measured and multiplies(module):
                linear = isinstance(module, nn.Linear)
                kind = words.NOT_LINEAR.fill(kind=type(module).__name__)
                result[layer] = kind if not linear else words.NO_OPERANDS if layer in self._met else words.NOT_CALLED
        return result
