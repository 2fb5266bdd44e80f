"""Records: written whole, read back bit by bit, refused with the reason when they are damaged or foreign."""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import refusals
from refusals import refuses

from fplab.errors import LabError
from fplab.hardware import environment, records
from fplab.hardware.records import Record, RecordedCase
from fplab.storage import digest, write_bytes

META = {"experiment": "toy", "size": "quick", "kind": "cuda", "device": "NVIDIA Test GPU", "torch": "2.13.0"}


def a_case(name: str = "squares", n: int = 100) -> RecordedCase:
    x = np.arange(n, dtype=np.uint16)
    return RecordedCase(name, {"x": x}, {"y": (x * x).reshape(-1, 2)}, {"y": "fp16"})


def a_record(*cases: RecordedCase, **meta: object) -> Record:
    return Record({**META, **meta}, cases or (a_case(),), {"other": "CUDA error"})


def members(data: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def packed(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "one.npz"
    size = records.write(path, a_record())
    back = records.read(path)
    assert path.stat().st_size == size
    assert back.meta["device"] == "NVIDIA Test GPU"
    assert back.experiment == "toy"
    assert back.on_gpu
    assert back.failed == {"other": "CUDA error"}
    (case,), want = back.cases, a_case()
    assert (case.name, case.formats) == ("squares", {"y": "fp16"})
    for got, expected in ((case.inputs["x"], want.inputs["x"]), (case.outputs["y"], want.outputs["y"])):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        assert (got == expected).all()
    assert [p.name for p in path.parent.iterdir()] == ["one.npz"]


def test_equal_records_give_equal_bytes() -> None:
    assert records.pack(a_record()) == records.pack(a_record())


def test_big_endian_bits_are_stored_little_endian() -> None:
    big = RecordedCase("squares", {"x": np.array([1, 2], ">u2")}, {"y": np.array([1, 4], ">u4")}, {"y": "fp32"})
    back = records.unpack(records.pack(a_record(big))).cases[0]
    assert back.outputs["y"].dtype == np.dtype("<u4")
    assert back.outputs["y"].tolist() == [1, 4]


def test_every_flipped_byte_is_refused() -> None:
    data = records.pack(a_record())
    good = records.unpack(data)
    survivors = []
    for i in range(len(data)):
        damaged = data[:i] + bytes([data[i] ^ 0x55]) + data[i + 1 :]
        try:
            back = records.unpack(damaged)
        except LabError:
            continue
        # a byte that the zip format does not use (a date, a comment) may change; the contents may not
        assert dict(back.meta) == dict(good.meta)
        assert back.failed == good.failed
        assert (back.cases[0].outputs["y"] == good.cases[0].outputs["y"]).all()
        survivors.append(i)
    assert len(survivors) < len(data) / 4


@pytest.mark.parametrize(
    ("change", "reason"),
    [(lambda a: a.update({"squares/out/y": a["squares/out/y"] + np.uint16(1)}), "checksum does not match"),
     (lambda a: a.update({"squares/out/y": a["squares/out/y"].ravel()}), "checksum does not match"),
     (lambda a: a.update({"squares/out/y": a["squares/out/y"].astype(np.uint32)}), "checksum does not match"),
     (lambda a: a.pop("squares/in/x"), "checksum does not match"),
     (lambda a: a.pop(records.CHECKSUM), "checksum does not match"),
     (lambda a: a.pop(records.META), "none of fplab's"),
     (lambda a: a.update({records.META: np.frombuffer(b"{oops", np.uint8)}), "is no JSON"),
     (lambda a: a.update({records.META: np.frombuffer(b"[1]", np.uint8)}), "'version' is missing"),
     (lambda a: a.update(newer(a)), "a newer fplab wrote it: it has version 2, this one reads up to 1")],
)  # fmt: skip
def test_a_changed_record_is_refused(change: object, reason: str) -> None:
    arrays = members(records.pack(a_record()))
    change(arrays)  # type: ignore[operator]
    refuses(lambda: records.unpack(packed(arrays)), reason)


def newer(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    meta = json.loads(arrays[records.META].tobytes())
    return {records.META: np.frombuffer(json.dumps({**meta, "version": 2}).encode(), np.uint8)}


def test_an_index_that_names_what_is_not_there_is_refused() -> None:
    arrays = members(records.pack(a_record()))
    del arrays["squares/in/x"], arrays[records.CHECKSUM]
    arrays[records.CHECKSUM] = records._checksum(arrays)
    refuses(lambda: records.unpack(packed(arrays)), r"its index of cases is not one of fplab's: 'squares/in/x'")


def test_signed_arrays_are_refused_both_ways() -> None:
    wrong = RecordedCase("c", {"x": np.arange(3)}, {"y": np.arange(3, dtype=np.uint8)}, {"y": "e4m3"})
    refuses(lambda: records.pack(a_record(wrong)), r"c/in/x is int64; a record holds raw bits: unsigned integers only")
    arrays = members(records.pack(a_record()))
    arrays["squares/in/x"] = arrays["squares/in/x"].astype(np.float32)
    arrays[records.CHECKSUM] = records._checksum(arrays)
    refuses(lambda: records.unpack(packed(arrays)), r"squares/in/x is float32")


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "evil.npz"
    np.savez(path, **{records.META: np.array([{"a": 1}], dtype=object)})  # type: ignore[arg-type]
    refuses(lambda: records.read(path), r"holds Python objects, which are never loaded")


@pytest.mark.parametrize(("data", "reason"),
                         [(b"", "no .npz file, or a cut one"),
                          (b"\x93NUMPY garbage", "no .npz file, or a cut one"),
                          (records.pack(a_record())[:-100], "no .npz file, or a cut one")])  # fmt: skip
def test_other_files_are_refused_by_name(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "foreign.npz"
    path.write_bytes(data)
    refuses(lambda: records.read(path), f"foreign.npz' is refused: it is {reason}")


def test_a_zip_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "hello")
    refuses(lambda: records.read(path), r"none of fplab's: there is no 'fplab_meta'")


def test_a_pipe_in_a_folder_of_records_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "folder.npz").mkdir()
    command = [sys.executable, "-m", "fplab", "verify", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert "pipe.npz': it is no regular file." in said
    assert "folder.npz': Is a directory." in said


def test_what_a_killed_recording_left_is_no_record(tmp_path: Path) -> None:
    records.write(tmp_path / "whole.npz", a_record())
    (tmp_path / ".part-1-0123-other.npz").write_bytes(b"PK half")
    assert records.records_in(tmp_path) == [tmp_path / "whole.npz"]


def test_a_large_record_is_split_and_replaces_the_former(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.Generator(np.random.Philox(1))
    cases = [
        RecordedCase(f"case {i}", {}, {"y": rng.integers(0, 256, 2000, np.uint8)}, {"y": "e4m3"}) for i in range(4)
    ]
    monkeypatch.setattr(records, "LIMIT", 6000)
    written = records.save(tmp_path, a_record(*cases))
    assert [path.name for path, _ in written] == [
        "cuda--nvidia-test-gpu--torch-2.13.0--toy.npz",
        "cuda--nvidia-test-gpu--torch-2.13.0--toy--2.npz",
    ]
    assert all(size <= 6000 and size == path.stat().st_size for path, size in written)
    back = [case.name for path in records.records_in(tmp_path) for case in records.read(path).cases]
    assert sorted(back) == [case.name for case in cases]

    (tmp_path / "cuda--nvidia-test-gpu--torch-2.13.0--toy-2.npz").write_bytes(b"another experiment's")
    monkeypatch.setattr(records, "LIMIT", 12_000_000)
    records.save(tmp_path, a_record(*cases))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cuda--nvidia-test-gpu--torch-2.13.0--toy-2.npz",
        "cuda--nvidia-test-gpu--torch-2.13.0--toy.npz",
    ]


def test_a_case_too_large_for_a_file_is_a_failed_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LIMIT", 100)
    ((path, _),) = records.save(tmp_path, a_record())
    back = records.read(path)
    assert back.cases == ()
    assert "more than the 100 of a file" in back.failed["squares"]


def test_the_cpu_is_described_as_what_it_is() -> None:
    where = environment.describe("cpu")
    assert where["kind"] == "cpu"
    assert where["cuda"] is None
    assert where["driver"] is None
    assert where["device"]
    assert where["torch"]
    assert where["numpy"] == np.__version__
    assert where["flags"]["cuda.matmul.allow_tf32"] is False
    assert where["flags"]["float32_matmul_precision"] == "highest"
    assert where == json.loads(json.dumps(where)) == environment.describe("cpu")


test_what_is_not_there_or_does_not_fit_is_refused = refusals.matching(
    (lambda: records.read(Path("nowhere", "none.npz")), r"cannot read record .*none.npz': No such file"),
    (lambda: records.records_in(Path("nowhere")),
     r"there is no folder 'nowhere' with records; fplab record --out DIR makes one"),
    (lambda: records.pack(a_record(RecordedCase("c", {}, {"y": np.zeros(2, np.uint8)}, {"z": "e4m3"}))),
     r"case 'c' has outputs \['y'\], formats of \['z'\]"),
    (lambda: records.pack(a_record(a_case(), a_case())), "squares/in/x comes twice"),
    (lambda: records.pack(a_record(seeds=refusals.itself())), r"its meta is no plain JSON: ValueError: Circular refer"),
    (lambda: records.pack(a_record(seeds={1, 2})), r"its meta is no plain JSON: TypeError: Object of type set is not"),
    (lambda: records.pack(a_record(seeds=float("nan"))), r"its meta is no plain JSON: ValueError: Out of range float"),
    (lambda: environment.describe("tpu"), "device='tpu' is not possible; allowed: 'cuda', 'cuda:N', 'mps', 'cpu'"),
)  # fmt: skip


def test_a_gpu_that_is_not_there_is_refused() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("a CUDA device is present")
    with pytest.raises(LabError, match=r"no CUDA device is present; --device cpu records the CPU as a stand-in"):
        environment.describe("cuda")


# --- files --------------------------------------------------------------------------------------------------------
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.txt"
    path.write_text("old")

    def fail(opened: int) -> None:
        assert len(list(tmp_path.iterdir())) == 2
        raise RuntimeError

    monkeypatch.setattr("fplab.storage.os.fsync", fail)
    with pytest.raises(RuntimeError):
        write_bytes(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_digest_sees_values_shape_and_dtype_but_no_layout() -> None:
    x = np.arange(6, dtype="<u2").reshape(2, 3)
    same = [x.astype(">u2"), np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]]
    other = [x.ravel(), x.astype("<u4"), x + 1, x.view(np.int16)]
    assert {digest(y) for y in same} == {digest(x)}
    assert len({digest(y) for y in [x, *other]}) == 5
    assert digest(np.array(7, np.uint8)) != digest(np.array([7], np.uint8))
    # the rule itself, by hand
    import hashlib

    assert digest(x) == hashlib.sha256(b"<u2[2, 3]" + bytes([0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0])).hexdigest()
