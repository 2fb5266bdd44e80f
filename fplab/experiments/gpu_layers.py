"""A100 against H100 through the layers of a transformer: how far apart does one network get on two GPUs?

Both multiply the same BF16 operands and add them up differently: blocks of 8 products cut at 24 bits, blocks of 16 at
25. So the first product of all has other bits. What follows depends on what lies between the products: a result that
is rounded to BF16 is mostly the same number on both, and then nothing is left of the difference. Where it is not, one
operand is another by a whole unit of BF16, and the difference is as large as that from there on.

The network is GPT-2's shape with weights as drawn, no training; between products it computes in FP32, or its tensors
are BF16.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import draw
from ..words import say
from .base import Claims, Columns, Experiment, Tick, in_columns, one_threaded
from .outcomes import Outcome, verdict
from .statistics import superior

GPUS = ("A100", "H100")
FIRST = "blocks.0.attention.qkv"


@dataclass(frozen=True)
class Params:
    """``seeds``: networks of ``layers`` and ``width``; so many, of ``blocks`` layers each, are ``explained``."""

    seeds: int = 8
    layers: int = 24
    width: int = 32
    explained: int = 2
    blocks: int = 24


QUICK = Params(seeds=3, blocks=2)


@dataclass(frozen=True)
class Result:
    """``apart`` (seeds, layers): the relative difference of both GPUs after each block, FP32 between products.

    ``wrong`` (seeds, layers): H100's relative error there, against FP64. ``same`` (seeds, layers): the share of numbers
    that are the same on both GPUs where all tensors are BF16. Of those explained: what each layer that differs by
    itself does to the logits ``alone`` on H100, and taken ``back`` to A100 (explained, layers; NaN for fewer); the
    ``wholes``, and the ``rests`` (explained, 3) of both and of their mean; of the ``first`` operation that is apart its
    layer, ``sums``: its element on both, and ``steps`` (explained, 2): its chains' last results.
    """

    params: Params
    apart: np.ndarray
    wrong: np.ndarray
    same: np.ndarray
    alone: np.ndarray
    back: np.ndarray
    wholes: np.ndarray
    rests: np.ndarray
    first: np.ndarray
    sums: np.ndarray
    steps: np.ndarray


@one_threaded
def run(params: Params, tick: Tick) -> Result:
    from ..nn import explain

    found: list[Any] = []
    depths = []
    for seed in range(params.seeds):
        tick(0.3 * seed / params.seeds, "both GPUs")
        depths.append(by_depth(*network(params.layers, params.width, seed)))
        if seed < params.explained:
            tick(0.3 + 0.7 * seed / params.explained, "which layers")
            a, b = ({"gpu": gpu, "inputs": "bf16"} for gpu in GPUS)
            model, tokens = network(params.blocks, params.width, seed)
            found.append(explain(model, tokens, a, b, progress=str))
    apart, wrong, same = (np.array(part) for part in zip(*depths, strict=True))
    return Result(
        params, apart, wrong, same,
        alone=filled([[row.alone for row in one.rows] for one in found]),
        back=filled([[row.back for row in one.rows] for one in found]),
        wholes=np.array([one.whole for one in found]),
        rests=np.array([one.rest for one in found]),
        first=np.array([one.first.layer for one in found]),
        sums=np.array([one.first.values for one in found]),
        steps=np.array([[chains[-1].result for chains in one.first.traces] for one in found]),
    )  # fmt: skip


def filled(lists: list[list[float]]) -> np.ndarray:
    """Rows of one length, NaN behind the shorter ones."""
    size = max(map(len, lists))
    return np.array([[*one, *[math.nan] * (size - len(one))] for one in lists])


def network(layers: int, width: int, seed: int) -> tuple[Any, Any]:
    """A transformer as drawn, and tokens (1, 32)."""
    import torch

    from ..training.transformer import transformer

    model = transformer(seed, vocabulary=64, context=32, width=width, layers=layers, heads=2).eval()
    return model, torch.randint(64, (1, 32), generator=torch.Generator().manual_seed(seed))


def by_depth(model: Any, tokens: Any) -> tuple[list[float], list[float], list[float]]:
    """After each block: the difference of both GPUs, H100's error, and the share of equal numbers in BF16."""
    import torch

    from ..nn import emulate

    def after(dtype: Any, gpu: str | None) -> list[Any]:
        one, seen = copy.deepcopy(model).to(dtype), []
        for block in one.blocks:
            block.register_forward_hook(lambda _, __, result: seen.append(result.double()))
        with torch.no_grad():
            if gpu is None:
                one(tokens)
            else:
                with emulate(gpu, inputs="bf16"):
                    one(tokens)
        return seen

    a, h = (after(torch.float32, gpu) for gpu in GPUS)
    exact = after(torch.float64, None)
    low = zip(*(after(torch.bfloat16, gpu) for gpu in GPUS), strict=True)
    apart = [float((x - y).norm() / y.norm()) for x, y in zip(a, h, strict=True)]
    wrong = [float((y - z).norm() / z.norm()) for y, z in zip(h, exact, strict=True)]
    return apart, wrong, [float((x == y).double().mean()) for x, y in low]


def rows(result: Result) -> Columns:
    parts = (result.apart, result.wrong, result.same)
    means = zip(*(part.mean(axis=0).tolist() for part in parts), strict=True)
    names = ["after_layer", "difference", "error_of_h100", "same_in_bf16"]
    return in_columns(names, [(i + 1, *of) for i, of in enumerate(means)])


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.proved("The first operation of the model that multiplies has other bits on A100 and H100, by the units' steps")
def first_product(result: Result) -> Outcome:
    apart = result.steps[:, 0] != result.steps[:, 1]
    moved = np.abs(result.sums[:, 0] - result.sums[:, 1])
    said = say("{n} networks; the elements differ by {least:.1e} to {most:.1e}", n=len(apart), least=moved.min())
    return verdict(bool(apart.all() and (result.first == FIRST).all()), said.fill(most=moved.max()))


@CLAIMS.measured("After the last layer both GPUs are less than half as far from each other as from exact results")
def closer_than_exact(result: Result) -> Outcome:
    """Relative differences, FP32 between products."""
    ratio = result.apart[:, -1] / result.wrong[:, -1]
    said = say("A100 and H100 {least:.1e} to {most:.1e} apart, H100 {wrong:.1e} from exact; their ratio")
    said = said.fill(least=result.apart[:, -1].min(), most=result.apart[:, -1].max(), wrong=result.wrong[:, -1].mean())
    return superior(0.5, ratio, 0.0, said)


@CLAIMS.measured("Where all tensors are BF16, more than nine numbers in ten are the same after the last layer")
def mostly_the_same(result: Result) -> Outcome:
    said = say("{least:.1%} to {most:.1%} after {layers} layers", layers=result.params.layers)
    last = result.same[:, -1]
    return superior(last, 0.9, 0.0, said.fill(least=last.min(), most=last.max()))


@CLAIMS.measured("More than half of the layers change no logit where they alone run on the other GPU")
def absorbed(result: Result) -> Outcome:
    """Of the layers that differ by themselves: what follows rounds their difference away."""
    silent = (result.alone == 0).sum(axis=1) / np.isfinite(result.alone).sum(axis=1)
    said = say("{share:.0%} of {n} layers, {networks} networks", share=silent.mean(), n=result.alone.shape[1])
    return superior(silent, 0.5, 0.0, said.fill(networks=len(silent)))


@one_threaded
def logits_apart(params: Params, seed: int) -> float:
    """How far both GPUs' logits of a network that is explained are apart, the root of the mean square."""
    import torch

    from ..nn import emulate

    (model, tokens), found = network(params.blocks, params.width, seed), []
    for gpu in GPUS:
        with torch.no_grad(), emulate(gpu, inputs="bf16"):
            found.append(model(tokens).double())
    return float((found[1] - found[0]).square().mean().sqrt())


@CLAIMS.proved("What the layers do and the stated rest are the whole difference")
def explained(result: Result) -> Outcome:
    """Both attributions and their mean, to the last bits of FP64; the whole is that of both GPUs' own logits."""
    parts, holds = (result.alone, result.back, (result.alone + result.back) / 2), True
    for i, whole in enumerate(result.wholes.tolist()):
        sums = [math.fsum([*part[i][np.isfinite(part[i])], result.rests[i, n]]) for n, part in enumerate(parts)]
        apart = logits_apart(result.params, i)
        holds &= all(math.isclose(one, apart, rel_tol=1e-13) for one in (whole, *sums))
    left = np.abs(result.rests / result.wholes[:, None])
    said = say("{n} networks; rests of {least:.0%} to {most:.0%} of the whole", n=len(left), least=left.min())
    return verdict(holds, said.fill(most=left.max()))


# --- figures ----------------------------------------------------------------------------------------------------
def depth(result: Result) -> draw.Figure:
    """The difference of both GPUs by depth, a line a network, below H100's error; and what stays the same in BF16."""
    figure, (upper, lower) = draw.panels(8, 6, 2, 1, sharex=True, height_ratios=[3, 2])
    layers = np.arange(1, result.params.layers + 1)
    for ax, lines, label in ((upper, result.apart, "A100 against H100"), (lower, 100 * (1 - result.same), "")):
        for i, line in enumerate(lines):
            ax.plot(layers, line, color=draw.look(0).color, alpha=0.7, label=label if label and not i else None)
    upper.plot(layers, result.wrong.mean(axis=0), **draw.look(1).marked, label="H100 against exact (mean)")
    upper.set(yscale="log", ylabel="relative difference", title="FP32 between products, emulated: a line a network")
    lower.set(xlabel="layer", ylabel="numbers that differ (%)", title="All tensors BF16, A100 against H100")
    lower.set_ylim(0, 110 * max(1e-3, float(1 - result.same.min())))
    lower.xaxis.get_major_locator().set_params(integer=True)
    upper.legend(loc="center")
    return figure


EXPERIMENT = Experiment(
    title=say("Two GPUs through the layers"),
    question=say("How far apart does one network get on an A100 and an H100, and which layers part them?"),
    budget=5.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS, figures=(depth,),
    cases="Both sides are whole networks; the products of their units are asked of a GPU by other experiments.",
)  # fmt: skip
