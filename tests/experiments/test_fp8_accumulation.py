"""The experiment ``fp8_accumulation``: mutants, drawn codes, relative errors by hand, what a GPU can answer."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.frame import CELLS, Mutant, frame, record
from fplab import floats, tensorcore
from fplab.errors import LabError
from fplab.experiments import fp8_accumulation
from fplab.hardware.cases import NotHereError
from fplab.hardware.core_cases import lab_product
from fplab.hardware.products import ONE_CHAIN

fp8 = fp8_accumulation
PARAMS = replace(fp8.E.quick, longest=12, sides=(64, 512))
DRAWN = {"reuse": ("drawn", "exact_at")}  # the operands


def by_another(of: str, other: str) -> Any:
    """Products of a GPU by another."""
    return lambda good: lambda a, b, gpu, promote=None: good(a, b, other if gpu == of else gpu, promote)


MUTANTS = (
    Mutant("Hopper with a long accumulator", ("fourteen_bits", "shrinking", "passes", "nearly", "repairs"), "product",
           by_another("H100", "B200")),
    Mutant("no promotion", ("fourteen_bits", "promotion", "repairs", "intervals"), "product",
           lambda product: lambda a, b, gpu, promote=None: product(a, b, gpu)),
    Mutant("positive numbers of both signs", ("shrinking", "growth", "others"), "DISTRIBUTIONS",
           lambda good: {**good, "uniform, positive": good["uniform, both signs"]}),
    Mutant("Hopper aligns to 14 bits", ("fourteen_bits",), CELLS, record("H100", "e4m3", alignment_bits=14), **DRAWN),
    Mutant("Ada aligns to 25 bits", ("fourteen_bits",), CELLS, record("Ada", "e4m3", alignment_bits=25), **DRAWN),
    Mutant("Blackwell aligns to 13 bits", ("fourteen_bits",), CELLS, record("B200", "e4m3", alignment_bits=13),
           **DRAWN),
    Mutant("Ada keeps a bit less", ("fourteen_bits", "ada"), CELLS,
           record("Ada", "e4m3", alignment_bits=12, kept_bits=12), **DRAWN),
    Mutant("Blackwell adds as Ada", ("fourteen_bits", "blackwell"), "product", by_another("B200", "Ada"), **DRAWN),
    Mutant("exact sums in FP32", ("reference",), "exactly", lambda good: lambda a, b: np.float32(good(a, b))),
    Mutant("errors of one size of matrix for all", ("nearly",), "defined",
           lambda good: lambda p, distribution, side, series: good(p, distribution, 512, series), **DRAWN),
    Mutant("4,096 is not one chain", ("intervals",), "product", lambda product: lambda a, b, gpu, promote=None:
           product(a, b, gpu, promote) ^ np.uint32(promote == 4096), **DRAWN),
)  # fmt: skip

globals().update(frame(fp8_accumulation, PARAMS, MUTANTS))


@pytest.mark.parametrize("distribution", fp8.DISTRIBUTIONS)
def test_codes_are_drawn_as_their_numbers_are_likely(distribution: str) -> None:
    """Against the distribution rounded to E4M3: numbers at the middles of a million equal shares."""
    n = 1 << 20
    codes = fp8.drawn_codes(distribution, 3, 1024, n // 1024)
    shares = (np.arange(n) + 0.5) / n
    if distribution == "normal":
        grid = np.linspace(-6, 6, 40_001)
        law = np.array([fp8.DISTRIBUTIONS[distribution](fp8.SIGMA * x) for x in grid.tolist()])
        numbers = fp8.SIGMA * np.interp(shares, law, grid)
    else:
        numbers = fp8.LARGEST * (shares if distribution == "uniform, positive" else 2 * shares - 1)
    want = np.bincount(floats.encode(numbers.astype(np.float32), "e4m3"), minlength=256)
    want[0] += want[0x80]  # the middle of the shares may round to -0, which is not drawn
    got = np.bincount(codes.ravel(), minlength=256)
    assert not got[[0x80, 0x7F, 0xFF]].any()
    assert (np.abs(got - np.where(np.arange(256) == 0x80, 0, want)) < 6 * np.sqrt(want + 1) + 2).all()


@pytest.mark.parametrize("distribution", fp8.DISTRIBUTIONS)
def test_the_fast_draw_is_the_plain_one(distribution: str) -> None:
    limits, codes = fp8.limits_of(distribution)
    words = np.random.Philox(key=9).random_raw(300_000) >> np.uint64(32)
    plain = codes[np.searchsorted(limits, words, side="right")]
    assert np.array_equal(fp8.drawn_codes(distribution, 9, 300, 1000).ravel(), plain)


def test_runs_use_prefixes_of_the_same_operands(result: Any) -> None:
    a, b = (fp8.numbers(codes) for codes in fp8.drawn(result.p, fp8.POSITIVE))
    want = tensorcore.matmul(a[:, :256], b[:, :256].T, gpu="Ada", inputs="e4m3")
    sums, exact = (x.sel(distribution=fp8.POSITIVE) for x in (result.results, result.exact))
    assert np.array_equal(sums.sel(series="Ada", K=256), want)
    for series in (fp8.CHAIN, fp8.PROMOTED):
        for k in (256, 4096):
            error = 100 * (sums.sel(series=series, K=k) - exact.sel(K=k))[0, 0] / exact.sel(K=k)[0, 0]
            assert float(error) == result.behind.sel(series=series, terms=k)


def test_relative_errors() -> None:
    want = np.array([[3.0, -4.0], [0.0, 5.0]])
    got = np.array([[3.0, -4.5], [1.0, 5.25]], np.float32).view(np.uint32)
    rms = math.sqrt(50 / 4)
    found = [fp8.relative(got, want, name) for name in fp8.DEFINITIONS]
    assert found == [0.125, 1 / rms, 0.2, math.sqrt((0.25 + 1 + 0.0625) / 50), 0.05]
    assert fp8.relative(got, want) == 1 / rms


@pytest.mark.parametrize(
    ("values", "bits"), [([1.0, 4.0, -0.5], 1), ([1.5], 2), ([1.0, 1 + 2.0**-13], 14), ([1 + 2.0**-23, 1.5], 24)]
)
def test_significant_bits(values: list[float], bits: int) -> None:
    assert fp8.significant_bits(np.array(values, np.float32).view(np.uint32)) == bits


def test_the_table_has_every_error(result: Any) -> None:
    table = fp8.E.rows(result)
    assert len(table["error"]) == 3 * ((4 * 8 + 7) * 5 + 2 * 2 * 5)
    assert all(math.isfinite(error) and error >= 0 for error in table["error"])


def test_long_sums_ask_and_short_ones_know() -> None:
    every = list(fp8.cases(PARAMS))
    assert {case.name.split(", ")[-2]: bool(case.open) for case in every} == {
        "probes": False, "k = 32": False, "k = 128": True, "k = 512": True, "k = 4096": True,
    }  # fmt: skip
    long = next(case for case in every if "4096, promoted" in case.name)
    inputs, meta = long.inputs(), {"kind": "cuda", "device": "NVIDIA H100 80GB HBM3", "capability": "9.0"}
    bits = {name: emulate(inputs, meta)["d"].tobytes() for name, emulate in long.hypotheses.items()}
    for parts in (4, 8, 16):  # promoting a partial sum and adding the sum of a slice are the same
        assert bits.pop(f"split-K {parts}") == bits[f"promoted every {4096 // parts}"]
    assert len(set(bits.values())) == len(bits)  # so that a device can answer
    assert long.emulate(inputs, meta)["d"].tobytes() == bits["promoted every 128"]


@pytest.mark.parametrize(
    ("gpu", "values"), [("L40S", (1024, 200704)), ("H100", (1024, 200704)), ("B200", (1026, 200735))]
)
def test_the_probes_show_the_published_values_through_torch(gpu: str, values: tuple[float, float]) -> None:
    meta = {"kind": "cuda", "device": f"NVIDIA {gpu}", "capability": ""}
    found = lab_product(fp8.product_of(True), ONE_CHAIN, fp8.probe_operands(), meta)["d"]
    assert np.diag(found)[:2].view(np.float32).tolist() == list(values)


def test_a_gpu_without_fp8_passes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    first = next(iter(fp8.cases(PARAMS)))
    with pytest.raises(NotHereError, match=r"8\.0 has no FP8; 8\.9 is the first"):
        first.compute(first.inputs(), "cuda")
    assert issubclass(NotHereError, LabError)
