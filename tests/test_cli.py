"""The commands, as a user meets them: what they print, and the status that they end with."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy

import fplab
from fplab import cli, language
from fplab.experiments.outcomes import Evidence, failed
from fplab.hardware import records
from fplab.training import checkpoints

SOURCE = Path(__file__).resolve().parent.parent


@pytest.fixture
def only_toy(only_toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def shell(*words: str, cwd: Path = SOURCE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "fplab", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_alone_it_shows_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    text = capsys.readouterr().out
    for command in ("list", "run", "figures", "record", "verify", "inspect", "lab"):
        assert f"  fplab {command}" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("command", [c.name for c in cli.COMMANDS])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    assert text.startswith(f"usage: fplab {command} ")
    assert f"example: fplab {command}" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["rnu"], "fplab: unknown command 'rnu'. Allowed: list, run, figures, record, verify, records, vectors, "
                  "conform, survey, checkpoint, explain, watch, sweep, memory, inspect, exercise, pages, lab. "
                  "Did you mean 'run'?"),
        (["run", "formts"], "fplab: unknown experiment 'formts'. Allowed: "),
        (["run", "--fast"], "fplab run: unrecognized arguments: --fast. See fplab run --help."),
        (["vectors"], "fplab vectors: the following arguments are required: --out. See fplab vectors --help."),
        (["record"], "fplab: one of --out DIR, for records, and --one-file FILE, for a recorder, says what to write."),
        (["record", "--out", "x", "--device", "tpu"], "fplab: device='tpu' is not possible; allowed: 'cuda', 'cuda:N'"),
        (["verify", "nowhere"], "fplab: there is no folder 'nowhere' with records; fplab record --out DIR makes one."),
        (["figures", "--check", "--out", "nowhere"], "fplab: there is no 'nowhere/MANIFEST.json' to check against"),
        (["inspect", "0.1", "--format", "fp61"], "unknown format 'fp61'. Allowed: "),
        (["inspect", "one tenth"], "fplab inspect 'one tenth': cannot read 'one tenth' as a value; allowed: a number;"),
        (["inspect", "0.1", "--rounding", "near"], "unknown rounding 'near'. Allowed: rne, rna, rtz, rtp, rtn, odd. "),
        (["--nonsense"], "fplab: unrecognized arguments: --nonsense."),
    ],
)  # fmt: skip
def test_a_wrong_request_is_one_line_and_status_2(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith(("recording", "comparing"))]
    assert captured.out == ""
    assert len(lines) == 1
    assert text in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_version_and_module() -> None:
    done = shell("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fplab {fplab.__version__}\n", "")


def test_list_shows_the_question(only_toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    text = capsys.readouterr().out
    assert "toy: Squares\n  What are the squares of small integers?\n  2 claims, 2 GPU cases, at most 2 s" in text


def test_run_ends_in_a_line_an_experiment_and_where_the_report_is(
    only_toy: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[:3] == ["pass  toy  every square is there", "", "The picture of each: runs/quick/NAME.svg"]
    waiting = r"([12]) of the \1 absent claims wait for a GPU; on a machine that has one: fplab record --out DIR"
    assert re.fullmatch(waiting, lines[3])
    assert re.match(
        r"4 claims: . pass, . absent. Whole sentences, figures, evidence: runs/quick/report.html; ", lines[4]
    )
    assert captured.err == ""
    names = sorted(path.name for path in Path("runs/quick").glob("[!.]*"))
    assert names == ["MANIFEST.json", "report.html", "toy.csv", "toy.svg"]


def test_run_prints_every_claim_on_request(only_toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--claims"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[1].split() == ["experiment", "claim", "evidence", "outcome"]
    assert "toy         every square is there" in text
    assert "no record for this hardware" in text
    assert re.search(r"seconds of one core: toy \d+\.\d s of 2 s, in all .* by the clock, in 1 process\n", text)
    assert text.count("\npass  toy  every square is there\n") == 1


def test_a_run_over_its_time_is_remarked(only_toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run"]) == 0
    assert "longer than intended" not in capsys.readouterr().out
    toy.install(budget=1e-9)
    assert cli.main(["run"]) == 0
    assert "Took longer than intended, as on a busy machine: toy." in capsys.readouterr().out


def test_run_ends_with_1_exactly_when_something_fails(only_toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    toy.install(claims=(toy.claim("no", Evidence.PROVED, lambda result: failed("1 against 0")),))
    assert cli.main(["run", "toy", "--out", "elsewhere"]) == 1
    assert "FAIL toy: no [proved]: 1 against 0" in capsys.readouterr().out
    assert Path("elsewhere/MANIFEST.json").exists()


def test_figures_writes_and_checks(only_toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    toy.install(claims=(toy.claim("never asked", Evidence.PROVED, toy.boom),))
    assert cli.main(["figures", "toy"]) == 0
    assert "runs/quick/toy.svg\n" in capsys.readouterr().out
    assert cli.main(["figures", "--check"]) == 0
    assert "array 'square' as in the manifest" in capsys.readouterr().out
    manifest = json.loads(Path("runs/quick/MANIFEST.json").read_text())
    manifest["toy"]["arrays"]["square"]["sha256"] = "0" * 64
    Path("runs/quick/MANIFEST.json").write_text(json.dumps(manifest))
    assert cli.main(["figures", "--check"]) == 1
    assert "FAIL toy: array 'square' as in the manifest [proved]: sha256 differs" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_check_that_compares_nothing_is_no_success(only_toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    toy.install(digested=lambda: ())
    assert cli.main(["figures", "toy"]) == 0
    assert cli.main(["figures", "--check"]) == 1
    assert "none of its arrays has the same bits everywhere" in " ".join(capsys.readouterr().out.split())


def test_record_and_verify(only_toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    toy.install(cases=toy.asking(toy.case("squares"), toy.case("broken", compute=toy.boom)))
    assert cli.main(["record", "--out", "rec", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "toy    1 cases recorded" in text
    assert "failed on this device: broken: RuntimeError: boom" in text
    assert "This CPU stands in for a GPU" in text
    assert cli.main(["verify", "rec"]) == 0
    text = capsys.readouterr().out
    assert "CPU stand-in" in text
    assert "no record for this hardware" not in text
    assert "no evidence about a GPU" in text
    assert cli.main(["verify", "rec", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(row["claim"], row["evidence"], row["outcome"]) for row in said["rows"]] == [
        ("squares", "CPU stand-in", "pass"),
        ("broken", "CPU stand-in", "absent"),
    ]
    (path,) = Path("rec").glob("*.npz")
    assert cli.main(["verify", str(path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2, "a record's own rows and no other"
    toy.install(cases=toy.asking(toy.case("squares", emulate=toy.boom)))
    assert cli.main(["verify", "rec"]) == 1


def test_a_recording_in_which_everything_fails_ends_with_1(only_toy: None) -> None:
    toy.install(cases=toy.asking(toy.case("broken", compute=toy.boom)))
    assert cli.main(["record", "--out", "rec", "--device", "cpu"]) == 1


def test_ctrl_c_is_one_line_and_130(only_toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    toy.install(run=interrupt)
    assert cli.main(["run"]) == 130
    assert capsys.readouterr().err == "fplab: interrupted; files already written are whole.\n"


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f"{sys.executable} -m fplab list | head -n 1"
    done = subprocess.run(["bash", "-c", command], cwd=SOURCE, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("value", ["0.1", "-1e-7", "-inf", "nan", "-0.0"])
def test_inspect_takes_every_number(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", value, "--format", "fp16", "bf16"]) == 0
    text = capsys.readouterr().out
    assert "fp16" in text.lower()
    assert "bf16" in text.lower()


@pytest.mark.parametrize(
    ("words", "text"),
    [(["run", "formats", "--out", "/dev/null/x"], "fplab: cannot write to '/dev/null/x': Not a directory."),
     (["verify", "--live", "--device", "banana"],
      "device='banana' is not possible; allowed: 'cuda', 'cuda:N', 'mps', 'cpu'."),
     (["run", "--ful"], "run: unrecognized arguments: --ful. See fplab run --help. Did you mean '--full'?"),
     (["memory", "--gpu=8"], "unrecognized arguments: --gpu=8. See fplab memory --help. Did you mean '--gpus'?"),
     (["exercise", "check", "x.py", "--isolate"], "exercise check --help. Did you mean '--isolated'?"),
     (["lab", "--port", "99999999"], "--port=99999999 is not possible; allowed: 1 to 65535."),
     (["verify", "--corpus", "/dev/null/x"], "there is no folder '/dev/null/x' with recorded results.")],
)  # fmt: skip
def test_what_cannot_be_done_is_said_before_anything_begins(words, text, capsys):
    assert cli.main(words) == 2
    said = capsys.readouterr()
    assert text in said.err
    assert not said.out


@pytest.mark.parametrize(
    ("setting", "value", "text"),
    [("FPLAB_PATIENCE", "abc", "FPLAB_PATIENCE='abc' is not a number of seconds."),
     ("FPLAB_PATIENCE", "-1", "FPLAB_PATIENCE='-1' is not a number of seconds."),
     ("FPLAB_PATIENCE", "nan", "FPLAB_PATIENCE='nan' is not a number of seconds."),
     ("FPLAB_FEW", "abc", "FPLAB_FEW='abc' is not an integer; allowed: 0 to 4611686018427387904."),
     ("FPLAB_NUM_THREADS", "abc", "FPLAB_NUM_THREADS='abc' is not an integer; allowed: 1 to 1024."),
     ("FPLAB_NUM_THREADS", "0", "FPLAB_NUM_THREADS=0 is not possible; allowed: 1 to 1024."),
     ("NUMBA_DISABLE_JIT", "1", "NUMBA_DISABLE_JIT=1 has numba compile nothing, which fplab's kernels need; unset it."),
     ("WORLD_SIZE", "-1", "WORLD_SIZE=-1 is not possible; allowed: 0 to 1048576."),
     ("WORLD_SIZE", "two", "WORLD_SIZE='two' is not an integer; allowed: 0 to 1048576.")],
)  # fmt: skip
def test_a_setting_that_means_nothing_is_refused_before_anything_begins(
    setting: str, value: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(setting, value)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep", "--out", "there", "--seeds", "0", "--steps", "1"]) == 2
    assert capsys.readouterr() == ("", f"fplab: {text}\n")


def test_a_rank_beyond_the_world_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "2")
    assert cli.main(["sweep", "--out", str(tmp_path), "--seeds", "0", "--steps", "1"]) == 2
    assert capsys.readouterr().err == "fplab: RANK=2 is not possible; allowed: 0 to 1.\n"


def test_kernels_refuse_a_numba_that_compiles_nothing() -> None:
    command = [sys.executable, "-c", "import fplab; fplab.quantize([0.1], 'fp16')"]
    own = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert "\nfplab.errors.LabError: NUMBA_DISABLE_JIT=1 has numba compile nothing" in done.stderr


@pytest.mark.parametrize("words", [["list"], ["memory", "--help"]])
@pytest.mark.parametrize("buffered", ["", "1"])
def test_an_output_that_takes_nothing_is_one_sentence(words: list[str], buffered: str) -> None:
    """Closed, on a full disk, or a pipe that nobody reads any more; and standard error likewise."""

    def ended(redirected: str) -> tuple[int, str]:
        command = f"{shlex.join([sys.executable, '-m', 'fplab', *words])} {redirected}"
        own = os.environ | {"PYTHONUNBUFFERED": buffered}
        done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=SOURCE, env=own, capture_output=True)
        assert not done.stdout
        return done.returncode, done.stderr.decode()

    assert ended(">&-") == (1, "fplab: cannot write standard output: Bad file descriptor.\n")
    assert ended("< /dev/null 1<&0") == (1, "fplab: cannot write standard output: Bad file descriptor.\n")
    assert ended("2>&1 | true") == ended("| true") == (0, "")
    assert ended(">&- 2>&-") == (1, "")
    if not Path("/dev/full").exists():
        pytest.skip("this system has no device that is always full")
    assert ended("> /dev/full") == (1, "fplab: cannot write standard output: No space left on device.\n")
    assert ended("> /dev/full 2>&1") == ended("> /dev/full 2>&-") == (1, "")


HOSTILE = "\x1b]0;mine\x07\x1b[2J\x9b1m\u202e\r\nGPU pass"  # a title, a clear screen, text reversed


def test_no_text_of_a_stranger_reaches_the_terminal_as_it_is(
    only_toy: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither of records, sound or damaged, nor of a manifest, a configuration or a file's name."""
    case = records.RecordedCase(HOSTILE, {}, {HOSTILE: np.ones(2, np.uint8)}, {HOSTILE: "e4m3"})
    for i, name in enumerate((HOSTILE, "toy", "toy")):
        meta = {"experiment": name, "size": "quick", "kind": "cuda", "device": HOSTILE, "torch": HOSTILE, "x": HOSTILE}
        records.write(tmp_path / "theirs" / f"{i}.npz", records.Record(meta, (case,) * (i < 2), {HOSTILE: HOSTILE}))
    (tmp_path / "theirs" / f"{HOSTILE.replace('/', '')}.npz").write_bytes(b"PK")
    np.savez(tmp_path / "theirs" / "other.npz", **{HOSTILE: np.ones(1)})
    assert cli.main(["verify", "theirs"]) == 1
    assert cli.main(["verify", "theirs", "--json"]) == 1
    assert cli.main(["figures", "toy"]) == 0
    manifest = json.loads((path := tmp_path / "runs" / "quick" / "MANIFEST.json").read_text())
    described = {"dtype": HOSTILE, "shape": HOSTILE, "sha256": HOSTILE}
    for wrong in (HOSTILE, {"n": described, HOSTILE: described}):
        path.write_text(json.dumps({"toy": {**manifest["toy"], "arrays": wrong}}))
        assert cli.main(["figures", "--check", "toy"]) == 1
    path.write_text(json.dumps({"toy": {**manifest["toy"], "parameters": {HOSTILE: HOSTILE}}}))
    assert cli.main(["figures", "--check", "toy"]) == 1
    checkpoints.save(tmp_path / "run.npz", {HOSTILE: HOSTILE}, {})
    with pytest.raises(fplab.LabError) as caught:
        checkpoints.load(tmp_path / "run.npz", {})
    told = capsys.readouterr()
    for text in (told.out, told.err, str(caught.value)):
        assert not set(text) & {*"\x1b\x07\x9b\u202e\r"}, text
        assert not re.search("(?m)^GPU", text)
    assert "toy" in told.out
    assert "\N{REPLACEMENT CHARACTER}[2J" in told.out


def test_no_argument_reaches_the_terminal_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """It may be a stranger's file name, which the shell put in the place of ``*``."""
    for words in (["inspect", HOSTILE], ["verify", HOSTILE], [HOSTILE], ["run", HOSTILE], ["list", HOSTILE]):
        assert cli.main(words) == 2
        said = capsys.readouterr().err
        assert not set(said) & {*"\x1b\x07\x9b\u202e\r"}, said
        assert not re.search("(?m)^GPU", said)


def test_verify_says_what_a_checksum_does_not_prove(
    only_toy: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["record", "--out", "rec", "--device", "cpu"]) == 0
    assert cli.main(["verify", "rec"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.endswith("shows that the file is whole. It proves nothing about who made it, nor on which device.")


def test_verify_covers_records_and_the_data_set_in_one_call(
    only_toy: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(__file__).resolve().parents[2] / "shared" / "tensor-core-corpus"
    if not source.is_dir():
        pytest.skip("the recorded data set is not beside the checkout")
    for folder in ("good", "bad"):
        shutil.copytree(source / "V100" / "fp16", tmp_path / folder / "V100" / "fp16")
    wrong = tmp_path / "bad" / "V100" / "fp16" / "d_V100_fp32.txt"
    first, *rest = wrong.read_text().splitlines(keepends=True)
    wrong.write_text("".join([first.replace("1", "0", 1), *rest]))
    assert cli.main(["record", "--out", "rec", "--device", "cpu"]) == 0
    assert cli.main(["verify", "rec", "--corpus", str(tmp_path / "good"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.partition("{")[2].join(("{", "")))["rows"]
    said = {(row["experiment"], row["outcome"]) for row in found}
    assert said == {("MATLAB-tensor-core", "pass"), ("toy", "pass")}
    assert cli.main(["verify", "rec", "--corpus", str(tmp_path / "bad")]) == 1
    assert "FAIL MATLAB-tensor-core: V100 fp16" in " ".join(capsys.readouterr().out.split())


NAMES_IN_HELP = re.findall(  # names, code and file names; all else is said in Chinese
    r"\S+",
    "fplab json svg png csv html cpu gpu gpus cuda mlp tensor core cores dropout transformer zero none light "
    "flat rows tensors learned rotary alibi gpipe interleaved mixed amp sgd momentum adam adamw selective full "
    "optimizer parameters chunks saturate inf nan dynamic lang elementwise reductions products orders scalar mma wgmma "
    "matlab-tensor-core manifest digits characters module name training task torchrun policy jupyterlab swiglu rmsnorm "
    "layernorm command file heads hidden dir runs quick pages answers sums start rne rna rtz rtp rtn odd python "
    "fplab-course check list progress show solution bloom linux bubblewrap model batches loss torch value inputs "
    "recipe split survey explain watch checkpoint safetensors gguf pt npy npz vectors txt bin nbgrader set classroom "
    "drawn teacher fallback conform mine unit add origin text numpy mps gptq",
)


@pytest.mark.parametrize(
    "words", [[c.name] for c in cli.COMMANDS] + [["exercise", "check"], ["exercise", "progress"], []]
)
def test_help_in_chinese_has_no_english_word_but_names(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with language.speaking("zh"), contextlib.suppress(SystemExit):
        cli.main([*words, "--help"])
    text = capsys.readouterr().out.partition("\n\n")[2]  # below the usage, which is names alone
    text = re.sub(r"(?m)^ +(-{1,2}\S+|[A-Z]+|fplab|\{)[^\u4e00-\u9fff]*?(  |$)|^示例：.*$", "", text)
    found = {word.lower() for word in re.findall(r"(?<![\w.-])[A-Za-z][A-Za-z-]{2,}(?![\w:])", text)}
    assert found - {*NAMES_IN_HELP} == set()
    assert re.search("[\u4e00-\u9fff]", text)


def test_what_is_wrong_with_a_command_line_is_said_in_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in (
        (["rnu"], "fplab: 未知的命令 'rnu'。可用：list, run, "),
        (["vectors"], "fplab vectors：缺少必需的参数：--out。"),
        (["run", "--fast"], "fplab run：无法识别的参数：--fast。"),
        (["lab", "--port", "0"], "fplab: --port=0 不可用；可用：1 到 65535。"),
        (["inspect", "0.1", "--rounding"], "fplab inspect：参数 --rounding：需要一个值。参见 fplab inspect --help。"),
    ):  # fmt: skip
        with language.speaking("zh"):
            assert cli.main(words) == 2
        assert text in capsys.readouterr().err
