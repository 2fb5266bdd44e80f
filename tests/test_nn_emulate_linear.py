"""Linear layers in one piece under ``fplab.nn.emulate``, against the same taken apart by torch, and what it lets by."""

from __future__ import annotations

import threading
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
from emulated import alike, both_ways, random, same
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fplab import set_num_threads
from fplab.nn import emulate
from fplab.nn.emulation import linear, modes, operations
from fplab.nn.recipes import mxfp8
from fplab.tensorcore import Plan, PlanByRows

NEEDS = {
    "all": (True, True, True),
    "no input": (False, True, True),
    "frozen": (True, False, False),
    "none": (False,) * 3,
}
OTHERS: list[dict[str, Any]] = [
    {"accumulate": "fp16"}, {"inputs": None}, {"inputs": "fp32"}, {"gpu": "A100", "inputs": "tf32"}, {"store": "bf16"},
    {"gpu": "V100"}, {"gpu": "MI300X"},
    {"plan": Plan(split_k=2)}, {"plan": PlanByRows(((5, Plan(split_k=2)),))}, {"inputs": "e4m3"}, {"inputs": "bf16"},
    {"gpu": "B200", "recipe": mxfp8(scope="all")},
]  # fmt: skip


class Seeing(TorchDispatchMode):
    """Notes the operations that it sees."""

    watches = True  # as a shadow does: what computes them goes beneath

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.operations: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.name())
        self.operations.append(func)
        return func(*args, **(kwargs or {}))


def made(
    shape: tuple[int, ...], needs: str = "all", scale: float = 1.0, **layer: Any
) -> tuple[nn.Linear, torch.Tensor]:
    """A layer of 24 inputs and 10 outputs, and its input."""
    torch.manual_seed(0)
    one, (of_x, of_weight, of_bias) = nn.Linear(24, 10, **layer), NEEDS[needs]
    one.weight.requires_grad_(of_weight)
    if one.bias is not None:
        one.bias.requires_grad_(of_bias)
    return one, (scale * random(*shape)).to(one.weight.dtype).requires_grad_(of_x)


def step(one: nn.Module, x: torch.Tensor, **options: Any) -> tuple[list[torch.Tensor], Any]:
    """The result, all gradients, and the report."""
    with emulate(**{"gpu": "H100", "inputs": "fp16"} | options) as run:
        out = one(x)
    if out.requires_grad:
        (out.float() * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
    return [out, *(leaf.grad for leaf in (x, *one.parameters()) if leaf.grad is not None)], run.report()


@pytest.mark.parametrize("needs", NEEDS)
@pytest.mark.parametrize("shape", [(7, 24), (3, 5, 24), (1, 24)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_layer_in_one_piece_has_the_bits_and_the_report_of_its_operations(
    dtype: torch.dtype, bias: bool, shape: tuple[int, ...], needs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ours, report), (want, other) = both_ways(
        monkeypatch, linear, "apply_linear", lambda: step(*made(shape, needs, bias=bias, dtype=dtype))
    )
    assert alike(ours, want)
    assert report == other


@pytest.mark.parametrize("scale", [1.0, 3e4, 1e-41, float("nan")])
@pytest.mark.parametrize("options", OTHERS)
@pytest.mark.filterwarnings("ignore:.*saturate")
def test_options_hold_in_one_piece(options: dict[str, Any], scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = "recipe" in options or options.get("inputs") == "e4m3"
    (ours, report), (want, other) = both_ways(
        monkeypatch,
        linear,
        "apply_linear",
        lambda: step(*made((7, 24), scale=scale), **options),
        pieces=0 if narrow else 1,
    )
    assert alike(ours, want)
    assert report == other


@pytest.mark.parametrize(("threads", "apart"), [(1, 1), (2, 2), (3, 1)])
def test_of_two_threads_each_computes_a_gradient(threads: int, apart: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same bits and the same report as one thread, or several that share each product."""
    torch.manual_seed(0)
    one, x, ran = nn.Linear(160, 128), random(128, 160).requires_grad_(), []
    multiply = linear.tensorcore.multiply

    def seen(*given: Any, **options: Any) -> Any:
        ran.append(threading.get_ident())
        return multiply(*given, **options)

    monkeypatch.setattr(linear.tensorcore, "multiply", seen)
    set_num_threads(threads)
    try:
        ours, report = step(one, x)
    finally:
        set_num_threads(None)
    assert len(ran) == 3
    assert len(set(ran[1:])) == apart
    one.zero_grad()
    x.grad = None
    monkeypatch.setattr(linear, "takes", lambda *given: False)
    want, other = step(one, x)
    assert alike(ours, want)
    assert report == other


def test_second_derivatives_and_a_graph_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute() -> tuple[list[torch.Tensor], Any]:
        one, x = made((7, 24))
        with emulate("H100", "fp16") as run:
            loss = one(x).sin().sum()
        leaves = [x, *one.parameters()]
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves, retain_graph=True)
        return [*first, *second, *torch.autograd.grad(loss, leaves)], run.report()

    (ours, report), (want, other) = both_ways(monkeypatch, linear, "apply_linear", compute)
    assert alike(ours, want)
    assert {row.unit for row in report.rows} == {row.unit for row in other.rows} == {"H100 wgmma.k16 fp16->fp32"}
    assert sum(row.count for row in report.rows) == sum(row.count for row in other.rows)


def test_a_backward_pass_inside_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute() -> tuple[list[torch.Tensor], Any]:
        one, x = made((7, 24))
        with emulate("H100", "fp16") as run:
            one(x).square().sum().backward()
        return [x.grad, one.weight.grad, one.bias.grad], run.report()  # type: ignore[list-item]

    (ours, report), (want, other) = both_ways(monkeypatch, linear, "apply_linear", compute)
    assert alike(ours, want)
    assert report == other


def test_modes_see_the_operations_of_a_layer() -> None:
    one, x = made((7, 24))
    with emulate("H100", "fp16"), Seeing() as forward:
        one(x)
    assert "aten::addmm" in forward.seen
    with emulate("H100", "fp16"):
        loss = one(x).sum()
    with Seeing() as backward:
        loss.backward()
    assert backward.seen.count("aten::mm") == 2


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # torch's own, of forward mode
@pytest.mark.parametrize("look", ["autocast", "saved tensors", "vmap", "forward mode", "another block", "keywords"])
def test_what_somebody_looks_into_is_taken_apart(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*given: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(linear, "apply_linear", never)
    one, x = made((7, 24))
    with ExitStack() as around:
        around.enter_context(emulate("H100", "fp16"))
        if look == "autocast":
            around.enter_context(torch.autocast("cpu"))
        if look == "saved tensors":
            around.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t))
        if look == "another block":
            around.enter_context(emulate("A100", "fp16"))
        if look == "vmap":
            torch.func.vmap(one)(x.detach())
        elif look == "forward mode":
            torch.func.jvp(one, (x.detach(),), (x.detach(),))
        elif look == "keywords":
            nn.functional.linear(input=x, weight=one.weight)
        else:
            one(x)


@pytest.mark.parametrize("needs", ["no input", "frozen"])
def test_what_the_backward_pass_does_not_need_may_change(needs: str) -> None:
    one, x = made((7, 24), needs)
    with emulate("H100", "fp16"):
        loss = one(x).sum()
    with torch.no_grad():
        (one.weight if needs == "no input" else x).mul_(2)
    loss.backward()


def test_a_weight_that_was_changed_before_the_backward_pass_is_noticed() -> None:
    one, x = made((7, 24))
    with emulate("H100", "fp16"):
        loss = one(x).sum()
    with torch.no_grad():
        one.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_layer_whose_result_nobody_uses_has_no_gradients() -> None:
    class Dead(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> None:
            return None

    one, x = made((7, 24))
    with emulate("H100", "fp16"):
        loss = Dead.apply(one(x)).sum() + x.sum()
    loss.backward()
    assert one.weight.grad is None
    assert one.bias.grad is None


def test_functions_that_are_let_through_multiply_nothing_forward_and_backward() -> None:
    x, y = torch.rand(4, 6, requires_grad=True), torch.rand(4, 6)
    labels, places = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 3])
    given: dict[str, tuple[Any, ...]] = {
        **dict.fromkeys(("add", "add_", "div", "mul", "mul_", "mse_loss", "sub", "sub_"), (x, y)),
        **dict.fromkeys(("softmax", "log_softmax", "unsqueeze"), (x, 1)), "transpose": (x, 0, 1), "reshape": (x, 6, 4),
        "view": (x, 24), "pow": (x, 3), "cross_entropy": (x, labels), "embedding": (places, x),
        "layer_norm": (x, (6,), y[0], y[1]),
    }  # fmt: skip
    assert len(modes._FREE) > 30
    for function in modes._FREE:
        first, *rest = given.get(function.__name__, (x,))
        with Seeing() as seeing:
            one = first.clone() if function.__name__.endswith("_") else first
            function(one, *rest).sum().backward()
        assert len(seeing.operations) > 3
        assert not [op for op in seeing.operations if operations.handler(op) or operations.refusal(op)], function


def test_a_function_in_place_does_not_hide_the_product_before_it() -> None:
    def gradient(inplace: bool, watched: bool) -> torch.Tensor:
        x, w = random(5, 24, grad=True), random(24, 7, seed=1, grad=True)
        with emulate("H100", "fp16"), Seeing() if watched else nullcontext():
            out = x.mm(w)
            loss = nn.functional.relu(out, inplace=inplace).mul(2).square().sum()
        loss.backward()
        assert x.grad is not None
        return x.grad

    assert same(gradient(True, False), gradient(False, False))
    assert same(gradient(True, False), gradient(True, True))
