"""An emulation as one object: what is asked for, where it is, what it remembers, and what it has done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from ...errors import LabError
from ...scaled import Scaled
from ...tensorcore.models import Model
from ..recipes import Recipe
from .choices import Choices
from .delayed import Amaxes
from .places import Places, Step
from .report import Log, Report
from .settings import Settings


class Run:
    """An emulation: what is asked for, where it is, and the log of its products.

    ``aside``: whether operations are let through, to what is around the block. ``seen``: where set, it is given every
    product: the model, both operands in the unit's formats, the order of k, and the sum before any factor.
    ``quantised``: where set, it is told the layer, pass, values and codes of every operand that a recipe quantises.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.log = settings, Log()
        self.aside = False
        self.seen: list[tuple[Any, ...]] | None = None
        self.quantised: Callable[[str, str, Any, Scaled], None] | None = None
        recipes = [one for one in (settings.recipe, *settings.layers.values()) if isinstance(one, Recipe)]
        self.amaxes = Amaxes(recipes)
        self.choices = Choices(settings.recipe, settings.plan, settings.layers)
        self.places = Places(self._meet, settings.splits)
        self.open = False
        self.gpu = settings.gpu.gpu if isinstance(settings.gpu, Model) else settings.gpu

    def _meet(self, named: list[tuple[str, nn.Module]]) -> None:
        """A model is called for the first time: its parts with their names, itself first."""
        self.choices.add(named)
        self.amaxes.meet(named)

    def report(self) -> Report:
        """What has been computed so far, by layer, pass and operation, backward passes after the block included."""
        return self.log.report()

    def new_step(self) -> None:
        """What comes now is another step's."""
        self.amaxes.new_step()
        self.places.new_step()
        self.log.new_step()

    def state_dict(self) -> dict[str, Any]:
        """What the next steps depend on: the number of the step, which stochastic rounding draws by, and all amaxes."""
        step = self.places.step
        return {"step": step.number - (not step.used), "amaxes": self.amaxes.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with the bits that a run would have had that never stopped."""
        if not isinstance(state, Mapping) or not isinstance(state.get("step"), int) or "amaxes" not in state:
            raise LabError("this is no state of an emulation; pass what state_dict() gave.")
        self.amaxes.load(state["amaxes"])
        self.places.step = Step(state["step"], used=True)
        if self.open:
            self.places.new_step()
