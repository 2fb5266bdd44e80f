"""Files: many writers of one path, links that were planted, parts that were left, full disks, crafted archives."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import toy
from prove import __main__ as prove
from refusals import refuses
from withstand import apart

from fplab import copying, course, machine_code, pages, storage
from fplab.cli import main
from fplab.errors import LabError
from fplab.exercises import progress
from fplab.experiments import figures, uptodate
from fplab.hardware import records
from fplab.storage import read_arrays, sweep, write_bytes, write_text
from fplab.training import checkpoints, data, fit, sweeps, text
from fplab.training.tasks import perceptron


def at_once(work: Callable[[int], object], threads: int) -> list[BaseException]:
    """Run ``work(0)`` to ``work(threads - 1)`` in threads that begin together; what they raise."""
    raised: list[BaseException] = []
    begin = threading.Barrier(threads)

    def one(number: int) -> None:
        begin.wait()
        try:
            work(number)
        except Exception as error:
            raised.append(error)

    running = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return raised


@contextmanager
def full_disk() -> Iterator[None]:
    """No file gets larger than 100 bytes. Python would keep the beginnings of what modules are translated to."""
    resource = pytest.importorskip("resource")
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


# --- writing --------------------------------------------------------------------------------------------------
def test_threads_write_one_path_and_readers_see_whole_files(tmp_path: Path) -> None:
    """With a part named by the process alone, one thread renamed or removed the part of another."""
    path, torn = tmp_path / "one", []
    path.write_bytes(bytes(5000))

    def write(number: int) -> None:
        for _ in range(60):
            write_bytes(path, bytes([number]) * 5000)
            read = path.read_bytes()
            torn.extend([read] if len(read) != 5000 or len(set(read)) != 1 else [])

    assert at_once(write, 3) == []
    assert torn == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can guess the name of a part; who could, would stop the write and reach nothing."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    names = set()
    for _ in range(3):
        part, opened = storage._new_part(tmp_path / "file")
        os.close(opened)
        names.add(part.name)
    assert len(names) == 3
    monkeypatch.setattr(storage.secrets, "token_hex", lambda n: "guessed")
    (tmp_path / f".part-{storage._kernel()}-guessed-file").symlink_to(victim)
    with pytest.raises(storage.WriteError, match=r"cannot write '.*file': File exists\."):
        write_text(tmp_path / "file", "new")
    assert victim.read_text() == "untouched"


@pytest.mark.parametrize("name", ["a\0b", "\0", "\ud800"])
def test_a_name_that_no_file_can_have_is_refused_before_any_work(name: str, tmp_path: Path) -> None:
    """The system's calls raise a bare ValueError for it, where others that fail raise OSError."""
    path, never = tmp_path / name, lambda *given: pytest.fail("it began")
    task = perceptron(width=4, hidden=1, batch=8)
    for write in (
        lambda: write_text(path, "new"),
        lambda: write_text(path / "file", "new"),
        lambda: storage.demand_writable(path),
        lambda: figures.merge_manifest(path, "one", {}),
        lambda: checkpoints.save(path, {}, 1),
        lambda: fit(task, steps=1, checkpoint=path, progress=never),
        lambda: fit(task, steps=1, checkpoint=path / "run.npz", progress=never),
        lambda: pages.write(("01",), out=path, folder=Path("notebooks"), tick=never),
    ):
        with pytest.raises(storage.WriteError, match=r"cannot write '.*\\(x00|ud800).*': no file can have that name\."):
            write()
    refuses(lambda: records.read(path), r"cannot read record '.*': .*\.")
    refuses(lambda: records.records_in(path), r"there is no folder '.*' with records")
    refuses(lambda: checkpoints.load(path, {}), r"is no checkpoint of a training run, or a damaged one")
    assert list(tmp_path.iterdir()) == []


def named(kernel: str = "", of: str = "run.npz") -> str:
    """What a part is called; ``kernel``: another than this one."""
    return f".part-{kernel or storage._kernel()}-0123456789abcdef-{of}"


WRITES = """
import os, sys
from pathlib import Path
from fplab import storage

folder, name, times = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for k in range(times):
    storage.write_bytes(folder / name, bytes([k % 256]) * 100_000)
    shared = folder / "shared"
    storage.write_bytes(shared, name.encode() * 50_000)
    assert shared.read_bytes() in {one * 50_000 for one in (b"0", b"1", b"2")}
part, opened = storage._new_part(folder / name)  # and it ends amid a write
os.write(opened, b"half")
print(part.name, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no such kill on Windows")
@pytest.mark.parametrize("where", ["here", "apart"])
def test_writers_with_numbers_of_their_own_lose_nothing(where: str, tmp_path: Path) -> None:
    """In each container the processes begin to count anew: that there is no such number here says nothing.

    And what one of them left amid a write is removed at once by whoever writes next, if the kernel is the same.
    """
    if where == "apart" and not apart():
        pytest.skip("this system lets no process have a PID namespace of its own (unshare --user --pid)")
    before = apart() if where == "apart" else ()
    running = [
        subprocess.Popen(
            [*before, sys.executable, "-c", WRITES, tmp_path, str(k), "150"], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for k in range(3)
    ]  # fmt: skip
    said = [one.communicate() for one in running]
    assert [error for _, error in said] == ["", "", ""]
    last = [tmp_path / out.strip() for out, _ in said]
    assert {path.name for path in tmp_path.iterdir() if path not in last} == {"0", "1", "2", "shared"}
    assert all((tmp_path / str(k)).read_bytes() == bytes([149]) * 100_000 for k in range(3))
    if storage._kernel() != storage.UNKNOWN:
        left = [path for path in last if path.exists()]  # those that ended first were removed by the others
        assert set(sweep(tmp_path)) == set(left) != set()
        assert not any(path.exists() for path in last)


@pytest.mark.skipif(storage._kernel() == storage.UNKNOWN, reason="the kernel has no name here")
def test_what_is_being_written_is_not_swept_and_what_is_not_is(tmp_path: Path) -> None:
    left = tmp_path / named()
    left.write_bytes(b"of another life")
    part, opened = storage._new_part(tmp_path / "file")
    assert sweep(tmp_path) == [left]
    os.close(opened)
    assert sweep(tmp_path) == [part]
    os.mkfifo(left)  # nobody waits for its other end
    write_text(tmp_path / "file", "whole")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    left.symlink_to(tmp_path / "file")  # and no link is followed
    assert sweep(tmp_path) == []
    assert (tmp_path / "file").read_text() == "whole"


def test_what_another_host_writes_is_left_for_a_day(tmp_path: Path) -> None:
    """Its locks may be unknown here, and the clocks of two hosts differ: the folder's own counts."""
    other = [tmp_path / named(kernel) for kernel in ("0123456789ab", storage.UNKNOWN, "4711")]
    for path in other:
        path.touch()
        os.utime(path, (0, path.stat().st_mtime - storage.OLD + 60))
    write_text(tmp_path / "file", "new")
    assert all(path.exists() for path in other)
    for path in other:
        os.utime(path, (0, path.stat().st_mtime - 120))
    os.utime(tmp_path, (0, 0))  # a folder that nobody has written to since
    assert sweep(tmp_path) == []
    write_text(tmp_path / "file", "new")
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


@pytest.mark.parametrize("masked", ["", "\n", OSError(13, "Permission denied")])
def test_a_kernel_that_does_not_say_its_name_has_none(masked: str | OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may see an empty file in its place: by a digest of that, all such hosts would be one."""

    def read(path: Path, encoding: str) -> str:
        if isinstance(masked, OSError):
            raise masked
        return masked

    monkeypatch.setattr(Path, "read_text", read)
    assert storage._kernel.__wrapped__() == storage.UNKNOWN


def test_a_part_that_was_swept_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = storage._lock, []

    def late(opened: int, wait: bool = True) -> bool | None:
        if wait and not swept:
            swept.extend(tmp_path.glob(".part-*"))
            swept[0].unlink()
        return lock(opened, wait)

    monkeypatch.setattr(storage, "_lock", late)
    write_text(tmp_path / "file", "new")
    assert len(swept) == 1
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


def test_where_there_are_no_locks_files_are_whole_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_lock", lambda opened, wait=True: None)
    left = tmp_path / named()
    left.touch()
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"file", left.name}
    os.utime(left, (0, 0))
    assert sweep(tmp_path) == [left]


def test_what_another_user_owns_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / named()
    left.touch()
    os.utime(left, (0, 0))

    def refuse(*given: object, **more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        assert sweep(tmp_path) == []
    assert sweep(tmp_path) == [left]


def test_every_writer_of_the_manifest_is_in_it(tmp_path: Path) -> None:
    """Two that read, add and write meanwhile would each keep their own entry only."""

    def write(number: int) -> None:
        for k in range(10):
            figures.merge_manifest(tmp_path, f"{number}-{k}", {"seed": k})

    assert at_once(write, 4) == []
    assert len(json.loads((tmp_path / figures.MANIFEST).read_text())) == 40


# --- progress -------------------------------------------------------------------------------------------------
GOOD = {"attempts": 2, "first_attempt": "2026-01-01T00:00:00+00:00", "first_passed": None}


@pytest.mark.parametrize(
    "damaged",
    [{"exercises": {"rne": GOOD, "absorbed": {**GOOD, "attempts": "2"}}}, {"exercises": {"rne": GOOD}, "more": 1}, []],
)
def test_progress_that_lost_an_entry_keeps_a_copy(
    damaged: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path))
    for copy in ("progress.damaged.json", "progress.damaged2.json"):
        progress.path().write_text(json.dumps(damaged))
        kept = progress.load()
        (tmp_path / named(of="progress.json")).touch()
        assert progress.remember("rne", True) is None
        assert set(progress.load()) == {*kept, "rne"}
        assert json.loads((tmp_path / copy).read_text()) == damaged
    assert progress.remember("rne", True) is None
    names = {"progress.json", "progress.damaged.json", "progress.damaged2.json"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_who_has_no_home_folder_has_that_of_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container's user with a number and no name; where it cannot be written, that is said as of any other."""
    for name in ("FPLAB_CACHE_DIR", "FPLAB_PROGRESS_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "APPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", toy.boom)
    assert (machine_code.cache_root(), progress.path().parent) == (Path("/.cache/fplab"), Path("/.local/share/fplab"))


# --- full disks -------------------------------------------------------------------------------------------------
def test_a_full_disk_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(perceptron(width=4, hidden=1, batch=8), steps=1)  # what it needs of kernels is compiled, and kept, before
    path = tmp_path / "file"
    path.write_text("old")
    with full_disk(), pytest.raises(LabError, match=r"cannot write '.*file': File too large\."):
        write_text(path, "new" * 100)
    assert path.read_text() == "old"
    case = records.RecordedCase("c", {}, {"y": np.arange(300, dtype=np.uint16)}, {"y": "fp16"})
    meta = {"kind": "cpu", "device": "a", "torch": "2", "experiment": "e", "size": "quick"}
    with full_disk(), pytest.raises(LabError, match=r"cannot write '.*cpu--a--torch-2--e.npz': File too large\."):
        records.save(tmp_path, records.Record(meta, (case,)))
    with full_disk(), pytest.raises(LabError, match=r"cannot write '.*run.npz': File too large\."):
        fit(perceptron(width=4, hidden=1, batch=8), steps=1, checkpoint=tmp_path / "run.npz")
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path))
    monkeypatch.setattr(progress, "load", lambda: {f"{k}": GOOD for k in range(9)})
    with full_disk():
        note = progress.remember("rne", True)
        assert str(note) == f"(progress is not kept: {tmp_path / 'progress.json'}: File too large)"
        assert main(["exercise", "progress", "--csv", str(tmp_path / "class.csv")]) == 2
    assert capsys.readouterr().err == f"fplab: cannot write {str(tmp_path / 'class.csv')!r}: File too large.\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_proof_that_cannot_be_remembered_ends_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert prove.main(["--quick", "--part", "fma", "--state", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith(f"prove: cannot write to {str(tmp_path / 'file')!r}: File exists.")


# --- reading ----------------------------------------------------------------------------------------------------
def archive(**members: bytes) -> bytes:
    """An archive of what may be no arrays."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def npy(header: str, content: bytes = b"") -> bytes:
    """A file as NumPy writes it, with any header."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


def picture_kept(folder: Path) -> object:
    (folder / ".toy.drawn").write_text('{"of": "this", "files": {"toy.svg": "0"}}')
    return uptodate.kept(folder, "toy", "this")


PIPES: list[tuple[str, Callable[[Path], object], object]] = [
    ("kept.nbc", lambda folder: machine_code.read(folder / "kept.nbc", ()), None),
    (".toy.drawn", lambda folder: uptodate.kept(folder, "toy", "this"), None),
    ("toy.svg", picture_kept, None),
    (copying.COPIED, copying.copy_course, []),
    ("00_start.ipynb", copying.copy_course, ["00_start.ipynb"]),
    ("language", lambda folder: type(course.start()), course.Selector),
    (
        ".claims",
        lambda folder: sweeps.work([], folder, 1, 0, 1, str),
        r"cannot write '.*\.claims': No such device or address\.",
    ),
]


@pytest.mark.skipif(os.name == "nt", reason="there are no such pipes on Windows")
@pytest.mark.parametrize(("name", "read", "want"), PIPES, ids=[name for name, _, _ in PIPES])
def test_no_reader_waits_for_the_other_end_of_a_pipe(
    name: str, read: Callable[[Path], object], want: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a writer; what is no file counts as damaged, or is the reader's own."""
    monkeypatch.setenv("FPLAB_PROGRESS_DIR", str(tmp_path))
    os.mkfifo(tmp_path / name)
    before = signal.signal(signal.SIGALRM, lambda *given: pytest.fail("it waits"))
    signal.alarm(60)
    try:
        if isinstance(want, str):
            refuses(lambda: read(tmp_path), want)
        else:
            assert read(tmp_path) == want
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


CLAIMS = "{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }"
CRAFTED = [
    (archive(x=npy(CLAIMS % 2**40, b"1")), r"1 bytes claim to be uint8 of shape \(1099511627776,\)"),
    (archive(x=npy(CLAIMS % 2**21, bytes(2**21))), r"it would expand to 2,097,\d+ bytes; allowed: 1,048,576"),
    (archive(x=npy("(" * 9000)), "it is damaged"),
    (archive(x=b"\x93NUMPY\x09\x00"), "it is damaged"),
    (archive(x=npy(CLAIMS.replace("|u1", "|O") % 1, b"cos\n_exit\n(I7\ntR.")), "holds Python objects"),
    (archive(x=npy(CLAIMS % 3, b"123"))[:-30], "it is no .npz file, or a cut one"),
]


@pytest.mark.parametrize(("crafted", "why"), CRAFTED)
def test_a_crafted_archive_is_refused_in_words(crafted: bytes, why: str, tmp_path: Path) -> None:
    refuses(lambda: read_arrays(crafted, 1 << 20), why)
    path = tmp_path / "crafted.npz"
    path.write_bytes(crafted)
    refuses(lambda: records.read(path), r"crafted.npz' is refused: ")
    with pytest.raises(LabError, match=r"crafted.npz' is no checkpoint of a training run, or a damaged one \(.*\); "):
        checkpoints.load(path, {})


def test_all_members_of_an_archive_count_toward_its_bound() -> None:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros(500, np.uint8), y=np.zeros(500, np.uint8))
    whole = sum(one.file_size for one in zipfile.ZipFile(buffer).infolist())
    assert set(read_arrays(buffer.getvalue(), whole)) == {"x", "y"}
    with pytest.raises(LabError, match=rf"it would expand to {whole:,} bytes; allowed: {whole - 1:,}\."):
        read_arrays(buffer.getvalue(), whole - 1)


def test_what_is_compressed_otherwise_is_refused() -> None:
    """A block of bzip2 or LZMA expands to any size before the first byte of it can be counted."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("x.npy", npy(CLAIMS % 3, b"123"))
    refuses(lambda: read_arrays(buffer.getvalue(), 1 << 20), "compressed in a way that NumPy does not use")


def checkpoint(state: object, **arrays: np.ndarray) -> bytes:
    """A checkpoint with any state."""
    said = state if isinstance(state, bytes) else json.dumps({"version": 1, "configuration": {}, "state": state})
    buffer = io.BytesIO()
    np.savez(buffer, state=np.frombuffer(said if isinstance(said, bytes) else said.encode(), np.uint8), **arrays)
    return buffer.getvalue()


TENSOR = {"tensor": "a", "dtype": "float32", "shape": [2]}
STATES = [
    checkpoint(b'{"state": ' + b"[" * 100_000),
    checkpoint(b'{"version": 1, "configuration": {}, "state": ' + b'{"list": [' * 3000 + b"]}" * 3000 + b"}"),
    checkpoint(TENSOR, a=np.zeros(1, np.uint8)),
    checkpoint({**TENSOR, "shape": [2**40]}, a=np.zeros(1, np.uint8)),
    checkpoint({**TENSOR, "shape": [2**40]}, a=np.zeros(0, np.uint8)),
    checkpoint({**TENSOR, "dtype": "load"}, a=np.zeros(8, np.uint8)),
    checkpoint(b'{"version": 1, "configuration": [1], "state": {"value": 1}}'),
    checkpoint(b"[]"),
]


@pytest.mark.parametrize("crafted", STATES, ids=range(len(STATES)))
def test_a_crafted_state_is_refused_in_words(crafted: bytes, tmp_path: Path) -> None:
    path = tmp_path / "crafted.npz"
    path.write_bytes(crafted)
    with pytest.raises(LabError, match=r"crafted.npz' is no checkpoint of a training run, or a damaged one \(.*\); "):
        checkpoints.load(path, {})


def test_a_state_of_something_else_is_refused_in_words(tmp_path: Path) -> None:
    task, path = perceptron(width=4, hidden=1, batch=8), tmp_path / "run.npz"
    fit(task, steps=1, checkpoint=path)
    arrays = read_arrays(path.read_bytes(), 1 << 20)
    held = json.loads(arrays["state"].tobytes())
    checkpoints.save(path, held["configuration"], {"losses": [1.0], "model": {}})
    with pytest.raises(LabError, match=r"run.npz' holds no state of this run \(RuntimeError: Error\(s\) in loading"):
        fit(task, steps=1, checkpoint=path)


@pytest.mark.parametrize(("name", "read"), [("digits.npz", data.digits), ("python_topics.gz", text.tokens)])
def test_damaged_data_of_the_package_says_what_to_do(
    name: str, read: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (data.FOLDER / name).read_bytes()
    monkeypatch.setattr(sys.modules[read.__module__], "FOLDER", tmp_path)
    for at in range(0, len(whole), len(whole) // 15):
        (tmp_path / name).write_bytes(whole[:at] + b"damaged" + whole[at + 7 :])
        with pytest.raises(LabError, match=rf"{name}' is part of fplab and cannot be read \(.*\); install fplab again"):
            read()


def test_the_tests_leave_no_folder_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/test_threads.py"],
        cwd=Path(__file__).parent.parent, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert " tests collected in " in done.stdout
    assert list(tmp_path.iterdir()) == []
