"""Operations of torch that multiply no matrices, by name. What is in no table of ours is refused, on every torch.

The promise is that nothing leaks, so an operation that a later torch brings is refused until somebody has looked at it;
a test goes through the registry of the torch that is installed. ``operations.toml`` has the names.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

TABLE = tomllib.loads(Path(__file__).with_name("operations.toml").read_text(encoding="utf-8"))
_FREE = frozenset(" ".join(TABLE["free"].values()).split())
# Libraries of torch's own that move data between processes, draw random numbers, or look.
_MOVES = frozenset(
    {
        "prim", "profiler", "c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp", "rngprims",
        "debugprims",
    }
)  # fmt: skip


def is_free(name: str) -> bool:
    """Whether an operation, "add" or "prims::add", is known to multiply no matrices.

    With a name come its copying form ("view_copy") and that for a list of tensors ("_foreach_add").
    """
    space, _, short = name.rpartition("::")
    if space:
        return space in _MOVES or (space == "prims" and short in _FREE)
    return short.removeprefix("_foreach_").removesuffix("_copy") in _FREE or short in _FREE
