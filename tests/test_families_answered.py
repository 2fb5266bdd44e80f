"""Survey, shadow, explanation and bounds, one call each, on models of transformers, torchvision and peft.

Weights are random, from configurations, and trained for a few steps.
"""

import copy
import math
from typing import Any

import family_steps
import numpy as np
import pytest
import torch
from torch import nn

from fplab import bounds
from fplab.nn import emulate, explain, shadow, survey
from fplab.nn.recipes import fp8_current

BATCH = 8


MODELS, ADAPTED = ("gpt2", "resnet", "mixture"), ("adapted", 3)  # before it is trained an adapter multiplies by zeros


def logits(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    found = model(batch[0])
    return getattr(found, "logits", found)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    out = logits(model, batch)
    return nn.functional.cross_entropy(out.flatten(0, -2), batch[1].flatten()), out


@pytest.fixture(scope="module", params=[*((name, steps) for name in MODELS for steps in (0, 3)), ADAPTED], ids=str)
def given(request: pytest.FixtureRequest) -> Any:
    """A model in evaluation and a batch of it; trained for so many steps."""
    name, steps = request.param
    torch.manual_seed(0)
    model, draw = family_steps.FAMILIES[name]().train(), torch.Generator().manual_seed(1)
    if name == "resnet":
        batch = torch.randn(BATCH, 3, 16, 16, generator=draw), torch.randint(10, (BATCH,), generator=draw)
    else:
        ids = torch.randint(family_steps.WORDS, (BATCH, 13), generator=draw)
        batch = ids[:, :-1], ids[:, 1:]
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, batch)[0].backward()
        optimizer.step()
    return model.eval(), batch


def products(model: nn.Module, batch: Any) -> set[str]:
    """The layers that multiply, by an emulation's own count."""
    with torch.no_grad(), emulate("H100", "fp16") as run:
        logits(model, batch)
    return {row.layer for row in run.report().rows}


def test_which_layers_lose_what_and_what_to_train_in(given: Any) -> None:
    model, batch = given
    found = survey(model, batch, loss, ["bf16", "fp16", "e4m3"], budget=0.05, progress=lambda text: None)
    assert {row.layer for row in found.rows if row.phase == "forward"} == products(model, batch)
    assert all(row.local > 0 for row in found.rows if row.choice == "e4m3")
    means = {choice: mean for choice, (mean, _) in found.wholes.items()}
    assert means["fp16"].gradient < means["bf16"].gradient < means["e4m3"].gradient
    assert means["fp16"].cosine > 0.999
    assert found.recommended.within
    assert set(found.recommended.assignment) == products(model, batch)


def test_where_error_is_born_sums_to_the_whole(given: Any) -> None:
    model, batch = copy.deepcopy(given[0]), given[1]
    with emulate("H100", "bf16"), shadow() as s:
        value, _ = loss(model, batch)
        value.backward()
    report = s.report()
    assert not report.anew
    assert report.loss == (float(value.detach()), float(s.exact(value)))
    assert math.isclose(math.fsum(row.effect for row in report.rows) + report.rest, report.whole, rel_tol=1e-9)
    assert abs(report.rest) < 0.2 * math.sqrt(math.fsum(row.weight**2 for row in report.rows))
    with torch.no_grad(), shadow() as s:  # in FP32, which chooses maxima and experts as FP64 does
        value, _ = loss(model, batch)
    wide, tolerance = copy.deepcopy(model).double(), 1e-12
    if type(model).__name__.startswith("Mixtral"):
        wide.set_experts_implementation("eager")  # torch has no grouped product of float64
        tolerance = 1e-7  # the model itself casts to float32 in norms and in front of its routers
    exact = (batch[0].double() if batch[0].is_floating_point() else batch[0], batch[1])
    assert float(s.exact(value)) == pytest.approx(float(loss(wide, exact)[0].detach()), rel=tolerance)


WAYS = {
    "trainer and rollout": ({"gpu": "H100", "inputs": "bf16"}, {"gpu": "H100", "recipe": fp8_current(scope="all")}),
    "two GPUs": ({"gpu": "A100", "inputs": "bf16"}, {"gpu": "H100", "inputs": "bf16"}),
}


@pytest.mark.parametrize("ways", WAYS)
def test_why_two_runs_differ(given: Any, ways: str) -> None:
    model, batch = given
    found = explain(model, (batch[0][:2],), *WAYS[ways], most=3, progress=lambda text: None)
    assert found.faithful == (True, True)
    assert found.first is not None
    assert found.first.layer in products(model, batch)
    for name, rest in zip(("alone", "back", "effect"), found.rest, strict=True):
        assert math.fsum([*(getattr(row, name) for row in found.rows), rest]) == pytest.approx(found.whole, rel=1e-12)
    assert found.whole > 0


def test_one_row_and_a_batch_have_the_same_bits_by_one_plan(given: Any) -> None:
    model, batch = given
    h100 = {"gpu": "H100", "inputs": "bf16"}
    found = explain(model, (batch[0][:2],), h100, {**h100, "rows": 1}, progress=lambda text: None)
    assert not found.first or found.first.unlike.get("plan") is None


def test_no_product_is_beyond_its_bound(given: Any) -> None:
    model, batch = given
    seen = {}
    hooks = [
        layer.register_forward_hook(lambda layer, x, _, name=name: seen.update({name: (x[0], layer.weight)}))
        for name, layer in model.named_modules() if isinstance(layer, nn.Linear)
    ]  # fmt: skip
    with torch.no_grad():
        logits(model, batch)
    for hook in hooks:
        hook.remove()
    x, weight = next(iter(seen.values()))
    found = bounds.matmul(
        x.detach().flatten(0, -2)[:4].bfloat16().float().numpy(), weight.detach().T.bfloat16().float().numpy(),
        gpu="H100", inputs="bf16",
    )  # fmt: skip
    assert (found.measured <= found.worst).all()
    assert np.median(found.measured / found.worst) < 0.5
