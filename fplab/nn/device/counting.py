"""What watching asks of a tensor's values, counted on the device where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...errors import LabError
from . import running

Array = np.ndarray[Any, Any]
SHARED = 48 << 10  # bytes that a block of threads shares on every GPU
RUN = 64  # elements of a thread at least, which at last adds to what all share
MOST = (1 << 31) - 1


class DeviceBits:
    """The float32 bits of a tensor, in its order, which stay on its device.

    ``values``: of a dtype that float32 holds. Raises LabError for others, and for more than 2**31 - 1 elements.
    """

    def __init__(self, values: torch.Tensor) -> None:
        if not values.is_floating_point() or values.dtype == torch.float64 or values.numel() > MOST:
            raise LabError(f"values must be at most {MOST:,} of float32 or fewer bits, not {values.dtype}.")
        self._values = values.detach().float().contiguous().view(-1)
        self.size = values.numel()

    def __getitem__(self, places: Array) -> Array:
        """Some of the bits, uint32, on the CPU."""
        chosen = self._values[torch.from_numpy(places).to(self._values.device)]
        return chosen.cpu().numpy().view(np.uint32)

    def scan(self) -> tuple[int, int, int]:
        """:func:`fplab.kernels.histogram.scan`: the largest magnitude's bits, and two digests."""
        out = torch.zeros(3, dtype=torch.int32, device=self._values.device)
        self._run("scan", 1, out)
        largest, one, two = (int(x) for x in out.cpu().numpy().view(np.uint32))
        return largest, one, two

    def counts(self, cuts: Array) -> Array:
        """:func:`fplab.kernels.histogram.count`: int64 (rows, places), by binade and by the ``cuts`` reached, uint32.

        Raises LabError for more cuts than a block of threads has memory for.
        """
        from ...kernels.histogram import ROWS

        cells = ROWS * (len(cuts) + 1)
        if 4 * cells > SHARED:
            raise LabError(f"{len(cuts)} cuts are too many for a GPU; at most {SHARED // 4 // ROWS - 1} are possible.")
        device = self._values.device
        table = torch.zeros(cells, dtype=torch.int32, device=device)
        self._run("count", len(cuts), torch.from_numpy(cuts.view(np.int32)).to(device), table)
        return table.cpu().numpy().view(np.uint32).astype(np.int64).reshape(ROWS, -1)

    def all(self) -> Array:
        """All of the bits, uint32, on the CPU."""
        return self._values.cpu().numpy().view(np.uint32)

    def _run(self, entry: str, cuts: int, *arguments: torch.Tensor) -> None:
        kernel = running.kernel(entry, ("counts.h",), {"CUTS": cuts})
        running.run(kernel, str(self._values.device), -(-self.size // RUN), self._values, *arguments, self.size)


def fetched(bits: Array | DeviceBits) -> Array:
    """Bits on the CPU, wherever they are."""
    return bits if isinstance(bits, np.ndarray) else bits.all()
