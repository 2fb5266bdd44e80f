"""The experiment on FP8 in training."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from experiments.frame import Mutant, frame, plus, put
from fplab.experiments import fp8_training
from fplab.experiments.fp8_training import CURRENT, FAST, FP32, LONG, PROMOTED, Params, Spike

TINY = Params(
    networks=2, learned=1, longest=10, seeds=2, width=16, batch=16, begun=1, steps=3, spike=1
)  # fmt: skip


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


MUTANTS = (
    Mutant("promotion that promotes nothing", ("promotion",), "SERIES", never_promoted, params=TINY),
    Mutant("promoted sums that err as fast ones", ("beside_rounding",),
           change=copied("summed", np.s_[:, :, PROMOTED], np.s_[:, :, FAST])),
    Mutant("fast sums that lose nothing", ("beside_rounding",), change=put("summed", np.s_[:, :, FAST], 1e-9)),
    Mutant("gradients like random numbers", ("real_sums",), change=copied("summed", np.s_[:, 1], np.s_[:, 0])),
    Mutant("a spike that is not undone", ("unchanged",), "spiking", not_undone, params=TINY),
    Mutant("current scaling that is off by a bit", ("unchanged",), change=plus("losses", (CURRENT, 1), 1e-6)),
    Mutant("delayed scaling that knows the spike", ("remembered", "survived", "recovered"),
           change=copied("losses", LONG, FP32)),
    Mutant("current scaling that one step spoils for many", ("survived",),
           change=plus("losses", (CURRENT, len(fp8_training.SPIKES) - 1), 0.5)),
    Mutant("E4M3 as coarse as E5M2", ("a_bit_more",), change=copied("errors", np.s_[..., 0], np.s_[..., 1])),
    Mutant("E4M3's products as coarse as E5M2's", ("a_bit_more",),
           change=copied("gradient", np.s_[..., 0], np.s_[..., 1])),
    Mutant("nothing becomes 0", ("to_zero",), change=put("flushed", ..., 0)),
    Mutant("E4M3 gradients that do not train", ("trains_alike",), change=plus("by_format", np.s_[:, 0], 1)),
)  # fmt: skip

globals().update(frame(fp8_training, fp8_training.QUICK, MUTANTS))


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
