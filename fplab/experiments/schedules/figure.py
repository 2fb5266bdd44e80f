"""The experiment's figure."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...draw.style import current, look, new_figure
from ...draw.timeline import draw_timeline, pass_patches
from ...hardware.cases import Arrays
from .checks import differing, split_errors
from .data import ACCUMULATORS, SCHEDULES, SPLITS, Params, counts, timelines

TITLES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved 1F1B, two chunks a stage"}


def draw(arrays: Arrays, params: Params) -> Figure:
    """Timelines above; accumulation and split products below."""
    figure = new_figure(13, 12)
    parts: Any = figure.subfigures(2, 1, height_ratios=[1.75, 1])
    lines = timelines(params)
    end = float(max(line.span for line in lines))
    rows = parts[0].subplots(3, 2, width_ratios=[5, 1], sharey=True)
    most = arrays["activations"].max() / 1e9
    for i, (line, (ax, bars)) in enumerate(zip(lines, rows, strict=True)):
        slots = [(s.stage, s.kind, s.chunk, s.micro_batch, float(s.start), float(s.end)) for s in line.slots]
        draw_timeline(ax, slots, params.stages, end)
        ax.set_title(f"{TITLES[line.name]}: {line.bubble} of the work's time is waited")
        memory(bars, arrays["activations"][i] / 1e9, arrays["in_flight"][i], SCHEDULES[i][1], most)
    rows[0][1].set_title("activations held (GB)")
    rows[2][0].set_xlabel("time, in forward passes of a stage")
    parts[0].legend(handles=pass_patches(), loc="outside lower center", ncols=4)
    accumulated, split, error = parts[1].subplots(1, 3)
    accumulation(accumulated, arrays, params)
    splitting(split, arrays)
    errors(error, arrays)
    return figure


def memory(ax: Axes, held: np.ndarray, flights: np.ndarray, chunks: int, most: float) -> None:
    """Bytes of each stage, with what is in flight."""
    ax.barh(range(len(held)), held, height=0.7, color=current().series[5], alpha=0.55)
    for stage, (size, many) in enumerate(zip(held, flights, strict=True)):
        ax.annotate(f"{many / chunks:g} in flight", (size, stage), (4, 0), textcoords="offset points", va="center",
                    fontsize=8.5)  # fmt: skip
    ax.set_xlim(0, 1.75 * most)
    ax.grid(axis="y", visible=False)


def accumulation(ax: Axes, arrays: Arrays, params: Params) -> None:
    """Error of a running sum."""
    for i, (fmt, rounding) in enumerate(ACCUMULATORS):
        name = fmt.upper() + (", stochastic" if rounding == "stochastic" else "")
        shown = np.where(arrays["errors"][0, i] > 0, arrays["errors"][0, i], np.nan)
        ax.plot(counts(params), shown, **look(i).marked, markersize=4, label=name)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_ylim(top=3)
    ax.set_xlabel("micro-batches")
    ax.set_ylabel("relative error of the sum")
    ax.set_title("Accumulated gradients, by accumulator")
    ax.legend(ncols=2, loc="upper left")


def splitting(ax: Axes, arrays: Arrays) -> None:
    """How many results differ from one chain."""
    for i, store in enumerate(("fp32", "bf16")):
        share = 100 * differing(arrays, store).mean(axis=0)[1:]
        bars = ax.bar(np.arange(len(share)) + 0.4 * i - 0.2, share, 0.36, color=look(i).color, hatch=("", "//")[i],
                      alpha=0.8, label=f"stored in {store.upper()}")  # fmt: skip
        ax.bar_label(bars, fmt="%.3g%%", fontsize=9, padding=2)
    ax.set_xticks(range(len(SPLITS) - 1), [f"{s} ranks" for s in SPLITS[1:]])
    ax.set_ylim(0, 125)
    ax.set_ylabel("results that differ (%)")
    ax.set_title("k divided among ranks (H100, BF16)")
    ax.legend(loc="upper right", ncols=2)


def errors(ax: Axes, arrays: Arrays) -> None:
    """Error against the exact product."""
    ax.plot(SPLITS, split_errors(arrays).mean(axis=0), **look(0).marked)
    ax.set_xscale("log", base=2)
    ax.set_xticks(SPLITS, [str(s) for s in SPLITS])
    ax.set_ylim(0, None)
    ax.set_xlabel("slices of k")
    ax.set_ylabel("relative error of the FP32 results")
    ax.set_title("Shorter chains, smaller error")
