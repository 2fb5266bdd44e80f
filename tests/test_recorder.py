"""Recording and verifying: every outcome that a record can have, and the recorder where only numpy and torch are."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toy
from fresh import python
from refusals import refuses

from fplab.errors import LabError
from fplab.experiments import recorder, runner, table
from fplab.experiments.outcomes import Status
from fplab.hardware import environment, records, suite
from fplab.hardware.cases import Arrays

suite_names = suite.NAMES
pytestmark = pytest.mark.usefixtures("only_toy")
SOURCE = Path(__file__).resolve().parent.parent
BLOCKER = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in BLOCKED else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def gpu_record(**changes: Any) -> records.Record:
    """What a GPU that computes as the CPU does would have recorded."""
    where = {**environment.describe("cpu"), "kind": "cuda", "device": "NVIDIA Test GPU", "torch": "2.13.0"}
    return replace(recorder.record_one("toy", where, "quick", "cpu"), **changes)


def outcomes(found: list[recorder.Evidenced]) -> list[tuple[str, ...]]:
    return [tuple(e.row.as_json()[key] for key in ("claim", "evidence", "outcome", "detail")) for e in found]


def test_the_cpu_stands_in_and_is_no_gpu_evidence(tmp_path: Path) -> None:
    (done,) = recorder.record(tmp_path, "cpu")
    assert [case.name for case in done.record.cases] == ["squares", "squares again"]
    assert done.record.meta["size"] == "quick"
    assert not done.record.on_gpu
    assert outcomes(recorder.verify([tmp_path])) == [
        ("squares", "CPU stand-in", "pass", "256 results, every bit"),
        ("squares again", "CPU stand-in", "pass", "256 results, every bit"),
    ]


def test_a_gpu_record_is_verified_with_its_own_inputs_and_meta(tmp_path: Path) -> None:
    seen = []

    def emulate(inputs: Arrays, meta: Any) -> Arrays:
        seen.append((inputs["x"].copy(), meta["torch"], meta["device"]))
        inputs["x"] += 1  # a careless emulation does not spoil the record
        return {"y": toy.squares(inputs["x"] - np.uint8(1))}

    one = gpu_record()
    fewer = replace(one.cases[0], inputs={"x": np.array([3], np.uint8)}, outputs={"y": np.array([9], np.uint8)})
    records.save(tmp_path, replace(one, cases=(fewer,)))
    toy.install(cases=toy.asking(toy.case("squares", emulate=emulate)))
    for _ in range(2):
        assert outcomes(recorder.verify([tmp_path])) == [
            ("squares", "hardware, recorded", "pass", "1 results, every bit")
        ]
    x, torch_version, device = seen[-1]
    assert x.tolist() == [3]
    assert torch_version == "2.13.0"
    assert device == "NVIDIA Test GPU"


def test_the_first_differing_bits_are_shown(tmp_path: Path) -> None:
    one = gpu_record()
    wrong = one.cases[1].outputs["y"].copy()
    wrong[[5, 9]] ^= 1
    cases = (one.cases[0], replace(one.cases[1], outputs={"y": wrong}))
    records.save(tmp_path, replace(one, cases=cases))
    good, bad = recorder.verify([tmp_path])
    assert good.row.outcome.status is Status.PASS
    assert bad.row.outcome.status is Status.FAIL
    assert bad.device == "NVIDIA Test GPU, torch 2.13.0"
    assert str(bad.row.outcome.detail) == (
        "y (device against lab): 2 of 256 differ; first at 5: 00011000 (0.001953125) against 00011001 (0.00244140625)"
    )


def test_a_nan_may_have_any_payload(tmp_path: Path) -> None:
    one = gpu_record()
    y = np.array([0x7D, 0xFF], np.uint8)
    records.save(tmp_path, replace(one, cases=(replace(one.cases[0], outputs={"y": y}),)))
    toy.install(
        cases=toy.asking(toy.case("squares", emulate=lambda inputs, meta: {"y": np.array([0x7E, 0x7E], np.uint8)}))
    )
    assert recorder.verify([tmp_path])[0].row.outcome.status is Status.PASS


@pytest.mark.parametrize(("emulate", "detail"),
                         [(toy.boom, "the emulation raised RuntimeError: boom: a message of two lines"),
                          (lambda inputs, meta: {}, "the emulation has no output 'y'"),
                          (lambda inputs, meta: {"y": np.zeros(3, np.uint8)},
                           "y (device against lab): shapes differ: (256,) and (3,)")])  # fmt: skip
def test_an_emulation_that_goes_wrong_fails(tmp_path: Path, emulate: Any, detail: str) -> None:
    records.save(tmp_path, gpu_record())
    toy.install(cases=toy.asking(toy.case("squares", emulate=emulate)))
    first, second = outcomes(recorder.verify([tmp_path]))
    assert first == ("squares", "hardware, recorded", "FAIL", detail)
    assert second == ("squares again", "hardware, recorded", "absent", "the experiment has no such case any more")


@pytest.mark.parametrize(
    ("broken", "message"),
    [(toy.case("bad", compute=toy.boom), "RuntimeError: boom: a message of two lines"),
     (toy.case("bad", inputs=toy.boom), "RuntimeError: boom: a message of two lines"),
     (toy.case("bad", compute=lambda i, d: {"z": i["x"]}), "LabError: it computed ['z'] and names formats of ['y']."),
     (toy.case("bad", compute=lambda i, d: {"y": i["x"].astype(np.float32)}),
      "LabError: 'y' is float32; inputs and outputs of a case are bits: unsigned integers.")],
)  # fmt: skip
def test_a_case_that_fails_on_the_device_is_recorded_so(tmp_path: Path, broken: Any, message: str) -> None:
    toy.install(cases=toy.asking(broken, toy.case("squares")))
    (done,) = recorder.record(tmp_path, "cpu")
    back = records.read(done.files[0][0])
    assert [case.name for case in back.cases] == ["squares"]
    assert back.failed == {"bad": message}
    assert ("bad", "CPU stand-in", "absent", f"failed on the device: {message}") in outcomes(
        recorder.verify([tmp_path])
    )


def test_experiments_whose_cases_break_do_not_stop_the_others(tmp_path: Path) -> None:
    toy.install(cases=toy.asking(toy.case("twice"), toy.case("twice")))
    (done,) = recorder.record(tmp_path, "cpu")
    assert done.record.cases == ()
    assert done.record.failed == {"cases": "LabError: experiment 'toy' has several GPU cases called 'twice'."}
    assert outcomes(recorder.verify([tmp_path]))[0][2] == "FAIL"


def test_a_compute_that_writes_into_its_inputs_does_not_spoil_the_record(tmp_path: Path) -> None:
    def compute(inputs: Arrays, device: str) -> Arrays:
        inputs["x"] *= inputs["x"]
        return {"y": inputs["x"]}

    toy.install(cases=toy.asking(toy.case("squares", compute=compute)))
    (done,) = recorder.record(tmp_path, "cpu")
    assert done.record.cases[0].inputs["x"].tolist() == list(range(256))
    assert outcomes(recorder.verify([tmp_path]))[0][2] == "pass"


def test_an_interrupted_recording_goes_on_where_it_stopped(tmp_path: Path) -> None:
    asked = []

    def compute(inputs: Arrays, device: str) -> Arrays:
        asked.append(device)
        return {"y": toy.squares(inputs["x"])}

    toy.install(cases=toy.asking(toy.case("squares", compute=compute), toy.case("squares again", compute=compute)))
    (first,) = recorder.record(tmp_path, "cpu", resume=True)
    (kept,) = recorder.record(tmp_path, "cpu", resume=True)
    assert len(asked) == 2
    assert [case.name for case in kept.record.cases] == [case.name for case in first.record.cases]
    assert kept.files == first.files
    records.save(tmp_path, replace(first.record, cases=first.record.cases[:1]))  # killed before the second file
    (whole,) = recorder.record(tmp_path, "cpu", resume=True)
    assert len(asked) == 4
    assert [case.name for case in whole.record.cases] == ["squares", "squares again"]
    whole.files[0][0].write_bytes(b"cut")
    recorder.record(tmp_path, "cpu", resume=True)
    assert len(asked) == 6


def test_damaged_and_foreign_records_fail_with_the_reason(tmp_path: Path) -> None:
    ((path, _),) = records.save(tmp_path, gpu_record())
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:200])
    records.save(tmp_path, gpu_record(meta={**gpu_record().meta, "experiment": "vanished"}))
    found = {str(e.row.claim): e.row.outcome for e in recorder.verify([tmp_path])}
    assert found["cut.npz"].status is Status.FAIL
    assert "cut.npz' is refused: it is no .npz file, or a cut one" in str(found["cut.npz"].detail)
    assert found["every case"].status is Status.ABSENT
    assert "there is no experiment 'vanished' in this version" in str(found["every case"].detail)
    assert found["squares"].status is Status.PASS


def test_no_record_at_all_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    assert outcomes(recorder.verify()) == [
        ("every GPU case", "hardware, recorded", "absent", "no record for this hardware")
    ]


def test_live_compares_the_device_that_is_present(tmp_path: Path) -> None:
    import torch

    rows = outcomes(recorder.verify([tmp_path], live=True))
    if not torch.cuda.is_available():
        assert rows[-1] == ("every GPU case", "hardware, live", "absent", "no CUDA device is present")
    live = outcomes(recorder.verify([tmp_path], live=True, device="cpu"))
    assert ("squares", "CPU stand-in", "pass", "256 results, every bit") in live
    toy.install(cases=toy.asking(toy.case("squares", emulate=lambda inputs, meta: {"y": inputs["x"]})))
    live = outcomes(recorder.verify([tmp_path], live=True, device="cpu"))
    assert live[0][:3] == ("every GPU case", "hardware, recorded", "absent")
    assert live[1][2] == "FAIL"


def test_unknown_names_and_devices_are_errors_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"unknown experiment 'tyo'. Allowed: toy. Did you mean 'toy'?"):
        recorder.record(tmp_path, "cpu", ["tyo"])
    refuses(lambda: recorder.record(tmp_path, "gpu"), r"device='gpu' is not possible")
    assert list(tmp_path.iterdir()) == []


def test_progress_goes_from_nothing_to_all(tmp_path: Path) -> None:
    seen: list[tuple[float, str]] = []
    recorder.record(tmp_path, "cpu", tick=lambda fraction, text: seen.append((fraction, text)))
    assert seen == [(0.0, "toy: squares"), (0.5, "toy: squares again")]


def test_the_recorder_runs_from_a_bare_source_tree_with_numpy_and_torch_alone(tmp_path: Path) -> None:
    """Every real experiment's cases, and the hardware suite, with numba, matplotlib and all the rest missing.

    Only what the CPU stands in for needs numba: there it says so.
    """
    code = f"""
BLOCKED = {{"numba", "llvmlite", "matplotlib", "tqdm", "ml_dtypes", "gfloat", "gmpy2", "scipy", "sklearn", "IPython"}}
{BLOCKER}
import fplab
from fplab.cli import main
from fplab.experiments import NAMES, load
print(*(name for name in NAMES if not isinstance(load(name).cases, str)))
status = main(["record", "--out", {str(tmp_path)!r}, "--device", "cpu"])
assert not BLOCKED & set(sys.modules), BLOCKED & set(sys.modules)
sys.exit(status)
"""
    printed = python(code, warnings="error", PYTHONPATH=str(SOURCE))
    assert "This CPU stands in for a GPU" in printed
    kept = {one.experiment: one for one in map(records.read, records.records_in(tmp_path))}
    assert set(kept) == {*printed.partition("\n")[0].split(), *suite_names}
    assert not any(one.failed for one in kept.values()), {n: one.failed for n, one in kept.items() if one.failed}
    assert all(one.cases or one.meta["not here"] for one in kept.values())
    lacking = {reason for one in kept.values() for reason in one.meta.get("not here", {}).values()}
    assert lacking == {
        "numba is missing, with which the CPU stands in for a Tensor Core.",
        "llvmlite is missing, which assembles the calls of a CPU's units.",
        "numba is missing, which fplab.nn.device needs beside torch.",
    }


def test_a_gpu_is_described_by_what_its_bits_depend_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a GPU, its description is put together from a torch that says there is one."""
    import torch

    properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(environment, "driver", lambda: "570.86.10")
    where = environment.describe("cuda")
    assert (where["kind"], where["device"], where["capability"]) == ("cuda", "NVIDIA H100 80GB HBM3", "9.0")
    assert where["driver"] == "570.86.10"
    assert {"cuda", "cudnn", "torch", "numpy", "flags", "multiprocessors"} <= set(where)
    assert "cuda.matmul.allow_fp16_reduced_precision_reduction" in where["flags"]
    refuses(lambda: environment.describe("cuda:1"), r"device='cuda:1' is not there; this machine has 1 CUDA device")

    toy.install(cases=toy.asking(toy.case("squares", compute=lambda inputs, device: toy.compute(inputs, "cpu"))))
    (done,) = recorder.record(tmp_path, "cuda")
    assert done.record.on_gpu
    assert done.files[0][0].name.startswith("cuda--nvidia-h100-80gb-hbm3--torch-")
    assert outcomes(recorder.verify([tmp_path], live=True)) == [
        ("squares", "hardware, recorded", "pass", "256 results, every bit"),
        ("squares", "hardware, live", "pass", "256 results, every bit"),
    ]


@pytest.mark.parametrize(
    ("hypotheses", "models", "status", "says"),
    [({"as it is": lambda i, m: {"y": toy.squares(i["x"])}}, True, Status.PASS, "as 'as it is'"),
     ({"one more": lambda i, m: {"y": toy.squares(i["x"]) + np.uint8(1)}}, True, Status.FAIL, "no hypothesis agrees"),
     ({}, True, Status.DIFFERS, "open: why? y (device against lab): 256 of 256 differ"),
     ({}, False, Status.ABSENT, "open: why? y:")],
    ids=["a hypothesis agrees", "none agrees", "none to try", "no model"],
)  # fmt: skip
def test_an_open_question_can_be_answered_can_fail_and_is_never_a_pass_unanswered(
    tmp_path: Path, hypotheses: Any, models: bool, status: Status, says: str
) -> None:
    def wrong(inputs: Arrays, meta: Any) -> Arrays:
        return {"y": toy.squares(inputs["x"]) ^ np.uint8(0x40)} if models else {}

    records.save(tmp_path, gpu_record())
    asked = toy.case("squares again", emulate=wrong, open="why?", hypotheses=hypotheses)
    toy.install(cases=toy.asking(toy.case("squares"), asked))
    found = recorder.verify([tmp_path])
    outcome = found[1].row.outcome
    assert outcome.status is status
    assert says in str(outcome.detail)
    headline = runner.summed(found)
    assert headline.status is (Status.PASS if status is Status.ABSENT else status)
    assert bool(table.failures([found[1].row])) is (status in (Status.FAIL, Status.DIFFERS))
