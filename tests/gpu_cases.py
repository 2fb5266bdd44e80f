"""What the experiments' tests and those of the hardware suite ask of GPU cases, where there is no GPU."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fplab.experiments import recorder
from fplab.experiments.outcomes import Status, same_bits
from fplab.hardware.cases import Arrays, Case, Emulate
from fplab.hardware.records import RecordedCase


def computed_on_cpu(case: Case, nan_equal: bool = False) -> Arrays:
    """What torch computes for a case on this CPU, which is what the lab emulates: every output, dtype and bit.

    ``nan_equal``: the bits of a NaN do not count.
    """
    from torch import __version__ as torch

    inputs = case.inputs()
    got, want = case.compute(inputs, "cpu"), case.emulate(inputs, {"kind": "cpu", "torch": torch})
    assert got.keys() == want.keys() == case.formats.keys(), case.name
    for name, fmt in case.formats.items():
        assert got[name].dtype == want[name].dtype, (case.name, name)
        outcome = same_bits(got[name], want[name], fmt, nan_equal)
        assert outcome.status is Status.PASS, (case.name, name, str(outcome.detail))
    return got


H100 = {"kind": "cuda", "device": "NVIDIA H100 80GB HBM3", "capability": "9.0", "torch": "2.11.0", "size": "quick"}


def forged(case: Case, meta: Any = H100, spared: Sequence[str] = ()) -> None:
    """A record of what the lab knows passes as a GPU's; with outputs in other places, or a bit turned, it does not.

    What the lab knows of an output is its model, or where it has none the first hypothesis that gives it. ``spared``:
    outputs of which it knows nothing.
    """
    inputs, known = case.inputs(), {}

    def once(emulate: Emulate) -> Emulate:
        """Every record has these inputs: what the lab says of them is computed once."""
        kept = functools.cache(lambda: emulate({key: value.copy() for key, value in inputs.items()}, meta))
        return lambda given, meta: kept()

    ways = {name: once(emulate) for name, emulate in case.hypotheses.items()}
    case = dataclasses.replace(case, emulate=once(case.emulate), hypotheses=ways)
    for emulate in (case.emulate, *ways.values()):
        for name, array in emulate(inputs, meta).items():
            known.setdefault(name, array)
        if known.keys() == case.formats.keys():
            break
    assert known.keys() == case.formats.keys() - set(spared), case.name
    unknown = {name: np.zeros(1, np.uint8) for name in spared}

    def ended(outputs: Arrays) -> Status:
        done = RecordedCase(case.name, inputs, outputs | unknown, dict(case.formats))
        return recorder.compare(case, done, meta).status

    assert spared or ended(known) is Status.PASS, case.name
    for name, array in known.items():
        flipped = (array ^ np.where(np.arange(array.size) == at, 1, 0).astype(array.dtype).reshape(array.shape)
                   for at in range(array.size // 2, array.size))  # fmt: skip
        wrong = itertools.chain(flipped, [np.zeros_like(array)])  # with another bit a NaN is a NaN
        fakes = [next(fake for fake in wrong if same_bits(fake, array, case.formats[name]).status is Status.FAIL)]
        if np.unique(array).size > 1:
            fakes.append(np.roll(array, 1))
        for fake in fakes:
            assert ended({**known, name: fake}) in (Status.FAIL, Status.DIFFERS), (case.name, name)
