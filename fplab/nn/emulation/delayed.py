"""Delayed scaling: the largest magnitudes that each tensor had in earlier steps, and the one to scale by now.

What a step scales by is fixed when it begins, so that a checkpoint, and the backward pass of a micro-batch after
others, find what their forward pass had.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import LabError
from ..ranks import distributed, largest_over_ranks
from ..recipes import Recipe
from .places import Place

RULES = ("amax_history_len", "amax_compute_algo", "margin", "reduce_amax")  # of a recipe


class Amaxes:
    """Of every role of an operand: its history, the amax that scales it now, and this step's so far.

    ``recipes``: those that may be asked for; where one reduces its amaxes, all ranks take part in every step.
    """

    def __init__(self, recipes: Iterable[Recipe]) -> None:
        self._shared = any(recipe.amax_history_len and recipe.reduce_amax for recipe in recipes)
        self._history: dict[str, deque[float]] = {}
        self._used: dict[str, float] = {}
        self._pending: dict[str, float] = {}
        self._recipes: dict[str, Recipe] = {}

    def of(self, recipe: Recipe, place: Place, role: str, largest: float, own: float | None) -> float:
        """What to scale the operand of a role by; its ``own`` amax is noted for later steps, None is not.

        ``largest``: of its format, so the scale is 1 until there is a history.
        """
        if own is not None:
            self._recipes[role] = recipe
            self._pending[role] = float(np.maximum(self._pending.get(role, 0.0), own))
        return place.step.amaxes.setdefault(role, self._used.get(role, largest))

    def new_step(self) -> None:
        """The amaxes of a step enter the histories; those that are 0 or not finite leave the scale as it was."""
        if self._shared and distributed():
            reduced = {role: amax for role, amax in self._pending.items() if self._recipes[role].reduce_amax}
            self._pending.update(largest_over_ranks(reduced))
        for role, amax in self._pending.items():
            recipe = self._recipes.get(role) or Recipe("")
            history = self._history.setdefault(role, deque(maxlen=max(recipe.amax_history_len, 1)))
            history.append(amax)
            found = amax if recipe.amax_compute_algo == "most_recent" else float(np.max(history))
            if 0 < found < math.inf:
                self._used[role] = math.ldexp(found, recipe.margin)
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
