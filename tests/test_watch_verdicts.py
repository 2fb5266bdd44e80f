"""What a watch gives no verdict by: what FP32 itself does not resolve, layers without a finite value, broken runs."""

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import fplab
from fplab.nn import watch
from fplab.nn.diagnose import format_advice, format_counts

Tensor = torch.Tensor


pytestmark = pytest.mark.usefixtures("one_thread")


class Attention(nn.Module):
    """Causal attention whose query, key and value are layers of their own."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = (f(x).view(n, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(n, t, width))


def test_gradients_that_are_zero_in_theory_are_not_blamed_on_fp16():
    """The softmax of one key is 1, and the same added to each score changes nothing: what arrives is FP32's error."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(40, 32), Attention(), nn.LayerNorm(32), nn.Linear(32, 40))
    for parameter in model[1].parameters():
        nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    bias = []
    with watch(model, optimizer, every=1) as seen:
        for _ in range(6):
            tokens = torch.randint(40, (8, 17))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            bias.append(model[1].key.bias.grad.abs().max().item())
            optimizer.step()
    assert 0 < max(bias) < 2.0**-25  # not zero in FP32, and FP16 makes nothing of it
    found = seen.report()
    assert found.scales["fp16"].works
    assert not any("no single scale" in line for line in found.advice)
    assert any("lie below 2^-24 of their layer's largest" in line for line in found.notes)
    for key in (("activation gradients", "1.query"), ("weight gradients", "1.key")):
        raw = seen._tables.merged([key])
        needs = [
            format_advice.window([seen._tables.fates(t, seen.formats[0], s) for s in range(41)], found.limits).low
            for t in (format_counts.resolved(raw), raw)
        ]
        assert needs[0] < needs[1], key  # without the difference the scale is asked for what means nothing


def test_what_fp32_does_not_resolve_counts_as_zero_and_nothing_else_does():
    counts = format_counts.Tables([fplab.formats.get("fp16")])
    values = np.float32([2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 1.75, 0.0, math.inf])
    counts.add("weight gradients", "one", values.view(np.uint32))
    table = counts.merged([("weight gradients", "one")])
    exponents, found = format_counts.histogram(format_counts.resolved(table))
    assert exponents.tolist()[0] == -24
    assert found.sum() == 2
    assert format_counts.resolved(table)[format_counts.ZERO].sum() == 3
    assert format_counts.resolved(table).sum() == table.sum()
    nothing = counts.merged([])
    assert np.array_equal(format_counts.resolved(nothing), nothing)


def broken_run(kind: str) -> watch:
    """A step that learns, then a weight of NaN, or a first layer that never held a finite value."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    if kind == "never finite":
        with torch.no_grad():
            for parameter in model[0].parameters():
                parameter.fill_(math.nan)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    with watch(model, optimizer, every=1) as seen:
        for step in range(6):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 4)).square().mean()
            (loss * math.nan if kind == "breaks" and step == 4 else loss).backward()
            optimizer.step()
    return seen


def test_a_layer_that_held_no_finite_value_is_listed_as_fit_for_no_format():
    found = broken_run("never finite").report()
    rows = [r for r in found.rows if r.layer == "0"]
    assert rows
    assert not any(r.judged for r in rows)
    for bits, most in (("16", 1), ("8", 1)):
        lines = [line for line in found.advice if line.startswith(f"{bits} BITS")]
        assert not [line for line in lines if re.search(rf"of ([{most + 1}-9]) tensors", line)], lines
    assert found.advice[-1] == "NO VERDICT  0, 1: some tensors held infinities and NaN alone"
    for line in found.table().splitlines():
        if line.startswith("0 ") and " updates " not in line:
            assert re.search(r"none\s+none$", line), line
    assert " fp32" not in found.table(1)


@pytest.mark.parametrize("kind", ["whole", "breaks"])
def test_a_run_that_broke_is_given_no_verdict_on_the_master_copy(kind):
    found = broken_run(kind).report(lost=0.9)
    said = next(line for line in found.advice if line.startswith("WEIGHTS"))
    if kind == "whole":
        assert said.startswith("WEIGHTS     no FP32 copy needed in fp16, bf16: of ")
    else:
        assert said.startswith("WEIGHTS     whether an FP32 copy is needed cannot be told from a run that went inf")
