"""A decoder-only transformer that guesses the next character, of ordinary torch modules.

The shape is GPT-2's (Radford et al. 2019): learned positions, layer norm before each part, residual sums, a last
layer norm. Its matrix products are those a precision policy is about: four linear layers a block, the two batched
products of attention, and the head.
"""

import math

import torch
from torch import Tensor, nn

from ..errors import LabError, integer


class Attention(nn.Module):
    """Causal multi-head self-attention: (n, t, width) in and out, through ``scaled_dot_product_attention``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Each position looks at itself and at those before it."""
        n, t, width = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(n, t, width))
        return out


class Block(nn.Module):
    """Attention and a two-layer GELU network, each on the layer norm of its input and added to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, t, width) in and out."""
        x = x + self.attention(self.norm1(x))
        x = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return x


class Transformer(nn.Module):
    """Tokens int64 (n, t) with t at most ``context`` in, logits (n, t, vocabulary) out."""

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the character after each position."""
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def transformer(
    seed: int = 0, *, vocabulary: int = 96, context: int = 64, width: int = 64, layers: int = 2, heads: int = 4
) -> Transformer:
    """A transformer with weights drawn from ``seed``, without touching torch's global generator.

    Weights are normal with deviation 0.02, those that write to the residual stream (``out`` and ``down``) divided by
    ``sqrt(2 * layers)``; biases are zero. The default has 116,480 parameters.
    """
    sizes = {"vocabulary": vocabulary, "context": context, "width": width, "layers": layers, "heads": heads}
    vocabulary, context, width, layers, heads = (integer(name, n, 1, 1 << 16) for name, n in sizes.items())
    if width % heads:
        raise LabError(f"width={width} does not divide into heads={heads}; allowed: a width that heads divides.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # the modules draw too; what they drew is replaced below
        model = Transformer(vocabulary, context, width, layers, heads)
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.ndim == 2:
            writes = name.endswith(("out.weight", "down.weight"))
            nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * layers) if writes else 1), generator=draw)
    return model
