"""A GPT, a ResNet and a mixture of experts that nobody here wrote, from their configurations, trained by a recipe."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fplab.nn import emulate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, and those of the libraries that it tries
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")

TEXT = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0))
Made = tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]


def of_text(model: torch.nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=TEXT, labels=TEXT).loss
    return loss


def gpt() -> Made:
    config: Any = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config), of_text


def resnet() -> Made:
    config: Any = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_labels=10, layer_type="basic"
    )
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    return transformers.ResNetForImageClassification(config), lambda net: net(pixel_values=images, labels=labels).loss


def mixture() -> Made:
    config: Any = transformers.MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4,
    )  # fmt: skip
    return transformers.MixtralForCausalLM(config), of_text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("gpu", "recipe", "unit"), [("B200", "nvfp4", "e2m1/e4m3x16"), ("H100", "fp8_block", "e4m3")])
@pytest.mark.parametrize("make", [gpt, resnet, mixture])
def test_a_stranger_s_model_trains(make: Callable[[], Made], gpu: str, recipe: str, unit: str) -> None:
    """Every layer's three products are quantised, those that the recipe keeps are BF16, and every parameter learns."""
    torch.manual_seed(0)
    net, loss_of = make()
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    losses = []
    run = emulate(gpu, recipe=recipe)
    for _ in range(3):
        with run:
            loss = loss_of(net)
            loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    rows = run.report().rows
    kept = {row.layer for row in rows if unit not in row.unit and "attn" not in row.layer.rpartition(".")[2]}
    weighted = [n for n, m in net.named_modules() if any(p.dim() > 1 for p in m.parameters(recurse=False))]
    assert kept <= set(weighted[-2:] if recipe == "nvfp4" else []), kept
    assert all("bf16" in row.unit for row in rows if row.layer in kept)
    passes = {
        phase: {row.layer for row in rows if unit in row.unit and row.phase == phase}
        for phase in ("forward", "backward")
    }
    assert passes["forward"] == passes["backward"]
    assert len(passes["forward"]) >= 6
    assert losses[-1] < losses[0]
