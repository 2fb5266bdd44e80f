"""Trainer and rollout: how far apart are the log-probabilities that two ways of computing one network give?

In reinforcement learning one program samples tokens and another trains on them. Both have the same weights and compute
them differently, so the probabilities with which tokens were drawn are not those that the trainer takes them for. Here
the trainer rounds the result of every operation to BF16, as eager torch does; the rollout's kernels are fused, so that
numbers stay FP32 until they enter the next product. Qi et al., Defeating the Training-Inference Mismatch via FP16
(arXiv 2510.26788), propose FP16 on both sides. A rollout in FP8 is further apart, and it is asked by which layers.

The network is a small transformer, trained briefly on characters; its rollout is scored along a text that is given.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import draw
from ..words import say
from .base import Claims, Columns, Experiment, Tick, in_columns, one_threaded
from .fp8_training import descend
from .outcomes import Outcome, verdict
from .statistics import equivalent, superior

if TYPE_CHECKING:
    from ..nn.recipes import Recipe

# Trainer and rollout.
PAIRS = ("bf16 and bf16", "fp16 and fp16", "bf16 and fp8", "fp16 and fp8", "bf16 and fp8, head bf16")
GPU = "H100"


@dataclass(frozen=True)
class Params:
    """``seeds``: networks, each of ``layers`` and ``width``, trained for ``steps``. ``rows``: texts of 32 tokens."""

    seeds: int = 5
    layers: int = 4
    width: int = 64
    steps: int = 200
    rows: int = 8


QUICK = Params(seeds=3, layers=2, width=32, steps=40)


@dataclass(frozen=True)
class Result:
    """By network: ``gaps`` (seeds, pairs), the mean |log-probability of the rollout less the trainer's|, in nats.

    Of the first network, BF16's rollout against FP8's: ``names`` of the layers, what each does to the log-probabilities
    ``alone`` in FP8 and what taking it ``back`` to BF16 does, along the ``whole`` difference, (1,); and the ``rests``
    """

    params: Params
    gaps: np.ndarray
    names: np.ndarray
    alone: np.ndarray
    back: np.ndarray
    whole: np.ndarray
    rests: np.ndarray

    @property
    def octaves(self) -> np.ndarray:
        """The logarithms of the gaps, base 2."""
        return np.asarray(np.log2(self.gaps))

    @property
    def shares(self) -> np.ndarray:
        """Each layer's part of the whole, the mean of both."""
        return np.asarray((self.alone + self.back) / 2 / self.whole)


@one_threaded
def run(params: Params, tick: Tick) -> Result:
    from ..nn import explain

    gaps = np.zeros((params.seeds, len(PAIRS)))
    for seed in range(params.seeds):
        tick(seed / params.seeds, "training, and both ways of computing")
        model, batch = trained(params, seed)
        gaps[seed] = apart(model, batch)
        if seed == 0:
            rounded = copy.deepcopy(model).bfloat16().float()
            tick(0.5 / params.seeds, "which layers")
            ways = {"gpu": GPU, "inputs": "bf16"}, {"gpu": GPU, "recipe": fp8()}
            found = explain(rounded, batch, *ways, log_probabilities, progress=str)
    layers = found.rows
    return Result(
        params, gaps, np.array([row.layer for row in layers]), np.array([row.alone for row in layers]),
        np.array([row.back for row in layers]), np.array([found.whole]), np.array(found.rest),
    )  # fmt: skip


def trained(params: Params, seed: int) -> tuple[Any, Any]:
    """A network after its training in FP32, and texts that it has not seen in that order."""
    import torch

    from ..training import characters

    task = characters(width=params.width, layers=params.layers, context=32, batch=params.rows)
    model = task.model(seed)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    descend(task, model, optimizer, seed, params.steps)
    return model.eval(), next(iter(task.batches(seed + 100, 1)))


def log_probabilities(model: Any, batch: Any) -> Any:
    """Of each next character of the texts, (rows, 32, 1), from the logits in FP32."""
    return model(batch[0]).float().log_softmax(-1).gather(-1, batch[1][..., None])


def fp8() -> Recipe:
    """FP8 of every layer, as rollouts have it; the head apart is asked for by name."""
    from ..nn import recipes

    return recipes.fp8_current(scope="all")


def apart(model: Any, batch: Any) -> list[float]:
    """The gaps of :data:`PAIRS`."""
    import torch

    from ..nn import emulate

    def computed(dtype: Any, fused: bool, **settings: Any) -> Any:
        one = copy.deepcopy(model).to(dtype)
        with torch.no_grad(), emulate(GPU, **settings):
            return log_probabilities(one.float() if fused else one, batch).double()

    half, brain = torch.float16, torch.bfloat16
    eager = {name: computed(dtype, False, inputs=name) for name, dtype in (("bf16", brain), ("fp16", half))}
    rollouts = [
        computed(brain, True, inputs="bf16"), computed(half, True, inputs="fp16"), computed(brain, True, recipe=fp8()),
        computed(half, True, recipe=fp8()), computed(brain, True, recipe=fp8(), layers={"head": "bf16"}),
    ]  # fmt: skip
    return [float((y - eager[pair[:4]]).abs().mean()) for pair, y in zip(PAIRS, rollouts, strict=True)]


def rows(result: Result) -> Columns:
    """A row for each trainer and rollout: the gap, its least and largest over the networks."""
    found = zip(PAIRS, result.gaps.T, strict=True)
    return in_columns(
        ["trainer_and_rollout", "mean_gap_nats", "least", "largest"],
        [(pair, float(gap.mean()), float(gap.min()), float(gap.max())) for pair, gap in found],
    )


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.measured("FP16 in trainer and rollout makes the gap at least four times smaller than BF16 in both")
def fp16_remedy(result: Result) -> Outcome:
    """Three bits more are a factor of eight; the margin is four."""
    detail = say("mean gap {bf16:.1e} nats in BF16, {fp16:.1e} in FP16; in powers of 2")
    bf16, fp16 = result.octaves[:, 0], result.octaves[:, 1]
    return superior(bf16, fp16, 2.0, detail.fill(bf16=result.gaps[:, 0].mean(), fp16=result.gaps[:, 1].mean()))


@CLAIMS.measured("a rollout in FP8 is at least twice as far from a BF16 trainer as one in BF16")
def fp8_is_further(result: Result) -> Outcome:
    """The same networks and texts."""
    detail = say("mean gap {fp8:.1e} nats in FP8, {bf16:.1e} in BF16; in powers of 2", fp8=result.gaps[:, 2].mean())
    return superior(result.octaves[:, 2], result.octaves[:, 0], 1.0, detail.fill(bf16=result.gaps[:, 0].mean()))


@CLAIMS.measured("where the rollout is in FP8, FP16 in the trainer leaves the gap as it is, within a factor of 1.4")
def no_remedy_for_fp8(result: Result) -> Outcome:
    """FP16 closes the gap between roundings of 16 bits, and not what 8 bits lost."""
    detail = say("mean gap {bf16:.1e} nats with a BF16 trainer, {fp16:.1e} with FP16; in powers of 2")
    detail = detail.fill(bf16=result.gaps[:, 2].mean(), fp16=result.gaps[:, 3].mean())
    return equivalent(result.octaves[:, 3], result.octaves[:, 2], 0.5, detail)


@CLAIMS.measured("a head that stays in BF16 takes at least 30% off the gap of a rollout in FP8")
def head_kept(result: Result) -> Outcome:
    """All other layers as before: the layer that the explanation names, kept high."""
    detail = say("mean gap {all:.1e} nats, {kept:.1e} with the head in BF16; in powers of 2")
    detail = detail.fill(all=result.gaps[:, 2].mean(), kept=result.gaps[:, 4].mean())
    return superior(result.octaves[:, 2], result.octaves[:, 4], 0.5, detail)


@CLAIMS.proved("what the layers do and the stated rest are the whole difference, and the head does most of it")
def explained(result: Result) -> Outcome:
    """Both attributions and their mean, to the last bits of FP64; the mean's rest is at most half of the whole."""
    mean = (result.alone + result.back) / 2
    sums = [
        math.fsum([*part, rest]) for part, rest in zip((result.alone, result.back, mean), result.rests, strict=True)
    ]
    whole = float(result.whole[0])
    largest = int(np.argmax(mean))
    holds = bool(np.allclose(sums, whole, rtol=1e-13, atol=0)) and str(result.names[largest]) == "head"
    said = say("{layers} layers; {share:.0%} of {whole:.1e} nats is the head's, {rest:+.0%} the rest", whole=whole)
    said = said.fill(layers=len(mean), share=result.shares[largest], rest=result.rests[2] / whole)
    return verdict(holds and abs(result.rests[2]) <= whole / 2, said)


# --- figures ----------------------------------------------------------------------------------------------------
def gaps(result: Result) -> draw.Figure:
    figure, (upper, lower) = draw.panels(
        8, 3.6 + 0.16 * len(result.names), 2, 1, height_ratios=[len(PAIRS), 0.6 * len(result.names)]
    )
    for i, gap in enumerate(result.gaps.T):
        style = draw.look(i)
        upper.plot(gap, np.full(len(gap), i), linestyle="none", marker=style.marker, color=style.color, markersize=7)
    upper.set_yticks(
        range(len(PAIRS)), [f"{p.replace(' and ', ' → ', 1).upper().replace('HEAD', 'head')}" for p in PAIRS]
    )
    upper.set(xscale="log", ylim=(len(PAIRS) - 0.5, -0.5), xlabel="mean |Δ log-probability| (nats)",
              title="Trainer → rollout, H100 emulated: a point a network")  # fmt: skip
    at = np.arange(len(result.names))
    for i, (label, values) in enumerate((("alone in FP8", result.alone), ("alone back in BF16", result.back))):
        style = draw.look(i)
        lower.barh(at + 0.2 * (2 * i - 1), values / result.whole, 0.36, color=style.color, hatch="//" * i, label=label)
    lower.set_yticks(at, result.names)
    lower.set(ylim=(len(at) - 0.4, -0.6), xlabel="part of the difference between BF16's and FP8's rollouts",
              title="Which layers of the FP8 rollout")  # fmt: skip
    lower.legend(loc="upper right")
    return figure


EXPERIMENT = Experiment(
    title=say("Trainer and rollout"),
    question=say("How far apart are the log-probabilities of a trainer and its rollout, and which layers part them?"),
    budget=3.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS, figures=(gaps,),
    cases="Both sides are whole networks; the products of their units are asked of a GPU by other experiments.",
)  # fmt: skip
