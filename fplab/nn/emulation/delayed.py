"""Delayed scaling: the largest magnitudes that each tensor had in earlier steps, and the one to scale by now.

What a step scales by is fixed when it begins, so that a checkpoint, and the backward pass of a micro-batch after
others, find what their forward pass had.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ...errors import LabError
from ..recipes import Recipe
from .places import Place

RULES = ("amax_history_len", "amax_compute_algo", "margin", "reduce_amax")  # of a recipe
Array = np.ndarray[Any, Any]


class Amaxes:
    """Of every role of an operand: its history, the amax that scales it now, and this step's so far."""

    def __init__(self) -> None:
        self._history: dict[str, deque[float]] = {}
        self._used: dict[str, float] = {}
        self._pending: dict[str, float] = {}
        self._recipes: dict[str, Recipe] = {}

    def of(self, recipe: Recipe, place: Place, role: str, largest: float, x: Array | None) -> float:
        """What to scale the operand of a role by; ``x`` is noted for later steps, None is not.

        ``largest``: of its format, so the scale is 1 until there is a history.
        """
        if x is not None:
            self._recipes[role] = recipe
            self._pending[role] = float(np.maximum(self._pending.get(role, 0.0), np.abs(x).max(initial=0)))
        return place.step.amaxes.setdefault(role, self._used.get(role, largest))

    def new_step(self) -> None:
        """The amaxes of a step enter the histories; those that are 0 or not finite leave the scale as it was."""
        self._reduce()
        for role, amax in self._pending.items():
            recipe = self._recipes.get(role) or Recipe("")
            history = self._history.setdefault(role, deque(maxlen=max(recipe.amax_history_len, 1)))
            history.append(amax)
            found = amax if recipe.amax_compute_algo == "most_recent" else float(np.max(history))
            if 0 < found < math.inf:
                self._used[role] = math.ldexp(found, recipe.margin)
        self._pending = {}

    def _reduce(self) -> None:
        """The largest over all ranks of a run of torch.distributed, which have the same roles in any order."""
        at = sorted(role for role in self._pending if self._recipes[role].reduce_amax)
        if not at or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        amaxes = torch.tensor([self._pending[role] for role in at])
        torch.distributed.all_reduce(amaxes, torch.distributed.ReduceOp.MAX)
        self._pending.update(zip(at, amaxes.tolist(), strict=True))

    def state(self) -> dict[str, Any]:
        """Everything that the next steps depend on."""
        rules = {role: {name: getattr(recipe, name) for name in RULES} for role, recipe in self._recipes.items()}
        history = {role: list(amaxes) for role, amaxes in self._history.items()}
        return {"history": history, "used": dict(self._used), "pending": dict(self._pending), "rules": rules}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        try:
            rules = {role: Recipe("", **rule) for role, rule in state["rules"].items()}
            history = {role: deque(seen, rules[role].amax_history_len) for role, seen in state["history"].items()}
            used, pending = dict(state["used"]), dict(state["pending"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LabError(f"this is no state of an emulation ({error!r}); pass what state_dict() gave.") from None
        self._recipes, self._history, self._used, self._pending = rules, history, used, pending
