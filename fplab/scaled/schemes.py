"""Schemes as frozen records: which elements, which scales, for what, chosen how, and in whose bits.

A new scheme is one record and no new code::

    >>> from fplab.formats import Format
    >>> e5m3 = Format("ue5m3", 5, 3, signed=False)
    >>> Scheme("mine", get("e2m1"), e5m3, block=(1, 64)).rule
    'nearest'
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ..errors import LabError, chosen, demand_types, one_of, summary, unknown
from ..formats import Format, get
from ..words import mark

Block = tuple[int, int] | Literal["row", "tensor"]
OCP = "OCP Microscaling Formats (MX) 1.0"
CURRENT = "Transformer Engine, per-tensor current and delayed scaling; torchao, float8"

RULES: dict[str, dict[str, str]] = {
    "power": {
        "floor": mark(
            "2**(floor(log2 a) - emax), emax the exponent of the largest element: what is above it saturates"
        ),
        "ceil": mark("one power more where a is no power of two"),
        "even": mark("floor, after a's significand was rounded to the bits of the element's fraction, ties up"),
        "rceil": mark("a times FP32's 1 / max, max the largest element, rounded up to a power of two"),
    },
    "narrow": {
        "nearest": "a / max in units of the tensor's scale, rounded to nearest, saturating",
        "4over6": "that, or 1.5 times that, at which E2M1's a is a 4: the one of smaller summed error, in a tie the 6",
        "4over6_mse": "the same by squared errors",
    },
    "fp32": {"divide": "max / a, rounded once", "pow2": "the fraction of that dropped"},
}
"""By the kind of scale, how the largest magnitude a of a block becomes one, and in whose bits."""
VARIANTS: dict[str, dict[str, str]] = {
    "power": {
        "torchao": "a NaN or infinity makes its block NaN (code 255), and so does rounding up to infinity",
        "te": "a NaN does not count for a; infinity gives code 254, whose elements become 0; at code 0 elements stay",
    },
    "narrow": {
        "te": "d = RNE(a (g fl(1/6))), g = 448 * 6 / amax; elements times 1 / (d fl(1/g)); -0 becomes 0",
        "torchao": "s = amax / (448 * 6); d = RNE((a / 6) / s), at least 2**-6; elements times fl(1/s) / d",
    },
    "fp32": {
        "te": "an a of 0, infinity or NaN gives 1; scales dequantise as 1 / (max / a); where that is infinite it is "
        "FP32's largest, of blocks that of the tensor's format",
        "torchao": "a counts at least 1e-12",
        "deepgemm": "a counts at least 1e-4; a / max dequantises and its reciprocal quantises; pow2 rounds up",
    },
}
"""By the kind of scale, where one library's bits differ from another's."""


@dataclass(frozen=True)
class Scheme:
    """One way to quantise with scales.

    ``element``: the format of the elements, at most 8 bits, and ``scale``: that of the scales: "e8m0", one of at most
    8 bits, or "fp32"; records or names. ``block``: elements that share a scale, (1, n) along the axis, (m, n) along the
    axis before it too, "row" for the whole axis, or "tensor". ``tensor``: "tensor" or "row" for a second scale, in
    FP32, else "". ``rule``, ``variant``: how a scale is chosen and in whose bits, of :data:`RULES` and
    :data:`VARIANTS`; "" is the first that the kind of scale has. ``source``: where it is defined.
    """

    name: str
    element: Format
    scale: Format
    block: Block = (1, 32)
    tensor: str = ""
    rule: str = ""
    variant: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        demand_types(self, "element", "scale", "block")
        settle = partial(object.__setattr__, self)
        settle("element", get(self.element))
        settle("scale", get(self.scale))
        settle("block", _block(self.block))
        e, s = self.element, self.scale
        if not (e.bits <= 8 and e.has_negative_zero and not e.ties_by_code and e.emin > -90):
            raise LabError(
                f"element={e.name!r} is not possible; allowed: signed formats of at most 8 bits with a zero."
            )
        narrow = s.bits <= 8 and s.zero and s.emin > -90 and s.has_negative_zero >= s.signed and not s.ties_by_code
        if s.name not in ("e8m0", "fp32") and not narrow:
            raise LabError(f"scale={s.name!r} is not possible; allowed: e8m0, fp32, or a format of at most 8 bits.")
        for field, allowed in (("rule", RULES[self.kind]), ("variant", VARIANTS[self.kind])):
            given = getattr(self, field) or next(iter(allowed))
            one_of(f"{field} of {s.name} scales", given, allowed)
            settle(field, given)
        if self.tensor not in ("", "tensor", "row"):
            raise unknown("second scale", self.tensor, ["tensor", "row"])
        if self.tensor and (self.kind != "narrow" or isinstance(self.block, str)):
            raise LabError(f"tensor={self.tensor!r} is a second scale, beside narrow ones of blocks; leave it out.")
        if self.tensor == "row" and self.block[0] != 1:
            raise LabError(f"tensor='row' is a second scale of each row, and block={self.block!r} has several rows.")
        if self.four_over_six and (self.variant != "te" or e.name != "e2m1" or isinstance(self.block, str)):
            raise LabError(f"rule={self.rule!r} is Transformer Engine's of E2M1: variant='te', blocks such as (1, 16).")

    @property
    def kind(self) -> str:
        """Which rules and variants there are: "power" of two, "narrow" floats, or "fp32"."""
        return {"e8m0": "power", "fp32": "fp32"}.get(self.scale.name, "narrow")

    @property
    def four_over_six(self) -> bool:
        """Whether each block chooses between two scales."""
        return self.rule.startswith("4over6")

    @property
    def top(self) -> float:
        """What the largest magnitude is in units of a second scale: the largest scale times the largest element.

        4 over 6 leaves room above: E4M3's 256, of which 1.5 times is a scale, too, for 448, of which it is none.
        """
        return (2.0**self.scale.emax if self.four_over_six else self.scale.max) * self.element.max

    def __str__(self) -> str:
        return self.name


def _block(block: Any) -> Block:
    """The block of a scheme as plain integers, or the rule."""
    if isinstance(block, str) and block in ("row", "tensor"):
        return "row" if block == "row" else "tensor"
    if isinstance(block, tuple | list) and len(block) == 2 and all(isinstance(n, int) and 0 < n < 2**31 for n in block):
        return int(block[0]), int(block[1])
    raise LabError(f'block={summary(block)} is not possible; allowed: two integers such as (1, 32), "row", "tensor".')


E4M3, E5M2, E2M1, E8M0, FP32 = map(get, ("e4m3", "e5m2", "e2m1", "e8m0", "fp32"))
TABLE = (
    Scheme("mxfp8_e4m3", E4M3, E8M0, source=OCP),
    Scheme("mxfp8_e5m2", E5M2, E8M0, source=OCP),
    Scheme("mxfp6_e3m2", get("e3m2"), E8M0, source=OCP),
    Scheme("mxfp6_e2m3", get("e2m3"), E8M0, source=OCP),
    Scheme("mxfp4", E2M1, E8M0, source=OCP),
    Scheme("nvfp4", E2M1, E4M3, (1, 16), "tensor", source="Pretraining LLMs with NVFP4 (arXiv 2509.25149)"),
    Scheme("nvfp4_e8m0", E2M1, E8M0, (1, 16), rule="rceil", source="PTX ISA, mxf4nvf4 with ue8m0 scales"),
    Scheme("fp8_block", E4M3, FP32, (1, 128), rule="pow2", source="DeepSeek-V3 (arXiv 2412.19437)"),
    Scheme("fp8_row", E4M3, FP32, "row", source="torchao, float8 rowwise"),
    Scheme("fp8_tensor", E4M3, FP32, "tensor", source=CURRENT),
    Scheme("fp8_tensor_e5m2", E5M2, FP32, "tensor", source=CURRENT),
)
SCHEMES: dict[str, Scheme] = {"mxfp8": TABLE[0]} | {scheme.name: scheme for scheme in TABLE}
"""Every scheme by its name."""


def get_scheme(scheme: str | Scheme, **changes: Any) -> Scheme:
    """The record of a name, or the record itself, with what is not None among ``changes``."""
    record = chosen("scheme", scheme, SCHEMES, Scheme)
    given = {field: value for field, value in changes.items() if value is not None}
    return replace(record, **given) if given else record
