"""The experiment on attention by tiles."""

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.frame import Mutant, changed, frame, put
from fplab.experiments import attention_tiles
from fplab.experiments.attention_tiles import MIDDLE, QUICK, lost, softmax

TINY = replace(QUICK, rows=4, keys=128, draws=2)


def ulp_of_exp(good: Any) -> Any:
    """An exp2 that is off by a unit in the last place."""
    return lambda x: np.nextafter(good(x), np.float32(2))


def one_softmax(x: np.ndarray) -> np.ndarray:
    """The last size of tiles, all keys, under the names of all."""
    return np.repeat(x[:, :, :, -1:], x.shape[3], axis=3)


def as_ways(*ways: int) -> Any:
    """Results of these ways under the names of all."""
    return changed("outputs", lambda x: x[:, :, list(ways)])


def coarser(at: int) -> Any:
    """Results of one size of tiles that are off by a hundredth."""
    return put("outputs", np.s_[:, :, :, at], lambda x: x * np.float32(1.01))


MUTANTS = (
    Mutant("exp2 off by an ulp", ("defined",), "fplab.tensorcore.online_softmax._exp2", ulp_of_exp, params=TINY),
    Mutant("other bits alone", ("rows_apart",), change=put("alone", (0, 0, 0), lambda x: -x)),
    Mutant("no tiles at all", ("bits",), change=changed("outputs", one_softmax)),
    Mutant("results in BF16 as unlike as in FP32", ("bits",), change=coarser(0)),
    Mutant("one order for both", ("order",), change=lambda r: {"ascending": r.outputs[:, :, 0, MIDDLE]}),
    Mutant("small tiles that err", ("accuracy",), change=coarser(0)),
    Mutant("FP16 under the name of E4M3", ("eight_bits",), change=as_ways(0, 0, 0, 0)),
    Mutant("FP16 under the name of P times 2^8", ("shift_matters_little",), change=as_ways(0, 1, 2, 0)),
    Mutant("shifted to the wrong side", ("vanishing",), change=changed("lost", lambda x: x[..., ::-1])),
)

globals().update(frame(attention_tiles, QUICK, MUTANTS))


def test_weight_is_lost_below_half_of_the_least_number() -> None:
    weights = softmax(np.array([[1.0]]), np.log(np.array([[1.0], [2.0**-10.1], [2.0**-9.9], [2.0**-11]])))
    assert lost(weights, 1.0) == weights[0, [1, 3]].sum() / weights.sum()
    assert lost(weights, 2.0**-8) == 0
