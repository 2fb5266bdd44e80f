"""AMD's sums of FP8 on CDNA3: as :mod:`.two_step`, but even and odd products of a group are first summed apart.

Each of the two sums has its own largest exponent; both are rounded down to a multiple of 2**(e - F), e the larger one,
and added. In the second step a c whose exponent is below m - 25 counts as zero.
"""

from .two_step import TwoStep


class TwoStepFP8(TwoStep):
    """Groups of 16 products in two sums."""

    parts = 2


UNIT = TwoStepFP8()
