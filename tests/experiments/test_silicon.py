"""The CPU's units against the lab, and that a wrong bit in the lab is seen by them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fplab
from experiments.frame import Mutant, claim_of, frame
from fplab.experiments import recorder, silicon
from fplab.experiments.outcomes import Evidence, Status
from fplab.hardware import cpu_cases, cpu_products, cpu_units
from fplab.hardware.cases import NotHereError
from fplab.reveal import SumTree

SMALL = replace(silicon.E.full, n=256, wide=32, k=33, seeds=1)
UNITS = "fplab.hardware.cpu_cases"


def without_underflow(good: Any) -> Any:
    """The flags of an operation without that of underflow."""

    def faulty(*given: Any) -> Any:
        codes, flags = good(*given)
        return codes, flags & ~np.uint8(2)

    return faulty


def twice(good: Any) -> Any:
    """A multiply-add that rounds its product."""

    def faulty(a: Any, b: Any, c: Any, fmt: str, **how: Any) -> Any:
        flags = how.pop("flags", False)
        total = fplab.add(fplab.mul(a, b, fmt, **how), c, fmt, **how)
        return (total, np.zeros(np.shape(total), np.uint8)) if flags else total

    return faulty


def turned(good: Any) -> Any:
    """One bit of one result."""

    def faulty(*given: Any) -> Any:
        codes = np.array(good(*given))
        codes.ravel()[codes.size // 2] ^= 1
        return codes

    return faulty


def one_chain(a: Any, b: Any, c: Any, fmt: str = "bf16") -> Any:
    """The sums of a tile's row with one accumulator for even and odd products."""
    wide_a, wide_b = (np.asarray(fplab.decode(x, fmt, np.float32)) for x in (a, b))
    total = np.zeros(c.shape, np.float32)
    with np.errstate(all="ignore"):
        for k in range(32):
            x = np.broadcast_to(wide_a[:, k, None], c.shape)
            total = fplab.fma(x, wide_b[:, k // 2, :, k % 2], total, "fp32", subnormals=False)
        total = np.asarray(fplab.add(c.view(np.float32), total, "fp32", subnormals=False), np.float32)
    return total.view(np.uint32)


def test_one_accumulator_for_a_tile_gives_other_bits() -> None:
    given = cpu_cases.tiles(8).inputs()
    assert (one_chain(**given) != cpu_cases.of_tiles(**given)).any()


def to_nearest(good: Any) -> Any:
    """Pairs that are rounded to nearest."""
    return lambda operation, x, y: getattr(fplab, operation)(x, y, "fp32", subnormals=False)


def test_pairs_that_are_rounded_to_nearest_have_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    given = cpu_cases.pairs_on_arm(64).inputs()
    outer = cpu_cases.products_on_arm(64).inputs()
    good = cpu_cases.of_pairs_on_arm(given) | {"bfmopa": cpu_cases.of_products_on_arm(outer)["bfmopa"]}
    monkeypatch.setattr(cpu_cases, "to_odd", to_nearest(cpu_cases.to_odd))
    faulty = cpu_cases.of_pairs_on_arm(given) | {"bfmopa": cpu_cases.of_products_on_arm(outer)["bfmopa"]}
    assert all((faulty[name] != good[name]).mean() > 0.05 for name in good)


def reversed_order(good: Any) -> Any:
    def faulty(fmt: str, k: int) -> Any:
        nested: Any = k - 1
        for term in reversed(range(k - 1)):
            nested = (nested, term)
        return SumTree.of(nested)

    return faulty


MUTANTS = (
    Mutant("ties cut off", ("conversions",), f"{UNITS}.halves",
           lambda good: lambda x, rounding: good(x, "rtz" if rounding == "rne" else rounding)),
    Mutant("one bit of a conversion", ("conversions",), f"{UNITS}.singles", turned),
    Mutant("no flag of underflow", ("arithmetic", "fused", "double"), f"{UNITS}.operate", without_underflow),
    Mutant("a multiply-add that rounds twice", ("fused", "bfloat16"), "fplab.numeric.fma", twice),
    Mutant("the even element first", ("bfloat16",), f"{UNITS}.chain",
           lambda good: lambda a, b, c: good(a, b, c, order=(0, 1))),
    Mutant("FP16 that rounds to odd", ("halves",), f"{UNITS}.of_halves",
           lambda good: lambda name, operands, rounding: good(name, operands, "odd")),
    Mutant("all products of a tile in one chain", ("tiles",), f"{UNITS}.of_tiles",
           lambda good: one_chain),
    Mutant("a widening multiply-add that rounds twice", ("widened",), "fplab.numeric.fma", twice),
    Mutant("pairs rounded to nearest", ("odd_pairs", "arm_products"), f"{UNITS}.to_odd", to_nearest),
    Mutant("every sum saturates", ("integers",), f"{UNITS}.into_int32", lambda good: lambda x, wraps: good(x, False)),
    Mutant("the last product first", ("products",), "fplab.hardware.cpu_products.order", reversed_order),
)  # fmt: skip
NEEDS = {"conversions": "f16c", "arithmetic": "avx", "double": "avx", "fused": "fma", "bfloat16": "avx512bf16",
         "integers": "avx512vnni", "tiles": "amx-bf16", "widened": "zvfh",
         "arm_products": "sme" if cpu_units.machine() == cpu_units.ARM else "no such unit",
         "odd_pairs": "bf16" if cpu_units.machine() == cpu_units.ARM else "no such unit",
         "halves": "avx512fp16" if cpu_units.machine() == cpu_units.X86 else "fullfp16"}  # fmt: skip
LACKING = tuple(id for id, flag in NEEDS.items() if flag not in cpu_units.features())
HERE = tuple(Mutant(one.name, kills, one.target, one.fault) for one in MUTANTS
             if (kills := tuple(id for id in one.kills if id not in LACKING)))  # fmt: skip

globals().update(frame(silicon, SMALL, HERE, LACKING, absent=r"this CPU has no|no order found"))


def test_what_a_cpu_lacks_is_absent_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_units, "features", lambda: frozenset({"avx"}))
    result = silicon.E.result(SMALL)
    for id in ("conversions", "fused", "bfloat16", "integers"):
        outcome = claim_of(silicon.E, id).test(result)
        assert outcome.status is Status.ABSENT
        assert "this CPU has no v" in str(outcome.detail)
    with pytest.raises(NotHereError, match=r"this CPU has no vcvtph2ps \(f16c\)\."):
        cpu_units.run(cpu_units.FROM_HALF, np.zeros(8, np.uint16))


@pytest.mark.skipif("fma" not in cpu_units.features(), reason="this CPU has no fma")
def test_infinity_times_zero_plus_a_quiet_nan_raises_nothing() -> None:
    inf, quiet = (np.array([code], np.uint32) for code in (0x7F800000, 0x7FC00001))
    operands = [inf, np.zeros(1, np.uint32), quiet]
    codes, flags = cpu_units.run(cpu_units.SCALARS["fma", "fp32"], *operands)
    assert (codes[0], flags[0]) == (0x7FC00001, 0)
    with np.errstate(all="ignore"):
        a, b, c = (x.view(np.float32) for x in operands)
        _, ours = fplab.fma(a, b, c, "fp32", flags=True)
    assert ours[0] == 16, "IEEE 754 leaves this flag to the implementation: x86-64 leaves it down, the lab raises it"


def test_a_record_of_this_cpu_is_evidence_and_a_wrong_bit_in_it_fails() -> None:
    where = {"kind": "cpu", "device": "a CPU", "torch": "2.13.0"}
    one = recorder.record_one("silicon", where, "quick", "cpu")
    assert one.is_evidence
    assert not one.on_gpu
    rows = recorder.verify_record(one)
    assert {row.row.evidence for row in rows} == {Evidence.RECORDED.value}
    assert all(row.row.outcome.holds for row in rows)
    assert not recorder.record_one("silicon", where, "quick", "cuda").cases


def test_what_is_multiplied_tells_orders_apart_and_goes_nowhere_near_subnormals() -> None:
    in_turn, odd_first = ([0], [1])
    for k in range(1, 32):
        in_turn, odd_first = [in_turn, k], [odd_first, k ^ 1]
    for fmt in ("bf16", "fp16"):
        a, b = cpu_products.telling(32, fmt, 1)
        both = [cpu_products.predicted(SumTree.of(nested(order)), a, b, fmt) for order in (in_turn, odd_first)]
        assert (both[0] != both[1]).sum() > 50
        least = np.abs(a[a != 0]).min() * np.abs(b[b != 0]).min()
        assert least > 2.0**-60


def nested(order: Any) -> Any:
    """Lists as tuples; a list of one is its term."""
    return order if isinstance(order, int) else tuple(map(nested, order)) if len(order) > 1 else order[0]


def test_operands_hold_every_kind_of_number() -> None:
    for fmt in ("fp32", "fp64", "bf16"):
        codes = cpu_cases.numbers(4096, fmt, 3)
        kinds = {fplab.exact.decode(int(code), fmt).kind for code in codes[:500]}
        assert kinds == {"finite", "inf", "nan", "snan"}
