"""The experiment on FP8 in training."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from experiments.frame import CELLS, Mutant, frame, record
from fplab.experiments import fp8_training

QUICK = fp8_training.E.quick
TINY = replace(fp8_training.E.full, seeds=2, width=16, batch=16, begun=1, steps=3)


def not_undone(good: Any) -> Any:
    """A spike by which the output of the layer is not divided."""

    @contextmanager
    def spiking(layer: Any, binades: int, whole: bool) -> Iterator[None]:
        handle = layer.register_forward_pre_hook(lambda _, given: given[0] * 2.0**binades)
        yield
        handle.remove()

    return spiking


def never_promoted(good: Any) -> Any:
    """Every series is one chain."""
    return {name: unit and (unit[0], None) for name, unit in good.items()}


def own_amax(good: Any) -> Any:
    """Delayed scaling by the tensor itself."""
    return lambda self, recipe, place, role, largest, own, trains=False: (
        own or good(self, recipe, place, role, largest, own, trains)
    )


def saturating(good: Any) -> Any:
    """A recipe for E4M3 gradients whose scales of tensors are 2^20 times too large."""

    def made(name: str, **fields: Any) -> Any:
        narrow = name == "fp8_current" and fields.get("fp8_format") == "e4m3"
        return good(name, **fields, **({"amax_history_len": 1, "margin": -20} if narrow else {}))

    return made


def delayed(good: Any) -> Any:
    """Scales of the last 1,024 steps under the name of current ones."""
    return lambda name, **fields: good("fp8_delayed" if name == "fp8_current" else name, **fields)


TRAINED, STARTED = ("trained", "in_fp32", "multiplied"), ("started",)
MUTANTS = (
    Mutant("promotion that promotes nothing", ("promotion", "beside_rounding"), "SERIES", never_promoted,
           reuse=TRAINED),
    Mutant("sums that are not cut", ("promotion", "real_sums", "beside_rounding"), CELLS,
           record("H100", "e5m2", alignment_bits=25, kept_bits=23), reuse=TRAINED),
    Mutant("a spike that is not undone", ("unchanged",), "spiking", not_undone, reuse=STARTED),
    Mutant("delayed scaling that knows the spike", ("remembered", "survived", "recovered"),
           "fplab.nn.emulation.delayed.Amaxes.of", own_amax, reuse=STARTED),
    Mutant("current scaling that is delayed", ("survived",), "made", delayed, reuse=(*TRAINED, *STARTED)),
    Mutant("E4M3 as coarse as E5M2", ("a_bit_more", "to_zero"), "quantised",
           lambda good: lambda gradients, place, fmt: good(gradients, place, "hybrid"), reuse=TRAINED),
    Mutant("E4M3's products as coarse as E5M2's", ("a_bit_more",), "made",
           lambda good: lambda name, **how: good(name, **how | {"fp8_format": "hybrid"}), reuse=TRAINED),
    Mutant("E4M3 gradients that saturate", ("trains_alike",), "made", saturating, reuse=STARTED),
)  # fmt: skip

globals().update(frame(fp8_training, QUICK, MUTANTS))


def test_perceptrons_go_on_as_if_they_had_not_stopped() -> None:
    """The model and the momentum of FP32's begin, for every way anew."""
    p, longer = fp8_training.E.result(TINY).p, replace(TINY, begun=TINY.begun + TINY.steps)
    task, begun, _ = fp8_training.started(p, 0)
    batch = next(iter(task.batches(0, 1)))
    first, second = (fp8_training.continued(p, 0, None, "") for _ in range(2))
    assert first == second
    assert [*first] == [*range(TINY.steps)]
    later = fp8_training.started(fp8_training.E.result(longer).p, 0)[1]
    assert task.loss(later, batch) < task.loss(begun, batch)
