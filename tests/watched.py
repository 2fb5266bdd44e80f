"""The digits' network trained under a watch, in FP32 or with its layers rounded to FP16."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fplab import training
from fplab.nn import watch

Tensor = torch.Tensor


@contextmanager
def half(model: nn.Module) -> Iterator[None]:
    """Every layer's output, and the gradient that comes back to it, rounded to FP16."""

    class Half(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: Tensor) -> Tensor:
            return x.half().float()

        @staticmethod
        def backward(_ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0].half().float()

    handles = [m.register_forward_hook(lambda _m, _a, out: Half.apply(out)) for m in training.layers(model).values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run(
    steps: int = 20, lr: float = 0.05, fp16: bool = False, scaler: Any = None, divide: float = 1.0, every: int = 1,
    seed: int = 0, keep: int = 64, momentum: float = 0.9, formats: Any = ("fp16", "bf16", "e4m3", "e5m2"),
) -> watch:  # fmt: skip
    """The digits' network trained for some steps under a watch."""
    model = training.digits_net(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=momentum)
    images, labels = training.tensors(training.digits("test"))
    given = None if isinstance(scaler, torch.amp.GradScaler) else scaler
    with half(model) if fp16 else half(nn.Identity()):
        seen = watch(model, optimizer, every=every, keep=keep, formats=formats, scaler=given)
        with seen:
            for i, index in enumerate(training.batches(359, training.Recipe(epochs=40))):
                if i == steps:
                    break
                optimizer.zero_grad()
                chosen = torch.from_numpy(index)
                loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen]) / divide
                if scaler is None:
                    loss.backward()
                    optimizer.step()
                else:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
    return seen


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step of any training loop."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def mlp(*more: nn.Module) -> nn.Sequential:
    """Two linear layers and what comes after them."""
    named = {"one": nn.Linear(6, 8), "act": nn.ReLU(), "two": nn.Linear(8, 4)}
    return nn.Sequential(OrderedDict(named | {f"more{i}": m for i, m in enumerate(more)}))


def loop(
    model: nn.Module, optimizer: Any, steps: int = 3, n: int = 5, loss: Callable[[Any], Tensor] | None = None
) -> None:
    """Any training loop."""
    made = torch.Generator().manual_seed(1)
    for _ in range(steps):
        out = model(torch.randn(n, 6, generator=made))
        step(optimizer, loss(out) if loss else out.square().mean())


def watched(model: nn.Module, optimizer: Any = None, *args: Any, every: int = 1, **options: Any) -> watch:
    """What is seen of a model in the loop, under plain SGD where no optimizer is given."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, every=every) as seen:
        loop(model, optimizer, *args, **options)
    return seen


def unbroken(report: Any) -> str:
    """A report's text, whose lines are broken between words, on one line with single spaces."""
    return " ".join(str(report).split())
