"""Records of precision and of optimizers: how many bytes each kind of model state takes.

A recipe is a row of numbers. The ZeRO paper's 16 bytes a parameter (arXiv 1910.02054, section 3.1) are ``mixed`` with
``adamw``: 2 of weights, 2 of gradients, 4 of FP32 master weights, 8 of moments.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from ..errors import LabError, chosen
from .units import divided_up

SMALL = 4096  # elements below which an 8-bit optimizer keeps a tensor's states in FP32 (bitsandbytes: min_8bit_size)


@dataclass(frozen=True)
class Precision:
    """Bytes of one element of each kind.

    ``weights``, ``gradients``: as the module holds them. ``master``: an FP32 copy of the weights that the optimizer
    updates. ``accumulated``: an FP32 copy of the gradients beside those of the backward pass. ``state``: one optimizer
    state. ``compute``: the weights while they multiply; where that is narrower than ``weights``, casts of them exist
    for a while. ``activations``: one saved value. ``operands``: one operand of the layers' products, a saved input or a
    cast of a weight, where those are narrower still (0: they are not).
    """

    name: str
    does: str
    weights: int
    gradients: int
    master: int
    accumulated: int
    state: int
    compute: int
    activations: int
    operands: int = 0


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("fp32", "everything in FP32", 4, 4, 0, 0, 4, 4, 4),
        Precision("mixed", "16-bit weights and gradients, FP32 master weights and states", 2, 2, 4, 0, 4, 2, 2),
        Precision("mixed+fp32grads", "mixed, and gradients accumulated in FP32", 2, 2, 4, 4, 4, 2, 2),
        Precision("amp", "FP32 weights and gradients, cast to 16 bits where they multiply", 4, 4, 0, 0, 4, 2, 2),
        Precision("bf16", "everything in BF16, no master weights", 2, 2, 0, 0, 2, 2, 2),
        Precision("fp8", "amp, with the operands of the layers' products in 8 bits", 4, 4, 0, 0, 4, 2, 2, 1),
    )
}
"""How weights, gradients and master weights are held, by name."""


@dataclass(frozen=True)
class Recipe:
    """What a low-precision recipe keeps of the operands of the layers' products, in bytes of an element.

    ``input``: what a layer saves for the gradient of its weights, codes and scales, quantised along the tokens in the
    forward pass. ``weights``: quantised copies of its weights, one along the K of each of their two products; 0: made
    anew for each product. ``last``: the share of the layers that stay in 16 bits, the last ones, in whole layers of the
    transformer. Scales of whole tensors and rows and their histories, some kB a layer, are left out.
    """

    name: str
    does: str
    input: Fraction
    weights: Fraction
    last: Fraction = Fraction(0)

    def high(self, layers: int) -> int:
        """How many of so many layers stay in 16 bits."""
        return round(self.last * layers)


_MXFP8, _BY_128, _SQUARE = 1 + Fraction(1, 32), 1 + Fraction(4, 128), 1 + Fraction(4, 128**2)
_NVFP4 = Fraction(1, 2) + Fraction(1, 16)
RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        Recipe("fp8_delayed", "FP8, a scale each tensor, of earlier steps", Fraction(1), Fraction(2)),
        Recipe("fp8_current", "FP8, a scale each tensor", Fraction(1), Fraction(2)),
        Recipe("fp8_rowwise", "FP8, a scale each row, from BF16 for each product (torchao)", Fraction(2), Fraction(0)),
        Recipe("fp8_block", "FP8, scales of 1 x 128, weights' of 128 x 128", _BY_128, 2 * _SQUARE),
        Recipe("mxfp8", "MXFP8, blocks of 32", _MXFP8, 2 * _MXFP8),
        Recipe("nvfp4", "NVFP4, blocks of 16; the last layers in BF16", _NVFP4, 2 * _NVFP4, Fraction(15, 100)),
    )
}
"""What Transformer Engine (rowwise: torchao) keeps under each recipe of :mod:`fplab.nn.recipes`, by name."""


def recipe(name: str | Recipe | None, how: str | Precision = "mixed") -> Recipe | None:
    """The recipe of a name; None without. Raises LabError for a precision whose layers do not multiply in 16 bits."""
    if name is None:
        return None
    found, p = chosen("recipe", name, RECIPES, Recipe), precision(how)
    if p.compute != 2 or p.operands:
        fits = ", ".join(p.name for p in PRECISIONS.values() if p.compute == 2 and not p.operands)
        raise LabError(f"recipe={found.name!r} quantises what else is 16 bits; precision={p.name!r}, allowed: {fits}.")
    return found


@dataclass(frozen=True)
class Optimizer:
    """``states``: how many state tensors of a weight's shape. ``bits``: 32 (as the precision says) or 8 (block-wise).

    ``counts``: whether torch's implementation also keeps a float32 step count of 4 bytes for every tensor.
    """

    name: str
    states: int
    bits: int = 32
    counts: bool = False


OPTIMIZERS: dict[str, Optimizer] = {
    o.name: o
    for o in (Optimizer("sgd", 0), Optimizer("momentum", 1), Optimizer("adam", 2, counts=True),
              Optimizer("adamw", 2, counts=True), Optimizer("momentum8bit", 1, 8), Optimizer("adamw8bit", 2, 8))
}  # fmt: skip
"""The states of each optimizer, by name."""


def precision(name: str | Precision) -> Precision:
    """The precision of a name.

    >>> precision("mixed").master
    4
    """
    return chosen("precision", name, PRECISIONS, Precision)


def optimizer(name: str | Optimizer) -> Optimizer:
    return chosen("optimizer", name, OPTIMIZERS, Optimizer)


def state_bytes(sizes: Iterable[tuple[int, int]], rule: Optimizer, width: int = 4, block: int = 256) -> int:
    """Bytes of the optimizer states of tensors. ``sizes``: (elements, how many such tensors).

    An 8-bit state (Dettmers et al., arXiv 2110.02861, section 2; blocks as bitsandbytes lays them out) is a code of
    one byte for each element and a float32 maximum for each block: for Adam ``2 n + 8 ceil(n / block)``. Tensors of
    fewer than 4,096 elements keep FP32 states, for Adam ``8 n``.

    >>> state_bytes([(2048, 1), (4096, 1)], OPTIMIZERS["adamw8bit"], block=2048)
    24592
    """
    total, wide = 0, 4 if rule.bits == 8 else width
    for n, many in sizes:
        total += many * rule.states * (n + 4 * divided_up(n, block) if rule.bits == 8 and n >= SMALL else n * wide)
    return total


def bytes_per_parameter(how: str | Precision, rule: str | Optimizer) -> int:
    """Model states per parameter where every state is as wide as the precision says (32-bit optimizers).

    >>> bytes_per_parameter("mixed", "adamw")
    16
    """
    p, o = precision(how), optimizer(rule)
    return p.weights + p.gradients + p.master + p.accumulated + o.states * p.state
