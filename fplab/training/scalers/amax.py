"""A scale for each FP8 tensor, from the largest magnitudes that it had: delayed scaling.

E4M3 spans 18 binades, too few for the tensors of a network at one scale. Each tensor is multiplied by a power of two
that brings its largest magnitude (amax) just below the format's largest value, and the product is divided by it again.
Looking at the tensor first would cost a pass over it, so the scale comes from the amax of earlier steps.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import LabError, own_integers, quotes_class
from ...formats import Format, FormatLike, get
from ...nn.ranks import distributed, largest_over_ranks


def power_of_two_scale(amax: float, largest: float, margin: int = 0) -> float:
    """The largest power of two that keeps ``amax`` times it at most ``largest``, and 2**``margin`` less than that.

    From 2**-126 to 2**126: both it and its reciprocal are normal numbers of FP32.

    >>> power_of_two_scale(3.0, 448.0)
    128.0
    """
    fraction, exponent = math.frexp(amax)
    top, top_exponent = math.frexp(largest)
    exponent = top_exponent - exponent - (fraction > top) - margin
    return math.ldexp(1.0, max(-126, min(126, exponent)))


@quotes_class
@dataclass
class AmaxScaling:
    """Per-tensor scales for FP8, to be handed to ``fplab.nn.emulate(..., scaling=...)``.

    ``fmt``: the format of the operands. ``gradients``: that of those whose role ends in "grad" or "gradient" (None:
    ``fmt``).
    ``history``: how many earlier amaxes of a role decide, by their maximum; 0 takes the tensor's own ("current
    scaling"). ``margin``: binades left free above amax, for tensors that grow from one step to the next.

    A role that has no history yet has the scale 1, and so does a tensor of zeros; an amax that is not finite is not
    remembered. After NVIDIA Transformer Engine's ``DelayedScaling`` (largest amax of the history), with the scale a
    power of two, so that it changes no significand.
    """

    fmt: FormatLike = "e4m3"
    gradients: FormatLike | None = None
    history: int = 16
    margin: int = 0
    _seen: dict[str, deque[float]] = field(init=False, default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.fmt = get(self.fmt)
        self.gradients = self.fmt if self.gradients is None else get(self.gradients)
        own_integers(self, history=(0, 1 << 16), margin=(0, 64))

    def format_of(self, role: str) -> Format:
        """The format that an operand of this role is rounded to."""
        return get(self.gradients if role.endswith(("grad", "gradient")) and self.gradients is not None else self.fmt)

    def scale(self, role: str, tensor: torch.Tensor) -> float:
        """The scale of this use of the operand called ``role``, a power of two; notes the tensor's amax for later."""
        amax = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
        seen = self._seen.setdefault(role, deque(maxlen=max(self.history, 1)))
        if self.history == 0:
            seen.clear()
            seen.append(amax if math.isfinite(amax) else 0.0)
        largest = max(seen, default=0.0)
        if self.history and math.isfinite(amax):
            seen.append(amax)
        return power_of_two_scale(largest, self.format_of(role).max, self.margin) if largest > 0 else 1.0

    def synchronize(self) -> None:
        """Between two steps: let the last amax of every role be the largest over the ranks of torch.distributed.

        All ranks must have met the same roles, which they have if they run the same model; without it each scales
        by what it saw itself. In one process it does nothing. Raises LabError where ranks have other roles.
        """
        if distributed():
            last = {role: seen[-1] for role, seen in self._seen.items() if seen}
            for role, amax in largest_over_ranks(last).items():
                self._seen[role][-1] = amax

    def state_dict(self) -> dict[str, Any]:
        """The history of every role, and what it was made with.

        No dictionary by role: of one, ``torch.distributed.checkpoint`` loads only what is there already.
        """
        return {**self._settings(), "seen": tuple((role, tuple(amaxes)) for role, amaxes in self._seen.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; refused with the reason if it was made with other settings."""
        for name, own in self._settings().items():
            if state.get(name) != own:
                raise LabError(f"the state was saved with {name}={state.get(name)!r}, but this one has {name}={own!r}.")
        length = max(self.history, 1)
        self._seen = {role: deque(amaxes, maxlen=length) for role, amaxes in dict(state["seen"]).items()}

    def _settings(self) -> dict[str, Any]:
        names = {"fmt": get(self.fmt).name, "gradients": get(self.gradients or self.fmt).name}
        return {**names, "history": self.history, "margin": self.margin}
