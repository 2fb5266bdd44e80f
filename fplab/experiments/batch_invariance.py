"""One sequence alone and in a batch: which bits a transformer's results change where split-K is chosen by rows.

A library that splits k for few rows adds the same products in another order, so the answer to one request depends on
how many others are computed beside it. The rule here is an example, given as data; what a library chooses, a record of
one would have to say. Small transformers are trained for some steps; then their products are an H100's, emulated.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import draw
from ..tensorcore import Plan, PlanByRows
from ..words import say
from .base import Claims, Columns, Experiment, Tick, in_columns, one_threaded
from .outcomes import Outcome, verdict
from .statistics import both, superior

if TYPE_CHECKING:
    from torch import Tensor, nn

GPU = "H100"
BATCHES = (1, 4, 8)  # sequences that are computed at a time
TOKENS = 16  # of a sequence: rows of each of a layer's products, times the batch
RULE = PlanByRows(((16, Plan(split_k=4)),))  # so batches of 4 and of 8 are summed alike
FIXED = Plan(split_k=4)
PLANS = (RULE, FIXED)
WAYS = (("bf16", "float32"), ("bf16", "bfloat16"), ("e4m3", "bfloat16"))  # operands of products, dtype of all else
WIDE, NARROW, EIGHT = range(3)
NAMES = ("BF16 products, in FP32", "BF16 products, in BF16", "E4M3 products, in BF16")


@dataclass(frozen=True)
class Params:
    """``width``, ``layers``, ``heads``: of the transformers; ``steps`` of training; ``networks`` from ``seed`` on."""

    width: int = 128
    layers: int = 6
    heads: int = 4
    steps: int = 60
    networks: int = 5
    seed: int = 100  # no margin was chosen on these

    @property
    def stages(self) -> list[str]:
        """What is looked at: the first product, what leaves each layer, and the logits."""
        return ["blocks.0.attention.qkv", *(f"blocks.{i}" for i in range(self.layers)), "head"]


QUICK = Params(width=64, layers=2, steps=10, networks=3)


@dataclass(frozen=True)
class Result:
    """``unlike``: how many elements differ from those in a batch of 8, int64 (network, way, plan, batch, stage), of
    ``elements`` (stage,). ``apart``: the norm of that difference over that of the values, by the rule, float64
    (network, way, batch, stage). ``logarithms``: of probabilities, float64 (network, way, alone or in a batch of 8,
    sequence, token, character), by the rule.
    """

    params: Params
    unlike: np.ndarray
    elements: np.ndarray
    apart: np.ndarray
    logarithms: np.ndarray

    def shares(self, way: int) -> np.ndarray:
        """The share of elements that differ between one alone and in a batch of 8, by the rule: (network, stage)."""
        return np.asarray(self.unlike[:, way, 0, 0] / self.elements)

    def changes(self, way: int) -> np.ndarray:
        """The largest change of a logarithm of a probability: (network, sequence, token)."""
        alone, beside = np.moveaxis(self.logarithms[:, way], 1, 0)
        return np.asarray(np.abs(alone - beside).max(axis=-1))

    def gaps(self, way: int) -> np.ndarray:
        """How far apart the two most probable characters are, in a batch of 8: (network, sequence, token)."""
        best = np.sort(self.logarithms[:, way, 1], axis=-1)
        return np.asarray(best[..., -1] - best[..., -2])

    def flips(self, way: int) -> np.ndarray:
        """Where another character is the most probable: (network, sequence, token)."""
        alone, beside = np.moveaxis(self.logarithms[:, way].argmax(axis=-1), 1, 0)
        return np.asarray(alone != beside)


class Eighths:
    """FP8 operands times a power of two that depends on nothing: a scale from the data would depend on the batch."""

    def scale(self, role: str, tensor: Tensor) -> float:
        """Eight: small weights are normal numbers, and the largest activations lie below E4M3's largest."""
        return 8.0


@cache
def trained(params: Params, seed: int) -> tuple[nn.Module, Tensor]:
    """A transformer after some steps in FP32, and as many held-out sequences as the largest batch."""
    from ..training import characters, fit

    task = characters(width=params.width, layers=params.layers, heads=params.heads, context=TOKENS,
                      tested=TOKENS * BATCHES[-1] + 1)  # fmt: skip
    model = fit(task, "fp32", seed=seed, steps=params.steps, gpu=None, progress=lambda step, steps: None).model
    return model, task.held_out()[0].inputs


@one_threaded
def stages(
    model: nn.Module, tokens: Tensor, batch: int, plan: Plan | PlanByRows, inputs: str, params: Params
) -> list[Tensor]:
    """What each stage gives for all sequences, so many at a time."""
    import torch

    from ..nn import emulate

    found: dict[str, list[Tensor]] = {name: [] for name in params.stages}
    scaling = Eighths() if inputs == "e4m3" else None
    with ExitStack() as hooks, torch.no_grad(), emulate(GPU, inputs, plan=plan, scaling=scaling):
        for name, outputs in found.items():
            stage = model.get_submodule(name)
            hooks.enter_context(stage.register_forward_hook(lambda _, given, out, own=outputs: own.append(out)))
        for start in range(0, len(tokens), batch):
            model(tokens[start : start + batch])
    return [torch.cat(parts) for parts in found.values()]


def run(params: Params, tick: Tick) -> Result:
    import torch

    networks, elements = [], np.zeros(0)
    for number in range(params.networks):
        of: dict[str, list[Any]] = {"unlike": [], "apart": [], "logarithms": []}
        first, tokens = trained(params, params.seed + number)
        for way, (inputs, dtype) in enumerate(WAYS):
            tick((number + way / len(WAYS)) / params.networks, f"network {number}: {NAMES[way]}")
            model = copy.deepcopy(first).to(getattr(torch, dtype))
            each = [[stages(model, tokens, batch, plan, inputs, params) for batch in BATCHES] for plan in PLANS]
            of["unlike"].append([[unlike(found, every[-1]) for found in every] for every in each])
            of["apart"].append([[distance(x, y) for x, y in zip(found, each[0][-1], strict=True)] for found in each[0]])
            logits = (each[0][place][-1].double() for place in (0, -1))
            of["logarithms"].append([x.log_softmax(-1).numpy() for x in logits])
            elements = np.array([x.numel() for x in each[0][0]])
        networks.append(of)
    arrays = {name: np.array([one[name] for one in networks]) for name in networks[0]}
    return Result(params, elements=elements, **arrays)


def unlike(some: list[Tensor], others: list[Tensor]) -> list[int]:
    from ..nn.bits import codes

    return [int((codes(x) != codes(y)).sum()) for x, y in zip(some, others, strict=True)]


def distance(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm())


def table(result: Result) -> Iterator[tuple[Any, ...]]:
    """A line for each way, batch and stage: how many differ, and by how much, means over networks."""
    for way, batch in np.ndindex(len(WAYS), len(BATCHES)):
        for k, stage in enumerate(result.params.stages):
            rule, fixed = result.unlike[:, way, :, batch, k].mean(axis=0) / result.elements[k]
            yield NAMES[way], BATCHES[batch], stage, rule, float(result.apart[:, way, batch, k].mean()), fixed


def rows(result: Result) -> Columns:
    """Shares of elements that differ from those in a batch of 8, by the rule and by one plan."""
    return in_columns(("way", "batch", "stage", "differ", "relative_difference", "differ_by_one_plan"),
                      table(result))  # fmt: skip


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.proved("by one plan for every shape a sequence has the same bits alone and in any batch, in every layer")
def fixed(result: Result) -> Outcome:
    wrong = result.unlike[:, :, 1]
    n = int(result.elements.sum()) * wrong[:, :, :-1, 0].size
    return verdict(not wrong.any(), say("{n:,} elements compared: {wrong:,} differ", n=n, wrong=int(wrong.sum())))


@CLAIMS.proved(
    "where a rule chooses the plan by rows, batches that get the same plan have the same bits, others do not"
)
def by_rule(result: Result) -> Outcome:
    """Of 4 sequences and of 8 k is not split, of one four-fold: in FP32 the logits of every network show it."""
    same, other = result.unlike[:, :, 0, 1], result.unlike[:, WIDE, 0, 0, -1]
    said = say("a batch of 4 differs from one of 8 in {same} elements; one alone in {other:,} of {all:,} FP32 logits")
    said = said.fill(same=int(same.sum()), other=int(other.sum()), all=int(result.elements[-1]) * len(other))
    return verdict(not same.any() and bool(other.all()), said)


@CLAIMS.measured("stored in BF16 fewer than one of the first product's results in 1,000 differ, in FP32 one in five do")
def hidden(result: Result) -> Outcome:
    """The sums differ in their last bits, which a rounding to 8 bits takes away."""
    wide, narrow = (result.shares(way)[:, 0] for way in (WIDE, NARROW))
    said = say("in FP32 {wide:.0%}, in BF16 {narrow:.3%}", wide=float(wide.mean()), narrow=float(narrow.mean()))
    return both(superior(wide, 0.0, 0.2, said), superior(0.0, narrow, -1e-3, say("share in BF16, below 0")))


@CLAIMS.measured("of products in E4M3, whose sums an H100 cuts short, one BF16 result in 200 and more differs")
def eight_bits(result: Result) -> Outcome:
    """Of the first product; the margin is five in a thousand more than of products in BF16."""
    eight, half = (result.shares(way)[:, 0] for way in (EIGHT, NARROW))
    said = say("{eight:.2%}, of products in BF16 {half:.3%}", eight=float(eight.mean()), half=float(half.mean()))
    return superior(eight, half, 0.005, said)


@CLAIMS.measured("the differences spread: of the last layer's results at least eight times as many differ")
def spreading(result: Result) -> Outcome:
    """Products in E4M3, against the first product; the margin is three octaves."""
    shares = result.shares(EIGHT)
    first, last = shares[:, 0], shares[:, -2]
    said = say("first product {first:.2%}, last layer {last:.0%}; octaves")
    return superior(np.log2(last), np.log2(first), 3.0, said.fill(first=float(first.mean()), last=float(last.mean())))


@CLAIMS.measured("products in E4M3 change log-probabilities by 0.01 and more, a network in FP32 by less than 0.005")
def probabilities(result: Result) -> Outcome:
    """The largest change of each network; the latter's products are of BF16 operands, which may round otherwise."""
    wide, eight = (result.changes(way).max(axis=(1, 2)) for way in (WIDE, EIGHT))
    said = say("up to {eight:.3f}; {flips} of {n:,} tokens get another most probable character", n=result.gaps(0).size)
    said = said.fill(eight=float(eight.max()), flips=int(result.flips(EIGHT).sum()))
    beside = say("up to {wide:.1e} in FP32, below 0", wide=float(wide.max()))
    return both(superior(eight, 0.0, 0.01, said), superior(0.0, wide, -0.005, beside))


# --- figures ----------------------------------------------------------------------------------------------------


def layers(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 7.8, 2, 2)
    names = ["first", *(str(i + 1) for i in range(result.params.layers)), "logits"]
    for way, name in enumerate(NAMES):
        look = draw.look(way)
        for ax, values in ((panels[0, 0], 100 * result.shares(way)), (panels[0, 1], result.apart[:, way, 0])):
            mean = values.mean(axis=0)
            ax.plot(names, np.where(mean > 0, mean, np.nan), **look.marked, label=name)
        changes, flips = result.changes(way).ravel(), result.flips(way).ravel()
        gaps = np.maximum(result.gaps(way).ravel(), 1e-4)
        panels[1, 1].plot(gaps, np.where(changes > 0, changes, np.nan), look.marker, color=look.color, markersize=3,
                          alpha=0.6)  # fmt: skip
        panels[1, 1].plot(gaps[flips], changes[flips], "x", color=draw.current().ink, markersize=9)
    top = {"yscale": "log", "xlabel": "after layer"}
    panels[0, 0].set(**top, ylabel="results that differ (%)", title="One alone, against a batch of 8")
    panels[0, 1].set(**top, ylabel="relative difference", title="By how much")
    draw_batches(panels[1, 0], result)
    panels[1, 1].set(xscale="log", yscale="log", xlabel="gap of the two best (0: at the left)", ylabel="largest change",
                     title="Log-probabilities of tokens (×: flips)")  # fmt: skip
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle("k split by rows: a rule as an example, in an H100's units, emulated", fontsize=10)
    return figure


def draw_batches(ax: draw.Axes, result: Result) -> None:
    for plan, name in enumerate(("by the rule", "by one plan")):
        share = 100 * result.unlike[:, WIDE, plan, :-1, -1].mean(axis=0) / result.elements[-1]
        bars = ax.bar(np.arange(len(share)) + 0.4 * plan - 0.2, share, 0.36, color=draw.look(plan + 3).color,
                      hatch=("", "//")[plan], alpha=0.8, label=name)  # fmt: skip
        ax.bar_label(bars, fmt="%.3g", fontsize=9, padding=2)
    ax.set_xticks(range(len(BATCHES) - 1), [str(batch) for batch in BATCHES[:-1]])
    ax.set(ylim=(0, 100), xlabel="sequences at a time", ylabel="FP32 logits that differ (%)")
    ax.set_title("Against a batch of 8")
    ax.legend(loc="upper right", fontsize=9)


EXPERIMENT = Experiment(
    title=say("Alone and in a batch"),
    question=say("Does one sequence get the same bits alone as in a batch, where the order of k is chosen by shape?"),
    budget=5.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS, figures=(layers,),
    cases="What a library chooses by shape is not known here: the rule is an example.",
)  # fmt: skip
