"""The order in which gloo adds, found by probing it, and the same sums to the bit.

Found with torch 2.13 on 2, 3, 4, 5 and 8 processes in FP32, FP16 and BF16, by sums of one M, one -M and ones (see
:mod:`fplab.reveal`), for ``all_reduce``, ``reduce`` and ``reduce_scatter_tensor`` alike: a ring against the order of
the ranks. The buffer is cut into as many chunks as there are ranks; the sum of chunk c begins at rank c - 1 and goes
down: ((x[c-1] + x[c-2]) + x[c-3]) + ... + x[c]. Every addition is in the format of the tensor. So two ranks give
x[0] + x[1], which no order can change, and from three ranks on an element's bits depend on its place in the buffer.

A chunk is two segments, rounded up to whole elements (more of them where a segment would be larger than 1 MiB): the
first chunks are full and the last one is short, or empty. gloo has no FP8 ("Invalid scalar type").
"""

from typing import Any

import numpy as np

from .. import formats
from ..errors import LabError, integer, unknown
from ..memory.units import divided_up
from .collectives import added, numbers

Array = np.ndarray[Any, Any]
SEGMENT = 1 << 20  # bytes
WIDTHS = {"fp32": 4, "fp16": 2, "bf16": 2}


def chunks(elements: int, ranks: int, width: int = 4) -> Array:
    """The chunk of every element of a buffer, int64 (elements,); ``width``: bytes of an element.

    >>> chunks(9, 4).tolist()
    [0, 0, 0, 0, 1, 1, 1, 1, 2]
    """
    elements = integer("elements", elements, 0, 2**40)
    ranks = integer("ranks", ranks, 1, 2**20)
    segments = max(divided_up(elements * width, SEGMENT // width * width), 2 * ranks)
    segments = divided_up(segments, ranks) * ranks
    each = divided_up(divided_up(elements * width, segments), width) * (segments // ranks)
    return np.arange(elements) // max(each, 1)


def order(chunk: int, ranks: int) -> list[int]:
    """The ranks in the order in which a chunk's sum takes them.

    >>> order(0, 4), order(3, 4)
    ([3, 2, 1, 0], [2, 1, 0, 3])
    """
    ranks = integer("ranks", ranks, 1, 2**20)
    chunk = integer("chunk", chunk, 0, ranks - 1)
    return [_taken(chunk, hop, ranks) for hop in range(ranks)]


def _taken(chunk: Any, hop: int, ranks: int) -> Any:
    """The rank whose addend the sum of a chunk, or of each of several, takes after ``hop`` others."""
    return (chunk - 1 - hop) % ranks


def all_reduce(buffers: Array, fmt: str = "fp32") -> Array:
    """The sum that gloo leaves on every rank, float32 (elements,), of ``buffers`` (ranks, elements).

    Buffers are rounded to ``fmt`` first. Raises LabError for a format that gloo lacks, and for other shapes.
    """
    name = formats.get(fmt).name
    if name not in WIDTHS:
        raise unknown("format of gloo", fmt, WIDTHS)
    values = numbers(buffers)
    if values.ndim != 2:
        raise LabError(f"buffers have shape {values.shape}; allowed: a row for each rank.")
    ranks, elements = values.shape
    ranks = integer("ranks", ranks, 1, 2**20)
    if name != "fp32":
        from ..floats import quantize

        values = np.asarray(quantize(values, name), np.float32)
    at, column = chunks(elements, ranks, WIDTHS[name]), np.arange(elements)
    total = values[_taken(at, 0, ranks), column]
    for hop in range(1, ranks):
        own = values[_taken(at, hop, ranks), column]
        with np.errstate(over="ignore", invalid="ignore"):
            total = total + own if name == "fp32" else added(total, own, name)
    return np.asarray(total, np.float32)
