"""Emulation where tensors are on a GPU: the same bits by a device that is not there, and no tensor leaves it.

The device is this machine's CPU running the GPU's C++ (as in test_device.py), or one of torch's that has no memory.
No GPU has run it.
"""

import shutil
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import test_nn_emulate_scaled as low
import torch
from torch import nn

from fplab import LabError, formats
from fplab.nn import device, emulate
from fplab.nn.device import products, running
from fplab.nn.emulation import backends, linear, modes
from fplab.nn.recipes import RECIPES, fp8_block
from fplab.tensorcore import Plan, models
from fplab.training import AmaxScaling

compiled = pytest.mark.skipif(not any(map(shutil.which, running.COMPILERS)), reason="there is no C++ compiler here")


class Block(nn.Module):
    """A convolution, attention, products with addends and factors, and batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 8, 3, groups=2)
        self.mixed = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 3)
        self.times = 0.3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).flatten(2).mT
        x = x + self.mixed(x, x, x, need_weights=True)[0]
        x = torch.baddbmm(x, x @ x.mT, x, beta=0.5, alpha=self.times) if self.times != 1 else x
        return self.last(nn.functional.gelu(x))


def gradients(dtype: torch.dtype, **settings: Any) -> list[torch.Tensor]:
    """The output and all gradients of two passes, of which the second may be scaled by what the first had."""
    torch.manual_seed(5)
    model, x = Block().to(dtype), torch.randn(3, 2, 6, 5).to(dtype)
    if settings.get("accumulate") == "fp16":
        model.times = 1
    with emulate(**settings):
        for step in range(2):
            out = model(x * (1 + step))
            out.square().mean().backward()
    return [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@compiled
@pytest.mark.parametrize(
    ("dtype", "settings"),
    [
        (torch.float32, {"gpu": "H100"}),
        (torch.float32, {"gpu": "H100", "inputs": "fp16"}),
        (torch.bfloat16, {"gpu": "A100", "store": "bf16"}),
        (torch.float16, {"gpu": "H100", "accumulate": "fp16"}),
        (torch.float64, {"gpu": "A100"}),
        (torch.float32, {"gpu": "MI300X", "inputs": "tf32", "conversion": "truncate"}),
        (torch.float32, {"gpu": "MI210", "inputs": "bf16", "plan": Plan(split_k=2)}),
        (torch.float32, {"gpu": "H100", "inputs": "e4m3", "gradients": "e5m2", "plan": Plan(promote=32)}),
        (torch.float32, {"gpu": "H100", "inputs": "e4m3", "scaling": AmaxScaling}),
        *(
            (torch.bfloat16, {"gpu": "B200", "recipe": make(scope="all")})
            for name, make in RECIPES.items()
            if name != "fp8_block"
        ),
        *(
            (torch.float32, {"gpu": "H100", "recipe": RECIPES[name](scope="all"), "fallback": "bf16"})
            for name in ("nvfp4", "fp8_block")
        ),
    ],
)
def test_a_pass_has_the_bits_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, settings: dict[str, Any]
) -> None:
    def passed() -> list[torch.Tensor]:
        made = {name: x() if name == "scaling" else x for name, x in settings.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return gradients(dtype, **made)

    here, launched, run = passed(), [], running.run
    monkeypatch.setattr(running, "takes", lambda tensor: True)
    monkeypatch.setattr(linear, "KINDS", ())
    monkeypatch.setattr(running, "run", lambda kernel, *given: (launched.append(kernel.entry), run(kernel, *given)))
    there = passed()
    assert launched.count("matmul") > 10
    assert len(here) == len(there) > 8
    for one, other in zip(here, there, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@compiled
@pytest.mark.parametrize(
    "call",
    [
        *(
            lambda given=given: low.test_scales_of_tensors(*given)
            for given in (("H100", True, None), ("L40S", False, 128))
        ),
        low.test_scales_of_rows,
        *(lambda square=square: low.test_scales_of_128(square) for square in ("", "a", "b")),
        *(lambda names=names: low.test_scales_of_blocks_go_into_the_unit(names) for names in low.MX),
        *(lambda name=name: low.test_scaled_products_of_groups(name, False, True) for name in ("fp8_row", "nvfp4")),
        *(
            lambda name=name: low.test_scaled_products_of_groups(name, True, False)
            for name in ("fp8_row", "mxfp8_e4m3")
        ),
    ],
)
def test_scaled_products_have_the_bits_that_they_have_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]
) -> None:
    """torch's own, ``_scaled_mm`` and its kin: what their tests demand of the CPU they demand here."""
    launched, run = [], running.run
    monkeypatch.setattr(running, "takes", lambda tensor: True)
    monkeypatch.setattr(linear, "KINDS", ())
    monkeypatch.setattr(running, "run", lambda kernel, *given: (launched.append(kernel.entry), run(kernel, *given)))
    call()
    assert "matmul" in launched


def attended(name: str, dtype: torch.dtype, causal: bool, masked: bool) -> list[torch.Tensor]:
    """The output and gradients of attention by a kernel of torch's, with heads that share keys; "cpu": the CPU's."""
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, heads, n, 8, generator=draw).to(dtype) for heads, n in ((4, 9), (2, 7), (2, 7)))
    mask = torch.randn(2, 4, 9, 7, generator=draw).to(dtype) if masked else None
    inputs = [x.requires_grad_() for x in (q, k, v)]
    ops, bias, by = torch.ops.aten, () if name == "flash" else (mask, True), {"is_causal": causal, "scale": 0.3}
    with emulate("H100", "fp16"):
        if name == "cpu":
            out = ops._scaled_dot_product_flash_attention_for_cpu(*inputs, attn_mask=mask, **by)[0]
        else:
            out = getattr(ops, f"_scaled_dot_product_{name}_attention")(*inputs, *bias, **by)[0]
        (out.float() * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
    return [out.detach(), *(x.grad for x in inputs if x.grad is not None)]


@compiled
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("name", "causal", "masked"),
    [("flash", False, False), ("flash", True, False), ("efficient", True, False), ("efficient", False, True),
     ("cudnn", False, True), ("cudnn", True, False)],
)  # fmt: skip
def test_fused_attention_has_the_bits_of_the_cpus(
    monkeypatch: pytest.MonkeyPatch, name: str, causal: bool, masked: bool, dtype: torch.dtype
) -> None:
    here = attended("cpu", dtype, causal, masked)
    monkeypatch.setattr(running, "takes", lambda tensor: True)
    monkeypatch.setattr(linear, "KINDS", ())
    there = attended(name, dtype, causal, masked)
    assert len(here) == 4
    assert all(map(torch.equal, here, there))


def test_the_gradient_of_a_mask_in_a_kernel_is_refused() -> None:
    x, mask = torch.ones(1, 1, 8, 8, requires_grad=True), torch.zeros(1, 1, 8, 8, requires_grad=True)
    with emulate("H100", "fp16"):
        out = torch.ops.aten._scaled_dot_product_efficient_attention(x, x, x, mask, True)[0]
        with pytest.raises(LabError, match=r"the gradient of a mask inside one kernel is not emulated; sdpa_kernel"):
            out.sum().backward()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """A GPU of tensors without memory, torch's "meta", which do not mix with the CPU's: where each kernel's were."""
    found: list[set[str]] = []

    def launch(kernel: Any, device: str, elements: int, *given: Any) -> None:
        found.append({str(x.device) for x in given if isinstance(x, torch.Tensor)} | {device})

    monkeypatch.setattr(running, "run", launch)
    monkeypatch.setattr(running, "takes", lambda tensor: tensor.device.type == "meta")
    monkeypatch.setattr(modes, "_abstract", lambda args: False)
    return found


@pytest.mark.parametrize(
    "settings",
    [{}, {"store": "bf16"}, {"inputs": "tf32"}, {"plan": Plan(split_k=2)}, {"recipe": fp8_block(scope="all")}],
)
def test_no_tensor_of_a_model_leaves_the_device(launched: list[set[str]], settings: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = Block()
    with emulate("H100", **settings):
        out = model(torch.randn(3, 2, 6, 5, device="meta"))
        out.square().mean().backward()
    assert out.device.type == "meta"
    assert all(p.grad is not None and p.grad.device.type == "meta" for p in model.parameters())
    assert len(launched) > 20
    assert all(devices == {"meta"} for devices in launched)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: device.quantize_scaled(x, "nvfp4").dequantize(),
        lambda x: device.quantize_scaled(x, "mxfp8", 0, rounding="stochastic", seed=1).dequantize(),
        lambda x: device.matmul(x, x.mT, x[0], plan=Plan(stream_k=2, tile=(16, 16, 16))),
        lambda x: device.matmul(x, x.mT, gpu="H100", inputs="e4m3", instruction="mma"),
        lambda x: products.multiply(models.get("B200", "mxfp8_e4m3"), x, x.mT, scales=(x[:, :2].int(), x[:2].int())),
        lambda x: backends.GPU.epilogue(models.get("H100"), x, x[0], 2.0, 3.0),
        lambda x: backends.unscaled(backends.GPU, x, 4.0, 0.5),
        lambda x: backends.GPU.values(x.to(torch.uint8), formats.get("e4m3")),
        lambda x: backends.GPU.by_blocks(models.get("H100", "e4m3"), x, x.mT, x[:, :1], x[:1], 128),
        lambda x: backends.GPU.factored(x, [x[:, :1], x[:1]], models.get("H100")),
    ],
)
def test_no_tensor_leaves_the_device(launched: list[set[str]], call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = call(torch.empty(33, 33, device="meta"))
    assert found.device.type == "meta"
    assert found.shape == (33, 33)
    assert all(devices == {"meta"} for devices in launched)


@pytest.mark.parametrize(
    ("settings", "call", "why"),
    [
        (
            {"inputs": "fp16", "accumulate": "fp16"},
            lambda x: torch.addmm(x, x, x, alpha=2),
            "alpha=2.0, beta=1.0 with sums in FP16 are not",
        ),
        ({}, lambda x: torch._addmm_activation(x[0], x, x), "activations in an epilogue of tensors on cpu are not"),
    ],
)
@compiled
def test_what_a_gpu_does_not_do_is_refused(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], call: Callable[[torch.Tensor], Any], why: str
) -> None:
    monkeypatch.setattr(running, "takes", lambda tensor: True)
    monkeypatch.setattr(linear, "KINDS", ())
    with pytest.raises(LabError, match=why), emulate(**settings):
        call(torch.ones(4, 4))


def test_other_devices_are_refused() -> None:
    with pytest.raises(LabError, match="a product of tensors on meta; emulation runs on the CPU and on CUDA"):
        backends.detached(torch.ones(2, device="meta"))
