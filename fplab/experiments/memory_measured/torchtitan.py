"""Peaks that torchtitan printed of its training runs on H100s, and what the calculator estimates for each run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...memory import activations
from ...memory.activations import Term
from ...memory.calculator import estimate
from ...memory.models import Transformer, preset
from ...memory.ranks import Rank
from ...memory.stages import KINDS


@dataclass(frozen=True)
class Measured:
    """A published peak in GiB of a training run on H100s, and the options that describe the run.

    ``products``: whether every other matrix product and the attention's outputs are kept and all else is recomputed
    (torchtitan's "selective op"); no recomputation of :mod:`fplab.memory.activations` is quite that. ``unsharded``:
    between the micro-batches of a pipeline, whole BF16 weights and whole FP32 gradients stay where ZeRO-3 frees them.
    """

    name: str
    model: str
    peak: float
    options: Mapping[str, Any] = field(default_factory=dict)
    products: bool = False
    unsharded: bool = False


def _titan(name: str, model: str, peak: float, products: bool = False, **options: Any) -> Measured:
    shared = {"zero": 3, "partition": "rows", "precision": "amp", "recompute": "full"}
    return Measured(name, model, peak, shared | options, products, options.get("pipeline", 1) > 1)


# torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: FP32 weights, gradients and Adam states in shards, BF16 where
# they multiply; context parallelism divides the sequence, so a rank sees 32,768 tokens in each of the long runs.
TORCHTITAN: tuple[Measured, ...] = (
    _titan("8B, FSDP 8", "llama3-8b", 82.4, True, gpus=8, micro_batch=2),
    _titan("8B, FSDP 128", "llama3-8b", 67.0, True, gpus=128, micro_batch=2),
    _titan("8B, FSDP 8, 32k tokens", "llama3-8b", 83.9, gpus=8, sequence=32768),
    _titan("8B, CP 2, 64k tokens", "llama3-8b", 84.2, gpus=8, sequence=32768),
    _titan("8B, CP 4, 128k tokens", "llama3-8b", 84.0, gpus=8, sequence=32768),
    _titan("8B, CP 8, 256k tokens", "llama3-8b", 84.5, gpus=8, sequence=32768),
    _titan("70B, FSDP 32, TP 8", "llama3-70b", 71.9, gpus=256, tensor=8, sequence_parallel=True, micro_batch=16),
    _titan("405B, FSDP 8, TP 8, PP 8", "llama3-405b", 82.5, gpus=512, tensor=8, pipeline=8,
           sequence_parallel=True, micro_batch=4, micro_batches=8),
)  # fmt: skip


def other_products(c: Transformer, batch: int, sequence: int, width: int = 2) -> tuple[Term, ...]:
    """What a gated layer keeps under "selective op": its input, attention's output and every other product."""
    terms = {term.name: term for term in activations.layer_terms(c, batch, sequence, width)}
    names = ("norm 1 input", "queries", "values", "log-sum-exp", "projection input", "SiLU input")
    return (*(terms[name] for name in names), Term("down output", batch * sequence * c.hidden, width))


def estimated(run: Measured) -> dict[str, int]:
    """Bytes by kind that the calculator gives for a published run, on the rank that needs the most."""
    rank: Rank = estimate(run.model, **run.options).fullest
    kinds = {kind: rank.device.get(kind, 0) for kind in KINDS[:6]}
    if run.products:
        c, o = preset(run.model), run.options
        shape = (c, o["micro_batch"], o.get("sequence", c.sequence))
        full = activations.total(activations.kept(activations.layer_terms(*shape), "full"))
        kinds["activations"] += rank.layers * (activations.total(other_products(*shape)) - full)
    if run.unsharded:
        gathered = rank.temporary["gathered layer, next layer"] + rank.temporary["gradients of a layer"]
        kinds["temporary"] += rank.elements * (2 + 4) - gathered
    return kinds
