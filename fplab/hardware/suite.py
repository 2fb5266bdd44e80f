"""What is recorded of hardware besides the experiments' cases, in parts, each a record of its own.

======================  =============================================================================================
``elementwise``         arithmetic, contraction, functions, casts from FP64, optimizers through torch
``reductions``          sums, softmax and norms through torch
``products``            matrix products and convolutions through torch at many shapes and flags; times of products
``orders``              the summation order of each, by masked ones
``scalar``              instructions on single numbers: conversions, multiply-adds, approximations
``mma``, ``wgmma``      the Tensor Core instructions on chosen operands
``device``              the kernels of ``fplab.nn.device``: the lab's own arithmetic on that GPU
======================  =============================================================================================

The parts that launch kernels of our own come last: should one break the CUDA context, the others are already written.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import unknown
from . import device_cases, elementwise, instruction_cases, order, products, reductions, timing
from .cases import Arrays, Case

_PARTS: dict[str, Callable[[], tuple[Case, ...]]] = {
    "elementwise": elementwise.cases,
    "reductions": reductions.cases,
    "products": products.cases,
    "orders": order.cases,
    "scalar": instruction_cases.scalar_cases,
    "mma": partial(instruction_cases.matrix_cases, "mma"),
    "wgmma": partial(instruction_cases.matrix_cases, "wgmma"),
    "device": device_cases.cases,
}
NAMES: tuple[str, ...] = tuple(_PARTS)
PROFILED = ("elementwise", "reductions", "products", "orders")  # the names of whose kernels are recorded
GENERATOR = "numpy Philox4x64-10, random_raw; a key a case, written in fplab/hardware"


def cases(name: str) -> tuple[Case, ...]:
    if name not in _PARTS:
        raise unknown("part of the hardware suite", name, NAMES)
    return _PARTS[name]()


def measurements(name: str, device: str) -> dict[str, Any]:
    """What a part's record has besides bits: times of products."""
    return {"times": timing.measure(device)} if name == "products" else {}


def shortened(name: str, inputs: Arrays) -> Arrays:
    """Inputs with which a case runs the same kernels in a short time: of a summation order the first pair alone."""
    return {key: array[:1] for key, array in inputs.items()} if name == "orders" else dict(inputs)
