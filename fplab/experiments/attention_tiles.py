"""Attention as one softmax against tiles of keys: which bits tiles and their order change, and what P in FP8 costs.

The online softmax of FlashAttention 2 and 3 (Dao 2023, arXiv 2307.08691; Shah et al. 2024, arXiv 2407.08608), as plans
in an H100's emulated units, :func:`fplab.tensorcore.attention`. Which tiles a library's kernel takes, and how it
computes exp2, a record of one would have to say. Operands are E4M3 numbers, exact in every format here: what plans
differ by is their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from .. import draw, numeric
from ..words import CLAUSE, COMMA, joined, say
from .base import Claims, Columns, Digested, Experiment, Tick, in_columns
from .outcomes import Outcome, verdict
from .statistics import both, equivalent, superior

GPU = "H100"
WAYS = (("FP16", "fp16", 0), ("BF16", "bf16", 0), ("E4M3", "e4m3", 0), ("E4M3, P times $2^8$", "e4m3", 8))
SHIFTED = 3  # the place of FlashAttention 3's FP8, which holds P times 2**8
TILES = (16, 32, 64, 128, 0)  # keys of a tile; 0: all of them, one softmax
MIDDLE = 2  # the place of the tile that is also taken in ascending order
SPREADS = (1, 2, 4)  # standard deviations of the scores
STORED = ("fp32", "fp16", "bf16")
DEFINED = 32, 3  # keys and columns of what is also computed on exact numbers
PLANS = ((0, "descending"), (16, "descending"), (16, "ascending"))  # in which it is


@dataclass(frozen=True)
class Params:
    """``rows`` of queries and ``keys`` of ``width`` elements; ``draws``: how many sets of them, from ``seed`` on."""

    rows: int = 64
    keys: int = 2048
    width: int = 64
    draws: int = 6
    seed: int = 100


QUICK = Params(rows=16, keys=256, draws=4)


@dataclass(frozen=True)
class Result:
    """``outputs``: float32 (draw, spread, way, tile, row, width), of tiles from the last to the first; ``ascending``:
    of FP16 and middle tiles in the other order, ``exact``: float64, both (draw, spread, row, width). ``alone``: the
    first draw's first row by itself, scores of deviation 1 (way, tile, width). ``unlike``: of the elements that are
    also computed on exact numbers, how many differ (way, plan). ``lost``: the share of the softmax's weight that P in
    E4M3 takes for zero, held as it is and times 2**8 (draw, spread, 2).
    """

    params: Params
    outputs: np.ndarray
    ascending: np.ndarray
    exact: np.ndarray
    alone: np.ndarray
    unlike: Digested
    lost: np.ndarray

    def errors(self) -> np.ndarray:
        """Relative errors in the 2-norm: (draw, spread, way, tile)."""
        exact = self.exact[:, :, None, None]
        off = np.linalg.norm(self.outputs - exact, axis=(-1, -2))
        return np.asarray(off / np.linalg.norm(exact, axis=(-1, -2)))

    def octaves(self, way: int, spread: int = 0) -> np.ndarray:
        """Logarithms to base 2 of a way's errors: (draw, tile)."""
        return np.asarray(np.log2(self.errors()[:, spread, way]))

    def differing(self, store: str) -> np.ndarray:
        """The share of FP16's results, rounded to a format, that are not one softmax's: (draw, tile)."""
        found = np.asarray(numeric.quantize(self.outputs[:, :, 0], store))
        return np.asarray((found != found[:, :, -1:]).mean(axis=(1, 3, 4)))


def operands(number: int, spread: int, params: Params) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q (rows, width), k and v (keys, width), all E4M3 numbers; scores have about the standard deviation ``spread``."""
    rng = np.random.default_rng([params.seed, number, spread])
    drawn = [rng.standard_normal((n, params.width)) for n in (params.rows, params.keys, params.keys)]
    q, k, v = (np.asarray(numeric.quantize(x, "e4m3"), np.float32) for x in (spread * drawn[0], *drawn[1:]))
    return q, k, v


def softmax(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Weights (rows, keys) in float64, the largest of each row 1."""
    scores = q.astype(np.float64) @ k.T.astype(np.float64) / np.sqrt(q.shape[1])
    return np.asarray(np.exp(scores - scores.max(axis=1, keepdims=True)))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, way: int, tile: int, order: str = "descending") -> np.ndarray:
    from ..tensorcore import attention

    _, inputs, shift = WAYS[way]
    return attention(q, k, v, GPU, inputs, tile=tile or len(k), order=order, shift=shift)


def unlike(params: Params) -> np.ndarray:
    """How many elements of one row are not those of the definition on exact numbers: (way, plan)."""
    from ..tensorcore import get
    from ..tensorcore.online_softmax import by_definition, factor

    keys, columns = DEFINED
    q, k, v = operands(0, 1, params)
    q, k, v = q[:1], k[:keys], v[:keys, :columns]
    found = np.zeros((len(WAYS), len(PLANS)), np.int64)
    for (way, (_, inputs, shift)), (plan, (tile, order)) in product(enumerate(WAYS), enumerate(PLANS)):
        model, slope = get(GPU, inputs), float(factor(None, params.width))
        given = q[0].tolist(), k.tolist(), v.tolist()
        want = by_definition(*given, model, model, tile or keys, order, shift, slope)
        got = attend(q, k, v, way, tile, order)[0]
        found[way, plan] = int((got != [float(x.value) for x in want]).sum())
    return found


def run(params: Params, tick: Tick) -> Result:
    ways, draws = range(len(WAYS)), []
    for number in range(params.draws):
        found: dict[str, list[Any]] = {"outputs": [], "ascending": [], "exact": [], "lost": []}
        for spread in SPREADS:
            tick((number + SPREADS.index(spread) / len(SPREADS)) / params.draws, f"draw {number}, spread {spread}")
            q, k, v = operands(number, spread, params)
            weights = softmax(q, k)
            found["exact"].append(weights @ v / weights.sum(axis=1, keepdims=True))
            found["lost"].append([lost(weights, 2.0**-shift) for shift in (0, 8)])
            found["outputs"].append([[attend(q, k, v, way, tile) for tile in TILES] for way in ways])
            found["ascending"].append(attend(q, k, v, 0, TILES[MIDDLE], "ascending"))
        draws.append(found)
    q, k, v = operands(0, SPREADS[0], params)
    alone = np.array([[attend(q[:1], k, v, way, tile)[0] for tile in TILES] for way in ways])
    together = {name: np.array([one[name] for one in draws]) for name in ("outputs", "ascending", "exact", "lost")}
    return Result(params, **together, alone=alone, unlike=unlike(params))


def lost(weights: np.ndarray, largest: float) -> float:
    """The share of weight that E4M3 rounds to zero, where 1 stands for 1 / ``largest``."""
    return float(weights[np.asarray(numeric.quantize(weights / largest, "e4m3")) == 0].sum() / weights.sum())


def rows(result: Result) -> Columns:
    """Errors by spread, way and tile, and lost weight, means over draws."""
    errors, gone = result.errors().mean(axis=0), result.lost.mean(axis=0)
    names = ("score_spread", "products", "tile", "relative_error", "lost_weight")
    table = [
        (spread, WAYS[way][0].replace("$", ""), TILES[tile] or "all keys", errors[s, way, tile],
         gone[s, int(way == SHIFTED)] if way >= SHIFTED - 1 else 0.0)
        for s, spread in enumerate(SPREADS) for way, tile in np.ndindex(len(WAYS), len(TILES))
    ]  # fmt: skip
    return in_columns(names, table)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.proved("one softmax and tiles have the bits of their definition on exact numbers, in either order")
def defined(result: Result) -> Outcome:
    keys, columns = DEFINED
    said = say("{n} plans of {keys} keys, {columns} elements each: {wrong} differ")
    said = said.fill(n=result.unlike.size, keys=keys, columns=columns, wrong=int(result.unlike.sum()))
    return verdict(not result.unlike.any(), said)


@CLAIMS.proved("a row has the same bits alone and among others, in every plan")
def rows_apart(result: Result) -> Outcome:
    """Tiles are of keys: which queries are beside it changes nothing."""
    same = result.alone.view(np.uint32) == result.outputs[0, 0, :, :, 0].view(np.uint32)
    return verdict(bool(same.all()), say("{n:,} of {all:,} elements differ", n=int((~same).sum()), all=same.size))


@CLAIMS.measured("tiles change the bits of most FP32 results, and of fewer than one in ten stored in BF16")
def bits(result: Result) -> Outcome:
    """FP16 products, against one softmax; every size of tile."""
    wide, half, brain = (result.differing(store)[:, :-1] for store in STORED)
    said = say("of results in FP32 at least {wide:.0%} differ, stored in FP16 at most {half:.1%}, in BF16 {brain:.1%}")
    said = said.fill(wide=float(wide.min()), half=float(half.max()), brain=float(brain.max()))
    return both(superior(wide.min(axis=1), 0.0, 0.5, said),
                superior(0.0, brain.max(axis=1), -0.1, say("share in BF16, below 0")))  # fmt: skip


@CLAIMS.measured("the order of the tiles alone changes the bits of most FP32 results")
def order(result: Result) -> Outcome:
    """Tiles of 64 keys from the last to the first and from the first to the last, FP16 products."""
    share = (result.ascending != result.outputs[:, :, 0, MIDDLE]).mean(axis=(1, 2, 3))
    return superior(share, 0.0, 0.5, say("{share:.0%} of results differ on average", share=float(share.mean())))


@CLAIMS.measured("small tiles cost no accuracy: by tiles of 16 keys errors are smaller than by one softmax")
def accuracy(result: Result) -> Outcome:
    """Of FP16's products, and of E4M3's with P times 2^8, for scores of standard deviation 4.

    Most of the error is P's rounding, and a tile in which the largest score is found holds one P of exactly 1.
    """
    outcomes = []
    for way in (0, SHIFTED):
        errors, octaves = result.errors()[:, 2, way].mean(axis=0), result.octaves(way, 2)
        said = say("{way}: {small:.2e} by tiles of 16, {whole:.2e} by one softmax; octaves")
        said = said.fill(way=WAYS[way][0].replace("$", ""), small=float(errors[0]), whole=float(errors[-1]))
        outcomes.append(superior(octaves[:, -1], octaves[:, 0], 0.0, said))
    return both(*outcomes)


@CLAIMS.measured("FP8 costs: products in E4M3 err at least eight times as much as those in FP16")
def eight_bits(result: Result) -> Outcome:
    """With P times 2^8, tiles of 128 keys, scores of standard deviation 1; the margin is three octaves."""
    errors = result.errors()[:, 0, :, -2].mean(axis=0)
    said = joined([f"{way.replace('$', '')} {error:.1e}" for (way, *_), error in zip(WAYS, errors, strict=True)], COMMA)
    eight, half = (result.octaves(way)[:, -2] for way in (SHIFTED, 0))
    return superior(eight, half, 3.0, joined([said, say("octaves")], CLAUSE))


@CLAIMS.measured("of the softmax's weight P in E4M3 takes at least a thousandth for zero, times 2^8 next to nothing")
def vanishing(result: Result) -> Outcome:
    """Scores of standard deviation 2; next to nothing: below one in a hundred thousand."""
    plain, shifted = result.lost[:, 1].T
    said = say("lost: {plain:.2%}, with P times 2^8 {shifted:.1e}", plain=plain.mean(), shifted=float(shifted.max()))
    return both(superior(plain, 0.0, 1e-3, said), superior(0.0, shifted, -1e-5, say("share times 2^8, below 0")))


@CLAIMS.measured(
    "holding P times 2^8 changes its error by less than half an octave: most of it is the rounding of large weights"
)
def shift_matters_little(result: Result) -> Outcome:
    plain, shifted = (result.octaves(way, 1)[:, -2] for way in (SHIFTED - 1, SHIFTED))
    errors = 2.0 ** np.array([plain.mean(), shifted.mean()])
    said = say("{plain:.2e} as it is, {shifted:.2e} times 2^8; octaves", plain=errors[0], shifted=errors[1])
    return equivalent(plain, shifted, 0.5, said)


# --- figures ----------------------------------------------------------------------------------------------------


def tiles(result: Result) -> draw.Figure:
    """Which results differ and errors, by tile; errors and lost weight, by the spread of scores."""
    figure, panels = draw.panels(8, 7.6, 2, 2)
    draw_differing(panels[0, 0], result)
    errors = result.errors().mean(axis=0)
    names = [str(tile or "all") for tile in TILES]
    for way, (name, _, _) in enumerate(WAYS):
        panels[0, 1].plot(names, errors[0, way], **draw.look(way).marked, label=name)
        panels[1, 0].plot(SPREADS, errors[:, way, -2], **draw.look(way).marked, label=name)
    top = {"yscale": "log", "ylabel": "relative error"}
    panels[0, 1].set(**top, xlabel="keys of a tile", title="Error, by tiles")
    panels[1, 0].set(**top, xlabel="standard deviation of the scores", title="Error, tiles of 128 keys")
    figure.legend(*panels[0, 1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    gone = result.lost.mean(axis=0)
    gone[gone == 0] = np.nan
    for i, label in enumerate(("P as it is", "P times $2^8$")):
        panels[1, 1].plot(SPREADS, 100 * gone[:, i], **draw.look(SHIFTED - 1 + i).marked, label=label)
    panels[1, 1].set(yscale="log", xlabel="standard deviation of the scores", ylabel="softmax's weight (%)",
                     title="Taken for zero by P in E4M3")  # fmt: skip
    panels[1, 1].legend(fontsize=9)
    for ax in panels[1]:
        ax.set_xscale("log", base=2)
        ax.set_xticks(SPREADS, [str(spread) for spread in SPREADS])
    figure.suptitle("Plans of attention in an H100's units, emulated", fontsize=10)
    return figure


def draw_differing(ax: draw.Axes, result: Result) -> None:
    for i, store in enumerate(STORED):
        share = 100 * result.differing(store).mean(axis=0)[:-1]
        bars = ax.bar(np.arange(len(share)) + 0.27 * (i - 1), share, 0.25, color=draw.look(i).color,
                      hatch=("", "//", "..")[i], alpha=0.8, label=store.upper())  # fmt: skip
        ax.bar_label(bars, fmt="%.2g", fontsize=9, padding=2)
    ax.set_xticks(range(len(TILES) - 1), [str(tile) for tile in TILES[:-1]])
    ax.set(ylim=(0, 145), xlabel="keys of a tile", ylabel="results that differ (%)", title="Unlike one softmax (FP16)")
    ax.legend(loc="upper right", ncols=3, fontsize=9, title="results in")


EXPERIMENT = Experiment(
    title=say("Attention by tiles"),
    question=say("What do tiles of keys, their order and weights in FP8 change, against one softmax?"),
    budget=3.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS, figures=(tiles,),
    cases="Which tiles a library's attention takes, and how it computes exp2, is not known: these are plans.",
)  # fmt: skip
