"""Where ``fplab.nn.emulate`` once let a product through, or gave one a form that torch does not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulated import check, product, random, same
from refusals import refuses
from torch import nn
from torch.nn import functional

from fplab.errors import LabError
from fplab.nn import emulate

A, B = random(3, 72), random(72, 5, seed=1)


# --- products changed in place ----------------------------------------------------------------------------------
def _one(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    y[1].addmm_(a, b)


def _one_of_a_view(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    y.view(3, -1)[1].view(3, 5).addmm_(a, b)


def _batched(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    y[1:2].baddbmm_(a.unsqueeze(0), b.unsqueeze(0))


@pytest.mark.parametrize("write", [_one, _one_of_a_view, _batched])
@pytest.mark.parametrize("late", [True, False])
def test_a_product_added_in_place_to_a_part_of_a_tensor(write: Callable[..., None], late: bool) -> None:
    """Its work is then in the node of the whole tensor, not in that of the part that the operation returned."""
    grads: list[Any] = []
    plain: list[Any] = []
    for emulated, found in ((True, grads), (False, plain)):
        a, b, y = A.clone().requires_grad_(), B.clone().requires_grad_(), torch.zeros(3, 3, 5)
        with emulate("H100", "fp16") if emulated else torch.enable_grad():
            write(y, a, b)
            if not late:
                y.square().sum().backward()
        if late:
            y.square().sum().backward()
        found += [y.detach(), a.grad, b.grad]
    y = product(A, B)
    check(grads[0][1], y, plain[0][1])
    check(grads[1], product(2 * y, B.T), plain[1])
    check(grads[2], product(A.T, 2 * y), plain[2])


def test_a_part_of_a_tensor_from_before_the_block_stays_torch_s_own() -> None:
    """A view of it that is taken inside does not make its node one of the block's."""
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    y = a @ b
    with emulate("H100", "fp16") as run:
        part = y[1:]
        loss = part.sum()
    loss.backward()
    assert not run.report().rows


# --- layout in memory ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("last_x", "last_w", "transposed"), list(itertools.product([False, True], repeat=3)))
def test_convolutions_lie_in_memory_as_torch_s_own(last_x: bool, last_w: bool, transposed: bool) -> None:
    """So that ``view`` works after them, and torch's sums over them take the order they take without emulation."""
    x, w = random(2, 4, 7, 8), random(4, 4, 3, 3, seed=1)
    x = x.to(memory_format=torch.channels_last) if last_x else x
    w = w.to(memory_format=torch.channels_last) if last_w else w
    conv = functional.conv_transpose2d if transposed else functional.conv2d
    strides = []
    for block in (emulate("H100", "fp16"), torch.enable_grad()):
        xs, ws = x.detach().requires_grad_(), w.detach().requires_grad_()
        with block:
            y = conv(xs, ws, padding=1)
        strides.append([t.stride() for t in (y, *torch.autograd.grad(y.square().sum(), (xs, ws)))])
    assert strides[0] == strides[1]


def test_a_view_after_a_convolution() -> None:
    with emulate("H100", "fp16"):
        y = nn.Conv2d(3, 8, 3)(random(2, 3, 8, 8)).relu().view(2, -1)
    assert y.shape == (2, 8 * 6 * 6)


@pytest.mark.parametrize("transposed", [False, True])
def test_attention_lies_in_memory_as_torch_s_own(transposed: bool) -> None:
    strides = []
    for block in (emulate("H100", "fp16"), torch.enable_grad()):
        q = random(2, 6, 4, 8).transpose(1, 2) if transposed else random(2, 4, 6, 8)
        q, k = q.requires_grad_(), random(2, 4, 6, 8, seed=1, grad=True)
        with block:
            y = functional.scaled_dot_product_attention(q, k, k)
        strides.append([t.stride() for t in (y, *torch.autograd.grad(y.square().sum(), (q, k)))])
    assert strides[0] == strides[1]


# --- operations with a product inside -------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [[2, 1, 5, 6], [2, 1, 3, 5, 6]])
@pytest.mark.parametrize("align", [True, False])
def test_affine_grids(size: list[int], align: bool) -> None:
    """torch multiplies matrices inside this one operation, where no mode sees it."""
    dims = len(size) - 2
    theta = random(2, dims, dims + 1, grad=True)
    with emulate("H100", "fp16"):
        grid = functional.affine_grid(theta, size, align_corners=align)
    last_fastest = [torch.linspace(-1, 1, n) * (1 if align else (n - 1) / n) for n in size[2:]]
    axes = torch.meshgrid(*last_fastest, indexing="ij")
    places = torch.stack([*[axis.reshape(-1) for axis in reversed(axes)], torch.ones(axes[0].numel())], -1)
    rows = places.expand(2, -1, -1)
    plain = functional.affine_grid(theta.detach(), size, align_corners=align)
    check(grid.detach(), product(rows, theta.detach().mT).reshape(2, *size[2:], dims), plain)
    g = random(*grid.shape, seed=1)
    grid.backward(g)
    assert same(theta.grad, product(rows.mT, g.reshape(2, -1, dims)).mT)


# --- tensors that no unit takes ---------------------------------------------------------------------------------------
COMPLEX = torch.complex(random(3, 4), random(3, 4, seed=1))
NO_UNIT: dict[str, Callable[[], torch.Tensor]] = {
    "mm of int64": lambda: torch.full((3, 4), 2049) @ torch.ones(4, 5, dtype=torch.int64),
    "mm of complex64": lambda: COMPLEX @ COMPLEX.mT,
    "convolution of int64": lambda: functional.conv1d(torch.full((1, 1, 3), 2049), torch.ones(1, 1, 1).long()),
    "mm of sparse_coo": lambda: torch.ops.aten.mm(A.to_sparse(), B),
}


@pytest.mark.parametrize("name", NO_UNIT)
def test_what_no_unit_takes_must_be_allowed_by_its_kind(name: str) -> None:
    with emulate("H100", "fp16"), pytest.raises(LabError) as error:
        NO_UNIT[name]()
    assert f"{name} is not emulated (a matrix unit takes dense tensors" in str(error.value)
    assert f"allow=[{name!r}] lets it run" in str(error.value)
    with emulate("H100", "fp16", allow=[name]) as run:
        got = NO_UNIT[name]()
        other = A @ B
    assert torch.equal(got, NO_UNIT[name]())
    assert run.report().unemulated == (name,)
    check(other, product(A, B), A @ B)


def test_the_gradients_of_what_was_allowed_are_allowed_too() -> None:
    z = COMPLEX.clone().requires_grad_()
    with emulate("H100", "fp16", allow=["mm of complex64"]) as run:
        loss = (z @ z.mT).abs().sum()
    loss.backward()
    assert {row.phase for row in run.report().rows} == {"forward", "backward"}


@pytest.mark.parametrize("name", ["mm of float16", "mm of int65", "nn of int64", "mm of strided"])
def test_a_kind_that_is_emulated_or_unknown_cannot_be_allowed(name: str) -> None:
    refuses(lambda: emulate("H100", "fp16", allow=[name]), "unknown operation in allow")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_ragged_batch_is_refused_by_name() -> None:
    ragged = torch.nested.nested_tensor([random(2, 3), random(4, 3)])
    with emulate("H100", "fp16"), pytest.raises(LabError, match=r"linear is not emulated"):
        nn.Linear(3, 3)(ragged)


# --- what torch itself refuses, and layers that take their form at the first call -------------------------------------
def test_operands_that_torch_refuses_are_refused_in_its_terms() -> None:
    images = random(2, 5, 8, 8)
    with emulate("H100", "fp16"):
        with pytest.raises(LabError, match=r"weights of \(4, 3, 3, 3\) in 1 group\(s\) takes 3 channels"):
            functional.conv2d(images, random(4, 3, 3, 3))
        with pytest.raises(LabError, match=r"addmm of torch.float32 with an addend of torch.float64"):
            torch.addmm(torch.ones(5).double(), A, B)
        with pytest.raises(LabError, match=r"mm of torch.float32 into out= of torch.float64"):
            torch.mm(A, B, out=torch.empty(3, 5).double())


def test_layers_that_take_their_shape_at_the_first_call() -> None:
    with emulate("H100", "fp16"):
        layer = nn.LazyConv1d(3, 2)
        y = layer(A[None])
    w = layer.weight.detach().reshape(3, -1)
    rows = A[None].unfold(-1, 2, 1).transpose(1, 2).reshape(71, -1)
    want = product(rows, w.T, layer.bias.detach())
    check(y.detach(), want.T[None], layer(A[None]).detach())


# --- roles ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("inside", [True, False])
def test_products_outside_of_all_layers_have_the_same_roles_in_every_step(inside: bool) -> None:
    """Else a delayed scaling would see each for the first time, and scale nothing."""
    roles: list[str] = []

    class Recording:
        def scale(self, role: str, tensor: torch.Tensor) -> float:
            roles.append(role)
            return 1.0

    w = random(8, 8, grad=True)
    block = emulate("H100", "e4m3", scaling=Recording())
    with block if inside else torch.enable_grad():
        for _ in range(3):
            with torch.enable_grad() if inside else block:
                loss = (random(4, 8) @ w).tanh() @ w
            loss.sum().backward()
    a_step = len(roles) // 3
    assert len(set(roles)) == a_step
    assert roles[:a_step] == roles[a_step : 2 * a_step] == roles[2 * a_step :]


# --- nothing to multiply ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_of_an_empty_batch(groups: int, transposed: bool) -> None:
    conv = functional.conv_transpose2d if transposed else functional.conv2d
    x, bias = random(0, 3, 5, 5, grad=True), random(6, grad=True)
    w = random(3, 6 // groups, 3, 3, grad=True) if transposed else random(6, 3 // groups, 3, 3, grad=True)
    with emulate("H100", "fp16"):
        y = conv(x, w, bias, stride=2, groups=groups)
    assert y.shape == conv(x, w, bias, stride=2, groups=groups).shape
    y.sum().backward()
    assert w.grad is not None
    assert x.grad.shape == x.shape
    assert not w.grad.any()
