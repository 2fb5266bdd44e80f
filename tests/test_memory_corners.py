"""Corners of the calculator: what used to be left out in silence, and numbers that did not agree with each other."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fplab import cli
from fplab.errors import LabError
from fplab.memory import Model, Options, Tensor, Transformer, build, estimate, report, smallest, stages
from fplab.memory.measuring import Trainer, measured_step
from fplab.memory.units import shown

SMALL = Transformer("small", 6, 64, 4, 100, 32)
GPT = Transformer("gpt", 2, 32, 4, 50, 16)
TOKENS = torch.arange(3 * 17).reshape(3, 17) * 7 % 50


# --- what is off-loaded -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("offload", ["optimizer", "parameters"])
def test_what_crosses_the_link_is_what_lies_beyond_it(zero: int, offload: str) -> None:
    """Gradients go where they are updated, once a micro-batch; weights that live there come twice in each."""
    n, data, m = 1000, 4, 3
    rank = estimate(n, gpus=data, zero=zero, offload=offload, micro_batches=m).fullest
    updated, kept = n // (data if zero >= 1 else 1), n // (data if zero == 3 else 1)
    weights = {"parameters": 2 * kept} if offload == "parameters" else {}
    assert rank.states == (0 if weights else 2 * kept)  # ZeRO-Offload leaves the 16-bit weights
    assert rank.host == {**weights, "gradients": 2 * updated, "master": 4 * updated, "states": 8 * updated}
    moved = {t.what: t.sent for t in rank.traffic if t.collective == "host"}
    wanted = {"gradients to CPU memory": m * 2 * updated, "updated parameters from CPU memory": 2 * updated}
    assert moved == wanted | ({"parameters from CPU memory": 2 * m * 2 * kept} if weights else {})
    assert [t.times for t in rank.traffic if t.what == "gradients"] == [m]


def test_chunks_hold_accumulated_gradients_and_the_maxima_of_8_bit_states() -> None:
    options = {"offload": "chunks", "chunk_elements": 10**6, "chunk_budget": 10**12}
    n = 16 * 10**6
    plain = estimate(n, **options).fullest.device
    wide = estimate(n, **options, precision="mixed+fp32grads").fullest.device
    assert (plain["gradients"], wide["gradients"]) == (0, 4 * n)
    assert estimate(n, **options, optimizer="sgd").fullest.device["states"] == 0
    blocks = 16 * -(-(10**6) // 2048)
    assert estimate(n, **options, optimizer="adamw8bit", block=2048).fullest.device["states"] == 2 * (n + 4 * blocks)


def test_the_command_line_says_what_chunks_may_take(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--preset gpt2 --offload chunks --chunk-budget 1000000000 --json"
    assert cli.main(["memory", *words.split()]) == 0
    found = json.loads(capsys.readouterr().out)
    rank = estimate("gpt2", offload="chunks", chunk_budget=10**9).fullest
    assert found["stages"][0]["device"] == rank.device
    assert 2 * 64 * 2**20 < rank.states <= 10**9
    assert sum(rank.host.values()) > 0
    assert "fewest (more data-parallel ranks, which share the chunks)" in estimate("gpt2", offload="chunks").table()


# --- modules ------------------------------------------------------------------------------------------------------
def test_a_pipelines_last_stage_copies_a_tied_embedding_of_a_module() -> None:
    """As that of the configuration does, and wherever the tied tensor stands in the embedding."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions, self.words = nn.Embedding(7, 4), nn.Embedding(10, 4)
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.out = nn.Linear(4, 10, bias=False)
            self.out.weight = self.words.weight

    found = estimate(Late(), gpus=3, pipeline=3)
    assert found.parameters == 28 + 40 + 3 * 20
    assert [rank.elements for rank in found.stages] == [28 + 40 + 20, 20, 20 + 40]
    free = Late()
    free.out.weight = nn.Parameter(torch.zeros(10, 4))
    assert [rank.elements for rank in estimate(free, gpus=3, pipeline=3).stages] == [28 + 40 + 20, 20, 20 + 40]
    assert estimate(free).parameters == found.parameters + 40
    for sharing in ("layers", "embedding", "embedding and layer"):  # none of it is the head's
        shared = Late()
        shared.out = nn.Linear(4, 1)
        if sharing == "layers":
            shared.layers[2].weight = shared.layers[0].weight
        elif sharing == "embedding":
            shared.positions = shared.words
        else:
            shared.layers[1].weight = shared.words.weight
        wanted = {
            "layers": [28 + 40 + 20, 20, 4 + 5],
            "embedding": [40 + 20, 20, 20 + 5],
            "embedding and layer": [28 + 40 + 20, 4, 20 + 5],
        }
        assert [rank.elements for rank in estimate(shared, gpus=3, pipeline=3).stages] == wanted[sharing]


@pytest.mark.parametrize("precision", ["fp32", "mixed", "bf16", "amp"])
def test_activations_are_traced_in_the_precisions_format(precision: str) -> None:
    """Of an FP32 module: what a real step in that precision holds, but for what a GPU keeps in FP32.

    That is the statistics of norms in 16 bits, and the softmax under autocast, which the CPU's has in BF16.
    """
    inputs = TOKENS[:, :-1], TOKENS[:, 1:]
    half = precision in ("mixed", "bf16")
    trainer = Trainer(build(GPT, dtype=torch.bfloat16 if half else torch.float32), precision, torch.optim.AdamW)
    step = measured_step(trainer, *inputs)
    real = step.kinds["activations"]
    tokens = inputs[0].numel()
    statistics = (2 * GPT.layers + 1) * 2 * tokens * 2 if half else 0
    softmax = GPT.layers * GPT.heads * tokens * GPT.sequence * 2 if precision == "amp" else 0
    rank = estimate(build(GPT, "meta"), inputs=inputs, precision=precision).fullest
    assert rank.device["activations"] == real + statistics + softmax
    assert set(rank.temporary) == {stages.PASSING}  # autocast's copies of the weights are among what is saved
    steps = 4 * len(trainer.weights)  # AdamW's counts, which step_counts= counts
    assert rank.total == step.peak - steps + statistics + softmax
    four = estimate(build(GPT, "meta"), inputs=inputs, precision=precision, gpus=4, zero=2)
    for name, device in report.bars(four)[1].items():
        zero = 0 if name == "DDP" else int(name[5])
        assert device == estimate(build(GPT), inputs=inputs, precision=precision, gpus=4, zero=zero).fullest.device


def test_the_fewest_gpus_of_a_traced_module_share_its_states() -> None:
    """Its activations stay whole, its states are divided; where the activations do not fit, no number is enough."""
    net = nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(10)))
    found = estimate(net, inputs=torch.zeros(100, 1000), zero=3, gpus=8)
    activations, passing = found.fullest.device["activations"], found.fullest.temporary[stages.PASSING]
    gathered = found.fullest.device["temporary"] - passing
    assert (activations, passing) == (9 * 100 * 1000 * 2, 100 * 1000 * 2)  # each layer's input; the output
    activations += passing
    shards = 16 * 10**7
    assert report.fewest(found, activations + shards) == 1
    assert report.fewest(found, activations + shards // 2 + gathered) == 2
    assert report.fewest(found, activations + shards // 2 + gathered - 1) == 3
    assert report.fewest(found, activations + gathered - 1) is None
    assert report.fewest(found, 0) is None
    least = smallest(net, activations + shards // 2 + gathered, zero=3, inputs=torch.zeros(100, 1000))
    assert least is not None
    assert (least.options.gpus, least.total) == (2, activations + shards // 2 + gathered)


# --- the loss of a module -----------------------------------------------------------------------------------------
def test_a_step_counted_by_hand() -> None:
    """Of the sum of y = x W: y, which is held; the loss and its gradient; a gradient of W beside the one there is."""
    net, x = nn.Linear(8, 16, bias=False), torch.zeros(5, 8)
    rank = estimate(net, inputs=x, loss=torch.sum, precision="fp32").fullest
    y, w = 5 * 16 * 4, 8 * 16 * 4
    assert rank.device["activations"] == 0
    assert rank.temporary == {stages.PASSING: y + 4 + 4 + w}
    alone = estimate(net, inputs=x, precision="fp32")
    assert alone.fullest.device["activations"] == 0
    assert alone.fullest.temporary == {stages.PASSING: y}
    assert "not counted: the loss and the whole backward pass" in alone.table()
    assert json.loads(alone.to_json())["activations"] == "traced, without a loss"


def test_a_loss_that_the_module_gives_is_found() -> None:
    class Scored(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            y = super().forward(x)
            return SimpleNamespace(loss=y.square().mean(), logits=y)

    class Loss(Scored):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x).loss

    x = torch.zeros(5, 8)
    given = estimate(Scored(8, 16), inputs=x, loss=lambda out: out.loss)
    for module in (Scored(8, 16), Loss(8, 16)):
        e = estimate(module, inputs=x)
        assert "not counted" not in e.table()
        assert e.fullest.device["activations"] == given.fullest.device["activations"]


@pytest.mark.parametrize("precision", ["fp32", "amp", "mixed"])
def test_a_loss_may_bring_its_own_labels(precision: str) -> None:
    """They are the caller's, as inputs are: a step is what it is with labels among the inputs."""

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 16)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.inner(x), labels)

    x, labels = torch.zeros(500, 8), torch.zeros(5, 100, dtype=torch.int64)
    inside = estimate(Scored(), inputs=(x, labels.flatten()), precision=precision).fullest
    module = nn.Linear(8, 16)
    rank = estimate(module, inputs=x, loss=lambda y: nn.functional.cross_entropy(y, labels.flatten()),
                    precision=precision).fullest  # fmt: skip
    output = 500 * 16 * (4 if precision == "fp32" else 2)
    assert rank.device["activations"] == inside.device["activations"]
    assert rank.temporary[stages.PASSING] == inside.temporary[stages.PASSING] + output  # which the caller holds


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": torch.sum}, r"loss=<.*sum.*> is not possible; allowed: a function .*, with inputs=\."),
        ({"loss": 3, "inputs": torch.zeros(2, 4)}, "loss=3 is not possible; allowed: a function"),
        ({"loss": torch.abs, "inputs": torch.zeros(2, 4)}, r"loss\(output\) gave a tensor of shape \(2, 4\)"),
        (
            {"loss": lambda y: None, "inputs": torch.zeros(2, 4)},
            r"loss\(output\) gave None; it must give a tensor of one",
        ),
    ],
)
def test_what_is_no_loss_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(LabError, match=words):
        estimate(nn.Linear(4, 4), **options)


# --- what the table says ------------------------------------------------------------------------------------------
def test_it_is_said_where_activations_are_not_counted() -> None:
    net = nn.Linear(4, 4)
    layer = (Tensor("w", (10, 8)),)
    cases = {
        "not counted: activations; they follow from the layers": estimate(10**9),
        "not counted: activations; give inputs=, the arguments": estimate(net),
        "not counted: activations; give inputs=": estimate(Model("own", (), (layer,), ())),
    }
    for text, e in cases.items():
        assert f"\n{text}" in e.table()
        assert json.loads(e.to_json())["activations"] == "not counted"
    formula, traced = estimate("gpt2"), estimate(net, inputs=torch.zeros(2, 4), loss=torch.sum)
    assert "\nnot counted: the papers' terms are Megatron's; the transformers library's module adds" in formula.table()
    assert "not counted" not in traced.table()
    for how, e in {"formula": formula, "traced": traced}.items():
        assert json.loads(e.to_json())["activations"] == how


def test_columns_never_touch() -> None:
    for line in estimate("gpt2", micro_batch=10**12, offload="optimizer").table().splitlines():
        if line.startswith(("parameters", "activations", "total")):
            name, *numbers = line.replace("█", " ").replace("▏", " ").rsplit(maxsplit=4)
            assert len(numbers) == 4, line
            assert float(numbers[1]) >= 0
            assert name.strip() in ("parameters", "activations", "total")
        if "times that" in line:
            assert "times that  " in line
    assert shown(4 * 10**17) == "400 PB"
    assert shown(4 * 10**18) == "4.00 EB"


def test_the_bars_take_what_a_terminal_leaves() -> None:
    e = estimate("gpt2")
    plain, narrow, none = (e.table(columns).splitlines()[2:9] for columns in (100, 80, 70))
    assert plain == e.table().splitlines()[2:9]
    assert max(map(len, narrow)) <= 80
    assert sum(line.count("█") for line in narrow) == 80 - 2 - len(none[0])
    assert "█" not in "".join(none)
    assert [line[: len(none[0])].rstrip() for line in narrow[1:]] == none[1:]


# --- what is refused ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "value"),
    [("zero", 3), ("offload", "optimizer"), ("recompute", "full"), ("precision", "bf16"), ("optimizer", "sgd"),
     ("micro_batches", 4), ("block", 64), ("step_counts", True), ("chunk_budget", 1), ("bucket", 0)],
)  # fmt: skip
def test_inference_refuses_what_belongs_to_training(name: str, value: object) -> None:
    with pytest.raises(LabError) as error:
        estimate("gpt2", inference="int8", **{name: value})
    assert f"{name}={value!r} belongs to training; inference='int8' has none of it." in str(error.value)
    assert estimate("gpt2", inference="int8", gpus=4, tensor=2, pipeline=2, micro_batch=3, sequence=100).total > 0
    assert Options(**{name: value})
