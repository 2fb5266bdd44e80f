"""Modules of the transformers library, estimated: to the byte of a measured step, and of the presets beside them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from family_steps import library
from torch import nn

from fplab.memory import Transformer, estimate, stages
from fplab.memory.measuring import Tracker
from fplab.nn.cuda_autocast import autocast

BATCH, LENGTH = 2, 32
TOKENS = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) * 7 % 96
# Without it the library looks at values to leave a mask out, which a pass on shapes alone does not have.
MASK = torch.ones(LENGTH, LENGTH).tril().log().expand(BATCH, 1, LENGTH, LENGTH).clone()
INPUTS = {"input_ids": TOKENS, "labels": TOKENS, "attention_mask": MASK}
SHAPE = Transformer("gpt2", layers=3, hidden=48, heads=4, vocabulary=2048, sequence=LENGTH, dropout=False)


def gpt2(attention: str = "eager") -> nn.Module:
    """GPT-2 with the exact GELU, without dropout."""
    transformers = library("transformers")
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=SHAPE.layers, n_embd=SHAPE.hidden, n_head=SHAPE.heads, vocab_size=SHAPE.vocabulary, n_positions=LENGTH,
        activation_function="gelu", attn_implementation=attention, use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    ))  # fmt: skip


def llama(attention: str = "sdpa") -> nn.Module:
    """Two layers with gated MLPs, RMS norms and fewer key heads."""
    transformers = library("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=48, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=96, max_position_embeddings=LENGTH, attn_implementation=attention, use_cache=False,
    ))  # fmt: skip


def dropped(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Dropout as a GPU has it, which keeps a mask of bytes."""
    return torch.native_dropout(x, p, True)[0] if training and p else x


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
@pytest.mark.parametrize("model", [gpt2, llama])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_the_estimate_of_a_library_s_model_is_the_peak_of_its_step(
    model: Any, attention: str, precision: str, reentrant: bool | None
) -> None:
    module = model(attention).train()
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


def test_a_preset_counts_what_the_library_s_module_holds_but_for_what_is_named() -> None:
    """The formulas leave out the norms' statistics and indices; the module's logits live as long as its output."""
    c, tokens = SHAPE, BATCH * LENGTH
    ours = estimate(c, micro_batch=BATCH, precision="fp32").fullest
    module = gpt2()
    theirs = estimate(module, inputs=INPUTS, precision="fp32").fullest
    assert {kind: ours.device[kind] for kind in ("parameters", "gradients", "states")} == {
        kind: theirs.device[kind] for kind in ("parameters", "gradients", "states")
    }
    statistics, labels, positions, counted = 2 * 4 * tokens * (2 * c.layers + 1), 8 * tokens, 8 * LENGTH, 4
    assert theirs.device["activations"] - ours.device["activations"] == statistics + labels + positions + counted
    logits = 4 * tokens * c.vocabulary
    assert ours.temporary == {"gradients of the logits": 2 * logits}
    assert theirs.temporary == {
        stages.PASSING: 3 * logits + 8 - labels - counted
    }  # the loss, its gradient; what is freed
