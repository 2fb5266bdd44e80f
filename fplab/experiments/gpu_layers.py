"""A100 against H100 through the layers of a transformer: how far apart does one network get on two GPUs?

Both multiply the same BF16 operands and add them up differently: blocks of 8 products cut at 24 bits, blocks of 16 at
25. So the first product of all has other bits. What follows depends on what lies between the products: a result that
is rounded to BF16 is mostly the same number on both, and then nothing is left of the difference. Where it is not, one
operand is another by a whole unit of BF16, and the difference is as large as that from there on.

The network is GPT-2's shape with weights as drawn, no training; between products it computes in FP32, or its tensors
are BF16.
"""

import copy
import math
from typing import Any

import numpy as np

from ..words import say
from .frame import Experiment, Params, Result
from .outcomes import Outcome, verdict
from .panels import line
from .quantities import Columns, beside, in_columns, of, superior

GPUS = ("A100", "H100")
FIRST = "blocks.0.attention.qkv"

E = Experiment(
    "Two GPUs through the layers",
    "How far apart does one network get on an A100 and an H100, and which layers part them?",
    budget=5.0, one_thread=True,
    # Networks of layers and a width; so many, of blocks layers each, are explained.
    full={"seeds": 8, "layers": 24, "width": 32, "explained": 2, "blocks": 24},
    quick={"seeds": 3, "blocks": 2},
    gpu="Both sides are whole networks; the products of their units are asked of a GPU by other experiments.",
)  # fmt: skip


def network(layers: int, width: int, seed: int) -> tuple[Any, Any]:
    """A transformer as drawn, and tokens (1, 32)."""
    import torch

    from ..training.transformer import transformer

    model = transformer(seed, vocabulary=64, context=32, width=width, layers=layers, heads=2).eval()
    return model, torch.randint(64, (1, 32), generator=torch.Generator().manual_seed(seed))


def after_blocks(p: Params, seed: int, dtype: str, gpu: str = "") -> list[Any]:
    """What each block of a network gives in a dtype, on a GPU or, without one, exactly."""
    import torch

    from ..nn import emulate

    model, tokens = network(p.layers, p.width, seed)
    model, results = copy.deepcopy(model).to(getattr(torch, dtype)), []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, result: results.append(result.double()))
    with torch.no_grad():
        if not gpu:
            model(tokens)
        else:
            with emulate(gpu, inputs="bf16"):
                model(tokens)
    return results


@E.measure("apart", "wrong", "same", axes={"seed": "seeds", "layer": ...})
def by_depth(p: Params, seed: int) -> tuple[dict[int, float], ...]:
    """After each block: the relative difference of both GPUs and H100's error against FP64, FP32 between products; and
    the share of numbers that are the same where all tensors are BF16."""
    a, h = (after_blocks(p, seed, "float32", gpu) for gpu in GPUS)
    exact = after_blocks(p, seed, "float64")
    low = zip(*(after_blocks(p, seed, "bfloat16", gpu) for gpu in GPUS), strict=True)
    apart = (float((x - y).norm() / y.norm()) for x, y in zip(a, h, strict=True))
    wrong = (float((y - z).norm() / z.norm()) for y, z in zip(h, exact, strict=True))
    same = (float((x == y).double().mean()) for x, y in low)
    by_layer: tuple[dict[int, float], ...] = tuple(dict(enumerate(part, 1)) for part in (apart, wrong, same))
    return by_layer


@E.cache
def explanation(p: Params, seed: int) -> Any:
    """Why both GPUs' logits of a network differ."""
    from ..nn import explain

    a, b = ({"gpu": gpu, "inputs": "bf16"} for gpu in GPUS)
    return explain(*network(p.blocks, p.width, seed), a, b, progress=str)


@E.measure("alone", "back", axes={"network": "explained", "part": ...})
def effects(p: Params, network: int) -> tuple[dict[str, float], ...]:
    """What each layer that differs by itself does to the logits alone on H100, and taken back to A100."""
    rows = explanation(p, network).rows
    return {row.layer: row.alone for row in rows}, {row.layer: row.back for row in rows}


@E.measure("whole", "rests", "first", "sums", "steps", axes={"network": "explained"}, dims=("which",))
def parting(p: Params, network: int) -> tuple[float, tuple[float, ...], str, tuple[float, ...], list[float]]:
    """The whole difference, and what both attributions and their mean leave of it; of the first operation that is apart
    its layer, its element on both GPUs, and their chains' last results."""
    why = explanation(p, network)
    return why.whole, why.rest, why.first.layer, why.first.values, [c[-1].result for c in why.first.traces]


@E.table
def rows(r: Result) -> Columns:
    """A row for each layer, means over networks."""
    means = zip(*(part.values.mean(axis=0).tolist() for part in (r.apart, r.wrong, r.same)), strict=True)
    names = ("after_layer", "difference", "error_of_h100", "same_in_bf16")
    return in_columns(names, [(i, *parts) for i, parts in enumerate(means, 1)])


# --- claims -----------------------------------------------------------------------------------------------------
@E.proved("The first operation of the model that multiplies has other bits on A100 and H100, by the units' steps")
def first_product(r: Result) -> Outcome:
    moved = abs(r.sums[:, 0] - r.sums[:, 1]).values
    detail = say("{n} networks; the elements differ by {least:.1e} to {most:.1e}", n=len(moved), least=moved.min())
    apart = bool((r.steps[:, 0] != r.steps[:, 1]).all() and (r.first == FIRST).all())
    return verdict(apart, detail.fill(most=moved.max()))


E.claim(
    superior("closer_than_exact",
             "After the last layer both GPUs are less than half as far from each other as from exact results",
             0.5, of("apart", layer=-1) / of("wrong", layer=-1)),
    superior("mostly_the_same",
             "Where all tensors are BF16, more than nine numbers in ten are the same after the last layer",
             of("same", layer=-1), 0.9),
    # Of the layers that differ by themselves: what follows rounds their difference away.
    superior("absorbed", "More than half of the layers change no logit where they alone run on the other GPU",
             of("alone").then("share of layers", lambda x: (x == 0).sum("part") / x.notnull().sum("part")), 0.5),
)  # fmt: skip


def logits_apart(p: Params, seed: int) -> float:
    """How far both GPUs' logits of a network that is explained are apart, the root of the mean square."""
    import torch

    from ..nn import emulate

    (model, tokens), logits = network(p.blocks, p.width, seed), []
    for gpu in GPUS:
        with torch.no_grad(), emulate(gpu, inputs="bf16"):
            logits.append(model(tokens).double())
    return float((logits[1] - logits[0]).square().mean().sqrt())


@E.proved("What the layers do and the stated rest are the whole difference")
def explained(r: Result) -> Outcome:
    """Both attributions and their mean, to the last bits of FP64; the whole is that of both GPUs' own logits."""
    parts = (r.alone, r.back, (r.alone + r.back) / 2)
    sums = [[math.fsum([*part[i].dropna("part").values, r.rests.values[i, n]]) for n, part in enumerate(parts)]
            for i in range(r.p.explained)]  # fmt: skip
    apart = np.array([logits_apart(r.p, i) for i in range(r.p.explained)])
    holds = np.allclose([[whole, *each] for whole, each in zip(r.whole.values, sums, strict=True)], apart[:, None],
                        rtol=1e-13, atol=0)  # fmt: skip
    left = abs(r.rests / r.whole).values
    detail = say("{n} networks; rests of {least:.0%} to {most:.0%} of the whole", n=len(left), least=left.min())
    return verdict(bool(holds), detail.fill(most=left.max()))


E.answer("after {layers} layers A100 and H100 are {apart:.0e} apart, and H100 {wrong:.0e} from exact; all in BF16, "
         "{same:.1%} of values agree",
         layers=lambda r: r.p.layers, apart=of("apart", layer=-1), wrong=of("wrong", layer=-1),
         same=of("same", layer=-1))  # fmt: skip
E.figure(
    "depth",
    line(beside("difference", {"A100 against H100": of("apart"), "H100 against exact (mean)": of("wrong")}), x="layer",
         hue="difference", log="y", ylabel="relative difference", xlabel="layer",
         title="FP32 between products, emulated: a band of networks"),
    line(of("same") * -100 + 100, x="layer", xlabel="layer", ylabel="numbers that differ (%)", ylim=(0, None),
         title="All tensors BF16, A100 against H100"),
    size=(8, 6),
)  # fmt: skip
