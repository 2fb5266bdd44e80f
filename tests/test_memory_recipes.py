"""What low-precision recipes keep, in the calculator: against the lab's own codes and scales, and by hand."""

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses

from fplab import scaled
from fplab.cli import main
from fplab.errors import LabError
from fplab.memory import Rank, activations, estimate
from fplab.memory.models import Transformer, preset, tensors_of
from fplab.memory.recipes import QuantisedOperands, quantised_operands
from fplab.nn import emulate, recipes
from fplab.nn.emulation.choices import Choices
from fplab.nn.scopes import LINEAR, PARTS, Scope
from fplab.tensorcore.plan import ONE_CHAIN
from fplab.training import Policy, fit
from fplab.training.tasks import perceptron

ENDS = Scope("ends", "", LINEAR, PARTS, first=Fraction(1, 4), last=Fraction(1, 8))
X = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)


def held(side: recipes.Operand, axis: int) -> Fraction:
    """Bytes of an element of a matrix as the unit takes it, without what belongs to the whole tensor or a row."""
    q = scaled.quantize(X, side.record, axis)
    if q.scheme.kind == "fp32":
        return Fraction(q.codes.size + (0 if isinstance(q.scheme.block, str) else q.scales.nbytes), X.size)
    packed = q.packed()  # a scale of a square once for each of its rows
    return Fraction(packed.codes.size + packed.scales.size, X.size)


def kept_by(recipe: str | recipes.Recipe) -> QuantisedOperands:
    found = quantised_operands(recipe)
    assert found is not None
    return found


MADE = {name: make() for name, make in recipes.RECIPES.items()} | {
    "e5m2": recipes.mxfp8(fp8_format="hybrid"), "one dimension": recipes.nvfp4(disable_2d_quantization=True),
    "squares": recipes.fp8_block(x_block_scaling_dim=2, w_block_scaling_dim=1),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [name for name, made in MADE.items() if quantised_operands(made) and made.data_gradient]
)
def test_a_recipe_keeps_what_the_labs_own_quantises(name: str) -> None:
    """x along the tokens for the weights' gradient; weights along the K of the forward product and of dx."""
    recipe, kept = MADE[name], kept_by(MADE[name])
    assert recipe.forward is not None
    assert recipe.data_gradient is not None
    assert recipe.weight_gradient is not None
    assert held(recipe.weight_gradient.right, 0) == kept.input
    assert held(recipe.forward.right, 1) + held(recipe.data_gradient.right, 0) == kept.weights


@pytest.mark.parametrize("recipe", ["bf16", "fp8_rowwise", recipes.mxfp8(scope=Scope("none", modules=("Conv2d",)))])
def test_what_no_recipe_quantises_or_keeps_is_counted_as_without(recipe: str | recipes.Recipe) -> None:
    for precision in ("mixed", "amp"):
        found, plain = (estimate("gpt2", recipe=r, precision=precision).fullest for r in (recipe, None))
        assert found == plain


def test_a_product_that_stays_high_keeps_its_operand_in_16_bits() -> None:
    c = preset("gpt2")
    weights = sum(t.elements for group in tensors_of(c).layers for t in group)

    def rank(**fields: Any) -> Rank:
        return estimate(c, precision="amp", recipe=recipes.mxfp8(**fields)).fullest

    plain = estimate(c, precision="amp").fullest.device["activations"]
    found = rank(weight_gradient=None)
    assert found.device["activations"] == plain
    assert found.temporary == rank().temporary
    found = rank(data_gradient=None)
    assert found.temporary["quantised weights of the layers"] == ceil(weights * Fraction(33, 32))
    assert found.temporary["16-bit casts of the weights"] == 2 * tensors_of(c).parameters


@pytest.mark.parametrize("layers", [*range(1, 33), 62, 80])
def test_the_quantised_layers_are_those_that_an_emulation_quantises(layers: int) -> None:
    model = torch.nn.Module()
    model.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(16, 16)) for _ in range(layers))
    for recipe in (recipes.nvfp4(), recipes.mxfp8(), recipes.fp8_block(scope=ENDS)):
        choices = Choices(recipe, ONE_CHAIN, {})
        choices.add(list(model.named_modules()))
        quantised = [i for i in range(layers) if choices.of(f"blocks.{i}.0").high is None]
        assert quantised == list(kept_by(recipe).layers(layers)), recipe.name


def test_a_share_of_the_last_layers_is_counted_in_whole_layers_of_the_transformer() -> None:
    assert kept_by(recipes.mxfp8(keep_last=0.15)).layers(32) == range(27)
    assert kept_by(recipes.nvfp4(keep_last=0.05)).layers(32) == range(1, 28)
    assert kept_by(recipes.nvfp4(keep_last=0.5)).layers(32) == range(1, 16)


def test_a_layer_by_hand() -> None:
    """Of 34 s b h bytes 14 are inputs of linear layers: 7 values of 33/32 bytes instead."""
    c, s, b, h = Transformer("layer", 1, 256, 4, 1000, 128), 128, 2, 256
    terms = activations.layer_terms(c, b, s, 2, kept_by("mxfp8").input)
    want = s * b * h * (20 + Fraction(7 * 33, 32)) + 5 * 4 * s * s * b
    assert activations.total(terms) == want
    flash = Transformer("layer", 1, 256, 4, 1000, 128, flash=True)
    plain, narrow = (activations.total(activations.layer_terms(flash, b, s, 2, w)) for w in (0, Fraction(9, 16)))
    assert narrow - plain == s * b * h * (2 - 14 + Fraction(7 * 9, 16)), "attention's own output stays in 16 bits"


@pytest.mark.parametrize(
    ("options", "narrow"),
    [({}, [27]), ({"gpus": 4, "pipeline": 4}, [7, 8, 8, 4]),
     ({"gpus": 2, "pipeline": 2, "schedule": "interleaved", "chunks": 2, "micro_batches": 2}, [15, 12])],
    ids=str,
)  # fmt: skip
def test_the_first_and_last_layers_of_nvfp4_stay_in_16_bits(options: dict[str, object], narrow: list[int]) -> None:
    """The first of 32 layers and the last four; the quantised weights of a stage are those of its others."""
    c = preset("llama3-8b")
    found = estimate(c, recipe="nvfp4", **options)
    one = sum(t.elements for t in tensors_of(c).layers[0])
    weights = [r.temporary.get("quantised weights of the layers", 0) for r in found.stages]
    assert weights == [n * one * 9 // 8 for n in narrow]
    if not options:
        terms = [activations.layer_terms(c, 1, c.sequence, 2, w) for w in (0, Fraction(9, 16))]
        plain, low = map(activations.total, terms)
        saved = estimate(c).fullest.device["activations"] - found.fullest.device["activations"]
        assert saved == 27 * (plain - low)


def test_sharded_weights_are_quantised_a_layer_at_a_time() -> None:
    c = preset("llama3-8b")
    one = sum(t.elements for t in tensors_of(c).layers[0])
    rank = estimate(c, gpus=8, zero=3, recipe="mxfp8").fullest
    assert rank.temporary["quantised weights of the layers"] == ceil(2 * one * Fraction(33, 16))
    assert "quantised weights of the layers" not in estimate(c, recipe="fp8_rowwise").fullest.temporary


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "--preset", "gpt2", "--recipe", "mxfp8", "--precision", "amp", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["options"]["recipe"] == "mxfp8"
    weights = sum(t.elements for group in tensors_of(preset("gpt2")).layers for t in group)
    rest = tensors_of(preset("gpt2")).parameters - weights
    temporary = found["stages"][0]["temporary"]
    assert temporary["quantised weights of the layers"] == ceil(weights * Fraction(33, 16))
    assert temporary["16-bit casts of the weights"] == 2 * rest
    assert main(["memory", "--preset", "gpt2", "--recipe", "nvfp4"]) == 0
    assert "mixed, adamw, nvfp4," in capsys.readouterr().out


def mxfp6(**fields: Any) -> recipes.Recipe:
    """A recipe that the lab has not: MXFP6 in every operand."""
    side = recipes.Operand("mxfp6_e2m3")
    products = [recipes.Product(side, side)] * 3
    return replace(recipes.Recipe("mxfp6", *products), **fields)


def test_a_recipe_that_is_registered_once_is_known_everywhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(recipes.RECIPES, "mxfp6", mxfp6)
    layer = torch.nn.Linear(32, 32)
    with emulate("B200", recipe="mxfp6") as run:
        layer(torch.ones(4, 32)).sum().backward()
    assert {row.unit for row in run.report().rows} == {"B200 tcgen05.k32 e2m3/e8m0x32->fp32"}

    found = estimate("gpt2", recipe="mxfp6")
    weights = sum(t.elements for group in tensors_of(preset("gpt2")).layers for t in group)
    assert kept_by("mxfp6").input == held(mxfp6().products()[2].right, 0) == Fraction(25, 32)
    assert found.fullest.temporary["quantised weights of the layers"] == ceil(weights * Fraction(25, 16))
    assert main(["memory", "--preset", "gpt2", "--recipe", "MXFP6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == found.total

    task = perceptron(width=32, batch=32, name="small")
    policies: tuple[Any, ...] = "mxfp6", Policy("own", "", recipe="mxfp6"), mxfp6()
    named, *others = (fit(task, p, steps=2, gpu="B200") for p in policies)
    assert {run.losses.tobytes() for run in others} == {named.losses.tobytes()}
    assert named.losses.tobytes() != fit(task, "mxfp8", steps=2, gpu="B200").losses.tobytes()
    assert any("e2m3/e8m0x32" in str(step) for step in named.units)

    every = ", ".join(recipes.RECIPES)
    for call in (lambda: estimate("gpt2", recipe="mxfp9"), lambda: emulate("B200", recipe="mxfp9")):
        with pytest.raises(LabError, match=f"unknown recipe 'mxfp9'. Allowed: {every}"):
            call()
    refuses(lambda: fit(task, "mxfp9"), r"unknown policy 'mxfp9'. Allowed: fp32, .*, mxfp8, .*, fp8_block, mxfp6")


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: estimate("gpt2", recipe="mxfp9"), "unknown recipe 'mxfp9'. Allowed: .*mxfp8, nvfp4, .*, bf16"),
    (lambda: estimate("gpt2", recipe=mxfp6(activations=mxfp6().forward)),
     "recipe='mxfp6' with activations= is not counted, .*; allowed: activations=None"),
    (lambda: estimate("gpt2", recipe=mxfp6(keep=("lm_head",))), r"with keep= is not counted.* keep=\(\)\."),
    (lambda: estimate("gpt2", recipe=mxfp6(keep_types=(torch.nn.Conv1d,))), "with keep_types= is not counted"),
    (lambda: estimate("gpt2", recipe=mxfp6(scope="all")), "recipe='mxfp6' with scope='all' quantises the output head, "
     "which is counted in 16 bits; allowed: a scope whose out= has 'output head'."),
    (lambda: estimate(Transformer("t", 1, 64, 4, 1000, 128), recipe="mxfp8", gpus=4, tensor=4),
     r"recipe='mxfp8' leaves .* of \(\d+, \d+\) in 16 bits, and whole layers are counted; allowed: multiples of 32."),
    (lambda: estimate("gpt2", recipe="nvfp4", precision="fp8"), "recipe='nvfp4' quantises what else is 16 bits; "
     "precision='fp8', allowed: mixed, mixed.fp32grads, amp, bf16."),
    (lambda: estimate("gpt2", recipe="nvfp4", precision="fp32"), "precision='fp32', allowed: mixed"),
    (lambda: estimate(10**9, recipe="nvfp4"), "recipe='nvfp4' has no effect on a model of which only parameters"),
    (lambda: estimate("gpt2", recipe="nvfp4", inference="bf16"), "recipe='nvfp4' belongs to training"),
    (lambda: estimate(torch.nn.Linear(2, 2), inputs=torch.zeros(1, 2), recipe="nvfp4"),
     "recipe='nvfp4' does not change a pass that is traced"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_what_has_no_part_is_refused(call: Callable[[], object], text: str) -> None:
    refuses(lambda: call(), text)
