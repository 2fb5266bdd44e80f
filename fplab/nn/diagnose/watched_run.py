"""What a watched run has shown: counts by kind and layer, the losses of changes, and what broke first."""

from collections.abc import Iterable
from typing import Any

from ...errors import LabError, integer, quotes_call, unknown
from ...formats import FormatLike, several
from ..recipes import Recipe
from .format_counts import REACH, Fates, Key, Losses, Lost, Tables, candidate, histogram, merged
from .nonfinite import ROOT, NonFinite
from .recipe_errors import Products
from .run_comparison import Fingerprints
from .tensors import Array

GRADIENTS = ("activation gradients", "weight gradients")
ORDER = ("activations", *GRADIENTS, "updates", "weights")


class Seen:
    """The counts of a run, to ask questions of; :class:`~fplab.nn.watch` fills them while it runs."""

    def __init__(
        self, model: Any, optimizer: Any, formats: Iterable[FormatLike], every: int, keep: int,
        recipes: Iterable[str | Recipe],
    ) -> None:  # fmt: skip
        self._model, self._optimizer = model, optimizer
        self.every, self.keep = integer("every", every, 1, 2**31), integer("keep", keep, 0, 2**20)
        self.formats = tuple(map(candidate, several(formats)))
        if not self.formats:
            raise LabError("formats=() names no candidate; allowed: one or more, such as ('fp16', 'bf16').")
        self.name = type(model).__name__
        self.steps = self.skipped = 0
        self.compiled = False  # whether a part of the model was compiled; it ran what it was made of
        self.first: NonFinite | None = None  # the first tensor that went infinite or NaN
        self.first_kept: NonFinite | None = None  # the first in a step that no loss scaler skipped
        self.scales: tuple[float, float] | None = None  # the least and the greatest loss scale seen
        self.unread: set[str] = set()  # tensors whose values cannot be read
        self.products = Products(recipes)
        self._tables, self._losses, self._fingerprints = (
            Tables(self.formats),
            Losses(self.formats),
            Fingerprints(self.keep),
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds counted, in the order of a step."""
        result = {kind for kind, _ in self._tables}
        states = sorted(result - set(ORDER))
        return tuple(kind for kind in ORDER if kind in result) + tuple(states)

    def layers(self, kind: str | None = None) -> tuple[str, ...]:
        """The layers counted (of a kind), in the order of the model."""
        result = {layer for k, layer in self._tables if kind in (None, k)}
        names = dict.fromkeys([name or ROOT for name, _ in self._model.named_modules()])
        return tuple(name for name in names if name in result) + tuple(sorted(result - set(names)))

    def _table(self, kind: str, layer: str | None) -> Array:
        """The counts of a kind ("gradients" are both kinds of them), of one layer or all."""
        kinds = GRADIENTS if kind == "gradients" else (kind,)
        if not set(kinds) & set(self.kinds):
            raise unknown("kind", kind, (*self.kinds, "gradients"))
        keys: list[Key] = [(k, name) for k, name in self._tables if k in kinds and layer in (None, name)]
        if not keys:
            raise unknown("layer", layer, [name for k in kinds for name in self.layers(k)])
        return self._tables.merged(keys)

    @quotes_call
    def histogram(self, kind: str, layer: str | None = None) -> tuple[Array, Array]:
        """Binades e and how many values are from 2**e to below 2**(e+1) in size, int64 both; gradients unscaled.

        Zeros, infinities and NaN are in no binade.
        """
        return histogram(self._table(kind, layer))

    @quotes_call
    def fates(self, fmt: FormatLike, kind: str, layer: str | None = None, log2_scale: int = 0) -> Fates:
        """How many values a candidate format, at a scale of 2**log2_scale, would make what; exact counts."""
        scale = integer("log2_scale", log2_scale, -REACH, REACH)
        return self._tables.fates(self._table(kind, layer), candidate(fmt), scale)

    @quotes_call
    def lost(self, layer: str | None = None, kind: str = "weights") -> Lost:
        """How many changes of the weights (or of "state NAME") each candidate format would lose; exact counts.

        A change u of w is lost where the format rounds w + u back to what it holds for w.
        """
        layers = [name for name in self.layers() if (kind, name) in self._losses and layer in (None, name)]
        if not layers:
            raise unknown("layer", layer, [name for name in self.layers() if (kind, name) in self._losses])
        return merged([self._losses.get(kind, name) for name in layers])
