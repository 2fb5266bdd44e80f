"""Forward and backward passes whose layers are computed again in segments: gradients, bytes and times."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...hardware.cases import Arrays
from ...memory import Transformer, activations
from ..base import Tick

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ...memory.networks import Network

PRECISIONS = ("fp32", "bf16")
UNIT = {"fp32": 4, "bf16": 2}


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
        """Its configuration."""
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
SEEDS = (66, 67, 68)  # of dropout; the first is what everything but new random numbers is measured with


def network_of(params: Params, way: str, precision: str = "fp32", device: str = "cpu") -> nn.Module:
    """A module from (tokens, targets) to the loss; the same weights for every way."""
    inner = inner_network(params, precision, device, "selective" if way == "selective" else "none")
    return segmented(inner, int(way.split()[-1])) if way.startswith("segments") else inner


def inner_network(params: Params, precision: str, device: str = "cpu", recompute: str = "none") -> Network:
    """The lab's network of the configuration."""
    import torch

    from ...memory.networks import build

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
    """Tokens and their successors, int64 (batch, sequence)."""
    from .. import memory_measured as measure

    return measure.tokens_of(params.model, params.batch, key=66)


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


def run(params: Params, tick: Tick) -> Arrays:
    """Bytes and operations, int64.

    ``differ`` (precision, way): bytes of the gradients that differ from those of "none"; ``without_random: PRECISION``
    (seed, 2): the same of segments of one layer that draw new random numbers when they run again, and all bytes.
    ``saved`` (precision, way): alive after the forward pass; ``peak`` (precision, way): the most that is alive beside
    parameters and gradients. ``formula_saved`` and ``formula_peak``: by the formula. ``work`` (way,): floating-point
    operations of the products, as torch counts them, FP32; ``forward``: those of a forward pass. ``history: WAY``:
    bytes alive through a step, FP32, of three ways.
    """
    ways, arrays = params.ways, formulas(params)
    shape = len(PRECISIONS), len(ways)
    arrays |= {name: np.zeros(shape, np.int64) for name in ("differ", "saved", "peak")}
    from ...training.loop import one_thread

    with one_thread():
        inputs = tokens_of(params)
        for p, precision in enumerate(PRECISIONS):
            plain = gradients(network_of(params, "none", precision), inputs)
            for w, way in enumerate(ways):
                tick(0.7 * (p * len(ways) + w) / (2 * len(ways)), f"{precision}, {way}")
                module = network_of(params, way, precision)
                arrays["differ"][p, w] = np.count_nonzero(gradients(module, inputs) != plain)
                arrays["saved"][p, w], arrays["peak"][p, w], history = tracked(module, inputs)
                if precision == "fp32" and way in shown(params):
                    arrays[f"history: {way}"] = history
            rows = []
            for seed in SEEDS:
                kept = gradients(network_of(params, "none", precision), inputs, seed)
                anew = gradients(segmented(inner_network(params, precision), 1, keep_random=False), inputs, seed)
                rows.append([np.count_nonzero(anew != kept), kept.size])
            arrays[f"without_random: {precision}"] = np.array(rows)
        tick(0.7, "operations")
        arrays["work"] = np.array([operations(network_of(params, way), inputs) for way in ways])
        arrays["forward"] = np.array([operations(network_of(params, "none"), inputs, backward=False)])
    tick(1.0, "done")
    return arrays


def shown(params: Params) -> tuple[str, ...]:
    """The ways whose memory is drawn through a step: nothing again, every layer by itself, segments of four."""
    return "none", "segments of 1", "segments of 4"


def tracked(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[int, int, np.ndarray]:
    """Bytes saved by the forward pass, the peak beside parameters and gradients, and the bytes alive all along."""
    from ...memory.measuring import Tracker

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


def formulas(params: Params) -> Arrays:
    """Bytes by the formula's terms, (precision, way): saved after the forward pass, and at the peak."""
    saved = [[saved_bytes(params, way, UNIT[p]) for way in params.ways] for p in PRECISIONS]
    peak = [[peak_bytes(params, way, UNIT[p]) for way in params.ways] for p in PRECISIONS]
    return {"formula_saved": np.array(saved), "formula_peak": np.array(peak)}


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
