"""The first infinity or NaN of a run: where, when, and what it usually means."""

from typing import NamedTuple

from ...words import NOTHING, Text, joined
from . import words


class NonFinite(NamedTuple):
    """A tensor that holds infinities or NaN, the first of its step.

    ``infinite`` and ``nan`` of ``size`` values; ``at``: the flat index of the first of them. ``before``: the step and
    the largest magnitude when this tensor was last seen finite. ``scale``: the loss scale. ``skipped``: whether a loss
    scaler skipped the step, so that nothing was harmed. ``elsewhere``: weights that something else than the
    optimizer changed, or the input of a layer that no module returned. ``below``: a module's output with minus infinity
    alone, as a mask or the logarithm of zero; ``harmless``: and nothing else of its step was infinite or NaN.
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
    below: bool = False
    harmless: bool = False

    def __str__(self) -> str:
        return str(self.text)

    @property
    def text(self) -> Text:
        """What happened, as a sentence."""
        counts = ((self.infinite, words.INFINITE), (self.nan, words.NAN))
        found = joined((word.fill(n=n) for n, word in counts if n), words.AND)
        tensor, before = words.tensor(self.tensor), self.before
        own = self.kind in ("input", "loss")
        return words.EVENT.fill(
            step=self.step,
            what=tensor if own else words.WHOSE.fill(kind=words.kind(self.kind), tensor=tensor),
            values=words.OF_VALUES.fill(found=found, size=self.size),
            was=words.WAS.fill(step=before[0], most=before[1]) if before else NOTHING,
            ended=words.STEP_SKIPPED if self.skipped else NOTHING,
        )

    @property
    def cause(self) -> str:
        """The likely cause, and what to do."""
        return str(self.reason)

    @property
    def reason(self) -> Text:
        """The cause in both languages."""
        if self.kind in ("activation gradients", "weight gradients") and self.scale > 1:
            return words.SCALE_TOO_LARGE.fill(scale=power(self.scale))
        if self.kind == "loss":
            return words.LOSS_BREAKS.fill(scale=power(self.scale))
        if self.elsewhere:
            return words.CHANGED if self.kind == "weights" else words.NO_MODULE
        if self.below:
            return words.MASK if self.harmless else words.LOG_OF_ZERO
        if self.kind == "activations" and not self.infinite:
            return words.NO_INFINITY
        return words.CAUSES.get(self.kind, words.OF_A_STATE)


def power(scale: float) -> str:
    """A scale as a power of two where it is one.

    >>> power(65536.0), power(1.0), power(3.0)
    ('2^16', '1', '3')
    """
    exponent = scale.hex().partition("p")[2]
    exact = scale > 0 and scale == 2.0 ** int(exponent or 0)
    return f"2^{int(exponent)}" if exact and scale != 1 else f"{scale:g}"
