"""Matrix units in software, NVIDIA's Tensor Cores and AMD's Matrix Cores: products by records of GPUs.

>>> from fplab import tensorcore
>>> model = tensorcore.get("A100", "fp16")
>>> model.length, model.alignment_bits
(8, 24)

The names below load when first used: the records (:mod:`.models`) import where numba is missing.
"""

from typing import TYPE_CHECKING

from ..lazily import index
from .models import GPUS, INPUTS, INSTRUCTIONS, TABLE, Model, classes, get
from .plan import Plan, PlanByRows
from .questions import QUESTIONS

__all__ = [
    "GPUS", "INPUTS", "INSTRUCTIONS", "QUESTIONS", "TABLE", "Inference", "Model", "ParametricUnit", "Plan",
    "PlanByRows", "attention", "classes", "dot", "explore", "get", "infer", "matmul", "separate", "trace",
]  # fmt: skip

if TYPE_CHECKING:
    from .exploration import explore
    from .inference import Inference, infer
    from .online_softmax import attention
    from .parametric import ParametricUnit
    from .products import dot, matmul
    from .separation import separate
    from .tracing import trace

index(__name__)
