"""``fplab.nn.emulate`` with the rest of torch: autocast, inference, checkpoints, torch.func, others' models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated import cancelling, check, product, random, same
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.checkpoint import checkpoint

from fplab.errors import LabError
from fplab.nn import emulate, watch
from fplab.training import AmaxScaling

X, W = random(40, 72), random(72, 24, seed=1)
G = random(40, 24, seed=2)


def leaf(t: torch.Tensor) -> torch.Tensor:
    return t.clone().requires_grad_()


def test_autocast_gives_half_results_rounded_once() -> None:
    x, w = leaf(cancelling(X, -1)), leaf(cancelling(W, -2))
    with emulate("V100", "fp16"), torch.autocast("cpu", torch.float16):
        y = x @ w
    y.backward(G.half())
    a, b = x.detach().half(), w.detach().half()
    assert y.dtype == torch.float16
    check(y, product(a, b, gpu="V100"), a @ b)
    assert same(x.grad, product(G.half(), b.t(), gpu="V100").float())
    assert same(w.grad, product(a.t(), G.half(), gpu="V100").float())


def test_bf16_tensors_take_the_bf16_unit() -> None:
    a, b = cancelling(X, -1), cancelling(W, -2)
    with emulate("A100", "fp16") as run, torch.autocast("cpu", torch.bfloat16):
        y = a @ b
    check(y, product(a.bfloat16(), b.bfloat16(), gpu="A100"), a.bfloat16() @ b.bfloat16())
    assert run.report().rows[0].unit == "A100 mma.k16 bf16->fp32"
    with (
        emulate("A100", "fp16"),
        pytest.raises(LabError, match=r"V100 \(Volta, sm_70\) has no bf16"),
        emulate("V100", "fp16"),
    ):
        a.bfloat16() @ b.bfloat16()


@pytest.mark.parametrize("name", ["linear", "einsum", "matmul", "conv2d", "scaled_dot_product_attention"])
def test_inference_mode(name: str) -> None:
    """There operations that torch composes of others arrive whole, and are taken apart here."""
    images, kernels, bias = random(2, 3, 6, 6), random(4, 3, 3, 3), random(24, seed=3)
    q = random(2, 2, 9, 16)
    run = {
        "linear": lambda: functional.linear(X, W.t(), bias),
        "einsum": lambda: torch.einsum("ik,kj->ji", X, W),
        "matmul": lambda: torch.matmul(X.expand(2, 40, 72), W),
        "conv2d": lambda: functional.conv2d(images, kernels),
        "scaled_dot_product_attention": lambda: functional.scaled_dot_product_attention(q, q, q),
    }[name]
    with emulate("H100", "fp16"):
        want = run()
    with torch.inference_mode():
        own = run()
        with emulate("H100", "fp16"):
            got = run()
    check(got, want, own)


# --- checkpoints --------------------------------------------------------------------------------------------------
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 8))


def gradients(net: nn.Module) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    return found


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_a_checkpoint_recomputes_in_the_same_bits(reentrant: bool, inside: bool) -> None:
    """The recomputation runs in the backward pass, after the block, and decides every gradient."""
    net, x = model(), leaf(random(16, 24))
    with emulate("V100", "fp16"):
        net(x).square().sum().backward()
    want = gradients(net)
    net(x).square().sum().backward()
    own = gradients(net)
    with emulate("V100", "fp16") as run:
        loss = checkpoint(net, x, use_reentrant=reentrant).square().sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    got = gradients(net)
    assert len(got) == len(want) == 8
    assert all(map(same, got, want))
    assert not any(same(a, b) for a, b in zip(got[::2], own[::2], strict=True))
    forward = sum(row.count for row in run.report().rows if row.operation == "addmm")
    assert forward >= 5, "three products, and at least two of them again"


def test_a_checkpoint_that_ends_in_a_plain_operation() -> None:
    """The node that asks for the recomputation is a tanh's, which has no products of its own."""
    x, w = leaf(X), leaf(W)
    with emulate("V100", "fp16"):
        loss = checkpoint(lambda a, b: torch.tanh(torch.tanh(a @ b / 9)), x, w, use_reentrant=False).sum()
        direct = torch.tanh(torch.tanh(x @ w / 9)).sum()
    loss.backward()
    got = x.grad, w.grad
    x.grad = w.grad = None
    direct.backward()
    assert same(got[0], x.grad)  # type: ignore[arg-type]
    assert same(got[1], w.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_an_lstm_that_is_recomputed_is_taken_apart_again(reentrant: bool, inside: bool) -> None:
    layer, x = nn.LSTM(24, 20), random(5, 3, 24, grad=True)
    with emulate("V100", "fp16"):
        layer(x)[0].sum().backward()
        want = gradients(layer)
        y = checkpoint(lambda x: layer(x)[0], x, use_reentrant=reentrant).sum()
        if inside:
            y.backward()
    if not inside:
        y.backward()
    got = gradients(layer)
    layer(x)[0].sum().backward()
    own = gradients(layer)
    assert len(got) == len(want) == 4
    assert all(map(same, got, want))
    assert not any(map(same, got, own))


# --- whose a backward product is ----------------------------------------------------------------------------------

HIGH, NARROW = "B200 tcgen05.k16 bf16->fp32", "B200 tcgen05.k32 e4m3/e8m0x32->fp32"


def three() -> tuple[nn.Sequential, Any]:
    """Three layers, and an emulation that multiplies the first two in MXFP8 and the last in BF16."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    return net, emulate("B200", inputs="bf16", layers={"0": "mxfp8", "2": "mxfp8"})


def units(run: Any) -> dict[tuple[str, str], int]:
    """How many products each layer had in each unit, forward and backward."""
    found: dict[tuple[str, str], int] = {}
    for row in run.report().rows:
        found[row.layer, row.unit] = found.get((row.layer, row.unit), 0) + row.count
    return found


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_the_last_layer_of_a_checkpoint_keeps_its_name_and_its_format(reentrant: bool, inside: bool) -> None:
    """A reentrant checkpoint begins a backward pass of its own right after its last product."""
    net, run = three()
    with run:
        loss = checkpoint(net, random(32, 32, grad=True), use_reentrant=reentrant).square().sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    assert units(run) == {("0", NARROW): 4, ("2", NARROW): 4, ("4", HIGH): 3 + reentrant}


def test_a_backward_pass_that_begins_at_a_product_knows_its_layer() -> None:
    (net, run), x, gradient = three(), random(32, 32), random(32, 32, seed=1)
    with run:
        torch.autograd.backward([net(x)], [gradient])
    assert units(run) == {("0", NARROW): 2, ("2", NARROW): 3, ("4", HIGH): 3}


def test_a_forward_pass_from_before_the_block_has_no_layers() -> None:
    """Its products are then computed in one format, or refused where the format is a layer's."""
    net, run = three()
    y = net(random(32, 32)).square().sum()
    text = (
        r"mm in the backward pass of an operation that ran before this block \(AddmmBackward0\): its layer is not "
        r"known, and with a recipe, layers=, gradients= or scaling= the bits depend on it\. Compute the forward pass in"
    )
    with pytest.raises(LabError, match=text), run:
        y.backward()
    y = net(random(32, 32)).square().sum()
    with emulate("B200", inputs="bf16") as plain:
        y.backward()
    assert units(plain) == {("", HIGH): 5}


# --- torch.func ---------------------------------------------------------------------------------------------------
def loss_of(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w / 9).square().sum()


def test_func_grad_and_vmap() -> None:
    """Per-sample gradients: vmap of grad."""
    with emulate("V100", "fp16"):
        got = torch.func.grad(loss_of)(W, X)
        each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))(W, X[:5, None])
        w = leaf(W)
        loss_of(w, X).backward()
        one = torch.func.grad(loss_of)(W, X[2:3])
    check(got, w.grad, torch.func.grad(loss_of)(W, X))
    check(each[2], one, torch.func.grad(loss_of)(W, X[2:3]))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_func_vjp_after_the_block_and_jvp() -> None:
    with emulate("V100", "fp16"):
        y, pull = torch.func.vjp(lambda x, w: x @ w, X, W)
        _, tangent = torch.func.jvp(lambda x: x @ W, (X,), (X * 2,))
    gx, gw = pull(G)
    check(y, product(X, W, gpu="V100"), X @ W)
    check(gx, product(G, W.t(), gpu="V100"), G @ W.t())
    check(gw, product(X.t(), G, gpu="V100"), X.t() @ G)
    check(tangent, product(X * 2, W, gpu="V100"), (X * 2) @ W)


def test_func_vjp_belongs_to_the_innermost_block() -> None:
    with emulate("V100", "fp16"), emulate("H100", "fp16"):
        _, pull = torch.func.vjp(lambda x: x @ W, X)
    check(pull(G)[0], product(G, W.t()), product(G, W.t(), gpu="V100"))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_func_jacobians_hessian_and_functional_call() -> None:
    x, w = X[:4], W[:, :3]
    with emulate("V100", "fp16"):
        jac = torch.func.jacrev(lambda x: x @ w)(x)
        forward = torch.func.jacfwd(lambda x: x @ w)(x)
        hessian = torch.func.hessian(lambda a: (a @ w).square().sum())(x[:1])
        net = nn.Linear(72, 24, bias=False)
        called = torch.func.functional_call(net, {"weight": W.t()}, (X,))
    eye = torch.eye(12).reshape(12, 4, 3)
    assert same(jac, product(eye, w.t(), gpu="V100").reshape(4, 3, 4, 72))
    assert same(jac, forward)
    assert not same(jac, torch.func.jacrev(lambda x: x @ w)(x))
    exact = torch.func.hessian(lambda a: (a @ w).square().sum())(x[:1])
    assert 0 < (hessian - exact).abs().max() < 0.1
    check(called, product(X, W, gpu="V100"), X @ W)


# --- models nobody here wrote -------------------------------------------------------------------------------------
class Stranger(torch.autograd.Function):
    """Someone's own function: its backward multiplies in Python."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.name = "stored"  # hides the node's own name()
        ctx.save_for_backward(x, w)
        kept = x @ w
        return kept, torch.relu(kept) * 2, (kept + 1)[1:]

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        g = given[0] + given[1] + functional.pad(given[2], (0, 0, 1, 0))
        return torch.einsum("ij,kj->ik", g, w), torch.matmul(x.t(), g)


@pytest.mark.parametrize("output", [0, 1, 2])
def test_a_function_with_a_backward_of_its_own(output: int) -> None:
    x, w = leaf(X), leaf(W)
    with emulate("V100", "fp16"):
        y = Stranger.apply(x, w)[output]
    g = G if output < 2 else functional.pad(G[1:], (0, 0, 1, 0))
    y.backward(G[40 - len(y) :])
    assert w.grad is not None
    check(x.grad, product(g, W.t(), gpu="V100"), g @ W.t())
    check(w.grad, product(X.t(), g, gpu="V100"), X.t() @ g)


def test_nodes_from_before_the_block_stay_torch_s_own() -> None:
    """Also below torch.func, whose graph is searched."""

    def mixed(x: torch.Tensor) -> torch.Tensor:
        before = x @ W
        with emulate("V100", "fp16"):
            return torch.tanh(before / 9).sum()

    def plain(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ W / 9).sum()

    x = leaf(X)
    mixed(x).backward()
    own = torch.func.grad(plain)(X)
    assert same(x.grad, own)
    assert same(torch.func.grad(mixed)(X), own)


def test_an_inner_block_may_allow_what_the_outer_does_not() -> None:
    with emulate("V100", "fp16"), emulate("H100", "fp16", allow=["linalg_qr"]) as inner:
        torch.linalg.qr(X)
    assert inner.report().unemulated == ("linalg_qr",)


class Wrapped(torch.Tensor):
    """A tensor of another kind, which unwraps itself for every operation."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        made: Wrapped = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.inner if isinstance(a, Wrapped) else a for a in args]
        return return_and_correct_aliasing(func, args, kwargs or {}, Wrapped(func(*plain, **(kwargs or {}))))


def test_tensors_of_another_kind_unwrap_themselves() -> None:
    with emulate("V100", "fp16"):
        got = Wrapped(X) @ Wrapped(W)
    check(got.inner, product(X, W, gpu="V100"), X @ W)


def test_layers_are_named_and_their_products_found_in_the_report() -> None:
    net, x = model(), random(16, 24)
    with emulate("V100", "fp16") as run:
        loss = net(x).square().sum()
    loss.backward()
    rows = [(r.layer, r.phase, r.operation, tuple(r.shape or ()), r.count) for r in run.report().rows]
    assert rows == [
        ("0", "forward", "addmm", (1, 16, 24, 40), 1),
        ("3", "forward", "addmm", (1, 16, 40, 40), 1),
        ("5", "forward", "addmm", (1, 16, 40, 8), 1),
        ("5", "backward", "mm", (1, 16, 8, 40), 1),
        ("5", "backward", "mm", (1, 8, 16, 40), 1),
        ("3", "backward", "mm", (1, 16, 40, 40), 1),
        ("3", "backward", "mm", (1, 40, 16, 40), 1),
        ("0", "backward", "mm", (1, 40, 16, 24), 1),
    ]
    assert run.report().rows[0].macs == 16 * 24 * 40


# --- FP8: gradients' format and scaling ---------------------------------------------------------------------------
class Recording:
    """A scaling that multiplies by four, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[int, ...]]] = []

    def scale(self, role: str, tensor: torch.Tensor) -> float:
        self.asked.append((role, tuple(tensor.shape)))
        return 4.0


@pytest.mark.parametrize("late", [True, False])
def test_gradients_have_a_format_of_their_own(late: bool) -> None:
    """E4M3 forward, E5M2 for the gradient that comes in: each backward product is of mixed formats."""
    x, w = leaf(X), leaf(W)
    with emulate("H100", "e4m3", gradients="e5m2") as run:
        y = x @ w
        if not late:
            y.backward(G)
    if late:
        y.backward(G)
    given = {"store": None}
    check(y, product(X, W, inputs="e4m3", **given), X @ W)
    assert w.grad is not None
    check(x.grad, product(G, W.t(), inputs="e5m2*e4m3", **given), product(G, W.t(), inputs="e4m3", **given))
    check(w.grad, product(X.t(), G, inputs="e4m3*e5m2", **given), product(X.t(), G, inputs="e4m3", **given))
    assert [row.unit.split()[-1] for row in run.report().rows] == ["e4m3->fp32", "e4m3*e5m2->fp32", "e5m2*e4m3->fp32"]


class Block(nn.Module):
    """As in a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.proj(x)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_a_layer_has_one_name_in_every_report() -> None:
    """That of its place in the model; a second model's is told apart by the model's own."""
    net, other, x = Blocks(), Blocks(), random(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    with emulate("V100", "fp16") as run, watch(net, optimizer) as seen:
        net(x).square().sum().backward()
        optimizer.step()
        other(x)
        other.blocks[1](x)
    layers = list(dict.fromkeys(row.layer for row in run.report().rows))
    assert set(layers[:2]) <= {row.layer for row in seen.report().rows}
    assert max(map(len, str(run.report()).splitlines())) <= 100
    assert layers == ["blocks.0.proj", "blocks.1.proj", "Blocks 2.blocks.0.proj", "Blocks 2.blocks.1.proj"]


def test_scaling_is_asked_for_each_operand_by_its_role() -> None:
    net, scaling = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 8)), Recording()
    x = random(4, 32)
    for _ in range(2):
        with emulate("H100", "e4m3", scaling=scaling):
            y = net(x)
        y.backward(torch.ones_like(y))
    half = len(scaling.asked) // 2
    assert scaling.asked[:half] == scaling.asked[half:], "the next step asks for the same roles"
    roles = [role for role, _ in scaling.asked[:half]]
    assert len(set(roles)) == len(roles) == 10
    assert roles[:4] == ["0 forward 0 a", "0 forward 0 b", "1 forward 0 a", "1 forward 0 b"]
    assert roles[4:6] == ["1 backward 0.0 a gradient", "1 backward 0.0 b"]
    assert scaling.asked[4][1] == (4, 8)


@pytest.mark.parametrize("call", ["backward", "grad"])
def test_a_backward_in_the_block_asks_for_the_same_roles(call: str) -> None:
    """Also where the last operation of the block is itself a product."""
    asked = []
    for inside in (False, True):
        scaling, x = Recording(), leaf(X)
        with emulate("H100", "e4m3", scaling=scaling):
            y = x @ W
            if inside and call == "backward":
                y.backward(G)
            elif inside:
                torch.autograd.grad(y, x, G)
        if not inside:
            y.backward(G)
        asked.append(scaling.asked)
    assert asked[0] == asked[1]
    assert [role for role, _ in asked[0]][2:] == [" backward 0.0 a gradient", " backward 0.0 b"]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_a_checkpoint_asks_for_the_roles_of_the_layers_in_it(reentrant: bool, inside: bool) -> None:
    """Also where it ends in a function, and calls others between its layers; and it gets the same scales again.

    One role for all of its layers had one history for all: scales of the largest tensor among them.
    """
    torch.manual_seed(0)
    first, second, w = nn.Linear(24, 40), nn.Linear(40, 8), leaf(random(40, 40, seed=1))

    def region(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(second(torch.relu(first(x)) @ w * 300))

    def steps(through: object) -> tuple[list[torch.Tensor], set[str]]:
        net = nn.ModuleList([first, second])
        scaling, found = AmaxScaling("e4m3", "e5m2", history=2), []
        for step in range(4):
            x = leaf(random(16, 24, seed=step) * 4.0**step)
            with emulate("H100", "e4m3", gradients="e5m2", scaling=scaling):
                loss = through(x).square().sum()  # type: ignore[operator]
                if inside:
                    loss.backward()
            if not inside:
                loss.backward()
            found += [*gradients(net), x.grad, w.grad]
            x.grad = w.grad = None
        return found, set(dict(scaling.state_dict()["seen"]))

    want, roles = steps(region)
    got, asked = steps(lambda x: checkpoint(region, x, use_reentrant=reentrant))
    assert asked == roles
    assert len(want) == len(got) == 24
    assert all(map(same, got, want))


def test_scaled_operands_are_rounded_and_the_product_is_scaled_back() -> None:
    small = X * 2.0**-9, W * 2.0**-9
    with emulate("H100", "e4m3", scaling=Recording()):
        got = small[0] @ small[1]
    with emulate("H100", "e4m3"):
        plain = small[0] @ small[1]
    check(got, product(small[0] * 4, small[1] * 4, inputs="e4m3", store=None) / 16, plain)


def test_operands_saturate_in_fp8() -> None:
    """And a block says so once, at the user's line: nothing scales them unless ``scaling`` is given."""
    x, one = torch.tensor([[1e6, -torch.inf]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    text = r"2 of 2 values of ' forward 0 a' are beyond 448, the largest of e4m3, and saturate: without scaling= "
    with emulate("H100", "e4m3"):
        one @ one  # nothing beyond: no warning, which would be an error here
        with pytest.warns(UserWarning, match=text.replace("forward 0", "forward 1")) as said:
            got = x @ one
        x @ one  # once
    assert said[0].filename == __file__
    assert got.tolist() == [[448.0, -448.0]]
    with emulate("H100", "e4m3", scaling=AmaxScaling(history=0)):
        assert (torch.tensor([[1e6, 0.0]]) @ one)[0, 0] == 240 * 2.0**12


class Third:
    """A scaling by a number that is no power of two."""

    def __init__(self, scale: float) -> None:
        self.given = scale

    def scale(self, role: str, tensor: torch.Tensor) -> float:
        return self.given


def test_a_scale_need_not_be_a_power_of_two() -> None:
    """An operand times it in FP32; the product times the rounded product of the rounded reciprocals."""
    with emulate("H100", "e4m3", scaling=Third(0.3)):
        got = X @ W
    third = torch.tensor(0.3)
    inverse = 1 / third
    want = product(X * third, W * third, inputs="e4m3", store=None) * (inverse * inverse)
    check(got, want, product(X * third, W * third, inputs="e4m3", store=None) / (third * third))


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e39, float("nan")])
def test_a_scale_that_no_operand_can_have_is_refused(scale: float) -> None:
    with (
        emulate("H100", "e4m3", scaling=Third(scale)),
        pytest.raises(LabError, match=r"for ' forward 0 a'; a positive"),
    ):
        X @ W
