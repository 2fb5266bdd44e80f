"""The experiment on FP8 in training."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from experiments.frame import CELLS, Mutant, Recorded, frame, plus, record
from fplab.experiments import fp8_training
from fplab.experiments.fp8_training import CURRENT, FP32, LONG, SPIKES, Params, Spike

TINY = Params(seeds=2, width=16, batch=16, begun=1, steps=3)
RECORDED = Recorded(fp8_training, "summed", "quantised", "continued")


def copied(name: str, to: Any, from_: Any) -> Any:
    """A part of an array is another's."""

    def change(result: Any) -> dict[str, Any]:
        array = getattr(result, name).copy()
        array[to] = array[from_]
        return {name: array}

    return change


def not_undone(good: Any) -> Any:
    """A spike by which the output of the layer is not divided."""

    @contextmanager
    def spiking(layer: Any, spike: Spike) -> Iterator[None]:
        handle = layer.register_forward_pre_hook(lambda _, given: given[0] * 2.0**spike.binades)
        yield
        handle.remove()

    return spiking


def never_promoted(good: Any) -> Any:
    """Every series is one chain."""
    return {name: (gpu, None) for name, (gpu, _) in good.items()}


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


def sums(result: Any) -> dict[str, Any]:
    """The sums of every network."""
    found = RECORDED.again("summed")
    summed, quantised = (np.array(x).reshape(-1, 2, *x[0].shape) for x in zip(*found, strict=True))
    return {"summed": summed, "quantised": quantised}


def roundings(result: Any) -> dict[str, Any]:
    """The gradients rounded."""
    found = np.array(RECORDED.again("quantised")).reshape(*result.errors.shape, 2)
    return {"errors": found[..., 0], "flushed": found[..., 1]}


def spiked(way: int) -> Any:
    """The runs of a way with every spike."""

    def part(result: Any) -> dict[str, Any]:
        losses, spikes = result.losses.copy(), len(SPIKES)
        losses[way] = RECORDED.again("continued", slice(way * spikes, (way + 1) * spikes))
        return {"losses": losses}

    return part


def by_format(result: Any) -> dict[str, Any]:
    """The perceptrons trained with E4M3 gradients that have one scale a tensor."""
    ((params, starts, _), _), found = RECORDED.calls["continued"][0], result.by_format.copy()
    found[0, 0] = fp8_training.continued(params, starts, fp8_training.made("fp8_current", fp8_format="e4m3"))
    return {"by_format": found}


IN_FP32, DELAYED = spiked(FP32), spiked(LONG)
MUTANTS = (
    Mutant("promotion that promotes nothing", ("promotion", "beside_rounding"), "SERIES", never_promoted, part=sums),
    Mutant("sums that are not cut", ("promotion", "real_sums", "beside_rounding"), CELLS,
           record("H100", "e5m2", alignment_bits=25, kept_bits=23), part=sums),
    Mutant("a spike that is not undone", ("unchanged",), "spiking", not_undone, part=IN_FP32),
    Mutant("delayed scaling that knows the spike", ("remembered", "survived", "recovered"),
           "fplab.nn.emulation.delayed.Amaxes.of", own_amax, part=DELAYED),
    Mutant("current scaling that one step spoils for many", ("survived",),
           change=plus("losses", (CURRENT, len(SPIKES) - 1), 0.5)),
    Mutant("E4M3 as coarse as E5M2", ("a_bit_more", "to_zero"), "quantised",
           lambda good: lambda gradients, scheme, fmt: good(gradients, scheme, "hybrid"), part=roundings),
    Mutant("E4M3's products as coarse as E5M2's", ("a_bit_more",),
           change=copied("gradient", np.s_[..., 0], np.s_[..., 1])),
    Mutant("E4M3 gradients that saturate", ("trains_alike",), "made", saturating, part=by_format),
)  # fmt: skip

globals().update(frame(fp8_training, fp8_training.QUICK, MUTANTS, recorded=RECORDED))


def test_perceptrons_go_on_as_if_they_had_not_stopped() -> None:
    """The model and the momentum of FP32's begin, for every way anew."""
    starts = [fp8_training.started(TINY, 3)]
    task = fp8_training.digits(TINY)
    batches = list(task.batches(0, TINY.begun + TINY.steps))
    first, second = (fp8_training.continued(TINY, starts, None)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    longer = Params(**{**vars(TINY), "begun": TINY.begun + TINY.steps})
    assert task.loss(fp8_training.started(longer, 3)[0], batches[0]) < task.loss(starts[0][0], batches[0])
    assert first.dtype == np.float32
    assert len(first) == TINY.steps
