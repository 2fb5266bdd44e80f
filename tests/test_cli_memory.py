"""``fplab memory``: tables, JSON, figures, and what it says to requests it cannot honour."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fplab import cli
from fplab.errors import LabError
from fplab.memory import estimate


def said(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["memory", *words.split()]) == 0
    return capsys.readouterr().out


def test_bloom_in_int8(capsys: pytest.CaptureFixture[str]) -> None:
    text = said("--preset bloom-176b --inference int8", capsys)
    assert text.startswith("bloom-176b, 176,247,271,424 parameters, inference in int8, 1 x 2,048 tokens, 1 GPU\n")
    assert f"parameters           179,893,116,928     179.89     167.54  {38 * '█'}\n" in text
    assert "80 GB   needs 2.4 times that      at least 4 GPUs = 320 GB\n" in text


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


def trained(stopped: int = -1) -> tuple[dict[str, np.ndarray], object]:
    """Made-up results of the training experiment: top-1 by policy and seed."""
    from fplab.experiments import formats_in_training

    top1 = np.linspace(0.95, 0.96, 7 * 4).reshape(7, 4)
    if stopped >= 0:
        top1[stopped, 1] = np.nan
    return {"digits_top1": top1, "digits_baseline": np.linspace(0.94, 0.97, 12)}, formats_in_training.QUICK


def test_bytes_and_accuracy_are_one_figure() -> None:
    from fplab.experiments.memory_measured.joined import bytes_and_accuracy, estimates

    found = estimates("llama3-8b", gpus=8, zero=2, recompute="full")
    assert found["tf32"].total == found["fp32"].total
    assert found["bf16"].fullest.states == found["fp32"].fullest.states == 2 * found["pure_bf16"].fullest.states
    assert found["bf16"].fullest.device["activations"] < found["fp32"].fullest.device["activations"]
    figure = bytes_and_accuracy("llama3-8b", trained=trained(5), gpus=8, zero=2)
    left, right = figure.get_axes()[:2]
    names = [text.get_text() for text in left.get_yticklabels()]
    assert names == ["FP32", "TF32", "FP16, loss scale", "BF16", "FP8 hybrid", "pure FP16", "pure BF16"]
    said = [text.get_text() for text in right.texts]
    assert said.count("within") == 5
    assert "a run did not come to its end" in said
    with pytest.raises(LabError, match=r"unknown recipe 'fp4'. Allowed: fp32, tf32, fp16, "):
        estimates("gpt2", ["fp4"])
    with pytest.raises(LabError, match="precision= and inference= are no options here"):
        estimates("gpt2", precision="bf16")


def test_the_joined_figure_is_drawn_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fplab.experiments import formats_in_training

    monkeypatch.setattr(formats_in_training, "run", lambda params, tick: trained()[0])
    said(f"--preset gpt2 --gpus 2 --zero 1 --accuracy --out {tmp_path / 'both.png'}", capsys)
    assert (tmp_path / "both.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--preset gpt2 --accuracy", "fplab: --accuracy draws all precisions that were trained: give --out, no --prec"),
        ("", "fplab: say which model, in one way: --preset NAME, --parameters N, or --layers --hidden --heads ..."),
        ("--preset gpt2 --layers 3", "fplab: say which model, in one way: "),
        ("--layers 4 --hidden 64", "fplab: a transformer needs --heads, --vocabulary, --sequence too."),
        ("--preset gpt4", "fplab: unknown preset 'gpt4'. Allowed: gpt2, gpt2-xl, gpt3, bloom-176b, "),
        ("--preset gpt2 --gpus 0", "gpus=0 is not possible; allowed: 1 to "),
        (
            "--preset gpt2 --gpus many",
            "fplab memory: argument --gpus: invalid int value: 'many'. See fplab memory --help.",
        ),
        (
            "--preset gpt2 --out who.pdf",
            "fplab: --out 'who.pdf' is no figure; allowed: a name that ends in .svg or .png.",
        ),
        ("--preset gpt2 --gpus 5 --tensor 5", "tensor=5 does not divide heads=12 of gpt2; allowed: 1, 2, 3, 4, 6, 12."),
    ],
)
def test_what_is_refused(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["memory", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
    assert len(captured.err.splitlines()) == 1
