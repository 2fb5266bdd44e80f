"""What a block's scale saturates and loses: the rules of MXFP8, MXFP4 and NVFP4 on tensors of a trained network.

A transformer guesses characters; its weights, activations and gradients are those of a step after training. Each is
quantised along the dimension that its product sums over. A scale that is a power of two either leaves the largest of a
block beyond the largest element, where it saturates, or leaves codes unused; which costs more depends on the element.
After the OCP Microscaling specification; Mishra et al. 2025, Recipes for Pre-training LLMs with MXFP8 (arXiv
2506.08027); Cook et al. 2025, Four Over Six (arXiv 2512.02010).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import draw, numeric
from ..hardware.cases import Arrays, Case, Meta, philox_bits
from ..hardware.core_cases import where_there_is
from ..hardware.programs import program
from ..hardware.software import gpu_of
from ..hardware.tensors import bits
from ..words import COMMA, joined, say
from .fp8_training import descend
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Part, failed, passed, verdict
from .panels import bars, dots, line
from .quantities import Columns, Test, above, between, in_columns, of, together

if TYPE_CHECKING:
    from ..scaled import Scaled

KINDS = ("weight", "activation", "gradient")
RULES = ("floor", "even", "ceil", "rceil")
PAIR = 32  # values that share one scale in MXFP4, and two in NVFP4
FLOOR, EVEN, CEIL, RCEIL = ({scheme: f"{scheme.upper()} {rule}" for scheme in ("mxfp8", "mxfp4")} for rule in RULES)
NVFP4, FOUR_OVER_SIX = "NVFP4", "NVFP4 4 over 6"
WAYS = {f"{scheme.upper()} {rule}": (scheme, rule) for scheme in ("mxfp8", "mxfp4") for rule in RULES}
WAYS |= {NVFP4: ("nvfp4", "nearest"), FOUR_OVER_SIX: ("nvfp4", "4over6")}

# Fixed before the network's tensors were looked at, from normal, Laplace and Student-t data: in the logarithm of the
# relative error, so 0.01 is 1%.
FLOOR_COSTS, EVEN_GAINS, CEIL_COSTS, FOUR_GAINS, NVFP4_GAINS = 0.05, 0.01, 0.10, 0.02, 0.10
CLIPPED = {"mxfp8": 1 / 8, "mxfp4": 1 / 4}  # of blocks, at least, under floor
FOURS = (0.15, 0.50)  # of blocks take the 4
LEARNED = 0.02  # above the share of the commonest character

E = Experiment(
    "Scales: what a block's scale saturates and loses",
    "Which rule for a block's scale loses least, in eight bits and in four, of what a network multiplies?",
    budget=4.0, one_thread=True,
    # Networks, and how each is trained; rows that are quantised of each matrix; significands of blocks' largest.
    full={"seeds": 6, "steps": 600, "lr": 0.1, "batch": 16, "rows": 1024, "significands": 1 << 20},
    quick={"seeds": 4, "steps": 50, "batch": 8, "rows": 256, "significands": 1 << 13},
)  # fmt: skip


def quantised(x: np.ndarray, way: str) -> Scaled:
    """A matrix (rows, k), quantised along k."""
    from ..scaled import quantize

    scheme, rule = WAYS[way]
    return quantize(x, scheme, rule=rule)


@E.cache
def trained(p: Params, seed: int) -> tuple[float, float, dict[str, list[np.ndarray]]]:
    """Held-out accuracy, the commonest character's share, and the matrices (rows, k) of every linear layer by kind."""
    import torch
    from torch import nn

    from ..training import tasks
    from ..training.loop import Momentum, OutputGradients

    task = tasks.characters(batch=p.batch, tested=4097)
    model = task.model(seed)
    descend(task, model, Momentum(model, p.lr, 0.9), seed, p.steps)
    (batch,) = task.batches(seed, p.steps + 1, p.steps)
    model.zero_grad()
    with OutputGradients(model) as tap:
        task.loss(model, batch).backward()
        inputs, gradients = tap.inputs, tap.take()

    def matrix(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, x.shape[-1])[: p.rows].copy()

    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    layers = {
        "weight": [matrix(layer.weight.detach().numpy()) for layer in linear.values()],
        "activation": [matrix(inputs[name].numpy()) for name in linear],
        "gradient": [matrix(gradients[name]) for name in linear],
    }
    answers = torch.cat([batch.targets.flatten() for batch in task.held_out()])
    return task.evaluate(model), float(answers.bincount().max() / len(answers)), layers


@E.measure("right", "commonest", axes={"seed": "seeds"})
def learned(p: Params, seed: int) -> tuple[float, float]:
    """The share of held-out characters that a network guesses, and that of the commonest one."""
    return trained(p, seed)[:2]


@E.measure("errors", "clipped", axes={"seed": "seeds", "kind": KINDS, "way": WAYS})
def lost(p: Params, seed: int, kind: str, way: str) -> tuple[float, float]:
    """Root of the mean square error relative to the values'; the share of blocks whose largest is beyond the largest
    element."""
    layers = trained(p, seed)[2][kind]
    if way.startswith("MX"):  # its blocks know no tensors
        layers = [np.concatenate([x.reshape(-1, 32) for x in layers])]
    both = [(x, quantised(x, way)) for x in layers]
    wrong = sum(float(((q.dequantize() - x).astype(np.float64) ** 2).sum()) for x, q in both)
    total = float((np.concatenate([x.reshape(-1, 32) for x in layers]).astype(np.float64) ** 2).sum())
    x, q = both[0]
    beyond = np.abs(x).max(1, keepdims=True) > q.factors() * np.float32(q.scheme.element.max)
    return (wrong / total) ** 0.5, float(beyond.mean()) if way.startswith("MX") else 0.0


@E.measure("fours", axes={"seed": "seeds", "kind": KINDS})
def fours(p: Params, seed: int, kind: str) -> float:
    """The share of blocks that 4 over 6 lets take the 4."""
    most = [np.abs(quantised(x, FOUR_OVER_SIX).elements()).reshape(-1, 16).max(1) for x in trained(p, seed)[2][kind]]
    return float((np.concatenate(most) == 4).mean())


@E.measure("largest", axes={"scheme": ("mxfp8", "mxfp4"), "rule": RULES}, dims=("significand",), digested=True)
def largest_of_blocks(p: Params, scheme: str, rule: str) -> np.ndarray:
    """What the largest of a block becomes, relative to it, for significands in [1, 2)."""
    from ..scaled import quantize

    a = (1 + np.arange(p.significands, dtype=np.float64) / p.significands).astype(np.float32)[:, None]
    return np.asarray((quantize(a, scheme, rule=rule, block=(1, 1)).dequantize() / a)[:, 0])


def some(r: Result, kind: str) -> np.ndarray:
    """Of the first network's first layer (16, 64)."""
    return np.asarray(trained(r.p, 0)[2][kind][0][:16, :64])


@E.table
def rows(r: Result) -> Columns:
    """A row for each kind of tensor and way: error, its spread over the networks, clipped blocks, bits a value."""
    from ..scaled import SCHEMES

    table = []
    for kind in KINDS:
        for way, (name, _) in WAYS.items():
            scheme, error = SCHEMES[name], r.errors.sel(kind=kind, way=way).values
            width = scheme.element.bits + scheme.scale.bits / int(scheme.block[1])
            share = float(r.clipped.sel(kind=kind, way=way).values.mean())
            table.append((kind, way, width, float(error.mean()), float(error.std(ddof=1)), share))
    return in_columns(("tensors", "way", "bits_a_value", "error", "error_spread", "blocks_clipped"), table)


# --- claims -----------------------------------------------------------------------------------------------------
@E.proved("floor cuts the largest of a block by up to an eighth in MXFP8, a quarter in MXFP4; ceil and rceil never")
def clipping(r: Result) -> Outcome:
    """Every significand: beyond the largest element it becomes that, below it is rounded, by at most half a step."""
    n = r.p.significands
    significand = 1 + np.arange(n) / n
    for (scheme, most), step in zip((("mxfp8", 1.75), ("mxfp4", 1.5)), (2.0**-4, 2.0**-2), strict=True):  # half a step
        for rule in RULES:
            got = r.largest.sel(scheme=scheme, rule=rule).values.astype(np.float64)
            limit = {"floor": 2.0, "even": 2 - step}.get(rule, most)
            cut = (significand > most) & (significand < limit)
            want = np.where(cut, most / significand, 1.0)
            bound = np.where(cut, 2.0**-20, step / significand + 2.0**-20)
            if (wrong := np.flatnonzero(np.abs(got - want) > bound)).size:
                at = significand[wrong[0]]
                return failed(say("{rule}: {at} becomes {got} of itself", rule=rule, at=at, got=got[wrong[0]]))
    worst = joined((say("{rule} {lost:.1%}", rule=rule, lost=1 - float(r.largest.sel(rule=rule).min()))
                    for rule in RULES[:2]), COMMA)  # fmt: skip
    return passed(say("{n:,} significands, 2 elements, {rules} rules; cut most: {worst}", n=n, rules=len(RULES),
                      worst=worst))  # fmt: skip


@E.proved("codes and scales are those of exact fractions, each operation of a library rounded once")
def definition(r: Result) -> Iterator[Part]:
    from ..scaled import get_scheme, oracle

    for kind, (way, (scheme, rule)) in itertools.product(KINDS, WAYS.items()):
        x = some(r, kind)[:2]
        q, (codes, scales, _) = quantised(x, way), oracle.quantize(x, get_scheme(scheme, rule=rule))
        yield f"{way}, {kind}", q.codes, codes
        yield f"{way}, {kind}", q.scales, scales


@E.library("MXFP8 codes and scales are those that torch's own operations and cast give")
def composed(r: Result) -> Iterator[Part]:
    import torch

    for kind in KINDS:
        x = np.ascontiguousarray(some(r, kind))
        got, want = quantised_by_torch(torch.from_numpy(x)), quantised_by_lab(x)
        for name in got:
            yield name, got[name].numpy(), want[name]


def less(way: str, other: str, margin: float) -> Test:
    """Whether one way loses less than another, by a margin in the logarithm, on each kind of tensor."""
    return above(of("errors", way=other).log, of("errors", way=way).log, by=margin, each="kind")


floor, even, ceil, rceil = (of_scheme["mxfp4"] for of_scheme in (FLOOR, EVEN, CEIL, RCEIL))
E.claim(
    together("trained_networks", "the networks are trained: they guess more characters than the commonest one",
             above(of("right"), of("commonest"), by=LEARNED)),
    together("blocks_clipped",
             "under floor the largest saturates in an eighth of MXFP8's blocks, a quarter of MXFP4's, and more",
             between(of("clipped", way=[*CEIL.values(), *RCEIL.values()]), 0, 0),
             *(above(of("clipped", way=FLOOR[scheme]), by=share, each="kind") for scheme, share in CLIPPED.items())),
    # The unused codes of E4M3 are small numbers, of which it has enough; E2M1 has no codes to spare.
    together("up_in_mxfp8", "in MXFP8 rounding the scale up loses less than floor",
             less(RCEIL["mxfp8"], FLOOR["mxfp8"], FLOOR_COSTS)),
    together("even_in_mxfp4", "in MXFP4 even loses least of the powers of two, and ceil most",
             less(even, floor, EVEN_GAINS), less(even, rceil, EVEN_GAINS), less(even, ceil, CEIL_COSTS),
             less(floor, ceil, 0), less(rceil, ceil, 0)),
    # Blocks of 16 with scales that have a fraction, for a quarter of a bit a value.
    together("nvfp4_beats_mxfp4", "NVFP4 loses less than MXFP4 by its best rule", less(NVFP4, even, NVFP4_GAINS)),
    together("four_over_six",
             "4 over 6 loses less than NVFP4 without, and takes the 4 in some blocks of every kind of tensor",
             between(of("fours"), *FOURS), less(FOUR_OVER_SIX, NVFP4, FOUR_GAINS)),
)  # fmt: skip


@E.proved("a value takes 8.25 bits in MXFP8, 4.25 in MXFP4, 4.5 in NVFP4")
def bits_a_value(r: Result) -> Outcome:
    """Codes as they are packed, and scales; NVFP4's one FP32 number a tensor is left out."""
    x = np.ones((64, 256), np.float32)
    scaled = {WAYS[way][0]: quantised(x, way) for way in (FLOOR["mxfp8"], FLOOR["mxfp4"], NVFP4)}
    each = {name: (8 * q.nbytes - (32 if q.amax is not None else 0)) / x.size for name, q in scaled.items()}
    detail = joined((say("{scheme} {bits:g}", scheme=name.upper(), bits=width) for name, width in each.items()), COMMA)
    return verdict(each == {"mxfp8": 8.25, "mxfp4": 4.25, "nvfp4": 4.5}, detail)


# --- GPU cases --------------------------------------------------------------------------------------------------
SHAPE = (32, 128)  # rows, k
UNITS = {"mxfp8": ("mxfp8_e4m3", 32, "float8_e8m0fnu"), "nvfp4": ("nvfp4", 16, "float8_e4m3fn")}
BLACKWELL = ("B200", "RTXPRO6000")


def drawn_values() -> Arrays:
    """Blocks of many sizes, one of zeros."""
    x = (philox_bits(810, *SHAPE) & 0x803FFFFF | 0x3F800000).view(np.float32).reshape(-1, 32)
    sizes = np.exp2((philox_bits(811, len(x)) % 41).astype(np.float32) - 20)
    x = (x * sizes[:, None] * (philox_bits(812, *x.shape) % 7 / 6).astype(np.float32)).astype(np.float32)
    x[5] = 0
    return {"x": x.reshape(SHAPE).view(np.uint32)}


def quantised_by_torch(x: Any) -> dict[str, Any]:
    """MXFP8 by floor and rceil, of torch's operations: the exponent by bits, one product, one cast."""
    import torch

    x = x.unflatten(-1, (-1, 32))
    most = x.abs().amax(-1, keepdim=True)
    results = {}
    for rule in ("floor", "rceil"):
        words = (most * torch.tensor(1 / 448, dtype=torch.float32) if rule == "rceil" else most).view(torch.int32)
        code = ((words + (0x7FFFFF if rule == "rceil" else 0)) >> 23) - (0 if rule == "rceil" else 8)
        code = code.clamp(0, 254)
        factor = torch.where(code == 254, torch.tensor(2.0**-127), ((254 - code) << 23).view(torch.float32))
        codes = (x * factor).clamp(-448, 448).to(torch.float8_e4m3fn)
        results[f"{rule}_codes"] = codes.flatten(-2).view(torch.uint8)
        results[f"{rule}_scales"] = code.squeeze(-1).to(torch.uint8)
    return results


def quantised_by_lab(x: np.ndarray) -> dict[str, np.ndarray]:
    """The same by the lab."""
    from ..scaled import quantize

    both_rules = {rule: quantize(x, "mxfp8", rule=rule) for rule in ("floor", "rceil")}
    return {f"{rule}_{part}": getattr(q, part) for rule, q in both_rules.items() for part in ("codes", "scales")}


def drawn_codes(scheme: str) -> Arrays:
    """Codes of both operands, one a byte, and codes of their scales, none of them a NaN."""
    _, block, _ = UNITS[scheme]
    operands = {}
    for i, name in enumerate("ab"):
        codes = philox_bits(820 + i, *SHAPE) & (15 if scheme == "nvfp4" else 0xFF)
        scales = philox_bits(830 + i, SHAPE[0], SHAPE[1] // block)
        operands[name] = np.where(codes & 0x7F == 0x7F, 0, codes).astype(np.uint8)
        operands[f"scale_{name}"] = (scales % 17 + (119 if scheme == "mxfp8" else 48)).astype(np.uint8)
    return operands


def block_scaled(scheme: str, given: Arrays, device: str) -> Arrays:
    """Codes packed and scales in tiles, as ``torch._scaled_mm`` takes them, and its product."""
    import torch

    operands, scales = [], []
    for name in "ab":
        codes, scale = given[name], given[f"scale_{name}"]
        if scheme == "nvfp4":
            codes = codes[:, 0::2] | codes[:, 1::2] << 4
        tiles = np.pad(scale, [(0, 128 - len(scale)), (0, -scale.shape[1] % 4)]).reshape(4, 32, -1, 4)
        scale = np.ascontiguousarray(tiles.transpose(2, 1, 0, 3)).reshape(-1)
        kind = torch.float4_e2m1fn_x2 if scheme == "nvfp4" else torch.float8_e4m3fn
        operands.append(torch.from_numpy(np.ascontiguousarray(codes)).to(device).view(kind))
        scales.append(torch.from_numpy(scale).to(device).view(getattr(torch, UNITS[scheme][2])))
    d = torch._scaled_mm(operands[0], operands[1].t(), scales[0], scales[1], out_dtype=torch.float32)
    return {"d": bits(d)}


def multiplied_by_lab(scheme: str, given: Arrays, meta: Meta) -> Arrays:
    """The same in the bits of the record's GPU, or of a B200 where that has no such unit."""
    from ..tensorcore import matmul

    inputs, _, _ = UNITS[scheme]
    element, scale = ("e2m1", "e4m3") if scheme == "nvfp4" else ("e4m3", "e8m0")
    a, b = (numeric.decode(given[name], element) for name in "ab")
    sa, sb = (numeric.decode(given[f"scale_{name}"], scale) for name in "ab")
    gpu = gpu_of(meta)
    d = matmul(a, b.T, gpu=gpu if gpu in BLACKWELL else "B200", inputs=inputs, scale_a=sa, scale_b=sb.T)
    return {"d": np.asarray(d).view(np.uint32)}


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """A quantiser of torch's operations on any GPU; products with block scales where there are units for them."""
    outputs = [f"{rule}_{part}" for rule in ("floor", "rceil") for part in ("codes", "scales")]
    yield program("mxfp8_quantised", drawn_values, {"x": "fp32"}, quantised_by_torch, dict.fromkeys(outputs, "bits8"),
                  quantised_by_lab)  # fmt: skip
    for scheme in UNITS:
        emulate = partial(multiplied_by_lab, scheme)
        compute = partial(where_there_is, scheme.upper(), (10, 0), partial(block_scaled, scheme), emulate)
        yield Case(
            f"{scheme}_product", partial(drawn_codes, scheme), compute, emulate, {"d": "fp32"},
            open="What does a product with block scales round, and where?", hypotheses={"the lab's model": emulate},
        )  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------
def telling(r: Result) -> np.ndarray:
    """Of gradients the pair of blocks of 16 whose largest differ most typically, as shares of the largest."""
    blocks = np.concatenate([x.reshape(-1, PAIR) for x in trained(r.p, 0)[2]["gradient"]])
    most = np.sort(np.abs(blocks).reshape(len(blocks), 2, -1).max(-1), axis=1)
    there = np.flatnonzero(most[:, 0] > 0)
    ratio = most[there, 1] / most[there, 0]
    pair = blocks[there[np.argsort(ratio, kind="stable")[int(0.9 * len(there))]]]
    return np.asarray(pair / np.abs(pair).max())


def block(way: str, title: str) -> Any:
    """A panel of 32 gradients, what a way makes of them, and what its codes stand for, as faint lines."""

    def drawn(ax: draw.Axes, r: Result) -> None:
        x = telling(r)
        q = quantised(x[None], way)
        wide, after = int(q.scheme.block[1]), q.dequantize()[0]
        for b, factor in enumerate(q.factors()[0]):
            levels = factor * np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
            ax.hlines([*levels, *-levels], b * wide - 0.5, (b + 1) * wide - 0.5, color=draw.current().grid, linewidth=1)
        ax.vlines(range(PAIR), x, after, color=draw.look(1).color, linewidth=2)
        ax.plot(x, linestyle="none", marker="o", markersize=5, color=draw.look(0).color, label="gradient")
        ax.plot(after, linestyle="none", marker="_", markersize=10, markeredgewidth=2, color=draw.current().ink,
                label="quantised")  # fmt: skip
        error = 100 * np.sqrt(((after - x) ** 2).sum() / (x**2).sum())
        ax.set(title=f"{title}; error {error:.1f}%", ylabel="share of the largest",
               xlabel="place in the block (lines: what the codes stand for)")  # fmt: skip
        ax.grid(visible=False)
        ax.legend(loc="best", ncols=2)

    return drawn


def percent(what: str, **where: Any) -> Any:
    """The mean over networks, in percent."""
    return of(what, **where).mean("seed") * 100


E.answer("MXFP4 loses {even:.0%} of gradients with its best rule for scales, {ceil:.0%} with ceil; NVFP4 with its 4 "
         "over 6 rule loses {nv:.0%}",
         even=of("errors", kind="gradient", way=EVEN["mxfp4"]), ceil=of("errors", kind="gradient", way=CEIL["mxfp4"]),
         nv=of("errors", kind="gradient", way=FOUR_OVER_SIX))  # fmt: skip
E.figure(
    "errors",
    dots(of("errors") * 100, y="way", hue="kind", xlim=(0, None), xlabel="error (% of root mean square)",
         title="What each way loses: a point a network"),
    size=(8, 6),
)  # fmt: skip
E.figure(
    "clipped",
    line(of("largest", scheme="mxfp4", rule=["floor", "ceil"]).then("largest", lambda x: 100 * x - 100),
         x="significand", hue="rule", xlabel="significand of the block's largest: from 1 to 2", xticks=(),
         ylabel="the largest changes by (%)", title="MXFP4 (E2M1): the largest of a block"),
    bars(percent("clipped", way=[*FLOOR.values(), *EVEN.values()]), x="kind", hue="way", ylabel="blocks (%)",
         legend={"loc": "upper center"},
         title="Blocks whose largest is beyond the largest element (ceil, rceil: none)"),
    size=(8, 7.6),
)  # fmt: skip
E.figure("one_block", block(FLOOR["mxfp4"], "MXFP4: 32 share a power of two, by floor"),
         block(NVFP4, "NVFP4: 16 share a scale in E4M3"), size=(8, 7.4))  # fmt: skip
E.figure(
    "choice",
    bars(percent("fours"), x="kind", ylabel="blocks that take the 4 (%)", title="Where the 4 loses less"),
    bars(percent("errors", way=[NVFP4, FOUR_OVER_SIX]), x="kind", hue="way", ylabel="error (%)",
         legend={"loc": "lower center"}, title="What 4 over 6 saves"),
    size=(8, 4.2), grid=(1, 2),
)  # fmt: skip
