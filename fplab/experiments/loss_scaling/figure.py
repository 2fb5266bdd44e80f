"""The experiment's figure."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...draw.style import current, look, new_figure
from ...hardware.cases import Arrays
from .data import TASKS, Params

SCORES = {"autoencoder": "explained variance (test)", "classifier": "accuracy (test)"}
ZERO, SKIPPED = 1, 5  # series, as the fates "zero" and "overflow" are drawn elsewhere


def draw(arrays: Arrays, params: Params) -> Figure:
    """What is learned at each scale, why, and how the dynamic scale moves."""
    figure = new_figure(13, 12.5)
    grid = figure.add_gridspec(3, 1, height_ratios=[1.1, 1, 1])
    rows = [figure.add_subfigure(grid[i]) for i in range(3)]
    rows[0].suptitle(caption(params), x=0.01, ha="left", fontsize=10, color=current().muted)
    for ax, task in zip(rows[0].subplots(1, 2), TASKS, strict=True):
        score(ax, arrays, params, task)
    curve, layers = rows[1].subplots(1, 2)
    curves(curve, arrays, params)
    by_layer(layers, arrays, params)
    for ax, task in zip(rows[2].subplots(1, 2), TASKS, strict=True):
        trace(ax, arrays, task)
    return figure


def caption(params: Params) -> str:
    """One line on where the numbers come from."""
    products = f"{params.gpu} products" if params.gpu else "products accumulated in FP32"
    return (
        f"Digits; weights, activations and gradients stored in FP16, {products}, FP32 master weights, Adam; "
        "mean losses as they are"
    )


def powers(exponents: tuple[int, ...]) -> list[int]:
    """Ticks for scales: every fourth binade."""
    return [e for e in exponents if e % 4 == 0]


def score(ax: Axes, arrays: Arrays, params: Params, task: str) -> None:
    """The score against the static scale (below 0 as 0), over the shares that underflow and that overflow."""
    x = np.array(params.exponents)
    found = arrays[f"{task}_score"]
    right = ax.twinx()
    width = 0.8 * params.every
    theme = current()
    zeros = 100 * arrays[f"{task}_zeros"].mean(axis=1)
    skipped = 100 * arrays[f"{task}_skipped"]
    right.bar(x, zeros, width, color=theme.series[ZERO], alpha=0.45, label="zero gradients (mean of layers)")
    right.bar(x, skipped, width, color=theme.series[SKIPPED], alpha=0.35, hatch="xxx", edgecolor=theme.background,
              linewidth=0, label="skipped steps")  # fmt: skip
    right.set_ylim(0, 135)
    right.set_yticks(range(0, 101, 25))
    right.set_ylabel("zero gradients, skipped steps (%)")
    right.spines["right"].set_visible(True)
    right.grid(visible=False)
    ax.set_zorder(right.get_zorder() + 1)
    ax.patch.set_visible(False)
    ax.plot(x, np.maximum(found[:-2], 0), **look(0).marked, label="static scale")
    ax.axhline(found[-2], **look(2).line, linewidth=1.4, label="dynamic scale")
    ax.axhline(found[-1], color=theme.ink, linewidth=1.1, linestyle=(0, (1, 1.5)), label="FP32")
    top = 1.35 * max(found[-2:])
    ax.set_ylim(0, top)
    ax.set_xlim(x[0] - 0.6 * params.every, x[-1] + 0.6 * params.every)
    ticks = powers(params.exponents)
    ax.set_xticks(ticks, [f"$2^{{{e}}}$" for e in ticks])
    ax.set_xlabel("loss scale")
    ax.set_ylabel(SCORES[task])
    ax.set_title("The autoencoder needs a scale" if task == TASKS[0] else "The classifier does not")
    handles = [*ax.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    ax.legend(handles=handles, loc="upper left", ncols=2, columnspacing=1.2)


def smooth(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Losses averaged over up to 60 stretches of the run, and where those lie."""
    width = max(1, len(losses) // 60)
    whole = losses[: len(losses) // width * width].reshape(-1, width)
    return (np.arange(len(whole)) + 0.5) * width, whole.mean(axis=1)


def curves(ax: Axes, arrays: Arrays, params: Params) -> None:
    """The autoencoder's training loss."""
    shown = (("$2^0$", arrays["autoencoder_losses"][0], look(ZERO)),
             ("$2^{24}$", arrays["autoencoder_losses"][-1], look(SKIPPED)),
             ("dynamic", arrays["autoencoder_losses_dynamic"], look(2)))  # fmt: skip
    for name, losses, style in shown:
        ax.plot(*smooth(losses), **style.line, linewidth=1.6, label=f"scale {name}")
    ax.plot(*smooth(arrays["autoencoder_losses_fp32"]), color=current().ink, linewidth=1, linestyle=(0, (1, 1.5)),
            label="FP32")  # fmt: skip
    ax.set_yscale("log")
    ax.set_xlim(0, params.steps[0])
    ax.set_xlabel("training step")
    ax.set_ylabel("training loss")
    ax.set_title("The autoencoder: unscaled it learns the mean image")
    ax.legend(loc="center right")


def by_layer(ax: Axes, arrays: Arrays, params: Params) -> None:
    """The share of zeros in each layer's gradients, at the smallest scales."""
    shown = [i for i, e in enumerate(params.exponents) if e in (0, 2, 4, 6, 8)]
    x = np.arange(1, params.layers + 1)
    for n, i in enumerate(shown):
        style = look((ZERO, 0, 2, 3, 4)[n])
        label = f"scale $2^{{{params.exponents[i]}}}$"
        ax.plot(x, 100 * arrays["autoencoder_zeros"][i], **style.marked, label=label)
    ax.axvline(params.layers / 2 + 0.5, color=current().muted, linewidth=0.9, linestyle=(0, (3, 2)))
    ax.text(params.layers / 2 + 0.3, 99, "encoder", ha="right", va="top", color=current().muted)
    ax.text(params.layers / 2 + 0.7, 99, "decoder", ha="left", va="top", color=current().muted)
    ax.set_ylim(-2, 103)
    ax.set_xticks(x)
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("layer")
    ax.set_ylabel("gradients that are zero (%)")
    ax.set_title("The autoencoder: the encoder's gradients underflow first")
    ax.legend(loc="center right")


def trace(ax: Axes, arrays: Arrays, task: str) -> None:
    """The dynamic scale of every step, and the steps it skipped."""
    scales, skipped = np.log2(arrays[f"{task}_trace"]), arrays[f"{task}_overflows"]
    steps = np.arange(len(scales))
    ax.step(steps, scales, where="post", color=look(2).color, linewidth=1.6)
    at = np.flatnonzero(skipped)
    ax.plot(at, scales[at], linestyle="none", marker="X", markersize=8, color=current().series[SKIPPED],
            label=f"overflow: step skipped, scale halved ({len(at)})", clip_on=False)  # fmt: skip
    low, high = int(scales.min()) - 1, int(scales.max()) + 2
    ax.set_ylim(low, high)
    ticks = range(low + 1, high, max(1, (high - low) // 6))
    ax.set_yticks(list(ticks), [f"$2^{{{e}}}$" for e in ticks])
    ax.set_xlim(0, len(scales))
    ax.set_xlabel("training step")
    ax.set_ylabel("dynamic loss scale")
    ax.set_title(f"The dynamic scale of the {task}")
    ax.legend(loc="lower right")
