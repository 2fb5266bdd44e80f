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
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import draw, numeric
from ..hardware.cases import Arrays, Case, Meta, NotHereError, philox_bits
from ..hardware.software import gpu_of
from ..hardware.tensors import bits, tensor
from ..words import COMMA, joined, say
from .base import Claims, Columns, Digested, Experiment, Tick, in_columns, one_threaded
from .fp8_training import descend
from .outcomes import Outcome, Status, failed, passed, same_bits, verdict
from .statistics import both, superior

if TYPE_CHECKING:
    from ..scaled import Scaled

KINDS = ("weight", "activation", "gradient")
RULES = ("floor", "even", "ceil", "rceil")
NO_CLIP = ("ceil", "rceil")
PAIR = 32  # values that share one scale in MXFP4, and two in NVFP4


class Way(NamedTuple):
    """One way to quantise: a scheme, how it chooses a scale, and whose bits."""

    scheme: str
    rule: str

    def __call__(self, x: np.ndarray) -> Scaled:
        """A matrix (rows, k) along k."""
        from ..scaled import quantize

        return quantize(x, self.scheme, rule=self.rule)

    @property
    def title(self) -> str:
        return f"{self.scheme.upper()} {self.rule.replace('4over6', '4 over 6').replace('nearest', '')}".rstrip()


MX8, MX4 = ([Way(scheme, rule) for rule in RULES] for scheme in ("mxfp8", "mxfp4"))
NVFP4, FOUR_OVER_SIX = Way("nvfp4", "nearest"), Way("nvfp4", "4over6")
WAYS = (*MX8, *MX4, NVFP4, FOUR_OVER_SIX)

# Fixed before the network's tensors were looked at, from normal, Laplace and Student-t data: in the logarithm of the
# relative error, so 0.01 is 1%.
FLOOR_COSTS, EVEN_GAINS, CEIL_COSTS, FOUR_GAINS, NVFP4_GAINS = 0.05, 0.01, 0.10, 0.02, 0.10
CLIPPED = {"mxfp8": 1 / 8, "mxfp4": 1 / 4}  # of blocks, at least, under floor
FOURS = (0.15, 0.50)  # of blocks take the 4
LEARNED = 0.02  # above the share of the commonest character


@dataclass(frozen=True)
class Params:
    """``seeds``: networks; ``steps``, ``lr``, ``batch``: how each is trained. ``rows``: quantised, of each matrix.

    ``significands``: of blocks' largest.
    """

    seeds: int = 6
    steps: int = 600
    lr: float = 0.1
    batch: int = 16
    rows: int = 1024
    significands: int = 1 << 20


QUICK = Params(seeds=4, steps=50, batch=8, rows=256, significands=1 << 13)


@dataclass(frozen=True)
class Result:
    """By seed and kind of tensor: ``errors`` (seeds, kinds, ways), root of the mean square relative to the values';
    ``clipped``, the share of blocks whose largest is beyond the largest element; ``fours`` (seeds, kinds), of those
    that 4 over 6 lets take the 4. ``right`` (seeds,): guessed characters; ``commonest``: the share of that character.

    Of the first network: ``tensors`` (kinds, 16, 64), float32; ``pair``, 32 gradients; ``by_choice`` (2, blocks): the
    relative error of blocks of gradients as a 6 and as a 4. ``largest``: what the largest of a block becomes, relative
    to it, by scheme, rule and significand: float32 (2, rules, significands).
    """

    params: Params
    errors: np.ndarray
    clipped: np.ndarray
    fours: np.ndarray
    right: np.ndarray
    commonest: np.ndarray
    tensors: np.ndarray
    pair: np.ndarray
    by_choice: np.ndarray
    largest: Digested

    def error(self, way: Way, kind: int) -> np.ndarray:
        return np.asarray(self.errors[:, kind, WAYS.index(way)])

    def share(self, way: Way, kind: int) -> np.ndarray:
        """Of blocks that are clipped, of each network."""
        return np.asarray(self.clipped[:, kind, WAYS.index(way)])


@one_threaded
def run(params: Params, tick: Tick) -> Result:
    found, first = [], None
    for seed in range(params.seeds):
        tick(seed / params.seeds, f"network {seed + 1}")
        right, commonest, layers = trained(params, seed)
        found.append((*lost(layers), right))
        first = layers if first is None else first
    assert first is not None
    errors, clipped, fours, rights = map(np.array, zip(*found, strict=True))
    tensors = np.stack([first[kind][0][:16, :64] for kind in KINDS])
    gradients = np.concatenate([x.reshape(-1, PAIR) for x in first["gradient"]])
    return Result(
        params, errors, clipped, fours, rights, np.array(commonest), tensors, telling(gradients),
        choices(first["gradient"]), largest_of_blocks(params.significands),
    )  # fmt: skip


def trained(params: Params, seed: int) -> tuple[float, float, dict[str, list[np.ndarray]]]:
    """Held-out accuracy, the commonest character's share, and the matrices (rows, k) of every linear layer by kind."""
    import torch
    from torch import nn

    from ..training import tasks
    from ..training.loop import Momentum, OutputGradients

    task = tasks.characters(batch=params.batch, tested=4097)
    model = task.model(seed)
    descend(task, model, Momentum(model, params.lr, 0.9), seed, params.steps)
    (batch,) = task.batches(seed, params.steps + 1, params.steps)
    model.zero_grad()
    with OutputGradients(model) as tap:
        task.loss(model, batch).backward()
        inputs, gradients = tap.inputs, tap.take()

    def matrix(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, x.shape[-1])[: params.rows].copy()

    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    layers = {
        "weight": [matrix(layer.weight.detach().numpy()) for layer in linear.values()],
        "activation": [matrix(inputs[name].numpy()) for name in linear],
        "gradient": [matrix(gradients[name]) for name in linear],
    }
    answers = torch.cat([held.targets.flatten() for held in task.held_out()])
    return task.evaluate(model), float(answers.bincount().max() / len(answers)), layers


def lost(layers: dict[str, list[np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors and clipped blocks (kinds, ways), and blocks that take the 4 (kinds,)."""
    errors, clipped = np.zeros((2, len(KINDS), len(WAYS)))
    fours = np.zeros(len(KINDS))
    for k, kind in enumerate(KINDS):
        blocks = [np.concatenate([x.reshape(-1, 32) for x in layers[kind]])]  # of MX, which know no tensors
        total = float((blocks[0].astype(np.float64) ** 2).sum())
        for w, way in enumerate(WAYS):
            found = [(x, way(x)) for x in (layers[kind] if way.scheme == "nvfp4" else blocks)]
            wrong = sum(float(((q.dequantize() - x).astype(np.float64) ** 2).sum()) for x, q in found)
            errors[k, w] = (wrong / total) ** 0.5
            if way.scheme != "nvfp4":
                ((x, q),) = found
                clipped[k, w] = (
                    np.abs(x).max(1, keepdims=True) > q.factors() * np.float32(q.scheme.element.max)
                ).mean()
            elif way == FOUR_OVER_SIX:
                most = [np.abs(q.elements()).reshape(-1, 16).max(1) for _, q in found]
                fours[k] = (np.concatenate(most) == 4).mean()
    return errors, clipped, fours


def telling(blocks: np.ndarray) -> np.ndarray:
    """The pair of blocks of 16 whose largest differ most typically: the median ratio among those that show one."""
    most = np.sort(np.abs(blocks).reshape(len(blocks), 2, -1).max(-1), axis=1)
    there = np.flatnonzero(most[:, 0] > 0)
    ratio = most[there, 1] / most[there, 0]
    return np.asarray(blocks[there[np.argsort(ratio, kind="stable")[int(0.9 * len(there))]]])


def choices(matrices: list[np.ndarray]) -> np.ndarray:
    """Relative error of each block of 16 as a 6 and as a 4 (2, blocks), at most 1,000 of them, of every layer."""
    found = []
    for x in matrices:
        six, chosen = NVFP4(x), FOUR_OVER_SIX(x)
        errors = [np.abs(q.dequantize() - x).reshape(-1, 16).sum(1) for q in (six, chosen)]
        size = np.abs(x).reshape(-1, 16).sum(1)
        there = size > 0
        found.append(np.array(errors)[:, there] / size[there])
    every = np.concatenate(found, 1)
    return every[:, :: -(-every.shape[1] // 1000)]


def largest_of_blocks(significands: int) -> np.ndarray:
    """A block's largest after quantising over itself, for significands in [1, 2): (2, rules, significands)."""
    from ..scaled import quantize

    a = (1 + np.arange(significands, dtype=np.float64) / significands).astype(np.float32)[:, None]
    return np.array(
        [
            [(quantize(a, scheme, rule=rule, block=(1, 1)).dequantize() / a)[:, 0] for rule in RULES]
            for scheme in ("mxfp8", "mxfp4")
        ]
    )


def rows(result: Result) -> Columns:
    """A row for each kind of tensor and way: error, its spread over the networks, clipped blocks, bits a value."""
    names = ("tensors", "way", "bits_a_value", "error", "error_spread", "blocks_clipped")
    from ..scaled import SCHEMES

    table = []
    for (k, kind), way in itertools.product(enumerate(KINDS), WAYS):
        error, share = result.error(way, k), result.share(way, k)
        spread = float(error.std(ddof=1))
        scheme = SCHEMES[way.scheme]
        width = scheme.element.bits + scheme.scale.bits / int(scheme.block[1])
        table.append((kind, way.title, width, float(error.mean()), spread, float(share.mean())))
    return in_columns(names, table)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.measured("the networks are trained: they guess more characters than the commonest one")
def trained_networks(result: Result) -> Outcome:
    said = say("{right:.1%} right, the commonest is {share:.1%}", right=result.right.mean(), share=result.commonest)
    return superior(result.right, float(result.commonest), LEARNED, said)


@CLAIMS.proved(
    "floor cuts the largest of a block by up to an eighth in MXFP8, a quarter in MXFP4; ceil and rceil never"
)
def clipping(result: Result) -> Outcome:
    """Every significand: beyond the largest element it becomes that, below it is rounded, by at most half a step."""
    n = result.params.significands
    significand = 1 + np.arange(n) / n
    for s, (most, step) in enumerate(((1.75, 2.0**-4), (1.5, 2.0**-2))):  # half a step, relative to a significand of 1
        for rule, got in zip(RULES, result.largest[s].astype(np.float64), strict=True):
            limit = {"floor": 2.0, "even": 2 - step}.get(rule, most)
            cut = (significand > most) & (significand < limit)
            want = np.where(cut, most / significand, 1.0)
            bound = np.where(cut, 2.0**-20, step / significand + 2.0**-20)
            if (wrong := np.flatnonzero(np.abs(got - want) > bound)).size:
                at = significand[wrong[0]]
                return failed(say("{rule}: {at} becomes {got} of itself", rule=rule, at=at, got=got[wrong[0]]))
    worst = joined((say("{rule} {lost:.1%}", rule=rule, lost=1 - result.largest[:, r].min())
                    for r, rule in enumerate(RULES[:2])), COMMA)  # fmt: skip
    return passed(say("{n:,} significands, 2 elements, {rules} rules; cut most: {worst}", n=n, rules=len(RULES),
                      worst=worst))  # fmt: skip


@CLAIMS.proved("codes and scales are those of exact fractions, each operation of a library rounded once")
def definition(result: Result) -> Outcome:
    from ..scaled import get_scheme, oracle

    for kind, x in zip(KINDS, result.tensors[:, :2], strict=True):
        for way in WAYS:
            q = way(x)
            codes, scales, _ = oracle.quantize(x, get_scheme(way.scheme, rule=way.rule))
            for got, want, what in ((q.codes, codes, "codes"), (q.scales, scales, "scales")):
                if not np.array_equal(got, want):
                    return failed(say("{what} of {way}, {kind}", what=what, way=way.title, kind=kind))
    return passed(say("{n:,} values, {ways} ways", n=result.tensors[:, :2].size, ways=len(WAYS)))


@CLAIMS.library("MXFP8 codes and scales are those that torch's own operations and cast give")
def composed(result: Result) -> Outcome:
    for x in result.tensors:
        given = {"x": np.ascontiguousarray(x).view(np.uint32)}
        got, want = quantised_by_torch(given, "cpu"), quantised_by_lab(given, {})
        for name in got:
            outcome = same_bits(got[name], want[name], "bits8")
            if outcome.status is not Status.PASS:
                return failed(say("{what}: {found}", what=name, found=outcome.detail))
    return passed(say("{n:,} values, floor and rceil, every bit", n=result.tensors.size))


def less(result: Result, one: Way, other: Way, margin: float) -> Outcome:
    """Whether one way loses less than another, by a margin in the logarithm, on each kind of tensor."""
    found = []
    for k, kind in enumerate(KINDS):
        mine, others = result.error(one, k), result.error(other, k)
        said = say("{kind}: {one:.2%} against {other:.2%}", kind=kind, one=mine.mean(), other=others.mean())
        found.append(superior(np.log(others), np.log(mine), margin, said))
    return both(*found)


@CLAIMS.measured("under floor the largest saturates in an eighth of MXFP8's blocks, a quarter of MXFP4's, and more")
def blocks_clipped(result: Result) -> Outcome:
    """Shares of blocks, on every kind of tensor; ceil and rceil clip none."""
    silent = [WAYS.index(way) for way in (*MX8, *MX4) if way.rule in NO_CLIP]
    if (beyond := result.clipped[..., silent].max()) > 0:
        return failed(say("ceil or rceil clips {share:.1%} of blocks", share=beyond))
    found = []
    for way, (k, kind) in itertools.product((MX8[0], MX4[0]), enumerate(KINDS)):
        share, least = result.share(way, k), CLIPPED[way.scheme]
        said = say("{way}, {kind}: {share:.1%}", way=way.title, kind=kind, share=share.mean())
        found.append(superior(share, 0.0, least, said))
    return both(*found)


@CLAIMS.measured("in MXFP8 rounding the scale up loses less than floor")
def up_in_mxfp8(result: Result) -> Outcome:
    """The unused codes of E4M3 are small numbers, of which it has enough."""
    return less(result, MX8[RULES.index("rceil")], MX8[0], FLOOR_COSTS)


@CLAIMS.measured("in MXFP4 even loses least of the powers of two, and ceil most")
def even_in_mxfp4(result: Result) -> Outcome:
    """Less than floor and rceil, and ceil more than that: E2M1 has no codes to spare."""
    floor, even, ceil, rceil = MX4
    return both(less(result, even, floor, EVEN_GAINS), less(result, even, rceil, EVEN_GAINS),
                less(result, even, ceil, CEIL_COSTS), less(result, floor, ceil, 0.0),
                less(result, rceil, ceil, 0.0))  # fmt: skip


@CLAIMS.measured("NVFP4 loses less than MXFP4 by its best rule")
def nvfp4_beats_mxfp4(result: Result) -> Outcome:
    """Blocks of 16 with scales that have a fraction, for a quarter of a bit a value."""
    return less(result, NVFP4, MX4[RULES.index("even")], NVFP4_GAINS)


@CLAIMS.measured("4 over 6 loses less than NVFP4 without, and takes the 4 in some blocks of every kind of tensor")
def four_over_six(result: Result) -> Outcome:
    """The error, and the share of blocks that choose the 4."""
    few, many = result.fours.min(), result.fours.max()
    if not FOURS[0] < few <= many < FOURS[1]:
        return failed(say("{few:.1%} to {many:.1%} of blocks take the 4", few=few, many=many))
    return less(result, FOUR_OVER_SIX, NVFP4, FOUR_GAINS)


@CLAIMS.proved("a value takes 8.25 bits in MXFP8, 4.25 in MXFP4, 4.5 in NVFP4")
def bits_a_value(result: Result) -> Outcome:
    """Codes as they are packed, and scales; NVFP4's one FP32 number a tensor is left out."""
    x = np.ones((64, 256), np.float32)
    found = {scheme: 8 * (way := Way(scheme, rule)(x)).nbytes - (32 if way.amax is not None else 0)
             for scheme, rule in (MX8[0], MX4[0], NVFP4)}  # fmt: skip
    each = {scheme: count / x.size for scheme, count in found.items()}
    said = joined((say("{scheme} {bits:g}", scheme=name.upper(), bits=width) for name, width in each.items()), COMMA)
    return verdict(each == {"mxfp8": 8.25, "mxfp4": 4.25, "nvfp4": 4.5}, said)


# --- GPU cases --------------------------------------------------------------------------------------------------
SHAPE = (32, 128)  # rows, k
UNITS = {"mxfp8": ("mxfp8_e4m3", 32, "float8_e8m0fnu"), "nvfp4": ("nvfp4", 16, "float8_e4m3fn")}
BLACKWELL = ("B200", "RTXPRO6000")


def drawn_values() -> Arrays:
    """Blocks of many sizes, one of zeros."""
    x = (philox_bits(810, SHAPE[0] * SHAPE[1]) & 0x803FFFFF | 0x3F800000).view(np.float32).reshape(-1, 32)
    sizes = np.exp2((philox_bits(811, len(x)) % 41).astype(np.float32) - 20)
    x = (x * sizes[:, None] * (philox_bits(812, x.size) % 7 / 6).astype(np.float32).reshape(x.shape)).astype(np.float32)
    x[5] = 0
    return {"x": x.reshape(SHAPE).view(np.uint32)}


def quantised_by_torch(given: Arrays, device: str) -> Arrays:
    """MXFP8 by floor and rceil, of torch's operations: the exponent by bits, one product, one cast."""
    import torch

    x = tensor(given["x"], "fp32", device).unflatten(-1, (-1, 32))
    most = x.abs().amax(-1, keepdim=True)
    found = {}
    for rule in ("floor", "rceil"):
        words = (most * torch.tensor(1 / 448, dtype=torch.float32) if rule == "rceil" else most).view(torch.int32)
        code = ((words + (0x7FFFFF if rule == "rceil" else 0)) >> 23) - (0 if rule == "rceil" else 8)
        code = code.clamp(0, 254)
        factor = torch.where(code == 254, torch.tensor(2.0**-127), ((254 - code) << 23).view(torch.float32))
        codes = (x * factor).clamp(-448, 448).to(torch.float8_e4m3fn)
        found[f"{rule}_codes"] = bits(codes.flatten(-2))
        found[f"{rule}_scales"] = bits(code.squeeze(-1).to(torch.uint8))
    return found


def quantised_by_lab(given: Arrays, meta: Meta) -> Arrays:
    from ..scaled import quantize

    x = given["x"].view(np.float32)
    both_rules = {rule: quantize(x, "mxfp8", rule=rule) for rule in ("floor", "rceil")}
    return {f"{rule}_{part}": getattr(q, part) for rule, q in both_rules.items() for part in ("codes", "scales")}


def drawn_codes(scheme: str) -> Arrays:
    """Codes of both operands, one a byte, and codes of their scales, none of them a NaN."""
    _, block, _ = UNITS[scheme]
    found = {}
    for i, name in enumerate("ab"):
        codes = philox_bits(820 + i, SHAPE[0] * SHAPE[1]).reshape(SHAPE) & (15 if scheme == "nvfp4" else 0xFF)
        scales = philox_bits(830 + i, SHAPE[0] * SHAPE[1] // block).reshape(SHAPE[0], -1)
        found[name] = np.where(codes & 0x7F == 0x7F, 0, codes).astype(np.uint8)
        found[f"scale_{name}"] = (scales % 17 + (119 if scheme == "mxfp8" else 48)).astype(np.uint8)
    return found


def multiplied_by_torch(scheme: str, given: Arrays, device: str) -> Arrays:
    """A B^T with block scales, in FP32. A CPU has no such unit: the lab's model stands in for it."""
    if device == "cpu":
        return multiplied_by_lab(scheme, given, {"kind": "cpu"})
    import torch

    if (has := torch.cuda.get_device_capability(device)) < (10, 0):
        raise NotHereError(f"compute capability {has[0]}.{has[1]} has no block scales; 10.0 is the first.")
    return block_scaled(scheme, given, device)


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


def cases(params: Params) -> Iterator[Case]:
    """A quantiser of torch's operations on any GPU; products with block scales where there are units for them."""
    outputs = [f"{rule}_{part}" for rule in ("floor", "rceil") for part in ("codes", "scales")]
    yield Case("mxfp8_quantised", drawn_values, quantised_by_torch, quantised_by_lab, dict.fromkeys(outputs, "bits8"))
    for scheme in UNITS:
        compute, emulate = partial(multiplied_by_torch, scheme), partial(multiplied_by_lab, scheme)
        yield Case(
            f"{scheme}_product", partial(drawn_codes, scheme), compute, emulate, {"d": "fp32"},
            open="What does a product with block scales round, and where?", hypotheses={"the lab's model": emulate},
        )  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------
LOOKS = dict(zip(RULES, (1, 2, 0, 3), strict=True))


def errors(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 4.6, 1, len(KINDS), sharey=True)
    for k, (ax, kind) in enumerate(zip(panels, KINDS, strict=True)):
        for w, way in enumerate(WAYS):
            found = 100 * result.error(way, k)
            style = draw.look(LOOKS.get(way.rule, 4 if way == NVFP4 else 5))
            ax.plot(found.mean(), w, marker=style.marker, color=style.color, markersize=7, linestyle="none")
            ax.plot([found.min(), found.max()], [w, w], color=style.color, linewidth=2)
        ax.set(title=f"{kind}s", xlim=(0, None), xlabel="error (% of root mean square)")
        ax.set_yticks(range(len(WAYS)), [way.title for way in WAYS])
    panels[0].invert_yaxis()
    return figure


def clipped(result: Result) -> draw.Figure:
    """What becomes of the largest of a block by its significand, and in how many blocks it is cut."""
    figure = draw.new_figure(8, 7.6)
    parts: Any = figure.subfigures(2, 1, height_ratios=[1.25, 1])
    panels, ax = parts[0].subplots(1, 2, sharey=True), parts[1].subplots()
    x = 1 + np.arange(result.largest.shape[-1]) / result.largest.shape[-1]
    each = max(1, len(x) // 2048)
    for s, (panel, name) in enumerate(zip(panels, ("MXFP8 (E4M3)", "MXFP4 (E2M1)"), strict=True)):
        for r, rule in reversed(list(enumerate(RULES[:3]))):
            label = "ceil, rceil" if rule == "ceil" else rule
            panel.plot(x[::each], 100 * (result.largest[s, r, ::each] - 1), **draw.look(LOOKS[rule]).line, label=label)
        panel.set(title=name, xlim=(1, 2), xlabel="significand of the block's largest")
    panels[0].set_ylabel("the largest changes by (%)")
    panels[0].legend(loc="lower left")
    ways = [way for way in (*MX8, *MX4) if way.rule not in NO_CLIP]
    for w, way in enumerate(ways):
        shares = [100 * result.share(way, k).mean() for k in range(len(KINDS))]
        at = np.arange(len(KINDS)) + 0.2 * (w - 1.5)
        style = draw.look(LOOKS[way.rule])
        ax.bar(at, shares, 0.18, color=style.color, alpha=1 if way.scheme == "mxfp8" else 0.5, label=way.title)
    ax.set_xticks(range(len(KINDS)), [f"{kind}s" for kind in KINDS])
    ax.set(ylabel="blocks (%)", title="Blocks whose largest is beyond the largest element (ceil, rceil: none)")
    ax.legend(ncols=2)
    return figure


def one_block(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 6.4, 2, 1, sharex=True, sharey=True)
    unit = np.abs(result.pair).max()
    x = result.pair / unit
    for ax, way, name in zip(panels, (MX4[0], NVFP4), ("MXFP4: 32 share a power of two, by floor",
                                                       "NVFP4: 16 share a scale in E4M3"), strict=True):  # fmt: skip
        q = way(x[None])
        wide, theme = int(q.scheme.block[1]), draw.current()
        for b, factor in enumerate(q.factors()[0]):
            for level in (0, 0.5, 1, 1.5, 2, 3, 4, 6):
                for y in {level * factor, -level * factor}:
                    ax.plot([b * wide - 0.5, (b + 1) * wide - 0.5], [y, y], color=theme.grid, linewidth=1, zorder=0)
        ax.vlines(range(PAIR), x, q.dequantize()[0], color=draw.look(1).color, linewidth=2)
        ax.plot(range(PAIR), x, linestyle="none", marker="o", markersize=5, color=draw.look(0).color, label="gradient")
        ax.plot(range(PAIR), q.dequantize()[0], linestyle="none", marker="_", markersize=10, markeredgewidth=2,
                color=theme.ink, label="quantised")  # fmt: skip
        lost_here = 100 * np.sqrt(((q.dequantize()[0] - x) ** 2).sum() / (x**2).sum())
        ax.set(title=f"{name}; error {lost_here:.1f}%", ylabel="share of the largest")
        ax.grid(visible=False)
    panels[1].set_xlabel("place in the block (lines: what the codes stand for)")
    panels[1].legend(loc="best", ncols=2)
    return figure


def choice(result: Result) -> draw.Figure:
    """Every block of gradients as a 6 and with the choice, and which share takes the 4."""
    figure, (scatter, shares) = draw.panels(8, 4.4, 1, 2, width_ratios=[1.5, 1])
    six, chosen = 100 * result.by_choice
    scatter.plot(six, chosen, linestyle="none", marker=".", markersize=4, color=draw.look(5).color)
    top = 1.2 * np.quantile(six, 0.99)
    scatter.plot([0, top], [0, top], color=draw.current().ink, linewidth=1)
    scatter.set(xlim=(0, top), ylim=(0, top), xlabel="error of a block, its largest a 6 (%)",
                ylabel="with 4 over 6 (%)", title="Blocks of gradients (256 for 448 moves all)")  # fmt: skip
    shares.bar(range(len(KINDS)), 100 * result.fours.mean(0), color=draw.look(5).color)
    shares.set_xticks(range(len(KINDS)), [f"{kind}s" for kind in KINDS])
    shares.set(ylabel="blocks that take the 4 (%)", title="Where the 4 loses less")
    return figure


EXPERIMENT = Experiment(
    title=say("Scales: what a block's scale saturates and loses"),
    question=say("Which rule for a block's scale loses least, in eight bits and in four, of what a network "
                 "multiplies?"),
    budget=4.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(errors, clipped, one_block, choice), cases=cases,
)  # fmt: skip
