"""torch and the bits: any torch model in a GPU's products, in emulated formats, and under watch.

The names below load when first used, and torch with them.
"""

from typing import TYPE_CHECKING

from ..lazily import index

__all__ = [
    "FakeQuantize", "Int4Linear", "Int8Linear", "LearnedStep", "Quantization", "Recipe", "Way", "autocast",
    "capture", "conversion", "emulate", "explain", "fake_quantize", "fake_quantized", "formats", "int4_linears",
    "int8_linears", "observe", "quantize", "rollout_gap", "shadow", "survey", "watch",
]  # fmt: skip

if TYPE_CHECKING:
    from .converting import conversion
    from .cuda_autocast import autocast
    from .diagnose.dumps import capture
    from .diagnose.explain import explain
    from .diagnose.hybrids import Way
    from .diagnose.rollout import rollout_gap
    from .diagnose.shadow import shadow
    from .diagnose.survey import survey
    from .diagnose.watch import watch
    from .emulation import emulate
    from .fake_quantization import FakeQuantize, LearnedStep, fake_quantize
    from .int8_layers import Int4Linear, Int8Linear, int4_linears, int8_linears
    from .quantized_model import Quantization, fake_quantized, observe
    from .recipes import Recipe
    from .storage_formats import formats
    from .straight_through import quantize

index(__name__)
