"""SGD, Adam and AdamW whose weights, states and every operation are in any format.

::

    AdamW(model.parameters(), lr=1e-3, weights="bf16", states="bf16", update="stochastic", seed=1)

``update`` says how an update reaches a weight: by rounding to "nearest", by "stochastic" rounding (Gupta et al. 2015),
with "kahan" compensation (Zamirai et al. 2020), or through an FP32 "master" copy (Micikevicius et al. 2018).

``programs``: what each optimizer computes, as data; ``precision``: in which formats; ``arithmetic``: one operation;
``base``: what 8-bit optimizers share with these; ``options``: what an optimizer may be given. The programs need no
torch, which is imported when one of the others is asked for.
"""

from typing import TYPE_CHECKING

from ...lazily import index
from .programs import RULES, Program, Rule, Step, written

if TYPE_CHECKING:
    from .base import LabOptimizer
    from .optimizer import SGD, Adam, AdamW, FormatOptimizer
    from .precision import Precision

__all__ = [
    "RULES", "SGD", "Adam", "AdamW", "FormatOptimizer", "LabOptimizer", "Precision", "Program", "Rule", "Step",
    "written",
]  # fmt: skip

index(__name__)
