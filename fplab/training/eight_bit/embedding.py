"""The stable embedding: what the paper does to the one layer whose 8-bit states were not enough."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import door, integer
from .base import STATE_BITS


@door
class StableEmbedding(nn.Embedding):
    """An embedding initialised Xavier-uniformly, followed by a layer norm, with 32-bit optimizer states.

    Arguments as :class:`torch.nn.Embedding`. The layer norm comes before position embeddings are added, and is computed
    in float32. 8-bit optimizers find the mark on its weight; copies of the module and other weights have it too.

    Source: Dettmers et al., arXiv 2110.02861, section 2.3: gradients of rare tokens make embeddings the layer with the
    largest updates, and a normalised output keeps their variance.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, *args: Any, **kwargs: Any) -> None:
        width = integer("embedding_dim", embedding_dim, 1, 2**20)  # of the layer norm, too
        super().__init__(integer("num_embeddings", num_embeddings, 0, 2**40), width, *args, **kwargs)
        self.norm = nn.LayerNorm(width, device=self.weight.device)

    def reset_parameters(self) -> None:
        """Xavier uniform: within sqrt(6 / (rows + columns)); the padding row is zero."""
        nn.init.xavier_uniform_(self.weight)
        self._fill_padding_idx_with_zero()

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As torch's; a weight that is set or replaced gets the mark."""
        super().register_parameter(name, param)
        self._mark()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._mark()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        super()._apply(*args, **kwargs)  # may replace parameters
        self._mark()
        return self

    def _mark(self) -> None:
        if self._parameters.get("weight") is not None:
            setattr(self.weight, STATE_BITS, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        """The normalised rows of ``tokens``, in the weight's dtype."""
        rows = super().forward(tokens)
        device = rows.device.type
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            scale, shift = self.norm.weight.float(), self.norm.bias.float()
            normal = nn.functional.layer_norm(rows.float(), self.norm.normalized_shape, scale, shift, self.norm.eps)
        return normal.to(rows.dtype)
