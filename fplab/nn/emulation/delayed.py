"""Delayed scaling: the largest magnitudes that each tensor had in earlier steps, and the one to scale by now.

What a step scales by is fixed when it begins, so that a checkpoint, and the backward pass of a micro-batch after
others, find what their forward pass had.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import nn

from ...errors import LabError, warn
from ..ranks import distributed, largest_over_ranks
from ..recipes import Recipe
from .call_sites import CallSite

RULES = ("amax_history_len", "amax_compute_algo", "margin", "reduce_amax")  # of a recipe
_TRAINED: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules that some emulation has scaled gradients of
_WARNED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@contextmanager
def trained_as_before(model: nn.Module) -> Iterator[None]:
    """What runs inside is a measurement, after which the model is as much trained as it was."""
    before = {layer for layer in model.modules() if layer in _TRAINED}
    try:
        yield
    finally:
        for layer in model.modules():
            if layer not in before:
                _TRAINED.discard(layer)


class Amaxes:
    """Of every role of an operand: its history, the amax that scales it now, and this step's so far.

    ``recipes``: those that may be asked for; where one reduces its amaxes, all ranks take part in every step.
    """

    def __init__(self, recipes: Iterable[Recipe]) -> None:
        self.delayed = self._shared = False
        for recipe in recipes:
            if recipe.amax_history_len:
                self.delayed, self._shared = True, self._shared or recipe.reduce_amax
        self._untrained: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # so far, by this emulation
        self._history: dict[str, deque[float]] = {}
        self._used: dict[str, float] = {}
        self._pending: dict[str, float] = {}
        self._recipes: dict[str, Recipe] = {}

    def meet(self, named: list[tuple[str, nn.Module]]) -> None:
        """The parts of a model that is called for the first time here, with their names, itself first.

        Warns, once for each model, if another emulation has trained it, whose histories this one does not have.
        """
        layers, roles = [layer for _, layer in named], tuple(f"{name} " for name, _ in named)
        begins = not any(role.startswith(roles) for role in self._recipes)
        if begins and any(layer in _TRAINED for layer in layers) and not any(layer in _WARNED for layer in layers):
            _WARNED.update(layers)
            warn(
                f"{named[0][0]}: this emulation begins delayed scaling without a history, so the first step's scales "
                "are 1; an earlier emulation, which trained the model, had one. Open one emulation for all steps, or "
                "go on from the earlier one: emulate(..., state=earlier), or of its state_dict()."
            )
        self._untrained.update(layers)

    def of(
        self, recipe: Recipe, site: CallSite, role: str, largest: float, own: float | None, trains: bool = False
    ) -> float:
        """What to scale the operand of a role by; its ``own`` amax is noted for later steps, None is not.

        ``largest``: of its format, so the scale is 1 until there is a history. ``trains``: whether it is a gradient.
        """
        if trains and self._untrained:
            _TRAINED.update(self._untrained)
            self._untrained.clear()
        if own is not None:
            self._recipes[role] = recipe
            self._pending[role] = float(np.maximum(self._pending.get(role, 0.0), own))
        return site.step.amaxes.setdefault(role, self._used.get(role, largest))

    def new_step(self) -> None:
        """The amaxes of a step enter the histories; those that are 0 or not finite leave the scale as it was."""
        if self._shared and distributed():
            reduced = {role: amax for role, amax in self._pending.items() if self._recipes[role].reduce_amax}
            self._pending.update(largest_over_ranks(reduced))
        for role, amax in self._pending.items():
            recipe = self._recipes.get(role) or Recipe("")
            history = self._history.setdefault(role, deque(maxlen=max(recipe.amax_history_len, 1)))
            history.append(amax)
            result = amax if recipe.amax_compute_algo == "most_recent" else float(np.max(history))
            if 0 < result < math.inf:
                self._used[role] = math.ldexp(result, recipe.margin)
        self._pending = {}

    def state(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """Of every role all that the next steps depend on.

        No dictionary by role: of one, ``torch.distributed.checkpoint`` loads only what is there already.
        """
        return tuple(
            (role, {"rule": {name: getattr(recipe, name) for name in RULES}, "history": [*self._history.get(role, ())],
                    "used": self._used.get(role), "pending": self._pending.get(role)})
            for role, recipe in self._recipes.items()
        )  # fmt: skip

    def load(self, state: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Go on from a state."""
        try:
            if isinstance(state, Mapping):
                raise TypeError("a mapping")
            roles = {role: dict(own) for role, own in state}
            rules = {role: Recipe("", **own["rule"]) for role, own in roles.items()}
            history = {role: deque(own["history"], rules[role].amax_history_len) for role, own in roles.items()}
            used, pending = (
                {role: own[key] for role, own in roles.items() if own[key] is not None} for key in ("used", "pending")
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LabError(f"this is no state of an emulation ({error!r}); pass what state_dict() gave.") from None
        self._recipes, self._history, self._used, self._pending = rules, history, used, pending
