"""What papers leave open and only hardware can settle: each is a switch of the models, or a case that a GPU records."""

from __future__ import annotations

from dataclasses import dataclass

from ..words import Text, say


@dataclass(frozen=True)
class Question:
    """Something only hardware can settle. ``options``: fields of a :class:`.Model` that choose between the answers."""

    name: str
    text: Text
    options: tuple[str, ...] = ()


QUESTIONS: tuple[Question, ...] = (
    Question(
        "floor",
        say(
            "Is emax never less than a floor (Khattak & Mikaitis), or does every zero factor and a zero c count with "
            "exponent -126 (MMA-Sim)? The answers differ where all terms of a block are tiny, or where a zero meets a "
            "large factor."
        ),
        ("floor_rule",),
    ),
    Question(
        "subnormal c", say("Does a subnormal FP16 c align at exponent -14 or at its true exponent?"), ("c_exponent",)
    ),
    Question(
        "zero signs",
        say("Which sign have (-0) + (-0), and a negative sum that rounds to zero?"),
        ("negative_zeros", "zero_from_below"),
    ),
    Question(
        "specials",
        say(
            "Which payload and sign has each NaN result, and does an FP32 overflow give infinity or the largest value?"
        ),
        ("overflow",),
    ),
    Question(
        "order of k",
        say(
            "Which plan do library products follow: one chain, several accumulators, split-K? Where do alpha, beta and "
            "the output cast round, and are TF32 operands truncated or rounded first? (Plan and `conversion` choose.)"
        ),
    ),
    Question(
        "wgmma FP8", say("FP8 by wgmma with c not zero and chained over a long k; its FP16 output; its floor there.")
    ),
    Question(
        "mma FP8",
        say("FP8 to FP32 by mma.sync on Hopper; the floor inside the widened path, for E5M2 products below 2**-21."),
    ),
    Question("FP8 floor", say("The floor of emax for FP8 inputs with FP16 output on Ada and Hopper; taken as none.")),
    Question(
        "zero group",
        say(
            "Does a group of 16 scaled products that sums to zero count toward emax with the exponents of its scales "
            "(MMA-Sim), or not at all? Taken as counting."
        ),
        ("zero_group",),
    ),
    Question("convolutions", say("Which product a convolution becomes, and its order of k.")),
    Question(
        "Matrix Cores",
        say(
            "AMD: the sign and payload of a NaN; whether XF32 makes an infinity of the NaN 0x7F800001; and the models "
            "themselves, of which later versions of MMA-Sim differ (CDNA1: one exact sum a group)."
        ),
    ),
)
"""What is not known of these units, each with the GPU's answer that would settle it."""
