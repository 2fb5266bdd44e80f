"""``fplab memory``: tables, JSON, figures, and what it says to requests it cannot honour."""

import json
import sys
import time
from pathlib import Path

import pytest

from fplab import cli
from fplab.memory import estimate


def said(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["memory", *words.split()]) == 0
    return capsys.readouterr().out


def test_bloom_in_int8(capsys: pytest.CaptureFixture[str]) -> None:
    text = said("--preset bloom-176b --inference int8", capsys)
    assert text.startswith("bloom-176b, 176,247,271,424 parameters, inference in int8, 1 x 2,048 tokens, 1 GPU\n")
    assert f"parameters           179,893,116,928     179.89     167.54  {36 * '█'}\n" in text
    assert "80 GB   does not fit: 2.4 times   at least 4 GPUs = 320 GB\n" in text


def test_llama_on_eight_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    text = said("--preset llama3-8b --gpus 8 --zero 3 --optimizer adamw8bit", capsys)
    assert text == estimate("llama3-8b", gpus=8, zero=3, optimizer="adamw8bit").table() + "\n"
    for part in ("optimizer states", "reduce-scatter of 16.1 GB", "no number is enough", "at least 5 GPUs = 400 GB"):
        assert part in text


def test_every_option_reaches_the_calculator(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "--layers 8 --hidden 256 --heads 8 --vocabulary 1000 --sequence 128 --kv-heads 4 --ffn 512 --gpus 16 --zero 1 "
        "--partition rows --tensor 2 --pipeline 4 --schedule interleaved --chunks 2 --micro-batch 3 --micro-batches 8 "
        "--precision amp --optimizer momentum8bit --block 512 --recompute selective --sequence-parallel --flash --json"
    )
    found = json.loads(said(words, capsys))
    options = found["options"]
    wanted = {
        "gpus": 16, "zero": 1, "partition": "rows", "tensor": 2, "pipeline": 4, "schedule": "interleaved", "chunks": 2,
        "micro_batch": 3, "micro_batches": 8, "precision": "amp", "optimizer": "momentum8bit", "block": 512,
        "recompute": "selective", "sequence_parallel": True, "flash": True, "sequence": 128, "offload": "none",
    }  # fmt: skip
    assert options | wanted == options
    assert len(found["stages"]) == 4


@pytest.mark.parametrize(
    ("written", "count"),
    [("7B", 7 * 10**9), ("1.3e9", 13 * 10**8), ("350m", 350 * 10**6), ("124_439_808", 124439808), ("1T", 10**12),
     ("12k", 12000), ("1,000", 1000), ("7.5e+09", 75 * 10**8)],
)  # fmt: skip
def test_parameters_as_people_write_them(written: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(f"--parameters {written}", capsys).startswith(f"{count:,} parameters, ")


@pytest.mark.parametrize("written", ["7.5x", "1.5", "0", "0B", "-3", "B", "1e999", "1e3B2", "٧", "1.2345K", ""])
def test_what_is_no_number_of_parameters(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["memory", f"--parameters={written}"]) == 2
    wanted = f"fplab: --parameters {written!r} is not possible; allowed: a whole number such as 7B, 350M or 1.3e9.\n"
    assert capsys.readouterr().err == wanted


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_it_says_which_figure_it_wrote(
    json: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the JSON, which others read."""
    assert cli.main(["memory", "--preset", "gpt2", *json, "--out", str(tmp_path / "bars.svg")]) == 0
    text = capsys.readouterr()
    line = f"figure: {tmp_path / 'bars.svg'}\n"
    assert text.err == (line if json else "")
    assert text.out.endswith("}\n" if json else line)


def test_a_number_of_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said("--parameters 7500000000 --gpus 64 --zero 3 --json", capsys))
    assert found["stages"][0]["device"]["parameters"] == 234375000
    assert json.loads(said("--parameters 1000 --offload optimizer --json", capsys))["stages"][0]["host"]


@pytest.mark.parametrize("name", ["who.png", "who.svg"])
@pytest.mark.parametrize(
    "words",
    ["--preset llama3-8b --gpus 8 --zero 3", "--preset gpt2 --theme dark", "--preset bloom-176b --inference bf16",
     "--preset gpt3 --gpus 32 --tensor 8 --pipeline 4 --micro-batches 8", "--parameters 1000000"],
)  # fmt: skip
def test_the_stacked_bar_is_drawn(words: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(f"{words} --out {tmp_path / name}", capsys)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).stat().st_size > 10_000


def test_the_bars_hold_what_the_table_says() -> None:
    from fplab.memory.report import bars

    e = estimate("llama3-8b", gpus=8, zero=2)
    title, found, sizes = bars(e)
    assert title == e.table().splitlines()[0]
    assert list(found) == ["DDP", "ZeRO-1", "ZeRO-2 (chosen)", "ZeRO-3"]
    assert found["ZeRO-2 (chosen)"] == dict(e.fullest.device)
    assert sizes == (24, 40, 80, 141)
    assert list(bars(estimate("gpt2"))[1]) == [f"recomputation\n{r}" for r in ("none (chosen)", "selective", "full")]
    assert list(bars(estimate("gpt2", inference="bf16"))[1]) == ["bf16 (chosen)", "fp16", "int8", "int4"]


LLAMA2 = (
    "--layers 32 --hidden 4096 --heads 32 --vocabulary 32000 --sequence 4096 --ffn 11008 "
    "--gated --rms --no-bias --no-tied --positions rotary --no-dropout"
)


def test_llama2_by_its_dimensions_has_its_published_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    """Touvron et al. 2023 (arXiv 2307.09288): 6,738,415,616 parameters in the released weights, called 6.7B."""
    assert json.loads(said(f"{LLAMA2} --json", capsys))["parameters"] == 6_738_415_616
    grouped = json.loads(said(f"{LLAMA2} --kv-heads 8 --json", capsys))["parameters"]
    assert grouped == 6_738_415_616 - 32 * 2 * 3 * 4096 * 1024


@pytest.mark.parametrize(("flags", "more"),
                         [("--gated", 4 * (64 * 256 + 256)), ("--rms", -(2 * 4 + 1) * 64),
                          ("--no-bias", -4 * (64 * 4 + 256 + 64)),
                          ("--no-tied", 100 * 64), ("--positions rotary", -16 * 64), ("--embedding-norm", 2 * 64),
                          ("--gated --no-gated", 0)])  # fmt: skip
def test_every_part_of_a_transformer_has_its_option(flags: str, more: int, capsys: pytest.CaptureFixture[str]) -> None:
    shape = "--layers 4 --hidden 64 --heads 4 --vocabulary 100 --sequence 16 --json"
    plain, other = (json.loads(said(f"{shape} {extra}", capsys))["parameters"] for extra in ("", flags))
    assert other - plain == more


def test_dropout_is_of_the_activations(capsys: pytest.CaptureFixture[str]) -> None:
    shape = "--layers 4 --hidden 64 --heads 4 --vocabulary 100 --sequence 16 --json"
    kept, none = (json.loads(said(f"{shape} {extra}", capsys))["stages"][0]["device"] for extra in ("", "--no-dropout"))
    assert kept["activations"] - none["activations"] == 16 * 64 * (1 + 4 * 2) + 4 * 4 * 16 * 16 * (1 + 2)


def test_what_just_does_not_fit_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Not "needs 1.0 times that": one byte beyond 24 GB is too much."""
    text = said("--parameters 1500000000", capsys)
    assert "\n24 GB   fits " in text
    text = said("--parameters 1500000001", capsys)
    assert "\n24 GB   does not fit: 1.000000001 times" in text
    assert " 1.0 times" not in text


def test_fp8_training_takes_less_than_16_bits_and_its_terms_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    """8 bits for the inputs and the casts of the linear layers; all else as under autocast to 16 bits.

    What FlashAttention gave is kept twice, in 8 bits for the projection and in 16 for the backward pass.
    """
    amp, fp8 = (estimate("llama3-8b", precision=p).fullest for p in ("amp", "fp8"))
    assert fp8.total < amp.total
    assert fp8.states == amp.states
    tokens, h, f, layers = 8192, 4096, 14336, 32
    assert amp.device["activations"] - fp8.device["activations"] == layers * tokens * (3 * h + f - 2 * h)
    inside = layers * (2 * h * h + 2 * h * 1024 + 3 * h * f + 2 * h)
    assert fp8.temporary["8-bit casts of the layers' weights"] == inside
    assert fp8.temporary["16-bit casts of the weights"] == 2 * (fp8.elements - inside)
    sharded = [estimate("llama3-8b", gpus=8, zero=3, precision=p).fullest.temporary for p in ("amp", "fp8")]
    assert sharded[1] == sharded[0] | {"8-bit casts of the layers' weights": 2 * inside // layers}
    assert "8-bit casts" in said("--preset gpt2 --precision fp8", capsys)


@pytest.mark.parametrize(
    ("words", "text"),
    [("--preset gpt2 --theme dark", "fplab: --theme is of a figure; give --out FILE with it."),
     ("--preset gpt2 --no-dropout", "fplab: --no-dropout is of a transformer with --layers, --hidden, ...; "
                                    "--preset gpt2 has no such choice."),
     ("--parameters 7B --kv-heads 2", "fplab: --kv-heads is of a transformer with --layers, --hidden, ...; "
                                      "--parameters 7B has no such choice."),
     ("--gated", "fplab: a transformer needs --layers, --hidden, --heads, --vocabulary, --sequence too."),
     ("--layers 99999999999 --hidden 8 --heads 2 --vocabulary 16 --sequence 4",
      "layers=99999999999 is not possible; allowed: 1 to 4096."),
     ("--layers 2 --hidden 274877906944 --heads 274877906944 --vocabulary 16 --sequence 4 --gpus 3 --tensor 3",
      "tensor=3 does not divide heads=274877906944 of transformer; allowed: 1, 2, 4, 8, "),
     ("", "fplab: say which model, in one way: --preset NAME, --parameters N, or --layers --hidden --heads ..."),
     ("--preset gpt2 --layers 3", "fplab: say which model, in one way: "),
     ("--layers 4 --hidden 64", "fplab: a transformer needs --heads, --vocabulary, --sequence too."),
     ("--preset gpt4", "fplab: unknown preset 'gpt4'. Allowed: gpt2, gpt2-xl, gpt3, bloom-176b, "),
     ("--preset gpt2 --chunk-budget -1", "chunk_budget=-1 is not possible; allowed: 0 or more."),
     ("--preset gpt2 --gpus many",
      "fplab memory: argument --gpus: invalid int value: 'many'. See fplab memory --help."),
     ("--preset gpt2 --out a.pdf", "fplab: --out 'a.pdf' is no figure; allowed: a name that ends in .svg or .png.")],
)  # fmt: skip
def test_what_is_refused(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["memory", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
    assert len(captured.err.splitlines()) == 1


def test_many_stages_take_no_time_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Each asked for the layers of all of them again: minutes."""
    shape = "--layers 4096 --hidden 8 --heads 2 --vocabulary 16 --sequence 4"
    start = time.perf_counter()
    assert "4096 GPUs (pipeline 4096)" in said(f"{shape} --gpus 4096 --pipeline 4096", capsys)
    assert time.perf_counter() - start < 60


def test_a_table_is_no_wider_than_a_line_that_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "2000000000")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    words = "--preset llama3-405b --gpus 1099511627776 --zero 3 --partition tensors --recompute full"
    assert max(map(len, said(words, capsys).splitlines())) <= 120
