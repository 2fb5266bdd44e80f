"""What torch does under a recipe: which operand is which, checkpoints, resuming, choices by layer, other GPUs."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emulated import check, random, same
from ranks import on_ranks
from refusals import refuses
from torch import nn
from torch.nn.functional import relu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from fplab import scaled, seeds
from fplab.errors import LabError
from fplab.nn import emulate, recipes
from fplab.tensorcore import Plan, matmul

X, G = random(32, 48), random(32, 40, seed=1)


def mxfp8(a: torch.Tensor, b: torch.Tensor, gpu: str = "B200") -> torch.Tensor:
    """``a @ b`` of MXFP8 operands (M, K) and (K, N)."""
    q, r = (scaled.quantize(t.detach().float().numpy(), "mxfp8", k, rule="rceil", variant="te")
            for t, k in ((a, -1), (b, -2)))  # fmt: skip
    scales: Any = {"scale_a": q.scale_values(True), "scale_b": r.scale_values(True)}
    return torch.from_numpy(matmul(q.elements(), r.elements(), gpu=gpu, inputs="mxfp8_e4m3", **scales))


def linear(seed: int = 0, bias: bool = False) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(48, 40, bias=bias)


def units(run: Any, *operations: str) -> list[str]:
    """The operands' formats of every product, or of some."""
    found = (row for row in run.report().rows if not operations or row.operation in operations)
    return [row.unit.split()[-1].partition("->")[0] for row in found for _ in range(row.count)]


# --- which operand is which -----------------------------------------------------------------------------------------
def test_a_convolution_is_quantised_as_the_product_that_it_is() -> None:
    """A kernel of 1 x 1 is a linear layer over the channels, forward and backward."""
    layer, conv = linear(bias=True), nn.Conv2d(48, 40, 1)
    images = random(2, 48, 4, 4).requires_grad_()
    rows = images.detach().permute(0, 2, 3, 1).reshape(32, 48).requires_grad_()
    with torch.no_grad():
        conv.weight.copy_(layer.weight[:, :, None, None])
        conv.bias.copy_(layer.bias)
    with emulate("B200", recipe=recipes.mxfp8(scope="all")) as run:
        y, want = conv(images), layer(rows)
        y.backward(G.reshape(2, 4, 4, 40).permute(0, 3, 1, 2))
        want.backward(G)
    assert same(y.permute(0, 2, 3, 1).reshape(32, 40).contiguous(), want)
    assert rows.grad is not None
    assert same(images.grad.permute(0, 2, 3, 1).reshape(32, 48).contiguous(), rows.grad)
    assert layer.weight.grad is not None
    assert same(conv.weight.grad[:, :, 0, 0].contiguous(), layer.weight.grad)
    assert set(units(run)) == {"e4m3/e8m0x32"}


class Joined(torch.autograd.Function):
    """A product of weights that are joined; backward it joins the gradient of two halves."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*weights)
        return x @ torch.cat(weights).T

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        whole = torch.cat(gradient.chunk(2))
        return whole @ torch.cat(ctx.saved_tensors), None, None


def test_what_is_joined_of_weights_is_a_weight_and_of_gradients_a_gradient() -> None:
    layers, x = nn.ModuleList([linear(), linear(1)]), X.clone().requires_grad_()
    with emulate("H100", recipe=recipes.fp8_current(scope="all")) as run:
        Joined.apply(x, *(layer.weight for layer in layers)).backward(random(32, 80, seed=2))
    assert units(run) == ["e4m3", "e5m2*e4m3"]


def test_autocast_s_copy_of_a_weight_is_a_weight() -> None:
    """And is quantised from BF16, in blocks of 16 x 16."""
    layer = linear()
    with emulate("B200", recipe=recipes.nvfp4(scope="all")) as run, torch.autocast("cpu", torch.bfloat16):
        y = layer(X)
    q = scaled.quantize(X.bfloat16().float().numpy(), "nvfp4")
    r = scaled.quantize(layer.weight.detach().bfloat16().float().numpy().T, "nvfp4", -2, block=(16, 16))
    alpha = (q.amax * r.amax * np.float32(1 / 2688**2)).item()  # type: ignore[operator]
    scales: Any = {"scale_a": q.scale_values(True), "scale_b": r.scale_values(True)}
    want = matmul(q.elements(), r.elements(), gpu="B200", inputs="nvfp4", alpha=alpha, store="bf16", **scales)
    assert same(y, torch.from_numpy(want).bfloat16())
    y.sum().backward()
    assert units(run) == ["e2m1/e4m3x16"] * 2


class Experts(nn.Module):
    """A batch of weights, which bmm, einsum and a parametrisation multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(random(3, 48, 40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = torch.bmm(x.expand(3, -1, -1), self.w)
        return one + torch.einsum("bi,eio->ebo", x, self.w * self.w.norm())


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.reshape(2, 16, 3, 16).transpose(1, 2)
        return scaled_dot_product_attention(heads, heads, heads).reshape(32, 48)


@pytest.mark.parametrize("attention", [False, True])
def test_products_of_activations_are_left_high_unless_they_are_asked_for(attention: bool) -> None:
    net, x = nn.Sequential(Attention(), linear()), X.clone().requires_grad_()
    with emulate("B200", recipe=recipes.mxfp8(attention=attention, fp8_format="hybrid", scope="all")) as run:
        y = net(x)
    y.backward(G)
    back = "_scaled_dot_product_flash_attention_for_cpu_backward"
    ahead, behind = units(run, back.removesuffix("_backward")), units(run, back)
    high, mx = "bf16", "e4m3/e8m0x32"
    assert ahead == [mx if attention else high] * 2
    mixed = [mx, "e4m3*e5m2/e8m0x32", *["e5m2*e4m3/e8m0x32"] * 3]  # the gradient of the weights comes second
    assert sorted(behind) == sorted(mixed if attention else [high] * 5)
    with emulate("B200", recipe=recipes.mxfp8(attention=attention, scope="all")):
        got = X @ X.t()
    want = torch.from_numpy(matmul(X.numpy(), X.t().numpy(), gpu="B200", inputs="bf16"))
    assert same(got, mxfp8(X, X.t()) if attention else want)


def test_what_a_weight_scales_is_no_weight() -> None:
    """As in a norm: it is an input of the next layer, whose weight gradient this recipe leaves high."""
    one = recipes.Product(*[recipes.Operand("mxfp8")] * 2)
    layer, norm = linear(), nn.Parameter(torch.rand(48))
    with emulate("B200", recipe=recipes.Recipe("mine", one, one, None, scope="all")) as run:
        y = layer(X * norm)
    y.backward(G)
    assert sorted(units(run)) == ["bf16"] + ["e4m3/e8m0x32"] * 2


def test_a_gradient_on_the_right_has_its_own_format() -> None:
    net = Experts()
    with emulate("B200", recipe=recipes.mxfp8(fp8_format="hybrid", scope="all")) as run:
        net(X).backward(G.expand(3, -1, -1))
    assert units(run) == ["e4m3/e8m0x32"] * 2 + ["e4m3*e5m2/e8m0x32"] * 2


def test_every_operand_draws_words_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every step, layer and product, first and second derivatives."""
    drawn: list[tuple[int, ...]] = []

    def word(*keys: int) -> int:
        drawn.append(keys)
        return seeds.word(*keys)

    monkeypatch.setattr("fplab.nn.emulation.multiply.word", word)
    net, run = nn.Sequential(linear(), nn.Tanh(), nn.Linear(40, 48), nn.Tanh(), linear()), emulate("B200", recipe=NOISY)
    for _ in range(2):
        with run:
            x = X.clone().requires_grad_()
            (dx,) = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)
            dx.square().sum().backward()
    assert len(drawn) == len(set(drawn)) > 2 * (3 + 3 + 3)


def test_experts_in_batches_and_by_einsum() -> None:
    net, x = Experts(), X.clone().requires_grad_()
    with emulate("B200", recipe=recipes.mxfp8(scope="all")) as run:
        y = net(x)
        y.sum().backward()
    assert units(run) == ["e4m3/e8m0x32"] * 6
    scaled_up = net.w * net.w.norm()
    want = [mxfp8(X, w) + mxfp8(X, v) for w, v in zip(net.w, scaled_up, strict=True)]
    assert same(y.detach(), torch.stack(want))


def test_second_derivatives_have_recipes_too() -> None:
    """Of dx = dy W by dy along v: v W^T, a forward product again."""
    layer, x, dy, v = linear(), X.clone().requires_grad_(), G.clone().requires_grad_(), random(32, 48, seed=3)
    with emulate("B200", recipe=recipes.mxfp8(scope="all")) as run:
        (dx,) = torch.autograd.grad(layer(x), x, dy, create_graph=True)
    check(dx, mxfp8(G, layer.weight), G @ layer.weight)
    (second,) = torch.autograd.grad(dx, dy, v)
    check(second, mxfp8(v, layer.weight.t()), v @ layer.weight.t())
    assert set(units(run)) == {"e4m3/e8m0x32"}


# --- the same bits again --------------------------------------------------------------------------------------------
NOISY = recipes.nvfp4(seed=3, scope="all")
DELAYED = recipes.fp8_delayed(amax_history_len=2, scope="all")
CASES = pytest.mark.parametrize(("gpu", "recipe"), [("B200", NOISY), ("H100", DELAYED)], ids=["nvfp4", "fp8_delayed"])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(48, 48) for _ in range(4)))


def train(
    net: nn.Sequential, run: Any, steps: range, through: Callable[..., torch.Tensor], inside: bool = False
) -> list[torch.Tensor]:
    """The gradients of all steps, of two micro-batches each, the first of which comes back last."""
    found = []
    for step in steps:
        with run:
            losses = [through(relu_between(net), random(32, 48, seed=10 * step + n) * 2.0**-step) for n in range(2)]
            if inside:
                for loss in reversed(losses):
                    loss.square().sum().backward()
        for loss in () if inside else reversed(losses):
            loss.square().sum().backward()
        found += [p.grad.clone() for p in net.parameters() if p.grad is not None]
        net.zero_grad()
    return found


def relu_between(net: nn.Sequential) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        for layer in net:
            x = relu(layer(x))
        return x

    return forward


@CASES
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_a_checkpoint_draws_and_scales_as_before(
    gpu: str, recipe: recipes.Recipe, reentrant: bool, inside: bool
) -> None:
    """It ends in a function; the words of stochastic rounding and the scales of its layers are the same again."""

    def again(forward: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return checkpoint(forward, x.requires_grad_(), use_reentrant=reentrant)

    def plain(forward: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return forward(x.requires_grad_())

    if not recipe.amax_history_len:  # forward passes that draw, too
        every = recipes.Product(*[recipes.Operand("nvfp4", "stochastic")] * 2)
        recipe = recipes.Recipe("mine", every, every, every, seed=4, scope="all")
    want = train(network(), emulate(gpu, recipe=recipe), range(3), plain, inside)
    got = train(network(), emulate(gpu, recipe=recipe), range(3), again, inside)
    assert len(want) == len(got) == 24
    assert all(map(same, got, want))


@CASES
def test_a_run_that_is_resumed_has_the_same_bits(gpu: str, recipe: recipes.Recipe) -> None:
    def plain(forward: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return forward(x)

    run, other, fresh = (emulate(gpu, recipe=recipe) for _ in range(3))
    net = network()
    train(net, run, range(2), plain)
    state = copy.deepcopy(run.state_dict())
    want = train(net, run, range(2, 4), plain)
    other.load_state_dict(state)
    assert all(map(same, train(net, other, range(2, 4), plain), want))
    assert other.state_dict() == run.state_dict()
    begins_again = pytest.warns(UserWarning, match="without a history") if recipe.amax_history_len else nullcontext()
    with begins_again:
        assert not all(map(same, train(net, fresh, range(2, 4), plain), want))
    for wrong in ({}, {"step": 3, "amaxes": {}}):
        refuses(lambda wrong=wrong: run.load_state_dict(wrong), r"this is no state of an emulation")


@CASES
@pytest.mark.parametrize("inside", [False, True])
def test_a_block_for_each_step_has_the_bits_of_one_block_where_the_state_is_passed(
    gpu: str, recipe: recipes.Recipe, inside: bool
) -> None:
    """As the earlier emulation or as its state; the words of stochastic rounding are each step's, too."""

    def gradients(net: nn.Sequential) -> list[torch.Tensor]:
        found = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        net.zero_grad()
        return found

    def loss_of(net: nn.Sequential, n: int) -> torch.Tensor:
        return relu_between(net)(random(32, 48, seed=n) * 2.0**-n).square().sum()

    want, net = [], network()
    with emulate(gpu, recipe=recipe) as one:
        for n in range(5):
            loss_of(net, n).backward()
            want += gradients(net)
    for passes in (lambda run: run, lambda run: copy.deepcopy(run.state_dict())):
        got, net, state = [], network(), None
        for n in range(5):
            with emulate(gpu, recipe=recipe, state=state) as run:
                loss = loss_of(net, n)
                if inside:
                    loss.backward()
            if not inside:
                loss.backward()
            state = passes(run)
            got += gradients(net)
        assert all(map(same, got, want))
        if inside:
            assert run.state_dict() == one.state_dict()


def test_a_block_for_each_step_without_a_state_warns_once_that_delayed_scaling_begins_again() -> None:
    net, x = network(), random(32, 48)

    def step(**given: Any) -> Any:
        with emulate("H100", recipe=DELAYED, **given) as run:
            net(x).square().sum().backward()
        return run

    with emulate("H100", recipe=DELAYED), torch.no_grad():
        net(x)  # no training
    first = step()
    step(state=first)
    with pytest.warns(UserWarning, match="without a history") as told:
        step()
    step()  # warnings are errors here
    assert [str(one.message) for one in told] == [
        "Sequential 1: this emulation begins delayed scaling without a history, so the first step's scales are 1; an "
        "earlier emulation, which trained the model, had one. Open one emulation for all steps, or go on from the "
        "earlier one: emulate(..., state=earlier), or of its state_dict()."
    ]
    assert told[0].filename == __file__


@CASES
def test_a_step_may_be_in_the_block_or_after_it(gpu: str, recipe: recipes.Recipe) -> None:
    """There a backward pass ends it, and the other micro-batch's, which comes after, has the scales of its forward."""

    def plain(forward: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return forward(x)

    runs = [emulate(gpu, recipe=recipe) for _ in range(2)]
    late, early = (
        train(network(), run, range(1), plain, inside) for run, inside in zip(runs, (False, True), strict=True)
    )
    assert all(map(same, late, early))
    amaxes = dict(runs[1].state_dict()["amaxes"])
    names = ("input", "weight", "gradient") if amaxes else ()
    noted = {name: len(amaxes[f"Linear 1 0 {name}"]["history"]) for name in names}
    assert noted in ({}, {"input": 1, "weight": 1, "gradient": 2}), "an operand is noted where it first appears"


def test_delayed_scaling_keeps_a_scale_that_no_amax_can_give() -> None:
    """After a step of zeros, or of infinities, as after none; and margin and the last amax alone are options."""
    x = torch.full((1, 48), 3.0)
    for algorithm, margin, want in (("max", 0, 3.0), ("most_recent", 0, 1.0), ("most_recent", 2, 4.0)):
        recipe = recipes.fp8_delayed(
            amax_history_len=3, amax_compute_algo=algorithm, margin=margin, scope="all"
        )  # fmt: skip
        run, layer = emulate("H100", recipe=recipe), linear()
        for factor in (1, 1 / 3, 0, torch.inf):
            with run:
                layer(x * factor if factor else x * 0)
        with run:
            pass
        amaxes = dict(run.state_dict()["amaxes"])
        assert amaxes["Linear 1 0 input"]["used"] == want
        assert amaxes["Linear 1 0 weight"]["used"] == layer.weight.abs().max().item() * 2.0**margin


# --- choices ----------------------------------------------------------------------------------------------------------
class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 48)
        self.blocks = nn.ModuleList(nn.ModuleDict({"mlp": nn.Linear(48, 48), "proj": nn.Linear(48, 48)}) for _ in "ab")
        self.head = nn.Linear(48, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block["proj"](block["mlp"](x))  # type: ignore[index]
        return self.head(x)


def chosen(**given: Any) -> dict[str, str]:
    """The operands' formats of each layer."""
    torch.manual_seed(0)
    net = Model()
    with emulate("B200", **given) as run:
        net(torch.arange(8))
    return {row.layer: row.unit.split()[-1].partition("->")[0] for row in run.report().rows}


MX, NV, HIGH = "e4m3/e8m0x32", "e2m1/e4m3x16", "bf16"


def test_recipes_for_layers_by_pattern_by_type_and_by_place() -> None:
    names = ["blocks.0.mlp", "blocks.0.proj", "blocks.1.mlp", "blocks.1.proj", "head"]
    layers = {"*.mlp": "nvfp4", "head": "bf16", "blocks.1": recipes.fp8_current()}
    assert chosen(recipe=recipes.mxfp8(scope="all"), layers=layers) == dict(
        zip(names, [NV, MX, NV, "e4m3", HIGH], strict=True)
    )
    assert chosen(layers={"head": "mxfp8"}) == dict(zip(names, [*["fp32"] * 4, MX], strict=True))
    assert chosen(recipe="nvfp4") == dict(zip(names, [*[NV] * 4, HIGH], strict=True))
    assert chosen(recipe=recipes.nvfp4(keep_last=0.4)) == dict(zip(names, [*[NV] * 3, HIGH, HIGH], strict=True))
    kept = recipes.mxfp8(keep=("blocks.*.mlp",), keep_types=(nn.ModuleDict,), high="tf32", scope="all")
    assert chosen(recipe=kept) == dict(zip(names, [*["tf32"] * 4, MX], strict=True))
    assert set(chosen(recipe=recipes.mxfp8(keep=("blocks",), scope="all"), inputs="fp16").values()) == {"fp16", MX}


def test_a_plan_for_layers() -> None:
    layer, wide = nn.Linear(512, 40, bias=False), random(32, 512)
    split, promoted = Plan(split_k=4), Plan(promote=128)
    for given, plan in (({"plan": split}, split), ({"layers": {"Linear*": promoted}, "plan": split}, promoted)):
        with emulate("H100", "e4m3", **given):  # type: ignore[arg-type]
            got = layer(wide)
        want, plain = (
            torch.from_numpy(matmul(wide.numpy(), layer.weight.detach().numpy().T, inputs="e4m3", plan=p))
            for p in (plan, None)
        )
        check(got, want, plain)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layers": {"*.mpl": "bf16"}}, "unknown layer '*.mpl'. Allowed: Model 1, embedding, blocks, "),
        ({"layers": {"blocks.1.prj": "bf16"}}, "Did you mean 'blocks.1.proj'?"),
        ({"recipe": recipes.mxfp8(keep=("heads",))}, "Did you mean 'head'?"),
        ({"recipe": "mxfp9"}, "mxfp8, nvfp4, fp8_delayed, fp8_current"),
        ({"recipe": "mxfp8", "gradients": "e5m2"}, "recipe='mxfp8' says how to scale operands; leave out scaling= and"),
        ({"recipe": "mxfp8", "fallback": "fp16"}, "unknown fallback 'fp16'. Allowed: bf16."),
        ({"recipe": "fp8_block", "plan": Plan(split_k=2)}, "does not go with FP32 scales of blocks"),
    ],
)  # fmt: skip
def test_choices_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    refuses(lambda: chosen(**given), re.escape(message))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recipes.nvfp4(four_over_six="alle"), "unknown four_over_six 'alle'. Allowed: none, weights, "),
        (lambda: recipes.mxfp8(fp8_format="e3m4"), "unknown fp8_format 'e3m4'. Allowed: e4m3, hybrid, e5m2."),
        (lambda: recipes.fp8_delayed(amax_history_len=0), "amax_history_len=0 has no history; recipes.fp8_current()"),
        (lambda: recipes.fp8_delayed(amax_compute_algo="min"), "unknown amax_compute_algo 'min'. Allowed: max, "),
        (lambda: recipes.fp8_block(w_block_scaling_dim=3), "w_block_scaling_dim=3 is not possible; allowed: 1, 2."),
        (lambda: recipes.bf16(keep_last=2), "keep_last=2 is not possible; allowed: a share from 0 to 1."),
        (lambda: recipes.bf16(keep="head"), "keep='head' is no tuple of names or patterns, such as ('lm_head',)."),
        (lambda: recipes.Product(recipes.Operand("mxfp8"), recipes.Operand("nvfp4")),
         "mxfp8_e4m3 and nvfp4 have scales of different kinds or blocks; no unit multiplies them."),
        (lambda: recipes.Product(recipes.Operand("fp8_block"), recipes.Operand("fp8_row")), "have scales of different"),
        (lambda: recipes.Product(recipes.Operand("nvfp4", hadamard=16), recipes.Operand("nvfp4")),
         "a Hadamard transform of one operand alone changes the product; give both the same."),
    ],
)  # fmt: skip
def test_recipes_that_cannot_be_are_refused(make: Callable[[], object], message: str) -> None:
    refuses(lambda: make(), re.escape(message))


@pytest.mark.parametrize(("gpu", "recipe", "name"), [("H100", "mxfp8", "mxfp8_e4m3"), ("RTX 4090", "nvfp4", "nvfp4")])
def test_a_gpu_without_the_unit_says_what_it_would_do_and_does_so_when_asked(gpu: str, recipe: str, name: str) -> None:
    with pytest.raises(LabError, match=rf"recipe='{recipe}': .* has no unit for {name}\. GPUs that have one: B200, "
                       r"RTXPRO6000\. .*dequantises to BF16.*fallback='bf16' does so\."):  # fmt: skip
        emulate(gpu, recipe=recipe)
    layer = linear()
    with emulate(gpu, recipe=recipes.RECIPES[recipe](scope="all"), fallback="bf16") as run:
        y = layer(X)
    block: Any = {"block": (16, 16)} if recipe == "nvfp4" else {"rule": "rceil"}
    first: Any = {} if recipe == "nvfp4" else {"rule": "rceil"}
    q = scaled.quantize(X.numpy(), recipe, variant="te", **first)
    r = scaled.quantize(layer.weight.detach().numpy().T, recipe, -2, variant="te", **block)
    want = torch.from_numpy(matmul(q.dequantize(), r.dequantize(), gpu=gpu, inputs="bf16"))
    check(y, want, torch.from_numpy(matmul(X.numpy(), layer.weight.detach().numpy().T, gpu=gpu, inputs="bf16")))
    assert units(run) == ["bf16"]


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "nvfp4": [
        {"disable_rht": True}, {"disable_stochastic_rounding": True}, {"disable_2d_quantization": True},
        *({"four_over_six": side} for side in ("weights", "activations", "all")), {"variant": "torchao"}, {"seed": 1},
    ],
    "mxfp8": [{"fp8_format": "hybrid"}, {"rule": "floor"}, {"output": "bf16"}],
    "fp8_delayed": [{"fp8_format": "e4m3"}, {"power_2_scale": True}, {"margin": 2}],
    "fp8_current": [{"fp8_format": "e4m3"}, {"power_2_scale": True}],
    "fp8_rowwise": [{"power_2_scale": False}, {"gw_hp": True}],
    "fp8_block": [
        {"fp8_format": "hybrid"}, {"power_2_scale": False}, {"power_2_scale": False, "variant": "deepgemm"},
        *({f"{side}_block_scaling_dim": dim} for side, dim in (("x", 2), ("w", 1), ("grad", 2))),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_of_a_recipe_changes_bits(name: str) -> None:
    """Of the second step's gradients; the batch has outliers, and more of K than a block of 128."""
    torch.manual_seed(0)
    begun, x = nn.Sequential(nn.Linear(160, 150), nn.Linear(150, 20)), random(140, 160)
    x[::7, ::5] *= 30
    with torch.no_grad():
        begun[0].weight[::5] *= 2.0**-10  # below the smallest that a block of 128 x 128 keeps

    def step(**given: Any) -> bytes:
        net = copy.deepcopy(begun)  # which delayed scaling has not trained
        run = emulate(
            "B200" if name in ("nvfp4", "mxfp8") else "H100", recipe=recipes.RECIPES[name](scope="all", **given)
        )
        for _ in range(2):
            net.zero_grad()
            with run:
                y = net(x)
            y.backward(y.detach())
        return b"".join(p.grad.numpy().tobytes() for p in net.parameters() if p.grad is not None)

    found = [step(**given) for given in ({}, *OPTIONS[name])]
    assert found[0] == step()
    same_as_default = [given for given, bits in zip(OPTIONS[name], found[1:], strict=True) if bits == found[0]]
    assert len(set(found)) == len(found), same_as_default


def amaxes() -> list[list[float]]:
    """The input's amaxes that each rank used, whose inputs are 3 and 4: reduced over the ranks, and its own."""
    rank = torch.distributed.get_rank()
    layer, used = linear(), []
    for reduced in (True, False):
        run = emulate("H100", recipe=recipes.fp8_delayed(reduce_amax=reduced, scope="all"))
        with run:
            layer(torch.full((1, 48), 3.0 + rank)).sum().backward()
        used.append(dict(run.state_dict()["amaxes"])["Linear 1 0 input"]["used"])
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, used)
    return every


def test_amaxes_are_those_of_all_ranks(tmp_path: Path) -> None:
    assert on_ranks("test_nn_recipes_torch:amaxes", tmp_path, (2,)) == [[[4.0, 3.0], [4.0, 4.0]]]


def test_results_in_a_format_of_the_recipe() -> None:
    layer = linear()
    with emulate("B200", recipe=recipes.mxfp8(output="bf16", scope="all")):
        y = layer(X)
    check(y, mxfp8(X, layer.weight.t()).bfloat16().float(), mxfp8(X, layer.weight.t()))


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_empty_products(name: str) -> None:
    layer, x = linear(bias=True), torch.zeros(0, 48, requires_grad=True)
    with emulate("B200", recipe=recipes.RECIPES[name](scope="all")):
        y = layer(x)
    y.sum().backward()
    assert y.shape == (0, 40)
    assert not layer.weight.grad.any()
