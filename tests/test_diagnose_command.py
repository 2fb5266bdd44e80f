"""``fplab survey``, ``explain`` and ``watch``: a stranger's model by its name, an answer in the terminal, its files."""

import csv
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fplab import cli
from fplab.columns import WIDE
from fplab.language import speaking

BUILD = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.Linear(32, 4))
    return model, [(torch.randn(8, 16), torch.randint(4, (8,)))]

def own_loss():
    model, batches = build()
    return model, batches, lambda model, batch: (model(batch[0]).square().mean(), model(batch[0]))

def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Conv1d(16, 16, 1), layer, nn.Flatten(), nn.Linear(256, 4))
    return model, [(torch.randn(8, 16, 16), torch.randint(4, (8,))) for _ in range(2)]

class Answer:
    def __init__(self, loss):
        self.loss = loss

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, y):
        return Answer(((self.layer(x) - y) ** 2).mean())

def with_loss():
    return Own(), {"x": torch.ones(2, 4), "y": torch.zeros(2, 4)}

def one(approximate="none"):
    model, ((x, _),) = build()
    model[1] = nn.GELU(approximate)
    return model(x)

def other():
    return one("tanh")

def no_batches():
    return nn.Linear(2, 2), []

def nothing():
    return 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "strangers_model.py").write_text(BUILD)
    os.mkfifo(tmp_path / "pipe.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "strangers_model", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", ["strangers_model:build", "strangers_model.py:build", "strangers_model:own_loss"])
def test_a_survey_says_what_to_take_and_a_line_a_layer_worst_first(here: Path, name: str, capsys: Any) -> None:
    assert cli.main(["survey", name, "--gpu", "B200", "--recipes", "mxfp8", "nvfp4", "--out", "out"]) == 0
    text = capsys.readouterr().out
    assert re.match(r"(Recommended|No assignment)", text)
    head, *more = text.split("\n\n")[1].splitlines()
    lines = list(itertools.dropwhile(lambda line: not line.startswith("---"), more))[1:]
    assert head.split()[:4] == ["layer,", "worst", "first", "take"]
    assert sorted(line.split()[0] for line in lines) == ["0", "2", "3"]
    effects = [max(abs(float(x)) for x in re.findall(r"[+-]\d\.\de[+-]\d\d", line)) for line in lines]
    assert effects == sorted(effects, reverse=True)
    found = json.loads((here / "out/survey.json").read_text())
    assert found["gpu"] == "B200"
    page = (here / "out/survey.html").read_text(encoding="utf-8")
    rows = list(csv.reader((here / "out/survey.csv").read_text().splitlines()))
    assert page.count("<tr>") == len(rows)
    assert "<svg" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)


def test_explain_and_watch_answer_too(here: Path, capsys: Any) -> None:
    ways = ["--a", "gpu=A100", "inputs=fp16", "--b", "gpu=H100", "inputs=fp16", "split_k=2"]
    assert cli.main(["explain", "strangers_model:build", *ways]) == 0
    assert "plan: one chain in a, Plan(split_k=2) in b" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["explain", "strangers_model:one", "strangers_model:other"]) == 0
    assert "approximate: none in a, tanh in b" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["watch", "strangers_model:with_loss", "--steps", "3", "--recipes", "mxfp8"]) == 0
    assert capsys.readouterr().out.startswith("Own with AdamW: 3 steps")
    foretold = ["--steps", "8", "--recipes", "fp8_delayed", "--horizon", "99"]
    assert cli.main(["watch", "strangers_model:with_loss", *foretold]) == 0
    assert "Own: 8 steps watched, 99 to come to." in capsys.readouterr().out
    assert (here / "watch/forecast.html").exists()
    files = {path.name for path in [*(here / "explain").iterdir(), *(here / "watch").iterdir()]}
    assert {"explain.html", "explain.json", "watch.html", "watch.csv"} <= files


def test_a_survey_says_how_far_batches_differ_and_what_a_recipe_leaves_out(here: Path, capsys: Any) -> None:
    words = ["survey", "strangers_model:encoder", "--recipes", "fp8_current", "mxfp8", "--fallback", "bf16"]
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert len(re.findall(r"[+-]\d\.\de-\d\d ± \de-\d\d", text)) >= 9
    said = " ".join(text.split())
    assert "of a model, fp8_current has scope transformer_engine, which leaves in high precision: * 0: class" in said
    assert "* 3: output head (the last layer), which scope transformer_engine leaves out" in said
    assert "±: the standard deviation over the batches." in said
    assert "no operand is a weight" not in said  # high in the survey, too
    held = json.loads((here / "survey/survey.json").read_text())
    assert [layer for layer, _ in held["scoped"]["fp8_current"]["layers"]] == ["0", "3"]


def test_explain_begins_with_the_verdict_and_watch_says_what_it_does_not_measure(here: Path, capsys: Any) -> None:
    ways = ["--a", "gpu=H100", "inputs=bf16", "--b", "gpu=H100", "recipe=fp8_current"]
    assert cli.main(["explain", "strangers_model:encoder", *ways]) == 0
    captured = capsys.readouterr()
    said = " ".join(captured.out.split())
    assert re.match(r"Largest part of the difference: 1\.\S+, \d+% \(unit: H100 wgmma", said)
    assert "The recipe of way b leaves in high precision: * 0: class Conv1d;" in said
    assert "Warning" not in captured.err
    assert cli.main(["watch", "strangers_model:encoder", "--steps", "2", "--recipes", "fp8_current"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "not measured: * 0: a Conv1d, and only linear layers are measured" in said
    assert "* 1.self_attn.out_proj: its weight is multiplied, if at all, without a call of the layer" in said
    held = json.loads((here / "watch/watch.json").read_text())
    assert {row["layer"] for row in held["products"]} | set(held["unmeasured"]) == {
        "0", "1.linear1", "1.linear2", "1.self_attn", "1.self_attn.out_proj", "3"
    }  # fmt: skip


@pytest.mark.parametrize("what", ["explain", "survey", "watch"])
def test_chinese_has_no_space_between_chinese_and_no_english_but_names(here: Path, what: str, capsys: Any) -> None:
    ways = {
        "explain": ["--a", "gpu=H100", "inputs=bf16", "--b", "gpu=H100", "recipe=fp8_current"],
        "survey": ["--recipes", "fp8_current"], "watch": ["--steps", "2", "--recipes", "fp8_current"],
    }  # fmt: skip
    with speaking("zh"):
        assert cli.main([what, "strangers_model:encoder", *ways[what]]) == 0
    text = capsys.readouterr().out
    assert not re.search(f"(?<={WIDE}) (?={WIDE})|{WIDE} ?[(]", re.sub("[ ]{2,}", "|", text))
    assert not re.search(r"\b(in a|in b|none|unit|recipe|plan|layer|layers)\b", text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["survey", "strangers_model"],
            "the model 'strangers_model' is not possible; allowed: MODULE:NAME or FILE.py:",
        ),
        (["survey", "strangers_model:bild"], "the model 'strangers_model:bild' cannot be imported"),
        (["survey", "no_such_file.py:build"], "the model 'no_such_file.py:build' cannot be imported"),
        (["survey", "strangers_model:nothing"], "the model 'strangers_model:nothing' gives 3; allowed: MODULE:NAME"),
        (["survey", "strangers_model:build", "--recipes", "nvpf4"], "Did you mean 'nvfp4'"),
        (["survey", "strangers_model:build", "--recipes", "fp8"], "fp8_block. Did you mean"),  # bf16 once
        (["survey", "strangers_model:build", "--recipes", "mxfp8"], "GPUs that have one: B200, RTXPRO6000. Software"),
        (["explain", "strangers_model:build", "--a", "gpu"], "--a gpu is not possible; allowed: NAME=VALUE"),
        (["explain", "nowhere", "strangers_model:one"], "nowhere/rank-0.json holds no dump that fplab can read: No"),
        (["explain", "strangers_model:build", "--b", "gpus=H100"], "unknown setting of a way 'gpus'"),
        (["explain", "strangers_model:build", "--b", "compiled=yes"], "compiled='yes' is not possible; allowed: True"),
        (["survey", "pipe.py:build"], "cannot be imported (OSError: [Errno 22] it is no regular file: "),
        *(([what, "strangers_model:no_batches"], "gives (Linear(") for what in ("survey", "explain", "watch")),
        *((["watch", "strangers_model:build", "--rate", rate], f"--rate {rate} is not") for rate in ("nan", "inf")),
        (["watch", "strangers_model:build", "--steps", "0"], "--steps=0 is not possible; allowed: 1 to"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(here: Path, words: list[str], said: str, capsys: Any) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in " ".join(captured.err.split())


def test_a_refusal_that_ends_a_script_shows_its_own_lines_and_the_sentence(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import fplab\n\ndef f():\n    fplab.quantize(1.0, 'fp12')\n\nf()\n")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    frames = re.findall(r'File "([^"]*)"', ended.stderr)
    assert frames == [str(script)] * 2
    said = ended.stderr.splitlines()[-1]
    assert said.startswith("fplab.errors.LabError: fplab.quantize(1.0, 'fp12'): unknown format 'fp12'")


def test_a_browser_sorts_the_rows_of_a_report(here: Path, chromium: Any) -> None:
    assert cli.main(["survey", "strangers_model:build", "--out", "out"]) == 0
    page = chromium.new_page(viewport={"width": 390, "height": 800})
    page.goto((here / "out/survey.html").as_uri())
    heads = page.locator("th").all_inner_texts()
    page.locator("th").nth(heads.index("effect")).click()
    shown = page.locator(f"tbody td:nth-child({heads.index('effect') + 1})").all_inner_texts()
    values = [float(x) for x in shown if x not in ("", "nan")]
    assert values == sorted(values, reverse=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()
