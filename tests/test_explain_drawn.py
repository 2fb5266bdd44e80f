"""Drawn models in drawn pairs of ways: the report holds in runs that a mode of the test's own has captured."""

from __future__ import annotations

import contextlib
import copy
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from fplab.nn import Way, emulate, explain
from fplab.nn.diagnose import explain_report

SEEDS = range(40)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


class Attention(nn.Module):
    """Attention whose softmax may be in another dtype, and whose values may have passed through FP8."""

    softmax: torch.dtype | None = None
    cache: torch.dtype | None = None

    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.cache is not None:
            k, v = k.to(self.cache).to(q.dtype), v.to(self.cache).to(q.dtype)
        weight = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1, dtype=self.softmax)
        return x + self.out(weight.to(v.dtype) @ v)


class Convolution(nn.Module):
    """Over the tokens, its activation in place."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.drop = nn.Conv1d(width, width, 3, padding=1), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(functional.relu(self.conv(x.mT), inplace=True)).mT + x


class Norm(nn.Module):
    """Layer normalisation written out, a layer of several operations."""

    eps = 1e-5
    clamps = False

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight
        return x.clamp(-1, 1) if self.clamps else x


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        gate, value = self.up(x).chunk(2, -1)
        return x + self.down(functional.silu(gate) * value)


class Drawn(nn.Module):
    def __init__(self, draw):
        super().__init__()
        width = int(draw.choice([8, 16, 24]))
        kinds = [Attention, Convolution, Norm, Gated, nn.Linear, nn.LayerNorm]
        self.embed = nn.Embedding(16, width)
        self.layers = nn.ModuleList()
        for kind in draw.choice(len(kinds), int(draw.integers(2, 5))):
            self.layers.append(kinds[kind](width, width) if kinds[kind] is nn.Linear else kinds[kind](width))
        self.head = nn.Linear(width, 5)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def another(model, draw):
    """A copy of a model with something of it changed."""
    other = copy.deepcopy(model)
    kind = int(draw.integers(6))
    if kind == 0:
        return other.to(torch.bfloat16)
    for layer in other.layers:
        if isinstance(layer, Attention) and kind == 1:
            layer.softmax = torch.float64
        if isinstance(layer, Attention) and kind == 2:
            layer.cache = FP8[int(draw.integers(len(FP8)))]
        if isinstance(layer, Norm):
            layer.eps, layer.clamps = (1e-5, True) if kind == 3 else (1e-4, False) if kind == 4 else (1e-5, False)
    return other


def ways(model, draw):
    """A pair of ways, as :class:`Way` takes them."""
    pairs = [
        ({}, {"rows": 1}), ({"rows": 2}, {"rows": 3}), ({}, {"model": another(model, draw)}),
        ({}, {"around": lambda: torch.autocast("cpu", torch.bfloat16)}), ({}, {"model": copy.deepcopy(model).double()}),
        ({"gpu": "H100", "inputs": "bf16"}, {"gpu": "H100", "inputs": "fp16"}),
        ({"gpu": "H100", "inputs": "bf16"}, {"gpu": "H100", "inputs": "bf16", "rows": 2}),
        ({"gpu": "A100", "inputs": "bf16"}, {}), ({"rows": 1}, {"model": another(model, draw), "rows": 1}),
        ({}, {"model": another(model, draw), "rows": 2}),
    ]  # fmt: skip
    pair = pairs[int(draw.integers(len(pairs)))]
    return pair if draw.integers(2) else pair[::-1]


class Captured(TorchDispatchMode):
    """What makes new floating-point values: [layer, operation, formats, results by part]."""

    def __init__(self):
        super().__init__()
        self.made, self.running, self.place, self.part = [], [], 0, -1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        results = [x for x in (found if isinstance(found, (tuple, list)) else [found]) if isinstance(x, torch.Tensor)]
        results = [x for x in results if x.is_floating_point()]
        name = func.name().removeprefix("aten::").partition(".")[0].rstrip("_")
        views = name == "_unsafe_view" or any(
            r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns
        )
        given = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        copies = (
            name in ("_to_copy", "clone", "copy") and results and same(given[-1 if name == "copy" else 0], results[0])
        )
        if results and not views and not copies and not name.startswith(("new_", "empty")) and "_like" not in name:
            formats = tuple(dict.fromkeys(str(x.dtype)[6:] for x in given if x.is_floating_point()))
            results = [x.detach().clone() for x in results]
            if self.part > 0:
                assert self.made[self.place][1] == name
                self.made[self.place][3].append(results)
                self.place += 1
            else:
                self.made.append([self.running[-1] if self.running else "", name, formats, [results]])
        return found


def bits(x):
    """Values with their sign, NaN as one: float64 as integers."""
    return torch.where(x.isnan(), torch.nan, x.double()).view(torch.int64)


def same(x, y):
    return x.shape == y.shape and torch.equal(bits(x), bits(y))


def captured(model, batch, given):
    """The output of a way and what was captured of it."""
    given = dict(given)
    rows, around, other = (given.pop(name, None) for name in ("rows", "around", "model"))
    model, seen = copy.deepcopy(other or model), Captured()
    for path, layer in model.named_modules():
        layer.forward = running(layer, path or type(model).__name__, rows, len(batch), seen)
    with torch.no_grad(), contextlib.ExitStack() as stack:
        for context in (emulate(**given) if given else None, around and around(), seen):
            if context is not None:
                stack.enter_context(context)
        return model(batch), seen.made


def running(layer, name, rows, batch, seen):
    """A layer's forward that tells its name, and calls a layer without layers inside it with so many rows at a time."""
    forward, leaf = layer.forward, not list(layer.children())

    def called(x):
        seen.running.append(name)
        if leaf and rows and rows < batch:
            start, parts = len(seen.made), []
            for seen.part, part in enumerate(x.split(len(x) * rows // batch)):
                seen.place = start
                parts.append(forward(part))
            seen.part = -1
            with torch.utils._python_dispatch._disable_current_modes():
                found = torch.cat(parts)
        else:
            found = forward(x)
        seen.running.pop()
        return found

    return called


def whole(parts, like):
    """Results by part in the shape of others', or None: beside each other, or each the whole."""
    found = []
    for mine, theirs in zip(zip(*parts, strict=True), zip(*like, strict=True), strict=True):
        for dim in range(mine[0].dim()):
            one, other = (torch.cat(x, dim) if len(x) > 1 else x[0] for x in (mine, theirs))
            if one.shape == other.shape:
                found.append((one, other))
                break
        else:
            if any(x.shape != mine[0].shape for x in (*mine, *theirs)):
                return None
            pairs = [(x, y) for x in mine for y in theirs]
            found.append(next((pair for pair in pairs if not same(*pair)), pairs[0]))
    return found


def first_apart(a, b):
    """The first operation of two captures that is apart, where both have the same operations in the same layers."""
    for number, (x, y) in enumerate(zip(a, b, strict=True)):
        for result, (one, other) in enumerate(whole(x[3], y[3])):
            if not same(one, other):
                return number, result, one, other
    return None


def counted(found, first, one, other):
    """What the report says of an operation is what its results are."""
    where = (bits(one) != bits(other)).reshape(-1)
    assert (first.differing, first.elements) == (int(where.sum()), where.numel())
    assert first.place == tuple(np.unravel_index(int(where.nonzero()[0]), one.shape))
    for value, code, x in zip(first.values, first.bits, (one, other), strict=True):
        x = x[first.place]
        assert value == float(x) or (math.isnan(value) and x.isnan())
        size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
        assert int(code, 16) == int(x.reshape(1).view(size)[0]) % 256 ** x.element_size()


def consistent(found: explain_report.Explanation) -> None:
    """No two sentences of a report contradict each other."""
    lines = str(found.text).splitlines()
    first, own = found.first, [row for row in found.rows if row.own > 0]
    assert (str(explain_report.SAME) in lines) == (not found.rows and found.whole == 0 and first is None)
    if found.whole or own:
        assert str(explain_report.SAME) not in lines
        assert str(explain_report.EQUAL) not in lines
    assert not found.whole or str(explain_report.EQUAL) not in lines
    begins = [line.split(".")[0].split(":")[0] for line in lines]
    kinds = [sum(line.startswith(str(text).split("{")[0]) for line in lines)
             for text in (explain_report.FIRST, explain_report.GRAPH, explain_report.MOVED)]  # fmt: skip
    assert sum(kinds) == (first is not None or bool(found.whole)), begins
    assert kinds[0] == (first is not None and first.differing > 0)
    if first is not None:
        assert " 0 of " not in str(found.text)
        assert all(x != y for x, y in first.unlike.values())
        assert (
            first.differing == 0
            or first.bits[0] != first.bits[1]
            or first.facts[0]["formats"] != first.facts[1]["formats"]
        )
    assert all(str(row.text) != str(explain_report.INHERITED) for row in found.rows if not math.isnan(row.own))
    for name, rest in zip(explain_report.SUMS, found.rest, strict=True):
        assert math.isclose(math.fsum([*(getattr(row, name) for row in found.rows), rest]), found.whole, rel_tol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_reports_hold_in_runs_that_are_captured_otherwise(seed: int) -> None:
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    model = Drawn(draw).eval()
    batch = torch.randint(16, (6, int(draw.integers(2, 6))))
    pair = ways(model, draw)
    found = explain(model, batch, *(Way(**given) for given in pair), progress=str)
    consistent(found)
    (one, a), (other, b) = (captured(model, batch, given) for given in pair)
    assert (found.whole != 0) == (not torch.equal(one.double(), other.double()))
    first, keys = found.first, [[x[:2] for x in run] for run in (a, b)]
    if keys[0] == keys[1] and all(whole(x[3], y[3]) is not None for x, y in zip(a, b, strict=True)):
        apart = first_apart(a, b)
        assert (first is None) == (apart is None)
        if first is not None and apart is not None:
            number, result, *results = apart
            assert (first.number, first.result, [first.layer, first.facts[0]["operation"]]) == (
                number,
                result,
                keys[0][number],
            )
            assert "operation" not in first.unlike
            counted(found, first, *results)
    elif first is not None and first.differing:
        # By the how manieth of its kind in its layer; no other kind is apart before it that both have as often.
        kind = [first.layer, first.facts[0]["operation"]]
        pairs = [(x, y) for x in a for y in b if x[:2] == y[:2] == kind and whole(x[3], y[3]) is not None]
        fits = [(x, y) for x, y in pairs if matches(first, whole(x[3], y[3]))]
        assert fits
        ends = a.index(fits[0][0]), b.index(fits[0][1])
        before = [[tuple(x[:2]) for x in run[:end]] for run, end in zip((a, b), ends, strict=True)]
        alone = [Counter(before[0]) - Counter(before[1]), Counter(before[1]) - Counter(before[0])]
        if any(alone):
            assert "operation" in first.unlike
        for side in (0, 1):
            named = first.unlike.get("operation", ("-", "-"))[side]
            assert all(name in named or named.endswith("...") for _, name in alone[side])
        for key in set(before[0]) & set(before[1]):
            mine, theirs = (
                [x for x in run[:end] if tuple(x[:2]) == key] for run, end in zip((a, b), ends, strict=True)
            )
            if len(mine) == len(theirs):
                for x, y in zip(mine, theirs, strict=True):
                    assert all(same(*pair) for pair in whole(x[3], y[3]) or ())
    else:
        assert first is None or set(first.unlike) == {"operation"}


def matches(first: Any, results: Any) -> bool:
    one, other = results[first.result]
    with contextlib.suppress(AssertionError):
        counted(None, first, one, other)
        return True
    return False


class Multiplied(nn.Module):
    """A product by a number, which makes zeros of a sign and NaNs of another sign."""

    by = 0.0

    def forward(self, x):
        return (x + 0.5) * self.by


@pytest.mark.parametrize(
    ("by", "other", "sentence"),
    [
        (0.0, -0.0, "First differing operation: mul in Multiplied (other: 0.0 in a, -0.0 in b)."),
        (0.0, math.nan, "First differing operation: mul in Multiplied (other: 0.0 in a, nan in b)."),
        (math.nan, -math.nan, "Of 6 values of the output 6 are NaN or infinite in way a and 6 in way b"),
        (1e-200, 3e-200, "b less a: +6.9041e-200, of 6 values the root mean square along their difference."),
        (2.0, 2.0, str(explain_report.SAME)),
    ],
)
def test_zeros_of_two_signs_are_two_values_and_a_nan_is_as_any_other(by: float, other: float, sentence: str) -> None:
    one, two = Multiplied(), Multiplied()
    one.by, two.by = by, other
    found = explain(one, torch.arange(6.0, dtype=torch.float64).view(2, 3), Way(), Way(model=two), progress=str)
    assert sentence in " ".join(str(found).split())
    assert (found.first is None) == (repr(by) == repr(other) or by != by)


def test_what_views_alone_change_is_said() -> None:
    model, other = Multiplied(), Multiplied()
    model.forward, other.forward = (lambda x, i=i: (x + 0.5)[:, i] for i in (0, 1))
    found = explain(model, torch.arange(6.0).view(2, 3), Way(), Way(model=other), progress=str)
    assert str(explain_report.MOVED) in str(found.text).splitlines()
    consistent(found)
