"""An emulation as one object: what is asked for, where it is, what it remembers, and what it has done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import LabError
from ...scaled import Scaled
from ...tensorcore.models import Model
from ..tracer import is_compiled
from .call_sites import CallSites, Step
from .choices import Choices
from .delayed import Amaxes
from .product_log import Log, Report
from .settings import Settings


class Run:
    """An emulation: what is asked for, where it is, and the log of its products.

    ``suspended``: whether operations are let through, to what is around the block. ``seen``: where set, it is given
    every product: the model, both operands in the unit's formats, the order of k, and the sum before any factor.
    ``quantised``: where set, it receives the layer, pass, values and codes of every operand that a recipe quantises.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.log = settings, Log()
        self.suspended = False
        self.seen: list[tuple[Any, ...]] | None = None
        self.quantised: Callable[[str, str, Any, Scaled], None] | None = None
        self.amaxes = Amaxes(settings.recipes)
        self.choices = Choices(settings.recipe, settings.plan, settings.layers)
        listeners = [self.choices.add, self.amaxes.meet] if self.amaxes.delayed else [self.choices.add]
        self.sites = CallSites(listeners, settings.splits)
        self.blocks: list[Any] = []  # that are open
        self.fresh = True  # its first step begins, without a history
        self.gpu = settings.gpu.gpu if isinstance(settings.gpu, Model) else settings.gpu

    def report(self) -> Report:
        """What has been computed so far, by layer, pass and operation, backward passes after the block included."""
        return self.log.report(any(map(is_compiled, self.sites.names.of)))

    def new_step(self) -> None:
        """What comes now is another step's."""
        if self.amaxes.delayed:
            self.amaxes.new_step()
        self.sites.new_step()
        self.log.new_step()

    def state_dict(self) -> dict[str, Any]:
        """What the next steps depend on: the number of the step, which stochastic rounding draws by, and all amaxes."""
        step = self.sites.step
        return {"step": step.number - (not step.used), "amaxes": self.amaxes.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, with the bits that a run would have had that never stopped."""
        if not isinstance(state, Mapping) or not isinstance(state.get("step"), int) or "amaxes" not in state:
            raise LabError("this is no state of an emulation; pass what state_dict() gave.")
        self.amaxes.load(state["amaxes"])
        self.fresh = False
        self.sites.step = Step(state["step"], used=True)
        if self.blocks:
            self.sites.new_step()
