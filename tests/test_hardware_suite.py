"""The hardware suite with the CPU as stand-in: every line runs, and operands are what they say."""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu_cases import forged
from refusals import refuses

from fplab.errors import LabError
from fplab.experiments import recorder
from fplab.experiments.outcomes import Status, same_bits
from fplab.hardware import (
    elementwise,
    environment,
    instructions,
    operands,
    order,
    products,
    profiling,
    records,
    suite,
    tensors,
    timing,
)
from fplab.hardware.cases import Case, NotHereError, unmodelled
from fplab.hardware.records import Record, RecordedCase

H100 = {"kind": "cuda", "device": "NVIDIA H100 80GB HBM3", "capability": "9.0", "torch": "2.11.0"}
MODELLED = ("scalar", "mma", "wgmma", "device")


@pytest.fixture(scope="module")
def where() -> dict[str, Any]:
    return environment.describe("cpu")


@pytest.fixture(scope="module", params=suite.NAMES)
def recorded(request: pytest.FixtureRequest, where: dict[str, Any], unoptimised: None) -> Record:
    return recorder.record_one(request.param, where, "quick", "cpu")


def test_every_case_runs_and_none_contradicts_the_lab(recorded: Record) -> None:
    assert recorded.failed == {}
    assert len(recorded.cases) == len(suite.cases(recorded.experiment))
    size = len(records.pack(recorded))
    assert size < records.LIMIT
    rows = recorder.verify_record(recorded)
    assert len(rows) == len(recorded.cases)
    ended = {str(e.row.claim): (e.row.outcome.status, str(e.row.outcome.detail)) for e in rows}
    open_cases = {case.name for case in suite.cases(recorded.experiment) if case.open}
    for name, (status, detail) in ended.items():  # the CPU's own way is no answer, and nothing else may differ
        own = name in open_cases and status is Status.ABSENT and detail.startswith("open, and no GPU was asked: ")
        assert status is Status.PASS or own, (name, detail)
    if recorded.experiment in MODELLED:
        assert all(e.row.outcome.status is Status.PASS for e in rows)
        plain = [e for e in rows if not str(e.row.outcome.detail).startswith("open")]
        assert len(plain) == len(rows) - 9 * (recorded.experiment == "scalar")
    elif recorded.experiment in ("reductions", "orders"):
        assert all(str(e.row.outcome.detail).startswith("open") for e in rows)


def test_a_record_says_what_it_was_made_with(recorded: Record) -> None:
    assert "Philox" in recorded.meta["seeds"]
    again = records.unpack(records.pack(recorded))
    assert again.meta["experiment"] == recorded.experiment
    if recorded.experiment == "products":
        times = again.meta["times"]
        assert {name.split()[0] for name in times} == set(timing.FORMATS)
        assert all(t["median_ms"] >= t["least_ms"] > 0 and t["tflops"] >= 0 for t in times.values())


def test_inputs_are_the_same_every_time() -> None:
    for name in ("products", "mma", "scalar"):
        for case in suite.cases(name)[::7]:
            first, second = case.inputs(), case.inputs()
            assert first.keys() == second.keys()
            assert all(np.array_equal(first[key], second[key]) for key in first), case.name


def test_the_whole_suite_is_small(where: dict[str, Any]) -> None:
    total = sum(array.nbytes for name in suite.NAMES for case in suite.cases(name) for array in case.inputs().values())
    assert total < 25e6


def test_unknown_parts_are_refused() -> None:
    refuses(lambda: suite.cases("mna"), r"unknown part of the hardware suite 'mna'.*Did you mean 'mma'")
    known = r"unknown experiment 'wgma'. Allowed: formats.*wgmma, device. Did you mean 'wgmma'"
    refuses(lambda: recorder.known_to_record(["wgma"]), known)


def test_what_is_most_worth_having_is_recorded_first() -> None:
    names = recorder.known_to_record(["formats", "trajectory", "mma", "products"])
    assert names == ["mma", "products", "trajectory", "formats"]


# --- comparing -----------------------------------------------------------------------------------------------------
def answered(case: Case, y: list[int], meta: dict[str, Any] = H100) -> Any:
    done = RecordedCase("c", {"x": np.zeros(2, np.uint8)}, {"y": np.array(y, np.uint8)}, dict(case.formats))
    return recorder.compare(case, done, meta)


def test_open_questions_are_answered_by_hypotheses() -> None:
    def gives(*y: int) -> Any:
        return lambda given, meta: {"y": np.array(y, np.uint8)}

    def impossible(given: Any, meta: Any) -> Any:
        raise LabError("not on this GPU")

    tried = {
        "wrapped": gives(1, 2), "cut": gives(1, 3), "also cut": gives(1, 3), "never": impossible, "none": unmodelled,
    }  # fmt: skip
    made: Any = ("c", dict, lambda given, device: given)
    case = Case(*made, unmodelled, {"y": "bits8"}, open="Which?", hypotheses=tried)
    assert answered(case, [1, 3]).status is Status.PASS
    assert str(answered(case, [1, 3]).detail) == "open question, answered: Which? y: as 'cut' and 'also cut'"
    assert answered(case, [7, 2]).status is Status.FAIL
    assert str(answered(case, [7, 2]).detail) == (
        "open, and no hypothesis agrees: Which? y: nearest is 'wrapped', 1 of 2 differ"
    )
    cpu = {"kind": "cpu"}
    assert answered(case, [1, 3], cpu).status is Status.PASS
    assert answered(case, [7, 2], cpu).status is Status.ABSENT
    assert str(answered(case, [7, 2], cpu).detail).startswith(
        "open, and no GPU was asked: Which? y: nearest is 'wrapped'"
    )
    settled = Case(*made, gives(1, 2), {"y": "bits8"}, hypotheses=tried)
    assert str(answered(settled, [1, 2]).detail) == "2 results, every bit"
    assert answered(settled, [1, 3]).status is Status.FAIL
    assert str(answered(settled, [1, 3]).detail) == (
        "y (device against lab): 1 of 2 differ; first at 1: 0x3 against 0x2 as 'cut' and 'also cut'"
    )
    unfinished = Case(*made, unmodelled, {"y": "bits8"})
    assert str(answered(unfinished, [1, 2]).detail) == "the emulation has no output 'y'"


def asked(name: str, chosen: str) -> list[Case]:
    """The cases of a part that ask an open question, of those whose name has a pattern in it."""
    return [case for case in suite.cases(name) if case.open and re.search(chosen, case.name)]


FORGED = [
    *asked("elementwise", "^(?!three steps|square root|contraction in .*16)"),
    *asked("reductions", "of 17$"),
    *asked("products", r"(matmul|addmm|bmm|linear|scaled_mm) .*x(64|128)( |$)|conv2d.*1x1"),
    *asked("orders", "n=64 "),
    *asked("scalar", ""),
]


@pytest.mark.parametrize("case", FORGED, ids=lambda case: case.name)
def test_a_forged_record_of_an_open_question_fails(case: Case) -> None:
    forged(case, H100)


def test_what_the_lab_has_no_hypothesis_of_is_named() -> None:
    """Optimizers, whose contractions are asked of torch alone; a square root and Volta's unit have a model."""
    without = [case.name for name in suite.NAMES for case in suite.cases(name) if case.open and not case.hypotheses]
    kept = [name for name in without if not name.startswith("three steps of ")]
    assert kept == ["square root in fp32", *(name for name in kept[1:] if "m8n8k4" in name)]
    assert len(without) - len(kept) == 3


def test_raw_bits_count_every_one() -> None:
    nan = np.array([0x7E00, 0x7FFF], np.uint16)
    assert same_bits(nan, nan[::-1], "fp16").status is Status.PASS
    assert str(same_bits(nan, nan[::-1], "bits16").detail) == "2 of 2 differ; first at 0: 0x7e00 against 0x7fff"
    assert same_bits(nan, nan, "bits16").status is Status.PASS


# --- torch ---------------------------------------------------------------------------------------------------------
def test_flags_are_set_and_put_back() -> None:
    import torch

    before = torch.get_float32_matmul_precision()
    with tensors.flags_set({**products.TF32, **products.FP16_SUMS}):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cuda.matmul.allow_fp16_accumulation
    with pytest.raises(AttributeError), tensors.flags_set({**products.TF32, "cuda.nothing": True}):
        pass
    assert torch.get_float32_matmul_precision() == before
    assert not torch.backends.cuda.matmul.allow_fp16_accumulation


@pytest.mark.parametrize("fmt", sorted(tensors.TORCH))
def test_codes_survive_the_way_through_a_tensor(fmt: str) -> None:
    codes = operands.Draw(5).words(64).astype(operands.CODES[fmt])
    assert np.array_equal(tensors.bits(tensors.tensor(codes, fmt, "cpu")), codes)


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "tf32", "e4m3"])
def test_products_cancel_so_that_plans_can_be_told_apart(fmt: str) -> None:
    source = "fp32" if fmt == "tf32" else fmt
    flags = products.TF32 if fmt == "tf32" else {}
    call, output = ("scaled_mm", "bf16") if fmt == "e4m3" else ("matmul", source)
    one = products.Product(call, (source, source), output, (128, 128, 512), flags)
    given = products.product_inputs(one, 3)
    plans = products.hypotheses(one)
    found = {
        name: plans[name](given, H100)["d"].tobytes()
        for name in ("one chain", "split-K 2", "split-K 4", "2 accumulators")
    }
    assert len(set(found.values())) == 4


def test_the_fp32_hypotheses_are_multiply_adds_in_their_order() -> None:
    x = np.float32([[1, 2**-12, 3], [5, 7, 2**20]]).view(np.uint32)
    y = np.float32([[1, 2**-12, -3], [2**-20, 1, 1.5]]).view(np.uint32)
    fused = products.plain_product(x, y, {}).view(np.float32)
    want = [
        [np.float32(np.float32(1 + 2.0**-24) - 9.0), 2**-20 + 2**-12 + 4.5],
        [5 + 7 * 2**-12 - 3 * 2**20, 7 + 5 * 2**-20 + 1.5 * 2**20],
    ]
    assert np.allclose(fused, want, rtol=1e-7)
    parts = products.plain_product(x, y, {"split_k": 3}).view(np.float32)
    assert parts[0, 0] == np.float32(np.float32(1 + np.float32(2**-24)) + np.float32(-9))


@pytest.mark.parametrize("memory", ["crs", "rsc"])
def test_unfolded_operands_multiply_to_the_convolution(memory: str) -> None:
    import torch

    draw = np.random.default_rng(1)
    x, w = draw.integers(-3, 4, (2, 5, 6, 6)), draw.integers(-3, 4, (4, 5, 3, 3))
    a, b = products.unfolded(x, w, memory)
    y = torch.nn.functional.conv2d(*(torch.from_numpy(v.astype(np.float64)) for v in (x, w)), padding=1).numpy()
    assert np.array_equal((a @ b.T).reshape(2, 6, 6, 4).transpose(0, 3, 1, 2), y)


def test_masks_reveal_a_known_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that goes in ascending order, and one in blocks of 8, as the hypotheses say."""

    def ascending(one: Any, x: Any, columns: int) -> Any:
        total = x[:, 0] * 0
        for k in range(x.shape[1]):
            total = total + x[:, k]
        return total

    def blocks(one: Any, x: Any, columns: int) -> Any:
        total = x[:, 0].double() * 0
        for k in range(0, x.shape[1], 8):
            total = (total + x[:, k : k + 8].double().sum(dim=1)).float().double()
        return total

    one = order.Summation("sum", "fp32", 100)
    given = order.pairs(100)
    monkeypatch.setitem(order.CALLS, "sum", ascending)
    assert np.array_equal(order.counts(one, given, "cpu")["counts"], order.chain_counts(100, 1, given, {})["counts"])
    left = order.chain_counts(100, 8, given, {})["counts"]
    pairs = given["pairs"]
    assert (
        left[(pairs[:, 0] // 8) == (pairs[:, 1] // 8)]
        == [(order.positions(100) // 8 > i // 8).sum() for i, j in pairs if i // 8 == j // 8]
    ).all()
    assert order.positions(4096).size < 80
    assert order.positions(7).tolist() == list(range(7))


def test_an_overflow_of_a_summation_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    one = order.Summation("sum", "fp16", 8)
    monkeypatch.setitem(order.CALLS, "sum", lambda one, x, columns: x.sum(dim=1) * float("nan"))
    assert set(order.counts(one, order.pairs(8), "cpu")["counts"].tolist()) == {2**32 - 1}


def test_contraction_hypotheses_differ_where_they_should() -> None:
    given = elementwise.triple("fp32")
    ways = {f: elementwise.contracted("fp32", f, given, {}) for f in ("never", "last", "scaled")}
    for name in elementwise.CONTRACTED:
        assert len({ways[f][name].tobytes() for f in ways}) > 1, name


# --- the recorder on a GPU, with parts of it replaced --------------------------------------------------------------
def test_what_a_device_lacks_is_passed_over(where: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(given: Any, device: str) -> Any:
        raise NotHereError("compute capability (8, 0) has no wgmma.")

    case = Case("one", lambda: {"x": np.zeros(1, np.uint8)}, lacking, unmodelled, {"y": "bits8"})
    monkeypatch.setitem(suite._PARTS, "wgmma", lambda: (case,))
    one = recorder.record_one("wgmma", where, "quick", "cpu")
    assert (one.cases, one.failed) == ((), {})
    assert one.meta["not here"] == {"one": "compute capability (8, 0) has no wgmma."}
    assert recorder.verify_record(one) == []


def test_a_broken_context_ends_a_part_and_a_new_process_goes_on(
    tmp_path: Path, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = [True]

    def breaks(given: Any, device: str) -> Any:
        alive[0] = False
        raise RuntimeError("CUDA error: an illegal instruction was encountered")

    def works(given: Any, device: str) -> Any:
        return {"y": given["x"]}

    def case(name: str, compute: Any) -> Case:
        return Case(name, lambda: {"x": np.zeros(1, np.uint8)}, compute, unmodelled, {"y": "bits8"}, open="?")

    commands = []

    def run(command: list[str], **options: Any) -> Any:
        commands.append(command[1:])
        other = Record({**where, "kind": "cuda", "experiment": "wgmma", "size": "quick"}, ())
        records.save(tmp_path, other)
        return SimpleNamespace(returncode=3, stderr="out of\nluck", stdout="")

    parts = {"mma": (case("good", works), case("bad", breaks), case("after", works))}
    for name in ("wgmma", "scalar"):
        parts[name] = (case("one", works),)
    for name, cases in parts.items():
        monkeypatch.setitem(suite._PARTS, name, lambda cases=cases: cases)
    monkeypatch.setattr(recorder, "usable", lambda device: alive[0])
    monkeypatch.setattr(environment, "describe", lambda device: {**where, "kind": "cuda"})
    monkeypatch.setattr(subprocess, "run", run)
    first, second, third = recorder.record(tmp_path, "cuda", ["mma", "wgmma", "scalar"])
    assert [c.name for c in first.record.cases] == ["good"]
    assert first.record.failed == {
        "bad": "RuntimeError: CUDA error: an illegal instruction was encountered",
        "after": "not run: 'bad' broke the CUDA context",
    }
    assert commands == [["-m", "fplab", "record", "--out", str(tmp_path), "--device", "cuda", "wgmma", "scalar"]]
    assert second.record.failed == {}
    assert len(second.files) == 1
    assert third.record.failed == {"process": "the process that went on ended with 3: out of luck"}


def test_a_process_that_goes_on_records_what_is_left(tmp_path: Path, where: dict[str, Any]) -> None:
    (done,) = recorder._elsewhere(tmp_path, "cpu", ["scalar"], True, where, "quick")
    assert len(done.record.cases) == len(instructions.SCALARS)
    assert done.record.failed == {}
    assert done.files[0][1] > 100_000


def test_names_of_kernels_are_added_after_the_results(where: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    one = recorder.record_one("reductions", where, "quick", "cpu")
    asked: list[str] = []

    def named(work: Any, device: str) -> list[str]:
        asked.append(device)
        assert set(work()) == set(one.cases[0].formats)
        return ["reduce_kernel"]

    monkeypatch.setattr(recorder, "kernel_names", named)
    kernels = recorder.with_kernels(one, "cpu").meta["kernels"]
    assert kernels == {case.name: ["reduce_kernel"] for case in one.cases}
    assert len(asked) == len(one.cases)

    def broken(work: Any, device: str) -> list[str]:
        raise RuntimeError("CUPTI is not here")

    monkeypatch.setattr(recorder, "kernel_names", broken)
    assert recorder.with_kernels(one, "cpu").meta["kernels"] == {"failed": "RuntimeError: CUPTI is not here"}


def test_kernels_are_named_in_the_order_in_which_they_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def event(name: str, start: int, device: str = "DeviceType.CUDA") -> Any:
        return SimpleNamespace(name=name, device_type=device, time_range=SimpleNamespace(start=start))

    class Profile:
        def __init__(self, activities: list[Any]) -> None:
            assert torch.profiler.ProfilerActivity.CUDA in activities

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def events(self) -> list[Any]:
            return [
                event("b", 3), event("a", 1), event("b", 2), event("Memcpy HtoD", 0), event("op", 0, "DeviceType.CPU"),
            ]  # fmt: skip

    monkeypatch.setattr(profiling, "torch_for", lambda device: torch)
    monkeypatch.setattr(torch.profiler, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    ran = []
    assert profiling.kernel_names(lambda: ran.append(1), "cuda") == ["a", "b"]
    assert profiling.kernel_names(lambda: ran.append(2), "cpu") == []
    assert ran == [1, 2]


def test_times_are_taken_between_events(monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    import torch

    class Event:
        count = 0

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            Event.count += 1
            self.at = Event.count

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, other: Any) -> float:
            return 0.5 * (other.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    called: list[int] = []
    assert timing._one(torch, lambda: called.append(1), "cuda") == 0.5
    assert called == [1]


def test_a_format_that_cannot_be_multiplied_is_a_failed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fmt: str, size: int, device: str, repeats: int) -> list[float]:
        if fmt == "e4m3":
            raise RuntimeError("no FP8\n here")
        return [2.0, 1.0, 3.0]

    monkeypatch.setattr(timing, "_times", broken)
    found = timing.measure("cuda")
    assert found["e4m3 4096x4096x4096"] == {"failed": "RuntimeError: no FP8 here"}
    assert found["fp16 8192x8192x8192"] == {
        "median_ms": 2.0,
        "least_ms": 1.0,
        "tflops": round(2 * 8192**3 / 2e-3 / 1e12, 3),
    }
    assert "fp64 8192x8192x8192" not in found
