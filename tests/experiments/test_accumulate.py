"""The experiment on sums: where they stall, as tables say; its bounds, by their formulas and on other terms."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from experiments.frame import Mutant, frame, repeats
from fplab import exact, exact_sums, floats, sums
from fplab.experiments import accumulate
from fplab.formats import get

SMALL = replace(accumulate.E.full, fp32=12, half=12, fp8=9, stochastic=8, seeds=4, block=16)


def early(good: Any) -> Any:
    """A stall that is seen one term before it is there."""

    def faulty(name: str, fmt: str, at: Any) -> Any:
        value, last, before, sums = good(name, fmt, at)
        return value, last - 1, before, sums

    return faulty


def eight_times(bound: Any) -> Any:
    """Bounds eight times too large."""
    return {order: lambda *of, one=one: None if one(*of) is None else 8 * one(*of) for order, one in bound.items()}


def downwards(sums: Any) -> Any:
    """Stochastic sums that always round toward zero."""
    return lambda x, form, *order, rounding="rne", seed=None, **named: sums(
        x, form, *order, rounding="rtz" if rounding == "stochastic" else rounding, **named
    )


def without_error(sums: Any) -> Any:
    """Stochastic sums that are exact."""

    def faulty(x: Any, form: Any, *order: Any, rounding: str = "rne", **named: Any) -> Any:
        if rounding == "stochastic":
            return np.cumsum(x.astype(np.float64), axis=-1)
        return sums(x, form, *order, rounding=rounding, **named)

    return faulty


MUTANTS = (
    Mutant("a stall one term early", ("stalls_of_libraries", "folklore"), "until_stall", early),
    Mutant("sums on the way a term late", ("stalls_of_libraries",), "until_stall",
           lambda good: lambda name, fmt, at: good(name, fmt, at + 1)),
    Mutant("bounds eight times too large", ("bounds_hold",), "BOUNDS", eight_times),
    Mutant("bounds of half a unit", ("bounds_hold",), "BOUNDS",
           lambda bound: {order: lambda n, p, block, one=one: one(n, p + 1, block) for order, one in bound.items()}),
    Mutant("exact sums in FP32", ("exact_sums", "bounds_hold"), "np.cumsum",
           lambda good: lambda x: good(x, dtype=np.float32).astype(np.float64)),
    Mutant("stochastic sums truncate", ("stochastic_law",), "fplab.numeric.sum", downwards),
    Mutant("stochastic sums without error", ("stochastic_law",), "fplab.numeric.sum", without_error),
)  # fmt: skip

globals().update(frame(accumulate, SMALL, MUTANTS))

# Where sequential sums stop, as a table anyone can recompute: (value, last term that changes it).
KNOWN: dict[tuple[str, str], tuple[float, int]] = {
    ("harmonic", "fp16"): (7.0859375, 512),
    ("harmonic", "bf16"): (5.0625, 64),
    ("harmonic", "fp32"): (15.403682708740234, 2097151),
    ("harmonic", "e4m3"): (3.0, 8),
    ("harmonic", "e5m2"): (2.0, 4),
    ("ones", "fp16"): (2048.0, 2048),
    ("ones", "bf16"): (256.0, 256),
    ("ones", "fp32"): (2.0**24, 2**24),
    ("ones", "e4m3"): (16.0, 16),
    ("ones", "e5m2"): (8.0, 8),
    ("0.1", "fp16"): (256.0, 2207),
    ("0.1", "bf16"): (32.0, 276),
    ("1e-4", "fp16"): (0.25, 2181),
    ("1e-4", "bf16"): (0.03125, 273),
}


def test_the_stalls_are_those_that_are_known(result: Any) -> None:
    for (name, fmt), want in KNOWN.items():
        at = {"series": name, "format": fmt}
        assert (result.stall_value.sel(at), result.stall_last.sel(at)) == want


def test_partial_sums_pass_chunks_unharmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulate, "CHUNK", 100)
    at = accumulate.checkpoints(12, 4)
    for name in ("harmonic", "0.1"):
        value, last, before, partial = accumulate.until_stall(name, "fp16", at)
        whole = sums.sum(accumulate.rounded(name, "fp16", 1, 4096), "fp16", running=True)
        assert np.array_equal(partial, whole[at - 1])
        assert value == whole[-1]
        assert before == whole[last - 2] != value == whole[last - 1]


def test_sizes() -> None:
    assert accumulate.checkpoints(4, 2).tolist() == [1, 2, 3, 4, 6, 8, 12, 16]
    assert accumulate.checkpoints(3, 4).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


# --- bounds ----------------------------------------------------------------------------------------------------------
def test_bounds_are_their_formulas() -> None:
    u = Fraction(1, 2**8)
    assert accumulate.sequential(101, 8, 16) == 100 * u
    assert accumulate.pairwise(1024, 8, 16) == (1 + u) ** 10 - 1
    assert accumulate.pairwise(1025, 8, 16) == (1 + u) ** 11 - 1
    assert accumulate.pairwise(1, 8, 16) == 0
    assert accumulate.blocked(100, 8, 16) == (1 + 15 * u) * (1 + 6 * u) - 1
    assert accumulate.blocked(10, 8, 16) == 9 * u
    assert accumulate.stochastic(11, 8, 16) == (1 + 2 * u) ** 10 - 1
    assert 2 * u < accumulate.kahan(100, 8, 16) < 2 * u + 110 * u**2  # type: ignore[operator]
    assert accumulate.kahan(10**6, 8, 16) is None
    assert accumulate.kahan(1, 8, 16) == 0
    for n in (2, 50, 200):  # the sharper bounds imply the classical ones, where those exist
        h = (n - 1).bit_length()
        assert accumulate.sequential(n, 8, 16) <= (n - 1) * u / (1 - (n - 1) * u)
        assert accumulate.pairwise(n, 8, 16) <= h * u / (1 - h * u)


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "e4m3"])
def test_bounds_hold_on_random_decreasing_terms(fmt: str) -> None:
    """Not only on the drawn series: non-increasing positive terms over several binades, 200 rows."""
    form = get(fmt)
    p, n = form.significand_bits, 24
    rng = np.random.default_rng(4)
    x = -np.sort(-floats.quantize(rng.random((200, n)) * 2.0 ** -rng.integers(0, 6, (200, n)), fmt), axis=1)
    x = np.maximum(x, form.smallest_subnormal)
    total = [sum(Fraction(float(v)) for v in row) for row in x]
    for order in ("sequential", "pairwise", "blocked", "kahan"):
        bound = accumulate.BOUNDS[order](n, p, 5)
        assert bound is not None
        got = sums.sum(x, fmt, order, block=5)
        worst = max(abs(Fraction(float(s)) - t) / t for s, t in zip(got, total, strict=True))
        assert 0 < worst <= bound, f"{order}: {float(worst)} against {float(bound)}"


def test_the_premise_of_kahans_bound_holds_where_it_is_used() -> None:
    """|y_k| <= s_{k-1} at every step as long as the bound is at most 1/4: what makes its subtractions exact."""
    for fmt in ("bf16", "e4m3"):
        form = get(fmt)
        machine = exact_sums.Machine(form)
        n = next(k for k in range(2, 10**5) if accumulate.kahan(k + 1, form.significand_bits, 1) is None)
        n = min(n, 400)
        for name in accumulate.MEASURED:
            s, c = exact.Exact(False), exact.Exact(False)
            for k, term in enumerate(accumulate.rounded(name, fmt, 1, n).tolist()):
                y = machine.sub(exact.from_float(term), c)
                assert k == 0 or y.magnitude <= s.magnitude
                new = machine.add(s, y)
                c = machine.sub(machine.sub(new, s), y)
                assert c.value == new.value - (s.value + y.value)
                s = new


# --- outputs and devices ---------------------------------------------------------------------------------------------
def test_the_table_has_a_row_for_every_error_and_its_bound(result: Any) -> None:
    rows = list(zip(*accumulate.rows(result).values(), strict=True))
    assert len(rows) == int(result.computed.notnull().any("seed").sum())
    assert ("ones", "bf16", 256.0, 257, "sequential", 1023, 1 - 256 / 1023, 1022 / 256) in rows
    assert all(row[6] <= row[7] for row in rows if row[4] != "stochastic" and row[7] == row[7])


def test_runs_are_the_same_every_time(result: Any) -> None:
    repeats(accumulate, result)


def test_the_cases_pass_the_stalls() -> None:
    """Every lane ends with additions that change nothing, after some that do, at the values of the table."""
    for case in list(accumulate.cases(SMALL))[:3]:
        fmt = case.formats["sums"]
        partial = floats.decode(case.emulate(case.inputs(), {})["sums"], fmt)
        for lane, name in enumerate(accumulate.SERIES):
            if fmt == "fp32" and name in ("0.1", "1e-4"):
                continue  # these stall beyond 2**24 additions
            value, last = KNOWN[name, fmt]
            before = STEPS_BEFORE[name] if fmt == "fp32" else 0
            row = partial[lane]
            assert row[last - before - 1] == row[last - before] == row[-1] == value
            assert row[last - before - 2] < value


STEPS_BEFORE = {"harmonic": 2097151 - 48, "ones": 2**24 - 48}
