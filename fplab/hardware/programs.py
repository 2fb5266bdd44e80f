"""A computation written once, that a device does with torch tensors and the lab with arrays that round as they do.

def corrected(w, u):
    moved = (w + u) - w
    return {"lost": u - moved}

program("lost by a sum", inputs, {"w": "fp16", "u": "fp16"}, corrected, {"lost": "fp16"})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .. import numeric
from .cases import Arrays, Case, Emulate, Meta, unmodelled
from .tensors import TORCH, bits, overflow_of, tensor

NUMPY = {"fp64": np.float64, "fp32": np.float32, "int8": np.int8, "int32": np.int32}  # types of the same bits


@dataclass(frozen=True)
class Rounded:
    """Values of a format, every operation on which is rounded once to it, as on a tensor of that dtype.

    ``torch``: the version whose casts are meant; E4M3 overflows as it does there.
    """

    values: np.ndarray
    fmt: str
    torch: str = ""

    def _with(self, operation: str, other: Rounded | float) -> Rounded:
        right = other.values if isinstance(other, Rounded) else np.full_like(self.values, other)
        return replace(self, values=np.asarray(getattr(numeric, operation)(self.values, right, self.fmt)))

    def __add__(self, other: Rounded | float) -> Rounded:
        return self._with("add", other)

    def __sub__(self, other: Rounded | float) -> Rounded:
        return self._with("sub", other)

    def __mul__(self, other: Rounded | float) -> Rounded:
        return self._with("mul", other)

    def __truediv__(self, other: Rounded | float) -> Rounded:
        return self._with("div", other)

    def reciprocal(self) -> Rounded:
        """As of a tensor."""
        return replace(self, values=np.ones_like(self.values)) / self

    def sqrt(self) -> Rounded:
        """As of a tensor."""
        return replace(self, values=np.asarray(numeric.sqrt(self.values, self.fmt)))

    def __getitem__(self, at: Any) -> Rounded:
        return replace(self, values=self.values[at])

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """As of a tensor."""
        return self.values.shape

    @property
    def T(self) -> Rounded:  # noqa: N802  (a tensor's name for it)
        return replace(self, values=self.values.T)


def cast(x: Any, fmt: str) -> Any:
    """A tensor, or values of a format, in another format."""
    if isinstance(x, Rounded):
        narrow = numeric.quantize(x.values, fmt, overflow=overflow_of(fmt, x.torch))
        return replace(x, values=np.asarray(narrow), fmt=fmt)
    import torch

    return x.to(getattr(torch, TORCH[fmt]))


def stack(parts: Sequence[Any], axis: int) -> Any:
    """Tensors, or values of a format, along a new axis."""
    if isinstance(parts[0], Rounded):
        return replace(parts[0], values=np.stack([part.values for part in parts], axis))
    import torch

    return torch.stack(list(parts), axis)


def program(
    name: str, inputs: Callable[[], Arrays], given: Mapping[str, str], does: Callable[..., Mapping[str, Any]],
    gives: Mapping[str, str], lab: Callable[..., Mapping[str, Any]] | None = None, open: str = "",
    hypotheses: Mapping[str, Callable[..., Mapping[str, Any]]] | None = None,
) -> Case:  # fmt: skip
    """The case of ``does``, which takes the inputs by name and returns the outputs by name.

    ``given``, ``gives``: the formats of inputs and outputs. ``lab``: the same on numpy's arrays, of what is no
    arithmetic of :class:`Rounded`. ``open``: of the case; ``hypotheses``: further answers on arrays.
    """

    def compute(codes: Arrays, device: str) -> Arrays:
        results = does(**{name: tensor(codes[name], fmt, device) for name, fmt in given.items()})
        return {name: bits(results[name]) for name in gives}

    def emulate(codes: Arrays, meta: Meta) -> Arrays:
        arrays = {name: np.asarray(numeric.decode(codes[name], fmt)) for name, fmt in given.items()}
        version = str(meta.get("torch", ""))
        with np.errstate(all="ignore"):
            results = does(**{name: Rounded(values, given[name], version) for name, values in arrays.items()})
        return {name: np.asarray(numeric.encode(results[name].values, fmt)) for name, fmt in gives.items()}

    def on_arrays(answer: Callable[..., Mapping[str, Any]], codes: Arrays, meta: Meta) -> Arrays:
        with np.errstate(all="ignore"):
            results = answer(**{name: array_of(codes[name], fmt) for name, fmt in given.items()})
        return {name: codes_of(results[name], fmt) for name, fmt in gives.items() if name in results}

    answers: dict[str, Emulate] = {text: partial(on_arrays, answer) for text, answer in (hypotheses or {}).items()}
    return Case(name, inputs, compute, partial(on_arrays, lab) if lab else emulate, dict(gives), open, answers)


def array_of(codes: np.ndarray, fmt: str) -> np.ndarray:
    """Codes as numpy's numbers: of the format where numpy has it, NaNs with their bits, else as float32."""
    return codes.view(NUMPY[fmt]) if fmt in NUMPY else np.asarray(numeric.decode(codes, fmt))


def codes_of(values: np.ndarray, fmt: str) -> np.ndarray:
    """Numbers as codes of a format; integers as their bits."""
    if values.dtype.kind == "f" and fmt not in NUMPY:
        return np.asarray(numeric.encode(values, fmt))
    return np.asarray(values).view(f"u{values.itemsize}")


def unanswered(**given: Any) -> dict[str, Any]:
    """The ``lab`` of a program of which the lab has no model."""
    return {}


def asked(
    name: str, fmt: str, inputs: Callable[[], Arrays], operations: Mapping[str, Callable[..., Any]], question: str,
    hypotheses: Mapping[str, Emulate],
) -> Case:  # fmt: skip
    """The case of operations on tensors of one format, of which the lab has hypotheses and no model."""

    def compute(codes: Arrays, device: str) -> Arrays:
        given = [tensor(array, fmt, device) for array in codes.values()]
        return {name: bits(operation(*given)) for name, operation in operations.items()}

    return Case(name, inputs, compute, unmodelled, dict.fromkeys(operations, fmt), question, hypotheses)
