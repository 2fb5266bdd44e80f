"""What a watch says of recipes: the errors of products, recomputed here, and the layers that it would keep high."""

import numpy as np
import pytest
import torch
from torch import nn

from fplab import scaled
from fplab.errors import LabError
from fplab.nn import emulate, recipes, watch
from fplab.nn.diagnose.recipe_errors import PASSES, ROWS, ProductRow

X, W, DY = (
    np.float32(np.random.default_rng(i).standard_normal(s)) for i, s in enumerate([(64, 96), (32, 96), (64, 32)])
)


def watched(x=X, w=W, dy=DY, names=("mxfp8", "nvfp4"), steps=1, every=1):
    """Steps of one layer, "linear", whose three products have these operands."""
    model = nn.Sequential()
    model.linear = nn.Linear(w.shape[1], w.shape[0], bias=False)
    with torch.no_grad():
        model.linear.weight.copy_(torch.from_numpy(w))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, recipes=names, every=every) as seen:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.from_numpy(x)).backward(torch.from_numpy(dy))
            optimizer.step()
    return seen


def error(a, b, scheme):
    """The relative error of a b^T whose operands are quantised along their rows."""
    coded, exact = (np.float64(p) @ np.float64(q).T for p, q in
                    ((*(scaled.quantize(v, scheme).dequantize() for v in (a, b)),), (a, b)))  # fmt: skip
    return np.sqrt(np.square(coded - exact).sum() / np.square(exact).sum())


def test_the_errors_are_those_of_the_products_quantised_along_what_each_sums_over():
    mxfp8, nvfp4 = watched().report().products
    scheme = scaled.get_scheme("mxfp8", rule="rceil", variant="te")
    by_hand = {"forward": (X, W), "data_gradient": (DY, W.T), "weight_gradient": (DY.T, X.T)}
    assert (mxfp8.layer, mxfp8.recipe, nvfp4.recipe) == ("linear", "mxfp8", "nvfp4")
    for name, (a, b) in by_hand.items():
        a, b = map(np.ascontiguousarray, (a, b))
        assert mxfp8.errors[name] == pytest.approx(error(a, b, scheme), rel=1e-12)
        assert nvfp4.errors[name] > 3 * mxfp8.errors[name]
        assert mxfp8.usual[name] == pytest.approx(mxfp8.errors[name], rel=0.1)  # these are normal numbers


@pytest.mark.parametrize(("error", "stands"), [(1.99, True), (2.01, False), (3.9, False)])
def test_a_layer_stands_what_loses_at_most_twice_the_usual(error, stands):
    row = ProductRow("layer", "mxfp8", {"forward": 0.1, "data_gradient": 0.1 * error}, dict.fromkeys(PASSES, 0.1))
    assert row.stands is stands


def test_steps_that_are_not_counted_and_rows_beyond_the_most_are_left_out():
    once, twice = (watched(steps=n, every=2).report().products for n in (1, 2))
    assert once == twice
    many = np.tile(X, (5, 1))
    picked = many[:: -(-len(many) // ROWS)]
    (row,) = watched(many, dy=np.tile(DY, (5, 1)), names="mxfp8").report().products
    assert row.errors["forward"] == pytest.approx(
        error(picked, W, scaled.get_scheme("mxfp8", rule="rceil", variant="te"))
    )


def test_the_tensors_alone_do_not_tell_which_layer_to_keep():
    """An outlier that meets no weight: its tensor is kept better than usual, and of the product nothing is left."""
    x, w = X.copy(), W.copy()
    x[:, ::16], w[:, ::16] = 1000, 0
    of_x = scaled.quantize(x, "nvfp4").dequantize() - x
    assert np.linalg.norm(of_x) / np.linalg.norm(x) < 0.01
    report = watched(x, w).report()
    assert report.keep("nvfp4") == ("linear",)
    assert next(row for row in report.products if row.recipe == "nvfp4").errors["forward"] == 1
    assert watched().report().keep("nvfp4") == ()


def test_the_report_names_what_to_keep_and_a_recipe_takes_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    with torch.no_grad():
        model[0].bias[::16] = 1000
        model[1].weight[:, ::16] = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(64, 64)
    with watch(model, optimizer, recipes=["mxfp8", recipes.nvfp4(), "bf16"]) as seen:
        model(x).square().mean().backward()
        optimizer.step()
    report = seen.report()
    assert report.keep("nvfp4") == ("1",)
    assert report.keep("MXFP8") == ()
    (line,) = (line for line in report.advice if line.startswith("NVFP4 "))
    assert line.endswith("keep 1 high")
    assert sum(line.startswith("MXFP8 ") and line.endswith("every layer stands it") for line in report.advice) == 1
    table = report.products_table().splitlines()
    assert table[0].split() == ["layer", "mxfp8", "nvfp4"]  # bf16 quantises nothing
    assert [line.rstrip().endswith(" *") for line in table[2:5]] == [False, True, False]
    assert str(report).endswith(report.products_table(100))
    with emulate("B200", recipe=recipes.nvfp4(keep=report.keep("nvfp4"), keep_last=0)) as emulation:
        model(x)
    units = {row.layer: row.unit for row in emulation.report().rows}
    assert "e2m1" in units["0"]
    assert "bf16" in units["1"]


def test_without_recipes_nothing_is_measured_and_hooks_go():
    seen = watched(names=())
    assert seen.report().products == ()
    assert "products" not in str(seen.report())
    assert not seen._model.linear._forward_hooks
    assert not watched()._model.linear._forward_hooks


def test_operands_that_are_not_finite_say_nothing():
    x = X.copy()
    x[3, 4] = np.inf
    assert watched(x).report().products == ()


@pytest.mark.parametrize(
    ("call", "words"),
    [(lambda: watched(names=["nvfp5"]), "unknown recipe 'nvfp5'"),
     (lambda: watched(names=["nvfp4", recipes.nvfp4()]), "recipes=nvfp4, nvfp4 has two of one name"),
     (lambda: watched().report().keep("fp8_block"), "unknown recipe 'fp8_block'. Allowed: mxfp8, nvfp4")],
)  # fmt: skip
def test_another_recipe_is_refused(call, words):
    with pytest.raises(LabError) as caught:
        call()
    assert words in str(caught.value)
