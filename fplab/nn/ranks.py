"""What the ranks of torch.distributed must agree on before a scale is chosen, and what no single rank can tell."""

import zlib
from collections.abc import Mapping

import torch
from torch import nn

from ..errors import LabError


def distributed() -> bool:
    """Whether this process is a rank of several."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def largest_over_ranks(amaxes: Mapping[str, float]) -> dict[str, float]:
    """The largest of every role over the ranks, which must all have the same roles, in any order.

    Raises LabError where they have others, as stages of a pipeline do: a sum over unlike lists has no meaning.
    """
    roles = sorted(amaxes)
    digest = zlib.crc32("\0".join(roles).encode())
    both = torch.tensor([digest, -digest])
    torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX)
    if both.tolist() != [digest, -digest]:
        some = f"{len(roles)} operands here, {roles[0]!r} the first" if roles else "none here"
        raise LabError(
            f"amaxes cannot be reduced: other ranks multiply other operands ({some}), as the stages of a pipeline do. "
            "Pass a recipe with reduce_amax=False, or leave out synchronize(), where each rank has layers of its own."
        )
    largest = torch.tensor([amaxes[role] for role in roles], dtype=torch.float64)
    if roles:
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
    return dict(zip(roles, largest.tolist(), strict=True))


def demand_in_one_process(what: str, model: nn.Module) -> None:
    """An error for what is no model, and for one of which every rank has a part, as DTensors are."""
    if not isinstance(model, nn.Module):
        raise LabError(f"model is a {type(model).__name__}; pass a torch.nn.Module.")
    for name, parameter in model.named_parameters():
        if is_spread(type(parameter)):
            raise refused_as_spread(what, name)


def is_spread(kind: type) -> bool:
    """Whether tensors of a class are spread over processes, as DTensors are."""
    return hasattr(kind, "to_local")


def refused_as_spread(what: str, name: str) -> LabError:
    """The error for such a tensor, of a parameter or an operation of that name."""
    return LabError(
        f"{what} takes no tensors that are spread over processes, as the DTensors of {name!r} are: no rank has all "
        "that an error does there. Call it in one process, before parallelize_module or fully_shard."
    )
