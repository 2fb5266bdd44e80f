"""The figure: the run itself, its loss scale, and how far the three GPUs' weights are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...draw.style import current, look, new_figure
from ...hardware.cases import Arrays

if TYPE_CHECKING:
    from . import Params

GPUS = ("V100", "A100", "H100")
PAIRS = ("V100 and A100", "A100 and H100", "V100 and H100")


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 8)
    figure.set_layout_engine("constrained", h_pad=0.1, w_pad=0.1)
    top = figure.add_gridspec(2, 2)
    loss(figure.add_subplot(top[0, 0]), arrays)
    scale(figure.add_subplot(top[1, 0]), arrays)
    apart(figure.add_subplot(top[0, 1]), arrays)
    spread(figure.add_subplot(top[1, 1]), arrays)
    figure.suptitle(caption(arrays, params), x=0.01, ha="left", fontsize=10, color=current().muted)
    return figure


def caption(arrays: Arrays, params: Params) -> str:
    """What was trained, and the last digests, which anyone can reproduce."""
    right, tested = arrays["right"][-1]
    digests = ", ".join(f"{gpu} {int(x):016x}" for gpu, x in zip(GPUS, arrays["digests"][:, -1], strict=True))
    return (
        f"64-{params.hidden}-{params.hidden}-16 on the UCI digits, FP16 with FP32 master weights: {params.steps} steps "
        f"of {params.batch}, {right / tested:.1%} of the test digits right\n"
        f"SHA-256 of all {arrays['final'].shape[1]:,} weights at the end, its first 64 bits: {digests}"
    )


def loss(ax: Axes, arrays: Arrays) -> None:
    """The loss of every step; the three GPUs' curves lie on each other."""
    for i, (gpu, losses) in enumerate(zip(GPUS, arrays["losses"], strict=True)):
        ax.plot(losses, **look(i).line, label=gpu, linewidth=(3.2, 2.0, 1.2)[i])
    ax.set_xlim(0, arrays["losses"].shape[1] - 1)
    ax.set_ylim(0, None)
    ax.set_ylabel("loss")
    ax.set_xlabel("step")
    ax.legend(loc="upper right")
    gap = np.abs(arrays["losses"] - arrays["losses"][-1]).max()
    ax.set_title(f"One run in the bits of three GPUs: losses at most {gap:.1e} apart")


def scale(ax: Axes, arrays: Arrays) -> None:
    """The loss scale, and the steps that overflow."""
    log2, skipped = np.log2(arrays["scales"][-1]), np.flatnonzero(arrays["skipped"][-1])
    ax.step(np.arange(len(log2)), log2, where="post", **look(0).line)
    ax.plot(skipped, log2[skipped], linestyle="none", marker="X", markersize=7, color=look(5).color,
            label="overflow: the step is skipped, the scale halved")  # fmt: skip
    ticks = range(int(log2.min()) - 1, int(log2.max()) + 2)
    ax.set_yticks(list(ticks)[::2], labels=[f"$2^{{{t}}}$" for t in list(ticks)[::2]])
    ax.set_xlim(-1, len(log2) - 1)
    ax.set_xlabel("step")
    ax.set_ylabel("loss scale")
    ax.legend(loc="upper right")
    ax.set_title("The dynamic loss scale (H100)")


def apart(ax: Axes, arrays: Arrays) -> None:
    """The share of the weights that differ in any bit, by step, and the median distance."""
    for i, (pair, counts) in enumerate(zip(PAIRS, arrays["apart"], strict=True)):
        ax.plot(100 * counts / arrays["final"].shape[1], **look(i + 1).line, label=pair)
    ax.set_xlim(0, arrays["apart"].shape[1] - 1)
    ax.set_ylim(0, 100)
    ax.set_xlabel("step")
    ax.set_ylabel("weights that differ (%)")
    ax.legend(loc="lower right")
    ax.set_title("Weights that differ in any bit")


def spread(ax: Axes, arrays: Arrays) -> None:
    """How far apart the last weights are, in units of FP32's last place."""
    all_pairs = arrays["spread"].sum(axis=0)
    top = int(np.flatnonzero(all_pairs > all_pairs.sum() / 1000)[-1]) + 2
    for i, (pair, counts) in enumerate(zip(PAIRS, arrays["spread"], strict=True)):
        ax.plot(np.arange(len(counts[:top])), 100 * counts[:top] / counts.sum(), **look(i + 1).marked, label=pair)
    ticks = [0, *range(3, top, 2)]
    ax.set_xticks(ticks, labels=["same", *(f"$2^{{{t - 1}}}$" for t in ticks[1:])])
    ax.set_ylim(0, None)
    ax.set_xlabel("distance of a weight at the end, by binade of FP32 ulp")
    ax.set_ylabel("of all weights (%)")
    ax.legend(loc="upper right")
    ax.set_title("How far apart the weights end")
