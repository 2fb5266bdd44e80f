"""Optimizers whose states take one byte a parameter each instead of four, and the embedding they want.

::

    optimizer = fplab.training.Adam8bit(model.parameters(), lr=1e-3)  # then as any torch optimizer

After T. Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022 (arXiv 2110.02861). A tensor of n
elements in blocks of B has 2n + 8 ceil(n / B) bytes of Adam states, where 32-bit states take 8n.

``optimizers``: the classes and their options; ``base``: what they share; ``oracle``: a step as defined.
"""

from .base import EightBit
from .embedding import StableEmbedding
from .optimizers import Adagrad8bit, Adam8bit, AdamW8bit, Lion8bit, SGD8bit

__all__ = ["Adagrad8bit", "Adam8bit", "AdamW8bit", "EightBit", "Lion8bit", "SGD8bit", "StableEmbedding"]
