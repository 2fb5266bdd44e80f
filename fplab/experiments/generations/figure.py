"""The figure: the probes' bits, sums that fall, summation trees, and where a real product differs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ...draw.style import current, label_ends, look, new_figure
from ...draw.tree import sum_tree
from ...hardware.cases import Arrays
from ...reveal import SumTree
from . import product, sweep
from .probes import FP8_GPUS, FP8_PROBES, FP16_PROBES, GENERATIONS, GPUS

if TYPE_CHECKING:
    from . import Params

FIRSTS = tuple(family[0] for family in GENERATIONS.values())
SHOWN = ("V100", "A100", "H100")  # of each family
LOOKS = {"V100": 1, "A100": 2, "H100": 0, "B200": 3, "Ada": 5}
WHY = (
    "Filled: not the exact sum, rounded once.\n"
    "Before they are added, all terms of a block are cut\n"
    "to multiples of $2^{e-F}$, with $e$ the largest exponent.\n"
    "FP16: $F$ = 23 on V100, 24 from T4 to L40S, 25 from H100.\n"
    "FP8: $F$ = 13 on Ada and Hopper, 25 on Blackwell."
)
ULPS = (0, 1, 2, 4, 16, 64)  # edges of the classes of differences in the maps


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 16.5)
    figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.1)
    rows = figure.add_gridspec(4, 1, height_ratios=[1.05, 0.8, 0.8, 1.1])
    tables = rows[0].subgridspec(1, 2, width_ratios=[1.75, 1])
    probe_table(figure.add_subplot(tables[0]), arrays, "fp16")
    probe_table(figure.add_subplot(tables[1]), arrays, "fp8")
    falls = rows[1].subgridspec(1, 3)
    trees = rows[2].subgridspec(1, 3)
    for i in range(3):
        falling(figure.add_subplot(falls[i]), arrays, i)
        one_tree(figure.add_subplot(trees[i]), arrays, i)
    real = rows[3].subgridspec(1, 3, width_ratios=[1.12, 1, 1])
    pairs(figure.add_subplot(real[0]), arrays, params)
    maps = [figure.add_subplot(real[1]), figure.add_subplot(real[2])]
    for ax, (one, other) in zip(maps, (("V100", "A100"), ("A100", "H100")), strict=True):
        difference_map(ax, arrays, one, other)
    map_legend(maps[1])
    return figure


# --- probes -----------------------------------------------------------------------------------------------------


def probe_table(ax: Axes, arrays: Arrays, kind: str) -> None:
    """Bits by probe and GPU; a cell is filled and says how far off it is where it is not the exact sum, rounded."""
    theme = current()
    if kind == "fp16":
        probes, gpus = FP16_PROBES, FIRSTS
        heads = [(family[0] if len(family) == 1 else "\n".join(family)) for family in GENERATIONS.values()]
        cells = arrays["fp16_probes"][:, [GPUS.index(gpu) for gpu in gpus]]
    else:
        probes, gpus, cells = FP8_PROBES, FP8_GPUS, arrays["fp8_probes"]
        heads = ["Ada", "H100\nwgmma", "B200\ntcgen05"]
    left, last = (1.75, len(gpus)) if kind == "fp16" else (2.0, len(gpus))
    ax.set_xlim(-left, last + 1)
    ax.set_ylim(len(FP16_PROBES), -1.3)
    ax.axis("off")
    for j, head in enumerate([*heads, "exact, to\nnearest"]):
        ax.text(j + 0.5, -0.12, head, ha="center", va="bottom", fontsize=8.5, fontweight="bold", linespacing=1.1)
    for i, probe in enumerate(probes):
        ax.text(-left, i + 0.5, probe.label, va="center", fontsize=9.5)
        want = int(arrays[f"{kind}_exact"][i])
        for j, got in enumerate([*cells[i].tolist(), want]):
            off = int(product.ordered(np.uint32(got)) - product.ordered(np.uint32(want)))
            fill = {"facecolor": theme.sign, "hatch": ""} if off else {"facecolor": theme.grid, "alpha": 0.55}
            if j < len(gpus):
                ax.add_patch(Rectangle((j + 0.03, i + 0.06), 0.94, 0.88, linewidth=0, **fill))
            ax.text(j + 0.5, i + 0.36, f"{got:08x}", ha="center", va="center", fontsize=9, family="monospace")
            says = _says(got, off, j == len(gpus) or kind == "fp8")
            ax.text(j + 0.5, i + 0.7, says, ha="center", va="center", fontsize=7.5,
                    color=theme.ink if off else theme.muted)  # fmt: skip
    names = {"fp16": "FP16 products: bits of the FP32 result", "fp8": "FP8 (E4M3) products"}
    ax.set_title(names[kind])
    if kind == "fp8":
        ax.text(-left, len(probes) + 0.5, WHY, va="top", fontsize=9, color=theme.muted, linespacing=1.5)


def _says(bits: int, off: int, as_value: bool) -> str:
    """What stands below a cell's bits: its value, or how far off it is."""
    value = float(np.uint32(bits).view(np.float32))
    if as_value:
        return f"{value:.10g}" if 1e-3 < abs(value) < 1e6 else f"{value:.4g}"
    if not off:
        return "as exact"
    return "nothing left" if bits == 0 else f"{-off:,} ulp lost" if off < 0 else f"{off:,} ulp too much"


# --- sums that fall ---------------------------------------------------------------------------------------------


def falling(ax: Axes, arrays: Arrays, i: int) -> None:
    """The sum against c, one size of products; the family that falls is the one whose line steps down at c = 1."""
    count, exponent = sweep.PRODUCTS[i]
    theme, c = current(), arrays["sweep_c"].view(np.float32).astype(np.float64)
    unit = 2.0**-24
    x = (c - 1) / unit
    ax.plot(x, x + 4, color=theme.muted, linewidth=1, linestyle=(0, (1, 1.5)))
    ends = [(float(x[-1] + 4), "exact", theme.muted)]
    fallen = []
    for gpu in SHOWN:
        style, row = look(LOOKS[gpu]), arrays["sweep"][i, GPUS.index(gpu)]
        y = (row.view(np.float32).astype(np.float64) - 1) / unit
        falls = bool(sweep.falls(row))
        fallen += [gpu] * falls
        ax.plot(x, y, color=style.color, linewidth=2.4 if falls else 1.2, linestyle=style.linestyle,
                marker=style.marker, markersize=5 if falls else 3, zorder=3 if falls else 2)  # fmt: skip
        ends.append((float(y[-1]), gpu, style.color))
        if falls:
            at = sweep.BELOW
            ax.annotate("falls", (x[at], y[at]), (14, -20), textcoords="offset points", color=style.color, fontsize=9,
                        fontweight="bold", arrowprops={"arrowstyle": "-|>", "color": style.color})  # fmt: skip
    ax.axvline(0, color=theme.muted, linewidth=0.8, linestyle=(0, (3, 2)))
    ax.set_xlim(x[0], x[-1])
    ax.set_xlabel("$(c - 1) / 2^{-24}$")
    if i == 0:
        ax.set_ylabel("(sum $-$ 1) / $2^{-24}$")
    ax.set_title(rf"$c + {count} \times 2^{{{exponent}}}$: {' '.join(fallen) or 'none'} not monotonic")
    if i == 0:
        ax.text(0.03, 0.95, "a GPU of each family", transform=ax.transAxes, fontsize=8.5, color=theme.muted, va="top")
    label_ends(ax, ends)


# --- trees ------------------------------------------------------------------------------------------------------


def one_tree(ax: Axes, arrays: Arrays, i: int) -> None:
    """The summation tree of one family."""
    gpu = SHOWN[i]
    tree = SumTree.from_sizes(arrays["tree_sizes"][GPUS.index(gpu)])
    sum_tree(ax, tree, style=look(LOOKS[gpu]), labels=18)
    others = list(GENERATIONS.values())[i]
    widest = max(tree.widths)
    ax.set_title(f"{' '.join(others)}: {widest - 1} + 1 terms at once")
    if i == 0:
        ax.text(0, -0.13, "term 0 is $c$, the others are products", transform=ax.transAxes, fontsize=8.5,
                color=current().muted, va="top")  # fmt: skip


# --- the real product -------------------------------------------------------------------------------------------


def pairs(ax: Axes, arrays: Arrays, params: Params) -> None:
    """How many elements differ: FP32 above the diagonal, stored as FP16 below it."""
    theme = current()
    names = (*GPUS, "exact")
    results = [*arrays["real"], arrays["real_exact"]]
    half = [product.stored(bits) for bits in results]
    n = len(names)
    for i in range(n):
        for j in range(n):
            if i == j:
                ax.add_patch(Rectangle((j, i), 1, 1, facecolor=theme.grid, linewidth=0))
                continue
            x = results if j > i else half
            count = int((x[i] != x[j]).sum())
            color = theme.sign if j > i else theme.fraction
            if count:
                ax.add_patch(Rectangle((j, i), 1, 1, facecolor=color, linewidth=0))
            ax.text(j + 0.5, i + 0.5, f"{count:,}", ha="center", va="center", fontsize=7.5,
                    color=theme.ink if count else theme.muted)  # fmt: skip
    ax.set_xlim(0, n)
    ax.set_ylim(n, 0)
    ax.set_aspect("equal")
    ax.set_xticks(np.arange(n) + 0.5, names, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(np.arange(n) + 0.5, names)
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set_title(f"{results[0].size:,} correlations of digits, K = {params.images:,}")
    ax.set_xlabel("elements that differ: above in FP32, below stored as FP16")


def difference_map(ax: Axes, arrays: Arrays, one: str, other: str) -> None:
    """By how much every element differs between two GPUs."""
    x, y = (arrays["real"][GPUS.index(gpu)] for gpu in (one, other))
    ulps = np.abs(product.ordered(x) - product.ordered(y))
    classes = np.searchsorted(ULPS, ulps, side="right") - 1
    ax.imshow(classes, cmap=ListedColormap(_shades()), vmin=0, vmax=len(ULPS) - 1, interpolation="nearest")
    ax.set_xticks([0, 16, 32, 48, 63])
    ax.set_yticks([0, 16, 32, 48, 63])
    ax.grid(visible=False)
    ax.set_xlabel("pixel  (empty lines: pixels that never change)")
    ax.set_ylabel("pixel")
    ax.set_title(f"{one} against {other}")


def _shades() -> list[Any]:
    """From nothing, for no difference, through the theme's second colour to its ink."""
    return [*((*to_rgb(current().series[1]), share) for share in (0, 0.25, 0.5, 0.75, 1)), current().ink]


def map_legend(ax: Axes) -> None:
    """What the colours of the maps mean."""
    edges = [*(str(u) if v == u + 1 else f"{u} to {v - 1}" for u, v in itertools.pairwise(ULPS))]
    texts = ["same bits", *edges[1:], f"{ULPS[-1]} and more"]
    patches = [
        Patch(facecolor=shade, edgecolor=current().muted, linewidth=0.5, label=text)
        for shade, text in zip(_shades(), texts, strict=True)
    ]
    ax.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.02, 1), title="ulp of FP32", fontsize=8.5)
