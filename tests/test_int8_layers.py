"""Integer layers in torch: the very bits of fplab.integers, in any model."""

import platform

import numpy as np
import pytest
import refusals
import torch
from fresh import python
from torch import nn

from fplab import integers
from fplab.hardware.cases import philox_bits
from fplab.integers import METHODS, Method
from fplab.memory import Tensor
from fplab.memory.inference import weight_bytes
from fplab.nn import Int4Linear, Int8Linear, int4_linears, int8_layers, int8_linears
from fplab.nn.int8_layers import int_mm


def normal(key: int, *shape: int) -> np.ndarray:
    n = int(np.prod(shape))
    raw = philox_bits(key, n, 8, dtype=np.uint8).astype(np.float32)
    return ((raw.sum(axis=1) - 1020) / np.float32(209)).reshape(shape)


def linear(k: int, n: int, bias: bool = True, key: int = 1) -> nn.Linear:
    layer = nn.Linear(k, n, bias)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(normal(key, n, k) * np.float32(0.1)))
    return layer


@pytest.mark.parametrize("rows", ["fp16", "int8"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_the_bits_are_those_of_the_definition(method: Method, rows: str) -> None:
    for outliers, threshold in ((0, 6.0), (3, 6.0), (3, 0.0), (3, np.inf)):
        x = normal(2, 25, 40)
        x[3, 30] = 6  # the threshold itself is an outlier
        x[:, :outliers] *= 16
        layer = linear(40, 12, bias=False)
        found = Int8Linear(layer, method, threshold, rows)(torch.from_numpy(x))
        want = integers.matmul(x, layer.weight.detach().numpy().T, method, threshold, rows)
        assert np.array_equal(found.numpy().view(np.uint32), want.view(np.uint32))


def test_shapes_bias_and_precision() -> None:
    x, layer = torch.from_numpy(normal(3, 2, 5, 40)), linear(40, 12)
    quantised = Int8Linear(layer)
    found = quantised(x)
    assert found.shape == (2, 5, 12)
    exact = layer(x)
    assert float((found - exact).detach().norm() / exact.detach().norm()) < 0.02
    rows = quantised(x.reshape(10, 40))
    assert torch.equal(rows.reshape(2, 5, 12), found)
    assert torch.equal(found - layer.bias, Int8Linear(linear(40, 12, bias=False))(x) + layer.bias - layer.bias)
    assert quantised(x[:0]).shape == (0, 5, 12)


def test_a_calibrated_range_is_used_for_every_batch() -> None:
    x, layer = torch.from_numpy(normal(3, 6, 16)), linear(16, 4, bias=False)
    fixed = Int8Linear(layer, "absmax", amax=2.0)
    how = integers.symmetric(2.0)
    w = layer.weight.detach().numpy().T
    weights = integers.scheme(w)
    total = integers.int_matmul(integers.quantize(x.numpy(), how), integers.quantize(w, weights))
    assert np.array_equal(fixed(x).numpy(), total.astype(np.float32) * (how.scale * weights.scale))
    assert torch.equal(fixed(x[:1]), fixed(x)[:1])


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (17, 9, 3), (40, 16, 8), (3, 8, 24)])
def test_padding_for_cuda_changes_nothing(m: int, k: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def strict(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """What CUDA demands."""
        assert a.shape[0] > 16
        assert a.shape[1] % 8 == b.shape[1] % 8 == 0
        calls.append(a.shape)
        return a.int() @ b.int()

    a = torch.from_numpy(philox_bits(4, m, k, dtype=np.uint8).view(np.int8))
    b = torch.from_numpy(philox_bits(5, k, n, dtype=np.uint8).view(np.int8))
    want = int_mm(a, b)
    monkeypatch.setattr(int8_layers, "saturates_here", lambda: False)
    monkeypatch.setattr(torch, "_int_mm", strict)
    assert torch.equal(int_mm(a, b, pad=True), want)
    assert len(calls) == 1


PRODUCTS = """
import torch
from fplab.nn.int8_layers import int_mm, saturates_here
draw = torch.Generator().manual_seed(0)
a, b = (torch.randint(-128, 128, shape, generator=draw).to(torch.int8) for shape in ((17, 64), (64, 8)))
want = a.int() @ b.int()
wide = torch.full((2, 131072), -128, dtype=torch.int8)
wrapped = int_mm(wide, wide.T)[0, 0].item()
print(saturates_here(), torch.equal(torch._int_mm(a, b), want), torch.equal(int_mm(a, b), want), wrapped)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="VNNI instructions are x86's")
def test_products_are_exact_where_torchs_own_saturate() -> None:
    """Where oneDNN may use AVX2 alone, torch's INT8 products are wrong if it is oneDNN that torch calls on this CPU:
    what the lab says of them is so, and its own are right either way.
    """
    saturates, theirs, ours, wrapped = python(PRODUCTS, ONEDNN_MAX_CPU_ISA="AVX2").split()
    assert (saturates, theirs) in (("True", "False"), ("False", "True"))
    assert (ours, wrapped) == ("True", str(-(2**31)))


def test_state_dict_round_trip() -> None:
    x = torch.from_numpy(normal(6, 20, 40)) * 4
    for make in (Int8Linear, Int4Linear):
        first, second = make(linear(40, 12)), make(linear(40, 12, key=7))
        assert not torch.equal(first(x), second(x))
        second.load_state_dict(first.state_dict())
        assert torch.equal(first(x), second(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = linear(24, 16)
        self.rest = nn.ModuleList([nn.Sequential(nn.LayerNorm(16), linear(16, 16), nn.ReLU()), linear(16, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest[1](self.rest[0](self.first(x)))


def test_any_model_is_copied_with_its_linear_layers_in_integers() -> None:
    model, x = Net(), torch.from_numpy(normal(8, 7, 24))
    quantised = int8_linears(model, "vectorwise", skip=("rest.1",))
    kinds = {name: type(m).__name__ for name, m in quantised.named_modules() if "inear" in type(m).__name__}
    assert kinds == {"first": "Int8Linear", "rest.0.1": "Int8Linear", "rest.1": "Linear"}
    assert isinstance(model.first, nn.Linear)
    exact = model(x).detach()
    assert 0 < float((quantised(x).detach() - exact).norm() / exact.norm()) < 0.03
    assert 0 < float((int4_linears(model, group=8)(x) - exact).norm() / exact.norm()) < 0.3
    assert isinstance(int8_linears(linear(4, 4)), Int8Linear)


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize(("k", "group"), [(40, 8), (41, 16), (7, 128)])
def test_int4_weights_are_the_groups(k: int, group: int, zero_point: bool) -> None:
    layer = linear(k, 6)
    quantised = Int4Linear(layer, group, zero_point)
    grid = "int4_full" if zero_point else "int4"
    want = integers.quantize_groups(layer.weight.detach().numpy(), group, grid, zero_point)
    assert np.array_equal(quantised.weight().numpy(), want.values())
    x = torch.from_numpy(normal(9, 3, k))
    assert torch.equal(quantised(x), nn.functional.linear(x, quantised.weight(), layer.bias))
    assert (quantised.zero_point is not None) == zero_point
    assert quantised.packed.numel() == 6 * ((k + 1) // 2)


def held(layer: nn.Module) -> int:
    """Bytes of a layer's buffers and parameters."""
    return sum(t.numel() * t.element_size() for t in (*layer.buffers(), *layer.parameters()))


@pytest.mark.parametrize("bias", [False, True])
def test_layers_hold_the_bytes_that_the_calculator_says(bias: bool) -> None:
    """Its INT8 keeps no second copy of the weights; with one, the layer's default, two bytes a weight come on top."""
    layer = nn.Linear(192, 40, bias).half()
    tensors = [Tensor("a.weight", (40, 192), 0, linear=True)] + [Tensor("a.bias", (40,), 0)] * bias
    int8 = held(Int8Linear(layer, outlier_weights="int8"))
    assert int8 == weight_bytes(tensors, "int8")
    assert held(Int8Linear(layer)) == int8 + 2 * 192 * 40
    assert held(Int8Linear(layer, "zeropoint")) - held(Int8Linear(layer, "vectorwise")) <= 4
    assert held(Int4Linear(layer, 64)) == weight_bytes(tensors, "int4")
    assert held(Int4Linear(layer, 64, zero_point=True)) == held(Int4Linear(layer, 64)) + 40 * 3


test_refusals = refusals.matching(
    (lambda: Int8Linear(nn.Linear(133153, 1)), "K=133153 products of magnitudes up to 127 and 127"),
    (lambda: Int8Linear(nn.Linear(33287, 1), "zeropoint"), "K=33287 products of magnitudes up to 254 and 254"),
    (lambda: Int8Linear(nn.Linear(4, 1), "int8"), "unknown method 'int8'"),
    (lambda: Int8Linear(nn.Linear(4, 1), amax=1.0), 'amax fixes the one scale of method "absmax"; llm_int8'),
    (lambda: Int8Linear(nn.Linear(2, 1))(torch.tensor([[1.0, float("nan")]])), "hold NaN or infinity"),
    (lambda: Int8Linear(nn.Linear(2, 1))(torch.tensor([[1.0, 1e5]])), "an outlier is 100000.0, beyond FP16's"),
    (lambda: int8_linears(Net(), skip=("last",)), r"skip names \['last'\], but the linear layers are \['first'"),
    (lambda: Int4Linear(nn.Linear(2, 2), group=0), "group=0 is not possible"),
)  # fmt: skip
