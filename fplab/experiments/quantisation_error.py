"""What block-wise quantisation loses: by codebook, by block size, on normal data, heavy tails and real tensors.

After Dettmers et al., 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861), whose table of errors by data
type this rebuilds on a training run of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import codebooks, draw, numeric
from ..codebooks import BOOKS, Codebook, rules, tree
from ..codebooks.thresholds import thresholds
from ..hardware.cases import Arrays, Case, philox_bits
from ..hardware.programs import cast, program
from ..words import say
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Part, absent, failed, verdict
from .panels import dots, line
from .quantities import Columns, above, of, superior, together
from .statistics import superior as exceeds

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
MOST_FOR_QUANTILES = 1 << 16
SMALLEST = 4096  # elements of a tensor whose states an 8-bit optimizer quantises
STATES = {"linear": ("linear", "linear unsigned"), "quantile": ("quantile", "quantile"),
          "dynamic, v signed": ("dynamic", "dynamic"), "dynamic": ("dynamic", "dynamic unsigned")}  # fmt: skip

# The training runs, one a seed: weights, gradients and states are of the first, and of the others the second moments
# alone. Elements of normal data and with heavy tails. How many deviations the injected element has.
E = Experiment(
    "Codebooks and blocks",
    "What does an 8-bit codebook lose, and what do small blocks save?",
    budget=4.0, one_thread=True,
    full={"steps": 300, "lr": 3e-3, "seeds": (0, 1, 2, 3, 4), "normal": NORMAL, "heavy": 1 << 20, "outlier": 1000.0},
    quick={"steps": 10, "seeds": (0, 1, 2), "heavy": 1 << 16},
)  # fmt: skip


# --- data -------------------------------------------------------------------------------------------------------
def normal(n: int = NORMAL, seed: int = 0) -> np.ndarray:
    """Samples of the normal distribution, float32; 2^20 of seed 0 are the data of the published table."""
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def heavy_tails(n: int) -> np.ndarray:
    """Student's t with two degrees of freedom, by its inverse distribution function: no finite variance.

    The function takes numbers strictly between 0 and 1, from Philox's raw stream.
    """
    u = ((np.random.Philox(key=1).random_raw(n) >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52
    return np.asarray((2 * u - 1) / np.sqrt(2 * u * (1 - u)), np.float32)


@E.cache
def trained(p: Params, seed: int) -> dict[str, np.ndarray]:
    """The character transformer's larger tensors after training in float32, of each kind end to end; their sizes.

    Kinds: weights, gradients, and both states of Adam.
    """
    from ..training import characters
    from ..training.eight_bit import Adam8bit
    from ..training.loop import copied

    task = characters()
    model = task.model(seed)
    optimizer = Adam8bit(model.parameters(), lr=p.lr, state_bits=32)
    for batch in task.batches(seed, p.steps):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    large = [weight for weight in model.parameters() if weight.numel() >= SMALLEST]
    tensors = {
        "weight": [weight.detach() for weight in large],
        "gradient": [weight.grad for weight in large if weight.grad is not None],
        "m": [optimizer.state[weight]["state1"] for weight in large],
        "v": [optimizer.state[weight]["state2"] for weight in large],
    }
    flat = {name: np.concatenate([copied(t).ravel() for t in some]) for name, some in tensors.items()}
    return {**flat, "sizes": np.array([weight.numel() for weight in large])}


@E.cache
def data_of(p: Params, kind: str) -> tuple[np.ndarray, list[int]]:
    """The array of a kind, float32 (n,), and the sizes of the tensors that it is made of, if of any."""
    if kind in ("normal", "heavy"):
        return (normal(p.normal) if kind == "normal" else heavy_tails(p.heavy)), []
    first = trained(p, p.seeds[0])
    return first[kind], first["sizes"].tolist()


# --- errors -----------------------------------------------------------------------------------------------------
class Errors(NamedTuple):
    """Means over an array; "relative" and "lost" over its elements that are not zero."""

    absolute: float
    relative: float
    rms: float
    lost: float


def names_of(kind: str) -> tuple[str, ...]:
    """The codebooks that a kind of data is quantised with."""
    return UNSIGNED if kind == "v" else SIGNED


def book_of(name: str, x: np.ndarray, block: int = WHOLE, sizes: Sequence[int] = ()) -> Codebook:
    """The codebook of a name; quantiles are those of the scaled array itself."""
    if name != "quantile":
        return BOOKS[name]
    values = scaled(x, block, sizes)
    return codebooks.quantile(values[:: -(-values.size // MOST_FOR_QUANTILES)])


def scaled(x: np.ndarray, block: int = WHOLE, sizes: Sequence[int] = ()) -> np.ndarray:
    """Every element in units of its block's largest magnitude: what a codebook of quantiles is made from."""
    parts = []
    for part in np.split(x, np.cumsum(sizes or [x.size])[:-1]):
        starts = np.arange(0, part.size, block or part.size)
        most = np.maximum.reduceat(np.abs(part), starts)
        parts.append(part / np.repeat(np.where(most == 0, 1, most), block or part.size)[: part.size])
    return np.concatenate(parts)


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


@E.measure(*METRICS, axes={"data": KINDS, "codebook": dict.fromkeys((*SIGNED, *UNSIGNED)), "block": BLOCKS})
def by_block(p: Params, data: str, codebook: str, block: int) -> Errors | None:
    """What quantising in blocks does to an array."""
    if codebook not in names_of(data):
        return None
    x, sizes = data_of(p, data)
    return errors(x, book_of(codebook, x, block, sizes), block, sizes)


@E.measure("lost", axes={"seed": "seeds", "codebook": ("linear unsigned", "dynamic unsigned")})
def lost_moments(p: Params, seed: int, codebook: str) -> float:
    """The share of second moments that become 0."""
    return errors(trained(p, seed)["v"], BOOKS[codebook], 2048, trained(p, seed)["sizes"].tolist()).lost


@E.measure("update_absolute", "update_relative", axes={"states": STATES, "block": BLOCKS})
def update_errors(p: Params, states: str, block: int) -> tuple[float, float]:
    """Mean |u - u8| and median |u - u8| / |u| of Adam's update u with both states quantised, where u is not 0.

    The mean of the relative error says little here: one second moment that becomes 0 outweighs all others.
    """
    (m, sizes), (v, _) = data_of(p, "m"), data_of(p, "v")
    right = update_of(m, v)
    pairs = zip(STATES[states], (m, v), strict=True)
    error = np.abs(
        update_of(*(round_trip(x, book_of(name, x, block, sizes), block, sizes) for name, x in pairs)) - right
    )
    return float(error.mean()), float(np.median(error[right != 0] / np.abs(right[right != 0])))


@E.measure("outlier", axes={"draw": range(DRAWS), "block": REACHES},
           dims={"spoiled": (False, True), "place": (np.arange(256) / 8).tolist()})  # fmt: skip
def outlier_reach(p: Params, draw: int, block: int) -> np.ndarray:
    """Mean |error| of each 256 elements, the outlier left out, by place in blocks of 2048.

    Normal data of 32 blocks of 2048, without and with one element of so many deviations, in the 21st block.
    """
    plain = normal(32 * 2048, draw)
    spoiled = plain.copy()
    spoiled[20 * 2048 + 700] = p.outlier
    error = np.stack([np.abs(round_trip(x, BOOKS["dynamic"], block).astype(np.float64) - x) for x in (plain, spoiled)])
    error[:, plain != spoiled] = 0
    return np.asarray(error.reshape(2, -1, 256).mean(2))


@E.measure("draw_absolute", "draw_relative", axes={"draw": range(DRAWS), "codebook": ("linear", "dynamic", "tree")})
def draws(p: Params, draw: int, codebook: str) -> tuple[float, float]:
    """Mean absolute and mean relative error on independent draws of normal data."""
    return errors(normal(DRAWN, 1000 + draw), BOOKS[codebook], 2048)[:2]


@E.measure("tables", axes={"codebook": [name for name in SIGNED if name in BOOKS]}, dims=("code",), digested=True)
def table_of(p: Params, codebook: str) -> np.ndarray:
    """The values of a codebook's codes, float32."""
    return BOOKS[codebook].table


@E.table
def rows(r: Result) -> Columns:
    """A row for each kind of data, codebook and block size (0: the whole array), with its four errors."""
    points = [(kind, book, block) for kind in KINDS for book in names_of(kind) for block in BLOCKS]
    columns = dict(zip(("data", "codebook", "block"), map(list, zip(*points, strict=True)), strict=True))
    return {**columns, **{name: [float(getattr(r, name).sel(data=kind, codebook=book, block=block))
                                 for kind, book, block in points] for name in METRICS}}  # fmt: skip


# --- claims -----------------------------------------------------------------------------------------------------
MOST = 1 << 15  # elements of each kind that vectorised checks take
# Mean absolute, mean relative and root mean square error by block size, as printed, computed independently of this lab.
PUBLISHED = {
    "dynamic": {64: ".007535 .0142 .00952", 256: ".00854 .01539 .010838", 2048: ".009702 .01665 .012474",
                WHOLE: ".011943 .01882 .015942"},
    "linear": {64: ".005042 .02728 .005944", 256: ".005984 .03128 .006974", 2048: ".007133 .03623 .00827",
               WHOLE: ".009833 .04739 .011355"},
}  # fmt: skip


@E.proved("No element is farther from its value than half the gap it lies in")
def half_gaps(r: Result) -> Iterator[Part]:
    for kind in KINDS:
        every, _ = data_of(r.p, kind)
        for book in (book_of(name, every) for name in names_of(kind)):
            x = every[:MOST]
            q = codebooks.quantize_blockwise(x, book, None)
            with np.errstate(divide="ignore"):
                units = (x / q.absmax[0]).astype(np.float64)
            values = book.values.astype(np.float64)
            place = np.clip(np.searchsorted(values, units), 1, len(book) - 1)
            gap = values[place] - values[place - 1]
            outside = np.maximum(np.maximum(values[0] - units, units - values[-1]), 0)
            far = np.abs(book.table[q.codes] - units) > np.maximum(gap / 2, outside)
            yield f"{kind}, {book.name}", far, np.full(x.size, False)


@E.library("Errors on 2^20 normal samples are the published ones")
def published(r: Result) -> Iterator[Part]:
    if r.p.normal != NORMAL:
        yield absent(say("the published table is of {n:,} samples", n=NORMAL))
    for book, block, text in ((book, block, row[block]) for book, row in PUBLISHED.items() for block in row):
        got = [float(getattr(r, name).sel(data="normal", codebook=book, block=block)) for name in METRICS[:3]]
        rounded = [round(value, len(printed) - 1) for printed, value in zip(text.split(), got, strict=True)]
        yield f"{book}, {block}", rounded, [*map(float, text.split())]


def searched(x: np.ndarray, name: str, block: int, sizes: list[int]) -> np.ndarray:
    """Elements at their nearest values by NumPy's search among the midpoints, in float64, block by block."""
    values = book_of(name, x, block, sizes).values.astype(np.float64)
    books = []
    for part in np.split(x.astype(np.float64), np.cumsum(sizes or [x.size])[:-1]):
        size = block or part.size
        rows = np.pad(part, (0, -part.size % size)).reshape(-1, size)
        most = np.abs(rows).max(1, keepdims=True)
        near = values[np.searchsorted((values[1:] + values[:-1]) / 2, rows / np.where(most == 0, 1, most))] * most
        books.append(near.ravel()[: part.size])
    return np.concatenate(books)


@E.library("The errors drawn are those of the nearest values that NumPy finds")
def nearest(r: Result) -> Iterator[Part]:
    """Of every kind of data and codebook, and of every pair of states, one block size, each in its turn."""
    detail = say("{what}, blocks of {block}: {got}, not {want}")
    for k, kind in enumerate(KINDS):
        x, sizes = data_of(r.p, kind)
        for b, name in enumerate(names_of(kind)):
            block = BLOCKS[(k + b) % len(BLOCKS)]
            error, there = np.abs(searched(x, name, block, sizes) - x), x != 0
            want = error.mean(), (error[there] / np.abs(x[there])).mean(), np.sqrt((error**2).mean())
            got = [float(getattr(r, metric).sel(data=kind, codebook=name, block=block)) for metric in METRICS[:3]]
            wrong = detail.fill(what=f"{kind}, {name}", block=block, got=got, want=want)
            yield wrong, np.allclose(got, want, rtol=1e-5, atol=0)
    (m, sizes), (v, _) = data_of(r.p, "m"), data_of(r.p, "v")
    right = update_of(m, v)
    for i, (states, names) in enumerate(STATES.items()):
        near = (searched(x, name, BLOCKS[i], sizes).astype(np.float32) for name, x in zip(names, (m, v), strict=True))
        median = np.median(np.abs(update_of(*near) - right)[right != 0] / np.abs(right[right != 0]))
        update = float(r.update_relative.sel(states=states, block=BLOCKS[i]))
        wrong = detail.fill(what=names, block=BLOCKS[i], got=update, want=median)
        yield wrong, np.isclose(update, median, rtol=1e-3)


@E.library("torch.bucketize gives the codes of the rule named after it")
def bucketize(r: Result) -> Iterator[Part]:
    """bitsandbytes' torch backend is a scaling and ``torch.bucketize``; its codes are our rule's."""
    import torch

    for kind in KINDS:
        book, (every, _) = BOOKS["dynamic unsigned" if kind == "v" else "dynamic"], data_of(r.p, kind)
        x = torch.from_numpy(every[: min(MOST, every.size // 2048 * 2048)].copy()).reshape(-1, 2048)
        values = torch.from_numpy(book.values.copy())
        units = (x * (1 / x.abs().amax(1, keepdim=True).clamp(1e-38))).clamp(-1, 1)
        theirs = torch.bucketize(units, (values[:-1] + values[1:]) / 2).numpy()
        yield kind, codebooks.quantize_blockwise(x.numpy(), book, 2048, rules.TORCH).codes, theirs


@E.measured("A block confines an outlier, which with one scale for all costs every element")
def confined(r: Result) -> Outcome:
    """Outside its block an outlier changes no error; with one scale for all the mean error grows.

    The margin of the growth: one octave, which no draw of 65,536 normal numbers moves its maximum by.
    """
    reach = r.outlier.values
    for i, first in ((0, 20 * 8 + 2), (1, 20 * 8)):  # in 256s: the outlier's block of 256, and of 2048
        elsewhere = np.delete(reach[:, i], np.arange(first, first + (1, 8)[i]), axis=2)
        if not np.array_equal(elsewhere[:, 0], elsewhere[:, 1]):
            return failed(say("an error outside the outlier's block changes"))
    plain, spoiled = np.log2(reach[:, 2].mean(axis=2)).T
    detail = say("outside its block no error changes; with one scale the mean error grows {grows:.1f} times")
    return exceeds(spoiled, plain, 1.0, detail.fill(grows=2 ** (spoiled - plain).mean()))


@E.proved("A block's maximum is exact if positive, 0.7% short if negative")
def maximum(r: Result) -> Outcome:
    """Every finite FP16 magnitude as a block's maximum, with either sign (dynamic map)."""
    top = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    positive, negative = (round_trip(sign * top, BOOKS["dynamic"], 1) for sign in (1, -1))
    short = 1 + negative.astype(np.float64) / top
    holds = np.array_equal(positive, top) and np.allclose(short, 1 - 0.992968738079071, rtol=0, atol=1e-7)
    return verdict(holds, say("{n:,} positive maxima exact, as many negative ones 0.703% short", n=top.size))


linear, dynamic, literal = (
    {error: of(f"draw_{error}", codebook=name).log2 for error in ("absolute", "relative")}
    for name in ("linear", "dynamic", "tree")
)
E.claim(
    # The margin: a quarter of an octave, about a fifth; less would be no ground to choose by.
    together("trade", "On normal data linear wins on absolute error, dynamic on relative error",
             above(dynamic["absolute"], linear["absolute"], by=0.25),
             above(linear["relative"], dynamic["relative"], by=0.25)),
    # Adam's update divides by the root of second moments. The margin: one element in a hundred.
    superior("zeros", "Linear makes zeros of second moments that the unsigned dynamic map keeps",
             of("lost", codebook="linear unsigned"), of("lost", codebook="dynamic unsigned"), by=0.01),
    together("worse", "On normal data the literal tree's errors are larger than the dynamic map's",
             *(above(literal[error], dynamic[error], by=0.07) for error in dynamic)),
)  # fmt: skip


@E.proved("The literal tree has 7 zeros and 10 overlapping values")
def literal_tree(r: Result) -> Outcome:
    fields = [tree.fields(code) for code in range(128)]
    none = sum(f.value == 0 for f in fields)
    overlaps = sum(0 < f.value <= Fraction(1, 10 ** (f.zeros + 1)) for f in fields)
    left, whole = (int((BOOKS[name].values > np.float32(0.1)).sum()) for name in ("tree", "dynamic"))
    detail = say(
        "{zeros} of 128 codes read as 0, {overlaps} values lie in a decade below their own: from 0.1 to 1 {left} "
        "values are left, of the dynamic map's {all}"
    )
    return verdict((none, overlaps) == (7, 10), detail.fill(zeros=none, overlaps=overlaps, left=left, all=whole))


E.answer("the 8-bit dynamic map is {dynamic:.1%} off in blocks of 2048; it makes {kept:.1%} of second moments 0, the "
         "linear map {lost:.0%}", dynamic=of("mean_relative", data="normal", codebook="dynamic", block=2048),
         kept=of("lost", codebook="dynamic unsigned"), lost=of("lost", codebook="linear unsigned"))  # fmt: skip


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


def blockwise(fmt: str, x: Any) -> dict[str, Any]:
    """A maximum, a division, a search; a look-up and a product: elements, scales and product in a format."""
    import torch

    book = codebooks.dynamic()
    x = cast(x.reshape(-1, CASE_BLOCK), fmt)
    values = torch.from_numpy(book.values.copy()).to(x.device)
    edges = torch.from_numpy(thresholds(book, rules.EVEN).copy()).to(x.device)
    most = x.abs().amax(1, keepdim=True)
    units = x / torch.where(most == 0, torch.ones_like(most), most)
    codes = torch.bucketize(units.float(), edges)
    return {"codes": codes.byte(), "absmax": most.flatten(), "scaled": units, "back": cast(values[codes], fmt) * most}


def in_fp32(x: np.ndarray) -> dict[str, np.ndarray]:
    """The same by the kernels."""
    x = x.reshape(-1, CASE_BLOCK)
    q = codebooks.quantize_blockwise(x, codebooks.dynamic(), CASE_BLOCK)
    units = x / np.where(q.absmax == 0, np.float32(1), q.absmax)[:, None]
    return {"codes": q.codes, "absmax": q.absmax, "scaled": units, "back": codebooks.dequantize_blockwise(q)}


def in_fp16(x: np.ndarray) -> dict[str, np.ndarray]:
    """The same by the lab's FP16 arithmetic; codes of the scaled values by their thresholds."""
    book = codebooks.dynamic()
    half = numeric.quantize(x, "fp16").reshape(-1, CASE_BLOCK)
    most = np.abs(half).max(1, keepdims=True)
    units = numeric.div(half, np.where(most == 0, np.float32(1), most), "fp16")
    codes = np.searchsorted(thresholds(book, rules.EVEN), units, "left")
    back = numeric.mul(numeric.quantize(book.values, "fp16")[codes], most, "fp16")
    return {"codes": codes.astype(np.uint8), "absmax": most.ravel(), "scaled": units, "back": back}


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """Block-wise quantisation and back written as torch operations, in FP32 and with the scaling in FP16."""
    for fmt, lab in (("fp32", in_fp32), ("fp16", in_fp16)):
        gives = {"codes": "bits8", "absmax": fmt, "scaled": fmt, "back": fmt}
        yield program(f"blockwise_{fmt}", case_inputs, {"x": "fp32"}, partial(blockwise, fmt), gives, lab)


# --- figures ----------------------------------------------------------------------------------------------------
DATA = {"normal": "normal data", "heavy": "heavy tails", "weight": "weights", "gradient": "gradients",
        "m": "first moment", "v": "second moment"}  # fmt: skip
WHOLE_LAST = {"256": "blocks of 256", "2048": "blocks of 2048", "all": "one scale"}


def named_blocks(x: Any) -> Any:
    """Block sizes as words, in their order."""
    return x.assign_coords(block=[str(block) if block else "all" for block in x.block.values])


@E.picture
def books(r: Result) -> draw.Figure:
    from .. import formats
    from ..draw.codebooks import Source, number_lines

    sources: dict[str, Source] = {
        "linear": BOOKS["linear"],
        "dynamic": BOOKS["dynamic"],
        "dynamic,\nunsigned": BOOKS["dynamic unsigned"],
        "tree": BOOKS["tree"],
        "quantile\n(normal data)": book_of("quantile", normal(r.p.normal), 2048),
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


E.figure(
    "blocks",
    line(of("mean_absolute", data="normal", codebook=[*SIGNED]).then("error", named_blocks), x="block", hue="codebook",
         marked=True, ticks=True, ylim=(0, None), xlabel="block size", ylabel="mean absolute error",
         title="Normal data: small blocks save, even steps err least"),
    dots(of("mean_relative", block=2048) * 100, y="data", hue="codebook", log="x", names=DATA,
         xlabel="mean relative error (%), blocks of 2048",
         title="Relative errors: the dynamic map stays below even steps"),
    size=(8, 9),
)  # fmt: skip
E.figure(
    "network",
    line((of("update_relative") * 100).then("error", named_blocks), x="block", hue="states", log="y", marked=True,
         ticks=True, xlabel="block size", ylabel="median relative error (%)",
         title=r"Adam's update $m/(\sqrt{v} + \epsilon)$"),
    line(of("outlier", draw=0, spoiled=True).then("error", named_blocks), x="place", hue="block", log="y",
         names=WHOLE_LAST, xlabel="place in the array, in blocks of 2048", ylabel="mean absolute error of 256",
         title="One large element, in block 20: a block confines it"),
    size=(8, 9),
)  # fmt: skip
