"""Every kind of product under ``fplab.nn.emulate``, forward and backward, against ``fplab.tensorcore.matmul``.

Each test also asserts that torch's own product has other bits, so that a model left unemulated would fail it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from emulated import cancelling, check, product, random, same
from refusals import refuses
from torch.nn import functional

from fplab.errors import LabError
from fplab.language import speaking
from fplab.nn import emulate
from fplab.nn.emulation.product_log import QUESTIONS
from fplab.tensorcore import Plan, PlanByRows, matmul
from fplab.training import AmaxScaling

X, W = random(40, 72), random(72, 24, seed=1)
B3, C3 = random(3, 20, 40, seed=2), random(3, 40, 24, seed=3)
BIAS = random(24, seed=4)
Run = Callable[..., torch.Tensor]

PRODUCTS: dict[str, tuple[Run, tuple[torch.Tensor, ...], Run]] = {
    "mm": (torch.mm, (X, W), product),
    "@": (lambda a, b: a @ b, (X, W), product),
    "matmul of vectors on the left": (torch.matmul, (X[0], W), lambda a, b: product(a[None], b)[0]),
    "mv": (torch.mv, (X, W[:, 0]), lambda a, x: product(a, x[:, None])[:, 0]),
    "dot": (torch.dot, (X[0], W[:, 0]), lambda a, x: product(a[None], x[:, None]).reshape(())),
    "bmm": (torch.bmm, (B3, C3), product),
    "matmul that broadcasts": (torch.matmul, (B3, C3[0]), product),
    "addmm": (torch.addmm, (BIAS, X, W), lambda c, a, b, **k: product(a, b, c, **k)),
    "addmm with factors": (
        lambda c, a, b: torch.addmm(c, a, b, alpha=0.5, beta=3), (BIAS, X, W),
        lambda c, a, b, **k: product(a, b, c, alpha=0.5, beta=3, **k),
    ),
    "addmv": (torch.addmv, (X[:, 1].clone(), X, W[:, 0]), lambda c, a, x: product(a, x[:, None], c[:, None])[:, 0]),
    "baddbmm": (torch.baddbmm, (C3[:, :20], B3, C3), lambda c, a, b, **k: product(a, b, c, **k)),
    "linear": (functional.linear, (X, W.t(), BIAS), lambda a, w, c: product(a, w.t(), c)),
    "linear of three dimensions": (functional.linear, (B3, C3[0].t(), BIAS), lambda a, w, c: product(a, w.t(), c)),
    "einsum": (lambda a, b: torch.einsum("bik,bkj->bij", a, b), (B3, C3), product),
    "einsum, transposed": (lambda a, b: torch.einsum("ki,kj->ij", a.t(), b), (X, W), product),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 1), (B3, C3[0]), product),
    "inner": (torch.inner, (X, W.t()), lambda a, b: product(a, b.t())),
    "chain_matmul": (
        lambda a, b, c: torch.linalg.multi_dot([a, b, c]), (X, W, C3[0].t()),
        lambda a, b, c: product(product(a, b), c),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_has_the_gpu_s_bits(name: str) -> None:
    run, operands, want = PRODUCTS[name]
    with emulate("H100", "fp16"):
        got = run(*operands)
    check(got, want(*operands), run(*operands))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "addmm with factors", "baddbmm"])
def test_half_tensors_stay_half_and_are_rounded_once(name: str, dtype: torch.dtype) -> None:
    run, operands, want = PRODUCTS[name]
    *c, a, b = operands
    halves = tuple(t.to(dtype) for t in (*c, cancelling(a, -1), cancelling(b, -2)))
    gpu = "V100" if dtype == torch.float16 else "A100"
    with emulate(gpu, "fp16"):
        got = run(*halves)
    check(got, want(*halves, gpu=gpu), run(*halves))
    assert got.dtype == dtype


@pytest.mark.parametrize(
    ("gpu", "inputs", "accumulate"),
    [("V100", "fp16", "fp32"), ("V100", "fp16", "fp16"), ("A100", "bf16", "fp32"), ("A100", "tf32", "fp32"),
     ("H100", "fp16", "fp16"), ("H100", "e4m3", "fp32"), ("Ada", "e5m2", "fp16"), ("B200", "tf32", "fp32"),
     ("RTXPRO6000", "e2m1", "fp32")],
)  # fmt: skip
def test_gpus_formats_and_accumulators(gpu: str, inputs: str, accumulate: str) -> None:
    a, b = X[:, :64].requires_grad_(), W[:64].clone().requires_grad_()
    with emulate(gpu, inputs, accumulate):
        y = a @ b
    y.backward(BIAS.expand_as(y))
    given = {"inputs": inputs, "output": accumulate, "store": None}
    check(y, product(a, b, gpu=gpu, **given), a @ b)
    assert a.grad is not None
    assert b.grad is not None
    g = BIAS.expand_as(y)
    check(a.grad, product(g, b.t(), gpu=gpu, **given), g @ b.t())
    check(b.grad, product(a.t(), g, gpu=gpu, **given), a.t() @ g)


def test_conversion_instruction_and_store_are_passed_on() -> None:
    for given in ({"conversion": "rna"}, {"conversion": "rne"}, {"instruction": "mma"}, {"store": "bf16"}):
        with emulate("H100", "tf32", **given):
            got = X @ W
        check(got, product(X, W, inputs="tf32", **{"store": None} | given), X @ W)
    with emulate("H100", "e4m3", instruction="mma"):
        got = X @ W
    check(got, product(X, W, inputs="e4m3", instruction="mma", store=None), product(X, W, inputs="e4m3", store=None))


def test_float64_runs_in_the_fp64_unit() -> None:
    a, b = X.double(), W.double()
    with emulate("A100", "fp16"):
        got = a @ b
    check(got, product(a, b, gpu="A100", inputs="fp64", output=None, store=None), product(X, W, gpu="A100").double())
    assert (got - a @ b).abs().max() < 1e-13


def test_in_place_out_and_a_dtype_for_the_result() -> None:
    half = X.half(), W.half()
    with emulate("H100", "fp16"):
        there = BIAS.repeat(40, 1).addmm_(X, W)
        out = torch.empty(0)
        assert torch.mm(X, W, out=out) is out
        wide = torch.mm(*half, out_dtype=torch.float32)
    check(there, product(X, W, BIAS), torch.addmm(BIAS, X, W))
    check(out, product(X, W), X @ W)
    check(wide, product(half[0].float(), half[1].float()), half[0].float() @ half[1].float())


def test_addbmm_adds_one_product_after_another() -> None:
    a, b, c = cancelling(B3, -1).half(), cancelling(C3, -2).half(), C3[0, :20].half()
    with emulate("H100", "fp16"):
        got = torch.addbmm(c, a, b, beta=0.5, alpha=2)
    want = c
    for i in range(3):
        want = product(a[i], b[i], want, alpha=2, beta=1 if i else 0.5)
    check(got, want, torch.addbmm(c, a, b, beta=0.5, alpha=2))


def test_an_addend_of_factor_zero_is_not_looked_at() -> None:
    with emulate("H100", "fp16"):
        got = torch.addmm(torch.full((24,), torch.nan), X, W, beta=0, alpha=3)
    check(got, product(X, W, torch.zeros(24), alpha=3), 3 * (X @ W))


@pytest.mark.parametrize("shape", [((0, 4), (4, 3)), ((4, 0), (0, 3)), ((4, 3), (3, 0)), ((2, 0, 4), (2, 4, 3))])
def test_empty_products(shape: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (torch.ones(s) for s in shape)
    with emulate("H100", "fp16"):
        got = a @ b
    assert torch.equal(got, a @ b)


@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "baddbmm", "mv", "dot", "einsum", "linear", "tensordot"])
def test_backward_after_the_block(name: str) -> None:
    """Gradients of both operands after the block, each a product of torch's own formula in the GPU's bits."""
    run, operands, _ = PRODUCTS[name]
    leaves = [t.clone().requires_grad_() for t in operands]
    with emulate("H100", "fp16"):
        y = run(*leaves)
    g = random(1, *y.shape, seed=9)[0]
    y.backward(g)
    a, b = (leaves[1], leaves[2]) if "add" in name else leaves[:2]
    plain = [t.detach().clone().requires_grad_() for t in leaves]
    run(*plain).backward(g)
    p, q = (plain[1], plain[2]) if "add" in name else plain[:2]
    if name == "dot":
        want = (g * b, g * a)  # no product of matrices
    elif name == "mv":
        want = (torch.outer(g, b), product(a.t(), g[:, None])[:, 0])
    elif name == "linear":
        want = (product(g, b), product(g.t(), a))
    elif name == "tensordot":
        want = (product(g, b.t()), product(a.reshape(-1, 40).t(), g.reshape(-1, 24)))
    else:
        want = (product(g, b.mT), product(a.mT, g))
    for got, right, own in zip((a.grad, b.grad), want, (p.grad, q.grad), strict=True):
        assert own is not None
        assert same(got, right)
        if not (name == "dot" or (name == "mv" and got is a.grad)):
            assert not same(own, right)


def test_second_derivatives_after_the_block() -> None:
    x, w = random(20, 40, grad=True), random(40, 24, seed=1, grad=True)
    with emulate("H100", "fp16"):
        y = x @ w
    g = random(20, 24, seed=2, grad=True)
    (gx,) = torch.autograd.grad(y, x, g, create_graph=True)
    v = random(20, 40, seed=3)
    gg, gw = torch.autograd.grad(gx, (g, w), v)
    check(gg, product(v, w), v @ w)
    check(gw, product(v.t(), g), v.t() @ g)


def test_one_block_in_another_and_after_another() -> None:
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    with emulate("V100", "fp16") as outer:
        one = x @ w
        with emulate("H100", "fp16") as inner:
            two = x @ w
        three = x @ w
        one.backward(random(40, 24, seed=5))
    g = random(40, 24, seed=5)
    volta, hopper = product(X, W, gpu="V100"), product(X, W)
    assert not same(volta, hopper)
    assert same(one, volta)
    assert same(two, hopper)
    assert same(three, volta)
    check(x.grad, product(g, W.t(), gpu="V100"), product(g, W.t()))
    x.grad = None
    with emulate("V100", "fp16"):
        two.backward(g)
    check(x.grad, product(g, W.t()), product(g, W.t(), gpu="V100"))
    assert {row.phase for row in inner.report().rows} == {"forward", "backward"}
    assert sum(row.count for row in outer.report().rows) == 4
    assert same(X @ W, torch.mm(X, W)), "outside the blocks torch is itself again"


def test_what_is_open_is_said() -> None:
    with emulate("H100", "fp16") as run:
        torch.nn.Linear(4, 2)(torch.ones(3, 4))
    text = str(run.report())
    assert "Linear 1  forward  addmm      1 x 3 x 4 x 2      1      H100 wgmma.k16 fp16->fp32" in text
    assert f"* bias: {QUESTIONS['bias']}." in " ".join(text.split())
    assert "24 multiply-accumulates emulated." in text
    with speaking("zh"):
        chinese = str(run.report()).splitlines()
    assert "Linear 1  前向  addmm  1 x 3 x 4 x 2   1     H100 wgmma.k16 fp16->fp32" in chinese
    whole = "".join(line.strip() for line in chinese).replace(" ", "")
    assert f"* bias：{QUESTIONS['bias'].zh}。".replace(" ", "") in whole
    assert "模拟了 24 次乘加。" in chinese
    assert all(re.search(r"[\u4e00-\u9fff]", line) for line in chinese)
    assert "cuDNN" not in text
    with emulate("H100", "fp16") as run:
        functional.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2))
    assert "* k order of convolutions: cuDNN's is not documented" in str(run.report())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gpu": "H10"}, "unknown GPU 'H10'"),
        ({"inputs": "fp8"}, "unknown inputs 'fp8'. Allowed: fp16, bf16, tf32, e4m3, e5m2, fp64, fp32. Did you mean "
                            "'fp8_e5m2' or 'fp8_e4m3'?"),
        ({"gpu": "V100", "inputs": "bf16"}, "inputs='bf16': V100 has no unit for it. Allowed on V100: fp16"),
        ({"gpu": "H100", "inputs": "fp16", "gradients": "e2m1"}, "gradients='e2m1': H100 has no unit for it."),
        ({"gpu": "4090"}, "unknown GPU '4090'. Allowed: V100 (Volta, sm_70), T4 (Turing, sm_75), A100"),
        ({"inputs": "int8"}, "inputs='int8' cannot be emulated under a model: its operands need scales or are "
                             "integers. Allowed on H100: fp16, bf16, tf32, e4m3, e5m2, fp64, fp32."),
        ({"gpu": "B200", "inputs": "mxfp8_e4m3"}, "its operands need scales or are integers"),
        ({"inputs": "fp16", "gradients": "e5m2"}, "no e5m2 * fp16"),
        ({"gradients": "e5m2"}, "gradients='e5m2' without inputs=, where FP32 follows torch's flags; pass"),
        ({"scaling": AmaxScaling()}, "scaling is for FP8 and narrower; inputs=None needs none."),
        ({"conversion": "up"}, "unknown conversion 'up'"),
        ({"scaling": 3, "inputs": "e4m3"}, "scaling=3 has no method scale"),
        ({"allow": "linalg_qr"}, "a list of names is needed: allow=['linalg_qr']"),
        ({"allow": ["linalg_qq"]}, "unknown operation in allow 'linalg_qq'"),
        ({"allow": ["mm"]}, "'mm' is emulated, there is nothing to allow"),
        ({"store": "fp17"}, "unknown format 'fp17'"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_with_the_call(given: dict[str, object], message: str) -> None:
    with pytest.raises(LabError) as error:
        emulate(**given)  # type: ignore[arg-type]
    assert message in str(error.value)
    assert str(error.value).startswith("fplab.nn.emulate(")
    if "4090" in message:
        assert "Did you mean" not in str(error.value)  # no GPU here is anything like it


def test_operands_that_do_not_fit_are_refused() -> None:
    with emulate("H100", "fp16"):
        with pytest.raises(LabError, match=r"mm of torch.float32 and torch.float16: torch multiplies tensors of one"):
            torch.mm(X, W.half())
        with pytest.raises(LabError, match=r"mm of int64 is not emulated \(a matrix unit takes dense tensors"):
            torch.mm(X.long(), W.long())
        refuses(lambda: torch.mm(X.to_sparse(), W), r"mm of sparse_coo is not emulated")
        refuses(lambda: torch.mm(X, W.t()), r"mm of tensors of shapes .*: 72 columns by 24 rows")


def test_a_report_names_the_unit_of_every_step() -> None:
    """A step begins where the block is entered, and inside it after each backward pass."""
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    with emulate("H100", "fp16") as inside:
        for _ in range(2):
            (x @ w).sum().backward()
        x @ w
    for _ in range(2):
        with inside:
            y = x @ w
        y.sum().backward()
    unit = inside.report().rows[0].unit
    whole = (("forward", unit, 1), ("backward", unit, 2))
    assert inside.report().steps == (whole, whole, whole[:1], whole, whole)
    assert f"Steps 1 to 2: forward 1 x {unit}, backward 2 x {unit}." in str(inside.report()).splitlines()
    with speaking("zh"):
        assert f"第 3 至 3 步：前向 1 x {unit}。" in str(inside.report()).splitlines()


def test_a_rule_by_rows_chooses_the_plan_of_each_product() -> None:
    rule = PlanByRows(((4, Plan(split_k=4)),), beyond=Plan(accumulators=2))
    x, layer = torch.randn(2, 6, 64, generator=torch.Generator().manual_seed(3)), torch.nn.Linear(64, 5, bias=False)
    weight = layer.weight.detach().numpy().T
    for rows, plan in ((2, Plan(split_k=4)), (6, Plan(accumulators=2))):  # of two sequences, 4 and 12
        with emulate("H100", "fp16", plan=rule), torch.no_grad():
            found = layer(x[:, :rows]).numpy()
        assert np.array_equal(found.reshape(-1, 5), matmul(x[:, :rows].numpy().reshape(-1, 64), weight, plan=plan))


def test_an_activation_fused_to_a_product_is_in_its_epilogue() -> None:
    draw = torch.Generator().manual_seed(4)
    c, a, b = (torch.randn(*shape, generator=draw).half() for shape in ((5,), (3, 64), (64, 5)))
    for gelu, name in ((False, "relu"), (True, "gelu_tanh")):
        with emulate("H100", "fp16"):
            found = torch._addmm_activation(c, a, b, use_gelu=gelu)
        plan = Plan(c="epilogue", activation=name)
        wanted = matmul(a.numpy(), b.numpy(), c.numpy(), plan=plan, store="fp16")
        assert np.array_equal(found.float().numpy(), wanted)
    text = r"Plan\(activation='relu'\) is for fplab\.tensorcore\.matmul"
    with pytest.raises(LabError, match=text), emulate("H100", "fp16", plan=Plan(activation="relu")):
        a @ b
