"""The experiment on one sequence alone and in a batch."""

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.frame import Mutant, frame, plus, put
from fplab.experiments import batch_invariance
from fplab.experiments.batch_invariance import EIGHT, FIXED, QUICK, RULE, WIDE

TINY = replace(QUICK, width=32, steps=2, networks=2)
FIRST, LAST = (np.s_[:, EIGHT, 0, 0, stage] for stage in (0, -2))  # alone, by the rule


def the_same_under_both(result: Any) -> dict[str, Any]:
    """Log-probabilities of the network in FP32 under the name of the one in E4M3."""
    found = result.logarithms.copy()
    found[:, EIGHT] = found[:, WIDE]
    return {"logarithms": found}


MUTANTS = (
    Mutant("the rule in the place of one plan", ("fixed",), "PLANS", lambda good: (RULE, RULE), params=TINY),
    Mutant("one plan in the place of the rule", ("by_rule",), "PLANS", lambda good: (FIXED, FIXED), params=TINY),
    Mutant("one bit of another plan's", ("by_rule",), change=plus("unlike", (0, 1, 0, 1, 1), 1)),
    Mutant("nothing stored in BF16", ("hidden",), change=lambda r: {"unlike": r.unlike[:, [WIDE, WIDE, EIGHT]]}),
    Mutant("sums in E4M3 that are not cut", ("eight_bits",), change=lambda r: {"unlike": r.unlike[:, [0, 1, 1]]}),
    Mutant("nothing spreads", ("spreading",), change=lambda r: put("unlike", LAST, r.unlike[FIRST])(r)),
    Mutant("FP32 under the name of E4M3", ("probabilities",), change=the_same_under_both),
)

globals().update(frame(batch_invariance, QUICK, MUTANTS))
