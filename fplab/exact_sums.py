"""The oracle of sums: every order written as its definition, on the exact numbers of :mod:`fplab.exact`.

A :class:`Machine` is an accumulator format with a rounding; each of its operations is exact and then rounded once.
The orders below use nothing else, so they read like the textbook.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import exact
from .exact import Exact
from .formats import Format, Overflow, Rounding

ONE = exact.from_float(1.0)


@dataclass
class Machine:
    """Arithmetic in one format. ``words``: the random words of stochastic rounding, by how many were drawn before."""

    fmt: Format
    mode: Rounding = Rounding.RNE
    policy: Overflow | None = None
    flush: bool = False
    words: Callable[[int], int] = lambda _: 0
    drawn: int = 0
    flags: int = 0

    def round(self, result: tuple[Exact, int]) -> Exact:
        """An exact result rounded to the format."""
        value, raised = result
        word = self.words(self.drawn) if self.mode.random else 0
        self.drawn += 1
        code, more = exact.round_to(value, self.fmt, self.mode, self.policy, ftz=self.flush, word=word)
        self.flags |= raised | more
        return exact.decode(code, self.fmt)

    def own(self, x: Exact) -> Exact:
        """An operand of the format as it enters an operation."""
        return exact.flush(x, self.fmt) if self.flush else x

    def add(self, a: Exact, b: Exact) -> Exact:
        """a + b."""
        return self.round(exact.add(self.own(a), self.own(b), self.mode))

    def sub(self, a: Exact, b: Exact) -> Exact:
        """a - b."""
        return self.round(exact.sub(self.own(a), self.own(b), self.mode))


@dataclass(frozen=True)
class Term:
    """One product x * y (y = 1 in a sum), not yet rounded."""

    x: Exact
    y: Exact = ONE

    def rounded(self, machine: Machine) -> Exact:
        """The product as a number of the accumulator."""
        return machine.round(exact.mul(self.x, self.y))

    def plus(self, c: Exact, machine: Machine, fused: bool) -> Exact:
        """x * y + c, with one rounding if fused, else two."""
        if fused:
            return machine.round(exact.fma(self.x, self.y, machine.own(c), machine.mode))
        return machine.add(self.rounded(machine), c)


def terms(x: Sequence[Exact], y: Sequence[Exact] | None, fmt: Format, flush: bool) -> list[Term]:
    """The terms of a sum or a dot product of values of ``fmt``."""
    factors = zip(x, [ONE] * len(x) if y is None else y, strict=True)
    return [Term(*(exact.flush(v, fmt) if flush else v for v in pair)) for pair in factors]


def sequential(t: Sequence[Term], machine: Machine, fused: bool) -> list[Exact]:
    """((t0 + t1) + t2) + ...: every partial sum."""
    sums = [t[0].rounded(machine)]
    for term in t[1:]:
        sums.append(term.plus(sums[-1], machine, fused))
    return sums


def pairwise(t: Sequence[Term], machine: Machine) -> Exact:
    """The sum of the left part plus the sum of the right; the left is the largest power of two below the length."""
    if len(t) == 1:
        return t[0].rounded(machine)
    left = 1 << (len(t) - 1).bit_length() - 1
    return machine.add(pairwise(t[:left], machine), pairwise(t[left:], machine))


def blocked(t: Sequence[Term], machine: Machine, fused: bool, block: int) -> Exact:
    """Each block of terms in sequence; the block sums in sequence."""
    total: Exact | None = None
    for start in range(0, len(t), block):
        part = sequential(t[start : start + block], machine, fused)[-1]
        total = part if total is None else machine.add(total, part)
    assert total is not None
    return total


def kahan(t: Sequence[Term], machine: Machine, fused: bool) -> list[Exact]:
    """Kahan 1965: z = t - c; new = s + z; c = (new - s) - z; s = new."""
    sums, c = [t[0].rounded(machine)], Exact(False)
    for term in t[1:]:
        s = sums[-1]
        z = term.plus(exact.neg(c), machine, fused)
        new = machine.add(s, z)
        c = machine.sub(machine.sub(new, s), z)
        sums.append(new)
    return sums


def neumaier(t: Sequence[Term], machine: Machine, running: bool = True) -> list[Exact]:
    """Neumaier 1974: the error of every addition, summed in c; the result is s + c.

    ``running`` says whether s + c is rounded after every term, which draws random words, or only at the end.
    """
    s, c = t[0].rounded(machine), Exact(False)
    sums = [s]
    for k, term in enumerate(t[1:], start=2):
        z = term.rounded(machine)
        new = machine.add(s, z)
        large, small = (s, z) if _magnitude(s) >= _magnitude(z) else (z, s)
        c = machine.add(c, machine.add(machine.sub(large, new), small))
        s = new
        if running or k == len(t):
            sums.append(machine.add(s, c))
    return sums


def _magnitude(x: Exact) -> tuple[int, object]:
    """An order of magnitudes that puts infinity above the finite and NaN above all."""
    return ("finite", "inf", "nan", "snan").index(x.kind), x.magnitude


def run(
    order: str, t: Sequence[Term], machine: Machine, *, block: int = 128, fused: bool = True, running: bool = True
) -> list[Exact]:
    """The partial sums of an order (pairwise and blocked: the last one alone)."""
    match order:
        case "sequential":
            return sequential(t, machine, fused)
        case "pairwise":
            return [pairwise(t, machine)]
        case "blocked":
            return [blocked(t, machine, fused, block)]
        case "kahan":
            return kahan(t, machine, fused)
        case _:
            return neumaier(t, machine, running)
