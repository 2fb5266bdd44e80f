"""Tenstorrent's matrix unit: its oracle, its arrays, and a program in C agree; each decision shows; it is no GPU."""

import dataclasses
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import refusals

from fplab import bounds, cli, vectors
from fplab.hardware import software
from fplab.tensorcore import GPUS, TABLE, classes, dot, get, matmul, models, oracle
from fplab.tensorcore.models import SIMULATIONS, Model, Status
from fplab.tensorcore.units import tensix
from fplab.vectors import mutants, operations
from fplab.vectors.rows import draw_rows

CHIPS, FORMATS = ("Wormhole", "Blackhole"), ("bf16", "tf32", "fp16")
FLAGS = {"bf16": ("-DSHIFT=-3",), "tf32": ("-DSHIFT=13",), "fp16": ("-DSHIFT=0", "-DFP16=1")}


def program(model: Model, folder: Path) -> vectors.under_test.Ask:
    """The simulator's arithmetic in C."""
    if not (compiler := shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no compiler of C is installed")
    chip = f"-DWORMHOLE={int(model.minus_one == 'wrong')}"
    flags = (*FLAGS[model.a], f"-DPHASES={model.phases}", chip)
    source = Path(__file__).with_name("tensix.c")
    subprocess.run([compiler, "-O2", "-w", *flags, source, "-o", folder / "unit"], check=True)
    return vectors.program([str(folder / "unit")])


@cache
def corpus(chip: str, fmt: str) -> vectors.Vectors:
    return operations.of_model(get(chip, fmt), 2000, 1)


CELLS = pytest.mark.parametrize(("chip", "fmt"), [(chip, fmt) for chip in CHIPS for fmt in FORMATS])


@CELLS
def test_the_lab_has_the_bits_of_a_program_in_c(chip: str, fmt: str, tmp_path: Path) -> None:
    rows = corpus(chip, fmt)
    for fidelity in ("hifi4", "hifi3", "hifi2", "lofi"):
        model = get(chip, fmt, instruction=fidelity)
        d = mutants.results(model, rows.columns, rows.columns["k"])
        got = program(model, tmp_path)(rows)["d"]
        wrong = np.flatnonzero(got != d)
        assert not wrong.size, (model.name, wrong.size, rows.lines[wrong[0]], hex(d[wrong[0]]), hex(got[wrong[0]]))


@pytest.mark.parametrize("model", SIMULATIONS, ids=lambda m: m.name)
def test_arrays_have_the_oracles_bits(model: Model) -> None:
    rows, lengths, why = draw_rows(model, 2000, 7)
    for i in range(0, len(lengths), 47):
        a, b = (
            software.values(rows[n][i : i + 1, : lengths[i]].copy(), f) for n, f in (("a", model.a), ("b", model.b))
        )
        c = software.values(rows["c"][i : i + 1], "fp32")
        want = oracle.result_bits(oracle.dot(a[0].tolist(), b[0].tolist(), float(c[0]), model), model)
        got = int(np.asarray(dot(a, b, c, gpu=model)).view(np.uint32)[0])
        assert hex(got) == hex(want), (why[i], rows["c"][i])


@CELLS
def test_every_decision_shows_in_the_first_rows(chip: str, fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fields and orders, by the corpus; what no field has, by other arithmetic in the place of the unit's."""
    found = corpus(chip, fmt)
    assert min(operations.coverage(found).values()) > 0, operations.coverage(found)
    for attribute, other in MUTANTS:
        with monkeypatch.context() as patch:
            patch.setattr(tensix, attribute, other)
            again = mutants.results(operations.model_of(found), found.columns, found.columns["k"])
        assert (again != found.columns["d"]).any(), (attribute, other)


def toward_zero(x: Any, places: Any) -> Any:
    return np.sign(x) * (np.abs(x) >> np.minimum(places, 40))


def to_even(x: Any, places: Any) -> Any:
    return np.rint(x / 2.0 ** np.minimum(places, 40)).astype(np.int64)


def kept(x: Any, fmt: Any) -> Any:
    sign, exponent, significand, _ = TAKEN(x, fmt)
    return sign, exponent, significand, x == 0


TAKEN = tensix._taken_apart
MUTANTS: list[tuple[str, Any]] = [
    ("LAST", 11), ("FINE", 22), ("GROUP", 16), ("_lower", lambda phase: 0), ("_shifted", toward_zero),
    ("_shifted", to_even), ("_taken_apart", kept), ("_zero_exponent", lambda phase, model: -60),
]  # fmt: skip


def test_phases_take_more_and_more_of_the_significands() -> None:
    """By hand: 1 + 2^-7 of BF16 has its last bit in A's second part, 1 + 2^-5 in B's."""
    for name, a_last, b_last in (("lofi", 1, 1), ("hifi2", 1, 1 + 2.0**-5), ("hifi3", 1 + 2.0**-7, 1 + 2.0**-5)):
        assert float(dot([1 + 2.0**-7], [1.0], 0.0, gpu="Wormhole", inputs="bf16", instruction=name)) == a_last
        assert float(dot([1.0], [1 + 2.0**-5], 0.0, gpu="Wormhole", inputs="bf16", instruction=name)) == b_last
    both = [dot([1 + 2.0**-7], [1 + 2.0**-5], gpu="Wormhole", inputs="bf16", instruction=n) for n in ("hifi3", "hifi4")]
    assert float(both[1] - both[0]) == 2.0**-12
    a = np.arange(-60, 60, dtype=np.float32).reshape(3, 40) / 8
    exact = a.astype(np.float64) @ a.T
    assert (matmul(a, a.T, gpu="Blackhole", inputs="bf16") == exact).all()


def test_minus_one_unit_is_wormholes_mistake_and_codes_of_no_number_are_numbers() -> None:
    c = np.uint32(0x3F7FFFFD).view(np.float32)  # which at 1's places is 1 - 2^-23
    given = [float(dot([1.0], [-1.0], c, gpu=chip, inputs="bf16")) for chip in CHIPS]
    assert given == [-(2.0**4), -(2.0**-23)]
    one, inf = get("Blackhole", "bf16"), np.inf
    assert float(dot([inf], [2.0**-10], 0.0, one)) == 2.0**118
    assert float(dot([inf, -inf], [1.0, 1.0], 0.0, one)) == 0
    assert float(dot([np.nan], [2.0**-10], 0.0, one)) == 1.5 * 2.0**118
    lofi = get("Blackhole", "bf16", instruction="lofi")
    assert float(dot([2.0**100], [2.0**100], 0.0, lofi)) == inf
    assert float(dot([2.0**100], [2.0**100], 0.0, one)) == 0  # beside zero products of 2^195 the next phase loses 2^128
    assert float(dot([0.0], [1.0], 2.0**-140, one)) == 0


def test_it_is_found_by_name_and_stands_in_no_table_of_gpus(tmp_path: Path) -> None:
    assert all(m.status is Status.SIMULATOR for m in SIMULATIONS)
    assert get("n150", "bf16") == get("Wormhole", "bf16") == dataclasses.replace(get("wormhole", "bf16"))
    assert models.label("Blackhole") == "Blackhole (Tenstorrent Tensix)"
    assert not {"Wormhole", "Blackhole"} & {*GPUS, *(m.gpu for m in TABLE), *(m[0].gpu for m in classes())}
    refusals.refuses(lambda: get("Wormhole", "e4m3"), "has no e4m3. Allowed on Wormhole: bf16, tf32, fp16.")
    refusals.refuses(lambda: get("Wormhole", "bf16", "fp16"), "output='fp16'. Allowed: fp32")
    refusals.refuses(lambda: get("Wormhole", "bf16", instruction="mma"), "has no mma. Allowed on Wormhole: hifi4, ")
    refusals.refuses(lambda: dataclasses.replace(get("H100"), phases=2), "phases=2 is not possible for kind='block'")
    refusals.refuses(lambda: bounds.dot([1.0], [1.0], gpu="Wormhole", inputs="bf16"), "no bound is proved of that")
    assert (
        cli.main(
            [
                "vectors",
                "--unit",
                "Wormhole",
                "--format",
                "bf16",
                "--rows",
                "40",
                "--kinds",
                "txt",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )


def test_a_fault_of_a_simulator_is_told_by_name(tmp_path: Path) -> None:
    found = vectors.conform(
        program(get("Blackhole", "bf16", instruction="hifi2"), tmp_path), corpus("Wormhole", "bf16")
    )
    assert {fault.name for fault in found.faults} == {"phases", "minus_one"}
    assert found.unexplained == 0
