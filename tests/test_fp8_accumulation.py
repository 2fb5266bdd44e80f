"""The experiment ``fp8_accumulation``: its operands, checks that can fail, figures, and its GPU cases on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_frame import Mutant, computed_on_cpu, drawn, forged, frame, kills, repeats

from fplab import floats, tensorcore
from fplab.errors import LabError
from fplab.experiments import fp8_accumulation
from fplab.experiments.fp8_accumulation import cases, checks, operands
from fplab.hardware.cases import Arrays, Case, NotHereError

PARAMS = fp8_accumulation.Params(rows=64, longest=12, sides=(64, 512))

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(fp8_accumulation, PARAMS)


LAST = 7  # the place of K = 4096


def ulp_off(x: np.ndarray) -> None:
    x ^= np.uint32(1)


def doubled(x: np.ndarray) -> None:
    x += np.uint32(0x800000)


def half(x: np.ndarray) -> None:
    x /= 2


def off(name: str, place: Any, change: Callable[[np.ndarray], None]) -> Callable[[Arrays], Arrays]:
    """One number, or several, of an array changed."""

    def apply(arrays: Arrays) -> Arrays:
        change(arrays[name][(*place, None)])  # a view
        return {name: arrays[name]}

    return apply


def unpromoted(product: Any) -> Any:
    return lambda a, b, gpu, promote=None: product(a, b, gpu)


def long_accumulator(product: Any) -> Any:
    """Hopper with Blackwell's accumulator."""
    return lambda a, b, gpu, promote=None: product(a, b, "B200" if gpu == "H100" else gpu, promote)


BITS, CHAINS, POSITIVES = "of these sums one chain", "promotion every 128 is", "of these sums of positive"
GROWS, PASSES, NEARLY, OTHERS = "errors of one sign", "positive operands pass", "DeepSeek-V3's", "no other definition"
REPAIRS, LONGER, ADAS, BLACKWELL = "promoted every 128, the", "the longer", "Ada errs", "Blackwell errs"
MUTANTS = (
    Mutant("Hopper with a long accumulator", (BITS, POSITIVES, PASSES, NEARLY, REPAIRS),
           "product", long_accumulator),
    Mutant("no promotion", (BITS, CHAINS, REPAIRS, LONGER), "product", unpromoted),
    Mutant("an exact sum", ("the reference has",), change=off("exact", (1, 3, 7), half)),
    Mutant("a fifteenth bit", (BITS,), change=off("results", (1, 2, 0, 63, 63), ulp_off)),
    Mutant("an ulp of a promoted sum", (CHAINS,), change=off("results", (0, 1, LAST, 9, 1), ulp_off)),
    Mutant("a sum that is too large", (POSITIVES,), change=off("results", (2, 3, 1, 2, 2), doubled)),
    Mutant("no growth", (GROWS,), change=lambda arrays: {"results": _late(arrays)}),
    Mutant("errors half as large", (NEARLY,), change=off("defined", (0, 1, 0, checks.OF_RMS), half)),
    Mutant("errors of any size of matrix", (NEARLY,), change=lambda arrays: {"defined": _one_size(arrays)}),
    Mutant("another norm", (OTHERS,), change=off("defined", (2, 1, 0, checks.NORM), half)),
    Mutant("a promoted sum is far off", (LONGER,), change=off("promoted", (2, 2, 8, 8), doubled)),
    Mutant("4,096 is not one chain", (LONGER,), change=off("promoted", (0, 7, 1, 1), ulp_off)),
    Mutant("Ada promotes", (ADAS,), change=lambda arrays: {"results": _copied(arrays["results"], 1, 2)}),
    Mutant("Blackwell is far off once", (BLACKWELL,), change=off("results", (0, 3, LAST, 6, 6), doubled)),
)  # fmt: skip
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(fp8_accumulation, PARAMS, MUTANTS)


def _copied(results: np.ndarray, source: int, target: int) -> np.ndarray:
    results[:, target] = results[:, source]
    return results


def _late(arrays: Arrays) -> np.ndarray:
    """Positive sums that lose twice as much at K = 512 and nothing more until 4,096."""
    results, exact = arrays["results"], arrays["exact"]
    results[2, 0, 4] = np.float32(exact[2, 4] * 0.97).view(np.uint32)
    return results


def _one_size(arrays: Arrays) -> np.ndarray:
    defined = arrays["defined"]
    defined[:, 0] = defined[:, 1]
    return defined


# --- operands and errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", operands.DISTRIBUTIONS)
def test_codes_are_drawn_as_their_numbers_are_likely(distribution: str) -> None:
    """Against the distribution rounded to E4M3: numbers at the middles of a million equal shares."""
    n = 1 << 20
    codes = operands.draw(distribution, 3, 1024, n // 1024)
    shares = (np.arange(n) + 0.5) / n
    if distribution == "normal":
        grid = np.linspace(-6, 6, 40_001)
        law = np.array([operands.DISTRIBUTIONS[distribution](operands.SIGMA * x) for x in grid.tolist()])
        numbers = operands.SIGMA * np.interp(shares, law, grid)
    else:
        numbers = operands.LARGEST * (shares if distribution == "uniform, positive" else 2 * shares - 1)
    want = np.bincount(floats.encode(numbers.astype(np.float32), "e4m3"), minlength=256)
    want[0] += want[0x80]  # the middle of the shares may round to -0, which is not drawn
    got = np.bincount(codes.ravel(), minlength=256)
    assert not got[[0x80, 0x7F, 0xFF]].any()
    assert (np.abs(got - np.where(np.arange(256) == 0x80, 0, want)) < 6 * np.sqrt(want + 1) + 2).all()


@pytest.mark.parametrize("distribution", operands.DISTRIBUTIONS)
def test_the_fast_draw_is_the_plain_one(distribution: str) -> None:
    limits, codes = operands._limits(distribution)
    words = np.random.Philox(key=9).random_raw(300_000) >> np.uint64(32)
    plain = codes[np.searchsorted(limits, words, side="right")]
    assert np.array_equal(operands.draw(distribution, 9, 300, 1000).ravel(), plain)


def test_runs_use_prefixes_of_the_same_operands(arrays: Arrays) -> None:
    a, b = (operands.numbers(arrays[name][2]) for name in "ab")
    want = tensorcore.matmul(a[:, :256], b[:, :256].T, gpu="Ada", inputs="e4m3").view(np.uint32)
    assert np.array_equal(arrays["results"][2, 2, 3], want)
    assert arrays["running_exact"][2, 7] == arrays["exact"][2, 3, 0, 0]
    assert arrays["running"][2, 0, 7] == arrays["results"][2, 0, 3, 0, 0]
    assert arrays["running"][2, 1, -1] == arrays["results"][2, 1, LAST, 0, 0]


def test_relative_errors() -> None:
    want = np.array([[3.0, -4.0], [0.0, 5.0]])
    got = np.array([[3.0, -4.5], [1.0, 5.25]], np.float32).view(np.uint32)
    found = [operands.relative(got, want, name) for name in operands.DEFINITIONS]
    rms = math.sqrt(50 / 4)
    assert found == [0.125, 1 / rms, 0.2, math.sqrt((0.25 + 1 + 0.0625) / 50), 0.05]
    assert operands.relative(got, want) == 1 / rms


def test_significant_bits() -> None:
    def used(*values: float) -> int:
        return operands.significant_bits(np.array(values, np.float32).view(np.uint32))

    assert used(1.0, 4.0, -0.5) == 1
    assert used(1.5) == 2
    assert used(1.0, 1 + 2.0**-13) == 14
    assert used(1 + 2.0**-23, 1.5) == 24


# --- outputs and devices ---------------------------------------------------------------------------------------------


def test_the_table_has_every_error(arrays: Arrays) -> None:
    table = fp8_accumulation.table(arrays, PARAMS)
    rows = list(zip(*table.values(), strict=True))
    assert len(rows) == 3 * (4 * 8 * 5 + 8 + 2 * 2 * 5)
    error = operands.relative(arrays["results"][2, 0, LAST], arrays["exact"][2, LAST])
    assert ("uniform, positive", "H100", 4096, 64**2, operands.RMS, error) in rows
    assert all(math.isfinite(row[-1]) and row[-1] >= 0 for row in rows)


def test_runs_are_the_same_every_time(arrays: Arrays) -> None:
    assert arrays.keys() == {*fp8_accumulation.DIGESTED, "defined"}
    repeats(fp8_accumulation, arrays, PARAMS)


def test_figures_are_drawn_in_both_themes(arrays: Arrays, tmp_path: Path) -> None:
    for theme in ("light", "dark"):
        figure, size = drawn(fp8_accumulation, arrays, PARAMS, theme, tmp_path)
        assert len(figure.axes) == 6
        bold = [t.get_text() for t in figure.axes[-1].texts if t.get_fontweight() == "bold"]
        assert bold[3:] == ["2%", "2%"]  # of three titles and the cells near the report's figure
        assert size > 10_000


def test_percentages_are_readable() -> None:
    from fplab.experiments.fp8_accumulation.figure import _percent, _rounded

    assert [_percent(10.0**e) for e in (0, -2, -7)] == ["100%", "1%", "0.00001%"]
    assert [_rounded(x) for x in (0.0201, 0.00065, 2.83, 741.2)] == ["2%", "0.065%", "280%", "74,000%"]


EVERY = fp8_accumulation.gpu_cases(PARAMS)


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_the_cpu_stands_in(case: Case) -> None:
    computed_on_cpu(case)


def test_long_sums_ask_and_short_ones_know() -> None:
    assert {case.name.split(", ")[-2]: bool(case.open) for case in EVERY} == {
        "probes": False, "k = 32": False, "k = 128": True, "k = 512": True, "k = 4096": True,
    }  # fmt: skip
    long = next(case for case in EVERY if "4096, promoted" in case.name)
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
    found = cases.in_lab({}, cases.probe_operands(), meta)["d"]
    assert np.diag(found)[:2].view(np.float32).tolist() == list(values)


def test_a_gpu_without_fp8_passes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(NotHereError, match=r"8\.0 has no FP8; 8\.9 is the first"):
        EVERY[0].compute(EVERY[0].inputs(), "cuda")
    assert issubclass(NotHereError, LabError)


@pytest.mark.parametrize("case", [case for case in EVERY if "4096" not in case.name], ids=lambda case: case.name)
def test_a_forged_record_fails(case: Case) -> None:
    forged(case)
