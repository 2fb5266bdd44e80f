"""Whether a unit computes what it should; where not, what it does compute, and a smallest row that shows each fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import formats
from ..errors import LabError, door
from ..hardware import software
from ..hardware.operands import exponent_of, fields
from ..roundings import Rounding
from ..tensorcore import limits, models
from ..tensorcore.inference import MEANING, Inference, Search, UnknownArithmeticError, _value, infer
from ..tensorcore.models import Model
from ..tensorcore.parametric import FAULTY, ROUNDERS, ParametricUnit
from ..words import Text, joined, say, verbatim
from . import mutants
from .files import Vectors
from .operations import model_of
from .under_test import Ask, rows_of

Array = np.ndarray[Any, Any]
Answer = Callable[..., Array]  # of values a, b, c and scales
FIRST = 5  # disagreements that are shown
DEPTH = 3  # fields in which a record like the unit's may differ, where no inference tells
SHRINKINGS = 200  # steps to a smallest row
ROUNDING = {mode.value: mode.text for mode in Rounding}
NO_STICKY = say("to nearest without the sticky bits: what is below the guard bit does not decide a tie")
SENTENCES: dict[str, Text] = {
    "alignment_bits": say("Terms are aligned to {ours} bits; yours keeps {theirs}."),
    "kept_bits": say("A sum keeps {ours} fraction bits; yours keeps {theirs}."),
    "rounding": say("Sums are rounded {ours}; yours rounds {theirs}."),
    "store": say("Results are rounded {ours}; yours rounds {theirs}."),
    "alignment": say("Terms are cut {ours} in alignment; yours rounds them {theirs}."),
    "length": say("{ours} products are added at once; in yours {theirs}."),
    "order": say("The order of the additions is {ours}; yours is {theirs}."),
    "flush_inputs": say("Subnormal operands count; yours takes them for zeros."),
    "flush_ab": say("Subnormal operands of A and B count; yours takes them for zeros."),
    "flush_products": say("Subnormal products count; yours takes them for zeros."),
    "flush_results": say("Subnormal results are kept; yours makes them zeros."),
    "flush_c": say("A subnormal c counts; yours takes it for zero."),
    "saturation": say("Beyond the largest number the unit gives infinity; yours saturates."),
    "nan": say("A NaN result is {ours}; yours is {theirs}."),
    "zero": say("Zero results have other signs in yours."),
}
OTHER = say("{field} is {ours}; yours has {theirs}.")


@dataclass(frozen=True)
class Fault:
    """A decision in which a unit under test differs. ``name``: the decision; ``ours``, ``theirs``: how it is made.

    ``row``: a smallest row that shows it, with the unit's result; ``got``: that of the unit under test.
    """

    name: str
    ours: Any
    theirs: Any
    row: str = ""
    got: str = ""

    @property
    def terms(self) -> str:
        """The smallest row without its zero products."""
        k, *cells = self.row.split()
        a, b, rest = cells[: int(k)], cells[int(k) : 2 * int(k)], cells[2 * int(k) :]
        live = [f"{x}*{y} [k={i}]" for i, (x, y) in enumerate(zip(a, b, strict=True)) if int(x, 16) and int(y, 16)]
        scales = [f"scales {' '.join(rest[:-2])}"] if rest[:-2] else []
        return f"{' + '.join([rest[-2], *live, *scales])} = {rest[-1]}"

    @property
    def text(self) -> Text:
        """The fault as a sentence."""
        ours, theirs = (NO_STICKY if v in FAULTY else v if not isinstance(v, str) or v not in ROUNDING
                        else verbatim(ROUNDING[v]) for v in (self.ours, self.theirs))  # fmt: skip
        field = MEANING.get(self.name, verbatim(self.name))
        says = OTHER if self.name.startswith("flush") and self.ours else SENTENCES.get(self.name, OTHER)
        return says.fill(ours=ours, theirs=theirs, field=field)


@dataclass(frozen=True)
class Conformance:
    """How a unit under test did.

    ``unit``: what it should compute. ``rows``, ``agreed``: how many rows, and in how many every bit is right.
    ``first``: the first rows with another result, each as (row, its reason, the result, that of the unit under test).
    ``faults``: what it does otherwise. ``unexplained``: rows with another result that these do not give.
    ``found``: what :func:`fplab.tensorcore.infer` says of it, None where everything agrees or no arithmetic is known.
    """

    unit: str
    rows: int
    agreed: int
    first: tuple[tuple[str, str, str, str], ...]
    faults: tuple[Fault, ...]
    unexplained: int
    found: Inference | None

    @property
    def text(self) -> Text:
        """All of it in lines."""
        lines: list[Text] = [say("{unit}: {agreed:,} of {rows:,} rows agree in every bit.", unit=self.unit,
                                 agreed=self.agreed, rows=self.rows)]  # fmt: skip
        for row, why, ours, theirs in self.first:
            lines.append(say("  row {row} ({reason}): {ours}, yours {theirs}", row=row, reason=why, ours=ours,
                             theirs=theirs))  # fmt: skip
        for fault in self.faults:
            lines.append(joined([verbatim("* "), fault.text]))
            if fault.row:
                lines.append(say("  smallest row: {row}; yours {got}", row=fault.terms, got=fault.got))
        if self.agreed < self.rows:
            lines.append(say("{n:,} rows with another result remain without an explanation.", n=self.unexplained))
        return joined(lines, verbatim("\n"))

    def __str__(self) -> str:
        return str(self.text)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        own = {name: getattr(self, name) for name in ("unit", "rows", "agreed", "first", "unexplained")}
        faults = [{"name": f.name, "ours": str(f.ours), "theirs": str(f.theirs), "says": f.text.into("en"),
                   "row": f.row, "got": f.got} for f in self.faults]  # fmt: skip
        return {**own, "faults": faults}


@door
def conform(ask: Ask, vectors: Vectors) -> Conformance:
    """Put vectors to a unit under test (:mod:`.under_test`); of a product its faults are told by name.

    Raises LabError for a unit that does not answer as it should.
    """
    theirs = ask(vectors)
    wrong = np.zeros(len(vectors), bool)
    for name in vectors.results:
        differ = theirs[name] != vectors.columns[name]
        wrong |= differ if differ.ndim == 1 else differ.any(axis=1)
    unit = model_of(vectors).name if "k" in vectors.columns else vectors.name
    first = tuple(
        (str(row + 1), vectors.reasons[row], *(_shown(columns, vectors, row) for columns in (vectors.columns, theirs)))
        for row in np.flatnonzero(wrong)[:FIRST].tolist()
    )
    agreed = int((~wrong).sum())
    if not wrong.any() or "k" not in vectors.columns:
        return Conformance(unit, len(vectors), agreed, first, (), len(vectors) - agreed, None)
    search = Diagnosis(ask, vectors, theirs["d"])
    search.run()
    found = tuple(search.shrunk(fault, answer) for fault, answer in search.faults)
    return Conformance(unit, len(vectors), agreed, first, found, int(search.wrong.sum()), search.found)


def _shown(columns: Mapping[str, Array], vectors: Vectors, row: int) -> str:
    """The results of a row: a narrow one as sign, exponent and fraction bits."""
    parts = []
    for name in vectors.results:
        for cell in np.atleast_1d(columns[name][row]).tolist():
            parts.append(_bits(cell, vectors.formats[name], columns[name].itemsize))
    return " ".join(parts)


def _bits(code: int, fmt: str, size: int) -> str:
    """A code in hexadecimal and, of a floating-point format, its fields."""
    text = f"{code:0{2 * size}X}"
    if fmt not in formats.NAMES:
        return text
    form = formats.get(fmt)
    bits = f"{code:0{form.bits}b}"[-form.bits :]
    cut = int(form.signed), int(form.signed) + form.exponent_bits
    return f"{text} ({' '.join(filter(None, (bits[: cut[0]], bits[cut[0] : cut[1]], bits[cut[1] :])))})"


class Diagnosis:
    """What a unit under test computes, from its answers to a product's vectors and to further questions.

    ``faults``: with, for each, what the unit would answer that had this fault alone. ``wrong``: the rows that a unit
    with all faults would not have answered so.
    """

    def __init__(self, ask: Ask, vectors: Vectors, theirs: Array) -> None:
        self.ask, self.vectors, self.theirs, self.model = ask, vectors, theirs, model_of(vectors)
        self.given = {n: x for n, x in vectors.columns.items() if n not in ("k", "d")}
        self.lengths = vectors.columns["k"]
        self.found: Inference | None = None
        self.faults: list[tuple[Fault, Answer | None]] = []
        self.predicted = vectors.columns["d"]

    @property
    def wrong(self) -> Array:
        """The rows that are not explained."""
        return np.asarray(self.predicted != self.theirs)

    def run(self) -> None:
        """Find the faults: first in finite sums, then in what else is left."""
        try:
            self.found = self.inferred()
        except LabError:  # it gives NaN, changes from call to call, or is no arithmetic that is known
            self.search_records()
        else:
            self.compare(self.found)
        for fault, answer, way in self.ways():
            after = way(self.predicted)
            if (after != self.theirs).sum() < self.wrong.sum():
                self.faults.append((fault, answer))
                self.predicted = after

    # --- finite sums ------------------------------------------------------------------------------------------------

    def f(self, a: Array, b: Array, c: Array, *scales: Array) -> Array:
        """The unit under test as a function of values."""
        model = self.model
        named = dict(zip(("scale_a", "scale_b"), scales, strict=False))
        numbers = {"a": (a, model.a), "b": (b, model.b), "c": (c, model.output)}
        numbers |= {n: (x, model.scale[0]) for n, x in named.items()} if model.scale else {}
        columns = {n: encoded(x, f, self.given[n].dtype) for n, (x, f) in numbers.items()}
        columns |= {"k": np.full(len(a), a.shape[1], np.uint16), "d": columns["c"]}
        return software.values(self.ask(rows_of(self.vectors, columns))["d"], model.output)

    def inferred(self) -> Inference:
        """What the unit under test computes, dropped sticky bits among its roundings."""
        inputs = models.input_name(self.model)
        k = max(64, self.model.k)
        try:
            return infer(self.f, inputs, self.model.output, k)
        except UnknownArithmeticError:
            if mutants.scheme(self.model) is None:
                raise
            search = Search(self.f, self.model.a, self.model.b, self.model.output, k, (*ROUNDERS, *FAULTY))
            return search.answer(search.found())

    def compare(self, found: Inference) -> None:
        """The faults by which the unit differs from what was inferred, and what that predicts for the rows."""
        own = infer(partial(_by_position, self.model), models.input_name(self.model), self.model.output,
                    max(64, self.model.k))  # fmt: skip
        records = [x.unit for x in (own, found)]
        if own.scheme and found.scheme and not all(isinstance(x, Model) and x.kind == self.model.kind for x in records):
            flushes = found.scheme.flush_inputs and not own.scheme.flush_inputs
            for name in SCHEME:
                if name == "flush_inputs" and flushes:
                    continue
                names = [n for n in ORDER if n != "length"] if name == "order" else [name]
                change: dict[str, Any] = {n: getattr(found.scheme, n) for n in names}
                if change == {n: getattr(own.scheme, n) for n in names}:
                    continue
                ours, theirs = (
                    _value(x, name) if name == "order" else getattr(x, name) for x in (own.scheme, found.scheme)
                )
                back = {n: getattr(own.scheme, n) for n in names}
                self.add(Fault(name, ours, theirs), *(partial(_by_scheme, self.model, x) for x in (
                    own.scheme.changed(**change), found.scheme.changed(**back), found.scheme)))  # fmt: skip
            scheme = found.scheme.changed(flush_inputs=False) if flushes else found.scheme
            answer: Answer = partial(_by_scheme, self.model, scheme)
            if flushes:
                answer = self.add_flushing(answer)
        else:
            assert isinstance(found.unit, Model)
            record = dataclasses.replace(found.unit, gpu=self.model.gpu, instruction=self.model.instruction)
            self.differ_in_fields(record)
            answer = partial(mutants._dot, record)
        self.predicted = mutants.results(self.model, self.given, self.lengths, answer)

    def add_flushing(self, answer: Answer) -> Answer:
        """A unit by which operands are flushed, those with which most rows are explained; the fault is kept."""
        ways = {name: partial(_flushing, self.model, which, answer) for name, which in FLUSHING.items()}
        name = min(ways, key=lambda n: self.misses(ways[n]))
        self.faults.append((Fault(name, False, True), partial(_flushing, self.model, FLUSHING[name], self.own)))
        return ways[name]

    def misses(self, answer: Answer) -> int:
        """How many rows a unit answers otherwise than the one under test."""
        return int((mutants.results(self.model, self.given, self.lengths, answer) != self.theirs).sum())

    @property
    def own(self) -> Answer:
        """The unit as it should be."""
        return partial(mutants._dot, self.model)

    def add(self, fault: Fault, answer: Answer, mended: Answer, found: Answer) -> None:
        """Keep a fault without which some row would come out otherwise: what no row tells apart may be anything.

        ``answer``: a unit with it alone; ``mended``: the one under test without it; ``found``: that as it is.
        """
        results = [mutants.results(self.model, self.given, self.lengths, x) for x in (mended, found)]
        if (results[0] != results[1]).any():
            self.faults.append((fault, answer))

    def differ_in_fields(self, record: Model) -> None:
        """The fields in which a record of the same kind differs from the unit's."""
        for field in dataclasses.fields(Model):
            name = field.name
            ours, theirs = getattr(self.model, name), getattr(record, name)
            if ours == theirs or name in SILENT:
                continue
            fault = Fault("saturation" if name == "overflow" else name, ours, theirs)
            try:
                units = mutants.changed(self.model, name, theirs), mutants.changed(record, name, ours), record
            except LabError:  # fields that go together
                units = record, self.model, record
            self.add(fault, *(partial(mutants._dot, x) for x in units))

    def search_records(self) -> None:
        """Records with up to three other fields that give what the unit under test gave: the nearest of each step.

        Operands that are flushed are looked for first, and again when a record is found.
        """
        ways = {which: partial(_flushing, self.model, which) for which in FLUSHING.values()}

        def misses(which: str, record: Model) -> int:
            own: Answer = partial(mutants._dot, record)
            return self.misses(partial(ways[which], own) if which else own)

        record = self.model
        least, which = min((misses(which, record), which) for which in ("", *ways))
        for _ in range(DEPTH):
            others = [other for _, other in _neighbours(record) if other.k == self.model.k]
            tried = [(misses(which, other), other) for other in others]
            fewest, other = min(tried, key=lambda one: one[0], default=(least, record))
            if fewest >= least:
                break
            least, record = fewest, other
        self.differ_in_fields(record)
        final: Answer = partial(mutants._dot, record)
        self.predicted = mutants.results(self.model, self.given, self.lengths, final)
        if which:
            final = self.add_flushing(final)
            self.predicted = mutants.results(self.model, self.given, self.lengths, final)

    # --- what is left -----------------------------------------------------------------------------------------------

    def ways(self) -> Iterator[tuple[Fault, Answer | None, Callable[[Array], Array]]]:
        """Faults of results that are not finite, zero or subnormal: each with what a unit with it alone computes, if
        that is known, and what becomes of predicted results."""
        if self.model.output == "int32":
            return
        form = fields(self.model.output)
        magnitude = np.array(form.sign_mask - 1, self.theirs.dtype)
        small, d = np.array((1 << form.fraction_bits) - 1, magnitude.dtype), self.vectors.columns["d"]
        sign, top, inf = (np.array(x, magnitude.dtype) for x in (form.sign_mask, form.max_code, form.inf_code))

        def of_results(change: Callable[[Array], Array]) -> tuple[Answer, Callable[[Array], Array]]:
            return partial(self._after, change), change

        yield Fault("saturation", "inf", "max"), *of_results(
            lambda x: np.where((x & magnitude) == inf, (x & sign) | top, x))  # fmt: skip
        yield Fault("flush_results", False, True), *of_results(
            lambda x: np.where((x & magnitude) <= small, x & sign, x))  # fmt: skip
        if not {fault.name for fault, _ in self.faults} & {*FLUSHING}:
            flushing = {name: partial(_flushing, self.model, which, self.own) for name, which in FLUSHING.items()}
            given = {name: mutants.results(self.model, self.given, self.lengths, f) for name, f in flushing.items()}
            name = min(
                given, key=lambda n: int((np.where(given[n] != d, given[n], self.predicted) != self.theirs).sum())
            )
            yield Fault(name, False, True), flushing[name], lambda x: np.where(given[name] != d, given[name], x)
        is_nan = ((d & magnitude) > inf) & ((self.theirs & magnitude) > inf)
        if (self.theirs[is_nan] != d[is_nan]).any():
            codes, counts = np.unique(self.theirs[is_nan], return_counts=True)
            code, own = codes[np.argmax(counts)], np.unique(d[is_nan])[0]
            size = 2 * self.theirs.itemsize
            yield Fault("nan", f"{own:0{size}X}", f"{code:0{size}X}"), *of_results(
                lambda x: np.where((x & magnitude) > inf, code, x))  # fmt: skip
        zeros = ((d & magnitude) == 0) & ((self.theirs & magnitude) == 0) & (self.lengths <= self.model.k)
        if self.faults:  # else another of them may be why
            zeros &= ~((self.given["a"] << 1 != 0) & (self.given["b"] << 1 != 0)).any(axis=1)
        yield Fault("zero", "", ""), None, lambda x: np.where(zeros, self.theirs, x)

    def _after(self, way: Callable[[Array], Array], **given: Array) -> Array:
        """A unit with a fault of results alone, of values."""
        own = mutants._dot(self.model, **given)
        return software.values(way(software.codes(np.ascontiguousarray(own), self.model.output)), self.model.output)

    # --- a smallest row ---------------------------------------------------------------------------------------------

    def shrunk(self, fault: Fault, answer: Answer | None) -> Fault:
        """The fault with a smallest row that shows it, and shows as this fault alone where one does."""
        zero = np.array(0 if answer else fields(self.model.output).sign_mask - 1, self.theirs.dtype)

        def shows(columns: Mapping[str, Array], theirs: Array) -> Array:
            given = {n: x for n, x in columns.items() if n not in ("k", "d")}
            differ = np.asarray(theirs != columns["d"])
            if answer is None:
                return np.asarray(differ & (((theirs | columns["d"]) & zero) == 0))
            return np.asarray(differ & (mutants.results(self.model, given, columns["k"], answer) == theirs))

        rows = np.flatnonzero(shows(self.vectors.columns, self.theirs))
        if not rows.size:  # it never comes alone
            return fault
        at = rows[np.argmin(self.lengths[rows])]
        columns = {n: x[at : at + 1] for n, x in self.vectors.columns.items()}
        for _ in range(SHRINKINGS):
            moves = _simpler(columns, self.model)
            if moves is None:
                break
            moves["d"] = mutants.results(
                self.model, {n: x for n, x in moves.items() if n not in ("k", "d")}, moves["k"]
            )
            found = shows(moves, self.ask(rows_of(self.vectors, moves))["d"])
            if not found.any():
                break
            columns = {n: x[np.argmax(found)][None] for n, x in moves.items()}
        row = rows_of(self.vectors, columns)
        got = self.ask(row)["d"]
        return dataclasses.replace(fault, row=row.line(0), got=f"{int(got[0]):0{2 * got.itemsize}X}")


SILENT = ("gpu", "instruction", "status", "k", "a", "b", "output")
SCHEME = (
    "length", "order", "alignment_bits", "alignment", "normalised", "products", "kept_bits", "rounding", "joins",
    "store", "flush_inputs", "flush_products", "flush_results",
)  # fmt: skip
FLUSHING = {"flush_inputs": "abc", "flush_ab": "ab", "flush_c": "c"}
ORDER = ("order", "length", "parts", "reverse", "c")


def encoded(x: Array, fmt: str, dtype: Any) -> Array:
    """Values of a format as codes."""
    from .. import numeric

    if fmt in ("int8", "int32"):
        return np.asarray(x).astype(fmt).view(dtype)
    if fmt in ("fp32", "tf32", "fp64"):
        return np.ascontiguousarray(x, np.float64 if fmt == "fp64" else np.float32).view(dtype)
    with np.errstate(all="ignore"):
        return np.asarray(numeric.encode(x, fmt)).astype(dtype)


def _by_position(model: Model, a: Array, b: Array, c: Array, *scales: Array) -> Array:
    return mutants._dot(model, a, b, c, **dict(zip(("scale_a", "scale_b"), scales, strict=False)))


def _by_scheme(model: Model, unit: ParametricUnit, a: Array, b: Array, c: Array) -> Array:
    """By parameters; what is not finite or zero as the unit has it."""
    own = mutants._dot(model, a, b, c)
    found = np.asarray(unit.dot(a, b, c), own.dtype)
    ordinary = np.isfinite(a).all(axis=1) & np.isfinite(b).all(axis=1) & np.isfinite(c)
    return np.where(ordinary & ((own != 0) | (found != 0)), found, own)


def _flushing(model: Model, which: str, answer: Answer, **given: Array) -> Array:
    """A unit with subnormals of some operands taken for zeros."""
    for name, fmt in (("a", model.a), ("b", model.b), ("c", model.output)):
        if name in which:
            x = given[name]
            given[name] = np.where(
                np.abs(x) < x.dtype.type(2.0 ** fields(fmt).emin), np.copysign(x.dtype.type(0), x), x
            )
    return answer(**given)


def _neighbours(model: Model) -> Iterator[tuple[str, Model]]:
    """Records with another value of one field: every alignment and width, of floors some."""
    yield from mutants.neighbours(model)
    for name in ("alignment_bits", "kept_bits"):
        for value in limits.allowed(model)[name]:
            if value != getattr(model, name):
                yield name, mutants.changed(model, name, value)


def _simpler(columns: Mapping[str, Array], model: Model) -> dict[str, Array] | None:
    """Rows that are one step simpler than a row, the simplest steps first; None where it is as simple as can be."""
    found: list[dict[str, Array]] = []
    k = int(columns["k"][0])
    row = {n: x[0] for n, x in columns.items()}

    def add(**changes: Any) -> None:
        found.append({**{n: np.array(x) for n, x in row.items()}, **changes})

    if k > model.k:
        own = np.arange(len(row["a"])) < model.k
        add(k=np.uint16(model.k), **{name: np.where(own, row[name], 0).astype(row[name].dtype) for name in "ab"})
    live = np.flatnonzero((row["a"] != 0) | (row["b"] != 0)).tolist()
    for span in {len(live) // 2, len(live) // 4, 1} - {0}:
        for start in range(0, len(live), span):
            a, b = row["a"].copy(), row["b"].copy()
            a[live[start : start + span]] = b[live[start : start + span]] = 0
            add(a=a, b=b)
    if row["c"]:
        add(c=row["c"] * 0)
    if model.output != "int32":
        for name, fmt in (("a", model.a), ("b", model.b), ("c", model.output)):
            cells = np.atleast_1d(row[name])
            for i in np.flatnonzero(cells).tolist():
                for code in _simpler_codes(int(cells[i]), fmt):
                    other = cells.copy()
                    other[i] = code
                    add(**{name: other if row[name].ndim else other[0]})
    return {n: np.array([one[n] for one in found], columns[n].dtype) for n in columns} if found else None


def _simpler_codes(code: int, fmt: str) -> Iterator[int]:
    """Codes with fewer digits, and those nearer to 1."""
    form = fields(fmt)
    magnitude, sign = code & (form.sign_mask - 1), code & form.sign_mask
    if magnitude > form.max_code:
        return
    fraction = magnitude & ((1 << form.fraction_bits) - 1)
    if fraction:
        yield code & ~((1 << form.fraction_bits) - 1) if magnitude != fraction else sign | 1
        yield code & ~(fraction & -fraction)
        yield code & ~(1 << (fraction.bit_length() - 1))
    one = (1 << (form.exponent_bits - 1)) - 1 << form.fraction_bits if form.zero else 0
    away = int(exponent_of(np.array([magnitude], np.uint64), fmt)[0])
    if away and magnitude != fraction:
        yield sign | one | fraction
        yield sign | (magnitude - ((away // 2 or away) << form.fraction_bits))
