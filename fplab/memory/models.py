"""What a model consists of: its parameter tensors, by layer, with the axis that tensor parallelism divides.

A :class:`Transformer` is a configuration; :func:`tensors_of` writes down every parameter tensor that follows from it.
Counts are exact: the presets give the published numbers to the last digit.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

from ..errors import LabError, chosen, demand_types, door, fits, integer, one_of, own_integer, summary

LARGEST = 2**40  # of one dimension: beyond any model, and products of four stay exact integers anyway
MOST_LAYERS = 1 << 12  # each is written down, and gone through for every stage
Positions = Literal["learned", "rotary", "alibi"]


def flag(name: str, value: object) -> None:
    """Whether a field is True or False, and nothing that could be taken for them."""
    if not isinstance(value, bool):
        raise LabError(f"{name}={value!r} is not possible; allowed: True, False.")


def own_size(record: object, name: str, low: int) -> None:
    """Make a record's field the plain integer that it stands for, ``low`` or more, and not beyond :data:`LARGEST`."""
    value = getattr(record, name)
    if fits(value, int) and value < low:
        raise LabError(f"{name}={summary(value)} is not possible; allowed: {low} or more.")
    own_integer(record, name, low, LARGEST)


@door
@dataclass(frozen=True)
class Tensor:
    """A parameter tensor. ``split``: the axis that tensor parallelism divides (None: every rank holds all of it).

    ``linear``: whether it is the weight of a matrix product, which is what INT8 and INT4 inference quantises.
    """

    name: str
    shape: tuple[int, ...]
    split: int | None = None
    linear: bool = False

    def __post_init__(self) -> None:
        demand_types(self)
        object.__setattr__(self, "shape", tuple(integer("shape", n, 0, LARGEST) for n in self.shape))

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def share(self, ranks: int) -> Tensor:
        """What one of ``ranks`` tensor-parallel ranks holds; a vocabulary that does not divide is padded."""
        if self.split is None or ranks == 1:
            return self
        shape = tuple(-(-n // ranks) if axis == self.split else n for axis, n in enumerate(self.shape))
        return Tensor(self.name, shape, self.split, self.linear)


@door
@dataclass(frozen=True, eq=False)  # by identity: hashing every tensor would take longer than all sums
class Model:
    """Parameter tensors in the order in which a forward pass meets them.

    ``embedding`` lies on the first pipeline stage and ``head`` on the last. ``tied``: the output projection is the
    first tensor of ``embedding``; a last stage that is not also the first keeps a copy of it. ``buffers``: bytes that
    a module registers beside its parameters. ``states_only``: nothing is known but a number of parameters, so that
    only model states are counted.
    """

    name: str
    embedding: tuple[Tensor, ...]
    layers: tuple[tuple[Tensor, ...], ...]
    head: tuple[Tensor, ...]
    tied: bool = False
    buffers: int = 0
    states_only: bool = False

    @functools.cached_property
    def parameters(self) -> int:
        """How many parameters the model has; tied tensors count once."""
        return sum(t.elements for t in self.tensors)

    @functools.cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.embedding, *(t for layer in self.layers for t in layer), *self.head)


@door
@dataclass(frozen=True)
class Transformer:
    """A decoder-only transformer.

    ``layers``, ``hidden``, ``heads``, ``vocabulary`` and ``sequence`` (the context it is trained with) as the papers
    name them. ``kv_heads``: heads of keys and values (None: as many as ``heads``). ``ffn``: width of the MLP (None:
    four times ``hidden``). ``gated``: an MLP of three matrices, as SwiGLU. ``rms``: RMSNorm, a scale without a shift.
    ``bias``: on every linear layer. ``tied``: the output projection is the embedding. ``embedding_norm``: a LayerNorm
    behind the embedding. ``dropout``: whether training keeps dropout masks. ``flash``: whether attention is computed
    without storing its s-by-s matrices.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    kv_heads: int | None = None
    ffn: int | None = None
    positions: Positions = "learned"
    gated: bool = False
    rms: bool = False
    bias: bool = True
    tied: bool = True
    embedding_norm: bool = False
    dropout: bool = True
    flash: bool = False

    def __post_init__(self) -> None:
        own_integer(self, "layers", 1, MOST_LAYERS)
        for field in ("hidden", "heads", "vocabulary", "sequence"):
            own_size(self, field, 1)
        if self.kv_heads is not None:
            own_integer(self, "kv_heads", 1, self.heads, f": at most heads={self.heads}")
        if self.ffn is not None:
            own_size(self, "ffn", 1)
        for field in ("gated", "rms", "bias", "tied", "embedding_norm", "dropout", "flash"):
            flag(field, getattr(self, field))
        if self.hidden % self.heads:
            raise LabError(
                f"heads={self.heads} does not divide hidden={self.hidden}; each head has hidden/heads values."
            )
        if self.heads % self.keys:
            raise LabError(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}; queries share keys in groups."
            )
        if not isinstance(self.name, str):
            raise LabError(f"name={self.name!r} is not text.")
        one_of("kind of positions", self.positions, ("learned", "rotary", "alibi"))

    @property
    def keys(self) -> int:
        """Heads of keys and of values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        """Width of the keys (and of the values) of one token: ``kv_heads * head_size``."""
        return self.keys * self.head_size

    @property
    def width(self) -> int:
        """Width of the MLP."""
        return 4 * self.hidden if self.ffn is None else self.ffn

    @property
    def parameters(self) -> int:
        return tensors_of(self).parameters


def _linear(name: str, outputs: int, inputs: int, split: int, bias: bool) -> tuple[Tensor, ...]:
    """A linear layer; split 0 divides its outputs (and bias), split 1 its inputs (its bias is then everyone's)."""
    weight = Tensor(f"{name}.weight", (outputs, inputs), split, linear=True)
    return (weight, Tensor(f"{name}.bias", (outputs,), 0 if split == 0 else None)) if bias else (weight,)


def _norm(name: str, width: int, rms: bool) -> tuple[Tensor, ...]:
    scale = Tensor(f"{name}.weight", (width,))
    return (scale,) if rms else (scale, Tensor(f"{name}.bias", (width,)))


def layer_tensors(c: Transformer) -> tuple[Tensor, ...]:
    """The parameters of one layer: column-parallel into the heads and the MLP, row-parallel out of them."""
    return (
        *_norm("norm1", c.hidden, c.rms),
        *_linear("query", c.hidden, c.hidden, 0, c.bias),
        *_linear("key", c.kv_width, c.hidden, 0, c.bias),
        *_linear("value", c.kv_width, c.hidden, 0, c.bias),
        *_linear("project", c.hidden, c.hidden, 1, c.bias),
        *_norm("norm2", c.hidden, c.rms),
        *(_linear("gate", c.width, c.hidden, 0, c.bias) if c.gated else ()),
        *_linear("up", c.width, c.hidden, 0, c.bias),
        *_linear("down", c.hidden, c.width, 1, c.bias),
    )


@functools.lru_cache(maxsize=64)
def tensors_of(c: Transformer) -> Model:
    """Every parameter tensor of a configuration.

    >>> tensors_of(PRESETS["gpt2"]).parameters
    124439808
    """
    embedding = [Tensor("tokens.weight", (c.vocabulary, c.hidden), 0)]
    if c.positions == "learned":
        embedding.append(Tensor("positions.weight", (c.sequence, c.hidden)))
    if c.embedding_norm:
        embedding += _norm("embedding_norm", c.hidden, c.rms)
    head = [*_norm("norm", c.hidden, c.rms)]
    if not c.tied:
        head.append(Tensor("output.weight", (c.vocabulary, c.hidden), 0, linear=True))
    return Model(c.name, tuple(embedding), (layer_tensors(c),) * c.layers, tuple(head), c.tied)


def _llama3(name: str, layers: int, hidden: int, heads: int, ffn: int) -> Transformer:
    return Transformer(
        name, layers, hidden, heads, 128256, 8192, kv_heads=8, ffn=ffn, positions="rotary", gated=True, rms=True,
        bias=False, tied=False, dropout=False, flash=True,
    )  # fmt: skip


# Radford et al. 2019; Brown et al. 2020 (arXiv 2005.14165), Table 2.1; Le Scao et al. 2022 (arXiv 2211.05100), Table
# 3; Llama team 2024 (arXiv 2407.21783), Table 3. Vocabularies as released.
PRESETS: dict[str, Transformer] = {
    c.name: c
    for c in (
        Transformer("gpt2", 12, 768, 12, 50257, 1024),
        Transformer("gpt2-xl", 48, 1600, 25, 50257, 1024),
        Transformer("gpt3", 96, 12288, 96, 50257, 2048),
        Transformer("bloom-176b", 70, 14336, 112, 250880, 2048, positions="alibi", embedding_norm=True, dropout=False),
        _llama3("llama3-8b", 32, 4096, 32, 14336),
        _llama3("llama3-70b", 80, 8192, 64, 28672),
        _llama3("llama3-405b", 126, 16384, 128, 53248),
    )
}
"""The configurations of published models, by name."""


@door
def preset(name: str) -> Transformer:
    """The configuration of a published model, without regard to case.

    >>> preset("llama3-405b").parameters
    405853388800
    """
    return chosen("preset", name, PRESETS, Transformer)
