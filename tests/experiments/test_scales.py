"""The experiment on block scales."""

from typing import Any

import numpy as np
import pytest

from experiments.frame import Mutant, frame, put
from fplab.experiments import scales
from fplab.experiments.scales import FOUR_OVER_SIX, MX4, MX8, NVFP4, WAYS, Params
from fplab.nn import emulate
from fplab.scaled import Scaled

TINY = Params(seeds=2, steps=2, batch=2, rows=64, significands=64)


def as_another(way: Any, other: Any) -> Any:
    """The errors and clipped blocks of one way are another's."""

    def change(result: Any) -> dict[str, Any]:
        found = {}
        for name in ("errors", "clipped"):
            array = getattr(result, name).copy()
            array[..., WAYS.index(way)] = array[..., WAYS.index(other)]
            found[name] = array
        return found

    return change


def a_scale_higher(good: Any) -> Any:
    """Every rule rounds the scale of a block up."""
    return lambda x, scheme, **options: good(x, scheme, **options | {"rule": "ceil" if scheme[:2] == "mx" else None})


def unpacked(scaled: Scaled) -> int:
    return int(scaled.codes.nbytes + scaled.scales.nbytes)


FLOOR8, FLOOR4, EVEN4, CEIL4 = MX8[0], MX4[0], MX4[1], MX4[2]
MUTANTS = (
    Mutant("networks that were not trained", ("trained_networks",), change=put("right", slice(None), 0.01)),
    Mutant("a floor that rounds up", ("clipping", "definition"), "fplab.scaled.quantize", a_scale_higher, params=TINY),
    Mutant("codes a step too large", ("composed",), "quantised_by_torch",
           lambda good: lambda *args: {k: v + (k == "floor_codes") for k, v in good(*args).items()}, params=TINY),
    Mutant("nothing clipped", ("blocks_clipped",), change=as_another(FLOOR4, CEIL4)),
    Mutant("floor as good as up", ("up_in_mxfp8",), change=as_another(FLOOR8, MX8[3])),
    Mutant("floor as good as even", ("even_in_mxfp4",), change=as_another(FLOOR4, EVEN4)),
    Mutant("floor worse than ceil", ("even_in_mxfp4",), change=put("errors", np.s_[..., WAYS.index(FLOOR4)], 1)),
    Mutant("a little less than an eighth", ("blocks_clipped",),
           change=put("clipped", np.s_[..., WAYS.index(FLOOR8)], 0.1225)),
    Mutant("ceil as good as even", ("even_in_mxfp4",), change=as_another(CEIL4, EVEN4)),
    Mutant("NVFP4 no better", ("nvfp4_beats_mxfp4",), change=as_another(NVFP4, EVEN4)),
    Mutant("4 over 6 no better", ("four_over_six",), change=as_another(FOUR_OVER_SIX, NVFP4)),
    Mutant("no block takes the 4", ("four_over_six",), change=put("fours", slice(None), 0)),
    Mutant("codes of a byte", ("bits_a_value",), "fplab.scaled.Scaled.nbytes", lambda good: property(unpacked),
           params=TINY),
)  # fmt: skip

globals().update(frame(scales, scales.QUICK, MUTANTS))


@pytest.mark.parametrize("scheme", scales.UNITS)
def test_what_torch_is_given_of_blocks_is_what_the_lab_multiplies(scheme: str) -> None:
    """Pairs of codes and tiles of scales, by the unit that ``emulate`` puts in torch's place."""
    given = scales.drawn_codes(scheme)
    with emulate("B200"):
        got = scales.block_scaled(scheme, given, "cpu")
    np.testing.assert_array_equal(got["d"], scales.multiplied_by_lab(scheme, given, {"kind": "cpu"})["d"])


def test_tensors_are_of_every_linear_layer() -> None:
    right, commonest, layers = scales.trained(TINY, 2)
    assert {kind: len(found) for kind, found in layers.items()} == dict.fromkeys(scales.KINDS, 9)
    assert 0 < right < 1 > commonest
    assert all(x.dtype == np.float32 and len(x) <= 64 for found in layers.values() for x in found)
    assert all(np.abs(x).max() > 0 for x in layers["gradient"])
