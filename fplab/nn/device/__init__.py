"""The lab's arithmetic where tensors are: rounding and products of CUDA tensors in the bits of another GPU's units.

The same C++ is compiled for the CPU, where every bit is held against the lab's other two ways to compute it. No record
of a GPU that has run it is here yet.
"""

from typing import TYPE_CHECKING

from ...lazily import index

__all__ = ["ScaledTensor", "matmul", "quantize", "quantize_scaled"]

if TYPE_CHECKING:
    from .products import matmul
    from .rounding import quantize
    from .scaling import ScaledTensor, quantize_scaled

index(__name__)
