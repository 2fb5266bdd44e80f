"""The experiment's figure: a row for each task."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...draw.style import Look, current, look, look_of_format, new_figure
from ...hardware.cases import Arrays
from .checks import comparison
from .data import NAMES, POLICIES, Params, sizes, tasks_of

TITLES = {"digits": "Digits, perceptron", "characters": "Characters, transformer"}
LOOKS = {"fp32": "fp32", "tf32": "tf32", "fp16": "fp16", "bf16": "bf16", "fp8_hybrid": "e4m3"}
PURE = {"pure_fp16": 7, "pure_bf16": 3}


def draw(arrays: Arrays, params: Params) -> Figure:
    """Loss curves, their distance from FP32's, and top-1 against FP32's seed by seed."""
    tasks = tasks_of(params)
    figure = new_figure(13, 0.6 + 4.1 * len(tasks))
    axes = figure.subplots(len(tasks), 3, squeeze=False, width_ratios=[1, 1, 1.25])
    for (left, middle, right), task in zip(axes, tasks, strict=True):
        losses(left, arrays, task, params)
        distances(middle, arrays, task)
        differences(right, arrays, task)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(POLICIES), handlelength=3)
    return figure


def look_of(policy: str) -> Look:
    """A policy looks like its format; the pure ones have looks of their own."""
    return look(PURE[policy]) if policy in PURE else look_of_format(LOOKS[policy])


def smooth(curves: np.ndarray) -> np.ndarray:
    """A running mean over a twentieth of the steps, along the last axis; NaN where a run has stopped."""
    width = max(1, curves.shape[-1] // 20)
    kernel = np.ones(width) / width
    return np.apply_along_axis(lambda c: np.convolve(c, kernel, "valid"), -1, curves.astype(np.float64))


def losses(ax: Axes, arrays: Arrays, task: str, params: Params) -> None:
    """The mean loss over seeds, and between which losses FP32's seeds lie."""
    curves = smooth(arrays[f"{task}_losses"])
    start = arrays[f"{task}_losses"].shape[-1] - curves.shape[-1]
    steps = np.arange(start, start + curves.shape[-1]) + 1
    low, high = curves[0].min(0), curves[0].max(0)
    ax.fill_between(steps, low, high, color=current().grid, linewidth=0)
    for policy, curve in zip(POLICIES, curves, strict=True):
        mean = curve.mean(0)
        if np.isfinite(mean).any():
            thick = 2.4 if policy == "fp32" else 1.3
            ax.plot(steps, mean, **look_of(policy).line, linewidth=thick, label=NAMES[policy])
    ax.set_yscale("log")
    ax.yaxis.set_minor_formatter("")
    ticks = [t for t in (0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4) if low.min() * 0.9 <= t <= high.max() * 1.1]
    ax.set_yticks(ticks, labels=[f"{t:g}" for t in ticks])
    ax.set_xlim(steps[0], steps[-1])
    ax.set_xlabel("training step")
    ax.set_ylabel("training loss")
    count = sizes(task, params)[1]
    ax.set_title(f"{TITLES[task]}, {count} seeds")
    ax.text(0.97, 0.95, "grey: FP32, from its\nlowest to its highest seed", transform=ax.transAxes, ha="right",
            va="top", fontsize=9, color=current().muted)  # fmt: skip


def distances(ax: Axes, arrays: Arrays, task: str) -> None:
    """How far each loss is from FP32's of the same seed and step."""
    found = arrays[f"{task}_losses"].astype(np.float64)
    for policy, curve in list(zip(POLICIES, found, strict=True))[1:]:
        apart = smooth(np.abs(curve - found[0])).mean(0)
        if np.isfinite(apart).any():
            steps = np.arange(found.shape[-1] - len(apart), found.shape[-1]) + 1
            ax.plot(steps, np.maximum(apart, 1e-9), **look_of(policy).line, linewidth=1.3)
    spread = np.abs(found[0][:, None] - found[0][None]).sum((0, 1)) / (len(found[0]) * (len(found[0]) - 1))
    spread = smooth(spread)
    steps = np.arange(found.shape[-1] - len(spread), found.shape[-1]) + 1
    ax.plot(steps, spread, color=current().ink, linewidth=2.4, alpha=0.35)
    ax.set_yscale("log")
    ax.set_ylim(None, 6 * spread.max())
    ax.text(0.97, 0.95, "thick grey: between\ntwo seeds of FP32", transform=ax.transAxes, ha="right", va="top",
            fontsize=9, color=current().muted)  # fmt: skip
    ax.set_xlim(steps[0], steps[-1])
    ax.set_xlabel("training step")
    ax.set_ylabel("|loss − FP32's loss|")
    ax.set_title("Distance from FP32, same seed")


def differences(ax: Axes, arrays: Arrays, task: str) -> None:
    """Top-1 minus FP32's of the same seed: every seed, the mean and its 95% interval, in the band of FP32's seeds."""
    top1, theme = arrays[f"{task}_top1"], current()
    compared = {policy: comparison(task, policy, arrays) for policy in POLICIES[1:]}
    band = 100 * compared["tf32"].band
    ax.axvspan(-band, band, color=theme.grid, linewidth=0, alpha=0.7)
    ax.axvline(0, color=theme.muted, linewidth=0.8)
    reach = band
    for row, policy in enumerate(POLICIES[1:]):
        c, style = compared[policy], look_of(policy)
        if np.isnan(c.mean):
            stop = int(arrays[f"{task}_stops"][row + 1].max())
            ax.text(0, row, f"stopped at step {stop}", ha="center", va="center", fontweight="bold", color=style.color)
            continue
        each = 100 * (top1[row + 1] - top1[0])
        reach = max(reach, np.abs(each).max(), 100 * abs(c.low), 100 * abs(c.high))
        ax.plot(each, np.full(len(each), row + 0.22), linestyle="", marker="|", markersize=9, color=style.color)
        ax.plot([100 * c.low, 100 * c.high], [row, row], color=style.color, linewidth=2)
        ax.plot([100 * c.mean], [row], marker=style.marker, markersize=7, color=style.color)
    for row, policy in enumerate(POLICIES[1:]):
        ax.annotate(compared[policy].verdict, (1.0, row), (4, 0), xycoords=ax.get_yaxis_transform(), va="center",
                    textcoords="offset points", fontsize=9, color=theme.muted)  # fmt: skip
    ax.set_yticks(range(len(POLICIES) - 1), labels=[NAMES[p] for p in POLICIES[1:]])
    ax.set_ylim(len(POLICIES) - 1.4, -0.6)
    ax.set_xlim(-1.1 * reach, 1.1 * reach)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("top-1 minus FP32's of the same seed (percentage points)")
    ax.set_title(f"Top-1 (FP32: {arrays[f'{task}_baseline'].mean():.1%}), grey: ±2 σ of FP32's seeds")
