"""The scalers of a training loop, with the methods of ``torch.amp.GradScaler``; they work on the CPU.

::

    scaler = DynamicScaler()
    for batch in data:
        optimizer.zero_grad()
        scaler.scale(loss(model, batch)).backward()
        scaler.step(optimizer)  # unscales, and leaves the step out where a gradient is not finite
        scaler.update()
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from ...errors import LabError, quotes_class
from ...formats import FormatLike, get
from ...nn import bits
from ...words import part
from .machine import APEX, KERAS, TORCH, Machine, Tracked, checked_scale, unscaled


class Stage(enum.Enum):
    """How far an optimizer has come since the last ``update``."""

    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"


@dataclass
class _Progress:
    """One optimizer between two updates."""

    stage: Stage = Stage.READY
    checked: bool = False  # whether there was a gradient to look at
    found_inf: bool = False


@dataclass(eq=False)
class Scaler:
    """What all scalers share: a scale that follows a :class:`Machine`, and the order of calls of ``GradScaler``.

    ``gradients``: the format that unscaled gradients are rounded to (None: they keep their dtype, FP32 as a rule).
    ``skip``: whether a step with a gradient that is not finite is left out.
    """

    machine: Machine = TORCH
    gradients: FormatLike | None = None
    skip: bool = True
    _now: Tracked = field(init=False)
    _progress: dict[int, _Progress] = field(init=False, default_factory=dict, repr=False)

    def __init_subclass__(cls) -> None:
        quotes_class(cls)

    def __post_init__(self) -> None:
        if self.gradients is not None:
            self.gradients = get(self.gradients)
        self._now = self.machine.start()

    # --- the methods of GradScaler --------------------------------------------------------------------------

    def scale(self, outputs: Any) -> Any:
        """A loss, or a list or tuple of losses, times the scale; a float32 0-d factor, as torch's.

        Raises :class:`LabError` once the scale is 0 or infinite, which no step could undo.
        """
        if isinstance(outputs, torch.Tensor):
            self._refuse_dead_scale()
            return outputs * torch.tensor(self._now.scale, dtype=torch.float32, device=outputs.device)
        if isinstance(outputs, Iterable) and not isinstance(outputs, str):
            parts = [self.scale(part) for part in outputs]
            return tuple(parts) if isinstance(outputs, tuple) else parts
        raise LabError(f"scale() got a {type(outputs).__name__}; allowed: a tensor, or a list or tuple of tensors.")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Take the scale out of the optimizer's gradients, in place, and note whether any was not finite.

        Once per optimizer and update, before its step: for whoever clips or looks at gradients.
        """
        progress = self._of(optimizer)
        if progress.stage is not Stage.READY:
            what = "unscale_() or step()" if progress.stage is Stage.STEPPED else "unscale_()"
            raise LabError(f"{what} was already called on this optimizer since the last update().")
        with torch.no_grad():
            for gradient in _gradients(optimizer):
                progress.checked = True
                progress.found_inf |= not bool(torch.isfinite(gradient).all())
                self._unscale(gradient)
        progress.stage = Stage.UNSCALED

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale if that was not done, then step, unless a gradient of this optimizer was not finite.

        Returns what ``optimizer.step(*args, **kwargs)`` gives, None where the step was skipped.
        """
        if "closure" in kwargs or (args and callable(args[0])):
            raise LabError("a closure cannot be used with a loss scaler: it would compute unscaled gradients.")
        progress = self._of(optimizer)
        if progress.stage is Stage.STEPPED:
            raise LabError("step() was already called on this optimizer since the last update().")
        if progress.stage is Stage.READY:
            self.unscale_(optimizer)
        if not progress.checked:
            raise LabError("this optimizer has no gradient; call backward() on the scaled loss before step().")
        progress.stage = Stage.STEPPED
        return None if self.skip and progress.found_inf else optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Move the scale by what all optimizers found since the last update, or set it to ``new_scale``."""
        if new_scale is not None:
            self._now = self._now._replace(scale=checked_scale("new_scale", new_scale))
        elif not any(progress.checked for progress in self._progress.values()):
            raise LabError("update() without a gradient looked at; call step(optimizer) or unscale_(optimizer) first.")
        else:
            self._now = self._moved(any(progress.found_inf for progress in self._progress.values()))
        self._progress.clear()

    def get_scale(self) -> float:
        return self._now.scale

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs, under the keys of ``GradScaler.state_dict``."""
        return {**self._settings(), "scale": self._now.scale, "_growth_tracker": self._now.good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; refused with the reason if it is another scaler's, or no possible one."""
        wanted = {**self._settings(), "scale": None, "_growth_tracker": None}
        if missing := [name for name in wanted if name not in state]:
            raise LabError(f"the state has no {missing[0]!r}; it holds {', '.join(sorted(state)) or 'nothing'}.")
        for name, own in self._settings().items():
            if state[name] != own:
                raise LabError(
                    f"the state was saved with {name}={state[name]!r}, but this scaler has {name}={own!r}; "
                    f"build the scaler with {name}={state[name]!r} to go on from it."
                )
        good = state["_growth_tracker"]
        if isinstance(good, bool) or not isinstance(good, int) or not 0 <= good < self.machine.growth_interval:
            most = self.machine.growth_interval - 1
            raise LabError(f"the state's _growth_tracker={good!r} is not possible; allowed: 0 to {most}.")
        self._now = Tracked(checked_scale(part("the state's scale"), state["scale"]), good)
        self._progress.clear()

    # --- beyond GradScaler ----------------------------------------------------------------------------------

    def found_inf(self, optimizer: Optimizer) -> bool:
        """Whether a gradient of this optimizer was not finite when it was unscaled, since the last update."""
        return self._of(optimizer).found_inf

    # --- the parts that differ ------------------------------------------------------------------------------

    def _moved(self, found_inf: bool) -> Tracked:
        return self.machine.after(self._now, found_inf)

    def _settings(self) -> dict[str, Any]:
        names = ("growth_factor", "backoff_factor", "growth_interval")
        return {name: getattr(self.machine, name) for name in names}

    # --- inside ---------------------------------------------------------------------------------------------

    def _of(self, optimizer: Optimizer) -> _Progress:
        return self._progress.setdefault(id(optimizer), _Progress())

    def _refuse_dead_scale(self) -> None:
        if not 0 < self._now.scale < float("inf"):
            raise LabError(
                f"the loss scale has become {self._now.scale}: the gradients stayed infinite or NaN however small it "
                "was, or it grew without bound. Look for the first tensor that is not finite; update(new_scale) sets "
                "another scale."
            )

    def _unscale(self, gradient: torch.Tensor) -> None:
        """In place, as torch's kernel: in float32 (float64 for a float64 gradient), cast back to the dtype."""
        if gradient.dtype == torch.float16:
            raise LabError(
                "the gradients are torch.float16: unscaled, they would underflow again. Keep FP32 parameters and "
                'compute in FP16, or pass gradients="fp16" and hold FP16 values in float32 tensors.'
            )
        wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        result = torch.from_numpy(unscaled(bits.array(wide), self._now.scale, self.machine.divides))
        gradient.copy_(self._held(result))

    def _held(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient in the format that unscaled gradients are held in."""
        if self.gradients is None:
            return gradient
        from ...floats import quantize

        return torch.from_numpy(np.asarray(quantize(bits.array(gradient.float()), self.gradients)))


def _gradients(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """The gradients an optimizer will apply; of a sparse one its values."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if (gradient := parameter.grad) is not None:
                yield gradient._values() if gradient.is_sparse else gradient


class DynamicScaler(Scaler):
    """``torch.amp.GradScaler``, step for step and bit for bit, on any device.

    Arguments and defaults are GradScaler's; ``gradients`` is :class:`Scaler`'s. The first growth comes after
    ``growth_interval`` good steps in a row; there is no lower bound, and no upper one but float32's.
    """

    def __init__(
        self, init_scale: float = TORCH.init_scale, growth_factor: float = TORCH.growth_factor,
        backoff_factor: float = TORCH.backoff_factor, growth_interval: int = TORCH.growth_interval, *,
        gradients: FormatLike | None = None,
    ) -> None:  # fmt: skip
        super().__init__(Machine(init_scale, growth_factor, backoff_factor, growth_interval), gradients)


class KerasScaler(Scaler):
    """Keras 3's ``LossScaleOptimizer``: doubles after ``dynamic_growth_steps`` finite steps, halves after another.

    Gradients are divided by the scale, then rounded to ``gradients`` (:class:`Scaler`). There is no guard: a scale of
    2**127 grows to infinity and stays there.
    """

    def __init__(
        self, initial_scale: float = KERAS.init_scale, dynamic_growth_steps: int = KERAS.growth_interval, *,
        gradients: FormatLike | None = None,
    ) -> None:  # fmt: skip
        machine = Machine(initial_scale, growth_interval=dynamic_growth_steps, finite_growth=False, divides=True)
        super().__init__(machine, gradients)


class ApexScaler(Scaler):
    """NVIDIA Apex's dynamic scale, which stops growing at 2**24.

    Multiplied by ``scale_factor`` after ``scale_window`` good steps in a row, divided by it after a bad one. The bounds
    and the defaults are those of ``apex/amp/frontend.py``; ``gradients`` is :class:`Scaler`'s.
    """

    def __init__(
        self, init_scale: float = APEX.init_scale, scale_factor: float = APEX.growth_factor,
        scale_window: int = APEX.growth_interval, *, min_loss_scale: float | None = None,
        max_loss_scale: float = APEX.highest, gradients: FormatLike | None = None,
    ) -> None:  # fmt: skip
        lowest = 0.0 if min_loss_scale is None else checked_scale("min_loss_scale", min_loss_scale)
        highest = checked_scale("max_loss_scale", max_loss_scale)
        if not scale_factor > 1:
            raise LabError(f"scale_factor={scale_factor!r} does not grow; allowed: finite and above 1.")
        machine = Machine(init_scale, scale_factor, 1 / scale_factor, scale_window, lowest, highest)
        super().__init__(machine, gradients)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "lowest": self.machine.lowest, "highest": self.machine.highest}


class StaticScaler(Scaler):
    """One scale for the whole run (Micikevicius et al. 2018, section 3.2: 8 to 32,768).

    ``skip=False`` applies gradients even where they are not finite, which is what a loop without a check does.
    """

    def __init__(self, scale: float = 1.0, *, skip: bool = True, gradients: FormatLike | None = None) -> None:
        super().__init__(Machine(checked_scale("scale", scale)), gradients, skip)

    def _moved(self, found_inf: bool) -> Tracked:
        return self._now

    def _settings(self) -> dict[str, Any]:
        return {"static": self.machine.init_scale, "skip": self.skip}
