"""One product of two matrices in a GPU's bits: operands rounded to the unit's formats, the sum, what follows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from ...errors import LabError, warn
from ...formats import Rounding, get
from ...scaled import Scaled
from ...seeds import word
from ...tensorcore import direct
from ...tensorcore.models import Model
from ...tensorcore.operands import CONVERSIONS
from ...tensorcore.plan import ONE_CHAIN, Plan
from ...words import Text, say
from ..recipes import Operand, Product, Recipe
from . import openmp_threads, scaled_products
from .backends import HOST, Numbers, backend_of, detached, unscaled
from .call_sites import CallSite
from .product_log import Shape
from .run import Run
from .scaled_products import promoted, transform_format
from .settings import OWN

Array = np.ndarray[Any, Any]
BATCHED = ("bmm", "baddbmm")  # as which an attention that is taken apart multiplies
INPUT, WEIGHT, GRADIENT = "", "weight", "gradient"  # what an operand is
FP64, NONE = say("tensors of float64"), say("recipe {recipe} has {product}=None")
NO_WEIGHT = say("no operand is a weight, as in attention, and recipe {recipe} has activations=None")
HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}  # torch's casts from FP32 round to nearest even, as the lab's


class Products:
    """The products of one operation: computes them, counts them, and gives each operand its role for the scaling.

    ``site``: where they belong. ``turn``: the number of the operation in a node's backward pass, None in a forward
    pass. ``again``: of a forward pass that a checkpoint runs again, in the backward pass of ``phase``.
    """

    def __init__(
        self, run: Run, site: CallSite, phase: str, turn: int | None, operation: str, again: bool = False
    ) -> None:
        openmp_threads.hold_team()
        self.run, self.settings, self.log, self.site = run, run.settings, run.log, site
        self.phase, self.turn, self.operation, self.again = phase, turn, operation, again
        self.choice = run.choices.alike or run.choices.of(site.layer)
        self.done = 0
        self.weighted = False
        self.model: Model | None = None
        self._last: tuple[torch.Tensor, Numbers, float] | None = None  # a result, and what it was before a factor
        self._used: tuple[Numbers | Scaled, Numbers | Scaled, Plan] | None = None  # operands in the unit's formats

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, kinds: tuple[str, str] = (INPUT, INPUT),
        below: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """``a @ b`` (..., M, K) by (..., K, N), not yet stored: float32 (float64 for FP64) values of the accumulator.

        ``dtype``: of the tensors that torch was asked to multiply; ``kinds``: what each of them is. ``below``: what
        lies above a result's diagonal may be +0 where it is finite, as under a causal mask.
        """
        self.weighted |= WEIGHT in kinds
        if self.settings.kv_cache is not None and not self.weighted and self.operation in BATCHED:
            raise LabError(
                f"{self.operation} of two tensors that are no weights, with kv_cache={self.settings.kv_cache!r}: which "
                "is of keys or values is not seen; let the model call scaled_dot_product_attention as one operation."
            )
        recipe = self.choice.recipe
        product, why = (None, None) if recipe is None else self._of(recipe, dtype, kinds)
        factor = 1.0
        if recipe is None or product is None:
            result, model = self._plain(a, b, dtype, kinds, below)
        else:
            result, model, factor = self._quantized(recipe, product, a, b, dtype, kinds)
        self.model = model
        backend = backend_of(a)
        whole = result if factor == 1 else backend.epilogue(model, result, None, factor, 1.0)
        shape = Shape(math.prod(result.shape[:-2]), a.shape[-2], a.shape[-1], b.shape[-1])
        by = "" if recipe is None or why is not None else recipe.name
        self.log.product(self.site.layer, self.phase, self.operation, model, shape, recipe=by, why=why)
        if self.run.seen is not None and self._used is not None:
            x, y, plan = self._used
            self.run.seen.append((model, backend.array(x), backend.array(y), plan, backend.array(result).copy()))
        self.done += 1
        found = backend.tensor(whole)
        self._last = found, result, factor
        return found

    @cached_property
    def flag(self) -> str:
        """The flag of torch's that says how these multiply FP32."""
        return self.run.choices.flag(self.site.layer, self.operation)

    def _plain(
        self, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, kinds: tuple[str, str], below: bool
    ) -> tuple[Numbers, Model]:
        """A product of operands as they are, or times one scale each."""
        gradient = kinds[0] == GRADIENT, kinds[1] == GRADIENT
        formats = self.settings.formats(dtype, gradient, self.flag)
        if self.choice.recipe is not None:
            formats = (OWN.get(dtype, self.choice.recipe.high),) * 2
        model = self.settings.model(*formats)
        part = f".{self.done}" if self.done else ""
        turn = "" if self.turn is None else f".{self.turn}"
        forward = "forward" if self.again else self.phase
        role = f"{self.site.layer} {forward} {self.site.number}{turn}{part}"
        roles = [f"{role} {side}{' gradient' * is_gradient}" for side, is_gradient in zip("ab", gradient, strict=True)]
        own = model if self.run.seen is None else None
        x, scale_x = self._operand(a, formats[0], roles[0], own)
        y, scale_y = self._operand(b, formats[1], roles[1], own)
        plan = self.choice.plan.of(a.shape[-2])
        self._used = x, y, plan
        backend = backend_of(a)
        result = backend.multiply(model, x, y, plan, below=below and self.run.seen is None)
        return unscaled(backend, result, scale_x, scale_y), model

    def direct(
        self, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, shape: Shape,
        kernel: Callable[[Model, Array, Array], Array | None],
    ) -> torch.Tensor | None:  # fmt: skip
        """A product that a kernel makes of the operands as they lie; None where only a product of matrices will do.

        ``kernel``: given the model and both operands, halves yet to be rounded; it may answer None, too.
        """
        model = self.model_of_rounded(a, dtype)
        if model is None or 0 in shape or self.choice.plan.of(shape.m) != ONE_CHAIN or not direct.knows(model):
            return None
        x, y = self._operand(a, model.a, "", model)[0], self._operand(b, model.b, "", model)[0]
        result = kernel(model, x, y)
        if result is None:
            return None
        self.weighted, self.model, self._used = True, model, None
        self.log.product(self.site.layer, self.phase, self.operation, model, shape)
        self.done += 1
        return HOST.tensor(result)

    def model_of_rounded(self, tensor: torch.Tensor, dtype: torch.dtype) -> Model | None:
        """The model of products whose operands are rounded and no more, and that nobody looks at; else None."""
        if self.run.seen is not None or backend_of(tensor) is not HOST:
            return None
        result = self.settings.rounded_model(dtype, self.flag)
        return None if result is None else result.model

    def rounded(self, tensor: torch.Tensor, fmt: str) -> Array:
        """An operand of such a product."""
        result: Array = self._operand(tensor, fmt, "")[0]
        return result

    def _of(
        self, recipe: Recipe, dtype: torch.dtype, kinds: tuple[str, str]
    ) -> tuple[Product | None, Text | None]:  # fmt: skip
        """What a recipe does to a product of such operands; or None, and why it stays high."""
        if not recipe.products():
            return None, None
        weighted = WEIGHT in kinds or (GRADIENT in kinds and self.site.weighted is not False)
        why = self.choice.high or (self.choice.unfit if weighted else None)
        if dtype == torch.float64:
            why = FP64
        if why is not None:
            return None, why
        if not weighted:
            return recipe.activations, None if recipe.activations else NO_WEIGHT.fill(recipe=recipe)
        name = "forward" if GRADIENT not in kinds else "data_gradient" if WEIGHT in kinds else "weight_gradient"
        product: Product | None = getattr(recipe, name)
        return product, None if product else NONE.fill(recipe=recipe, product=name)

    def _quantized(
        self, recipe: Recipe, product: Product, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype,
        kinds: tuple[str, str],
    ) -> tuple[Numbers, Model, float]:  # fmt: skip
        """A product of operands that a recipe quantises, and the factor of it that the epilogue applies."""
        first = GRADIENT if product is recipe.weight_gradient else WEIGHT
        flipped = kinds[first == WEIGHT] != first and kinds[first == GRADIENT] == first
        sides = [product.right, product.left] if flipped else [product.left, product.right]
        if product is recipe.activations and recipe.data_gradient is not None:
            sides = [recipe.data_gradient.left if k == GRADIENT else s for k, s in zip(kinds, sides, strict=True)]
        x, y = (
            self._codes(recipe, operand, tensor, axis, kind, product is recipe.activations, transform_format(dtype))
            for operand, tensor, axis, kind in zip(sides, (a, b), (-1, -2), kinds, strict=True)
        )
        model, plan = self.settings.scaled_model(x.scheme, y.scheme, recipe), self.choice.plan.of(a.shape[-2])
        if model is None:
            model = self.settings.model("bf16", "bf16")
            self._used = None
            return scaled_products.dequantized(backend_of(a), model, x, y, plan), model, 1.0
        self._used = x, y, promoted(plan, product.promote, model)
        result, factor = scaled_products.multiply(backend_of(a), model, x, y, product.promote, plan)
        return result, model, factor

    def _codes(
        self, recipe: Recipe, operand: Operand, tensor: torch.Tensor, axis: int, kind: str, of_activations: bool,
        dtype: str,
    ) -> Numbers:  # fmt: skip
        """An operand quantised along K."""
        backend = backend_of(tensor)
        array = backend.numbers(detached(tensor).to(torch.float32))
        side, back = int(axis == -2), self.turn is not None
        amax: float | None = None
        if recipe.amax_history_len and operand.record.block == "tensor":
            number, part = str(self.site.number), f".{self.done}" if self.done else ""
            if of_activations and back:
                number += f".{self.turn} {side}"
            role = f"{self.site.layer} {number}{part} {kind or 'input'}"
            first = kind == GRADIENT or not back or of_activations  # else what the forward pass had
            own = backend.largest(array) if first and not self.again else None
            largest = operand.record.element.max
            amax = self.run.amaxes.of(recipe, self.site, role, largest, own, trains=kind == GRADIENT)
        sub = (self.site.order << 32) + ((0 if self.turn is None else self.turn + 1) << 16) + 2 * self.done + side
        step = self.site.step.number
        seed = word(recipe.seed, step, self.site.serial, sub) if operand.rounding == "stochastic" else 0
        receiver = self.run.quantised
        seen = None if receiver is None else partial(receiver, self.site.layer, self.phase)
        return scaled_products.quantized(backend, array, operand, axis, seed, amax, dtype, seen)

    def _operand(self, tensor: torch.Tensor, fmt: str, role: str, model: Model | None = None) -> tuple[Numbers, float]:
        """An operand in its unit's format, and the scale that it carries.

        ``model``: of a product that may round operands itself, since nobody else sees them.
        """
        plain, backend = detached(tensor), backend_of(tensor)
        if fmt in HALVES and plain.dtype == torch.float32:  # as the GPU's own copy of the operand; three times as fast
            return backend.half(plain, HALVES[fmt], model), 1.0
        own = OWN.get(plain.dtype, "fp32") == fmt
        wide = torch.float64 if plain.dtype == torch.float64 else torch.float32
        array = backend.numbers(plain.to(wide))
        if own:
            return array, 1.0
        form = get(fmt)
        if form.bits > 8:
            rounding = CONVERSIONS[self.settings.conversion] if fmt == "tf32" else Rounding.RNE
            return backend.rounded(array, form, rounding), 1.0
        scale = self._scale(role, plain)
        if scale != 1:
            array = backend.times(array, scale)
        if self.settings.scaling is None and not self.log.warned and (beyond := int((abs(array) > form.max).sum())):
            self.log.warned = True
            warn(
                f"{beyond:,} of {plain.numel():,} values of {role!r} are beyond {form.max:g}, the largest of "
                f"{form.name}, and saturate: without scaling= operands are rounded as they are. Pass one, such as "
                "fplab.training.AmaxScaling()."
            )
        return backend.stored(array, fmt, "saturate"), scale

    def _scale(self, role: str, tensor: torch.Tensor) -> float:
        """The FP32 number that the scaling chooses for an operand."""
        if self.settings.scaling is None:
            return 1.0
        given, asked = self.site.step.scales, (self.site.serial, role)
        if not (self.again and asked in given):
            with np.errstate(over="ignore"):
                given[asked] = float(np.float32(self.settings.scaling.scale(role, tensor)))
        scale = given[asked]
        if not 0 < scale < math.inf:
            raise LabError(f"the scaling gave {scale!r} for {role!r}; a positive number of FP32 is needed.")
        return scale

    def with_addend(self, result: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float) -> torch.Tensor:
        """``alpha * result + beta * c`` in the accumulator's format, one fused multiply-add, before the store."""
        if alpha == 1 and (c is None or beta == 0):
            return result
        assert self.model is not None
        backend = backend_of(result)
        addend, array = None if c is None or beta == 0 else c, backend.numbers(result)
        if self._last is not None and self._last[0] is result:
            _, array, factor = self._last
            alpha = alpha if self.model.output == "fp64" else float(np.float32(alpha) * np.float32(factor))
        return backend.tensor(backend.epilogue(self.model, array, addend, alpha, beta))

    def stored(self, result: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The accumulator's values rounded once to the dtype of the result, or first to ``store`` where that is set."""
        recipe = self.choice.recipe
        store = self.settings.store or (recipe.output if recipe else None)
        if store is not None:
            backend = backend_of(result)
            result = backend.tensor(backend.stored(backend.numbers(result), store))
        return result.to(dtype)
