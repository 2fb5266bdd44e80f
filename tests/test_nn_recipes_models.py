"""A GPT, a ResNet and a mixture of experts that nobody here wrote, from their configurations, trained by a recipe."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import family_steps
import pytest
import torch
from family_steps import library

from fplab.nn import Recipe, emulate
from fplab.nn.recipes import fp8_block, nvfp4

TEXT = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(0))
Made = tuple[torch.nn.Module, Callable[[torch.nn.Module], torch.Tensor]]


def of_text(model: torch.nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=TEXT, labels=TEXT).loss
    return loss


def gpt() -> Made:
    return family_steps.gpt2(), of_text


def resnet() -> Made:
    transformers = library("transformers")
    config: Any = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_labels=10, layer_type="basic"
    )
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    return transformers.ResNetForImageClassification(config), lambda net: net(pixel_values=images, labels=labels).loss


def mixture() -> Made:
    return family_steps.mixture(), of_text


def deepseek() -> Made:
    transformers = library("transformers")
    config: Any = transformers.DeepseekV3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
        n_group=2, topk_group=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=16,
        qk_nope_head_dim=16, v_head_dim=16,
    )  # fmt: skip
    return transformers.DeepseekV3ForCausalLM(config), of_text


def switch() -> Made:
    transformers = library("transformers")
    config: Any = transformers.SwitchTransformersConfig(
        vocab_size=64, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_decoder_layers=1, num_heads=2, num_experts=4,
        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.SwitchTransformersForConditionalGeneration(config), of_text


def vit() -> Made:
    transformers = library("transformers")
    config: Any = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8,
        num_labels=16,
    )  # fmt: skip
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    return transformers.ViTForImageClassification(config), lambda net: net(pixel_values=images, labels=labels).loss


ATTENTION = "no operand is a weight"
HEAD = "output head ({model}.get_output_embeddings() gives it), which scope transformer_engine leaves out"
FAMILIES: dict[Callable[[], Made], tuple[str, dict[str, str]]] = {  # patterns of layers that take part, and the others
    gpt: (r"transformer\.h\.\d\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)",
          {r"transformer\.h\.\d\.attn": ATTENTION, "lm_head": HEAD.format(model="GPT2LMHeadModel")}),
    mixture: (r"model\.layers\.\d\.(self_attn\.[qkvo]_proj|mlp\.experts)",
              {r"model\.layers\.\d\.self_attn": ATTENTION, r"model\.layers\.\d\.mlp\.gate": "router (class Mixt",
               "lm_head": HEAD.format(model="MixtralForCausalLM")}),
    deepseek: (r"model\.layers\.\d\.(self_attn\.(q_a|q_b|kv_b|o)_proj|self_attn\.kv_a_proj_with_mqa|"
               r"mlp\.(shared_experts\.)?(gate|up|down)_proj|mlp\.experts)",
               {r"model\.layers\.\d\.self_attn": ATTENTION, r"model\.layers\.1\.mlp\.gate": "router (class Deep",
                "lm_head": HEAD.format(model="DeepseekV3ForCausalLM")}),
    switch: (r"(en|de)coder\.block\.0\.layer\.\d\.(\w+\.[qkvo]|mlp\.experts\.expert_\d\.w[io])",
             {r".*\.(SelfAttention|EncDecAttention)": ATTENTION, r".*\.router\.classifier": "router (called 'router'",
              "lm_head": HEAD.format(model="SwitchTransformersForConditionalGeneration")}),
    vit: (r"vit\..*layers?\.\d\.(attention\..*(query|key|value|[qkvo]_proj|dense)|.*(fc1|fc2|dense))",
          {r"vit\..*layers?\.\d\.attention(\.attention)?": ATTENTION, r"vit\.embeddings\..*": "embedding (called 'pat",
           "classifier": "output head (the last layer, after all blocks)"}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", FAMILIES)
def test_a_stranger_s_head_routers_and_patches_stay_high_and_are_named(make: Callable[[], Made]) -> None:
    """Every layer that multiplies is in one list or the other, written here by hand, with the reason of its kind."""
    torch.manual_seed(0)
    net, loss_of = make()
    with emulate("H100", recipe="fp8_current") as run:
        loss_of(net).backward()
    taken, others = FAMILIES[make]
    rows = run.report().rows
    quantised = {row.layer for row in rows if row.why is None}
    assert quantised
    assert [name for name in quantised if not re.fullmatch(taken, name)] == []
    for row in rows:
        if row.why is not None:
            (why,) = {why for pattern, why in others.items() if re.fullmatch(pattern, row.layer)}
            assert str(row.why).startswith(why), row
            assert " bf16->fp32" in row.unit
    unseen = [pattern for pattern in others if not any(re.fullmatch(pattern, row.layer) for row in rows if row.why)]
    assert unseen == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("gpu", "recipe", "unit"),
    [("B200", nvfp4(scope="all", keep_last=0.15), "e2m1/e4m3x16"), ("H100", fp8_block(scope="all"), "e4m3")],
    ids=["nvfp4", "fp8_block"],
)
@pytest.mark.parametrize("make", [gpt, resnet, mixture])
def test_a_stranger_s_model_trains(make: Callable[[], Made], gpu: str, recipe: Recipe, unit: str) -> None:
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
    assert kept <= set(weighted[-2:] if recipe.keep_last else []), kept
    assert all("bf16" in row.unit for row in rows if row.layer in kept)
    passes = {
        phase: {row.layer for row in rows if unit in row.unit and row.phase == phase}
        for phase in ("forward", "backward")
    }
    assert passes["forward"] == passes["backward"]
    assert len(passes["forward"]) >= 6
    assert losses[-1] < losses[0]
