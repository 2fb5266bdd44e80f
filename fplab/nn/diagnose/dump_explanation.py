"""The answer to two dumps: ``explain("dump a", "dump b")``."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from ...columns import REPORT, as_csv, folded, grid
from ...errors import LabError
from ...words import NOTHING, Text, joined, say, verbatim
from ..reporting import Progress, Report, number
from . import capturing, debug_log
from .dump_causes import (
    Cone,
    Facts,
    Search,
    Side,
    Tensor,
    apart,
    collective,
    computed,
    cone,
    facts,
    fused,
    is_compiled,
    twins,
    ways,
)
from .dumps import Dump, read
from .explain_report import in_words

SAME = say("Both give the same bits at the output.")
APART = say("The outputs differ by {far:.2e} of the norm of a's.")
SAME_HASH = say("The outputs have the same hash.")
NO_VALUES = say("The outputs differ; their values were not kept.")
UNLIKE = say("The outputs have {a} and {b}; their difference cannot be taken.")
NOTHING_KNOWN = say("The outputs differ, and no pair of operations that should give the same was found.")
STATE = say("Settings that differ: {settings}.")
CAUSE = say("{place}: {kind}{facts}.")
EXACT = say("Computed so from a's operands, it has b's bits.")
EXACT_AS = say("Computed from a's operands as follows, it has b's bits: {way}.")
NEAREST = say("Nearest to b, of what was tried: {way}; {left:.1e} of its norm are left.")
UNTRIED = say("It could not be computed again here: operands were not kept.")
SUM = say("Causes found: {n}, with {share:.1%} of the difference at the output; {rest:.1%} is left.")
KINDS = say("By kind: {kinds}.")
KIND = say("{kind} {share:.1%}")
STRAY = say("{side} was computed otherwise than this machine does, from {operation} in {module} on.")
GIVEN = say("a, b: pass the folder of a dump, or a function without arguments that computes; {given} is neither.")
HEADS = (say("in a"), say("in b"), say("cause"), say("differs in"), say("left"), say("part of all"))  # fmt: skip
AS_B = say("as b does")
MOST = 24


@dataclass(frozen=True)
class Cause:
    """One place where the programs part. ``a``, ``b``: the modules; ``kind``: of the cause; ``facts``: how in each.

    ``way``: the computation that has b's bits or comes nearest; ``exact``: whether it has them; ``left``: what it is
    off, relative; NaN where nothing could be computed. ``share``: its part of the difference at the output, NaN where
    that is not known. ``operations``: those by which each makes the tensor.
    """

    a: str
    b: str
    kind: Text
    facts: Facts
    way: Text
    exact: bool
    left: float
    share: float
    operations: tuple[str, str]

    @property
    def text(self) -> Text:
        """One cause, in words."""
        told = joined((verbatim(" ("), in_words(self.facts), verbatim(")"))) if self.facts else verbatim("")
        place = self.a if self.a == self.b else f"{self.a or '-'} / {self.b or '-'}"
        cause = CAUSE.fill(place=verbatim(place or "-"), kind=self.kind, facts=told)
        if math.isnan(self.left):
            return joined((cause, UNTRIED), " ")
        if not self.exact:
            return joined((cause, NEAREST.fill(way=self.way, left=self.left)), " ")
        return joined((cause, EXACT if self.way is AS_B else EXACT_AS.fill(way=self.way)), " ")


@dataclass(frozen=True, repr=False)
class DumpExplanation(Report):
    """Why two programs differ. ``whole``: the relative difference of their outputs; ``rows``: causes, first to last.

    ``state``: settings of torch and the machine that differ; ``stray``: for each side the module and operation from
    which on this machine does not give its bits, or None; ``shapes``: of outputs that cannot be compared; ``rest``: the
    part of the difference at the output that no cause takes, NaN where it is not known; ``hashed``: whether of the
    outputs their hashes alone are known.
    """

    FILE = "explain"
    ROW = Cause

    names: tuple[str, str]
    whole: float
    rows: tuple[Cause, ...]
    state: Facts
    stray: tuple[tuple[str, str] | None, tuple[str, str] | None]
    shapes: tuple[str, str]
    rest: float
    hashed: bool = False

    @property
    def text(self) -> Text:
        """All but the table."""
        result = list[Text]()
        if self.shapes[0] != self.shapes[1]:
            result.append(UNLIKE.fill(a=verbatim(self.shapes[0]), b=verbatim(self.shapes[1])))
        elif math.isnan(self.whole):
            result.append(NO_VALUES)
        else:
            same = SAME_HASH if self.hashed else SAME
            result.append(same if self.whole == 0 else APART.fill(far=self.whole))
        if self.whole and not self.rows:
            result.append(NOTHING_KNOWN)
        result += [row.text for row in self.rows[:1]]
        if self.rows and not math.isnan(self.rest):
            result.append(SUM.fill(n=len(self.rows), share=1 - self.rest, rest=self.rest))
            texts = {str(row.kind): row.kind for row in self.rows}
            kinds = {text: math.fsum(r.share for r in self.rows if str(r.kind) == text) for text in texts}
            if len(kinds) > 1:
                ranked = sorted(kinds.items(), key=lambda one: -abs(one[1]))
                told = joined([KIND.fill(kind=texts[kind], share=share) for kind, share in ranked], ", ")
                result.append(KINDS.fill(kinds=told))
        for side, stray in zip("ab", self.stray, strict=True):
            if stray is not None:
                result.append(STRAY.fill(side=side, module=verbatim(stray[0] or "-"), operation=verbatim(stray[1])))
        if self.state and self.whole:
            result.append(STATE.fill(settings=in_words(self.state)))
        return joined(result, "\n")

    def paragraphs(self) -> Iterator[list[str]]:
        """What is said, and a table of the causes."""
        yield folded(str(self.text).split("\n"))
        if self.rows:
            cells = [[r.a, r.b, str(r.kind), str(in_words(r.facts) if r.facts and r.way is AS_B else r.way),
                      "" if r.exact else number(r.left, ".1e"), number(r.share, ".1%")] for r in self.rows]  # fmt: skip
            yield grid([[*map(str, HEADS)], *cells], REPORT)

    def csv(self) -> str:
        """The causes as CSV, numbers in full."""
        rows = [[r.a, r.b, str(r.kind), str(in_words(r.facts)) if r.facts else "", str(r.way), r.exact, r.left, r.share,
                 " / ".join(r.operations)] for r in self.rows]  # fmt: skip
        return as_csv([[f.name for f in fields(Cause)], *rows])


def dump_of(given: Any) -> Dump:
    """A dump that lies in a folder, or that a function without arguments gives when it is called."""
    if isinstance(given, Dump):
        return given
    if isinstance(given, (str, Path)):
        return debug_log.read(Path(given)) if Path(given).is_file() else read(given)
    if not callable(given):
        raise LabError(GIVEN.fill(given=type(given).__name__))
    with tempfile.TemporaryDirectory() as folder:
        with capturing.Capture(None, folder, "all", most=1 << 31) as recording:
            recording.gave(given())
        return read(folder)


def explain_dumps(a: Any, b: Any, most: int | None = None, progress: Progress | None = None) -> DumpExplanation:
    """Why two programs differ, each a dump's folder or a function that computes.

    ``most``: causes that are sought, 24 if None. ``progress``: receives each cause as it is found.
    """
    dumps = dump_of(a), dump_of(b)
    sides = computed(dumps[0]), computed(dumps[1])
    places, now = twins(*dumps), sides[0]
    ends = [_output(side) for side in sides]
    alike = ends[0] is not None and ends[1] is not None and ends[0].numel() == ends[1].numel()
    difference = (ends[1] - ends[0]) if alike else None  # type: ignore[operator]
    instead: dict[int, dict[int, Tensor]] = {}
    causes, output, seen = list[Cause](), ends[0], set[tuple[int, int]]()
    while len(causes) < (most or MOST):
        search = Search(now, sides[1], places)
        pair = search.pair()
        if pair is None or pair in seen:
            break
        seen.add(pair)
        cause, result, known = _tried(search, *pair)
        made = dumps[0].producers.get(pair[0], -1)
        share = math.nan
        fits = result is not None and made >= 0 and pair[0] in dumps[0].operations[made].results
        if fits and result is not None:
            place = dumps[0].operations[made].results.index(pair[0])
            instead = {**instead, made: {**instead.get(made, {}), **_siblings(sides, *pair), place: result}}
            now = Side(dumps[0], sides[0].way, instead, sides[0])
            after = _output(now)
            if difference is not None and output is not None and after is not None:
                size = float(difference.square().sum())
                share = float(((after - output) * difference).sum()) / size if size else 0.0
            output = after
            if known is not None and known is not result:  # what is left of it is no later cause's
                instead[made][place] = known
                now = Side(dumps[0], sides[0].way, instead, sides[0])
                output = _output(now)
        causes.append(replace(cause, share=share))
        if progress is not None:
            progress(causes[-1].text)
        if not fits:
            break
    whole = apart((ends[0], None), (ends[1], None)) if alike else math.nan  # type: ignore[arg-type]
    noted = [side.dump.tensors[side.dump.output].get("digest") if side.dump.output >= 0 else None for side in sides]
    hashed = ends == [None, None]
    whole = 0.0 if hashed and noted[0] == noted[1] is not None else whole
    shares = [cause.share for cause in causes]
    strays = _stray(sides[0]), _stray(sides[1])
    state = {name: (str(x), str(y)) for name, x in dumps[0].state.items() if x != (y := dumps[1].state.get(name))}
    shapes = ("", "") if alike else (_shape(dumps[0]), _shape(dumps[1]))
    names = str(dumps[0].path.parent), str(dumps[1].path.parent)
    rest = round(1 - math.fsum(shares), 9) + 0.0
    return DumpExplanation(names, whole, tuple(causes), state, strays, shapes, rest, hashed)


def _stray(side: Side) -> tuple[str, str] | None:
    op = side.dump.operations[side.stray] if side.stray >= 0 else None
    return None if op is None else (op.module, op.short)


def _shape(dump: Dump) -> str:
    note = dump.tensors[dump.output] if dump.output >= 0 else {"dtype": "-", "shape": ""}
    return f"{note['dtype']} {note['shape']}"


def _siblings(sides: tuple[Side, Side], i: int, j: int) -> dict[int, Tensor]:
    """What one operation gives besides a tensor, such as a normalisation's mean, as b has it, by place."""
    x, y = sides[0].maker(i), sides[1].maker(j)
    if x is None or y is None or x.short != y.short:
        return {}
    return {place: value for place, n in enumerate(y.results) if n >= 0 and (value := sides[1].values[n]) is not None}


def _output(side: Side) -> Tensor | None:
    x = side.values[side.dump.output] if side.dump.output >= 0 else None
    return None if x is None else x.detach().double().reshape(-1)


def _cones(search: Search, i: int, j: int) -> tuple[Cone, Cone]:
    return cone(search.a, i, search.common[0]), cone(search.b, j, search.common[1])


def _tried(search: Search, i: int, j: int) -> tuple[Cause, Tensor | None, Tensor | None]:
    """The cause of a pair, the tensor that it gives, and b's, or the same where that is not known."""
    mine, theirs = _cones(search, i, j)
    kind, differs = facts(mine, theirs)
    note, target = theirs.side.dump.tensors[j], theirs.side.known(j)
    exchanged = any(map(collective, theirs.ops))
    found: list[tuple[float, Text, Tensor]] = []

    def attempt(of: Cone, values: dict[int, Tensor] | None, name: Text, way: Callable[..., Any] | None = None) -> bool:
        try:
            x = None if values is None else of.compute(values, way, exchanged)
        except (LabError, RuntimeError):  # that this way is none for these operands
            return False
        if x is None or x.numel() != math.prod(note["shape"]):
            return False
        x = x.reshape(note["shape"]).to(getattr(torch, note["dtype"]))
        known = theirs.side.values[j]  # also of what was noted without a digest
        exact = theirs.side.dump.has_bits(j, x) or (known is not None and torch.equal(known, x))
        found.append((0.0 if exact else apart((x, None), target) if target else math.inf, name, x))
        return exact

    compiled = any(map(is_compiled, theirs.ops))
    if exchanged or compiled:  # what other ranks gave is not here: a's own product is cut as theirs is
        own = {n: x for n in mine.common if (x := search.a.values[n]) is not None}
        done, of, values = False, mine, own if len(own) == len(mine.common) else None
        if compiled and values is not None:
            done = attempt(of, values, *fused(of, values))
    else:
        of, values = theirs, search.operands(theirs)
        done = attempt(of, values, AS_B, theirs.side.way[1] if theirs.side.way else None)
    if not done and not compiled:
        any(attempt(of, values, name, way) for name, way in ways(of))
    left, name, result = min(found, key=lambda one: one[0], default=(math.nan, NOTHING, None))
    exact = left == 0
    known = theirs.side.values[j]
    operations = mine.names, theirs.names
    cause = Cause(
        mine.module(exchanged), theirs.module(exchanged), kind, differs, name, exact, left, math.nan, operations
    )
    given = result if compiled or known is None else known  # of a compiled module the rest is to be seen
    return cause, given, known if known is not None else given
