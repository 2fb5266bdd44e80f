"""What block-wise quantisation loses: by codebook, by block size, on normal data, heavy tails and real tensors.

After Dettmers et al., 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861), whose table of errors by data
type this rebuilds on a training run of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import codebooks, draw, numeric
from ..codebooks import BOOKS, Codebook, rules, tree
from ..codebooks.thresholds import thresholds
from ..hardware.cases import Arrays, Case, Meta, philox_bits
from ..hardware.tensors import bits, tensor
from ..words import say
from .base import Claims, Columns, Digested, Experiment, Tick, in_columns, one_threaded, sheet
from .outcomes import Outcome, absent, failed, passed, verdict
from .statistics import both, superior

SIGNED = ("dynamic", "tree", "quantile", "linear")
UNSIGNED = ("dynamic unsigned", "dynamic", "quantile", "linear unsigned")
KINDS = ("normal", "heavy", "weight", "gradient", "m", "v")
WHOLE = 0  # the block size that stands for the whole array
BLOCKS = (64, 256, 1024, 2048, 4096, WHOLE)
METRICS = ("mean_absolute", "mean_relative", "root_mean_square", "share_lost")
NORMAL, DRAWN = 1 << 20, 1 << 15  # elements of the published table's data; of a draw that claims are measured on
DRAWS = 6
EPS = 1e-8
REACHES = (256, 2048, WHOLE)  # block sizes that the outlier meets
LOSING = ("linear unsigned", "dynamic unsigned")
MOST_FOR_QUANTILES = 1 << 16
SMALLEST = 4096  # elements of a tensor whose states an 8-bit optimizer quantises
STATE_PAIRS = (("linear", "linear unsigned"), ("quantile", "quantile"), ("dynamic", "dynamic"),
               ("dynamic", "dynamic unsigned"))  # fmt: skip


@dataclass(frozen=True)
class Params:
    """``steps``, ``lr``: the training runs, one a seed; weights, gradients and states are of the first, and of the
    others the second moments alone. ``normal``, ``heavy``: elements of normal data and with heavy tails. ``outlier``:
    how many deviations the injected element has.
    """

    steps: int = 300
    lr: float = 3e-3
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    normal: int = NORMAL
    heavy: int = 1 << 20
    outlier: float = 1000.0


QUICK = Params(steps=10, seeds=(0, 1, 2), heavy=1 << 16)


@dataclass(frozen=True)
class Result:
    """``normal`` to ``v``: float32 (n,), what is quantised; ``sizes``: int64, of the tensors in the last four.

    ``errors``: (kind, codebook, block, metric). ``lost``: shares of second moments that become 0 (seed, linear or
    dynamic). ``update_errors`` of Adam's update (states, block, 2). ``outlier``: its reach (draw, block, without or
    with, 256s). ``tables``: float32 (codebook, 256), without quantiles.
    """

    params: Params
    normal: np.ndarray
    heavy: np.ndarray
    weight: np.ndarray
    gradient: np.ndarray
    m: np.ndarray
    v: np.ndarray
    sizes: np.ndarray
    errors: np.ndarray
    lost: np.ndarray
    update_errors: np.ndarray
    outlier: np.ndarray
    tables: Digested

    def data(self, kind: str) -> tuple[np.ndarray, list[int]]:
        """The array of a kind, and the sizes of the tensors that it is made of, if of any."""
        x: np.ndarray = getattr(self, kind)
        return x, [] if kind in ("normal", "heavy") else self.sizes.tolist()

    def errors_of(self, kind: str, book: str, block: int) -> np.ndarray:
        """The four errors of one kind of data, codebook and block size."""
        return np.asarray(self.errors[KINDS.index(kind), names_of(kind).index(book), BLOCKS.index(block)])


class Errors(NamedTuple):
    """Means over an array; "relative" and "lost" over its elements that are not zero."""

    absolute: float
    relative: float
    rms: float
    lost: float


def run(params: Params, tick: Tick) -> Result:
    runs, each = [], 0.4 / len(params.seeds)
    for i, seed in enumerate(params.seeds):
        runs.append(trained(params, seed, lambda done, text, i=i: tick(each * (i + done), text)))  # type: ignore[misc]
    kinds = {"normal": normal(params.normal), "heavy": heavy_tails(params.heavy), **runs[0]}
    sizes = runs[0]["sizes"].tolist()
    table = np.zeros((len(KINDS), len(SIGNED), len(BLOCKS), len(METRICS)))
    for k, b, i in np.ndindex(table.shape[:3]):
        tick(0.4 + 0.5 * (k + b / len(SIGNED)) / len(KINDS), f"{KINDS[k]}: codebooks and block sizes")
        x, tensors = kinds[KINDS[k]], [] if KINDS[k] in ("normal", "heavy") else sizes
        book = book_of(names_of(KINDS[k])[b], x, BLOCKS[i], tensors)
        table[k, b, i] = errors(x, book, BLOCKS[i], tensors)
    tick(0.9, "Adam's update")
    return Result(
        params, **kinds, errors=table,
        lost=np.array([[errors(one["v"], BOOKS[name], 2048, one["sizes"].tolist()).lost for name in LOSING]
                       for one in runs]),
        update_errors=update_errors(kinds["m"], kinds["v"], sizes),
        outlier=np.stack([outlier_reach(params.outlier, seed) for seed in range(DRAWS)]),
        tables=np.stack([BOOKS[name].table for name in SIGNED if name in BOOKS]),
    )  # fmt: skip


def normal(n: int = NORMAL, seed: int = 0) -> np.ndarray:
    """Samples of the normal distribution, float32; 2^20 of seed 0 are the data of the published table."""
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def heavy_tails(n: int) -> np.ndarray:
    """Student's t with two degrees of freedom, by its inverse distribution function: no finite variance.

    The function takes numbers strictly between 0 and 1, from Philox's raw stream.
    """
    u = ((np.random.Philox(key=1).random_raw(n) >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52
    return np.asarray((2 * u - 1) / np.sqrt(2 * u * (1 - u)), np.float32)


@one_threaded
def trained(params: Params, seed: int, tick: Tick) -> Arrays:
    """The character transformer's larger tensors after training in float32, of each kind end to end; their sizes.

    Kinds: weights, gradients, and both states of Adam.
    """
    from ..training import characters
    from ..training.eight_bit import Adam8bit
    from ..training.loop import copied

    task = characters()
    model = task.model(seed)
    optimizer = Adam8bit(model.parameters(), lr=params.lr, state_bits=32)
    for step, batch in enumerate(task.batches(seed, params.steps)):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
        tick(step / params.steps, f"training, seed {seed}, step {step}")
    parameters = [p for p in model.parameters() if p.numel() >= SMALLEST]
    tensors = {
        "weight": [p.detach() for p in parameters],
        "gradient": [p.grad for p in parameters if p.grad is not None],
        "m": [optimizer.state[p]["state1"] for p in parameters],
        "v": [optimizer.state[p]["state2"] for p in parameters],
    }
    flat = {name: np.concatenate([copied(t).ravel() for t in some]) for name, some in tensors.items()}
    return {**flat, "sizes": np.array([p.numel() for p in parameters])}


def names_of(kind: str) -> tuple[str, ...]:
    """The codebooks that a kind of data is quantised with."""
    return UNSIGNED if kind == "v" else SIGNED


def book_of(name: str, x: np.ndarray, block: int = WHOLE, sizes: Sequence[int] = ()) -> Codebook:
    """The codebook of a name; quantiles are those of the scaled array itself."""
    if name != "quantile":
        return BOOKS[name]
    found = scaled(x, block, sizes)
    return codebooks.quantile(found[:: -(-found.size // MOST_FOR_QUANTILES)])


def scaled(x: np.ndarray, block: int = WHOLE, sizes: Sequence[int] = ()) -> np.ndarray:
    """Every element in units of its block's largest magnitude: what a codebook of quantiles is made from."""
    found = []
    for part in np.split(x, np.cumsum(sizes or [x.size])[:-1]):
        starts = np.arange(0, part.size, block or part.size)
        most = np.maximum.reduceat(np.abs(part), starts)
        found.append(part / np.repeat(np.where(most == 0, 1, most), block or part.size)[: part.size])
    return np.concatenate(found)


def round_trip(x: np.ndarray, book: Codebook, block: int = WHOLE, sizes: Sequence[int] = ()) -> np.ndarray:
    """An array quantised and back, tensor by tensor: ``sizes`` are those of the tensors that lie in it end to end."""
    parts = np.split(x, np.cumsum(sizes or [x.size])[:-1])
    quantised = (codebooks.quantize_blockwise(part, book, block or None) for part in parts)
    return np.concatenate([codebooks.dequantize_blockwise(q) for q in quantised])


def errors(x: np.ndarray, book: Codebook, block: int = WHOLE, sizes: Sequence[int] = ()) -> Errors:
    """What quantising does to an array: mean |error|, mean |error / x|, its root mean square, and the share made 0."""
    back = round_trip(x, book, block, sizes)
    there = x != 0
    error = np.abs(back - x.astype(np.float64))
    relative = error[there] / np.abs(x[there])
    lost = np.count_nonzero(back[there] == 0) / max(relative.size, 1)
    return Errors(error.mean(), relative.mean(), float(np.sqrt(np.mean(error**2))), lost)


def update_of(m: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Adam's direction m / (sqrt(v) + eps), in float64: what the paper calls u."""
    return np.asarray(m.astype(np.float64) / (np.sqrt(v.astype(np.float64)) + EPS))


def update_errors(m: np.ndarray, v: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Mean |u - u8| and median |u - u8| / |u| for each pair of codebooks and block size, where u is not 0.

    The mean of the relative error says little here: one second moment that becomes 0 outweighs all others.
    """
    right = update_of(m, v)
    there = right != 0
    out = np.zeros((len(STATE_PAIRS), len(BLOCKS), 2))
    for (i, names), (j, block) in itertools.product(enumerate(STATE_PAIRS), enumerate(BLOCKS)):
        states = zip(names, (m, v), strict=True)
        back = (round_trip(x, book_of(name, x, block, sizes), block, sizes) for name, x in states)
        error = np.abs(update_of(*back) - right)
        out[i, j] = error.mean(), np.median(error[there] / np.abs(right[there]))
    return out


def outlier_reach(size: float, seed: int) -> np.ndarray:
    """Mean |error| of each 256 elements, the outlier left out: (block, without or with, 256s).

    Normal data of 32 blocks of 2048, without and with one element of ``size`` deviations, in the 21st block.
    """
    plain = normal(32 * 2048, seed)
    spoiled = plain.copy()
    spoiled[20 * 2048 + 700] = size
    out = np.zeros((len(REACHES), 2, plain.size // 256))
    for (i, block), (j, x) in itertools.product(enumerate(REACHES), enumerate((plain, spoiled))):
        error = np.abs(round_trip(x, BOOKS["dynamic"], block).astype(np.float64) - x)
        error[plain != spoiled] = 0
        out[i, j] = error.reshape(-1, 256).mean(1)
    return out


def rows(result: Result) -> Columns:
    """A row for each kind of data, codebook and block size (0: the whole array), with its four errors."""
    places = [(kind, book, block) for kind in KINDS for book in names_of(kind) for block in BLOCKS]
    return in_columns(
        ("data", "codebook", "block", *METRICS), ((*at, *result.errors_of(*at).tolist()) for at in places)
    )


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()
MOST = 1 << 15  # elements of each kind that vectorised checks take
# Mean absolute, mean relative and root mean square error by block size, as printed, computed independently of this lab.
PUBLISHED = {
    "dynamic": {64: ".007535 .0142 .00952", 256: ".00854 .01539 .010838", 2048: ".009702 .01665 .012474",
                WHOLE: ".011943 .01882 .015942"},
    "linear": {64: ".005042 .02728 .005944", 256: ".005984 .03128 .006974", 2048: ".007133 .03623 .00827",
               WHOLE: ".009833 .04739 .011355"},
}  # fmt: skip


@CLAIMS.proved("No element is farther from its value than half the gap it lies in")
def half_gaps(result: Result) -> Outcome:
    done = 0
    for kind in KINDS:
        every, _ = result.data(kind)
        for book in (book_of(name, every) for name in names_of(kind)):
            x = every[:MOST]
            q = codebooks.quantize_blockwise(x, book, None)
            with np.errstate(divide="ignore"):
                units = (x / q.absmax[0]).astype(np.float64)
            values = book.values.astype(np.float64)
            place = np.clip(np.searchsorted(values, units), 1, len(book) - 1)
            gap = values[place] - values[place - 1]
            outside = np.maximum(np.maximum(values[0] - units, units - values[-1]), 0)
            if (np.abs(book.table[q.codes] - units) > np.maximum(gap / 2, outside)).any():
                return failed(say("{kind}, {book}: an element is not at its nearest value", kind=kind, book=book.name))
            done += x.size
    return passed(say("{n:,} elements", n=done))


@CLAIMS.library("Errors on 2^20 normal samples are the published ones")
def published(result: Result) -> Outcome:
    if result.params.normal != NORMAL:
        return absent(say("the published table is of {n:,} samples", n=NORMAL))
    done = 0
    for book, block, text in ((book, block, line[block]) for book, line in PUBLISHED.items() for block in line):
        for printed, value in zip(text.split(), result.errors_of("normal", book, block)[:3], strict=True):
            if round(float(value), len(printed) - 1) != float(printed):
                said = say("{book}, block {block}: {value:.8f}, printed {printed}")
                return failed(said.fill(book=book, block=block or "whole", value=value, printed=printed))
            done += 1
    return passed(say("{n} numbers, every printed digit", n=done))


def searched(x: np.ndarray, name: str, block: int, sizes: list[int]) -> np.ndarray:
    """Elements at their nearest values by NumPy's search among the midpoints, in float64, block by block."""
    values = book_of(name, x, block, sizes).values.astype(np.float64)
    found = []
    for part in np.split(x.astype(np.float64), np.cumsum(sizes or [x.size])[:-1]):
        size = block or part.size
        rows = np.pad(part, (0, -part.size % size)).reshape(-1, size)
        most = np.abs(rows).max(1, keepdims=True)
        near = values[np.searchsorted((values[1:] + values[:-1]) / 2, rows / np.where(most == 0, 1, most))] * most
        found.append(near.ravel()[: part.size])
    return np.concatenate(found)


@CLAIMS.library("The errors drawn are those of the nearest values that NumPy finds")
def nearest(result: Result) -> Outcome:
    """Of every kind of data and codebook, and of every pair of states, one block size, each in its turn."""
    done, said = 0, say("{what}, blocks of {block}: {got}, not {want}")
    for k, kind in enumerate(KINDS):
        x, sizes = result.data(kind)
        for b, name in enumerate(names_of(kind)):
            block = BLOCKS[(k + b) % len(BLOCKS)]
            error, there = np.abs(searched(x, name, block, sizes) - x), x != 0
            want = error.mean(), (error[there] / np.abs(x[there])).mean(), np.sqrt((error**2).mean())
            got = result.errors_of(kind, name, block)[:3]
            if not np.allclose(got, want, rtol=1e-5, atol=0):
                return failed(said.fill(what=f"{kind}, {name}", block=block, got=got, want=want))
            done += 3
    right, (_, sizes) = update_of(result.m, result.v), result.data("m")
    for i, names in enumerate(STATE_PAIRS):
        near = (searched(x, name, BLOCKS[i], sizes).astype(np.float32)
                for name, x in zip(names, (result.m, result.v), strict=True))  # fmt: skip
        median = np.median(np.abs(update_of(*near) - right)[right != 0] / np.abs(right[right != 0]))
        if not np.isclose(result.update_errors[i, i, 1], median, rtol=1e-3):
            got = result.update_errors[i, i, 1]
            return failed(said.fill(what=names, block=BLOCKS[i], got=got, want=median))
        done += 1
    return passed(say("{n} errors", n=done))


@CLAIMS.library("torch.bucketize gives the codes of the rule named after it")
def bucketize(result: Result) -> Outcome:
    """bitsandbytes' torch backend is a scaling and ``torch.bucketize``; its codes are our rule's."""
    try:
        import torch
    except ImportError as error:
        return absent(say("{library} is not installed", library=error.name))
    done = 0
    for kind in KINDS:
        book, (every, _) = BOOKS["dynamic unsigned" if kind == "v" else "dynamic"], result.data(kind)
        x = torch.from_numpy(every[: min(MOST, every.size // 2048 * 2048)].copy()).reshape(-1, 2048)
        values = torch.from_numpy(book.values.copy())
        units = (x * (1 / x.abs().amax(1, keepdim=True).clamp(1e-38))).clamp(-1, 1)
        theirs = torch.bucketize(units, (values[:-1] + values[1:]) / 2).numpy()
        ours = codebooks.quantize_blockwise(x.numpy(), book, 2048, rules.TORCH).codes
        if wrong := int((ours != theirs).sum()):
            return failed(say("{kind}: {wrong} of {n} codes differ", kind=kind, wrong=wrong, n=ours.size))
        done += ours.size
    return passed(say("{n:,} codes", n=done))


@CLAIMS.measured("A block confines an outlier, which with one scale for all costs every element")
def confined(result: Result) -> Outcome:
    """Outside its block an outlier changes no error; with one scale for all the mean error grows.

    The margin of the growth: one octave, which no draw of 65,536 normal numbers moves its maximum by.
    """
    reach = result.outlier
    for i, first in ((0, 20 * 8 + 2), (1, 20 * 8)):  # in 256s: the outlier's block of 256, and of 2048
        elsewhere = np.delete(reach[:, i], np.arange(first, first + (1, 8)[i]), axis=2)
        if not np.array_equal(elsewhere[:, 0], elsewhere[:, 1]):
            return failed(say("an error outside the outlier's block changes"))
    plain, spoiled = np.log2(reach[:, 2].mean(axis=2)).T
    said = say("outside its block no error changes; with one scale the mean error grows {grows:.1f} times")
    return superior(spoiled, plain, 1.0, said.fill(grows=2 ** (spoiled - plain).mean()))


@CLAIMS.proved("A block's maximum is exact if positive, 0.7% short if negative")
def maximum(result: Result) -> Outcome:
    """Every finite FP16 magnitude as a block's maximum, with either sign (dynamic map)."""
    top = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    positive, negative = (round_trip(sign * top, BOOKS["dynamic"], 1) for sign in (1, -1))
    short = 1 + negative.astype(np.float64) / top
    holds = np.array_equal(positive, top) and np.allclose(short, 1 - 0.992968738079071, rtol=0, atol=1e-7)
    return verdict(holds, say("{n:,} positive maxima exact, as many negative ones 0.703% short", n=top.size))


def draws(name: str) -> np.ndarray:
    """Mean absolute and mean relative error of a codebook on independent draws of normal data, (2, draw), octaves."""
    found = [errors(normal(DRAWN, 1000 + seed), BOOKS[name], 2048)[:2] for seed in range(DRAWS)]
    return np.asarray(np.log2(found).T)


@CLAIMS.measured("On normal data linear wins on absolute error, dynamic on relative error")
def trade(result: Result) -> Outcome:
    """On normal data linear has the smaller absolute error, and the larger relative one.

    The margin: a quarter of an octave, about a fifth; less would be no ground to choose by.
    """
    linear, dynamic = draws("linear"), draws("dynamic")
    absolute = superior(dynamic[0], linear[0], 0.25, say("absolute error, octaves of dynamic above linear"))
    relative = superior(linear[1], dynamic[1], 0.25, say("relative error, octaves of linear above dynamic"))
    return both(absolute, relative)


@CLAIMS.measured("Linear makes zeros of second moments that the unsigned dynamic map keeps")
def zeros(result: Result) -> Outcome:
    """Of a network's second moments, linear makes zeros of what dynamic keeps: the update divides by their root.

    The margin: one element in a hundred.
    """
    linear, dynamic = result.lost.T
    said = say("linear unsigned: {linear:.2%} become 0, dynamic unsigned: {dynamic:.2%} become 0")
    return superior(linear, dynamic, 0.01, said.fill(linear=linear.mean(), dynamic=dynamic.mean()))


@CLAIMS.proved("The literal tree has 7 zeros and 10 overlapping values")
def literal_tree(result: Result) -> Outcome:
    fields = [tree.fields(code) for code in range(128)]
    none = sum(f.value == 0 for f in fields)
    overlaps = sum(0 < f.value <= Fraction(1, 10 ** (f.zeros + 1)) for f in fields)
    left, whole = (int((BOOKS[name].values > np.float32(0.1)).sum()) for name in ("tree", "dynamic"))
    said = say(
        "{zeros} of 128 codes read as 0, {overlaps} values lie in a decade below their own: from 0.1 to 1 {left} "
        "values are left, of the dynamic map's {all}"
    )
    return verdict((none, overlaps) == (7, 10), said.fill(zeros=none, overlaps=overlaps, left=left, all=whole))


@CLAIMS.measured("On normal data the literal tree's errors are larger than the dynamic map's")
def worse(result: Result) -> Outcome:
    absolute, relative = draws("tree") - draws("dynamic")
    zero = np.zeros(DRAWS)
    return both(superior(absolute, zero, 0.07, say("absolute error, octaves of the tree above dynamic")),
                superior(relative, zero, 0.07, say("relative error, octaves of the tree above dynamic")))  # fmt: skip


# --- what a GPU must compute ------------------------------------------------------------------------------------
CASE_BLOCK = 256


def case_inputs() -> Arrays:
    """Heavy-tailed float32 values, some far below the others, with zeros of both signs; a block of zeros."""
    x = heavy_tails(33 * CASE_BLOCK)
    scale = np.ldexp(np.float32(1), -(philox_bits(5, x.size) % 12).astype(np.int32))
    x = np.clip(x * scale, -6e4, 6e4).astype(np.float32)
    x[3], x[7] = 0.0, -0.0
    x[-CASE_BLOCK:] = 0
    return {"x": x.view(np.uint32)}


def on_device(fmt: str, inputs: Arrays, device: str) -> Arrays:
    """A maximum, a division, a search; a look-up and a product: elements, scales and product in a format."""
    import torch

    book, dtype = codebooks.dynamic(), {"fp32": torch.float32, "fp16": torch.float16}[fmt]
    x = tensor(inputs["x"], "fp32", device).reshape(-1, CASE_BLOCK).to(dtype)
    values = torch.from_numpy(book.values.copy()).to(device)
    edges = torch.from_numpy(thresholds(book, rules.EVEN).copy()).to(device)
    most = x.abs().amax(1, keepdim=True)
    units = x / torch.where(most == 0, torch.ones_like(most), most)
    codes = torch.bucketize(units.float(), edges)
    found = {"absmax": most.flatten(), "scaled": units, "back": values[codes].to(dtype) * most}
    return {"codes": codes.to(torch.uint8).cpu().numpy()} | {name: bits(array) for name, array in found.items()}


def in_fp32(inputs: Arrays, meta: Meta) -> Arrays:
    """The same by the kernels."""
    x = inputs["x"].view(np.float32).reshape(-1, CASE_BLOCK)
    q = codebooks.quantize_blockwise(x, codebooks.dynamic(), CASE_BLOCK)
    units = x / np.where(q.absmax == 0, np.float32(1), q.absmax)[:, None]
    found = {"absmax": q.absmax, "scaled": units, "back": codebooks.dequantize_blockwise(q)}
    return {"codes": q.codes} | {name: array.view(np.uint32) for name, array in found.items()}


def in_fp16(inputs: Arrays, meta: Meta) -> Arrays:
    """The same by the lab's FP16 arithmetic; codes of the scaled values by their thresholds."""
    book = codebooks.dynamic()
    half = numeric.quantize(inputs["x"].view(np.float32), "fp16").reshape(-1, CASE_BLOCK)
    most = np.abs(half).max(1, keepdims=True)
    units = numeric.div(half, np.where(most == 0, np.float32(1), most), "fp16")
    codes = np.searchsorted(thresholds(book, rules.EVEN), units, "left")
    back = numeric.mul(numeric.quantize(book.values, "fp16")[codes], most, "fp16")
    found = {"absmax": most.ravel(), "scaled": units, "back": back}
    return {"codes": codes.astype(np.uint8)} | {name: numeric.encode(array, "fp16") for name, array in found.items()}


def cases(params: Params) -> Iterator[Case]:
    """Block-wise quantisation and back written as torch operations, in FP32 and with the scaling in FP16."""
    for fmt, lab in (("fp32", in_fp32), ("fp16", in_fp16)):
        formats = {"codes": "bits8", "absmax": fmt, "scaled": fmt, "back": fmt}
        yield Case(f"blockwise_{fmt}", case_inputs, partial(on_device, fmt), lab, formats)


# --- figures ----------------------------------------------------------------------------------------------------
LOOKS = {"dynamic": 0, "linear": 1, "tree": 2, "quantile": 3}
DATA = {"normal": "normal data", "heavy": "heavy tails", "weight": "weights", "gradient": "gradients",
        "m": "first moment", "v": "second moment"}  # fmt: skip
PLACES = (*range(len(BLOCKS) - 1), len(BLOCKS) - 0.4)  # of the block sizes on an axis; one scale for all stands apart


def books(result: Result) -> draw.Figure:
    from .. import formats
    from ..draw.codebooks import Source, number_lines

    sources: dict[str, Source] = {
        "linear": BOOKS["linear"],
        "dynamic": BOOKS["dynamic"],
        "dynamic,\nunsigned": BOOKS["dynamic unsigned"],
        "tree": BOOKS["tree"],
        "quantile\n(normal data)": book_of("quantile", result.normal, 2048),
        "NF4": BOOKS["NF4"],
        "E4M3 / 448": formats.get("e4m3"),
        "E5M2 / 57344": formats.get("e5m2"),
    }
    figure = draw.new_figure(8, 7.5)
    titles = ("Codebooks: up to 256 values in [-1, 1]", "The positive ones, on a logarithmic axis")
    for i, (ax, title) in enumerate(zip(figure.subplots(2, 1), titles, strict=True)):
        number_lines(ax, sources, [1, 0, 5, 2, 3, 7, 6, 6], logarithmic=bool(i))
        ax.set(title=title, xlabel="value, in units of the block's maximum")
    return figure


def blocks(result: Result) -> draw.Figure:
    figure, axes = draw.panels(8, 7.5, 2, 2)
    panels = axes.ravel()
    for ax, metric, kind in zip(panels[:3], (0, 1, 1), ("normal", "normal", "heavy"), strict=True):
        draw_errors(ax, result, kind, metric)
    draw_outlier(panels[3], result)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def plain_log(ax: draw.Axes) -> None:
    """A logarithmic y axis with ticks at 1, 2 and 5 of each decade, written as plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(NullLocator())


def by_block(ax: draw.Axes, values: np.ndarray, style: int, label: str) -> None:
    """A line over the block sizes; dotted to the one scale for all."""
    line = draw.look(style)
    ax.plot(PLACES[:-1], values[:-1], **line.marked, label=label)
    ax.plot(PLACES[-2:], values[-2:], color=line.color, linestyle=":", marker=line.marker)
    ax.set_xticks(PLACES, labels=[str(b) for b in BLOCKS[:-1]] + ["all"])
    ax.set(xlim=(-0.2, PLACES[-1] + 0.1), xlabel="block size")


def draw_errors(ax: draw.Axes, result: Result, kind: str, metric: int) -> None:
    for b, name in enumerate(SIGNED):
        by_block(ax, result.errors[KINDS.index(kind), b, :, metric] * (100 if metric else 1), LOOKS[name], name)
    if kind == "heavy":
        plain_log(ax)
    else:
        ax.set_ylim(0, None)
    ax.set(ylabel="mean relative error (%)" if metric else "mean absolute error",
           title=f"{DATA[kind].capitalize()}: {'relative' if metric else 'absolute'} error")  # fmt: skip


def draw_tensors(ax: draw.Axes, result: Result) -> None:
    """The mean relative error of each kind of real data: in blocks of 2048, and with one scale."""
    texts = {"dynamic": "dynamic (second moment: unsigned)", "tree": "tree (second moment: dynamic, signed)"}
    kinds, ends, handles = KINDS[2:], [BLOCKS.index(2048), BLOCKS.index(WHOLE)], []
    for b, name in enumerate(SIGNED):
        style = draw.look(LOOKS[name])
        mark: dict[str, Any] = {"color": style.color, "marker": style.marker, "linestyle": "none"}
        for place, kind in enumerate(kinds):
            small, whole = 100 * result.errors[KINDS.index(kind), b, ends, 1]
            x = place + 0.17 * (b - 1.5)
            ax.plot([x, x], [small, whole], color=style.color, linewidth=1.2)
            ax.plot([x], [small], **mark)
            ax.plot([x], [whole], **mark, markerfacecolor=draw.current().background)
        handles += ax.plot([], [], **mark, label=texts.get(name, name))
    plain_log(ax)
    ax.set_xticks(range(len(kinds)), labels=[DATA[k] for k in kinds])
    ax.grid(axis="x", visible=False)
    ax.set(ylabel="mean relative error (%)", title="A transformer's tensors")
    ax.legend(handles=handles, loc="upper left", title="filled: blocks of 2048; open: one scale", title_fontsize=9)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * 15)


def draw_update(ax: draw.Axes, result: Result) -> None:
    """The median relative error of Adam's update with both states quantised."""
    for (first, second), errors, style in zip(STATE_PAIRS, result.update_errors[:, :, 1], (1, 3, 5, 0), strict=True):
        by_block(ax, 100 * errors, style, "dynamic, v signed" if second == "dynamic" else first)
    plain_log(ax)
    ax.set(ylabel="median relative error (%)", ylim=(None, ax.get_ylim()[1] * 5),
           title=r"Adam's update $m/(\sqrt{v} + \epsilon)$")  # fmt: skip
    ax.legend(loc="upper left", ncols=2)


def draw_outlier(ax: draw.Axes, result: Result) -> None:
    found = result.outlier[0]
    x = np.arange(found.shape[2] + 1) / 8
    for reach, name, style in zip(found, ("blocks of 256", "blocks of 2048", "one scale"), (5, 0, 1), strict=True):
        line = draw.look(style).line
        ax.stairs(reach[1], x, **line, linewidth=1.5, label=name, baseline=None)
    ax.stairs(found[1, 0], x, color=draw.current().muted, linewidth=1, linestyle=":", label="2048, no outlier",
              baseline=None)  # fmt: skip
    plain_log(ax)
    ax.set(xlim=(0, x[-1]), ylim=(None, found.max() * 8), xlabel="place in the array, in blocks of 2048",
           ylabel="mean absolute error of 256", title=f"One element of {result.params.outlier:g} σ, in block 20",
    )  # fmt: skip
    ax.legend(loc="upper right", ncols=2)


EXPERIMENT = Experiment(
    title=say("Codebooks and blocks"),
    question=say("What does an 8-bit codebook lose, and what do small blocks save?"),
    budget=4.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(books, blocks, sheet("network", (8, 8.5), (2, 1), draw_tensors, draw_update)), cases=cases,
)  # fmt: skip
