"""The recorder as one file, and what it writes: recorded without an install, verified here, and no forgery passes."""

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import refusals
import torch
from test_recorder import BLOCKER

from fplab import cli
from fplab.experiments import one_file, recorder
from fplab.experiments.outcomes import Status
from fplab.hardware import environment, order, products, records, timing
from fplab.hardware.records import Record

GPU = {
    "kind": "cuda", "device": "NVIDIA H100 PCIe", "capability": "9.0", "driver": "570.86.10", "cuda": "12.8",
    "multiprocessors": 114, "cudnn": 91002, "torch": "2.13.0",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the stand-in's recording of single instructions gives."""
    folder = tmp_path_factory.mktemp("one")
    assert one_file.main(str(folder / "r.zip"), "cpu", ("scalar",)) == 0
    assert [p.name for p in folder.iterdir()] == ["r.zip"]
    return folder / "r.zip"


def forged(made: Path, out: Path, change: Callable[[Record], Record]) -> Path:
    """A file of changed records, whose checksums are right."""
    one_file.pack([change(one) for one in one_file.opened(made)], out)
    return out


def of_a_gpu(one: Record) -> Record:
    """A record relabelled; what else its writer knows of a GPU comes on top."""
    return replace(one, meta={**{k: v for k, v in one.meta.items() if k != "cpu"}, **GPU})


def approximating(one: Record) -> Record:
    """As of_a_gpu, with approximations that are a place off in some rows, as a GPU's are."""
    cases = []
    for case in one.cases:
        y = case.outputs["y"].copy()
        if "approx" in case.name and case.formats["y"] == "fp32":
            value = y.view(np.float32)
            with np.errstate(all="ignore"):
                y[np.isfinite(value) & (np.abs(value) > 1e-30) & (np.arange(y.size) % 9 == 0)] += np.uint32(1)
        cases.append(replace(case, outputs={"y": y}))
    return replace(of_a_gpu(one), cases=tuple(cases))


def statuses(path: Path) -> list[Status]:
    return [case.row.outcome.status for case in one_file.verify(path)[0]]


def test_a_stand_ins_file_is_verified_and_settles_nothing(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(made)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "cvt.rna.tf32.f32" in said
    assert "A CPU stood in for a GPU: it settles nothing." in said
    assert "cases agree in every bit" in said
    refusals.refuses(lambda: one_file.add(made, "me"), "is a CPU's that stood in for a GPU; it is no evidence")


def test_a_relabelled_stand_in_makes_nothing_pass(made: Path, tmp_path: Path) -> None:
    path = forged(made, tmp_path / "f.zip", of_a_gpu)
    found, said = one_file.verify(path)
    assert found
    assert not any(case.row.outcome.status is Status.PASS for case in found)
    assert any("rcp.approx.f32 is correctly rounded, as in no GPU" in str(line) for line in said)
    refusals.refuses(lambda: one_file.add(path, "me"), "is doubtful and is not added: ")


@pytest.mark.parametrize(
    ("meta", "text"),
    [({"driver": None}, "it has no driver"), ({"cuda": None}, "it has no cuda"),
     ({"capability": "8.0"}, "H100 has another compute capability than 8.0")],
)  # fmt: skip
def test_a_description_that_cannot_be_is_doubted(made: Path, tmp_path: Path, meta: Any, text: str) -> None:
    path = forged(
        made, tmp_path / "f.zip", lambda one: replace(approximating(one), meta={**approximating(one).meta, **meta})
    )
    found, said = one_file.verify(path)
    assert Status.PASS not in [case.row.outcome.status for case in found]
    assert text in str(said[-1])


def test_missing_and_impossible_approximations_are_doubted(made: Path, tmp_path: Path) -> None:
    def without(one: Record) -> Record:
        one = approximating(one)
        return replace(one, cases=tuple(case for case in one.cases if "lg2" not in case.name))

    def noise(one: Record) -> Record:
        one = approximating(one)
        cases = {case.name: case for case in one.cases}
        wrong = {"y": cases["ex2.approx.f32"].outputs["y"] ^ np.uint32(1 << 21)}
        cases["ex2.approx.f32"] = replace(cases["ex2.approx.f32"], outputs=wrong)
        return replace(one, cases=tuple(cases.values()))

    for change, text in ((without, "lg2.approx.f32 is missing"), (noise, "ex2.approx.f32 gives what no approximation")):
        path = forged(made, tmp_path / "f.zip", change)
        assert text in str(one_file.verify(path)[1][-1])
        assert Status.PASS not in statuses(path)
    parts = [approximating(one) for one in one_file.opened(made)]
    other = replace(parts[0], meta={**parts[0].meta, "experiment": "trajectory", "driver": "1.0"}, cases=())
    assert "its parts differ in driver" in str(one_file.doubts([*parts, other])[0])


def test_what_nothing_speaks_against_is_kept_with_its_origin_and_found(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = forged(made, tmp_path / "f.zip", approximating)
    found, said = one_file.verify(path)
    assert Status.PASS in [case.row.outcome.status for case in found]
    assert "It would settle, for this GPU: scalar: cvt.rna.tf32.f32" in str(said[-1])
    monkeypatch.setenv("FPLAB_RECORDS", str(tmp_path / "kept"))
    assert cli.main(["records", "add", str(path), "--origin", "A. Stranger, a desk"]) == 0
    (kept,) = (tmp_path / "kept").iterdir()
    assert str(kept) in capsys.readouterr().out
    assert records.read(kept).where == "NVIDIA H100 PCIe, torch 2.13.0 (A. Stranger, a desk)"
    monkeypatch.setattr(records, "FOLDER", tmp_path / "none")
    assert any(case.device.endswith("(A. Stranger, a desk)") for case in recorder.verify())
    assert cli.main(["records", "add", str(path), "--origin", " "]) == 2
    assert "the origin of a record is who made it, and where" in capsys.readouterr().err


def test_a_bit_that_differs_fails(made: Path, tmp_path: Path) -> None:
    def flipped(one: Record) -> Record:
        one = approximating(one)
        first = one.cases[0]
        y = first.outputs["y"].copy()
        y[100] ^= np.array(1, y.dtype)
        return replace(one, cases=(replace(first, outputs={"y": y}), *one.cases[1:]))

    found, _ = one_file.verify(forged(made, tmp_path / "f.zip", flipped))
    assert found[0].row.outcome.status is Status.FAIL
    assert "1 of " in str(found[0].row.outcome.detail)


class Apples(torch.Tensor):
    """A tensor of a device that has neither FP64 nor FP8, as MPS has neither."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        refused = {torch.float64, torch.float8_e4m3fn, torch.float8_e5m2}
        if function is torch.Tensor.cpu:
            return given[0].as_subclass(torch.Tensor)
        if refused & {x for x in (*given, *named.values()) if isinstance(x, torch.dtype)}:
            raise TypeError("Cannot convert a MPS Tensor to a dtype that the MPS framework does not support.")
        return super().__torch_function__(function, types, given, named)


class Apple(torch.overrides.TorchFunctionMode):
    """Sends what is asked of "mps" to the CPU, as tensors of its own."""

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        place = [str(x) == "mps" for x in (*given, *named.values()) if isinstance(x, (str, torch.device))]
        there = {k: "cpu" if str(x) == "mps" else x for k, x in named.items()}
        result = function(*("cpu" if str(x) == "mps" else x for x in given), **there) if any(place) else function(
            *given, **named)  # fmt: skip
        return result.as_subclass(Apples) if any(place) and isinstance(result, torch.Tensor) else result


def test_apples_gpu_records_what_torch_multiplies_there_and_settles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: None)
    monkeypatch.setattr(environment, "cpu_name", lambda: "Apple M9")
    monkeypatch.setitem(timing.SIZES, "mps", (32,))
    monkeypatch.setattr(torch, "Generator", lambda device, make=torch.Generator: make("cpu"))
    small = [one for one in products.PRODUCTS if one.shape == (128, 128, 64) and one.call == "matmul" and not one.flags]
    monkeypatch.setattr(products, "PRODUCTS", (*small, products.Product("scaled_mm", ("e4m3",) * 2, "bf16", (16,) * 3)))
    monkeypatch.setattr(products, "CONVOLUTIONS", ())
    monkeypatch.setattr(order, "SUMMATIONS", (order.Summation("matmul", "fp32", 64, 8), order.Summation(
        "matmul", "fp64", 64, 8)))  # fmt: skip
    with Apple():
        assert one_file.main(str(tmp_path / "r.zip"), None, ("scalar", "products", "orders")) == 0
    scalar, multiplied, orders = one_file.opened(tmp_path / "r.zip")
    assert (scalar.cases, scalar.failed) == ((), {})
    assert set(scalar.meta["not here"].values()) == {"it is an instruction of CUDA's, and MPS has none."}
    assert [case.name.split()[1] for case in multiplied.cases] == ["fp16", "bf16", "fp32"]
    assert {name.split()[1] for name in multiplied.failed} == {"e4m3", "fp64"}
    assert all("MPS framework does not support" in text for text in multiplied.failed.values())
    assert "median_ms" in multiplied.meta["times"]["bf16 32x32x32"]
    assert [case.name for case in orders.cases] == ["matmul fp32 n=64 in 8x128"]
    assert multiplied.where.startswith("Apple M9, torch ")
    found, said = one_file.verify(tmp_path / "r.zip")
    assert Status.PASS not in [case.row.outcome.status for case in found]
    assert sum("MPS framework does not support" in str(case.row.outcome.detail) for case in found) == 3
    assert "so nothing of it passes: the lab has no model of Apple's GPUs" in str(said[-1])
    assert cli.main(["records", "add", str(tmp_path / "r.zip"), "--origin", "me"]) == 2
    assert "is doubtful and is not added: the lab has no model of Apple's GPUs" in capsys.readouterr().err
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    refusals.refuses(lambda: environment.torch_for("mps"), "lets the CPU compute what MPS cannot")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    refusals.refuses(lambda: environment.torch_for("mps"), "no MPS device is present")


def zipped(*members: tuple[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def test_damaged_and_foreign_files_are_refused(made: Path, tmp_path: Path) -> None:
    path, whole = tmp_path / "x.zip", made.read_bytes()
    with zipfile.ZipFile(made) as archive:
        (name,) = archive.namelist()
        inner = archive.read(name)
    plain = records.pack(one_file.opened(made)[0])
    for data, text in (
        (b"", "refused"), (b"no zip", "refused"), (whole[: len(whole) // 2], "refused"), (zipped(), "no record in it"),
        (zipped(("a.txt", b"")), "something that is no record"), (zipped(("a.npz", b"")), "it is no .npz file"),
        (zipped(("a.npz", inner), kind=zipfile.ZIP_DEFLATED), "something that is no record"),
        (zipped(("a.npz", inner[:-99])), "refused"), (zipped(("a.npz", plain)), "refused: KeyError: 'inputs'"),
        (zipped(*((f"{n}.npz", b"") for n in range(201))), "more than 200 files"),
        (b"0" * 10_000_001, "more than 10,000,000 bytes"),
    ):  # fmt: skip
        path.write_bytes(data)
        refusals.refuses(lambda: one_file.opened(path), text)
        assert statuses(path) == [Status.FAIL]
        assert cli.main(["verify", str(path)]) == 1
    rng = np.random.default_rng(0)
    for _ in range(40):
        broken = bytearray(whole)
        broken[rng.integers(len(broken))] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(broken))
        assert Status.PASS not in statuses(path) or one_file.opened(path)[0].cases
    (record,) = one_file.opened(made)
    other = replace(record, cases=(replace(record.cases[0], inputs={"x0": record.cases[0].inputs["x0"][::-1]}),))
    one_file.pack([other], path)
    refusals.refuses(lambda: one_file.opened(path), "had other inputs than here")


def test_nothing_private_is_written(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (record,) = one_file.opened(made)
    host, user = "workstation-of-zoe", "zoe.someone"
    monkeypatch.setattr(one_file.socket, "gethostname", lambda: host)
    monkeypatch.setattr(one_file.getpass, "getuser", lambda: user)
    said = {"mma": f"OSError: {host}: {Path.home()}/x/y.py of {user}, C:\\Users\\zoe\\a.cu and /tmp/abc/k.cu: no"}
    clean = one_file.without_inputs(replace(record, failed=said)).failed["mma"]
    assert not any(word in clean for word in (host, user, "zoe", str(Path.home()), "/tmp", "Users"))
    assert clean.startswith("OSError: <private>: <path>")
    named = replace(record, meta={**record.meta, "note": f"made on {host}"})
    refusals.refuses(lambda: one_file.without_inputs(named), "names 'workstation-of-zoe', which is private")


def test_a_recording_that_is_too_large_leaves_the_last_parts_out(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = one_file.opened(made)
    monkeypatch.setattr(one_file, "LIMIT", len(records.pack(one_file.without_inputs(record))) + 5000)
    assert one_file.pack([record, replace(record, meta={**record.meta, "experiment": "mma"})], tmp_path / "x.zip") == [
        "mma"
    ]
    assert (tmp_path / "x.zip").stat().st_size <= one_file.LIMIT


def test_it_says_what_is_wrong_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert one_file.main(str(tmp_path / "r.zip"), "gpu") == 2
    assert "device='gpu' is not possible" in capsys.readouterr().out
    if not torch.cuda.is_available():
        assert one_file.main(str(tmp_path / "r.zip")) == 2
        assert "torch sees no GPU" in capsys.readouterr().out
    asked: list[str] = []
    compute = recorder.record_one

    def counting(name: str, *rest: Any) -> Any:
        asked.append(name)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return compute(name, *rest)

    monkeypatch.setattr(recorder, "record_one", counting)
    names: Sequence[str] = ("scalar", "trajectory")
    with pytest.raises(KeyboardInterrupt):
        one_file.main(str(tmp_path / "r.zip"), "cpu", names)
    assert one_file.main(str(tmp_path / "r.zip"), "cpu", names) == 0
    assert asked == ["scalar", "trajectory", "trajectory"]
    assert [one.experiment for one in one_file.opened(tmp_path / "r.zip")] == list(names)


def test_the_one_file_records_where_only_torch_and_numpy_are(tmp_path: Path) -> None:
    """Generated, run away from the package, and verified: the same bytes each time it is generated."""
    script, again = tmp_path / "fplab_record.py", tmp_path / "again.py"
    assert cli.main(["record", "--one-file", str(script)]) == 0
    one_file.generate(again)
    assert script.read_bytes() == again.read_bytes()
    assert script.stat().st_size < 3_000_000
    blocked = {"numba", "llvmlite", "matplotlib", "tqdm", "ml_dtypes", "gfloat", "gmpy2", "scipy", "xarray", "IPython"}
    code = f"""
BLOCKED = {blocked}
{BLOCKER}
import runpy
sys.argv = ["fplab_record.py", "--device", "cpu"]
runpy.run_path({str(script)!r}, run_name="__main__")
"""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=home, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "no host, user or path in it" in done.stdout
    (written,) = home.iterdir()
    assert written.stat().st_size <= one_file.LIMIT
    found = one_file.opened(written)
    assert {one.experiment for one in found} == set(recorder.FIRST)
    assert any(one.cases for one in found)
    assert not any(str(tmp_path) in str((one.meta, one.failed)) for one in found)
    assert Status.FAIL not in statuses(written)
