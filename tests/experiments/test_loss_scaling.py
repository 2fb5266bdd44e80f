"""The experiment on loss scaling: its runs, its claims, mutants that they kill, its GPU cases; its chain of tensors."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import fplab
from experiments.frame import Mutant, frame
from fplab.experiments import loss_scaling
from fplab.experiments.loss_scaling import data
from fplab.training.chain import Chain
from fplab.training.scalers import DynamicScaler, StaticScaler

SMALL = loss_scaling.E.quick
TINY = dataclasses.replace(
    loss_scaling.E.full, steps=(3, 3), batch=(32, 32), every=8, encoder=(64, 16, 8), hidden=(16,), count=1, seeds=1
)
SHORT = dataclasses.replace(
    SMALL, steps=(30, 20), batch=(256, 64), encoder=(64, 32, 16, 8), hidden=(32,), growth_interval=2
)
DEEP = dataclasses.replace(SMALL, steps=(90, 2), every=16, seeds=2)  # the autoencoder begins to learn


def storing(cast: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The fault of gradients that another cast stores."""

    def fault(stored: Any) -> Any:
        class Faulty(stored):  # type: ignore[misc]
            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                found = cast(gradients[0])
                if ctx.kept is not None:
                    ctx.kept[ctx.place] = found
                return found, None, None

        return Faulty

    return fault


def flushed(x: torch.Tensor) -> torch.Tensor:
    """FP16 with what is below 2^-9 as zero."""
    return x.half().float() * (x.abs() >= 2.0**-9)


STORED, SCALING = "fplab.training.chain._Stored", "fplab.training.scalers.scaling"
MUTANTS = (
    Mutant("gradients that are stored in FP32", ("steps",), STORED, storing(lambda x: x), params=TINY),
    Mutant("gradients of the deep network stored in FP32", ("unscaled_fails", "encoder_first"), STORED,
           storing(lambda x: x), params=DEEP),
    Mutant("small gradients flushed", ("first_step", "classifier_needs_none"), STORED, storing(flushed), params=SHORT),
    Mutant("gradients that saturate", ("first_step", "largest_scale", "machine"), STORED,
           storing(lambda x: x.clamp(-65504, 65504).half().float()), params=SHORT),
    Mutant("gradients unscaled by half", ("steps",), f"{SCALING}.unscaled",
           lambda unscaled: lambda *given: 2 * unscaled(*given), params=TINY),
    Mutant("an Adam without its correction", ("steps",), "fplab.training.optimizers.programs.ADAM",
           lambda program: tuple(step for step in program if step.right != "root_correction2"),
           params=TINY),
    Mutant("a scale of 1 in the place of 2^16", ("scaled_learns",), "fplab.training.scalers.StaticScaler",
           lambda good: lambda scale: good(1.0), params=DEEP),
    Mutant("steps that overflow are taken", ("largest_scale",), f"{SCALING}.Scaler.found_inf",
           lambda good: lambda self, optimizer: False, params=SHORT),
    Mutant("growth a step too late", ("machine",), "fplab.training.scalers.DynamicScaler",
           lambda good: lambda growth_interval: good(growth_interval=growth_interval + 1), params=SHORT),
)  # fmt: skip

globals().update(frame(loss_scaling, SMALL, MUTANTS))


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


def few_steps(which: int, scaler: Any, steps: int, **more: Any) -> data.Trained:
    few = dataclasses.replace(SMALL, steps=(steps, steps), **more)
    return data.train([*data.JOBS.values()][which](few), few, which, scaler, half=True)


def test_a_run_repeats_to_the_bit() -> None:
    one, again = (few_steps(0, DynamicScaler(growth_interval=2), 6) for _ in range(2))
    assert one.losses.tobytes() == again.losses.tobytes()
    assert one.scales.tolist() == [2.0**16, 2.0**16, 2.0**17, 2.0**17, 2.0**18, 2.0**18]


def test_a_power_of_two_changes_nothing_where_nothing_underflows() -> None:
    low, high = (few_steps(1, StaticScaler(2.0**e), 5) for e in (12, 14))
    np.testing.assert_allclose(low.losses, high.losses, rtol=1e-4)
    assert not low.zeros.any()


def test_h100_products_train_the_same_within_fp16() -> None:
    """The products in an H100's bits differ from this machine's in the last bit of FP16 at most now and then."""
    here, there = (few_steps(0, StaticScaler(2.0**10), 3, encoder=(64, 16, 8), gpu=gpu) for gpu in (None, "H100"))
    np.testing.assert_allclose(here.losses, there.losses, rtol=2e-3)


def test_gpu_cases_see_every_outcome() -> None:
    update, unscale = loss_scaling.cases(SMALL)
    before = update.inputs()["scale"].view(np.float32)
    after = update.compute(update.inputs(), "cpu")["scale"].view(np.float32)
    assert all(((after > before).any(), (after < before).any(), (after == before).any()))
    assert np.isfinite(after).all()
    assert 0 < unscale.compute(unscale.inputs(), "cpu")["found"].mean() < 1
