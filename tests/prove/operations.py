"""The oracle's answers for whole tables of operands: every exact result, and every rounding of it, computed once."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fplab import exact
from fplab.exact import Exact
from fplab.formats import Format, Overflow, Rounding

Array = np.ndarray[Any, Any]
Result = tuple[Exact, int]
BINARY: dict[str, Callable[[Exact, Exact, Rounding], Result]] = {
    "add": exact.add, "sub": exact.sub, "mul": exact.mul, "div": exact.div,
}  # fmt: skip
OPERATIONS = (*BINARY, "sqrt", "fma")


def exact_result(op: str, operands: Sequence[Exact], fmt: Format, mode: Rounding) -> Result:
    """One operation before it is rounded; of a square root a number that rounds like it."""
    if op == "sqrt":
        return exact.sqrt_to(operands[0], fmt, mode)
    if op == "fma":
        return exact.fma(operands[0], operands[1], operands[2], mode)
    return BINARY[op](operands[0], operands[1], mode)


def rounded(result: Result, fmt: Format, mode: Rounding, policy: Overflow, ftz: bool, word: int = 0) -> tuple[int, int]:
    """An exact result as (code, flags), the flags of the operation and of the rounding together."""
    value, raised = result
    code, more = exact.round_to(value, fmt, mode, policy, ftz=ftz, nan="max", word=word)
    return code, raised | more


def turns(value: Exact, fmt: Format) -> list[int]:
    """The two words of a stochastic rounding from which on its result, or the tininess of it, is another one."""
    if value.kind != "finite" or value.is_zero:
        return [0, 0]
    sizes = [value.magnitude]
    if value.magnitude < exact.two_to(fmt.emin):  # tininess looks at the same digits in the lowest normal binade
        sizes.append(value.magnitude * exact.two_to(fmt.emin - exact.floor_log2(value.magnitude)))
    found = [0, 0]
    for i, size in enumerate(sizes):
        lower = exact.floor_code(size, fmt)
        if lower >= 0:
            low, high = exact.magnitude_of(lower, fmt), exact.magnitude_of(lower + 1, fmt)
            found[i] = 2**32 - int((size - low) / (high - low) * 2**32)
    return sorted(found)


class Table:
    """The exact results of one operation for rows of operand codes, ``(rows, operands)``, in a format."""

    def __init__(self, op: str, codes: Array, fmt: Format, mode: Rounding, flush_inputs: bool = False) -> None:
        self.fmt, self.mode = fmt, mode
        values = {int(c): exact.decode(int(c), fmt) for c in np.unique(codes)}
        if flush_inputs:
            values = {c: exact.flush(x, fmt) for c, x in values.items()}
        distinct: dict[Any, int] = {}
        self.results: list[Result] = []
        self.index = np.empty(len(codes), np.int64)
        for i, row in enumerate(codes.tolist()):
            result = exact_result(op, [values[c] for c in row], fmt, mode)
            value, raised = result  # told apart by their integers: a Fraction's own hash is a modular inverse
            key = (value.kind, value.negative, *value.magnitude.as_integer_ratio(), *value.payload.as_integer_ratio())
            self.index[i] = at = distinct.setdefault((*key, raised), len(distinct))
            if at == len(self.results):
                self.results.append(result)
        self._kept: dict[tuple[Rounding, bool], Array] = {}

    def rounded(
        self, mode: Rounding, policy: Overflow, ftz: bool = False, words: Array | None = None
    ) -> tuple[Array, Array]:
        """The (codes, flags) of all rows; ``words``: a row's word of a stochastic rounding.

        Only a rounding toward -infinity may be asked of a table made for it: it gives exact zeros another sign.
        """
        assert (mode is Rounding.RTN) == (self.mode is Rounding.RTN)
        steps = self._steps(mode, policy, ftz)
        step: Array | int = 0
        if mode is Rounding.STOCHASTIC:
            assert words is not None
            bounds = np.array([turns(value, self.fmt) for value, _ in self.results]).reshape(-1, 2)[self.index]
            step = (words >= bounds[:, 0]).astype(np.int64) + (words >= bounds[:, 1])
        chosen = steps[self.index, step]
        return chosen[:, 0], chosen[:, 1]

    def _steps(self, mode: Rounding, policy: Overflow, ftz: bool) -> Array:
        """Code and flags of every distinct result, ``(results, steps, 2)``: one step, or three between two turns."""

        def outcomes(result: Result, policy: Overflow) -> list[tuple[int, int]]:
            words = (0, *turns(result[0], self.fmt)) if mode is Rounding.STOCHASTIC else (0,)
            return [rounded(result, self.fmt, mode, policy, ftz, min(word, 2**32 - 1)) for word in words]

        if (mode, ftz) not in self._kept:
            self._kept[mode, ftz] = np.array([outcomes(r, Overflow.SATURATE) for r in self.results])
        steps = self._kept[mode, ftz].copy()
        overflowed = (steps[:, :, 1] & exact.OVERFLOW).any(axis=1)
        for i in np.flatnonzero(overflowed).tolist():  # only there does the policy matter
            steps[i] = outcomes(self.results[i], policy)
        return steps
