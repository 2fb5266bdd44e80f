"""What a kind of argument or answer is, and the random integers that it draws from."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np

from ..words import Text
from .shown import Shown
from .shrink import Size

Many = tuple[Shown, ...]


class UnfitError(Exception):
    """An answer that is not of the kind that was asked for; ``text`` says kindly what is."""

    def __init__(self, text: Text) -> None:
        super().__init__(text.en)
        self.text = text


class Words:
    """Random integers from Philox, whose stream is the same on every machine."""

    def __init__(self, key: int) -> None:
        self._philox = np.random.Philox(key=key)

    def below(self, n: int) -> int:
        """An integer from 0 to n - 1."""
        return int(self._philox.random_raw()) * n >> 64

    def pick(self, items: Sequence[Any]) -> Any:
        """One of several."""
        return items[self.below(len(items))]


class Kind(Protocol):
    """What the checker asks of a kind."""

    def boundary(self) -> Sequence[Any]: ...  # noqa: D102
    def draw(self, words: Words) -> Any: ...  # noqa: D102
    def read(self, given: Any) -> Any: ...  # noqa: D102
    def key(self, value: Any) -> Hashable: ...  # noqa: D102
    def size(self, value: Any) -> Size: ...  # noqa: D102
    def steps(self, value: Any) -> Sequence[Any]: ...  # noqa: D102
    def show(self, value: Any) -> Many: ...  # noqa: D102
