"""Which bits torch really computes: a catalogue, by operation and format, with the smallest example of each surprise.

Anyone who writes an oracle for a training step must know which of torch's operations round once, which twice, and
which are fused; the documentation says none of it, and it changes with the compiler, the vector instructions and the
device. Here every operation is compared with the formulas it might follow, on the CPU now and on a GPU by record.
The GPU cases are the recorder's own elementwise ones and its sums.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ... import draw, exact, formats, numeric
from ...hardware import elementwise, order
from ...hardware.cases import Case, philox_bits
from ...reveal import SumTree
from ...words import CLAUSE, COMMA, joined, say
from ..base import Claims, Columns, Digested, Experiment, Tick
from ..outcomes import Outcome, absent, failed, passed, verdict
from . import catalogue
from .catalogue import DISTINCTIONS, EACH, FIRST, FORMULAS, LAST, NARROW, NARROW_ALPHA, ONCE, PLACES, RIGHT, TWICE, USED

OPTIMIZERS, WAYS = tuple(elementwise.OPTIMIZERS), tuple(elementwise.WAYS)
OPERANDS = ("x", "y", "z")
LONG, SHORT = range(len(PLACES))
NONE = np.uint64(2**64 - 1)
WITH_FMA = ("AVX2", "AVX512")
OFF = 4  # of 65,536 codes: where FP32's own results differ between vector instructions, and lie by a midpoint


@dataclass(frozen=True)
class Params:
    """``terms``: how many random sums are folded in a revealed order."""

    terms: int = 512


@dataclass(frozen=True)
class Result:
    """``wrong``: how many results a formula gets wrong, int64 (places, rows, FORMULAS), -1 where it says nothing;
    ``codes``: the smallest examples, uint64 (DISTINCTIONS, operands), all ones where torch shows no difference;
    ``ways``: in how many of 512 parameters an optimizer's way differs from its loop; ``paths``: for every pair of terms
    the size of the smallest part of the sum that holds both, int64 (sums, N, N). ``formats``: how many outputs each
    case of the catalogue has, int64: the one thing that no machine changes.
    """

    params: Params
    wrong: np.ndarray
    codes: np.ndarray
    ways: np.ndarray
    paths: np.ndarray
    formats: Digested

    def count(self, output: str, fmt: str, name: str, place: int = LONG) -> int:
        """How many results of a row a formula gets wrong, -1 where it says nothing."""
        column = FORMULAS.index(name)
        said = (i for i, row in enumerate(catalogue.rows()) if (row.output, row.fmt) == (output, fmt))
        at = next((i for i in said if self.wrong[LONG, i, column] >= 0), None)
        return -1 if at is None else int(self.wrong[place, at, column])

    def not_right(self, wanted: Iterable[tuple[str, str, str, int]]) -> list[str]:
        """Of (output, format, formula, place) those that are not right to the last bit."""
        return [f"{o} in {f}, {PLACES[p]}: {n}" for o, f, name, p in wanted if (n := self.count(o, f, name, p)) != 0]


def capability() -> str:
    """Which vector instructions torch uses here."""
    import torch

    return str(torch.backends.cpu.get_cpu_capability())


def this_machine() -> dict[str, str]:
    """What a record would say of torch here."""
    import torch

    return {"torch": str(torch.__version__), "kind": "cpu"}


def run(params: Params, tick: Tick) -> Result:
    """Everything, by torch on this machine's CPU."""
    meta, every, known = this_machine(), catalogue.rows(), catalogue.cases()
    wrong = np.full((len(PLACES), len(every), len(FORMULAS)), -1, np.int64)
    for i, case in enumerate(known):
        tick(0.6 * i / len(known), case.name)
        for p, place in enumerate(PLACES):
            for row, name, count in catalogue.answers(case, place, meta):
                wrong[p, every.index(row), FORMULAS.index(name)] = count
    by_name = {case.name: case for case in known}
    codes = np.full((len(DISTINCTIONS), len(OPERANDS)), NONE)
    for i, one in enumerate(DISTINCTIONS):
        tick(0.6 + 0.2 * i / len(DISTINCTIONS), f"smallest example of {one.output}")
        for name, code in (catalogue.smallest(by_name[one.case], one, meta) or {}).items():
            codes[i, OPERANDS.index(name)] = code
    tick(0.8, "optimizers")
    ways = np.array([optimizer(name) for name in OPTIMIZERS])
    tick(0.9, "orders of sums")
    paths = np.stack([catalogue.tree(name).sizes for name in catalogue.SUMS])
    return Result(params, wrong, codes, ways, paths, np.array([len(case.formats) for case in known], np.int64))


def optimizer(name: str) -> list[int]:
    """In how many parameters each way differs from the loop, after three steps."""
    case = elementwise.optimizer_case(name)
    found = case.compute(case.inputs(), "cpu")
    return [int((found[way] != found[WAYS[0]]).sum()) for way in WAYS]


def cases(params: Params) -> Iterator[Case]:
    """Every elementwise operation, cast and optimizer of the catalogue, and the orders of torch's own sums."""
    yield from elementwise.cases()
    for one in order.SUMMATIONS:
        if one.call in ("sum", "mean", "cumsum", "sum all"):
            yield order.order_case(one)


def rows(result: Result) -> Columns:
    """A row for each operation, format and place: how many results each formula gets wrong."""
    places = [(p, i, row) for p in range(len(PLACES)) for i, row in enumerate(catalogue.rows())]
    columns: dict[str, list[object]] = {
        "device": [f"CPU, {capability()}"] * len(places),
        "torch": [this_machine()["torch"]] * len(places),
        "case": [row.case for _, _, row in places],
        "operation": [row.output for _, _, row in places],
        "tensor": [PLACES[p] for p, _, _ in places],
    }
    for j, name in enumerate(FORMULAS):
        counts = [int(result.wrong[p, i, j]) for p, i, _ in places]
        columns[f"wrong if {name}"] = [None if n < 0 else n for n in counts]
    return columns


# --- claims about torch on this CPU, each against exact arithmetic or against torch's own other bits -------------
CLAIMS = Claims()
BOTH = (LONG, SHORT)


@CLAIMS.library("+, -, *, /, reciprocal and two written steps are each rounded once")
def arithmetic(result: Result) -> Outcome:
    operations = elementwise.ARITHMETIC
    if bad := result.not_right((o, f, ONCE, p) for o in operations for f in elementwise.FORMATS for p in BOTH):
        return failed(joined(bad, CLAUSE))
    return passed(say("{n} operations, 3 formats, 2 places", n=len(operations)))


@CLAIMS.library("FP32 add(alpha=), addcmul and lerp are fused multiply-adds")
def contraction(result: Result) -> Outcome:
    if capability() not in WITH_FMA:
        return absent(say("torch uses no fused multiply-add here ({cpu})", cpu=capability()))
    fused = {"add alpha": LAST, "sub alpha": LAST, "lerp": LAST, "lerp far": LAST, "addcmul": FIRST}
    if bad := result.not_right((o, "fp32", name, p) for o, name in fused.items() for p in BOTH):
        return failed(joined(bad, CLAUSE))
    counts = {o: result.count(o, "fp32", EACH) for o in fused}
    text = joined([f"{o} {n:,}" for o, n in counts.items()], COMMA)
    return verdict(min(counts.values()) > 0, say("in two steps these would differ: {counts}", counts=text))


@CLAIMS.library("addcdiv is not fused")
def addcdiv(result: Result) -> Outcome:
    if bad := result.not_right(("addcdiv", "fp32", FIRST, p) for p in BOTH):
        return failed(joined(bad, CLAUSE))
    apart = result.count("addcdiv", "fp32", LAST)
    return verdict(apart > 0, say("value * x, then / y, then +; fused {n:,} would differ", n=apart))


@CLAIMS.library("Half square roots are correctly rounded")
def square_roots(result: Result) -> Outcome:
    """Half square roots are right; of FP32's the number of wrong ones is told."""
    if bad := result.not_right(("sqrt", f, ONCE, p) for f in ("fp16", "bf16") for p in BOTH):
        return failed(joined(bad, CLAUSE))
    off = result.count("sqrt", "fp32", ONCE)
    return passed(say("FP32: {n:,} of the operands' roots are not correctly rounded", n=off))


@CLAIMS.library("Half add(alpha=) and rsqrt depend on the place: left-over elements round at every step")
def place(result: Result) -> Outcome:
    if capability() not in WITH_FMA:
        return absent(say("torch has no vector code of this kind here ({cpu})", cpu=capability()))
    texts = []
    for fmt in ("fp16", "bf16"):
        for output in ("add alpha", "sub alpha", "rsqrt"):
            narrow = NARROW_ALPHA if output != "rsqrt" else TWICE
            if result.not_right([(output, fmt, narrow, LONG), (output, fmt, NARROW, SHORT)]):
                return failed(say("{output} in {fmt} follows neither formula", output=output, fmt=fmt))
            texts.append(f"{output} {fmt}: {result.count(output, fmt, narrow, SHORT)}")
    said = say("short tensors' results that differ from the long one's formula: {counts}")
    return passed(said.fill(counts=joined(texts, COMMA)))


@CLAIMS.library("Half exp, log and their like are FP32's results rounded again, but for 4 codes at most")
def functions(result: Result) -> Outcome:
    names = ("exp", "exp2", "expm1", "log", "log2", "tanh")
    counts = {f"{o} {f}": result.count(o, f, TWICE) for o in names for f in ("fp16", "bf16")}
    said = say("every code of {n} functions; off by a code: none", n=len(counts))
    if off := {k: v for k, v in counts.items() if v}:
        said = say("every code of {n} functions; off by a code: {off}", n=len(counts), off=off)
    return verdict(0 <= min(counts.values()) <= max(counts.values()) <= OFF, said)


@CLAIMS.library("Casts from FP64 to narrow formats round twice, through FP32")
def casts(result: Result) -> Outcome:
    targets = ("fp16", "bf16", "e4m3", "e5m2")
    if bad := result.not_right((t, t, TWICE, LONG) for t in targets):
        return failed(joined(bad, CLAUSE))
    counts = {t: result.count(t, t, ONCE) for t in targets}
    return verdict(min(counts.values()) > 0, say("near midpoints wrong: {counts}", counts=counts))


@CLAIMS.library("An optimizer's loop and foreach give the same bits; fused has its own")
def optimizers(result: Result) -> Outcome:
    fused = dict(zip(OPTIMIZERS, result.ways[:, WAYS.index("fused")].tolist(), strict=True))
    said = say("fused differs from the loop in SGD: {SGD} of 512, Adam: {Adam} of 512, AdamW: {AdamW} of 512")
    return verdict(not result.ways[:, WAYS.index("foreach")].any(), said.fill(**fused))


def shorter(code: int, form: formats.Format) -> Iterator[int]:
    """A code without the last bit of its significand that is set, without its sign, a binade nearer to 1."""
    unit = 1 << form.fraction_bits
    if code % unit:
        yield code & (code - 1)
    if code & form.sign_mask:
        yield code ^ form.sign_mask
    if exponent := (code % form.sign_mask) // unit - (form.bias or 0):
        yield code - (unit if exponent > 0 else -unit)


@CLAIMS.library("Each smallest example tells two formulas apart, and has no bit to spare")
def smallest_examples(result: Result) -> Outcome:
    """With the last bit of a significand, a sign or a binade less, none of them does."""
    meta, by_name = this_machine(), {case.name: case for case in catalogue.cases()}
    found = 0
    for one, codes in zip(DISTINCTIONS, result.codes, strict=True):
        if (codes == NONE).all():
            continue
        case = by_name[one.case]
        kind = {name: x.dtype for name, x in case.inputs().items()}
        given = {n: np.array([c], kind[n]) for n, c in zip(OPERANDS, codes, strict=True) if n in kind}
        if not catalogue.told_apart(case, one, given, meta).all():
            return failed(say("{output} in {fmt}: the example tells nothing apart", output=one.output, fmt=one.fmt))
        form = formats.get("fp64" if case.name.startswith("casts") else one.fmt)
        tried = [{n: int(x[0]) for n, x in given.items()} | {name: code} for name in USED[one.output]
                 for code in shorter(int(given[name][0]), form)]  # fmt: skip
        fewer = {n: np.array([codes[n] for codes in tried], kind[n]) for n in given}
        if tried and catalogue.told_apart(case, one, fewer, meta).any():
            return failed(say("{output} in {fmt}: a smaller example is near", output=one.output, fmt=one.fmt))
        found += 1
    return verdict(found > 0, say("{n} of {all} distinctions have an example here", n=found, all=len(DISTINCTIONS)))


@CLAIMS.library("torch's add(alpha=) rounds the exact x + alpha*y once, on the smallest example")
def fused_example(result: Result) -> Outcome:
    """The example of add(alpha=) on Fractions: one rounding of the exact sum against two."""
    codes = result.codes[0]
    if (codes == NONE).all():
        return absent(say("torch does not fuse add(alpha=) here"))
    x, y = (exact.decode(int(c), "fp32") for c in codes[:2])
    alpha = exact.from_float(float(np.float32(elementwise.ALPHA)))
    once, _ = exact.round_to(exact.fma(alpha, y, x)[0], "fp32")
    product = exact.decode(exact.round_to(exact.mul(alpha, y)[0], "fp32")[0], "fp32")
    twice, _ = exact.round_to(exact.add(x, product)[0], "fp32")
    import torch

    one, other = (torch.from_numpy(np.array([c], np.uint32).view(np.float32)) for c in codes[:2])
    got = int(torch.add(one, other, alpha=elementwise.ALPHA).numpy().view(np.uint32)[0])
    said = say("{x} + {alpha} * {y}: {got:#x}, in two steps {twice:#x}", x=float(one), y=float(other), got=got)
    return verdict(got == once != twice, said.fill(alpha=elementwise.ALPHA, twice=twice))


@CLAIMS.library("Random sums folded in the revealed orders are torch's sums; cumsum adds in FP64")
def orders(result: Result) -> Outcome:
    import torch

    done, terms = 0, random_terms(result.params.terms)
    for name, sizes in zip(catalogue.SUMS, result.paths, strict=True):
        if not name.endswith("FP32") or "mean" in name:
            continue
        tree = SumTree.from_sizes(sizes)
        for row in terms:
            want = np.float32(catalogue.SUMS[name][2](torch, torch.from_numpy(row)).item())
            got = catalogue.folded(tree, row, catalogue.wide(name))
            if got.tobytes() != want.tobytes():
                return failed(say("{sum}: {got} against torch's {want}", sum=name, got=float(got), want=float(want)))
        done += len(terms)
    return passed(say("{n:,} sums of {terms} terms, every bit", n=done, terms=catalogue.N))


def random_terms(n: int) -> np.ndarray:
    """Rows of terms of both signs and like size, float32 (n, N)."""
    raw = philox_bits(77, n * catalogue.N).reshape(n, catalogue.N)
    return ((raw & np.uint32(0x807FFFFF)) | np.uint32(0x3F800000)).view(np.float32)


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
TREES = ("torch.sum, FP32", "a column of torch.sum(0), FP32")


def formulas(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 11)
    draw.caption(figure, caption(), fontsize=9)
    draw_matrix(figure.subplots(), result)
    return figure


def examples(result: Result) -> draw.Figure:
    figure, (above, *below) = draw.panels(8, 9, 3, 1, height_ratios=[1.2, 1, 1])
    draw_told(above, result)
    for i, (ax, name) in enumerate(zip(below, TREES, strict=True)):
        tree = SumTree.from_sizes(result.paths[list(catalogue.SUMS).index(name)])
        draw.sum_tree(ax, tree, style=draw.look(i), labels=20)
        ax.set_title(f"{name}, {catalogue.N} terms")
    return figure


def caption() -> str:
    """One line on where the numbers come from."""
    import torch

    return (
        f"torch {torch.__version__} on a CPU with {torch.backends.cpu.get_cpu_capability()}; a long tensor: 14,744\n"
        "operands, or every code of a half format; seven elements: an eighth of them and fewer. Wrong: of all results"
    )


def says(wrong: np.ndarray, output: str) -> tuple[str, int | None]:
    """A cell: the first formula that gives every bit, or by how many results the nearest one is off."""
    known = {name: int(wrong[FORMULAS.index(name)]) for name in SHOWN if wrong[FORMULAS.index(name)] >= 0}
    right = [name for name in SHOWN if known.get(name) == 0]
    if not right:
        return f"{min(known.values()):,} wrong", 5
    if output == "addcdiv" and EACH not in right:
        return "value·x first, not fused", 0
    if EACH in right and LAST in right:
        return "the same either way", None
    return SHOWN[right[0]]


def draw_matrix(ax: draw.Axes, result: Result) -> None:
    """Operations by formats and places."""
    from matplotlib.patches import Rectangle

    theme = draw.current()
    names = list(dict.fromkeys(r.output for r in catalogue.rows() if not r.case.startswith("casts")))
    columns = [(fmt, place) for fmt in elementwise.FORMATS for place in (0, 1)]
    width, left = 1.0, 0.75
    for c, (fmt, place) in enumerate(columns):
        x = left + c * width
        text = f"{fmt.upper()},\n{('long', '7 elements')[place]}"
        ax.text(x + 0.04, -0.75, text, fontsize=9, fontweight="bold", va="center")
        for r, name in enumerate(names):
            at = [i for i, row in enumerate(catalogue.rows()) if (row.output, row.fmt) == (name, fmt)]
            label, series = says(result.wrong[place, at[0]], name)
            color = theme.ink if series is None else theme.series[series]
            if series is not None:
                box = Rectangle((x, r + 0.06), width - 0.03, 0.88, facecolor=color, alpha=0.16, linewidth=0)
                ax.add_patch(box)
            ax.text(x + 0.04, r + 0.5, textwrap.fill(label, 14), fontsize=9, va="center", color=color, linespacing=1)
    for r, name in enumerate(names):
        ax.text(0, r + 0.5, textwrap.fill(name, 11), fontsize=9, va="center")
        ax.axhline(r, color=theme.grid, linewidth=0.5)
    ax.set(xlim=(0, left + len(columns) * width), ylim=(len(names) + 0.1, -1.2))
    ax.set_axis_off()
    ax.set_title("Which formula gives every bit of torch on this CPU")


def draw_told(ax: draw.Axes, result: Result) -> None:
    theme = draw.current()
    ax.set_axis_off()
    ax.set(xlim=(0, 1), ylim=(len(DISTINCTIONS) + 0.2, -1.1))
    ax.set_title(
        f"The smallest operands found that tell torch's formula from another one (alpha = {elementwise.ALPHA})"
    )
    places = (0.0, 0.16, 0.36, 0.55)
    for x, text in zip(places, ("operation", "torch does", "and not", "on"), strict=True):
        ax.text(x, -0.5, text, fontsize=9, color=theme.muted, va="center")
    for r, (one, codes) in enumerate(zip(DISTINCTIONS, result.codes, strict=True)):
        fmt = "fp64" if one.case.startswith("casts") else one.fmt
        values = "no difference here"
        if not (codes == NONE).all():
            used = [(n, c) for n, c in zip(OPERANDS, codes, strict=True) if n in USED[one.output]]
            values = ", ".join(f"{n} = {float(numeric.decode(np.uint64(c), fmt, np.float64))!r}" for n, c in used)
        name = "FP64 to FP16" if fmt == "fp64" else f"{one.output}, {one.fmt.upper()}"
        torchs = "none of these" if one.torchs is None else words(one.torchs, one.output)
        for x, text in zip(places, (name, torchs, words(one.other, one.output), values), strict=True):
            ax.text(x, r + 0.3, text, fontsize=9, va="center")
        ax.axhline(r + 0.8, color=theme.grid, linewidth=0.5)


def words(formula: str, output: str) -> str:
    if output == "addcdiv":
        return "fused" if formula == LAST else "value·x first, not fused"
    return "fused" if formula == FIRST else SHOWN[formula][0]


EXPERIMENT = Experiment(
    title=say("The bits torch computes"),
    question=say("Which of torch's operations are fused, rounded twice or not correctly rounded, and where?"),
    budget=3.0, full=Params(), quick=Params(terms=32), result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(formulas, examples), cases=cases,
)  # fmt: skip
