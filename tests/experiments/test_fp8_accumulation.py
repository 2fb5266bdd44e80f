"""The experiment ``fp8_accumulation``: mutants, drawn codes, relative errors by hand, what a GPU can answer."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from experiments.frame import CELLS, Mutant, frame, put, record
from fplab import floats, tensorcore
from fplab.errors import LabError
from fplab.experiments import fp8_accumulation
from fplab.hardware.cases import NotHereError
from fplab.hardware.core_cases import lab_product
from fplab.hardware.products import ONE_CHAIN

fp8 = fp8_accumulation
PARAMS = fp8.Params(rows=64, longest=12, sides=(64, 512))
LAST = 7  # the place of K = 4096


def by_another(of: str, other: str) -> Any:
    """Products of a GPU by another."""
    return lambda good: lambda a, b, gpu, promote=None: good(a, b, other if gpu == of else gpu, promote)


def of_the_others(result: Any) -> dict[str, Any]:
    """The products of Ada and of Blackwell."""
    results = result.results.copy()
    for i, s in itertools.product(range(3), (fp8.ADA, fp8.B200)):
        a, b = fp8.numbers(result.a[i]), fp8.numbers(result.b[i])
        gpu = list(fp8.SERIES)[s]
        results[i, s] = [fp8.product(a[:, :k], b[:, :k], gpu) for k in result.sizes]
    return {"results": results}


def references(result: Any) -> dict[str, Any]:
    """The exact products."""
    pairs = [(fp8.numbers(a), fp8.numbers(b)) for a, b in zip(result.a, result.b, strict=True)]
    return {"exact": np.array([[fp8.exactly(a[:, :k], b[:, :k]) for k in result.sizes] for a, b in pairs])}


def nothing(result: Any) -> dict[str, Any]:
    """What the claim computes itself."""
    return {}


def ulp_off(x: Any) -> Any:
    return x ^ np.uint32(1)


def alike(result: Any) -> dict[str, Any]:
    """Errors of one size of matrix also under another's name."""
    defined = result.defined.copy()
    defined[:, 0] = defined[:, 1]
    return {"defined": defined}


MUTANTS = (
    Mutant("Hopper with a long accumulator", ("fourteen_bits", "shrinking", "passes", "nearly", "repairs"), "product",
           by_another("H100", "B200")),
    Mutant("no promotion", ("fourteen_bits", "promotion", "repairs", "intervals"), "product",
           lambda product: lambda a, b, gpu, promote=None: product(a, b, gpu)),
    Mutant("positive numbers of both signs", ("shrinking", "growth", "others"), "DISTRIBUTIONS",
           lambda good: {**good, "uniform, positive": good["uniform, both signs"]}),
    Mutant("Hopper aligns to 14 bits", ("fourteen_bits",), CELLS, record("H100", "e4m3", alignment_bits=14),
           part=nothing),
    Mutant("Ada aligns to 25 bits", ("fourteen_bits",), CELLS, record("Ada", "e4m3", alignment_bits=25), part=nothing),
    Mutant("Blackwell aligns to 13 bits", ("fourteen_bits",), CELLS, record("B200", "e4m3", alignment_bits=13),
           part=nothing),
    Mutant("Ada keeps a bit less", ("fourteen_bits", "ada"), CELLS,
           record("Ada", "e4m3", alignment_bits=12, kept_bits=12), part=of_the_others),
    Mutant("Blackwell adds as Ada", ("fourteen_bits", "blackwell"), "product", by_another("B200", "Ada"),
           part=of_the_others),
    Mutant("exact sums in FP32", ("reference",), "exactly", lambda good: lambda a, b: np.float32(good(a, b)),
           part=references),
    Mutant("errors of any size of matrix", ("nearly",), change=alike),
    Mutant("4,096 is not one chain", ("intervals",), change=put("promoted", (0, 7, 1, 1), ulp_off)),
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
    a, b = (fp8.numbers(of[2]) for of in (result.a, result.b))
    want = tensorcore.matmul(a[:, :256], b[:, :256].T, gpu="Ada", inputs="e4m3").view(np.uint32)
    assert np.array_equal(result.results[2, 2, 3], want)
    assert result.running_exact[2, 7] == result.exact[2, 3, 0, 0]
    assert result.running[2, 0, 7] == result.results[2, 0, 3, 0, 0]
    assert result.running[2, 1, -1] == result.results[2, 1, LAST, 0, 0]


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
    table = list(zip(*fp8.rows(result).values(), strict=True))
    assert len(table) == 3 * (4 * 8 * 5 + 8 + 2 * 2 * 5)
    error = fp8.relative(result.results[2, 0, LAST], result.exact[2, LAST])
    assert ("uniform, positive", "H100", 4096, 64**2, fp8.RMS, error) in table
    assert all(math.isfinite(row[-1]) and row[-1] >= 0 for row in table)


def test_the_cells_near_the_reports_figure_are_framed(result: Any) -> None:
    _, two_percent = fp8.EXPERIMENT.figures
    bold = [t.get_text() for t in two_percent(result).axes[-1].texts if t.get_fontweight() == "bold"]
    assert [text for text in bold if text.endswith("%")] == ["2%", "2%"]  # the others are three titles
    assert [fp8.plain_percent(10.0**e) for e in (0, -2, -7)] == ["100%", "1%", "0.00001%"]
    assert [fp8.rounded(x) for x in (0.0201, 0.00065, 2.83, 741.2)] == ["2%", "0.065%", "280%", "74,000%"]


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
