"""The options that 8-bit optimizers have besides those of every optimizer, and what each may be."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from ... import codebooks
from ...codebooks import Codebook, rules
from ...errors import LabError, integer, one_of, summary
from ..optimizers import options
from ..optimizers.options import Check

CODES = {"dynamic": codebooks.dynamic, "linear": codebooks.linear}
SIGNS = {"kept": rules.SIGN, "nearest": rules.EVEN}
NAMED: Mapping[str, Collection[str]] = {
    "sign": SIGNS, "decay": ("gradient", "before", "after"), "rounding": ("nearest", "stochastic"),
    "bad_gradients": ("skip", "error"),
}  # fmt: skip
LARGEST_BLOCK = 1 << 40


def books_of(code: str | tuple[Codebook, Codebook]) -> tuple[Codebook, Codebook]:
    """The codebooks of the signed and of the unsigned state."""
    if isinstance(code, str):
        one_of("code", code, CODES)
        return CODES[code](signed=True), CODES[code](signed=False)
    pair = tuple(code) if isinstance(code, tuple | list) else (code,)
    if len(pair) != 2 or not all(isinstance(book, Codebook) for book in pair):
        raise LabError("code is two Codebooks, of the signed and of the unsigned state, or one of: dynamic, linear.")
    if not pair[0].signed:
        raise LabError(f"{pair[0].name} has no negative values, and the first state of an optimizer needs them.")
    return pair


def _block(name: str, value: Any) -> int | None:
    return None if value is None else integer(name, value, 1, LARGEST_BLOCK, " (None: the whole tensor)")


def _state_bits(name: str, value: Any) -> Any:
    if value not in (8, 32):
        raise LabError(f"state_bits={summary(value)} is not possible; allowed: 8, 32.")
    return value


CHECKS: Mapping[str, Check] = {
    **options.CHECKS, "block": _block,
    "min_8bit_size": lambda name, value: integer(name, value, 0, 1 << 62),
    "state_bits": _state_bits, "nesterov": options.not_here,
    **{name: partial(one_of, allowed=allowed) for name, allowed in NAMED.items()},
}  # fmt: skip
