"""The experiment on loss scaling: its chain of FP16 tensors, its runs, its claims, its GPU cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiment_frame import Mutant, compute_with_little_installed, computed_on_cpu, drawn, frame, kills
from torch import nn

import fplab
from fplab.experiments import loss_scaling
from fplab.experiments.loss_scaling import data
from fplab.hardware.cases import Arrays, Case
from fplab.training.chain import Chain
from fplab.training.scalers import DynamicScaler, StaticScaler

SMALL = data.QUICK

arrays, test_it_is_loaded_by_its_name, test_every_claim_holds = frame(loss_scaling, SMALL)


# --- the chain -------------------------------------------------------------------------------------------------------


def test_a_chain_is_torchs_own_network() -> None:
    """In FP32, with torch's default initialisation and the same generator: every output and gradient, every bit."""
    torch.manual_seed(3)
    layers = [nn.Linear(5, 4), nn.Linear(4, 2)]
    chain = Chain((5, 4, 2), seed=3, half=False)
    x = torch.rand(6, 5)
    want = layers[1](torch.tanh(layers[0](x)))
    want.square().mean().backward()
    got = chain(x)
    got.square().mean().backward()
    assert torch.equal(got, want)
    gradients = [p.grad.flatten() for layer in layers for p in (layer.weight, layer.bias) if p.grad is not None]
    assert chain.flat.grad is not None
    assert torch.equal(chain.flat.grad, torch.cat(gradients))


def test_everything_stored_is_an_fp16_value_and_rounded_as_the_kernels_round() -> None:
    chain = Chain((6, 5, 3))
    chain.kept = {}
    x = torch.rand(4, 6)
    out = chain(x)
    (out.square().sum() * 2.0**-18).backward()
    assert set(chain.kept) == {"layer 1", "tanh 1", "layer 2", "weights"}
    for values in (out.detach(), *chain.kept.values()):
        assert np.array_equal(fplab.quantize(values.numpy(), "fp16"), values.numpy())
    natural = 2 * out.detach().numpy() * np.float32(2.0**-18)
    assert np.array_equal(chain.kept["layer 2"].numpy(), fplab.quantize(natural, "fp16"))
    assert chain.flat.grad is not None
    assert torch.equal(chain.flat.grad, chain.kept["weights"])


def test_a_chain_by_hand_with_every_rounding_spelled_out() -> None:
    """Forward and backward of a 2-1-1 chain, each stored value rounded by the lab; tanh's last FP32 bit is torch's."""

    def h(x: object) -> np.ndarray:
        return np.asarray(fplab.quantize(x, "fp16"), np.float32).reshape(-1)

    chain = Chain((2, 1, 1), seed=5)
    w1, b1, w2, b2 = (h(p.detach().numpy()) for p in chain.flat.detach().split(chain.lengths))
    x = np.float32([0.25, -0.75])
    active = h(np.tanh(h((x * w1).sum() + b1)))
    out = h(active * w2 + b2)
    got = chain(torch.from_numpy(x)[None])
    got.backward(torch.tensor([[3.0e-5]]))
    upstream = h(np.float32(3.0e-5))
    inner = h(h(upstream * w2) * (1 - active * active))
    want = np.concatenate([h(inner * x), h(inner), h(upstream * active), h(upstream)])
    assert chain.flat.grad is not None
    gradient = chain.flat.grad.numpy()
    assert abs(got.item() - float(out[0])) <= fplab.ulp(out[0], "fp16")
    assert (np.abs(gradient - want) <= fplab.ulp(want, "fp16")).all()
    assert gradient[-1] == upstream[0] != np.float32(3.0e-5)


# --- the runs --------------------------------------------------------------------------------------------------------


def test_densities_are_densities_and_the_losses_are_torchs_defaults() -> None:
    inputs = data.densities("train")
    assert torch.allclose(inputs.sum(1), torch.ones(len(inputs)))
    job, reader = data.autoencoder(SMALL), data.classifier(SMALL)
    x, y = torch.rand(3, 64), torch.rand(3, 64)
    assert torch.equal(job.loss(x, y), nn.MSELoss()(x, y))
    labels = torch.tensor([1, 2, 3])
    assert torch.equal(reader.loss(x[:, :10], labels), nn.CrossEntropyLoss()(x[:, :10], labels))
    assert job.sizes == (64, 48, 40, 32, 24, 16, 8, 16, 24, 32, 40, 48, 64)
    tests = data.densities("test")
    assert abs(job.score(lambda x: tests.mean(0).expand_as(x))) < 1e-6  # the mean image explains nothing


def test_a_run_repeats_to_the_bit() -> None:
    few = dataclasses.replace(SMALL, steps=(6, 6))
    job = data.autoencoder(few)
    one, again = (data.train(job, few, 0, DynamicScaler(growth_interval=2), half=True) for _ in range(2))
    assert one.losses.tobytes() == again.losses.tobytes()
    assert one.scales.tolist() == [2.0**16, 2.0**16, 2.0**17, 2.0**17, 2.0**18, 2.0**18]


def test_a_power_of_two_changes_nothing_where_nothing_underflows() -> None:
    few = dataclasses.replace(SMALL, steps=(5, 5))
    job = data.classifier(few)
    low, high = (data.train(job, few, 1, StaticScaler(2.0**e), half=True) for e in (12, 14))
    np.testing.assert_allclose(low.losses, high.losses, rtol=1e-4)
    assert not low.zeros.any()


def test_h100_products_train_the_same_within_fp16() -> None:
    """The products in an H100's bits differ from this machine's in the last bit of FP16 at most now and then."""
    few = dataclasses.replace(SMALL, steps=(3, 3), encoder=(64, 16, 8))
    job = data.autoencoder(few)
    here = data.train(job, few, 0, StaticScaler(2.0**10), half=True)
    there = data.train(job, dataclasses.replace(few, gpu="H100"), 0, StaticScaler(2.0**10), half=True)
    np.testing.assert_allclose(here.losses, there.losses, rtol=2e-3)


# --- mutants ----------------------------------------------------------------------------------------------------------


def changed(name: str, change: Callable[[np.ndarray], Any]) -> Callable[[Arrays], Arrays]:
    """A change of one array, in place or by a new one."""

    def fault(arrays: Arrays) -> Arrays:
        new = change(arrays[name])
        return {name: arrays[name] if new is None else new}

    return fault


def wide_backward(stored: Any) -> Any:
    """Gradients that are stored in FP32."""

    class Mutant(stored):  # type: ignore[misc]
        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            stored.backward(ctx, *gradients)
            return gradients[0], None, None

    return Mutant


def uncorrected(program: Any) -> Any:
    """Adam without the correction of its second state."""
    return tuple(step for step in program if step.right != "root_correction2")


TINY = data.Params(steps=(3, 3), batch=(32, 32), every=8, encoder=(64, 16, 8), hidden=(16,), count=1, seeds=1)
STEPS, FIRST, MACHINE = "In the first, a middle", "On the first step", "The dynamic scale"
MUTANTS = (
    Mutant("zero shares shifted by a layer", (STEPS,),
           change=changed("autoencoder_zeros", lambda x: np.roll(x, 1, axis=1))),
    Mutant("zeros counted in the next layer", (STEPS,),
           change=lambda arrays: {name: np.roll(arrays[name], 1, axis=-1)
                                  for name in ("autoencoder_zeros", "autoencoder_counted")}),
    Mutant("gradients that are stored in FP32", (STEPS,), "fplab.training.chain._Stored", wide_backward, params=TINY),
    Mutant("gradients unscaled by half", (STEPS,), "fplab.training.scalers.scaling.unscaled",
           lambda unscaled: lambda *given: 2 * unscaled(*given), params=TINY),
    Mutant("an Adam without its correction", (STEPS,), "fplab.training.optimizers.programs.ADAM", uncorrected,
           params=TINY),
    Mutant("an unscaled run that learns", ("The autoencoder hardly",),
           change=changed("autoencoder_by_seed", lambda x: x[:, [2, 1, 2]])),
    Mutant("a scaled run that learns as little as an unscaled one", ("With the scale",),
           change=changed("autoencoder_by_seed", lambda x: x[:, [0, 0, 2]])),
    Mutant("a classifier that suffers", ("The classifier needs",),
           change=changed("classifier_by_seed", lambda x: x - [0.1, 0, 0])),
    Mutant("the layers reversed", ("Unscaled, far",), change=changed("autoencoder_unscaled", lambda x: x[:, ::-1])),
    Mutant("a step at 2^24 that is not skipped", ("At 2^24",),
           change=changed("classifier_skipped_steps", lambda x: x[::-1])),
    Mutant("a gradient that is zero too soon", (FIRST,),
           change=changed("autoencoder_first", lambda x: x[0].__setitem__((0, 0), 0.0))),
    Mutant("a gradient that is infinite too soon", (FIRST,),
           change=changed("classifier_first", lambda x: x[-1].__setitem__((0, 0), np.inf))),
    Mutant("a scale of its own", (MACHINE,), change=changed("autoencoder_trace", lambda x: x.__setitem__(40, 3.0))),
    Mutant("an overflow unseen", (MACHINE,), change=changed("classifier_overflows", lambda x: ~x)),
)  # fmt: skip
test_a_mutant_is_killed, test_every_claim_kills_a_mutant = kills(loss_scaling, SMALL, MUTANTS)


CASES = loss_scaling.gpu_cases(SMALL)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_gpu_cases_on_the_cpu_equal_the_lab_bit_for_bit(case: Case) -> None:
    computed_on_cpu(case)


def test_gpu_cases_see_every_outcome() -> None:
    machine, unscale = (case.compute(case.inputs(), "cpu") for case in CASES)
    before = CASES[0].inputs()["scale"].view(np.float32)
    after = machine["scale"].view(np.float32)
    assert all(((after > before).any(), (after < before).any(), (after == before).any()))
    assert np.isfinite(after).all()
    assert 0 < unscale["found"].mean() < 1


def test_cases_need_numpy_and_torch_alone() -> None:
    compute_with_little_installed(loss_scaling)


def test_the_table_has_a_row_for_every_run(arrays: Arrays) -> None:
    table = loss_scaling.table(arrays, SMALL)
    assert {len(column) for column in table.values()} == {2 * (4 + 2)}
    assert table["loss_scale"][:6] == ["2^0", "2^8", "2^16", "2^24", "dynamic", "FP32"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_draws_in_both_themes(theme: str, arrays: Arrays, tmp_path: Path) -> None:
    figure, _ = drawn(loss_scaling, arrays, SMALL, theme, tmp_path)
    titles = [ax.get_title(loc="left") for ax in figure.get_axes()]
    assert {"The autoencoder needs a scale", "The dynamic scale of the classifier"} <= set(titles)
