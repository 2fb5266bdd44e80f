"""Which bits torch really computes: a catalogue, by operation and format, with the smallest example of each surprise.

Anyone who writes an oracle for a training step must know which of torch's operations round once, which twice, and
which are fused; the documentation says none of it, and it changes with the compiler, the vector instructions and the
device. Here every operation is compared with the formulas it might follow, on the CPU now and on a GPU by record: the
operations, their operands and the formulas are the recorder's elementwise cases. On a CPU an operation is tried at two
places: in a long tensor, where torch works in vector registers, and in tensors of seven elements, which fit into none
and take the code for what is left over. Beside it the smallest operands on which torch's result and another formula's
differ, found by shrinking, and in which order torch sums, revealed as trees.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import draw, exact, formats, numeric
from ..formats import Format
from ..hardware import elementwise, order
from ..hardware.cases import Arrays, Case, philox_bits
from ..reveal import SumTree, reveal_order
from ..words import CLAUSE, COMMA, joined, say
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Part, absent, failed, is_nan_code, passed, verdict
from .quantities import Columns

PLACES = ("long", "7 elements")
LONG, SHORT = PLACES
OPTIMIZERS, WAYS = tuple(elementwise.OPTIMIZERS), tuple(elementwise.WAYS)
WITH_FMA = ("AVX2", "AVX512")
OFF = 4  # of 65,536 codes: where FP32's own results differ between vector instructions, and lie by a midpoint
ONCE = "rounded once"  # the lab's model where a case has one, correctly rounded
EACH, LAST, FIRST = "every step rounds", "the last product is fused", "value times x first, then fused"
RIGHT, TWICE = "the correctly rounded result", "rounded to FP32, then again"
NARROW = "every step in the tensors' format"
NARROW_ALPHA = f"{EACH}, alpha narrow"
FORMULAS = (NARROW, ONCE, EACH, LAST, FIRST, NARROW_ALPHA, f"{LAST}, alpha narrow", RIGHT, TWICE)
GROUPS = ("arithmetic", "square root", "contraction", "functions", "casts")

E = Experiment(
    "The bits torch computes",
    "Which of torch's operations are fused, rounded twice or not correctly rounded, and where?", budget=3.0,
    full={"terms": 512}, quick={"terms": 32},  # random sums that are folded in a revealed order
)  # fmt: skip


def catalogue() -> dict[str, Case]:
    """The elementwise cases whose operations are compared, by name."""
    return {case.name: case for case in elementwise.cases() if case.name.startswith(GROUPS)}


def this_machine() -> dict[str, str]:
    """What a record would say of torch here."""
    import torch

    return {"torch": str(torch.__version__), "kind": "cpu"}


def capability() -> str:
    """Which vector instructions torch uses here."""
    import torch

    return str(torch.backends.cpu.get_cpu_capability())


def by_formula(case: Case, given: Arrays) -> dict[str, Arrays]:
    """What each formula of a case gives; its model counts as "rounded once", or twice for casts from FP64."""
    fmt, meta = next(iter(case.formats.values())), this_machine()
    with np.errstate(all="ignore"):
        guesses = {name.replace(f", alpha in {fmt}", ", alpha narrow"): guess(given, meta)
                   for name, guess in case.hypotheses.items()}  # fmt: skip
        model = case.emulate(given, meta)
        guesses[NARROW] = in_format(case, fmt, given)
    return {**guesses, **({TWICE if case.name.startswith("casts") else ONCE: model} if model else {})}


def in_format(case: Case, fmt: str, given: Arrays) -> Arrays:
    """Operations of half formats whose every step, alpha included, is rounded to the format itself."""
    if fmt == "fp32" or not case.name.startswith(("contraction", "functions")):
        return {}
    x = numeric.decode(given["x"], fmt, np.float32)
    if case.name.startswith("functions"):
        steps = {"rsqrt": numeric.div(np.ones_like(x), numeric.sqrt(x, fmt), fmt)}
    else:
        alpha = numeric.quantize(np.float32(elementwise.ALPHA), fmt)
        scaled = numeric.mul(alpha, numeric.decode(given["y"], fmt, np.float32), fmt)
        steps = {"add alpha": numeric.add(x, scaled, fmt), "sub alpha": numeric.sub(x, scaled, fmt)}
    return {name: np.asarray(numeric.encode(value, fmt)) for name, value in steps.items()}


def differing(got: np.ndarray, want: np.ndarray, fmt: str) -> np.ndarray:
    """Which codes differ; two NaN do not."""
    apart = got != want
    if apart.any() and formats.get(fmt).has_nan:
        apart &= ~(is_nan_code(got.astype(np.uint64), fmt) & is_nan_code(want.astype(np.uint64), fmt))
    return np.asarray(apart)


def in_vectors(case: Case, given: Arrays) -> Arrays:
    """torch's results on the CPU in one tensor with more behind them."""
    n = next(iter(given.values())).size
    longer = {name: np.concatenate([x, np.resize(x, 128)]) for name, x in given.items()}
    return {name: x[:n] for name, x in case.compute(longer, "cpu").items()}


@E.cache
def tried(p: Params, name: str, place: str) -> tuple[Arrays, dict[str, Arrays]]:
    """torch's results of a case at a place, some operands of a long tensor seven at a time; and what formulas give."""
    case = catalogue()[name]
    given = case.inputs()
    n = next(iter(given.values())).size
    if place == LONG:
        return in_vectors(case, given), by_formula(case, given)
    given = {name: x[:: max(1, n // 1792)][: 7 * 256] for name, x in given.items()}
    starts = range(0, next(iter(given.values())).size, 7)
    parts = [case.compute({name: x[i : i + 7].copy() for name, x in given.items()}, "cpu") for i in starts]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, by_formula(case, given)


@E.measure("wrong", axes={"place": PLACES, "formula": FORMULAS, "result": ...})
def wrong(p: Params, place: str, formula: str) -> dict[str, int]:
    """How many results a formula gets wrong, by operation and format; nothing where it says nothing."""
    counts = {}
    for name, case in catalogue().items():
        got, guesses = tried(p, name, place)
        for output, codes in guesses.get(formula, {}).items():
            fmt = case.formats[output]
            counts[f"{output} {fmt}"] = int(differing(got[output], codes, fmt).sum())
    return counts


@E.measure("outputs", axes={"case": lambda p: catalogue()}, digested=True)
def outputs(p: Params, case: str) -> int:
    """How many outputs each case of the catalogue has: the one thing that no machine changes."""
    return len(catalogue()[case].formats)


@E.measure("ways", axes={"optimizer": OPTIMIZERS, "way": ...})
def ways(p: Params, optimizer: str) -> dict[str, int]:
    """In how many of 512 parameters each way of an optimizer differs from its loop, after three steps."""
    case = elementwise.optimizer_case(optimizer)
    result = case.compute(case.inputs(), "cpu")
    return {way: int((result[way] != result[WAYS[0]]).sum()) for way in WAYS}


# --- the smallest examples ------------------------------------------------------------------------------------------
class Distinction(NamedTuple):
    """A result of a case, the formula that is torch's (None: no formula's), the one it is told from, and operands."""

    case: str
    output: str
    fmt: str
    torchs: str | None
    other: str
    used: str

    @property
    def form(self) -> Format:
        """The format of the operands."""
        return formats.get("fp64" if self.case.startswith("casts") else self.fmt)


DISTINCTIONS = (
    Distinction("contraction in fp32", "add alpha", "fp32", LAST, EACH, "xy"),
    Distinction("contraction in fp32", "addcmul", "fp32", FIRST, EACH, "xyz"),
    Distinction("contraction in fp32", "lerp", "fp32", LAST, EACH, "xy"),
    Distinction("contraction in fp32", "addcdiv", "fp32", FIRST, LAST, "xyz"),
    Distinction("contraction in fp16", "add alpha", "fp16", NARROW_ALPHA, EACH, "xy"),
    Distinction("square root in fp32", "sqrt", "fp32", None, ONCE, "x"),
    Distinction("functions in fp32", "exp", "fp32", None, RIGHT, "x"),
    Distinction("functions in fp16", "exp", "fp16", TWICE, RIGHT, "x"),
    Distinction("casts from fp64", "fp16", "fp16", TWICE, ONCE, "x"),
)
SAMPLE = 4096  # of three operands, among which the first difference is looked for


def told_apart(pair: Distinction, given: Arrays) -> np.ndarray:
    """On which operands torch gives its formula's result, and not the other's."""
    case = catalogue()[pair.case]
    got, guesses = in_vectors(case, given)[pair.output], by_formula(case, given)
    apart = differing(got, guesses[pair.other][pair.output], pair.fmt)
    if pair.torchs is not None:
        apart &= ~differing(got, guesses[pair.torchs][pair.output], pair.fmt)
    return apart


def weight(given: Arrays, pair: Distinction) -> np.ndarray:
    """How large operands are: significands' bits down to the last one that is set, far exponents, signs."""
    form, total = pair.form, 0
    for name in pair.used:
        code = given[name].astype(np.int64)
        fraction = code & ((1 << form.fraction_bits) - 1)
        lowest = np.log2(np.maximum(fraction & -fraction, 1)).astype(np.int64)
        length = np.where(fraction == 0, 0, form.fraction_bits - lowest)
        far = np.abs((code >> form.fraction_bits & ((1 << form.exponent_bits) - 1)) - (form.bias or 0))
        total = total + 64 * length + far + (code >> (form.bits - 1) & 1)
    return np.asarray(total)


def variants(code: int, form: Format) -> list[int]:
    """Simpler operands near one: the last bit that is set cleared, or the exponent nearer to zero, or no sign."""
    fraction, bias = code & ((1 << form.fraction_bits) - 1), form.bias or 0
    simpler = [code & ~(fraction & -fraction)] if fraction else []
    exponent = (code >> form.fraction_bits) & ((1 << form.exponent_bits) - 1)
    step = (exponent < bias) - (exponent > bias)
    for nearer in {bias, (exponent + bias) // 2, exponent + step} - {exponent}:
        simpler.append(code ^ ((exponent ^ nearer) << form.fraction_bits))
    return [*simpler, code ^ form.sign_mask] if code & form.sign_mask else simpler


def good(pair: Distinction, given: Arrays) -> np.ndarray:
    """The places of operands that tell formulas apart and lie between 2^-12 and 2^13: nothing overflows there."""
    sizes = [np.abs(numeric.decode(codes, pair.form, np.float64)) for codes in given.values()]
    ordinary = np.all([(size >= 2.0**-12) & (size < 2.0**13) for size in sizes], axis=0)
    return np.flatnonzero(told_apart(pair, given) & ordinary)


def smallest(pair: Distinction) -> dict[str, int] | None:
    """The codes of the smallest operands, or None where torch never differs from the other formula.

    Of operands on which they differ, bits of significands are cleared and exponents drawn towards zero for as long as
    they still differ. What is left has no bit that could be cleared.
    """
    many = SAMPLE if pair.case.startswith("contraction") else 1 << 16  # there the random operands come last
    plain = (pair.form.bias or 0) << pair.form.fraction_bits  # 1.0
    tried = {name: x[-many:] if name in pair.used else np.full_like(x[-many:], plain)
             for name, x in catalogue()[pair.case].inputs().items()}  # fmt: skip
    best, least = None, np.inf
    while True:
        weights, at = weight(tried, pair), good(pair, tried)
        at = at[weights[at] < least]
        if not at.size:
            return best
        place = at[np.argmin(weights[at])]
        best, least = {name: int(x[place]) for name, x in tried.items()}, weights[place]
        tried = batch([{**best, name: code} for name in pair.used for code in variants(best[name], pair.form)], tried)


def batch(rows: list[dict[str, int]], like: Arrays) -> Arrays:
    """Operands by name of rows of codes."""
    return {name: np.array([row[name] for row in rows], x.dtype) for name, x in like.items()}


@E.measure("examples")
def examples_of_torch(p: Params) -> list[dict[str, int] | None]:
    """The smallest operands of each distinction."""
    return [smallest(pair) for pair in DISTINCTIONS]


# --- the orders ----------------------------------------------------------------------------------------------------
N = 64
SUMS: dict[str, tuple[str, Callable[[Any], Any]]] = {  # format, and the sum of a tensor
    "torch.sum, FP32": ("fp32", lambda x: x.sum()),
    "torch.mean, FP32": ("fp32", lambda x: x.mean() * len(x)),
    "torch.cumsum, FP32": ("fp32", lambda x: x.cumsum(0)[-1]),
    "a column of torch.sum(0), FP32": ("fp32", lambda x: x.view(-1, 1).expand(-1, 8).contiguous().sum(0)[3]),
    "torch.sum, FP16": ("fp16", lambda x: x.sum()),
}


def torch_sum(name: str, x: np.ndarray) -> float:
    """One of SUMS, by torch."""
    import torch

    return float(SUMS[name][1](torch.from_numpy(np.ascontiguousarray(x))))


@E.measure("trees")
def trees(p: Params) -> dict[str, SumTree]:
    """The order of each of SUMS over N terms."""
    return {name: reveal_order(partial(torch_sum, name), N, fmt) for name, (fmt, _) in SUMS.items()}


def folded(tree: SumTree, terms: np.ndarray, wide: bool = False) -> np.float32:
    """A sum of FP32 terms in a tree's order, in FP32 or (``wide``) in FP64 and rounded once."""
    kind = np.float64 if wide else np.float32
    return np.float32(tree.fold(list(terms.astype(kind)), lambda parts: kind(sum(parts[1:], parts[0]))))


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """Every elementwise operation, cast and optimizer of the catalogue, and the orders of torch's own sums."""
    yield from elementwise.cases()
    for summation in order.SUMMATIONS:
        if summation.call in ("sum", "mean", "cumsum", "sum all"):
            yield order.order_case(summation)


@E.table
def rows(r: Result) -> Columns:
    """A row for each operation, format and place: how many results each formula gets wrong."""
    every = [(place, case, output, fmt) for place in PLACES for case in catalogue().values()
             for output, fmt in case.formats.items()]  # fmt: skip
    columns: dict[str, list[object]] = {
        "device": [f"CPU, {capability()}"] * len(every),
        "torch": [this_machine()["torch"]] * len(every),
        "case": [case.name for _, case, _, _ in every],
        "operation": [output for _, _, output, _ in every],
        "tensor": [place if place == LONG else "short" for place, *_ in every],
    }
    for name in FORMULAS:
        counts = [count(r, output, fmt, name, place) for place, _, output, fmt in every]
        columns[f"wrong if {name}"] = [None if n < 0 else n for n in counts]
    return columns


# --- claims about torch on this CPU, each against exact arithmetic or against torch's own other bits -------------
def count(r: Result, output: str, fmt: str, formula: str, place: str = LONG) -> int:
    """How many results a formula gets wrong, -1 where it says nothing."""
    n = float(r.wrong.sel(place=place, formula=formula, result=f"{output} {fmt}"))
    return -1 if np.isnan(n) else int(n)


def right(r: Result, wanted: Iterable[tuple[str, str, str]], places: Iterable[str] = PLACES) -> Outcome:
    """Whether formulas (output, format, formula) give every bit at places."""
    bad = [f"{output} in {fmt}, {place}: {n}" for output, fmt, formula in wanted for place in places
           if (n := count(r, output, fmt, formula, place))]  # fmt: skip
    return failed(joined(bad, CLAUSE)) if bad else passed()


@E.library("+, -, *, /, reciprocal and two written steps are each rounded once")
def arithmetic(r: Result) -> Outcome:
    outcome = right(r, [(o, f, ONCE) for o in elementwise.ARITHMETIC for f in elementwise.FORMATS])
    detail = say("{n} operations, 3 formats, 2 places", n=len(elementwise.ARITHMETIC))
    return passed(detail) if outcome.holds else outcome


@E.library("FP32 add(alpha=), addcmul and lerp are fused multiply-adds")
def contraction(r: Result) -> Outcome:
    if capability() not in WITH_FMA:
        return absent(say("torch uses no fused multiply-add here ({cpu})", cpu=capability()))
    fused = {"add alpha": LAST, "sub alpha": LAST, "lerp": LAST, "lerp far": LAST, "addcmul": FIRST}
    counts = {output: count(r, output, "fp32", EACH) for output in fused}
    text = joined([f"{output} {n:,}" for output, n in counts.items()], COMMA)
    outcome = right(r, [(output, "fp32", name) for output, name in fused.items()])
    detail = say("in two steps these would differ: {counts}", counts=text)
    return verdict(min(counts.values()) > 0, detail) if outcome.holds else outcome


@E.library("addcdiv is not fused")
def addcdiv(r: Result) -> Outcome:
    outcome, apart = right(r, [("addcdiv", "fp32", FIRST)]), count(r, "addcdiv", "fp32", LAST)
    detail = say("value * x, then / y, then +; fused {n:,} would differ", n=apart)
    return verdict(apart > 0, detail) if outcome.holds else outcome


@E.library("Half square roots are correctly rounded")
def square_roots(r: Result) -> Outcome:
    """Half square roots are right; of FP32's the number of wrong ones is told."""
    outcome = right(r, [("sqrt", fmt, ONCE) for fmt in ("fp16", "bf16")])
    detail = say("FP32: {n:,} of the operands' roots are not correctly rounded", n=count(r, "sqrt", "fp32", ONCE))
    return passed(detail) if outcome.holds else outcome


@E.library("Half add(alpha=) and rsqrt depend on the place: left-over elements round at every step")
def place(r: Result) -> Iterator[Part]:
    if capability() not in WITH_FMA:
        yield absent(say("torch has no vector code of this kind here ({cpu})", cpu=capability()))
    texts = []
    for fmt, output in itertools.product(("fp16", "bf16"), ("add alpha", "sub alpha", "rsqrt")):
        narrow = NARROW_ALPHA if output != "rsqrt" else TWICE
        wrong = count(r, output, fmt, narrow), count(r, output, fmt, NARROW, SHORT)
        yield say("{output} in {fmt} follows neither formula", output=output, fmt=fmt), not any(wrong)
        texts.append(f"{output} {fmt}: {count(r, output, fmt, narrow, SHORT)}")
    detail = say("short tensors' results that differ from the long one's formula: {counts}")
    yield passed(detail.fill(counts=joined(texts, COMMA)))


@E.library("Half exp, log and their like are FP32's results rounded again, but for 4 codes at most")
def functions(r: Result) -> Outcome:
    names = ("exp", "exp2", "expm1", "log", "log2", "tanh")
    counts = {f"{o} {f}": count(r, o, f, TWICE) for o in names for f in ("fp16", "bf16")}
    detail = say("every code of {n} functions; off by a code: none", n=len(counts))
    if off := {k: v for k, v in counts.items() if v}:
        detail = say("every code of {n} functions; off by a code: {off}", n=len(counts), off=off)
    return verdict(0 <= min(counts.values()) <= max(counts.values()) <= OFF, detail)


@E.library("Casts from FP64 to narrow formats round twice, through FP32")
def casts(r: Result) -> Outcome:
    targets = ("fp16", "bf16", "e4m3", "e5m2")
    outcome, counts = right(r, [(t, t, TWICE) for t in targets], [LONG]), {t: count(r, t, t, ONCE) for t in targets}
    return verdict(outcome.holds and min(counts.values()) > 0, say("near midpoints wrong: {counts}", counts=counts))


@E.library("An optimizer's loop and foreach give the same bits; fused has its own")
def optimizers(r: Result) -> Outcome:
    fused = dict(zip(OPTIMIZERS, map(int, r.ways.sel(way="fused").values), strict=True))
    detail = say("fused differs from the loop in SGD: {SGD} of 512, Adam: {Adam} of 512, AdamW: {AdamW} of 512")
    return verdict(not r.ways.sel(way="foreach").any(), detail.fill(**fused))


def shorter(code: int, form: Format) -> Iterator[int]:
    """A code without the last bit of its significand that is set, without its sign, a binade nearer to 1."""
    unit = 1 << form.fraction_bits
    if code % unit:
        yield code & (code - 1)
    if code & form.sign_mask:
        yield code ^ form.sign_mask
    if exponent := (code % form.sign_mask) // unit - (form.bias or 0):
        yield code - (unit if exponent > 0 else -unit)


@E.library("Each smallest example tells two formulas apart, and has no bit to spare")
def smallest_examples(r: Result) -> Iterator[Part]:
    """With the last bit of a significand, a sign or a binade less, none of them does."""
    there = [(pair, codes) for pair, codes in zip(DISTINCTIONS, r.examples, strict=True) if codes is not None]
    for pair, codes in there:
        like, name = catalogue()[pair.case].inputs(), {"output": pair.output, "fmt": pair.fmt}
        apart = told_apart(pair, batch([codes], like)).all()
        yield say("{output} in {fmt}: the example tells nothing apart", **name), apart
        fewer = [{**codes, name: code} for name in pair.used for code in shorter(codes[name], pair.form)]
        nearer = bool(fewer) and told_apart(pair, batch(fewer, like)).any()
        yield say("{output} in {fmt}: a smaller example is near", **name), not nearer
    detail = say("{n} of {all} distinctions have an example here", n=len(there), all=len(DISTINCTIONS))
    yield verdict(bool(there), detail)


@E.library("torch's add(alpha=) rounds the exact x + alpha*y once, on the smallest example")
def fused_example(r: Result) -> Outcome:
    """The example of add(alpha=) on Fractions: one rounding of the exact sum against two."""
    if r.examples[0] is None:
        return absent(say("torch does not fuse add(alpha=) here"))
    import torch

    codes = [r.examples[0][name] for name in "xy"]
    x, y = (exact.decode(code, "fp32") for code in codes)
    alpha = exact.from_float(float(np.float32(elementwise.ALPHA)))
    once, _ = exact.round_to(exact.fma(alpha, y, x)[0], "fp32")
    product = exact.decode(exact.round_to(exact.mul(alpha, y)[0], "fp32")[0], "fp32")
    twice, _ = exact.round_to(exact.add(x, product)[0], "fp32")
    first, other = (torch.from_numpy(np.array([code], np.uint32).view(np.float32)) for code in codes)
    got = int(torch.add(first, other, alpha=elementwise.ALPHA).numpy().view(np.uint32)[0])
    detail = say("{x} + {alpha} * {y}: {got:#x}, in two steps {twice:#x}", x=float(first), y=float(other), got=got)
    return verdict(got == once != twice, detail.fill(alpha=elementwise.ALPHA, twice=twice))


@E.library("Random sums folded in the revealed orders are torch's sums; cumsum adds in FP64")
def orders(r: Result) -> Iterator[Part]:
    raw = philox_bits(77, r.p.terms, N)  # terms of both signs and like size
    terms = ((raw & np.uint32(0x807FFFFF)) | np.uint32(0x3F800000)).view(np.float32)
    for name in (name for name in SUMS if name.endswith("FP32") and "mean" not in name):
        got = [folded(r.trees[name], row, wide="cumsum" in name) for row in terms]
        want = np.array([torch_sum(name, row) for row in terms], np.float32)
        yield name, np.array(got).view(np.uint32), want.view(np.uint32), "fp32"


# --- figures ----------------------------------------------------------------------------------------------------
SHOWN = {  # the order in which formulas are tried, what a cell says, and its colour: the series' number, None is plain
    ONCE: ("rounded once", None),
    RIGHT: ("rounded once", None),
    TWICE: ("FP32's, rounded again", 0),
    EACH: ("two steps in FP32", None),
    LAST: ("fused", 1),
    FIRST: ("fused, value·x first", 1),
    NARROW_ALPHA: ("alpha in the format", 3),
    NARROW: ("every step in the format", 3),
}


def says(r: Result, output: str, fmt: str, place: str) -> tuple[str, int | None]:
    """A cell: the first formula that gives every bit, or by how many results the nearest one is off."""
    known = {name: n for name in SHOWN if (n := count(r, output, fmt, name, place)) >= 0}
    exactly = [name for name in SHOWN if known.get(name) == 0]
    if not exactly:
        return f"{min(known.values()):,} wrong", 5
    if output == "addcdiv" and EACH not in exactly:
        return "value·x first, not fused", 0
    return ("the same either way", None) if {EACH, LAST} <= {*exactly} else SHOWN[exactly[0]]


@E.picture
def formulas(r: Result) -> draw.Figure:
    """Operations by formats and places: the formula that gives every bit."""
    figure, ax = draw.panels(8, 11)
    theme = draw.current()
    names = list(dict.fromkeys(o for case in catalogue().values() if "casts" not in case.name for o in case.formats))
    columns = [(fmt, place) for fmt in elementwise.FORMATS for place in PLACES]
    for x, (fmt, place) in enumerate(columns, start=1):
        ax.text(x, -0.75, f"{fmt.upper()},\n{place}", fontsize=9, fontweight="bold", va="center")
        for y, name in enumerate(names):
            label, series = says(r, name, fmt, place)
            color = theme.ink if series is None else theme.series[series]
            ax.barh(y + 0.5, 0.96 * (series is not None), 0.88, left=x - 0.03, color=color, alpha=0.16)
            ax.text(x, y + 0.5, textwrap.fill(label, 14), fontsize=9, va="center", color=color, linespacing=1)
    for y, name in enumerate(names):
        ax.text(0.2, y + 0.5, textwrap.fill(name, 11), fontsize=9, va="center")
    ax.set(xlim=(0.2, 1 + len(columns)), ylim=(len(names) + 0.1, -1.2))
    ax.set_axis_off()
    ax.set_title("Which formula gives every bit of torch on this CPU")
    return figure


@E.picture
def examples(r: Result) -> draw.Figure:
    """The smallest operands that tell formulas apart, and the order of a sum."""
    figure, (ax, below) = draw.panels(8, 6.5, 2, 1, height_ratios=[1.2, 1])
    lines: list[tuple[str, ...]] = [("operation", "torch does", "and not", "on")]
    for pair, codes in zip(DISTINCTIONS, r.examples, strict=True):
        values = ", ".join(f"{name} = {float(numeric.decode(np.uint64(codes[name]), pair.form, np.float64))!r}"
                           for name in pair.used) if codes else "no difference here"  # fmt: skip
        name = "FP64 to FP16" if pair.form.name == "fp64" else f"{pair.output}, {pair.fmt.upper()}"
        lines.append((name, *(words(formula, pair.output) for formula in (pair.torchs, pair.other)), values))
    for y, line in enumerate(lines):
        for x, text in zip((0.0, 0.16, 0.36, 0.55), line, strict=True):
            ax.text(x, y, text, fontsize=9, va="center", color=draw.current().ink if y else draw.current().muted)
    ax.set_axis_off()
    ax.set(xlim=(0, 1), ylim=(len(lines), -1), title="The smallest operands that tell torch's formula from another one")
    draw.sum_tree(below, r.trees["torch.sum, FP32"], labels=20)
    below.set_title(f"torch.sum, FP32, {N} terms")
    return figure


def words(formula: str | None, output: str) -> str:
    """What a formula is called beside an operation."""
    if formula is None:
        return "none of these"
    if output == "addcdiv":
        return "fused" if formula == LAST else "value·x first, not fused"
    return "fused" if formula == FIRST else SHOWN[formula][0]


E.answer("torch fuses FP32's add(alpha=): two steps would give {apart:,} other results; {roots} FP32 roots are not "
         "correctly rounded",
         apart=lambda r: count(r, "add alpha", "fp32", EACH),
         roots=lambda r: count(r, "sqrt", "fp32", ONCE))  # fmt: skip
