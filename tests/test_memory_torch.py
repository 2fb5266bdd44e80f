"""Real torch modules: on the meta device against the configurations, saved tensors traced, live bytes tracked."""

import pytest
import torch
from torch import nn

from fplab.errors import LabError
from fplab.memory import PRESETS, Tracker, Transformer, build, estimate, preset, saved_by, trace
from fplab.memory.models import tensors_of
from fplab.memory.modules import from_module

GPT = Transformer("gpt", 2, 32, 4, 50, 16)
LLAMA = Transformer("llama", 2, 32, 4, 50, 16, kv_heads=2, ffn=48, positions="rotary", gated=True, rms=True, bias=False,
                    tied=False, dropout=False)  # fmt: skip
BLOOM = Transformer("bloom", 2, 32, 4, 50, 16, positions="alibi", embedding_norm=True, dropout=False)
KINDS = (GPT, LLAMA, BLOOM)


def batch(c: Transformer, size: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.arange(size * (c.sequence + 1)).reshape(size, -1) * 7 % c.vocabulary
    return tokens[:, :-1], tokens[:, 1:]


# --- modules ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PRESETS)
def test_a_real_module_on_the_meta_device_has_exactly_these_tensors(name: str) -> None:
    c = preset(name)
    module = build(c, "meta")
    model = tensors_of(c)
    wanted = {t.name: t.shape for t in (*model.embedding, *model.head)}
    wanted |= {f"layers.{i}.{t.name}": t.shape for i, layer in enumerate(model.layers) for t in layer}
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == wanted
    assert sum(p.numel() for p in module.parameters()) == c.parameters


@pytest.mark.parametrize("name", ["gpt2", "llama3-405b"])
def test_a_module_gives_the_same_model_states_as_its_configuration(name: str) -> None:
    options = {"gpus": 8, "zero": 1, "optimizer": "adamw8bit"}
    ours, theirs = estimate(preset(name), **options).fullest, estimate(build(preset(name), "meta"), **options).fullest
    for kind in ("parameters", "gradients", "master", "states"):
        assert ours.device[kind] == theirs.device[kind]


def test_layers_are_found_by_their_numbers() -> None:
    found = from_module(build(GPT, "meta"))
    assert len(found.layers) == 2
    assert [t.name for t in found.embedding] == ["tokens.weight", "positions.weight"]
    assert [t.name for t in found.head] == ["norm.weight", "norm.bias"]
    assert [rank.layers for rank in estimate(build(GPT, "meta"), gpus=2, pipeline=2).stages] == [1, 1]


def test_buffers_and_frozen_parameters_have_no_gradient() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    module[0].bias.requires_grad_(False)
    device = estimate(module, precision="fp32").fullest.device
    assert device["parameters"] == 4 * (20 + 5 + 5)
    assert device["gradients"] == device["parameters"]
    assert device["buffers"] == 4 * 5 + 4 * (5 + 5) + 8


def test_shared_parameters_count_once() -> None:
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[1].weight = module[0].weight
    assert estimate(module).parameters == 16


# --- saved activations ------------------------------------------------------------------------------------------
def test_what_a_small_net_saves_counted_by_hand() -> None:
    """The first layer's input is the caller's; ReLU saves its output, the second layer its input: one storage."""
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Sigmoid())
    saved = saved_by(net, torch.zeros(5, 8))
    assert [(one.where, one.shape, one.bytes) for one in saved] == [("1", (5, 16), 320), ("3", (5, 4), 80)]
    assert trace(net, torch.zeros(5, 8)) == saved
    assert estimate(net, inputs=torch.zeros(5, 8), precision="fp32").fullest.device["activations"] == 400


@pytest.mark.parametrize("c", KINDS, ids=lambda c: c.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_trace_is_what_a_real_pass_saves_and_holds(c: Transformer, dtype: torch.dtype, recompute: str) -> None:
    """Three counts of the same bytes: traced on shapes alone, hooked in a real pass, and alive after it.

    Each checkpoint also keeps the state of the random generator, 5,056 bytes on the CPU, which no operation makes.
    """
    tokens, targets = batch(c)
    network = build(c, dtype=dtype, recompute=recompute)
    real = saved_by(network, tokens, targets)
    assert trace(network, tokens, targets, device="cpu") == real
    with Tracker() as tracker:
        tracker.mark([*network.parameters(), tokens, targets], "given")
        loss = network(tokens, targets)
        tracker.mark([loss], "loss")
        assert tracker.live["other"] == sum(one.bytes for one in real)


def test_tracing_costs_no_memory_and_leaves_the_module_alone() -> None:
    c = preset("llama3-8b")
    network = build(c, "meta", torch.bfloat16)
    tokens = torch.zeros(1, c.sequence, dtype=torch.int64, device="meta")
    saved = trace(network, tokens, tokens)
    assert sum(one.bytes for one in saved) > 45 * 2**30
    assert all(p.grad is None and p.device.type == "meta" for p in network.parameters())


def test_where_a_cpu_and_a_gpu_differ() -> None:
    """LayerNorm in 16 bits: mean and reciprocal deviation in the input's format on the CPU, in FP32 elsewhere."""
    tokens, targets = batch(GPT)
    network = build(GPT, dtype=torch.bfloat16)
    cpu, meta = (sum(one.bytes for one in trace(network, tokens, targets, device=d)) for d in ("cpu", "meta"))
    norms = 2 * GPT.layers + 1
    assert meta - cpu == norms * 2 * tokens.numel() * 2


def test_a_module_that_needs_values_is_refused() -> None:
    class Peeking(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if x.sum().item() > 0 else x

    with pytest.raises(LabError, match=r"Peeking does not run on shapes alone \(meta\): "):
        trace(Peeking(2, 2), torch.zeros(1, 2))
    with pytest.raises(LabError, match=r"inputs= traces a whole forward pass; with it, tensor and pipeline must be 1"):
        estimate(build(GPT, "meta"), inputs=batch(GPT), gpus=2, pipeline=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is present")
def test_a_gpu_cannot_be_traced_without_one() -> None:
    with pytest.raises(LabError, match=r"device='cuda' cannot be traced without a GPU; allowed: 'meta', 'cpu'\."):
        trace(nn.Linear(2, 2), torch.zeros(1, 2), device="cuda")


# --- the tracker ------------------------------------------------------------------------------------------------
def test_the_tracker_sees_births_deaths_and_views() -> None:
    with Tracker() as tracker:
        a = torch.zeros(100)
        b = a.view(10, 10)[2:]
        assert tracker.live["other"] == 400
        tracker.mark([b], "views")
        assert (tracker.live["other"], tracker.live["views"]) == (0, 400)
        del a
        assert tracker.total == 400
        c = b + 1
        assert (tracker.total, tracker.peak) == (400 + 320, 720)
        del b
        assert (tracker.total, tracker.peak) == (320, 720)
        tracker.restart()
        assert (tracker.peak, tracker.at_peak) == (320, {"other": 320})
        del c
        assert tracker.total == 0


def test_the_tracker_sees_gradients_and_the_meta_device() -> None:
    for device in ("cpu", "meta"):
        layer = nn.Linear(10, 10, device=device)
        with Tracker() as tracker:
            tracker.mark(layer.parameters(), "parameters")
            layer(torch.ones(4, 10, device=device)).sum().backward()
            tracker.mark([p.grad for p in layer.parameters()], "gradients")
            assert (tracker.live["parameters"], tracker.live["gradients"]) == (440, 440)


# --- the network itself -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("c", KINDS, ids=lambda c: c.name)
def test_the_network_predicts_from_the_past_alone(c: Transformer) -> None:
    network = build(c).eval()
    tokens, _ = batch(c, 1)
    changed = tokens.clone()
    changed[0, 9] += 1
    with torch.no_grad():
        before, after = network(tokens), network(changed)
    assert torch.equal(before[0, :9], after[0, :9])
    assert not torch.equal(before[0, 9], after[0, 9])
    assert not torch.equal(before[0, 12], after[0, 12])


def test_alibi_takes_more_from_what_is_further_away() -> None:
    from fplab.memory.networks import distances

    bias = distances(2, torch.zeros(1, 2, 4, 4))
    assert bias[0, 3].tolist() == [-3 / 16, -2 / 16, -1 / 16, 0]
    assert bias[1, 3].tolist() == [-3 / 256, -2 / 256, -1 / 256, 0]


@pytest.mark.parametrize("c", KINDS, ids=lambda c: c.name)
def test_attention_without_matrices_is_the_same_function(c: Transformer) -> None:
    import dataclasses

    if c.positions == "alibi":
        return  # its bias needs the matrix
    tokens, targets = batch(c)
    plain, flash = (build(dataclasses.replace(c, flash=f)).eval() for f in (False, True))
    torch.testing.assert_close(plain(tokens, targets), flash(tokens, targets))
