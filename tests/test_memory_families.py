"""Modules of the transformers library, estimated: to the byte of a measured step, and presets beside them."""

import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from family_steps import library
from torch import nn

from fplab.memory import PRESETS, Transformer, estimate, report, stages
from fplab.memory import library as library_terms
from fplab.memory.measuring import Tracker
from fplab.memory.units import shown
from fplab.nn.cuda_autocast import autocast

BATCH, LENGTH = 2, 32
TOKENS = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) * 7 % 96
# Without it the library looks at values to leave a mask out, which a pass on shapes alone does not have.
MASK = torch.ones(LENGTH, LENGTH).tril().log().expand(BATCH, 1, LENGTH, LENGTH).clone()
INPUTS = {"input_ids": TOKENS, "labels": TOKENS, "attention_mask": MASK}
GPT2 = Transformer("gpt2", layers=3, hidden=48, heads=4, vocabulary=2048, sequence=LENGTH)
LLAMA = Transformer("llama", layers=2, hidden=48, heads=4, vocabulary=2048, sequence=LENGTH, kv_heads=2, ffn=96,
                    positions="rotary", gated=True, rms=True, bias=False, tied=False, dropout=False)  # fmt: skip


def gpt2(**settings: Any) -> nn.Module:
    transformers = library("transformers")
    torch.manual_seed(0)
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**no_dropout | settings))


def llama(**settings: Any) -> nn.Module:
    transformers = library("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))


def dropped(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Dropout as a GPU has it, which keeps a mask of bytes."""
    in_place = inplace or not training or not p
    return torch.dropout_(x, p, training) if in_place else torch.native_dropout(x, p, True)[0]


def spread(logits: torch.Tensor) -> torch.Tensor:
    return logits.logsumexp(-1).mean()


def peak(
    model: nn.Module, precision: str, inputs: dict[str, torch.Tensor] = INPUTS, loss: Any = lambda out: out.loss
) -> int:
    """Bytes at the peak of a step as people write it, whose gradients are there already."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with Tracker() as tracker:
        tracker.mark([*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())], "given")
        tracker.mark(inputs.values(), "inputs")
        tracker.restart()
        with autocast("bf16", enabled=precision == "amp", product="torch"):
            out = model(**inputs)
            value = loss(out)
        value.backward()
        return tracker.peak - tracker.live["inputs"]


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize("shape", [GPT2, LLAMA])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_the_estimate_of_a_library_s_model_is_the_peak_of_its_step(
    shape: Transformer, attention: str, precision: str, reentrant: bool | None
) -> None:
    module = library_model(replace(shape, dropout=False), attention).train()
    if reentrant is not None:
        module.activation_checkpointing_enable({"use_reentrant": reentrant})
    rank = estimate(module, inputs=INPUTS, precision=precision).fullest
    assert rank.temporary[stages.PASSING] > 0
    found = rank.total - rank.device["states"]
    assert found == peak(module, precision)


class Encoder(nn.TransformerEncoder):
    """torch's own, with a loss."""

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:  # type: ignore[override]
        y = super().forward(nn.functional.one_hot(input_ids, 96).float())
        return SimpleNamespace(loss=y.square().mean(), last=y)


@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_the_estimate_of_torch_s_own_encoder_is_the_peak_of_its_step(precision: str) -> None:
    layer = nn.TransformerEncoderLayer(96, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    module = Encoder(layer, 2, enable_nested_tensor=False)
    rank = estimate(module, inputs=INPUTS, precision=precision).fullest
    assert rank.total - rank.device["states"] == peak(module, precision)


@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_the_estimate_of_a_convolutional_network_is_the_peak_of_its_step(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch norms keep their statistics in FP32, also of inputs in BF16; dropout keeps a mask of bytes, as CUDA's."""
    monkeypatch.setattr(nn.functional, "dropout", dropped)
    module = getattr(library("torchvision").models, name)(num_classes=10).train()
    inputs = {"x": torch.zeros(4, 3, 64, 64)}
    rank = estimate(module, inputs=inputs, loss=spread, precision=precision).fullest
    assert rank.total - rank.device["states"] == peak(module, precision, inputs, spread)


# --- presets ----------------------------------------------------------------------------------------------------
def library_model(c: Transformer, attention: str) -> nn.Module:
    """The library's module of a configuration."""
    sizes = {"vocab_size": c.vocabulary, "attn_implementation": attention, "use_cache": False}
    if c.rms:
        return llama(num_hidden_layers=c.layers, hidden_size=c.hidden, intermediate_size=c.width,
                     num_attention_heads=c.heads, num_key_value_heads=c.keys, max_position_embeddings=c.sequence,
                     **sizes)  # fmt: skip
    names = "resid_pdrop", "embd_pdrop", *(["attn_pdrop"] if attention == "eager" else [])  # else a CPU stores matrices
    return gpt2(n_layer=c.layers, n_embd=c.hidden, n_head=c.heads, n_positions=c.sequence,
                **dict.fromkeys(names, 0.1 * c.dropout), **sizes)  # fmt: skip


def causal_by_itself(patch: pytest.MonkeyPatch) -> None:
    """The library makes no mask, as on a device whose values it can look at."""
    for name in ("gpt2", "llama"):
        module = importlib.import_module(f"{library('transformers').__name__}.models.{name}.modeling_{name}")
        patch.setattr(module, "create_causal_mask", lambda *_, **__: None)


@pytest.mark.parametrize("precision", ["fp32", "amp", "bf16"])
@pytest.mark.parametrize(("attention", "mask"), [("eager", True), ("sdpa", True), ("sdpa", False)])
@pytest.mark.parametrize(("shape", "dropout"), [(GPT2, False), (GPT2, True), (LLAMA, False)])
def test_a_preset_and_what_its_table_names_is_the_library_s_module_and_a_measured_step(
    shape: Transformer, dropout: bool, attention: str, mask: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU a LayerNorm of BF16 has its statistics in BF16; all else is held to the byte."""
    monkeypatch.setattr(nn.functional, "dropout", dropped)
    if not mask:
        causal_by_itself(monkeypatch)
    c = replace(shape, flash=attention == "sdpa", dropout=dropout)
    module, preset = library_model(c, attention).train(), estimate(c, micro_batch=BATCH, precision=precision)
    added = library_terms.beyond(c, preset.options, mask)
    assert added is not None
    inputs = INPUTS if mask else {"input_ids": TOKENS, "labels": TOKENS}
    rank = estimate(module, inputs=inputs, precision=precision).fullest
    assert all(rank.device[kind] == preset.fullest.device[kind] for kind in ("parameters", "gradients", "states"))
    assert rank.total - rank.device.get("buffers", 0) == preset.total + sum(added.values())
    narrow = precision == "bf16"
    statistics = (2 * c.layers + 1) * 2 * TOKENS.numel() * 2 if narrow and not c.rms else 0
    if narrow:
        for p in module.parameters():
            p.data = p.data.bfloat16()  # buffers stay as they are
        inputs = {name: x.bfloat16() if x.is_floating_point() else x for name, x in inputs.items()}
    assert rank.total - rank.device["states"] == peak(module, precision, inputs) + statistics


@pytest.mark.parametrize("precision", ["fp32", "amp", "mixed"])
@pytest.mark.parametrize(("name", "batch", "flash"), [("gpt2", 8, False), ("gpt2", 8, True), ("llama3-8b", 1, True)])
def test_a_preset_in_full_size_and_what_its_table_names_is_the_library_s_module(
    name: str, batch: int, flash: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    causal_by_itself(monkeypatch)
    c = replace(PRESETS[name], flash=flash)
    with torch.device("meta"):
        module = library_model(c, "sdpa" if flash else "eager").train()
        tokens = torch.zeros(batch, c.sequence, dtype=torch.int64)
    rank = estimate(module, inputs={"input_ids": tokens, "labels": tokens}, precision=precision).fullest
    preset = estimate(c, micro_batch=batch, precision=precision)
    added = library_terms.beyond(c, preset.options)
    assert added is not None
    assert rank.total - rank.device.get("buffers", 0) == preset.total + sum(added.values())
    assert f"adds {shown(sum(added.values()))} at the" in preset.table(10_000)


def test_what_the_library_does_not_run_has_no_number() -> None:
    """Bloom's module has other operations; tensor parallelism, recomputation and recipes are other implementations.

    With few tokens or matrices of scores the peak is elsewhere.
    """
    said = "not counted: what an implementation keeps beyond the papers' terms"
    ways: tuple[dict[str, Any], ...] = (
        {"gpus": 2, "tensor": 2}, {"gpus": 2, "pipeline": 2}, {"gpus": 2, "zero": 3}, {"offload": "optimizer"},
        {"recompute": "full"}, {"recipe": "mxfp8"}, {"precision": "fp8"}, {"sequence": 4095}, {"flash": False},
    )  # fmt: skip
    for model, way in (("bloom-176b", {}), *(("llama3-8b", way) for way in ways)):
        assert said in estimate(model, **way).table(1000)
        assert report.as_dict(estimate(model, **way))["beyond"] is None
    assert "beyond" not in estimate("llama3-8b", inference="bf16").table(1000)
    assert sum(report.as_dict(estimate("gpt2"))["beyond"].values()) > 0
