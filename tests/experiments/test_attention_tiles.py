"""The experiment on attention by tiles."""

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.frame import Mutant, frame
from fplab.experiments import attention_tiles
from fplab.experiments.attention_tiles import SHIFTED, lost, softmax

QUICK = attention_tiles.E.quick
TINY = replace(QUICK, rows=4, keys=128, draws=2)


def ulp_of_exp(good: Any) -> Any:
    """An exp2 that is off by a unit in the last place."""
    return lambda x: np.nextafter(good(x), np.float32(2))


def by_another_unit(good: Any) -> Any:
    """Products of a single row are those of a unit that keeps a bit less."""
    return lambda a, b, c=None, gpu=None: good(a, b, c, replace(gpu, alignment_bits=24) if len(a) == 1 else gpu)


PRODUCTS = "fplab.tensorcore.online_softmax."
MUTANTS = (
    Mutant("exp2 off by an ulp", ("defined",), PRODUCTS + "_exp2", ulp_of_exp, params=TINY),
    Mutant("one row by another unit", ("rows_apart",), PRODUCTS + "matmul", by_another_unit, params=TINY),
    Mutant("no tiles at all", ("bits", "order", "accuracy"), PRODUCTS + "tiles",
           lambda good: lambda keys, tile, order: good(keys, keys, order)),
    Mutant("FP16 and E4M3 exchanged", ("bits", "eight_bits", "shift_matters_little"), "WAYS",
           lambda good: {**good, "FP16": good[SHIFTED], SHIFTED: good["FP16"]}),
    Mutant("P in E5M2", ("vanishing",), "numeric.quantize",
           lambda good: lambda x, fmt: good(x, "e5m2" if fmt == "e4m3" else fmt)),
    Mutant("P times 2^-8", ("vanishing",), "lost", lambda good: lambda x, by: good(x, 1 / by)),
)  # fmt: skip

globals().update(frame(attention_tiles, QUICK, MUTANTS))


def test_weight_is_lost_below_half_of_the_least_number() -> None:
    weights = softmax(np.array([[1.0]]), np.log(np.array([[1.0], [2.0**-10.1], [2.0**-9.9], [2.0**-11]])))
    assert lost(weights, 1.0) == weights[0, [1, 3]].sum() / weights.sum()
    assert lost(weights, 2.0**-8) == 0
