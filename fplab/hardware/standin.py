"""A CPU in the place of a GPU: it does in software what a kernel would do with the memory of its arguments.

So the whole recorder runs where there is no GPU, and what it records compares equal to the models, as it must: the
stand-in is made of them. It shows that every line works, and nothing about hardware.
"""

from functools import cache
from typing import Any

import numpy as np

from ..errors import LabError
from . import scalars, software
from .cases import NotHereError
from .cuda import Gpu
from .instructions import SCALARS, TABLE, Arguments, Capability, Instruction, Kernel, Launcher, Scalar
from .tiles import CODES, Codes

GPU = "H100"  # the model that stands in


class StandIn:
    """A launcher for torch tensors in the CPU's memory."""

    capability: Capability = (9, 0)

    def launch(self, kernel: Kernel, grid: int, block: int, arguments: Arguments) -> None:
        """Compute what the kernel computes, into the tensor that it writes to."""
        matrix = {instruction.kernel.name: instruction for instruction in TABLE}
        scalar = {instruction.kernel.name: instruction for instruction in SCALARS}
        if kernel.name in matrix:
            _tiles(matrix[kernel.name], grid, *arguments)
        elif kernel.name in scalar:
            _elements(scalar[kernel.name], *arguments)
        else:
            raise LabError(f"the stand-in knows no kernel {kernel.name!r}.")


def _tiles(instruction: Instruction, grid: int, a: Any, b: Any, c: Any, d: Any, steps: int) -> None:
    """The kernels ``tiles``: every element of every tile is a dot row."""
    k = steps * instruction.k
    x = a.numpy().view(CODES[instruction.a]).reshape(grid, instruction.m, 1, k)
    y = b.numpy().view(CODES[instruction.b]).reshape(grid, 1, instruction.n, k)
    shape = (grid, instruction.m, instruction.n, k)
    left, right = (np.broadcast_to(v, shape).reshape(-1, k) for v in (x, y))
    out = d.numpy().view(CODES[instruction.output])
    out[...] = software.dot(
        instruction, left, right, c.numpy().view(CODES[instruction.output]).reshape(-1), GPU
    ).reshape(out.shape)


def _elements(scalar: Scalar, a: Any, b: Any, c: Any, y: Any, n: int) -> None:
    given: list[Codes] = [t.numpy().view(scalar.source)[:n] for t in (a, b, c)[: scalar.operands]]
    result = scalars.emulate(scalar, given)
    y.numpy().view(scalar.result)[:n] = scalars.correctly_rounded(scalar, given) if result is None else result


@cache
def launcher(device: str) -> Launcher:
    """What runs kernels on a device: the GPU, or for "cpu" the stand-in."""
    if device == "mps":
        raise NotHereError("it is an instruction of CUDA's, and MPS has none.")
    if device == "cpu":
        return StandIn()
    return Gpu(device)
