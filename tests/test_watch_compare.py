"""Where two watched runs part: in bits, and for good."""

import itertools
import math
import re
from typing import Any

import pytest
import torch
from refusals import refuses
from torch import nn
from watched import run, step

from fplab import training
from fplab.errors import LabError
from fplab.nn import watch

pytestmark = pytest.mark.usefixtures("one_thread")


def test_two_equal_runs_do_not_part():
    found = watch.compare(run(6), run(6, every=4))
    assert found.bits is None
    assert found.good is None
    assert re.fullmatch(r"every bit is the same in 6 steps \(0 to 5\), \d+ tensors in each", str(found))


def test_a_run_in_fp16_parts_at_the_first_layer_that_is_rounded():
    fp32, emulated = run(30), run(30, fp16=True)
    found = watch.compare(fp32, emulated)
    assert (found.bits.step, found.bits.name.kind, found.bits.layer) == (0, "activations", "conv1")
    at, far = found.distances[found.good.name]
    assert (far[at >= found.good.step] > 8).all()
    assert found.good.step == 0 or far[at == found.good.step - 1] <= 8
    for name, (steps, distances) in found.distances.items():
        stays = [s for s in steps if (distances[steps >= s] > 8).all()]
        assert not stays or min(stays) >= found.good.step, name
    assert "more than 8 ulp of fp16 apart from then on" in str(found)
    assert "first bit: step 0, activations of conv1, " in str(found)
    assert str(fp32.compare(emulated)) == str(found)
    close = fp32.compare(emulated, ulps=1e30)
    assert close.good is None
    assert "for good: never; every tensor comes back to within 1e+30 ulp of fp16" in str(close)


def test_one_bit_in_one_weight_at_one_step_is_found():
    """Changed after the optimizer's step 7, in a parameter of conv3: its weights are the first to differ."""

    def go(change: bool, keep: int) -> watch:
        model = training.digits_net(0)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        images, labels = training.tensors(training.digits("test"))
        if change:

            def nudge(_o: Any, _a: Any, _k: Any, count: list[int] = [0]) -> None:  # noqa: B006
                if count[0] == 7:
                    model.get_submodule("conv3").weight.data.view(torch.int32)[5, 4, 1, 1] ^= 1
                count[0] += 1

            optimizer.register_step_post_hook(nudge)
        with watch(model, optimizer, keep=keep) as seen:
            for index in itertools.islice(training.batches(359, training.Recipe(epochs=9)), 20):
                chosen = torch.from_numpy(index)
                step(optimizer, nn.functional.cross_entropy(model(images[chosen]), labels[chosen]))
        return seen

    found = watch.compare(go(False, 64), go(True, 64)).bits
    assert (found.step, found.after, found.name.kind, found.layer) == (7, 6, "weights", "conv3.weight")
    thin = watch.compare(go(False, 64), go(True, 5)).bits
    assert (thin.step, thin.after) == (8, 4)
    assert "(the steps after 4 were not kept)" in str(thin)


def test_runs_that_cannot_be_compared():
    one = run(2)
    with pytest.raises(LabError, match=r"emulated is a int; it must be a watch: with watch\(\.\.\.\) as emulated"):
        watch.compare(one, 3)  # type: ignore[arg-type]
    refuses(lambda: watch.compare(run(2, keep=0), one), "fp32 was given keep=0, so there is nothing to compare")
    refuses(lambda: watch.compare(one, one, ulps=math.nan), "ulps=nan is not possible; allowed: 0 and more")
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as other:
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()
    refuses(lambda: watch.compare(one, other), "no tensor in common but the input: they are of different models")


def test_tensors_that_one_run_alone_has_are_said():
    def go(name: str) -> watch:
        torch.manual_seed(0)
        model = nn.Sequential()
        model.add_module("one", nn.Linear(3, 3))
        model.add_module(name, nn.ReLU())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with watch(model, optimizer) as seen:
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        return seen

    found = watch.compare(go("two"), go("three"))
    assert found.bits is None
    assert [str(name) for name in found.alone] == [
        f"{kind} of {layer}" for layer in ("two", "three") for kind in ("activations", "activation gradients")
    ]
    assert "; 4 are in one run alone, first activations of two, and were not compared" in str(found)
