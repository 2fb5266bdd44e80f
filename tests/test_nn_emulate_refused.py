"""What ``fplab.nn.emulate`` refuses: products left unemulated, other libraries' operations, the compiler."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from emulated import random
from fresh import python
from refusals import refuses
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import _len_torch_dispatch_stack

from fplab.errors import LabError
from fplab.nn import emulate

X, W, G = random(40, 72), random(72, 24, seed=1), random(40, 24, seed=2)
APPLY = torch.autograd.Function.__dict__["apply"]


def leaf(t: torch.Tensor) -> torch.Tensor:
    return t.clone().requires_grad_()


UNEMULATED = {
    "linalg_qr": lambda: torch.linalg.qr(X),
    "_cdist_forward": lambda: torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist"),
    "_euclidean_dist": lambda: torch.cdist(X, X),
    "_trilinear": lambda: functional.bilinear(X, X, random(2, 72, 72)),
    "linalg_inv_ex": lambda: torch.linalg.inv(X[:, :40]),
    "_linalg_svd": lambda: torch.linalg.svd(X),
    "_int_mm": lambda: torch._int_mm(torch.ones(32, 32, dtype=torch.int8), torch.ones(32, 32, dtype=torch.int8)),
    "linalg_cholesky_ex": lambda: torch.linalg.cholesky(torch.eye(3)),
    "_linalg_solve_ex": lambda: torch.linalg.solve(torch.eye(40), X),
    "linalg_matrix_exp": lambda: torch.matrix_exp(torch.eye(3)),
    "conv_tbc": lambda: torch.conv_tbc(random(5, 2, 3), random(2, 3, 4), random(4)),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", UNEMULATED)
def test_a_product_left_unemulated_raises_unless_it_is_allowed(name: str, inference: bool) -> None:
    run, text = UNEMULATED[name], f"{name} is not emulated (.*). Its result would have torch's bits, not the H100's; "
    with torch.inference_mode(inference):
        with emulate("H100", "fp16"), pytest.raises(LabError, match=text + re.escape(f"allow=['{name}'] lets it run")):
            run()
        with emulate("H100", "fp16", allow=[name]) as lab:
            run()
    assert lab.report().unemulated == (name,)
    assert "torch's own (allowed)" in str(lab.report())


def test_an_unemulated_product_in_the_backward_pass_after_the_block_raises_and_leaves_nothing_behind() -> None:
    class Solves(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *g: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(g[0])

    x = random(3, 3, grad=True)
    with emulate("H100", "fp16"):
        y = Solves.apply(x)
    refuses(lambda: y.backward(torch.eye(3)), "linalg_inv_ex is not emulated")
    assert _len_torch_dispatch_stack() == 0
    assert torch.equal(torch.mm(X, W), X @ W)


def test_a_second_backward_raises_torch_s_error_and_leaves_nothing_behind() -> None:
    x, w = leaf(X), leaf(W)
    with emulate("H100", "fp16"):
        y = x @ w
    y.backward(G)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward(G)
    assert _len_torch_dispatch_stack() == 0


def test_an_error_in_the_block_puts_everything_back() -> None:
    with pytest.raises(ZeroDivisionError), emulate("H100", "fp16"):
        raise ZeroDivisionError
    assert _len_torch_dispatch_stack() == 0
    assert torch._C._get_mkldnn_enabled()
    assert torch.autograd.Function.__dict__["apply"] is APPLY
    net = nn.Linear(72, 24)
    assert torch.equal(net(X), functional.linear(X, net.weight, net.bias))


def test_meta_tensors_pass() -> None:
    with emulate("H100", "fp16"):
        assert torch.mm(X.to("meta"), W.to("meta")).shape == (40, 24)


COMPILED = """
import sys
import torch
from fplab.errors import LabError
from fplab.nn import emulate
x = torch.full((2, 2), 1 + 2.0**-12)
want = x.half() @ x.half()
def tried(f):
    try:
        print(torch.equal(f().half(), want))
    except LabError as error:
        print(str(error)[:60])
def called_in_a_block(f):
    def call():
        with emulate("H100", "fp16"):
            return f(x)
    return call
with emulate("H100"):
    x @ x
print("torch._dynamo" in sys.modules)
tried(called_in_a_block(lambda x: torch.compile(lambda a: a @ a, backend="eager")(x)))
product = torch.compile(lambda a: a @ a, backend="eager")
tried(called_in_a_block(product))
product(x)
tried(called_in_a_block(product))
tried(torch.compile(called_in_a_block(lambda a: a @ a), backend="eager"))
print(torch.equal(product(x), x @ x))
with emulate("H100"):
    x @ x
"""


def test_what_was_compiled_before_a_block_is_emulated_cached_or_not() -> None:
    """A fresh process: the compiler's caches and the moment it is first loaded are part of the question."""
    refused = "torch.compile compiles inside fplab.nn.emulate, and its kern"
    said = python(COMPILED, warnings="ignore").splitlines()
    assert said == ["False", refused, "True", "True", refused, "True"]


def test_a_compiled_model_has_the_bits_and_the_names_of_the_one_it_was_made_of() -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(72, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    whole, part = torch.compile(plain, backend="eager"), copy.deepcopy(plain)
    part[2] = torch.compile(part[2], backend="eager")
    found = {}
    for name, model in {"plain": plain, "whole": whole, "part": part}.items():
        with emulate("H100", "fp16", layers={"2": "bf16"}) as run:
            y = model(X)
            y.sum().backward()
        found[name] = y.detach(), run.report()
    for name in ("whole", "part"):
        assert torch.equal(found[name][0], found["plain"][0])
        assert found[name][1].rows == found["plain"][1].rows
        assert found[name][1].questions.keys() - found["plain"][1].questions.keys() == {"compiled"}


@pytest.mark.parametrize(
    ("run", "text"),
    [(lambda: functional.bilinear(X, X, random(2, 72, 72)), "einsum('bi,oij,bj->bo', x, weight, y)"),
     (lambda: torch.cdist(X, X), "(x.unsqueeze(-2) - y.unsqueeze(-3)).norm(dim=-1) has no products."),
     (lambda: torch.linalg.solve_triangular(torch.eye(40), X, upper=True), "Solve before the block"),
     (lambda: X.to(torch.complex64) @ W.to(torch.complex64), "real and imaginary parts apart"),
     (lambda: X.to_sparse() @ W, "to_dense() makes a tensor whose products are emulated."),
     (lambda: torch.sparse.mm(X.to_sparse(), W), "to_dense() makes a tensor whose products are emulated.")],
)  # fmt: skip
def test_a_refusal_says_what_to_write_instead(run: Any, text: str) -> None:
    with emulate("H100", "fp16"), pytest.raises(LabError, match=rf"report\(\) then lists it\. .*{re.escape(text)}"):
        run()


def test_what_is_said_instead_runs_and_is_nearly_the_same() -> None:
    weight = random(2, 72, 72)
    with emulate("H100", "fp16") as run:
        got = torch.einsum("bi,oij,bj->bo", X, weight, X)
        (X.unsqueeze(-2) - X.unsqueeze(-3)).norm(dim=-1)
    want = functional.bilinear(X, X, weight)
    assert (got - want).abs().max() < 2**-8 * want.abs().max()
    assert {row.operation for row in run.report().rows} == {"bmm"}
