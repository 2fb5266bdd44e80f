"""What a quantiser does between two values of its codebook: rules as records, and what libraries really do."""

from dataclasses import dataclass

from ..errors import chosen, door, own_integer


@door
@dataclass(frozen=True)
class Rule:
    """One way from a block's elements to codes.

    ``name``; ``source``: whose it is. ``even_ties``: an exact tie goes to the value of even rank, else to the lower.
    ``exact_midpoints``: the midpoint of two values is the real number, else ``(a + b) * 0.5`` rounded to float32.
    ``divides``: an element is divided by its block's maximum, else multiplied by the maximum's rounded reciprocal.
    ``clamps``: a maximum below 1e-38 counts as that before its reciprocal is taken; else that of the smallest is
    infinite: an element becomes the last value or the first by its sign, and 0 the first.
    ``look_up``: 0, or the size of a table of evenly spaced elements which alone are compared with the values.
    ``zeros_as_zero``: a block of zeros gets the code nearest to 0, else code 0, whatever that reads as.
    ``keeps_sign``: an element with the sign bit, -0 too, never becomes 0 but at least the value below it.
    """

    name: str
    source: str
    even_ties: bool = True
    exact_midpoints: bool = True
    divides: bool = True
    clamps: bool = True
    look_up: int = 0
    zeros_as_zero: bool = True
    keeps_sign: bool = False

    def __post_init__(self) -> None:
        if self.look_up:
            own_integer(self, "look_up", 2, 1 << 24)


EVEN = Rule("even", "the nearest value; ties to even rank, as bitsandbytes' CUDA search resolves them")
LOWER = Rule("lower", "the nearest value; ties to the lower, as the first argmin of |Q - x| does", even_ties=False)
SIGN = Rule(
    "sign kept",
    "nearest, and one rank down where a negative element would become 0: 8-bit optimizers in csrc/kernels.cu",
    keeps_sign=True,
)
CUDA = Rule(
    "bitsandbytes cuda", "dQuantize<0> in csrc/kernels.cu", exact_midpoints=False, divides=False, zeros_as_zero=False
)
TORCH = Rule("bitsandbytes torch", "bitsandbytes/backends/default/ops.py, torch.bucketize", even_ties=False,
             exact_midpoints=False, divides=False)  # fmt: skip
CPU = Rule("bitsandbytes cpu", "csrc/cpu_ops.cpp, a table of 65,536 entries", even_ties=False, exact_midpoints=False,
           divides=False, clamps=False, look_up=1 << 16, zeros_as_zero=False)  # fmt: skip
RULES = {rule.name: rule for rule in (EVEN, LOWER, SIGN, CUDA, TORCH, CPU)}
"""How a tie between two values of a codebook is decided, by name."""


def get(ties: str | Rule) -> Rule:
    """The rule of a name."""
    return chosen("ties", ties, RULES, Rule)
