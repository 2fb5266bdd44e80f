"""Watching a training run: which number formats it would stand, layer by layer, and where it broke.

``session``: the block and its questions; ``hooks``: seeing the tensors; ``tables`` and ``losses``: exact counts;
``trail`` and ``comparing``: where two runs part; ``advice`` and ``report``: what follows.
"""

from .session import watch

__all__ = ["watch"]
