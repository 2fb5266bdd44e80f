"""Checkpointing: activations that are computed again instead of kept, and what that costs.

Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost (arXiv 1604.06174): keep the inputs of segments of a
deep network, drop the rest, and run a segment again when the backward pass comes to it. Its rule, segments of sqrt(L)
layers, is for layers that save as much as their input; a transformer's layer saves 17 times that and more, so every
layer by itself is best up to a depth that the formula gives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from .. import draw
from ..hardware.cases import Arrays, Case, Meta
from ..memory import Transformer, activations
from ..words import say
from .base import Claims, Columns, Digested, Experiment, Tick, one_threaded, sheet
from .memory_measured import batch_of
from .memory_measured import tokens_of as tokens_from
from .outcomes import Outcome, failed, passed, verdict
from .statistics import superior

if TYPE_CHECKING:
    import torch
    from matplotlib.axis import Axis
    from torch import nn

    from ..memory.networks import Network

UNIT = {"fp32": 4, "bf16": 2}
PRECISIONS = tuple(UNIT)
SHOWN = ("none", "segments of 1", "segments of 4")  # the ways whose memory is drawn through a step
SEEDS = (66, 67, 68)  # of dropout; the first is what everything but new random numbers is measured with


@dataclass(frozen=True)
class Params:
    """A deep and narrow transformer and its batch. ``layers`` is a power of two."""

    layers: int = 32
    hidden: int = 64
    heads: int = 2
    vocabulary: int = 128
    sequence: int = 64
    batch: int = 3

    @property
    def model(self) -> Transformer:
        return Transformer("deep", self.layers, self.hidden, self.heads, self.vocabulary, self.sequence)

    @property
    def segments(self) -> tuple[int, ...]:
        """Layers of a segment: 1, 2, 4 and so on to all of them."""
        return tuple(2**i for i in range(self.layers.bit_length()))

    @property
    def ways(self) -> tuple[str, ...]:
        """Nothing computed again, the attention's core, segments of so many layers."""
        return ("none", "selective", *(f"segments of {k}" for k in self.segments))


QUICK = Params(layers=8)


@dataclass(frozen=True)
class Result:
    """Bytes and operations, int64.

    ``differ`` (precision, way): bytes of the gradients that differ from those of "none"; ``without_random`` (precision,
    seed, 2): the same of segments of one layer that draw new random numbers when they run again, and all bytes.
    ``saved`` (precision, way): alive after the forward pass; ``peak`` (precision, way): the most that is alive beside
    parameters and gradients. ``formula_saved`` and ``formula_peak``: by the formula. ``work`` (way,): floating-point
    operations of the products, as torch counts them, FP32; ``forward``: those of a forward pass. ``history``: bytes
    alive through a step, FP32, of each way in :data:`SHOWN`.
    """

    params: Params
    differ: np.ndarray
    without_random: np.ndarray
    saved: np.ndarray
    peak: np.ndarray
    formula_saved: Digested
    formula_peak: Digested
    work: np.ndarray
    forward: np.ndarray
    history: dict[str, np.ndarray]


def network_of(params: Params, way: str, precision: str = "fp32", device: str = "cpu") -> nn.Module:
    """A module from (tokens, targets) to the loss; the same weights for every way."""
    inner = inner_network(params, precision, device, "selective" if way == "selective" else "none")
    return segmented(inner, int(way.split()[-1])) if way.startswith("segments") else inner


def inner_network(params: Params, precision: str, device: str = "cpu", recompute: str = "none") -> Network:
    """The lab's network of the configuration."""
    import torch

    from ..memory.networks import build

    return build(params.model, device, {"fp32": torch.float32, "bf16": torch.bfloat16}[precision], recompute)


def segmented(inner: Network, size: int, keep_random: bool = True) -> nn.Module:
    """The network with its layers in segments of ``size``, of which the inputs alone are kept.

    ``keep_random``: set the random generator back before a segment runs again, so that dropout drops the same values.
    """
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Segments(nn.Module):
        """One module in the place of all layers."""

        def __init__(self, layers: nn.ModuleList) -> None:
            super().__init__()
            self.inner = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for first in range(0, len(self.inner), size):
                part = nn.Sequential(*self.inner[first : first + size])
                x = checkpoint(part, x, use_reentrant=False, preserve_rng_state=keep_random)
            return x

    inner.layers = nn.ModuleList([Segments(inner.layers)])
    return inner


def tokens_of(params: Params) -> tuple[torch.Tensor, torch.Tensor]:
    return tokens_from(params.model, params.batch, key=66)


def gradients(module: nn.Module, inputs: tuple[torch.Tensor, ...], seed: int = SEEDS[0]) -> np.ndarray:
    """The bits of all gradients of one step, end to end, as uint8; dropout is drawn from the seed."""
    import torch

    devices = [inputs[0].device] if inputs[0].is_cuda else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        module.zero_grad(set_to_none=True)
        module(*inputs).backward()
    found = [p.grad.reshape(-1).view(torch.uint8).cpu() for p in module.parameters() if p.grad is not None]
    return torch.cat(found).numpy()


@one_threaded
def run(params: Params, tick: Tick) -> Result:
    ways, history, without_random = params.ways, {}, []
    differ, saved, peak = (np.zeros((len(PRECISIONS), len(ways)), np.int64) for _ in range(3))
    inputs = tokens_of(params)
    for p, precision in enumerate(PRECISIONS):
        plain = gradients(network_of(params, "none", precision), inputs)
        for w, way in enumerate(ways):
            tick(0.7 * (p * len(ways) + w) / (2 * len(ways)), f"{precision}, {way}")
            module = network_of(params, way, precision)
            differ[p, w] = np.count_nonzero(gradients(module, inputs) != plain)
            saved[p, w], peak[p, w], alive = tracked(module, inputs)
            if precision == "fp32" and way in SHOWN:
                history[way] = alive
        rows = []
        for seed in SEEDS:
            kept = plain if seed == SEEDS[0] else gradients(network_of(params, "none", precision), inputs, seed)
            anew = gradients(segmented(inner_network(params, precision), 1, keep_random=False), inputs, seed)
            rows.append([np.count_nonzero(anew != kept), kept.size])
        without_random.append(rows)
    tick(0.7, "operations")
    work = np.array([operations(network_of(params, way), inputs) for way in ways])
    forward = np.array([operations(network_of(params, "none"), inputs, backward=False)])
    tick(1.0, "done")
    return Result(
        params, differ, np.array(without_random), saved, peak, by_formula(params, saved_bytes),
        by_formula(params, peak_bytes), work, forward, history,
    )  # fmt: skip


def tracked(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[int, int, np.ndarray]:
    """Bytes saved by the forward pass, the peak beside parameters and gradients, and the bytes alive all along."""
    from ..memory.measuring import Tracker

    with Tracker() as tracker:
        tracker.mark(inputs, "inputs")
        tracker.mark(module.parameters(), "parameters")
        tracker.mark([p.grad for p in module.parameters() if p.grad is not None], "gradients")
        tracker.restart()
        before = tracker.total
        tracker.history.clear()
        loss = module(*inputs)
        tracker.mark([loss], "loss")
        saved = tracker.total - before - tracker.live["loss"]
        loss.backward()
        return saved, tracker.peak - before, np.array(tracker.history) - before


def operations(module: nn.Module, inputs: tuple[torch.Tensor, ...], backward: bool = True) -> int:
    """Floating-point operations of the products of a step, or of its forward pass, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        loss = module(*inputs)
        if backward:
            loss.backward()
    return int(counter.get_total_flops())


# --- the formula ------------------------------------------------------------------------------------------------
def by_formula(params: Params, function: Callable[[Params, str, int], int]) -> np.ndarray:
    return np.array([[function(params, way, UNIT[p]) for way in params.ways] for p in PRECISIONS])


@functools.lru_cache(maxsize=256)
def _parts(params: Params, width: int) -> dict[str, int]:
    """Bytes of the ends, of a layer, of its input and of its attention's core, as the lab's network saves them.

    The terms of :mod:`fplab.memory.activations`, the norms' statistics, and a causal mask for each layer.
    """
    c, shape, tokens = params.model, (params.batch, params.sequence, width), params.batch * params.sequence
    terms = activations.layer_terms(c, *shape)
    statistic = 2 * tokens * width  # of one norm; the CPU's are as wide as its input
    mask = params.sequence**2
    ends = activations.total((*activations.embedding_terms(c, *shape), *activations.head_terms(c, *shape)))
    return {
        "ends": ends + statistic + 4,  # and the loss's count of targets
        "layer": activations.total(terms) + 2 * statistic + mask,
        "selective": activations.total(activations.kept(terms, "selective")) + 2 * statistic,
        "input": terms[0].bytes(),
        "logits": activations.head_terms(c, *shape)[-1].bytes(),
        "moving": width * (tokens * (2 * c.hidden + c.width) + c.hidden * (c.width + c.vocabulary)),
    }


def saved_bytes(params: Params, way: str, width: int) -> int:
    """Alive between the forward and the backward pass."""
    part, n = _parts(params, width), params.layers
    if way.startswith("segments"):
        return part["ends"] + n // int(way.split()[-1]) * part["input"]
    return part["ends"] + n * part["selective" if way == "selective" else "layer"]


def peak_bytes(params: Params, way: str, width: int) -> int:
    """The larger of two moments: the loss's backward pass, or that of the last segment, when all of it is there again.

    In the first, two gradients of the logits join what is saved. In the second, the head's activations are gone, the
    layers of the segment have come, and these gradients are on their way through its last MLP: of the hidden values, of
    the residual stream (two), of a weight, and of the tied embedding, which waits for its other use. The loss and the
    count of targets, four bytes each, live to the end.
    """
    part, loss = _parts(params, width), 4
    saved = saved_bytes(params, way, width)
    head = saved + 2 * part["logits"] + loss
    if not way.startswith("segments"):
        return head  # an attention's core, which "selective" computes again, is smaller than the head
    again = int(way.split()[-1]) * part["layer"] - part["input"]
    return max(head, saved - part["ends"] + 4 + again + part["moving"] + loss)


def best_segment(params: Params, width: int = 4) -> int:
    """The size of a segment with the lowest peak, by the formula."""
    return min(params.segments, key=lambda k: peak_bytes(params, f"segments of {k}", width))


def rule(params: Params) -> Fraction:
    """The square of the best segment size when sizes are continuous: inputs of L/k segments against k layers.

    sqrt(L), which is often quoted, where a layer saves as much as its input; a transformer's layer saves far more.
    """
    c = params.model
    terms = activations.layer_terms(c, params.batch, params.sequence, 4)
    return Fraction(params.layers * terms[0].bytes(), activations.total(terms))


def sqrt_segment(params: Params) -> int:
    return min(params.segments, key=lambda k: abs(k - params.layers**0.5))


def rows(result: Result) -> Columns:
    """A row for each precision and way: bytes measured and by the formula, differing bytes, operations."""
    ways = result.params.ways
    columns: dict[str, list[object]] = {
        "precision": [p for p in PRECISIONS for _ in ways],
        "recomputed": [way for _ in PRECISIONS for way in ways],
    }
    for name in ("saved", "formula_saved", "peak", "formula_peak", "differ"):
        columns[name] = [*getattr(result, name).ravel().tolist()]
    columns["operations"] = [*result.work.tolist()] * len(PRECISIONS)
    return columns


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.library("recomputation gives the very bits of the gradients, dropout included")
def same_gradients(result: Result) -> Outcome:
    for p, precision in enumerate(PRECISIONS):
        for way, differ in zip(result.params.ways, result.differ[p].tolist(), strict=True):
            if differ:
                other = say("{precision}, {way}: {n:,} bytes of the gradients differ", precision=precision, way=way)
                return failed(other.fill(n=differ))
    said = say("{ways} ways in FP32 and BF16, {n:,} bytes of gradients each", ways=len(result.params.ways))
    return passed(said.fill(n=int(result.without_random[:, 0, 1].sum())))


@CLAIMS.measured("a segment that runs again with new random numbers gives other gradients")
def new_random(result: Result) -> Outcome:
    """Without the old random numbers, dropout drops others and nearly every gradient changes.

    The margin: half of the bytes, in the precision in which fewer change.
    """
    shares = result.without_random[..., 0] / result.without_random[..., 1]
    wide, narrow = shares.mean(axis=1)
    said = say("{wide:.0%} of the bytes differ in FP32, {narrow:.0%} in BF16", wide=wide, narrow=narrow)
    return superior(shares.min(axis=0), 0.0, 0.5, said)


def as_formula(params: Params, counted: np.ndarray, formula: Callable[[Params, str, int], int]) -> Outcome:
    wanted = by_formula(params, formula)
    if (counted == wanted).all():
        said = say("{n} ways and precisions, {low:,} to {high:,} bytes", n=counted.size)
        return passed(said.fill(low=counted.min(), high=counted.max()))
    p, w = (int(i) for i in np.argwhere(counted != wanted)[0])
    other = say("{precision}, {way}: {bytes:,} bytes, by the formula {wanted:,}", precision=PRECISIONS[p])
    return failed(other.fill(way=params.ways[w], bytes=counted[p, w], wanted=wanted[p, w]))


@CLAIMS.library("what the forward pass leaves is the formula's, to the byte: segments' inputs instead of their layers")
def saved(result: Result) -> Outcome:
    return as_formula(result.params, result.saved, saved_bytes)


@CLAIMS.library("the peak of the backward pass is the formula's, to the byte: inputs kept, and one segment run again")
def peak(result: Result) -> Outcome:
    return as_formula(result.params, result.peak, peak_bytes)


@CLAIMS.library("segments of any size cost the products of one more forward pass of the layers")
def work(result: Result) -> Outcome:
    c = result.params.model
    head = 2 * result.params.batch * result.params.sequence * c.hidden * c.vocabulary
    more, want = result.work[2:] - result.work[0], int(result.forward[0]) - head
    if (more != want).any():
        return failed(say("{more} operations more, not {want:,}", more=more.tolist(), want=want))
    said = say("{want:,} operations more, {times:.2f} times those of the plain step", want=want)
    return passed(said.fill(times=1 + want / result.work[0]))


@CLAIMS.proved("the best segment has sqrt(L input / layer) layers, one for these; sqrt(L) layers take more")
def best(result: Result) -> Outcome:
    params, peaks = result.params, result.peak[0, 2:]
    lowest = params.segments[int(peaks.argmin())]
    square = rule(params)
    nearest = min(params.segments, key=lambda k: params.layers * 1.0 / k * float(square) / params.layers + k)
    said = say("{layers} layers, {bytes:,} bytes; sqrt(L input / layer) = {rule:.2f}, sqrt(L) = {sqrt:.1f} takes "
               "{more:,} bytes", layers=lowest, bytes=peaks.min(), rule=float(square) ** 0.5)  # fmt: skip
    more = peak_bytes(params, f"segments of {sqrt_segment(params)}", 4)
    return verdict(lowest == best_segment(params) == nearest, said.fill(sqrt=params.layers**0.5, more=more))


# --- what a GPU must give ---------------------------------------------------------------------------------------
def cases(params: Params) -> Iterator[Case]:
    """Gradients without and with recomputation: no byte differs, (precision, way)."""
    shape = (len(PRECISIONS), len(params.ways))

    def inputs() -> Arrays:
        tokens, targets = tokens_of(params)
        return {"tokens": tokens.numpy().view(np.uint64), "targets": targets.numpy().view(np.uint64)}

    def compute(given: Arrays, device: str) -> Arrays:
        batch, out = batch_of(given, device), np.zeros(shape, np.uint64)
        for p, precision in enumerate(PRECISIONS):
            plain = gradients(network_of(params, "none", precision, device), batch)
            for w, way in enumerate(params.ways):
                out[p, w] = np.count_nonzero(gradients(network_of(params, way, precision, device), batch) != plain)
        return {"differ": out}

    def emulate(given: Arrays, meta: Meta) -> Arrays:
        return {"differ": np.zeros(shape, np.uint64)}

    yield Case("recomputed_gradients", inputs, compute, emulate, {"differ": "bits64"})


# --- figures ----------------------------------------------------------------------------------------------------
NAMES = {"none": "nothing again", "selective": "attention's core again", "segments of 1": "every layer by itself"}


def megabytes(axis: Axis) -> None:
    """Plain numbers, 1, 2 and 5 of each decade, on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def draw_history(ax: draw.Axes, result: Result) -> None:
    for i, way in enumerate(SHOWN):
        history = result.history[way] / 1e6
        x = np.linspace(0, 1, len(history))
        style = draw.look(i)
        ax.plot(x, history, color=style.color, linewidth=1.4, label=NAMES.get(way, way + " layers"))
        at = int(history.argmax())
        draw.note(ax, f"{history[at]:.2f} MB", (x[at], history[at]), (-7, 0), ha="right", fontweight="bold",
                  color=style.color)  # fmt: skip
    ax.set(xlim=(0, 1), ylim=(0, 1.1 * max(alive.max() for alive in result.history.values()) / 1e6))
    ax.set_xticks([0, 1], ["the forward pass begins", "the backward pass ends"])
    first, last = ax.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    ax.set(ylabel="activations and temporaries (MB)",
           title="Memory through a step: a saw tooth for each segment that runs again")  # fmt: skip
    ax.legend(loc="upper left")


def draw_segments(ax: draw.Axes, result: Result) -> None:
    params = result.params
    sizes = np.array(params.segments)
    for i, (counted, function) in enumerate(((result.peak, peak_bytes), (result.saved, saved_bytes))):
        style = draw.look(i)
        formula = [function(params, f"segments of {k}", 4) / 1e6 for k in params.segments]
        ax.plot(
            sizes, formula, **style.line, linewidth=1.2, label=f"{'after the forward pass' if i else 'peak'}, formula"
        )
        ax.plot(sizes, counted[0, 2:] / 1e6, color=style.color, marker=style.marker, linestyle="none",
                label="measured")  # fmt: skip
    ax.axhline(result.peak[0, 0] / 1e6, color=draw.current().muted, linewidth=1, linestyle=(0, (3, 2)))
    draw.note(ax, "peak, nothing again", (sizes[0], result.peak[0, 0] / 1e6), (0, -11), color=draw.current().muted)
    ax.axvline(sqrt_segment(params), color=draw.current().grid, linewidth=5, zorder=0)
    draw.note(ax, r"$\sqrt{L}$", (sqrt_segment(params), 0), (6, 6), xycoords=ax.get_xaxis_transform(), fontsize=10)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(sizes, [str(k) for k in sizes])
    ax.set(xlabel="layers of a segment", ylabel="MB", title="Bytes by segment size")
    megabytes(ax.yaxis)
    ax.legend(loc="center right", bbox_to_anchor=(1.0, 0.4), fontsize=9)


def draw_depths(ax: draw.Axes, result: Result) -> None:
    depths = [2**i for i in range(3, 11)]
    for i, size in enumerate((1, 2, 4, 8)):
        deep = [Params(layers=d, batch=result.params.batch) for d in depths]
        peaks = [peak_bytes(p, f"segments of {size}", 4) / 1e6 for p in deep]
        ax.plot(depths, peaks, **draw.look(i).line, label=f"segments of {size}")
    sqrt = [peak_bytes(p, f"segments of {sqrt_segment(p)}", 4) / 1e6 for p in deep]
    ax.plot(
        depths, sqrt, color=draw.current().ink, linewidth=1.2, linestyle=(0, (1, 1.5)), label=r"segments of $\sqrt{L}$"
    )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(depths, [str(d) for d in depths])
    ax.set(xlabel="layers of the network, L", ylabel="peak by the formula (MB)")
    megabytes(ax.yaxis)
    ax.set_title("Longer segments pay in deep networks")
    ax.legend(loc="upper left", fontsize=9)


def draw_work(ax: draw.Axes, result: Result) -> None:
    params = result.params
    theme, peak, work = draw.current(), result.peak[0] / 1e6, result.work / result.work[0]
    for i, way in enumerate(params.ways):
        style = draw.look(0 if way.startswith("segments") else 1)
        ax.plot(peak[i], work[i], color=style.color, marker=style.marker, linestyle="none", markersize=7)
        segment = way.startswith("segments")
        draw.note(ax, way.split()[-1] if segment else NAMES[way], (peak[i], work[i]), (9 if segment else -8, 0),
                  ha="left" if segment else "right", va="center", color=style.color)  # fmt: skip
    ax.axhline(4 / 3, color=theme.muted, linewidth=1, linestyle=(0, (3, 2)), label="4/3: one more forward pass")
    ax.set(xlim=(0, 1.12 * peak.max()), ylim=(0.95, 1.45), xlabel="peak (MB)",
           ylabel="operations of products, of the plain step")  # fmt: skip
    ax.legend(loc="upper left", fontsize=9)
    ax.set_title("Work against memory (numbers: segment)")


@one_threaded
def clock(width: int, layers: int = 2, tries: int = 4) -> tuple[float, float, float]:
    """Seconds of a transformer's forward pass, of its backward pass, and of both with each layer recomputed.

    On this machine, with one thread and dropout: the shortest of several ``tries``.
    """
    import time

    import torch
    from torch.utils.checkpoint import checkpoint

    stack = [torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(layers)]

    def step(again: bool) -> tuple[float, float]:
        x = torch.ones(2, 64, width, requires_grad=True)
        start = time.perf_counter()
        for layer in stack:
            x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        middle = time.perf_counter()
        x.square().mean().backward()
        return middle - start, time.perf_counter() - middle

    (forward, backward), recomputed = (min((step(again) for _ in range(tries)), key=sum) for again in (False, True))
    return forward, backward, sum(recomputed)


EXPERIMENT = Experiment(
    title=say("Checkpointing: memory for time"),
    question=say("What does recomputing activations save, what does it cost, and does it change the gradients?"),
    budget=5.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(sheet("through_a_step", (8, 9), (2, 1), draw_history, draw_work),
             sheet("by_size", (8, 9), (2, 1), draw_segments, draw_depths)), cases=cases,
)  # fmt: skip
