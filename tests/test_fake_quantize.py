"""Fake quantisation: torch's bits and gradients, where torch is right; learned steps; whole models quantised."""

import numpy as np
import pytest
import refusals
import torch
from refusals import refuses
from torch import nn

from fplab import integers
from fplab.hardware.cases import philox_bits
from fplab.integers import GRIDS, Grid, grids
from fplab.nn import FakeQuantize, LearnedStep, Quantization, fake_quantize, fake_quantized, observe

EDGES = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-38, 0.49999997, 0.5, -0.5, 1.5, 2.5, 3e9, -3e9, 1e15, -1e15], np.float32)


def inputs(key: int, n: int) -> np.ndarray:
    """Values of every size a step may have, ties and edges among them."""
    unit = (philox_bits(key, n).astype(np.float64) - 2**31) / 2**31
    ties = np.arange(-600, 601) / np.float32(2)
    return np.concatenate([EDGES, ties, unit * 300, unit * 3]).astype(np.float32)


def with_gradient(call, x: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[no-untyped-def]
    """The bits of a result, and of the gradient that ``out`` gives."""
    tensor = torch.from_numpy(x.copy()).requires_grad_()
    result = call(tensor)
    result.backward(torch.from_numpy(out))
    assert tensor.grad is not None
    return result.detach().numpy().view(np.uint32), tensor.grad.numpy().view(np.uint32)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: g.name)
@pytest.mark.parametrize("scale", [1.0, 0.1, 0.37, 2.0**-9, 12345.678])
def test_per_tensor_is_torchs_in_bits_and_gradients(grid: Grid, scale: float) -> None:
    scale = float(np.float32(scale))
    x = inputs(1, 2000) * np.float32(scale)
    out = inputs(2, 2000)
    for zero in {grid.low, 0, grid.low + 3, grid.high}:
        ours = with_gradient(lambda t, z=zero: fake_quantize(t, scale, z, grid), x, out)
        theirs = with_gradient(
            lambda t, z=zero: torch.fake_quantize_per_tensor_affine(t, scale, z, grid.low, grid.high), x, out
        )
        assert np.array_equal(ours[0], theirs[0])
        assert np.array_equal(ours[1], theirs[1])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: g.name)
def test_per_channel_is_torchs_in_bits_and_gradients(grid: Grid, axis: int) -> None:
    x = inputs(3, 3000)[: 6 * 7 * 150].reshape(6, 7, -1)
    channels = x.shape[axis]
    scale = torch.from_numpy(np.linspace(0.01, 3, channels).astype(np.float32))
    zero = torch.arange(channels, dtype=torch.int32) % (grid.high - grid.low + 1) + grid.low
    out = np.roll(x, 5)
    ours = with_gradient(lambda t: fake_quantize(t, scale, zero, grid, axis), x, out)
    theirs = with_gradient(
        lambda t: torch.fake_quantize_per_channel_affine(t, scale, zero, axis % 3, grid.low, grid.high), x, out
    )
    assert np.array_equal(ours[0], theirs[0])
    assert np.array_equal(ours[1], theirs[1])


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bit_values_are_torchs_in_bits_and_gradients(dtype: torch.dtype, axis: int | None) -> None:
    x, out = (torch.from_numpy(inputs(key, 3000)).to(dtype) for key in (5, 6))
    x, out = x[x.isfinite() & out.isfinite()].reshape(1, -1), out[x.isfinite() & out.isfinite()].reshape(1, -1)
    for scale, zero, name in ((0.37, 5, "uint8"), (2.0**-9, -3, "int4"), (777.7, 0, "int8")):  # the last beyond FP16
        grid, found = grids.get(name), []
        step, at = torch.tensor([scale]), torch.tensor([zero], dtype=torch.int32)
        for ours in (True, False):
            given = x.clone().requires_grad_()
            if ours:
                result = fake_quantize(given, step, at, name, axis)
            elif axis is None:
                result = torch.fake_quantize_per_tensor_affine(given, float(step), zero, grid.low, grid.high)
            else:
                result = torch.fake_quantize_per_channel_affine(given, step, at, axis, grid.low, grid.high)
            result.backward(out)
            assert given.grad is not None
            assert result.dtype == given.grad.dtype == dtype
            found.append((result.detach().view(torch.int16), given.grad.view(torch.int16)))
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: g.name)
def test_it_is_quantise_and_dequantise(grid: Grid) -> None:
    x = inputs(4, 3000)
    how = integers.affine(-1.7, 2.9, grid)
    want = integers.dequantize(integers.quantize(x, how), how)
    assert np.array_equal(FakeQuantize(how)(torch.from_numpy(x)).numpy().view(np.uint32), want.view(np.uint32))
    found = fake_quantize(torch.from_numpy(x), float(how.scale), int(how.zero_point), grid)
    assert np.array_equal(found.numpy().view(np.uint32), want.view(np.uint32))


def test_torch_hides_a_nan_and_the_lab_does_not() -> None:
    x = torch.tensor([1.0, float("nan")])
    assert torch.fake_quantize_per_tensor_affine(x, 1.0, 0, -127, 127).tolist() == [1.0, -127.0]
    refuses(lambda: fake_quantize(x, 1.0), r"fake_quantize\(float32\[2\], 1\.0\): element 1 of x is NaN")


def test_torchs_per_channel_kernel_turns_huge_values_over_and_the_lab_saturates() -> None:
    """Its CPU kernel converts to int64 first; 2^63 steps and infinity become the least code."""
    x = torch.tensor([[2.0**62, 2.0**63, float("inf"), -(2.0**63), -float("inf")]])
    per_channel = torch.fake_quantize_per_channel_affine(
        x, torch.ones(1), torch.zeros(1, dtype=torch.int32), 0, -127, 127
    )
    assert per_channel.tolist() == [[127.0, -127.0, -127.0, -127.0, -127.0]]
    assert torch.fake_quantize_per_tensor_affine(x, 1.0, 0, -127, 127).tolist() == [[127.0] * 3 + [-127.0] * 2]
    assert fake_quantize(x, torch.ones(1), axis=0).tolist() == [[127.0] * 3 + [-127.0] * 2]


# --- learned steps ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("grid", ["int8", "int4", "uint4"])
def test_learned_steps_have_the_values_of_fixed_ones_and_torchs_gradients(grid: str) -> None:
    form = grids.get(grid)
    how = integers.symmetric(2.1, grid)
    values = torch.from_numpy(inputs(5, 500) / np.float32(100))
    out = torch.from_numpy(inputs(6, 500) / np.float32(100))
    learned, x = LearnedStep(how), values.clone().requires_grad_()
    result = learned(x)
    assert torch.equal(result, FakeQuantize(how)(values))
    result.backward(out)
    scale, zero = torch.tensor([float(how.scale)], requires_grad=True), torch.zeros(1, requires_grad=True)
    theirs = values.clone().requires_grad_()
    factor = (values.numel() * form.high) ** -0.5
    torch._fake_quantize_learnable_per_tensor_affine(theirs, scale, zero, form.low, form.high, factor).backward(out)
    assert torch.equal(x.grad, theirs.grad)
    assert float(learned.scale.grad) == pytest.approx(float(scale.grad), rel=1e-4)


@pytest.mark.parametrize("grid", ["int8_full", "int4_full", "uint4"])
def test_gradients_of_a_learned_step_with_a_zero_point_are_the_definition(grid: str) -> None:
    """Not torch's: its private learnable kernel goes back with another zero point than it went forward with."""
    how = integers.affine(-0.8, 2.1, grid)
    values = torch.from_numpy(inputs(5, 500) / np.float32(100))
    x, learned = values.clone().requires_grad_(), LearnedStep(how)
    learned(x).sum().backward()
    exact = values.numpy() * (np.float32(1) / how.scale)
    steps = np.rint(exact)
    low, high = how.grid.low - int(how.zero_point), how.grid.high - int(how.zero_point)
    inside = (low <= steps) & (steps <= high)
    assert 0 < inside.mean() < 1
    assert np.array_equal(x.grad.numpy(), inside.astype(np.float32))
    slope = np.where(inside, steps - exact.astype(np.float64), np.clip(steps, low, high)).sum()
    factor = (values.numel() * how.grid.high) ** -0.5
    assert float(learned.scale.grad) == pytest.approx(slope * factor, rel=1e-4)


def test_the_gradient_of_a_step_is_the_papers() -> None:
    """Equation 3: -v + round(v) inside, the ends outside; times 1 / sqrt(n * high)."""
    how = integers.symmetric(np.array([[7.0], [14.0]]), "int4")
    learned = LearnedStep(how)
    learned(torch.tensor([[0.75, 9.0, -20.0], [1.5, 3.0, 100.0]])).backward(
        torch.tensor([[1.0, 10.0, 100.0], [1.0, 10.0, 100.0]])
    )
    factor = (3 * 7) ** -0.5
    want = [0.25 + 70 - 700, (1 - 0.75) + 10 * (2 - 1.5) + 700]
    assert learned.scale.grad is not None
    np.testing.assert_allclose(learned.scale.grad.ravel().numpy(), np.array(want) * factor, rtol=1e-6)


# --- whole models -----------------------------------------------------------------------------------------------
def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 4 * 4, 5))


def images(n: int = 20) -> torch.Tensor:
    return torch.from_numpy(philox_bits(9, n, 1, 6, 6, dtype=np.uint8).astype(np.float32) / np.float32(255))


def test_observe_sees_the_inputs_of_every_layer() -> None:
    model, x = net(), images()
    seen = observe(model, [x[:10], x[10:]])
    assert list(seen) == ["0", "3"]
    hidden = model[:3](x).detach().numpy()
    assert seen["0"].total == x.numel()
    assert (seen["3"].total, seen["3"].amax) == (hidden.size, float(hidden.max()))
    assert not model[0]._forward_pre_hooks


@pytest.mark.parametrize("along", ["tensor", "channel"])
@pytest.mark.parametrize("zero_point", [False, True])
def test_a_quantised_model_is_its_layers_on_quantised_values(along: str, zero_point: bool) -> None:
    model, x = net(), images() - images().square() * 1.5  # both signs, the negative ones beyond the 99.9th percentile
    how = Quantization("int4", "int8_full", along, "p99.9", zero_point=zero_point)
    quantised = fake_quantized(model, observe(model, [x]), how)
    seen = observe(model, [x])
    values = x
    for name, layer in (("0", model[0]), ("3", model[3])):
        weight = layer.weight.detach()
        amax = weight.abs().flatten(1).amax(1).numpy() if along == "channel" else weight.abs().max().numpy()
        step = torch.from_numpy(np.atleast_1d(integers.symmetric(amax, "int4").scale))
        w = fake_quantize(weight, step, 0, "int4", 0 if along == "channel" else None)
        top = seen[name].percentile(99.9)
        own = (
            integers.affine(max(seen[name].least, -top), min(seen[name].most, top), "int8_full")
            if zero_point
            else integers.symmetric(top, "int8_full")
        )
        entering = fake_quantize(values, float(own.scale), int(own.zero_point), "int8_full")
        if name == "0":
            values = nn.functional.conv2d(entering, w, layer.bias).relu().flatten(1)
        else:
            values = nn.functional.linear(entering, w, layer.bias)
    assert torch.equal(quantised(x), values)
    assert isinstance(model[0], nn.Conv2d)  # the model itself is left alone


def test_calibrated_weights_use_the_calibrator() -> None:
    model, x = net(), images()
    plain = fake_quantized(model, observe(model, [x]), Quantization(calibrator="p99.9"))
    cut = fake_quantized(model, observe(model, [x]), Quantization(calibrator="p99.9", calibrate_weights=True))
    assert (cut[3].weights.scale <= plain[3].weights.scale).all()
    assert not torch.equal(cut[3].weights.scale, plain[3].weights.scale)


@pytest.mark.parametrize("learned", [False, True])
def test_gradients_reach_the_weights_below_the_quantisers(learned: bool) -> None:
    model, x = net(), images()
    quantised = fake_quantized(model, observe(model, [x]), Quantization("int4", "uint4", learned=learned))
    quantised(x).square().sum().backward()
    named = dict(quantised.named_parameters())
    assert {"0.layer.weight", "0.layer.bias", "3.layer.weight", "3.layer.bias"} <= set(named)
    assert all(p.grad is not None and p.grad.any() for p in named.values())
    assert ("3.inputs.scale" in named) is learned


def test_a_single_layer_is_a_model() -> None:
    layer, x = nn.Linear(4, 3), torch.ones(2, 4)
    assert fake_quantized(layer, observe(layer, [x]), Quantization())(x).shape == (2, 3)


test_refusals = refusals.matching(
    (lambda: fake_quantize(torch.ones(2).double(), 1.0), "x is float64; fake quantisation takes float32, "),
    (lambda: fake_quantize(torch.ones(2), 0.0), r"scale must be positive and finite, at least 2\^-126"),
    (lambda: fake_quantize(torch.ones(2), torch.ones(2)), "scale has 2 elements; without axis= it is one number"),
    (lambda: fake_quantize(torch.ones(2), torch.ones(3), axis=0), "scale has 3 elements, and axis 0 of x has 2"),
    (lambda: fake_quantize(torch.ones(2), torch.ones(2), axis=1), "axis=1 of a tensor of 1 dimensions"),
    (lambda: fake_quantize(torch.ones(2), 1.0, 128), "zero points are integers of the grid int8, -127 to 127"),
    (lambda: fake_quantize(torch.ones(2), 1.0, grid="int2"), "unknown integer grid 'int2'"),
    (lambda: observe(nn.ReLU(), []), "ReLU has no layer to quantise"),
    (lambda: fake_quantized(net(), {}, Quantization()), r"layer '0': there is no histogram of it; observe\(model"),
    (lambda: fake_quantized(net(), observe(net(), []), Quantization()), "the calibrator saw no data"),
    (lambda: fake_quantized(net(), {}, Quantization(calibrator="p98")), "unknown calibrator 'p98'"),
    (lambda: fake_quantized(net(), observe(net(), [images()]), Quantization(along="row")), "unknown granularity"),
    (lambda: fake_quantized(net(), observe(net(), [-images()]), Quantization(inputs="uint8")), "has no sign"),
)  # fmt: skip
