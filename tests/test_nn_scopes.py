"""Scopes of recipes: which layers take part, which stay high, by what that is known, and what the report says of it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from refusals import refuses
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from fplab.nn import emulate, recipes
from fplab.nn.emulation.model_parts import blocks
from fplab.nn.scopes import SCOPES, Scope

MX, HIGH = "e4m3/e8m0x32", "bf16"


class Mixture(nn.Module):
    """Four experts and a gate, which weighs them all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.gate(x).softmax(-1)
        return sum(shares[..., n : n + 1] * expert(x) for n, expert in enumerate(self.experts))  # type: ignore[return-value]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.proj, self.mlp = nn.Linear(width, 3 * width), nn.Linear(width, width), Mixture(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, -1))
        return x + self.mlp(x + self.proj(scaled_dot_product_attention(q, k, v).squeeze(1)))


class Everything(nn.Module):
    """A patch embedding, an embedding, blocks with a mixture of experts, an LSTM, odd sizes, own weights, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 96)
        self.patch_embed, self.embed = nn.Conv2d(3, 32, 4, 4), nn.Embedding(96, 32)
        self.blocks = nn.ModuleList(Block(32) for _ in range(2))
        self.memory = nn.LSTM(32, 32, batch_first=True)
        self.wide, self.odd, self.back = nn.Linear(32, 48), nn.Linear(48, 40), nn.Linear(40, 32)
        self.own = nn.Parameter(torch.eye(32))

    def forward(self, text: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.patch_embed(images).flatten(2).mT, self.embed(text)], 1)
        for block in self.blocks:
            x = block(x)
        x = self.back(self.odd(self.wide(self.memory(x)[0])))
        return self.head(x @ self.own) @ self.head.weight


def everything() -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor]]:
    torch.manual_seed(0)
    text, images = torch.randint(96, (2, 5)), torch.randn(2, 3, 8, 8)
    return Everything(), lambda net: net(text, images).square().mean()


def step(net: nn.Module, loss: Callable[..., torch.Tensor], recipe: Any, gpu: str = "B200", **given: Any) -> Any:
    """The report of a step, forward and backward."""
    with emulate(gpu, recipe=recipe, **given) as run:
        loss(net).backward()
    return run.report()


def quantised(report: Any) -> set[str]:
    """The layers with products that the recipe took."""
    return {row.layer for row in report.rows if row.why is None}


def reasons(report: Any) -> dict[str, str]:
    """Of the layers whose products are left high, why."""
    return {row.layer: str(row.why) for row in report.high}


TAKEN = {f"blocks.{n}.{name}" for n in (0, 1) for name in ("qkv", "proj", *(f"mlp.experts.{i}" for i in range(4)))}
TE = "scope transformer_engine"
LINEAR = "Linear, MultiheadAttention, Conv1D, *Experts"
WHY = {
    "patch_embed": f"embedding (called 'patch_embed', as in transformers), which {TE} leaves out",
    **{f"blocks.{n}": "no operand is a weight, as in attention, and recipe mxfp8 has activations=None" for n in (0, 1)},
    **{f"blocks.{n}.mlp.gate": f"router (a row for each of the 4 experts beside it), which {TE} leaves out"
       for n in (0, 1)},
    "memory": f"class LSTM; {TE} takes {LINEAR}",
    "wide": f"a weight of 48 x 32; {TE} takes multiples of 32",
    "odd": f"a weight of 40 x 48; {TE} takes multiples of 32",
    "back": f"a weight of 32 x 40; {TE} takes multiples of 32",
    "Everything 1": f"class Everything; {TE} takes {LINEAR}",
    "head": f"output head (its weight has the shape of embed's), which {TE} leaves out",
}  # fmt: skip


def test_a_recipe_takes_the_layers_of_its_source_and_says_why_of_the_others() -> None:
    """Every product is the recipe's or has a reason, in the unit of the format that it ran in; the loss still falls."""
    net, loss = everything()
    report = step(net, loss, "mxfp8")
    assert quantised(report) == TAKEN
    assert reasons(report) == WHY
    for row in report.rows:
        assert row.unit == f"B200 tcgen05.{'k32 ' + MX if row.why is None else 'k16 ' + HIGH}->fp32", row
    lines = str(report).splitlines()
    some = lines[lines.index("Left high by a recipe:") + 1 : lines.index("Open questions:")]
    said = " ".join(line.strip() for line in some).split("* ")
    for layer, why in WHY.items():
        count = sum(row.count for row in report.high if row.layer == layer)
        assert f"{layer}: {why}; {count:,} products in B200 tcgen05.k16 bf16->fp32" in {one.strip() for one in said}


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_changes_no_reason(reentrant: bool) -> None:
    """Of any layer, in either pass; the products are those of the pass and, in the blocks, the forward ones again."""

    def kinds(report: Any) -> set[tuple[str, str, str, str]]:
        return {(row.layer, row.phase, row.unit, str(row.why)) for row in report.rows}

    net, loss = everything()
    want = kinds(step(net, loss, "mxfp8"))
    for block in net.blocks:  # type: ignore[union-attr]
        forward = block.forward
        block.forward = lambda x, f=forward: checkpoint(f, x, use_reentrant=reentrant)  # type: ignore[method-assign]
    found = kinds(step(net, loss, "mxfp8"))
    assert {(layer, unit, why) for layer, _, unit, why in found} == {(layer, unit, why) for layer, _, unit, why in want}
    assert {one for one in found if one[1] == "forward"} == {one for one in want if one[1] == "forward"}


def test_the_scope_of_all_takes_every_product_with_a_weight() -> None:
    net, loss = everything()
    report = step(net, loss, recipes.mxfp8(scope="all"))
    assert set(reasons(report)) == {"blocks.0", "blocks.1"}  # attention
    report = step(net, loss, recipes.mxfp8(scope="all", attention=True))
    assert not report.high
    assert {row.unit for row in report.rows} == {f"B200 tcgen05.k32 {MX}->fp32"}
    assert not step(net, loss, "bf16").high, "a recipe that quantises nothing leaves nothing out"


def test_attention_is_the_recipe_s_and_not_the_scope_s() -> None:
    """Its products are no layer's of the scope; but blocks and layers that are kept high keep theirs."""
    net, loss = everything()
    report = step(net, loss, recipes.mxfp8(attention=True))
    assert quantised(report) == TAKEN | {"blocks.0", "blocks.1"}
    report = step(net, loss, recipes.mxfp8(attention=True, keep=("blocks.1",)))
    assert quantised(report) == {name for name in TAKEN | {"blocks.0"} if name.startswith("blocks.0")}
    assert {why for name, why in reasons(report).items() if name.startswith("blocks.1")} == {"keep='blocks.1'"}


@pytest.mark.parametrize(
    ("recipe", "more", "less", "why"),
    [
        (recipes.fp8_current(), {"wide"}, set(), {"odd": f"a weight of 40 x 48; {TE} takes multiples of 16"}),
        (recipes.fp8_block(), {"wide", "odd", "back"}, set(), {}),
        (recipes.fp8_rowwise(), {"wide"}, set(), {"patch_embed": "class Conv2d; scope torchao takes Linear"}),
        (recipes.fp8_current(keep_types=(Mixture,)), {"wide"}, {"mlp"},
         {"blocks.0.mlp.gate": "Mixture is in keep_types"}),
        (recipes.fp8_current(keep=("*.proj",)), {"wide"}, {"proj"}, {"blocks.1.proj": "keep='*.proj'"}),
        (recipes.fp8_current(keep_last=0.1), {"wide"}, set(),
         {"back": "one of the last 2 of 20 layers, keep_last=0.1"}),
        (recipes.fp8_rowwise(gw_hp=True), {"wide"}, set(), {"wide": "recipe fp8_rowwise has weight_gradient=None"}),
    ],
    ids=lambda x: x.name if isinstance(x, recipes.Recipe) else "",
)  # fmt: skip
def test_each_recipe_has_the_scope_of_its_source(
    recipe: recipes.Recipe, more: set[str], less: set[str], why: dict[str, str]
) -> None:
    net, loss = everything()
    report = step(net, loss, recipe, "H100")
    assert quantised(report) == {name for name in TAKEN | more if not any(part in name for part in less)}
    assert why.items() <= reasons(report).items()


def test_layers_named_with_a_recipe_have_no_scope() -> None:
    """So what a survey measures, each layer by its name, is every layer; what is not named keeps the scope."""
    net, loss = everything()
    report = step(net, loss, "mxfp8", layers={"head": "mxfp8", "*.gate": "mxfp8", "memory": "mxfp8"})
    assert quantised(report) == TAKEN | {"head", "memory", "blocks.0.mlp.gate", "blocks.1.mlp.gate"}
    report = step(net, loss, None, layers={"*": recipes.mxfp8(attention=True)})
    assert not report.high


class Deep(nn.Module):
    """So many blocks, and a projection before and after them."""

    def __init__(self, count: int, listed: bool) -> None:
        super().__init__()
        blocks = [nn.TransformerEncoderLayer(16, 1, 16, 0.0, batch_first=True) for _ in range(count)]
        self.proj_in = nn.Linear(16, 16)
        self.blocks = nn.ModuleList(blocks) if listed else nn.Sequential(*blocks)
        self.proj_out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.proj_in(x)
        for block in self.blocks:
            x = block(x)
        return self.proj_out(x)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(("count", "first", "last"), [(62, 2, 8), (12, 0, 2), (24, 1, 3), (4, 0, 1), (3, 0, 0)])
def test_the_nvfp4_paper_keeps_the_first_and_the_last_blocks(count: int, first: int, last: int, listed: bool) -> None:
    torch.manual_seed(0)
    net, x = Deep(count, listed), torch.randn(1, 2, 16)
    with torch.no_grad(), emulate("B200", recipe="nvfp4") as run:
        net(x)
    report = run.report()
    names = ("self_attn", "linear1", "linear2")
    assert quantised(report) == {"proj_in"} | {f"blocks.{n}.{m}" for n in range(first, count - last) for m in names}
    found = reasons(report)
    assert found["proj_out"] == "output head (the last layer, after all blocks), which scope nvfp4_paper leaves out"
    for n in range(count):
        if n < first:
            assert found[f"blocks.{n}.linear1"] == (
                f"in the first {first} of {count} blocks, which scope nvfp4_paper leaves out"
            )
        if n >= count - last:
            assert found[f"blocks.{n}.linear1"] == (
                f"in the last {last} of {count} blocks, which scope nvfp4_paper leaves out"
            )


def test_a_model_without_blocks_keeps_the_first_and_last_of_its_layers_that_take_part() -> None:
    net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(8)))
    scope = Scope("mine", "", ("Linear",), ("output head",), 16, Fraction(1, 7), Fraction(2, 7))
    with emulate("B200", recipe=recipes.nvfp4(scope=scope)) as run:
        net(torch.randn(16, 16)).sum().backward()
    assert quantised(run.report()) == {"1", "2", "3", "4"}
    assert reasons(run.report())["7"] == "output head (the last layer), which scope mine leaves out"


def two() -> nn.Sequential:
    """A module with layers inside."""
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))


class Unit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = two()


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nn.Sequential(Unit(), Unit(), nn.Linear(16, 16)), ["0", "1"]),
        (nn.Sequential(Unit(), nn.Linear(16, 16)), []),
        (nn.Sequential(two(), two()), []),
        (nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), []),
        (nn.ModuleDict({"layers": nn.ModuleList([two()])}), ["layers"]),
        (nn.ModuleDict({"layers": nn.ModuleDict({"0": Unit(), "1": Unit()}), "head": nn.Linear(16, 16)}),
         ["layers.0", "layers.1"]),
        (nn.ModuleDict({"experts": nn.ModuleList([two(), two()]), "head": nn.Linear(16, 16)}), []),
        (nn.ModuleDict({"a": nn.ModuleList([Unit()]), "b": nn.ModuleList([Unit(), Unit()]), "c": nn.Linear(16, 16)}),
         ["a.0", "b.0", "b.1"]),
        (nn.ModuleDict({"layers": nn.ModuleList([Unit(), nn.Linear(16, 16)]), "head": nn.Linear(16, 16)}), []),
    ],
    ids=range(9),
)  # fmt: skip
def test_blocks_are_the_elements_of_the_outermost_lists_with_layers_inside(model: nn.Module, found: list[str]) -> None:
    assert blocks(model) == found


class OwnExperts(nn.Module):
    """Matrices of experts in one tensor, with a bias for each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 32, 32)), nn.Parameter(torch.zeros(3, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.bmm(x.expand(3, -1, -1), self.weight) + self.bias[:, None]).sum(0)


def test_experts_in_one_tensor_take_part_and_a_router_has_a_row_for_each() -> None:
    net = nn.ModuleDict({"experts": OwnExperts(), "mix": nn.Linear(32, 3), "up": nn.Linear(32, 32)})
    net.forward = lambda x: net["experts"](net["up"](x)).sum() * net["mix"](x).sum()  # type: ignore[method-assign]
    report = step(net, lambda net: net(torch.randn(32, 32)), "mxfp8")
    assert quantised(report) == {"experts"}
    assert reasons(report)["mix"].startswith("router (a row for each of the 3 experts beside it)")
    assert reasons(report)["up"].startswith("output head (the last layer)")


def test_a_model_without_a_head_has_none() -> None:
    """What comes before the blocks is none."""
    net = Deep(2, True)
    net.proj_out = nn.Identity()  # type: ignore[assignment]
    report = step(net, lambda net: net(torch.randn(1, 16, 16)).sum(), "fp8_current", "H100")
    names = ("self_attn", "linear1", "linear2")
    assert quantised(report) == {"proj_in", *(f"blocks.{n}.{name}" for n in (0, 1) for name in names)}


class Tied(nn.Module):
    """The output head shares the embedding's weight, and is not the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.logits, self.body = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False), nn.Linear(32, 32)
        self.positions, self.last = nn.Embedding(32, 32), nn.Linear(32, 32)  # shaped alike, and no vocabulary
        self.logits.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.last(self.body(self.embed(x))))


def test_an_output_head_is_known_by_its_weight_its_name_its_model_and_its_place() -> None:
    text = torch.arange(64)
    report = step(Tied(), lambda net: net(text).sum(), "mxfp8")
    assert quantised(report) == {"body", "last"}
    assert reasons(report) == {
        "logits": "output head (its weight is that of embed), which scope transformer_engine leaves out"
    }
    named = nn.Sequential()
    for name in ("output_layer", "body", "lm_head"):
        named.add_module(name, nn.Linear(32, 32))
    report = step(named, lambda net: net(torch.randn(32, 32)).sum(), "mxfp8")
    assert quantised(report) == {"body"}
    assert reasons(report)["output_layer"].startswith("output head (called 'output_layer', as in Megatron-Core)")
    assert reasons(report)["lm_head"].startswith("output head (called 'lm_head', as in transformers)")

    class Gives(nn.Sequential):
        def get_classifier(self) -> nn.Module:
            return self[0]

    report = step(Gives(*(nn.Linear(32, 32) for _ in range(3))), lambda net: net(torch.randn(32, 32)).sum(), "mxfp8")
    assert quantised(report) == {"1", "2"}
    assert reasons(report)["0"].startswith("output head (Gives.get_classifier() gives it)")
    for alone, name in ((nn.Linear(32, 32), "Linear 1"), (nn.Sequential(nn.Linear(32, 32)), "0")):
        assert quantised(step(alone, lambda net: net(torch.randn(32, 32)).sum(), "mxfp8")) == {name}


def test_tensors_of_float64_stay_so() -> None:
    net = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).double()
    report = step(net, lambda net: net(torch.randn(32, 32).double()).sum(), recipes.mxfp8(scope="all"))
    assert reasons(report) == {"0": "tensors of float64", "1": "tensors of float64"}
    assert {row.unit.split()[-1] for row in report.rows} == {"fp64->fp64"}


def test_a_recipe_that_takes_no_product_warns_once() -> None:
    net, x = nn.Sequential(nn.LSTM(32, 32)), torch.randn(4, 32)
    run = emulate("B200", recipe="mxfp8")
    told = (
        "recipe='mxfp8' with scope transformer_engine has quantised no operand of 5 products: 0: class LSTM; scope "
        "transformer_engine takes Linear, MultiheadAttention, Conv1D, *Experts. report() says why of each; with "
        "scope='all' a recipe takes every product, and layers= gives one to layers by name."
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(told)}$"), run:
        net(x)
    with run:  # warnings are errors here
        net(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [everything, lambda: (Deep(3, True), lambda net: net(torch.randn(1, 16, 16)).sum())])
def test_torchao_swaps_the_layers_of_its_scope(make: Callable[[], Any]) -> None:
    """``convert_to_float8_training`` with the filter of its example, which names the last layer and sizes of 16."""
    pytest.importorskip("torchao", reason="torchao is not installed: pip install torchao")
    from torchao.float8 import convert_to_float8_training
    from torchao.float8.float8_linear import Float8Linear

    net, loss = make()
    last = "head" if isinstance(net, Everything) else "proj_out"

    def wanted(layer: nn.Module, name: str) -> bool:
        return isinstance(layer, nn.Linear) and name != last and not any(n % 16 for n in layer.weight.shape)

    theirs = convert_to_float8_training(copy.deepcopy(net), module_filter_fn=wanted)
    swapped = {name for name, layer in theirs.named_modules() if isinstance(layer, Float8Linear)}
    ours = quantised(step(net, loss, recipes.fp8_rowwise(), "H100"))
    assert ours == {name for name in swapped if "out_proj" not in name}  # whose weight torch's attention takes itself


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: recipes.mxfp8(scope="te"), "unknown scope 'te'. Allowed: all, transformer_engine, torchao, "),
        (lambda: Scope("mine", out=("gate",)), "unknown part of a model 'gate'. Allowed: output head, router, embed"),
        (lambda: Scope("mine", modules="Linear"), "modules='Linear' is no tuple of names of classes, such as"),  # type: ignore[arg-type]
        (lambda: replace(SCOPES["all"], last=Fraction(3, 2)), "last=Fraction(3, 2) is not possible; allowed: a share"),
        (lambda: Scope("mine", multiple=-1), "multiple=-1"),
    ],
)  # fmt: skip
def test_scopes_that_cannot_be_are_refused(make: Callable[[], object], message: str) -> None:
    refuses(lambda: make(), re.escape(message))


def test_every_scope_says_where_it_is_written() -> None:
    assert all(scope.source for name, scope in SCOPES.items() if name != "all")
    for make in recipes.RECIPES.values():
        assert make().scope_record in SCOPES.values()
