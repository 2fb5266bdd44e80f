"""Models of transformers, timm, torchvision and peft, and drawn ones: what they multiply, and training with FSDP2.

What an emulation says that it multiplied, by layer, pass and format, is what the modules' definitions say: a count that
asks nothing of the lab (:mod:`drawn_models`), of models as they are, under both kinds of checkpoints, under FSDP2 and
tensor parallel, and with LoRA. Training with FSDP2 has the bits of one process.
"""

from typing import Any

import pytest
import torch
from drawn_models import CUT, FAMILIES, both_counts, defined, drawn, expected
from family_steps import TRAINED
from ranks import on_ranks

from fplab.nn import emulate, shadow, watch

SEEDS = [0, 1, 2]
ON_RANKS = {"fsdp2": [*FAMILIES], "tensor": [*CUT]}


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What every family has by two ranks and by one process, and both counts of what two ranks multiply."""
    return on_ranks(
        "family_steps:main", tmp_path_factory.mktemp("families"), (2, "train"), (2, "counts", SEEDS, ON_RANKS)
    )


@pytest.mark.parametrize("name", TRAINED)
def test_a_family_trains_under_fsdp2_in_the_bits_of_one_process(name: str, on_two_ranks: Any) -> None:
    got, want = on_two_ranks[0][name]
    assert torch.isfinite(got["losses"]).all()
    assert torch.equal(got["losses"], want["losses"])
    assert all(torch.equal(a, b) for a, b in zip(got["weights"], want["weights"], strict=True))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", ["whole", "reentrant", "not reentrant", "peft"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_drawn_model_multiplies_what_its_modules_define(family: str, way: str, seed: int) -> None:
    got, want = both_counts(family, seed, way)
    assert sorted(got.items()) == sorted(want.items())
    assert {phase for _, phase, *_ in want} == {"forward", "backward"}


@pytest.mark.parametrize(("way", "family"), [(way, family) for way, names in ON_RANKS.items() for family in names])
def test_a_drawn_model_on_two_ranks_multiplies_what_its_modules_define(
    way: str, family: str, on_two_ranks: Any
) -> None:
    for seed in SEEDS:
        got, want = on_two_ranks[1][f"{way} {family} {seed}"]
        assert got == want
        assert {phase for (_, phase, *_), _ in want} == {"forward", "backward"}


@pytest.mark.parametrize("reentrant", [None, True, False])
@pytest.mark.parametrize("family", ["linear", "attention", "convolution", "recurrent", "gpt2", "vit"])
def test_shadow_and_watch_name_the_layers_that_multiply(family: str, reentrant: bool | None) -> None:
    one, _ = drawn(family, 0)
    net = one.net.train()
    products = expected(defined(net, one.loss_of, one.x), set(), [], False, None, 1)
    if reentrant is not None:
        one.recompute(net, reentrant)
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with watch(net, optimizer, recipes=["fp8_current"]) as watched:
        one.loss_of(net, one.x).backward()
        optimizer.step()
    with emulate("H100", inputs="bf16"), shadow() as shadowed:
        one.loss_of(net, one.x).backward()
    root = f"{type(net).__name__} 1"
    named = {(row.layer, row.phase) for row in shadowed.report().rows}
    assert named >= {(layer or root, phase) for layer, phase, *_ in products}
    linear = {name for name, layer in net.named_modules() if type(layer) is torch.nn.Linear}
    assert {row.layer for row in watched.report().products} == linear
