"""The first infinity or NaN of a run: where, when, and what it usually means."""

from __future__ import annotations

from typing import NamedTuple

_BACKWARD = "the forward pass was finite and the backward pass is not: the loss, or a derivative here, overflows"
_UPDATE = "the gradients were finite and the update is not: the optimizer divides by zero or overflows"
_CHANGED = "not the optimizer's doing, whose last step left it finite: look at what else writes to it or rounds it"
_BETWEEN = "no module returned it: look at the functions called before this layer, or at the batch"
CAUSES = {
    "input": "the data holds it already: look at the batch, not at the model",
    "initial weights": "there before the first step: a damaged checkpoint or a wrong initialisation",
    "activations": "beyond the largest value of its format: a lower learning rate, or hold it in BF16 or FP32",
    "activation gradients": _BACKWARD,
    "weight gradients": _BACKWARD,
    "updates": _UPDATE,
    "weights": f"{_UPDATE}, or something else wrote to it",
    "buffers": "this layer used a buffer that holds it: look at its running statistics, or at what else writes to it",
}


class NonFinite(NamedTuple):
    """A tensor that holds infinities or NaN, the first of its step.

    ``infinite`` and ``nan`` of ``size`` values; ``at``: the flat index of the first of them. ``before``: the step and
    the largest magnitude when this tensor was last seen finite. ``scale``: the loss scale. ``skipped``: whether a loss
    scaler skipped the step, so that nothing was harmed. ``elsewhere``: weights that something else than the
    optimizer changed, or the input of a layer that no module returned.
    """

    step: int
    kind: str
    layer: str
    tensor: str
    infinite: int
    nan: int
    size: int
    at: int
    before: tuple[int, float] | None
    scale: float
    skipped: bool = False
    elsewhere: bool = False

    def __str__(self) -> str:
        what = " and ".join(f"{n:,} {name}" for n, name in ((self.infinite, "infinite"), (self.nan, "NaN")) if n)
        whose = "" if self.kind in ("input", "loss") else f"{self.kind} of "
        was = f"; finite until step {self.before[0]}, then at most {self.before[1]:.3g}" if self.before else ""
        ended = "; the loss scaler skipped this step" if self.skipped else ""
        return f"step {self.step}, {whose}{self.tensor}: {what} of {self.size:,} values{was}{ended}"

    @property
    def cause(self) -> str:
        """The likely cause, and what to do."""
        if self.kind in ("activation gradients", "weight gradients") and self.scale > 1:
            return (
                f"the loss scale {power(self.scale)} is too large here: a dynamic scaler skips the step and halves it"
            )
        if self.kind == "loss":
            return f"the loss does not survive its scale of {power(self.scale)}: scale less, or look at the loss"
        if self.elsewhere:
            return _CHANGED if self.kind == "weights" else _BETWEEN
        if self.kind == "activations" and not self.infinite:
            return (
                "no infinity came before this NaN: 0/0, inf - inf, or a log or root of a negative number in this layer"
            )
        return CAUSES.get(self.kind, "the optimizer's state overflows its format: hold it in FP32")


def power(scale: float) -> str:
    """A scale as a power of two where it is one.

    >>> power(65536.0), power(1.0), power(3.0)
    ('2^16', '1', '3')
    """
    exponent = scale.hex().partition("p")[2]
    exact = scale > 0 and scale == 2.0 ** int(exponent or 0)
    return f"2^{int(exponent)}" if exact and scale != 1 else f"{scale:g}"
