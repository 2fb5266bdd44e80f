"""The options of 8-bit optimizers: what each may be, checked for a whole optimizer and for a group of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ... import codebooks
from ...codebooks import Codebook, rules
from ...errors import LabError, integer, summary, unknown

CODES = {"dynamic": codebooks.dynamic, "linear": codebooks.linear}
DECAYS = ("gradient", "before", "after")
SIGNS = {"kept": rules.SIGN, "nearest": rules.EVEN}
ROUNDINGS = ("nearest", "stochastic")
BAD_GRADIENTS = ("skip", "error")
MASK = (1 << 64) - 1
LARGEST_BLOCK = 1 << 40


def books_of(code: str | tuple[Codebook, Codebook]) -> tuple[Codebook, Codebook]:
    """The codebooks of the signed and of the unsigned state."""
    if isinstance(code, str):
        if code not in CODES:
            raise unknown("code", code, CODES)
        return CODES[code](signed=True), CODES[code](signed=False)
    pair = tuple(code) if isinstance(code, tuple | list) else (code,)
    if len(pair) != 2 or not all(isinstance(book, Codebook) for book in pair):
        raise LabError("code is two Codebooks, of the signed and of the unsigned state, or one of: dynamic, linear.")
    if not pair[0].signed:
        raise LabError(f"{pair[0].name} has no negative values, and the first state of an optimizer needs them.")
    return pair


def _number(name: str, value: Any, below: float = float("inf")) -> float:
    """A finite number from 0 to below a limit; numpy's numbers and tensors of one element count."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = None
    if number is None or isinstance(value, str):  # YAML reads 1e-3 as a string
        raise LabError(f"{name}={value!r} is not a number.")
    if not 0 <= number < below:
        raise LabError(f"{name}={value!r}; allowed: " + ("0 and more, finite." if below > 1 else "from 0 to below 1."))
    return number


def _rate(name: str, value: Any) -> Any:
    """A learning rate; one that is a tensor stays it, for torch's schedulers write into it."""
    number = _number(name, value)
    return value if isinstance(value, torch.Tensor) else number


def _betas(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise LabError(f"betas={value!r} are not two numbers, such as (0.9, 0.999).")
    try:
        return _number(name, value[0], below=1), _number(name, value[1], below=1)
    except LabError:
        raise LabError(f"betas={summary(value)}; each is allowed from 0 to below 1.") from None


def _block(name: str, value: Any) -> int | None:
    return None if value is None else integer(name, value, 1, LARGEST_BLOCK, " (None: the whole tensor)")


def _state_bits(name: str, value: Any) -> Any:
    if value not in (8, 32):
        raise LabError(f"state_bits={summary(value)} is not possible; allowed: 8, 32.")
    return value


def _one_of(allowed: tuple[str, ...]) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if value not in allowed:
            raise unknown(name, value, allowed)
        return value

    return check


OPTIONS: dict[str, Callable[[str, Any], Any]] = {
    "lr": _rate,
    "eps": _number,
    "weight_decay": _number,
    "momentum": lambda name, value: _number(name, value, below=1),
    "betas": _betas,
    "block": _block,
    "min_8bit_size": lambda name, value: integer(name, value, 0, 1 << 62),
    "state_bits": _state_bits,
    "sign": _one_of(tuple(SIGNS)),
    "decay": _one_of(DECAYS),
    "rounding": _one_of(ROUNDINGS),
    "seed": lambda name, value: integer(name, value, 0, MASK),
    "bad_gradients": _one_of(BAD_GRADIENTS),
}


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options among ``given``, each as it is stored in a group; an impossible one is an error."""
    return {name: OPTIONS[name](name, value) for name, value in given.items() if name in OPTIONS}
