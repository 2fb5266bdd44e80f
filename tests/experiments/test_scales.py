"""The experiment on block scales."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.frame import Mutant, frame
from fplab.experiments import scales
from fplab.nn import emulate
from fplab.scaled import Scaled

QUICK = scales.E.quick
TINY = replace(QUICK, seeds=2, steps=2, batch=2, rows=64, significands=64)
LEARNT = replace(QUICK, seeds=2, rows=16, significands=64)


def by(scheme: str, rule: str, *other: str) -> Any:
    """The fault of one way to quantise that another takes the place of."""
    return lambda good: lambda x, *of, **how: good(x, *of, **how) if (*of, how.get("rule")) != (scheme, rule) else (
        good(x, other[0], **how | {"rule": other[1]}))  # fmt: skip


def a_scale_higher(good: Any) -> Any:
    """Every rule rounds the scale of a block up."""
    return lambda x, scheme, **options: good(x, scheme, **options | {"rule": "ceil" if scheme[:2] == "mx" else None})


def unpacked(scaled: Scaled) -> int:
    return int(scaled.codes.nbytes + scaled.scales.nbytes)


AGAIN = ("trained",)
QUANTIZE = "fplab.scaled.quantize"
MUTANTS = (
    Mutant("networks that do not descend", ("trained_networks",), "descend", lambda good: lambda *of: None,
           params=LEARNT),
    Mutant("a floor that rounds up", ("clipping", "definition"), QUANTIZE, a_scale_higher, params=TINY),
    Mutant("scales that round up in every rule", ("blocks_clipped", "up_in_mxfp8", "even_in_mxfp4"), QUANTIZE,
           a_scale_higher, reuse=AGAIN),
    Mutant("even that rounds as floor", ("even_in_mxfp4",), QUANTIZE, by("mxfp4", "even", "mxfp4", "floor"),
           reuse=AGAIN),
    Mutant("blocks of 32 with MXFP4's scales", ("nvfp4_beats_mxfp4",), QUANTIZE,
           by("nvfp4", "nearest", "mxfp4", "even"), reuse=AGAIN),
    Mutant("no block takes the 4", ("four_over_six",), QUANTIZE, by("nvfp4", "4over6", "nvfp4", "nearest"),
           reuse=AGAIN),
    Mutant("codes a step too large", ("composed",), "quantised_by_torch",
           lambda good: lambda *args: {k: v + (k == "floor_codes") for k, v in good(*args).items()}, params=TINY),
    Mutant("codes of a byte", ("bits_a_value",), "fplab.scaled.Scaled.nbytes", lambda good: property(unpacked),
           params=TINY),
)  # fmt: skip

globals().update(frame(scales, QUICK, MUTANTS))


@pytest.mark.parametrize("scheme", scales.UNITS)
def test_what_torch_is_given_of_blocks_is_what_the_lab_multiplies(scheme: str) -> None:
    """Pairs of codes and tiles of scales, by the unit that ``emulate`` puts in torch's place."""
    given = scales.drawn_codes(scheme)
    with emulate("B200", "fp16"):
        got = scales.block_scaled(scheme, given, "cpu")
    np.testing.assert_array_equal(got["d"], scales.multiplied_by_lab(scheme, given, {"kind": "cpu"})["d"])


def test_tensors_are_of_every_linear_layer() -> None:
    right, commonest, layers = scales.trained(TINY, 2)
    assert {kind: len(found) for kind, found in layers.items()} == dict.fromkeys(scales.KINDS, 9)
    assert 0 < right < 1 > commonest
    assert all(x.dtype == np.float32 and len(x) <= 64 for found in layers.values() for x in found)
    assert all(np.abs(x).max() > 0 for x in layers["gradient"])
