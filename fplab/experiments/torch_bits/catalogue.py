"""The catalogue: which of the lab's formulas gives the bits of each of torch's operations.

The operations, their operands and the candidate formulas are the recorder's elementwise cases, so the same catalogue
can be read from any GPU's record. On a CPU an operation is tried at two places: in a long tensor, where torch works in
vector registers, and in tensors of seven elements, which fit into none and take the code for what is left over.

Beside it the smallest operands on which torch's result and another formula's differ, found by shrinking: from an
operand triple on which they differ, bits of the significands are cleared and exponents drawn towards zero for as long
as they still differ. What is left has no bit that could be cleared. And in which order torch sums, revealed as trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import formats, numeric
from ...formats import Format
from ...hardware import elementwise
from ...hardware.cases import Arrays, Case, Meta
from ...reveal import SumTree, reveal_order
from ..outcomes import is_nan_code

PLACES = ("long", "short")
SHORT = 7  # elements
ONCE = "rounded once"  # the lab's model where a case has one, correctly rounded
EACH, LAST, FIRST = "every step rounds", "the last product is fused", "value times x first, then fused"
RIGHT, TWICE = "the correctly rounded result", "rounded to FP32, then again"
NARROW = "every step in the tensors' format"
NARROW_ALPHA = f"{EACH}, alpha narrow"
FORMULAS = (NARROW, ONCE, EACH, LAST, FIRST, NARROW_ALPHA, f"{LAST}, alpha narrow", RIGHT, TWICE)
GROUPS = ("arithmetic", "square root", "contraction", "functions", "casts")


class Row(NamedTuple):
    """An operation in a format: the case's name, the output's name there, and the format."""

    case: str
    output: str
    fmt: str


def cases() -> tuple[Case, ...]:
    return tuple(case for case in elementwise.cases() if case.name.startswith(GROUPS))


def rows() -> tuple[Row, ...]:
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
    fmt = next(iter(case.formats.values()))
    if fmt == "fp32" or not case.name.startswith(("contraction", "functions")):
        return {}
    x = numeric.decode(given["x"], fmt, np.float32)
    if case.name.startswith("functions"):
        return {"rsqrt": np.asarray(numeric.encode(numeric.div(np.ones_like(x), numeric.sqrt(x, fmt), fmt), fmt))}
    scaled = numeric.mul(
        numeric.quantize(np.float32(elementwise.ALPHA), fmt), numeric.decode(given["y"], fmt, np.float32), fmt
    )
    steps = {"add alpha": numeric.add(x, scaled, fmt), "sub alpha": numeric.sub(x, scaled, fmt)}
    return {name: np.asarray(numeric.encode(value, fmt)) for name, value in steps.items()}


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


def answers(case: Case, place: str, meta: Meta) -> Iterator[tuple[Row, str, int]]:
    """Of each row of one case, and each formula that covers it, how many results on the CPU the formula gets wrong."""
    given, found = at_place(case, case.inputs(), place)
    for name, guess in by_formula(case, given, meta).items():
        for output, fmt in case.formats.items():
            if output in guess:
                wrong = int(differing(found[output], guess[output], fmt).sum())
                yield Row(case.name, output, fmt), name, wrong


# --- the smallest examples ------------------------------------------------------------------------------------------
class Distinction(NamedTuple):
    """A row of the catalogue, the formula that is torch's (None: no formula's), and the one it is told from."""

    case: str
    output: str
    fmt: str
    torchs: str | None
    other: str


DISTINCTIONS = (
    Distinction("contraction in fp32", "add alpha", "fp32", LAST, EACH),
    Distinction("contraction in fp32", "addcmul", "fp32", FIRST, EACH),
    Distinction("contraction in fp32", "lerp", "fp32", LAST, EACH),
    Distinction("contraction in fp32", "addcdiv", "fp32", FIRST, LAST),
    Distinction("contraction in fp16", "add alpha", "fp16", NARROW_ALPHA, EACH),
    Distinction("square root in fp32", "sqrt", "fp32", None, ONCE),
    Distinction("functions in fp32", "exp", "fp32", None, RIGHT),
    Distinction("functions in fp16", "exp", "fp16", TWICE, RIGHT),
    Distinction("casts from fp64", "fp16", "fp16", TWICE, ONCE),
)
SAMPLE = 4096  # of three operands, among which the first difference is looked for
USED = {"add alpha": "xy", "lerp": "xy", "sqrt": "x", "exp": "x", "fp16": "x", "addcmul": "xyz", "addcdiv": "xyz"}


def told_apart(case: Case, one: Distinction, given: Arrays, meta: Meta) -> np.ndarray:
    """On which operands torch gives its formula's result, and not the other's."""
    n = next(iter(given.values())).size
    longer = {name: np.concatenate([x, np.resize(x, 128)]) for name, x in given.items()}  # all in the vector code
    got = case.compute(longer, "cpu")[one.output][:n]
    guesses = by_formula(case, given, meta)
    apart = differing(got, guesses[one.other][one.output], one.fmt)
    if one.torchs is not None:
        apart &= ~differing(got, guesses[one.torchs][one.output], one.fmt)
    return apart


def weight(codes: np.ndarray, form: Format) -> np.ndarray:
    """How large an operand is: its significand's bits down to the last one that is set, far exponents, the sign."""
    wide = codes.astype(np.uint64)
    fraction = wide & np.uint64((1 << form.fraction_bits) - 1)
    lowest = np.where(fraction == 0, form.fraction_bits, _trailing_zeros(fraction))
    exponent = ((wide & np.uint64((1 << (form.bits - 1)) - 1)) >> np.uint64(form.fraction_bits)).astype(np.int64)
    far = np.abs(exponent - (form.bias or 0))
    return np.asarray(64 * (form.fraction_bits - lowest) + far + (wide >> np.uint64(form.bits - 1)).astype(np.int64))


def total_weight(given: Arrays, used: str, form: Format) -> np.ndarray:
    """The weights of all operands that the operation uses."""
    return np.asarray(np.sum([weight(given[name], form) for name in used], axis=0))


def _trailing_zeros(x: np.ndarray) -> np.ndarray:
    lowest = x & (~x + np.uint64(1))
    return np.asarray(np.log2(np.maximum(lowest, 1).astype(np.float64)).astype(np.int64))


def variants(code: int, form: Format) -> list[int]:
    """Simpler operands near one: the last bit that is set cleared, or the exponent nearer to zero, or no sign."""
    fraction, bias = code & ((1 << form.fraction_bits) - 1), form.bias or 0
    found = [code & ~(fraction & -fraction)] if fraction else []
    exponent = (code >> form.fraction_bits) & ((1 << form.exponent_bits) - 1)
    step = (exponent < bias) - (exponent > bias)
    for nearer in {bias, (exponent + bias) // 2, exponent + step} - {exponent}:
        found.append(code ^ ((exponent ^ nearer) << form.fraction_bits))
    if code >> (form.bits - 1):
        found.append(code & ((1 << (form.bits - 1)) - 1))
    return found


def ordinary(given: Arrays, form: Format) -> np.ndarray:
    """Which operands all lie between 2^-12 and 2^13, where nothing overflows or is subnormal."""
    ok = np.ones(next(iter(given.values())).size, bool)
    for codes in given.values():
        magnitude = codes.astype(np.uint64) & np.uint64((1 << (form.bits - 1)) - 1)
        exponent = (magnitude >> np.uint64(form.fraction_bits)).astype(np.int64) - (form.bias or 0)
        ok &= (exponent >= -12) & (exponent <= 12)
    return ok


def smallest(case: Case, one: Distinction, meta: Meta) -> dict[str, int] | None:
    """The codes of the smallest operands found, or None where torch never differs from the other formula."""
    many = SAMPLE if case.name.startswith("contraction") else 1 << 16  # there the random operands come last
    given = {name: x[-many:] for name, x in case.inputs().items()}
    form = formats.get("fp64" if case.name.startswith("casts") else one.fmt)
    used = USED[one.output]
    given = {name: x if name in used else np.full_like(x, one_of(form)) for name, x in given.items()}
    there = np.flatnonzero(told_apart(case, one, given, meta) & ordinary(given, form))
    if not there.size:
        return None
    heavy = total_weight({name: x[there] for name, x in given.items()}, used, form)
    best = {name: int(x[there[int(np.argmin(heavy))]]) for name, x in given.items()}
    while True:
        tried = [{**best, name: code} for name in used for code in variants(best[name], form)]
        batch = {name: np.array([t[name] for t in tried], given[name].dtype) for name in best}
        good = np.flatnonzero(told_apart(case, one, batch, meta) & ordinary(batch, form))
        now = total_weight({name: np.array([code], given[name].dtype) for name, code in best.items()}, used, form)[0]
        weights = total_weight(batch, used, form)
        good = good[weights[good] < now]
        if not good.size:
            return best
        best = tried[int(good[np.argmin(weights[good])])]


def one_of(form: Format) -> int:
    """The code of 1.0."""
    return (form.bias or 0) << form.fraction_bits


# --- the orders ----------------------------------------------------------------------------------------------------
N = 64
SUMS: dict[str, tuple[str, int, Callable[[Any, Any], Any]]] = {  # format, operands, the sum in torch
    "torch.sum, FP32": ("fp32", 1, lambda torch, x: x.sum()),
    "torch.mean, FP32": ("fp32", 1, lambda torch, x: x.mean() * len(x)),
    "torch.cumsum, FP32": ("fp32", 1, lambda torch, x: x.cumsum(0)[-1]),
    "a column of torch.sum(0), FP32": ("fp32", 1, lambda torch, x: x.view(-1, 1).expand(-1, 8).contiguous().sum(0)[3]),
    "torch.sum, FP16": ("fp16", 1, lambda torch, x: x.sum()),
}


def tree(name: str) -> SumTree:
    """The order of one of SUMS over N terms."""
    import torch

    fmt, operands, total = SUMS[name]

    def f(x: np.ndarray) -> float:
        return float(total(torch, torch.from_numpy(np.ascontiguousarray(x))))

    return reveal_order(f, N, fmt, operands=operands)


def wide(name: str) -> bool:
    """Whether torch adds in FP64 and rounds at the end, as its cumulative sum does on a CPU."""
    return "cumsum" in name


def folded(tree: SumTree, terms: np.ndarray, wide: bool = False) -> np.float32:
    """A sum of FP32 terms in a tree's order, in FP32 or (``wide``) in FP64 and rounded once."""
    kind = np.float64 if wide else np.float32
    return np.float32(tree.fold(list(terms.astype(kind)), lambda parts: kind(sum(parts[1:], parts[0]))))
