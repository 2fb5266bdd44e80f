"""What a layer saves for its backward pass, term by term.

Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models (arXiv 2205.05198), section 4,
written as a list of terms instead of a formula, so that models with fewer key heads, gated MLPs, no dropout or an
attention that stores no matrices follow from the same list. For the paper's layer, in 16 bits, the terms add up to
``s b h (34 + 5 a s / h)``.

Not counted, as in the paper: statistics of the norms, token indices, and what an implementation keeps beyond need
(copies in another layout, FP32 casts); :mod:`fplab.memory.tracing` counts those, and :mod:`fplab.memory.library` says
them for two modules of the transformers library.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from ..errors import one_of
from .models import Transformer
from .units import divided_up

RECOMPUTE = ("none", "selective", "full")
GATED = ("SiLU input", "SiLU output", "up output")  # what a gated MLP keeps beside its input


@dataclass(frozen=True)
class Term:
    """A saved tensor. ``tensor``: divided by tensor parallelism; otherwise by sequence parallelism, where that is on.

    ``core``: inside the attention that selective recomputation recomputes (between Q, K, V and the projection).
    """

    name: str
    elements: int
    width: int | Fraction  # bytes of one element
    tensor: bool = False
    core: bool = False

    def bytes(self, tensor: int = 1, sequence_parallel: bool = False) -> int:
        """Bytes on one of ``tensor`` tensor-parallel ranks."""
        parts = tensor if self.tensor or sequence_parallel else 1
        return math.ceil(divided_up(self.elements, parts) * self.width)


def layer_terms(
    c: Transformer, batch: int, sequence: int, width: int = 2, operands: int | Fraction = 0
) -> tuple[Term, ...]:
    """The terms of one layer; ``batch`` sequences, ``width`` bytes an activation. The first is the layer's input.

    ``operands``: bytes of an input of a linear layer, where that is saved in a narrower format (0: it is not). What
    FlashAttention gave is then saved twice: its backward pass takes it as it was.
    """
    tokens, product = batch * sequence, operands or width
    h, kv, f = tokens * c.hidden, tokens * c.kv_width, tokens * c.width
    return (
        Term("norm 1 input", h, width),
        Term("Q, K, V input", h, product),
        Term("queries", h, width, tensor=True),
        Term("keys", kv, width, tensor=True),
        Term("values", kv, width, tensor=True),
        *_attention_core(c, batch, sequence, width),
        *((Term("attention output", h, width, tensor=True, core=True),) if c.flash and product < width else ()),
        Term("projection input", h, product, tensor=True),
        *((Term("dropout mask 1", h, 1),) if c.dropout else ()),
        Term("norm 2 input", h, width),
        Term("MLP input", h, product),
        *(Term(name, f, width, tensor=True) for name in (GATED if c.gated else ("GELU input",))),
        Term("down input", f, product, tensor=True),
        *((Term("dropout mask 2", h, 1),) if c.dropout else ()),
    )


def _attention_core(c: Transformer, batch: int, sequence: int, width: int) -> tuple[Term, ...]:
    """The s-by-s matrices of all heads, or the one number a row that FlashAttention keeps of them."""
    if c.flash:
        return (Term("log-sum-exp", batch * c.heads * sequence, 4, tensor=True, core=True),)
    scores = batch * c.heads * sequence * sequence
    softmax = Term("softmax output", scores, width, tensor=True, core=True)
    if not c.dropout:
        return (softmax,)
    return (
        softmax,
        Term("softmax dropout mask", scores, 1, tensor=True, core=True),
        Term("softmax dropout output", scores, width, tensor=True, core=True),
    )


def embedding_terms(c: Transformer, batch: int, sequence: int, width: int = 2) -> tuple[Term, ...]:
    """What the first stage saves before its first layer."""
    h = batch * sequence * c.hidden
    return (
        *((Term("embedding norm input", h, width),) if c.embedding_norm else ()),
        *((Term("embedding dropout mask", h, 1),) if c.dropout else ()),
    )


def head_terms(c: Transformer, batch: int, sequence: int, width: int = 2) -> tuple[Term, ...]:
    """What the last stage saves behind its last layer; logits in FP32, for the loss."""
    tokens = batch * sequence
    return (
        Term("last norm input", tokens * c.hidden, width),
        Term("output input", tokens * c.hidden, width),
        Term("logits", tokens * c.vocabulary, 4, tensor=True),
    )


def kept(terms: Iterable[Term], recompute: str = "none") -> tuple[Term, ...]:
    """The terms of a layer that are still saved: all, all but the attention's core, or the layer's input alone."""
    terms = tuple(terms)
    one_of("recomputation", recompute, RECOMPUTE)
    if recompute == "full":
        return terms[:1]
    return tuple(t for t in terms if not (t.core and recompute == "selective"))


def total(terms: Iterable[Term], tensor: int = 1, sequence_parallel: bool = False) -> int:
    """Bytes of all terms on one rank."""
    return sum(t.bytes(tensor, sequence_parallel) for t in terms)


def formula(
    s: int, b: int, h: int, a: int, t: int = 1, sequence_parallel: bool = False, recompute: str = "none"
) -> Fraction:
    """Bytes of a layer as the paper prints them (equations 1, 2 and 4, and Table 2), exact.

    >>> formula(2048, 1, 12288, 96) / (2048 * 12288)
    Fraction(114, 1)
    """
    if recompute == "full":
        return Fraction(2 * s * b * h, t if sequence_parallel else 1)
    core = Fraction(5 * a * s, h * t) if recompute == "none" else 0
    rest = Fraction(34, t) if sequence_parallel else 10 + Fraction(24, t)
    return s * b * h * (rest + core)
