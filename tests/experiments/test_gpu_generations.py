"""The experiment on one training run on three GPUs: mutants of its runs, and what its cases ask."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.frame import EMULATED, Mutant, frame, record
from fplab.experiments import gpu_generations
from fplab.nn import emulate

DEVICES = ("Tesla V100-SXM2-16GB", "NVIDIA H100 80GB HBM3")
SMALL = replace(gpu_generations.E.quick, steps=20, lr=0.2, width=64)
TINY = replace(gpu_generations.E.full, steps=4, seeds=1, width=16)


def test_runs_are_reproducible_and_differ_from_the_first_step(result: Any) -> None:
    again = gpu_generations.E.result(replace(SMALL, steps=2, seeds=1))
    for name in ("losses", "differ"):
        assert (getattr(again, name).values == getattr(result, name)[:1, :, :2].values).all()
    assert (result.differ.sel(run="H100") == 0).all()
    others = [name for name in gpu_generations.RUNS if name not in ("H100", "one weight")]
    assert (result.differ.sel(run=others)[..., 0] > 0).all()
    assert (result.first.sel(run="FP32")[:, :4] > 0.9).all()


# --- mutants ----------------------------------------------------------------------------------------------------------
def on_another_gpu(machine: type[gpu_generations.Machine]) -> type[gpu_generations.Machine]:
    """A V100 with A100's bits from its second step."""

    class Mutant(machine):  # type: ignore[misc, valid-type]
        def step(self, batch: Any) -> Any:
            found = super().step(batch)
            if self.name == "V100":
                self.emulation = emulate("A100", "fp16")
            return found

    return Mutant


def gradients_times(factor: float) -> Callable[[type[gpu_generations.Machine]], type[gpu_generations.Machine]]:
    """Gradients that are scaled back by another number."""

    def fault(machine: type[gpu_generations.Machine]) -> type[gpu_generations.Machine]:
        class Mutant(machine):  # type: ignore[misc, valid-type]
            def backward(self, loss: Any) -> None:
                super().backward(loss)
                for parameter in self.model.parameters():
                    parameter.grad *= factor

        return Mutant

    return fault


def backward_products(gpu: str, other: Callable[..., Any]) -> Callable[[Any], Any]:
    """Backward products of a GPU by something else, counted as its own."""

    def fault(layer: Any) -> Any:
        class Mutant(layer):  # type: ignore[misc]
            def backward_product(self, a: Any, b: Any) -> Any:
                found = super().backward_product(a, b)
                return other(a, b, found) if self.products.settings.gpu == gpu else found

        return Mutant

    return fault


def first_layer_first(machine: type[gpu_generations.Machine]) -> type[gpu_generations.Machine]:
    """Gradients in the order of the parameters."""

    class Mutant(machine):  # type: ignore[misc, valid-type]
        def step(self, batch: Any) -> Any:
            tensors = super().step(batch)
            return [*tensors[:4], *tensors[:3:-1]]

    return Mutant


def least_logit(machine: type[gpu_generations.Machine]) -> type[gpu_generations.Machine]:
    """Each digit is read as the one that the model finds least likely."""

    class Mutant(machine):  # type: ignore[misc, valid-type]
        def answers(self) -> Any:
            return np.concatenate([self.model(x).argmin(1).numpy() for x, _ in self.task.held_out()]).astype(np.uint8)

    return Mutant


def by_an_ulp_of_fp16(model: Any, count: int) -> None:
    """The first weight moved by 2^13 ulps of FP32."""
    next(model.parameters()).detach().numpy().ravel()[:1].view(np.uint32)[:] += 1 << 13


MUTANTS = (
    Mutant("a V100 on A100's bits from its second pass", ("steps", "units"), "Machine", on_another_gpu, params=TINY),
    Mutant("gradients scaled back by 2^9", ("steps",), "Machine", gradients_times(2.0), params=TINY),
    Mutant("V100's backward products times 1.0001", ("steps",), "fplab.nn.emulation.linear.Layer",
           backward_products("V100", lambda a, b, found: found * np.float32(1.0001)), params=TINY),
    Mutant("backward products in plain FP32", ("steps",), "fplab.nn.emulation.linear.Layer",
           backward_products("H100", lambda a, b, found: a @ b), params=TINY),
    Mutant("a whole ulp of FP16 on one weight", ("swallowed",), "_nudge",
           lambda nudge: by_an_ulp_of_fp16, params=TINY),
    Mutant("A100 sums cut to 13 bits", ("parting", "noise"), EMULATED,
           record("A100", "fp16", alignment_bits=13, kept_bits=13)),
    Mutant("a thousandth of the rate", ("steps", "learning"), "fplab.training.Momentum",
           lambda good: lambda model, lr, momentum: good(model, 1e-3 * lr, momentum)),
    Mutant("V100's gradients with the other sign", ("growth", "noise", "changed_answers", "learning"),
           "fplab.nn.emulation.linear.Layer", backward_products("V100", lambda a, b, found: -found)),
    Mutant("distances in the 1-norm", ("steps",), "norm",
           lambda good: lambda x: float(np.abs(x, dtype=np.float64).sum()), params=TINY),
    Mutant("shares of elements that differ by more than rounding", ("steps",), "differing",
           lambda good: lambda x, y: float((~np.isclose(x, y)).mean()), params=TINY),
    Mutant("gradients from the first layer to the last", ("steps",), "Machine", first_layer_first, params=TINY),
    Mutant("answers of the least logit", ("steps",), "Machine", least_logit, params=TINY),
)  # fmt: skip

globals().update(frame(gpu_generations, SMALL, MUTANTS))


def test_gpu_cases_ask_for_the_products_of_a_step() -> None:
    found = list(gpu_generations.cases(SMALL))
    assert len(found) == 8
    shapes = {c.name.removesuffix(", to fp16"): [x.shape for x in c.inputs().values()] for c in found[::2]}
    assert list(shapes.values()) == [[(128, 64), (256, 64)], [(128, 256), (256, 256)], [(128, 256), (256, 256)],
                                     [(256, 128), (256, 128)]]  # fmt: skip
    for case in found:
        given = case.inputs()
        assert all(x.dtype == np.uint16 and x.any() for x in given.values())
        assert set(case.compute(given, "cpu")) == set(case.emulate(given, {"kind": "cpu"})) == {"d"}
        assert bool(case.open) is ("= 64" not in case.name)
        volta, hopper = (case.emulate(given, {"kind": "cuda", "device": name})["d"] for name in DEVICES)
        assert case.name.endswith("fp16") or (volta != hopper).any(), "a GPU must be able to tell the models apart"
