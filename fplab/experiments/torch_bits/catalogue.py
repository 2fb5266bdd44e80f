"""The catalogue: which of the lab's formulas gives the bits of each of torch's operations.

The operations, their operands and the candidate formulas are the recorder's elementwise cases, so the same catalogue
can be read from any GPU's record. On a CPU an operation is tried at two places: in a long tensor, where torch works in
vector registers, and in tensors of seven elements, which fit into none and take the code for what is left over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ... import formats
from ...hardware import elementwise
from ...hardware.cases import Arrays, Case, Meta
from ..base import is_nan_code

PLACES = ("long", "short")
SHORT = 7  # elements
ONCE = "rounded once"  # the lab's model where a case has one, correctly rounded
EACH, LAST, FIRST = "every step rounds", "the last product is fused", "value times x first, then fused"
RIGHT, TWICE = "the correctly rounded result", "rounded to FP32, then again"
NARROW = "every step in the tensors' format"
FORMULAS = (NARROW, ONCE, EACH, LAST, FIRST, f"{EACH}, alpha narrow", f"{LAST}, alpha narrow", RIGHT, TWICE)
GROUPS = ("arithmetic", "square root", "contraction", "functions", "casts")


class Row(NamedTuple):
    """An operation in a format: the case's name, the output's name there, and the format."""

    case: str
    output: str
    fmt: str


@dataclass(frozen=True)
class Answer:
    """What the catalogue says of a row at a place: how many results each formula gets wrong, of those it covers."""

    row: Row
    wrong: dict[str, int]


def cases() -> tuple[Case, ...]:
    """The elementwise cases whose results are compared with formulas; the optimizers' are compared with each other."""
    return tuple(case for case in elementwise.cases() if case.name.startswith(GROUPS))


def rows() -> tuple[Row, ...]:
    """All rows of the catalogue."""
    return tuple(Row(case.name, output, fmt) for case in cases() for output, fmt in case.formats.items())


def formula(name: str) -> str:
    """A hypothesis by the name it has here, whatever the format."""
    for fmt in elementwise.FORMATS:
        name = name.replace(f", alpha in {fmt}", ", alpha narrow")
    return name


def by_formula(case: Case, given: Arrays, meta: Meta) -> dict[str, Arrays]:
    """What each formula of a case gives; its model counts as "rounded once", or twice for casts from FP64."""
    with np.errstate(all="ignore"):
        found = {formula(name): guess(given, meta) for name, guess in case.hypotheses.items()}
        model = case.emulate(given, meta)
        found[NARROW] = in_format(case, given)
    return {**found, **({TWICE if case.name.startswith("casts") else ONCE: model} if model else {})}


def in_format(case: Case, given: Arrays) -> Arrays:
    """Operations of half formats whose every step, alpha included, is rounded to the format itself."""
    from ... import arithmetic as ar
    from ...floats import decode, encode, quantize

    fmt = next(iter(case.formats.values()))
    if fmt == "fp32" or not case.name.startswith(("contraction", "functions")):
        return {}
    x = decode(given["x"], fmt, np.float32)
    if case.name.startswith("functions"):
        return {"rsqrt": np.asarray(encode(ar.div(np.ones_like(x), ar.sqrt(x, fmt), fmt), fmt))}
    scaled = ar.mul(quantize(np.float32(elementwise.ALPHA), fmt), decode(given["y"], fmt, np.float32), fmt)
    steps = {"add alpha": ar.add(x, scaled, fmt), "sub alpha": ar.sub(x, scaled, fmt)}
    return {name: np.asarray(encode(value, fmt)) for name, value in steps.items()}


def differing(got: np.ndarray, want: np.ndarray, fmt: str) -> np.ndarray:
    """Which codes differ; two NaN do not."""
    apart = got != want
    wide = [x.astype(np.uint64) for x in (got, want)]
    if apart.any() and formats.get(fmt).has_nan:
        apart &= ~(is_nan_code(wide[0], fmt) & is_nan_code(wide[1], fmt))
    return np.asarray(apart)


def at_place(case: Case, given: Arrays, place: str) -> tuple[Arrays, Arrays]:
    """Operands, and torch's results on the CPU: all in one tensor with more behind them, or seven at a time."""
    n = next(iter(given.values())).size
    if place == "long":
        longer = {name: np.concatenate([x, x[:128]]) for name, x in given.items()}
        return given, {name: x[:n] for name, x in case.compute(longer, "cpu").items()}
    chosen = {name: x[:: max(1, n // 1792)][: SHORT * 256] for name, x in given.items()}
    count = next(iter(chosen.values())).size
    parts = [
        case.compute({name: x[i : i + SHORT].copy() for name, x in chosen.items()}, "cpu")
        for i in range(0, count, SHORT)
    ]
    return chosen, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def answers(case: Case, place: str, meta: Meta) -> Iterator[Answer]:
    """The catalogue's rows of one case on the CPU."""
    given, found = at_place(case, case.inputs(), place)
    guesses = by_formula(case, given, meta)
    for output, fmt in case.formats.items():
        wrong = {
            name: int(differing(found[output], guess[output], fmt).sum())
            for name, guess in guesses.items()
            if output in guess
        }
        yield Answer(Row(case.name, output, fmt), wrong)
