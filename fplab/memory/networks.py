"""A configuration as a torch module that runs, with exactly the tensors that :mod:`fplab.memory.models` lists.

Plain on purpose: each operation of the activation formula is one operation here, so that what autograd saves can be
set beside the formula term by term. ``build(..., device="meta")`` makes 405 billion parameters in no memory.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ..errors import LabError, door, integer, one_of, summary
from .activations import RECOMPUTE
from .models import Transformer

DROP = 0.1


class Dropout(nn.Module):
    """Dropout that keeps a mask of one byte an element everywhere, as CUDA's does; torch's CPU path keeps floats."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout(x, DROP, self.training)[0]


class Layer(nn.Module):
    """One transformer layer: attention and MLP, each behind a norm and beside a residual connection."""

    def __init__(self, c: Transformer, recompute: str) -> None:
        super().__init__()
        self.heads, self.keys, self.size, self.flash, self.recompute = c.heads, c.keys, c.head_size, c.flash, recompute
        self.rotary, self.alibi = c.positions == "rotary", c.positions == "alibi"
        self.norm1, self.norm2 = norm(c), norm(c)
        self.query = nn.Linear(c.hidden, c.hidden, c.bias)
        self.key, self.value = (nn.Linear(c.hidden, c.kv_width, c.bias) for _ in range(2))
        self.project = nn.Linear(c.hidden, c.hidden, c.bias)
        if c.gated:
            self.gate = nn.Linear(c.hidden, c.width, c.bias)
        self.up, self.down = nn.Linear(c.hidden, c.width, c.bias), nn.Linear(c.width, c.hidden, c.bias)
        self.drop = Dropout() if c.dropout else nn.Identity()
        self.gated = c.gated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, hidden) to the same."""
        h = self.norm1(x)
        q = self.split(self.query(h), self.heads)
        k, v = (self.split(linear(h), self.keys) for linear in (self.key, self.value))
        if self.rotary:
            q, k = rotated(q), rotated(k)
        core = recomputed(self.core, q, k, v) if self.recompute == "selective" else self.core(q, k, v)
        x = x + self.drop(self.project(core))
        h = self.norm2(x)
        inner = functional.silu(self.gate(h)) * self.up(h) if self.gated else functional.gelu(self.up(h))
        out: torch.Tensor = x + self.drop(self.down(inner))
        return out

    def split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """(batch, tokens, heads * size) to (batch, heads, tokens, size), a copy in that order."""
        parts: torch.Tensor = x.unflatten(-1, (heads, self.size))
        return parts.transpose(1, 2).contiguous()

    def core(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Causal attention of all heads, and their outputs side by side."""
        if self.flash:
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.keys < self.heads)
        else:
            groups = self.heads // self.keys
            k, v = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k, v))
            future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
            scores = (q @ k.transpose(-2, -1)).div_(self.size**0.5)
            if self.alibi:
                scores = scores.add_(distances(self.heads, scores))
            scores = scores.masked_fill_(future, -torch.inf)
            out = self.drop(scores.softmax(-1)) @ v
        return out.transpose(1, 2).flatten(2)


class Network(nn.Module):
    """Tokens (batch, sequence), int64, to logits (batch, sequence, vocabulary)."""

    def __init__(self, c: Transformer, recompute: str) -> None:
        super().__init__()
        self.recompute, self.tied = recompute, c.tied
        self.tokens = nn.Embedding(c.vocabulary, c.hidden)
        if c.positions == "learned":
            self.positions = nn.Embedding(c.sequence, c.hidden)
        if c.embedding_norm:
            self.embedding_norm = norm(c)
        self.drop = Dropout() if c.dropout else nn.Identity()
        self.layers = nn.ModuleList(Layer(c, recompute) for _ in range(c.layers))
        self.norm = norm(c)
        if not c.tied:
            self.output = nn.Linear(c.hidden, c.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The logits; given the next tokens ``targets`` (batch, sequence), the mean cross-entropy, in FP32."""
        x = self.tokens(tokens)
        if hasattr(self, "positions"):
            x = x + self.positions.weight[: tokens.shape[1]]
        if hasattr(self, "embedding_norm"):
            x = self.embedding_norm(x)
        x = self.drop(x)
        for layer in self.layers:
            x = recomputed(layer, x) if self.recompute == "full" else layer(x)
        logits = functional.linear(self.norm(x), self.tokens.weight if self.tied else self.output.weight)
        return logits if targets is None else functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def norm(c: Transformer) -> nn.Module:
    return nn.RMSNorm(c.hidden) if c.rms else nn.LayerNorm(c.hidden)


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions (Su et al., arXiv 2104.09864): pairs of values turned by an angle, the larger the later."""
    half = x.shape[-1] // 2
    speeds = 10000.0 ** -(torch.arange(half, device=x.device) / half)
    angle = torch.arange(x.shape[2], device=x.device)[:, None] * speeds
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def distances(heads: int, scores: torch.Tensor) -> torch.Tensor:
    """ALiBi's bias (Press et al., arXiv 2108.12409), (heads, tokens, tokens): distance times a slope for each head."""
    place = torch.arange(scores.shape[-1], device=scores.device)
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, device=scores.device) / heads)
    bias: torch.Tensor = (place - place[:, None]) * slopes[:, None, None]
    return bias.to(scores.dtype)


def recomputed(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """Run a function and save its inputs alone; the backward pass recomputes it, with the same random numbers."""
    out: torch.Tensor = checkpoint(function, *inputs, use_reentrant=False)
    return out


@door
def build(
    c: Transformer, device: str = "cpu", dtype: torch.dtype = torch.float32, recompute: str = "none", seed: int = 0
) -> Network:
    """The module of a configuration.

    ``seed``: of the initial weights, drawn without touching torch's global generator; normal with deviation 0.02.
    ``recompute``: "none", "selective" (the attention's core) or "full" (every layer), by torch's checkpointing.
    """
    one_of("recomputation", recompute, RECOMPUTE)
    try:
        torch.device(device)
    except RuntimeError:
        raise LabError(f"device={summary(device)} is none of torch's; allowed: cpu, cuda or meta, for some.") from None
    with torch.device("meta"):
        network = Network(c, recompute).to(dtype)
    if device == "meta":
        return network
    seed = integer("seed", seed, 0, 2**63 - 1)
    network = network.to_empty(device=device)
    generator = torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if p.ndim == 2:
                p.normal_(0, 0.02, generator=generator)
            else:
                p.fill_(0.0 if name.endswith("bias") else 1.0)
    return network
