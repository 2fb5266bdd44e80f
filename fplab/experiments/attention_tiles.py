"""Attention as one softmax against tiles of keys: which bits tiles and their order change, and what P in FP8 costs.

The online softmax of FlashAttention 2 and 3 (Dao 2023, arXiv 2307.08691; Shah et al. 2024, arXiv 2407.08608), as plans
in an H100's emulated units, :func:`fplab.tensorcore.attention`. Which tiles a library's kernel takes, and how it
computes exp2, a record of one would have to say. Operands are E4M3 numbers, exact in every format here: what plans
differ by is their own.
"""

import numpy as np

from .. import numeric
from .frame import Experiment, Params, Result
from .panels import bars, line
from .quantities import Columns, Quantity, above, equal, equivalent, in_columns, of, superior, together

GPU = "H100"
SHIFTED = "E4M3, P times $2^8$"  # as FlashAttention 3's FP8 holds P
WAYS = {"FP16": ("fp16", 0), "BF16": ("bf16", 0), "E4M3": ("e4m3", 0), SHIFTED: ("e4m3", 8)}
TILES = (16, 32, 64, 128, 0)  # keys of a tile; 0: all of them, one softmax
SPREADS = (1, 2, 4)  # standard deviations of the scores
STORED = ("fp32", "fp16", "bf16")
DEFINED = 32, 3  # keys and columns of what is also computed on exact numbers
PLANS = {"one softmax": (0, "descending"), "tiles, descending": (16, "descending"), "ascending": (16, "ascending")}

E = Experiment(
    "Attention by tiles",
    "What do tiles of keys, their order and weights in FP8 change, against one softmax?", budget=3.0,
    full={"rows": 64, "keys": 2048, "width": 64, "draws": 6, "seed": 100},  # of queries; of so many elements; sets
    quick={"rows": 16, "keys": 256, "draws": 4},
    gpu="Which tiles a library's attention takes, and how it computes exp2, is not known: these are plans.",
)  # fmt: skip


@E.cache
def operands(p: Params, number: int, spread: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q (rows, width), k and v (keys, width), all E4M3 numbers; scores have about the standard deviation ``spread``."""
    rng = np.random.default_rng([p.seed, number, spread])
    drawn = [rng.standard_normal((n, p.width)) for n in (p.rows, p.keys, p.keys)]
    q, k, v = (np.asarray(numeric.quantize(x, "e4m3"), np.float32) for x in (spread * drawn[0], *drawn[1:]))
    return q, k, v


def softmax(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Weights (rows, keys) in float64, the largest of each row 1."""
    scores = q.astype(np.float64) @ k.T.astype(np.float64) / np.sqrt(q.shape[1])
    return np.asarray(np.exp(scores - scores.max(axis=1, keepdims=True)))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, way: str, tile: int, order: str = "descending") -> np.ndarray:
    """Attention in the GPU's units by a plan, float32 (rows, width)."""
    from ..tensorcore import attention

    inputs, shift = WAYS[way]
    return attention(q, k, v, GPU, inputs, tile=tile or len(k), order=order, shift=shift)


@E.cache
def output(p: Params, number: int, spread: int, way: str, tile: int) -> np.ndarray:
    """The same of a draw, tiles from the last to the first."""
    return attend(*operands(p, number, spread), way, tile)


@E.cache
def exact(p: Params, number: int, spread: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights of a draw, and attention by them, in float64."""
    q, k, v = operands(p, number, spread)
    weights = softmax(q, k)
    return weights, weights @ v / weights.sum(axis=1, keepdims=True)


@E.measure("error", axes={"draw": "draws", "spread": SPREADS, "way": WAYS, "tile": TILES})
def errors(p: Params, draw: int, spread: int, way: str, tile: int) -> float:
    """The relative error in the 2-norm."""
    _, want = exact(p, draw, spread)
    off = (output(p, draw, spread, way, tile) - want)[None]  # as norms of many matrices are summed
    return float((np.linalg.norm(off, axis=(-1, -2)) / np.linalg.norm(want[None], axis=(-1, -2)))[0])


@E.measure("differ", axes={"draw": "draws", "store": STORED, "tile": TILES[:-1]})
def differing(p: Params, draw: int, store: str, tile: int) -> float:
    """The share of FP16's results, rounded to a format, that are not one softmax's."""
    whole, tiled = (np.stack([output(p, draw, spread, "FP16", t) for spread in SPREADS]) for t in (0, tile))
    return float((numeric.quantize(tiled, store) != numeric.quantize(whole, store)).mean())


@E.measure("reordered", axes={"draw": "draws"})
def reordered(p: Params, draw: int) -> float:
    """The share of FP16's results that another order of tiles of 64 keys changes."""
    pairs = [(attend(*operands(p, draw, spread), "FP16", 64, "ascending"), output(p, draw, spread, "FP16", 64))
             for spread in SPREADS]  # fmt: skip
    return float(np.mean([x != y for x, y in pairs]))


@E.measure("gone", axes={"draw": "draws", "spread": SPREADS, "shift": (0, 8)})
def gone(p: Params, draw: int, spread: int, shift: int) -> float:
    """The share of the softmax's weight that P in E4M3, times a power of two, takes for zero."""
    return lost(exact(p, draw, spread)[0], 2.0**-shift)


def lost(weights: np.ndarray, largest: float) -> float:
    """The share of weight that E4M3 rounds to zero, where 1 stands for 1 / ``largest``."""
    return float(weights[np.asarray(numeric.quantize(weights / largest, "e4m3")) == 0].sum() / weights.sum())


@E.measure("beside", axes={"way": WAYS, "tile": TILES})
def beside(p: Params, way: str, tile: int) -> int:
    """How many elements of a row are others alone than among rows, which tiles, of keys, do not change."""
    q, k, v = operands(p, 0, SPREADS[0])
    alone, among = attend(q[:1], k, v, way, tile)[0], output(p, 0, SPREADS[0], way, tile)[0]
    return int((alone.view(np.uint32) != among.view(np.uint32)).sum())


@E.measure("unlike", axes={"way": WAYS, "plan": PLANS}, digested=True)
def unlike(p: Params, way: str, plan: str) -> int:
    """How many elements of one row are not those of the definition on exact numbers."""
    from ..tensorcore import get
    from ..tensorcore.online_softmax import by_definition, factor

    (keys, columns), (inputs, shift), (tile, order) = DEFINED, WAYS[way], PLANS[plan]
    q, k, v = operands(p, 0, 1)
    q, k, v = q[:1], k[:keys], v[:keys, :columns]
    model, slope = get(GPU, inputs), float(factor(None, p.width))
    want = by_definition(q[0].tolist(), k.tolist(), v.tolist(), model, model, tile or keys, order, shift, slope)
    return int((attend(q, k, v, way, tile, order)[0] != [float(x.value) for x in want]).sum())


@E.table
def rows(r: Result) -> Columns:
    """Errors by spread, way and tile, and lost weight, means over draws."""
    error, weight = r.error.values.mean(axis=0), r.gone.values.mean(axis=0)
    names = ("score_spread", "products", "tile", "relative_error", "lost_weight")
    table = [
        (spread, name.replace("$", ""), TILES[t] or "all keys", error[s, w, t],
         weight[s, int(name == SHIFTED)] if name.startswith("E4M3") else 0.0)
        for s, spread in enumerate(SPREADS) for w, name in enumerate(WAYS) for t in range(len(TILES))
    ]  # fmt: skip
    return in_columns(names, table)


# --- claims -----------------------------------------------------------------------------------------------------
def octaves(way: str, spread: int, tile: int) -> Quantity:
    """The logarithm of an error, by draw."""
    return of("error", way=way, spread=spread, tile=tile).log2


E.claim(
    equal("defined", "one softmax and tiles have the bits of their definition on exact numbers, in either order",
          of("unlike"), 0, evidence="proved"),
    equal("rows_apart", "a row has the same bits alone and among others, in every plan", of("beside"), 0,
          evidence="proved"),
    together("bits", "tiles change the bits of most FP32 results, and of fewer than one in ten stored in BF16",
             above(of("differ", store="fp32").min("tile"), by=0.5),
             above(0.0, of("differ", store="bf16").max("tile"), by=-0.1)),
    superior("order", "the order of the tiles alone changes the bits of most FP32 results", of("reordered"), by=0.5),
    # Most of the error is P's rounding, and a tile in which the largest score is found holds one P of exactly 1.
    together("accuracy",
             "small tiles cost no accuracy: by tiles of 16 keys errors are smaller than by one softmax",
             *(above(octaves(way, 4, 0), octaves(way, 4, 16)) for way in ("FP16", SHIFTED))),
    superior("eight_bits", "FP8 costs: products in E4M3 err at least eight times as much as those in FP16",
             octaves(SHIFTED, 1, 128), octaves("FP16", 1, 128), by=3),
    together("vanishing",
             "of the softmax's weight P in E4M3 takes at least a thousandth for zero, times 2^8 next to nothing",
             above(of("gone", spread=2, shift=0), by=1e-3), above(0.0, of("gone", spread=2, shift=8), by=-1e-5)),
    equivalent("shift_matters_little",
               "holding P times 2^8 changes its error by less than half an octave: most of it is the rounding of "
               "large weights", octaves("E4M3", 2, 128), octaves(SHIFTED, 2, 128), within=0.5),
)  # fmt: skip

# --- figures ----------------------------------------------------------------------------------------------------
E.answer("tiles of 16 keys change {share:.0%} of the FP32 results; FP8 errs {times:.0f} times as much as FP16",
         share=of("differ", store="fp32", tile=16),
         times=of("error", way=SHIFTED, spread=1, tile=128).mean("draw")
         / of("error", way="FP16", spread=1, tile=128).mean("draw"))  # fmt: skip
E.figure(
    "tiles",
    bars(of("differ").mean("draw") * 100, hue="store", ylabel="results that differ (%)",
         x="tile", xlabel="keys of a tile", title="Unlike one softmax (FP16 products; an H100's units, emulated)"),
    line(of("error", tile=128), x="spread", hue="way", over="draw", log="y", marked=True, xticks=SPREADS,
         xlabel="standard deviation of the scores", ylabel="relative error", title="Error, tiles of 128 keys",
         legend={"loc": "center right", "bbox_to_anchor": (1, 0.6)}),
    size=(8, 7.6),
)  # fmt: skip
