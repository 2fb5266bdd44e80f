"""The experiment's figure."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...draw.calibration import magnitude_histogram, ranges
from ...draw.style import current, look, new_figure
from ...hardware.cases import Arrays
from ...integers import CALIBRATORS
from ...integers.calibration import START
from .checks import INT4, INT8, WITHIN
from .data import BITS, LAYERS, RULES, SCHEMES, THROUGH, Params

TITLES = [rule.title for rule in CALIBRATORS]
NAMES = {"conv1": "conv1: the images", "conv2": "conv2", "conv3": "conv3", "linear": "linear"}


def draw(arrays: Arrays, params: Params) -> Figure:
    """Histograms and ranges; error and accuracy after quantisation; divergences, and the epoch through integers."""
    figure = new_figure(14, 14)
    grid = figure.add_gridspec(3, 1, height_ratios=[1.15, 1.0, 1.0])
    rows = [figure.add_subfigure(grid[i]) for i in range(3)]
    rows[0].suptitle(caption(arrays, params), x=0.01, ha="left", fontsize=10, color=current().muted)
    axes = rows[0].subplots(2, len(LAYERS), height_ratios=[1.2, 1], sharex="col", sharey="row")
    for layer, name in enumerate(LAYERS):
        magnitude_histogram(axes[0, layer], arrays["counts"][layer], float(arrays["widths"][layer]))
        axes[0, layer].set_title(NAMES[name])
        amax = arrays["amax"][0, :, 0, :, layer]
        ranges(axes[1, layer], TITLES, {"INT8": amax[INT8], "INT4": amax[INT4]})
        axes[1, layer].set_xlabel("magnitude of the layer's inputs")
    axes[0, 0].set_ylim(0.5, 4 * arrays["counts"].max())
    axes[0, 0].set_ylabel("values")
    axes[1, 0].set_ylabel("range by rule")
    axes[1, -1].legend(loc="upper left")
    error, accuracy = rows[1].subplots(1, 2)
    by_rule(error, 100 * np.nanmean(arrays["errors"], axis=0))
    error.set_yscale("log")
    error.minorticks_off()
    error.yaxis.set_major_formatter("{x:g}")
    error.set_ylabel("error of the logits (%)")
    error.set_title("After training: error by rule")
    tested = int(arrays["tested"][0])
    by_rule(accuracy, 100 * np.nanmean(arrays["right"], axis=0) / tested)
    fp32 = 100 * arrays["fp32_right"].mean() / tested
    band(accuracy, fp32)
    accuracy.set_yscale("function", functions=(stretched, shrunk))
    accuracy.set_ylim(0, 100)
    accuracy.set_yticks([0, 50, 80, 90, 95, 98, 100])
    accuracy.set_ylabel("test digits right (%)")
    accuracy.set_title("After training: accuracy by rule")
    rows[1].legend(handles=handles(), loc="outside lower center", ncols=7)
    cuts, epoch = rows[2].subplots(1, 2)
    divergences(cuts, arrays, params)
    through(epoch, arrays, fp32)
    return figure


def caption(arrays: Arrays, params: Params) -> str:
    """One line on where the numbers come from."""
    right = arrays["fp32_right"].mean() / arrays["tested"][0]
    runs = "one run" if params.seeds == 1 else f"the average of {params.seeds} runs"
    return (
        f"A convolutional net on the UCI digits, trained in FP32 for {params.epochs} epochs ({right:.1%} of the test "
        f"digits right; {runs}). Histograms over the training images, {params.bins:,} bins at first."
    )


def stretched(y: np.ndarray) -> np.ndarray:
    """Room for what is near 100%: minus the logarithm of the error."""
    scaled: np.ndarray = -np.log(np.maximum(101.5 - np.asarray(y, np.float64), 1e-6))
    return scaled


def shrunk(y: np.ndarray) -> np.ndarray:
    """The inverse of :func:`stretched`."""
    back: np.ndarray = 101.5 - np.exp(-np.asarray(y, np.float64))
    return back


def band(ax: Axes, fp32: float) -> None:
    """FP32's accuracy, and one per cent of the digits below it."""
    theme = current()
    ax.axhspan(fp32 - 100 * WITHIN, fp32, color=theme.grid, zorder=0)
    ax.axhline(fp32, color=theme.ink, linewidth=1.0)


def by_rule(ax: Axes, values: np.ndarray) -> None:
    """Values (bits, schemes, rules) as points: colours for bits, markers for schemes, rules along the axis."""
    for b in range(len(BITS)):
        for s in range(len(SCHEMES)):
            x = np.arange(len(RULES)) + 0.24 * (b - 1) + 0.055 * (s - 1.5)
            ax.plot(x, values[b, s], linestyle="none", marker=look(s).marker, color=look(b).color, markersize=5.5)
    for edge in np.arange(len(RULES) - 1) + 0.5:
        ax.axvline(edge, color=current().grid, linewidth=0.7)
    ax.set_xticks(np.arange(len(RULES)), TITLES)
    ax.set_xlim(-0.5, len(RULES) - 0.5)
    ax.grid(visible=False, axis="x")


def handles() -> list[Line2D]:
    """Legend handles: bits by colour, schemes by marker."""
    theme = current()
    lines = [Line2D([], [], color=look(b).color, linewidth=5, label=f"INT{bits}") for b, bits in enumerate(BITS)]
    for s, scheme in enumerate(SCHEMES):
        inputs = "affine" if scheme.zero_point else "symmetric"
        lines.append(Line2D([], [], linestyle="none", marker=look(s).marker, color=theme.ink,
                            label=f"weights per {scheme.along}, inputs {inputs}"))  # fmt: skip
    return lines


def divergences(ax: Axes, arrays: Arrays, params: Params) -> None:
    """The entropy rule's divergence against the cut, for INT4, in the first two layers."""
    for layer in (0, 1):
        found = arrays["divergences"][layer]
        found = found[~np.isnan(found)]
        x = 100 * (np.arange(len(found)) + START) / (len(found) + START - 1)
        style = look(1 - layer)
        shown = np.where(np.isfinite(found), np.maximum(found, 1e-4), np.nan)
        each = slice(None) if layer == 0 else slice(None, None, 8)  # the first layer's are few, the second's a curve
        ax.plot(x[each], shown[each], color=style.color, linestyle="none", marker=".", markersize=3)
        finite = np.flatnonzero(found == found.min())[-1]
        ax.plot(x[finite], shown[finite], marker=style.marker, markersize=9, color=style.color, linestyle="none",
                label=f"{LAYERS[layer]}: keeps {x[finite]:.0f}% of the range", clip_on=False)  # fmt: skip
    ax.set_yscale("log")
    ax.minorticks_off()
    ax.set_ylim(8e-5, None)
    ax.set_yticks([1e-4, 1e-3, 1e-2, 1e-1, 1], ["0", "0.001", "0.01", "0.1", "1"])
    ax.set_xlim(0, 101)
    ax.set_xlabel("bins kept (% of the range seen)")
    ax.set_ylabel("divergence (nats), 0 at the bottom")
    ax.set_title(f"Entropy in INT4, {params.bins:,} bins: cut to one grey value, all agrees")
    ax.legend(loc="lower right")


def through(ax: Axes, arrays: Arrays, fp32: float) -> None:
    """Accuracy over one epoch of training through the quantisers."""
    tested = int(arrays["tested"][0])
    band(ax, fp32)
    for i, (bits, rule, learned) in enumerate(THROUGH):
        style = look(1)
        right = 100 * arrays["qat_right"][:, i].mean(axis=0) / tested
        ax.plot(arrays["steps"], right, color=style.color, marker=style.marker, clip_on=False,
                linestyle="-" if learned else (0, (2, 1.5)), markerfacecolor=None if learned else "none",
                label=f"INT{bits} from {rule}, {'learned' if learned else 'fixed'} ranges")  # fmt: skip
    ax.set_yscale("function", functions=(stretched, shrunk))
    ax.set_ylim(0, 100)
    ax.set_yticks([0, 50, 80, 90, 95, 98, 100])
    ax.set_xlim(0, arrays["steps"][-1])
    ax.set_xlabel("training step of one epoch")
    ax.set_ylabel("test digits right (%)")
    ax.set_title("Training through integers (grey: within 1% of FP32)")
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.46))
