"""CUDA's autocast on the CPU around a training step: gradients, the weight cache, transforms, checkpoints, a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import DefaultDeviceType, checkpoint

from fplab.nn import autocast, cuda_autocast
from fplab.nn.cuda_autocast import DTYPES

HALF, FULL = torch.float16, torch.float32


# --- gradients ------------------------------------------------------------------------------------------------------
def test_a_backward_pass_is_rounded_where_the_forward_pass_was() -> None:
    """One product, by hand: its two gradients are products of FP16 operands, rounded once."""
    g = torch.Generator().manual_seed(2)
    x, w = (torch.randn(5, 5, generator=g, requires_grad=True) for _ in range(2))
    incoming = torch.randn(5, 5, generator=g).half()
    with autocast("fp16"):
        y = x @ w
    y.backward(incoming)
    xh, wh, gh = x.detach().half().float(), w.detach().half().float(), incoming.float()
    assert torch.equal(y, (xh @ wh).half())
    assert torch.equal(x.grad, (gh @ wh.t()).half().float())
    assert torch.equal(w.grad, (xh.t() @ gh).half().float())
    inside = [t.detach().clone().requires_grad_() for t in (x, w)]
    with autocast("fp16"):
        (inside[0] @ inside[1]).backward(incoming)  # not recommended, and the same bits here
    assert torch.equal(inside[0].grad, x.grad)
    assert torch.equal(inside[1].grad, w.grad)


def test_a_weight_is_cast_once_so_its_gradients_add_in_fp16() -> None:
    w = torch.ones(1, 1, requires_grad=True)
    big, small = torch.tensor([[2048.0]]), torch.tensor([[1.0]])
    with autocast("fp16"):
        ((big @ w) + (small @ w)).float().sum().backward()
    assert w.grad.item() == 2048.0  # 2048 + 1 in FP16
    w.grad = None
    with autocast("fp16", cache=False):
        ((big @ w) + (small @ w)).float().sum().backward()
    assert w.grad.item() == 2049.0
    w.grad = None
    with autocast("fp16"), torch.no_grad():
        big @ w  # the cast that is kept here has no gradient, and must not be taken below
        with torch.enable_grad():
            y = big @ w
    y.float().sum().backward()
    assert w.grad.item() == 2048.0


def test_a_cached_weight_is_dropped_when_the_block_ends() -> None:
    w = torch.ones(1, 1, requires_grad=True)
    for value in (1.0, 2.0):
        with torch.no_grad():
            w.fill_(value)
        with autocast("fp16"):
            assert (torch.ones(1, 1) @ w).item() == value
            assert len(cuda_autocast._local.weights) == 1
        assert not cuda_autocast._local.weights


STALE = "a weight has changed since autocast cast it, and the product uses the old values.*a block a step; or cache"


@pytest.mark.parametrize("change", ["add_", "data", "set"])
def test_a_cast_that_is_used_after_its_weight_has_changed_warns(change: str) -> None:
    """Whatever changed it: an optimizer in place, a loop through ``.data``, or ``.data`` set anew."""
    w, x = torch.ones(1, 1, requires_grad=True), torch.ones(1, 1)
    with autocast("fp16"):
        for step in range(3):
            if step:
                with pytest.warns(UserWarning, match=STALE) as said:
                    assert (x @ w).item() == 1.0  # the old cast, as torch's
                assert said[0].filename == __file__
            else:
                x @ w
            x @ w.detach()  # no leaf that requires a gradient: cast anew
            if change == "add_":
                with torch.no_grad():
                    w.add_(1.0)
            elif change == "data":
                w.data += 1.0
            else:
                w.data = w.data + 1.0


def test_a_cast_that_still_holds_does_not_warn() -> None:
    """No warning (they are errors here): written with the same values, changed below the cast's last bit, NaN."""
    w, x = torch.ones(1, 1, requires_grad=True), torch.ones(1, 1)
    with autocast("fp16"):
        x @ w
        with torch.no_grad():
            w.copy_(torch.ones(1, 1))
            x @ w
            w.add_(2.0**-20)
        x @ w
    with autocast("fp16", cache=False):
        for _ in range(2):
            x @ w
            with torch.no_grad():
                w.add_(1.0)
    with torch.no_grad():
        w.fill_(torch.nan)
    with autocast("bf16"):
        assert (x @ w).isnan().all()
        assert (x @ w).isnan().all()


@pytest.mark.parametrize("where", ["step", "loop"])
def test_a_network_trains_with_a_block_a_step_and_not_with_one_around_the_loop(where: str) -> None:
    from contextlib import nullcontext

    from fplab.training import tasks

    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    loop = autocast("fp16") if where == "loop" else nullcontext()
    heard = pytest.warns(UserWarning, match=STALE) if where == "loop" else nullcontext()
    losses = []
    with heard, loop:
        for batch in tasks.DIGITS_MLP.batches(0, 20):
            optimizer.zero_grad()
            with autocast("fp16") if where == "step" else nullcontext():
                loss = F.cross_entropy(model(batch.inputs), batch.targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert (losses[-1] < losses[0] / 2) == (where == "step")


# --- any module, and everything around it ---------------------------------------------------------------------------
def small_transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 4))


def test_recurrent_layers_take_their_operands_as_cudnn_does() -> None:
    x = torch.rand(3, 2, 8)
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        layer = kind(8, 8)
        with autocast("fp16"):
            y, state = layer(x)
        assert y.dtype == HALF
        assert (state[0] if isinstance(state, tuple) else state).dtype == HALF
        y.float().sum().backward()
        assert layer.weight_ih_l0.grad.dtype == FULL


def test_inference_mode_and_functional_transforms() -> None:
    model, x = small_transformer(), torch.rand(2, 3, 16)
    with autocast("fp16"):
        wanted = model(x)
        with torch.inference_mode():
            inferred = model(x)
        assert torch.equal(model.eval()(x), wanted)
    assert wanted.dtype == inferred.dtype == HALF
    assert torch.equal(inferred, wanted)
    a, b = torch.rand(3, 4, 4), torch.rand(3, 4, 4)
    with autocast("fp16"):
        each = torch.stack([p @ q for p, q in zip(a, b, strict=True)])
        assert torch.equal(torch.vmap(torch.mm)(a, b), each)
        slope = torch.func.grad(lambda y: (y @ y).float().sum())(a[0])
    w = a[0].clone().requires_grad_()
    with autocast("fp16", cache=False):
        (w @ w).float().sum().backward()
    assert torch.equal(slope, w.grad)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("within", [False, True], ids=["backward after the block", "backward within"])
def test_a_checkpoint_recomputes_under_the_same_rules(reentrant: bool, within: bool) -> None:
    def gradients(through: Callable[..., Any]) -> list[torch.Tensor]:
        model = small_transformer()
        x = torch.rand(2, 3, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
        with autocast("fp16"):
            hidden = through(model[0], x)
            loss = F.cross_entropy(model[1](hidden).flatten(0, 1), torch.zeros(6, dtype=torch.int64))
            if within:
                loss.backward()
        if not within:
            loss.backward()
        assert x.grad is not None
        return [x.grad, *(p.grad for p in model.parameters())]

    dtypes: list[torch.dtype] = []

    def recorded(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        def function(y: torch.Tensor) -> torch.Tensor:
            dtypes.extend([(y @ y.transpose(1, 2)).dtype, y.half().exp().dtype])
            return module(y)

        return checkpoint(function, x, use_reentrant=reentrant)

    plain, again = gradients(lambda module, x: module(x)), gradients(recorded)
    assert dtypes == [HALF, FULL] * 2
    for a, b in zip(plain, again, strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_outside_and_one_that_fails_are_torchs_own() -> None:
    x = torch.rand(4, 4, requires_grad=True)
    with autocast("fp16"):
        pass  # from here on checkpoints ask for a state
    for reentrant in (False, True):
        y = checkpoint(lambda z: z @ z, x, use_reentrant=reentrant)
        assert y.dtype == FULL
        y.sum().backward()

    def fails(z: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    for reentrant in (False, True):
        with pytest.raises(ZeroDivisionError), autocast("fp16"):
            checkpoint(fails, x, use_reentrant=reentrant)
        assert not torch.is_autocast_enabled("cpu")


def test_torch_notes_no_cuda_state_that_it_could_not_enter_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch takes "cuda" for a checkpoint's device, it would enter its autocast, and warn without a GPU."""
    monkeypatch.setattr(DefaultDeviceType, "_default_device_type", "cuda")
    x = torch.rand(4, 4, requires_grad=True)
    with autocast("fp16"):
        y = checkpoint(lambda z: (z @ z).exp(), x, use_reentrant=False)
    y.sum().backward()


def test_a_disabled_region_is_recomputed_disabled() -> None:
    x = torch.rand(4, 4, requires_grad=True)
    dtypes = []

    def function(y: torch.Tensor) -> torch.Tensor:
        dtypes.append((y @ y).dtype)
        return y @ y

    with autocast("fp16"), torch.autocast("cuda", enabled=False):
        loss = checkpoint(function, x, use_reentrant=False).sum()
    loss.backward()
    assert dtypes == [FULL, FULL]


@pytest.mark.parametrize("order", ["autocast outside", "autocast inside"])
@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_an_emulated_gpu_sees_the_operands_that_autocast_makes(name: str, order: str) -> None:
    """Its products have that GPU's bits, for operands of the dtype of autocast, whatever ``inputs`` says of FP32."""
    from fplab import tensorcore
    from fplab.nn import emulate

    g = torch.Generator().manual_seed(3)
    x, w = (torch.randn(7, 64, generator=g, requires_grad=True), torch.randn(64, 5, generator=g, requires_grad=True))
    incoming = torch.randn(7, 5, generator=g).to(DTYPES[name])
    x, w = (t.detach().mul(2.0**20 if name == "bf16" else 1).requires_grad_() for t in (x, w))  # beyond FP16
    outer, inner = autocast(name), emulate("H100", inputs={"fp16": "bf16", "bf16": "fp16"}[name])
    if order == "autocast inside":
        outer, inner = inner, outer
    with outer, inner:
        y = x @ w
    y.backward(incoming)

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found = tensorcore.matmul(a.detach().float(), b.detach().float(), gpu="H100", inputs=name, store=name)
        return torch.from_numpy(found)

    lower = DTYPES[name]
    assert y.dtype == lower
    assert torch.equal(y.float(), product(x.to(lower), w.to(lower)))
    assert torch.equal(x.grad, product(incoming, w.to(lower).t()))
    assert torch.equal(w.grad, product(x.to(lower).t(), incoming))
