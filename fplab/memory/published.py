"""What others printed: tables and estimators of papers and libraries, and measurements of real runs.

Each number stands here as it was printed; tests and the experiment ``memory_measured`` set the calculator's beside.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import activations
from .activations import Term
from .calculator import estimate
from .models import Transformer, preset
from .ranks import Rank
from .stages import KINDS
from .units import GIB

# Rajbhandari et al. 2020, ZeRO (arXiv 1910.02054), Table 1: GB a device, by data-parallel ranks; for each model size
# the three stages. The paper rounds the first column and truncates the two others.
ZERO_SIZES = (7_500_000_000, 128_000_000_000, 1_000_000_000_000)
ZERO_TABLE_1: Mapping[int, tuple[tuple[str, str, str], ...]] = {
    1: (("120", "120", "120"), ("2048", "2048", "2048"), ("16000", "16000", "16000")),
    4: (("52.5", "41.3", "30"), ("896", "704", "512"), ("7000", "5500", "4000")),
    16: (("35.6", "21.6", "7.5"), ("608", "368", "128"), ("4750", "2875", "1000")),
    64: (("31.4", "16.6", "1.88"), ("536", "284", "32"), ("4187", "2218", "250")),
    256: (("30.4", "15.4", "0.47"), ("518", "263", "8"), ("4046", "2054", "62.5")),
    1024: (("30.1", "15.1", "0.12"), ("513", "257", "2"), ("4011", "2013", "15.6")),
}
ZERO_FIGURE_1 = ("120", "31.4", "16.6", "1.9")  # 7.5 billion parameters on 64 ranks, stages 0 to 3


# --- DeepSpeed's estimators --------------------------------------------------------------------------------------
def deepspeed_zero2(
    parameters: int, gpus: int, nodes: int = 1, *, offload: bool, buffer: float = 1.5
) -> tuple[float, int]:
    """Bytes of CPU memory (a node) and of each GPU, as DeepSpeed's ``estimate_zero2_model_states_mem_needs`` counts.

    ``gpus``: on a node. Its accounting is not the paper's: 4 bytes a parameter stay whole and 16 are divided, where
    ZeRO-2 keeps 2 whole and divides 14.
    """
    total = gpus * nodes
    if offload:
        return parameters * max(4 * total, 16) * buffer, 2 * parameters
    return parameters * 4 * gpus * buffer, 4 * parameters + int(16 * parameters / total)


def deepspeed_zero3(
    parameters: int, largest: int, gpus: int, nodes: int = 1, *, offload: str, zero_init: bool, buffer: float = 1.5
) -> tuple[float, int]:
    """The same for ``estimate_zero3_model_states_mem_needs``. ``largest``: parameters of the largest layer.

    ``offload``: "parameters" (and optimizer), "optimizer" or "none". ``zero_init``: whether the model is divided while
    it is made; otherwise every process of a node first holds all of it in FP32.
    """
    total, share, gathered = gpus * nodes, 1 / nodes, 4 * largest
    if offload == "none":
        cpu = (largest if zero_init else parameters) * 4 * gpus * buffer
        return cpu, gathered + int(18 * parameters / total)
    held = 18 if offload == "parameters" else 16
    cpu = parameters * (held * share if zero_init else max(4 * gpus, held * share)) * buffer
    return cpu, gathered + (0 if offload == "parameters" else int(2 * parameters / total))


# --- measurements of torchtitan ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Measured:
    """A published peak in GiB of a training run on H100s, and the options that describe the run.

    ``products``: whether every other matrix product and the attention's outputs are kept and all else is computed again
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


def gaps() -> list[tuple[str, float, float]]:
    """For each published run: its name, the estimate and the measurement in GiB."""
    return [(run.name, sum(estimated(run).values()) / GIB, run.peak) for run in TORCHTITAN]
