"""Checkpointing: activations that are recomputed instead of kept, and what that costs.

Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost (arXiv 1604.06174): keep the inputs of segments of a
deep network, drop the rest, and recompute a segment when the backward pass comes to it. Its rule, segments of sqrt(L)
layers, is for layers that save as much as their input; a transformer's layer saves 17 times that and more, so every
layer by itself is best up to a depth that the formula gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from ..hardware.cases import Arrays, Case, Meta
from ..memory import Transformer, activations
from ..words import say
from .frame import Experiment, Params, Result, one_threaded
from .memory_measured import batch_of
from .memory_measured import tokens_of as tokens_from
from .outcomes import Outcome, verdict
from .panels import bars, line
from .quantities import Columns, Quantity, beside, equal, of, superior, table

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..memory.networks import Network

UNIT = {"fp32": 4, "bf16": 2}
SEEDS = (66, 67, 68)  # of dropout; the first is what everything but new random numbers is measured with

E = Experiment(
    "Checkpointing: memory for time",
    "What does recomputing activations save, what does it cost, and does it change the gradients?",
    budget=5.0, one_thread=True,
    # A deep and narrow transformer, whose layers are a power of two, and its batch.
    full={"layers": 32, "hidden": 64, "heads": 2, "vocabulary": 128, "sequence": 64, "batch": 3},
    quick={"layers": 8},
)  # fmt: skip


def model_of(p: Params) -> Transformer:
    return Transformer("deep", p.layers, p.hidden, p.heads, p.vocabulary, p.sequence)


def segments(p: Params) -> list[int]:
    """Layers of a segment: 1, 2, 4 and so on to all of them."""
    return [2**i for i in range(p.layers.bit_length())]


def ways(p: Params) -> list[str]:
    """What is recomputed: nothing, the attention's core, segments of so many layers."""
    return ["none", "selective", *(f"segments of {k}" for k in segments(p))]


def segment_of(way: str) -> int:
    """The layers of a segment; 0 where there are none."""
    return int(way.split()[-1]) if way.startswith("segments") else 0


def network_of(p: Params, way: str, precision: str = "fp32", device: str = "cpu") -> nn.Module:
    """A module from (tokens, targets) to the loss; the same weights for every way."""
    inner = inner_network(p, precision, device, "selective" if way == "selective" else "none")
    return segmented(inner, segment_of(way)) if segment_of(way) else inner


def inner_network(p: Params, precision: str, device: str = "cpu", recompute: str = "none") -> Network:
    """The lab's network of the configuration."""
    import torch

    from ..memory.networks import build

    return build(model_of(p), device, {"fp32": torch.float32, "bf16": torch.bfloat16}[precision], recompute)


def segmented(inner: Network, size: int, keep_random: bool = True) -> nn.Module:
    """The network with its layers in segments of ``size``, of which the inputs alone are kept.

    ``keep_random``: set the random generator back before a segment is recomputed: dropout then drops the same values.
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


def tokens_of(p: Params) -> tuple[torch.Tensor, torch.Tensor]:
    return tokens_from(model_of(p), p.batch, key=66)


def gradients(module: nn.Module, inputs: tuple[torch.Tensor, ...], seed: int = SEEDS[0]) -> np.ndarray:
    """The bits of all gradients of one step, end to end, as uint8; dropout is drawn from the seed."""
    import torch

    devices = [inputs[0].device] if inputs[0].is_cuda else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        module.zero_grad(set_to_none=True)
        module(*inputs).backward()
    parts = [p.grad.reshape(-1).view(torch.uint8).cpu() for p in module.parameters() if p.grad is not None]
    return torch.cat(parts).numpy()


@E.cache
def plain(p: Params, precision: str, seed: int) -> np.ndarray:
    """The bits of all gradients without recomputation."""
    return gradients(network_of(p, "none", precision), tokens_of(p), seed)


@E.cache
def tracked(p: Params, precision: str, way: str) -> tuple[int, int, int, np.ndarray]:
    """Bytes of the gradients that differ from those without recomputation; bytes saved by the forward pass; the peak
    beside parameters and gradients; and the bytes alive all along."""
    from ..memory.measuring import Tracker

    module, inputs = network_of(p, way, precision), tokens_of(p)
    differing = int(np.count_nonzero(gradients(module, inputs) != plain(p, precision, SEEDS[0])))
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
        return differing, saved, tracker.peak - before, np.array(tracker.history) - before


@E.measure("differ", "saved", "peak", axes={"precision": UNIT, "recomputed": ways}, unit="bytes")
def held(p: Params, precision: str, recomputed: str) -> tuple[int, int, int]:
    """Bytes of gradients that differ, that live after the forward pass, and at the peak of the backward pass."""
    return tracked(p, precision, recomputed)[:3]


@E.measure("formula_saved", "formula_peak", axes={"precision": UNIT, "recomputed": ways}, unit="bytes", digested=True)
def formula(p: Params, precision: str, recomputed: str) -> tuple[int, int]:
    """The same bytes by the formula."""
    return saved_bytes(p, recomputed, UNIT[precision]), peak_bytes(p, recomputed, UNIT[precision])


@E.measure("history", axes={"recomputed": lambda p: [*ways(p)[:1], *ways(p)[2:6:2]]}, dims=("event",), unit="bytes")
def history(p: Params, recomputed: str) -> np.ndarray:
    """Bytes alive through a step."""
    return tracked(p, "fp32", recomputed)[3]


@E.measure("new_random", axes={"precision": UNIT, "seed": SEEDS})
def anew(p: Params, precision: str, seed: int) -> float:
    """The share of the gradients' bytes that differ where each layer draws new random numbers when it is recomputed."""
    module = segmented(inner_network(p, precision), 1, keep_random=False)
    return float((gradients(module, tokens_of(p), seed) != plain(p, precision, seed)).mean())


@E.measure("operations", axes={"recomputed": ways})
def work(p: Params, recomputed: str) -> int:
    """Floating-point operations of the products of a step, FP32."""
    return operations(network_of(p, recomputed), tokens_of(p))


@E.measure("forward")
def forward_of_layers(p: Params) -> int:
    """Those of a forward pass of the layers, without the head."""
    head: int = 2 * p.batch * p.sequence * p.hidden * p.vocabulary
    return operations(network_of(p, "none"), tokens_of(p), backward=False) - head


def operations(module: nn.Module, inputs: tuple[torch.Tensor, ...], backward: bool = True) -> int:
    """Floating-point operations of the products of a step, or of its forward pass, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        loss = module(*inputs)
        if backward:
            loss.backward()
    return int(counter.get_total_flops())


# --- the formula ------------------------------------------------------------------------------------------------
@E.cache
def _parts(p: Params, width: int) -> dict[str, int]:
    """Bytes of the ends, of a layer, of its input and of its attention's core, as the lab's network saves them.

    The terms of :mod:`fplab.memory.activations`, the norms' statistics, and a causal mask for each layer.
    """
    c, shape, tokens = model_of(p), (p.batch, p.sequence, width), p.batch * p.sequence
    terms = activations.layer_terms(c, *shape)
    statistic = 2 * tokens * width  # of one norm; the CPU's are as wide as its input
    mask = p.sequence**2
    ends = activations.total((*activations.embedding_terms(c, *shape), *activations.head_terms(c, *shape)))
    return {
        "ends": ends + statistic + 4,  # and the loss's count of targets
        "layer": activations.total(terms) + 2 * statistic + mask,
        "selective": activations.total(activations.kept(terms, "selective")) + 2 * statistic,
        "input": terms[0].bytes(),
        "logits": activations.head_terms(c, *shape)[-1].bytes(),
        "moving": width * (tokens * (2 * c.hidden + c.width) + c.hidden * (c.width + c.vocabulary)),
    }


def saved_bytes(p: Params, way: str, width: int) -> int:
    """Alive between the forward and the backward pass."""
    part, n, size = _parts(p, width), p.layers, segment_of(way)
    kept: int = n // size * part["input"] if size else n * part["selective" if way == "selective" else "layer"]
    return part["ends"] + kept


def peak_bytes(p: Params, way: str, width: int) -> int:
    """The larger of two moments: the loss's backward pass, or that of the last segment, once all of it is recomputed.

    In the first, two gradients of the logits join what is saved. In the second, the head's activations are gone, the
    layers of the segment have come, and these gradients are on their way through its last MLP: of the hidden values, of
    the residual stream (two), of a weight, and of the tied embedding, which waits for its other use. The loss and the
    count of targets, four bytes each, live to the end.
    """
    part, loss = _parts(p, width), 4
    saved = saved_bytes(p, way, width)
    head = saved + 2 * part["logits"] + loss
    if not segment_of(way):
        return head  # an attention's core, which "selective" recomputes, is smaller than the head
    again = segment_of(way) * part["layer"] - part["input"]
    return max(head, saved - part["ends"] + 4 + again + part["moving"] + loss)


@E.measure(
    "deep", axes={"size": ("1", "2", "4", "8", "$\\sqrt{L}$"), "depth": [2**i for i in range(3, 11)]}, unit="bytes"
)
def deep_peak(p: Params, size: str, depth: int) -> int:
    """The peak by the formula of deeper networks in FP32, by layers of a segment."""
    deep = replace(p, layers=depth)  # type: ignore[type-var]
    return peak_bytes(deep, f"segments of {sqrt_segment(deep) if 'sqrt' in size else size}", 4)


def best_segment(p: Params) -> int:
    """The size of a segment with the lowest peak in FP32, by the formula."""
    return min(segments(p), key=lambda k: peak_bytes(p, f"segments of {k}", 4))


def rule(p: Params) -> Fraction:
    """The square of the best segment size when sizes are continuous: inputs of L/k segments against k layers.

    sqrt(L), which is often quoted, where a layer saves as much as its input; a transformer's layer saves far more.
    """
    terms = activations.layer_terms(model_of(p), p.batch, p.sequence, 4)
    return Fraction(p.layers * terms[0].bytes(), activations.total(terms))


def sqrt_segment(p: Params) -> int:
    return min(segments(p), key=lambda k: abs(k - p.layers**0.5))


@E.table
def rows(r: Result) -> Columns:
    """A row for each precision and way: bytes measured and by the formula, differing bytes, operations."""
    names = ("saved", "formula_saved", "peak", "formula_peak", "differ", "operations")
    return table(**{name: getattr(r, name) for name in names})


# --- claims -----------------------------------------------------------------------------------------------------
E.claim(
    equal("same_gradients", "recomputation gives the very bits of the gradients, dropout included", of("differ"), 0),
    # Without the old random numbers, dropout drops others. The margin: half of the bytes, where fewer change.
    superior("new_random", "a segment recomputed with new random numbers gives other gradients",
             of("new_random").min("precision"), by=0.5),
    equal("saved",
          "what the forward pass leaves is the formula's, to the byte: segments' inputs instead of their layers",
          of("saved"), of("formula_saved")),
    equal("peak",
          "the peak of the backward pass is the formula's, to the byte: inputs kept, and one segment recomputed",
          of("peak"), of("formula_peak")),
    equal("work", "segments of any size cost the products of one more forward pass of the layers",
          of("operations").then("more operations", lambda x: x[2:] - x[0]), of("forward")),
)  # fmt: skip


@E.proved("the best segment has sqrt(L input / layer) layers, one for these; sqrt(L) layers take more")
def best(r: Result) -> Outcome:
    peaks = r.peak.sel(precision="fp32").values[2:]
    lowest, square = segments(r.p)[int(peaks.argmin())], float(rule(r.p))
    nearest = min(segments(r.p), key=lambda k: square / k + k)
    detail = say("{layers} layers, {bytes:,} bytes; sqrt(L input / layer) = {rule:.2f}, sqrt(L) = {sqrt:.1f} takes "
                 "{more:,} bytes", layers=lowest, bytes=peaks.min(), rule=square**0.5)  # fmt: skip
    more = peak_bytes(r.p, f"segments of {sqrt_segment(r.p)}", 4)
    return verdict(lowest == best_segment(r.p) == nearest, detail.fill(more=more, sqrt=r.p.layers**0.5))


peak_of_one = of("peak", precision="fp32").then("share", lambda x: x.sel(recomputed="segments of 1") / x[0])
E.answer("recomputing each layer takes the peak to {peak:.0%} for {work:.2f} times the operations; no gradient changes",
         peak=peak_of_one, work=of("operations").then("work", lambda x: x[2] / x[0]))  # fmt: skip


# --- what a GPU must give ---------------------------------------------------------------------------------------
@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """Gradients without and with recomputation: no byte differs, (precision, way)."""
    shape = (len(UNIT), len(ways(p)))

    def inputs() -> Arrays:
        return {name: x.numpy().view(np.uint64) for name, x in zip(("tokens", "targets"), tokens_of(p), strict=True)}

    def compute(given: Arrays, device: str) -> Arrays:
        batch, out = batch_of(given, device), np.zeros(shape, np.uint64)
        for i, precision in enumerate(UNIT):
            plain = gradients(network_of(p, "none", precision, device), batch)
            for w, way in enumerate(ways(p)):
                out[i, w] = np.count_nonzero(gradients(network_of(p, way, precision, device), batch) != plain)
        return {"differ": out}

    def emulate(given: Arrays, meta: Meta) -> Arrays:
        return {"differ": np.zeros(shape, np.uint64)}

    yield Case("recomputed_gradients", inputs, compute, emulate, {"differ": "bits64"})


# --- figures ----------------------------------------------------------------------------------------------------
NAMES = {"none": "no recomputation", "selective": "core attention recomputed", "segments of 1": "each layer recomputed"}


def by_size(name: str) -> Quantity:
    """MB by the layers of a segment."""

    def sized(x: Any) -> Any:
        x = x[2:].assign_coords(recomputed=[segment_of(way) for way in x.recomputed.values[2:]])
        return x.rename(recomputed="segment") / 1e6

    return of(name, precision="fp32").then(name, sized)


E.figure(
    "through_a_step",
    line(of("history") / 1e6, x="event", hue="recomputed", names=NAMES, ylim=(0, None),
         xlabel="allocations and releases since the step began", ylabel="activations and temporaries (MB)",
         title="Each recomputed segment is a tooth of a saw, not a mountain"),
    bars(of("peak", precision="fp32") / 1e6, y="recomputed", names=NAMES, numbers="{:.2f}", xlabel="peak (MB)",
         title=lambda r: f"{float(peak_of_one.read(r)):.0%} of the peak for one more forward pass of each layer"),
    size=(8, 8.5),
)  # fmt: skip
E.figure(
    "by_size",
    line(beside("bytes", {"peak": by_size("peak"), "after the forward pass": by_size("saved")}), x="segment",
         hue="bytes", marked=True, ticks=True, log="x", ylim=(0, None), xlabel="layers of a segment", ylabel="MB",
         title="The shorter the segments, the lower the peak of this network"),
    line(of("deep") / 1e6, x="depth", hue="size", names={str(k): f"segments of {k}" for k in (1, 2, 4, 8)},
         ticks=True, log="xy", xlabel="layers of the network, L", ylabel="peak by the formula (MB)",
         title="Longer segments pay in deep networks"),
    size=(8, 9),
)  # fmt: skip


@one_threaded
def clock(width: int) -> tuple[float, float, float]:
    """Seconds of a transformer's forward pass, of its backward pass, and of both with each layer recomputed.

    On this machine, with one thread and dropout: the shortest of four tries.
    """
    import time

    import torch
    from torch.utils.checkpoint import checkpoint

    stack = [torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(2)]

    def step(again: bool) -> tuple[float, float]:
        x = torch.ones(2, 64, width, requires_grad=True)
        start = time.perf_counter()
        for layer in stack:
            x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        middle = time.perf_counter()
        x.square().mean().backward()
        return middle - start, time.perf_counter() - middle

    (forward, backward), recomputed = (min((step(again) for _ in range(4)), key=sum) for again in (False, True))
    return forward, backward, sum(recomputed)
