"""Which of torch's operations multiply matrices: those emulated, those refused, and how to tell the rest apart.

An operation reaches us below autograd and autocast, so what torch composes of others ("linear", "einsum", "lstm") has
already been taken apart, or is taken apart here where torch has not (in inference mode). What is left is named below,
and in ``operations.toml`` what multiplies nothing. The promise is that nothing leaks, so an operation that is in no
table, such as one that a later torch brings, is refused until somebody has looked at it; a test goes through the
registry of the torch that is installed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...errors import LabError, unknown
from ...words import part
from ...words.patterns import refused
from ..tracer import base_name
from . import attention, convolution, dense, fused_attention, low_precision

Handler = Callable[..., Any]

EMULATED: dict[str, Handler] = {
    "mm": dense.mm, "bmm": dense.mm, "mv": dense.mv, "dot": dense.dot, "vdot": dense.dot,
    "addmm": dense.addmm, "addmv": dense.addmv, "baddbmm": dense.addmm, "addbmm": dense.addbmm,
    "_addmm_activation": dense.addmm_activation,
    "affine_grid_generator": dense.affine_grid,
    "convolution": convolution.forward, "convolution_backward": convolution.backward,
    "_scaled_dot_product_flash_attention_for_cpu": attention.forward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention.backward,
    **fused_attention.HANDLERS, **low_precision.HANDLERS,
}  # fmt: skip

TABLE = tomllib.loads(Path(__file__).with_name("operations.toml").read_text(encoding="utf-8"))
TRAITS: dict[str, frozenset[str]] = {name: frozenset(names.split()) for name, names in TABLE["traits"].items()}
_FREE = frozenset(" ".join(TABLE["free"].values()).split())
_LIBRARIES = frozenset(TABLE["libraries"]["free"].split())
OPERANDS = fused_attention.OPERANDS | low_precision.OPERANDS  # how many of the first arguments are
UNITS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})  # dtypes of operands
NO_UNIT = part("a matrix unit takes dense tensors of float16, bfloat16, float32 and float64 here")
_SPARSE = part("a sparse product")
REASONS = {
    "linear": part("its products are not taken apart"), "sparse": _SPARSE,
    "factors": part("a factorisation or solver multiplies matrices inside a library"),
    "quantized": part("a product of integers or packed weights"),
    "library": part("a kernel of one library or device"),
    "fused": part("a fused kernel, with its products inside"),
}  # fmt: skip


REFUSED: dict[str, str] = {name: REASONS[why] for why, names in TABLE["refused"].items() for name in names.split()}
_STRANGER = part("an operation that is not torch's own may multiply matrices")
_UNKNOWN = part("it is not among the operations that are known to multiply no matrices")


_DISTANCE = part("(x.unsqueeze(-2) - y.unsqueeze(-3)).norm(dim=-1) has no products.")
_DENSE = part("to_dense() makes a tensor whose products are emulated.")
_SOLVE = part("Solve before the block, or multiply by an inverse that was computed before it.")
INSTEAD = {  # what to write, by operation or by the beginning of a kind of tensors
    "_trilinear": part("torch.einsum('bi,oij,bj->bo', x, weight, y) is taken apart into products that are emulated."),
    "_cdist_forward": _DISTANCE, "_euclidean_dist": _DISTANCE, "linalg_solve_triangular": _SOLVE,
    "triangular_solve": _SOLVE,
    "complex": part("Multiply real and imaginary parts apart, as torch.view_as_real gives them."),
    **dict.fromkeys(["sparse", *(name for name, why in REFUSED.items() if why == _SPARSE)], _DENSE),
}  # fmt: skip


def is_free(name: str) -> bool:
    """Whether an operation, "add" or "prims::add", is known to multiply no matrices.

    With a name come its copying form ("view_copy") and that for a list of tensors ("_foreach_add").
    """
    space, _, short = name.rpartition("::")
    if space:
        return space in _LIBRARIES or (space == "prims" and short in _FREE)
    return short.removeprefix("_foreach_").removesuffix("_copy") in _FREE or short in _FREE


def instead(name: str) -> str:
    """What to write instead of an operation that is refused, " ..."; "" where nothing is known."""
    operation, _, kind = name.partition(" of ")
    result = (text for key, text in INSTEAD.items() if (kind.startswith(key) if kind else operation == key))
    return "".join(f" {refused(text)}" for text in result)


def allowed_names(names: Iterable[str]) -> frozenset[str]:
    """The names of ``allow``, checked: an operation of torch that is refused here, or "library::operation".

    An emulated operation is refused for tensors that no unit takes, and named with their kind: "mm of int64".
    """
    if isinstance(names, str):
        raise LabError(f"allow={names!r} is a string; a list of names is needed: allow=[{names!r}].")
    result = set()
    for name in names:
        short = name.removeprefix("aten::").removeprefix("aten.") if isinstance(name, str) else name
        if short in EMULATED:
            raise LabError(
                f"allow: {short!r} is emulated, there is nothing to allow. For tensors that no matrix unit takes, name "
                f"their kind: '{short} of int64'."
            )
        if not isinstance(name, str) or not (short in REFUSED or "::" in short or _with_kind(short) or _is_new(short)):
            raise unknown("operation in allow", name, [*REFUSED], [*REFUSED])
        result.add(short)
    return frozenset(result)


def _is_new(name: str) -> bool:
    """Whether an operation of this torch is in none of the tables."""
    return not is_free(name) and hasattr(torch.ops.aten, name)


def _with_kind(name: str) -> bool:
    """Whether a name is an emulated operation's with a kind of tensors that no unit takes, as "mm of int64"."""
    operation, _, kind = name.partition(" of ")
    result = getattr(torch, kind, None)
    return operation in EMULATED and (
        kind == "nested" or (isinstance(result, (torch.dtype, torch.layout)) and result not in (*UNITS, torch.strided))
    )


def operands(operation: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Those arguments of an operation that units take as they are."""
    return args[: OPERANDS.get(base_name(operation), len(args))]


def kind_without_unit(args: Iterable[Any]) -> str | None:
    """The dtype or layout of the first operand that no unit takes: "int64", "sparse_csr", "nested"; None: all fit."""
    for x in args:
        if isinstance(x, torch.Tensor):
            if x.is_nested:
                return "nested"
            if x.layout != torch.strided:
                return str(x.layout).removeprefix("torch.")
            if x.dtype not in UNITS:
                return str(x.dtype).removeprefix("torch.")
    return None


@lru_cache(maxsize=4096)
def refusal(operation: Any) -> str | None:
    """Why an operation must not run unemulated, or None."""
    name = base_name(operation)
    if name in REFUSED:
        return REFUSED[name]
    if name in EMULATED or is_free(name):
        return None
    return _STRANGER if "::" in name else _UNKNOWN


class Known(NamedTuple):
    """Of an operation: whether torch composes it of others, what emulates it, and why it must not run unemulated."""

    composed: bool
    handler: Handler | None
    refusal: str | None


@lru_cache(maxsize=4096)
def known(operation: Any) -> Known:
    """What every call of an operation asks for."""
    return Known(composed(operation), handler(operation), refusal(operation))


@lru_cache(maxsize=4096)
def composed(operation: Any) -> bool:
    """Whether torch composes the operation of others."""
    return bool(operation._can_decompose())


@lru_cache(maxsize=4096)
def handler(operation: Any) -> Handler | None:
    """What emulates an operation, or None."""
    return EMULATED.get(base_name(operation))
