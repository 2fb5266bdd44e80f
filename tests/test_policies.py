"""Policies: what each record says is what runs, in which formats, and two that are the same are the same bits."""

import re
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import refusals
import torch
from torch import nn

import fplab
from fplab.language import speaking
from fplab.training import DIGITS_MLP, fit, policies, tasks
from fplab.training.policies import POLICIES, CastModel, Made, Policy, Products
from fplab.training.tasks import Batch, Task
from fplab.words import Text

NAMES = [p.name for p in POLICIES]
APEX = {  # apex/amp/frontend.py: cast_model_type, patched functions, keep_batchnorm_fp32, master_weights, loss_scale
    "o0": (None, False, False, False, 1.0),
    "o1": (None, True, False, False, "dynamic"),
    "o2": ("fp16", False, True, True, "dynamic"),
    "o3": ("fp16", False, False, False, 1.0),
}


def small(model: type[nn.Module] | None = None) -> Task:
    """The digits, for a model of a moment's work."""
    task = tasks.perceptron(width=16, name="small")
    return task if model is None else replace(task, model=lambda seed: model())


def fits(tensor: torch.Tensor, fmt: str) -> bool:
    """Whether every value is one of the format's."""
    values = tensor.detach().float().numpy()
    return np.asarray(fplab.quantize(values, fmt)).tobytes() == values.tobytes()


# --- the table --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("level", APEX)
def test_apexs_levels_are_apexs(level: str) -> None:
    p = policies.get(level)
    cast, patched, keep_norms, master, scale = APEX[level]
    assert p.cast == cast
    assert (p.autocast is not None) == patched
    assert (p.keep_fp32 == policies.NORMS) == keep_norms
    assert (p.update == "master") == master
    made = p.scaler()
    if scale == "dynamic":
        assert (made.machine.highest, made.machine.lowest, made.get_scale()) == (2.0**24, 0.0, 2.0**16)
    else:
        assert made.get_scale() == scale
        made.update(2.0)  # a static scale has no say in where it goes
        assert made.state_dict()["static"] == scale


def test_keras_policies_hold_fp32_and_scale_as_keras() -> None:
    half, brain = policies.get("mixed_float16"), policies.get("mixed_bfloat16")
    assert half.weights == brain.weights == "fp32"
    assert (half.cast, brain.cast) == ("fp16", "bf16")
    scale = half.scaler()
    assert (scale.get_scale(), scale.machine.growth_interval) == (2.0**15, 2000)
    assert brain.scaler().get_scale() == 1.0


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
def test_pure_policies_hold_everything_in_one_format(fmt: str) -> None:
    p = policies.get(f"pure_{fmt}")
    assert p.products is not None
    assert {p.cast, p.logits, p.weights, p.states, p.products.inputs} == {fmt}
    assert (p.update, p.scaler) == ("nearest", policies.UNSCALED)
    assert p.products.accumulate == "fp32"  # as the Tensor Cores do: what is stored is the format's


def test_names_are_distinct_and_found_in_any_case() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert policies.get("Mixed_Float16") is policies.get("mixed_float16")
    assert policies.get(POLICIES[0]) is POLICIES[0]
    with pytest.raises(FrozenInstanceError):
        POLICIES[0].name = "other"  # type: ignore[misc]


def test_descriptions_tell_policies_apart() -> None:
    """All but fp32 and Apex's O0, which differ in their names only."""
    told = {p.name: {k: v for k, v in p.described().items() if k != "name"} for p in POLICIES}
    alike = {(a, b) for a in NAMES for b in NAMES if a < b and told[a] == told[b]}
    assert alike == {("fp32", "o0")}
    assert set(POLICIES[0].described()) == {f.name for f in fields(Policy)} - {"about", "source"}


def test_updates_are_the_optimizers_rules() -> None:
    from fplab.training.optimizers import RULES

    assert tuple(RULES) == policies.UPDATES


test_impossible_policies_are_refused = refusals.beginning(
    (lambda: policies.get("pure_fp61"),
     "fplab.training.policies.get('pure_fp61'): unknown policy 'pure_fp61'. Allowed: fp32, tf32,"),
    (lambda: policies.get(16), "fplab.training.policies.get(16): unknown policy 16. Allowed: fp32,"),
    (lambda: Policy("x", "", cast="fp8"), "unknown cast of policy 'x' 'fp8'. Allowed: fp32, fp16, bf16."),
    (lambda: Policy("x", "", cast="fp16", autocast="bf16"),
     "policy 'x': cast='fp16' and autocast='bf16'; allowed: one."),
    (lambda: Policy("x", "", weights="fp61"), "unknown format 'fp61'"),
    (lambda: Policy("x", "", update="mater"),
     "unknown update of policy 'x' 'mater'. Allowed: nearest, stochastic, kahan, master. Did you mean 'master'?"),
)  # fmt: skip


# --- what runs --------------------------------------------------------------------------------------------------
class Tapped(nn.Module):
    """A small network that notes what it computes with."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Linear(16, 10)
        for i, p in enumerate(self.parameters()):
            if p.ndim == 2:
                nn.init.normal_(p, std=0.2, generator=torch.Generator().manual_seed(i))
        self.seen: dict[str, torch.dtype] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        z = self.norm(h)
        y = self.last(z.relu())
        self.seen = {"x": x.dtype, "first": self.first.weight.dtype, "norm": self.norm.weight.dtype, "h": h.dtype,
                     "z": z.dtype, "y": y.dtype}  # fmt: skip
        return y


F, H, B = torch.float32, torch.float16, torch.bfloat16
SEEN = {  # x, first weight, norm weight, h, z, y
    "fp32": (F, F, F, F, F, F),
    "o0": (F, F, F, F, F, F),
    "o1": (F, F, F, H, H, H),
    "o2": (H, H, F, H, H, H),
    "o3": (H, H, H, H, H, H),
    "pure_bf16": (B, B, B, B, B, B),
    "mixed_bfloat16": (B, B, B, B, B, B),
    "bf16": (F, F, F, B, B, B),
}


@pytest.mark.parametrize("name", SEEN)
def test_every_tensor_has_the_dtype_that_the_policy_says(name: str) -> None:
    run = fit(small(Tapped), name, steps=2)
    assert tuple(run.model.seen.values()) == SEEN[name]


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_states_hold_values_of_their_formats(name: str) -> None:
    p = policies.get(name)
    task = small()
    model = task.model(0)
    made = Made("optimizers", "AdamW", (("lr", 1e-2), ("eps", 1e-4)))
    optimizer = p.optimizer(made, model.parameters())
    run, scaler = p.model(model), p.scaler()
    scaling = p.products.scaling() if p.products and p.products.scaling else None
    for batch in task.batches(0, 2):
        optimizer.zero_grad()
        with p.running(model, scaling=scaling):
            loss = task.loss(run, batch)
            assert loss.dtype == policies.DTYPES[p.logits]
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    for w in model.parameters():
        assert w.dtype == torch.float32
        assert fits(w, p.weights)
        state = optimizer.state[w]
        assert fits(state["exp_avg"], p.states)
        assert fits(state["exp_avg_sq"], p.states)
        assert ("master" in state) == (p.update == "master")
        if p.update == "master":
            assert not fits(state["master"], p.weights)
            assert fplab.quantize(state["master"].numpy(), p.weights).tobytes() == w.detach().numpy().tobytes()
    assert p.weights == "fp32" or not all(fits(w, "e4m3") for w in model.parameters())


def test_a_master_copy_and_keras_variables_are_the_same_bits() -> None:
    """An FP32 copy beside FP16 weights, and FP32 variables cast where they are used, compute the same."""
    scale = policies.scaler("StaticScaler", scale=1024.0)
    one = fit(small(), replace(policies.get("fp16_master"), scaler=scale), steps=5)
    two = fit(small(), replace(policies.get("mixed_float16"), scaler=scale), steps=5)
    assert one.losses.tobytes() == two.losses.tobytes()
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert fplab.quantize(b.detach().numpy(), "fp16").tobytes() == a.detach().numpy().tobytes()
    assert one.losses.tobytes() != fit(small(), "pure_fp16", steps=5).losses.tobytes()


def test_a_power_of_two_scale_that_loses_nothing_changes_nothing() -> None:
    """BF16 has the range, so the scale shifts every gradient and comes out again."""
    one = fit(small(), replace(policies.get("mixed_bfloat16"), scaler=policies.scaler("StaticScaler", scale=1024.0)),
              steps=5)  # fmt: skip
    two = fit(small(), "mixed_bfloat16", steps=5)
    assert one.losses.tobytes() == two.losses.tobytes()


def test_running_statistics_are_kept() -> None:
    """A cast model writes batch norm's statistics to the model's own buffers, in FP16 where it is cast too."""
    for name, fmt in (("o2", "fp32"), ("o3", "fp16")):
        model = fit(small(Tapped), name, steps=3).model
        assert model.norm.running_mean.abs().max() > 0
        assert int(model.norm.num_batches_tracked) == 3
        assert fits(model.norm.running_mean, fmt)
    assert not fits(fit(small(Tapped), "o2", steps=3).model.norm.running_var, "fp16")


def test_a_kept_layer_computes_in_fp32() -> None:
    """Batch norm of a cast model: FP32 of the FP16 input, rounded at the end; and its hooks are gone after."""
    model = Tapped()
    kept = CastModel(model, "fp16", policies.NORMS)
    x = torch.rand(8, 64)
    with torch.no_grad():
        got = kept(x)
        h = nn.functional.linear(x.half(), model.first.weight.half(), model.first.bias.half())
        z = nn.functional.batch_norm(h.float(), None, None, model.norm.weight, model.norm.bias, training=True).half()
        want = nn.functional.linear(z.relu(), model.last.weight.half(), model.last.bias.half()).float()
    assert torch.equal(got, want)
    assert not model.norm._forward_hooks
    assert not model.norm._forward_pre_hooks


def test_integers_are_not_cast() -> None:
    task = tasks.characters(width=8, layers=1, heads=2, context=8, batch=2)
    batch: Batch = next(task.batches(0, 1))
    model = policies.get("o2").model(task.model(0))
    with torch.no_grad():
        assert model(batch.inputs).dtype == torch.float32


@pytest.mark.parametrize(("fmt", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_reductions_have_fp32_inside_but_for_log_softmax(fmt: str, dtype: torch.dtype) -> None:
    """A divergence of torch's CPU: its half log_softmax rounds inside; the others round FP32's result once."""
    z = (torch.randn(128, 10, generator=torch.Generator().manual_seed(0)) * 0.3).to(dtype)
    ops = {
        "softmax": lambda x: x.softmax(-1),
        "layer norm": lambda x: nn.functional.layer_norm(x, (10,)),
        "log_softmax": lambda x: x.log_softmax(-1),
    }
    off = {}
    for name, op in ops.items():
        got, want = (fplab.encode(v.float().numpy(), fmt).astype(np.int64) for v in (op(z), op(z.float()).to(dtype)))
        off[name] = np.abs(got - want)
    assert (off["softmax"] > 0).mean() < 0.01  # FP32's own last bits at a tie
    assert (off["layer norm"] > 0).mean() < 0.01
    assert (off["log_softmax"] > 0).mean() > 0.1
    assert off["log_softmax"].max() == 1


# --- the products -----------------------------------------------------------------------------------------------
PRODUCTS = {"tf32": "tf32", "pure_bf16": "bf16", "fp16_master": "fp16"}


def test_products_have_the_gpus_bits() -> None:
    """The first step's first layer, against the lab's own product; torch's FP32 product differs."""
    model = nn.Linear(64, 10, bias=False)
    x = torch.rand(128, 64)
    p = policies.get("tf32")
    with p.running(model), torch.no_grad():
        got = p.model(model)(x)
    want = fplab.tensorcore.matmul(x.numpy(), model.weight.detach().numpy().T, gpu="H100", inputs="tf32")
    assert got.numpy().tobytes() == np.asarray(want).tobytes()
    with torch.no_grad():
        assert got.numpy().tobytes() != model(x).numpy().tobytes()


def test_generations_differ_and_none_is_torchs_own() -> None:
    """TF32 products on two GPUs, and torch's own in FP32: after two steps the weights differ."""
    weights = {
        gpu: fit(tasks.perceptron(width=64), "tf32", steps=2, gpu=gpu).model[4].weight.detach().numpy().tobytes()
        for gpu in ("A100", "H100", None)
    }
    assert len(set(weights.values())) == 3


def test_fp8_products_take_e4m3_forward_and_e5m2_backward() -> None:
    """With operands that E4M3 and E5M2 round differently, and the per-tensor scales of the run."""
    p = policies.get("fp8_hybrid")
    assert p.products == Products(
        "e4m3", gradients="e5m2", scaling=Made("scalers", "AmaxScaling", (("fmt", "e4m3"), ("gradients", "e5m2")))
    )
    draw = torch.Generator().manual_seed(0)
    model = nn.Linear(32, 16, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(fplab.quantize(torch.randn(16, 32, generator=draw).numpy(), "e4m3")))
    x = torch.from_numpy(fplab.quantize(torch.randn(64, 32, generator=draw).numpy(), "e4m3")).requires_grad_()
    g = torch.randn(64, 16, generator=draw)
    with p.running(model):
        y = model(x)
        (y * g).sum().backward()
    product = fplab.tensorcore.matmul
    y_want = product(x.detach().numpy(), model.weight.detach().numpy().T, gpu="H100", inputs="e4m3")
    assert y.detach().numpy().tobytes() == np.asarray(y_want).tobytes()
    rounded = fplab.quantize(g.numpy(), "e5m2")
    exact = rounded.astype(np.float64) @ model.weight.detach().numpy().astype(np.float64)
    assert x.grad is not None
    close = np.abs(x.grad.numpy() - exact).max()
    assert close < np.abs(x.grad.numpy() - g.numpy().astype(np.float64) @ model.weight.detach().numpy()).max() / 10


def test_formats_torch_lacks_are_rounded_by_hooks() -> None:
    p = Policy("e4m3 activations", "", rounded=(("activations", "e4m3"),))
    seen = []
    model = DIGITS_MLP.model(0)
    handle = model[1].register_forward_pre_hook(lambda _, xs: seen.append(xs[0].detach().clone()))
    with p.running(model):
        p.model(model)(torch.rand(4, 64))
    handle.remove()
    model(torch.rand(4, 64))
    assert fits(seen[0], "e4m3")
    assert seen[0].any()


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "fp16_master", "fp8_hybrid"])
def test_mixed_precision_learns(name: str) -> None:
    made = Made("optimizers", "SGD", (("lr", 0.5), ("momentum", 0.8)))
    run = fit(tasks.perceptron(width=32, hidden=1), name, steps=25, optimizer=made)
    assert run.scores.top1 > 0.75
    assert run.losses[-5:].mean() < 0.6 * run.losses[0]


def test_what_a_policy_is_about_is_said_in_both_languages() -> None:
    for policy in POLICIES:
        assert isinstance(policy.about, Text)
        assert policy.about.zh != policy.about.en
        names = r"TF32|FP\d+|BF16|E\dM\d|O\d|2\^24"
        assert set(re.findall(names, policy.about.en)) == set(re.findall(names, policy.about.zh))
        with speaking("zh"):
            assert f"{policy.about}" == policy.about.zh
        assert "about" not in policy.described()
