"""A unit under test: what it does otherwise is told by name, by each way in which it can be asked."""

import dataclasses
import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import refusals

from fplab import cli, vectors
from fplab.tensorcore import dot, get
from fplab.tensorcore.models import Model
from fplab.vectors import conformance, operations, under_test
from fplab.vectors.conformance import Conformance

EXAMPLES = Path(__file__).parent.parent / "examples" / "conform"
BF16 = ("-DEXPONENT_BITS=8", "-DFRACTION_BITS=7")


def compiler(*names: str) -> str:
    """A compiler that is installed; the test is skipped where none is."""
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        pytest.skip(f"none of these compilers is installed: {', '.join(names)}")
    return found


def simulator(folder: Path, *flags: str) -> under_test.Ask:
    """The C simulator with faults planted by macros."""
    out = folder / "unit"
    subprocess.run([compiler("cc", "gcc", "clang"), "-O2", *flags, EXAMPLES / "unit.c", "-o", out], check=True)
    return vectors.program([str(out)])


@functools.cache
def of(*unit: str) -> vectors.Vectors:
    return vectors.products(*unit)


def names(found: Conformance) -> list[str]:
    return sorted(fault.name for fault in found.faults)


def shows(found: Conformance, ask: under_test.Ask, rows: vectors.Vectors) -> None:
    """Each fault's smallest row gives what is said of it, by the unit and by the one under test."""
    for fault in found.faults:
        assert fault.row
        k, *cells = fault.row.split()
        numbers = [int(cell, 16) for cell in cells]
        n = int(k)
        columns = {"k": np.array([n], np.uint16), "a": np.array([numbers[:n]], rows.columns["a"].dtype),
                   "b": np.array([numbers[n : 2 * n]], rows.columns["b"].dtype),
                   "c": np.array(numbers[-2:-1], rows.columns["c"].dtype)}  # fmt: skip
        model = operations.model_of(rows)
        ours = conformance.mutants.results(model, {m: columns[m] for m in "abc"}, columns["k"])
        assert int(ours[0]) == numbers[-1] != int(fault.got, 16)
        columns["d"] = ours
        assert int(ask(under_test.rows_of(rows, columns))["d"][0]) == int(fault.got, 16)


PLANTED: list[tuple[str, Sequence[str], list[str], str]] = [
    ("fp16", ["-DALIGNMENT=24"], ["alignment_bits"], "Terms are aligned to 25 bits; yours keeps 24."),
    ("fp16", ["-DNEAREST=1"], ["rounding"], "rounded toward zero; yours rounds to nearest, ties to even."),
    ("fp16", ["-DNEAREST=1", "-DSTICKY=0"], ["rounding"], "yours rounds to nearest without the sticky bits"),
    ("fp16", ["-DREVERSED=1"], ["order"], "yours is chain, 16 products a step, k descending, c first."),
    ("fp16", ["-DLENGTH=8"], ["length"], "16 products are added at once; in yours 8."),
    ("fp16", ["-DFLUSH=1"], ["flush_ab"], "Subnormal operands of A and B count; yours takes them for zeros."),
    ("bf16", ["-DSATURATE=1"], ["saturation"], "Beyond the largest number the unit gives infinity; yours saturates."),
    ("bf16", ["-DFLOOR=-126"], ["floor"], "floor is -133; yours has -126."),
    ("bf16", ["-DNAN_CODE=0x7FC00000"], ["nan"], "A NaN result is 7FFFFFFF; yours is 7FC00000."),
    ("fp16", ["-DALIGNMENT=24", "-DNEAREST=1", "-DFLUSH=1"], ["alignment_bits", "flush_ab", "rounding"], ""),
    ("fp16", ["-DLENGTH=8", "-DALIGNMENT=23", "-DNEAREST=1", "-DSTICKY=0"], ["alignment_bits", "length", "rounding"],
     "without the sticky bits"),
    ("bf16", ["-DSATURATE=1", "-DALIGNMENT=24", "-DREVERSED=1"], ["alignment_bits", "order", "saturation"], ""),
    ("bf16", ["-DFLUSH=1", "-DALIGNMENT=24"], ["alignment_bits", "flush_ab"], ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "flags", "named", "says"),
    PLANTED,
    ids=[f"{i} {' '.join(f[2:] for f in flags)}" for i, flags, *_ in PLANTED],
)
def test_faults_of_a_strangers_simulator_are_told_by_name(
    inputs: str, flags: Sequence[str], named: list[str], says: str, tmp_path: Path
) -> None:
    ask = simulator(tmp_path, *(BF16 if inputs == "bf16" else ()), *flags)
    found = vectors.conform(ask, of("H100", inputs))
    assert names(found) == named
    assert says in str(found)
    assert found.agreed < found.rows
    assert found.unexplained <= (40 if "order" in named and inputs == "bf16" else 0)  # of which the floor is not told
    shows(found, ask, of("H100", inputs))


@pytest.mark.parametrize("inputs", ["fp16", "bf16"])
def test_a_simulator_without_a_fault_agrees_in_every_row(inputs: str, tmp_path: Path) -> None:
    ask = simulator(tmp_path, *(BF16 if inputs == "bf16" else ()))
    found = vectors.conform(ask, vectors.products("H100", inputs, rows=7000, seed=9))
    assert (found.agreed, found.faults, found.first) == (7000, (), ())
    assert str(found) == f"H100 wgmma.k16 {inputs}->fp32: 7,000 of 7,000 rows agree in every bit."


UNITS: list[tuple[Model, dict[str, Any], list[str]]] = [
    (get("B200", "nvfp4"), {"alignment_bits": 30}, ["alignment_bits"]),
    (get("MI300X"), {"alignment_bits": 20}, ["alignment_bits"]),
    (get("T4", "int8"), {"saturate": True}, ["saturate"]),
    (get("H100", "fp16", "fp16"), {"rounding": "rtz", "overflow": "max"}, ["rounding", "saturation"]),
    (get("Ada", "e4m3"), {"kept_bits": 23}, ["kept_bits"]),
    (get("MI210", "bf16"), {"subnormals": "kept"}, ["flush_inputs", "flush_results"]),
]


@pytest.mark.parametrize(("model", "fields", "named"), UNITS, ids=lambda v: v.name if isinstance(v, Model) else "")
def test_units_of_every_algorithm_are_told(model: Model, fields: dict[str, Any], named: list[str]) -> None:
    """What is called as it is asked of a Python function."""
    other = dataclasses.replace(model, **fields)

    def f(a: Any, b: Any, c: Any, *scales: Any) -> Any:
        return dot(a, b, c, gpu=other, **dict(zip(("scale_a", "scale_b"), scales, strict=False)))

    found = vectors.conform(vectors.function(f, model), operations.of_model(model, 2000, 1))
    assert names(found) == named
    if model.kind == "pairwise":  # a scheme has no such unit's zeros and subnormals in every row
        assert "subnormal operands taken for zeros is True; yours has False." in str(found)
    else:
        assert found.unexplained == 0


def test_the_example_in_cpp_is_a_library(tmp_path: Path) -> None:
    out = tmp_path / "unit.so"
    command = [compiler("c++", "g++", "clang++"), "-O2", "-shared", "-fPIC", EXAMPLES / "unit.cpp", "-o", out]
    subprocess.run(command, check=True, capture_output=True)
    assert cli.main(["conform", "--unit", "H100", "--library", str(out)]) == 0
    refusals.refuses(lambda: vectors.library(out, "other"), "there is no function 'other' to be had in ")


def test_the_example_in_python_is_a_program_and_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / "unit.py"
    assert cli.main(["conform", "--unit", "A100", "--format", "fp64", "--", sys.executable, str(path)]) == 0
    assert cli.main(["conform", "--unit", "A100", "--format", "fp64", "--python", f"{path}:unit", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.partition("\n")[2])["agreed"] == 2000


def test_the_example_in_rust(tmp_path: Path) -> None:
    out = tmp_path / "unit"
    subprocess.run([compiler("rustc"), "-O", EXAMPLES / "unit.rs", "-o", out], check=True)
    assert cli.main(["conform", "--unit", "H100", "--format", "int8", "--", str(out)]) == 0
    assert cli.main(["conform", "--unit", "H100", "--format", "int8", "--single", "--", str(out)]) == 0


def test_the_example_in_systemverilog(tmp_path: Path) -> None:
    compiler("c++", "g++", "clang++")
    sources = [EXAMPLES / "unit.sv", EXAMPLES / "unit_sv.cpp"]
    command = [compiler("verilator"), "--cc", "--exe", "--build", "--Mdir", tmp_path / "obj", *sources]
    subprocess.run(command, check=True, capture_output=True)
    assert cli.main(["conform", "--unit", "H100", "--format", "int8", "--", str(tmp_path / "obj" / "Vunit")]) == 0


def test_a_unit_of_single_instructions_is_chained_here() -> None:
    model = get("B200", "nvfp4")
    seen = set()

    def one(rows: vectors.Vectors) -> dict[str, Any]:
        seen.update(rows.columns["k"].tolist())
        given = {n: x for n, x in rows.columns.items() if n not in ("k", "d")}
        return {"d": conformance.mutants.results(model, given, rows.columns["k"])}

    found = vectors.conform(vectors.by_instruction(one, model.k), of("B200", "nvfp4"))
    assert found.agreed == found.rows
    assert seen == {64}


def test_files_of_vectors_are_put_to_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any operation: rows agreed and the first that do not."""
    one = vectors.conversions("e4m3", "fp32", rows=400)
    path = one.save(tmp_path, ("txt",))[0]
    program = tmp_path / "p.py"
    program.write_text(
        "import sys\nfrom fplab.vectors import operations as o, read\nfrom fplab import formats\n"
        f"v = read({str(path)!r})\nr, p = v.about['rounding'], v.about['overflow']\n"
        "for line in sys.stdin:\n    m, q, x, w = (int(c, 16) for c in line.split())\n"
        "    y, f = o.convert(x, formats.get('e4m3'), formats.get('fp32'), r[m], p[q], w)\n"
        f"    print(f'{{y:X}} {{f ^ (x == {one.columns['x'][0]}):X}}')\n",
        encoding="utf-8",
    )
    assert cli.main(["conform", "--vectors", str(path), "--", sys.executable, str(program)]) == 1
    said = capsys.readouterr().out
    assert "convert-e4m3-fp32: " in said
    wrong = int((one.columns["x"] == one.columns["x"][0]).sum())
    assert f"{400 - wrong} of 400 rows agree" in said
    assert f"{wrong} rows with another result remain without an explanation." in said
    refusals.refuses(lambda: vectors.function(lambda a, b, c: c, None)(one), "are no vectors of a product")


@pytest.mark.parametrize(
    ("code", "text"),
    [("print(1)", r"wrote 1 lines for 20 rows; a row gives one line"),
     ("[print('zz') for _ in sys.stdin]", r"wrote 'zz' as line 1; allowed: 1 x 32 bits in hexadecimal"),
     ("[print('1' * 99) for _ in sys.stdin]", r"as line 1; allowed: 1 x 32 bits"),
     ("[print('1 2') for _ in sys.stdin]", r"wrote '1 2' as line 1"),
     ("[print('-1') for _ in sys.stdin]", r"wrote '-1' as line 1"),
     ("sys.exit('it broke')", r"ended with status 1: it broke"),
     ("import time; time.sleep(9)", r"took more than 0.5 s for 20 rows")],
)  # fmt: skip
def test_programs_that_answer_otherwise_are_refused(code: str, text: str) -> None:
    ask = vectors.program([sys.executable, "-c", f"import sys; {code}"], 0.5 if "sleep" in code else 60)
    refusals.refuses(lambda: vectors.conform(ask, vectors.products("V100", rows=20)), text)


@pytest.mark.parametrize(
    ("words", "text"),
    [(["--unit", "V100"], "one of --library FILE, --python NAME and -- COMMAND says what is to be tested."),
     (["--", "x"], "one of --unit GPU and --vectors FILE says what it should compute."),
     (["--unit", "V100", "--", "/no/such"], "'/no/such' cannot be run: No such file or directory."),
     (["--unit", "V100", "--python", "nothing"], "the unit 'nothing' cannot be had (there is no colon in it)"),
     (["--unit", "V100", "--python", "math:pi"], "the unit 'math:pi' cannot be had (it is not callable)"),
     (["--unit", "V100", "--library", "no.so"], "there is no function 'unit' to be had in 'no.so'"),
     (["--vectors", "no.txt", "--", "x"], "cannot read vectors 'no.txt'")],
)  # fmt: skip
def test_the_command_refuses(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["conform", *words]) == 2
    assert text in capsys.readouterr().err


def test_functions_that_are_no_units_are_refused_or_left_unexplained() -> None:
    rows, model = of("V100"), get("V100")
    refusals.refuses(lambda: vectors.conform(vectors.function(lambda a, b, c: c[:3], model), rows), "returned shape")
    refusals.refuses(
        lambda: vectors.conform(vectors.function(lambda a, b, c: 1 / 0, model), rows), "f raised ZeroDivision"
    )
    noise = np.random.default_rng(0)
    found = vectors.conform(vectors.function(lambda a, b, c: noise.standard_normal(len(c)), model), rows)
    assert found.found is None
    assert found.unexplained > 1900
