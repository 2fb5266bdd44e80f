"""LSTMs in one piece under ``fplab.nn.emulate``, against the same taken apart by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulated import alike, both_ways, random, same
from torch import nn

from fplab.nn import emulate
from fplab.nn.emulation import recurrent
from fplab.tensorcore import Plan

Outputs = tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


def weighed(x: torch.Tensor) -> torch.Tensor:
    return (x.float() * torch.linspace(-1, 1, x.numel()).reshape(x.shape)).sum()


USES: dict[str, Callable[[Outputs], torch.Tensor]] = {
    "all": lambda given: weighed(given[0]) + weighed(given[1][0]) + weighed(given[1][1]),
    "outputs": lambda given: weighed(given[0]),
    "one output": lambda given: weighed(given[0][len(given[0]) // 2]),
    "last state": lambda given: weighed(given[1][0]),
    "last cells": lambda given: weighed(given[1][1]),
}
LAYERS: list[dict[str, Any]] = [
    {},
    {"batch_first": True, "num_layers": 2},
    {"bias": False},
    {"dtype": torch.float16},
    {"dtype": torch.bfloat16, "num_layers": 2},
    {"dtype": torch.float64},
]
SIZES = [(24, 20, 5, 3), (17, 33, 1, 1), (128, 128, 9, 20)]  # in, hidden, steps, batch


def made(layer: dict[str, Any], sizes: tuple[int, int, int, int], state: bool, scale: float) -> tuple[Any, ...]:
    """A layer, its input, and the state before it or None."""
    (ins, hidden, steps, batch), dtype = sizes, layer.get("dtype", torch.float32)
    torch.manual_seed(0)
    one = nn.LSTM(ins, hidden, **layer)
    shape = (batch, steps, ins) if layer.get("batch_first") else (steps, batch, ins)
    x = (scale * random(*shape)).to(dtype).requires_grad_(state)
    states = [random(one.num_layers, batch, hidden, seed=s, grad=True).to(dtype) for s in (1, 2)]
    return one, x, [s.detach().requires_grad_() for s in states] if state else None


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_an_lstm_in_one_piece_has_the_bits_and_the_report_of_its_operations(
    layer: dict[str, Any], sizes: tuple[int, int, int, int], use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, scale = use == "all", float("nan") if use == "last cells" else 1.0

    def compute() -> tuple[list[torch.Tensor], Any]:
        one, x, states = made(layer, sizes, state, scale)
        with emulate("H100", "fp16") as run:
            found = one(x, states)
        torch.autograd.backward(USES[use](found), retain_graph=True)
        torch.autograd.backward(USES[use](found))  # adds to what is there
        leaves = [*one.parameters(), *([x, *states] if state else [])]
        return [found[0], *found[1], *(leaf.grad for leaf in leaves if leaf.grad is not None)], run.report()

    (ours, report), (want, other) = both_ways(monkeypatch, recurrent, "lstm", compute)
    assert alike(ours, want)
    assert report == other


def test_products_of_weights_are_summed_alike_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute() -> torch.Tensor:
        one, x, _ = made({}, (24, 20, 7, 3), False, 1.0)
        with emulate("H100", "fp16"):
            torch.autograd.backward(weighed(one(x)[0]))
        found: torch.Tensor = one.weight_hh_l0.grad
        return found

    many = compute()
    monkeypatch.setattr(recurrent, "TOGETHER", 2 * 80 * 20)
    assert all(same(many, one) for one in both_ways(monkeypatch, recurrent, "lstm", compute))


@pytest.mark.parametrize(
    ("gpu", "options", "size"),
    [
        ("H100", {"accumulate": "fp16"}, 1.0), ("H100", {"inputs": None}, 1.0), ("H100", {"inputs": "fp32"}, 1e-6),
        ("V100", {}, 1.0), ("A100", {"inputs": "tf32"}, 1.0),
        ("H100", {"store": "bf16"}, 1.0), ("H100", {"plan": Plan(split_k=2)}, 1.0),
        ("H100", {}, 3e4), ("H100", {"inputs": "bf16"}, 1e-6),
    ],
)  # fmt: skip
def test_gradients_of_weights_are_added_as_autograd_adds_them(
    gpu: str, options: dict[str, Any], size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Infinities that meet, and sums that are -0, too: what is below FP32's numbers keeps its sign."""

    def compute() -> list[torch.Tensor]:
        one, x, states = made({}, (24, 20, 2, 1) if size < 1 else (24, 20, 5, 3), True, size)
        with torch.no_grad():
            for each in (*one.parameters(), *states):
                each *= min(1.0, size)
        with emulate(gpu, **{"inputs": "fp16"} | options):
            loss = weighed(one(x, states)[0])
        (loss * (size * 1e33 if size > 1 else 1e-38 if size < 1 else 1.0)).backward()
        return [one.weight_hh_l0.grad, one.weight_ih_l0.grad]

    ours, want = both_ways(monkeypatch, recurrent, "lstm", compute)
    assert all(map(same, ours, want))
    assert (size > 1) == bool(want[0].isnan().any())
    assert (size < 1) == bool(((want[0] == 0) & want[0].signbit()).any())


def test_second_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute() -> tuple[list[torch.Tensor], Any]:
        one, x, states = made({}, (24, 20, 4, 3), True, 1.0)
        with emulate("H100", "fp16") as run:
            loss = weighed(one(x, states)[0])
        leaves = [x, *states, *one.parameters()]
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        second = torch.autograd.grad(weighed(torch.cat([g.flatten() for g in first]).square()), leaves)
        return [*first, *second], {r.unit for r in run.report().rows}

    (ours, units), (want, other) = both_ways(monkeypatch, recurrent, "lstm", compute)
    assert alike(ours, want)
    assert units == other == {"H100 wgmma.k16 fp16->fp32"}


def test_a_weight_that_was_changed_before_the_backward_pass_is_noticed() -> None:
    one, x, _ = made({}, (24, 20, 4, 3), False, 1.0)
    with emulate("H100", "fp16"):
        loss = one(x)[0].sum()
    with torch.no_grad():
        one.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("layer", [{"bidirectional": True}, {"num_layers": 2, "dropout": 0.5}, {"proj_size": 7}])
def test_other_lstms_are_taken_apart(layer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(recurrent, "lstm", never)
    one, x, _ = made(layer, (24, 20, 4, 3), False, 1.0)
    with emulate("H100", "fp16"):
        one(x)
        one(nn.utils.rnn.pack_padded_sequence(x, [4, 3, 2]))
        nn.LSTM(24, 20)(nn.utils.rnn.pack_padded_sequence(x, [4, 3, 2]))
        with torch.autocast("cpu"):
            one(x)
