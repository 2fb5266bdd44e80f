"""The FP32 training: what it computes, that it repeats, and that its snapshots are what really happened."""

import numpy as np
import pytest
import refusals
import torch
from torch import nn

from fplab import training
from fplab.training import OutputGradients, Recipe, digits, digits_net, train

SHORT = Recipe(epochs=1, seed=3)
BATCHES = [[3, 5, 2], [9, 7, 0], [8, 6, 1], [0, 6, 5], [3, 4, 9], [7, 8, 2]]


def trained(recipe: Recipe = SHORT, snapshots: tuple[int, ...] = ()) -> tuple[nn.Sequential, training.Run]:
    model = digits_net(recipe.seed)
    return model, train(model, digits("train"), recipe, snapshots)


def test_the_network_learns() -> None:
    model, run = trained(Recipe(epochs=8))
    assert training.accuracy(model, digits("test")) > 0.95
    assert run.losses.shape == (8 * 22,)
    assert run.losses[-22:].mean() < 0.1 < 2 < run.losses[0]


def test_the_number_of_threads_changes_no_bit_and_is_left_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        three = trained()[1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert three.losses.tobytes() == trained()[1].losses.tobytes()


def test_another_seed_gives_another_network_and_other_batches() -> None:
    assert not torch.equal(digits_net(0).conv1.weight, digits_net(1).conv1.weight)
    one, two = (next(training.batches(1438, Recipe(seed=s))) for s in (0, 1))
    assert not np.array_equal(one, two)


def test_batches_are_permutations_and_the_same_everywhere() -> None:
    drawn = list(training.batches(10, Recipe(epochs=2, batch=3, seed=1)))
    assert len(drawn) == 6
    for epoch in (drawn[:3], drawn[3:]):
        assert len(set(np.concatenate(epoch).tolist())) == 9
    assert [b.tolist() for b in drawn] == BATCHES  # Philox's raw stream is fixed for all versions of numpy


def test_a_snapshot_is_the_step_that_happened() -> None:
    recipe = Recipe(epochs=1, batch=256, seed=2)
    model, run = trained(recipe, (0, 1, 4))
    at0, at1, at4 = run.snapshots
    assert [s.step for s in run.snapshots] == [0, 1, 4]
    assert [s.loss for s in run.snapshots] == [float(run.losses[i]) for i in (0, 1, 4)]
    for name, weight in at0.weights.items():
        assert (weight + at0.updates[name]).tobytes() == at1.weights[name].tobytes()
    for name, parameter in model.named_parameters():  # step 4 is the last of 5
        assert (at4.weights[name] + at4.updates[name]).tobytes() == parameter.detach().numpy().tobytes()


def test_updates_are_momentum_in_fp32_bit_for_bit() -> None:
    _, run = trained(Recipe(epochs=1, batch=256, seed=2), (0, 1, 2))
    for name in run.snapshots[0].weights:
        velocity = np.zeros_like(run.snapshots[0].weights[name])
        for snapshot in run.snapshots:
            velocity = velocity * np.float32(0.9) + snapshot.weight_gradients[name]
            assert (velocity * np.float32(-0.05)).tobytes() == snapshot.updates[name].tobytes()


def test_gradients_agree_with_finite_differences_in_float64() -> None:
    """Of the loss with respect to an output of a layer, and to a weight: the tap reads what it says."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.rand(5, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1])
    with OutputGradients(model) as tap:
        nn.functional.cross_entropy(model(x), y).backward()
        found = tap.take()
    assert {name: g.shape for name, g in found.items()} == {"0": (5, 4), "2": (5, 2)}
    hidden, step = model[0](x).detach(), 1e-6

    def loss(h: torch.Tensor) -> float:
        return nn.functional.cross_entropy(model[2](torch.tanh(h)), y).item()

    for index in ((0, 0), (3, 2)):
        nudge = torch.zeros_like(hidden)
        nudge[index] = step
        slope = (loss(hidden + nudge) - loss(hidden - nudge)) / (2 * step)
        assert slope == pytest.approx(float(found["0"][index]), rel=1e-6)


def test_softmax_gradient_of_the_logits_is_probability_minus_target_over_the_batch() -> None:
    """The loss is the natural one: the mean over the batch and no other factor."""
    recipe = Recipe(epochs=1, batch=32)
    model = digits_net(0)
    images, labels = training.tensors(digits("train"))
    first = torch.from_numpy(next(training.batches(1438, recipe)))
    with torch.no_grad():
        want = (model(images[first]).softmax(1) - nn.functional.one_hot(labels[first], 10)) / 32
    run = train(model, digits("train"), recipe, (0,))
    np.testing.assert_allclose(run.snapshots[0].activation_gradients["linear"], want.numpy(), rtol=1e-4, atol=1e-9)


def test_the_tap_sees_every_layer_and_leaves_no_hook() -> None:
    model = digits_net()
    with OutputGradients(model) as tap:
        model(torch.rand(2, 1, 8, 8)).sum().backward()
        shapes = {name: g.shape for name, g in tap.take().items()}
    assert shapes == {"conv1": (2, 16, 8, 8), "conv2": (2, 32, 8, 8), "conv3": (2, 64, 4, 4), "linear": (2, 10)}
    assert not any(m._forward_hooks for m in model.modules())


test_impossible_recipes_are_refused = refusals.exactly(
    (lambda: Recipe(epochs=0), "epochs=0 is not possible; allowed: 1 to 1073741824."),
    (lambda: Recipe(lr=-1.0), "lr=-1.0, momentum=0.9; allowed: lr > 0 and 0 <= momentum < 1."),
    (lambda: trained(Recipe(batch=5000)), "batch=5000 is more than the 1438 examples; allowed: 1 to 1438."),
    (lambda: trained(SHORT, (22,)), "snapshots at steps [22] of a run of 22 steps; allowed: 0 to 21."),
)  # fmt: skip
