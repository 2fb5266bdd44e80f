"""What a watch names where a run broke outside the optimizer: a weight, a buffer, a function between the layers."""

import math

import pytest
import torch
from torch import nn
from watched import step, unbroken

from fplab.nn import watch

Tensor = torch.Tensor


pytestmark = pytest.mark.usefixtures("one_thread")


class Scaled(nn.Module):
    """A layer that works in place."""

    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(self.factor)


class Shifted(nn.Module):
    """A layer whose forward calls a layer by its weight alone, adds a buffer, and ends in a function."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)
        self.last = nn.Linear(4, 4)
        self.register_buffer("shift", torch.zeros(4))
        self.register_buffer("hidden", torch.tensor([0.0, -math.inf, 0.0, 0.0]))  # a mask, whose -inf is meant
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.linear(x, self.inner.weight) + self.shift
        x = x + (self.hidden + x).softmax(-1)
        return self.last(x * self.factor)


@pytest.mark.parametrize("every", [1, 1000])
@pytest.mark.parametrize(
    ("poison", "kind", "tensor", "layer", "cause"),
    [("first.weight", "weights", "first.weight", "first", "not the optimizer's doing, whose last step left it"),
     ("own.inner.weight", "weights", "own.inner.weight", "own.inner", "look at what else writes to it or rounds it"),
     ("own.shift", "buffers", "own.shift", "own", "this layer used a buffer that holds it"),
     ("factor", "input", "the input of own.last", "own.last", "no module returned it: look at the functions called"),
     ("large", "activations", "first", "first", "beyond the largest value of its format"),
     ("place", "activations", "place", "place", "beyond the largest value of its format")],
)  # fmt: skip
def test_what_broke_outside_the_optimizer_is_named_rather_than_the_layer_that_shows_it(
    poison, kind, tensor, layer, cause, every
):
    model = nn.Sequential()
    for name, module in (("first", nn.Linear(4, 4)), ("place", Scaled()), ("own", Shifted())):
        model.add_module(name, module)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    with watch(model, optimizer, every=every) as seen:
        for i in range(6):
            if i == 4:
                if poison in held:
                    held[poison].data[..., 0] = math.inf
                elif poison != "large":
                    model.get_submodule(poison if poison == "place" else "own").factor = math.inf
                else:
                    model.get_submodule("first").weight.data.fill_(3e38)
            step(optimizer, model(torch.ones(2, 4)).square().sum())
    first = seen.first
    assert (first.step, first.kind, first.tensor, first.layer) == (4, kind, tensor, layer)
    assert cause in first.cause
    assert (first.before is not None) == (kind in ("weights", "activations"))
    text = unbroken(seen.report())
    assert f"NOT FINITE {first} likely: {first.cause}" in text
    if kind == "weights":
        assert first.infinite == 4
        assert f"step 4, weights of {tensor}: 4 infinite of 16 values; finite until step 3, then at most" in text
        assert "lower learning rate" not in text
    elif kind == "input":
        assert str(first).startswith("step 4, the input of own.last: ")


def test_a_weight_that_no_output_shows_is_not_blamed_on_the_optimizer():
    """A row of an embedding that the batch does not use."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    causes = {}
    for every in (1, 3):
        nn.init.normal_(model[0].weight)
        with watch(model, optimizer, every=every) as seen:
            for i in range(4):
                if i == 2:
                    model[0].weight.data[4, 1] = math.nan
                step(optimizer, model(torch.tensor([0, 1])).sum())
        assert (seen.first.step, seen.first.kind, seen.first.tensor) == (2, "weights", "0.weight")
        assert (seen.first.nan, seen.first.at) == (1, 13)
        causes[every] = seen.first.cause
    assert causes[1].startswith("not the optimizer's doing, whose last step left it finite")
    assert causes[3].endswith("or something else wrote to it")  # a step that is not counted keeps no copy to tell


def test_a_mask_of_minus_infinities_is_no_broken_input():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return (self.inner(x) + mask).softmax(-1)

    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    mask = torch.full((3, 3), -math.inf).triu(1)
    with watch(model, optimizer, every=1) as seen:
        for i in range(3):
            step(optimizer, model(torch.ones(3, 3), mask + (math.inf if i == 2 else 0)).square().sum())
    assert (seen.first.step, seen.first.kind) == (2, "input")


class Choice(nn.Module):
    """Logits of which some are ruled out by minus infinity, or the logarithm of a softmax that has zeros."""

    def __init__(self, logarithm: bool) -> None:
        super().__init__()
        self.logits, self.logarithm, self.broken = nn.Linear(4, 3), logarithm, 1.0

    def forward(self, x: Tensor) -> Tensor:
        logits = self.logits(x) * self.broken
        if self.logarithm:
            return (logits * 1000).softmax(-1).log()
        return logits.masked_fill(torch.tensor([False, False, True]), -math.inf)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_mask_that_a_layer_returns_is_named_and_hides_nothing_that_breaks_later(breaks):
    torch.manual_seed(0)
    model = Choice(logarithm=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as seen:
        for i in range(4):
            model.broken = math.nan if breaks and i == 2 else 1.0
            step(optimizer, nn.functional.cross_entropy(model(torch.eye(4)), torch.tensor([0, 1, 0, 1])))
    assert (seen.first.step, seen.first.layer, seen.first.infinite, seen.first.harmless) == (0, "model", 4, True)
    assert "a mask, or a logarithm of zero that the loss never used" in unbroken(seen.report())
    assert ("the run broke at step 2" in unbroken(seen.report())) == breaks
    if breaks:
        assert (seen.first_kept.step, seen.first_kept.kind) == (2, "activations")
        assert seen.first_kept.nan > 0
        assert seen.first_kept.before is None  # this tensor never was finite
    else:
        assert seen.first_kept is None


def test_after_a_mask_it_is_still_known_when_a_tensor_was_last_finite():
    torch.manual_seed(0)
    model = Choice(logarithm=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as seen:
        for i in range(4):
            if i == 3:
                model.logits.weight.data[0, 0] = math.nan
            step(optimizer, nn.functional.cross_entropy(model(torch.eye(4)), torch.tensor([0, 1, 0, 1])))
    assert (seen.first_kept.step, seen.first_kept.kind, seen.first_kept.tensor) == (3, "weights", "logits.weight")
    assert seen.first_kept.before[0] == 2


def test_the_logarithm_of_zero_is_named_where_the_loss_breaks_with_it():
    torch.manual_seed(0)
    model = Choice(logarithm=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as seen:
        step(optimizer, nn.functional.nll_loss(model(torch.eye(4)), torch.tensor([0, 1, 2, 1])))
    assert seen.first is not None
    assert seen.first is seen.first_kept
    assert (seen.first.kind, seen.first.layer, seen.first.harmless) == ("activations", "model", False)
    assert "likely: minus infinity alone: the logarithm of zero" in unbroken(seen.report())
