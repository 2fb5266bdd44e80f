"""The experiment ``tf32``: mutants, conversions by bit formulas, bounds by fractions, chains in pieces."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from experiments.frame import CELLS, Mutant, frame, record
from fplab import exact_products as whole
from fplab import tensorcore
from fplab.experiments import chain_bounds as bounds
from fplab.experiments import long_products, tf32
from fplab.hardware.cases import philox_bits
from fplab.tensorcore.models import GPUS, TABLE, get

UNIT = Fraction(2) ** whole.UNIT
SMALL = replace(tf32.E.quick, log2_last=12)
TINY = replace(SMALL, log2_last=8, sample=8)  # where the published example says nothing


def rounding(conversion: str, by: str) -> Any:
    """The fault of a conversion that rounds as another does."""
    return lambda good: {**good, conversion: by}


MUTANTS = (
    Mutant("rna breaks ties to even", ("means", "ties"), "ROUNDINGS", rounding("rna", "rne"), params=TINY),
    Mutant("rna truncates", ("ties", "shrinks"), "ROUNDINGS", rounding("rna", "rtz")),
    Mutant("truncation that rounds", ("means", "shrinks"), "ROUNDINGS", rounding("truncate", "rne")),
    Mutant("products that always truncate", ("blocks", "parts_hold", "published"), "fplab.tensorcore.matmul",
           lambda good: lambda *of, conversion="truncate", **how: good(*of, **how)),
    Mutant("rne rounds up", ("half_precision",), "converted",
           lambda converted: lambda x, conversion: converted(np.nextafter(x, np.float32(np.inf)), conversion),
           params=TINY),
    Mutant("conversion's bound 16 times too large", ("bounds_hold", "parts_hold"), "conversion_bound",
           lambda bound: lambda exact, conversion: 16 * bound(exact, conversion), params=TINY),
    Mutant("A100 aligned to 23 bits", ("blocks",), CELLS, record("A100", "tf32", alignment_bits=23), params=TINY),
    Mutant("H100 adds by 4", ("blocks",), CELLS, record("H100", "tf32", length=4), params=TINY),
    Mutant("H100 rounds to nearest", ("blocks",), CELLS, record("H100", "tf32", rounding="rne"), params=TINY),
    Mutant("A100 keeps 12 bits", ("blocks", "bounds_hold", "parts_hold", "conversion_decides"), CELLS,
           record("A100", "tf32", kept_bits=12)),
    Mutant("FP32 multiplies in TF32", ("bounds_hold", "conversion_decides"), "multiply_adds",
           lambda good: lambda a, b, at: good(tf32.converted(a, "rne"), tf32.converted(b, "rne"), at)),
)  # fmt: skip

globals().update(frame(tf32, SMALL, MUTANTS))


def test_converting_first_and_truncating_then_is_converting(result: Any) -> None:
    for way, (gpu, conversion) in tf32.WAYS.items():
        a, b = (tf32.converted(x[:, :64], conversion) for x in tf32.operands("random", 4, 12))
        got = tensorcore.matmul(a, b.T, gpu=gpu, inputs="tf32", conversion="truncate")
        assert np.array_equal(got, result.results.sel(kind="random", way=way)[..., 2])


def test_conversions_are_their_bit_formulas() -> None:
    codes = np.concatenate([philox_bits(2200, 1 << 18), np.arange(0x7F7FE000, 0x7F810000, dtype=np.uint32)])
    codes = codes[(codes & np.uint32(0x7FFFFFFF)) <= np.uint32(0x7F800000)]  # NaNs have no one answer
    u, keep = codes.astype(np.uint64), np.uint64(0xFFFFE000)
    up = np.uint64(0xFFF) + ((u >> np.uint64(13)) & np.uint64(1))
    for conversion, want in (("truncate", u), ("rna", u + np.uint64(0x1000)), ("rne", u + up)):
        got = tf32.converted(codes.view(np.float32), conversion).view(np.uint32)
        assert np.array_equal(got, (want & keep).astype(np.uint32)), conversion


def test_the_gpus_with_tf32_have_the_blocks_of_the_two_that_are_shown() -> None:
    def blocks(gpus: Any) -> set[tuple[int, int]]:
        return {(one.length, one.alignment_bits) for one in (get(gpu, "tf32") for gpu in gpus)}

    fused = {m.gpu for m in TABLE if (m.a, m.kind) == ("tf32", "block")}
    assert fused == {gpu for gpu in GPUS if gpu not in ("V100", "T4") and not gpu.startswith("MI")}
    assert blocks(fused) == blocks(tf32.CORES)


def test_made_up_operands_are_multiples_that_fp32_holds() -> None:
    for kind, low in (("random", -1.0), ("positive", 0.0)):
        for x in tf32.operands(kind, 3, 10):
            assert x.dtype == np.float32
            assert low <= x.min() < x.max() < 1
            assert (np.ldexp(x.astype(np.float64), 25) % 1 == 0).all()
            assert (x.view(np.uint32) & np.uint32(0x1FFF)).any()


def test_nearly_normal_numbers_have_mean_zero_and_variance_one() -> None:
    x = tf32.nearly_normal(7, 16).astype(np.float64)
    assert abs(x.mean()) < 5 / x.size**0.5
    assert abs(x.var() - 1) < 8 / x.size**0.5


def test_low_bits_are_the_errors_of_the_conversions(result: Any) -> None:
    low = result.low_bits.values
    assert low[0, 0].tolist() == [-i for i in range(8192)]
    assert low[1, 0, [0, 4095, 4096, 8191]].tolist() == [0, -4095, 4096, 1]
    assert low[2, :, 4096].tolist() == [-4096, 4096]


def test_exact_sums_and_bounds_are_those_of_fractions() -> None:
    p = replace(tf32.E.quick, rows=2, log2_last=4)
    (a, b), exact = tf32.operands("random", 2, 4), tf32.sums(p, "random")
    for m, n in np.ndindex(2, 2):
        pairs = [(Fraction(float(x)), Fraction(float(y))) for x, y in zip(a[m], b[n], strict=True)]
        total = sum(abs(x * y) for x, y in pairs)
        assert exact.exact[m, n, 0] * UNIT == sum(x * y for x, y in pairs)
        for conversion, d in (("truncate", Fraction(1, 2**10)), ("rne", Fraction(1, 2**11))):
            assert tf32.conversion_bound(exact, conversion)[m, n, 0] == ((2 * d + d * d) * total / UNIT) // 1
    narrow = tf32.sums(p, "random", "rne")
    rate = 16 * (7 * Fraction(1, 2**25) + Fraction(1, 2**23)) / 8
    assert tf32.chain_bound(narrow, "H100")[0, 0, 0] == rate * narrow.magnitude[0, 0, 0] // 1


@pytest.mark.parametrize("gpu", tf32.CORES)
def test_the_chains_rate_is_that_of_fp16_products(gpu: str) -> None:
    positive, b = np.full((1, 1024), 2.0**-12 * (2 - 2.0**-10), np.float32), np.full((1024, 1), 2.0**-13, np.float32)
    positive[0, 0] = b[0] = 1
    exact = whole.products(positive, b.T, np.array([1024]))[..., 0]
    error = (exact - whole.of_values(tensorcore.matmul(positive, b, gpu=gpu, inputs="tf32")))[0, 0]
    bound = 1024 * bounds.rate(get(gpu, "tf32")) * exact[0, 0]
    assert bound / 4 < error <= bound


def test_a_product_is_the_same_in_pieces() -> None:
    a, b = tf32.operands("random", 3, 8)
    got = long_products.on_gpu(a, b, "A100", "fp32", np.array([16, 64, 256]), inputs="tf32", conversion="rna")
    assert np.array_equal(got[..., -1], tensorcore.matmul(a, b.T, gpu="A100", inputs="tf32", conversion="rna"))


def test_the_product_with_the_identity_tells_the_conversions_apart() -> None:
    case = next(iter(tf32.cases(SMALL)))
    given, meta = case.inputs(), {"kind": "cpu"}
    answers = {"truncate": case.emulate(given, meta)["d"]}
    answers |= {c: case.hypotheses[f"one chain, {c}"](given, meta)["d"] for c in ("rna", "rne")}
    a = given["a"].view(np.float32)
    for conversion, d in answers.items():
        assert np.array_equal(d.view(np.float32), tf32.converted(a, conversion))
    assert (answers["rna"] != answers["rne"]).any()
    assert (answers["truncate"] != answers["rna"]).mean() > 0.4
    assert np.abs(a).min() < 1e-29 < 1e29 < np.abs(a).max()
