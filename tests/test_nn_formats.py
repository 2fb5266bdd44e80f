"""Rounding with a straight-through gradient, and models whose tensors are held in formats."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import nn

import fplab
from fplab.errors import LabError
from fplab.formats import NAMES, Format, get
from fplab.nn import formats, quantize
from fplab.nn.straight_through import CARRIERS, holds


def patterns(n: int, key: int) -> torch.Tensor:
    """Random float32 bit patterns without NaN: every exponent, both signs, infinities."""
    values = np.random.Philox(key=key).random_raw(n).astype(np.uint32).view(np.float32)
    values[np.isnan(values)] = -0.0
    values[:3] = 0.0, np.inf, -np.inf
    return torch.from_numpy(values)


def bits(x: torch.Tensor) -> np.ndarray:
    return x.detach().numpy().view(np.uint32)


# --- quantize -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rounding", ["rne", "rna", "rtz", "rtp", "rtn", "odd", "stochastic"])
@pytest.mark.parametrize("fmt", ["fp16", "bf16", "tf32", "e4m3", "e5m2", "e2m1", "e4m3fnuz"])
def test_its_bits_are_those_of_the_kernels(fmt: str, rounding: str) -> None:
    x = patterns(4096, 1).reshape(4, -1)
    got = quantize(x.clone().requires_grad_(), fmt, rounding, seed=7)
    assert got.dtype == torch.float32
    np.testing.assert_array_equal(bits(got), fplab.quantize(x.numpy(), fmt, rounding, seed=7).view(np.uint32))


def test_the_gradient_passes_straight_through() -> None:
    """Also where the forward pass saturates, flushes to zero, or changes nothing."""
    x = torch.tensor([1e-30, 0.3, -7.0, 1e9], requires_grad=True)
    weight = torch.tensor([1.0, -2.5, 0.1, 3.0])
    (quantize(x, "e4m3", overflow="saturate") * weight).sum().backward()
    assert torch.equal(x.grad, weight)


def test_the_gradient_can_be_rounded_to_a_format_of_its_own() -> None:
    x = torch.linspace(-3, 3, 64, requires_grad=True)
    incoming = patterns(128, 3)[:64].clamp(-1e4, 1e4)
    for forward in ("bf16", None):
        x.grad = None
        quantize(x, forward, backward="e5m2").backward(incoming)
        np.testing.assert_array_equal(bits(x.grad), fplab.quantize(incoming.numpy(), "e5m2").view(np.uint32))


def test_stochastic_rounding_draws_other_words_on_the_way_back() -> None:
    x = torch.full((4096,), 1 + 2.0**-9, requires_grad=True)
    up = quantize(x, "bf16", "stochastic", seed=3, backward="bf16")
    up.backward(x.detach())
    assert 0.2 < (up > 1).float().mean() < 0.3
    assert 0.2 < (x.grad > 1).float().mean() < 0.3
    assert (up > 1).ne(x.grad > 1).any()
    again = x.detach().clone().requires_grad_()
    quantize(again, "bf16", "stochastic", seed=3, backward="bf16").backward(x.detach())
    assert torch.equal(again.grad, x.grad)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in its jvp
def test_it_works_under_func_and_differentiates_twice() -> None:
    x = torch.linspace(0.1, 2, 12).reshape(3, 4)

    def loss(row: torch.Tensor) -> torch.Tensor:
        return (quantize(row, "e4m3", backward="e5m2") ** 3).sum()

    rounded = torch.from_numpy(fplab.quantize(x.numpy(), "e4m3"))
    slopes = torch.from_numpy(fplab.quantize((3 * rounded**2).numpy(), "e5m2"))
    assert torch.equal(torch.vmap(torch.func.grad(loss))(x), slopes)
    assert torch.equal(torch.vmap(lambda row: quantize(row, "e4m3"))(x), rounded)
    _, tangent = torch.func.jvp(lambda y: quantize(y, "e4m3"), (x,), (x,))
    assert torch.equal(tangent, x)
    x.requires_grad_()
    (first,) = torch.autograd.grad((quantize(x, "e4m3") ** 3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, 6 * rounded)  # d(3 q(x)^2)/dx with q' = 1


def test_narrow_tensors_carry_what_they_hold() -> None:
    half = torch.tensor([0.1, 3.3], dtype=torch.float16)
    assert quantize(half, "e4m3").dtype == torch.float16
    assert quantize(half, "e4m3").tolist() == fplab.quantize(half.numpy(), "e4m3").tolist()
    with pytest.raises(LabError, match=r"quantize\(float16\[2\], 'bf16'\): a torch.float16 tensor does not hold every"):
        quantize(half, "bf16")
    refuses(lambda: quantize(half.bfloat16(), "e4m3", backward="fp16"), "does not hold every value of fp16")
    wide = torch.tensor([1 + 2.0**-30], dtype=torch.float64)
    assert quantize(wide, "fp64").item() == wide.item()
    assert quantize(wide, "fp32").item() == 1.0


@pytest.mark.parametrize("dtype", CARRIERS, ids=str)
def test_what_a_carrier_holds_is_what_survives_it(dtype: torch.dtype) -> None:
    """Every value of an 8- or 6-bit format against a cast to the carrier and back."""
    small = [name for name in NAMES if get(name).bits <= 8]
    for name in small:
        fmt = get(name)
        values = torch.tensor([fmt.magnitude(code) for code in range(fmt.max_code + 1)], dtype=torch.float64)
        assert holds(get(CARRIERS[dtype]), fmt) == torch.equal(values.to(dtype).double(), values), name
    far = Format("far", 8, 2, bias=4)  # from 2^-5 to beyond FP16
    assert holds(get(CARRIERS[dtype]), far) == (dtype != torch.float16 and far.max <= get(CARRIERS[dtype]).max)


def test_what_it_refuses() -> None:
    with pytest.raises(LabError, match=r"fplab\.nn\.quantize\('a', 'fp16'\): tensor is a str; pass a torch.Tensor"):
        quantize("a", "fp16")  # type: ignore[arg-type]
    with pytest.raises(LabError, match=r"a torch.int64 tensor cannot be rounded; allowed: torch.float64"):
        quantize(torch.arange(3), "fp16")
    refuses(lambda: quantize(torch.ones(1), "fp16", "stochastic"), "needs seed=")
    refuses(lambda: quantize(torch.ones(1), "e4m33"), "Did you mean 'e4m3'")
    refuses(lambda: quantize(torch.ones(1), "e4m3", overflow="inf"), "e4m3 has no infinity")
    refuses(lambda: quantize(torch.tensor([float("nan")]), "e2m1"), "gives NaN, and e2m1 has none")
    assert quantize(torch.tensor([float("nan")]), "e2m1", nan="zero").item() == 0


# --- formats --------------------------------------------------------------------------------------------------------
def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def data(n: int = 5) -> torch.Tensor:
    return torch.from_numpy(np.random.Philox(key=5).random_raw(n * 6).astype(np.float64) / 2.0**64).float().view(n, 6)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(data()).pow(2).sum().backward()
    optimizer.step()


def q(x: torch.Tensor, fmt: str) -> torch.Tensor:
    """The rounding by itself, through numpy."""
    return torch.from_numpy(np.asarray(fplab.quantize(x.detach().numpy(), fmt)))


def representable(x: torch.Tensor, fmt: str) -> bool:
    return torch.equal(q(x, fmt), x.detach())


def test_activations_and_their_gradients_by_hand() -> None:
    """Forward and backward of two layers, written out with roundings where a layer ends."""
    model, x = network(), data()
    w1, b1, w2, b2 = (p.detach() for p in model.parameters())
    h0 = q(x, "e4m3")
    h1 = q(nn.functional.linear(h0, w1, b1), "e4m3")
    h2 = h1.relu()
    y = q(nn.functional.linear(h2, w2, b2), "e4m3")
    g3 = q(torch.ones_like(y) / 3, "e5m2")
    g2 = q(g3 @ w2, "e5m2")
    g1 = q(g2 * (h1 > 0), "e5m2")
    with formats(model, activations="e4m3", gradients="e5m2") as held:
        out = model(x)
        out.backward(torch.ones_like(out) / 3)
    assert torch.equal(out, y)
    assert torch.equal(model[2].weight.grad, g3.t() @ h2)
    assert torch.equal(model[0].weight.grad, g1.t() @ h0)
    assert torch.equal(model[0].bias.grad, g1.sum(0))
    assert held.rounded == {"activations": 4, "gradients": 3}  # the input needs no gradient
    assert not representable(model(x), "e4m3")  # the hooks are gone


def test_each_kind_alone_changes_only_its_kind() -> None:
    x = data()
    plain = network()
    plain(x).pow(2).sum().backward()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with formats(model, optimizer, weight_gradients="e5m2"):
        model(x).pow(2).sum().backward()
        for p, reference in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(p.grad, q(reference.grad, "e5m2"))
        model(x).pow(2).sum().backward()  # accumulates into the rounded gradient, and is rounded again
        for p, reference in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(p.grad, q(q(reference.grad, "e5m2") + reference.grad, "e5m2"))
    assert not all(representable(p, "bf16") for p in model.parameters())


def test_weights_are_held_in_the_format_and_updated_in_it() -> None:
    model, x = network(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    expected = [q(p, "bf16") for p in model.parameters()]
    with formats(model, optimizer, weights="bf16"):
        for _ in range(3):
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            assert all(torch.equal(p, e) for p, e in zip(model.parameters(), expected, strict=True))
            expected = [q(p.detach().add(p.grad, alpha=-0.01), "bf16") for p in model.parameters()]
            optimizer.step()
    assert all(torch.equal(p, e) for p, e in zip(model.parameters(), expected, strict=True))


def test_masters_get_the_updates_that_the_rounded_weights_lose() -> None:
    x = data()
    held_only, with_masters = network(), network()
    before = [p.detach().clone() for p in with_masters.parameters()]
    for model, master in ((held_only, False), (with_masters, True)):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        with formats(model, optimizer, weights="e4m3", master=master):
            rounded = [p.detach().clone() for p in model.parameters()]
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            gradients = [p.grad.clone() for p in model.parameters()]
            optimizer.step()
            assert all(representable(p, "e4m3") for p in model.parameters())
            assert all(torch.equal(p, r) for p, r in zip(model.parameters(), rounded, strict=True))  # too small
    for p, b, g in zip(with_masters.parameters(), before, gradients, strict=True):
        assert torch.equal(p, b.add(g, alpha=-1e-6))
    assert all(representable(p, "e4m3") for p in held_only.parameters())


def test_states_have_formats_by_name() -> None:
    model, x = network(), data()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with formats(model, optimizer, states={"exp_avg": "e5m2", "exp_avg_sq": "bf16"}) as held:
        for _ in range(2):
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
            for state in optimizer.state.values():
                assert representable(state["exp_avg"], "e5m2")
                assert representable(state["exp_avg_sq"], "bf16")
                assert not representable(state["exp_avg_sq"], "e5m2")
        assert state["step"] == 2
        state["step"].fill_(256)
    with formats(model, optimizer, states="bf16"):
        step(model, optimizer)
    assert state["step"] == 257  # a count, which BF16 could not hold
    assert representable(state["exp_avg"], "bf16")
    assert held.rounded == {"states": 16}


def test_without_an_optimizer_the_weights_come_back() -> None:
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    with formats(model, weights="e2m1"):
        assert all(representable(p, "e2m1") for p in model.parameters())
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    block = formats(model, weights="e4m3")
    with pytest.raises(LabError, match="the weights changed inside the block; pass the optimizer"), block:
        step(model, optimizer)


def test_layers_that_are_kept_stay_as_they_are() -> None:
    model, x = network(), data()
    with formats(model, weights="e4m3", activations="e4m3", keep=["2"]):
        assert representable(model[0].weight, "e4m3")
        assert not representable(model[2].weight, "e4m3")
        hidden = model[1](model[0](x))
        assert representable(hidden, "e4m3")
        assert not representable(model(x), "e4m3")


def test_it_reaches_modules_that_the_user_did_not_write() -> None:
    """A transformer layer and an LSTM: tuples, parameters used without their module being called, flat weights."""
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    lstm = nn.LSTM(8, 8)
    x = torch.randn(2, 3, 8)
    for model in (layer, lstm):
        outputs: list[torch.Tensor] = []
        with formats(model, weights="e4m3", activations="bf16"):
            out = model(x)
            out = out if isinstance(out, torch.Tensor) else out[0]
            assert representable(out, "bf16")
            outputs.append(out)
        rounded = [q(p, "e4m3") for p in model.parameters()]
        with torch.no_grad():
            for p, r in zip(model.parameters(), rounded, strict=True):
                p.copy_(r)
        with formats(model, activations="bf16"):
            out = model(x)
            outputs.append(out if isinstance(out, torch.Tensor) else out[0])
        assert torch.equal(*outputs)


def test_a_module_with_parameters_and_modules_of_its_own_is_a_layer() -> None:
    attention = nn.MultiheadAttention(8, 2)  # uses its inner layer's weights without calling it
    x = torch.randn(3, 1, 8, generator=torch.Generator().manual_seed(0))
    with formats(attention, activations="e4m3"):
        y, weights = attention(x, x, x)
    assert representable(y, "e4m3")
    assert representable(weights, "e4m3")


def test_every_tensor_is_rounded_stochastically_with_words_of_its_own() -> None:
    def run(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        model = nn.Sequential(nn.Identity(), nn.Linear(1, 1))
        choice = {"activations": "stochastic"}
        with formats(model, activations="bf16", rounding=choice, seed=seed):
            x = torch.full((512, 1), 1 + 2.0**-8)
            return model[0](x), model[0](x)

    first, second = run(1)
    assert 0.4 < (first > 1).float().mean() < 0.6
    assert first.ne(second).any()
    again, _ = run(1)
    assert torch.equal(first, again)
    assert run(2)[0].ne(first).any()


def test_what_formats_refuses() -> None:
    model = network()
    refuses(lambda: formats(model, states="bf16"), r"states= needs the optimizer")
    with pytest.raises(LabError, match="model is a str"):
        formats("model", weights="bf16")  # type: ignore[arg-type]
    with pytest.raises(LabError, match=r"unknown kind of tensor 'weight'.*Did you mean 'weights'"):
        formats(model, weights="bf16", rounding={"weight": "rtz"})
    refuses(lambda: formats(model, weights="bf16", rounding="stochastic"), "needs seed=")
    refuses(lambda: formats(network().bfloat16(), weights="fp16").__enter__(), "does not hold every value of fp16")
    half, given = network().bfloat16(), {"rounding": "stochastic", "seed": 1}
    refuses(lambda: formats(half, weights="bf16", **given).__enter__(), "have nothing left to round to bf16: torch")
    with formats(half, activations="bf16", **given), pytest.raises(LabError, match="activations of "):
        half(data().bfloat16())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with formats(model, optimizer, weights="bf16", master=True), pytest.raises(LabError, match=r"step\(closure\)"):
        optimizer.step(lambda: model(data()).sum())


# --- what layers return ---------------------------------------------------------------------------------------------
class Pair(NamedTuple):
    """What a layer may return."""

    first: torch.Tensor
    second: torch.Tensor | None


class Output(OrderedDict[str, torch.Tensor]):
    """What models of a hub return: a dictionary of a class of its own."""


RETURNED: dict[str, Callable[[torch.Tensor], Any]] = {
    "tuple": lambda y: (y, None),
    "dictionary": lambda y: {"first": y},
    "named tuple": lambda y: Pair(y, None),
    "class of a dictionary": lambda y: Output(first=y),
}


@pytest.mark.parametrize("kind", RETURNED)
def test_what_a_layer_returns_is_rounded_whatever_holds_it(kind: str) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([0.1, 1 / 3, 3.0]))

        def forward(self, x: torch.Tensor) -> Any:
            return RETURNED[kind](self.weight * x)

    layer = Layer()
    with formats(layer, activations="e4m3") as held:
        got = layer(torch.ones(3))
    plain = layer(torch.ones(3))
    assert type(got) is type(plain)
    found = next(iter(got.values())) if isinstance(got, dict) else got[0]
    assert found.tolist() == fplab.quantize([0.1, 1 / 3, 3.0], "e4m3").tolist() != layer.weight.tolist()
    assert held.rounded["activations"] == 2  # the input, and this


def test_a_packed_sequence_is_rounded() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 5)
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])
    with formats(lstm, activations="e4m3"):
        output, _ = lstm(packed)
    assert type(output) is type(packed)
    values = output.data.detach()
    assert torch.equal(values, torch.from_numpy(fplab.quantize(values.numpy(), "e4m3")))
    assert torch.equal(output.batch_sizes, packed.batch_sizes)


def test_names_that_match_nothing_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with pytest.raises(LabError, match=r"unknown module or parameter in keep 'norm'\. Allowed: 0, 1, 0\.weight"):
        formats(model, weights="bf16", keep=["norm"])
    with pytest.raises(LabError, match=r"keep='1' is a string; a list of names is needed: keep=\['1'\]"):
        formats(model, weights="bf16", keep="1")
    refuses(lambda: formats(nn.Linear(3, 3), sgd, weights="bf16"), "SGD owns none of the parameters of Linear")
    with formats(model, sgd, states={"exp_avg": "bf16"}):
        sgd.step()  # without a gradient there is no state yet
        model(torch.ones(2, 3)).sum().backward()
        refuses(lambda: sgd.step(), r"unknown state of SGD 'exp_avg'\. Allowed: momentum_buffer")
