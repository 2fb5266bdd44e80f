"""Which products of a model a recipe quantises, as its source does: scopes as frozen records.

And the names by which other people's models are read: of classes that are linear layers, of output heads, routers and
embeddings, each with the library that calls them so.

>>> SCOPES["torchao"].modules, SCOPES["torchao"].multiple
(('Linear',), 16)
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from ..errors import LabError, name_of, own_integer, quotes_class, unknown

OUTPUT_HEAD, ROUTER, EMBEDDING = PARTS = "output head", "router", "embedding"


@quotes_class
@dataclass(frozen=True)
class Scope:
    """Which layers' products a recipe quantises; the others stay high, and the emulation's report says why.

    ``source``: where it is written. ``modules``: the classes whose products take part, by name or pattern, those that
    inherit from them included; empty: all, and products outside of modules. Which layer multiplies decides, so that
    convolutions and recurrent layers take part only where their classes do. ``out``: of :data:`PARTS`, those that stay
    high. ``multiple``: both dimensions of a weight must be multiples of it, and of the recipe's blocks where the unit
    takes their scales; 0: a ragged end is filled with zeros. ``first``, ``last``: the share of the model's blocks that
    stay high at either end, rounded to the nearest; of a model without blocks, of its layers that take part.

    Products without a weight, as attention's two, are not the scope's: see ``activations`` of a
    :class:`~fplab.nn.recipes.Recipe`.
    """

    name: str
    source: str = ""
    modules: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    multiple: int = 0
    first: Fraction = Fraction(0)
    last: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        own_integer(self, "multiple", 0, 1 << 20)
        if not isinstance(self.modules, tuple):
            raise LabError(f"modules={self.modules!r} is no tuple of names of classes, such as ('Linear',).")
        for part in self.out:
            if part not in PARTS:
                raise unknown("part of a model", part, PARTS)
        for name in ("first", "last"):
            if not 0 <= getattr(self, name) <= 1:
                raise LabError(f"{name}={getattr(self, name)!r} is not possible; allowed: a share from 0 to 1.")

    def __str__(self) -> str:
        return self.name


LINEAR = (
    "Linear", "MultiheadAttention",  # torch
    "Conv1D", "*Experts",  # transformers: GPT-2's linear layer; matrices of experts
)  # fmt: skip
BLOCKS = 62  # of the 12B model of arXiv 2509.25149, six of attention, the others FFN or Mamba-2
SCOPES: dict[str, Scope] = {
    item.name: item
    for item in (
        Scope("all"),
        Scope(
            "transformer_engine",
            "Transformer Engine: its own modules (Linear, LayerNormLinear, LayerNormMLP, GroupedLinear) and nothing "
            "else; its te_llama example leaves the embedding and lm_head to torch, Megatron-Core its output layer and "
            "routers; autocast: both dimensions of a tensor divisible by 16, in MXFP8 by 32",
            LINEAR, PARTS, 16,
        ),
        Scope(
            "torchao",
            "torchao: convert_to_float8_training swaps torch.nn.Linear; the filter of its example leaves out the last "
            "module and dimensions that 16 does not divide, torchtitan's filter_fqns output and router.gate",
            ("Linear",), (OUTPUT_HEAD, ROUTER), 16,
        ),
        Scope(
            "deepseek_v3",
            "DeepSeek-V3, arXiv 2412.19437, section 3.3.1: embedding, output head, MoE gating, normalisation and "
            "attention operators keep BF16 or FP32",
            LINEAR, PARTS,
        ),
        Scope(
            "nvfp4_paper",
            "arXiv 2509.25149, section 4.1: embedding, output head, normalisation and attention's products keep their "
            "precision; of the 12B model's 62 blocks the first two and the last eight, 16% of the linear layers, BF16",
            LINEAR, PARTS, 16, Fraction(2, BLOCKS), Fraction(8, BLOCKS),
        ),
    )
}  # fmt: skip
"""The scopes of the recipes' sources, and all products, by name."""


def get_scope(scope: str | Scope) -> Scope:
    """The scope of a name; a record is given back."""
    return scope if isinstance(scope, Scope) else SCOPES[name_of("scope", scope, SCOPES)]


def matches(name: str, patterns: Iterable[str]) -> list[str]:
    """The patterns that a layer, or a module around it, matches."""
    parts = name.split(".")
    around = [".".join(parts[:i]) for i in range(len(parts), 0, -1)]
    return [pattern for pattern in patterns if any(fnmatch.fnmatchcase(n, pattern) for n in around)]


# --- what libraries call the parts ----------------------------------------------------------------------------------
# The last names of a layer's path: "lm_head", "router.gate".

HEAD_METHODS = {"transformers": "get_output_embeddings", "timm": "get_classifier"}  # of a model, which gives its head
HEADS = {
    "transformers": ("lm_head", "*_lm_head", "embed_out", "qa_outputs"),
    "Megatron-Core": ("output_layer",),
    "fairseq": ("output_projection",),
}
ROUTERS = {
    "transformers": ("router", "router_gate", "shared_expert_gate"),
    "torchtitan": ("router.gate",),
    "DeepSpeed, fairseq": ("gate.wg",),
}
ROUTER_CLASSES = {"transformers": ("*Router", "*TopKGating", "*MoEV1Gate"), "DeepSeek": ("MoEGate",),
                  "DeepSpeed": ("TopKGate",)}  # fmt: skip
EXPERTS = {"transformers, torchtitan, Megatron-Core": ("experts",)}  # beside which a router stands
EMBEDDINGS = {
    "transformers": ("patch_embed", "patch_embedding", "patch_embeddings", "vision_embed_tokens"),
    "timm": ("patch_embed",),
    "torchvision": ("conv_proj",),
}
EMBEDDING_CLASSES = {"transformers, timm": ("*PatchEmbed", "*PatchEmbedding", "*PatchEmbeddings", "*PatchEmbedder",
                                            "*VisionEmbeddings")}  # fmt: skip
