"""Updates that leave a weight as it was: which ones, what the rule of 2^p says of it, and their picture."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from .. import draw, formats
from ..words import CLAUSE, joined, say
from .outcomes import Outcome, failed, passed

# A format, weights and updates that are not zero, float64, and whether their sum is the weight.
Sums: TypeAlias = tuple[str, np.ndarray, np.ndarray, np.ndarray]


def lost_by_criterion(w: np.ndarray, u: np.ndarray, fmt: str) -> np.ndarray:
    """Whether RNE gives w + u = w for u != 0, by comparison with half the gap beside w; w, u float64 in ``fmt``, exact.

    The gap is ulp(w), but half of that below a power of two, towards zero; a tie goes to w if its significand is even.
    """
    form = formats.get(fmt)
    exponent = np.maximum(np.frexp(w)[1] - 1, form.emin)
    ulp = np.ldexp(1.0, exponent - form.fraction_bits)
    units = np.abs(w) / ulp
    inward = (units == 2.0**form.fraction_bits) & (np.sign(u) != np.sign(w)) & (exponent > form.emin)
    half_gap = np.where(inward, ulp / 4, ulp / 2)
    lost = (np.abs(u) < half_gap) | ((np.abs(u) == half_gap) & (units % 2 == 0))
    return np.asarray(lost & (u != 0) & (w != 0))


def half_gap(sums: Iterable[Sums]) -> Outcome:
    """Half the gap beside the weight names every lost update, and no other."""
    texts = []
    for fmt, w, u, lost in sums:
        if wrong := int((lost_by_criterion(w, u, fmt) != lost).sum()):
            return failed(say("{fmt}: {wrong:,} of {of:,} differ", fmt=fmt, wrong=wrong, of=lost.size))
        texts.append(say("{fmt}: {share:.1%} of {of:,} lost", fmt=fmt, share=lost.mean(), of=lost.size))
    return passed(joined(texts, CLAUSE))


def ratio_rule(sums: Iterable[Sums]) -> Outcome:
    """A ratio |w|/|u| of 2^p is necessary for a loss, twice that sufficient; between them some survive.

    Of weights that are normal numbers.
    """
    texts = []
    for fmt, *columns in sums:
        form = formats.get(fmt)
        w, u, lost = (x[np.abs(columns[0]) >= form.smallest_normal] for x in columns)
        w, u, limit = np.abs(w), np.abs(u), 2.0**form.significand_bits
        doomed, certain = w >= limit * u, w >= 2 * limit * u  # products by powers of two: exact
        between = doomed & ~certain
        alive, limits = int((between & ~lost).sum()), {"limit": f"{limit:.0f}", "twice": f"{2 * limit:.0f}"}
        if (lost & ~doomed).any() or (certain & ~lost).any():
            detail = say("{fmt}: a ratio below {limit} is lost, or one of {twice} and more is not", fmt=fmt)
            return failed(detail.fill(**limits))
        if not alive:
            return failed(say("{fmt}: no ratio between {limit} and {twice} survives", fmt=fmt).fill(**limits))
        detail = say("{fmt}: of {n:,} ratios between {limit} and {twice}, {share:.0%} survive", fmt=fmt)
        texts.append(detail.fill(n=int(between.sum()), share=alive / between.sum(), **limits))
    return passed(joined(texts, CLAUSE))


def draw_lost_updates(
    ax: draw.Axes, w: np.ndarray, u: np.ndarray, lost: np.ndarray, fmt: str, extent: tuple[int, int, int, int]
) -> None:
    """Update against weight, both as magnitudes, with the criterion and the rule: which sums return the weight.

    ``extent``: base-2 logarithms, of weights (left, right) and updates (bottom, top).
    """
    from ..draw.shares import FATE_SERIES, magnitude_map

    form, theme = formats.get(fmt), draw.current()
    moving, shown = u != 0, (u != 0) & (w != 0)
    x, y = (np.log2(np.abs(v[shown].astype(np.float64))) for v in (w, u))
    left, right, bottom, top = extent
    magnitude_map(ax, x, y, lost[shown], extent, 0.125)
    p, edge = form.significand_bits, np.arange(left, right + 1)
    ax.step(edge, edge - p, where="post", color=theme.ink, linewidth=1.2, label=r"$|u| = \frac{1}{2}\,\mathrm{ulp}(w)$")
    ax.plot(edge, edge - p, color=theme.ink, linewidth=1, linestyle=(0, (3, 2)), label=f"$|u| = |w|/{2**p}$")
    paper = {"fc": theme.background, "ec": "none"}
    smallest = form.emin - form.fraction_bits - 1
    if smallest > bottom:
        ax.axhline(smallest, color=theme.ink, linewidth=1, linestyle=(0, (1, 1.5)))
        ax.text(left + 0.2, smallest - 0.5, f"below $2^{{{smallest}}}$: $u$ itself is zero", fontsize=9, va="top",
                bbox={"boxstyle": "round,pad=0.1", "alpha": 0.7, **paper})  # fmt: skip
    share = lost[moving].mean()
    for at, text, part, fate in ((0.97, "changes the weight", 1 - share, "normal"), (0.04, "lost", share, "zero")):
        ax.text(0.03, at, f"{text}: {draw.percent(part)}", transform=ax.transAxes, va="top" if at > 0.5 else "bottom",
                fontweight="bold", color=theme.series[FATE_SERIES[fate]],
                bbox={"boxstyle": "round,pad=0.2", "alpha": 0.85, **paper})  # fmt: skip
    draw.power_ticks(ax.xaxis, range(left, right + 1, 2))
    draw.power_ticks(ax.yaxis, range(bottom, top + 1, 4))
    ax.set(xlabel="weight $|w|$", ylabel="update $|u|$")
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=2, borderaxespad=0, columnspacing=1.2)
