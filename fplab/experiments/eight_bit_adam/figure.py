"""The experiment's figure."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...draw.style import current, look, new_figure
from ...hardware.cases import Arrays
from .data import HOLD, NAMES, TRACES, Params, finals, unstable

LOOKS = (4, 1, 7, 0, 2, 6, 3, 5)


def draw(arrays: Arrays, params: Params) -> Figure:
    """All panels."""
    figure = new_figure(13, 9.5)
    (curves, rates), (counts, held) = figure.subplots(2, 2, width_ratios=[1, 1.15])
    by_step(curves, arrays, params)
    by_rate(rates, arrays, params)
    table(counts, arrays, params)
    traces(held, arrays)
    handles, names = curves.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=4)
    return figure


def smooth(losses: np.ndarray) -> np.ndarray:
    """A running mean over a twelfth of the run."""
    width = max(losses.shape[-1] // 12, 1)
    found: np.ndarray = np.convolve(losses, np.ones(width) / width, mode="valid")
    return found


def by_step(ax: Axes, arrays: Arrays, params: Params) -> None:
    """The loss of each variant, at the middle learning rate and the first seed; as it is where it diverges."""
    rate = (len(params.rates) - 1) // 2
    losses = arrays["losses"][:, rate, 0]
    start = float(losses[0, 0])
    top, gone = 1.25 * start, 0
    for v, name in enumerate(NAMES):
        line, style = smooth(losses[v]), look(LOOKS[v])
        if line[-1] <= top:
            ax.plot(np.arange(line.size) + params.steps - line.size, line, **style.line, linewidth=1.5, label=name)
            continue
        ax.plot(losses[v], **style.line, linewidth=1.5, label=name)
        left = int(np.argmax(~(losses[v] <= top)))
        ax.text(0.98, 0.96 - 0.05 * gone, f"{name}: off the scale from step {left} on", transform=ax.transAxes,
                ha="right", va="top", fontsize=9, color=style.color)  # fmt: skip
        gone += 1
    low = min(float(np.nanmin(losses)), start)
    ax.set_ylim(low - 0.05 * start, top)
    ax.set_xlim(0, params.steps)
    ax.set_xlabel("step")
    ax.set_ylabel("training loss (nats), running mean")
    ax.set_title(f"A run at learning rate {params.rates[rate]:g}")


def by_rate(ax: Axes, arrays: Arrays, params: Params) -> None:
    """The final loss of every run, and each variant's mean, beside each other for every learning rate."""
    end = finals(arrays["losses"])
    off = end > 1.25 * arrays["losses"][0, 0, 0, 0]
    end[off] = np.nan
    top = float(np.nanmax(end))
    for v in range(len(NAMES)):
        style = look(LOOKS[v])
        for r in range(len(params.rates)):
            x = r + 0.1 * (v - 3.5)
            there = np.isfinite(end[v, r])
            ax.plot(np.full(there.sum(), x), end[v, r][there], linestyle="none", marker=style.marker, color=style.color,
                    markersize=4.5, alpha=0.85)  # fmt: skip
            broken = int((~there).sum())
            if broken:
                ax.annotate(f"{broken}×", (x, top), (0, 8), textcoords="offset points", ha="center", fontsize=8,
                            color=style.color)  # fmt: skip
    ax.set_xticks(range(len(params.rates)), labels=[f"{rate:g}" for rate in params.rates])
    ax.set_xlim(-0.5, len(params.rates) - 0.5)
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("learning rate")
    ax.set_ylabel("final training loss (nats)")
    ax.set_title("Every run: one marker a seed; above: how many diverged")


def table(ax: Axes, arrays: Arrays, params: Params) -> None:
    """Unstable runs and state bytes of each variant, as bars."""
    bad = unstable(arrays["losses"]).sum((1, 2))
    runs = len(params.rates) * len(params.seeds)
    each = bytes_each(arrays)
    for v in range(len(NAMES)):
        style = look(LOOKS[v])
        ax.barh([-v], [100 * bad[v] / runs], color=style.color, height=0.6)
        note = f"{bad[v]} of {runs};  {each[v]:.2f} bytes a parameter"
        ax.text(100 * bad[v] / runs + 1.5, -v, note, va="center", fontsize=9, color=current().muted)
    ax.set_yticks([-v for v in range(len(NAMES))],
                  labels=[name.replace(" + stable", "\n+ stable").replace(", ", ",\n") for name in NAMES])  # fmt: skip
    ax.set_xlim(0, 180)
    ax.set_xticks(range(0, 101, 25))
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("unstable runs (%)")
    ax.set_title("Unstable runs, and the bytes of both states")


def bytes_each(arrays: Arrays) -> np.ndarray:
    """Bytes of states for each parameter; the stable embedding's layer norm makes a few parameters more."""
    whole = {stable: arrays["state_bytes"][NAMES.index(name)] / 8
             for stable, name in ((False, "32-bit"), (True, "32-bit + stable embedding"))}  # fmt: skip
    return np.array([size / whole["stable" in name] for name, size in zip(NAMES, arrays["state_bytes"], strict=True)])


def traces(ax: Axes, arrays: Arrays) -> None:
    """A second moment whose gradient ended, under three ways to store it."""
    for row, (name, style) in enumerate(zip(TRACES, (4, 0, 3), strict=True)):
        label = {"exact": "float32", "nearest": "8 bits, nearest: the code stays,\nthe block's scale grows",
                 "stochastic": "8 bits, stochastic (mean)"}[name]  # fmt: skip
        line = look(style)
        ax.plot(arrays["traces"][row], color=line.color, linestyle=":" if name == "stochastic" else "-",
                linewidth=2.6 if name == "stochastic" else 1.6, label=label)  # fmt: skip
    ax.axvline(HOLD, color=current().muted, linewidth=1, linestyle=(0, (3, 2)))
    ax.annotate("the gradient ends", (HOLD, 0.97), (6, 0), xycoords=("data", "axes fraction"), fontsize=9, va="top",
                textcoords="offset points", color=current().muted)  # fmt: skip
    ax.set_xlim(0, arrays["traces"].shape[1])
    ax.set_ylim(0, None)
    ax.set_xlabel("step")
    ax.set_ylabel("second moment $v$")
    ax.set_title("Why states are rounded stochastically")
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, 0.24))
