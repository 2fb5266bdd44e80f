"""From counts to a recommendation: which format and scale each layer's tensors stand, and what must stay FP32."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...formats import Format
from ..reporting import UNLISTED
from .format_counts import SPECIAL, ZERO, Fates, Lost, histogram, resolved
from .tensors import Array
from .watched_run import GRADIENTS, Seen

HEADROOM = 1  # binades left free below the largest value of a format, for the steps that were not watched
MOST_SCALE = 40  # the largest loss scale considered, as a power of two
TENSOR_SCALES = range(-40, 41)  # of an 8-bit tensor's own scale


class Limits(NamedTuple):
    """What a format may do to a layer: round this share of the non-zero values to zero, lose this share of changes."""

    vanish: float
    lost: float

    @property
    def subnormal(self) -> float:
        """The share of gradients that may be subnormal before a larger loss scale is worth its while."""
        return 10 * self.vanish


class Window(NamedTuple):
    """The powers of two by which gradients may be scaled in a format: ``low`` to ``high``, empty if low > high."""

    low: int
    high: int


class Choice(NamedTuple):
    """A format for a layer's tensors of a kind, at a scale of 2**log2_scale."""

    format: Format
    log2_scale: int

    def __str__(self) -> str:
        return self.format.name + (f" x2^{self.log2_scale}" if self.log2_scale else "")


@dataclass(frozen=True)
class Row:
    """A layer's tensors of a kind. ``fates``: by candidate, without a scale. ``choices``: by width, None where no
    candidate of that width loses few enough. ``lost``: their changes, of weights and states.
    """

    layer: str
    kind: str
    table: Array = field(metadata=UNLISTED)
    fates: dict[str, Fates]
    choices: dict[int, Choice | None]
    lost: Lost | None

    @property
    def judged(self) -> bool:
        """Whether any value was finite; of a layer that held infinities and NaN alone no format can be told."""
        return _finite(self.table)

    @property
    def binades(self) -> tuple[int, int] | None:
        """The lowest and the highest binade in use."""
        exponents, _ = histogram(self.table)
        return (int(exponents[0]), int(exponents[-1])) if exponents.size else None


@dataclass(frozen=True)
class LossScale:
    """The scale of the loss that one format's gradients need: 2**log2, of those between ``window.low`` and ``.high``.

    ``without`` and ``within``: what becomes of all gradients at scale 1 and at this one. ``left_out``: layers whose own
    windows this scale misses.
    """

    format: Format
    log2: int
    window: Window
    without: Fates
    within: Fates
    left_out: tuple[str, ...]

    @property
    def works(self) -> bool:
        """Whether one scale serves every layer."""
        return not self.left_out


def widths(formats: Sequence[Format]) -> dict[int, tuple[Format, ...]]:
    """The candidates by width, the widest first, each width in the order given."""
    sizes = sorted({f.bits for f in formats}, reverse=True)
    return {bits: tuple(f for f in formats if f.bits == bits) for bits in sizes}


def window(fates: Sequence[Fates], limits: Limits) -> Window:
    """Which loss scales 2**0, 2**1, ... with these fates vanish little enough and do not overflow."""
    low = next((s for s, f in enumerate(fates) if f.share("vanish") <= limits.vanish), len(fates))
    fitting = [s for s, f in enumerate(fates) if f.overflow == 0]
    return Window(low, fitting[-1] if fitting else -1)


def loss_scale(seen: Seen, fmt: Format, limits: Limits) -> LossScale | None:
    """The loss scale for a format.

    None (2**0) where hardly a gradient vanishes or is subnormal; else the middle of what serves every layer, or the
    largest that no layer overflows where no scale serves all. The windows leave out what FP32 itself does not resolve.
    """
    keys = [key for key in seen._tables if key[0] in GRADIENTS]
    tables = {key: table for key in keys if (table := resolved(seen._tables.merged([key])))[:SPECIAL].any()}
    if not tables:
        return None
    fates = {key: [seen._tables.fates(t, fmt, s) for s in range(MOST_SCALE + 1)] for key, t in tables.items()}
    windows = {key: window(f, limits) for key, f in fates.items()}
    low, high = max(w.low for w in windows.values()), min(w.high for w in windows.values())
    strict = Limits(limits.subnormal, limits.lost)
    good = max(window([_subnormal_as_lost(f) for f in f_], strict).low for f_ in fates.values())
    usable = max(high - HEADROOM, 0)
    log2 = 0 if max(low, good) == 0 else (max(low, good) + usable + 1) // 2 if max(low, good) <= usable else usable
    left_out = tuple(dict.fromkeys(layer for (_, layer), w in windows.items() if not w.low <= log2 <= w.high))
    total = seen._tables.merged(tables)
    without, within = (seen._tables.fates(total, fmt, s) for s in (0, log2))
    return LossScale(fmt, log2, Window(low, high), without, within, left_out)


def _finite(table: Array) -> bool:
    return bool(table[:SPECIAL].any() or table[ZERO].any())


def _subnormal_as_lost(fates: Fates) -> Fates:
    return fates._replace(vanish=fates.vanish + fates.underflow, underflow=0)


def rows(seen: Seen, scales: dict[Format, LossScale | None], limits: Limits) -> tuple[Row, ...]:
    """Every layer and kind, layer by layer."""
    result = []
    for layer in seen.layers():
        for kind in seen.kinds:
            if (kind, layer) not in seen._tables:
                continue
            table = seen._tables.merged([(kind, layer)])
            fates = {f.name: seen._tables.fates(table, f) for f in seen.formats}
            changed = "weights" if kind == "updates" else kind
            lost = seen._losses.get(changed, layer) if (changed, layer) in seen._losses else None
            choices = {
                bits: _choice(seen, resolved(table) if kind in GRADIENTS else table, kind, group, scales, limits, lost)
                for bits, group in widths(seen.formats).items()
            }
            result.append(Row(layer, kind, table, fates, choices, lost))
    return tuple(result)


def _choice(
    seen: Seen, table: Array, kind: str, group: Sequence[Format], scales: dict[Format, LossScale | None],
    limits: Limits, lost: Lost | None,
) -> Choice | None:  # fmt: skip
    """The first format of a width that keeps within the limits, and its scale.

    16 bits and more: gradients at the loss scale, all else as it is. Fewer: each tensor at a scale of its own, the
    largest that leaves the headroom. A state also must not lose its changes.
    """
    for fmt in group:
        if fmt.bits >= 16:
            common = scales.get(fmt)
            at = common.log2 if common is not None and kind in GRADIENTS else 0
        else:
            fitting = [s for s in TENSOR_SCALES if seen._tables.fates(table, fmt, s).overflow == 0]
            at = fitting[-1] - HEADROOM if fitting and table[:SPECIAL].any() else 0
        fates = seen._tables.fates(table, fmt, at)
        keeps = not kind.startswith("state") or lost is None or lost.share(fmt.name) <= limits.lost
        if _finite(table) and fates.overflow == 0 and fates.share("vanish") <= limits.vanish and keeps:
            return Choice(fmt, at)
    return None
