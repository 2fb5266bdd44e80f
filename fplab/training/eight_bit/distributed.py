"""8-bit states of a parameter that is spread over processes, as tensors that are spread alike.

So ``torch.distributed.checkpoint`` saves every process's part, and gives each the part that it needs when it loads. A
state has the parameter's shape and placements. Scales are those of one process, (blocks,), where every part is whole
rows in whole blocks: such a checkpoint loads on any number of processes that cuts it so, and on one. Elsewhere blocks
begin where a part does, and scales are a row for each part, (parts, blocks of the largest), which no other way of
cutting loads: its shape is another.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

from ...codebooks.blockwise import block_count
from ...nn import bits


def as_dtensor(p: Any, name: str, local: Tensor, block: int | None) -> Tensor:
    """A state or its scales, as this process holds them for ``p``, as a DTensor."""
    from torch.distributed.tensor import DTensor, Shard  # which takes a second, where nothing is spread

    if not name.startswith("absmax"):
        return DTensor.from_local(local, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())
    cuts = [(place, p.device_mesh.size(i)) for i, place in enumerate(p.placements) if place.is_shard()]
    parts, largest = prod(n for _, n in cuts), list(p.shape)
    for place, n in cuts:
        largest[place.dim] = -(-largest[place.dim] // n)
    by_rows = all(type(place) is Shard and place.dim == 0 for place, _ in cuts)
    if by_rows and p.shape[0] % parts == 0 and block and prod(largest) % block == 0:
        shape: tuple[int, ...] = (parts * local.numel(),)
    else:
        shape = (parts, block_count(prod(largest), block or max(prod(largest), 1)))
        local = torch.nn.functional.pad(local, (0, shape[1] - local.numel())).unsqueeze(0)
    places = [Shard(0) if place.is_shard() else place for place in p.placements]
    stride = (*shape[1:], 1)
    return DTensor.from_local(local, p.device_mesh, places, run_check=False, shape=torch.Size(shape), stride=stride)


def local_part(p: Tensor, name: str, tensor: Any, block: int | None) -> Any:
    """What this process holds of a state or its scales; a plain tensor is its own already."""
    if not hasattr(tensor, "to_local"):
        return tensor
    n = bits.local(p).numel()
    mine = bits.local(tensor)
    return mine.reshape(-1)[: block_count(n, block or max(n, 1))] if name.startswith("absmax") else mine
