"""Why autograd saves more than the activation formula says: every traced storage is given to a term, or to an extra.

The formula counts what a backward pass needs in the format of the recipe. What comes on top, by name, in bytes:

* ``statistics``: mean and reciprocal deviation of every norm, two numbers a token.
* ``causal masks``: one byte for each pair of positions, a mask for each layer.
* ``weight casts``: autocast's 16-bit copies of FP32 weights, which the backward pass multiplies by.
* ``FP32 values``: what autocast leaves in FP32 where the formula counts 16 bits: the residual stream before each norm.
* ``copies``: storages beyond the formula's number of that size: autocast casts the shared input of queries, keys and
  values three times.
* ``loss``: the number of targets, one scalar.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...memory import activations
from ...memory.activations import Term
from ...memory.models import Transformer, tensors_of

if TYPE_CHECKING:
    from ...memory.tracing import Saved

EXTRAS = ("statistics", "causal masks", "weight casts", "FP32 values", "copies", "loss")
BYTES = {"bool": 1, "bfloat16": 2, "float16": 2, "float32": 4}


def terms_of(c: Transformer, batch: int, sequence: int, width: int, recompute: str = "none") -> tuple[Term, ...]:
    """The formula's terms of a whole model."""
    shape = (c, batch, sequence, width)
    layer = activations.kept(activations.layer_terms(*shape), recompute)
    return (*activations.embedding_terms(*shape), *(layer * c.layers), *activations.head_terms(*shape))


def explained(
    c: Transformer, batch: int, sequence: int, width: int, saved: Iterable[Saved], recompute: str = "none"
) -> dict[str, int]:
    """Bytes of the formula, of each extra, and of terms that were ``missing``, which count against it.

    ``saved``: what :func:`fplab.memory.tracing.trace` gives; ``formula`` and the extras, less ``missing``, add up to
    it. A weight is told from an activation by its shape, so tokens (batch times sequence) must not equal a width.
    """
    wanted = Counter((t.elements, t.width == 1, int(t.width)) for t in terms_of(c, batch, sequence, width, recompute))
    by_cause = dict.fromkeys(("formula", *EXTRAS, "missing"), 0)
    by_cause["formula"] = sum(n * w * many for (n, _, w), many in wanted.items())
    weights: set[tuple[int, ...]] = {t.shape for t in tensors_of(c).tensors if len(t.shape) == 2}
    widest_first = sorted(saved, key=lambda storage: -BYTES.get(storage.dtype, 0))  # 16-bit copies take what is left
    for storage in widest_first:
        if (name := _extra(storage, sequence, weights)) is not None:
            by_cause[name] += storage.bytes
            continue
        key = _taken(wanted, math.prod(storage.shape), BYTES[storage.dtype])
        if key is None:
            by_cause["copies"] += storage.bytes
        else:
            wanted[key] -= 1
            by_cause["FP32 values"] += storage.bytes - key[0] * key[2]
    by_cause["missing"] = sum(n * w * many for (n, _, w), many in wanted.items())
    return by_cause


def _extra(storage: Saved, sequence: int, weights: set[tuple[int, ...]]) -> str | None:
    """The extra that a storage is by its shape, if it is one."""
    if storage.shape == ():
        return "loss"
    if storage.shape[-1] == 1:
        return "statistics"
    if storage.dtype == "bool" and storage.shape == (sequence, sequence):
        return "causal masks"
    if storage.shape in weights or storage.shape[::-1] in weights:
        return "weight casts"
    return None


def _taken(wanted: Counter[tuple[int, bool, int]], elements: int, width: int) -> tuple[int, bool, int] | None:
    """The term still wanted that a storage of so many elements is: of its own width if there is one, else narrower."""
    fits = [key for key, many in wanted.items() if many and key[0] == elements and key[1] == (width == 1)]
    return min((key for key in fits if key[2] <= width), key=lambda key: width - key[2], default=None)


def predicted(c: Transformer, batch: int, sequence: int, precision: str, recompute: str) -> dict[str, int]:
    """The extras in closed form, for a layer with LayerNorm that stores its attention matrices, on the CPU."""
    tokens, layers = batch * sequence, 0 if recompute == "full" else c.layers
    norms = 2 * layers + 1
    statistic = 2 if precision in ("mixed", "bf16") else 4  # the CPU keeps them in the input's format
    out = dict.fromkeys(EXTRAS, 0)
    out["statistics"] = norms * 2 * tokens * statistic
    out["causal masks"] = (layers if recompute == "none" else 0) * sequence * sequence
    out["loss"] = 4
    if precision == "amp":
        model = tensors_of(c)
        matrices = sum(t.elements for t in model.layers[0] if t.linear)
        out["weight casts"] = 2 * (layers * matrices + model.embedding[0].elements)
        stream = norms + (c.layers if recompute == "full" else 0)
        out["FP32 values"] = 2 * stream * tokens * c.hidden
        out["copies"] = 2 * 2 * layers * tokens * c.hidden
    return out
