"""Low-precision training recipes as frozen records: what each does to the three products of a linear layer.

They are the forward product x W^T, the data gradient dy W and the weight gradient dy^T x. Each operand of each product
is quantised along the dimension that this product sums over, from the tensor as it was, never from other codes.

>>> from fplab.nn import recipes
>>> recipe = recipes.nvfp4(disable_rht=True)
>>> recipe.weight_gradient.left.rounding, recipe.weight_gradient.left.hadamard
('stochastic', 0)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .. import formats
from ..errors import LabError, name_of, own_integer, quotes_call, quotes_class, summary, unknown
from ..formats import rounding
from ..scaled import SIGNS, Scheme, get_scheme
from .scopes import Scope, get_scope

PROMOTED = 128  # elements of K after which Hopper's split accumulator starts anew


@quotes_class
@dataclass(frozen=True)
class Operand:
    """How one operand of a product is quantised, along the product's K.

    ``scheme``: of :data:`fplab.scaled.SCHEMES`, or a record: format, block, scale and its rule. ``rounding``: of its
    elements. ``hadamard``: the size of blocks that are transformed before (:func:`fplab.scaled.hadamard`), 0 for none,
    with ``signs``; a ragged end is filled with zeros.
    """

    scheme: Scheme | str
    rounding: str = "rne"
    hadamard: int = 0
    signs: tuple[int, ...] = SIGNS

    def __post_init__(self) -> None:
        object.__setattr__(self, "scheme", get_scheme(self.scheme))
        object.__setattr__(self, "rounding", rounding(self.rounding).value)
        own_integer(self, "hadamard", 0, 1 << 15)

    @property
    def record(self) -> Scheme:
        """The scheme as a record."""
        return get_scheme(self.scheme)


@quotes_class
@dataclass(frozen=True)
class Product:
    """One product: its operands, and after how many elements of K the unit's sum is promoted to FP32 registers.

    ``left``: x in the forward product, dy in both others. ``right``: W, W, and x in the weight gradient. ``promote``:
    None sums in the unit ("fast accumulation"); a number starts again from zero after so many where the unit cuts its
    sums short (Ada, Hopper). Scales of blocks that are FP32 are applied outside of the unit, at the end of each block.
    """

    left: Operand
    right: Operand
    promote: int | None = None

    def __post_init__(self) -> None:
        if self.promote is not None:
            own_integer(self, "promote", 1, 1 << 30)
        outside = [o.record for o in (self.left, self.right) if o.record.kind == "fp32"]
        blocks = [s for s in outside if not isinstance(s.block, str)]
        one = {s.kind for s in (self.left.record, self.right.record)}
        if len(one) > 1 or len(blocks) not in (0, 2) or len({s.block[1] for s in blocks}) > 1:
            raise LabError(
                f"{self.left.record.name} and {self.right.record.name} have scales of different kinds or blocks; "
                "no unit multiplies them."
            )
        if self.left.hadamard != self.right.hadamard or (self.left.hadamard and self.left.signs != self.right.signs):
            raise LabError("a Hadamard transform of one operand alone changes the product; give both the same.")


@quotes_class
@dataclass(frozen=True)
class Recipe:
    """What a training recipe does to each product of a linear layer; None leaves a product in high precision.

    ``activations``: products without a weight, as attention's two; None leaves them high. ``high``: the format of FP32
    operands in what stays high (tensors of 16 bits take their own unit). ``scope``: which layers take part, a name of
    :data:`fplab.nn.scopes.SCOPES` or a :class:`~fplab.nn.scopes.Scope`; "all" is every product. ``keep``,
    ``keep_types``: further layers that stay high, with all inside them, by names or patterns and by type;
    ``keep_last``: the last share of the layers that have weights to multiply by, rounded: 0.15 of three is none.
    ``output``: a format that results are rounded to; None is their dtype. ``requantize``: whether each product
    quantises anew what is kept in 16 bits, as torchao does; else codes are kept from the forward pass on. Results are
    the same, the bytes that :mod:`fplab.memory` counts are not.

    ``amax_history_len``: 0 scales whole tensors by their own largest magnitude; else by that of so many earlier steps
    ("delayed"), by ``amax_compute_algo``, "max" or "most_recent", times 2**``margin``. The amax of a role without
    history is the format's largest value, a scale of 1. ``reduce_amax``: the largest over all ranks, where
    torch.distributed runs. ``seed``: of stochastic rounding, whose words depend on it, the step and the product alone.
    """

    name: str
    forward: Product | None = None
    data_gradient: Product | None = None
    weight_gradient: Product | None = None
    activations: Product | None = None
    high: str = "bf16"
    scope: Scope | str = "transformer_engine"
    keep: tuple[str, ...] = ()
    keep_types: tuple[type, ...] = ()
    keep_last: float = 0.0
    output: str | None = None
    requantize: bool = False
    amax_history_len: int = 0
    amax_compute_algo: str = "max"
    margin: int = 0
    reduce_amax: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        own_integer(self, "amax_history_len", 0, 1 << 20)
        own_integer(self, "margin", -126, 126)
        own_integer(self, "seed", 0, 2**64 - 1)
        if not isinstance(self.keep, tuple):
            raise LabError(f"keep={self.keep!r} is no tuple of names or patterns, such as ('lm_head',).")
        if not (isinstance(self.keep_types, tuple) and all(isinstance(kind, type) for kind in self.keep_types)):
            raise LabError(f"keep_types={summary(self.keep_types)} is no tuple of classes, such as (nn.Embedding,).")
        if not 0 <= self.keep_last <= 1:
            raise LabError(f"keep_last={self.keep_last!r} is not possible; allowed: a share from 0 to 1.")
        object.__setattr__(self, "keep_last", float(self.keep_last))
        if self.amax_compute_algo not in ("max", "most_recent"):
            raise unknown("amax_compute_algo", self.amax_compute_algo, ["max", "most_recent"])
        object.__setattr__(self, "high", formats.get(self.high).name)
        object.__setattr__(self, "scope", get_scope(self.scope))
        if self.output is not None:
            object.__setattr__(self, "output", formats.get(self.output).name)

    @property
    def scope_record(self) -> Scope:
        """The scope as a record."""
        return get_scope(self.scope)

    @property
    def block(self) -> int:
        """The most elements of K that share a scale which the unit takes; 1 where it takes none."""
        schemes = [side.record for product in self.products() for side in (product.left, product.right)]
        return max((int(scheme.block[1]) for scheme in schemes if scheme.kind != "fp32"), default=1)

    def products(self) -> tuple[Product, ...]:
        """Those of the four that are quantised."""
        four = self.forward, self.data_gradient, self.weight_gradient, self.activations
        return tuple(product for product in four if product is not None)

    def __str__(self) -> str:
        return self.name


def _finished(recipe: Recipe, attention: bool, fields: dict[str, Any]) -> Recipe:
    """With attention's products as the forward product's left operand is, and fields replaced."""
    if attention and recipe.forward:
        side = recipe.forward.left
        recipe = replace(recipe, activations=Product(side, side, recipe.forward.promote))
    return replace(recipe, **fields) if fields else recipe


def _of_format(fp8_format: str, e4m3: str, e5m2: str) -> tuple[str, str]:
    """The schemes of the forward pass and of gradients by Transformer Engine's name of a format."""
    table = {"e4m3": (e4m3, e4m3), "hybrid": (e4m3, e5m2), "e5m2": (e5m2, e5m2)}
    given = fp8_format.lower() if isinstance(fp8_format, str) else fp8_format
    if given not in table:
        raise unknown("fp8_format", fp8_format, table)
    return table[given]


@quotes_call
def mxfp8(*, fp8_format: str = "e4m3", rule: str = "rceil", attention: bool = False, **fields: Any) -> Recipe:
    """MXFP8: blocks of 32 along K with power-of-two scales, in the unit (Transformer Engine's MXFP8BlockScaling).

    ``fp8_format``: "e4m3", or "hybrid" for E5M2 gradients. ``rule``: of the scales, see :data:`fplab.scaled.RULES`.
    ``attention``: its products, too. ``fields``: other fields of the :class:`Recipe`.
    """
    names = _of_format(fp8_format, "mxfp8_e4m3", "mxfp8_e5m2")
    ahead, back = (Operand(get_scheme(name, rule=rule, variant="te")) for name in names)
    recipe = Recipe("mxfp8", Product(ahead, ahead), Product(back, ahead), Product(back, ahead))
    return _finished(recipe, attention, fields)


@quotes_call
def nvfp4(
    *, disable_rht: bool = False, disable_stochastic_rounding: bool = False, disable_2d_quantization: bool = False,
    four_over_six: str = "none", variant: str = "te", attention: bool = False, **fields: Any,
) -> Recipe:  # fmt: skip
    """NVFP4 as in arXiv 2509.25149 (Transformer Engine's NVFP4BlockScaling): four ingredients, each of which can go.

    Blocks of 16 and a scale of the tensor; weights in 16 x 16, so that both their uses have one value
    (``disable_2d_quantization``: along K alone); gradients rounded stochastically; the weight gradient after a random
    Hadamard transform; the first 2/62 of the blocks and the last 8/62, rounded (of six one), in BF16: the ``scope``.
    ``four_over_six``: "none", "weights", "activations" (gradients are none) or "all": blocks choose between two scales.
    ``variant``: "te" or "torchao".
    """
    choices = ("none", "weights", "activations", "all")
    if four_over_six not in choices:
        raise unknown("four_over_six", four_over_six, choices)
    plain = get_scheme("nvfp4", variant=variant)
    chooses = {side: four_over_six in (side, "all") for side in ("weights", "activations")}
    x, w = (replace(plain, rule="4over6") if chooses[side] else plain for side in ("activations", "weights"))
    w = w if disable_2d_quantization else replace(w, block=(16, 16))
    size, noisy = 0 if disable_rht else 16, "rne" if disable_stochastic_rounding else "stochastic"
    weights = Operand(w)
    recipe = Recipe(
        "nvfp4", Product(Operand(x), weights), Product(Operand(plain, noisy), weights),
        Product(Operand(plain, noisy, size), Operand(x, hadamard=size)), scope="nvfp4_paper",
    )  # fmt: skip
    return _finished(recipe, attention, fields)


def _per_tensor(name: str, fp8_format: str, rule: str) -> Recipe:
    """Whole tensors with a scale each; forward fast, backward promoted."""
    names = _of_format(fp8_format, "fp8_tensor", "fp8_tensor_e5m2")
    ahead, back = (Operand(get_scheme(given, rule=rule)) for given in names)
    backward = Product(back, ahead, PROMOTED)
    return Recipe(name, Product(ahead, ahead), backward, backward)


@quotes_call
def fp8_delayed(
    *, margin: int = 0, fp8_format: str = "hybrid", amax_history_len: int = 1024, amax_compute_algo: str = "max",
    power_2_scale: bool = False, reduce_amax: bool = True, attention: bool = False, **fields: Any,
) -> Recipe:  # fmt: skip
    """FP8 with a scale for each tensor from the amax of earlier steps (Transformer Engine's DelayedScaling)."""
    recipe = replace(
        _per_tensor("fp8_delayed", fp8_format, "pow2" if power_2_scale else "divide"), margin=margin,
        amax_history_len=amax_history_len, amax_compute_algo=amax_compute_algo, reduce_amax=reduce_amax,
    )  # fmt: skip
    if not recipe.amax_history_len:
        raise LabError("amax_history_len=0 has no history; recipes.fp8_current() scales by the tensor itself.")
    return _finished(recipe, attention, fields)


@quotes_call
def fp8_current(
    *, fp8_format: str = "hybrid", power_2_scale: bool = False, attention: bool = False, **fields: Any
) -> Recipe:
    """FP8 with a scale for each tensor from its own amax (Transformer Engine's Float8CurrentScaling)."""
    recipe = _per_tensor("fp8_current", fp8_format, "pow2" if power_2_scale else "divide")
    return _finished(recipe, attention, fields)


@quotes_call
def fp8_rowwise(*, gw_hp: bool = False, power_2_scale: bool = True, attention: bool = False, **fields: Any) -> Recipe:
    """FP8 with a scale for each row of the left operand and each column of the right (torchao's "rowwise").

    ``gw_hp``: torchao's "rowwise_with_gw_hp": the weight gradient stays high, and W has one scale for dx.
    """
    rule = "pow2" if power_2_scale else "divide"
    row, whole = (Operand(get_scheme(name, rule=rule, variant="torchao")) for name in ("fp8_row", "fp8_tensor"))
    backward = Product(row, row, PROMOTED)
    recipe = Recipe("fp8_rowwise", Product(row, row), backward, backward, scope="torchao", requantize=True)
    if gw_hp:
        recipe = replace(recipe, data_gradient=Product(row, whole, PROMOTED), weight_gradient=None)
    return _finished(recipe, attention, fields)


@quotes_call
def fp8_block(
    *, fp8_format: str = "e4m3", x_block_scaling_dim: int = 1, w_block_scaling_dim: int = 2,
    grad_block_scaling_dim: int = 1, power_2_scale: bool = True, variant: str = "te", attention: bool = False,
    **fields: Any,
) -> Recipe:  # fmt: skip
    """FP8 with FP32 scales of 1 x 128 for x and dy, of 128 x 128 for W, promoted at each (DeepSeek-V3, DeepGEMM).

    Parameters as in Transformer Engine's Float8BlockScaling, of which ``*_block_scaling_dim`` 1 is 1 x 128 and 2 is
    128 x 128; ``power_2_scale=False`` and ``variant="deepgemm"`` are DeepSeek's own scales.
    """
    plain = get_scheme("fp8_block", rule="pow2" if power_2_scale else "divide", variant=variant)
    ahead, back = _of_format(fp8_format, "e4m3", "e5m2")
    dims = {"x": x_block_scaling_dim, "w": w_block_scaling_dim, "grad": grad_block_scaling_dim}
    for name, dim in dims.items():
        if dim not in (1, 2):
            raise LabError(f"{name}_block_scaling_dim={summary(dim)} is not possible; allowed: 1, 2.")
    x, w, grad = (
        Operand(replace(plain, block=((1, 128), (128, 128))[dim - 1], element=formats.get(element)))
        for dim, element in zip(dims.values(), (ahead, ahead, back), strict=True)
    )
    recipe = Recipe("fp8_block", Product(x, w), Product(grad, w), Product(grad, x), scope="deepseek_v3")
    return _finished(recipe, attention, fields)


@quotes_call
def bf16(**fields: Any) -> Recipe:
    """Every product in the BF16 unit."""
    return replace(Recipe("bf16"), **fields)


RECIPES: dict[str, Callable[..., Recipe]] = {
    make.__name__: make for make in (mxfp8, nvfp4, fp8_delayed, fp8_current, fp8_rowwise, fp8_block, bf16)
}
"""What makes each recipe, by its name: what is put here is known to emulations, training and the memory calculator."""


def get_recipe(recipe: str | Recipe) -> Recipe:
    """The recipe of a name, as its constructor makes it; a record is given back."""
    return recipe if isinstance(recipe, Recipe) else RECIPES[name_of("recipe", recipe, RECIPES)]()
