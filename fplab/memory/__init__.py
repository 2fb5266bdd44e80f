"""The memory of a run: what fits, where, and at what precision. Exact integers, in bytes.

``estimate(model, ...)`` counts by kind and rank; the modules below it hold one idea each: ``models`` (parameter
tensors), ``recipes`` (precisions, optimizers), ``activations``, ``sharding``, ``pipeline``, ``communication``,
``inference``. With torch: ``modules``, ``networks``, ``tracing``, ``measuring``.
"""

from typing import TYPE_CHECKING

from ..lazily import index
from .calculator import Estimate, estimate, smallest
from .models import PRESETS, Model, Tensor, Transformer, preset
from .options import Options
from .ranks import Rank
from .recipes import OPTIMIZERS, PRECISIONS
from .units import gb, gib

if TYPE_CHECKING:
    from .measuring import Tracker
    from .networks import build
    from .tracing import Saved, saved_by, trace

__all__ = [
    "OPTIMIZERS", "PRECISIONS", "PRESETS", "Estimate", "Model", "Options", "Rank", "Saved", "Tensor",
    "Tracker", "Transformer", "build", "estimate", "gb", "gib", "preset", "saved_by", "smallest", "trace",
]  # fmt: skip

index(__name__)
