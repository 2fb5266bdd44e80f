"""Planted faults are found and named, attributions sum to the whole, hybrids are the runs that they stand for."""

from __future__ import annotations

import copy
import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import itself, refuses
from torch import nn
from torch.nn import functional

from fplab.errors import LabError
from fplab.nn import Recipe, Way, emulate, explain
from fplab.nn.diagnose.explain import logits
from fplab.nn.diagnose.explain_report import LOST
from fplab.nn.diagnose.hybrids import Hybrids
from fplab.nn.recipes import fp8_delayed
from fplab.tensorcore import Plan


class Norm(nn.Module):
    """Layer normalisation in FP16, whose epsilon must be in its range."""

    def __init__(self, width):
        super().__init__()
        self.eps, self.weight = 1e-4, nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = x.half() - x.half().mean(-1, keepdim=True)
        return ((x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()) * self.weight.half()).float()


class Pool(nn.Module):
    """A mean over the tokens that is added to each, summed in FP32 or in FP16."""

    half = False

    def forward(self, x):
        terms = x.half() if self.half else x
        total = terms[:, 0]
        for i in range(1, x.shape[1]):
            total = total + terms[:, i]
        return x + total.float().unsqueeze(1) / x.shape[1]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.pool = Norm(width), Pool()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.pool(x + self.down(functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, width=32, blocks=3):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, width), nn.Linear(width, 16, bias=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        for part in (self.embed, *(block.down for block in self.blocks)):
            nn.init.normal_(part.weight, std=0.02)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Attentive(nn.Module):
    """Causal attention as GPT-2's, with its own products between its layers."""

    def __init__(self, width=16):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(found.transpose(1, 2).flatten(2))


class Residual(nn.Module):
    """A residual block, its activation in place."""

    def __init__(self):
        super().__init__()
        self.conv, self.batch, self.relu = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.batch(self.conv(x)) + x)


class Experts(nn.Module):
    """A mixture of experts: each token goes to the one that its router prefers."""

    def __init__(self, width=16):
        super().__init__()
        self.router, self.experts = nn.Linear(width, 4), nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        rows = x.flatten(0, 1)
        weight, chosen = self.router(rows).softmax(-1).max(-1)
        found = torch.zeros_like(rows)
        for i, expert in enumerate(self.experts):
            found[chosen == i] = expert(rows[chosen == i]) * weight[chosen == i, None]
        return x + found.view_as(x)


def of(seed, make=Net):
    torch.manual_seed(seed)
    return make().eval()


def tokens(seed, shape=(2, 6)):
    return torch.randint(16, shape, generator=torch.Generator().manual_seed(seed))


def loss(model, batch):
    found = model(batch)[:, :-1].flatten(0, 1)
    return functional.cross_entropy(found, batch[:, 1:].flatten())


def quietly(model, batch, a, b, output=None, **given):
    return explain(model, batch, a, b, output, progress=str, **given)


H100 = {"gpu": "H100", "inputs": "bf16"}
FAULTS = ("e4m3", "epsilon", "sum", "split_k")


def planted(fault, seed):
    """A model, way b with one fault, its layer, and the name and value by which it must be named."""
    model, block = of(seed), int(np.random.default_rng(seed).integers(3))
    part = ("up", "down")[seed % 2]
    other = copy.deepcopy(model)
    if fault == "e4m3":
        layer = f"blocks.{block}.{part}"
        return model, {**H100, "layers": {layer: Recipe("e4m3", high="e4m3")}}, layer, ("recipe", "e4m3")
    if fault == "split_k":
        layer = f"blocks.{block}.{part}"
        return model, {**H100, "layers": {layer: Plan(split_k=2)}}, layer, ("plan", "Plan(split_k=2)")
    if fault == "epsilon":
        other.blocks[block].norm.eps = 1e-8
        return model, {**H100, "model": other}, f"blocks.{block}.norm", ("other", "1e-08")
    other.blocks[block].pool.half = True
    return model, {**H100, "model": other}, f"blocks.{block}.pool", ("operation", "_to_copy")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_named(fault, seed):
    model, way, layer, (name, value) = planted(fault, seed)
    found = quietly(model, tokens(seed), H100, way, loss if seed % 2 else None)
    assert [row.layer for row in found.rows] == [layer]
    assert found.largest.causes[name][1] == value
    assert found.largest.own > 0
    assert found.first.layer == layer
    assert found.first.unlike[name][1] == value
    assert found.largest.alone == found.largest.back == pytest.approx(found.whole, rel=1e-12)
    other = found.largest.causes[name][0].replace("-", "none")
    said = " ".join(str(found.text).split())
    verdict = f"Largest part of the difference: {layer}, 100% ("
    assert said.startswith(verdict if found.whole else "Both ways give equal outputs; layers that differ by them")
    assert f"{name}: {other} in a, {value} in b" in said


@pytest.mark.parametrize("make", [Attentive, Residual, Experts])
def test_attributions_sum_to_the_whole_with_their_rest(make):
    batch = torch.randn((2, 3, 8, 8) if make is Residual else (2, 5, 16), generator=torch.Generator().manual_seed(1))
    found = quietly(of(0, make), batch, {"gpu": "A100", "inputs": "bf16"}, {"gpu": "H100", "inputs": "fp16"})
    assert found.faithful == (True, True)
    assert found.whole > 0
    for name, rest in zip(("alone", "back", "effect"), found.rest, strict=True):
        assert math.fsum([*(getattr(row, name) for row in found.rows), rest]) == pytest.approx(found.whole, rel=1e-14)
    assert abs(found.rest[2]) < 0.2 * found.whole
    layers = {Attentive: {"qkv", "Attentive", "out"}, Residual: {"conv"}}.get(make)
    assert layers is None or {row.layer for row in found.rows} == layers
    assert {s.name for s in found.settings} == {"gpu", "inputs"}
    inputs = next(s for s in found.settings if s.name == "inputs")
    assert inputs.alone == pytest.approx(found.whole, rel=0.2)


def test_a_hybrid_is_the_run_that_it_stands_for():
    model, batch = of(0), tokens(0)
    fp8 = Recipe("e4m3", high="e4m3")
    found = quietly(model, batch, H100, {**H100, "layers": {"*.up": fp8}}, loss)
    with torch.no_grad():
        ends = []
        for layers in ({}, {"blocks.1.up": fp8}, {"blocks.0.up": fp8, "blocks.2.up": fp8}, {"*.up": fp8}):
            with emulate(**H100, layers=layers):
                ends.append(float(loss(model, batch)))
    row = next(row for row in found.rows if row.layer == "blocks.1.up")
    assert (row.alone, row.back) == (ends[1] - ends[0], ends[3] - ends[2])
    assert found.ends == (ends[0], ends[3])
    assert found.whole == ends[3] - ends[0]
    assert {row.layer for row in found.rows} == {f"blocks.{i}.up" for i in range(3)}


def test_layers_without_a_difference_of_their_own_change_nothing():
    model, batch = of(3), tokens(3)
    ways = Way(**H100), Way(**H100, layers={"blocks.0.up": Plan(split_k=2), "head": Plan(accumulators=2)})
    found = quietly(model, batch, *ways)
    whole = Hybrids(model, batch, ways, logits)
    base = whole.run(lambda _: 0)
    for layer in whole.layers:
        same = torch.equal(whole.run(lambda one, it=layer: int(one == it)), base)
        assert same or layer in {row.layer for row in found.rows}


def test_models_of_other_dtypes_and_contexts_are_ways():
    model, batch = of(0, Attentive), torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(2))
    halves = {"model": copy.deepcopy(model).bfloat16()}

    def output(one, x):
        return one(x.to(next(one.parameters()).dtype)).float()

    found = quietly(model, batch, {}, halves, output)
    assert {"norm", "qkv", "out", "Attentive"} <= {row.layer for row in found.rows}
    assert all("weights" in row.causes for row in found.rows if row.layer in ("qkv", "out"))
    assert abs(found.rest[0]) < found.whole
    assert found.faithful == (True, True)
    cast = quietly(model, batch, Way(), Way(around=lambda: torch.autocast("cpu", torch.bfloat16)))
    assert {"qkv", "out"} <= {row.layer for row in cast.rows}
    assert cast.faithful == (True, True)
    assert cast.first.layer == "qkv"
    assert not any(cast.first.traces)
    refuses(lambda: cast.first.figure(), "no matrix product in both ways")


def test_rows_at_a_time_are_the_same_where_the_plan_is():
    model, batch = of(1), tokens(1, (4, 6))
    found = quietly(model, batch, H100, {**H100, "rows": 1})
    assert (found.rows, found.whole, found.first) == ((), 0, None)
    assert str(found) == "Both ways give the same bits."
    split = quietly(model, batch, H100, {**H100, "rows": 2, "plan": Plan(split_k=2)})
    assert {s.name for s in split.settings} == {"rows", "plan"}
    alone = {s.name: s.alone for s in split.settings}
    assert alone["rows"] == 0
    assert alone["plan"] == pytest.approx(split.whole, rel=1e-12)
    refuses(lambda: quietly(model, batch, H100, {**H100, "rows": 3}), "rows=3 does not divide the batch of 4")


class Turned(nn.Module):
    """Its angles are the same for all rows, and given for one."""

    class Angles(nn.Module):
        def forward(self, x, positions):
            return (positions[..., None] / 2.0 ** torch.arange(x.shape[-1])).to(x.dtype).cos()

    def __init__(self):
        super().__init__()
        self.angles, self.out = Turned.Angles(), nn.Linear(8, 8)

    def forward(self, x):
        return self.out(x * self.angles(x, torch.arange(x.shape[1])[None]))


@pytest.mark.parametrize("rows", [1, 2])
def test_what_a_layer_gives_once_for_all_rows_is_no_difference(rows):
    batch = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))
    found = quietly(of(0, Turned), batch, H100, {**H100, "rows": rows})
    assert str(found) == "Both ways give the same bits."


@pytest.mark.parametrize("given", [{"plan": Plan(split_k=2)}, {"plan": Plan(split_k=2, accumulators=2)},
                                   {"plan": Plan(stream_k=3, tile=(16, 16, 16))}, {"recipe": "fp8_current"},
                                   {"recipe": "fp8_block"}, {"gpu": "A100"}])  # fmt: skip
def test_the_stepper_opens_on_the_element_in_the_unit_s_bits(given):
    model, batch = of(0), tokens(0)
    found = quietly(model, batch, H100, {**H100, **given} if "recipe" not in given else {"gpu": "H100", **given})
    first = found.first
    assert first.layer == "blocks.0.up"
    x, y = (traces for traces in first.traces)
    assert len(x) == 1
    assert all(len(t.steps) for t in (*x, *y))
    with torch.no_grad():
        block = model.blocks[0]
        operand = block.norm(model.embed(batch)).bfloat16().float().flatten(0, 1)
        weight = block.up.weight.bfloat16().float()
    exact = (operand.double() @ weight.double().T).reshape(2, 6, -1).flatten(0, 1)
    row, column = first.place
    assert float(x[0].exact) == float(exact[row, column])
    total = math.fsum(float(t.exact) for t in y)
    if "recipe" not in given:
        assert total == pytest.approx(float(exact[row, column]), rel=1e-15)
        with torch.no_grad(), emulate("H100", "bf16"):
            assert float(np.float32(x[0].result) + np.float32(block.up.bias[column])) == first.values[0]
    assert len(first.figure().axes) == 2
    assert first.bits[0] != first.bits[1]
    assert first.bits[0] == f"0x{int(np.float32(first.values[0]).view(np.uint32)):08x}"
    assert first.differing <= first.elements == 12 * 64


def test_the_most_by_own_difference_are_tried_and_the_rest_says_so():
    ways = H100, {"gpu": "H100", "inputs": "fp16"}
    every = quietly(of(0), tokens(0), *ways)
    found = quietly(of(0), tokens(0), *ways, most=2)
    largest = sorted(every.rows, key=lambda row: -row.own)[:2]
    assert sorted(row.layer for row in found.rows) == sorted(row.layer for row in largest)
    assert found.left == len(every.rows) - 2 + 1  # and what the output does itself
    assert f"{found.left} layers with the smallest own difference were not tried" in str(found)


def test_the_model_is_left_as_it_was():
    model = of(0, Residual).train()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    inside, state = dict(model.__dict__), torch.get_rng_state()
    quietly(model, torch.randn(2, 3, 8, 8), H100, {"gpu": "A100", "inputs": "bf16"})
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert dict(model.__dict__) == inside
    assert "forward" not in model.conv.__dict__
    torch.set_rng_state(state)


def test_files_hold_the_numbers_in_full(tmp_path):
    found = quietly(of(0), tokens(0), H100, {"gpu": "A100", "inputs": "bf16"})
    found.save(tmp_path)
    names = ["explain.csv", "explain.html", "explain.json", "explain.png", "explain.txt", "first.png"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    table = list(csv.DictReader(io.StringIO((tmp_path / "explain.csv").read_text())))
    assert [float(line["alone"]) for line in table] == [row.alone for row in found.rows]
    held = json.loads((tmp_path / "explain.json").read_text())
    assert held["rest"] == list(found.rest)
    assert held["first"]["bits"] == list(found.first.bits)
    assert (tmp_path / "explain.txt").read_text() == f"{found}\n"
    (axes,) = found.figure("dark").axes
    labels = [y.get_text() for y in axes.get_yticklabels()]
    assert labels == [*(row.layer for row in found.rows), "rest", "whole"]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths[: len(found.rows)] == [row.alone for row in found.rows]
    assert all(y.get_fontsize() >= 9 for y in axes.get_yticklabels())


def test_a_way_goes_on_from_the_state_of_delayed_scaling():
    model, batch = of(0), tokens(0)
    delayed = {"gpu": "H100", "recipe": fp8_delayed(amax_history_len=4)}
    with emulate(**delayed) as run:
        for _ in range(2):
            logits(model, batch).square().mean().backward()
    with torch.no_grad(), emulate(**delayed, state=run):
        want = float(logits(model, batch).square().mean())

    def explained(**given):
        ways = {"gpu": "H100", "recipe": "fp8_current"}, Way(**delayed, **given)
        return quietly(model, batch, *ways, lambda m, x: logits(m, x).square().mean())

    found = explained(state=run)
    assert found.ends[1] == want
    assert found.faithful == (True, True)
    assert "state={'step': 2, ...}" in found.ways[1]
    assert explained(state=run.state_dict()).ends[1] == want
    with pytest.warns(UserWarning, match="begins delayed scaling without a history"):
        assert explained().ends[1] != want
    with pytest.raises(LabError, match=r"this is no state of an emulation; pass what state_dict\(\) gave"):
        Way(**delayed, state={"step": 2})


def compiled_in_part():
    model = of(0)
    model.blocks[1].compile(backend="eager")
    return model


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: explain(3, tokens(0), {}, H100), r"model is a int; pass a torch\.nn\.Module"),
        (lambda: explain(of(0), tokens(0), {}, H100, 3), r"output is a int; pass a function output\(model, batch\)"),
        (lambda: explain(of(0), tokens(0), 3, H100), r"a is a int; pass Way\(gpu='H100'\) or a mapping"),
        (lambda: explain(of(0), tokens(0), {}, {"gpus": "H100"}), "unknown setting of a way 'gpus'"),
        (lambda: explain(of(0), tokens(0), {}, {"tensor_parallel": 0}), "tensor_parallel=0 is not possible"),
        (lambda: explain(of(0), tokens(0), {}, {"expert_parallel": 0}), "expert_parallel=0 is not possible"),
        (lambda: explain(of(0), tokens(0), {}, {"sequence_parallel": True}), "sequence_parallel=True without ranks"),
        (lambda: explain(nn.Linear(4, 2), torch.ones(3, 4), {}, {"tensor_parallel": 2, "rowwise": ("",),
                                                                 "sequence_parallel": True}),
         "sequence_parallel=True with 2 ranks does not divide"),
        (lambda: explain(nn.Linear(5, 2), torch.ones(1, 5), {}, {"tensor_parallel": 2, "rowwise": ("",)}),
         "tensor_parallel=2 does not divide 5, a layer's inputs"),
        (lambda: explain(of(0), tokens(0), {}, {"rowwise": "down"}), r"rowwise='down' is one name; pass .* such"),
        (lambda: Way(rowwise=1), "rowwise=1"),
        (lambda: explain(of(0), tokens(0), {}, H100, most=0), "most=0 is not possible; allowed: 1 and more"),
        (lambda: explain(of(0), itself(), {}, H100), "batch holds itself"),
        (lambda: Way(model=3), r"model=int in a way; pass a torch\.nn\.Module"),
        (lambda: Way(around=3), "around=int; pass a function that makes a context manager"),
        (lambda: Way(rows=0), "rows=0"),
        (lambda: Way(recipe="nvfp4"), "has no unit"),
        (lambda: explain(of(0), tokens(0), {}, {"model": of(0, Residual)}),
         "the model of way b has no layer 'embed'"),
        (lambda: explain(torch.compile(of(0), backend="eager"), tokens(0), {}, H100), "a model is compiled, and torch"),
        (lambda: explain(of(0), tokens(0), {}, {"model": compiled_in_part()}), "explain the module before compiling"),
        (lambda: explain(of(0), tokens(0), {}, H100, lambda m, x: 3), "output gave a int; it must give a floating"),
        (lambda: explain(of(0), tokens(0), {}, H100, lambda m, x: x), "output gave a tensor of torch.int64"),
    ],
)  # fmt: skip
def test_errors_say_what_is_allowed(call, words):
    refuses(lambda: call(), words)


@pytest.mark.parametrize(("weight", "lost", "layers"), [(math.nan, (3, 3), ["0"]), (7e4, (3, 0), ["0", "1"])])
def test_of_outputs_that_are_not_finite_is_said_why_there_is_no_difference(
    weight: float, lost: tuple[int, int], layers: list[str], tmp_path: Path
) -> None:
    """No ``nan%`` of a layer, and no way is said to have other bits than its user's: a NaN is as any other."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), torch.randn(3, 8)
    with torch.no_grad():
        model[1].weight[0] = weight
    ways = {"gpu": "H100", "inputs": "fp16"}, {"gpu": "H100", "inputs": "bf16"}
    found = explain(model, x, *ways, progress=str)
    assert found.lost == lost
    assert (found.faithful, [row.layer for row in found.rows]) == ((True, True), layers)
    lines = str(found.text).splitlines()
    assert lines[0] == str(LOST.fill(n=3, a=lost[0], b=lost[1]))
    assert lines[1].startswith("First differing operation: addmm in 0 (unit: ")
    assert len(lines) == 2
    assert found.runs < 2 * len(layers) + 8  # none of what could only be NaN
    found.save(tmp_path)


class Writes(nn.Module):
    """A layer that writes to what it is given."""

    def forward(self, x):
        return x.add_(1 / 3).tanh()


def test_every_run_has_the_batch_as_it_was_given() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Writes(), nn.Linear(8, 2)), torch.randn(4, 8)
    before = x.clone()
    found = quietly(model, x, {}, H100)
    assert torch.equal(x, before)
    assert found.faithful == (True, True)
    with torch.no_grad():
        first = model(x.clone())
        with emulate(**H100):
            last = model(x.clone())
    assert found.whole == pytest.approx(float((last.double() - first).square().mean().sqrt()), rel=1e-12)


def test_states_of_recurrent_layers_are_not_cut_by_rows() -> None:
    """Their first dimension is none of the batch."""
    torch.manual_seed(0)
    net = nn.LSTM(8, 4, num_layers=2)

    def output(model, x):
        found, states = model(x)
        return torch.cat([part.flatten() for part in (found, *states)])

    found = quietly(net, torch.randn(4, 4, 8), {}, {"rows": 2}, output)
    assert str(found) == "Both ways give the same bits."
