"""The figure: curves that look like one, where they part, how far, and what it changes."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ...draw.style import Look, current, label_ends, look, new_figure
from ...hardware.cases import Arrays
from .data import RUNS, TENSORS, Params, right

LOOKS = {"V100": 1, "A100": 2, "H100": 0, "one weight": 6, "all weights": 4, "FP32": 5}
NAMES = {
    "one weight": "H100, one weight + 1 ulp", "all weights": "H100, all weights + 1 ulp",
    "FP32": "FP32, no Tensor Core", "V100": "V100", "A100": "A100", "H100": "H100",
}  # fmt: skip
PARTING = ("V100", "A100", "all weights", "FP32")


def style(name: str) -> Look:
    """The look of a run in every panel."""
    return look(LOOKS[name])


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 12.5)
    figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.1)
    axes = figure.subplots(3, 2)
    losses(axes[0, 0], arrays)
    apart(axes[0, 1], arrays)
    distances(axes[1, 0], arrays)
    shares(axes[1, 1], arrays)
    first_step(axes[2, 0], arrays)
    answers(axes[2, 1], arrays)
    return figure


def losses(ax: Axes, arrays: Arrays) -> None:
    """The losses of every run: one curve a seed to the eye."""
    steps = np.arange(arrays["losses"].shape[-1])
    for name in ("V100", "A100", "H100", "FP32"):
        for seed, curve in enumerate(arrays["losses"][:, RUNS.index(name)]):
            ax.plot(steps, curve, **style(name).line, linewidth=1.2, alpha=0.9, label=name if seed == 0 else None)
    ax.set_xlabel("step")
    ax.set_ylabel("loss")
    ax.set_ylim(0)
    ax.set_xlim(0, steps[-1])
    ax.legend(loc="lower left")
    ax.set_title(f"{len(arrays['losses'])} seeds: one curve each, to the eye")


def apart(ax: Axes, arrays: Arrays) -> None:
    """How far the losses are from the H100's, the median over seeds."""
    found = np.abs(arrays["losses"].astype(np.float64) - arrays["losses"][:, [RUNS.index("H100")]])
    curves(ax, found, "difference of the loss from H100's")
    ax.set_title("beneath, they part from the first step on")


def distances(ax: Axes, arrays: Arrays) -> None:
    """How far the weights are from the H100's."""
    curves(ax, arrays["distance"], r"$\|w - w_{H100}\| \; / \; \|w_{H100}\|$", ("one weight", *PARTING))
    ax.set_title("the weights drift, as after a change of last bits")


def curves(ax: Axes, found: np.ndarray, label: str, names: tuple[str, ...] = PARTING) -> None:
    """Each seed thin and the median of the seeds thick, logarithmic; zeros are left out."""
    steps = np.arange(1, found.shape[-1] + 1)
    ends = []
    for name in names:
        every = found[:, RUNS.index(name)]
        middle = np.median(every, axis=0)
        middle = np.where(middle > 0, middle, np.nan)
        for curve in every:
            ax.plot(steps, np.where(curve > 0, curve, np.nan), color=style(name).color, linewidth=0.6, alpha=0.4)
        ax.plot(steps, middle, **style(name).line)
        ends.append((float(middle[np.isfinite(middle)][-1]), NAMES[name], style(name).color))
    ax.set_yscale("log")
    ax.set_xlim(1, steps[-1])
    ax.set_xlabel("step")
    ax.set_ylabel(label)
    label_ends(ax, ends)


def shares(ax: Axes, arrays: Arrays) -> None:
    """The share of weights whose bits are not the H100's."""
    steps, ends = np.arange(1, arrays["differ"].shape[-1] + 1), []
    for name in ("V100", "A100", "FP32"):
        middle = np.median(arrays["differ"][:, RUNS.index(name)], axis=0)
        ax.plot(steps, middle, **style(name).line, clip_on=False)
        ends.append((float(middle[-1]), NAMES[name], style(name).color))
    ax.set_ylim(0, 1)
    ax.set_xlim(1, steps[-1])
    ax.yaxis.set_major_formatter(PercentFormatter(1, 0))
    ax.set_xlabel("step")
    ax.set_ylabel("weights with other bits than on H100")
    label_ends(ax, ends)
    ax.set_title("soon few weights have the H100's bits")


def first_step(ax: Axes, arrays: Arrays) -> None:
    """Where the first step parts: the share of each tensor's elements, in the order of computation."""
    rows = np.arange(len(TENSORS))
    for offset, name in ((-0.2, "V100"), (0.2, "A100")):
        found = arrays["first"][0, RUNS.index(name)]
        hatch = "" if name == "V100" else "///"
        ax.barh(rows + offset, found, 0.36, color=style(name).color, hatch=hatch, edgecolor=current().background,
                linewidth=0, label=name)  # fmt: skip
        for y, share in zip(rows + offset, found, strict=True):
            inside = share > 0.85
            ax.text(share + (-0.01 if inside else 0.01), y, f"{share:.1%}" if share < 0.1 else f"{share:.0%}",
                    va="center", ha="right" if inside else "left", fontsize=8,
                    color=current().background if inside else current().ink)  # fmt: skip
    ax.set_yticks(rows, TENSORS)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1, 0))
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("elements with other bits than on H100, in the first step of the first seed")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.set_title("the first product starts it")


def answers(ax: Axes, arrays: Arrays) -> None:
    """Right answers of every run, seed by seed."""
    count = right(arrays)
    seeds = len(count)
    for i, name in enumerate(RUNS):
        x = np.arange(seeds) + (i - (len(RUNS) - 1) / 2) * 0.09
        ax.plot(x, count[:, i], linestyle="none", marker=style(name).marker, color=style(name).color,
                label=NAMES[name], markersize=6)  # fmt: skip
    middle, room = (count.max() + count.min()) / 2, max(6, np.ptp(count))
    ax.set_ylim(middle - 1.1 * room, middle + 1.1 * room)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xticks(range(seeds), [f"seed {s}" for s in range(seeds)])
    ax.set_xlim(-0.5, seeds - 0.5)
    ax.grid(visible=False, axis="x")
    ax.set_ylabel(f"right of {len(arrays['labels'])} test digits")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    ax.set_title("how many digits each run reads")
