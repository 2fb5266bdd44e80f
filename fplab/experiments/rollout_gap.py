"""Trainer and rollout: how far apart are the log-probabilities that two ways of computing one network give?

In reinforcement learning one program samples tokens and another trains on them. Both have the same weights and compute
them differently, so the probabilities with which tokens were drawn are not those that the trainer takes them for. Here
the trainer rounds the result of every operation to BF16, as eager torch does; the rollout's kernels are fused, so that
numbers stay FP32 until they enter the next product. Qi et al., Defeating the Training-Inference Mismatch via FP16
(arXiv 2510.26788), propose FP16 on both sides. A rollout in FP8 is further apart, and it is asked by which layers.

The network is a small transformer, trained briefly on characters; its rollout is scored along a text that is given.
"""

import copy
import math
from typing import Any

import numpy as np

from ..words import say
from .fp8_training import descend
from .frame import Experiment, Params, Result
from .outcomes import Outcome, verdict
from .panels import bars, dots
from .quantities import beside, equivalent, of, superior

GPU = "H100"
# Trainer and rollout: the dtype of both, what the rollout's products are, and the layers that stay high.
WAYS: dict[str, tuple[str, str, Any]] = {
    "BF16 → BF16": ("bf16", "bf16", None),
    "FP16 → FP16": ("fp16", "fp16", None),
    "BF16 → FP8": ("bf16", "fp8", None),
    "FP16 → FP8": ("fp16", "fp8", None),
    "BF16 → FP8, head BF16": ("bf16", "fp8", {"head": "bf16"}),
}

E = Experiment(
    "Trainer and rollout",
    "How far apart are the log-probabilities of a trainer and its rollout, and which layers part them?",
    budget=3.0, one_thread=True,
    full={"seeds": 5, "layers": 4, "width": 64, "steps": 200, "rows": 8},  # networks of so many layers; texts
    quick={"seeds": 3, "layers": 2, "width": 32, "steps": 40},
    gpu="Both sides are whole networks; the products of their units are asked of a GPU by other experiments.",
)  # fmt: skip


@E.measure("gap", axes={"seed": "seeds", "way": WAYS}, unit="nats")
def gap(p: Params, seed: int, way: str) -> float:
    """The mean |log-probability of the rollout less the trainer's| over texts that the network has not seen."""
    dtype, products, layers = WAYS[way]
    settings = {"recipe": fp8(), "layers": layers} if products == "fp8" else {"inputs": products}
    rollout = computed(p, seed, dtype, fused=True, **settings)
    return float((rollout - trainer(p, seed, dtype)).abs().mean())


@E.measure("alone", "back", axes={"layer": ...}, unit="nats")
def layers(p: Params) -> tuple[dict[str, float], ...]:
    """Of the first network: what each layer alone in FP8, or alone back in BF16, does to the log-probabilities."""
    rows = explanation(p).rows
    return {row.layer: row.alone for row in rows}, {row.layer: row.back for row in rows}


@E.measure("whole", "rests")
def rest(p: Params) -> tuple[float, tuple[float, ...]]:
    """The whole difference of BF16's and FP8's rollouts, and what either attribution and their mean leave of it."""
    return explanation(p).whole, explanation(p).rest


@E.cache
def explanation(p: Params) -> Any:
    """Why the first network's rollouts in BF16 and FP8 differ."""
    from ..nn import explain
    from ..nn.diagnose.rollout import log_probabilities

    model, texts = trained(p, 0)
    ways = {"gpu": GPU, "inputs": "bf16"}, {"gpu": GPU, "recipe": fp8()}
    return explain(copy.deepcopy(model).bfloat16().float(), texts, *ways, log_probabilities, progress=str)


@E.cache
def trained(p: Params, seed: int) -> tuple[Any, Any]:
    """A network after its training in FP32, and texts that it has not seen in that order."""
    import torch

    from ..training import characters

    task = characters(width=p.width, layers=p.layers, context=32, batch=p.rows)
    model = task.model(seed)
    descend(task, model, torch.optim.Adam(model.parameters(), 2e-3), seed, p.steps)
    texts, following = next(iter(task.batches(seed + 100, 1)))
    return model.eval(), torch.cat([texts, following[:, -1:]], 1)


@E.cache
def trainer(p: Params, seed: int, dtype: str) -> Any:
    """What the trainer computes, every result rounded."""
    return computed(p, seed, dtype, fused=False, inputs=dtype)


def computed(p: Params, seed: int, dtype: str, fused: bool, **settings: Any) -> Any:
    """Log-probabilities of a copy of the network in a dtype, float64; ``fused``: results stay in FP32."""
    import torch

    from ..nn import emulate
    from ..nn.diagnose.rollout import log_probabilities

    model, texts = trained(p, seed)
    model = copy.deepcopy(model).to({"bf16": torch.bfloat16, "fp16": torch.float16}[dtype])
    with torch.no_grad(), emulate(GPU, **settings):
        return log_probabilities(model.float() if fused else model, texts).double()


def fp8() -> Any:
    """FP8 of every layer, as rollouts have it; the head apart is asked for by name."""
    from ..nn import recipes

    return recipes.fp8_current(scope="all")


# --- claims -----------------------------------------------------------------------------------------------------
bf16, fp16, to_fp8, fp16_to_fp8, head_high = (of("gap", way=way).log2 for way in WAYS)
E.claim(
    superior("fp16_remedy", "FP16 in trainer and rollout makes the gap at least four times smaller than BF16 in both",
             bf16, fp16, by=2),
    superior("fp8_is_further", "a rollout in FP8 is at least twice as far from a BF16 trainer as one in BF16",
             to_fp8, bf16, by=1),
    equivalent("no_remedy_for_fp8",
               "where the rollout is in FP8, FP16 in the trainer leaves the gap as it is, within a factor of 1.4",
               fp16_to_fp8, to_fp8, within=0.5),
    superior("head_kept", "a head that stays in BF16 takes at least 30% off the gap of a rollout in FP8",
             to_fp8, head_high, by=0.5),
)  # fmt: skip


@E.proved("what the layers do and the stated rest are the whole difference, and the head does most of it")
def explained(r: Result) -> Outcome:
    """Both attributions and their mean, to the last bits of FP64; the mean's rest is at most half of the whole."""
    mean = (r.alone + r.back) / 2
    sums = [math.fsum([*part.values, rest]) for part, rest in zip((r.alone, r.back, mean), r.rests, strict=True)]
    head = str(mean.layer.values[int(mean.values.argmax())])
    detail = say("{layers} layers; {share:.0%} of {whole:.1e} nats is the head's, {rest:+.0%} the rest", whole=r.whole)
    holds = bool(np.allclose(sums, r.whole, rtol=1e-13, atol=0)) and head == "head" and abs(r.rests[2]) <= r.whole / 2
    return verdict(holds, detail.fill(layers=len(mean), share=float(mean.max()) / r.whole, rest=r.rests[2] / r.whole))


E.answer("a rollout in BF16 is {near:.1e} nats from a BF16 trainer, one in FP8 {far:.1e}; the head has {head:.0%} of "
         "the difference", near=of("gap", way="BF16 → BF16"), far=of("gap", way="BF16 → FP8"),
         head=lambda r: float((r.alone + r.back).max()) / 2 / r.whole)  # fmt: skip
E.figure(
    "gaps",
    dots("gap", y="way", log="x", xlabel="mean |Δ log-probability| (nats)",
         title="Trainer → rollout, H100 emulated: a point a network"),
    bars(beside("taken", {"alone in FP8": of("alone"), "alone back in BF16": of("back")}) / of("whole"),
         y="layer", hue="taken", xlabel="part of the difference between BF16's and FP8's rollouts",
         title="Which layers of the FP8 rollout"),
    size=(8, 5.5),
)  # fmt: skip
