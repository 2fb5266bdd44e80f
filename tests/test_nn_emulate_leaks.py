"""No kernel of a product runs under ``fplab.nn.emulate``: in these tests torch has none, and each call of one is seen.

The dispatcher's slots for the CPU hold, while a test runs, functions that raise. What an operation computes inside,
where no mode looks, meets them as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from emulated import random
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fplab.nn import emulate

NAMES = """
    mm mm.out bmm bmm.out addmm addmm.out addmm_ baddbmm baddbmm.out baddbmm_ mv.out addmv.out addmv addmv_ dot vdot
    addbmm addbmm.out mkldnn_convolution _slow_conv2d_forward _slow_conv2d_backward.output_mask slow_conv3d_forward
    slow_conv_transpose2d slow_conv_transpose3d slow_conv_dilated2d slow_conv_dilated3d mkldnn_rnn_layer _trilinear
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
    _native_multi_head_attention _transformer_encoder_layer_fwd
"""


class LeakError(Exception):
    """A kernel of torch's was called."""


@contextmanager
def without_kernels() -> Iterator[None]:
    """While open, every kernel of a product raises LeakError."""
    library = torch.library.Library("aten", "IMPL")

    def kernel(name: str) -> Callable[..., None]:
        def leak(*args: object, **kwargs: object) -> None:
            raise LeakError(name)

        return leak

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced
        for name in NAMES.split():
            library.impl(name, kernel(name), "CPU")
    try:
        yield
    finally:
        library._destroy()


@pytest.fixture
def no_kernels() -> Iterator[None]:
    with without_kernels():
        yield


Run = Callable[[], torch.Tensor]


def _attention() -> torch.Tensor:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    return layer(random(2, 5, 8)) + layer(random(2, 5, 8), src_mask=causal, is_causal=True)


def _shared_heads() -> torch.Tensor:
    q, k = random(2, 4, 5, 8, grad=True), random(2, 2, 5, 8, seed=1, grad=True)
    return functional.scaled_dot_product_attention(q, k, k, attn_mask=random(5, 5, grad=True), enable_gqa=True)


def _convolutions() -> torch.Tensor:
    net = nn.Sequential(
        nn.Conv2d(4, 8, 3, dilation=2, groups=2), nn.Conv2d(8, 8, 3, 2, 1, groups=8), nn.ConvTranspose2d(8, 3, 4, 2, 1),
        nn.Conv2d(3, 2, 3, padding="same"),
    )  # fmt: skip
    return net(random(2, 4, 12, 12, grad=True))


def _recurrent() -> torch.Tensor:
    x = random(3, 2, 4, grad=True)
    return sum((kind(4, 5, 2, bidirectional=True)(x)[0] for kind in (nn.LSTM, nn.GRU, nn.RNN)), torch.zeros(()))


def _in_place() -> torch.Tensor:
    y = torch.zeros(2, 3, 3)
    y[0].addmm_(random(3, 4, grad=True), random(4, 3, grad=True))
    y.view(6, 3)[3:].addmm_(random(3, 4, grad=True), random(4, 3, grad=True))
    return y


def _composed() -> torch.Tensor:
    x = random(4, 4, grad=True)
    y = torch.einsum("ij,jk,kl->il", x, x, x) + torch.linalg.matrix_power(x, 5) + torch.linalg.multi_dot([x, x, x])
    return y + torch.cov(x) + torch.tensordot(x, x, 1) + torch.inner(x, x) + (x @ x[0])


def _recomputed() -> torch.Tensor:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    x = random(3, 4, grad=True)
    return checkpoint(net, checkpoint(net, x, use_reentrant=False), use_reentrant=True)  # type: ignore[no-any-return]


def _transforms() -> torch.Tensor:
    w = random(4, 4, grad=True)
    inner = torch.func.grad(lambda x: (x @ w.detach()).tanh().square().sum())(random(3, 4))
    return torch.func.vmap(lambda x: (x @ w).tanh() @ w)(random(5, 4)).sum() + inner.sum()


MODELS: dict[str, Run] = {
    "attention": _attention, "shared heads": _shared_heads, "convolutions": _convolutions, "recurrent": _recurrent,
    "in place": _in_place, "composed": _composed, "recomputed": _recomputed, "transforms": _transforms,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward_call_no_kernel_of_a_product(name: str, no_kernels: None) -> None:
    torch.manual_seed(0)
    with emulate("H100", "fp16") as run:
        y = MODELS[name]()
    y.square().sum().backward()
    phases = {row.phase for row in run.report().rows}
    assert phases == {"forward", "backward"}
    assert not run.report().unemulated


@pytest.mark.parametrize("name", ["composed", "convolutions", "in place", "transforms"])
def test_second_derivatives_call_no_kernel_of_a_product(name: str, no_kernels: None) -> None:
    torch.manual_seed(0)
    with emulate("H100", "fp16"):
        y = MODELS[name]()
    x = _leaf(y)
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    first.square().sum().backward()


def _leaf(y: torch.Tensor) -> torch.Tensor:
    """A leaf of the graph behind a tensor."""
    node = y.grad_fn
    while node is not None:
        ready = [before for before, _ in node.next_functions if before is not None]
        if found := [before for before in ready if hasattr(before, "variable")]:
            return found[0].variable  # type: ignore[no-any-return]
        node = ready[-1]
    raise AssertionError("no leaf")


def test_the_detector_detects(no_kernels: None) -> None:
    with pytest.raises(LeakError, match="mm"):
        random(2, 2) @ random(2, 2)


def test_torch_has_its_kernels_again() -> None:
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).tolist() == [[2.0, 2.0], [2.0, 2.0]]
