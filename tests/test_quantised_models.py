"""Quantised layers in models of every kind: 16-bit ones, torch's transformer, shared layers, batch norms, misuse."""

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import refusals
import torch
from refusals import refuses
from torch import nn

from fplab import integers
from fplab.errors import LabError
from fplab.nn import (
    FakeQuantize,
    Int4Linear,
    Int8Linear,
    LearnedStep,
    Quantization,
    conversion,
    fake_quantize,
    fake_quantized,
    int4_linears,
    int8_linears,
    observe,
)
from fplab.nn.quantized_model import QuantizedLayer


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))


X = torch.linspace(-3, 3, 5 * 16).reshape(5, 16).sin() * 2


# --- dtypes -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("make", [int8_linears, int4_linears])
def test_a_model_of_another_dtype_stays_one(make: Any, dtype: torch.dtype) -> None:
    """Its weights are quantised from what they are, and layers that are left get inputs of their own dtype."""
    model, x = net().to(dtype), X.to(dtype)
    assert make(model)(x).dtype == dtype
    assert make(model, skip="2")(x).dtype == dtype
    want = make(copy.deepcopy(model).float())[0]
    got = make(model)[0]
    assert torch.equal(got(x.float()), want(x.float()))
    if make is int8_linears:
        assert torch.equal(got(x), want(x.float()).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [int8_linears, int4_linears])
def test_moving_a_quantised_model_to_another_dtype_keeps_its_scales(make: Any, dtype: torch.dtype) -> None:
    model = make(net())
    moved = copy.deepcopy(model).to(dtype)
    assert moved[0].scale.dtype == torch.float32
    assert torch.equal(moved[0].scale, model[0].scale)
    assert moved[0].bias.dtype == dtype
    if make is int8_linears:
        assert torch.equal(moved[0].rows16, model[0].rows16)
    assert moved(X.to(dtype)).dtype == dtype
    assert copy.deepcopy(model).to("meta")[0].scale.is_meta


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_models_are_trained_through_quantisers(dtype: torch.dtype, learned: bool) -> None:
    """Made from one, moved to it, or under autocast; ranges are those of the values, steps stay what they were."""
    how = Quantization("int4", "int8", learned=learned)
    small = net().to(dtype)
    own = fake_quantized(small, observe(small, [X.to(dtype)]), how)
    moved = fake_quantized(net(), observe(net(), [X]), how)
    steps = [m.scale.detach().clone() for m in moved.modules() if isinstance(m, FakeQuantize)]
    moved.to(dtype)
    assert [m.scale.tolist() for m in moved.modules() if isinstance(m, FakeQuantize)] == [s.tolist() for s in steps]
    for model in (own, moved):
        y = model(X.to(dtype))
        assert y.dtype == dtype
        y.float().square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    wide = fake_quantized(net(), observe(net(), [X]), how)
    with torch.autocast("cpu", dtype):
        assert wide(X).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_16_bit_learned_step_counts_as_it_is_and_in_float32(dtype: torch.dtype) -> None:
    """Its inverse in 16 bits would move steps; and the least scale, 2^-126, is 0 in FP16."""
    learned, x = LearnedStep(integers.symmetric(2.9, "int8")).to(dtype), X.to(dtype)
    assert learned.scale.dtype == dtype
    assert torch.equal(learned(x), fake_quantize(x, learned.scale.detach().float()))
    with torch.no_grad():
        learned.scale.zero_()
    assert not learned(torch.zeros(3, dtype=dtype)).any()  # and no NaN


def test_integers_in_give_float32_out() -> None:
    assert int8_linears(net())(torch.ones(2, 16, dtype=torch.int64)).dtype == torch.float32


def test_histograms_of_a_16_bit_model() -> None:
    seen = observe(net().bfloat16(), [X.bfloat16()])
    assert seen["0"].amax == float(X.bfloat16().abs().max())


# --- models -----------------------------------------------------------------------------------------------------
class Shared(nn.Module):
    """One linear layer under two names and called twice, by keyword."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Linear(8, 8)
        self.two = self.one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(input=self.one(input=x).relu())


def test_a_shared_layer_is_replaced_everywhere_by_one() -> None:
    model, x = Shared(), X[:, :8]
    seen = observe(model, [x])
    assert seen["one"] is seen["two"]
    assert seen["one"].total == 2 * x.numel()
    for quantised in (int8_linears(model), int4_linears(model), fake_quantized(model, seen, Quantization())):
        assert quantised.one is quantised.two
        assert type(quantised.one) is not nn.Linear
        quantised(x)
    layer = Int8Linear(model.one)
    assert torch.equal(int8_linears(model)(x), layer(layer(x).relu()))


def test_a_shared_block_is_replaced_inside() -> None:
    block = nn.Sequential(nn.Linear(8, 8))
    model = nn.ModuleList([block, block])
    quantised = int8_linears(model)
    assert quantised[0] is quantised[1]
    assert type(quantised[1][0]) is Int8Linear


@pytest.mark.parametrize("padded", [False, True])
def test_torchs_transformer_multiplies_in_integers_in_evaluation_too(
    padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fast path would take the weights itself, past the layers (not where there are hooks, so here are none)."""
    called: list[nn.Module] = []
    for kind in (Int8Linear, QuantizedLayer):
        right = kind.forward
        monkeypatch.setattr(kind, "forward", lambda self, x, f=right: (called.append(self), f(self, x))[1])
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(3, 6, 16)
    mask = torch.arange(6) >= torch.tensor([[6], [4], [3]]) if padded else None
    seen = observe(model, [x])
    assert sorted(seen) == [f"layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)]
    assert all(one.total for one in seen.values())

    for quantised in (int8_linears(model, "vectorwise"), fake_quantized(model, seen, Quantization("int4", "int4"))):
        called.clear()
        with torch.no_grad():
            quantised(x, src_key_padding_mask=mask)
        assert called == [quantised.get_submodule(name) for name in seen]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        assert model(x, src_key_padding_mask=mask).shape[0] == 3  # the model itself is as it was
    assert model.layers[0].activation_relu_or_gelu == 1


def test_observing_leaves_a_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    model[2].eval()
    before = copy.deepcopy(model.state_dict())
    seen = observe(model, [X])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model] == [True, True, False, True]
    hidden = copy.deepcopy(model).eval()[:3](X).detach()
    assert seen["3"].amax == float(hidden.abs().max())


# --- misuse -----------------------------------------------------------------------------------------------------
class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def with_weight(value: float) -> nn.Sequential:
    model = net()
    with torch.no_grad():
        model[2].weight[1, 1] = value
    return model


SEEN = observe(net(), [X])


test_what_is_refused_is_said = refusals.matching(
    (lambda: int8_linears(with_weight(np.nan)), r"int8_linears\(<Sequential>\): layer '2': .*element 5 is nan"),
    (lambda: int4_linears(with_weight(np.inf)), r"layer '2': .*is inf"),
    (lambda: int8_linears(nn.Sequential(nn.ReLU(), nn.Linear(133153, 1))), r"layer '1': K=133153 products of magn"),
    (lambda: int8_linears(nn.ReLU()), r"ReLU has no nn\.Linear; what could be quantised is of other types"),
    (lambda: int8_linears("model"), r"model is str; it must be a torch\.nn\.Module"),
    (lambda: int8_linears(net(), threshold=float("nan")), r"layer '0': threshold=nan is not possible; allowed: 0"),
    (lambda: Int8Linear(nn.Linear(4, 2), threshold=-1), r"threshold=-1 is not possible"),
    (lambda: Int8Linear(nn.Linear(4, 2), threshold="6"), r"threshold='6' is not possible"),
    (lambda: Int8Linear(nn.Linear(4, 2), "absmax", amax=-1.0), r"amax=-1\.0 is negative"),
    (lambda: Int8Linear(nn.Linear(4, 2), "absmax", amax=float("nan")), r"amax: element 0 is nan"),
    (lambda: Int8Linear(nn.Conv2d(1, 1, 1)), r"linear is Conv2d, and takes the place of an nn\.Linear"),
    (lambda: Int4Linear(nn.Conv2d(1, 1, 1)), r"linear is Conv2d"),
    (lambda: Int8Linear(nn.Linear(4, 2))(torch.ones(3, 5)), r"inputs have shape \(3, 5\), and the layer takes 4"),
    (lambda: Int4Linear(nn.Linear(4, 2))(torch.tensor(1.0)), r"inputs have shape \(\), and the layer takes 4"),
    (lambda: int8_linears(with_weight(1e6))[2](torch.full((1, 12), 7.0)), r"a weight that an outlier meets is bey"),
    (lambda: fake_quantized(Unused(), observe(Unused(), [X]), Quantization()),
     r"layer 'unused': the calibrator saw no data: no batch went through it; give observe\(model, batches\) some"),
    (lambda: fake_quantized(net(), SEEN, Quantization(weights="uint8")), r"layer '0': values reach -.* no sign"),
    (lambda: fake_quantized(with_weight(np.nan), SEEN, Quantization()), r"layer '2': .*is nan"),
    (lambda: observe(net(), [(X, X)]), r"batch 0 is a tuple; batches are the model's inputs, tensors: .*for x, _"),
    (lambda: observe(5, [X]), r"model is int; it must be a torch\.nn\.Module"),
    (lambda: observe(net(), [X * np.inf]), r"observe\(<Sequential>, <list>\): inputs of layer '0': .* 0 is -?inf"),
    (lambda: fake_quantize([1.0], 1.0), r"x is a list; fake quantisation takes a torch tensor"),
    (lambda: fake_quantize(X, "a"), r"scale and zero_point are numbers, or tensors of one number a channel"),
    (lambda: fake_quantize(X, 1.0, True), r"zero points are integers of the grid int8"),
    (lambda: fake_quantize(X, torch.ones(5), axis=0.5), r"axis=0\.5 of a tensor of 2 dimensions; allowed: -2 to 1"),
    (lambda: fake_quantize(torch.tensor(1.0), torch.ones(1), axis=0), r"of a tensor of 0 dimensions; allowed: non"),
    (lambda: FakeQuantize("int8"), r"how is a str; pass what fplab\.integers\.symmetric, affine or scheme"),
    (lambda: LearnedStep(None), r"how is a NoneType; pass what"),
)  # fmt: skip


def test_a_hook_is_gone_after_an_error_too() -> None:
    model = net()
    with pytest.raises(LabError):
        observe(model, [X, X * np.inf])
    assert not model[0]._forward_pre_hooks
    assert model.training
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_learned_step_takes_an_empty_batch() -> None:
    assert LearnedStep(integers.symmetric(1.0))(torch.zeros(0, 3)).shape == (0, 3)


# --- layers of Hugging Face's --------------------------------------------------------------------------------------
class Conv1D(nn.Module):
    """GPT-2's linear layer, whose weight lies transposed: transformers.pytorch_utils.Conv1D."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.weight, self.bias = nf, nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


class Experts(nn.Module):
    """Mixtral's, as transformers 5 has them: a parameter for all experts, and kernels that a configuration chooses."""

    is_transposed = False

    def __init__(self) -> None:
        super().__init__()
        self.config = type("Config", (), {"_experts_implementation": "grouped_mm"})()
        self.up_proj = nn.Parameter(torch.randn(3, 8, 12))
        self.down_proj = nn.Parameter(torch.randn(3, 12, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.config._experts_implementation == "eager", "the others take the parameters themselves"
        for expert in torch.arange(3):
            x = x + nn.functional.linear(nn.functional.linear(x, self.up_proj[expert]).relu(), self.down_proj[expert])
        return x


@pytest.mark.parametrize(("make", "kind"), [(int8_linears, Int8Linear), (int4_linears, Int4Linear)])
def test_gpt2s_layers_and_mixtrals_experts_are_converted(make: Any, kind: type) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Conv1D(12, 16), Experts(), nn.Linear(12, 4))
    got = make(model)
    plain = nn.Linear(16, 12)
    plain.weight.data, plain.bias.data = model[0].weight.T.data, model[0].bias.data
    want = kind(plain)(X)
    assert torch.equal(got[0](X), want)
    for e in range(3):
        up, down = nn.Linear(12, 8, bias=False), nn.Linear(8, 12, bias=False)
        up.weight.data, down.weight.data = model[1].up_proj[e].data, model[1].down_proj[e].data
        want = want + kind(down)(kind(up)(want).relu())
    assert torch.equal(got[1](got[0](X)), want)
    assert model[1].config._experts_implementation == "grouped_mm", "the model itself is left as it is"
    assert conversion(got).share == 1
    assert len(conversion(got).converted) == 8
    assert not conversion(model).converted
    refuses(lambda: make(model, skip=["3"]), r"skip names .*, but the linear layers are \['0', '1', '2'\]")
    assert conversion(make(model, skip=["1"])).left == {"1": ("Experts", 576)}


def test_what_stays_is_said_where_it_is_much() -> None:
    class Strange(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(n, 2))

    big, small = (nn.Sequential(nn.Linear(16, 16), nn.Embedding(9, 9), Strange(n)) for n in (20, 1))
    with pytest.warns(UserWarning, match=r"67.9%.*these stay: 2 \(Strange\). fplab.nn.conversion\(model\) says all"):
        done = int8_linears(big)
    assert str(conversion(done)) == (
        "Layers in integers: 1, with 67.9% of the weights in matrices.\n1 (Embedding) stays, 81 weights.\n"
        "2 (Strange) stays, 40 weights."
    )
    int8_linears(small)  # says nothing


def test_batches_may_be_dictionaries() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, *, x: torch.Tensor, scale: float) -> torch.Tensor:
            return self.net(x * scale)

    seen = observe(Named(), [{"x": X, "scale": 2.0}])
    assert seen["net.0"].most == observe(net(), [X * 2.0])["0"].most
