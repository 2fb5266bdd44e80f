"""What low-precision recipes keep, in the calculator: against the lab's own codes and scales, and by hand."""

import json
from collections.abc import Callable
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
import torch

from fplab import scaled
from fplab.cli import main
from fplab.errors import LabError
from fplab.memory import RECIPES, activations, estimate
from fplab.memory.models import Transformer, preset, tensors_of
from fplab.nn import recipes

X = np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32)


def held(side: recipes.Operand, axis: int) -> Fraction:
    """Bytes of an element of a matrix as the unit takes it, without what belongs to the whole tensor or a row."""
    q = scaled.quantize(X, side.record, axis)
    if q.scheme.kind == "fp32":
        return Fraction(q.codes.size + (0 if isinstance(q.scheme.block, str) else q.scales.nbytes), X.size)
    packed = q.packed()  # a scale of a square once for each of its rows
    return Fraction(packed.codes.size + packed.scales.size, X.size)


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "fp8_block", "fp8_current", "fp8_delayed"])
def test_a_recipe_keeps_what_the_labs_own_quantises(name: str) -> None:
    """x along the tokens for the weights' gradient; weights along the K of the forward product and of dx."""
    recipe, kept = recipes.get_recipe(name), RECIPES[name]
    assert recipe.forward is not None
    assert recipe.data_gradient is not None
    assert recipe.weight_gradient is not None
    assert held(recipe.weight_gradient.right, 0) == kept.input
    assert held(recipe.forward.right, 1) + held(recipe.data_gradient.right, 0) == kept.weights
    assert kept.last == Fraction(str(recipe.keep_last))


def test_every_recipe_of_the_lab_that_is_not_bf16_has_a_row() -> None:
    assert {*RECIPES, "bf16"} == {*recipes.RECIPES}


def test_a_layer_by_hand() -> None:
    """Of 34 s b h bytes 14 are inputs of linear layers: 7 values of 33/32 bytes instead."""
    c, s, b, h = Transformer("layer", 1, 256, 4, 1000, 128), 128, 2, 256
    terms = activations.layer_terms(c, b, s, 2, RECIPES["mxfp8"].input)
    want = s * b * h * (20 + Fraction(7 * 33, 32)) + 5 * 4 * s * s * b
    assert activations.total(terms) == want
    flash = Transformer("layer", 1, 256, 4, 1000, 128, flash=True)
    plain, narrow = (activations.total(activations.layer_terms(flash, b, s, 2, w)) for w in (0, Fraction(9, 16)))
    assert narrow - plain == s * b * h * (2 - 14 + Fraction(7 * 9, 16)), "attention's own output stays in 16 bits"


@pytest.mark.parametrize(
    "options",
    [{}, {"gpus": 4, "pipeline": 4},
     {"gpus": 2, "pipeline": 2, "schedule": "interleaved", "chunks": 2, "micro_batches": 2}],
    ids=str,
)  # fmt: skip
def test_the_last_layers_of_nvfp4_stay_in_16_bits(options: dict[str, object]) -> None:
    """27 of 32 layers are narrow; the quantised weights of all stages are theirs."""
    c = preset("llama3-8b")
    found = estimate(c, recipe="nvfp4", **options)
    one = sum(t.elements for t in tensors_of(c).layers[0])
    assert sum(r.temporary.get("quantised weights of the layers", 0) for r in found.stages) == 27 * one * 9 // 8
    if not options:
        terms = [activations.layer_terms(c, 1, c.sequence, 2, w) for w in (0, Fraction(9, 16))]
        plain, narrow = map(activations.total, terms)
        saved = estimate(c).fullest.device["activations"] - found.fullest.device["activations"]
        assert saved == 27 * (plain - narrow)


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


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: estimate("gpt2", recipe="mxfp9"), "unknown recipe 'mxfp9'. Allowed: fp8_delayed, .*, mxfp8, nvfp4"),
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
    with pytest.raises(LabError, match=text):
        call()
