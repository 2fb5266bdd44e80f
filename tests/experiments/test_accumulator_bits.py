"""The experiment on accumulators of any width."""

import dataclasses

from experiments.frame import Mutant, frame
from fplab.experiments import accumulator_bits
from fplab.experiments.accumulator_bits import PROMOTED

UNIT = "fplab.tensorcore.exploration.unit"
TRAINED = ("trained",)


def always(**fields):
    """A unit that has these fields whatever was asked for."""
    return lambda good: lambda like, *rest: dataclasses.replace(good(like, *rest), **fields)


def more_guards(good):
    """A unit whose guard bits are three more than was asked for."""
    return lambda like, bits, guards, *rest: good(like, bits, guards + 3, *rest)


MUTANTS = (
    Mutant("accumulators of 24 bits whatever is asked", ("width", "too_few"), UNIT,
           always(kept_bits=23, alignment_bits=23)),
    Mutant("accumulators of three bits whatever is asked", ("enough",), UNIT,
           lambda good: lambda like, bits, *rest: good(like, 3 if bits < 24 else bits, *rest)),
    Mutant("no guard bits whatever is asked", ("guards", "nearest"), UNIT,
           lambda good: lambda like, bits, guards, *rest: good(like, bits, 0, *rest)),
    Mutant("three guard bits more than asked", ("agrees",), UNIT, more_guards),
    Mutant("no promotion", ("promoted",), "UNITS", lambda good: {**good, PROMOTED: {"guard_bits": 0}}),
)  # fmt: skip

globals().update(frame(accumulator_bits, accumulator_bits.E.quick, MUTANTS))
