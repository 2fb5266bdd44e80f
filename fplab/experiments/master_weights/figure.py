"""The experiment's figure."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ... import formats
from ...draw.shares import magnitude_map
from ...draw.style import current, look, new_figure
from ...hardware.cases import Arrays
from .data import HALVES, LAYERS, VARIANTS, WORDS, Params, Variant, ratio_edges

FP32 = Variant("fp32", "nearest")
LOOKS = {"nearest": 1, "stochastic": 3, "kahan": 2, "master": 0}


def draw(arrays: Arrays, params: Params) -> Figure:
    """What it costs, what is lost where, and the exact criterion."""
    figure = new_figure(13, 12.5)
    grid = figure.add_gridspec(3, 1, height_ratios=[1, 1, 1.05])
    rows = [figure.add_subfigure(grid[i]) for i in range(3)]
    rows[0].suptitle(caption(arrays, params), x=0.01, ha="left", fontsize=10, color=current().muted)
    fp16, bf16, cost = rows[0].subplots(1, 3, width_ratios=[1, 1, 1.15])
    for ax, fmt in ((fp16, "fp16"), (bf16, "bf16")):
        curves(ax, arrays, params, fmt)
    costs(cost, arrays, params)
    layers16, layersbf, drift = rows[1].subplots(1, 3, width_ratios=[1, 1, 1.15])
    for ax, fmt in ((layers16, "fp16"), (layersbf, "bf16")):
        by_layer(ax, arrays, params, fmt)
    drifts(drift, arrays, params)
    map16, mapbf, rule = rows[2].subplots(1, 3, width_ratios=[1, 1, 1.15])
    for ax, fmt in ((map16, "fp16"), (mapbf, "bf16")):
        criterion(ax, arrays, fmt)
    ratios(rule, arrays)
    return figure


def caption(arrays: Arrays, params: Params) -> str:
    """One line on where the numbers come from."""
    return (
        f"A perceptron 64-{params.width}-{params.width}-10 on the UCI digits, SGD with momentum {params.momentum}; "
        f"everything but the weights is FP32; lr × steps = {params.distance:g}, "
        f"{params.seeds} seed{'s' * (params.seeds > 1)}"
    )


def smooth(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Losses averaged over up to 60 stretches of the run, and where those lie."""
    width = max(1, len(losses) // 60)
    whole = losses[: len(losses) // width * width].reshape(-1, width)
    return (np.arange(len(whole)) + 0.5) * width, whole.mean(axis=1)


def power(x: float) -> str:
    """A power of two for a label."""
    return f"$2^{{{np.log2(x):.0f}}}$"


def curves(ax: Axes, arrays: Arrays, params: Params, fmt: str) -> None:
    """The training loss at the smallest learning rate, by way of holding weights."""
    for update in ("nearest", "stochastic", "kahan", "master"):
        style = look(LOOKS[update])
        ax.plot(*smooth(arrays[f"losses_{fmt}_{update}"]), **style.line, linewidth=1.6, label=WORDS[update])
    ax.plot(*smooth(arrays["losses_fp32_nearest"]), color=current().ink, linewidth=0.9, linestyle=(0, (1, 1.5)),
            label="FP32")  # fmt: skip
    ax.set_yscale("log")
    ax.set_xlim(0, params.steps(params.rates[-1]))
    ax.set_xlabel("training step")
    ax.set_ylabel("training loss")
    ax.set_title(f"{fmt.upper()} weights, lr {power(params.rates[-1])}")
    ax.legend(loc="upper right")


def costs(ax: Axes, arrays: Arrays, params: Params) -> None:
    """The final training loss relative to FP32's, by learning rate."""
    x = np.arange(len(params.rates))
    final = arrays["final"]
    for f, fmt in enumerate(HALVES):
        for update in WORDS:
            ratio = final[VARIANTS.index(Variant(fmt, update))] / final[0]
            style = look(LOOKS[update])
            shift = (list(WORDS).index(update) - 1.5) * 0.06 + (f - 0.5) * 0.36
            low, high = ratio.min(axis=1), ratio.max(axis=1)
            mean = ratio.mean(axis=1)
            ax.errorbar(x + shift, mean, (mean - low, high - mean), color=style.color, linestyle="none",
                        marker=style.marker, markersize=6, markerfacecolor=style.color if f else "none",
                        elinewidth=1.2)  # fmt: skip
    ax.axhline(1, color=current().ink, linewidth=0.9, linestyle=(0, (1, 1.5)))
    ax.set_yscale("log")
    top = max(1.12, float((final[1:] / final[0]).max()) * 1.12)
    ax.set_ylim(min(0.95, float((final[1:] / final[0]).min()) / 1.05), top)
    ticks = [t for t in (0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 8, 12, 20) if ax.get_ylim()[0] <= t <= top]
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set_xticks(x, [f"{power(r)}\n{params.steps(r):,} steps" for r in params.rates])
    ax.set_xlim(-0.5, len(x) - 0.5)
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("learning rate")
    ax.set_ylabel("final training loss / FP32's")
    ax.set_title("The price of a smaller step")
    ax.text(0.03, 0.96, "hollow FP16, filled BF16", transform=ax.transAxes, va="top", color=current().muted)


def by_layer(ax: Axes, arrays: Arrays, params: Params, fmt: str) -> None:
    """The share of updates that left a weight as it was, by layer and step."""
    share = 100 * arrays[f"by_layer_{fmt}_nearest"]
    x = np.arange(len(share)) * params.every
    width = max(1, len(share) // 48)
    n = len(share) // width * width
    for i, name in enumerate(LAYERS):
        style = look(i)
        mean = share[:n, i].reshape(-1, width).mean(axis=1)
        ax.plot(x[:n:width], mean, **style.marked, markersize=3.5, linewidth=1.4, markevery=4, label=f"{name} layer")
    ax.set_ylim(0, 100)
    ax.set_xlim(0, x[-1])
    ax.set_xlabel("training step")
    ax.set_ylabel("updates lost (%)")
    ax.set_title(f"{fmt.upper()}, nearest: lost updates")
    ax.legend(loc="upper left")


def drifts(ax: Axes, arrays: Arrays, params: Params) -> None:
    """How far weights end from the exact sum of their updates, in the median."""
    x = np.arange(len(params.rates))
    for f, fmt in enumerate(HALVES):
        for update in WORDS:
            style = look(LOOKS[update])
            median = arrays["drift"][VARIANTS.index(Variant(fmt, update)), ..., 0].mean(axis=1)
            ax.plot(x, median, color=style.color, marker=style.marker, linewidth=1.4,
                    linestyle="-" if f else (0, (3, 2)), markerfacecolor=style.color if f else "none",
                    label=WORDS[update] if f else None)  # fmt: skip
    ax.set_yscale("log", base=2)
    ax.set_xticks(x, [power(r) for r in params.rates])
    ax.set_xlim(-0.3, len(x) - 0.7)
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("learning rate")
    ax.set_ylabel("median distance (ulps)")
    ax.set_ylim(None, ax.get_ylim()[1] * 2**5)
    ax.set_title("From the exact sum of their updates")
    ax.legend(loc="upper left", ncols=2, title="weights: dashed FP16, solid BF16", title_fontsize=9)


def criterion(ax: Axes, arrays: Arrays, fmt: str) -> None:
    """Update against weight, both as magnitudes: which sums return the weight unchanged."""
    w, u, after = arrays[f"pairs_{fmt}_nearest"]
    shown = (w != 0) & (u != 0)
    x, y = (np.log2(np.abs(v[shown].astype(np.float64))) for v in (w, u))
    left, right = -13.0, 0.0
    magnitude_map(ax, x, y, (after == w)[shown], (left, right, -32.0, -6.0), 0.125)
    form, theme = formats.get(fmt), current()
    p = form.significand_bits
    edge = np.arange(left, right + 1)
    ax.step(edge, edge - p, where="post", color=theme.ink, linewidth=1.3, label=r"$|u| = \frac{1}{2}\,\mathrm{ulp}(w)$")
    ax.plot(edge, edge - p, color=theme.ink, linewidth=1, linestyle=(0, (3, 2)), label=f"$|u| = |w|/{2**p}$")
    lost = float((after == w)[shown].mean())
    for at, text, va, color in ((0.97, f"changes the weight: {1 - lost:.0%}", "top", theme.series[0]),
                                (0.03, f"lost: {lost:.0%}", "bottom", theme.series[1])):  # fmt: skip
        ax.text(0.03, at, text, transform=ax.transAxes, va=va, fontweight="bold", color=color,
                bbox={"boxstyle": "round,pad=0.2", "fc": theme.background, "ec": "none", "alpha": 0.85})  # fmt: skip
    ax.set_xticks(range(-12, 1, 3), [f"$2^{{{e}}}$" for e in range(-12, 1, 3)])
    ax.set_yticks(range(-32, -5, 4), [f"$2^{{{e}}}$" for e in range(-32, -5, 4)])
    ax.set_xlabel("weight $|w|$")
    ax.set_ylabel("update $|u|$")
    ax.set_title(f"{fmt.upper()}: the criterion", pad=24)
    ax.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=2, borderaxespad=0, columnspacing=1.2)


def ratios(ax: Axes, arrays: Arrays) -> None:
    """The share of lost updates by the ratio of weight and update, of the run and of all significands."""
    theme = current()
    for i, fmt in enumerate(HALVES):
        p = formats.get(fmt).significand_bits
        w, u, after = (x.astype(np.float64) for x in arrays[f"pairs_{fmt}_nearest"])
        good = (np.abs(w) >= formats.get(fmt).smallest_normal) & (u != 0)
        ratio = np.log2(np.abs(w[good]) / np.abs(u[good])) - p
        edges = np.arange(-1, 3.01, 0.125)
        where = np.digitize(ratio, edges) - 1
        inside = (where >= 0) & (where < len(edges) - 1)
        many = np.bincount(where[inside], minlength=len(edges) - 1)
        gone = np.bincount(where[inside], (after == w)[good][inside], minlength=len(edges) - 1)
        style = look(i)
        ax.plot(edges[:-1] + 0.0625, 100 * gone / np.maximum(many, 1), color=style.color, linestyle="none",
                marker=style.marker, markersize=4.5, label=f"{fmt.upper()} run")  # fmt: skip
    x = np.log2(ratio_edges("fp16")) - formats.get("fp16").significand_bits
    ax.plot(x, 100 * arrays["survival"][0], color=theme.ink, linewidth=1.1, label="all significands: $2^x - 1$")
    ax.axvline(0, color=theme.muted, linewidth=1, linestyle=(0, (3, 2)))
    ax.text(-0.04, 62, "the rule: lost\nfrom $2^p$ on", ha="right", color=theme.muted)
    ax.set_xlim(-1, 3)
    ax.set_xticks(range(-1, 4), ["$2^{p-1}$", "$2^{p}$", "$2^{p+1}$", "$2^{p+2}$", "$2^{p+3}$"])
    ax.set_ylim(-3, 103)
    ax.set_xlabel("ratio $|w|/|u|$ (FP16: $2^p$ = 2048, BF16: 256)")
    ax.set_ylabel("updates lost (%)")
    ax.set_title("The 2048 rule against the exact criterion")
    ax.legend(loc="lower right")
