"""The inputs on which an answer is tried: boundary cases, random ones, and the smallest on which it fails.

Random cases are drawn, and failing ones shrunk, by hypothesis. Boundary cases are told to it as choices, so that it
shrinks from one that fails as from one that it drew.
"""

import contextlib
import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase, choices_to_bytes
from hypothesis.internal.conjecture.providers import HypothesisProvider

from ..formats import get
from .kinds import NAN, Among, Boxes, Codes, Floats, Integers, Kind, Lists, Options, Several, simplicity
from .tasks import Implement

Arguments = tuple[Any, ...]
Strategy = st.SearchStrategy[Any]
MOST_CASES = 120  # boundary cases of several arguments, beyond each argument's own
KEY = b"failing"
_drawn: dict[tuple[str, int], list[Arguments]] = {}


class _FailsError(Exception):
    """Tells hypothesis that an input is one of those that are looked for."""


def boundary_cases(task: Implement) -> list[Arguments]:
    """The valid boundary cases, simplest first, none twice."""
    by_key = {task.key(case): case for case in reversed([*_product_cases(task)]) if task.allows(case)}
    return sorted(by_key.values(), key=lambda case: simplicity(choices(task, case)))


def _product_cases(task: Implement) -> Iterator[Arguments]:
    """The exercise's own cases, then each argument's boundary with the others at their simplest, then mixtures."""
    yield from task.cases
    edges = [list(kind.boundary()) for kind in task.arguments.values()]
    simplest = tuple(edge[0] for edge in edges)
    for i, edge in enumerate(edges):
        yield from ((*simplest[:i], value, *simplest[i + 1 :]) for value in edge)
    if len(edges) > 1:
        total = 1
        for edge in edges:
            total *= len(edge)
        stride = max(1, total // MOST_CASES)
        stride += stride % 2 == 0  # an odd stride meets every combination's parity
        yield from itertools.islice(itertools.product(*edges), 0, total, stride)


def random_cases(name: str, task: Implement, n: int) -> list[Arguments]:
    """Random valid cases, at most ``n``: what is drawn depends on the name and the version of hypothesis alone."""
    if (name, n) not in _drawn:
        cases: list[Arguments] = []
        _try(name, task, cases.append, n, InMemoryExampleDatabase())
        _drawn[name, n] = cases
    return _drawn[name, n]


def smallest(name: str, task: Implement, fails: Callable[[Arguments], bool], start: Arguments) -> Arguments:
    """The smallest case that fails, begun at one that does; ``fails`` must not change its mind."""
    least = start
    known = InMemoryExampleDatabase()  # its second shelf is for inputs that are still to be shrunk
    known.save(KEY + b".secondary", choices_to_bytes(choices(task, start)))

    def look(case: Arguments) -> None:
        nonlocal least
        if fails(case):
            least = case
            raise _FailsError

    with contextlib.suppress(_FailsError):
        _try(name, task, look, 1, known)
    return least


def _no_constant(*_: Any, **__: Any) -> None:
    return None


def _try(name: str, task: Implement, look: Callable[[Arguments], None], n: int, known: InMemoryExampleDatabase) -> None:
    """Look at the cases that are known, else at ``n`` drawn ones; shrink one at which the look raises an error."""
    trial = given(_strategy(task))(lambda case: look(case))
    trial._hypothesis_internal_database_key = KEY  # type: ignore[attr-defined]
    trial = settings(
        max_examples=n, database=known, deadline=None, report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck), phases=(Phase.reuse, Phase.generate, Phase.shrink),
    )(seed(zlib.crc32(name.encode()))(trial))  # fmt: skip
    # Else it would draw constants that it reads in whatever modules are loaded: other cases in another notebook.
    with mock.patch.object(HypothesisProvider, "_maybe_draw_constant", _no_constant, create=True):
        trial()


def _strategy(task: Implement) -> Strategy:
    if not task.paired:
        return st.tuples(*map(values_of, task.arguments.values())).filter(task.allows)
    return values_of(_rows(task)).map(lambda rows: tuple(zip(*rows, strict=True)) or ((),) * len(task.arguments))


def choices(task: Implement, case: Arguments) -> list[int]:
    """The integers of which :func:`_strategy` makes a case."""
    if not task.paired:
        return Several(tuple(task.arguments.values()), ()).choices(case)
    return _rows(task).choices(tuple(zip(*case, strict=True)))


def _rows(task: Implement) -> Lists:
    """Lists of one length as a list of rows, so that a row is left out in all of them."""
    lists = [kind for kind in task.arguments.values() if isinstance(kind, Lists)]
    return Lists(Several(tuple(kind.item for kind in lists), ()), lists[0].least, lists[0].most)


def values_of(kind: Kind) -> Strategy:
    """The values of a kind, by the integers that its ``choices`` gives, in that order."""
    match kind:
        case Integers(low, high):
            home = kind.home
            return st.integers(low - home, high - home).map(lambda away: home + away)
        case Floats():
            return _floats(kind).filter(kind.has)
        case Codes():
            return _codes(kind).filter(kind.has)
        case Options(values):
            return st.sampled_from(values)
        case Among(_, few):
            return st.sampled_from(few)
        case Lists(item, least, most):
            return st.lists(values_of(item), min_size=least, max_size=most).map(tuple)
        case Several(kinds):
            return st.tuples(*map(values_of, kinds))
        case Boxes(of, make):
            return values_of(of).map(make)
    raise TypeError(f"a {type(kind).__name__} is no kind of argument")


@st.composite
def _floats(draw: Any, kind: Floats) -> float:
    form = get(kind.fmt)
    group, value = draw(st.integers(0, 1 if kind.finite else NAN)), 0.0
    if group:
        bits = draw(st.integers(1, form.significand_bits))
        exponent = draw(st.integers(*kind.exponents))
        value = kind.made_of(group, bits, exponent, draw(st.integers(0, (1 << max(bits, 2) - 2) - 1)))
    return -value if kind.signed and draw(st.booleans()) else value


@st.composite
def _codes(draw: Any, kind: Codes) -> int:
    form = get(kind.fmt)
    exponent = draw(st.integers(0, (form.sign_mask - 1) >> form.fraction_bits))
    fraction = draw(st.integers(0, (1 << form.fraction_bits) - 1))
    return int(exponent << form.fraction_bits | fraction | (form.sign_mask if draw(st.booleans()) else 0))
